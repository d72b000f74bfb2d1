/* SPDX-License-Identifier: MIT
 * cset.h - sets of Unicode characters, and their spelling in bytes: as UTF-8, or as the one
 * spelling that the engine lets a constrained JSON string have.
 *
 * That spelling is what serialisers write: the character itself where JSON allows it, else the
 * two-character escape, or \u00XX for other control characters. With one spelling per character
 * (but for \u00XX, in which a control character may be written too) a property's name or an
 * enumerated value cannot be written so that it escapes its constraint.
 */
#ifndef SL_GRAMMAR_CSET_H
#define SL_GRAMMAR_CSET_H

#include "grammar/rx.h"

struct sl_cset { /* zero-initialise; sorted, disjoint, not adjacent after sl_cset_done */
    uint32_t (*r)[2];
    uint32_t n, cap;
    bool failed;
};

enum sl_spelling {
    SL_SPELL_UTF8,
    SL_SPELL_JSON,
    SL_SPELL_KEY, /* as JSON, with exactly one spelling for control characters too */
};

void sl_cset_deinit(struct sl_cset *s);
void sl_cset_add(struct sl_cset *s, uint32_t lo, uint32_t hi);
void sl_cset_add_all(struct sl_cset *s, const struct sl_cset *from, bool negated);
/* \d \w \s of ECMA-262; '.' is any character but line ends. Capital letters negate. */
void sl_cset_add_class(struct sl_cset *s, char name);
/* "Lu", "L", "Letter", "gc=Nd", "Any", "ASCII": false when it is not one of these. */
bool sl_cset_add_property(struct sl_cset *s, const char *name, size_t n, bool negated);
void sl_cset_done(struct sl_cset *s);
void sl_cset_negate(struct sl_cset *s);
void sl_cset_fold_ascii(struct sl_cset *s); /* letters of ASCII in both cases */

sl_rx_id sl_cset_rx(struct sl_rx *rx, struct sl_cset *s, enum sl_spelling spelling);
sl_rx_id sl_cset_any(struct sl_rx *rx, enum sl_spelling spelling); /* any one character */
/* Text as it is spelled in JSON by the rule above; UTF-8 as it is. Text is valid UTF-8. */
sl_rx_id sl_cset_text(struct sl_rx *rx, const char *text, size_t n, enum sl_spelling spelling);

#endif
