/* SPDX-License-Identifier: MIT
 * Layers with a recurrent state on a GPU: convolutions, the gated delta rule, state space models,
 * linear recurrent units, RWKV-7 and the norm behind. Outputs and states are those of the CPU's
 * plain C within what the order of sums costs, and have the same bits however texts are cut into
 * spans, whoever else is in a step, and whichever blocks have a page. Runs in the simulator or on a
 * GPU.
 */
extern "C" {
#include "base/rng.h"
#include "cpu/cpu.h"
#include "quant/float.h"
}
#include "cuda/device.h"
#include "cuda/state/state.cuh"

#include <cuda_bf16.h>

#include <algorithm>
#include <functional>
#include <math.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

#include "device_array.h"

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

static int n_failures;
static long n_checks;
static struct sl_rng rng;
static struct sl_cuda cu;
static struct sl_backend *cpu;

#define CHECK(cond, ...)                                      \
    do {                                                      \
        n_checks++;                                           \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

typedef std::vector<float> floats;

static int32_t below(int32_t n)
{
    return static_cast<int32_t>(sl_rng_below(&rng, static_cast<uint64_t>(n)));
}

static floats random_floats(size_t n, float low, float high)
{
    floats v(n);
    for (float &f : v)
        f = low + (high - low) * static_cast<float>(below(100001)) / 100000.0f;
    return v;
}

/* What is constant in an operation, where both backends can read it. */
struct constant {
    floats host;
    dev<float> device;
    explicit constant(const floats &v) : host(v), device(v)
    {
    }
    const float *at(bool gpu) const
    {
        return host.empty() ? nullptr : gpu ? device.p : host.data();
    }
};

/* ------------------------------------------------------------------ an operation on sequences */

enum { MAX_INPUTS = 8 };

struct operation {
    std::string name;
    int32_t width[MAX_INPUTS]; /* values of a token's row, of each input */
    int32_t out_width;
    bool activations; /* out is in the backend's format */
    bool prepares;    /* long spans take a kernel more */
    uint64_t beside;  /* kernels that every step takes besides */
    int32_t state_floats;
    double tolerance; /* of outputs and states, where nothing is rounded to 16 bits on the GPU */
    /* The state of a GPU's page as the CPU has it, but behind 16 n tokens only: what came after
     * them is beside it. NULL: as it lies, always. */
    std::function<floats(const floats &page)> unpack;
    floats input[MAX_INPUTS]; /* of all sequences' tokens */
    std::function<void(bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                       const struct sl_state_view *state, void *out)>
        call;
};

enum { N_SEQS = 4, N_TOKENS = 112, MAX_DRAFTS = 12 };
static const int32_t seq_len[N_SEQS] = {70, 33, 8, 1}, seq_first[N_SEQS] = {0, 70, 103, 111};

struct piece { /* of its tokens the last n_drafts are drafts, of which the first n_right are right
                */
    int32_t seq, from, n, n_drafts, n_right;
};
typedef std::vector<std::vector<piece>> plan; /* steps */

struct result {
    floats out;                        /* [N_TOKENS, out_width] */
    std::vector<floats> block[N_SEQS]; /* state behind each complete block, and behind the end */
};

static int32_t n_blocks(int32_t n, int32_t block_size)
{
    return (n + block_size - 1) / block_size;
}

/* A pool in which nobody has every third page, and where each sequence's pages lie. */
struct pages {
    int32_t block_size, n;
    size_t page_bytes, offset;
    std::vector<int32_t> of[N_SEQS], for_drafts;

    pages(const operation &op, int32_t bs) : block_size(bs), n(0)
    {
        offset = 64;
        page_bytes = offset + (static_cast<size_t>(op.state_floats) * 4 + 63) / 64 * 64 + 64;
        std::vector<int32_t> free;
        int32_t all = 0;
        for (int32_t len : seq_len)
            all += n_blocks(len, bs);
        n = 3 * all + 2 * MAX_DRAFTS * N_SEQS + 2;
        for (int32_t i = 0; i < n; i++)
            if (i % 3 != 2)
                free.push_back(i);
        for (int32_t s = 0; s < N_SEQS; s++)
            for (int32_t b = 0; b < n_blocks(seq_len[s], bs); b++) {
                const int32_t at = below(static_cast<int32_t>(free.size()));
                of[s].push_back(free[static_cast<size_t>(at)]);
                free.erase(free.begin() + at);
            }
        for_drafts.assign(free.begin(), free.begin() + MAX_DRAFTS * N_SEQS);
    }
};

/* Pages of right drafts change places with those of the blocks that end with them. */
static void settle(pages *pg, const piece &p, size_t at)
{
    const int32_t first = p.from + p.n - p.n_drafts;
    for (int32_t i = 0; i < p.n_right; i++)
        if ((first + i + 1) % pg->block_size == 0 || i == p.n_right - 1)
            std::swap(pg->of[p.seq][static_cast<size_t>((first + i) / pg->block_size)],
                      pg->for_drafts[at + static_cast<size_t>(i)]);
}

/* sparse: blocks in the middle of a piece have no page. n_pad: spans at position 0 without one. */
static void run_step(const operation &op, pages *pages_of, const std::vector<piece> &step, bool gpu,
                     bool sparse, int32_t n_pad, uint8_t *pool, floats *out)
{
    const pages &pg = *pages_of;
    size_t n_drafts = 0;
    std::vector<struct sl_span> spans;
    std::vector<int32_t> table;
    floats in[MAX_INPUTS];
    int32_t n = 0;
    for (const piece &p : step) {
        spans.push_back({n, p.n, p.from, static_cast<int32_t>(table.size()), p.n_drafts});
        for (int32_t b = 0; b < n_blocks(p.from + p.n, pg.block_size); b++) {
            const bool first = b == (p.from - 1) / pg.block_size && p.from > 0;
            const bool last = b == (p.from + p.n - p.n_drafts - 1) / pg.block_size;
            table.push_back(sparse && !first && !last ? -1 : pg.of[p.seq][static_cast<size_t>(b)]);
        }
        for (int32_t i = 0; i < p.n_drafts; i++)
            table.push_back(pg.for_drafts[n_drafts++]);
        for (int i = 0; i < MAX_INPUTS; i++) {
            const auto from =
                op.input[i].begin() + static_cast<long>(op.width[i]) * (seq_first[p.seq] + p.from);
            in[i].insert(in[i].end(), from, from + static_cast<long>(op.width[i]) * p.n);
        }
        n += p.n;
    }
    const int32_t n_real = n;
    for (int32_t i = 0; i < n_pad; i++, n++) {
        spans.push_back({n, 1, 0, static_cast<int32_t>(table.size()), 0});
        for (int k = 0; k < MAX_INPUTS; k++)
            in[k].resize(in[k].size() + static_cast<size_t>(op.width[k]), 0.5f);
    }
    table.push_back(-1);
    const size_t n_out = static_cast<size_t>(n) * static_cast<size_t>(op.out_width);
    const bool half = gpu && op.activations;
    struct sl_batch b = {};
    b.n_tokens = n, b.n_spans = static_cast<int32_t>(spans.size()), b.n_tables = 1;
    b.spans = spans.data(), b.block_tables = table.data();
    if (n % 2 == 0)
        b.span_sizes = sl_batch_sizes_of(b.spans, b.n_spans);
    if (n % 4 == 0)
        b.n_long = sl_batch_n_long(b.spans, b.n_spans);
    struct sl_state_view view = {pool, pg.page_bytes, pg.offset, pg.block_size, 0};
    floats got(n_out);
    if (!gpu) {
        float *at[MAX_INPUTS];
        for (int i = 0; i < MAX_INPUTS; i++)
            at[i] = in[i].data();
        op.call(false, &b, at, &view, got.data());
    } else {
        dev<struct sl_span> d_spans(spans);
        dev<int32_t> d_table(table);
        std::vector<std::unique_ptr<dev<float>>> d_in;
        dev<float> d_out(half ? (n_out + 1) / 2 : n_out);
        b.spans = d_spans.p, b.block_tables = d_table.p;
        float *at[MAX_INPUTS];
        for (int i = 0; i < MAX_INPUTS; i++) {
            d_in.push_back(std::make_unique<dev<float>>(in[i]));
            at[i] = d_in.back()->p;
        }
#ifdef SL_CUDA_SIM
        const uint64_t before = sl_sim_get_counts().kernels;
#endif
        op.call(true, &b, at, &view, d_out.p);
#ifdef SL_CUDA_SIM /* spans of few tokens alone, or of many, are one kernel's */
        const uint64_t few = (2u << SL_STATE_FEW) - 1;
        const bool alike = b.span_sizes != 0 && ((b.span_sizes & few) == 0 || b.span_sizes <= few);
        const bool many = b.span_sizes == 0 || (b.span_sizes & ~few) != 0;
        CHECK(sl_sim_get_counts().kernels - before <=
                  (alike ? 1u : 2u) + (many && op.prepares) + op.beside,
              "%s: launches", op.name.c_str());
#endif
        CHECK(cudaStreamSynchronize(cu.stream) == cudaSuccess, "%s", op.name.c_str());
        const floats raw = d_out.get();
        for (size_t i = 0; i < n_out; i++) {
            uint16_t bits;
            memcpy(&bits, reinterpret_cast<const uint8_t *>(raw.data()) + 2 * i, 2);
            got[i] = half ? sl_bf16_to_f32(bits) : raw[i];
        }
    }
    size_t from = 0;
    for (const piece &p : step) {
        const size_t len = static_cast<size_t>(p.n) * static_cast<size_t>(op.out_width);
        std::copy(got.begin() + static_cast<long>(from),
                  got.begin() + static_cast<long>(from + len),
                  out->begin() + static_cast<long>(op.out_width) * (seq_first[p.seq] + p.from));
        from += len;
    }
    CHECK(from == static_cast<size_t>(n_real) * static_cast<size_t>(op.out_width), "rows");
    n_drafts = 0;
    for (const piece &p : step) {
        settle(pages_of, p, n_drafts);
        n_drafts += static_cast<size_t>(p.n_drafts);
    }
}

static result run(const operation &op, pages pg, const plan &steps, bool gpu, bool sparse,
                  int32_t n_pad)
{
    const size_t n_bytes = pg.page_bytes * static_cast<size_t>(pg.n);
    std::vector<uint8_t> host(n_bytes, 0xFF);
    result r;
    r.out.resize(static_cast<size_t>(N_TOKENS) * static_cast<size_t>(op.out_width));
    if (gpu) {
        dev<uint8_t> pool(host);
        for (const std::vector<piece> &step : steps)
            run_step(op, &pg, step, true, sparse, n_pad, pool.p, &r.out);
        host = pool.get();
    } else {
        for (const std::vector<piece> &step : steps)
            run_step(op, &pg, step, false, sparse, n_pad, host.data(), &r.out);
    }
    std::vector<bool> owned(static_cast<size_t>(pg.n));
    for (int32_t page : pg.for_drafts)
        owned[static_cast<size_t>(page)] = true;
    for (int32_t s = 0; s < N_SEQS; s++)
        for (int32_t page : pg.of[s]) {
            owned[static_cast<size_t>(page)] = true;
            floats state(static_cast<size_t>(op.state_floats));
            memcpy(state.data(), &host[pg.page_bytes * static_cast<size_t>(page) + pg.offset],
                   state.size() * 4);
            r.block[s].push_back(gpu && op.unpack ? op.unpack(state) : state);
        }
    for (size_t i = 0; i < n_bytes; i++) { /* pages of others, and what lies around the state */
        const size_t at = i % pg.page_bytes;
        const bool inside =
            at >= pg.offset && at < pg.offset + static_cast<size_t>(op.state_floats) * 4;
        if (host[i] != 0xFF && !(inside && owned[i / pg.page_bytes])) {
            CHECK(false, "%s: byte %zu of page %zu was written", op.name.c_str(), at,
                  i / pg.page_bytes);
            break;
        }
    }
    return r;
}

/* Every sequence whole, one after the other or all at once. */
static plan whole(bool at_once)
{
    plan steps(1);
    for (int32_t s = 0; s < N_SEQS; s++) {
        if (!at_once && s > 0)
            steps.emplace_back();
        steps.back().push_back({s, 0, seq_len[s], 0, 0});
    }
    return steps;
}

/* All in pieces of 1 .. most tokens, in any order. */
static plan cut(int32_t most)
{
    plan steps;
    int32_t at[N_SEQS] = {};
    for (;;) {
        std::vector<piece> step;
        for (int32_t i = 0; i < N_SEQS; i++) {
            const int32_t s = (i + static_cast<int32_t>(steps.size())) % N_SEQS;
            const int32_t n = std::min(1 + below(most), seq_len[s] - at[s]);
            if (n > 0 && (most == 1 || below(4) > 0))
                step.push_back({s, at[s], n, 0, 0}), at[s] += n;
        }
        if (!step.empty())
            steps.push_back(step);
        else if (std::equal(at, at + N_SEQS, seq_len))
            return steps;
    }
}

/* The same, with drafts behind a few tokens of each. */
static plan drafted(int32_t most)
{
    plan steps;
    int32_t at[N_SEQS] = {};
    while (!std::equal(at, at + N_SEQS, seq_len)) {
        std::vector<piece> step;
        for (int32_t s = 0; s < N_SEQS; s++) {
            const int32_t left = seq_len[s] - at[s], own = std::min(1 + below(3), left);
            const int32_t n_drafts = left > own ? std::min(below(most + 1), left - own) : 0;
            const int32_t n_right = below(n_drafts + 1);
            if (own > 0)
                step.push_back({s, at[s], own + n_drafts, n_drafts, n_right});
            at[s] += own + n_right;
        }
        steps.push_back(step);
    }
    return steps;
}

static bool same_bits(const floats &a, const floats &b)
{
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

static void near(const operation &op, const char *what, const floats &a, const floats &want,
                 double tolerance)
{
    double most = 0, error = 0;
    for (size_t i = 0; i < std::min(a.size(), want.size()); i++) {
        most = std::max(most, fabs(static_cast<double>(want[i])));
        const double e = fabs(static_cast<double>(a[i]) - static_cast<double>(want[i]));
        error = e <= error ? error : e; /* NaN stays */
    }
    CHECK(error <= tolerance * most, "%s: %s differs by %g, of %g", op.name.c_str(), what, error,
          most);
}

static void compare(const operation &op, const pages &pg, const char *how, const result &a,
                    const result &want, bool sparse)
{
    CHECK(same_bits(a.out, want.out), "%s, %s: output", op.name.c_str(), how);
    for (int32_t s = 0; s < N_SEQS; s++)
        for (size_t b = 0; b < pg.of[s].size(); b++)
            CHECK((sparse && b + 1 < pg.of[s].size()) || same_bits(a.block[s][b], want.block[s][b]),
                  "%s, %s: state of sequence %d behind block %zu", op.name.c_str(), how, s, b);
}

static void check(const operation &op)
{
    for (int32_t block_size : {16, 32}) {
        const pages pg(op, block_size);
        const result want = run(op, pg, whole(false), true, false, 0);
        if (block_size == 16) {
            const result plain = run(op, pg, whole(true), false, false, 0);
            near(op, "output", want.out, plain.out, op.activations ? 4e-3 : op.tolerance);
            for (int32_t s = 0; s < N_SEQS; s++)
                for (size_t b = 0; b < pg.of[s].size(); b++)
                    if (!op.unpack || static_cast<int32_t>(b + 1) * 16 <= seq_len[s])
                        near(op, "state", want.block[s][b], plain.block[s][b], op.tolerance);
            compare(op, pg, "token by token", run(op, pg, cut(1), true, false, 3), want, false);
        }
        compare(op, pg, "at once", run(op, pg, whole(true), true, true, 0), want, true);
        compare(op, pg, "cut", run(op, pg, cut(40), true, false, 0), want, false);
        compare(op, pg, "cut fine", run(op, pg, cut(9), true, true, 1), want, true);
        compare(op, pg, "drafted", run(op, pg, drafted(MAX_DRAFTS), true, true, 1), want, true);
    }
}

static operation make(const std::string &name, const std::vector<int32_t> &widths, int32_t out,
                      int32_t state)
{
    operation op = {};
    op.name = name;
    std::fill(op.width, op.width + MAX_INPUTS, 1);
    std::copy(widths.begin(), widths.end(), op.width);
    op.out_width = out, op.state_floats = state, op.tolerance = 2e-5;
    for (int i = 0; i < MAX_INPUTS; i++)
        op.input[i] = random_floats(static_cast<size_t>(N_TOKENS * op.width[i]), -1.5f, 1.5f);
    return op;
}

/* ------------------------------------------------------------------ the operations */

static void conv_case(int32_t n_channels, int32_t n_taps, bool gated, bool silu, bool bias,
                      bool activations)
{
    const int32_t ld = (gated ? 3 : 1) * n_channels;
    const size_t n = static_cast<size_t>(n_channels);
    operation op = make("conv of " + std::to_string(n_channels) + " channels, " +
                            std::to_string(n_taps) + " taps" + (gated ? ", gated" : ""),
                        {ld}, n_channels, (n_taps - 1) * n_channels);
    constant w(random_floats(n * static_cast<size_t>(n_taps), -1, 1));
    constant b(bias ? random_floats(n, -1, 1) : floats());
    op.activations = activations;
    op.call = [&](bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                  const struct sl_state_view *state, void *out) {
        struct sl_op_short_conv a = {};
        a.batch = batch, a.ld = ld, a.n_channels = n_channels, a.n_taps = n_taps;
        a.x = in[0] + (gated ? 2 * n_channels : 0);
        a.pre = gated ? in[0] : nullptr, a.post = gated ? in[0] + n_channels : nullptr;
        a.w = w.at(gpu), a.bias = b.at(gpu), a.silu = silu, a.state = *state;
        a.out = activations ? nullptr : static_cast<float *>(out);
        a.act = activations ? out : nullptr;
        if (gpu)
            sl_cuda_short_conv(&cu.base, &a);
        else
            cpu->vt->short_conv(cpu, &a);
    };
    check(op);
}

/* Each token brings its taps; the first channels have none. */
static void own_taps_case(int32_t n_channels, int32_t n_plain, int32_t n_taps, int32_t odd)
{
    const int32_t n = n_channels - n_plain, ld = n_channels + odd;
    operation op = make("conv of " + std::to_string(n_channels) + " channels, " +
                            std::to_string(n_taps) + " taps of each token",
                        {ld, n * n_taps}, n_channels, (n_taps - 1) * n);
    op.call = [&](bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                  const struct sl_state_view *state, void *out) {
        struct sl_op_short_conv a = {};
        a.batch = batch, a.x = in[0], a.ld = ld, a.kernels = in[1], a.n_channels = n_channels;
        a.n_taps = n_taps, a.n_plain = n_plain, a.silu = true, a.state = *state;
        a.out = static_cast<float *>(out);
        if (gpu)
            sl_cuda_short_conv(&cu.base, &a);
        else
            cpu->vt->short_conv(cpu, &a);
    };
    check(op);
}

/* Channel by channel, and the CPU's functions: its bits. */
static void rglru_case(int32_t n_channels)
{
    operation op = make("RG-LRU of " + std::to_string(n_channels) + " channels",
                        {n_channels, n_channels, n_channels}, n_channels, n_channels);
    constant rate(random_floats(static_cast<size_t>(n_channels), -2, -0.001f));
    op.tolerance = 0;
    op.call = [&](bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                  const struct sl_state_view *state, void *out) {
        struct sl_op_rglru a = {};
        a.batch = batch, a.x = in[0], a.in_gate = in[1], a.decay_gate = in[2], a.a = rate.at(gpu);
        a.n_channels = n_channels, a.state = *state, a.out = static_cast<float *>(out);
        if (gpu)
            sl_cuda_rglru(&cu.base, &a);
        else
            cpu->vt->rglru(cpu, &a);
    };
    check(op);
}

/* [n_outs, T, C] as [T, n_outs, C]. */
template <typename T>
static void by_token(const std::vector<T> &blocks, int32_t n_channels, int32_t n_outs, T *to)
{
    const size_t c = static_cast<size_t>(n_channels), outs = static_cast<size_t>(n_outs);
    const size_t n = blocks.size() / (c * outs);
    for (size_t i = 0; i < outs; i++)
        for (size_t t = 0; t < n; t++)
            std::copy_n(&blocks[(i * n + t) * c], c, to + (t * outs + i) * c);
}

/* Values that are BF16 numbers, so that both backends read the same. */
static void shift_case(int32_t n_channels, int32_t n_outs)
{
    const int32_t width = n_channels * n_outs;
    operation op = make("shift of " + std::to_string(n_channels) + " channels, " +
                            std::to_string(n_outs) + " mixtures",
                        {n_channels}, width, n_channels);
    constant w(random_floats(static_cast<size_t>(width), 0, 1));
    for (float &v : op.input[0])
        v = sl_bf16_to_f32(sl_f32_to_bf16(v));
    op.activations = true;
    op.tolerance = 0; /* of states */
    op.call = [&](bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                  const struct sl_state_view *state, void *out) {
        const size_t n = static_cast<size_t>(batch->n_tokens * n_channels);
        struct sl_op_token_shift a = {};
        a.batch = batch, a.w = w.at(gpu), a.n_channels = n_channels, a.n_outs = n_outs;
        a.state = *state, a.ld_out = static_cast<int64_t>(n);
        if (!gpu) {
            floats all(n * static_cast<size_t>(n_outs));
            a.x = in[0], a.out = all.data();
            cpu->vt->token_shift(cpu, &a);
            by_token(all, n_channels, n_outs, static_cast<float *>(out));
            return;
        }
        floats x(n);
        std::vector<uint16_t> half(n), sorted(n * static_cast<size_t>(n_outs));
        cudaMemcpy(x.data(), in[0], n * sizeof(float), cudaMemcpyDeviceToHost);
        std::transform(x.begin(), x.end(), half.begin(), sl_f32_to_bf16);
        dev<uint16_t> from(half), to(sorted.size());
        a.x = from.p, a.out = to.p;
        sl_cuda_token_shift(&cu.base, &a);
        CHECK(cudaStreamSynchronize(cu.stream) == cudaSuccess, "shift");
        by_token(to.get(), n_channels, n_outs, sorted.data());
        cudaMemcpy(out, sorted.data(), sorted.size() * 2, cudaMemcpyHostToDevice);
    };
    check(op);
}

/* The recurrence and what comes out of it, which reads what k and v have become. */
static void wkv_case(int32_t n_heads, int32_t dim, bool mixes)
{
    enum { R, W, K, V, A, FIRST, MIX, KK };
    const int32_t n = n_heads * dim;
    operation op = make("RWKV-7 of " + std::to_string(n_heads) + " heads of " + std::to_string(dim),
                        std::vector<int32_t>(MAX_INPUTS, n), n, n * dim);
    const size_t len = static_cast<size_t>(n);
    constant k_k(random_floats(len, -1, 1)), k_a(random_floats(len, 0, 1)),
        r_k(random_floats(len, -1, 1)), w(random_floats(len, -1, 1)), b(random_floats(len, -1, 1));
    dev<float> x(static_cast<size_t>(N_TOKENS + 3) * len);
    floats host_x(x.n);
    op.activations = true;
    op.beside = 2;
    op.call = [&](bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                  const struct sl_state_view *state, void *out) {
        struct sl_op_wkv7 a = {};
        struct sl_op_wkv7_out o = {};
        a.batch = batch, a.r = in[R], a.w = in[W], a.k = in[K], a.v = in[V], a.a = in[A];
        a.kk = in[KK], a.v_first = in[FIRST], a.v_mix = mixes ? in[MIX] : nullptr;
        a.k_k = k_k.at(gpu), a.k_a = k_a.at(gpu), a.n_heads = n_heads, a.head_dim = dim;
        a.state = *state, a.out = gpu ? x.p : host_x.data();
        o.x = a.out, o.r = in[R], o.k = in[K], o.v = in[V], o.g = in[FIRST], o.r_k = r_k.at(gpu);
        o.w = w.at(gpu), o.b = b.at(gpu), o.eps = 6e-4f, o.n = batch->n_tokens;
        o.n_heads = n_heads, o.head_dim = dim, o.out = out;
        if (gpu) {
            sl_cuda_wkv7(&cu.base, &a);
            sl_cuda_wkv7_out(&cu.base, &o);
        } else {
            cpu->vt->wkv7(cpu, &a);
            cpu->vt->wkv7_out(cpu, &o);
        }
    };
    check(op);
}

/* S of a page of delta_chunk.cuh: [tile of v, sixteen of k, 2, lane, 4]. */
static floats unpack_delta(const floats &page, int32_t n_heads, int32_t k_dim, int32_t v_dim)
{
    const size_t head_floats = page.size() / static_cast<size_t>(n_heads);
    int32_t k_tiles = 1;
    while (16 * k_tiles < k_dim)
        k_tiles *= 2;
    floats out;
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t k = 0; k < k_dim; k++)
            for (int32_t v = 0; v < v_dim; v++) {
                const int32_t lane = v % 8 * 4 + k % 8 / 2;
                const int32_t quad = (v / 16 * k_tiles + k / 16) * 2 + k % 16 / 8;
                const int32_t at = (quad * 32 + lane) * 4 + v % 16 / 8 * 2 + k % 2;
                out.push_back(page[static_cast<size_t>(h) * head_floats + static_cast<size_t>(at)]);
            }
    return out;
}

static void delta_case(int32_t n_heads, int32_t n_k_heads, int32_t k_dim, int32_t v_dim,
                       bool by_row, int32_t odd)
{
    const int32_t keys = n_k_heads * k_dim, ld = 2 * keys + n_heads * v_dim + odd;
    const size_t n_decay = static_cast<size_t>(n_heads * (by_row ? k_dim : 1));
    operation op =
        make("delta rule of " + std::to_string(n_heads) + " heads " + std::to_string(k_dim) +
                 " x " + std::to_string(v_dim) + (by_row ? " by row" : ""),
             {ld, static_cast<int32_t>(n_decay), n_heads}, n_heads * v_dim,
             static_cast<int32_t>(sl_cuda_delta_bytes(n_heads, k_dim, v_dim, by_row) / 4));
    if (!by_row) {
        op.tolerance = 1e-2; /* products of BF16 */
        op.unpack = [=](const floats &page) { return unpack_delta(page, n_heads, k_dim, v_dim); };
    }
    op.prepares = !by_row;
    dev<uint8_t> scratch(
        std::max(sl_cuda_delta_room(N_TOKENS + 3, n_heads, n_k_heads, k_dim, by_row), size_t{16}));
    constant by(random_floats(static_cast<size_t>(n_heads), -0.5f, -0.01f));
    constant bias(random_floats(n_decay, -1, 1));
    op.call = [&](bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                  const struct sl_state_view *state, void *out) {
        struct sl_op_delta_rule a = {};
        a.batch = batch, a.q = in[0] + odd, a.k = in[0] + odd + keys;
        a.v = in[0] + odd + 2 * keys, a.ld = ld;
        a.decay_in = in[1], a.beta_in = in[2], a.a = by.at(gpu), a.dt_bias = bias.at(gpu);
        a.tiled = n_heads == 6, a.by_row = by_row, a.l2_eps = 1e-6f,
        a.bound = by_row && n_heads % 2 == 0 ? -5.0f : 0.0f,
        a.scale = 1.0f / sqrtf(static_cast<float>(k_dim));
        a.beta_scale = n_heads % 2 != 0 ? 2.0f : 1.0f;
        a.n_heads = n_heads, a.n_k_heads = n_k_heads, a.k_dim = k_dim, a.v_dim = v_dim;
        a.state = *state, a.out = static_cast<float *>(out);
        a.scratch = scratch.p;
        cu.delta_cols = 2 * below(3);
        if (gpu)
            sl_cuda_delta_rule(&cu.base, &a);
        else
            cpu->vt->delta_rule(cpu, &a);
    };
    check(op);
}

/* More prompts in a step than are prepared together: first a few tokens of each, then the rest. All
 * at once have the bits of one after the other. */
static void many_prompts(bool n_known)
{
    enum { N = 70, MOST = 40, BLOCK = 48, HEADS = 2, DIM = 16, LD = (1 + 1 + HEADS) * DIM };
    const size_t page = sl_cuda_delta_bytes(HEADS, DIM, DIM, false);
    int32_t first[N + 1] = {}, cut_at[N];
    for (int32_t s = 0; s < N; s++) {
        cut_at[s] = 1 + below(17);
        first[s + 1] = first[s] + cut_at[s] + (s % 9 == 0 ? 1 : 9) + below(MOST - 26);
    }
    const size_t n = static_cast<size_t>(first[N]);
    constant by(random_floats(HEADS, -0.5f, -0.01f)), bias(random_floats(HEADS, -1, 1));
    const floats all = random_floats(n * LD, -1, 1), gates = random_floats(n * HEADS, -1, 1);
    dev<uint8_t> scratch(sl_cuda_delta_room(first[N], HEADS, 1, DIM, false));
    auto step = [&](bool rest, int32_t from, int32_t to, uint8_t *pool, floats *out) {
        std::vector<struct sl_span> spans;
        std::vector<int32_t> table;
        floats in, decays;
        for (int32_t s = from; s < to; s++) {
            const int32_t pos = rest ? cut_at[s] : 0;
            const int32_t len = rest ? first[s + 1] - first[s] - pos : cut_at[s];
            spans.push_back({static_cast<int32_t>(decays.size()) / HEADS, len, pos,
                             static_cast<int32_t>(table.size()), 0});
            table.push_back(s);
            const long at = first[s] + pos;
            in.insert(in.end(), all.begin() + at * LD, all.begin() + (at + len) * LD);
            decays.insert(decays.end(), gates.begin() + at * HEADS,
                          gates.begin() + (at + len) * HEADS);
        }
        dev<struct sl_span> d_spans(spans);
        dev<int32_t> d_table(table);
        dev<float> d_in(in), d_decays(decays), d_betas(decays), d_out(decays.size() * DIM);
        struct sl_batch b = {};
        b.n_tokens = static_cast<int32_t>(decays.size()) / HEADS, b.n_spans = to - from;
        b.n_tables = 1, b.spans = d_spans.p, b.block_tables = d_table.p;
        if (n_known) {
            b.span_sizes = sl_batch_sizes_of(spans.data(), b.n_spans);
            b.n_long = sl_batch_n_long(spans.data(), b.n_spans);
        }
        struct sl_op_delta_rule a = {};
        a.batch = &b, a.q = d_in.p, a.k = d_in.p + DIM, a.v = d_in.p + 2 * DIM, a.ld = LD;
        a.decay_in = d_decays.p, a.beta_in = d_betas.p, a.a = by.at(true),
        a.dt_bias = bias.at(true);
        a.l2_eps = 1e-6f, a.scale = 0.25f, a.beta_scale = 1, a.n_heads = HEADS, a.n_k_heads = 1;
        a.k_dim = a.v_dim = DIM, a.state = {pool, page, 0, BLOCK, 0}, a.scratch = scratch.p;
        a.out = d_out.p;
        sl_cuda_delta_rule(&cu.base, &a);
        CHECK(cudaStreamSynchronize(cu.stream) == cudaSuccess, "many prompts");
        const floats got = d_out.get();
        size_t done = 0;
        for (int32_t s = from; s < to; s++) {
            const struct sl_span &span = spans[static_cast<size_t>(s - from)];
            const size_t len = static_cast<size_t>(span.n) * HEADS * DIM;
            std::copy(got.begin() + static_cast<long>(done),
                      got.begin() + static_cast<long>(done + len),
                      out->begin() + (first[s] + span.pos) * HEADS * DIM);
            done += len;
        }
    };
    const std::vector<uint8_t> fresh(N * page, 0xFF);
    dev<uint8_t> alone(fresh), together(fresh);
    floats want(n * HEADS * DIM), got(n * HEADS * DIM);
    for (int32_t s = 0; s < N; s++)
        for (bool rest : {false, true})
            step(rest, s, s + 1, alone.p, &want);
    for (bool rest : {false, true})
        step(rest, 0, N, together.p, &got);
    CHECK(same_bits(got, want), "many prompts: outputs");
    CHECK(alone.get() == together.get(), "many prompts: states");
}

static void ssm_case(int32_t n_heads, int32_t n_groups, int32_t head_dim, int32_t n_state,
                     bool by_state, bool bare)
{
    const int32_t n_cols = n_heads * head_dim, keys = n_groups * n_state, ld = n_cols + 2 * keys;
    const size_t n = static_cast<size_t>(n_heads);
    operation op = make("ssm of " + std::to_string(n_heads) + " heads " + std::to_string(head_dim) +
                            " x " + std::to_string(n_state) + (by_state ? " by state" : ""),
                        {ld, n_heads}, n_cols, n_cols * n_state);
    constant a_of(random_floats(by_state ? n * static_cast<size_t>(n_state) : n, -4, -0.1f));
    constant bias(bare ? floats() : random_floats(n, -2, 1)),
        d(bare ? floats() : random_floats(n, -1, 1));
    op.call = [&](bool gpu, const struct sl_batch *batch, float *const in[MAX_INPUTS],
                  const struct sl_state_view *state, void *out) {
        struct sl_op_ssm a = {};
        a.batch = batch, a.x = in[0], a.ld_x = a.ld_bc = ld, a.b = in[0] + n_cols;
        a.c = in[0] + n_cols + keys, a.dt_in = in[1], a.ld_dt = n_heads;
        a.a = a_of.at(gpu), a.dt_bias = bias.at(gpu), a.d = d.at(gpu);
        a.dt_min = bare ? 0.0f : 0.3f, a.dt_max = bare ? INFINITY : 1.1f;
        a.n_heads = n_heads, a.n_groups = n_groups, a.head_dim = head_dim, a.n_state = n_state;
        a.by_state = by_state, a.state = *state, a.out = static_cast<float *>(out);
        if (gpu)
            sl_cuda_ssm(&cu.base, &a);
        else
            cpu->vt->ssm(cpu, &a);
    };
    check(op);
}

/* Rows alone have the bits they have among others. */
static void norm_case(int32_t n_groups, int32_t dim, bool gated, bool gate_first, bool bare,
                      bool sigmoid, int shared_w)
{
    const int32_t n = 5, width = n_groups * dim, ld = width + 4;
    const size_t all = static_cast<size_t>(n * width), n_w = static_cast<size_t>(width);
    constant x(random_floats(all, -2, 2));
    constant gate(gated ? random_floats(static_cast<size_t>(n * ld), -3, 3) : floats());
    constant w(shared_w == 2
                   ? floats()
                   : random_floats(shared_w != 0 ? static_cast<size_t>(dim) : n_w, -1, 2));
    struct sl_op_gated_norm a = {};
    a.ld_gate = ld, a.shared_w = shared_w == 1, a.gate_first = gate_first, a.bare = bare;
    a.sigmoid = sigmoid, a.eps = 1e-5f, a.n_groups = n_groups, a.dim = dim, a.ld_out = width + 4;
    const size_t n_out = static_cast<size_t>(n * (width + 4));
    floats want(n_out);
    a.n = n, a.x = x.at(false), a.gate = gate.at(false), a.w = w.at(false), a.out = want.data();
    cpu->vt->gated_norm(cpu, &a);
    auto gpu_rows = [&](int32_t first, int32_t rows) {
        const std::vector<uint16_t> zeros(n_out);
        dev<uint16_t> out(zeros);
        a.n = rows, a.x = x.at(true) + static_cast<int64_t>(first) * width;
        a.gate = gated ? gate.at(true) + static_cast<int64_t>(first) * ld : nullptr;
        a.w = w.at(true), a.out = out.p;
        sl_cuda_gated_norm(&cu.base, &a);
        CHECK(cudaStreamSynchronize(cu.stream) == cudaSuccess, "gated norm");
        return out.get();
    };
    const std::vector<uint16_t> got = gpu_rows(0, n), one = gpu_rows(3, 1);
    double error = 0;
    for (int32_t t = 0; t < n; t++)
        for (int32_t i = 0; i < width; i++) {
            const size_t at = static_cast<size_t>(t * (width + 4) + i);
            const double e =
                fabs(static_cast<double>(sl_bf16_to_f32(got[at])) - static_cast<double>(want[at]));
            const double rel = e / (fabs(static_cast<double>(want[at])) + 1e-6);
            error = rel <= error ? error : rel;
            if (t == 3)
                CHECK(one[static_cast<size_t>(i)] == got[at], "gated norm: %d alone", i);
        }
    CHECK(error < 4.5e-3, "gated norm of %d groups of %d: %g", n_groups, dim, error);
}

static void norms()
{
    for (int32_t dim : {1, 8, 30, 128, 130, 512, 516, 1500, 4096})
        for (int k = 0; k < 6; k++)
            if (dim < 1000 || k < 2)
                norm_case(dim > 600 ? 1 : 3, dim, k != 4, k % 2 != 0, k == 5, k == 2, k % 3);
}

int main(int argc, char **argv)
{
    struct sl_cpu_config cfg = {};
    struct sl_error err = {};
    rng.seed = argc > 1 ? static_cast<uint64_t>(atoi(argv[1])) : 3;
    cfg.exact = true;
    if (sl_cpu_create(&cfg, &cpu, &err) != 0)
        return 2;
    memset(&cu, 0, sizeof cu);
    cu.n_sms = 6;
    cu.smem_max = 232448;
    cudaStreamCreate(&cu.stream);
    for (int32_t taps = 2; taps <= SL_MAX_CONV_TAPS; taps++)
        conv_case(taps % 2 != 0 ? 7 : 24, taps, taps % 3 == 0, taps % 2 == 0, taps > 4,
                  taps % 3 == 0);
    conv_case(516, 4, false, true, true, false);
    delta_case(2, 1, 128, 128, false, 0);
    delta_case(6, 2, 16, 16, false, 0);
    delta_case(4, 2, 16, 16, false, 0);
    delta_case(3, 3, 64, 40, false, 0);
    delta_case(2, 2, 10, 7, false, 1);
    delta_case(1, 1, 256, 36, false, 0);
    delta_case(2, 1, 24, 20, true, 0);
    delta_case(1, 1, 128, 64, true, 0);
    delta_case(1, 1, 200, 18, true, 1);
    many_prompts(true);
    many_prompts(false);
    ssm_case(4, 1, 64, 128, false, false);
    ssm_case(6, 2, 16, 16, false, false);
    ssm_case(4, 4, 10, 64, false, true);
    ssm_case(3, 1, 7, 256, false, false);
    ssm_case(40, 1, 1, 16, true, false);
    ssm_case(12, 2, 1, 40, true, true);
    own_taps_case(24, 8, 4, 0);
    own_taps_case(13, 6, 4, 1);
    own_taps_case(20, 0, 3, 0);
    rglru_case(70);
    rglru_case(16);
    shift_case(24, 6);
    shift_case(7, 1);
    wkv_case(2, 64, true);
    wkv_case(3, 16, false);
    wkv_case(1, 128, true);
    wkv_case(2, 10, true);
    norms();
    CHECK(cu.error == cudaSuccess, "%s", cu.error_what);
    cudaStreamDestroy(cu.stream);
    cpu->vt->destroy(cpu);
    printf("test_state: %ld checks, %d failures\n", n_checks, n_failures);
    return n_failures != 0;
}
