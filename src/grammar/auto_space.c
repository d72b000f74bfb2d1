/* SPDX-License-Identifier: MIT
 * auto_space.c - whitespace between the tokens of JSON.
 *
 * A sampled model that may write whitespace goes on with it for as long as it is allowed, so by
 * default there is no more than a printer of JSON writes: nothing or one space, and where a line
 * may end (behind {, [ and the comma, before } and ]) a line end with an indentation of at most
 * four spaces or one tab per level. whitespace_pattern says what else may stand everywhere.
 */
#include "base/check.h"
#include "grammar/auto_impl.h"
#include "grammar/regex.h"

#include <string.h>

enum { SPACES_PER_LEVEL = 4 };

static sl_rx_id blanks(struct sl_rx *rx, char c, int32_t most)
{
    return sl_rx_rep(rx, sl_rx_range(rx, (uint8_t)c, (uint8_t)c), 0, most);
}

static sl_rx_id line(struct sl_auto *a, uint32_t depth)
{
    struct sl_rx *rx = &a->rx;
    SL_ASSERT(depth <= SL_AUTO_MAX_DEPTH);
    if (a->lines[depth] == SL_RX_NONE) {
        sl_rx_id indent = sl_rx_or2(rx, blanks(rx, ' ', (int32_t)depth * SPACES_PER_LEVEL),
                                    blanks(rx, '\t', (int32_t)depth));
        indent = sl_rx_cat(rx, sl_rx_range(rx, '\n', '\n'), indent);
        a->lines[depth] = sl_rx_or2(rx, blanks(rx, ' ', 1), indent);
    }
    return a->lines[depth];
}

sl_rx_id sl_space_at(struct sl_auto *a, const struct sl_vec *frame)
{
    SL_ASSERT(frame->kind == SL_VEC_OBJECT || frame->kind == SL_VEC_ARRAY);
    uint32_t phase = frame->v[FR_PHASE];
    if (a->space != SL_RX_NONE)
        return a->space;
    if (frame->kind == SL_VEC_OBJECT && (phase == PH_COLON || phase == PH_VALUE))
        return blanks(&a->rx, ' ', 1);
    return line(a, frame->v[FR_DEPTH]);
}

int sl_space_init(struct sl_auto *a, const char *pattern, struct sl_error *err)
{
    static const char field[] = "whitespace_pattern";
    struct sl_rx *rx = &a->rx;
    struct sl_rx_bytes set = {0};
    a->space = SL_RX_NONE;
    if (pattern == NULL)
        return 0;
    int rc = sl_regex_parse(rx, pattern, strlen(pattern), 0, SL_SPELL_UTF8, &a->space, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "%s", field);
    for (const char *c = " \t\r\n"; *c != 0; c++)
        sl_rx_bytes_add(&set, (uint8_t)*c, (uint8_t)*c);
    sl_rx_id json = sl_rx_rep(rx, sl_rx_set(rx, &set), 0, SL_RX_INF), white;
    rc = sl_regex_parse(rx, "\\s*", 3, 0, SL_SPELL_UTF8, &white, err);
    if (rc != 0)
        return rc;
    if (sl_rx_alive(rx, sl_rx_and2(rx, a->space, sl_rx_not(rx, white))))
        return sl_fail(err, SL_EINVAL, "%s: it matches other text than whitespace", field);
    if (sl_rx_alive(rx, sl_rx_and2(rx, a->space, sl_rx_not(rx, json))))
        a->space = sl_rx_and2(rx, a->space, json); /* \s knows more than JSON does */
    if (!sl_rx_alive(rx, a->space))
        return sl_fail(err, SL_EINVAL, "%s: it matches no whitespace of JSON", field);
    return sl_rx_check(rx, err);
}
