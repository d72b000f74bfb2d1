/* SPDX-License-Identifier: MIT
 * What the threads of the remote tier do with their connections, and what happens when it fails.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/store_impl.h"

#include <stdatomic.h>

#define MS          UINT64_C(1000000)
#define SECOND      (1000 * MS)
#define LEAST_REST  SECOND
#define MOST_REST   (30 * SECOND)
#define LOG_EVERY   (10 * SECOND)
#define BATCH_BYTES (UINT64_C(16) << 20)
#define SLOWEST     (UINT64_C(16) << 20) /* bytes a second while no rate is known */
#define SLOWER      16 /* times than the rate of all connections a batch of one may come */
#define RATE_MEMORY (UINT64_C(1) << 30) /* bytes after which what was measured counts half */

/* ---- failures, under the lock ---- */

bool sl_remote_fail(struct sl_store *s, const struct sl_error *why)
{
    struct sl_remote *r = s->remote;
    const uint64_t now = sl_now_ns();
    s->stats[SL_TIER_REMOTE].io_errors++;
    r->up = false;
    r->rest_ns = r->rest_ns == 0 ? LEAST_REST : SL_MIN(2 * r->rest_ns, MOST_REST);
    r->rest_until = now + r->rest_ns;
    const bool gets = sl_remote_drop_gets(s), probes = sl_remote_drop_probes(s);
    sl_remote_drop_puts(s);
    pthread_cond_broadcast(&r->to_ask);
    SL_ASSERT(r->rest_until > now && r->gets.n == 0 && r->puts.n == 0 && r->first_probe == NULL);
    if (now >= r->quiet_until) {
        r->quiet_until = now + LOG_EVERY;
        sl_log(SL_LOG_WARN, "KV pages in %s: %s; not asked for %.0f s", r->kind->name, why->msg,
               (double)r->rest_ns / 1e9);
    }
    return gets || probes;
}

static int32_t pop(struct sl_store *s, struct sl_remote_queue *q)
{
    int32_t slot = q->first;
    SL_ASSERT(q->n > 0 && slot != SL_NO_SLOT && s->host.slots.slots[slot].n_holds > 0);
    q->first = s->jobs[slot].remote_next;
    if (q->first == SL_NO_SLOT)
        q->last = SL_NO_SLOT;
    q->n--;
    return slot;
}

/* The page of a slot does not come. */
static bool lose(struct sl_store *s, int32_t slot)
{
    bool somebody = sl_store_tell(s, slot, false, SL_TIER_REMOTE);
    sl_slots_drop(&s->host.slots, slot);
    return somebody;
}

bool sl_remote_drop_gets(struct sl_store *s)
{
    bool somebody = false;
    while (s->remote->gets.n > 0)
        somebody |= lose(s, pop(s, &s->remote->gets));
    return somebody;
}

/* The page of a slot is written, or will not be. */
static void let_go(struct sl_store *s, int32_t slot, bool sent)
{
    const size_t n = sl_store_page_bytes(s, slot);
    SL_ASSERT(s->remote->unsent_bytes >= n);
    s->remote->unsent_bytes -= n;
    s->jobs[slot].sent = sent;
    s->stats[SL_TIER_REMOTE].dropped += !sent;
    sl_slots_release(&s->host.slots, slot);
}

void sl_remote_drop_puts(struct sl_store *s)
{
    while (s->remote->puts.n > 0)
        let_go(s, pop(s, &s->remote->puts), false);
}

/* It rests from now on, and who waited for it is told. */
static void fail(struct sl_store *s, const struct sl_error *why)
{
    if (!sl_remote_fail(s, why))
        return;
    pthread_mutex_unlock(&s->lock);
    sl_store_wake(s);
    pthread_mutex_lock(&s->lock);
}

/* ---- connections, without the lock ---- */

static void shut(struct sl_store *s, struct sl_remote_thread *t)
{
    s->remote->kind->shut(t->conn);
    t->open = t->used = false;
}

static int open_conn(struct sl_store *s, struct sl_remote_thread *t, uint64_t deadline,
                     struct sl_error *err)
{
    int rc = t->open ? 0 : s->remote->kind->open(t->conn, deadline, err);
    t->open = rc == 0;
    if (rc != 0)
        shut(s, t);
    return rc;
}

struct work { /* of a thread, with its connection */
    int (*fn)(struct sl_store *s, struct sl_remote_thread *t, struct work *w, struct sl_error *err);
    uint64_t deadline;
    struct sl_store_probe *probe;
    int32_t n;     /* pages */
    int32_t n_new; /* of those to be written, not there yet: the first ones */
};

/* A connection that was idle may have been closed by the peer: that is no failure, if another one
 * does the work. */
static int work(struct sl_store *s, struct sl_remote_thread *t, struct work *w,
                struct sl_error *err)
{
    const bool old = t->open && t->used;
    SL_ASSERT(w->fn != NULL && w->deadline > 0 && (t->open || !t->used));
    int rc = open_conn(s, t, w->deadline, err);
    if (rc == 0)
        rc = w->fn(s, t, w, err);
    if (rc == SL_EIO && old && sl_now_ns() < w->deadline) {
        shut(s, t);
        rc = open_conn(s, t, w->deadline, err);
        if (rc == 0)
            rc = w->fn(s, t, w, err);
    }
    if (rc == 0)
        t->used = true;
    else
        shut(s, t);
    return rc;
}

static int check_secret(struct sl_store *s, struct sl_remote_thread *t, struct work *w,
                        struct sl_error *err)
{
    uint64_t seed = s->seed;
    int rc = s->remote->kind->agree(t->conn, &seed, w->deadline, err);
    if (rc == 0 && seed != s->seed)
        rc = sl_fail(err, SL_EAUTH,
                     "it has pages of servers with another secret, which came "
                     "first: it is used from the next start on");
    return rc;
}

int sl_remote_connect(struct sl_store *s, struct sl_remote_thread *t, struct sl_error *err)
{
    struct work w = {.fn = check_secret, .deadline = sl_now_ns() + SECOND};
    return work(s, t, &w, err);
}

/* ---- asking ---- */

static int ask(struct sl_store *s, struct sl_remote_thread *t, struct work *w, struct sl_error *err)
{
    struct sl_store_probe *p = w->probe;
    return s->remote->kind->probe(t->conn, p->keys, p->n, p->ends, p->found, w->deadline, err);
}

bool sl_remote_do_probe(struct sl_store *s, struct sl_remote_thread *t, struct sl_store_probe *p)
{
    struct work w = {.fn = ask, .deadline = p->deadline, .probe = p};
    struct sl_error err = {0};
    pthread_mutex_unlock(&s->lock);
    int rc = work(s, t, &w, &err);
    pthread_mutex_lock(&s->lock);
    if (rc != 0)
        (void)sl_remote_fail(s, &err); /* the caller wakes the engine */
    else
        s->remote->rest_ns = 0;
    return rc == 0;
}

/* ---- reading ---- */

/* As long as a batch may take. */
static uint64_t patience(const struct sl_store *s, uint64_t n_bytes)
{
    const struct sl_remote *r = s->remote;
    double rate = (double)SLOWEST;
    if (r->busy_ns > 0 && r->got_bytes > 0)
        rate = (double)r->got_bytes / ((double)r->busy_ns / 1e9) / SLOWER;
    const double s_needed = (double)n_bytes / rate;
    return s->cfg.remote_timeout_ms * MS + (uint64_t)(SL_MIN(s_needed, 5.0) * 1e9);
}

/* A share of what waits, so that all connections get some. Returns the bytes. */
static uint64_t take_batch(struct sl_store *s, struct sl_remote_thread *t,
                           struct sl_remote_queue *q, int n_threads, int32_t *n)
{
    const int32_t share = SL_MIN(SL_CEIL_DIV(q->n, n_threads), SL_REMOTE_BATCH);
    const bool get = q == &s->remote->gets;
    uint64_t bytes = 0;
    SL_ASSERT(q->n > 0 && share >= 1);
    *n = 0;
    while (*n < share && q->n > 0 && bytes < BATCH_BYTES) {
        const int32_t slot = pop(s, q);
        if (get && s->jobs[slot].waiters == NULL) { /* nobody wants it any more */
            sl_slots_drop(&s->host.slots, slot);
            continue;
        }
        t->slots[*n] = slot;
        t->pages[(*n)++] = (struct sl_remote_page){
            .key = {s->host.slots.slots[slot].name, sl_slot_group(&s->host.slots, slot)},
            .bytes = sl_host_page(&s->host, slot),
            .n_bytes = sl_store_page_bytes(s, slot)};
        bytes += sl_store_page_bytes(s, slot);
    }
    return bytes;
}

/* Reads a batch, and removes there what is not what it should be. */
static int read_batch(struct sl_store *s, struct sl_remote_thread *t, struct work *w,
                      struct sl_error *err)
{
    const struct sl_remote_kind *kind = s->remote->kind;
    SL_ASSERT(w->n >= 1 && w->n <= SL_REMOTE_BATCH);
    int rc = kind->get(t->conn, t->pages, w->n, w->deadline, err);
    for (int32_t i = 0; rc == 0 && i < w->n; i++) {
        struct sl_remote_page *p = &t->pages[i];
        if (p->result == SL_REMOTE_DONE &&
            !sl_remote_head_right(p->head, &s->remote->pages[p->key.group], &p->key.name, p->bytes))
            p->result = SL_REMOTE_BAD;
    }
    for (int32_t i = 0; rc == 0 && i < w->n; i++) {
        if (t->pages[i].result == SL_REMOTE_BAD)
            rc = kind->forget(t->conn, &t->pages[i].key, w->deadline, err);
    }
    return rc;
}

/* Under the lock: a page came, or did not. */
static bool page_came(struct sl_store *s, int32_t slot, enum sl_remote_result got)
{
    struct sl_store_stats *st = &s->stats[SL_TIER_REMOTE];
    if (got != SL_REMOTE_DONE) {
        st->corrupt += got == SL_REMOTE_BAD;
        return lose(s, slot);
    }
    const size_t n = sl_store_page_bytes(s, slot);
    st->loaded_bytes += n;
    s->remote->got_bytes += n;
    s->jobs[slot].sent = true;
    sl_slots_ready(&s->host.slots, slot);
    bool somebody = sl_store_tell(s, slot, true, SL_TIER_REMOTE);
    if (s->has_disk)
        sl_store_write(s, slot);
    sl_slots_release(&s->host.slots, slot);
    return somebody;
}

/* Time counts once, however many connections read in it. */
static void count_time(struct sl_remote *r, bool begins)
{
    const uint64_t now = sl_now_ns();
    SL_ASSERT(r->n_busy >= !begins && r->n_busy <= SL_REMOTE_READERS);
    if (begins && r->n_busy++ == 0)
        r->busy_since = now;
    if (begins || --r->n_busy > 0)
        return;
    r->busy_ns += now - r->busy_since;
    r->measured_at = now;
    if (r->got_bytes > RATE_MEMORY) {
        r->got_bytes /= 2;
        r->busy_ns /= 2;
    }
}

void sl_remote_do_get(struct sl_store *s, struct sl_remote_thread *t)
{
    struct work w = {.fn = read_batch};
    struct sl_error err = {0};
    bool somebody = false;
    const uint64_t n_bytes = take_batch(s, t, &s->remote->gets, SL_REMOTE_READERS, &w.n);
    if (w.n == 0)
        return;
    w.deadline = sl_now_ns() + patience(s, n_bytes);
    count_time(s->remote, true);
    pthread_mutex_unlock(&s->lock);
    int rc = work(s, t, &w, &err);
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < w.n; i++) /* what came before a failure is right, if it is whole */
        somebody |= page_came(s, t->slots[i], rc == 0 ? t->pages[i].result : SL_REMOTE_NONE);
    count_time(s->remote, false);
    if (rc != 0)
        somebody |= sl_remote_fail(s, &err);
    else
        s->remote->rest_ns = 0;
    if (!somebody)
        return;
    pthread_mutex_unlock(&s->lock);
    sl_store_wake(s);
    pthread_mutex_lock(&s->lock);
}

/* ---- writing ---- */

/* Other servers may have written a page: its name says what it is. */
static int write_batch(struct sl_store *s, struct sl_remote_thread *t, struct work *w,
                       struct sl_error *err)
{
    const struct sl_remote_kind *kind = s->remote->kind;
    struct sl_store_key keys[SL_REMOTE_BATCH];
    bool there[SL_REMOTE_BATCH] = {false};
    SL_ASSERT(w->n >= 1 && w->n <= SL_REMOTE_BATCH);
    for (int32_t i = 0; i < w->n; i++)
        keys[i] = t->pages[i].key;
    int rc = kind->probe(t->conn, keys, w->n, -1, there, w->deadline, err);
    w->n_new = 0;
    for (int32_t i = 0; rc == 0 && i < w->n; i++) {
        if (there[i])
            continue;
        const int32_t k = w->n_new++, slot = t->slots[i];
        SL_ASSERT(k <= i);
        struct sl_remote_page page = t->pages[i];
        sl_remote_put_head(page.head, &s->remote->pages[page.key.group], &page.key.name,
                           page.bytes);
        t->pages[i] = t->pages[k];
        t->slots[i] = t->slots[k];
        t->pages[k] = page;
        t->slots[k] = slot;
    }
    if (rc == 0 && w->n_new > 0)
        rc = kind->put(t->conn, t->pages, w->n_new, w->deadline, err);
    return rc;
}

static void refused(struct sl_store *s, const struct sl_error *why)
{
    struct sl_remote *r = s->remote;
    const uint64_t now = sl_now_ns();
    r->put_rest_until = now + SECOND;
    if (now < r->quiet_until)
        return;
    r->quiet_until = now + LOG_EVERY;
    sl_log(SL_LOG_WARN, "KV pages in %s: not written: %s", r->kind->name, why->msg);
}

void sl_remote_do_put(struct sl_store *s, struct sl_remote_thread *t)
{
    struct sl_store_stats *st = &s->stats[SL_TIER_REMOTE];
    struct work w = {.fn = write_batch};
    struct sl_error err = {0};
    bool full = false;
    const uint64_t n_bytes = take_batch(s, t, &s->remote->puts, SL_REMOTE_WRITERS, &w.n);
    w.deadline = sl_now_ns() + patience(s, n_bytes) + SECOND;
    pthread_mutex_unlock(&s->lock);
    int rc = work(s, t, &w, &err);
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < w.n; i++) {
        const bool is_new = i < w.n_new;
        const bool done = rc == 0 && (!is_new || t->pages[i].result == SL_REMOTE_DONE);
        st->stored += done && is_new;
        st->stored_bytes += done && is_new ? t->pages[i].n_bytes : 0;
        full |= rc == 0 && !done;
        let_go(s, t->slots[i], done);
    }
    if (rc != 0)
        fail(s, &err);
    else if (full)
        refused(s, &err);
}
