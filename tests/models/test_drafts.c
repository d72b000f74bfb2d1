/* SPDX-License-Identifier: MIT
 * Drafters that read hidden rows of the model they draft for: those rows, and what the drafters
 * make of them and of their own, against transformers and speculators
 * (tools/gen_golden_drafts.py).
 */
#include "models/internal.h"
#include "models/model_rig.h"
#include "synth/synth.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static const char *const isas[] = {"c", "avx2", "avx512"};

struct golden {
    char *data;
    int32_t n, n_taps, h, n_vocab, n_more;
    const int32_t *taps, *ids, *drafts;
    const float *rows, *logits, *more;
};

static void read_golden(struct golden *g, const char *name)
{
    struct sl_error err = {0};
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "tests/golden/drafts/%s/draft.bin", name);
    if (sl_read_file(path, 1 << 20, &g->data, &n, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    const int32_t *head = (const int32_t *)(const void *)g->data;
    g->n = head[0];
    g->n_taps = head[1];
    g->h = head[2];
    g->n_vocab = head[3];
    g->n_more = head[4];
    g->taps = head + 5;
    g->ids = g->taps + g->n_taps;
    g->rows = (const float *)(const void *)(g->ids + g->n);
    g->logits = g->rows + g->n * g->n_taps * g->h;
    g->drafts = (const int32_t *)(const void *)(g->logits + (g->n - 1) * g->n_vocab);
    g->more = (const float *)(const void *)(g->drafts + g->n_more);
    assert_ptr_equal(g->more + g->n_more * g->n_vocab, g->data + n);
}

struct block_golden { /* of a drafter of blocks: of each anchor a block, behind the rows before it
                       */
    char *data;
    int32_t n, n_taps, h, n_vocab, block, n_anchors;
    const int32_t *taps, *ids, *anchors;
    const float *rows, *logits;
};

static void read_block(struct block_golden *g, const char *name)
{
    struct sl_error err = {0};
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "tests/golden/drafts/%s/block.bin", name);
    if (sl_read_file(path, 1 << 20, &g->data, &n, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    const int32_t *head = (const int32_t *)(const void *)g->data;
    g->n = head[0];
    g->n_taps = head[1];
    g->h = head[2];
    g->n_vocab = head[3];
    g->block = head[4];
    g->n_anchors = head[5];
    g->taps = head + 6;
    g->ids = g->taps + g->n_taps;
    g->anchors = g->ids + g->n;
    g->rows = (const float *)(const void *)(g->anchors + g->n_anchors);
    g->logits = g->rows + g->n * g->n_taps * g->h;
    assert_ptr_equal(g->logits + g->n_anchors * g->block * g->n_vocab, g->data + n);
}

struct pair { /* a model and its drafter */
    struct rig target, draft;
    struct sl_ckpt *ckpt; /* of the drafter alone, or NULL */
};

/* drafter: its folder, NULL: the module that the model's own has. */
static void open_pair(struct pair *p, const char *model, const char *drafter, const char *isa)
{
    struct sl_error err = {0};
    const struct rig_options o = {.isa = isa, .kv_dtype = "f32", .exact = true};
    struct rig *t = &p->target, *d = &p->draft;
    memset(p, 0, sizeof *p);
    rig_open(t, model, &o);
    if (drafter != NULL && sl_ckpt_open(drafter, &p->ckpt, &err) != 0)
        fail_msg("%s: %s", drafter, err.msg);
    if (sl_model_open_draft(drafter != NULL ? p->ckpt : t->ckpt, t->model,
                            drafter != NULL ? sl_ckpt_draft_method(p->ckpt) : "mtp", &d->model,
                            &err) != 0 ||
        sl_model_load(d->model, t->be, NULL, NULL, &err) != 0)
        fail_msg("%s: %s", model, err.msg);
    d->be = t->be;
    d->n_ranks = 1;
    struct sl_run_config cfg = {.max_tokens = 64, .max_logits = 64, .max_chains = 4};
    if (sl_model_facts(d->model)->draft_borrows) {
        cfg.kv = t->kv;
        sl_kv_pools(&t->kv, t->pool, t->n_pages, cfg.kv_pool);
    } else {
        if (sl_model_kv_layout(d->model, t->be, "f32", t->be->vt->kv_dtype, 16, &d->kv, &err) != 0)
            fail_msg("%s: %s", model, err.msg);
        d->n_pages = 16;
        d->pool_bytes = (size_t)d->n_pages * sl_kv_block_bytes(&d->kv);
        d->pool = d->be->vt->alloc(d->be, d->pool_bytes);
        memset(d->pool, 0xFF, d->pool_bytes);
        cfg.kv = d->kv;
        sl_kv_pools(&d->kv, d->pool, d->n_pages, cfg.kv_pool);
    }
    assert_int_equal(sl_run_create(d->model, &cfg, &d->run, &err), 0);
    /* the model's run, once more, with what the drafter reads */
    sl_run_destroy(t->run);
    cfg.kv = t->kv;
    sl_kv_pools(&t->kv, t->pool, t->n_pages, cfg.kv_pool);
    cfg.n_taps = sl_model_draft_taps(d->model, cfg.taps);
    if (sl_run_create(t->model, &cfg, &t->run, &err) != 0)
        fail_msg("%s: %s", model, err.msg);
}

static void close_pair(struct pair *p)
{
    sl_run_destroy(p->draft.run);
    if (p->draft.pool != NULL)
        p->draft.be->vt->free(p->draft.be, p->draft.pool, p->draft.pool_bytes);
    sl_model_close(p->draft.model);
    rig_close(&p->target);
    if (p->ckpt != NULL)
        sl_ckpt_close(p->ckpt);
}

/* A batch of one sequence's tokens [from, from + n), every row wanted or the last. */
static struct sl_batch batch_of(const int32_t *tokens, int32_t from, int32_t n, bool all)
{
    static const int32_t pages[4] = {5, 2, 9, 3};
    static int32_t positions[64], rows[64];
    static struct sl_span span;
    span = (struct sl_span){.n = n, .pos = from};
    for (int32_t i = 0; i < n; i++) {
        positions[i] = from + i;
        rows[i] = all ? i : n - 1;
    }
    return (struct sl_batch){.n_tokens = n,
                             .n_spans = 1,
                             .n_logits = all ? n : 1,
                             .tokens = tokens,
                             .positions = positions,
                             .spans = &span,
                             .block_tables = pages,
                             .logit_rows = rows};
}

static void check_rows(const float *have, const float *want, int32_t n, int32_t width,
                       const char *what, double *worst)
{
    for (int32_t i = 0; i < n; i++) {
        double e = rig_nmse(have + i * width, want + i * width, (size_t)width);
        *worst = fmax(*worst, e);
        if (!(e < 1e-10))
            fail_msg("%s, row %d: NMSE %.3g", what, i, e);
    }
}

/* chunk: tokens of a step */
static void check_pair(struct pair *p, const struct golden *g, int32_t chunk, double *worst)
{
    const struct sl_model_facts *f = sl_model_facts(p->draft.model);
    int32_t taps[SL_MAX_TAPS];
    const int32_t width = g->n_taps * g->h, v = g->n_vocab;
    const float *logits = NULL;
    float own[512], rows[64 * 128];
    assert_int_equal(sl_model_draft_taps(p->draft.model, taps), g->n_taps);
    assert_memory_equal(taps, g->taps, (size_t)g->n_taps * sizeof *taps);
    assert_int_equal(f->draft_width, width);
    assert_int_equal(f->n_row, v);
    assert_true(g->n * width <= (int32_t)SL_COUNT(rows) && f->draft_hidden <= 512);
    for (int32_t at = 0; at < g->n; at += chunk) {
        const int32_t n = SL_MIN(chunk, g->n - at);
        const struct sl_batch b = batch_of(g->ids + at, at, n, false);
        sl_run_enqueue(p->target.run, &b);
        memcpy(rows + at * width, sl_run_taps(p->target.run), (size_t)(n * width) * sizeof *rows);
    }
    check_rows(rows, g->rows, g->n, width, "rows of the model", worst);
    for (int32_t at = 0; at < g->n - 1; at += chunk) {
        const int32_t n = SL_MIN(chunk, g->n - 1 - at);
        const struct sl_batch b = batch_of(g->ids + at + 1, at, n, true);
        logits = sl_run_enqueue_draft(p->draft.run, &b, rows + at * width, NULL, false);
        check_rows(logits, g->logits + at * v, n, v, "entries of the model's rows", worst);
        logits += (n - 1) * v;
        memcpy(own, sl_run_hidden(p->draft.run) + (n - 1) * f->draft_hidden,
               (size_t)f->draft_hidden * sizeof *own);
    }
    const float *hidden = own;
    for (int32_t i = 0; i < g->n_more; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < v; k++)
            best = logits[k] > logits[best] ? k : best;
        assert_int_equal(sl_model_draft_token(p->draft.model, best), g->drafts[i]);
        const struct sl_batch b = batch_of(g->drafts + i, g->n - 1 + i, 1, true);
        logits = sl_run_enqueue_draft(p->draft.run, &b, hidden, NULL, true);
        check_rows(logits, g->more + i * v, 1, v, "an entry of the drafter's own row", worst);
        hidden = sl_run_hidden(p->draft.run);
    }
}

/* Of one that looks at some tokens alone the others have transformers' least logit, less than all
 * that are looked at, and ours. */
static void check_some(const float *have, const float *want, int32_t v, int32_t n, double *worst)
{
    float a[128], b[128];
    float least = want[0];
    int32_t k = 0;
    for (int32_t i = 1; i < v; i++)
        least = fminf(least, want[i]);
    assert_true(v <= (int32_t)SL_COUNT(a));
    for (int32_t i = 0; i < v; i++) {
        assert_true((have[i] == -FLT_MAX) == (n < v && want[i] == least));
        if (have[i] == -FLT_MAX)
            continue;
        a[k] = have[i];
        b[k++] = want[i];
    }
    assert_int_equal(k, n);
    if (k == v) {
        check_rows(a, b, 1, k, "an entry", worst);
        return;
    }
    /* of a few values, which may all be small */
    const double e = rig_nmse(a, b, (size_t)k);
    *worst = fmax(*worst, e);
    if (!(e < 1e-9))
        fail_msg("an entry of some tokens: NMSE %.3g", e);
}

/* The entry of a token at `pos` that reads the model's keys before it. */
static const float *borrowed_entry(struct pair *p, const int32_t *token, int32_t pos,
                                   const float *row, bool own)
{
    struct sl_batch b = batch_of(token, pos - 1, 1, true);
    b.positions = &pos;
    return sl_run_enqueue_draft(p->draft.run, &b, row, NULL, own);
}

/* looked_at: tokens, of which a row has logits */
static void check_assistant(struct pair *p, const struct golden *g, int32_t chunk,
                            int32_t looked_at, double *worst)
{
    const int32_t v = g->n_vocab;
    const float *logits = NULL;
    float rows[64 * 128];
    assert_int_equal(sl_model_facts(p->draft.model)->draft_width, g->h);
    assert_int_equal(sl_model_facts(p->draft.model)->draft_hidden, g->h);
    for (int32_t at = 0; at < g->n; at += chunk) {
        const int32_t n = SL_MIN(chunk, g->n - at);
        const struct sl_batch b = batch_of(g->ids + at, at, n, false);
        sl_run_enqueue(p->target.run, &b);
        memcpy(rows + at * g->h, sl_run_taps(p->target.run), (size_t)(n * g->h) * sizeof *rows);
    }
    check_rows(rows, g->rows, g->n, g->h, "rows of the model", worst);
    for (int32_t i = 0; i < g->n - 1; i++) {
        logits = borrowed_entry(p, g->ids + i + 1, i + 1, rows + i * g->h, false);
        check_some(logits, g->logits + i * v, v, looked_at, worst);
    }
    for (int32_t i = 0; i < g->n_more; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < v; k++)
            best = logits[k] > logits[best] ? k : best;
        assert_int_equal(best, g->drafts[i]);
        logits = borrowed_entry(p, g->drafts + i, g->n - 1, sl_run_hidden(p->draft.run), true);
        check_some(logits, g->more + i * v, v, looked_at, worst);
    }
}

static void test_assistants(void **state)
{
    static const struct {
        const char *name;
        int32_t looked_at;
    } assistants[] = {{"gemma4_assistant", 96}, {"gemma4_assistant_ordered", 3 * 96 / 12}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(assistants); i++)
        for (size_t k = 0; k < SL_COUNT(isas); k++) {
            struct golden g;
            struct pair p;
            char folder[64];
            double worst = 0;
            if (!rig_has_isa(isas[k]))
                continue;
            read_golden(&g, assistants[i].name);
            snprintf(folder, sizeof folder, "tests/golden/drafts/%s", assistants[i].name);
            open_pair(&p, "tests/golden/drafts/gemma4", folder, isas[k]);
            assert_string_equal(sl_ckpt_draft_method(p.ckpt), "gemma4_mtp");
            check_assistant(&p, &g, g.n, assistants[i].looked_at, &worst);
            check_assistant(&p, &g, 5, assistants[i].looked_at, &worst);
            close_pair(&p);
            sl_free(g.data);
            printf("%s, %s: worst NMSE %.2e\n", assistants[i].name, isas[k], worst);
        }
}

static const struct {
    const char *golden, *model, *eagle;
} pairs[] = {
    {"glm4_moe", "tests/golden/drafts/glm4_moe", NULL},
    {"deepseek_v3", "tests/golden/drafts/deepseek_v3", NULL},
    {"deepseek_v32", "tests/golden/drafts/deepseek_v32", NULL},
    {"deepseek_v4", "tests/golden/drafts/deepseek_v4", NULL},
    {"qwen3_5", "tests/golden/drafts/qwen3_5", NULL},
    {"qwen3_next", "tests/golden/drafts/qwen3_next", NULL},
    {"mimo", "tests/golden/drafts/mimo", NULL},
    {"eagle3", "tests/golden/drafts/llama", "tests/golden/drafts/eagle3"},
    {"eagle3_nested", "tests/golden/drafts/llama", "tests/golden/drafts/eagle3_nested"},
    {"eagle3_speculators", "tests/golden/drafts/llama", "tests/golden/drafts/eagle3_speculators"},
    {"eagle3_fc_norm", "tests/golden/drafts/llama", "tests/golden/drafts/eagle3_fc_norm"},
};

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(pairs); i++)
        for (size_t k = 0; k < SL_COUNT(isas); k++) {
            struct golden g;
            struct pair p;
            double worst = 0;
            if (!rig_has_isa(isas[k])) {
                printf("skip: %s: not on this processor\n", isas[k]);
                continue;
            }
            printf("%s, %s:", pairs[i].golden, isas[k]);
            fflush(stdout);
            read_golden(&g, pairs[i].golden);
            open_pair(&p, pairs[i].model, pairs[i].eagle, isas[k]);
            check_pair(&p, &g, g.n, &worst);
            check_pair(&p, &g, 5, &worst);
            close_pair(&p);
            sl_free(g.data);
            printf(" worst NMSE %.2e\n", worst);
        }
}

/* The model's rows, as the golden has them, into `rows`. */
static void check_taps(struct pair *p, const struct block_golden *g, int32_t chunk, float *rows,
                       double *worst)
{
    const int32_t width = g->n_taps * g->h;
    int32_t taps[SL_MAX_TAPS];
    assert_int_equal(sl_model_draft_taps(p->draft.model, taps), g->n_taps);
    assert_memory_equal(taps, g->taps, (size_t)g->n_taps * sizeof *taps);
    for (int32_t at = 0; at < g->n; at += chunk) {
        const int32_t n = SL_MIN(chunk, g->n - at);
        const struct sl_batch b = batch_of(g->ids + at, at, n, false);
        sl_run_enqueue(p->target.run, &b);
        memcpy(rows + at * width, sl_run_taps(p->target.run), (size_t)(n * width) * sizeof *rows);
    }
    check_rows(rows, g->rows, g->n, width, "rows of the model", worst);
}

/* The anchor and masks, behind the text. */
static const float *block_apart(struct pair *p, const struct block_golden *g, int32_t anchor)
{
    int32_t tokens[32] = {g->ids[anchor]};
    for (int32_t k = 1; k < g->block; k++)
        tokens[k] = sl_model_facts(p->draft.model)->draft_mask;
    const struct sl_batch b = batch_of(tokens, anchor, g->block, true);
    return sl_run_enqueue(p->draft.run, &b);
}

/* The last entry of the text, of the row before the anchor, and masks. */
static const float *block_behind(struct pair *p, const struct block_golden *g, int32_t anchor,
                                 const float *rows)
{
    int32_t tokens[32] = {g->ids[anchor]}, sources[32] = {anchor - 1};
    for (int32_t k = 1; k < g->block; k++) {
        tokens[k] = sl_model_facts(p->draft.model)->draft_mask;
        sources[k] = -1;
    }
    const struct sl_batch b = batch_of(tokens, anchor - 1, g->block, true);
    return sl_run_enqueue_draft(p->draft.run, &b, rows, sources, false);
}

/* Rows before each anchor in chunks, then its block, whose entries the next rows write over. */
static void check_blocks(struct pair *p, const struct block_golden *g, int32_t chunk, double *worst)
{
    const struct sl_model_facts *f = sl_model_facts(p->draft.model);
    const int32_t width = g->n_taps * g->h, v = g->n_vocab;
    float rows[64 * 128];
    assert_int_equal(f->draft_width, width);
    assert_int_equal(f->n_row, v);
    assert_true(f->draft_apart ? f->draft_block == g->block : f->draft_block >= g->block);
    assert_true(g->n * width <= (int32_t)SL_COUNT(rows));
    check_taps(p, g, chunk, rows, worst);
    for (int32_t i = 0, at = 0; i < g->n_anchors; i++) {
        const int32_t a = g->anchors[i];
        for (int32_t n; at < a - !f->draft_apart; at += n) {
            n = SL_MIN(chunk, a - !f->draft_apart - at);
            struct sl_batch b = batch_of(g->ids + at + 1, at, n, false);
            b.n_logits = 0;
            sl_run_enqueue_draft(p->draft.run, &b, rows + at * width, NULL, false);
        }
        const float *logits = f->draft_apart ? block_apart(p, g, a) : block_behind(p, g, a, rows);
        check_rows(logits, g->logits + i * g->block * v, g->block, v, "a block", worst);
    }
}

/* Drafts of the blocks behind all anchors, one after another, in steps of all of them. */
static void check_chains(struct pair *p, const struct block_golden *g, const char *name,
                         double *worst)
{
    const struct sl_model_facts *f = sl_model_facts(p->draft.model);
    const int32_t v = g->n_vocab, first = !f->draft_from_anchor;
    struct sl_error err = {0};
    char path[256], *data;
    size_t size;
    snprintf(path, sizeof path, "tests/golden/drafts/%s/chain.bin", name);
    if (sl_read_file(path, 1 << 20, &data, &size, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    const int32_t *head = (const int32_t *)(const void *)data, n = head[1], *drafts = head + 2;
    const float *logits = (const float *)(const void *)(drafts + head[0] * n),
                *odds = logits + head[0] * n * v;
    assert_int_equal(head[0], g->n_anchors);
    assert_int_equal(n, g->block - first);
    assert_ptr_equal(odds + head[0] * n, data + size);
    for (int32_t i = g->n_anchors - 1; i >= 0; i--) { /* the text is there already */
        const int32_t a = g->anchors[i];
        block_apart(p, g, a);
        for (int32_t k = 0; k < n; k++) {
            const int32_t seq = 2, row = first + k,
                          prev = k > 0 ? drafts[i * n + k - 1] : g->ids[a];
            float odd = 0;
            int32_t best = 0;
            const struct sl_draft_chain c = {.n = 1,
                                             .seqs = &seq,
                                             .rows = &row,
                                             .prev = &prev,
                                             .first = k == 0,
                                             .odds = f->draft_odds ? &odd : NULL};
            const float *have = sl_run_draft_chain(p->draft.run, &c);
            check_rows(have, logits + (i * n + k) * v, 1, v, "a draft behind another", worst);
            for (int32_t t = 1; t < v; t++)
                best = have[t] > have[best] ? t : best;
            assert_int_equal(sl_model_draft_token(p->draft.model, best), drafts[i * n + k]);
            assert_true(fabsf(odd - odds[i * n + k]) < 1e-5f);
        }
    }
    sl_free(data);
}

static const char *const blocks[] = {"dflash",       "dflash_windows",     "dflash_speculators",
                                     "peagle",       "peagle_speculators", "dspark",
                                     "dspark_gated", "dspark_rnn"};

static void test_block_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(blocks); i++)
        for (size_t k = 0; k < SL_COUNT(isas); k++) {
            struct block_golden g;
            struct pair p;
            char folder[64];
            double worst = 0;
            if (!rig_has_isa(isas[k]))
                continue;
            printf("%s, %s:\n", blocks[i], isas[k]);
            fflush(stdout);
            read_block(&g, blocks[i]);
            snprintf(folder, sizeof folder, "tests/golden/drafts/%s", blocks[i]);
            open_pair(&p, "tests/golden/drafts/llama", folder, isas[k]);
            check_blocks(&p, &g, g.n, &worst);
            check_blocks(&p, &g, 3, &worst);
            if (sl_model_facts(p.draft.model)->draft_chain)
                check_chains(&p, &g, blocks[i], &worst);
            close_pair(&p);
            sl_free(g.data);
            printf("  worst NMSE %.2e\n", worst);
        }
}

/* ------------------------------------------------------------------ a large head */

#define LARGE "build/testdata/models/large_head"

static void write_large(const char *name, bool tied, int32_t n_vocab)
{
    struct sl_error err = {0};
    struct sl_synth s = {
        .name = name, .dtype = SL_DTYPE_BF16, .format = SL_CKPT_HF, .seed = 3, .mtp = true};
    if (sl_synth_shape(name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.hidden = 128;
    s.hp.n_vocab = n_vocab;
    if (tied)
        s.hp.has &= ~(unsigned)SL_HAS_HEAD;
    if (sl_synth_write(&s, LARGE, &err) != 0)
        fail_msg("%s", err.msg);
}

/* The drafter's rows of logits, by its own matrix and by that of the model, which are said to be
 * the same but for what 8 bits lose. */
static void check_head(const char *name, bool tied, int32_t n_vocab, bool copied)
{
    enum { N = 6, H = 128 };
    static const int32_t ids[N + 1] = {5, 17, 1003, 9, 400, 88, 2};
    static float rows[N * H];
    struct pair p;
    write_large(name, tied, n_vocab);
    open_pair(&p, LARGE, NULL, "c");
    struct sl_param *head = sl_param(p.draft.model, 0, SL_SLOT_HEAD);
    assert_int_equal(sl_model_facts(p.draft.model)->draft_width, H);
    assert_true((head->mat.dtype == SL_DTYPE_Q8_0) == copied);
    assert_true((sl_draft_head_bytes(p.draft.model, p.draft.be) > 0) == copied);
    struct sl_batch b = batch_of(ids, 0, N, false);
    sl_run_enqueue(p.target.run, &b);
    memcpy(rows, sl_run_taps(p.target.run), sizeof rows);
    const size_t n = (size_t)N * (size_t)n_vocab;
    float *own = sl_calloc(n, sizeof *own);
    assert_non_null(own);
    b = batch_of(ids + 1, 0, N, true);
    memcpy(own, sl_run_enqueue_draft(p.draft.run, &b, rows, NULL, false), n * sizeof *own);
    const struct sl_weight mat = head->mat;
    head->mat = head->shared->mat;
    const float *theirs = sl_run_enqueue_draft(p.draft.run, &b, rows, NULL, false);
    const double e = rig_nmse(own, theirs, n);
    printf("%s, %s, %d tokens: NMSE %.2e beside the model's matrix\n", name,
           tied ? "tied" : "a head", n_vocab, e);
    assert_true(copied ? e > 0 && e < 1e-4 : e == 0);
    head->mat = mat;
    sl_free(own);
    close_pair(&p);
}

static void test_large_heads(void **state)
{
    (void)state;
    check_head("mimo", false, 70000, true);
    check_head("mimo", true, 70000, true);
    check_head("mimo", false, 60000, false); /* 15 MiB */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_block_goldens),
        cmocka_unit_test(test_assistants),
        cmocka_unit_test(test_large_heads),
    };
    return cmocka_run_group_tests_name("drafts", tests, NULL, NULL);
}
