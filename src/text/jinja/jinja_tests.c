/* SPDX-License-Identifier: MIT
 *
 * What follows `is`.
 */
#include "base/check.h"
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

enum test {
    T_NONE_SUCH,
    T_ODD,
    T_EVEN,
    T_DIVISIBLEBY,
    T_DEFINED,
    T_UNDEFINED,
    T_FILTER,
    T_TEST,
    T_NONE,
    T_BOOLEAN,
    T_FALSE,
    T_TRUE,
    T_INTEGER,
    T_FLOAT,
    T_LOWER,
    T_UPPER,
    T_STRING,
    T_MAPPING,
    T_NUMBER,
    T_SEQUENCE,
    T_ITERABLE,
    T_CALLABLE,
    T_SAMEAS,
    T_ESCAPED,
    T_IN,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
};

static const struct {
    const char *name;
    uint8_t id, n_args;
} tests[] = {
    {"odd", T_ODD, 0},
    {"even", T_EVEN, 0},
    {"divisibleby", T_DIVISIBLEBY, 1},
    {"defined", T_DEFINED, 0},
    {"undefined", T_UNDEFINED, 0},
    {"filter", T_FILTER, 0},
    {"test", T_TEST, 0},
    {"none", T_NONE, 0},
    {"boolean", T_BOOLEAN, 0},
    {"false", T_FALSE, 0},
    {"true", T_TRUE, 0},
    {"integer", T_INTEGER, 0},
    {"float", T_FLOAT, 0},
    {"lower", T_LOWER, 0},
    {"upper", T_UPPER, 0},
    {"string", T_STRING, 0},
    {"mapping", T_MAPPING, 0},
    {"number", T_NUMBER, 0},
    {"sequence", T_SEQUENCE, 0},
    {"iterable", T_ITERABLE, 0},
    {"callable", T_CALLABLE, 0},
    {"sameas", T_SAMEAS, 1},
    {"escaped", T_ESCAPED, 0},
    {"in", T_IN, 1},
    {"==", T_EQ, 1},
    {"eq", T_EQ, 1},
    {"equalto", T_EQ, 1},
    {"!=", T_NE, 1},
    {"ne", T_NE, 1},
    {">", T_GT, 1},
    {"gt", T_GT, 1},
    {"greaterthan", T_GT, 1},
    {">=", T_GE, 1},
    {"ge", T_GE, 1},
    {"<", T_LT, 1},
    {"lt", T_LT, 1},
    {"lessthan", T_LT, 1},
    {"<=", T_LE, 1},
    {"le", T_LE, 1},
};

unsigned sl_jinja_test_find(const char *name, size_t n)
{
    for (unsigned i = 0; i < SL_COUNT(tests); i++)
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, name, n) == 0)
            return i + 1;
    return 0;
}

static int modulo(struct sl_jvm *vm, struct sl_jval v, struct sl_jval by, int64_t want, bool *out)
{
    struct sl_jval r, expect = sl_jinja_int(want);
    if (v.type == SL_J_STR)
        return sl_jinja_fail(vm, "not a number");
    if (sl_jinja_binary(vm, SL_JOP_MOD, v, by, &r) != 0)
        return vm->code;
    return sl_jinja_equal(vm, r, expect, out);
}

static int same_as(struct sl_jvm *vm, struct sl_jval a, struct sl_jval b, bool *out)
{
    if (a.type != b.type) {
        *out = false;
        return 0;
    }
    switch (a.type) {
    case SL_J_LIST:
    case SL_J_TUPLE:
    case SL_J_DICT:
        *out = a.u.list == b.u.list;
        return 0;
    default: /* small values are shared in Python too */
        return sl_jinja_equal(vm, a, b, out);
    }
}

static bool is_sequence(struct sl_jval v)
{
    return v.type == SL_J_UNDEFINED || v.type == SL_J_STR || v.type == SL_J_LIST ||
           v.type == SL_J_TUPLE || v.type == SL_J_DICT || v.type == SL_J_RANGE;
}

static bool is_callable(struct sl_jval v)
{
    return v.type == SL_J_MACRO || v.type == SL_J_FUNC || v.type == SL_J_METHOD ||
           v.type == SL_J_LOOP || v.type == SL_J_JOINER || v.type == SL_J_UNDEFINED;
}

static int cased(struct sl_jvm *vm, struct sl_jval v, bool upper, bool *out)
{
    if (sl_jinja_to_str(vm, v, &v) != 0 || sl_jinja_burn(vm, v.u.s->n_bytes / 2) != 0)
        return vm->code;
    *out = sl_jinja_is_cased(v.u.s, upper);
    return 0;
}

/* Tests of the type alone. */
static bool is_kind(unsigned id, struct sl_jval v)
{
    switch (id) {
    case T_DEFINED:
        return v.type != SL_J_UNDEFINED;
    case T_UNDEFINED:
        return v.type == SL_J_UNDEFINED;
    case T_NONE:
        return v.type == SL_J_NONE;
    case T_BOOLEAN:
        return v.type == SL_J_BOOL;
    case T_FALSE:
        return v.type == SL_J_BOOL && !v.u.b;
    case T_TRUE:
        return v.type == SL_J_BOOL && v.u.b;
    case T_INTEGER:
        return v.type == SL_J_INT;
    case T_FLOAT:
        return v.type == SL_J_FLOAT;
    case T_STRING:
        return v.type == SL_J_STR;
    case T_MAPPING:
        return v.type == SL_J_DICT;
    case T_NUMBER:
        return sl_jinja_is_number(v);
    case T_SEQUENCE:
        return is_sequence(v);
    case T_ITERABLE:
        return sl_jinja_iterable(v) || v.type == SL_J_LOOP;
    case T_CALLABLE:
        return is_callable(v);
    case T_ESCAPED:
        return v.type == SL_J_STR && v.markup;
    case T_FILTER:
        return v.type == SL_J_STR && sl_jinja_filter_find(v.u.s->data, v.u.s->n_bytes) != 0;
    default: /* T_TEST */
        return v.type == SL_J_STR && sl_jinja_test_find(v.u.s->data, v.u.s->n_bytes) != 0;
    }
}

int sl_jinja_test(struct sl_jvm *vm, unsigned number, struct sl_jval v, const struct sl_jargs *args,
                  bool *out)
{
    struct sl_jval arg = {0};
    uint64_t hash;
    bool hashable;
    if (number == 0)
        return sl_jinja_fail(vm, "no such test");
    unsigned id = tests[number - 1].id;
    const char *name = id == T_DIVISIBLEBY ? "num" : id == T_IN ? "seq" : "other";
    if (sl_jinja_burn(vm, 2) != 0 ||
        sl_jinja_params(vm, tests[number - 1].name, args, tests[number - 1].n_args ? name : "",
                        tests[number - 1].n_args, &arg) != 0)
        return vm->code;
    switch (id) {
    case T_ODD:
        return modulo(vm, v, sl_jinja_int(2), 1, out);
    case T_EVEN:
        return modulo(vm, v, sl_jinja_int(2), 0, out);
    case T_DIVISIBLEBY:
        return modulo(vm, v, arg, 0, out);
    case T_LOWER:
    case T_UPPER:
        return cased(vm, v, id == T_UPPER, out);
    case T_SAMEAS:
        return same_as(vm, v, arg, out);
    case T_IN:
        return sl_jinja_contains(vm, arg, v, out);
    case T_EQ:
        return sl_jinja_compare(vm, SL_JOP_EQ, v, arg, out);
    case T_NE:
        return sl_jinja_compare(vm, SL_JOP_NE, v, arg, out);
    case T_GT:
        return sl_jinja_compare(vm, SL_JOP_GT, v, arg, out);
    case T_GE:
        return sl_jinja_compare(vm, SL_JOP_GE, v, arg, out);
    case T_LT:
        return sl_jinja_compare(vm, SL_JOP_LT, v, arg, out);
    case T_LE:
        return sl_jinja_compare(vm, SL_JOP_LE, v, arg, out);
    case T_FILTER:
    case T_TEST:
        if (sl_jinja_hash(vm, v, &hash, &hashable) != 0)
            return vm->code;
        if (!hashable)
            return sl_jinja_fail(vm, "unhashable type: '%s'", sl_jinja_type_name(v));
        /* fall through */
    default:
        *out = is_kind(id, v);
        return 0;
    }
}
