/* SPDX-License-Identifier: MIT
 * sim_test.h - cmocka for C++, and what tests on the simulator share: a device to launch on, copies
 * that check, and running what must die in a process of its own.
 */
#ifndef SL_TESTS_CUDA_SIM_TEST_H
#define SL_TESTS_CUDA_SIM_TEST_H

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"
#include "sim.h"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include <cmocka.h>
}

/* A backend with nothing but a stream, for sl_launch. */
struct sim_device {
    struct sl_cuda cu;
    sim_device() : cu()
    {
        assert_int_equal(cudaStreamCreateWithFlags(&cu.stream, cudaStreamNonBlocking), cudaSuccess);
        cu.smem_max = 232448;
    }
    ~sim_device()
    {
        cudaStreamDestroy(cu.stream);
    }
    void sync()
    {
        assert_int_equal(cu.error, cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(cu.stream), cudaSuccess);
    }
};

/* Device memory with copies in and out. */
template <typename T> struct sim_buffer {
    T *p = nullptr;
    size_t n;
    explicit sim_buffer(size_t n_) : n(n_)
    {
        assert_int_equal(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
    }
    explicit sim_buffer(const std::vector<T> &v) : sim_buffer(v.size())
    {
        put(v);
    }
    sim_buffer(const sim_buffer &) = delete;
    ~sim_buffer()
    {
        cudaFree(p);
    }
    void put(const std::vector<T> &v)
    {
        assert_int_equal(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice),
                         cudaSuccess);
    }
    std::vector<T> get()
    {
        std::vector<T> v(n);
        assert_int_equal(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost),
                         cudaSuccess);
        return v;
    }
};

/* Runs fn in a child and demands that it dies with `want` in what it prints. */
static inline void expect_death(void (*fn)(), const char *want)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    fflush(stdout);
    fflush(stderr);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(fds[1], 2);
        dup2(fds[1], 1);
        close(fds[0]);
        signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the next test */
        fn();
        _exit(0);
    }
    close(fds[1]);
    std::string out;
    char part[4096];
    for (ssize_t n; (n = read(fds[0], part, sizeof part)) > 0;)
        out.append(part, static_cast<size_t>(n));
    close(fds[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    bool died = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (!died || out.find(want) == std::string::npos)
        print_error("expected death with \"%s\"; %s and printed:\n%s\n", want,
                    died ? "it died" : "it lived", out.c_str());
    assert_true(died);
    assert_true(out.find(want) != std::string::npos);
}

#endif
