/* SPDX-License-Identifier: MIT
 * attention.cu - the host's side of paged attention: what is supported, the workspace, and which
 * kernels a batch needs.
 */
#include "cuda/attention/attention.cuh"

#include <math.h>
#include <string.h>

#define MAX_GROUP  256
#define SLOT_BYTES (256u << 20) /* of partial results at most; beyond, first parts grow longer */

static const struct sl_attn_shape SHAPES[] = {
    {16, 128, {2, 1, 2}}, {32, 128, {2, 1, 2}},  {64, 192, {2, 1, 2}},  {80, 128, {2, 1, 2}},
    {96, 128, {2, 1, 2}}, {128, 128, {2, 1, 2}}, {256, 128, {1, 1, 1}},
};

static const struct sl_attn_shape *shape_of(int32_t head_dim)
{
    for (const struct sl_attn_shape &s : SHAPES)
        if (head_dim > 0 && head_dim % 8 == 0 && sl_kv_padded_dim(head_dim) == s.dim)
            return &s;
    return nullptr;
}

bool sl_cuda_attention_supports(int32_t head_dim, int32_t group)
{
    return shape_of(head_dim) != nullptr && group >= 1 && group <= MAX_GROUP;
}

/* ---------------------------------------------------------------- workspace */

/* n elements more, 256-byte aligned. */
template <class T> static T *carve(uint8_t *base, size_t *at, int64_t n)
{
    uint8_t *p = base + *at;
    *at = (*at + static_cast<size_t>(n) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T *>(p);
}

bool sl_attn_layout_of(uint8_t *workspace, size_t workspace_bytes, int32_t n_sms, int32_t n_tokens,
                       int32_t n_spans, int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                       struct sl_attn_layout *out)
{
    if (n_kv_heads < 1 || n_heads % n_kv_heads != 0 ||
        !sl_cuda_attention_supports(head_dim, n_heads / n_kv_heads))
        return false;
    struct sl_attn_layout l = {};
    l.shape = *shape_of(head_dim);
    l.group = n_heads / n_kv_heads;
    const int64_t rows = static_cast<int64_t>(n_tokens) * l.group;
    const int32_t n_tiles[SL_ATTN_CLASSES] = {
        n_spans, static_cast<int32_t>(rows / l.shape.wide) + n_spans, n_spans};
    size_t at = 0;
    l.cls = carve<struct sl_attn_class>(workspace, &at, SL_ATTN_CLASSES);
    l.row_table = carve<int32_t>(workspace, &at, n_tokens);
    l.first_tile = carve<int32_t>(workspace, &at, n_spans + 1);
    int32_t threads = 0; /* that have words of their own in totals: two for each row */
    for (int cls = 0; cls < SL_ATTN_CLASSES; cls++) {
        const int32_t most = cls == SL_ATTN_CLASS_NARROW ? SL_ATTN_NARROW
                             : cls == SL_ATTN_CLASS_WIDE ? l.shape.wide
                                                         : SL_ATTN_MEDIUM;
        l.grid[cls] = n_sms * l.shape.n_ctas[cls];
        l.cap_items[cls] = 2 * n_tiles[cls] + 32 * l.grid[cls];
        l.item[cls] = carve<struct sl_attn_item>(workspace, &at, l.cap_items[cls]);
        if (cls != SL_ATTN_CLASS_NARROW)
            l.cut[cls] = carve<int32_t>(workspace, &at, n_tiles[cls]);
        threads = SL_MAX(threads, l.grid[cls] * 2 * most);
    }
    l.counters = carve<uint32_t>(workspace, &at, static_cast<int64_t>(n_tiles[0]) * n_kv_heads);
    l.totals = carve<float4>(workspace, &at, static_cast<int64_t>(l.shape.dim / 8 + 1) * threads);
    if (l.shape.dim > 128)
        l.states = carve<float4>(
            workspace, &at, static_cast<int64_t>(l.shape.dim / 8) * l.grid[1] * 2 * l.shape.wide);
    l.list_bytes = at;
    size_t per_row =
        (static_cast<size_t>(l.shape.dim) + 2) * sizeof(float) * static_cast<size_t>(n_kv_heads);
    if (workspace_bytes > at + 512)
        l.cap_rows = static_cast<int64_t>((workspace_bytes - at - 512) / per_row);
    /* rows are counted in 32 bits on the device */
    l.cap_rows = SL_MIN(l.cap_rows, static_cast<int64_t>(INT32_MAX / 2));
    l.slots = carve<float>(workspace, &at, l.cap_rows * n_kv_heads * l.shape.dim);
    l.slot_ml = carve<float2>(workspace, &at, l.cap_rows * n_kv_heads);
    *out = l;
    return true;
}

size_t sl_cuda_attention_workspace(const struct sl_cuda *cu,
                                   const struct sl_cuda_attention_limits *m)
{
    struct sl_attn_layout l;
    if (!sl_attn_layout_of(nullptr, 0, cu->n_sms, m->n_tokens, m->n_spans, m->n_heads,
                           m->n_kv_heads, m->head_dim, &l))
        return 0;
    uint64_t splits = static_cast<uint64_t>(sl_attn_split_of(m->max_context)) + 1;
    uint64_t rows = static_cast<uint64_t>(m->n_tokens) * static_cast<uint64_t>(l.group);
    uint64_t n = rows * (splits + 1) * static_cast<uint64_t>(m->n_kv_heads) *
                 (static_cast<uint64_t>(l.shape.dim) + 2) * sizeof(float);
    return l.list_bytes + static_cast<size_t>(SL_MIN(n, static_cast<uint64_t>(SLOT_BYTES))) + 1024;
}

/* ---------------------------------------------------------------- the operation */

/* Formats of the pages; kernels in the order of SHAPES. */
static const struct {
    enum sl_dtype dtype;
    sl_attn_run_fn *run[sizeof SHAPES / sizeof *SHAPES];
} FORMATS[] = {
    {SL_DTYPE_BF16,
     {sl_attn_run_bf16_16, sl_attn_run_bf16_32, sl_attn_run_bf16_64, sl_attn_run_bf16_80,
      sl_attn_run_bf16_96, sl_attn_run_bf16_128, sl_attn_run_bf16_256}},
    {SL_DTYPE_F16,
     {sl_attn_run_f16_16, sl_attn_run_f16_32, sl_attn_run_f16_64, sl_attn_run_f16_80,
      sl_attn_run_f16_96, sl_attn_run_f16_128, sl_attn_run_f16_256}},
    {SL_DTYPE_FP8_E4M3,
     {sl_attn_run_fp8_16, sl_attn_run_fp8_32, sl_attn_run_fp8_64, sl_attn_run_fp8_80,
      sl_attn_run_fp8_96, sl_attn_run_fp8_128, sl_attn_run_fp8_256}},
};

/* nullptr: not supported. */
static sl_attn_run_fn *run_of(enum sl_dtype dtype, int32_t head_dim)
{
    const struct sl_attn_shape *s = shape_of(head_dim);
    for (const auto &f : FORMATS)
        if (f.dtype == dtype && s != nullptr)
            return f.run[s - SHAPES];
    return nullptr;
}

bool sl_cuda_attention_pages(enum sl_dtype dtype)
{
    return run_of(dtype, 16) != nullptr;
}

int32_t sl_attn_narrow_rows(const struct sl_cuda *cu, const struct sl_batch *b,
                            const struct sl_attn_layout *l, int32_t n_kv_heads)
{
    (void)b, (void)l, (void)n_kv_heads;
    return cu->attn_narrow > 0 ? SL_MIN(cu->attn_narrow, SL_ATTN_NARROW) : SL_ATTN_NARROW;
}

void sl_attn_classes_of(const struct sl_batch *b, int32_t group, int32_t narrow,
                        bool has[SL_ATTN_CLASSES])
{
    for (int cls = 0; cls < SL_ATTN_CLASSES; cls++)
        has[cls] = false;
    if (b->n_spans == 0)
        return;
    if (b->n_spans == 1 || b->n_tokens == b->n_spans) {
        has[sl_attn_class_of(b->n_tokens / b->n_spans, group, narrow)] = true;
        return;
    }
    if (b->span_sizes == 0) { /* not known */
        has[SL_ATTN_CLASS_NARROW] = group <= narrow;
        has[SL_ATTN_CLASS_MEDIUM] = group <= SL_ATTN_MEDIUM;
        has[SL_ATTN_CLASS_WIDE] = true;
        return;
    }
    for (int32_t n = 1; n < SL_BATCH_SIZES; n++)
        if (b->span_sizes >> n & 1)
            has[sl_attn_class_of(n, group, narrow)] = true;
    if (b->span_sizes >> (SL_BATCH_SIZES - 1) & 1) /* or longer */
        has[SL_ATTN_CLASS_WIDE] = true;
}

void sl_cuda_attention(struct sl_backend *be, const struct sl_op_attention *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_attn_layout l;
    const struct sl_batch *b = op->batch;
    if (b->n_tokens == 0)
        return;
    sl_attn_run_fn *run = run_of(op->kv.dtype, op->head_dim);
    if (run == nullptr || sl_v_dim(op->head_dim, op->v_dim) != op->head_dim ||
        !sl_attn_layout_of(cu->workspace, cu->workspace_bytes, cu->n_sms, b->n_tokens, b->n_spans,
                           op->n_heads, op->n_kv_heads, op->head_dim, &l)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or head of attention");
        return;
    }
    sl_attn_plan_layer(cu, b, op->n_heads, op->n_kv_heads, op->head_dim, op->whole);
    struct sl_attn_args a = {};
    a.q = op->q;
    a.out = static_cast<__nv_bfloat16 *>(op->out);
    a.ld_q = op->ld_q;
    a.ld_out = op->ld_out;
    a.sinks = op->sinks;
    a.tables = sl_batch_tables(b, op->kv.group);
    a.keys = op->kv.pool + op->kv.k_offset;
    a.values = op->kv.pool + op->kv.v_offset;
    a.page_bytes = op->kv.page_bytes;
    a.block_size = op->kv.block_size;
    a.n_kv_heads = op->n_kv_heads;
    a.group = l.group;
    a.few = b->n_tokens == b->n_spans && l.group <= SL_ATTN_FEW;
    a.by_kv = sl_attn_divisor_of(op->n_kv_heads);
    a.by_group = sl_attn_divisor_of(l.group);
    a.by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    a.head_dim = op->head_dim;
    a.window = op->window;
    a.chunks = op->chunks;
    a.ahead = !op->whole ? 0 : op->window > 0 ? op->window - 1 : INT32_MAX / 2;
    a.cap = op->softcap;
    a.cap_in = op->softcap > 0.0f ? op->scale / op->softcap : 0.0f;
    a.scale2 = op->softcap > 0.0f ? 0x1.715476p0f : op->scale * 0x1.715476p0f;
    const bool skips = op->skip_factor > 0.0f && op->window == 0 && !op->whole && a.scale2 > 0.0f;
    a.skip_log2 = skips ? log2f(op->skip_factor) : -INFINITY;
    a.skip_per = 1.0f / a.scale2;
    a.counters = l.counters;
    a.totals = l.totals;
    a.states = l.states;
    a.slots = l.slots;
    a.slot_ml = l.slot_ml;
    bool has[SL_ATTN_CLASSES];
    sl_attn_classes_of(b, l.group, sl_attn_narrow_rows(cu, b, &l, op->n_kv_heads), has);
    for (int cls = 0; cls < SL_ATTN_CLASSES; cls++) {
        if (!has[cls])
            continue;
        a.cls = l.cls + cls;
        a.cut = l.cut[cls];
        a.items = l.item[cls];
        a.cap_items = l.cap_items[cls];
        a.skip_counts =
            op->skip_counts != NULL ? op->skip_counts + (cls == SL_ATTN_CLASS_NARROW) : NULL;
        a.early = cu->plan_settled;
        run(cu, &a, cls, l.grid[cls]);
        cu->plan_settled = true;
        if (cls != SL_ATTN_CLASS_NARROW)
            sl_attn_combine_wide(cu, &a, l.shape.dim,
                                 cls == SL_ATTN_CLASS_WIDE ? l.shape.wide : SL_ATTN_MEDIUM);
    }
}
