/* SPDX-License-Identifier: MIT
 * pool.h - page numbers of one KV page pool: a free list and a count of owners per page.
 *
 * Owns bookkeeping only; the bytes of the pages belong to the device. Engine thread only. Nothing
 * is allocated after init. Every call checks its page number: a wrong one is a bug and asserts.
 */
#ifndef SL_KV_POOL_H
#define SL_KV_POOL_H

#include "base/err.h"

#define SL_NO_PAGE (-1)

struct sl_pool {
    int32_t n_pages, n_free;
    int32_t n_absent; /* free ones without memory, the first of the list; 0 in a pool of its own */
    int32_t *refs;    /* [n_pages] sequences that hold the page; 0 = free or only cached */
    int32_t *free_list; /* [n_pages] a stack: the page freed last is reused first, still warm */
    uint8_t *is_free;   /* [n_pages] catches a page freed twice at once, not steps later */
};

SL_MUST_CHECK int sl_pool_init(struct sl_pool *p, int32_t n_pages, struct sl_error *err);
void sl_pool_deinit(struct sl_pool *p);
void sl_pool_reset(struct sl_pool *p);      /* every page free */
int32_t sl_pool_acquire(struct sl_pool *p); /* with one owner; SL_NO_PAGE: none is free and there */
void sl_pool_ref(struct sl_pool *p, int32_t page);
int32_t sl_pool_unref(struct sl_pool *p, int32_t page); /* returns the owners left */
void sl_pool_release(struct sl_pool *p, int32_t page);  /* a page without owners becomes free */
/* Pages come and go with the memory that several pools share (budget.h). */
void sl_pool_admit(struct sl_pool *p, int32_t n); /* so many absent pages have memory */
int32_t sl_pool_withdraw(struct sl_pool *p);      /* a free page becomes absent; SL_NO_PAGE: none */

#endif
