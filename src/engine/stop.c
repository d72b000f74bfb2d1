/* SPDX-License-Identifier: MIT */
#include "engine/stop.h"

void sl_stop_prepare(const char *text, int32_t n, uint16_t *fail)
{
    SL_ASSERT(n > 0 && n <= SL_MAX_STOP_BYTES);
    fail[0] = fail[1] = 0;
    for (int32_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && text[i] != text[k])
            k = fail[k];
        if (text[i] == text[k])
            k++;
        fail[i + 1] = (uint16_t)k;
    }
}

static int32_t stop_advance(const struct sl_stop *s, int32_t k, char c)
{
    SL_DCHECK(k >= 0 && k <= s->n && s->fail[k] <= k);
    if (k == s->n)
        k = s->fail[k];
    while (k > 0 && s->text[k] != c)
        k = s->fail[k];
    return s->text[k] == c ? k + 1 : k;
}

struct sl_stop_match sl_stop_feed(const struct sl_stops *stops, struct sl_stop_state *state,
                                  const char *piece, size_t n, bool arm)
{
    struct sl_stop_match match = {.idx = -1};
    SL_ASSERT(stops->n > 0 && stops->n <= SL_MAX_STOPS);
    for (size_t i = 0; i < n && match.idx < 0; i++) {
        int32_t longest = 0;
        for (int32_t j = 0; j < stops->n; j++) {
            const struct sl_stop *s = &stops->list[j];
            int32_t k = stop_advance(s, state->len[j], piece[i]);
            state->len[j] = (uint16_t)k;
            if (arm && k == s->n && k > longest) {
                longest = k;
                match.idx = j;
                match.end = i + 1;
                match.begin = match.end - (size_t)k;
            }
        }
    }
    return match;
}

size_t sl_stop_held(const struct sl_stops *stops, const struct sl_stop_state *state)
{
    size_t held = 0;
    for (int32_t j = 0; j < stops->n; j++) {
        /* A match passed over is text like any other; only what begins the next one is held. */
        int32_t k =
            state->len[j] == stops->list[j].n ? stops->list[j].fail[state->len[j]] : state->len[j];
        held = (size_t)k > held ? (size_t)k : held;
    }
    SL_ASSERT(held < SL_MAX_STOP_BYTES); /* the room of the reader for it */
    return held;
}
