/* SPDX-License-Identifier: MIT
 * speculative.h - how tokens are drafted: vLLM's --speculative-config.
 */
#ifndef SL_ENGINE_SPECULATIVE_H
#define SL_ENGINE_SPECULATIVE_H

#include "base/err.h"
#include "base/limits.h"

#include <stdint.h>

enum sl_draft_method {
    SL_DRAFT_NONE,
    SL_DRAFT_NGRAM,  /* what followed the last tokens where they stood before in the text */
    SL_DRAFT_SUFFIX, /* what mostly did, in past outputs too (suffix.h) */
    SL_DRAFT_MODEL,  /* what a smaller model finds most likely */
    SL_DRAFT_MTP,    /* what a module of the model's own checkpoint does, from its hidden rows */
    SL_DRAFT_EAGLE3, /* what a drafter of such rows does that has a checkpoint of its own */
    SL_DRAFT_DFLASH, /* likewise, all drafts in one step */
    SL_DRAFT_DSPARK  /* which says how likely each is right */
};

struct sl_speculative {
    enum sl_draft_method method;
    int32_t num_speculative_tokens;               /* 0: nothing is drafted */
    int32_t prompt_lookup_min, prompt_lookup_max; /* of NGRAM */
    char model[SL_MAX_DRAFT_PATH]; /* of MODEL and those behind it: a folder or a file */
    int32_t max_model_len;  /* tokens behind which a model does not draft; 0: as far as it can */
    bool parallel_drafting; /* of EAGLE3: the drafter must make all drafts in one step */
    /* of SUFFIX: tokens of a match and its drafts together; outputs and tokens that are kept, 0
     * outputs: none; drafts for each token of a match; the least probability of a draft */
    int32_t suffix_max_tree_depth, suffix_max_cached_requests, suffix_corpus_tokens;
    float suffix_max_spec_factor, suffix_min_token_prob;
    /* To plan with acceptance that is not measured: how often the first n drafts of a step, for n
     * from 1 on, count as right, whatever the model chose. The text is then worthless. */
    bool synthetic;
    float synthetic_rates[SL_MAX_DRAFTED]; /* not ascending */
};

/* The name of its method; NULL: none. */
const char *sl_speculative_name(const struct sl_speculative *s);

/* Are drafts made by a model, which has to be loaded? */
static inline bool sl_speculative_loads(const struct sl_speculative *s)
{
    return s->method >= SL_DRAFT_MODEL;
}

/* Reads the JSON object; messages name the key. model: instead of the one that it names; either may
 * be NULL. */
SL_MUST_CHECK int sl_speculative_parse(const char *json, const char *model,
                                       struct sl_speculative *out, struct sl_error *err);

#endif
