/* SPDX-License-Identifier: MIT
 * pool.h - numbers that are handed out and given back: of the prefix tree's nodes, or of the pages
 * of one KV group. A free list, and a count of owners per number.
 *
 * Owns bookkeeping only; the bytes of the pages belong to the device. Engine thread only. Nothing
 * is allocated after init. Every call checks its number: a wrong one is a bug and asserts.
 */
#ifndef SL_KV_POOL_H
#define SL_KV_POOL_H

#include "base/err.h"

#define SL_NO_PAGE (-1)
#define SL_NO_NODE (-1)

struct sl_id_pool {
    int32_t n_ids, n_free;
    int32_t n_absent;   /* free pages without memory, the first of the list; 0 unless shared */
    bool down;          /* the last number is handed out first */
    int32_t *refs;      /* [n_ids] owners; 0: free, or kept without an owner */
    int32_t *free_list; /* [n_ids] a stack: what was freed last is reused first, still warm */
    uint8_t *is_free;   /* [n_ids] catches a number freed twice at once, not steps later */
};

SL_MUST_CHECK int sl_id_pool_init(struct sl_id_pool *p, int32_t n_ids, bool down,
                                  struct sl_error *err);
void sl_id_pool_deinit(struct sl_id_pool *p);
void sl_id_pool_reset(struct sl_id_pool *p);      /* every number free */
int32_t sl_id_pool_acquire(struct sl_id_pool *p); /* with one owner; -1: none is free and there */
void sl_id_pool_ref(struct sl_id_pool *p, int32_t id);
int32_t sl_id_pool_unref(struct sl_id_pool *p, int32_t id); /* returns the owners left */
void sl_id_pool_release(struct sl_id_pool *p, int32_t id);  /* one without owners becomes free */
/* Pages come and go with the memory that several pools share (budget.h). */
void sl_id_pool_admit(struct sl_id_pool *p, int32_t n); /* so many absent pages have memory */
int32_t sl_id_pool_withdraw(struct sl_id_pool *p);      /* a free page becomes absent; -1: none */

static inline int32_t sl_id_pool_n_there(const struct sl_id_pool *p) /* free, with memory */
{
    return p->n_free - p->n_absent;
}

#endif
