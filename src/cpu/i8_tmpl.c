/* SPDX-License-Identifier: MIT
 * Whole-number products (i8.h) in terms of the sixteen 32-bit lanes of vec_i8_avx2.h and
 * vec_i8_avx512.h, included by i8_avx2.c, i8_avx512.c and i8_avx512vnni.c. A lane is a row of a
 * panel.
 *
 * Few tokens (stream): codes go from the packed panel through registers into sums, four tokens at a
 * time. The panel is one long stream, which processors fetch ahead by themselves; to the L1 cache,
 * prefetch instructions cost a quarter here. But codes that are unpacked wait in the scheduler for
 * their line, a handful of instructions each, so that few lines are asked for by the program
 * itself: a stream starts late in each page. Those formats ask for lines to the L2 cache. Many
 * tokens: the codes of up to four panels are laid out as plain quads in the scratch, which stays in
 * L1, and tiles of panels x tokens pass over them.
 */
#ifdef SL_DEBUG
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum i8_kind {
    KIND_Q8_0,
    KIND_Q4_0,
    KIND_QK,
    KIND_Q6_K,
    KIND_Q4_1,
    KIND_Q2_K,
    KIND_TABLE,
    KIND_MXFP4
};

struct i8_format { /* constant, so that everything about it is inlined */
    enum i8_kind kind;
    int head, strip; /* bytes */
    int more;        /* bits of a code beyond four, in planes ahead of the vectors */
    int sub_quads;   /* of a sub-block */
    int n_exact;     /* quads whose products, two codes at a time, fit 16 bits as a sum */
};

static const struct i8_format i8_q8_0 = {KIND_Q8_0, 64, 1024, 0, 64, 1};
static const struct i8_format i8_q4_0 = {KIND_Q4_0, 320, 512, 0, 8, 8};
static const struct i8_format i8_q4_k = {KIND_QK, 256, 512, 0, 8, 8};
static const struct i8_format i8_q5_k = {KIND_QK, 256, 640, 1, 8, 4};
static const struct i8_format i8_q6_k = {KIND_Q6_K, 320, 768, 2, 4, 2};
static const struct i8_format i8_q5_0 = {KIND_Q4_0, 320, 640, 1, 8, 4};
static const struct i8_format i8_q4_1 = {KIND_Q4_1, 640, 512, 0, 8, 8};
static const struct i8_format i8_q5_1 = {KIND_Q4_1, 640, 640, 1, 8, 4};
static const struct i8_format i8_q2_k = {KIND_Q2_K, 320, 512, 0, 4, 4};
static const struct i8_format i8_table = {KIND_TABLE, 384, 512, 0, 4, 4}; /* sums of 32 bits */
static const struct i8_format i8_mxfp4 = {KIND_MXFP4, 128, 512, 0, 8, 8}; /* likewise */

#define PASS       4  /* tokens that share a pass over a packed group */
#define FEW        12 /* up to so many, a panel is read from end to end */
#define MAX_PAIRS  8
#define STEP(f)    (I8_VNNI ? (f).sub_quads : (f).n_exact) /* quads between two vi_scaled */
#define SIXTEEN(f) ((f).sub_quads == 4)                    /* columns of a sub-block */
#define LOOKS(f)   ((f).kind == KIND_TABLE || (f).kind == KIND_MXFP4) /* codes up in a table */
#define N_PAIRS(f) (SIXTEEN(f) ? 8 : 4)

/* The whole numbers of a group's head, as the products want them. */
struct i8_head {
    v16i scale[16];       /* of each sub-block, vi_scale_even or _odd */
    v16i pair[MAX_PAIRS]; /* minima, or scale * zero, of neighbouring sub-blocks */
    v16i table;
};

/* ---------------------------------------------------------------- activations */

#include "cpu/i8_group_tmpl.c"

static void quantize_group(const float *x, int n, struct sl_i8_x *out)
{
    struct group_x g;
    group_begin(&g, x, n);
    if (g.inv == 0) {
        *out = (struct sl_i8_x){.d = g.d, .outliers = g.outliers};
        return;
    }
    out->d = g.d;
    out->outliers = g.outliers;
    const v16 inv = v_set1(g.inv);
    for (int i = 0; i < SL_I8_GROUP / 16; i++) {
        v16i q = vi_round(v_mul(v_load(g.x + 16 * i), inv));
        vi_store_s8(out->q + 16 * i, q);
        out->sum16[i] = (int16_t)vi_sum(q);
    }
    for (int i = 0; i < SL_I8_GROUP / 32; i++)
        out->sum32[i] = (int16_t)(out->sum16[2 * i] + out->sum16[2 * i + 1]);
    for (int i = 0; i < 2; i++)
        out->sum128[i] = (int16_t)(out->sum32[4 * i] + out->sum32[4 * i + 1] +
                                   out->sum32[4 * i + 2] + out->sum32[4 * i + 3]);
}

static void i8_quantize(const float *x, int64_t k, struct sl_i8_x *out)
{
    for (int64_t i = 0; i < k; i += SL_I8_GROUP)
        quantize_group(x + i, (int)SL_MIN(k - i, SL_I8_GROUP), out++);
}

static void i8_place(const float *x, int64_t k, int t, int n_tok, bool as_tiles,
                     struct sl_i8_x *block)
{
    (void)as_tiles;
    for (int64_t i = 0; i < k; i += SL_I8_GROUP)
        quantize_group(x + i, (int)SL_MIN(k - i, SL_I8_GROUP),
                       sl_i8_row(block, n_tok, i / SL_I8_GROUP, t));
}

/* ---------------------------------------------------------------- heads and codes */

INLINE void set_scales(struct i8_head *h, int pair, v16i v)
{
    h->scale[2 * pair] = vi_scale_even(v);
    h->scale[2 * pair + 1] = vi_scale_odd(v);
}

INLINE void head_q4_0(const struct i8_format f, const uint8_t *p, struct i8_head *h)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        v16i v = vi_loadu(p + 64 + 64 * i);
        set_scales(h, i, v);
        h->pair[i] = vi_sll16(v, 3 + f.more); /* zero is 8, or 16 */
    }
}

INLINE void head_q4_1(const uint8_t *p, struct i8_head *h)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        set_scales(h, i, vi_loadu(p + 128 + 64 * i));
        h->pair[i] = vi_loadu(p + 384 + 64 * i);
    }
}

INLINE void head_q2_k(const uint8_t *p, struct i8_head *h)
{
    const v16i four = vi_set1(0x000F000F);
    UNROLL
    for (int i = 0; i < 4; i++) {
        v16i v = vi_loadu(p + 64 + 64 * i);
        set_scales(h, 2 * i, vi_and(v, four));
        set_scales(h, 2 * i + 1, vi_and(vi_srl16(v, 8), four));
        h->pair[2 * i] = vi_and(vi_srl16(v, 4), four);
        h->pair[2 * i + 1] = vi_srl16(v, 12);
    }
}

/* Scales of 32 bits, as the sums are. */
INLINE void head_table(const uint8_t *p, struct i8_head *h)
{
    h->table = vi_loadu(p + 320);
    UNROLL
    for (int i = 0; i < 4; i++) {
        v16i v = vi_loadu(p + 64 + 64 * i);
        const v16i word[2] = {vi_sra16(vi_sll16(v, 8), 8), vi_sra16(v, 8)};
        UNROLL
        for (int k = 0; k < 2; k++) {
            h->scale[4 * i + 2 * k] = vi_sra(vi_sll(word[k], 16), 16);
            h->scale[4 * i + 2 * k + 1] = vi_sra(word[k], 16);
            h->pair[2 * i + k] = vi_sll16(word[k], 7);
        }
    }
}

INLINE void head_mxfp4(const uint8_t *p, struct i8_head *h)
{
    static const uint8_t table[16] = {SL_I8_MXFP4_TABLE};
    static const uint8_t scales[16] = {64, 32, 16, 8, 4, 2, 1, 0};
    const v16i four = vi_set1(0x0F0F0F0F), byte = vi_set1(0xFF), v = vi_loadu(p + 64);
    const v16i scale = vi_four(scales);
    /* the sub-blocks 0, 2, 4, 6 as bytes, and 1, 3, 5, 7 */
    v16i even = vi_lookup(scale, vi_and(v, four));
    v16i odd = vi_lookup(scale, vi_and(vi_srl16(v, 4), four));
    h->table = vi_four(table);
    UNROLL
    for (int i = 0; i < 4; i++) {
        h->scale[2 * i] = vi_and(even, byte);
        h->scale[2 * i + 1] = vi_and(odd, byte);
        even = vi_srl(even, 8);
        odd = vi_srl(odd, 8);
        h->pair[i] = vi_or(vi_sll(h->scale[2 * i], 7), vi_sll(h->scale[2 * i + 1], 23));
    }
}

INLINE void head_qk(const uint8_t *p, struct i8_head *h)
{
    const v16i six = vi_set1(0x003F003F), top = vi_set1(0x00300030);
    v16i a = vi_loadu(p + 64), b = vi_loadu(p + 128), c = vi_loadu(p + 192);
    set_scales(h, 0, vi_and(a, six));
    set_scales(h, 1, vi_and(vi_srl16(a, 6), six));
    set_scales(h, 2, vi_and(b, six));
    set_scales(h, 3, vi_and(vi_srl16(b, 6), six));
    h->pair[0] = vi_and(c, six);
    h->pair[1] = vi_and(vi_srl16(c, 6), six);
    h->pair[2] = vi_merge(vi_srl16(c, 8), top, vi_srl16(a, 12));
    h->pair[3] = vi_merge(vi_srl16(c, 10), top, vi_srl16(b, 12));
}

INLINE void head_q6_k(const uint8_t *p, struct i8_head *h)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        v16i v = vi_loadu(p + 64 + 64 * i);
        v16i first = vi_sra16(vi_sll16(v, 8), 8), second = vi_sra16(v, 8);
        set_scales(h, 2 * i, first);
        set_scales(h, 2 * i + 1, second);
        h->pair[2 * i] = vi_sll16(first, 5);
        h->pair[2 * i + 1] = vi_sll16(second, 5);
    }
}

INLINE void head_of(const struct i8_format f, const uint8_t *p, struct i8_head *h)
{
    if (f.kind == KIND_Q4_0)
        head_q4_0(f, p, h);
    else if (f.kind == KIND_Q4_1)
        head_q4_1(p, h);
    else if (f.kind == KIND_Q2_K)
        head_q2_k(p, h);
    else if (f.kind == KIND_TABLE)
        head_table(p, h);
    else if (f.kind == KIND_MXFP4)
        head_mxfp4(p, h);
    else if (f.kind == KIND_QK)
        head_qk(p, h);
    else
        head_q6_k(p, h);
}

INLINE v16i shifted(v16i v, int left) /* the bits that cross bytes are masked off afterwards */
{
    return left >= 0 ? vi_sll16(v, left) : vi_srl16(v, -left);
}

/* Where vector i of a strip is, and the plane with what is missing of it. */
#define PER_PLANE(f) (4 / ((f).more + !(f).more))

INLINE const uint8_t *vector_at(const struct i8_format f, const uint8_t *strip, int i)
{
    return strip + 64 * (f.more > 0 ? i + i / PER_PLANE(f) + 1 : i);
}

INLINE const uint8_t *plane_at(const struct i8_format f, const uint8_t *strip, int i)
{
    return strip + 64 * (i / PER_PLANE(f)) * (PER_PLANE(f) + 1);
}

/* A plane shifted left by `left` from where the bits of quad i + 8 begin at bit 0 and those of quad
 * i at bit f.more. */
INLINE v16i plane_bits(const struct i8_format f, v16i plane, int i, int left)
{
    return shifted(plane, left - 2 * f.more * (i % PER_PLANE(f)));
}

/* Quads i and i + 8 of a strip. */
INLINE void two_quads(const struct i8_format f, const struct i8_head *h, const uint8_t *strip,
                      int i, v16i *lo, v16i *hi)
{
    const int top = 0x01010101 * (0xF << f.more & 0xFF), ones = 0x01010101 * ((1 << f.more) - 1);
    v16i v = vi_loadu(vector_at(f, strip, i));
    *lo = vi_and(v, vi_set1(0x0F0F0F0F));
    *hi = vi_and(vi_srl16(v, 4 - f.more), vi_set1(top));
    if (f.more > 0) {
        v16i plane = vi_loadu(plane_at(f, strip, i));
        *lo = vi_merge(plane_bits(f, plane, i, 4 - f.more), vi_set1(ones << 4), *lo);
        *hi = vi_merge(plane_bits(f, plane, i, 0), vi_set1(ones), *hi);
    }
    if (LOOKS(f)) {
        *lo = vi_lookup(h->table, *lo);
        *hi = vi_lookup(h->table, *hi);
    }
}

/* The same with the second one 2^(4 - f.more) times as large, which is where its bits lie. It fits
 * a byte, and all products but those that make sums of 16 bits may have it. A strip is read in
 * order and each line once: what asks memory ahead, in the processor, wants it so. */
INLINE void two_quads_up(const struct i8_format f, const uint8_t *strip, int i, size_t ahead,
                         v16i *plane, v16i *lo, v16i *hi)
{
    const v16i low = vi_set1(0x0F0F0F0F), high = vi_set1((int32_t)0xF0F0F0F0u);
    const int ones = 0x01010101 * ((1 << 2 * f.more) - 1);
    if (f.more > 0 && i % PER_PLANE(f) == 0) {
        *plane = vi_load_once(plane_at(f, strip, i));
        __builtin_prefetch(plane_at(f, strip, i) + ahead, 0, 2);
    }
    v16i v = vi_load_once(vector_at(f, strip, i));
    __builtin_prefetch(vector_at(f, strip, i) + ahead, 0, 2);
    if (f.more == 0) {
        *lo = vi_and(v, low);
        *hi = vi_and(v, high);
        return;
    }
    v16i more = vi_and(plane_bits(f, *plane, i, 4 - f.more), vi_set1(ones << (4 - f.more)));
    *lo = vi_select(low, v, more);
    *hi = vi_select(low, more, v);
}

/* ---------------------------------------------------------------- sums to floats */

/* What the zero points or the minima add up to with one token. */
INLINE v16i correction(const struct i8_format f, const struct i8_head *h, const struct sl_i8_x *x)
{
    const int16_t *sums = SIXTEEN(f) ? x->sum16 : x->sum32;
    const int n = N_PAIRS(f);
    v16i z = vi_set1(0);
    UNROLL
    for (int i = 0; i < n; i++)
        z = vi_pairs(z, h->pair[i], vi_dword(sums + 2 * i));
    return z;
}

/* The float chain of i8.h, one group of it. */
INLINE void finish(const struct i8_format f, const uint8_t *head, const struct i8_head *h, v16i sum,
                   const struct sl_i8_x *x, float *acc, bool first)
{
    v16 a = first ? v_set1(0.0f) : v_load(acc), xd = v_set1(x->d);
    if (f.kind == KIND_Q4_1) {
        const float *d = (const float *)(const void *)head;
        a = v_fma(v_from_int(sum), v_mul(v_load(d), xd), a);
        a = v_fnma(v_from_int(correction(f, h, x)), v_mul(v_load(d + 16), xd), a);
    } else if (f.kind == KIND_QK || f.kind == KIND_Q2_K) {
        a = v_fma(v_from_int(sum), v_mul(v_load_f16(head), xd), a);
        a = v_fnma(v_from_int(correction(f, h, x)), v_mul(v_load_f16(head + 32), xd), a);
    } else {
        if (LOOKS(f))
            sum = I8_VNNI ? vi_sub(sum, correction(f, h, x)) : sum;
        else if (f.kind == KIND_Q8_0)
            sum = I8_VNNI ? vi_sub(sum, vi_set1(128 * (x->sum128[0] + x->sum128[1]))) : sum;
        else
            sum = vi_sub(sum, correction(f, h, x));
        a = v_fma(v_from_int(sum), v_mul(v_load((const float *)(const void *)head), xd), a);
    }
    v_store(acc, a);
}

/* ---------------------------------------------------------------- products of a sub-block */

/* Sums of words without VNNI, of 32 bits with it and of looked up numbers, which are bytes. */
INLINE v16i quad_of(const struct i8_format f, v16i sub, v16i codes, v16i x)
{
    return LOOKS(f) ? vi_quad8(sub, codes, x) : vi_quad(sub, codes, x);
}

INLINE v16i quad_at(const struct i8_format f, v16i sub, v16i codes, const int8_t *x)
{
    if (I8_VNNI || !LOOKS(f))
        return vi_quad_at(sub, codes, x);
    return vi_quad8(sub, codes, vi_dword(x));
}

INLINE v16i scaled(const struct i8_format f, v16i sum, v16i sub, v16i scale)
{
    return LOOKS(f) ? vi_add(sum, vi_mullo(sub, scale)) : vi_scaled(sum, sub, scale);
}

/* ---------------------------------------------------------------- outliers */

#include "cpu/i8_column_tmpl.c"

/* ---------------------------------------------------------------- few tokens */

INLINE void stream_bytes(const int n_t, const uint8_t *group, int n_strips, const struct sl_i8_x *x,
                         float *acc, bool first)
{
    v16i sum[CHAINS][PASS];
    UNROLL
    for (int c = 0; c < CHAINS; c++)
        UNROLL
    for (int t = 0; t < n_t; t++)
        sum[c][t] = vi_set1(0);
    for (int q = 0; q < 16 * n_strips; q += 4) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const uint8_t *at = group + i8_q8_0.head + 64 * (q + i);
            v16i w = vi_loadu(at);
            UNROLL
            for (int t = 0; t < n_t; t++)
                sum[i % CHAINS][t] =
                    vi_quad8(sum[i % CHAINS][t], w, vi_dword(x[t].q + 4 * (q + i)));
        }
    }
    UNROLL
    for (int t = 0; t < n_t; t++) {
        UNROLL
        for (int c = 1; c < CHAINS; c++)
            sum[0][t] = vi_add(sum[0][t], sum[c][t]);
        finish(i8_q8_0, group, NULL, sum[0][t], &x[t], acc + t * SL_I8_PANELS * 16, first);
    }
}

INLINE void stream_nibbles(const struct i8_format f, const int n_t, const uint8_t *group,
                           int n_strips, size_t ahead, const struct sl_i8_x *x, float *acc,
                           bool first)
{
    struct i8_head h;
    v16i sum[PASS], sum_up[PASS]; /* of quads 0..7 and 8..15 of the strips */
    v16i plane = vi_set1(0);
    /* Sums 2^(4 - f.more) times as large stay below 2^29 in the K formats; the scales of the
     * others have more bits. */
    const bool late = I8_VNNI && (f.kind == KIND_QK || f.kind == KIND_Q6_K || f.kind == KIND_Q2_K);
    const bool up = I8_VNNI && !LOOKS(f); /* a looked up number has no room for it */
    head_of(f, group, &h);
    UNROLL
    for (int t = 0; t < n_t; t++)
        sum[t] = sum_up[t] = vi_set1(0);
    for (int s = 0; s < n_strips; s++) {
        const uint8_t *strip = group + f.head + s * f.strip;
        UNROLL
        for (int i0 = 0; i0 < 8; i0 += STEP(f)) {
            v16i lo[PASS], hi[PASS];
            int sub = s * (16 / f.sub_quads) + i0 / f.sub_quads;
            UNROLL
            for (int t = 0; t < n_t; t++)
                lo[t] = hi[t] = vi_set1(0);
            UNROLL
            for (int i = i0; i < i0 + STEP(f); i++) {
                v16i a, b;
                if (up)
                    two_quads_up(f, strip, i, ahead, &plane, &a, &b);
                else
                    two_quads(f, &h, strip, i, &a, &b);
                if (LOOKS(f) && ahead > 0)
                    __builtin_prefetch(vector_at(f, strip, i) + ahead, 0, 2);
                UNROLL
                for (int t = 0; t < n_t; t++) {
                    const int8_t *q = x[t].q + 64 * s + 4 * i;
                    lo[t] = quad_at(f, lo[t], a, q);
                    hi[t] = quad_at(f, hi[t], b, q + 32);
                }
            }
            UNROLL
            for (int t = 0; t < n_t; t++) {
                v16i *to = late ? &sum_up[t] : &sum[t];
                if (up && !late)
                    hi[t] = vi_sra(hi[t], 4 - f.more);
                sum[t] = scaled(f, sum[t], lo[t], h.scale[sub]);
                *to = scaled(f, *to, hi[t], h.scale[sub + 8 / f.sub_quads]);
            }
        }
    }
    UNROLL
    for (int t = 0; t < n_t; t++) {
        if (late)
            sum[t] = vi_add(sum[t], vi_sra(sum_up[t], 4 - f.more));
        finish(f, group, &h, sum[t], &x[t], acc + t * SL_I8_PANELS * 16, first);
    }
}

INLINE void stream_tokens(const struct i8_format f, const int n_t, const uint8_t *group,
                          int n_strips, size_t ahead, const struct sl_i8_x *x, float *acc,
                          bool first)
{
    if (f.kind == KIND_Q8_0)
        stream_bytes(n_t, group, n_strips, x, acc, first);
    else
        stream_nibbles(f, n_t, group, n_strips, ahead, x, acc, first);
}

INLINE void stream(const struct i8_format f, const uint8_t *group, int n_strips, size_t ahead,
                   const struct sl_i8_x *x, int n_tok, float *acc, bool first)
{
    _Static_assert(PASS == 4, "the cases below");
    switch (n_tok) {
    case 1:
        stream_tokens(f, 1, group, n_strips, ahead, x, acc, first);
        break;
    case 2:
        stream_tokens(f, 2, group, n_strips, ahead, x, acc, first);
        break;
    case 3:
        stream_tokens(f, 3, group, n_strips, ahead, x, acc, first);
        break;
    default:
        stream_tokens(f, 4, group, n_strips, ahead, x, acc, first);
    }
}

/* ---------------------------------------------------------------- many tokens */

/* Up to four panels' group, ready for tiles. */
struct i8_work {
    struct i8_columns columns;
    struct i8_head head[SL_I8_PANELS];
    _Alignas(64) uint8_t code[SL_I8_PANELS][SL_I8_GROUP * SL_I8_PANEL];
};
_Static_assert(sizeof(struct i8_work) <= SL_I8_SCRATCH_BYTES, "fits");

struct i8_panels {
    const uint8_t *group; /* of the first panel */
    size_t panel_bytes;
    int n_strips;
    const uint8_t *code; /* quads of the first panel */
    size_t code_step;    /* bytes from a panel's quads to the next one's */
    const struct i8_head *head;
};

INLINE void unpack(const struct i8_format f, const uint8_t *group, int n_strips,
                   struct i8_head *head, uint8_t *code)
{
    head_of(f, group, head);
    for (int s = 0; s < n_strips; s++) {
        UNROLL
        for (int i = 0; i < 8; i++) {
            v16i lo, hi;
            two_quads(f, head, group + f.head + s * f.strip, i, &lo, &hi);
            vi_store(code + 1024 * s + 64 * i, lo);
            vi_store(code + 1024 * s + 512 + 64 * i, hi);
        }
    }
}

INLINE void tile_bytes(const int n_p, const int n_t, const struct i8_panels *w,
                       const struct sl_i8_x *x, float *acc, bool first)
{
    v16i sum[BYTES_P][BYTES_T];
    UNROLL
    for (int p = 0; p < n_p; p++)
        UNROLL
    for (int t = 0; t < n_t; t++)
        sum[p][t] = vi_set1(0);
    for (int q = 0; q < 16 * w->n_strips; q++) {
        v16i c[BYTES_P];
        UNROLL
        for (int p = 0; p < n_p; p++)
            c[p] = vi_loadu(w->code + (size_t)p * w->code_step + 64 * q);
        UNROLL
        for (int t = 0; t < n_t; t++) {
            v16i xv = vi_dword(x[t].q + 4 * q);
            UNROLL
            for (int p = 0; p < n_p; p++)
                sum[p][t] = vi_quad8(sum[p][t], c[p], xv);
        }
    }
    UNROLL
    for (int p = 0; p < n_p; p++)
        UNROLL
    for (int t = 0; t < n_t; t++)
        finish(i8_q8_0, w->group + (size_t)p * w->panel_bytes, NULL, sum[p][t], &x[t],
               acc + (t * SL_I8_PANELS + p) * 16, first);
}

INLINE void tile_nibbles(const struct i8_format f, const int n_p, const int n_t,
                         const struct i8_panels *w, const struct sl_i8_x *x, float *acc, bool first)
{
    v16i sum[NIBBLES_P][NIBBLES_T];
    UNROLL
    for (int p = 0; p < n_p; p++)
        UNROLL
    for (int t = 0; t < n_t; t++)
        sum[p][t] = vi_set1(0);
    for (int q0 = 0; q0 < 16 * w->n_strips; q0 += STEP(f)) {
        v16i part[NIBBLES_P][NIBBLES_T];
        UNROLL
        for (int p = 0; p < n_p; p++)
            UNROLL
        for (int t = 0; t < n_t; t++)
            part[p][t] = vi_set1(0);
        UNROLL
        for (int i = 0; i < STEP(f); i++) {
            v16i c[NIBBLES_P];
            UNROLL
            for (int p = 0; p < n_p; p++)
                c[p] = vi_load(w->code + (size_t)p * w->code_step + 64 * (q0 + i));
            UNROLL
            for (int t = 0; t < n_t; t++) {
                v16i xv = vi_dword(x[t].q + 4 * (q0 + i));
                UNROLL
                for (int p = 0; p < n_p; p++)
                    part[p][t] = quad_of(f, part[p][t], c[p], xv);
            }
        }
        UNROLL
        for (int p = 0; p < n_p; p++)
            UNROLL
        for (int t = 0; t < n_t; t++)
            sum[p][t] = scaled(f, sum[p][t], part[p][t], w->head[p].scale[q0 / f.sub_quads]);
    }
    UNROLL
    for (int p = 0; p < n_p; p++)
        UNROLL
    for (int t = 0; t < n_t; t++)
        finish(f, w->group + (size_t)p * w->panel_bytes, &w->head[p], sum[p][t], &x[t],
               acc + (t * SL_I8_PANELS + p) * 16, first);
}

#define TILE_P(f) ((f).kind == KIND_Q8_0 ? BYTES_P : NIBBLES_P)
#define TILE_T(f) ((f).kind == KIND_Q8_0 ? BYTES_T : NIBBLES_T)

/* One tile's tokens against all the panels. */
INLINE void tile_row(const struct i8_format f, const int n_t, const struct i8_panels *w,
                     int n_panels, const struct sl_i8_x *x, float *acc, bool first)
{
    struct i8_panels at = *w;
    int p = 0;
    while (p < n_panels) {
        bool wide = p + TILE_P(f) <= n_panels;
        if (f.kind == KIND_Q8_0 && wide)
            tile_bytes(BYTES_P, n_t, &at, x, acc + 16 * p, first);
        else if (f.kind == KIND_Q8_0)
            tile_bytes(1, n_t, &at, x, acc + 16 * p, first);
        else if (wide)
            tile_nibbles(f, NIBBLES_P, n_t, &at, x, acc + 16 * p, first);
        else
            tile_nibbles(f, 1, n_t, &at, x, acc + 16 * p, first);
        int n = wide ? TILE_P(f) : 1;
        at.group += (size_t)n * at.panel_bytes;
        at.code += (size_t)n * at.code_step;
        at.head += n;
        p += n;
    }
}

INLINE void tiles(const struct i8_format f, const struct i8_panels *w, int n_panels,
                  const struct sl_i8_x *x, int n_tok, float *acc, bool first)
{
    const int64_t ld_acc = SL_I8_PANELS * 16;
    int t = 0;
    for (; t + TILE_T(f) <= n_tok; t += TILE_T(f))
        tile_row(f, TILE_T(f), w, n_panels, x + t, acc + t * ld_acc, first);
    for (; TILE_T(f) > 2 && t + 2 <= n_tok; t += 2)
        tile_row(f, 2, w, n_panels, x + t, acc + t * ld_acc, first);
    for (; t < n_tok; t++)
        tile_row(f, 1, w, n_panels, x + t, acc + t * ld_acc, first);
}

/* ---------------------------------------------------------------- */

typedef void outliers_fn(const uint8_t *group, const struct sl_i8_x *x, int n_tok, float *acc);

INLINE void dot_format(const struct i8_format f, const struct sl_i8_part *a, int64_t p,
                       int n_panels, float *acc, struct sl_i8_scratch *s, outliers_fn *outliers)
{
    const struct sl_weight *w = a->w;
    const int n_tok = a->n_tok;
    const size_t group_bytes = (size_t)(f.head + 4 * f.strip);
    int64_t n_strips = (w->n_cols + 63) / 64, n_groups = (n_strips + 3) / 4;
    size_t panel_bytes = (size_t)n_groups * (size_t)f.head + (size_t)n_strips * (size_t)f.strip;
    const uint8_t *first = (const uint8_t *)w->data + (size_t)p * panel_bytes;
    struct i8_work *work = (struct i8_work *)(void *)s->bytes;
    for (int i = 0; n_tok <= FEW && i < n_panels; i++)
        for (int64_t j = 0; j < a->n_groups; j++) {
            const int64_t g = a->g0 + j;
            const uint8_t *at = first + (size_t)i * panel_bytes + (size_t)g * group_bytes;
            const struct sl_i8_x *x = a->x + j * n_tok;
            for (int t = 0; t < n_tok; t += PASS)
                stream(f, at, (int)SL_MIN(n_strips - 4 * g, 4), a->ahead, x + t,
                       SL_MIN(n_tok - t, PASS), acc + (t * SL_I8_PANELS + i) * 16, g == 0);
            if (any_outlier(x, n_tok))
                outliers(at, x, n_tok, acc + i * 16);
        }
    if (n_tok <= FEW)
        return;
    struct i8_panels at = {.panel_bytes = panel_bytes, .head = work->head};
    at.code_step = f.kind == KIND_Q8_0 ? panel_bytes : sizeof work->code[0];
    for (int64_t j = 0; j < a->n_groups; j++) {
        const int64_t g = a->g0 + j;
        at.group = first + (size_t)g * group_bytes;
        at.n_strips = (int)SL_MIN(n_strips - 4 * g, 4);
        at.code = f.kind == KIND_Q8_0 ? at.group + f.head : work->code[0];
        for (int i = 0; f.kind != KIND_Q8_0 && i < n_panels; i++)
            unpack(f, at.group + (size_t)i * panel_bytes, at.n_strips, &work->head[i],
                   work->code[i]);
        tiles(f, &at, n_panels, a->x + j * n_tok, n_tok, acc, g == 0);
        if (any_outlier(a->x + j * n_tok, n_tok))
            tile_outliers(f, at.group, panel_bytes, n_panels, a->x + j * n_tok, n_tok, acc,
                          &work->columns);
    }
}

/* One function a format: compilers take minutes over all of them in one. Outliers have another: in
 * one, they take registers from the products of few tokens. */
#define DOT(fmt)                                                                                  \
    static __attribute__((noinline)) void outliers_##fmt(                                         \
        const uint8_t *group, const struct sl_i8_x *x, int n_tok, float *acc)                     \
    {                                                                                             \
        stream_outliers(i8_##fmt, group, x, n_tok, acc);                                          \
    }                                                                                             \
    static __attribute__((noinline)) void dot_##fmt(                                              \
        const struct sl_i8_part *a, int64_t p, int n_panels, float *acc, struct sl_i8_scratch *s) \
    {                                                                                             \
        dot_format(i8_##fmt, a, p, n_panels, acc, s, outliers_##fmt);                             \
    }
DOT(q8_0)
DOT(q4_0)
DOT(q4_k)
DOT(q5_k)
DOT(q6_k)
DOT(q5_0)
DOT(q4_1)
DOT(q5_1)
DOT(q2_k)
DOT(table)
DOT(mxfp4)

static void i8_dot(const struct sl_i8_part *a, int64_t p, int n_panels, float *acc,
                   struct sl_i8_scratch *s)
{
    static void (*const dots[SL_I8_FORMS])(const struct sl_i8_part *a, int64_t p, int n_panels,
                                           float *acc, struct sl_i8_scratch *s) = {
        [SL_I8_Q8_0] = dot_q8_0,   [SL_I8_Q4_0] = dot_q4_0,   [SL_I8_Q4_K] = dot_q4_k,
        [SL_I8_Q5_K] = dot_q5_k,   [SL_I8_Q6_K] = dot_q6_k,   [SL_I8_Q5_0] = dot_q5_0,
        [SL_I8_Q4_1] = dot_q4_1,   [SL_I8_Q5_1] = dot_q5_1,   [SL_I8_Q2_K] = dot_q2_k,
        [SL_I8_TABLE] = dot_table, [SL_I8_MXFP4] = dot_mxfp4,
    };
    dots[sl_i8_form_of(a->w->dtype)](a, p, n_panels, acc, s);
}
