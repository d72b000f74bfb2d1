/* SPDX-License-Identifier: MIT
 * draft.h - drafts of a model: what it has of each sequence, and what it is asked to compute.
 *
 * Its keys and values lie in pages of its own pool, which have the numbers of the pages of the
 * target's first group: block i of a sequence is one page number for both. So blocks that are
 * shared, cached, evicted or given back are so for both. What a page holds of the drafter is
 * recorded here: it may lack what the target has, since tokens are given to the drafter only when a
 * sequence is worth drafting for, and then all that it lacks at once. Drafts reach further than the
 * blocks of a sequence: behind them lie spare pages, for one pass.
 *
 * A drafter that reads hidden rows of the model (MTP, EAGLE-3) is given each token with the row of
 * the one before it, and rows are there only until the next step. So a sequence is given to it step
 * by step, as long as that can be paid (fund.h). What it lacks, of tokens that nobody paid for or
 * of the end of a cached text, makes worse drafts.
 *
 * Of those, some (DFlash) make all drafts of a sequence in one step: a block of the last token of
 * the text and of masks, whose entries lie behind those of the text for as long as the pass takes.
 * Others (Gemma 4's assistant) have no pages: they read the model's, so that nothing has to be
 * given to them but the last token of a text that is to have drafts, with the row before it.
 *
 * A pass comes when a step has landed and its tokens are known, before the next one is planned. Its
 * drafts wait in rs->drafts. Where a device has them and nobody on the host needs to know them
 * before the next step has landed (no mask, penalty or bad word does), the host does not wait for
 * the pass: the step refers to its rows. Nothing here changes an output. Engine thread only;
 * nothing is allocated after init.
 */
#ifndef SL_ENGINE_DRAFT_H
#define SL_ENGINE_DRAFT_H

#include "engine/runner.h"
#include "sched/cost.h"

struct sl_engine;
struct sl_flight;
struct sl_rseq;

struct sl_draft_seq { /* of a sequence; zero-initialise */
    uint64_t writer;  /* its name in the records of pages since it runs; 0: none */
    int32_t epoch;    /* n_preempted then */
    int32_t n_fed;    /* tokens of its text that the last pass left in its pages */
    int32_t has;      /* what the next pass goes on from */
    int32_t most;     /* drafts that it may have in it */
    int32_t at, n;    /* behind `at` tokens of text, n drafts are in rs->drafts */
    /* Of a drafter of hidden rows: n_rows rows of the step that has landed, from token `row` of it
     * on, belong to text from position `pos` on. */
    int32_t row, pos, n_rows;
    bool mask_due; /* its next mask waits for the drafts */
};

struct sl_draft_page {
    uint64_t writer;  /* the sequence that wrote it last */
    uint32_t n_taken; /* of the page then (group.h): else its tokens are others */
    bool full;        /* all of its tokens were written */
};

struct sl_drafter {
    struct sl_cost cost;         /* of its steps */
    struct sl_draft_page *pages; /* [n_pages] */
    uint64_t n_writers;
    struct sl_draft_pass pass;
    bool open;                   /* nobody has waited for it yet, */
    int32_t n_behind;            /* and so many steps were launched behind it */
    int32_t *tokens, *positions; /* [max_tokens] */
    struct sl_span *spans;       /* [max_seqs] */
    int32_t *logit_rows, *wanted, *drafts, *sources;
    float *odds;         /* of the drafts */
    struct sl_rseq **of; /* [max_seqs] the sequence of each span */
    int32_t *tables; /* [n_table] of [max_seqs, blocks of the longest sequence and spare ones]; of
                        one that borrows for each group of the model's, table_stride apart */
    int32_t n_table, table_stride;
    int32_t n_spare; /* pages behind a sequence's blocks, in one pass */
};

/* Pages of the drafter's pool, beside n_pages of the target's: behind those one for padding, then
 * spare ones. */
int32_t sl_drafter_n_pages(int32_t n_pages, int32_t max_seqs, int32_t n_drafts, int32_t block_size);

SL_MUST_CHECK int sl_drafter_init(struct sl_engine *eng, struct sl_error *err);
void sl_drafter_deinit(struct sl_engine *eng); /* there may be none */
/* A step has landed, and what its n_seqs sequences chose was consumed: makes drafts, then asks for
 * the masks that waited for them. */
void sl_engine_draft(struct sl_engine *eng, struct sl_flight *f, int32_t n_seqs);
/* Is the drafter to have its turn when f, which alone is in flight, has landed? */
bool sl_engine_draft_awaits(struct sl_engine *eng, const struct sl_flight *f);
/* A step is about to be launched; none can be now: what a pass made is known by then, if the step
 * after next is not to find it gone. */
void sl_engine_draft_launch(struct sl_engine *eng);
/* Waits for a pass that is still open. Returns what it took on the device. */
double sl_engine_draft_end(struct sl_engine *eng);
void sl_engine_draft_forget(struct sl_engine *eng, const struct sl_rseq *rs); /* it has ended */
/* How many of up to n drafts wait in rs->drafts for what is known of its text. */
int32_t sl_draft_waiting(const struct sl_rseq *rs, int32_t n);

#endif
