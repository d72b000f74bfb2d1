/* SPDX-License-Identifier: MIT */
#include "kv/pool.h"

#include "base/sys.h"

int sl_pool_init(struct sl_pool *p, int32_t n_pages, struct sl_error *err)
{
    SL_ASSERT(n_pages > 0);
    *p = (struct sl_pool){.n_pages = n_pages};
    p->refs = sl_calloc((size_t)n_pages, sizeof *p->refs);
    p->free_list = sl_calloc((size_t)n_pages, sizeof *p->free_list);
    p->is_free = sl_calloc((size_t)n_pages, sizeof *p->is_free);
    if (p->refs == NULL || p->free_list == NULL || p->is_free == NULL) {
        sl_pool_deinit(p);
        return sl_fail(err, SL_ENOMEM, "out of memory for a pool of %d pages", n_pages);
    }
    sl_pool_reset(p);
    return 0;
}

void sl_pool_reset(struct sl_pool *p)
{
    p->n_free = 0;
    for (int32_t page = p->n_pages - 1; page >= 0; page--) {
        p->refs[page] = 0;
        p->is_free[page] = 0;
        sl_pool_release(p, page);
    }
}

void sl_pool_deinit(struct sl_pool *p)
{
    sl_free(p->is_free);
    sl_free(p->free_list);
    sl_free(p->refs);
    *p = (struct sl_pool){0};
}

int32_t sl_pool_acquire(struct sl_pool *p)
{
    if (p->n_free == p->n_absent)
        return SL_NO_PAGE;
    int32_t page = p->free_list[--p->n_free];
    SL_ASSERT(p->is_free[page] && p->refs[page] == 0);
    p->is_free[page] = 0;
    p->refs[page] = 1;
    return page;
}

void sl_pool_ref(struct sl_pool *p, int32_t page)
{
    SL_ASSERT(page >= 0 && page < p->n_pages && !p->is_free[page]);
    p->refs[page]++;
}

int32_t sl_pool_unref(struct sl_pool *p, int32_t page)
{
    SL_ASSERT(page >= 0 && page < p->n_pages && p->refs[page] > 0);
    return --p->refs[page];
}

void sl_pool_release(struct sl_pool *p, int32_t page)
{
    SL_ASSERT(page >= 0 && page < p->n_pages);
    SL_ASSERT(p->refs[page] == 0 && !p->is_free[page] && p->n_free < p->n_pages);
    p->is_free[page] = 1;
    p->free_list[p->n_free++] = page;
}

void sl_pool_admit(struct sl_pool *p, int32_t n)
{
    SL_ASSERT(n >= 0 && n <= p->n_absent);
    p->n_absent -= n;
}

int32_t sl_pool_withdraw(struct sl_pool *p)
{
    return p->n_free > p->n_absent ? p->free_list[p->n_absent++] : SL_NO_PAGE;
}
