/* SPDX-License-Identifier: MIT
 * device_array.h - device memory of a test, there while its name is.
 */
#ifndef SL_TESTS_CUDA_DEVICE_ARRAY_H
#define SL_TESTS_CUDA_DEVICE_ARRAY_H

#include <cuda_runtime.h>

#include <cstdlib>
#include <vector>

/* Device memory of exactly this size, so that red zones are close. */
template <typename T> struct dev {
    T *p = nullptr;
    size_t n = 0;
    explicit dev(size_t n_) : n(n_)
    {
        if (cudaMalloc(&p, (n > 0 ? n : 1) * sizeof(T)) != cudaSuccess)
            exit(2);
    }
    explicit dev(const std::vector<T> &v) : dev(v.size())
    {
        if (n > 0 && cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice) != cudaSuccess)
            exit(2);
        settle();
    }
    dev(const dev &) = delete;
    /* A copy from ordinary memory may return before the device has it all, and the stream under
     * test does not wait for it. */
    static void settle()
    {
        if (cudaDeviceSynchronize() != cudaSuccess)
            exit(2);
    }
    ~dev()
    {
        cudaFree(p);
    }
    std::vector<T> get() const
    {
        std::vector<T> v(n);
        if (n > 0 && cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost) != cudaSuccess)
            exit(2);
        return v;
    }
};

#endif
