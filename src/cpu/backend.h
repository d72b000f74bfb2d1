/* SPDX-License-Identifier: MIT
 * backend.h - the CPU backend's own struct and the operations it is made of.
 *
 * Everything an operation needs is allocated when the backend is created; no operation allocates or
 * fails. One caller at a time; the operations spread over the pool inside.
 */
#ifndef SL_CPU_BACKEND_H
#define SL_CPU_BACKEND_H

#include "base/limits.h"
#include "cpu/attn.h"
#include "cpu/bf16.h"
#include "cpu/fp8.h"
#include "cpu/i8.h"
#include "cpu/kernels.h"
#include "cpu/linear_next.h"
#include "cpu/recurrent.h"
#include "cpu/thread_pool.h"
#include "cpu/weight_stream.h"

/* What one thread works in. */
struct sl_cpu_scratch {
    _Alignas(64) float panel[SL_CPU_ROWS * SL_CPU_K];
    float acc[SL_CPU_SUPER * SL_CPU_TOKENS * SL_CPU_LANES];
    float gate[SL_CPU_TOKENS * SL_CPU_SUPER], up[SL_CPU_TOKENS * SL_CPU_SUPER];
    /* outputs of four panels for a block of tokens; two matrices of a gated activation */
    _Alignas(64) float packed[2][SL_I8_TOKENS * SL_I8_PANELS * SL_I8_PANEL];
    /* a group of FP8 panels made BF16, and their products with a block of tokens */
    _Alignas(64) uint16_t fp8_panels[SL_BF16_PANELS * SL_FP8_CODES];
    float fp8_sums[SL_BF16_TOKENS * SL_BF16_PANELS * SL_BF16_PANEL];
};

struct sl_cpu {
    struct sl_backend base;
    struct sl_cpu_kernels k;
    struct sl_i8_kernels i8;
    struct sl_bf16_kernels bf16;
    struct sl_fp8_kernels fp8;
    struct sl_attn_kernels attn;
    struct sl_rec_kernels rec;
    const char *isa_name;
    bool exact; /* multiply every format as floats, straight from the file's rows */
    struct sl_thread_pool *pool;
    bool own_pool;
    int n_threads;
    struct sl_cpu_scratch *scratch;       /* [n_threads] */
    struct sl_attn_scratch *attn_scratch; /* [n_threads] */
    uint8_t *i8_scratch;                  /* [n_threads] pieces of i8_scratch_bytes */
    size_t i8_scratch_bytes;
    void *x_packed; /* a block of tokens' activations as the widest packed matrix wants them */
    size_t x_packed_bytes;
    float *partials;      /* splits of a long context between threads */
    size_t n_partials;    /* floats */
    int32_t *first_block; /* [SL_MAX_SEQS + 1] row blocks before each span */
    struct sl_streams streams;
    struct sl_weight_stream *weights; /* packed ones beyond memory; NULL: all are in it */
};

static inline struct sl_cpu *sl_cpu(struct sl_backend *be)
{
    return (struct sl_cpu *)be;
}

/* Runs the items on the pool, or here when all of them together are not worth waking it: work is
 * about the number of multiplications. */
void sl_cpu_run(struct sl_cpu *cpu, sl_thread_pool_fn fn, void *arg, int64_t n_items, int64_t work);

#define SL_OP(name) void sl_cpu_##name(struct sl_backend *be, const struct sl_op_##name *a);
#define SL_OP_DEVICE(name)
#include "ops/ops.def"
#undef SL_OP

/* sparse.c: the positions of the top_k largest of n > top_k scores, ascending; of equal ones the
 * lower. */
void sl_cpu_index_top(const float *x, int32_t n, int32_t top_k, int32_t *top);

/* What key heads see of a row, in blocks that lie side by side: [T, n_kv_heads, top_k] blocks,
 * ascending. Spans have one row, whose position is that among the blocks of its list. */
struct sl_cpu_blocks {
    const int32_t *top;
    int32_t top_k, block;
};

/* attention.c: the same over such blocks, read where they are; NULL: of all that rows see. */
void sl_cpu_attend(struct sl_cpu *cpu, const struct sl_op_attention *a,
                   const struct sl_cpu_blocks *blocks);

/* gather.c: where the n_bytes of each rank lie, until the next gather of any kind returns. others:
 * room for as many of each, which links that bring them use. */
void sl_cpu_gather_splits(struct sl_rank *rank, const void *part, size_t n_bytes, void *others,
                          const uint8_t *parts[SL_MAX_RANKS]);

/* rope.c: those of row t. */
void sl_cpu_angles_row(const struct sl_op_rope_angles *a, uint32_t t);

/* sum_parts.c: out[n] += shared[n], times the sigmoid of *logit unless that is NULL. */
void sl_cpu_add_shared(const struct sl_cpu *cpu, const float *shared, const float *logit, int64_t n,
                       float *out);

/* experts.c */
int sl_cpu_stack_create(struct sl_backend *be, const struct sl_weight *mats, int32_t n,
                        struct sl_stack *out, struct sl_error *err);
void sl_cpu_stack_destroy(struct sl_backend *be, struct sl_stack *s);
size_t sl_cpu_delta_bytes(int32_t n_heads, int32_t k_dim, int32_t v_dim, bool by_row);
size_t sl_cpu_delta_room(int32_t n, int32_t n_heads, int32_t n_k_heads, int32_t k_dim, bool by_row);
size_t sl_cpu_experts_bytes(struct sl_backend *be, int32_t n, int32_t n_experts, int32_t top_k,
                            int64_t hidden, int64_t intermediate);

/* experts_placed.c */
size_t sl_cpu_placed_bytes(int32_t n, int32_t n_experts, int32_t top_k, int64_t hidden,
                           int32_t n_ranks);

enum sl_cpu_layout {
    SL_LAYOUT_ROWS, /* as in the file, borrowed */
    SL_LAYOUT_I8,   /* cpu/i8.h */
    SL_LAYOUT_BF16, /* cpu/bf16.h */
    SL_LAYOUT_FP8,  /* cpu/fp8.h */
};

/* How a matrix of a format is kept for products. */
enum sl_cpu_layout sl_cpu_layout_of(const struct sl_cpu *cpu, enum sl_dtype dtype);

/* The best instruction set of this processor and operating system. */
enum sl_cpu_isa sl_cpu_isa_best(void);
const char *sl_cpu_isa_name(enum sl_cpu_isa isa);

#endif
