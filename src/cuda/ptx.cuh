/* SPDX-License-Identifier: MIT
 * ptx.cuh - the instructions that CUDA C++ has no name for, one function each.
 *
 * With ptx_fp8.cuh and ptx_tile.cuh the only file with inline PTX. Under the simulator
 * (tests/cuda/sim), whose cuda_runtime.h defines SL_CUDA_SIM, functions of the same names come from
 * sim_ptx.h, so that kernels are one source. Asm that reads or writes memory is volatile and
 * clobbers memory: it must not move across sl_grid_wait or a barrier.
 */
#ifndef SL_CUDA_PTX_CUH
#define SL_CUDA_PTX_CUH

#include "cuda/tensor_map.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdint.h>

#ifdef SL_CUDA_SIM
#include "sim_ptx.h"
#else

/* The block's dynamic shared memory as `type *name`, aligned to 1024 bytes. */
#define SL_SMEM(type, name)                                   \
    extern __shared__ __align__(1024) uint8_t sl_smem_base[]; \
    type *name = reinterpret_cast<type *>(sl_smem_base)

/* Waits until the kernels before this one in the stream have ended and their writes are visible.
 * Every thread calls it before it reads what another kernel wrote. */
static __device__ __forceinline__ void sl_grid_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Instead: this block ends, has written nothing and read only what had long been there. Not all
 * blocks may leave, or this grid might end before the kernels ahead of it, on which later kernels
 * rely. */
static __device__ __forceinline__ void sl_grid_leave()
{
}

/* The next kernel may start once all blocks have called this or ended; it still waits in its
 * sl_grid_wait until this one has ended. */
static __device__ __forceinline__ void sl_grid_launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* A number that a kernel wrote which has ended while the one just ahead may still run: past the L1
 * cache, which may hold what was there before. */
static __device__ __forceinline__ int32_t sl_load_settled(const int32_t *p)
{
    int32_t v;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];"
                 : "=r"(v)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return v;
}

/* All threads of all blocks of the cluster (sl_launch_cluster) meet here; what they wrote before,
 * shared memory of each other included, is seen after it. No block may end while another still
 * reaches for its shared memory. */
static __device__ __forceinline__ void sl_cluster_sync()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* The same in two parts, of which the first does not wait, and without the memory: a release is a
 * fence of the whole device, which waits for all that a thread has stored. Barriers made ready
 * before (sl_mbar_fence_init) are. */
static __device__ __forceinline__ void sl_cluster_arrive()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void sl_cluster_wait()
{
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

static __device__ __forceinline__ uint32_t sl_cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Where p, in this block's shared memory, lies in that of another block of the cluster. */
template <typename T> static __device__ __forceinline__ T *sl_cluster_map(T *p, uint32_t rank)
{
    uint64_t there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(p)), "r"(rank));
    return reinterpret_cast<T *>(there);
}

/* Orders this thread's accesses of device memory, those it knows of through barriers included, for
 * all threads of the device; __threadfence orders more and costs more. */
static __device__ __forceinline__ void sl_fence_gpu()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

static __device__ __forceinline__ uint32_t sl_smem_addr(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* x, of which the compiler then knows nothing: what is some bytes further is that as part of the
 * instruction, and not a sum in a register of its own; what was made once is not made twice. */
static __device__ __forceinline__ uint32_t sl_opaque(uint32_t x)
{
    asm("" : "+r"(x));
    return x;
}

/* x where mask has ones, y elsewhere: one instruction, of which the compiler would make two where
 * it sees that y is zero in most places. */
static __device__ __forceinline__ uint32_t sl_merge(uint32_t x, uint32_t mask, uint32_t y)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xE2;" : "=r"(r) : "r"(x), "r"(mask), "r"(y));
    return r;
}

/* *p += v, without waiting for it. As global memory does it: numbers below the normal range count
 * as zero of their sign, before and after. */
static __device__ __forceinline__ void sl_red_add(float *p, float v)
{
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "f"(v)
                 : "memory");
}

/* The same sum. */
static __device__ __forceinline__ float sl_add_ftz(float a, float b)
{
    float sum;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}

/* Copies 16 bytes, both sides 16-byte aligned, or writes 16 zero bytes and reads nothing. */
static __device__ __forceinline__ void sl_cp_async16(void *smem, const void *gmem, bool pred)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sl_smem_addr(smem)),
                 "l"(__cvta_generic_to_global(gmem)), "r"(pred ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void sl_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's committed groups are still under way. */
template <int N> static __device__ __forceinline__ void sl_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Copies n_bytes (a multiple of 16, both sides 16-byte aligned) and then takes n_bytes off what
 * the barrier's phase expects. One thread issues it. */
static __device__ __forceinline__ void sl_bulk_load(void *smem, const void *gmem, uint32_t n_bytes,
                                                    uint64_t *mbar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(sl_smem_addr(smem)),
                 "l"(__cvta_generic_to_global(gmem)), "r"(n_bytes), "r"(sl_smem_addr(mbar))
                 : "memory");
}

/* How L2 treats what is read once: it goes before all else. */
static __device__ __forceinline__ uint64_t sl_once()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* sl_bulk_load of bytes that are read once. */
static __device__ __forceinline__ void sl_bulk_load_once(void *smem, const void *gmem,
                                                         uint32_t n_bytes, uint64_t *mbar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(sl_smem_addr(smem)),
                 "l"(__cvta_generic_to_global(gmem)), "r"(n_bytes), "r"(sl_smem_addr(mbar)),
                 "l"(sl_once())
                 : "memory");
}

/* 16 bytes of device memory that are constant and read once. */
static __device__ __forceinline__ uint4 sl_load16_once(const void *gmem)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(gmem)), "l"(sl_once()));
    return v;
}

/* Copies the box whose first value is (row, col) of the matrix, and then takes the bytes of a whole
 * box off what the barrier's phase expects. map: a parameter of the kernel. One thread issues it.
 */
static __device__ __forceinline__ void sl_tensor_load(void *smem, const CUtensorMap *map, int col,
                                                      int row, uint64_t *mbar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(sl_smem_addr(smem)),
                 "l"(reinterpret_cast<uint64_t>(map)), "r"(sl_smem_addr(mbar)), "r"(col), "r"(row)
                 : "memory");
}

/* The same with a box of weights: unit `unit` of row blocks from `block` on. */
static __device__ __forceinline__ void sl_blocks_load(void *smem, const CUtensorMap *map, int unit,
                                                      int block, uint64_t *mbar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(sl_smem_addr(smem)),
                 "l"(reinterpret_cast<uint64_t>(map)), "r"(sl_smem_addr(mbar)), "r"(0),
                 "r"(2 * unit), "r"(block)
                 : "memory");
}

/* sl_tensor_load into every block of the cluster whose bit is set in `ranks`: to the same place in
 * its shared memory, with its barrier of that place. Between the blocks' first sl_cluster_sync,
 * after the barriers' initialisation, and their last one. */
static __device__ __forceinline__ void sl_tensor_load_all(void *smem, const CUtensorMap *map,
                                                          int col, int row, uint64_t *mbar,
                                                          uint16_t ranks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(sl_smem_addr(smem)),
                 "l"(reinterpret_cast<uint64_t>(map)), "r"(sl_smem_addr(mbar)), "r"(col), "r"(row),
                 "h"(ranks)
                 : "memory");
}

/* Copies a box from shared memory to (row, col) of the matrix, when it can; of this thread's group
 * of stores. Before it, sl_fence_proxy_async by those that wrote the box, and a barrier. */
static __device__ __forceinline__ void sl_tensor_store(const CUtensorMap *map, int col, int row,
                                                       const void *smem)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
            reinterpret_cast<uint64_t>(map)),
        "r"(sl_smem_addr(smem)), "r"(col), "r"(row)
        : "memory");
}

static __device__ __forceinline__ void sl_tensor_store_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's groups of stores still read their boxes; _all: until what
 * they write is there. */
template <int N> static __device__ __forceinline__ void sl_tensor_store_wait()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void sl_tensor_store_wait_all()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* One thread initialises; then sl_mbar_fence_init by it and a __syncthreads by all before use. */
static __device__ __forceinline__ void sl_mbar_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sl_smem_addr(bar)), "r"(count)
                 : "memory");
}

static __device__ __forceinline__ void sl_mbar_fence_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Expects bytes more in this phase, and arrives. */
static __device__ __forceinline__ void sl_mbar_expect_tx(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sl_smem_addr(bar)),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void sl_mbar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sl_smem_addr(bar)) : "memory");
}

/* Arrives at the barrier of this place in block `rank` of the cluster, which may be this one. For
 * products whose reads have ended (sl_wgmma_wait): releasing what was stored would cost a fence of
 * the whole device each time, a third of a product's speed (H200). */
static __device__ __forceinline__ void sl_mbar_arrive_at(uint64_t *bar, uint32_t rank)
{
    asm volatile("{\n\t.reg .b32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(sl_smem_addr(bar)),
                 "r"(rank)
                 : "memory");
}

/* *to = v in the shared memory of block `rank`, whose barrier of the place bar expects 16 bytes of
 * it: `to` and `bar` are this block's places. Who waits there sees it. */
static __device__ __forceinline__ void sl_store_at(float4 *to, const float4 &v, uint64_t *bar,
                                                   uint32_t rank)
{
    asm volatile("{\n\t.reg .b32 to, bar;\n\t"
                 "mapa.shared::cluster.u32 to, %0, %2;\n\t"
                 "mapa.shared::cluster.u32 bar, %1, %2;\n\t"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], "
                 "{%3, %4, %5, %6}, [bar];\n\t}" ::"r"(sl_smem_addr(to)),
                 "r"(sl_smem_addr(bar)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* Waits for the end of the phase with this parity; the first phase has parity 0, and a fresh
 * barrier counts as having ended a phase of parity 1. */
static __device__ __forceinline__ void sl_mbar_wait(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(sl_smem_addr(bar)), "r"(parity)
                     : "memory");
    } while (!done);
}

/* Has that phase ended? "No" may also mean "not yet known": to be asked again. For lanes that watch
 * barriers of their own and must not wait for each other. */
static __device__ __forceinline__ bool sl_mbar_poll(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(sl_smem_addr(bar)), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Orders this thread's ordinary accesses of shared memory before later ones of the copy engine. */
static __device__ __forceinline__ void sl_fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Four 8x8 matrices of 16-bit values: lanes 8i..8i+7 give the rows of matrix i, 16-byte aligned;
 * lane l receives of each matrix the pair (row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1), with
 * _trans that of the transposed matrix. */
static __device__ __forceinline__ void sl_ldmatrix_x4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sl_smem_addr(row))
                 : "memory");
}

static __device__ __forceinline__ void sl_ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sl_smem_addr(row))
                 : "memory");
}

/* Two matrices: rows from lanes 0..15. */
static __device__ __forceinline__ void sl_ldmatrix_x2(uint32_t r[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(sl_smem_addr(row))
                 : "memory");
}

static __device__ __forceinline__ void sl_ldmatrix_x2_trans(uint32_t r[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(sl_smem_addr(row))
                 : "memory");
}

/* c[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4 and t = lane % 4, pairs low half first:
 * a[0] (g, 2t..), a[1] (g + 8, 2t..), a[2] (g, 2t + 8..), a[3] (g + 8, 2t + 8..);
 * b[0] (2t.., g), b[1] (2t + 8.., g); c[0..1] (g, 2t..), c[2..3] (g + 8, 2t..). */
#define SL_MMA(name, type)                                                                \
    static __device__ __forceinline__ void name(float c[4], const uint32_t a[4],          \
                                                const uint32_t b[2])                      \
    {                                                                                     \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32 "     \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"    \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
SL_MMA(sl_mma_bf16, bf16)
SL_MMA(sl_mma_f16, f16)
#undef SL_MMA

/* Matrix products of a warpgroup (128 threads, four warps from a multiple of four on): d[64, N] +=
 * a[64, 16] b[16, N]. a: of warp w the rows 16 w .. 16 w + 15, each lane its registers as in
 * sl_mma_bf16; d likewise, eight tokens after eight tokens. b: a place in shared memory of N rows
 * (tokens) of 128 bytes, the first at a multiple of 1024, 16-byte pieces at piece ^ (row % 8), 32
 * bytes further for each k16. The products run by themselves: between sl_wgmma_fence and the
 * sl_wgmma_wait that ends them nobody may touch d, a or b. Arithmetic: the bits of sl_mma_bf16; of
 * sl_mma_f16 with _f16. */
#define SL_WGMMA_B_K16 2 /* 32 bytes further */
static __device__ __forceinline__ uint64_t sl_wgmma_b(const void *smem)
{
    /* address / 16, eight rows 1024 bytes after eight rows, swizzle of 128 bytes */
    return (static_cast<uint64_t>(sl_smem_addr(smem)) & 0x3FFFF) >> 4 | 1ull << 16 | 64ull << 32 |
           1ull << 62;
}

/* d and a written before belong to the products after this. */
static __device__ __forceinline__ void sl_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void sl_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N committed groups are still under way. */
template <int N> static __device__ __forceinline__ void sl_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* After sl_wgmma_wait: keeps the registers of products for them until here. The compiler takes a
 * product for done once it has begun, and would give a's registers to others, or d's to copies. */
template <int T> static __device__ __forceinline__ void sl_wgmma_keep(float (&x)[T][4])
{
#pragma unroll
    for (int i = 0; i < T; i++)
        asm volatile("" : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])::"memory");
}

template <int T> static __device__ __forceinline__ void sl_wgmma_keep(uint32_t (&x)[T][4])
{
#pragma unroll
    for (int i = 0; i < T; i++)
        asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]), "+r"(x[i][3])::"memory");
}

/* n: tokens, or columns. d's registers come first, then a's and b. */
#define SL_WG_D(i)    "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SL_WG_D2(i)   SL_WG_D(i), SL_WG_D(i + 1)
#define SL_WG_D8(i)   SL_WG_D2(i), SL_WG_D2(i + 2), SL_WG_D2(i + 4), SL_WG_D2(i + 6)
#define SL_WG_SUM_16  SL_WG_D2(0)
#define SL_WG_SUM_32  SL_WG_D2(0), SL_WG_D2(2)
#define SL_WG_SUM_64  SL_WG_D8(0)
#define SL_WG_SUM_128 SL_WG_D8(0), SL_WG_D8(8)
#define SL_WG_SUM_192 SL_WG_SUM_128, SL_WG_D8(16)
#define SL_WG_SUM_256 SL_WG_SUM_192, SL_WG_D8(24)
#define SL_WG_R8      "%0, %1, %2, %3, %4, %5, %6, %7"
#define SL_WG_R16     SL_WG_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SL_WG_R32 \
    SL_WG_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SL_WG_R64                                                                                \
    SL_WG_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
              ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SL_WG_R96                                                                                \
    SL_WG_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
              ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SL_WG_R128                                                                                 \
    SL_WG_R96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
              "%110, %111"                                                                         \
              ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "   \
              "%125, %126, %127"
#define SL_WG_REG_16  "{" SL_WG_R8 "}, {%8, %9, %10, %11}, %12"
#define SL_WG_REG_32  "{" SL_WG_R16 "}, {%16, %17, %18, %19}, %20"
#define SL_WG_REG_64  "{" SL_WG_R32 "}, {%32, %33, %34, %35}, %36"
#define SL_WG_REG_128 "{" SL_WG_R64 "}, {%64, %65, %66, %67}, %68"
#define SL_WG_REG_192 "{" SL_WG_R96 "}, {%96, %97, %98, %99}, %100"
#define SL_WG_REG_256 "{" SL_WG_R128 "}, {%128, %129, %130, %131}, %132"
#define SL_WGMMA_RS(n)                                                                             \
    static __device__ __forceinline__ void sl_wgmma_rs(float(&d)[n / 8][4], const uint32_t(&a)[4], \
                                                       uint64_t b)                                 \
    {                                                                                              \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, 1, 0;\n\t"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 " SL_WG_REG_##n     \
                     ", p, 1, 1, 0;\n\t}"                                                          \
                     : SL_WG_SUM_##n                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
SL_WGMMA_RS(16)
SL_WGMMA_RS(32)
SL_WGMMA_RS(64)
SL_WGMMA_RS(128)
SL_WGMMA_RS(192)
SL_WGMMA_RS(256)

/* Both operands in shared memory: a is a place (sl_wgmma_b) of 64 rows. add 0: d's old values do
 * not count. */
#define SL_WG_SS_64  "{" SL_WG_R32 "}, %32, %33"
#define SL_WG_SS_128 "{" SL_WG_R64 "}, %64, %65"
#define SL_WG_SS_192 "{" SL_WG_R96 "}, %96, %97"
#define SL_WG_SS_256 "{" SL_WG_R128 "}, %128, %129"
#define SL_WGMMA_SS(name, n, type, add_reg)                                                  \
    static __device__ __forceinline__ void name(float(&d)[n / 8][4], uint64_t a, uint64_t b, \
                                                int add)                                     \
    {                                                                                        \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add_reg ", 0;\n\t"              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type       \
                     " " SL_WG_SS_##n ", p, 1, 1, 0, 0;\n\t}"                                \
                     : SL_WG_SUM_##n                                                         \
                     : "l"(a), "l"(b), "r"(add));                                            \
    }
SL_WGMMA_SS(sl_wgmma_ss, 64, bf16, "%34")
SL_WGMMA_SS(sl_wgmma_ss, 128, bf16, "%66")
SL_WGMMA_SS(sl_wgmma_ss, 192, bf16, "%98")
SL_WGMMA_SS(sl_wgmma_ss, 256, bf16, "%130")
SL_WGMMA_SS(sl_wgmma_ss_f16, 64, f16, "%34")
SL_WGMMA_SS(sl_wgmma_ss_f16, 128, f16, "%66")
#undef SL_WGMMA_SS

/* The same with b as rows of sums (keys) of 128 bytes, 64 columns each, 64 rows; the next columns
 * 8192 bytes further; swizzled likewise. 16 rows are a product: 2048 bytes. */
static __device__ __forceinline__ uint64_t sl_wgmma_bt(const void *smem)
{
    /* address / 16, 64 columns after 64 columns, eight rows after eight rows, swizzle */
    return (static_cast<uint64_t>(sl_smem_addr(smem)) & 0x3FFFF) >> 4 | 512ull << 16 | 64ull << 32 |
           1ull << 62;
}

/* A place n_bytes further. */
static __device__ __forceinline__ uint64_t sl_wgmma_b_at(uint64_t b, uint32_t n_bytes)
{
    return b + n_bytes / 16;
}

/* a: registers. add 0: d's old values do not count. */
#define SL_WG_ADD_64  "%37"
#define SL_WG_ADD_128 "%69"
#define SL_WGMMA_BT(name, n, type)                                                          \
    static __device__ __forceinline__ void name(float(&d)[n / 8][4], const uint32_t(&a)[4], \
                                                uint64_t b, int add)                        \
    {                                                                                       \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " SL_WG_ADD_##n                  \
                     ", 0;\n\t"                                                             \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type      \
                     " " SL_WG_REG_##n ", p, 1, 1, 1;\n\t}"                                 \
                     : SL_WG_SUM_##n                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));       \
    }
SL_WGMMA_BT(sl_wgmma_rs_bt, 64, bf16)
SL_WGMMA_BT(sl_wgmma_rs_bt, 128, bf16)
SL_WGMMA_BT(sl_wgmma_rs_bt_f16, 64, f16)
SL_WGMMA_BT(sl_wgmma_rs_bt_f16, 128, f16)
#undef SL_WGMMA_BT

/* The registers of every thread of a warpgroup, a multiple of 8: more once others have given. */
template <int N> static __device__ __forceinline__ void sl_regs_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void sl_regs_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* 16 bytes that no kernel in flight writes (weights), kept out of L1. */
static __device__ __forceinline__ uint4 sl_ldg_stream16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(p)));
    return v;
}

static __device__ __forceinline__ void sl_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

/* Barrier 1..15 among n_threads (a multiple of 32) of the block; 0 is __syncthreads'. */
static __device__ __forceinline__ void sl_bar_sync(int id, int n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

/* 2^x within 2 ulp, denormals flushed to zero. The same bits on every chip of one generation
 * only: not for values that must agree with the CPU. */
static __device__ __forceinline__ float sl_ex2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* log2(x), likewise. */
static __device__ __forceinline__ float sl_lg2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger one, or NaN if one of them is. */
static __device__ __forceinline__ float sl_max_nan(float x, float y)
{
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

/* 1 / x within 1 ulp, for normal x and quotient. */
static __device__ __forceinline__ float sl_rcp_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif /* SL_CUDA_SIM */

/* Initialises n barriers, a thread each, as one thread would take a microsecond for all. A loop,
 * not a condition: of that the compiler makes predicated instructions, which compute-sanitizer's
 * synccheck takes for executed. Then as after sl_mbar_init. */
static __device__ __forceinline__ void sl_mbar_init_all(uint64_t *bars, int n, uint32_t count)
{
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
        sl_mbar_init(&bars[i], count);
}

/* How often a warp arrives that arrives as one: the barrier's count for it. Racecheck does not see
 * that __syncwarp orders what the other lanes did, so the build for it (CFG=racecheck) lets each
 * lane arrive. */
#ifdef SL_RACECHECK
#define SL_WARP_ARRIVALS 32
#else
#define SL_WARP_ARRIVALS 1
#endif

/* A whole warp arrives: after the barrier all is seen that its lanes did before. */
static __device__ __forceinline__ void sl_mbar_arrive_warp(uint64_t *bar)
{
    __syncwarp();
    if (SL_WARP_ARRIVALS > 1 || threadIdx.x % 32 == 0)
        sl_mbar_arrive(bar);
}

/* The same of a warp that has read shared memory by ordinary loads, where the copy engine may write
 * next: its writes belong to another proxy, and only the fence orders them after those reads. */
static __device__ __forceinline__ void sl_mbar_give_warp(uint64_t *bar)
{
    sl_fence_proxy_async();
    sl_mbar_arrive_warp(bar);
}

/* A whole warp, whose lanes may have stored, arrives and expects bytes more. */
static __device__ __forceinline__ void sl_mbar_expect_warp(uint64_t *bar, uint32_t bytes)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        sl_mbar_expect_tx(bar, bytes);
    else if (SL_WARP_ARRIVALS > 1)
        sl_mbar_arrive(bar);
    __syncwarp();
}

#endif
