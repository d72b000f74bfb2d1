/* SPDX-License-Identifier: MIT
 * Stop strings in a text that comes in pieces, against a search of the whole text at every byte:
 * the same match at the same place, and exactly those bytes held back that may begin one.
 */
#include "engine/stop.h"
#include "fuzz.h"

#include <string.h>

#define MAX_STOPS 4
#define MAX_TEXT  1024

struct rig {
    struct sl_stops stops;
    char texts[MAX_STOPS][SL_MAX_STOP_BYTES + 1];
    uint16_t fails[MAX_STOPS][SL_MAX_STOP_BYTES + 1];
    struct sl_stop_state state;
    char text[MAX_TEXT];
    size_t n;
};

/* Mostly two letters, so that strings overlap and repeat themselves. */
static char letter(struct sl_input *in)
{
    uint8_t b = sl_input_byte(in);
    return b >= 0xF0 || b == 0 ? (char)(b | 1) : (char)('a' + (b & 1));
}

static void choose_stops(struct rig *g, struct sl_input *in)
{
    g->stops.n = 1 + sl_input_below(in, MAX_STOPS);
    for (int32_t j = 0; j < g->stops.n; j++) {
        int32_t n = sl_input_below(in, 16);
        n = n == 15 ? SL_MAX_STOP_BYTES : n / 2 + 1;
        for (int32_t i = 0; i < n; i++)
            g->texts[j][i] = letter(in);
        sl_stop_prepare(g->texts[j], n, g->fails[j]);
        g->stops.list[j] = (struct sl_stop){g->texts[j], g->fails[j], n};
    }
}

static bool ends_with(const struct rig *g, const char *s, size_t k)
{
    return k <= g->n && memcmp(g->text + g->n - k, s, k) == 0;
}

static size_t held_back(const struct rig *g)
{
    size_t most = 0;
    for (int32_t j = 0; j < g->stops.n; j++)
        for (size_t k = 1; k < (size_t)g->stops.list[j].n; k++)
            if (k > most && ends_with(g, g->texts[j], k))
                most = k;
    return most;
}

/* Appends the piece byte by byte; the longest string that ends first. */
static struct sl_stop_match search(struct rig *g, const char *piece, size_t n, bool arm)
{
    struct sl_stop_match m = {.idx = -1};
    for (size_t i = 0; i < n && m.idx < 0; i++) {
        g->text[g->n++] = piece[i];
        for (int32_t j = 0; arm && j < g->stops.n; j++) {
            size_t k = (size_t)g->stops.list[j].n;
            if (ends_with(g, g->texts[j], k) && (m.idx < 0 || k > m.end - m.begin))
                m = (struct sl_stop_match){j, i + 1 - k, i + 1};
        }
    }
    return m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct rig g;
    struct sl_input in = {data, data + size};
    char piece[16];
    g.n = 0;
    memset(&g.state, 0, sizeof g.state);
    choose_stops(&g, &in);
    while (!sl_input_empty(&in) && g.n + sizeof piece <= MAX_TEXT) {
        uint8_t how = sl_input_byte(&in);
        size_t n = how % (sizeof piece + 1);
        bool arm = how < 0xC0;
        for (size_t i = 0; i < n; i++)
            piece[i] = letter(&in);
        struct sl_stop_match got = sl_stop_feed(&g.stops, &g.state, piece, n, arm);
        struct sl_stop_match want = search(&g, piece, n, arm);
        SL_ASSERT(got.idx == want.idx);
        if (got.idx >= 0) {
            SL_ASSERT(got.begin == want.begin && got.end == want.end);
            return 0;
        }
        SL_ASSERT(sl_stop_held(&g.stops, &g.state) == held_back(&g));
    }
    return 0;
}
