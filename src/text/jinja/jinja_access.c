/* SPDX-License-Identifier: MIT
 *
 * obj.name and obj[key]. As in jinja2's sandbox obj.name prefers what the type itself has and then
 * looks for the key, obj[key] the other way round; what would change the object is hidden.
 */
#include "text/jinja/jinja.h"

#include <string.h>

#define M(name) SL_JMETHOD_##name

bool sl_jinja_has_method(uint8_t type, unsigned method)
{
    switch (type) {
    case SL_J_STR:
        switch (method) {
        case M(capitalize):
        case M(casefold):
        case M(center):
        case M(count):
        case M(endswith):
        case M(expandtabs):
        case M(find):
        case M(format):
        case M(index):
        case M(isalnum):
        case M(isalpha):
        case M(isascii):
        case M(isdecimal):
        case M(isdigit):
        case M(isidentifier):
        case M(islower):
        case M(isnumeric):
        case M(isprintable):
        case M(isspace):
        case M(istitle):
        case M(isupper):
        case M(join):
        case M(ljust):
        case M(lower):
        case M(lstrip):
        case M(partition):
        case M(removeprefix):
        case M(removesuffix):
        case M(replace):
        case M(rfind):
        case M(rindex):
        case M(rjust):
        case M(rpartition):
        case M(rsplit):
        case M(rstrip):
        case M(split):
        case M(splitlines):
        case M(startswith):
        case M(strip):
        case M(swapcase):
        case M(title):
        case M(upper):
        case M(zfill):
            return true;
        default:
            return false;
        }
    case SL_J_LIST:
        return method == M(count) || method == M(index) || method == M(copy);
    case SL_J_TUPLE:
    case SL_J_RANGE:
        return method == M(count) || method == M(index);
    case SL_J_DICT:
        return method == M(get) || method == M(items) || method == M(keys) || method == M(values) ||
               method == M(copy);
    case SL_J_FLOAT:
        return method == M(is_integer);
    case SL_J_LOOP:
        return method == M(cycle) || method == M(changed);
    case SL_J_CYCLER:
        return method == M(next) || method == M(reset);
    default:
        return false;
    }
}

/* Methods that a mapping has in Python, and that change it: an undefined that fails when called. */
static bool is_hidden(unsigned method)
{
    return method == M(clear) || method == M(pop) || method == M(popitem) ||
           method == M(setdefault) || method == M(update);
}

static struct sl_jval undefined_attr(struct sl_jval obj, const struct sl_jstr *name)
{
    return (struct sl_jval){.type = SL_J_UNDEFINED,
                            .kind = SL_JU_ATTR,
                            .extra = obj.type,
                            .u.s = (struct sl_jstr *)(uintptr_t)name};
}

static bool loop_attr(const struct sl_jloop *l, unsigned method, struct sl_jval *out)
{
    int64_t i = (int64_t)l->index0, n = (int64_t)l->n;
    switch (method) {
    case M(index):
        *out = sl_jinja_int(i + 1);
        return true;
    case M(index0):
        *out = sl_jinja_int(i);
        return true;
    case M(revindex):
        *out = sl_jinja_int(n - i);
        return true;
    case M(revindex0):
        *out = sl_jinja_int(n - i - 1);
        return true;
    case M(first):
        *out = sl_jinja_bool(i == 0);
        return true;
    case M(last):
        *out = sl_jinja_bool(l->next.type == SL_J_MISSING);
        return true;
    case M(length):
        *out = sl_jinja_int(n);
        return true;
    case M(depth):
        *out = sl_jinja_int((int64_t)l->depth0 + 1);
        return true;
    case M(depth0):
        *out = sl_jinja_int((int64_t)l->depth0);
        return true;
    case M(previtem):
        *out = l->prev;
        return true;
    case M(nextitem):
        *out = l->next;
        return true;
    default:
        return false;
    }
}

static bool macro_attr(struct sl_jvm *vm, const struct sl_jnode *m, const struct sl_jstr *name,
                       struct sl_jval *out)
{
    if (sl_jinja_str_is(name, "name")) {
        *out = m->val;
        return true;
    }
    uint8_t use = sl_jinja_str_is(name, "caller")          ? SL_JM_CALLER
                  : sl_jinja_str_is(name, "catch_kwargs")  ? SL_JM_KWARGS
                  : sl_jinja_str_is(name, "catch_varargs") ? SL_JM_VARARGS
                                                           : 0;
    if (use != 0) {
        *out = sl_jinja_bool((m->op & use) != 0);
        return true;
    }
    if (!sl_jinja_str_is(name, "arguments"))
        return false;
    struct sl_jlist *l = sl_jinja_list(vm, m->n);
    for (uint32_t i = 0; l != NULL && i < m->n; i++) {
        const struct sl_jstr *param = vm->t->names[m->list[i]->sym];
        struct sl_jval v = {.type = SL_J_STR, .u.s = (struct sl_jstr *)(uintptr_t)param};
        if (sl_jinja_push(vm, l, v) != 0)
            break;
    }
    *out = sl_jinja_tuple_val(l);
    return true;
}

/* What the type has by itself, methods aside. */
static bool own_attr(struct sl_jvm *vm, struct sl_jval obj, unsigned method,
                     const struct sl_jstr *name, struct sl_jval *out)
{
    switch (obj.type) {
    case SL_J_NAMESPACE:
        *out = sl_jinja_dict_str(obj.u.dict, name);
        return out->type != SL_J_MISSING;
    case SL_J_LOOP:
        if (!loop_attr(obj.u.loop, method, out))
            return false;
        if (out->type == SL_J_MISSING)
            *out = sl_jinja_hint(vm, method == M(previtem) ? "there is no previous item"
                                                           : "there is no next item");
        return true;
    case SL_J_MACRO:
        return macro_attr(vm, obj.u.macro->node, name, out);
    case SL_J_RANGE:
        if (method != M(start) && method != M(stop) && method != M(step))
            return false;
        *out = sl_jinja_int(method == M(start)  ? obj.u.range->start
                            : method == M(stop) ? obj.u.range->stop
                                                : obj.u.range->step);
        return true;
    case SL_J_TUPLE:
        if (!obj.u.list->is_group || (method != M(grouper) && method != M(list)))
            return false;
        *out = obj.u.list->items[method == M(list)];
        return true;
    case SL_J_CYCLER:
        if (method != M(current))
            return false;
        *out = obj.u.cycler->items->items[obj.u.cycler->pos];
        return true;
    default:
        return false;
    }
}

static int jinja_access_fail_undefined(struct sl_jvm *vm, struct sl_jval obj, struct sl_jval *out)
{
    return sl_jinja_unary(vm, false, obj, out);
}

int sl_jinja_getattr(struct sl_jvm *vm, struct sl_jval obj, unsigned method,
                     const struct sl_jstr *name, struct sl_jval *out)
{
    if (obj.type == SL_J_UNDEFINED)
        return jinja_access_fail_undefined(vm, obj, out);
    if (method != 0 && sl_jinja_has_method(obj.type, method)) {
        struct sl_jmethod *m = sl_jinja_alloc(vm, sizeof *m);
        if (m == NULL)
            return vm->code;
        *m = (struct sl_jmethod){obj, method};
        *out = (struct sl_jval){.type = SL_J_METHOD, .u.method = m};
        return 0;
    }
    if (obj.type == SL_J_DICT && !is_hidden(method)) {
        if (sl_jinja_burn(vm, 1 + obj.u.dict->n / 8) != 0)
            return vm->code;
        *out = sl_jinja_dict_str(obj.u.dict, name);
        if (out->type != SL_J_MISSING)
            return 0;
    }
    if (own_attr(vm, obj, method, name, out))
        return vm->code;
    *out = undefined_attr(obj, name);
    return vm->code;
}

/* Item number idx (negative from the end) of a sequence; false when there is none. */
static bool item_at(struct sl_jvm *vm, struct sl_jval obj, int64_t idx, struct sl_jval *out)
{
    size_t n;
    if (sl_jinja_length(vm, obj, &n) != 0)
        return false;
    if (idx < 0)
        idx += (int64_t)n;
    if (idx < 0 || (uint64_t)idx >= n)
        return false;
    size_t i = (size_t)idx;
    if (obj.type == SL_J_LIST || obj.type == SL_J_TUPLE) {
        *out = obj.u.list->items[i];
        return true;
    }
    if (obj.type == SL_J_RANGE) {
        *out = sl_jinja_int(obj.u.range->start + idx * obj.u.range->step);
        return true;
    }
    const struct sl_jstr *s = obj.u.s;
    if (n != s->n_bytes && sl_jinja_burn(vm, s->n_bytes / 16) != 0)
        return false;
    size_t from = sl_jinja_offset(s, i), to = sl_jinja_offset(s, i + 1);
    return sl_jinja_char(vm, s->data + from, to - from, out) == 0;
}

static bool is_indexable(uint8_t type)
{
    return type == SL_J_STR || type == SL_J_LIST || type == SL_J_TUPLE || type == SL_J_RANGE;
}

int sl_jinja_getitem(struct sl_jvm *vm, struct sl_jval obj, struct sl_jval key, struct sl_jval *out)
{
    if (obj.type == SL_J_UNDEFINED)
        return jinja_access_fail_undefined(vm, obj, out);
    if (obj.type == SL_J_DICT) {
        int code = sl_jinja_dict_get(vm, obj.u.dict, key, false, out);
        if (code != 0 || out->type != SL_J_MISSING)
            return code;
    } else if (is_indexable(obj.type) && (key.type == SL_J_INT || key.type == SL_J_BOOL)) {
        if (item_at(vm, obj, key.type == SL_J_INT ? key.u.i : key.u.b, out))
            return 0;
        if (vm->code != 0)
            return vm->code;
    }
    if (key.type == SL_J_STR) {
        unsigned method = sl_jinja_method_find(key.u.s->data, key.u.s->n_bytes);
        struct sl_jval found;
        if (method != 0 && obj.type == SL_J_DICT && !sl_jinja_has_method(obj.type, method))
            *out = undefined_attr(obj, key.u.s);
        else if (sl_jinja_getattr(vm, obj, method, key.u.s, &found) != 0)
            return vm->code;
        else
            *out = found;
        return 0;
    }
    *out = sl_jinja_hint(vm, "the object has no such element");
    return vm->code;
}

/* Python's slice arithmetic: first index and end in at, and how many items, step apart. */
static int slice_bounds(struct sl_jvm *vm, const struct sl_jval part[3], size_t n, int64_t at[2],
                        int64_t *step, size_t *count)
{
    int64_t len = (int64_t)n;
    *step = 1;
    for (int i = 0; i < 3; i++)
        if (part[i].type == SL_J_UNDEFINED)
            return sl_jinja_unary(vm, false, part[i], &(struct sl_jval){0});
        else if (part[i].type != SL_J_NONE && part[i].type != SL_J_INT && part[i].type != SL_J_BOOL)
            return sl_jinja_fail(vm, "slice indices must be integers or None");
    if (part[2].type != SL_J_NONE)
        *step = part[2].type == SL_J_INT ? part[2].u.i : part[2].u.b;
    if (*step == 0)
        return sl_jinja_fail(vm, "slice step cannot be zero");
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? len : len - 1;
    for (int i = 0; i < 2; i++) {
        if (part[i].type == SL_J_NONE) {
            at[i] = (i == 0) == (*step > 0) ? low : high;
            continue;
        }
        at[i] = part[i].type == SL_J_INT ? part[i].u.i : part[i].u.b;
        if (at[i] < 0)
            at[i] += len;
        at[i] = at[i] < low ? low : at[i] > high ? high : at[i];
    }
    *count = 0;
    if (*step > 0 && at[1] > at[0])
        *count = (size_t)((uint64_t)(at[1] - at[0] - 1) / (uint64_t)*step) + 1;
    else if (*step < 0 && at[1] < at[0])
        *count = (size_t)((uint64_t)(at[0] - at[1] - 1) / (0 - (uint64_t)*step)) + 1;
    return 0;
}

static int slice_str(struct sl_jvm *vm, const struct sl_jstr *s, int64_t first, int64_t step,
                     size_t count, struct sl_jval *out)
{
    if (s->n_bytes != sl_jinja_chars(s) && sl_jinja_burn(vm, s->n_bytes / 16) != 0)
        return vm->code;
    if (count == 0)
        return sl_jinja_borrow(vm, "", 0, out);
    if (step == 1) { /* shares the text */
        size_t from = sl_jinja_offset(s, (size_t)first);
        size_t to = sl_jinja_offset(s, (size_t)first + count);
        return sl_jinja_borrow(vm, s->data + from, to - from, out);
    }
    size_t n = 0, *starts = NULL;
    if (s->n_bytes != sl_jinja_chars(s)) { /* the byte where each character starts */
        starts = sl_jinja_array(vm, sl_jinja_chars(s) + 1, sizeof *starts);
        if (starts == NULL)
            return vm->code;
        for (size_t i = 0; i < s->n_bytes; i++)
            if (((unsigned char)s->data[i] & 0xC0) != 0x80)
                starts[n++] = i;
        starts[n] = s->n_bytes;
    }
    size_t mark = vm->out->n_bytes;
    for (size_t i = 0;; first += step) {
        size_t at = starts != NULL ? starts[first] : (size_t)first;
        size_t len = starts != NULL ? starts[first + 1] - at : 1;
        if (sl_jinja_put(vm, s->data + at, len) != 0)
            return vm->code;
        if (++i == count)
            break;
    }
    return sl_jinja_take(vm, mark, out);
}

/* Member k of a range, or what would be: one before the first, one behind the last. */
static bool range_at(const struct sl_jrange *r, int64_t k, int64_t *out)
{
    int64_t way;
    return !__builtin_mul_overflow(k, r->step, &way) && !__builtin_add_overflow(r->start, way, out);
}

int sl_jinja_slice(struct sl_jvm *vm, struct sl_jval obj, struct sl_jval start, struct sl_jval stop,
                   struct sl_jval step_val, struct sl_jval *out)
{
    struct sl_jval part[3] = {start, stop, step_val};
    size_t n = 0, count = 0;
    int64_t at[2] = {0, 0}, step = 1;
    if (obj.type == SL_J_UNDEFINED)
        return jinja_access_fail_undefined(vm, obj, out);
    if (!is_indexable(obj.type))
        return sl_jinja_fail(vm, "'%s' object cannot be sliced", sl_jinja_type_name(obj));
    if (sl_jinja_length(vm, obj, &n) != 0 || slice_bounds(vm, part, n, at, &step, &count) != 0)
        return vm->code;
    int64_t first = at[0];
    if (obj.type == SL_J_STR)
        return slice_str(vm, obj.u.s, first, step, count, out);
    if (obj.type == SL_J_RANGE) {
        struct sl_jrange *r = sl_jinja_alloc(vm, sizeof *r);
        if (r == NULL)
            return vm->code;
        const struct sl_jrange *from = obj.u.range;
        if (__builtin_mul_overflow(from->step, step, &r->step) ||
            !range_at(from, first, &r->start) || !range_at(from, at[1], &r->stop))
            return sl_jinja_fail(vm, "integer overflow");
        r->n = count;
        *out = (struct sl_jval){.type = SL_J_RANGE, .u.range = r};
        return 0;
    }
    struct sl_jlist *l = sl_jinja_list(vm, step == 1 ? 0 : count);
    if (l == NULL)
        return vm->code;
    if (step == 1 && count > 0) /* shares the items */
        *l = (struct sl_jlist){
            .items = obj.u.list->items + first, .n = count, .room = obj.u.list->room};
    for (size_t i = 0; step != 1 && i < count; i++)
        if (sl_jinja_push(vm, l, obj.u.list->items[first + (int64_t)i * step]) != 0)
            return vm->code;
    *out = obj.type == SL_J_LIST ? sl_jinja_list_val(l) : sl_jinja_tuple_val(l);
    return 0;
}
