/* SPDX-License-Identifier: MIT
 * Drafters that read hidden rows of the model (MTP, EAGLE-3, P-EAGLE, DFlash, DSpark, Gemma 4's
 * assistant), from checkpoints to tokens: no bit of any output changes, and where model and drafter
 * say the same, every draft is right.
 */
#include "base/check.h"
#include "base/rng.h"
#include "sluice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DRAFTS "tests/golden/drafts/"

enum { N_REQS = 10, N_OUT = 60, N_PROMPT = 70 };

struct outcome {
    int32_t n, ids[N_OUT];
    float logprobs[N_OUT];
};

static struct sl_request *submit(struct sl_engine *eng, int i, bool sampled)
{
    struct sl_error err;
    struct sl_request *req = NULL;
    struct sl_rng rng = {.seed = (uint64_t)i / 2};
    int32_t prompt[N_PROMPT];
    struct sl_request_desc desc = {.prompt = prompt,
                                   .n_prompt = i == 0 ? 1 : 2 + (i * 17) % (N_PROMPT - 2)};
    for (int32_t k = 0; k < desc.n_prompt; k++) /* pairs begin with the same text */
        prompt[k] = 3 + (int32_t)sl_rng_below(&rng, 90);
    prompt[desc.n_prompt - 1] = 3 + 7 * i;
    if (i > 0) /* drafts may begin at the row of the last token but one */
        prompt[desc.n_prompt - 2] = 3 + 7 * i;
    struct sl_sampling *s = &desc.sampling;
    sl_sampling_default(s);
    s->max_tokens = N_OUT - i;
    s->ignore_eos = true;
    s->logprobs = 0;
    s->temperature = sampled && i % 3 != 0 ? 0.8f : 0;
    s->presence_penalty = sampled && i % 4 == 1 ? 0.5f : 0;
    s->has_seed = true;
    s->seed = (uint64_t)i;
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("request %d: %s", i, err.msg);
    return req;
}

static void collect(struct sl_request *req, struct outcome *out)
{
    struct sl_chunk chunk;
    memset(out, 0, sizeof *out);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1) {
            assert_int_not_equal(chunk.finish, SL_FINISH_ERROR);
            for (size_t k = 0; k < chunk.n_tokens; k++, out->n++) {
                assert_true(out->n < N_OUT);
                out->ids[out->n] = chunk.tokens[k].id;
                out->logprobs[out->n] = chunk.tokens[k].logprob;
            }
        }
    }
    sl_request_release(req);
}

/* All requests at once, then once more with what the cache has of them. alone: one after the other,
 * so that the room for drafts in a step is the same each time. */
static struct sl_stats run_among(int n_ranks, int n_stages, const char *model,
                                 const char *speculative, bool sampled, bool alone,
                                 struct outcome out[2][N_REQS])
{
    struct sl_engine_config cfg = {.model = model,
                                   .speculative_config = speculative,
                                   .tensor_parallel_size = n_ranks,
                                   .pipeline_parallel_size = n_stages,
                                   .device = "cpu",
                                   .n_threads = 1,
                                   .max_num_seqs = 4,
                                   .max_num_batched_tokens = 32,
                                   .max_itl_ms = -1, /* prices are not learnt: all drafts are */
                                   .kv_cache_bytes = 4 << 20};
    struct sl_request *reqs[N_REQS];
    struct sl_engine *eng = NULL;
    struct sl_stats stats;
    struct sl_error err = {0};
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s: %s", model, err.msg);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N_REQS; i++) {
            reqs[i] = submit(eng, i, sampled);
            if (alone)
                collect(reqs[i], &out[round][i]);
        }
        for (int i = 0; i < N_REQS && !alone; i++)
            collect(reqs[i], &out[round][i]);
    }
    sl_engine_stats(eng, &stats);
    assert_int_equal(stats.step_mallocs, 0);
    sl_engine_destroy(eng);
    return stats;
}

static struct sl_stats run_all(const char *model, const char *speculative, bool sampled, bool alone,
                               struct outcome out[2][N_REQS])
{
    return run_among(1, 1, model, speculative, sampled, alone, out);
}

static const struct pair {
    const char *model, *speculative;
    bool same; /* drafter and model say the same */
} pairs[] = {
    {DRAFTS "mimo", "{\"method\":\"mimo_mtp\",\"num_speculative_tokens\":3}", false},
    {DRAFTS "glm4_moe", "{\"method\":\"glm4_moe_mtp\",\"num_speculative_tokens\":1}", false},
    {DRAFTS "deepseek_v3", "{\"method\":\"deepseek_mtp\",\"num_speculative_tokens\":2}", false},
    {DRAFTS "deepseek_v32", "{\"method\":\"mtp\",\"num_speculative_tokens\":2}", false},
    {DRAFTS "deepseek_v4", "{\"method\":\"deepseek_mtp\",\"num_speculative_tokens\":2}", false},
    {DRAFTS "deepseek_v4_same", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}", true},
    {DRAFTS "qwen3_5", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}", false}, /* has states */
    {DRAFTS "qwen3_next", "{\"method\":\"qwen3_next_mtp\",\"num_speculative_tokens\":2}", false},
    {DRAFTS "llama",
     "{\"method\":\"eagle3\",\"model\":\"" DRAFTS "eagle3\",\"num_speculative_tokens\":4}", false},
    {DRAFTS "llama", "{\"model\":\"" DRAFTS "eagle3_speculators\",\"num_speculative_tokens\":2}",
     false},
    {DRAFTS "same", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}", true},
    {DRAFTS "same",
     "{\"method\":\"eagle3\",\"model\":\"" DRAFTS "eagle3_same\",\"num_speculative_tokens\":5}",
     true},
    {DRAFTS "llama",
     "{\"method\":\"dflash\",\"model\":\"" DRAFTS "dflash\",\"num_speculative_tokens\":5}", false},
    {DRAFTS "llama", "{\"model\":\"" DRAFTS "dflash_windows\",\"num_speculative_tokens\":3}",
     false},
    {DRAFTS "llama", "{\"model\":\"" DRAFTS "dflash_speculators\",\"num_speculative_tokens\":6}",
     false},
    {DRAFTS "copy",
     "{\"method\":\"dflash\",\"model\":\"" DRAFTS "dflash_copy\",\"num_speculative_tokens\":1}",
     true},
    {DRAFTS "llama",
     "{\"method\":\"eagle3\",\"model\":\"" DRAFTS "peagle\",\"num_speculative_tokens\":4,"
     "\"parallel_drafting\":true}",
     false},
    {DRAFTS "llama",
     "{\"method\":\"dspark\",\"model\":\"" DRAFTS "dspark\",\"num_speculative_tokens\":6}", false},
    {DRAFTS "llama", "{\"model\":\"" DRAFTS "dspark_gated\",\"num_speculative_tokens\":3}", false},
    {DRAFTS "llama", "{\"model\":\"" DRAFTS "dspark_rnn\",\"num_speculative_tokens\":4}", false},
    {DRAFTS "copy", "{\"model\":\"" DRAFTS "peagle_copy\",\"num_speculative_tokens\":2}", true},
    {DRAFTS "llama", "{\"model\":\"" DRAFTS "peagle_speculators\",\"num_speculative_tokens\":7}",
     false},
    {DRAFTS "gemma4",
     "{\"method\":\"mtp\",\"model\":\"" DRAFTS "gemma4_assistant\",\"num_speculative_tokens\":3}",
     false},
    {DRAFTS "gemma4",
     "{\"model\":\"" DRAFTS "gemma4_assistant_ordered\",\"num_speculative_tokens\":4}", false},
    {DRAFTS "gemma4_copy",
     "{\"method\":\"gemma4_mtp\",\"model\":\"" DRAFTS "gemma4_copy_window\","
     "\"num_speculative_tokens\":5}",
     true},
    {DRAFTS "gemma4_copy",
     "{\"model\":\"" DRAFTS "gemma4_copy_full\",\"num_speculative_tokens\":2}", true},
};

static void no_bit_changes(void **state)
{
    static struct outcome plain[2][N_REQS], drafted[2][N_REQS];
    (void)state;
    for (size_t k = 0; k < SL_COUNT(pairs); k++) {
        const struct pair *p = &pairs[k];
        for (int sampled = 0; sampled < 2; sampled++) {
            run_all(p->model, NULL, sampled != 0, false, plain);
            const struct sl_stats s =
                run_all(p->model, p->speculative, sampled != 0, false, drafted);
            printf("%s, %s: %llu of %llu drafts\n", p->model, sampled != 0 ? "sampled" : "greedy",
                   (unsigned long long)s.n_accepted_tokens, (unsigned long long)s.n_draft_tokens);
            assert_memory_equal(plain, drafted, sizeof plain);
            assert_true(s.n_draft_tokens > 0);
            if (p->same && sampled == 0) { /* else drafts that are longer than the text */
                assert_true(s.n_draft_tokens > 100);
                assert_true(s.n_accepted_tokens == s.n_draft_tokens);
            }
        }
    }
}

/* Models among two ranks: what the drafter shares with them is whole where it runs. */
static void no_bit_changes_among_ranks(void **state)
{
    static struct outcome plain[2][N_REQS], drafted[2][N_REQS];
    int n = 0;
    (void)state;
    for (size_t k = 0; k < SL_COUNT(pairs); k++) {
        const struct pair *p = &pairs[k];
        if (strcmp(p->model, DRAFTS "mimo") != 0 && strcmp(p->model, DRAFTS "same") != 0 &&
            strcmp(p->model, DRAFTS "copy") != 0)
            continue; /* states, sparse attention and MLPs of 24 rows are not divided */
        run_all(p->model, NULL, !p->same, false, plain);
        const struct sl_stats s =
            run_among(2, 1, p->model, p->speculative, !p->same, false, drafted);
        printf("%s, 2 ranks: %llu of %llu drafts\n", p->model,
               (unsigned long long)s.n_accepted_tokens, (unsigned long long)s.n_draft_tokens);
        assert_memory_equal(plain, drafted, sizeof plain);
        assert_true(s.n_draft_tokens > 0);
        assert_true(!p->same || s.n_accepted_tokens == s.n_draft_tokens);
        n++;
    }
    assert_int_equal(n, 5);
}

/* Stages on CPUs: drafts of texts, of a model that is whole where the last stage is, and those
 * whose states are rolled back on all stages. */
static void no_bit_changes_among_stages(void **state)
{
    static struct outcome plain[2][N_REQS], drafted[2][N_REQS];
    static const char ngram[] = "{\"method\":\"ngram\",\"num_speculative_tokens\":5,"
                                "\"prompt_lookup_max\":3,\"prompt_lookup_min\":1}";
    static const struct {
        const char *model, *speculative;
        int n_stages;
    } cases[] = {
        {DRAFTS "llama", ngram, 2},
        {DRAFTS "llama", "{\"model\":\"" DRAFTS "llama\",\"num_speculative_tokens\":4}", 3},
        {DRAFTS "qwen3_5", ngram, 2},
    };
    (void)state;
    for (size_t k = 0; k < SL_COUNT(cases); k++) {
        run_all(cases[k].model, NULL, true, false, plain);
        const struct sl_stats s = run_among(1, cases[k].n_stages, cases[k].model,
                                            cases[k].speculative, true, false, drafted);
        printf("%s, %d stages: %llu of %llu drafts\n", cases[k].model, cases[k].n_stages,
               (unsigned long long)s.n_accepted_tokens, (unsigned long long)s.n_draft_tokens);
        assert_memory_equal(plain, drafted, sizeof plain);
        assert_true(s.n_draft_tokens > 100 && s.n_accepted_tokens > 0 &&
                    s.n_accepted_tokens < s.n_draft_tokens);
    }
}

/* 2.5 tokens a step with three drafts: the first always, the second half of the time, no third. */
static void synthetic_acceptance_is_as_asked(void **state)
{
    static const char *const how[] = {"\"synthetic_acceptance_length\":2.5",
                                      "\"synthetic_acceptance_rates\":[1, 0.5, 0]"};
    static struct outcome outs[2][2][N_REQS];
    (void)state;
    for (int i = 0; i < 2; i++) {
        char config[200];
        snprintf(config, sizeof config,
                 "{\"method\":\"mtp\",\"num_speculative_tokens\":3,"
                 "\"rejection_sample_method\":\"synthetic\",%s}",
                 how[i]);
        const struct sl_stats s = run_all(DRAFTS "mimo", config, true, true, outs[i]);
        assert_true(s.n_drafts > 200);
        assert_true(s.n_accepted_at[0] == s.n_drafts && s.n_accepted_at[2] == 0);
        assert_true(s.n_accepted_at[1] > s.n_drafts * 4 / 10);
        assert_true(s.n_accepted_at[1] < s.n_drafts * 6 / 10);
    }
    assert_memory_equal(outs[0], outs[1], sizeof outs[0]); /* drawn by seed and position */
}

static void what_cannot_be_is_refused(void **state)
{
    static const char *const bad[][3] = {
        {DRAFTS "mimo", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}",
         "method mtp needs rows of layers that other stages have"},
        {DRAFTS "llama", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}",
         "method mtp: modules of llama that predict further tokens are not supported"},
        {DRAFTS "llama",
         "{\"method\":\"eagle3\",\"model\":\"" DRAFTS "mimo\",\"num_speculative_tokens\":3}",
         "is no EAGLE-3 drafter"},
        {DRAFTS "same",
         "{\"method\":\"eagle3\",\"model\":\"" DRAFTS "eagle3_speculators\","
         "\"num_speculative_tokens\":2}",
         "eagle_aux_hidden_state_layer_ids[1] must be a layer of the model, 0 to 2"},
        {DRAFTS "llama",
         "{\"method\":\"dflash\",\"model\":\"" DRAFTS "dflash\",\"num_speculative_tokens\":6}",
         "num_speculative_tokens is 6, but " DRAFTS "dflash makes at most 5 drafts in a block"},
        {DRAFTS "llama",
         "{\"method\":\"dflash\",\"model\":\"" DRAFTS "eagle3\",\"num_speculative_tokens\":3}",
         "is no DFlash drafter"},
        {DRAFTS "llama",
         "{\"method\":\"eagle3\",\"model\":\"" DRAFTS "eagle3\",\"num_speculative_tokens\":3,"
         "\"parallel_drafting\":true}",
         "parallel_drafting is true, but " DRAFTS "eagle3 has no tensor \"mask_hidden\""},
        {DRAFTS "copy",
         "{\"method\":\"dflash\",\"model\":\"" DRAFTS "dflash\",\"num_speculative_tokens\":3}",
         "target_layer_ids[1] must be a layer of the model, 0 to 1"},
        {DRAFTS "gemma4",
         "{\"method\":\"mtp\",\"model\":\"" DRAFTS "eagle3\",\"num_speculative_tokens\":3}",
         "is no assistant of Gemma 4"},
        {DRAFTS "llama", "{\"model\":\"" DRAFTS "gemma4_assistant\",\"num_speculative_tokens\":3}",
         "which do not go with the 2 key heads of 8"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_engine_config cfg = {.model = bad[i][0], .speculative_config = bad[i][1]};
        cfg.pipeline_parallel_size = strstr(bad[i][2], "stages") != NULL ? 2 : 1;
        cfg.tensor_parallel_size = strstr(bad[i][2], "ranks") != NULL ? 2 : 1;
        cfg.device = "cpu";
        struct sl_engine *eng = NULL;
        struct sl_error err = {0};
        assert_true(sl_engine_create(&cfg, &eng, &err) != 0);
        if (strstr(err.msg, bad[i][2]) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, bad[i][2]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_changes),
        cmocka_unit_test(no_bit_changes_among_ranks),
        cmocka_unit_test(no_bit_changes_among_stages),
        cmocka_unit_test(synthetic_acceptance_is_as_asked),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("draft_rows", tests, NULL, NULL);
}
