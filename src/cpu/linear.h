/* SPDX-License-Identifier: MIT
 * linear.h - matrix products of one input, however the weights are kept (enum sl_cpu_layout): what
 * linear.c hands to linear_rows.c and linear_packed.c.
 */
#ifndef SL_CPU_LINEAR_H
#define SL_CPU_LINEAR_H

#include "base/check.h"
#include "cpu/backend.h"

/* Products of one input, run as one job: those of several matrices (part), or of the gate and up of
 * an activation. */
struct sl_linear {
    struct sl_cpu *cpu;
    struct sl_linear_part part[SL_MAX_LINEAR_PARTS]; /* all of n_cols columns */
    int n_parts;
    const struct sl_weight
        *up;              /* NULL: plain products, else part[0] is the gate and the only one */
    const float *up_bias; /* that of the gate is its part's; both or NULL */
    enum sl_act act;
    struct sl_swiglu swiglu; /* with a limit: in place of act */
    int64_t n_cols;
    const float *x;
    int64_t ld_x;
    int32_t n;                     /* tokens > 0 */
    const struct sl_op_lora *lora; /* NULL: no row has an adapter */
};

/* Multiplications of the product per column and token. */
static inline int64_t sl_linear_rows_of(const struct sl_linear *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->n_parts; i++)
        n += l->part[i].w->n_rows;
    return n;
}

/* Weights of one item of a job that reads n_bytes, with few tokens: long enough that taking it
 * costs nothing against reading it, short enough that threads finish together. A thread reads its
 * items as one stream. Xeon with AMX, 16 threads, the 4B shape in Q4_K, tokens/s with 8 items and
 * 24: 49.1 and 52.3; on another machine 46.8 and 46.9. */
static inline size_t sl_linear_item_bytes(const struct sl_cpu *cpu, size_t n_bytes)
{
    enum { MIN = 16 << 10, MAX = 256 << 10, ITEMS = 24 /* of a thread */ };
    const size_t n = n_bytes / (size_t)(cpu->n_threads * ITEMS);
    return n < MIN ? MIN : n > MAX ? MAX : n;
}

/* Bytes of the weights of a product; of a gated one those of its gates. */
static inline size_t sl_linear_bytes(const struct sl_linear *l)
{
    size_t n = 0;
    for (int i = 0; i < l->n_parts; i++)
        n += l->part[i].w->n_bytes;
    return n;
}

/* Which part item i of the job belongs to, n_items[p] > 0 of each; *i becomes its number there.
 * Every stretch of the job has its share of every part, in order: a thread's piece of the job is
 * then about what it packed of each matrix, and so near it in memory. */
static inline int sl_linear_part_at(const int64_t *n_items, int n_parts, int64_t *i)
{
    int64_t n = 0;
    for (int p = 0; p < n_parts; p++)
        n += n_items[p];
    for (int p = 0; p < n_parts - 1; p++) {
        const int64_t before = SL_CEIL_DIV(*i * n_items[p], n);
        if (SL_CEIL_DIV((*i + 1) * n_items[p], n) > before) {
            *i = before;
            return p;
        }
        *i -= before;
        n -= n_items[p];
    }
    return n_parts - 1;
}

/* Gates and their ups, rows row .. row + n of a token, before and behind what adapters add. */
void sl_linear_bias_gate(const struct sl_linear *l, int64_t row, int n, float *gate, float *up);
void sl_linear_join_gate(const struct sl_linear *l, const float *gate, const float *up, int n,
                         float *out);

/* Any product; l->n_cols is not set yet. */
void sl_linear_run(struct sl_linear *l);
/* All weights as in the file. */
void sl_linear_rows(const struct sl_linear *l);
/* out[t, i] = row r0 + i of w . x[t], n_r <= SL_CPU_SUPER rows, n_t <= SL_CPU_TOKENS tokens; the
 * part of it that linear_packed.c uses where the other matrix of a pair is packed. */
void sl_linear_rows_tile(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                         const struct sl_weight *w, int64_t r0, int n_r, const float *x,
                         int64_t ld_x, int n_t, float *out, int64_t ld_out);

/* At least one packed. */
void sl_linear_packed(const struct sl_linear *l);

/* lora.c: A x of all rows with an adapter, as items of a job that runs before the outputs; then
 * what it makes of rows row .. row + n_rows of a part (1: also the up of a gate), row a multiple of
 * SL_LORA_PANEL, is added to token t's outputs. */
int64_t sl_lora_n_items(const struct sl_linear *l);
int64_t sl_lora_work(const struct sl_linear *l);
void sl_lora_item(const struct sl_linear *l, int64_t item, int thread_idx);
void sl_lora_add(const struct sl_linear *l, int part, int64_t t, int64_t row, int n_rows,
                 float *out);
/* Asks for what that will read, from memory: pieces of another adapter for each token are too short
 * for the hardware to see a stream. */
void sl_lora_ask(const struct sl_linear *l, int part, int64_t t, int64_t row, int n_rows);

#endif
