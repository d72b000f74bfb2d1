/* SPDX-License-Identifier: MIT
 * ebnf.h - context-free grammars in the notations of llama.cpp (GBNF) and Lark.
 *
 * A rule that does not lead back to itself becomes a regular expression; only recursive rules use
 * the stack. A grammar describes a set of texts, without a lexer's longest match: in Lark's
 * notation too a terminal may end wherever its expression accepts. Direct left recursion becomes a
 * loop, left recursion through other rules is refused with the rule's name.
 */
#ifndef SL_GRAMMAR_EBNF_H
#define SL_GRAMMAR_EBNF_H

#include "grammar/auto.h"

/* *start: the position where rule root (GBNF) or start (Lark) begins. */
SL_MUST_CHECK int sl_ebnf_compile(struct sl_auto *a, const char *text, size_t n, uint32_t *start,
                                  struct sl_error *err);

#endif
