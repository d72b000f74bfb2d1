/* SPDX-License-Identifier: MIT
 *
 * Truth, equality, order, membership, hashes and sorting, with Python's rules: 1 == 1.0 == True,
 * strings order by code point (which is the order of UTF-8 bytes), lists item by item.
 */
#include "base/check.h"
#include "base/hash.h"
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

bool sl_jinja_truth(struct sl_jval v)
{
    switch (v.type) {
    case SL_J_MISSING:
    case SL_J_UNDEFINED:
    case SL_J_NONE:
        return false;
    case SL_J_BOOL:
        return v.u.b;
    case SL_J_INT:
        return v.u.i != 0;
    case SL_J_FLOAT:
        return v.u.f != 0.0;
    case SL_J_STR:
        return v.u.s->n_bytes != 0;
    case SL_J_LIST:
    case SL_J_TUPLE:
        return v.u.list->n != 0;
    case SL_J_DICT:
    case SL_J_VIEW:
        return v.u.dict->n != 0;
    case SL_J_RANGE:
        return v.u.range->n != 0;
    default: /* a loop has at least the item it is at */
        return true;
    }
}

/* -1, 0, 1, or 2 when one is NaN. long double holds every int64 and every double exactly. */
static int number_cmp(struct sl_jval a, struct sl_jval b)
{
    if (a.type != SL_J_FLOAT && b.type != SL_J_FLOAT) {
        int64_t x = a.type == SL_J_BOOL ? a.u.b : a.u.i, y = b.type == SL_J_BOOL ? b.u.b : b.u.i;
        return (x > y) - (x < y);
    }
    long double x = a.type == SL_J_FLOAT  ? (long double)a.u.f
                    : a.type == SL_J_BOOL ? (long double)a.u.b
                                          : (long double)a.u.i;
    long double y = b.type == SL_J_FLOAT  ? (long double)b.u.f
                    : b.type == SL_J_BOOL ? (long double)b.u.b
                                          : (long double)b.u.i;
    if (isnan(x) || isnan(y))
        return 2;
    return (x > y) - (x < y);
}

static int text_cmp(const struct sl_jstr *a, const struct sl_jstr *b)
{
    size_t n = SL_MIN(a->n_bytes, b->n_bytes);
    int c = n > 0 ? memcmp(a->data, b->data, n) : 0;
    return c != 0 ? (c > 0) - (c < 0) : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

static int equal_at(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, unsigned depth,
                    bool *out);

static int dict_equal(struct sl_jvm *vm, const struct sl_jdict *a, const struct sl_jdict *b,
                      unsigned depth, bool *out)
{
    *out = a == b;
    if (a == b || a->n != b->n)
        return 0;
    for (size_t i = 0; i < a->n; i++) {
        struct sl_jval other;
        int code = sl_jinja_dict_get(vm, b, a->entries[i].key, true, &other);
        if (code != 0 || other.type == SL_J_MISSING)
            return code;
        code = equal_at(vm, a->entries[i].value, other, depth + 1, out);
        if (code != 0 || !*out)
            return code;
    }
    *out = true;
    return 0;
}

static int list_equal(struct sl_jvm *vm, const struct sl_jlist *a, const struct sl_jlist *b,
                      unsigned depth, bool *out)
{
    *out = a == b;
    if (a == b || a->n != b->n)
        return 0;
    for (size_t i = 0; i < a->n; i++) {
        int code = equal_at(vm, a->items[i], b->items[i], depth + 1, out);
        if (code != 0 || !*out)
            return code;
    }
    *out = true;
    return 0;
}

static int equal_at(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, unsigned depth,
                    bool *out)
{
    *out = false;
    if (depth > SL_JINJA_MAX_NEST)
        return sl_jinja_fail(vm, "values are nested too deeply to compare");
    if (sl_jinja_burn(vm, 1) != 0)
        return vm->code;
    if (sl_jinja_is_number(a) && sl_jinja_is_number(b)) {
        *out = number_cmp(a, b) == 0;
        return 0;
    }
    if (a.type != b.type)
        return 0;
    switch (a.type) {
    case SL_J_UNDEFINED:
    case SL_J_NONE:
        *out = true;
        return 0;
    case SL_J_STR:
        if (a.u.s->n_bytes != b.u.s->n_bytes)
            return 0;
        *out = a.u.s->n_bytes == 0 || memcmp(a.u.s->data, b.u.s->data, a.u.s->n_bytes) == 0;
        return sl_jinja_burn(vm, a.u.s->n_bytes / 128);
    case SL_J_LIST:
    case SL_J_TUPLE:
        return list_equal(vm, a.u.list, b.u.list, depth, out);
    case SL_J_DICT:
        return dict_equal(vm, a.u.dict, b.u.dict, depth, out);
    case SL_J_RANGE:
        *out = a.u.range->n == b.u.range->n &&
               (a.u.range->n == 0 || (a.u.range->start == b.u.range->start &&
                                      (a.u.range->n == 1 || a.u.range->step == b.u.range->step)));
        return 0;
    case SL_J_FUNC:
        *out = a.kind == b.kind;
        return 0;
    default:
        *out = a.u.list == b.u.list; /* the same object */
        return 0;
    }
}

int sl_jinja_equal(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, bool *out)
{
    return equal_at(vm, a, b, 0, out);
}

static int less_at(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, const char *op,
                   unsigned depth, int *cmp)
{
    if (depth > SL_JINJA_MAX_NEST) /* unreachable: true, == of the items came before */
        return sl_jinja_fail(vm, "values are nested too deeply to compare");
    if (sl_jinja_burn(vm, 1) != 0)
        return vm->code;
    if (sl_jinja_is_number(a) && sl_jinja_is_number(b)) {
        *cmp = number_cmp(a, b);
        return 0;
    }
    if (a.type == SL_J_STR && b.type == SL_J_STR) {
        *cmp = text_cmp(a.u.s, b.u.s);
        return sl_jinja_burn(vm, SL_MIN(a.u.s->n_bytes, b.u.s->n_bytes) / 128);
    }
    if (a.type == b.type && (a.type == SL_J_LIST || a.type == SL_J_TUPLE)) {
        const struct sl_jlist *x = a.u.list, *y = b.u.list;
        for (size_t i = 0; i < SL_MIN(x->n, y->n); i++) {
            bool same;
            if (equal_at(vm, x->items[i], y->items[i], depth + 1, &same) != 0)
                return vm->code;
            if (!same)
                return less_at(vm, x->items[i], y->items[i], op, depth + 1, cmp);
        }
        *cmp = (x->n > y->n) - (x->n < y->n);
        return 0;
    }
    if (a.type == SL_J_UNDEFINED || b.type == SL_J_UNDEFINED)
        return sl_jinja_unary(vm, false, a.type == SL_J_UNDEFINED ? a : b, &a);
    return sl_jinja_fail(vm, "'%s' not supported between instances of '%s' and '%s'", op,
                         sl_jinja_type_name(a), sl_jinja_type_name(b));
}

int sl_jinja_less(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, const char *op, int *cmp)
{
    return less_at(vm, a, b, op, 0, cmp);
}

int sl_jinja_compare(struct sl_jvm *vm, enum sl_jop op, struct sl_jval a, struct sl_jval b,
                     bool *out)
{
    static const char *const names[] = {
        [SL_JOP_LT] = "<", [SL_JOP_LE] = "<=", [SL_JOP_GT] = ">", [SL_JOP_GE] = ">="};
    int code, cmp = 0;
    switch (op) {
    case SL_JOP_EQ:
        return sl_jinja_equal(vm, a, b, out);
    case SL_JOP_NE:
        code = sl_jinja_equal(vm, a, b, out);
        *out = !*out;
        return code;
    case SL_JOP_IN:
        return sl_jinja_contains(vm, b, a, out);
    case SL_JOP_NOTIN:
        code = sl_jinja_contains(vm, b, a, out);
        *out = !*out;
        return code;
    default:
        break;
    }
    *out = false;
    if ((code = sl_jinja_less(vm, a, b, names[op], &cmp)) != 0 || cmp == 2)
        return code;
    *out = op == SL_JOP_LT   ? cmp < 0
           : op == SL_JOP_LE ? cmp <= 0
           : op == SL_JOP_GT ? cmp > 0
                             : cmp >= 0;
    return 0;
}

int sl_jinja_contains(struct sl_jvm *vm, struct sl_jval seq, struct sl_jval item, bool *out)
{
    struct sl_jval found;
    *out = false;
    if (seq.type == SL_J_STR) {
        if (item.type != SL_J_STR) {
            if (vm->javascript)
                return 0;
            return sl_jinja_fail(vm, "'in <string>' requires string as left operand, not %s",
                                 sl_jinja_type_name(item));
        }
        size_t n = seq.u.s->n_bytes, m = item.u.s->n_bytes;
        if (sl_jinja_burn(vm, m <= 1 ? n / 16 : m <= 8 ? n / 4 : n / 2) != 0)
            return vm->code;
        *out = sl_jinja_find(seq.u.s->data, seq.u.s->n_bytes, item.u.s->data, item.u.s->n_bytes) !=
               NULL;
        return 0;
    }
    if (seq.type == SL_J_DICT || (seq.type == SL_J_VIEW && seq.kind == SL_JVIEW_KEYS)) {
        int code = sl_jinja_dict_get(vm, seq.u.dict, item, true, &found);
        *out = found.type != SL_J_MISSING;
        return code;
    }
    if (!sl_jinja_iterable(seq))
        return sl_jinja_fail(vm, "argument of type '%s' is not iterable", sl_jinja_type_name(seq));
    struct sl_jseq s;
    if (sl_jinja_iter(vm, seq, &s) != 0) /* unreachable: true, only of text, which was above */
        return vm->code;
    while (!*out && sl_jinja_next(vm, &s, &found))
        if (vm->javascript && (found.type == SL_J_BOOL) != (item.type == SL_J_BOOL))
            continue; /* there true is not 1 */
        else if (sl_jinja_equal(vm, found, item, out) != 0)
            break;
    return vm->code;
}

static int hash_at(struct sl_jvm *vm, struct sl_jval v, unsigned depth, uint64_t *out,
                   bool *hashable)
{
    *hashable = true;
    switch (v.type) {
    case SL_J_UNDEFINED:
    case SL_J_NONE:
        *out = sl_mix64(v.type);
        return 0;
    case SL_J_BOOL:
        *out = sl_mix64(100 + (uint64_t)v.u.b);
        return 0;
    case SL_J_INT:
        *out = sl_mix64(100 + (uint64_t)v.u.i);
        return 0;
    case SL_J_FLOAT: /* a whole number hashes like the equal int */
        if (fabs(v.u.f) < 0x1p63 && v.u.f == floor(v.u.f)) {
            *out = sl_mix64(100 + (uint64_t)(int64_t)v.u.f);
            return 0;
        }
        *out = sl_hash64(&v.u.f, sizeof v.u.f, 7);
        return 0;
    case SL_J_STR:
        *out = sl_hash64(v.u.s->data, v.u.s->n_bytes, 0);
        return sl_jinja_burn(vm, 1 + v.u.s->n_bytes / 64);
    case SL_J_TUPLE:
        if (depth > SL_JINJA_MAX_NEST)
            return sl_jinja_fail(vm, "values are nested too deeply to hash");
        *out = sl_mix64(v.u.list->n);
        for (size_t i = 0; i < v.u.list->n && *hashable; i++) {
            uint64_t h = 0;
            if (sl_jinja_burn(vm, 1) != 0 ||
                hash_at(vm, v.u.list->items[i], depth + 1, &h, hashable) != 0)
                return vm->code;
            *out = sl_mix64(*out * 31 + h);
        }
        return 0;
    case SL_J_LIST:
    case SL_J_DICT:
    case SL_J_VIEW:
        *out = sl_mix64((uint64_t)(uintptr_t)v.u.dict);
        *hashable = v.type == SL_J_VIEW && v.kind == SL_JVIEW_VALUES;
        return 0;
    case SL_J_FUNC:
        *out = sl_mix64(v.kind);
        return 0;
    default:
        *out = sl_mix64((uint64_t)(uintptr_t)v.u.list);
        return 0;
    }
}

int sl_jinja_hash(struct sl_jvm *vm, struct sl_jval v, uint64_t *out, bool *hashable)
{
    return hash_at(vm, v, 0, out, hashable);
}

/* Merges [lo, mid) and [mid, hi) of order[] through tmp[]; equal keys keep their order. */
static int merge(struct sl_jvm *vm, const struct sl_jval *keys, uint32_t *order, uint32_t *tmp,
                 size_t lo, size_t mid, size_t hi, bool reverse)
{
    size_t i = lo, j = mid, k = lo;
    while (i < mid && j < hi) {
        struct sl_jval a = keys[order[i]], b = keys[order[j]];
        int cmp = 0, code;
        if (sl_jinja_burn(vm, 2) != 0)
            return vm->code;
        code = reverse ? sl_jinja_less(vm, a, b, "<", &cmp) : sl_jinja_less(vm, b, a, "<", &cmp);
        if (code != 0)
            return code;
        tmp[k++] = cmp == -1 ? order[j++] : order[i++];
    }
    while (i < mid)
        tmp[k++] = order[i++];
    while (j < hi)
        tmp[k++] = order[j++];
    memcpy(order + lo, tmp + lo, (hi - lo) * sizeof *order);
    return 0;
}

int sl_jinja_sort(struct sl_jvm *vm, struct sl_jval *keys, struct sl_jval *items, size_t n,
                  bool reverse)
{
    if (n < 2)
        return 0;
    if (n > UINT32_MAX) /* unreachable: true, so many do not fit into a template's memory */
        return sl_jinja_fail(vm, "too many items to sort");
    uint32_t *order = sl_jinja_array(vm, n, 2 * sizeof *order);
    struct sl_jval *moved = sl_jinja_array(vm, n, sizeof *moved);
    if (order == NULL || moved == NULL)
        return vm->code;
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2)
        for (size_t lo = 0; lo + width < n; lo += 2 * width)
            if (merge(vm, keys, order, order + n, lo, lo + width, SL_MIN(lo + 2 * width, n),
                      reverse) != 0)
                return vm->code;
    for (int pass = 0; pass < 2; pass++) {
        struct sl_jval *v = pass == 0 ? keys : items;
        for (size_t i = 0; i < n; i++)
            moved[i] = v[order[i]];
        memcpy(v, moved, n * sizeof *v);
    }
    return 0;
}
