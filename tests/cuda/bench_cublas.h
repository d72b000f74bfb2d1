/* SPDX-License-Identifier: MIT
 * bench_cublas.h - cuBLASLt as the other side of the comparison: loaded at run time, so that no
 * program needs it. Its best of several algorithms is what counts.
 */
#ifndef SL_TESTS_CUDA_BENCH_CUBLAS_H
#define SL_TESTS_CUDA_BENCH_CUBLAS_H

#include "bench_util.h"

enum lt_type { LT_BF16, LT_F32, LT_E4M3 };
/* Of FP8: sums as the chip makes them, or brought to float every 128 columns; and scales, of a row
 * and a token, or of 128 x 128 weights and 128 columns of a token. */
enum lt_mode { LT_FAST, LT_SLOW, LT_VECTORS, LT_BLOCKS };

#if !defined(SL_CUDA_SIM) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>
#include <glob.h>

#define LT_WORKSPACE (static_cast<size_t>(64) << 20)
#define LT_ALGOS     8

#define LT_POINTER(name) decltype(&cublasLt##name) name

static struct {
    LT_POINTER(Create);
    LT_POINTER(GetVersion);
    LT_POINTER(Matmul);
    LT_POINTER(MatmulAlgoGetHeuristic);
    LT_POINTER(MatmulDescCreate);
    LT_POINTER(MatmulDescDestroy);
    LT_POINTER(MatmulDescSetAttribute);
    LT_POINTER(MatmulPreferenceCreate);
    LT_POINTER(MatmulPreferenceDestroy);
    LT_POINTER(MatmulPreferenceSetAttribute);
    LT_POINTER(MatrixLayoutCreate);
    LT_POINTER(MatrixLayoutDestroy);
    cublasLtHandle_t handle;
    void *workspace;
} lt;

#define LT_MUST(call)                              \
    do {                                           \
        int e_ = static_cast<int>(call);           \
        CHECK(e_ == 0, "cuBLASLt: status %d", e_); \
    } while (0)

static void *lt_open()
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    static const char *const places[] = {
        "/usr/local/cuda/lib64/libcublasLt.so.1[23]",
        "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.1[23]",
        "/usr/lib/python3*/*-packages/nvidia/c*/lib/libcublasLt.so.1[23]",
        "/usr/local/lib/python3*/*-packages/nvidia/c*/lib/libcublasLt.so.1[23]",
        "/opt/*/lib/python3*/*-packages/nvidia/c*/lib/libcublasLt.so.1[23]",
    };
    void *lib = nullptr;
    for (const char *name : names)
        if (lib == nullptr)
            lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    for (const char *place : places) {
        glob_t found = {};
        if (lib == nullptr && glob(place, 0, nullptr, &found) == 0)
            for (size_t i = 0; i < found.gl_pathc && lib == nullptr; i++)
                lib = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
    }
    return lib;
}

template <class F> static bool lt_function(void *lib, const char *name, F *out)
{
    *out = reinterpret_cast<F>(dlsym(lib, name));
    return *out != nullptr;
}

#define LT_FIND(name) lt_function(lib, "cublasLt" #name, &lt.name)

static bool lt_functions(void *lib)
{
    return LT_FIND(Create) && LT_FIND(GetVersion) && LT_FIND(Matmul) &&
           LT_FIND(MatmulAlgoGetHeuristic) && LT_FIND(MatmulDescCreate) &&
           LT_FIND(MatmulDescDestroy) && LT_FIND(MatmulDescSetAttribute) &&
           LT_FIND(MatmulPreferenceCreate) && LT_FIND(MatmulPreferenceDestroy) &&
           LT_FIND(MatmulPreferenceSetAttribute) && LT_FIND(MatrixLayoutCreate) &&
           LT_FIND(MatrixLayoutDestroy);
}

/* False: there is none, and it was said why. */
static bool lt_load(const char *path)
{
    void *lib = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : lt_open();
    if (lib == nullptr) {
        const char *why = dlerror();
        printf("cuBLASLt  not found (--cublas PATH): %s\n", why != nullptr ? why : "no such file");
        return false;
    }
    if (!lt_functions(lib)) {
        printf("cuBLASLt  lacks functions that this program calls\n");
        return false;
    }
    LT_MUST(lt.Create(&lt.handle));
    MUST(cudaMalloc(&lt.workspace, LT_WORKSPACE));
    printf("cuBLASLt  %zu, best of up to %d algorithms for each product\n", lt.GetVersion(),
           LT_ALGOS);
    return true;
}

static cudaDataType_t lt_data_type(enum lt_type t)
{
    return t == LT_BF16 ? CUDA_R_16BF : t == LT_F32 ? CUDA_R_32F : CUDA_R_8F_E4M3;
}

struct lt_product {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulHeuristicResult_t algo[LT_ALGOS];
    int n_algos;
};

/* y [m, n] = x [m, k] w [n, k]^T; to cuBLAS, which counts columns first, y^T = w^T^T x^T. */
static struct lt_product lt_make(int m, int n, int k, enum lt_type in, enum lt_type out,
                                 enum lt_mode mode, const void *scales)
{
    struct lt_product p = {};
    cublasLtMatmulPreference_t want;
    size_t workspace = LT_WORKSPACE;
    int32_t trans = CUBLAS_OP_T;
    int8_t fast = mode == LT_FAST;
    int32_t vec = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, vec_w = vec;
    if (mode == LT_BLOCKS) {
        vec = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        vec_w = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    }
    auto a = static_cast<uint64_t>(n), c = static_cast<uint64_t>(m), d = static_cast<uint64_t>(k);
    LT_MUST(lt.MatmulDescCreate(&p.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_MUST(lt.MatmulDescSetAttribute(p.op, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans));
    if (in == LT_E4M3)
        LT_MUST(
            lt.MatmulDescSetAttribute(p.op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    if (mode >= LT_VECTORS) {
        auto set = [&](cublasLtMatmulDescAttributes_t what, const void *v, size_t n_bytes) {
            LT_MUST(lt.MatmulDescSetAttribute(p.op, what, v, n_bytes));
        };
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &vec_w, sizeof vec_w);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &vec, sizeof vec);
        set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales, sizeof scales);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales, sizeof scales);
    }
    LT_MUST(lt.MatrixLayoutCreate(&p.w, lt_data_type(in), d, a, k));
    LT_MUST(lt.MatrixLayoutCreate(&p.x, lt_data_type(in), d, c, k));
    LT_MUST(lt.MatrixLayoutCreate(&p.y, lt_data_type(out), a, c, n));
    LT_MUST(lt.MatmulPreferenceCreate(&want));
    LT_MUST(lt.MatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace, sizeof workspace));
    if (lt.MatmulAlgoGetHeuristic(lt.handle, p.op, p.w, p.x, p.y, p.y, want, LT_ALGOS, p.algo,
                                  &p.n_algos) != CUBLAS_STATUS_SUCCESS)
        p.n_algos = 0;
    LT_MUST(lt.MatmulPreferenceDestroy(want));
    return p;
}

/* Microseconds of the best algorithm, going round over the matrices w; 0: it has none. */
static double lt_time(int m, int n, int k, enum lt_type in, enum lt_type out,
                      const std::vector<void *> &w, const void *x, void *y, double budget_ms,
                      enum lt_mode mode = LT_FAST, const void *scales = nullptr)
{
    if (lt.handle == nullptr)
        return 0.0;
    struct lt_product p = lt_make(m, n, k, in, out, mode, scales);
    const float one = 1.0f, zero = 0.0f;
    double best = 0.0;
    int best_i = 0;
    auto call = [&](int i, int copy) {
        return lt.Matmul(lt.handle, p.op, &one, w[static_cast<size_t>(copy)], p.w, x, p.x, &zero, y,
                         p.y, y, p.y, &p.algo[i].algo, lt.workspace, LT_WORKSPACE, b.cu->stream);
    };
    auto time = [&](int i, double ms) {
        return time_us(static_cast<int>(w.size()), ms, [&](int copy) { LT_MUST(call(i, copy)); });
    };
    for (int i = 0; i < p.n_algos; i++) {
        if (call(i, 0) != CUBLAS_STATUS_SUCCESS) { /* the heuristic was wrong */
            cudaGetLastError();
            continue;
        }
        double us = time(i, budget_ms / 10);
        if (best == 0.0 || us < best)
            best = us, best_i = i;
    }
    if (best > 0.0)
        best = time(best_i, budget_ms);
    LT_MUST(lt.MatrixLayoutDestroy(p.w));
    LT_MUST(lt.MatrixLayoutDestroy(p.x));
    LT_MUST(lt.MatrixLayoutDestroy(p.y));
    LT_MUST(lt.MatmulDescDestroy(p.op));
    return best;
}

#else

static bool lt_load(const char *path)
{
    (void)path;
    printf("cuBLASLt  none: this program was built without its header\n");
    return false;
}

static double lt_time(int m, int n, int k, enum lt_type in, enum lt_type out,
                      const std::vector<void *> &w, const void *x, void *y, double budget_ms,
                      enum lt_mode mode = LT_FAST, const void *scales = nullptr)
{
    (void)mode, (void)scales;
    (void)m, (void)n, (void)k, (void)in, (void)out, (void)w, (void)x, (void)y, (void)budget_ms;
    return 0.0;
}

#endif

#endif
