/* SPDX-License-Identifier: MIT
 * late_pages.h - copies of pages that go on after the call, as a GPU's (engine/runner.h): those of
 * a way in their order, some whenever the engine looks, or as many as a step has to wait for. One
 * that concerns a page which is given away before its end, or is read before it has come, copies or
 * leaves what is wrong there.
 */
#ifndef SL_TESTS_LATE_PAGES_H
#define SL_TESTS_LATE_PAGES_H

#include "base/check.h"
#include "base/rng.h"
#include "engine/runner.h"

#include <string.h>

struct late_pages {
    struct late_copy {
        int32_t group, page;
        uint8_t *dst;       /* of the host */
        const uint8_t *src; /* or this */
        uint64_t behind;    /* so many of the other way */
    } queue[SL_N_PAGE_WAYS][SL_MAX_TIER_MOVES];
    struct sl_page_counts begun, over;
    uint64_t behind[SL_N_PAGE_WAYS];
    struct sl_runner inner; /* its page_out and page_in copy in the call */
    struct sl_rng rng;
    bool stands[SL_N_PAGE_WAYS];    /* for some calls: only what is waited for goes on */
    const bool *dead;               /* the device is: its copies never end; NULL: never */
    uint64_t n_awaited, n_followed; /* calls */
};

static struct late_pages late_pages;

/* The next copy of this way, and what it follows. False: there is none. */
static inline bool late_pages_do(enum sl_page_way way)
{
    struct late_pages *l = &late_pages;
    const struct late_copy *c = &l->queue[way][l->over.n[way] % SL_MAX_TIER_MOVES];
    const enum sl_page_way other = way == SL_PAGES_OUT ? SL_PAGES_IN : SL_PAGES_OUT;
    struct sl_error err;
    if (l->over.n[way] == l->begun.n[way])
        return false;
    while (l->over.n[other] < c->behind)
        SL_ASSERT(late_pages_do(other));
    int rc = way == SL_PAGES_OUT ? l->inner.page_out(l->inner.ctx, c->group, c->page, c->dst, &err)
                                 : l->inner.page_in(l->inner.ctx, c->group, c->page, c->src, &err);
    SL_ASSERT(rc == 0);
    l->over.n[way]++;
    return true;
}

static inline int late_pages_begin(enum sl_page_way way, const struct late_copy *c)
{
    struct late_pages *l = &late_pages;
    SL_ASSERT(l->begun.n[way] - l->over.n[way] < SL_MAX_TIER_MOVES);
    l->queue[way][l->begun.n[way]++ % SL_MAX_TIER_MOVES] = *c;
    return 0;
}

static inline int late_page_out(void *ctx, int32_t group, int32_t page, uint8_t *dst,
                                struct sl_error *err)
{
    (void)ctx;
    (void)err;
    return late_pages_begin(
        SL_PAGES_OUT, &(struct late_copy){group, page, dst, NULL, late_pages.behind[SL_PAGES_OUT]});
}

static inline int late_page_in(void *ctx, int32_t group, int32_t page, const uint8_t *src,
                               struct sl_error *err)
{
    (void)ctx;
    (void)err;
    return late_pages_begin(
        SL_PAGES_IN, &(struct late_copy){group, page, NULL, src, late_pages.behind[SL_PAGES_IN]});
}

static inline int late_pages_follow(void *ctx, enum sl_page_way way, struct sl_error *err)
{
    (void)ctx;
    (void)err;
    late_pages.behind[way] = late_pages.begun.n[way == SL_PAGES_OUT ? SL_PAGES_IN : SL_PAGES_OUT];
    late_pages.n_followed++;
    return 0;
}

static inline int late_pages_send(void *ctx, struct sl_error *err)
{
    (void)ctx;
    if (late_pages.dead != NULL && *late_pages.dead)
        return sl_fail(err, SL_EDEVICE, "the device is dead");
    return 0;
}

static inline int late_pages_over(void *ctx, bool wait, struct sl_page_counts *over,
                                  struct sl_error *err)
{
    if (late_pages_send(ctx, err) != 0)
        return SL_EDEVICE;
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        bool *stands = &late_pages.stands[i];
        *stands = sl_rng_below(&late_pages.rng, 12) == 0 ? !*stands : *stands;
        const uint64_t most = wait ? UINT64_MAX : *stands ? 0 : sl_rng_below(&late_pages.rng, 4);
        for (uint64_t n = most; n > 0 && late_pages_do((enum sl_page_way)i); n--) {
        }
    }
    *over = late_pages.over;
    return 0;
}

static inline int late_pages_await(void *ctx, const struct sl_page_counts *n, struct sl_error *err)
{
    (void)ctx;
    (void)err;
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        SL_ASSERT(n->n[i] <= late_pages.begun.n[i]);
        while (late_pages.over.n[i] < n->n[i])
            SL_ASSERT(late_pages_do((enum sl_page_way)i));
    }
    late_pages.n_awaited++;
    return 0;
}

/* The runner's copies are late from now on; one runner at a time. */
static inline void late_pages_use(struct sl_runner *r, uint64_t seed, const bool *dead)
{
    const uint64_t n_awaited = late_pages.n_awaited, n_followed = late_pages.n_followed;
    SL_ASSERT(r->page_out != NULL && r->page_in != NULL);
    late_pages = (struct late_pages){.inner = *r,
                                     .rng = {seed, 0},
                                     .dead = dead,
                                     .n_awaited = n_awaited,
                                     .n_followed = n_followed};
    r->page_out = late_page_out;
    r->page_in = late_page_in;
    r->pages_follow = late_pages_follow;
    r->pages_send = late_pages_send;
    r->pages_over = late_pages_over;
    r->pages_await = late_pages_await;
}

#endif
