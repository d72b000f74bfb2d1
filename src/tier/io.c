/* SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/sys.h"
#include "tier/store_impl.h"

#include <stdatomic.h>

#define RETRY_AFTER 1000000000u /* ns: a disk that refused a page is left alone for so long */

/* ---- queues ---- */

static void push(struct sl_store *s, struct sl_page_queue *q, int32_t slot)
{
    s->jobs[slot].next = SL_NO_SLOT;
    if (q->last != SL_NO_SLOT)
        s->jobs[q->last].next = slot;
    else
        q->first = slot;
    q->last = slot;
}

static int32_t pop(struct sl_store *s, struct sl_page_queue *q)
{
    int32_t slot = q->first;
    SL_ASSERT(slot != SL_NO_SLOT && s->host.slots.slots[slot].n_holds > 0);
    q->first = s->jobs[slot].next;
    if (q->first == SL_NO_SLOT)
        q->last = SL_NO_SLOT;
    return slot;
}

void sl_store_write(struct sl_store *s, int32_t slot)
{
    size_t n = sl_store_page_bytes(s, slot);
    SL_ASSERT(s->has_disk && s->host.slots.slots[slot].state == SL_SLOT_READY);
    bool refused = s->disk.retry_at != 0 && sl_now_ns() < s->disk.retry_at;
    if (refused || s->io.unwritten_bytes + n > s->io.most_unwritten) {
        s->stats[SL_TIER_DISK].dropped++;
        return;
    }
    s->io.unwritten_bytes += n;
    sl_slots_hold(&s->host.slots, slot);
    push(s, &s->io.writes, slot);
    pthread_cond_signal(&s->io.to_write);
}

void sl_store_read(struct sl_store *s, int32_t slot, int32_t disk_slot)
{
    SL_ASSERT(s->has_disk && s->host.slots.slots[slot].state == SL_SLOT_OPEN);
    sl_slots_hold(&s->disk.slots, disk_slot);
    s->jobs[slot].disk_slot = disk_slot;
    push(s, &s->io.reads, slot);
    pthread_cond_signal(&s->io.to_read);
}

static struct sl_store_key key_of(const struct sl_store *s, int32_t slot)
{
    return (struct sl_store_key){s->host.slots.slots[slot].name,
                                 sl_slot_group(&s->host.slots, slot)};
}

/* ---- writing, under the lock but for the file ---- */

static void written(struct sl_store *s, int32_t on_disk, size_t n, bool done)
{
    struct sl_store_stats *st = &s->stats[SL_TIER_DISK];
    if (done) {
        sl_slots_ready(&s->disk.slots, on_disk);
        sl_slots_release(&s->disk.slots, on_disk);
        st->stored++;
        st->stored_bytes += n;
        s->disk.retry_at = 0;
    } else {
        sl_slots_drop(&s->disk.slots, on_disk);
        st->io_errors++;
        st->dropped++;
        s->disk.retry_at = sl_now_ns() + RETRY_AFTER;
    }
}

/* What waits in the queue when the disk refuses is dropped at once, so that no close waits for a
 * broken disk. */
static void write_page(struct sl_store *s, int32_t slot)
{
    struct sl_store_key key = key_of(s, slot);
    size_t n = sl_store_page_bytes(s, slot);
    bool refused = s->disk.retry_at != 0 && sl_now_ns() < s->disk.retry_at;
    bool there = sl_slots_find(&s->disk.slots, &key) != SL_NO_SLOT;
    int32_t on_disk = refused || there ? SL_NO_SLOT : sl_slots_take(&s->disk.slots, &key);
    if (on_disk != SL_NO_SLOT) {
        const uint8_t *page = sl_host_page(&s->host, slot);
        uint64_t used = s->disk.slots.slots[on_disk].used;
        const bool hurry = s->io.unwritten_bytes > s->io.most_unwritten / 4;
        pthread_mutex_unlock(&s->lock);
        enum sl_disk_result got = sl_disk_write(&s->disk, on_disk, &key, used, page, hurry);
        pthread_mutex_lock(&s->lock);
        written(s, on_disk, n, got == SL_DISK_DONE);
    } else if (!there) {
        s->stats[SL_TIER_DISK].dropped++;
    }
    SL_ASSERT(s->io.unwritten_bytes >= n);
    s->io.unwritten_bytes -= n;
    sl_slots_release(&s->host.slots, slot);
}

static void *write_pages(void *arg)
{
    struct sl_store *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->io.writes.first == SL_NO_SLOT && !s->io.closing)
            pthread_cond_wait(&s->io.to_write, &s->lock);
        if (s->io.writes.first == SL_NO_SLOT)
            break;
        write_page(s, pop(s, &s->io.writes));
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- reading ---- */

/* The page of a slot came from the disk, or did not; true: somebody waited for it. */
static bool page_read(struct sl_store *s, int32_t slot, enum sl_disk_result got)
{
    struct sl_store_stats *st = &s->stats[SL_TIER_DISK];
    bool here = got == SL_DISK_DONE;
    if (here) {
        st->loaded_bytes += sl_store_page_bytes(s, slot);
        sl_slots_ready(&s->host.slots, slot);
        sl_slots_release(&s->disk.slots, s->jobs[slot].disk_slot);
    } else {
        st->corrupt += got == SL_DISK_CORRUPT;
        st->io_errors += got == SL_DISK_FAILED;
        sl_slots_drop(&s->disk.slots, s->jobs[slot].disk_slot);
    }
    bool somebody = sl_store_tell(s, slot, here, SL_TIER_DISK);
    if (here)
        sl_slots_release(&s->host.slots, slot);
    else
        sl_slots_drop(&s->host.slots, slot);
    return somebody;
}

static void read_page(struct sl_store *s, int32_t slot)
{
    struct sl_store_key key = key_of(s, slot);
    int32_t on_disk = s->jobs[slot].disk_slot;
    if (s->jobs[slot].waiters == NULL) { /* nobody wants it any more */
        sl_slots_release(&s->disk.slots, on_disk);
        sl_slots_drop(&s->host.slots, slot);
        return;
    }
    uint8_t *page = sl_host_page(&s->host, slot);
    pthread_mutex_unlock(&s->lock);
    enum sl_disk_result got = sl_disk_read(&s->disk, on_disk, &key, page);
    pthread_mutex_lock(&s->lock);
    if (!page_read(s, slot, got))
        return;
    pthread_mutex_unlock(&s->lock);
    sl_store_wake(s);
    pthread_mutex_lock(&s->lock);
}

static void *read_pages(void *arg)
{
    struct sl_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->io.closing) {
        if (s->io.reads.first == SL_NO_SLOT)
            pthread_cond_wait(&s->io.to_read, &s->lock);
        else
            read_page(s, pop(s, &s->io.reads));
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- threads ---- */

int sl_store_io_start(struct sl_store *s, struct sl_error *err)
{
    const struct sl_page_queue empty = {SL_NO_SLOT, SL_NO_SLOT};
    int rc = 0;
    s->io.reads = s->io.writes = empty;
    /* Half of the memory at most is kept from being evicted because a disk is slow. */
    s->io.most_unwritten = (uint64_t)s->host.slots.n_chunks * s->host.chunk_bytes / 2;
    pthread_cond_init(&s->io.to_read, NULL);
    pthread_cond_init(&s->io.to_write, NULL);
    for (int i = 0; rc == 0 && i < 1 + SL_TIER_READERS; i++) {
        rc = sl_thread_create(&s->io.threads[i], i == 0 ? write_pages : read_pages, s,
                              i == 0 ? "kv-write" : "kv-read", err);
        s->io.n_threads += rc == 0;
    }
    return rc;
}

void sl_store_io_stop(struct sl_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->io.closing = true;
    pthread_cond_broadcast(&s->io.to_read);
    pthread_cond_broadcast(&s->io.to_write);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->io.n_threads; i++)
        pthread_join(s->io.threads[i], NULL);
    pthread_cond_destroy(&s->io.to_write);
    pthread_cond_destroy(&s->io.to_read);
}
