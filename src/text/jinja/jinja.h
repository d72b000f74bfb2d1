/* SPDX-License-Identifier: MIT
 * jinja.h - what the files of the Jinja interpreter share; only template.c offers it to others.
 *
 * A template is parsed once into a tree of nodes in an arena (jinja_lex.c, jinja_parse.c,
 * jinja_expr.c) and walked for each rendering (jinja_exec.c, jinja_eval.c). A rendering owns one
 * arena: every value lives there until it ends, nothing is freed in between, so values are plain
 * structs that are copied freely. Lists, strings and dicts never change once a template can see
 * them (the sandbox forbids it); only namespaces do.
 *
 * Errors: int results are 0 or a negative code that is already described in the rendering's
 * sl_error with the template's line. Fuel is burnt in proportion to the work done, about one unit
 * for 5 ns, so that a whole tank is some 50 ms.
 */
#ifndef SL_TEXT_JINJA_H
#define SL_TEXT_JINJA_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"
#include "text/jinja/template.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---------------------------------------------------------------- values */

enum sl_jtype {
    SL_J_MISSING, /* no value at all: an argument not given, a name not bound; zero on purpose */
    SL_J_UNDEFINED,
    SL_J_NONE,
    SL_J_BOOL,
    SL_J_INT,
    SL_J_FLOAT,
    SL_J_STR,
    SL_J_LIST,
    SL_J_TUPLE,
    SL_J_DICT,
    SL_J_VIEW, /* dict.keys(), .values(), .items() */
    SL_J_RANGE,
    SL_J_ITER, /* what Python gives as a generator: one pass, no length, no index */
    SL_J_NAMESPACE,
    SL_J_MACRO,
    SL_J_FUNC,   /* a global function */
    SL_J_METHOD, /* a method bound to its object */
    SL_J_LOOP,
    SL_J_CYCLER,
    SL_J_JOINER,
};

enum sl_jundef { SL_JU_NAME, SL_JU_ATTR, SL_JU_HINT };
enum sl_jview { SL_JVIEW_KEYS, SL_JVIEW_VALUES, SL_JVIEW_ITEMS };

struct sl_jstr { /* UTF-8; n_chars is SIZE_MAX until somebody counts */
    const char *data;
    size_t n_bytes, n_chars;
    struct sl_jstr_room *room; /* spare bytes behind the text, for cheap appending; may be NULL */
};

struct sl_jval {
    uint8_t type;   /* enum sl_jtype */
    uint8_t markup; /* of a string: came from |safe or |escape */
    uint16_t kind;  /* enum sl_jundef, enum sl_jview, function number, or the type an undefined
                       attribute was looked up in */
    uint32_t extra;
    union {
        bool b;
        int64_t i;
        double f;
        struct sl_jstr *s;
        struct sl_jlist *list; /* list and tuple */
        struct sl_jdict *dict; /* dict, view and namespace */
        struct sl_jrange *range;
        struct sl_jiter *iter;
        struct sl_jmacro *macro;
        struct sl_jmethod *method;
        struct sl_jloop *loop;
        struct sl_jcycler *cycler;
        struct sl_jjoiner *joiner;
    } u;
};

struct sl_jlist {
    struct sl_jval *items;
    size_t n;
    struct sl_jlist_room *room;
    bool is_group; /* a tuple made by groupby: has .grouper and .list */
};

struct sl_jentry {
    struct sl_jval key, value;
    uint64_t hash;
};

struct sl_jdict { /* keeps insertion order; index is NULL while few entries make it needless */
    struct sl_jentry *entries;
    size_t n, cap;
    uint32_t *index; /* entry number + 1, 0 = free */
    size_t index_cap;
};

struct sl_jrange {
    int64_t start, stop, step;
    size_t n;
};

struct sl_jiter {
    struct sl_jlist *list;
    size_t pos;
    const char *name;
};

struct sl_jmethod {
    struct sl_jval self;
    unsigned id; /* enum sl_jmethod_id */
};

struct sl_jcycler {
    struct sl_jlist *items;
    size_t pos;
};

struct sl_jjoiner {
    struct sl_jval sep;
    bool used;
};

struct sl_jframe { /* one scope; the root's bindings are vm->globals instead */
    struct sl_jframe *parent;
    struct sl_jbinding *bindings;
    uint32_t n, cap;
    bool captured; /* a macro refers to it: it may not be reused for the next iteration */
};

struct sl_jbinding {
    uint32_t sym;
    struct sl_jval value;
};

struct sl_jmacro {
    const struct sl_jnode *node;
    struct sl_jframe *frame; /* where it was defined */
};

struct sl_jseq { /* a walk over anything iterable; n is exact */
    uint8_t type;
    uint16_t kind;
    size_t pos, n, byte; /* byte: of a string */
    union {
        const struct sl_jlist *list;
        const struct sl_jdict *dict;
        const struct sl_jstr *str;
        const struct sl_jrange *range;
        struct sl_jiter *iter;
    } u;
};

struct sl_jloop {
    const struct sl_jnode *node;
    struct sl_jframe *outer;
    size_t index0, n, depth0;
    struct sl_jval prev, next; /* MISSING at the ends */
    struct sl_jval changed;    /* arguments of the last loop.changed() */
};

struct sl_jarg {
    const struct sl_jstr *name;
    struct sl_jval value;
};

struct sl_jargs { /* the arguments of one call, evaluated */
    struct sl_jval *pos;
    size_t n_pos;
    struct sl_jarg *kw;
    size_t n_kw;
};

/* ---------------------------------------------------------------- the tree */

enum sl_jkind {
    /* expressions */
    SL_JN_CONST,
    SL_JN_NAME,
    SL_JN_LIST,
    SL_JN_TUPLE,
    SL_JN_DICT, /* list: key, value, key, value */
    SL_JN_BINARY,
    SL_JN_AND,
    SL_JN_OR,
    SL_JN_NOT,
    SL_JN_NEG,
    SL_JN_POS,
    SL_JN_COMPARE, /* a, then list of operands whose .cmp says how */
    SL_JN_CONCAT,
    SL_JN_COND,
    SL_JN_ATTR,
    SL_JN_ITEM,
    SL_JN_SLICE, /* a[b:c:d] */
    SL_JN_CALL,
    SL_JN_FILTER,
    SL_JN_TEST,
    SL_JN_NSREF, /* target of set only */
    /* statements */
    SL_JN_TEXT,
    SL_JN_PRINT,
    SL_JN_IF,
    SL_JN_FOR,
    SL_JN_SET,
    SL_JN_SETBLOCK,
    SL_JN_MACRO,
    SL_JN_CALLBLOCK,
    SL_JN_FILTERBLOCK,
    SL_JN_WITH,
    SL_JN_SCOPE, /* block, generation, autoescape */
    SL_JN_BREAK,
    SL_JN_CONTINUE,
    SL_JN_DO,
};

enum sl_jop {
    SL_JOP_ADD,
    SL_JOP_SUB,
    SL_JOP_MUL,
    SL_JOP_DIV,
    SL_JOP_FLOORDIV,
    SL_JOP_MOD,
    SL_JOP_POW,
    SL_JOP_EQ,
    SL_JOP_NE,
    SL_JOP_LT,
    SL_JOP_LE,
    SL_JOP_GT,
    SL_JOP_GE,
    SL_JOP_IN,
    SL_JOP_NOTIN,
};

struct sl_jcallargs { /* as written */
    struct sl_jnode **pos;
    size_t n_pos;
    struct sl_jkwarg {
        const struct sl_jstr *name;
        struct sl_jnode *value;
    } * kw;
    size_t n_kw;
    struct sl_jnode *star, *star_star;
};

#define SL_JM_CALLER  1u /* what the body of a macro refers to */
#define SL_JM_VARARGS 2u
#define SL_JM_KWARGS  4u

struct sl_jnode {
    uint8_t kind; /* enum sl_jkind */
    uint8_t op;   /* enum sl_jop; 1 for a recursive loop; SL_JM_* of a macro */
    uint16_t id;  /* filter, test or method number */
    uint32_t line;
    uint32_t sym; /* of a name, macro or namespace */
    uint32_t n;   /* entries of list */
    struct sl_jnode *a, *b, *c, *d;
    struct sl_jnode **list;
    struct sl_jnode *next; /* the statement after this one */
    struct sl_jcallargs *args;
    struct sl_jval val; /* constant, text, attribute name, name of a filter or macro */
};

struct sl_template {
    struct sl_arena arena;
    const char *source; /* as it was given */
    size_t n_source;
    struct sl_jnode *body;
    const struct sl_jstr **names; /* symbol number -> name */
    size_t n_names;
    uint32_t sym_caller, sym_varargs, sym_kwargs, sym_loop;
};

/* ---------------------------------------------------------------- a rendering */

struct sl_jvm {
    const struct sl_template *t;
    struct sl_arena arena;
    struct sl_buf *out;
    size_t out_limit; /* out->n_bytes may not pass it */
    uint64_t fuel;
    size_t n_given;      /* bytes of the strings among its variables */
    size_t n_rows;       /* items of the longest list of objects among them: messages, tools */
    unsigned depth;      /* nested eval and exec calls */
    unsigned call_depth; /* nested macros, callers and recursive loops */
    uint32_t line;
    bool javascript;
    int64_t now_s;
    struct sl_error *err;
    int code;                /* the failure that ends this rendering */
    struct sl_jval *globals; /* by symbol */
    struct sl_jframe root;
    struct sl_jstr *ascii[128]; /* one-character strings made so far */
    struct sl_jstr empty;
};

#define SL_JINJA_MAX_DEPTH 1500 /* nested eval and exec calls, each below 500 bytes of stack */
#define SL_JINJA_MAX_NEST  400  /* values inside values, for repr, tojson, comparing, hashing */
#define SL_JINJA_MEMORY    (64u << 20)
#define SL_JINJA_MAX_RANGE 100000 /* as jinja2's sandbox */

/* jinja_vm.c: failing, fuel, memory, scopes, captured output */
int sl_jinja_fail(struct sl_jvm *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int sl_jinja_fail_fuel(struct sl_jvm *vm);
void *sl_jinja_alloc(struct sl_jvm *vm, size_t n_bytes); /* NULL: failed and said so */
void *sl_jinja_array(struct sl_jvm *vm, size_t n, size_t size);
int sl_jinja_put(struct sl_jvm *vm, const char *s, size_t n);
int sl_jinja_puts(struct sl_jvm *vm, const char *s);
/* Takes what was put since mark (out->n_bytes then) out of the output as a string. */
int sl_jinja_take(struct sl_jvm *vm, size_t mark, struct sl_jval *out);
struct sl_jframe *sl_jinja_frame(struct sl_jvm *vm, struct sl_jframe *parent);
int sl_jinja_bind(struct sl_jvm *vm, struct sl_jframe *f, uint32_t sym, struct sl_jval v);
struct sl_jval sl_jinja_lookup(const struct sl_jvm *vm, const struct sl_jframe *f, uint32_t sym);

static inline int sl_jinja_burn(struct sl_jvm *vm, uint64_t n)
{
    if (vm->fuel < n)
        return sl_jinja_fail_fuel(vm);
    vm->fuel -= n;
    return 0;
}

/* jinja_lex.c, jinja_parse.c, jinja_expr.c */
struct sl_jparser;
SL_MUST_CHECK int sl_jinja_parse(struct sl_template *t, const char *source, size_t n,
                                 struct sl_error *err);

/* jinja_exec.c: 0, SL_JINJA_BREAK or _CONTINUE, or a failure */
#define SL_JINJA_BREAK    1
#define SL_JINJA_CONTINUE 2
int sl_jinja_exec(struct sl_jvm *vm, const struct sl_jnode *body, struct sl_jframe *f);
int sl_jinja_call_macro(struct sl_jvm *vm, const struct sl_jmacro *m, const struct sl_jargs *args,
                        struct sl_jval *out);
int sl_jinja_call_loop(struct sl_jvm *vm, const struct sl_jloop *loop, struct sl_jval over,
                       struct sl_jval *out);

/* jinja_eval.c */
int sl_jinja_eval(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                  struct sl_jval *out);
int sl_jinja_eval_args(struct sl_jvm *vm, const struct sl_jcallargs *a, struct sl_jframe *f,
                       struct sl_jarg *caller, struct sl_jargs *out);
int sl_jinja_call(struct sl_jvm *vm, struct sl_jval fn, const struct sl_jargs *args,
                  struct sl_jval *out);

/* jinja_access.c: obj.name, obj[key], obj[a:b:c] as the sandbox resolves them */
int sl_jinja_getattr(struct sl_jvm *vm, struct sl_jval obj, unsigned method,
                     const struct sl_jstr *name, struct sl_jval *out);
int sl_jinja_getitem(struct sl_jvm *vm, struct sl_jval obj, struct sl_jval key,
                     struct sl_jval *out);
int sl_jinja_slice(struct sl_jvm *vm, struct sl_jval obj, struct sl_jval start, struct sl_jval stop,
                   struct sl_jval step, struct sl_jval *out);
bool sl_jinja_has_method(uint8_t type, unsigned method);

/* jinja_value.c */
struct sl_jval sl_jinja_none(void);
struct sl_jval sl_jinja_bool(bool b);
struct sl_jval sl_jinja_int(int64_t i);
struct sl_jval sl_jinja_float(double f);
struct sl_jval sl_jinja_hint(struct sl_jvm *vm, const char *text); /* an undefined */
const char *sl_jinja_type_name(struct sl_jval v);
int sl_jinja_str(struct sl_jvm *vm, const char *s, size_t n, struct sl_jval *out); /* copies */
int sl_jinja_strz(struct sl_jvm *vm, const char *s, struct sl_jval *out);
int sl_jinja_borrow(struct sl_jvm *vm, const char *s, size_t n, struct sl_jval *out);
int sl_jinja_char(struct sl_jvm *vm, const char *s, size_t n, struct sl_jval *out);
int sl_jinja_concat(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, struct sl_jval *out);
size_t sl_jinja_chars(const struct sl_jstr *s);
/* Byte offset of a character, which must be <= the number of characters. */
size_t sl_jinja_offset(const struct sl_jstr *s, size_t char_idx);
bool sl_jinja_str_is(const struct sl_jstr *s, const char *text);
struct sl_jlist *sl_jinja_list(struct sl_jvm *vm, size_t cap);
int sl_jinja_push(struct sl_jvm *vm, struct sl_jlist *l, struct sl_jval v);
struct sl_jval sl_jinja_list_val(struct sl_jlist *l);
struct sl_jval sl_jinja_tuple_val(struct sl_jlist *l);
int sl_jinja_pair(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, struct sl_jval *out);
int sl_jinja_extend(struct sl_jvm *vm, const struct sl_jlist *a, const struct sl_jlist *b,
                    struct sl_jlist **out);
int sl_jinja_generator(struct sl_jvm *vm, struct sl_jlist *l, const char *name,
                       struct sl_jval *out);
struct sl_jdict *sl_jinja_dict(struct sl_jvm *vm, size_t cap);
int sl_jinja_dict_set(struct sl_jvm *vm, struct sl_jdict *d, struct sl_jval k, struct sl_jval v);
/* *out is MISSING when there is no such key; an unhashable key fails only if strict */
int sl_jinja_dict_get(struct sl_jvm *vm, const struct sl_jdict *d, struct sl_jval key, bool strict,
                      struct sl_jval *out);
struct sl_jval sl_jinja_dict_str(const struct sl_jdict *d, const struct sl_jstr *key);

/* jinja_compare.c */
bool sl_jinja_truth(struct sl_jval v);
int sl_jinja_equal(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, bool *out);
int sl_jinja_less(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, const char *op, int *cmp);
int sl_jinja_compare(struct sl_jvm *vm, enum sl_jop op, struct sl_jval a, struct sl_jval b,
                     bool *out);
int sl_jinja_contains(struct sl_jvm *vm, struct sl_jval seq, struct sl_jval item, bool *out);
int sl_jinja_hash(struct sl_jvm *vm, struct sl_jval v, uint64_t *out, bool *hashable);
/* Stable; key is parallel to items and sorted along. */
int sl_jinja_sort(struct sl_jvm *vm, struct sl_jval *keys, struct sl_jval *items, size_t n,
                  bool reverse);

/* jinja_iter.c */
bool sl_jinja_iterable(struct sl_jval v);
int sl_jinja_iter(struct sl_jvm *vm, struct sl_jval v, struct sl_jseq *seq);
/* false: at the end, or failed (vm->code) */
bool sl_jinja_next(struct sl_jvm *vm, struct sl_jseq *seq, struct sl_jval *out);
int sl_jinja_length(struct sl_jvm *vm, struct sl_jval v, size_t *n);
int sl_jinja_to_list(struct sl_jvm *vm, struct sl_jval v, struct sl_jlist **out);

/* jinja_ops.c */
int sl_jinja_binary(struct sl_jvm *vm, enum sl_jop op, struct sl_jval a, struct sl_jval b,
                    struct sl_jval *out);
int sl_jinja_unary(struct sl_jvm *vm, bool negate, struct sl_jval a, struct sl_jval *out);
bool sl_jinja_is_number(struct sl_jval v); /* bool, int or float */
double sl_jinja_as_double(struct sl_jval v);

/* jinja_print.c: str(), repr(), json.dumps */
int sl_jinja_print(struct sl_jvm *vm, struct sl_jval v);
int sl_jinja_repr(struct sl_jvm *vm, struct sl_jval v);
int sl_jinja_to_str(struct sl_jvm *vm, struct sl_jval v, struct sl_jval *out);
size_t sl_jinja_float_repr(double x, char out[40]);
struct sl_jinja_json {
    bool ascii, sort_keys, pretty;
    const struct sl_jstr *indent, *item_sep, *key_sep;
};
int sl_jinja_json(struct sl_jvm *vm, struct sl_jval v, const struct sl_jinja_json *how);

/* jinja_args.c */
/* names: comma-separated parameters. Fills out[] (MISSING where not given), checks the rest. */
int sl_jinja_params(struct sl_jvm *vm, const char *what, const struct sl_jargs *args,
                    const char *names, size_t n_required, struct sl_jval *out);
int sl_jinja_want_int(struct sl_jvm *vm, const char *what, struct sl_jval v, int64_t *out);
int sl_jinja_want_str(struct sl_jvm *vm, const char *what, struct sl_jval v,
                      const struct sl_jstr **out);

/* jinja_methods.c */
enum sl_jmethod_id {
    SL_JMETHOD_NONE,
#define SL_X(name) SL_JMETHOD_##name,
#include "text/jinja/jinja_methods.def"
#undef SL_X
    SL_JMETHOD_COUNT,
};
unsigned sl_jinja_method_find(const char *name, size_t n);
const char *sl_jinja_method_name(unsigned id);
int sl_jinja_call_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                         const struct sl_jargs *args, struct sl_jval *out);
/* jinja_strings.c: the methods of str, shared with filters */
int sl_jinja_str_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                        const struct sl_jargs *args, struct sl_jval *out);
int sl_jinja_strip(struct sl_jvm *vm, struct sl_jval s, const struct sl_jstr *chars, bool left,
                   bool right, struct sl_jval *out);
int sl_jinja_replace(struct sl_jvm *vm, const struct sl_jstr *s, const struct sl_jstr *old,
                     const struct sl_jstr *new_, int64_t max, struct sl_jval *out);
int sl_jinja_splitlines(struct sl_jvm *vm, const struct sl_jstr *s, bool keep,
                        struct sl_jlist **out);
enum sl_jcase {
    SL_JCASE_UPPER,
    SL_JCASE_LOWER,
    SL_JCASE_CAPITALIZE,
    SL_JCASE_TITLE,
    SL_JCASE_SWAP,
    SL_JCASE_FOLD
};
int sl_jinja_recase(struct sl_jvm *vm, const struct sl_jstr *s, enum sl_jcase how,
                    struct sl_jval *out);
bool sl_jinja_is_cased(const struct sl_jstr *s, bool upper); /* islower, isupper */
const char *sl_jinja_find(const char *hay, size_t n, const char *needle, size_t m);

/* jinja_format.c: "%s" % x and "{}".format(x) */
int sl_jinja_percent(struct sl_jvm *vm, const struct sl_jstr *fmt, struct sl_jval arg,
                     struct sl_jval *out);
int sl_jinja_format(struct sl_jvm *vm, const struct sl_jstr *fmt, const struct sl_jargs *args,
                    struct sl_jval *out);

/* jinja_filters.c and jinja_filters_seq.c; 0 = no such filter */
unsigned sl_jinja_filter_find(const char *name, size_t n);
int sl_jinja_filter(struct sl_jvm *vm, unsigned id, const char *name, struct sl_jval v,
                    const struct sl_jargs *args, struct sl_jval *out);
typedef int sl_jfilter_fn(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                          struct sl_jval *out);
#define SL_X(name) sl_jfilter_fn sl_jinja_f_##name;
#include "text/jinja/jinja_filters.def"
#undef SL_X
int sl_jinja_escape(struct sl_jvm *vm, struct sl_jval v, bool force, struct sl_jval *out);

/* jinja_tests.c; 0 = no such test */
unsigned sl_jinja_test_find(const char *name, size_t n);
int sl_jinja_test(struct sl_jvm *vm, unsigned id, struct sl_jval v, const struct sl_jargs *args,
                  bool *out);

/* jinja_globals.c; 0 = no such function */
unsigned sl_jinja_global_find(const char *name, size_t n);
int sl_jinja_call_global(struct sl_jvm *vm, unsigned id, const struct sl_jargs *args,
                         struct sl_jval *out);

/* jinja_unicode.c: properties as Python 3.11's str has them */
bool sl_jinja_is_space(uint32_t cp);
bool sl_jinja_is_printable(uint32_t cp);
bool sl_jinja_is_alpha(uint32_t cp);
bool sl_jinja_is_digit(uint32_t cp);   /* str.isdigit */
bool sl_jinja_is_numeric(uint32_t cp); /* str.isnumeric */
bool sl_jinja_is_decimal(uint32_t cp);
bool sl_jinja_is_upper(uint32_t cp);
bool sl_jinja_is_lower(uint32_t cp);
uint32_t sl_jinja_lower(uint32_t cp);
/* up to three characters; returns how many */
size_t sl_jinja_upper(uint32_t cp, uint32_t out[3]);
size_t sl_jinja_titlecase(uint32_t cp, uint32_t out[3]);

#endif
