/* SPDX-License-Identifier: MIT
 * Weights of block formats into panels (i8.h). Runs once per matrix at load; plain loops of
 * constant length over a row's group, which compilers turn into vectors.
 */
#include "cpu/i8.h"

#include "base/check.h"
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
} sizes[SL_DTYPE_COUNT] = {
    [SL_DTYPE_Q8_0] = {64, 1024}, [SL_DTYPE_Q4_0] = {320, 512}, [SL_DTYPE_Q4_K] = {256, 512},
    [SL_DTYPE_Q5_K] = {256, 640}, [SL_DTYPE_Q6_K] = {320, 768},
};

bool sl_i8_has_format(enum sl_dtype t)
{
    return (unsigned)t < SL_DTYPE_COUNT && sizes[t].head != 0;
}

size_t sl_i8_scratch_bytes(void)
{
    return sizeof(struct sl_i8_scratch);
}

struct sl_i8_layout sl_i8_layout(enum sl_dtype t, int64_t n_rows, int64_t n_cols)
{
    struct sl_i8_layout l = {.head_bytes = sizes[t].head, .strip_bytes = sizes[t].strip};
    l.n_panels = SL_CEIL_DIV(n_rows, SL_I8_PANEL);
    l.n_groups = SL_CEIL_DIV(n_cols, SL_I8_GROUP);
    l.group_bytes = l.head_bytes + SL_I8_GROUP / STRIP_COLS * l.strip_bytes;
    int64_t rest = n_cols - (l.n_groups - 1) * SL_I8_GROUP;
    l.last_strips = (int)SL_CEIL_DIV(rest, STRIP_COLS);
    l.panel_bytes = (size_t)(l.n_groups - 1) * l.group_bytes + l.head_bytes +
                    (size_t)l.last_strips * l.strip_bytes;
    return l;
}

static uint32_t load_u32(const void *p)
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
        store_u32(at + 64 * q, load_u32(code + 4 * q));
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
            const uint32_t lo = load_u32(code + 4 * (first + j));
            const uint32_t hi = load_u32(code + 4 * (first + j) + 32);
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

/* Each decodes the n_runs * 32 columns of a row at p to code[256] (zero behind the end), and writes
 * the head's part of row r. */
static void row_q8_0(const uint8_t *p, int n_runs, int r, uint8_t *head, uint8_t *code)
{
    const struct sl_q8_0_block *b = (const void *)p;
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

static void row_q4_0(const uint8_t *p, int n_runs, int r, uint8_t *head, uint8_t *code)
{
    const struct sl_q4_0_block *b = (const void *)p;
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
static void put_scales(const uint8_t *packed, int r, uint8_t *at)
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

static void row_q4_k(const uint8_t *p, int n_runs, int r, uint8_t *head, uint8_t *code)
{
    const struct sl_q4_k_block *b = (const void *)p;
    (void)n_runs;
    memcpy(head + 2 * r, b->d, 2);
    memcpy(head + 32 + 2 * r, b->dmin, 2);
    put_scales(b->scales, r, head + 64);
    nibbles_qk(b->q, code);
}

static void row_q5_k(const uint8_t *p, int n_runs, int r, uint8_t *head, uint8_t *code)
{
    const struct sl_q5_k_block *b = (const void *)p;
    (void)n_runs;
    memcpy(head + 2 * r, b->d, 2);
    memcpy(head + 32 + 2 * r, b->dmin, 2);
    put_scales(b->scales, r, head + 64);
    nibbles_qk(b->q, code);
    for (int j = 0; j < RUNS; j++)
        for (int l = 0; l < 32; l++)
            code[32 * j + l] = (uint8_t)(code[32 * j + l] | (b->qh[l] >> j & 1) << 4);
}

static void row_q6_k(const uint8_t *p, int n_runs, int r, uint8_t *head, uint8_t *code)
{
    static const int order[4] = {0, 2, 1, 3};
    const struct sl_q6_k_block *b = (const void *)p;
    (void)n_runs;
    store_f32(head + 4 * r, sl_f16_to_f32(sl_load_u16(b->d)));
    for (int j = 0; j < 16; j++)
        head[64 + 64 * (j / 4) + 4 * r + j % 4] = (uint8_t)b->scales[j / 4 * 4 + order[j % 4]];
    for (int k = 0; k < 8; k++) { /* runs of 32 columns */
        const uint8_t *lo = b->ql + 64 * (k / 4) + 32 * (k % 2), *hi = b->qh + 32 * (k / 4);
        int lo_shift = k % 4 / 2 * 4, hi_shift = k % 4 * 2;
        for (int l = 0; l < 32; l++)
            code[32 * k + l] = (uint8_t)((lo[l] >> lo_shift & 15) | (hi[l] >> hi_shift & 3) << 4);
    }
}

/* ---------------------------------------------------------------- */

void sl_i8_pack(enum sl_dtype t, int64_t n_rows, int64_t n_cols, const uint8_t *rows, int64_t p,
                uint8_t *panel)
{
    static const struct {
        void (*row)(const uint8_t *p, int n_runs, int r, uint8_t *head, uint8_t *code);
        void (*put)(const uint8_t *code, uint8_t *at);
    } by_format[SL_DTYPE_COUNT] = {
        [SL_DTYPE_Q8_0] = {row_q8_0, put_bytes},   [SL_DTYPE_Q4_0] = {row_q4_0, put_nibbles},
        [SL_DTYPE_Q4_K] = {row_q4_k, put_nibbles}, [SL_DTYPE_Q5_K] = {row_q5_k, put_fifths},
        [SL_DTYPE_Q6_K] = {row_q6_k, put_sixths},
    };
    struct sl_i8_layout l = sl_i8_layout(t, n_rows, n_cols);
    const struct sl_dtype_info *info = sl_dtype_info(t);
    size_t row_bytes = (size_t)n_cols / info->block_elems * info->block_bytes;
    size_t file_group = SL_I8_GROUP / info->block_elems * info->block_bytes;
    int64_t n_r = SL_MIN(n_rows - p * SL_I8_PANEL, SL_I8_PANEL);
    uint8_t code[SL_I8_GROUP];
    memset(panel, 0, l.panel_bytes);
    for (int64_t g = 0; g < l.n_groups; g++, panel += l.group_bytes) {
        int n_runs = (int)SL_MIN((n_cols - g * SL_I8_GROUP) / 32, RUNS);
        int n_strips = g + 1 < l.n_groups ? SL_I8_GROUP / STRIP_COLS : l.last_strips;
        for (int r = 0; r < (int)n_r; r++) {
            const uint8_t *src = rows + (size_t)(p * SL_I8_PANEL + r) * row_bytes;
            by_format[t].row(src + (size_t)g * file_group, n_runs, r, panel, code);
            for (int s = 0; s < n_strips; s++)
                by_format[t].put(code + STRIP_COLS * s,
                                 panel + l.head_bytes + (size_t)s * l.strip_bytes + 4 * r);
        }
    }
}
