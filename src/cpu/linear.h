/* SPDX-License-Identifier: MIT
 * linear.h - one matrix product, however its weights are kept (enum sl_cpu_layout): what linear.c
 * hands to linear_rows.c and linear_packed.c.
 */
#ifndef SL_CPU_LINEAR_H
#define SL_CPU_LINEAR_H

#include "cpu/backend.h"

struct sl_linear {
    struct sl_cpu *cpu;
    const struct sl_weight *w, *up; /* up NULL: plain linear, else w is the gate */
    const float *bias;
    enum sl_act act;
    const float *x;
    int64_t ld_x;
    int32_t n; /* tokens > 0 */
    float *out;
    int64_t ld_out;
};

/* Weights of one item with few tokens: long enough that taking it costs nothing against reading it,
 * short enough that threads finish together. */
static inline size_t sl_linear_item_bytes(const struct sl_linear *l)
{
    enum { MIN = 16 << 10, MAX = 256 << 10, ITEMS = 8 /* of a thread */ };
    size_t n = l->w->n_bytes / (size_t)(l->cpu->n_threads * ITEMS);
    return n < MIN ? MIN : n > MAX ? MAX : n;
}

/* All weights as in the file. */
void sl_linear_rows(const struct sl_linear *l);
/* out[t, i] = row r0 + i of w . x[t], n_r <= SL_CPU_SUPER rows, n_t <= SL_CPU_TOKENS tokens; the
 * part of it that linear_packed.c uses where the other matrix of a pair is packed. */
void sl_linear_rows_tile(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                         const struct sl_weight *w, int64_t r0, int n_r, const float *x,
                         int64_t ld_x, int n_t, float *out, int64_t ld_out);

/* At least one packed. */
void sl_linear_packed(const struct sl_linear *l);

#endif
