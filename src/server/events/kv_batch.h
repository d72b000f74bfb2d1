/* SPDX-License-Identifier: MIT
 * kv_batch.h - events of the prefix cache in MessagePack, as vLLM writes them: a batch is
 * [time, events, data_parallel_rank], an event a map with a "type" (vLLM 0.26 and later) or an
 * array that begins with it. All fields are written, so that readers of arrays find theirs by
 * index.
 */
#ifndef SL_SERVER_KV_BATCH_H
#define SL_SERVER_KV_BATCH_H

#include "base/buf.h"
#include "sluice.h"

/* Appends a batch of n > 0 events of a model; pages of one group that follow one another become one
 * event. Returns how many events it has; 0: nothing of it may be told, and nothing was appended. */
int32_t sl_kv_batch_put(struct sl_buf *b, const struct sl_kv_event *events, int32_t n,
                        const struct sl_model_info *info, double wall_s, bool arrays);

#endif
