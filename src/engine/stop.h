/* SPDX-License-Identifier: MIT
 * stop.h - finds stop strings in a text that arrives in pieces, and says which bytes at its end may
 * still become one and must be held back.
 *
 * One Knuth-Morris-Pratt automaton per string: its state is the length of the longest end of the
 * text that begins the string, which is both what matching needs and what is to be held back. So no
 * text is kept. The strings are valid UTF-8 and text comes in whole characters, hence every cut
 * falls between characters.
 */
#ifndef SL_ENGINE_STOP_H
#define SL_ENGINE_STOP_H

#include "base/err.h"
#include "base/limits.h"

struct sl_stop {
    const char *text;     /* NUL-terminated, n bytes */
    const uint16_t *fail; /* [n + 1] longest proper border of each prefix */
    int32_t n;
};

struct sl_stops {
    int32_t n;
    struct sl_stop list[SL_MAX_STOPS];
};

struct sl_stop_match {
    int32_t idx;       /* -1: no match */
    size_t begin, end; /* bytes of the matched string inside the piece that was fed; begin may lie
                          before it and wraps, so that base + begin is right */
};

struct sl_stop_state {
    uint16_t len[SL_MAX_STOPS];
};

void sl_stop_prepare(const char *text, int32_t n, uint16_t *fail); /* fail: [n + 1] */
/* Feeds a piece; the match that ends first wins, of those the one that began first. Without arm,
 * matches are passed over. */
struct sl_stop_match sl_stop_feed(const struct sl_stops *stops, struct sl_stop_state *state,
                                  const char *piece, size_t n, bool arm);
size_t sl_stop_held(const struct sl_stops *stops, const struct sl_stop_state *state);

#endif
