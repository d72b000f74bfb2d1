/* SPDX-License-Identifier: MIT */
#include "base/turn.h"

#include "base/err.h"

void sl_turn_init(struct sl_turn *t)
{
    t->n_asked = t->n_passed = 0;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
}

void sl_turn_deinit(struct sl_turn *t)
{
    SL_ASSERT(t->n_asked == t->n_passed);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
}

void sl_turn_take(struct sl_turn *t)
{
    pthread_mutex_lock(&t->lock);
    uint64_t mine = t->n_asked++;
    while (t->n_passed != mine)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void sl_turn_pass(struct sl_turn *t)
{
    pthread_mutex_lock(&t->lock);
    SL_ASSERT(t->n_passed < t->n_asked);
    t->n_passed++;
    if (t->n_passed != t->n_asked)
        pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}
