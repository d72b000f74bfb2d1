/* SPDX-License-Identifier: MIT */
#include "cmd/conversation.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/json_load.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/common.h"

#include <string.h>

static const char *const roles[] = {"system", "user", "assistant"};

void sl_conversation_cut(struct sl_conversation *c, size_t n)
{
    SL_ASSERT(n <= c->n);
    while (c->n > n)
        sl_free(c->turns[--c->n].text);
}

void sl_conversation_deinit(struct sl_conversation *c)
{
    sl_conversation_cut(c, 0);
    sl_free(c->turns);
    *c = (struct sl_conversation){0};
}

static const char *known_role(const char *role)
{
    for (size_t i = 0; i < SL_COUNT(roles); i++) {
        if (strcmp(role, roles[i]) == 0)
            return roles[i];
    }
    return NULL;
}

int sl_conversation_add(struct sl_conversation *c, const char *role, const char *text, size_t n,
                        struct sl_error *err)
{
    if (c->n == c->cap) {
        size_t cap = 2 * c->cap + 16;
        struct sl_chat_turn *more = sl_realloc(c->turns, cap * sizeof *more);
        if (more == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for the conversation");
        c->turns = more;
        c->cap = cap;
    }
    char *copy = sl_strndup(text != NULL ? text : "", n);
    if (copy == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the conversation");
    c->turns[c->n] = (struct sl_chat_turn){.role = known_role(role), .text = copy, .n = n};
    SL_ASSERT(c->turns[c->n].role != NULL);
    c->n++;
    return 0;
}

const char *sl_conversation_system(const struct sl_conversation *c)
{
    return c->n > 0 && c->turns[0].role == roles[0] ? c->turns[0].text : NULL;
}

int sl_conversation_set_system(struct sl_conversation *c, const char *text, struct sl_error *err)
{
    bool had = sl_conversation_system(c) != NULL;
    size_t n = strlen(text);
    if (n > 0) { /* made first: without memory all stays as it was */
        int rc = sl_conversation_add(c, "system", text, n, err);
        if (rc != 0)
            return rc;
        struct sl_chat_turn made = c->turns[c->n - 1];
        memmove(c->turns + 1, c->turns, (c->n - 1) * sizeof *c->turns);
        c->turns[0] = made;
    }
    if (had) {
        size_t at = n > 0;
        sl_free(c->turns[at].text);
        memmove(c->turns + at, c->turns + at + 1, (c->n - at - 1) * sizeof *c->turns);
        c->n--;
    }
    return 0;
}

void sl_conversation_clear(struct sl_conversation *c)
{
    sl_conversation_cut(c, sl_conversation_system(c) != NULL);
}

void sl_conversation_json(const struct sl_conversation *c, struct sl_buf *out)
{
    sl_buf_putc(out, '[');
    for (size_t i = 0; i < c->n; i++) {
        if (i > 0)
            sl_buf_puts(out, ",\n  ");
        sl_cli_message(out, c->turns[i].role, c->turns[i].text, c->turns[i].n);
    }
    sl_buf_putc(out, ']');
}

int sl_conversation_save(const struct sl_conversation *c, const char *model, const char *path,
                         struct sl_error *err)
{
    struct sl_buf b = {0};
    sl_buf_puts(&b, "{\"model\": ");
    sl_buf_json_string(&b, model, strlen(model));
    sl_buf_puts(&b, ", \"messages\": ");
    sl_conversation_json(c, &b);
    sl_buf_puts(&b, "}\n");
    int rc = sl_buf_ok(&b) ? sl_replace_file(path, b.data, b.n_bytes, err)
                           : sl_fail(err, SL_ENOMEM, "out of memory for the conversation");
    sl_buf_deinit(&b);
    return rc;
}

static int add_json(struct sl_conversation *c, size_t i, const json_t *message, const char *path,
                    struct sl_error *err)
{
    const json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role == NULL || known_role(role) == NULL)
        return sl_fail(err, SL_EFORMAT,
                       "%.120s: messages[%zu].role is not system, user or assistant", path, i);
    if (!json_is_string(content))
        return sl_fail(err, SL_EFORMAT, "%.120s: messages[%zu].content is not a text", path, i);
    if (i > 0 && known_role(role) == roles[0])
        return sl_fail(err, SL_EFORMAT, "%.120s: messages[%zu]: system is not the first", path, i);
    return sl_conversation_add(c, role, json_string_value(content), json_string_length(content),
                               err);
}

int sl_conversation_load(struct sl_conversation *c, const char *path, struct sl_error *err)
{
    struct sl_conversation got = {0};
    char *text = NULL;
    size_t n = 0;
    json_error_t why;
    int rc = sl_read_file(path, SL_MAX_TEXT, &text, &n, err);
    if (rc != 0)
        return rc;
    json_t *root = sl_json_load(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    const json_t *list = json_is_array(root) ? root : json_object_get(root, "messages");
    if (root == NULL)
        rc = sl_fail(err, SL_EFORMAT, "%.120s is not JSON: %.80s (line %d)", path, why.text,
                     why.line);
    else if (!json_is_array(list))
        rc = sl_fail(err, SL_EFORMAT, "%.120s has no list `messages`", path);
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++)
        rc = add_json(&got, i, json_array_get(list, i), path, err);
    json_decref(root);
    sl_free(text);
    if (rc != 0) {
        sl_conversation_deinit(&got);
        return rc;
    }
    sl_conversation_deinit(c);
    *c = got;
    return 0;
}
