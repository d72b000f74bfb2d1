/* SPDX-License-Identifier: MIT
 * store_events.c - which pages came into host memory and onto the disk, and left them.
 */
#include "base/check.h"
#include "tier/store_impl.h"

static struct sl_slots *slots_of(struct sl_store *s, int tier)
{
    return tier == SL_TIER_HOST ? &s->host.slots : &s->disk.slots;
}

int sl_store_events_open(struct sl_store *s, struct sl_error *err)
{
    int rc = 0;
    for (int i = SL_TIER_HOST; rc == 0 && i <= SL_TIER_DISK && s->cfg.news != NULL; i++) {
        struct sl_slots *l = slots_of(s, i);
        if (i == SL_TIER_DISK && !s->has_disk)
            continue;
        rc = sl_news_init(&s->news[i], l->n_chunks * l->n_stride, err);
        if (rc != 0)
            break;
        s->news[i].wake = s->cfg.news;
        s->news[i].wake_arg = s->cfg.news_arg;
        sl_news_again(&s->news[i], l);
        l->news = &s->news[i];
    }
    return rc;
}

void sl_store_events_close(struct sl_store *s)
{
    s->host.slots.news = s->disk.slots.news = NULL;
    sl_news_deinit(&s->news[0]);
    sl_news_deinit(&s->news[1]);
}

int32_t sl_store_events(struct sl_store *s, struct sl_store_event *out, int32_t max)
{
    int32_t n = 0;
    SL_ASSERT(max > 0 && s->cfg.news != NULL);
    pthread_mutex_lock(&s->lock);
    for (int i = SL_TIER_HOST; i <= SL_TIER_DISK; i++) {
        struct sl_store_event e = {.tier = (enum sl_tier_kind)i};
        while (n < max && sl_news_next(&s->news[i], slots_of(s, i), &e.key, &e.removed))
            out[n++] = e;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

void sl_store_events_again(struct sl_store *s)
{
    SL_ASSERT(s->cfg.news != NULL);
    pthread_mutex_lock(&s->lock);
    for (int i = SL_TIER_HOST; i <= SL_TIER_DISK; i++)
        if (s->news[i].n_slots > 0)
            sl_news_again(&s->news[i], slots_of(s, i));
    pthread_mutex_unlock(&s->lock);
}
