/* SPDX-License-Identifier: MIT */
#include "dist/leader.h"

#include "base/check.h"
#include "base/log.h"
#include "base/shm.h"
#include "base/sys.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define DIAL_MS 3000  /* for a connection to say who it is */
#define LINK_MS 60000 /* for a rank to be ready once it was told where to meet */
#define END_MS  1000  /* for a rank to read that it is over */
#define TICK_MS 50
#define BEATS   6 /* in a timeout */
#define PROBE   4096u

enum dial_state { DIAL_FREE, DIAL_HELLO, DIAL_PROOF };

struct dial { /* a connection that has not said yet, or not proven, who it is */
    enum dial_state state;
    uint64_t end_ns;
    struct sl_note_conn conn;
    struct sl_note_hello hello;
    uint8_t nonce[SL_RANK_NONCE];
};

enum peer_state { PEER_NONE, PEER_LOADING, PEER_LOADED, PEER_LINKED, PEER_READY };

struct peer {
    enum peer_state state;
    bool shares;  /* this host's memory */
    bool missing; /* it was lost, and has not loaded since */
    uint64_t
        due_ns; /* the end of a meeting sent it away: it should have loaded by then. 0: never */
    uint64_t heard_ns, linked_ns;
    int data_fd;                  /* over TCP, of the meeting that is being made; -1: none yet */
    uint8_t token[SL_RANK_NONCE]; /* that it is to say there */
    struct sl_note_conn conn;     /* fd -1: none */
    char name[64];                /* where it is */
    _Atomic uint64_t progress;    /* that it told last */
};

struct sl_leader {
    struct sl_leader_config cfg;
    struct sl_link_config link_cfg;
    uint8_t secret[SL_MAX_RANK_SECRET];
    struct sl_note_welcome welcome;
    int port, listen_fd, wake_fd, probe_fd;
    pthread_t thread;
    bool started;
    atomic_bool stopping;
    void *memory; /* rooms, and the meeting where memory is shared; the mapping stays */
    size_t n_memory;
    int memory_fd;
    uint64_t beat_ns;
    struct dial dials[SL_MAX_RANK_DIALS];
    struct peer peers[SL_MAX_RANKS]; /* [0] is unused */

    pthread_mutex_t step_lock; /* held during a step, and while a meeting is made */
    struct sl_link *link;      /* of a meeting; under step_lock */
    atomic_bool ready;         /* there is one, and nobody was lost */
    atomic_bool stale;         /* since sl_leader_renew */
    atomic_bool reported;      /* by a step: its error is in why, */
    int culprit;               /* and the rank, if it is known, here */
    atomic_bool waits;         /* one that the meeting does without has loaded */
    atomic_bool joins;         /* the stepping thread waits for a meeting that it is in, */
    atomic_bool ends;          /* for which this one is to end */
    _Atomic uint32_t absent;   /* of this meeting, or the last: ranks that it does without */
    bool invited;              /* those of one that is being made know of it */
    bool has_met;              /* there was one */
    atomic_int n_there;        /* ranks that have loaded and speak, with rank 0 */

    pthread_mutex_t lock; /* of what follows */
    char why[240];        /* it is not ready */
    uint64_t (*progress)(const void *arg);
    const void *arg;

    /* what the stepping thread waits for */
    int waits_for;
    uint64_t waited_ns, moved_ns, seen;
};

static void set_why(struct sl_leader *l, const char *why)
{
    pthread_mutex_lock(&l->lock);
    snprintf(l->why, sizeof l->why, "%s", why);
    pthread_mutex_unlock(&l->lock);
}

static void get_why(struct sl_leader *l, char *out, size_t n)
{
    pthread_mutex_lock(&l->lock);
    snprintf(out, n, "%s", l->why);
    pthread_mutex_unlock(&l->lock);
}

static void wake(struct sl_leader *l)
{
    const uint64_t one = 1;
    const ssize_t n = sl_sys->write(l->wake_fd, &one, sizeof one);
    (void)n; /* at worst it looks a moment later */
}

/* ---------------------------------------------------------------- losing ranks */

/* What is unread when a socket closes takes back what was sent last. Reads what is there, until the
 * other side has closed or ms have passed. */
static void drain(int fd, int ms)
{
    uint8_t unread[4096];
    const uint64_t end_ns = sl_now_ns() + (uint64_t)ms * 1000000u;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    (void)shutdown(fd, SHUT_WR);
    for (int i = 0; i < 64; i++) {
        const ssize_t n = recv(fd, unread, sizeof unread, MSG_DONTWAIT);
        const uint64_t now = sl_now_ns();
        if (n == 0 || now >= end_ns || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK))
            return;
        if (n < 0)
            (void)poll(&p, 1, (int)((end_ns - now) / 1000000u) + 1);
    }
}

static void peer_close(struct peer *p)
{
    if (p->conn.fd >= 0)
        sl_sys->close(p->conn.fd);
    if (p->data_fd >= 0)
        sl_sys->close(p->data_fd);
    p->conn = (struct sl_note_conn){.fd = -1};
    p->data_fd = -1;
    p->state = PEER_NONE;
}

/* Who is left connects anew, with its weights in memory. */
static void send_away(struct sl_leader *l)
{
    const uint64_t due_ns = sl_now_ns() + (uint64_t)l->cfg.timeout_ms * 1000000u;
    l->invited = false;
    if (l->link != NULL)
        sl_link_lose(l->link); /* a step that waits in it ends, and then it is closed */
    for (int i = 1; i < l->cfg.id.n_ranks; i++)
        if (l->peers[i].state >= PEER_LINKED) {
            l->peers[i].due_ns = due_ns;
            peer_close(&l->peers[i]);
        }
}

static void end_meeting(struct sl_leader *l)
{
    atomic_store(&l->stale, true);
    atomic_store(&l->ready, false);
    send_away(l);
}

/* A rank that only loads is alone; once a meeting is being made, it is over for all. */
static void lose(struct sl_leader *l, int rank, const char *why)
{
    char text[240];
    const bool meeting = l->peers[rank].state >= PEER_LINKED;
    snprintf(text, sizeof text, "rank %d: %.200s", rank, why);
    sl_log(SL_LOG_ERROR, "ranks: %s (at %s)", text, l->peers[rank].name);
    if (!atomic_load(&l->ready) || meeting) /* else steps go on, and why says without whom */
        set_why(l, text);
    l->peers[rank].missing = true;
    peer_close(&l->peers[rank]);
    if (meeting)
        end_meeting(l);
}

/* ---------------------------------------------------------------- who they are */

static void dial_close(struct dial *d)
{
    sl_sys->close(d->conn.fd);
    d->state = DIAL_FREE;
}

static void send_refusal(int fd, const struct sl_error *why)
{
    struct sl_note_refusal r = {.again = why->code == SL_EBUSY};
    struct sl_error unsent;
    snprintf(r.why, sizeof r.why, "%.235s", why->msg);
    (void)!sl_note_send(fd, SL_NOTE_REFUSE, &r, sizeof r, &unsent);
}

static void refuse(struct dial *d, const struct sl_error *why)
{
    char name[64];
    sl_rank_peer_name(d->conn.fd, name);
    sl_log(SL_LOG_WARN, "ranks: %s is refused: %s", name, why->msg);
    send_refusal(d->conn.fd, why);
    drain(d->conn.fd, 0);
    dial_close(d);
}

static void dial_accept(struct sl_leader *l)
{
    for (;;) {
        int fd = accept4(l->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct dial *d = l->dials, *end = l->dials + SL_MAX_RANK_DIALS;
        if (fd < 0)
            return;
        while (d < end && d->state != DIAL_FREE)
            d++;
        if (d == end) {
            sl_sys->close(fd);
            continue;
        }
        *d = (struct dial){
            .state = DIAL_HELLO, .end_ns = sl_now_ns() + DIAL_MS * 1000000ull, .conn = {.fd = fd}};
    }
}

static int challenge(struct sl_leader *l, struct dial *d, const struct sl_note *n,
                     struct sl_error *err)
{
    struct sl_note_challenge c;
    memcpy(&d->hello, n->body, sizeof d->hello);
    int rc = sl_random(d->nonce, sizeof d->nonce, err);
    if (rc != 0)
        return rc;
    memcpy(c.nonce, d->nonce, sizeof c.nonce);
    sl_note_prove(l->secret, l->cfg.n_secret, "rank 0", &d->hello, d->nonce, c.proof);
    d->state = DIAL_PROOF;
    return sl_note_send(d->conn.fd, SL_NOTE_CHALLENGE, &c, sizeof c, err);
}

/* The link's own connection of a rank, over TCP. */
static int take_data(struct sl_leader *l, struct dial *d, const struct sl_note *n,
                     struct sl_error *err)
{
    for (int i = 1; i < l->cfg.id.n_ranks; i++) {
        struct peer *p = &l->peers[i];
        if (p->state != PEER_LINKED || p->data_fd >= 0 ||
            memcmp(p->token, n->body, sizeof p->token) != 0)
            continue;
        sl_rank_no_delay(d->conn.fd);
        p->data_fd = d->conn.fd;
        d->state = DIAL_FREE;
        return 0;
    }
    return sl_fail(err, SL_EAUTH, "nobody is expected with that token");
}

static int welcome(struct sl_leader *l, struct dial *d, const struct sl_note *n,
                   struct sl_error *err)
{
    struct sl_note_proof want;
    const int rank = d->hello.rank;
    sl_note_prove(l->secret, l->cfg.n_secret, "rank n", &d->hello, d->nonce, want.proof);
    if (!sl_note_proves(want.proof, n->body))
        return sl_fail(err, SL_EAUTH,
                       "it does not have the secret of rank 0 "
                       "(--rank-secret-file)");
    int rc = sl_rank_identity_check(&l->cfg.id, &d->hello.id, rank, err);
    if (rc != 0)
        return rc;
    struct peer *p = &l->peers[rank];
    if (p->state != PEER_NONE)
        return sl_fail(err, SL_EBUSY, "node-rank: rank %d is there already, at %s", rank, p->name);
    rc = sl_note_send(d->conn.fd, SL_NOTE_WELCOME, &l->welcome, sizeof l->welcome, err);
    if (rc != 0)
        return rc;
    p->conn = (struct sl_note_conn){.fd = d->conn.fd};
    p->state = PEER_LOADING;
    p->heard_ns = sl_now_ns();
    p->data_fd = -1;
    sl_rank_peer_name(p->conn.fd, p->name);
    d->state = DIAL_FREE;
    sl_log(SL_LOG_INFO, "ranks: rank %d is at %s", rank, p->name);
    return 0;
}

static void dial_read(struct sl_leader *l, struct dial *d)
{
    struct sl_note n;
    struct sl_error err;
    int rc = sl_note_read(&d->conn, &n, &err);
    if (rc == 0 && sl_now_ns() >= d->end_ns)
        rc = sl_fail(&err, SL_ETIMEOUT, "it did not say who it is within %d s", DIAL_MS / 1000);
    if (rc == 0)
        return;
    if (rc == 1 && d->state == DIAL_HELLO && n.kind == SL_NOTE_HELLO)
        rc = challenge(l, d, &n, &err);
    else if (rc == 1 && d->state == DIAL_HELLO && n.kind == SL_NOTE_DATA)
        rc = take_data(l, d, &n, &err);
    else if (rc == 1 && d->state == DIAL_PROOF && n.kind == SL_NOTE_PROOF)
        rc = welcome(l, d, &n, &err);
    else if (rc == 1)
        rc = sl_fail(&err, SL_EFORMAT, "it sent a note of kind %u first", n.kind);
    if (rc != 0)
        refuse(d, &err);
}

/* ---------------------------------------------------------------- peers */

static int peer_loaded(const struct sl_leader *l, struct peer *p, const struct sl_note *n,
                       struct sl_error *err)
{
    struct sl_note_loaded loaded;
    memcpy(&loaded, n->body, sizeof loaded);
    if (loaded.room_bytes != l->cfg.room_bytes || loaded.max_message != l->cfg.max_message)
        return sl_fail(err, SL_EINVAL,
                       "its steps have %llu bytes and %llu of parts, those of rank 0 %zu and %zu",
                       (unsigned long long)loaded.max_message,
                       (unsigned long long)loaded.room_bytes, l->cfg.max_message,
                       l->cfg.room_bytes);
    p->shares = loaded.shares != 0;
    p->missing = false;
    p->state = PEER_LOADED;
    return 0;
}

static int peer_note(const struct sl_leader *l, struct peer *p, const struct sl_note *n,
                     struct sl_error *err)
{
    struct sl_note_beat beat;
    if (n->kind == SL_NOTE_BEAT) {
        memcpy(&beat, n->body, sizeof beat);
        atomic_store(&p->progress, beat.progress);
        return 0;
    }
    if (n->kind == SL_NOTE_LOADED && p->state == PEER_LOADING)
        return peer_loaded(l, p, n, err);
    if (n->kind == SL_NOTE_READY && p->state == PEER_LINKED) {
        p->state = PEER_READY;
        return 0;
    }
    return sl_fail(err, SL_EFORMAT, "it sent a note of kind %u out of turn", n->kind);
}

static void peer_read(struct sl_leader *l, int rank)
{
    struct peer *p = &l->peers[rank];
    struct sl_note n;
    struct sl_error err;
    int rc = 1;
    while (p->state != PEER_NONE && rc == 1) {
        rc = sl_note_read(&p->conn, &n, &err);
        if (rc == 1)
            p->heard_ns = sl_now_ns();
        if (rc == 1 && (rc = peer_note(l, p, &n, &err)) == 0)
            rc = 1;
        if (rc == SL_EINVAL) /* it would come again, and differ again */
            send_refusal(p->conn.fd, &err);
        if (rc < 0)
            lose(l, rank, err.msg);
    }
}

static void watch_peers(struct sl_leader *l)
{
    const uint64_t now = sl_now_ns(), timeout = (uint64_t)l->cfg.timeout_ms * 1000000u;
    const bool beats = now - l->beat_ns >= timeout / BEATS;
    struct sl_note_beat beat = {0};
    struct sl_error err;
    if (beats) {
        l->beat_ns = now;
        pthread_mutex_lock(&l->lock);
        beat.progress = l->progress != NULL ? l->progress(l->arg) : 0;
        pthread_mutex_unlock(&l->lock);
        for (int i = 1; i < l->cfg.id.n_ranks; i++) /* rank 0 may only wait for them */
            beat.progress += atomic_load(&l->peers[i].progress);
    }
    for (int i = 1; i < l->cfg.id.n_ranks; i++) {
        struct peer *p = &l->peers[i];
        char why[80];
        if (p->state == PEER_NONE)
            continue;
        snprintf(why, sizeof why, "it said nothing for %.1f s",
                 (double)(now - SL_MIN(p->heard_ns, now)) * 1e-9);
        if (now > p->heard_ns && now - p->heard_ns > timeout)
            lose(l, i, why);
        else if (p->state == PEER_LINKED && now - p->linked_ns > LINK_MS * 1000000ull)
            lose(l, i, "it does not come to where ranks meet");
        else if (beats && sl_note_send(p->conn.fd, SL_NOTE_BEAT, &beat, sizeof beat, &err) != 0)
            lose(l, i, err.msg);
    }
    if (atomic_exchange(&l->reported, false)) {
        get_why(l, err.msg, sizeof err.msg);
        sl_log(SL_LOG_ERROR, "ranks: %s", err.msg);
        if (l->culprit > 0)
            l->peers[l->culprit].missing = true;
        end_meeting(l);
    }
}

/* ---------------------------------------------------------------- meetings */

static bool is_in(const struct sl_leader *l, int rank)
{
    return (atomic_load(&l->absent) >> rank & 1) == 0;
}

/* All but those that the meeting does without. */
static bool all_are(const struct sl_leader *l, enum peer_state state)
{
    for (int i = 1; i < l->cfg.id.n_ranks; i++)
        if (is_in(l, i) && l->peers[i].state != state)
            return false;
    return true;
}

static bool all_connected(const struct sl_leader *l)
{
    for (int i = 1; i < l->cfg.id.n_ranks && l->link == NULL; i++)
        if (is_in(l, i) && l->peers[i].data_fd < 0)
            return false;
    return true;
}

static bool all_share(const struct sl_leader *l)
{
    for (int i = 1; i < l->cfg.id.n_ranks; i++)
        if (is_in(l, i) && !l->peers[i].shares)
            return false;
    return !l->cfg.only_tcp;
}

/* Can a meeting be made of those that have loaded? *absent: the others, who are not expected any
 * more. */
static bool can_meet(const struct sl_leader *l, uint32_t *absent)
{
    const uint64_t now = sl_now_ns();
    *absent = 0;
    for (int i = 1; i < l->cfg.id.n_ranks; i++) {
        const struct peer *p = &l->peers[i];
        if (p->state == PEER_LOADED)
            continue;
        if (p->state > PEER_LOADED || (!p->missing && (p->due_ns == 0 || now < p->due_ns)))
            return false;
        *absent |= 1u << i;
    }
    return *absent == 0 ||
           (l->has_met && l->cfg.covers != NULL && l->cfg.covers(l->cfg.covers_arg, *absent));
}

/* Under step_lock: the meeting ends, and a new one will have all that have loaded by then. Nothing
 * is lost but what who comes does not have. */
static void let_in(struct sl_leader *l)
{
    atomic_store(&l->waits, false);
    if (!atomic_load(&l->ready) || atomic_load(&l->stale))
        return; /* it is over already */
    atomic_store(&l->joins, true);
    atomic_store(&l->ends, true);
    atomic_store(&l->ready, false);
}

/* One that the meeting does without has come back. Who steps lets it in, or, where nobody steps,
 * this thread. */
static void look_for_absent(struct sl_leader *l)
{
    bool waits = false;
    for (int i = 1; i < l->cfg.id.n_ranks; i++)
        waits = waits || (!is_in(l, i) && l->peers[i].state == PEER_LOADED);
    atomic_store(&l->waits, waits);
    if (waits && pthread_mutex_trylock(&l->step_lock) == 0) {
        let_in(l);
        pthread_mutex_unlock(&l->step_lock);
    }
}

/* New memory where the old one is mapped: rooms stay where they are. */
static int renew_memory(struct sl_leader *l, struct sl_error *err)
{
    int fd;
    void *p;
    int rc = sl_shm_create(l->n_memory, &fd, err);
    if (rc != 0)
        return rc;
    rc = sl_shm_map(fd, l->n_memory, l->memory, &p, err);
    if (rc != 0) {
        sl_sys->close(fd);
        return rc;
    }
    if (l->memory_fd >= 0)
        sl_sys->close(l->memory_fd);
    SL_ASSERT(l->memory == NULL || l->memory == p);
    if (l->memory == NULL) /* once: sl_leader_room reads it at any time */
        l->memory = p;
    l->memory_fd = fd;
    return 0;
}

/* They are told where to meet. */
static int invite(struct sl_leader *l, struct sl_error *err)
{
    const bool shares = all_share(l);
    struct sl_note_link link = {.pid = getpid(),
                                .memory_fd = -1,
                                .absent = atomic_load(&l->absent),
                                .n_bytes = l->n_memory};
    int rc = renew_memory(l, err);
    l->link_cfg.absent = link.absent;
    if (rc == 0 && shares) {
        link.memory_fd = l->memory_fd;
        rc = sl_link_shm_open(&l->link_cfg, l->memory, &l->link, err);
    }
    for (int i = 1; i < l->cfg.id.n_ranks && rc == 0; i++) {
        struct peer *p = &l->peers[i];
        if (!is_in(l, i))
            continue;
        rc = sl_random(p->token, sizeof p->token, err);
        memcpy(link.token, p->token, sizeof link.token);
        p->linked_ns = sl_now_ns();
        p->missing = false;
        p->state = PEER_LINKED;
        if (rc == 0)
            rc = sl_note_send(p->conn.fd, SL_NOTE_LINK, &link, sizeof link, err);
    }
    l->invited = rc == 0;
    return rc;
}

/* All are ready, and over TCP all connected. */
static int meet(struct sl_leader *l, struct sl_error *err)
{
    int fds[SL_MAX_RANKS], rc = 0;
    if (l->link == NULL) {
        for (int i = 1; i < l->cfg.id.n_ranks; i++)
            fds[i - 1] = l->peers[i].data_fd;
        rc = sl_link_tcp_open(&l->link_cfg, fds, &l->link, err);
        for (int i = 1; i < l->cfg.id.n_ranks && rc == 0; i++)
            l->peers[i].data_fd = -1; /* the link's */
    }
    if (rc != 0)
        return rc;
    const uint32_t absent = atomic_load(&l->absent);
    const char *over = all_share(l) ? "shared memory" : "TCP";
    if (absent == 0)
        sl_log(SL_LOG_INFO, "ranks: all %d are there, over %s", l->cfg.id.n_ranks, over);
    else
        sl_log(SL_LOG_WARN,
               "ranks: %d of %d are there, over %s: the experts of the others have "
               "replicas",
               l->cfg.id.n_ranks - __builtin_popcount(absent), l->cfg.id.n_ranks, over);
    l->has_met = true;
    l->invited = false;
    atomic_store(&l->waits, false);
    atomic_store(&l->ready, true);
    return 0;
}

static void form(struct sl_leader *l)
{
    struct sl_error err;
    uint32_t absent;
    int rc = 0;
    if (atomic_load(&l->ready))
        look_for_absent(l);
    if (atomic_exchange(&l->ends, false))
        send_away(l);
    if (atomic_load(&l->ready) || pthread_mutex_trylock(&l->step_lock) != 0)
        return; /* a step that lost someone is not over yet */
    if (l->link != NULL && atomic_load(&l->link->lost)) {
        sl_link_close(l->link);
        l->link = NULL;
    }
    if (!l->invited && can_meet(l, &absent)) {
        atomic_store(&l->absent, absent);
        rc = invite(l, &err);
    } else if (l->invited && all_are(l, PEER_READY) && all_connected(l))
        rc = meet(l, &err);
    pthread_mutex_unlock(&l->step_lock);
    if (rc != 0) {
        sl_log(SL_LOG_ERROR, "ranks: no meeting: %s", err.msg);
        set_why(l, err.msg);
        end_meeting(l);
    }
}

/* ---------------------------------------------------------------- the thread */

static void await_any(struct sl_leader *l)
{
    struct pollfd fds[2 + SL_MAX_RANK_DIALS + SL_MAX_RANKS];
    int n = 0;
    uint64_t unused;
    fds[n++] = (struct pollfd){.fd = l->wake_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = l->listen_fd, .events = POLLIN};
    for (int i = 0; i < SL_MAX_RANK_DIALS; i++)
        if (l->dials[i].state != DIAL_FREE)
            fds[n++] = (struct pollfd){.fd = l->dials[i].conn.fd, .events = POLLIN};
    for (int i = 1; i < l->cfg.id.n_ranks; i++)
        if (l->peers[i].state != PEER_NONE)
            fds[n++] = (struct pollfd){.fd = l->peers[i].conn.fd, .events = POLLIN};
    (void)poll(fds, (nfds_t)n, TICK_MS);
    if (fds[0].revents != 0) {
        const ssize_t got = sl_sys->read(l->wake_fd, &unused, sizeof unused);
        (void)got;
    }
}

static void count_there(struct sl_leader *l)
{
    int n = 1;
    for (int i = 1; i < l->cfg.id.n_ranks; i++)
        n += l->peers[i].state >= PEER_LOADED;
    atomic_store(&l->n_there, n);
}

static void *leader_main(void *arg)
{
    struct sl_leader *l = arg;
    while (!atomic_load(&l->stopping)) {
        await_any(l);
        dial_accept(l);
        for (int i = 0; i < SL_MAX_RANK_DIALS; i++)
            if (l->dials[i].state != DIAL_FREE)
                dial_read(l, &l->dials[i]);
        for (int i = 1; i < l->cfg.id.n_ranks; i++)
            peer_read(l, i);
        watch_peers(l);
        form(l);
        count_there(l);
    }
    return NULL;
}

/* ---------------------------------------------------------------- steps */

/* How long what a rank computes stands still while rank 0 waits for it. */
static bool is_patient(void *arg, int rank, uint64_t waited_ns)
{
    struct sl_leader *l = arg;
    SL_ASSERT(rank > 0 && rank < l->cfg.id.n_ranks);
    const uint64_t seen = atomic_load(&l->peers[rank].progress);
    if (rank != l->waits_for || waited_ns < l->waited_ns || seen != l->seen) {
        l->waits_for = rank;
        l->seen = seen;
        l->moved_ns = waited_ns;
    }
    l->waited_ns = waited_ns;
    return waited_ns - l->moved_ns < (uint64_t)l->cfg.timeout_ms * 1000000u;
}

static int not_ready(struct sl_leader *l, struct sl_error *err)
{
    char why[240];
    get_why(l, why, sizeof why);
    return sl_fail(err, SL_ERANK, "waiting for all ranks: %.200s", why);
}

int sl_leader_health(struct sl_leader *l, uint32_t *absent, struct sl_error *err)
{
    const uint32_t without = atomic_load(&l->absent);
    *absent = 0;
    SL_ASSERT((without & 1) == 0);
    if (!atomic_load(&l->ready) && !atomic_load(&l->joins))
        return not_ready(l, err);
    *absent = without;
    if (without != 0 && err != NULL)
        get_why(l, err->msg, sizeof err->msg);
    return 0;
}

int sl_leader_n_there(const struct sl_leader *l)
{
    return atomic_load(&l->n_there);
}

int sl_leader_begin(struct sl_leader *l, struct sl_link **link, struct sl_error *err)
{
    *link = NULL;
    pthread_mutex_lock(&l->step_lock); /* held by the other thread for a moment at most */
    int rc = atomic_load(&l->ready)   ? 0
             : atomic_load(&l->joins) ? sl_fail(err, SL_EBUSY, "a rank is let in")
                                      : not_ready(l, err);
    if (rc == 0 && atomic_load(&l->stale))
        rc = sl_fail(err, SL_ERANK, "ranks were lost and are back: what was computed is gone");
    if (rc != 0)
        pthread_mutex_unlock(&l->step_lock);
    else
        *link = l->link;
    return rc;
}

int sl_leader_end(struct sl_leader *l, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(l->link != NULL);
    if (atomic_load(&l->link->lost)) {
        if (l->link->error.code != SL_OK && atomic_load(&l->ready)) { /* found in the step */
            set_why(l, l->link->error.msg);
            atomic_store(&l->stale, true);
            atomic_store(&l->ready, false);
            l->culprit = l->link->culprit;
            atomic_store(&l->reported, true);
            wake(l);
        }
        char why[240];
        get_why(l, why, sizeof why);
        rc = sl_fail(err, SL_ERANK, "%s", why);
    }
    pthread_mutex_unlock(&l->step_lock);
    return rc;
}

/* Until there is a new meeting. */
static enum sl_leader_news await_join(struct sl_leader *l)
{
    const uint64_t end_ns = sl_now_ns() + 2 * (uint64_t)l->cfg.timeout_ms * 1000000u;
    wake(l);
    while (!atomic_load(&l->ready) && sl_now_ns() < end_ns)
        (void)poll(NULL, 0, 1);
    atomic_store(&l->joins, false);
    return atomic_load(&l->ready) ? SL_LEADER_JOINED : SL_LEADER_LOST;
}

enum sl_leader_news sl_leader_renew(struct sl_leader *l)
{
    if (atomic_load(&l->stale) && atomic_exchange(&l->stale, false)) {
        atomic_store(&l->joins, false);
        return SL_LEADER_LOST;
    }
    if (atomic_load(&l->waits)) {
        pthread_mutex_lock(&l->step_lock); /* held by the other thread for a moment at most */
        let_in(l);
        pthread_mutex_unlock(&l->step_lock);
    }
    return atomic_load(&l->joins) ? await_join(l) : SL_LEADER_NOTHING;
}

void *sl_leader_room(const struct sl_leader *l, int i)
{
    return sl_link_shm_room(&l->link_cfg, l->memory, i);
}

int sl_leader_port(const struct sl_leader *l)
{
    return l->port;
}

void sl_leader_watch(struct sl_leader *l, uint64_t (*progress)(const void *arg), const void *arg)
{
    pthread_mutex_lock(&l->lock);
    l->progress = progress;
    l->arg = arg;
    pthread_mutex_unlock(&l->lock);
}

int sl_leader_wait(struct sl_leader *l, int ms, struct sl_error *err)
{
    const uint64_t end_ns = sl_now_ns() + (uint64_t)ms * 1000000u;
    while (!atomic_load(&l->ready)) {
        if (sl_now_ns() >= end_ns)
            return not_ready(l, err);
        (void)poll(NULL, 0, 10);
    }
    atomic_store(&l->stale, false); /* nothing was computed before */
    return 0;
}

/* ---------------------------------------------------------------- beginning and end */

static int open_probe(struct sl_leader *l, struct sl_error *err)
{
    void *p = NULL;
    int rc = sl_random(l->welcome.probe, sizeof l->welcome.probe, err);
    if (rc == 0)
        rc = sl_shm_create(PROBE, &l->probe_fd, err);
    if (rc == 0)
        rc = sl_shm_map(l->probe_fd, PROBE, NULL, &p, err);
    if (rc != 0)
        return rc;
    memcpy(p, l->welcome.probe, sizeof l->welcome.probe);
    sl_shm_unmap(p, PROBE);
    l->welcome.pid = getpid();
    l->welcome.probe_fd = l->probe_fd;
    l->welcome.timeout_ms = l->cfg.timeout_ms;
    memcpy(l->welcome.plan, l->cfg.plan, l->cfg.n_plan);
    return 0;
}

static int start(struct sl_leader *l, struct sl_error *err)
{
    int rc = sl_rank_listen(l->cfg.addr, l->cfg.n_secret > 0, &l->port, &l->listen_fd, err);
    if (rc == 0)
        rc = open_probe(l, err);
    if (rc == 0)
        rc = renew_memory(l, err);
    if (rc == 0 && (l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)
        rc = sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    if (rc == 0)
        rc = sl_thread_create(&l->thread, leader_main, l, "sl-ranks", err);
    l->started = rc == 0;
    if (rc == 0)
        sl_log(SL_LOG_INFO, "ranks: waiting for %d others on %s port %d", l->cfg.id.n_ranks - 1,
               l->cfg.addr, l->port);
    return rc;
}

int sl_leader_open(const struct sl_leader_config *cfg, struct sl_leader **out, struct sl_error *err)
{
    *out = NULL;
    SL_ASSERT(cfg->n_secret <= SL_MAX_RANK_SECRET && cfg->n_plan <= SL_RANK_PLAN);
    struct sl_leader *l = sl_calloc(1, sizeof *l);
    if (l == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for ranks");
    l->cfg = *cfg;
    if (cfg->n_secret > 0)
        memcpy(l->secret, cfg->secret, cfg->n_secret);
    l->cfg.secret = l->secret;
    l->port = cfg->port;
    l->listen_fd = l->wake_fd = l->probe_fd = l->memory_fd = -1;
    for (int i = 0; i < SL_MAX_RANKS; i++) {
        l->peers[i].conn.fd = l->peers[i].data_fd = -1;
        snprintf(l->peers[i].name, sizeof l->peers[i].name, "an unknown place");
    }
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->step_lock, NULL);
    snprintf(l->why, sizeof l->why, "not all have come yet");
    l->link_cfg = (struct sl_link_config){.n_ranks = cfg->id.n_ranks,
                                          .max_message = cfg->max_message,
                                          .room_bytes = cfg->room_bytes,
                                          .patience = is_patient,
                                          .arg = l};
    l->n_memory = sl_link_shm_bytes(&l->link_cfg);
    int rc = start(l, err);
    l->cfg.plan = NULL;
    l->cfg.addr = NULL;
    if (rc != 0)
        sl_leader_close(l);
    else
        *out = l;
    return rc;
}

void sl_leader_close(struct sl_leader *l)
{
    struct sl_error unsent;
    if (l == NULL)
        return;
    atomic_store(&l->stopping, true);
    if (l->started) {
        wake(l);
        pthread_join(l->thread, NULL);
    }
    for (int i = 0; i < SL_MAX_RANK_DIALS; i++)
        if (l->dials[i].state != DIAL_FREE)
            dial_close(&l->dials[i]);
    for (int i = 1; i < SL_MAX_RANKS; i++) {
        if (l->peers[i].state != PEER_NONE)
            (void)!sl_note_send(l->peers[i].conn.fd, SL_NOTE_END, NULL, 0, &unsent);
    }
    for (int i = 1; i < SL_MAX_RANKS; i++) {
        if (l->peers[i].state != PEER_NONE)
            drain(l->peers[i].conn.fd, END_MS);
        peer_close(&l->peers[i]);
    }
    sl_link_close(l->link);
    sl_shm_unmap(l->memory, l->n_memory);
    const int fds[] = {l->listen_fd, l->wake_fd, l->probe_fd, l->memory_fd};
    for (size_t i = 0; i < SL_COUNT(fds); i++)
        if (fds[i] >= 0)
            sl_sys->close(fds[i]);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->step_lock);
    sl_free(l);
}
