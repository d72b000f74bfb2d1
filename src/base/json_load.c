/* SPDX-License-Identifier: MIT */
#include "base/json_load.h"

#include "base/sys.h"

#include <string.h>

static _Thread_local bool refused;

static void *json_memory(size_t n_bytes)
{
    void *p = sl_malloc(n_bytes);
    refused |= p == NULL;
    return p;
}

/* Before main, because the library's functions must not change once it holds memory. */
__attribute__((constructor)) static void use_own_memory(void)
{
    json_set_alloc_funcs(json_memory, sl_free);
}

json_t *sl_json_load(const char *text, size_t n, size_t flags, json_error_t *why)
{
    refused = false;
    json_t *root = json_loadb(text, n, flags, why);
    if (!refused)
        return root;
    json_decref(root);
    memset(why, 0, sizeof *why);
    why->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)json_error_out_of_memory;
    return NULL;
}

bool sl_json_no_memory(const json_error_t *why)
{
    return json_error_code(why) == json_error_out_of_memory;
}
