/* SPDX-License-Identifier: MIT
 * The simulator's search for races of shared memory: every kernel here runs once and in one order,
 * the faulty ones are found nevertheless and the correct ones are not. This program is compiled
 * with SL_SIM_RACE (see the Makefile), which has no ASan.
 */
#include "sim_test.h"

static void run_on_64(void (*k)(int *))
{
    sim_device d;
    sim_buffer<int> buf(std::vector<int>(1024, 7));
    sl_launch(&d.cu, k, dim3(2), dim3(64), 8192, buf.p);
    d.sync();
}

/* What a warp and a block do with shared memory, each with the barrier it needs or without. */
template <bool SYNC> static void k_between_warps(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x] = 1;
    if (SYNC)
        __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}

template <bool SYNC> static void k_in_warp(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x] = 1;
    if (SYNC)
        __syncwarp();
    else
        __any_sync(0xffffffffu, 1); /* meets, but orders no memory */
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}

template <bool SYNC> static void k_reuse(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    int sum = 0;
    for (int i = 0; i < 3; i++) {
        s[threadIdx.x] = 1; /* the same value each time: no result shows it */
        __syncthreads();
        sum += s[threadIdx.x ^ 32];
        if (SYNC)
            __syncthreads();
    }
    out[threadIdx.x] = sum;
}

template <bool SYNC> static void k_bytes(int *out)
{
    SL_SMEM(uint8_t, s);
    sl_grid_wait();
    s[threadIdx.x] = 1; /* neighbours in a word are no race */
    s[SYNC ? threadIdx.x + 64 : 64] = static_cast<uint8_t>(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}

/* Several threads store to one place: harmless if it is the same. */
template <bool SYNC> static void k_same_value(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x / 4] = SYNC ? 3 : static_cast<int>(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x / 8];
}

template <bool SYNC> static void k_named(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    s[threadIdx.x] = 1;
    sl_bar_sync(static_cast<int>(1 + threadIdx.x / 32), 32); /* a barrier of each warp */
    if (SYNC)
        sl_bar_sync(3, 64);
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}

template <bool SYNC> static void k_ldmatrix(int *out)
{
    SL_SMEM(uint32_t, s);
    sl_grid_wait();
    for (uint32_t i = threadIdx.x; i < 128; i += 64)
        s[i] = i;
    if (SYNC)
        __syncthreads();
    uint32_t r[4];
    sl_ldmatrix_x4(r, s + threadIdx.x % 32 * 4);
    out[threadIdx.x] = static_cast<int>(r[0]);
}

template <bool SYNC> static void k_atomics(int *out)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    if (threadIdx.x == 0)
        s[0] = 0;
    __syncthreads();
    atomicAdd(s, 1);
    if (SYNC)
        __syncthreads();
    else
        s[0] = 5;
    __syncthreads();
    out[threadIdx.x] = s[0];
}

/* Bulk copies through two stages; EARLY: a reader says too soon that it is done; without FENCE
 * copies write where others have read, and nothing orders the proxies. */
template <bool EARLY, bool FENCE> static void ring(int *buf)
{
    SL_SMEM(uint8_t, smem);
    uint64_t *full = reinterpret_cast<uint64_t *>(smem + 4096), *empty = full + 2;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            sl_mbar_init(full + i, 1);
            sl_mbar_init(empty + i, 32);
        }
        sl_mbar_fence_init();
    }
    __syncthreads();
    sl_grid_wait();
    int sum = 0;
    for (unsigned t = 0; t < 6; t++) {
        unsigned s = t % 2, round = t / 2;
        if (threadIdx.x == 0) {
            sl_mbar_wait(empty + s, (round & 1) ^ 1);
            sl_mbar_expect_tx(full + s, 256);
            sl_bulk_load(smem + s * 2048, buf, 256, full + s);
        } else if (threadIdx.x >= 32) {
            sl_mbar_wait(full + s, round & 1);
            if (EARLY)
                sl_mbar_arrive(empty + s);
            sum += smem[s * 2048 + threadIdx.x];
            if (FENCE)
                sl_fence_proxy_async();
            if (!EARLY)
                sl_mbar_arrive(empty + s);
        }
    }
    if (threadIdx.x >= 32)
        buf[512 + blockIdx.x * 64 + threadIdx.x] = sum;
}

template <bool SYNC> static void k_ring(int *buf)
{
    ring<!SYNC, true>(buf);
}

template <bool SYNC> static void k_proxies(int *buf)
{
    ring<false, SYNC>(buf);
}

template <bool SYNC> static void k_cp_async(int *buf)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    sl_cp_async16(s + threadIdx.x * 4, buf + threadIdx.x * 4, true);
    sl_cp_async_commit();
    sl_cp_async_wait<0>();
    if (SYNC)
        __syncthreads();
    buf[512 + threadIdx.x] = s[(threadIdx.x ^ 1) * 4];
}

#define PAIR(k)                                       \
    static void k##_bad()                             \
    {                                                 \
        run_on_64(k<false>);                          \
    }                                                 \
    static void test_##k(void **)                     \
    {                                                 \
        for (uint64_t seed = 1; seed <= 10; seed++) { \
            sl_sim_seed(seed);                        \
            run_on_64(k<true>);                       \
        }                                             \
        expect_death(k##_bad, "race on shared + ");   \
    }
PAIR(k_between_warps)
PAIR(k_in_warp)
PAIR(k_reuse)
PAIR(k_bytes)
PAIR(k_same_value)
PAIR(k_named)
PAIR(k_ldmatrix)
PAIR(k_atomics)
PAIR(k_ring)
PAIR(k_proxies)
PAIR(k_cp_async)

static void test_message(void **)
{
    expect_death(k_reuse_bad, " it at test_cuda_sim_race.cc:");
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_k_between_warps), cmocka_unit_test(test_k_in_warp),
        cmocka_unit_test(test_k_reuse),         cmocka_unit_test(test_k_bytes),
        cmocka_unit_test(test_k_named),         cmocka_unit_test(test_k_same_value),
        cmocka_unit_test(test_k_ldmatrix),      cmocka_unit_test(test_k_atomics),
        cmocka_unit_test(test_k_ring),          cmocka_unit_test(test_k_cp_async),
        cmocka_unit_test(test_k_proxies),       cmocka_unit_test(test_message),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
