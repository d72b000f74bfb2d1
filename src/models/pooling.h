/* SPDX-License-Identifier: MIT
 * pooling.h - what a model is for: text, an embedding of a text, or scores of it.
 *
 * A folder says so in the files of sentence-transformers (modules.json, 1_Pooling/config.json,
 * sentence_bert_config.json) or by its head, a GGUF by pooling_type; the user may say otherwise.
 */
#ifndef SL_MODELS_POOLING_H
#define SL_MODELS_POOLING_H

#include "io/checkpoint.h"
#include "ops/ops.h"
#include "sluice.h"

enum sl_score_act { SL_SCORE_IDENTITY, SL_SCORE_SIGMOID, SL_SCORE_SOFTMAX };

enum { SL_MAX_DENSE = 2 };

/* A Dense module of sentence-transformers: y = act(W x + b). */
struct sl_dense {
    char folder[64]; /* of its files; empty: its tensor is one of the checkpoint */
    int32_t n_in, n_out;
    bool bias, activates;
    enum sl_act act;
};

struct sl_pooling {
    enum sl_model_task task;
    enum sl_pool_kind kind;
    bool per_token; /* nothing is pooled: a vector of each token (ColBERT) */
    bool normalize;
    struct sl_dense dense[SL_MAX_DENSE]; /* behind the pooling, in their order */
    int32_t n_dense;
    bool rank;             /* a GGUF's scores by a classifier, which it may lack */
    enum sl_score_act act; /* of scores */
    int32_t max_input;     /* tokens the makers say, 0: nothing */
};

/* What the files say; *found: they say anything. hidden: the width that is pooled. */
SL_MUST_CHECK int sl_pooling_read(const struct sl_ckpt *ckpt, const char *gguf_arch, int32_t hidden,
                                  struct sl_pooling *out, bool *found, struct sl_error *err);
/* The activation a classifier's config asks for; without one a single label's is sigmoid, that of
 * several softmax. */
SL_MUST_CHECK int sl_pooling_read_act(const struct sl_ckpt *ckpt, int32_t n_labels,
                                      enum sl_score_act *out, struct sl_error *err);
const char *sl_pool_name(enum sl_pool_kind kind);
const char *sl_task_name(enum sl_model_task task);

#endif
