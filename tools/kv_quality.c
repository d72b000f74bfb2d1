/* SPDX-License-Identifier: MIT
 * kv_quality - what a format of KV pages costs a model: its predictions of a text beside those over
 * BF16 pages, and how well it finds a needle, a row of tokens that stood earlier in the context.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "models/internal.h"
#include "text/tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: kv_quality MODEL [--text FILE] [--tokens N] [--context N] [--skip LIST] [FORMAT ..]\n"
    "\n"
    "Cuts N tokens (default 8192) of FILE, or such as the model draws itself, into contexts "
    "(default\n"
    "512) and prints, for each format of KV pages (default: all beside bf16):\n"
    "  bytes    of pages for a token\n"
    "  ppl      perplexity of the text\n"
    "  KLD      Kullback-Leibler divergence of the predictions from those over BF16 pages, mean "
    "and\n"
    "           the 99th of 100 parts\n"
    "  top      at how many positions the likeliest token is the same, in %\n"
    "  needle   in each context, four times, 24 tokens from elsewhere take the place of text at "
    "1/8\n"
    "           .. 6/8 of it, and their first 8 are the context's end: perplexity of the other 16\n"
    "--skip: as --kv-cache-dtype-skip-layers.\n";

enum {
    BLOCK = 16,
    NEEDLE = 24,
    ASKED = 8,
    NEEDLES = 4,
    MAX_CONTEXT = 4096,
    MAX_PAGES = MAX_CONTEXT / BLOCK
};

static const char *const all_formats[] = {"f32",
                                          "q8_0",
                                          "fp8",
                                          "turboquant_k8v4",
                                          "nvfp4",
                                          "int4_per_token_head",
                                          "turboquant_4bit_nc",
                                          "turboquant_3bit_nc"};

struct rig {
    struct sl_ckpt *ckpt;
    struct sl_backend *be;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *pool;
    size_t pool_bytes, token_bytes;
    int32_t n_vocab;
};

struct job {
    const char *model, *text, *skip;
    int32_t context;
    size_t n_tokens;
    int32_t *tokens;
};

static int open_rig(struct rig *g, const struct job *j, const char *format, struct sl_error *err)
{
    struct sl_cpu_config cpu = {.n_threads = 1};
    struct sl_kv_layout kv;
    memset(g, 0, sizeof *g);
    int rc = sl_ckpt_open(j->model, &g->ckpt, err);
    if (rc == 0)
        rc = sl_model_open(g->ckpt, &g->model, err);
    if (rc == 0)
        rc = sl_cpu_create(&cpu, &g->be, err);
    if (rc == 0)
        rc = sl_model_load(g->model, g->be, NULL, NULL, err);
    if (rc == 0)
        rc = sl_model_kv_layout_but(g->model, g->be, format, j->skip, SL_DTYPE_BF16, BLOCK, &kv,
                                    err);
    if (rc != 0)
        return rc;
    g->token_bytes = sl_kv_block_bytes(&kv) / BLOCK;
    g->pool_bytes = MAX_PAGES * sl_kv_block_bytes(&kv);
    g->pool = g->be->vt->alloc(g->be, g->pool_bytes);
    if (g->pool == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %zu bytes of pages", g->pool_bytes);
    struct sl_run_config cfg = {.max_tokens = j->context, .max_logits = j->context, .kv = kv};
    sl_kv_pools(&kv, g->pool, MAX_PAGES, cfg.kv_pool);
    g->n_vocab = sl_model_facts(g->model)->n_vocab;
    return sl_run_create(g->model, &cfg, &g->run, err);
}

static void close_rig(struct rig *g)
{
    sl_run_destroy(g->run);
    if (g->pool != NULL)
        g->be->vt->free(g->be, g->pool, g->pool_bytes);
    if (g->model != NULL)
        sl_model_close(g->model);
    if (g->be != NULL)
        g->be->vt->destroy(g->be);
    if (g->ckpt != NULL)
        sl_ckpt_close(g->ckpt);
}

/* Logits of tokens [from, from + n), which follow those before. */
static const float *step(struct rig *g, const int32_t *tokens, int32_t from, int32_t n)
{
    static int32_t positions[MAX_CONTEXT], rows[MAX_CONTEXT], pages[SL_MAX_KV_GROUPS * MAX_PAGES];
    struct sl_span span = {.n = n, .pos = from};
    struct sl_batch b = {.n_tokens = n,
                         .n_spans = 1,
                         .n_logits = n,
                         .tokens = tokens + from,
                         .positions = positions,
                         .spans = &span,
                         .block_tables = pages,
                         .n_tables = SL_MAX_KV_GROUPS,
                         .table_stride = MAX_PAGES,
                         .logit_rows = rows};
    for (int32_t i = 0; i < SL_MAX_KV_GROUPS * MAX_PAGES; i++)
        pages[i] = i % MAX_PAGES;
    for (int32_t i = 0; i < n; i++) {
        positions[i] = from + i;
        rows[i] = i;
    }
    return sl_run_enqueue(g->run, &b);
}

static int32_t likeliest(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* Logits less the logarithm of the sum of their powers of e. */
static void normalise(const float *x, int32_t n, double *out)
{
    const double top = (double)x[likeliest(x, n)];
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    for (int32_t i = 0; i < n; i++)
        out[i] = (double)x[i] - top - log(sum);
}

/* ---------------------------------------------------------------- the text */

/* Contexts of the model's own: each token is drawn from what it predicts over BF16 pages. */
static int draw_text(const struct job *j, struct sl_error *err)
{
    struct rig g;
    struct sl_rng rng = {2026, 0};
    int rc = open_rig(&g, j, "bf16", err);
    double *p = rc == 0 ? sl_malloc((size_t)g.n_vocab * sizeof *p) : NULL;
    if (rc == 0 && p == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    for (size_t i = 0; i < j->n_tokens && rc == 0; i++) {
        const int32_t at = (int32_t)(i % (size_t)j->context);
        if (at == 0) {
            j->tokens[i] = 1;
            continue;
        }
        normalise(step(&g, j->tokens + i - at, at - 1, 1), g.n_vocab, p);
        double u = sl_rng_unit(sl_rng_next(&rng));
        int32_t id = 0;
        while (id < g.n_vocab - 1 && (u -= exp(p[id])) > 0)
            id++;
        j->tokens[i] = id;
    }
    sl_free(p);
    close_rig(&g);
    return rc;
}

static int read_text(struct job *j, struct sl_error *err)
{
    struct sl_tokenizer *t = NULL;
    struct sl_map text = {0};
    struct sl_ids ids = {0};
    j->tokens = sl_malloc(j->n_tokens * sizeof *j->tokens);
    if (j->tokens == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    if (j->text == NULL)
        return draw_text(j, err);
    int rc = sl_tokenizer_open(j->model, &t, err);
    if (rc == 0)
        rc = sl_map_open(&text, j->text, err);
    if (rc == 0) /* no token is of more bytes on average */
        rc = sl_tokenizer_encode_into(t, (const char *)text.data,
                                      SL_MIN(text.n_bytes, 16 * j->n_tokens), 0, &ids, err);
    j->n_tokens = SL_MIN(j->n_tokens, ids.n);
    if (rc == 0 && j->n_tokens < (size_t)j->context)
        rc = sl_fail(err, SL_EINVAL, "%s: only %zu tokens", j->text, j->n_tokens);
    if (rc == 0)
        memcpy(j->tokens, ids.data, j->n_tokens * sizeof *j->tokens);
    sl_free(ids.data);
    sl_map_close(&text);
    sl_tokenizer_destroy(t);
    return rc;
}

/* ---------------------------------------------------------------- the figures */

struct figures {
    double surprise;   /* sum of the text's logarithms of probabilities, less than 0 */
    double of_needles; /* the same of what follows the beginning of a needle */
    double *kld;       /* of each position */
    size_t n, n_same, n_asked;
};

/* One context: predictions over BF16 pages and over those of the format. */
static void compare(const float *plain, const float *x, const int32_t *tokens, int32_t n,
                    int32_t n_vocab, double *scratch, struct figures *f)
{
    double *p = scratch, *q = scratch + n_vocab;
    for (int32_t i = 0; i + 1 < n; i++, plain += n_vocab, x += n_vocab) {
        double kld = 0;
        normalise(plain, n_vocab, p);
        normalise(x, n_vocab, q);
        for (int32_t k = 0; k < n_vocab; k++)
            kld += exp(p[k]) * (p[k] - q[k]);
        f->surprise += q[tokens[i + 1]];
        f->n_same += likeliest(plain, n_vocab) == likeliest(x, n_vocab);
        f->kld[f->n++] = kld;
    }
}

/* The same context with a needle, whose beginning is the end of what is asked. */
static void find_needle(struct rig *g, const struct job *j, const int32_t *tokens, size_t which,
                        double *scratch, struct figures *f)
{
    static int32_t with[MAX_CONTEXT];
    struct sl_rng rng = {which, 7};
    const int32_t n = j->context - NEEDLE + ASKED, at = (int32_t)(which % 6 + 1) * n / 8;
    const int32_t *needle = j->tokens + sl_rng_below(&rng, j->n_tokens - NEEDLE);
    memcpy(with, tokens, (size_t)j->context * sizeof *with);
    memcpy(with + at, needle, NEEDLE * sizeof *with);
    memcpy(with + n - ASKED, needle, NEEDLE * sizeof *with);
    const float *x = step(g, with, 0, j->context) + (int64_t)(n - 1) * g->n_vocab;
    for (int32_t i = ASKED; i < NEEDLE; i++, x += g->n_vocab) {
        normalise(x, g->n_vocab, scratch);
        f->of_needles += scratch[needle[i]];
        f->n_asked++;
    }
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int survey(const struct job *j, const char *format, struct sl_error *err)
{
    struct rig plain = {0}, g = {0};
    struct figures f = {0};
    int rc = open_rig(&plain, j, "bf16", err);
    if (rc == 0)
        rc = open_rig(&g, j, format, err);
    const size_t v = (size_t)g.n_vocab, n = (size_t)j->context;
    float *kept = rc == 0 ? sl_malloc(n * v * sizeof *kept) : NULL;
    double *scratch = rc == 0 ? sl_malloc(2 * v * sizeof *scratch) : NULL;
    f.kld = rc == 0 ? sl_malloc(j->n_tokens * sizeof *f.kld) : NULL;
    if (rc == 0 && (kept == NULL || scratch == NULL || f.kld == NULL))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for logits");
    for (size_t c = 0; rc == 0 && (c + 1) * n <= j->n_tokens; c++) {
        const int32_t *tokens = j->tokens + c * n;
        memcpy(kept, step(&plain, tokens, 0, j->context), n * v * sizeof *kept);
        compare(kept, step(&g, tokens, 0, j->context), tokens, j->context, g.n_vocab, scratch, &f);
        for (size_t i = 0; i < NEEDLES; i++)
            find_needle(&g, j, tokens, c * NEEDLES + i, scratch, &f);
    }
    if (rc == 0) {
        double sum = 0;
        qsort(f.kld, f.n, sizeof *f.kld, by_size);
        for (size_t i = 0; i < f.n; i++)
            sum += f.kld[i];
        printf("%-20s %7zu %9.4f %10.6f %9.5f %7.2f %8.4f\n", format, g.token_bytes,
               exp(-f.surprise / (double)f.n), sum / (double)f.n, f.kld[f.n * 99 / 100],
               100.0 * (double)f.n_same / (double)f.n, exp(-f.of_needles / (double)f.n_asked));
    }
    sl_free(kept);
    sl_free(scratch);
    sl_free(f.kld);
    close_rig(&plain);
    close_rig(&g);
    return rc;
}

/* Flags before formats; the index of the first format, or 0. */
static int parse(int argc, char **argv, struct job *j)
{
    int i = 2;
    if (argc < 2 || argv[1][0] == '-')
        return 0;
    j->model = argv[1];
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        uint64_t n = 0;
        const bool number = sl_parse_u64(argv[i + 1], strlen(argv[i + 1]), &n);
        if (strcmp(argv[i], "--text") == 0)
            j->text = argv[i + 1];
        else if (strcmp(argv[i], "--skip") == 0)
            j->skip = argv[i + 1];
        else if (strcmp(argv[i], "--tokens") == 0 && number && n >= 64 && n <= 1u << 24)
            j->n_tokens = n;
        else if (strcmp(argv[i], "--context") == 0 && number && n >= 64 && n <= MAX_CONTEXT)
            j->context = (int32_t)n;
        else
            return 0;
    }
    return j->n_tokens >= (size_t)j->context ? i : 0;
}

int main(int argc, char **argv)
{
    struct job j = {.context = 512, .n_tokens = 8192};
    struct sl_error err = {0};
    const int first = parse(argc, argv, &j);
    if (first == 0) {
        fputs(help, stderr);
        return 2;
    }
    const int n = first < argc ? argc - first : (int)SL_COUNT(all_formats);
    int rc = read_text(&j, &err);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (rc == 0) {
        printf("%s, %zu contexts of %d tokens of %s\n", j.model, j.n_tokens / (size_t)j.context,
               j.context, j.text != NULL ? j.text : "its own");
        printf("%-20s %7s %9s %10s %9s %7s %8s\n", "pages", "bytes", "ppl", "KLD", "99 %", "top %",
               "needle");
        rc = survey(&j, "bf16", &err);
    }
    for (int i = 0; i < n && rc == 0; i++)
        rc = survey(&j, first < argc ? argv[first + i] : all_formats[i], &err);
    if (rc != 0)
        fprintf(stderr, "kv_quality: %s\n", err.msg);
    sl_free(j.tokens);
    return rc != 0;
}
