/* SPDX-License-Identifier: MIT
 * rx_impl.h - what rx.c and rx_step.c share.
 */
#ifndef SL_GRAMMAR_RX_IMPL_H
#define SL_GRAMMAR_RX_IMPL_H

#include "grammar/rx.h"

enum sl_rx_op {
    RX_NONE,
    RX_EPS,
    RX_SET, /* a: index of the set */
    RX_CAT, /* a b */
    RX_ALT, /* operands kids[a .. a + b) */
    RX_AND,
    RX_NOT,  /* a */
    RX_REP,  /* a, lo to hi times */
    RX_LIST, /* strings lo to hi of list a, of which b bytes were read, the same in all */
    RX_MOD,  /* digits: value mod a is b, lo more digits count, hi: 0 before the point, 1 after */
};

#define SL_RX_DERIVED 2048 /* derivatives kept */

sl_rx_id sl_rx_fail(struct sl_rx *rx, int code, const char *what);
/* The machine has no memory, or the limit allows none. */
sl_rx_id sl_rx_no_room(struct sl_rx *rx, bool no_memory);
sl_rx_id sl_rx_list_at(struct sl_rx *rx, uint32_t list, uint32_t lo, uint32_t hi, uint32_t depth);
sl_rx_id sl_rx_multiple_of(struct sl_rx *rx, uint32_t k, uint32_t rest, int scale, int phase);

#endif
