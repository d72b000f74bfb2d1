/* SPDX-License-Identifier: MIT */
#include "engine/think.h"

#include "sluice.h"

#include <string.h>

int sl_think_check(const struct sl_thinking *t, int32_t n_logits, struct sl_error *err)
{
    size_t n = t->close != NULL ? strnlen(t->close, SL_MAX_THINK_CLOSE + 1) : 0;
    if (n == 0 || n > SL_MAX_THINK_CLOSE)
        return sl_fail(err, SL_EINVAL, "thinking: its end must have 1 to %d bytes",
                       SL_MAX_THINK_CLOSE);
    if (t->budget < -1 || t->open_id >= n_logits)
        return sl_fail(err, SL_EINVAL, "thinking: a budget of %d, or token %d, is out of range",
                       t->budget, t->open_id);
    if (t->n_forced < 1 || t->n_forced > SL_MAX_THINK_FORCED || t->forced == NULL)
        return sl_fail(err, SL_EINVAL, "thinking: its end must have 1 to %d tokens, not %d",
                       SL_MAX_THINK_FORCED, t->n_forced);
    for (int32_t i = 0; i < t->n_forced; i++)
        if (t->forced[i] < 0 || t->forced[i] >= n_logits)
            return sl_fail(err, SL_EINVAL, "thinking: token %d is not in [0, %d)", t->forced[i],
                           n_logits);
    return 0;
}

void sl_think_init(struct sl_think *t, const struct sl_thinking *from)
{
    if (from == NULL)
        return;
    size_t n = strlen(from->close);
    SL_ASSERT(n >= 1 && n <= SL_MAX_THINK_CLOSE); /* sl_think_check */
    SL_ASSERT(from->n_forced >= 1 && from->n_forced <= SL_MAX_THINK_FORCED);
    t->on = true;
    t->inside = from->inside;
    t->budget = from->budget;
    t->open_id = from->open_id;
    t->n_forced = from->n_forced;
    memcpy(t->forced, from->forced, (size_t)from->n_forced * sizeof *t->forced);
    memcpy(t->close, from->close, n + 1);
    sl_stop_prepare(t->close, (int32_t)n, t->fail);
    t->stops.n = 1;
    t->stops.list[0] = (struct sl_stop){t->close, t->fail, (int32_t)n};
}

void sl_think_begin(const struct sl_think *t, struct sl_think_seq *s,
                    const struct sl_tokenizer *tok)
{
    if (!t->on)
        return;
    SL_ASSERT(s->text != NULL && tok != NULL);
    s->state = t->inside ? SL_THINK_INSIDE : t->open_id >= 0 ? SL_THINK_MAYBE : SL_THINK_OVER;
    sl_detok_init(&s->detok, tok, false);
}

static void observe(const struct sl_think *t, struct sl_think_seq *s, int32_t token)
{
    size_t n;
    switch (s->state) {
    case SL_THINK_MAYBE:
        s->state = token == t->open_id ? SL_THINK_INSIDE : SL_THINK_OVER;
        return;
    case SL_THINK_INSIDE:
        s->n++;
        n = token < sl_tokenizer_n_vocab(s->detok.tok) ? sl_detok_push(&s->detok, token, s->text)
                                                       : 0;
        if (sl_stop_feed(&t->stops, &s->stop, s->text, n, true).idx >= 0)
            s->state = SL_THINK_ENDED;
        return;
    case SL_THINK_FORCED:
        SL_ASSERT(s->n >= 0 && s->n < t->n_forced);
        if (++s->n == t->n_forced)
            s->state = SL_THINK_ENDED;
        return;
    case SL_THINK_ENDED:
        s->state = SL_THINK_OVER;
        return;
    case SL_THINK_OVER:
        return;
    }
}

/* No token is left to think in: its end comes. */
static void think_enforce(const struct sl_think *t, struct sl_think_seq *s)
{
    if (s->state != SL_THINK_INSIDE || t->budget < 0 || s->n < t->budget)
        return;
    s->state = SL_THINK_FORCED;
    s->n = 0;
}

void sl_think_take(const struct sl_think *t, struct sl_think_seq *s, int32_t token)
{
    SL_ASSERT(t->on && token >= 0);
    observe(t, s, token);
    think_enforce(t, s);
}

bool sl_think_mask(const struct sl_think *t, struct sl_think_seq *s, uint32_t *mask,
                   int32_t n_logits)
{
    const size_t n_bytes = ((size_t)n_logits + 31) / 32 * sizeof *mask;
    SL_ASSERT(t->on);
    think_enforce(t, s);
    if (s->state == SL_THINK_FORCED) {
        SL_ASSERT(s->n < t->n_forced);
        const int32_t id = t->forced[s->n];
        memset(mask, 0, n_bytes);
        mask[id / 32] |= 1u << (id & 31);
        return true;
    }
    if (s->state != SL_THINK_INSIDE)
        return false;
    memset(mask, 0xFF, n_bytes);
    if (n_logits % 32 != 0)
        mask[n_logits / 32] = (1u << n_logits % 32) - 1;
    return true;
}
