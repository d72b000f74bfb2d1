/* SPDX-License-Identifier: MIT
 * spread.h - products that write what they make to the GPUs of all ranks (struct sl_spread).
 */
#ifndef SL_CUDA_SPREAD_H
#define SL_CUDA_SPREAD_H

#include "cuda/gemm/linear.h"

/* Whether a route's kernel can. */
bool sl_cuda_linear_spreads(const struct sl_lin_route *r);
/* The route of a product whose output all ranks want: one that can, if that costs less than the
 * cheapest one with a gather behind it; else that one. */
const struct sl_lin_route *sl_cuda_linear_spread(const struct sl_lin *l, int n_sms, int n_peers);
/* The same, kept. */
const struct sl_lin_route *sl_cuda_linear_spread_of(struct sl_cuda *cu, const struct sl_lin *l);

#endif
