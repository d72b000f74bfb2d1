/* SPDX-License-Identifier: MIT */
#include "server/answer.h"

#include "base/hash.h"
#include "base/sys.h"
#include "server/sse.h"

#include <string.h>

struct sl_answer {
    struct sl_output *parser;
    struct sl_call *call;
    int32_t choice_idx;
    const char *tools_format;
    json_t *tools; /* a reference: the parser looks types up */
    uint64_t id_seed;
    bool show_reasoning, one_call;
    bool dropped; /* the call that is coming in is one too many */
    int32_t n_calls;
    /* streams, during a push */
    struct sl_buf *stream;
    bool open; /* an event is begun */
    /* whole replies */
    struct sl_buf content, reasoning, calls;
};

/* ---- deltas */

static void end_delta(struct sl_answer *a)
{
    if (!a->open)
        return;
    SL_PUT(a->stream, "\"logprobs\":null,\"finish_reason\":null}");
    sl_call_event_end(a->stream, a->call, NULL);
    a->open = false;
}

static void begin_event(struct sl_answer *a, struct sl_buf *b)
{
    sl_call_event_begin(b, a->call);
    SL_PUT(b, "{\"index\":");
    sl_put_i64(b, a->choice_idx);
    SL_PUT(b, ",\"delta\":{");
}

void sl_answer_begin_delta(struct sl_answer *a, struct sl_buf *b)
{
    begin_event(a, b);
    SL_PUT(b, "},");
}

static void text_delta(struct sl_answer *a, const struct sl_output_event *e)
{
    struct sl_buf *b = a->stream;
    begin_event(a, b);
    if (e->kind == SL_OUTPUT_REASONING) { /* the name vLLM has now, and the one it had */
        SL_PUT(b, "\"reasoning\":\"");
        sl_buf_json_escape(b, e->text, e->n_text);
        SL_PUT(b, "\",\"reasoning_content\":\"");
    } else {
        SL_PUT(b, "\"content\":\"");
    }
    sl_buf_json_escape(b, e->text, e->n_text);
    SL_PUT(b, "\"},");
}

/* "id":...,"type":"function","function":{"name":...,"arguments":" */
static void put_call_head(struct sl_answer *a, struct sl_buf *b, const struct sl_output_event *e)
{
    char made[SL_OUTPUT_ID_BYTES];
    const char *id = e->id;
    size_t n = e->n_id;
    if (n == 0) {
        sl_output_make_id(a->tools_format, a->id_seed + (uint64_t)a->n_calls, made);
        id = made;
        n = strlen(made);
    }
    SL_PUT(b, "\"id\":");
    sl_buf_json_string(b, id, n);
    SL_PUT(b, ",\"type\":\"function\",\"function\":{\"name\":");
    sl_buf_json_string(b, e->text, e->n_text);
    SL_PUT(b, ",\"arguments\":\"");
}

static void call_delta(struct sl_answer *a, const struct sl_output_event *e)
{
    struct sl_buf *b = a->stream;
    bool head = e->kind == SL_OUTPUT_CALL_BEGIN;
    begin_event(a, b);
    SL_PUT(b, "\"tool_calls\":[{\"index\":");
    sl_put_i64(b, head ? a->n_calls : a->n_calls - 1);
    sl_buf_putc(b, ',');
    if (head) {
        put_call_head(a, b, e);
    } else {
        SL_PUT(b, "\"function\":{\"arguments\":\"");
        sl_buf_json_escape(b, e->text, e->n_text);
    }
    SL_PUT(b, "\"}}]},");
}

/* ---- events of the parser */

static void stream_event(struct sl_answer *a, const struct sl_output_event *e)
{
    if (e->kind == SL_OUTPUT_CALL_END)
        return;
    end_delta(a);
    if (e->kind == SL_OUTPUT_REASONING || e->kind == SL_OUTPUT_CONTENT)
        text_delta(a, e);
    else
        call_delta(a, e);
    a->open = true;
}

static void gather_event(struct sl_answer *a, const struct sl_output_event *e)
{
    struct sl_buf *calls = &a->calls;
    switch (e->kind) {
    case SL_OUTPUT_REASONING:
        sl_buf_put(&a->reasoning, e->text, e->n_text);
        return;
    case SL_OUTPUT_CONTENT:
        sl_buf_put(&a->content, e->text, e->n_text);
        return;
    case SL_OUTPUT_CALL_BEGIN:
        if (a->n_calls > 0)
            sl_buf_putc(calls, ',');
        sl_buf_putc(calls, '{');
        put_call_head(a, calls, e);
        return;
    case SL_OUTPUT_CALL_ARGS:
        sl_buf_json_escape(calls, e->text, e->n_text);
        return;
    case SL_OUTPUT_CALL_END:
        SL_PUT(calls, "\"}}");
    }
}

static void on_event(void *arg, const struct sl_output_event *e)
{
    struct sl_answer *a = arg;
    bool begin = e->kind == SL_OUTPUT_CALL_BEGIN;
    bool of_call = begin || e->kind == SL_OUTPUT_CALL_ARGS || e->kind == SL_OUTPUT_CALL_END;
    if (e->kind == SL_OUTPUT_REASONING && !a->show_reasoning)
        return;
    if (begin)
        a->dropped = a->one_call && a->n_calls > 0;
    if (of_call && a->dropped)
        return;
    if (a->stream != NULL)
        stream_event(a, e);
    else
        gather_event(a, e);
    a->n_calls += begin;
}

bool sl_answer_push(struct sl_answer *a, struct sl_buf *b, const struct sl_chunk *chunk)
{
    a->stream = b;
    a->open = false;
    int rc = sl_output_push(a->parser, chunk->text, chunk->n_text);
    if (rc == 0 && chunk->finish != SL_RUNNING)
        rc = sl_output_finish(a->parser);
    if (rc != 0)
        (b != NULL ? b : &a->content)->failed = true;
    a->stream = NULL;
    return a->open;
}

/* ---- messages */

static void put_text(struct sl_buf *b, const struct sl_buf *text, bool null_if_empty)
{
    if (text->n_bytes == 0 && null_if_empty) {
        SL_PUT(b, "null");
        return;
    }
    sl_buf_putc(b, '"');
    sl_buf_json_escape(b, text->data, text->n_bytes);
    sl_buf_putc(b, '"');
}

void sl_answer_put_message(struct sl_answer *a, struct sl_buf *b)
{
    SL_PUT(b, "\"content\":");
    put_text(b, &a->content, a->n_calls > 0 || a->reasoning.n_bytes > 0);
    SL_PUT(b, ",\"refusal\":null");
    if (a->n_calls > 0) {
        SL_PUT(b, ",\"tool_calls\":[");
        sl_buf_put(b, a->calls.data, a->calls.n_bytes);
        sl_buf_putc(b, ']');
    }
    if (a->reasoning.n_bytes > 0) {
        SL_PUT(b, ",\"reasoning\":");
        put_text(b, &a->reasoning, true);
        SL_PUT(b, ",\"reasoning_content\":");
        put_text(b, &a->reasoning, true);
    }
    if (!sl_buf_ok(&a->content) || !sl_buf_ok(&a->reasoning) || !sl_buf_ok(&a->calls))
        b->failed = true; /* the loss must show: it becomes a 503 */
}

bool sl_answer_has_calls(const struct sl_answer *a)
{
    return a != NULL && a->n_calls > 0;
}

size_t sl_answer_bytes(const struct sl_answer *a)
{
    return a == NULL ? 0 : a->content.n_bytes + a->reasoning.n_bytes + a->calls.n_bytes;
}

/* ---- life */

int sl_answer_create(struct sl_call *call, const struct sl_choice *choice,
                     const struct sl_params *p, struct sl_answer **out, struct sl_error *err)
{
    const char *reasoning = p->formats != NULL ? p->formats->reasoning : NULL;
    *out = NULL;
    if (p->tools_format == NULL && reasoning == NULL)
        return 0;
    struct sl_answer *a = sl_calloc(1, sizeof *a);
    if (a == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    struct sl_output_options o = {.tools_format = p->tools_format,
                                  .reasoning_format = reasoning,
                                  .tools = p->tools,
                                  .start = p->start,
                                  .fn = on_event,
                                  .arg = a};
    int rc = sl_output_create(&o, &a->parser, err);
    if (rc != 0) {
        sl_free(a);
        return rc;
    }
    a->tools = json_incref((json_t *)(uintptr_t)p->tools);
    a->call = call;
    a->choice_idx = choice->idx;
    a->tools_format = p->tools_format;
    struct sl_loop *loop = call->conn->loop; /* not the call's id: clients may repeat theirs */
    a->id_seed = sl_mix64(loop->id_seed[0] ^ sl_mix64(atomic_fetch_add(&loop->server->next_id, 1)));
    a->show_reasoning = p->include_reasoning;
    a->one_call = !p->parallel_tool_calls;
    *out = a;
    return 0;
}

void sl_answer_destroy(struct sl_answer *a)
{
    if (a == NULL)
        return;
    sl_output_destroy(a->parser);
    json_decref(a->tools);
    sl_buf_deinit(&a->content);
    sl_buf_deinit(&a->reasoning);
    sl_buf_deinit(&a->calls);
    sl_free(a);
}
