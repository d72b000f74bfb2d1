/* SPDX-License-Identifier: MIT
 * linear_chain.cu - the four products of a layer of one or two tokens in one launch, beside the
 * kernels of src/cuda one behind the other. Shape: 8B, BF16.
 *
 *   linear_chain --list | --only NAME...
 *
 * The idea: at each product's end memory has nothing to do until the next one's first copies are
 * under way. Here a block a multiprocessor goes through o, gate and up, down and q, k, v; a warp
 * that fills one ring of the block's weights runs ahead over the ends of products, and only the
 * warps that multiply meet at barriers of the whole grid. Bits are those of the separate kernels.
 *
 * us of four products, one token and two; the same 436 MB are 93.4 us of a read stream of 4,667
 * GB/s (H200; the rows of a column are one run):
 *
 *          what                                        as packed before   row blocks a unit apart
 *   now    separate kernels                              115.4  118.0         113.3  115.4
 *   c8k    8 KB a copy                                   115.6  119.8         111.3  115.9
 *   c8k7   at most seven of them under way               117.6  122.3
 *   c8k2   two warps that fill                           116.1  119.2         111.5  115.1
 *   c4k2   two warps, 4 KB a copy                        115.1  119.0         109.7  114.0
 *   coop   c8k, launched as a cooperative grid           116.9  121.3
 *
 * "now" has `down` by linear_direct.cuh there; by deep rings (linear_stream.cuh) it is 2 us less.
 * In a whole layer with rotation and attention (768 positions), where a chain also makes both
 * norms: 130.0 to 130.3 us separate, 128.9 with c8k2, 130.8 as a cooperative grid. Nothing but that
 * keeps two engines of one GPU from waiting for each other's blocks, so the chain is not in
 * src/cuda.
 *
 * What was learnt:
 * - Where 436 MB in 116 us are lost, by the stamps of c8k (bench/results/cuda-h200.txt has them):
 *   9 us until the first ring has been asked for, as the copy engine takes a copy when memory does;
 *   2.4 to 5 us from the last block's end of a product to the next one's input, of which the fence
 *   before the arrival is 0.9 us when memory is idle and up to 4.6 when the rings are filling;
 *   and 20 us between the first and the last block's end of gate and up, which a ring of 184 KB,
 *   5 us, cannot bridge. 104 blocks have seven pairs of row blocks there, 28 have six.
 * - Fewer copies under way make the fence cheaper (1.5 us) and the stream slower (2 us).
 * - A filling thread needs some 180 ns for a copy: 4 KB a copy by one thread is 148 us.
 * - Row blocks whose bytes are a multiple of a power of two: see sl_cuda_row_units.
 * - Slots that warps share: a barrier of two phases does not tell a slot that has not come from one
 *   that came two rounds ago; who waits for it must first see that what was in it was taken.
 */
#include "linear_chain.cuh"

struct version {
    const char *name;
    void (*run)(const sl_lin *l, int n, int ahead, bool together, uint32_t *meet, uint64_t *stamps);
    int ahead;
    bool together;
};

static const struct version versions[] = {
    {"now", nullptr, 0, false},
    {"c8k", chain_launch<sl_wf_bf16, 4, 12, 1>, 0, false},
    {"c8k7", chain_launch<sl_wf_bf16, 4, 12, 1>, 7, false},
    {"c8k2", chain_launch<sl_wf_bf16, 4, 12, 2>, 0, false},
    {"c4k2", chain_launch<sl_wf_bf16, 2, 12, 2>, 0, false},
    {"coop", chain_launch<sl_wf_bf16, 4, 12, 1>, 0, true},
};

struct shapes {
    int h, qkv[3], inner;
};

struct layer {
    uint8_t *w[7]; /* o, gate, up, down, q, k, v */
};

struct buffers {
    dev<uint16_t> *x, *g;
    dev<float> *o, *d, *qkv;
};

static struct sl_weight weight_of(const uint8_t *data, int rows, int cols)
{
    struct sl_weight w = {};
    w.layout = SL_CUDA_BF16;
    w.n_rows = rows;
    w.n_cols = cols;
    w.data = data;
    return w;
}

static struct sl_lin plain(const uint8_t *data, int rows, int cols, const uint16_t *x, int n,
                           float *out)
{
    struct sl_weight w = weight_of(data, rows, cols);
    struct sl_op_linear a = {};
    a.x = x, a.ld_x = cols, a.n = n, a.w = &w, a.out = out, a.ld_out = rows;
    return sl_cuda_linear_args(&a);
}

/* o; gate and up; down of what they give; q, k, v. */
static void make(struct sl_lin l[4], const struct shapes &s, const struct layer &w, int n,
                 const struct buffers &b_)
{
    const uint16_t *x = b_.x->p;
    l[0] = plain(w.w[0], s.h, s.h, x, n, b_.o->p);
    struct sl_weight gate = weight_of(w.w[1], s.inner, s.h), up = weight_of(w.w[2], s.inner, s.h);
    struct sl_op_linear_gated_act g = {};
    g.x = x + n * s.h, g.ld_x = s.h, g.gate = &gate, g.up = &up, g.n = n, g.out = b_.g->p;
    g.act = SL_ACT_SILU;
    l[1] = sl_cuda_linear_gated_args(&g);
    l[2] = plain(w.w[3], s.h, s.inner, b_.g->p, n, b_.d->p);
    int rows = 0, blocks = 0;
    for (int i = 0; i < 3; i++) {
        struct sl_lin part = plain(w.w[4 + i], s.qkv[i], s.h, x + 2 * n * s.h, n, b_.qkv->p + rows);
        if (i == 0)
            l[3] = part;
        l[3].part[i] = part.part[0];
        l[3].part[i].ld_out = s.qkv[0] + s.qkv[1] + s.qkv[2];
        l[3].part[i].first = blocks;
        rows += s.qkv[i];
        blocks += part.part[0].n_blocks;
    }
    l[3].n_parts = 3;
}

static void separate(const struct sl_lin l[4])
{
    for (int i = 0; i < 4; i++)
        sl_cuda_linear_run(&lab_cu, &l[i], NULL);
}

static uint8_t *matrix(size_t rows, size_t cols, uint64_t seed)
{
    void *p = nullptr;
    size_t n = (rows + 15) / 16 *
               static_cast<size_t>(sl_cuda_stream_bytes(SL_CUDA_BF16, static_cast<int64_t>(cols))) /
               2;
    MUST(cudaMalloc(&p, n * 2));
    fill(p, n, FILL_BF16, seed);
    return static_cast<uint8_t *>(p);
}

static double at(const std::vector<uint64_t> &t, size_t block, int step, int i, uint64_t from)
{
    return static_cast<double>(static_cast<int64_t>(
               t[(block * (CHAIN_STEPS + 1) + static_cast<size_t>(step)) * CHAIN_STAMPS +
                 static_cast<size_t>(i)] -
               from)) *
           1e-3;
}

/* Least, median and greatest of a stamp over the blocks. */
static void print_stamps(const std::vector<uint64_t> &t, size_t n_blocks)
{
    static const char *const what[] = {"waited", "input there", "done", "told"};
    uint64_t from = UINT64_MAX;
    for (size_t block = 0; block < n_blocks; block++)
        from = std::min(from, t[(block * (CHAIN_STEPS + 1) + CHAIN_STEPS) * CHAIN_STAMPS]);
    for (int step = -1; step < CHAIN_STEPS; step++)
        for (int i = 0; i < (step < 0 ? 2 : step == 3 ? 3 : 4); i++) {
            std::vector<double> v;
            for (size_t block = 0; block < n_blocks; block++)
                v.push_back(at(t, block, step < 0 ? CHAIN_STEPS : step, i, from));
            std::sort(v.begin(), v.end());
            printf("   %2d %-12s %7.2f %7.2f %7.2f %7.2f %7.2f\n", step,
                   step < 0 ? (i == 0 ? "start" : "ring") : what[i], v[0], v[n_blocks / 10],
                   v[n_blocks / 2], v[n_blocks * 9 / 10], v[n_blocks - 1]);
        }
}

static void one(const struct version &v, const struct shapes &s, const std::vector<layer> &layers,
                int n)
{
    size_t un = static_cast<size_t>(n);
    size_t h = static_cast<size_t>(s.h), inner = static_cast<size_t>(s.inner);
    size_t qkv = static_cast<size_t>(s.qkv[0] + s.qkv[1] + s.qkv[2]);
    dev<uint16_t> x(3 * un * h), g(un * inner), g2(un * inner);
    dev<float> o(un * h), d(un * h), q(un * qkv), o2(un * h), d2(un * h), q2(un * qkv);
    dev<uint32_t> meet(64);
    dev<uint64_t> stamps(static_cast<size_t>(lab_cu.n_sms) * (CHAIN_STEPS + 1) * CHAIN_STAMPS);
    struct buffers want = {&x, &g, &o, &d, &q}, got = {&x, &g2, &o2, &d2, &q2};
    fill(x.p, x.n, FILL_BF16, 77);
    MUST(cudaMemsetAsync(meet.p, 0, 256, lab_cu.stream));
    std::vector<sl_lin> a(4 * layers.size()), c(4 * layers.size());
    for (size_t i = 0; i < layers.size(); i++) {
        make(&a[4 * i], s, layers[i], n, want);
        make(&c[4 * i], s, layers[i], n, got);
    }
    auto run = [&](int i, uint64_t *to) {
        const sl_lin *l = &c[4 * static_cast<size_t>(i)];
        if (v.run == nullptr)
            separate(l);
        else
            v.run(l, 4, v.ahead, v.together, meet.p, to);
    };
    unsigned long long bad = 0;
    for (size_t i = 0; i < layers.size(); i++) {
        separate(&a[4 * i]);
        lab_must_be_well("separate");
        run(static_cast<int>(i), nullptr);
        lab_must_be_well(v.name);
        bad += lab_differ(o.p, o2.p, o.n) + lab_differ(g.p, g2.p, g.n / 2) +
               lab_differ(d.p, d2.p, d.n) + lab_differ(q.p, q2.p, q.n);
    }
    double us = time_us(static_cast<int>(layers.size()), 100.0, [&](int i) { run(i, nullptr); });
    lab_must_be_well(v.name);
    double bytes = 2.0 * static_cast<double>(h * h + 3 * h * inner + qkv * h);
    printf("%-8s %d tokens %8.2f us %6.0f GB/s  %llu words differ\n", v.name, n, us,
           bytes / us * 1e-3, bad);
    fflush(stdout);
    if (bad > 0)
        exit(1);
    if (v.run == nullptr || n > 1)
        return;
    for (int i = 0; i < 9; i++)
        run(i % static_cast<int>(layers.size()), stamps.p);
    lab_must_be_well(v.name);
    std::vector<uint64_t> t(stamps.n);
    stamps.get(0, t.data(), t.size());
    print_stamps(t, static_cast<size_t>(lab_cu.n_sms));
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (const struct version &v : versions)
            printf("%s\n", v.name);
        return 0;
    }
    if (argc < 3 || strcmp(argv[1], "--only") != 0) {
        fprintf(stderr, "linear_chain --list | --only NAME...\n");
        return 2;
    }
    lab_start();
    const struct shapes s =
        b.tiny ? shapes{256, {128, 64, 64}, 6400} : shapes{4096, {4096, 1024, 1024}, 14336};
    const size_t n_layers = static_cast<size_t>(n_copies_for(200u << 20, 3));
    std::vector<layer> layers(n_layers);
    for (size_t i = 0; i < n_layers; i++) {
        const int rows[] = {s.h, s.inner, s.inner, s.h, s.qkv[0], s.qkv[1], s.qkv[2]};
        for (int p = 0; p < 7; p++)
            layers[i].w[p] =
                matrix(static_cast<size_t>(rows[p]), static_cast<size_t>(p == 3 ? s.inner : s.h),
                       (i * 7 + static_cast<size_t>(p)) << 33);
    }
    lab_must_be_well("weights");
    for (int k = 2; k < argc; k++)
        for (const struct version &v : versions)
            if (!strcmp(argv[k], v.name))
                for (int n : {1, 2})
                    one(v, s, layers, n);
    return 0;
}
