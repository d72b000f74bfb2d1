/* SPDX-License-Identifier: MIT
 *
 * Making values: strings, lists, dicts.
 *
 * Strings and lists never change, so a longer one may share its beginning with a shorter one: the
 * text of `a` in `a + b` stays where it is when nothing was appended behind it yet. Building a
 * prompt with `out = out + x` or a list with `l = l + [x]` therefore costs what is appended, not
 * what is already there.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/str.h"
#include "text/jinja/jinja.h"

#include <string.h>

struct sl_jstr_room {
    size_t fill, cap;
    char data[];
};

struct sl_jlist_room {
    size_t fill, cap;
    struct sl_jval items[];
};

#define INDEX_FROM 8 /* entries from which a dict gets a hash index */

struct sl_jval sl_jinja_none(void)
{
    return (struct sl_jval){.type = SL_J_NONE};
}

struct sl_jval sl_jinja_bool(bool b)
{
    return (struct sl_jval){.type = SL_J_BOOL, .u.b = b};
}

struct sl_jval sl_jinja_int(int64_t i)
{
    return (struct sl_jval){.type = SL_J_INT, .u.i = i};
}

struct sl_jval sl_jinja_float(double f)
{
    return (struct sl_jval){.type = SL_J_FLOAT, .u.f = f};
}

struct sl_jval sl_jinja_hint(struct sl_jvm *vm, const char *text)
{
    struct sl_jval v;
    if (sl_jinja_borrow(vm, text, strlen(text), &v) != 0)
        return (struct sl_jval){0};
    v.type = SL_J_UNDEFINED;
    v.kind = SL_JU_HINT;
    return v;
}

const char *sl_jinja_type_name(struct sl_jval v)
{
    static const char *const names[] = {
        [SL_J_MISSING] = "missing", [SL_J_UNDEFINED] = "Undefined",
        [SL_J_NONE] = "NoneType",   [SL_J_BOOL] = "bool",
        [SL_J_INT] = "int",         [SL_J_FLOAT] = "float",
        [SL_J_STR] = "str",         [SL_J_LIST] = "list",
        [SL_J_TUPLE] = "tuple",     [SL_J_DICT] = "dict",
        [SL_J_VIEW] = "dict view",  [SL_J_RANGE] = "range",
        [SL_J_ITER] = "generator",  [SL_J_NAMESPACE] = "Namespace",
        [SL_J_MACRO] = "Macro",     [SL_J_FUNC] = "function",
        [SL_J_METHOD] = "method",   [SL_J_LOOP] = "LoopContext",
        [SL_J_CYCLER] = "Cycler",   [SL_J_JOINER] = "Joiner",
    };
    return names[v.type];
}

/* ---------------------------------------------------------------- strings */

int sl_jinja_borrow(struct sl_jvm *vm, const char *s, size_t n, struct sl_jval *out)
{
    struct sl_jstr *str = n == 0 ? &vm->empty : sl_jinja_alloc(vm, sizeof *str);
    if (str == NULL)
        return vm->code;
    if (n > 0)
        *str = (struct sl_jstr){.data = s, .n_bytes = n, .n_chars = SIZE_MAX};
    *out = (struct sl_jval){.type = SL_J_STR, .u.s = str};
    return 0;
}

int sl_jinja_str(struct sl_jvm *vm, const char *s, size_t n, struct sl_jval *out)
{
    if (n == 0)
        return sl_jinja_borrow(vm, "", 0, out);
    char *copy = sl_jinja_alloc(vm, n);
    if (copy == NULL)
        return vm->code;
    memcpy(copy, s, n);
    return sl_jinja_borrow(vm, copy, n, out);
}

int sl_jinja_strz(struct sl_jvm *vm, const char *s, struct sl_jval *out)
{
    return sl_jinja_str(vm, s, strlen(s), out);
}

int sl_jinja_char(struct sl_jvm *vm, const char *s, size_t n, struct sl_jval *out)
{
    unsigned char c = (unsigned char)s[0];
    if (n != 1)
        return sl_jinja_borrow(vm, s, n, out);
    if (vm->ascii[c] == NULL) {
        if (sl_jinja_str(vm, s, 1, out) != 0)
            return vm->code;
        vm->ascii[c] = out->u.s;
    }
    *out = (struct sl_jval){.type = SL_J_STR, .u.s = vm->ascii[c]};
    return 0;
}

int sl_jinja_concat(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, struct sl_jval *out)
{
    const struct sl_jstr *x = a.u.s, *y = b.u.s;
    uint8_t markup = a.markup || b.markup; /* unreachable: b alone, a was escaped for it */
    if (x->n_bytes == 0 || y->n_bytes == 0) {
        *out = x->n_bytes == 0 ? b : a;
        out->markup = markup;
        return 0;
    }
    size_t n;
    if (!sl_add_size(x->n_bytes, y->n_bytes, &n)) /* unreachable: true, both are in memory */
        return sl_jinja_fail(vm, "the template uses too much memory");
    struct sl_jstr_room *room = x->room;
    if (room == NULL || x->data + x->n_bytes != room->data + room->fill ||
        room->cap - room->fill < y->n_bytes) {
        /* short results are mostly final, longer ones tend to grow on */
        size_t cap = n < 256 ? n : n < (1u << 20) ? 2 * n : n + n / 4;
        if (cap > vm->arena.max_bytes / 2)
            cap = n;
        room = sl_jinja_alloc(vm, sizeof *room + cap);
        if (room == NULL || sl_jinja_burn(vm, x->n_bytes / 64) != 0)
            return vm->code;
        room->cap = cap;
        memcpy(room->data, x->data, x->n_bytes);
        room->fill = x->n_bytes;
    }
    if (sl_jinja_burn(vm, y->n_bytes / 64) != 0)
        return vm->code;
    char *end = room->data + room->fill;
    memcpy(end, y->data, y->n_bytes);
    room->fill += y->n_bytes;
    if (sl_jinja_borrow(vm, end - x->n_bytes, n, out) != 0)
        return vm->code;
    out->u.s->room = room;
    out->markup = markup;
    if (x->n_chars != SIZE_MAX && y->n_chars != SIZE_MAX)
        out->u.s->n_chars = x->n_chars + y->n_chars;
    return 0;
}

/* Constants of the tree are counted when they are made, so that threads only read them. */
size_t sl_jinja_chars(const struct sl_jstr *s)
{
    if (s->n_chars != SIZE_MAX)
        return s->n_chars;
    size_t n = 0;
    for (size_t i = 0; i < s->n_bytes; i++)
        n += ((unsigned char)s->data[i] & 0xC0) != 0x80;
    ((struct sl_jstr *)(uintptr_t)s)->n_chars = n;
    return n;
}

size_t sl_jinja_offset(const struct sl_jstr *s, size_t char_idx)
{
    if (sl_jinja_chars(s) == s->n_bytes)
        return char_idx;
    if (char_idx >= s->n_chars)
        return s->n_bytes;
    size_t i = 0;
    for (size_t n = 0;; i++) {
        if (((unsigned char)s->data[i] & 0xC0) == 0x80)
            continue;
        if (n++ == char_idx)
            return i;
    }
}

bool sl_jinja_str_is(const struct sl_jstr *s, const char *text)
{
    return s->n_bytes == strlen(text) && memcmp(s->data, text, s->n_bytes) == 0;
}

/* ---------------------------------------------------------------- lists */

struct sl_jlist *sl_jinja_list(struct sl_jvm *vm, size_t cap)
{
    struct sl_jlist *l = sl_jinja_alloc(vm, sizeof *l);
    if (l == NULL || cap == 0)
        return l;
    size_t n_bytes = SIZE_MAX / 2;
    if (cap < SIZE_MAX / 4 / sizeof(struct sl_jval)) /* unreachable: false, checked before */
        n_bytes = sizeof *l->room + cap * sizeof(struct sl_jval);
    l->room = sl_jinja_alloc(vm, n_bytes);
    if (l->room == NULL)
        return NULL;
    l->room->cap = cap;
    l->items = l->room->items;
    return l;
}

/* Makes room for n_more items behind l's own, moving them when somebody else already went on. */
static int list_reserve(struct sl_jvm *vm, struct sl_jlist *l, size_t n_more)
{
    struct sl_jlist_room *room = l->room;
    if (room != NULL && l->items + l->n == room->items + room->fill &&
        room->cap - room->fill >= n_more)
        return 0;
    size_t cap = SL_MAX(l->n * 2, l->n + n_more);
    struct sl_jlist *moved = sl_jinja_list(vm, SL_MAX(cap, 4));
    if (moved == NULL)
        return vm->code;
    if (l->n > 0)
        memcpy(moved->items, l->items, l->n * sizeof *l->items);
    moved->room->fill = l->n;
    l->room = moved->room;
    l->items = moved->items;
    return 0;
}

int sl_jinja_push(struct sl_jvm *vm, struct sl_jlist *l, struct sl_jval v)
{
    if (sl_jinja_burn(vm, 1) != 0 || list_reserve(vm, l, 1) != 0)
        return vm->code;
    l->items[l->n++] = v;
    l->room->fill++;
    return 0;
}

struct sl_jval sl_jinja_list_val(struct sl_jlist *l)
{
    return (struct sl_jval){.type = SL_J_LIST, .u.list = l};
}

struct sl_jval sl_jinja_tuple_val(struct sl_jlist *l)
{
    return (struct sl_jval){.type = SL_J_TUPLE, .u.list = l};
}

int sl_jinja_pair(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, struct sl_jval *out)
{
    struct sl_jlist *l = sl_jinja_list(vm, 2);
    if (l == NULL || sl_jinja_push(vm, l, a) != 0 || sl_jinja_push(vm, l, b) != 0)
        return vm->code;
    *out = sl_jinja_tuple_val(l);
    return 0;
}

int sl_jinja_extend(struct sl_jvm *vm, const struct sl_jlist *a, const struct sl_jlist *b,
                    struct sl_jlist **out)
{
    struct sl_jlist *l = sl_jinja_list(vm, 0);
    if (l == NULL || sl_jinja_burn(vm, b->n / 4) != 0)
        return vm->code;
    *l = (struct sl_jlist){.items = a->items, .n = a->n, .room = a->room};
    if (b->n > 0) {
        if (list_reserve(vm, l, b->n) != 0)
            return vm->code;
        memcpy(l->items + l->n, b->items, b->n * sizeof *l->items);
        l->n += b->n;
        l->room->fill += b->n;
    }
    *out = l;
    return 0;
}

int sl_jinja_generator(struct sl_jvm *vm, struct sl_jlist *l, const char *name, struct sl_jval *out)
{
    if (vm->javascript) {
        *out = sl_jinja_list_val(l);
        return 0;
    }
    struct sl_jiter *it = sl_jinja_alloc(vm, sizeof *it);
    if (it == NULL)
        return vm->code;
    *it = (struct sl_jiter){.list = l, .name = name};
    *out = (struct sl_jval){.type = SL_J_ITER, .u.iter = it};
    return 0;
}

/* ---------------------------------------------------------------- dicts */

struct sl_jdict *sl_jinja_dict(struct sl_jvm *vm, size_t cap)
{
    struct sl_jdict *d = sl_jinja_alloc(vm, sizeof *d);
    if (d == NULL || cap == 0)
        return d;
    d->entries = sl_jinja_array(vm, cap, sizeof *d->entries);
    d->cap = cap;
    return d->entries != NULL ? d : NULL;
}

static void index_insert(struct sl_jdict *d, size_t entry)
{
    size_t i = d->entries[entry].hash & (d->index_cap - 1);
    while (d->index[i] != 0)
        i = (i + 1) & (d->index_cap - 1);
    d->index[i] = (uint32_t)entry + 1;
}

static int index_build(struct sl_jvm *vm, struct sl_jdict *d)
{
    size_t cap = 32;
    while (cap < d->cap * 2)
        cap *= 2;
    d->index = sl_jinja_array(vm, cap, sizeof *d->index);
    if (d->index == NULL || sl_jinja_burn(vm, d->n) != 0)
        return vm->code;
    d->index_cap = cap;
    for (size_t i = 0; i < d->n; i++)
        index_insert(d, i);
    return 0;
}

/* Where key is, or SIZE_MAX; negative codes through *code. */
static size_t dict_find(struct sl_jvm *vm, const struct sl_jdict *d, struct sl_jval key,
                        uint64_t hash, int *code)
{
    bool same;
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->entries[i].hash != hash)
                continue;
            if ((*code = sl_jinja_equal(vm, d->entries[i].key, key, &same)) != 0)
                return SIZE_MAX;
            if (same) /* unreachable: false, two keys of one hash of 64 bits */
                return i;
        }
        return SIZE_MAX;
    }
    for (size_t i = hash & (d->index_cap - 1); d->index[i] != 0; i = (i + 1) & (d->index_cap - 1)) {
        const struct sl_jentry *e = &d->entries[d->index[i] - 1];
        if ((*code = sl_jinja_burn(vm, 1)) != 0)
            return SIZE_MAX;
        if (e->hash != hash)
            continue;
        if ((*code = sl_jinja_equal(vm, e->key, key, &same)) != 0)
            return SIZE_MAX;
        if (same) /* unreachable: false, two keys of one hash of 64 bits */
            return d->index[i] - 1;
    }
    return SIZE_MAX;
}

int sl_jinja_dict_set(struct sl_jvm *vm, struct sl_jdict *d, struct sl_jval k, struct sl_jval v)
{
    uint64_t hash;
    bool hashable;
    int code = sl_jinja_hash(vm, k, &hash, &hashable);
    if (code != 0)
        return code;
    if (!hashable)
        return sl_jinja_fail(vm, "unhashable type: '%s'", sl_jinja_type_name(k));
    size_t at = dict_find(vm, d, k, hash, &code);
    if (code != 0)
        return code;
    if (at != SIZE_MAX) {
        d->entries[at].value = v;
        return 0;
    }
    if (d->n == d->cap) {
        size_t cap = SL_MAX(d->cap * 2, 4);
        struct sl_jentry *grown = sl_jinja_array(vm, cap, sizeof *grown);
        if (grown == NULL)
            return vm->code;
        if (d->n > 0)
            memcpy(grown, d->entries, d->n * sizeof *grown);
        d->entries = grown;
        d->cap = cap;
        d->index = NULL;
    }
    d->entries[d->n++] = (struct sl_jentry){.key = k, .value = v, .hash = hash};
    if (d->index != NULL)
        index_insert(d, d->n - 1);
    else if (d->n > INDEX_FROM)
        return index_build(vm, d);
    return 0;
}

int sl_jinja_dict_get(struct sl_jvm *vm, const struct sl_jdict *d, struct sl_jval key, bool strict,
                      struct sl_jval *out)
{
    uint64_t hash;
    bool hashable;
    int code = sl_jinja_hash(vm, key, &hash, &hashable);
    *out = (struct sl_jval){0};
    if (code != 0)
        return code;
    if (!hashable)
        return strict ? sl_jinja_fail(vm, "unhashable type: '%s'", sl_jinja_type_name(key)) : 0;
    size_t at = dict_find(vm, d, key, hash, &code);
    if (code == 0 && at != SIZE_MAX)
        *out = d->entries[at].value;
    return code;
}

struct sl_jval sl_jinja_dict_str(const struct sl_jdict *d, const struct sl_jstr *key)
{
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++) {
            const struct sl_jval *k = &d->entries[i].key;
            if (k->type == SL_J_STR && k->u.s->n_bytes == key->n_bytes &&
                memcmp(k->u.s->data, key->data, key->n_bytes) == 0)
                return d->entries[i].value;
        }
        return (struct sl_jval){0};
    }
    uint64_t hash = sl_hash64(key->data, key->n_bytes, 0);
    for (size_t i = hash & (d->index_cap - 1); d->index[i] != 0; i = (i + 1) & (d->index_cap - 1)) {
        const struct sl_jentry *e = &d->entries[d->index[i] - 1];
        /* unreachable: two keys of one hash of 64 bits */
        if (e->hash == hash && e->key.type == SL_J_STR && e->key.u.s->n_bytes == key->n_bytes &&
            memcmp(e->key.u.s->data, key->data, key->n_bytes) == 0) /* unreachable: likewise */
            return e->value;
    }
    return (struct sl_jval){0};
}
