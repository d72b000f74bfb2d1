/* SPDX-License-Identifier: MIT
 * runner.h - what the engine needs from a model: steps from a batch to tokens.
 *
 * A step has three parts, for every runner:
 *   submit    starts it, with what is wanted of each of its rows of logits, or
 *   choose    says so later, when it is known;
 *   collect   waits for its tokens.
 * A device starts a step without waiting, and the next one may be submitted before this one is
 * collected: its tokens are known by place before they are known by value (device_runner.h). A
 * device of several stages computes as many steps at once, of different groups of sequences. A
 * model that computes in the call has one step at a time (host_runner.h). The null runner counts.
 *
 * Called by the engine thread only, never twice at once, and may not allocate. An error fails the
 * requests of that batch; SL_EDEVICE means that no later step can work and ends the engine's
 * service, SL_ERANK that none works before what is lost is back: it fails all requests and empties
 * the cache.
 */
#ifndef SL_ENGINE_RUNNER_H
#define SL_ENGINE_RUNNER_H

#include "base/err.h"
#include "base/limits.h"
#include "engine/sample.h"
#include "ops/batch.h"
#include "ops/device.h"

struct sl_pick {               /* what is wanted from a row of logits */
    struct sl_sample_args how; /* without logits; read until submit or choose returns */
    int32_t given;          /* -1: choose a token as `how` says; else say how likely this one is */
    int32_t n_top;          /* -1: no log probability; else that and those of n_top tokens */
    const int32_t *top_ids; /* [n_top] these tokens; NULL: the most likely ones */
    bool skip; /* nobody wants a token of this row: any may come of it, the rest is not set */
};

struct sl_picked {
    int32_t id; /* -1: the row holds NaN or infinity, or nothing that may be chosen */
    struct sl_logprob lp;
    const struct sl_top_logprob *top; /* [n_top], valid until the next submit */
    const float *pooled;              /* [n_pooled] instead of a token, likewise */
};

/* What a model that drafts is to compute after a step has landed: first the batch, tokens whose
 * keys and values it does not have, then one token after another of those sequences that want
 * drafts.
 */
struct sl_draft_pass {
    /* One table, of pages of the drafter's own pool. A span that wants drafts has a row of logits,
     * at its last token; those spans come first. Its table has room for what it drafts. Of a
     * runner with draft_borrows: sl_model_facts.draft_borrows. */
    struct sl_batch batch;
    /* [n_tokens], of a drafter that takes hidden rows of the model: the token of the step that has
     * landed whose row goes with each token of the batch. NULL: tokens are enough for it. */
    const int32_t *sources;
    const int32_t *wanted; /* [batch.n_logits] drafts, 1 .. SL_MAX_DRAFTED */
    int32_t *drafts;       /* [batch.n_logits, SL_MAX_DRAFTED], the runner's to fill */
    bool late;   /* with draft_end: drafts are first filled with places, -1 - row: the batch of the
                    next step may have those as tokens. draft_end puts their values there. */
    float *odds; /* [batch.n_logits, SL_MAX_DRAFTED], likewise, of a runner with draft_odds: how
                    likely each draft is right if those before it are */
    double seconds[SL_MAX_DRAFTED]; /* likewise: what the first one took, the second one, ...; of
                                       blocks apart from the text, what they took */
};

enum sl_renewal { SL_RENEW_NOTHING, SL_RENEW_LOST, SL_RENEW_JOINED };

struct sl_runner {
    void *ctx;
    int32_t n_vocab;     /* width of a row of logits */
    int32_t max_logits;  /* rows of logits one step can give; 0 = max_num_seqs. More rows make
                            prompt_logprobs faster: its chunks are cut to fit. */
    int32_t max_flights; /* steps submitted and not collected, 1 .. SL_MAX_FLIGHTS */
    /* Stages that compute different steps at the same time, so that sequences are divided among so
     * many groups, whose steps are submitted in turns; a batch's slot is its group. 0 or 1: one. */
    int32_t n_groups;
    /* What comes out of a step depends on its batch alone: picks is NULL and choose is not called.
     * Requests that need logits are refused. */
    bool blind;
    /* If blind: a row is not a token but so many values of the whole prompt, and a sequence is over
     * when its prompt is computed. 0: rows are tokens. */
    int32_t n_pooled;
    bool per_token; /* with n_pooled: so many values of each of its tokens, one after another */
    bool whole;     /* with n_pooled: a prompt goes into one step, and no page outlives it */
    bool top_ids;   /* can follow sl_pick.top_ids */
    /* picks: [batch->n_logits]; NULL: this step's tokens are chosen by a call of choose before the
     * next submit. A token of the batch below 0 is what the last step of the same slot that has
     * rows of logits chose from row -1 - token. The batch and what picks point to may change after
     * the call. If it fails, all steps before are collected before the next one: the runner may
     * have begun with the step, and written over what they chose. */
    int (*submit)(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                  struct sl_error *err);
    /* The other half of the step submitted last. If it fails, that step is over and not collected.
     */
    int (*choose)(void *ctx, const struct sl_pick *picks, struct sl_error *err);
    /* Results of the oldest step not collected: [n_logits of it]. */
    int (*collect)(void *ctx, struct sl_picked *out, struct sl_error *err);
    /* Optional: the runner counts the tokens of penalised sequences itself. Without it the next
     * token of such a sequence is chosen when its last one is known. Called when a sequence ends,
     * or when a token it chose is rolled back: counts (pick.how.counts) will not be used again, or
     * are to be read anew. */
    void (*forget)(void *ctx, const struct sl_counts *counts);
    /* Optional: the runner has a model that drafts. Each draft is what that model finds most
     * likely. Right after a collect, while nothing is in flight. */
    int (*draft)(void *ctx, struct sl_draft_pass *pass, struct sl_error *err);
    /* Optional: waits for a pass with `late`. Once behind each, before the pass or the step that is
     * the second one behind it. */
    int (*draft_end)(void *ctx, struct sl_draft_pass *pass, struct sl_error *err);
    int32_t n_draft_vocab; /* ids that it knows; others are not given to it */
    int32_t draft_context; /* positions that it knows */
    bool draft_rows;       /* it reads hidden rows: passes have sources */
    bool draft_odds;       /* it says how likely its drafts are */
    bool draft_at_once;    /* all drafts of a sequence come of one step, else each takes one */
    bool draft_borrows;    /* with draft_rows: it reads the model's pages, and is given nothing but
                              tokens to draft behind, all of whose drafts are at one position */
    int32_t draft_block;   /* which is that of blocks of so many tokens, apart from the text; 0: it
                              has the text and a token for each draft but the first */
    /* Optional: copy a page of a group out of the pool, as the steps submitted so far leave it, or
     * into it, as those that follow find it. */
    int (*page_out)(void *ctx, int32_t group, int32_t page, uint8_t *dst, struct sl_error *err);
    int (*page_in)(void *ctx, int32_t group, int32_t page, const uint8_t *src,
                   struct sl_error *err);
    /* With these, of a runner whose copies go on after the call; NULL: they are over by then. As in
     * struct sl_device_vt. */
    int (*pages_follow)(void *ctx, enum sl_page_way way, struct sl_error *err);
    int (*pages_send)(void *ctx, struct sl_error *err);
    int (*pages_over)(void *ctx, bool wait, struct sl_page_counts *over, struct sl_error *err);
    int (*pages_await)(void *ctx, const struct sl_page_counts *n, struct sl_error *err);
    /* Optional: makes host memory ready for such copies, with the number of the device. */
    int (*pin)(int device, void *p, size_t n_bytes, struct sl_error *err);
    void (*unpin)(int device, void *p);
    int device;
    /* Optional: how long the device worked, and stood idle between steps, since it was created. */
    void (*times)(const void *ctx, struct sl_device_times *out);
    /* Optional: the same of one stage, 0 .. n_groups - 1. */
    void (*stage_times)(const void *ctx, int32_t stage, struct sl_device_times *out);
    /* Optional: pages that steps attended to since it was created. */
    void (*top_pages)(const void *ctx, struct sl_top_page_counts *out);
    /* Optional, between steps: how even the load of ranks with experts is. */
    void (*eplb)(const void *ctx, struct sl_eplb_stats *out);
    /* Optional, any thread: grows while a step computes, for steps that may take long. */
    uint64_t (*progress)(const void *ctx);
    /* Optional, any thread: whether steps can work now. SL_ERANK: not before a part of the model
     * that was lost is back. 0 with a message: they do without it. */
    int (*health)(void *ctx, struct sl_error *err);
    /* Optional, any thread: parts of the model in processes of their own. */
    void (*ranks)(const void *ctx, struct sl_rank_stats *out);
    /* Optional, between steps: once after such a loss, or when a part comes back that steps did
     * without, for which it waits some seconds at most. Then nothing in the pages means anything.
     */
    enum sl_renewal (*renew)(void *ctx);
};

#define SL_MAX_FLIGHTS (SL_MAX_STAGES + 1)

/* A runner that computes nothing: the token after t is t + 1 modulo n_vocab. It measures what the
 * engine and the server cost by themselves. */
struct sl_null_runner {
    int32_t n_vocab, n;
    int32_t ids[SL_MAX_SEQS]; /* [n] of the step that is not collected */
};

/* n lives as long as the runner and needs no destructor. */
void sl_null_runner_init(struct sl_null_runner *n, int32_t n_vocab, struct sl_runner *out);

#endif
