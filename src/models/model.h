/* SPDX-License-Identifier: MIT
 * model.h - a loaded model and one forward step over a ragged batch.
 *
 * sl_model_open reads hyper-parameters only, so that `sluice inspect` can print the plan before any
 * weight is touched; sl_model_load then binds and repacks the weights. A model is immutable after
 * loading and may be shared by several runs; a run owns the activations of one engine.
 */
#ifndef SL_MODELS_MODEL_H
#define SL_MODELS_MODEL_H

#include "base/buf.h"
#include "io/checkpoint.h"
#include "kv/layout.h"
#include "models/pooling.h"
#include "ops/device.h"

struct sl_model;
struct sl_run;

struct sl_model_facts { /* what the layers above need to know */
    const char *family; /* "llama", "qwen3" */
    int32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, intermediate;
    int32_t n_vocab; /* width of the logits */
    int32_t context; /* longest sequence the checkpoint declares */
    int32_t served;  /* the longest there will be (sl_model_set_context) */
    uint64_t n_params, weight_bytes;
    const char *weight_dtype; /* of most parameters */
    int32_t bos;              /* -1: none given */
    int32_t eos[8]; /* ids that end a sequence: config.json and generation_config.json, or GGUF */
    int32_t n_eos;
    int32_t rank, n_ranks;   /* of so many among which it is divided */
    bool only_experts;       /* these divide experts, and each has the whole rest */
    int32_t kv_ranks;        /* of these, following one another, divide positions; 1: none do */
    int32_t stage, n_stages; /* likewise, by its layers */
    enum sl_model_task task;
    int32_t n_out;  /* values of a row: logits, an embedding (of a text or a token), scores */
    int32_t n_row;  /* values that a step leaves for a row: what sl_model_pooled makes n_out of */
    bool both_ways; /* a token sees those behind it */
    bool whole;     /* a text goes into one step, and leaves nothing that a later one could use */
    enum sl_pool_kind pool;
    bool normalize; /* embeddings have length 1 */
    bool pairs;     /* scores are of two texts in one input, with a type each */
    /* Of a drafter that reads hidden rows of its target (sl_model_open_draft): values of such a
     * row, as sl_run_taps has it; of one of its own, as sl_run_hidden has it. 0: it is no such
     * drafter. Its n_row logits are of tokens in a numbering of its own: sl_model_draft_token. */
    int32_t draft_width, draft_hidden;
    /* Of one that makes a block of drafts in one step: how many tokens it has at most, the last
     * token of the text (the anchor), then masks; 0: a step makes one draft. */
    int32_t draft_block, draft_mask;
    bool draft_from_anchor; /* the anchor's row says the first draft, else the first mask's does */
    /* The target's rows go into a step of their own, without logits, that writes their keys and
     * values; the block's step, which is sl_run_enqueue, reads none. Else the block is the rest of
     * the same step: the anchor goes with the row before it, masks have sources
     * below 0. */
    bool draft_apart;
    bool draft_chain;  /* a draft depends on the one before it: sl_run_draft_chain, */
    bool draft_odds;   /* which also says how likely it is right */
    int32_t max_input; /* tokens, where the makers say less than the context; else 0 */
    /* Of a drafter: its layers read the target's keys and values, and it has none of its own: its
     * run has the target's pools and layout, and its batches have all tables of the target. A span
     * is one token, of the text's last one or of a draft, at pos of the token before the last: it
     * attends up to there, and positions has the one behind, which it is rotated by. */
    bool draft_borrows;
};

/* Recognises the family and checks every hyper-parameter against its range and every tensor against
 * the family's table (presence, shape, format). The checkpoint stays open as long as the model. */
SL_MUST_CHECK int sl_model_open(const struct sl_ckpt *ckpt, struct sl_model **out,
                                struct sl_error *err);
/* Opens a drafter that reads hidden rows of target. method "mtp": the module that target's own
 * checkpoint has, ckpt; "eagle3", "dflash": a checkpoint of its own. What it does not have
 * (embedding, head) is target's, by pointer: target is loaded before it on the same backend, and
 * unloaded after it. Entry p of its KV is made of the hidden row of token p and of token p + 1. */
SL_MUST_CHECK int sl_model_open_draft(const struct sl_ckpt *ckpt, const struct sl_model *target,
                                      const char *method, struct sl_model **out,
                                      struct sl_error *err);
/* When the target was divided among ranks or not, before anything is loaded: a drafter is whole, on
 * rank 0, and there it needs all rows of what it shares with its target. */
SL_MUST_CHECK int sl_model_draft_divided(struct sl_model *draft, struct sl_error *err);
/* Such a method, by what config.json says of itself; NULL: it is no such drafter. */
const char *sl_ckpt_draft_method(const struct sl_ckpt *ckpt);
/* Has the checkpoint of a model a module of "mtp"? */
bool sl_model_has_mtp(const struct sl_model *m);
/* The hidden rows that a drafter reads: what sl_run_config.taps of its target must be. Returns how
 * many; 0: it reads none. */
int32_t sl_model_draft_taps(const struct sl_model *draft, int32_t taps[SL_MAX_TAPS]);
/* The target's token that logit idx of a drafter means. */
int32_t sl_model_draft_token(const struct sl_model *draft, int32_t idx);
/* Before loading: what the model is to do. runner: "auto", "generate", "pooling"; convert: "auto",
 * "none", "embed", "classify", as vLLM has them; NULL is auto. yes_no: ids of two tokens whose
 * logits at the end make a score, or NULL. */
SL_MUST_CHECK int sl_model_set_task(struct sl_model *m, const char *runner, const char *convert,
                                    const int32_t *yes_no, struct sl_error *err);
/* Before sl_model_set_rank: each rank has some of a layer's experts, whole, in place of some rows
 * of all. */
void sl_model_divide_experts(struct sl_model *m);
/* The same, and experts are where their load says (struct sl_expert_places), which may change
 * between two steps: at first expert i % n has place i, rank by rank, of n + n_redundant places.
 * Each rank has as many of them. */
void sl_model_balance_experts(struct sl_model *m, int32_t n_redundant);
/* The same, and each rank has the whole of everything else: all rows and all key heads. */
void sl_model_divide_only_experts(struct sl_model *m);
/* Before sl_model_set_rank: n_ranks that follow one another have the same key heads, and each of
 * them keeps some of the positions (struct sl_kv_view). */
void sl_model_divide_positions(struct sl_model *m, int32_t n_ranks);
/* Before loading: this model is one of n_ranks that are opened from one checkpoint and run as one,
 * each on a backend of its own, each with its rows of the matrices and its heads. Fails where the
 * model cannot be divided so. */
SL_MUST_CHECK int sl_model_set_rank(struct sl_model *m, int32_t rank, int32_t n_ranks,
                                    struct sl_error *err);
/* Before loading: this model is one of n_stages that are opened from one checkpoint and run as one,
 * each with the layers that follow those of the stage before it; behind sl_model_set_rank it is a
 * rank of that stage. layers [n_stages]: how many each has; NULL: so that none reads more weights
 * in a step than it must. Where the model cannot be divided so it fails. */
SL_MUST_CHECK int sl_model_set_stage(struct sl_model *m, int32_t stage, int32_t n_stages,
                                     const int32_t *layers, struct sl_error *err);
/* The layers of a stage, from *first to before *end. */
void sl_model_stage_layers(const struct sl_model *m, int32_t stage, int32_t *first, int32_t *end);
/* Parts of the model, ranks, stages or the ranks of each stage. The first one gives the logits: it
 * is rank 0 of the last stage; its other ranks follow, then those of the first stage, and so on. */
static inline int32_t sl_model_n_parts(const struct sl_model_facts *f)
{
    return f->n_ranks * f->n_stages;
}
static inline int32_t sl_model_part(int32_t stage, int32_t rank, int32_t n_ranks, int32_t n_stages)
{
    return (stage + 1) % n_stages * n_ranks + rank;
}
static inline int32_t sl_model_stage_of(int32_t part, int32_t n_ranks, int32_t n_stages)
{
    return (part / n_ranks + n_stages - 1) % n_stages;
}
static inline int32_t sl_model_rank_of(int32_t part, int32_t n_ranks)
{
    return part % n_ranks;
}
/* Before loading: the longest sequence there will be, which LongRoPE chooses its factors by, for
 * all sequences alike (as vLLM does). Unless it is called that is the facts' context. */
void sl_model_set_context(struct sl_model *m, int32_t context);
/* Before loading on a device: the experts of the first n_layers layers stay in host memory, as host
 * (a backend that computes in the call) wants them, and host computes them in the middle of a step.
 * host outlives the model's loading. May be called again; 0 layers: all go to the device. */
SL_MUST_CHECK int sl_model_set_host(struct sl_model *m, struct sl_backend *host, int32_t n_layers,
                                    struct sl_error *err);
SL_MUST_CHECK int sl_model_load(struct sl_model *m, struct sl_backend *be, sl_progress_fn progress,
                                void *progress_arg, struct sl_error *err);
/* What loading would take, of all ranks together, of one stage: bytes of memory allocated for
 * repacked and converted weights, and bytes of the file that stay mapped. */
void sl_model_weight_memory(const struct sl_model *m, struct sl_backend *be, uint64_t *allocated,
                            uint64_t *mapped);
void sl_model_stage_memory(const struct sl_model *m, int32_t stage, struct sl_backend *be,
                           uint64_t *allocated, uint64_t *mapped);
/* Likewise of the experts that stay with the host, which are not among those above; and what steps
 * of up to max_tokens take of host memory for them. */
void sl_model_host_memory(const struct sl_model *m, uint64_t *allocated, uint64_t *mapped);
uint64_t sl_model_host_room(const struct sl_model *m, int32_t max_tokens);
/* Layers with experts; of those, on the host. */
int32_t sl_model_n_expert_layers(const struct sl_model *m);
int32_t sl_model_n_host_layers(const struct sl_model *m);
/* Values and experts of a row that goes to the host; 0: none does. */
void sl_model_host_rows(const struct sl_model *m, int32_t *width, int32_t *top_k);
void sl_model_close(struct sl_model *m);
const struct sl_model_facts *sl_model_facts(const struct sl_model *m);
/* Kinds of layers by the heads that its rank has, in the order of the first layer of each. Fills at
 * most n_max and returns how many there are. */
int32_t sl_model_heads(const struct sl_model *m, struct sl_heads *kinds, int32_t n_max);
/* Where the keys and states of the model's layers lie on be, where it need not be loaded yet (NULL:
 * states are as a CPU has them); kv_dtype "auto" is auto_dtype, which a backend's vt->kv_dtype
 * says. */
SL_MUST_CHECK int sl_model_kv_layout(const struct sl_model *m, const struct sl_backend *be,
                                     const char *kv_dtype, enum sl_dtype auto_dtype, int block_size,
                                     struct sl_kv_layout *out, struct sl_error *err);
/* The same with layers that have pages of auto_dtype all the same: --kv-cache-dtype-skip-layers, or
 * NULL. */
SL_MUST_CHECK int sl_model_kv_layout_but(const struct sl_model *m, const struct sl_backend *be,
                                         const char *kv_dtype, const char *skip_layers,
                                         enum sl_dtype auto_dtype, int block_size,
                                         struct sl_kv_layout *out, struct sl_error *err);

/* Before there is a layout and before loading: rows attend to so many pages, chosen by bounds of
 * their keys (ops/ops.h); 0: to all. SL_EUNSUPPORTED: no layer of the model can. */
SL_MUST_CHECK int sl_model_set_top_pages(struct sl_model *m, int32_t n, struct sl_error *err);
/* SL_EUNSUPPORTED: a device cannot do it, and why. */
SL_MUST_CHECK int sl_model_top_pages_device(const struct sl_model *m, struct sl_error *err);

enum { SL_TAP_NORMED = -1, SL_TAP_STREAMS = -2 };

struct sl_run_config {
    int32_t max_tokens; /* T of the largest step */
    int32_t max_logits; /* n_logits of the largest step */
    struct sl_kv_layout kv;
    uint8_t *kv_pool[SL_MAX_KV_GROUPS]; /* backend memory: pages of each group of layers; of a rank
                                           the part of each page that its heads have */
    struct sl_comm *comm;               /* of all ranks, or NULL; not before a run is created */
    void *rank_room[2];                 /* where a rank computes its parts, sl_run_room_bytes each;
                                           NULL: in memory of its own */
    int32_t max_lora_rank;              /* of adapters; 0: none can come */
    float skip_softmax;                 /* factor of skip-softmax (ops/ops.h); 0: none */
    struct sl_skip_counts *skip_counts; /* [2] in the backend's memory, or NULL */
    /* Hidden rows that are kept of every token of a step, for a drafter: the residual stream as it
     * enters layer taps[i] (the number of layers: as it leaves the last one), or SL_TAP_NORMED:
     * behind the final norm; of a model of hyper-connections SL_TAP_STREAMS alone: all streams as
     * they leave the last layer, side by side. */
    int32_t n_taps, taps[SL_MAX_TAPS];
    int32_t max_chains; /* sequences in a call of sl_run_draft_chain; 0: there is none */
};

/* Of each of rank_room; be: where the model is loaded or will be. */
size_t sl_run_room_bytes(const struct sl_model *m, const struct sl_backend *be,
                         const struct sl_run_config *cfg);
/* Activations of one rank. */
uint64_t sl_run_bytes(const struct sl_model *m, struct sl_backend *be,
                      const struct sl_run_config *cfg);
/* Of all ranks on devices that can write to each other's memory: they do from then on. */
void sl_run_meet(struct sl_run *const *runs, int32_t n);
SL_MUST_CHECK int sl_run_create(const struct sl_model *m, const struct sl_run_config *cfg,
                                struct sl_run **out, struct sl_error *err);
void sl_run_destroy(struct sl_run *r);
/* Writes KV of the batch's tokens and computes the wanted rows: [n_logits, n_out], valid until the
 * next step. No allocation. On a device the work is only enqueued, batch's arrays are the device's,
 * and so are the rows: [n_logits, n_row]. */
const float *sl_run_enqueue(struct sl_run *r, const struct sl_batch *batch);
/* [n_tokens, n_taps * hidden] of the last step, a token's taps side by side (streams: n_hyper *
 * hidden); until the next one. */
const float *sl_run_taps(const struct sl_run *r);
/* A step of a drafter that reads hidden rows, of which sources [n_tokens] says those that go with
 * its tokens (NULL: row i): rows of draft_width as its target's sl_run_taps gives them, or if they
 * are its own, of draft_hidden as sl_run_hidden does. */
const float *sl_run_enqueue_draft(struct sl_run *r, const struct sl_batch *batch,
                                  const float *hidden, const int32_t *sources, bool own);
/* [n_logits, draft_hidden] of a drafter's last step: what its next one reads, if those rows go on.
 * Until then, but may be passed to it. */
const float *sl_run_hidden(const struct sl_run *r);
/* One draft more of each of n sequences, of a drafter whose drafts depend on those before them: of
 * row rows[i] of the last step's logits, behind the target's token prev[i]. Drafts of a sequence,
 * which seqs[i] numbers (NULL: i), come in their order. On a device these are arrays of its. */
struct sl_draft_chain {
    int32_t n;
    const int32_t *seqs, *rows, *prev;
    bool first;  /* they are the first ones of their blocks */
    float *odds; /* [n] to fill: the probability that it is right if those before it are; or NULL,
                    as on a device */
};
/* Its logits [n, n_row], until the next step or call. */
const float *sl_run_draft_chain(struct sl_run *r, const struct sl_draft_chain *c);
/* On a device: where the steps from now on leave rows of embeddings and scores. */
void sl_run_set_pooled(struct sl_run *r, float *rows);
/* An embedding, or scores, of what a step left of a text, [n_row], in host memory. out may be row,
 * or one that begins before it. */
void sl_model_pooled(const struct sl_model *m, const float *row, float *out);
/* Of a stage: where its steps find the residual stream of their tokens [n_tokens, hidden], if
 * another stage is before it, and where they leave it, if one is behind it. */
float *sl_run_stream(struct sl_run *r);
/* Where every step's logits lie; of several ranks the first one's has them. */
const float *sl_run_logits(const struct sl_run *r);
/* Ranks on devices: of the next step each rank keeps the logits of the tokens that it has, and
 * nobody has all of them; sl_run_best says where they are, for n rows. */
void sl_run_keep_parts(struct sl_run *r, bool keep);
struct sl_best_ids;
void sl_run_best(struct sl_run *r, int32_t n, struct sl_best_ids *out);
struct sl_rank *sl_run_rank(struct sl_run *r); /* which it is, for operations between ranks */
/* Of a rank, after a step: another one was lost meanwhile, and the rows mean nothing. */
bool sl_run_lost(const struct sl_run *r);
/* Any thread: pages that rows attended to so far, of this rank's heads. */
void sl_run_top_pages(const struct sl_run *r, struct sl_top_page_counts *out);
/* Of a model whose experts are placed by their load. A layer's experts; places of their replicas,
 * of all ranks; 0: it has none here. */
int32_t sl_model_places(const struct sl_model *m, int32_t layer, int32_t *n_experts);
/* [places] the expert that each has, rank by rank. Between two steps, or by who switches. */
const int32_t *sl_model_place_list(const struct sl_model *m, int32_t layer);
/* Beside steps, by one thread: loads what this rank lacks of the experts in a list of places, on
 * be, a CPU like the model's; *n_loaded: how many experts that were. What an error leaves is given
 * up by drop. */
SL_MUST_CHECK int sl_model_places_load(struct sl_model *m, struct sl_backend *be, int32_t layer,
                                       const int32_t *list, int32_t *n_loaded,
                                       struct sl_error *err);
/* Whether each of the layer's experts has a place in the list on a rank that is not absent (a bit
 * each). */
bool sl_model_places_cover(const struct sl_model *m, int32_t layer, const int32_t *list,
                           uint32_t absent);
/* Between two steps, on all ranks that are there: from the next one on the places of these ranks
 * stand empty, and those of all others are used. The lists cover that. */
void sl_model_places_leave(struct sl_model *m, uint32_t absent);
/* Between two steps: from the next one on experts are where the list says; they are loaded. It
 * allocates nothing. All ranks switch at the same step. */
void sl_model_places_switch(struct sl_model *m, int32_t layer, const int32_t *list);
/* By the thread that loads: gives up experts that are loaded and have no place here. */
void sl_model_places_drop(struct sl_model *m, int32_t layer);
/* Of a run of such a model: [n_layers] what went to each expert since it was created. Between two
 * steps; NULL: of another. */
const struct sl_expert_counts *sl_run_expert_counts(const struct sl_run *r);
/* The least of what the ranks say, each by a call of its own, between two steps; -1: one is lost.
 */
int32_t sl_run_least(struct sl_run *r, int32_t value);
/* Any thread: grows with every part of a layer, so that a long step shows that it moves. */
uint64_t sl_run_progress(const struct sl_run *r);
/* Runs items on the threads of the run's backend, between steps. */
void sl_run_items(struct sl_run *r, void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                  uint32_t n_items);
/* Text (or JSON) about layers, formats and tensors, with the kernels that be would run them by, for
 * `sluice inspect`. Nothing needs to be loaded. */
void sl_model_describe(const struct sl_model *m, struct sl_backend *be, bool as_json,
                       bool with_tensors, struct sl_buf *out);

#endif
