/* SPDX-License-Identifier: MIT
 * test_output_util.h - an answer through a parser, in pieces of any cut, as readable lines.
 */
#ifndef SL_TEST_OUTPUT_UTIL_H
#define SL_TEST_OUTPUT_UTIL_H

#include "base/buf.h"
#include "base/str.h"
#include "text/output/output_parse.h"

#include <string.h>

/* What a parser reported: one line an event, neighbours of one kind joined, in the text of
 * output_cases.txt. */
struct events {
    struct sl_buf lines, text, args; /* args: of the call that is open */
    enum sl_output_kind kind;        /* of text */
    int n_calls, n_whole;
    size_t n_given; /* bytes of text */
    bool open, bad; /* bad: the events themselves are not in order, or whole arguments no object */
};

static inline void events_deinit(struct events *e)
{
    sl_buf_deinit(&e->lines);
    sl_buf_deinit(&e->text);
    sl_buf_deinit(&e->args);
}

static inline void events_line(struct events *e, const char *word, const char *s, size_t n)
{
    sl_buf_puts(&e->lines, word);
    sl_buf_putc(&e->lines, ' ');
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\n')
            sl_buf_puts(&e->lines, "\xC2\xB6");
        else
            sl_buf_putc(&e->lines, s[i]);
    }
    sl_buf_puts(&e->lines, "|\n"); /* so that white space at the end is seen */
}

static inline void events_flush(struct events *e)
{
    static const char *const words[] = {"reasoning", "content", "", "args"};
    if (e->text.n_bytes > 0)
        events_line(e, words[e->kind], e->text.data, e->text.n_bytes);
    sl_buf_clear(&e->text);
}

/* To another parser, which knows less of what may stand in a string and how large a number is. */
static inline bool is_object(const char *s, size_t n)
{
    struct sl_buf b = {0};
    size_t n_digits = 0;
    for (size_t i = 0; i < n; i++) {
        n_digits = s[i] >= '0' && s[i] <= '9' ? n_digits + 1 : 0;
        if (n_digits > 2)
            continue;
        bool escape = s[i] == '\\' && i + 1 < n;
        sl_buf_putc(&b, (unsigned char)s[i] < 0x80 ? s[i] : 'x');
        if (escape)
            sl_buf_putc(&b, (unsigned char)s[++i] < 0x80 ? s[i] : 'x');
        if (escape && s[i] == 'u' && i + 4 < n) {
            sl_buf_puts(&b, "0041");
            i += 4;
        }
    }
    json_t *j = json_loadb(b.data, b.n_bytes, 0, NULL);
    bool ok = json_is_object(j);
    json_decref(j);
    sl_buf_deinit(&b);
    return ok;
}

static inline void events_add(void *arg, const struct sl_output_event *ev)
{
    struct events *e = arg;
    bool call = ev->kind == SL_OUTPUT_CALL_ARGS || ev->kind == SL_OUTPUT_CALL_END;
    e->bad |= call != e->open || strlen(ev->id) != ev->n_id || ev->index != e->n_calls;
    if (ev->kind == SL_OUTPUT_CALL_BEGIN) {
        e->bad |= ev->n_text == 0;
        events_flush(e);
        sl_buf_printf(&e->lines, "call %s%s%s\n", ev->text, ev->n_id > 0 ? " id=" : "", ev->id);
        sl_buf_clear(&e->args);
        e->open = true;
    } else if (ev->kind == SL_OUTPUT_CALL_END) {
        events_flush(e);
        sl_buf_printf(&e->lines, "end %s%s%s\n", ev->whole ? "whole" : "cut",
                      ev->n_id > 0 ? " id=" : "", ev->id);
        if (ev->whole != (e->args.n_bytes > 0 && is_object(e->args.data, e->args.n_bytes)))
            e->bad = true;
        e->n_calls++;
        e->n_whole += ev->whole;
        e->open = false;
    } else {
        e->bad |= ev->n_text == 0;
        if (ev->kind != e->kind)
            events_flush(e);
        e->kind = ev->kind;
        sl_buf_put(&e->text, ev->text, ev->n_text);
        e->n_given += ev->n_text;
        if (call)
            sl_buf_put(&e->args, ev->text, ev->n_text);
    }
}

/* Pieces end where cut(arg, i) says so behind byte i; NULL: one piece. */
static inline int events_run(struct events *e, struct sl_output_options o, const char *s, size_t n,
                             bool (*cut)(void *arg, size_t i), void *arg)
{
    struct sl_output *p;
    struct sl_error err;
    o.fn = events_add;
    o.arg = e;
    int code = sl_output_create(&o, &p, &err);
    if (code != 0)
        return code;
    for (size_t i = 0, from = 0; i < n && code == 0; i++)
        if (i + 1 == n || (cut != NULL && cut(arg, i))) {
            code = sl_output_push(p, s + from, i + 1 - from);
            from = i + 1;
        }
    if (code == 0)
        code = sl_output_finish(p);
    events_flush(e);
    e->bad |= code == 0 && e->open;
    sl_output_destroy(p);
    return code;
}

#endif
