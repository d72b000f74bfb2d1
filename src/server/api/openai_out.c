/* SPDX-License-Identifier: MIT */
#include "server/api/openai_out.h"

#include "base/check.h"
#include "server/api/answer.h"
#include "server/api/kv_transfer.h"
#include "server/http/reply.h"
#include "server/http/sse.h"

/* ---- pieces */

void sl_openai_put_usage(struct sl_buf *b, const struct sl_usage *u, int64_t n_thought)
{
    SL_PUT(b, "\"usage\":{\"prompt_tokens\":");
    sl_put_i64(b, u->n_prompt);
    SL_PUT(b, ",\"total_tokens\":");
    sl_put_i64(b, u->n_prompt + u->n_output);
    SL_PUT(b, ",\"completion_tokens\":");
    sl_put_i64(b, u->n_output);
    SL_PUT(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    sl_put_i64(b, u->n_cached);
    if (n_thought >= 0 || u->n_drafted > 0)
        SL_PUT(b, "},\"completion_tokens_details\":{");
    if (n_thought >= 0) {
        SL_PUT(b, "\"reasoning_tokens\":");
        sl_put_i64(b, n_thought);
    }
    if (u->n_drafted > 0) {
        sl_buf_puts(b, n_thought >= 0 ? "," : "");
        SL_PUT(b, "\"accepted_prediction_tokens\":");
        sl_put_i64(b, u->n_accepted);
        SL_PUT(b, ",\"rejected_prediction_tokens\":");
        sl_put_i64(b, u->n_drafted - u->n_accepted);
    }
    SL_PUT(b, "}}");
}

/* Over the choices of a prompt; -1: none tells. */
static int64_t n_thought(const struct sl_call *call, int32_t prompt_idx)
{
    int64_t sum = -1;
    for (int32_t i = 0; i < call->n; i++) {
        int64_t n = sl_answer_n_thought(call->choices[prompt_idx * call->n + i].answer);
        sum = n < 0 ? sum : SL_MAX(sum, 0) + n;
    }
    return sum;
}

static void put_usage_of(struct sl_buf *b, struct sl_call *call)
{
    struct sl_usage u;
    sl_call_usage(call, &u);
    sl_openai_put_usage(b, &u, n_thought(call, 0));
}

/* llama.cpp's: how many tokens were computed, how long that took, what became of drafts. */
static void put_timings(struct sl_buf *b, struct sl_call *call)
{
    struct sl_usage u;
    sl_call_usage(call, &u);
    const struct {
        const char *name;
        int32_t n;
        uint64_t from_ns, to_ns;
    } parts[] = {{"prompt", u.n_prompt - u.n_cached, u.t_scheduled_ns, u.t_first_ns},
                 {"predicted", u.n_output, u.t_first_ns, u.t_last_ns}};
    SL_PUT(b, ",\"timings\":{\"cache_n\":");
    sl_put_i64(b, u.n_cached);
    for (size_t i = 0; i < SL_COUNT(parts); i++) {
        const char *name = parts[i].name;
        uint64_t from = parts[i].from_ns, to = parts[i].to_ns;
        double ms = to > from ? (double)(to - from) * 1e-6 : 0, n = parts[i].n;
        sl_buf_printf(b, ",\"%s_n\":%d,\"%s_ms\":%.3f", name, parts[i].n, name, ms);
        sl_buf_printf(b, ",\"%s_per_token_ms\":%.6f", name, n > 0 ? ms / n : 0);
        sl_buf_printf(b, ",\"%s_per_second\":%.3f", name, ms > 0 ? n * 1e3 / ms : 0);
    }
    if (u.n_drafted > 0)
        sl_buf_printf(b, ",\"draft_n\":%d,\"draft_n_accepted\":%d", u.n_drafted, u.n_accepted);
    sl_buf_putc(b, '}');
}

void sl_openai_put_finish(struct sl_buf *b, enum sl_finish finish, bool calls,
                          int32_t stop_token_id, const char *stop_str, size_t n_stop_str)
{
    static const char *const names[] = {[SL_RUNNING] = "null",
                                        [SL_FINISH_STOP] = "\"stop\"",
                                        [SL_FINISH_LENGTH] = "\"length\"",
                                        [SL_FINISH_ABORT] = "\"abort\"",
                                        [SL_FINISH_ERROR] = "\"error\"",
                                        [SL_FINISH_CACHE] = "\"cache_threshold\""};
    SL_PUT(b, "\"finish_reason\":");
    sl_buf_puts(b, calls && finish == SL_FINISH_STOP ? "\"tool_calls\"" : names[finish]);
    if (finish == SL_RUNNING)
        return;
    SL_PUT(b, ",\"stop_reason\":");
    if (n_stop_str > 0)
        sl_buf_json_string(b, stop_str, n_stop_str);
    else if (stop_token_id >= 0)
        sl_put_i64(b, stop_token_id);
    else
        SL_PUT(b, "null");
}

void sl_openai_event_begin(struct sl_buf *b, const struct sl_call *call)
{
    sl_buf_put(b, call->event_head.data, call->event_head.n_bytes);
}

void sl_openai_event_end(struct sl_buf *b, struct sl_call *call, const struct sl_prompt *prompt,
                         enum sl_finish finish)
{
    bool timings =
        prompt != NULL && (call->timings_per_token || (call->timings && finish != SL_RUNNING));
    sl_buf_putc(b, ']');
    if (call->continuous_usage && prompt != NULL) {
        struct sl_usage u;
        sl_request_usage(prompt->req, &u);
        u.n_output = call->drop_output ? 0 : u.n_output;
        sl_buf_putc(b, ',');
        sl_openai_put_usage(b, &u, n_thought(call, prompt->idx));
    }
    if (timings)
        put_timings(b, call);
    SL_PUT(b, "}\n\n");
}

/* ---- streams */

void sl_openai_event_head(struct sl_call *call)
{
    struct sl_buf *b = &call->event_head;
    SL_PUT(b, "data: {\"id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"object\":\"");
    sl_buf_puts(b, call->api->event_object);
    SL_PUT(b, "\",\"created\":");
    sl_put_i64(b, call->created_s);
    SL_PUT(b, ",\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    SL_PUT(b, ",\"choices\":[");
}

/* ---- ends */

void sl_openai_end_stream(struct sl_buf *b, struct sl_call *call)
{
    if (call->include_usage) {
        sl_openai_event_begin(b, call);
        SL_PUT(b, "],");
        put_usage_of(b, call);
        if (call->timings)
            put_timings(b, call);
        SL_PUT(b, "}\n\n");
    }
    SL_PUT(b, "data: [DONE]\n\n");
}

/* The choice with the largest mean log probability that is not shown yet. */
static struct sl_choice *best_left(const struct sl_call *call, int32_t prompt_idx)
{
    struct sl_choice *best = NULL;
    double most = 0;
    for (int32_t i = 0; i < call->n; i++) {
        struct sl_choice *ch = &call->choices[prompt_idx * call->n + i];
        double mean = ch->sum_logprob / (double)SL_MAX(ch->n_output, 1);
        if (!ch->shown && (best == NULL || mean > most)) {
            best = ch;
            most = mean;
        }
    }
    return best;
}

static void put_choices(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt)
{
    int32_t n = call->n_best > 0 ? call->n_best : call->n;
    for (int32_t i = 0; i < n; i++) {
        struct sl_choice *ch = call->n_best > 0 ? best_left(call, prompt->idx)
                                                : &call->choices[prompt->idx * call->n + i];
        SL_ASSERT(ch != NULL);
        ch->shown = true;
        ch->idx = prompt->idx * n + i;
        if (ch->idx > 0)
            sl_buf_putc(b, ',');
        call->api->put_choice(b, call, prompt, ch);
    }
}

void sl_openai_put_whole(struct sl_buf *b, struct sl_call *call)
{
    SL_PUT(b, "{\"id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"object\":\"");
    sl_buf_puts(b, call->api->object);
    SL_PUT(b, "\",\"created\":");
    sl_put_i64(b, call->created_s);
    SL_PUT(b, ",\"model\":");
    sl_buf_json_string(b, call->model, strlen(call->model));
    SL_PUT(b, ",\"system_fingerprint\":\"sluice-" SLUICE_VERSION "\",\"choices\":[");
    for (int32_t i = 0; i < call->n_prompts; i++)
        put_choices(b, call, &call->prompts[i]);
    SL_PUT(b, "],");
    put_usage_of(b, call);
    if (call->timings)
        put_timings(b, call);
    if (call->api->put_tail != NULL)
        call->api->put_tail(b, call);
    sl_transfers_put(b, call);
    sl_buf_putc(b, '}');
}

void sl_openai_fail_stream(struct sl_buf *b, struct sl_call *call, const struct sl_refusal *r)
{
    (void)call;
    SL_PUT(b, "data: ");
    sl_reply_error_json(b, r, sl_code_http(r->err.code), SL_PROTOCOL_OPENAI);
    SL_PUT(b, "\n\ndata: [DONE]\n\n");
}
