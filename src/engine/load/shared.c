/* SPDX-License-Identifier: MIT */
#include "engine/load/shared.h"

#include "base/check.h"
#include "base/sys.h"

int sl_shared_create(uint64_t kv_cache_bytes, int32_t n_engines, struct sl_shared **out,
                     struct sl_error *err)
{
    *out = NULL;
    if (n_engines < 1 || n_engines > SL_MAX_SHARES)
        return sl_fail(err, SL_ELIMIT, "%d models: a process serves 1 to %d", n_engines,
                       SL_MAX_SHARES);
    struct sl_shared *s = sl_calloc(1, sizeof *s);
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    uint64_t ram = sl_ram_bytes();
    sl_budget_init(&s->budget, kv_cache_bytes != 0 ? kv_cache_bytes
                               : ram != 0          ? ram / 4
                                                   : (uint64_t)1 << 30);
    s->n_engines = n_engines;
    s->given = kv_cache_bytes != 0;
    sl_turn_init(&s->steps);
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return 0;
}

void sl_shared_destroy(struct sl_shared *s)
{
    if (s == NULL)
        return;
    sl_cpu_threads_destroy(s->threads);
    pthread_mutex_destroy(&s->lock);
    sl_turn_deinit(&s->steps);
    sl_budget_deinit(&s->budget);
    sl_free(s);
}

int sl_shared_threads(struct sl_shared *s, const struct sl_cpu_config *cfg,
                      struct sl_cpu_threads **out, struct sl_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->threads == NULL)
        rc = sl_cpu_threads_create(cfg, &s->threads, err);
    SL_ASSERT((rc == 0) == (s->threads != NULL));
    *out = s->threads;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

uint64_t sl_shared_taken(struct sl_shared *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n_bytes = s->taken_bytes;
    pthread_mutex_unlock(&s->lock);
    return n_bytes;
}

void sl_shared_add_taken(struct sl_shared *s, uint64_t n_bytes)
{
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(n_bytes <= UINT64_MAX - s->taken_bytes);
    s->taken_bytes += n_bytes;
    pthread_mutex_unlock(&s->lock);
}

void sl_shared_sub_taken(struct sl_shared *s, uint64_t n_bytes)
{
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(n_bytes <= s->taken_bytes);
    s->taken_bytes -= n_bytes;
    pthread_mutex_unlock(&s->lock);
}
