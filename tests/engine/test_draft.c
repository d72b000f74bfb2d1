/* SPDX-License-Identifier: MIT
 * Tests of speculative decoding: the search of n-grams beside a plain one, its configuration, and
 * that drafts change no bit of any output, on a model whose text repeats itself.
 */
#include "engine_rig.h"

#include "base/hash.h"
#include "base/rng.h"
#include "engine/core.h"
#include "engine/ngram.h"

/* ------------------------------------------------------------------ n-grams */

/* Every place, every length, from the definition. */
static int32_t plain_find(const struct sl_speculative *how, const int32_t *text, int32_t n_text,
                          int32_t n, int32_t *out)
{
    for (int32_t len = how->prompt_lookup_max; len >= how->prompt_lookup_min; len--)
        for (int32_t from = n_text - len - 1; from >= 0; from--) {
            if (memcmp(text + from, text + n_text - len, (size_t)len * sizeof *text) != 0)
                continue;
            for (int32_t i = 0; i < n; i++)
                out[i] =
                    from + len + i < n_text ? text[from + len + i] : out[from + len + i - n_text];
            return n;
        }
    return 0;
}

static void ngrams_as_defined(void **state)
{
    (void)state;
    struct sl_rng r = {.seed = 5};
    int32_t text[300], got[SL_MAX_DRAFTED], want[SL_MAX_DRAFTED], n_found = 0;
    for (int k = 0; k < 20000; k++) {
        int32_t n_vocab = 2 + (int32_t)sl_rng_below(&r, k % 2 == 0 ? 3 : 40);
        int32_t n_text = (int32_t)sl_rng_below(&r, k % 3 == 0 ? 12 : 300);
        int32_t n_a = n_text > 0 ? (int32_t)sl_rng_below(&r, (uint64_t)n_text + 1) : 0;
        int32_t n = 1 + (int32_t)sl_rng_below(&r, SL_MAX_DRAFTED);
        struct sl_speculative how = {.prompt_lookup_min = 1 + (int32_t)sl_rng_below(&r, 4)};
        how.prompt_lookup_max = how.prompt_lookup_min + (int32_t)sl_rng_below(&r, 4);
        for (int32_t i = 0; i < n_text; i++)
            text[i] = (int32_t)sl_rng_below(&r, (uint64_t)n_vocab);
        int32_t m = plain_find(&how, text, n_text, n, want);
        assert_int_equal(sl_ngram_find(&how, text, n_a, text + n_a, n_text - n_a, n, got), m);
        assert_memory_equal(got, want, (size_t)m * sizeof *got);
        n_found += m > 0;
    }
    assert_in_range(n_found, 5000, 19000);
}

static void the_configuration_is_checked(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int32_t n, min, max;
        const char *model; /* NULL: n-grams */
    } good[] = {
        {"{\"method\":\"ngram\",\"num_speculative_tokens\":5,\"prompt_lookup_max\":4,"
         "\"prompt_lookup_min\":2}",
         5, 2, 4, NULL},
        {"{\"num_speculative_tokens\":1}", 1, 5, 5, NULL},
        {"{\"num_speculative_tokens\":3,\"prompt_lookup_max\":3}", 3, 3, 3, NULL},
        {"{\"num_speculative_tokens\":3,\"prompt_lookup_min\":2,\"prompt_lookup_max\":null}", 3, 2,
         2, NULL},
        {"{\"num_speculative_tokens\":3,\"prompt_lookup_max\":4,\"method\":null}", 3, 4, 4, NULL},
        {"{\"method\":\"draft_model\",\"model\":\"a/b\",\"num_speculative_tokens\":7}", 7, 0, 0,
         "a/b"},
        {"{\"model\":\"a/b\",\"num_speculative_tokens\":2}", 2, 0, 0, "a/b"},
        {"{\"method\":null,\"model\":\"a/b\",\"num_speculative_tokens\":2}", 2, 0, 0, "a/b"},
        {"{\"model\":\"a/b\",\"num_speculative_tokens\":2,\"draft_tensor_parallel_size\":1,"
         "\"max_model_len\":512,\"revision\":\"v2\"}",
         2, 0, 0, "a/b"},
        {"{\"model\":\"a/b\",\"num_speculative_tokens\":2,\"draft_tensor_parallel_size\":null,"
         "\"max_model_len\":null,\"revision\":null}",
         2, 0, 0, "a/b"},
        {"{\"method\":\"suffix\",\"num_speculative_tokens\":32}", 32, 0, 0, NULL},
        {"{\"method\":\"suffix\"}", 24, 0, 0, NULL},
        {"{\"method\":\"suffix\",\"suffix_decoding_max_tree_depth\":64}", 32, 0, 0, NULL},
        {"{\"method\":\"suffix\",\"suffix_decoding_max_cached_requests\":0,"
         "\"suffix_decoding_max_spec_factor\":2,\"suffix_decoding_min_token_prob\":0.5,"
         "\"suffix_decoding_corpus_tokens\":1000}",
         24, 0, 0, NULL},
    };
    static const char *const bad[][2] = {
        {"", "not a JSON object"},
        {"[]", "not a JSON object"},
        {"{}", "num_speculative_tokens is missing"},
        {"{\"method\":\"eagle\",\"num_speculative_tokens\":3}",
         "'eagle' is not one of: ngram, draft_model, suffix"},
        {"{\"method\":7,\"num_speculative_tokens\":3}", "not one of: ngram"},
        {"{\"num_speculative_tokens\":0}", "from 1 to 32"},
        {"{\"num_speculative_tokens\":2.5}", "num_speculative_tokens must be an integer"},
        {"{\"num_speculative_tokens\":33}", "from 1 to 32"},
        {"{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"model\":\"x\"}",
         "'model' is not one of what method ngram takes"},
        {"{\"model\":\"x\",\"num_speculative_tokens\":3,\"prompt_lookup_max\":2}",
         "'prompt_lookup_max' is not one of what method draft_model takes"},
        {"{\"model\":\"x\"}", "num_speculative_tokens is missing"},
        {"{\"method\":\"draft_model\",\"num_speculative_tokens\":3}", "model must be a folder"},
        {"{\"method\":\"eagle3\",\"num_speculative_tokens\":3}", "model must be a folder"},
        {"{\"model\":7,\"num_speculative_tokens\":3}", "model must be a folder"},
        {"{\"model\":\"\",\"num_speculative_tokens\":3}", "model must be a folder"},
        {"{\"num_speculative_tokens\":3,\"prompt_lookup_max\":2,\"prompt_lookup_min\":3}",
         "greater than"},
        {"{\"model\":\"x\",\"num_speculative_tokens\":3,\"draft_tensor_parallel_size\":2}",
         "draft_tensor_parallel_size must be 1: a model that drafts is not divided"},
        {"{\"model\":\"x\",\"num_speculative_tokens\":3,\"max_model_len\":0}",
         "max_model_len must be an integer from 1"},
        {"{\"model\":\"x\",\"num_speculative_tokens\":3,\"revision\":\"\"}",
         "revision must be a branch, tag or commit"},
        {"{\"method\":\"suffix\",\"prompt_lookup_max\":2}", "'prompt_lookup_max' is not one of"},
        {"{\"method\":\"suffix\",\"suffix_decoding_max_tree_depth\":1}", "from 2 to 256"},
        {"{\"method\":\"suffix\",\"suffix_decoding_min_token_prob\":1.5}",
         "suffix_decoding_min_token_prob must be a number from 0 to 1"},
        {"{\"method\":\"suffix\",\"suffix_decoding_max_spec_factor\":\"1\"}", "must be a number"},
        {"{\"method\":\"suffix\",\"suffix_decoding_max_cached_requests\":-1}", "from 0 to"},
    };
    struct sl_speculative s;
    struct sl_error err;
    for (size_t i = 0; i < SL_COUNT(good); i++) {
        assert_int_equal(sl_speculative_parse(good[i].json, NULL, &s, &err), 0);
        assert_int_equal(s.num_speculative_tokens, good[i].n);
        assert_int_equal(s.prompt_lookup_min, good[i].min);
        assert_int_equal(s.prompt_lookup_max, good[i].max);
        assert_int_equal(s.method, good[i].model != NULL ? SL_DRAFT_MODEL
                                   : good[i].min > 0     ? SL_DRAFT_NGRAM
                                                         : SL_DRAFT_SUFFIX);
        assert_string_equal(s.model, good[i].model != NULL ? good[i].model : "");
    }
    assert_int_equal(s.suffix_max_cached_requests, 0); /* of the last one */
    assert_int_equal(s.suffix_corpus_tokens, 1000);
    assert_true(s.suffix_max_spec_factor == 2.0f && s.suffix_min_token_prob == 0.5f);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        assert_true(sl_speculative_parse(bad[i][0], NULL, &s, &err) < 0);
        if (strstr(err.msg, bad[i][1]) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, bad[i][1]);
    }
}

static void methods_of_hidden_rows_are_checked(void **state)
{
    struct sl_speculative s;
    struct sl_error err;
    (void)state;
    static const struct {
        const char *json;
        enum sl_draft_method method;
    } rows[] = {
        {"{\"method\":\"mtp\",\"num_speculative_tokens\":1}", SL_DRAFT_MTP},
        {"{\"method\":\"glm4_moe_mtp\",\"num_speculative_tokens\":1}", SL_DRAFT_MTP},
        {"{\"method\":\"qwen3_next_mtp\",\"num_speculative_tokens\":2,\"model\":\"a\"}",
         SL_DRAFT_MTP},
        {"{\"method\":\"eagle3\",\"model\":\"a\",\"num_speculative_tokens\":1}", SL_DRAFT_EAGLE3},
        {"{\"method\":\"dflash\",\"model\":\"a\",\"num_speculative_tokens\":15}", SL_DRAFT_DFLASH},
        {"{\"method\":\"dspark\",\"model\":\"a\",\"num_speculative_tokens\":8}", SL_DRAFT_DSPARK},
        {"{\"method\":\"mtp\",\"num_speculative_tokens\":1,\"max_model_len\":77}", SL_DRAFT_MTP},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        assert_int_equal(sl_speculative_parse(rows[i].json, NULL, &s, &err), 0);
        assert_int_equal(s.method, rows[i].method);
        assert_true(sl_speculative_loads(&s));
    }
    assert_int_equal(s.max_model_len, 77);
}

static void synthetic_rates_are_checked(void **state)
{
    static const char *const bad[][2] = {
        {"\"rejection_sample_method\":\"block\"", "must be \"standard\" or \"synthetic\""},
        {"\"rejection_sample_method\":\"synthetic\"",
         "takes synthetic_acceptance_rates or synthetic_acceptance_length"},
        {"\"synthetic_acceptance_length\":2", "no other method does"},
        {"\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_length\":3.5",
         "must be a number from 1 to 3"},
        {"\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_rates\":[0.5]",
         "must be a list of 2 numbers"},
        {"\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_rates\":[0.5,0.6]",
         "none greater than the one before"},
    };
    struct sl_speculative s;
    struct sl_error err;
    char json[200];
    (void)state;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        snprintf(json, sizeof json, "{\"num_speculative_tokens\":2,%s}", bad[i][0]);
        assert_true(sl_speculative_parse(json, NULL, &s, &err) < 0);
        if (strstr(err.msg, bad[i][1]) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, bad[i][1]);
    }
    assert_int_equal(sl_speculative_parse("{\"num_speculative_tokens\":2,"
                                          "\"rejection_sample_method\":\"synthetic\","
                                          "\"synthetic_acceptance_length\":1.75}",
                                          NULL, &s, &err),
                     0);
    assert_true(s.synthetic && s.synthetic_rates[0] == 0.75f && s.synthetic_rates[1] == 0);
}

/* ------------------------------------------------------------------ the same bits */

/* What may follow depends on the last token: texts come back to where they were. */
static int chain_step(void *ctx, const struct sl_batch *b, const float **logits,
                      struct sl_error *err)
{
    struct rig *g = ctx;
    (void)err;
    SL_ASSERT(b->n_logits <= g->max_logits);
    atomic_fetch_add(&g->n_steps, 1);
    for (int32_t r = 0; r < b->n_logits; r++) {
        uint64_t token = (uint64_t)b->tokens[b->logit_rows[r]];
        float *row = g->rows + (size_t)r * (size_t)g->n_vocab;
        for (int32_t i = 0; i < g->n_vocab; i++)
            row[i] = (float)(sl_mix64(token * 64 + (uint64_t)i + 1) >> 40) * 0x1p-21f;
        row[T_EOS] -= 6.0f;
    }
    *logits = g->rows;
    return 0;
}

#define N_REQS 24

struct run {
    struct sl_request_desc desc;
    struct sl_thinking think;
    struct sl_bad_word bad;
    int32_t bad_ids[2], stop_ids[1], prompt[40];
    const char *stop[1];
    struct sl_request *req;
    struct rig_out outs[3];
};

/* Every kind of rule about tokens, in turns. */
static void make(struct run *r, int i)
{
    struct sl_rng rng = {.seed = (uint64_t)i};
    memset(r, 0, sizeof *r);
    r->desc.prompt = r->prompt;
    r->desc.n_prompt = 1 + (int32_t)sl_rng_below(&rng, 40);
    for (int32_t k = 0; k < r->desc.n_prompt; k++)
        r->prompt[k] = 1 + (int32_t)sl_rng_below(&rng, T_N - 1);
    struct sl_sampling *p = &r->desc.sampling;
    sl_sampling_default(p);
    p->temperature = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 0.3f : 1.0f;
    p->seed = (uint64_t)i;
    p->has_seed = true;
    p->max_tokens = 30 + i * 5;
    p->ignore_eos = i % 2 == 0;
    p->min_tokens = i % 5 == 0 ? 20 : 0;
    p->logprobs = i % 4 == 0 ? 3 : -1;
    p->prompt_logprobs = i % 7 == 0 ? 1 : -1;
    p->n = 1 + i % 3;
    p->repetition_penalty = i % 6 == 1 ? 1.1f : 1.0f;
    p->frequency_penalty = i % 6 == 2 ? 0.2f : 0.0f;
    p->presence_penalty = i % 6 == 4 ? 0.3f : 0.0f;
    p->top_k = i % 8 == 5 ? 3 : 0;
    if (i % 5 == 3) {
        memcpy(r->bad_ids, (int32_t[]){T_A + i % 5, T_B + i % 7}, sizeof r->bad_ids);
        r->bad = (struct sl_bad_word){r->bad_ids, 2};
        p->bad_words = &r->bad;
        p->n_bad_words = 1;
    }
    if (i % 6 == 5) {
        r->stop[0] = "ab";
        p->stop = r->stop;
        p->n_stop = 1;
    }
    if (i % 9 == 7) {
        r->stop_ids[0] = T_X;
        p->stop_token_ids = r->stop_ids;
        p->n_stop_token_ids = 1;
    }
}

/* By turns: a budget of none, some or many tokens, or no end but the model's; some open the block
 * themselves. */
static void make_think(struct run *r, int i)
{
    static const int32_t forced[] = {T_A, T_USER};
    r->think = (struct sl_thinking){.close = "User:",
                                    .open_id = i % 8 == 6 ? T_X : -1,
                                    .inside = i % 8 != 6,
                                    .budget = i % 4 == 3 ? -1 : (i * 7) % 31,
                                    .forced = forced,
                                    .n_forced = 2};
    r->desc.thinking = &r->think;
}

static struct sl_speculative draft_config(enum sl_draft_method method, int32_t n_drafts)
{
    if (n_drafts == 0)
        return (struct sl_speculative){0};
    return (struct sl_speculative){.method = method,
                                   .num_speculative_tokens = n_drafts,
                                   .prompt_lookup_min = 1,
                                   .prompt_lookup_max = 3,
                                   .suffix_max_tree_depth = 24,
                                   .suffix_max_cached_requests = 8,
                                   .suffix_corpus_tokens = 1000,
                                   .suffix_max_spec_factor = 1.5f,
                                   .suffix_min_token_prob = 0.1f};
}

struct how {
    enum sl_draft_method method;
    const char *regex; /* NULL: any text */
    bool thinks;
};

static void run_all(struct run *runs, const struct how *how, int32_t n_drafts, int32_t n_pages,
                    struct sl_stats *s)
{
    const char *regex = how->regex;
    struct sl_constraint *c = NULL;
    struct rig g = {.model = {.ctx = &g, .n_vocab = T_N, .forward = chain_step}};
    struct sl_engine_parts p = {.no_thread = true,
                                .seed = 1,
                                .info = {.max_num_seqs = 6, .n_pages = n_pages},
                                .speculative = draft_config(how->method, n_drafts)};
    struct sl_error err;
    rig_start(&g, &p);
    const struct sl_constraint_desc grammar = {
        .kind = SL_GRAMMAR_REGEX, .text = regex, .n_text = regex != NULL ? strlen(regex) : 0};
    if (regex != NULL && sl_constraint_open(g.eng, &grammar, &c, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < N_REQS; i++) {
        make(&runs[i], i);
        runs[i].desc.constraint = c;
        if (how->thinks)
            make_think(&runs[i], i);
        if (c != NULL) /* stop ids would rule the rest out */
            runs[i].desc.sampling.n_stop_token_ids = runs[i].desc.sampling.n_bad_words = 0;
        if (sl_request_submit(g.eng, &runs[i].desc, &runs[i].req, &err) != 0)
            fail_msg("refused: %s", err.msg);
    }
    for (int k = 0; sl_engine_step(g.eng); k++) {
        assert_true(k < 20000);
        if (sl_engine_check(g.eng, &err) != 0)
            fail_msg("%s", err.msg);
        for (int i = 0; i < N_REQS; i++)
            rig_read(runs[i].req, runs[i].outs);
    }
    for (int i = 0; i < N_REQS; i++) {
        rig_read(runs[i].req, runs[i].outs);
        sl_request_release(runs[i].req);
    }
    sl_engine_stats(g.eng, s);
    assert_int_equal(s->step_mallocs, 0);
    if (c != NULL)
        sl_constraint_release(c);
    rig_stop(&g);
}

static void compare(const struct rig_out *a, const struct rig_out *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof a->ids[0]);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->n_ends, 1);
    for (int32_t i = 0; i < a->n; i++) {
        assert_memory_equal(&a->tokens[i].logprob, &b->tokens[i].logprob, sizeof(float));
        assert_int_equal(a->tokens[i].rank, b->tokens[i].rank);
        assert_int_equal(a->tokens[i].text_end, b->tokens[i].text_end);
    }
}

static void compare_all(const struct how *how)
{
    static struct run plain[N_REQS], drafted[N_REQS];
    static const int32_t n_drafts[] = {1, 2, 5, SL_MAX_DRAFTED};
    struct sl_stats s, without;
    run_all(plain, &(struct how){SL_DRAFT_NONE, how->regex, how->thinks}, 0, 200, &without);
    assert_int_equal(without.n_drafts, 0);
    for (int tight = 0; tight < 2; tight++)
        for (size_t k = 0; k < SL_COUNT(n_drafts); k++) {
            run_all(drafted, how, n_drafts[k], tight != 0 ? 46 : 200, &s);
            for (int i = 0; i < N_REQS; i++)
                for (int j = 0; j < plain[i].desc.sampling.n; j++)
                    compare(&plain[i].outs[j], &drafted[i].outs[j]);
            assert_true(s.n_accepted_tokens > 150 && s.n_accepted_tokens < s.n_draft_tokens);
            assert_true(s.n_accepted_at[0] <= s.n_drafts && s.n_accepted_at[0] > 0);
            assert_true(tight == 0 || s.preemptions > 0);
            if (tight == 0 && !rig_late) /* else a sequence that drafts is not a step ahead */
                assert_true(s.steps < without.steps);
        }
}

static void drafts_change_no_bit(void **state)
{
    (void)state;
    compare_all(&(struct how){.method = SL_DRAFT_NGRAM});
    compare_all(&(struct how){.method = SL_DRAFT_SUFFIX});
}

static const char free_regex[] = "((a|ab|abc|bc)( |x)?(b|c)(cab)?){5,40}x?";

/* Each row has its own mask; pieces that are forced, and ends, come as without. */
static void drafts_behind_masks(void **state)
{
    (void)state;
    compare_all(&(struct how){.method = SL_DRAFT_NGRAM, .regex = free_regex});
    compare_all(&(struct how){.method = SL_DRAFT_SUFFIX, .regex = free_regex});
}

/* Drafts inside a budget, across its end and the model's own one, and in the answer. */
static void drafts_while_thinking(void **state)
{
    (void)state;
    compare_all(&(struct how){.method = SL_DRAFT_NGRAM, .thinks = true});
    compare_all(&(struct how){.method = SL_DRAFT_SUFFIX, .thinks = true, .regex = free_regex});
}

static int in_time(void **state)
{
    (void)state;
    rig_late = false;
    return 0;
}

static int one_step_late(void **state)
{
    (void)state;
    rig_late = true;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ngrams_as_defined),
        cmocka_unit_test(the_configuration_is_checked),
        cmocka_unit_test(methods_of_hidden_rows_are_checked),
        cmocka_unit_test(synthetic_rates_are_checked),
        cmocka_unit_test_setup(drafts_change_no_bit, in_time),
        {"drafts_change_no_bit, late", drafts_change_no_bit, one_step_late, NULL, NULL},
        cmocka_unit_test_setup(drafts_behind_masks, in_time),
        {"drafts_behind_masks, late", drafts_behind_masks, one_step_late, NULL, NULL},
        cmocka_unit_test_setup(drafts_while_thinking, in_time),
        {"drafts_while_thinking, late", drafts_while_thinking, one_step_late, NULL, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
