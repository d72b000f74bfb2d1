/* SPDX-License-Identifier: MIT
 * The simulator computes what the device does: fragments of mma and ldmatrix as the PTX manual
 * gives them, shuffles, rounding of 16-bit floats, pipelines of asynchronous copies under many
 * orders; streams, events and graphs keep the order they promise and no other.
 */
#include "sim_test.h"

#include <chrono>
#include <set>

/* ---------------------------------------------------------------- matrices */

/* Where the PTX manual puts element i of a lane: m16n8k16 with 16-bit operands. */
static int a_row(int lane, int i)
{
    return lane / 4 + (i < 2 || (i >= 4 && i < 6) ? 0 : 8);
}
static int a_col(int lane, int i)
{
    return lane % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0);
}
static int b_row(int lane, int i)
{
    return lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0);
}
static int b_col(int lane, int)
{
    return lane / 4;
}
static int c_row(int lane, int i)
{
    return lane / 4 + (i < 2 ? 0 : 8);
}
static int c_col(int lane, int i)
{
    return lane % 4 * 2 + (i & 1);
}

static uint16_t bits(__nv_bfloat16 v)
{
    return __bfloat16_as_ushort(v);
}
static uint16_t bits(__half v)
{
    return __half_as_ushort(v);
}
static void mma(float *c, const uint32_t *a, const uint32_t *b, __nv_bfloat16)
{
    sl_mma_bf16(c, a, b);
}
static void mma(float *c, const uint32_t *a, const uint32_t *b, __half)
{
    sl_mma_f16(c, a, b);
}

/* One product with fragments filled by hand. */
template <typename T> static void k_fragments(const T *a, const T *b, const float *c, float *out)
{
    sl_grid_wait();
    int lane = static_cast<int>(threadIdx.x);
    uint32_t fa[4], fb[2];
    float fc[4];
    for (int i = 0; i < 8; i += 2)
        fa[i / 2] = bits(a[a_row(lane, i) * 16 + a_col(lane, i)]) |
                    static_cast<uint32_t>(bits(a[a_row(lane, i + 1) * 16 + a_col(lane, i + 1)]))
                        << 16;
    for (int i = 0; i < 4; i += 2)
        fb[i / 2] = bits(b[b_row(lane, i) * 8 + b_col(lane, i)]) |
                    static_cast<uint32_t>(bits(b[b_row(lane, i + 1) * 8 + b_col(lane, i + 1)]))
                        << 16;
    for (int i = 0; i < 4; i++)
        fc[i] = c[c_row(lane, i) * 8 + c_col(lane, i)];
    mma(fc, fa, fb, T());
    for (int i = 0; i < 4; i++)
        out[c_row(lane, i) * 8 + c_col(lane, i)] = fc[i];
}

template <typename T> static std::vector<T> random_values(size_t n)
{
    std::vector<T> v(n);
    for (T &x : v)
        x = T(static_cast<float>(static_cast<int64_t>(sl_sim_random() % 2001) - 1000) / 1000.0f);
    return v;
}

template <typename T> static void check_fragments()
{
    sim_device d;
    std::vector<T> a = random_values<T>(256), b = random_values<T>(128);
    std::vector<float> c = random_values<float>(128);
    sim_buffer<T> da(a), db(b);
    sim_buffer<float> dc(c), dout(128);
    sl_launch(&d.cu, k_fragments<T>, dim3(1), dim3(32), 0, da.p, db.p, dc.p, dout.p);
    d.sync();
    std::vector<float> got = dout.get();
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++) {
            float want = c[i * 8 + j];
            for (size_t k = 0; k < 16; k++)
                want += static_cast<float>(a[i * 16 + k]) * static_cast<float>(b[k * 8 + j]);
            assert_true(got[i * 8 + j] == want);
        }
}

static void test_fragments(void **)
{
    check_fragments<__nv_bfloat16>();
    check_fragments<__half>();
}

/* c = a b, a [m, k] row-major; b as [n, k] or, TRANS, as [k, n]. A block does 16 rows and 32
 * columns, a warp 8 of those; tiles go through shared memory and ldmatrix. */
template <bool TRANS>
static void k_gemm(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int n, int k)
{
    SL_SMEM(__nv_bfloat16, s);
    sl_grid_wait();
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    int row0 = blockIdx.x * 16, col0 = blockIdx.y * 32 + warp * 8;
    __nv_bfloat16 *sa = s, *sb = s + 256 + warp * 128;
    float acc[4] = {0, 0, 0, 0};
    for (int k0 = 0; k0 < k; k0 += 16) {
        int r = lane / 2, h = lane % 2 * 8;
        if (warp == 0)
            sl_cp_async16(sa + r * 16 + h, a + (row0 + r) * k + k0 + h, true);
        if (TRANS && h == 0) /* 16 rows of 8 */
            sl_cp_async16(sb + r * 8, b + (k0 + r) * n + col0, true);
        if (!TRANS && r < 8) /* 8 rows of 16 */
            sl_cp_async16(sb + r * 16 + h, b + (col0 + r) * k + k0 + h, true);
        sl_cp_async_commit();
        sl_cp_async_wait<0>();
        __syncthreads();
        uint32_t fa[4], fb[2];
        sl_ldmatrix_x4(fa, sa + lane % 16 * 16 + lane / 16 * 8);
        if (TRANS)
            sl_ldmatrix_x2_trans(fb, sb + lane % 16 * 8);
        else
            sl_ldmatrix_x2(fb, sb + lane % 8 * 16 + lane / 8 % 2 * 8);
        sl_mma_bf16(acc, fa, fb);
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        c[(row0 + c_row(lane, i)) * n + col0 + c_col(lane, i)] = acc[i];
}

template <bool TRANS> static void check_gemm(int m, int n, int k)
{
    sim_device d;
    size_t um = static_cast<size_t>(m), un = static_cast<size_t>(n), uk = static_cast<size_t>(k);
    auto a = random_values<__nv_bfloat16>(um * uk), b = random_values<__nv_bfloat16>(un * uk);
    sim_buffer<__nv_bfloat16> da(a), db(b);
    sim_buffer<float> dc(um * un);
    sl_launch(&d.cu, k_gemm<TRANS>, dim3(um / 16, un / 32), dim3(128), 1536, da.p, db.p, dc.p, n,
              k);
    d.sync();
    std::vector<float> got = dc.get();
    for (size_t i = 0; i < um; i++)
        for (size_t j = 0; j < un; j++) {
            float want = 0.0f;
            for (size_t q = 0; q < uk; q++)
                want += static_cast<float>(a[i * uk + q]) *
                        static_cast<float>(TRANS ? b[q * un + j] : b[j * uk + q]);
            assert_true(got[i * un + j] == want);
        }
}

static void test_gemm(void **)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        sl_sim_seed(seed);
        check_gemm<false>(32, 64, 48);
        check_gemm<true>(32, 64, 48);
    }
    auto start = std::chrono::steady_clock::now();
    check_gemm<false>(64, 256, 256);
    std::chrono::duration<double> s = std::chrono::steady_clock::now() - start;
    print_message("64 x 256 x 256 with its check: %.2f s\n", s.count());
}

/* x4 against x2 of halves, and trans against the transposed matrix. */
static void k_ldmatrix(uint32_t *out)
{
    SL_SMEM(uint16_t, s);
    sl_grid_wait();
    uint32_t lane = threadIdx.x;
    for (uint32_t i = lane; i < 256; i += 32)
        s[i] = static_cast<uint16_t>(i); /* matrix i / 64, row i / 8 % 8, column i % 8 */
    __syncwarp();
    uint32_t r[4], t[4], lo[2], lo_t[2];
    sl_ldmatrix_x4(r, s + lane * 8);
    sl_ldmatrix_x4_trans(t, s + lane * 8);
    sl_ldmatrix_x2(lo, s + lane % 16 * 8);
    sl_ldmatrix_x2_trans(lo_t, s + lane % 16 * 8);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = lane / 4, col = lane % 4 * 2;
        uint32_t at = i * 64 + row * 8 + col, at_t = i * 64 + col * 8 + row;
        bool good = r[i] == (at | (at + 1) << 16) && t[i] == (at_t | (at_t + 8) << 16);
        if (i < 2)
            good = good && lo[i] == r[i] && lo_t[i] == t[i];
        out[lane * 4 + i] = good;
    }
}

static void test_ldmatrix(void **)
{
    sim_device d;
    sim_buffer<uint32_t> out(128);
    sl_launch(&d.cu, k_ldmatrix, dim3(1), dim3(32), 512, out.p);
    d.sync();
    for (uint32_t good : out.get())
        assert_int_equal(good, 1);
}

/* ---------------------------------------------------------------- warps */

static void k_warp(int *out)
{
    sl_grid_wait();
    int lane = threadIdx.x;
    int *o = out + lane * 16;
    o[0] = __shfl_sync(0xffffffffu, lane, 5);
    o[1] = __shfl_sync(0xffffffffu, lane, lane + 1);
    o[2] = __shfl_up_sync(0xffffffffu, lane, 3);
    o[3] = __shfl_down_sync(0xffffffffu, lane, 3);
    o[4] = __shfl_xor_sync(0xffffffffu, lane, 6);
    o[5] = __shfl_sync(0xffffffffu, lane, 2, 8);
    o[6] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
    o[7] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
    o[8] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
    o[9] = __reduce_add_sync(0xffffffffu, lane - 16);
    o[10] = __reduce_min_sync(0xffffffffu, lane - 16);
    o[11] = static_cast<int>(__reduce_max_sync(0xffffffffu, static_cast<unsigned>(lane)));
    o[12] = __any_sync(0xffffffffu, lane == 9) + 2 * __all_sync(0xffffffffu, lane == 9);
    if (lane < 16) /* two halves, each with a collective of its own */
        o[13] = __reduce_add_sync(0x0000ffffu, 1);
    else
        o[13] = __reduce_add_sync(0xffff0000u, 2);
    o[14] =
        __shfl_xor_sync(0xffffffffu, static_cast<float>(lane), 1) == static_cast<float>(lane ^ 1);
    o[15] = static_cast<int>(__match_any_sync(0xffffffffu, lane % 4));
}

static void test_warp(void **)
{
    sim_device d;
    sim_buffer<int> out(512);
    sl_launch(&d.cu, k_warp, dim3(1), dim3(32), 0, out.p);
    d.sync();
    std::vector<int> got = out.get();
    for (int lane = 0; lane < 32; lane++) {
        const int *o = &got[static_cast<size_t>(lane) * 16];
        int in8 = lane % 8;
        int want[16] = {5,
                        (lane + 1) % 32,
                        lane >= 3 ? lane - 3 : lane,
                        lane + 3 < 32 ? lane + 3 : lane,
                        lane ^ 6,
                        lane - in8 + 2,
                        in8 >= 3 ? lane - 3 : lane,
                        in8 + 3 < 8 ? lane + 3 : lane,
                        0x49249249,
                        -16,
                        -16,
                        31,
                        1,
                        lane < 16 ? 16 : 32,
                        1,
                        static_cast<int>(0x11111111u << (lane % 4))};
        for (int i = 0; i < 16; i++)
            assert_int_equal(o[i], want[i]);
    }
}

/* ---------------------------------------------------------------- 16-bit floats */

/* The nearest of all values v(0) <= v(1) <= ... for a positive x, ties to the even code. */
template <typename F> static uint16_t nearest(double x, int max_code, double beyond, F value)
{
    int lo = 0, hi = max_code;
    while (lo < hi) { /* the largest code whose value is <= x */
        int mid = (lo + hi + 1) / 2;
        if (value(mid) <= x)
            lo = mid;
        else
            hi = mid - 1;
    }
    double next = lo == max_code ? beyond : value(lo + 1);
    double below = x - value(lo), above = next - x;
    if (below < above || (below == above && lo % 2 == 0))
        return static_cast<uint16_t>(lo);
    return static_cast<uint16_t>(lo + 1);
}

static double bf16_value(int code)
{
    return static_cast<double>(__uint_as_float(static_cast<uint32_t>(code) << 16));
}

static double half_value(int code)
{
    int exp = code >> 10, frac = code & 1023;
    return exp ? ldexp(1.0 + frac / 1024.0, exp - 15) : ldexp(frac, -24);
}

static void test_rounding(void **)
{
    for (uint32_t h = 0; h < 65536; h++) { /* what is exact stays */
        float f = __bfloat162float(__ushort_as_bfloat16(static_cast<uint16_t>(h)));
        float g = __half2float(__ushort_as_half(static_cast<uint16_t>(h)));
        assert_int_equal(bits(__float2bfloat16_rn(f)), f != f ? 0x7fff : h);
        assert_int_equal(bits(__float2half_rn(g)), g != g ? 0x7fff : h);
        if (h < 0x7c00)
            assert_true(static_cast<double>(g) == half_value(static_cast<int>(h)));
    }
    for (int i = 0; i < 300000; i++) {
        uint32_t u = static_cast<uint32_t>(sl_sim_random()) & 0x7fffffffu;
        if (i % 3 == 1) /* the range of half, and often a tie */
            u = 0x32800000u + u % 0x15500000u;
        if (i % 3 == 2)
            u &= 0xfffff000u;
        float f = __uint_as_float(u);
        if (!(f < INFINITY))
            continue;
        double x = static_cast<double>(f);
        assert_int_equal(bits(__float2bfloat16_rn(f)), nearest(x, 0x7f7f, 0x1p128, bf16_value));
        assert_int_equal(bits(__float2bfloat16_rn(-f)),
                         0x8000 | nearest(x, 0x7f7f, 0x1p128, bf16_value));
        assert_int_equal(bits(__float2half_rn(f)),
                         x >= 65536 ? 0x7c00 : nearest(x, 0x7bff, 65536, half_value));
    }
    /* 1 + 2^-9 + 2^-30 is above a tie of bf16, which a rounding through float would lose. */
    assert_int_equal(bits(__double2bfloat16(1.0 + 0x1p-8 + 0x1p-30)), 0x3f81);
    __nv_bfloat16 one(1.0f), eps(0x1p-8f), tiny(0x1p-40f);
    assert_int_equal(bits(__hfma(eps, one, one)), 0x3f80);
    assert_int_equal(bits(__hadd(__hadd(one, eps), tiny)), 0x3f80);
    assert_int_equal(bits(__hfma(__nv_bfloat16(1.0f + 0x1p-7f), __nv_bfloat16(0x1p-8f), one)),
                     0x3f81);
}

/* ---------------------------------------------------------------- pipelines */

/* Sums n_tiles tiles of 1024 bytes through a ring of 3 stages: thread 0 of warp 0 loads, the other
 * warps add up. */
static void k_ring(const uint32_t *in, uint32_t *out, uint32_t n_tiles)
{
    SL_SMEM(uint8_t, smem);
    const uint32_t stages = 3, tile = 1024;
    uint64_t *full = reinterpret_cast<uint64_t *>(smem + stages * tile), *empty = full + stages;
    uint32_t consumers = blockDim.x - 32;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < stages; i++) {
            sl_mbar_init(full + i, 1);
            sl_mbar_init(empty + i, consumers);
        }
        sl_mbar_fence_init();
    }
    __syncthreads();
    sl_grid_wait();
    if (threadIdx.x == 0) {
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t s = t % stages;
            sl_mbar_wait(empty + s, (t / stages & 1) ^ 1);
            sl_mbar_expect_tx(full + s, tile);
            sl_bulk_load(smem + s * tile, in + t * 256, tile / 2, full + s);
            sl_bulk_load(smem + s * tile + tile / 2, in + t * 256 + 128, tile / 2, full + s);
        }
    } else if (threadIdx.x >= 32) {
        uint32_t sum = 0, me = threadIdx.x - 32;
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t s = t % stages;
            sl_mbar_wait(full + s, t / stages & 1);
            const uint32_t *v = reinterpret_cast<const uint32_t *>(smem + s * tile);
            for (uint32_t i = me; i < 256; i += consumers)
                sum += v[i] * (t + 1);
            sl_mbar_arrive(empty + s);
        }
        sl_bar_sync(1, static_cast<int>(consumers));
        atomicAdd(out + blockIdx.x, sum);
    }
}

static void test_ring(void **)
{
    const size_t tiles = 10;
    std::vector<uint32_t> in(tiles * 256);
    uint32_t want = 0;
    for (size_t i = 0; i < in.size(); i++) {
        in[i] = static_cast<uint32_t>(sl_sim_random());
        want += in[i] * static_cast<uint32_t>(i / 256 + 1);
    }
    for (uint64_t seed = 1; seed <= 30; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<uint32_t> din(in), dout(std::vector<uint32_t>(5, 0));
        sl_launch(&d.cu, k_ring, dim3(5), dim3(128), 4096, din.p, dout.p,
                  static_cast<uint32_t>(tiles));
        d.sync();
        for (uint32_t got : dout.get())
            assert_int_equal(got, want);
    }
}

/* Zero fill, groups, and the order of blocks: the last block to count adds up. */
static void k_last_block(const int *in, int *part, unsigned *count, int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    sl_cp_async16(s + threadIdx.x * 4, in + (blockIdx.x * 32 + threadIdx.x) * 4, threadIdx.x < 16);
    sl_cp_async_commit();
    sl_cp_async_commit(); /* an empty group */
    sl_cp_async_wait<1>();
    int sum = s[threadIdx.x * 4] + s[threadIdx.x * 4 + 3];
    sum = __reduce_add_sync(0xffffffffu, sum);
    unsigned before = 0;
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        __threadfence();
        before = atomicAdd(count, 1u);
    }
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before == gridDim.x - 1 && threadIdx.x == 0) {
        int all = 0;
        for (unsigned i = 0; i < gridDim.x; i++)
            all += part[i];
        *out = all + 1000000 * static_cast<int>(blockIdx.x);
    }
}

static void test_last_block(void **)
{
    std::set<int> last;
    std::vector<int> in(7 * 128, 1);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<int> din(in), part(7), out(1);
        sim_buffer<unsigned> count(std::vector<unsigned>(1, 0));
        sl_launch(&d.cu, k_last_block, dim3(7), dim3(32), 512, din.p, part.p, count.p, out.p);
        d.sync();
        int got = out.get()[0];
        assert_int_equal(got % 1000000, 7 * 32);
        last.insert(got / 1000000);
    }
    assert_true(last.size() >= 5); /* blocks come in many orders */
}

static void k_three_dims(int *out)
{
    sl_grid_wait();
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    atomicAdd(out + block * 64 + thread, 1);
}

static void test_launch(void **)
{
    sim_device d;
    sim_buffer<int> out(std::vector<int>(24 * 64, 0));
    sl_launch(&d.cu, k_three_dims, dim3(2, 3, 4), dim3(4, 8, 2), 0, out.p);
    sl_launch(&d.cu, k_three_dims, dim3(0), dim3(32), 0, out.p);
    sl_launch(&d.cu, k_three_dims, dim3(1, 0), dim3(32), 0, out.p);
    d.sync();
    for (int v : out.get())
        assert_int_equal(v, 1);
    /* More than 48 KB must be asked for, which sl_launch does; 228 KB nobody gets. */
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(1);
    cfg.blockDim = dim3(32);
    cfg.stream = d.cu.stream;
    cfg.dynamicSmemBytes = 100000;
    assert_int_equal(cudaLaunchKernelEx(&cfg, k_three_dims, out.p), cudaErrorInvalidValue);
    for (size_t smem : {size_t(60000), size_t(100000), size_t(227) << 10})
        sl_launch(&d.cu, k_three_dims, dim3(1), dim3(32), smem, out.p);
    d.sync();
    sl_launch(&d.cu, k_three_dims, dim3(1), dim3(32), 228u << 10, out.p);
    assert_int_equal(d.cu.error, cudaErrorInvalidValue);
    assert_string_equal(d.cu.error_what, "kernel launch");
    cudaGetLastError();
}

/* Each block adds up what all blocks of its cluster have, twice with the roles changed. */
static void k_cluster(uint32_t n, int *out)
{
    SL_SMEM(int, s);
    uint32_t me = sl_cluster_rank(), t = threadIdx.x;
    s[t] = static_cast<int>(me * 100 + t);
    sl_grid_wait();
    sl_cluster_sync();
    int sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += *sl_cluster_map(s + t, i);
    *sl_cluster_map(s + 64 + t, (me + 1) % n) = sum + static_cast<int>(me);
    sl_cluster_sync();
    out[(blockIdx.y * gridDim.x + blockIdx.x) * 64 + t] = s[64 + t];
}

static void test_clusters(void **)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        unsigned n = 1u << seed % 4, grid = 2 * n;
        sim_buffer<int> out(std::vector<int>(grid * 3 * 64, -1));
        sl_launch_cluster(&d.cu, k_cluster, dim3(grid, 3), dim3(64), 128 * sizeof(int), n, n,
                          out.p);
        d.sync();
        std::vector<int> got = out.get();
        for (unsigned i = 0; i < got.size(); i++) {
            unsigned t = i % 64, before = (i / 64 + n - 1) % n;
            assert_int_equal(got[i], 100 * (n * (n - 1) / 2) + n * t + before);
        }
    }
    sim_device d;
    sim_buffer<int> out(64);
    sl_launch_cluster(&d.cu, k_cluster, dim3(6), dim3(64), 512, 4, 4u, out.p);
    assert_int_equal(d.cu.error, cudaErrorInvalidConfiguration);
    cudaGetLastError();
}

/* Each block stores to the next one of its cluster, whose barrier says when all of it has come;
 * the barrier of the cluster is waited for only then. */
static void k_store_at(uint32_t n, float *out)
{
    SL_SMEM(uint8_t, s);
    auto bar = reinterpret_cast<uint64_t *>(s);
    auto values = reinterpret_cast<float4 *>(s + 16);
    uint32_t me = sl_cluster_rank(), t = threadIdx.x;
    auto v = static_cast<float>(me * 100 + t);
    if (t == 0) {
        sl_mbar_init(bar, 1);
        sl_mbar_expect_tx(bar, 64 * 16);
        sl_mbar_fence_init();
    }
    sl_cluster_arrive();
    sl_grid_wait();
    sl_cluster_wait();
    sl_store_at(values + t, make_float4(v, v + 0.25f, v + 0.5f, v + 0.75f), bar, (me + 1) % n);
    sl_mbar_wait(bar, 0);
    float4 got = values[t];
    out[blockIdx.x * 64 + t] = got.x + got.y + got.z + got.w;
}

static void test_store_at(void **)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        unsigned n = 1u << seed % 3, grid = 2 * n;
        sim_buffer<float> out(std::vector<float>(grid * 64, -1.0f));
        sl_launch_cluster(&d.cu, k_store_at, dim3(grid), dim3(64), 2048, n, n, out.p);
        d.sync();
        std::vector<float> got = out.get();
        for (unsigned i = 0; i < got.size(); i++) {
            unsigned before = (i / 64 + n - 1) % n;
            assert_true(got[i] == 4.0f * static_cast<float>(100 * before + i % 64) + 1.5f);
        }
    }
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fragments),  cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_ldmatrix),   cmocka_unit_test(test_warp),
        cmocka_unit_test(test_rounding),   cmocka_unit_test(test_ring),
        cmocka_unit_test(test_last_block), cmocka_unit_test(test_launch),
        cmocka_unit_test(test_clusters),   cmocka_unit_test(test_store_at),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
