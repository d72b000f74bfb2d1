/* SPDX-License-Identifier: MIT
 *
 * Runs statements. Scopes follow jinja2: loops, macros, with and captured blocks open one, if does
 * not; what a loop body sets is gone with the iteration.
 */
#include "text/jinja/jinja.h"

#include <string.h>

static int assign(struct sl_jvm *vm, const struct sl_jnode *target, struct sl_jval v,
                  struct sl_jframe *f)
{
    if (target->kind == SL_JN_NAME)
        return sl_jinja_bind(vm, f, target->sym, v);
    if (target->kind == SL_JN_NSREF) {
        struct sl_jval ns = sl_jinja_lookup(vm, f, target->sym);
        if (ns.type != SL_J_NAMESPACE)
            return sl_jinja_fail(vm, "cannot assign attribute on non-namespace object");
        const struct sl_jstr *name = target->val.u.s;
        if (name->data[0] == '_')
            return sl_jinja_fail(vm, "namespace attributes may not begin with an underscore");
        return sl_jinja_dict_set(vm, ns.u.dict, target->val, v);
    }
    struct sl_jseq seq;
    if (!sl_jinja_iterable(v))
        return sl_jinja_fail(vm, "cannot unpack non-iterable %s object", sl_jinja_type_name(v));
    if (sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    if (seq.n != target->n)
        return sl_jinja_fail(vm, "%s values to unpack (expected %u)",
                             seq.n < target->n ? "not enough" : "too many", target->n);
    for (uint32_t i = 0; i < target->n; i++) {
        struct sl_jval item;
        if (!sl_jinja_next(vm, &seq, &item) || assign(vm, target->list[i], item, f) != 0)
            return vm->code;
    }
    return 0;
}

/* ---------------------------------------------------------------- loops */

struct loop_run {
    const struct sl_jnode *node;
    struct sl_jframe *outer;
    struct sl_jframe *inner; /* reused while no macro holds on to it */
    struct sl_jlist *items;  /* after the loop's own if */
    size_t depth0;
};

/* Only the items that pass the loop's own condition. */
static int filter_items(struct sl_jvm *vm, struct loop_run *run, struct sl_jval over,
                        struct sl_jval *out)
{
    struct sl_jseq seq;
    struct sl_jval item, ok;
    struct sl_jlist *l = sl_jinja_list(vm, 0);
    struct sl_jframe *f = sl_jinja_frame(vm, run->outer);
    if (l == NULL || f == NULL || sl_jinja_iter(vm, over, &seq) != 0)
        return vm->code;
    while (sl_jinja_next(vm, &seq, &item)) {
        f->n = 0;
        if (assign(vm, run->node->a, item, f) != 0 || sl_jinja_eval(vm, run->node->c, f, &ok) != 0)
            return vm->code;
        if (sl_jinja_truth(ok) && sl_jinja_push(vm, l, item) != 0)
            return vm->code;
    }
    *out = sl_jinja_list_val(l);
    return vm->code;
}

static int run_iteration(struct sl_jvm *vm, struct loop_run *run, struct sl_jloop *loop,
                         struct sl_jval item)
{
    if (run->inner == NULL || run->inner->captured) {
        run->inner = sl_jinja_frame(vm, run->outer);
        if (run->inner == NULL)
            return vm->code;
    }
    struct sl_jframe *f = run->inner;
    struct sl_jval lv = {.type = SL_J_LOOP, .u.loop = loop};
    f->n = 0;
    if (sl_jinja_burn(vm, 4) != 0 || assign(vm, run->node->a, item, f) != 0 ||
        sl_jinja_bind(vm, f, vm->t->sym_loop, lv) != 0)
        return vm->code;
    return sl_jinja_exec(vm, run->node->list[0], f);
}

static int run_loop(struct sl_jvm *vm, struct loop_run *run, struct sl_jval over)
{
    struct sl_jseq seq;
    struct sl_jloop *loop = sl_jinja_alloc(vm, sizeof *loop);
    if (loop == NULL)
        return vm->code;
    if (run->node->c != NULL && filter_items(vm, run, over, &over) != 0)
        return vm->code;
    if (sl_jinja_iter(vm, over, &seq) != 0)
        return vm->code;
    *loop = (struct sl_jloop){
        .node = run->node, .outer = run->outer, .n = seq.n, .depth0 = run->depth0};
    struct sl_jval item, next = {0};
    bool more = sl_jinja_next(vm, &seq, &next), ran = false;
    int code = 0;
    while (more) {
        item = next;
        next = (struct sl_jval){0};
        more = sl_jinja_next(vm, &seq, &next);
        loop->next = next;
        code = run_iteration(vm, run, loop, item);
        if (code == SL_JINJA_BREAK || code < 0)
            break;
        ran = ran || code == 0; /* as in jinja2: a body that continue leaves has not run */
        loop->prev = item;
        loop->index0++;
    }
    if (vm->code != 0)
        return vm->code;
    if (ran || run->node->list[1] == NULL)
        return 0;
    struct sl_jframe *f = sl_jinja_frame(vm, run->outer);
    return f != NULL ? sl_jinja_exec(vm, run->node->list[1], f) : vm->code;
}

static int exec_for(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    struct loop_run run = {.node = s, .outer = f};
    struct sl_jval over;
    if (s->op) /* its body may run again later through loop() */
        f->captured = true;
    if (sl_jinja_eval(vm, s->b, f, &over) != 0)
        return vm->code;
    return run_loop(vm, &run, over);
}

int sl_jinja_call_loop(struct sl_jvm *vm, const struct sl_jloop *loop, struct sl_jval over,
                       struct sl_jval *out)
{
    if (loop->node->op == 0)
        return sl_jinja_fail(vm, "the loop must have the 'recursive' marker to be called");
    if (vm->call_depth >= SL_TEMPLATE_DEPTH)
        return sl_jinja_fail(vm, "calls are nested too deeply");
    struct loop_run run = {.node = loop->node, .outer = loop->outer, .depth0 = loop->depth0 + 1};
    size_t mark = vm->out->n_bytes;
    vm->call_depth++;
    int code = run_loop(vm, &run, over);
    vm->call_depth--;
    return code != 0 ? code : sl_jinja_take(vm, mark, out);
}

/* ---------------------------------------------------------------- macros */

static struct sl_jval *find_kw(const struct sl_jargs *args, const struct sl_jstr *name)
{
    for (size_t i = 0; i < args->n_kw; i++)
        if (args->kw[i].name->n_bytes == name->n_bytes &&
            memcmp(args->kw[i].name->data, name->data, name->n_bytes) == 0)
            return &args->kw[i].value;
    return NULL;
}

static bool is_param(const struct sl_jvm *vm, const struct sl_jnode *m, size_t from,
                     const struct sl_jstr *name)
{
    for (size_t i = from; i < m->n; i++) {
        const struct sl_jstr *param = vm->t->names[m->list[i]->sym];
        if (param->n_bytes == name->n_bytes && memcmp(param->data, name->data, name->n_bytes) == 0)
            return true;
    }
    return false;
}

/* Keyword arguments that are no parameter: into kwargs, or an error. */
static int bind_extra_kw(struct sl_jvm *vm, const struct sl_jnode *m, const struct sl_jargs *args,
                         struct sl_jframe *f, bool caller_taken)
{
    struct sl_jdict *kwargs = NULL;
    if ((m->op & SL_JM_KWARGS) && (kwargs = sl_jinja_dict(vm, 0)) == NULL)
        return vm->code;
    for (size_t i = 0; i < args->n_kw; i++) {
        const struct sl_jstr *name = args->kw[i].name;
        struct sl_jval key = {.type = SL_J_STR, .u.s = (struct sl_jstr *)(uintptr_t)name};
        if (is_param(vm, m, args->n_pos, name) || (caller_taken && sl_jinja_str_is(name, "caller")))
            continue;
        if (kwargs == NULL)
            return sl_jinja_fail(vm, "macro '%.60s' takes no keyword argument '%.*s'",
                                 m->val.u.s->data, (int)(name->n_bytes < 60 ? name->n_bytes : 60),
                                 name->data);
        if (sl_jinja_dict_set(vm, kwargs, key, args->kw[i].value) != 0)
            return vm->code;
    }
    if (kwargs == NULL)
        return 0;
    return sl_jinja_bind(vm, f, vm->t->sym_kwargs,
                         (struct sl_jval){.type = SL_J_DICT, .u.dict = kwargs});
}

static int bind_specials(struct sl_jvm *vm, const struct sl_jnode *m, const struct sl_jargs *args,
                         struct sl_jframe *f)
{
    bool own_caller = false;
    for (uint32_t i = 0; i < m->n; i++)
        own_caller |= m->list[i]->sym == vm->t->sym_caller;
    bool takes_caller = (m->op & SL_JM_CALLER) && !own_caller;
    if (takes_caller) {
        const struct sl_jval *given = find_kw(args, vm->t->names[vm->t->sym_caller]);
        struct sl_jval caller = given != NULL ? *given : sl_jinja_hint(vm, "No caller defined");
        if (sl_jinja_bind(vm, f, vm->t->sym_caller, caller) != 0)
            return vm->code;
    }
    if (bind_extra_kw(vm, m, args, f, takes_caller) != 0)
        return vm->code;
    if (!(m->op & SL_JM_VARARGS)) {
        if (args->n_pos > m->n)
            return sl_jinja_fail(vm, "macro '%.60s' takes not more than %u argument(s)",
                                 m->val.u.s->data, m->n);
        return 0;
    }
    struct sl_jlist *rest = sl_jinja_list(vm, 0);
    for (size_t i = m->n; rest != NULL && i < args->n_pos; i++)
        if (sl_jinja_push(vm, rest, args->pos[i]) != 0)
            return vm->code;
    if (rest == NULL)
        return vm->code;
    return sl_jinja_bind(vm, f, vm->t->sym_varargs, sl_jinja_tuple_val(rest));
}

static int bind_params(struct sl_jvm *vm, const struct sl_jnode *m, const struct sl_jargs *args,
                       struct sl_jframe *f)
{
    if (bind_specials(vm, m, args, f) != 0)
        return vm->code;
    for (uint32_t i = 0; i < m->n; i++) { /* a default may mention the parameters before it */
        const struct sl_jnode *param = m->list[i];
        const struct sl_jstr *name = vm->t->names[param->sym];
        struct sl_jval v, *kw = i < args->n_pos ? NULL : find_kw(args, name);
        if (i < args->n_pos)
            v = args->pos[i];
        else if (kw != NULL)
            v = *kw;
        else if (param->a == NULL)
            v = sl_jinja_hint(vm, "a parameter of a macro was not provided");
        else if (sl_jinja_eval(vm, param->a, f, &v) != 0)
            return vm->code;
        if (vm->code != 0 || sl_jinja_bind(vm, f, param->sym, v) != 0)
            return vm->code;
    }
    return 0;
}

int sl_jinja_call_macro(struct sl_jvm *vm, const struct sl_jmacro *m, const struct sl_jargs *args,
                        struct sl_jval *out)
{
    if (vm->call_depth >= SL_TEMPLATE_DEPTH)
        return sl_jinja_fail(vm, "calls are nested too deeply");
    struct sl_jframe *f = sl_jinja_frame(vm, m->frame);
    if (f == NULL)
        return vm->code;
    size_t mark = vm->out->n_bytes;
    uint32_t line = vm->line;
    vm->call_depth++;
    int code = bind_params(vm, m->node, args, f);
    if (code == 0)
        code = sl_jinja_exec(vm, m->node->b, f);
    vm->call_depth--;
    if (code < 0)
        return code;
    vm->line = line;
    return sl_jinja_take(vm, mark, out);
}

static int make_macro(struct sl_jvm *vm, const struct sl_jnode *node, struct sl_jframe *f,
                      struct sl_jval *out)
{
    struct sl_jmacro *m = sl_jinja_alloc(vm, sizeof *m);
    if (m == NULL)
        return vm->code;
    *m = (struct sl_jmacro){.node = node, .frame = f};
    f->captured = true;
    *out = (struct sl_jval){.type = SL_J_MACRO, .u.macro = m};
    return 0;
}

/* ---------------------------------------------------------------- the other statements */

static int exec_call_block(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    struct sl_jval fn, result;
    struct sl_jarg caller = {.name = vm->t->names[vm->t->sym_caller]};
    struct sl_jargs args;
    if (make_macro(vm, s->b, f, &caller.value) != 0 || sl_jinja_eval(vm, s->a->a, f, &fn) != 0 ||
        sl_jinja_eval_args(vm, s->a->args, f, &caller, &args) != 0 ||
        sl_jinja_call(vm, fn, &args, &result) != 0)
        return vm->code;
    return sl_jinja_print(vm, result);
}

/* Applies a chain of filters whose innermost input is v. */
static int apply_filters(struct sl_jvm *vm, const struct sl_jnode *chain, struct sl_jframe *f,
                         struct sl_jval *v)
{
    if (chain == NULL)
        return 0;
    if (vm->depth >= SL_JINJA_MAX_DEPTH)
        return sl_jinja_fail(vm, "nested too deeply");
    vm->depth++;
    int code = apply_filters(vm, chain->a, f, v);
    vm->depth--;
    struct sl_jargs args = {0};
    if (code != 0 ||
        (chain->args != NULL && sl_jinja_eval_args(vm, chain->args, f, NULL, &args) != 0))
        return vm->code;
    char name[64];
    size_t n = chain->val.u.s->n_bytes < 63 ? chain->val.u.s->n_bytes : 63;
    memcpy(name, chain->val.u.s->data, n);
    name[n] = '\0';
    return sl_jinja_filter(vm, chain->id, name, *v, &args, v);
}

/* {% set x %}...{% endset %} and {% filter f %}...{% endfilter %} */
static int exec_captured(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    size_t mark = vm->out->n_bytes;
    struct sl_jframe *inner = sl_jinja_frame(vm, f);
    struct sl_jval text;
    if (inner == NULL)
        return vm->code;
    int code = sl_jinja_exec(vm, s->b, inner);
    if (code != 0) { /* failed, or a break leaves with what was captured */
        vm->out->n_bytes = code > 0 ? mark : vm->out->n_bytes;
        return code;
    }
    if (sl_jinja_take(vm, mark, &text) != 0)
        return vm->code;
    if (s->kind == SL_JN_FILTERBLOCK) {
        if (apply_filters(vm, s->a, f, &text) != 0)
            return vm->code;
        return sl_jinja_print(vm, text);
    }
    if (apply_filters(vm, s->c, f, &text) != 0)
        return vm->code;
    return assign(vm, s->a, text, f);
}

static int exec_with(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    struct sl_jframe *inner = sl_jinja_frame(vm, f);
    if (inner == NULL)
        return vm->code;
    for (uint32_t i = 0; i + 1 < s->n; i += 2) {
        struct sl_jval v; /* values do not see the targets before them */
        if (sl_jinja_eval(vm, s->list[i + 1], f, &v) != 0 || assign(vm, s->list[i], v, inner) != 0)
            return vm->code;
    }
    return sl_jinja_exec(vm, s->b, inner);
}

static int exec_set(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    struct sl_jval v;
    return sl_jinja_eval(vm, s->b, f, &v) != 0 ? vm->code : assign(vm, s->a, v, f);
}

static int exec_print(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    struct sl_jval v;
    return sl_jinja_eval(vm, s->a, f, &v) != 0 ? vm->code : sl_jinja_print(vm, v);
}

static int exec_if(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    for (;;) {
        struct sl_jval test;
        vm->line = s->line;
        if (sl_jinja_eval(vm, s->a, f, &test) != 0)
            return vm->code;
        if (sl_jinja_truth(test))
            return sl_jinja_exec(vm, s->b, f);
        if (s->c == NULL)
            return 0;
        if (s->c->kind != SL_JN_IF || s->c->next != NULL)
            return sl_jinja_exec(vm, s->c, f);
        s = s->c; /* elif */
    }
}

static int exec_one(struct sl_jvm *vm, const struct sl_jnode *s, struct sl_jframe *f)
{
    struct sl_jval v;
    switch (s->kind) {
    case SL_JN_TEXT:
        return sl_jinja_put(vm, s->val.u.s->data, s->val.u.s->n_bytes);
    case SL_JN_PRINT:
        return exec_print(vm, s, f);
    case SL_JN_IF:
        return exec_if(vm, s, f);
    case SL_JN_FOR:
        return exec_for(vm, s, f);
    case SL_JN_SET:
        return exec_set(vm, s, f);
    case SL_JN_SETBLOCK:
    case SL_JN_FILTERBLOCK:
        return exec_captured(vm, s, f);
    case SL_JN_MACRO:
        return make_macro(vm, s, f, &v) != 0 ? vm->code : sl_jinja_bind(vm, f, s->sym, v);
    case SL_JN_CALLBLOCK:
        return exec_call_block(vm, s, f);
    case SL_JN_WITH:
        return exec_with(vm, s, f);
    case SL_JN_SCOPE:
        if ((f = sl_jinja_frame(vm, s->op ? &vm->root : f)) == NULL)
            return vm->code;
        return sl_jinja_exec(vm, s->b, f);
    case SL_JN_BREAK:
        return SL_JINJA_BREAK;
    case SL_JN_CONTINUE:
        return SL_JINJA_CONTINUE;
    default: /* SL_JN_DO */
        return sl_jinja_eval(vm, s->a, f, &v);
    }
}

int sl_jinja_exec(struct sl_jvm *vm, const struct sl_jnode *body, struct sl_jframe *f)
{
    if (vm->depth >= SL_JINJA_MAX_DEPTH)
        return sl_jinja_fail(vm, "nested too deeply");
    vm->depth++;
    int code = 0;
    for (const struct sl_jnode *s = body; s != NULL && code == 0; s = s->next) {
        vm->line = s->line;
        if ((code = sl_jinja_burn(vm, 2)) == 0)
            code = exec_one(vm, s, f);
    }
    vm->depth--;
    return code;
}
