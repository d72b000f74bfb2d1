/* SPDX-License-Identifier: MIT
 *
 * Computes expressions. sl_jinja_eval is the one recursive function here, so what needs much stack
 * stands in functions of its own beside it.
 */
#include "text/jinja/jinja.h"

#include <string.h>

static int eval_name(struct sl_jvm *vm, const struct sl_jnode *e, const struct sl_jframe *f,
                     struct sl_jval *out)
{
    *out = sl_jinja_lookup(vm, f, e->sym);
    if (out->type != SL_J_MISSING)
        return 0;
    const struct sl_jstr *name = vm->t->names[e->sym];
    if (vm->javascript && sl_jinja_str_is(name, "null")) {
        *out = sl_jinja_none();
        return 0;
    }
    *out = (struct sl_jval){
        .type = SL_J_UNDEFINED, .kind = SL_JU_NAME, .u.s = (struct sl_jstr *)(uintptr_t)name};
    return 0;
}

static int eval_list(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                     struct sl_jval *out)
{
    struct sl_jlist *l = sl_jinja_list(vm, e->n);
    if (l == NULL)
        return vm->code;
    for (uint32_t i = 0; i < e->n; i++) {
        struct sl_jval v;
        if (sl_jinja_eval(vm, e->list[i], f, &v) != 0 || sl_jinja_push(vm, l, v) != 0)
            return vm->code;
    }
    *out = e->kind == SL_JN_LIST ? sl_jinja_list_val(l) : sl_jinja_tuple_val(l);
    return 0;
}

static int eval_dict(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                     struct sl_jval *out)
{
    struct sl_jdict *d = sl_jinja_dict(vm, e->n / 2);
    if (d == NULL)
        return vm->code;
    for (uint32_t i = 0; i + 1 < e->n; i += 2) {
        struct sl_jval k, v;
        if (sl_jinja_eval(vm, e->list[i], f, &k) != 0 ||
            sl_jinja_eval(vm, e->list[i + 1], f, &v) != 0 || sl_jinja_dict_set(vm, d, k, v) != 0)
            return vm->code;
    }
    *out = (struct sl_jval){.type = SL_J_DICT, .u.dict = d};
    return 0;
}

static int eval_binary(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                       struct sl_jval *out)
{
    struct sl_jval a, b;
    if (sl_jinja_eval(vm, e->a, f, &a) != 0 || sl_jinja_eval(vm, e->b, f, &b) != 0)
        return vm->code;
    if (a.type == SL_J_STR && b.type == SL_J_STR && e->op == SL_JOP_ADD && !a.markup && !b.markup)
        return sl_jinja_concat(vm, a, b, out);
    return sl_jinja_binary(vm, e->op, a, b, out);
}

/* and, or: the value that decided */
static int eval_logic(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                      struct sl_jval *out)
{
    if (sl_jinja_eval(vm, e->a, f, out) != 0)
        return vm->code;
    if (sl_jinja_truth(*out) == (e->kind == SL_JN_OR))
        return 0;
    return sl_jinja_eval(vm, e->b, f, out);
}

static int eval_compare(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                        struct sl_jval *out)
{
    struct sl_jval left, right;
    bool yes = true;
    if (sl_jinja_eval(vm, e->a, f, &left) != 0)
        return vm->code;
    for (uint32_t i = 0; i < e->n && yes; i++) {
        if (sl_jinja_eval(vm, e->list[i]->b, f, &right) != 0 ||
            sl_jinja_compare(vm, e->list[i]->op, left, right, &yes) != 0)
            return vm->code;
        left = right;
    }
    *out = sl_jinja_bool(yes);
    return 0;
}

static int eval_concat(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                       struct sl_jval *out)
{
    struct sl_jval part;
    *out = (struct sl_jval){.type = SL_J_STR, .u.s = &vm->empty};
    for (uint32_t i = 0; i < e->n; i++)
        if (sl_jinja_eval(vm, e->list[i], f, &part) != 0 || sl_jinja_to_str(vm, part, &part) != 0 ||
            sl_jinja_concat(vm, *out, part, out) != 0)
            return vm->code;
    return 0;
}

static int eval_cond(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                     struct sl_jval *out)
{
    struct sl_jval test;
    if (sl_jinja_eval(vm, e->a, f, &test) != 0)
        return vm->code;
    if (sl_jinja_truth(test))
        return sl_jinja_eval(vm, e->b, f, out);
    if (e->c != NULL)
        return sl_jinja_eval(vm, e->c, f, out);
    *out = sl_jinja_hint(vm, "the inline if-expression evaluated to false and no else section was "
                             "defined");
    return vm->code;
}

static int eval_item(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                     struct sl_jval *out)
{
    struct sl_jval obj, key;
    if (sl_jinja_eval(vm, e->a, f, &obj) != 0 || sl_jinja_eval(vm, e->b, f, &key) != 0)
        return vm->code;
    return sl_jinja_getitem(vm, obj, key, out);
}

static int eval_slice(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                      struct sl_jval *out)
{
    struct sl_jval obj, part[3] = {{.type = SL_J_NONE}, {.type = SL_J_NONE}, {.type = SL_J_NONE}};
    const struct sl_jnode *from[3] = {e->b, e->c, e->d};
    if (sl_jinja_eval(vm, e->a, f, &obj) != 0)
        return vm->code;
    for (int i = 0; i < 3; i++)
        if (from[i] != NULL && sl_jinja_eval(vm, from[i], f, &part[i]) != 0)
            return vm->code;
    return sl_jinja_slice(vm, obj, part[0], part[1], part[2], out);
}

/* ---------------------------------------------------------------- calls */

static int push_star(struct sl_jvm *vm, struct sl_jval v, struct sl_jargs *out)
{
    struct sl_jlist *l;
    if (sl_jinja_to_list(vm, v, &l) != 0)
        return vm->code;
    struct sl_jval *pos = sl_jinja_array(vm, out->n_pos + l->n + 1, sizeof *pos);
    if (pos == NULL)
        return vm->code;
    if (out->n_pos > 0)
        memcpy(pos, out->pos, out->n_pos * sizeof *pos);
    if (l->n > 0)
        memcpy(pos + out->n_pos, l->items, l->n * sizeof *pos);
    out->pos = pos;
    out->n_pos += l->n;
    return 0;
}

static int push_star_star(struct sl_jvm *vm, struct sl_jval v, struct sl_jargs *out)
{
    if (v.type != SL_J_DICT)
        return sl_jinja_fail(vm, "argument after ** must be a mapping, not %s",
                             sl_jinja_type_name(v));
    const struct sl_jdict *d = v.u.dict;
    struct sl_jarg *kw = sl_jinja_array(vm, out->n_kw + d->n + 1, sizeof *kw);
    if (kw == NULL)
        return vm->code;
    if (out->n_kw > 0)
        memcpy(kw, out->kw, out->n_kw * sizeof *kw);
    for (size_t i = 0; i < d->n; i++) {
        if (d->entries[i].key.type != SL_J_STR)
            return sl_jinja_fail(vm, "keywords must be strings");
        const struct sl_jstr *name = d->entries[i].key.u.s;
        if (sl_jinja_burn(vm, 1 + out->n_kw) != 0)
            return vm->code;
        for (size_t j = 0; j < out->n_kw; j++)
            if (kw[j].name->n_bytes == name->n_bytes &&
                memcmp(kw[j].name->data, name->data, name->n_bytes) == 0)
                return sl_jinja_fail(vm, "multiple values for a keyword argument");
        kw[out->n_kw + i] = (struct sl_jarg){name, d->entries[i].value};
    }
    out->kw = kw;
    out->n_kw += d->n;
    return 0;
}

int sl_jinja_eval_args(struct sl_jvm *vm, const struct sl_jcallargs *a, struct sl_jframe *f,
                       struct sl_jarg *caller, struct sl_jargs *out)
{
    struct sl_jval v;
    size_t n_kw = a->n_kw + (caller != NULL);
    *out = (struct sl_jargs){.n_pos = a->n_pos, .n_kw = n_kw};
    if (a->n_pos > 0 && (out->pos = sl_jinja_array(vm, a->n_pos, sizeof *out->pos)) == NULL)
        return vm->code;
    if (n_kw > 0 && (out->kw = sl_jinja_array(vm, n_kw, sizeof *out->kw)) == NULL)
        return vm->code;
    for (size_t i = 0; i < a->n_pos; i++)
        if (sl_jinja_eval(vm, a->pos[i], f, &out->pos[i]) != 0)
            return vm->code;
    for (size_t i = 0; i < a->n_kw; i++) {
        out->kw[i].name = a->kw[i].name;
        if (sl_jinja_eval(vm, a->kw[i].value, f, &out->kw[i].value) != 0)
            return vm->code;
    }
    if (caller != NULL)
        out->kw[a->n_kw] = *caller;
    if (a->star != NULL && (sl_jinja_eval(vm, a->star, f, &v) != 0 || push_star(vm, v, out) != 0))
        return vm->code;
    if (a->star_star != NULL &&
        (sl_jinja_eval(vm, a->star_star, f, &v) != 0 || push_star_star(vm, v, out) != 0))
        return vm->code;
    return 0;
}

int sl_jinja_call(struct sl_jvm *vm, struct sl_jval fn, const struct sl_jargs *args,
                  struct sl_jval *out)
{
    if (sl_jinja_burn(vm, 4) != 0)
        return vm->code;
    switch (fn.type) {
    case SL_J_MACRO:
        return sl_jinja_call_macro(vm, fn.u.macro, args, out);
    case SL_J_FUNC:
        return sl_jinja_call_global(vm, fn.kind, args, out);
    case SL_J_METHOD:
        return sl_jinja_call_method(vm, fn.u.method->self, fn.u.method->id, args, out);
    case SL_J_LOOP:
        if (args->n_pos != 1 || args->n_kw != 0)
            return sl_jinja_fail(vm, "loop() takes one argument");
        return sl_jinja_call_loop(vm, fn.u.loop, args->pos[0], out);
    case SL_J_JOINER:
        if (args->n_pos + args->n_kw > 0)
            return sl_jinja_fail(vm, "a joiner takes no arguments");
        if (!fn.u.joiner->used) {
            fn.u.joiner->used = true;
            *out = (struct sl_jval){.type = SL_J_STR, .u.s = &vm->empty};
        } else {
            *out = fn.u.joiner->sep;
        }
        return 0;
    case SL_J_UNDEFINED:
        return sl_jinja_unary(vm, false, fn, out);
    default:
        return sl_jinja_fail(vm, "'%s' object is not callable", sl_jinja_type_name(fn));
    }
}

static int eval_call(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                     struct sl_jval *out)
{
    struct sl_jval fn;
    struct sl_jargs args;
    const struct sl_jnode *callee = e->a;
    if (callee->kind == SL_JN_ATTR && callee->id != 0) { /* obj.method(...) without binding it */
        struct sl_jval obj;
        if (sl_jinja_eval(vm, callee->a, f, &obj) != 0)
            return vm->code;
        if (sl_jinja_has_method(obj.type, callee->id)) {
            if (sl_jinja_eval_args(vm, e->args, f, NULL, &args) != 0)
                return vm->code;
            vm->line = e->line;
            return sl_jinja_call_method(vm, obj, callee->id, &args, out);
        }
        if (sl_jinja_getattr(vm, obj, callee->id, callee->val.u.s, &fn) != 0)
            return vm->code;
    } else if (sl_jinja_eval(vm, callee, f, &fn) != 0) {
        return vm->code;
    }
    if (sl_jinja_eval_args(vm, e->args, f, NULL, &args) != 0)
        return vm->code;
    vm->line = e->line;
    return sl_jinja_call(vm, fn, &args, out);
}

static int eval_filter(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                       struct sl_jval *out)
{
    struct sl_jval v;
    struct sl_jargs args = {0};
    if (sl_jinja_eval(vm, e->a, f, &v) != 0 ||
        (e->args != NULL && sl_jinja_eval_args(vm, e->args, f, NULL, &args) != 0))
        return vm->code;
    return sl_jinja_filter(vm, e->id, e->val.u.s->data, v, &args, out);
}

static int eval_test(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                     struct sl_jval *out)
{
    struct sl_jval v;
    struct sl_jargs args = {0};
    bool yes = false;
    if (sl_jinja_eval(vm, e->a, f, &v) != 0 ||
        (e->args != NULL && sl_jinja_eval_args(vm, e->args, f, NULL, &args) != 0) ||
        sl_jinja_test(vm, e->id, v, &args, &yes) != 0)
        return vm->code;
    *out = sl_jinja_bool(yes);
    return 0;
}

static int eval_not(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                    struct sl_jval *out)
{
    struct sl_jval v;
    if (sl_jinja_eval(vm, e->a, f, &v) != 0)
        return vm->code;
    *out = sl_jinja_bool(!sl_jinja_truth(v));
    return 0;
}

static int eval_kind(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                     struct sl_jval *out)
{
    struct sl_jval v;
    switch (e->kind) {
    case SL_JN_CONST:
        *out = e->val;
        return 0;
    case SL_JN_NAME:
        return eval_name(vm, e, f, out);
    case SL_JN_LIST:
    case SL_JN_TUPLE:
        return eval_list(vm, e, f, out);
    case SL_JN_DICT:
        return eval_dict(vm, e, f, out);
    case SL_JN_BINARY:
        return eval_binary(vm, e, f, out);
    case SL_JN_AND:
    case SL_JN_OR:
        return eval_logic(vm, e, f, out);
    case SL_JN_NOT:
        return eval_not(vm, e, f, out);
    case SL_JN_NEG:
    case SL_JN_POS:
        if (sl_jinja_eval(vm, e->a, f, &v) != 0)
            return vm->code;
        return sl_jinja_unary(vm, e->kind == SL_JN_NEG, v, out);
    case SL_JN_COMPARE:
        return eval_compare(vm, e, f, out);
    case SL_JN_CONCAT:
        return eval_concat(vm, e, f, out);
    case SL_JN_COND:
        return eval_cond(vm, e, f, out);
    case SL_JN_ATTR:
        if (sl_jinja_eval(vm, e->a, f, &v) != 0)
            return vm->code;
        return sl_jinja_getattr(vm, v, e->id, e->val.u.s, out);
    case SL_JN_ITEM:
        return eval_item(vm, e, f, out);
    case SL_JN_SLICE:
        return eval_slice(vm, e, f, out);
    case SL_JN_CALL:
        return eval_call(vm, e, f, out);
    case SL_JN_FILTER:
        return eval_filter(vm, e, f, out);
    default: /* SL_JN_TEST */
        return eval_test(vm, e, f, out);
    }
}

int sl_jinja_eval(struct sl_jvm *vm, const struct sl_jnode *e, struct sl_jframe *f,
                  struct sl_jval *out)
{
    if (sl_jinja_burn(vm, 2) != 0)
        return vm->code;
    if (vm->depth >= SL_JINJA_MAX_DEPTH)
        return sl_jinja_fail(vm, "nested too deeply");
    vm->depth++;
    int code = eval_kind(vm, e, f, out);
    vm->depth--;
    return code;
}
