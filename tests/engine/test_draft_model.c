/* SPDX-License-Identifier: MIT
 * Tests of a model that drafts: what it drafts changes no bit, and its keys and values are those of
 * the text, whatever happened to pages and sequences. Both models are scripted, and remember for
 * each slot of their own pools which text led there: a row depends on all of that text. A drafter
 * equal to its target is then right in every draft that a greedy sequence takes, and a single wrong
 * or stale slot shows.
 */
#include "engine_rig.h"

#include "base/hash.h"
#include "base/rng.h"
#include "engine/core.h"

#define BLOCK    4
#define SPARE    64 /* pages of a pool behind the target's: those of the drafter */
#define N_REQS   28
#define MAX_RUNS 20000

struct world {
    struct rig rig;
    uint64_t
        *slots[2]; /* [n_pages + SPARE, BLOCK] of the target and the drafter: the text's name */
    float *rows;
    int32_t n_rows, n_steps, differs; /* one of so many rows of the drafter is another; 0: none */
    int32_t n_draft_vocab;
};

/* Writes the names of a step's tokens, and the rows that are wanted: of the table's own history. */
static void chain(struct world *w, int who, const struct sl_batch *b, float *rows, int32_t n_vocab)
{
    const int32_t *tables = sl_batch_tables(b, 0);
    int32_t r = 0;
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        const int32_t *table = tables + s->table_idx;
        for (int32_t k = 0; k < s->n; k++) {
            const int32_t pos = s->pos + k, before = pos - 1;
            SL_ASSERT(b->positions[s->first + k] == pos);
            uint64_t name = 17;
            if (pos > 0)
                name = w->slots[who][table[before / BLOCK] * BLOCK + before % BLOCK];
            name = sl_mix64(name * 1000003 + (uint64_t)b->tokens[s->first + k] + 1);
            w->slots[who][table[pos / BLOCK] * BLOCK + pos % BLOCK] = name;
            if (r == b->n_logits || b->logit_rows[r] != s->first + k)
                continue;
            float *row = rows + (size_t)r++ * (size_t)n_vocab;
            const uint64_t from =
                who == 1 && w->differs > 0 && (name >> 20) % (uint64_t)w->differs == 0 ? ~name
                                                                                       : name;
            for (int32_t id = 0; id < n_vocab; id++)
                row[id] = (float)(sl_mix64(from % 97 * 64 + (uint64_t)id) >> 40) * 0x1p-21f;
            row[T_EOS] -= 4.0f;
        }
    }
    SL_ASSERT(r == b->n_logits);
}

static int target_step(void *ctx, const struct sl_batch *b, const float **rows,
                       struct sl_error *err)
{
    struct world *w = ctx;
    (void)err;
    chain(w, 0, b, w->rig.rows, T_N);
    *rows = w->rig.rows;
    return 0;
}

static int draft_step(void *ctx, const struct sl_batch *b, const int32_t *sources, bool own,
                      const float **rows, struct sl_error *err)
{
    struct world *w = ctx;
    (void)sources;
    (void)own;
    (void)err;
    SL_ASSERT(b->n_logits <= w->n_rows);
    w->n_steps++;
    for (int32_t i = 0; i < b->n_tokens; i++)
        SL_ASSERT(b->tokens[i] >= 0 && b->tokens[i] < w->n_draft_vocab);
    chain(w, 1, b, w->rows, w->n_draft_vocab);
    *rows = w->rows;
    return 0;
}

/* ------------------------------------------------------------------ requests */

struct asked {
    struct sl_request_desc desc;
    int32_t prompt[60], bad_ids[2], stop_ids[1];
    struct sl_bad_word bad;
    struct sl_request *req;
    struct rig_out outs[4];
    bool cancelled;
};

/* Groups of three share the begin of their prompts. greedy: nothing but the model says what comes.
 */
static void make(struct asked *a, int i, bool greedy)
{
    struct sl_rng rng = {.seed = (uint64_t)i}, shared = {.seed = (uint64_t)(i / 3) + 1000};
    memset(a, 0, sizeof *a);
    a->desc.prompt = a->prompt;
    a->desc.n_prompt = 1 + (int32_t)sl_rng_below(&rng, 60);
    for (int32_t k = 0; k < a->desc.n_prompt; k++)
        a->prompt[k] = 1 + (int32_t)sl_rng_below(k < 30 ? &shared : &rng, T_N - 1);
    struct sl_sampling *p = &a->desc.sampling;
    sl_sampling_default(p);
    p->seed = (uint64_t)i;
    p->has_seed = true;
    p->max_tokens = 20 + i * 3;
    p->ignore_eos = i % 2 == 0;
    p->temperature = 0;
    p->n = 1 + i % 4;
    p->logprobs = i % 4 == 0 ? 2 : -1;
    p->prompt_logprobs = i % 7 == 0 ? 1 : -1;
    if (greedy)
        return;
    p->temperature = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 0.4f : 1.0f;
    p->min_tokens = i % 5 == 0 ? 20 : 0;
    p->repetition_penalty = i % 6 == 1 ? 1.1f : 1.0f;
    p->frequency_penalty = i % 6 == 2 ? 0.2f : 0.0f;
    p->top_k = i % 8 == 5 ? 3 : 0;
    if (i % 5 == 3) {
        memcpy(a->bad_ids, (int32_t[]){T_A + i % 5, T_B + i % 7}, sizeof a->bad_ids);
        a->bad = (struct sl_bad_word){a->bad_ids, 2};
        p->bad_words = &a->bad;
        p->n_bad_words = 1;
    }
}

struct how {
    int32_t n_drafts, n_pages, chunk, differs, draft_vocab, context;
    bool greedy, no_cache, cancel;
    const char *regex;
};

static void run_all(const struct how *h, struct asked *all, struct sl_stats *s, int32_t *n_steps)
{
    struct world w = {.differs = h->differs,
                      .n_draft_vocab = h->draft_vocab != 0 ? h->draft_vocab : T_N};
    struct sl_constraint *c = NULL;
    struct sl_error err;
    const int32_t n_pages = h->n_pages != 0 ? h->n_pages : 400;
    w.rig.model = (struct sl_host_model){.ctx = &w, .n_vocab = T_N, .forward = target_step};
    if (h->n_drafts > 0) {
        w.rig.model.draft = draft_step;
        w.rig.model.n_draft_vocab = w.n_draft_vocab;
        w.rig.model.draft_context = h->context != 0 ? h->context : RIG_LEN;
    }
    struct sl_engine_parts p = {
        .no_thread = true,
        .seed = 1,
        .no_prefix_caching = h->no_cache,
        .info = {.max_num_seqs = 6,
                 .n_pages = n_pages,
                 .block_size = BLOCK,
                 .max_num_batched_tokens = SL_MAX(h->chunk, 6)},
        .speculative = {.method = h->n_drafts > 0 ? SL_DRAFT_MODEL : SL_DRAFT_NONE,
                        .num_speculative_tokens = h->n_drafts}};
    w.n_rows = p.info.max_num_seqs;
    for (int i = 0; i < 2; i++)
        w.slots[i] = sl_calloc((size_t)(n_pages + SPARE), BLOCK * sizeof *w.slots[i]);
    w.rows = sl_calloc((size_t)w.n_rows, T_N * sizeof *w.rows);
    assert_true(sl_drafter_n_pages(n_pages, 6, h->n_drafts, BLOCK) <= n_pages + SPARE);
    rig_start(&w.rig, &p);
    const struct sl_constraint_desc grammar = {.kind = SL_GRAMMAR_REGEX,
                                               .text = h->regex,
                                               .n_text = h->regex != NULL ? strlen(h->regex) : 0};
    if (h->regex != NULL && sl_constraint_open(w.rig.eng, &grammar, &c, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < N_REQS; i++) {
        make(&all[i], i, h->greedy);
        all[i].desc.constraint = c;
        if (c != NULL) /* ends would rule the rest out */
            all[i].desc.sampling.n_bad_words = 0;
        if (sl_request_submit(w.rig.eng, &all[i].desc, &all[i].req, &err) != 0)
            fail_msg("refused: %s", err.msg);
    }
    for (int k = 0; sl_engine_step(w.rig.eng); k++) {
        assert_true(k < MAX_RUNS);
        if (sl_engine_check(w.rig.eng, &err) != 0)
            fail_msg("%s", err.msg);
        for (int i = 0; i < N_REQS; i++) {
            rig_read(all[i].req, all[i].outs);
            if (h->cancel && i % 5 == 2 && all[i].outs[0].n > 5 && !all[i].cancelled) {
                sl_request_cancel(all[i].req);
                all[i].cancelled = true;
            }
        }
    }
    for (int i = 0; i < N_REQS; i++) {
        rig_read(all[i].req, all[i].outs);
        sl_request_release(all[i].req);
    }
    sl_engine_stats(w.rig.eng, s);
    assert_int_equal(s->step_mallocs, 0);
    *n_steps = w.n_steps;
    if (c != NULL)
        sl_constraint_release(c);
    rig_stop(&w.rig);
    sl_free(w.slots[0]);
    sl_free(w.slots[1]);
    sl_free(w.rows);
}

static void compare(const struct rig_out *a, const struct rig_out *b, bool cancelled)
{
    const int32_t n = cancelled ? SL_MIN(a->n, b->n) : a->n;
    assert_true(cancelled || a->n == b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)n * sizeof a->ids[0]);
    assert_int_equal(b->n_ends, 1);
    for (int32_t i = 0; i < n; i++) {
        assert_memory_equal(&a->tokens[i].logprob, &b->tokens[i].logprob, sizeof(float));
        assert_int_equal(a->tokens[i].rank, b->tokens[i].rank);
    }
    if (cancelled)
        return;
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->finish, b->finish);
}

/* With and without the drafter; with it, of a runner that computes in the call and of one that
 * does not. */
static struct sl_stats compare_all(const struct how *h)
{
    static struct asked plain[N_REQS], drafted[N_REQS];
    struct sl_stats without, s;
    struct how none = *h;
    int32_t n_steps;
    none.n_drafts = 0;
    none.n_pages = 400;
    none.cancel = false;
    run_all(&none, plain, &without, &n_steps);
    assert_int_equal(without.n_drafts + (uint64_t)n_steps, 0);
    for (int late = 1; late >= 0; late--) {
        rig_late = late != 0;
        run_all(h, drafted, &s, &n_steps);
        for (int i = 0; i < N_REQS; i++)
            for (int j = 0; j < plain[i].desc.sampling.n; j++)
                compare(&plain[i].outs[j], &drafted[i].outs[j], drafted[i].cancelled);
        assert_true(s.n_drafts > 0 && n_steps > 0);
        assert_true(!h->greedy || h->differs > 0 || h->draft_vocab > 0 ||
                    s.n_accepted_tokens == s.n_draft_tokens);
    }
    return s;
}

/* ------------------------------------------------------------------ tests */

/* Whatever sizes chunks have, and whether pages are many or few: each draft is right, so no slot of
 * the drafter's pages is stale. */
static void an_equal_model_is_always_right(void **state)
{
    (void)state;
    static const int32_t chunks[] = {1, 7, 64}, n_drafts[] = {1, 3, 9};
    for (size_t k = 0; k < SL_COUNT(chunks); k++)
        for (int tight = 0; tight < 2; tight++) {
            const struct how h = {.n_drafts = n_drafts[k],
                                  .chunk = chunks[k],
                                  .greedy = true,
                                  .n_pages = tight != 0 ? 52 : 0,
                                  .no_cache = k == 1};
            const struct sl_stats s = compare_all(&h);
            assert_int_equal(s.n_accepted_tokens, s.n_draft_tokens);
            assert_true(s.n_draft_tokens > 300);
            assert_true(tight == 0 || s.preemptions > 0);
            assert_true(h.no_cache || s.prompt_tokens_cached > 100);
        }
}

/* Wrong drafts leave nothing that later ones could read: where the drafter differs from the target
 * in one row of three, two of three are right still. */
static void wrong_drafts_are_forgotten(void **state)
{
    (void)state;
    const struct how h = {.n_drafts = 4, .chunk = 16, .greedy = true, .n_pages = 60, .differs = 3};
    const struct sl_stats s = compare_all(&h);
    assert_true(s.n_accepted_at[0] * 10 > s.n_drafts * 5);
    assert_true(s.n_accepted_at[0] * 10 < s.n_drafts * 8);
    assert_true(s.preemptions > 0);
}

static void no_bit_changes(void **state)
{
    (void)state;
    static const int32_t chunks[] = {1, 7, 64};
    for (size_t k = 0; k < SL_COUNT(chunks); k++)
        for (int32_t differs = 0; differs < 4; differs += 3) {
            const struct how h = {.n_drafts = 5,
                                  .chunk = chunks[k],
                                  .differs = differs,
                                  .n_pages = k == 2 ? 52 : 0,
                                  .cancel = true};
            const struct sl_stats s = compare_all(&h);
            assert_true(s.n_accepted_tokens > 40 && s.n_accepted_tokens < s.n_draft_tokens);
        }
}

static void drafts_behind_masks(void **state)
{
    (void)state;
    for (int tight = 0; tight < 2; tight++) {
        const struct how h = {.n_drafts = 4,
                              .chunk = 16,
                              .n_pages = tight != 0 ? 52 : 0,
                              .regex = "((a|ab|abc|bc)( |x)?(b|c)(cab)?){5,40}x?"};
        const struct sl_stats s = compare_all(&h);
        assert_true(s.n_accepted_tokens > 20);
    }
}

/* Ids that the drafter does not know are not given to it, nor positions behind its context. */
static void what_the_drafter_does_not_know(void **state)
{
    (void)state;
    const struct how few = {.n_drafts = 3, .chunk = 16, .greedy = true, .draft_vocab = T_N - 4};
    struct sl_stats s = compare_all(&few);
    assert_true(s.n_accepted_tokens > 0 && s.n_accepted_tokens < s.n_draft_tokens);
    const struct how brief = {.n_drafts = 3, .chunk = 16, .greedy = true, .context = 48};
    s = compare_all(&brief);
    assert_int_equal(s.n_accepted_tokens, s.n_draft_tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_equal_model_is_always_right),
        cmocka_unit_test(wrong_drafts_are_forgotten),
        cmocka_unit_test(no_bit_changes),
        cmocka_unit_test(drafts_behind_masks),
        cmocka_unit_test(what_the_drafter_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
