/* SPDX-License-Identifier: MIT */
#include "server/api/pool_in.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/http/sse.h"

#include <string.h>

static bool pool_in_is_known(const char *const *known, const char *name)
{
    static const char *const all[] = {"model", "user", "priority", "truncate_prompt_tokens", NULL};
    for (size_t i = 0; all[i] != NULL; i++)
        if (strcmp(all[i], name) == 0)
            return true;
    for (size_t i = 0; known[i] != NULL; i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return false;
}

static int optional_int(const struct sl_task *t, const char *name, int64_t min, int64_t max,
                        int32_t *out, struct sl_refusal *r)
{
    const json_t *v = json_object_get(t->root, name);
    int64_t x = 0;
    if (v == NULL || json_is_null(v))
        return 0;
    int rc = sl_json_int(v, name, min, max, &x, r);
    if (rc == 0)
        *out = (int32_t)x;
    return rc;
}

int sl_pool_check(struct sl_task *t, bool vectors_only)
{
    const struct sl_model_info *info = sl_engine_info(t->served->eng);
    if (info->n_pooled == 0)
        return sl_refuse(&t->refusal, SL_EUNSUPPORTED, "model",
                         "this model generates text: it gives no embeddings (start the server with "
                         "--runner pooling)");
    if (vectors_only && info->task != SL_TASK_EMBED)
        return sl_refuse(&t->refusal, SL_EUNSUPPORTED, "model", "%s",
                         info->task == SL_TASK_SCORE
                             ? "this model gives scores, not embeddings: use /rerank or /score"
                             : "this model gives a vector for each token: use /pooling, /rerank or "
                               "/score");
    return 0;
}

int sl_pool_read(struct sl_task *t, const char *const *known)
{
    const int32_t longest = sl_engine_info(t->served->eng)->max_model_len;
    struct sl_refusal *r = &t->refusal;
    const char *key, *given = NULL;
    json_t *v;
    sl_sampling_default(&t->params.sampling);
    int rc = 0;
    SL_ASSERT(t->root != NULL); /* the model decides what can be asked of it */
    json_object_foreach(t->root, key, v)
    {
        SL_DCHECK(v != NULL);
        t->params.n_unknown += !pool_in_is_known(known, key);
    }
    v = json_object_get(t->root, "model");
    if (v != NULL && !json_is_null(v))
        rc = sl_json_cstr(v, "model", 4096, &given, r);
    if (rc == 0)
        rc = sl_served_check(t->server, t->served, given, &t->model, r);
    if (rc == 0)
        rc = optional_int(t, "priority", INT32_MIN, INT32_MAX, &t->params.priority, r);
    if (rc == 0)
        rc = optional_int(t, "truncate_prompt_tokens", -1, longest,
                          &t->params.truncate_prompt_tokens, r);
    return rc;
}

int sl_pool_reserve(struct sl_task *t, size_t n, const char *field)
{
    if (n == 0)
        return sl_refuse(&t->refusal, SL_EINVAL, field, "%s must not be empty", field);
    if (n > SL_MAX_INPUTS)
        return sl_refuse(&t->refusal, SL_ELIMIT, field, "%s has more than %d entries", field,
                         SL_MAX_INPUTS);
    SL_ASSERT(t->prompts == NULL);
    t->prompts = sl_calloc(n, sizeof *t->prompts);
    if (t->prompts == NULL)
        return sl_refuse(&t->refusal, SL_ENOMEM, field, "out of memory");
    t->n_prompts = (int32_t)n;
    return 0;
}

int sl_pool_encode(struct sl_task *t, const json_t *a, const json_t *b, const char *field,
                   struct sl_prompt *out)
{
    const struct sl_engine *eng = t->served->eng;
    struct sl_refusal *r = &t->refusal;
    int32_t most = t->params.truncate_prompt_tokens;
    if (!json_is_string(a) || (b != NULL && !json_is_string(b)))
        return sl_refuse(r, SL_EINVAL, field, "%s must be a string, not %s", field,
                         sl_json_type_name(json_is_string(a) ? b : a));
    if (most < 0)
        most = sl_engine_info(eng)->max_model_len;
    sl_refusal_param(r, field);
    return sl_tokenizer_encode_input(
        sl_engine_tokenizer(eng), json_string_value(a), json_string_length(a), json_string_value(b),
        json_string_length(b), most, &out->ids, &out->n_ids, &out->second_from, &r->err);
}

void sl_pool_put_head(struct sl_buf *b, const struct sl_call *call)
{
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"object\":\"list\",\"created\":");
    sl_put_i64(b, call->created_s);
    SL_PUT(b, ",\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    sl_buf_putc(b, ',');
}

void sl_pool_put_usage(struct sl_buf *b, const struct sl_call *call)
{
    struct sl_usage u;
    sl_call_usage(call, &u);
    SL_PUT(b, "\"usage\":{\"prompt_tokens\":");
    sl_put_i64(b, u.n_prompt);
    SL_PUT(b, ",\"total_tokens\":");
    sl_put_i64(b, u.n_prompt);
    SL_PUT(b, "}");
}
