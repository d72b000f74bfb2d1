/* SPDX-License-Identifier: MIT
 * output_formats.c - the tables of output_formats.def: by name, by a template's text, by a prompt.
 */
#include "base/check.h"
#include "base/rng.h"
#include "text/output/output.h"

#include <string.h>

/* A row without an opening marker of its own has no first byte to be found by; a row's columns that
 * are not named are absent. */
static const struct out_tools tools_table[] = {
#define SL_TOOLS(names_, body_, flags_, ...) \
    {.names = names_, .body = body_, .flags = flags_, __VA_ARGS__},
#include "text/output/output_formats.def"
};

static const struct out_reasoning reasoning_table[] = {
#define SL_REASONING(names_, flags_, open_, close_, ...) \
    {.names = names_, .flags = flags_, .open = open_, .close = close_, .drop = {__VA_ARGS__}},
#include "text/output/output_formats.def"
};

struct sign {
    const char *format, *text, *and;
};

static const struct sign tools_signs[] = {
#define SL_TOOLS_SIGN(format_, text_, and_) {format_, text_, and_},
#include "text/output/output_formats.def"
};

static const struct sign reasoning_signs[] = {
#define SL_REASONING_SIGN(format_, text_, and_) {format_, text_, and_},
#include "text/output/output_formats.def"
};

/* Is name one of the words of names? */
static bool has_name(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *s = names; n > 0 && (s = strstr(s, name)) != NULL; s++)
        if ((s == names || s[-1] == ' ') && (s[n] == ' ' || s[n] == '\0'))
            return strchr(name, ' ') == NULL;
    return false;
}

const struct out_tools *out_find_tools(const char *name)
{
    SL_ASSERT(name != NULL);
    for (size_t i = 0; i < SL_COUNT(tools_table); i++)
        if (has_name(tools_table[i].names, name))
            return &tools_table[i];
    return NULL;
}

const struct out_reasoning *out_find_reasoning(const char *name)
{
    SL_ASSERT(name != NULL);
    for (size_t i = 0; i < SL_COUNT(reasoning_table); i++)
        if (has_name(reasoning_table[i].names, name))
            return &reasoning_table[i];
    return NULL;
}

const char *sl_output_tools_names(size_t i)
{
    return i < SL_COUNT(tools_table) ? tools_table[i].names : NULL;
}

const char *sl_output_reasoning_names(size_t i)
{
    return i < SL_COUNT(reasoning_table) ? reasoning_table[i].names : NULL;
}

const char *sl_output_reasoning_open(const char *reasoning_format)
{
    const struct out_reasoning *r = out_find_reasoning(reasoning_format);
    return r != NULL ? r->open : NULL;
}

const char *sl_output_reasoning_close(const char *reasoning_format)
{
    const struct out_reasoning *r = out_find_reasoning(reasoning_format);
    return r != NULL ? r->close : NULL;
}

bool sl_output_has_channels(const char *reasoning_format)
{
    const struct out_reasoning *r = out_find_reasoning(reasoning_format);
    return r != NULL && (r->flags & OUT_CHANNELS) != 0;
}

bool sl_output_begins_inside(const char *reasoning_format, enum sl_output_start start)
{
    const struct out_reasoning *r = out_find_reasoning(reasoning_format);
    if (r == NULL || (r->flags & OUT_CHANNELS))
        return r != NULL;
    return start == SL_OUTPUT_START_REASONING ||
           (start == SL_OUTPUT_START_AUTO && (r->flags & OUT_INSIDE));
}

const char *sl_output_answer_open(const char *reasoning_format, const char **forced)
{
    const struct out_reasoning *r = out_find_reasoning(reasoning_format);
    bool channels = r != NULL && (r->flags & OUT_CHANNELS);
    *forced = channels    ? "<|end|><|start|>assistant<|channel|>final<|message|>"
              : r != NULL ? r->close
                          : NULL;
    return channels ? "<|channel|>final<|message|>" : *forced;
}

/* Is the text in one of the markers of the list? */
static bool is_in(const char *const *marks, size_t n_marks, const char *text, size_t n)
{
    for (size_t i = 0; i < n_marks; i++)
        if (marks[i] != NULL && memmem(marks[i], strlen(marks[i]), text, n) != NULL)
            return true;
    return false;
}

bool sl_output_is_marker(const struct sl_output *p, const char *text, size_t n)
{
    const struct out_tools *t = p->tools;
    const struct out_reasoning *r = p->reasoning;
    SL_ASSERT(p->n_lits <= OUT_LITERALS);
    if (n == 0)
        return false;
    for (int i = 0; i < p->n_lits; i++)
        if (is_in(&p->lits[i].text, 1, text, n))
            return true;
    if (r != NULL && (r->flags & OUT_CHANNELS))
        return is_in((const char *[]){"<|message|>", "<|constrain|>"}, 2, text, n);
    for (int i = 0; t != NULL && i < OUT_PAIRS; i++)
        if (is_in(&t->pairs[i].close, 1, text, n))
            return true;
    if (t == NULL)
        return false;
    const char *marks[] = {t->call_open,     t->call_close,     t->id_end,     t->id_open,
                           t->name_end,      t->name_more,      t->quote,      t->param.key_open,
                           t->param.key_end, t->param.type_end, t->param.open, t->param.close};
    return is_in(marks, SL_COUNT(marks), text, n);
}

void sl_output_make_id(const char *tools_format, uint64_t random, char out[SL_OUTPUT_ID_BYTES])
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const struct out_tools *t = tools_format != NULL ? out_find_tools(tools_format) : NULL;
    size_t n = 0, n_random = 24;
    if (t != NULL && (t->flags & OUT_SHORT_ID)) {
        n_random = 9;
    } else {
        memcpy(out, "call_", 5);
        n = 5;
    }
    for (size_t i = 0; i < n_random; i++)
        out[n + i] = alphabet[sl_rng_at(random, i) % (sizeof alphabet - 1)];
    out[n + n_random] = '\0';
}

static const char *detect(const char *text, size_t n, const struct sign *signs, size_t n_signs)
{
    for (size_t i = 0; i < n_signs; i++) {
        const struct sign *s = &signs[i];
        SL_ASSERT(s->format != NULL && s->text != NULL);
        if (memmem(text, n, s->text, strlen(s->text)) != NULL &&
            (s->and == NULL || memmem(text, n, s->and, strlen(s->and)) != NULL))
            return s->format;
    }
    return NULL;
}

void sl_output_detect(const char *chat_template, size_t n, const char **tools_format,
                      const char **reasoning_format)
{
    *tools_format = detect(chat_template, n, tools_signs, SL_COUNT(tools_signs));
    *reasoning_format = detect(chat_template, n, reasoning_signs, SL_COUNT(reasoning_signs));
}

static bool prompt_ends(const char *prompt, size_t n, const char *mark)
{
    size_t m = mark != NULL ? strlen(mark) : 0;
    while (m > 0 && out_is_space(mark[m - 1]))
        m--;
    return m > 0 && n >= m && memcmp(prompt + n - m, mark, m) == 0;
}

/* Only a marker at the very end speaks of this answer: others are history. */
enum sl_output_start sl_output_prompt_start(const char *reasoning_format, const char *prompt,
                                            size_t n)
{
    const struct out_reasoning *r = out_find_reasoning(reasoning_format);
    while (n > 0 && out_is_space(prompt[n - 1]))
        n--;
    if (r == NULL || (r->flags & OUT_CHANNELS))
        return SL_OUTPUT_START_AUTO;
    if (prompt_ends(prompt, n, r->open))
        return SL_OUTPUT_START_REASONING;
    return prompt_ends(prompt, n, r->close) ? SL_OUTPUT_START_CONTENT : SL_OUTPUT_START_AUTO;
}
