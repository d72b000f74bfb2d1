/* SPDX-License-Identifier: MIT
 * Tests of kv: nodes, pages and prefix tree, against a model that keeps every prefix as a plain
 * list of tokens and searches it linearly. Windows are test_kv_groups.c's.
 */
#include "base/check.h"
#include "base/rng.h"
#include "kv/kv_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK     3
#define N_PAGES   24
#define MAX_BLOCK 8 /* of a sequence */
#define N_SEQS    6

/* ------------------------------------------------------------------ model */

struct entry {       /* one node of the tree: the whole prefix it completes */
    int32_t node, n; /* n tokens */
    int32_t tokens[MAX_BLOCK * BLOCK];
    int ns, refs;
};

struct model {
    struct entry list[N_PAGES]; /* those without owner stand in order of their release */
    int n;
};

struct seq {
    bool used;
    int ns;
    int32_t tokens[MAX_BLOCK * BLOCK];
    int32_t n_tokens, n_published;
    struct kv_held held;
};

static int model_find(const struct model *m, int ns, const int32_t *tokens, int32_t n)
{
    for (int i = 0; i < m->n; i++)
        if (m->list[i].ns == ns && m->list[i].n == n &&
            memcmp(m->list[i].tokens, tokens, (size_t)n * sizeof *tokens) == 0)
            return i;
    return -1;
}

static struct entry model_take_out(struct model *m, int i)
{
    struct entry e = m->list[i];
    memmove(&m->list[i], &m->list[i + 1], (size_t)(m->n - i - 1) * sizeof e);
    m->n--;
    return e;
}

static int model_by_node(const struct model *m, int32_t node)
{
    for (int i = 0; i < m->n; i++)
        if (m->list[i].node == node)
            return i;
    return -1;
}

static void model_unref(struct model *m, int32_t node, bool keep)
{
    int i = model_by_node(m, node);
    if (i < 0 || --m->list[i].refs > 0)
        return;
    struct entry e = model_take_out(m, i);
    if (keep)
        m->list[m->n++] = e; /* to the end: most recently used */
}

static int32_t model_oldest(const struct model *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->list[i].refs == 0)
            return m->list[i].node;
    return SL_NO_NODE;
}

/* ------------------------------------------------------------------ random operations */

static struct sl_kv_ns ns_of(int ns)
{
    struct sl_kv_ns s = {.n_bytes = (uint8_t)ns};
    memcpy(s.bytes, "sssss", (size_t)ns);
    return s;
}

static bool take_checked(struct sl_kv *kv, struct model *m, struct sl_kv_blocks *b)
{
    int32_t oldest = kv->nodes.n_free == 0 ? model_oldest(m) : SL_NO_NODE;
    if (!sl_kv_take(kv, b, SL_EVICT_PROMPT))
        return false;
    if (oldest != SL_NO_NODE) {
        assert_int_equal(b->nodes[b->n - 1], oldest);
        model_take_out(m, model_by_node(m, oldest));
    }
    return true;
}

static void begin(struct sl_kv *kv, struct model *m, struct seq *s, struct sl_rng *r)
{
    *s = (struct seq){.used = true, .ns = (int)sl_rng_below(r, 2)};
    s->n_tokens = 1 + (int32_t)sl_rng_below(r, MAX_BLOCK * BLOCK);
    for (int32_t i = 0; i < s->n_tokens; i++) /* few different blocks: many shared prefixes */
        s->tokens[i] = i % BLOCK == 0 ? (int32_t)sl_rng_below(r, 2) : i;
    int32_t half = s->n_tokens / 2, n_full = s->n_tokens / BLOCK;
    struct sl_kv_text text = {s->tokens, half, s->tokens + half, s->n_tokens - half};
    struct sl_kv_ns ns = ns_of(s->ns);
    int32_t want = 0;
    for (int i; want < n_full; want++) {
        i = model_find(m, s->ns, s->tokens, (want + 1) * BLOCK);
        if (i < 0)
            break;
        m->list[i].refs++;
    }
    struct sl_kv_blocks *b = kv_hold(&s->held);
    sl_kv_match(kv, &ns, &text, n_full, b);
    assert_int_equal(b->n, want);
    for (int32_t i = 0; i < want; i++)
        assert_int_equal(b->nodes[i],
                         m->list[model_find(m, s->ns, s->tokens, (i + 1) * BLOCK)].node);
    s->n_published = want;
    while (b->n < SL_CEIL_DIV(s->n_tokens, BLOCK) && take_checked(kv, m, b)) {
    }
}

static void publish_one(struct sl_kv *kv, struct model *m, struct seq *s)
{
    int32_t idx = s->n_published, n = (idx + 1) * BLOCK;
    if (n > s->n_tokens || idx >= s->held.b.n)
        return;
    struct sl_kv_text text = {s->tokens, s->n_tokens, NULL, 0};
    struct sl_kv_ns ns = ns_of(s->ns);
    int i = model_find(m, s->ns, s->tokens, n);
    int32_t before = s->held.b.nodes[idx];
    sl_kv_publish(kv, &ns, &text, &s->held.b, idx);
    if (i >= 0) { /* somebody was quicker: that one's node */
        assert_int_equal(s->held.b.nodes[idx], m->list[i].node);
        m->list[i].refs++;
    } else {
        assert_int_equal(s->held.b.nodes[idx], before);
        struct entry *e = &m->list[m->n++];
        *e = (struct entry){.node = before, .n = n, .ns = s->ns, .refs = 1};
        memcpy(e->tokens, s->tokens, (size_t)n * sizeof *s->tokens);
    }
    s->n_published++;
}

static void end(struct sl_kv *kv, struct model *m, struct seq *s)
{
    int32_t n = s->held.b.n;
    sl_kv_give(kv, &s->held.b, 0, false);
    while (n-- > 0)
        model_unref(m, s->held.nodes[n], kv->keep);
    s->used = false;
}

static void check(struct sl_kv *kv, const struct seq *seqs)
{
    int32_t owners[2 * N_PAGES] = {0};
    for (int i = 0; i < N_SEQS; i++)
        if (seqs[i].used)
            kv_count(kv, &seqs[i].held.b, owners);
    struct sl_error err;
    if (sl_kv_check(kv, owners, &err) != 0)
        fail_msg("%s", err.msg);
}

static void random_operations_match_the_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct sl_rng r = {.seed = seed};
        struct sl_kv kv;
        struct model m = {.n = 0};
        struct seq seqs[N_SEQS] = {{0}};
        kv_init_full(&kv, N_PAGES, BLOCK, seed % 3 != 0, seed);
        for (int op = 0; op < 600; op++) {
            struct seq *s = &seqs[sl_rng_below(&r, N_SEQS)];
            if (!s->used)
                begin(&kv, &m, s, &r);
            else if (sl_rng_below(&r, 4) != 0)
                publish_one(&kv, &m, s);
            else
                end(&kv, &m, s);
            check(&kv, seqs);
            assert_int_equal(kv.tree.n_in_tree, m.n);
        }
        for (int i = 0; i < N_SEQS; i++)
            if (seqs[i].used)
                end(&kv, &m, &seqs[i]);
        check(&kv, seqs);
        assert_int_equal(sl_kv_n_available(&kv), N_PAGES);
        sl_kv_deinit(&kv);
    }
}

/* ------------------------------------------------------------------ single properties */

static const int32_t prompt[] = {5, 6, 7, 8, 9, 10, 11, 12, 13};
static const struct sl_kv_text prompt_text = {prompt, 9, NULL, 0};

/* Computes and publishes the prompt's three blocks. */
static void compute(struct sl_kv *kv, const struct sl_kv_ns *ns, struct kv_held *h)
{
    struct sl_kv_blocks *b = kv_hold(h);
    for (int i = 0; i < 3; i++)
        assert_true(sl_kv_take(kv, b, SL_EVICT_PROMPT));
    for (int i = 0; i < 3; i++)
        sl_kv_publish(kv, ns, &prompt_text, b, i);
}

/* How many of the prompt's first blocks are found; they are held from then on. */
static int32_t match(struct sl_kv *kv, const struct sl_kv_ns *ns, int32_t max, struct kv_held *h)
{
    sl_kv_match(kv, ns, &prompt_text, max, kv_hold(h));
    return h->b.n;
}

/* The node that the next sequence gets; nobody gives it back. */
static int32_t take_one(struct sl_kv *kv, enum sl_evict_cause why)
{
    struct kv_held h;
    return sl_kv_take(kv, kv_hold(&h), why) ? h.nodes[0] : SL_NO_NODE;
}

static void namespaces_do_not_meet(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0}, red = ns_of(1), redd = ns_of(2), private = ns_of(1);
    private.is_private = 1;
    struct kv_held held, hit;
    kv_init_full(&kv, 8, BLOCK, true, 7);
    compute(&kv, &red, &held);
    assert_int_equal(match(&kv, &none, 3, &hit), 0);
    assert_int_equal(match(&kv, &redd, 3, &hit), 0);
    assert_int_equal(match(&kv, &private, 3, &hit), 0);
    assert_int_equal(match(&kv, &red, 3, &hit), 3);
    assert_memory_equal(hit.nodes, held.nodes, 3 * sizeof *hit.nodes);
    sl_kv_deinit(&kv);
}

static void a_hash_alone_is_not_believed(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0};
    struct kv_held held, hit;
    kv_init_full(&kv, 8, BLOCK, true, 7);
    compute(&kv, &none, &held);
    /* As if other tokens had the same hash. */
    kv.tree.tokens[held.nodes[1] * BLOCK] ^= 1;
    assert_int_equal(match(&kv, &none, 3, &hit), 1);
    kv.tree.tokens[held.nodes[1] * BLOCK] ^= 1;
    sl_kv_give(&kv, &hit.b, 0, false);
    /* As if a page after another prefix had the same hash. */
    kv.tree.nodes[held.nodes[2]].parent = held.nodes[0];
    assert_int_equal(match(&kv, &none, 3, &hit), 2);
    sl_kv_deinit(&kv);
}

static void names_outlive_the_process(void **state)
{
    (void)state;
    struct sl_kv kv[2];
    struct sl_kv_ns a = ns_of(1), b = ns_of(2);
    struct kv_held ha, hb;
    struct sl_hash128 name[2][3];
    for (int i = 0; i < 2; i++) { /* other secrets, other nodes, the same names */
        kv_init_full(&kv[i], 8, BLOCK, true, 7 + (uint64_t)i);
        compute(&kv[i], i == 0 ? &a : &b, &ha);
        compute(&kv[i], i == 0 ? &b : &a, &hb);
        const struct kv_held *h = i == 0 ? &ha : &hb;
        for (int k = 0; k < 3; k++)
            name[i][k] = kv[i].tree.nodes[h->nodes[k]].name;
        sl_kv_deinit(&kv[i]);
    }
    assert_memory_equal(name[0], name[1], sizeof name[0]);
    assert_true(name[0][0].lo != name[0][1].lo && name[0][0].hi != name[0][1].hi);
    struct sl_kv_config cfg = sl_kv_full(8, BLOCK, true, 7);
    cfg.root.hi = 1; /* of another model */
    assert_int_equal(sl_kv_init(&kv[0], &cfg, NULL), 0);
    compute(&kv[0], &a, &ha);
    assert_true(kv[0].tree.nodes[ha.nodes[0]].name.lo != name[0][0].lo);
    sl_kv_deinit(&kv[0]);
    kv_init_full(&kv[0], 8, BLOCK, true, 7);
    sl_kv_seed_names(&kv[0], 5); /* of a folder with a secret */
    compute(&kv[0], &a, &ha);
    assert_true(kv[0].tree.nodes[ha.nodes[0]].name.lo != name[0][0].lo);
    sl_kv_deinit(&kv[0]);
}

static void least_recently_used_goes_first_and_leaves_before_parents(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns a = ns_of(1), b = ns_of(2);
    struct kv_held pa, pb, hit;
    kv_init_full(&kv, 6, BLOCK, true, 7);
    compute(&kv, &a, &pa);
    compute(&kv, &b, &pb);
    sl_kv_give(&kv, &pa.b, 0, false);
    sl_kv_give(&kv, &pb.b, 0, false);
    assert_int_equal(match(&kv, &a, 1, &hit), 1); /* a's root is used again */
    sl_kv_give(&kv, &hit.b, 0, false);
    const int32_t order[] = {pa.nodes[2], pa.nodes[1], pb.nodes[2],
                             pb.nodes[1], pb.nodes[0], pa.nodes[0]};
    for (size_t i = 0; i < SL_COUNT(order); i++)
        assert_int_equal(take_one(&kv, i < 2 ? SL_EVICT_OUTPUT : SL_EVICT_PROMPT), order[i]);
    assert_int_equal(take_one(&kv, SL_EVICT_PROMPT), SL_NO_NODE);
    assert_int_equal(kv.n_evicted[SL_EVICT_OUTPUT], 2);
    assert_int_equal(kv.n_evicted[SL_EVICT_PROMPT], 4);
    sl_kv_deinit(&kv);
}

static void forgotten_blocks_are_never_found_again(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0};
    struct kv_held held, hit;
    kv_init_full(&kv, 8, BLOCK, true, 7);
    compute(&kv, &none, &held);
    sl_kv_give(&kv, &held.b, 2, false); /* the third is cached, its parents are in doubt */
    sl_kv_give(&kv, &held.b, 0, true);
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    assert_int_equal(match(&kv, &none, 3, &hit), 0);
    compute(&kv, &none, &held); /* computed anew, beside the dead ones */
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    sl_kv_give(&kv, &held.b, 0, false);
    assert_int_equal(match(&kv, &none, 3, &hit), 3);
    assert_memory_equal(hit.nodes, held.nodes, 3 * sizeof *hit.nodes);
    sl_kv_give(&kv, &hit.b, 0, false);
    for (int i = 0; i < 8; i++)
        assert_int_not_equal(take_one(&kv, SL_EVICT_PROMPT), SL_NO_NODE);
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    sl_kv_deinit(&kv);
}

static void what_others_hold_is_not_forgotten(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0};
    struct kv_held held, hit;
    kv_init_full(&kv, 8, BLOCK, true, 7);
    compute(&kv, &none, &held);
    assert_int_equal(match(&kv, &none, 2, &hit), 2);
    sl_kv_give(&kv, &held.b, 0, true);
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    assert_int_equal(kv.nodes.n_free, 6);
    assert_int_equal(kv.groups[0].pool.n_free, 6);
    sl_kv_give(&kv, &hit.b, 0, false);
    assert_int_equal(sl_kv_n_cached(&kv), 2);
    sl_kv_deinit(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_match_the_model),
        cmocka_unit_test(namespaces_do_not_meet),
        cmocka_unit_test(a_hash_alone_is_not_believed),
        cmocka_unit_test(names_outlive_the_process),
        cmocka_unit_test(least_recently_used_goes_first_and_leaves_before_parents),
        cmocka_unit_test(forgotten_blocks_are_never_found_again),
        cmocka_unit_test(what_others_hold_is_not_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
