/* SPDX-License-Identifier: MIT
 * round_survey - what each rounding to 16 bits of the GPU costs a model's logits. The model runs on
 * the CPU in float32; then again with the roundings of one kind made by hand, and with all but one
 * kind. Both read the tokens that float32 chose.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "models/internal.h"
#include "quant/float.h"
#include "quant/fp8_e4m3.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: round_survey MODEL [N [FIRST]]\n"
    "\n"
    "Chooses N tokens (default 200) greedily in float32 after token FIRST (default 1) of the\n"
    "checkpoint MODEL, then prints, for kinds of rounding to BF16, the square error of the logits\n"
    "over their square, mean and worst over the positions, and at how many positions another "
    "token\n"
    "is the likeliest.\n"
    "\n"
    "kinds: w weights, n inputs of q, k, v, gate and up, h input of the head, a attention's "
    "output,\n"
    "f the gated activation, q queries, p keys and values (pages), 6 these and the queries in "
    "F16;\n"
    "8 weights of layers in E4M3 (scales of 128 x 128), x what they multiply in E4M3 (scales of "
    "128\n"
    "columns);\n"
    "-k KINDS: only these, together, such as wnhafq6. Then also: mean difference of the given "
    "tokens'\n"
    "log probabilities, and their mean in float32 and with the roundings.\n";

enum { MAX_N = 512, BLOCK = 16, MAX_PAGES = MAX_N / BLOCK + 2, MAX_COPIES = 4096 };

enum kind {
    W = 1,
    N = 2,
    H = 4,
    A = 8,
    F = 16,
    Q = 32,
    P = 64,
    ALL = 127,
    P16 = 128,
    E = 256,
    X = 512
};

static const char letters[] = "wnhafqp68x";

/* A backend whose functions are its own, followed by roundings. */
static const struct sl_backend_vt *inner;
static struct sl_backend_vt outer;
static unsigned kinds;
static const float *final_norm;
static float *copies[MAX_COPIES]; /* rounded weights */
static int n_copies;
static int64_t n_vocab; /* rows of the output matrix, which stays as it is */

static void round_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = sl_bf16_to_f32(sl_f32_to_bf16(x[i]));
}

/* A block of FP8: code times scale, as a float. */
static void round_fp8(float *x, int64_t n_rows, int64_t n_cols, int64_t ld)
{
    float top = 0;
    for (int64_t i = 0; i < n_rows * n_cols; i++)
        top = fmaxf(top, fabsf(x[i / n_cols * ld + i % n_cols]));
    for (int64_t i = 0; i < n_rows * n_cols && top > 0; i++) {
        float *v = &x[i / n_cols * ld + i % n_cols];
        *v = sl_fp8_e4m3_to_f32(sl_f32_to_fp8_e4m3(*v * (448.0f / top))) * (top / 448.0f);
    }
}

static void round_blocks(float *x, int64_t n_rows, int64_t n_cols, int64_t rows)
{
    for (int64_t r = 0; r < n_rows; r += rows)
        for (int64_t c = 0; c < n_cols; c += 128)
            round_fp8(x + r * n_cols + c, SL_MIN(rows, n_rows - r), SL_MIN(128, n_cols - c),
                      n_cols);
}

static void norm_out(const float *w, float *out, int64_t n, int64_t h)
{
    if (kinds & (w == final_norm ? H : N))
        round_all(out, n * h);
    if (kinds & X && w != final_norm)
        round_blocks(out, n, h, 1);
}

static void op_rmsnorm(struct sl_backend *be, const struct sl_op_rmsnorm *a)
{
    inner->rmsnorm(be, a);
    norm_out(a->w, a->out, a->n, a->h);
}

static void op_add_rmsnorm(struct sl_backend *be, const struct sl_op_add_rmsnorm *a)
{
    inner->add_rmsnorm(be, a);
    norm_out(a->w, a->out, a->n, a->h);
}

static void op_gated(struct sl_backend *be, const struct sl_op_linear_gated_act *a)
{
    inner->linear_gated_act(be, a);
    if (kinds & F)
        round_all(a->out, a->n * a->gate->n_rows);
    if (kinds & X)
        round_blocks(a->out, a->n, a->gate->n_rows, 1);
}

static void op_store(struct sl_backend *be, const struct sl_op_qk_norm_rope_kv_store *a)
{
    inner->qk_norm_rope_kv_store(be, a);
    const int64_t n = a->batch->n_tokens * a->ld_q;
    if (kinds & Q && !(kinds & P16))
        round_all(a->q, n);
    for (int64_t i = 0; kinds & Q && kinds & P16 && i < n; i++)
        a->q[i] = sl_f16_to_f32(sl_f32_to_f16(a->q[i]));
}

static void op_attention(struct sl_backend *be, const struct sl_op_attention *a)
{
    inner->attention(be, a);
    if (kinds & A)
        round_all(a->out, a->batch->n_tokens * a->ld_out);
    if (kinds & X)
        round_blocks(a->out, a->batch->n_tokens, a->ld_out, 1);
}

static int op_weight(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                     int64_t n_rows, int64_t n_cols, const void *data,
                     const struct sl_scales *scales, struct sl_weight *out, struct sl_error *err)
{
    const bool fp8 = (kinds & E) != 0 && n_rows != n_vocab;
    if (use == SL_USE_LINEAR && (fp8 || (dtype == SL_DTYPE_F32 && (kinds & W) != 0))) {
        float *copy = sl_malloc((size_t)(n_rows * n_cols) * sizeof *copy);
        if (copy == NULL || n_copies == MAX_COPIES)
            return sl_fail(err, SL_ENOMEM, "out of memory for rounded weights");
        sl_dtype_info(dtype)->to_f32(data, copy, n_rows * n_cols);
        if (fp8)
            round_blocks(copy, n_rows, n_cols, 128);
        else
            round_all(copy, n_rows * n_cols);
        copies[n_copies++] = copy;
        data = copy;
        dtype = SL_DTYPE_F32;
    }
    return inner->weight_create(be, use, dtype, n_rows, n_cols, data, scales, out, err);
}

struct rig {
    struct sl_ckpt *ckpt;
    struct sl_backend *be;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *pool;
    size_t pool_bytes;
    int32_t n_vocab;
};

static int open_rig(struct rig *g, const char *path, struct sl_error *err)
{
    struct sl_cpu_config cpu = {.n_threads = 1, .exact = true};
    struct sl_kv_layout kv;
    memset(g, 0, sizeof *g);
    int rc = sl_ckpt_open(path, &g->ckpt, err);
    if (rc == 0)
        rc = sl_model_open(g->ckpt, &g->model, err);
    if (rc == 0)
        rc = sl_cpu_create(&cpu, &g->be, err);
    if (rc != 0)
        return rc;
    inner = g->be->vt;
    outer = *inner;
    outer.rmsnorm = op_rmsnorm;
    outer.add_rmsnorm = op_add_rmsnorm;
    outer.linear_gated_act = op_gated;
    outer.qk_norm_rope_kv_store = op_store;
    outer.attention = op_attention;
    outer.weight_create = op_weight;
    g->be->vt = &outer;
    n_vocab = sl_model_facts(g->model)->n_vocab;
    rc = sl_model_load(g->model, g->be, NULL, NULL, err);
    if (rc == 0)
        rc = sl_model_kv_layout(g->model, g->be,
                                kinds & P     ? "bf16"
                                : kinds & P16 ? "f16"
                                              : "f32",
                                g->be->vt->kv_dtype, BLOCK, &kv, err);
    if (rc != 0)
        return rc;
    final_norm = sl_param(g->model, 0, SL_SLOT_FINAL_NORM)->vec;
    g->pool_bytes = MAX_PAGES * sl_kv_block_bytes(&kv);
    g->pool = inner->alloc(g->be, g->pool_bytes);
    if (g->pool == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %zu bytes of pages", g->pool_bytes);
    struct sl_run_config rc_cfg = {.max_tokens = MAX_N, .max_logits = MAX_N, .kv = kv};
    sl_kv_pools(&kv, g->pool, MAX_PAGES, rc_cfg.kv_pool);
    g->n_vocab = sl_model_facts(g->model)->n_vocab;
    return sl_run_create(g->model, &rc_cfg, &g->run, err);
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
    while (n_copies > 0)
        sl_free(copies[--n_copies]);
}

/* Logits of tokens [from, from + n), which follow those before. */
static const float *step(struct rig *g, const int32_t *tokens, int32_t from, int32_t n)
{
    static int32_t positions[MAX_N], rows[MAX_N], pages[MAX_PAGES];
    struct sl_span span = {.n = n, .pos = from};
    struct sl_batch b = {.n_tokens = n,
                         .n_spans = 1,
                         .n_logits = n,
                         .tokens = tokens + from,
                         .positions = positions,
                         .spans = &span,
                         .block_tables = pages,
                         .logit_rows = rows};
    for (int32_t i = 0; i < MAX_PAGES; i++)
        pages[i] = i;
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

struct reference {
    int32_t tokens[MAX_N + 1], n, n_given, n_vocab;
    float *logits; /* [n, n_vocab] */
};

static int make_reference(const char *path, struct reference *r, struct sl_error *err)
{
    struct rig g;
    kinds = 0;
    int rc = open_rig(&g, path, err);
    if (rc == 0) {
        size_t v = (size_t)g.n_vocab;
        r->n_vocab = g.n_vocab;
        r->logits = sl_malloc((size_t)r->n * v * sizeof *r->logits);
        if (r->logits == NULL)
            rc = sl_fail(err, SL_ENOMEM, "out of memory for logits");
        for (int32_t i = 0; i < r->n_given && rc == 0; i++)
            if (r->tokens[i] >= g.n_vocab)
                rc = sl_fail(err, SL_EINVAL, "token %d is none of %d", r->tokens[i], g.n_vocab);
        for (int32_t i = 0; i < r->n && rc == 0; i++) {
            const float *row = step(&g, r->tokens, i, 1);
            memcpy(r->logits + (size_t)i * v, row, v * sizeof *row);
            if (i + 1 >= r->n_given)
                r->tokens[i + 1] = likeliest(row, g.n_vocab);
        }
    }
    close_rig(&g);
    return rc;
}

/* Adds up the square error and the square of what it should be. */
static void squares(const float *x, const float *want, int32_t n, double *wrong, double *all)
{
    for (int32_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)want[i];
        *wrong += d * d;
        *all += (double)want[i] * (double)want[i];
    }
}

static double log_prob(const float *x, int32_t n, int32_t id)
{
    double sum = 0, top = (double)x[likeliest(x, n)];
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return (double)x[id] - top - log(sum);
}

/* Of the given tokens but the first. */
static void compare_text(const struct reference *r, const float *x)
{
    double off = 0, was = 0, is = 0;
    int32_t v = r->n_vocab, n = SL_MIN(r->n_given, r->n) - 1;
    for (int32_t i = 0; i < n; i++) {
        double a = log_prob(r->logits + (int64_t)i * v, v, r->tokens[i + 1]);
        double b = log_prob(x + (int64_t)i * v, v, r->tokens[i + 1]);
        off += fabs(a - b);
        was += a;
        is += b;
    }
    if (n > 0)
        printf("text of %d: log probabilities off by %.5f, mean %.5f, in float32 %.5f\n", n,
               off / n, is / n, was / n);
}

static void compare(const struct reference *r, const float *x)
{
    double sum = 0, worst = 0, wrong = 0, all = 0;
    int32_t v = r->n_vocab, n_others = 0;
    char others[512] = "";
    for (int32_t i = 0; i < r->n; i++, x += v) {
        const float *want = r->logits + (int64_t)i * v;
        double e = 0, square = 0;
        squares(x, want, v, &e, &square);
        wrong += e;
        all += square;
        e = square > 0 ? e / square : 0;
        sum += e;
        worst = fmax(worst, e);
        int32_t id = likeliest(x, v), best = likeliest(want, v);
        size_t at = strlen(others);
        if (id != best)
            snprintf(others + at, sizeof others - at, " %d (%.4f)", i,
                     (double)want[best] - (double)want[id]);
        n_others += id != best;
    }
    printf("all %.2e  mean %.2e  worst %.2e  other token at %d of %d%s%s\n", wrong / all,
           sum / (double)r->n, worst, n_others, r->n, n_others > 0 ? ":" : "", others);
}

static int survey(const char *path, const struct reference *r, const char *what, unsigned which,
                  struct sl_error *err)
{
    struct rig g;
    char name[16] = "";
    kinds = which;
    int rc = open_rig(&g, path, err);
    for (size_t i = 0, at = 0; i < sizeof letters - 1; i++)
        if (which >> i & 1) {
            name[at++] = letters[i];
            name[at] = '\0';
        }
    if (rc == 0) {
        printf("%-12s %-8s ", what, name);
        const float *x = step(&g, r->tokens, 0, r->n);
        compare(r, x);
        compare_text(r, x);
    }
    close_rig(&g);
    return rc;
}

static int survey_all(const char *path, const struct reference *r, struct sl_error *err)
{
    int rc = survey(path, r, "none", 0, err);
    if (rc == 0)
        rc = survey(path, r, "all", ALL, err);
    if (rc == 0)
        rc = survey(path, r, "F16 pages", (ALL & ~P) | P16, err);
    for (unsigned i = 1; i <= ALL && rc == 0; i *= 2)
        rc = survey(path, r, "only", i, err);
    for (unsigned i = 1; i <= ALL && rc == 0; i *= 2)
        rc = survey(path, r, "all without", ALL & ~i, err);
    return rc;
}

static bool parse(int argc, char **argv, struct reference *r)
{
    uint64_t n = 200, id;
    if (argc > 2 && (!sl_parse_u64(argv[2], strlen(argv[2]), &n) || n < 1 || n > MAX_N))
        return false;
    r->n = (int32_t)n;
    for (int i = 3; i < argc; i++) {
        if (r->n_given == r->n || !sl_parse_u64(argv[i], strlen(argv[i]), &id) || id > INT32_MAX)
            return false;
        r->tokens[r->n_given++] = (int32_t)id;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct sl_error err = {0};
    struct reference r = {.tokens = {1}};
    unsigned own = 0;
    if (argc > 3 && strcmp(argv[1], "-k") == 0) {
        for (unsigned i = 0; i < sizeof letters - 1; i++)
            if (strchr(argv[2], letters[i]) != NULL)
                own |= 1u << i;
        argv += 2;
        argc -= 2;
    }
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(help, argc == 2 ? stdout : stderr);
        return argc == 2 ? 0 : 2;
    }
    if (!parse(argc, argv, &r)) {
        fprintf(stderr, "round_survey: N is 1 to %d, each ID a token, at most N of them\n", MAX_N);
        return 2;
    }
    int rc = make_reference(argv[1], &r, &err);
    if (rc == 0)
        rc = own != 0 ? survey(argv[1], &r, "chosen", own, &err) : survey_all(argv[1], &r, &err);
    if (rc != 0)
        fprintf(stderr, "round_survey: %s\n", err.msg);
    sl_free(r.logits);
    return rc == 0 ? 0 : 1;
}
