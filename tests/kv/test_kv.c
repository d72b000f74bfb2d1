/* SPDX-License-Identifier: MIT
 * Tests of kv: page pool and prefix tree, against a model that keeps every prefix as a plain list
 * of tokens and searches it linearly.
 */
#include "base/check.h"
#include "base/rng.h"
#include "kv/kv.h"

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

struct entry {       /* one page of the tree: the whole prefix it completes */
    int32_t page, n; /* n tokens */
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
    int32_t n_tokens, n_pages, n_published;
    int32_t pages[MAX_BLOCK];
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

static int model_by_page(const struct model *m, int32_t page)
{
    for (int i = 0; i < m->n; i++)
        if (m->list[i].page == page)
            return i;
    return -1;
}

static void model_unref(struct model *m, int32_t page, bool keep)
{
    int i = model_by_page(m, page);
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
            return m->list[i].page;
    return SL_NO_PAGE;
}

/* ------------------------------------------------------------------ random operations */

static struct sl_kv_ns ns_of(int ns)
{
    struct sl_kv_ns s = {.n_bytes = (uint8_t)ns};
    memcpy(s.bytes, "sssss", (size_t)ns);
    return s;
}

static int32_t take_checked(struct sl_kv *kv, struct model *m)
{
    int32_t oldest = kv->pool.n_free == 0 ? model_oldest(m) : SL_NO_PAGE;
    int32_t page = sl_kv_take(kv, SL_EVICT_PROMPT);
    if (oldest != SL_NO_PAGE) {
        assert_int_equal(page, oldest);
        model_take_out(m, model_by_page(m, oldest));
    }
    return page;
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
    s->n_pages = sl_kv_match(kv, &ns, &text, n_full, s->pages);
    assert_int_equal(s->n_pages, want);
    for (int32_t i = 0; i < want; i++)
        assert_int_equal(s->pages[i],
                         m->list[model_find(m, s->ns, s->tokens, (i + 1) * BLOCK)].page);
    s->n_published = want;
    while (s->n_pages < SL_CEIL_DIV(s->n_tokens, BLOCK)) {
        int32_t page = take_checked(kv, m);
        if (page == SL_NO_PAGE)
            break;
        s->pages[s->n_pages++] = page;
    }
}

static void publish_one(struct sl_kv *kv, struct model *m, struct seq *s)
{
    int32_t idx = s->n_published, n = (idx + 1) * BLOCK;
    if (n > s->n_tokens || idx >= s->n_pages)
        return;
    struct sl_kv_text text = {s->tokens, s->n_tokens, NULL, 0};
    struct sl_kv_ns ns = ns_of(s->ns);
    int i = model_find(m, s->ns, s->tokens, n);
    int32_t before = s->pages[idx];
    sl_kv_publish(kv, &ns, &text, s->pages, idx);
    if (i >= 0) { /* somebody was quicker: his page */
        assert_int_equal(s->pages[idx], m->list[i].page);
        m->list[i].refs++;
    } else {
        assert_int_equal(s->pages[idx], before);
        struct entry *e = &m->list[m->n++];
        *e = (struct entry){.page = before, .n = n, .ns = s->ns, .refs = 1};
        memcpy(e->tokens, s->tokens, (size_t)n * sizeof *s->tokens);
    }
    s->n_published++;
}

static void end(struct sl_kv *kv, struct model *m, struct seq *s)
{
    sl_kv_give(kv, s->pages, s->n_pages, false);
    for (int32_t i = s->n_pages; i-- > 0;)
        model_unref(m, s->pages[i], kv->keep);
    s->used = false;
}

static void check(struct sl_kv *kv, const struct seq *seqs)
{
    int32_t refs[N_PAGES] = {0};
    for (int i = 0; i < N_SEQS; i++)
        for (int32_t j = 0; seqs[i].used && j < seqs[i].n_pages; j++)
            refs[seqs[i].pages[j]]++;
    struct sl_error err;
    if (sl_kv_check(kv, refs, &err) != 0)
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
        assert_int_equal(sl_kv_init(&kv, N_PAGES, BLOCK, seed % 3 != 0, seed, NULL), 0);
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

/* Computes and publishes the prompt's three pages. */
static void compute(struct sl_kv *kv, const struct sl_kv_ns *ns, int32_t *pages)
{
    for (int i = 0; i < 3; i++)
        pages[i] = sl_kv_take(kv, SL_EVICT_PROMPT);
    for (int i = 0; i < 3; i++)
        sl_kv_publish(kv, ns, &prompt_text, pages, i);
}

static void namespaces_do_not_meet(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0}, red = ns_of(1), redd = ns_of(2), private = ns_of(1);
    private.is_private = 1;
    int32_t pages[3], hit[3];
    assert_int_equal(sl_kv_init(&kv, 8, BLOCK, true, 7, NULL), 0);
    compute(&kv, &red, pages);
    assert_int_equal(sl_kv_match(&kv, &none, &prompt_text, 3, hit), 0);
    assert_int_equal(sl_kv_match(&kv, &redd, &prompt_text, 3, hit), 0);
    assert_int_equal(sl_kv_match(&kv, &private, &prompt_text, 3, hit), 0);
    assert_int_equal(sl_kv_match(&kv, &red, &prompt_text, 3, hit), 3);
    assert_memory_equal(hit, pages, sizeof hit);
    sl_kv_deinit(&kv);
}

static void a_hash_alone_is_not_believed(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0};
    int32_t pages[3], hit[3];
    assert_int_equal(sl_kv_init(&kv, 8, BLOCK, true, 7, NULL), 0);
    compute(&kv, &none, pages);
    /* As if other tokens had the same hash. */
    kv.tree.tokens[pages[1] * BLOCK] ^= 1;
    assert_int_equal(sl_kv_match(&kv, &none, &prompt_text, 3, hit), 1);
    kv.tree.tokens[pages[1] * BLOCK] ^= 1;
    sl_kv_give(&kv, hit, 1, false);
    /* As if a page after another prefix had the same hash. */
    kv.tree.nodes[pages[2]].parent = pages[0];
    assert_int_equal(sl_kv_match(&kv, &none, &prompt_text, 3, hit), 2);
    sl_kv_deinit(&kv);
}

static void least_recently_used_goes_first_and_leaves_before_parents(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns a = ns_of(1), b = ns_of(2);
    int32_t pa[3], pb[3], hit[3];
    assert_int_equal(sl_kv_init(&kv, 6, BLOCK, true, 7, NULL), 0);
    compute(&kv, &a, pa);
    compute(&kv, &b, pb);
    sl_kv_give(&kv, pa, 3, false);
    sl_kv_give(&kv, pb, 3, false);
    assert_int_equal(sl_kv_match(&kv, &a, &prompt_text, 1, hit), 1); /* a's root is used again */
    sl_kv_give(&kv, hit, 1, false);
    const int32_t order[] = {pa[2], pa[1], pb[2], pb[1], pb[0], pa[0]};
    for (size_t i = 0; i < SL_COUNT(order); i++)
        assert_int_equal(sl_kv_take(&kv, i < 2 ? SL_EVICT_OUTPUT : SL_EVICT_PROMPT), order[i]);
    assert_int_equal(sl_kv_take(&kv, SL_EVICT_PROMPT), SL_NO_PAGE);
    assert_int_equal(kv.n_evicted[SL_EVICT_OUTPUT], 2);
    assert_int_equal(kv.n_evicted[SL_EVICT_PROMPT], 4);
    sl_kv_deinit(&kv);
}

static void forgotten_pages_are_never_found_again(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0};
    int32_t pages[3], hit[3];
    assert_int_equal(sl_kv_init(&kv, 8, BLOCK, true, 7, NULL), 0);
    compute(&kv, &none, pages);
    sl_kv_give(&kv, pages + 2, 1, false); /* the third is cached, its parents are in doubt */
    sl_kv_give(&kv, pages, 2, true);
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    assert_int_equal(sl_kv_match(&kv, &none, &prompt_text, 3, hit), 0);
    compute(&kv, &none, pages); /* computed anew, beside the dead ones */
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    sl_kv_give(&kv, pages, 3, false);
    assert_int_equal(sl_kv_match(&kv, &none, &prompt_text, 3, hit), 3);
    assert_memory_equal(hit, pages, sizeof hit);
    sl_kv_give(&kv, hit, 3, false);
    for (int i = 0; i < 8; i++)
        assert_int_not_equal(sl_kv_take(&kv, SL_EVICT_PROMPT), SL_NO_PAGE);
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    sl_kv_deinit(&kv);
}

static void what_others_hold_is_not_forgotten(void **state)
{
    (void)state;
    struct sl_kv kv;
    struct sl_kv_ns none = {0};
    int32_t pages[3], hit[3];
    assert_int_equal(sl_kv_init(&kv, 8, BLOCK, true, 7, NULL), 0);
    compute(&kv, &none, pages);
    assert_int_equal(sl_kv_match(&kv, &none, &prompt_text, 2, hit), 2);
    sl_kv_give(&kv, pages, 3, true);
    assert_int_equal(sl_kv_check(&kv, NULL, NULL), 0);
    assert_int_equal(kv.pool.n_free, 6);
    sl_kv_give(&kv, hit, 2, false);
    assert_int_equal(sl_kv_n_cached(&kv), 2);
    sl_kv_deinit(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_match_the_model),
        cmocka_unit_test(namespaces_do_not_meet),
        cmocka_unit_test(a_hash_alone_is_not_believed),
        cmocka_unit_test(least_recently_used_goes_first_and_leaves_before_parents),
        cmocka_unit_test(forgotten_pages_are_never_found_again),
        cmocka_unit_test(what_others_hold_is_not_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
