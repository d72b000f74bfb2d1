/* SPDX-License-Identifier: MIT */
#include "cmd/flags.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "cmd/help.h"
#include "sluice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_FLAGS 128 /* of one command, for the typo hint */

static bool is_switch(const struct sl_flag *f)
{
    return f->kind == SL_FLAG_SWITCH || f->kind == SL_FLAG_SWITCH_OFF;
}

/* Flags are compared with '_' read as '-', as vLLM does. */
static bool name_equals(const char *name, const char *given, size_t n_given)
{
    if (name == NULL || strlen(name) != n_given)
        return false;
    for (size_t i = 0; i < n_given; i++) {
        if ((given[i] == '_' ? '-' : given[i]) != name[i])
            return false;
    }
    return true;
}

struct match {
    const struct sl_flag *flag;
    struct sl_flag_group *group;
    bool negated;
};

static bool find_long(struct sl_flag_group *groups, int n_groups, const char *given, size_t n_given,
                      struct match *out)
{
    bool no = n_given > 3 && strncmp(given, "no", 2) == 0 && (given[2] == '-' || given[2] == '_');
    for (int g = 0; g < n_groups; g++) {
        for (int i = 0; i < groups[g].n_flags; i++) {
            const struct sl_flag *f = &groups[g].flags[i];
            *out = (struct match){f, &groups[g], false};
            if (name_equals(f->name, given, n_given) || name_equals(f->alias, given, n_given))
                return true;
            out->negated = true;
            if (no && is_switch(f) && name_equals(f->name, given + 3, n_given - 3))
                return true;
        }
    }
    return false;
}

static bool find_short(struct sl_flag_group *groups, int n_groups, char c, struct match *out)
{
    for (int g = 0; g < n_groups; g++) {
        for (int i = 0; i < groups[g].n_flags; i++) {
            *out = (struct match){&groups[g].flags[i], &groups[g], false};
            if (c != 0 && out->flag->short_name == c)
                return true;
        }
    }
    return false;
}

static int unknown_flag(struct sl_flag_group *groups, int n_groups, const char *arg,
                        struct sl_error *err)
{
    const char *names[MAX_FLAGS];
    size_t n = 0;
    char plain[64];
    size_t len = strcspn(arg, "=");
    for (int g = 0; g < n_groups; g++) {
        for (int i = 0; i < groups[g].n_flags && n < MAX_FLAGS; i++) {
            if (groups[g].flags[i].name != NULL)
                names[n++] = groups[g].flags[i].name;
        }
    }
    const char *near = NULL;
    if (len > 2 && len - 2 < sizeof plain) {
        memcpy(plain, arg + 2, len - 2);
        plain[len - 2] = '\0';
        near = sl_nearest(plain, names, n);
    }
    if (near != NULL)
        return sl_fail(err, SL_EINVAL, "unknown flag %.*s; did you mean --%s?", (int)len, arg,
                       near);
    return sl_fail(err, SL_EINVAL, "unknown flag %.*s (see --help)", (int)len, arg);
}

static int out_of_range(const struct sl_flag *f, const char *value, struct sl_error *err)
{
    bool whole = f->kind != SL_FLAG_FLOAT; /* %g would write 67108864 as 6.71089e+07 */
    return whole ? sl_fail(err, SL_EINVAL, "--%s: %s is not between %.0f and %.0f", f->name, value,
                           f->min, f->max)
                 : sl_fail(err, SL_EINVAL, "--%s: %s is not between %g and %g", f->name, value,
                           f->min, f->max);
}

static int store_integer(const struct sl_flag *f, void *field, const char *value,
                         struct sl_error *err)
{
    bool negative = value[0] == '-';
    uint64_t x;
    if (!sl_parse_human_u64(value + negative, strlen(value) - negative, &x))
        return sl_fail(err, SL_EINVAL, "--%s: '%s' is not a whole number", f->name, value);
    double as_double = negative ? -(double)x : (double)x;
    if (as_double < f->min || as_double > f->max)
        return out_of_range(f, value, err);
    if (f->kind == SL_FLAG_U64) {
        *(uint64_t *)field = x;
        return 0;
    }
    *(int32_t *)field = (int32_t)(negative ? -(int64_t)x : (int64_t)x);
    return 0;
}

static int flags_store(const struct match *m, const char *value, struct sl_error *err)
{
    const struct sl_flag *f = m->flag;
    void *field = (char *)m->group->base + f->offset;
    m->group->given |= UINT64_C(1) << (f - m->group->flags);
    switch (f->kind) {
    case SL_FLAG_SWITCH:
        *(bool *)field = !m->negated;
        return 0;
    case SL_FLAG_SWITCH_OFF:
        *(bool *)field = m->negated;
        return 0;
    case SL_FLAG_STR:
        *(const char **)field = value;
        return 0;
    case SL_FLAG_STR_LIST:
    case SL_FLAG_PAIR_LIST: {
        struct sl_flag_list *list = field;
        if (list->n == SL_FLAG_LIST_MAX)
            return sl_fail(err, SL_ELIMIT, "--%s: given more than %d times", f->name,
                           SL_FLAG_LIST_MAX);
        list->items[list->n++] = value;
        return 0;
    }
    case SL_FLAG_INT:
    case SL_FLAG_U64:
        return store_integer(f, field, value, err);
    case SL_FLAG_FLOAT: {
        double x;
        if (!sl_parse_double(value, strlen(value), &x))
            return sl_fail(err, SL_EINVAL, "--%s: '%s' is not a number", f->name, value);
        if (x < f->min || x > f->max)
            return out_of_range(f, value, err);
        *(float *)field = (float)x;
        return 0;
    }
    case SL_FLAG_HEADING:
        break;
    }
    SL_ASSERT(false && "a heading has no value");
}

int sl_flags_parse(const struct sl_command *cmd, struct sl_flag_group *groups, int n_groups,
                   int argc, char **argv, const char **positional, int max_positional,
                   int *n_positional, struct sl_error *err)
{
    bool only_positional = false;
    *n_positional = 0;
    for (int g = 0; g < n_groups; g++)
        SL_ASSERT(groups[g].n_flags <= 64);
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!only_positional && strcmp(arg, "--") == 0) {
            only_positional = true;
            continue;
        }
        if (only_positional || arg[0] != '-' || arg[1] == '\0') {
            if (*n_positional == max_positional)
                return sl_fail(err, SL_EINVAL, "unexpected argument '%s' (see --help)", arg);
            positional[(*n_positional)++] = arg;
            continue;
        }
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0 ||
            sl_starts_with(arg, "--help=")) {
            int rc = sl_help_print(sl_starts_with(arg, "--help=") ? arg + 7 : NULL, cmd, groups,
                                   n_groups, err);
            return rc == 0 ? SL_FLAGS_HELP : rc;
        }
        struct match m;
        const char *value = NULL;
        if (arg[1] == '-') {
            size_t n = strcspn(arg + 2, "=");
            if (!find_long(groups, n_groups, arg + 2, n, &m))
                return unknown_flag(groups, n_groups, arg, err);
            value = arg[2 + n] == '=' ? arg + 3 + n : NULL;
        } else if (arg[2] != '\0' || !find_short(groups, n_groups, arg[1], &m)) {
            return sl_fail(err, SL_EINVAL, "unknown flag %s (see --help)", arg);
        }
        if (is_switch(m.flag)) {
            if (value != NULL)
                return sl_fail(err, SL_EINVAL, "--%s takes no value", m.flag->name);
        } else if (value == NULL) {
            if (i + 1 == argc)
                return sl_fail(err, SL_EINVAL, "--%s needs a value: %s", m.flag->name,
                               m.flag->help);
            value = argv[++i];
        }
        int rc = flags_store(&m, value, err);
        while (rc == 0 && m.flag->kind == SL_FLAG_PAIR_LIST && i + 1 < argc &&
               argv[i + 1][0] != '-' && strchr(argv[i + 1], '=') != NULL)
            rc = flags_store(&m, argv[++i], err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

bool sl_flags_given(const struct sl_flag_group *group, const char *name)
{
    for (int i = 0; i < group->n_flags; i++) {
        if (group->flags[i].name != NULL && strcmp(group->flags[i].name, name) == 0)
            return (group->given >> i & 1) != 0;
    }
    SL_ASSERT(false && "no such flag in the table");
}

static size_t field_bytes(enum sl_flag_kind kind)
{
    switch (kind) {
    case SL_FLAG_SWITCH:
    case SL_FLAG_SWITCH_OFF:
        return sizeof(bool);
    case SL_FLAG_STR:
        return sizeof(const char *);
    case SL_FLAG_STR_LIST:
    case SL_FLAG_PAIR_LIST:
        return sizeof(struct sl_flag_list);
    case SL_FLAG_INT:
        return sizeof(int32_t);
    case SL_FLAG_U64:
        return sizeof(uint64_t);
    case SL_FLAG_FLOAT:
        return sizeof(float);
    case SL_FLAG_HEADING:
        break;
    }
    return 0;
}

void sl_flags_overlay(const struct sl_flag_group *group, void *onto)
{
    for (int i = 0; i < group->n_flags; i++) {
        const struct sl_flag *f = &group->flags[i];
        if ((group->given >> i & 1) != 0)
            memcpy((char *)onto + f->offset, (const char *)group->base + f->offset,
                   field_bytes(f->kind));
    }
}

void sl_command_complain(const struct sl_command *cmd, const struct sl_error *err)
{
    struct sl_error plain = *err;
    sl_scrub(plain.msg, strlen(plain.msg));
    fprintf(stderr, "sluice %s: %s\n", cmd->name, plain.msg);
}

int sl_command_fail(const struct sl_command *cmd, const struct sl_error *err)
{
    bool users = err->code == SL_EINVAL || err->code == SL_EFORMAT || err->code == SL_ELIMIT ||
                 err->code == SL_ENOTFOUND || err->code == SL_EUNSUPPORTED ||
                 err->code == SL_ETOOBIG;
    sl_command_complain(cmd, err);
    return users ? SL_EXIT_USAGE : SL_EXIT_FAILED;
}

#define ENGINE(field)   offsetof(struct sl_engine_config, field)
#define SAMPLING(field) offsetof(struct sl_sampling, field)

const struct sl_flag sl_flags_engine[] = {
    {SL_FLAG_HEADING, 0, NULL, NULL, 0, 0, 0, NULL, "Engine"},
    {SL_FLAG_INT, 't', "threads", NULL, ENGINE(n_threads), 1, SL_MAX_THREADS, "N",
     "compute threads (default: all cores)"},
    {SL_FLAG_INT, 0, "tensor-parallel-size", "tp-size", ENGINE(tensor_parallel_size), 1,
     SL_MAX_RANKS, "N", "ranks of the model: a GPU each, or CPU threads (default: 1)"},
    {SL_FLAG_SWITCH, 0, "enable-expert-parallel", NULL, ENGINE(enable_expert_parallel), 0, 0, NULL,
     "each rank has some of the experts, whole"},
    {SL_FLAG_SWITCH, 0, "enable-eplb", NULL, ENGINE(enable_eplb), 0, 0, NULL,
     "experts go to ranks by their load (CPU)"},
    {SL_FLAG_STR, 0, "eplb-config", NULL, ENGINE(eplb_config), 0, 0, "JSON",
     "window_size, step_interval, num_redundant_experts, .."},
    {SL_FLAG_SWITCH, 0, "divide-only-experts", NULL, ENGINE(divide_only_experts), 0, 0, NULL,
     "each rank has the whole rest of the model (CPU)"},
    {SL_FLAG_INT, 0, "decode-context-parallel-size", "dcp-size",
     ENGINE(decode_context_parallel_size), 1, SL_MAX_RANKS, "N",
     "ranks that divide a sequence's KV cache (default: 1)"},
    {SL_FLAG_INT, 0, "pipeline-parallel-size", "pp-size", ENGINE(pipeline_parallel_size), 1,
     SL_MAX_STAGES, "N", "stages of the model's layers: a GPU each, or CPU (default: 1)"},
    {SL_FLAG_STR, 0, "pipeline-parallel-layers", NULL, ENGINE(pipeline_parallel_layers), 0, 0,
     "N,N,..", "layers of each stage (default: by the weights' bytes)"},
    {SL_FLAG_INT, 0, "nnodes", NULL, ENGINE(nnodes), 1, SL_MAX_RANKS, "N",
     "processes, on any hosts: a rank or a stage each (default: 1)"},
    {SL_FLAG_INT, 0, "node-rank", NULL, ENGINE(node_rank), 0, SL_MAX_RANKS - 1, "N",
     "which of them this is; 0 has the engine (default: 0)"},
    {SL_FLAG_STR, 0, "master-addr", NULL, ENGINE(master_addr), 0, 0, "ADDR",
     "address or name of node 0 (default: 127.0.0.1)"},
    {SL_FLAG_INT, 0, "master-port", NULL, ENGINE(master_port), 1, 65535, "N",
     "its port for the others (default: 29501)"},
    {SL_FLAG_STR, 0, "rank-secret-file", NULL, ENGINE(rank_secret_file), 0, 0, "F",
     "what nodes have in common; needed beyond loopback"},
    {SL_FLAG_STR, 0, "rank-transport", NULL, ENGINE(rank_transport), 0, 0, "T",
     "auto (shared memory on one host, else TCP) or tcp"},
    {SL_FLAG_INT, 0, "rank-timeout", NULL, ENGINE(rank_timeout_s), 1, 3600, "S",
     "silence after which a node is lost (default: 3)"},
    {SL_FLAG_INT, 0, "rank-start-timeout", NULL, ENGINE(rank_start_s), 1, 86400, "S",
     "how long nodes wait for one another (default: 600)"},
    {SL_FLAG_INT, 0, "max-model-len", "context-length", ENGINE(max_model_len), 1, SL_MAX_CONTEXT,
     "N", "longest sequence in tokens (default: the model's)"},
    {SL_FLAG_INT, 0, "max-num-seqs", "max-running-requests", ENGINE(max_num_seqs), 1, SL_MAX_SEQS,
     "N", "sequences in one step (default: 64, on a GPU 256)"},
    {SL_FLAG_INT, 0, "max-num-batched-tokens", "chunked-prefill-size",
     ENGINE(max_num_batched_tokens), 1, SL_MAX_STEP_TOKENS, "N",
     "tokens in one step (default: 512, GPU 4096, encoders 2048)"},
    {SL_FLAG_INT, 0, "block-size", "page-size", ENGINE(block_size), 1, SL_MAX_BLOCK_SIZE, "N",
     "tokens in a KV page, a multiple of 16 (default: 16)"},
    {SL_FLAG_U64, 0, "kv-cache-memory-bytes", NULL, ENGINE(kv_cache_bytes), 1, 0x1p50, "N",
     "KV pool, e.g. 2G (default: fits the context)"},
    {SL_FLAG_INT, 0, "max-state-slots", "max-mamba-cache-size", ENGINE(max_state_slots), 2,
     SL_MAX_STATE_SLOTS, "N", "recurrent states kept, 2 a sequence (default: by the pool)"},
    {SL_FLAG_STR, 0, "kv-cache-dtype", NULL, ENGINE(kv_cache_dtype), 0, 0, "T",
     "auto, f32, f16, bf16, q8_0, fp8, nvfp4, turboquant_4bit_nc, .."},
    {SL_FLAG_STR, 0, "kv-cache-dtype-skip-layers", NULL, ENGINE(kv_cache_dtype_skip_layers), 0, 0,
     "LIST", "layers of auto: numbers, sliding_window, or none"},
    {SL_FLAG_FLOAT, 0, "kv-offloading-size", NULL, ENGINE(kv_offloading_size), 0, 1048576, "GIB",
     "host memory for copies of KV pages (default: 0)"},
    {SL_FLAG_STR, 0, "kv-offloading-backend", NULL, ENGINE(kv_offloading_backend), 0, 0, "B",
     "native"},
    {SL_FLAG_STR, 0, "kv-transfer-config", NULL, ENGINE(kv_transfer_config), 0, 0, "JSON",
     "the same, as vLLM's OffloadingConnector or NixlConnector"},
    {SL_FLAG_STR, 0, "disaggregation-mode", NULL, ENGINE(disaggregation_mode), 0, 0, "M",
     "prefill: others read pages here; decode; both (default: null)"},
    {SL_FLAG_INT, 0, "disaggregation-bootstrap-port", NULL, ENGINE(disaggregation_bootstrap_port),
     -1, 65535, "N", "port where pages are read, -1 = any free one (default: 8998)"},
    {SL_FLAG_STR, 0, "kv-transfer-host", NULL, ENGINE(kv_transfer_host), 0, 0, "ADDR",
     "address that pages are read at (default: 127.0.0.1)"},
    {SL_FLAG_STR, 0, "kv-transfer-peers", NULL, ENGINE(kv_transfer_peers), 0, 0, "LIST",
     "addresses that may read or name pages (default: this machine)"},
    {SL_FLAG_STR, 0, "kv-cache-dir", NULL, ENGINE(kv_cache_dir), 0, 0, "DIR",
     "copies of KV pages on disk, which outlive the process"},
    {SL_FLAG_FLOAT, 0, "kv-cache-disk-size", NULL, ENGINE(kv_cache_disk_size), 0, 1048576, "GIB",
     "their size (default: 16)"},
    {SL_FLAG_STR, 0, "kv-cache-coding", NULL, ENGINE(kv_cache_coding), 0, 0, "WHEN",
     "code them: auto: if faster (default); always; none"},
    {SL_FLAG_STR, 0, "kv-remote-url", NULL, ENGINE(kv_remote_url), 0, 0, "URL",
     "copies of KV pages: redis://HOST[:PORT][/DB] or s3://BUCKET"},
    {SL_FLAG_STR, 0, "kv-remote-load", NULL, ENGINE(kv_remote_load), 0, 0, "WHEN",
     "auto: if faster than to compute (default); always"},
    {SL_FLAG_INT, 0, "kv-remote-timeout", NULL, ENGINE(kv_remote_timeout_ms), 1, 60000, "MS",
     "longest wait for what it has (default: 100)"},
    {SL_FLAG_INT, 0, "kv-remote-store-after", NULL, ENGINE(kv_remote_store_after), 1, 1000000, "N",
     "write pages there that were seen N times (default: 1)"},
    {SL_FLAG_INT, 0, "kv-remote-ttl", NULL, ENGINE(kv_remote_ttl_s), -1, 31536000, "S",
     "forget them there after S seconds (default: 86400; -1: never)"},
    {SL_FLAG_STR, 0, "activation-dtype", NULL, ENGINE(activation_dtype), 0, 0, "T",
     "with FP8 weights on a GPU: auto (bf16), bf16, fp8"},
    {SL_FLAG_FLOAT, 0, "skip-softmax-threshold-scale-factor", NULL,
     ENGINE(skip_softmax_threshold_scale_factor), 0, 1e9, "S",
     "skip attention below S / position (default: 0, off)"},
    {SL_FLAG_INT, 0, "sparse-topk-pages", NULL, ENGINE(sparse_topk_pages), 8, SL_MAX_TOP_PAGES, "N",
     "attend to N KV pages, chosen by bounds of keys (default: all)"},
    {SL_FLAG_SWITCH_OFF, 0, "enable-prefix-caching", NULL, ENGINE(no_prefix_caching), 0, 0, NULL,
     "do not reuse cached prefixes"},
    {SL_FLAG_FLOAT, 0, "kv-retention", NULL, ENGINE(kv_retention), -1, 0.95, "S",
     "share of KV kept while tools run, -1: none (default: 0.75)"},
    {SL_FLAG_SWITCH, 0, "disable-jump-forward", NULL, ENGINE(no_jump_forward), 0, 0, NULL,
     "compute tokens that a grammar forces one by one"},
    {SL_FLAG_STR, 0, "speculative-config", NULL, ENGINE(speculative_config), 0, 0, "JSON",
     "drafts: ngram, suffix, draft_model, mtp, eagle3, dflash, dspark"},
    {SL_FLAG_STR, 0, "speculative-model", "speculative-draft-model-path", ENGINE(speculative_model),
     0, 0, "MODEL", "a smaller model drafts (5 tokens, if there is no config)"},
    {SL_FLAG_STR, 0, "chat-template", NULL, ENGINE(chat_template), 0, 0, "F",
     "Jinja file instead of the model's template"},
    {SL_FLAG_STR, 0, "device", NULL, ENGINE(device), 0, 0, "D",
     "auto (a Hopper GPU if there is one), cpu, cuda, cuda:N,N,.."},
    {SL_FLAG_FLOAT, 0, "gpu-memory-utilization", NULL, ENGINE(gpu_memory_utilization), 0.01, 1, "S",
     "share of a GPU's memory to use (default: 0.9)"},
    {SL_FLAG_STR, 0, "cpu-offload-experts", "n-cpu-moe", ENGINE(cpu_offload_experts), 0, 0, "N",
     "beside a GPU: experts of N layers on the CPU; all, auto"},
    {SL_FLAG_STR, 0, "offload-folder", NULL, ENGINE(offload_folder), 0, 0, "DIR",
     "on a CPU: weights that memory has no room for lie here"},
    {SL_FLAG_U64, 0, "weights-memory-bytes", NULL, ENGINE(weights_memory_bytes), 1, 0x1p50, "N",
     "of weights in memory beside those (default: half the RAM)"},
    {SL_FLAG_STR, 0, "cpu-isa", NULL, ENGINE(cpu_isa), 0, 0, "I",
     "auto, c, avx2, avx512, avx512-vnni, avx512-bf16, amx"},
    {SL_FLAG_STR, 0, "numa", NULL, ENGINE(numa), 0, 0, "M",
     "auto: bind threads to the NUMA node of their weights; off"},
    {SL_FLAG_STR, 0, "runner", NULL, ENGINE(runner), 0, 0, "R",
     "auto (by the model), generate, or pooling: embeddings, scores"},
    {SL_FLAG_STR, 0, "convert", NULL, ENGINE(convert), 0, 0, "C",
     "output of pooling: auto, none, embed or classify"},
    {SL_FLAG_STR, 0, "classifier-from-token", NULL, ENGINE(classifier_from_token), 0, 0, "A,B",
     "score = probability of token B against A, e.g. no,yes"},
    {SL_FLAG_SWITCH, 0, "exact-weights", NULL, ENGINE(exact_weights), 0, 0, NULL,
     "multiply quantised weights as floats: slower, to compare"},
};
const int sl_n_flags_engine = (int)SL_COUNT(sl_flags_engine);

const struct sl_flag sl_flags_adapters[] = {
    {SL_FLAG_SWITCH, 0, "enable-lora", NULL, ENGINE(enable_lora), 0, 0, NULL,
     "enable LoRA adapters"},
    {SL_FLAG_INT, 0, "max-loras", "max-loras-per-batch", ENGINE(max_loras), 1, SL_MAX_LORAS, "N",
     "different adapters in one step (default: 8)"},
    {SL_FLAG_INT, 0, "max-lora-rank", NULL, ENGINE(max_lora_rank), 1, 256, "N",
     "highest rank of an adapter (default: 16)"},
    {SL_FLAG_INT, 0, "max-cpu-loras", "max-loaded-loras", ENGINE(max_cpu_loras), 1, SL_MAX_ADAPTERS,
     "N", "adapters kept in memory (default: --max-loras)"},
};
const int sl_n_flags_adapters = (int)SL_COUNT(sl_flags_adapters);

const struct sl_flag sl_flags_sampling[] = {
    {SL_FLAG_HEADING, 0, NULL, NULL, 0, 0, 0, NULL, "Sampling"},
    {SL_FLAG_INT, 'n', "max-tokens", "n-predict", SAMPLING(max_tokens), 1, SL_MAX_CONTEXT, "N",
     "tokens to generate (default: to the context's end)"},
    {SL_FLAG_FLOAT, 0, "temperature", "temp", SAMPLING(temperature), 0, 100, "T",
     "0 = always the most likely token (default: the model's)"},
    {SL_FLAG_INT, 0, "top-k", NULL, SAMPLING(top_k), -1, SL_MAX_VOCAB, "K",
     "keep the K most likely tokens (0 = off)"},
    {SL_FLAG_FLOAT, 0, "top-p", NULL, SAMPLING(top_p), 0, 1, "P",
     "keep the most likely tokens with total probability P"},
    {SL_FLAG_FLOAT, 0, "min-p", NULL, SAMPLING(min_p), 0, 1, "P",
     "keep tokens at least P times as likely as the best"},
    {SL_FLAG_FLOAT, 0, "repetition-penalty", "repeat-penalty", SAMPLING(repetition_penalty), 0.01,
     100, "R", "> 1 discourages tokens already seen"},
    {SL_FLAG_FLOAT, 0, "presence-penalty", NULL, SAMPLING(presence_penalty), -2, 2, "R",
     "penalty for a token that was generated before"},
    {SL_FLAG_FLOAT, 0, "frequency-penalty", NULL, SAMPLING(frequency_penalty), -2, 2, "R",
     "penalty for each time a token was generated"},
    {SL_FLAG_U64, 's', "seed", NULL, SAMPLING(seed), 0, 0x1p53, "S",
     "same seed, same text (default: drawn; run shows it)"},
    {SL_FLAG_SWITCH, 0, "ignore-eos", NULL, SAMPLING(ignore_eos), 0, 0, NULL,
     "continue after the model's end token"},
};
const int sl_n_flags_sampling = (int)SL_COUNT(sl_flags_sampling);
