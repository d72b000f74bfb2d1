/* SPDX-License-Identifier: MIT */
#include "kv/kv.h"

#include "base/check.h"
#include "base/sys.h"
#include "kv/feed.h"

#include <string.h>

int sl_kv_init(struct sl_kv *kv, int32_t n_pages, int32_t block_size, bool keep, uint64_t seed,
               struct sl_error *err)
{
    *kv = (struct sl_kv){.keep = keep, .block_size = block_size};
    int rc = sl_pool_init(&kv->pool, n_pages, err);
    if (rc != 0)
        return rc;
    rc = sl_radix_init(&kv->tree, n_pages, block_size, seed, err);
    if (rc != 0)
        goto fail_pool;
    kv->scratch = sl_calloc((size_t)SL_MAX(n_pages, block_size), sizeof *kv->scratch);
    if (kv->scratch == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a pool of %d pages", n_pages);
        goto fail_tree;
    }
    return 0;
fail_tree:
    sl_radix_deinit(&kv->tree);
fail_pool:
    sl_pool_deinit(&kv->pool);
    return rc;
}

void sl_kv_deinit(struct sl_kv *kv)
{
    sl_free(kv->scratch);
    sl_radix_deinit(&kv->tree);
    sl_pool_deinit(&kv->pool);
    *kv = (struct sl_kv){0};
}

int32_t sl_kv_n_cached(const struct sl_kv *kv)
{
    return kv->tree.n_lru;
}

int32_t sl_kv_n_available(const struct sl_kv *kv)
{
    return kv->pool.n_free - kv->pool.n_absent + kv->tree.n_lru;
}

/* Memory for as many absent pages as can be had, at most max; none if fewer than min. */
static int32_t grow(struct sl_kv *kv, int32_t min, int32_t max)
{
    max = SL_MIN(max, kv->pool.n_absent);
    int32_t n = kv->share != NULL && min <= max ? sl_share_take(kv->share, min, max) : 0;
    sl_pool_admit(&kv->pool, n);
    return n;
}

bool sl_kv_ensure(struct sl_kv *kv, int32_t n)
{
    int32_t n_more = n - (kv->pool.n_free - kv->pool.n_absent);
    if (kv->share != NULL && n_more > 0)
        (void)grow(kv, SL_MAX(n_more - kv->tree.n_lru, 0), n_more);
    return sl_kv_n_available(kv) >= n;
}

int32_t sl_kv_take(struct sl_kv *kv, enum sl_evict_cause why)
{
    if (kv->pool.n_free == kv->pool.n_absent && grow(kv, 1, 1) == 0) {
        int32_t page = sl_radix_evict(&kv->tree);
        if (page == SL_NO_PAGE)
            return SL_NO_PAGE;
        sl_pool_release(&kv->pool, page);
        kv->n_evicted[why]++;
    }
    return sl_pool_acquire(&kv->pool);
}

/* The tokens of page idx, in place where they lie in one piece. */
static const int32_t *block_of(struct sl_kv *kv, const struct sl_kv_text *text, int32_t idx)
{
    int32_t n = kv->block_size, first = idx * n;
    SL_ASSERT(first >= 0 && first + n <= text->n_a + text->n_b);
    if (first + n <= text->n_a)
        return text->a + first;
    if (first >= text->n_a)
        return text->b + (first - text->n_a);
    int32_t head = text->n_a - first;
    memcpy(kv->scratch, text->a + first, (size_t)head * sizeof *kv->scratch);
    memcpy(kv->scratch + head, text->b, (size_t)(n - head) * sizeof *kv->scratch);
    return kv->scratch;
}

static void hold(struct sl_kv *kv, int32_t page)
{
    if (kv->tree.nodes[page].in_lru)
        sl_radix_revive(&kv->tree, page);
    sl_pool_ref(&kv->pool, page);
}

static void drop(struct sl_kv *kv, int32_t page, bool forget)
{
    if (sl_pool_unref(&kv->pool, page) > 0)
        return;
    kv->n_releases++;
    struct sl_radix_node *n = &kv->tree.nodes[page];
    /* Cached children hang below a page that is to be forgotten when somebody computed them from
     * it. It cannot leave before them, but nothing finds it, or them, any more. */
    if (forget && n->n_children > 0) {
        n->dead = true;
        if (kv->tree.feed != NULL)
            sl_feed_lost(kv->tree.feed, page);
    }
    if (n->in_tree && ((kv->keep && !forget) || n->n_children > 0)) {
        sl_radix_retire(&kv->tree, page);
        return;
    }
    if (n->in_tree)
        sl_radix_remove(&kv->tree, page);
    sl_pool_release(&kv->pool, page);
}

int32_t sl_kv_match(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max_pages, int32_t *pages)
{
    int32_t n = 0, parent = SL_NO_PAGE;
    for (; n < max_pages; n++) {
        int32_t page = sl_radix_find(&kv->tree, parent, ns, block_of(kv, text, n));
        if (page == SL_NO_PAGE)
            break;
        hold(kv, page);
        pages[n] = parent = page;
    }
    return n;
}

int32_t sl_kv_count(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max_pages)
{
    int32_t n = 0, page = SL_NO_PAGE;
    SL_ASSERT(max_pages >= 0 && max_pages <= (text->n_a + text->n_b) / kv->block_size);
    while (n < max_pages) {
        page = sl_radix_find(&kv->tree, page, ns, block_of(kv, text, n));
        if (page == SL_NO_PAGE)
            break;
        n++;
    }
    return n;
}

void sl_kv_publish(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                   int32_t *pages, int32_t idx)
{
    const int32_t *tokens = block_of(kv, text, idx);
    int32_t parent = idx > 0 ? pages[idx - 1] : SL_NO_PAGE;
    int32_t same = sl_radix_find(&kv->tree, parent, ns, tokens);
    SL_ASSERT(same != pages[idx]);
    if (same == SL_NO_PAGE) {
        sl_radix_insert(&kv->tree, pages[idx], parent, ns, tokens);
        return;
    }
    hold(kv, same);
    drop(kv, pages[idx], false);
    pages[idx] = same;
}

void sl_kv_give(struct sl_kv *kv, const int32_t *pages, int32_t n, bool forget)
{
    while (n > 0)
        drop(kv, pages[--n], forget);
}

void sl_kv_share(struct sl_kv *kv, struct sl_share *share, void (*discard)(void *arg, int32_t page),
                 void *arg)
{
    SL_ASSERT(kv->pool.n_free == kv->pool.n_pages && kv->share == NULL);
    kv->share = share;
    kv->discard = discard;
    kv->discard_arg = arg;
    kv->pool.n_absent = kv->pool.n_pages;
}

static void discard(const struct sl_kv *kv, int32_t page)
{
    if (kv->discard != NULL)
        kv->discard(kv->discard_arg, page);
}

/* Free pages first, then cached ones, least recently used first. */
static void give_back(struct sl_kv *kv, int32_t n)
{
    int32_t n_given = 0;
    for (; n_given < n; n_given++) {
        int32_t page = sl_pool_withdraw(&kv->pool);
        if (page == SL_NO_PAGE) {
            page = sl_radix_evict(&kv->tree);
            if (page == SL_NO_PAGE)
                break;
            sl_pool_release(&kv->pool, page);
            kv->n_evicted[SL_EVICT_SHARED]++;
            page = sl_pool_withdraw(&kv->pool);
        }
        discard(kv, page);
    }
    sl_share_give(kv->share, n_given, true);
}

void sl_kv_share_turn(struct sl_kv *kv)
{
    if (kv->share == NULL)
        return;
    give_back(kv, sl_share_asked(kv->share));
    uint64_t n = sl_share_returns(kv->share);
    kv->n_releases += n != kv->n_returns; /* who was refused for want of pages may ask again */
    kv->n_returns = n;
}

void sl_kv_share_tell(struct sl_kv *kv, int32_t n_wanted, bool idle)
{
    if (kv->share == NULL)
        return;
    uint64_t n_pressed = kv->n_evicted[SL_EVICT_PROMPT] + kv->n_evicted[SL_EVICT_OUTPUT];
    struct sl_share_state state = {
        .n_wanted = SL_MIN(n_wanted, kv->pool.n_absent),
        .n_wished = (int32_t)SL_MIN(n_pressed - kv->n_pressed, (uint64_t)kv->pool.n_absent),
        .n_spare = sl_kv_n_available(kv),
        .idle = idle};
    kv->n_pressed = n_pressed;
    sl_share_tell(kv->share, &state);
}

void sl_kv_clear(struct sl_kv *kv)
{
    kv->n_evicted[SL_EVICT_RESET] += (uint64_t)kv->tree.n_lru;
    while (kv->tree.n_lru > 0)
        sl_pool_release(&kv->pool, sl_radix_evict(&kv->tree));
}

void sl_kv_reset(struct sl_kv *kv)
{
    kv->n_evicted[SL_EVICT_RESET] += (uint64_t)SL_MAX(kv->tree.n_lru, 0);
    int32_t n_there = kv->pool.n_pages - kv->pool.n_absent;
    sl_radix_reset(&kv->tree);
    sl_pool_reset(&kv->pool);
    if (kv->share != NULL) { /* which pages had memory is in doubt, how many is not */
        for (int32_t page = 0; page < kv->pool.n_pages; page++)
            discard(kv, page);
        kv->pool.n_absent = kv->pool.n_pages;
        sl_share_give(kv->share, n_there, false);
    }
    kv->n_releases++; /* pages that were missing are there */
}
