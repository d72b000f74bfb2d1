/* SPDX-License-Identifier: MIT
 *
 * sluice.h - the public embedding API: one engine handle, requests, tokenizers, chat templates.
 *
 * Threads: sl_engine_create/destroy belong to one owner; everything that takes a `struct sl_engine
 * *` otherwise may be called from any thread. A `struct sl_request` is read by one thread at a
 * time. Lifetime: handles are heap objects; each has one release function, named beside its
 * constructor. Errors: a function that can fail returns 0 or a negative SL_E* code and describes
 * the failure once, at its origin, in the caller's `struct sl_error` (which may be NULL). Strings
 * are UTF-8 and NUL-terminated unless a length goes with them.
 */
#ifndef SLUICE_H
#define SLUICE_H

#include "sluice_base.h"
#include "sluice_stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_VERSION "0.1.0"

/* ---------------------------------------------------------------- models by name */

struct sl_hub_progress {
    const char *repo;
    const char *note; /* something to tell once (a busy server); NULL: none */
    const char *file; /* just finished; NULL: none */
    uint64_t file_bytes, done_bytes, total_bytes;
    int32_t n_done, n_files;
};

struct sl_hub_config {        /* zero-initialise; NULL for all of it = defaults */
    const char *revision;     /* branch, tag or commit; default "main" */
    const char *download_dir; /* the cache; default HF_HUB_CACHE, HF_HOME/hub, ~/.cache/... */
    bool offline;             /* the cache or nothing; HF_HUB_OFFLINE says so too */
    bool refresh;             /* ask the hub even if the cache has the model */
    bool text_only;           /* tokenizer and templates of a folder, without its weights */
    void (*progress)(void *arg, const struct sl_hub_progress *p);
    void *progress_arg;
    /* Asked some times a second: true ends a download with SL_ECANCELED. What has arrived is kept
     * for the next one. NULL: never. */
    bool (*cancelled)(void *arg);
    void *cancelled_arg;
};

/* Where a model lies on disk: a path that exists is itself, NULL stays NULL (the bundled model).
 * org/name, org/name:QUANT and org/name/FILE.gguf are looked up in the Hugging Face cache, and what
 * it lacks is downloaded into it (HF_ENDPOINT, HF_TOKEN; needs libcurl.so.4). Any other name comes
 * back as it is, for the loader to refuse. *path is malloc'ed: sl_free. May take hours; blocks. */
SL_MUST_CHECK int sl_model_find(const char *name, const struct sl_hub_config *cfg, char **path,
                                struct sl_error *err);

/* ---------------------------------------------------------------- tokenizer */

struct sl_tokenizer; /* immutable once opened: any thread may use it */

enum sl_encode_flags {
    SL_ENCODE_ADD_SPECIAL = 1 << 0,   /* run the post-processor: add BOS/EOS as the model wants */
    SL_ENCODE_PARSE_SPECIAL = 1 << 1, /* text that spells a special token becomes that token */
};

/* path: model folder, tokenizer.json, GGUF, .tiktoken, SentencePiece .model; NULL = bundled model.
 */
SL_MUST_CHECK int sl_tokenizer_open(const char *path, struct sl_tokenizer **out,
                                    struct sl_error *err);
void sl_tokenizer_close(struct sl_tokenizer *tok);
/* *ids is malloc'ed, the caller frees it with sl_free. Invalid UTF-8 is encoded, never an error. */
SL_MUST_CHECK int sl_tokenizer_encode(const struct sl_tokenizer *tok, const char *text,
                                      size_t n_bytes, unsigned flags, int32_t **ids, size_t *n_ids,
                                      struct sl_error *err);
/* A text to embed or to score: with the model's special tokens, at most max_ids in all (0: any
 * number), for which texts lose their ends. b NULL, or a second text; *second_from is where it
 * begins, 0 without one. Of two texts the longer one is cut first. */
SL_MUST_CHECK int sl_tokenizer_encode_input(const struct sl_tokenizer *tok, const char *a,
                                            size_t n_a, const char *b, size_t n_b, int32_t max_ids,
                                            int32_t **ids, size_t *n_ids, int32_t *second_from,
                                            struct sl_error *err);
/* *text is malloc'ed and NUL-terminated; ids outside the vocabulary are SL_EINVAL. */
SL_MUST_CHECK int sl_tokenizer_decode(const struct sl_tokenizer *tok, const int32_t *ids,
                                      size_t n_ids, bool skip_special, char **text, size_t *n_bytes,
                                      struct sl_error *err);
int32_t sl_tokenizer_n_vocab(const struct sl_tokenizer *tok);

/* ---------------------------------------------------------------- chat template */

/* Renders a Jinja chat template. context_json: an object with `messages` and any further variable
 * (`tools`, `add_generation_prompt`, `now` = ISO time for strftime_now). path: a template file or a
 * model; NULL = bundled model. *out is malloc'ed. */
SL_MUST_CHECK int sl_template_render_file(const char *path, const char *context_json,
                                          size_t n_context, char **out, size_t *n_out,
                                          struct sl_error *err);

/* ---------------------------------------------------------------- engine */

struct sl_engine;

/* Several engines of one process share the memory of their KV pages, and the compute threads of the
 * CPU: a busy one takes the pages that another leaves idle. Each keeps room for one sequence of its
 * max_model_len. On a GPU each has an even part of the bytes for good. */
struct sl_shared;
/* kv_cache_bytes: for n_engines (at most 16) together; 0: a quarter of the machine's memory. */
SL_MUST_CHECK int sl_shared_create(uint64_t kv_cache_bytes, int32_t n_engines,
                                   struct sl_shared **out, struct sl_error *err);
void sl_shared_destroy(struct sl_shared *s); /* after its engines; NULL is fine */

typedef void (*sl_progress_fn)(void *arg, const char *what, uint64_t done, uint64_t total);

struct sl_engine_config { /* zero-initialise; 0/NULL = default */
    const char *model;    /* folder or .gguf; NULL = bundled model */
    const char *device;   /* "auto" (a Hopper GPU if there is one), "cpu", "cuda", "cuda:N", or for
                             several ranks "cuda:N,N,.." */
    const char *chat_template;  /* file path or template text; overrides the model's */
    const char *kv_cache_dtype; /* "auto" (bf16, on a GPU f16), "f32", "f16", "bf16", "q8_0",
                                   "fp8", "turboquant_4bit_nc"; on a CPU "nvfp4",
                                   "int4_per_token_head", "turboquant_k8v4", "turboquant_3bit_nc" */
    /* Layers that have "auto" pages all the same, besides the first and last ones in the formats
     * of codes (nvfp4, int4, TurboQuant): numbers from 0 on, "sliding_window", separated by commas;
     * "none". */
    const char *kv_cache_dtype_skip_layers;
    const char *cpu_isa;          /* "auto", or the highest instruction set to use: "avx2" */
    const char *numa;             /* "auto": threads stay on the node of their weights; "off" */
    uint64_t kv_cache_bytes;      /* page pool; default: enough for max_num_seqs, at most 1/4 of
                                     RAM or what the GPU has left */
    float gpu_memory_utilization; /* share of a GPU's memory to use; default 0.9 */
    /* On a GPU: layers, from the first on, whose experts stay in host memory and are computed by
     * the CPU: "all", a number, or "auto": as few as it takes for the rest to fit. NULL: none. */
    const char *cpu_offload_experts;
    /* On a CPU: repacked weights beyond weights_memory_bytes (default: half of the RAM) lie in a
     * file in this folder, and are read in every step. NULL: all are in memory, or do not fit. */
    const char *offload_folder;
    uint64_t weights_memory_bytes;
    int32_t n_threads;            /* compute threads; default: cores of this process */
    int32_t tensor_parallel_size; /* ranks among which the model is divided: each has a GPU of its
                                     own, or its share of the CPU's threads; default 1 */
    /* Each of these ranks has some of the experts of a layer, whole; else some rows of every one.
     * tensor_parallel_size is 2, 4 or 8 then, or 1. */
    bool enable_expert_parallel;
    /* Experts are placed among these ranks by their load, on CPUs. JSON as vLLM's --eplb-config:
     * {"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 0,
     * "log_balancedness": false}, which are the defaults. */
    bool enable_eplb;
    const char *eplb_config;
    /* Of enable_expert_parallel, on CPUs: each rank has the whole of everything but experts.
     * Attention is computed on all of them, and tensor_parallel_size need not divide heads. With
     * enable_eplb and ranks in processes, a lost rank whose experts have replicas on others is done
     * without until it is back. */
    bool divide_only_experts;
    /* So many of these ranks, one after the other, have the same key heads, and each of them keeps
     * its part of the positions: a block of the cache then has so many times block_size tokens,
     * which is 256. It divides tensor_parallel_size, which need not divide the key heads then.
     * CPU alone; default 1. */
    int32_t decode_context_parallel_size;
    /* Stages among which the model's layers are divided: each has a GPU of its own, or they share
     * the CPU's threads; default 1. With tensor_parallel_size each stage is divided among so
     * many ranks, at most 8 parts in all. Layers of each, as "20,12"; default: so that the stage
     * that reads most weights in a step reads as few as can be. */
    int32_t pipeline_parallel_size;
    const char *pipeline_parallel_layers;
    /* This engine is number data_parallel_rank of data_parallel_size in this process that serve the
     * same model: each has GPUs of its own, in their order, or its share of the CPU's threads and
     * of the RAM. Default 1: it is alone. */
    int32_t data_parallel_size, data_parallel_rank;
    /* Ranks in processes of their own, which may be on other hosts: one rank or one stage in each,
     * so nnodes is tensor_parallel_size or pipeline_parallel_size. The engine is that of node_rank
     * 0, which the others (sl_rank_follow)
     * find at master_addr and master_port. Default 1: all in this process. */
    int32_t nnodes, node_rank, master_port;
    const char *master_addr;        /* default 127.0.0.1 */
    const char *rank_secret_file;   /* what they have in common; needed beyond loopback addresses */
    const char *rank_transport;     /* "auto" (shared memory on one host, else TCP) or "tcp" */
    int32_t rank_timeout_s;         /* silence after which a rank is lost; default 3 */
    int32_t rank_start_s;           /* how long they wait for one another at start; default 600 */
    int32_t max_model_len;          /* tokens; default: the model's context */
    int32_t max_num_seqs;           /* sequences in one step */
    int32_t max_num_batched_tokens; /* token budget of one step = chunk size of prefill */
    int32_t block_size;             /* tokens per KV page */
    int32_t max_state_slots;        /* recurrent states, of sequences and of cached prefixes;
                                       default: two for each sequence, and a fifth of the pool */
    int32_t max_queued;             /* requests waiting beyond which submit says SL_EBUSY */
    int32_t priority_max_wait_ms;   /* who waited that long gets a turn, whatever its priority;
                                       default 30000 */
    int32_t watchdog_s;             /* seconds of standstill until sl_engine_health says so; default
                                       120, below 0 = never */
    int32_t max_itl_ms;             /* chunks of prompts are cut so that what generates waits about
                                       so long for its next token, or twice as long as without;
                                       default 50, below 0 = any time */
    int32_t max_loras;              /* different adapters in one step; default 8 */
    int32_t max_lora_rank;          /* of any adapter, up to 256; default 16 */
    int32_t max_cpu_loras;          /* adapters in memory; default max_loras */
    bool enable_lora;
    const char *runner;  /* "auto", "generate", "pooling": what the model is for, as in vLLM */
    const char *convert; /* "auto", "none", "embed", "classify": likewise */
    const char *classifier_from_token; /* "no,yes": tokens whose logits make a score */
    const char *activation_dtype; /* of products of FP8 weights on a GPU: "bf16", which is "auto",
                                     or "fp8", where the checkpoint was made for it */
    /* Skip-softmax: attention leaves out tiles of keys whose best score is lower than a row's best
     * by more than ln(position / this). Approximate; 0: off. docs/DETERMINISM.md has the rule. */
    float skip_softmax_threshold_scale_factor;
    bool skip_softmax_counts; /* sl_engine_skipped may be called */
    /* Attention of layers that see everything, but for the first two, reads so many pages, those
     * whose bounds of keys promise most (docs/OPERATIONS.md). Approximate, on the CPU; 0: all. */
    int32_t sparse_topk_pages;
    /* JSON as vLLM's --speculative-config, of method ngram, suffix, draft_model, mtp, eagle3,
     * dflash or dspark:
     * {"method": "draft_model", "model": folder or .gguf, "num_speculative_tokens": 5}. NULL: a
     * token a step. No output changes, but with synthetic acceptance (docs/ENGINE.md). */
    const char *speculative_config;
    /* A model that drafts, folder or .gguf, in place of the "model" of speculative_config; alone: 5
     * tokens are drafted. "(bundled)" is the bundled model. */
    const char *speculative_model;
    /* Copies of KV pages outside the pool (docs/TIERS.md): GiB of host memory, as vLLM's
     * --kv-offloading-size, and a folder for what is to hold over restarts, with GiB of it (default
     * 16). 0 and NULL: none. */
    float kv_offloading_size, kv_cache_disk_size;
    const char *kv_cache_dir;
    /* Pages in that folder are coded without loss: "auto" (NULL): where that is expected to be
     * faster, by what was measured; "always": where they shrink; "none". */
    const char *kv_cache_coding;
    const char *kv_offloading_backend; /* NULL, or "native" */
    /* Copies in a store that servers share: redis://[user:password@]host[:port][/db] or
     * s3://bucket[/prefix] (docs/OPERATIONS.md has the variables for it). Redis' password may be in
     * REDISCLI_AUTH instead. Milliseconds that a question to it may take (default 100), times that
     * a page was seen before it is written (1), seconds until it is forgotten there (86400; -1:
     * never). Load "auto" (NULL): where that is expected to be faster than to compute, by what was
     * measured; "always". */
    const char *kv_remote_url, *kv_remote_load;
    int32_t kv_remote_timeout_ms, kv_remote_store_after, kv_remote_ttl_s;
    /* JSON as vLLM's --kv-transfer-config: {"kv_connector": "OffloadingConnector", "kv_role":
     * "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": bytes}} */
    const char *kv_transfer_config;
    /* Prompts are computed by one server and go on in another (docs/TIERS.md): "prefill": others
     * read pages here; "decode": pages are read from others; "both"; NULL or "null": neither. */
    const char *disaggregation_mode;
    /* Where pages are read, TCP: an address of this machine (default 127.0.0.1), which others are
     * told, and a port (default 8998; below 0: any free one). */
    const char *kv_transfer_host;
    int32_t disaggregation_bootstrap_port;
    /* Addresses and networks, with commas, that may read pages, be asked for them, and name others;
     * "*": any. NULL: this machine. */
    const char *kv_transfer_peers;
    bool no_prefix_caching;
    float kv_retention;   /* share of the pool that may be kept for conversations which wait for a
                             tool's result; default 0.75, below 0: none */
    bool no_jump_forward; /* tokens that a grammar leaves no choice about take a step each */
    bool exact_weights;   /* multiply weights of block formats as floats: slower, for comparison */
    bool null_model;      /* benchmark of the front end: tokens come from a counter */
    bool kv_events;       /* sl_engine_kv_events may be called */
    struct sl_shared *shared; /* NULL: all is its own; else kv_cache_bytes is not used */
    sl_progress_fn progress;
    void *progress_arg;
};

enum sl_model_task {
    SL_TASK_GENERATE,    /* text */
    SL_TASK_EMBED,       /* a vector for each prompt */
    SL_TASK_SCORE,       /* numbers for each prompt, one for each label of a classifier */
    SL_TASK_TOKEN_EMBED, /* a vector for each token of a prompt (ColBERT) */
};

struct sl_kv_group_info {
    bool state;     /* recurrent layers: a page holds their state; window is 0 */
    int32_t window; /* positions a token sees, its own included; 0: all before it */
    int32_t n_layers, n_pages;
    int32_t n_draft_pages; /* of recurrent layers: besides, for the states behind drafts */
    uint64_t page_bytes;
    bool chunks; /* the window does not slide: a token sees its own chunk of so many */
};

struct sl_model_info {
    enum sl_model_task task;
    int32_t n_pooled;         /* values for each prompt, or each of its tokens; 0: it generates */
    bool normalized;          /* they are vectors of length 1 */
    bool scores_pairs;        /* prompts are two texts, see sl_request_desc.second_from */
    const char *pooling;      /* "mean", "cls", "last", "max", "all"; NULL: it generates */
    const char *architecture; /* family name, e.g. "qwen3" */
    const char *model_path;   /* "(bundled)" for the bundled model */
    uint64_t n_params, weight_bytes, kv_cache_bytes;
    uint64_t kv_bytes_per_token;
    int32_t n_layers, hidden, n_vocab, max_model_len;
    int32_t block_size, n_pages; /* tokens of a block; blocks, of all sequences and the cache */
    /* Groups of layers that need the same positions. Each has a pool of pages, one page for a block
     * of tokens. 0: one group, a page for each block. */
    int32_t n_kv_groups;
    struct sl_kv_group_info kv_groups[SL_KV_GROUPS];
    int32_t max_num_seqs, max_num_batched_tokens, n_threads;
    int32_t n_ranks, n_stages;      /* that the model is divided among; 0: it has no weights */
    int32_t n_kv_ranks;             /* ranks that divide the positions of a sequence; 1: none do */
    int32_t data_parallel_rank;     /* as configured */
    int32_t num_speculative_tokens; /* most that are drafted behind a sequence; 0: none */
    const char *speculative_method; /* of speculative_config; NULL: none */
    const char *speculative_model;  /* that drafts; NULL: none */
    const char *weight_dtype, *kv_dtype, *isa;
    uint64_t device_total_bytes, device_used_bytes; /* memory of a GPU after loading; 0: none */
    int32_t n_expert_layers, n_cpu_expert_layers;   /* with experts; beside a GPU on the CPU */
    uint64_t cpu_expert_bytes;                      /* of host memory that those take */
};

SL_MUST_CHECK int sl_engine_create(const struct sl_engine_config *cfg, struct sl_engine **out,
                                   struct sl_error *err);
/* Of a configuration with node_rank above 0: computes that rank's part of what the engine of node 0
 * does, until that one ends (0) or cannot be found again. It takes sizes and formats of pages from
 * there. When the connection is lost it keeps its weights and connects anew. */
SL_MUST_CHECK int sl_rank_follow(const struct sl_engine_config *cfg, struct sl_error *err);
/* Cancels what is left and joins the thread. No other thread may call in meanwhile; afterwards a
 * request of this engine may only be released. If the thread hangs in a step and the watchdog finds
 * so, it and all its memory are left behind: nothing was freed, and the call may be repeated. */
void sl_engine_destroy(struct sl_engine *eng);
const struct sl_model_info *sl_engine_info(const struct sl_engine *eng);
const struct sl_tokenizer *sl_engine_tokenizer(const struct sl_engine *eng);
/* 0 while the engine makes progress or has nothing to do. SL_ESTALLED: requests are open and
 * nothing moves (watchdog_s); new ones are refused until something does. SL_ERANK: likewise, until
 * all ranks are there (nnodes). Where steps do without lost ones (divide_only_experts) it is 0, and
 * err->msg says so; else that is empty. SL_EDEVICE, SL_EINTERNAL: for good.
 */
int sl_engine_health(const struct sl_engine *eng, struct sl_error *err);
bool sl_engine_healthy(const struct sl_engine *eng);

/* Gives memory back for as long as nobody asks. From the call on requests are refused with
 * SL_EASLEEP; those in flight are waited for at most timeout_ms (then SL_ETIMEOUT, awake as
 * before), or aborted. The prefix cache is forgotten. Level 1: the pages' memory, on a GPU all
 * memory. Level 2: the weights as well. Asleep already: deeper if level says so. Any thread;
 * blocks. */
SL_MUST_CHECK int sl_engine_sleep(struct sl_engine *eng, int level, bool abort, int timeout_ms,
                                  struct sl_error *err);
/* Takes all memory again and reads the weights where they were given up. On failure asleep as
 * before. */
SL_MUST_CHECK int sl_engine_wake(struct sl_engine *eng, struct sl_error *err);
/* Sleeps and wakes with the weights of another checkpoint of the same shape (NULL: the same path,
 * read anew); tokenizer and template stay. If they cannot be loaded, the old ones serve on. */
SL_MUST_CHECK int sl_engine_reload(struct sl_engine *eng, const char *path, bool abort,
                                   int timeout_ms, struct sl_error *err);
int sl_engine_sleep_level(const struct sl_engine *eng); /* 0: awake */

/* ---------------------------------------------------------------- structured output */

enum sl_grammar_kind {
    SL_GRAMMAR_JSON_OBJECT, /* any JSON object; text is not used */
    SL_GRAMMAR_JSON_SCHEMA, /* text: a schema */
    SL_GRAMMAR_REGEX,       /* the whole text matches */
    SL_GRAMMAR_CHOICE,      /* text: a JSON array of strings, one of which it is */
    SL_GRAMMAR_EBNF,        /* GBNF or Lark, told apart by their rules: name ::= or name : */
    SL_GRAMMAR_STRUCTURAL,  /* text: structural tags as vLLM has them (grammar/tags.c) */
};

/* How JSON is written where a schema leaves it open; zero is the default for generation. */
struct sl_json_style {
    /* A regular expression for what stands between two tokens. NULL: nothing, one space, or a line
     * end and an indentation; "": nothing. */
    const char *whitespace;
    /* An object with properties or patternProperties, and without additionalProperties and
     * unevaluatedProperties, may have other names too, as the specification says. */
    bool additional_properties;
    bool whole_floats; /* 1.0 is an integer too, as the specification says */
};

struct sl_constraint_desc {
    enum sl_grammar_kind kind;
    const char *text; /* copied, as is style.whitespace */
    size_t n_text;
    struct sl_json_style style;
};

struct sl_constraint; /* what outputs must be, compiled for a model; counted, any thread */

/* Finds a constraint in the engine's cache, else compiles it, which may take a second. A grammar
 * that cannot be enforced is refused with the name of what is not supported. */
SL_MUST_CHECK int sl_constraint_open(struct sl_engine *eng, const struct sl_constraint_desc *desc,
                                     struct sl_constraint **out, struct sl_error *err);
/* The cache alone: NULL if it is not there. Takes no time. */
struct sl_constraint *sl_constraint_find(struct sl_engine *eng,
                                         const struct sl_constraint_desc *desc);
void sl_constraint_release(struct sl_constraint *c); /* also after the engine is gone */

/* ---------------------------------------------------------------- adapters */

struct sl_adapter; /* LoRA weights beside the model's, in memory while held; counted, any thread */
struct sl_adapter_info {
    const char *name, *path;
    int64_t t_loaded_s; /* since 1970 */
    int32_t n_users;    /* requests that have it */
};

/* Reads a folder as PEFT writes it and gives it a name. replace: under a name that is taken, too;
 * requests that have the old one keep it. */
SL_MUST_CHECK int sl_adapter_load(struct sl_engine *eng, const char *name, const char *path,
                                  bool replace, struct sl_error *err);
/* Forgets the name. Requests that have the adapter keep it until they are released. */
SL_MUST_CHECK int sl_adapter_unload(struct sl_engine *eng, const char *name, struct sl_error *err);
/* A reference, for requests. Weights that gave way to others in memory are read again, which may
 * take long: if the caller may not wait, *out is NULL then. SL_EBUSY: no room for them. */
SL_MUST_CHECK int sl_adapter_open(struct sl_engine *eng, const char *name, bool may_wait,
                                  struct sl_adapter **out, struct sl_error *err);
void sl_adapter_release(struct sl_adapter *a);           /* also after the engine is gone */
const char *sl_adapter_name(const struct sl_adapter *a); /* while it is held */
bool sl_adapter_known(struct sl_engine *eng, const char *name);
/* All of them, in the order they were loaded; fn may not call in. */
void sl_adapter_each(struct sl_engine *eng,
                     void (*fn)(void *arg, const struct sl_adapter_info *info), void *arg);

/* ---------------------------------------------------------------- requests */

struct sl_logit_bias {
    int32_t id;
    float bias;
};

struct sl_bad_word { /* tokens that may not follow one another: the last is not chosen then */
    const int32_t *ids;
    int32_t n_ids;
};

struct sl_repetition {          /* ends a text that does nothing but repeat itself */
    int32_t min_size, max_size; /* tokens of what is repeated; max_size 0: off */
    int32_t min_count;          /* times in a row, at least 2 */
};

struct sl_sampling {   /* sl_sampling_default() fills in the neutral values */
    float temperature; /* 0 = greedy */
    float top_p, min_p;
    int32_t top_k;                             /* 0 or -1 = off */
    float repetition_penalty;                  /* > 0, 1 = off */
    float presence_penalty, frequency_penalty; /* -2..2 */
    uint64_t seed;
    bool has_seed; /* false: the engine draws one */
    bool ignore_eos;
    bool include_stop_str_in_output;
    bool keep_special_tokens; /* false: special tokens do not appear in text */
    int32_t n;                /* sequences from one prompt */
    int32_t max_tokens;       /* <= 0: up to the context's end */
    int32_t min_tokens;
    int32_t logprobs;        /* -1 = none, k = chosen token's plus the k best */
    int32_t prompt_logprobs; /* likewise for the prompt */
    const char *const *stop;
    int32_t n_stop;
    const int32_t *stop_token_ids;
    int32_t n_stop_token_ids;
    const struct sl_logit_bias *logit_bias;
    int32_t n_logit_bias;
    const int32_t *allowed_token_ids; /* no others are chosen; none given: all may be */
    int32_t n_allowed_token_ids;
    const struct sl_bad_word *bad_words;
    int32_t n_bad_words;
    const int32_t *logprob_token_ids; /* with logprobs: of these, in place of the best */
    int32_t n_logprob_token_ids;
    struct sl_repetition repetition;
    const int32_t *marker_ids; /* special tokens that appear in text all the same, ascending */
    int32_t n_marker_ids;
};

struct sl_thinking {       /* reasoning in front of the answer; a constraint waits until it ends */
    const char *close;     /* the text that ends it; copied */
    int32_t open_id;       /* a first token that begins it, -1: none */
    bool inside;           /* the prompt has begun it */
    int32_t budget;        /* tokens until its end is forced, -1: none */
    const int32_t *forced; /* the tokens of that; copied */
    int32_t n_forced;
};

struct sl_outbox; /* where a reader thread learns which of its requests have news */
struct sl_request;

struct sl_kv_transfer { /* pages of a prompt between two servers */
    const char *host;   /* NULL: they are for another server; else they are read from there */
    int32_t port;
    bool is_room;   /* id[0] is the number of a room that both servers were told */
    uint64_t id[2]; /* else what the other server's offer is found by (sl_request_offer) */
};

struct sl_request_desc {
    const int32_t *prompt; /* token ids, copied */
    int32_t n_prompt;
    struct sl_sampling sampling; /* arrays copied */
    int32_t priority;            /* lower runs first, as in vLLM */
    uint64_t session; /* a hash of the name of a program or conversation, whose requests keep the
                         place in the queue that the first one had; 0: none */
    const char *cache_salt;           /* separates prefix caches; NULL = shared */
    uint32_t cache_tenant;            /* likewise, and no salt of another tenant reaches it */
    struct sl_constraint *constraint; /* NULL: any text; the request takes a reference of its own */
    struct sl_adapter *adapter; /* NULL: the model as it is; the request takes a reference too */
    float adapter_scale;        /* multiplies what it adds: 1 as trained, 0 as without */
    const struct sl_thinking *thinking; /* NULL: the answer begins at once */
    bool pooling;                       /* values of the prompt are wanted; sampling is not used */
    int32_t
        second_from; /* where the second text of a pair begins in the prompt; 0: there is none */
    float cache_hit_threshold; /* share of the prompt that must be cached, else nothing is computed
                                  and the end is SL_FINISH_CACHE; 0: none need be */
    struct sl_outbox *outbox;  /* NULL: read with sl_request_wait */
    void *user;                /* returned by sl_request_user */
    /* What the output may be like, copied: drafts of method suffix come from there too. It changes
     * no output. */
    const int32_t *prediction;
    int32_t n_prediction;
    /* NULL: none. Where pages cannot be had, in time or at all, they are computed. */
    const struct sl_kv_transfer *transfer;
};

struct sl_top_logprob {
    int32_t id;
    float logprob;
};

struct sl_token { /* one sampled (or prompt) token */
    int32_t id;
    int32_t rank;      /* 1 = most likely; 0 = logprobs not asked for */
    float logprob;     /* log softmax of the raw logits, before temperature and penalties */
    uint64_t text_end; /* bytes of the sequence's text up to its end; 0 of prompt tokens */
    int32_t n_top;
    const struct sl_top_logprob *top; /* borrowed until the request is released */
};

struct sl_chunk {     /* news of one sequence of a request; pointers live until the next read */
    int32_t seq_idx;  /* 0 .. n-1 */
    const char *text; /* whole UTF-8 characters only */
    size_t n_text;
    const struct sl_token *tokens;
    size_t n_tokens;
    enum sl_finish finish; /* != SL_RUNNING: terminal, exactly one per sequence */
    int32_t stop_token_id; /* finish by stop id, else -1 */
    const char *stop_str;  /* finish by stop string or sl_stop_repetition, else NULL */
};

extern const char sl_stop_repetition[]; /* "repetition_detected", as vLLM has it */

struct sl_usage {
    int32_t n_prompt, n_cached, n_output; /* tokens; n_output over all sequences */
    int32_t n_preemptions;
    int32_t n_drafted, n_accepted; /* tokens drafted for all sequences; those that came out */
    uint64_t t_submit_ns, t_scheduled_ns, t_first_ns, t_last_ns; /* monotonic clock */
};

void sl_sampling_default(struct sl_sampling *s);
/* Model's generation_config.json over the neutral values (as vLLM does by default). */
void sl_engine_sampling_default(const struct sl_engine *eng, struct sl_sampling *s);
/* Checks the parameters and that the request can ever run; refusal names the field. */
SL_MUST_CHECK int sl_request_submit(struct sl_engine *eng, const struct sl_request_desc *desc,
                                    struct sl_request **out, struct sl_error *err);
/* Would sl_request_submit say SL_EBUSY now? Cheap, to refuse early. */
bool sl_engine_is_full(const struct sl_engine *eng);
int32_t sl_engine_n_open(
    const struct sl_engine *eng); /* requests that are submitted and not over */
void sl_request_cancel(struct sl_request *req);
/* 1: *out filled (call again), 0: nothing new now. Never blocks. */
SL_MUST_CHECK int sl_request_read(struct sl_request *req, struct sl_chunk *out);
/* Blocks until there is news or timeout_ms passed (-1 = for ever). Requests without an outbox. */
void sl_request_wait(struct sl_request *req, int timeout_ms);
bool sl_request_done(const struct sl_request *req); /* every sequence's terminal chunk was read */
/* Detail of SL_FINISH_ERROR. */
const struct sl_error *sl_request_error(const struct sl_request *req);
/* Exact once the first token or the end was read; in between it may lag by less than a step. */
void sl_request_usage(const struct sl_request *req, struct sl_usage *out);
/* n_prompt entries once prefill is over and prompt_logprobs was asked for, else NULL; entry 0 has
 * rank 0. */
const struct sl_token *sl_request_prompt_logprobs(const struct sl_request *req);
/* The values of a prompt that was submitted for pooling, once it has stopped; else NULL. */
const float *sl_request_pooled(const struct sl_request *req, int32_t *n);
void *sl_request_user(const struct sl_request *req);
/* Of a request whose pages are for another server: what its offer is found by. Tokens of the prompt
 * that it is of; 0: nothing is on offer. */
int32_t sl_request_offer(const struct sl_request *req, uint64_t *id); /* [2] */
/* A sequence whose last chunk was read, and all others of its request, asks for a tool, whose name
 * has this hash: what it computed is kept for the request that will bring the result
 * (engine/retain.h). Once for a request; nothing happens while a sequence of it still runs. */
void sl_request_calls(struct sl_request *req, int32_t seq_idx, uint64_t tool);
void sl_request_release(struct sl_request *req); /* cancels it if still running */

/* One prompt to its end in one call, on the caller's thread: what small programs need of the above.
 */
struct sl_generate_desc { /* zero-initialise; NULL = default */
    const char *prompt;   /* text; a chat's comes from sl_engine_render_chat */
    size_t n_prompt;
    unsigned encode_flags;              /* enum sl_encode_flags */
    const struct sl_sampling *sampling; /* NULL: the model's own; n must be 1 */
    struct sl_constraint *constraint;
    struct sl_adapter *adapter;
    float adapter_scale;
    /* Called with text as it comes and, while none does, some times a second with n_text 0. What is
     * not 0 cancels: it is not called again, the call returns 0 and the end is SL_FINISH_ABORT. */
    int (*on_text)(void *arg, const char *text, size_t n_text);
    void *arg;
};

/* finish and usage may be NULL. Several threads may generate at once; their requests run together.
 */
SL_MUST_CHECK int sl_generate(struct sl_engine *eng, const struct sl_generate_desc *desc,
                              enum sl_finish *finish, struct sl_usage *usage, struct sl_error *err);

/* An outbox carries the names of requests with news, each at most once, to one reader thread. */
SL_MUST_CHECK int sl_outbox_create(struct sl_outbox **out, struct sl_error *err);
void sl_outbox_destroy(struct sl_outbox *box);            /* after its requests were released */
int sl_outbox_fd(const struct sl_outbox *box);            /* eventfd: readable when there is news */
struct sl_request *sl_outbox_next(struct sl_outbox *box); /* NULL: drained, fd is armed again */

/* Pages between servers. */
struct sl_kv_transfer_info {
    bool serves, asks;  /* pages are read here; they are read elsewhere */
    char engine_id[33]; /* of this process */
    char root[33];      /* of names: other servers need the same */
    char host[64];      /* where pages are read here */
    int32_t port;
    int32_t bootstrap_port; /* where others are asked that do not say so */
};

const struct sl_kv_transfer_info *sl_engine_transfer(const struct sl_engine *eng);
/* Is the address, in digits, one of kv_transfer_peers? */
bool sl_engine_knows_peer(const struct sl_engine *eng, const char *addr);
/* The room's request was refused: who waits for its pages is told. Any thread. */
void sl_engine_refuse_room(struct sl_engine *eng, uint64_t room);

/* Chat: messages etc. as one JSON object -> prompt text by the model's template. *out malloc'ed. */
SL_MUST_CHECK int sl_engine_render_chat(const struct sl_engine *eng, const char *context_json,
                                        size_t n_context, char **out, size_t *n_out,
                                        struct sl_error *err);
bool sl_engine_has_chat_template(const struct sl_engine *eng);
/* Its text, the engine's; NULL: none. */
const char *sl_engine_chat_template(const struct sl_engine *eng, size_t *n);

/* ---------------------------------------------------------------- inspection */

/* Writes a description of a model (architecture, tensors, memory plan, routes) as text or JSON
 * without loading weights. *out is malloc'ed. */
SL_MUST_CHECK int sl_inspect(const struct sl_engine_config *cfg, bool as_json, bool with_tensors,
                             char **out, size_t *n_out, struct sl_error *err);

#ifdef __cplusplus
}
#endif

#endif
