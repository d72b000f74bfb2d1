/* SPDX-License-Identifier: MIT
 * The simulator's runtime: streams that have done nothing until somebody waits, copies that read
 * their source late, events, graphs, and the failures a test can order.
 */
#include "sim_test.h"

static void k_add(int *p, int v)
{
    sl_grid_wait();
    p[blockIdx.x * blockDim.x + threadIdx.x] += v;
}

static void k_double(const int *in, int *out)
{
    sl_grid_wait();
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * in[i];
}

struct pinned {
    int *p = nullptr;
    explicit pinned(size_t n)
    {
        assert_int_equal(cudaMallocHost(&p, n * sizeof(int)), cudaSuccess);
    }
    pinned(const pinned &) = delete;
    ~pinned()
    {
        cudaFreeHost(p);
    }
};

/* ---------------------------------------------------------------- streams */

static void test_late_copies(void **)
{
    int early = 0, overwritten = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<int> dev(64);
        pinned in(64), out(64);
        for (int i = 0; i < 64; i++) {
            in.p[i] = i;
            out.p[i] = -1;
        }
        cudaMemcpyAsync(dev.p, in.p, 256, cudaMemcpyHostToDevice, d.cu.stream);
        sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, dev.p, 100);
        cudaMemcpyAsync(out.p, dev.p, 256, cudaMemcpyDeviceToHost, d.cu.stream);
        early += out.p[63] == 163;
        in.p[63] = 1000; /* too soon: the copy may not have read it */
        d.sync();
        for (int i = 0; i < 63; i++)
            assert_int_equal(out.p[i], i + 100);
        overwritten += out.p[63] == 1100;
        assert_true(out.p[63] == 163 || out.p[63] == 1100);
    }
    assert_true(early <= 10);
    assert_true(overwritten >= 20);
}

static void test_pageable(void **)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<int> dev(64);
        std::vector<int> v(64, 3);
        cudaMemcpyAsync(dev.p, v.data(), 256, cudaMemcpyHostToDevice, d.cu.stream);
        v.assign(64, 4); /* pageable memory was read before the call returned */
        sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, dev.p, 1);
        std::vector<int> got(64);
        cudaMemcpyAsync(got.data(), dev.p, 256, cudaMemcpyDeviceToHost, d.cu.stream);
        for (int x : got)
            assert_int_equal(x, 4);
    }
}

/* Two streams without order between them, then with it. */
static void test_events(void **)
{
    int wrong = 0;
    for (int ordered = 0; ordered < 2; ordered++)
        for (uint64_t seed = 1; seed <= 40; seed++) {
            sl_sim_seed(seed);
            sim_device d, e;
            sim_buffer<int> a(std::vector<int>(64, 1)), b(64);
            cudaEvent_t done;
            cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
            sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 4);
            cudaEventRecord(done, d.cu.stream);
            if (ordered)
                cudaStreamWaitEvent(e.cu.stream, done);
            sl_launch(&e.cu, k_double, dim3(2), dim3(32), 0, a.p, b.p);
            e.sync();
            bool bad = b.get()[63] != 10;
            assert_false(ordered && bad);
            wrong += bad;
            assert_int_equal(cudaEventSynchronize(done), cudaSuccess);
            assert_int_equal(cudaEventQuery(done), cudaSuccess);
            assert_int_equal(a.get()[0], 5);
            cudaEventDestroy(done);
        }
    assert_true(wrong >= 20);
}

static void test_queries(void **)
{
    int not_ready = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<int> a(std::vector<int>(64, 0));
        cudaEvent_t done;
        cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
        for (int i = 0; i < 5; i++)
            sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 1);
        cudaEventRecord(done, d.cu.stream);
        while (cudaEventQuery(done) == cudaErrorNotReady)
            not_ready++;
        assert_int_equal(cudaStreamQuery(d.cu.stream), cudaSuccess);
        int seen;
        sl_sim_peek(&seen, a.p + 63, sizeof seen);
        assert_int_equal(seen, 5);
        cudaEventDestroy(done);
    }
    assert_true(not_ready > 0);
}

static void add_to(void *arg)
{
    ++*static_cast<int *>(arg);
}

static void test_host_func(void **)
{
    sim_device d;
    int n = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaLaunchHostFunc(d.cu.stream, add_to, &n), cudaSuccess);
    d.sync();
    assert_int_equal(n, 3);
}

/* ---------------------------------------------------------------- graphs */

static void test_graph(void **)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sl_sim_seed(seed);
        sim_device d;
        sim_buffer<int> a(64), b(64);
        pinned in(64), out(64);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        uint64_t kernels = sl_sim_get_counts().kernels;
        assert_int_equal(cudaStreamBeginCapture(d.cu.stream, cudaStreamCaptureModeThreadLocal),
                         cudaSuccess);
        cudaMemsetAsync(b.p, 0, 256, d.cu.stream);
        cudaMemcpyAsync(a.p, in.p, 256, cudaMemcpyHostToDevice, d.cu.stream);
        sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 1);
        sl_launch(&d.cu, k_double, dim3(2), dim3(32), 0, a.p, b.p);
        cudaMemcpyAsync(out.p, b.p, 256, cudaMemcpyDeviceToHost, d.cu.stream);
        assert_int_equal(cudaStreamEndCapture(d.cu.stream, &graph), cudaSuccess);
        assert_int_equal(cudaGraphInstantiate(&exec, graph), cudaSuccess);
        cudaGraphDestroy(graph);
        d.sync();
        assert_int_equal(sl_sim_get_counts().kernels, kernels); /* recorded, not run */
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 64; i++)
                in.p[i] = i * round;
            assert_int_equal(cudaGraphLaunch(exec, d.cu.stream), cudaSuccess);
            d.sync();
            for (int i = 0; i < 64; i++)
                assert_int_equal(out.p[i], 2 * (i * round + 1));
        }
        assert_int_equal(sl_sim_get_counts().kernels, kernels + 6);
        cudaGraphExecDestroy(exec);
    }
}

static void test_capture_spoiled(void **)
{
    sim_device d;
    cudaGraph_t graph;
    for (int how = 0; how < 3; how++) {
        int *p = nullptr;
        cudaStreamBeginCapture(d.cu.stream, cudaStreamCaptureModeGlobal);
        cudaError_t e = how == 0   ? cudaStreamSynchronize(d.cu.stream)
                        : how == 1 ? cudaMalloc(&p, 4)
                                   : cudaDeviceSynchronize();
        assert_int_equal(e, cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaStreamEndCapture(d.cu.stream, &graph),
                         cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
    }
    cudaGetLastError();
}

/* Work recorded on a second stream between two events belongs to the graph. */
static void test_capture_fork(void **)
{
    sim_device d, e;
    sim_buffer<int> a(std::vector<int>(64, 1)), b(std::vector<int>(64, 0));
    cudaEvent_t fork, join;
    cudaEventCreate(&fork);
    cudaEventCreate(&join);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamBeginCapture(d.cu.stream, cudaStreamCaptureModeGlobal);
    sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 1);
    cudaEventRecord(fork, d.cu.stream);
    cudaStreamWaitEvent(e.cu.stream, fork);
    sl_launch(&e.cu, k_double, dim3(2), dim3(32), 0, a.p, b.p);
    cudaEventRecord(join, e.cu.stream);
    cudaStreamWaitEvent(d.cu.stream, join);
    sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, b.p, 7);
    assert_int_equal(cudaStreamEndCapture(d.cu.stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    d.sync();
    e.sync();
    assert_int_equal(b.get()[5], 0);
    assert_int_equal(cudaGraphLaunch(exec, d.cu.stream), cudaSuccess);
    d.sync();
    assert_int_equal(b.get()[5], 11);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
}

/* ---------------------------------------------------------------- shared memory */

static void k_first_and_last(int *out, size_t n)
{
    SL_SMEM(int, s);
    sl_grid_wait();
    if (threadIdx.x == 0) {
        s[0] = 1;
        s[n / sizeof(int) - 1] = 2;
        *out = s[0] + s[n / sizeof(int) - 1];
    }
}

/* What a kernel may have is the device's to say, not a backend's: two on one device that launch the
 * same kernel with more and with less do not take it from each other. */
static void test_shared_memory(void **)
{
    sim_device d, e;
    sim_buffer<int> a(1);
    const size_t sizes[] = {d.cu.smem_max - 1024, 65536, 100000, d.cu.smem_max};
    for (int round = 0; round < 2; round++)
        for (size_t n : sizes) {
            sl_launch(&d.cu, k_first_and_last, dim3(1), dim3(32), n, a.p, n);
            d.sync();
            assert_int_equal(a.get()[0], 3);
            sl_launch(&e.cu, k_first_and_last, dim3(1), dim3(32), size_t(50000), a.p,
                      size_t(50000));
            e.sync();
        }
    sl_launch(&d.cu, k_first_and_last, dim3(1), dim3(32), d.cu.smem_max + 16, a.p, size_t(4));
    assert_int_equal(d.cu.error, cudaErrorInvalidValue);
    cudaGetLastError();
}

/* ---------------------------------------------------------------- failures on order */

static void test_failures(void **)
{
    sim_device d;
    sim_buffer<int> a(std::vector<int>(64, 1));
    int *p = nullptr;
    sl_sim_fail_malloc(2);
    assert_int_equal(cudaMalloc(&p, 64), cudaSuccess);
    cudaFree(p);
    p = nullptr;
    assert_int_equal(cudaMalloc(&p, 64), cudaErrorMemoryAllocation);
    assert_null(p);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    sl_sim_fail_malloc_host(1);
    assert_int_equal(cudaMallocHost(&p, 64), cudaErrorMemoryAllocation);

    size_t free_bytes, total;
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    assert_int_equal(free_bytes, total - 256);
    assert_int_equal(cudaMalloc(&p, free_bytes + 1), cudaErrorMemoryAllocation);
    cudaGetLastError();

    sl_sim_fail_launch(2);
    sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 1);
    sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 1);
    assert_int_equal(d.cu.error, cudaErrorLaunchOutOfResources);
    assert_string_equal(d.cu.error_what, "kernel launch");
    sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 1); /* it may rely on the one that failed */
    d.cu.error = cudaSuccess;
    d.sync();
    assert_int_equal(a.get()[0], 2);
    cudaGetLastError();
}

static void test_broken_device(void **)
{
    sim_device d;
    sim_buffer<int> a(std::vector<int>(64, 1));
    sl_sim_break_at(3);
    for (int i = 0; i < 5; i++)
        sl_launch(&d.cu, k_add, dim3(2), dim3(32), 0, a.p, 1);
    cudaError_t e = cudaStreamSynchronize(d.cu.stream);
    assert_int_equal(e, cudaErrorIllegalAddress);
    int *p = nullptr;
    assert_int_equal(cudaMalloc(&p, 4), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress); /* it stays broken */
    int seen;
    sl_sim_peek(&seen, a.p, sizeof seen);
    assert_int_equal(seen, 3);
    sl_sim_repair();
    assert_int_equal(cudaStreamSynchronize(d.cu.stream), cudaSuccess);
}

static void test_device(void **)
{
    int n, sms, smem;
    assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
    assert_int_equal(n, 1);
    sl_sim_set_sms(132);
    assert_int_equal(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    assert_int_equal(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                     cudaSuccess);
    assert_int_equal(sms, 132);
    assert_int_equal(smem, 232448);
    sl_sim_set_sms(6);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    sl_sim_set_devices(0);
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    assert_int_equal(n, 0);
    sl_sim_set_devices(1);
    cudaGetLastError();
    struct sl_sim_counts c = sl_sim_get_counts();
    assert_int_equal(c.bytes, 0); /* every test gave back what it took */
    assert_int_equal(c.host_bytes, 0);
}

int main(int, char **)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_copies),     cmocka_unit_test(test_pageable),
        cmocka_unit_test(test_events),          cmocka_unit_test(test_queries),
        cmocka_unit_test(test_host_func),       cmocka_unit_test(test_graph),
        cmocka_unit_test(test_capture_spoiled), cmocka_unit_test(test_capture_fork),
        cmocka_unit_test(test_shared_memory),   cmocka_unit_test(test_failures),
        cmocka_unit_test(test_broken_device),   cmocka_unit_test(test_device),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
