/* SPDX-License-Identifier: MIT
 *
 * Methods of dicts, lists, loops and the like, and the table of all names.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

#define M(name) SL_JMETHOD_##name

static const char *const names[] = {
    "",
#define SL_X(name) #name,
#include "text/jinja/jinja_methods.def"
#undef SL_X
};

unsigned sl_jinja_method_find(const char *name, size_t n)
{
    size_t lo = 1, hi = n > 0 ? SL_COUNT(names) : 1; /* an empty name may be no pointer */
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int c = strncmp(names[mid], name, n);
        if (c == 0 && names[mid][n] != '\0')
            c = 1;
        if (c == 0)
            return (unsigned)mid;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

const char *sl_jinja_method_name(unsigned id)
{
    return names[id];
}

static int dict_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                       const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval a[2];
    if (id == M(get)) {
        if (args->n_kw > 0)
            return sl_jinja_fail(vm, "get() takes no keyword arguments");
        if (sl_jinja_params(vm, "get()", args, "key,default", 1, a) != 0 ||
            sl_jinja_dict_get(vm, self.u.dict, a[0], true, out) != 0)
            return vm->code;
        if (out->type == SL_J_MISSING)
            *out = a[1].type != SL_J_MISSING ? a[1] : sl_jinja_none();
        return 0;
    }
    if (args->n_pos + args->n_kw > 0)
        return sl_jinja_fail(vm, "%s() takes no arguments", names[id]);
    if (id == M(copy)) {
        *out = self;
        return 0;
    }
    *out = (struct sl_jval){.type = SL_J_VIEW, .u.dict = self.u.dict};
    out->kind = id == M(items) ? SL_JVIEW_ITEMS : id == M(keys) ? SL_JVIEW_KEYS : SL_JVIEW_VALUES;
    return 0;
}

static int seq_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                      const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval a[3], item;
    struct sl_jseq seq;
    if (id == M(copy)) {
        *out = self;
        return args->n_pos == 0 ? 0 : sl_jinja_fail(vm, "copy() takes no arguments");
    }
    if (sl_jinja_params(vm, names[id], args, id == M(index) ? "value,start,stop" : "value", 1, a) !=
            0 ||
        sl_jinja_iter(vm, self, &seq) != 0) /* unreachable: true, only of text */
        return vm->code;
    int64_t n = 0, i = 0, start = 0, stop = INT64_MAX, len = (int64_t)seq.n;
    if (id == M(index) &&
        ((a[1].type != SL_J_MISSING && sl_jinja_want_int(vm, "index()", a[1], &start) != 0) ||
         (a[2].type != SL_J_MISSING && sl_jinja_want_int(vm, "index()", a[2], &stop) != 0)))
        return vm->code;
    start = start < 0 ? SL_MAX(start + len, 0) : start;
    stop = stop < 0 ? stop + len : stop;
    for (; sl_jinja_next(vm, &seq, &item); i++) {
        bool same;
        if (sl_jinja_equal(vm, item, a[0], &same) != 0)
            return vm->code;
        if (same && id == M(index) && i >= start && i < stop) {
            *out = sl_jinja_int(i);
            return 0;
        }
        n += same;
    }
    if (id == M(index) && vm->code == 0)
        return sl_jinja_fail(vm, "the value is not in the list");
    *out = sl_jinja_int(n);
    return vm->code;
}

static int loop_method(struct sl_jvm *vm, struct sl_jloop *l, unsigned id,
                       const struct sl_jargs *args, struct sl_jval *out)
{
    if (args->n_kw > 0)
        return sl_jinja_fail(vm, "loop.%s() takes no keyword arguments", names[id]);
    if (id == M(cycle)) {
        if (args->n_pos == 0)
            return sl_jinja_fail(vm, "no items for cycling given");
        *out = args->pos[l->index0 % args->n_pos];
        return 0;
    }
    struct sl_jlist *now = sl_jinja_list(vm, args->n_pos);
    bool same = false;
    if (now == NULL)
        return vm->code;
    for (size_t i = 0; i < args->n_pos; i++)
        if (sl_jinja_push(vm, now, args->pos[i]) != 0)
            return vm->code;
    struct sl_jval v = sl_jinja_tuple_val(now);
    if (l->changed.type != SL_J_MISSING && sl_jinja_equal(vm, v, l->changed, &same) != 0)
        return vm->code;
    l->changed = v;
    *out = sl_jinja_bool(!same);
    return 0;
}

static int cycler_method(struct sl_jvm *vm, struct sl_jcycler *c, unsigned id,
                         const struct sl_jargs *args, struct sl_jval *out)
{
    if (args->n_pos + args->n_kw > 0)
        return sl_jinja_fail(vm, "%s() takes no arguments", names[id]);
    *out = id == M(next) ? c->items->items[c->pos] : sl_jinja_none();
    c->pos = id == M(next) ? (c->pos + 1) % c->items->n : 0;
    return 0;
}

int sl_jinja_call_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                         const struct sl_jargs *args, struct sl_jval *out)
{
    if (sl_jinja_burn(vm, 4) != 0)
        return vm->code;
    switch (self.type) {
    case SL_J_STR:
        return sl_jinja_str_method(vm, self, id, args, out);
    case SL_J_DICT:
        return dict_method(vm, self, id, args, out);
    case SL_J_LIST:
    case SL_J_TUPLE:
    case SL_J_RANGE:
        return seq_method(vm, self, id, args, out);
    case SL_J_LOOP:
        return loop_method(vm, self.u.loop, id, args, out);
    case SL_J_CYCLER:
        return cycler_method(vm, self.u.cycler, id, args, out);
    default: /* a float's is_integer */
        *out = sl_jinja_bool(isfinite(self.u.f) && floor(self.u.f) == self.u.f);
        return 0;
    }
}
