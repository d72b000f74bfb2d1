/* SPDX-License-Identifier: MIT
 * Models whose layers are divided among several GPUs, mostly simulated ones, through the public
 * API: what a request gets has the bits of one GPU, whatever the number of stages, where they are
 * cut, among how many GPUs each is divided, and what else is under way. On a machine with several
 * GPUs the same runs there.
 */
#include <cuda_runtime.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/stat.h>
#include <vector>

extern "C" {
#include "cuda/cuda.h"
#include "synth/synth.h"

#include <cmocka.h>
}

static const int n_requests = 6;
static int n_devices, n_out = 6;

struct model {
    const char *name, *family;
    enum sl_dtype dtype;
    int n_layers;        /* 0: those of the tiny shape */
    const char *cuts[2]; /* layers of each stage, or NULL */
    bool tied;           /* the embedding is the head too */
};

static const model models[] = {
    {"bf16", "llama", SL_DTYPE_BF16, 5, {"1,4", "2,1,1,1"}, false},
    {"tied", "qwen3", SL_DTYPE_Q8_0, 4, {"3,1", nullptr}, true},
    {"windows", "gemma3", SL_DTYPE_BF16, 0, {"1,5", nullptr}, false},
    {"experts", "qwen3moe", SL_DTYPE_BF16, 2, {nullptr, nullptr}, false},
    {"states", "lfm2", SL_DTYPE_BF16, 0, {nullptr, nullptr}, false},
};

static std::string path_of(const model &m)
{
    const bool gguf = sl_dtype_info(m.dtype)->gguf_id >= 0;
    return std::string("build/testdata/models/gpu_stages_") + m.name + (gguf ? ".gguf" : "");
}

static void write_model(const model &m)
{
    struct sl_error err = {};
    struct sl_synth s = {};
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir("build/testdata/models", 0777);
    s.name = m.family;
    if (sl_synth_shape(m.family, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.n_layers = m.n_layers != 0 ? m.n_layers : s.hp.n_layers;
    if (s.hp.head_dim != 0 && strcmp(m.family, "lfm2") != 0) {
        s.hp.query_scalar = s.hp.query_scalar != 0 ? 32 : 0;
        s.hp.head_dim = 32;
    }
    s.hp.n_vocab = 272;
    s.hp.context = 256;
    if (m.tied)
        s.hp.has &= ~(unsigned)SL_HAS_HEAD;
    s.dtype = m.dtype;
    s.format = sl_dtype_info(m.dtype)->gguf_id >= 0 ? SL_CKPT_GGUF : SL_CKPT_HF;
    s.seed = 11;
    s.byte_vocab = true;
    if (sl_synth_write(&s, path_of(m).c_str(), &err) != 0)
        fail_msg("%s: %s", m.name, err.msg);
}

/* ------------------------------------------------------------------ requests */

struct outcome {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;

    bool operator==(const outcome &o) const
    {
        return ids == o.ids && logprobs.size() == o.logprobs.size() &&
               (logprobs.empty() ||
                memcmp(logprobs.data(), o.logprobs.data(), logprobs.size() * sizeof(float)) == 0);
    }
};

static struct sl_request *submit(struct sl_engine *eng, int i, struct sl_constraint *c = nullptr)
{
    static const int lengths[n_requests] = {1, 23, 16, 50, 7, 33};
    struct sl_error err;
    struct sl_request *req = nullptr;
    std::vector<int32_t> prompt;
    for (int k = 0; k < lengths[i]; k++)
        prompt.push_back((i * 89 + k % 9 * 31 + k / 20) % 256);
    struct sl_request_desc d = {};
    d.prompt = prompt.data();
    d.n_prompt = lengths[i];
    d.constraint = c;
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = n_out + i; /* they do not all end at once */
    d.sampling.ignore_eos = c == nullptr;
    d.sampling.logprobs = 1;
    d.sampling.prompt_logprobs = i == 1 ? 0 : -1;
    d.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    d.sampling.top_p = i == 3 ? 0.8f : 1.0f;
    d.sampling.repetition_penalty = i == 2 || i == 5 ? 1.2f : 1.0f;
    d.sampling.has_seed = true;
    d.sampling.seed = static_cast<uint64_t>(i) * 977;
    if (sl_request_submit(eng, &d, &req, &err) != 0)
        fail_msg("request %d: %s", i, err.msg);
    return req;
}

static outcome collect(struct sl_request *req)
{
    outcome o;
    struct sl_chunk c;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &c) == 1) {
            if (c.finish == SL_FINISH_ERROR)
                fail_msg("%s", sl_request_error(req)->msg);
            for (size_t k = 0; k < c.n_tokens; k++) {
                o.ids.push_back(c.tokens[k].id);
                o.logprobs.push_back(c.tokens[k].logprob);
            }
        }
    }
    const struct sl_token *pl = sl_request_prompt_logprobs(req);
    struct sl_usage u;
    sl_request_usage(req, &u);
    for (int32_t k = 1; pl != nullptr && k < u.n_prompt; k++)
        o.logprobs.push_back(pl[k].logprob);
    sl_request_release(req);
    return o;
}

static struct sl_engine_config config_of(int n_stages)
{
    struct sl_engine_config cfg = {};
    cfg.device = n_stages == 1 ? "cuda:0" : "cuda";
    cfg.pipeline_parallel_size = n_stages;
    cfg.n_threads = 1;
    cfg.max_num_seqs = 8;
    cfg.max_num_batched_tokens = 64;
    cfg.kv_cache_bytes = 8u << 20;
    return cfg;
}

static struct sl_engine *start(const model &m, struct sl_engine_config cfg)
{
    struct sl_error err;
    struct sl_engine *eng = nullptr;
    const std::string path = path_of(m);
    cfg.model = path.c_str();
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s: %s", m.name, err.msg);
    return eng;
}

static void stop(struct sl_engine *eng)
{
    struct sl_stats s;
    sl_engine_stats(eng, &s);
    assert_int_equal(s.step_mallocs, 0);
    sl_engine_destroy(eng);
}

static std::vector<outcome> run(const model &m, const struct sl_engine_config &cfg, bool together,
                                struct sl_stats *stats = nullptr)
{
    struct sl_engine *eng = start(m, cfg);
    std::vector<struct sl_request *> reqs;
    std::vector<outcome> out;
    for (int i = 0; i < n_requests; i++) {
        reqs.push_back(submit(eng, i));
        if (!together)
            out.push_back(collect(reqs.back()));
    }
    for (int i = 0; together && i < n_requests; i++)
        out.push_back(collect(reqs[static_cast<size_t>(i)]));
    if (stats != nullptr)
        sl_engine_stats(eng, stats);
    stop(eng);
    return out;
}

static void expect_same(const model &m, int n_stages, const char *what,
                        const std::vector<outcome> &want, const std::vector<outcome> &have)
{
    for (int i = 0; i < n_requests; i++)
        if (!(want[static_cast<size_t>(i)] == have[static_cast<size_t>(i)]))
            fail_msg("%s, %d stages, request %d: not the bits of one GPU %s", m.name, n_stages, i,
                     what);
}

/* ------------------------------------------------------------------ tests */

static void same_bits(void **)
{
    for (const model &m : models) {
        if (&m != models)
            write_model(m);
        const std::vector<outcome> want = run(m, config_of(1), false);
        for (int n = 2; n <= 4 && n <= n_devices; n *= 2) {
            if (n > 2 && m.n_layers != 5)
                continue;
            struct sl_engine_config cfg = config_of(n);
            if (&m == models)
                expect_same(m, n, "alone", want, run(m, cfg, false));
            expect_same(m, n, "together", want, run(m, cfg, true));
            cfg.pipeline_parallel_layers = m.cuts[n / 4];
            cfg.max_num_batched_tokens = 9;
            cfg.block_size = 32;
            expect_same(m, n, "together, in chunks", want, run(m, cfg, true));
        }
        printf("%s: the same bits\n", m.name);
    }
}

/* Each stage is divided among two GPUs. */
static void ranks_of_stages(void **)
{
    if (n_devices < 4) {
        printf("%d GPUs: skipped\n", n_devices);
        return;
    }
    for (const model &m : models) {
        const bool experts = m.family == std::string("qwen3moe");
        if (!experts && &m != models)
            continue;
        write_model(m);
        const std::vector<outcome> want = run(m, config_of(1), true);
        struct sl_engine_config cfg = config_of(2);
        cfg.tensor_parallel_size = 2;
        cfg.max_num_batched_tokens = 9;
        cfg.enable_expert_parallel = experts;
        expect_same(m, 2, "of two ranks, in chunks", want, run(m, cfg, true));
    }
}

static std::vector<outcome> run_constrained(int n_stages, int n_ranks = 1)
{
    static const char regex[] = "(yes|no|[ab]{2,6})(, [0-9]{1,3})?!";
    struct sl_error err;
    struct sl_stats s;
    struct sl_constraint *c = nullptr;
    struct sl_engine_config cfg = config_of(n_stages);
    cfg.tensor_parallel_size = n_ranks;
    struct sl_engine *eng = start(models[0], cfg);
    struct sl_constraint_desc d = {};
    d.kind = SL_GRAMMAR_REGEX;
    d.text = regex;
    d.n_text = sizeof regex - 1;
    if (sl_constraint_open(eng, &d, &c, &err) != 0)
        fail_msg("%s", err.msg);
    std::vector<struct sl_request *> reqs;
    std::vector<outcome> out;
    for (int i = 0; i < n_requests; i++)
        reqs.push_back(submit(eng, i, i % 2 == 0 ? c : nullptr));
    for (struct sl_request *r : reqs)
        out.push_back(collect(r));
    sl_constraint_release(c);
    sl_engine_stats(eng, &s);
    assert_true(s.grammar_masks > 10);
    stop(eng);
    return out;
}

/* Steps in two parts, whose choice waits for the host. */
static void constrained(void **)
{
    n_out = 16;
    const std::vector<outcome> want = run_constrained(1);
    expect_same(models[0], 2, "with a grammar", want, run_constrained(2));
    if (n_devices >= 4)
        expect_same(models[0], 2, "of two ranks, with a grammar", want, run_constrained(2, 2));
    n_out = 6;
}

static void sleeps_and_wakes(void **)
{
    struct sl_error err;
    struct sl_engine *eng = start(models[0], config_of(2));
    const outcome want = collect(submit(eng, 1));
    for (int level = 1; level <= 2; level++) {
        assert_int_equal(sl_engine_sleep(eng, level, false, -1, &err), 0);
        if (sl_engine_wake(eng, &err) != 0)
            fail_msg("%s", err.msg);
        assert_true(collect(submit(eng, 1)) == want);
    }
    stop(eng);
}

static void refuse(struct sl_engine_config cfg, const char *want)
{
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    const std::string path = path_of(models[0]);
    cfg.model = path.c_str();
    if (sl_engine_create(&cfg, &eng, &err) == 0)
        fail_msg("not refused: %s", want);
    if (strstr(err.msg, want) == nullptr)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
}

static void refusals(void **)
{
    struct sl_engine_config cfg = config_of(2);
    cfg.device = "cuda:0";
    refuse(cfg, "has 1 GPUs for a pipeline_parallel_size of 2: each stage has one");
    cfg = config_of(2);
    cfg.device = "cuda:0,1";
    cfg.tensor_parallel_size = 2;
    refuse(cfg, "by tensor_parallel_size of 4: each rank has one");
    cfg = config_of(4);
    cfg.tensor_parallel_size = 4;
    refuse(cfg, "4 stages of 4 ranks (tensor_parallel_size) are 16 parts, at most 8");
    cfg = config_of(2);
    cfg.pipeline_parallel_layers = "1,2,2";
    refuse(cfg, "is not the layers of each of 2 stages");
    cfg.pipeline_parallel_layers = "1,5";
    refuse(cfg, "they are 6 together, the model has 5");
    cfg = config_of(6);
    refuse(cfg, "6 stages for 5 layers");
    cfg = config_of(2);
    cfg.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":3,"
                             "\"prompt_lookup_max\":2,\"prompt_lookup_min\":1}";
    refuse(cfg, "drafts do not run beside stages");
    cfg = config_of(2);
    cfg.enable_lora = true;
    refuse(cfg, "enable_lora");
    cfg = config_of(2);
    cfg.kv_cache_bytes = 100;
    refuse(cfg, "less than one page");
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(1);
    refuse(config_of(2), "2 stages want a GPU each, and there is 1");
    sl_sim_set_devices(n_devices);
    sl_sim_set_peers(false);
    refuse(config_of(2), "cannot reach the memory");
    sl_sim_set_peers(true);
#endif
}

/* Steps of several groups are enqueued before any of them has been waited for, and each stage says
 * how long it computed and waited. */
static void stages_say(void **)
{
    struct sl_stats s;
    n_out = 24;
    run(models[0], config_of(2), true, &s);
    n_out = 6;
    assert_int_equal(s.n_stages, 2);
    for (int i = 0; i < 2; i++) {
        printf("stage %d: %.3f s busy, %.3f s waiting\n", i, s.stage_busy_s[i], s.stage_wait_s[i]);
        assert_true(s.stage_busy_s[i] + s.stage_wait_s[i] > 0);
#ifndef SL_CUDA_SIM /* which does the work of a step when somebody waits for it */
        assert_true(s.stage_busy_s[i] > 0);
#endif
    }
}

#ifdef SL_CUDA_SIM
/* Steps of decodes are recorded on every stage and replayed there. */
static void recorded(void **)
{
    struct sl_engine *eng = start(models[0], config_of(2));
    n_out = 24;
    const uint64_t before = sl_sim_get_counts().graph_launches;
    collect(submit(eng, 2));
    const uint64_t n = sl_sim_get_counts().graph_launches - before;
    printf("%d replays on two stages\n", static_cast<int>(n));
    assert_true(n >= 2 * 16 && n % 2 == 0);
    n_out = 6;
    stop(eng);
}

/* Whatever launch of whichever stage fails: requests end with an error, and nobody hangs. */
static void a_launch_fails(void **)
{
    for (int nth : {1, 7, 40, 90}) {
        struct sl_engine *eng = start(models[0], config_of(2));
        collect(submit(eng, 0));
        struct sl_request *reqs[] = {submit(eng, 1), submit(eng, 3)};
        sl_sim_fail_launch(nth);
        for (struct sl_request *req : reqs) {
            struct sl_chunk c;
            while (!sl_request_done(req)) {
                sl_request_wait(req, 1000);
                while (sl_request_read(req, &c) == 1) {
                }
            }
            const struct sl_error *err = sl_request_error(req);
            printf("launch %d: %s\n", nth, err->msg);
            assert_int_equal(err->code, SL_EDEVICE);
            assert_non_null(strstr(err->msg, "cuda:"));
            sl_request_release(req);
        }
        assert_false(sl_engine_healthy(eng));
        sl_engine_destroy(eng);
        sl_sim_repair();
    }
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),   cmocka_unit_test(ranks_of_stages),
        cmocka_unit_test(constrained), cmocka_unit_test(sleeps_and_wakes),
        cmocka_unit_test(refusals),    cmocka_unit_test(stages_say),
#ifdef SL_CUDA_SIM
        cmocka_unit_test(recorded),    cmocka_unit_test(a_launch_fails),
#endif
    };
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(4);
#endif
    n_devices = sl_cuda_count();
    if (n_devices < 2) {
        printf("test_stages: %d GPUs: skipped\n", n_devices);
        return 0;
    }
    write_model(models[0]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
