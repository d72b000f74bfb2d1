/* SPDX-License-Identifier: MIT */
#include "server/http/json_tree.h"

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

static void json_tree_put_texts(struct sl_buf *b, const json_t *content)
{
    const json_t *part;
    size_t i;
    if (json_is_string(content))
        sl_buf_put(b, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (i > 0)
            sl_buf_putc(b, '\n');
        sl_buf_put(b, json_string_value(text), json_string_length(text));
    }
}

json_t *sl_json_join_texts(const json_t *a, const json_t *b)
{
    struct sl_buf text = {0};
    json_t *joined = NULL;
    json_tree_put_texts(&text, a);
    if (text.n_bytes > 0)
        sl_buf_puts(&text, "\n\n");
    json_tree_put_texts(&text, b);
    if (sl_buf_ok(&text))
        joined = json_stringn_nocheck(text.data != NULL ? text.data : "", text.n_bytes);
    sl_buf_deinit(&text);
    return joined;
}
