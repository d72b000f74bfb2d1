/* SPDX-License-Identifier: MIT
 * Tensor parallelism in an engine: the threads that run ranks, what an engine with ranks says and
 * refuses, and that it sleeps and wakes as one without. That its bits are those of one rank is in
 * test_bits.c, and models/test_ranks.c has the formats.
 */
#include "base/check.h"
#include "base/sys.h"
#include "engine/team.h"
#include "sluice.h"
#include "synth/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_RANKS = 4, N_ROUNDS = 300, N_OUT = 12 };

/* ---------------------------------------------------------------- the team */

struct round {
    int n_calls[N_RANKS]; /* each written by its own rank alone */
    atomic_int n_here;
    int bad; /* this rank and those after it fail; N_RANKS: none */
};

static int count_call(void *arg, int rank, struct sl_error *err)
{
    struct round *r = arg;
    r->n_calls[rank]++;
    atomic_fetch_add(&r->n_here, 1);
    return rank >= r->bad ? sl_fail(err, SL_EINTERNAL, "rank %d fails", rank) : 0;
}

static void test_team(void **state)
{
    (void)state;
    struct sl_error err = {0};
    struct sl_team *t = NULL;
    struct round r = {.bad = N_RANKS};
    assert_int_equal(sl_team_create(N_RANKS, &t, &err), 0);
    for (int i = 1; i <= N_ROUNDS; i++) {
        r.bad = i % 7 == 0 ? i % (N_RANKS + 1) : N_RANKS;
        int rc = sl_team_run(t, count_call, &r, &err);
        assert_int_equal(atomic_load(&r.n_here), i * N_RANKS); /* all have when it returns */
        assert_int_equal(rc, r.bad < N_RANKS ? SL_EINTERNAL : 0);
        char want[32];
        snprintf(want, sizeof want, "rank %d fails", r.bad);
        if (rc != 0)
            assert_string_equal(err.msg, want);
    }
    for (int i = 0; i < N_RANKS; i++)
        assert_int_equal(r.n_calls[i], N_ROUNDS);
    sl_team_destroy(t);
}

/* ---------------------------------------------------------------- engines */

static void generate(struct sl_engine *eng, int32_t ids[N_OUT])
{
    static const int32_t prompt[] = {11, 22, 33, 44, 55, 66, 77, 88, 99, 110, 121, 132, 143, 154};
    struct sl_request_desc desc = {.prompt = prompt, .n_prompt = SL_COUNT(prompt)};
    struct sl_request *req = NULL;
    struct sl_chunk chunk;
    struct sl_error err = {0};
    int n = 0;
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = N_OUT;
    desc.sampling.ignore_eos = true;
    desc.sampling.temperature = 0;
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("%s", err.msg);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1)
            for (size_t k = 0; k < chunk.n_tokens; k++)
                ids[n++] = chunk.tokens[k].id;
    }
    assert_int_equal(n, N_OUT);
    sl_request_release(req);
}

static void test_sleep(void **state)
{
    (void)state;
    struct sl_engine_config cfg = {
        .device = "cpu", .tensor_parallel_size = 2, .n_threads = 4, .max_model_len = 256};
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    int32_t before[N_OUT], after[N_OUT];
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_engine_info(eng)->n_threads, 4);
    generate(eng, before);
    for (int level = 1; level <= 2; level++) {
        if (sl_engine_sleep(eng, level, false, 10000, &err) != 0 || sl_engine_wake(eng, &err) != 0)
            fail_msg("level %d: %s", level, err.msg);
        generate(eng, after);
        assert_memory_equal(before, after, sizeof before);
    }
    sl_engine_destroy(eng);
}

/* Of ranks that have some of the experts each: the same ids, before and behind sleep. */
static void test_experts(void **state)
{
    static const char path[] = "build/testdata/models/engine_ranks_experts";
    struct sl_synth s = {.name = "qwen3moe",
                         .dtype = SL_DTYPE_BF16,
                         .format = SL_CKPT_HF,
                         .byte_vocab = true,
                         .seed = 3};
    struct sl_error err = {0};
    int32_t want[N_OUT], have[N_OUT];
    (void)state;
    assert_int_equal(sl_synth_shape(s.name, "tiny", &s.hp, &err), 0);
    s.hp.n_heads = s.hp.n_kv_heads = 4;
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s", err.msg);
    for (int n = 1; n <= 4; n *= 2) {
        struct sl_engine_config cfg = {.model = path,
                                       .device = "cpu",
                                       .tensor_parallel_size = n,
                                       .enable_expert_parallel = true,
                                       .n_threads = 4,
                                       .max_model_len = 256};
        struct sl_engine *eng = NULL;
        if (sl_engine_create(&cfg, &eng, &err) != 0)
            fail_msg("%s", err.msg);
        generate(eng, n == 1 ? want : have);
        assert_memory_equal(want, n == 1 ? want : have, sizeof want);
        if (sl_engine_sleep(eng, 2, false, 10000, &err) != 0 || sl_engine_wake(eng, &err) != 0)
            fail_msg("%s", err.msg);
        generate(eng, have);
        assert_memory_equal(want, have, sizeof want);
        sl_engine_destroy(eng);
    }
}

/* ---------------------------------------------------------------- load of experts */

enum { N_BALANCE = 5, N_LONG = 700 };

struct said {
    int32_t ids[N_BALANCE][N_OUT];
    float logprobs[N_BALANCE][N_OUT];
};

static const char *skewed_model(void)
{
    static const char path[] = "build/testdata/models/engine_ranks_skewed";
    struct sl_synth s = {.name = "gpt-oss",
                         .dtype = SL_DTYPE_BF16,
                         .format = SL_CKPT_HF,
                         .byte_vocab = true,
                         .skew = 6,
                         .seed = 9};
    struct sl_error err = {0};
    assert_int_equal(sl_synth_shape(s.name, "tiny", &s.hp, &err), 0);
    s.hp.n_heads = s.hp.n_kv_heads = 4;
    s.hp.n_experts = 16;
    s.hp.context = 2048;
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s", err.msg);
    return path;
}

/* A long prompt, which is cut, and short ones, at once: then again until n_placings of experts have
 * been seen (0: one round). Every round says the same. */
static void say(struct sl_engine *eng, uint64_t n_placings, struct said *out)
{
    struct sl_stats st;
    struct said have;
    int round = 0;
    do {
        struct sl_request *reqs[N_BALANCE];
        int32_t prompt[N_LONG];
        struct sl_error err = {0};
        struct sl_chunk chunk;
        for (int i = 0; i < N_BALANCE; i++) {
            struct sl_request_desc desc = {.prompt = prompt, .n_prompt = i == 0 ? N_LONG : 20 + i};
            for (int32_t k = 0; k < N_LONG; k++)
                prompt[k] = (k * (i + 3) + 11 * i) % 250;
            sl_sampling_default(&desc.sampling);
            desc.sampling.max_tokens = N_OUT;
            desc.sampling.ignore_eos = true;
            desc.sampling.temperature = 0;
            desc.sampling.logprobs = 0;
            if (sl_request_submit(eng, &desc, &reqs[i], &err) != 0)
                fail_msg("%s", err.msg);
        }
        memset(&have, 0, sizeof have);
        for (int i = 0, n = 0; i < N_BALANCE; i++, n = 0) {
            while (!sl_request_done(reqs[i])) {
                sl_request_wait(reqs[i], 1000);
                while (sl_request_read(reqs[i], &chunk) == 1)
                    for (size_t k = 0; k < chunk.n_tokens; k++, n++) {
                        have.ids[i][n] = chunk.tokens[k].id;
                        have.logprobs[i][n] = chunk.tokens[k].logprob;
                    }
            }
            assert_int_equal(n, N_OUT);
            sl_request_release(reqs[i]);
        }
        if (round == 0)
            *out = have;
        assert_memory_equal(&have, out, sizeof have);
        sl_engine_stats(eng, &st);
        assert_int_equal(st.step_mallocs, 0);
        assert_true(++round < 400);
    } while (st.eplb.placings < n_placings);
    assert_int_equal(st.eplb.failed, 0);
}

/* What is said before, while and after experts move is what one rank says; and loads are more even
 * than where experts have ranges. */
static void test_balance(void **state)
{
    struct sl_engine_config cfg = {.model = skewed_model(),
                                   .device = "cpu",
                                   .n_threads = 2,
                                   .max_model_len = 1024,
                                   .no_prefix_caching = true};
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    struct said want, have;
    (void)state;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    say(eng, 0, &want);
    sl_engine_destroy(eng);
    cfg.enable_expert_parallel = cfg.enable_eplb = true;
    for (int n = 2; n <= 4; n *= 2) {
        double even[2];
        for (int moves = 0; moves < 2; moves++) {
            struct sl_stats st;
            cfg.tensor_parallel_size = n;
            cfg.eplb_config = moves ? "{\"window_size\": 6, \"step_interval\": 9, "
                                      "\"num_redundant_experts\": 4}"
                                    : "{\"step_interval\": 1000000000}";
            if (sl_engine_create(&cfg, &eng, &err) != 0)
                fail_msg("%s", err.msg);
            say(eng, moves ? 3 : 0, &have);
            if (moves) /* what follows is with experts where they are now, or hardly elsewhere */
                say(eng, 6, &have);
            assert_memory_equal(&have, &want, sizeof want);
            sl_engine_stats(eng, &st);
            assert_true(st.eplb.on && st.eplb.rows > 0);
            assert_int_equal(st.eplb.loaded > 0, moves);
            even[moves] = st.eplb.balancedness;
            sl_engine_destroy(eng);
        }
        print_message("%d ranks: balancedness %.3f in ranges, %.3f placed\n", n, even[0], even[1]);
        assert_true(even[1] > even[0] + 0.05 && even[1] <= 1);
    }
}

/* Where each rank has the whole of everything but experts: also of more ranks than key heads. */
static void test_only_experts(void **state)
{
    struct sl_engine_config cfg = {.model = skewed_model(),
                                   .device = "cpu",
                                   .n_threads = 2,
                                   .max_model_len = 1024,
                                   .no_prefix_caching = true};
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    struct said want, have;
    (void)state;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    say(eng, 0, &want);
    sl_engine_destroy(eng);
    cfg.enable_expert_parallel = cfg.divide_only_experts = true;
    for (int n = 2; n <= 8; n *= 4)
        for (int moves = 0; moves < 2; moves++) {
            cfg.tensor_parallel_size = n;
            cfg.enable_eplb = moves != 0;
            cfg.eplb_config = moves ? "{\"window_size\": 6, \"step_interval\": 9, "
                                      "\"num_redundant_experts\": 16}"
                                    : NULL;
            if (sl_engine_create(&cfg, &eng, &err) != 0)
                fail_msg("%s", err.msg);
            say(eng, 0, &have);
            assert_memory_equal(&have, &want, sizeof want);
            sl_engine_destroy(eng);
        }
}

/* Behind sleep experts are where they were (level 1) or where they begin (level 2). */
static void test_balance_sleeps(void **state)
{
    struct sl_engine_config cfg = {.model = skewed_model(),
                                   .device = "cpu",
                                   .n_threads = 2,
                                   .max_model_len = 1024,
                                   .tensor_parallel_size = 2,
                                   .enable_expert_parallel = true,
                                   .enable_eplb = true,
                                   .no_prefix_caching = true,
                                   .eplb_config = "{\"window_size\": 4, \"step_interval\": 4}"};
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    struct said want, have;
    (void)state;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    say(eng, 2, &want);
    for (int level = 1; level <= 2; level++) {
        if (sl_engine_sleep(eng, level, false, 10000, &err) != 0 || sl_engine_wake(eng, &err) != 0)
            fail_msg("%s", err.msg);
        say(eng, 1, &have);
        assert_memory_equal(&have, &want, sizeof want);
    }
    sl_engine_destroy(eng);
}

static void refuse_balance(struct sl_engine_config cfg, const char *want)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    cfg.model = skewed_model();
    cfg.device = "cpu";
    if (sl_engine_create(&cfg, &eng, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
}

static void test_balance_refused(void **state)
{
    static const struct {
        const char *json, *want;
    } bad[] = {
        {"[]", "not a JSON object"},
        {"{", "not a JSON object: "},
        {"{\"window_size\": 0}", "window_size must be an integer from 1"},
        {"{\"step_interval\": 1.5}", "step_interval must be an integer from 1"},
        {"{\"num_redundant_experts\": 1}", "cannot be divided evenly among 2 ranks"},
        {"{\"num_redundant_experts\": 18}", "is more than each of 2 ranks having"},
        {"{\"num_redundant_experts\": 2000}", "from 0 to 1024"},
        {"{\"use_async\": false}", "use_async is always true"},
        {"{\"policy\": \"other\"}", "policy is always \"default\""},
        {"{\"log_balancedness\": 1}", "must be true or false"},
        {"{\"windows\": 1}", "there is no \"windows\""},
    };
    struct sl_engine_config cfg = {.enable_eplb = true, .enable_expert_parallel = true};
    (void)state;
    refuse_balance(cfg, "enable_expert_parallel and a tensor_parallel_size");
    cfg.tensor_parallel_size = 2;
    cfg.offload_folder = "/tmp";
    refuse_balance(cfg, "offload_folder");
    cfg.offload_folder = NULL;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        cfg.eplb_config = bad[i].json;
        refuse_balance(cfg, bad[i].want);
    }
    cfg.enable_expert_parallel = false;
    cfg.eplb_config = NULL;
    refuse_balance(cfg, "enable_expert_parallel and a tensor_parallel_size");
    cfg.enable_eplb = false;
    cfg.eplb_config = "{\"num_redundant_experts\": 2}";
    refuse_balance(cfg, "needs enable_eplb");
    cfg.eplb_config = NULL;
    cfg.divide_only_experts = true;
    refuse_balance(cfg, "divide_only_experts: it needs ranks with experts of their own");
    cfg.enable_expert_parallel = true;
    cfg.decode_context_parallel_size = 2;
    refuse_balance(cfg, "divided positions (decode_context_parallel_size) do not go with it");
    cfg.decode_context_parallel_size = 0;
    cfg.enable_lora = true;
    refuse_balance(cfg, "adapters (enable_lora) do not go with it");
}

/* ---------------------------------------------------------------- tiers */

enum { N_TEXTS = 4, N_TEXT = 130 };

struct answer {
    int32_t ids[N_OUT], n_cached;
    float logprobs[N_OUT];
};

static void answer(struct sl_engine *eng, int text, struct answer *out)
{
    int32_t prompt[N_TEXT], n = 0;
    struct sl_request_desc desc = {.prompt = prompt, .n_prompt = N_TEXT};
    struct sl_request *req = NULL;
    struct sl_chunk chunk;
    struct sl_usage u;
    struct sl_error err = {0};
    for (int32_t i = 0; i < N_TEXT; i++)
        prompt[i] = (i * (text + 5) + 7 * text) % 250;
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = N_OUT;
    desc.sampling.ignore_eos = true;
    desc.sampling.logprobs = 0;
    desc.sampling.temperature = 0;
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("%s", err.msg);
    memset(out, 0, sizeof *out);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1)
            for (size_t k = 0; k < chunk.n_tokens; k++, n++) {
                assert_true(n < N_OUT);
                out->ids[n] = chunk.tokens[k].id;
                out->logprobs[n] = chunk.tokens[k].logprob;
            }
    }
    assert_int_equal(n, N_OUT);
    sl_request_usage(req, &u);
    out->n_cached = u.n_cached;
    sl_request_release(req);
}

/* All texts, as often as asked. Returns how many tokens came from a cache. */
static int32_t answer_all(struct sl_engine_config cfg, int n_times, const struct answer *want,
                          struct answer *out)
{
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    struct sl_stats stats;
    struct answer have;
    int32_t n_cached = 0;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < n_times * N_TEXTS; i++) {
        answer(eng, i % N_TEXTS, out != NULL ? &out[i % N_TEXTS] : &have);
        if (want == NULL)
            continue;
        assert_memory_equal(have.ids, want[i % N_TEXTS].ids, sizeof have.ids);
        assert_memory_equal(have.logprobs, want[i % N_TEXTS].logprobs, sizeof have.logprobs);
        n_cached += have.n_cached;
    }
    sl_engine_stats(eng, &stats);
    assert_int_equal(stats.step_mallocs, 0);
    assert_int_equal(stats.invariant_violations, 0);
    sl_engine_destroy(eng);
    return n_cached;
}

static const char *tiers_model(const char *family)
{
    static char path[128];
    struct sl_synth s = {
        .name = family, .dtype = SL_DTYPE_BF16, .format = SL_CKPT_HF, .byte_vocab = true};
    struct sl_error err = {0};
    assert_int_equal(sl_synth_shape(family, "tiny", &s.hp, &err), 0);
    s.hp.n_heads = 8;
    s.hp.n_kv_heads = 4;
    snprintf(path, sizeof path, "build/testdata/models/engine_ranks_tiers_%s", family);
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s", err.msg);
    return path;
}

/* Copies of pages in host memory, where the pool has room for one text, and on disk, where they
 * outlast the engine. A page is all ranks' or stages' parts of it: other numbers find nothing. */
static void test_tiers(void **state)
{
    static const char *const families[] = {"llama", "gemma3"}; /* the second has two groups */
    static const struct {
        int ranks, stages;
    } parts[] = {{2, 1}, {4, 1}, {1, 2}, {2, 2}};
    (void)state;
    for (size_t f = 0; f < SL_COUNT(families); f++) {
        char dir[] = "/tmp/sl_test_rank_tiers_XXXXXX", command[64];
        struct answer want[N_TEXTS];
        struct sl_engine_config cfg = {.model = tiers_model(families[f]),
                                       .device = "cpu",
                                       .n_threads = 2,
                                       .max_num_seqs = 2,
                                       .max_num_batched_tokens = 64,
                                       .max_model_len = 160,
                                       .kv_cache_bytes = f == 0 ? 1 << 17 : 1 << 18};
        assert_non_null(mkdtemp(dir));
        (void)answer_all(cfg, 1, NULL, want);
        for (size_t i = 0; i < SL_COUNT(parts); i++) {
            cfg.tensor_parallel_size = parts[i].ranks;
            cfg.pipeline_parallel_size = parts[i].stages;
            cfg.kv_offloading_size = 0;
            cfg.kv_cache_disk_size = 0;
            cfg.kv_cache_dir = NULL;
            assert_true(answer_all(cfg, 2, want, NULL) < N_TEXTS * 64); /* they were evicted */
            cfg.kv_offloading_size = 0.03f;
            assert_true(answer_all(cfg, 2, want, NULL) >= N_TEXTS * 96);
            cfg.kv_cache_dir = dir;
            cfg.kv_cache_disk_size = 0.05f;
            assert_true(answer_all(cfg, 1, want, NULL) < N_TEXTS * 64);
            assert_true(answer_all(cfg, 1, want, NULL) >= N_TEXTS * 96);
        }
        snprintf(command, sizeof command, "rm -rf %s", dir);
        assert_int_equal(system(command), 0);
    }
}

static void refuse(struct sl_engine_config cfg, const char *want)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    if (sl_engine_create(&cfg, &eng, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
    assert_memory_equal(err.msg, "tensor_parallel_size:", strlen("tensor_parallel_size:"));
}

static void test_refused(void **state)
{
    (void)state;
    struct sl_shared *shared = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_shared_create(64 << 20, 2, &shared, &err), 0);
    refuse((struct sl_engine_config){.tensor_parallel_size = 3}, "3 does not divide the 8 heads");
    refuse((struct sl_engine_config){.tensor_parallel_size = 9}, "9 is not between 1 and 8");
    refuse((struct sl_engine_config){.tensor_parallel_size = -1}, "-1 is not between 1 and 8");
    refuse((struct sl_engine_config){.tensor_parallel_size = 2, .shared = shared},
           "several models");
    refuse((struct sl_engine_config){.tensor_parallel_size = 2, .device = "cuda"},
           "2 ranks want a GPU each, and there are 0");
    refuse((struct sl_engine_config){.tensor_parallel_size = 2, .cpu_offload_experts = "all"},
           "cpu_offload_experts");
    refuse((struct sl_engine_config){.tensor_parallel_size = 2, .runner = "pooling"}, "embeddings");
    sl_shared_destroy(shared);
}

static void refuse_tiers(struct sl_engine_config cfg, const char *want)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    cfg.device = "cpu";
    cfg.tensor_parallel_size = 2;
    cfg.kv_offloading_size = 0.1f;
    if (sl_engine_create(&cfg, &eng, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
}

static void test_tiers_refused(void **state)
{
    (void)state;
    refuse_tiers((struct sl_engine_config){.disaggregation_mode = "prefill"},
                 "not supported between servers with ranks");
    refuse_tiers((struct sl_engine_config){.nnodes = 2, .disaggregation_mode = "prefill"},
                 "not supported between servers with ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers),        cmocka_unit_test(test_tiers_refused),
        cmocka_unit_test(test_team),         cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_experts),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_balance),      cmocka_unit_test(test_balance_sleeps),
        cmocka_unit_test(test_only_experts), cmocka_unit_test(test_balance_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
