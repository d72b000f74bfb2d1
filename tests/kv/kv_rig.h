/* SPDX-License-Identifier: MIT
 * kv_rig.h - what tests of kv share: a sequence's blocks with room, and who owns what.
 */
#ifndef SL_TESTS_KV_RIG_H
#define SL_TESTS_KV_RIG_H

#include "kv/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define KV_RIG_BLOCKS 64

struct kv_held {
    struct sl_kv_blocks b;
    int32_t nodes[KV_RIG_BLOCKS], pages[SL_MAX_KV_GROUPS][KV_RIG_BLOCKS];
};

/* None yet. */
static inline struct sl_kv_blocks *kv_hold(struct kv_held *h)
{
    h->b = (struct sl_kv_blocks){.nodes = h->nodes};
    for (int g = 0; g < SL_MAX_KV_GROUPS; g++)
        h->b.pages[g] = h->pages[g];
    return &h->b;
}

static inline void kv_init_full(struct sl_kv *kv, int32_t n_pages, int32_t block_size, bool keep,
                                uint64_t seed)
{
    struct sl_kv_config cfg = sl_kv_full(n_pages, block_size, keep, seed);
    assert_int_equal(sl_kv_init(kv, &cfg, NULL), 0);
}

/* Adds what b owns: owners[1 + n_groups, n_nodes], as sl_kv_check wants it. */
static inline void kv_count(const struct sl_kv *kv, const struct sl_kv_blocks *b, int32_t *owners)
{
    for (int32_t i = 0; i < b->n; i++)
        owners[b->nodes[i]]++;
    for (int32_t g = 0; g < kv->n_groups; g++)
        for (int32_t i = b->first[g]; i < b->end[g]; i++)
            owners[(1 + g) * kv->nodes.n_ids + b->nodes[i]] += b->pages[g][i] != SL_NO_PAGE;
}

#endif
