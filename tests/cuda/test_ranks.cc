/* SPDX-License-Identifier: MIT
 * Models divided among several GPUs, mostly simulated ones, through the public API: what a request
 * gets has the bits of one GPU, whatever the format, the number of ranks, its batch mates, chunks,
 * drafts, grammars and the steps that were recorded. On a machine with several GPUs the same runs
 * there.
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
#include "models/model.h"
#include "synth/synth.h"

#include <cmocka.h>
}

enum { MAX_REQUESTS = 4 };
static int n_devices, n_requests = MAX_REQUESTS, n_out = 4,
                      longer; /* tokens of a prompt that are added */
static bool bare;             /* best tokens alone: no log probabilities, no draws, no penalties */

struct model {
    const char *name, *family;
    int32_t heads, kv_heads;
    enum sl_dtype dtype;
    int32_t head_dim, hidden, intermediate, n_vocab; /* 0: those of the tiny shape */
    bool fp8;                                        /* products of FP8 activations */
    int most;                                        /* ranks */
};

#ifdef SL_CUDA_SIM
static const int most_experts = 2; /* four sort with more threads than a process has maps for */
#else
static const int most_experts = 4;
#endif

/* Where the whole matrix has one segment of columns, parts of it would have several (linear.h).
 * Those named columns have o_proj and down by columns in steps of few tokens. */
static const model models[] = {
    {"bf16", "llama", 8, 4, SL_DTYPE_BF16, 32, 128, 192, 272, false, 4},
    {"segments", "llama", 2, 2, SL_DTYPE_BF16, 32, 320, 96, 6208, false, 2},
    {"columns", "llama", 16, 4, SL_DTYPE_BF16, 64, 128, 1024, 272, false, 4},
    {"columns-q8_0", "llama", 16, 4, SL_DTYPE_Q8_0, 64, 128, 1024, 272, false, 2},
    {"q8_0", "qwen3", 4, 2, SL_DTYPE_Q8_0, 32, 128, 192, 272, false, 2},
    {"q4_k", "llama", 4, 2, SL_DTYPE_Q4_K, 64, 256, 256, 272, false, 2},
    {"int4", "qwen3", 4, 2, SL_DTYPE_INT4_G128, 32, 128, 256, 272, false, 2},
    {"w8a16", "qwen2", 4, 2, SL_DTYPE_FP8_E4M3, 32, 128, 256, 272, false, 2},
    {"w8a8", "qwen3", 4, 2, SL_DTYPE_FP8_E4M3, 64, 256, 512, 272, true, 2},
    {"windows", "gemma3", 4, 2, SL_DTYPE_BF16, 32, 64, 96, 272, false, 2},
    {"experts", "qwen3moe", 8, 4, SL_DTYPE_BF16, 0, 0, 0, 272, false, most_experts},
    {"experts-q8_0", "qwen3moe", 8, 4, SL_DTYPE_Q8_0, 0, 0, 0, 272, false, 2},
    {"experts-shared", "qwen2moe", 8, 4, SL_DTYPE_BF16, 0, 0, 0, 272, false, 2},
    {"experts-biases", "gpt-oss", 8, 4, SL_DTYPE_MXFP4, 0, 0, 0, 272, false, 2},
    {"experts-latent", "deepseek_v2", 8, 8, SL_DTYPE_BF16, 0, 0, 0, 272, false, 2},
};

static std::string path_of(const model &m)
{
    const bool gguf = sl_dtype_info(m.dtype)->gguf_id >= 0;
    return std::string("build/testdata/models/gpu_ranks_") + m.name + (gguf ? ".gguf" : "");
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
    s.hp.hidden = m.hidden != 0 ? m.hidden : s.hp.hidden;
    s.hp.intermediate = m.intermediate != 0 ? m.intermediate : s.hp.intermediate;
    s.hp.n_heads = m.heads;
    s.hp.n_kv_heads = m.kv_heads;
    s.hp.head_dim = m.head_dim != 0 ? m.head_dim : s.hp.head_dim;
    s.hp.query_scalar = s.hp.query_scalar != 0 ? s.hp.head_dim : 0;
    s.hp.n_layers = 2;
    s.hp.n_vocab = m.n_vocab;
    s.hp.context = 256;
    s.dtype = m.dtype;
    if (m.dtype == SL_DTYPE_INT4_G128) {
        s.int4 = SL_INT4_AWQ_GEMM;
        s.int4_group = 128;
    }
    s.format = sl_dtype_info(m.dtype)->gguf_id >= 0 ? SL_CKPT_GGUF : SL_CKPT_HF;
    s.seed = 11;
    s.byte_vocab = true;
    if (sl_synth_write(&s, path_of(m).c_str(), &err) != 0)
        fail_msg("%s: %s", m.name, err.msg);
}

/* ------------------------------------------------------------------ requests */

struct outcome {
    std::vector<int32_t> ids, top_ids;
    std::vector<float> logprobs;

    bool operator==(const outcome &o) const
    {
        return ids == o.ids && top_ids == o.top_ids && logprobs.size() == o.logprobs.size() &&
               (logprobs.empty() ||
                memcmp(logprobs.data(), o.logprobs.data(), logprobs.size() * sizeof(float)) == 0);
    }
};

static struct sl_request *submit(struct sl_engine *eng, int i, struct sl_constraint *c = nullptr,
                                 struct sl_adapter *adapter = nullptr)
{
    static const int lengths[MAX_REQUESTS] = {1, 23, 16, 50};
    struct sl_error err;
    struct sl_request *req = nullptr;
    std::vector<int32_t> prompt;
    for (int k = 0; k < lengths[i] + longer; k++)
        prompt.push_back((i * 89 + k % 9 * 31 + k / 20) % 256);
    struct sl_request_desc d = {};
    d.prompt = prompt.data();
    d.n_prompt = lengths[i] + longer;
    d.constraint = c;
    d.adapter = adapter;
    d.adapter_scale = 1;
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = n_out;
    d.sampling.ignore_eos = c == nullptr;
    d.sampling.logprobs = 2;
    d.sampling.prompt_logprobs = i == 1 ? 0 : -1;
    d.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    d.sampling.top_p = i == 3 ? 0.8f : 1.0f;
    d.sampling.repetition_penalty = i == 2 ? 1.2f : 1.0f;
    if (bare) {
        d.sampling.logprobs = d.sampling.prompt_logprobs = -1;
        d.sampling.temperature = 0;
        d.sampling.repetition_penalty = 1;
    }
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
                for (int j = 0; j < c.tokens[k].n_top; j++) {
                    o.top_ids.push_back(c.tokens[k].top[j].id);
                    o.logprobs.push_back(c.tokens[k].top[j].logprob);
                }
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

static struct sl_engine_config config_of(int n_ranks)
{
    struct sl_engine_config cfg = {};
    cfg.device = n_ranks == 1 ? "cuda:0" : "cuda";
    cfg.tensor_parallel_size = n_ranks;
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
    cfg.activation_dtype = m.fp8 ? "fp8" : nullptr;
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

static outcome collect_alone(const model &m, int i)
{
    struct sl_engine *eng = start(m, config_of(1));
    const outcome o = collect(submit(eng, i));
    stop(eng);
    return o;
}

static void expect_same(const model &m, int n_ranks, const char *what,
                        const std::vector<outcome> &want, const std::vector<outcome> &have)
{
    for (int i = 0; i < n_requests; i++)
        if (!(want[static_cast<size_t>(i)] == have[static_cast<size_t>(i)]))
            fail_msg("%s, %d ranks, request %d: not the bits of one rank %s", m.name, n_ranks, i,
                     what);
}

/* ------------------------------------------------------------------ tests */

static void same_bits(void **)
{
    for (const model &m : models) {
        if (&m != models)
            write_model(m);
        const std::vector<outcome> want = run(m, config_of(1), false);
        for (int n = 2; n <= m.most && n <= n_devices; n *= 2) {
            if (&m == models || n > 2)
                expect_same(m, n, "alone", want, run(m, config_of(n), false));
            struct sl_engine_config cfg = config_of(n);
            cfg.max_num_batched_tokens = 9;
            cfg.block_size = 32;
            expect_same(m, n, "together, in chunks", want, run(m, cfg, true));
            if (strncmp(m.name, "experts", 7) != 0)
                continue;
            cfg.enable_expert_parallel = true;
            expect_same(m, n, "that has some experts", want, run(m, cfg, true));
        }
        printf("%s: the same bits\n", m.name);
    }
}

/* Of more than 32 tokens products of BF16 write to all ranks what is gathered next, and so do sums
 * of experts. */
static void many_tokens_of(const model &m, bool experts)
{
    longer = 60;
    n_requests = 2; /* of 144 tokens in a step: more than a tile has */
    n_out = 1;
    write_model(m);
    struct sl_engine_config cfg = config_of(1);
    cfg.max_num_batched_tokens = 256;
    const std::vector<outcome> want = run(m, cfg, false);
    for (int n = 2; n <= m.most && n <= n_devices; n *= 2) {
        cfg = config_of(n);
        cfg.max_num_batched_tokens = 256;
        cfg.enable_expert_parallel = experts;
        expect_same(m, n, "of many tokens", want, run(m, cfg, true));
    }
    longer = 0;
    n_requests = MAX_REQUESTS;
    n_out = 4;
}

static void many_tokens(void **)
{
    many_tokens_of(models[2], false);
    for (const model &m : models)
        if (strcmp(m.name, "experts") == 0 || strcmp(m.name, "experts-shared") == 0)
            many_tokens_of(m, true);
}

/* Of steps in which all rows take their best token, no rank has all logits; steps of other kinds
 * run beside and behind them. */
static void best_tokens(void **)
{
    n_out = 6;
    bare = true;
    for (int k = 1; k >= 0; k--) { /* of the second a rank has several runs of columns */
        const model &m = models[k];
        write_model(m);
        const std::vector<outcome> want = run(m, config_of(1), false);
        for (int n = 2; n <= m.most && n <= n_devices; n *= 2)
            expect_same(m, n, "of best tokens", want, run(m, config_of(n), true));
        if (k > 0)
            continue;
        bare = false;
        const outcome drawn = collect_alone(m, 3);
        struct sl_engine *eng = start(m, config_of(2));
        struct sl_request *other = submit(eng, 3);
        bare = true;
        std::vector<outcome> have;
        for (int i = 0; i < n_requests; i++)
            have.push_back(collect(submit(eng, i)));
        assert_true(collect(other) == drawn);
        expect_same(m, 2, "of best tokens beside draws", want, have);
        stop(eng);
    }
    bare = false;
    n_out = 4;
}

/* Every sequence drafts, and steps have any number of tokens; recorded ones among them. */
static void drafts(void **)
{
    struct sl_stats s;
    n_out = 60;
    const std::vector<outcome> want = run(models[0], config_of(1), false);
    struct sl_engine_config cfg = config_of(2);
    cfg.max_itl_ms = -1;
    cfg.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":3,"
                             "\"prompt_lookup_max\":2,\"prompt_lookup_min\":1}";
    expect_same(models[0], 2, "with drafts", want, run(models[0], cfg, true, &s));
    printf("%llu drafts, %llu accepted\n", static_cast<unsigned long long>(s.n_draft_tokens),
           static_cast<unsigned long long>(s.n_accepted_tokens));
    assert_true(s.n_draft_tokens > 5);
    n_out = 4;
}

static std::vector<outcome> run_constrained(int n_ranks)
{
    static const char regex[] = "(yes|no|[ab]{2,6})(, [0-9]{1,3})?!";
    struct sl_error err;
    struct sl_stats s;
    struct sl_constraint *c = nullptr;
    struct sl_engine *eng = start(models[0], config_of(n_ranks));
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
    n_out = 4;
}

static const int n_adapters = 3; /* more than there are slots; request 3 has none */

static std::string adapter_path(int i)
{
    return "build/testdata/models/gpu_ranks_adapter_" + std::to_string(i);
}

static void write_adapters(const model &m)
{
    struct sl_error err = {};
    struct sl_ckpt *ckpt;
    struct sl_model *target;
    if (sl_ckpt_open(path_of(m).c_str(), &ckpt, &err) != 0 ||
        sl_model_open(ckpt, &target, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < n_adapters; i++) {
        struct sl_synth_lora spec = {};
        spec.rank = 2 + 5 * i;
        spec.alpha = 16;
        spec.size = 0.5;
        spec.dtype = SL_DTYPE_BF16;
        spec.targets = i == 1 ? "o_proj,up_proj,k_proj" : nullptr;
        spec.seed = static_cast<uint64_t>(i);
        if (sl_synth_lora_write(target, &spec, adapter_path(i).c_str(), &err) != 0)
            fail_msg("%s", err.msg);
    }
    sl_model_close(target);
    sl_ckpt_close(ckpt);
}

static std::vector<outcome> run_adapted(const model &m, int n_ranks, bool together)
{
    struct sl_error err;
    struct sl_engine_config cfg = config_of(n_ranks);
    std::vector<struct sl_request *> reqs;
    std::vector<outcome> out;
    cfg.enable_lora = true;
    cfg.max_loras = 2;
    cfg.max_cpu_loras = n_adapters;
    struct sl_engine *eng = start(m, cfg);
    for (int i = 0; i < n_requests; i++) {
        struct sl_adapter *a = nullptr;
        const std::string name = "a" + std::to_string(i);
        if (i < n_adapters &&
            (sl_adapter_load(eng, name.c_str(), adapter_path(i).c_str(), false, &err) != 0 ||
             sl_adapter_open(eng, name.c_str(), true, &a, &err) != 0))
            fail_msg("%s", err.msg);
        reqs.push_back(submit(eng, i, nullptr, a));
        sl_adapter_release(a);
        if (!together)
            out.push_back(collect(reqs.back()));
    }
    for (int i = 0; together && i < n_requests; i++)
        out.push_back(collect(reqs[static_cast<size_t>(i)]));
    stop(eng);
    return out;
}

/* Of the second model o_proj and down are by columns in steps without adapters. */
static void adapters(void **)
{
    for (const model *m : {&models[0], &models[2]}) {
        if (m != models)
            write_model(*m);
        write_adapters(*m);
        const std::vector<outcome> plain = run(*m, config_of(1), false);
        const std::vector<outcome> want = run_adapted(*m, 1, false);
        for (size_t i = 0; i < n_adapters; i++)
            assert_false(want[i] == plain[i]);
        assert_true(want[n_adapters] == plain[n_adapters]);
        expect_same(*m, 2, "with adapters", want, run_adapted(*m, 2, false));
        expect_same(*m, 2, "with adapters together", want, run_adapted(*m, 2, true));
    }
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
    refuse(cfg, "has 1 GPUs for a tensor_parallel_size of 2");
    cfg.device = "cuda:0,0";
    refuse(cfg, "has GPU 0 twice");
    cfg.device = "cuda:0,";
    refuse(cfg, "is not one of");
    cfg.device = "cuda:0,1";
    cfg.tensor_parallel_size = 1;
    refuse(cfg, "has 2 GPUs for a tensor_parallel_size of 1");
    cfg = config_of(2);
    cfg.cpu_offload_experts = "all";
    refuse(cfg, "cpu_offload_experts");
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(1);
    refuse(config_of(2), "2 ranks want a GPU each, and there is 1");
    sl_sim_set_devices(n_devices);
    sl_sim_set_peers(false);
    refuse(config_of(2), "cannot reach the memory");
    sl_sim_set_peers(true);
#endif
}

#ifdef SL_CUDA_SIM
/* Steps of decodes are recorded on every rank and replayed there. */
static void recorded(void **)
{
    struct sl_engine *eng = start(models[0], config_of(2));
    n_out = 24;
    const uint64_t before = sl_sim_get_counts().graph_launches;
    collect(submit(eng, 2));
    const uint64_t n = sl_sim_get_counts().graph_launches - before;
    printf("%d replays on two ranks\n", static_cast<int>(n));
    assert_true(n >= 2 * 16 && n % 2 == 0);
    n_out = 4;
    stop(eng);
}

/* Whatever launch of whichever rank fails: requests end with an error, and nobody hangs. */
static void a_launch_fails(void **)
{
    for (int nth : {1, 7, 40}) {
        struct sl_engine *eng = start(models[0], config_of(2));
        collect(submit(eng, 0));
        sl_sim_set_clock(1000); /* a second is as good as ten */
        struct sl_request *req = submit(eng, 1);
        sl_sim_fail_launch(nth);
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
        assert_false(sl_engine_healthy(eng));
        sl_engine_destroy(eng);
        sl_sim_set_clock(1);
        sl_sim_repair();
    }
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_tokens), cmocka_unit_test(same_bits),
        cmocka_unit_test(drafts),      cmocka_unit_test(adapters),
        cmocka_unit_test(constrained), cmocka_unit_test(sleeps_and_wakes),
        cmocka_unit_test(refusals),    cmocka_unit_test(best_tokens),
#ifdef SL_CUDA_SIM
        cmocka_unit_test(recorded),    cmocka_unit_test(a_launch_fails),
#endif
    };
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(4);
#else
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* one rank is started first */
#endif
    n_devices = sl_cuda_count();
    if (n_devices < 2) {
        printf("test_ranks: %d GPUs: skipped\n", n_devices);
        return 0;
    }
    write_model(models[0]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
