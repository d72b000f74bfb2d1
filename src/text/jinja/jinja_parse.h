/* SPDX-License-Identifier: MIT
 * jinja_parse.h - what lexer and parser of templates share. One sl_jparser lives on the stack of
 * sl_jinja_parse; the tree goes into the template's arena. The first error is kept in code.
 */
#ifndef SL_TEXT_JINJA_PARSE_H
#define SL_TEXT_JINJA_PARSE_H

#include "text/jinja/jinja.h"

enum sl_jtok {
    SL_JT_EOF,
    SL_JT_DATA,
    SL_JT_VAR_BEGIN,
    SL_JT_VAR_END,
    SL_JT_BLOCK_BEGIN,
    SL_JT_BLOCK_END,
    SL_JT_NAME,
    SL_JT_STRING,
    SL_JT_INT,
    SL_JT_FLOAT,
    SL_JT_OP, /* op holds the operator's characters */
};

#define SL_JOP2(a, b) ((unsigned)(a) | (unsigned)(b) << 8)

struct sl_jtoken {
    enum sl_jtok type;
    unsigned op; /* one character, or SL_JOP2 of two */
    uint32_t line;
    const char *s; /* a name, text, or the decoded string */
    size_t n;
    int64_t i;
    double f;
};

struct sl_jsym { /* name -> number while parsing */
    const struct sl_jstr *name;
    uint64_t hash;
    uint32_t number;
};

struct sl_jmacro_scope { /* the macros around what is being parsed */
    struct sl_jmacro_scope *up;
    uint8_t uses; /* SL_JM_* */
};

struct sl_jparser {
    struct sl_template *t;
    struct sl_error *err;
    int code;
    /* lexer */
    const char *src;
    size_t n, pos;
    uint32_t line;
    enum { SL_JLEX_DATA, SL_JLEX_VAR, SL_JLEX_BLOCK } mode;
    bool line_start;                     /* the last match ended with a newline */
    bool after_data;                     /* text was given out, the tag at pos comes next */
    char closers[SL_TEMPLATE_DEPTH + 1]; /* brackets to close */
    unsigned n_closers;
    struct sl_jtoken cur, ahead;
    bool has_ahead;
    /* parser */
    unsigned depth;
    unsigned loops;     /* loops around, inside the innermost macro */
    unsigned fors;      /* loops around, whatever is between */
    bool soft;          /* unknown filters are an error only when reached */
    unsigned n_unknown; /* unknown filters and tests of this statement outside conditions */
    const struct sl_jstr *unknown;
    struct sl_jnode *blocks; /* seen so far, the last first */
    struct sl_jmacro_scope *macro;
    struct sl_jsym *syms; /* hash table of n_syms names */
    size_t syms_cap, n_syms;
};

/* jinja_lex.c */
void sl_jlex_init(struct sl_jparser *p, const char *source, size_t n);
void sl_jlex_next(struct sl_jparser *p);                    /* moves cur on */
const struct sl_jtoken *sl_jlex_peek(struct sl_jparser *p); /* the one after cur */

/* jinja_parse.c */
int sl_jparse_fail(struct sl_jparser *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void *sl_jparse_alloc(struct sl_jparser *p, size_t n, size_t size);
struct sl_jnode *sl_jparse_node(struct sl_jparser *p, enum sl_jkind kind);
const struct sl_jstr *sl_jparse_str(struct sl_jparser *p, const char *s, size_t n);
uint32_t sl_jparse_sym(struct sl_jparser *p, const char *s, size_t n);
bool sl_jparse_is_op(const struct sl_jparser *p, unsigned op);
bool sl_jparse_is_name(const struct sl_jparser *p, const char *name);
bool sl_jparse_skip_op(struct sl_jparser *p, unsigned op);
bool sl_jparse_skip_name(struct sl_jparser *p, const char *name);
void sl_jparse_want_op(struct sl_jparser *p, unsigned op);
bool sl_jparse_enter(struct sl_jparser *p); /* one level deeper; false: too deep */
void sl_jparse_leave(struct sl_jparser *p);

/* jinja_expr.c: NULL after an error */
struct sl_jlist_of_nodes { /* grows while an argument list is read */
    struct sl_jnode **items;
    size_t n, cap;
};
bool sl_jparse_push(struct sl_jparser *p, struct sl_jlist_of_nodes *l, struct sl_jnode *e);
struct sl_jnode *sl_jparse_expr(struct sl_jparser *p, bool with_cond);
struct sl_jnode *sl_jparse_tuple(struct sl_jparser *p, bool with_cond, bool in_parens,
                                 const char *end_name);
struct sl_jnode *sl_jparse_target(struct sl_jparser *p, bool with_ns, const char *end_name);
struct sl_jnode *sl_jparse_filters(struct sl_jparser *p, struct sl_jnode *e, bool start_inline);

#endif
