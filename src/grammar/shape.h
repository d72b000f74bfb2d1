/* SPDX-License-Identifier: MIT
 * shape.h - the plain tokens of a vocabulary by what a lexeme can tell apart.
 *
 * Most expressions treat all lower case letters alike, all digits, and all plain characters beyond
 * ASCII. To such an expression tokens are the same that have the same kinds of characters in the
 * same order: they have one shape, and a mask holds all tokens of a shape or none. Of 122,000 plain
 * tokens with 263,000 nodes there remain 11,000 nodes. A tree of shapes is a tree of bytes with one
 * character of each kind in place of the kind, so it is walked in the same way.
 *
 * Which expressions are such is seen from their parts: no set of bytes has a part of a kind, and
 * what is beyond ASCII comes from whole sets of characters (uniform in rx.h).
 */
#ifndef SL_GRAMMAR_SHAPE_H
#define SL_GRAMMAR_SHAPE_H

#include "grammar/rx.h"
#include "grammar/vocab.h"

/* Makes v->shapes from v->plain, from coarse to fine. */
SL_MUST_CHECK int sl_shapes_make(struct sl_vocab *v);
/* The first of v->shapes whose kinds neither the expression nor a derivative of it can tell apart;
 * SL_VOCAB_SHAPES: none. */
uint32_t sl_shapes_for(const struct sl_rx *rx, sl_rx_id id);

#endif
