/* SPDX-License-Identifier: MIT
 * sample.h - how tokens are chosen where the logits are, on a device: parameters of each row, and
 * what comes back. The rules, and every bit, are those of the engine's own sampler
 * (engine/sample.h). This header compiles as C11 and C++17.
 *
 * The arrays a row points to are device memory that belongs to the caller; the kernels only read
 * them, but for counts, where the chosen token is counted at once: the next step may start before
 * the host knows it. Rows of drafts have the counts of their sequence in common and are held: which
 * of their tokens come out is not known before all have chosen. What these steps leave uncounted
 * goes before the drafts in `ahead`, until a row that is not held counts it.
 */
#ifndef SL_OPS_SAMPLE_H
#define SL_OPS_SAMPLE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_SAMPLE_GREEDY_BELOW 1e-5f  /* temperatures below take the best token */
#define SL_SAMPLE_FLOOR        -87.0f /* of (logit - maximum) / temperature: below is 0 */
#define SL_SAMPLE_MAX_TOP      20

struct sl_sample_bias {
    int32_t id;
    float bias;
};

struct sl_sample_row {
    uint64_t seed, pos;      /* key of the draw; pos: absolute position of the new token */
    const uint32_t *allowed; /* bit id % 32 of word id / 32: may be chosen; NULL: all may */
    int32_t *counts;         /* [n_vocab]; NULL: no penalties. See sl_sample_count */
    const struct sl_sample_bias *bias; /* ascending by id, equal ids in the order they are added */
    const int32_t *banned[2];          /* ids that may not be chosen */
    int32_t n_bias, n_banned[2];
    float temperature;
    int32_t top_k;      /* <= 0: off */
    float top_p, min_p; /* >= 1, <= 0: off */
    float floor;        /* sl_sample_floor(min_p) */
    float repetition_penalty, frequency_penalty, presence_penalty;
    int32_t n_top;        /* best tokens wanted beside the chosen one; -1: no log probabilities */
    int32_t padding;      /* not 0: id 0 whatever the logits are */
    const int32_t *ahead; /* [n_ahead] tokens that came out, which counts do not have */
    int32_t n_ahead;
    int32_t held; /* not 0: counts stay as they are; else ahead and the chosen token go into them */
};

/* An entry of counts: bit 0 is set by the prompt, the rest counts how often the token came out. */
static inline int32_t sl_sample_count(bool in_prompt, int32_t n_out)
{
    return n_out * 2 + (in_prompt ? 1 : 0);
}

/* On the host, as it needs the C library's logarithm. */
static inline float sl_sample_floor(float min_p)
{
    float log_p = min_p > 0.0f ? logf(min_p) : SL_SAMPLE_FLOOR;
    return SL_SAMPLE_FLOOR > log_p ? SL_SAMPLE_FLOOR : log_p;
}

static inline bool sl_sample_draws(const struct sl_sample_row *r)
{
    return r->temperature >= SL_SAMPLE_GREEDY_BELOW && r->padding == 0;
}

/* Log probabilities of one row, without the last step: the host takes the logarithm, so that a
 * device gives the bits that the host's sampler gives. */
struct sl_sample_result {
    int32_t id;       /* -1: nothing could be chosen, the rest is not set */
    int32_t n_before; /* tokens likelier than id; ties by id */
    float logit, max; /* raw, of id and of the row */
    double sum;       /* of exp(logit - max) */
    int32_t top_id[SL_SAMPLE_MAX_TOP];
    float top_logit[SL_SAMPLE_MAX_TOP];
};

static inline float sl_sample_logprob(const struct sl_sample_result *r, float logit)
{
    return (float)((double)logit - ((double)r->max + log(r->sum)));
}

struct sl_op_sample {    /* ids[i] = a token chosen from row i of the logits */
    const float *logits; /* [n, n_vocab], rows ld apart */
    int64_t ld;
    int32_t n, n_vocab;
    const struct sl_sample_row *rows;
    int32_t *ids;                     /* [n] -1: NaN or +infinity, or nothing may be chosen */
    struct sl_sample_result *results; /* [n] for rows with n_top >= 0; NULL if there is none */
    void *scratch;                    /* zeroed once by who allocates it; one call at a time */
    int32_t max_n;                    /* rows that scratch was made for */
    bool draws;                       /* some row draws: sl_sample_draws */
};

#endif
