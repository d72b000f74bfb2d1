/* SPDX-License-Identifier: MIT
 * output_text.c - text between markers. The hold is white space and then the beginning of a marker,
 * or empty: a byte that ends this hope gives back what can be no part of one.
 */
#include "text/output/output.h"

#include <string.h>

static bool bare_begin(const struct sl_output *p, char c)
{
    if (!p->has_bare || !p->fresh || p->thinking)
        return false;
    return c == '[' || (c == '{' && p->tools->body == OUT_JSON_CALL);
}

/* May this literal be a marker here? */
static bool is_open_to(const struct sl_output *p, const struct out_literal *l)
{
    unsigned flags = p->reasoning != NULL ? p->reasoning->flags : 0;
    switch (l->kind) {
    case OUT_THINK_OPEN:
        return p->fresh || (!p->thinking && (flags & OUT_ANYWHERE));
    case OUT_THINK_CLOSE:
        return p->thinking || p->closed;
    case OUT_DROP:
        return !p->thinking;
    case OUT_CALL:
        return !p->thinking || (flags & OUT_CALL_ENDS);
    case OUT_MESSAGE:
        return true;
    }
    return false;
}

/* The literal that s begins or is. */
static const struct out_literal *look(const struct sl_output *p, const char *s, size_t n)
{
    SL_ASSERT(n > 0); /* nothing begins every literal */
    for (int i = 0; i < p->n_lits; i++) {
        const struct out_literal *l = &p->lits[i];
        if (n <= l->n && is_open_to(p, l) && memcmp(s, l->text, n) == 0)
            return l;
    }
    return NULL;
}

static bool marker_may_follow(const struct sl_output *p)
{
    bool any = p->after_marker || (p->has_bare && p->fresh && !p->thinking);
    for (int i = 0; i < p->n_lits && !any; i++)
        any = is_open_to(p, &p->lits[i]);
    return any;
}

static void keep(struct sl_output *p, size_t n)
{
    SL_ASSERT(p->reasoning != NULL && n <= p->hold.n_bytes);
    if (p->reasoning->flags & OUT_AS_CONTENT)
        out_text_out(p, p->hold.data, n);
}

static void found(struct sl_output *p, const struct out_literal *l)
{
    SL_ASSERT(l->n <= p->hold.n_bytes && l->n > 0);
    if (l->kind == OUT_CALL) {
        p->n_mark = p->hold.n_bytes;
        out_section_begin(p, &p->tools->pairs[l->pair]);
        return;
    }
    if (l->kind == OUT_MESSAGE) {
        out_harmony_mark(p, l);
        return;
    }
    if (l->kind != OUT_DROP) {
        p->unopened &= l->kind != OUT_THINK_OPEN;
        keep(p, p->hold.n_bytes);
        p->thinking = l->kind == OUT_THINK_OPEN;
        p->fresh = true;
    }
    p->closed = false;
    p->after_marker = !p->reasoning || !(p->reasoning->flags & OUT_AS_CONTENT);
    out_commit(p);
}

void out_text(struct sl_output *p, char c)
{
    (void)c;
    SL_ASSERT(!p->begun && p->pair == NULL);
    while (p->hold.n_bytes > 0) {
        const char *s = p->hold.data;
        size_t n = p->hold.n_bytes, space = 0;
        while (space < n && out_is_space(s[space]))
            space++;
        if (space > OUT_SPACE) {
            out_text_out(p, s, space - OUT_SPACE);
            out_hold_shift(p, space - OUT_SPACE);
            continue;
        }
        if (space == n && marker_may_follow(p))
            return;
        if (space < n && bare_begin(p, s[space])) {
            char first = s[space];
            p->n_mark = n;
            out_section_begin(p, &p->tools->pairs[0]);
            while (p->pair->open[0] != '\0')
                p->pair++;
            SL_ASSERT(p->pair < p->tools->pairs + OUT_PAIRS);
            p->state(p, first);
            return;
        }
        const struct out_literal *l = space < n ? look(p, s + space, n - space) : NULL;
        if (l != NULL) {
            if (l->n == n - space)
                found(p, l);
            return;
        }
        if (space < n) /* a marker cannot begin in white space */
            space++;
        out_text_out(p, s, space);
        out_hold_shift(p, space);
    }
}

void out_text_flush(struct sl_output *p)
{
    SL_ASSERT(!p->begun);
    if (p->hold.n_bytes > 0)
        out_text_out(p, p->hold.data, p->hold.n_bytes);
    out_commit(p);
}
