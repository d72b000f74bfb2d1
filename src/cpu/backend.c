/* SPDX-License-Identifier: MIT */
#include "cpu/backend.h"

#include "base/check.h"
#include "base/sys.h"

/* Partial results of attention splits; untouched parts cost no memory. */
#define PARTIAL_BYTES_PER_THREAD (4u << 20)
/* Below this many multiplications waking a thread takes longer than the work. */
#define MIN_WORK 65536

void sl_cpu_run(struct sl_cpu *cpu, sl_pool_fn fn, void *arg, int64_t n_items, int64_t work)
{
    SL_ASSERT(n_items >= 0 && n_items <= UINT32_MAX);
    if (work >= MIN_WORK) {
        sl_pool_run(cpu->pool, fn, arg, (uint32_t)n_items);
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

static void backend_free(struct sl_backend *be, void *p, size_t n_bytes)
{
    (void)be;
    sl_aligned_free(p, n_bytes);
}

static int weight_create(struct sl_backend *be, enum sl_dtype dtype, int64_t n_rows, int64_t n_cols,
                         const void *data, struct sl_weight *out, struct sl_error *err)
{
    if ((unsigned)dtype >= SL_DTYPE_COUNT || sl_cpu(be)->k.route[dtype] == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "no CPU kernel for format %s",
                       (unsigned)dtype <= SL_DTYPE_COUNT ? sl_dtype_info(dtype)->name : "unknown");
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    uint64_t row_bytes, n_bytes;
    if (n_rows <= 0 || n_cols <= 0)
        return sl_fail(err, SL_EFORMAT, "a matrix of %lld x %lld", (long long)n_rows,
                       (long long)n_cols);
    if (n_cols > INT32_MAX)
        return sl_fail(err, SL_ELIMIT, "%lld columns are too many", (long long)n_cols);
    if (!sl_dtype_bytes(dtype, (uint64_t)n_cols, &row_bytes))
        return sl_fail(err, SL_EFORMAT, "%lld columns are not whole %s blocks of %u",
                       (long long)n_cols, info->name, info->block_elems);
    if (!sl_mul_u64(row_bytes, (uint64_t)n_rows, &n_bytes) || n_bytes > SIZE_MAX / 2)
        return sl_fail(err, SL_ELIMIT, "a matrix of %lld x %lld is too large", (long long)n_rows,
                       (long long)n_cols);
    *out = (struct sl_weight){.dtype = dtype,
                              .n_rows = n_rows,
                              .n_cols = n_cols,
                              .data = data,
                              .row_bytes = (size_t)row_bytes,
                              .n_bytes = (size_t)n_bytes};
    return 0;
}

static void weight_destroy(struct sl_backend *be, struct sl_weight *w)
{
    (void)be; /* layout 0 only: the weight borrows the file's rows */
    *w = (struct sl_weight){0};
}

static const char *weight_route(struct sl_backend *be, const struct sl_weight *w)
{
    return sl_cpu(be)->k.route[w->dtype];
}

static const char *backend_isa(struct sl_backend *be)
{
    return sl_cpu(be)->isa_name;
}

static int backend_n_threads(struct sl_backend *be)
{
    return sl_cpu(be)->n_threads;
}

static void backend_destroy(struct sl_backend *be)
{
    struct sl_cpu *cpu = sl_cpu(be);
    sl_pool_destroy(cpu->pool);
    sl_free(cpu->first_block);
    sl_aligned_free(cpu->partials, cpu->n_partials * sizeof(float));
    sl_aligned_free(cpu->scratch, (size_t)cpu->n_threads * sizeof *cpu->scratch);
    sl_free(cpu);
}

static const struct sl_backend_vt vtable = {
    .name = "cpu",
#define SL_OP(name) .name = sl_cpu_##name,
#include "ops/ops.def"
#undef SL_OP
    .alloc = backend_alloc,
    .free = backend_free,
    .weight_create = weight_create,
    .weight_destroy = weight_destroy,
    .weight_route = weight_route,
    .isa = backend_isa,
    .n_threads = backend_n_threads,
    .destroy = backend_destroy,
};

int sl_cpu_create(int n_threads, enum sl_cpu_isa isa, struct sl_backend **out, struct sl_error *err)
{
    *out = NULL;
    enum sl_cpu_isa best = sl_cpu_isa_best();
    if (isa == SL_ISA_AUTO)
        isa = best;
    if (isa > best)
        return sl_fail(err, SL_EUNSUPPORTED, "cpu isa %s: this processor has up to %s",
                       sl_cpu_isa_name(isa), sl_cpu_isa_name(best));
    if (n_threads == 0)
        n_threads = SL_MIN(sl_cpu_count(), SL_MAX_THREADS);
    struct sl_cpu *cpu = sl_calloc(1, sizeof *cpu);
    if (cpu == NULL)
        return sl_fail(err, SL_ENOMEM, "cpu backend: out of memory");
    cpu->base.vt = &vtable;
    sl_cpu_kernels_c(&cpu->k);
    if (isa >= SL_ISA_AVX2)
        sl_cpu_kernels_avx2(&cpu->k);
    if (isa >= SL_ISA_AVX512)
        sl_cpu_kernels_avx512(&cpu->k);
    cpu->isa_name = sl_cpu_isa_name(isa);
    int rc = sl_pool_create(n_threads, &cpu->pool, err);
    if (rc != 0)
        goto fail;
    cpu->n_threads = n_threads;
    cpu->n_partials = (size_t)n_threads * PARTIAL_BYTES_PER_THREAD / sizeof(float);
    cpu->scratch = sl_aligned_alloc((size_t)n_threads * sizeof *cpu->scratch);
    cpu->partials = sl_aligned_alloc(cpu->n_partials * sizeof(float));
    cpu->first_block = sl_calloc(SL_MAX_SEQS + 1, sizeof *cpu->first_block);
    if (cpu->scratch == NULL || cpu->partials == NULL || cpu->first_block == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "cpu backend: out of memory for the work space of %d threads",
                     n_threads);
        goto fail;
    }
    *out = &cpu->base;
    return 0;

fail:
    backend_destroy(&cpu->base);
    return rc;
}
