/* SPDX-License-Identifier: MIT
 * model_rig.h - for tests of the models layer: a loaded model with a page pool and a run, and steps
 * over sequences whose pages lie where the test wants them.
 */
#ifndef SL_TESTS_MODEL_RIG_H
#define SL_TESTS_MODEL_RIG_H

#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "models/lora.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { RIG_MAX_TOKENS = 512, RIG_MAX_SEQS = 8 };

struct rig {
    struct sl_ckpt *ckpt;
    struct sl_backend *be;
    struct sl_model *model;
    struct sl_run *run;
    struct sl_kv_layout kv;
    uint8_t *pool;
    size_t pool_bytes;
    int32_t n_pages, n_vocab;
    struct rig *others; /* the other parts but this one, as sl_model_part numbers them: ranks are
                           stepped by threads of their own, stages one after the other */
    int n_ranks, n_stages;
    struct sl_comm *comm;
    const struct sl_lora *lora[RIG_MAX_SEQS]; /* of the pieces of a step; NULL: none */
    float lora_scale[RIG_MAX_SEQS];
};

struct rig_options {
    const char *isa, *kv_dtype; /* NULL: auto */
    int n_threads, block_size;  /* 0: 1 thread, blocks of 16 */
    int32_t n_pages;            /* 0: enough for 1,024 tokens */
    bool exact;                 /* block formats as floats */
    int32_t max_lora_rank;
    int n_ranks, n_stages; /* 0: 1 */
    int kv_ranks;          /* of ranks: so many divide positions, in blocks of 256 each; 0: 1 */
    bool own_experts;      /* of ranks: each has some, whole, */
    bool balanced;         /* placed by their load, */
    int32_t n_redundant;   /* with so many replicas more */
    const int32_t *layers; /* of each stage; NULL: by their bytes */
    int32_t context;       /* that is served; 0: the model's */
};

struct seq { /* tokens and where their pages lie */
    const int32_t *tokens;
    int32_t n;
    const int32_t *pages;
    float *logits; /* [n, V] filled as steps ask */
};

struct piece { /* tokens [from, from + n) of a sequence in a step */
    const struct seq *seq;
    int32_t from, n;
    bool want; /* logits of every token */
};

/* false: this processor has no such instruction set */
static inline bool rig_has_isa(const char *name)
{
    enum sl_cpu_isa isa;
    struct sl_backend *be = NULL;
    struct sl_error err;
    struct sl_cpu_config cfg = {.n_threads = 1};
    if (sl_cpu_isa_parse(name, &isa, &err) != 0)
        return false;
    cfg.isa = isa;
    if (sl_cpu_create(&cfg, &be, &err) != 0)
        return false;
    be->vt->destroy(be);
    return true;
}

/* part: a rank, a stage, or a rank of a stage. */
static inline void rig_open_rank(struct rig *g, const char *path, const struct rig_options *o,
                                 int part, struct sl_comm *comm)
{
    const int n_stages = o->n_stages ? o->n_stages : 1;
    struct sl_error err = {0};
    struct sl_cpu_config cpu = {.n_threads = o->n_threads ? o->n_threads : 1, .exact = o->exact};
    int block = o->block_size ? o->block_size : 16, n_ranks = o->n_ranks ? o->n_ranks : 1;
    memset(g, 0, sizeof *g);
    if (o->kv_ranks > 1)
        block = SL_KV_STRETCH * o->kv_ranks;
    if (sl_ckpt_open(path, &g->ckpt, &err) != 0 || sl_model_open(g->ckpt, &g->model, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    const int stage = sl_model_stage_of(part, n_ranks, n_stages);
    if (o->balanced)
        sl_model_balance_experts(g->model, o->n_redundant);
    else if (o->own_experts)
        sl_model_divide_experts(g->model);
    if (o->kv_ranks > 1)
        sl_model_divide_positions(g->model, o->kv_ranks);
    if (sl_model_set_rank(g->model, sl_model_rank_of(part, n_ranks), n_ranks, &err) != 0 ||
        sl_model_set_stage(g->model, stage, n_stages, o->layers, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    if (o->context > 0)
        sl_model_set_context(g->model, o->context);
    if (o->isa != NULL && sl_cpu_isa_parse(o->isa, &cpu.isa, &err) != 0)
        fail_msg("%s", err.msg);
    if (sl_cpu_create(&cpu, &g->be, &err) != 0 ||
        sl_model_load(g->model, g->be, NULL, NULL, &err) != 0 ||
        sl_model_kv_layout(g->model, g->be, o->kv_dtype ? o->kv_dtype : "auto", g->be->vt->kv_dtype,
                           block, &g->kv, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    g->n_pages = o->n_pages ? o->n_pages : 1024 / block + 8;
    g->pool_bytes = (size_t)g->n_pages * sl_kv_block_bytes(&g->kv) / (size_t)n_ranks;
    g->pool = g->be->vt->alloc(g->be, g->pool_bytes);
    assert_non_null(g->pool);
    /* What a page held before must not matter, whatever it is: all ones is a NaN in every format.
     */
    memset(g->pool, 0xFF, g->pool_bytes);
    struct sl_run_config rc = {.max_tokens = RIG_MAX_TOKENS,
                               .max_logits = RIG_MAX_TOKENS,
                               .kv = g->kv,
                               .comm = comm,
                               .max_lora_rank = o->max_lora_rank};
    struct sl_kv_layout own = g->kv;
    sl_kv_layout_part(&own, n_ranks);
    if (n_stages > 1) {
        int32_t first, end;
        sl_model_stage_layers(g->model, stage, &first, &end);
        sl_kv_layout_stage(&own, first, end);
    }
    sl_kv_pools(&own, g->pool, g->n_pages, rc.kv_pool); /* a page has one number in all groups */
    if (sl_run_create(g->model, &rc, &g->run, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    g->n_vocab = sl_model_facts(g->model)->n_vocab;
}

static inline void rig_open(struct rig *g, const char *path, const struct rig_options *o)
{
    struct sl_error err = {0};
    struct sl_comm *comm = NULL;
    const int n = o->n_ranks ? o->n_ranks : 1;
    if (n > 1 && sl_cpu_comm_create(n, &comm, &err) != 0)
        fail_msg("%s", err.msg);
    const int n_stages = o->n_stages ? o->n_stages : 1, n_parts = n * n_stages;
    rig_open_rank(g, path, o, 0, comm);
    g->n_ranks = n;
    g->n_stages = n_stages;
    g->comm = comm;
    g->others = n_parts > 1 ? sl_calloc((size_t)n_parts - 1, sizeof *g->others) : NULL;
    for (int i = 1; i < n_parts; i++)
        rig_open_rank(&g->others[i - 1], path, o, i, comm);
}

static inline void rig_close(struct rig *g)
{
    for (int i = 1; i < g->n_ranks * g->n_stages; i++)
        rig_close(&g->others[i - 1]);
    sl_free(g->others);
    sl_cpu_comm_destroy(g->comm);
    sl_run_destroy(g->run);
    g->be->vt->free(g->be, g->pool, g->pool_bytes);
    sl_model_close(g->model);
    g->be->vt->destroy(g->be);
    sl_ckpt_close(g->ckpt);
}

struct rig_lora { /* the adapters of a step's rows */
    struct sl_lora_rows rows;
    int32_t adapter[RIG_MAX_TOKENS];
    float scale[RIG_MAX_TOKENS];
    struct sl_lora_seg segs[RIG_MAX_TOKENS];
    const struct sl_lora_weights *weights[RIG_MAX_SEQS];
};

/* Rows first .. first + n have piece i's adapter. */
static inline void rig_lora_put(struct rig_lora *l, const struct rig *g, int32_t i, int32_t first,
                                int32_t n)
{
    const struct sl_lora *lora = g->lora[i];
    l->rows.segs = l->segs;
    l->rows.adapter = l->adapter;
    l->rows.scale = l->scale;
    l->rows.weights = l->weights;
    for (int32_t t = first; t < first + n; t++) {
        l->adapter[t] = lora != NULL ? i : -1;
        l->scale[t] = g->lora_scale[i];
    }
    if (lora == NULL)
        return;
    l->weights[i] = &lora->w;
    l->rows.max_rank = SL_MAX(l->rows.max_rank, lora->w.max_rank);
    for (; n > 0; first += SL_LORA_SEG, n -= SL_LORA_SEG)
        l->segs[l->rows.n_segs++] =
            (struct sl_lora_seg){.first = first, .n = SL_MIN(n, SL_LORA_SEG), .adapter = i};
}

struct rig_job { /* of a rank */
    struct rig *g;
    int rank;
    struct sl_batch batch;
    struct sl_lora_rows rows[2]; /* with the rank's own weights */
    const struct sl_lora_weights *weights[RIG_MAX_SEQS];
};

static inline const struct sl_lora_rows *rig_lora_of(struct rig_job *j, int rank, int which,
                                                     const struct sl_lora_rows *rows)
{
    if (rows == NULL)
        return NULL;
    for (int32_t i = 0; i < rows->n_segs; i++)
        j->weights[rows->segs[i].adapter] =
            sl_lora_of_rank(rows->weights[rows->segs[i].adapter], rank);
    j->rows[which] = *rows;
    j->rows[which].weights = j->weights;
    return &j->rows[which];
}

static inline struct sl_run *rig_run_of(const struct rig *g, int stage, int rank)
{
    const int part = sl_model_part(stage, rank, g->n_ranks, g->n_stages);
    return part == 0 ? g->run : g->others[part - 1].run;
}

/* Each stage's step, and what it leaves to the next one. */
static inline const float *rig_stages(const struct rig *g, int rank, const struct sl_batch *b)
{
    const size_t row_bytes = (size_t)sl_model_facts(g->model)->hidden * sizeof(float);
    for (int s = 0; s + 1 < g->n_stages; s++) {
        sl_run_enqueue(rig_run_of(g, s, rank), b);
        memcpy(sl_run_stream(rig_run_of(g, s + 1, rank)), sl_run_stream(rig_run_of(g, s, rank)),
               (size_t)b->n_tokens * row_bytes);
    }
    return sl_run_enqueue(rig_run_of(g, g->n_stages - 1, rank), b);
}

static inline void *rig_rank_main(void *arg)
{
    const struct rig_job *j = arg;
    (void)rig_stages(j->g, j->rank, &j->batch);
    return NULL;
}

static inline const float *rig_enqueue(struct rig *g, const struct sl_batch *b)
{
    pthread_t threads[SL_MAX_RANKS];
    struct rig_job jobs[SL_MAX_RANKS];
    for (int i = 1; i < g->n_ranks; i++) {
        jobs[i] = (struct rig_job){.g = g, .rank = i, .batch = *b};
        jobs[i].batch.lora = rig_lora_of(&jobs[i], i, 0, b->lora);
        jobs[i].batch.logit_lora = rig_lora_of(&jobs[i], i, 1, b->logit_lora);
        assert_int_equal(pthread_create(&threads[i], NULL, rig_rank_main, &jobs[i]), 0);
    }
    const float *logits = rig_stages(g, 0, b);
    for (int i = 1; i < g->n_ranks; i++)
        pthread_join(threads[i], NULL);
    return logits;
}

/* Runs one step; logits of wanted tokens go to their place in the sequence's array. */
static inline void rig_step(struct rig *g, const struct piece *pieces, int32_t n_pieces)
{
    static int32_t tokens[RIG_MAX_TOKENS], positions[RIG_MAX_TOKENS], rows[RIG_MAX_TOKENS];
    static int32_t tables[RIG_MAX_SEQS * 1032];
    struct sl_span spans[RIG_MAX_SEQS];
    struct sl_batch b = {.n_spans = n_pieces,
                         .tokens = tokens,
                         .positions = positions,
                         .spans = spans,
                         .block_tables = tables,
                         .logit_rows = rows};
    struct rig_lora lora[2] = {0}; /* of tokens, of wanted rows */
    const float *logits = NULL;
    int32_t n_tables = 0;

    assert_true(n_pieces <= RIG_MAX_SEQS);
    for (int32_t i = 0; i < n_pieces; i++) {
        const struct piece *p = &pieces[i];
        int32_t n_blocks = SL_CEIL_DIV(p->from + p->n, g->kv.block_size);
        assert_true(b.n_tokens + p->n <= RIG_MAX_TOKENS);
        spans[i] = (struct sl_span){b.n_tokens, p->n, p->from, n_tables, 0};
        memcpy(tables + n_tables, p->seq->pages, (size_t)n_blocks * sizeof *tables);
        n_tables += n_blocks;
        rig_lora_put(&lora[0], g, i, b.n_tokens, p->n);
        if (p->want)
            rig_lora_put(&lora[1], g, i, b.n_logits, p->n);
        for (int32_t t = 0; t < p->n; t++) {
            if (p->want)
                rows[b.n_logits++] = b.n_tokens;
            tokens[b.n_tokens] = p->seq->tokens[p->from + t];
            positions[b.n_tokens++] = p->from + t;
        }
    }
    b.lora = lora[0].rows.n_segs > 0 ? &lora[0].rows : NULL;
    b.logit_lora = b.lora != NULL ? &lora[1].rows : NULL;
    logits = rig_enqueue(g, &b);
    for (int32_t i = 0; i < n_pieces; i++) {
        const struct piece *p = &pieces[i];
        size_t n = (size_t)p->n * (size_t)g->n_vocab;
        if (!p->want)
            continue;
        memcpy(p->seq->logits + (size_t)p->from * (size_t)g->n_vocab, logits, n * sizeof *logits);
        logits += n;
    }
}

/* Fills pages[n] with distinct page ids, in order or scrambled. */
static inline void rig_pages(int32_t *pages, int32_t n, int32_t first, bool scramble)
{
    struct sl_rng rng = {77, 0};
    for (int32_t i = 0; i < n; i++)
        pages[i] = first + i;
    for (int32_t i = n - 1; scramble && i > 0; i--) {
        int32_t j = (int32_t)sl_rng_below(&rng, (uint64_t)i + 1), t = pages[i];
        pages[i] = pages[j];
        pages[j] = t;
    }
}

static inline void rig_tokens(int32_t *tokens, int32_t n, int32_t n_vocab, uint64_t seed)
{
    struct sl_rng rng = {seed, 0};
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)sl_rng_below(&rng, (uint64_t)n_vocab);
}

/* A whole sequence in chunks; logits of every token land in s->logits. */
static inline void rig_run(struct rig *g, const struct seq *s, int32_t chunk)
{
    for (int32_t at = 0; at < s->n; at += chunk) {
        struct piece p = {s, at, SL_MIN(chunk, s->n - at), true};
        rig_step(g, &p, 1);
    }
}

static inline double rig_nmse(const float *have, const float *want, size_t n)
{
    double err = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)have[i] - (double)want[i];
        err += d * d;
        power += (double)want[i] * (double)want[i];
    }
    return err / power;
}

#endif
