/* SPDX-License-Identifier: MIT
 * index_top.cu - the top_k positions with the largest scores of a row, in ascending order: exactly
 * those of the CPU for the same scores.
 *
 * A row has a block, or a cluster of up to eight while rows are few: each block then has a part of
 * it, and adds up the counts of all. Three passes over the scores count them by 11, 11 and 10 bits
 * of their order, which finds the top_k-th largest to the bit and how many of those equal to it are
 * taken; a last pass writes positions down, the lowest of equal scores first. Scores were just
 * written and come from L2: 4 x 4 bytes of each.
 */
#include "cuda/attention/index.cuh"
#include "cuda/attention/index_scan.cuh"

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#define TOP_THREADS 1024
#define TOP_WARPS   (TOP_THREADS / 32)
#define TOP_BITS    11
#define TOP_DIGITS  (1 << TOP_BITS)
#define TOP_EACH    4 /* neighbouring scores of a thread */
static_assert(TOP_DIGITS == 2 * TOP_THREADS, "a thread has two digits");

struct top_smem {
    uint32_t count[2]
                  [TOP_DIGITS]; /* of passes in turns: other blocks may still read the last one's */
    uint32_t sums[TOP_WARPS];
    uint32_t digit, wanted;
    uint32_t more, same; /* of the part: scores above the least that is taken, and equal to it */
};

/* The part of a row that a block has. */
struct top_part {
    const float *x;
    int32_t from, to;
    uint32_t rank, n_blocks;
};

static __device__ __forceinline__ void top_meet(const struct top_part &p)
{
    if (p.n_blocks > 1)
        sl_cluster_sync();
    else
        __syncthreads();
}

/* The thread's four scores from i on, of n, in order. */
static __device__ __forceinline__ int top_load(const float *x, int32_t i, int32_t n,
                                               uint32_t (&to)[TOP_EACH])
{
    if (i >= n)
        return 0;
    const float4 v = __ldcg(reinterpret_cast<const float4 *>(x + i));
    const float of[TOP_EACH] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < TOP_EACH; k++)
        to[k] = sl_score_order(of[k]);
    return min(n - i, TOP_EACH);
}

/* Which digit the wanted-th largest has, and the how-manieth of it it is; what the part has above.
 */
static __device__ __forceinline__ void top_find(struct top_smem *s, const struct top_part &p,
                                                int pass, uint32_t wanted)
{
    const int high = TOP_DIGITS - 1 - 2 * static_cast<int>(threadIdx.x);
    const uint32_t *mine = s->count[pass & 1];
    uint32_t first = 0, second = 0, all;
    for (uint32_t i = 0; i < p.n_blocks; i++) {
        const uint32_t *there =
            p.n_blocks > 1 ? sl_cluster_map(s, i)->count[pass & 1] : s->count[pass & 1];
        first += there[high];
        second += there[high - 1];
    }
    const uint32_t before = sl_block_scan<TOP_WARPS>(s->sums, first + second, &all);
    if (before < wanted && wanted <= before + first + second) {
        const bool is_first = wanted <= before + first;
        s->digit = static_cast<uint32_t>(is_first ? high : high - 1);
        s->wanted = wanted - before - (is_first ? 0 : first);
    }
    __syncthreads();
    const int digit = static_cast<int>(s->digit);
    const uint32_t above =
        (high > digit ? mine[high] : 0) + (high - 1 > digit ? mine[high - 1] : 0);
    sl_block_scan<TOP_WARPS>(s->sums, above, &all);
    if (threadIdx.x == 0) {
        s->more += all;
        s->same = mine[digit];
    }
}

/* The least that is taken of all scores, and how many equal to it are. */
static __device__ __forceinline__ uint32_t top_threshold(struct top_smem *s,
                                                         const struct top_part &p, uint32_t *wanted)
{
    uint32_t known = 0, mask = 0;
    int pass = 0;
    if (threadIdx.x == 0)
        s->more = 0;
#pragma unroll 1
    for (int shift = 32 - TOP_BITS; mask != 0xFFFFFFFFu; shift = max(shift - TOP_BITS, 0), pass++) {
        const uint32_t low = shift == 0 ? ~mask : TOP_DIGITS - 1; /* the last has fewer bits */
        uint32_t *count = s->count[pass & 1];
        for (unsigned i = threadIdx.x; i < TOP_DIGITS; i += TOP_THREADS)
            count[i] = 0;
        __syncthreads();
#pragma unroll 2
        for (int32_t i = p.from + TOP_EACH * static_cast<int32_t>(threadIdx.x); i < p.to;
             i += TOP_EACH * TOP_THREADS) {
            uint32_t u[TOP_EACH];
            const int here = top_load(p.x, i, p.to, u);
#pragma unroll
            for (int k = 0; k < TOP_EACH; k++)
                if (k < here && (u[k] & mask) == known)
                    atomicAdd(&count[u[k] >> shift & low], 1u);
        }
        top_meet(p);
        top_find(s, p, pass, *wanted);
        known |= s->digit << shift;
        mask |= low << shift;
        *wanted = s->wanted;
        __syncthreads();
    }
    return known;
}

/* Writes down what the part has of the n_equal scores equal to `least`, and of those above; more,
 * same: of such before the part. */
static __device__ __forceinline__ void top_write(struct top_smem *s, const struct top_part &p,
                                                 uint32_t least, uint32_t n_equal, uint32_t more,
                                                 uint32_t same, int32_t *top)
{
#pragma unroll 1
    for (int32_t at = p.from; at < p.to; at += TOP_EACH * TOP_THREADS) {
        const int32_t i = at + TOP_EACH * static_cast<int32_t>(threadIdx.x);
        uint32_t u[TOP_EACH], mine = 0, all;
        const int here = top_load(p.x, i, p.to, u);
#pragma unroll
        for (int k = 0; k < TOP_EACH; k++) /* two counts, of up to 4096 each */
            mine += k >= here ? 0 : u[k] > least ? 1u << 16 : u[k] == least ? 1u : 0;
        const uint32_t before = sl_block_scan<TOP_WARPS>(s->sums, mine, &all);
        uint32_t n_more = more + (before >> 16), n_same = same + (before & 0xFFFFu);
#pragma unroll
        for (int k = 0; k < TOP_EACH; k++) {
            if (k >= here || u[k] < least)
                continue;
            if (u[k] > least || n_same < n_equal)
                top[n_more + min(n_same, n_equal)] = i + k;
            n_more += u[k] > least;
            n_same += u[k] == least;
        }
        more += all >> 16;
        same += all & 0xFFFFu;
    }
}

static __global__ void __launch_bounds__(TOP_THREADS)
    index_top_kernel(const __grid_constant__ struct sl_index_rows a, int32_t n_blocks)
{
    SL_SMEM(struct top_smem, s);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const uint32_t row = blockIdx.x / static_cast<uint32_t>(n_blocks);
    const int64_t token = a.first + static_cast<int64_t>(row);
    const int32_t n = a.positions[token] + 1;
    if (n <= a.top_k) /* all blocks of the row */
        return;
    const int32_t each = ((n + n_blocks - 1) / n_blocks + TOP_EACH - 1) / TOP_EACH * TOP_EACH;
    struct top_part p = {a.scores + row * a.ld, 0, 0, 0, static_cast<uint32_t>(n_blocks)};
    p.rank = n_blocks > 1 ? sl_cluster_rank() : 0;
    p.from = min(static_cast<int32_t>(p.rank) * each, n);
    p.to = min(p.from + each, n);
    uint32_t n_equal = static_cast<uint32_t>(a.top_k), more = 0, same = 0;
    const uint32_t least = top_threshold(s, p, &n_equal);
    top_meet(p);
    for (uint32_t i = 0; i < p.rank; i++) {
        more += sl_cluster_map(s, i)->more;
        same += sl_cluster_map(s, i)->same;
    }
    top_meet(p); /* from here on no block reads another's memory */
    top_write(s, p, least, n_equal, more, same, a.top + token * a.top_k);
}

/* As many blocks of a row as there is room for at once. */
static unsigned blocks_of(const struct sl_cuda *cu, int32_t rows)
{
    unsigned n = 8;
    while (n > 1 && static_cast<int64_t>(rows) * n > cu->n_sms)
        n /= 2;
    return n;
}

void sl_index_largest(struct sl_cuda *cu, const struct sl_index_rows *rows)
{
    const unsigned n = blocks_of(cu, rows->n);
    sl_launch_cluster(cu, index_top_kernel, dim3(n * static_cast<unsigned>(rows->n)),
                      dim3(TOP_THREADS), sizeof(struct top_smem), n, *rows,
                      static_cast<int32_t>(n));
}
