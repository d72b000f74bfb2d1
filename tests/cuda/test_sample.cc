/* SPDX-License-Identifier: MIT
 * The sampler of src/cuda against the engine's own: the same tokens, the same bits of log
 * probabilities, for rows and parameters of every kind. Runs in the simulator or on a GPU.
 */
extern "C" {
#include "base/rng.h"
#include "engine/sample.h"
}
#include "cuda/device.h"
#include "cuda/sample/sample_scratch.cuh"
#include "engine/sample_exp.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

static int n_failures;
static long n_checked[9];

#define CHECK(cond, ...)                                      \
    do {                                                      \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

static struct sl_rng rng;

static uint64_t below(uint64_t n)
{
    return sl_rng_below(&rng, n);
}
static float unit()
{
    return (float)sl_rng_unit(sl_rng_next(&rng));
}
static bool one_in(uint64_t n)
{
    return below(n) == 0;
}

/* Device memory of exactly this size, so that red zones are close. */
template <typename T> struct dev {
    T *p = nullptr;
    size_t n = 0;
    explicit dev(size_t n_) : n(n_)
    {
        size_t n_bytes = (n > 0 ? n : 1) * sizeof(T);
        if (cudaMalloc((void **)&p, n_bytes) != cudaSuccess ||
            cudaMemset(p, 0xFF, n_bytes) != cudaSuccess) /* results may have gaps */
            exit(2);
    }
    explicit dev(const std::vector<T> &v) : dev(v.size())
    {
        cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice);
        cudaDeviceSynchronize(); /* it may still be on its way, and the stream does not wait */
    }
    dev(const dev &) = delete;
    ~dev()
    {
        cudaFree(p);
    }
    std::vector<T> get() const
    {
        std::vector<T> v(n);
        cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
        return v;
    }
};

static struct sl_cuda cu;

/* ------------------------------------------------------------------ cases */

struct one {
    std::vector<float> row;
    struct sl_sampling s = {};
    uint64_t seed = 0, pos = 0;
    std::vector<struct sl_logit_bias> bias;
    std::vector<int32_t> banned[2];
    std::vector<uint32_t> allowed;
    std::vector<int32_t> dense; /* counts; empty: none */
    std::vector<int32_t> ahead; /* of tokens that they do not have */
    bool held = false;
    int32_t n_top = -1;
    bool padding = false;
};

static void fill_row(std::vector<float> &x, int kind)
{
    static const float few[] = {-2.0f, -1.0f, 0.0f, -0.0f, 1.0f, 1.5f};
    float width = kind == 0 ? 0.01f : kind == 1 ? 1.0f : kind == 2 ? 3.0f : 30.0f;
    for (float &v : x)
        v = (float)sl_rng_normal(&rng) * width;
    size_t n = x.size();
    switch (kind) {
    case 4: /* ties */
        for (float &v : x)
            v = few[below(6)];
        break;
    case 5: /* flat */
        std::fill(x.begin(), x.end(), few[below(6)]);
        break;
    case 6: /* one-hot */
        std::fill(x.begin(), x.end(), one_in(2) ? -INFINITY : -3e38f);
        x[below(n)] = 1.0f;
        break;
    case 7: /* many -infinity */
        for (float &v : x)
            v = one_in(50) ? v : -INFINITY;
        break;
    case 8: /* as a language model's: a bulk and some peaks */
        for (float &v : x)
            v *= 0.07f;
        for (int i = 0; i < 40; i++)
            x[below(n)] += 20.0f * unit();
        break;
    case 9: /* the ends of the range */
        for (float &v : x)
            v = one_in(3) ? FLT_MAX : one_in(2) ? -FLT_MAX : 1e-45f;
        break;
    case 10: /* around the floor of exp */
        for (float &v : x)
            v = -87.0f + 1e-5f * (float)((int)below(9) - 4);
        x[below(n)] = 0.0f;
        break;
    case 11: /* sorted: each is better than all before */
        std::sort(x.begin(), x.end());
        break;
    case 12: /* nothing */
        std::fill(x.begin(), x.end(), -INFINITY);
        break;
    case 13:
        x[below(n)] = one_in(2) ? NAN : INFINITY;
        break;
    case 14: /* equal ones among lower */
        for (float &v : x)
            v = one_in(20) ? 5.0f : -5.0f + unit();
        break;
    case 15: /* most at the floor of min_p = 0.5 */
        for (float &v : x)
            v = -0.6931f + 0.003f * (float)sl_rng_normal(&rng);
        x[below(n)] = 0.0f;
        break;
    default:
        break;
    }
}

static void fill_filters(struct sl_sampling *s, int32_t v)
{
    static const float temps[] = {0.0f, 9e-6f, 1e-5f, 0.5f, 1.0f, 1.0f, 1.0f, 2.0f, 1e4f, 3e38f};
    static const float ps[] = {0.999999f, 0.95f, 0.9f, 0.5f, 1e-6f};
    static const float mins[] = {1e-38f, 1e-5f, 0.05f, 0.5f, 1.0f};
    const int32_t ks[] = {-1, 1, 2, 50, 1000, 1024, 1025, v - 1, v, INT32_MAX};
    *s = {};
    s->temperature = one_in(4) ? 2.0f * unit() : temps[below(10)];
    s->top_p = one_in(2) ? 1.0f : one_in(2) ? ps[below(5)] : 1.0f - unit();
    s->min_p = one_in(2) ? 0.0f : one_in(2) ? mins[below(5)] : unit();
    s->top_k = one_in(2) ? 0 : one_in(2) ? ks[below(10)] : 1 + (int32_t)below((uint64_t)v);
    s->repetition_penalty = 1.0f;
}

static void fill_changes(struct one *o, int32_t v)
{
    uint64_t n = (uint64_t)v;
    if (one_in(4))
        for (uint64_t i = 0, k = below(300); i < k; i++)
            o->bias.push_back(
                {(int32_t)below(one_in(2) ? n : n / 10 + 1), 200.0f * unit() - 100.0f});
    for (int l = 0; l < 2; l++)
        if (one_in(4))
            for (uint64_t i = 0, k = below(20); i < k; i++)
                o->banned[l].push_back((int32_t)below(n));
    if (one_in(6)) {
        uint64_t of = one_in(3) ? n + 1 : 1 + below(20); /* how rare a token that is allowed */
        o->allowed.assign((n + 31) / 32, 0);
        for (uint64_t i = 0; i < n; i++)
            if (one_in(of))
                o->allowed[i / 32] |= 1u << i % 32;
        o->allowed.back() |= n % 32 != 0 ? ~0u << n % 32 : 0; /* bits behind the end say nothing */
    }
    if (one_in(4)) {
        o->dense.assign(n, 0);
        for (uint64_t i = 0, k = below(2 * n < 400 ? 2 * n : 400); i < k; i++)
            o->dense[below(n)] = sl_sample_count(one_in(2), (int32_t)below(5));
        o->s.repetition_penalty = one_in(4) ? 1e-38f : 0.5f + unit();
        o->s.presence_penalty = 4.0f * unit() - 2.0f;
        o->s.frequency_penalty = 4.0f * unit() - 2.0f;
        o->held = one_in(3);
        if (one_in(2)) /* the same token several times */
            for (uint64_t i = 0, k = below(40); i < k; i++)
                o->ahead.push_back((int32_t)below(one_in(2) ? n : n / 20 + 1));
    }
}

static struct one random_one(int32_t v)
{
    struct one o;
    o.row.resize((size_t)v);
    fill_row(o.row, (int)below(17));
    fill_filters(&o.s, v);
    if (one_in(2))
        fill_changes(&o, v);
    o.seed = sl_rng_next(&rng);
    o.pos = below(100000);
    if (one_in(2))
        o.n_top = (int32_t)below((uint64_t)std::min(v, SL_SAMPLE_MAX_TOP) + 1);
    o.padding = one_in(30);
    return o;
}

/* ------------------------------------------------------------------ the engine's answer */

static int32_t engine_id(const struct one &o, struct sl_sampler *w)
{
    int32_t v = (int32_t)o.row.size();
    std::vector<int32_t> banned = o.banned[1];
    for (int32_t i = 0; i < v && !o.allowed.empty(); i++)
        if ((o.allowed[(size_t)i / 32] >> i % 32 & 1) == 0)
            banned.push_back(i);
    const uint32_t n_slots = sl_counts_slots((int64_t)o.dense.size(), v);
    std::vector<struct sl_count> entries(n_slots / 2 + 1);
    std::vector<int32_t> slots(n_slots);
    struct sl_counts counts = {};
    sl_counts_init(&counts, entries.data(), slots.data(), n_slots);
    for (int32_t i = 0; i < (int32_t)o.dense.size(); i++)
        if (o.dense[(size_t)i] != 0)
            sl_counts_add(&counts, i, o.dense[(size_t)i] >> 1);
    struct sl_sampling s = o.s;
    s.logit_bias = o.bias.data();
    s.n_logit_bias = (int32_t)o.bias.size();
    struct sl_sample_args a = {};
    a.logits = o.row.data();
    a.sampling = &s;
    a.seed = o.seed;
    a.pos = o.pos;
    a.counts = o.dense.empty() ? NULL : &counts;
    a.ahead = o.ahead.data();
    a.n_ahead = (int32_t)o.ahead.size();
    a.banned[0] = o.banned[0].data();
    a.banned[1] = banned.data();
    a.n_banned[0] = (int32_t)o.banned[0].size();
    a.n_banned[1] = (int32_t)banned.size();
    return sl_sample(w, &a);
}

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void compare(const struct one &o, int32_t want, int32_t id,
                    const struct sl_sample_result *res, const char *where)
{
    int32_t v = (int32_t)o.row.size();
    n_checked[0]++;
    n_checked[1] += want >= 0 && o.s.temperature >= SL_GREEDY_BELOW && !o.padding;
    n_checked[2] += want < 0;
    CHECK(id == want, "%s: id %d, the engine's %d (v %d, T %g, k %d, p %g, min_p %g)", where, id,
          want, v, (double)o.s.temperature, o.s.top_k, (double)o.s.top_p, (double)o.s.min_p);
    if (o.n_top < 0 || o.padding)
        return;
    CHECK(res->id == want, "%s: reported id %d, not %d", where, res->id, want);
    if (want < 0 || id != want)
        return;
    struct sl_logprob lp;
    struct sl_top_logprob top[SL_SAMPLE_MAX_TOP];
    bool ok = sl_logprobs(o.row.data(), v, want, o.n_top, &lp, top);
    CHECK(ok, "%s: log probabilities of a valid row", where);
    n_checked[3]++;
    CHECK(same_bits(sl_sample_logprob(res, res->logit), lp.logprob), "%s: logprob %.9g, not %.9g",
          where, (double)sl_sample_logprob(res, res->logit), (double)lp.logprob);
    int32_t n_before;
    double sum = (double)sl_row_kernels()->logprob(o.row.data(), v, res->max, want, &n_before);
    CHECK(sum * 0x1p-41 == res->sum, "%s: sum %.17g, not %.17g", where, res->sum, sum * 0x1p-41);
    CHECK(res->n_before + 1 == lp.rank, "%s: rank %d, not %d", where, res->n_before + 1, lp.rank);
    for (int i = 0; i < o.n_top; i++) {
        CHECK(res->top_id[i] == top[i].id, "%s: top %d is %d, not %d", where, i, res->top_id[i],
              top[i].id);
        CHECK(same_bits(sl_sample_logprob(res, res->top_logit[i]), top[i].logprob), "%s: top %d",
              where, i);
    }
}

/* ------------------------------------------------------------------ the numbers behind a draw */

/* Two sums that differ in their last bit choose the same token nearly always, so what the filters
 * keep is compared too, with a sort of all tokens. */

static std::vector<float> changed(const struct one &o)
{
    std::vector<float> x = o.row;
    for (int l = 0; l < 2; l++)
        for (int32_t id : o.banned[l])
            x[(size_t)id] = -INFINITY;
    for (size_t i = 0; i < x.size() && !o.allowed.empty(); i++)
        if ((o.allowed[i / 32] >> i % 32 & 1) == 0)
            x[i] = -INFINITY;
    for (const struct sl_logit_bias &b : o.bias)
        x[(size_t)b.id] += b.bias;
    for (size_t i = 0; i < o.dense.size(); i++) {
        int32_t n_out = o.dense[i] >> 1;
        n_out += (int32_t)std::count(o.ahead.begin(), o.ahead.end(), (int32_t)i);
        if (o.dense[i] == 0 && n_out == 0)
            continue;
        float rep = o.s.repetition_penalty;
        x[i] = x[i] > 0.0f ? x[i] / rep : x[i] * rep;
        if (n_out > 0) {
            x[i] -= o.s.frequency_penalty * (float)n_out;
            x[i] -= o.s.presence_penalty;
        }
        x[i] = x[i] < FLT_MAX ? x[i] : FLT_MAX;
    }
    return x;
}

struct in_order {
    float p;
    int32_t id;
    bool operator<(const in_order &o) const
    {
        return p != o.p ? p > o.p : id < o.id;
    }
};

/* The filters of a valid row that draws: how many tokens are kept, and what they weigh. */
static void filtered_numbers(const std::vector<float> &x, const struct sl_sampling &s,
                             uint64_t *kept, int32_t *n_kept)
{
    int32_t v = (int32_t)x.size(), k = s.top_k > 0 && s.top_k < v ? s.top_k : v;
    float inv_t = 1.0f / s.temperature, floor = sl_sample_floor(s.min_p);
    float max = *std::max_element(x.begin(), x.end());
    std::vector<in_order> c;
    for (int32_t i = 0; i < v; i++) {
        float y = (x[(size_t)i] - max) * inv_t, p = sl_exp_neg(y);
        if (y >= floor && sl_weight(p) > 0)
            c.push_back({p, i});
    }
    std::sort(c.begin(), c.end());
    if (c.size() > (size_t)k)
        c.resize((size_t)k);
    uint64_t total = 0;
    for (const in_order &e : c)
        total += sl_weight(e.p);
    *kept = 0;
    *n_kept = 0;
    for (const in_order &e : c) {
        /* 24 + 63 bits */
        long double share = (long double)*kept, least = (long double)s.top_p * (long double)total;
        if (s.top_p < 1.0f && *n_kept > 0 && share >= least)
            break;
        *kept += sl_weight(e.p);
        ++*n_kept;
    }
}

static void compare_numbers(const struct one &o, const struct sl_st_state &st, const char *where)
{
    std::vector<float> x = changed(o);
    const struct sl_sampling &s = o.s;
    float max = *std::max_element(x.begin(), x.end()), inv_t = 1.0f / s.temperature;
    uint64_t kept, got_kept = 0;
    int32_t n_kept, got_n = 0;
    filtered_numbers(x, s, &kept, &n_kept);
    for (int32_t i = 0; i < (int32_t)x.size(); i++) {
        float y = (x[(size_t)i] - max) * inv_t, p = sl_exp_neg(y);
        uint32_t bits;
        memcpy(&bits, &p, sizeof bits);
        uint32_t key = 0x3FFFFFFFu - bits;
        if (!(y >= sl_sample_floor(s.min_p)) || sl_weight(p) == 0 || key > st.key ||
            (key == st.key && i > st.id))
            continue;
        got_n++;
        got_kept += sl_weight(p);
    }
    n_checked[5]++;
    n_checked[6] += n_kept < (int32_t)x.size();
    n_checked[7] += st.id != INT32_MAX;
    CHECK(got_n == n_kept && got_kept == kept, "%s: kept %d, %llu, not %d, %llu", where, got_n,
          (unsigned long long)got_kept, n_kept, (unsigned long long)kept);
    CHECK(st.mass == kept, "%s: mass %llu, not %llu", where, (unsigned long long)st.mass,
          (unsigned long long)kept);
}

/* ------------------------------------------------------------------ the device's answer */

static bool lower_id(const struct sl_sample_bias &a, const struct sl_sample_bias &b)
{
    return a.id < b.id;
}

struct on_device { /* the arrays of one row */
    dev<struct sl_sample_bias> bias;
    dev<int32_t> banned0, banned1, counts, ahead;
    dev<uint32_t> allowed;

    static std::vector<struct sl_sample_bias> sorted(const struct one &o)
    {
        std::vector<struct sl_sample_bias> b;
        for (const struct sl_logit_bias &e : o.bias)
            b.push_back({e.id, e.bias});
        std::stable_sort(b.begin(), b.end(), lower_id);
        return b;
    }
    explicit on_device(const struct one &o)
        : bias(sorted(o)), banned0(o.banned[0]), banned1(o.banned[1]), counts(o.dense),
          ahead(o.ahead), allowed(o.allowed)
    {
    }
    struct sl_sample_row row(const struct one &o) const
    {
        struct sl_sample_row r = {};
        r.seed = o.seed;
        r.pos = o.pos;
        r.allowed = o.allowed.empty() ? NULL : allowed.p;
        r.counts = o.dense.empty() ? NULL : counts.p;
        r.bias = bias.p;
        r.banned[0] = banned0.p;
        r.banned[1] = banned1.p;
        r.n_bias = (int32_t)bias.n;
        r.n_banned[0] = (int32_t)banned0.n;
        r.n_banned[1] = (int32_t)banned1.n;
        r.temperature = o.s.temperature;
        r.top_k = o.s.top_k;
        r.top_p = o.s.top_p;
        r.min_p = o.s.min_p;
        r.floor = sl_sample_floor(o.s.min_p);
        r.repetition_penalty = o.s.repetition_penalty;
        r.frequency_penalty = o.s.frequency_penalty;
        r.presence_penalty = o.s.presence_penalty;
        r.n_top = o.n_top;
        r.padding = o.padding;
        r.ahead = ahead.p;
        r.n_ahead = (int32_t)ahead.n;
        r.held = o.held;
        return r;
    }
};

#define MAX_N  12
#define MAX_V  131072
#define HUGE_V 800000 /* rows that shared memory cannot hold */
static void *scratch;

/* Rows of one width, at once on the device. */
static void run(const std::vector<struct one> &cases, int32_t gap, const char *where)
{
    size_t n = cases.size(), v = cases[0].row.size(), ld = v + (size_t)gap;
    std::vector<float> logits(ld * (n - 1) + v, NAN); /* gaps must not be read as logits */
    std::vector<struct sl_sample_row> rows;
    std::vector<on_device *> arrays;
    bool draws = false, report = false;
    for (size_t i = 0; i < n; i++) {
        std::copy(cases[i].row.begin(), cases[i].row.end(), logits.begin() + (long)(i * ld));
        arrays.push_back(new on_device(cases[i]));
        rows.push_back(arrays[i]->row(cases[i]));
        draws |= sl_sample_draws(&rows[i]);
        report |= cases[i].n_top >= 0;
    }
    dev<float> d_logits(logits);
    dev<struct sl_sample_row> d_rows(rows);
    dev<int32_t> ids(std::vector<int32_t>(n, 77));
    dev<struct sl_sample_result> results(n);
    struct sl_op_sample op = {};
    op.logits = d_logits.p;
    op.ld = (int64_t)ld;
    op.n = (int32_t)n;
    op.n_vocab = (int32_t)v;
    op.rows = d_rows.p;
    op.ids = ids.p;
    op.results = report ? results.p : NULL;
    op.scratch = scratch;
    op.max_n = MAX_N;
    op.draws = draws;
    sl_cuda_sample(&cu.base, &op);
    cudaStreamSynchronize(cu.stream);
    CHECK(cu.error == cudaSuccess, "%s: %s", where, cu.error_what);
    std::vector<int32_t> got = ids.get();
    std::vector<struct sl_sample_result> res = results.get();
    struct sl_st_args in = {};
    in.op = op;
    sl_st_lay_out(&in);
    std::vector<struct sl_st_state> state(n);
    cudaMemcpy(state.data(), in.state, n * sizeof state[0], cudaMemcpyDeviceToHost);
    struct sl_sampler w;
    if (sl_sampler_init(&w, (int32_t)v, NULL) != 0)
        exit(2);
    for (size_t i = 0; i < n; i++) {
        int32_t want = cases[i].padding ? 0 : engine_id(cases[i], &w);
        compare(cases[i], want, got[i], &res[i], where);
        if (want >= 0 && sl_sample_draws(&rows[i]))
            compare_numbers(cases[i], state[i], where);
        n_checked[8] += n >= SL_ST_FEW_ROWS && state[i].open == 0 && sl_sample_draws(&rows[i]);
        CHECK(state[i].n_arrived == 0, "%s: the counter is not back at 0", where);
        if (!cases[i].dense.empty()) {
            std::vector<int32_t> counts = cases[i].dense;
            if (!cases[i].padding && !cases[i].held)
                for (int32_t id : cases[i].ahead)
                    counts[(size_t)id] += 2;
            if (want >= 0 && !cases[i].padding && !cases[i].held)
                counts[(size_t)want] += 2;
            CHECK(arrays[i]->counts.get() == counts, "%s: counts", where);
            n_checked[4]++;
        }
        delete arrays[i];
    }
    sl_sampler_deinit(&w);
}

/* ------------------------------------------------------------------ tests */

static void random_cases(int n_runs)
{
    static const int32_t widths[] = {1,   2,    5,    31,   100,  255,  256,  257,
                                     300, 1000, 2047, 2048, 2049, 4100, 6000, 9001};
    static const int sms[] = {1, 6, 132};
    for (int i = 0; i < n_runs; i++) {
        char where[64];
        snprintf(where, sizeof where, "run %d", i);
        int32_t v = one_in(3) ? 1 + (int32_t)below(5000) : widths[below(16)];
        cu.n_sms = sms[below(3)];
        std::vector<struct one> cases;
        for (uint64_t k = 0, n = one_in(2) ? 1 : 1 + below(MAX_N); k < n; k++)
            cases.push_back(random_one(v));
        run(cases, one_in(2) ? 0 : (int32_t)below(9), where);
    }
}

/* Rows as wide as vocabularies are; every way through the last stage. */
static void wide_rows(int n_runs)
{
    static const int32_t widths[] = {32000, 50257, 128256, MAX_V};
    for (int i = 0; i < n_runs; i++) {
        char where[64];
        snprintf(where, sizeof where, "wide run %d", i);
        cu.n_sms = one_in(2) ? 132 : 1;
        struct one o = random_one(widths[i % 4]);
        static const int kinds[] = {2, 8, 1, 4, 0, 11};
        fill_row(o.row, kinds[below(6)]);
        o.s.temperature = 1.0f;
        o.padding = false;
        switch (i % 6) {
        case 0:
            o.s.top_k = 0, o.s.top_p = 1.0f, o.s.min_p = 0.0f;
            break;
        case 1:
            o.s.top_k = 50, o.s.top_p = 0.9f, o.s.min_p = 0.0f;
            break;
        case 2:
            o.s.top_k = 0, o.s.top_p = 0.9f, o.s.min_p = 0.0f;
            break;
        case 3:
            o.s.top_k = 0, o.s.top_p = 1.0f, o.s.min_p = 0.01f;
            break;
        case 4:
            o.s.top_k = 3000;
            break;
        default:
            o.s.temperature = 0.0f;
        }
        run({o}, 0, where);
    }
}

/* Draws that need every position of a distribution: a uniform row without filter and with ones that
 * keep all of it; each must give every token the engine gives. */
static void many_draws(int n_runs)
{
    cu.n_sms = 6;
    for (int c = 0; c < 6; c++) {
        std::vector<struct one> cases;
        struct one o;
        int32_t v = c < 3 ? 700 : 3000;
        o.row.resize((size_t)v);
        fill_row(o.row, c % 3 == 0 ? 5 : 1);
        o.s.temperature = 1.0f;
        o.s.repetition_penalty = 1.0f;
        o.s.top_p = c % 3 == 1 ? 0.99f : 1.0f;
        o.s.min_p = c % 3 == 2 ? 1e-6f : 0.0f;
        for (int i = 0; i < n_runs * MAX_N; i++) {
            o.pos = (uint64_t)i;
            cases.push_back(o);
            if (cases.size() == MAX_N) {
                run(cases, 1, "many draws");
                cases.clear();
            }
        }
    }
}

/* Many tokens kept, tied or not, at the borders of steps, warps and blocks. */
static void borders(int n_runs)
{
    cu.n_sms = 6;
    static const int32_t widths[] = {127, 128, 129, 1024, 1025, 2048, 2049, 4096, 4097, 10000};
    for (int i = 0; i < n_runs; i++) {
        struct one o;
        int32_t v = widths[i % 10];
        o.row.resize((size_t)v);
        fill_row(o.row, i % 3 == 0 ? 5 : i % 3 == 1 ? 0 : 14);
        o.s.temperature = 1.0f;
        o.s.repetition_penalty = 1.0f;
        o.s.top_p = i % 4 == 0 ? 0.999f : i % 4 == 1 ? 0.6f : 1.0f;
        o.s.min_p = i % 4 == 2 ? 1e-5f : 0.0f;
        o.s.top_k = i % 4 == 3 ? v - 1 : 0;
        o.seed = (uint64_t)i;
        if (i == 4 || i == 14) {
            fill_row(o.row, 15);
            o.s.min_p = 0.5f;
        }
        run({o}, 0, "borders");
    }
}

/* top_p exactly at the end of a token, and one step to each side of that, among equal tokens. */
static void exact_ends()
{
    cu.n_sms = 6;
    for (int i = 0; i < 30; i++) {
        struct one o;
        int32_t v = i % 2 ? 4096 : 64, kept = (i % 5 + 1) * v / 8;
        o.row.assign((size_t)v, 1.0f);
        o.s.temperature = i % 3 ? 1.0f : 3e38f; /* all become equal */
        if (i % 3 == 0)
            fill_row(o.row, 3);
        o.s.repetition_penalty = 1.0f;
        float p = (float)kept / (float)v;
        o.s.top_p = i % 6 < 2 ? p : i % 6 < 4 ? nextafterf(p, 1.0f) : nextafterf(p, 0.0f);
        o.seed = (uint64_t)i;
        run({o}, 0, "exact ends");
    }
}

/* The share of top_p lies a fraction of one above the weight of the first token, so that only
 * rounding it up keeps the second: (2^41 + x) (1 - 2^-24) = 2^41 + 0.99 for x = 2^17 + 1. */
static void share_is_rounded_up()
{
    float y = -16.6f;
    while (sl_weight(sl_exp_neg(y)) > (1u << 17) + 1)
        y = nextafterf(y, -17.0f);
    CHECK(sl_weight(sl_exp_neg(y)) == (1u << 17) + 1, "no token of this weight");
    struct one o;
    o.row = {0.0f, y};
    o.s.temperature = o.s.repetition_penalty = 1.0f;
    o.s.top_p = 1.0f - 0x1p-24f;
    run({o}, 0, "rounded up");
}

/* One token left, by masks, bans, -infinity or the temperature. */
static void one_left()
{
    cu.n_sms = 6;
    for (int i = 0; i < 24; i++) {
        struct one o;
        int32_t v = i % 2 ? 5000 : 300, last = (int32_t)below((uint64_t)v);
        o.row.resize((size_t)v);
        fill_row(o.row, 1);
        fill_filters(&o.s, v);
        o.s.temperature = i % 4 == 3 ? 1e-5f : 1.0f;
        if (i % 4 == 0) {
            o.allowed.assign((size_t)(v + 31) / 32, 0);
            o.allowed[(size_t)last / 32] = 1u << last % 32;
        } else if (i % 4 == 1) {
            for (int32_t id = 0; id < v; id++)
                if (id != last)
                    o.banned[id % 2].push_back(id);
        } else if (i % 4 == 2) {
            std::fill(o.row.begin(), o.row.end(), -INFINITY);
            o.row[(size_t)last] = -3.0f;
        }
        o.seed = (uint64_t)i;
        o.n_top = 3;
        run({o}, 0, "one left");
    }
}

/* Rows that lie in scratch. */
static void huge_rows(int n_runs)
{
    cu.n_sms = 132;
    for (int i = 0; i < n_runs; i++) {
        struct one o;
        o.row.resize(i == 0 ? 400000 : HUGE_V - (size_t)i);
        fill_row(o.row, i == 0 ? 8 : 1);
        o.s.temperature = 1.0f;
        o.s.repetition_penalty = 1.0f;
        o.s.top_p = i == 2 ? 1.0f : 0.9f;
        o.s.top_k = i == 1 ? 300000 : 0;
        o.bias.push_back({399999, 2.0f});
        o.seed = (uint64_t)i;
        run({o}, i, "huge rows");
    }
}

static void floors()
{
    CHECK(SL_SAMPLE_FLOOR == SL_EXP_MIN, "floor");
    CHECK(SL_SAMPLE_GREEDY_BELOW == SL_GREEDY_BELOW, "greedy");
    CHECK(sl_sample_floor(0.0f) == -87.0f && sl_sample_floor(1.0f) == 0.0f, "min_p");
    CHECK(sl_sample_floor(1e-38f) == -87.0f && sl_sample_floor(0.5f) == logf(0.5f), "min_p");
}

/* How many cases in percent of the usual, seed. */
int main(int argc, char **argv)
{
    int percent = argc > 1 ? atoi(argv[1]) : 100;
    rng.seed = argc > 2 ? (uint64_t)atoi(argv[2]) : 5;
    memset(&cu, 0, sizeof cu);
    cu.smem_max = 232448;
    cudaStreamCreate(&cu.stream);
    size_t room = sl_cuda_sample_scratch(MAX_N, HUGE_V);
    if (cudaMalloc(&scratch, room) != cudaSuccess || cudaMemset(scratch, 0, room) != cudaSuccess)
        return 2;
    floors();
    borders(40 * percent / 100);
    exact_ends();
    share_is_rounded_up();
    one_left();
    random_cases(2 * percent);
    many_draws((10 * percent + 99) / 100);
    wide_rows((12 * percent + 99) / 100);
    huge_rows(3 * SL_MIN(percent, 100) / 100);
    cudaFree(scratch);
    cudaStreamDestroy(cu.stream);
    printf("test_sample: %ld rows, %ld drawn (%ld with checked sums, %ld filtered, %ld of them "
           "between equal tokens; %ld from lists), %ld refused, %ld with logprobs, %ld with "
           "counts\n",
           n_checked[0], n_checked[1], n_checked[5], n_checked[6], n_checked[7], n_checked[8],
           n_checked[2], n_checked[3], n_checked[4]);
    CHECK(n_checked[8] > percent / 4, "few rows were chosen from lists");
    printf("%d failures\n", n_failures);
    return n_failures != 0;
}
