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
    {16, 128, {2, 1, 2}, 0, 0},  {32, 128, {2, 1, 2}, 0, 0}, {64, 192, {2, 1, 2}, 0, 0},
    {80, 128, {2, 1, 2}, 0, 0},  {96, 128, {2, 1, 2}, 0, 0}, {128, 128, {2, 1, 2}, 0, 0},
    {256, 128, {1, 1, 1}, 0, 0},
};

/* Of latent attention (latent.cuh), by the dimensions of a row. */
static const struct sl_attn_shape LATENT[] = {
    {128, 64, {0, 1, 0}, 128, SL_LATENT_SHIFT},
    {256, 64, {0, 1, 0}, 320, SL_LATENT_SHIFT},
    {512, 64, {0, 1, 0}, 576, SL_LATENT_SHIFT},
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

static const struct sl_attn_shape *latent_of(int32_t head_dim)
{
    for (const struct sl_attn_shape &s : LATENT)
        if (head_dim > 0 && head_dim % 8 == 0 && sl_kv_padded_dim(head_dim) <= s.keys)
            return &s;
    return nullptr;
}

/* ---------------------------------------------------------------- workspace */

/* n elements more, 256-byte aligned. */
template <class T> static T *carve(uint8_t *base, size_t *at, int64_t n)
{
    uint8_t *p = base + *at;
    *at = (*at + static_cast<size_t>(n) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T *>(p);
}

static bool shape_and_group(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                            struct sl_attn_layout *l)
{
    const struct sl_attn_shape *s = n_kv_heads == 0 ? latent_of(head_dim) : shape_of(head_dim);
    const int32_t kv = SL_MAX(n_kv_heads, 1);
    if (s == nullptr || n_kv_heads < 0 || n_heads % kv != 0 || n_heads / kv < 1 ||
        n_heads / kv > MAX_GROUP)
        return false;
    l->shape = *s;
    l->group = n_heads / kv;
    return true;
}

/* What blocks keep of a run and of all: words of their own for each thread. */
static void carve_states(uint8_t *workspace, size_t *at, int32_t threads, struct sl_attn_layout *l)
{
    const int64_t frags = l->shape.dim / 8;
    if (l->shape.keys > 0) { /* a thread has half a row's dimensions */
        const int64_t n = static_cast<int64_t>(l->grid[SL_ATTN_CLASS_WIDE]) * SL_LATENT_WORKERS;
        l->totals = carve<float4>(workspace, at, (frags / 2 + 1) * n);
        l->states = carve<float4>(workspace, at, frags / 2 * n);
        return;
    }
    l->totals = carve<float4>(workspace, at, (frags + 1) * threads);
    if (l->shape.dim > 128)
        l->states = carve<float4>(workspace, at,
                                  frags * l->grid[SL_ATTN_CLASS_WIDE] * 2 *
                                      static_cast<int64_t>(l->shape.wide));
}

bool sl_attn_layout_of(uint8_t *workspace, size_t workspace_bytes, int32_t n_sms, int32_t n_tokens,
                       int32_t n_spans, int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                       struct sl_attn_layout *out)
{
    struct sl_attn_layout l = {};
    if (!shape_and_group(n_heads, n_kv_heads, head_dim, &l))
        return false;
    n_kv_heads = SL_MAX(n_kv_heads, 1);
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
    carve_states(workspace, &at, threads, &l);
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
    uint64_t splits = static_cast<uint64_t>(sl_attn_split_of(m->max_context >> l.shape.shift)) + 1;
    uint64_t rows = static_cast<uint64_t>(m->n_tokens) * static_cast<uint64_t>(l.group);
    uint64_t n = rows * (splits + 1) * static_cast<uint64_t>(SL_MAX(m->n_kv_heads, 1)) *
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
    {SL_KV_TURBO4,
     {nullptr, nullptr, sl_attn_run_turbo4_64, nullptr, nullptr, sl_attn_run_turbo4_128,
      sl_attn_run_turbo4_256}},
};

/* nullptr: not supported. */
static sl_attn_run_fn *run_of(enum sl_dtype dtype, int32_t head_dim)
{
    const struct sl_attn_shape *s = shape_of(head_dim);
    if (s == nullptr || (dtype == SL_KV_TURBO4 && head_dim != s->dim)) /* rotated as a whole */
        return nullptr;
    for (const auto &f : FORMATS)
        if (f.dtype == dtype)
            return f.run[s - SHAPES];
    return nullptr;
}

bool sl_cuda_attention_pages(enum sl_dtype dtype, int32_t head_dim)
{
    return run_of(dtype, head_dim) != nullptr;
}

/* Of 9 to 16 rows the medium kernel takes half the time of the narrow one for a sequence, and more
 * once either has work for all multiprocessors: sequences times key heads up to which it is better
 * at contexts of 1,024 to 8,192 (bench_ops --only choice, H200). Of heads of 256 dimensions it
 * always is, three to eight times. Up to eight rows the narrow kernel has a form of its own, which
 * is better, or as good. */
#define MEDIUM_ITEMS 64
#define MEDIUM_FP8   16

int32_t sl_attn_narrow_rows(const struct sl_cuda *cu, const struct sl_batch *b, int32_t n_kv_heads,
                            int32_t head_dim)
{
    const int32_t most = cu->plan_fp8 ? MEDIUM_FP8 : MEDIUM_ITEMS;
    if (cu->attn_narrow > 0)
        return SL_MIN(cu->attn_narrow, SL_ATTN_NARROW);
    if (n_kv_heads == 0 || cu->plan_skips || sl_kv_padded_dim(head_dim) % 64 != 0)
        return SL_ATTN_NARROW;
    const bool always = sl_kv_padded_dim(head_dim) > 128;
    return always || static_cast<int64_t>(b->n_spans) * n_kv_heads <= most ? SL_ATTN_FEW
                                                                           : SL_ATTN_NARROW;
}

/* What the choice depends on besides, of which the step's first plan knows what layers had before:
 * from then on it does not change. */
static void note_layer(struct sl_cuda *cu, const struct sl_op_attention *op)
{
    cu->plan_fp8 = op->kv.dtype == SL_DTYPE_FP8_E4M3 || op->kv.dtype == SL_KV_TURBO4;
    cu->plan_skips = cu->plan_skips || op->skip_factor > 0.0f;
}

void sl_attn_classes_of(const struct sl_batch *b, const struct sl_attn_layout *l, int32_t narrow,
                        bool has[SL_ATTN_CLASSES])
{
    const int32_t group = l->group;
    for (int cls = 0; cls < SL_ATTN_CLASSES; cls++)
        has[cls] = false;
    if (b->n_spans == 0)
        return;
    if (l->shape.keys > 0) {
        has[SL_ATTN_CLASS_WIDE] = true;
        return;
    }
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

/* Whether no narrow tile has more than SL_ATTN_FEW rows, as far as the host knows. */
static bool has_few_rows(const struct sl_batch *b, int32_t group, int32_t narrow)
{
    const int32_t few = SL_ATTN_FEW / group, most = narrow / group; /* tokens of a span */
    if (few >= most)
        return true;
    if (b->n_spans == 1 || b->n_tokens == b->n_spans) {
        const int32_t n = b->n_tokens / b->n_spans;
        return n <= few || n > most;
    }
    for (int32_t n = few + 1; n <= most; n++)
        if (b->span_sizes >> n & 1)
            return false;
    return b->span_sizes != 0;
}

/* ---------------------------------------------------------------- latent attention */

static sl_latent_run_fn *latent_run_of(enum sl_dtype dtype, int32_t head_dim)
{
    static sl_latent_run_fn *const run[][2] = {
        {sl_latent_run_bf16_128, sl_latent_run_f16_128},
        {sl_latent_run_bf16_320, sl_latent_run_f16_320},
        {sl_latent_run_bf16_576, sl_latent_run_f16_576},
    };
    const struct sl_attn_shape *s = latent_of(head_dim);
    if (s == nullptr || (dtype != SL_DTYPE_BF16 && dtype != SL_DTYPE_F16))
        return nullptr;
    return run[s - LATENT][dtype == SL_DTYPE_F16];
}

static sl_gather_run_fn *gather_run_of(enum sl_dtype dtype, int32_t head_dim)
{
    static const struct {
        enum sl_dtype dtype;
        sl_gather_run_fn *run[sizeof LATENT / sizeof *LATENT];
    } formats[] = {
        {SL_DTYPE_BF16, {sl_gather_run_bf16_128, sl_gather_run_bf16_320, sl_gather_run_bf16_576}},
        {SL_DTYPE_F16, {sl_gather_run_f16_128, sl_gather_run_f16_320, sl_gather_run_f16_576}},
        {SL_DTYPE_FP8_E4M3, {sl_gather_run_fp8_128, sl_gather_run_fp8_320, sl_gather_run_fp8_576}},
    };
    const struct sl_attn_shape *s = latent_of(head_dim);
    for (const auto &f : formats)
        if (f.dtype == dtype && s != nullptr)
            return f.run[s - LATENT];
    return nullptr;
}

bool sl_cuda_latent_supports(int32_t head_dim, int32_t v_dim, int32_t n_heads, enum sl_dtype pages)
{
    return gather_run_of(pages, head_dim) != nullptr && v_dim > 0 && v_dim % 8 == 0 &&
           v_dim <= latent_of(head_dim)->dim && v_dim <= head_dim && n_heads >= 1 &&
           n_heads <= MAX_GROUP;
}

/* By two blocks each where a token's heads are pairs of tiles, which then have the same parts: of
 * full rounds of the blocks there is an even number. */
void sl_gather_launch(struct sl_cuda *cu, const struct sl_op_attention *op,
                      const struct sl_attn_layout *l, const struct sl_gather_args *g)
{
    const int32_t grid = l->grid[SL_ATTN_CLASS_WIDE], wide = l->shape.wide;
    const bool pairs = op->kv.dtype == SL_DTYPE_FP8_E4M3 && op->head_dim == 576 &&
                       l->group % (2 * wide) == 0 && grid % 2 == 0;
    if (pairs)
        sl_pair_run_fp8_576(cu, g, grid);
    else
        gather_run_of(op->kv.dtype, op->head_dim)(cu, g, grid);
}

bool sl_latent_args_of(struct sl_cuda *cu, const struct sl_op_attention *op, int32_t n_spans,
                       struct sl_attn_layout *l, struct sl_attn_args *a)
{
    const struct sl_batch *b = op->batch;
    const int32_t v_dim = sl_v_dim(op->head_dim, op->v_dim);
    if (op->n_kv_heads != 1 || op->whole || op->window != 0 || op->softcap > 0.0f ||
        op->sinks != nullptr ||
        !sl_cuda_latent_supports(op->head_dim, v_dim, op->n_heads, op->kv.dtype) ||
        !sl_attn_layout_of(cu->workspace, cu->workspace_bytes, cu->n_sms, b->n_tokens, n_spans,
                           op->n_heads, 0, op->head_dim, l)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or head of latent attention");
        return false;
    }
    *a = {};
    a->q = op->q;
    a->out = static_cast<__nv_bfloat16 *>(op->out);
    a->ld_q = op->ld_q;
    a->ld_out = op->ld_out;
    a->tables = sl_batch_tables(b, op->kv.group);
    a->keys = op->kv.pool + op->kv.k_offset;
    a->page_bytes = op->kv.page_bytes;
    a->block_size = op->kv.block_size;
    a->n_kv_heads = 1;
    a->group = l->group;
    a->by_kv = sl_attn_divisor_of(1);
    a->by_group = sl_attn_divisor_of(l->group);
    a->by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    a->head_dim = op->head_dim;
    a->v_dim = v_dim;
    a->shift = l->shape.shift;
    a->scale2 = op->scale * 0x1.715476p0f;
    a->skip_log2 = -INFINITY;
    a->totals = l->totals;
    a->states = l->states;
    a->slots = l->slots;
    a->slot_ml = l->slot_ml;
    a->cls = l->cls + SL_ATTN_CLASS_WIDE;
    a->cut = l->cut[SL_ATTN_CLASS_WIDE];
    a->items = l->item[SL_ATTN_CLASS_WIDE];
    a->cap_items = l->cap_items[SL_ATTN_CLASS_WIDE];
    a->early = cu->plan_settled;
    return true;
}

/* Skip-softmax leaves it alone. */
static void latent_attention(struct sl_cuda *cu, const struct sl_op_attention *op)
{
    struct sl_attn_layout l;
    struct sl_gather_args g = {};
    if (!sl_latent_args_of(cu, op, op->batch->n_spans, &l, &g.a))
        return;
    sl_attn_plan_layer(cu, op->batch, op->n_heads, 0, op->head_dim, false);
    sl_latent_run_fn *run = latent_run_of(op->kv.dtype, op->head_dim);
    if (run != nullptr)
        run(cu, &g.a, l.grid[SL_ATTN_CLASS_WIDE]);
    else
        sl_gather_launch(cu, op, &l, &g);
    cu->plan_settled = true;
    g.a.head_dim = g.a.v_dim; /* of the output's rows */
    sl_attn_combine_wide(cu, &g.a, l.shape.dim, l.shape.wide);
}

void sl_cuda_attention(struct sl_backend *be, const struct sl_op_attention *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_attn_layout l;
    const struct sl_batch *b = op->batch;
    if (b->n_tokens == 0)
        return;
    if (op->v_in_k) {
        latent_attention(cu, op);
        return;
    }
    sl_attn_run_fn *run = run_of(op->kv.dtype, op->head_dim);
    if (run == nullptr || sl_v_dim(op->head_dim, op->v_dim) != op->head_dim ||
        !sl_attn_layout_of(cu->workspace, cu->workspace_bytes, cu->n_sms, b->n_tokens, b->n_spans,
                           op->n_heads, op->n_kv_heads, op->head_dim, &l)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or head of attention");
        return;
    }
    note_layer(cu, op);
    const int32_t narrow = sl_attn_narrow_rows(cu, b, op->n_kv_heads, op->head_dim);
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
    a.few = has_few_rows(b, l.group, narrow);
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
    sl_attn_classes_of(b, &l, narrow, has);
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
    if (op->kv.dtype == SL_KV_TURBO4)
        sl_attn_rotate_back(cu, op);
}
