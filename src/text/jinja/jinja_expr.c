/* SPDX-License-Identifier: MIT
 *
 * The expression half of the parser, by recursive descent with jinja2's precedence: or, and, not,
 * comparison, + -, ~, * / // %, **, unary, postfix and filters. After an error the current token is
 * the end of the source, so every loop ends by itself and NULL comes up.
 */
#include "base/check.h"
#include "text/jinja/jinja_parse.h"

#include <string.h>

static struct sl_jnode *parse_or(struct sl_jparser *p);
static struct sl_jnode *parse_unary(struct sl_jparser *p, bool with_filter);

bool sl_jparse_push(struct sl_jparser *p, struct sl_jlist_of_nodes *l, struct sl_jnode *e)
{
    SL_ASSERT(l->n <= l->cap);
    if (e == NULL || p->code != 0)
        return false;
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 4 : l->cap * 2;
        struct sl_jnode **grown = sl_jparse_alloc(p, cap, sizeof *grown);
        if (grown == NULL)
            return false;
        if (l->n > 0)
            memcpy(grown, l->items, l->n * sizeof *grown);
        l->items = grown;
        l->cap = cap;
    }
    SL_ASSERT(l->n < l->cap);
    l->items[l->n++] = e;
    return true;
}

static struct sl_jnode *list_node(struct sl_jparser *p, enum sl_jkind kind,
                                  const struct sl_jlist_of_nodes *l)
{
    SL_ASSERT(l->n <= UINT32_MAX && (l->n == 0 || l->items != NULL));
    struct sl_jnode *e = sl_jparse_node(p, kind);
    if (e == NULL)
        return NULL;
    e->list = l->items;
    e->n = (uint32_t)l->n;
    return e;
}

static struct sl_jnode *two(struct sl_jparser *p, enum sl_jkind kind, uint8_t op, uint32_t line,
                            struct sl_jnode *a, struct sl_jnode *b)
{
    SL_ASSERT(a != NULL);
    struct sl_jnode *e = sl_jparse_node(p, kind);
    if (e == NULL || b == NULL)
        return NULL;
    e->line = line;
    e->op = op;
    e->a = a;
    e->b = b;
    return e;
}

static struct sl_jnode *jinja_expr_constant(struct sl_jparser *p, struct sl_jval v)
{
    struct sl_jnode *e = sl_jparse_node(p, SL_JN_CONST);
    if (e != NULL)
        e->val = v;
    return e;
}

static struct sl_jval str_value(const struct sl_jstr *s)
{
    return (struct sl_jval){.type = SL_J_STR, .u.s = (struct sl_jstr *)(uintptr_t)s};
}

/* ---------------------------------------------------------------- primaries */

static struct sl_jnode *parse_strings(struct sl_jparser *p)
{
    const struct sl_jtoken *tok = &p->cur;
    SL_ASSERT(tok->type == SL_JT_STRING);
    const char *s = tok->s;
    size_t n = tok->n;
    sl_jlex_next(p);
    while (p->cur.type == SL_JT_STRING) { /* adjacent literals are one */
        char *joined = sl_jparse_alloc(p, n + p->cur.n + 1, 1);
        if (joined == NULL)
            return NULL;
        memcpy(joined, s, n);
        memcpy(joined + n, p->cur.s, p->cur.n);
        s = joined;
        n += p->cur.n;
        sl_jlex_next(p);
    }
    const struct sl_jstr *str = sl_jparse_str(p, s, n);
    return str != NULL ? jinja_expr_constant(p, str_value(str)) : NULL;
}

static void note_macro_use(struct sl_jparser *p, const struct sl_jtoken *tok)
{
    uint8_t use = 0;
    SL_ASSERT(tok->type == SL_JT_NAME);
    if (tok->n == 6 && memcmp(tok->s, "caller", 6) == 0)
        use = SL_JM_CALLER;
    else if (tok->n == 7 && memcmp(tok->s, "varargs", 7) == 0)
        use = SL_JM_VARARGS;
    else if (tok->n == 6 && memcmp(tok->s, "kwargs", 6) == 0)
        use = SL_JM_KWARGS;
    if (use != 0)
        for (struct sl_jmacro_scope *m = p->macro; m != NULL; m = m->up)
            m->uses |= use;
}

static struct sl_jnode *parse_name(struct sl_jparser *p, bool with_ns)
{
    static const struct {
        const char *name;
        uint8_t type;
        bool b;
    } words[] = {{"true", SL_J_BOOL, true},   {"True", SL_J_BOOL, true},
                 {"false", SL_J_BOOL, false}, {"False", SL_J_BOOL, false},
                 {"none", SL_J_NONE, false},  {"None", SL_J_NONE, false}};
    struct sl_jtoken tok = p->cur;
    SL_ASSERT(tok.type == SL_JT_NAME && tok.n > 0);
    for (size_t i = 0; i < SL_COUNT(words); i++)
        if (sl_jparse_is_name(p, words[i].name)) {
            sl_jlex_next(p);
            struct sl_jval v = {.type = words[i].type};
            if (v.type == SL_J_BOOL)
                v.u.b = words[i].b;
            return jinja_expr_constant(p, v);
        }
    sl_jlex_next(p);
    struct sl_jnode *e = sl_jparse_node(p, SL_JN_NAME);
    if (e == NULL)
        return NULL;
    e->line = tok.line;
    e->sym = sl_jparse_sym(p, tok.s, tok.n);
    SL_ASSERT(p->code != 0 || e->sym < p->n_syms);
    if (with_ns && sl_jparse_is_op(p, '.')) {
        sl_jlex_next(p);
        if (p->cur.type != SL_JT_NAME) {
            sl_jparse_fail(p, "expected a name after '.'");
            return NULL;
        }
        e->kind = SL_JN_NSREF;
        e->val = str_value(sl_jparse_str(p, p->cur.s, p->cur.n));
        sl_jlex_next(p);
        return p->code == 0 ? e : NULL;
    }
    note_macro_use(p, &tok);
    return p->code == 0 ? e : NULL;
}

static struct sl_jnode *parse_list(struct sl_jparser *p)
{
    SL_ASSERT(sl_jparse_is_op(p, '['));
    struct sl_jlist_of_nodes l = {0};
    sl_jlex_next(p);
    while (p->code == 0 && !sl_jparse_is_op(p, ']')) {
        if (l.n > 0)
            sl_jparse_want_op(p, ',');
        if (sl_jparse_is_op(p, ']'))
            break;
        if (!sl_jparse_push(p, &l, sl_jparse_expr(p, true)))
            return NULL;
    }
    sl_jparse_want_op(p, ']');
    return list_node(p, SL_JN_LIST, &l);
}

static struct sl_jnode *parse_dict(struct sl_jparser *p)
{
    SL_ASSERT(sl_jparse_is_op(p, '{'));
    struct sl_jlist_of_nodes l = {0};
    sl_jlex_next(p);
    while (p->code == 0 && !sl_jparse_is_op(p, '}')) {
        if (l.n > 0)
            sl_jparse_want_op(p, ',');
        if (sl_jparse_is_op(p, '}'))
            break;
        if (!sl_jparse_push(p, &l, sl_jparse_expr(p, true)))
            return NULL;
        sl_jparse_want_op(p, ':');
        if (!sl_jparse_push(p, &l, sl_jparse_expr(p, true)))
            return NULL;
    }
    sl_jparse_want_op(p, '}');
    SL_ASSERT(p->code != 0 || l.n % 2 == 0); /* a value for every key */
    return list_node(p, SL_JN_DICT, &l);
}

static struct sl_jnode *parse_primary(struct sl_jparser *p, bool with_ns)
{
    struct sl_jnode *e;
    switch (p->cur.type) {
    case SL_JT_NAME:
        return parse_name(p, with_ns);
    case SL_JT_STRING:
        return parse_strings(p);
    case SL_JT_INT:
        e = jinja_expr_constant(p, (struct sl_jval){.type = SL_J_INT, .u.i = p->cur.i});
        sl_jlex_next(p);
        return e;
    case SL_JT_FLOAT:
        e = jinja_expr_constant(p, (struct sl_jval){.type = SL_J_FLOAT, .u.f = p->cur.f});
        sl_jlex_next(p);
        return e;
    default:
        break;
    }
    if (sl_jparse_is_op(p, '(')) {
        sl_jlex_next(p);
        e = sl_jparse_tuple(p, true, true, NULL);
        sl_jparse_want_op(p, ')');
        return e;
    }
    if (sl_jparse_is_op(p, '['))
        return parse_list(p);
    if (sl_jparse_is_op(p, '{'))
        return parse_dict(p);
    SL_ASSERT(p->cur.type == SL_JT_OP || p->cur.type < SL_JT_NAME);
    sl_jparse_fail(p, "expected an expression");
    return NULL;
}

/* ---------------------------------------------------------------- calls, subscripts, filters */

static bool parse_keyword(struct sl_jparser *p, struct sl_jcallargs *args, size_t *cap)
{
    SL_ASSERT(p->cur.type == SL_JT_NAME && args->n_kw <= *cap);
    if (args->n_kw == *cap) {
        *cap = *cap == 0 ? 4 : *cap * 2;
        struct sl_jkwarg *grown = sl_jparse_alloc(p, *cap, sizeof *grown);
        if (grown == NULL)
            return false;
        if (args->n_kw > 0)
            memcpy(grown, args->kw, args->n_kw * sizeof *grown);
        args->kw = grown;
    }
    SL_ASSERT(args->n_kw < *cap);
    struct sl_jkwarg *kw = &args->kw[args->n_kw++];
    kw->name = sl_jparse_str(p, p->cur.s, p->cur.n);
    for (size_t i = 0; kw->name != NULL && i + 1 < args->n_kw; i++)
        if (args->kw[i].name->n_bytes == kw->name->n_bytes &&
            memcmp(args->kw[i].name->data, kw->name->data, kw->name->n_bytes) == 0)
            sl_jparse_fail(p, "keyword argument repeated");
    sl_jlex_next(p);
    sl_jlex_next(p);
    kw->value = sl_jparse_expr(p, true);
    return kw->value != NULL;
}

static bool bad_call(struct sl_jparser *p, bool bad)
{
    if (bad)
        sl_jparse_fail(p, "invalid syntax for function call expression");
    return bad;
}

static struct sl_jcallargs *parse_args(struct sl_jparser *p)
{
    struct sl_jcallargs *args = sl_jparse_alloc(p, 1, sizeof *args);
    struct sl_jlist_of_nodes pos = {0};
    size_t kw_cap = 0;
    sl_jparse_want_op(p, '(');
    for (bool first = true; p->code == 0 && !sl_jparse_is_op(p, ')'); first = false) {
        if (!first) {
            sl_jparse_want_op(p, ',');
            if (sl_jparse_is_op(p, ')'))
                break;
        }
        if (sl_jparse_skip_op(p, '*')) {
            if (bad_call(p, args->star != NULL || args->star_star != NULL))
                return NULL;
            args->star = sl_jparse_expr(p, true);
        } else if (sl_jparse_skip_op(p, SL_JOP2('*', '*'))) {
            if (bad_call(p, args->star_star != NULL))
                return NULL;
            args->star_star = sl_jparse_expr(p, true);
        } else if (p->cur.type == SL_JT_NAME && sl_jlex_peek(p)->type == SL_JT_OP &&
                   sl_jlex_peek(p)->op == '=') {
            if (bad_call(p, args->star_star != NULL) || !parse_keyword(p, args, &kw_cap))
                return NULL;
        } else {
            if (bad_call(p, args->star != NULL || args->star_star != NULL || args->n_kw > 0) ||
                !sl_jparse_push(p, &pos, sl_jparse_expr(p, true)))
                return NULL;
        }
    }
    sl_jparse_want_op(p, ')');
    if (p->code != 0)
        return NULL;
    SL_ASSERT(args != NULL && args->pos == NULL);
    args->pos = pos.items;
    args->n_pos = pos.n;
    return args;
}

static struct sl_jnode *parse_call(struct sl_jparser *p, struct sl_jnode *fn)
{
    SL_ASSERT(fn != NULL && sl_jparse_is_op(p, '('));
    struct sl_jnode *e = sl_jparse_node(p, SL_JN_CALL);
    struct sl_jcallargs *args = parse_args(p);
    if (e == NULL || args == NULL)
        return NULL;
    e->a = fn;
    e->args = args;
    return e;
}

/* One subscript: an expression or start:stop:step. */
static struct sl_jnode *parse_index(struct sl_jparser *p, struct sl_jnode *obj)
{
    SL_ASSERT(obj != NULL);
    struct sl_jnode *start = NULL, *e = sl_jparse_node(p, SL_JN_ITEM);
    if (e == NULL)
        return NULL;
    e->a = obj;
    if (!sl_jparse_is_op(p, ':')) {
        start = sl_jparse_expr(p, true);
        if (start == NULL)
            return NULL;
    }
    if (!sl_jparse_skip_op(p, ':')) {
        e->b = start;
        return e;
    }
    SL_ASSERT(e->b == NULL && e->c == NULL && e->d == NULL);
    e->kind = SL_JN_SLICE;
    e->b = start;
    if (!sl_jparse_is_op(p, ':') && !sl_jparse_is_op(p, ']') && !sl_jparse_is_op(p, ',') &&
        (e->c = sl_jparse_expr(p, true)) == NULL)
        return NULL;
    if (sl_jparse_skip_op(p, ':') && !sl_jparse_is_op(p, ']') && !sl_jparse_is_op(p, ',') &&
        (e->d = sl_jparse_expr(p, true)) == NULL)
        return NULL;
    return e;
}

static struct sl_jnode *parse_subscript(struct sl_jparser *p, struct sl_jnode *obj)
{
    SL_ASSERT(sl_jparse_is_op(p, '.') || sl_jparse_is_op(p, '['));
    struct sl_jlist_of_nodes l = {0};
    struct sl_jnode *e = sl_jparse_node(p, SL_JN_ATTR);
    if (e == NULL)
        return NULL;
    e->a = obj;
    if (sl_jparse_skip_op(p, '.')) {
        if (p->cur.type == SL_JT_NAME) {
            e->val = str_value(sl_jparse_str(p, p->cur.s, p->cur.n));
            e->id = (uint16_t)sl_jinja_method_find(p->cur.s, p->cur.n);
            SL_ASSERT(e->id < SL_JMETHOD_COUNT);
        } else if (p->cur.type == SL_JT_INT) {
            e->kind = SL_JN_ITEM;
            e->b = jinja_expr_constant(p, (struct sl_jval){.type = SL_J_INT, .u.i = p->cur.i});
        } else {
            sl_jparse_fail(p, "expected name or number");
        }
        sl_jlex_next(p);
        return p->code == 0 ? e : NULL;
    }
    sl_jlex_next(p);
    while (p->code == 0 && !sl_jparse_is_op(p, ']')) {
        if (l.n > 0)
            sl_jparse_want_op(p, ',');
        e = parse_index(p, obj);
        if (!sl_jparse_push(p, &l, e))
            return NULL;
    }
    sl_jparse_want_op(p, ']');
    if (p->code != 0)
        return NULL;
    if (l.n == 1)
        return e;
    for (size_t i = 0; i < l.n; i++) { /* x[a, b] has the tuple (a, b) as its key */
        if (l.items[i]->kind == SL_JN_SLICE) {
            sl_jparse_fail(p, "a slice cannot be part of a tuple");
            return NULL;
        }
        SL_ASSERT(l.items[i]->kind == SL_JN_ITEM && l.items[i]->a == obj);
        l.items[i] = l.items[i]->b;
    }
    return two(p, SL_JN_ITEM, 0, obj->line, obj, list_node(p, SL_JN_TUPLE, &l));
}

/* A chain that is too long to be evaluated is not read to its end. */
static struct sl_jnode *parse_postfix(struct sl_jparser *p, struct sl_jnode *e)
{
    for (int n = 0; e != NULL && p->code == 0; n++) {
        if (n > SL_JINJA_MAX_DEPTH)
            sl_jparse_fail(p, "nested too deeply");
        if (sl_jparse_is_op(p, '.') || sl_jparse_is_op(p, '['))
            e = parse_subscript(p, e);
        else if (sl_jparse_is_op(p, '('))
            e = parse_call(p, e);
        else
            break;
    }
    return e;
}

/* The name of a filter or test; dots in it never name one that exists. */
static const struct sl_jstr *parse_dotted(struct sl_jparser *p)
{
    if (p->cur.type != SL_JT_NAME) {
        sl_jparse_fail(p, "expected the name of a filter or test");
        return NULL;
    }
    const char *from = p->cur.s;
    size_t n = p->cur.n;
    sl_jlex_next(p);
    while (sl_jparse_skip_op(p, '.')) {
        if (p->cur.type != SL_JT_NAME) {
            sl_jparse_fail(p, "expected the name of a filter or test");
            return NULL;
        }
        SL_ASSERT(p->cur.s > from); /* both lie in the source, so what is between them does */
        n = (size_t)(p->cur.s + p->cur.n - from);
        sl_jlex_next(p);
    }
    return sl_jparse_str(p, from, n);
}

/* jinja2 refuses unknown filters and tests when it compiles, unless they stand behind a condition:
 * then they fail when reached. Whether `x|f if c` has a condition shows only behind x. */
static void note_unknown(struct sl_jparser *p, const struct sl_jstr *name)
{
    SL_ASSERT(name != NULL);
    if (!p->soft && p->n_unknown++ == 0)
        p->unknown = name;
}

struct sl_jnode *sl_jparse_filters(struct sl_jparser *p, struct sl_jnode *e, bool start_inline)
{
    while (p->code == 0 && (start_inline || sl_jparse_skip_op(p, '|'))) {
        struct sl_jnode *f = sl_jparse_node(p, SL_JN_FILTER);
        const struct sl_jstr *name = parse_dotted(p);
        if (f == NULL || name == NULL)
            return NULL;
        start_inline = false;
        f->a = e;
        f->val = str_value(name);
        f->id = (uint16_t)sl_jinja_filter_find(name->data, name->n_bytes);
        if (f->id == 0)
            note_unknown(p, name);
        if (sl_jparse_is_op(p, '(') && (f->args = parse_args(p)) == NULL)
            return NULL;
        SL_ASSERT(f->kind == SL_JN_FILTER && f->a == e);
        e = f;
    }
    return p->code == 0 ? e : NULL;
}

static bool starts_test_arg(const struct sl_jparser *p)
{
    switch (p->cur.type) {
    case SL_JT_NAME:
        return !sl_jparse_is_name(p, "else") && !sl_jparse_is_name(p, "or") &&
               !sl_jparse_is_name(p, "and");
    case SL_JT_STRING:
    case SL_JT_INT:
    case SL_JT_FLOAT:
        return true;
    default:
        return sl_jparse_is_op(p, '[') || sl_jparse_is_op(p, '{');
    }
}

static struct sl_jnode *parse_test(struct sl_jparser *p, struct sl_jnode *e)
{
    SL_ASSERT(e != NULL && sl_jparse_is_name(p, "is"));
    struct sl_jlist_of_nodes l = {0};
    struct sl_jnode *t = sl_jparse_node(p, SL_JN_TEST), *no = NULL;
    sl_jlex_next(p);
    if (sl_jparse_skip_name(p, "not"))
        no = sl_jparse_node(p, SL_JN_NOT);
    const struct sl_jstr *name = parse_dotted(p);
    if (t == NULL || name == NULL)
        return NULL;
    t->a = e;
    t->val = str_value(name);
    t->id = (uint16_t)sl_jinja_test_find(name->data, name->n_bytes);
    if (t->id == 0)
        note_unknown(p, name);
    if (sl_jparse_is_op(p, '(')) {
        if ((t->args = parse_args(p)) == NULL)
            return NULL;
    } else if (starts_test_arg(p)) {
        if (sl_jparse_is_name(p, "is")) {
            sl_jparse_fail(p, "You cannot chain multiple tests with is");
            return NULL;
        }
        t->args = sl_jparse_alloc(p, 1, sizeof *t->args);
        if (t->args == NULL || !sl_jparse_push(p, &l, parse_postfix(p, parse_primary(p, false))))
            return NULL;
        t->args->pos = l.items;
        t->args->n_pos = l.n;
    }
    if (no == NULL)
        return p->code == 0 ? t : NULL;
    no->a = t;
    return p->code == 0 ? no : NULL;
}

static struct sl_jnode *parse_filter_expr(struct sl_jparser *p, struct sl_jnode *e)
{
    while (e != NULL && p->code == 0) {
        if (sl_jparse_is_op(p, '|'))
            e = sl_jparse_filters(p, e, false);
        else if (sl_jparse_is_name(p, "is"))
            e = parse_test(p, e);
        else if (sl_jparse_is_op(p, '('))
            e = parse_call(p, e);
        else
            break;
    }
    return e;
}

/* ---------------------------------------------------------------- operators */

static struct sl_jnode *parse_unary(struct sl_jparser *p, bool with_filter)
{
    struct sl_jnode *e;
    if (!sl_jparse_enter(p))
        return NULL;
    if (sl_jparse_is_op(p, '-') || sl_jparse_is_op(p, '+')) {
        e = sl_jparse_node(p, sl_jparse_is_op(p, '-') ? SL_JN_NEG : SL_JN_POS);
        sl_jlex_next(p);
        struct sl_jnode *of = parse_unary(p, false);
        if (of == NULL)
            return NULL;
        e->a = of;
    } else {
        e = parse_primary(p, false);
    }
    e = parse_postfix(p, e);
    if (with_filter)
        e = parse_filter_expr(p, e);
    sl_jparse_leave(p);
    return e;
}

static struct sl_jnode *parse_pow(struct sl_jparser *p)
{
    uint32_t line = p->cur.line;
    struct sl_jnode *left = parse_unary(p, true);
    while (left != NULL && sl_jparse_skip_op(p, SL_JOP2('*', '*')))
        left = two(p, SL_JN_BINARY, SL_JOP_POW, line, left, parse_unary(p, true));
    return left;
}

static struct sl_jnode *parse_product(struct sl_jparser *p)
{
    uint32_t line = p->cur.line;
    struct sl_jnode *left = parse_pow(p);
    while (left != NULL) {
        uint8_t op;
        if (sl_jparse_skip_op(p, '*'))
            op = SL_JOP_MUL;
        else if (sl_jparse_skip_op(p, '/'))
            op = SL_JOP_DIV;
        else if (sl_jparse_skip_op(p, SL_JOP2('/', '/')))
            op = SL_JOP_FLOORDIV;
        else if (sl_jparse_skip_op(p, '%'))
            op = SL_JOP_MOD;
        else
            break;
        SL_DCHECK(op >= SL_JOP_MUL && op <= SL_JOP_MOD);
        left = two(p, SL_JN_BINARY, op, line, left, parse_pow(p));
    }
    return left;
}

static struct sl_jnode *parse_concat(struct sl_jparser *p)
{
    struct sl_jlist_of_nodes l = {0};
    struct sl_jnode *left = parse_product(p);
    if (!sl_jparse_is_op(p, '~'))
        return left;
    if (!sl_jparse_push(p, &l, left))
        return NULL;
    while (sl_jparse_skip_op(p, '~'))
        if (!sl_jparse_push(p, &l, parse_product(p)))
            return NULL;
    SL_ASSERT(p->code != 0 || l.n >= 2);
    return list_node(p, SL_JN_CONCAT, &l);
}

static struct sl_jnode *parse_sum(struct sl_jparser *p)
{
    uint32_t line = p->cur.line;
    struct sl_jnode *left = parse_concat(p);
    while (left != NULL) {
        uint8_t op;
        if (sl_jparse_skip_op(p, '+'))
            op = SL_JOP_ADD;
        else if (sl_jparse_skip_op(p, '-'))
            op = SL_JOP_SUB;
        else
            break;
        left = two(p, SL_JN_BINARY, op, line, left, parse_concat(p));
    }
    return left;
}

static bool compare_op(struct sl_jparser *p, uint8_t *op)
{
    static const struct {
        unsigned text;
        uint8_t op;
    } ops[] = {{SL_JOP2('=', '='), SL_JOP_EQ},
               {SL_JOP2('!', '='), SL_JOP_NE},
               {SL_JOP2('<', '='), SL_JOP_LE},
               {SL_JOP2('>', '='), SL_JOP_GE},
               {'<', SL_JOP_LT},
               {'>', SL_JOP_GT}};
    for (size_t i = 0; i < SL_COUNT(ops); i++)
        if (sl_jparse_skip_op(p, ops[i].text)) {
            *op = ops[i].op;
            return true;
        }
    if (sl_jparse_skip_name(p, "in")) {
        *op = SL_JOP_IN;
        return true;
    }
    if (!sl_jparse_is_name(p, "not"))
        return false;
    const struct sl_jtoken *next = sl_jlex_peek(p);
    if (next->type != SL_JT_NAME || next->n != 2 || memcmp(next->s, "in", 2) != 0)
        return false;
    sl_jlex_next(p);
    sl_jlex_next(p);
    *op = SL_JOP_NOTIN;
    return true;
}

static struct sl_jnode *parse_compare(struct sl_jparser *p)
{
    struct sl_jlist_of_nodes l = {0};
    uint8_t op;
    struct sl_jnode *left = parse_sum(p), *e = NULL;
    while (left != NULL && compare_op(p, &op)) {
        /* each link of a < b < c is a node of its own that keeps operator and right side */
        SL_ASSERT(op >= SL_JOP_EQ && op <= SL_JOP_NOTIN);
        e = sl_jparse_node(p, SL_JN_COMPARE);
        struct sl_jnode *right = parse_sum(p);
        if (e == NULL || right == NULL)
            return NULL;
        e->op = op;
        e->b = right;
        if (!sl_jparse_push(p, &l, e))
            return NULL;
    }
    if (l.n == 0)
        return left;
    SL_ASSERT(left == NULL || l.items[l.n - 1] == e);
    e = list_node(p, SL_JN_COMPARE, &l);
    if (e != NULL)
        e->a = left;
    return p->code == 0 ? e : NULL;
}

static struct sl_jnode *parse_not(struct sl_jparser *p)
{
    if (!sl_jparse_is_name(p, "not"))
        return parse_compare(p);
    struct sl_jnode *e = sl_jparse_node(p, SL_JN_NOT);
    if (e == NULL || !sl_jparse_enter(p))
        return NULL;
    SL_ASSERT(p->depth > 0 && e->a == NULL);
    sl_jlex_next(p);
    e->a = parse_not(p);
    sl_jparse_leave(p);
    return e->a != NULL ? e : NULL;
}

static struct sl_jnode *parse_and(struct sl_jparser *p)
{
    struct sl_jnode *left = parse_not(p);
    while (left != NULL && sl_jparse_skip_name(p, "and"))
        left = two(p, SL_JN_AND, 0, left->line, left, parse_not(p));
    return left;
}

static struct sl_jnode *parse_or(struct sl_jparser *p)
{
    struct sl_jnode *left = parse_and(p);
    while (left != NULL && sl_jparse_skip_name(p, "or"))
        left = two(p, SL_JN_OR, 0, left->line, left, parse_and(p));
    return left;
}

struct sl_jnode *sl_jparse_expr(struct sl_jparser *p, bool with_cond)
{
    if (!sl_jparse_enter(p))
        return NULL;
    unsigned n_unknown = p->n_unknown;
    unsigned depth = p->depth;
    struct sl_jnode *e = parse_or(p);
    while (e != NULL && with_cond && sl_jparse_skip_name(p, "if")) {
        bool soft = p->soft;
        p->n_unknown = n_unknown;
        p->soft = true;
        struct sl_jnode *cond = sl_jparse_node(p, SL_JN_COND), *test = parse_or(p);
        if (cond == NULL || test == NULL)
            return NULL;
        cond->a = test;
        cond->b = e;
        if (sl_jparse_skip_name(p, "else") && (cond->c = sl_jparse_expr(p, true)) == NULL)
            return NULL;
        p->soft = soft;
        e = cond;
    }
    SL_ASSERT(p->n_unknown >= n_unknown);
    SL_ASSERT(p->code != 0 || (e != NULL && e->kind <= SL_JN_NSREF && p->depth == depth));
    sl_jparse_leave(p);
    return p->code == 0 ? e : NULL;
}

static bool tuple_ends(const struct sl_jparser *p, const char *end_name)
{
    return p->cur.type == SL_JT_VAR_END || p->cur.type == SL_JT_BLOCK_END ||
           sl_jparse_is_op(p, ')') || (end_name != NULL && sl_jparse_is_name(p, end_name));
}

static struct sl_jnode *tuple_of(struct sl_jparser *p, bool with_cond, bool in_parens,
                                 const char *end_name, bool target, bool with_ns)
{
    struct sl_jlist_of_nodes l = {0};
    bool is_tuple = false;
    for (;;) {
        if (l.n > 0)
            sl_jparse_want_op(p, ',');
        if (p->code != 0 || tuple_ends(p, end_name))
            break;
        struct sl_jnode *e = target ? parse_primary(p, with_ns) : sl_jparse_expr(p, with_cond);
        if (!sl_jparse_push(p, &l, e))
            return NULL;
        if (!sl_jparse_is_op(p, ','))
            break;
        is_tuple = true;
    }
    if (p->code != 0)
        return NULL;
    SL_ASSERT(is_tuple || l.n <= 1);
    if (!is_tuple && l.n > 0)
        return l.items[0];
    if (!is_tuple && !in_parens) {
        sl_jparse_fail(p, "Expected an expression");
        return NULL;
    }
    return list_node(p, SL_JN_TUPLE, &l);
}

struct sl_jnode *sl_jparse_tuple(struct sl_jparser *p, bool with_cond, bool in_parens,
                                 const char *end_name)
{
    return tuple_of(p, with_cond, in_parens, end_name, false, false);
}

static bool can_assign(const struct sl_jnode *e, unsigned depth)
{
    if (e->kind == SL_JN_NAME || e->kind == SL_JN_NSREF)
        return true;
    /* unreachable: so deep, the parser gave up before */
    if (e->kind != SL_JN_TUPLE || depth > SL_TEMPLATE_DEPTH)
        return false;
    SL_ASSERT(e->n == 0 || e->list != NULL);
    for (uint32_t i = 0; i < e->n; i++)
        if (!can_assign(e->list[i], depth + 1))
            return false;
    return true;
}

struct sl_jnode *sl_jparse_target(struct sl_jparser *p, bool with_ns, const char *end_name)
{
    struct sl_jnode *e = tuple_of(p, true, false, end_name, true, with_ns);
    SL_ASSERT(e == NULL || p->code == 0);
    if (e != NULL && !can_assign(e, 0)) {
        sl_jparse_fail(p, "can't assign to this expression");
        return NULL;
    }
    return e;
}
