/* SPDX-License-Identifier: MIT
 *
 * The statement half of the parser: bodies are lists of nodes linked by next.
 */
#include "text/jinja/jinja_parse.h"
#include "base/check.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

static struct sl_jnode *parse_body(struct sl_jparser *p, const char *const *ends);

/* ---------------------------------------------------------------- tools */

int sl_jparse_fail(struct sl_jparser *p, const char *fmt, ...)
{
    if (p->code != 0)
        return p->code;
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->code = sl_fail(p->err, SL_EINVAL, "template line %u: %s", p->cur.line, text);
    p->cur = (struct sl_jtoken){.type = SL_JT_EOF, .line = p->line};
    p->has_ahead = false;
    return p->code;
}

void *sl_jparse_alloc(struct sl_jparser *p, size_t n, size_t size)
{
    SL_ASSERT(size > 0);
    void *m = sl_arena_array(&p->t->arena, n, size);
    if (m == NULL && p->code == 0) {
        p->code = sl_fail(p->err, SL_ENOMEM, "no memory to compile a chat template");
        p->cur = (struct sl_jtoken){.type = SL_JT_EOF, .line = p->line};
        p->has_ahead = false;
    }
    SL_ASSERT(m != NULL || p->code < 0);
    return m;
}

struct sl_jnode *sl_jparse_node(struct sl_jparser *p, enum sl_jkind kind)
{
    SL_ASSERT(kind <= SL_JN_DO);
    struct sl_jnode *e = sl_jparse_alloc(p, 1, sizeof *e);
    if (e == NULL)
        return NULL;
    e->kind = (uint8_t)kind;
    e->line = p->cur.line;
    return e;
}

const struct sl_jstr *sl_jparse_str(struct sl_jparser *p, const char *s, size_t n)
{
    SL_ASSERT(s != NULL || n == 0);
    struct sl_jstr *str = sl_jparse_alloc(p, 1, sizeof *str);
    char *copy = sl_jparse_alloc(p, n + 1, 1); /* ends with NUL, for messages */
    if (str == NULL || copy == NULL)
        return NULL;
    if (n > 0)
        memcpy(copy, s, n);
    *str = (struct sl_jstr){.data = copy, .n_bytes = n, .n_chars = SIZE_MAX};
    sl_jinja_chars(str); /* now, because renderings in several threads only read it */
    SL_ASSERT(str->n_chars <= n);
    return str;
}

static bool syms_grow(struct sl_jparser *p)
{
    size_t cap = p->syms_cap == 0 ? 64 : p->syms_cap * 2;
    SL_ASSERT(sl_is_pow2(cap) && p->n_syms < cap); /* a free place ends every search */
    struct sl_jsym *grown = sl_jparse_alloc(p, cap, sizeof *grown);
    const struct sl_jstr **names = sl_jparse_alloc(p, cap, sizeof *names);
    if (grown == NULL || names == NULL)
        return false;
    for (size_t i = 0; i < p->n_syms; i++)
        names[i] = p->t->names[i];
    p->t->names = names;
    p->syms = grown;
    p->syms_cap = cap;
    for (size_t i = 0; i < p->n_syms; i++) {
        uint64_t hash = sl_hash64(names[i]->data, names[i]->n_bytes, 0);
        size_t at = hash & (cap - 1);
        while (grown[at].name != NULL)
            at = (at + 1) & (cap - 1);
        grown[at] = (struct sl_jsym){names[i], hash, (uint32_t)i};
    }
    return true;
}

uint32_t sl_jparse_sym(struct sl_jparser *p, const char *s, size_t n)
{
    if (p->n_syms * 2 >= p->syms_cap && !syms_grow(p))
        return 0;
    uint64_t hash = sl_hash64(s, n, 0);
    size_t at = hash & (p->syms_cap - 1);
    for (; p->syms[at].name != NULL; at = (at + 1) & (p->syms_cap - 1)) {
        const struct sl_jstr *name = p->syms[at].name;
        /* unreachable: two names of one hash of 64 bits */
        if (p->syms[at].hash == hash && name->n_bytes == n && memcmp(name->data, s, n) == 0)
            return p->syms[at].number;
    }
    const struct sl_jstr *name = sl_jparse_str(p, s, n);
    if (name == NULL)
        return 0;
    p->syms[at] = (struct sl_jsym){name, hash, (uint32_t)p->n_syms};
    SL_ASSERT(p->n_syms < p->syms_cap);
    p->t->names[p->n_syms] = name;
    p->t->n_names = ++p->n_syms;
    return p->syms[at].number;
}

bool sl_jparse_is_op(const struct sl_jparser *p, unsigned op)
{
    return p->cur.type == SL_JT_OP && p->cur.op == op;
}

bool sl_jparse_is_name(const struct sl_jparser *p, const char *name)
{
    SL_DCHECK(p->cur.type != SL_JT_NAME || p->cur.n > 0);
    return p->cur.type == SL_JT_NAME && p->cur.n == strlen(name) &&
           memcmp(p->cur.s, name, p->cur.n) == 0;
}

bool sl_jparse_skip_op(struct sl_jparser *p, unsigned op)
{
    if (!sl_jparse_is_op(p, op))
        return false;
    sl_jlex_next(p);
    return true;
}

bool sl_jparse_skip_name(struct sl_jparser *p, const char *name)
{
    if (!sl_jparse_is_name(p, name))
        return false;
    sl_jlex_next(p);
    return true;
}

void sl_jparse_want_op(struct sl_jparser *p, unsigned op)
{
    if (p->code == 0 && !sl_jparse_skip_op(p, op))
        sl_jparse_fail(p, "expected token '%c'", (int)(op & 0x7F));
}

bool sl_jparse_enter(struct sl_jparser *p)
{
    if (p->depth >= SL_TEMPLATE_DEPTH) {
        sl_jparse_fail(p, "nested too deeply");
        return false;
    }
    p->depth++;
    return true;
}

void sl_jparse_leave(struct sl_jparser *p)
{
    SL_ASSERT(p->depth > 0 && p->depth <= SL_TEMPLATE_DEPTH);
    p->depth--;
}

static void want_block_end(struct sl_jparser *p)
{
    SL_ASSERT(p->n_unknown == 0 || p->unknown != NULL);
    if (p->n_unknown > 0)
        sl_jparse_fail(p, "No filter or test named '%.*s'", (int)SL_MIN(p->unknown->n_bytes, 60),
                       p->unknown->data);
    if (p->code == 0 && p->cur.type != SL_JT_BLOCK_END)
        sl_jparse_fail(p, "expected token 'end of statement block'");
    sl_jlex_next(p);
}

/* After "{% tag ...": "%}", then statements up to one of ends (its name is the current token). */
static struct sl_jnode *parse_block(struct sl_jparser *p, const char *const *ends)
{
    SL_ASSERT(ends != NULL && ends[0] != NULL);
    sl_jparse_skip_op(p, ':');
    want_block_end(p);
    struct sl_jnode *body = parse_body(p, ends);
    if (p->code == 0 && p->cur.type == SL_JT_EOF)
        sl_jparse_fail(p, "Unexpected end of template, '%s' is missing", ends[0]);
    return body;
}

/* ---------------------------------------------------------------- statements */

/* No statement inside of a loop may store to the name `loop`. */
static bool stores_loop(const struct sl_jparser *p, const struct sl_jnode *target)
{
    SL_ASSERT(target->kind == SL_JN_NAME || target->kind == SL_JN_NSREF ||
              target->kind == SL_JN_TUPLE);
    if (target->kind == SL_JN_NAME)
        return target->sym == p->t->sym_loop;
    for (uint32_t i = 0; target->kind == SL_JN_TUPLE && i < target->n; i++)
        if (stores_loop(p, target->list[i]))
            return true;
    return false;
}

static struct sl_jnode *jinja_parse_for(struct sl_jparser *p)
{
    static const char *const body_ends[] = {"endfor", "else", NULL}, *const else_ends[] = {"endfor",
                                                                                           NULL};
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_FOR);
    sl_jlex_next(p);
    if (s == NULL || (s->a = sl_jparse_target(p, false, "in")) == NULL)
        return NULL;
    if (stores_loop(p, s->a))
        sl_jparse_fail(p, "Can't assign to special loop variable in for-loop target");
    if (!sl_jparse_skip_name(p, "in"))
        sl_jparse_fail(p, "expected token 'in'");
    if ((s->b = sl_jparse_tuple(p, false, false, "recursive")) == NULL)
        return NULL;
    if (sl_jparse_skip_name(p, "if") && (s->c = sl_jparse_expr(p, true)) == NULL)
        return NULL;
    s->op = sl_jparse_skip_name(p, "recursive");
    s->list = sl_jparse_alloc(p, 2, sizeof(struct sl_jnode *)); /* body, else */
    if (s->list == NULL)
        return NULL;
    bool soft = p->soft;
    p->soft = false;
    p->loops++;
    p->fors++;
    s->list[0] = parse_block(p, body_ends);
    SL_ASSERT(p->loops > 0 && p->fors > 0);
    p->loops--;
    if (sl_jparse_skip_name(p, "else"))
        s->list[1] = parse_block(p, else_ends);
    p->fors--;
    p->soft = soft;
    sl_jlex_next(p); /* endfor */
    return s;
}

static struct sl_jnode *parse_if(struct sl_jparser *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const else_ends[] = {
                                                                           "endif", NULL};
    struct sl_jnode *first = NULL, **link = &first;
    bool soft = p->soft;
    p->soft = true;
    do { /* an elif is an if that is the else of the one before */
        struct sl_jnode *s = sl_jparse_node(p, SL_JN_IF);
        sl_jlex_next(p);
        if (s == NULL || (s->a = sl_jparse_tuple(p, false, false, NULL)) == NULL)
            return NULL;
        s->b = parse_block(p, ends);
        *link = s;
        link = &s->c;
    } while (p->code == 0 && sl_jparse_is_name(p, "elif"));
    SL_ASSERT(first != NULL && *link == NULL);
    if (sl_jparse_skip_name(p, "else"))
        *link = parse_block(p, else_ends);
    p->soft = soft;
    sl_jlex_next(p); /* endif */
    return first;
}

/* The body of something that runs as a function of its own: no break out of it. */
static struct sl_jnode *parse_function(struct sl_jparser *p, const char *const *ends, uint8_t *uses)
{
    struct sl_jmacro_scope scope = {.up = p->macro};
    unsigned loops = p->loops;
    bool soft = p->soft;
    p->macro = &scope;
    p->loops = 0;
    p->soft = false;
    struct sl_jnode *body = parse_block(p, ends);
    SL_ASSERT(p->macro == &scope && (p->loops == 0 || p->code != 0));
    p->macro = scope.up;
    p->loops = loops;
    p->soft = soft;
    if (uses != NULL)
        *uses = scope.uses;
    sl_jlex_next(p);
    return body;
}

/* (a, b=1): names and defaults as NAME nodes whose a is the default. */
static bool parse_signature(struct sl_jparser *p, struct sl_jnode *s)
{
    struct sl_jlist_of_nodes l = {0};
    bool defaults = false;
    SL_ASSERT(s->kind == SL_JN_MACRO && s->list == NULL);
    sl_jparse_want_op(p, '(');
    while (p->code == 0 && !sl_jparse_is_op(p, ')')) {
        if (l.n > 0)
            sl_jparse_want_op(p, ',');
        if (p->cur.type != SL_JT_NAME)
            return sl_jparse_fail(p, "expected the name of a parameter") == 0;
        struct sl_jnode *arg = sl_jparse_node(p, SL_JN_NAME);
        if (arg == NULL)
            return false;
        arg->sym = sl_jparse_sym(p, p->cur.s, p->cur.n);
        for (size_t i = 0; i < l.n; i++)
            if (l.items[i]->sym == arg->sym)
                sl_jparse_fail(p, "duplicate parameter");
        sl_jlex_next(p);
        if (sl_jparse_skip_op(p, '=')) {
            defaults = true;
            arg->a = sl_jparse_expr(p, true);
            if (arg->a == NULL)
                return false;
        } else if (defaults) {
            sl_jparse_fail(p, "non-default argument follows default argument");
        }
        if (!sl_jparse_push(p, &l, arg))
            return false;
    }
    sl_jparse_want_op(p, ')');
    s->list = l.items;
    s->n = (uint32_t)l.n;
    return p->code == 0;
}

/* A parameter `caller` that the body uses needs a default: a call without a block gives none. */
static void check_caller(struct sl_jparser *p, const struct sl_jnode *s)
{
    SL_ASSERT(s->kind == SL_JN_MACRO && (s->n == 0 || s->list != NULL));
    for (uint32_t i = 0; i < s->n && (s->op & SL_JM_CALLER); i++)
        if (s->list[i]->sym == p->t->sym_caller && s->list[i]->a == NULL)
            sl_jparse_fail(p, "the parameter \"caller\" of a macro must have a default");
}

static struct sl_jnode *parse_macro(struct sl_jparser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_MACRO);
    sl_jlex_next(p);
    if (s == NULL)
        return NULL;
    if (p->cur.type != SL_JT_NAME) {
        sl_jparse_fail(p, "expected the name of a macro");
        return NULL;
    }
    s->sym = sl_jparse_sym(p, p->cur.s, p->cur.n);
    const struct sl_jstr *name = sl_jparse_str(p, p->cur.s, p->cur.n);
    s->val = (struct sl_jval){.type = SL_J_STR, .u.s = (struct sl_jstr *)(uintptr_t)name};
    sl_jlex_next(p);
    /* defaults are computed inside the macro, so what they mention counts as its use */
    struct sl_jmacro_scope scope = {.up = p->macro};
    p->macro = &scope;
    bool ok = parse_signature(p, s);
    SL_ASSERT(p->macro == &scope);
    p->macro = scope.up;
    if (!ok)
        return NULL;
    s->b = parse_function(p, ends, &s->op);
    s->op |= scope.uses;
    check_caller(p, s);
    return s;
}

static struct sl_jnode *parse_call_block(struct sl_jparser *p)
{
    static const char *const ends[] = {"endcall", NULL};
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_CALLBLOCK), *caller;
    caller = sl_jparse_node(p, SL_JN_MACRO);
    sl_jlex_next(p);
    if (s == NULL || caller == NULL)
        return NULL;
    if (sl_jparse_is_op(p, '(') && !parse_signature(p, caller))
        return NULL;
    s->a = sl_jparse_expr(p, true);
    if (s->a == NULL)
        return NULL;
    if (s->a->kind != SL_JN_CALL) {
        sl_jparse_fail(p, "expected call");
        return NULL;
    }
    SL_ASSERT(s->a->args != NULL);
    const struct sl_jstr *name = sl_jparse_str(p, "caller", 6);
    /* its name is none, but messages call it so */
    caller->val = (struct sl_jval){.type = SL_J_NONE, .u.s = (struct sl_jstr *)(uintptr_t)name};
    caller->b = parse_function(p, ends, &caller->op);
    check_caller(p, caller);
    s->b = caller;
    return s;
}

static struct sl_jnode *parse_set(struct sl_jparser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_SET);
    sl_jlex_next(p);
    if (s == NULL || (s->a = sl_jparse_target(p, true, NULL)) == NULL)
        return NULL;
    if (p->fors > 0 && stores_loop(p, s->a))
        sl_jparse_fail(p, "Can't assign to special loop variable in for-loop target");
    if (sl_jparse_skip_op(p, '=')) {
        s->b = sl_jparse_tuple(p, true, false, NULL);
        return s->b != NULL ? s : NULL;
    }
    SL_ASSERT(s->b == NULL && s->c == NULL);
    s->kind = SL_JN_SETBLOCK;
    s->c = sl_jparse_filters(p, NULL, false);
    s->b = parse_block(p, ends);
    sl_jlex_next(p);
    return s;
}

static struct sl_jnode *parse_filter_block(struct sl_jparser *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_FILTERBLOCK);
    sl_jlex_next(p);
    if (s == NULL || (s->a = sl_jparse_filters(p, NULL, true)) == NULL)
        return NULL;
    SL_ASSERT(s->a->kind == SL_JN_FILTER);
    s->b = parse_block(p, ends);
    sl_jlex_next(p);
    return s;
}

static struct sl_jnode *parse_with(struct sl_jparser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    struct sl_jlist_of_nodes l = {0}; /* target, value, target, value */
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_WITH);
    sl_jlex_next(p);
    while (s != NULL && p->code == 0 && p->cur.type != SL_JT_BLOCK_END) {
        if (l.n > 0)
            sl_jparse_want_op(p, ',');
        if (!sl_jparse_push(p, &l, sl_jparse_target(p, false, NULL)))
            return NULL;
        sl_jparse_want_op(p, '=');
        if (!sl_jparse_push(p, &l, sl_jparse_expr(p, true)))
            return NULL;
    }
    if (s == NULL || p->code != 0)
        return NULL;
    SL_ASSERT(l.n % 2 == 0); /* a value for every target */
    s->list = l.items;
    s->n = (uint32_t)l.n;
    bool soft = p->soft;
    p->soft = false;
    s->b = parse_block(p, ends);
    p->soft = soft;
    sl_jlex_next(p);
    return s;
}

/* {% block name %}, {% generation %}, {% autoescape x %}: the body in a scope of its own */
static struct sl_jnode *parse_scope(struct sl_jparser *p)
{
    static const char *const block_ends[] = {"endblock", NULL};
    static const char *const generation_ends[] = {"endgeneration", NULL};
    static const char *const escape_ends[] = {"endautoescape", NULL};
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_SCOPE);
    if (s == NULL)
        return NULL;
    if (sl_jparse_skip_name(p, "generation")) {
        s->b = parse_function(p, generation_ends, NULL);
        return s;
    }
    if (sl_jparse_skip_name(p, "autoescape")) {
        struct sl_jnode *on = sl_jparse_expr(p, true);
        if (on != NULL && (on->kind != SL_JN_CONST || on->val.type != SL_J_BOOL || on->val.u.b))
            sl_jparse_fail(p, "autoescape is not supported");
        s->b = parse_block(p, escape_ends);
        sl_jlex_next(p);
        return s;
    }
    sl_jlex_next(p);
    const char *name = p->cur.s;
    size_t n = p->cur.n;
    if (p->cur.type != SL_JT_NAME)
        sl_jparse_fail(p, "expected the name of a block");
    s->sym = sl_jparse_sym(p, name, n);
    for (const struct sl_jnode *b = p->blocks; b != NULL; b = b->a)
        if (b->sym == s->sym)
            sl_jparse_fail(p, "block '%.*s' defined twice", (int)SL_MIN(n, 60), name);
    SL_ASSERT(p->code != 0 || s->sym < p->t->n_names);
    s->a = p->blocks; /* the block before this one */
    p->blocks = s;
    sl_jlex_next(p);
    bool scoped = sl_jparse_skip_name(p, "scoped");
    s->op = !scoped; /* sees the variables of the template only */
    s->b = parse_function(p, block_ends, NULL);
    if (p->cur.type == SL_JT_NAME && p->cur.n == n && memcmp(p->cur.s, name, n) == 0)
        sl_jlex_next(p);
    return s;
}

static struct sl_jnode *parse_jump(struct sl_jparser *p, enum sl_jkind kind)
{
    SL_ASSERT(kind == SL_JN_BREAK || kind == SL_JN_CONTINUE);
    if (p->loops == 0)
        sl_jparse_fail(p, "'break' and 'continue' are for loops only");
    sl_jlex_next(p);
    return sl_jparse_node(p, kind);
}

static struct sl_jnode *parse_print(struct sl_jparser *p)
{
    struct sl_jnode *first = NULL, **link = &first;
    sl_jlex_next(p);
    while (p->code == 0 && p->cur.type != SL_JT_BLOCK_END) {
        if (first != NULL)
            sl_jparse_want_op(p, ',');
        struct sl_jnode *s = sl_jparse_node(p, SL_JN_PRINT);
        if (s == NULL || (s->a = sl_jparse_expr(p, true)) == NULL)
            return NULL;
        SL_ASSERT(*link == NULL && s->next == NULL);
        *link = s;
        link = &s->next;
    }
    return first;
}

static struct sl_jnode *parse_statement(struct sl_jparser *p)
{
    SL_ASSERT(p->depth > 0);
    if (p->cur.type != SL_JT_NAME)
        sl_jparse_fail(p, "tag name expected");
    if (sl_jparse_is_name(p, "if"))
        return parse_if(p);
    if (sl_jparse_is_name(p, "for"))
        return jinja_parse_for(p);
    if (sl_jparse_is_name(p, "set"))
        return parse_set(p);
    if (sl_jparse_is_name(p, "macro"))
        return parse_macro(p);
    if (sl_jparse_is_name(p, "call"))
        return parse_call_block(p);
    if (sl_jparse_is_name(p, "filter"))
        return parse_filter_block(p);
    if (sl_jparse_is_name(p, "with"))
        return parse_with(p);
    if (sl_jparse_is_name(p, "break"))
        return parse_jump(p, SL_JN_BREAK);
    if (sl_jparse_is_name(p, "continue"))
        return parse_jump(p, SL_JN_CONTINUE);
    if (sl_jparse_is_name(p, "print"))
        return parse_print(p);
    if (sl_jparse_is_name(p, "block") || sl_jparse_is_name(p, "generation") ||
        sl_jparse_is_name(p, "autoescape"))
        return parse_scope(p);
    if (sl_jparse_is_name(p, "do")) {
        struct sl_jnode *s = sl_jparse_node(p, SL_JN_DO);
        sl_jlex_next(p);
        if (s != NULL)
            s->a = sl_jparse_tuple(p, true, false, NULL);
        return s;
    }
    if (p->code == 0)
        sl_jparse_fail(p, "unknown or unsupported tag '%.*s'", (int)SL_MIN(p->cur.n, 60), p->cur.s);
    return NULL;
}

static struct sl_jnode *parse_print_tag(struct sl_jparser *p)
{
    SL_ASSERT(p->cur.type == SL_JT_VAR_BEGIN);
    struct sl_jnode *s = sl_jparse_node(p, SL_JN_PRINT);
    sl_jlex_next(p);
    if (s == NULL || (s->a = sl_jparse_tuple(p, true, false, NULL)) == NULL)
        return NULL;
    if (p->n_unknown > 0)
        sl_jparse_fail(p, "No filter or test named '%.*s'", (int)SL_MIN(p->unknown->n_bytes, 60),
                       p->unknown->data);
    if (p->code == 0 && p->cur.type != SL_JT_VAR_END)
        sl_jparse_fail(p, "expected token 'end of print statement'");
    sl_jlex_next(p);
    if (s->a->kind == SL_JN_CONST && s->a->val.type == SL_J_STR) { /* {{ 'text' }} is text */
        s->kind = SL_JN_TEXT;
        s->val = s->a->val;
    }
    return s;
}

static bool jinja_parse_is_end(const struct sl_jparser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (sl_jparse_is_name(p, *ends))
            return true;
    return false;
}

static struct sl_jnode *parse_body(struct sl_jparser *p, const char *const *ends)
{
    struct sl_jnode *first = NULL, **link = &first;
    if (!sl_jparse_enter(p))
        return NULL;
    unsigned depth = p->depth;
    while (p->code == 0 && p->cur.type != SL_JT_EOF) {
        struct sl_jnode *s = NULL;
        if (p->cur.type == SL_JT_DATA) {
            s = sl_jparse_node(p, SL_JN_TEXT);
            const struct sl_jstr *text = sl_jparse_str(p, p->cur.s, p->cur.n);
            if (s == NULL || text == NULL)
                return NULL;
            s->val = (struct sl_jval){.type = SL_J_STR, .u.s = (struct sl_jstr *)(uintptr_t)text};
            sl_jlex_next(p);
        } else if (p->cur.type == SL_JT_VAR_BEGIN) {
            s = parse_print_tag(p);
        } else {
            SL_ASSERT(p->cur.type == SL_JT_BLOCK_BEGIN);
            sl_jlex_next(p); /* "{%" */
            if (jinja_parse_is_end(p, ends)) {
                sl_jparse_leave(p);
                return first;
            }
            s = parse_statement(p);
            want_block_end(p);
        }
        SL_ASSERT(*link == NULL && (p->code != 0 || p->depth == depth));
        *link = s;
        while (*link != NULL)
            link = &(*link)->next;
    }
    sl_jparse_leave(p);
    return first;
}

int sl_jinja_parse(struct sl_template *t, const char *source, size_t n, struct sl_error *err)
{
    struct sl_jparser p = {.t = t, .err = err};
    p.cur.line = 1;
    sl_jlex_init(&p, source, n);
    t->sym_caller = sl_jparse_sym(&p, "caller", 6);
    t->sym_varargs = sl_jparse_sym(&p, "varargs", 7);
    t->sym_kwargs = sl_jparse_sym(&p, "kwargs", 6);
    t->sym_loop = sl_jparse_sym(&p, "loop", 4);
    if (p.code == 0) {
        sl_jlex_next(&p);
        t->body = parse_body(&p, NULL);
        SL_ASSERT(p.code != 0 || (p.depth == 0 && p.cur.type == SL_JT_EOF));
        SL_ASSERT(p.code != 0 || (p.loops == 0 && p.fors == 0 && p.macro == NULL));
    }
    return p.code;
}
