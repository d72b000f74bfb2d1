/* SPDX-License-Identifier: MIT
 * What adapters add to a product, on the device: s = A x in a kernel ahead of the product, out += B
 * s in one after it. A decode step of many adapters is a stream through their matrices, rank * (K
 * + N) * 2 bytes a row, so both kernels have as many blocks as there are pieces of 32 KB or 8 KB,
 * and ask for their piece, into registers, before they wait for the previous kernel: adapters were
 * there before the step began. Which rows have which adapter is data, so a captured step serves any
 * set of them. A step of up to APART rows is looked up once, for all matrices (resolve): each look
 * that depends on another is most of a microsecond, before a kernel knows what to ask for.
 *
 * Shrink: A's 16 ranks are the rows of mma.m16n8k16, rows of x its columns. A warp has a slice of
 * 256 columns, a block a group of four slices; in a step of many rows it has all groups of its
 * eight rows. Every lane reads 16 bytes of two rows of A and of one of x: four columns of eight go
 * to one mma, four to the next, the same of both.
 *
 * Expand: a thread has eight outputs next to each other (of gate and of up: four each), a row of a
 * panel of B for each rank. Rows next to each other with the same adapter share what was read.
 *
 * Bits: a slice is one accumulator over its columns, 16 (as said above) after 16 in ascending
 * order; slices of a group are added in order, then groups; the sum is multiplied by the product of
 * both scales. Outputs as on the CPU: one chain over the ranks, then one addition. Columns and
 * ranks alone say so, not the other rows.
 */
#include "cuda/gemm/lora.h"

#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/ptx.cuh"

#define THREADS   128
#define SLICE     256            /* columns of a warp */
#define SLICES    (THREADS / 32) /* of a group */
#define STEPS     (SLICE / 32)   /* of two mma */
#define RANKS     16             /* of a tile of A, of a chunk of B */
#define TILE      8              /* rows of x that meet the same tile of A */
#define APART     256            /* rows up to which each has a block of its own */
#define MANY_TILE 32             /* rows of a block of expand above that */
#define MANY_ROWS 4              /* of these at a time */
#define PANEL_ROW SL_LORA_PANEL  /* numbers of B of one rank next to each other */

struct args {
    const __nv_bfloat16 *x;
    int64_t ld_x;
    int32_t n, k, first; /* first: of the step's rows, that row 0 is */
    int32_t mat, n_mats, n_parts;
    int32_t max_rank, n_groups, n_sums; /* n_sums: kept of each s[j], 1 or n_groups */
    const int32_t *gathered, *adapter;  /* of the step */
    const float *scale;
    const struct sl_lora_mat *table;
    const struct sl_lora_row *by_row; /* NULL: rows are looked up in table */
    float *s;                         /* [n, n_parts, n_sums, max_rank] */
    bool vec;                         /* rows of x and A start at multiples of 16 bytes */
    bool wide;                        /* and pieces of outputs too */
    enum sl_act act;
    __nv_bfloat16 *gated_out;
    struct part {
        float *out;
        int64_t ld_out;
        int32_t n_rows;
        int32_t first; /* block of expand */
    } part[SL_MAX_LINEAR_PARTS];
};

/* Rows next to each other with one adapter. */
struct lora_run {
    int32_t t0, m, adapter;
};

static __device__ __forceinline__ int32_t lora_row(const struct args &a, int t)
{
    return a.gathered != nullptr ? a.gathered[a.first + t] : a.first + t;
}

static __device__ __forceinline__ struct lora_run run_at(const struct args &a, int t, int end)
{
    struct lora_run r = {t, 1, a.adapter[lora_row(a, t)]};
    while (t + r.m < end && a.adapter[lora_row(a, t + r.m)] == r.adapter)
        r.m++;
    return r;
}

static __device__ __forceinline__ struct sl_lora_mat lora_mat(const struct args &a, int adapter,
                                                              int part)
{
    if (adapter < 0)
        return {};
    return a.table[static_cast<int64_t>(adapter) * a.n_mats + a.mat + part];
}

/* What a row has in a part, in one look. Its scale is the product of both. Rows that are picked out
 * of the step's are not next to each other. */
static __device__ __forceinline__ struct sl_lora_row lora_look_up(const struct args &a, int t,
                                                                  int part)
{
    struct sl_lora_row r = a.by_row[static_cast<int64_t>(a.mat + part) * APART + lora_row(a, t)];
    r.n_same = a.gathered != nullptr ? 1 : SL_MIN(r.n_same, a.n - t);
    return r;
}

/* Of every matrix and row of the step. The kernels after it begin when it has ended: they rely on
 * it before they wait. */
static __global__ void __launch_bounds__(APART)
    lora_resolve_kernel(const struct sl_lora_mat *table, int n_mats, const int32_t *adapter,
                        const float *scale, int n, struct sl_lora_row *out)
{
    const int t = static_cast<int>(threadIdx.x), mat = static_cast<int>(blockIdx.x);
    sl_grid_wait();
    if (t >= n)
        return;
    const int own = adapter[t], eight = t - t % TILE, end = SL_MIN(n, eight + TILE);
    struct sl_lora_row r = {};
    if (own >= 0) {
        const struct sl_lora_mat m = table[static_cast<int64_t>(own) * n_mats + mat];
        r.a = m.a;
        r.b = m.b;
        r.rank = m.rank;
        r.scale = __fmul_rn(m.scale, scale[t]);
    }
    if (t == eight || adapter[t - 1] != own)
        for (r.n_same = 1; t + r.n_same < end && adapter[t + r.n_same] == own;)
            r.n_same++;
    out[static_cast<int64_t>(mat) * APART + t] = r;
}

/* ------------------------------------------------------------------ shrink */

/* Eight numbers of a row from column k on, zeros after its end. */
static __device__ __forceinline__ uint4 eight(const __nv_bfloat16 *row, int k, int n_cols, bool vec)
{
    if (vec)
        return k < n_cols ? *reinterpret_cast<const uint4 *>(row + k) : make_uint4(0, 0, 0, 0);
    uint32_t w[4] = {};
    for (int i = 0; i < 8; i++)
        if (k + i < n_cols)
            w[i / 2] |= static_cast<uint32_t>(__bfloat16_as_ushort(row[k + i])) << (i % 2 * 16);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* A slice's columns of 16 ranks: of two rows of A for each lane. */
struct a_frag {
    uint4 lo[STEPS], hi[STEPS];
};

static __device__ __forceinline__ int column_of(int slice, int step)
{
    return slice * SLICE + step * 32 + static_cast<int>(threadIdx.x % 4) * 8;
}

static __device__ __forceinline__ void load_a(struct a_frag &f, const struct args &a,
                                              const void *of, int rank, int j0, int slice)
{
    const int lo = j0 + static_cast<int>(threadIdx.x % 32 / 4), hi = lo + 8;
    const __nv_bfloat16 *A = static_cast<const __nv_bfloat16 *>(of);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int k = column_of(slice, i);
        f.lo[i] = eight(A + static_cast<int64_t>(lo) * a.k, lo < rank ? k : a.k, a.k, a.vec);
        f.hi[i] = eight(A + static_cast<int64_t>(hi) * a.k, hi < rank ? k : a.k, a.k, a.vec);
    }
}

/* The slice's sums to sum[rank][row], 16 x 8. */
static __device__ __forceinline__ void lora_multiply(const struct a_frag &f, const struct args &a,
                                                     const struct lora_run &r, int slice,
                                                     float *sum)
{
    const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 4;
    const __nv_bfloat16 *x = a.x + static_cast<int64_t>(r.t0 + row) * a.ld_x;
    uint4 xs[STEPS];
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        xs[i] = eight(x, row < r.m ? column_of(slice, i) : a.k, a.k, a.vec);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t a0[4] = {f.lo[i].x, f.hi[i].x, f.lo[i].y, f.hi[i].y};
        const uint32_t a1[4] = {f.lo[i].z, f.hi[i].z, f.lo[i].w, f.hi[i].w};
        const uint32_t b0[2] = {xs[i].x, xs[i].y}, b1[2] = {xs[i].z, xs[i].w};
        sl_mma_bf16(c, a0, b0);
        sl_mma_bf16(c, a1, b1);
    }
    float *at = sum + row * TILE + lane % 4 * 2;
    at[0] = c[0];
    at[1] = c[1];
    at[8 * TILE] = c[2];
    at[8 * TILE + 1] = c[3];
}

/* Adds the slices of n_groups groups, a thread for each rank and row, and leaves n_sums sums. */
static __device__ void add_up(const struct args &a, const struct lora_run &r, int p, int j0,
                              int rank, int group, const float *sums)
{
    const int j = static_cast<int>(threadIdx.x) / TILE, row = static_cast<int>(threadIdx.x) % TILE;
    const int n = a.n_sums > 1 ? 1 : a.n_groups;
    float total = 0.0f;
    for (int g = 0; g < n; g++) {
        const float *at = sums + (g * SLICES * RANKS + j) * TILE + row;
        float sum = at[0];
        for (int i = 1; i < SLICES; i++)
            sum = __fadd_rn(sum, at[i * RANKS * TILE]);
        total = g == 0 ? sum : __fadd_rn(total, sum);
    }
    if (row < r.m && j0 + j < rank)
        a.s[(static_cast<int64_t>((r.t0 + row) * a.n_parts + p) * a.n_sums + group) * a.max_rank +
            j0 + j] = total;
}

/* A block for a row's run, a part, 16 ranks and a group of columns. */
static __global__ void __launch_bounds__(THREADS, 4)
    lora_shrink_apart_kernel(const __grid_constant__ struct args a)
{
    SL_SMEM(float, sums);
    const int t = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x / 32);
    const int p = static_cast<int>(blockIdx.y) % a.n_parts;
    const int j0 = static_cast<int>(blockIdx.y) / a.n_parts * RANKS;
    const int group = static_cast<int>(blockIdx.z), slice = group * SLICES + warp;
    sl_grid_launch_dependents();
    const struct sl_lora_row row = lora_look_up(a, t, p);
    const struct lora_run r = {t, row.n_same, 0};
    if (row.rank <= j0 || r.m == 0) { /* the block of a row before it does it */
        sl_grid_wait(); /* whoever waits for this grid relies on those before it too */
        return;
    }
    struct a_frag f;
    load_a(f, a, row.a, row.rank, j0, slice);
    sl_grid_wait();
    lora_multiply(f, a, r, slice, sums + warp * RANKS * TILE);
    __syncthreads();
    add_up(a, r, p, j0, row.rank, group, sums);
}

/* A block for eight rows, a part and 16 ranks. */
static __global__ void __launch_bounds__(THREADS, 4)
    lora_shrink_many_kernel(const __grid_constant__ struct args a)
{
    SL_SMEM(float, sums);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int p = static_cast<int>(blockIdx.y) % a.n_parts;
    const int j0 = static_cast<int>(blockIdx.y) / a.n_parts * RANKS;
    const int end = SL_MIN(a.n, static_cast<int>(blockIdx.x + 1) * TILE);
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int t = static_cast<int>(blockIdx.x) * TILE; t < end;) {
        const struct lora_run r = run_at(a, t, end);
        const struct sl_lora_mat mat = lora_mat(a, r.adapter, p);
        t += r.m;
        if (mat.rank <= j0)
            continue;
        for (int slice = warp; slice < a.n_groups * SLICES; slice += SLICES) {
            struct a_frag f;
            load_a(f, a, mat.a, mat.rank, j0, slice);
            lora_multiply(f, a, r, slice, sums + slice * RANKS * TILE);
        }
        __syncthreads();
        add_up(a, r, p, j0, mat.rank, 0, sums);
        __syncthreads();
    }
}

/* ------------------------------------------------------------------ expand */

/* N outputs' numbers of 16 ranks. */
template <int N> struct b_frag {
    uint32_t w[RANKS][N / 2];
};

/* Ranks from j0 on of the outputs from n0 on. */
template <int N>
static __device__ __forceinline__ void load_b(struct b_frag<N> &f, const struct sl_lora_mat &mat,
                                              int n0, int j0, bool mine)
{
    const uint16_t *at = static_cast<const uint16_t *>(mat.b) +
                         (static_cast<int64_t>(n0 / PANEL_ROW) * mat.rank + j0) * PANEL_ROW +
                         n0 % PANEL_ROW;
#pragma unroll
    for (int j = 0; j < RANKS; j++) {
        if constexpr (N == 8) {
            const uint4 q = mine && j0 + j < mat.rank
                                ? *reinterpret_cast<const uint4 *>(at + j * PANEL_ROW)
                                : make_uint4(0, 0, 0, 0);
            f.w[j][0] = q.x, f.w[j][1] = q.y, f.w[j][2] = q.z, f.w[j][3] = q.w;
        } else {
            const uint2 q = mine && j0 + j < mat.rank
                                ? *reinterpret_cast<const uint2 *>(at + j * PANEL_ROW)
                                : make_uint2(0, 0);
            f.w[j][0] = q.x, f.w[j][1] = q.y;
        }
    }
}

/* N numbers of a row from n0 on; v keeps what is after the end. */
template <int N>
static __device__ __forceinline__ void load_out(float (&v)[N], const float *row, int n0, int n_rows,
                                                bool wide)
{
    if (wide && n0 < n_rows) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 q = *reinterpret_cast<const float4 *>(row + n0 + i);
            v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (n0 + i < n_rows)
            v[i] = row[n0 + i];
}

template <int N>
static __device__ __forceinline__ void store_out(float *row, const float (&v)[N], int n0,
                                                 int n_rows, bool wide)
{
    if (wide && n0 < n_rows) {
#pragma unroll
        for (int i = 0; i < N; i += 4)
            *reinterpret_cast<float4 *>(row + n0 + i) =
                make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (n0 + i < n_rows)
            row[n0 + i] = v[i];
}

static __device__ __forceinline__ void store_gated(__nv_bfloat16 *row, const float (&g)[4],
                                                   const float (&u)[4], enum sl_act act, int n0,
                                                   int n_rows, bool wide)
{
    __nv_bfloat16 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __float2bfloat16_rn(__fmul_rn(sl_act(act, g[i]), u[i]));
    if (wide && n0 < n_rows) {
        uint2 q;
        q.x = static_cast<uint32_t>(__bfloat16_as_ushort(v[0])) |
              static_cast<uint32_t>(__bfloat16_as_ushort(v[1])) << 16;
        q.y = static_cast<uint32_t>(__bfloat16_as_ushort(v[2])) |
              static_cast<uint32_t>(__bfloat16_as_ushort(v[3])) << 16;
        *reinterpret_cast<uint2 *>(row + n0) = q;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (n0 + i < n_rows)
            row[n0 + i] = v[i];
}

/* Ranks of s in shared memory: a row's are so far apart, zeros after the last. */
static __device__ __host__ __forceinline__ int lora_padded(int rank)
{
    return (rank + RANKS - 1) / RANKS * RANKS;
}

/* s of the run's rows, scaled, to shared memory. */
static __device__ __forceinline__ void bring_s(const struct args &a, const struct lora_run &r,
                                               const struct sl_lora_mat &mat, int p, float *to)
{
    const int width = lora_padded(mat.rank);
    for (int i = static_cast<int>(threadIdx.x); i < r.m * width; i += THREADS) {
        const int row = r.t0 + i / width, j = i % width;
        const float *at =
            a.s + static_cast<int64_t>(row * a.n_parts + p) * a.n_sums * a.max_rank + j;
        float sum = 0.0f;
        if (j < mat.rank) {
            sum = at[0];
#pragma unroll 4
            for (int g = 1; g < a.n_sums; g++)
                sum = __fadd_rn(sum, at[static_cast<int64_t>(g) * a.max_rank]);
            sum = __fmul_rn(sum, a.by_row != nullptr
                                     ? mat.scale
                                     : __fmul_rn(mat.scale, a.scale[lora_row(a, row)]));
        }
        to[i] = sum;
    }
}

/* d[r] += B s[r] of 16 ranks; s: of the first of R rows, width apart. */
template <int N, int R>
static __device__ __forceinline__ void lora_add_ranks(float (&d)[R][N], const struct b_frag<N> &f,
                                                      const float *s, int width, int n_rows)
{
#pragma unroll
    for (int j = 0; j < RANKS; j++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float sj = r < n_rows ? s[r * width + j] : 0.0f;
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const uint32_t w = f.w[j][i];
                d[r][2 * i] = __fmaf_rn(__uint_as_float(w << 16), sj, d[r][2 * i]);
                d[r][2 * i + 1] = __fmaf_rn(__uint_as_float(w & 0xFFFF0000u), sj, d[r][2 * i + 1]);
            }
        }
}

/* What a thread works on: outputs n0 .. of MATS parts from p on. */
template <bool GATED, int R> struct expander {
    static constexpr int N = GATED ? 4 : 8, MATS = GATED ? 2 : 1;
    struct sl_lora_mat mat[MATS];
    struct b_frag<N> b[MATS];
    float out[MATS][R][N];
    int p, n0, n_rows;

    __device__ __forceinline__ void load(const struct args &a, int first, int n)
    {
#pragma unroll
        for (int m = 0; m < MATS; m++)
#pragma unroll
            for (int r = 0; r < R; r++)
                if (r < n)
                    load_out<N>(out[m][r], a.part[p + m].out + (first + r) * a.part[p + m].ld_out,
                                n0, n_rows, a.wide);
    }
    __device__ __forceinline__ void store(const struct args &a, int first, int n)
    {
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= n)
                break;
            if constexpr (GATED)
                store_gated(a.gated_out + static_cast<int64_t>(first + r) * n_rows, out[0][r],
                            out[MATS - 1][r], a.act, n0, n_rows, a.wide);
            else
                store_out<N>(a.part[p].out + (first + r) * a.part[p].ld_out, out[0][r], n0, n_rows,
                             a.wide);
        }
    }
    __device__ __forceinline__ void ask(int j0)
    {
#pragma unroll
        for (int m = 0; m < MATS; m++)
            if (j0 < mat[m].rank)
                load_b<N>(b[m], mat[m], n0, j0, n0 < n_rows);
    }
    /* n rows whose s begin at s[m]; b has the first 16 ranks. */
    __device__ __forceinline__ void add(const float *const (&s)[MATS], int n)
    {
        const int more = SL_MAX(mat[0].rank, mat[MATS - 1].rank);
        float d[MATS][R][N] = {};
        for (int j0 = 0; j0 < more; j0 += RANKS) {
            if (j0 > 0)
                ask(j0);
#pragma unroll
            for (int m = 0; m < MATS; m++)
                if (j0 < mat[m].rank)
                    lora_add_ranks<N, R>(d[m], b[m], s[m] + j0, lora_padded(mat[m].rank), n);
        }
        if (more > RANKS)
            ask(0);
#pragma unroll
        for (int m = 0; m < MATS; m++) {
            if (mat[m].rank == 0)
                continue;
#pragma unroll
            for (int i = 0; i < R * N; i++)
                out[m][i / N][i % N] = __fadd_rn(out[m][i / N][i % N], d[m][i / N][i % N]);
        }
    }
};

/* One run: its outputs, R rows at a time. The first time it waits for the previous kernels. */
template <bool GATED, int R>
static __device__ __forceinline__ void expand_run(const struct args &a, expander<GATED, R> &e,
                                                  const struct lora_run &r, float *smem,
                                                  bool *waited)
{
    constexpr int MATS = expander<GATED, R>::MATS;
    const float *s[MATS];
    float *at = smem;
    e.ask(0);
    if (!*waited)
        sl_grid_wait();
    *waited = true;
    e.load(a, r.t0, SL_MIN(R, r.m));
#pragma unroll
    for (int m = 0; m < MATS; m++) {
        bring_s(a, r, e.mat[m], e.p + m, at);
        s[m] = at;
        at += r.m * lora_padded(e.mat[m].rank);
    }
    __syncthreads();
    for (int i = 0; i < r.m; i += R) {
        const int n = SL_MIN(R, r.m - i);
        if (i > 0)
            e.load(a, r.t0 + i, n);
        e.add(s, n);
        e.store(a, r.t0 + i, n);
#pragma unroll
        for (int m = 0; m < MATS; m++)
            s[m] += n * lora_padded(e.mat[m].rank);
    }
    __syncthreads(); /* s may be written again */
}

/* A block for a row, or for the runs of several, and a range of outputs. Rows of their own are not
 * gathered into runs: one after the other they would take longer than reading B again, from L2. */
template <bool GATED, int R>
static __global__ void __launch_bounds__(THREADS)
    lora_expand_kernel(const __grid_constant__ struct args a)
{
    SL_SMEM(float, smem);
    constexpr int tile = R == 1 ? 1 : MANY_TILE;
    expander<GATED, R> e = {};
    while (!GATED && e.p + 1 < a.n_parts && static_cast<int>(blockIdx.y) >= a.part[e.p + 1].first)
        e.p++;
    e.n0 = (static_cast<int>(blockIdx.y) - a.part[e.p].first) * THREADS * e.N +
           static_cast<int>(threadIdx.x) * e.N;
    e.n_rows = a.part[e.p].n_rows;
    const int end = SL_MIN(a.n, static_cast<int>(blockIdx.x + 1) * tile);
    bool waited = false;
    sl_grid_launch_dependents();
    for (int t = static_cast<int>(blockIdx.x) * tile; t < end;) {
        struct lora_run r = {t, 1, 0};
        if (R > 1)
            r = run_at(a, t, end);
#pragma unroll
        for (int m = 0; m < e.MATS; m++) {
            if constexpr (R > 1) {
                e.mat[m] = lora_mat(a, r.adapter, e.p + m);
            } else {
                const struct sl_lora_row row = lora_look_up(a, t, e.p + m);
                e.mat[m] = {row.a, row.b, row.rank, row.scale};
            }
        }
        if (GATED || e.mat[0].rank > 0)
            expand_run<GATED, R>(a, e, r, smem, &waited);
        t += r.m;
    }
    if (!waited)
        sl_grid_wait();
}

/* ------------------------------------------------------------------ host */

static bool lora_aligned(const void *p, size_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

/* Blocks of expand for a row. */
static int32_t place_parts(const struct sl_cuda_lora *l, struct args *a)
{
    const bool gated = l->gated_out != NULL;
    const int32_t each = gated ? 4 : 8;
    int32_t n = 0;
    a->wide = !gated || lora_aligned(l->gated_out, 8);
    for (int32_t i = 0; i < l->n_parts; i++) {
        const struct sl_cuda_lora_part *p = &l->part[i];
        const int32_t n_rows = static_cast<int32_t>(p->w->n_rows);
        a->part[i] = {p->out, p->ld_out, n_rows, n};
        a->wide = a->wide && n_rows % each == 0 && p->ld_out % 4 == 0 && lora_aligned(p->out, 16);
        if (!gated || i == 1)
            n += SL_CEIL_DIV(n_rows, THREADS * each);
    }
    return n;
}

static struct args lora_args(const struct sl_cuda *cu, const struct sl_cuda_lora *l)
{
    const struct sl_op_lora *lora = l->lora;
    struct args a = {};
    SL_ASSERT(l->n_parts >= 1 && l->n_parts <= SL_MAX_LINEAR_PARTS);
    SL_ASSERT(l->gated_out == NULL || l->n_parts == 2);
    a.x = static_cast<const __nv_bfloat16 *>(l->x);
    a.ld_x = l->ld_x;
    a.n = l->n;
    a.k = static_cast<int32_t>(l->part[0].w->n_cols);
    a.first = l->first;
    a.mat = lora->mat;
    a.n_mats = lora->rows->n_mats;
    a.n_parts = l->n_parts;
    a.max_rank = lora->max_rank;
    a.n_groups = SL_CEIL_DIV(a.k, SLICES * SLICE);
    /* Rows one by one if they were looked up and their partial sums find room. */
    const int64_t n_s = static_cast<int64_t>(l->n) * l->n_parts * a.max_rank;
    const bool apart = cu->lora_rows == lora->rows && l->n <= APART && l->first % TILE == 0 &&
                       n_s * a.n_groups <= lora->n_s;
    a.n_sums = apart ? a.n_groups : 1;
    a.by_row = apart ? static_cast<const struct sl_lora_row *>(cu->lora_by_row) : NULL;
    SL_ASSERT(n_s * a.n_sums <= lora->n_s);
    a.gathered = lora->gathered;
    a.adapter = lora->rows->adapter;
    a.scale = lora->rows->scale;
    a.table = lora->rows->table;
    a.s = lora->s;
    a.vec = lora_aligned(l->x, 16) && l->ld_x % 8 == 0 && a.k % 8 == 0;
    a.act = l->act;
    a.gated_out = static_cast<__nv_bfloat16 *>(l->gated_out);
    return a;
}

void sl_cuda_lora_resolve(struct sl_cuda *cu, const struct sl_lora_rows *rows, int32_t n,
                          void *by_row)
{
    cu->lora_rows = NULL;
    if (n > APART)
        return;
    cu->lora_rows = rows;
    cu->lora_by_row = by_row;
    sl_launch(cu, lora_resolve_kernel, dim3(static_cast<unsigned>(rows->n_mats)), dim3(APART), 0,
              rows->table, rows->n_mats, rows->adapter, rows->scale, n,
              static_cast<struct sl_lora_row *>(by_row));
}

void sl_cuda_lora_shrink(struct sl_cuda *cu, const struct sl_cuda_lora *l)
{
    const struct args a = lora_args(cu, l);
    const unsigned pieces = static_cast<unsigned>(SL_CEIL_DIV(a.max_rank, RANKS) * a.n_parts);
    const size_t slice = RANKS * TILE * sizeof(float), group = SLICES * slice;
    if (a.by_row != nullptr)
        sl_launch(cu, lora_shrink_apart_kernel,
                  dim3(static_cast<unsigned>(a.n), pieces, static_cast<unsigned>(a.n_groups)),
                  dim3(THREADS), group, a);
    else
        sl_launch(cu, lora_shrink_many_kernel,
                  dim3(static_cast<unsigned>(SL_CEIL_DIV(a.n, TILE)), pieces), dim3(THREADS),
                  static_cast<size_t>(a.n_groups) * group, a);
}

void sl_cuda_lora_expand(struct sl_cuda *cu, const struct sl_cuda_lora *l)
{
    struct args a = lora_args(cu, l);
    const bool gated = a.gated_out != nullptr, apart = a.by_row != nullptr;
    const unsigned n_blocks = static_cast<unsigned>(place_parts(l, &a));
    const int tile = apart ? 1 : MANY_TILE;
    const dim3 grid(static_cast<unsigned>(SL_CEIL_DIV(a.n, tile)), n_blocks);
    const size_t smem = static_cast<size_t>((gated ? 2 : 1) * tile * lora_padded(a.max_rank)) * 4;
    if (gated && apart)
        sl_launch(cu, lora_expand_kernel<true, 1>, grid, dim3(THREADS), smem, a);
    else if (gated)
        sl_launch(cu, lora_expand_kernel<true, MANY_ROWS>, grid, dim3(THREADS), smem, a);
    else if (apart)
        sl_launch(cu, lora_expand_kernel<false, 1>, grid, dim3(THREADS), smem, a);
    else
        sl_launch(cu, lora_expand_kernel<false, MANY_ROWS>, grid, dim3(THREADS), smem, a);
}
