/* SPDX-License-Identifier: MIT
 * output_harmony.c - answers as messages with channels:
 *
 *   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
 *   to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
 *
 * A header ends at <|message|>; its recipient may stand before or behind the channel. The analysis
 * channel is reasoning, a message to a function is a call, everything else is content.
 */
#include "base/str.h"
#include "text/output/output.h"

#include <string.h>

static const char *const starts[] = {
    "<|start|>", "<|channel|>", "assistant", "to=", "commentary", "analysis", "final"};
/* What ends a message; the first ones begin the next header. */
static const char *const marks[] = {"<|start|>", "<|channel|>", "<|end|>", "<|return|>",
                                    "<|call|>"};
enum { N_BEGIN = 2 };

/* The word behind mark in the header, up to white space or another marker. */
static bool word_after(const char *header, const char *mark, char *word, size_t room)
{
    const char *s = strstr(header, mark);
    size_t n = 0;
    if (s == NULL)
        return false;
    s += strlen(mark);
    while (s[n] != '\0' && !out_is_space(s[n]) && s[n] != '<')
        n++;
    SL_DCHECK(s + n <= header + strlen(header));
    if (n >= room)
        return false;
    memcpy(word, s, n);
    word[n] = '\0';
    return true;
}

static void message(struct sl_output *p)
{
    p->state = out_text;
    p->fresh = p->after_marker = true;
    out_commit(p);
}

static void got_header(struct sl_output *p, char c)
{
    char channel[OUT_FIELD], to[OUT_FIELD];
    (void)c;
    out_take_field(p);
    bool has_channel = word_after(p->field, "<|channel|>", channel, sizeof channel);
    bool has_to = word_after(p->field, "to=", to, sizeof to);
    if (has_to && p->tools != NULL && sl_starts_with(to, "functions.")) {
        p->n_name = strlen(to + 10);
        SL_ASSERT(p->n_name < sizeof p->name && !p->begun);
        memcpy(p->name, to + 10, p->n_name + 1);
        p->n_id = 0;
        p->thinking = false;
        p->n_section = 0;
        p->pair = &p->tools->pairs[0];
        p->state = out_json_args;
        return;
    }
    p->thinking = has_channel && strcmp(channel, "analysis") == 0;
    message(p);
}

/* A header begins with one of a few words, or this is plain text. */
static void header(struct sl_output *p, char c)
{
    size_t n = p->hold.n_bytes, space = 0;
    while (space < n && out_is_space(p->hold.data[space]))
        space++;
    if (space == n && n <= OUT_SPACE)
        return;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        size_t len = strlen(starts[i]), have = n - space;
        if (have <= len && memcmp(p->hold.data + space, starts[i], have) == 0) {
            if (have < len)
                return;
            p->n_mark = n;
            out_read(p, "<|message|>", got_header, NULL, NULL);
            memcpy(p->field, starts[i], len);
            SL_ASSERT(len < sizeof p->field);
            p->n_field = len;
            return;
        }
    }
    (void)c;
    p->n_mark = n;
    out_fail(p);
}

void out_harmony_begin(struct sl_output *p)
{
    if (p->n_lits == 0) {
        p->reasoning = out_find_reasoning("openai_gptoss");
        if (p->tools != NULL && p->tools->body != OUT_HARMONY)
            p->tools = NULL;
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
            p->lits[p->n_lits++] =
                (struct out_literal){marks[i], strlen(marks[i]), OUT_MESSAGE, i < N_BEGIN};
    }
    SL_ASSERT(p->reasoning != NULL && p->n_lits <= OUT_LITERALS);
    p->thinking = false;
    p->state = header;
}

/* The hold is white space and a mark. */
void out_harmony_mark(struct sl_output *p, const struct out_literal *mark)
{
    SL_ASSERT(mark->n <= p->hold.n_bytes);
    p->n_messages++;
    if (mark->pair)
        out_hold_shift(p, p->hold.n_bytes - mark->n);
    else
        out_commit(p);
    out_harmony_begin(p);
    if (mark->pair)
        header(p, '\0');
}
