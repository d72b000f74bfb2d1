/* SPDX-License-Identifier: MIT
 *
 * Back-pressure: a stream whose client does not read is not read from the engine either; the engine
 * holds a bounded number of tokens per sequence and the rest follows from sl_call_resume. Whole
 * replies are collected, their size is bounded by max_tokens.
 */
#include "server/api/call.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"
#include "server/api/answer.h"
#include "server/api/kv_transfer.h"
#include "server/api/request_log.h"
#include "server/api/session.h"
#include "server/http/keys.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

#include <stdio.h>
#include <string.h>

#define BATCH_PRIORITY (1 << 30)   /* of batches: behind all that somebody waits for; among */
#define BATCH_RANGE    (1 << 29)   /* themselves they may say which go first */
#define KEPT_STEP      (64u << 10) /* growth of a whole reply between looks at all held memory */

void sl_call_free_prompts(struct sl_prompt *prompts, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (prompts[i].req != NULL)
            sl_request_release(prompts[i].req);
        sl_free(prompts[i].ids);
        sl_free(prompts[i].text);
        sl_free(prompts[i].final);
    }
    sl_free(prompts);
}

static void free_choices(struct sl_choice *choices, int32_t n)
{
    for (int32_t i = 0; choices != NULL && i < n; i++) {
        struct sl_choice *ch = &choices[i];
        struct sl_buf *bufs[] = {&ch->text,    &ch->stop_str, &ch->token_ids,
                                 &ch->tokens,  &ch->values,   &ch->tops,
                                 &ch->offsets, &ch->held,     &ch->held_tokens};
        for (size_t k = 0; k < SL_COUNT(bufs); k++)
            sl_buf_deinit(bufs[k]);
        sl_answer_destroy(ch->answer);
    }
    sl_free(choices);
}

static void free_call(struct sl_call *call)
{
    if (call->entered != NULL)
        sl_key_leave(call->entered);
    if (call->extra != NULL)
        call->api->destroy(call);
    sl_call_free_prompts(call->prompts, call->n_prompts);
    free_choices(call->choices, call->n_prompts * call->n);
    sl_adapter_release(call->adapter);
    sl_buf_deinit(&call->event_head);
    sl_free(call);
}

void sl_call_destroy(struct sl_call *call)
{
    struct sl_loop *loop = call->conn->loop;
    sl_request_log_put(call);
    pthread_mutex_lock(&loop->calls_lock);
    if (call->prev != NULL)
        call->prev->next = call->next;
    else
        loop->calls = call->next;
    if (call->next != NULL)
        call->next->prev = call->prev;
    loop->n_calls--;
    pthread_mutex_unlock(&loop->calls_lock);
    call->conn->call = NULL;
    free_call(call);
}

/* ---- starting */

static void call_make_id(struct sl_call *call, const char *client_id)
{
    struct sl_loop *loop = call->conn->loop;
    const struct sl_str *header = sl_http_header(call->conn->parser, "x-request-id");
    bool header_ok = header != NULL && header->n > 0 && header->n <= 128;
    for (size_t i = 0; header_ok && i < header->n; i++)
        header_ok = header->p[i] > 0x20 && header->p[i] < 0x7F;
    if (call->api->own_ids) {
        header_ok = false;
        client_id = NULL;
    }
    if (client_id != NULL && client_id[0] != '\0') {
        snprintf(call->id, sizeof call->id, "%s%s", call->api->id_prefix, client_id);
    } else if (header_ok) {
        snprintf(call->id, sizeof call->id, "%s%.*s", call->api->id_prefix, (int)header->n,
                 header->p);
    } else {
        uint64_t serial = atomic_fetch_add(&loop->server->next_id, 1);
        snprintf(call->id, sizeof call->id, "%s%016llx%016llx", call->api->id_prefix,
                 (unsigned long long)sl_mix64(loop->id_seed[0] + serial),
                 (unsigned long long)sl_mix64(loop->id_seed[1] ^ serial));
    }
}

static void copy_params(struct sl_call *call, const struct sl_params *p)
{
    call->pool = p->pool;
    call->stream = p->stream;
    call->include_usage = p->include_usage;
    call->continuous_usage = p->continuous_usage;
    call->want_logprobs = p->want_logprobs;
    call->n_logprobs = p->sampling.n_logprob_token_ids > 0 ? p->sampling.n_logprob_token_ids
                                                           : SL_MAX(p->sampling.logprobs, 0);
    call->tokens_as_ids = p->tokens_as_ids;
    call->return_token_ids = p->return_token_ids;
    call->max_tokens = p->sampling.max_tokens;
    call->asked = (struct sl_call_asked){.temperature = p->sampling.temperature,
                                         .top_p = p->sampling.top_p,
                                         .frequency_penalty = p->sampling.frequency_penalty,
                                         .presence_penalty = p->sampling.presence_penalty,
                                         .top_k = p->sampling.top_k,
                                         .has_seed = p->sampling.has_seed,
                                         .seed = p->sampling.seed};
    const struct sl_server_config *cfg = call->conn->loop->server->cfg;
    call->n_best = p->n_best;
    call->stream_interval = SL_MAX(p->stream_interval, cfg->stream_interval);
    call->timings_per_token = p->timings_per_token;
    call->timings = p->timings_per_token || cfg->timings;
    call->return_prompt_text = p->return_prompt_text;
    call->echo = p->echo;
    call->drop_output = p->drop_output;
}

/* Whose prefix cache a request may see. */
static uint32_t tenant_of(const struct sl_call *call)
{
    return call->conn->loop->server->cfg->share_prefixes ? 0 : (uint32_t)call->key;
}

/* Of two servers the first one makes one token. */
static void clamp_output(struct sl_call *call, struct sl_sampling *s)
{
    s->max_tokens = call->max_tokens = 1;
    s->min_tokens = SL_MIN(s->min_tokens, 1);
}

static int submit_prompts(struct sl_call *call, const struct sl_params *p,
                          const struct sl_transfers *t, struct sl_refusal *r)
{
    for (int32_t i = 0; i < call->n_prompts; i++) {
        struct sl_prompt *prompt = &call->prompts[i];
        prompt->call = call;
        prompt->idx = i;
        struct sl_request_desc desc = {
            .prompt = prompt->ids,
            .n_prompt = (int32_t)prompt->n_ids,
            .sampling = p->sampling,
            .priority =
                call->conn->background
                    ? BATCH_PRIORITY + SL_MIN(SL_MAX(p->priority, -BATCH_RANGE), BATCH_RANGE)
                : p->priority == 0 && call->conn->loop->server->cfg->priority_scheduling
                    ? sl_session_priority(p)
                    : p->priority,
            .session = sl_session_of(call->conn->parser, p, call->key),
            .cache_salt = p->cache_salt,
            .prediction = p->predicted,
            .n_prediction = (int32_t)SL_MIN(p->n_predicted, INT32_MAX),
            .cache_hit_threshold = p->cache_hit_threshold,
            .cache_tenant = tenant_of(call),
            .constraint = p->constraint,
            .adapter = call->adapter,
            .adapter_scale = p->lora_scale,
            .pooling = call->api->pooling,
            .second_from = prompt->second_from,
            .thinking = p->thinking.close != NULL ? &p->thinking : NULL,
            .outbox = call->conn->loop->outbox,
            .user = prompt,
        };
        if (t->offers)
            clamp_output(call, &desc.sampling);
        if (t->prompts != NULL && (t->offers || t->prompts[i].host != NULL))
            desc.transfer = &t->prompts[i];
        int rc = sl_request_submit(call->served->eng, &desc, &prompt->req, &r->err);
        if (rc != 0) {
            if (rc == SL_EBUSY)
                r->code = "rate_limit_exceeded";
            else if (rc == SL_ELIMIT)
                r->code = "context_length_exceeded";
            else
                sl_params_blame(r);
            return rc;
        }
        if (!call->echo && !call->return_token_ids) {
            sl_free(prompt->ids);
            prompt->ids = NULL;
        }
    }
    return 0;
}

static int submit_all(struct sl_call *call, const struct sl_params *p, struct sl_refusal *r)
{
    struct sl_transfers t;
    int rc = sl_transfers_read(p, call->conn, call->served->eng, call->n_prompts, &t, r);
    call->answers_transfer = t.answers;
    if (rc == 0)
        rc = submit_prompts(call, p, &t, r);
    sl_free(t.prompts);
    return rc;
}

static void link_call(struct sl_conn *c, struct sl_call *call)
{
    struct sl_loop *loop = c->loop;
    const struct sl_server_config *cfg = loop->server->cfg;
    pthread_mutex_lock(&loop->calls_lock);
    call->next = loop->calls;
    if (call->next != NULL)
        call->next->prev = call;
    loop->calls = call;
    loop->n_calls++;
    pthread_mutex_unlock(&loop->calls_lock);
    c->call = call;
    if (cfg->request_timeout_ms > 0)
        c->call_deadline_ns = loop->now_ns + (uint64_t)cfg->request_timeout_ms * 1000000u;
    if (call->stream && cfg->sse_ping_ms > 0)
        c->ping_deadline_ns = loop->now_ns + (uint64_t)cfg->sse_ping_ms * 1000000u;
    sl_loop_mark(loop, c);
}

/* What the call keeps of its prompts until its end. */
static size_t kept_of_prompts(const struct sl_call *call)
{
    size_t n = 0;
    for (int32_t i = 0; i < call->n_prompts; i++) {
        const struct sl_prompt *p = &call->prompts[i];
        n += p->n_text + p->n_final + (p->ids != NULL ? p->n_ids * sizeof *p->ids : 0);
    }
    return n;
}

/* May the key have one more call? */
static int enter_key(struct sl_call *call, struct sl_refusal *r)
{
    struct sl_key_rule *rules = call->conn->loop->server->cfg->key_rules;
    if (rules == NULL || call->conn->background)
        return 0;
    if (!sl_key_enter(&rules[call->key])) {
        r->code = "rate_limit_exceeded";
        return sl_refuse(r, SL_EBUSY, NULL, "more than %d requests at a time with this API key",
                         rules[call->key].max_running);
    }
    call->entered = &rules[call->key];
    return 0;
}

int sl_call_start(struct sl_conn *c, const struct sl_call_api *api, const struct sl_params *p,
                  const struct sl_served *served, const char *model, struct sl_adapter *adapter,
                  struct sl_prompt *prompts, int32_t n_prompts, void *extra, struct sl_refusal *r)
{
    struct sl_http_stats *stats = &c->loop->stats;
    if (p->priority != 0 && !c->background && !c->loop->server->cfg->priority_scheduling) {
        sl_call_free_prompts(prompts, n_prompts);
        sl_adapter_release(adapter);
        return sl_refuse(r, SL_EINVAL, "priority",
                         "priority must be 0: the server runs requests in order of arrival (see "
                         "--scheduling-policy)");
    }
    struct sl_call *call = sl_calloc(1, sizeof *call);
    if (call == NULL) {
        sl_call_free_prompts(prompts, n_prompts);
        sl_adapter_release(adapter);
        return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    }
    call->conn = c;
    call->key = c->key;
    call->api = api;
    call->served = served;
    call->model = model;
    call->adapter = adapter;
    call->prompts = prompts;
    call->n_prompts = n_prompts;
    call->n = p->sampling.n;
    call->created_s = sl_wall_ns() / 1000000000;
    copy_params(call, p);
    call_make_id(call, p->request_id);
    if (call->stream && api->put_event_head != NULL)
        api->put_event_head(call);
    int32_t n_choices = n_prompts * call->n; /* at most SL_MAX_PROMPTS * SL_MAX_N */
    call->choices = sl_calloc((size_t)n_choices, sizeof *call->choices);
    if (call->choices == NULL || !sl_buf_ok(&call->event_head)) {
        free_call(call);
        return sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < n_choices; i++) {
        call->choices[i].idx = i;
        call->choices[i].stop_token_id = -1;
    }
    int rc = 0;
    for (int32_t i = 0; i < n_choices && api->begin != NULL && rc == 0; i++)
        rc = api->begin(call, &call->choices[i], p, &r->err);
    if (rc == 0)
        rc = enter_key(call, r);
    if (rc == 0)
        rc = submit_all(call, p, r);
    if (rc != 0) {
        free_call(call);
        return rc;
    }
    sl_count_hist_add(&stats->params_n, (uint64_t)call->n);
    if (p->sampling.max_tokens > 0)
        sl_count_hist_add(&stats->params_max_tokens, (uint64_t)p->sampling.max_tokens);
    call->extra = extra;
    call->n_kept = kept_of_prompts(call);
    link_call(c, call);
    if (api->begun != NULL)
        api->begun(call);
    return 0;
}

/* ---- ending */

void sl_call_usage(const struct sl_call *call, struct sl_usage *out)
{
    *out = (struct sl_usage){0};
    for (int32_t i = 0; i < call->n_prompts; i++) {
        struct sl_usage u;
        sl_request_usage(call->prompts[i].req, &u);
        out->n_prompt += u.n_prompt;
        out->n_cached += u.n_cached;
        out->n_output += call->drop_output ? 0 : u.n_output;
        out->n_preemptions += u.n_preemptions;
        out->n_drafted += u.n_drafted;
        out->n_accepted += u.n_accepted;
        if (i > 0)
            continue;
        out->t_submit_ns = u.t_submit_ns;
        out->t_scheduled_ns = u.t_scheduled_ns;
        out->t_first_ns = u.t_first_ns;
        out->t_last_ns = u.t_last_ns;
    }
}

void sl_call_put_ids(struct sl_buf *b, const int32_t *ids, size_t n_ids)
{
    sl_buf_putc(b, '[');
    for (size_t i = 0; i < n_ids; i++) {
        if (i > 0)
            sl_buf_putc(b, ',');
        sl_put_i64(b, ids[i]);
    }
    sl_buf_putc(b, ']');
}

static void fail_call(struct sl_call *call, const struct sl_error *err)
{
    struct sl_conn *c = call->conn;
    struct sl_refusal r = {0};
    if (err != NULL && err->code != SL_OK)
        r.err = *err;
    else
        (void)sl_fail(&r.err, SL_EINTERNAL, "the request failed");
    if (sl_code_http(r.err.code) == 400)
        sl_params_blame(&r);
    call->failed = r.err.code;
    if (c->streaming) {
        call->api->fail_stream(sl_conn_stream_buf(c), call, &r);
        sl_conn_stream_end(c);
    } else {
        sl_reply_refusal(c, &r);
    }
    sl_call_destroy(call);
}

/* Why a request that was broken off has no reply. A drain and a sleep end, so that it may be asked
 * again; the time limit would end it again. */
static int broken_off(const struct sl_call *call, struct sl_error *err)
{
    const struct sl_conn *c = call->conn;
    bool late = c->loop->server->cfg->request_timeout_ms > 0 && c->call_deadline_ns == 0;
    return late ? sl_fail(err, SL_ETIMEOUT, "the request took longer than the server allows")
                : sl_fail(err, SL_ESHUTDOWN, "the server stopped the request");
}

/* Values of some prompts are no reply: what is missing would pass for a value. Neither is, to a
 * batch, an answer that was cut off: nobody is there to see its finish_reason. */
static int check_whole(const struct sl_call *call, struct sl_error *err)
{
    int32_t n;
    for (int32_t i = 0; call->api->pooling && i < call->n_prompts; i++)
        if (sl_request_pooled(call->prompts[i].req, &n) == NULL)
            return broken_off(call, err);
    for (int32_t i = 0; call->conn->background && i < call->n_prompts * call->n; i++)
        if (call->choices[i].finish == SL_FINISH_ABORT)
            return broken_off(call, err);
    return 0;
}

static void finish_call(struct sl_call *call)
{
    struct sl_error err;
    if (check_whole(call, &err) != 0) {
        fail_call(call, &err);
        return;
    }
    struct sl_http_stats *stats = &call->conn->loop->stats;
    for (int32_t i = 0; i < call->n_prompts; i++) {
        uint64_t longest = 0;
        for (int32_t k = 0; k < call->n; k++)
            longest = SL_MAX(longest, call->choices[i * call->n + k].n_output);
        sl_count_hist_add(&stats->max_generation, longest);
    }
    if (call->stream) {
        call->api->end_stream(sl_conn_stream_buf(call->conn), call);
        sl_conn_stream_end(call->conn);
    } else {
        struct sl_buf b = {.max_bytes = SL_MAX_REPLY_BYTES};
        call->api->put_whole(&b, call);
        sl_reply_json(call->conn, 200, &b);
    }
    sl_call_destroy(call);
}

void sl_call_abort(struct sl_call *call)
{
    for (int32_t i = 0; i < call->n_prompts; i++) {
        if (!call->prompts[i].done)
            sl_request_cancel(call->prompts[i].req);
    }
}

void sl_call_look(struct sl_call *call)
{
    if (call->cancelled != NULL && atomic_load(call->cancelled))
        sl_call_abort(call);
}

/* ---- news */

static size_t kept_bytes(const struct sl_choice *ch)
{
    return ch->text.n_bytes + ch->token_ids.n_bytes + ch->tokens.n_bytes + ch->values.n_bytes +
           ch->tops.n_bytes + ch->offsets.n_bytes + sl_answer_bytes(ch->answer);
}

/* Of a stream with an interval: what there is waits for more, but for the first tokens and the
 * last. *chunk becomes all that has waited. */
static bool hold(const struct sl_call *call, struct sl_choice *choice, struct sl_chunk *chunk,
                 bool first)
{
    size_t n_held = choice->held_tokens.n_bytes / sizeof *chunk->tokens;
    if ((first || call->stream_interval <= 1) && n_held == 0)
        return false;
    sl_buf_put(&choice->held, chunk->text, chunk->n_text);
    sl_buf_put(&choice->held_tokens, chunk->tokens, chunk->n_tokens * sizeof *chunk->tokens);
    chunk->text = choice->held.data;
    chunk->n_text = choice->held.n_bytes;
    chunk->tokens = (const struct sl_token *)(const void *)choice->held_tokens.data;
    chunk->n_tokens = choice->held_tokens.n_bytes / sizeof *chunk->tokens;
    return chunk->finish == SL_RUNNING && chunk->n_tokens < (size_t)call->stream_interval;
}

static void stream_chunk(struct sl_call *call, struct sl_prompt *prompt, struct sl_choice *choice,
                         const struct sl_chunk *chunk)
{
    struct sl_conn *c = call->conn;
    if (!c->streaming)
        sl_reply_stream(c, call->api->ndjson ? SL_NDJSON : SL_EVENT_STREAM);
    struct sl_buf *out = sl_conn_stream_buf(c);
    size_t before = sl_answer_bytes(choice->answer);
    out->failed |= !sl_buf_ok(&choice->held) || !sl_buf_ok(&choice->held_tokens);
    call->api->put_events(out, call, prompt, choice, chunk);
    call->n_kept += sl_answer_bytes(choice->answer) - before;
    sl_buf_clear(&choice->held);
    sl_buf_clear(&choice->held_tokens);
}

static void take_chunk(struct sl_call *call, struct sl_prompt *prompt, struct sl_chunk *chunk)
{
    struct sl_choice *choice = &call->choices[prompt->idx * call->n + chunk->seq_idx];
    if (call->drop_output) {
        chunk->n_text = chunk->n_tokens = 0;
        if (chunk->finish == SL_FINISH_STOP)
            chunk->finish = SL_FINISH_LENGTH;
    }
    if (chunk->finish != SL_RUNNING)
        choice->finish = chunk->finish;
    for (size_t i = 0; i < chunk->n_tokens; i++)
        choice->sum_logprob += (double)chunk->tokens[i].logprob;
    bool first = choice->n_output == 0;
    choice->n_output += chunk->n_tokens;
    if (call->stream) {
        if (!hold(call, choice, chunk, first))
            stream_chunk(call, prompt, choice, chunk);
        return;
    }
    if (chunk->finish != SL_RUNNING) {
        choice->stop_token_id = chunk->stop_token_id;
        if (chunk->stop_str != NULL)
            sl_buf_puts(&choice->stop_str, chunk->stop_str);
    }
    if (call->api->pooling)
        return;
    size_t before = kept_bytes(choice);
    call->api->collect(call, prompt, choice, chunk);
    call->n_kept += kept_bytes(choice) - before;
}

/* A whole reply grows here until its end: alone and with all others it has a bound. */
static int check_kept(struct sl_call *call, size_t n_before, struct sl_error *err)
{
    if (call->n_kept > SL_MAX_REPLY_BYTES)
        return sl_fail(err, SL_ELIMIT, "the reply is larger than %u bytes: use stream",
                       SL_MAX_REPLY_BYTES);
    if (call->n_kept / KEPT_STEP != n_before / KEPT_STEP && sl_conn_over_memory(call->conn))
        return sl_fail(err, SL_ENOMEM, "too many large replies at once: use stream");
    return 0;
}

/* An answer that asks for a tool is not the last one of its conversation. */
static void tell_calls(const struct sl_call *call, const struct sl_prompt *prompt)
{
    for (int32_t k = 0; k < call->n; k++) {
        const struct sl_choice *choice = &call->choices[prompt->idx * call->n + k];
        const uint64_t tool = sl_answer_tool(choice->answer);
        if (tool == 0 || choice->finish != SL_FINISH_STOP)
            continue;
        sl_request_calls(prompt->req, k, tool);
        return;
    }
}

void sl_call_news(struct sl_prompt *prompt)
{
    struct sl_call *call = prompt->call;
    struct sl_chunk chunk;
    if (prompt->done)
        return;
    for (;;) {
        if (call->stream && sl_conn_unsent(call->conn) >= SL_OUT_HIGH) {
            call->throttled = true;
            return;
        }
        if (sl_request_read(prompt->req, &chunk) != 1)
            break;
        if (chunk.finish == SL_FINISH_ERROR) {
            fail_call(call, sl_request_error(prompt->req));
            return;
        }
        struct sl_error err;
        size_t n_before = call->n_kept;
        take_chunk(call, prompt, &chunk);
        if (check_kept(call, n_before, &err) != 0) {
            fail_call(call, &err);
            return;
        }
    }
    if (!sl_request_done(prompt->req))
        return;
    tell_calls(call, prompt);
    prompt->done = true;
    if (++call->n_done == call->n_prompts)
        finish_call(call);
}

void sl_call_resume(struct sl_call *call)
{
    struct sl_conn *c = call->conn;
    if (!call->throttled)
        return;
    call->throttled = false;
    for (int32_t i = 0; c->call == call && i < call->n_prompts && !call->throttled; i++)
        sl_call_news(&call->prompts[i]);
}

void sl_call_ping(struct sl_call *call)
{
    if (!call->stream || call->api->ndjson)
        return;
    if (!call->conn->streaming)
        sl_reply_stream(call->conn, SL_EVENT_STREAM);
    struct sl_buf *b = sl_conn_stream_buf(call->conn);
    if (call->api->ping != NULL && call->choices[0].began)
        call->api->ping(b);
    else
        SL_PUT(b, ": keep-alive\n\n");
}
