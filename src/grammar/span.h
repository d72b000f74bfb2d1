/* SPDX-License-Identifier: MIT
 * span.h - which plain characters may follow a state of a lexeme, in any order.
 *
 * A span is a set of characters and a length: no string of up to that many characters of the set
 * leaves the lexeme. Masks take whole branches of the vocabulary by it without walking them. It
 * says what is certain, not all that is so: what it leaves out is walked.
 *
 * Found by walking the lexeme's own states, a bounded number of them; kept per state. Belongs to
 * one automaton and its lock.
 */
#ifndef SL_GRAMMAR_SPAN_H
#define SL_GRAMMAR_SPAN_H

#include "grammar/rx.h"
#include "grammar/vocab.h"

#define SL_SPAN_CACHE 1024

struct sl_char_span {
    struct sl_plain_set set;
    uint32_t chars; /* SL_VOCAB_MAX_RUN: any number that a plain token has; 0: nothing is known */
    bool ends;      /* and no more plain characters than these, whatever they are */
};

struct sl_spans {
    struct {
        sl_rx_id id;
        struct sl_char_span span;
    } at[SL_SPAN_CACHE];
    sl_rx_id others;      /* one plain character beyond ASCII */
    uint32_t budget;      /* states that may still be visited for the current mask */
    uint64_t max_derived; /* where searches for it end */
};

SL_MUST_CHECK int sl_spans_init(struct sl_spans *s, struct sl_rx *rx, struct sl_error *err);
void sl_spans_begin(struct sl_spans *s, const struct sl_rx *rx); /* a mask */
const struct sl_char_span *sl_span_of(struct sl_spans *s, struct sl_rx *rx, sl_rx_id id);

static inline bool sl_span_has(const struct sl_char_span *s, const struct sl_plain_set *set)
{
    return ((set->w[0] & ~s->set.w[0]) | (set->w[1] & ~s->set.w[1])) == 0;
}

#endif
