/* SPDX-License-Identifier: MIT */
#include "tier/news.h"

#include "base/check.h"
#include "base/sys.h"
#include "tier/slots.h"

enum { TOLD = 1, WAITS = 2 };

int sl_news_init(struct sl_news *w, int32_t n_slots, struct sl_error *err)
{
    SL_ASSERT(n_slots > 0 && n_slots <= SL_MAX_TIER_PAGES);
    *w = (struct sl_news){.n_slots = n_slots};
    w->flags = sl_calloc((size_t)n_slots, sizeof *w->flags);
    w->came = sl_calloc((size_t)n_slots, sizeof *w->came);
    w->gone = sl_calloc((size_t)n_slots, sizeof *w->gone);
    if (w->flags != NULL && w->came != NULL && w->gone != NULL)
        return 0;
    sl_news_deinit(w);
    return sl_fail(err, SL_ENOMEM, "out of memory for events of %d KV pages", n_slots);
}

void sl_news_deinit(struct sl_news *w)
{
    sl_free(w->gone);
    sl_free(w->came);
    sl_free(w->flags);
    *w = (struct sl_news){0};
}

static void wake(struct sl_news *w)
{
    const bool first = !w->woken;
    w->woken = true;
    if (first && w->wake != NULL)
        w->wake(w->wake_arg);
}

void sl_news_came(struct sl_news *w, int32_t slot)
{
    SL_ASSERT(slot >= 0 && slot < w->n_slots && (w->flags[slot] & TOLD) == 0);
    if ((w->flags[slot] & WAITS) != 0)
        return;
    SL_ASSERT(w->n_came < w->n_slots);
    w->came[(w->first_came + w->n_came++) % w->n_slots] = slot;
    w->flags[slot] = WAITS;
    wake(w);
}

void sl_news_went(struct sl_news *w, int32_t slot, const struct sl_store_key *key)
{
    SL_ASSERT(slot >= 0 && slot < w->n_slots);
    if ((w->flags[slot] & TOLD) == 0)
        return;
    SL_ASSERT(w->n_gone < w->n_slots);
    w->gone[(w->first_gone + w->n_gone++) % w->n_slots] = *key;
    w->flags[slot] = 0;
    wake(w);
}

void sl_news_again(struct sl_news *w, const struct sl_slots *s)
{
    w->n_came = w->n_gone = 0;
    for (int32_t i = 0; i < w->n_slots; i++) {
        w->flags[i] = 0;
        if (s->slots[i].state == SL_SLOT_READY)
            sl_news_came(w, i);
    }
}

bool sl_news_next(struct sl_news *w, const struct sl_slots *s, struct sl_store_key *key,
                  bool *removed)
{
    SL_ASSERT(w->n_gone >= 0 && w->n_came >= 0);
    *removed = w->n_gone > 0;
    if (*removed) {
        *key = w->gone[w->first_gone];
        w->first_gone = (w->first_gone + 1) % w->n_slots;
        w->n_gone--;
        return true;
    }
    while (w->n_came > 0) {
        const int32_t slot = w->came[w->first_came];
        w->first_came = (w->first_came + 1) % w->n_slots;
        w->n_came--;
        SL_ASSERT(w->flags[slot] == WAITS);
        w->flags[slot] = 0;
        if (s->slots[slot].state != SL_SLOT_READY)
            continue; /* it is gone again; what comes there next will wait anew */
        w->flags[slot] = TOLD;
        *key = (struct sl_store_key){s->slots[slot].name, sl_slot_group(s, slot)};
        return true;
    }
    w->woken = false;
    return false;
}
