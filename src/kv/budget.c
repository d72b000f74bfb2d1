/* SPDX-License-Identifier: MIT */
#include "kv/budget.h"

#include "base/check.h"

void sl_budget_init(struct sl_budget *b, uint64_t total)
{
    *b = (struct sl_budget){.total = total};
    pthread_mutex_init(&b->lock, NULL);
}

void sl_budget_deinit(struct sl_budget *b)
{
    for (int i = 0; i < SL_MAX_SHARES; i++)
        SL_ASSERT(b->shares[i].budget == NULL);
    pthread_mutex_destroy(&b->lock);
}

/* ---- what follows has the lock */

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What no pool holds and no floor reserves. */
static uint64_t left_of(const struct sl_budget *b)
{
    uint64_t taken = 0;
    for (int i = 0; i < SL_MAX_SHARES; i++) {
        const struct sl_share *s = &b->shares[i];
        taken += s->budget != NULL ? SL_MAX(s->held, s->floor) : 0;
    }
    SL_ASSERT(taken <= b->total);
    return b->total - taken;
}

/* A pool's floor and its part of what floors leave. */
static uint64_t even_part(const struct sl_share *s)
{
    const struct sl_budget *b = s->budget;
    uint64_t floors = 0, n = 0;
    for (int i = 0; i < SL_MAX_SHARES; i++) {
        floors += b->shares[i].budget != NULL ? b->shares[i].floor : 0;
        n += b->shares[i].budget != NULL;
    }
    return s->floor + (b->total - floors) / n;
}

/* Does this one want pages that are due to it? */
static bool is_short(const struct sl_share *s)
{
    return s->budget != NULL && s->wanted > 0 && s->held < even_part(s);
}

static bool other_is_short(const struct sl_share *s)
{
    for (int i = 0; i < SL_MAX_SHARES; i++) {
        const struct sl_share *o = &s->budget->shares[i];
        if (o != s && is_short(o))
            return true;
    }
    return false;
}

/* Bytes that s may take now. */
static uint64_t budget_room_for(const struct sl_share *s)
{
    uint64_t left = left_of(s->budget);
    if (other_is_short(s))
        left = SL_MIN(left, minus(even_part(s), SL_MAX(s->held, s->floor)));
    return minus(s->floor, s->held) + left;
}

static void budget_wake(const struct sl_share *s)
{
    if (s->wake != NULL)
        s->wake(s->wake_arg);
}

static void wake_wanting(struct sl_budget *b, const struct sl_share *but)
{
    for (int i = 0; i < SL_MAX_SHARES; i++) {
        if (&b->shares[i] != but && b->shares[i].budget != NULL && b->shares[i].wanted > 0)
            budget_wake(&b->shares[i]);
    }
}

/* One that was short of its part and is not any more may have held others up. */
static void note_relief(const struct sl_share *s, bool was_short)
{
    if (!was_short || is_short(s))
        return;
    s->budget->n_returns++;
    wake_wanting(s->budget, s);
}

/* Bytes beyond its floor that a pool gives up for others: to its even part while it wants more
 * itself, and then only to those that have less than theirs. */
static uint64_t to_give(const struct sl_share *s)
{
    uint64_t wanted = 0, over = minus(s->held, s->wanted > 0 ? even_part(s) : s->floor);
    for (int i = 0; i < SL_MAX_SHARES; i++) {
        const struct sl_share *o = &s->budget->shares[i];
        if (o != s && o->budget != NULL && (s->wanted == 0 || is_short(o)))
            wanted += o->wanted;
        if (o != s && o->budget != NULL && s->idle)
            wanted += o->wished;
    }
    wanted = minus(wanted, left_of(s->budget));
    return SL_MIN(SL_MIN(wanted, over), s->spare);
}

/* ---- shares */

int sl_share_open(struct sl_budget *b, uint64_t own, uint64_t page_bytes, int32_t floor_pages,
                  struct sl_share **out, struct sl_error *err)
{
    struct sl_share *s = NULL;
    uint64_t floor = own + page_bytes * (uint64_t)floor_pages;
    int rc = 0;
    SL_ASSERT(page_bytes > 0 && floor_pages >= 0 && floor > 0);
    *out = NULL;
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < SL_MAX_SHARES && s == NULL; i++)
        s = b->shares[i].budget == NULL ? &b->shares[i] : NULL;
    uint64_t left = left_of(b);
    if (s == NULL)
        rc = sl_fail(err, SL_ELIMIT, "more than %d models share memory", SL_MAX_SHARES);
    else if (floor > left)
        rc = sl_fail(err, SL_EINVAL,
                     "kv_cache_memory_bytes: %llu bytes for all models leave %llu, and this one "
                     "needs %llu for one sequence of max_model_len",
                     (unsigned long long)b->total, (unsigned long long)left,
                     (unsigned long long)floor);
    else
        *s = (struct sl_share){
            .budget = b, .page_bytes = page_bytes, .floor = floor, .own = own, .held = own};
    pthread_mutex_unlock(&b->lock);
    if (rc == 0)
        *out = s;
    return rc;
}

void sl_share_close(struct sl_share *s)
{
    if (s == NULL)
        return;
    struct sl_budget *b = s->budget;
    pthread_mutex_lock(&b->lock);
    *s = (struct sl_share){.budget = NULL};
    b->n_returns++;
    wake_wanting(b, s);
    pthread_mutex_unlock(&b->lock);
}

void sl_share_set_wake(struct sl_share *s, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&s->budget->lock);
    s->wake = fn;
    s->wake_arg = arg;
    pthread_mutex_unlock(&s->budget->lock);
}

int32_t sl_share_take(struct sl_share *s, int32_t min, int32_t max)
{
    SL_ASSERT(min >= 0 && max >= min);
    pthread_mutex_lock(&s->budget->lock);
    bool was_short = is_short(s);
    uint64_t room = budget_room_for(s) / s->page_bytes;
    int32_t n = (int32_t)SL_MIN(room, (uint64_t)max);
    if (n < min)
        n = 0;
    s->held += (uint64_t)n * s->page_bytes;
    s->wanted = minus(s->wanted, (uint64_t)n * s->page_bytes);
    s->wished = minus(s->wished, (uint64_t)n * s->page_bytes);
    note_relief(s, was_short);
    pthread_mutex_unlock(&s->budget->lock);
    return n;
}

void sl_share_give(struct sl_share *s, int32_t n_pages, bool to_others)
{
    if (n_pages == 0)
        return;
    pthread_mutex_lock(&s->budget->lock);
    uint64_t n_bytes = (uint64_t)n_pages * s->page_bytes;
    SL_ASSERT(n_pages > 0 && n_bytes <= s->held - s->own);
    s->held -= n_bytes;
    s->spare = minus(s->spare, n_bytes);
    s->n_given += to_others ? (uint64_t)n_pages : 0;
    s->budget->n_returns++;
    wake_wanting(s->budget, s);
    pthread_mutex_unlock(&s->budget->lock);
}

void sl_share_tell(struct sl_share *s, const struct sl_share_state *state)
{
    struct sl_budget *b = s->budget;
    pthread_mutex_lock(&b->lock);
    bool was_short = is_short(s);
    uint64_t wanted = (uint64_t)state->n_wanted * s->page_bytes, room = budget_room_for(s);
    s->wanted = wanted > room ? wanted - minus(s->floor, s->held) : 0;
    s->wished = (uint64_t)state->n_wished * s->page_bytes;
    s->spare = (uint64_t)state->n_spare * s->page_bytes;
    s->idle = state->idle;
    note_relief(s, was_short);
    for (int i = 0; i < SL_MAX_SHARES && s->wanted + s->wished > 0; i++) {
        const struct sl_share *o = &b->shares[i];
        if (o != s && o->budget != NULL && to_give(o) > 0)
            budget_wake(o);
    }
    pthread_mutex_unlock(&b->lock);
}

int32_t sl_share_asked(struct sl_share *s)
{
    pthread_mutex_lock(&s->budget->lock);
    uint64_t n = SL_CEIL_DIV(to_give(s), s->page_bytes);
    uint64_t over = minus(s->held, s->floor) / s->page_bytes;
    pthread_mutex_unlock(&s->budget->lock);
    return (int32_t)SL_MIN(n, over);
}

uint64_t sl_share_returns(struct sl_share *s)
{
    pthread_mutex_lock(&s->budget->lock);
    uint64_t n = s->budget->n_returns;
    pthread_mutex_unlock(&s->budget->lock);
    return n;
}

void sl_share_look(struct sl_share *s, struct sl_share_view *out)
{
    pthread_mutex_lock(&s->budget->lock);
    *out = (struct sl_share_view){.total = s->budget->total,
                                  .floor = s->floor,
                                  .held = s->held,
                                  .wanted = s->wanted,
                                  .left = left_of(s->budget),
                                  .n_given = s->n_given};
    pthread_mutex_unlock(&s->budget->lock);
}

int sl_share_check(struct sl_share *s, int32_t n_pages, struct sl_error *err)
{
    const struct sl_budget *b = s->budget;
    uint64_t taken = 0;
    int rc = 0;
    pthread_mutex_lock(&s->budget->lock);
    for (int i = 0; i < SL_MAX_SHARES; i++)
        taken += b->shares[i].budget != NULL ? SL_MAX(b->shares[i].held, b->shares[i].floor) : 0;
    if (taken > b->total)
        rc = sl_fail(err, SL_EINTERNAL, "I1: models hold %llu bytes of pages of %llu",
                     (unsigned long long)taken, (unsigned long long)b->total);
    else if (s->held != s->own + (uint64_t)n_pages * s->page_bytes)
        rc = sl_fail(err, SL_EINTERNAL, "I1: %d pages have memory, %llu bytes are accounted for",
                     n_pages, (unsigned long long)s->held);
    pthread_mutex_unlock(&s->budget->lock);
    return rc;
}
