/* SPDX-License-Identifier: MIT
 * sim_reply.h - what the server may answer, and when. Whatever arrives is taken apart strictly, and
 * a reply that is complete must be the oracle's.
 */
#ifndef SL_TESTS_SIM_REPLY_H
#define SL_TESTS_SIM_REPLY_H

#include "engine/sim_request.h"

#include <jansson.h>

/* ------------------------------------------------------------------ what may happen to a client */

/* Time in which a timer of the server may have struck. */
static bool was_slow(const struct world *w, const struct hclient *c)
{
    const struct config *g = &w->cfg;
    int32_t least = SL_MIN(SL_MIN(g->header_ms, g->body_ms), SL_MIN(g->idle_ms, g->write_ms));
    uint64_t waited = virtual_ns - (c->pipelined ? c->t_first_ns : c->t_last_ns);
    return c->saw_jump || waited + 50 * (uint64_t)TURN_NS >= (uint64_t)least * 1000000u;
}

static bool memory_failed(const struct world *w, const struct hclient *c)
{
    return w->n_alloc_faults > c->n_faults_before;
}

static bool may_be_cut(const struct world *w, const struct hclient *c)
{
    if (c->golden)
        return false;
    return was_slow(w, c) || memory_failed(w, c) || w->stop_sent || c->cut_excused ||
           c->quit != QUIT_NEVER || c->read_max < SLOW_BYTES || c->read_every > 1 ||
           w->cfg.sock_cap < SLOW_BYTES;
}

static bool may_be_refused(struct world *w, struct hclient *c, struct hreq *q, int status)
{
    bool works = q->kind == H_WHOLE || q->kind == H_STREAM || q->kind == H_NO_KEY;
    bool posts = works || q->kind == H_BAD_JSON || q->kind == H_BAD_FIELD;
    bool no_number = q->kind == H_NO_KEY ? w->cfg.nan_every > 0 : oracle_will_fail(w, &q->o);
    switch (status) {
    case 408:
        return was_slow(w, c) && !c->golden;
    case 413: /* any body may be beyond this limit */
        return posts && w->cfg.max_body < 1000;
    case 429:
        return (posts || q->kind == H_TOO_BIG) && w->cfg.max_queued < 100 && !c->golden;
    case 500:
        return works && (no_number || (c->golden ? w->dead : steps_may_fail(w)));
    case 503:
        if (w->cfg.max_conns < 100 || w->cfg.max_held < 2)
            return true; /* perhaps the server has not seen yet that the others left */
        if (c->golden)
            return false;
        return memory_failed(w, c) || w->stop_sent || has_act(w, ACT_STEP_NOMEM) ||
               has_act(w, ACT_HANG);
    default:
        return false;
    }
}

static int wanted_status(const struct world *w, const struct hreq *q)
{
    switch (q->kind) {
    case H_BAD_JSON:
    case H_BAD_FIELD:
    case H_BAD_HTTP:
        return 400;
    case H_NO_PATH:
        return 404;
    case H_BAD_METHOD:
        return 405;
    case H_TOO_BIG:
        return 413;
    case H_NO_KEY:
        return w->cfg.n_keys > 0 ? 401 : 200;
    default:
        return 200;
    }
}

/* ------------------------------------------------------------------ replies */

static enum sl_finish finish_named(const struct world *w, const char *name)
{
    static const char *const names[] = {"", "stop", "length", "abort", "error"};
    for (int i = 1; name != NULL && i < 5; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum sl_finish)i;
    if (name != NULL)
        violation(w, "finish_reason '%s'", name);
    return SL_RUNNING;
}

static void take_choice(struct world *w, struct hclient *c, struct hreq *q, const json_t *choice)
{
    json_int_t idx = json_integer_value(json_object_get(choice, "index"));
    const json_t *ids = json_object_get(choice, "token_ids"),
                 *text = json_object_get(choice, "text");
    float row[MAX_VOCAB];
    if (!json_is_integer(json_object_get(choice, "index")) || idx < 0 ||
        idx >= q->o.desc.sampling.n || !json_is_array(ids) || !json_is_string(text))
        violation(w, "a choice without index, text or token_ids");
    struct oracle_seq *s = &q->o.seqs[idx];
    for (size_t i = 0; i < json_array_size(ids); i++)
        oracle_take(w, &q->o, s, (int32_t)json_integer_value(json_array_get(ids, i)), row);
    take_text(w, s, json_string_value(text), json_string_length(text));
    enum sl_finish finish =
        finish_named(w, json_string_value(json_object_get(choice, "finish_reason")));
    if (finish == SL_RUNNING)
        return;
    if (finish == SL_FINISH_ABORT && w->cfg.request_ms == 0 && !w->stop_sent)
        violation(w, "I3: aborted, but nobody asked for it");
    if (finish == SL_FINISH_ABORT && c->golden && w->cfg.request_ms == 0)
        violation(w, "the last request is aborted");
    oracle_finish(w, &q->o, s, finish);
}

static json_t *parse(const struct world *w, const char *text, size_t n)
{
    json_error_t why;
    json_t *root = json_loadb(text, n, 0, &why);
    if (root == NULL)
        violation(w, "a reply that is no JSON: %s in '%.*s'", why.text, (int)SL_MIN(n, 200u), text);
    return root;
}

static void take_choices(struct world *w, struct hclient *c, struct hreq *q, const json_t *root)
{
    const json_t *choices = json_object_get(root, "choices");
    for (size_t i = 0; i < json_array_size(choices); i++)
        take_choice(w, c, q, json_array_get(choices, i));
}

static void all_ended(struct world *w, const struct hreq *q)
{
    for (int32_t i = 0; i < q->o.desc.sampling.n; i++)
        if (q->o.seqs[i].n_ends != 1)
            violation(w, "I3: choice %d of a complete reply has %d ends", i, q->o.seqs[i].n_ends);
    keep_conversation(w, &q->o, 101);
    total.http_ok++;
}

static void take_whole(struct world *w, struct hclient *c, struct hreq *q, const char *body,
                       size_t n)
{
    json_t *root = parse(w, body, n);
    int64_t n_out = 0;
    take_choices(w, c, q, root);
    all_ended(w, q);
    for (int32_t i = 0; i < q->o.desc.sampling.n; i++)
        n_out += q->o.seqs[i].n;
    const json_t *usage = json_object_get(root, "usage");
    if (json_integer_value(json_object_get(usage, "completion_tokens")) != n_out ||
        json_integer_value(json_object_get(usage, "prompt_tokens")) != q->o.desc.n_prompt)
        violation(w, "I5: usage of a reply with %lld tokens is wrong", (long long)n_out);
    json_decref(root);
}

static void take_stream(struct world *w, struct hclient *c, struct hreq *q, const char *body,
                        size_t n)
{
    bool done = false, failed = false;
    while (n > 0) {
        const char *end = memmem(body, n, "\n\n", 2);
        size_t len = end != NULL ? (size_t)(end - body) : 0;
        if (end == NULL || done)
            violation(w, "I4: %s", done ? "bytes after [DONE]" : "half an event");
        if (len == 12 && memcmp(body, "data: [DONE]", 12) == 0) {
            done = true;
        } else if (len > 6 && memcmp(body, "data: ", 6) == 0) {
            json_t *root = parse(w, body + 6, len - 6);
            failed |= json_object_get(root, "error") != NULL;
            take_choices(w, c, q, root);
            json_decref(root);
        } else if (body[0] != ':') {
            violation(w, "an event '%.*s'", (int)SL_MIN(len, 80u), body);
        }
        body += len + 2;
        n -= len + 2;
    }
    if (!done)
        violation(w, "I3: a stream without [DONE]");
    if (!failed)
        all_ended(w, q);
    else if (!may_be_refused(w, c, q, 500) && !memory_failed(w, c))
        violation(w, "a stream failed without a reason");
}

static void check_reply(struct world *w, struct hclient *c, int status, const char *body, size_t n)
{
    struct hreq *q = &c->reqs[c->n_replied];
    say("  http %d: kind %d got %d, %zu bytes\n", (int)(c - w->https), (int)q->kind, status, n);
    int want = wanted_status(w, q);
    if (q->kind == H_HEALTH && (w->stop_sent || w->dead || has_act(w, ACT_HANG)))
        want = status == 503 ? 503 : 200;
    if (q->kind == H_METRICS && status == 503 && memory_failed(w, c))
        want = 503;
    if (status != want) {
        if (!may_be_refused(w, c, q, status))
            violation(w, "request of kind %d got status %d, not %d: %.*s", (int)q->kind, status,
                      want, (int)SL_MIN(n, 300u), body);
        total.http_refused++;
        return;
    }
    if (status != 200)
        return;
    if (q->kind == H_WHOLE)
        take_whole(w, c, q, body, n);
    else if (q->kind == H_STREAM)
        take_stream(w, c, q, body, n);
}

/* ------------------------------------------------------------------ framing */

/* Takes the chunks apart in place. Bytes of the whole, 0: not complete. */
static int32_t unchunk(const struct world *w, char *at, int32_t n, int32_t *n_body)
{
    int32_t from = 0, to = 0;
    for (;;) {
        const char *line = memmem(at + from, (size_t)(n - from), "\r\n", 2);
        if (line == NULL)
            return 0;
        int32_t head = (int32_t)(line - (at + from)) + 2;
        char *stop;
        long len = strtol(at + from, &stop, 16);
        if (stop != line || len < 0)
            violation(w, "a chunk head '%.*s'", (int)SL_MIN(head, 20), at + from);
        if (n - from < head + len + 2)
            return 0;
        if (memcmp(at + from + head + len, "\r\n", 2) != 0)
            violation(w, "a chunk of %ld bytes is not closed", len);
        memmove(at + to, at + from + head, (size_t)len);
        from += head + (int32_t)len + 2;
        to += (int32_t)len;
        if (len == 0) {
            *n_body = to;
            return from;
        }
    }
}

static const char *header(const char *head, const char *end, const char *name)
{
    const char *at = memmem(head, (size_t)(end - head), name, strlen(name));
    return at != NULL ? at + strlen(name) : NULL;
}

/* One reply from the beginning of what was read. False: it is not all there. */
static bool take_reply(struct world *w, struct hclient *c)
{
    static char copy[REPLY_CAP];
    const char *end = memmem(c->reply, (size_t)c->n_reply, "\r\n\r\n", 4);
    if (end == NULL)
        return false;
    int32_t n_head = (int32_t)(end - c->reply) + 4, n_body = 0, n_all = 0;
    int status = c->n_reply > 12 ? (int)strtol(c->reply + 9, NULL, 10) : 0;
    if (memcmp(c->reply, "HTTP/1.1 ", 9) != 0 || status < 100 || status > 599)
        violation(w, "a status line '%.*s'", 20, c->reply);
    const char *length = header(c->reply, end + 2, "\r\nContent-Length: ");
    char *body = c->reply + n_head;
    if (status == 100) {
        n_all = n_head;
    } else if (length != NULL) {
        n_body = (int32_t)strtol(length, NULL, 10);
        n_all = c->n_reply >= n_head + n_body ? n_head + n_body : 0;
    } else if (header(c->reply, end + 2, "\r\nTransfer-Encoding: chunked") != NULL) {
        memcpy(copy, body, (size_t)(c->n_reply - n_head));
        n_all = unchunk(w, copy, c->n_reply - n_head, &n_body);
        n_all += n_all > 0 ? n_head : 0;
        body = copy;
    } else {
        violation(w, "a reply without length");
    }
    if (n_all == 0)
        return false;
    if (status != 100) {
        bool turned_away = status == 503 && w->cfg.max_conns < 100;
        if (c->n_replied == c->n_reqs || (c->sent == 0 && !turned_away))
            violation(w, "status %d, but no request waits for a reply", status);
        check_reply(w, c, status, body, (size_t)n_body);
        c->n_replied++;
        c->t_last_ns = virtual_ns;
    }
    c->n_reply -= n_all;
    memmove(c->reply, c->reply + n_all, (size_t)c->n_reply);
    return true;
}

#endif
