/* SPDX-License-Identifier: MIT
 *
 * Input: template source, a NUL byte, the variables as JSON. Little fuel, so that every input is
 * quick; both dialects; the rendering must leave the output as it was when it fails.
 */
#include "text/template.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul != NULL ? (size_t)(nul - data) : size;
    json_t *vars = NULL;
    if (nul != NULL)
        vars = json_loadb((const char *)nul + 1, size - n - 1, 0, NULL);
    if (!json_is_object(vars)) {
        json_decref(vars);
        vars = json_object();
    }
    struct sl_template *t;
    struct sl_error err;
    if (sl_template_compile((const char *)data, n, &t, &err) == 0) {
        for (int dialect = SL_TEMPLATE_PYTHON; dialect <= SL_TEMPLATE_JAVASCRIPT; dialect++) {
            struct sl_template_limits limits = {.fuel = 20000,
                                                .max_output = 1 << 16,
                                                .max_memory = 1 << 20,
                                                .dialect = (enum sl_template_dialect)dialect};
            struct sl_buf out = {0};
            sl_buf_puts(&out, "before");
            int code = sl_template_render(t, vars, 1752148800, &limits, &out, &err);
            if (memcmp(out.data, "before", 6) != 0 || (code != 0 && out.n_bytes != 6))
                abort();
            sl_buf_deinit(&out);
        }
        sl_template_destroy(t);
    }
    json_decref(vars);
    return 0;
}
