/* SPDX-License-Identifier: MIT
 *
 * Arithmetic with Python's rules: bool counts as int, / is always float, // and % round down, +
 * joins strings and lists, * repeats them, "..." % x formats. Integers are 64 bits; what does not
 * fit is an error instead of a longer integer.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

bool sl_jinja_is_number(struct sl_jval v)
{
    return v.type == SL_J_BOOL || v.type == SL_J_INT || v.type == SL_J_FLOAT;
}

double sl_jinja_as_double(struct sl_jval v)
{
    return v.type == SL_J_FLOAT ? v.u.f : v.type == SL_J_INT ? (double)v.u.i : (double)v.u.b;
}

static int64_t as_int(struct sl_jval v)
{
    return v.type == SL_J_BOOL ? v.u.b : v.u.i;
}

static int jinja_ops_fail_undefined(struct sl_jvm *vm, struct sl_jval v)
{
    SL_ASSERT(v.u.s != NULL); /* its name, or a hint */
    int n = (int)SL_MIN(v.u.s->n_bytes, 80);
    if (v.kind == SL_JU_NAME)
        return sl_jinja_fail(vm, "'%.*s' is undefined", n, v.u.s->data);
    if (v.kind == SL_JU_HINT)
        return sl_jinja_fail(vm, "%.*s", (int)SL_MIN(v.u.s->n_bytes, 150), v.u.s->data);
    struct sl_jval owner = {.type = (uint8_t)v.extra};
    return sl_jinja_fail(vm, "'%s object' has no attribute '%.*s'", sl_jinja_type_name(owner), n,
                         v.u.s->data);
}

static int fail_types(struct sl_jvm *vm, const char *op, struct sl_jval a, struct sl_jval b)
{
    if (a.type == SL_J_UNDEFINED)
        return jinja_ops_fail_undefined(vm, a);
    if (b.type == SL_J_UNDEFINED)
        return jinja_ops_fail_undefined(vm, b);
    return sl_jinja_fail(vm, "unsupported operand type(s) for %s: '%s' and '%s'", op,
                         sl_jinja_type_name(a), sl_jinja_type_name(b));
}

int sl_jinja_unary(struct sl_jvm *vm, bool negate, struct sl_jval a, struct sl_jval *out)
{
    if (a.type == SL_J_UNDEFINED)
        return jinja_ops_fail_undefined(vm, a);
    if (!sl_jinja_is_number(a))
        return sl_jinja_fail(vm, "bad operand type for unary %c: '%s'", negate ? '-' : '+',
                             sl_jinja_type_name(a));
    if (a.type == SL_J_FLOAT) {
        *out = sl_jinja_float(negate ? -a.u.f : a.u.f);
        return 0;
    }
    int64_t i = as_int(a);
    if (negate && i == INT64_MIN)
        return sl_jinja_fail(vm, "integer overflow");
    *out = sl_jinja_int(negate ? -i : i);
    return 0;
}

/* ---------------------------------------------------------------- numbers */

static int int_pow(struct sl_jvm *vm, int64_t base, int64_t exp, int64_t *out)
{
    int64_t r = 1;
    while (exp > 0) {
        if ((exp & 1) && __builtin_mul_overflow(r, base, &r))
            return sl_jinja_fail(vm, "integer overflow");
        exp >>= 1;
        if (exp > 0 && __builtin_mul_overflow(base, base, &base))
            return sl_jinja_fail(vm, "integer overflow");
    }
    *out = r;
    return 0;
}

static int int_op(struct sl_jvm *vm, enum sl_jop op, int64_t a, int64_t b, struct sl_jval *out)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case SL_JOP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case SL_JOP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case SL_JOP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case SL_JOP_DIV:
        if (b == 0)
            return sl_jinja_fail(vm, "division by zero");
        *out = sl_jinja_float((double)((long double)a / (long double)b));
        return 0;
    case SL_JOP_FLOORDIV:
    case SL_JOP_MOD:
        if (b == 0)
            return sl_jinja_fail(vm, "integer division or modulo by zero");
        if (b == -1) {
            over = op == SL_JOP_FLOORDIV && a == INT64_MIN;
            r = op == SL_JOP_MOD || over ? 0 : -a;
            break;
        }
        r = a % b;
        if (r != 0 && (r < 0) != (b < 0))
            r += b;
        if (op == SL_JOP_FLOORDIV)
            r = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    default:
        if (b < 0) {
            if (a == 0)
                return sl_jinja_fail(vm, "0.0 cannot be raised to a negative power");
            *out = sl_jinja_float(pow((double)a, (double)b));
            return 0;
        }
        if (int_pow(vm, a, b, &r) != 0)
            return vm->code;
        break;
    }
    if (over)
        return sl_jinja_fail(vm, "integer overflow");
    *out = sl_jinja_int(r);
    return 0;
}

static double float_mod(double a, double b)
{
    double r = fmod(a, b);
    if (r != 0.0 && (r < 0) != (b < 0))
        return r + b;
    return r == 0.0 ? copysign(0.0, b) : r;
}

static double float_floordiv(double a, double b)
{
    double rest = fmod(a, b), div = (a - rest) / b;
    if (rest != 0.0 && (rest < 0) != (b < 0))
        div -= 1.0;
    if (div == 0.0)
        return copysign(0.0, a / b);
    double down = floor(div);
    return div - down > 0.5 ? down + 1.0 : down;
}

static int float_op(struct sl_jvm *vm, enum sl_jop op, double a, double b, struct sl_jval *out)
{
    double r;
    if (b == 0.0 && (op == SL_JOP_DIV || op == SL_JOP_FLOORDIV || op == SL_JOP_MOD))
        return sl_jinja_fail(vm, "float division by zero");
    switch (op) {
    case SL_JOP_ADD:
        r = a + b;
        break;
    case SL_JOP_SUB:
        r = a - b;
        break;
    case SL_JOP_MUL:
        r = a * b;
        break;
    case SL_JOP_DIV:
        r = a / b;
        break;
    case SL_JOP_FLOORDIV:
        r = float_floordiv(a, b);
        break;
    case SL_JOP_MOD:
        r = float_mod(a, b);
        break;
    default:
        if (a == 0.0 && b < 0)
            return sl_jinja_fail(vm, "0.0 cannot be raised to a negative power");
        r = pow(a, b);
        if (isnan(r) && !isnan(a) && !isnan(b))
            return sl_jinja_fail(vm, "complex numbers are not supported");
        if (isinf(r) && isfinite(a) && isfinite(b))
            return sl_jinja_fail(vm, "numerical result out of range");
        break;
    }
    *out = sl_jinja_float(r);
    return 0;
}

/* ---------------------------------------------------------------- sequences */

static int jinja_ops_repeat(struct sl_jvm *vm, struct sl_jval seq, int64_t times,
                            struct sl_jval *out)
{
    size_t n = seq.type == SL_J_STR ? seq.u.s->n_bytes : seq.u.list->n, total;
    if (times <= 0 || n == 0) {
        times = 0;
        n = 0;
    }
    if (!sl_mul_size(n, (size_t)times, &total) || total > vm->arena.max_bytes)
        return sl_jinja_fail(vm, "the template uses too much memory");
    if (seq.type == SL_J_STR) {
        char *s = sl_jinja_alloc(vm, total);
        if (s == NULL || sl_jinja_burn(vm, total / 16) != 0)
            return vm->code;
        for (size_t at = 0; at < total; at += n)
            memcpy(s + at, seq.u.s->data, n);
        return sl_jinja_borrow(vm, s, total, out);
    }
    struct sl_jlist *l = sl_jinja_list(vm, total);
    if (l == NULL)
        return vm->code;
    for (size_t i = 0; i < total; i++)
        if (sl_jinja_push(vm, l, seq.u.list->items[i % n]) != 0)
            return vm->code;
    *out = seq.type == SL_J_LIST ? sl_jinja_list_val(l) : sl_jinja_tuple_val(l);
    return 0;
}

static bool is_seq(struct sl_jval v)
{
    return v.type == SL_J_STR || v.type == SL_J_LIST || v.type == SL_J_TUPLE;
}

static int jinja_ops_add(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, struct sl_jval *out)
{
    if (vm->javascript && (a.type == SL_J_STR || b.type == SL_J_STR) && a.type != SL_J_UNDEFINED &&
        b.type != SL_J_UNDEFINED)
        if (sl_jinja_to_str(vm, a, &a) != 0 || sl_jinja_to_str(vm, b, &b) != 0)
            return vm->code;
    if (a.type == SL_J_STR && b.type == SL_J_STR) {
        if (a.markup != b.markup &&
            sl_jinja_escape(vm, a.markup ? b : a, false, a.markup ? &b : &a) != 0)
            return vm->code;
        return sl_jinja_concat(vm, a, b, out);
    }
    if (a.type != b.type || (a.type != SL_J_LIST && a.type != SL_J_TUPLE))
        return fail_types(vm, "+", a, b);
    struct sl_jlist *l;
    if (sl_jinja_extend(vm, a.u.list, b.u.list, &l) != 0)
        return vm->code;
    *out = a.type == SL_J_LIST ? sl_jinja_list_val(l) : sl_jinja_tuple_val(l);
    return 0;
}

int sl_jinja_binary(struct sl_jvm *vm, enum sl_jop op, struct sl_jval a, struct sl_jval b,
                    struct sl_jval *out)
{
    static const char *const names[] = {
        [SL_JOP_ADD] = "+",       [SL_JOP_SUB] = "-", [SL_JOP_MUL] = "*", [SL_JOP_DIV] = "/",
        [SL_JOP_FLOORDIV] = "//", [SL_JOP_MOD] = "%", [SL_JOP_POW] = "**"};
    if (sl_jinja_is_number(a) && sl_jinja_is_number(b)) {
        if (a.type == SL_J_FLOAT || b.type == SL_J_FLOAT)
            return float_op(vm, op, sl_jinja_as_double(a), sl_jinja_as_double(b), out);
        return int_op(vm, op, as_int(a), as_int(b), out);
    }
    if (op == SL_JOP_ADD)
        return jinja_ops_add(vm, a, b, out);
    if (op == SL_JOP_MOD && a.type == SL_J_STR)
        return sl_jinja_percent(vm, a.u.s, b, out);
    if (op == SL_JOP_MUL && is_seq(a) && (b.type == SL_J_INT || b.type == SL_J_BOOL))
        return jinja_ops_repeat(vm, a, as_int(b), out);
    if (op == SL_JOP_MUL && is_seq(b) && (a.type == SL_J_INT || a.type == SL_J_BOOL))
        return jinja_ops_repeat(vm, b, as_int(a), out);
    return fail_types(vm, names[op], a, b);
}
