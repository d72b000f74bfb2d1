/* SPDX-License-Identifier: MIT
 * output_calls.c - everything of a call but its body: the section it stands in, lists, markers, id
 * and name. Literals are matched here without looking back: the first byte that does not fit fails.
 */
#include "text/output/output.h"

#include <string.h>

/* ---------------------------------------------------------------- literals and fields */

static void expecting(struct sl_output *p, char c)
{
    SL_ASSERT(p->want[0] != NULL || p->want[1] != NULL);
    if (p->want_at == 0 && out_is_space(c))
        return;
    for (int i = 0; i < 2; i++)
        if (p->want[i] != NULL && p->want[i][p->want_at] != c)
            p->want[i] = NULL;
    p->want_at++;
    for (int i = 0; i < 2; i++)
        if (p->want[i] != NULL && p->want[i][p->want_at] == '\0') {
            p->want_at = 0;
            p->then[i](p, c);
            return;
        }
    if (p->want[0] == NULL && p->want[1] == NULL) {
        p->want_at = 0;
        out_fail(p);
    }
}

/* White space, then literal a or b; neither begins with white space or with the other. */
void out_expect(struct sl_output *p, const char *a, out_state then_a, const char *b,
                out_state then_b)
{
    SL_ASSERT((a != NULL && a[0] != '\0') || (b != NULL && b[0] != '\0'));
    p->want[0] = a;
    p->want[1] = b;
    p->then[0] = then_a;
    p->then[1] = then_b;
    p->want_at = 0;
    p->state = expecting;
}

static bool ends_with(const struct sl_output *p, const char *end)
{
    size_t n = end != NULL ? strlen(end) : 0;
    return n > 0 && p->n_field >= n && memcmp(p->field + p->n_field - n, end, n) == 0;
}

static void reading(struct sl_output *p, char c)
{
    SL_ASSERT(p->n_field < sizeof p->field && (p->ends[0] != NULL || p->ends[1] != NULL));
    if (p->n_field >= sizeof p->field - 1) {
        out_fail(p);
        return;
    }
    p->field[p->n_field++] = c;
    for (int i = 0; i < 2; i++)
        if (ends_with(p, p->ends[i])) {
            p->n_field -= strlen(p->ends[i]);
            p->field_then[i](p, c);
            return;
        }
}

/* Is the hold, behind whole calls, white space and the beginning of what is expected? Or the
 * beginning of another message's header? */
bool out_unfinished_marker(const struct sl_output *p)
{
    size_t i = 0;
    if (p->n_messages > 0 && p->state == reading)
        return true;
    if (p->begun || p->n_section == 0)
        return false;
    if (p->state == expecting && p->want_at > 0)
        return true;
    while (i < p->hold.n_bytes && out_is_space(p->hold.data[i]))
        i++;
    return i == p->hold.n_bytes;
}

/* Bytes up to literal a or b go to p->field. */
void out_read(struct sl_output *p, const char *a, out_state then_a, const char *b, out_state then_b)
{
    p->n_field = 0;
    p->ends[0] = a;
    p->ends[1] = b;
    p->field_then[0] = then_a;
    p->field_then[1] = then_b;
    p->state = reading;
}

void out_take_field(struct sl_output *p)
{
    size_t from = 0;
    while (p->n_field > 0 && out_is_space(p->field[p->n_field - 1]))
        p->n_field--;
    while (from < p->n_field && out_is_space(p->field[from]))
        from++;
    p->n_field -= from;
    memmove(p->field, p->field + from, p->n_field);
    SL_ASSERT(from + p->n_field < sizeof p->field);
    p->field[p->n_field] = '\0';
}

/* The field as name or id; false when it cannot be one. */
static bool take(struct sl_output *p, char *to, size_t *n)
{
    out_take_field(p);
    if (p->n_field > OUT_FIELD || memchr(p->field, '\0', p->n_field) != NULL) {
        out_fail(p);
        return false;
    }
    SL_ASSERT(p->field[p->n_field] == '\0');
    memcpy(to, p->field, p->n_field + 1);
    *n = p->n_field;
    return true;
}

/* ---------------------------------------------------------------- id and name */

static void body_begin(struct sl_output *p)
{
    SL_ASSERT(!p->begun && p->pair != NULL);
    switch (p->tools->body) {
    case OUT_PARAMS:
        if (out_begin(p)) {
            out_commit(p);
            out_params_begin(p);
        }
        return;
    case OUT_PYTHON:
    case OUT_QUOTED:
        if (out_begin(p)) {
            out_commit(p);
            out_values_begin(p);
        }
        return;
    case OUT_JSON_CALL:
    case OUT_JSON_ARGS:
    case OUT_HARMONY:
        p->state = out_json_args;
        return;
    }
}

static void name_more(struct sl_output *p, char c)
{
    (void)c;
    body_begin(p);
}

static void got_name(struct sl_output *p, char c)
{
    (void)c;
    if (!take(p, p->name, &p->n_name))
        return;
    if (p->tools->flags & OUT_NAME_IN_ID) { /* functions.NAME:INDEX */
        char *colon = strrchr(p->name, ':');
        size_t skip = strncmp(p->name, "functions.", 10) == 0 ? 10 : 0;
        memcpy(p->id, p->name, p->n_name + 1);
        p->n_id = p->n_name;
        if (colon != NULL)
            *colon = '\0';
        SL_ASSERT(strlen(p->name) >= skip && p->n_id <= OUT_FIELD);
        p->n_name = strlen(p->name) - skip;
        memmove(p->name, p->name + skip, p->n_name + 1);
    }
    if (p->tools->name_more != NULL)
        out_read(p, p->tools->name_more, name_more, NULL, NULL);
    else
        body_begin(p);
}

static void got_late_id(struct sl_output *p, char c)
{
    (void)c;
    if (take(p, p->id, &p->n_id))
        body_begin(p);
}

static void got_name_before_id(struct sl_output *p, char c)
{
    (void)c;
    if (take(p, p->name, &p->n_name))
        out_read(p, p->tools->name_end, got_late_id, NULL, NULL);
}

/* The name ends where the next marker begins, which all begin with '<'. */
static void got_name_at_tag(struct sl_output *p, char c)
{
    got_name(p, c);
    if (p->state != out_text) {
        sl_buf_putc(&p->hold, c);
        p->state(p, c);
    }
}

static void read_name(struct sl_output *p)
{
    const struct out_tools *t = p->tools;
    if (t->flags & OUT_NAME_TO_TAG)
        out_read(p, "<", got_name_at_tag, NULL, NULL);
    else
        out_read(p, t->name_end, got_name, t->id_open, got_name_before_id);
}

static void got_id(struct sl_output *p, char c)
{
    (void)c;
    if (take(p, p->id, &p->n_id))
        read_name(p);
}

/* ---------------------------------------------------------------- arguments of OUT_JSON_ARGS */

static void json_args_more(struct sl_output *p, char c)
{
    SL_ASSERT(p->begun);
    int r = out_json_step(&p->json, c);
    if (r < 0) {
        out_fail(p);
        return;
    }
    out_emit(p, SL_OUTPUT_CALL_ARGS, &c, 1);
    out_commit(p);
    if (r > 0)
        out_body_done(p);
}

void out_json_args(struct sl_output *p, char c)
{
    if (out_is_space(c))
        return;
    if (c != '{')
        out_fail(p);
    else if (out_begin(p)) {
        out_json_begin(&p->json);
        p->state = json_args_more;
        json_args_more(p, c);
    }
}

/* ---------------------------------------------------------------- sections */

static void end_section(struct sl_output *p)
{
    SL_ASSERT(!p->begun);
    out_commit(p);
    p->pair = NULL;
    p->state = out_text;
    p->fresh = p->after_marker = true;
}

static void section_closed(struct sl_output *p, char c)
{
    (void)c;
    end_section(p);
}

static void call_opened(struct sl_output *p, char c)
{
    (void)c;
    if (p->tools->id_end != NULL)
        out_read(p, p->tools->id_end, got_id, NULL, NULL);
    else
        read_name(p);
}

/* The first byte of a call that has no marker of its own. */
static void call_first(struct sl_output *p, char c)
{
    SL_ASSERT(!p->begun && p->pair != NULL);
    const struct out_tools *t = p->tools;
    bool json = t->body == OUT_JSON_CALL || ((t->flags & OUT_OR_JSON) && c == '{');
    p->n_id = p->n_name = 0;
    p->id[0] = p->name[0] = '\0';
    if (json) {
        p->call.key = 0;
        p->call.has_args = false;
        p->state = out_json_call;
    } else {
        call_opened(p, c);
    }
    p->state(p, c);
}

void out_section_begin(struct sl_output *p, const struct out_pair *pair)
{
    SL_ASSERT(!p->begun && pair->open != NULL);
    p->pair = pair;
    p->n_section = 0;
    p->in_list = p->list_done = p->comma = false;
    p->state = out_section;
}

/* Between calls. */
void out_section(struct sl_output *p, char c)
{
    const struct out_tools *t = p->tools;
    bool any = p->n_section > 0;
    SL_ASSERT(p->pair != NULL && !p->begun && !(p->in_list && p->list_done));
    if (out_is_space(c) && !(t->name_end != NULL && t->name_end[0] == c))
        return;
    if (c == '[' && (t->flags & OUT_LIST) && !p->in_list && !any && !p->comma) {
        p->in_list = true;
        return;
    }
    if (p->in_list && c == ']' && any && !p->comma) {
        p->in_list = false;
        p->list_done = true;
        if (p->pair->close == NULL)
            end_section(p);
        return;
    }
    if (any && !p->comma && !p->list_done && c != '\0' && c == (p->in_list ? ',' : t->sep)) {
        p->comma = true;
        return;
    }
    bool may_close = p->pair->close != NULL && any && !p->in_list && !p->comma;
    bool may_call = !p->list_done && (!p->in_list || !any || p->comma);
    const char *close = may_close ? p->pair->close : NULL;
    const char *open = may_call ? t->call_open : NULL;
    bool one = any && p->pair->close == NULL && t->sep == '\0' && !p->in_list;
    if (open != NULL || (close != NULL && close[0] == c)) {
        out_expect(p, open, call_opened, close, section_closed);
        p->n_id = p->n_name = 0;
        p->id[0] = p->name[0] = '\0';
        expecting(p, c);
    } else if (may_call && !one && t->call_open == NULL) {
        p->comma = false;
        call_first(p, c);
    } else {
        out_fail(p);
    }
}

/* A section without an end of its own, without list and separators, is one call. */
void out_after_call(struct sl_output *p)
{
    SL_ASSERT(!p->begun && p->n_section > 0 && p->pair != NULL);
    out_commit(p);
    p->comma = false;
    if (p->pair->close == NULL && !p->in_list && p->tools->sep == '\0')
        end_section(p);
    else
        p->state = out_section;
}

static void call_closed(struct sl_output *p, char c)
{
    (void)c;
    out_after_call(p);
}

void out_body_done(struct sl_output *p)
{
    SL_ASSERT(p->begun && p->pair != NULL);
    out_commit(p);
    out_end(p, true);
    if (p->tools->body == OUT_HARMONY)
        end_section(p);
    else if (p->tools->call_close != NULL)
        out_expect(p, p->tools->call_close, call_closed, NULL, NULL);
    else
        out_after_call(p);
}
