/* SPDX-License-Identifier: MIT */
#include "base/sys.h"
#include "engine/core.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

int sl_inbox_init(struct sl_inbox *in, struct sl_error *err)
{
    *in = (struct sl_inbox){.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    if (in->event_fd < 0)
        return sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    pthread_mutex_init(&in->lock, NULL);
    return 0;
}

void sl_inbox_deinit(struct sl_inbox *in)
{
    SL_ASSERT(in->submitted == NULL && in->cancelled == NULL && in->called == NULL);
    pthread_mutex_destroy(&in->lock);
    sl_sys->close(in->event_fd);
}

/* With the lock held. */
static void signal_engine(struct sl_inbox *in)
{
    if (in->signalled)
        return;
    uint64_t one = 1;
    ssize_t n = sl_sys->write(in->event_fd, &one, sizeof one);
    in->signalled = n == (ssize_t)sizeof one;
}

bool sl_inbox_submit(struct sl_inbox *in, struct sl_request *req)
{
    pthread_mutex_lock(&in->lock);
    bool open = !in->closed;
    if (open) {
        SL_ASSERT((in->submitted == NULL) == (in->n_submitted == 0));
        SL_ASSERT(in->submitted_tail != req); /* once only */
        req->inbox_next = NULL;
        if (in->submitted_tail != NULL)
            in->submitted_tail->inbox_next = req;
        else
            in->submitted = req;
        in->submitted_tail = req;
        in->n_submitted++;
        signal_engine(in);
    }
    pthread_mutex_unlock(&in->lock);
    return open;
}

void sl_inbox_cancel(struct sl_inbox *in, struct sl_request *req)
{
    pthread_mutex_lock(&in->lock);
    SL_ASSERT((in->cancelled == NULL) == (in->cancelled_tail == NULL));
    SL_ASSERT(in->cancelled_tail != req && atomic_load(&req->cancelled));
    req->cancel_next = NULL;
    if (in->cancelled_tail != NULL)
        in->cancelled_tail->cancel_next = req;
    else
        in->cancelled = req;
    in->cancelled_tail = req;
    signal_engine(in);
    pthread_mutex_unlock(&in->lock);
}

void sl_inbox_call(struct sl_inbox *in, struct sl_request *req)
{
    pthread_mutex_lock(&in->lock);
    SL_ASSERT(in->called != req && atomic_load(&req->called));
    req->call_next = in->called;
    in->called = req;
    signal_engine(in);
    pthread_mutex_unlock(&in->lock);
}

void sl_inbox_wake(struct sl_inbox *in)
{
    pthread_mutex_lock(&in->lock);
    signal_engine(in);
    pthread_mutex_unlock(&in->lock);
}

void sl_inbox_close(struct sl_inbox *in)
{
    pthread_mutex_lock(&in->lock);
    in->closed = true;
    signal_engine(in);
    pthread_mutex_unlock(&in->lock);
}

void sl_inbox_wait(struct sl_inbox *in, int timeout_ms)
{
    struct pollfd p = {.fd = in->event_fd, .events = POLLIN};
    int n = poll(&p, 1, timeout_ms);
    (void)n; /* interrupted or timed out: the caller looks again anyway */
}

void sl_inbox_take(struct sl_inbox *in, struct sl_request **submitted,
                   struct sl_request **cancelled, struct sl_request **called)
{
    pthread_mutex_lock(&in->lock);
    *submitted = in->submitted;
    *cancelled = in->cancelled;
    *called = in->called;
    in->called = NULL;
    in->submitted = in->submitted_tail = NULL;
    in->cancelled = in->cancelled_tail = NULL;
    SL_ASSERT((*submitted == NULL) == (in->n_submitted == 0));
    in->n_submitted = 0;
    if (in->signalled) {
        uint64_t count;
        ssize_t n = sl_sys->read(in->event_fd, &count, sizeof count);
        (void)n; /* it was written, so it can be read */
        in->signalled = false;
    }
    pthread_mutex_unlock(&in->lock);
}

int32_t sl_inbox_count(struct sl_inbox *in)
{
    pthread_mutex_lock(&in->lock);
    int32_t n = in->n_submitted;
    pthread_mutex_unlock(&in->lock);
    return n;
}
