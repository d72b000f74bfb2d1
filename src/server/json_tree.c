/* SPDX-License-Identifier: MIT */
#include "server/json_tree.h"

static int append(const char *data, size_t n, void *arg)
{
    sl_buf_put(arg, data, n);
    return sl_buf_ok(arg) ? 0 : -1;
}

void sl_json_put(struct sl_buf *b, const json_t *v)
{
    if (json_dump_callback(v, append, b, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        b->failed = true;
}

json_t *sl_json_as_text(const json_t *v)
{
    struct sl_buf b = {0};
    json_t *text = NULL;
    if (json_dump_callback(v, append, &b, JSON_ENCODE_ANY) == 0 && sl_buf_ok(&b))
        text = json_stringn_nocheck(b.data, b.n_bytes);
    sl_buf_deinit(&b);
    return text;
}
