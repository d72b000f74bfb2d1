/* SPDX-License-Identifier: MIT
 * Tests of SuffixDecoding's search: beside the method's definition, by counting substrings; that
 * past outputs are forgotten in order; that nothing of another namespace is ever drafted.
 */
#include "base/check.h"
#include "base/rng.h"
#include "engine/suffix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MAX_TEXTS 40
#define MAX_LEN   64 /* every place is counted */

struct output {
    int32_t ids[MAX_LEN], n;
    struct sl_kv_ns ns;
};

/* How often a pattern stands in the texts, and where last. */
static int32_t count(const struct output *const *texts, int32_t n_texts, const int32_t *pattern,
                     int32_t n, int32_t *last)
{
    int32_t found = 0;
    *last = -1;
    for (int32_t i = 0; i < n_texts; i++)
        for (int32_t at = 0; at + n <= texts[i]->n; at++)
            if (memcmp(texts[i]->ids + at, pattern, (size_t)n * sizeof *pattern) == 0) {
                found++;
                *last = i * MAX_LEN + at;
            }
    return found;
}

/* From the definition. more: what is added to the count of a match. */
static void plain_find(const struct output *const *texts, int32_t n_texts, int32_t more,
                       const int32_t *query, int32_t n_query, int32_t n_vocab,
                       const struct sl_speculative *how, int32_t n, struct sl_suffix_drafts *out)
{
    const int32_t depth = how->suffix_max_tree_depth;
    int32_t last, pattern[2 * MAX_LEN];
    *out = (struct sl_suffix_drafts){0};
    for (int32_t m = 1; m < n_query && m < depth; m++) {
        struct sl_suffix_drafts d = {.match = m};
        memcpy(pattern, query + n_query - m, (size_t)m * sizeof *pattern);
        const int32_t all = count(texts, n_texts, pattern, m, &last) + more;
        int32_t most = SL_MIN(n, (int32_t)((double)m * (double)how->suffix_max_spec_factor + 1e-6));
        int64_t sum = 0;
        most = SL_MIN(most, depth - m);
        while (d.n < most) {
            int32_t best = 0, best_last = -1, best_id = -1;
            for (int32_t id = 0; id < n_vocab; id++) {
                pattern[m + d.n] = id;
                const int32_t k = count(texts, n_texts, pattern, m + d.n + 1, &last);
                if (k > best || (k > 0 && k == best && last > best_last)) {
                    best = k;
                    best_last = last;
                    best_id = id;
                }
            }
            if (best == 0 || (float)best / (float)all < how->suffix_min_token_prob)
                break;
            pattern[m + d.n] = d.ids[d.n] = best_id;
            d.n++;
            sum += best;
            d.score = (double)sum / all;
        }
        if (d.n > 0 && d.score >= out->score)
            *out = d;
    }
}

static void same(const struct sl_suffix_drafts *got, const struct sl_suffix_drafts *want)
{
    assert_int_equal(got->n, want->n);
    assert_memory_equal(got->ids, want->ids, (size_t)got->n * sizeof got->ids[0]);
    assert_true(got->score == want->score);
    assert_int_equal(got->match, want->match);
    for (int32_t i = 0; i < got->n; i++)
        assert_true(got->share[i] > 0 && got->share[i] <= 1);
}

static struct sl_speculative some_config(struct sl_rng *r)
{
    return (struct sl_speculative){
        .method = SL_DRAFT_SUFFIX,
        .suffix_max_tree_depth = 2 + (int32_t)sl_rng_below(r, 30),
        .suffix_max_cached_requests = 1 + (int32_t)sl_rng_below(r, 12),
        .suffix_corpus_tokens = 4096,
        .suffix_max_spec_factor = (float)sl_rng_below(r, 9) * 0.5f,
        .suffix_min_token_prob = (float)sl_rng_below(r, 5) * 0.15f,
    };
}

/* Texts that repeat themselves: random, or pieces of what came before. */
static int32_t some_text(struct sl_rng *r, int32_t n_vocab, int32_t max, int32_t *ids)
{
    int32_t n = 0;
    while (n < max)
        if (n > 4 && sl_rng_below(r, 3) == 0) {
            int32_t from = (int32_t)sl_rng_below(r, (uint64_t)n - 2);
            for (int32_t k = 2 + (int32_t)sl_rng_below(r, 20); k > 0 && n < max && from < n; k--)
                ids[n++] = ids[from++];
        } else {
            ids[n++] = (int32_t)sl_rng_below(r, (uint64_t)n_vocab);
        }
    return n;
}

static void the_published_example(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 3, 1, 2};
    const struct sl_speculative how = {
        .suffix_max_tree_depth = 24, .suffix_max_spec_factor = 1, .suffix_min_token_prob = 0.1f};
    const struct sl_suffix_text t = {ids, NULL, 5, 5};
    uint32_t room[1000];
    struct sl_suffix_links l;
    struct sl_suffix_drafts d;
    assert_true(sl_suffix_words(5) <= 1000);
    sl_suffix_init(&l, 5, room);
    sl_suffix_extend(&l, &t);
    sl_suffix_find(&l, &t, &t, &how, 8, &d);
    assert_int_equal(d.n, 2);
    assert_int_equal(d.ids[0], 3);
    assert_int_equal(d.ids[1], 1);
    assert_int_equal(d.match, 2);
    assert_true(d.score == 1.0);
}

static void a_text_as_defined(void **state)
{
    (void)state;
    struct sl_rng r = {.seed = 7};
    static uint32_t room[4096];
    int32_t n_found = 0, n_long = 0;
    for (int k = 0; k < 3000; k++) {
        struct output text = {.n = 0};
        const struct output *const texts[1] = {&text};
        const struct sl_speculative how = some_config(&r);
        const int32_t n_vocab = 2 + (int32_t)sl_rng_below(&r, k % 2 == 0 ? 3 : 12);
        const int32_t max = 1 + (int32_t)sl_rng_below(&r, MAX_LEN),
                      n_a = (int32_t)sl_rng_below(&r, (uint64_t)max + 1);
        int32_t ids[MAX_LEN], n = 1 + (int32_t)sl_rng_below(&r, SL_MAX_DRAFTED);
        some_text(&r, n_vocab, max, ids);
        memset(room, k & 0xFF, sizeof room);
        struct sl_suffix_links l;
        assert_true(sl_suffix_words(max) <= (int64_t)SL_COUNT(room));
        sl_suffix_init(&l, max, room);
        for (int32_t step = SL_MAX(n_a, 1); step <= max; step += 1 + (int32_t)sl_rng_below(&r, 9)) {
            const struct sl_suffix_text t = {ids, ids + n_a, n_a, step};
            struct sl_suffix_drafts got, want;
            memcpy(text.ids, ids, (size_t)step * sizeof *ids);
            text.n = step;
            sl_suffix_extend(&l, &t);
            sl_suffix_find(&l, &t, &t, &how, n, &got);
            plain_find(texts, 1, 0, ids, step, n_vocab, &how, n, &want);
            same(&got, &want);
            n_found += got.n > 0;
            n_long += got.n > 6;
        }
    }
    assert_true(n_found > 3000 && n_long > 100);
}

static struct sl_kv_ns some_space(struct sl_rng *r)
{
    struct sl_kv_ns ns = {.n_bytes = 18};
    ns.bytes[17] = (uint8_t)sl_rng_below(r, 3);
    return ns;
}

/* Outputs of the namespace that are kept. */
static int32_t kept(const struct output *all, int32_t n_all, int32_t n_most,
                    const struct sl_kv_ns *ns, const struct output **out)
{
    int32_t n = 0;
    for (int32_t i = SL_MAX(n_all - n_most, 0); i < n_all; i++)
        if (memcmp(&all[i].ns, ns, sizeof *ns) == 0)
            out[n++] = &all[i];
    return n;
}

static void past_outputs_as_defined(void **state)
{
    (void)state;
    struct sl_rng r = {.seed = 9};
    static struct output all[MAX_TEXTS];
    struct sl_error err;
    int32_t n_found = 0;
    for (int k = 0; k < 200; k++) {
        const struct sl_speculative how = some_config(&r);
        const int32_t n_vocab = 3 + (int32_t)sl_rng_below(&r, 20);
        struct sl_suffix_corpus *c;
        assert_int_equal(sl_suffix_corpus_create(&how, (uint64_t)k, &c, &err), 0);
        for (int32_t i = 0; i < MAX_TEXTS; i++) {
            const struct output *texts[MAX_TEXTS];
            struct output *o = &all[i];
            struct sl_suffix_drafts got, want;
            *o = (struct output){.ns = some_space(&r)};
            o->n = some_text(&r, n_vocab, 2 + (int32_t)sl_rng_below(&r, 9), o->ids);
            sl_suffix_corpus_add(c, &o->ns, o->ids, o->n);
            const struct sl_kv_ns ns = some_space(&r);
            const int32_t n_texts = kept(all, i + 1, how.suffix_max_cached_requests, &ns, texts);
            int32_t query[MAX_LEN],
                n_query = some_text(&r, n_vocab, 1 + (int32_t)sl_rng_below(&r, 5), query);
            if (i > 0 && all[i - 1].n > 3) { /* mostly one that is found */
                n_query = all[i - 1].n - 1;
                memcpy(query, all[i - 1].ids, (size_t)n_query * sizeof *query);
            }
            const struct sl_suffix_text t = {query, NULL, n_query, n_query};
            sl_suffix_corpus_find(c, &ns, &t, &how, 8, &got);
            plain_find(texts, n_texts, 1, query, n_query, n_vocab, &how, 8, &want);
            same(&got, &want);
            n_found += got.n > 0;
        }
        sl_suffix_corpus_destroy(c);
    }
    assert_true(n_found > 1000);
}

/* Is every draft what followed somewhere in an output of the namespace? */
static bool was_said(const struct output *const *texts, int32_t n_texts, const int32_t *query,
                     int32_t n_query, const struct sl_suffix_drafts *d)
{
    int32_t pattern[MAX_LEN + SL_MAX_DRAFTED], last;
    memcpy(pattern, query + n_query - d->match, (size_t)d->match * sizeof *pattern);
    memcpy(pattern + d->match, d->ids, (size_t)d->n * sizeof *pattern);
    return count(texts, n_texts, pattern, d->match + d->n, &last) > 0;
}

/* The ring turns over many times. */
static void a_small_ring_forgets(void **state)
{
    (void)state;
    enum { N = 3000 };
    static struct output all[N];
    static const struct output *texts[N];
    struct sl_rng r = {.seed = 3};
    struct sl_error err;
    struct sl_suffix_corpus *c;
    const struct sl_speculative how = {.method = SL_DRAFT_SUFFIX,
                                       .suffix_max_tree_depth = 24,
                                       .suffix_max_cached_requests = 9,
                                       .suffix_corpus_tokens = 200, /* 256 */
                                       .suffix_max_spec_factor = 1,
                                       .suffix_min_token_prob = 0};
    int32_t n_found = 0;
    assert_int_equal(sl_suffix_corpus_create(&how, 1, &c, &err), 0);
    for (int32_t i = 0; i < N; i++) {
        struct output *o = &all[i];
        struct sl_suffix_drafts d;
        *o = (struct output){.ns = some_space(&r)};
        o->n = some_text(&r, 8, 2 + (int32_t)sl_rng_below(&r, MAX_LEN - 2), o->ids);
        sl_suffix_corpus_add(c, &o->ns, o->ids, o->n);
        const struct sl_kv_ns ns = some_space(&r);
        const int32_t back = (int32_t)sl_rng_below(&r, 12);
        const struct output *from = &all[SL_MAX(i - back, 0)];
        if (from->n < 6)
            continue;
        const struct sl_suffix_text t = {from->ids, NULL, from->n - 2, from->n - 2};
        sl_suffix_corpus_find(c, &ns, &t, &how, 8, &d);
        assert_true(d.n > 0 || from != o || memcmp(&ns, &o->ns, sizeof ns) != 0);
        if (d.n == 0)
            continue;
        const int32_t n_texts = kept(all, i + 1, 9, &ns, texts);
        assert_true(was_said(texts, n_texts, from->ids, from->n - 2, &d));
        n_found++;
    }
    assert_true(n_found > 500);
    sl_suffix_corpus_destroy(c);
}

/* Longer than the corpus: its end is kept. */
static void a_long_output_keeps_its_end(void **state)
{
    (void)state;
    static int32_t ids[1000];
    static const struct sl_kv_ns ns = {.n_bytes = 16}, secret = {.is_private = 1, .n_bytes = 8};
    const struct sl_speculative how = {.method = SL_DRAFT_SUFFIX,
                                       .suffix_max_tree_depth = 24,
                                       .suffix_max_cached_requests = 4,
                                       .suffix_corpus_tokens = 256,
                                       .suffix_max_spec_factor = 1,
                                       .suffix_min_token_prob = 0.1f};
    struct sl_error err;
    struct sl_suffix_corpus *c;
    struct sl_suffix_drafts d;
    for (int32_t i = 0; i < 1000; i++)
        ids[i] = i;
    assert_int_equal(sl_suffix_corpus_create(&how, 1, &c, &err), 0);
    sl_suffix_corpus_add(c, &secret, ids, 1000);
    for (int k = 0; k < 3; k++)
        sl_suffix_corpus_add(c, &ns, ids, 1000);
    const struct sl_suffix_text end = {ids, NULL, 990, 990}, begin = {ids, NULL, 500, 500};
    sl_suffix_corpus_find(c, &ns, &end, &how, 5, &d);
    assert_int_equal(d.n, 5);
    assert_int_equal(d.ids[4], 994);
    sl_suffix_corpus_find(c, &ns, &begin, &how, 5, &d);
    assert_int_equal(d.n, 0);
    sl_suffix_corpus_find(c, &secret, &end, &how, 5, &d);
    assert_int_equal(d.n, 0);
    sl_suffix_corpus_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_example),       cmocka_unit_test(a_text_as_defined),
        cmocka_unit_test(past_outputs_as_defined),     cmocka_unit_test(a_small_ring_forgets),
        cmocka_unit_test(a_long_output_keeps_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
