/* SPDX-License-Identifier: MIT
 * api_embeddings.c - POST /v1/embeddings, as OpenAI and vLLM have it, and POST /pooling, which
 * gives whatever the model pools, scores and a vector for each token too.
 *
 * A vector is written as numbers that read back to the same floats, or as base64 of little-endian
 * float32, which is a quarter of that and what OpenAI's clients ask for.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/pool_in.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

#include <math.h>
#include <string.h>

/* ---- replies */

static void put_base64(struct sl_buf *b, const float *v, int32_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n_bytes = (size_t)n * sizeof *v;
    const uint8_t *p = (const uint8_t *)v;
    for (size_t i = 0; i < n_bytes; i += 3) {
        const size_t left = SL_MIN(n_bytes - i, (size_t)3);
        uint32_t x = (uint32_t)p[i] << 16;
        x |= left > 1 ? (uint32_t)p[i + 1] << 8 : 0;
        x |= left > 2 ? p[i + 2] : 0;
        char four[4] = {digits[x >> 18], digits[x >> 12 & 63], left > 1 ? digits[x >> 6 & 63] : '=',
                        left > 2 ? digits[x & 63] : '='};
        sl_buf_put(b, four, sizeof four);
    }
}

/* Of a Matryoshka model the first numbers are a vector as well, once it has length 1 again. */
static void cut_vector(const float *v, int32_t n, int32_t m, bool unit, float *out)
{
    double length = 0;
    for (int32_t i = 0; i < m; i++)
        length += (double)v[i] * (double)v[i];
    length = m < n && unit && length > 0 ? sqrt(length) : 1;
    for (int32_t i = 0; i < m; i++)
        out[i] = (float)((double)v[i] / length);
}

static void put_numbers(struct sl_buf *b, const float *v, int32_t n)
{
    sl_buf_putc(b, '[');
    for (int32_t i = 0; i < n; i++)
        sl_buf_printf(b, i > 0 ? ",%.9g" : "%.9g", (double)v[i]);
    sl_buf_putc(b, ']');
}

/* With a vector for each token a list of those; in base64 they follow one another, as in vLLM. */
void sl_pool_put_vector(struct sl_buf *b, const struct sl_call *call, const float *v, int32_t n)
{
    const struct sl_model_info *info = sl_engine_info(call->served->eng);
    const bool per_token = info->task == SL_TASK_TOKEN_EMBED;
    const int32_t width = info->n_pooled, n_rows = n / width;
    const int32_t m = call->pool.dimensions > 0 ? SL_MIN(call->pool.dimensions, width) : width;
    float *out = sl_malloc((size_t)n_rows * (size_t)m * sizeof *out);
    SL_ASSERT(n == n_rows * width && (per_token || n_rows == 1));
    if (out == NULL) {
        b->failed = true;
        return;
    }
    for (int32_t i = 0; i < n_rows; i++)
        cut_vector(v + (int64_t)i * width, width, m, info->normalized, out + (int64_t)i * m);
    if (call->pool.base64) {
        sl_buf_putc(b, '"');
        put_base64(b, out, n_rows * m);
        sl_buf_putc(b, '"');
    } else if (per_token) {
        for (int32_t i = 0; i < n_rows; i++) {
            sl_buf_putc(b, i > 0 ? ',' : '[');
            put_numbers(b, out + (int64_t)i * m, m);
        }
        sl_buf_putc(b, ']');
    } else {
        put_numbers(b, out, m);
    }
    sl_free(out);
}

static void embeddings_put_list(struct sl_buf *b, struct sl_call *call, const char *object,
                                const char *member)
{
    sl_pool_put_head(b, call);
    SL_PUT(b, "\"data\":[");
    for (int32_t i = 0; i < call->n_prompts; i++) {
        int32_t n;
        const float *v = sl_request_pooled(call->prompts[i].req, &n);
        sl_buf_puts(b, i > 0 ? ",{\"object\":\"" : "{\"object\":\"");
        sl_buf_puts(b, object);
        SL_PUT(b, "\",\"index\":");
        sl_put_i64(b, i);
        SL_PUT(b, ",\"");
        sl_buf_puts(b, member);
        SL_PUT(b, "\":");
        sl_pool_put_vector(b, call, v, n);
        sl_buf_putc(b, '}');
    }
    SL_PUT(b, "],");
    sl_pool_put_usage(b, call);
    sl_buf_putc(b, '}');
}

static void put_embeddings(struct sl_buf *b, struct sl_call *call)
{
    embeddings_put_list(b, call, "embedding", "embedding");
}

static void put_pooled(struct sl_buf *b, struct sl_call *call)
{
    embeddings_put_list(b, call, "pooling", "data");
}

/* ---- requests */

static int embeddings_read_ids(struct sl_task *t, const json_t *list, struct sl_prompt *out)
{
    const int32_t n_vocab = sl_engine_info(t->served->eng)->n_vocab;
    size_t n = json_array_size(list);
    out->ids = sl_malloc((n + 1) * sizeof *out->ids);
    if (out->ids == NULL)
        return sl_refuse(&t->refusal, SL_ENOMEM, "input", "out of memory");
    if (n == 0)
        return sl_refuse(&t->refusal, SL_EINVAL, "input", "input must not be empty");
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        int rc = sl_json_int(json_array_get(list, i), "input", 0, n_vocab - 1, &id, &t->refusal);
        if (rc != 0)
            return rc;
        out->ids[i] = (int32_t)id;
    }
    out->n_ids = n;
    const int32_t most = t->params.truncate_prompt_tokens;
    if (most != 0)
        out->n_ids =
            SL_MIN(n, (size_t)(most > 0 ? most : sl_engine_info(t->served->eng)->max_model_len));
    return 0;
}

/* A string, a list of strings, token ids, or a list of those. */
static int embeddings_read_input(struct sl_task *t)
{
    const json_t *v = json_object_get(t->root, "input"), *first = json_array_get(v, 0);
    if (v == NULL || json_is_null(v))
        return sl_refuse(&t->refusal, SL_EINVAL, "input", "input is missing");
    if (!json_is_string(v) && !json_is_array(v))
        return sl_refuse(&t->refusal, SL_EINVAL, "input",
                         "input must be a string, a list of strings, or token ids, not %s",
                         sl_json_type_name(v));
    const bool several = json_is_array(v) && !json_is_number(first);
    int rc = sl_pool_reserve(t, several ? json_array_size(v) : 1, "input");
    for (int32_t i = 0; rc == 0 && i < t->n_prompts; i++) {
        const json_t *one = several ? json_array_get(v, (size_t)i) : v;
        rc = json_is_array(one) ? embeddings_read_ids(t, one, &t->prompts[i])
                                : sl_pool_encode(t, one, NULL, "input", &t->prompts[i]);
    }
    return rc;
}

static int embeddings_read_format(struct sl_task *t)
{
    const json_t *format = json_object_get(t->root, "encoding_format");
    const json_t *dims = json_object_get(t->root, "dimensions");
    const int32_t n = sl_engine_info(t->served->eng)->n_pooled;
    const char *name = "float";
    int64_t m = 0;
    int rc = 0;
    if (format != NULL && !json_is_null(format))
        rc = sl_json_cstr(format, "encoding_format", 16, &name, &t->refusal);
    if (rc != 0)
        return rc;
    t->params.pool.base64 = strcmp(name, "base64") == 0;
    if (!t->params.pool.base64 && strcmp(name, "float") != 0)
        return sl_refuse(&t->refusal, SL_EINVAL, "encoding_format",
                         "encoding_format must be float or base64");
    if (dims != NULL && !json_is_null(dims))
        rc = sl_json_int(dims, "dimensions", 1, n, &m, &t->refusal);
    t->params.pool.dimensions = (int32_t)m;
    return rc;
}

/* As vLLM calls what a model gives. A request may name it, but not choose another. */
static int embeddings_check_task(struct sl_task *t)
{
    static const char *const names[] = {[SL_TASK_EMBED] = "embed",
                                        [SL_TASK_SCORE] = "classify",
                                        [SL_TASK_TOKEN_EMBED] = "token_embed"};
    const json_t *v = json_object_get(t->root, "task");
    const char *have = names[sl_engine_info(t->served->eng)->task], *name = have;
    int rc = 0;
    if (v != NULL && !json_is_null(v))
        rc = sl_json_cstr(v, "task", 32, &name, &t->refusal);
    if (rc != 0 || strcmp(name, have) == 0)
        return rc;
    return sl_refuse(&t->refusal, SL_EUNSUPPORTED, "task",
                     "task must be %s: it is what the model "
                     "gives",
                     have);
}

static int prepare_any(struct sl_task *t, bool vectors_only)
{
    static const char *const known[] = {"input", "encoding_format", "dimensions", "task", NULL};
    int rc = sl_task_parse(t);
    if (rc != 0)
        return rc;
    rc = sl_pool_check(t, vectors_only);
    if (rc == 0)
        rc = sl_pool_read(t, known);
    if (rc == 0 && !vectors_only)
        rc = embeddings_check_task(t);
    if (rc == 0)
        rc = embeddings_read_format(t);
    return rc == 0 ? embeddings_read_input(t) : rc;
}

static void embeddings_prepare(struct sl_task *t)
{
    t->rc = prepare_any(t, true);
}

static void prepare_pooling(struct sl_task *t)
{
    t->rc = prepare_any(t, false);
}

static void embeddings_finish(struct sl_conn *c, struct sl_task *t)
{
    static const struct sl_call_api api = {
        .pooling = true, .put_whole = put_embeddings, .id_prefix = "embd-"};
    sl_task_call(c, t, &api);
}

static void finish_pooling(struct sl_conn *c, struct sl_task *t)
{
    static const struct sl_call_api api = {
        .pooling = true, .put_whole = put_pooled, .id_prefix = "pool-"};
    sl_task_call(c, t, &api);
}

void sl_api_embeddings(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {embeddings_prepare, embeddings_finish};
    sl_task_start(c, &kind);
}

void sl_api_pooling(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_pooling, finish_pooling};
    sl_task_start(c, &kind);
}
