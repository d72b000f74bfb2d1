/* SPDX-License-Identifier: MIT
 * The kernels of sample_rows.h; KERNELS names the table. Plain loops of constant length, which the
 * compiler turns into vectors of whatever width the including file may use.
 */
#include "base/check.h"
#include "engine/sample_exp.h"
#include "engine/sample_rows.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define B SL_ROW_BLOCK
#define G SL_ROW_GROUPS

/* What is missing of a last block, as logits of probability 0. */
static const float *padded(const float *x, int32_t n, float *room)
{
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

static bool scan(const float *x, int32_t n, float *group_max, float *max)
{
    float room[B], of[G], m[G];
    int32_t n_bad = 0;
    for (int j = 0; j < G; j++)
        m[j] = -INFINITY;
    for (int32_t first = 0; first < n; first += B) {
        n_bad += scan_block(n - first >= B ? x + first : padded(x + first, n - first, room), of);
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

static void exp_block(const float *restrict x, float *restrict p, float max, float inv_t)
{
    for (int i = 0; i < B; i++)
        p[i] = sl_exp_neg((x[i] - max) * inv_t);
}

static double sum_block(const float *p)
{
    double s[4] = {0, 0, 0, 0};
    for (int i = 0; i < B; i += 4)
        for (int j = 0; j < 4; j++)
            s[j] += (double)p[i + j];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static double softmax(const float *x, int32_t n, float max, float inv_t, float *probs, double *sums)
{
    double total = 0;
    float room[B], p[B];
    int32_t first = 0;
    for (; first + B <= n; first += B) {
        exp_block(x + first, probs + first, max, inv_t);
        total += sums[first / B] = sum_block(probs + first);
    }
    if (first < n) {
        double sum = 0;
        exp_block(padded(x + first, n - first, room), p, max, inv_t);
        memcpy(probs + first, p, (size_t)(n - first) * sizeof *p);
        for (int32_t i = 0; i < n - first; i++)
            sum += (double)p[i];
        total += sums[first / B] = sum;
    }
    return total;
}

/* Larger elements of a block and, before element `before` of it, equal ones too. */
static int32_t count_before(const float *x, float value, int32_t before)
{
    int32_t n = 0;
    for (int32_t i = 0; i < B; i++)
        n += (x[i] > value) | ((x[i] == value) & (i < before));
    return n;
}

static double logprob(const float *x, int32_t n, float max, int32_t id, int32_t *n_before)
{
    double sum = 0;
    float room[B], p[B];
    *n_before = 0;
    for (int32_t first = 0; first < n; first += B) {
        const float *block = n - first >= B ? x + first : padded(x + first, n - first, room);
        exp_block(block, p, max, 1.0f);
        sum += sum_block(p);
        *n_before += count_before(block, x[id], id - first);
    }
    return sum;
}

const struct sl_row_kernels KERNELS = {scan, softmax, logprob};
