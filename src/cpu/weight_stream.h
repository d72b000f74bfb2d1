/* SPDX-License-Identifier: MIT
 * weight_stream.h - packed weights of a model larger than memory: as many as memory was given for
 * lie there, the others in a file, and are read while the products before them are computed.
 *
 * Every step reads the same weights in the same order. Keeping the most recent ones would be the
 * worst policy there is, as each would leave just before its turn; so a fixed part stays, and each
 * of the others is in memory only around its product. Which comes after which is learnt from the
 * first step on. A wrong guess costs time alone: what is not in memory is read when it is touched.
 *
 * Weights of experts are not announced (sl_weight_stream_use): which are hit is known too late.
 * Those that are hit are asked for together before the first of their products
 * (sl_weight_stream_ask). The system keeps of them what was used last.
 */
#ifndef SL_CPU_WEIGHT_STREAM_H
#define SL_CPU_WEIGHT_STREAM_H

#include "base/err.h"

#include <stdint.h>

struct sl_weight_stream;

/* Bytes that are read ahead of the product that is computed; about so much memory is taken beside
 * that for the weights that stay, and for those of one product. */
#define SL_WEIGHT_STREAM_AHEAD (UINT64_C(64) << 20)

/* folder: of the file; memory_bytes: of packed weights that stay in memory. */
SL_MUST_CHECK int sl_weight_stream_create(const char *folder, uint64_t memory_bytes,
                                          struct sl_weight_stream **out, struct sl_error *err);
void sl_weight_stream_destroy(struct sl_weight_stream *s); /* no weight is left; NULL is fine */

/* While a model is loaded or given up, not beside products. */
SL_MUST_CHECK int sl_weight_stream_take(struct sl_weight_stream *s, size_t n_bytes, void **out,
                                        struct sl_error *err);
/* The weight is packed and does not change any more. */
SL_MUST_CHECK int sl_weight_stream_store(struct sl_weight_stream *s, const void *weight,
                                         struct sl_error *err);
void sl_weight_stream_give(struct sl_weight_stream *s, void *weight, size_t n_bytes);

/* A product is about to read these n weights, packed or not, and no other until the next call. */
void sl_weight_stream_use(struct sl_weight_stream *s, const void *const *weights, int n);
/* The weight, packed or not, is about to be read in part of a product: if it lies in the file, its
 * reading begins. Nothing is waited for, kept or dropped. */
void sl_weight_stream_ask(const struct sl_weight_stream *s, const void *weight);

#endif
