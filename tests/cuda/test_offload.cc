/* SPDX-License-Identifier: MIT
 * Experts in host memory beside a GPU, mostly the simulated one.
 *
 * What a request gets must not change by a bit with its batch mates, the size of its chunks, the
 * prefix cache or recorded steps; it is exactly what comes out if the step stops at the experts,
 * rows are downloaded, the CPU backend's operation is called and its sums are uploaded; and it is
 * what the CPU alone gives, within what bf16 costs.
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

#include "cuda/device.h"

extern "C" {
#include "base/sys.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "engine/load/offload.h"
#include "models/model.h"
#include "synth/synth.h"

#include <cmocka.h>
}

enum { N_LAYERS = 2, N_REQUESTS = 4, N_OUT = 3 };

struct model {
    const char *name, *family;
    enum sl_dtype dtype;
    enum sl_ckpt_kind format;
};

/* Plain ones; a shared expert with a gate; biases, limits and a windowed layer. */
static const model models[] = {
    {"qwen3moe", "qwen3moe", SL_DTYPE_BF16, SL_CKPT_HF},
    {"qwen2moe", "qwen2moe", SL_DTYPE_Q4_K, SL_CKPT_GGUF},
    {"gptoss", "gpt-oss", SL_DTYPE_MXFP4, SL_CKPT_GGUF},
    {"qwen3fp8", "qwen3moe", SL_DTYPE_FP8_E4M3, SL_CKPT_HF},
};

static void must(int rc, const struct sl_error *err, const char *what)
{
    if (rc != 0)
        fail_msg("%s: %s", what, err->msg);
}

static std::string path_of(const model &m)
{
    return std::string("build/testdata/models/offload_") + m.name +
           (m.format == SL_CKPT_GGUF ? ".gguf" : "");
}

static void write_model(const model &m)
{
    struct sl_error err = {};
    struct sl_synth s = {};
    for (const char *folder : {"build", "build/testdata", "build/testdata/models"})
        mkdir(folder, 0777);
    s.name = m.family;
    must(sl_synth_shape(m.family, "tiny", &s.hp, &err), &err, m.name);
    s.hp.hidden = m.dtype == SL_DTYPE_Q4_K ? 256 : 64;
    s.hp.expert_intermediate = s.hp.hidden;
    if (s.hp.shared_intermediate != 0)
        s.hp.shared_intermediate = s.hp.hidden;
    s.hp.intermediate = s.hp.hidden;
    s.hp.head_dim = m.dtype == SL_DTYPE_Q4_K ? 64 : s.hp.head_dim;
    s.hp.n_layers = N_LAYERS;
    s.hp.n_vocab = 272;
    s.hp.context = 256;
    s.dtype = m.dtype;
    s.format = m.format;
    s.seed = 11;
    s.byte_vocab = true;
    must(sl_synth_write(&s, path_of(m).c_str(), &err), &err, m.name);
}

static std::vector<int32_t> prompt_of(int i)
{
    static const int lengths[N_REQUESTS] = {1, 17, 9, 24};
    std::vector<int32_t> ids;
    for (int k = 0; k < lengths[i]; k++)
        ids.push_back((i * 101 + k * k * 7 + 3) % 256);
    return ids;
}

/* ------------------------------------------------------------------ through the API */

struct outcome {
    std::vector<int32_t> ids;
    std::vector<float> logprobs, prompt_logprobs;

    bool operator==(const outcome &o) const
    {
        return ids == o.ids && same(logprobs, o.logprobs) &&
               same(prompt_logprobs, o.prompt_logprobs);
    }
    static bool same(const std::vector<float> &a, const std::vector<float> &b)
    {
        return a.size() == b.size() &&
               (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    }
};

static struct sl_request *submit(struct sl_engine *eng, int i)
{
    struct sl_error err = {};
    struct sl_request *req = nullptr;
    std::vector<int32_t> prompt = prompt_of(i);
    struct sl_request_desc d = {};
    d.prompt = prompt.data();
    d.n_prompt = static_cast<int32_t>(prompt.size());
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = N_OUT;
    d.sampling.ignore_eos = true;
    d.sampling.logprobs = 2;
    d.sampling.prompt_logprobs = i == 3 ? 0 : -1;
    d.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    d.sampling.has_seed = true;
    d.sampling.seed = static_cast<uint64_t>(i) * 7919;
    must(sl_request_submit(eng, &d, &req, &err), &err, "submit");
    return req;
}

static outcome collect(struct sl_request *req)
{
    outcome o;
    struct sl_chunk c;
    struct sl_usage u;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &c) == 1) {
            if (c.finish == SL_FINISH_ERROR)
                fail_msg("%s", sl_request_error(req)->msg);
            for (size_t k = 0; k < c.n_tokens; k++) {
                o.ids.push_back(c.tokens[k].id);
                o.logprobs.push_back(c.tokens[k].logprob);
                for (int j = 0; j < c.tokens[k].n_top; j++)
                    o.logprobs.push_back(c.tokens[k].top[j].logprob);
            }
        }
    }
    const struct sl_token *pl = sl_request_prompt_logprobs(req);
    sl_request_usage(req, &u);
    for (int32_t k = 1; pl != nullptr && k < u.n_prompt; k++)
        o.prompt_logprobs.push_back(pl[k].logprob);
    assert_int_equal(o.ids.size(), N_OUT);
    sl_request_release(req);
    return o;
}

static struct sl_engine *start(const model &m, const char *layers, struct sl_engine_config cfg)
{
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    std::string path = path_of(m);
    cfg.model = path.c_str();
    cfg.n_threads = 2;
    cfg.max_num_seqs = 8;
    cfg.kv_cache_bytes = 8u << 20;
    cfg.cpu_offload_experts = layers;
    cfg.device = cfg.device != nullptr ? cfg.device : "cuda:0";
    must(sl_engine_create(&cfg, &eng, &err), &err, m.name);
    return eng;
}

static void stop(struct sl_engine *eng, struct sl_stats *stats)
{
    struct sl_stats s;
    sl_engine_stats(eng, &s);
    assert_int_equal(s.step_mallocs, 0);
    if (stats != nullptr)
        *stats = s;
    sl_engine_destroy(eng);
}

static std::vector<outcome> run(const model &m, const char *layers,
                                const struct sl_engine_config &cfg, bool together,
                                struct sl_stats *stats = nullptr)
{
    struct sl_engine *eng = start(m, layers, cfg);
    std::vector<struct sl_request *> reqs;
    std::vector<outcome> out;
    for (int i = 0; i < N_REQUESTS; i++) {
        reqs.push_back(submit(eng, i));
        if (!together)
            out.push_back(collect(reqs.back()));
    }
    for (int i = 0; i < N_REQUESTS && together; i++)
        out.push_back(collect(reqs[static_cast<size_t>(i)]));
    stop(eng, stats);
    return out;
}

static void expect_same(const model &m, const char *what, const std::vector<outcome> &a,
                        const std::vector<outcome> &b)
{
    for (size_t i = 0; i < N_REQUESTS; i++)
        if (!(a[i] == b[i]))
            fail_msg("%s, request %zu: not the same bits %s", m.name, i, what);
}

static double furthest(const outcome &a, const outcome &b)
{
    double worst = 0;
    assert_true(a.prompt_logprobs.size() == b.prompt_logprobs.size() && !a.prompt_logprobs.empty());
    for (size_t k = 0; k < a.prompt_logprobs.size(); k++)
        worst = std::fmax(worst, std::fabs(a.prompt_logprobs[k] - b.prompt_logprobs[k]));
    return worst;
}

static void same_bits_always(void **)
{
    const model &m = models[0];
    struct sl_engine_config cfg = {}, cpu = {};
    struct sl_stats s;
    write_model(m);
    cfg.no_prefix_caching = true;
    std::vector<outcome> want = run(m, "all", cfg, false, &s);
    assert_true(s.cpu_expert_calls > 0 && s.cpu_expert_rows >= s.cpu_expert_calls);
    expect_same(m, "in a batch", want, run(m, "all", {}, true));
    cfg.max_num_batched_tokens = 9;
    cfg.block_size = 32;
    expect_same(m, "in chunks of 9, pages of 32", want, run(m, "all", cfg, true));
#ifdef SL_CUDA_SIM
    sl_sim_set_sms(3);
    sl_sim_seed(77);
    expect_same(m, "on 3 multiprocessors", want, run(m, "all", {}, true));
    sl_sim_set_sms(6);
#endif
    std::vector<outcome> part = run(m, "1", {}, false, &s);
    assert_true(s.cpu_expert_calls > 0);
    expect_same(m, "in a batch, one layer on the CPU", part, run(m, "1", {}, true));
    std::vector<outcome> none = run(m, "0", {}, false, &s);
    assert_int_equal(s.cpu_expert_calls, 0);
    cpu.device = "cpu";
    cpu.exact_weights = true;
    cpu.kv_cache_dtype = "f32";
    std::vector<outcome> exact = run(m, nullptr, cpu, true);
    const double far[] = {furthest(exact[3], want[3]), furthest(exact[3], part[3]),
                          furthest(exact[3], none[3])};
    printf("log probabilities of a prompt differ from the CPU's by at most %.4f; with one layer of "
           "experts on the CPU %.4f, with none %.4f\n",
           far[0], far[1], far[2]);
    assert_true(far[0] < 0.06 && far[1] < 0.06);
}

static void says_what_it_takes(void **)
{
    const model &m = models[0];
    struct sl_error err = {};
    struct sl_engine *eng = start(m, "1", {});
    const struct sl_model_info *info = sl_engine_info(eng);
    assert_int_equal(info->n_expert_layers, N_LAYERS);
    assert_int_equal(info->n_cpu_expert_layers, 1);
    assert_int_equal(info->n_threads, 2);
    const uint64_t one = info->cpu_expert_bytes, device = info->device_used_bytes;
    assert_true(one > 0);
    outcome want = collect(submit(eng, 2));
    assert_int_equal(sl_engine_sleep(eng, 1, false, -1, &err), 0);
    must(sl_engine_wake(eng, &err), &err, "wake");
    assert_true(collect(submit(eng, 2)) == want);
    must(sl_engine_reload(eng, nullptr, false, -1, &err), &err, "reload");
    assert_true(collect(submit(eng, 2)) == want);
    stop(eng, nullptr);
    eng = start(m, "all", {});
    assert_true(sl_engine_info(eng)->cpu_expert_bytes > one);
    assert_true(sl_engine_info(eng)->device_used_bytes < device);
    stop(eng, nullptr);
    eng = start(m, "auto", {}); /* all of it fits */
    assert_int_equal(sl_engine_info(eng)->n_cpu_expert_layers, 0);
    stop(eng, nullptr);
}

static void refuse(const char *path, const char *layers, const char *device, int code,
                   const char *word)
{
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    struct sl_engine_config cfg = {};
    cfg.model = path;
    cfg.device = device;
    cfg.cpu_offload_experts = layers;
    assert_int_equal(sl_engine_create(&cfg, &eng, &err), code);
    if (strstr(err.msg, word) == nullptr)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, word);
}

static void refusals(void **)
{
    std::string path = path_of(models[0]);
    refuse(path.c_str(), "some", "cuda", SL_EINVAL, "all, auto, a number");
    refuse(path.c_str(), "-1", "cuda", SL_EINVAL, "all, auto, a number");
    refuse(path.c_str(), "all", "cpu", SL_EINVAL, "device cpu");
    refuse(nullptr, "all", "cuda", SL_EINVAL, "no experts");
}

/* Two models on the same threads, each with its experts there. */
static void several_models(void **)
{
    struct sl_shared *shared = nullptr;
    struct sl_error err = {};
    struct sl_engine_config cfg = {};
    outcome want = run(models[0], "all", {}, false)[1];
    must(sl_shared_create(16u << 20, 2, &shared, &err), &err, "shared");
    cfg.shared = shared;
    cfg.max_model_len = 64;
    struct sl_engine *a = start(models[0], "all", cfg), *b = start(models[0], "all", cfg);
    struct sl_request *of_a = submit(a, 1), *of_b = submit(b, 1);
    assert_true(collect(of_a) == want);
    assert_true(collect(of_b) == want);
    stop(a, nullptr);
    stop(b, nullptr);
    sl_shared_destroy(shared);
}

/* ------------------------------------------------------------------ memory */

#ifdef SL_CUDA_SIM /* whose free memory nobody else changes */
static size_t endless_room(struct sl_backend *, int32_t, int32_t, int32_t, int64_t, int64_t)
{
    return static_cast<size_t>(1) << 50;
}

/* A GPU too small for all experts: `auto` takes the first number of layers that fits. */
static void memory_plan(void **)
{
    struct sl_error err = {};
    std::string path = path_of(models[0]);
    struct sl_ckpt *ckpt = nullptr;
    struct sl_model *model = nullptr;
    struct sl_backend *be = nullptr, *host = nullptr;
    struct sl_cuda_config gpu = {0, 0, false};
    struct sl_memory_plan all, none, p;
    struct sl_device_memory mem;
    struct sl_engine_config cfg = {};
    must(sl_ckpt_open(path.c_str(), &ckpt, &err), &err, "model");
    must(sl_model_open(ckpt, &model, &err), &err, "model");
    must(sl_cuda_create(&gpu, &be, &err), &err, "cuda");
    cfg.n_threads = 1;
    cfg.kv_cache_bytes = 8u << 20;
    must(sl_offload_plan(model, NULL, be, &cfg, &host, &none, &err), &err, "none");
    assert_null(host);
    cfg.cpu_offload_experts = "all";
    must(sl_offload_plan(model, NULL, be, &cfg, &host, &all, &err), &err, "all");
    assert_int_equal(none.n_host_layers, 0);
    assert_int_equal(all.n_host_layers, N_LAYERS);
    assert_true(none.host_packed_bytes + none.host_mapped_bytes + none.host_room_bytes == 0);
    assert_true(all.host_packed_bytes + all.host_mapped_bytes > 0 && all.host_room_bytes > 0);
    assert_true(none.packed_bytes > all.packed_bytes);
    /* Half a layer's experts too small for all of them. */
    const uint64_t layer = (none.packed_bytes - all.packed_bytes) / N_LAYERS;
    const uint64_t want =
        none.packed_bytes + none.kv_bytes + none.activation_bytes + none.runner_bytes - layer / 2;
    must(be->vt->device->memory(be, &mem, &err), &err, "memory");
    const uint64_t others = mem.total_bytes - mem.free_bytes - mem.own_bytes;
    cfg.gpu_memory_utilization = static_cast<float>(static_cast<double>(want + others) /
                                                    static_cast<double>(mem.total_bytes));
    sl_model_close(model);
    must(sl_model_open(ckpt, &model, &err), &err, "model");
    host->vt->destroy(host);
    cfg.cpu_offload_experts = nullptr;
    assert_int_equal(sl_offload_plan(model, NULL, be, &cfg, &host, &p, &err), SL_ENOMEM);
    assert_non_null(strstr(err.msg, "--cpu-offload-experts auto"));
    cfg.cpu_offload_experts = "auto";
    must(sl_offload_plan(model, NULL, be, &cfg, &host, &p, &err), &err, "auto");
    assert_true(p.n_host_layers >= 1 && p.n_host_layers < N_LAYERS);
    must(sl_model_set_host(model, host, p.n_host_layers - 1, &err), &err, "one less");
    assert_int_equal(sl_memory_plan_make(model, NULL, be, &cfg, &all, &err), SL_ENOMEM);
    /* The other side has an end, too. */
    struct sl_backend_vt vt = *host->vt;
    const struct sl_backend_vt *real = host->vt;
    vt.experts_bytes = endless_room;
    host->vt = &vt;
    must(sl_model_set_host(model, host, N_LAYERS, &err), &err, "endless");
    assert_int_equal(sl_memory_plan_make(model, NULL, be, &cfg, &all, &err), SL_ENOMEM);
    assert_non_null(strstr(err.msg, "host memory"));
    char *text = nullptr;
    size_t n_text;
    cfg.model = path.c_str();
    cfg.device = "cuda";
    must(sl_inspect(&cfg, false, true, &text, &n_text, &err), &err, "inspect");
    assert_non_null(strstr(text, "experts on the CPU"));
    assert_non_null(strstr(text, "of 1 of 2 layers"));
    sl_free(text);
    must(sl_inspect(&cfg, true, false, &text, &n_text, &err), &err, "inspect");
    assert_non_null(strstr(text, "\"cpu_expert_layers\": 1,"));
    sl_free(text);
    host->vt = real;
    sl_model_close(model);
    host->vt->destroy(host);
    be->vt->destroy(be);
    sl_ckpt_close(ckpt);
}
#endif

/* ------------------------------------------------------------------ one step, by hand */

enum { BLOCK = 16, N_MAX = 64, SEQ_PAGES = N_MAX / BLOCK, N_SEQS = 4, N_PAGES = 16 };

struct side {
    struct sl_ckpt *ckpt;
    struct sl_backend *be, *host;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *pool;
    size_t pool_bytes, n_vocab;
    const float *logits; /* of the last step */
};

static const struct sl_device_vt *real_dev; /* of the side whose experts are called by hand */

static std::vector<uint8_t> fetch(struct sl_backend *be, const void *from, size_t n)
{
    struct sl_error err = {};
    std::vector<uint8_t> out(n);
    must(real_dev->download(be, out.data(), from, n, &err), &err, "download");
    return out;
}

template <typename T> static const T *as(const std::vector<uint8_t> &v)
{
    return reinterpret_cast<const T *>(v.data());
}

static void begin_by_hand(struct sl_backend *, const struct sl_host_experts *)
{
}

/* All of a call, with the stream at rest; the formula is that of struct sl_op_experts. */
static void end_by_hand(struct sl_backend *be, const struct sl_host_experts *a)
{
    const size_t n = static_cast<size_t>(a->n), h = static_cast<size_t>(a->h),
                 k = static_cast<size_t>(a->top_k);
    struct sl_cuda *cu = sl_cuda(be);
    if (cu->settle != nullptr)
        cu->settle(cu);
    std::vector<uint8_t> x16 = fetch(be, a->x, n * h * 2), top = fetch(be, a->experts, n * k * 4),
                         weights = fetch(be, a->weights, n * k * 4);
    std::vector<float> x(n * h), out(n * h);
    sl_dtype_info(SL_DTYPE_BF16)->to_f32(x16.data(), x.data(), static_cast<int64_t>(n * h));
    const struct sl_host_rows rows = {a->n, x.data(), as<int32_t>(top), as<float>(weights),
                                      out.data()};
    a->fn(a->arg, &rows);
    if (a->shared != nullptr) {
        std::vector<uint8_t> shared = fetch(be, a->shared, n * h * 4), logit;
        if (a->shared_logit != nullptr)
            logit = fetch(be, a->shared_logit, n * 4);
        for (size_t i = 0; i < n * h; i++) {
            float open = 1.0f;
            if (a->shared_logit != nullptr)
                open = 1.0f / (1.0f + std::exp(-as<float>(logit)[i / h]));
            const float part = open * as<float>(shared)[i];
            out[i] = part + out[i];
        }
    }
    be->vt->upload(be, a->out, out.data(), n * h * sizeof(float));
}

static void open_side(side *s, const model &m, int32_t n_layers, bool by_hand)
{
    struct sl_error err = {};
    std::string path = path_of(m);
    struct sl_cuda_config gpu = {0, 0, false};
    struct sl_cpu_config cpu = {};
    cpu.n_threads = 2;
    must(sl_ckpt_open(path.c_str(), &s->ckpt, &err), &err, m.name);
    must(sl_model_open(s->ckpt, &s->model, &err), &err, m.name);
    must(sl_cuda_create(&gpu, &s->be, &err), &err, "cuda");
    must(sl_cpu_create(&cpu, &s->host, &err), &err, "cpu");
    must(sl_model_set_host(s->model, s->host, n_layers, &err), &err, m.name);
    if (by_hand) {
        static struct sl_device_vt dev;
        static struct sl_backend_vt vt;
        real_dev = s->be->vt->device;
        dev = *real_dev;
        dev.host_begin = begin_by_hand;
        dev.host_end = end_by_hand;
        vt = *s->be->vt;
        vt.device = &dev;
        s->be->vt = &vt;
    }
    must(sl_model_load(s->model, s->be, nullptr, nullptr, &err), &err, m.name);
    must(s->be->vt->device->load_end(s->be, &err), &err, m.name);
    struct sl_run_config rc = {};
    rc.max_tokens = rc.max_logits = N_MAX;
    must(sl_model_kv_layout(s->model, s->be, "auto", s->be->vt->kv_dtype, BLOCK, &rc.kv, &err),
         &err, m.name);
    s->pool_bytes = (N_PAGES + 1) * sl_kv_block_bytes(&rc.kv);
    s->pool = static_cast<uint8_t *>(s->be->vt->alloc(s->be, s->pool_bytes));
    sl_kv_pools(&rc.kv, s->pool, N_PAGES + 1, rc.kv_pool);
    must(sl_run_create(s->model, &rc, &s->run, &err), &err, m.name);
    s->n_vocab = static_cast<size_t>(sl_model_facts(s->model)->n_vocab);
    struct sl_step_limits lim = {};
    lim.max_tokens = lim.max_logits = lim.max_context = N_MAX;
    lim.max_spans = N_SEQS;
    lim.max_table = N_PAGES;
    lim.block_size = BLOCK;
    lim.n_groups = rc.kv.n_groups;
    for (int g = 0; g < lim.n_groups; g++)
        lim.scratch_pages[g] = by_hand ? 0 : N_PAGES; /* by hand nothing is recorded */
    sl_model_host_rows(s->model, &lim.host_hidden, &lim.host_top_k);
    lim.n_kinds = sl_model_heads(s->model, lim.heads, SL_MAX_HEAD_KINDS);
    must(s->be->vt->device->steps_init(s->be, &lim, &err), &err, m.name);
}

static void close_side(side *s)
{
    s->be->vt->device->forget(s->be, s);
    sl_run_destroy(s->run);
    s->be->vt->free(s->be, s->pool, s->pool_bytes);
    sl_model_close(s->model);
    s->be->vt->destroy(s->be);
    s->host->vt->destroy(s->host);
    sl_ckpt_close(s->ckpt);
}

static void forward(void *arg, const struct sl_step *step)
{
    side *s = static_cast<side *>(arg);
    s->logits = sl_run_enqueue(s->run, &step->batch);
}

/* n tokens of each of n_seqs sequences from position `from` on, all rows wanted. */
static std::vector<float> run_step(side *s, int32_t n_seqs, int32_t from, int32_t n)
{
    std::vector<int32_t> tokens, positions, rows, tables;
    std::vector<struct sl_span> spans;
    for (int32_t q = 0; q < n_seqs; q++) {
        spans.push_back(
            {static_cast<int32_t>(tokens.size()), n, from, static_cast<int32_t>(tables.size()), 0});
        for (int32_t i = 0; i < (from + n + BLOCK - 1) / BLOCK; i++)
            tables.push_back((q * SEQ_PAGES + i) * 5 % N_PAGES);
        for (int32_t i = from; i < from + n; i++) {
            rows.push_back(static_cast<int32_t>(rows.size()));
            tokens.push_back((q * 37 + i * 13 + i * i) % 256);
            positions.push_back(i);
        }
    }
    tables.resize(N_PAGES * 2, 0); /* of all groups, the same pages */
    std::vector<int32_t> all;
    for (int g = 0; g < SL_MAX_KV_GROUPS; g++)
        all.insert(all.end(), tables.begin(), tables.end());
    struct sl_step step = {};
    step.batch.n_tokens = step.batch.n_logits = static_cast<int32_t>(tokens.size());
    step.batch.n_spans = n_seqs;
    step.batch.tokens = tokens.data();
    step.batch.positions = positions.data();
    step.batch.spans = spans.data();
    step.batch.block_tables = all.data();
    step.batch.n_tables = SL_MAX_KV_GROUPS;
    step.batch.table_stride = N_PAGES * 2;
    step.batch.logit_rows = rows.data();
    std::vector<float> out(tokens.size() * s->n_vocab);
    struct sl_error err = {};
    uint64_t ticket;
    const struct sl_device_vt *dev = s->be->vt->device;
    must(dev->step(s->be, &step, forward, s, &ticket, &err), &err, "step");
    must(dev->wait(s->be, ticket, nullptr, nullptr, &err), &err, "wait");
    must(dev->download(s->be, out.data(), s->logits, out.size() * sizeof out[0], &err), &err,
         "download");
    return out;
}

static void exactly_the_cpus(void **)
{
    for (const model &m : models) {
        size_t n_compared = 0, n_differing = 0;
        side have = {}, want = {};
        write_model(m);
        open_side(&have, m, N_LAYERS, false);
        open_side(&want, m, N_LAYERS, true);
        /* A prompt of each sequence; then tokens one by one, 3 padded to 4 and recorded. */
        for (int32_t at = 0, n = 6; at < 10; at += n, n = 1) {
            std::vector<float> a = run_step(&have, 3, at, n), b = run_step(&want, 3, at, n);
            for (size_t i = 0; i < a.size(); i++, n_compared++)
                n_differing += memcmp(&a[i], &b[i], sizeof a[i]) != 0;
        }
        const struct sl_cuda_counts &c = sl_cuda(have.be)->counts;
        assert_int_equal(c.recorded, 1);
        assert_int_equal(c.replayed, 3);
        assert_int_equal(sl_cuda(want.be)->counts.recorded, 0);
        struct sl_device_times t;
        have.be->vt->device->times(have.be, &t);
        assert_int_equal(t.n_host_calls, 5 * N_LAYERS);
        assert_int_equal(t.n_host_rows, (18 + 4 * 3) * N_LAYERS); /* none of padding */
        printf("%s: %zu of %zu logits differ from those by hand\n", m.name, n_differing,
               n_compared);
        assert_int_equal(n_differing, 0);
        close_side(&have);
        close_side(&want);
    }
}

/* ------------------------------------------------------------------ calls alone */

#ifdef SL_CUDA_SIM
enum { CALLS = 3, CALL_H = 64, CALL_STEPS = 2 };
#else
enum { CALLS = 48, CALL_H = 2048, CALL_STEPS = 200 };
#endif
enum { CALL_TOP = 8, CALL_ROWS = 64, MAX_WIDTH = 3 };

struct calls { /* a step of nothing but calls of the host, each of which adds 1 */
    struct sl_backend *be;
    float *x, *out, *weights;
    int32_t *top;
    int32_t n_seen;
};

static void add_one(void *arg, const struct sl_host_rows *rows)
{
    struct calls *c = static_cast<struct calls *>(arg);
    c->n_seen += rows->n;
    rows->out[0] = rows->x[0] + 1;
}

static void forward_calls(void *arg, const struct sl_step *step)
{
    struct calls *c = static_cast<struct calls *>(arg);
    struct sl_host_experts a = {};
    a.x = c->x;
    a.n = step->batch.n_tokens;
    a.h = CALL_H;
    a.top_k = CALL_TOP;
    a.experts = c->top;
    a.weights = c->weights;
    a.fn = add_one;
    a.arg = c;
    a.out = c->out;
    for (int i = 0; i < CALLS; i++) {
        c->be->vt->device->host_begin(c->be, &a);
        c->be->vt->device->host_end(c->be, &a);
    }
}

/* Of n sequences, with one token and what is drafted behind it. */
static void decode(struct calls *c, int32_t n, int32_t width)
{
    std::vector<int32_t> ids, zeros(static_cast<size_t>(n * width), 0);
    std::vector<struct sl_span> spans;
    struct sl_step step = {};
    struct sl_error err = {};
    uint64_t ticket;
    for (int32_t i = 0; i < n; i++)
        spans.push_back({i * width, width, 0, 0, 0});
    for (int32_t i = 0; i < n * width; i++)
        ids.push_back(i);
    step.batch.n_spans = n;
    step.batch.n_tokens = step.batch.n_logits = n * width;
    step.batch.tokens = step.batch.positions = step.batch.block_tables = zeros.data();
    step.batch.spans = spans.data();
    step.batch.n_tables = 1;
    step.batch.logit_rows = ids.data();
    must(c->be->vt->device->step(c->be, &step, forward_calls, c, &ticket, &err), &err, "step");
    must(c->be->vt->device->wait(c->be, ticket, nullptr, nullptr, &err), &err, "wait");
}

static struct sl_step_limits call_limits()
{
    struct sl_step_limits lim = {};
    lim.max_tokens = lim.max_spans = lim.max_logits = lim.max_table = CALL_ROWS;
    lim.max_context = lim.block_size = BLOCK;
    lim.scratch_pages[0] = 1;
    lim.max_width = MAX_WIDTH;
    lim.n_kinds = 1;
    lim.heads[0] = {4, 4, 64, 64, 0, 0};
    lim.host_hidden = CALL_H;
    lim.host_top_k = CALL_TOP;
    return lim;
}

/* What the way to the host and back takes where neither side computes. */
static void calls_alone(void **)
{
    struct sl_error err = {};
    struct calls c = {};
    struct sl_cuda_config gpu = {0, 0, false};
    const struct sl_step_limits lim = call_limits();
    must(sl_cuda_create(&gpu, &c.be, &err), &err, "cuda");
    must(c.be->vt->device->steps_init(c.be, &lim, &err), &err, "steps");
    const size_t n_rows = static_cast<size_t>(CALL_ROWS), x_bytes = n_rows * CALL_H * 2,
                 out_bytes = 2 * x_bytes, top_bytes = n_rows * CALL_TOP * 4;
    c.x = static_cast<float *>(c.be->vt->alloc(c.be, x_bytes));
    c.out = static_cast<float *>(c.be->vt->alloc(c.be, out_bytes));
    c.top = static_cast<int32_t *>(c.be->vt->alloc(c.be, top_bytes));
    c.weights = static_cast<float *>(c.be->vt->alloc(c.be, top_bytes));
    for (int32_t n : {1, 3, 8, static_cast<int>(CALL_ROWS)}) {
        decode(&c, n, 1);
        c.n_seen = 0;
        const uint64_t start_ns = sl_now_ns();
        for (int i = 0; i < CALL_STEPS; i++)
            decode(&c, n, 1);
        const double us = static_cast<double>(sl_now_ns() - start_ns) / 1e3 / CALL_STEPS /
                          static_cast<double>(CALLS);
        float first = 0;
        must(c.be->vt->device->download(c.be, &first, c.out, sizeof first, &err), &err, "out");
        printf("a call of the host with %d rows of %d: %.2f us\n", n, CALL_H, us);
        assert_true(first == 1.0f);
        assert_int_equal(c.n_seen, n * CALLS * CALL_STEPS); /* replayed, none of padding */
    }
    assert_int_equal(sl_cuda(c.be)->counts.replayed, 4 * CALL_STEPS);
    c.n_seen = 0;
    for (int i = 0; i < 2; i++)
        decode(&c, 3, MAX_WIDTH);
    assert_int_equal(c.n_seen, 2 * 3 * MAX_WIDTH * CALLS);
    assert_int_equal(sl_cuda(c.be)->counts.replayed, 4 * CALL_STEPS + 1);
    c.be->vt->device->forget(c.be, &c);
    c.be->vt->free(c.be, c.x, x_bytes);
    c.be->vt->free(c.be, c.out, out_bytes);
    c.be->vt->free(c.be, c.top, top_bytes);
    c.be->vt->free(c.be, c.weights, top_bytes);
    c.be->vt->destroy(c.be);
}

#ifdef SL_CUDA_SIM
/* Whatever cannot be had, what was taken before is given back and the thread ends. */
static void a_start_fails(void **)
{
    void (*const fails[])(int nth) = {sl_sim_fail_malloc, sl_sim_fail_malloc_host};
    for (auto fn : fails) {
        int rc = SL_ENOMEM, n = 0;
        while (rc != 0 && n < 40) {
            struct sl_error err = {};
            struct sl_backend *be = nullptr;
            struct sl_cuda_config gpu = {0, 0, false};
            const struct sl_step_limits lim = call_limits();
            must(sl_cuda_create(&gpu, &be, &err), &err, "cuda");
            fn(++n);
            rc = be->vt->device->steps_init(be, &lim, &err);
            assert_true(rc == 0 || rc == SL_ENOMEM);
            be->vt->destroy(be);
        }
        fn(0);
        assert_true(n > 2 && rc == 0);
    }
}

/* In the middle of a step, whether or not a call is under way: it fails and nothing hangs. */
static void the_device_breaks(void **)
{
    for (int nth : {22, 29, 36}) {
        struct sl_engine *eng = start(models[0], "all", {});
        sl_sim_break_at(nth);
        struct sl_request *req = submit(eng, 2);
        struct sl_chunk c = {};
        while (!sl_request_done(req)) {
            sl_request_wait(req, 1000);
            while (sl_request_read(req, &c) == 1)
                ;
        }
        assert_int_equal(sl_request_error(req)->code, SL_EDEVICE);
        sl_request_release(req);
        sl_engine_destroy(eng);
        sl_sim_repair();
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_alone),        cmocka_unit_test(same_bits_always),
        cmocka_unit_test(says_what_it_takes), cmocka_unit_test(refusals),
        cmocka_unit_test(several_models),     cmocka_unit_test(exactly_the_cpus),
#ifdef SL_CUDA_SIM
        cmocka_unit_test(memory_plan),        cmocka_unit_test(a_start_fails),
        cmocka_unit_test(the_device_breaks),
#endif
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
