/* SPDX-License-Identifier: MIT
 *
 * Walking over values: one cursor for everything a template can iterate, and length.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/jinja/jinja.h"

#include <string.h>

bool sl_jinja_iterable(struct sl_jval v)
{
    switch (v.type) {
    case SL_J_UNDEFINED:
    case SL_J_STR:
    case SL_J_LIST:
    case SL_J_TUPLE:
    case SL_J_DICT:
    case SL_J_VIEW:
    case SL_J_RANGE:
    case SL_J_ITER:
        return true;
    default:
        return false;
    }
}

int sl_jinja_iter(struct sl_jvm *vm, struct sl_jval v, struct sl_jseq *seq)
{
    *seq = (struct sl_jseq){.type = v.type, .kind = v.kind};
    switch (v.type) {
    case SL_J_UNDEFINED:
        return 0;
    case SL_J_STR:
        seq->u.str = v.u.s;
        seq->n = sl_jinja_chars(v.u.s);
        return sl_jinja_burn(vm, v.u.s->n_bytes / 64);
    case SL_J_LIST:
    case SL_J_TUPLE:
        seq->type = SL_J_LIST;
        seq->u.list = v.u.list;
        seq->n = v.u.list->n;
        return 0;
    case SL_J_DICT:
        seq->type = SL_J_VIEW;
        seq->kind = SL_JVIEW_KEYS;
        seq->u.dict = v.u.dict;
        seq->n = v.u.dict->n;
        return 0;
    case SL_J_VIEW:
        seq->u.dict = v.u.dict;
        seq->n = v.u.dict->n;
        return 0;
    case SL_J_RANGE:
        seq->u.range = v.u.range;
        seq->n = v.u.range->n;
        return 0;
    case SL_J_ITER:
        seq->u.iter = v.u.iter;
        seq->n = v.u.iter->list->n - v.u.iter->pos;
        return 0;
    default:
        return sl_jinja_fail(vm, "'%s' object is not iterable", sl_jinja_type_name(v));
    }
}

static int jinja_iter_next_char(struct sl_jvm *vm, struct sl_jseq *seq, struct sl_jval *out)
{
    const char *s = seq->u.str->data + seq->byte;
    size_t n = sl_utf8_valid_len(s, seq->u.str->n_bytes - seq->byte);
    SL_ASSERT(n > 0); /* strings are valid UTF-8 */
    seq->byte += n;
    return sl_jinja_char(vm, s, n, out);
}

bool sl_jinja_next(struct sl_jvm *vm, struct sl_jseq *seq, struct sl_jval *out)
{
    if (seq->pos >= seq->n || sl_jinja_burn(vm, 1) != 0)
        return false;
    size_t i = seq->pos++;
    switch (seq->type) {
    case SL_J_STR:
        return jinja_iter_next_char(vm, seq, out) == 0;
    case SL_J_LIST:
        *out = seq->u.list->items[i];
        return true;
    case SL_J_VIEW: {
        const struct sl_jentry *e = &seq->u.dict->entries[i];
        if (seq->kind == SL_JVIEW_ITEMS)
            return sl_jinja_pair(vm, e->key, e->value, out) == 0;
        *out = seq->kind == SL_JVIEW_KEYS ? e->key : e->value;
        return true;
    }
    case SL_J_RANGE:
        *out = sl_jinja_int(seq->u.range->start + (int64_t)i * seq->u.range->step);
        return true;
    case SL_J_ITER:
        if (seq->u.iter->pos >= seq->u.iter->list->n)
            return false;
        *out = seq->u.iter->list->items[seq->u.iter->pos++];
        return true;
    default: /* unreachable: sl_jinja_iter() makes no others */
        return false;
    }
}

int sl_jinja_length(struct sl_jvm *vm, struct sl_jval v, size_t *n)
{
    switch (v.type) {
    case SL_J_UNDEFINED:
        *n = 0;
        return 0;
    case SL_J_STR:
        *n = sl_jinja_chars(v.u.s);
        return sl_jinja_burn(vm, v.u.s->n_bytes / 64);
    case SL_J_LIST:
    case SL_J_TUPLE:
        *n = v.u.list->n;
        return 0;
    case SL_J_DICT:
    case SL_J_VIEW:
        *n = v.u.dict->n;
        return 0;
    case SL_J_RANGE:
        *n = v.u.range->n;
        return 0;
    case SL_J_LOOP:
        *n = v.u.loop->n;
        return 0;
    default:
        return sl_jinja_fail(vm, "object of type '%s' has no len()", sl_jinja_type_name(v));
    }
}

int sl_jinja_to_list(struct sl_jvm *vm, struct sl_jval v, struct sl_jlist **out)
{
    struct sl_jseq seq;
    struct sl_jval item;
    if (sl_jinja_iter(vm, v, &seq) != 0)
        return vm->code;
    struct sl_jlist *l = sl_jinja_list(vm, seq.n);
    if (l == NULL)
        return vm->code;
    while (sl_jinja_next(vm, &seq, &item))
        if (sl_jinja_push(vm, l, item) != 0)
            break;
    *out = l;
    return vm->code;
}
