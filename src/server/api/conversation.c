/* SPDX-License-Identifier: MIT */
#include "server/api/conversation.h"

#include "base/sys.h"
#include "server/api/prompt.h"

#include <string.h>

static int read_fields(struct sl_task *t, enum sl_endpoint endpoint, sl_to_chat_fn to_chat)
{
    int rc = sl_task_parse(t);
    if (rc == 0)
        rc = sl_task_generates(t);
    if (rc == 0 && to_chat != NULL)
        rc = to_chat(t);
    if (rc == 0 && !t->later)
        rc = sl_task_params(t, endpoint);
    return rc != 0 || t->later ? rc : sl_task_model(t);
}

/* echo: what the assistant said last goes before what it says now. */
static int keep_final(const struct sl_params *p, struct sl_prompt *prompt, struct sl_refusal *r)
{
    const json_t *last = json_array_get(p->messages, json_array_size(p->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content");
    if (role == NULL || strcmp(role, "assistant") != 0 || !json_is_string(content))
        return 0;
    prompt->n_final = json_string_length(content);
    prompt->final = sl_malloc(prompt->n_final + 1);
    if (prompt->final == NULL)
        return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    memcpy(prompt->final, json_string_value(content), prompt->n_final + 1);
    return 0;
}

/* Messages to text to ids. */
static int conversation_read_messages(struct sl_task *t)
{
    const struct sl_engine *eng = t->served->eng;
    struct sl_params *p = &t->params;
    char *text = NULL;
    size_t n_text = 0;
    int rc = sl_prompt_render(eng, p, &text, &n_text, &t->refusal);
    if (rc != 0)
        return rc;
    p->start = sl_formats_start(p->formats, text, n_text);
    rc = sl_params_thinking(p, eng, text, n_text, &t->refusal);
    if (rc != 0) {
        sl_free(text);
        return rc;
    }
    t->prompts = sl_calloc(1, sizeof *t->prompts);
    if (t->prompts == NULL) {
        rc = sl_refuse(&t->refusal, SL_ENOMEM, NULL, "out of memory");
    } else {
        t->n_prompts = 1;
        rc = sl_prompt_encode(eng, text, n_text, p->add_special_tokens, t->prompts, &t->refusal);
        sl_prompt_truncate(eng, p, t->prompts);
    }
    if (rc == 0 && p->echo)
        rc = keep_final(p, t->prompts, &t->refusal);
    if (rc == 0 && p->return_prompt_text) {
        t->prompts->text = text;
        t->prompts->n_text = n_text;
        return 0;
    }
    sl_free(text);
    return rc;
}

void sl_conversation_prepare(struct sl_task *t, enum sl_endpoint endpoint, sl_to_chat_fn to_chat)
{
    t->rc = read_fields(t, endpoint, to_chat);
    if (t->rc == 0 && !t->later)
        t->rc = sl_task_formats(t);
    if (t->rc == 0 && !t->later)
        t->rc = sl_task_compile(t);
    if (t->rc == 0 && !t->later)
        t->rc = conversation_read_messages(t);
}
