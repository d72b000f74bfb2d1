/* SPDX-License-Identifier: MIT
 * Weight formats in terms of the lanes of vec_avx2.h and vec_avx512.h, included after
 * kernels_tmpl.c. A format is two functions: prepare reads the scales of a block, step turns one
 * part of the block into vectors of sixteen weights, in order. From them FORMAT makes the decode to
 * a panel, and GEMV, for formats without blocks, the products straight from the file: a step of
 * each of four rows in turn, so that their chains of multiply-adds overlap within what the
 * processor looks ahead.
 *
 * Products of an f16 scale, an integer scale and a code fit in a float without rounding, so the
 * order in which they are multiplied is free; a minimum is subtracted with the one rounding the
 * reference has too.
 */
#include "quant/int4.h"
#include "quant/q4_0.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

#define PLAIN_ELEMS 64 /* what counts as a block of the formats without blocks */
#ifdef SL_DEBUG
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif
#define STEP_VECS 4 /* vectors of a step at most */

INLINE float half_at(const uint8_t *p)
{
    return _cvtsh_ss(sl_load_u16(p));
}

INLINE void prepare_none(const uint8_t *p, float runs[16])
{
    (void)p;
    (void)runs;
}

INLINE void step_f32(const uint8_t *p, const float *runs, int j, v16 *v)
{
    (void)runs;
    (void)j;
    for (int i = 0; i < 4; i++)
        v[i] = v_load((const float *)(const void *)(p + 64 * i));
}

INLINE void step_f16(const uint8_t *p, const float *runs, int j, v16 *v)
{
    (void)runs;
    (void)j;
    for (int i = 0; i < 4; i++)
        v[i] = v_load_f16(p + 32 * i);
}

INLINE void step_bf16(const uint8_t *p, const float *runs, int j, v16 *v)
{
    (void)runs;
    (void)j;
    for (int i = 0; i < 4; i++)
        v[i] = v_load_bf16(p + 32 * i);
}

INLINE void step_fp8_e4m3(const uint8_t *p, const float *runs, int j, v16 *v)
{
    (void)runs;
    (void)j;
    for (int i = 0; i < 4; i++)
        v[i] = v_load_fp8_e4m3(p + 16 * i);
}

INLINE void step_q8_0(const uint8_t *p, const float *runs, int j, v16 *v)
{
    (void)runs;
    (void)j;
    v16 d = v_set1(half_at(p));
    v[0] = v_mul(v_from_int(vi_load_s8(p + 2)), d);
    v[1] = v_mul(v_from_int(vi_load_s8(p + 18)), d);
}

INLINE void step_q4_0(const uint8_t *p, const float *runs, int j, v16 *v)
{
    (void)runs;
    (void)j;
    /* offset -0: adding it changes nothing, not even the sign of a zero */
    struct codes t = codes_make(8, half_at(p), -0.0f);
    v16i q = vi_load_u8(p + 2);
    v[0] = codes_get(t, q);
    v[1] = codes_get(t, vi_srl(q, 4));
}

INLINE void step_int4_g128(const uint8_t *p, const float *runs, int j, v16 *v)
{
    (void)runs;
    const uint32_t head = sl_int4_load_head(p);
    struct codes t = codes_make(sl_int4_zero(head), sl_int4_scale(head), -0.0f);
    v16i q = vi_load_u8(p + SL_INT4_HEAD + 16 * j);
    v[0] = codes_get(t, q);
    v[1] = codes_get(t, vi_srl(q, 4));
}

INLINE void step_int4_g32(const uint8_t *p, const float *runs, int j, v16 *v)
{
    step_int4_g128(p, runs, j, v);
}

/* A scale read back from memory is broadcast by the load ports, which have time; compilers that see
 * through the store use a shuffle instead, and shuffles are what limits these loops. */
#define KEEP_IN_MEMORY(array) __asm__("" : "+m"(*(float(*)[16])(array)))

/* d * scale of the 8 runs, then -dmin * min of the 8 runs. The six-bit codes are unpacked four at a
 * time in 32-bit words. */
INLINE void prepare_qk(const uint8_t *p, float runs[16])
{
    uint32_t b[3], codes[4];
    memcpy(b, p + 4, sizeof b);
    codes[0] = b[0] & 0x3F3F3F3Fu;
    codes[1] = (b[2] & 0x0F0F0F0Fu) | (b[0] >> 2 & 0x30303030u);
    codes[2] = b[1] & 0x3F3F3F3Fu;
    codes[3] = (b[2] >> 4 & 0x0F0F0F0Fu) | (b[1] >> 2 & 0x30303030u);
    v16 scale = v_load_d_dmin(p);
    v_store(runs, v_mul(v_from_int(vi_load_u8((const uint8_t *)codes)), scale));
    KEEP_IN_MEMORY(runs);
}

/* The low halves are looked up and the high halves, which come out of the shift clean, are
 * converted: so the shuffle and the multiply-add units share the work (9 % over looking up both).
 */
INLINE void step_q4_k(const uint8_t *p, const float *runs, int j, v16 *v)
{
    struct codes lo = codes_make(0, runs[2 * j], runs[2 * j + 8]);
    v16 d = v_set1(runs[2 * j + 1]), m = v_set1(runs[2 * j + 9]);
    v16i q0 = vi_load_u8(p + 16 + 32 * j), q1 = vi_load_u8(p + 32 + 32 * j);
    v[0] = codes_get(lo, q0);
    v[1] = codes_get(lo, q1);
    v[2] = v_fma(v_from_int(vi_srl(q0, 4)), d, m);
    v[3] = v_fma(v_from_int(vi_srl(q1, 4)), d, m);
}

INLINE void step_q5_k(const uint8_t *p, const float *runs, int j, v16 *v)
{
    struct codes5 lo = codes5_make(runs[2 * j], runs[2 * j + 8]);
    struct codes5 hi = codes5_make(runs[2 * j + 1], runs[2 * j + 9]);
    v16i h0 = vi_load_u8(p + 16), h1 = vi_load_u8(p + 32);
    v16i q0 = vi_load_u8(p + 48 + 32 * j), q1 = vi_load_u8(p + 64 + 32 * j);
    v[0] = codes5_get(lo, q0, h0, 2 * j);
    v[1] = codes5_get(lo, q1, h1, 2 * j);
    v[2] = codes5_get(hi, vi_srl(q0, 4), h0, 2 * j + 1);
    v[3] = codes5_get(hi, vi_srl(q1, 4), h1, 2 * j + 1);
}

INLINE void prepare_q6_k(const uint8_t *p, float runs[16])
{
    v_store(runs, v_mul(v_from_int(vi_load_s8(p + 192)), v_set1(half_at(p + 208))));
    KEEP_IN_MEMORY(runs);
}

INLINE void step_q6_k(const uint8_t *p, const float *runs, int j, v16 *v)
{
    const uint8_t *low = p + 64 * (j / 2), *high = p + 128 + 32 * (j / 2);
    v16i a0 = vi_load_u8(low), a1 = vi_load_u8(low + 16);
    v16i b0 = vi_load_u8(low + 32), b1 = vi_load_u8(low + 48);
    v16i h0 = vi_load_u8(high), h1 = vi_load_u8(high + 16);
    runs += 4 * j;
    if (j % 2 == 0) {
        v[0] = codes6_get(a0, vi_sll(h0, 4), runs[0]);
        v[1] = codes6_get(a1, vi_sll(h1, 4), runs[1]);
        v[2] = codes6_get(b0, vi_sll(h0, 2), runs[2]);
        v[3] = codes6_get(b1, vi_sll(h1, 2), runs[3]);
    } else {
        v[0] = codes6_get(vi_srl(a0, 4), h0, runs[0]);
        v[1] = codes6_get(vi_srl(a1, 4), h1, runs[1]);
        v[2] = codes6_get(vi_srl(b0, 4), vi_srl(h0, 2), runs[2]);
        v[3] = codes6_get(vi_srl(b1, 4), vi_srl(h1, 2), runs[3]);
    }
}

/* ---------------------------------------------------------------- rows of blocks */

struct format { /* constant, so that everything about it is inlined */
    void (*prepare)(const uint8_t *p, float runs[16]);
    void (*step)(const uint8_t *p, const float *runs, int j, v16 *v);
    int bytes, n_steps, n_vecs; /* of a block; steps of it, vectors of a step */
    int elem_bytes;             /* of the formats without blocks, else 0 */
};

INLINE void decode_block(const struct format f, const uint8_t *p, float *out)
{
    _Alignas(64) float runs[16];
    f.prepare(p, runs);
    UNROLL
    for (int j = 0; j < f.n_steps; j++) {
        v16 v[STEP_VECS];
        f.step(p, runs, j, v);
        for (int i = 0; i < f.n_vecs; i++)
            v_store(out + 16 * (f.n_vecs * j + i), v[i]);
    }
}

/* Whole blocks, then for the plain formats what is left, by way of a zero-filled block. */
INLINE void decode_row(const struct format f, const uint8_t *p, float *out, int64_t n)
{
    const int elems = 16 * f.n_vecs * f.n_steps;
    for (; n >= elems; n -= elems, p += f.bytes, out += elems)
        decode_block(f, p, out);
    if (f.elem_bytes != 0 && n > 0) {
        uint8_t rest[PLAIN_ELEMS * 4] = {0};
        float wide[PLAIN_ELEMS];
        memcpy(rest, p, (size_t)(n * f.elem_bytes));
        decode_block(f, rest, wide);
        memcpy(out, wide, (size_t)n * sizeof(float));
    }
}

/* Rows of a few kilobytes are too short for the hardware to see a stream, so the next four are
 * asked for along the way (past the end of a matrix too, where it does no harm). */
#define GEMV_ROWS 4

INLINE void gemv_block(const struct format f, const int n_rows, const int n_tok, const uint8_t *w,
                       size_t row_bytes, const float *x, int64_t ld_x,
                       v16 acc[GEMV_ROWS][SL_CPU_GEMV])
{
    UNROLL
    for (int r = 0; r < n_rows; r++)
        for (int line = 0; line < f.bytes; line += 64)
            _mm_prefetch((const char *)w + (GEMV_ROWS + (size_t)r) * row_bytes + line, _MM_HINT_T1);
    UNROLL
    for (int j = 0; j < f.n_steps; j++) {
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            v16 v[STEP_VECS];
            f.step(w + (size_t)r * row_bytes, NULL, j, v);
            UNROLL
            for (int i = 0; i < f.n_vecs; i++) {
                const float *at = x + 16 * (f.n_vecs * j + i);
                UNROLL
                for (int t = 0; t < n_tok; t++)
                    acc[r][t] = v_fma(v[i], v_load(at + t * ld_x), acc[r][t]);
            }
        }
    }
}

INLINE void gemv_rows(const struct format f, const int n_rows, const int n_tok, const uint8_t *w,
                      size_t row_bytes, const float *x, int64_t ld_x, int64_t n, float *out,
                      int64_t ld_out)
{
    const int elems = 16 * f.n_vecs * f.n_steps;
    v16 acc[GEMV_ROWS][SL_CPU_GEMV];
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tok; t++)
            acc[r][t] = v_set1(0.0f);
    int64_t k = 0;
    for (; k + elems <= n; k += elems, w += f.bytes)
        gemv_block(f, n_rows, n_tok, w, row_bytes, x + k, ld_x, acc);
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        float rest[PLAIN_ELEMS];
        int64_t n_rest = n - k;
        if (n_rest > 0)
            decode_row(f, w + (size_t)r * row_bytes, rest, n_rest);
        for (int64_t i = 0; i < n_rest; i += 16) { /* lanes behind the end keep their sums */
            int m = (int)SL_MIN(n_rest - i, 16);
            UNROLL
            for (int t = 0; t < n_tok; t++)
                acc[r][t] =
                    v_fma_n(v_load_n(rest + i, m), v_load_n(x + t * ld_x + k + i, m), acc[r][t], m);
        }
        UNROLL
        for (int t = 0; t < n_tok; t++)
            out[t * ld_out + r] = v_sum(acc[r][t]);
    }
}

INLINE void gemv_all(const struct format f, const uint8_t *w, size_t row_bytes, int n_rows,
                     const float *x, int64_t ld_x, int n_tok, int64_t k, float *out, int64_t ld_out)
{
    int r = 0;
    for (; r + GEMV_ROWS <= n_rows; r += GEMV_ROWS, w += GEMV_ROWS * row_bytes, out += GEMV_ROWS) {
        int t = 0;
        for (; t + 4 <= n_tok; t += 4)
            gemv_rows(f, GEMV_ROWS, 4, w, row_bytes, x + t * ld_x, ld_x, k, out + t * ld_out,
                      ld_out);
        for (; t + 2 <= n_tok; t += 2)
            gemv_rows(f, GEMV_ROWS, 2, w, row_bytes, x + t * ld_x, ld_x, k, out + t * ld_out,
                      ld_out);
        for (; t < n_tok; t++)
            gemv_rows(f, GEMV_ROWS, 1, w, row_bytes, x + t * ld_x, ld_x, k, out + t * ld_out,
                      ld_out);
    }
    for (; r < n_rows; r++, w += row_bytes, out++)
        for (int t = 0; t < n_tok; t++)
            gemv_rows(f, 1, 1, w, row_bytes, x + t * ld_x, ld_x, k, out + t * ld_out, ld_out);
}

#define FORMAT(fmt, prepare, bytes, n_steps, n_vecs, elem_bytes)              \
    static const struct format fmt_##fmt = {prepare, step_##fmt, bytes,       \
                                            n_steps, n_vecs,     elem_bytes}; \
    static void decode_##fmt(const void *p, float *out, int64_t n)            \
    {                                                                         \
        decode_row(fmt_##fmt, p, out, n);                                     \
    }
#define GEMV(fmt)                                                                          \
    static void gemv_##fmt(const uint8_t *w, size_t row_bytes, int n_rows, const float *x, \
                           int64_t ld_x, int n_tok, int64_t k, float *out, int64_t ld_out) \
    {                                                                                      \
        gemv_all(fmt_##fmt, w, row_bytes, n_rows, x, ld_x, n_tok, k, out, ld_out);         \
    }
FORMAT(f32, prepare_none, PLAIN_ELEMS * 4, 1, 4, 4)
FORMAT(f16, prepare_none, PLAIN_ELEMS * 2, 1, 4, 2)
FORMAT(bf16, prepare_none, PLAIN_ELEMS * 2, 1, 4, 2)
FORMAT(fp8_e4m3, prepare_none, PLAIN_ELEMS, 1, 4, 1)
FORMAT(q8_0, prepare_none, 34, 1, 2, 0)
FORMAT(q4_0, prepare_none, 18, 1, 2, 0)
FORMAT(q4_k, prepare_qk, 144, 4, 4, 0)
FORMAT(q5_k, prepare_qk, 176, 4, 4, 0)
FORMAT(q6_k, prepare_q6_k, 210, 4, 4, 0)
FORMAT(int4_g128, prepare_none, 68, 4, 2, 0)
FORMAT(int4_g32, prepare_none, 20, 1, 2, 0)
GEMV(f32)
GEMV(f16)
GEMV(bf16)

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
    k->route[SL_DTYPE_##id] = #fmt "_" ISA_NAME
    ROUTE(F32, f32);
    ROUTE(F16, f16);
    ROUTE(BF16, bf16);
    ROUTE(FP8_E4M3, fp8_e4m3);
    ROUTE(Q8_0, q8_0);
    ROUTE(Q4_0, q4_0);
    ROUTE(Q4_K, q4_k);
    ROUTE(Q5_K, q5_k);
    ROUTE(Q6_K, q6_k);
    ROUTE(INT4_G128, int4_g128);
    ROUTE(INT4_G32, int4_g32);
#undef ROUTE
    k->gemv[SL_DTYPE_F32] = gemv_f32;
    k->gemv[SL_DTYPE_F16] = gemv_f16;
    k->gemv[SL_DTYPE_BF16] = gemv_bf16;
    k->encode[SL_DTYPE_F16] = encode_f16;
}
