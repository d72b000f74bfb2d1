/* SPDX-License-Identifier: MIT
 * rank_pages.h - the parts of a page that ranks, or stages, have, and how they are copied where
 * those are processes of their own.
 *
 * A copy of a page is the parts of all (sl_model_part), one after the other. Rank 0 names the page;
 * the parts come to it as a gather of one row, or go out with the name, whole, and each takes its
 * own.
 */
#ifndef SL_ENGINE_RANK_PAGES_H
#define SL_ENGINE_RANK_PAGES_H

#include "dist/link.h"
#include "models/model.h"

struct sl_rank_pages {
    int32_t n_parts, n_groups;
    int32_t n_pages[SL_MAX_KV_GROUPS]; /* that there are; of processes */
    size_t bytes[SL_MAX_RANKS][SL_MAX_KV_GROUPS];
};

/* Of an engine's pages, whose layout is kv. */
void sl_rank_pages_init(struct sl_rank_pages *p, const struct sl_model *model,
                        const struct sl_kv_layout *kv);
/* The most bytes that a part has, and a message with a page. */
size_t sl_rank_pages_most(const struct sl_rank_pages *p);
size_t sl_rank_pages_message(const struct sl_rank_pages *p);

/* Rank 0. pool: its own part of the group's pages; message: room. SL_ERANK: the link is lost. */
SL_MUST_CHECK int sl_rank_pages_out(const struct sl_rank_pages *p, struct sl_link *link,
                                    const uint8_t *pool, int32_t group, int32_t page, uint8_t *dst,
                                    uint8_t *message);
SL_MUST_CHECK int sl_rank_pages_in(const struct sl_rank_pages *p, struct sl_link *link,
                                   uint8_t *pool, int32_t group, int32_t page, const uint8_t *src,
                                   uint8_t *message);
/* Another one does what the message says; SL_EFORMAT: no rank 0 says that. */
SL_MUST_CHECK int sl_rank_pages_get(const struct sl_rank_pages *p, struct sl_link *link,
                                    uint8_t *const *pools, const uint8_t *message, size_t n,
                                    struct sl_error *err);

#endif
