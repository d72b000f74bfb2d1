/* SPDX-License-Identifier: MIT
 * think.h - reasoning before an answer: a constraint waits until it has ended, and a budget
 * ends it by tokens that are forced.
 *
 * Both are masks, so they hold for every runner, and what is forced depends on the sequence's own
 * tokens only. The state belongs to a sequence and to the thread that has its mask (masker.h). A
 * token that contains the end of the marker and more text after it counts as its end.
 */
#ifndef SL_ENGINE_THINK_H
#define SL_ENGINE_THINK_H

#include "engine/stop.h"
#include "text/tokenizer/tokenizer.h"

#define SL_MAX_THINK_CLOSE  64 /* bytes of the marker */
#define SL_MAX_THINK_FORCED 32 /* tokens */

struct sl_think { /* of a request, constant */
    bool on, inside;
    int32_t budget, open_id, n_forced;
    int32_t forced[SL_MAX_THINK_FORCED];
    char close[SL_MAX_THINK_CLOSE + 1];
    uint16_t fail[SL_MAX_THINK_CLOSE + 1];
    struct sl_stops stops; /* the marker */
};

enum sl_think_state {
    SL_THINK_MAYBE,  /* no token yet: the first may be the marker that opens it */
    SL_THINK_INSIDE, /* its own tokens */
    SL_THINK_FORCED, /* its end is being forced */
    SL_THINK_ENDED,  /* with this token: the answer begins with the next */
    SL_THINK_OVER,
};

struct sl_think_seq {
    enum sl_think_state state;
    int32_t n; /* tokens of the state */
    struct sl_detok detok;
    struct sl_stop_state stop;
    char *text; /* room for one token's */
};

struct sl_thinking;

SL_MUST_CHECK int sl_think_check(const struct sl_thinking *t, int32_t n_logits,
                                 struct sl_error *err);
void sl_think_init(struct sl_think *t, const struct sl_thinking *from); /* NULL: none */
void sl_think_begin(const struct sl_think *t, struct sl_think_seq *s,
                    const struct sl_tokenizer *tok);
/* The next token. It belongs to the answer if the state is then over. */
void sl_think_take(const struct sl_think *t, struct sl_think_seq *s, int32_t token);
/* True: `mask` says what may come next. False: the answer's own rules do. */
bool sl_think_mask(const struct sl_think *t, struct sl_think_seq *s, uint32_t *mask,
                   int32_t n_logits);

#endif
