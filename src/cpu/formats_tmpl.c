/* SPDX-License-Identifier: MIT
 * Weight formats in terms of the lanes of vec_avx2.h and vec_avx512.h, included after
 * kernels_tmpl.c. Each format is one function that turns a block of bytes into vectors of sixteen
 * weights, in order; a sink either stores them (decode, to a panel) or multiplies them with x right
 * away (gemv). Products of an f16 scale, an integer scale and a code fit in a float without
 * rounding, so the order in which they are multiplied is free; a minimum is subtracted with the one
 * rounding the reference has too.
 */
#include "quant/q4_0.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

#define PLAIN_ELEMS 128 /* what counts as a block of the formats without blocks */

struct sink {
    float *out;     /* decode */
    const float *x; /* gemv */
    v16 acc;
};

INLINE void emit(const bool dot, struct sink *s, int k, v16 w)
{
    if (dot)
        s->acc = v_fma(w, v_load(s->x + k), s->acc);
    else
        v_store(s->out + k, w);
}

INLINE float half_at(const uint8_t *p)
{
    return _cvtsh_ss(sl_load_u16(p));
}

INLINE void block_f32(const bool dot, const uint8_t *p, struct sink *s)
{
    for (int k = 0; k < PLAIN_ELEMS; k += 16)
        emit(dot, s, k, v_load((const float *)(const void *)(p + 4 * k)));
}

INLINE void block_f16(const bool dot, const uint8_t *p, struct sink *s)
{
    for (int k = 0; k < PLAIN_ELEMS; k += 16)
        emit(dot, s, k, v_load_f16(p + 2 * k));
}

INLINE void block_bf16(const bool dot, const uint8_t *p, struct sink *s)
{
    for (int k = 0; k < PLAIN_ELEMS; k += 16)
        emit(dot, s, k, v_load_bf16(p + 2 * k));
}

INLINE void block_q8_0(const bool dot, const uint8_t *p, struct sink *s)
{
    v16 d = v_set1(half_at(p));
    emit(dot, s, 0, v_mul(v_from_int(vi_load_s8(p + 2)), d));
    emit(dot, s, 16, v_mul(v_from_int(vi_load_s8(p + 18)), d));
}

INLINE void block_q4_0(const bool dot, const uint8_t *p, struct sink *s)
{
    /* offset -0: adding it changes nothing, not even the sign of a zero */
    struct codes t = codes_make(8, half_at(p), -0.0f);
    v16i q = vi_load_u8(p + 2);
    emit(dot, s, 0, codes_get(t, q));
    emit(dot, s, 16, codes_get(t, vi_srl(q, 4)));
}

/* A scale read back from memory is broadcast by the load ports, which have time; compilers that see
 * through the store use a shuffle instead, and shuffles are what limits these loops. */
#define KEEP_IN_MEMORY(array) __asm__("" : "+m"(*(float(*)[16])(array)))

/* d * scale of the 8 runs, then -dmin * min of the 8 runs. The six-bit codes are unpacked four at a
 * time in 32-bit words. */
INLINE void qk_runs(const uint8_t *d, const uint8_t *packed, float runs[16])
{
    uint32_t b[3], codes[4];
    memcpy(b, packed, sizeof b);
    codes[0] = b[0] & 0x3F3F3F3Fu;
    codes[1] = (b[2] & 0x0F0F0F0Fu) | (b[0] >> 2 & 0x30303030u);
    codes[2] = b[1] & 0x3F3F3F3Fu;
    codes[3] = (b[2] >> 4 & 0x0F0F0F0Fu) | (b[1] >> 2 & 0x30303030u);
    v16 scale = v_load_d_dmin(d);
    v_store(runs, v_mul(v_from_int(vi_load_u8((const uint8_t *)codes)), scale));
    KEEP_IN_MEMORY(runs);
}

/* The low halves are looked up and the high halves, which come out of the shift clean, are
 * converted: so the shuffle and the multiply-add units share the work (9 % over looking up both). */
INLINE void block_q4_k(const bool dot, const uint8_t *p, struct sink *s)
{
    _Alignas(64) float runs[16];
    qk_runs(p, p + 4, runs);
    for (int j = 0; j < 8; j += 2) {
        struct codes lo = codes_make(0, runs[j], runs[j + 8]);
        v16 d = v_set1(runs[j + 1]), m = v_set1(runs[j + 9]);
        v16i q0 = vi_load_u8(p + 16 + 16 * j), q1 = vi_load_u8(p + 32 + 16 * j);
        emit(dot, s, 32 * j, codes_get(lo, q0));
        emit(dot, s, 32 * j + 16, codes_get(lo, q1));
        emit(dot, s, 32 * j + 32, v_fma(v_from_int(vi_srl(q0, 4)), d, m));
        emit(dot, s, 32 * j + 48, v_fma(v_from_int(vi_srl(q1, 4)), d, m));
    }
}

INLINE void block_q5_k(const bool dot, const uint8_t *p, struct sink *s)
{
    _Alignas(64) float runs[16];
    qk_runs(p, p + 4, runs);
    v16i h0 = vi_load_u8(p + 16), h1 = vi_load_u8(p + 32);
    for (int j = 0; j < 8; j += 2) {
        struct codes5 lo = codes5_make(runs[j], runs[j + 8]);
        struct codes5 hi = codes5_make(runs[j + 1], runs[j + 9]);
        v16i q0 = vi_load_u8(p + 48 + 16 * j), q1 = vi_load_u8(p + 64 + 16 * j);
        emit(dot, s, 32 * j, codes5_get(lo, q0, h0, 0));
        emit(dot, s, 32 * j + 16, codes5_get(lo, q1, h1, 0));
        emit(dot, s, 32 * j + 32, codes5_get(hi, vi_srl(q0, 4), h0, 1));
        emit(dot, s, 32 * j + 48, codes5_get(hi, vi_srl(q1, 4), h1, 1));
        h0 = vi_srl(h0, 2);
        h1 = vi_srl(h1, 2);
    }
}

INLINE void block_q6_k(const bool dot, const uint8_t *p, struct sink *s)
{
    _Alignas(64) float scale[16];
    v_store(scale, v_mul(v_from_int(vi_load_s8(p + 192)), v_set1(half_at(p + 208))));
    KEEP_IN_MEMORY(scale);
    for (int half = 0; half < 2; half++) { /* ascending, as each lane's sum is a chain */
        const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half;
        v16i a0 = vi_load_u8(low), a1 = vi_load_u8(low + 16);
        v16i b0 = vi_load_u8(low + 32), b1 = vi_load_u8(low + 48);
        v16i h0 = vi_load_u8(high), h1 = vi_load_u8(high + 16);
        const float *sc = scale + 8 * half;
        int k = 128 * half;
        emit(dot, s, k, codes6_get(a0, vi_sll(h0, 4), sc[0]));
        emit(dot, s, k + 16, codes6_get(a1, vi_sll(h1, 4), sc[1]));
        emit(dot, s, k + 32, codes6_get(b0, vi_sll(h0, 2), sc[2]));
        emit(dot, s, k + 48, codes6_get(b1, vi_sll(h1, 2), sc[3]));
        emit(dot, s, k + 64, codes6_get(vi_srl(a0, 4), h0, sc[4]));
        emit(dot, s, k + 80, codes6_get(vi_srl(a1, 4), h1, sc[5]));
        emit(dot, s, k + 96, codes6_get(vi_srl(b0, 4), vi_srl(h0, 2), sc[6]));
        emit(dot, s, k + 112, codes6_get(vi_srl(b1, 4), vi_srl(h1, 2), sc[7]));
    }
}

/* ---------------------------------------------------------------- rows of blocks */

typedef void (*block_fn)(const bool dot, const uint8_t *p, struct sink *s);

/* Whole blocks, then for the plain formats what is left, by way of a zero-filled block. */
INLINE void decode_row(block_fn block, const int elems, const int bytes, const int elem_bytes,
                       const uint8_t *p, float *out, int64_t n)
{
    struct sink s = {.out = out};
    for (; n >= elems; n -= elems, p += bytes, s.out += elems)
        block(false, p, &s);
    if (elem_bytes != 0 && n > 0) {
        uint8_t rest[PLAIN_ELEMS * 4] = {0};
        float wide[PLAIN_ELEMS];
        memcpy(rest, p, (size_t)(n * elem_bytes));
        struct sink t = {.out = wide};
        block(false, rest, &t);
        memcpy(s.out, wide, (size_t)n * sizeof(float));
    }
}

/* Rows in flight: their chains of multiply-adds hide each other's latency. Rows of a few kilobytes
 * are too short for the hardware to see a stream, so the next four are asked for along the way
 * (past the end of a matrix too, where it does no harm). */
#define GEMV_ROWS 4

INLINE void gemv_rows(block_fn block, const int elems, const int bytes, const int elem_bytes,
                      const int n_rows, const uint8_t *w, size_t row_bytes, const float *x,
                      int64_t n, float *out)
{
    v16 acc[GEMV_ROWS];
    for (int r = 0; r < n_rows; r++)
        acc[r] = v_set1(0.0f);
    int64_t k = 0;
    for (; k + elems <= n; k += elems, w += bytes)
        for (int r = 0; r < n_rows; r++) {
            const uint8_t *p = w + (size_t)r * row_bytes;
            struct sink s = {.x = x + k, .acc = acc[r]};
            for (int line = 0; line < bytes; line += 64)
                _mm_prefetch((const char *)p + GEMV_ROWS * row_bytes + line, _MM_HINT_T1);
            block(true, p, &s);
            acc[r] = s.acc;
        }
    for (int r = 0; r < n_rows; r++) {
        if (elem_bytes != 0 && k < n) { /* lanes behind the row's end keep their sums */
            float rest[PLAIN_ELEMS];
            decode_row(block, elems, bytes, elem_bytes, w + (size_t)r * row_bytes, rest, n - k);
            int64_t i = 0;
            for (; i + 16 <= n - k; i += 16)
                acc[r] = v_fma(v_load(rest + i), v_load(x + k + i), acc[r]);
            int m = (int)(n - k - i);
            if (m > 0)
                acc[r] = v_fma_n(v_load_n(rest + i, m), v_load_n(x + k + i, m), acc[r], m);
        }
        out[r] = v_sum(acc[r]);
    }
}

#define FORMAT(id, fmt, elems, bytes, elem_bytes)                                                 \
    static void decode_##fmt(const void *p, float *out, int64_t n)                                \
    {                                                                                             \
        decode_row(block_##fmt, elems, bytes, elem_bytes, p, out, n);                             \
    }                                                                                             \
    static void gemv_##fmt(const uint8_t *w, size_t row_bytes, int n_rows, const float *x,        \
                           int64_t k, float *out)                                                 \
    {                                                                                             \
        int r = 0;                                                                                \
        for (; r + GEMV_ROWS <= n_rows; r += GEMV_ROWS)                                           \
            gemv_rows(block_##fmt, elems, bytes, elem_bytes, GEMV_ROWS,                           \
                      w + (size_t)r * row_bytes, row_bytes, x, k, out + r);                       \
        for (; r < n_rows; r++)                                                                   \
            gemv_rows(block_##fmt, elems, bytes, elem_bytes, 1, w + (size_t)r * row_bytes,        \
                      row_bytes, x, k, out + r);                                                  \
    }
FORMAT(F32, f32, PLAIN_ELEMS, PLAIN_ELEMS * 4, 4)
FORMAT(F16, f16, PLAIN_ELEMS, PLAIN_ELEMS * 2, 2)
FORMAT(BF16, bf16, PLAIN_ELEMS, PLAIN_ELEMS * 2, 2)
FORMAT(Q8_0, q8_0, 32, 34, 0)
FORMAT(Q4_0, q4_0, 32, 18, 0)
FORMAT(Q4_K, q4_k, 256, 144, 0)
FORMAT(Q5_K, q5_k, 256, 176, 0)
FORMAT(Q6_K, q6_k, 256, 210, 0)

static void encode_f16(const float *src, void *out, int64_t n)
{
    uint8_t *p = out;
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        v_store_f16(p + 2 * k, v_load(src + k));
    for (; k < n; k++)
        sl_store_u16(p + 2 * k, sl_f32_to_f16(src[k]));
}

static void fill_formats(struct sl_cpu_kernels *k)
{
#define ROUTE(id, fmt)                       \
    k->decode[SL_DTYPE_##id] = decode_##fmt; \
    k->gemv[SL_DTYPE_##id] = gemv_##fmt;     \
    k->route[SL_DTYPE_##id] = #fmt "_" ISA_NAME
    ROUTE(F32, f32);
    ROUTE(F16, f16);
    ROUTE(BF16, bf16);
    ROUTE(Q8_0, q8_0);
    ROUTE(Q4_0, q4_0);
    ROUTE(Q4_K, q4_k);
    ROUTE(Q5_K, q5_k);
    ROUTE(Q6_K, q6_k);
#undef ROUTE
    k->encode[SL_DTYPE_F16] = encode_f16;
}
