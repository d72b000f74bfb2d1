/* SPDX-License-Identifier: MIT
 * What only drafts need: rows copied between widths and formats, and the steps of one token each
 * that follow a step of a model that drafts.
 *
 * Those steps have a block of their own on the device, which is sent once, before the first of
 * them. Behind each one a kernel moves it on by a position and keeps what was chosen, so that no
 * step waits for the host or for a copy, and the ids of all go back in one copy. Each of them is
 * the same graph.
 *
 * Expected, not measured: copies are bound by memory for many rows (EAGLE-3's three rows of 4,096
 * of a token: 48 KiB read, 24 written) and by the launch for few.
 */
#include "cuda/step/step.h"

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#include <cuda_bf16.h>
#include <string.h>

#define COPY_THREADS 256
#define COPY_COLS    1024 /* of a block: four a thread */

/* ------------------------------------------------------------------ rows */

struct copy_args {
    const void *x;
    int64_t ld_x;
    const int32_t *rows;
    int32_t h;
    void *out;
    int64_t ld_out;
};

/* Four columns, or those there are of them. A format's bits are kept where it stays. */
template <bool ACT, bool WIDE>
static __device__ __forceinline__ void copy_load(const void *row, int32_t i, int32_t n, float v[4])
{
    if (WIDE && ACT) {
        const uint2 p =
            *reinterpret_cast<const uint2 *>(static_cast<const __nv_bfloat16 *>(row) + i);
        v[0] = __uint_as_float(p.x << 16), v[1] = __uint_as_float(p.x & 0xFFFF0000u);
        v[2] = __uint_as_float(p.y << 16), v[3] = __uint_as_float(p.y & 0xFFFF0000u);
    } else if (WIDE) {
        const float4 p = *reinterpret_cast<const float4 *>(static_cast<const float *>(row) + i);
        v[0] = p.x, v[1] = p.y, v[2] = p.z, v[3] = p.w;
    } else {
        for (int32_t k = 0; k < n; k++)
            v[k] = ACT ? __bfloat162float(static_cast<const __nv_bfloat16 *>(row)[i + k])
                       : static_cast<const float *>(row)[i + k];
    }
}

template <bool ACT, bool WIDE>
static __device__ __forceinline__ void copy_store(void *row, int32_t i, int32_t n, const float v[4])
{
    if (WIDE && ACT) {
        uint2 p;
        p.x = __bfloat16_as_ushort(__float2bfloat16_rn(v[0])) |
              static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(v[1]))) << 16;
        p.y = __bfloat16_as_ushort(__float2bfloat16_rn(v[2])) |
              static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(v[3]))) << 16;
        *reinterpret_cast<uint2 *>(static_cast<__nv_bfloat16 *>(row) + i) = p;
    } else if (WIDE) {
        *reinterpret_cast<float4 *>(static_cast<float *>(row) + i) =
            make_float4(v[0], v[1], v[2], v[3]);
    } else {
        for (int32_t k = 0; k < n; k++)
            if (ACT)
                static_cast<__nv_bfloat16 *>(row)[i + k] = __float2bfloat16_rn(v[k]);
            else
                static_cast<float *>(row)[i + k] = v[k];
    }
}

/* grid (rows, columns / COPY_COLS) */
template <bool IN, bool OUT, bool WIDE>
static __global__ void __launch_bounds__(COPY_THREADS) copy_kernel(copy_args a)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int64_t at = a.rows != nullptr ? a.rows[blockIdx.x] : blockIdx.x;
    const int32_t i =
        static_cast<int32_t>(blockIdx.y) * COPY_COLS + 4 * static_cast<int32_t>(threadIdx.x);
    const uint8_t *x =
        static_cast<const uint8_t *>(a.x) + at * a.ld_x * (IN ? (int64_t)2 : (int64_t)4);
    uint8_t *out = static_cast<uint8_t *>(a.out) +
                   (int64_t)blockIdx.x * a.ld_out * (OUT ? (int64_t)2 : (int64_t)4);
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i >= a.h)
        return;
    const int32_t n = a.h - i < 4 ? a.h - i : 4;
    copy_load<IN, WIDE>(x, i, n, v);
    copy_store<OUT, WIDE>(out, i, n, v);
}

template <bool IN, bool OUT>
static void copy(struct sl_cuda *cu, const struct sl_op_copy_rows *a, bool wide)
{
    const copy_args k = {a->x, a->ld_x, a->rows, a->h, a->out, a->ld_out};
    const dim3 grid(static_cast<unsigned>(a->n),
                    static_cast<unsigned>(SL_CEIL_DIV(a->h, COPY_COLS)));
    sl_launch(cu, wide ? copy_kernel<IN, OUT, true> : copy_kernel<IN, OUT, false>, grid,
              dim3(COPY_THREADS), 0, k);
}

extern "C" void sl_cuda_copy_rows(struct sl_backend *be, const struct sl_op_copy_rows *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const bool wide =
        ((reinterpret_cast<uintptr_t>(a->x) | reinterpret_cast<uintptr_t>(a->out)) & 15) == 0 &&
        ((a->ld_x | a->ld_out) & 7) == 0 && a->h % 4 == 0;
    if (a->x_act)
        a->out_act ? copy<true, true>(cu, a, wide) : copy<true, false>(cu, a, wide);
    else
        a->out_act ? copy<false, true>(cu, a, wide) : copy<false, false>(cu, a, wide);
}

/* ------------------------------------------------------------------ the steps behind a step */

/* What lies before the arrays of their block. */
struct again_head {
    int32_t n;    /* sequences, without padding */
    int32_t done; /* steps, the first one among them */
};

struct again_args {
    struct again_head *head;
    const int32_t *ids; /* chosen by the step before */
    int32_t *kept;      /* [steps, n] by all */
    int32_t *positions;
    struct sl_span *spans;
};

/* One block. Behind a step: keeps what it chose, and moves the block to the next position, unless
 * that was the first step, which has a block of its own. */
static __global__ void __launch_bounds__(COPY_THREADS) again_kernel(again_args a)
{
    sl_grid_wait();
    const int32_t n = a.head->n, done = a.head->done;
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += COPY_THREADS) {
        a.kept[done * n + i] = a.ids[i];
        if (done > 0) {
            a.positions[i]++;
            a.spans[i].pos++;
        }
    }
    if (threadIdx.x == 0)
        a.head->done = done + 1;
}

struct again_layout {
    size_t tokens, positions, spans, logit_rows, tables, n_bytes;
};

static struct again_layout again_layout_of(int32_t n_spans, int32_t n_table)
{
    const size_t each = SL_ROUND_UP(static_cast<size_t>(n_spans) * sizeof(int32_t),
                                    static_cast<size_t>(SL_CUDA_ALIGN));
    struct again_layout l;
    l.tokens = SL_CUDA_ALIGN; /* behind the head */
    l.positions = l.tokens + each;
    l.logit_rows = l.positions + each;
    l.spans = l.logit_rows + each;
    l.tables = l.spans + SL_ROUND_UP(static_cast<size_t>(n_spans) * sizeof(struct sl_span),
                                     static_cast<size_t>(SL_CUDA_ALIGN));
    l.n_bytes = l.tables + static_cast<size_t>(n_table) * sizeof(int32_t);
    return l;
}

size_t sl_cuda_again_bytes(const struct sl_step_limits *lim)
{
    return lim->max_again > 0 ? again_layout_of(lim->max_spans, lim->max_table + 1).n_bytes : 0;
}

size_t sl_cuda_kept_bytes(const struct sl_step_limits *lim)
{
    return lim->max_again > 0 ? (static_cast<size_t>(lim->max_again) + 1) *
                                    static_cast<size_t>(lim->max_spans) * sizeof(int32_t)
                              : 0;
}

/* Page ids that the sequences use up to the last of the steps. */
static int32_t again_n_table(const struct sl_cuda_steps *s, const struct sl_step *first)
{
    const struct sl_batch *b = &first->batch;
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_logits; i++) {
        const int32_t end = b->positions[b->logit_rows[i]] + first->n_again + 1;
        n = SL_MAX(n, b->spans[i].table_idx + SL_CEIL_DIV(end, s->lim.block_size));
    }
    return n;
}

void sl_cuda_again_send(struct sl_cuda *cu, const struct sl_step *first, uint8_t *in,
                        struct sl_step *dev)
{
    const struct sl_cuda_steps *s = cu->steps;
    const struct sl_batch *b = &first->batch;
    const int32_t n = b->n_logits, n_table = again_n_table(s, first);
    const int32_t padded =
        s->max_width > 0 ? sl_cuda_rung(n, SL_MIN(s->lim.max_spans, s->lim.max_logits)) : n;
    const struct again_layout l = again_layout_of(padded, n_table + 1);
    SL_ASSERT(n >= 1 && n <= b->n_spans && first->n_again <= s->lim.max_again);
    SL_ASSERT(n_table <= s->lim.max_table && padded <= s->lim.max_spans);
    struct again_head *head = reinterpret_cast<struct again_head *>(in);
    int32_t *tokens = reinterpret_cast<int32_t *>(in + l.tokens);
    int32_t *positions = reinterpret_cast<int32_t *>(in + l.positions);
    int32_t *rows = reinterpret_cast<int32_t *>(in + l.logit_rows);
    int32_t *tables = reinterpret_cast<int32_t *>(in + l.tables);
    struct sl_span *spans = reinterpret_cast<struct sl_span *>(in + l.spans);
    *head = {n, 0};
    for (int32_t i = 0; i < padded; i++) {
        const bool real = i < n;
        SL_ASSERT(!real || (b->logit_rows[i] >= b->spans[i].first &&
                            b->logit_rows[i] < b->spans[i].first + b->spans[i].n));
        tokens[i] = real ? -1 - i : 0;
        positions[i] = real ? b->positions[b->logit_rows[i]] + 1 : 0;
        rows[i] = i;
        spans[i] = {i, 1, positions[i], real ? b->spans[i].table_idx : n_table, 0};
    }
    memcpy(tables, sl_batch_tables(b, 0), static_cast<size_t>(n_table) * sizeof *tables);
    tables[n_table] = s->lim.scratch_pages[0];
    sl_cuda_check(cu, cudaMemcpyAsync(s->again, in, l.n_bytes, cudaMemcpyHostToDevice, cu->stream),
                  "cudaMemcpyAsync of the steps behind a step");
    dev->part = SL_STEP_AGAIN;
    dev->drafts = true;
    dev->variant = first->variant;
    dev->batch.n_tokens = dev->batch.n_spans = dev->batch.n_logits = padded;
    dev->batch.tokens = reinterpret_cast<const int32_t *>(s->again + l.tokens);
    dev->batch.positions = reinterpret_cast<const int32_t *>(s->again + l.positions);
    dev->batch.logit_rows = reinterpret_cast<const int32_t *>(s->again + l.logit_rows);
    dev->batch.spans = reinterpret_cast<const struct sl_span *>(s->again + l.spans);
    dev->batch.block_tables = reinterpret_cast<const int32_t *>(s->again + l.tables);
    dev->batch.n_tables = 1;
    dev->extra = s->extra;
    dev->ids = reinterpret_cast<int32_t *>(s->out);
}

void sl_cuda_again_keep(struct sl_cuda *cu, const struct sl_step *dev)
{
    const struct sl_cuda_steps *s = cu->steps;
    again_args k = {};
    k.head = reinterpret_cast<struct again_head *>(s->again);
    k.ids = dev->ids;
    k.kept = reinterpret_cast<int32_t *>(s->kept);
    if (dev->part == SL_STEP_AGAIN) {
        k.positions = const_cast<int32_t *>(dev->batch.positions);
        k.spans = const_cast<struct sl_span *>(dev->batch.spans);
    }
    sl_launch(cu, again_kernel, dim3(1), dim3(COPY_THREADS), 0, k);
}
