/* SPDX-License-Identifier: MIT
 * api_ollama_embed.c - POST /api/embed, and its older form /api/embeddings, as Ollama has them.
 *
 * Texts beyond the model's length lose their ends unless truncate is false. Vectors are those of
 * /v1/embeddings: as the model's own files say, which for most means of length 1.
 */
#include "base/check.h"
#include "base/limits.h"
#include "server/api/ollama_in.h"
#include "server/api/ollama_out.h"
#include "server/api/pool_in.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

static void put_one(struct sl_buf *b, struct sl_call *call, int32_t i)
{
    int32_t n;
    const float *v = sl_request_pooled(call->prompts[i].req, &n);
    sl_pool_put_vector(b, call, v, n);
}

static void put_embed(struct sl_buf *b, struct sl_call *call)
{
    SL_PUT(b, "{\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    SL_PUT(b, ",\"embeddings\":[");
    for (int32_t i = 0; i < call->n_prompts; i++) {
        if (i > 0)
            sl_buf_putc(b, ',');
        put_one(b, call, i);
    }
    sl_buf_putc(b, ']');
    sl_ollama_put_timing(b, call);
    sl_buf_putc(b, '}');
}

static void put_embedding(struct sl_buf *b, struct sl_call *call)
{
    SL_PUT(b, "{\"embedding\":");
    put_one(b, call, 0);
    sl_buf_putc(b, '}');
}

/* ---- requests */

/* The members that mean something, under the names that pool_in.c reads. */
static int ollama_embed_read_members(struct sl_task *t, bool *unload)
{
    struct sl_refusal *r = &t->refusal;
    const json_t *truncate = json_object_get(t->root, "truncate");
    const json_t *dims = json_object_get(t->root, "dimensions");
    bool cut = true;
    int64_t m = 0;
    int rc = sl_ollama_keep_alive(t->root, unload, r);
    if (rc == 0)
        rc = sl_ollama_drop_options(t->root, r);
    if (rc == 0 && truncate != NULL && !json_is_null(truncate))
        rc = sl_json_bool(truncate, "truncate", &cut, r);
    if (rc == 0 && dims != NULL && !json_is_null(dims))
        rc = sl_json_int(dims, "dimensions", 1, sl_engine_info(t->served->eng)->n_pooled, &m, r);
    if (rc != 0)
        return rc;
    t->params.pool.dimensions = (int32_t)m;
    if (cut)
        t->params.truncate_prompt_tokens = -1;
    return 0;
}

static int ollama_embed_read_texts(struct sl_task *t, const char *member)
{
    const json_t *v = json_object_get(t->root, member);
    if (v == NULL || json_is_null(v))
        return sl_refuse(&t->refusal, SL_EINVAL, member, "%s is missing", member);
    int rc = sl_pool_reserve(t, json_is_array(v) ? json_array_size(v) : 1, member);
    for (int32_t i = 0; rc == 0 && i < t->n_prompts; i++)
        rc = sl_pool_encode(t, json_is_array(v) ? json_array_get(v, (size_t)i) : v, NULL, member,
                            &t->prompts[i]);
    return rc;
}

/* Without a text it is about the model alone. */
static bool is_idle(const struct sl_task *t, const char *member)
{
    const json_t *v = json_object_get(t->root, member);
    return (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0);
}

static int ollama_embed_prepare(struct sl_task *t, const char *member, const char *empty)
{
    static const char *const known[] = {"input", "prompt", "dimensions", "truncate", "name", NULL};
    bool unload = false;
    int rc = sl_ollama_parse(t);
    if (rc == 0)
        rc = sl_pool_check(t, true);
    if (rc == 0)
        rc = ollama_embed_read_members(t, &unload);
    if (rc == 0)
        rc = sl_pool_read(t, known);
    if (rc != 0)
        return rc;
    bool idle = is_idle(t, member);
    rc = idle && unload ? sl_ollama_unload(t) : sl_ollama_wake(t);
    if (rc != 0 || t->later)
        return rc;
    if (!idle)
        return ollama_embed_read_texts(t, member);
    sl_buf_puts(&t->out, empty);
    return 0;
}

static void prepare_embed(struct sl_task *t)
{
    t->rc = ollama_embed_prepare(t, "input", "{\"embeddings\":[]}");
}

static void ollama_embed_prepare_embeddings(struct sl_task *t)
{
    t->rc = ollama_embed_prepare(t, "prompt", "{\"embedding\":[]}");
}

static void ollama_embed_finish(struct sl_conn *c, struct sl_task *t, const struct sl_call_api *api)
{
    if (t->out.n_bytes > 0 || !sl_buf_ok(&t->out))
        sl_reply_json(c, 200, &t->out);
    else
        sl_task_call(c, t, api);
}

static void finish_embed(struct sl_conn *c, struct sl_task *t)
{
    static const struct sl_call_api api = {
        .pooling = true, .put_whole = put_embed, .id_prefix = "ollama-embd-"};
    ollama_embed_finish(c, t, &api);
}

static void ollama_embed_finish_embeddings(struct sl_conn *c, struct sl_task *t)
{
    static const struct sl_call_api api = {
        .pooling = true, .put_whole = put_embedding, .id_prefix = "ollama-embd-"};
    ollama_embed_finish(c, t, &api);
}

void sl_api_ollama_embed(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_embed, finish_embed};
    sl_task_start(c, &kind);
}

void sl_api_ollama_embeddings(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {ollama_embed_prepare_embeddings,
                                             ollama_embed_finish_embeddings};
    sl_task_start(c, &kind);
}
