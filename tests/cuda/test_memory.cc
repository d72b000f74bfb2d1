/* SPDX-License-Identifier: MIT
 * What the memory plan says beside what is taken of a GPU, mostly the simulated one: for models of
 * every class the bytes that `sluice inspect` prints are those that the loaded engine holds, within
 * two percent, before requests and after. On a device larger models are loaded too, and what the
 * driver says has become less free is compared.
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
#include "base/sys.h"
#include "cuda/cuda.h"
#include "sluice.h"
#include "synth/synth.h"

#include <cmocka.h>
}
#include "cuda/slab.h"
#include "golden_model.h"

#define DRAFTS "tests/golden/drafts/"
#define DRAFTED(method, model) \
    "{\"method\":\"" method "\",\"model\":\"" DRAFTS model "\",\"num_speculative_tokens\":3}"

struct scene {
    const char *model, *speculative;       /* a path, or the name of a golden model */
    int32_t max_tokens, max_seqs, max_len; /* 0: defaults */
    uint64_t kv_bytes;
};

/* Dense layers, windows, inputs of layers, experts, MXFP4, latent attention, blocks and rows that
 * are chosen, recurrent layers alone and beside attention; models that draft. */
static const scene scenes[] = {
    {"llama3", nullptr, 64, 8, 96, 1 << 20},
    {"llama3", nullptr, 4096, 256, 96, 8 << 20},
    {"gemma3", nullptr, 64, 8, 96, 1 << 20},
    {"qwen3_moe", nullptr, 64, 8, 96, 1 << 20},
    {"qwen2_moe", nullptr, 512, 32, 96, 4 << 20},
    {"gpt_oss_mxfp4", nullptr, 64, 8, 96, 1 << 20},
    {"gemma4_e2b", nullptr, 64, 8, 96, 1 << 20},
    {"gemma4_moe", nullptr, 64, 8, 96, 1 << 20},
    {"deepseek_v2", nullptr, 64, 8, 96, 1 << 20},
    {"deepseek_v4", nullptr, 64, 8, 96, 4 << 20},
    {"minimax_m3", nullptr, 64, 8, 96, 1 << 20},
    {"falcon_mamba", nullptr, 64, 8, 96, 4 << 20},
    {"mamba2", nullptr, 64, 8, 96, 4 << 20},
    {"bamba", nullptr, 64, 8, 96, 4 << 20},
    {"qwen3_5", nullptr, 64, 8, 96, 4 << 20},
    {DRAFTS "llama", DRAFTED("draft_model", "llama"), 64, 8, 96, 1 << 20},
    {DRAFTS "llama", DRAFTED("eagle3", "eagle3"), 64, 8, 96, 1 << 20},
    {DRAFTS "llama", DRAFTED("dflash", "dflash"), 64, 8, 96, 1 << 20},
    {DRAFTS "qwen3_5", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}", 64, 8, 96, 4 << 20},
};

static struct sl_engine_config config_of(const scene &s)
{
    struct sl_engine_config cfg = {};
    cfg.model = s.model;
    cfg.speculative_config = s.speculative;
    cfg.device = "cuda:0";
    cfg.n_threads = 1;
    cfg.max_num_seqs = s.max_seqs;
    cfg.max_num_batched_tokens = s.max_tokens;
    cfg.max_model_len = s.max_len;
    cfg.kv_cache_bytes = s.kv_bytes;
    return cfg;
}

static uint64_t number(const char *json, const char *name)
{
    const std::string key = std::string("\"") + name + "\": ";
    const char *at = strstr(json, key.c_str());
    if (at == nullptr)
        fail_msg("no \"%s\" in the plan", name);
    return strtoull(at + key.size(), nullptr, 10);
}

/* Of a GPU; parts: its terms, to print. */
static uint64_t planned(const struct sl_engine_config &cfg, std::string *parts)
{
    struct sl_error err = {};
    char *json = nullptr;
    size_t n_json = 0;
    uint64_t sum = 0;
    if (sl_inspect(&cfg, true, false, &json, &n_json, &err) != 0)
        fail_msg("%s: %s", cfg.model, err.msg);
    for (const char *name :
         {"weights_repacked_bytes", "kv_bytes", "activation_bytes", "runner_bytes"}) {
        const uint64_t n = number(json, name);
        char text[64];
        snprintf(text, sizeof text, "%s%.3f", sum > 0 ? " + " : "", static_cast<double>(n) / 1e6);
        *parts += text;
        sum += n;
    }
    assert_int_equal(number(json, "weights_mapped_bytes"), 0);
    free(json);
    return sum;
}

static void generate(struct sl_engine *eng, int n)
{
    std::vector<struct sl_request *> reqs;
    struct sl_error err = {};
    for (int i = 0; i < n; i++) {
        struct sl_request_desc d = {};
        const int32_t prompt[] = {3 + i, 5, 7, 11};
        struct sl_request *req = nullptr;
        d.prompt = prompt, d.n_prompt = 4;
        sl_sampling_default(&d.sampling);
        d.sampling.max_tokens = 4, d.sampling.ignore_eos = true;
        if (sl_request_submit(eng, &d, &req, &err) != 0)
            fail_msg("%s", err.msg);
        reqs.push_back(req);
    }
    for (struct sl_request *req : reqs) {
        struct sl_chunk c;
        while (!sl_request_done(req)) {
            sl_request_wait(req, 1000);
            while (sl_request_read(req, &c) == 1)
                assert_true(c.finish != SL_FINISH_ERROR);
        }
        sl_request_release(req);
    }
}

static uint64_t driver_free(void)
{
    size_t left = 0, all = 0;
    assert_int_equal(cudaMemGetInfo(&left, &all), cudaSuccess);
    return left;
}

static int n_far; /* figures that are not within two percent of the plan */

static void near(const char *model, const char *what, uint64_t plan, uint64_t used,
                 const std::string &parts)
{
    const double more =
        100.0 * (static_cast<double>(used) - static_cast<double>(plan)) / static_cast<double>(plan);
    printf("%-36s %-16s plan %10.3f MB (%s)  used %10.3f MB  %+6.2f %%\n", model, what,
           static_cast<double>(plan) / 1e6, parts.c_str(), static_cast<double>(used) / 1e6, more);
    fflush(stdout);
    n_far += more > 2.0 || more < -2.0;
}

/* by_driver: allocations are large beside the driver's granules. */
static void check(const scene &s, bool by_driver)
{
    const struct sl_engine_config cfg = config_of(s);
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    std::string parts;
    const uint64_t plan = planned(cfg, &parts), before = driver_free();
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s: %s", s.model, err.msg);
    near(s.model, "held", plan, sl_engine_info(eng)->device_used_bytes, parts);
    generate(eng, 3);
    if (by_driver)
        near(s.model, "by the driver", plan, before - driver_free(), parts);
    sl_engine_destroy(eng);
}

static void plans_are_true(void **)
{
    for (scene s : scenes) {
        const std::string path =
            strchr(s.model, '/') != nullptr ? s.model : golden_with_tokenizer(s.model, "memory_");
        s.model = path.c_str();
        check(s, false);
    }
    assert_int_equal(n_far, 0);
}

/* A matrix of whole megabytes is not alone in what the driver gives, and what was taken for many
 * goes back with the last of them, in whatever order they go. */
static void matrices_share_slabs(void **)
{
    static const size_t mb = 1 << 20, n_bytes[] = {3 * mb, 3 * mb, 3 * mb, 600 << 10, 3 * mb, 1000};
    const size_t n = sizeof n_bytes / sizeof *n_bytes;
    struct sl_error err = {};
    struct sl_backend *be = nullptr;
    struct sl_cuda_config cfg = {};
    cfg.n_copy_threads = 1;
    if (sl_cuda_create(&cfg, &be, &err) != 0)
        fail_msg("%s", err.msg);
    struct sl_cuda *cu = sl_cuda(be);
    const size_t before = cu->own_bytes;
    for (int seed = 0; seed < 20; seed++) {
        std::vector<uint8_t *> at;
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += n_bytes[i];
        sl_cuda_weights_to_come(be, seed % 2 == 0 ? sum : 0);
        const uint64_t allocs = cu->counts.device_allocs;
        for (size_t i = 0; i < n; i++) {
            at.push_back(static_cast<uint8_t *>(sl_cuda_weight_alloc(cu, n_bytes[i])));
            assert_non_null(at[i]);
            assert_int_equal(reinterpret_cast<uintptr_t>(at[i]) % 256, 0);
            assert_int_equal(cudaMemset(at[i], static_cast<int>(i), n_bytes[i]), cudaSuccess);
        }
        for (size_t i = 0; i < n; i++) /* none lies in another */
            for (size_t j = 0; j < i; j++)
                assert_true(at[i] + n_bytes[i] <= at[j] || at[j] + n_bytes[j] <= at[i]);
        if (seed % 2 == 0) { /* all of the large ones in one, and the small one */
            assert_int_equal(cu->counts.device_allocs - allocs, 2);
            assert_true(cu->own_bytes - before < sum + 2 * mb);
        }
        for (size_t k = 0; k < n; k++) {
            const size_t i =
                (k * 5 + static_cast<size_t>(seed)) % n; /* 5 and 6 have no factor in common */
            sl_cuda_weight_free(cu, at[i], n_bytes[i]);
        }
        assert_int_equal(cu->own_bytes, before);
        assert_null(cu->slabs);
    }
    be->vt->destroy(be);
}

/* Replica 1 of two takes nothing of the GPU of replica 0. */
static void replicas_have_gpus(void **)
{
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    size_t left[2] = {}, now[2] = {}, all = 0;
    int n = 0;
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(2);
#endif
    assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
    if (n < 2) {
        printf("skip: there is one GPU\n");
        return;
    }
    const std::string path = golden_with_tokenizer("llama3", "memory_");
    for (int rank = 0; rank < 2; rank++) {
        struct sl_engine_config cfg = config_of({path.c_str(), nullptr, 64, 8, 96, 64 << 20});
        cfg.device = rank == 0 ? "cuda" : "cuda:0,1"; /* both mean the same */
        cfg.data_parallel_size = 2, cfg.data_parallel_rank = rank;
        for (int i = 0; i < 2; i++)
            assert_true(cudaSetDevice(i) == cudaSuccess &&
                        cudaMemGetInfo(&left[i], &all) == cudaSuccess);
        if (sl_engine_create(&cfg, &eng, &err) != 0)
            fail_msg("%s", err.msg);
        generate(eng, 3);
        for (int i = 0; i < 2; i++)
            assert_true(cudaSetDevice(i) == cudaSuccess &&
                        cudaMemGetInfo(&now[i], &all) == cudaSuccess);
        assert_int_equal(left[1 - rank], now[1 - rank]);
        assert_true(left[rank] - now[rank] > 64 << 20);
        sl_engine_destroy(eng);
    }
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    struct sl_engine_config cfg = config_of({path.c_str(), nullptr, 64, 8, 96, 1 << 20});
    cfg.device = "cuda:0", cfg.data_parallel_size = 2;
    assert_int_not_equal(sl_engine_create(&cfg, &eng, &err), 0);
    assert_non_null(strstr(err.msg, "data_parallel_size of 2"));
}

#ifndef SL_CUDA_SIM

struct large {
    const char *family, *shape;
    int32_t hidden, n_layers, n_experts, expert_intermediate; /* 0: the shape's */
    enum sl_dtype dtype;
};

static const large larges[] = {
    {"llama", "0.6b", 0, 0, 0, 0, SL_DTYPE_BF16},
    {"qwen3moe", "tiny", 1024, 8, 64, 512, SL_DTYPE_BF16},
    {"gpt-oss", "tiny", 1024, 8, 32, 1024, SL_DTYPE_MXFP4},
    {"deepseek_v2", "tiny", 1024, 8, 0, 0, SL_DTYPE_BF16},
    {"bamba", "tiny", 0, 8, 0, 0, SL_DTYPE_BF16},
};

static std::string write_large(const large &l)
{
    struct sl_error err = {};
    struct sl_synth s = {};
    for (const char *folder : {"build", "build/testdata", "build/testdata/models"})
        mkdir(folder, 0777);
    const bool gguf = l.dtype == SL_DTYPE_MXFP4;
    const std::string path =
        std::string("build/testdata/models/memory_") + l.family + (gguf ? ".gguf" : "");
    s.name = l.family;
    if (sl_synth_shape(l.family, l.shape, &s.hp, &err) != 0)
        fail_msg("%s: %s", l.family, err.msg);
    s.hp.hidden = l.hidden != 0 ? l.hidden : s.hp.hidden;
    s.hp.n_layers = l.n_layers != 0 ? l.n_layers : s.hp.n_layers;
    s.hp.n_experts = l.n_experts != 0 ? l.n_experts : s.hp.n_experts;
    if (l.expert_intermediate != 0)
        s.hp.expert_intermediate = l.expert_intermediate;
    s.hp.n_vocab = 32000;
    s.hp.context = 4096;
    s.dtype = gguf ? SL_DTYPE_BF16 : l.dtype;
    s.experts_apart = gguf, s.experts_dtype = l.dtype;
    s.format = gguf ? SL_CKPT_GGUF : SL_CKPT_HF;
    s.seed = 3, s.byte_vocab = true;
    if (sl_synth_write(&s, path.c_str(), &err) != 0)
        fail_msg("%s: %s", l.family, err.msg);
    return path;
}

/* A pool as a GPU has that serves one model: the driver gives whole granules of 2 MB, and takes
 * some hundred MB for kernels and graphs, whatever the pool is. */
static void driver_agrees(void **)
{
    for (const char *model : {DRAFTS "llama", DRAFTS "qwen3_5"}) /* contexts, kernels */
        check({model, nullptr, 64, 8, 96, 4 << 20}, false);
    for (const large &l : larges) {
        const std::string path = write_large(l);
        check({path.c_str(), nullptr, 0, 0, 2048, 24ull << 30}, true);
    }
    assert_int_equal(n_far, 0);
}

#endif

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_true),
        cmocka_unit_test(matrices_share_slabs),
        cmocka_unit_test(replicas_have_gpus),
#ifndef SL_CUDA_SIM
        cmocka_unit_test(driver_agrees),
#endif
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
