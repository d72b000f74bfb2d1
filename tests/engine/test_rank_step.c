/* SPDX-License-Identifier: MIT
 * Steps as bytes between ranks: what is read is what was written, and no change of the bytes makes
 * a step that would touch memory which is not its own: what is accepted is looked at by a plain
 * walk of this test's own.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/rank_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_STEPS = 400, N_CHANGES = 300 };

static const struct sl_rank_bounds bounds = {.max_tokens = 64,
                                             .max_seqs = 6,
                                             .max_logits = 24,
                                             .max_model_len = 300,
                                             .block_size = 16,
                                             .n_vocab = 1000,
                                             .max_loras = 4,
                                             .max_lora_rank = 16,
                                             .n_groups = 2,
                                             .n_pages = {90, 40},
                                             .window = {0, 48}};

/* What is in the slots: nothing in the third. */
static const struct sl_lora_weights in_slots[] = {
    {.max_rank = 3}, {.max_rank = 16}, {.max_rank = 8}};
static const struct sl_lora_weights *const weights[] = {&in_slots[0], &in_slots[1], NULL,
                                                        &in_slots[2]};
static const int32_t slots[] = {3, 0, 1}; /* of the adapters of a step */

struct made {
    struct sl_batch batch;
    struct sl_lora_rows lora[2];
    struct sl_lora_seg segs[2][64];
    float scale[64];
    struct sl_span spans[6];
    int32_t tokens[64], positions[64], rows[24], tables[2][200];
};

static int32_t below(struct sl_rng *rng, int32_t n)
{
    return (int32_t)sl_rng_below(rng, (uint64_t)n);
}

/* Some of n rows have adapters, in as many pieces as there may be. */
static void make_lora(struct made *m, struct sl_rng *rng, int which, int32_t n)
{
    struct sl_lora_rows *rows = &m->lora[which];
    *rows = (struct sl_lora_rows){.segs = m->segs[which], .scale = m->scale};
    for (int32_t at = which == 0 ? 0 : below(rng, 3); at < n;) {
        struct sl_lora_seg *seg = &m->segs[which][rows->n_segs++];
        const int32_t most = 1 + below(rng, 9);
        *seg = (struct sl_lora_seg){at, SL_MIN(most, n - at), below(rng, 3)};
        at += seg->n + below(rng, 4);
    }
    for (int32_t i = 0; i < 64; i++)
        m->scale[i] = (float)i / 8;
    if (which == 0)
        m->batch.lora = rows;
    else
        m->batch.logit_lora = rows;
}

static void make(struct made *m, struct sl_rng *rng)
{
    int32_t n = 0, n_ids = 0, n_rows = 0;
    const int32_t n_spans = 1 + below(rng, 6);
    memset(m, 0, sizeof *m);
    for (int32_t i = 0; i < n_spans; i++) {
        struct sl_span *s = &m->spans[i];
        *s = (struct sl_span){.first = n, .n = 1 + below(rng, 10), .table_idx = n_ids};
        s->pos = below(rng, bounds.max_model_len - s->n + 1);
        for (int32_t k = 0; k < s->n; k++, n++) {
            m->tokens[n] = below(rng, bounds.n_vocab);
            m->positions[n] = s->pos + k;
            if (n_rows < 24 && below(rng, 4) == 0)
                m->rows[n_rows++] = n;
        }
        for (int32_t k = 0; k < SL_CEIL_DIV(s->pos + s->n, bounds.block_size); k++, n_ids++) {
            m->tables[0][n_ids] = below(rng, bounds.n_pages[0]);
            m->tables[1][n_ids] = /* what ends before the window */
                (k + 1) * bounds.block_size <= s->pos - 47 ? -1 : below(rng, bounds.n_pages[1]);
        }
    }
    m->batch = (struct sl_batch){.n_tokens = n,
                                 .n_spans = n_spans,
                                 .n_logits = n_rows,
                                 .tokens = m->tokens,
                                 .positions = m->positions,
                                 .spans = m->spans,
                                 .block_tables = m->tables[0],
                                 .n_tables = 2,
                                 .table_stride = 200,
                                 .logit_rows = m->rows,
                                 .span_sizes = sl_batch_sizes_of(m->spans, n_spans)};
    if (below(rng, 2) == 0)
        return;
    make_lora(m, rng, 0, n);
    make_lora(m, rng, 1, n_rows);
}

static void same_lora(const struct sl_lora_rows *a, const struct sl_lora_rows *b, int32_t n_rows)
{
    int32_t most = 0;
    assert_int_equal(a->n_segs, b->n_segs);
    for (int32_t i = 0, t = 0; i < a->n_segs; i++) {
        const struct sl_lora_seg *seg = &a->segs[i];
        assert_int_equal(b->segs[i].first, seg->first);
        assert_int_equal(b->segs[i].n, seg->n);
        assert_int_equal(b->segs[i].adapter, slots[seg->adapter]);
        most = SL_MAX(most, weights[slots[seg->adapter]]->max_rank);
        for (; t < seg->first; t++)
            assert_int_equal(b->adapter[t], -1);
        for (; t < seg->first + seg->n; t++)
            assert_int_equal(b->adapter[t], slots[seg->adapter]);
    }
    assert_int_equal(b->max_rank, most);
    if (n_rows > 0)
        assert_memory_equal(a->scale, b->scale, (size_t)n_rows * sizeof(float));
}

static void same(const struct sl_batch *a, const struct sl_batch *b)
{
    const size_t id = sizeof(int32_t);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->n_spans, b->n_spans);
    assert_int_equal(a->n_logits, b->n_logits);
    assert_true(a->span_sizes == b->span_sizes);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * id);
    assert_memory_equal(a->positions, b->positions, (size_t)a->n_tokens * id);
    assert_memory_equal(a->spans, b->spans, (size_t)a->n_spans * sizeof *a->spans);
    if (a->n_logits > 0)
        assert_memory_equal(a->logit_rows, b->logit_rows, (size_t)a->n_logits * id);
    assert_int_equal(a->lora != NULL, b->lora != NULL);
    if (a->lora != NULL) {
        same_lora(a->lora, b->lora, a->n_tokens);
        same_lora(a->logit_lora, b->logit_lora, a->n_logits);
    }
    for (int32_t i = 0; i < a->n_spans; i++)
        for (int32_t g = 0; g < 2; g++) {
            const struct sl_span *s = &a->spans[i];
            assert_memory_equal(sl_batch_tables(a, g) + s->table_idx,
                                sl_batch_tables(b, g) + s->table_idx,
                                (size_t)SL_CEIL_DIV(s->pos + s->n, bounds.block_size) * id);
        }
}

static void lora_is_safe(const struct sl_lora_rows *rows, int32_t n_rows)
{
    int32_t end = 0;
    for (int32_t i = 0; i < rows->n_segs; i++) {
        const struct sl_lora_seg *seg = &rows->segs[i];
        assert_true(seg->first >= end && seg->n >= 1 && seg->n <= SL_LORA_SEG);
        assert_true(seg->first + seg->n <= n_rows && seg->adapter >= 0 && seg->adapter < 4);
        assert_true(seg->adapter != 2 && rows->weights[seg->adapter]->max_rank <= rows->max_rank);
        end = seg->first + seg->n;
    }
    for (int32_t i = 0; i < n_rows; i++)
        assert_true(rows->adapter[i] >= -1 && rows->adapter[i] < 4 && rows->adapter[i] != 2);
}

/* All that a model would read or write by this step is there. */
static void must_be_safe(const struct sl_batch *b)
{
    assert_true(b->n_tokens >= 1 && b->n_tokens <= 64 && b->n_spans >= 1 && b->n_spans <= 6);
    assert_true(b->n_logits >= 0 && b->n_logits <= 24 && b->n_tables == 2);
    int32_t covered = 0;
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        assert_int_equal(s->first, covered);
        assert_true(s->n >= 1 && s->pos >= 0 && s->pos <= bounds.max_model_len - s->n);
        assert_true(s->table_idx >= 0 && s->n_drafts == 0);
        const int32_t n_blocks = (s->pos + s->n + 15) / 16;
        assert_true(s->table_idx + n_blocks <= b->table_stride);
        for (int32_t k = 0; k < n_blocks; k++) {
            const int32_t all = sl_batch_tables(b, 0)[s->table_idx + k],
                          near = sl_batch_tables(b, 1)[s->table_idx + k];
            assert_true(all >= 0 && all < 90 && near < 40);
            assert_true(near >= 0 || 16 * k + 15 < s->pos - 47); /* or nobody sees it */
        }
        for (int32_t k = 0; k < s->n; k++)
            assert_int_equal(b->positions[s->first + k], s->pos + k);
        covered += s->n;
    }
    assert_int_equal(covered, b->n_tokens);
    for (int32_t i = 0; i < b->n_tokens; i++)
        assert_true(b->tokens[i] >= 0 && b->tokens[i] < 1000);
    for (int32_t i = 0; i < b->n_logits; i++)
        assert_true(b->logit_rows[i] >= (i > 0 ? b->logit_rows[i - 1] + 1 : 0) &&
                    b->logit_rows[i] < b->n_tokens);
    assert_int_equal(b->lora != NULL, b->logit_lora != NULL);
    if (b->lora != NULL) {
        lora_is_safe(b->lora, b->n_tokens);
        lora_is_safe(b->logit_lora, b->n_logits);
    }
}

static void test_steps(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 5};
    struct sl_error err = {0};
    struct sl_rank_step s;
    static struct made m;
    int n_accepted = 0, n_refused = 0;
    const size_t most = sl_rank_step_bytes(&bounds);
    uint8_t *data = sl_malloc(most), *bad = sl_malloc(most + 1);
    assert_int_equal(sl_rank_step_init(&s, &bounds, &err), 0);
    for (int i = 0; i < N_STEPS; i++) {
        make(&m, &rng);
        const size_t n = sl_rank_step_put(&bounds, &m.batch, slots, data);
        assert_true(n <= most);
        if (sl_rank_step_get(&s, data, n, weights, &err) != 0)
            fail_msg("%s", err.msg);
        same(&m.batch, &s.batch);
        must_be_safe(&s.batch);
        assert_int_not_equal(sl_rank_step_get(&s, data, n - 1, weights, &err), 0);
        memcpy(bad, data, n);
        assert_int_not_equal(sl_rank_step_get(&s, bad, n + 1, weights, &err), 0);
        for (int k = 0; k < N_CHANGES; k++) {
            int32_t word;
            static const int32_t odd[] = {-1, 0, 1, INT32_MAX, INT32_MIN, 64, 299, 1000, 65536};
            const size_t at = (size_t)sl_rng_below(&rng, n / sizeof word) * sizeof word;
            memcpy(bad, data, n);
            memcpy(&word, bad + at, sizeof word);
            word = k % 3 == 0 ? word + 1 - 2 * below(&rng, 2) : odd[below(&rng, SL_COUNT(odd))];
            memcpy(bad + at, &word, sizeof word);
            const bool good = sl_rank_step_get(&s, bad, n, weights, &err) == 0;
            n_accepted += good;
            n_refused += !good;
            if (good)
                must_be_safe(&s.batch);
            else
                assert_memory_equal(err.msg, "rank 0 sent a step whose ", 25);
        }
    }
    printf("%d changed steps refused, %d harmless\n", n_refused, n_accepted);
    assert_true(n_refused > n_accepted / 4 && n_accepted > 0);
    sl_rank_step_deinit(&s);
    sl_free(data);
    sl_free(bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
