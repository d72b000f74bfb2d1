/* SPDX-License-Identifier: MIT
 * host.h - pages in host memory: one arena, cut into slots. Under the lock of the store.
 */
#ifndef SL_TIER_HOST_H
#define SL_TIER_HOST_H

#include "tier/slots.h"

/* Pages begin at multiples of this in memory and in files, so that files can be read and written
 * without the system's page cache. */
#define SL_TIER_ALIGN 4096

struct sl_host {
    struct sl_slots slots;
    uint8_t *arena;
    size_t n_arena, chunk_bytes;
    bool left; /* the arena stays behind */
    size_t stride[SL_MAX_KV_GROUPS];
};

SL_MUST_CHECK int sl_host_open(struct sl_host *h, const struct sl_store_config *cfg,
                               struct sl_error *err);
void sl_host_close(struct sl_host *h);
uint8_t *sl_host_page(const struct sl_host *h, int32_t slot);
int32_t sl_host_slot(const struct sl_host *h, const uint8_t *page); /* of a page of this memory */

#endif
