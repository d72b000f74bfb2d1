/* SPDX-License-Identifier: MIT
 * experts.h - parts of the experts' operation (experts.c) that the one among ranks with placed
 * experts is made of, too (experts_placed.c).
 */
#ifndef SL_CPU_EXPERTS_H
#define SL_CPU_EXPERTS_H

#include "cpu/backend.h"

/* Bits of how a pair is added to its row: 0 to 2 the sums (of a leaf, of two, of four) that are
 * added to it, from here on where it goes, and whether it is the first there. */
enum { SL_ADD_TO = 3, SL_ADD_FIRST = 5 };

/* The place of the row's next expert that is here, behind number `before`; -1: there is none. */
int32_t sl_cpu_next_expert(const struct sl_op_experts *a, const int32_t *experts, int32_t before);
/* adds [top_k]: how row t adds its experts that are here. false: none is. */
bool sl_cpu_expert_adds(const struct sl_op_experts *a, int32_t t, uint8_t *adds);
/* y, n values that a pair gives, to sums of a leaf, of two, of four, of all; y is changed. */
void sl_cpu_expert_add(const struct sl_cpu_kernels *k, unsigned how, float *y, float *sums[4],
                       int n);
/* What the pairs of rank `own` give, of ranks [n * top_k]: kept [those, H], by expert, of one in
 * the order of rows. a without rank. */
void sl_cpu_expert_products(struct sl_backend *be, const struct sl_op_experts *a,
                            const uint8_t *ranks, int32_t own, float *kept);
/* experts_placed.c: all but the shared expert. */
void sl_cpu_experts_placed(struct sl_backend *be, const struct sl_op_experts *a);

#endif
