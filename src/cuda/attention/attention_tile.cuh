/* SPDX-License-Identifier: MIT
 * attention_tile.cuh - a block's view of the work: which rows and keys an item has, the loads of
 * key and value tiles, the masks and the exponentials, and what happens to partial results.
 */
#ifndef SL_CUDA_ATTENTION_TILE_CUH
#define SL_CUDA_ATTENTION_TILE_CUH

#include "cuda/attention/attention.cuh"

#define SL_ATTN_INF __int_as_float(0x7F800000)

/* ---------------------------------------------------------------- rows and keys */

/* In shared memory: the same for all threads, and registers are short. */
struct sl_attn_work {
    struct sl_attn_item item;
    int key_lo, key_hi; /* keys some row sees */
    int all_lo, all_hi; /* keys every row sees; may be empty */
};

/* The row's token, of the span's. Rows after the end count as the last one: they are computed on
 * and never written. */
static __device__ __forceinline__ int sl_attn_token(const struct sl_attn_args &a,
                                                    const struct sl_attn_work &w, int row)
{
    return sl_attn_div(w.item.row0 + min(row, w.item.n_rows - 1), a.by_group);
}

static __device__ __forceinline__ int sl_attn_seen_from(const struct sl_attn_args &a, int pos)
{
    if (a.chunks)
        return pos - static_cast<int>(static_cast<unsigned>(pos) % static_cast<unsigned>(a.window));
    return a.window > 0 ? max(pos - a.window + 1, 0) : 0;
}

/* The key after the last one that a row at `pos` of the tile sees. key_hi is no less than that of
 * the tile's last row, and no key of the tile lies after the span. */
static __device__ __forceinline__ int sl_attn_seen_to(const struct sl_attn_args &a,
                                                      const struct sl_attn_work &w, int pos)
{
    return min(pos + a.ahead + 1, w.key_hi);
}

/* 16 lanes of a warp (`mine`: of one half, or of each half) get the words of entry `at` of the
 * class's list for a key head, a word each. */
static __device__ __forceinline__ int sl_attn_ask(const struct sl_attn_args &a, int at, int n,
                                                  bool mine)
{
    int i = static_cast<int>(threadIdx.x) & 15, item = sl_attn_div(at, a.by_kv), word = -1;
    if (mine && item < a.cap_items) /* there, whatever it is: its number may still be on its way */
        word = __ldcg(reinterpret_cast<const int *>(a.items + item) + i);
    if (i == 14)
        word = at - item * a.n_kv_heads;
    if (i == 15)
        word = at < n;
    return word;
}

/* They put them there; the whole warp calls. */
static __device__ __forceinline__ void sl_attn_put(const struct sl_attn_args &a, int word,
                                                   struct sl_attn_work *w, bool mine)
{
    int i = static_cast<int>(threadIdx.x) & 15;
    if (mine)
        reinterpret_cast<int *>(&w->item)[i] = word;
    __syncwarp();
    if (mine && i == 0) {
        int first = w->item.pos + sl_attn_div(w->item.row0, a.by_group);
        int last = w->item.pos + w->item.tok_last;
        w->key_lo = sl_attn_seen_from(a, first);
        w->key_hi = min(last + a.ahead + 1, w->item.end);
        w->all_lo = sl_attn_seen_from(a, last);
        w->all_hi = sl_attn_seen_to(a, *w, first);
    }
}

/* Both. */
static __device__ __forceinline__ void sl_attn_fetch(const struct sl_attn_args &a, int at, int n,
                                                     struct sl_attn_work *w, bool mine)
{
    sl_attn_put(a, sl_attn_ask(a, at, n, mine), w, mine);
}

/* First row of slot `slot` of the tile: slot 0 is the first part's state, then come the splits, or
 * the runs, after it. */
static __device__ __forceinline__ int64_t sl_attn_slot(const struct sl_attn_args &a,
                                                       const struct sl_attn_work &w, int slot)
{
    int64_t at = w.item.rows_at + static_cast<int64_t>(slot) * w.item.n_rows;
    return at * a.n_kv_heads + w.item.kv * w.item.n_rows;
}

/* Do parts leave a slot for each run? */
static __device__ __forceinline__ bool sl_attn_by_run(const struct sl_attn_work &w)
{
    return w.item.first >= SL_ATTN_FAR_SPLITS;
}

/* The slot of a split after the first part, or of its run. */
static __device__ __forceinline__ int sl_attn_split_slot(const struct sl_attn_work &w, int split)
{
    if (sl_attn_by_run(w))
        return 1 + sl_attn_run_of(split) - sl_attn_run_of(w.item.first);
    return 1 + split - w.item.first;
}

/* The tiles of an item, of TILE keys each. */
template <int TILE = SL_ATTN_TILE>
static __device__ __forceinline__ void sl_attn_tiles_of(const struct sl_attn_work &w, int *from,
                                                        int *to)
{
    *from = max(sl_attn_split_at(w.item.from), w.key_lo) / TILE;
    *to = (min(sl_attn_split_at(w.item.to), w.key_hi) + TILE - 1) / TILE;
}

template <int TILE = SL_ATTN_TILE>
static __device__ __forceinline__ bool sl_attn_last_of_split(int tile, int tile_to)
{
    int end = (tile + 1) * TILE;
    return tile + 1 == tile_to || (end & (sl_attn_split_size(end - 1) - 1)) == 0;
}

/* Does a row not see all of the tile? */
static __device__ __forceinline__ bool sl_attn_masked(const struct sl_attn_work &w, int tile)
{
    return tile * SL_ATTN_TILE < w.all_lo || (tile + 1) * SL_ATTN_TILE > w.all_hi;
}

/* Do the rows of the tile see different keys? */
static __device__ __forceinline__ bool sl_attn_differ(const struct sl_attn_work &w)
{
    return w.all_lo != w.key_lo || w.all_hi != w.key_hi;
}

/* The query of a row; NULL after the last. */
static __device__ __forceinline__ const float *sl_attn_query_row(const struct sl_attn_args &a,
                                                                 const struct sl_attn_work &w,
                                                                 int row)
{
    if (row >= w.item.n_rows)
        return nullptr;
    int r = w.item.row0 + row, token = sl_attn_div(r, a.by_group);
    int head = w.item.kv * a.group + r - token * a.group;
    return a.q + (w.item.token + token) * a.ld_q + static_cast<int64_t>(head) * a.head_dim;
}

/* Two dimensions of it. */
template <class E>
static __device__ __forceinline__ uint32_t sl_attn_query2(const float *row, int d, int head_dim)
{
    if (row == nullptr || d >= head_dim)
        return 0;
    float2 x = *reinterpret_cast<const float2 *>(row + d);
    return E::pack(x.x, x.y);
}

/* Values nobody sees, of n tiles of a page from key `key` on, become zeros: what lies there may be
 * no number at all. thread: of n_threads. */
template <class KV, int D>
static __device__ __forceinline__ void sl_attn_clear(const struct sl_attn_work &w, uint8_t *tiles,
                                                     int n, int key, int thread, int n_threads)
{
#pragma unroll 1
    for (int i = thread; i < n * KV::parts(D); i += n_threads) {
        int tile = i / KV::parts(D), part = i % KV::parts(D);
        int at = key + tile * SL_KV_TILE + KV::part_row(D, part);
        if (at < w.key_lo || at >= w.key_hi)
            KV::clear(tiles + tile * KV::tile_bytes(D), D, part);
    }
}

/* ---------------------------------------------------------------- a warp's scores */

/* What a thread knows of its two rows, lane / 4 and lane / 4 + 8 of its warp's 16. */
struct sl_attn_rows {
    int pos[2];
};

static __device__ __forceinline__ struct sl_attn_rows sl_attn_rows_of(const struct sl_attn_args &a,
                                                                      const struct sl_attn_work &w,
                                                                      int row)
{
    struct sl_attn_rows r;
#pragma unroll
    for (int i = 0; i < 2; i++)
        r.pos[i] = w.item.pos + sl_attn_token(a, w, row + 8 * i);
    return r;
}

/* Soft cap, by tanh(x) = (1 - e) / (1 + e), e = exp(-2 |x|). The difference loses what is small
 * against 1, and a score is no better. Newton's steps give 1 / (1 + e) to the last bits, since the
 * line is within 5 % of it; a division costs the main loop registers for its rare cases. */
static __device__ __forceinline__ float sl_attn_cap(const struct sl_attn_args &a, float s)
{
    float x = __fmul_rn(s, a.cap_in);
    float e = sl_ex2_approx(__fmul_rn(fabsf(x), -0x1.715476p1f));
    float d = __fadd_rn(1.0f, e), r = __fmaf_rn(d, -0.5f, 1.4571068f);
#pragma unroll
    for (int i = 0; i < 3; i++)
        r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
    return copysignf(__fmul_rn(a.cap, __fmul_rn(__fadd_rn(1.0f, -e), r)), x);
}

/* F fragments of eight keys each, of a tile's scores, from `key` on. tall: there are rows in the
 * second half; what is said of them otherwise counts for nobody, and costs. */
template <int F>
static __device__ __forceinline__ void sl_attn_cap_and_mask(const struct sl_attn_args &a,
                                                            const struct sl_attn_work &w,
                                                            const struct sl_attn_rows &r,
                                                            float (&s)[F][4], int key, bool masked,
                                                            bool tall)
{
    if (a.cap > 0.0f) {
#pragma unroll
        for (int f = 0; f < F; f++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (i == 2 && !tall)
                    break;
                s[f][i] = sl_attn_cap(a, s[f][i]);
            }
    }
    if (!masked)
        return;
    key += (static_cast<int>(threadIdx.x) & 3) * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !tall)
            break;
        int lo = sl_attn_seen_from(a, r.pos[i]), from = key - lo;
        unsigned n = static_cast<unsigned>(sl_attn_seen_to(a, w, r.pos[i]) - lo);
#pragma unroll
        for (int f = 0; f < F; f++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                s[f][2 * i + j] =
                    static_cast<unsigned>(from + 8 * f + j) < n ? s[f][2 * i + j] : -SL_ATTN_INF;
    }
}

/* The largest of a thread's scores of its row i, in F fragments. */
template <int F>
static __device__ __forceinline__ float sl_attn_thread_max(const float (*s)[4], int i)
{
    float x[F / 2];
#pragma unroll
    for (int f = 0; f < F / 2; f++)
        x[f] = fmaxf(fmaxf(s[2 * f][2 * i], s[2 * f][2 * i + 1]),
                     fmaxf(s[2 * f + 1][2 * i], s[2 * f + 1][2 * i + 1]));
#pragma unroll
    for (int n = F / 4; n > 0; n /= 2)
#pragma unroll
        for (int f = 0; f < n; f++)
            x[f] = fmaxf(x[f], x[f + n]);
    return x[0];
}

/* And of the row's, to all four threads that share it. */
static __device__ __forceinline__ float sl_attn_quad_max(float top)
{
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
}

template <int F>
static __device__ __forceinline__ void sl_attn_row_max(const float (&s)[F][4], float top[2],
                                                       bool tall)
{
    top[0] = sl_attn_quad_max(sl_attn_thread_max<F>(s, 0));
    top[1] = tall ? sl_attn_quad_max(sl_attn_thread_max<F>(s, 1)) : -SL_ATTN_INF;
}

/* Does the reference m rise to top? Not where both are -inf. */
static __device__ __forceinline__ bool sl_attn_is_far(float top, float m, float c)
{
    return __fmul_rn(__fadd_rn(top, -m), c) > SL_ATTN_SLACK;
}

/* The reference m of the running sums rises to top where that is far above it. alpha: what was
 * there before is multiplied with it. base: m' c, with 0 for a row that has seen nothing yet, where
 * m' is -inf. */
static __device__ __forceinline__ void sl_attn_raise(float c, float m[2], const float top[2],
                                                     float alpha[2], float base[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool far = sl_attn_is_far(top[i], m[i], c);
        float most = far ? top[i] : m[i];
        float safe = most == -SL_ATTN_INF ? 0.0f : most;
        alpha[i] = far ? sl_ex2_approx(__fmul_rn(__fadd_rn(m[i], -safe), c)) : 1.0f;
        base[i] = __fmul_rn(safe, c);
        m[i] = most;
    }
}

/* ---------------------------------------------------------------- skip-softmax */

/* Below what a row's scores of a tile must be to be left out: the first keys' best, and what is
 * added to the split's reference. inf: a row that is not there, of which nothing is taken in. */
struct sl_attn_limit {
    float first, reach;
};

static __device__ __forceinline__ float sl_attn_skip_reach(const struct sl_attn_args &a, int pos)
{
    float by = __fadd_rn(a.skip_log2, -sl_lg2_approx(static_cast<float>(pos + 1)));
    return pos >= SL_SKIP_FROM && by < 0.0f ? __fmul_rn(by, a.skip_per) : -SL_ATTN_INF;
}

/* Does any of the item's rows leave something out? */
static __device__ __forceinline__ bool sl_attn_skips(const struct sl_attn_args &a,
                                                     const struct sl_attn_work &w)
{
    return sl_attn_skip_reach(a, w.key_hi - 1) > -SL_ATTN_INF;
}

/* Of the rows of a warp from row0 on, by their scores of the first 16 keys. */
static __device__ __forceinline__ void sl_attn_limits(const struct sl_attn_args &a,
                                                      const struct sl_attn_work &w,
                                                      const struct sl_attn_rows &r, int row0,
                                                      const float s[2][4],
                                                      struct sl_attn_limit limit[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float best =
            fmaxf(fmaxf(s[0][2 * i], s[0][2 * i + 1]), fmaxf(s[1][2 * i], s[1][2 * i + 1]));
        best = __fadd_rn(sl_attn_quad_max(best), limit[i].reach = sl_attn_skip_reach(a, r.pos[i]));
        const bool there = row0 + (static_cast<int>(threadIdx.x) & 31) / 4 + 8 * i < w.item.n_rows;
        limit[i].first = there ? best : SL_ATTN_INF;
    }
}

/* Which of the thread's two rows take a tile in, by F fragments of its scores; true: some row of
 * the warp does. m: the references before it. */
template <int F>
static __device__ __forceinline__ bool sl_attn_takes(const float (*s)[4],
                                                     const struct sl_attn_limit limit[2],
                                                     const float m[2], bool tall, bool takes[2])
{
    unsigned all = 0;
    takes[1] = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !tall)
            break;
        float top = s[0][2 * i];
#pragma unroll
        for (int f = 0; f < F; f++)
            top = sl_max_nan(top, sl_max_nan(s[f][2 * i], s[f][2 * i + 1]));
        const float at = fmaxf(limit[i].first, __fadd_rn(m[i], limit[i].reach));
        const unsigned votes = __ballot_sync(0xFFFFFFFFu, !(top < at));
        takes[i] = (votes >> (threadIdx.x & 28) & 15) != 0;
        all |= votes;
    }
    return all != 0;
}

/* A row that leaves a tile out has p = 0 there, and a reference that stays. */
static __device__ __forceinline__ void sl_attn_raise_taken(float c, const bool takes[2], float m[2],
                                                           float top[2], float alpha[2],
                                                           float base[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        top[i] = takes[i] ? top[i] : -SL_ATTN_INF;
    sl_attn_raise(c, m, top, alpha, base);
#pragma unroll
    for (int i = 0; i < 2; i++)
        base[i] = takes[i] ? base[i] : SL_ATTN_INF;
}

/* For sl_skip_counts: a warp's tile from `key` on. */
static __device__ __forceinline__ void sl_attn_count(const struct sl_attn_args &a,
                                                     const struct sl_attn_rows &r, int key,
                                                     const struct sl_attn_limit limit[2],
                                                     const bool takes[2], bool any)
{
    unsigned n = 0, left = 0;
    if (a.skip_counts == nullptr)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool subject = (threadIdx.x & 3) == 0 && limit[i].reach > -SL_ATTN_INF &&
                             limit[i].first < SL_ATTN_INF && r.pos[i] >= key;
        n += static_cast<unsigned>(__popc(__ballot_sync(0xFFFFFFFFu, subject)));
        left += static_cast<unsigned>(__popc(__ballot_sync(0xFFFFFFFFu, subject && !takes[i])));
    }
    if ((threadIdx.x & 31) != 0 || n == 0)
        return;
    unsigned long long *c = reinterpret_cast<unsigned long long *>(a.skip_counts);
    atomicAdd(c, static_cast<unsigned long long>(n));
    atomicAdd(c + 1, static_cast<unsigned long long>(left));
    atomicAdd(c + 2, 1ull);
    atomicAdd(c + 3, static_cast<unsigned long long>(any ? 0 : 1));
}

/* ---------------------------------------------------------------- probabilities */

/* The sum of N numbers, a power of two, as a tree: neighbours first. */
template <int N> static __device__ __forceinline__ float sl_attn_tree(const float *x)
{
    float y[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = x[i];
#pragma unroll
    for (int n = N / 2; n > 0; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++)
            y[i] = __fadd_rn(y[2 * i], y[2 * i + 1]);
    return y[0];
}

/* Scores of a tile to probabilities, as A operands of 16 keys each; l as in attention.cuh. */
template <class E, int F>
static __device__ __forceinline__ void sl_attn_exp(float c, const float (&s)[F][4],
                                                   const float base[2], const float alpha[2],
                                                   uint32_t (&p)[F / 2][4], float l[2], bool tall)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !tall) {
#pragma unroll
            for (int w = 0; w < F / 2; w++)
                p[w][1] = p[w][3] = 0;
            break;
        }
        float sum[F / 2];
#pragma unroll
        for (int w = 0; w < F / 2; w++) {
            float e[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                e[j] = sl_ex2_approx(__fmaf_rn(s[2 * w + j / 2][2 * i + j % 2], c, -base[i]));
            sum[w] = __fadd_rn(__fadd_rn(e[0], e[1]), __fadd_rn(e[2], e[3]));
            p[w][i] = E::pack(e[0], e[1]);
            p[w][2 + i] = E::pack(e[2], e[3]);
        }
        l[i] = __fmaf_rn(l[i], alpha[i], sl_attn_tree<F / 2>(sum));
    }
}

/* The row's sum of a split, to all four threads that share the row. */
static __device__ __forceinline__ float sl_attn_row_sum(float l)
{
    l = __fadd_rn(l, __shfl_xor_sync(0xFFFFFFFFu, l, 1));
    return __fadd_rn(l, __shfl_xor_sync(0xFFFFFFFFu, l, 2));
}

/* ---------------------------------------------------------------- a warp's values */

/* How a kernel gets 16 dimensions, from 16 i on, of the values of a tile: frags(b, tile, i). The
 * tiles of 16 positions lie TILE bytes apart. */
template <class KV, int D> struct sl_attn_page_frags {
    typedef typename KV::elem elem;
    static constexpr int TILE = KV::tile_bytes(D);
    static __device__ __forceinline__ void frags(uint32_t b[4], const uint8_t *tile, int i)
    {
        KV::template value_frags<D>(b, tile, i * 16);
    }
};

/* o (eight dimensions each) += p [16 rows, N x 16 keys] times the values at `tile`. */
template <class Frags, int D, int N>
static __device__ __forceinline__ void sl_attn_values(float o[D / 8][4], const uint32_t (*p)[4],
                                                      const uint8_t *tile)
{
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t b[4];
            Frags::frags(b, tile + k * Frags::TILE, i);
            Frags::elem::mma(o[2 * i], p[k], b);
            Frags::elem::mma(o[2 * i + 1], p[k], b + 2);
        }
}

/* Do they hold something that p = 0 does not silence? */
template <class Frags, int D, int N>
static __device__ __forceinline__ bool sl_attn_unclean(const uint8_t *tile)
{
    typedef typename Frags::elem E;
    bool found = false;
#pragma unroll 1
    for (int k = 0; k < N; k++)
#pragma unroll 1
        for (int i = 0; i < D / 16; i++) {
            uint32_t b[4];
            Frags::frags(b, tile + k * Frags::TILE, i);
            found = found || E::not_finite2(b[0]) || E::not_finite2(b[1]) || E::not_finite2(b[2]) ||
                    E::not_finite2(b[3]);
        }
    return __any_sync(0xFFFFFFFFu, found) != 0;
}

/* The pair of keys key, key + 1, with zero for what is outside [lo, hi). */
static __device__ __forceinline__ uint32_t sl_attn_clean(uint32_t pair, int key, int lo, int hi)
{
    return (key >= lo && key < hi ? pair & 0xFFFFu : 0) |
           (key + 1 >= lo && key + 1 < hi ? pair & 0xFFFF0000u : 0);
}

/* The same for values with a NaN or an infinity among them, of which the warp's tokens do not all
 * see everything: token by token with what it does not see as zeros, which is what a lone row gets
 * from the copy. Rare, so it is slow and saves registers: p waits in local memory. first: their
 * first key. */
template <class Frags, int D, int N>
static __device__ __forceinline__ void sl_attn_values_careful(
    const struct sl_attn_args &a, const struct sl_attn_work &w, const struct sl_attn_rows &r,
    float o[D / 8][4], const uint32_t (*p)[4], const uint8_t *tile, int first)
{
    uint32_t parts[N][4];
    int key = first + (static_cast<int>(threadIdx.x) & 3) * 2;
    int from = __shfl_sync(0xFFFFFFFFu, r.pos[0], 0);
    int to = __shfl_sync(0xFFFFFFFFu, r.pos[1], 31);
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            parts[i][j] = p[i][j];
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
#pragma unroll 1
        for (int pos = from; pos <= to; pos++) {
            int hi = sl_attn_seen_to(a, w, pos), lo = sl_attn_seen_from(a, pos);
            float c[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                c[j] = o[2 * i + j / 4][j % 4];
#pragma unroll 1
            for (int k = 0; k < N; k++) {
                uint32_t b[4];
                Frags::frags(b, tile + k * Frags::TILE, i);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    b[j] = sl_attn_clean(b[j], key + k * 16 + j % 2 * 8, lo, hi);
                Frags::elem::mma(c, parts[k], b);
                Frags::elem::mma(c + 4, parts[k], b + 2);
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[2 * i + j / 4][j % 4] = r.pos[j >> 1 & 1] == pos ? c[j] : o[2 * i + j / 4][j % 4];
        }
    }
}

/* ---------------------------------------------------------------- results */

/* The head of a row, and where its output begins. */
struct sl_attn_out {
    int head;
    __nv_bfloat16 *to;
};

static __device__ __forceinline__ struct sl_attn_out sl_attn_out_of(const struct sl_attn_args &a,
                                                                    const struct sl_attn_work &w,
                                                                    int row)
{
    int r = w.item.row0 + row, token = sl_attn_div(r, a.by_group);
    struct sl_attn_out out;
    out.head = w.item.kv * a.group + r - token * a.group;
    out.to = a.out + static_cast<int64_t>(w.item.token + token) * a.ld_out +
             static_cast<int64_t>(out.head) * a.head_dim;
    return out;
}

/* Two numbers of the output. + 0: no zero is negative, as a state takes a split that a row sees
 * nothing of (or leaves it out). */
static __device__ __forceinline__ uint32_t sl_attn_out2(float x, float y, float by_x, float by_y)
{
    return sl_pack_bf16(__fadd_rn(__fmul_rn(x, by_x), 0.0f), __fadd_rn(__fmul_rn(y, by_y), 0.0f));
}

/* Two neighbouring dimensions. */
static __device__ __forceinline__ void sl_attn_write2(const struct sl_attn_args &a,
                                                      __nv_bfloat16 *to, int d, float x, float y,
                                                      float factor)
{
    if (d < a.head_dim)
        *reinterpret_cast<uint32_t *>(to + d) = sl_attn_out2(x, y, factor, factor);
}

/* A warp's result, lane / 4 + 8 i its rows, to a slot. */
template <int D>
static __device__ __forceinline__ void sl_attn_write_slot(const struct sl_attn_args &a,
                                                          const struct sl_attn_work &w, int row0,
                                                          int slot, const float o[D / 8][4],
                                                          const float m[2], const float l[2])
{
    int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = row0 + lane / 4 + 8 * i;
        if (row >= w.item.n_rows)
            continue;
        int64_t at = sl_attn_slot(a, w, slot) + row;
        if (lane % 4 == 0)
            a.slot_ml[at] = make_float2(m[i], l[i]);
        float *to = a.slots + at * D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<float2 *>(to + 8 * n) = make_float2(o[n][2 * i], o[n][2 * i + 1]);
    }
}

/* And to the output. */
template <int D>
static __device__ __forceinline__ void sl_attn_write_out(const struct sl_attn_args &a,
                                                         const struct sl_attn_work &w, int row0,
                                                         const float o[D / 8][4], const float m[2],
                                                         const float l[2])
{
    int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = row0 + lane / 4 + 8 * i;
        if (row >= w.item.n_rows)
            continue;
        struct sl_attn_out out = sl_attn_out_of(a, w, row);
        float f = sl_attn_inverse(a, m[i], l[i], out.head);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            sl_attn_write2(a, out.to, 8 * n + lane % 4 * 2, o[n][2 * i], o[n][2 * i + 1], f);
    }
}

/* The runs of a first part, the last of them o, m and l, which become what they are combined. While
 * more follow, that lies in memory: each thread has words of its own, or those of its lane in a
 * narrow block. It is touched once in 4,096 keys; shared memory has no room. */
template <int D, int THREADS>
static __device__ __forceinline__ void sl_attn_combine_total(const struct sl_attn_args &a,
                                                             int thread, bool first, bool last,
                                                             float (&o)[D / 8][4], float m[2],
                                                             float l[2])
{
    float4 *at = a.totals + static_cast<int>(blockIdx.x) * ((D / 8 + 1) * THREADS) + thread;
    if (!first) {
        const float4 was = __ldcg(at + D / 8 * THREADS);
        const struct sl_attn_combine j0 = sl_attn_combine_of(was.x, m[0], a.scale2);
        const struct sl_attn_combine j1 = sl_attn_combine_of(was.y, m[1], a.scale2);
        m[0] = j0.top;
        m[1] = j1.top;
        l[0] = sl_attn_combined(j0, was.z, l[0]);
        l[1] = sl_attn_combined(j1, was.w, l[1]);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float4 x = __ldcg(at + n * THREADS);
            o[n][0] = sl_attn_combined(j0, x.x, o[n][0]);
            o[n][1] = sl_attn_combined(j0, x.y, o[n][1]);
            o[n][2] = sl_attn_combined(j1, x.z, o[n][2]);
            o[n][3] = sl_attn_combined(j1, x.w, o[n][3]);
        }
    }
    if (last)
        return;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        __stcg(at + n * THREADS, make_float4(o[n][0], o[n][1], o[n][2], o[n][3]));
    __stcg(at + D / 8 * THREADS, make_float4(m[0], m[1], l[0], l[1]));
}

/* ---------------------------------------------------------------- slots to results */

/* Some slots of a row, four dimensions of a thread. */
#define SL_ATTN_BATCH SL_ATTN_RUN_SPLITS

struct sl_attn_batch {
    float2 ml[SL_ATTN_BATCH];
    float4 o[SL_ATTN_BATCH];

    /* n slots from row `from` on, which are `step` rows apart. */
    __device__ __forceinline__ void load(const struct sl_attn_args &a, int64_t from, int64_t step,
                                         int n, int dims, int d)
    {
#pragma unroll
        for (int i = 0; i < SL_ATTN_BATCH; i++) {
            ml[i] = make_float2(-SL_ATTN_INF, 0.0f);
            o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (i < n) {
                ml[i] = __ldcg(a.slot_ml + from + i * step);
                o[i] = __ldcg(
                    reinterpret_cast<const float4 *>(a.slots + (from + i * step) * dims + d));
            }
        }
    }
};

/* A state, four dimensions of it. */
struct sl_attn_sum {
    float2 ml;
    float4 o;

    __device__ __forceinline__ void clear()
    {
        ml = make_float2(-SL_ATTN_INF, 0.0f);
        o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __device__ __forceinline__ void add(const struct sl_attn_combine &j, const float2 &ml_in,
                                        const float4 &o_in)
    {
        ml.x = j.top;
        ml.y = sl_attn_combined(j, ml.y, ml_in.y);
        o.x = sl_attn_combined(j, o.x, o_in.x);
        o.y = sl_attn_combined(j, o.y, o_in.y);
        o.z = sl_attn_combined(j, o.z, o_in.z);
        o.w = sl_attn_combined(j, o.w, o_in.w);
    }
    /* Mostly none is far above the reference, and then no factor waits for another. */
    __device__ __forceinline__ void add(const struct sl_attn_batch &b, float c)
    {
        const float top =
            ml.x == -SL_ATTN_INF ? b.ml[0].x : ml.x; /* nothing: the first becomes it */
        bool far = false;
#pragma unroll
        for (int i = 0; i < SL_ATTN_BATCH; i++)
            far |= sl_attn_is_far(b.ml[i].x, top, c);
        if (far) {
#pragma unroll
            for (int i = 0; i < SL_ATTN_BATCH; i++)
                add(sl_attn_combine_of(ml.x, b.ml[i].x, c), b.ml[i], b.o[i]);
            return;
        }
        const float safe = top == -SL_ATTN_INF ? 0.0f : top;
#pragma unroll
        for (int i = 0; i < SL_ATTN_BATCH; i++) {
            float by = sl_ex2_approx(__fmul_rn(__fadd_rn(b.ml[i].x, -safe), c));
            const struct sl_attn_combine j = {top, 1.0f, by};
            add(j, b.ml[i], b.o[i]);
        }
    }
};

/* The slots of one row, in batches: of a run's splits, or of some runs. at: of slot units, splits
 * or runs; the row sees something of those before `to`. */
struct sl_attn_combine_batch {
    const struct sl_attn_args &a;
    int64_t row, step; /* of unit 0, and from unit to unit */
    int at, to, d, dims;
    bool by_run;
    struct sl_attn_sum total, run;

    __device__ __forceinline__ int end() const
    {
        const int most = min(at + SL_ATTN_BATCH, to);
        return by_run ? most : min(most, sl_attn_run_end(sl_attn_run_of(at)));
    }
    __device__ __forceinline__ void load(struct sl_attn_batch &b) const
    {
        b.load(a, row + at * step, step, at < to ? end() - at : 0, dims, d);
    }
    /* Takes in the batch at `at`; the splits of a run that has ended with it combine the others. */
    __device__ __forceinline__ void take(const struct sl_attn_batch &b)
    {
        run.add(b, a.scale2);
        at = end();
        if (!by_run && at == sl_attn_run_end(sl_attn_run_of(at - 1)))
            end_run();
    }
    __device__ __forceinline__ void end_run()
    {
        total.add(sl_attn_combine_of(total.ml.x, run.ml.x, a.scale2), run.ml, run.o);
        run.clear();
    }

    /* Row `row_idx` of a tile, dimensions from `first_d` on, to the output. While a batch is taken
     * in the next one is under way: what parts left first has left the L2 cache, for pages. */
    __device__ __forceinline__ void go(const struct sl_attn_work &w, int row_idx, int first_d)
    {
        const int pos = w.item.pos + sl_attn_token(a, w, row_idx);
        const int64_t state_at = sl_attn_slot(a, w, 0) + row_idx;
        int from = sl_attn_split_of(sl_attn_seen_from(a, pos));
        to =
            min(w.item.n_splits, sl_attn_split_of((sl_attn_seen_to(a, w, pos) - 1) >> a.shift) + 1);
        d = first_d;
        by_run = sl_attn_by_run(w);
        total.clear();
        run.clear();
        if (from < w.item.first) { /* else there may be no state, nor anything of it to see */
            run.ml = __ldcg(a.slot_ml + state_at);
            run.o = __ldcg(reinterpret_cast<const float4 *>(a.slots + state_at * dims + d));
            from = w.item.first;
        }
        step = static_cast<int64_t>(w.item.n_rows) * a.n_kv_heads;
        at = by_run ? sl_attn_run_of(from) : from;
        if (by_run)
            to = sl_attn_run_of(to - 1) + 1;
        row = sl_attn_slot(a, w, sl_attn_split_slot(w, from)) + row_idx - at * step;
        struct sl_attn_batch even, odd;
        load(even);
#pragma unroll 1
        while (at < to) {
            const int here = at;
            at = end();
            load(odd);
            at = here;
            take(even);
            if (at >= to)
                break;
            const int next = at;
            at = end();
            load(even);
            at = next;
            take(odd);
        }
        end_run();
        struct sl_attn_out out = sl_attn_out_of(a, w, row_idx);
        float f = sl_attn_inverse(a, total.ml.x, total.ml.y, out.head);
        sl_attn_write2(a, out.to, d, total.o.x, total.o.y, f);
        sl_attn_write2(a, out.to, d + 2, total.o.z, total.o.w, f);
    }
};

#endif
