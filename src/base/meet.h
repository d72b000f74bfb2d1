/* SPDX-License-Identifier: MIT
 * meet.h - a barrier: threads that wait for one another, again and again.
 *
 * What a thread wrote before it came is seen by all that leave. Who comes early looks for the
 * others for a moment and then sleeps; where there are fewer cores than threads it sleeps at once.
 */
#ifndef SL_BASE_MEET_H
#define SL_BASE_MEET_H

#include <stdatomic.h>
#include <stdint.h>

struct sl_meet {
    _Atomic uint32_t n;  /* threads; fewer may be expected while some wait */
    uint64_t spin_ticks; /* 0: sleep at once */
    _Alignas(64) _Atomic uint32_t n_here;
    _Alignas(64) _Atomic uint32_t round; /* what sleepers sleep on */
    _Atomic uint32_t n_sleeping;
};

void sl_meet_init(struct sl_meet *m, int n);
/* Returns when all n threads are here. */
void sl_meet_wait(struct sl_meet *m);

#endif
