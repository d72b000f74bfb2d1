/* SPDX-License-Identifier: MIT
 * queue.h - a bounded queue of pointers between threads, with an eventfd so that its reader can
 * sleep in poll or epoll. Any number of writers, one reader.
 *
 * The eventfd is written only when the queue goes from empty to not empty, and a reader that finds
 * it empty clears it under the same lock: an idle pair of threads makes no system call.
 */
#ifndef SL_BASE_QUEUE_H
#define SL_BASE_QUEUE_H

#include "base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct sl_queue {
    pthread_mutex_t lock;
    void **items;
    size_t cap, head, n;
    int event_fd;
};

SL_MUST_CHECK int sl_queue_init(struct sl_queue *q, size_t cap, struct sl_error *err);
void sl_queue_deinit(struct sl_queue *q);
SL_MUST_CHECK bool sl_queue_try_push(struct sl_queue *q, void *item); /* false: full */
void *sl_queue_pop(struct sl_queue *q);                               /* NULL: empty */
size_t sl_queue_count(struct sl_queue *q);
int sl_queue_fd(const struct sl_queue *q); /* readable while not empty */
/* Sleeps until the queue may have an item, or timeout_ms passed (-1: for ever). */
void sl_queue_wait(struct sl_queue *q, int timeout_ms);
/* Makes a sleeping reader return from sl_queue_wait although nothing was pushed. */
void sl_queue_wake(struct sl_queue *q);

#endif
