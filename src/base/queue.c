/* SPDX-License-Identifier: MIT */
#include "base/queue.h"

#include "base/sys.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

int sl_queue_init(struct sl_queue *q, size_t cap, struct sl_error *err)
{
    SL_ASSERT(cap > 0);
    *q = (struct sl_queue){.cap = cap, .event_fd = -1};
    q->items = sl_calloc(cap, sizeof *q->items);
    if (q->items == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a queue of %zu", cap);
    q->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (q->event_fd < 0) {
        sl_free(q->items);
        q->items = NULL; /* deinit then has nothing to do */
        return sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    }
    pthread_mutex_init(&q->lock, NULL);
    return 0;
}

void sl_queue_deinit(struct sl_queue *q)
{
    if (q->items == NULL)
        return;
    pthread_mutex_destroy(&q->lock);
    sl_sys->close(q->event_fd);
    sl_free(q->items);
    *q = (struct sl_queue){.event_fd = -1};
}

/* An eventfd counter cannot overflow here and the read end is ours: neither call can fail for real.
 */
static void queue_signal(const struct sl_queue *q)
{
    uint64_t one = 1;
    ssize_t n = sl_sys->write(q->event_fd, &one, sizeof one);
    (void)n;
}

static void queue_clear_signal(const struct sl_queue *q)
{
    uint64_t count;
    ssize_t n = sl_sys->read(q->event_fd, &count, sizeof count);
    (void)n;
}

bool sl_queue_try_push(struct sl_queue *q, void *item)
{
    SL_ASSERT(item != NULL);
    pthread_mutex_lock(&q->lock);
    bool fits = q->n < q->cap;
    if (fits) {
        q->items[(q->head + q->n) % q->cap] = item;
        if (q->n++ == 0)
            queue_signal(q);
    }
    pthread_mutex_unlock(&q->lock);
    return fits;
}

void *sl_queue_pop(struct sl_queue *q)
{
    void *item = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->n > 0) {
        item = q->items[q->head];
        q->head = (q->head + 1) % q->cap;
        if (--q->n == 0)
            queue_clear_signal(q);
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

size_t sl_queue_count(struct sl_queue *q)
{
    pthread_mutex_lock(&q->lock);
    size_t n = q->n;
    pthread_mutex_unlock(&q->lock);
    return n;
}

int sl_queue_fd(const struct sl_queue *q)
{
    return q->event_fd;
}

void sl_queue_wait(struct sl_queue *q, int timeout_ms)
{
    struct pollfd p = {.fd = q->event_fd, .events = POLLIN};
    int n = poll(&p, 1, timeout_ms);
    if (n == 1 && sl_queue_count(q) == 0)
        queue_clear_signal(q); /* a wake-up, not an item; an item pushed just now signals again */
}

void sl_queue_wake(struct sl_queue *q)
{
    queue_signal(q);
}
