/* SPDX-License-Identifier: MIT
 * The simulator sees what it is for: each kernel here breaks one rule, and the simulator must say
 * so, or let the result show it under some seed while the kernel without the fault never does.
 */
#include "sim_test.h"

#include "cuda/ptx_peer.cuh"

template <typename... P, typename... A>
static void launch(void (*k)(P...), dim3 grid, dim3 block, size_t smem, A... args)
{
    sim_device d;
    sl_launch(&d.cu, k, grid, block, smem, args...);
    d.sync();
}

/* ---------------------------------------------------------------- memory */

static void k_shared_overrun(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x + 1] = 1; /* the last thread writes behind the end */
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

static void k_global_overrun(int *out, int n)
{
    sl_grid_wait();
    out[n] = static_cast<int>(threadIdx.x);
}

static void k_read(const int *in, int *out)
{
    sl_grid_wait();
    out[threadIdx.x] = in[threadIdx.x];
}

static void shared_overrun()
{
    sim_buffer<int> out(64);
    launch(k_shared_overrun, dim3(1), dim3(64), 64 * sizeof(int), out.p);
}

static void global_overrun()
{
    sim_buffer<int> out(33);
    launch(k_global_overrun, dim3(1), dim3(32), 0, out.p, 33);
}

static void global_underrun()
{
    sim_buffer<int> out(32);
    launch(k_global_overrun, dim3(1), dim3(32), 0, out.p, -1);
}

static void use_after_free()
{
    sim_buffer<int> out(32);
    int *in;
    cudaMalloc(&in, 32 * sizeof(int));
    cudaFree(in);
    launch(k_read, dim3(1), dim3(32), 0, in, out.p);
}

static void misaligned_vector()
{
    auto k = [](const int *in, int *out) {
        sl_grid_wait();
        const int4 *v = reinterpret_cast<const int4 *>(in + 1);
        out[threadIdx.x] = v[0].x;
    };
    sim_buffer<int> in(32), out(32);
    launch(+k, dim3(1), dim3(32), 0, in.p, out.p);
}

static void host_reads_device()
{
    sim_buffer<int> out(32);
    volatile int *p = out.p;
    printf("%d", *p);
}

static void copy_too_long()
{
    sim_buffer<int> out(32);
    std::vector<int> v(64);
    cudaMemcpy(v.data(), out.p, 64 * sizeof(int), cudaMemcpyDeviceToHost);
}

static void copy_wrong_kind()
{
    sim_buffer<int> out(32);
    std::vector<int> v(32);
    cudaMemcpy(v.data(), out.p, 32 * sizeof(int), cudaMemcpyHostToDevice);
}

static void leak()
{
    int *p;
    cudaMalloc(&p, 100);
    exit(0);
}

static void test_memory(void **)
{
    expect_death(shared_overrun, "use-after-poison");
    expect_death(shared_overrun, "simulator: died in kernel k_shared_overrun");
    expect_death(global_overrun, "use-after-poison");
    expect_death(global_underrun, "use-after-poison");
    expect_death(use_after_free, "use-after-poison");
    expect_death(misaligned_vector, "misaligned address");
    expect_death(host_reads_device, ""); /* a plain crash */
    expect_death(copy_too_long, "are not one allocation of device memory");
    expect_death(copy_wrong_kind, "the kind says");
    expect_death(leak, "simulator: leak: 100 bytes of device memory");
}

/* ---------------------------------------------------------------- barriers */

/* Each thread reads what one of another warp wrote. */
template <bool BARRIER> static void k_exchange(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (BARRIER)
        __syncthreads();
    out[threadIdx.x] = s[(threadIdx.x + 32) % blockDim.x];
}

/* Each lane reads what its neighbour wrote. */
template <bool BARRIER> static void k_exchange_in_warp(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (BARRIER)
        __syncwarp();
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}

/* The second round overwrites what the first may still be read from. */
template <bool BARRIER> static void k_two_rounds(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    int sum = 0;
    for (int round = 0; round < 2; round++) {
        s[threadIdx.x] = static_cast<int>(threadIdx.x) + 1000 * round;
        __syncthreads();
        sum += s[(threadIdx.x + 32) % blockDim.x];
        if (BARRIER)
            __syncthreads();
    }
    out[threadIdx.x] = sum;
}

/* In how many of 40 seeds the kernel's result differs from want(i). */
static int wrong_seeds(void (*k)(int *), int n, int (*want)(int i, int n))
{
    int wrong = 0;
    for (int seed = 1; seed <= 40; seed++) {
        sl_sim_seed(static_cast<uint64_t>(seed));
        sim_device d;
        sim_buffer<int> out(static_cast<size_t>(n));
        sl_launch(&d.cu, k, dim3(1), dim3(static_cast<unsigned>(n)),
                  static_cast<size_t>(n) * sizeof(int), out.p);
        d.sync();
        std::vector<int> got = out.get();
        bool bad = false;
        for (int i = 0; i < n; i++)
            bad |= got[static_cast<size_t>(i)] != want(i, n);
        wrong += bad;
    }
    return wrong;
}

static void test_missing_barrier(void **)
{
    auto other_warp = [](int i, int n) { return (i + 32) % n; };
    auto neighbour = [](int i, int) { return i ^ 1; };
    auto both = [](int i, int n) { return 2 * ((i + 32) % n) + 1000; };
    assert_int_equal(wrong_seeds(k_exchange<true>, 128, other_warp), 0);
    assert_true(wrong_seeds(k_exchange<false>, 128, other_warp) >= 30);
    assert_int_equal(wrong_seeds(k_exchange_in_warp<true>, 64, neighbour), 0);
    assert_true(wrong_seeds(k_exchange_in_warp<false>, 64, neighbour) >= 30);
    assert_int_equal(wrong_seeds(k_two_rounds<true>, 128, both), 0);
    assert_true(wrong_seeds(k_two_rounds<false>, 128, both) >= 30);
}

static void run_on_64(void (*k)(int *))
{
    sim_buffer<int> out(64);
    launch(k, dim3(1), dim3(64), 4096, out.p);
}

static void barrier_of_half()
{
    run_on_64([](int *) {
        sl_grid_wait();
        if (threadIdx.x < 32)
            __syncthreads();
    });
}

static void barriers_at_two_places()
{
    run_on_64([](int *) {
        sl_grid_wait();
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __syncthreads();
    });
}

static void divergent_named_barrier()
{
    run_on_64([](int *) {
        sl_grid_wait();
        if (threadIdx.x % 2)
            sl_bar_sync(1, 64);
        else
            sl_bar_sync(1, 64);
    });
}

static void barrier_counts_differ()
{
    run_on_64([](int *) {
        sl_grid_wait();
        sl_bar_sync(1, threadIdx.x < 32 ? 64 : 32);
    });
}

static void test_barrier_faults(void **)
{
    expect_death(barrier_of_half, "threads 0..31 wait at barrier 0 at test_cuda_sim_faults.cc:");
    expect_death(barrier_of_half, "threads 32..63 have ended");
    expect_death(barriers_at_two_places, "but other threads wait in the one at");
    expect_death(divergent_named_barrier, "lanes of a warp at different barriers");
    expect_death(barrier_counts_differ, "but others wait at it with");
}

/* ---------------------------------------------------------------- warps */

static void lane_missing()
{
    run_on_64([](int *out) {
        sl_grid_wait();
        if (threadIdx.x % 32 != 7)
            out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
    });
}

static void mask_without_caller()
{
    run_on_64([](int *out) {
        sl_grid_wait();
        out[threadIdx.x] = __shfl_xor_sync(0x7fffffffu, 1, 1);
    });
}

static void collectives_differ()
{
    run_on_64([](int *out) {
        sl_grid_wait();
        if (threadIdx.x % 2)
            out[threadIdx.x] = __any_sync(0xffffffffu, 1);
        else
            out[threadIdx.x] = __all_sync(0xffffffffu, 1);
    });
}

static void masks_that_never_meet()
{
    run_on_64([](int *out) {
        sl_grid_wait();
        uint32_t mask = threadIdx.x % 32 < 16 ? 0xffffffffu : 0xffff8000u;
        out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1);
    });
}

static void mma_in_branches()
{
    run_on_64([](int *out) {
        sl_grid_wait();
        uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
        float c[4] = {0, 0, 0, 0};
        if (threadIdx.x % 2)
            sl_mma_bf16(c, a, b);
        else
            sl_mma_bf16(c, a, b);
        out[threadIdx.x] = static_cast<int>(c[0]);
    });
}

static void source_outside_mask()
{
    run_on_64([](int *out) {
        sl_grid_wait();
        if (threadIdx.x % 32 < 16)
            out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
    });
}

static void odd_block()
{
    sim_buffer<int> out(64);
    launch(k_exchange<true>, dim3(1), dim3(48), 4096, out.p);
}

static void test_warp_faults(void **)
{
    expect_death(lane_missing, "__shfl_xor_sync");
    expect_death(mask_without_caller, "leaves out lane 31, which calls it");
    expect_death(collectives_differ, "of its warp wait in __a");
    expect_death(masks_that_never_meet, "wait in __shfl_xor_sync with mask 0xffff8000");
    expect_death(mma_in_branches, "of its warp wait in sl_mma_bf16");
    expect_death(source_outside_mask, "reads lane 20, which mask 0xffff leaves out");
    expect_death(odd_block, "not a multiple of 32");
}

/* ---------------------------------------------------------------- asynchronous copies */

static void run_copy(void (*k)(const uint8_t *, int *))
{
    sim_buffer<uint8_t> in(std::vector<uint8_t>(4096, 1));
    sim_buffer<int> out(64);
    for (uint64_t seed = 1; seed <= 20; seed++) { /* one copy may land at once */
        sl_sim_seed(seed);
        launch(k, dim3(1), dim3(64), 8192, in.p, out.p);
    }
}

static void read_before_wait()
{
    run_copy([](const uint8_t *in, int *out) {
        SL_SMEM(uint8_t, s);
        sl_grid_wait();
        sl_cp_async16(s + 16 * threadIdx.x, in + 16 * threadIdx.x, true);
        sl_cp_async_commit();
        out[threadIdx.x] = s[16 * threadIdx.x];
        sl_cp_async_wait<0>();
    });
}

static void wait_for_too_few()
{
    run_copy([](const uint8_t *in, int *out) {
        SL_SMEM(uint8_t, s);
        sl_grid_wait();
        for (unsigned i = 0; i < 2; i++) {
            sl_cp_async16(s + 16 * (threadIdx.x + 64 * i), in + 16 * threadIdx.x, true);
            sl_cp_async_commit();
        }
        sl_cp_async_wait<1>();
        __syncthreads();
        out[threadIdx.x] = s[16 * threadIdx.x] + s[16 * (threadIdx.x + 64)];
        sl_cp_async_wait<0>();
    });
}

static void copies_left()
{
    run_copy([](const uint8_t *in, int *) {
        SL_SMEM(uint8_t, s);
        sl_grid_wait();
        sl_cp_async16(s + 16 * threadIdx.x, in, true);
    });
}

static void ldmatrix_before_wait()
{
    run_copy([](const uint8_t *in, int *out) {
        SL_SMEM(uint8_t, s);
        sl_grid_wait();
        uint32_t r[4];
        sl_cp_async16(s + 16 * threadIdx.x, in + 16 * threadIdx.x, true);
        sl_cp_async_commit();
        sl_ldmatrix_x4(r, s + 16 * threadIdx.x);
        sl_cp_async_wait<0>();
        out[threadIdx.x] = static_cast<int>(r[0]);
    });
}

static void copy_past_the_end()
{
    run_copy([](const uint8_t *in, int *) {
        SL_SMEM(uint8_t, s);
        sl_grid_wait();
        sl_cp_async16(s + 16 * threadIdx.x, in + 4096 - 512 + 16 * threadIdx.x, true);
        sl_cp_async_commit();
        sl_cp_async_wait<0>();
    });
}

/* A bulk copy of 4096 bytes by thread 0; expect: what the barrier is told. */
static void bulk(const uint8_t *in, int *out, uint32_t expect, bool wait)
{
    SL_SMEM(uint8_t, s);
    uint64_t *bar = reinterpret_cast<uint64_t *>(s + 4096);
    if (threadIdx.x == 0) {
        sl_mbar_init(bar, 1);
        sl_mbar_fence_init();
    }
    __syncthreads();
    sl_grid_wait();
    if (threadIdx.x == 0) {
        sl_mbar_expect_tx(bar, expect);
        sl_bulk_load(s, in, 4096, bar);
    }
    if (wait)
        sl_mbar_wait(bar, 0);
    out[threadIdx.x] = s[threadIdx.x];
    __syncthreads();
    sl_mbar_wait(bar, 0);
}

static void bulk_not_waited()
{
    run_copy([](const uint8_t *in, int *out) { bulk(in, out, 4096, false); });
}

static void bulk_expects_more()
{
    run_copy([](const uint8_t *in, int *out) { bulk(in, out, 4096 + 16, true); });
}

static void bulk_good()
{
    run_copy([](const uint8_t *in, int *out) { bulk(in, out, 4096, true); });
}

static void mbar_arrivals()
{
    run_copy([](const uint8_t *, int *) {
        SL_SMEM(uint64_t, bar);
        sl_grid_wait();
        if (threadIdx.x == 0) {
            sl_mbar_init(bar, 64);
            bar[1] = 0;
        }
        __syncthreads();
        if (threadIdx.x == 0)
            sl_mbar_arrive(bar);
        if (threadIdx.x != 63)
            sl_mbar_arrive(bar);
        sl_mbar_wait(bar, 1); /* passes: the phase before the first */
        if (threadIdx.x == 5)
            bar[0] = 0;
        __syncthreads();
        sl_mbar_wait(bar, 0);
    });
}

static void mbar_never_initialised()
{
    run_copy([](const uint8_t *, int *) {
        SL_SMEM(uint64_t, bar);
        sl_grid_wait();
        sl_mbar_arrive(bar);
    });
}

static void test_async_faults(void **)
{
    expect_death(read_before_wait, "use-after-poison");
    expect_death(wait_for_too_few, "use-after-poison");
    expect_death(copies_left, "ended with asynchronous copies it did not wait for");
    expect_death(ldmatrix_before_wait, "is being copied and not waited for");
    expect_death(copy_past_the_end, "are not device memory");
    bulk_good();
    expect_death(bulk_not_waited, "use-after-poison");
    expect_death(bulk_expects_more, "phase 0, 0 of 1 arrivals missing, 16 bytes outstanding");
    expect_death(mbar_arrivals, "was overwritten");
    expect_death(mbar_never_initialised, "no mbarrier was initialised");
}

/* ---------------------------------------------------------------- kernels that overlap */

static void no_grid_wait()
{
    run_on_64([](int *out) { out[threadIdx.x] = 1; });
}

static void k_fill(int *p, int v)
{
    sl_grid_wait();
    p[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

template <bool EARLY> static void k_copy(const int *in, int *out)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = 0;
    if (EARLY)
        v = in[i];
    sl_grid_wait();
    if (!EARLY)
        v = in[i];
    out[i] = v;
}

static int stale_seeds(void (*k)(const int *, int *))
{
    int stale = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<int> in(256), out(256);
        sl_launch(&d.cu, k_fill, dim3(4), dim3(64), 0, in.p, 5);
        sl_launch(&d.cu, k, dim3(4), dim3(64), 0, in.p, out.p);
        d.sync();
        bool bad = false;
        for (int v : out.get())
            bad |= v != 5;
        stale += bad;
    }
    return stale;
}

static void test_overlap(void **)
{
    expect_death(no_grid_wait, "ended without sl_grid_wait");
    assert_int_equal(stale_seeds(k_copy<false>), 0);
    assert_true(stale_seeds(k_copy<true>) >= 15);
}

/* ---------------------------------------------------------------- clusters */

enum cluster_fault { CLUSTER_BLOCK_ENDS, CLUSTER_HALF_WAITS, CLUSTER_NO_SUCH_BLOCK, CLUSTER_LATE };

static void k_cluster(cluster_fault fault, int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x] = 1;
    if (fault == CLUSTER_BLOCK_ENDS && sl_cluster_rank() == 1)
        return;
    if (fault == CLUSTER_HALF_WAITS && threadIdx.x < 32)
        __syncthreads();
    sl_cluster_sync();
    out[threadIdx.x] = *sl_cluster_map(s, fault == CLUSTER_NO_SUCH_BLOCK ? 2 : 1);
    if (fault != CLUSTER_LATE)
        sl_cluster_sync();
}

template <cluster_fault FAULT> static void cluster()
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<int> out(64);
        sl_launch_cluster(&d.cu, k_cluster, dim3(2), dim3(64), 256, 2, FAULT, out.p);
        d.sync();
    }
}

static void test_cluster_faults(void **)
{
    expect_death(cluster<CLUSTER_BLOCK_ENDS>, "other threads of the cluster have ended");
    expect_death(cluster<CLUSTER_HALF_WAITS>, "threads 32..63 wait in sl_cluster_sync at");
    expect_death(cluster<CLUSTER_NO_SUCH_BLOCK>, "block 2 of a cluster of 2");
    expect_death(cluster<CLUSTER_LATE>, "of a cluster, which has ended");
}

/* ---------------------------------------------------------------- several devices */

static void k_peer(const uint32_t *there, uint32_t *out, bool plain)
{
    sl_grid_wait();
    *out = plain ? *there : sl_peer_load(there);
}

/* Device 0 reads what is device 1's. */
template <bool ACCESS, bool PLAIN> static void peer()
{
    sl_sim_set_devices(2);
    cudaSetDevice(1);
    sim_buffer<uint32_t> there(std::vector<uint32_t>{7});
    cudaSetDevice(0);
    sim_device d;
    sim_buffer<uint32_t> out(1);
    if (ACCESS)
        cudaDeviceEnablePeerAccess(1, 0);
    sl_launch(&d.cu, k_peer, dim3(1), dim3(32), 0, there.p, out.p, PLAIN);
    d.sync();
    if (out.get()[0] != 7)
        abort();
}

static void peer_access()
{
    peer<true, false>();
    peer<true, true>();
    fprintf(stderr, "both were read\n");
    abort();
}

/* Of two devices that wait for each other one never answers. */
static void k_ping(uint32_t *own, uint32_t *there, uint32_t n)
{
    sl_grid_wait();
    for (uint32_t i = 1; i <= n; i++) {
        if (threadIdx.x == 0)
            atomicExch(there, i);
        while (sl_peer_load(own) < i)
            sl_peer_pause();
    }
}

static void test_devices(void **)
{
    expect_death(peer<false, false>, "memory of device 1, to which this one has no peer access");
    expect_death(peer<false, true>, "");
    expect_death(peer_access, "both were read");
    sl_sim_set_devices(2);
    sim_device d0;
    sim_buffer<uint32_t> a(std::vector<uint32_t>{0});
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    cudaSetDevice(1);
    assert_int_equal(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
    sim_device d1;
    sim_buffer<uint32_t> b(std::vector<uint32_t>{0});
    sl_launch(&d1.cu, k_ping, dim3(1), dim3(64), 0, b.p, a.p, 20u);
    cudaSetDevice(0);
    sl_launch(&d0.cu, k_ping, dim3(1), dim3(64), 0, a.p, b.p, 20u);
    d0.sync();
    d1.sync();
    assert_int_equal(a.get()[0], 20);
    assert_int_equal(b.get()[0], 20);
    sl_launch(&d1.cu, k_ping, dim3(1), dim3(64), 0, b.p, a.p, 20u); /* device 0 is current */
    assert_int_equal(d1.cu.error, cudaErrorInvalidResourceHandle);
    sl_sim_set_devices(1);
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_missing_barrier),
        cmocka_unit_test(test_barrier_faults), cmocka_unit_test(test_warp_faults),
        cmocka_unit_test(test_async_faults),   cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_cluster_faults), cmocka_unit_test(test_devices),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
