/* SPDX-License-Identifier: MIT */
#include "dist/member.h"

#include "base/check.h"
#include "base/log.h"
#include "base/shm.h"
#include "base/sys.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#define DIAL_MS 3000 /* for an answer */
#define TICK_MS 50
#define BEATS   6 /* in a timeout */
#define PROBE   4096u

struct sl_member {
    struct sl_member_config cfg;
    struct sl_note_hello hello;
    struct sl_note_welcome welcome;
    struct sl_note_conn conn;
    struct sl_link_config link_cfg;
    struct sl_link *link; /* from ready on */
    bool shares;
    void *memory; /* of the meeting, or NULL */
    size_t n_memory;
    pthread_t thread;
    bool started;
    atomic_bool stopping, gone, ended;
    _Atomic uint64_t first_progress; /* of rank 0, that it told last */

    pthread_mutex_t lock; /* of what follows */
    struct sl_error why;  /* it is gone */
    bool invited;
    struct sl_note_link invitation;
    struct sl_link *watched; /* to be lost with the connection */
    uint64_t (*progress)(const void *arg);
    const void *arg;

    uint64_t waited_ns, moved_ns, seen; /* of the stepping thread */
};

/* ---------------------------------------------------------------- the thread */

static void leave(struct sl_member *m, const struct sl_error *why)
{
    pthread_mutex_lock(&m->lock);
    if (!atomic_load(&m->gone))
        m->why = *why;
    atomic_store(&m->gone, true);
    if (m->watched != NULL)
        sl_link_lose(m->watched);
    pthread_mutex_unlock(&m->lock);
}

static int refused(const struct sl_note *n, struct sl_error *err)
{
    struct sl_note_refusal r;
    memcpy(&r, n->body, sizeof r);
    r.why[sizeof r.why - 1] = '\0';
    return sl_fail(err, r.again != 0 ? SL_EBUSY : SL_EINVAL, "rank 0 refuses: %.200s", r.why);
}

static int take_note(struct sl_member *m, const struct sl_note *n, struct sl_error *err)
{
    struct sl_note_beat beat;
    switch (n->kind) {
    case SL_NOTE_BEAT:
        memcpy(&beat, n->body, sizeof beat);
        atomic_store(&m->first_progress, beat.progress);
        return 0;
    case SL_NOTE_LINK:
        pthread_mutex_lock(&m->lock);
        memcpy(&m->invitation, n->body, sizeof m->invitation);
        m->invited = true;
        pthread_mutex_unlock(&m->lock);
        return 0;
    case SL_NOTE_REFUSE:
        return refused(n, err);
    case SL_NOTE_END:
        atomic_store(&m->ended, true);
        return sl_fail(err, SL_ESHUTDOWN, "rank 0 has ended");
    default:
        return sl_fail(err, SL_EFORMAT, "rank 0 sent a note of kind %u out of turn", n->kind);
    }
}

static int send_beat(struct sl_member *m, struct sl_error *err)
{
    struct sl_note_beat beat = {0};
    pthread_mutex_lock(&m->lock);
    beat.progress = m->progress != NULL ? m->progress(m->arg) : 0;
    pthread_mutex_unlock(&m->lock);
    return sl_note_send(m->conn.fd, SL_NOTE_BEAT, &beat, sizeof beat, err);
}

static void *member_main(void *arg)
{
    struct sl_member *m = arg;
    const uint64_t timeout_ns = (uint64_t)m->welcome.timeout_ms * 1000000u;
    uint64_t heard_ns = sl_now_ns(), beat_ns = 0;
    struct sl_error err;
    struct sl_note n;
    int rc = 0;
    while (rc >= 0 && !atomic_load(&m->stopping)) {
        rc = sl_note_await(&m->conn, TICK_MS, &n, &err);
        const uint64_t now = sl_now_ns();
        if (rc == 1) {
            heard_ns = now;
            rc = take_note(m, &n, &err);
        } else if (rc == 0 && now - heard_ns > timeout_ns) {
            rc = sl_fail(&err, SL_ERANK, "rank 0 said nothing for %.1f s",
                         (double)(now - heard_ns) * 1e-9);
        }
        if (rc == 0 && now - beat_ns >= timeout_ns / BEATS) {
            beat_ns = now;
            rc = send_beat(m, &err);
        }
    }
    if (rc < 0)
        leave(m, &err);
    return NULL;
}

/* ---------------------------------------------------------------- connecting */

static int expect(struct sl_member *m, enum sl_note_kind kind, void *body, size_t n,
                  struct sl_error *err)
{
    struct sl_note note;
    int rc = sl_note_await(&m->conn, DIAL_MS, &note, err);
    if (rc == 0)
        return sl_fail(err, SL_ERANK, "rank 0 does not answer");
    if (rc < 0)
        return rc;
    if (note.kind == SL_NOTE_REFUSE)
        return refused(&note, err);
    if (note.kind != kind)
        return sl_fail(err, SL_EFORMAT, "rank 0 sent a note of kind %u first", note.kind);
    SL_ASSERT(note.n == n);
    memcpy(body, note.body, n);
    return 0;
}

static int shake_hands(struct sl_member *m, struct sl_error *err)
{
    struct sl_note_challenge c;
    struct sl_note_proof p;
    const void *secret = m->cfg.secret;
    m->hello.id = m->cfg.id;
    m->hello.rank = m->cfg.rank;
    int rc = sl_random(m->hello.nonce, sizeof m->hello.nonce, err);
    if (rc == 0)
        rc = sl_note_send(m->conn.fd, SL_NOTE_HELLO, &m->hello, sizeof m->hello, err);
    if (rc == 0)
        rc = expect(m, SL_NOTE_CHALLENGE, &c, sizeof c, err);
    if (rc != 0)
        return rc;
    sl_note_prove(secret, m->cfg.n_secret, "rank 0", &m->hello, c.nonce, p.proof);
    if (!sl_note_proves(p.proof, c.proof))
        return sl_fail(err, SL_EAUTH,
                       "rank 0 at %.80s port %d does not have the secret of this rank "
                       "(--rank-secret-file)",
                       m->cfg.addr, m->cfg.port);
    sl_note_prove(secret, m->cfg.n_secret, "rank n", &m->hello, c.nonce, p.proof);
    rc = sl_note_send(m->conn.fd, SL_NOTE_PROOF, &p, sizeof p, err);
    if (rc == 0)
        rc = expect(m, SL_NOTE_WELCOME, &m->welcome, sizeof m->welcome, err);
    if (rc == 0 && (m->welcome.timeout_ms < 100 || m->welcome.timeout_ms > 86400000))
        rc = sl_fail(err, SL_EFORMAT, "rank 0 has a timeout of %d ms", m->welcome.timeout_ms);
    return rc;
}

/* Is this the host of rank 0? Then its memory can be opened. */
static bool can_share(const struct sl_note_welcome *w)
{
    struct sl_error err;
    void *p = NULL;
    int fd;
    bool same = false;
    if (sl_shm_open_peer(w->pid, w->probe_fd, PROBE, &fd, &err) != 0)
        return false;
    if (sl_shm_map(fd, PROBE, NULL, &p, &err) == 0)
        same = memcmp(p, w->probe, sizeof w->probe) == 0;
    sl_shm_unmap(p, PROBE);
    sl_sys->close(fd);
    return same;
}

int sl_member_connect(const struct sl_member_config *cfg, struct sl_member **out,
                      struct sl_error *err)
{
    *out = NULL;
    struct sl_member *m = sl_calloc(1, sizeof *m);
    if (m == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a rank");
    m->cfg = *cfg;
    m->conn.fd = -1;
    pthread_mutex_init(&m->lock, NULL);
    int rc = sl_rank_dial(cfg->addr, cfg->port, DIAL_MS, &m->conn.fd, err);
    if (rc == 0)
        rc = shake_hands(m, err);
    if (rc == 0) {
        m->shares = can_share(&m->welcome);
        rc = sl_thread_create(&m->thread, member_main, m, "sl-rank", err);
        m->started = rc == 0;
    }
    if (rc != 0)
        sl_member_close(m);
    else
        *out = m;
    return rc;
}

void sl_member_close(struct sl_member *m)
{
    if (m == NULL)
        return;
    atomic_store(&m->stopping, true);
    if (m->started)
        pthread_join(m->thread, NULL);
    if (m->conn.fd >= 0)
        sl_sys->close(m->conn.fd);
    sl_link_close(m->link);
    sl_shm_unmap(m->memory, m->n_memory);
    pthread_mutex_destroy(&m->lock);
    sl_free(m);
}

const void *sl_member_plan(const struct sl_member *m)
{
    return m->welcome.plan;
}

bool sl_member_ended(const struct sl_member *m)
{
    return atomic_load(&m->ended);
}

void sl_member_watch(struct sl_member *m, uint64_t (*progress)(const void *arg), const void *arg)
{
    pthread_mutex_lock(&m->lock);
    m->progress = progress;
    m->arg = arg;
    pthread_mutex_unlock(&m->lock);
}

/* ---------------------------------------------------------------- meetings */

/* As in leader.c, of rank 0; a rank without a step waits as long as there is a connection. */
static bool is_patient(void *arg, int rank, uint64_t waited_ns)
{
    struct sl_member *m = arg;
    if (rank != 0)
        return true; /* rank 0 finds that another one is slow */
    const uint64_t seen = atomic_load(&m->first_progress);
    if (waited_ns < m->waited_ns || seen != m->seen) {
        m->seen = seen;
        m->moved_ns = waited_ns;
    }
    m->waited_ns = waited_ns;
    return waited_ns - m->moved_ns < 2 * (uint64_t)m->welcome.timeout_ms * 1000000u;
}

static int gone(struct sl_member *m, struct sl_error *err)
{
    pthread_mutex_lock(&m->lock);
    *err = m->why;
    pthread_mutex_unlock(&m->lock);
    return err->code;
}

static bool is_invited(struct sl_member *m)
{
    pthread_mutex_lock(&m->lock);
    const bool is = m->invited;
    pthread_mutex_unlock(&m->lock);
    return is;
}

static int open_memory(struct sl_member *m, void *room[2], struct sl_error *err)
{
    const struct sl_note_link *at = &m->invitation;
    int fd;
    m->n_memory = sl_link_shm_bytes(&m->link_cfg);
    if (at->n_bytes != m->n_memory)
        return sl_fail(err, SL_EFORMAT, "rank 0 shares %llu bytes, this rank needs %zu",
                       (unsigned long long)at->n_bytes, m->n_memory);
    int rc = sl_shm_open_peer(at->pid, at->memory_fd, m->n_memory, &fd, err);
    if (rc != 0)
        return rc;
    rc = sl_shm_map(fd, m->n_memory, NULL, &m->memory, err);
    sl_sys->close(fd);
    for (int i = 0; i < 2 && rc == 0; i++)
        room[i] = sl_link_shm_room(&m->link_cfg, m->memory, i);
    return rc;
}

int sl_member_await(struct sl_member *m, size_t room_bytes, size_t max_message, void *room[2],
                    struct sl_error *err)
{
    const struct sl_note_loaded loaded = {
        .shares = m->shares, .room_bytes = room_bytes, .max_message = max_message};
    room[0] = room[1] = NULL;
    SL_ASSERT(m->link == NULL);
    m->link_cfg = (struct sl_link_config){.rank = m->cfg.rank,
                                          .n_ranks = m->cfg.id.n_ranks,
                                          .max_message = max_message,
                                          .room_bytes = room_bytes,
                                          .patience = is_patient,
                                          .arg = m};
    int rc = sl_note_send(m->conn.fd, SL_NOTE_LOADED, &loaded, sizeof loaded, err);
    while (rc == 0 && !is_invited(m)) {
        if (atomic_load(&m->gone))
            return gone(m, err);
        (void)poll(NULL, 0, 5);
    }
    m->link_cfg.absent = m->invitation.absent;
    if (rc == 0 && ((m->invitation.absent & (1u | 1u << m->cfg.rank)) != 0 ||
                    m->invitation.absent >> m->cfg.id.n_ranks != 0))
        return sl_fail(err, SL_EFORMAT, "rank 0 invites rank %d to a meeting without %x",
                       m->cfg.rank, m->invitation.absent);
    return rc == 0 && m->invitation.memory_fd >= 0 ? open_memory(m, room, err) : rc;
}

/* The link's own connection. */
static int open_tcp(struct sl_member *m, struct sl_error *err)
{
    int fd;
    int rc = sl_rank_dial(m->cfg.addr, m->cfg.port, DIAL_MS, &fd, err);
    if (rc != 0)
        return rc;
    rc = sl_note_send(fd, SL_NOTE_DATA, m->invitation.token, sizeof m->invitation.token, err);
    if (rc == 0)
        rc = sl_link_tcp_open(&m->link_cfg, &fd, &m->link, err);
    if (rc != 0)
        sl_sys->close(fd);
    return rc;
}

int sl_member_ready(struct sl_member *m, struct sl_link **link, struct sl_error *err)
{
    int rc = m->memory != NULL ? sl_link_shm_open(&m->link_cfg, m->memory, &m->link, err)
                               : open_tcp(m, err);
    if (rc == 0)
        rc = sl_note_send(m->conn.fd, SL_NOTE_READY, NULL, 0, err);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&m->lock);
    m->watched = m->link;
    if (atomic_load(&m->gone))
        sl_link_lose(m->link);
    pthread_mutex_unlock(&m->lock);
    *link = m->link;
    return 0;
}
