/* SPDX-License-Identifier: MIT
 * The kernels of sample_rows.h; KERNELS names the table. Plain loops of constant length, which the
 * compiler turns into vectors of whatever width the including file may use.
 */
#include "base/check.h"
#include "engine/sample_exp.h"
#include "engine/sample_rows.h"

#include <float.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#define B SL_ROW_BLOCK
#define G SL_ROW_GROUPS

/* What is missing of a last block, as logits of probability 0. */
static const float *row_padded(const float *x, int32_t n, float *room)
{
    SL_DCHECK(n > 0 && n < B);
    for (int i = 0; i < B; i++)
        room[i] = i < n ? x[i] : -INFINITY;
    return room;
}

static int32_t scan_block(const float *restrict x, float *restrict group_max)
{
    float m[B / 2];
    int32_t n_bad = 0;
    for (int i = 0; i < B; i++)
        n_bad += !(x[i] <= FLT_MAX);
    /* By halves: every loop is one without a chain from row to row. */
    for (int j = 0; j < B / 2; j++)
        m[j] = x[j] > x[j + B / 2] ? x[j] : x[j + B / 2];
    for (int j = 0; j < B / 4; j++)
        m[j] = m[j] > m[j + B / 4] ? m[j] : m[j + B / 4];
    for (int j = 0; j < B / 8; j++)
        m[j] = m[j] > m[j + B / 8] ? m[j] : m[j + B / 8];
    for (int j = 0; j < G; j++)
        group_max[j] = m[j] > m[j + G] ? m[j] : m[j + G];
    return n_bad;
}
_Static_assert(B / 16 == G, "halved four times");
_Static_assert(B % 64 == 0, "the words of a mask and of hits end with a block");

static bool row_scan(const float *x, int32_t n, float *group_max, float *max)
{
    float room[B], of[G], m[G];
    int32_t n_bad = 0;
    SL_ASSERT(n > 0);
    for (int j = 0; j < G; j++)
        m[j] = -INFINITY;
    for (int32_t first = 0; first < n; first += B) {
        n_bad +=
            scan_block(n - first >= B ? x + first : row_padded(x + first, n - first, room), of);
        for (int j = 0; j < G; j++)
            m[j] = of[j] > m[j] ? of[j] : m[j];
        if (group_max != NULL)
            memcpy(group_max + first / B * G, of, sizeof of);
    }
    for (int j = 1; j < G; j++)
        m[0] = m[j] > m[0] ? m[j] : m[0];
    *max = m[0];
    return n_bad == 0 && m[0] >= -FLT_MAX;
}

static void only_allowed(const float *restrict x, const uint32_t *restrict allowed,
                         float *restrict out)
{
    const union sl_float_bits none = {.f = -INFINITY};
    for (int w = 0; w < B / 32; w++) {
        uint32_t bits = allowed[w];
        for (int i = 0; i < 32; i++) {
            int32_t may = -(int32_t)(bits >> i & 1);
            union sl_float_bits v = {.f = x[w * 32 + i]};
            v.i = (v.i & may) | (none.i & ~may);
            out[w * 32 + i] = v.f;
        }
    }
}

static bool row_scan_allowed(const float *x, int32_t n, const uint32_t *allowed, float *out,
                             float *group_max, float *max)
{
    float room[B], kept[B], m[G];
    int32_t n_bad = 0;
    SL_ASSERT(n > 0 && out != x);
    for (int j = 0; j < G; j++)
        m[j] = -INFINITY;
    for (int32_t first = 0; first < n; first += B) {
        int32_t n_here = n - first < B ? n - first : B;
        float *of = group_max + first / B * G;
        const float *block = n_here == B ? x + first : row_padded(x + first, n_here, room);
        uint32_t words[B / 32] = {0}, any = 0;
        memcpy(words, allowed + first / 32, (size_t)(n_here + 31) / 32 * sizeof *words);
        n_bad += scan_block(block, of);
        for (int j = 0; j < B / 32; j++)
            any |= words[j];
        if (any != 0) {
            only_allowed(block, words, kept);
            memcpy(out + first, kept, (size_t)n_here * sizeof *kept);
            scan_block(kept, of);
        }
        for (int j = 0; j < G && any == 0; j++)
            of[j] = -INFINITY;
        for (int j = 0; j < G; j++)
            m[j] = of[j] > m[j] ? of[j] : m[j];
    }
    for (int j = 1; j < G; j++)
        m[0] = m[j] > m[0] ? m[j] : m[0];
    *max = m[0];
    return n_bad == 0 && m[0] >= -FLT_MAX;
}

static void exp_block(const float *restrict x, float *restrict p, const struct sl_row_scale *s)
{
    float max = s->max, inv_t = s->inv_t, floor = s->floor;
    for (int i = 0; i < B; i++)
        p[i] = sl_exp_from(floor, (x[i] - max) * inv_t);
}

static uint64_t weigh_block(const float *p)
{
    const union sl_double_bits zero = {.d = SL_WEIGHT_MAGIC};
    uint64_t sum = 0;
    for (int i = 0; i < B; i++)
        sum += sl_weight_raw(p[i]);
    return sum - B * zero.u;
}

static void row_probs(const float *x, int32_t n, const struct sl_row_scale *s, float *out)
{
    float room[B], p[B];
    int32_t first = 0;
    for (; first + B <= n; first += B)
        exp_block(x + first, out + first, s);
    if (first < n) {
        exp_block(row_padded(x + first, n - first, room), p, s);
        memcpy(out + first, p, (size_t)(n - first) * sizeof *p);
    }
}

/* exp never rises when its argument falls, so the maxima say whether an element weighs anything. */
static bool weighs(const float *group_max, const struct sl_row_scale *s)
{
    float top = group_max[0];
    for (int j = 1; j < G; j++)
        top = group_max[j] > top ? group_max[j] : top;
    return sl_exp_from(s->floor, (top - s->max) * s->inv_t) > SL_WEIGHT_ALIVE;
}

static uint64_t row_weigh(const float *x, int32_t n, const struct sl_row_scale *s,
                          const float *group_max, uint64_t *sums)
{
    uint64_t total = 0;
    float room[B], p[B];
    for (int32_t first = 0; first < n; first += B) {
        sums[first / B] = 0;
        if (!weighs(group_max + first / B * G, s))
            continue;
        exp_block(n - first >= B ? x + first : row_padded(x + first, n - first, room), p, s);
        total += sums[first / B] = weigh_block(p);
    }
    return total;
}

static bool row_above(const float *p, float cut, uint64_t hits[B / 64])
{
    uint64_t any = 0;
    for (int w = 0; w < B / 64; w++) {
        uint64_t bits = 0;
#ifdef __AVX2__
        for (int i = 0; i < 64; i += 8) {
            __m256 v = _mm256_loadu_ps(p + w * 64 + i);
            int m = _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(cut), _CMP_GT_OQ));
            bits |= (uint64_t)(uint32_t)m << i;
        }
#else
        for (int i = 0; i < 64; i++)
            bits |= (uint64_t)(p[w * 64 + i] > cut) << i;
#endif
        any |= hits[w] = bits;
    }
    return any != 0;
}

/* Larger elements of a block and, before element `before` of it, equal ones too. */
static int32_t count_before(const float *x, float value, int32_t before)
{
    int32_t n = 0;
    for (int32_t i = 0; i < B; i++)
        n += (x[i] > value) | ((x[i] == value) & (i < before));
    return n;
}

static uint64_t row_logprob(const float *x, int32_t n, float max, int32_t id, int32_t *n_before)
{
    const struct sl_row_scale scale = {max, 1.0f, SL_EXP_MIN};
    uint64_t sum = 0;
    float room[B], p[B];
    *n_before = 0;
    SL_ASSERT(id >= 0 && id < n);
    for (int32_t first = 0; first < n; first += B) {
        const float *block = n - first >= B ? x + first : row_padded(x + first, n - first, room);
        exp_block(block, p, &scale);
        sum += weigh_block(p);
        *n_before += count_before(block, x[id], id - first);
    }
    return sum;
}

const struct sl_row_kernels KERNELS = {row_scan,  row_scan_allowed, row_probs,
                                       row_weigh, row_above,        row_logprob};
