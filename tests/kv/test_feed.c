/* SPDX-License-Identifier: MIT
 * What the reader of KV events believes, against what the tree holds: random sequences take,
 * publish, give and forget pages, and a reader who looks at random times must know exactly the
 * pages that can be found, each with its tokens, parent and salt, parents first.
 */
#include "base/check.h"
#include "base/rng.h"
#include "kv/feed.h"
#include "kv/kv.h"
#include "kv/kv_rig.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK     2
#define N_PAGES   20
#define MAX_BLOCK 6 /* of a sequence */
#define N_SEQS    5
#define N_SPACES  4 /* none, salted, an adapter, private */

struct known {
    uint64_t name, parent;
    int32_t tokens[BLOCK];
    uint64_t adapter;
    int32_t n_salt;
};

struct world {
    struct sl_kv kv;
    struct sl_kv_feed *feed;
    struct known known[4 * N_PAGES];
    int n_known;
};

static struct sl_kv_ns space(int i)
{
    struct sl_kv_ns ns = {.n_bytes = SL_KV_NS_TENANT + SL_KV_NS_ADAPTER};
    const uint64_t id = 7;
    const float factor = 1;
    if (i == 1) {
        memcpy(ns.bytes + ns.n_bytes, "salt", 4);
        ns.n_bytes += 4;
    } else if (i == 2) {
        memcpy(ns.bytes + SL_KV_NS_TENANT, &id, sizeof id);
        memcpy(ns.bytes + SL_KV_NS_TENANT + sizeof id, &factor, sizeof factor);
    } else if (i == 3) {
        ns.is_private = 1;
    }
    return ns;
}

static int find(const struct world *w, uint64_t name)
{
    for (int i = 0; i < w->n_known; i++)
        if (w->known[i].name == name)
            return i;
    return -1;
}

static void believe(struct world *w, const struct sl_feed_event *e, const int32_t *tokens)
{
    if (e->kind == SL_KV_CLEARED) {
        w->n_known = 0;
        return;
    }
    int at = find(w, e->name);
    if (e->kind == SL_KV_REMOVED) {
        assert_true(at >= 0); /* never told of it otherwise */
        w->known[at] = w->known[--w->n_known];
        return;
    }
    assert_int_equal(at, -1);
    assert_true(e->name > 0 && e->name <= INT64_MAX);
    assert_true(e->parent_name == 0 || find(w, e->parent_name) >= 0);
    struct known *k = &w->known[w->n_known++];
    *k = (struct known){e->name, e->parent_name, {0}, e->adapter, e->n_salt};
    memcpy(k->tokens, tokens, sizeof k->tokens);
    if (e->n_salt > 0)
        assert_memory_equal(e->salt, "salt", 4);
}

/* At most max events; returns true when nothing is left. */
static bool look(struct world *w, int max)
{
    struct sl_feed_event events[8];
    int32_t tokens[8 * BLOCK];
    int32_t n = sl_feed_read(w->feed, events, tokens, max);
    for (int32_t i = 0; i < n; i++)
        believe(w, &events[i], tokens + i * BLOCK);
    return n == 0;
}

static bool is_private(const struct world *w, int32_t node)
{
    const struct sl_radix *t = &w->kv.tree;
    while (t->nodes[node].parent != SL_NO_NODE)
        node = t->nodes[node].parent;
    return t->spaces[node].is_private;
}

static bool is_lost(const struct world *w, int32_t node)
{
    const struct sl_radix *t = &w->kv.tree;
    for (; node != SL_NO_NODE; node = t->nodes[node].parent)
        if (t->nodes[node].dead)
            return true;
    return false;
}

static void compare(struct world *w)
{
    const struct sl_radix *t = &w->kv.tree;
    int n = 0;
    while (!look(w, 8))
        ;
    for (int32_t p = 0; p < N_PAGES; p++) {
        if (!t->nodes[p].in_tree || is_private(w, p) || is_lost(w, p))
            continue;
        n++;
        int at = find(w, t->nodes[p].name.lo & INT64_MAX);
        assert_true(at >= 0);
        assert_memory_equal(w->known[at].tokens, t->tokens + (size_t)p * BLOCK,
                            sizeof w->known[at].tokens);
        int32_t parent = t->nodes[p].parent;
        uint64_t name = parent == SL_NO_NODE ? 0 : t->nodes[parent].name.lo & INT64_MAX;
        assert_true(w->known[at].parent == name);
        if (parent == SL_NO_NODE) {
            uint8_t n_bytes = t->spaces[p].n_bytes;
            assert_int_equal(w->known[at].n_salt, n_bytes - SL_KV_NS_TENANT - SL_KV_NS_ADAPTER);
        } else {
            assert_true(w->known[at].adapter == w->known[find(w, name)].adapter);
            assert_int_equal(w->known[at].n_salt, w->known[find(w, name)].n_salt);
        }
    }
    assert_int_equal(n, w->n_known);
    assert_int_equal(n, w->feed->n_in);
}

struct seq {
    int32_t tokens[MAX_BLOCK * BLOCK];
    struct kv_held held;
    struct sl_kv_ns ns;
};

static void begin(struct world *w, struct seq *s, struct sl_rng *rng)
{
    s->ns = space((int)sl_rng_below(rng, N_SPACES));
    for (int i = 0; i < MAX_BLOCK * BLOCK; i++)
        s->tokens[i] = (int32_t)sl_rng_below(rng, 2);
    const struct sl_kv_text text = {s->tokens, MAX_BLOCK * BLOCK, NULL, 0};
    int32_t want = 1 + (int32_t)sl_rng_below(rng, MAX_BLOCK);
    struct sl_kv_blocks *b = kv_hold(&s->held);
    sl_kv_match(&w->kv, &s->ns, &text, want, b);
    while (b->n < want && sl_kv_take(&w->kv, b, SL_EVICT_PROMPT))
        sl_kv_publish(&w->kv, &s->ns, &text, b, b->n - 1);
}

static void play(uint64_t seed, int n_steps)
{
    struct world w = {0};
    struct seq seqs[N_SEQS] = {0};
    struct sl_rng rng;
    struct sl_error err;
    rng = (struct sl_rng){.seed = seed};
    kv_init_full(&w.kv, N_PAGES, BLOCK, true, 5);
    assert_int_equal(sl_feed_create(N_PAGES, BLOCK, &w.feed, &err), 0);
    w.kv.tree.feed = w.feed;
    for (int step = 0; step < n_steps; step++) {
        struct seq *s = &seqs[sl_rng_below(&rng, N_SEQS)];
        uint32_t what = (uint32_t)sl_rng_below(&rng, 40);
        if (s->held.b.n == 0)
            begin(&w, s, &rng);
        else
            sl_kv_give(&w.kv, &s->held.b, 0, what == 0);
        if (what == 1)
            sl_kv_clear(&w.kv);
        else if (what == 2)
            sl_feed_again(w.feed);
        else if (what < 10)
            (void)look(&w, 1 + (int)sl_rng_below(&rng, 8));
        else if (what < 14)
            compare(&w);
        if (what == 3) { /* as the engine repairs itself */
            for (int i = 0; i < N_SEQS; i++)
                seqs[i].held.b.n = 0;
            sl_kv_reset(&w.kv);
        }
    }
    compare(&w);
    w.kv.tree.feed = NULL;
    sl_feed_destroy(w.feed);
    sl_kv_deinit(&w.kv);
}

static void test_against_the_tree(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++)
        play(seed, 300);
}

static bool is_readable(const struct sl_kv_feed *f)
{
    struct pollfd p = {.fd = f->event_fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* What came and went between two looks is not told, and the descriptor says when to look. */
static void test_wakes_and_spares(void **state)
{
    (void)state;
    struct world w = {0};
    struct sl_error err;
    const int32_t tokens[BLOCK] = {1, 2};
    struct sl_kv_text text = {tokens, BLOCK, NULL, 0};
    struct sl_kv_ns ns = space(0);
    struct kv_held held;
    kv_init_full(&w.kv, N_PAGES, BLOCK, true, 5);
    assert_int_equal(sl_feed_create(N_PAGES, BLOCK, &w.feed, &err), 0);
    w.kv.tree.feed = w.feed;
    sl_feed_signal(w.feed);
    assert_false(is_readable(w.feed));
    assert_true(sl_kv_take(&w.kv, kv_hold(&held), SL_EVICT_PROMPT));
    sl_kv_publish(&w.kv, &ns, &text, &held.b, 0);
    sl_feed_signal(w.feed);
    assert_true(is_readable(w.feed));
    sl_kv_give(&w.kv, &held.b, 0, false);
    sl_kv_clear(&w.kv);
    assert_true(look(&w, 8)); /* nothing to tell */
    assert_false(is_readable(w.feed));
    assert_true(sl_kv_take(&w.kv, kv_hold(&held), SL_EVICT_PROMPT));
    sl_kv_publish(&w.kv, &ns, &text, &held.b, 0);
    assert_false(look(&w, 8));
    assert_int_equal(w.n_known, 1);
    sl_kv_give(&w.kv, &held.b, 0, false);
    sl_feed_again(w.feed); /* an idle engine signals nothing */
    assert_true(is_readable(w.feed));
    assert_false(look(&w, 1)); /* cleared */
    assert_int_equal(w.n_known, 0);
    assert_false(look(&w, 1));
    assert_int_equal(w.n_known, 1);
    w.kv.tree.feed = NULL;
    sl_feed_destroy(w.feed);
    sl_kv_deinit(&w.kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_the_tree),
        cmocka_unit_test(test_wakes_and_spares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
