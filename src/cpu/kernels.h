/* SPDX-License-Identifier: MIT
 * kernels.h - the inner loops of the CPU operations, one function pointer each, and the sizes they
 * are cut by.
 *
 * Matrices of block formats have kernels of their own (i8.h), and so has BF16 where the processor
 * multiplies it (bf16.h); what is here multiplies floats.
 *
 * sl_cpu_kernels_c fills the whole table with plain C; each wider instruction set then overwrites
 * what it does better. Every version of a kernel gives the same bits (docs/DETERMINISM.md); the
 * operations around them (linear.c, norm.c, rope.c, attention.c) are the same code for all.
 */
#ifndef SL_CPU_KERNELS_H
#define SL_CPU_KERNELS_H

#include "cpu/cpu.h"

#define SL_CPU_LANES  16  /* partial sums of a dot product: lane k % 16, part of the bits */
#define SL_CPU_SPLIT  256 /* positions of an attention split, part of the bits */
#define SL_CPU_GEMV   4   /* tokens multiplied with a weight while it is in a register */
#define SL_CPU_ROWS   8   /* weight rows of a panel; this and what follows never changes bits */
#define SL_CPU_K      512 /* columns of a panel, a multiple of every format's block */
#define SL_CPU_SUPER  32  /* weight rows that share a block of activations */
#define SL_CPU_TOKENS 64  /* tokens of a block of activations */

#define SL_PAGES_AHEAD 8 /* pages whose bounds are asked for before they are read */

struct sl_cpu_kernels {
    /* n elements (whole blocks) of a format to float and back; equal to the format's reference. */
    void (*decode[SL_DTYPE_COUNT])(const void *src, float *out, int64_t n);
    void (*encode[SL_DTYPE_COUNT])(const float *src, void *out, int64_t n); /* F32, F16, BF16 */
    /* out[t, r] = row r of w . x[t], straight from the format, best for n_tok <= SL_CPU_GEMV; NULL:
     * decode to a panel and use gemm. */
    void (*gemv[SL_DTYPE_COUNT])(const uint8_t *w, size_t row_bytes, int n_rows, const float *x,
                                 int64_t ld_x, int n_tok, int64_t k, float *out, int64_t ld_out);
    /* Adds w [n_rows <= SL_CPU_ROWS, n_k] times x [n_tok, n_k] to the lanes acc [n_tok,
     * SL_CPU_ROWS, SL_CPU_LANES]; first: the lanes start at zero. */
    void (*gemm)(const float *w, int64_t ld_w, int n_rows, const float *x, int64_t ld_x, int n_tok,
                 int n_k, float *acc, bool first);
    /* out[i] = the lanes of acc [n <= SL_CPU_ROWS, SL_CPU_LANES] added up. */
    void (*reduce)(const float *acc, int n, float *out);
    /* out[i] += sum over j < rank of s[j] * b[i / 16, j, i % 16], each from j = 0 on (ops/lora.h);
     * F32, F16, BF16. */
    void (*lora[SL_DTYPE_COUNT])(const uint8_t *b, const float *s, int rank, int n_rows,
                                 float *out);
    void (*rmsnorm)(const float *x, const float *w, float eps, int n,
                    float *out); /* w may be NULL */
    /* out may be x; b may be NULL: zeros. */
    void (*layernorm)(const float *x, const float *w, const float *b, float eps, int n, float *out);
    void (*unit)(float *x, int n);                /* to length 1 */
    void (*max)(float *x, const float *y, int n); /* x = max(y, x) */
    /* out may be x. */
    void (*act_alone)(enum sl_act act, const float *x, int64_t n, float *out); /* not XIELU */
    void (*xielu)(const struct sl_xielu *p, const float *x, int64_t n, float *out);
    void (*add)(float *x, const float *y, int64_t n);
    void (*scale)(float *x, float s, int64_t n);     /* x *= s */
    void (*softcap)(float *x, float cap, int64_t n); /* x = cap * tanh(x / cap) */
    void (*act)(enum sl_act act, const float *gate, const float *up, int n, float *out);
    void (*swiglu)(const struct sl_swiglu *s, const float *gate, const float *up, int n,
                   float *out);
    /* s [SL_CPU_SPLIT]: scores of a split, of which [lo, hi) are seen. Scales and caps them, makes
     * them exp(s - max), 0 where not seen; gives their maximum and their sum. Bit i of skip: as if
     * SL_SKIP_TILE of them, from i times that on, were not seen either; some must be. */
    void (*softmax)(float *s, int lo, int hi, uint32_t skip, float scale, float softcap, float *max,
                    float *sum);
    /* out[c] = sum over h of w[h] max(0, score[h, c]), from h = 0 on; add: on top of what is there.
     * score [n_h, SL_CPU_SPLIT], n a multiple of 16. */
    void (*index_sum)(const float *score, const float *w, int n_h, int n, bool add, float *out);
    float (*squares)(const float *x, int64_t n); /* their sum */
    /* out = sum over j of w[j] x[j], j < n_streams, from j = 0 on; x is [n_streams, h]. */
    void (*hyper_read)(const float *x, const float *w, int n_streams, int h, float *out);
    /* x[i] = post[i] y + sum over j of mix[j, i] x[j], from j = 0 on, in place. */
    void (*hyper_write)(float *x, const float *y, const float *post, const float *mix,
                        int n_streams, int h);
    /* out[i] = the largest of the n_q queries' products with bounds[i] + at, two rows of dim
     * numbers: q [n_q, 2, dim] are the parts of queries above 0, then those below (ops/ops.h);
     * more: or what is there. NaN is less than any number. bounds[i + SL_PAGES_AHEAD] can be read
     * as a pointer for every i < n: what will be wanted next. F32, BF16. */
    void (*page_scores[SL_DTYPE_COUNT])(const uint8_t *const *bounds, size_t at, int n,
                                        const float *q, int n_q, int dim, bool more, float *out);
    /* (m, l, o) of a later split joins the state (ml[0], ml[1], acc). */
    void (*merge)(float *ml, float *acc, float m, float l, const float *o, int n_d);
    /* out = acc / l after the sink joined (NULL: none). */
    void (*finish)(float *ml, float *acc, const float *sink, int n, float *out);
    float (*exp)(float x);             /* the exponential all of these use */
    const char *route[SL_DTYPE_COUNT]; /* name of the kernel that runs a format's matrices */
};

void sl_cpu_kernels_c(struct sl_cpu_kernels *k);
void sl_cpu_kernels_avx2(struct sl_cpu_kernels *k);
void sl_cpu_kernels_avx512(struct sl_cpu_kernels *k);

#endif
