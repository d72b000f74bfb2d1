/* SPDX-License-Identifier: MIT
 * Weights of block formats into panels (i8.h). Runs once per matrix at load; plain loops of
 * constant length over a row's group, which compilers turn into vectors.
 */
#include "cpu/i8.h"

#include "base/check.h"
#include "quant/iq.h"
#include "quant/iq4.h"
#include "quant/q4_0.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

#include <math.h>

#define STRIP_COLS  64
#define STRIP_QUADS 16
#define RUNS        8 /* of 32 columns in a group */

static const struct {
    uint16_t head, strip; /* bytes */
} sizes[SL_I8_FORMS] = {
    [SL_I8_Q8_0] = {64, 1024},  [SL_I8_Q4_0] = {320, 512},  [SL_I8_Q4_K] = {256, 512},
    [SL_I8_Q5_K] = {256, 640},  [SL_I8_Q6_K] = {320, 768},  [SL_I8_Q5_0] = {320, 640},
    [SL_I8_Q4_1] = {640, 512},  [SL_I8_Q5_1] = {640, 640},  [SL_I8_Q2_K] = {320, 512},
    [SL_I8_TABLE] = {384, 512}, [SL_I8_MXFP4] = {128, 512},
};

/* Chosen with SmolLM2, which has about 0.9 outliers a group then and comes as near to float
 * activations as with a scale for each 32 columns (bench/results/quality.txt). */
const uint8_t sl_i8_most[SL_I8_LEVELS] = {2, 4, 8, 8, 8, 8};

enum sl_i8_form sl_i8_form_of(enum sl_dtype t)
{
    static const uint8_t forms[SL_DTYPE_COUNT] = {
        [SL_DTYPE_Q8_0] = SL_I8_Q8_0,     [SL_DTYPE_Q4_0] = SL_I8_Q4_0,
        [SL_DTYPE_Q4_K] = SL_I8_Q4_K,     [SL_DTYPE_Q5_K] = SL_I8_Q5_K,
        [SL_DTYPE_Q6_K] = SL_I8_Q6_K,     [SL_DTYPE_Q5_0] = SL_I8_Q5_0,
        [SL_DTYPE_Q4_1] = SL_I8_Q4_1,     [SL_DTYPE_Q5_1] = SL_I8_Q5_1,
        [SL_DTYPE_Q2_K] = SL_I8_Q2_K,     [SL_DTYPE_Q3_K] = SL_I8_TABLE,
        [SL_DTYPE_IQ4_NL] = SL_I8_TABLE,  [SL_DTYPE_IQ4_XS] = SL_I8_TABLE,
        [SL_DTYPE_MXFP4] = SL_I8_MXFP4,   [SL_DTYPE_TQ1_0] = SL_I8_TABLE,
        [SL_DTYPE_TQ2_0] = SL_I8_TABLE,   [SL_DTYPE_IQ2_XXS] = SL_I8_TABLE,
        [SL_DTYPE_IQ2_XS] = SL_I8_TABLE,  [SL_DTYPE_IQ2_S] = SL_I8_TABLE,
        [SL_DTYPE_IQ3_XXS] = SL_I8_TABLE, [SL_DTYPE_IQ3_S] = SL_I8_TABLE,
        [SL_DTYPE_IQ1_S] = SL_I8_TABLE,   [SL_DTYPE_IQ1_M] = SL_I8_TABLE,
    };
    return (unsigned)t < SL_DTYPE_COUNT ? (enum sl_i8_form)forms[t] : SL_I8_NONE;
}

size_t sl_i8_scratch_bytes(void)
{
    return sizeof(struct sl_i8_scratch);
}

struct sl_i8_layout sl_i8_layout(enum sl_dtype t, int64_t n_rows, int64_t n_cols)
{
    const enum sl_i8_form f = sl_i8_form_of(t);
    struct sl_i8_layout l = {.head_bytes = sizes[f].head, .strip_bytes = sizes[f].strip};
    l.n_panels = SL_CEIL_DIV(n_rows, SL_I8_PANEL);
    l.n_groups = SL_CEIL_DIV(n_cols, SL_I8_GROUP);
    l.group_bytes = l.head_bytes + SL_I8_GROUP / STRIP_COLS * l.strip_bytes;
    int64_t rest = n_cols - (l.n_groups - 1) * SL_I8_GROUP;
    l.last_strips = (int)SL_CEIL_DIV(rest, STRIP_COLS);
    l.panel_bytes = (size_t)(l.n_groups - 1) * l.group_bytes + l.head_bytes +
                    (size_t)l.last_strips * l.strip_bytes;
    return l;
}

static uint32_t i8_pack_load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

static void store_f32(uint8_t *p, float x)
{
    memcpy(p, &x, sizeof x);
}

/* ---------------------------------------------------------------- codes of a row to a strip */

/* Each takes the strip's 64 codes of row r; `at` is the row's dword in the strip's first vector. */
static void put_bytes(const uint8_t *code, uint8_t *at)
{
    for (int q = 0; q < STRIP_QUADS; q++)
        store_u32(at + 64 * q, i8_pack_load_u32(code + 4 * q));
}

/* `more` bits of a code beyond four go to the planes between the vectors, as i8.h says. */
static void put_split(const uint8_t *code, int more, uint8_t *at)
{
    const uint32_t ones = 0x01010101u * ((1u << more) - 1);
    const int per_plane = more == 0 ? 8 : 4 / more;
    for (int first = 0; first < 8; first += per_plane) {
        uint32_t plane = 0;
        uint8_t *to = at + (more == 0 ? 0 : 64);
        for (int j = 0; j < per_plane; j++) {
            const uint32_t lo = i8_pack_load_u32(code + 4 * (first + j));
            const uint32_t hi = i8_pack_load_u32(code + 4 * (first + j) + 32);
            store_u32(to + 64 * j, (lo & 0x0F0F0F0Fu) | (hi >> more & 0x0F0F0F0Fu) << 4);
            plane |= ((hi & ones) | (lo >> 4 & ones) << more) << 2 * more * j;
        }
        if (more > 0)
            store_u32(at, plane);
        at = to + 64 * per_plane;
    }
}

static void put_nibbles(const uint8_t *code, uint8_t *at)
{
    put_split(code, 0, at);
}

static void put_fifths(const uint8_t *code, uint8_t *at)
{
    put_split(code, 1, at);
}

static void put_sixths(const uint8_t *code, uint8_t *at)
{
    put_split(code, 2, at);
}

/* ---------------------------------------------------------------- a row's group */

struct row {
    enum sl_dtype t;
    int n_runs, r;
    const struct table *table; /* of formats that have one */
};

/* Each decodes the n_runs * 32 columns of a row at p to code[256] (zero behind the end), and writes
 * the head's part of row r. */
static void row_q8_0(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    const struct sl_q8_0_block *b = (const void *)p;
    const int n_runs = row->n_runs, r = row->r;
    float scale[RUNS], amax = 0;
    bool finite = true;
    for (int i = 0; i < n_runs; i++) {
        int top = 0;
        for (int j = 0; j < SL_Q8_0_ELEMS; j++) {
            int c = b[i].q[j];
            top = SL_MAX(top, c < 0 ? -c : c);
        }
        scale[i] = sl_q8_0_scale(&b[i]);
        finite = finite && isfinite(scale[i]);
        amax = SL_MAX(amax, fabsf(scale[i]) * (float)top);
    }
    float d = amax / 127.0f;
    store_f32(head + 4 * r, finite ? d : NAN);
    memset(code, 128, SL_I8_GROUP);
    for (int i = 0; finite && d > 0 && i < n_runs; i++) {
        for (int j = 0; j < SL_Q8_0_ELEMS; j++) {
            /* adding 1.5 * 2^23 rounds to nearest even and leaves the number in the low bits */
            float x = scale[i] * (float)b[i].q[j] / d + 0x1.8p23f;
            code[32 * i + j] = (uint8_t)((sl_f32_bits(x) + 128) & 255);
        }
    }
}

static void row_q4_0(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    const struct sl_q4_0_block *b = (const void *)p;
    const int n_runs = row->n_runs, r = row->r;
    float scale[RUNS] = {0}, amax = 0;
    bool finite = true;
    for (int i = 0; i < n_runs; i++) {
        scale[i] = sl_q4_0_scale(&b[i]);
        finite = finite && isfinite(scale[i]);
        amax = SL_MAX(amax, fabsf(scale[i]));
        for (int j = 0; j < 16; j++)
            code[32 * i + j] = b[i].q[j] & 15;
        for (int j = 0; j < 16; j++)
            code[32 * i + 16 + j] = b[i].q[j] >> 4;
    }
    memset(code + 32 * n_runs, 0, (size_t)(SL_I8_GROUP - 32 * n_runs));
    float d = amax / 2047.0f;
    store_f32(head + 4 * r, finite ? d : NAN);
    for (int i = 0; i < RUNS; i++) {
        int s = finite && d > 0 ? (int)rintf(scale[i] / d) : 0;
        sl_store_u16(head + 64 + 64 * (i / 2) + 4 * r + 2 * (i % 2), (uint16_t)s);
    }
}

/* 8 scales and 8 minima of a row to its three dwords, as i8.h says. */
static void i8_pack_put_scales(const uint8_t *packed, int r, uint8_t *at)
{
    for (int half = 0; half < 2; half++) { /* even sub-blocks, odd ones */
        uint8_t s[4], m[4];
        for (int i = 0; i < 4; i++)
            sl_qk_scale_min(packed, 2 * i + half, &s[i], &m[i]);
        uint8_t *to = at + 4 * r + 2 * half;
        sl_store_u16(to, (uint16_t)(s[0] | s[1] << 6 | (m[2] & 15) << 12));
        sl_store_u16(to + 64, (uint16_t)(s[2] | s[3] << 6 | (m[3] & 15) << 12));
        sl_store_u16(to + 128, (uint16_t)(m[0] | m[1] << 6 | m[2] >> 4 << 12 | m[3] >> 4 << 14));
    }
}

static void nibbles_qk(const uint8_t *q, uint8_t *code)
{
    for (int c = 0; c < 4; c++, q += 32, code += 64) {
        for (int l = 0; l < 32; l++)
            code[l] = q[l] & 15;
        for (int l = 0; l < 32; l++)
            code[32 + l] = q[l] >> 4;
    }
}

static void row_q4_k(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    const struct sl_q4_k_block *b = (const void *)p;
    const int r = row->r;
    memcpy(head + 2 * r, b->d, 2);
    memcpy(head + 32 + 2 * r, b->dmin, 2);
    i8_pack_put_scales(b->scales, r, head + 64);
    nibbles_qk(b->q, code);
}

static void row_q5_k(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    const struct sl_q5_k_block *b = (const void *)p;
    const int r = row->r;
    memcpy(head + 2 * r, b->d, 2);
    memcpy(head + 32 + 2 * r, b->dmin, 2);
    i8_pack_put_scales(b->scales, r, head + 64);
    nibbles_qk(b->q, code);
    for (int j = 0; j < RUNS; j++)
        for (int l = 0; l < 32; l++)
            code[32 * j + l] = (uint8_t)(code[32 * j + l] | (b->qh[l] >> j & 1) << 4);
}

/* Place of a number of sub-block j of 16 columns: in the order 0, 2, 1, 3. */
static uint8_t *i8_pack_sixteenth(uint8_t *head, int r, int j)
{
    return head + 64 + 64 * (j / 4) + 4 * r + (j % 2 * 2 + j / 2 % 2);
}

static void row_q6_k(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    const struct sl_q6_k_block *b = (const void *)p;
    const int r = row->r;
    store_f32(head + 4 * r, sl_f16_to_f32(sl_load_u16(b->d)));
    for (int j = 0; j < 16; j++)
        *i8_pack_sixteenth(head, r, j) = (uint8_t)b->scales[j];
    for (int k = 0; k < 8; k++) { /* runs of 32 columns */
        const uint8_t *lo = b->ql + 64 * (k / 4) + 32 * (k % 2), *hi = b->qh + 32 * (k / 4);
        int lo_shift = k % 4 / 2 * 4, hi_shift = k % 4 * 2;
        for (int l = 0; l < 32; l++)
            code[32 * k + l] = (uint8_t)((lo[l] >> lo_shift & 15) | (hi[l] >> hi_shift & 3) << 4);
    }
}

/* ---------------------------------------------------------------- formats read in eights */

#define EIGHTS (SL_I8_GROUP / 8)

/* The numbers a format's codes stand for, and the code of each number + 128. */
struct table {
    int8_t value[16];
    uint8_t code[256];
};

static void table_make(enum sl_dtype t, struct table *out)
{
    static const int8_t iq4[16] = {SL_IQ4_VALUES}, mxfp4[16] = {SL_MXFP4_VALUES};
    static const int8_t q3_k[16] = {-4, -3, -2, -1, 0, 1, 2, 3}, tq[16] = {-1, 0, 1, 2};
    static const int8_t iq1[16] = {-9, -7, -1, 1, 7, 9}, iq2[16] = {-43, -25, -8, 8, 25, 43};
    static const uint8_t iq3_xxs[8] = {SL_IQ3_XXS_LEVELS};
    const int8_t *values = t == SL_DTYPE_Q3_K                           ? q3_k
                           : t == SL_DTYPE_MXFP4                        ? mxfp4
                           : t == SL_DTYPE_TQ1_0 || t == SL_DTYPE_TQ2_0 ? tq
                           : t == SL_DTYPE_IQ1_S || t == SL_DTYPE_IQ1_M ? iq1
                           : t == SL_DTYPE_IQ2_XXS || t == SL_DTYPE_IQ2_XS || t == SL_DTYPE_IQ2_S
                               ? iq2
                               : iq4;
    const bool iq3 = t == SL_DTYPE_IQ3_XXS || t == SL_DTYPE_IQ3_S;
    for (int c = 15; c >= 0; c--) {
        const int level = t == SL_DTYPE_IQ3_S ? 2 * (c % 8) + 1 : iq3_xxs[c % 8];
        out->value[c] = (int8_t)(!iq3 ? values[c] : c < 8 ? level : -level);
        out->code[out->value[c] + 128] = (uint8_t)c;
    }
}

static void load_eights(const struct row *row, const uint8_t *p, struct sl_eight e[EIGHTS])
{
    const struct sl_dtype_info *info = sl_dtype_info(row->t);
    const int per_block = (int)info->block_elems / 8;
    for (int i = 0; i < 4 * row->n_runs; i++)
        info->eight(p + (size_t)(i / per_block) * info->block_bytes, i % per_block, &e[i]);
}

/* Floats of the runs as whole numbers -most..most times one float; false where one is not finite.
 */
static bool to_whole(const float *v, int n, int most, float *d, int *out)
{
    float amax = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && isfinite(v[i]);
        amax = SL_MAX(amax, fabsf(v[i]));
    }
    *d = finite ? amax / (float)most : NAN;
    for (int i = 0; i < n; i++)
        out[i] = *d > 0 ? (int)rintf(v[i] / *d) : 0;
    return finite;
}

static void put_s16(uint8_t *at, int r, int run, int v)
{
    sl_store_u16(at + 64 * (run / 2) + 4 * r + 2 * (run % 2), (uint16_t)v);
}

/* Q5_0, Q4_1, Q5_1: a float for each run, or two. */
static void row_runs(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    const enum sl_i8_form form = sl_i8_form_of(row->t);
    const int most = form == SL_I8_Q5_0 ? 1023 : form == SL_I8_Q4_1 ? 1092 : 528;
    const int zero = form == SL_I8_Q5_0 ? 16 : 0;
    struct sl_eight e[EIGHTS];
    float d[RUNS] = {0}, dmin[RUNS] = {0}, one, one_min;
    int scale[RUNS], min[RUNS];
    load_eights(row, p, e);
    for (int i = 0; i < row->n_runs; i++) {
        d[i] = e[4 * i].d;
        dmin[i] = e[4 * i].dmin;
    }
    memset(code, 0, SL_I8_GROUP);
    for (int i = 0; i < 32 * row->n_runs; i++)
        code[i] = (uint8_t)(e[i / 8].q[i % 8] + zero);
    to_whole(d, row->n_runs, most, &one, scale);
    store_f32(head + 4 * row->r, one);
    for (int i = 0; i < row->n_runs; i++)
        put_s16(head + (zero != 0 ? 64 : 128), row->r, i, scale[i]);
    if (zero != 0)
        return;
    to_whole(dmin, row->n_runs, 32767, &one_min, min);
    store_f32(head + 64 + 4 * row->r, one_min);
    for (int i = 0; i < row->n_runs; i++)
        put_s16(head + 384, row->r, i, min[i]);
}

static void row_q2_k(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    struct sl_eight e[EIGHTS];
    load_eights(row, p, e);
    sl_store_u16(head + 2 * row->r, sl_f32_to_f16(e[0].d));
    sl_store_u16(head + 32 + 2 * row->r, sl_f32_to_f16(e[0].dmin));
    for (int j = 0; j < 16; j++)
        *i8_pack_sixteenth(head, row->r, j) = (uint8_t)(e[2 * j].scale | e[2 * j].min << 4);
    for (int i = 0; i < SL_I8_GROUP; i++)
        code[i] = (uint8_t)e[i / 8].q[i % 8];
}

static void row_table(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    struct sl_eight e[EIGHTS];
    int scale[16] = {0};
    float d;
    load_eights(row, p, e);
    if (sl_dtype_info(row->t)->block_elems == SL_I8_GROUP) {
        d = e[0].d;
        for (int j = 0; j < 16; j++)
            scale[j] = e[2 * j].scale;
    } else {
        float of_run[RUNS] = {0};
        for (int i = 0; i < row->n_runs; i++)
            of_run[i] = e[4 * i].d;
        to_whole(of_run, row->n_runs, 127, &d, scale);
        for (int j = 2 * row->n_runs - 1; j >= 0; j--)
            scale[j] = scale[j / 2];
    }
    store_f32(head + 4 * row->r, d);
    for (int j = 0; j < 16; j++)
        *i8_pack_sixteenth(head, row->r, j) = (uint8_t)scale[j];
    for (int j = 0; row->r == 0 && j < 64; j++)
        head[320 + j] = (uint8_t)(row->table->value[j % 16] + 128);
    memset(code, 0, SL_I8_GROUP);
    for (int i = 0; i < 32 * row->n_runs; i++)
        code[i] = row->table->code[e[i / 8].q[i % 8] + 128];
}

/* The scales are powers of two, and stay so: 64, 32, ... 1 or 0. */
static void row_mxfp4(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code)
{
    struct sl_eight e[EIGHTS];
    float of_run[RUNS] = {0}, d;
    int scale[RUNS] = {0};
    uint32_t shifts = 0;
    load_eights(row, p, e);
    for (int i = 0; i < row->n_runs; i++)
        of_run[i] = e[4 * i].d;
    to_whole(of_run, row->n_runs, SL_I8_MXFP4_ONE, &d, scale);
    for (int i = 0; i < RUNS; i++) {
        uint32_t shift = 0;
        while (SL_I8_MXFP4_ONE >> shift > scale[i])
            shift++;
        SL_ASSERT(SL_I8_MXFP4_ONE >> shift == scale[i]);
        shifts |= shift << 4 * i;
    }
    store_f32(head + 4 * row->r, d);
    store_u32(head + 64 + 4 * row->r, shifts);
    memset(code, 0, SL_I8_GROUP);
    for (int i = 0; i < 32 * row->n_runs; i++)
        code[i] = row->table->code[e[i / 8].q[i % 8] + 128];
}

/* ---------------------------------------------------------------- */

void sl_i8_pack(enum sl_dtype t, int64_t n_rows, int64_t n_cols, const uint8_t *rows, int64_t p,
                uint8_t *panel)
{
    static const struct {
        void (*row)(const struct row *row, const uint8_t *p, uint8_t *head, uint8_t *code);
        void (*put)(const uint8_t *code, uint8_t *at);
    } by_form[SL_I8_FORMS] = {
        [SL_I8_Q8_0] = {row_q8_0, put_bytes},     [SL_I8_Q4_0] = {row_q4_0, put_nibbles},
        [SL_I8_Q4_K] = {row_q4_k, put_nibbles},   [SL_I8_Q5_K] = {row_q5_k, put_fifths},
        [SL_I8_Q6_K] = {row_q6_k, put_sixths},    [SL_I8_Q5_0] = {row_runs, put_fifths},
        [SL_I8_Q4_1] = {row_runs, put_nibbles},   [SL_I8_Q5_1] = {row_runs, put_fifths},
        [SL_I8_Q2_K] = {row_q2_k, put_nibbles},   [SL_I8_TABLE] = {row_table, put_nibbles},
        [SL_I8_MXFP4] = {row_mxfp4, put_nibbles},
    };
    const enum sl_i8_form form = sl_i8_form_of(t);
    struct table table = {.code = {0}};
    struct sl_i8_layout l = sl_i8_layout(t, n_rows, n_cols);
    const struct sl_dtype_info *info = sl_dtype_info(t);
    size_t row_bytes = (size_t)n_cols / info->block_elems * info->block_bytes;
    size_t file_group = SL_I8_GROUP / info->block_elems * info->block_bytes;
    int64_t n_r = SL_MIN(n_rows - p * SL_I8_PANEL, SL_I8_PANEL);
    uint8_t code[SL_I8_GROUP];
    table_make(t, &table);
    memset(panel, 0, l.panel_bytes);
    for (int64_t g = 0; g < l.n_groups; g++, panel += l.group_bytes) {
        int n_runs = (int)SL_MIN((n_cols - g * SL_I8_GROUP) / 32, RUNS);
        int n_strips = g + 1 < l.n_groups ? SL_I8_GROUP / STRIP_COLS : l.last_strips;
        for (int r = 0; r < (int)n_r; r++) {
            const uint8_t *src = rows + (size_t)(p * SL_I8_PANEL + r) * row_bytes;
            struct row row = {.t = t, .n_runs = n_runs, .r = r, .table = &table};
            by_form[form].row(&row, src + (size_t)g * file_group, panel, code);
            for (int s = 0; s < n_strips; s++)
                by_form[form].put(code + STRIP_COLS * s,
                                  panel + l.head_bytes + (size_t)s * l.strip_bytes + 4 * r);
        }
    }
}
