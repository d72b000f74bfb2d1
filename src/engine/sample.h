/* SPDX-License-Identifier: MIT
 * sample.h - from one row of logits to one token, and to log probabilities.
 *
 * Pure functions of the row, the parameters, the seed and the position: nothing else in the engine
 * can change a token. The order of operations is vLLM's: log probabilities from the raw logits;
 * then banned ids (min_tokens), logit_bias, repetition, frequency and presence penalties; greedy
 * below a temperature of 1e-5, ties to the lowest id; else temperature, min_p, top_k, top_p, and a
 * draw. Probabilities are added as integers (sample_exp.h) and exp is our own, so neither the
 * order of a sum nor the libm can change a bit; docs/DETERMINISM.md has the rules.
 */
#ifndef SL_ENGINE_SAMPLE_H
#define SL_ENGINE_SAMPLE_H

#include "base/err.h"
#include "engine/counts.h"
#include "engine/sample_rows.h"
#include "sluice.h"

#define SL_GREEDY_BELOW 1e-5f

struct sl_cand {
    uint32_t key; /* orders by probability: the most likely have the smallest */
    int32_t id;
};

struct sl_sampler { /* workspace of one thread */
    int32_t n_vocab;
    const struct sl_row_kernels *k;
    float *logits;                      /* [n_vocab] after bias and penalties */
    uint64_t *sums;                     /* per block of SL_ROW_BLOCK */
    float *group_max, *group_prob;      /* SL_ROW_GROUPS per block */
    struct sl_cand *cands, *cands_part; /* [n_vocab] */
};

struct sl_sample_args {
    const float *logits; /* [n_vocab] */
    const struct sl_sampling *sampling;
    uint64_t seed, pos;             /* key of the draw; pos: absolute position of the new token */
    const struct sl_counts *counts; /* NULL: no penalties */
    const int32_t *ahead;           /* [n_ahead] tokens after those of counts, which count too */
    int32_t n_ahead;
    const uint32_t *allowed;  /* bit id % 32 of word id / 32: may be chosen; NULL: all may */
    const int32_t *banned[2]; /* ids that may not be chosen */
    int32_t n_banned[2];
};

SL_MUST_CHECK int sl_sampler_init(struct sl_sampler *s, int32_t n_vocab, struct sl_error *err);
void sl_sampler_deinit(struct sl_sampler *s);
/* Does sampling change the row before the draw (so that counts are needed)? */
bool sl_sampling_has_penalty(const struct sl_sampling *p);
/* The chosen id; -1: the row holds NaN or +infinity, or nothing that may be chosen. -infinity is a
 * probability of 0. */
int32_t sl_sample(struct sl_sampler *s, const struct sl_sample_args *args);

struct sl_logprob {
    float logprob;
    int32_t rank; /* 1 = most likely; ties by id */
};
/* Log softmax of the row at id, and at the ids that top names. False: NaN or infinity. */
bool sl_logprobs_of(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top,
                    struct sl_logprob *out, struct sl_top_logprob *top);
/* Log softmax of the row at id, and the n_top best (ties by id) into top. False: NaN or infinity.
 */
bool sl_logprobs(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top,
                 struct sl_logprob *out, struct sl_top_logprob *top);

#endif
