/* SPDX-License-Identifier: MIT
 * turn.h - the parts of a turn of the engine (turn.c), each in a file of its own. Engine thread
 * only; nothing here allocates.
 */
#ifndef SL_ENGINE_TURN_H
#define SL_ENGINE_TURN_H

#include "engine/core.h"

/* admit.c: what was submitted and cancelled since the last turn. */
void sl_engine_take_inbox(struct sl_engine *eng);
/* A request that waits for nothing before its first step. */
void sl_engine_schedule(struct sl_engine *eng, struct sl_request *req);
/* Better priorities may come without end. So that nobody waits for ever, the longest waiting get a
 * few seats of their own: those that are passed over by a better priority after raise_ns. */
void sl_engine_raise_overdue(struct sl_engine *eng);
/* Pages that were there when a request came may have gone before its turn: takes those that wanted
 * them off the plan. False: none had. */
bool sl_engine_drop_cold(struct sl_engine *eng);
/* The plan is launched. */
void sl_engine_mark_started(struct sl_engine *eng, uint64_t now);

/* mask_wait.c: takes the masks that are ready. */
void sl_engine_take_masks(struct sl_engine *eng);
/* Waits for those that are owed, at most for a share of a step, then takes them. free_ns: how long
 * a device computes meanwhile all the same. */
void sl_engine_await_masks(struct sl_engine *eng, uint64_t free_ns);

/* propose.c: drafts for what can be planned. False: nothing is to be planned before the step in
 * flight has landed. */
bool sl_engine_propose(struct sl_engine *eng);
/* How many drafts are worth it after the known tokens of a sequence; any thread that owns it. */
int32_t sl_engine_n_drafts(const struct sl_engine *eng, const struct sl_rseq *rs);
/* The next step without drafts, as far as it is known. */
struct sl_drafting sl_engine_next_step(const struct sl_engine *eng);
/* Drafts are given by the probability that they come out: at least 1, then so much less again and
 * again. */
#define SL_DRAFT_LESS  0.85f
#define SL_DRAFT_LEAST 0.04f
/* The probability that a draft of rs is right. */
float sl_engine_draft_odds(const struct sl_engine *eng, const struct sl_rseq *rs);
/* Drafts that a step has room for; the next one has none, so that its time stays known. */
int32_t sl_engine_draft_room(const struct sl_engine *eng);
bool sl_engine_is_plain(const struct sl_engine *eng);
/* Is what drafts cost measured? Then they are limited by it. */
bool sl_engine_prices_drafts(const struct sl_engine *eng);
/* A probability, at least that of drafts that are made: where nothing is measured all are. */
float sl_engine_draft_comes(const struct sl_engine *eng, float comes);
/* While drafts are chosen: `left` of the fund and rs->left of the credit pay for one more, if they
 * can. */
bool sl_engine_afford_draft(const struct sl_engine *eng, struct sl_fund *left, struct sl_rseq *rs,
                            double seconds);
/* Of n tokens drafted, n_right were chosen. */
void sl_engine_learn_drafts(struct sl_engine *eng, struct sl_rseq *rs, int32_t n, int32_t n_right);

/* mode_generate.c: of all modes that make text. */
void sl_generate_consume(struct sl_engine *eng, const struct sl_flight *f,
                         const struct sl_flight_seq *fs);

/* append.c: the log probabilities of the token to be appended next, to where the reader finds them.
 */
void sl_engine_keep_logprobs(struct sl_rseq *rs, const struct sl_picked *p);
/* False: the sequence has ended with the token. */
bool sl_engine_append(struct sl_engine *eng, struct sl_rseq *rs, int32_t id);
/* The prompt is computed: the other sequences of the request find it in the prefix tree (under the
 * request's private name when prefix caching is off) and compute only its unfinished last page. */
void sl_engine_add_siblings(struct sl_engine *eng, struct sl_request *req);

/* finish.c: the only place where a sequence ends: exactly one terminal event each. text_limit is
 * final. */
void sl_engine_end_seq(struct sl_engine *eng, struct sl_rseq *rs, enum sl_finish finish,
                       bool skip_last, bool forget);
void sl_engine_end_all(struct sl_engine *eng, struct sl_request *req, enum sl_finish finish,
                       bool forget);
/* One bad request harms itself only: it ends, and what it computed is not reused. */
void sl_engine_fail(struct sl_engine *eng, struct sl_request *req, const struct sl_error *why);
/* Before tokens that users may ask about become visible: a reader who saw the end, or the first
 * token, sees the usage that goes with it. In between it lags by less than a step. */
void sl_engine_show_usage(struct sl_request *req);
/* A runner that counts tokens itself reads the counts of rs anew, if it needs them again. */
void sl_engine_forget_counts(struct sl_engine *eng, const struct sl_rseq *rs);
/* There is news of the request: its reader is told at the end of the turn, by sl_engine_deliver. */
void sl_engine_tell(struct sl_engine *eng, struct sl_request *req);
void sl_engine_deliver(struct sl_engine *eng);

static inline bool sl_in_list(const int32_t *list, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

#endif
