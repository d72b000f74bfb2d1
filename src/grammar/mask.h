/* SPDX-License-Identifier: MIT
 * mask.h - which tokens may follow a state of the automaton; masks are kept per state.
 */
#ifndef SL_GRAMMAR_MASK_H
#define SL_GRAMMAR_MASK_H

#include "grammar/auto.h"
#include "grammar/shape.h"
#include "grammar/span.h"
#include "grammar/vocab.h"

#define SL_MASK_CACHE 256

struct sl_masks {
    const struct sl_vocab *vocab;
    struct {
        uint32_t state, used; /* used: when, by clock */
        uint32_t *mask;
    } at[SL_MASK_CACHE];
    uint32_t clock;
    struct sl_mask_run { /* lengths of runs that were asked for */
        sl_rx_id id;
        int32_t run;
        bool longer;
    } runs[1024];
    struct { /* which tree of shapes is for a lexeme */
        sl_rx_id id;
        uint32_t which;
    } shapes[256];
    sl_rx_id plain; /* one plain character */
    struct sl_spans spans;
    struct sl_rivals rivals; /* of the state that a mask is made for */
};

SL_MUST_CHECK int sl_masks_init(struct sl_masks *m, struct sl_auto *a, const struct sl_vocab *vocab,
                                struct sl_error *err);
void sl_masks_deinit(struct sl_masks *m);
/* out: vocab->n_words words. Ending tokens are set where the text may end. */
SL_MUST_CHECK int sl_masks_fill(struct sl_masks *m, struct sl_auto *a, uint32_t state,
                                uint32_t *out, struct sl_error *err);

#endif
