/* SPDX-License-Identifier: MIT
 * mode.h - a way of getting from a prompt to a result: what a request does with the steps of the
 * model. Engine thread only.
 *
 * Before a plan, a mode may propose tokens after those that are known (sl_engine_propose). The
 * step computes them too, and each of their rows chooses a token. When the step has landed, the
 * mode consumes what its rows chose: tokens become known, and what was computed for other tokens is
 * rolled back.
 */
#ifndef SL_ENGINE_MODE_H
#define SL_ENGINE_MODE_H

#include "engine/speculative.h"

#include <stdint.h>

struct sl_engine;
struct sl_flight;
struct sl_flight_seq;
struct sl_rseq;

struct sl_mode {
    /* Optional. Up to n tokens that may follow what is known of the text, into rs->drafts; returns
     * how many. No output depends on them. Sequences with a `share` are asked before it is decided
     * how many are worth it. */
    int32_t (*propose)(struct sl_engine *eng, struct sl_rseq *rs, int32_t n);
    /* A step with a sequence of this mode has landed; fs->rs is set. */
    void (*consume)(struct sl_engine *eng, const struct sl_flight *f,
                    const struct sl_flight_seq *fs);
};

extern const struct sl_mode sl_mode_generate; /* a token a step, from the row of the last one */
extern const struct sl_mode sl_mode_ngram;    /* and drafts: what followed in the text before */
extern const struct sl_mode sl_mode_model;    /* and drafts: of a model that drafts (draft.h) */
extern const struct sl_mode sl_mode_suffix;   /* likewise by frequency, and in past outputs */
extern const struct sl_mode sl_mode_pool;     /* embeddings and scores: values of a whole prompt */

/* How drafts come by a method; NULL: by none. */
const struct sl_mode *sl_mode_of(enum sl_draft_method method);

#endif
