/* SPDX-License-Identifier: MIT
 * Inbox, outbox and queue against lists: what is put in comes out once, in order, and the
 * descriptors are readable exactly while there is something to see.
 */
#include "engine/core.h"
#include "fuzz.h"

#include "base/queue.h"

#include <poll.h>
#include <string.h>

#define N_REQS 8
#define CAP    5

struct list {
    int32_t item[256];
    int32_t head, n;
};

static struct sl_request reqs[N_REQS];
static struct sl_inbox inbox;
static struct sl_outbox *outbox;
static struct sl_queue queue;

static void append(struct list *l, int32_t i)
{
    SL_ASSERT(l->head + l->n < (int32_t)SL_COUNT(l->item));
    l->item[l->head + l->n++] = i;
}

static int32_t pop(struct list *l)
{
    if (l->n == 0)
        return -1;
    l->n--;
    return l->item[l->head++];
}

static bool remove_item(struct list *l, int32_t i)
{
    for (int32_t k = 0; k < l->n; k++) {
        int32_t *at = &l->item[l->head + k];
        if (*at != i)
            continue;
        memmove(at, at + 1, (size_t)(l->n - k - 1) * sizeof *at);
        l->n--;
        return true;
    }
    return false;
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void take_inbox(struct list *in, struct list *cancelled)
{
    struct sl_request *submitted, *cancels, *called;
    sl_inbox_take(&inbox, &submitted, &cancels, &called);
    SL_ASSERT(called == NULL);
    for (; submitted != NULL; submitted = submitted->inbox_next)
        SL_ASSERT(submitted - reqs == pop(in));
    for (; cancels != NULL; cancels = cancels->cancel_next)
        SL_ASSERT(cancels - reqs == pop(cancelled));
    SL_ASSERT(in->n == 0 && cancelled->n == 0 && !readable(inbox.event_fd));
}

static bool is_in(const struct list *l, int32_t i)
{
    for (int32_t k = 0; k < l->n; k++)
        if (l->item[l->head + k] == i)
            return true;
    return false;
}

struct model {
    struct list in, cancelled, out, queued;
    bool woken, closed;
};

static void operate(struct model *m, struct sl_input *op)
{
    int32_t what = sl_input_byte(op), i = what / 16 % N_REQS;
    switch (what % 12) {
    case 0:
    case 1:
        if (is_in(&m->in, i))
            break;
        SL_ASSERT(sl_inbox_submit(&inbox, &reqs[i]) == !m->closed);
        if (!m->closed)
            append(&m->in, i);
        break;
    case 2:
        if (is_in(&m->cancelled, i))
            break;
        atomic_store(&reqs[i].cancelled, true);
        sl_inbox_cancel(&inbox, &reqs[i]);
        append(&m->cancelled, i);
        break;
    case 3:
        take_inbox(&m->in, &m->cancelled);
        m->woken = false;
        break;
    case 4:
        if (what > 240)
            sl_inbox_close(&inbox);
        else
            sl_inbox_wake(&inbox);
        m->closed |= what > 240;
        m->woken = true;
        break;
    case 5:
    case 6:
        sl_outbox_push(outbox, &reqs[i]);
        if (!is_in(&m->out, i))
            append(&m->out, i);
        break;
    case 7: {
        const struct sl_request *r = sl_outbox_next(outbox);
        SL_ASSERT((r != NULL ? (int32_t)(r - reqs) : -1) == pop(&m->out));
        if (r == NULL)
            SL_ASSERT(!readable(sl_outbox_fd(outbox)));
        break;
    }
    case 8:
        sl_outbox_remove(outbox, &reqs[i]);
        (void)remove_item(&m->out, i);
        SL_ASSERT(!reqs[i].on_box);
        break;
    case 9:
    case 10:
        SL_ASSERT(sl_queue_try_push(&queue, &reqs[i]) == (m->queued.n < CAP));
        if (m->queued.n < CAP)
            append(&m->queued, i);
        break;
    default: {
        const struct sl_request *r = sl_queue_pop(&queue);
        SL_ASSERT((r != NULL ? (int32_t)(r - reqs) : -1) == pop(&m->queued));
        break;
    }
    }
}

static void check(const struct model *m)
{
    SL_ASSERT(sl_inbox_count(&inbox) == m->in.n);
    SL_ASSERT(readable(inbox.event_fd) == (m->in.n > 0 || m->cancelled.n > 0 || m->woken));
    SL_ASSERT(m->out.n == 0 || readable(sl_outbox_fd(outbox)));
    SL_ASSERT(sl_queue_count(&queue) == (size_t)m->queued.n);
    SL_ASSERT(readable(sl_queue_fd(&queue)) == (m->queued.n > 0));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    SL_ASSERT(sl_inbox_init(&inbox, NULL) == 0 && sl_outbox_create(&outbox, NULL) == 0);
    SL_ASSERT(sl_queue_init(&queue, CAP, NULL) == 0);
    for (size_t i = 0; i < SL_COUNT(reqs); i++)
        reqs[i].box = outbox;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct model m;
    struct sl_input op = {data, data + SL_MIN(size, SL_COUNT(m.in.item))};
    memset(&m, 0, sizeof m);
    while (!sl_input_empty(&op)) {
        operate(&m, &op);
        check(&m);
    }
    take_inbox(&m.in, &m.cancelled);
    inbox.closed = false; /* the next input begins with an open one */
    while (sl_queue_pop(&queue) != NULL)
        m.queued.n--;
    for (const struct sl_request *r; (r = sl_outbox_next(outbox)) != NULL;)
        SL_ASSERT(r - reqs == pop(&m.out));
    SL_ASSERT(m.out.n == 0 && m.queued.n == 0 && !readable(sl_outbox_fd(outbox)));
    return 0;
}
