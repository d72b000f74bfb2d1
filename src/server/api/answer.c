/* SPDX-License-Identifier: MIT */
#include "server/api/answer.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"

#include <string.h>

struct sl_answer {
    struct sl_output *parser; /* NULL: the text is one part as it is */
    struct sl_call *call;
    struct sl_choice *choice;
    const char *tools_format;
    json_t *tools;     /* a reference: the parser looks types up */
    json_t *free_form; /* likewise: names of tools that take text */
    uint64_t id_seed, tool;
    bool has_reasoning, show_reasoning, one_call, keep, failed;
    bool dropped; /* the call that is coming in is one too many */
    int32_t n_calls, n_begun;
    struct sl_part *parts; /* kept, or the last one alone */
    int32_t n_parts, cap_parts;
    size_t n_bytes;     /* of kept parts */
    struct sl_buf ends; /* size_t: where tokens end whose text is to come, from n_pushed on */
    uint64_t n_pushed;  /* bytes of text */
    int64_t n_thought;
    struct sl_buf *stream; /* during a push */
};

static void deinit_part(struct sl_part *part)
{
    sl_buf_deinit(&part->id);
    sl_buf_deinit(&part->name);
    sl_buf_deinit(&part->text);
    sl_buf_deinit(&part->extra);
}

/* ---- parts */

static struct sl_part *open_part(struct sl_answer *a)
{
    struct sl_part *last = a->n_parts > 0 ? &a->parts[a->n_parts - 1] : NULL;
    return last != NULL && !last->ended ? last : NULL;
}

static void end_part(struct sl_answer *a, bool last)
{
    const struct sl_call_api *api = a->call->api;
    struct sl_part *part = open_part(a);
    if (part == NULL)
        return;
    part->ended = true;
    part->last = last;
    if (a->stream != NULL && api->part_end != NULL)
        api->part_end(a->stream, a->call, a->choice, part);
}

static struct sl_part *answer_new_part(struct sl_answer *a)
{
    if (!a->keep && a->n_parts > 0) {
        deinit_part(&a->parts[0]);
        a->n_parts = 0;
    }
    if (a->n_parts == a->cap_parts) {
        int32_t cap = a->cap_parts > 0 ? a->cap_parts * 2 : 2;
        struct sl_part *parts = sl_realloc(a->parts, (size_t)cap * sizeof *parts);
        if (parts == NULL) {
            a->failed = true;
            return NULL;
        }
        a->parts = parts;
        a->cap_parts = cap;
    }
    struct sl_part *part = &a->parts[a->n_parts++];
    *part = (struct sl_part){.idx = a->n_begun++};
    a->n_bytes += a->keep ? sizeof *part : 0;
    return part;
}

static struct sl_part *begin_part(struct sl_answer *a, enum sl_part_kind kind,
                                  const struct sl_output_event *e)
{
    const struct sl_call_api *api = a->call->api;
    end_part(a, false);
    struct sl_part *part = answer_new_part(a);
    if (part == NULL)
        return NULL;
    part->kind = kind;
    if (kind == SL_PART_CALL) {
        char made[SL_OUTPUT_ID_BYTES];
        const char *id = e->id;
        part->call_idx = a->n_calls++;
        if (part->call_idx == 0)
            a->tool = SL_MAX(sl_hash64(e->text, e->n_text, 0), 1);
        if (e->n_id == 0) {
            sl_output_make_id(a->tools_format, a->id_seed + (uint64_t)part->call_idx, made);
            id = made;
        }
        sl_buf_puts(&part->id, id);
        sl_buf_put(&part->name, e->text, e->n_text);
        part->free_form = json_object_getn(a->free_form, e->text, e->n_text) != NULL;
        a->failed |= !sl_buf_ok(&part->id) || !sl_buf_ok(&part->name);
        a->n_bytes += a->keep ? part->id.n_bytes + part->name.n_bytes : 0;
    }
    if (a->stream != NULL && api->part_begin != NULL)
        api->part_begin(a->stream, a->call, a->choice, part);
    return part;
}

static void answer_add_text(struct sl_answer *a, struct sl_part *part, const char *text, size_t n)
{
    if (part == NULL || n == 0)
        return;
    SL_ASSERT(!part->ended);
    if (a->keep) {
        sl_buf_put(&part->text, text, n);
        a->failed |= !sl_buf_ok(&part->text);
        a->n_bytes += n;
    }
    if (a->call->api->part_grows != NULL) {
        size_t before = part->extra.n_bytes;
        a->call->api->part_grows(a->call, part);
        a->failed |= !sl_buf_ok(&part->extra);
        a->n_bytes += part->extra.n_bytes - before;
    }
    if (a->stream != NULL)
        a->call->api->part_text(a->stream, a->call, a->choice, part, text, n);
}

static void prose(struct sl_answer *a, enum sl_part_kind kind, const char *text, size_t n)
{
    struct sl_part *part = open_part(a);
    if (n == 0)
        return;
    if (part == NULL || part->kind != kind)
        part = begin_part(a, kind, NULL);
    answer_add_text(a, part, text, n);
}

static void call_event(struct sl_answer *a, const struct sl_output_event *e)
{
    bool begin = e->kind == SL_OUTPUT_CALL_BEGIN;
    if (begin)
        a->dropped = a->one_call && a->n_calls > 0;
    if (a->dropped)
        return;
    if (begin) {
        (void)begin_part(a, SL_PART_CALL, e);
        return;
    }
    struct sl_part *part = open_part(a);
    if (part == NULL) /* memory for it was not to be had */
        return;
    if (e->kind == SL_OUTPUT_CALL_ARGS) {
        answer_add_text(a, part, e->text, e->n_text);
    } else {
        part->whole = e->whole;
        end_part(a, false);
    }
}

static void on_event(void *arg, const struct sl_output_event *e)
{
    struct sl_answer *a = arg;
    switch (e->kind) {
    case SL_OUTPUT_REASONING:
        if (a->show_reasoning)
            prose(a, SL_PART_REASONING, e->text, e->n_text);
        return;
    case SL_OUTPUT_CONTENT:
        prose(a, SL_PART_TEXT, e->text, e->n_text);
        return;
    case SL_OUTPUT_CALL_BEGIN:
    case SL_OUTPUT_CALL_ARGS:
    case SL_OUTPUT_CALL_END:
        call_event(a, e);
    }
}

/* Text may come later than its tokens, when it could be the beginning of a stop string. */
static int answer_parse(struct sl_answer *a, const struct sl_chunk *chunk)
{
    size_t n = chunk->n_text, n_here = 0;
    for (size_t i = 0; i < chunk->n_tokens; i++) {
        SL_ASSERT(chunk->tokens[i].text_end >= a->n_pushed);
        size_t end = (size_t)(chunk->tokens[i].text_end - a->n_pushed);
        sl_buf_put(&a->ends, &end, sizeof end);
    }
    if (!sl_buf_ok(&a->ends))
        return SL_ENOMEM;
    size_t *ends = (size_t *)(void *)a->ends.data, n_ends = a->ends.n_bytes / sizeof *ends;
    while (n_here < n_ends && (ends[n_here] <= n || chunk->finish != SL_RUNNING))
        n_here++;
    for (size_t i = 0; i < n_here; i++) /* behind the end of the text: a stop string's */
        ends[i] = SL_MIN(ends[i], n);
    int rc = sl_output_push_tokens(a->parser, chunk->text, n, ends, n_here, &a->n_thought);
    for (size_t i = n_here; i < n_ends; i++)
        ends[i - n_here] = ends[i] - n;
    a->ends.n_bytes = (n_ends - n_here) * sizeof *ends;
    a->n_pushed += n;
    return rc;
}

void sl_answer_push(struct sl_answer *a, struct sl_buf *b, const struct sl_chunk *chunk)
{
    int rc = 0;
    a->stream = b;
    if (a->parser == NULL)
        prose(a, SL_PART_TEXT, chunk->text, chunk->n_text);
    else
        rc = answer_parse(a, chunk);
    if (chunk->finish != SL_RUNNING) {
        if (rc == 0 && a->parser != NULL)
            rc = sl_output_finish(a->parser);
        end_part(a, true);
    }
    a->failed |= rc != 0;
    if (b != NULL)
        b->failed |= a->failed;
    a->stream = NULL;
}

int64_t sl_answer_n_thought(const struct sl_answer *a)
{
    return a != NULL && a->has_reasoning ? a->n_thought : -1;
}

bool sl_answer_ok(const struct sl_answer *a)
{
    return !a->failed;
}

bool sl_answer_in_text(const struct sl_answer *a)
{
    const struct sl_part *last = a->n_parts > 0 ? &a->parts[a->n_parts - 1] : NULL;
    return (last != NULL && !last->ended && last->kind == SL_PART_TEXT) ||
           (a->parser != NULL && sl_output_holds_content(a->parser));
}

uint64_t sl_answer_tool(const struct sl_answer *a)
{
    return a != NULL ? a->tool : 0;
}

bool sl_answer_has_calls(const struct sl_answer *a)
{
    return a != NULL && a->n_calls > 0;
}

size_t sl_answer_bytes(const struct sl_answer *a)
{
    return a == NULL ? 0 : a->n_bytes;
}

int32_t sl_answer_n_parts(const struct sl_answer *a)
{
    return a->keep ? a->n_parts : 0;
}

const struct sl_part *sl_answer_part(const struct sl_answer *a, int32_t i)
{
    SL_ASSERT(a->keep && i >= 0 && i < a->n_parts);
    return &a->parts[i];
}

/* ---- life */

int sl_answer_create(struct sl_call *call, struct sl_choice *choice, const struct sl_params *p,
                     bool keep, struct sl_answer **out, struct sl_error *err)
{
    const char *reasoning = p->formats != NULL ? p->formats->reasoning : NULL;
    struct sl_answer *a = sl_calloc(1, sizeof *a);
    *out = NULL;
    if (a == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    if (p->tools_format != NULL || reasoning != NULL) {
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
    }
    a->call = call;
    a->choice = choice;
    a->keep = keep || p->free_form != NULL; /* a text is sent when it is whole */
    a->free_form = json_incref(p->free_form);
    a->tools_format = p->tools_format;
    a->has_reasoning = reasoning != NULL;
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
    json_decref(a->free_form);
    for (int32_t i = 0; i < a->n_parts; i++)
        deinit_part(&a->parts[i]);
    sl_free(a->parts);
    sl_buf_deinit(&a->ends);
    sl_free(a);
}
