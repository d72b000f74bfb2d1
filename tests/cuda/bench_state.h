/* SPDX-License-Identifier: MIT
 * bench_state.h - layers with a recurrent state. Decode moves bytes: each sequence's state is read
 * once and written once, over the time, against what the device reads and writes at most; rows of
 * activations are not counted. Prompts are limited by instructions: there the time of a token
 * counts, and beside it the share of the FMA units that the least number of operations takes.
 */
#ifndef SL_TESTS_CUDA_BENCH_STATE_H
#define SL_TESTS_CUDA_BENCH_STATE_H

#include "bench_util.h"

#define STATE_BLOCK 64 /* tokens of a page */

struct state_shape {
    const char *name;
    bool ssm;
    int n_heads, n_groups, k_dim, v_dim; /* of ssm: the head's state is [k_dim, v_dim] as well */
    int n_taps;

    int keys() const
    {
        return n_groups * k_dim;
    }
    int rows() const
    {
        return n_heads * v_dim;
    }
    int channels() const
    {
        return rows() + 2 * keys();
    }
    size_t tail_floats() const
    {
        return static_cast<size_t>(n_taps - 1) * static_cast<size_t>(channels());
    }
    size_t head_floats() const
    {
        return static_cast<size_t>(rows()) * static_cast<size_t>(k_dim);
    }
    size_t page_bytes() const
    {
        const size_t heads =
            ssm ? 4 * head_floats() : sl_cuda_delta_bytes(n_heads, k_dim, v_dim, false);
        return 4 * tail_floats() + heads;
    }
    size_t room_bytes(int n) const
    {
        return ssm ? 0 : sl_cuda_delta_room(n, n_heads, n_groups, k_dim, false);
    }
};

static std::vector<struct state_shape> state_shapes()
{
    if (b.tiny)
        return {{"tiny delta", false, 2, 1, 32, 32, 4}, {"tiny ssm", true, 2, 1, 16, 16, 4}};
    return {{"Qwen3.5-9B, 35B-A3B", false, 32, 16, 128, 128, 4},
            {"Qwen3.5-27B", false, 48, 16, 128, 128, 4},
            {"Nemotron 3 Nano", true, 64, 8, 128, 64, 4},
            {"Granite 4 H small", true, 128, 1, 128, 64, 4}};
}

/* One layer's operations, on copies of all that they read and write. */
struct state_bench {
    struct state_shape s;
    int n_spans, n_each, n_copies; /* tokens of a span */
    size_t rows_in, pool_floats;
    dev<float> in, conv_out, out, gate, small, w, pool;
    dev<uint8_t> room; /* of the delta rule */
    dev<uint16_t> act;
    dev<struct sl_span> spans;
    dev<int32_t> table;

    static std::vector<struct sl_span> make_spans(int n, int each, int pos)
    {
        const int pages = (pos + each + STATE_BLOCK - 1) / STATE_BLOCK;
        std::vector<struct sl_span> v;
        for (int i = 0; i < n; i++)
            v.push_back({i * each, each, pos, i * pages, 0});
        return v;
    }
    /* A sequence has its state's page, and none for the blocks before. */
    static std::vector<int32_t> make_table(int n, int each, int pos)
    {
        const int pages = (pos + each + STATE_BLOCK - 1) / STATE_BLOCK;
        std::vector<int32_t> v(static_cast<size_t>(n * pages), -1);
        for (int i = 0; i < n; i++)
            v[static_cast<size_t>(i * pages + pages - 1)] = i;
        return v;
    }
    state_bench(const struct state_shape &shape, int n, int each, int pos, int copies)
        : s(shape), n_spans(n), n_each(each), n_copies(copies),
          rows_in(static_cast<size_t>(n * each)),
          pool_floats(static_cast<size_t>(n) * s.page_bytes() / 4),
          in(rows_in * static_cast<size_t>(s.channels())),
          conv_out(rows_in * static_cast<size_t>(s.channels())),
          out(rows_in * static_cast<size_t>(s.rows())), gate(out.n),
          small(rows_in * static_cast<size_t>(2 * s.n_heads)),
          w(static_cast<size_t>(s.channels() * (s.n_taps + 2))),
          pool(pool_floats * static_cast<size_t>(copies)), room(shape.room_bytes(n * each) + 16),
          act(out.n), spans(make_spans(n, each, pos)), table(make_table(n, each, pos))
    {
        fill(in.p, in.n, FILL_F32, 1);
        fill(conv_out.p, conv_out.n, FILL_F32, 2);
        fill(gate.p, gate.n, FILL_F32, 3);
        fill(small.p, small.n, FILL_F32, 4);
        fill(pool.p, pool.n, FILL_F32, 5);
        std::vector<float> constants(w.n);
        for (size_t i = 0; i < w.n; i++)
            constants[i] = -0.05f - 0.2f * fabsf(random_normal(i)); /* decays are below 0 */
        MUST(cudaMemcpy(w.p, constants.data(), 4 * w.n, cudaMemcpyHostToDevice));
        wait_all();
    }
    struct sl_batch batch() const
    {
        struct sl_batch all = {};
        all.n_tokens = n_spans * n_each, all.n_spans = n_spans, all.n_tables = 1;
        all.spans = spans.p, all.block_tables = table.p;
        return all;
    }
    struct sl_state_view view(int copy, size_t offset) const
    {
        return {reinterpret_cast<uint8_t *>(pool.p + static_cast<size_t>(copy) * pool_floats),
                s.page_bytes(), offset, STATE_BLOCK, 0};
    }
    void convolve(const struct sl_batch *all, int copy) const
    {
        struct sl_op_short_conv a = {};
        a.batch = all, a.x = in.p, a.ld = s.channels(), a.w = w.p, a.n_channels = s.channels();
        a.n_taps = s.n_taps, a.silu = true, a.state = view(copy, 0), a.out = conv_out.p;
        b.be->vt->short_conv(b.be, &a);
    }
    void recur(const struct sl_batch *all, int copy) const
    {
        const struct sl_state_view v = view(copy, 4 * s.tail_floats());
        if (s.ssm) {
            struct sl_op_ssm a = {};
            a.batch = all, a.x = conv_out.p, a.ld_x = a.ld_bc = s.channels();
            a.b = conv_out.p + s.rows(), a.c = a.b + s.keys(), a.dt_in = small.p;
            a.ld_dt = s.n_heads, a.a = a.dt_bias = a.d = w.p, a.dt_max = INFINITY;
            a.n_heads = s.n_heads, a.n_groups = s.n_groups, a.head_dim = s.v_dim;
            a.n_state = s.k_dim, a.state = v, a.out = out.p;
            b.be->vt->ssm(b.be, &a);
            return;
        }
        struct sl_op_delta_rule a = {};
        a.batch = all, a.q = conv_out.p, a.k = a.q + s.keys(), a.v = a.k + s.keys();
        a.ld = s.channels(), a.decay_in = small.p;
        a.beta_in = small.p + rows_in * static_cast<size_t>(s.n_heads), a.a = a.dt_bias = w.p;
        a.l2_eps = 1e-6f, a.scale = 0.0884f, a.beta_scale = 1.0f, a.n_heads = s.n_heads;
        a.n_k_heads = s.n_groups, a.k_dim = s.k_dim, a.v_dim = s.v_dim, a.state = v;
        a.scratch = room.p;
        a.out = out.p;
        b.be->vt->delta_rule(b.be, &a);
    }
    void norm() const
    {
        struct sl_op_gated_norm a = {};
        a.x = out.p, a.gate = gate.p, a.ld_gate = a.ld_out = s.rows(), a.w = w.p;
        a.eps = 1e-6f, a.n = n_spans * n_each, a.n_groups = s.ssm ? s.n_groups : s.n_heads;
        a.dim = s.rows() / a.n_groups, a.shared_w = !s.ssm, a.gate_first = s.ssm, a.out = act.p;
        b.be->vt->gated_norm(b.be, &a);
    }
};

static void state_decode(const struct state_shape &s, int n)
{
    const double state = 2.0 * n * 4.0 * static_cast<double>(s.head_floats());
    const double all = 2.0 * n * static_cast<double>(s.page_bytes());
    state_bench r(s, n, 1, 100, n_copies_for(static_cast<size_t>(all / 2), b.tiny ? 2 : 64));
    const struct sl_batch batch = r.batch();
    const double conv = time_us(r.n_copies, ROW_MS, [&](int c) { r.convolve(&batch, c); });
    const double norm = time_us(r.n_copies, ROW_MS, [&](int) { r.norm(); });
    const double recur = time_us(r.n_copies, ROW_MS, [&](int c) { r.recur(&batch, c); });
    const double layer = time_us(r.n_copies, ROW_MS, [&](int c) {
        r.convolve(&batch, c);
        r.recur(&batch, c);
        r.norm();
    });
    printf("%-22s %6d %9.2f %9.2f %8s %9.2f %9.2f %8s\n", s.name, n, conv, recur,
           share(state / recur * 1e6, b.rw_bps), norm, layer, share(all / layer * 1e6, b.rw_bps));
    fflush(stdout);
}

static void state_prefill(const struct state_shape &s, int n, int each)
{
    state_bench r(s, n, each, 0, b.tiny ? 2 : 1);
    const struct sl_batch batch = r.batch();
    const double conv = time_us(r.n_copies, ROW_MS, [&](int c) { r.convolve(&batch, c); });
    const double recur = time_us(r.n_copies, 4 * ROW_MS, [&](int c) { r.recur(&batch, c); });
    const double norm = time_us(r.n_copies, ROW_MS, [&](int) { r.norm(); });
    /* 128 lanes of a multiprocessor, an operation a cycle */
    int khz = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, b.cu->device) != cudaSuccess)
        cudaGetLastError();
    const double ops = (s.ssm ? 3.0 : 4.0) * n * each * static_cast<double>(s.head_floats());
    const double peak = 128.0 * b.cu->n_sms * khz * 1e3;
    printf("%-22s %3d x %5d %10.1f %10.1f %9.1f %8s %9.1f\n", s.name, n, each, conv, recur,
           recur * 1e3 / each, share(ops / recur * 1e6, peak), norm);
    fflush(stdout);
}

/* Prompts of the delta rule: us of each way; what its bytes take, each read or written once: q, k,
 * v and out, and those and the scratch; and that its outputs have the same bits. */
static void delta_prompts(const struct state_shape &s, int n, int each)
{
    state_bench r(s, n, each, 0, b.tiny ? 2 : 1);
    struct sl_batch batch = r.batch();
    const int32_t ways[] = {0, 2, 4, -1};
    const double in = 4.0 * n * each * (s.channels() + s.rows());
    std::vector<float> want(1 << 16), got(want.size());
    const size_t n_got = std::min(want.size(), r.out.n), from = r.out.n - n_got;
    batch.n_long = n;
    r.recur(&batch, 0);
    wait_all();
    r.out.get(from, want.data(), n_got);
    printf("%-22s %3d x %5d", s.name, n, each);
    for (int32_t cols : ways) {
        b.cu->delta_cols = cols;
        fill(r.out.p, r.out.n, FILL_F32, 7);
        const double us = time_us(1, 2 * ROW_MS, [&](int c) { r.recur(&batch, c); });
        wait_all();
        r.out.get(from, got.data(), n_got);
        CHECK(cols < 0 || memcmp(got.data(), want.data(), 4 * n_got) == 0, "bits of %d x %d", n,
              each);
        printf(" %9.1f", us);
    }
    b.cu->delta_cols = 0;
    printf(" %9.1f %9.1f\n", in / b.rw_bps * 1e6,
           (in + 2.0 * static_cast<double>(r.room.n)) / b.rw_bps * 1e6);
    fflush(stdout);
}

static void run_prompts()
{
    static const int sizes[][2] = {{1, 8192}, {1, 2048}, {1, 512}, {1, 128},  {1, 16},   {4, 2048},
                                   {8, 1024}, {64, 128}, {64, 16}, {16, 512}, {2, 4096}, {128, 64}};
    printf(
        "\n== delta rule, prompts, us: as is, blocks of two and of four sixteens of columns, the "
        "kernel that\n   prepares chunks alone; bytes of q, k, v, out, and with scratch\n"
        "%-22s %11s %9s %9s %9s %9s %9s %9s\n",
        "shape", "seqs x len", "us", "two", "four", "prepare", "bytes", "all");
    for (const struct state_shape &s : state_shapes())
        for (const auto &size : sizes)
            if (!s.ssm)
                delta_prompts(s, b.tiny ? 1 + size[0] % 3 : size[0],
                              b.tiny ? 9 + size[1] % 30 : size[1]);
}

static void run_state()
{
    printf("\n== recurrent layers, decode: us, and the state's bytes (read and written) over the "
           "ceiling\n%-22s %6s %9s %9s %8s %9s %9s %8s\n",
           "shape", "seqs", "conv", "state", "ceiling", "norm", "all", "ceiling");
    for (const struct state_shape &s : state_shapes())
        for (int n : b.tiny ? std::vector<int>{1, 3} : std::vector<int>{1, 4, 16, 64, 256})
            state_decode(s, n);
    printf("\n== recurrent layers, prompts: us, ns a token, share of the FMA units\n"
           "%-22s %11s %10s %10s %9s %8s %9s\n",
           "shape", "seqs x len", "conv", "state", "ns/token", "FMA", "norm");
    for (const struct state_shape &s : state_shapes()) {
        state_prefill(s, 1, b.tiny ? 20 : 8192);
        state_prefill(s, b.tiny ? 2 : 4, b.tiny ? 17 : 2048);
        if (!b.tiny)
            state_prefill(s, 1, 512);
    }
}

#endif
