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
#include "grammar/cset.h"

enum sl_ebnf_syntax { SL_EBNF_ANY /* GBNF if it has ::=, else Lark */, SL_EBNF_GBNF, SL_EBNF_LARK };

struct sl_ebnf_options {
    enum sl_ebnf_syntax syntax;
    /* SL_SPELL_JSON: the text that the grammar describes is the content of a JSON string, and the
     * automaton reads it with its escapes. %json is refused there. */
    enum sl_spelling spelling;
    /* Texts to leave out, as they are spelled; SL_RX_NONE: none. Refused with %json, and with
     * recursive rules unless except_parts: texts that have such a text in front are left out too.
     */
    sl_rx_id except;
    bool except_parts;
    const char *except_name; /* what they are, for that message */
};

/* *start: the position where rule root (GBNF) or start (Lark) begins; behind it comes next. */
SL_MUST_CHECK int sl_ebnf_compile(struct sl_auto *a, const char *text, size_t n,
                                  const struct sl_ebnf_options *options, uint32_t next,
                                  uint32_t *start, struct sl_error *err);

#endif
