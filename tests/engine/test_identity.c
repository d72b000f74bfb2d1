/* SPDX-License-Identifier: MIT
 * Drafts change no bit: many generations with every drafter, each compared with the same one
 * without drafts. Requests are drawn: greedy and sampled, penalties, bad words, grammars, thinking
 * budgets, LoRA, several outputs, prompts that the cache has, cancels, more at once than pages
 * hold.
 *
 *   test_identity [--generations N] [--seed S]     N of all drafters together; 600 if not given
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
    {"mtp, GLM-4.5", DRAFTS "glm4_moe", "{\"method\":\"mtp\",\"num_speculative_tokens\":2}"},
    {"mtp, MiMo", DRAFTS "mimo", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}"},
    {"mtp, always right", DRAFTS "same", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}"},
    {"mtp, Qwen3.5 (states)", DRAFTS "qwen3_5",
     "{\"method\":\"mtp\",\"num_speculative_tokens\":3}"},
    {"suffix, Qwen3.5 (states)", DRAFTS "qwen3_5", suffix},
};

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

static void start(struct world *w, const struct pair *p, bool drafts, bool tight)
{
    const bool lora = strcmp(p->model, DRAFTS "llama") == 0;
    struct sl_error err;
    const struct sl_engine_config cfg = {.model = p->model,
                                         .speculative_config = drafts ? p->speculative : NULL,
                                         .n_threads = 1,
                                         .max_num_seqs = tight ? 5 : 8,
                                         .max_num_batched_tokens = tight ? 24 : 64,
                                         .block_size = 16,
                                         .max_model_len = N_PROMPT + MAX_OUT,
                                         .max_itl_ms = -1, /* all drafts are made */
                                         .enable_lora = lora,
                                         .kv_cache_bytes = tight ? w->tight_bytes : 8 << 20};
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

/* So many generations, half of them with few pages and small chunks. */
static void run_pair(const struct pair *p, int64_t n_generations, uint64_t seed, struct sum *sum)
{
    static struct asked plain[N_BATCH], drafted[N_BATCH];
    struct world a = {0}, b = {0};
    for (int tight = 0; tight < 2; tight++) {
        const int64_t until = n_generations * (tight + 1) / 2;
        struct sl_stats stats;
        start(&a, p, false, tight != 0);
        start(&b, p, true, tight != 0);
        while (sum->generations < until) {
            run_batch(&a, seed, N_BATCH, false, plain);
            run_batch(&b, seed, N_BATCH, true, drafted);
            compare(p, plain, drafted, N_BATCH, seed, sum);
            seed += N_BATCH;
        }
        stop(&a, &stats);
        stop(&b, &stats);
        sum->drafted += stats.n_draft_tokens;
        sum->accepted += stats.n_accepted_tokens;
        sum->cached += stats.prompt_tokens_cached;
        sum->preempted += stats.preemptions;
    }
}

int main(int argc, char **argv)
{
    int64_t n = 600, n_differ = 0, n_total = 0;
    uint64_t n_accepted = 0, n_cached = 0, n_preempted = 0;
    uint64_t seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--generations") == 0)
            n = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
    }
    printf("%-26s %11s %9s %9s %9s %9s %9s %9s %8s\n", "drafter", "generations", "cancelled",
           "tokens", "drafted", "accepted", "cached", "preempted", "differ");
    for (size_t i = 0; i < SL_COUNT(pairs); i++) {
        struct sum s = {0};
        run_pair(&pairs[i], n / (int64_t)SL_COUNT(pairs), seed + 1000000 * i, &s);
        printf("%-26s %11lld %9lld %9lld %9llu %9llu %9llu %9llu %8lld\n", pairs[i].name,
               (long long)s.generations, (long long)s.cancelled, (long long)s.tokens,
               (unsigned long long)s.drafted, (unsigned long long)s.accepted,
               (unsigned long long)s.cached, (unsigned long long)s.preempted, (long long)s.differ);
        fflush(stdout);
        n_differ += s.differ;
        n_total += s.generations;
        n_accepted += s.accepted;
        n_cached += s.cached;
        n_preempted += s.preempted;
        if (s.drafted == 0) {
            printf("test_identity: %s drafts nothing\n", pairs[i].name);
            return 1;
        }
    }
    if (n_accepted == 0 || n_cached == 0 || n_preempted == 0) {
        printf("test_identity: nothing was accepted, or cached, or preempted\n");
        return 1;
    }
    printf("test_identity: %lld generations, %lld differ\n", (long long)n_total,
           (long long)n_differ);
    return n_differ > 0;
}
