/* SPDX-License-Identifier: MIT
 * What the reader of KV events believes, against what the tree holds: random sequences take,
 * publish, pass by, give and forget pages of up to three groups, and a reader who looks at random
 * times must know exactly the pages of each group that can be found, each with its tokens, parent
 * and salt, parents first.
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
    int32_t group;
    uint64_t name, parent;
    int32_t tokens[BLOCK];
    uint64_t adapter;
    int32_t n_salt;
};

struct world {
    struct sl_kv kv;
    struct sl_kv_feed *feed;
    struct known known[3 * N_PAGES];
    int n_known;
    int64_t n_told[3], n_gone[3]; /* pages of groups */
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

static int find(const struct world *w, int32_t group, uint64_t name)
{
    for (int i = 0; i < w->n_known; i++)
        if (w->known[i].name == name && w->known[i].group == group)
            return i;
    return -1;
}

static void believe(struct world *w, const struct sl_feed_event *e, const int32_t *tokens)
{
    if (e->kind == SL_KV_CLEARED) {
        w->n_known = 0;
        return;
    }
    assert_true(e->group >= 0 && e->group < w->kv.n_groups);
    int at = find(w, e->group, e->name);
    if (e->kind == SL_KV_REMOVED) {
        assert_true(at >= 0); /* never told of it otherwise */
        w->n_gone[e->group]++;
        w->known[at] = w->known[--w->n_known];
        return;
    }
    assert_int_equal(at, -1);
    assert_true(e->name > 0 && e->name <= INT64_MAX);
    if (w->kv.groups[e->group].cfg.kind == SL_GROUP_FULL) /* others may have holes */
        assert_true(e->parent_name == 0 || find(w, e->group, e->parent_name) >= 0);
    w->n_told[e->group]++;
    struct known *k = &w->known[w->n_known++];
    *k = (struct known){e->group, e->name, e->parent_name, {0}, e->adapter, e->n_salt};
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

/* What is told of a node's page, which can be found. */
static void compare_page(const struct world *w, int32_t group, int32_t p)
{
    const struct sl_radix *t = &w->kv.tree;
    const int at = find(w, group, t->nodes[p].name.lo & INT64_MAX);
    assert_true(at >= 0);
    assert_memory_equal(w->known[at].tokens, t->tokens + (size_t)p * BLOCK,
                        sizeof w->known[at].tokens);
    int32_t root = p;
    while (t->nodes[root].parent != SL_NO_NODE)
        root = t->nodes[root].parent;
    const struct sl_kv_ns *ns = &t->spaces[root];
    uint64_t adapter;
    memcpy(&adapter, ns->bytes + SL_KV_NS_TENANT, sizeof adapter);
    assert_true(w->known[at].adapter == adapter);
    assert_int_equal(w->known[at].n_salt, ns->n_bytes - SL_KV_NS_TENANT - SL_KV_NS_ADAPTER);
    const int32_t parent = t->nodes[p].parent;
    assert_true(w->known[at].parent ==
                (parent == SL_NO_NODE ? 0 : t->nodes[parent].name.lo & INT64_MAX));
}

static void compare(struct world *w)
{
    const struct sl_radix *t = &w->kv.tree;
    int n = 0, n_pages = 0;
    while (!look(w, 8))
        ;
    for (int32_t p = 0; p < N_PAGES; p++) {
        if (!t->nodes[p].in_tree || is_private(w, p) || is_lost(w, p))
            continue;
        n++;
        for (int32_t g = 0; g < w->kv.n_groups; g++) {
            if (sl_group_page(&w->kv.groups[g], p) == SL_NO_PAGE)
                continue;
            n_pages++;
            compare_page(w, g, p);
        }
    }
    assert_int_equal(n_pages, w->n_known);
    assert_int_equal(n, w->feed->n_in);
}

struct seq {
    int32_t tokens[MAX_BLOCK * BLOCK];
    struct kv_held held;
    struct sl_kv_ns ns;
};

/* A step as long as the cache has room for, at most to the end of block `want`. */
static bool compute(struct world *w, struct seq *s, const struct sl_kv_text *text, int32_t want)
{
    struct sl_kv_blocks *b = &s->held.b;
    const int32_t done = b->n * BLOCK, first = b->n;
    while (b->n < want && sl_kv_take(&w->kv, b, SL_EVICT_PROMPT))
        ;
    int32_t end = b->n;
    while (end > first && !sl_kv_cover(&w->kv, b, done, end))
        end--;
    sl_kv_give(&w->kv, b, end, false);
    if (end == first)
        return false;
    const int32_t after = end * BLOCK;
    int32_t n = sl_kv_n_wanted(&w->kv, b, done, after);
    if (n > 0)
        n = SL_MIN(n, sl_group_n_room(&w->kv.groups[w->kv.n_groups - 1]));
    if (n > 0)
        sl_kv_checkpoint(&w->kv, b, done, after, n);
    for (int32_t i = first; i < end; i++)
        sl_kv_publish(&w->kv, &s->ns, text, b, i);
    sl_kv_pass(&w->kv, b, after);
    return true;
}

static void begin(struct world *w, struct seq *s, struct sl_rng *rng)
{
    s->ns = space((int)sl_rng_below(rng, N_SPACES));
    for (int i = 0; i < MAX_BLOCK * BLOCK; i++)
        s->tokens[i] = (int32_t)sl_rng_below(rng, 2);
    const struct sl_kv_text text = {s->tokens, MAX_BLOCK * BLOCK, NULL, 0};
    int32_t want = 1 + (int32_t)sl_rng_below(rng, MAX_BLOCK);
    struct sl_kv_blocks *b = kv_hold(&s->held);
    const int32_t known = sl_kv_match(&w->kv, &s->ns, &text, want, b);
    if (w->kv.groups[w->kv.n_groups - 1].cfg.kind == SL_GROUP_STATE)
        sl_kv_want(&w->kv, b, (int32_t)sl_rng_below(rng, (uint32_t)want), known);
    for (bool more = true; more && b->n < want;) {
        const int32_t n = 1 + (int32_t)sl_rng_below(rng, 3);
        more = compute(w, s, &text, SL_MIN(want, b->n + n));
    }
}

/* Groups of models: full attention; with windows; with states beside them; states alone. */
static void init_world(struct world *w, int kind)
{
    struct sl_error err;
    struct sl_kv_config cfg = sl_kv_full(N_PAGES, BLOCK, true, 5);
    if (kind == 3)
        cfg.n_groups = 0;
    if (kind == 1 || kind == 2)
        cfg.groups[cfg.n_groups++] =
            (struct sl_kv_group_config){.kind = SL_GROUP_WINDOW, .window = 3, .n_pages = 12};
    if (kind >= 2)
        cfg.groups[cfg.n_groups++] = (struct sl_kv_group_config){
            .kind = SL_GROUP_STATE, .window = SL_STATE_WINDOW, .n_pages = 11};
    *w = (struct world){0};
    assert_int_equal(sl_kv_init(&w->kv, &cfg, NULL), 0);
    assert_int_equal(sl_feed_create(N_PAGES, cfg.n_groups, BLOCK, &w->feed, &err), 0);
    sl_kv_set_feed(&w->kv, w->feed);
}

static void destroy_world(struct world *w)
{
    sl_kv_set_feed(&w->kv, NULL);
    sl_feed_destroy(w->feed);
    sl_kv_deinit(&w->kv);
}

static void play(struct world *w, uint64_t seed, int n_steps)
{
    struct seq seqs[N_SEQS] = {0};
    struct sl_rng rng = {.seed = seed};
    for (int step = 0; step < n_steps; step++) {
        struct seq *s = &seqs[sl_rng_below(&rng, N_SEQS)];
        uint32_t what = (uint32_t)sl_rng_below(&rng, 40);
        if (s->held.b.n == 0)
            begin(w, s, &rng);
        else
            sl_kv_give(&w->kv, &s->held.b, 0, what == 0);
        if (what == 1)
            sl_kv_clear(&w->kv);
        else if (what == 2)
            sl_feed_again(w->feed);
        else if (what < 10)
            (void)look(w, 1 + (int)sl_rng_below(&rng, 8));
        else if (what < 14)
            compare(w);
        if (what == 3) { /* as the engine repairs itself */
            for (int i = 0; i < N_SEQS; i++)
                seqs[i].held.b.n = 0;
            sl_kv_reset(&w->kv);
        }
    }
    compare(w);
}

static void test_against_the_tree(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        int64_t n_alone = 0; /* pages of later groups that came or went while their node stayed */
        for (uint64_t seed = 1; seed <= 100; seed++) {
            struct world w;
            init_world(&w, kind);
            play(&w, seed, 300);
            n_alone += w.n_gone[0] != w.n_gone[w.kv.n_groups - 1];
            destroy_world(&w);
        }
        assert_true(kind == 0 || kind == 3 ? n_alone == 0 : n_alone > 50);
    }
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
    struct world w;
    const int32_t tokens[BLOCK] = {1, 2};
    struct sl_kv_text text = {tokens, BLOCK, NULL, 0};
    struct sl_kv_ns ns = space(0);
    struct kv_held held;
    init_world(&w, 0);
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
    destroy_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_the_tree),
        cmocka_unit_test(test_wakes_and_spares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
