/* SPDX-License-Identifier: MIT
 *
 * The state of one rendering: failing once, fuel, memory, scopes and output.
 *
 * Captured text (a macro's result, repr, join) is written behind the real output and taken off
 * again, so that all text building shares one growing buffer and one limit.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int sl_jinja_fail(struct sl_jvm *vm, const char *fmt, ...)
{
    if (vm->code != 0)
        return vm->code;
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return vm->code = sl_fail(vm->err, SL_EINVAL, "template line %u: %s", vm->line, text);
}

int sl_jinja_fail_fuel(struct sl_jvm *vm)
{
    vm->fuel = 0;
    return sl_jinja_fail(vm, "the template takes too many steps");
}

void *sl_jinja_alloc(struct sl_jvm *vm, size_t n_bytes)
{
    if (sl_jinja_burn(vm, 3 + n_bytes / 32) != 0)
        return NULL;
    size_t total;
    bool too_much =
        /* unreachable: a sum that wraps, sizes are checked where they are made */
        !sl_add_size(vm->arena.used_bytes, n_bytes, &total) || total > vm->arena.max_bytes - 16;
    void *p = too_much ? NULL : sl_arena_alloc(&vm->arena, n_bytes);
    if (p == NULL && vm->code == 0) {
        if (too_much)
            sl_jinja_fail(vm, "the template uses too much memory");
        else
            vm->code = sl_fail(vm->err, SL_ENOMEM, "no memory to render a chat template");
    }
    return p;
}

void *sl_jinja_array(struct sl_jvm *vm, size_t n, size_t size)
{
    size_t n_bytes;
    if (!sl_mul_size(n, size, &n_bytes)) /* unreachable: true, n things are in memory */
        n_bytes = SIZE_MAX / 2;
    return sl_jinja_alloc(vm, n_bytes);
}

int sl_jinja_put(struct sl_jvm *vm, const char *s, size_t n)
{
    if (n == 0)
        return 0;
    if (sl_jinja_burn(vm, 2 + n / 16) != 0)
        return vm->code;
    if (n > vm->out_limit - vm->out->n_bytes)
        return sl_jinja_fail(vm, "the output is too long");
    sl_buf_put(vm->out, s, n);
    if (!sl_buf_ok(vm->out))
        vm->code = sl_fail(vm->err, SL_ENOMEM, "no memory for the output of a chat template");
    return vm->code;
}

int sl_jinja_puts(struct sl_jvm *vm, const char *s)
{
    return sl_jinja_put(vm, s, strlen(s));
}

int sl_jinja_take(struct sl_jvm *vm, size_t mark, struct sl_jval *out)
{
    size_t n = vm->out->n_bytes - mark;
    if (sl_jinja_str(vm, n > 0 ? vm->out->data + mark : "", n, out) != 0)
        return vm->code;
    vm->out->n_bytes = mark;
    return 0;
}

struct sl_jframe *sl_jinja_frame(struct sl_jvm *vm, struct sl_jframe *parent)
{
    struct sl_jframe *f = sl_jinja_alloc(vm, sizeof *f);
    if (f != NULL)
        f->parent = parent;
    return f;
}

int sl_jinja_bind(struct sl_jvm *vm, struct sl_jframe *f, uint32_t sym, struct sl_jval v)
{
    if (f->parent == NULL) {
        vm->globals[sym] = v;
        return 0;
    }
    for (uint32_t i = 0; i < f->n; i++)
        if (f->bindings[i].sym == sym) {
            f->bindings[i].value = v;
            return 0;
        }
    if (f->n == f->cap) {
        uint32_t cap = f->cap == 0 ? 4 : f->cap * 2;
        struct sl_jbinding *grown = sl_jinja_array(vm, cap, sizeof *grown);
        if (grown == NULL)
            return vm->code;
        if (f->n > 0)
            memcpy(grown, f->bindings, f->n * sizeof *grown);
        f->bindings = grown;
        f->cap = cap;
    }
    f->bindings[f->n++] = (struct sl_jbinding){sym, v};
    return 0;
}

struct sl_jval sl_jinja_lookup(const struct sl_jvm *vm, const struct sl_jframe *f, uint32_t sym)
{
    for (; f->parent != NULL; f = f->parent)
        for (uint32_t i = 0; i < f->n; i++)
            if (f->bindings[i].sym == sym)
                return f->bindings[i].value;
    return vm->globals[sym];
}
