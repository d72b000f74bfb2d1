/* SPDX-License-Identifier: MIT
 * regex.h - regular expressions as JSON Schema, vLLM and Lark write them, to byte languages.
 *
 * Syntax: ECMA-262 with the u flag, and what Python's re adds of it: (?:) (?P<name>) groups,
 * classes, \d \w \s \p{general category}, quantifiers (lazy ones alike: only the language counts),
 * ^ $ \A \Z, look-ahead. Not regular, or not supported, and refused by name: back-references,
 * look-behind, \b, flags but i. Characters are Unicode; d, w and i know ASCII only.
 */
#ifndef SL_GRAMMAR_REGEX_H
#define SL_GRAMMAR_REGEX_H

#include "grammar/cset.h"

enum sl_regex_flags {
    SL_REGEX_SEARCH = 1, /* a match anywhere suffices, as JSON Schema's pattern; else the whole */
    SL_REGEX_DOT_ALL = 2,
    SL_REGEX_ICASE = 4,
};

/* Errors say what is wrong and at which character. */
SL_MUST_CHECK int sl_regex_parse(struct sl_rx *rx, const char *pattern, size_t n, unsigned flags,
                                 enum sl_spelling spelling, sl_rx_id *out, struct sl_error *err);

#endif
