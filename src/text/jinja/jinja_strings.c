/* SPDX-License-Identifier: MIT
 *
 * The methods of str. Positions and widths count characters, texts are UTF-8.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/jinja/jinja.h"

#include <string.h>

#define M(name) SL_JMETHOD_##name

/* ---------------------------------------------------------------- searching */

const char *sl_jinja_find(const char *hay, size_t n, const char *needle, size_t m)
{
    return m == 0 ? hay : m > n ? NULL : memmem(hay, n, needle, m);
}

/* Backwards with a rolling hash, because comparing at every place would cost n * m. */
static const char *find_last(const char *hay, size_t n, const char *needle, size_t m)
{
    const uint64_t base = 0x9E3779B97F4A7C15u;
    if (m > n)
        return NULL;
    if (m == 0)
        return hay + n;
    if (m == 1)
        return memrchr(hay, *needle, n);
    uint64_t want = 0, have = 0, top = 1; /* sums of byte * base^(place from the start) */
    for (size_t i = m; i > 0; i--) {
        want = want * base + (unsigned char)needle[i - 1];
        have = have * base + (unsigned char)hay[n - m + i - 1];
        top = i > 1 ? top * base : top;
    }
    for (const char *s = hay + (n - m);; s--) {
        if (have == want && memcmp(s, needle, m) == 0) /* unreachable: a false match of 64 bits */
            return s;
        if (s == hay)
            return NULL;
        have = (have - (unsigned char)s[m - 1] * top) * base + (unsigned char)s[-1];
    }
}

/* Fuel for one search; long needles make memmem slower. */
static uint64_t find_cost(size_t n, size_t m)
{
    return 1 + (m <= 1 ? n / 16 : m <= 8 ? n / 4 : n / 2);
}

static size_t jinja_strings_count_chars(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

/* The bytes of s between optional character positions start and stop, as in s[start:stop]. */
static int clip(struct sl_jvm *vm, const struct sl_jstr *s, struct sl_jval start,
                struct sl_jval stop, size_t *from, size_t *to, bool *in_range)
{
    int64_t n = (int64_t)sl_jinja_chars(s), a = 0, b = n;
    if (start.type > SL_J_NONE && sl_jinja_want_int(vm, "a position", start, &a) != 0)
        return vm->code;
    if (stop.type > SL_J_NONE && sl_jinja_want_int(vm, "a position", stop, &b) != 0)
        return vm->code;
    a = a < 0 ? SL_MAX(a + n, 0) : a;
    b = b < 0 ? SL_MAX(b + n, 0) : SL_MIN(b, n);
    *in_range = a <= b; /* beyond that even "" is not found */
    *from = sl_jinja_offset(s, (size_t)SL_MIN(a, n));
    *to = *in_range ? sl_jinja_offset(s, (size_t)b) : *from;
    return 0;
}

static int find_method(struct sl_jvm *vm, const struct sl_jstr *s, unsigned id,
                       const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval a[3];
    const struct sl_jstr *sub;
    size_t from, to;
    bool in_range, last = id == M(rfind) || id == M(rindex);
    if (sl_jinja_params(vm, "find()", args, "sub,start,end", 1, a) != 0 ||
        sl_jinja_want_str(vm, "find()", a[0], &sub) != 0 ||
        clip(vm, s, a[1], a[2], &from, &to, &in_range) != 0 ||
        sl_jinja_burn(vm, find_cost(s->n_bytes, last ? 9 : sub->n_bytes)) != 0)
        return vm->code;
    const char *hit = NULL;
    if (in_range)
        hit =
            (last ? find_last : sl_jinja_find)(s->data + from, to - from, sub->data, sub->n_bytes);
    if (hit == NULL && (id == M(index) || id == M(rindex)))
        return sl_jinja_fail(vm, "substring not found");
    *out = sl_jinja_int(
        hit != NULL ? (int64_t)jinja_strings_count_chars(s->data, (size_t)(hit - s->data)) : -1);
    return 0;
}

static int count_method(struct sl_jvm *vm, const struct sl_jstr *s, const struct sl_jargs *args,
                        struct sl_jval *out)
{
    struct sl_jval a[3];
    const struct sl_jstr *sub;
    size_t from, to;
    bool in_range;
    int64_t n = 0;
    if (sl_jinja_params(vm, "count()", args, "sub,start,end", 1, a) != 0 ||
        sl_jinja_want_str(vm, "count()", a[0], &sub) != 0 ||
        clip(vm, s, a[1], a[2], &from, &to, &in_range) != 0 ||
        sl_jinja_burn(vm, find_cost(s->n_bytes, sub->n_bytes)) != 0)
        return vm->code;
    if (sub->n_bytes == 0) {
        *out = sl_jinja_int(
            in_range ? (int64_t)jinja_strings_count_chars(s->data + from, to - from) + 1 : 0);
        return 0;
    }
    for (const char *at = s->data + from, *end = s->data + to;; n++) {
        const char *hit = sl_jinja_find(at, (size_t)(end - at), sub->data, sub->n_bytes);
        if (hit == NULL)
            break;
        at = hit + sub->n_bytes;
    }
    *out = sl_jinja_int(n);
    return 0;
}

static int affix_method(struct sl_jvm *vm, const struct sl_jstr *s, unsigned id,
                        const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval a[3];
    size_t from, to;
    bool in_range;
    if (sl_jinja_params(vm, "startswith()", args, "prefix,start,end", 1, a) != 0 ||
        clip(vm, s, a[1], a[2], &from, &to, &in_range) != 0)
        return vm->code;
    struct sl_jlist one = {.items = &a[0], .n = 1};
    const struct sl_jlist *all = a[0].type == SL_J_TUPLE ? a[0].u.list : &one;
    bool yes = false;
    for (size_t i = 0; i < all->n && !yes; i++) {
        const struct sl_jstr *x;
        if (sl_jinja_want_str(vm, "startswith() and endswith()", all->items[i], &x) != 0 ||
            sl_jinja_burn(vm, 1 + x->n_bytes / 64) != 0)
            return vm->code;
        if (!in_range || x->n_bytes > to - from)
            continue;
        size_t at = id == M(startswith) ? from : to - x->n_bytes;
        yes = x->n_bytes == 0 || memcmp(s->data + at, x->data, x->n_bytes) == 0;
    }
    *out = sl_jinja_bool(yes);
    return 0;
}

/* ---------------------------------------------------------------- stripping, splitting, joining */

static bool in_set(const struct sl_jstr *set, const char *c, size_t len)
{
    if (set == NULL) {
        uint32_t cp = (unsigned char)*c;
        if (cp >= 128)
            sl_utf8_decode(c, len, &cp);
        return sl_jinja_is_space(cp);
    }
    if (len == 1)
        return memchr(set->data, *c, set->n_bytes) != NULL;
    return sl_jinja_find(set->data, set->n_bytes, c, len) != NULL;
}

static size_t jinja_strings_char_before(const char *s, size_t end)
{
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80)
        at--;
    return at;
}

static size_t char_len(const char *s, size_t n)
{
    size_t len = (unsigned char)*s < 128 ? 1 : sl_utf8_valid_len(s, n);
    SL_ASSERT(len > 0); /* strings are valid UTF-8 */
    return len;
}

int sl_jinja_strip(struct sl_jvm *vm, struct sl_jval v, const struct sl_jstr *chars, bool left,
                   bool right, struct sl_jval *out)
{
    const struct sl_jstr *s = v.u.s;
    size_t from = 0, to = s->n_bytes, len, set = chars != NULL ? chars->n_bytes : 16;
    size_t each = 1 + set / 16;
    uint64_t most = 2 * (vm->fuel / each) + 2; /* more than that nobody can pay */
    while (left && from < to && from <= most) {
        len = char_len(s->data + from, to - from);
        if (!in_set(chars, s->data + from, len))
            break;
        from += len;
    }
    while (right && to > from && s->n_bytes - (to - from) <= most) {
        size_t at = jinja_strings_char_before(s->data, to);
        if (!in_set(chars, s->data + at, to - at))
            break;
        to = at;
    }
    size_t gone = s->n_bytes - (to - from);
    if (sl_jinja_burn(vm, 1 + gone / 2 * each) != 0)
        return vm->code;
    *out = v;
    if (gone == 0)
        return 0;
    int code = sl_jinja_borrow(vm, s->data + from, to - from, out);
    out->markup = v.markup;
    return code;
}

static int strip_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                        const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval chars;
    const struct sl_jstr *set = NULL;
    if (sl_jinja_params(vm, "strip()", args, "chars", 0, &chars) != 0 ||
        (chars.type > SL_J_NONE && sl_jinja_want_str(vm, "strip()", chars, &set) != 0))
        return vm->code;
    if (chars.type == SL_J_UNDEFINED)
        return sl_jinja_want_str(vm, "strip()", chars, &set);
    return sl_jinja_strip(vm, self, set, id != M(rstrip), id != M(lstrip), out);
}

static int push_part(struct sl_jvm *vm, struct sl_jlist *l, const char *s, size_t n)
{
    struct sl_jval v;
    return sl_jinja_borrow(vm, s, n, &v) != 0 ? vm->code : sl_jinja_push(vm, l, v);
}

static int split_space(struct sl_jvm *vm, const struct sl_jstr *s, int64_t max, struct sl_jlist *l)
{
    size_t i = 0;
    for (;;) {
        while (i < s->n_bytes && in_set(NULL, s->data + i, char_len(s->data + i, s->n_bytes - i)))
            i += char_len(s->data + i, s->n_bytes - i);
        if (i >= s->n_bytes)
            return 0;
        size_t from = i;
        if (max == 0) /* the rest as it is */
            return push_part(vm, l, s->data + from, s->n_bytes - from);
        while (i < s->n_bytes && !in_set(NULL, s->data + i, char_len(s->data + i, s->n_bytes - i)))
            i += char_len(s->data + i, s->n_bytes - i);
        if (push_part(vm, l, s->data + from, i - from) != 0)
            return vm->code;
        max -= max > 0;
    }
}

/* Where the characters before end that are spaces (or are none) begin. */
static size_t skip_back(const char *s, size_t end, bool spaces)
{
    while (end > 0) {
        size_t at = jinja_strings_char_before(s, end);
        if (in_set(NULL, s + at, end - at) != spaces)
            break;
        end = at;
    }
    return end;
}

/* From the end; parts are pushed last first and turned round by the caller. */
static int rsplit_space(struct sl_jvm *vm, const struct sl_jstr *s, int64_t max, struct sl_jlist *l)
{
    size_t end = s->n_bytes;
    for (;;) {
        end = skip_back(s->data, end, true);
        if (end == 0)
            return 0;
        size_t to = end;
        if (max == 0)
            return push_part(vm, l, s->data, to);
        end = skip_back(s->data, end, false);
        if (push_part(vm, l, s->data + end, to - end) != 0)
            return vm->code;
        max -= max > 0;
    }
}

static int split_sep(struct sl_jvm *vm, const struct sl_jstr *s, const struct sl_jstr *sep,
                     int64_t max, bool from_end, struct sl_jlist *l)
{
    const char *at = s->data, *end = s->data + s->n_bytes;
    if (sep->n_bytes == 0)
        return sl_jinja_fail(vm, "empty separator");
    if (sl_jinja_burn(vm, find_cost(s->n_bytes, from_end ? 9 : sep->n_bytes)) != 0)
        return vm->code;
    while (max != 0) {
        const char *hit =
            (from_end ? find_last : sl_jinja_find)(at, (size_t)(end - at), sep->data, sep->n_bytes);
        if (hit == NULL)
            break;
        int code;
        if (from_end) {
            code = push_part(vm, l, hit + sep->n_bytes, (size_t)(end - hit) - sep->n_bytes);
            end = hit;
        } else {
            code = push_part(vm, l, at, (size_t)(hit - at));
            at = hit + sep->n_bytes;
        }
        if (code != 0)
            return code;
        max -= max > 0;
    }
    return push_part(vm, l, at, (size_t)(end - at));
}

static int split_method(struct sl_jvm *vm, const struct sl_jstr *s, unsigned id,
                        const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval a[2];
    int64_t max = -1;
    bool from_end = id == M(rsplit);
    struct sl_jlist *l = sl_jinja_list(vm, 4);
    if (l == NULL || sl_jinja_params(vm, "split()", args, "sep,maxsplit", 0, a) != 0 ||
        (a[1].type != SL_J_MISSING && sl_jinja_want_int(vm, "split()", a[1], &max) != 0) ||
        sl_jinja_burn(vm, 1 + s->n_bytes / 4) != 0)
        return vm->code;
    if (a[0].type == SL_J_MISSING || a[0].type == SL_J_NONE) {
        if ((from_end ? rsplit_space : split_space)(vm, s, max, l) != 0)
            return vm->code;
    } else {
        const struct sl_jstr *sep;
        if (sl_jinja_want_str(vm, "split()", a[0], &sep) != 0 ||
            split_sep(vm, s, sep, max, from_end, l) != 0)
            return vm->code;
    }
    for (size_t i = 0; from_end && i < l->n / 2; i++) {
        struct sl_jval t = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = t;
    }
    *out = sl_jinja_list_val(l);
    return 0;
}

static bool is_line_break(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

int sl_jinja_splitlines(struct sl_jvm *vm, const struct sl_jstr *s, bool keep,
                        struct sl_jlist **out)
{
    struct sl_jlist *l = sl_jinja_list(vm, 4);
    size_t from = 0, i = 0;
    if (l == NULL || sl_jinja_burn(vm, 1 + s->n_bytes / 2) != 0)
        return vm->code;
    while (i < s->n_bytes) {
        uint32_t cp = (unsigned char)s->data[i];
        size_t len = char_len(s->data + i, s->n_bytes - i);
        if (len > 1)
            sl_utf8_decode(s->data + i, len, &cp);
        if (!is_line_break(cp)) {
            i += len;
            continue;
        }
        if (cp == '\r' && i + 1 < s->n_bytes && s->data[i + 1] == '\n')
            len = 2;
        if (push_part(vm, l, s->data + from, i - from + (keep ? len : 0)) != 0)
            return vm->code;
        from = i += len;
    }
    if (from < s->n_bytes && push_part(vm, l, s->data + from, s->n_bytes - from) != 0)
        return vm->code;
    *out = l;
    return 0;
}

static int join_method(struct sl_jvm *vm, const struct sl_jstr *sep, const struct sl_jargs *args,
                       struct sl_jval *out)
{
    struct sl_jval over, item;
    struct sl_jseq seq;
    if (sl_jinja_params(vm, "join()", args, "iterable", 1, &over) != 0 ||
        sl_jinja_iter(vm, over, &seq) != 0)
        return vm->code;
    size_t mark = vm->out->n_bytes;
    for (size_t i = 0; sl_jinja_next(vm, &seq, &item); i++) {
        if (item.type != SL_J_STR)
            return sl_jinja_fail(vm, "sequence item %zu: expected str instance, %s found", i,
                                 sl_jinja_type_name(item));
        if ((i > 0 && sl_jinja_put(vm, sep->data, sep->n_bytes) != 0) ||
            sl_jinja_put(vm, item.u.s->data, item.u.s->n_bytes) != 0)
            return vm->code;
    }
    return vm->code != 0 ? vm->code : sl_jinja_take(vm, mark, out);
}

static int partition_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                            const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval sep_val;
    const struct sl_jstr *s = self.u.s, *sep;
    bool last = id == M(rpartition);
    struct sl_jlist *l = sl_jinja_list(vm, 3);
    if (l == NULL || sl_jinja_params(vm, "partition()", args, "sep", 1, &sep_val) != 0 ||
        sl_jinja_want_str(vm, "partition()", sep_val, &sep) != 0 ||
        sl_jinja_burn(vm, find_cost(s->n_bytes, last ? 9 : sep->n_bytes)) != 0)
        return vm->code;
    if (sep->n_bytes == 0)
        return sl_jinja_fail(vm, "empty separator");
    const char *hit =
        (last ? find_last : sl_jinja_find)(s->data, s->n_bytes, sep->data, sep->n_bytes);
    size_t at = hit != NULL ? (size_t)(hit - s->data) : last ? 0 : s->n_bytes;
    size_t skip = hit != NULL ? sep->n_bytes : 0;
    if (push_part(vm, l, s->data, at) != 0 || push_part(vm, l, sep->data, skip) != 0 ||
        push_part(vm, l, s->data + at + skip, s->n_bytes - at - skip) != 0)
        return vm->code;
    *out = sl_jinja_tuple_val(l);
    return 0;
}

/* ---------------------------------------------------------------- rewriting */

int sl_jinja_replace(struct sl_jvm *vm, const struct sl_jstr *s, const struct sl_jstr *old,
                     const struct sl_jstr *new_, int64_t max, struct sl_jval *out)
{
    size_t mark = vm->out->n_bytes, i = 0;
    if (sl_jinja_burn(vm, find_cost(s->n_bytes, old->n_bytes)) != 0)
        return vm->code;
    if (old->n_bytes == 0) { /* between all characters and at both ends */
        while (max != 0) {
            if (sl_jinja_put(vm, new_->data, new_->n_bytes) != 0)
                return vm->code;
            max -= max > 0;
            if (i >= s->n_bytes)
                break;
            size_t len = char_len(s->data + i, s->n_bytes - i);
            if (sl_jinja_put(vm, s->data + i, len) != 0)
                return vm->code;
            i += len;
        }
    }
    while (old->n_bytes > 0 && max != 0) {
        const char *hit = sl_jinja_find(s->data + i, s->n_bytes - i, old->data, old->n_bytes);
        if (hit == NULL)
            break;
        size_t at = (size_t)(hit - s->data);
        if (sl_jinja_put(vm, s->data + i, at - i) != 0 ||
            sl_jinja_put(vm, new_->data, new_->n_bytes) != 0)
            return vm->code;
        i = at + old->n_bytes;
        max -= max > 0;
    }
    if (sl_jinja_put(vm, s->data + i, s->n_bytes - i) != 0)
        return vm->code;
    return sl_jinja_take(vm, mark, out);
}

static int replace_method(struct sl_jvm *vm, const struct sl_jstr *s, const struct sl_jargs *args,
                          struct sl_jval *out)
{
    struct sl_jval a[3];
    const struct sl_jstr *old, *new_;
    int64_t max = -1;
    if (args->n_kw > 0 && !vm->javascript)
        return sl_jinja_fail(vm, "replace() takes no keyword arguments");
    if (sl_jinja_params(vm, "replace()", args, "old,new,count", 2, a) != 0 ||
        sl_jinja_want_str(vm, "replace()", a[0], &old) != 0 ||
        sl_jinja_want_str(vm, "replace()", a[1], &new_) != 0 ||
        (a[2].type != SL_J_MISSING && sl_jinja_want_int(vm, "replace()", a[2], &max) != 0))
        return vm->code;
    return sl_jinja_replace(vm, s, old, new_, max, out);
}

static int put_cps(struct sl_jvm *vm, const uint32_t *cps, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char text[4];
        size_t len = sl_utf8_encode(cps[i], text);
        if (sl_jinja_put(vm, text, len) != 0)
            return vm->code;
    }
    return 0;
}

static bool is_cased(uint32_t cp)
{
    /* what has a capital and is none itself is a small letter */
    return sl_jinja_is_upper(cp) || sl_jinja_is_lower(cp) || sl_jinja_lower(cp) != cp;
}

/* Sigma at the end of a word has a small letter of its own. */
static bool is_final_sigma(const struct sl_jstr *s, size_t at)
{
    uint32_t cp = 0;
    size_t i = at;
    while (i > 0) {
        size_t before = jinja_strings_char_before(s->data, i);
        sl_utf8_decode(s->data + before, i - before, &cp);
        i = before;
        if (cp != '\'' && cp != 0x2019 && cp != 0xAD && cp != '.' && cp != ':')
            break;
        cp = 0;
    }
    if (cp == 0 || !is_cased(cp))
        return false;
    for (i = at + 2; i < s->n_bytes;) {
        size_t len = char_len(s->data + i, s->n_bytes - i);
        cp = (unsigned char)s->data[i];
        if (len > 1)
            sl_utf8_decode(s->data + i, len, &cp);
        if (cp != '\'' && cp != 0x2019 && cp != 0xAD && cp != '.' && cp != ':')
            return !is_cased(cp);
        i += len;
    }
    return true;
}

static int jinja_strings_put_lower(struct sl_jvm *vm, const struct sl_jstr *s, size_t at,
                                   uint32_t cp)
{
    uint32_t to[2] = {sl_jinja_lower(cp), 0x307};
    if (cp == 0x3A3)
        to[0] = is_final_sigma(s, at) ? 0x3C2 : 0x3C3;
    if (cp == 0x130)
        to[0] = 'i';
    return put_cps(vm, to, cp == 0x130 ? 2 : 1);
}

static int recase_ascii(struct sl_jvm *vm, const struct sl_jstr *s, bool up, struct sl_jval *out)
{
    char *text = sl_jinja_alloc(vm, s->n_bytes);
    if (text == NULL)
        return vm->code;
    for (size_t i = 0; i < s->n_bytes; i++) {
        char c = s->data[i];
        if (up ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z')
            c = (char)(c ^ 0x20);
        text[i] = c;
    }
    return sl_jinja_borrow(vm, text, s->n_bytes, out);
}

int sl_jinja_recase(struct sl_jvm *vm, const struct sl_jstr *s, enum sl_jcase how,
                    struct sl_jval *out)
{
    if (sl_jinja_burn(vm, 1 + s->n_bytes / 8) != 0)
        return vm->code;
    if ((how == SL_JCASE_UPPER || how == SL_JCASE_LOWER || how == SL_JCASE_FOLD) &&
        sl_jinja_chars(s) == s->n_bytes)
        return recase_ascii(vm, s, how == SL_JCASE_UPPER, out);
    size_t mark = vm->out->n_bytes;
    bool in_word = false;
    for (size_t i = 0, len; i < s->n_bytes; i += len) {
        uint32_t cp = (unsigned char)s->data[i], to[3];
        len = char_len(s->data + i, s->n_bytes - i);
        if (len > 1)
            sl_utf8_decode(s->data + i, len, &cp);
        bool up = how == SL_JCASE_UPPER || (how == SL_JCASE_SWAP && sl_jinja_is_lower(cp));
        bool title = (how == SL_JCASE_CAPITALIZE && i == 0) || (how == SL_JCASE_TITLE && !in_word);
        bool low = !up && !title && (how != SL_JCASE_SWAP || sl_jinja_is_upper(cp));
        in_word = is_cased(cp);
        if (how == SL_JCASE_FOLD && (cp == 0xDF || cp == 0x1E9E)) {
            if (sl_jinja_put(vm, "ss", 2) != 0)
                return vm->code;
        } else if (low) {
            if (how == SL_JCASE_FOLD && (cp == 0x3A3 || cp == 0x3C2))
                cp = 0x3C3;
            if (jinja_strings_put_lower(vm, s, i, cp) != 0)
                return vm->code;
        } else if (up || title) {
            size_t n = title ? sl_jinja_titlecase(cp, to) : sl_jinja_upper(cp, to);
            if (put_cps(vm, to, n) != 0)
                return vm->code;
        } else if (sl_jinja_put(vm, s->data + i, len) != 0) {
            return vm->code;
        }
    }
    return sl_jinja_take(vm, mark, out);
}

static int pad_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                      const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval a[2];
    const struct sl_jstr *s = self.u.s, *fill = NULL;
    int64_t width;
    if (sl_jinja_params(vm, "a padding method", args, id == M(zfill) ? "width" : "width,fill", 1,
                        a) != 0 ||
        sl_jinja_want_int(vm, "a padding method", a[0], &width) != 0)
        return vm->code;
    if (id == M(zfill))
        a[1] = (struct sl_jval){0};
    if (a[1].type != SL_J_MISSING) {
        if (sl_jinja_want_str(vm, "a padding method", a[1], &fill) != 0)
            return vm->code;
        if (sl_jinja_chars(fill) != 1)
            return sl_jinja_fail(vm, "the fill character must be exactly one character long");
    }
    size_t n = sl_jinja_chars(s), mark = vm->out->n_bytes;
    *out = self;
    if (width < 0 || (size_t)width <= n)
        return 0;
    size_t pad = (size_t)width - n, left = id == M(ljust) ? 0 : pad, sign = 0;
    if (id == M(center)) /* the odd one goes left when the width is odd */
        left = pad / 2 + (pad & (size_t)width & 1);
    if (id == M(zfill) && s->n_bytes > 0 && (s->data[0] == '-' || s->data[0] == '+'))
        sign = 1;
    if (sl_jinja_put(vm, s->data, sign) != 0)
        return vm->code;
    for (size_t i = 0; i <= pad; i++) {
        if (i == left && sl_jinja_put(vm, s->data + sign, s->n_bytes - sign) != 0)
            return vm->code;
        if (i < pad && (fill != NULL ? sl_jinja_put(vm, fill->data, fill->n_bytes)
                                     : sl_jinja_put(vm, id == M(zfill) ? "0" : " ", 1)) != 0)
            return vm->code;
    }
    return sl_jinja_take(vm, mark, out);
}

static int remove_affix(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                        const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval a;
    const struct sl_jstr *s = self.u.s, *x;
    bool prefix = id == M(removeprefix);
    if (sl_jinja_params(vm, "removeprefix()", args, "affix", 1, &a) != 0 ||
        sl_jinja_want_str(vm, "removeprefix()", a, &x) != 0)
        return vm->code;
    *out = self;
    if (x->n_bytes == 0 || x->n_bytes > s->n_bytes ||
        memcmp(prefix ? s->data : s->data + s->n_bytes - x->n_bytes, x->data, x->n_bytes) != 0)
        return 0;
    return sl_jinja_borrow(vm, s->data + (prefix ? x->n_bytes : 0), s->n_bytes - x->n_bytes, out);
}

static int expand_tabs(struct sl_jvm *vm, const struct sl_jstr *s, const struct sl_jargs *args,
                       struct sl_jval *out)
{
    struct sl_jval a;
    int64_t size = 8, column = 0;
    if (sl_jinja_params(vm, "expandtabs()", args, "tabsize", 0, &a) != 0 ||
        (a.type != SL_J_MISSING && sl_jinja_want_int(vm, "expandtabs()", a, &size) != 0))
        return vm->code;
    size_t mark = vm->out->n_bytes;
    for (size_t i = 0, len; i < s->n_bytes; i += len) {
        len = char_len(s->data + i, s->n_bytes - i);
        int64_t pad = size > 0 ? size - column % size : 0;
        if (s->data[i] != '\t') {
            if (sl_jinja_put(vm, s->data + i, len) != 0)
                return vm->code;
            column = s->data[i] == '\n' || s->data[i] == '\r' ? 0 : column + 1;
            continue;
        }
        for (column += pad; pad > 0; pad--)
            if (sl_jinja_put(vm, " ", 1) != 0)
                return vm->code;
    }
    return sl_jinja_take(vm, mark, out);
}

/* ---------------------------------------------------------------- is...() */

bool sl_jinja_is_cased(const struct sl_jstr *s, bool upper)
{
    bool any = false;
    for (size_t i = 0, len; i < s->n_bytes; i += len) {
        uint32_t cp = (unsigned char)s->data[i];
        len = char_len(s->data + i, s->n_bytes - i);
        if (len > 1)
            sl_utf8_decode(s->data + i, len, &cp);
        if (upper ? sl_jinja_is_lower(cp) : sl_jinja_is_upper(cp))
            return false;
        any |= upper ? sl_jinja_is_upper(cp) : sl_jinja_is_lower(cp);
    }
    return any;
}

static bool is_class(unsigned id, uint32_t cp, bool first)
{
    switch (id) {
    case M(isalpha):
        return sl_jinja_is_alpha(cp);
    case M(isalnum):
        return sl_jinja_is_alpha(cp) || sl_jinja_is_numeric(cp); /* digits are numeric */
    case M(isdigit):
        return sl_jinja_is_digit(cp);
    case M(isdecimal):
        return sl_jinja_is_decimal(cp);
    case M(isnumeric):
        return sl_jinja_is_numeric(cp);
    case M(isspace):
        return sl_jinja_is_space(cp);
    case M(isprintable):
        return sl_jinja_is_printable(cp);
    case M(isascii):
        return cp < 128;
    default: /* isidentifier */
        return cp == '_' || sl_jinja_is_alpha(cp) || (!first && sl_jinja_is_decimal(cp));
    }
}

static bool is_title(const struct sl_jstr *s)
{
    bool in_word = false, any = false;
    for (size_t i = 0, len; i < s->n_bytes; i += len) {
        uint32_t cp = (unsigned char)s->data[i];
        len = char_len(s->data + i, s->n_bytes - i);
        if (len > 1)
            sl_utf8_decode(s->data + i, len, &cp);
        bool up = sl_jinja_is_upper(cp), low = sl_jinja_is_lower(cp);
        up = up || (!low && sl_jinja_lower(cp) != cp); /* a letter of title case, like U+01C5 */
        if ((up && in_word) || (low && !in_word))
            return false;
        in_word = up || low;
        any |= in_word;
    }
    return any;
}

static int is_method(struct sl_jvm *vm, const struct sl_jstr *s, unsigned id,
                     const struct sl_jargs *args, struct sl_jval *out)
{
    if (args->n_pos + args->n_kw > 0)
        return sl_jinja_fail(vm, "%s() takes no arguments", sl_jinja_method_name(id));
    if (sl_jinja_burn(vm, 1 + s->n_bytes / 2) != 0)
        return vm->code;
    bool yes = s->n_bytes > 0 || id == M(isascii) || id == M(isprintable);
    if (id == M(isupper) || id == M(islower))
        yes = sl_jinja_is_cased(s, id == M(isupper));
    else if (id == M(istitle))
        yes = is_title(s);
    else
        for (size_t i = 0, len; i < s->n_bytes && yes; i += len) {
            uint32_t cp = (unsigned char)s->data[i];
            len = char_len(s->data + i, s->n_bytes - i);
            if (len > 1)
                sl_utf8_decode(s->data + i, len, &cp);
            yes = is_class(id, cp, i == 0);
        }
    *out = sl_jinja_bool(yes);
    return 0;
}

static int recase_method(struct sl_jvm *vm, const struct sl_jstr *s, unsigned id,
                         const struct sl_jargs *args, struct sl_jval *out)
{
    if (args->n_pos + args->n_kw > 0)
        return sl_jinja_fail(vm, "%s() takes no arguments", sl_jinja_method_name(id));
    enum sl_jcase how = id == M(upper)        ? SL_JCASE_UPPER
                        : id == M(lower)      ? SL_JCASE_LOWER
                        : id == M(capitalize) ? SL_JCASE_CAPITALIZE
                        : id == M(title)      ? SL_JCASE_TITLE
                        : id == M(swapcase)   ? SL_JCASE_SWAP
                                              : SL_JCASE_FOLD;
    return sl_jinja_recase(vm, s, how, out);
}

int sl_jinja_str_method(struct sl_jvm *vm, struct sl_jval self, unsigned id,
                        const struct sl_jargs *args, struct sl_jval *out)
{
    const struct sl_jstr *s = self.u.s;
    struct sl_jval a;
    struct sl_jlist *l;
    switch (id) {
    case M(strip):
    case M(lstrip):
    case M(rstrip):
        return strip_method(vm, self, id, args, out);
    case M(split):
    case M(rsplit):
        return split_method(vm, s, id, args, out);
    case M(splitlines):
        if (sl_jinja_params(vm, "splitlines()", args, "keepends", 0, &a) != 0 ||
            sl_jinja_splitlines(vm, s, sl_jinja_truth(a), &l) != 0)
            return vm->code;
        *out = sl_jinja_list_val(l);
        return 0;
    case M(startswith):
    case M(endswith):
        return affix_method(vm, s, id, args, out);
    case M(find):
    case M(rfind):
    case M(index):
    case M(rindex):
        return find_method(vm, s, id, args, out);
    case M(count):
        return count_method(vm, s, args, out);
    case M(replace):
        return replace_method(vm, s, args, out);
    case M(join):
        return join_method(vm, s, args, out);
    case M(partition):
    case M(rpartition):
        return partition_method(vm, self, id, args, out);
    case M(upper):
    case M(lower):
    case M(capitalize):
    case M(title):
    case M(swapcase):
    case M(casefold):
        return recase_method(vm, s, id, args, out);
    case M(ljust):
    case M(rjust):
    case M(center):
    case M(zfill):
        return pad_method(vm, self, id, args, out);
    case M(removeprefix):
    case M(removesuffix):
        return remove_affix(vm, self, id, args, out);
    case M(expandtabs):
        return expand_tabs(vm, s, args, out);
    case M(format):
        return sl_jinja_format(vm, s, args, out);
    default:
        return is_method(vm, s, id, args, out);
    }
}
