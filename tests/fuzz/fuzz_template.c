/* SPDX-License-Identifier: MIT
 * Chat templates. Input: template source, and behind a NUL byte the variables as JSON, else a
 * conversation with everything a template may ask for. Little fuel, so that every input is quick;
 * both dialects; a rendering that fails leaves the output as it was, and each rendering gives the
 * same twice.
 */
#include "fuzz.h"
#include "text/jinja/template.h"

#include <string.h>

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"be \\\"kind\\\"\"},{\"role\":\"user\","
    "\"content\":\" h\\u00e9llo "
    "<b>\\n\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{"
    "\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.5,"
    "\"y\":[true,null]}}}]},{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"c1\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\"}},"
    "\"required\":[\"x\"]}}}],\"documents\":[{\"title\":\"t\",\"text\":\"w\"}],"
    "\"bos_token\":\"<s>\",\"eos_token\":\"</"
    "s>\",\"add_generation_prompt\":true,\"n\":-7,\"e\":\"\"}";

static json_t *variables(const uint8_t *nul, const uint8_t *end)
{
    static json_t *usual;
    if (usual == NULL)
        usual = json_loads(conversation, 0, NULL);
    SL_ASSERT(usual != NULL);
    if (nul == NULL)
        return json_incref(usual);
    json_t *vars = json_loadb((const char *)nul + 1, (size_t)(end - nul) - 1, 0, NULL);
    if (json_is_object(vars))
        return vars;
    json_decref(vars);
    return json_object();
}

static void render(const struct sl_template *t, const json_t *vars,
                   enum sl_template_dialect dialect)
{
    const struct sl_template_limits limits = {
        .fuel = 20000, .max_output = 1 << 16, .max_memory = 1 << 20, .dialect = dialect};
    struct sl_buf out[2] = {{0}, {0}};
    struct sl_error err[2] = {{0}, {0}};
    int code[2];
    for (int i = 0; i < 2; i++) {
        sl_buf_puts(&out[i], "before");
        code[i] = sl_template_render(t, vars, 1752148800, &limits, &out[i], &err[i]);
        SL_ASSERT(code[i] <= 0 && (code[i] == 0 || err[i].msg[0] != '\0'));
        SL_ASSERT(out[i].n_bytes >= 6 && memcmp(out[i].data, "before", 6) == 0);
        SL_ASSERT(code[i] == 0 ? out[i].n_bytes <= 6 + limits.max_output : out[i].n_bytes == 6);
    }
    SL_ASSERT(code[0] == code[1] && strcmp(err[0].msg, err[1].msg) == 0);
    SL_ASSERT(out[0].n_bytes == out[1].n_bytes &&
              memcmp(out[0].data, out[1].data, out[0].n_bytes) == 0);
    sl_buf_deinit(&out[0]);
    sl_buf_deinit(&out[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_template *t;
    struct sl_error err;
    if (size == 0)
        return 0;
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul != NULL ? (size_t)(nul - data) : size;
    if (sl_template_compile((const char *)data, n, &t, &err) != 0)
        return 0;
    json_t *vars = variables(nul, data + size);
    render(t, vars, SL_TEMPLATE_PYTHON);
    render(t, vars, SL_TEMPLATE_JAVASCRIPT);
    sl_template_destroy(t);
    json_decref(vars);
    return 0;
}
