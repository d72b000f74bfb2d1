/* SPDX-License-Identifier: MIT
 * Operations on whole rows: embedding, norms, angles, gather. A row's bits depend on the row and
 * its width only, never on how many rows there are.
 *
 * All are bound by memory for many rows and by the launch for few, so: 16 bytes per thread and
 * load, all loads of a row in flight before the first sum, norm weights fetched before the wait for
 * the kernel before.
 *
 * Predictions, not measurements (H200, reads and writes mixed at 4.3 TB/s; a launch inside a graph
 * and one trip to memory and back is 2 to 3 us, which is all there is at decode):
 *   rmsnorm      bytes/row 6 h          h = 4096, 8192 rows: 201 MB -> 47 us
 *   add_rmsnorm  bytes/row 14 h         h = 4096, 8192 rows: 470 MB -> 109 us
 *   embed (bf16) bytes/row 6 h          as rmsnorm
 *   gather       bytes/row 2 row_bytes  256 rows of 8 KiB: 4 MB -> launch
 *   angles       64 sincos in double per token, some 100 FP64 operations each: 8192 tokens are
 *                0.05 GFLOP64 at 33 TFLOP/s -> launch; bytes/row 512
 * In flight per SM for norms, h = 4096: 5 blocks of 256 threads (48 registers) with 4 loads of 16
 * bytes each, 8 in add_rmsnorm = 80 and 160 KiB, against the 36 KiB that 4.8 TB/s times 1 us over
 * 132 SMs wants.
 */
#include "cuda/gemm/eight_format.cuh"
#include "cuda/gemm/fuse.h"
#include "cuda/gemm/linear_w8a8.cuh"
#include "cuda/norm.cuh"
#include "cuda/norm.h"

#include <math.h>

#define MAX_GRID_Y 65535

/* ------------------------------------------------------------------ embedding */

/* Rows lie as in the file, so a block has no better alignment than its size: codes are read in
 * pairs of bytes. The decodes are those of src/quant, operation by operation. A thread makes eight
 * elements, which never cross a block or a run of equal scale. */

static __device__ __forceinline__ uint32_t load16(const uint8_t *p)
{
    return *reinterpret_cast<const uint16_t *>(p);
}

/* Integer steps as sl_f16_to_f32: the hardware's conversion loses a NaN's payload. */
static __device__ __forceinline__ float f16_value(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, exp = (h >> 10) & 31u, frac = h & 0x3FFu;
    if (exp == 31)
        return __uint_as_float(sign | 0x7F800000u | (frac << 13) | (frac != 0 ? 0x400000u : 0u));
    if (exp != 0)
        return __uint_as_float(sign | ((exp + 112) << 23) | (frac << 13));
    return __uint_as_float(sign | __float_as_uint(__fmul_rn((float)frac, 0x1p-24f)));
}

struct fmt_f32 {
    static constexpr int block = 1;
    static constexpr int bytes = 4;
    static __device__ __forceinline__ float one(const uint8_t *row, int64_t i)
    {
        return *reinterpret_cast<const float *>(row + 4 * i);
    }
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        const float4 *p = reinterpret_cast<const float4 *>(row + 4 * i);
        *reinterpret_cast<float4 *>(out) = p[0];
        *reinterpret_cast<float4 *>(out + 4) = p[1];
    }
};

template <bool BF16> struct fmt_16 {
    static constexpr int block = 1;
    static constexpr int bytes = 2;
    static __device__ __forceinline__ float value(uint32_t h)
    {
        return BF16 ? __uint_as_float(h << 16) : f16_value(h);
    }
    static __device__ __forceinline__ float one(const uint8_t *row, int64_t i)
    {
        return value(load16(row + 2 * i));
    }
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        uint4 q = *reinterpret_cast<const uint4 *>(row + 2 * i);
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            out[2 * j] = value(w[j] & 0xFFFFu);
            out[2 * j + 1] = value(w[j] >> 16);
        }
    }
};

/* Formats in blocks have no single elements: rows are whole blocks. */
struct fmt_q8_0 {
    static constexpr int block = 32;
    static constexpr int bytes = 34;
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        const uint8_t *b = row + i / 32 * 34, *q = b + 2 + i % 32;
        float d = f16_value(load16(b));
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t pair = load16(q + j);
            out[j] = __fmul_rn(d, (float)(int8_t)(pair & 255));
            out[j + 1] = __fmul_rn(d, (float)(int8_t)(pair >> 8));
        }
    }
};

struct fmt_q4_0 {
    static constexpr int block = 32;
    static constexpr int bytes = 18;
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        const uint8_t *b = row + i / 32 * 18, *q = b + 2 + i % 16;
        int shift = i % 32 < 16 ? 0 : 4;
        float d = f16_value(load16(b));
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t pair = load16(q + j) >> shift;
            out[j] = __fmul_rn(d, (float)((int)(pair & 15) - 8));
            out[j + 1] = __fmul_rn(d, (float)((int)(pair >> 8 & 15) - 8));
        }
    }
};

/* Scale and minimum of run j of a block of Q4_K or Q5_K, times their f16 factors. */
static __device__ __forceinline__ void qk_run(const uint8_t *b, int j, float *d, float *m)
{
    const uint8_t *s = b + 4;
    uint32_t scale, min;
    if (j < 4) {
        scale = s[j] & 63u;
        min = s[j + 4] & 63u;
    } else {
        scale = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
        min = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    }
    *d = __fmul_rn(f16_value(load16(b)), (float)scale);
    *m = __fmul_rn(f16_value(load16(b + 2)), (float)min);
}

/* HIGH: with a fifth bit (Q5_K). */
template <bool HIGH> struct fmt_qk {
    static constexpr int block = 256;
    static constexpr int bytes = HIGH ? 176 : 144;
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        const uint8_t *b = row + i / 256 * bytes;
        int e = (int)(i % 256), run = e / 32, l = e % 32;
        const uint8_t *q = b + (HIGH ? 48 : 16) + 32 * (run / 2) + l;
        float d, m;
        qk_run(b, run, &d, &m);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t pair = load16(q + j) >> 4 * (run & 1) & 0x0F0Fu;
            if (HIGH)
                pair |= (load16(b + 16 + l + j) >> run & 0x0101u) << 4;
            out[j] = __fsub_rn(__fmul_rn(d, (float)(pair & 255)), m);
            out[j + 1] = __fsub_rn(__fmul_rn(d, (float)(pair >> 8)), m);
        }
    }
};

struct fmt_q6_k {
    static constexpr int block = 256;
    static constexpr int bytes = 210;
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        const uint8_t *b = row + i / 256 * 210;
        int e = (int)(i % 256), half = e >> 7, k = e >> 5 & 3, l = e & 31;
        const uint8_t *lo = b + 64 * half + 32 * (k & 1) + l, *hi = b + 128 + 32 * half + l;
        float scale = (float)(int8_t)b[192 + e / 16];
        float d = __fmul_rn(f16_value(load16(b + 208)), scale);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t pair = load16(lo + j) >> 4 * (k >> 1) & 0x0F0Fu;
            pair |= (load16(hi + j) >> 2 * k & 0x0303u) << 4;
            out[j] = __fmul_rn(d, (float)((int)(pair & 255) - 32));
            out[j + 1] = __fmul_rn(d, (float)((int)(pair >> 8) - 32));
        }
    }
};

/* Groups of four-bit codes (quant/int4.h). */
template <int GROUP> struct fmt_int4 {
    static constexpr int block = GROUP;
    static constexpr int bytes = 4 + GROUP / 2;
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        const uint8_t *b = row + i / GROUP * bytes;
        int e = (int)(i % GROUP), shift = e % 32 < 16 ? 0 : 4;
        const uint8_t *q = b + 4 + 16 * (e / 32) + e % 16;
        uint32_t head = load16(b) | load16(b + 2) << 16;
        float scale = __uint_as_float(head & 0xFFFFFF00u);
        int zero = (int)(head & 255u);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t pair = load16(q + j) >> shift;
            out[j] = __fmul_rn(scale, (float)((int)(pair & 15) - zero));
            out[j + 1] = __fmul_rn(scale, (float)((int)(pair >> 8 & 15) - zero));
        }
    }
};

/* The formats of quant/eight.h. */
template <class E> struct fmt_eight {
    static constexpr int block = E::block;
    static constexpr int bytes = E::bytes;
    static __device__ __forceinline__ void eight(const uint8_t *row, int64_t i, float *out)
    {
        sl_eight e;
        E::load(row, i, &e);
        sl_eight_values(&e, out);
    }
};

#define EMBED_THREADS 128
#define EMBED_COLS    (8 * EMBED_THREADS) /* columns of one block of threads */

/* Which row of its table a token has. */
enum embed_by { EMBED_TOKEN, EMBED_PLACE, EMBED_SEGMENT };

struct embed_args {
    const int32_t *ids, *ids_prev; /* PLACE and SEGMENT: positions */
    const uint8_t *data;
    size_t row_bytes;
    int64_t n_rows, n_cols;
    float scale;
    float *out;
    enum embed_by by;
    bool add;                    /* to what out has */
    int32_t first;               /* PLACE: the row of position 0 */
    const struct sl_span *spans; /* SEGMENT: [n_spans], and where their second texts begin */
    const int32_t *second_from;  /* NULL: there are none */
    int32_t n_spans;
};

/* Is the token of the second of two texts? */
static __device__ __forceinline__ bool in_second(const embed_args &a, int64_t t, int32_t position)
{
    int32_t lo = 0, hi = a.n_spans - 1;
    if (a.second_from == nullptr)
        return false;
    while (lo < hi) { /* the last span that does not begin behind t */
        const int32_t mid = lo + (hi - lo + 1) / 2;
        if (a.spans[mid].first <= t)
            lo = mid;
        else
            hi = mid - 1;
    }
    return position >= a.second_from[lo];
}

/* Negative: the step before chose it. What is no row becomes row 0: the step's result for that
 * token is dropped anyway, and no other row may be harmed. */
static __device__ __forceinline__ int64_t row_of_token(const embed_args &a, int64_t t)
{
    int64_t id = a.ids[t];
    if (a.by == EMBED_PLACE)
        id += a.first;
    else if (a.by == EMBED_SEGMENT)
        id = in_second(a, t, a.ids[t]);
    else if (id < 0)
        id = a.ids_prev != nullptr ? a.ids_prev[-1 - id] : 0;
    return id < 0 || id >= a.n_rows ? 0 : id;
}

static __device__ __forceinline__ bool aligned_row(const void *p)
{
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

/* grid (tokens, columns / EMBED_COLS) */
template <typename F>
static __global__ void __launch_bounds__(EMBED_THREADS) embed_kernel(embed_args a)
{
    sl_grid_wait();
    int64_t t = blockIdx.x, i = (int64_t)blockIdx.y * EMBED_COLS + 8 * (int64_t)threadIdx.x;
    const uint8_t *row = a.data + (size_t)row_of_token(a, t) * a.row_bytes;
    float *out = a.out + t * a.n_cols + i;
    sl_grid_launch_dependents();
    if (i >= a.n_cols)
        return;
    int n = a.n_cols - i < 8 ? (int)(a.n_cols - i) : 8;
    __align__(16) float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (F::block > 1 || (n == 8 && aligned_row(row))) {
        F::eight(row, i, x);
    } else if constexpr (F::block == 1) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < n)
                x[j] = F::one(row, i + j);
    }
    if (a.scale != 1.0f) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __fmul_rn(x[j], a.scale);
    }
    if (a.add) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < n)
                x[j] = __fadd_rn(out[j], x[j]);
    }
    if (n == 8 && aligned_row(out)) {
        reinterpret_cast<float4 *>(out)[0] = make_float4(x[0], x[1], x[2], x[3]);
        reinterpret_cast<float4 *>(out)[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < n)
            out[j] = x[j];
}

static void launch_embed(struct sl_cuda *cu, const struct sl_weight *w, int32_t n, embed_args k)
{
    dim3 grid((unsigned)n, (unsigned)((w->n_cols + EMBED_COLS - 1) / EMBED_COLS));
    k.data = static_cast<const uint8_t *>(w->data);
    k.row_bytes = w->row_bytes;
    k.n_rows = w->n_rows;
    k.n_cols = w->n_cols;
    switch (w->dtype) {
    case SL_DTYPE_F32:
        return sl_launch(cu, embed_kernel<fmt_f32>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_F16:
        return sl_launch(cu, embed_kernel<fmt_16<false>>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_BF16:
        return sl_launch(cu, embed_kernel<fmt_16<true>>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_Q8_0:
        return sl_launch(cu, embed_kernel<fmt_q8_0>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_Q4_0:
        return sl_launch(cu, embed_kernel<fmt_q4_0>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_Q4_K:
        return sl_launch(cu, embed_kernel<fmt_qk<false>>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_Q5_K:
        return sl_launch(cu, embed_kernel<fmt_qk<true>>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_Q6_K:
        return sl_launch(cu, embed_kernel<fmt_q6_k>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_INT4_G128:
        return sl_launch(cu, embed_kernel<fmt_int4<128>>, grid, dim3(EMBED_THREADS), 0, k);
    case SL_DTYPE_INT4_G32:
        return sl_launch(cu, embed_kernel<fmt_int4<32>>, grid, dim3(EMBED_THREADS), 0, k);
#define SL_DTYPE(id, name, elems, bytes, gguf, st)
#define SL_EIGHT(id, fmt, elems, bytes, gguf)                                                    \
    case SL_DTYPE_##id:                                                                          \
        return sl_launch(cu, embed_kernel<fmt_eight<sl_eight_##fmt>>, grid, dim3(EMBED_THREADS), \
                         0, k);
#include "quant/dtypes.def"
#undef SL_DTYPE
    default: /* weight_create refuses what has no route */
        sl_cuda_check(cu, cudaErrorInvalidValue, "embed: format");
    }
}

extern "C" void sl_cuda_embed(struct sl_backend *be, const struct sl_op_embed *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    embed_args k = {};
    k.ids = a->ids;
    k.ids_prev = cu->ids_prev;
    k.scale = a->scale;
    k.out = a->out;
    launch_embed(cu, a->w, a->n, k);
}

/* Three lookups one after the other: each may have another format. */
extern "C" void sl_cuda_embed_positions(struct sl_backend *be,
                                        const struct sl_op_embed_positions *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = a->batch;
    embed_args k = {};
    k.ids = b->tokens;
    k.ids_prev = cu->ids_prev;
    k.scale = 1.0f;
    k.out = a->out;
    launch_embed(cu, a->word, b->n_tokens, k);
    k.ids = b->positions;
    k.add = true;
    k.by = EMBED_SEGMENT;
    k.spans = b->spans;
    k.n_spans = b->n_spans;
    k.second_from = a->one_type ? NULL : b->second_from;
    if (a->type != NULL)
        launch_embed(cu, a->type, b->n_tokens, k);
    k.by = EMBED_PLACE;
    k.first = a->first;
    if (a->position != NULL)
        launch_embed(cu, a->position, b->n_tokens, k);
}

/* ------------------------------------------------------------------ inputs of layers */

struct inputs_args {
    const float *x; /* [T, L, h] */
    float *out;     /* [L] blocks of [T, h], ld_out apart */
    int64_t n, ld_out;
    int32_t n_layers, h;
    float scale;
};

static __global__ void __launch_bounds__(256) inputs_kernel(inputs_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < a.n;
         i += (int64_t)gridDim.x * 256) {
        const int64_t row = i / a.h, t = row / a.n_layers;
        a.out[row % a.n_layers * a.ld_out + t * a.h + i % a.h] = __fmul_rn(a.x[i], a.scale);
    }
}

/* The projection is normed where it lies, the rows of the table are added, and what each layer gets
 * goes to its block. */
extern "C" void sl_cuda_layer_inputs(struct sl_backend *be, const struct sl_op_layer_inputs *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_cuda_norm_row row = {a->x, a->h, a->w, a->h};
    sl_cuda_norm_one(cu, &row, a->n * a->n_layers, a->eps);
    embed_args k = {};
    k.ids = a->ids;
    k.ids_prev = cu->ids_prev;
    k.scale = a->row_scale;
    k.out = a->x;
    k.add = true;
    launch_embed(cu, a->table, a->n, k);
    const inputs_args in = {
        a->x, a->out, (int64_t)a->n * a->n_layers * a->h, a->ld_out, a->n_layers, a->h, a->scale};
    const int64_t blocks = (in.n + 255) / 256, most = (int64_t)cu->n_sms * 16;
    sl_launch(cu, inputs_kernel, dim3((unsigned)(blocks < most ? blocks : most)), dim3(256), 0, in);
}

/* ------------------------------------------------------------------ norms */

/* One block of threads per row, in the order of norm.cuh. Rows up to VEC quads a thread stay in
 * registers; longer ones are read twice. */

struct norm_args {
    const float *x, *y; /* y: added first, NULL: plain norm */
    const float *w;
    float *sum; /* where x + y goes */
    __nv_bfloat16 *out;
    float eps;
    int32_t h;
    sl_w8_quant codes; /* of out */
};

static __device__ __forceinline__ uint32_t largest(uint32_t pair)
{
    return max(pair & 0x7FFFu, pair >> 16 & 0x7FFFu);
}

/* What FP8 makes of a warp's groups of 128 columns, of each of which a lane has four. Lane k makes
 * the scale of group k for all, as divisions are most of the work. */
template <int NT, int VEC>
static __device__ __forceinline__ void store_codes(const sl_w8_quant &a, int64_t token,
                                                   const uint2 (&pairs)[VEC])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        uint32_t m = __reduce_max_sync(0xffffffffu, max(largest(pairs[k].x), largest(pairs[k].y)));
        most = lane == k ? m : most;
    }
    const sl_w8_scale mine = sl_w8_scale_of(most);
    uint8_t *row = a.q + token * a.n_k * 128 + 4 * lane;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        const int group = warp + NT / 32 * k;
        const float inv = __shfl_sync(0xffffffffu, mine.inv, k);
        const sl_w8_scale s = {0.0f, inv, inv != 0.0f};
        if (group < a.n_k)
            *reinterpret_cast<uint32_t *>(row + group * 128) =
                s.codes(pairs[k].x) | s.codes(pairs[k].y) << 16;
    }
    const int group = warp + NT / 32 * lane;
    if (lane < VEC && group < a.n_k)
        a.xs[static_cast<int64_t>(group) * a.ld_xs + token] = mine.scale;
}

/* ADD: x + y first. CODES: and what FP8 makes of the row. */
template <int NT, int VEC, bool ADD, bool CODES, bool WIDE>
static __global__ void __launch_bounds__(NT) norm_kernel(norm_args a)
{
    SL_SMEM(float, room);
    int64_t at = (int64_t)blockIdx.x * a.h;
    int32_t first = 4 * (int32_t)threadIdx.x;
    float4 v[VEC], w[VEC];
    float s = 0.0f;
#pragma unroll
    for (int k = 0; k < VEC; k++) /* weights are constant: no need to wait */
        w[k] = sl_norm_load4<WIDE>(a.w, first + 4 * NT * k, a.h);
    sl_grid_launch_dependents(); /* the product behind begins to fetch its weights */
    sl_grid_wait();
#pragma unroll
    for (int k = 0; k < VEC; k++)
        v[k] = sl_norm_load4<WIDE>(a.x + at, first + 4 * NT * k, a.h);
    if (ADD) {
        float4 y[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++)
            y[k] = sl_norm_load4<WIDE>(a.y + at, first + 4 * NT * k, a.h);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            v[k] = sl_norm_add4(v[k], y[k]);
            sl_norm_store4<WIDE>(a.sum + at, first + 4 * NT * k, a.h, v[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s = sl_norm_squares(s, v[k]);
    float scale = sl_norm_scale(sl_norm_sum_block<NT>(s, room), a.eps, a.h);
    uint2 pairs[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        const int32_t i = first + 4 * NT * k;
        sl_norm_store<WIDE>(a.out + at, i, a.h, v[k], w[k], scale);
        if (!CODES)
            continue;
        const sl_norm_quad q = sl_norm_of(v[k], w[k], scale);
        pairs[k] = i < a.h ? *reinterpret_cast<const uint2 *>(&q) : make_uint2(0, 0);
    }
    if constexpr (CODES)
        store_codes<NT, VEC>(a.codes, blockIdx.x, pairs);
}

/* Any width, the same order with more quads a thread; each thread reads again what it wrote. */
template <bool ADD> static __global__ void __launch_bounds__(1024) norm_long_kernel(norm_args a)
{
    SL_SMEM(float, room);
    int64_t at = (int64_t)blockIdx.x * a.h;
    float s = 0.0f;
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < a.h; i += 4096) {
        float4 v = sl_norm_load4<false>(a.x + at, i, a.h);
        if (ADD) {
            v = sl_norm_add4(v, sl_norm_load4<false>(a.y + at, i, a.h));
            sl_norm_store4<false>(a.sum + at, i, a.h, v);
        }
        s = sl_norm_squares(s, v);
    }
    float scale = sl_norm_scale(sl_norm_sum_block<1024>(s, room), a.eps, a.h);
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < a.h; i += 4096)
        sl_norm_store<false>(a.out + at, i, a.h, sl_norm_load4<false>(a.x + at, i, a.h),
                             sl_norm_load4<false>(a.w, i, a.h), scale);
}

template <int NT, int VEC, bool ADD, bool CODES>
static void launch_norm(struct sl_cuda *cu, int32_t n, const norm_args &a)
{
    uintptr_t all = reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.y) |
                    reinterpret_cast<uintptr_t>(a.w) | reinterpret_cast<uintptr_t>(a.out);
    bool wide = a.h % 4 == 0 && (all & 15) == 0;
    SL_ASSERT(wide || !CODES);
    sl_launch(
        cu, wide ? norm_kernel<NT, VEC, ADD, CODES, true> : norm_kernel<NT, VEC, ADD, CODES, CODES>,
        dim3((unsigned)n), dim3(NT), 32 * sizeof(float), a);
}

/* Of codes up to SL_LIN_NORM_COLS. */
template <bool ADD, bool CODES> static void norm(struct sl_cuda *cu, int32_t n, const norm_args &a)
{
    if (a.h <= 1024)
        launch_norm<256, 1, ADD, CODES>(cu, n, a);
    else if (a.h <= 2048)
        launch_norm<256, 2, ADD, CODES>(cu, n, a);
    else if (a.h <= 4096)
        launch_norm<256, 4, ADD, CODES>(cu, n, a);
    else if (CODES || a.h <= 8192)
        launch_norm<256, 8, ADD, CODES>(cu, n, a);
    else if (a.h <= 16384)
        launch_norm<1024, 4, ADD, false>(cu, n, a);
    else
        sl_launch(cu, norm_long_kernel<ADD>, dim3((unsigned)n), dim3(1024), 32 * sizeof(float), a);
}

/* ------------------------------------------------------------------ norms of a few rows */

#define FEW_ROWS 64 /* most */

/* What is added to a row of x may be the sums of eight segments of a product, 4 * 8 * h bytes. */
struct few_args {
    norm_args norm;
    const float *sums; /* [n_segs][rows][h]; they are added in order, then the bias, then x */
    int64_t seg;       /* floats of a segment */
    int32_t n_segs;
    const float *bias; /* NULL: none */
};
static_assert(SL_NORM_SUMS >= SL_LIN_SEGS_LONG, "all segments of a product");

template <int QUADS>
static __global__ void __launch_bounds__(SL_NORM_CLUSTER_THREADS) few_kernel(few_args a)
{
    SL_SMEM(float4, smem);
    sl_norm_cluster<QUADS> c(smem);
    const int h = a.norm.h;
    const int64_t at = static_cast<int64_t>(blockIdx.x / SL_NORM_CLUSTER) * h;
    float4 v[QUADS], w[QUADS];
#pragma unroll
    for (int j = 0; j < QUADS; j++)
        w[j] = sl_norm_load4<true>(a.norm.w, c.column(j), h);
    sl_cluster_sync(); /* all are there */
    sl_grid_launch_dependents();
    sl_grid_wait();
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        const int i = c.column(j);
        v[j] = sl_norm_load4<true>(a.norm.x + at, i, h);
        if (i < h) {
            const float *bias = a.bias != nullptr ? a.bias + i : nullptr;
            v[j] = sl_norm_add4(v[j], sl_norm_sums(a.sums + at + i, a.seg, a.n_segs, bias));
            sl_norm_store4<true>(a.norm.sum + at, i, h, v[j]);
        }
    }
    const float scale = c.scale(v, a.norm.eps, h);
#pragma unroll
    for (int j = 0; j < QUADS; j++)
        sl_norm_store<true>(a.norm.out + at, c.column(j), h, v[j], w[j], scale);
}

static bool few_fits(const norm_args *a, int32_t n)
{
    uintptr_t all = reinterpret_cast<uintptr_t>(a->x) | reinterpret_cast<uintptr_t>(a->y) |
                    reinterpret_cast<uintptr_t>(a->w) | reinterpret_cast<uintptr_t>(a->out);
    return n <= FEW_ROWS && a->h % 4 == 0 && a->h <= 2 * SL_NORM_CLUSTER_COLS && (all & 15) == 0;
}

static void few(struct sl_cuda *cu, int32_t n, const few_args &a)
{
    const bool wide = a.norm.h > SL_NORM_CLUSTER_COLS;
    const int bytes = wide ? sl_norm_cluster<2>::bytes : sl_norm_cluster<1>::bytes;
    sl_launch_cluster(cu, wide ? few_kernel<2> : few_kernel<1>,
                      dim3((unsigned)(n * SL_NORM_CLUSTER)), dim3(SL_NORM_CLUSTER_THREADS),
                      (size_t)bytes, SL_NORM_CLUSTER, a);
}

/* ------------------------------------------------------------------ the operations */

static norm_args args_of(const struct sl_cuda_norm *a)
{
    return {a->x, a->y, a->w, const_cast<float *>(a->x), a->out, a->eps, a->h, {}};
}

void sl_cuda_norm_run(struct sl_cuda *cu, const struct sl_cuda_norm *a)
{
    if (a->y != NULL)
        norm<true, false>(cu, a->n, args_of(a));
    else
        norm<false, false>(cu, a->n, args_of(a));
}

/* Of what may wait, which is aligned (fuse.cu). */
void sl_cuda_norm_codes(struct sl_cuda *cu, const struct sl_cuda_norm *a, const sl_w8_quant *q)
{
    norm_args k = args_of(a);
    k.codes = *q;
    if (a->y != NULL)
        norm<true, true>(cu, a->n, k);
    else
        norm<false, true>(cu, a->n, k);
}

static void run_norm(struct sl_cuda *cu, const struct sl_cuda_norm *a)
{
    if (!sl_cuda_fuse_norm(cu, a))
        sl_cuda_norm_run(cu, a);
}

extern "C" void sl_cuda_rmsnorm(struct sl_backend *be, const struct sl_op_rmsnorm *a)
{
    struct sl_cuda_norm n = {a->x, a->w, a->eps, a->n, a->h, static_cast<__nv_bfloat16 *>(a->out),
                             NULL};
    if (a->out == NULL) {
        const struct sl_cuda_norm_row row = {const_cast<float *>(a->x), a->h, a->w, a->h};
        sl_cuda_norm_one(sl_cuda(be), &row, a->n, a->eps);
        return;
    }
    if (a->w == NULL) {
        struct sl_op_add_rmsnorm join = {};
        join.x = const_cast<float *>(a->x), join.n = a->n, join.h = a->h, join.out = a->out;
        sl_cuda_join(sl_cuda(be), &join);
        return;
    }
    run_norm(sl_cuda(be), &n);
}

extern "C" void sl_cuda_add_rmsnorm(struct sl_backend *be, const struct sl_op_add_rmsnorm *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    if (a->out == NULL && a->w_y == NULL && a->y_scale == 0 && a->x_scale == 0 &&
        sl_cuda_fuse_add(cu, a, false).fused)
        return;
    if (a->w == NULL || a->w_y != NULL || a->y_scale != 0 || a->x_scale != 0) {
        sl_cuda_join(cu, a);
        return;
    }
    struct sl_cuda_norm n = {a->x, a->w, a->eps, a->n, a->h, static_cast<__nv_bfloat16 *>(a->out),
                             a->y};
    if (a->y != NULL && cu->fp8_room == NULL && sl_cuda_fuse_meet_norm(cu, &n))
        return;
    norm_args k = args_of(&n);
    struct sl_cuda_sum sum = sl_cuda_fuse_add(cu, a, few_fits(&k, a->n));
    if (sum.left.sums != NULL) {
        few(cu, a->n, {k, sum.left.sums, (int64_t)a->n * a->h, sum.left.n_segs, sum.bias});
        return;
    }
    if (!sum.fused && a->y != NULL && cu->comm != NULL && cu->fp8_room == NULL &&
        few_fits(&k, a->n)) { /* y was gathered: no product norms what is not added yet */
        few(cu, a->n, {k, a->y, 0, 1, NULL});
        return;
    }
    if (sum.fused)
        n.y = NULL;
    run_norm(cu, &n);
}

/* ------------------------------------------------------------------ activations */

struct act_args {
    const float *x, *up; /* up: a factor, or NULL */
    __nv_bfloat16 *out;
    int64_t n;
    enum sl_act act;
    struct sl_swiglu swiglu; /* beside up, with a limit: in place of act */
    struct sl_xielu xielu;
};

static __device__ __forceinline__ float any_act(enum sl_act act, float x)
{
    const float positive = 0.0f > x ? 0.0f : x; /* NaN stays */
    switch (act) {
    case SL_ACT_GELU_ERF:
        return sl_gelu_erf(x);
    case SL_ACT_TANH:
        return sl_tanh(x);
    case SL_ACT_RELU:
        return positive;
    case SL_ACT_RELU2:
        return __fmul_rn(positive, positive);
    case SL_ACT_SIGMOID:
        return __fdiv_rn(1.0f, __fadd_rn(1.0f, sl_exp(-x)));
    default:
        return sl_act(act, x);
    }
}

static __global__ void __launch_bounds__(256) act_kernel(act_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < a.n;
         i += (int64_t)gridDim.x * 256) {
        float y;
        if (a.swiglu.limit > 0.0f)
            y = sl_swiglu_of(a.swiglu, a.x[i], a.up[i]);
        else if (a.act == SL_ACT_XIELU)
            y = sl_xielu_of(a.xielu, a.x[i]);
        else if (a.up != nullptr)
            y = __fmul_rn(any_act(a.act, a.x[i]), a.up[i]);
        else
            y = any_act(a.act, a.x[i]);
        a.out[i] = __float2bfloat16_rn(y);
    }
}

extern "C" void sl_cuda_activate(struct sl_backend *be, const struct sl_op_activate *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const act_args k = {a->x,      a->up,   static_cast<__nv_bfloat16 *>(a->out), a->n, a->act,
                        a->swiglu, a->xielu};
    const int64_t blocks = (a->n + 255) / 256, most = (int64_t)cu->n_sms * 16;
    sl_launch(cu, act_kernel, dim3((unsigned)(blocks < most ? blocks : most)), dim3(256), 0, k);
}

struct gate_args {
    __nv_bfloat16 *x;
    const float *gate;
    int64_t n;
    int32_t dim; /* values that share a logit */
    bool softplus;
};

static __global__ void __launch_bounds__(256) gate_heads_kernel(gate_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < a.n;
         i += (int64_t)gridDim.x * 256) {
        const float gate = a.gate[i / a.dim];
        const float open =
            a.softplus ? sl_softplus(gate) : __fdiv_rn(1.0f, __fadd_rn(1.0f, sl_exp(-gate)));
        a.x[i] = __float2bfloat16_rn(__fmul_rn(__bfloat162float(a.x[i]), open));
    }
}

extern "C" void sl_cuda_gate_heads(struct sl_backend *be, const struct sl_op_gate_heads *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const gate_args k = {static_cast<__nv_bfloat16 *>(a->x), a->gate,
                         (int64_t)a->n * a->n_heads * a->dim, a->by_head ? a->dim : 1, a->softplus};
    const int64_t blocks = (k.n + 255) / 256, most = (int64_t)cu->n_sms * 16;
    sl_launch(cu, gate_heads_kernel, dim3((unsigned)(blocks < most ? blocks : most)), dim3(256), 0,
              k);
}

struct logit_args {
    float *x;
    int64_t n;
    float scale, cap;
};

static __global__ void __launch_bounds__(256) logit_kernel(logit_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < a.n;
         i += (int64_t)gridDim.x * 256) {
        const float v = __fmul_rn(a.x[i], a.scale);
        a.x[i] = a.cap > 0.0f ? __fmul_rn(sl_tanh(__fdiv_rn(v, a.cap)), a.cap) : v;
    }
}

extern "C" void sl_cuda_scale_logits(struct sl_backend *be, const struct sl_op_scale_logits *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const logit_args k = {a->x, a->n, a->scale, a->cap};
    const int64_t blocks = (a->n + 255) / 256, most = (int64_t)cu->n_sms * 16;
    sl_launch(cu, logit_kernel, dim3((unsigned)(blocks < most ? blocks : most)), dim3(256), 0, k);
}

/* ------------------------------------------------------------------ angles */

struct angle_args {
    const int32_t *positions;
    const float *inv_freq;
    float factor;
    int32_t n, n_freqs;
    float *out;
};

/* The angle is rounded to float before its cosine is taken, as the models were trained. */
static __global__ void __launch_bounds__(128) angles_kernel(angle_args a)
{
    sl_grid_wait();
    int64_t at = (int64_t)blockIdx.x * 128 + threadIdx.x;
    if (at >= (int64_t)a.n * a.n_freqs)
        return;
    int32_t t = (int32_t)(at / a.n_freqs), i = (int32_t)(at % a.n_freqs);
    double s, c, angle = (double)__fmul_rn((float)a.positions[t], a.inv_freq[i]);
    sincos(angle, &s, &c);
    float *out = a.out + 2 * at;
    out[0] = __fmul_rn((float)c, a.factor);
    out[1] = __fmul_rn((float)s, a.factor);
}

extern "C" void sl_cuda_rope_angles(struct sl_backend *be, const struct sl_op_rope_angles *a)
{
    angle_args k = {a->positions, a->rope->inv_freq,   a->rope->attn_factor,
                    a->n,         a->rope->n_dims / 2, a->out};
    int64_t n = (int64_t)k.n * k.n_freqs;
    sl_launch(sl_cuda(be), angles_kernel, dim3((unsigned)((n + 127) / 128)), dim3(128), 0, k);
}

/* ------------------------------------------------------------------ gather */

struct gather_args {
    const void *x;
    const int32_t *rows;
    size_t n_units; /* of a row */
    void *out;
};

/* grid (rows, units / 1024): each thread copies up to four units, read before any is written. */
template <typename U> static __global__ void __launch_bounds__(256) gather_kernel(gather_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const U *from = static_cast<const U *>(a.x) + (size_t)a.rows[blockIdx.x] * a.n_units;
    U *to = static_cast<U *>(a.out) + (size_t)blockIdx.x * a.n_units;
    for (size_t base = (size_t)blockIdx.y * 1024; base < a.n_units;
         base += (size_t)gridDim.y * 1024) {
        U v[4];
        size_t i = base + threadIdx.x;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + 256 * k < a.n_units)
                v[k] = from[i + 256 * k];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + 256 * k < a.n_units)
                to[i + 256 * k] = v[k];
    }
}

extern "C" void sl_cuda_gather_rows(struct sl_backend *be, const struct sl_op_gather_rows *a)
{
    bool wide =
        ((reinterpret_cast<uintptr_t>(a->x) | reinterpret_cast<uintptr_t>(a->out) | a->row_bytes) &
         15) == 0;
    gather_args k = {a->x, a->rows, a->row_bytes / (wide ? 16 : 4), a->out};
    size_t parts = (k.n_units + 1023) / 1024;
    dim3 grid((unsigned)a->n, (unsigned)(parts < MAX_GRID_Y ? parts : MAX_GRID_Y));
    sl_launch(sl_cuda(be), wide ? gather_kernel<uint4> : gather_kernel<uint32_t>, grid, dim3(256),
              0, k);
}
