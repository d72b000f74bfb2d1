/* SPDX-License-Identifier: MIT
 * What sluice doctor measures of devices (cuda/measure.cu): on a device, rates that such hardware
 * has; in the simulator, where a copy takes a millisecond whatever it copies, what is copied how
 * often, what is refused, and that everything is given back.
 */
#include "cuda/cuda.h"

#include "base/check.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

static int n_passed, n_failed;

#define CHECK(cond)                                                \
    do {                                                           \
        if (cond) {                                                \
            n_passed++;                                            \
        } else {                                                   \
            n_failed++;                                            \
            printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #cond); \
        }                                                          \
    } while (0)

static void test_facts(int n_devices)
{
    struct sl_cuda_facts f[2];
    CHECK(!sl_cuda_facts(n_devices, &f[0]));
    CHECK(!sl_cuda_facts(-1, &f[0]));
    for (int i = 0; i < n_devices && i < 2; i++) {
        CHECK(sl_cuda_facts(i, &f[i]) && f[i].served);
        CHECK(strlen(f[i].pci) == 12 && strcmp(f[i].pci + 10, ".0") == 0);
    }
    if (n_devices > 1)
        CHECK(strcmp(f[0].pci, f[1].pci) != 0);
}

static void test_rates(int n_devices)
{
    struct sl_cuda_rates r = {};
    const size_t n = (size_t)1 << 28;
    CHECK(!sl_cuda_measure(n_devices, n, &r));
    CHECK(sl_cuda_measure(0, n, &r));
    printf("memory %.1f GB/s, from the host %.1f, to it %.1f\n", r.memory / 1e9, r.from_host / 1e9,
           r.to_host / 1e9);
    CHECK(r.memory > 1e12 && r.memory < 6e12);
    CHECK(r.from_host > 1e9 && r.from_host < 5e11 && r.to_host > 1e9 && r.to_host < 5e11);
    if (n_devices > 1) {
        const double rate = sl_cuda_measure_pair(0, 1, n);
        printf("to another device %.1f GB/s\n", rate / 1e9);
        CHECK(rate > 1e10 && rate < 1e12);
        CHECK(sl_cuda_measure_pair(0, 1, n) > 1e10); /* access is there already */
        CHECK(sl_cuda_measure_pair(0, n_devices, n) == 0);
    }
}

#ifdef SL_CUDA_SIM
/* Eight copies in a millisecond. */
static void test_what_is_copied(void)
{
    struct sl_cuda_rates r = {};
    const size_t n = 1 << 16;
    CHECK(sl_cuda_measure(0, n, &r));
    CHECK(r.memory == 2 * 8 * (double)n * 1e3);
    CHECK(r.from_host == 8 * (double)n * 1e3 && r.to_host == r.from_host);
    CHECK(sl_cuda_measure_pair(0, 1, n) == r.to_host);
    for (int i = 1; i <= 3; i++) { /* whichever allocation fails, there is no figure */
        sl_sim_fail_malloc(i < 3 ? i : 0);
        sl_sim_fail_malloc_host(i == 3);
        CHECK(!sl_cuda_measure(0, n, &r));
    }
    CHECK(sl_cuda_measure(0, n, &r));
}
#endif

int main(void)
{
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(2);
#endif
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("skip: no device\n");
        return 1;
    }
    test_facts(n_devices);
#ifdef SL_CUDA_SIM
    test_what_is_copied();
    (void)test_rates;
#else
    test_rates(n_devices);
#endif
    printf("test_measure: %d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}
