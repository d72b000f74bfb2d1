/* SPDX-License-Identifier: MIT
 *
 * Global functions: those of jinja2 and what transformers adds. strftime_now is UTC with the names
 * of the C locale, so that a prompt does not depend on the machine it was made on.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef int global_fn(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out);

static int g_range(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out)
{
    int64_t v[3] = {0, 0, 1};
    if (args->n_kw > 0 || args->n_pos < 1 || args->n_pos > 3)
        return sl_jinja_fail(vm, "range expected 1 to 3 arguments");
    for (size_t i = 0; i < args->n_pos; i++)
        if (sl_jinja_want_int(vm, "range()", args->pos[i], &v[i]) != 0)
            return vm->code;
    if (args->n_pos == 1) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0)
        return sl_jinja_fail(vm, "range() arg 3 must not be zero");
    uint64_t span = 0, step = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    if (v[2] > 0 && v[1] > v[0])
        span = (uint64_t)v[1] - (uint64_t)v[0];
    else if (v[2] < 0 && v[0] > v[1])
        span = (uint64_t)v[0] - (uint64_t)v[1];
    uint64_t n = span / step + (span % step != 0);
    if (n > SL_JINJA_MAX_RANGE)
        return sl_jinja_fail(vm, "range too big, the maximum is %d", SL_JINJA_MAX_RANGE);
    struct sl_jrange *r = sl_jinja_alloc(vm, sizeof *r);
    if (r == NULL)
        return vm->code;
    *r = (struct sl_jrange){v[0], v[1], v[2], (size_t)n};
    *out = (struct sl_jval){.type = SL_J_RANGE, .u.range = r};
    return 0;
}

/* dict(mapping_or_pairs, **kwargs) */
static int fill_dict(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jdict *d)
{
    struct sl_jseq seq;
    struct sl_jval item;
    if (args->n_pos > 1)
        return sl_jinja_fail(vm, "dict expected at most 1 argument");
    if (args->n_pos == 1 && args->pos[0].type == SL_J_DICT) {
        const struct sl_jdict *from = args->pos[0].u.dict;
        for (size_t i = 0; i < from->n; i++)
            if (sl_jinja_dict_set(vm, d, from->entries[i].key, from->entries[i].value) != 0)
                return vm->code;
    } else if (args->n_pos == 1) {
        if (sl_jinja_iter(vm, args->pos[0], &seq) != 0)
            return vm->code;
        while (sl_jinja_next(vm, &seq, &item)) {
            struct sl_jlist *pair;
            if (sl_jinja_to_list(vm, item, &pair) != 0)
                return vm->code;
            if (pair->n != 2)
                return sl_jinja_fail(vm, "dict needs pairs");
            if (sl_jinja_dict_set(vm, d, pair->items[0], pair->items[1]) != 0)
                return vm->code;
        }
    }
    for (size_t i = 0; i < args->n_kw && vm->code == 0; i++) {
        struct sl_jval key = {.type = SL_J_STR,
                              .u.s = (struct sl_jstr *)(uintptr_t)args->kw[i].name};
        if (sl_jinja_dict_set(vm, d, key, args->kw[i].value) != 0)
            return vm->code;
    }
    return vm->code;
}

static int g_dict(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jdict *d = sl_jinja_dict(vm, args->n_kw);
    if (d == NULL || fill_dict(vm, args, d) != 0)
        return vm->code;
    *out = (struct sl_jval){.type = SL_J_DICT, .u.dict = d};
    return 0;
}

static int g_namespace(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jdict *d = sl_jinja_dict(vm, args->n_kw);
    if (d == NULL || fill_dict(vm, args, d) != 0)
        return vm->code;
    for (size_t i = 0; i < d->n; i++) {
        const struct sl_jval *key = &d->entries[i].key;
        if (key->type == SL_J_STR && key->u.s->n_bytes > 0 && key->u.s->data[0] == '_')
            return sl_jinja_fail(vm, "namespace attributes may not begin with an underscore");
    }
    *out = (struct sl_jval){.type = SL_J_NAMESPACE, .u.dict = d};
    return 0;
}

static int g_raise_exception(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval message;
    if (sl_jinja_params(vm, "raise_exception()", args, "message", 1, &message) != 0 ||
        sl_jinja_to_str(vm, message, out) != 0)
        return vm->code;
    return sl_jinja_fail(vm, "%.*s", (int)SL_MIN(out->u.s->n_bytes, 180), out->u.s->data);
}

static int g_cycler(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jcycler *c = sl_jinja_alloc(vm, sizeof *c);
    if (c == NULL || (c->items = sl_jinja_list(vm, args->n_pos)) == NULL)
        return vm->code;
    if (args->n_pos == 0 || args->n_kw > 0)
        return sl_jinja_fail(vm, "cycler() needs at least one item");
    for (size_t i = 0; i < args->n_pos; i++)
        if (sl_jinja_push(vm, c->items, args->pos[i]) != 0)
            return vm->code;
    *out = (struct sl_jval){.type = SL_J_CYCLER, .u.cycler = c};
    return 0;
}

static int g_joiner(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jjoiner *j = sl_jinja_alloc(vm, sizeof *j);
    if (j == NULL || sl_jinja_params(vm, "joiner()", args, "sep", 0, &j->sep) != 0 ||
        (j->sep.type == SL_J_MISSING && sl_jinja_strz(vm, ", ", &j->sep) != 0))
        return vm->code;
    *out = (struct sl_jval){.type = SL_J_JOINER, .u.joiner = j};
    return 0;
}

/* ---------------------------------------------------------------- time */

static int iso_week(const struct tm *tm, int *year)
{
    int wday = (tm->tm_wday + 6) % 7, week = (tm->tm_yday - wday + 10) / 7;
    *year = tm->tm_year + 1900;
    int before = *year - 1, y = week < 1 ? before : *year;
    int jan1 = (wday - tm->tm_yday % 7 + 7 * 53) % 7; /* weekday of this January 1st, Monday 0 */
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    if (week < 1) { /* the last week of the year before, which has 53 if it began on a Thursday, or
                       on a Wednesday and was a leap year; of others of those it is week 1 */
        int start = (jan1 - (leap ? 366 : 365) % 7 + 7) % 7;
        *year = before;
        return start == 3 || start == 2 ? 53 : 52;
    }
    if (week == 53 && !(jan1 == 3 || (jan1 == 2 && leap))) {
        *year += 1;
        return 1;
    }
    return week;
}

static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};

/* One conversion; false: not known, which prints it as it is, like glibc. pad: '-' '_' or 0. */
static bool conversion(char c, char pad, const struct tm *tm, int64_t now, char *out, size_t cap)
{
    int hour12 = (tm->tm_hour + 11) % 12 + 1, iso_year, week = iso_week(tm, &iso_year);
    const char *two = pad == '-' ? "%d" : pad == '_' ? "%2d" : "%02d";
    const char *space = pad == '-' ? "%d" : pad == '0' ? "%02d" : "%2d";
    const char *three = pad == '-' ? "%d" : pad == '_' ? "%3d" : "%03d";
    const struct {
        char c;
        const char *fmt;
        int v;
    } numbers[] = {
        {'d', two, tm->tm_mday},
        {'e', space, tm->tm_mday},
        {'m', two, tm->tm_mon + 1},
        {'y', two, (tm->tm_year + 1900) % 100},
        {'H', two, tm->tm_hour},
        {'I', two, hour12},
        {'k', space, tm->tm_hour},
        {'l', space, hour12},
        {'M', two, tm->tm_min},
        {'S', two, tm->tm_sec},
        {'j', three, tm->tm_yday + 1},
        {'C', two, (tm->tm_year + 1900) / 100},
        {'G', "%d", iso_year},
        {'V', two, week},
        {'g', two, iso_year % 100},
        {'w', "%d", tm->tm_wday},
        {'u', "%d", (tm->tm_wday + 6) % 7 + 1},
        {'Y', "%d", tm->tm_year + 1900},
        {'U', two, (tm->tm_yday + 7 - tm->tm_wday) / 7},
        {'W', two, (tm->tm_yday + 7 - (tm->tm_wday + 6) % 7) / 7},
    };
    for (size_t i = 0; i < SL_COUNT(numbers); i++)
        if (numbers[i].c == c) {
            const char *fmt = numbers[i].fmt;
            if (fmt[1] == 'd')
                snprintf(out, cap, "%d", numbers[i].v);
            else if (fmt[1] == '2')
                snprintf(out, cap, "%2d", numbers[i].v);
            else if (fmt[2] == '2')
                snprintf(out, cap, "%02d", numbers[i].v);
            else
                snprintf(out, cap, fmt[1] == '0' ? "%03d" : "%3d", numbers[i].v);
            return true;
        }
    const char *day = days[tm->tm_wday], *month = months[tm->tm_mon];
    switch (c) {
    case 'a':
        snprintf(out, cap, "%.3s", day);
        return true;
    case 'A':
        snprintf(out, cap, "%s", day);
        return true;
    case 'b':
    case 'h':
        snprintf(out, cap, "%.3s", month);
        return true;
    case 'B':
        snprintf(out, cap, "%s", month);
        return true;
    case 'p':
        snprintf(out, cap, "%s", tm->tm_hour < 12 ? "AM" : "PM");
        return true;
    case 'P':
        snprintf(out, cap, "%s", tm->tm_hour < 12 ? "am" : "pm");
        return true;
    case 'f':
        snprintf(out, cap, "000000");
        return true;
    case 's':
        snprintf(out, cap, "%" PRId64, now);
        return true;
    case 'z': /* a naive datetime has no zone */
    case 'Z':
        out[0] = '\0';
        return true;
    case 'n':
    case 't':
    case '%':
        snprintf(out, cap, "%c", c == 'n' ? '\n' : c == 't' ? '\t' : '%');
        return true;
    default:
        return false;
    }
}

static const char *composite(char c)
{
    switch (c) {
    case 'c':
        return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x':
        return "%m/%d/%y";
    case 'F':
        return "%Y-%m-%d";
    case 'r':
        return "%I:%M:%S %p";
    case 'R':
        return "%H:%M";
    case 'T':
    case 'X':
        return "%H:%M:%S";
    default:
        return NULL;
    }
}

static int put_time(struct sl_jvm *vm, const char *fmt, size_t n, const struct tm *tm, bool inner)
{
    for (size_t i = 0; i < n; i++) {
        char text[40], pad = 0;
        if (fmt[i] != '%' || i + 1 == n) {
            if (sl_jinja_put(vm, fmt + i, 1) != 0)
                return vm->code;
            continue;
        }
        size_t from = i++;
        if (i + 1 < n && (fmt[i] == '-' || fmt[i] == '_' || fmt[i] == '0'))
            pad = fmt[i++];
        const char *more = inner ? NULL : composite(fmt[i]);
        int code;
        if (more != NULL)
            code = put_time(vm, more, strlen(more), tm, true);
        else if (conversion(fmt[i], pad, tm, vm->now_s, text, sizeof text))
            code = sl_jinja_puts(vm, text);
        else
            code = sl_jinja_put(vm, fmt + from, i + 1 - from);
        if (code != 0)
            return code;
    }
    return 0;
}

static int g_strftime_now(struct sl_jvm *vm, const struct sl_jargs *args, struct sl_jval *out)
{
    struct sl_jval format;
    const struct sl_jstr *s;
    struct tm tm;
    time_t now = (time_t)vm->now_s;
    if (sl_jinja_params(vm, "strftime_now()", args, "format", 1, &format) != 0 ||
        sl_jinja_want_str(vm, "strftime_now()", format, &s) != 0)
        return vm->code;
    if (gmtime_r(&now, &tm) == NULL || tm.tm_year < -1900 || tm.tm_year > 8099)
        return sl_jinja_fail(vm, "the time is out of range");
    size_t mark = vm->out->n_bytes;
    if (put_time(vm, s->data, s->n_bytes, &tm, false) != 0)
        return vm->code;
    return sl_jinja_take(vm, mark, out);
}

static const struct {
    const char *name;
    global_fn *fn;
} globals[] = {
    {"range", g_range},
    {"dict", g_dict},
    {"namespace", g_namespace},
    {"raise_exception", g_raise_exception},
    {"strftime_now", g_strftime_now},
    {"cycler", g_cycler},
    {"joiner", g_joiner},
};

unsigned sl_jinja_global_find(const char *name, size_t n)
{
    for (unsigned i = 0; i < SL_COUNT(globals); i++)
        if (strlen(globals[i].name) == n && memcmp(globals[i].name, name, n) == 0)
            return i + 1;
    return 0;
}

int sl_jinja_call_global(struct sl_jvm *vm, unsigned id, const struct sl_jargs *args,
                         struct sl_jval *out)
{
    return globals[id - 1].fn(vm, args, out);
}
