/* SPDX-License-Identifier: MIT
 * request.h - a request from submission to release: one block of memory sized when it is submitted,
 * so that the engine thread allocates nothing and a slow reader needs no queue.
 *
 * Three parties touch it, each its own fields:
 *   the submitter  everything, before the request enters the inbox;
 *   the engine     the sequence, the arrays of sampled tokens (append only), the stop state;
 *   the reader     its own place in those arrays, the streaming detokenizer, the text buffer.
 * Engine to reader: `text_limit`, then `published` with release order; it packs how many tokens are
 * visible and how the sequence ended, so one load sees both. An end is published behind the
 * statistics of its turn: who has seen it finds the request counted. Usage, error and the link to
 * the outbox are under `lock`. Two references: the user's and the engine's.
 */
#ifndef SL_ENGINE_REQUEST_H
#define SL_ENGINE_REQUEST_H

#include "engine/constrain.h"
#include "engine/draft.h"
#include "engine/mode.h"
#include "engine/sample.h"
#include "engine/stop.h"
#include "engine/suffix.h"
#include "engine/think.h"
#include "engine/tiers.h"
#include "grammar/jump.h"
#include "sched/seq.h"
#include "text/tokenizer/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

#define SL_CHUNK_TOKENS 64 /* most tokens of one sl_chunk */

/* published = tokens | finish << 32 | SL_PUB_SKIP_LAST */
#define SL_PUB_SKIP_LAST (UINT64_C(1) << 40) /* the last token is a stop token without text */

struct sl_rseq {
    struct sl_seq seq; /* first: the scheduler's pointers are turned back into ours */
    struct sl_request *req;
    uint64_t seed;
    uint64_t t_last_ns;
    bool raised; /* counted in the engine's n_raised */
    /* When it ended, the last block that others can find, and that of its prompt; SL_NO_NODE: none.
     */
    int32_t leaf, base;
    struct sl_hash128 leaf_name, base_name;
    uint64_t ended_ns;

    /* appended by the engine, [max_out] each */
    int32_t *out;
    struct sl_logprob *logprobs; /* NULL: not asked for */
    struct sl_top_logprob *tops; /* [max_out, n_top] */
    struct sl_counts counts;     /* slots NULL: no penalties */

    /* a constraint's: the masker's while seq.waits (masker.h), else the engine's */
    struct sl_matcher *matcher;
    struct sl_think_seq think;
    bool mask_free; /* nothing says any more what may come: no masks from here on */
    /* [1 + max drafts, words] the tokens that may come at position mask_at, then after each of
     * n_masked drafts; NULL: what the request allows. */
    uint32_t *mask;
    int32_t mask_at, n_masked;
    int32_t *runs;      /* [sizes] of repetition_detection; NULL: off */
    int32_t *bans;      /* [1 + max drafts, n_bans] scratch of one step; NULL: no bad words */
    int32_t *drafts;    /* [max drafts] that follow out */
    bool never_ahead;   /* what its tokens are chosen by was late: no step is planned ahead */
    float right, wrong; /* drafts lately */
    float each, comes;  /* probabilities that one is right, and with all before the next one */
    int32_t n_worth;    /* drafts of the next step that pay */
    uint64_t
        drafted_at; /* the proposal in which it had drafts last, or was held for some; 0: none */
    double credit;  /* seconds that its drafts may cost (fund.h) */
    double after;   /* what it may be at most when what was lent is used; 0: nothing was lent */
    double left,
        price; /* while drafts are chosen: of it, what is left; what they add to the step */
    struct sl_draft_seq model; /* of a model that drafts (draft.h) */
    int32_t n_most;            /* of those that there may be */
    /* of method suffix: n_found drafts behind found_at tokens, by a match of so many */
    struct sl_suffix_links links;
    float *share; /* [max drafts] see suffix.h; NULL: the method does not say */
    int32_t n_found, found_at, match;
    struct sl_rseq *mask_next;
    int32_t mask_token, n_new;   /* the last of n_new tokens that the matcher has not seen */
    uint64_t mask_round;         /* of the masker, when it was given */
    uint64_t mask_ns;            /* what the last one took */
    bool mask_slow;              /* one took so long that the engine must never make one itself */
    bool mask_ends;              /* the text is complete and cannot go on */
    int32_t n_forced, at_forced; /* at_forced: of them, those that masks have asked for */
    int32_t forced[SL_MAX_JUMP]; /* tokens before the one that the mask is for */
    struct sl_error mask_error;

    /* the engine's search for stop strings */
    struct sl_detok detok;
    struct sl_stop_state stop_state;
    uint64_t n_text; /* bytes of text so far */

    _Atomic uint64_t text_limit; /* bytes the reader may show */
    _Atomic uint64_t published;
    uint64_t end; /* to be published when what the engine counts has been; 0: it has not ended */
    bool repeats; /* ended by repetition_detection; likewise */
    int32_t stop_token_id, stop_idx; /* valid once the finish is published */

    /* the reader's */
    struct sl_detok r_detok;
    int32_t r_n;      /* tokens given out */
    uint64_t r_made;  /* bytes of their text, shown or not */
    uint64_t r_shown; /* bytes given out */
    char *r_held;     /* [SL_MAX_STOP_BYTES] bytes produced but not shown yet */
    size_t r_n_held;
    bool r_done;
};

struct sl_request {
    struct sl_engine *eng;
    atomic_int refs;
    atomic_bool cancelled, over; /* over: every sequence has ended, the engine let go */
    void *user;

    /* written by the submitter, then read only */
    struct sl_sampling sampling; /* its arrays lie in this block */
    struct sl_stops stops;
    struct sl_kv_ns ns;
    struct sl_constraint *constraint; /* NULL: any text; a reference */
    uint32_t *allowed;                /* allowed_token_ids as a mask; NULL: all */
    bool long_bad_words;              /* what may come depends on the tokens before */
    struct sl_adapter *adapter;       /* NULL: the model as it is; a reference */
    float adapter_scale, cache_hit_threshold;
    struct sl_think think;
    int32_t *prompt;
    int32_t n_prompt, max_out, n_top, n_prompt_top;
    int32_t n_bans; /* ids that one choice may exclude besides those of a mask */
    int32_t n_seqs;
    struct sl_rseq *seqs;
    /* What the output may be like, and the links of the prompt and it as one text. */
    int32_t *prediction, n_prediction; /* 0: nobody said */
    struct sl_suffix_links predicted;
    size_t text_cap;

    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool news;                              /* lock */
    struct sl_usage usage;                  /* lock */
    struct sl_error error;                  /* lock */
    struct sl_outbox *box;                  /* lock; NULL: none, or released */
    struct sl_request *box_prev, *box_next; /* the outbox's lock */
    bool on_box;                            /* the outbox's lock */

    const struct sl_mode *mode;
    float *pooled; /* [n_pooled] of all its tokens, the engine's until the end is published; NULL:
                      it generates */
    int32_t n_pooled, second_from;

    struct sl_token *prompt_logprobs; /* [n_prompt], NULL: not asked for */
    struct sl_top_logprob *prompt_tops;
    atomic_bool prompt_logprobs_ready;

    /* the inbox's, under its lock */
    struct sl_request *inbox_next, *cancel_next, *call_next;
    atomic_bool called; /* a tool; once */
    int32_t calling;    /* by the sequence that called: constant from then on, as tool is */
    uint64_t tool;
    /* the engine's */
    struct sl_request *live_prev, *live_next, *news_next;
    struct sl_tier_load load;
    uint64_t session;  /* 0: none */
    int32_t mark;      /* that it goes on from, until it is admitted; -1: none */
    uint64_t offer[2]; /* what the offer of its pages is found by; constant once it is submitted */
    bool has_news, started, siblings_added;
    int32_t n_ended;
    struct sl_usage usage_now; /* copied to usage when news is delivered */

    /* the reader's */
    int32_t r_next_seq, r_n_done;
    char *r_text; /* [text_cap] */
    struct sl_token r_tokens[SL_CHUNK_TOKENS];
};

/* Bounds that a request must keep to be able to run. */
struct sl_request_limits {
    int32_t n_vocab;       /* ids of the prompt */
    int32_t n_logits;      /* width of a row of logits: ids that may be sampled, biased, banned */
    int32_t max_model_len; /* prompt and output together */
    bool has_tokenizer;    /* stop strings can be searched */
    bool has_top_ids;      /* log probabilities of given ids can be had */
    bool has_logits;       /* log probabilities, penalties and masks can be had */
    bool has_adapters;     /* the runner adds what adapters say */
    int32_t n_pooled;      /* values of a prompt; 0: prompts are continued */
    bool per_token;        /* so many of each of its tokens */
    bool pairs;            /* a prompt may be two texts */
};

/* Refuses what can never run or makes no sense; the message names the field. */
SL_MUST_CHECK int sl_request_check(const struct sl_request_desc *desc,
                                   const struct sl_request_limits *lim, struct sl_error *err);
/* Builds a checked request with two references. seed: for its first sequence. number: unique. */
SL_MUST_CHECK int sl_request_create(struct sl_engine *eng, const struct sl_request_desc *desc,
                                    uint64_t seed, uint64_t number, struct sl_request **out,
                                    struct sl_error *err);
void sl_request_unref(struct sl_request *req);
/* Tells the reader, by outbox or condition; the engine thread calls it. */
void sl_request_deliver(struct sl_request *req);

/* outbox.c, called with the request's lock held */
void sl_outbox_push(struct sl_outbox *box, struct sl_request *req);
void sl_outbox_remove(struct sl_outbox *box, struct sl_request *req);

static inline uint64_t sl_pub_pack(int32_t n_tokens, enum sl_finish finish, bool skip_last)
{
    return (uint64_t)(uint32_t)n_tokens | (uint64_t)finish << 32 |
           (skip_last ? SL_PUB_SKIP_LAST : 0);
}

static inline int32_t sl_pub_tokens(uint64_t pub)
{
    return (int32_t)(pub & 0x7fffffff);
}

static inline enum sl_finish sl_pub_finish(uint64_t pub)
{
    return (enum sl_finish)(pub >> 32 & 0xff);
}

#endif
