/* SPDX-License-Identifier: MIT
 * bench_ceilings.h - what the device can do at most, measured by this very run: read a stream,
 * copy, multiply matrices, start kernels. Everything else is divided by these.
 */
#ifndef SL_TESTS_CUDA_BENCH_CEILINGS_H
#define SL_TESTS_CUDA_BENCH_CEILINGS_H

#include "bench_cublas.h"

#define READ_THREADS 512

/* Adds up all words. A block takes tiles of UNROLL x 512 x 16 bytes, a grid apart; a thread has
 * UNROLL loads in flight. */
template <int UNROLL>
static __global__ void __launch_bounds__(READ_THREADS)
    read_kernel(const uint4 *x, uint64_t n_tiles, unsigned *sum)
{
    unsigned s = 0;
    sl_grid_wait();
    for (uint64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const uint4 *from = x + tile * (UNROLL * READ_THREADS) + threadIdx.x;
        uint4 v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            v[i] = sl_ldg_stream16(from + i * READ_THREADS);
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            s += v[i].x + v[i].y + v[i].z + v[i].w;
    }
    sl_grid_launch_dependents();
    for (int d = 16; d > 0; d /= 2)
        s += __shfl_xor_sync(0xFFFFFFFFu, s, d);
    if (threadIdx.x % 32 == 0)
        atomicAdd(sum, s);
}

static __global__ void __launch_bounds__(READ_THREADS)
    copy_kernel(const uint4 *x, uint4 *y, uint64_t n_tiles)
{
    sl_grid_wait();
    for (uint64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        uint64_t from = tile * (4 * READ_THREADS) + threadIdx.x;
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = sl_ldg_stream16(x + from + i * READ_THREADS);
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[from + static_cast<uint64_t>(i) * READ_THREADS] = v[i];
    }
    sl_grid_launch_dependents();
}

/* What is read is written where it was. */
static __global__ void __launch_bounds__(READ_THREADS) update_kernel(uint4 *x, uint64_t n_tiles)
{
    sl_grid_wait();
    for (uint64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        uint4 *at = x + tile * (4 * READ_THREADS) + threadIdx.x, v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = at[i * READ_THREADS];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i].x ^= 1u;
            at[i * READ_THREADS] = v[i];
        }
    }
    sl_grid_launch_dependents();
}

static __global__ void empty_kernel()
{
    sl_grid_wait();
    sl_grid_launch_dependents();
}

static void read_call(int unroll, int ctas, const void *x, size_t n_bytes, unsigned *sum)
{
    const uint4 *from = static_cast<const uint4 *>(x);
    uint64_t tiles = n_bytes / (static_cast<size_t>(unroll) * READ_THREADS * 16);
    uint64_t grid = ctas == 0 ? tiles : std::min(tiles, static_cast<uint64_t>(ctas * b.cu->n_sms));
    dim3 blocks(static_cast<unsigned>(grid));
    if (unroll == 4)
        sl_launch(b.cu, read_kernel<4>, blocks, dim3(READ_THREADS), 0, from, tiles, sum);
    else if (unroll == 8)
        sl_launch(b.cu, read_kernel<8>, blocks, dim3(READ_THREADS), 0, from, tiles, sum);
    else
        sl_launch(b.cu, read_kernel<16>, blocks, dim3(READ_THREADS), 0, from, tiles, sum);
}

static void ceiling_row(const char *name, double us, double figure, const char *unit,
                        const char *note)
{
    printf("%-44s %10.1f us %9.1f %-8s %s\n", name, us, figure, unit, note);
    fflush(stdout);
}

/* The best of several grids; the sums must agree. */
static void read_ceiling(const dev<uint32_t> &x, dev<unsigned> &sum)
{
    static const int ctas[] = {1, 2, 4, 0};
    const size_t bytes = x.n * 4;
    double best = 0.0;
    int best_unroll = 8, best_ctas = 2;
    unsigned want = 0, got = 0;
    char note[96];
    for (int unroll = 4; unroll <= 16; unroll *= 2)
        for (int c : ctas) {
            double us =
                time_us(1, b.tiny ? 1 : 20, [&](int) { read_call(unroll, c, x.p, bytes, sum.p); });
            if (best == 0.0 || us < best)
                best = us, best_unroll = unroll, best_ctas = c;
            MUST(cudaMemsetAsync(sum.p, 0, sizeof got, b.cu->stream));
            read_call(unroll, c, x.p, bytes, sum.p);
            wait_all();
            sum.get(0, &got, 1);
            want = want == 0 ? got : want;
            CHECK(got == want, "sum %08x, not %08x", got, want);
        }
    best = time_us(1, b.tiny ? 1 : 100,
                   [&](int) { read_call(best_unroll, best_ctas, x.p, bytes, sum.p); });
    b.read_bps = static_cast<double>(bytes) / best * 1e6;
    snprintf(note, sizeof note, "%d x 16 bytes a thread, %d blocks an SM%s", best_unroll, best_ctas,
             best_ctas == 0 ? " (0: a block for each tile)" : "");
    ceiling_row(b.tiny ? "read stream" : "read stream, 4.3 GB", best, b.read_bps * 1e-9, "GB/s",
                note);
    size_t small = b.tiny ? bytes / 2 : static_cast<size_t>(24) << 20;
    double us = time_us(1, ROW_MS, [&](int) { read_call(4, 0, x.p, small, sum.p); });
    ceiling_row("the same in L2, 25 MB", us, gb_s(static_cast<double>(small), us), "GB/s", "");
}

static void copy_ceilings(const dev<uint32_t> &x)
{
    const size_t half = x.n * 2;
    uint8_t *from = reinterpret_cast<uint8_t *>(x.p), *to = from + half;
    double us = time_us(1, ROW_MS, [&](int) {
        MUST(cudaMemcpyAsync(to, from, half, cudaMemcpyDeviceToDevice, b.cu->stream));
    });
    ceiling_row("cudaMemcpy on the device", us, gb_s(2.0 * static_cast<double>(half), us), "GB/s",
                "read and written");
    b.rw_bps = 2.0 * static_cast<double>(half) / us * 1e6;
    uint64_t tiles = half / (4 * READ_THREADS * 16);
    us = time_us(1, ROW_MS, [&](int) {
        sl_launch(b.cu, copy_kernel, dim3(static_cast<unsigned>(tiles)), dim3(READ_THREADS), 0,
                  reinterpret_cast<const uint4 *>(from), reinterpret_cast<uint4 *>(to), tiles);
    });
    ceiling_row("a copying kernel", us, gb_s(2.0 * static_cast<double>(half), us), "GB/s",
                "read and written");
    b.rw_bps = std::max(b.rw_bps, 2.0 * static_cast<double>(half) / us * 1e6);
    tiles *= 2;
    us = time_us(1, ROW_MS, [&](int) {
        sl_launch(b.cu, update_kernel, dim3(static_cast<unsigned>(tiles)), dim3(READ_THREADS), 0,
                  reinterpret_cast<uint4 *>(from), tiles);
    });
    ceiling_row("a kernel that changes what it reads", us,
                gb_s(4.0 * static_cast<double>(half), us), "GB/s", "read and written");
    b.rw_bps = std::max(b.rw_bps, 4.0 * static_cast<double>(half) / us * 1e6);
}

static void gemm_ceiling(int size, enum lt_type type)
{
    const size_t n = static_cast<size_t>(size) * static_cast<size_t>(size);
    dev<uint16_t> w(n), x(n), y(n);
    int kind = type == LT_E4M3 ? FILL_E4M3 : FILL_BF16;
    fill(w.p, n, kind);
    fill(x.p, n, kind, n);
    std::vector<void *> copies = {w.p};
    double us = lt_time(size, size, size, type, LT_BF16, copies, x.p, y.p, 200);
    if (us == 0.0)
        return;
    double flops = 2.0 * size * size * size / us * 1e6;
    char name[64];
    snprintf(name, sizeof name, "cuBLASLt %s, %d x %d x %d", type == LT_E4M3 ? "FP8" : "BF16", size,
             size, size);
    ceiling_row(name, us, flops * 1e-12, "TFLOP/s",
                type == LT_E4M3 ? "E4M3, fast accumulation, BF16 out" : "BF16 out");
    if (type == LT_BF16)
        b.gemm_flops = std::max(b.gemm_flops, flops);
}

static void launch_ceiling(unsigned blocks, bool pdl)
{
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(blocks);
    cfg.blockDim = dim3(256);
    cfg.stream = b.cu->stream;
    double us = time_us(b.tiny ? 1 : 256, ROW_MS, [&](int) {
        if (pdl)
            sl_launch(b.cu, empty_kernel, dim3(blocks), dim3(256), 0);
        else
            MUST(cudaLaunchKernelEx(&cfg, empty_kernel));
    });
    char name[64];
    snprintf(name, sizeof name, "empty kernel in a graph, %u block%s, %s", blocks,
             blocks == 1 ? "" : "s", pdl ? "early start" : "plain");
    printf("%-44s %10.2f us\n", name, us);
    fflush(stdout);
}

static void run_ceilings()
{
    printf("\n== ceilings\n");
    {
        dev<uint32_t> x(static_cast<size_t>(b.tiny ? 1 << 16 : 1 << 30));
        dev<unsigned> sum(1);
        fill(x.p, x.n, FILL_F32);
        read_ceiling(x, sum);
        copy_ceilings(x);
    }
    if (!b.tiny) {
        gemm_ceiling(4096, LT_BF16);
        gemm_ceiling(8192, LT_BF16);
        gemm_ceiling(8192, LT_E4M3);
    }
    for (unsigned blocks : {1u, static_cast<unsigned>(b.cu->n_sms)}) {
        launch_ceiling(blocks, false);
        launch_ceiling(blocks, true);
    }
}

#endif
