/* SPDX-License-Identifier: MIT
 * output_parse.c - the public calls; events; the hold, and giving it back.
 *
 * Bytes that were given back are looked at again for markers from a queue (replay), in front of
 * what the caller brings.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/output/output.h"

#include <string.h>

/* ---------------------------------------------------------------- events */

static void report(struct sl_output *p, struct sl_output_event ev)
{
    SL_ASSERT(p->begun || ev.kind == SL_OUTPUT_REASONING || ev.kind == SL_OUTPUT_CONTENT);
    ev.text = ev.text != NULL ? ev.text : "";
    ev.id = ev.id != NULL ? ev.id : "";
    ev.index = p->n_calls;
    p->opt.fn(p->opt.arg, &ev);
}

static void flush(struct sl_output *p)
{
    if (!sl_buf_ok(&p->out))
        p->no_memory = true;
    else if (p->out.n_bytes > 0)
        report(p, (struct sl_output_event){
                      .kind = p->out_kind, .text = p->out.data, .n_text = p->out.n_bytes});
    sl_buf_clear(&p->out);
}

/* Bytes of one kind are gathered until the call that brought them returns. */
void out_emit(struct sl_output *p, enum sl_output_kind kind, const char *s, size_t n)
{
    if (n == 0)
        return;
    SL_ASSERT(kind != SL_OUTPUT_CALL_ARGS || p->begun);
    if (kind != p->out_kind)
        flush(p);
    p->out_kind = kind;
    sl_buf_put(&p->out, s, n);
}

void out_text_out(struct sl_output *p, const char *s, size_t n)
{
    if (p->after_marker) {
        while (n > 0 && out_is_space(*s))
            s++, n--;
    }
    if (n == 0)
        return;
    p->after_marker = p->fresh = p->closed = false;
    bool apart = p->thinking && !(p->reasoning->flags & OUT_AS_CONTENT);
    if (p->unopened)
        out_emit(p, SL_OUTPUT_CONTENT, p->reasoning->open, strlen(p->reasoning->open));
    p->unopened = false;
    out_emit(p, apart ? SL_OUTPUT_REASONING : SL_OUTPUT_CONTENT, s, n);
}

void out_args(struct sl_output *p, const char *s)
{
    out_emit(p, SL_OUTPUT_CALL_ARGS, s, strlen(s));
}

void out_args_byte(struct sl_output *p, char c)
{
    static const char hex[] = "0123456789abcdef";
    static const char from[] = "\"\\\n\t\r\b\f", to[] = "\"\\ntrbf";
    const char *at = c != '\0' ? strchr(from, c) : NULL;
    unsigned u = (unsigned char)c;
    if (at != NULL)
        out_emit(p, SL_OUTPUT_CALL_ARGS, (char[]){'\\', to[at - from]}, 2);
    else if (u < 0x20)
        out_emit(p, SL_OUTPUT_CALL_ARGS, (char[]){'\\', 'u', '0', '0', hex[u >> 4], hex[u & 15]},
                 6);
    else
        out_emit(p, SL_OUTPUT_CALL_ARGS, &c, 1);
}

static const json_t *member(const json_t *j, const char *key)
{
    return json_object_get(j, key);
}

/* The tool's schema; *known says whether the request has the tool at all. */
static const json_t *find_tool(const struct sl_output *p, bool *known)
{
    const json_t *tool;
    size_t i;
    *known = p->opt.tools == NULL;
    json_array_foreach(p->opt.tools, i, tool)
    {
        const json_t *fn = member(tool, "function") != NULL ? member(tool, "function") : tool;
        const json_t *name = member(fn, "name");
        if (json_string_length(name) == p->n_name &&
            memcmp(json_string_value(name), p->name, p->n_name) == 0) {
            *known = true;
            return member(fn, "parameters");
        }
    }
    return NULL;
}

bool sl_output_good_name(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] <= ' ' || strchr("\"\\<>{}[]()", name[i]) != NULL)
            return false;
    return n > 0 && n <= OUT_FIELD;
}

/* Without a marker, a call is only what calls a tool that there is: JSON may be the answer. */
bool out_begin(struct sl_output *p)
{
    bool known;
    SL_ASSERT(!p->begun && p->pair != NULL && p->tools != NULL);
    const json_t *schema = find_tool(p, &known);
    if (!sl_output_good_name(p->name, p->n_name) || (!known && p->pair->open[0] == '\0')) {
        out_fail(p);
        return false;
    }
    p->schema = schema;
    flush(p);
    p->begun = true;
    p->whole = false;
    p->thinking = p->closed = false;
    p->sent_id = p->n_id > 0;
    report(p, (struct sl_output_event){.kind = SL_OUTPUT_CALL_BEGIN,
                                       .text = p->name,
                                       .n_text = p->n_name,
                                       .id = p->id,
                                       .n_id = p->n_id});
    return true;
}

void out_end(struct sl_output *p, bool whole)
{
    struct sl_output_event ev = {.kind = SL_OUTPUT_CALL_END, .whole = whole};
    SL_ASSERT(p->begun);
    flush(p);
    if (!p->sent_id && p->n_id > 0)
        ev.id = p->id, ev.n_id = p->n_id;
    report(p, ev);
    p->begun = false;
    p->n_calls++;
    p->n_section++;
}

/* ---------------------------------------------------------------- the hold */

void out_commit(struct sl_output *p)
{
    sl_buf_clear(&p->hold);
    p->n_mark = 0;
}

void out_hold_shift(struct sl_output *p, size_t n)
{
    SL_ASSERT(n <= p->hold.n_bytes);
    p->hold.n_bytes -= n;
    memmove(p->hold.data, p->hold.data + n, p->hold.n_bytes);
}

/* Queues s in front of what is queued already. */
static void replay(struct sl_output *p, const char *s, size_t n)
{
    struct sl_buf *b = &p->replay;
    SL_ASSERT(p->replay_at <= b->n_bytes);
    if (n <= p->replay_at) {
        p->replay_at -= n;
        memcpy(b->data + p->replay_at, s, n);
        return;
    }
    size_t rest = b->n_bytes - p->replay_at;
    if (!sl_buf_reserve(b, n)) {
        p->no_memory = true;
        return;
    }
    memmove(b->data + n, b->data + p->replay_at, rest);
    memcpy(b->data, s, n);
    b->n_bytes = n + rest;
    p->replay_at = 0;
}

/* What stands in the hold is no call. Its marker is text; a short rest may hold other markers, a
 * long one is text as well, or a hostile answer would be read again and again. */
void out_fail(struct sl_output *p)
{
    size_t n = p->hold.n_bytes, n_text = p->n_mark;
    SL_ASSERT(n_text <= n); /* a marker is shorter than what begins with it */
    if (p->begun)
        out_end(p, p->whole);
    if (n - n_text > OUT_RESCAN)
        n_text = n;
    p->state = out_text;
    p->pair = NULL;
    if (n_text > 0)
        out_text_out(p, p->hold.data, n_text);
    if (n > n_text)
        replay(p, p->hold.data + n_text, n - n_text);
    out_commit(p);
}

static void step(struct sl_output *p, char c)
{
    SL_ASSERT(p->hold.n_bytes <= OUT_HOLD);
    sl_buf_putc(&p->hold, c);
    if (!sl_buf_ok(&p->hold))
        p->no_memory = true;
    else if (p->hold.n_bytes > OUT_HOLD)
        out_fail(p);
    else
        p->state(p, c);
}

static void run_replay(struct sl_output *p)
{
    while (p->replay_at < p->replay.n_bytes && !p->no_memory)
        step(p, p->replay.data[p->replay_at++]);
    if (p->replay_at == p->replay.n_bytes) {
        sl_buf_clear(&p->replay);
        p->replay_at = 0;
    }
}

static int result(struct sl_output *p)
{
    if (!p->no_memory)
        flush(p);
    return p->no_memory ? SL_ENOMEM : 0;
}

int sl_output_push_tokens(struct sl_output *p, const char *text, size_t n, const size_t *ends,
                          size_t n_ends, int64_t *n_thought)
{
    size_t at = 0;
    for (; at < n_ends && ends[at] == 0; at++)
        *n_thought += p->thinking;
    for (size_t i = 0; i < n && !p->no_memory; i++) {
        bool before = p->thinking;
        step(p, text[i]);
        run_replay(p);
        for (; at < n_ends && ends[at] == i + 1; at++) { /* the first has the byte, others none */
            *n_thought += before || p->thinking;
            before = false;
        }
    }
    SL_ASSERT(at == n_ends || p->no_memory);
    return result(p);
}

int sl_output_push(struct sl_output *p, const char *text, size_t n)
{
    int64_t none = 0;
    return sl_output_push_tokens(p, text, n, NULL, 0, &none);
}

/* A marker that the end cut off behind a whole call is no text. */
int sl_output_finish(struct sl_output *p)
{
    p->finishing = true;
    if (p->begun && p->tools->body == OUT_PARAMS)
        out_params_finish(p);
    while (p->state != out_text && !p->no_memory) {
        if (out_unfinished_marker(p))
            out_commit(p);
        out_fail(p);
        run_replay(p);
    }
    if (!p->no_memory)
        out_text_flush(p);
    SL_ASSERT(p->no_memory || (p->hold.n_bytes == 0 && !p->begun && p->state == out_text));
    return result(p);
}

/* ---------------------------------------------------------------- reasoning from outside */

int sl_output_end_reasoning(struct sl_output *p)
{
    if (!p->thinking)
        return result(p);
    SL_ASSERT(!p->begun);       /* a call ends the block where it begins */
    if (p->state != out_text) { /* a call that has not begun is part of the block */
        p->n_mark = p->hold.n_bytes;
        out_fail(p);
    }
    out_text_flush(p);
    p->thinking = false;
    p->fresh = p->after_marker = p->closed = true;
    return result(p);
}

bool sl_output_in_reasoning(const struct sl_output *p)
{
    return p->thinking;
}

bool sl_output_holds_content(const struct sl_output *p)
{
    return p->hold.n_bytes > 0 && !p->thinking && !p->begun;
}

/* ---------------------------------------------------------------- life */

static void add_literal(struct sl_output *p, const char *text, enum out_literal_kind kind, int pair)
{
    if (text == NULL)
        return;
    SL_ASSERT(p->n_lits < OUT_LITERALS);
    p->lits[p->n_lits++] = (struct out_literal){text, strlen(text), kind, pair};
}

static void add_literals(struct sl_output *p)
{
    const struct out_reasoning *r = p->reasoning;
    const struct out_tools *t = p->tools;
    if (r != NULL) {
        add_literal(p, r->open, OUT_THINK_OPEN, 0);
        add_literal(p, r->close, OUT_THINK_CLOSE, 0);
        for (int i = 0; i < OUT_DROPS; i++)
            add_literal(p, r->drop[i], OUT_DROP, 0);
    }
    for (int i = 0; t != NULL && i < OUT_PAIRS; i++) {
        const char *open = t->pairs[i].open;
        if (open != NULL && open[0] == '\0')
            p->has_bare = true;
        else
            add_literal(p, open, OUT_CALL, i);
    }
}

/* The nearest of all formats' names, in out[OUT_FIELD]; false: none is near. */
static bool nearest(const char *name, const char *(*list)(size_t), char *out)
{
    char text[4096];
    const char *names[200];
    size_t n = 0, used = 0;
    for (size_t i = 0; list(i) != NULL; i++) {
        size_t len = strlen(list(i)) + 1;
        SL_ASSERT(used + len <= sizeof text);
        memcpy(text + used, list(i), len);
        for (char *s = text + used, *rest; s != NULL && n < SL_COUNT(names); s = rest) {
            names[n++] = s;
            rest = strchr(s, ' ');
            if (rest != NULL)
                *rest++ = '\0';
        }
        used += len;
    }
    const char *near = sl_nearest(name, names, n);
    if (near != NULL)
        memcpy(out, near, strlen(near) + 1);
    SL_ASSERT(near == NULL || strlen(near) < OUT_FIELD);
    return near != NULL;
}

static int unknown(const char *what, const char *name, const char *(*list)(size_t),
                   struct sl_error *err)
{
    char near[OUT_FIELD];
    if (nearest(name, list, near))
        return sl_fail(err, SL_EINVAL, "unknown %s parser \"%.100s\", did you mean \"%s\"?", what,
                       name, near);
    return sl_fail(err, SL_EINVAL, "unknown %s parser \"%.100s\"", what, name);
}

static bool is_named(const char *name)
{
    return name != NULL && name[0] != '\0' && strcmp(name, "none") != 0;
}

int sl_output_create(const struct sl_output_options *options, struct sl_output **out,
                     struct sl_error *err)
{
    const char *tools = options->tools_format, *reasoning = options->reasoning_format;
    const struct out_tools *t = is_named(tools) ? out_find_tools(tools) : NULL;
    const struct out_reasoning *r = is_named(reasoning) ? out_find_reasoning(reasoning) : NULL;
    if (is_named(tools) && t == NULL)
        return unknown("tool call", tools, sl_output_tools_names, err);
    if (is_named(reasoning) && r == NULL)
        return unknown("reasoning", reasoning, sl_output_reasoning_names, err);
    struct sl_output *p = sl_calloc(1, sizeof *p);
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "output parser");
    p->opt = *options;
    p->tools = t;
    p->reasoning = r;
    p->state = out_text;
    p->fresh = true;
    p->hold.max_bytes = OUT_HOLD + 1;
    *out = p;
    if ((t != NULL && t->body == OUT_HARMONY) || (r != NULL && (r->flags & OUT_CHANNELS))) {
        out_harmony_begin(p);
        return 0;
    }
    add_literals(p);
    bool inside = r != NULL && (r->flags & OUT_INSIDE);
    p->thinking = r != NULL && (options->start == SL_OUTPUT_START_REASONING ||
                                (options->start == SL_OUTPUT_START_AUTO && inside));
    p->unopened = p->thinking && (r->flags & OUT_AS_CONTENT);
    p->after_marker = r != NULL && options->start != SL_OUTPUT_START_AUTO;
    return 0;
}

void sl_output_destroy(struct sl_output *p)
{
    if (p == NULL)
        return;
    sl_buf_deinit(&p->hold);
    sl_buf_deinit(&p->replay);
    sl_buf_deinit(&p->out);
    sl_buf_deinit(&p->param.text);
    sl_free(p);
}
