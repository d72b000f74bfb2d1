/* SPDX-License-Identifier: MIT
 * Drafts change no bit: many generations with every drafter, each compared with the same one
 * without drafts. Requests are drawn: greedy and sampled, penalties, bad words, grammars, thinking
 * budgets, LoRA, several outputs, prompts that the cache has, cancels, more at once than pages
 * hold.
 *
 *   test_identity [--generations N] [--seed S] [--device D] [--drafter NAME] [--part K --parts N]
 *
 * N generations of all drafters together; 600 if not given. On a device (cuda:0) those drafters
 * that run there, with and without prices, so that steps run ahead too. One drafter: those whose
 * names begin so, with as many as each has of all. A part of N: every N-th batch of requests, of
 * which each generation is in one part.
 *
 * Prints a line for each drafter: generations, tokens, drafts, and differences.
 */
#include "base/check.h"
#include "base/err.h"
#include "base/rng.h"
#include "sluice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAFTS   "tests/golden/drafts/"
#define ADAPTER  "tests/golden/drafts/llama_lora"
#define N_BATCH  48 /* requests that are submitted at once */
#define MAX_OUT  48
#define MAX_N    3
#define N_PROMPT 60
#define TIGHT    (2 * (N_PROMPT + MAX_OUT))

static const char ngram[] = "{\"method\":\"ngram\",\"num_speculative_tokens\":5,"
                            "\"prompt_lookup_max\":3,\"prompt_lookup_min\":1}";
static const char suffix[] = "{\"method\":\"suffix\",\"num_speculative_tokens\":8,"
                             "\"suffix_decoding_max_spec_factor\":2}";

static const struct pair {
    const char *name, *model, *speculative;
} pairs[] = {
    {"ngram", DRAFTS "llama", ngram},
    {"suffix", DRAFTS "llama", suffix},
    {"draft_model, itself", DRAFTS "llama",
     "{\"model\":\"" DRAFTS "llama\",\"num_speculative_tokens\":4}"},
    {"draft_model, another", DRAFTS "llama",
     "{\"model\":\"" DRAFTS "mimo\",\"num_speculative_tokens\":3}"},
    {"eagle3", DRAFTS "llama",
     "{\"method\":\"eagle3\",\"model\":\"" DRAFTS "eagle3\",\"num_speculative_tokens\":4}"},
    {"mtp, MiMo", DRAFTS "mimo", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}"},
    {"mtp, always right", DRAFTS "same", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}"},
    {"mtp, Qwen3.5 (states)", DRAFTS "qwen3_5",
     "{\"method\":\"mtp\",\"num_speculative_tokens\":3}"},
    {"suffix, Qwen3.5 (states)", DRAFTS "qwen3_5", suffix},
    {"dflash", DRAFTS "llama",
     "{\"method\":\"dflash\",\"model\":\"" DRAFTS "dflash\",\"num_speculative_tokens\":5}"},
    {"dflash, always right", DRAFTS "copy",
     "{\"method\":\"dflash\",\"model\":\"" DRAFTS "dflash_copy\",\"num_speculative_tokens\":1}"},
    {"dspark", DRAFTS "llama",
     "{\"method\":\"dspark\",\"model\":\"" DRAFTS "dspark\",\"num_speculative_tokens\":6}"},
    {"gemma4 assistant", DRAFTS "gemma4",
     "{\"model\":\"" DRAFTS "gemma4_assistant_ordered\",\"num_speculative_tokens\":4}"},
    {"gemma4 assistant, always right", DRAFTS "gemma4_copy",
     "{\"method\":\"mtp\",\"model\":\"" DRAFTS "gemma4_copy_window\","
     "\"num_speculative_tokens\":3}"},
    {"mtp, GLM-4.5", DRAFTS "glm4_moe", "{\"method\":\"mtp\",\"num_speculative_tokens\":2}"},
    {"peagle", DRAFTS "copy", "{\"model\":\"" DRAFTS "peagle_copy\",\"num_speculative_tokens\":2}"},
};

/* Those behind these run on the CPU only: P-EAGLE, and that small model, as experts of 12 columns
 * do. */
enum { N_ON_DEVICE = 14 };

/* ------------------------------------------------------------------ requests */

struct output {
    int32_t n, ids[MAX_OUT];
    float logprobs[MAX_OUT];
    enum sl_finish finish;
};

struct asked {
    struct sl_request *req;
    int32_t n, cancel_at; /* tokens of its first output; 0: never */
    bool cancelled;
    struct output outs[MAX_N];
};

static const char *device; /* NULL: the CPU */
static int64_t part, n_parts = 1;

struct world {
    struct sl_engine *eng;
    uint64_t tight_bytes; /* pages for TIGHT tokens */
    struct sl_constraint *grammars[2];
    struct sl_adapter *adapter;
};

static void give_up(const char *what, const struct sl_error *err)
{
    printf("test_identity: %s: %s\n", what, err->msg);
    exit(1);
}

/* Some prompts begin like others, some repeat themselves. */
static int32_t draw_prompt(struct sl_rng *r, int32_t *prompt)
{
    struct sl_rng shared = {.seed = 7 + sl_rng_below(r, 6)};
    const int32_t n = 1 + (int32_t)sl_rng_below(r, N_PROMPT),
                  n_shared = (int32_t)sl_rng_below(r, 40);
    for (int32_t i = 0; i < n; i++)
        prompt[i] = 1 + (int32_t)(i < n_shared                        ? sl_rng_below(&shared, 95)
                                  : i >= 8 && sl_rng_below(r, 3) == 0 ? (uint64_t)prompt[i - 8] - 1
                                                                      : sl_rng_below(r, 95));
    return n;
}

static void draw_sampling(struct sl_rng *r, struct sl_sampling *s)
{
    sl_sampling_default(s);
    s->temperature = sl_rng_below(r, 2) == 0 ? 0.0f : 0.3f + 0.2f * (float)sl_rng_below(r, 5);
    s->top_k = sl_rng_below(r, 4) == 0 ? 5 : 0;
    s->top_p = sl_rng_below(r, 4) == 0 ? 0.8f : 1.0f;
    s->repetition_penalty = sl_rng_below(r, 5) == 0 ? 1.1f : 1.0f;
    s->presence_penalty = sl_rng_below(r, 5) == 0 ? 0.4f : 0.0f;
    s->frequency_penalty = sl_rng_below(r, 5) == 0 ? 0.3f : 0.0f;
    const int32_t n = 4 + (int32_t)sl_rng_below(r, 2 * MAX_OUT);
    s->max_tokens = SL_MIN(n, MAX_OUT); /* half of them as long as may be */
    s->min_tokens = sl_rng_below(r, 6) == 0 ? s->max_tokens / 2 : 0;
    s->ignore_eos = sl_rng_below(r, 2) == 0;
    s->logprobs = 0;
    s->n = sl_rng_below(r, 5) == 0 ? 2 + (int32_t)sl_rng_below(r, MAX_N - 1) : 1;
    s->has_seed = true;
    s->seed = sl_rng_next(r);
}

static void ask(const struct world *w, struct asked *a, uint64_t seed)
{
    static const int32_t forced[] = {62, 66}, word[] = {67, 68};
    static const struct sl_bad_word bad = {word, 2};
    struct sl_rng r = {.seed = seed};
    struct sl_error err;
    int32_t prompt[N_PROMPT];
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = draw_prompt(&r, prompt)};
    const struct sl_thinking think = {.close = "]a",
                                      .open_id = -1,
                                      .inside = true,
                                      .budget = (int32_t)sl_rng_below(&r, 20),
                                      .forced = forced,
                                      .n_forced = 2};
    memset(a, 0, sizeof *a);
    draw_sampling(&r, &d.sampling);
    const uint64_t kind = sl_rng_below(&r, 10);
    if (kind < 3)
        d.constraint = w->grammars[kind % 2];
    if (kind == 2 || kind == 3 || kind == 4)
        d.thinking = &think;
    if (kind == 5)
        d.sampling.bad_words = &bad, d.sampling.n_bad_words = 1;
    if (kind >= 8 && w->adapter != NULL)
        d.adapter = w->adapter, d.adapter_scale = 1;
    a->cancel_at = sl_rng_below(&r, 12) == 0 ? 1 + (int32_t)sl_rng_below(&r, 20) : 0;
    a->n = d.sampling.n;
    if (sl_request_submit(w->eng, &d, &a->req, &err) != 0)
        give_up("a request is refused", &err);
}

static void take(struct asked *a, bool cancels)
{
    struct sl_chunk c;
    while (sl_request_read(a->req, &c) == 1) {
        struct output *o = &a->outs[c.seq_idx];
        for (size_t k = 0; k < c.n_tokens; k++, o->n++) {
            SL_ASSERT(o->n < MAX_OUT);
            o->ids[o->n] = c.tokens[k].id;
            o->logprobs[o->n] = c.tokens[k].logprob;
        }
        o->finish = c.finish;
    }
    if (cancels && a->cancel_at > 0 && !a->cancelled && a->outs[0].n >= a->cancel_at) {
        sl_request_cancel(a->req);
        a->cancelled = true;
    }
}

/* All of a batch at once; those that share an engine find what others left in its cache. */
static void run_batch(const struct world *w, uint64_t first, int32_t n, bool cancels,
                      struct asked *all)
{
    for (int32_t i = 0; i < n; i++)
        ask(w, &all[i], first + (uint64_t)i);
    for (int32_t i = 0; i < n; i++) {
        while (!sl_request_done(all[i].req)) {
            sl_request_wait(all[i].req, 1000);
            for (int32_t k = i; k < n; k++)
                take(&all[k], cancels);
        }
        take(&all[i], false);
    }
    for (int32_t i = 0; i < n; i++)
        sl_request_release(all[i].req);
}

/* ------------------------------------------------------------------ engines */

static void open_grammar(struct world *w, int32_t i, const char *regex)
{
    struct sl_error err;
    const struct sl_constraint_desc d = {
        .kind = SL_GRAMMAR_REGEX, .text = regex, .n_text = strlen(regex)};
    if (sl_constraint_open(w->eng, &d, &w->grammars[i], &err) != 0)
        give_up(regex, &err);
}

/* How an engine is set up: pages for two of the longest sequences only; drafts that are paid for
 * only, else all are made. */
struct setting {
    bool tight, priced;
};

static void start(struct world *w, const struct pair *p, bool drafts, struct setting how)
{
    const bool tight = how.tight;
    const bool lora = strcmp(p->model, DRAFTS "llama") == 0;
    /* of a pool of a device states get a smaller part */
    const bool states = device != NULL && strstr(p->model, "qwen3_5") != NULL;
    const uint64_t tight_bytes = w->tight_bytes * (states ? 3 : 1);
    struct sl_error err;
    const struct sl_engine_config cfg = {.model = p->model,
                                         .speculative_config = drafts ? p->speculative : NULL,
                                         .n_threads = 1,
                                         .max_num_seqs = tight ? 5 : 8,
                                         .max_num_batched_tokens = tight ? 24 : 64,
                                         .block_size = 16,
                                         .max_model_len = N_PROMPT + MAX_OUT,
                                         .device = device,
                                         .max_itl_ms = how.priced ? 1000 : -1,
                                         .enable_lora = lora,
                                         .kv_cache_bytes = tight ? tight_bytes : 8 << 20};
    w->adapter = NULL;
    if (sl_engine_create(&cfg, &w->eng, &err) != 0)
        give_up(p->name, &err);
    w->tight_bytes = sl_engine_info(w->eng)->kv_bytes_per_token * TIGHT;
    open_grammar(w, 0, "[a-f ]{3,40}");
    open_grammar(w, 1, "(ab|abc[0-9]|x(yz)?){4,30}!?");
    if (lora && (sl_adapter_load(w->eng, "a", ADAPTER, false, &err) != 0 ||
                 sl_adapter_open(w->eng, "a", true, &w->adapter, &err) != 0))
        give_up(ADAPTER, &err);
}

static void stop(struct world *w, struct sl_stats *s)
{
    sl_engine_stats(w->eng, s);
    for (size_t i = 0; i < SL_COUNT(w->grammars); i++)
        sl_constraint_release(w->grammars[i]);
    if (w->adapter != NULL)
        sl_adapter_release(w->adapter);
    sl_engine_destroy(w->eng);
}

static bool is_same(const struct asked *a, const struct asked *b, int32_t idx)
{
    const struct output *x = &a->outs[idx], *y = &b->outs[idx];
    const int32_t n = b->cancelled ? SL_MIN(x->n, y->n) : x->n;
    return (b->cancelled || (x->n == y->n && x->finish == y->finish)) &&
           memcmp(x->ids, y->ids, (size_t)n * sizeof *x->ids) == 0 &&
           memcmp(x->logprobs, y->logprobs, (size_t)n * sizeof *x->logprobs) == 0;
}

struct sum {
    int64_t generations, tokens, cancelled, differ;
    uint64_t drafted, accepted, cached, preempted;
};

static void compare(const struct pair *p, const struct asked *plain, const struct asked *drafted,
                    int32_t n, uint64_t first, struct sum *sum)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < plain[i].n; k++) {
            sum->generations++;
            sum->tokens += drafted[i].outs[k].n;
            sum->cancelled += drafted[i].cancelled;
            if (is_same(&plain[i], &drafted[i], k))
                continue;
            sum->differ++;
            printf("%s: request %llu, output %d differs\n", p->name,
                   (unsigned long long)(first + (uint64_t)i), k);
        }
}

/* Batches of requests up to n generations of the drafter in all parts. */
static void run_setting(const struct pair *p, struct setting how, int64_t n, uint64_t seed,
                        struct sum *sum)
{
    static struct asked plain[N_BATCH], drafted[N_BATCH];
    static struct world a, b;
    struct sl_stats stats;
    start(&a, p, false, how);
    start(&b, p, true, how);
    for (int64_t i = 0; i * N_BATCH < n; i++) {
        const uint64_t first = seed + (uint64_t)(i * N_BATCH);
        if (i % n_parts != part)
            continue;
        run_batch(&a, first, N_BATCH, false, plain);
        run_batch(&b, first, N_BATCH, true, drafted);
        compare(p, plain, drafted, N_BATCH, first, sum);
    }
    stop(&a, &stats);
    stop(&b, &stats);
    sum->drafted += stats.n_draft_tokens;
    sum->accepted += stats.n_accepted_tokens;
    sum->cached += stats.prompt_tokens_cached;
    sum->preempted += stats.preemptions;
}

/* A half of the generations with few pages and small chunks; on a device a third without prices of
 * either kind, and one with prices. */
static void run_pair(const struct pair *p, int64_t n, uint64_t seed, struct sum *sum)
{
    static const struct setting all[] = {{false, false}, {true, false}, {false, true}};
    const int64_t n_settings = device != NULL ? 3 : 2;
    for (int64_t i = 0; i < n_settings; i++)
        run_setting(p, all[i], SL_MAX(n / n_settings, 1), seed + (uint64_t)(100000 * i), sum);
}

struct options {
    int64_t n;
    uint64_t seed;
    const char *drafter; /* "": all */
};

static struct options read_options(int argc, char **argv)
{
    struct options o = {.n = 600, .seed = 1, .drafter = ""};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--generations") == 0)
            o.n = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            o.seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--device") == 0)
            device = argv[i + 1];
        else if (strcmp(argv[i], "--drafter") == 0)
            o.drafter = argv[i + 1];
        else if (strcmp(argv[i], "--part") == 0)
            part = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--parts") == 0)
            n_parts = SL_MAX(strtoll(argv[i + 1], NULL, 10), 1);
    }
    return o;
}

static void print_sum(const char *name, const struct sum *s)
{
    printf("%-26s %11lld %9lld %9lld %9llu %9llu %9llu %9llu %8lld\n", name,
           (long long)s->generations, (long long)s->cancelled, (long long)s->tokens,
           (unsigned long long)s->drafted, (unsigned long long)s->accepted,
           (unsigned long long)s->cached, (unsigned long long)s->preempted, (long long)s->differ);
    fflush(stdout);
}

static void add_sum(struct sum *to, const struct sum *s)
{
    to->generations += s->generations;
    to->differ += s->differ;
    to->accepted += s->accepted;
    to->cached += s->cached;
    to->preempted += s->preempted;
}

int main(int argc, char **argv)
{
    const struct options o = read_options(argc, argv);
    struct sum total = {0};
    printf("%-26s %11s %9s %9s %9s %9s %9s %9s %8s\n", "drafter", "generations", "cancelled",
           "tokens", "drafted", "accepted", "cached", "preempted", "differ");
    for (size_t i = 0; i < SL_COUNT(pairs); i++) {
        struct sum s = {0};
        if ((device != NULL && i >= N_ON_DEVICE) ||
            strncmp(pairs[i].name, o.drafter, strlen(o.drafter)) != 0)
            continue;
        run_pair(&pairs[i], o.n / (int64_t)SL_COUNT(pairs), o.seed + 1000000 * i, &s);
        print_sum(pairs[i].name, &s);
        add_sum(&total, &s);
        if (s.generations > 0 && s.drafted == 0) {
            printf("test_identity: %s drafts nothing\n", pairs[i].name);
            return 1;
        }
    }
    const bool all =
        o.drafter[0] == '\0' && n_parts == 1; /* else a small part may lack something */
    if (all && (total.accepted == 0 || total.cached == 0 || total.preempted == 0)) {
        printf("test_identity: nothing was accepted, or cached, or preempted\n");
        return 1;
    }
    printf("test_identity: %lld generations, %lld differ\n", (long long)total.generations,
           (long long)total.differ);
    return total.differ > 0 || (total.generations == 0 && n_parts == 1);
}
