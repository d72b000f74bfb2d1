/* SPDX-License-Identifier: MIT
 * ebnf_impl.h - what parser and compiler of context-free grammars share.
 */
#ifndef SL_GRAMMAR_EBNF_IMPL_H
#define SL_GRAMMAR_EBNF_IMPL_H

#include "grammar/ebnf.h"

enum sl_ebnf_op { EBNF_RX, EBNF_REF, EBNF_CAT, EBNF_ALT, EBNF_REP, EBNF_JSON };

struct sl_ebnf_expr {
    enum sl_ebnf_op op;
    sl_rx_id rx;                      /* RX */
    uint32_t rule;                    /* REF */
    uint32_t goal;                    /* JSON */
    int32_t lo, hi;                   /* REP */
    struct sl_ebnf_expr *kids, *next; /* last first */
};

struct sl_ebnf_rule {
    const char *name;
    size_t n;
    struct sl_ebnf_expr *body;    /* NULL: named, not defined (yet) */
    bool terminal;                /* Lark: upper case, nothing is ignored inside */
    bool regular, nullable, ends; /* ends: some text satisfies it */
    sl_rx_id rx;
    uint32_t start; /* position, where not regular */
    uint32_t line;
};

struct sl_ebnf {
    struct sl_auto *a;
    struct sl_arena arena;
    struct sl_ebnf_rule *rules;
    uint32_t n_rules, cap_rules, *table, cap_table;
    sl_rx_id ignore; /* Lark's %ignore, SL_RX_NONE: none */
    bool lark;
    const struct sl_ebnf_options *options;
    const char *s;
    size_t size, at;
    uint32_t line;
    int depth, rc;
    struct sl_error *err;
};

void sl_ebnf_fail(struct sl_ebnf *g, int code, const char *what, const char *name, size_t n);
SL_MUST_CHECK int sl_ebnf_parse(struct sl_ebnf *g);
uint32_t sl_ebnf_rule(struct sl_ebnf *g, const char *name, size_t n);

/* ebnf_common.c: a terminal of Lark's module "common", as a regular expression; NULL: there is no
 * such terminal. */
const char *sl_ebnf_common(const char *name, size_t n);

#endif
