/* SPDX-License-Identifier: MIT
 * page_recall - what attention over chosen pages (--sparse-topk-pages) misses: of a model's
 * attention on a text, and of one made up behind 131,072 positions.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "models/internal.h"
#include "quant/float.h"
#include "text/tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: page_recall MODEL TEXT [PIECES]\n"
    "       page_recall --needles\n"
    "\n"
    "Cuts TEXT into PIECES (default 8) as long as the context of the checkpoint MODEL and runs "
    "them\n"
    "with pages of 16 in BF16, attending to all of them and to some. Of the second half of each\n"
    "piece: the share of pages that are read, the share of attention's probability that lies in\n"
    "them (of layers that choose: mean over rows and heads, and what 95 % of them exceed), the\n"
    "perplexity, and how far the log probability of a token is from that of all pages.\n"
    "\n"
    "--needles: keys at random behind which 16 at random places hold 98 % of the probability.\n";

enum { BLOCK = 16, CHUNK = 256, MAX_CONTEXT = 4096, MAX_PAGES = MAX_CONTEXT / BLOCK + 1 };
enum { PROBE_STEP = 7 }; /* of the rows whose probabilities are made in double */

/* Shares of probability of rows and heads, in a thousand parts. */
struct shares {
    uint64_t n, counts[1001];
    double sum;
};

static void shares_add(struct shares *s, double share)
{
    s->sum += share;
    s->n++;
    s->counts[(int)(fmin(fmax(share, 0), 1) * 1000)]++;
}

static double shares_mean(const struct shares *s)
{
    return s->sum / (double)s->n;
}

struct recall {
    struct shares chosen, best; /* best: means of a group's heads */
};

static int larger_first(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* What all but this share of them exceed. */
static double shares_below(const struct shares *s, double part)
{
    uint64_t n = 0;
    for (int i = 0; i <= 1000; i++)
        if ((double)(n += s->counts[i]) >= part * (double)s->n)
            return i / 1000.0;
    return 1;
}

/* ---------------------------------------------------------------- one row */

/* Dimension d of the keys of a tile of BF16 (struct sl_kv_view), as a double. */
static double key_at(const uint8_t *tile, int d, int slot)
{
    return (double)sl_bf16_to_f32(
        sl_load_u16(tile + ((d / 2 * SL_KV_TILE + slot) * 2 + d % 2) * 2));
}

/* Probabilities of a query over n positions, not yet divided by their sum. */
static void weigh(const struct sl_op_attention *a, const int32_t *table, const float *q, int kv,
                  int32_t n, double *p)
{
    const size_t tile = sl_kv_tile_bytes(SL_DTYPE_BF16, a->head_dim);
    double top = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *keys = a->kv.pool + (size_t)table[i / BLOCK] * a->kv.page_bytes +
                              a->kv.k_offset + (size_t)kv * tile;
        p[i] = 0;
        for (int d = 0; d < a->head_dim; d++)
            p[i] += (double)q[d] * key_at(keys, d, i % BLOCK);
        p[i] *= (double)a->scale;
        top = fmax(top, p[i]);
    }
    for (int32_t i = 0; i < n; i++)
        p[i] = exp(p[i] - top);
}

/* Probability of each page. */
static void sum_pages(const double *p, int32_t n, double *of_pages)
{
    double all = 0;
    for (int32_t i = 0; i < n; i++) {
        of_pages[i / BLOCK] = (i % BLOCK == 0 ? 0 : of_pages[i / BLOCK]) + p[i];
        all += p[i];
    }
    for (int32_t i = 0; i <= (n - 1) / BLOCK; i++)
        of_pages[i] /= all;
}

/* What the heads of a group have in a list of pages, and what they would have in the list of as
 * many that holds most of all their probability. of_pages [n_group, n_pages]. */
static void add_shares(const int32_t *table, const int32_t *list, double *of_pages, int32_t n_group,
                       int32_t n_pages, int32_t n_top, struct recall *out)
{
    double best = 0;
    for (int32_t g = 0; g < n_group; g++) {
        double in = 0;
        for (int32_t i = 0, at = 0; i < n_pages && at < n_top; i++)
            if (table[i] == list[at]) {
                in += of_pages[g * n_pages + i];
                at++;
            }
        shares_add(&out->chosen, in);
    }
    for (int32_t g = 1; g < n_group; g++)
        for (int32_t i = 0; i < n_pages; i++)
            of_pages[i] += of_pages[g * n_pages + i];
    qsort(of_pages, (size_t)n_pages, sizeof *of_pages, larger_first);
    for (int32_t i = 0; i < n_top; i++)
        best += of_pages[i];
    shares_add(&out->best, best / n_group);
}

/* Row k of a span: asks for its choice alone, and adds what part of each head's probability lies in
 * it. The room of one row is a span, and behind that its lists of pages (cpu/top_pages.c). */
static void probe_row(struct sl_backend *be,
                      void (*attend)(struct sl_backend *, const struct sl_op_page_attention *),
                      const struct sl_op_page_attention *op, const struct sl_span *span, int32_t k,
                      struct recall *out)
{
    const struct sl_op_attention *all = &op->all;
    const int32_t pos = span->pos + k, n_pages = pos / BLOCK + 1, n_top = op->top_pages;
    const int32_t n_group = all->n_heads / all->n_kv_heads;
    const int32_t *table = sl_batch_tables(all->batch, all->kv.group) + span->table_idx;
    const struct sl_span one = {
        .first = span->first + k, .n = 1, .pos = pos, .table_idx = span->table_idx};
    struct sl_batch batch = *all->batch;
    struct sl_op_page_attention row = *op;
    batch.n_spans = 1;
    batch.spans = &one;
    row.all.batch = &batch;
    row.counts = NULL;
    row.room_bytes = sl_page_room(all->n_kv_heads, n_top, n_pages);
    row.room = sl_malloc(row.room_bytes);
    row.all.out = sl_malloc((size_t)(one.first + 1) * (size_t)all->ld_out * sizeof(float));
    double *p = sl_malloc((size_t)(pos + 1) * sizeof *p);
    double *of_pages = sl_malloc((size_t)(n_group * n_pages) * sizeof *of_pages);
    SL_ASSERT(row.room != NULL && row.all.out != NULL && p != NULL && of_pages != NULL);
    attend(be, &row);
    const int32_t *lists = (const int32_t *)(const void *)((struct sl_span *)row.room + 1);
    for (int32_t kv = 0; kv < all->n_kv_heads; kv++, lists += n_top) {
        for (int32_t g = 0; g < n_group; g++) {
            const float *q = all->q + one.first * all->ld_q + (kv * n_group + g) * all->head_dim;
            weigh(all, table, q, kv, pos + 1, p);
            sum_pages(p, pos + 1, of_pages + g * n_pages);
        }
        add_shares(table, lists, of_pages, n_group, n_pages, n_top, out);
    }
    sl_free(of_pages);
    sl_free(row.room);
    sl_free(row.all.out);
    sl_free(p);
}

/* ---------------------------------------------------------------- a model */

static const struct sl_backend_vt *inner;
static struct sl_backend_vt outer;
static struct recall recall;
static int32_t probe_from; /* position */

static void op_page_attention(struct sl_backend *be, const struct sl_op_page_attention *a)
{
    inner->page_attention(be, a);
    for (int32_t i = 0; i < a->all.batch->n_spans; i++) {
        const struct sl_span *s = &a->all.batch->spans[i];
        for (int32_t k = 0; k < s->n; k++) {
            const int32_t pos = s->pos + k;
            if (pos >= probe_from && pos % PROBE_STEP == 0 && pos / BLOCK + 1 > a->top_pages)
                probe_row(be, inner->page_attention, a, s, k, &recall);
        }
    }
}

struct rig {
    struct sl_ckpt *ckpt;
    struct sl_backend *be;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *pool;
    size_t pool_bytes;
    int32_t context, n_vocab;
};

static int open_rig(struct rig *g, const char *path, int32_t n_top, struct sl_error *err)
{
    struct sl_cpu_config cpu = {0};
    struct sl_kv_layout kv;
    memset(g, 0, sizeof *g);
    int rc = sl_ckpt_open(path, &g->ckpt, err);
    if (rc == 0)
        rc = sl_model_open(g->ckpt, &g->model, err);
    if (rc == 0)
        rc = sl_cpu_create(&cpu, &g->be, err);
    if (rc == 0)
        rc = sl_model_set_top_pages(g->model, n_top, err);
    if (rc == 0)
        rc = sl_model_kv_layout(g->model, g->be, "bf16", SL_DTYPE_BF16, BLOCK, &kv, err);
    if (rc != 0)
        return rc;
    inner = g->be->vt;
    outer = *inner;
    outer.page_attention = op_page_attention;
    g->be->vt = &outer;
    rc = sl_model_load(g->model, g->be, NULL, NULL, err);
    if (rc == 0 && kv.n_groups != 1)
        rc = sl_fail(err, SL_EUNSUPPORTED, "layers with windows or states are not for this tool");
    if (rc != 0)
        return rc;
    g->pool_bytes = MAX_PAGES * sl_kv_block_bytes(&kv);
    g->pool = inner->alloc(g->be, g->pool_bytes);
    if (g->pool == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %zu bytes of pages", g->pool_bytes);
    struct sl_run_config cfg = {.max_tokens = CHUNK, .max_logits = CHUNK, .kv = kv};
    sl_kv_pools(&kv, g->pool, MAX_PAGES, cfg.kv_pool);
    g->context = SL_MIN(sl_model_facts(g->model)->context, MAX_CONTEXT);
    g->n_vocab = sl_model_facts(g->model)->n_vocab;
    return sl_run_create(g->model, &cfg, &g->run, err);
}

static void close_rig(struct rig *g)
{
    sl_run_destroy(g->run);
    if (g->pool != NULL)
        inner->free(g->be, g->pool, g->pool_bytes);
    sl_model_close(g->model);
    if (g->be != NULL)
        g->be->vt->destroy(g->be);
    sl_ckpt_close(g->ckpt);
}

/* Logits of n tokens from `from` on, which follow those before. */
static const float *step(struct rig *g, const int32_t *tokens, int32_t from, int32_t n)
{
    static int32_t positions[CHUNK], rows[CHUNK], pages[MAX_PAGES];
    struct sl_span span = {.n = n, .pos = from};
    struct sl_batch b = {.n_tokens = n,
                         .n_spans = 1,
                         .n_logits = n,
                         .tokens = tokens + from,
                         .positions = positions,
                         .spans = &span,
                         .block_tables = pages,
                         .n_tables = 1,
                         .logit_rows = rows};
    for (int32_t i = 0; i < MAX_PAGES; i++)
        pages[i] = i;
    for (int32_t i = 0; i < n; i++) {
        positions[i] = from + i;
        rows[i] = i;
    }
    return sl_run_enqueue(g->run, &b);
}

static double log_prob(const float *x, int32_t n, int32_t id)
{
    double sum = 0, top = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        top = fmax(top, (double)x[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return (double)x[id] - top - log(sum);
}

/* Log probabilities of the tokens of a piece's second half. */
static void run_piece(struct rig *g, const int32_t *tokens, double *out)
{
    const int32_t half = g->context / 2;
    for (int32_t at = 0, n; at < g->context; at += n) {
        n = SL_MIN(CHUNK, g->context - at);
        const float *x = step(g, tokens, at, n);
        for (int32_t i = 0; i < n; i++)
            if (at + i >= half && at + i + 1 < g->context)
                *out++ = log_prob(x + (int64_t)i * g->n_vocab, g->n_vocab, tokens[at + i + 1]);
    }
}

struct text {
    struct sl_ids ids;
    int32_t n_pieces, context;
    double *dense, *some; /* [n_pieces, context / 2] */
};

/* Of the pages that rows of the second half see. */
static double share_read(int32_t context, int32_t n_top)
{
    double read = 0, dense = 0;
    for (int32_t pos = context / 2; pos < context; pos++) {
        read += SL_MIN(pos / BLOCK + 1, n_top);
        dense += pos / BLOCK + 1;
    }
    return read / dense;
}

static int survey(const char *path, struct text *t, int32_t n_top, struct sl_error *err)
{
    struct rig g;
    double sum = 0, off = 0, *out = n_top == 0 ? t->dense : t->some;
    const int32_t n = t->context / 2 - 1;
    memset(&recall, 0, sizeof recall);
    probe_from = t->context / 2;
    int rc = open_rig(&g, path, n_top, err);
    for (int32_t i = 0; i < t->n_pieces && rc == 0; i++)
        run_piece(&g, t->ids.data + (size_t)i * (size_t)t->context, out + i * n);
    close_rig(&g);
    if (rc != 0)
        return rc;
    for (int32_t i = 0; i < t->n_pieces * n; i++) {
        sum += out[i];
        off += fabs(out[i] - t->dense[i]);
    }
    const double all = t->n_pieces * n, perplexity = exp(-sum / all);
    if (n_top == 0)
        printf("all pages: perplexity %.4f\n", perplexity);
    else
        printf("%4d pages of %d at the end: read %.3f  recall mean %.4f (best %.4f), 95 %% exceed "
               "%.3f  "
               "perplexity %.4f  log probability off by %.5f\n",
               n_top, t->context / BLOCK, share_read(t->context, n_top),
               shares_mean(&recall.chosen), shares_mean(&recall.best),
               shares_below(&recall.chosen, 0.05), perplexity, off / all);
    return 0;
}

static int open_text(const char *model, const char *path, struct text *t, struct sl_error *err)
{
    struct sl_tokenizer *tok = NULL;
    struct sl_map map = {0};
    struct rig g;
    int rc = open_rig(&g, model, 0, err);
    t->context = g.context;
    close_rig(&g);
    if (rc == 0)
        rc = sl_tokenizer_open(model, &tok, err);
    if (rc == 0)
        rc = sl_map_open(&map, path, err);
    if (rc == 0)
        rc = sl_tokenizer_encode_into(tok, (const char *)map.data,
                                      SL_MIN(map.n_bytes, (size_t)32 << 20), 0, &t->ids, err);
    if (rc == 0 && t->ids.n < (size_t)t->context * (size_t)t->n_pieces)
        rc = sl_fail(err, SL_EINVAL, "%s: %zu tokens, %d pieces of %d are asked for", path,
                     t->ids.n, t->n_pieces, t->context);
    sl_map_close(&map);
    sl_tokenizer_destroy(tok);
    const size_t n = (size_t)t->n_pieces * (size_t)t->context;
    t->dense = sl_malloc(n * sizeof *t->dense);
    t->some = sl_malloc(n * sizeof *t->some);
    if (rc == 0 && (t->dense == NULL || t->some == NULL))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a text");
    return rc;
}

static int survey_all(const char *model, const char *path, int32_t n_pieces, struct sl_error *err)
{
    struct text t = {.n_pieces = n_pieces};
    int rc = open_text(model, path, &t, err);
    if (rc == 0)
        rc = survey(model, &t, 0, err);
    for (int32_t n = SL_TOP_PAGES_MIN; rc == 0 && n < t.context / BLOCK; n += n < 16 ? 4 : 8)
        rc = survey(model, &t, n, err);
    sl_free(t.ids.data);
    sl_free(t.dense);
    sl_free(t.some);
    return rc;
}

/* ---------------------------------------------------------------- needles */

enum { N = 131072, DIM = 128, GROUP = 4, N_NEEDLES = 16, N_PAGES = N / BLOCK };

struct hay {
    struct sl_backend *be;
    float *q, *k, *v;
    int32_t *table;
    uint8_t *pool;
    struct sl_op_page_attention op;
};

/* Queries of a group that look for the same. */
static void make_needles(struct hay *h, struct sl_rng *rng)
{
    double score = log(exp(0.5) * N * 0.98 / 0.02 / N_NEEDLES), length = 0;
    for (int d = 0; d < DIM; d++)
        h->q[d] = (float)sl_rng_normal(rng);
    for (int i = 1; i < GROUP; i++)
        for (int d = 0; d < DIM; d++)
            h->q[i * DIM + d] = h->q[d] + 0.1f * (float)sl_rng_normal(rng);
    for (int d = 0; d < DIM; d++)
        length += (double)h->q[d] * (double)h->q[d];
    for (int i = 0; i < N * DIM; i++)
        h->k[i] = (float)sl_rng_normal(rng);
    for (int i = 0; i < N_NEEDLES; i++) {
        float *k = h->k + sl_rng_below(rng, N) * DIM;
        for (int d = 0; d < DIM; d++) /* its product with q, and what it would have been */
            k[d] = 0.3f * k[d] + (float)(score * sqrt((double)DIM) / length) * h->q[d];
    }
}

static void store_hay(struct hay *h)
{
    const struct sl_span span = {.n = N};
    const struct sl_batch batch = {
        .n_tokens = N, .n_spans = 1, .spans = &span, .block_tables = h->table, .n_tables = 1};
    h->be->vt->qk_norm_rope_kv_store(h->be,
                                     &(struct sl_op_qk_norm_rope_kv_store){.batch = &batch,
                                                                           .k = h->k,
                                                                           .v = h->v,
                                                                           .ld_k = DIM,
                                                                           .ld_v = DIM,
                                                                           .n_kv_heads = 1,
                                                                           .head_dim = DIM,
                                                                           .kv = h->op.all.kv});
    h->be->vt->page_bounds(h->be, &(struct sl_op_page_bounds){.batch = &batch,
                                                              .n_kv_heads = 1,
                                                              .head_dim = DIM,
                                                              .bounds_offset = h->op.bounds_offset,
                                                              .kv = h->op.all.kv});
}

static void probe_hay(struct hay *h, int32_t n_top, struct recall *out)
{
    const struct sl_span span = {.n = 1, .pos = N - 1};
    const struct sl_batch batch = {
        .n_tokens = 1, .n_spans = 1, .spans = &span, .block_tables = h->table, .n_tables = 1};
    h->op.all.batch = &batch;
    h->op.top_pages = n_top;
    probe_row(h->be, h->be->vt->page_attention, &h->op, &span, 0, out);
}

static int find_needles(struct sl_error *err)
{
    static const int32_t tops[] = {16, 32, 64, 128, 512, 2048};
    enum { N_TOPS = sizeof tops / sizeof tops[0], ROUNDS = 4 };
    static struct recall found[N_TOPS];
    const size_t keys = sl_kv_tile_bytes(SL_DTYPE_BF16, DIM);
    const size_t page = 2 * keys + sl_page_bounds_bytes(SL_DTYPE_BF16, 1, DIM);
    struct sl_cpu_config cpu = {0};
    struct sl_rng rng = {.seed = 7};
    struct hay h = {.q = sl_malloc(GROUP * DIM * sizeof(float)),
                    .k = sl_malloc((size_t)N * DIM * sizeof(float)),
                    .v = sl_calloc((size_t)N * DIM, sizeof(float)),
                    .table = sl_malloc(N_PAGES * sizeof(int32_t)),
                    .pool = sl_aligned_alloc(N_PAGES * page)};
    int rc = sl_cpu_create(&cpu, &h.be, err);
    if (rc == 0 && (h.q == NULL || h.k == NULL || h.v == NULL || h.table == NULL || h.pool == NULL))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for %d positions", N);
    h.op = (struct sl_op_page_attention){
        .all = {.q = h.q,
                .ld_q = GROUP * DIM,
                .n_heads = GROUP,
                .n_kv_heads = 1,
                .head_dim = DIM,
                .scale = (float)(1 / sqrt((double)DIM)),
                .kv = {h.pool, page, 0, keys, SL_DTYPE_BF16, BLOCK, 0},
                .ld_out = GROUP * DIM},
        .bounds_offset = 2 * keys};
    for (int32_t i = 0; i < N_PAGES && rc == 0; i++)
        h.table[i] = i;
    for (int round = 0; round < ROUNDS && rc == 0; round++) {
        make_needles(&h, &rng);
        store_hay(&h);
        for (int i = 0; i < N_TOPS; i++)
            probe_hay(&h, tops[i], &found[i]);
    }
    for (int i = 0; i < N_TOPS && rc == 0; i++)
        printf("%4d pages of %d: recall mean %.4f (best %.4f), 95 %% exceed %.3f\n", tops[i],
               N_PAGES, shares_mean(&found[i].chosen), shares_mean(&found[i].best),
               shares_below(&found[i].chosen, 0.05));
    if (h.be != NULL)
        h.be->vt->destroy(h.be);
    sl_free(h.q);
    sl_free(h.k);
    sl_free(h.v);
    sl_free(h.table);
    sl_aligned_free(h.pool, N_PAGES * page);
    return rc;
}

int main(int argc, char **argv)
{
    struct sl_error err = {0};
    uint64_t n = 8;
    int rc;
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(help, argc == 2 ? stdout : stderr);
        return argc == 2 ? 0 : 2;
    }
    if (argc == 2 && strcmp(argv[1], "--needles") == 0) {
        rc = find_needles(&err);
    } else if (argc < 3 || argc > 4 ||
               (argc == 4 && (!sl_parse_u64(argv[3], strlen(argv[3]), &n) || n < 1 || n > 1000))) {
        fputs(help, stderr);
        return 2;
    } else {
        rc = survey_all(argv[1], argv[2], (int32_t)n, &err);
    }
    if (rc != 0)
        fprintf(stderr, "page_recall: %s\n", err.msg);
    return rc == 0 ? 0 : 1;
}
