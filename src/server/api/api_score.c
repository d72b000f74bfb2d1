/* SPDX-License-Identifier: MIT
 * api_score.c - POST /rerank (the form of Jina and Cohere) and POST /score, as vLLM has them.
 *
 * A reranker reads query and document together and gives a score. With a model of embeddings the
 * score is the cosine of two vectors: then the first texts are prompts, and behind them the second
 * ones. With a vector for each token (ColBERT) it is their late interaction, MaxSim. A decoder
 * reads one text, which its chat template makes of the roles query and document.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/pool_in.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- replies */

static double cosine(const float *a, const float *b, int32_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int32_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static float dot(const float *a, const float *b, int32_t n)
{
    float sums[8] = {0}, sum = 0;
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            sums[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        sums[0] += a[i] * b[i];
    for (int k = 0; k < 8; k++)
        sum += sums[k];
    return sum;
}

/* Over the tokens of the query, the sum of each one's best product with a token of the document. */
static double max_sim(const float *query, int32_t n_query, const float *document,
                      int32_t n_document, int32_t width)
{
    double sum = 0;
    for (int32_t i = 0; i < n_query; i += width) {
        float best = dot(query + i, document, width);
        for (int32_t k = width; k < n_document; k += width) {
            const float x = dot(query + i, document + k, width);
            best = SL_MAX(best, x);
        }
        sum += (double)best;
    }
    return sum;
}

static int32_t n_scores(const struct sl_call *call)
{
    return call->n_prompts - call->pool.n_first;
}

/* Of several labels the last one's, which is "relevant" or "entailment" where there are two. */
static double score_of(const struct sl_call *call, int32_t i)
{
    const struct sl_model_info *info = sl_engine_info(call->served->eng);
    const int32_t n_first = call->pool.n_first;
    int32_t n, n_query;
    const float *v = sl_request_pooled(call->prompts[n_first + i].req, &n), *query;
    if (n_first == 0)
        return (double)v[n - 1];
    query = sl_request_pooled(call->prompts[n_first > 1 ? i : 0].req, &n_query);
    return info->task == SL_TASK_TOKEN_EMBED ? max_sim(query, n_query, v, n, info->n_pooled)
                                             : cosine(query, v, n);
}

static void put_scores(struct sl_buf *b, struct sl_call *call)
{
    sl_pool_put_head(b, call);
    SL_PUT(b, "\"data\":[");
    for (int32_t i = 0; i < n_scores(call); i++) {
        sl_buf_puts(b, i > 0 ? ",{\"index\":" : "{\"index\":");
        sl_put_i64(b, i);
        SL_PUT(b, ",\"object\":\"score\",\"score\":");
        sl_buf_printf(b, "%.9g}", score_of(call, i));
    }
    SL_PUT(b, "],");
    sl_pool_put_usage(b, call);
    sl_buf_putc(b, '}');
}

struct ranked {
    double score;
    int32_t idx;
};

/* Best first, of equals the earlier. */
static int compare(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->idx - y->idx;
}

static void put_ranking(struct sl_buf *b, struct sl_call *call)
{
    const int32_t n = n_scores(call), top = call->pool.top_n > 0 ? call->pool.top_n : n;
    struct ranked *all = sl_calloc((size_t)n, sizeof *all);
    if (all == NULL) {
        b->failed = true;
        return;
    }
    for (int32_t i = 0; i < n; i++)
        all[i] = (struct ranked){score_of(call, i), i};
    qsort(all, (size_t)n, sizeof *all, compare);
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    SL_PUT(b, ",\"results\":[");
    for (int32_t i = 0; i < SL_MIN(n, top); i++) {
        const struct sl_prompt *p = &call->prompts[call->pool.n_first + all[i].idx];
        sl_buf_puts(b, i > 0 ? ",{\"index\":" : "{\"index\":");
        sl_put_i64(b, all[i].idx);
        if (call->pool.documents) {
            SL_PUT(b, ",\"document\":{\"text\":");
            sl_buf_json_string(b, p->text, p->n_text);
            sl_buf_putc(b, '}');
        }
        SL_PUT(b, ",\"relevance_score\":");
        sl_buf_printf(b, "%.9g}", all[i].score);
    }
    SL_PUT(b, "],");
    sl_pool_put_usage(b, call);
    sl_buf_putc(b, '}');
    sl_free(all);
}

/* ---- requests */

static int score_append_json(const char *data, size_t n, void *arg)
{
    sl_buf_put(arg, data, n);
    return sl_buf_ok(arg) ? 0 : -1;
}

/* What a decoder reads: by the chat template, which must show both, or one behind the other. */
static int score_join(struct sl_task *t, const json_t *a, const json_t *b, json_t **out)
{
    const struct sl_engine *eng = t->served->eng;
    struct sl_refusal *r = &t->refusal;
    const char *one = json_string_value(a), *two = json_string_value(b);
    struct sl_buf json = {0};
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    if (!sl_engine_has_chat_template(eng)) {
        sl_buf_put(&json, one, json_string_length(a)); /* by lengths: a text may have a NUL */
        sl_buf_put(&json, two, json_string_length(b));
        *out = sl_buf_ok(&json) ? json_stringn(json.data != NULL ? json.data : "", json.n_bytes)
                                : NULL;
        sl_buf_deinit(&json);
        return *out != NULL ? 0 : sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    }
    json_t *ctx = json_pack("{s:[{s:s,s:O},{s:s,s:O}],s:b}", "messages", "role", "query", "content",
                            a, "role", "document", "content", b, "add_generation_prompt", 1);
    if (ctx == NULL || json_dump_callback(ctx, score_append_json, &json, JSON_COMPACT) != 0)
        rc = sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    if (rc == 0)
        rc = sl_engine_render_chat(eng, json.data, json.n_bytes, &text, &n, &r->err);
    if (rc == 0 && (memmem(text, n, one, json_string_length(a)) == NULL ||
                    memmem(text, n, two, json_string_length(b)) == NULL))
        rc = sl_refuse(r, SL_EUNSUPPORTED, NULL,
                       "the chat template does not show messages of the roles query and document: "
                       "start the server with --chat-template");
    if (rc == 0 && (*out = json_stringn(text, n)) == NULL)
        rc = sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    json_decref(ctx);
    sl_buf_deinit(&json);
    sl_free(text);
    return rc;
}

static int encode_pair(struct sl_task *t, const json_t *a, const json_t *b, const char *field,
                       struct sl_prompt *out)
{
    json_t *joined = NULL;
    if (!json_is_string(a) || !json_is_string(b) || sl_engine_info(t->served->eng)->scores_pairs)
        return sl_pool_encode(t, a, b, field, out);
    int rc = score_join(t, a, b, &joined);
    if (rc == 0)
        rc = sl_pool_encode(t, joined, NULL, field, out);
    json_decref(joined);
    return rc;
}

/* a, b: a string or a list of them; one of a goes with every one of b. */
static int read_pairs(struct sl_task *t, const json_t *a, const char *name_a, const json_t *b,
                      const char *name_b)
{
    const bool vectors = sl_engine_info(t->served->eng)->task != SL_TASK_SCORE;
    const size_t n_a = json_is_array(a) ? json_array_size(a) : 1;
    const size_t n_b = json_is_array(b) ? json_array_size(b) : 1;
    struct sl_refusal *r = &t->refusal;
    if (a == NULL || b == NULL)
        return sl_refuse(r, SL_EINVAL, a == NULL ? name_a : name_b, "%s is missing",
                         a == NULL ? name_a : name_b);
    if (n_a != 1 && n_a != n_b)
        return sl_refuse(r, SL_EINVAL, name_a, "%s has %zu texts, must be 1 or as many as %s, %zu",
                         name_a, n_a, name_b, n_b);
    int rc = sl_pool_reserve(t, n_b == 0 ? 0 : n_b + (vectors ? n_a : 0), name_b);
    if (rc != 0)
        return rc;
    t->params.pool.n_first = vectors ? (int32_t)n_a : 0;
    struct sl_prompt *at = t->prompts;
    for (size_t i = 0; vectors && rc == 0 && i < n_a; i++)
        rc = sl_pool_encode(t, json_is_array(a) ? json_array_get(a, i) : a, NULL, name_a, at++);
    for (size_t i = 0; rc == 0 && i < n_b; i++, at++) {
        const json_t *one = !json_is_array(a) ? a : json_array_get(a, n_a > 1 ? i : 0);
        const json_t *two = json_is_array(b) ? json_array_get(b, i) : b;
        if (!json_is_string(one))
            return sl_refuse(r, SL_EINVAL, name_a, "%s must be a string, not %s", name_a,
                             sl_json_type_name(one));
        rc = vectors ? sl_pool_encode(t, two, NULL, name_b, at)
                     : encode_pair(t, one, two, name_b, at);
        if (rc == 0 && t->params.pool.documents) {
            at->n_text = json_string_length(two);
            at->text = sl_strndup(json_string_value(two), at->n_text);
            if (at->text == NULL)
                rc = sl_refuse(r, SL_ENOMEM, name_b, "out of memory");
        }
    }
    return rc;
}

static int check_task(struct sl_task *t)
{
    int rc = sl_task_parse(t);
    if (rc != 0 || sl_engine_info(t->served->eng)->n_pooled > 0)
        return rc;
    return sl_refuse(&t->refusal, SL_EUNSUPPORTED, "model",
                     "this model generates text: it gives no scores (start the server with "
                     "--runner pooling)");
}

static void prepare_score(struct sl_task *t)
{
    static const char *const known[] = {"text_1",  "text_2",    "data_1", "data_2",
                                        "queries", "documents", NULL};
    t->rc = check_task(t);
    if (t->rc == 0)
        t->rc = sl_pool_read(t, known);
    for (size_t i = 0; t->rc == 0 && i < 6; i += 2) {
        const json_t *a = json_object_get(t->root, known[i]);
        const json_t *b = json_object_get(t->root, known[i + 1]);
        if (a == NULL && b == NULL && i < 4)
            continue;
        /* without any, the first names are what is missed */
        size_t k = a == NULL && b == NULL ? 0 : i;
        t->rc = read_pairs(t, a, known[k], b, known[k + 1]);
        return;
    }
}

/* Documents are strings, or objects with a text. */
static int plain_documents(struct sl_task *t, const json_t *given, json_t **out)
{
    *out = json_array();
    if (*out == NULL)
        return sl_refuse(&t->refusal, SL_ENOMEM, "documents", "out of memory");
    if (!json_is_array(given))
        return sl_refuse(&t->refusal, SL_EINVAL, "documents", "documents must be a list, not %s",
                         given != NULL ? sl_json_type_name(given) : "missing");
    for (size_t i = 0; i < json_array_size(given); i++) {
        json_t *d = json_array_get(given, i);
        if (json_array_append(*out, json_is_object(d) ? json_object_get(d, "text") : d) != 0)
            return sl_refuse(&t->refusal, SL_EINVAL, "documents",
                             "documents[%zu] must be a string or an object with a text", i);
    }
    return 0;
}

static int read_rerank(struct sl_task *t)
{
    static const char *const known[] = {"query", "documents", "top_n", "return_documents", NULL};
    const json_t *top = NULL, *with = NULL;
    json_t *documents = NULL;
    int64_t n = 0;
    int rc = check_task(t);
    if (rc == 0)
        rc = sl_pool_read(t, known);
    if (rc != 0)
        return rc;
    top = json_object_get(t->root, "top_n");
    with = json_object_get(t->root, "return_documents");
    t->params.pool.documents = true; /* as vLLM */
    if (top != NULL && !json_is_null(top))
        rc = sl_json_int(top, "top_n", 0, INT32_MAX, &n, &t->refusal);
    t->params.pool.top_n = (int32_t)n;
    if (rc == 0 && with != NULL && !json_is_null(with))
        rc = sl_json_bool(with, "return_documents", &t->params.pool.documents, &t->refusal);
    const json_t *query = json_object_get(t->root, "query");
    if (rc == 0 && !json_is_string(query))
        rc = sl_refuse(&t->refusal, SL_EINVAL, "query", "query must be a string, not %s",
                       query != NULL ? sl_json_type_name(query) : "missing");
    if (rc == 0)
        rc = plain_documents(t, json_object_get(t->root, "documents"), &documents);
    if (rc == 0)
        rc = read_pairs(t, query, "query", documents, "documents");
    json_decref(documents);
    return rc;
}

static void prepare_rerank(struct sl_task *t)
{
    t->rc = read_rerank(t);
}

static void finish_score(struct sl_conn *c, struct sl_task *t)
{
    static const struct sl_call_api api = {
        .pooling = true, .put_whole = put_scores, .id_prefix = "score-"};
    sl_task_call(c, t, &api);
}

static void finish_rerank(struct sl_conn *c, struct sl_task *t)
{
    static const struct sl_call_api api = {
        .pooling = true, .put_whole = put_ranking, .id_prefix = "rerank-"};
    sl_task_call(c, t, &api);
}

void sl_api_score(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_score, finish_score};
    sl_task_start(c, &kind);
}

void sl_api_rerank(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_rerank, finish_rerank};
    sl_task_start(c, &kind);
}
