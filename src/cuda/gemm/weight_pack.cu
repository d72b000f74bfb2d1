/* SPDX-License-Identifier: MIT
 * Matrices: sizes, packing on the device, creation and destruction.
 */
#include "cuda/gemm/weight_pack.cuh"

#include "base/check.h"
#include "cuda/gemm/linear.h"
#include "cuda/launch.cuh"
#include "cuda/slab.h"

#include <string.h>

#define PACK_WARPS 8
/* The file's rows pass through a buffer of this size, so that a matrix needs little more memory
 * than it takes in the end. */
#define PACK_SLICE (64 << 20)
#define PACK_ALIGN ((size_t)16)

static const struct sl_cuda_layout_info layouts[SL_CUDA_LAYOUTS] = {
    {"rows", 0, 0},
    {"bf16", sl_wf_bf16::unit_k, sl_wf_bf16::unit_bytes},
    {"q8_0", sl_wf_q8_0::unit_k, sl_wf_q8_0::unit_bytes},
    {"q4_0", sl_wf_q4_0::unit_k, sl_wf_q4_0::unit_bytes},
    {"q4_k", sl_wf_q4_k::unit_k, sl_wf_q4_k::unit_bytes},
    {"q5_k", sl_wf_q5_k::unit_k, sl_wf_q5_k::unit_bytes},
    {"q6_k", sl_wf_q6_k::unit_k, sl_wf_q6_k::unit_bytes},
    {"fp8", sl_wf_fp8::unit_k, sl_wf_fp8::unit_bytes},
    {"w8a8", 128, SL_CUDA_W8A8_UNIT / 4}, /* 16 of its rows */
    {"int4_g128", sl_wf_int4_g128::unit_k, sl_wf_int4_g128::unit_bytes},
    {"int4_g32", sl_wf_int4_g32::unit_k, sl_wf_int4_g32::unit_bytes},
    {"mxfp4", sl_wf_mxfp4::unit_k, sl_wf_mxfp4::unit_bytes},
};

const struct sl_cuda_layout_info *sl_cuda_layout_info(int32_t layout)
{
    return &layouts[layout];
}

int64_t sl_cuda_stream_bytes(int32_t layout, int64_t n_cols)
{
    const struct sl_cuda_layout_info *info = &layouts[layout];
    int64_t n_units = SL_CEIL_DIV(n_cols, (int64_t)info->unit_k);
    return sl_cuda_row_units(n_units, info->unit_bytes) * info->unit_bytes;
}

int64_t sl_cuda_w8a8_bytes(int64_t n_rows, int64_t n_cols)
{
    int64_t blocks = SL_CEIL_DIV(n_rows, (int64_t)SL_CUDA_W8A8_ROWS);
    int64_t n_units = blocks * SL_CEIL_DIV(n_cols, (int64_t)128);
    return n_units * (SL_CUDA_W8A8_UNIT + (int64_t)sizeof(float)) +
           blocks * SL_CUDA_W8A8_ROWS * (int64_t)sizeof(float);
}

bool sl_cuda_w8a8(int64_t n_rows, int64_t n_cols, const struct sl_scales *s)
{
    if (s == NULL || s->values == NULL || s->cols >= n_cols)
        return true;
    return s->cols % 128 == 0 &&
           (s->rows % SL_CUDA_W8A8_ROWS == 0 || s->rows >= s->first_row + n_rows);
}

/* One warp, one unit of one row block; the slice's first row is a row block's first. */
template <class Pack>
__global__ void __launch_bounds__(32 * PACK_WARPS)
    weight_pack_kernel(sl_pack_src s, uint8_t *out, int64_t n_blocks, int64_t n_units)
{
    sl_grid_wait();
    constexpr int64_t unit_bytes = Pack::format::unit_bytes;
    int64_t i = static_cast<int64_t>(blockIdx.x) * PACK_WARPS + threadIdx.x / 32;
    int64_t block = i / n_units, unit = i % n_units;
    if (block < n_blocks)
        Pack::unit(s, block * SL_CUDA_ROW_BLOCK, unit * Pack::format::unit_k,
                   out + (block * sl_cuda_row_units(n_units, unit_bytes) + unit) * unit_bytes,
                   static_cast<int>(threadIdx.x % 32));
    sl_grid_launch_dependents();
}

template <class Pack> static void pack(struct sl_cuda *cu, const sl_pack_src *s, uint8_t *out)
{
    int64_t n_blocks = SL_CEIL_DIV(s->n_rows, (int64_t)SL_CUDA_ROW_BLOCK);
    int64_t n_units = SL_CEIL_DIV(s->n_cols, (int64_t)Pack::format::unit_k);
    int64_t grid = SL_CEIL_DIV(n_blocks * n_units, (int64_t)PACK_WARPS);
    sl_launch(cu, weight_pack_kernel<Pack>, dim3(static_cast<unsigned>(grid)),
              dim3(32 * PACK_WARPS), 0, *s, out, n_blocks, n_units);
}

/* What a file format becomes. */
static const struct pack_row {
    enum sl_dtype dtype;
    int32_t layout;
    void (*pack)(struct sl_cuda *cu, const sl_pack_src *s, uint8_t *out);
} pack_rows[] = {
    {SL_DTYPE_F32, SL_CUDA_BF16, pack<sl_pack_bf16_of<sl_file_f32>>},
    {SL_DTYPE_F16, SL_CUDA_BF16, pack<sl_pack_bf16_of<sl_file_f16>>},
    {SL_DTYPE_BF16, SL_CUDA_BF16, pack<sl_pack_bf16_of<sl_file_bf16>>},
    {SL_DTYPE_Q8_0, SL_CUDA_Q8_0, pack<sl_pack_q8_0>},
    {SL_DTYPE_Q4_0, SL_CUDA_Q4_0, pack<sl_pack_q4_0>},
    {SL_DTYPE_Q4_K, SL_CUDA_Q4_K, pack<sl_pack_q4_k>},
    {SL_DTYPE_Q5_K, SL_CUDA_Q5_K, pack<sl_pack_q5_k>},
    {SL_DTYPE_Q6_K, SL_CUDA_Q6_K, pack<sl_pack_q6_k>},
    {SL_DTYPE_FP8_E4M3, SL_CUDA_FP8, pack<sl_pack_fp8>},
    {SL_DTYPE_INT4_G128, SL_CUDA_INT4_G128, pack<sl_pack_int4<sl_wf_int4_g128, 128>>},
    {SL_DTYPE_INT4_G32, SL_CUDA_INT4_G32, pack<sl_pack_int4<sl_wf_int4_g32, 32>>},
    {SL_DTYPE_Q4_1, SL_CUDA_INT4_G32, pack<sl_pack_q4_1>},
    {SL_DTYPE_Q5_0, SL_CUDA_Q8_0, pack<sl_pack_eight_q8_0<sl_eight_q5_0>>},
    {SL_DTYPE_Q5_1, SL_CUDA_BF16, pack<sl_pack_bf16_of<sl_file_eight<sl_eight_q5_1>>>},
    {SL_DTYPE_Q2_K, SL_CUDA_BF16, pack<sl_pack_bf16_of<sl_file_eight<sl_eight_q2_k>>>},
    {SL_DTYPE_Q3_K, SL_CUDA_Q6_K, pack<sl_pack_eight_q6_k<sl_eight_q3_k, 1>>},
    {SL_DTYPE_IQ4_NL, SL_CUDA_Q8_0, pack<sl_pack_eight_q8_0<sl_eight_iq4_nl>>},
    {SL_DTYPE_IQ4_XS, SL_CUDA_Q8_0, pack<sl_pack_eight_q8_0<sl_eight_iq4_xs>>},
    {SL_DTYPE_MXFP4, SL_CUDA_MXFP4, pack<sl_pack_mxfp4>},
    {SL_DTYPE_TQ1_0, SL_CUDA_Q6_K, pack<sl_pack_eight_q6_k<sl_eight_tq1_0, 1>>},
    {SL_DTYPE_TQ2_0, SL_CUDA_Q6_K, pack<sl_pack_eight_q6_k<sl_eight_tq2_0, 1>>},
    {SL_DTYPE_IQ2_XXS, SL_CUDA_Q8_0, pack<sl_pack_eight_q8_0<sl_eight_iq2_xxs>>},
    {SL_DTYPE_IQ2_XS, SL_CUDA_BF16, pack<sl_pack_bf16_of<sl_file_eight<sl_eight_iq2_xs>>>},
    {SL_DTYPE_IQ2_S, SL_CUDA_BF16, pack<sl_pack_bf16_of<sl_file_eight<sl_eight_iq2_s>>>},
    {SL_DTYPE_IQ3_XXS, SL_CUDA_Q6_K, pack<sl_pack_eight_q6_k<sl_eight_iq3_xxs, 2>>},
    {SL_DTYPE_IQ3_S, SL_CUDA_Q6_K, pack<sl_pack_eight_q6_k<sl_eight_iq3_s, 1>>},
    {SL_DTYPE_IQ1_S, SL_CUDA_Q6_K, pack<sl_pack_eight_q6_k<sl_eight_iq1_s, 1>>},
    {SL_DTYPE_IQ1_M, SL_CUDA_Q6_K, pack<sl_pack_eight_q6_k<sl_eight_iq1_m, 1>>},
};

static const struct pack_row *find_pack(enum sl_dtype dtype)
{
    for (size_t i = 0; i < SL_COUNT(pack_rows); i++) {
        if (pack_rows[i].dtype == dtype)
            return &pack_rows[i];
    }
    return NULL;
}

/* Bytes in the file's format and on the device; false when the format has no route. */
static bool sizes(enum sl_weight_use use, enum sl_dtype dtype, int64_t n_rows, int64_t n_cols,
                  uint64_t *row_bytes, uint64_t *n_bytes)
{
    const struct pack_row *p = find_pack(dtype);
    if (p == NULL || n_rows <= 0 || n_cols <= 0 || n_rows > INT32_MAX || n_cols > INT32_MAX ||
        !sl_dtype_bytes(dtype, (uint64_t)n_cols, row_bytes))
        return false;
    if (use == SL_USE_ROWS)
        return sl_mul_u64(*row_bytes, (uint64_t)n_rows, n_bytes);
    if (use == SL_USE_LINEAR_FP8 && dtype == SL_DTYPE_FP8_E4M3) {
        uint64_t other;
        *n_bytes = (uint64_t)sl_cuda_w8a8_bytes(n_rows, n_cols);
        if (!sizes(SL_USE_LINEAR, dtype, n_rows, n_cols, row_bytes, &other))
            return false;
        *n_bytes = SL_MAX(*n_bytes, other); /* its scales may want that layout */
        return true;
    }
    return sl_mul_u64(SL_CEIL_DIV((uint64_t)n_rows, SL_CUDA_ROW_BLOCK),
                      (uint64_t)sl_cuda_stream_bytes(p->layout, n_cols), n_bytes);
}

uint64_t sl_cuda_weight_bytes(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                              int64_t n_rows, int64_t n_cols)
{
    uint64_t row_bytes, n_bytes;
    if (use == SL_USE_LINEAR_FP8 && sl_cuda(be)->act_bf16)
        use = SL_USE_LINEAR;
    return sizes(use, dtype, n_rows, n_cols, &row_bytes, &n_bytes) ? n_bytes : 0;
}

/* Values of the scales in a row of blocks. */
static int64_t scale_row(const struct sl_scales *s, int64_t n_cols)
{
    return SL_CEIL_DIV(n_cols, (int64_t)s->cols);
}

/* Values of the scales that the rows of a matrix have, 0: there are none. Of a part of a matrix
 * they begin in the row of blocks that its first row is in. */
static int64_t count_scales(const struct sl_scales *s, int64_t n_rows, int64_t n_cols)
{
    if (s == NULL || s->values == NULL)
        return 0;
    return SL_CEIL_DIV(s->first_row % s->rows + n_rows, (int64_t)s->rows) * scale_row(s, n_cols);
}

/* A slice, and with the last one the scales. */
static void pack_w8a8(struct sl_cuda *cu, const sl_pack_src *s, const struct sl_weight *w)
{
    const int64_t threads = 256, rows = SL_CUDA_W8A8_ROWS,
                  n_k = SL_CEIL_DIV(w->n_cols, (int64_t)128);
    uint8_t *data = (uint8_t *)const_cast<void *>(w->data);
    int64_t units = SL_CEIL_DIV(s->n_rows, rows) * n_k;
    sl_launch(cu, sl_pack_w8a8_codes,
              dim3((unsigned)SL_CEIL_DIV(units * SL_CUDA_W8A8_UNIT / 16, threads)),
              dim3((unsigned)threads), 0, *s, data + s->first_row / rows * n_k * SL_CUDA_W8A8_UNIT,
              units);
    if (s->first_row + s->n_rows < w->n_rows)
        return;
    sl_pack_src all = *s;
    all.n_rows = w->n_rows;
    int64_t blocks = SL_CEIL_DIV(w->n_rows, rows);
    sl_launch(cu, sl_pack_w8a8_scales, dim3((unsigned)SL_CEIL_DIV(blocks * (rows + n_k), threads)),
              dim3((unsigned)threads), 0, all, (float *)(data + blocks * n_k * SL_CUDA_W8A8_UNIT),
              blocks * rows, blocks * n_k);
}

/* Stages and packs slice by slice, all in the order of the stream. Scales lie before the slice. */
static void fill_packed(struct sl_cuda *cu, const struct pack_row *p, const struct sl_weight *w,
                        const uint8_t *data, const struct sl_scales *scales, uint8_t *temp,
                        int64_t slice_rows)
{
    int64_t stream = sl_cuda_stream_bytes(p->layout, w->n_cols);
    int64_t row_bytes = (int64_t)w->row_bytes;
    size_t scale_bytes = (size_t)count_scales(scales, w->n_rows, w->n_cols) * sizeof(float);
    const float *values = NULL;
    if (scale_bytes > 0) {
        values = (const float *)temp;
        sl_cuda_stage(cu, temp,
                      scales->values +
                          scales->first_row / scales->rows * scale_row(scales, w->n_cols),
                      scale_bytes);
        temp += SL_ROUND_UP(scale_bytes, PACK_ALIGN);
    }
    for (int64_t r0 = 0; r0 < w->n_rows; r0 += slice_rows) {
        int64_t n = SL_MIN(slice_rows, w->n_rows - r0);
        sl_cuda_stage(cu, temp, data + r0 * row_bytes, (size_t)(n * row_bytes));
        sl_pack_src s = {temp, row_bytes, n, w->n_cols, r0, values, 0, 0, 0};
        if (values != NULL) {
            s.scale_rows = scales->rows;
            s.scale_cols = scales->cols;
            s.scale_first = scales->first_row % scales->rows;
        }
        if (w->layout == SL_CUDA_W8A8)
            pack_w8a8(cu, &s, w);
        else
            p->pack(cu, &s, (uint8_t *)w->data + r0 / SL_CUDA_ROW_BLOCK * stream);
    }
}

int sl_cuda_weight_create(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                          int64_t n_rows, int64_t n_cols, const void *data,
                          const struct sl_scales *scales, struct sl_weight *out,
                          struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct pack_row *p = find_pack(dtype);
    uint64_t row_bytes, n_bytes;
    if (use == SL_USE_LINEAR_FP8 && cu->act_bf16)
        use = SL_USE_LINEAR;
    bool w8a8 = use == SL_USE_LINEAR_FP8 && dtype == SL_DTYPE_FP8_E4M3 &&
                sl_cuda_w8a8(n_rows, n_cols, scales);
    if (w8a8 && scales != NULL && scales->values != NULL && scales->cols < n_cols &&
        scales->first_row % SL_CUDA_W8A8_ROWS != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "a part of a matrix from row %d on: with FP8 activations parts begin at "
                       "multiples of %d (--activation-dtype bf16 has none)",
                       scales->first_row, SL_CUDA_W8A8_ROWS);
    if (!sizes(use, dtype, n_rows, n_cols, &row_bytes, &n_bytes) ||
        (use == SL_USE_ROWS && dtype == SL_DTYPE_FP8_E4M3))
        return sl_fail(err, SL_EUNSUPPORTED, "no CUDA kernel for a %s matrix of %lld x %lld",
                       sl_dtype_info(dtype)->name, (long long)n_rows, (long long)n_cols);
    bool packed = use != SL_USE_ROWS;
    int64_t slice = SL_MAX(PACK_SLICE / (int64_t)row_bytes, (int64_t)1);
    slice = SL_MIN(SL_ROUND_UP(slice, SL_CUDA_W8A8_ROWS), n_rows);
    size_t temp_bytes = packed ? (size_t)slice * row_bytes : 0;
    temp_bytes +=
        SL_ROUND_UP((size_t)count_scales(scales, n_rows, n_cols) * sizeof(float), PACK_ALIGN);
    uint8_t *temp = NULL;
    memset(out, 0, sizeof *out);
    void *dst = sl_cuda_weight_alloc(cu, n_bytes);
    if (dst == NULL)
        return sl_cuda_no_memory(cu, n_bytes, "a matrix", err);
    if (w8a8 && cu->fp8_room == NULL &&
        (cu->fp8_room = (uint8_t *)sl_cuda_alloc(cu, SL_LIN_FP8_BYTES)) == NULL) {
        sl_cuda_weight_free(cu, dst, n_bytes);
        return sl_cuda_no_memory(cu, SL_LIN_FP8_BYTES, "activations as FP8", err);
    }
    if (w8a8 && cu->fp8_room_bytes == 0)
        cu->fp8_room_bytes = SL_LIN_FP8_BYTES;
    if (packed && (temp = (uint8_t *)sl_cuda_pack_buffer(cu, temp_bytes)) == NULL) {
        sl_cuda_weight_free(cu, dst, n_bytes);
        return sl_cuda_no_memory(cu, temp_bytes, "packing matrices", err);
    }
    out->dtype = dtype;
    out->layout = w8a8 ? SL_CUDA_W8A8 : packed ? p->layout : SL_CUDA_ROWS;
    out->n_rows = n_rows;
    out->n_cols = n_cols;
    out->data = dst;
    out->row_bytes = row_bytes;
    out->n_bytes = n_bytes;
    out->owned = true;
    if (packed)
        fill_packed(cu, p, out, (const uint8_t *)data, scales, temp, slice);
    else
        sl_cuda_stage(cu, dst, data, n_bytes);
    if (cu->error != cudaSuccess) {
        sl_cuda_weight_destroy(be, out);
        return sl_cuda_report(cu, err);
    }
    return 0;
}

void sl_cuda_weight_destroy(struct sl_backend *be, struct sl_weight *w)
{
    if (w->owned)
        sl_cuda_weight_free(sl_cuda(be), const_cast<void *>(w->data), w->n_bytes);
    memset(w, 0, sizeof *w);
}
