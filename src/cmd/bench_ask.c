/* SPDX-License-Identifier: MIT */
#include "cmd/bench_ask.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "cmd/ask.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_MS    60000
#define REPEATS   4  /* of a word in the text that tells whether it is one token */
#define FEW_WORDS 16 /* texts of fewer different words would say too little */
#define TRIAL     64 /* words of the text that checks the result */

/* Sends post, or GET if it is NULL. *out: the reply, to be released; only where the status is 200.
 */
static int ask(const struct sl_bench_server *s, const char *path, const struct sl_buf *post,
               json_t **out, struct sl_error *err)
{
    const struct sl_cli_ask what = {s->url, path, s->api_key, post, ASK_MS};
    const char *method = post != NULL ? "POST" : "GET";
    struct sl_buf body = {0};
    int status = 0;
    *out = NULL;
    int rc = sl_cli_ask(&what, &status, &body, err);
    if (rc == 0 && status == 200)
        *out = json_loadb(body.data != NULL ? body.data : "", body.n_bytes, 0, NULL);
    if (rc == 0 && *out == NULL)
        rc = sl_fail(err, status == 404 ? SL_ENOTFOUND : SL_EIO, "%s %s: status %d%s", method, path,
                     status, status == 200 ? ", but no JSON" : "");
    sl_buf_deinit(&body);
    return rc;
}

int sl_bench_ask_model(const struct sl_bench_server *s, char *name, size_t n_name,
                       struct sl_error *err)
{
    json_t *root;
    int rc = ask(s, "/v1/models", NULL, &root, err);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    if (id != NULL)
        snprintf(name, n_name, "%s", id);
    else if (rc == 0)
        rc = sl_fail(err, SL_EIO, "GET /v1/models of %.120s lists no model", s->url);
    json_decref(root);
    return rc;
}

/* ---- drafts */

/* One line of /metrics; those of several engines are added up. */
static void take_metric(const char *line, struct sl_bench_drafts *d)
{
    static const char prefix[] = "vllm:spec_decode_num_";
    const char *value = strrchr(line, ' '), *place = strstr(line, "position=\"");
    if (strncmp(line, prefix, sizeof prefix - 1) != 0 || value == NULL)
        return;
    const double x = strtod(value, NULL);
    const char *name = line + sizeof prefix - 1;
    if (strncmp(name, "drafts_total", 12) == 0)
        d->n_drafts += x;
    else if (strncmp(name, "draft_tokens_total", 18) == 0)
        d->n_tokens += x;
    else if (strncmp(name, "accepted_tokens_total", 21) == 0)
        d->n_accepted += x;
    else if (strncmp(name, "accepted_tokens_per_pos_total", 29) == 0 && place != NULL) {
        uint64_t i;
        place += strlen("position=\"");
        if (sl_parse_u64(place, strcspn(place, "\""), &i) && i < SL_BENCH_DRAFTED)
            d->n_at[i] += x;
    }
}

int sl_bench_ask_drafts(const struct sl_bench_server *s, struct sl_bench_drafts *out,
                        struct sl_error *err)
{
    const struct sl_cli_ask what = {s->url, "/metrics", s->api_key, NULL, ASK_MS};
    struct sl_buf body = {0};
    int status = 0;
    *out = (struct sl_bench_drafts){0};
    int rc = sl_cli_ask(&what, &status, &body, err);
    if (rc == 0 && status != 200)
        rc = sl_fail(err, SL_EIO, "GET /metrics: status %d", status);
    char *at = rc == 0 ? body.data : NULL;
    for (char *save = NULL, *line = at != NULL ? strtok_r(at, "\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &save))
        take_metric(line, out);
    sl_buf_deinit(&body);
    return rc;
}

/* ---- tokens */

/* How many tokens the server makes of a request whose prompt is this text; *ids: which, to be
 * released. llama.cpp takes the text as "content" and has no messages there. */
static int bench_ask_count(const struct sl_bench_server *s, const struct sl_buf *text, bool chat,
                           json_t **ids, struct sl_error *err)
{
    static const char *const forms[] = {"prompt", "content"};
    int rc = 0;
    *ids = NULL;
    for (size_t i = 0; i < (chat ? 1 : SL_COUNT(forms)); i++) {
        struct sl_buf body = {0};
        json_t *root;
        sl_buf_puts(&body, "{\"model\":");
        sl_buf_json_string(&body, s->model, strlen(s->model));
        if (chat)
            sl_buf_puts(&body, ",\"messages\":[{\"role\":\"user\",\"content\":");
        else
            sl_buf_printf(&body, ",\"%s\":", forms[i]);
        sl_buf_json_string(&body, text->data, text->n_bytes);
        sl_buf_puts(&body, chat ? "}]}" : i == 1 ? ",\"add_special\":true}" : "}");
        rc = sl_buf_ok(&body) ? ask(s, "/tokenize", &body, &root, err)
                              : sl_fail(err, SL_ENOMEM, "out of memory for a text");
        sl_buf_deinit(&body);
        if (rc != 0)
            continue;
        *ids = json_incref(json_object_get(root, "tokens"));
        json_decref(root);
        if (json_array_size(*ids) > 0)
            return 0;
        json_decref(*ids);
        *ids = NULL;
        rc = sl_fail(err, SL_ENOTFOUND, "/tokenize gave no tokens");
    }
    return rc;
}

static int count_words(const struct sl_bench_server *s, const char *word, size_t n, bool chat,
                       size_t *n_tokens, struct sl_error *err)
{
    struct sl_buf text = {0};
    json_t *ids;
    sl_buf_puts(&text, SL_BENCH_FIRST_WORD);
    for (size_t i = 0; i < n; i++)
        sl_buf_printf(&text, " %s", word);
    int rc = bench_ask_count(s, &text, chat, &ids, err);
    *n_tokens = json_array_size(ids);
    json_decref(ids);
    sl_buf_deinit(&text);
    return rc;
}

/* Keeps the words of d that are one token each behind another word. */
static int keep_exact(const struct sl_bench_server *s, struct sl_bench_dataset *d, size_t alone,
                      struct sl_error *err)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < d->n_words; i++) {
        size_t n;
        int rc = count_words(s, d->words[i], REPEATS, false, &n, err);
        if (rc != 0)
            return rc;
        if (n == alone + REPEATS)
            d->words[n_kept++] = d->words[i];
    }
    d->n_words = n_kept;
    return 0;
}

/* Words that are one token each may still meet in one; a text of many shows it. */
static int check_text(const struct sl_bench_server *s, const struct sl_bench_dataset *d, bool *good,
                      struct sl_error *err)
{
    struct sl_rng rng = {.seed = d->seed};
    struct sl_buf text = {0};
    json_t *ids;
    *good = false;
    sl_bench_words(d, &rng, TRIAL, &text);
    int rc = bench_ask_count(s, &text, s->chat, &ids, err);
    *good = rc == 0 && json_array_size(ids) == TRIAL + (size_t)d->overhead;
    json_decref(ids);
    sl_buf_deinit(&text);
    return rc;
}

/* The ids of the tokens that all words come to, so that any number of them is a prompt. */
static int use_ids(const struct sl_bench_server *s, struct sl_bench_dataset *d,
                   struct sl_error *err)
{
    struct sl_buf text = {0};
    json_t *ids;
    sl_bench_all_words(&text);
    int rc = bench_ask_count(s, &text, false, &ids, err);
    const size_t n = json_array_size(ids);
    sl_buf_deinit(&text);
    if (rc == 0) {
        d->ids = sl_calloc(n, sizeof *d->ids);
        rc = d->ids != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for %zu tokens", n);
    }
    for (size_t i = 0; i < n && rc == 0; i++)
        d->ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    d->n_ids = rc == 0 ? n : 0;
    d->overhead = 0;
    json_decref(ids);
    return rc;
}

int sl_bench_ask_tokens(const struct sl_bench_server *s, struct sl_bench_dataset *d,
                        struct sl_error *err)
{
    size_t alone, with_chat = 0;
    bool good = false;
    int rc = count_words(s, "", 0, false, &alone, err);
    if (rc == 0 && s->chat)
        rc = count_words(s, "", 0, true, &with_chat, err);
    if (rc == 0)
        rc = keep_exact(s, d, alone, err);
    if (rc == 0 && d->n_words >= FEW_WORDS) {
        d->overhead = (int32_t)(s->chat ? with_chat : alone) - 1;
        rc = check_text(s, d, &good, err);
    }
    if (rc == 0 && !good)
        rc = s->chat ? sl_fail(err, SL_ENOTFOUND, "too few words are one token each")
                     : use_ids(s, d, err);
    if (rc != 0)
        sl_bench_dataset_reset_words(d);
    return rc;
}
