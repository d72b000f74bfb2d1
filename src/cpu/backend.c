/* SPDX-License-Identifier: MIT */
#include "cpu/backend.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "cpu/numa.h"

#include <string.h>

/* Partial results of attention splits; untouched parts cost no memory. */
#define PARTIAL_BYTES_PER_THREAD (4u << 20)
/* Below this many multiplications waking a thread takes longer than the work. */
#define MIN_WORK 65536

void sl_cpu_run(struct sl_cpu *cpu, sl_thread_pool_fn fn, void *arg, int64_t n_items, int64_t work)
{
    SL_ASSERT(n_items >= 0 && n_items <= UINT32_MAX);
    if (work >= MIN_WORK) {
        sl_thread_pool_run(cpu->pool, fn, arg, (uint32_t)n_items);
        return;
    }
    for (uint32_t i = 0; i < (uint32_t)n_items; i++)
        fn(arg, i, 0);
}

static void *backend_alloc(struct sl_backend *be, size_t n_bytes)
{
    (void)be;
    return sl_aligned_alloc(n_bytes);
}

static void backend_upload(struct sl_backend *be, void *dst, const void *src, size_t n_bytes)
{
    (void)be;
    memcpy(dst, src, n_bytes);
}

static void backend_free(struct sl_backend *be, void *p, size_t n_bytes)
{
    (void)be;
    sl_aligned_free(p, n_bytes);
}

enum sl_cpu_layout sl_cpu_layout_of(const struct sl_cpu *cpu, enum sl_dtype dtype)
{
    if (cpu->exact)
        return SL_LAYOUT_ROWS;
    if (sl_i8_form_of(dtype) != SL_I8_NONE)
        return SL_LAYOUT_I8;
    if (dtype == SL_DTYPE_FP8_E4M3 && cpu->fp8.name != NULL)
        return SL_LAYOUT_FP8;
    return dtype == SL_DTYPE_BF16 && cpu->bf16.name != NULL ? SL_LAYOUT_BF16 : SL_LAYOUT_ROWS;
}

static size_t packed_panel_bytes(enum sl_cpu_layout layout, enum sl_dtype dtype, int64_t n_rows,
                                 int64_t n_cols)
{
    if (layout == SL_LAYOUT_I8)
        return sl_i8_layout(dtype, n_rows, n_cols).panel_bytes;
    return layout == SL_LAYOUT_FP8 ? sl_fp8_panel_bytes(n_cols) : sl_bf16_panel_bytes(n_cols);
}

static uint64_t weight_bytes(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                             int64_t n_rows, int64_t n_cols)
{
    enum sl_cpu_layout layout = sl_cpu_layout_of(sl_cpu(be), dtype);
    if (use == SL_USE_ROWS || layout == SL_LAYOUT_ROWS)
        return 0;
    return (uint64_t)SL_CEIL_DIV(n_rows, SL_I8_PANEL) *
           packed_panel_bytes(layout, dtype, n_rows, n_cols);
}

struct pack_job {
    const struct sl_weight *w; /* scales: the caller's */
    const uint8_t *rows;
    uint8_t *panels;
    size_t panel_bytes;
};

static void pack_panel(void *arg, uint32_t p, int thread_idx)
{
    const struct pack_job *j = arg;
    const struct sl_weight *w = j->w;
    (void)thread_idx;
    uint8_t *panel = j->panels + p * j->panel_bytes;
    if (w->layout == SL_LAYOUT_I8)
        sl_i8_pack(w->dtype, w->n_rows, w->n_cols, j->rows, p, panel);
    else if (w->layout == SL_LAYOUT_FP8)
        sl_fp8_pack(w->n_rows, w->n_cols, j->rows, &w->scales, p, panel);
    else
        sl_bf16_pack(w->n_rows, w->n_cols, j->rows, p, panel);
}

/* Room for one block of tokens as wide as this matrix. */
static int reserve_activations(struct sl_cpu *cpu, const struct sl_weight *w, struct sl_error *err)
{
    const int64_t unit = w->layout == SL_LAYOUT_FP8 ? SL_FP8_GROUP : SL_BF16_K;
    size_t need = w->layout == SL_LAYOUT_I8
                      ? (size_t)SL_CEIL_DIV(w->n_cols, SL_I8_GROUP) * sizeof(struct sl_i8_x)
                      : (size_t)SL_ROUND_UP(w->n_cols, unit) * sizeof(uint16_t);
    need *= SL_I8_TOKENS;
    if (need <= cpu->x_packed_bytes)
        return 0;
    void *p = sl_aligned_alloc(need);
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for activations of %lld columns",
                       (long long)w->n_cols);
    sl_aligned_free(cpu->x_packed, cpu->x_packed_bytes);
    cpu->x_packed = p;
    cpu->x_packed_bytes = need;
    return 0;
}

static int take_panels(struct sl_cpu *cpu, size_t n_bytes, uint8_t **out, struct sl_error *err)
{
    void *p = NULL;
    if (cpu->weights != NULL) {
        int rc = sl_weight_stream_take(cpu->weights, n_bytes, &p, err);
        *out = p;
        return rc;
    }
    *out = sl_aligned_alloc(n_bytes);
    if (*out == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory repacking %zu bytes of weights", n_bytes);
    return 0;
}

static int backend_pack(struct sl_cpu *cpu, struct sl_weight *w, struct sl_error *err)
{
    int rc = reserve_activations(cpu, w, err);
    if (rc != 0)
        return rc;
    struct pack_job j = {.w = w, .rows = w->data};
    j.panel_bytes =
        packed_panel_bytes((enum sl_cpu_layout)w->layout, w->dtype, w->n_rows, w->n_cols);
    w->n_bytes = j.panel_bytes * (size_t)SL_CEIL_DIV(w->n_rows, SL_I8_PANEL);
    rc = take_panels(cpu, w->n_bytes, &j.panels, err);
    if (rc != 0)
        return rc;
    sl_thread_pool_run(cpu->pool, pack_panel, &j, (uint32_t)SL_CEIL_DIV(w->n_rows, SL_I8_PANEL));
    w->data = j.panels;
    w->owned = true;
    w->scales = (struct sl_scales){0};
    return cpu->weights != NULL ? sl_weight_stream_store(cpu->weights, w->data, err) : 0;
}

static int weight_create(struct sl_backend *be, enum sl_weight_use use, enum sl_dtype dtype,
                         int64_t n_rows, int64_t n_cols, const void *data,
                         const struct sl_scales *scales, struct sl_weight *out,
                         struct sl_error *err)
{
    SL_ASSERT(scales == NULL || scales->values == NULL ||
              (use != SL_USE_ROWS && dtype == SL_DTYPE_FP8_E4M3 && scales->rows > 0 &&
               scales->cols > 0 && (scales->cols % SL_SCALE_COLS == 0 || scales->cols >= n_cols)));
    if ((unsigned)dtype >= SL_DTYPE_COUNT || sl_cpu(be)->k.decode[dtype] == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "no CPU kernel for format %s",
                       (unsigned)dtype <= SL_DTYPE_COUNT ? sl_dtype_info(dtype)->name : "unknown");
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    uint64_t row_bytes, n_bytes;
    if (n_rows <= 0 || n_cols <= 0)
        return sl_fail(err, SL_EFORMAT, "a matrix of %lld x %lld", (long long)n_rows,
                       (long long)n_cols);
    if (n_cols > INT32_MAX || n_rows > INT32_MAX)
        return sl_fail(err, SL_ELIMIT, "a matrix of %lld x %lld is too large", (long long)n_rows,
                       (long long)n_cols);
    if (!sl_dtype_bytes(dtype, (uint64_t)n_cols, &row_bytes))
        return sl_fail(err, SL_EFORMAT, "%lld columns are not whole %s blocks of %u",
                       (long long)n_cols, info->name, info->block_elems);
    if (!sl_mul_u64(row_bytes, (uint64_t)n_rows, &n_bytes) || n_bytes > SIZE_MAX / 4)
        return sl_fail(err, SL_ELIMIT, "a matrix of %lld x %lld is too large", (long long)n_rows,
                       (long long)n_cols);
    *out = (struct sl_weight){.dtype = dtype,
                              .layout = SL_LAYOUT_ROWS,
                              .n_rows = n_rows,
                              .n_cols = n_cols,
                              .data = data,
                              .row_bytes = (size_t)row_bytes,
                              .n_bytes = (size_t)n_bytes};
    if (scales != NULL)
        out->scales = *scales;
    if (use != SL_USE_ROWS)
        out->layout = (int16_t)sl_cpu_layout_of(sl_cpu(be), dtype);
    return out->layout == SL_LAYOUT_ROWS ? 0 : backend_pack(sl_cpu(be), out, err);
}

static void weight_destroy(struct sl_backend *be, struct sl_weight *w)
{
    void *panels = (void *)(uintptr_t)w->data;
    if (w->owned && sl_cpu(be)->weights != NULL)
        sl_weight_stream_give(sl_cpu(be)->weights, panels, w->n_bytes);
    else if (w->owned)
        sl_aligned_free(panels, w->n_bytes);
    *w = (struct sl_weight){0};
}

static const char *weight_route(struct sl_backend *be, const struct sl_weight *w)
{
    const struct sl_cpu *cpu = sl_cpu(be);
    switch ((enum sl_cpu_layout)w->layout) {
    case SL_LAYOUT_I8:
        return cpu->i8.name;
    case SL_LAYOUT_BF16:
        return cpu->bf16.name;
    case SL_LAYOUT_FP8:
        return cpu->fp8.name;
    case SL_LAYOUT_ROWS:
        break;
    }
    return cpu->k.route[w->dtype];
}

static const char *backend_isa(struct sl_backend *be)
{
    return sl_cpu(be)->isa_name;
}

static int backend_n_threads(struct sl_backend *be)
{
    return sl_cpu(be)->n_threads;
}

static void backend_run_items(struct sl_backend *be, sl_thread_pool_fn fn, void *arg,
                              uint32_t n_items)
{
    sl_thread_pool_run(sl_cpu(be)->pool, fn, arg, n_items);
}

static void backend_destroy(struct sl_backend *be)
{
    struct sl_cpu *cpu = sl_cpu(be);
    if (cpu->own_pool)
        sl_thread_pool_destroy(cpu->pool);
    sl_weight_stream_destroy(cpu->weights);
    sl_streams_destroy(&cpu->streams, cpu->n_threads);
    sl_free(cpu->first_block);
    sl_aligned_free(cpu->x_packed, cpu->x_packed_bytes);
    sl_aligned_free(cpu->i8_scratch, (size_t)cpu->n_threads * cpu->i8_scratch_bytes);
    sl_aligned_free(cpu->partials, cpu->n_partials * sizeof(float));
    sl_aligned_free(cpu->attn_scratch, (size_t)cpu->n_threads * sizeof *cpu->attn_scratch);
    sl_aligned_free(cpu->scratch, (size_t)cpu->n_threads * sizeof *cpu->scratch);
    sl_free(cpu);
}

static const struct sl_backend_vt vtable = {
    .name = "cpu",
#define SL_OP(name) .name = sl_cpu_##name,
#define SL_OP_DEVICE(name)
#include "ops/ops.def"
#undef SL_OP
    .act_dtype = SL_DTYPE_F32,
    .gated_acts = ((1u << SL_ACT_COUNT) - 1) & ~(1u << SL_ACT_XIELU),
    .alloc = backend_alloc,
    .free = backend_free,
    .upload = backend_upload,
    .kv_dtype = SL_DTYPE_BF16, /* range of f32, and the fastest routes */
    .delta_bytes = sl_cpu_delta_bytes,
    .delta_room = sl_cpu_delta_room,
    .weight_create = weight_create,
    .weight_bytes = weight_bytes,
    .weight_destroy = weight_destroy,
    .stack_create = sl_cpu_stack_create,
    .stack_destroy = sl_cpu_stack_destroy,
    .experts_bytes = sl_cpu_experts_bytes,
    .placed_bytes = sl_cpu_placed_bytes,
    .weight_route = weight_route,
    .isa = backend_isa,
    .n_threads = backend_n_threads,
    .run_items = backend_run_items,
    .destroy = backend_destroy,
};

static void choose_kernels(struct sl_cpu *cpu, enum sl_cpu_isa isa)
{
    sl_cpu_kernels_c(&cpu->k);
    sl_i8_kernels_c(&cpu->i8);
    sl_attn_kernels_c(&cpu->attn);
    sl_rec_kernels_c(&cpu->rec);
    if (isa >= SL_ISA_AVX2) {
        sl_cpu_kernels_avx2(&cpu->k);
        sl_i8_kernels_avx2(&cpu->i8);
        sl_attn_kernels_avx2(&cpu->attn);
        sl_rec_kernels_avx2(&cpu->rec);
    }
    if (isa >= SL_ISA_AVX512) {
        sl_cpu_kernels_avx512(&cpu->k);
        sl_i8_kernels_avx512(&cpu->i8);
        sl_attn_kernels_avx512(&cpu->attn);
        sl_rec_kernels_avx512(&cpu->rec);
    }
    if (isa >= SL_ISA_AVX512_VNNI)
        sl_i8_kernels_avx512vnni(&cpu->i8);
    if (isa >= SL_ISA_AVX512_BF16) {
        sl_bf16_kernels_avx512bf16(&cpu->bf16);
        sl_fp8_kernels_avx512bf16(&cpu->fp8);
        sl_attn_kernels_avx512bf16(&cpu->attn);
    }
    if (isa >= SL_ISA_AMX) {
        sl_i8_kernels_amx(&cpu->i8);
        sl_bf16_kernels_amx(&cpu->bf16);
        sl_fp8_kernels_avx512(&cpu->fp8); /* widened as before, multiplied by tiles */
        cpu->fp8.name = "fp8-amx";
        sl_attn_kernels_amx(&cpu->attn);
    }
    cpu->isa_name = sl_cpu_isa_name(isa);
}

/* On several nodes a thread stays where it is, so that the weights it packed, which by first touch
 * lie in its node's memory, stay near it. */
static void bind_threads(struct sl_thread_pool *pool, int n_threads,
                         const struct sl_cpu_config *cfg)
{
    const int n_all = n_threads * SL_MAX(cfg->n_ranks, 1);
    int cpus[SL_MAX_THREADS];
    if (n_all > SL_MAX_THREADS)
        return;
    const int n_nodes = sl_numa_place("/sys/devices/system", n_all, cpus);
    if (n_nodes > 1)
        sl_log(SL_LOG_INFO, "%d of %d threads are bound to processors of %d memory nodes",
               1 + sl_thread_pool_bind(pool, cpus + cfg->rank * n_threads), n_threads, n_nodes);
}

static int make_pool(const struct sl_cpu_config *cfg, struct sl_thread_pool **out,
                     struct sl_error *err)
{
    int n_threads = cfg->n_threads != 0 ? cfg->n_threads : SL_MIN(sl_cpu_count(), SL_MAX_THREADS);
    int rc = sl_thread_pool_create(n_threads, out, err);
    if (rc == 0 && cfg->numa)
        bind_threads(*out, n_threads, cfg);
    return rc;
}

struct sl_cpu_threads {
    struct sl_thread_pool *pool;
};

int sl_cpu_threads_create(const struct sl_cpu_config *cfg, struct sl_cpu_threads **out,
                          struct sl_error *err)
{
    *out = NULL;
    struct sl_cpu_threads *t = sl_calloc(1, sizeof *t);
    if (t == NULL)
        return sl_fail(err, SL_ENOMEM, "threads: out of memory");
    int rc = make_pool(cfg, &t->pool, err);
    if (rc != 0) {
        sl_free(t);
        return rc;
    }
    sl_thread_pool_share(t->pool);
    *out = t;
    return 0;
}

void sl_cpu_threads_destroy(struct sl_cpu_threads *t)
{
    if (t == NULL)
        return;
    sl_thread_pool_destroy(t->pool);
    sl_free(t);
}

int sl_cpu_create(const struct sl_cpu_config *cfg, struct sl_backend **out, struct sl_error *err)
{
    *out = NULL;
    enum sl_cpu_isa best = sl_cpu_isa_best(), isa = cfg->isa == SL_ISA_AUTO ? best : cfg->isa;
    if (isa > best)
        return sl_fail(err, SL_EUNSUPPORTED, "cpu isa %s: this processor has up to %s",
                       sl_cpu_isa_name(isa), sl_cpu_isa_name(best));
    struct sl_cpu *cpu = sl_calloc(1, sizeof *cpu);
    if (cpu == NULL)
        return sl_fail(err, SL_ENOMEM, "cpu backend: out of memory");
    cpu->base.vt = &vtable;
    cpu->exact = cfg->exact;
    choose_kernels(cpu, isa);
    cpu->own_pool = cfg->threads == NULL;
    int rc = cpu->own_pool ? make_pool(cfg, &cpu->pool, err) : (cpu->pool = cfg->threads->pool, 0);
    if (rc != 0)
        goto fail;
    const int n_threads = sl_thread_pool_n_threads(cpu->pool);
    cpu->n_threads = n_threads;
    cpu->n_partials = (size_t)n_threads * PARTIAL_BYTES_PER_THREAD / sizeof(float);
    cpu->i8_scratch_bytes = SL_ROUND_UP(sl_i8_scratch_bytes(), 64);
    cpu->i8_scratch = sl_aligned_alloc((size_t)n_threads * cpu->i8_scratch_bytes);
    cpu->scratch = sl_aligned_alloc((size_t)n_threads * sizeof *cpu->scratch);
    cpu->attn_scratch = sl_aligned_alloc((size_t)n_threads * sizeof *cpu->attn_scratch);
    cpu->partials = sl_aligned_alloc(cpu->n_partials * sizeof(float));
    cpu->first_block = sl_calloc(SL_MAX_SEQS + 1, sizeof *cpu->first_block);
    if (!sl_streams_create(&cpu->streams, n_threads) || cpu->i8_scratch == NULL ||
        cpu->scratch == NULL || cpu->attn_scratch == NULL || cpu->partials == NULL ||
        cpu->first_block == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "cpu backend: out of memory for the work space of %d threads",
                     n_threads);
        goto fail;
    }
    if (cfg->offload_folder != NULL)
        rc = sl_weight_stream_create(cfg->offload_folder, cfg->weights_memory_bytes, &cpu->weights,
                                     err);
    if (rc != 0)
        goto fail;
    if (cpu->own_pool) /* of several, who is next is not known */
        sl_thread_pool_set_idle(cpu->pool, sl_streams_ask, cpu);
    *out = &cpu->base;
    return 0;

fail:
    backend_destroy(&cpu->base);
    return rc;
}
