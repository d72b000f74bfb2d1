/* SPDX-License-Identifier: MIT
 * jump.h - jump-forward: the tokens of a text that a grammar leaves no choice about.
 *
 * Where only one text can come next, its tokens need not be chosen one by one. They are those that
 * the tokenizer makes of it behind the tokens before it; where it would have made other tokens of
 * those, which stay as the model chose them, those that it makes of the text by itself. The end of
 * the text is left out as far as a token may come that begins in it and goes on with what follows,
 * as there the tokenizer might make that one. The answer depends on the grammar, the place in it
 * and the last tokens, on nothing else.
 */
#ifndef SL_GRAMMAR_JUMP_H
#define SL_GRAMMAR_JUMP_H

#include "grammar/grammar.h"

#define SL_MAX_JUMP      64  /* tokens at once */
#define SL_JUMP_CONTEXT  4   /* tokens before them that are looked at */
#define SL_MAX_JUMP_TEXT 256 /* bytes */

struct sl_tokenizer;

struct sl_jump {
    const struct sl_tokenizer *tok;
    const struct sl_vocab *vocab;
    const uint32_t *mask; /* of the matcher's place */
    const int32_t *last;  /* [n_last] the tokens before it, at most SL_JUMP_CONTEXT are used */
    uint32_t n_last;
};

/* Up to cap <= SL_MAX_JUMP ids to out, which the matcher accepts in this order; *n 0: the model
 * chooses. The matcher stays where it is. */
SL_MUST_CHECK int sl_jump_find(struct sl_matcher *m, const struct sl_jump *j, int32_t *out,
                               uint32_t cap, uint32_t *n, struct sl_error *err);

#endif
