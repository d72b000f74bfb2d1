/* SPDX-License-Identifier: MIT
 *
 * The filter wordwrap: Python's textwrap, which keeps white space inside of lines and drops it at
 * their ends.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/jinja/jinja.h"

#include <string.h>

struct wrap {
    const struct sl_jstr *sep;
    size_t width;
    bool break_long, on_hyphens, any;
};

/* The character at `at`, or before it; 0 at either end of the line. */
static uint32_t char_at(const char *s, size_t n, size_t at)
{
    uint32_t cp = 0;
    if (at < n)
        sl_utf8_decode(s + at, n - at, &cp);
    return cp;
}

static size_t step_back(const char *s, size_t at)
{
    size_t to = at - (at > 0);
    while (to > 0 && ((unsigned char)s[to] & 0xC0) == 0x80)
        to--;
    return to;
}

static uint32_t jinja_wrap_char_before(const char *s, size_t at)
{
    return at > 0 ? char_at(s, at, step_back(s, at)) : 0;
}

/* Behind the character at `at`, which must be there. */
static size_t jinja_wrap_step(const char *s, size_t n, size_t at)
{
    do
        at++;
    while (at < n && ((unsigned char)s[at] & 0xC0) == 0x80);
    return at;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool jinja_wrap_is_word(uint32_t cp)
{
    return cp == '_' || sl_jinja_is_alpha(cp) || sl_jinja_is_numeric(cp); /* digits are numeric */
}

static bool is_letter(uint32_t cp)
{
    return jinja_wrap_is_word(cp) && !sl_jinja_is_decimal(cp);
}

static bool is_word_punct(uint32_t cp)
{
    return jinja_wrap_is_word(cp) || (cp != 0 && cp < 128 && strchr("!\"'&.,?", (int)cp) != NULL);
}

/* The length of a dash of two or more hyphens between words, 0: there is none at `at`. */
static size_t dash_len(const char *s, size_t n, size_t at)
{
    size_t end = at;
    if (at >= n || s[at] != '-' || !is_word_punct(jinja_wrap_char_before(s, at)))
        return 0;
    while (end < n && s[end] == '-')
        end++;
    return end - at >= 2 && jinja_wrap_is_word(char_at(s, n, end)) ? end - at : 0;
}

/* May a word be cut behind the hyphen at `at`? Two letters before it, or one of an abbreviation
 * like "e-m-d"; and behind it two letters, a hyphen between them or not. */
static bool is_hyphen(const char *s, size_t n, size_t at)
{
    if (at >= n || s[at] != '-')
        return false;
    size_t one = step_back(s, at), two = step_back(s, one);
    uint32_t a = jinja_wrap_char_before(s, at), b = jinja_wrap_char_before(s, one);
    bool before = (is_letter(a) && is_letter(b)) ||
                  (is_letter(a) && b == '-' && is_letter(jinja_wrap_char_before(s, two)));
    if (!before || !is_letter(char_at(s, n, at + 1)))
        return false;
    size_t next = jinja_wrap_step(s, n, at + 1);
    next += next < n && s[next] == '-';
    return is_letter(char_at(s, n, next));
}

/* The length of the next chunk of one line, as textwrap cuts it: white space, a dash, a word, or a
 * word up to a hyphen. */
static size_t chunk_len(const char *s, size_t n, size_t at, bool on_hyphens)
{
    bool space = is_blank(s[at]), cut = on_hyphens && !space;
    size_t i = at, dash = cut ? dash_len(s, n, at) : 0;
    if (dash > 0)
        return dash;
    do {
        i = jinja_wrap_step(s, n, i);
        if (cut && is_hyphen(s, n, i))
            return i + 1 - at;
        if (cut && dash_len(s, n, i) > 0)
            return i - at;
    } while (i < n && is_blank(s[i]) == space);
    return i - at;
}

static size_t chars_in(const char *s, size_t n)
{
    struct sl_jstr t = {.data = s, .n_bytes = n, .n_chars = SIZE_MAX};
    return sl_jinja_chars(&t);
}

/* Nothing but white space, or nothing. */
static bool is_space(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i = jinja_wrap_step(s, n, i))
        if (!sl_jinja_is_space(char_at(s, n, i)))
            return false;
    return true;
}

/* Of a chunk of n bytes that is too long for a line what goes on this one, which has room for
 * `chars`: up to a hyphen that does not only follow others, else as much as fits. */
static size_t long_part(const struct wrap *w, const char *s, size_t n, size_t chars)
{
    size_t fits = 0, hyphen;
    for (; chars > 0; chars--)
        fits = jinja_wrap_step(s, n, fits);
    for (hyphen = fits; hyphen > 0 && s[hyphen - 1] != '-';)
        hyphen--;
    for (size_t i = 0; w->on_hyphens && i + 1 < hyphen; i++)
        if (s[i] != '-')
            return hyphen;
    return fits;
}

/* One line as textwrap makes it: white space that would begin it is dropped, but not at the very
 * beginning; what fits; of a chunk too long for any line a part, perhaps none; and then the last
 * piece goes if it is white space. */
static int wrap_line(struct sl_jvm *vm, struct wrap *w, const char *s, size_t n)
{
    size_t at = 0, len = 0, chars = 0; /* what is left of the chunk at `at`, 0: not cut yet */
    if (sl_jinja_burn(vm, 1 + n / 2) != 0)
        return vm->code;
    while (at < n) {
        size_t used = 0;
        if (len == 0) {
            len = chunk_len(s, n, at, w->on_hyphens);
            chars = chars_in(s + at, len);
        }
        if (w->any && is_space(s + at, len)) {
            at += len;
            len = 0;
        }
        size_t from = at, last = at; /* the line so far, and the last piece of it, end at `at` */
        while (at < n) {
            if (len == 0) {
                len = chunk_len(s, n, at, w->on_hyphens);
                chars = chars_in(s + at, len);
            }
            if (used + chars > w->width)
                break;
            used += chars;
            last = at;
            at += len;
            len = 0;
        }
        if (at < n && chars > w->width && (w->break_long || at == from)) {
            size_t take = w->break_long ? long_part(w, s + at, len, w->width - used) : len;
            last = at;
            chars -= chars_in(s + at, take); /* not counted anew for each line of a long word */
            at += take;
            len -= take;
        }
        size_t end = is_space(s + last, at - last) ? last : at;
        if (end == from)
            continue;
        if (w->any && sl_jinja_put(vm, w->sep->data, w->sep->n_bytes) != 0)
            return vm->code;
        w->any = true;
        if (sl_jinja_put(vm, s + from, end - from) != 0)
            return vm->code;
    }
    return 0;
}

int sl_jinja_f_wordwrap(struct sl_jvm *vm, struct sl_jval v, const struct sl_jargs *args,
                        struct sl_jval *out)
{
    struct sl_jval a[4];
    int64_t width = 79;
    struct sl_jstr newline = {.data = "\n", .n_bytes = 1, .n_chars = 1};
    struct wrap w = {.sep = &newline};
    const struct sl_jstr *s;
    struct sl_jlist *lines;
    if (sl_jinja_params(vm, "wordwrap", args, "width,break_long_words,wrapstring,break_on_hyphens",
                        0, a) != 0 ||
        (a[0].type != SL_J_MISSING && sl_jinja_want_int(vm, "wordwrap", a[0], &width) != 0) ||
        (a[2].type > SL_J_NONE && sl_jinja_want_str(vm, "wordwrap", a[2], &w.sep) != 0) ||
        sl_jinja_want_str(vm, "wordwrap", v, &s) != 0 ||
        sl_jinja_splitlines(vm, s, false, &lines) != 0)
        return vm->code;
    if (width <= 0)
        return sl_jinja_fail(vm, "invalid width (must be > 0)");
    w.width = (size_t)width;
    w.break_long = a[1].type == SL_J_MISSING || sl_jinja_truth(a[1]);
    w.on_hyphens = a[3].type == SL_J_MISSING || sl_jinja_truth(a[3]);
    size_t mark = vm->out->n_bytes;
    for (size_t i = 0; i < lines->n; i++) {
        const struct sl_jstr *line = lines->items[i].u.s;
        if (i > 0 && sl_jinja_put(vm, w.sep->data, w.sep->n_bytes) != 0)
            return vm->code;
        w.any = false;
        if (wrap_line(vm, &w, line->data, line->n_bytes) != 0)
            return vm->code;
    }
    return sl_jinja_take(vm, mark, out);
}
