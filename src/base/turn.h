/* SPDX-License-Identifier: MIT
 * turn.h - a lock that is passed on in the order it was asked for.
 *
 * For what is held long and asked for again at once, where a mutex would let one thread take it
 * time after time while another waits. Who waits sleeps. Holding it is not recursive.
 */
#ifndef SL_BASE_TURN_H
#define SL_BASE_TURN_H

#include <pthread.h>
#include <stdint.h>

struct sl_turn {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_asked, n_passed; /* lock: whose number is n_passed holds it */
};

void sl_turn_init(struct sl_turn *t);
void sl_turn_deinit(struct sl_turn *t); /* nobody holds it or waits */
void sl_turn_take(struct sl_turn *t);
void sl_turn_pass(struct sl_turn *t);

#endif
