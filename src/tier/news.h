/* SPDX-License-Identifier: MIT
 * news.h - pages that came into a tier and left it, for a reader outside (KV events).
 *
 * Not a log: it keeps which slots the reader was told of and which have something new, each once,
 * and the names of pages that the reader still knows and that are gone. So its size is fixed, and
 * what came and went between two looks is left out. Who is gone is told before anything that came:
 * nothing is told as long as names of the gone are left, so there are never more of them than
 * slots.
 *
 * Under the lock of the tier's owner. Nothing is allocated after init.
 */
#ifndef SL_TIER_NEWS_H
#define SL_TIER_NEWS_H

#include "tier/store.h"

struct sl_slots;

struct sl_news {
    int32_t n_slots;
    uint8_t *flags; /* [n_slots] told, waiting */
    int32_t *came;  /* [n_slots] a ring of slots that wait to be told */
    int32_t first_came, n_came;
    struct sl_store_key *gone; /* [n_slots] a ring */
    int32_t first_gone, n_gone;
    void (*wake)(void *arg); /* the reader, when it had read to the end */
    void *wake_arg;
    bool woken;
};

SL_MUST_CHECK int sl_news_init(struct sl_news *w, int32_t n_slots, struct sl_error *err);
void sl_news_deinit(struct sl_news *w);

void sl_news_came(struct sl_news *w, int32_t slot); /* its page can be found */
void sl_news_went(struct sl_news *w, int32_t slot, const struct sl_store_key *key);
/* Everything from the beginning: what the reader knew is void. */
void sl_news_again(struct sl_news *w, const struct sl_slots *s);

/* The next page that came (true) or left; false: there is nothing new. */
bool sl_news_next(struct sl_news *w, const struct sl_slots *s, struct sl_store_key *key,
                  bool *removed);

#endif
