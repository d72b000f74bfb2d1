/* SPDX-License-Identifier: MIT
 * tier_world.h - an engine on a real model whose free pages are filled with NaN before each step,
 * so that a page that is read without having been filled is noticed at once; prompts, and the
 * tokens that the model gives to each alone.
 */
#ifndef SL_TESTS_TIER_WORLD_H
#define SL_TESTS_TIER_WORLD_H

#include "base/check.h"
#include "engine/core.h"
#include "engine/host_runner.h"
#include "engine/turn.h"
#include "models/model_rig.h"

enum { CONTEXT = 256, BLOCK = 16, N_BLOCKS = 40, SEATS = 4, N_OUT = 24, N_PROMPTS = 9 };

struct prompt {
    int32_t ids[CONTEXT], n;
    int32_t want[N_OUT];
};

struct world {
    struct rig rig;
    uint8_t *pools[SL_MAX_KV_GROUPS];
    struct sl_engine *eng;
    struct sl_host_runner *host;
    struct prompt prompts[N_PROMPTS];
};

static inline int32_t argmax(const float *row, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = row[i] > row[best] ? i : best;
    return best;
}

/* The tokens of one prompt, with pages for everything. */
static inline void compute_alone(struct rig *g, struct prompt *p)
{
    static float logits[CONTEXT * 1024];
    int32_t tokens[CONTEXT], pages[CONTEXT / BLOCK];
    rig_pages(pages, CONTEXT / BLOCK, 0, true);
    memcpy(tokens, p->ids, (size_t)p->n * sizeof *tokens);
    assert_true(g->n_vocab <= 1024 && p->n + N_OUT <= CONTEXT);
    for (int32_t n = 0; n < N_OUT; n++) {
        struct seq s = {tokens, p->n + n, pages, logits};
        struct piece piece = {&s, n == 0 ? 0 : p->n + n - 1, n == 0 ? p->n : 1, true};
        rig_step(g, &piece, 1);
        p->want[n] = argmax(logits + (size_t)(p->n + n - 1) * (size_t)g->n_vocab, g->n_vocab);
        tokens[p->n + n] = p->want[n];
    }
}

/* Every third prompt goes on where an answer ended; some share a beginning; some end a block. */
static inline void make_prompts(struct world *w)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        struct prompt *p = &w->prompts[i];
        if (i % 3 == 2) {
            const struct prompt *before = &w->prompts[i - 1];
            memcpy(p->ids, before->ids, (size_t)before->n * sizeof *p->ids);
            memcpy(p->ids + before->n, before->want, N_OUT * sizeof *p->ids);
            p->n = before->n + N_OUT;
        } else {
            p->n = i == 4 ? 5 * BLOCK : 40 + 17 * i;
            rig_tokens(p->ids, p->n, w->rig.n_vocab, 5 + (uint64_t)i);
            if (i % 2 == 0)
                rig_tokens(p->ids, 36, w->rig.n_vocab, 3);
        }
        compute_alone(&w->rig, p);
    }
}

static inline void poison_free_pages(struct world *w)
{
    for (int32_t g = 0; g < w->eng->kv.n_groups; g++) {
        const struct sl_id_pool *pool = &w->eng->kv.groups[g].pool;
        const size_t n_bytes = w->rig.kv.groups[g].page_bytes;
        for (int32_t page = 0; page < pool->n_ids; page++)
            if (pool->is_free[page])
                memset(w->pools[g] + (size_t)page * n_bytes, 0xFF, n_bytes);
    }
}

static inline int forward(void *ctx, const struct sl_batch *b, const float **logits,
                          struct sl_error *err)
{
    struct world *w = ctx;
    (void)err;
    SL_ASSERT(sl_sched_check(&w->eng->sched, NULL) == 0);
    poison_free_pages(w);
    *logits = sl_run_enqueue(w->rig.run, b);
    return 0;
}

static inline uint8_t *page_of(void *ctx, int32_t group, int32_t page, int32_t part,
                               size_t *n_bytes)
{
    struct world *w = ctx;
    assert_int_equal(part, 0);
    *n_bytes = w->rig.kv.groups[group].page_bytes;
    return w->pools[group] + (size_t)page * *n_bytes;
}

/* The parts of an engine on it, but for the runner; few_pages: of windows and states. */
static inline void world_parts(struct world *w, int32_t few_pages, struct sl_engine_parts *out)
{
    *out = (struct sl_engine_parts){.info = {.n_vocab = w->rig.n_vocab,
                                             .max_model_len = CONTEXT,
                                             .block_size = BLOCK,
                                             .n_pages = N_BLOCKS,
                                             .n_kv_groups = w->rig.kv.n_groups,
                                             .max_num_seqs = SEATS,
                                             .max_num_batched_tokens = 40},
                                    .kv_root = {7, 9},
                                    .tiers = {.store = {.root = {1, 2}, .host_bytes = 256 << 20}},
                                    .no_thread = true};
    for (int32_t g = 0; g < w->rig.kv.n_groups; g++) {
        const struct sl_kv_layer_group *layers = &w->rig.kv.groups[g];
        out->tiers.page_bytes[g] = layers->page_bytes;
        out->info.kv_groups[g] =
            (struct sl_kv_group_info){.state = layers->state,
                                      .window = layers->window,
                                      .n_pages = sl_kv_layers_full(layers) ? N_BLOCKS : few_pages};
    }
    sl_sampling_default(&out->sampling);
}

/* The runner of its model; w->host is to be destroyed behind the engine. */
static inline void world_runner(struct world *w, struct sl_runner *out)
{
    struct sl_error err;
    const struct sl_host_model m = {
        .ctx = w, .n_vocab = w->rig.n_vocab, .forward = forward, .page = page_of};
    if (sl_host_runner_create(&m, SEATS, &w->host, &err) != 0)
        fail_msg("%s", err.msg);
    sl_host_runner_use(w->host, out);
}

static const struct {
    const char *name;
    int32_t few_pages; /* of a windowed or recurrent group */
} models[] = {
    {"qwen3", N_BLOCKS}, {"gemma3", 8},      {"gemma3", N_BLOCKS}, {"mistral", 12},
    {"qwen3_5", 5},      {"qwen3_5", 24},    {"lfm2", 12},         {"mamba2", 12},
    {"deepseek_v3", 1},  {"kimi_linear", 9}, {"lfm3", 12},         {"deepseek_v32", 1},
    {"jet_nemotron", 9},
};

#endif
