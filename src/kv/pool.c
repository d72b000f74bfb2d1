/* SPDX-License-Identifier: MIT */
#include "kv/pool.h"

#include "base/sys.h"

int sl_id_pool_init(struct sl_id_pool *p, int32_t n_ids, bool down, struct sl_error *err)
{
    SL_ASSERT(n_ids > 0);
    *p = (struct sl_id_pool){.n_ids = n_ids, .down = down};
    p->refs = sl_calloc((size_t)n_ids, sizeof *p->refs);
    p->free_list = sl_calloc((size_t)n_ids, sizeof *p->free_list);
    p->is_free = sl_calloc((size_t)n_ids, sizeof *p->is_free);
    if (p->refs == NULL || p->free_list == NULL || p->is_free == NULL) {
        sl_id_pool_deinit(p);
        return sl_fail(err, SL_ENOMEM, "out of memory for a pool of %d pages", n_ids);
    }
    sl_id_pool_reset(p);
    return 0;
}

void sl_id_pool_reset(struct sl_id_pool *p)
{
    p->n_free = 0;
    for (int32_t i = 0; i < p->n_ids; i++) {
        int32_t id = p->down ? i : p->n_ids - 1 - i;
        p->refs[id] = 0;
        p->is_free[id] = 0;
        sl_id_pool_release(p, id);
    }
}

void sl_id_pool_deinit(struct sl_id_pool *p)
{
    sl_free(p->is_free);
    sl_free(p->free_list);
    sl_free(p->refs);
    *p = (struct sl_id_pool){0};
}

int32_t sl_id_pool_acquire(struct sl_id_pool *p)
{
    if (p->n_free == p->n_absent)
        return -1;
    int32_t id = p->free_list[--p->n_free];
    SL_ASSERT(p->is_free[id] && p->refs[id] == 0);
    p->is_free[id] = 0;
    p->refs[id] = 1;
    return id;
}

void sl_id_pool_ref(struct sl_id_pool *p, int32_t id)
{
    SL_ASSERT(id >= 0 && id < p->n_ids && !p->is_free[id]);
    p->refs[id]++;
}

int32_t sl_id_pool_unref(struct sl_id_pool *p, int32_t id)
{
    SL_ASSERT(id >= 0 && id < p->n_ids && p->refs[id] > 0);
    return --p->refs[id];
}

void sl_id_pool_release(struct sl_id_pool *p, int32_t id)
{
    SL_ASSERT(id >= 0 && id < p->n_ids);
    SL_ASSERT(p->refs[id] == 0 && !p->is_free[id] && p->n_free < p->n_ids);
    p->is_free[id] = 1;
    p->free_list[p->n_free++] = id;
}

void sl_id_pool_admit(struct sl_id_pool *p, int32_t n)
{
    SL_ASSERT(n >= 0 && n <= p->n_absent);
    p->n_absent -= n;
}

int32_t sl_id_pool_withdraw(struct sl_id_pool *p)
{
    return p->n_free > p->n_absent ? p->free_list[p->n_absent++] : -1;
}
