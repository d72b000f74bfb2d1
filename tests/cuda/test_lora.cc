/* SPDX-License-Identifier: MIT
 * Adapters on the device: the kernel against doubles, a row's bits whatever stands beside it, and
 * whole engines whose requests have different adapters. Runs in the simulator or on a GPU.
 */
extern "C" {
#include "base/rng.h"
#include "base/sys.h"
#include "models/model.h"
#include "quant/float.h"
#include "synth/synth.h"
}
#include "cuda/gemm/lora.h"

#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static int n_failures;
static long n_checks;
static struct sl_rng rng;
static struct sl_cuda cu;

#define CHECK(cond, ...)                                      \
    do {                                                      \
        n_checks++;                                           \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

template <typename T> struct dev {
    T *p = nullptr;
    size_t n;
    explicit dev(const std::vector<T> &v) : n(v.size())
    {
        if (cudaMalloc(reinterpret_cast<void **>(&p), n * sizeof(T)) != cudaSuccess)
            exit(2);
        cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice);
        cudaDeviceSynchronize();
    }
    dev(const dev &) = delete;
    ~dev()
    {
        cudaFree(p);
    }
    std::vector<T> get() const
    {
        std::vector<T> v(n);
        cudaStreamSynchronize(cu.stream);
        cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
        return v;
    }
};

static float normal(float scale)
{
    return scale * static_cast<float>(sl_rng_normal(&rng));
}

static float of_bf16(uint16_t h)
{
    uint32_t w = static_cast<uint32_t>(h) << 16;
    float f;
    memcpy(&f, &w, sizeof f);
    return f;
}

/* ------------------------------------------------------------------ the kernel */

enum { MAX_RANK = 256 };

struct shape {
    int32_t k, ranks[3];    /* of three adapters, 0: none for that matrix */
    std::vector<int32_t> n; /* rows of each part's matrix */
    bool gated;
};

struct mats { /* of one matrix, on host and device */
    std::vector<uint16_t> a, b;
    dev<uint16_t> *da = nullptr, *db = nullptr;
};

/* Runs rows first .. first + n of x; out comes back, of a gated product as one part of numbers. */
static std::vector<std::vector<float>> run(const shape &sh, const std::vector<uint16_t> &x,
                                           const std::vector<std::vector<float>> &out,
                                           const sl_lora_rows &rows, const int32_t *gathered,
                                           int32_t first, int32_t n, int32_t room)
{
    const size_t k = static_cast<size_t>(sh.k), n_parts = sh.n.size();
    const size_t width = static_cast<size_t>(n) * static_cast<size_t>(sh.n[0]);
    dev<uint16_t> dx(std::vector<uint16_t>(x.begin() + static_cast<long>(k) * first,
                                           x.begin() + static_cast<long>(k) * (first + n)));
    dev<uint16_t> gated(std::vector<uint16_t>(width, 0));
    dev<float> s(std::vector<float>(static_cast<size_t>(room) * n_parts * MAX_RANK, NAN));
    std::vector<dev<float> *> d_out;
    std::vector<sl_weight> w(n_parts);
    sl_cuda_lora l = {};
    sl_op_lora op = {};
    op.rows = &rows;
    op.gathered = gathered;
    op.mat = 1;
    op.max_rank = MAX_RANK;
    op.s = s.p;
    op.n_s = static_cast<int64_t>(s.n);
    l.lora = &op;
    l.x = dx.p;
    l.ld_x = sh.k;
    l.first = first;
    l.n = n;
    l.n_parts = static_cast<int32_t>(n_parts);
    l.gated_out = sh.gated ? gated.p : nullptr;
    l.act = SL_ACT_SILU;
    for (size_t p = 0; p < n_parts; p++) {
        const long rows_p = sh.n[p];
        d_out.push_back(new dev<float>(std::vector<float>(out[p].begin() + rows_p * first,
                                                          out[p].begin() + rows_p * (first + n))));
        w[p].n_rows = rows_p;
        w[p].n_cols = sh.k;
        l.part[p] = {&w[p], d_out[p]->p, rows_p};
    }
    sl_cuda_lora_shrink(&cu, &l);
    sl_cuda_lora_expand(&cu, &l);
    std::vector<std::vector<float>> got;
    if (sh.gated) {
        got.emplace_back();
        for (uint16_t v : gated.get())
            got[0].push_back(of_bf16(v));
    }
    for (dev<float> *d : d_out) {
        if (!sh.gated)
            got.push_back(d->get());
        delete d;
    }
    return got;
}

/* Three adapters' matrices of a case, and a step whose rows have them. */
struct scene {
    std::vector<mats> all; /* [3, n_parts] */
    std::vector<sl_lora_mat> table;
    std::vector<int32_t> adapter, order;
    std::vector<float> scale;
    std::vector<uint16_t> x;
    std::vector<std::vector<float>> out;
};

static void make_mats(const shape &sh, size_t i, size_t p, mats *m, sl_lora_mat *to)
{
    const size_t rank = static_cast<size_t>(sh.ranks[i]), k = static_cast<size_t>(sh.k);
    const size_t width = static_cast<size_t>(sh.n[p]);
    if (rank == 0 || (i == 1 && p == 1)) /* leaves one matrix alone */
        return;
    m->a.resize(rank * k);
    m->b.assign(SL_CEIL_DIV(width, SL_LORA_PANEL) * SL_LORA_PANEL * rank, 0);
    for (uint16_t &v : m->a)
        v = sl_f32_to_bf16(normal(1.0f / sqrtf(static_cast<float>(sh.k))));
    for (size_t row = 0; row < width; row++)
        for (size_t j = 0; j < rank; j++)
            m->b[(row / SL_LORA_PANEL * rank + j) * SL_LORA_PANEL + row % SL_LORA_PANEL] =
                sl_f32_to_bf16(normal(0.3f));
    m->da = new dev<uint16_t>(m->a);
    m->db = new dev<uint16_t>(m->b);
    to->a = m->da->p;
    to->b = m->db->p;
    to->rank = sh.ranks[i];
    to->scale = 0.5f + static_cast<float>(i);
}

static void make_scene(const shape &sh, int32_t n_rows, scene *s)
{
    const size_t n_parts = sh.n.size(), n_mats = n_parts + 2, n = static_cast<size_t>(n_rows);
    s->all.resize(3 * n_parts);
    s->table.resize(3 * n_mats);
    for (size_t i = 0; i < 3; i++)
        for (size_t p = 0; p < n_parts; p++)
            make_mats(sh, i, p, &s->all[i * n_parts + p], &s->table[i * n_mats + 1 + p]);
    for (size_t t = 0; t < n; t++) { /* runs of some rows */
        s->adapter.push_back(t > 0 && sl_rng_below(&rng, 3) != 0
                                 ? s->adapter[t - 1]
                                 : static_cast<int32_t>(sl_rng_below(&rng, 4)) - 1);
        s->scale.push_back(t % 5 == 0 ? 0.5f : 1.0f);
        s->order.push_back(static_cast<int32_t>(t));
    }
    s->x.resize(static_cast<size_t>(sh.k) * n);
    for (uint16_t &v : s->x)
        v = sl_f32_to_bf16(normal(1));
    s->out.resize(n_parts);
    for (size_t p = 0; p < n_parts; p++) {
        s->out[p].resize(static_cast<size_t>(sh.n[p]) * n);
        for (float &v : s->out[p])
            v = normal(1);
    }
}

/* What a row gains in part p, in double. */
static std::vector<double> gains(const shape &sh, const scene &s, size_t t, size_t p)
{
    const size_t k = static_cast<size_t>(sh.k), width = static_cast<size_t>(sh.n[p]);
    std::vector<double> d(width);
    if (s.adapter[t] < 0)
        return d;
    const mats &m = s.all[static_cast<size_t>(s.adapter[t]) * sh.n.size() + p];
    const size_t rank = m.a.size() / k;
    const double f = (0.5 + s.adapter[t]) * static_cast<double>(s.scale[t]);
    for (size_t j = 0; j < rank; j++) {
        double sum = 0;
        for (size_t i = 0; i < k; i++)
            sum += static_cast<double>(of_bf16(m.a[j * k + i])) *
                   static_cast<double>(of_bf16(s.x[t * k + i]));
        for (size_t i = 0; i < width; i++)
            d[i] += f * sum *
                    static_cast<double>(of_bf16(
                        m.b[(i / SL_LORA_PANEL * rank + j) * SL_LORA_PANEL + i % SL_LORA_PANEL]));
    }
    return d;
}

static bool has_none(const scene &s, const shape &sh, size_t t, size_t p)
{
    return s.adapter[t] < 0 || s.all[static_cast<size_t>(s.adapter[t]) * sh.n.size() + p].a.empty();
}

static void compare_plain(const shape &sh, const scene &s,
                          const std::vector<std::vector<float>> &got)
{
    double err = 0, power = 0;
    for (size_t p = 0; p < sh.n.size(); p++)
        for (size_t t = 0; t < s.adapter.size(); t++) {
            const size_t width = static_cast<size_t>(sh.n[p]);
            const float *row = &got[p][t * width], *was = &s.out[p][t * width];
            if (has_none(s, sh, t, p)) {
                CHECK(memcmp(row, was, width * sizeof *row) == 0, "row %zu has no adapter", t);
                continue;
            }
            const std::vector<double> d = gains(sh, s, t, p);
            for (size_t i = 0; i < width; i++) {
                const double e = static_cast<double>(row[i]) - static_cast<double>(was[i]) - d[i];
                err += e * e;
                power += d[i] * d[i];
            }
        }
    CHECK(err <= 1e-11 * power, "K %d: NMSE %.3g", sh.k, err / power);
}

/* The result is BF16: the nearest to a double, or the one beside it. */
static void compare_gated(const shape &sh, const scene &s, const std::vector<float> &got)
{
    const size_t width = static_cast<size_t>(sh.n[0]);
    for (size_t t = 0; t < s.adapter.size(); t++) {
        const std::vector<double> dg = gains(sh, s, t, 0), du = gains(sh, s, t, 1);
        for (size_t i = 0; i < width; i++) {
            const double g = static_cast<double>(s.out[0][t * width + i]) + dg[i];
            const double want =
                g / (1 + exp(-g)) * (static_cast<double>(s.out[1][t * width + i]) + du[i]);
            const double e = fabs(static_cast<double>(got[t * width + i]) - want);
            CHECK(e <= 0.0041 * fabs(want) + 1e-6, "row %zu, %zu: %g, want %g", t, i,
                  static_cast<double>(got[t * width + i]), want);
        }
    }
}

static void kernel_case(const shape &sh, int32_t n_rows)
{
    scene s;
    make_scene(sh, n_rows, &s);
    dev<int32_t> d_adapter(s.adapter), d_order(s.order);
    dev<float> d_scale(s.scale);
    dev<sl_lora_mat> d_table(s.table);
    sl_lora_rows rows = {};
    rows.adapter = d_adapter.p;
    rows.scale = d_scale.p;
    rows.table = d_table.p;
    rows.n_mats = static_cast<int32_t>(sh.n.size()) + 2;
    dev<uint8_t> by_row(std::vector<uint8_t>(sl_cuda_lora_rows_bytes(rows.n_mats), 0xff));
    sl_cuda_lora_resolve(&cu, &rows, n_rows, by_row.p);
    cudaStreamSynchronize(cu.stream);
    const auto got = run(sh, s.x, s.out, rows, nullptr, 0, n_rows, n_rows);
    if (sh.gated)
        compare_gated(sh, s, got[0]);
    else
        compare_plain(sh, s, got);
    /* Pieces, rows that are looked up, and room for partial sums or none have the same bits. */
    for (int32_t t = 0; t < n_rows;) {
        const int32_t some = 1 + static_cast<int32_t>(sl_rng_below(&rng, 60)),
                      n = t % 3 == 0 ? SL_ROUND_UP(some, 8) : some, m = SL_MIN(n, n_rows - t);
        const auto piece =
            run(sh, s.x, s.out, rows, t % 2 == 0 ? d_order.p : nullptr, t, m, m * (1 + t % 3 * 4));
        for (size_t p = 0; p < piece.size(); p++)
            CHECK(memcmp(piece[p].data(), &got[p][static_cast<size_t>(t * sh.n[p])],
                         piece[p].size() * sizeof(float)) == 0,
                  "rows %d .. %d of %d alone have other bits", t, t + m, n_rows);
        t += m;
    }
    for (mats &m : s.all) {
        delete m.da;
        delete m.db;
    }
}

/* ------------------------------------------------------------------ engines */

enum { N_ADAPTERS = 3, N_REQUESTS = 8, N_PROMPT = 20, N_OUT = 5 };

struct outcome {
    int32_t n, ids[N_OUT];
    float logprobs[N_OUT];
};

static std::string folder;

static void must(int rc, const struct sl_error *err)
{
    if (rc == 0)
        return;
    printf("%s\n", err->msg);
    exit(1);
}

static void write_models()
{
    struct sl_error err = {};
    struct sl_synth s = {};
    struct sl_ckpt *ckpt;
    struct sl_model *m;
    const std::string path = folder + "/model";
    s.name = "llama";
    s.dtype = SL_DTYPE_BF16;
    s.seed = 3;
    s.byte_vocab = true;
    must(sl_synth_shape(s.name, "tiny", &s.hp, &err), &err);
    s.hp.n_vocab = 320;
    must(sl_synth_write(&s, path.c_str(), &err), &err);
    must(sl_ckpt_open(path.c_str(), &ckpt, &err), &err);
    must(sl_model_open(ckpt, &m, &err), &err);
    for (int i = 0; i < N_ADAPTERS; i++) {
        struct sl_synth_lora spec = {};
        spec.rank = 3 + 5 * i;
        spec.alpha = 16;
        spec.size = 0.4;
        spec.dtype = i == 1 ? SL_DTYPE_F32 : SL_DTYPE_BF16;
        spec.seed = static_cast<uint64_t>(i);
        must(sl_synth_lora_write(m, &spec, (folder + "/a" + std::to_string(i)).c_str(), &err),
             &err);
    }
    sl_model_close(m);
    sl_ckpt_close(ckpt);
}

static struct sl_engine *start(const char *device, int32_t max_seqs, int32_t max_loras)
{
    struct sl_error err = {};
    struct sl_engine_config cfg = {};
    struct sl_engine *eng = nullptr;
    const std::string path = folder + "/model";
    cfg.model = path.c_str();
    cfg.device = device;
    cfg.kv_cache_bytes = 1 << 20;
    cfg.max_model_len = 64;
    cfg.max_num_seqs = max_seqs;
    cfg.max_num_batched_tokens = 64;
    cfg.enable_lora = true;
    cfg.max_loras = max_loras;
    cfg.max_cpu_loras = N_ADAPTERS;
    cfg.no_prefix_caching = true;
    must(sl_engine_create(&cfg, &eng, &err), &err);
    for (int i = 0; i < N_ADAPTERS; i++) {
        const std::string name = "a" + std::to_string(i);
        must(sl_adapter_load(eng, name.c_str(), (folder + "/" + name).c_str(), false, &err), &err);
    }
    return eng;
}

static struct sl_request *submit(struct sl_engine *eng, int r)
{
    struct sl_error err = {};
    struct sl_request *req = nullptr;
    struct sl_request_desc desc = {};
    int32_t ids[N_PROMPT];
    const int adapter = r % (N_ADAPTERS + 1);
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = (r * 37 + i * 11) % 256;
    desc.prompt = ids;
    desc.n_prompt = N_PROMPT - r % 3;
    desc.adapter_scale = 1;
    sl_sampling_default(&desc.sampling);
    desc.sampling.temperature = 0;
    desc.sampling.max_tokens = N_OUT;
    desc.sampling.ignore_eos = true;
    desc.sampling.logprobs = 0;
    if (adapter < N_ADAPTERS)
        must(sl_adapter_open(eng, ("a" + std::to_string(adapter)).c_str(), true, &desc.adapter,
                             &err),
             &err);
    must(sl_request_submit(eng, &desc, &req, &err), &err);
    sl_adapter_release(desc.adapter);
    return req;
}

static outcome collect(struct sl_request *req)
{
    struct sl_chunk chunk;
    outcome o;
    memset(&o, 0, sizeof o);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1)
            for (size_t i = 0; i < chunk.n_tokens && o.n < N_OUT; i++, o.n++) {
                o.ids[o.n] = chunk.tokens[i].id;
                o.logprobs[o.n] = chunk.tokens[i].logprob;
            }
    }
    sl_request_release(req);
    return o;
}

static std::vector<outcome> run_all(const char *device, int32_t max_seqs, int32_t max_loras)
{
    struct sl_engine *eng = start(device, max_seqs, max_loras);
    std::vector<struct sl_request *> reqs;
    std::vector<outcome> out;
    for (int r = 0; r < N_REQUESTS; r++) {
        reqs.push_back(submit(eng, r));
        if (max_seqs == 1)
            out.push_back(collect(reqs.back()));
    }
    for (int r = 0; r < N_REQUESTS && max_seqs > 1; r++)
        out.push_back(collect(reqs[static_cast<size_t>(r)]));
    sl_engine_destroy(eng);
    return out;
}

static void engines()
{
    char name[] = "/tmp/sl_cuda_lora_XXXXXX";
    folder = mkdtemp(name);
    write_models();
    const std::vector<outcome> alone = run_all("cuda", 1, 1), cpu = run_all("cpu", 8, 3);
    const std::vector<outcome> mixed = run_all("cuda", 8, 3), few = run_all("cuda", 8, 2);
    for (size_t r = 0; r < N_REQUESTS; r++) {
        CHECK(alone[r].n == N_OUT, "request %zu has %d tokens", r, alone[r].n);
        CHECK(memcmp(&alone[r], &mixed[r], sizeof mixed[r]) == 0, "request %zu in a batch", r);
        CHECK(memcmp(&alone[r], &few[r], sizeof few[r]) == 0, "request %zu with two slots", r);
        CHECK(alone[r].ids[0] != cpu[r].ids[0] ||
                  fabsf(alone[r].logprobs[0] - cpu[r].logprobs[0]) < 0.1f,
              "request %zu: %g, on the CPU %g", r, static_cast<double>(alone[r].logprobs[0]),
              static_cast<double>(cpu[r].logprobs[0]));
    }
    size_t n_same = 0;
    for (size_t r = 0; r < N_REQUESTS; r++)
        n_same += alone[r].ids[0] == cpu[r].ids[0];
    CHECK(n_same >= N_REQUESTS - 1, "%zu of %d first tokens are the CPU's", n_same, N_REQUESTS);
    if (system(("rm -rf " + folder).c_str()) != 0)
        printf("%s stays\n", folder.c_str());
}

int main(int argc, char **argv)
{
    rng.seed = argc > 1 ? static_cast<uint64_t>(atoi(argv[1])) : 3;
    memset(&cu, 0, sizeof cu);
    cu.n_sms = 6;
    cu.smem_max = 232448;
    cudaStreamCreate(&cu.stream);
    kernel_case({256, {8, 16, 1}, {64, 32, 40}, false}, 21);
    kernel_case({2176, {5, 0, 33}, {48}, false}, 70); /* three groups of columns, the last short */
    kernel_case({1100, {3, 256, 16}, {17, 130}, false}, 9); /* no vectors */
    kernel_case({1280, {16, 20, 40}, {72, 72}, true}, 19);
    kernel_case({264, {16, 3, 18}, {1048, 24}, false}, 280); /* rows that share blocks */
    kernel_case({40, {16, 3, 18}, {36, 36}, true}, 290);
    CHECK(cu.error == cudaSuccess, "%s", cu.error_what);
    cudaStreamDestroy(cu.stream);
    engines();
    printf("test_lora: %ld checks, %d failures\n", n_checks, n_failures);
    return n_failures != 0;
}
