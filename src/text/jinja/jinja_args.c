/* SPDX-License-Identifier: MIT
 *
 * Matching the arguments of a call with the parameters of a built-in.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

/* The number of the parameter called name in "a,b,c", SIZE_MAX when there is none. */
static size_t find_param(const char *names, const struct sl_jstr *name)
{
    for (size_t i = 0;; i++) {
        size_t n = strcspn(names, ",");
        if (n > 0 && n == name->n_bytes && memcmp(names, name->data, n) == 0)
            return i;
        if (names[n] == '\0')
            return SIZE_MAX;
        names += n + 1;
    }
}

int sl_jinja_params(struct sl_jvm *vm, const char *what, const struct sl_jargs *args,
                    const char *names, size_t n_required, struct sl_jval *out)
{
    size_t n = names[0] != '\0';
    for (const char *s = names; *s != '\0'; s++)
        n += *s == ',';
    if (args->n_pos > n)
        return sl_jinja_fail(vm, "%s takes at most %zu arguments (%zu given)", what, n,
                             args->n_pos);
    for (size_t i = 0; i < n; i++)
        out[i] = i < args->n_pos ? args->pos[i] : (struct sl_jval){0};
    for (size_t i = 0; i < args->n_kw; i++) {
        size_t at = find_param(names, args->kw[i].name);
        if (at == SIZE_MAX)
            return sl_jinja_fail(vm, "%s got an unexpected keyword argument '%.*s'", what,
                                 (int)SL_MIN(args->kw[i].name->n_bytes, 60),
                                 args->kw[i].name->data);
        if (out[at].type != SL_J_MISSING)
            return sl_jinja_fail(vm, "%s got multiple values for one argument", what);
        out[at] = args->kw[i].value;
    }
    for (size_t i = 0; i < n_required; i++)
        if (out[i].type == SL_J_MISSING)
            return sl_jinja_fail(vm, "%s misses a required argument", what);
    return 0;
}

int sl_jinja_want_int(struct sl_jvm *vm, const char *what, struct sl_jval v, int64_t *out)
{
    if (v.type == SL_J_UNDEFINED)
        return sl_jinja_unary(vm, false, v, &v);
    if (v.type != SL_J_INT && v.type != SL_J_BOOL)
        return sl_jinja_fail(vm, "%s needs an integer, not %s", what, sl_jinja_type_name(v));
    *out = v.type == SL_J_INT ? v.u.i : v.u.b;
    return 0;
}

int sl_jinja_want_str(struct sl_jvm *vm, const char *what, struct sl_jval v,
                      const struct sl_jstr **out)
{
    if (v.type != SL_J_STR)
        return sl_jinja_fail(vm, "%s needs a string, not %s", what, sl_jinja_type_name(v));
    *out = v.u.s;
    return 0;
}
