/* SPDX-License-Identifier: MIT
 * transfer.h - pages of prompts between servers: one computes a prompt and offers its pages
 * (tier/serve.h), another asks for them (tier/peer.h) and goes on where they end.
 *
 * Both begin where a request is submitted, on its submitter's thread. What comes goes to the store
 * (tiers.h), on threads of the peer's; the request waits meanwhile and is then one whose pages are
 * in the store. What does not come in time is computed.
 */
#ifndef SL_ENGINE_TRANSFER_H
#define SL_ENGINE_TRANSFER_H

#include "engine/tiers.h"

#define SL_TRANSFER_WAIT_NS                                              \
    UINT64_C(30000000000) /* for another server's pages, its prefill too \
                           */

/* After the store was opened. */
SL_MUST_CHECK int sl_transfer_init(struct sl_engine *eng, const struct sl_tiers_config *cfg,
                                   struct sl_error *err);
void sl_transfer_deinit(struct sl_engine *eng);

/* Submitter's thread, once the request has names. */
void sl_transfer_begin(struct sl_engine *eng, struct sl_request *req,
                       const struct sl_kv_transfer *t);
/* It will not run. */
void sl_transfer_abandon(struct sl_request *req);
/* Nothing more comes for it from elsewhere. */
bool sl_transfer_over(const struct sl_request *req);
/* It does not want anything more from elsewhere. Engine thread. */
void sl_transfer_drop(struct sl_request *req);
/* It ends: its pages are on offer for some time more. Engine thread. */
void sl_transfer_end(struct sl_engine *eng, struct sl_request *req, bool failed);
void sl_transfer_release(struct sl_request *req); /* with the request's memory */
void sl_transfer_stats(const struct sl_engine *eng, struct sl_kv_transfer_stats *out);

#endif
