/* SPDX-License-Identifier: MIT
 * The remote tier's start and end, its threads, and what the engine asks of it.
 */
#include "tier/remote.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/store_impl.h"

#include <stdatomic.h>
#include <time.h>

#define MS          UINT64_C(1000000)
#define SECOND      (1000 * MS)
#define START_NS    (2 * SECOND)  /* that a start waits for it */
#define CLOSE_NS    (5 * SECOND)  /* that an end waits for what is to be written */
#define LOOK_NS     (30 * SECOND) /* between looks at an idle remote */
#define FRESH_NS    (60 * SECOND) /* a rate that is older is not believed */
#define QUIET_NS    (3600 * SECOND)
#define MOST_UNSENT (UINT64_C(256) << 20)

enum { PROBE_NEW, PROBE_ASKED, PROBE_ANSWERED, PROBE_UNANSWERED };

bool sl_remote_serves(const struct sl_store *s)
{
    return s->remote != NULL && s->remote->up && !s->remote->closing;
}

/* ---- queues, under the lock ---- */

static void push(struct sl_store *s, struct sl_remote_queue *q, int32_t slot)
{
    SL_ASSERT(s->host.slots.slots[slot].n_holds > 0);
    s->jobs[slot].remote_next = SL_NO_SLOT;
    if (q->last != SL_NO_SLOT)
        s->jobs[q->last].remote_next = slot;
    else
        q->first = slot;
    q->last = slot;
    q->n++;
}

void sl_remote_read(struct sl_store *s, int32_t slot)
{
    SL_ASSERT(sl_remote_serves(s) && s->host.slots.slots[slot].state == SL_SLOT_OPEN);
    push(s, &s->remote->gets, slot);
    pthread_cond_signal(&s->remote->to_get);
}

void sl_remote_saw(struct sl_store *s, int32_t slot)
{
    struct sl_remote *r = s->remote;
    struct sl_page_job *job = &s->jobs[slot];
    const size_t n = sl_store_page_bytes(s, slot);
    SL_ASSERT(s->host.slots.slots[slot].state == SL_SLOT_READY);
    job->n_seen += job->n_seen < UINT32_MAX;
    if (job->sent || job->n_seen < s->cfg.remote_store_after)
        return;
    if (!sl_remote_serves(s) || r->unsent_bytes + n > r->most_unsent ||
        (r->put_rest_until != 0 && sl_now_ns() < r->put_rest_until)) {
        s->stats[SL_TIER_REMOTE].dropped++;
        return;
    }
    job->sent = true;
    r->unsent_bytes += n;
    sl_slots_hold(&s->host.slots, slot);
    push(s, &r->puts, slot);
    pthread_cond_signal(&r->to_put);
}

/* ---- questions ---- */

struct sl_store_probe *sl_store_probe_take(struct sl_store *s)
{
    struct sl_store_probe *p = NULL;
    if (s->remote == NULL)
        return NULL;
    pthread_mutex_lock(&s->lock);
    if (sl_remote_serves(s) && s->remote->free_probes != NULL) {
        p = s->remote->free_probes;
        s->remote->free_probes = p->next;
        p->n = 0;
        p->given_back = false;
        atomic_store(&p->state, PROBE_NEW);
    }
    pthread_mutex_unlock(&s->lock);
    return p;
}

bool sl_store_probe_add(struct sl_store_probe *p, const struct sl_store_key *key, bool known)
{
    SL_ASSERT(atomic_load(&p->state) == PROBE_NEW && p->n <= SL_MAX_TIER_PROBE);
    if (p->n == SL_MAX_TIER_PROBE)
        return false;
    p->keys[p->n] = *key;
    p->found[p->n++] = known;
    return true;
}

void sl_store_probe_send(struct sl_store *s, struct sl_store_probe *p, int32_t ends)
{
    struct sl_remote *r = s->remote;
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(atomic_load(&p->state) == PROBE_NEW && (r->first_probe == NULL || r->last_probe));
    p->ends = ends;
    p->deadline = sl_now_ns() + s->cfg.remote_timeout_ms * MS;
    p->next = NULL;
    s->stats[SL_TIER_REMOTE].probes++;
    if (sl_remote_serves(s)) {
        atomic_store(&p->state, PROBE_ASKED);
        if (r->first_probe != NULL)
            r->last_probe->next = p;
        else
            r->first_probe = p;
        r->last_probe = p;
        pthread_cond_signal(&r->to_ask);
    } else { /* it failed since */
        s->stats[SL_TIER_REMOTE].unanswered++;
        atomic_store(&p->state, PROBE_UNANSWERED);
    }
    pthread_mutex_unlock(&s->lock);
}

bool sl_store_probe_over(const struct sl_store_probe *p)
{
    return atomic_load(&p->state) != PROBE_ASKED || sl_now_ns() >= p->deadline;
}

bool sl_store_probe_found(const struct sl_store_probe *p, int32_t i)
{
    return i >= 0 && i < p->n && atomic_load(&p->state) == PROBE_ANSWERED && p->found[i];
}

static void free_probe(struct sl_remote *r, struct sl_store_probe *p)
{
    p->next = r->free_probes;
    r->free_probes = p;
}

void sl_store_probe_give(struct sl_store *s, struct sl_store_probe *p)
{
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(s->remote != NULL && !p->given_back);
    if (atomic_load(&p->state) == PROBE_ASKED)
        p->given_back = true; /* the thread that has it frees it */
    else
        free_probe(s->remote, p);
    pthread_mutex_unlock(&s->lock);
}

/* Under the lock, by the thread that took it out of the queue. */
static void end_probe(struct sl_store *s, struct sl_store_probe *p, bool answered)
{
    SL_ASSERT(atomic_load(&p->state) == PROBE_ASKED);
    s->stats[SL_TIER_REMOTE].unanswered += !answered;
    atomic_store(&p->state, answered ? PROBE_ANSWERED : PROBE_UNANSWERED);
    if (p->given_back)
        free_probe(s->remote, p);
}

static struct sl_store_probe *pop_probe(struct sl_remote *r)
{
    struct sl_store_probe *p = r->first_probe;
    if (p != NULL)
        r->first_probe = p->next;
    return p;
}

static void answer(struct sl_store *s, struct sl_remote_thread *t)
{
    struct sl_store_probe *p = pop_probe(s->remote);
    SL_ASSERT(p != NULL && p->n > 0);
    if (p->given_back || sl_now_ns() >= p->deadline) {
        end_probe(s, p, false);
        return;
    }
    end_probe(s, p, sl_remote_do_probe(s, t, p));
    pthread_mutex_unlock(&s->lock);
    sl_store_wake(s);
    pthread_mutex_lock(&s->lock);
}

double sl_store_remote_rate(struct sl_store *s)
{
    double rate = 0;
    if (s->remote == NULL)
        return 0;
    pthread_mutex_lock(&s->lock);
    const struct sl_remote *r = s->remote;
    if (r->busy_ns > 0 && sl_now_ns() - r->measured_at < FRESH_NS)
        rate = (double)r->got_bytes / ((double)r->busy_ns / 1e9);
    pthread_mutex_unlock(&s->lock);
    return rate;
}

/* ---- threads ---- */

static void wait_until(struct sl_store *s, pthread_cond_t *cond, uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
    (void)pthread_cond_timedwait(cond, &s->lock, &t);
}

/* Under the lock: it is reached again, or it is known what it is not. True: somebody waited for it.
 */
static bool connected(struct sl_store *s, int rc, const struct sl_error *why)
{
    struct sl_remote *r = s->remote;
    if (rc != 0) {
        const bool somebody = sl_remote_fail(s, why);
        if (rc == SL_EAUTH) /* it will hardly change: once is enough */
            r->quiet_until = sl_now_ns() + QUIET_NS;
        return somebody;
    }
    if (!r->up)
        sl_log(SL_LOG_INFO, "KV pages in %s: connected", r->kind->name);
    r->up = true;
    return false;
}

/* Connects after a rest, and looks whether an idle one is still there. */
static void keep(struct sl_store *s, struct sl_remote_thread *t)
{
    struct sl_error err = {0};
    pthread_mutex_unlock(&s->lock);
    int rc = sl_remote_connect(s, t, &err);
    pthread_mutex_lock(&s->lock);
    const bool somebody = connected(s, rc, &err);
    if (!somebody)
        return;
    pthread_mutex_unlock(&s->lock);
    sl_store_wake(s);
    pthread_mutex_lock(&s->lock);
}

static void *keeper_main(void *arg)
{
    struct sl_remote_thread *t = arg;
    struct sl_store *s = t->store;
    struct sl_remote *r = s->remote;
    uint64_t look_at = sl_now_ns() + LOOK_NS;
    pthread_mutex_lock(&s->lock);
    while (!r->closing) {
        const uint64_t now = sl_now_ns();
        if (r->first_probe != NULL) {
            SL_ASSERT(r->up);
            answer(s, t);
        } else if (now >= (r->up ? look_at : r->rest_until)) {
            keep(s, t);
            look_at = sl_now_ns() + LOOK_NS;
        } else {
            wait_until(s, &r->to_ask, r->up ? look_at : r->rest_until);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *reader_main(void *arg)
{
    struct sl_remote_thread *t = arg;
    struct sl_store *s = t->store;
    pthread_mutex_lock(&s->lock);
    while (!s->remote->closing) {
        if (s->remote->gets.n == 0)
            pthread_cond_wait(&s->remote->to_get, &s->lock);
        else
            sl_remote_do_get(s, t);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *writer_main(void *arg)
{
    struct sl_remote_thread *t = arg;
    struct sl_store *s = t->store;
    struct sl_remote *r = s->remote;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (r->puts.n == 0 && !r->closing)
            pthread_cond_wait(&r->to_put, &s->lock);
        if (r->closing && (!r->up || sl_now_ns() >= r->close_by))
            sl_remote_drop_puts(s);
        if (r->puts.n == 0)
            break;
        sl_remote_do_put(s, t);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- start and end ---- */

static int make_probes(struct sl_remote *r, struct sl_error *err)
{
    for (int i = 0; i < SL_REMOTE_PROBES; i++) {
        struct sl_store_probe *p = &r->probes[i];
        p->keys = sl_calloc(SL_MAX_TIER_PROBE, sizeof *p->keys);
        p->found = sl_calloc(SL_MAX_TIER_PROBE, sizeof *p->found);
        if (p->keys == NULL || p->found == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for questions to a remote tier");
        free_probe(r, p);
    }
    return 0;
}

static void init_waits(struct sl_remote *r)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->to_ask, &attr);
    pthread_cond_init(&r->to_get, &attr);
    pthread_cond_init(&r->to_put, &attr);
    pthread_condattr_destroy(&attr);
}

static int start_threads(struct sl_store *s, struct sl_error *err)
{
    struct sl_remote *r = s->remote;
    int rc = 0;
    for (int i = 0; rc == 0 && i < SL_REMOTE_THREADS; i++) {
        void *(*fn)(void *) = i == SL_REMOTE_KEEPER  ? keeper_main
                              : i < SL_REMOTE_WRITER ? reader_main
                                                     : writer_main;
        rc = sl_thread_create(&r->threads[i].thread, fn, &r->threads[i], "kv-remote", err);
        r->n_threads += rc == 0;
    }
    return rc;
}

/* The first contact, while names do not depend on the secret yet. */
static void reach(struct sl_store *s)
{
    struct sl_remote *r = s->remote;
    struct sl_remote_thread *t = &r->threads[SL_REMOTE_KEEPER];
    struct sl_error err = {0};
    const uint64_t deadline = sl_now_ns() + START_NS;
    int rc = r->kind->open(t->conn, deadline, &err);
    if (rc == 0)
        rc = r->kind->agree(t->conn, &s->seed, deadline, &err);
    t->open = rc == 0;
    if (rc != 0)
        r->kind->shut(t->conn);
    pthread_mutex_lock(&s->lock);
    (void)connected(s, rc, &err); /* nobody waits yet */
    pthread_mutex_unlock(&s->lock);
}

int sl_remote_open(struct sl_store *s, const struct sl_store_config *cfg, struct sl_error *err)
{
    struct sl_remote *r = sl_calloc(1, sizeof *r);
    SL_ASSERT(s->remote == NULL && cfg->remote_url != NULL && cfg->remote_timeout_ms > 0);
    if (r == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a remote tier");
    s->remote = r;
    r->gets = r->puts = (struct sl_remote_queue){SL_NO_SLOT, SL_NO_SLOT, 0};
    r->most_unsent =
        SL_MIN((uint64_t)s->host.slots.n_chunks * s->host.chunk_bytes / 4, MOST_UNSENT);
    init_waits(r);
    for (int32_t g = 0; g < cfg->n_groups; g++)
        r->pages[g] = (struct sl_slab_kind){cfg->root, cfg->page_bytes[g], g, 1};
    int rc = sl_remote_find(cfg->remote_url, &r->kind, err);
    if (rc == 0)
        rc = make_probes(r, err);
    for (int i = 0; rc == 0 && i < SL_REMOTE_THREADS; i++) {
        r->threads[i].store = s;
        rc = r->kind->create(cfg, &r->threads[i].conn, err);
    }
    if (rc != 0)
        return rc;
    reach(s);
    return start_threads(s, err);
}

static void stop_threads(struct sl_store *s)
{
    struct sl_remote *r = s->remote;
    pthread_mutex_lock(&s->lock);
    r->closing = true;
    r->close_by = sl_now_ns() + CLOSE_NS;
    pthread_cond_broadcast(&r->to_ask);
    pthread_cond_broadcast(&r->to_get);
    pthread_cond_broadcast(&r->to_put);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i].thread, NULL);
    pthread_mutex_lock(&s->lock);
    (void)sl_remote_drop_gets(s); /* that nobody waits for any more */
    sl_remote_drop_puts(s);
    pthread_mutex_unlock(&s->lock);
}

void sl_remote_close(struct sl_store *s)
{
    struct sl_remote *r = s->remote;
    if (r == NULL)
        return;
    stop_threads(s);
    for (int i = 0; i < SL_REMOTE_THREADS && r->kind != NULL; i++)
        r->kind->destroy(r->threads[i].conn);
    for (int i = 0; i < SL_REMOTE_PROBES; i++) {
        sl_free(r->probes[i].keys);
        sl_free(r->probes[i].found);
    }
    pthread_cond_destroy(&r->to_ask);
    pthread_cond_destroy(&r->to_get);
    pthread_cond_destroy(&r->to_put);
    sl_free(r);
    s->remote = NULL;
}

bool sl_remote_drop_probes(struct sl_store *s)
{
    struct sl_store_probe *p;
    bool some = false;
    while ((p = pop_probe(s->remote)) != NULL) {
        end_probe(s, p, false);
        some = true;
    }
    return some;
}
