/* SPDX-License-Identifier: MIT
 *
 * The door to the Jinja interpreter: compiles, turns JSON into values, runs.
 */
#include "text/jinja/template.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/jinja/jinja.h"

#include <string.h>

#define MAX_JSON_NEST  200
#define GIVEN_PER_TANK (32u << 10) /* beyond it nobody waits for the thread that renders */
#define MAX_TANKS      24u
#define FUEL_PER_PAIR                                                          \
    32u /* steps of a loop body that looks at one message on behalf of another \
         */

int sl_template_compile(const char *source, size_t n, struct sl_template **out,
                        struct sl_error *err)
{
    *out = NULL;
    if (n > SL_MAX_TEMPLATE)
        return sl_fail(err, SL_ELIMIT, "the chat template has %zu bytes, the limit is %u", n,
                       SL_MAX_TEMPLATE);
    for (size_t i = 0, len; i < n; i += len)
        if ((len = sl_utf8_valid_len(source + i, n - i)) == 0)
            return sl_fail(err, SL_EFORMAT, "the chat template is not valid UTF-8 at byte %zu", i);
    struct sl_template *t = sl_calloc(1, sizeof *t);
    if (t == NULL)
        return sl_fail(err, SL_ENOMEM, "no memory to compile a chat template");
    int code = sl_jinja_parse(t, source, n, err);
    t->n_source = n;
    if (code == 0 && (t->source = sl_arena_strndup(&t->arena, source, n)) == NULL)
        code = sl_fail(err, SL_ENOMEM, "no memory for a chat template");
    if (code != 0) {
        sl_template_destroy(t);
        return code;
    }
    SL_ASSERT(t->n_names > t->sym_loop && t->names[t->sym_loop]->n_bytes == 4);
    *out = t;
    return 0;
}

void sl_template_destroy(struct sl_template *t)
{
    if (t == NULL)
        return;
    sl_arena_deinit(&t->arena);
    sl_free(t);
}

const char *sl_template_source(const struct sl_template *t, size_t *n)
{
    *n = t->n_source;
    return t->source;
}

static int from_json(struct sl_jvm *vm, const json_t *j, unsigned depth, struct sl_jval *out);

static int from_object(struct sl_jvm *vm, const json_t *j, unsigned depth, struct sl_jval *out)
{
    struct sl_jdict *d = sl_jinja_dict(vm, json_object_size(j));
    if (d == NULL)
        return vm->code;
    json_t *obj = (json_t *)(uintptr_t)j; /* iterating does not change it */
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        const char *name = json_object_iter_key(it);
        struct sl_jval key, value;
        if (sl_jinja_borrow(vm, name, json_object_iter_key_len(it), &key) != 0 ||
            from_json(vm, json_object_iter_value(it), depth + 1, &value) != 0 ||
            sl_jinja_dict_set(vm, d, key, value) != 0)
            return vm->code;
    }
    SL_ASSERT(d->n == json_object_size(j));
    *out = (struct sl_jval){.type = SL_J_DICT, .u.dict = d};
    return 0;
}

static int from_array(struct sl_jvm *vm, const json_t *j, unsigned depth, struct sl_jval *out)
{
    struct sl_jlist *l = sl_jinja_list(vm, json_array_size(j));
    if (l == NULL)
        return vm->code;
    if (json_is_object(json_array_get(j, 0)))
        vm->n_rows = SL_MAX(vm->n_rows, json_array_size(j));
    for (size_t i = 0; i < json_array_size(j); i++) {
        struct sl_jval v;
        if (from_json(vm, json_array_get(j, i), depth + 1, &v) != 0 || sl_jinja_push(vm, l, v) != 0)
            return vm->code;
    }
    SL_ASSERT(l->n == json_array_size(j));
    *out = sl_jinja_list_val(l);
    return 0;
}

/* Strings are borrowed: the JSON outlives the rendering. */
static int from_json(struct sl_jvm *vm, const json_t *j, unsigned depth, struct sl_jval *out)
{
    SL_ASSERT(j != NULL && vm->code == 0);
    if (depth > MAX_JSON_NEST)
        return sl_jinja_fail(vm, "the variables are nested too deeply");
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return from_object(vm, j, depth, out);
    case JSON_ARRAY:
        return from_array(vm, j, depth, out);
    case JSON_STRING:
        vm->n_given += json_string_length(j);
        return sl_jinja_borrow(vm, json_string_value(j), json_string_length(j), out);
    case JSON_INTEGER:
        *out = sl_jinja_int(json_integer_value(j));
        return 0;
    case JSON_REAL:
        *out = sl_jinja_float(json_real_value(j));
        return 0;
    case JSON_NULL:
        *out = sl_jinja_none();
        return 0;
    default:
        *out = sl_jinja_bool(json_is_true(j));
        return 0;
    }
}

/* Only the variables that the template mentions. */
static int bind_globals(struct sl_jvm *vm, const json_t *vars)
{
    const struct sl_template *t = vm->t;
    SL_ASSERT(vm->globals == NULL && vm->code == 0);
    vm->globals = sl_jinja_array(vm, t->n_names + 1, sizeof *vm->globals);
    if (vm->globals == NULL)
        return vm->code;
    for (size_t i = 0; i < t->n_names; i++) {
        const struct sl_jstr *name = t->names[i];
        const json_t *j = json_object_getn(vars, name->data, name->n_bytes);
        unsigned fn = sl_jinja_global_find(name->data, name->n_bytes);
        if (j != NULL) {
            if (from_json(vm, j, 0, &vm->globals[i]) != 0)
                return vm->code;
        } else if (fn != 0) {
            vm->globals[i] = (struct sl_jval){.type = SL_J_FUNC, .kind = (uint16_t)fn};
        }
    }
    return 0;
}

/* What a long conversation adds to the steps: for its text, and for its messages, as some templates
 * look through all messages for each of them (DeepSeek-V3.2 at every tool result). */
static uint64_t fuel_of_input(const struct sl_jvm *vm)
{
    const uint64_t most = (uint64_t)MAX_TANKS * SL_TEMPLATE_FUEL;
    uint64_t rows = SL_MIN(vm->n_rows, (size_t)1 << 16); /* more are at the limit anyway */
    uint64_t for_text = vm->n_given / GIVEN_PER_TANK * SL_TEMPLATE_FUEL;
    return SL_MIN(for_text + rows * rows * FUEL_PER_PAIR, most);
}

int sl_template_render(const struct sl_template *t, const json_t *vars, int64_t now_unix_s,
                       const struct sl_template_limits *limits, struct sl_buf *out,
                       struct sl_error *err)
{
    static const struct sl_template_limits none;
    size_t start = out->n_bytes, max_output;
    if (limits == NULL)
        limits = &none;
    if (!sl_buf_ok(out))
        return sl_fail(err, SL_ENOMEM, "no memory for the output of a chat template");
    max_output = limits->max_output != 0 ? limits->max_output : SL_TEMPLATE_OUTPUT;
    struct sl_jvm vm = {
        .t = t,
        .out = out,
        .fuel = limits->fuel != 0 ? limits->fuel : SL_TEMPLATE_FUEL,
        .javascript = limits->dialect == SL_TEMPLATE_JAVASCRIPT,
        .now_s = now_unix_s,
        .line = 1,
        .err = err,
        .empty = {.data = ""},
    };
    vm.arena.max_bytes =
        limits->max_memory != 0 ? SL_MAX(limits->max_memory, 1024) : SL_JINJA_MEMORY;
    if (!sl_add_size(start, max_output, &vm.out_limit))
        vm.out_limit = SIZE_MAX;
    if (out->max_bytes != 0)
        vm.out_limit = SL_MAX(SL_MIN(vm.out_limit, out->max_bytes), start);
    SL_ASSERT(vm.out_limit >= start);
    int code = bind_globals(&vm, vars);
    if (limits->fuel == 0)
        vm.fuel += fuel_of_input(&vm);
    if (code == 0)
        code = sl_jinja_exec(&vm, t->body, &vm.root);
    SL_ASSERT(code != 0 || (out->n_bytes >= start && out->n_bytes <= vm.out_limit));
    SL_ASSERT(code != 0 || (vm.depth == 0 && vm.call_depth == 0));
    sl_arena_deinit(&vm.arena);
    if (code != 0) {
        out->n_bytes = SL_MIN(start, out->n_bytes);
        out->failed = false;
    }
    if (out->data != NULL)
        out->data[out->n_bytes] = '\0';
    return code;
}
