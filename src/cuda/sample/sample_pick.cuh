/* SPDX-License-Identifier: MIT
 * sample_pick.cuh - which tokens of a row the filters keep, and which one a draw takes, by the
 * blocks of a cluster that hold the row's probabilities.
 *
 * A token's key is that of its probability's bits: the more likely, the smaller. What the filters
 * keep is a prefix of the tokens by (key, id), found digit by digit: every block counts and weighs
 * its tokens by digit, the blocks add that up, each for its share of the digits, and tell each
 * other. All sums are of integers, so no order of threads, blocks or additions shows in a bit.
 */
#ifndef SL_CUDA_SAMPLE_PICK_CUH
#define SL_CUDA_SAMPLE_PICK_CUH

#include "cuda/sample/sample.cuh"

#define SL_ST_KEY_ZERO 0x3FFFFFFFu
#define SL_ST_DEAD     0xFFFFFFFFu /* the key of what weighs nothing */

struct sl_st_hist { /* by digit */
    uint32_t count[SL_ST_DIGITS];
    sl_u64 mass[SL_ST_DIGITS];
};

struct sl_st_slot { /* what a block tells the others */
    sl_u64 a, b;
};

struct sl_st_prefix { /* tokens of lower keys and, of this one, up to this id; what they weigh */
    uint32_t key;
    int32_t id;
    sl_u64 mass;
};

/* Shared memory of a block; after it the row, unless that lies in scratch. */
struct __align__(16) sl_st_pick
{
    struct sl_st_room base;
    struct sl_st_slot slots[2][SL_ST_CLUSTER];
    uint32_t count[SL_ST_DIGITS], low[SL_ST_DIGITS], high[SL_ST_DIGITS]; /* of this block */
    struct sl_st_hist first, next; /* of the row: the first digit, the one looked for */
    sl_u64 warp_sums[SL_ST_WARPS], masses[SL_ST_WARPS];
    uint32_t counts[SL_ST_WARPS];
    sl_u64 before_mass, before;
    uint32_t digit;
    int32_t id;
    uint32_t turn; /* of slots */
};

static_assert(sizeof(struct sl_st_pick) + SL_ST_ROW_ROOM <= 227 * 1024, "what a block may have");

struct sl_st_mine {   /* of this thread's block and warp */
    float *p;         /* the block's run of the row */
    int32_t base;     /* id of p[0] */
    int32_t n;        /* of the run */
    int32_t from, to; /* the warp's */
    uint32_t live;    /* bit of the warp's steps, modulo 32: something weighs something there */
    int32_t cluster;
    uint32_t rank;
};

/* ------------------------------------------------------------------ the blocks of a cluster */

/* Tells all blocks of the cluster (a, b) of this one; thread 0's. Then slot i is that of block i,
 * until the second exchange from here. */
static __device__ const struct sl_st_slot *sl_st_exchange(struct sl_st_pick *s,
                                                          const struct sl_st_mine &m, sl_u64 a,
                                                          sl_u64 b)
{
    struct sl_st_slot *mine = &s->slots[s->turn & 1][m.rank];
    const struct sl_st_slot *all = s->slots[s->turn & 1];
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < m.cluster; i++) {
            struct sl_st_slot *there = sl_cluster_map(mine, (uint32_t)i);
            there->a = a;
            there->b = b;
        }
    }
    __syncthreads(); /* all have read turn */
    if (threadIdx.x == 0)
        s->turn++;
    sl_cluster_sync();
    return all;
}

/* f(place, p[4]) for each four of this warp's tokens, all lanes at once, but where nothing weighs
 * anything. */
template <typename F>
static __device__ __forceinline__ void sl_st_each(const struct sl_st_mine &m, F f)
{
    uint32_t step = 1;
    for (int32_t i = m.from + 4 * (int32_t)(threadIdx.x % 32); i < m.to; i += SL_ST_STEP) {
        bool live = (m.live & step) != 0;
        step = step << 1 | step >> 31;
        if (!live)
            continue;
        float4 v = *reinterpret_cast<const float4 *>(m.p + i);
        float p[4] = {v.x, v.y, v.z, v.w};
        f(i, p);
    }
}

/* ------------------------------------------------------------------ digits */

/* Of a token that weighs something; 0 does not. */
static __device__ __forceinline__ uint32_t sl_st_key(float p)
{
    return p > 0x1p-42f ? SL_ST_KEY_ZERO - __float_as_uint(p) : SL_ST_DEAD;
}

static __device__ void sl_st_clear_digits(struct sl_st_pick *s)
{
    for (int i = threadIdx.x; i < SL_ST_DIGITS; i += SL_ST_THREADS)
        s->count[i] = s->low[i] = s->high[i] = 0;
    __syncthreads();
}

/* Counts one token of each lane. digit >= SL_ST_DIGITS: none. What a warp has of one digit only,
 * as rows of equal logits do, goes in at once: it would queue up at one address. */
static __device__ __forceinline__ void sl_st_count(struct sl_st_pick *s, uint32_t digit,
                                                   uint32_t weight)
{
    uint32_t n = 1, one = __shfl_sync(0xffffffffu, digit, 0);
    if (__all_sync(0xffffffffu, digit == one)) {
        weight = __reduce_add_sync(0xffffffffu, weight); /* 32 * 2^24 */
        n = threadIdx.x % 32 == 0 ? 32 : 0;
    }
    if (digit >= SL_ST_DIGITS || n == 0)
        return;
    atomicAdd(&s->count[digit], n);
    uint32_t was = atomicAdd(&s->low[digit], weight);
    if (was + weight < was)
        atomicAdd(&s->high[digit], 1u);
}

/* Adds up what the blocks have by digit, into *out of every block. key: one of each digit's, but
 * for the digit itself, which lies `shift` bits up; it says what the weights are to be shifted by.
 */
static __device__ void sl_st_merge(struct sl_st_pick *s, const struct sl_st_mine &m,
                                   struct sl_st_hist *out, uint32_t key, int shift)
{
    sl_cluster_sync();
    int32_t share = SL_ST_DIGITS / m.cluster, t = threadIdx.x;
    for (int32_t i = t; i < share; i += SL_ST_THREADS) {
        uint32_t d = m.rank * (uint32_t)share + (uint32_t)i, count = 0;
        sl_u64 mass = 0;
#pragma unroll 4
        for (int32_t b = 0; b < m.cluster; b++) {
            const struct sl_st_pick *there = sl_cluster_map(s, (uint32_t)b);
            count += there->count[d];
            mass += (sl_u64)there->high[d] << 32 | there->low[d];
        }
        mass <<= count > 0 ? sl_st_shift(SL_ST_KEY_ZERO - (key | d << shift)) : 0;
        for (int32_t b = 0; b < m.cluster; b++) {
            struct sl_st_hist *there = sl_cluster_map(out, (uint32_t)b);
            there->count[d] = count;
            there->mass[d] = mass;
        }
    }
    sl_cluster_sync();
}

/* The digit by which *h has `want` tokens or, by_mass, weighs as much: s->digit, with what lies
 * before it of tokens or weight in s->before, of weight in s->before_mass. SL_ST_DIGITS: all of it
 * is less. */
static __device__ void sl_st_find_digit(struct sl_st_pick *s, const struct sl_st_hist *h,
                                        sl_u64 want, bool by_mass)
{
    constexpr int each = SL_ST_DIGITS / SL_ST_THREADS;
    static_assert(each == 2, "digits of a thread");
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    uint32_t c[each] = {h->count[2 * t], h->count[2 * t + 1]}, count = c[0] + c[1];
    sl_u64 w[each] = {h->mass[2 * t], h->mass[2 * t + 1]}, mass = w[0] + w[1];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffu, count, d);
        sl_u64 other_mass = __shfl_up_sync(0xffffffffu, mass, d);
        count += lane >= d ? other : 0;
        mass += lane >= d ? other_mass : 0;
    }
    if (lane == 31) {
        s->counts[warp] = count;
        s->masses[warp] = mass;
    }
    __syncthreads();
    for (int i = 0; i < warp; i++) {
        count += s->counts[i];
        mass += s->masses[i];
    }
    count -= c[0] + c[1];
    mass -= w[0] + w[1];
#pragma unroll
    for (int k = 0; k < each; k++) {
        sl_u64 have = by_mass ? mass : count, own = by_mass ? w[k] : c[k];
        if (have < want && have + own >= want) {
            s->digit = (uint32_t)(2 * t + k);
            s->before = have;
            s->before_mass = mass;
        }
        count += c[k];
        mass += w[k];
    }
    if (t == SL_ST_THREADS - 1 && (by_mass ? mass : count) < want) {
        s->digit = SL_ST_DIGITS;
        s->before = by_mass ? mass : count;
        s->before_mass = mass;
    }
    __syncthreads();
}

/* ------------------------------------------------------------------ places */

/* The id of the first token, ascending, whose running sum of f is above `at`, by the lane of the
 * whole cluster that finds it, to *id of its block; sums: of f by warp. False in other lanes. */
template <typename F>
static __device__ __forceinline__ bool sl_st_locate(struct sl_st_pick *s,
                                                    const struct sl_st_mine &m, sl_u64 at,
                                                    int32_t *id, F f)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads(); /* warp_sums */
    sl_u64 own = 0, before = 0;
    for (int i = 0; i < SL_ST_WARPS; i++)
        own += s->warp_sums[i];
    const struct sl_st_slot *all = sl_st_exchange(s, m, own, 0);
    for (uint32_t i = 0; i < m.rank; i++)
        before += all[i].a;
    for (int i = 0; i < warp; i++)
        before += s->warp_sums[i];
    if (at < before || at - before >= s->warp_sums[warp])
        return false;
    at -= before;
    bool found = false;
    for (int32_t i = m.from + 4 * lane; i < m.to; i += SL_ST_STEP) {
        sl_u64 w[4], sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            w[j] = f(i + j, m.p[i + j]);
            sum += w[j];
        }
        sl_u64 upto = sum;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            sl_u64 other = __shfl_up_sync(0xffffffffu, upto, d);
            upto += lane >= d ? other : 0;
        }
        sl_u64 all_lanes = __shfl_sync(0xffffffffu, upto, 31);
        if (at >= all_lanes) {
            at -= all_lanes;
            continue;
        }
        if (at >= upto - sum && at < upto) {
            at -= upto - sum;
            int j = 0;
            while (at >= w[j])
                at -= w[j++];
            *id = m.base + i + j;
            found = true;
        }
        break;
    }
    return found;
}

/* Of the tokens of this key, the id of the one with so many before it, in every thread of the
 * cluster. */
static __device__ __noinline__ int32_t sl_st_nth_equal(struct sl_st_pick *s,
                                                       const struct sl_st_mine &m, uint32_t key,
                                                       sl_u64 n_before)
{
    float p = __uint_as_float(SL_ST_KEY_ZERO - key);
    uint32_t n = 0;
    sl_st_each(m, [&](int32_t, const float v[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            n += v[j] == p;
    });
    n = __reduce_add_sync(0xffffffffu, n);
    if (threadIdx.x % 32 == 0)
        s->warp_sums[threadIdx.x / 32] = n;
    int32_t id = 0;
    auto equal = [&](int32_t, float v) { return (sl_u64)(v == p); };
    if (sl_st_locate(s, m, n_before, &id, equal))
        for (int32_t i = 0; i < m.cluster; i++)
            *sl_cluster_map(&s->id, (uint32_t)i) = id;
    sl_cluster_sync();
    return s->id;
}

/* ------------------------------------------------------------------ filters */

/* The shortest prefix of the row that has `want` tokens or, by_mass, weighs as much; s->first is
 * made. In every thread of the cluster. */
static inline __device__ __noinline__ struct sl_st_prefix sl_st_shortest(struct sl_st_pick *s,
                                                                         const struct sl_st_mine &m,
                                                                         sl_u64 want, bool by_mass)
{
    struct sl_st_prefix out = {0, INT32_MAX, 0};
    const struct sl_st_hist *h = &s->first;
    for (int shift = 19; shift >= 0; shift = shift == 9 ? 0 : shift - 10) {
        if (shift < 19) {
            uint32_t above = shift == 9 ? 19 : 9, upper = out.key >> above;
            uint32_t mask = shift == 9 ? SL_ST_DIGITS - 1 : 511;
            h = &s->next;
            sl_st_clear_digits(s);
            sl_st_each(m, [&](int32_t, const float p[4]) {
                uint32_t hits = 0;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    hits |= (uint32_t)(sl_st_key(p[j]) >> above == upper) << j;
                if (!__any_sync(0xffffffffu, hits != 0))
                    return;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sl_st_count(s, hits >> j & 1 ? sl_st_key(p[j]) >> shift & mask : SL_ST_DIGITS,
                                hits >> j & 1 ? sl_st_digits(p[j]) : 0);
            });
            sl_st_merge(s, m, &s->next, out.key, shift);
        }
        sl_st_find_digit(s, h, want, by_mass);
        uint32_t digit = s->digit;
        want -= s->before;
        out.mass += s->before_mass;
        __syncthreads();           /* digit and before may be written again */
        if (digit == SL_ST_DIGITS) /* only of the first digit: it is all of the row */
            return {SL_ST_DEAD, INT32_MAX, out.mass};
        out.key |= digit << shift;
        if (h->count[digit] == 1) { /* one token: it is the last one kept */
            out.key |= shift > 0 ? (1u << shift) - 1 : 0;
            out.mass += h->mass[digit];
            return out;
        }
    }
    sl_u64 n = s->next.count[out.key & 511], each = s->next.mass[out.key & 511] / n;
    sl_u64 n_in = by_mass ? (want + each - 1) / each : want;
    out.mass += n_in * each;
    if (n_in < n)
        out.id = sl_st_nth_equal(s, m, out.key, n_in - 1);
    return out;
}

static __device__ __forceinline__ bool sl_st_keeps(const struct sl_st_prefix &kept, int32_t id,
                                                   float p)
{
    uint32_t key = sl_st_key(p);
    return key < kept.key || (key == kept.key && id <= kept.id);
}

/* ------------------------------------------------------------------ draws */

struct sl_st_scale { /* y = (x - max) * inv_t */
    float max, inv_t, floor;
};

/* With so many tokens up to this digit, none of a lower one is kept: the floor for y that follows.
 * exp never rises as its argument falls; a hundredth covers the rounding of both functions. */
static __device__ __forceinline__ float sl_st_floor_of_digit(float floor, uint32_t digit)
{
    if (digit == SL_ST_DIGITS)
        return floor;
    float edge = __uint_as_float(SL_ST_KEY_ZERO - ((digit + 1) << 19));
    return fmaxf(floor, logf(edge) - 0.01f);
}

/* What top_p wants of a mass: a share of what min_p and top_k leave, rounded up. */
static __device__ __forceinline__ sl_u64 sl_st_share(sl_u64 mass, float top_p)
{
    sl_u64 fraction = (sl_u64)((double)(top_p > 0.0f ? top_p : 0.0f) * 0x1p64);
    fraction = fraction > 0 ? fraction : 1;
    return __umul64hi(mass, fraction) + (mass * fraction != 0);
}

/* The draw's 64 random bits, of src/base/rng.h. */
static __device__ __forceinline__ uint64_t sl_st_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static __device__ __forceinline__ sl_u64 sl_st_random(const struct sl_sample_row *r)
{
    return sl_st_mix(sl_st_mix(r->seed + 0x9E3779B97F4A7C15u) ^ (r->pos * 0xD1342543DE82EF95u + 1));
}

/* One thread. */
static __device__ __forceinline__ void sl_st_choose(const struct sl_st_args &a,
                                                    const struct sl_sample_row *r, int row,
                                                    int32_t id)
{
    a.op.ids[row] = id;
    if (r->counts == nullptr || r->held != 0)
        return;
    for (int32_t i = 0; i < r->n_ahead; i++)
        r->counts[r->ahead[i]] += 2;
    if (id >= 0)
        r->counts[id] += 2;
}

#endif
