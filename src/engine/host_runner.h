/* SPDX-License-Identifier: MIT
 * host_runner.h - a runner on a model that computes in the call, as the CPU does.
 *
 * submit computes the step; choose takes the tokens from its logits where they lie, with the
 * engine's own samplers (sample.h), several rows at once on the model's threads; collect hands them
 * over.
 */
#ifndef SL_ENGINE_HOST_RUNNER_H
#define SL_ENGINE_HOST_RUNNER_H

#include "engine/runner.h"
#include "models/model.h"

struct sl_host_model {
    void *ctx;
    int32_t n_vocab, n_pooled; /* of struct sl_runner */
    bool per_token, whole;
    /* rows: [batch->n_logits, n_pooled or n_vocab], or of each token [n_tokens, n_pooled]; valid
     * until the next call. */
    int (*forward)(void *ctx, const struct sl_batch *batch, const float **rows,
                   struct sl_error *err);
    /* Optional: runs items on n_threads threads between steps. */
    void (*run_items)(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                      uint32_t n_items);
    int n_threads;
    /* Optional: a step of a model that drafts. rows: [batch->n_logits, n_draft_vocab], valid until
     * the next call. sources: of struct sl_draft_pass; where the batch goes on after a step of the
     * same pass, rows of logits of that step instead (own); NULL: a step of blocks, which reads
     * none. */
    int (*draft)(void *ctx, const struct sl_batch *batch, const int32_t *sources, bool own,
                 const float **rows, struct sl_error *err);
    int32_t n_draft_vocab, draft_context; /* of struct sl_runner */
    bool draft_rows;                      /* likewise */
    /* Of a drafter of blocks: tokens of each, the last token of the text and copies of draft_mask;
     * whether the row of the first says a draft, or that of the second; whether the text's rows go
     * before them in a step of their own, else the sources of masks are -1. Tokens of a step. */
    int32_t draft_block, draft_mask, draft_tokens;
    bool draft_from_anchor, draft_apart;
    /* Optional: each draft depends on the one before it. rows as draft gives them. */
    void (*draft_chain)(void *ctx, const struct sl_draft_chain *c, const float **rows);
    bool draft_odds;    /* it fills odds */
    bool draft_borrows; /* of struct sl_runner */
    /* Optional: the model's id of a column of those rows, of which there are n_draft_row then. */
    int32_t (*draft_token)(const void *ctx, int32_t idx);
    int32_t n_draft_row;
    /* Optional: where a part of a page of a group lies, and its bytes. A page has n_page_parts
     * parts (0: one), which follow one another in a copy. */
    uint8_t *(*page)(void *ctx, int32_t group, int32_t page, int32_t part, size_t *n_bytes);
    int32_t n_page_parts;
    /* Or, of struct sl_runner. */
    int (*page_out)(void *ctx, int32_t group, int32_t page, uint8_t *dst, struct sl_error *err);
    int (*page_in)(void *ctx, int32_t group, int32_t page, const uint8_t *src,
                   struct sl_error *err);
    void (*top_pages)(const void *ctx, struct sl_top_page_counts *out); /* optional, likewise, */
    void (*eplb)(const void *ctx, struct sl_eplb_stats *out);
    uint64_t (*progress)(const void *ctx);          /* optional, of struct sl_runner, */
    int (*health)(void *ctx, struct sl_error *err); /* likewise */
    void (*ranks)(const void *ctx, struct sl_rank_stats *out);
    enum sl_renewal (*renew)(void *ctx);
};

struct sl_host_runner;

SL_MUST_CHECK int sl_host_runner_create(const struct sl_host_model *m, int32_t max_logits,
                                        struct sl_host_runner **out, struct sl_error *err);
void sl_host_runner_destroy(struct sl_host_runner *h); /* NULL is allowed */
void sl_host_runner_use(struct sl_host_runner *h, struct sl_runner *r);

#endif
