/* SPDX-License-Identifier: MIT
 * Embeddings and scores on the GPU, mostly the simulated one, through the public API: encoders with
 * learned positions, pairs of texts, classifiers, and models that see only what came before.
 *
 * A text's values must not change by a bit with its batch mates or the number of multiprocessors,
 * and must be what the CPU gives, within what bf16 costs.
 */
#include <cuda_runtime.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/stat.h>
#include <vector>

extern "C" {
#include "base/check.h"
#include "synth/synth.h"

#include <cmocka.h>
}

enum { N_TEXTS = 7 };

struct model {
    const char *name, *family;
    int32_t heads, kv_heads, head_dim, hidden;
    bool scores;
    bool causal; /* its rows see no keys behind their own: texts may come in chunks */
};

static const model models[] = {
    {"bert", "bert", 4, 4, 16, 64, false, false},
    {"roberta", "roberta", 2, 2, 32, 64, false, false},
    {"reranker", "bert-classifier", 2, 2, 64, 128, true, false},
    {"qwen3", "qwen3", 4, 2, 32, 128, false, true},
    {"modernbert", "modernbert", 4, 4, 16, 64, false, false},
    {"nomic", "nomic-bert", 2, 2, 32, 64, false, false},
    {"gte", "gte", 4, 4, 16, 64, false, false},
    {"jina", "jina-v3", 2, 2, 64, 128, false, false},
};

static std::string path_of(const model &m)
{
    return std::string("build/testdata/models/cuda_pooled_") + m.name;
}

static void write_model(const model &m)
{
    struct sl_error err = {};
    struct sl_synth s = {};
    for (const char *folder : {"build", "build/testdata", "build/testdata/models"})
        mkdir(folder, 0777);
    s.name = m.family;
    if (sl_synth_shape(m.family, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.hidden = m.hidden;
    s.hp.n_heads = m.heads;
    s.hp.n_kv_heads = m.kv_heads;
    s.hp.head_dim = m.head_dim;
    s.hp.n_layers = 2;
    s.hp.n_vocab = 320;
    s.hp.context = 256;
    s.dtype = SL_DTYPE_BF16;
    s.format = SL_CKPT_HF;
    s.seed = 9;
    s.byte_vocab = true;
    if (sl_synth_write(&s, path_of(m).c_str(), &err) != 0)
        fail_msg("%s: %s", m.name, err.msg);
}

static struct sl_engine *start(const model &m, const char *device, int32_t max_num_batched_tokens)
{
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    struct sl_engine_config cfg = {};
    const std::string path = path_of(m);
    const bool cpu = strcmp(device, "cpu") == 0;
    cfg.model = path.c_str();
    cfg.device = device;
    cfg.n_threads = 1;
    cfg.runner = "pooling";
    cfg.max_num_seqs = 8;
    cfg.max_model_len = 200;
    cfg.kv_cache_bytes = 8u << 20;
    cfg.exact_weights = cpu;
    cfg.kv_cache_dtype = cpu ? "f32" : nullptr;
    cfg.max_num_batched_tokens = max_num_batched_tokens;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s: %s", m.name, err.msg);
    assert_true(sl_engine_info(eng)->n_pooled == (m.scores ? 3 : m.hidden));
    return eng;
}

static struct sl_request *submit(const model &m, struct sl_engine *eng, int i)
{
    static const int lengths[N_TEXTS] = {1, 15, 16, 2, 150, 64, 5};
    struct sl_error err = {};
    struct sl_request *req = nullptr;
    std::vector<int32_t> ids;
    for (int k = 0; k < lengths[i]; k++)
        ids.push_back((i * 101 + k * k * 7 + 3) % 256);
    struct sl_request_desc d = {};
    d.prompt = ids.data();
    d.n_prompt = lengths[i];
    d.pooling = true;
    d.second_from = m.scores && lengths[i] > 4 ? lengths[i] / 3 : 0;
    sl_sampling_default(&d.sampling);
    if (sl_request_submit(eng, &d, &req, &err) != 0)
        fail_msg("text %d: %s", i, err.msg);
    return req;
}

typedef std::vector<std::vector<float>> values;

static std::vector<float> collect(struct sl_request *req)
{
    struct sl_chunk c;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &c) == 1)
            if (c.finish == SL_FINISH_ERROR)
                fail_msg("%s", sl_request_error(req)->msg);
    }
    int32_t n = 0;
    const float *row = sl_request_pooled(req, &n);
    assert_non_null(row);
    std::vector<float> out(row, row + n);
    sl_request_release(req);
    return out;
}

static values run(const model &m, const char *device, int32_t max_tokens, bool together)
{
    struct sl_stats stats;
    struct sl_engine *eng = start(m, device, max_tokens);
    std::vector<struct sl_request *> reqs;
    values out;
    for (int i = 0; i < N_TEXTS; i++) {
        reqs.push_back(submit(m, eng, i));
        if (!together)
            out.push_back(collect(reqs.back()));
    }
    for (int i = 0; together && i < N_TEXTS; i++)
        out.push_back(collect(reqs[static_cast<size_t>(i)]));
    sl_engine_stats(eng, &stats);
    assert_int_equal(stats.step_mallocs, 0);
    sl_engine_destroy(eng);
    return out;
}

static void expect_same(const model &m, const char *what, const values &a, const values &b)
{
    for (size_t i = 0; i < N_TEXTS; i++)
        if (a[i].size() != b[i].size() ||
            memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
            fail_msg("%s, text %zu: not the same bits %s", m.name, i, what);
}

/* Of vectors: how far their directions are apart. Of scores: the largest difference. */
static double distance(const model &m, const std::vector<float> &a, const std::vector<float> &b)
{
    double dot = 0, aa = 0, bb = 0, most = 0;
    for (size_t i = 0; i < a.size(); i++) {
        const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
        dot += x * y, aa += x * x, bb += y * y;
        most = std::max(most, std::fabs(x - y));
    }
    return m.scores ? most : 1 - dot / std::sqrt(aa * bb);
}

static void same_bits_and_near_the_cpu(void **)
{
    for (const model &m : models) {
        write_model(m);
        const values alone = run(m, "cuda:0", 0, false);
        expect_same(m, "in a batch", alone, run(m, "cuda:0", 0, true));
        if (m.causal)
            expect_same(m, "in chunks of 24", alone, run(m, "cuda:0", 24, true));
#ifdef SL_CUDA_SIM
        sl_sim_set_sms(40);
        sl_sim_seed(77);
        expect_same(m, "on 40 multiprocessors", alone, run(m, "cuda:0", 0, true));
        sl_sim_set_sms(6);
#endif
        const values cpu = run(m, "cpu", 0, true);
        double worst = 0;
        for (size_t i = 0; i < N_TEXTS; i++)
            worst = std::max(worst, distance(m, alone[i], cpu[i]));
        printf("%s: %s from the CPU's by at most %.2e\n", m.name,
               m.scores ? "scores differ" : "1 - cosine", worst);
        assert_true(worst < (m.scores ? 0.02 : 1e-4));
        for (size_t i = 1; i < N_TEXTS; i++) /* and texts are told apart */
            assert_true(distance(m, alone[i], alone[0]) > 2 * worst);
    }
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_and_near_the_cpu)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
