/* SPDX-License-Identifier: MIT
 * api_info.c - what routers, evaluators and front ends of other servers ask about a server:
 * llama.cpp's GET /props and /slots, vLLM's /tokenizer_info, SGLang's /server_info and /model_info
 * (and their older names); GET /livez for Kubernetes. All take ?model=NAME of another model than
 * the first.
 *
 * They need a key but for /livez. Nothing of the configuration is in them but what is listed here:
 * no key, no path besides the model's, which /v1/models shows as well, and nothing of requests.
 */
#include "base/check.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

/* The model that is asked about, or a refusal that is sent already. */
static const struct sl_served *info_model_of(struct sl_conn *c)
{
    struct sl_refusal r = {0};
    struct sl_served *m = NULL;
    if (sl_query_model(c, &m, &r) == 0)
        return m != NULL ? m : &c->loop->server->models[0];
    sl_reply_refusal(c, &r);
    return NULL;
}

static json_t *piece(const struct sl_tokenizer *tok, int32_t id)
{
    size_t n = 0;
    const char *text = id >= 0 ? sl_tokenizer_piece(tok, id, &n) : NULL;
    return text != NULL ? json_stringn_nocheck(text, n) : json_null();
}

static json_t *chat_template(const struct sl_served *m)
{
    size_t n = 0;
    const char *source = sl_engine_chat_template(m->eng, &n);
    return source != NULL ? json_stringn_nocheck(source, n) : json_null();
}

/* ---- llama.cpp's */

/* A float's shortest form: 0.7 and not 0.69999998807907104. */
static json_t *real(float x)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)x);
    return json_real(strtod(text, NULL));
}

static json_t *sampling(const struct sl_sampling *s)
{
    return json_pack("{s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:i}", "temperature",
                     real(s->temperature), "top_k", (int)s->top_k, "top_p", real(s->top_p), "min_p",
                     real(s->min_p), "repeat_penalty", real(s->repetition_penalty),
                     "presence_penalty", real(s->presence_penalty), "frequency_penalty",
                     real(s->frequency_penalty), "max_tokens", -1, "n_predict", -1);
}

void sl_api_props(struct sl_conn *c)
{
    const struct sl_served *m = info_model_of(c);
    if (m == NULL)
        return;
    const struct sl_model_info *info = sl_engine_info(m->eng);
    const struct sl_tokenizer *tok = sl_engine_tokenizer(m->eng);
    sl_reply_tree(
        c,
        json_pack("{s:{s:i, s:o}, s:i, s:s, s:s, s:{s:b, s:b}, s:o, s:o, s:o, s:s, s:b}",
                  "default_generation_settings", "n_ctx", (int)info->max_model_len, "params",
                  sampling(&m->defaults), "total_slots", (int)info->max_num_seqs, "model_alias",
                  m->name, "model_path", info->model_path, "modalities", "vision", 0, "audio", 0,
                  "chat_template", chat_template(m), "bos_token", piece(tok, sl_tokenizer_bos(tok)),
                  "eos_token", piece(tok, sl_tokenizer_eos(tok)), "build_info",
                  "sluice-" SLUICE_VERSION, "is_sleeping", sl_engine_sleep_level(m->eng) > 0));
}

/* Sequences have no fixed places here: as many slots are shown busy as requests run. With
 * ?fail_on_no_slot=1 there is a 503 where all of them are, as in llama.cpp. */
void sl_api_slots(struct sl_conn *c)
{
    const struct sl_served *m = info_model_of(c);
    struct sl_stats st;
    if (m == NULL)
        return;
    const struct sl_model_info *info = sl_engine_info(m->eng);
    sl_engine_stats(m->eng, &st);
    struct sl_str fail = sl_query_value(c->parser->query, "fail_on_no_slot");
    if (fail.n > 0 && !sl_str_equals(fail, "0") && st.n_running >= info->max_num_seqs) {
        struct sl_refusal r = {.code = "unavailable_error"};
        (void)sl_refuse(&r, SL_EASLEEP, NULL, "no slot is available");
        sl_reply_refusal(c, &r);
        return;
    }
    json_t *slots = json_array();
    bool ok = slots != NULL;
    for (int32_t i = 0; i < info->max_num_seqs && ok; i++)
        ok = json_array_append_new(slots, json_pack("{s:i, s:i, s:b, s:b}", "id", (int)i, "n_ctx",
                                                    (int)info->max_model_len, "speculative", 0,
                                                    "is_processing", i < st.n_running)) == 0;
    if (!ok) {
        json_decref(slots);
        slots = NULL;
    }
    sl_reply_tree(c, slots);
}

/* ---- vLLM's */

/* What its clients take from tokenizer_config.json. */
void sl_api_tokenizer_info(struct sl_conn *c)
{
    const struct sl_served *m = info_model_of(c);
    if (m == NULL)
        return;
    const struct sl_tokenizer *tok = sl_engine_tokenizer(m->eng);
    sl_reply_tree(
        c, json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "tokenizer_class", "PreTrainedTokenizerFast",
                     "model_max_length", (int)sl_engine_info(m->eng)->max_model_len, "vocab_size",
                     (int)sl_tokenizer_n_vocab(tok), "bos_token", piece(tok, sl_tokenizer_bos(tok)),
                     "eos_token", piece(tok, sl_tokenizer_eos(tok)), "chat_template",
                     chat_template(m)));
}

/* ---- SGLang's */

void sl_api_model_info(struct sl_conn *c)
{
    const struct sl_served *m = info_model_of(c);
    if (m == NULL)
        return;
    const struct sl_model_info *info = sl_engine_info(m->eng);
    sl_reply_tree(c,
                  json_pack("{s:s, s:s, s:s, s:b, s:n, s:s, s:b, s:b, s:s, s:[s]}", "model_path",
                            info->model_path, "tokenizer_path", info->model_path,
                            "served_model_name", m->name, "is_generation", info->n_pooled == 0,
                            "preferred_sampling_params", "weight_version", "default",
                            "has_image_understanding", 0, "has_audio_understanding", 0,
                            "model_type", info->architecture, "architectures", info->architecture));
}

static const char *mode_of(const struct sl_kv_transfer_info *info)
{
    return info->serves && info->asks ? "both"
           : info->serves             ? "prefill"
           : info->asks               ? "decode"
                                      : "null";
}

void sl_api_server_info(struct sl_conn *c)
{
    const struct sl_served *m = info_model_of(c);
    struct sl_stats st;
    if (m == NULL)
        return;
    const struct sl_model_info *info = sl_engine_info(m->eng);
    sl_engine_stats(m->eng, &st);
    const int64_t n_tokens = (int64_t)info->n_pages * info->block_size;
    const struct sl_server *s = c->loop->server;
    const int dp_size = s->replicas != NULL ? (int)s->n_models : 1;
    sl_reply_tree(
        c, json_pack(
               "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:i, s:I, s:I, s:i, s:i, s:s, s:s,"
               " s:i, s:i, s:s, s:s, s:s?, s:s?, s:i, s:i, s:b, s:o?}",
               "model_id", m->name, "served_model_name", m->name, "model_path", info->model_path,
               "version", SLUICE_VERSION, "tp_size", SL_MAX((int)info->n_ranks, 1), "dp_size",
               dp_size, "pp_size", SL_MAX((int)info->n_stages, 1), "is_embedding",
               info->n_pooled > 0, "context_length", (int)info->max_model_len,
               "max_total_num_tokens", (json_int_t)n_tokens, "max_total_tokens",
               (json_int_t)n_tokens, "max_running_requests", (int)info->max_num_seqs, "page_size",
               (int)info->block_size, "kv_cache_dtype", info->kv_dtype, "dtype", info->weight_dtype,
               "num_running_reqs", (int)st.n_running, "num_queue_reqs", (int)st.n_waiting,
               "disaggregation_mode", mode_of(sl_engine_transfer(m->eng)), "status",
               sl_engine_sleep_level(m->eng) > 0 ? "asleep" : "ready", "speculative_algorithm",
               info->speculative_method, "speculative_draft_model_path", info->speculative_model,
               "speculative_num_draft_tokens", (int)info->num_speculative_tokens, "dcp_size",
               SL_MAX((int)info->n_kv_ranks, 1), "enable_eplb", (int)st.eplb.on,
               "eplb_balancedness", st.eplb.on ? json_real(st.eplb.balancedness) : NULL));
}

/* ---- Kubernetes' */

/* Should this process be started anew? Only where it can no longer work: one that drains, sleeps or
 * is full must not be killed for it. /readyz says whether requests should come here. */
void sl_api_live(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    struct sl_error err;
    for (int32_t i = 0; i < s->n_models; i++) {
        const int rc = sl_engine_health(s->models[i].eng, &err);
        if (rc == 0 || rc == SL_ERANK) /* it waits for another process */
            continue;
        char body[sizeof err.msg + 4];
        int n = snprintf(body, sizeof body, "%s\n", err.msg);
        sl_reply(c, 503, "text/plain; charset=utf-8", "Retry-After: 1\r\n", body,
                 (size_t)SL_MAX(n, 0));
        return;
    }
    sl_reply(c, 200, "text/plain; charset=utf-8", NULL, "ok\n", 3);
}
