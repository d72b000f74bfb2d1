/* SPDX-License-Identifier: MIT
 *
 * Filters over sequences and mappings. What jinja2 gives as a generator is computed here at once
 * and then handed out as something that can be walked once.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"

#include <string.h>

static int jinja_filters_seq_no_args(struct sl_jvm *vm, const char *what,
                                     const struct sl_jargs *args)
{
    if (args->n_pos + args->n_kw > 0)
        return sl_jinja_fail(vm, "the filter %s takes no arguments", what);
    return 0;
}

/* ---------------------------------------------------------------- attributes by path */

/* item, then each part of "a.b.0"; NONE or MISSING as the path is the item itself. */
static int get_path(struct sl_jvm *vm, struct sl_jval item, struct sl_jval path,
                    struct sl_jval fallback, struct sl_jval *out)
{
    *out = item;
    if (path.type == SL_J_MISSING || path.type == SL_J_NONE)
        return 0;
    if (path.type != SL_J_STR) {
        if (sl_jinja_getitem(vm, item, path, out) != 0)
            return vm->code;
        if (fallback.type > SL_J_NONE && out->type == SL_J_UNDEFINED)
            *out = fallback;
        return 0;
    }
    const char *s = path.u.s->data, *end = s + path.u.s->n_bytes;
    for (;;) {
        const char *dot = memchr(s, '.', (size_t)(end - s));
        size_t n = dot != NULL ? (size_t)(dot - s) : (size_t)(end - s);
        struct sl_jval key;
        int64_t idx = 0;
        bool digits = n > 0 && n < 18;
        for (size_t i = 0; i < n && digits; i++) {
            digits = s[i] >= '0' && s[i] <= '9';
            idx = idx * 10 + (s[i] - '0');
        }
        if (digits)
            key = sl_jinja_int(idx);
        else if (sl_jinja_borrow(vm, s, n, &key) != 0)
            return vm->code;
        if (sl_jinja_getitem(vm, *out, key, out) != 0)
            return vm->code;
        if (fallback.type > SL_J_NONE && out->type == SL_J_UNDEFINED)
            *out = fallback;
        if (dot == NULL)
            return 0;
        s = dot + 1;
    }
}

/* The key by which an item is compared; strings in lower case unless case counts. */
static int sort_key(struct sl_jvm *vm, struct sl_jval item, struct sl_jval path, bool case_counts,
                    struct sl_jval fallback, struct sl_jval *out)
{
    if (get_path(vm, item, path, fallback, out) != 0)
        return vm->code;
    if (out->type == SL_J_STR && !case_counts)
        return sl_jinja_recase(vm, out->u.s, SL_JCASE_LOWER, out);
    return 0;
}

/* sort(attribute="a,b") compares by several keys. */
static int multi_key(struct sl_jvm *vm, struct sl_jval item, struct sl_jval path, bool case_counts,
                     struct sl_jval *out)
{
    struct sl_jval none = {0};
    struct sl_jlist *keys;
    if (path.type != SL_J_STR || memchr(path.u.s->data, ',', path.u.s->n_bytes) == NULL) {
        if (sort_key(vm, item, path, case_counts, none, out) != 0)
            return vm->code;
        if (out->type == SL_J_STR || sl_jinja_is_number(*out))
            return 0;
        /* jinja2's key is a list even for one path, and lists ask first whether items are equal:
         * that is why it sorts [none, none] */
        if ((keys = sl_jinja_list(vm, 1)) == NULL || sl_jinja_push(vm, keys, *out) != 0)
            return vm->code;
        *out = sl_jinja_list_val(keys);
        return 0;
    }
    keys = sl_jinja_list(vm, 2);
    const char *s = path.u.s->data, *end = s + path.u.s->n_bytes;
    while (keys != NULL) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        struct sl_jval part, key;
        if (sl_jinja_borrow(vm, s, (size_t)((comma != NULL ? comma : end) - s), &part) != 0 ||
            sort_key(vm, item, part, case_counts, none, &key) != 0 ||
            sl_jinja_push(vm, keys, key) != 0)
            return vm->code;
        if (comma == NULL)
            break;
        s = comma + 1;
    }
    *out = sl_jinja_list_val(keys);
    return vm->code;
}

int sl_jinja_f_sort(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    struct sl_jval a[3];
    struct sl_jlist *items;
    if (sl_jinja_params(vm, "sort", args, "reverse,case_sensitive,attribute", 0, a) != 0 ||
        sl_jinja_to_list(vm, v, &items) != 0)
        return vm->code;
    bool reverse = sl_jinja_truth(a[0]), case_counts = sl_jinja_truth(a[1]);
    struct sl_jval *keys = sl_jinja_array(vm, items->n, sizeof *keys);
    if (keys == NULL)
        return vm->code;
    for (size_t i = 0; i < items->n; i++)
        if (multi_key(vm, items->items[i], a[2], case_counts, &keys[i]) != 0)
            return vm->code;
    if (sl_jinja_sort(vm, keys, items->items, items->n, reverse) != 0)
        return vm->code;
    *out = sl_jinja_list_val(items);
    return 0;
}

int sl_jinja_f_dictsort(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                        struct sl_jval *out)
{
    struct sl_jval a[3], none = {0};
    struct sl_jlist *items;
    if (sl_jinja_params(vm, "dictsort", args, "case_sensitive,by,reverse", 0, a) != 0)
        return vm->code;
    bool case_counts = sl_jinja_truth(a[0]), reverse = sl_jinja_truth(a[2]);
    bool by_value = a[1].type == SL_J_STR && sl_jinja_str_is(a[1].u.s, "value");
    if (a[1].type != SL_J_MISSING && !by_value &&
        !(a[1].type == SL_J_STR && sl_jinja_str_is(a[1].u.s, "key")))
        return sl_jinja_fail(vm, "You can only sort by either \"key\" or \"value\"");
    if (v.type == SL_J_UNDEFINED)
        return sl_jinja_unary(vm, false, v, out);
    if (v.type != SL_J_DICT)
        return sl_jinja_fail(vm, "dictsort needs a mapping, not %s", sl_jinja_type_name(v));
    struct sl_jval view = {.type = SL_J_VIEW, .kind = SL_JVIEW_ITEMS, .u.dict = v.u.dict};
    struct sl_jval *keys = sl_jinja_array(vm, v.u.dict->n, sizeof *keys);
    if (keys == NULL || sl_jinja_to_list(vm, view, &items) != 0)
        return vm->code;
    for (size_t i = 0; i < items->n; i++) {
        const struct sl_jlist *pair = items->items[i].u.list;
        if (sort_key(vm, pair->items[by_value], none, case_counts, none, &keys[i]) != 0)
            return vm->code;
    }
    if (sl_jinja_sort(vm, keys, items->items, items->n, reverse) != 0)
        return vm->code;
    *out = sl_jinja_list_val(items);
    return 0;
}

static int min_or_max(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args, bool max,
                      struct sl_jval *out)
{
    struct sl_jval a[2], item, key, best = {0}, none = {0};
    struct sl_jseq seq;
    bool any = false;
    if (sl_jinja_params(vm, max ? "max" : "min", args, "case_sensitive,attribute", 0, a) != 0 ||
        sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    bool case_counts = sl_jinja_truth(a[0]);
    while (sl_jinja_next(vm, &seq, &item)) {
        int cmp = -1;
        if (sort_key(vm, item, a[1], case_counts, none, &key) != 0)
            return vm->code;
        if (any && (max ? sl_jinja_less(vm, best, key, ">", &cmp)
                        : sl_jinja_less(vm, key, best, "<", &cmp)) != 0)
            return vm->code;
        if (cmp == -1) {
            best = key;
            *out = item;
        }
        any = true;
    }
    if (!any)
        *out = sl_jinja_hint(vm, "No aggregated item, sequence was empty.");
    return vm->code;
}

int sl_jinja_f_min(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                   struct sl_jval *out)
{
    return min_or_max(vm, v, args, false, out);
}

int sl_jinja_f_max(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                   struct sl_jval *out)
{
    return min_or_max(vm, v, args, true, out);
}

int sl_jinja_f_unique(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    struct sl_jval a[2], item, key, seen, none = {0};
    struct sl_jseq seq;
    if (sl_jinja_params(vm, "unique", args, "case_sensitive,attribute", 0, a) != 0 ||
        sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    bool case_counts = sl_jinja_truth(a[0]);
    struct sl_jdict *all = sl_jinja_dict(vm, 0);
    struct sl_jlist *l = sl_jinja_list(vm, 0);
    if (all == NULL || l == NULL)
        return vm->code;
    while (sl_jinja_next(vm, &seq, &item)) {
        if (sort_key(vm, item, a[1], case_counts, none, &key) != 0 ||
            sl_jinja_dict_get(vm, all, key, true, &seen) != 0)
            return vm->code;
        if (seen.type != SL_J_MISSING)
            continue;
        if (sl_jinja_dict_set(vm, all, key, sl_jinja_none()) != 0 ||
            sl_jinja_push(vm, l, item) != 0)
            return vm->code;
    }
    return vm->code != 0 ? vm->code : sl_jinja_generator(vm, l, "sync_do_unique", out);
}

int sl_jinja_f_groupby(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                       struct sl_jval *out)
{
    struct sl_jval a[3];
    struct sl_jlist *items, *groups = sl_jinja_list(vm, 0), *group = NULL;
    if (groups == NULL ||
        sl_jinja_params(vm, "groupby", args, "attribute,default,case_sensitive", 1, a) != 0 ||
        sl_jinja_to_list(vm, v, &items) != 0)
        return vm->code;
    bool case_counts = sl_jinja_truth(a[2]);
    struct sl_jval *keys = sl_jinja_array(vm, items->n, sizeof *keys);
    if (keys == NULL)
        return vm->code;
    for (size_t i = 0; i < items->n; i++)
        if (sort_key(vm, items->items[i], a[0], case_counts, a[1], &keys[i]) != 0)
            return vm->code;
    if (sl_jinja_sort(vm, keys, items->items, items->n, false) != 0)
        return vm->code;
    for (size_t i = 0; i < items->n; i++) {
        bool same = false;
        struct sl_jval key, tuple;
        if (i > 0 && sl_jinja_equal(vm, keys[i], keys[i - 1], &same) != 0)
            return vm->code;
        if (!same) { /* the key as the first item has it */
            if (sort_key(vm, items->items[i], a[0], true, a[1], &key) != 0 ||
                (group = sl_jinja_list(vm, 4)) == NULL ||
                sl_jinja_pair(vm, key, sl_jinja_list_val(group), &tuple) != 0)
                return vm->code;
            tuple.u.list->is_group = true;
            if (sl_jinja_push(vm, groups, tuple) != 0)
                return vm->code;
        }
        if (sl_jinja_push(vm, group, items->items[i]) != 0)
            return vm->code;
    }
    *out = sl_jinja_list_val(groups);
    return 0;
}

int sl_jinja_f_sum(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                   struct sl_jval *out)
{
    struct sl_jval a[2], item, none = {0};
    struct sl_jseq seq;
    if (sl_jinja_params(vm, "sum", args, "attribute,start", 0, a) != 0 ||
        sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    struct sl_jval total = a[1].type != SL_J_MISSING ? a[1] : sl_jinja_int(0);
    if (total.type == SL_J_STR)
        return sl_jinja_fail(vm, "sum() can't sum strings");
    while (sl_jinja_next(vm, &seq, &item))
        if (get_path(vm, item, a[0], none, &item) != 0 ||
            sl_jinja_binary(vm, SL_JOP_ADD, total, item, &total) != 0)
            return vm->code;
    *out = total;
    return vm->code;
}

int sl_jinja_f_join(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    struct sl_jval a[2], item, none = {0};
    struct sl_jseq seq;
    if (sl_jinja_params(vm, "join", args, "d,attribute", 0, a) != 0 ||
        sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    struct sl_jval sep = {.type = SL_J_STR, .u.s = &vm->empty};
    if (a[0].type != SL_J_MISSING && sl_jinja_to_str(vm, a[0], &sep) != 0)
        return vm->code;
    size_t mark = vm->out->n_bytes;
    for (bool first = true; sl_jinja_next(vm, &seq, &item); first = false)
        if ((!first && sl_jinja_print(vm, sep) != 0) ||
            get_path(vm, item, a[1], none, &item) != 0 || sl_jinja_print(vm, item) != 0)
            return vm->code;
    return vm->code != 0 ? vm->code : sl_jinja_take(vm, mark, out);
}

/* ---------------------------------------------------------------- map and select */

/* A filter or test named by the first argument, with the rest as its arguments. */
struct applied {
    unsigned id;
    struct sl_jval path, fallback;
    bool by_path; /* map(attribute=...), selectattr */
    char name[64];
    struct sl_jargs args;
};

static int name_arg(struct sl_jvm *vm, struct sl_jval v, struct applied *how)
{
    const struct sl_jstr *s;
    if (sl_jinja_want_str(vm, "the name of a filter or test", v, &s) != 0)
        return vm->code;
    size_t n = SL_MIN(s->n_bytes, sizeof how->name - 1);
    memcpy(how->name, s->data, n);
    how->name[n] = '\0';
    return 0;
}

static int map_how(struct sl_jvm *vm, const struct sl_jargs *args, struct applied *how)
{
    *how = (struct applied){0};
    if (args->n_pos > 0) {
        how->args = (struct sl_jargs){
            .pos = args->pos + 1, .n_pos = args->n_pos - 1, .kw = args->kw, .n_kw = args->n_kw};
        if (name_arg(vm, args->pos[0], how) != 0)
            return vm->code;
        const struct sl_jstr *s = args->pos[0].u.s;
        how->id = sl_jinja_filter_find(s->data, s->n_bytes);
        return how->id != 0 ? 0 : sl_jinja_fail(vm, "No filter named '%s'", how->name);
    }
    struct sl_jval a[2];
    if (sl_jinja_params(vm, "map", args, "attribute,default", 0, a) != 0)
        return vm->code;
    if (a[0].type == SL_J_MISSING)
        return sl_jinja_fail(vm, "map requires a filter argument");
    how->by_path = true;
    how->path = a[0];
    how->fallback = a[1];
    return 0;
}

static int apply_map(struct sl_jvm *vm, const struct applied *how, struct sl_jval item,
                     struct sl_jval *out)
{
    if (how->by_path)
        return get_path(vm, item, how->path, how->fallback, out);
    if (vm->depth >= SL_JINJA_MAX_DEPTH) /* map('map', 'map', ...) */
        return sl_jinja_fail(vm, "nested too deeply");
    vm->depth++;
    int code = sl_jinja_filter(vm, how->id, how->name, item, &how->args, out);
    vm->depth--;
    return code;
}

int sl_jinja_f_map(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                   struct sl_jval *out)
{
    struct applied how;
    struct sl_jval item;
    struct sl_jseq seq;
    struct sl_jlist *l = sl_jinja_list(vm, 0);
    if (l == NULL)
        return vm->code;
    if (!sl_jinja_truth(v))
        return sl_jinja_generator(vm, l, "sync_do_map", out);
    if (map_how(vm, args, &how) != 0 || sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    while (sl_jinja_next(vm, &seq, &item))
        if (apply_map(vm, &how, item, &item) != 0 || sl_jinja_push(vm, l, item) != 0)
            return vm->code;
    return vm->code != 0 ? vm->code : sl_jinja_generator(vm, l, "sync_do_map", out);
}

static int pick_how(struct sl_jvm *vm, const struct sl_jargs *args, bool by_attr,
                    struct applied *how)
{
    size_t at = by_attr;
    *how = (struct applied){.by_path = by_attr};
    if (by_attr) {
        if (args->n_pos == 0)
            return sl_jinja_fail(vm, "Missing parameter for attribute name");
        how->path = args->pos[0];
    }
    if (args->n_pos <= at) /* by truth */
        return 0;
    if (name_arg(vm, args->pos[at], how) != 0)
        return vm->code;
    const struct sl_jstr *s = args->pos[at].u.s;
    how->id = sl_jinja_test_find(s->data, s->n_bytes);
    if (how->id == 0)
        return sl_jinja_fail(vm, "No test named '%s'", how->name);
    how->args = (struct sl_jargs){.pos = args->pos + at + 1,
                                  .n_pos = args->n_pos - at - 1,
                                  .kw = args->kw,
                                  .n_kw = args->n_kw};
    return 0;
}

static int jinja_filters_seq_pick(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                                  bool by_attr, bool reject, struct sl_jval *out)
{
    struct applied how;
    struct sl_jval item, of, none = {0};
    struct sl_jseq seq;
    bool yes;
    struct sl_jlist *l = sl_jinja_list(vm, 0);
    if (l == NULL)
        return vm->code;
    if (!sl_jinja_truth(v))
        return sl_jinja_generator(vm, l, "select_or_reject", out);
    if (pick_how(vm, args, by_attr, &how) != 0 || sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    while (sl_jinja_next(vm, &seq, &item)) {
        of = item;
        if (by_attr && get_path(vm, item, how.path, none, &of) != 0)
            return vm->code;
        yes = how.id == 0 && sl_jinja_truth(of);
        if (how.id != 0 && sl_jinja_test(vm, how.id, of, &how.args, &yes) != 0)
            return vm->code;
        if (yes != reject && sl_jinja_push(vm, l, item) != 0)
            return vm->code;
    }
    return vm->code != 0 ? vm->code : sl_jinja_generator(vm, l, "select_or_reject", out);
}

int sl_jinja_f_select(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    return jinja_filters_seq_pick(vm, v, args, false, false, out);
}

int sl_jinja_f_reject(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    return jinja_filters_seq_pick(vm, v, args, false, true, out);
}

int sl_jinja_f_selectattr(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                          struct sl_jval *out)
{
    return jinja_filters_seq_pick(vm, v, args, true, false, out);
}

int sl_jinja_f_rejectattr(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                          struct sl_jval *out)
{
    return jinja_filters_seq_pick(vm, v, args, true, true, out);
}

/* ---------------------------------------------------------------- whole sequences */

int sl_jinja_f_length(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                      struct sl_jval *out)
{
    size_t n;
    if (jinja_filters_seq_no_args(vm, "length", args) != 0 || sl_jinja_length(vm, v, &n) != 0)
        return vm->code;
    *out = sl_jinja_int((int64_t)n);
    return 0;
}

int sl_jinja_f_list(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    struct sl_jlist *l;
    if (jinja_filters_seq_no_args(vm, "list", args) != 0 || sl_jinja_to_list(vm, v, &l) != 0)
        return vm->code;
    *out = sl_jinja_list_val(l);
    return 0;
}

int sl_jinja_f_items(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    struct sl_jlist *l;
    if (jinja_filters_seq_no_args(vm, "items", args) != 0)
        return vm->code;
    if (v.type != SL_J_DICT && v.type != SL_J_UNDEFINED)
        return sl_jinja_fail(vm, "Can only get item pairs from a mapping.");
    if (v.type == SL_J_DICT)
        v = (struct sl_jval){.type = SL_J_VIEW, .kind = SL_JVIEW_ITEMS, .u.dict = v.u.dict};
    if (sl_jinja_to_list(vm, v, &l) != 0)
        return vm->code;
    return sl_jinja_generator(vm, l, "do_items", out);
}

int sl_jinja_f_first(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    struct sl_jseq seq;
    if (jinja_filters_seq_no_args(vm, "first", args) != 0 || sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    if (!sl_jinja_next(vm, &seq, out) && vm->code == 0)
        *out = sl_jinja_hint(vm, "No first item, sequence was empty.");
    return vm->code;
}

int sl_jinja_f_last(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                    struct sl_jval *out)
{
    struct sl_jlist *l;
    if (v.type == SL_J_ITER)
        return sl_jinja_fail(vm, "'generator' object is not reversible");
    if (jinja_filters_seq_no_args(vm, "last", args) != 0 || sl_jinja_to_list(vm, v, &l) != 0)
        return vm->code;
    *out = l->n > 0 ? l->items[l->n - 1] : sl_jinja_hint(vm, "No last item, sequence was empty.");
    return vm->code;
}

int sl_jinja_f_reverse(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                       struct sl_jval *out)
{
    struct sl_jlist *l;
    if (jinja_filters_seq_no_args(vm, "reverse", args) != 0)
        return vm->code;
    if (v.type == SL_J_STR)
        return sl_jinja_slice(vm, v, sl_jinja_none(), sl_jinja_none(), sl_jinja_int(-1), out);
    if (sl_jinja_to_list(vm, v, &l) != 0)
        return vm->code;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct sl_jval t = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = t;
    }
    if (v.type == SL_J_ITER) { /* cannot be reversed as it is, so jinja2 makes a list of it */
        *out = sl_jinja_list_val(l);
        return 0;
    }
    return sl_jinja_generator(vm, l, "reversed", out);
}

int sl_jinja_f_batch(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    struct sl_jval a[2], item;
    int64_t size;
    struct sl_jseq seq;
    struct sl_jlist *l = sl_jinja_list(vm, 0), *row = NULL;
    if (l == NULL || sl_jinja_params(vm, "batch", args, "linecount,fill_with", 1, a) != 0 ||
        sl_jinja_want_int(vm, "batch", a[0], &size) != 0 || sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    while (sl_jinja_next(vm, &seq, &item)) {
        if (row == NULL || (int64_t)row->n == size) {
            if ((row == NULL && size == 0 &&
                 sl_jinja_push(vm, l, sl_jinja_list_val(sl_jinja_list(vm, 0))) != 0) ||
                (row = sl_jinja_list(vm, 4)) == NULL ||
                sl_jinja_push(vm, l, sl_jinja_list_val(row)) != 0)
                return vm->code;
        }
        if (sl_jinja_push(vm, row, item) != 0)
            return vm->code;
    }
    while (row != NULL && a[1].type > SL_J_NONE && (int64_t)row->n < size)
        if (sl_jinja_push(vm, row, a[1]) != 0)
            return vm->code;
    return vm->code != 0 ? vm->code : sl_jinja_generator(vm, l, "do_batch", out);
}

int sl_jinja_f_slice(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                     struct sl_jval *out)
{
    struct sl_jval a[2];
    int64_t n;
    struct sl_jlist *all, *l = sl_jinja_list(vm, 0);
    if (l == NULL || sl_jinja_params(vm, "slice", args, "slices,fill_with", 1, a) != 0 ||
        sl_jinja_want_int(vm, "slice", a[0], &n) != 0 || sl_jinja_to_list(vm, v, &all) != 0)
        return vm->code;
    if (n == 0)
        return sl_jinja_fail(vm, "integer division or modulo by zero");
    size_t each = n > 0 ? all->n / (size_t)n : 0, extra = n > 0 ? all->n % (size_t)n : 0, at = 0;
    for (int64_t i = 0; i < n; i++) {
        struct sl_jlist *part = sl_jinja_list(vm, each + 1);
        size_t count = each + ((size_t)i < extra);
        if (part == NULL)
            return vm->code;
        for (size_t k = 0; k < count; k++)
            if (sl_jinja_push(vm, part, all->items[at++]) != 0)
                return vm->code;
        if ((a[1].type > SL_J_NONE && (size_t)i >= extra && sl_jinja_push(vm, part, a[1]) != 0) ||
            sl_jinja_push(vm, l, sl_jinja_list_val(part)) != 0)
            return vm->code;
    }
    return sl_jinja_generator(vm, l, "sync_do_slice", out);
}
