/* SPDX-License-Identifier: MIT
 * api_ollama_models.c - GET /api/tags, /api/ps and /api/version, POST /api/show, as Ollama has
 * them.
 *
 * Names are shown as Ollama shows them, with a tag. The digest tells the models of a server apart
 * and is none of a file.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"
#include "server/api/ollama_in.h"
#include "server/api/ollama_out.h"
#include "server/http/json_tree.h"
#include "server/http/reply.h"
#include "server/http/route.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* The release of Ollama whose API this is: clients refuse servers that say less than they need. */
#define OLLAMA_VERSION "0.12.11"

static json_t *time_of(int64_t wall_ns)
{
    struct sl_buf b = {0};
    sl_ollama_put_time(&b, wall_ns);
    json_t *out = sl_buf_ok(&b) ? json_stringn(b.data, b.n_bytes) : NULL;
    sl_buf_deinit(&b);
    return out;
}

/* "8.0B", "596.05M", as Ollama rounds them. */
static json_t *size_text(uint64_t n)
{
    char text[32];
    double x = (double)n;
    if (x >= 1e9)
        snprintf(text, sizeof text, "%.1fB", x / 1e9);
    else if (x >= 1e6)
        snprintf(text, sizeof text, "%.2fM", x / 1e6);
    else
        snprintf(text, sizeof text, "%.2fK", x / 1e3);
    return json_string(text);
}

static json_t *upper(const char *s)
{
    char text[32];
    size_t n = 0;
    for (; s[n] != '\0' && n + 1 < sizeof text; n++)
        text[n] = (char)toupper((unsigned char)s[n]);
    return json_stringn(text, n);
}

static json_t *details(const struct sl_model_info *info, const char *parent)
{
    size_t n = strlen(info->model_path);
    bool gguf = n > 5 && strcmp(info->model_path + n - 5, ".gguf") == 0;
    return json_pack("{s:s, s:s, s:s, s:[s], s:o, s:o}", "parent_model", parent, "format",
                     gguf ? "gguf" : "safetensors", "family", info->architecture, "families",
                     info->architecture, "parameter_size", size_text(info->n_params),
                     "quantization_level", upper(info->weight_dtype));
}

static json_t *with_tag(const char *name)
{
    const char *slash = strrchr(name, '/');
    bool tagged = strchr(slash != NULL ? slash : name, ':') != NULL;
    return json_sprintf("%s%s", name, tagged ? "" : ":latest");
}

static json_t *digest_of(const char *name, const struct sl_model_info *info)
{
    char text[65];
    uint64_t h = sl_hash64(name, strlen(name), info->n_params ^ info->weight_bytes);
    for (int i = 0; i < 4; i++)
        snprintf(text + 16 * i, 17, "%016llx", (unsigned long long)sl_mix64(h + (uint64_t)i));
    return json_string(text);
}

struct list {
    json_t *models;
    const struct sl_served *m;
    int64_t created_ns;
    bool ok;
};

static void ollama_models_add(struct list *l, const char *name, const char *parent, int64_t t_ns)
{
    const struct sl_model_info *info = sl_engine_info(l->m->eng);
    json_t *model =
        json_pack("{s:o, s:o, s:o, s:I, s:o, s:o}", "name", with_tag(name), "model", with_tag(name),
                  "modified_at", time_of(t_ns), "size", (json_int_t)info->weight_bytes, "digest",
                  digest_of(name, info), "details", details(info, parent));
    l->ok = l->ok && model != NULL && json_array_append_new(l->models, model) == 0;
}

static void ollama_models_add_adapter(void *arg, const struct sl_adapter_info *a)
{
    struct list *l = arg;
    ollama_models_add(l, a->name, l->m->name, a->t_loaded_s * 1000000000);
}

void sl_api_ollama_tags(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct list l = {.models = json_array(), .ok = true};
    for (int32_t i = 0; i < sl_served_n_named(s); i++) {
        l.m = &s->models[i];
        for (int32_t k = 0; k < sl_served_n_names(l.m); k++)
            ollama_models_add(&l, sl_served_name_at(l.m, k), "", s->t_created_s * 1000000000);
        sl_adapter_each(l.m->eng, ollama_models_add_adapter, &l);
    }
    json_t *out = json_pack("{s:o}", "models", l.models);
    if (!l.ok) {
        json_decref(out);
        out = NULL;
    }
    sl_reply_tree(c, out);
}

/* What is in memory. It stays there: the time at which it would go is as far away as Ollama's own
 * with keep_alive -1. */
void sl_api_ollama_ps(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    json_t *models = json_array();
    bool ok = true;
    for (int32_t i = 0; i < sl_served_n_named(s); i++) {
        const struct sl_served *m = &s->models[i];
        const struct sl_model_info *info = sl_engine_info(m->eng);
        if (sl_engine_sleep_level(m->eng) > 0)
            continue;
        uint64_t size = info->weight_bytes + info->kv_cache_bytes;
        json_t *one = json_pack("{s:o, s:o, s:I, s:o, s:o, s:s, s:I, s:i}", "name",
                                with_tag(m->name), "model", with_tag(m->name), "size",
                                (json_int_t)size, "digest", digest_of(m->name, info), "details",
                                details(info, ""), "expires_at", "2318-01-01T00:00:00Z",
                                "size_vram", (json_int_t)(info->device_total_bytes > 0 ? size : 0),
                                "context_length", (int)info->max_model_len);
        ok = ok && one != NULL && json_array_append_new(models, one) == 0;
    }
    json_t *out = json_pack("{s:o}", "models", models);
    if (!ok) {
        json_decref(out);
        out = NULL;
    }
    sl_reply_tree(c, out);
}

void sl_api_ollama_version(struct sl_conn *c)
{
    static const char body[] =
        "{\"version\":\"" OLLAMA_VERSION "\",\"sluice\":\"" SLUICE_VERSION "\"}";
    sl_reply(c, 200, "application/json", NULL, body, sizeof body - 1);
}

/* ---- one model */

static json_t *capabilities(const struct sl_served *m)
{
    const struct sl_model_info *info = sl_engine_info(m->eng);
    if (info->n_pooled > 0)
        return info->task == SL_TASK_EMBED ? json_pack("[s]", "embedding") : json_array();
    json_t *out = json_pack("[s]", "completion");
    if (m->formats.tools != NULL)
        (void)json_array_append_new(out, json_string("tools"));
    if (m->formats.reasoning != NULL)
        (void)json_array_append_new(out, json_string("thinking"));
    return out;
}

/* A line per value in which the model's defaults differ from none. */
static json_t *parameters(const struct sl_sampling *s)
{
    struct sl_sampling none;
    struct sl_buf b = {0};
    sl_sampling_default(&none);
    const struct {
        const char *name;
        float value, neutral;
    } rows[] = {
        {"temperature", s->temperature, none.temperature},
        {"top_p", s->top_p, none.top_p},
        {"min_p", s->min_p, none.min_p},
        {"repeat_penalty", s->repetition_penalty, none.repetition_penalty},
        {"presence_penalty", s->presence_penalty, none.presence_penalty},
        {"frequency_penalty", s->frequency_penalty, none.frequency_penalty},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if (rows[i].value != rows[i].neutral)
            sl_buf_printf(&b, "%s%-30s %g", b.n_bytes > 0 ? "\n" : "", rows[i].name,
                          (double)rows[i].value);
    }
    if (s->top_k != none.top_k)
        sl_buf_printf(&b, "%s%-30s %d", b.n_bytes > 0 ? "\n" : "", "top_k", s->top_k);
    json_t *out = sl_buf_ok(&b) ? json_stringn(b.n_bytes > 0 ? b.data : "", b.n_bytes) : NULL;
    sl_buf_deinit(&b);
    return out;
}

/* Under GGUF's names, which is where clients look for the length of the context. */
static json_t *model_info(const struct sl_model_info *info)
{
    const struct {
        const char *name;
        int32_t value;
    } rows[] = {{"context_length", info->max_model_len},
                {"embedding_length", info->hidden},
                {"block_count", info->n_layers},
                {"vocab_size", info->n_vocab}};
    json_t *out = json_pack("{s:s, s:I}", "general.architecture", info->architecture,
                            "general.parameter_count", (json_int_t)info->n_params);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char name[96];
        snprintf(name, sizeof name, "%.64s.%s", info->architecture, rows[i].name);
        (void)json_object_set_new(out, name, json_integer(rows[i].value));
    }
    return out;
}

static int ollama_models_show(struct sl_task *t)
{
    const char *name = NULL;
    int rc = sl_ollama_parse(t);
    if (rc != 0)
        return rc;
    const json_t *v = json_object_get(t->root, "model");
    if (v == NULL || json_is_null(v))
        return sl_refuse(&t->refusal, SL_EINVAL, "model", "model is missing");
    rc = sl_json_cstr(v, "model", 4096, &name, &t->refusal);
    if (rc == 0)
        rc = sl_served_check(t->server, t->served, name, &t->model, &t->refusal);
    bool adapter = rc == SL_ENOTFOUND && sl_adapter_known(t->served->eng, name);
    if (rc != 0 && !adapter)
        return rc;
    t->refusal = (struct sl_refusal){0};
    size_t n = 0;
    const char *source = sl_engine_chat_template(t->served->eng, &n);
    const struct sl_model_info *info = sl_engine_info(t->served->eng);
    json_t *out =
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "license", "", "modelfile", "",
                  "parameters", parameters(&t->served->defaults), "template",
                  json_stringn_nocheck(source != NULL ? source : "", source != NULL ? n : 0),
                  "details", details(info, adapter ? t->served->name : ""), "model_info",
                  model_info(info), "capabilities", capabilities(t->served), "modified_at",
                  time_of(t->server->t_created_s * 1000000000));
    if (out == NULL)
        return sl_refuse(&t->refusal, SL_ENOMEM, NULL, "out of memory");
    sl_json_put(&t->out, out);
    json_decref(out);
    return 0;
}

static void prepare_show(struct sl_task *t)
{
    t->rc = ollama_models_show(t);
}

static void finish_show(struct sl_conn *c, struct sl_task *t)
{
    sl_reply_json(c, 200, &t->out);
}

void sl_api_ollama_show(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_show, finish_show};
    sl_task_start(c, &kind);
}
