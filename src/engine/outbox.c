/* SPDX-License-Identifier: MIT
 * An outbox is a list of requests linked through themselves, so it needs no capacity and a request
 * is on it at most once. The eventfd is written when the list becomes non-empty and read when the
 * reader finds it empty, both under the lock. Lock order: request, then outbox.
 */
#include "base/sys.h"
#include "engine/request.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

struct sl_outbox {
    pthread_mutex_t lock;
    struct sl_request *head, *tail;
    int event_fd;
    bool signalled;
};

int sl_outbox_create(struct sl_outbox **out, struct sl_error *err)
{
    struct sl_outbox *box = sl_calloc(1, sizeof *box);
    if (box == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for an outbox");
    box->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (box->event_fd < 0) {
        sl_free(box);
        return sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    }
    pthread_mutex_init(&box->lock, NULL);
    *out = box;
    return 0;
}

void sl_outbox_destroy(struct sl_outbox *box)
{
    if (box == NULL)
        return;
    SL_ASSERT(box->head == NULL);
    pthread_mutex_destroy(&box->lock);
    sl_sys->close(box->event_fd);
    sl_free(box);
}

int sl_outbox_fd(const struct sl_outbox *box)
{
    return box->event_fd;
}

void sl_outbox_push(struct sl_outbox *box, struct sl_request *req)
{
    pthread_mutex_lock(&box->lock);
    SL_ASSERT(req->box == box && (box->head == NULL) == (box->tail == NULL));
    if (!req->on_box) {
        req->on_box = true;
        req->box_next = NULL;
        req->box_prev = box->tail;
        if (box->tail != NULL)
            box->tail->box_next = req;
        else
            box->head = req;
        box->tail = req;
        if (!box->signalled) {
            uint64_t one = 1;
            ssize_t n = sl_sys->write(box->event_fd, &one, sizeof one);
            box->signalled = n == (ssize_t)sizeof one;
        }
    }
    pthread_mutex_unlock(&box->lock);
}

static void unlink_request(struct sl_outbox *box, struct sl_request *req)
{
    SL_ASSERT(req->on_box);
    SL_ASSERT(req->box_prev != NULL ? req->box_prev->box_next == req : box->head == req);
    SL_ASSERT(req->box_next != NULL ? req->box_next->box_prev == req : box->tail == req);
    if (req->box_prev != NULL)
        req->box_prev->box_next = req->box_next;
    else
        box->head = req->box_next;
    if (req->box_next != NULL)
        req->box_next->box_prev = req->box_prev;
    else
        box->tail = req->box_prev;
    req->box_prev = req->box_next = NULL;
    req->on_box = false;
}

void sl_outbox_remove(struct sl_outbox *box, struct sl_request *req)
{
    pthread_mutex_lock(&box->lock);
    if (req->on_box)
        unlink_request(box, req);
    pthread_mutex_unlock(&box->lock);
}

struct sl_request *sl_outbox_next(struct sl_outbox *box)
{
    pthread_mutex_lock(&box->lock);
    struct sl_request *req = box->head;
    if (req != NULL) {
        unlink_request(box, req);
    } else if (box->signalled) {
        uint64_t count;
        ssize_t n = sl_sys->read(box->event_fd, &count, sizeof count);
        (void)n; /* it was written, so it can be read */
        box->signalled = false;
    }
    pthread_mutex_unlock(&box->lock);
    return req;
}
