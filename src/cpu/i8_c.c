/* SPDX-License-Identifier: MIT
 * Whole-number products in plain C: the reference of i8.h's layouts and of its arithmetic.
 */
#include "cpu/i8.h"

#include "base/check.h"
#include "quant/float.h"

#include <math.h>

#define ROWS SL_I8_PANEL

/* A group of a panel, unpacked. Formats without sub-blocks have scale 1. */
struct group {
    uint8_t code[ROWS][SL_I8_GROUP];
    int32_t scale[ROWS][SL_I8_GROUP / 16]; /* of each 16 columns */
    int32_t min[ROWS][SL_I8_GROUP / 16];
    float d[ROWS], dmin[ROWS];
    int zero; /* the code that stands for 0 */
    bool has_min;
};

/* Magnitudes compare as their bits do, NaN above all. */
static uint32_t magnitude(float x)
{
    return sl_f32_bits(x) & 0x7FFFFFFFu;
}

static float largest_of(const float *x, int n)
{
    uint32_t top = 0;
    for (int i = 0; i < n; i++)
        top = SL_MAX(top, magnitude(x[i]));
    return sl_f32_of_bits(top);
}

static int n_above(const float *x, int n, float bound)
{
    int n_found = 0;
    for (int i = 0; i < n; i++)
        n_found += fabsf(x[i]) > bound;
    return n_found;
}

/* What outliers are larger than; amax if there are none. */
static float bound_of(const float *x, int n, float amax)
{
    for (int k = SL_I8_LEVELS; k > 0; k--)
        if (n_above(x, n, ldexpf(amax, -k)) <= sl_i8_most[k - 1])
            return ldexpf(amax, -k);
    return amax;
}

static void i8_c_quantize_group(const float *x, int n, struct sl_i8_x *out)
{
    float rest[SL_I8_GROUP], amax = largest_of(x, n);
    *out = (struct sl_i8_x){.d = 0};
    if (!isfinite(amax)) {
        out->d = NAN;
        return;
    }
    if (amax < SL_I8_TINY)
        return;
    const float bound = bound_of(x, n, amax);
    for (int i = 0; i < n; i++) {
        rest[i] = fabsf(x[i]) > bound ? 0.0f : x[i];
        if (fabsf(x[i]) > bound) {
            out->outliers.col[out->outliers.n] = (uint8_t)i;
            out->outliers.x[out->outliers.n++] = x[i];
        }
    }
    amax = largest_of(rest, n);
    if (amax < SL_I8_TINY)
        return;
    float inv = 127.0f / amax;
    out->d = amax / 127.0f;
    for (int i = 0; i < n; i++)
        out->q[i] = (int8_t)rintf(rest[i] * inv);
    for (int i = 0; i < SL_I8_GROUP; i++) {
        out->sum16[i / 16] = (int16_t)(out->sum16[i / 16] + out->q[i]);
        out->sum32[i / 32] = (int16_t)(out->sum32[i / 32] + out->q[i]);
        out->sum128[i / 128] = (int16_t)(out->sum128[i / 128] + out->q[i]);
    }
}

static void i8_c_quantize(const float *x, int64_t k, struct sl_i8_x *out)
{
    for (int64_t i = 0; i < k; i += SL_I8_GROUP)
        i8_c_quantize_group(x + i, (int)SL_MIN(k - i, SL_I8_GROUP), out++);
}

static void i8_c_place(const float *x, int64_t k, int t, int n_tok, bool tiles,
                       struct sl_i8_x *block)
{
    (void)tiles;
    for (int64_t i = 0; i < k; i += SL_I8_GROUP)
        i8_c_quantize_group(x + i, (int)SL_MIN(k - i, SL_I8_GROUP),
                            sl_i8_row(block, n_tok, i / SL_I8_GROUP, t));
}

static uint16_t half_of(const uint8_t *packed, int dword, int r, int half)
{
    return sl_load_u16(packed + 64 * dword + 4 * r + 2 * half);
}

static void unpack_qk_head(const uint8_t *head, int r, struct group *u)
{
    u->has_min = true;
    u->d[r] = sl_f16_to_f32(sl_load_u16(head + 2 * r));
    u->dmin[r] = sl_f16_to_f32(sl_load_u16(head + 32 + 2 * r));
    for (int half = 0; half < 2; half++) {
        int a = half_of(head + 64, 0, r, half), b = half_of(head + 64, 1, r, half);
        int c = half_of(head + 64, 2, r, half);
        int scale[4] = {a & 63, a >> 6 & 63, b & 63, b >> 6 & 63};
        int min[4] = {c & 63, c >> 6 & 63, a >> 12 | (c >> 8 & 48), b >> 12 | (c >> 10 & 48)};
        for (int p = 0; p < 4; p++) {
            int s = 2 * p + half;
            u->scale[r][2 * s] = u->scale[r][2 * s + 1] = scale[p];
            u->min[r][2 * s] = u->min[r][2 * s + 1] = min[p];
        }
    }
}

/* Q5_0 and Q4_0, Q4_1 and Q5_1: scales of 32 columns as words, in the latter with minima. */
static void unpack_words(const uint8_t *head, int r, struct group *u)
{
    const uint8_t *scale = head + (u->has_min ? 128 : 64);
    for (int s = 0; s < SL_I8_GROUP / 16; s++) {
        u->scale[r][s] = (int16_t)half_of(scale, s / 4, r, s / 2 % 2);
        if (u->has_min)
            u->min[r][s] = (int16_t)half_of(head + 384, s / 4, r, s / 2 % 2);
    }
    if (u->has_min)
        memcpy(&u->dmin[r], head + 64 + 4 * r, sizeof u->dmin[r]);
}

static void unpack_head(enum sl_i8_form form, const uint8_t *head, int r, struct group *u)
{
    static const int zero[SL_I8_FORMS] = {
        [SL_I8_Q8_0] = 128, [SL_I8_Q4_0] = 8,    [SL_I8_Q6_K] = 32,
        [SL_I8_Q5_0] = 16,  [SL_I8_TABLE] = 128, [SL_I8_MXFP4] = 128};
    static const int place[4] = {0, 2, 1, 3}; /* of a sub-block's scale in Q6_K */
    u->zero = zero[form];
    if (form == SL_I8_Q4_K || form == SL_I8_Q5_K) {
        unpack_qk_head(head, r, u);
        return;
    }
    memcpy(&u->d[r], head + 4 * r, sizeof u->d[r]);
    if (form == SL_I8_Q2_K) {
        u->d[r] = sl_f16_to_f32(sl_load_u16(head + 2 * r));
        u->dmin[r] = sl_f16_to_f32(sl_load_u16(head + 32 + 2 * r));
    }
    u->has_min = form == SL_I8_Q4_1 || form == SL_I8_Q5_1 || form == SL_I8_Q2_K;
    if (form == SL_I8_Q4_0 || form == SL_I8_Q5_0 || form == SL_I8_Q4_1 || form == SL_I8_Q5_1) {
        unpack_words(head, r, u);
        return;
    }
    for (int s = 0; form == SL_I8_MXFP4 && s < SL_I8_GROUP / 16; s++)
        u->scale[r][s] = SL_I8_MXFP4_ONE >> (half_of(head + 64, 0, r, s / 8) >> s / 2 % 4 * 4 & 15);
    for (int s = 0; form != SL_I8_MXFP4 && s < SL_I8_GROUP / 16; s++) {
        const uint8_t v = form != SL_I8_Q8_0 ? head[64 + 64 * (s / 4) + 4 * r + place[s % 4]] : 1;
        u->scale[r][s] = form == SL_I8_Q2_K ? v & 15 : (int8_t)v;
        u->min[r][s] = form == SL_I8_Q2_K ? v >> 4 : 0;
    }
}

/* Code of column c of the strip, row r. */
static int code_of(enum sl_i8_form form, const uint8_t *strip, int r, int c)
{
    const int q = c / 4, i = q % 8, at = 4 * r + c % 4;
    const bool fifth = form == SL_I8_Q5_K || form == SL_I8_Q5_0 || form == SL_I8_Q5_1;
    const int more = fifth ? 1 : form == SL_I8_Q6_K ? 2 : 0;
    const int per_plane = more == 0 ? 8 : 4 / more, ones = (1 << more) - 1;
    const uint8_t *plane = strip + 64 * (i / per_plane) * (per_plane + (more > 0));
    if (form == SL_I8_Q8_0)
        return strip[64 * q + at];
    const int four = plane[64 * (i % per_plane + (more > 0)) + at] >> q / 8 * 4 & 15;
    const int both = plane[at] >> 2 * more * (i % per_plane);
    return q < 8 ? four | (both >> more & ones) << 4 : four << more | (both & ones);
}

static void i8_c_unpack(enum sl_i8_form form, const struct sl_i8_layout *l, const uint8_t *at,
                        int n_cols, struct group *u)
{
    static const uint8_t mxfp4[16] = {SL_I8_MXFP4_TABLE};
    *u = (struct group){.zero = 0};
    for (int r = 0; r < ROWS; r++) {
        unpack_head(form, at, r, u);
        for (int c = 0; c < n_cols; c++) {
            const uint8_t *strip = at + l->head_bytes + (size_t)(c / 64) * l->strip_bytes;
            const int code = code_of(form, strip, r, c % 64);
            u->code[r][c] = form == SL_I8_TABLE   ? at[320 + code]
                            : form == SL_I8_MXFP4 ? mxfp4[code]
                                                  : (uint8_t)code;
        }
    }
}

/* The weight of column c as a float. */
static float weight_of(const struct group *u, int r, int c)
{
    const float w = (float)(u->scale[r][c / 16] * (u->code[r][c] - u->zero)) * u->d[r];
    return u->has_min ? fmaf((float)u->min[r][c / 16], -u->dmin[r], w) : w;
}

static float row_dot(const struct group *u, int r, const struct sl_i8_x *x, int n_cols, float acc)
{
    int32_t sum = 0, mins = 0;
    for (int s = 0; s < n_cols / 16; s++) {
        int32_t part = 0;
        for (int c = 16 * s; c < 16 * s + 16; c++)
            part += (u->code[r][c] - u->zero) * x->q[c];
        sum += u->scale[r][s] * part;
        mins += u->min[r][s] * x->sum16[s];
    }
    acc = fmaf((float)sum, u->d[r] * x->d, acc);
    if (u->has_min)
        acc = fmaf((float)mins, -(u->dmin[r] * x->d), acc);
    for (int i = 0; i < x->outliers.n; i++)
        acc = fmaf(weight_of(u, r, x->outliers.col[i]), x->outliers.x[i], acc);
    return acc;
}

static void i8_c_dot(const struct sl_i8_part *a, int64_t p, int n_panels, float *acc,
                     struct sl_i8_scratch *s)
{
    const struct sl_weight *w = a->w;
    struct sl_i8_layout l = sl_i8_layout(w->dtype, w->n_rows, w->n_cols);
    struct group *u = (struct group *)(void *)s->bytes;
    _Static_assert(sizeof *u <= SL_I8_SCRATCH_BYTES, "fits");
    for (int64_t i = 0; i < n_panels * a->n_groups; i++) {
        int64_t panel = i / a->n_groups, g = i % a->n_groups;
        const uint8_t *at = (const uint8_t *)w->data + (size_t)(p + panel) * l.panel_bytes;
        int n_cols = a->g0 + g + 1 < l.n_groups ? SL_I8_GROUP : 64 * l.last_strips;
        i8_c_unpack(sl_i8_form_of(w->dtype), &l, at + (size_t)(a->g0 + g) * l.group_bytes, n_cols,
                    u);
        for (int t = 0; t < a->n_tok; t++) {
            const struct sl_i8_x *x = a->x + g * a->n_tok + t;
            float *o = acc + (t * SL_I8_PANELS + panel) * ROWS;
            for (int r = 0; r < ROWS; r++)
                o[r] = row_dot(u, r, x, n_cols, a->g0 + g == 0 ? 0.0f : o[r]);
        }
    }
}

void sl_i8_kernels_c(struct sl_i8_kernels *k)
{
    *k = (struct sl_i8_kernels){
        .name = "i8-c", .quantize = i8_c_quantize, .place = i8_c_place, .dot = i8_c_dot};
}
