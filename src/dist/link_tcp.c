/* SPDX-License-Identifier: MIT
 * Ranks of any hosts: rank 0 has a connection with every other one.
 *
 * A part is sent from where it lies and received where it belongs, between the columns of others. A
 * gather of two ranks is one message each way at once. Of more ranks, rank 0 receives all parts and
 * then sends each rank that wants them those of the others: it carries n - 1 times what a rank
 * does, which is the price of a bootstrap without connections between all.
 */
#include "base/check.h"
#include "base/sys.h"
#include "dist/link.h"
#include "dist/note.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define MAGIC    0x534c4c4bu /* "SLLK" */
#define MAX_IOV  64
#define SLEEP_MS 20

enum kind { KIND_STEP = 1, KIND_PART, KIND_WHOLE };

struct frame { /* before what is sent; a host's own byte order, as the handshake compares it */
    uint32_t magic, kind, seq, unused;
    uint64_t n;                       /* bytes of a step, rows of parts */
    uint64_t row_bytes[SL_MAX_RANKS]; /* of the ranks' parts, as far as the sender knows them */
};

struct cut { /* rows, `stride` apart */
    uint8_t *at;
    size_t bytes, stride, n;
};

struct transfer { /* of a message, what is left */
    int fd, rank;
    bool sends;
    struct cut cuts[SL_MAX_RANKS + 1];
    int n_cuts, cut;
    size_t row, done; /* in that cut; bytes of the row */
};

struct tcp_link {
    struct sl_link link;
    int fds[SL_MAX_RANKS]; /* by rank; -1: none */
    uint32_t n_gathers, n_steps;
    struct frame frames[SL_MAX_RANKS], own; /* received; sent */
    struct transfer transfers[2 * SL_MAX_RANKS];
};

/* ---------------------------------------------------------------- bytes */

static void add_cut(struct transfer *t, const void *at, size_t bytes, size_t stride, size_t n)
{
    if (bytes == 0 || n == 0)
        return;
    SL_ASSERT(t->n_cuts < (int)SL_COUNT(t->cuts));
    if (bytes == stride) { /* rows without gaps are one */
        bytes *= n;
        n = 1;
    }
    t->cuts[t->n_cuts++] =
        (struct cut){.at = (uint8_t *)(uintptr_t)at, .bytes = bytes, .stride = stride, .n = n};
}

static int list_iov(const struct transfer *t, struct iovec iov[MAX_IOV])
{
    size_t row = t->row, done = t->done;
    int n = 0;
    for (int c = t->cut; c < t->n_cuts && n < MAX_IOV; c++, row = 0) {
        const struct cut *cut = &t->cuts[c];
        for (; row < cut->n && n < MAX_IOV; row++, done = 0)
            iov[n++] = (struct iovec){cut->at + row * cut->stride + done, cut->bytes - done};
    }
    return n;
}

static void advance(struct transfer *t, size_t n)
{
    while (n > 0) {
        const struct cut *cut = &t->cuts[t->cut];
        const size_t step = SL_MIN(n, cut->bytes - t->done);
        SL_ASSERT(t->cut < t->n_cuts);
        n -= step;
        t->done += step;
        if (t->done < cut->bytes)
            continue;
        t->done = 0;
        if (++t->row == cut->n) {
            t->row = 0;
            t->cut++;
        }
    }
}

/* As far as it goes without waiting. */
static int move(struct tcp_link *s, struct transfer *t)
{
    while (t->cut < t->n_cuts) {
        struct iovec iov[MAX_IOV];
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)list_iov(t, iov)};
        const ssize_t n = t->sends ? sendmsg(t->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT)
                                   : recvmsg(t->fd, &m, MSG_DONTWAIT);
        if (n > 0)
            advance(t, (size_t)n);
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        else if (n == 0 || errno != EINTR) {
            s->link.culprit = t->rank;
            return sl_link_fail(&s->link, "rank %d: %s", t->rank, sl_rank_lost_text(n));
        }
    }
    return 0;
}

/* Waits until one of the transfers can go on. */
static int await(struct tcp_link *s, const struct transfer *all, int n, bool idle,
                 uint64_t start_ns)
{
    struct pollfd fds[2 * SL_MAX_RANKS];
    int n_fds = 0, rank = 0;
    for (int i = 0; i < n; i++)
        if (all[i].cut < all[i].n_cuts) {
            rank = all[i].rank;
            fds[n_fds++] =
                (struct pollfd){.fd = all[i].fd, .events = all[i].sends ? POLLOUT : POLLIN};
        }
    if (n_fds == 0 || poll(fds, (nfds_t)n_fds, SLEEP_MS) > 0)
        return 0;
    return sl_link_patience(&s->link, idle ? SL_LINK_IDLE : rank, start_ns);
}

/* All at once, so that two ranks that send much to each other do not wait for each other. */
static int move_all(struct tcp_link *s, struct transfer *all, int n, bool idle)
{
    const uint64_t start_ns = sl_now_ns(), start = __builtin_ia32_rdtsc();
    for (;;) {
        int n_left = 0, rc = 0;
        for (int i = 0; i < n && rc == 0; i++) {
            rc = move(s, &all[i]);
            n_left += all[i].cut < all[i].n_cuts;
        }
        if (rc != 0 || n_left == 0)
            return rc;
        if (__builtin_ia32_rdtsc() - start < s->link.spin_ticks)
            __builtin_ia32_pause();
        else
            rc = await(s, all, n, idle, start_ns);
        if (rc != 0)
            return rc;
    }
}

/* ---------------------------------------------------------------- messages */

static struct transfer *begin(struct tcp_link *s, int i, int rank, bool sends)
{
    struct transfer *t = &s->transfers[i];
    *t = (struct transfer){.fd = s->fds[rank], .rank = rank, .sends = sends};
    return t;
}

static int check_frame(struct tcp_link *s, int rank, enum kind kind, uint32_t seq, uint64_t n)
{
    const struct frame *f = &s->frames[rank];
    if (f->magic == MAGIC && f->kind == kind && f->seq == seq && (kind == KIND_STEP || f->n == n))
        return 0;
    return sl_link_fail(&s->link, "rank %d is out of step: %u.%u of %llu rows where %u.%u of %llu",
                        rank, f->kind, f->seq, (unsigned long long)f->n, kind, seq,
                        (unsigned long long)n);
}

static int tcp_send(struct sl_link *l, const void *data, size_t n)
{
    struct tcp_link *s = (struct tcp_link *)l;
    s->own = (struct frame){.magic = MAGIC, .kind = KIND_STEP, .seq = s->n_steps++, .n = n};
    int n_to = 0;
    for (int i = 1; i < l->cfg.n_ranks; i++) {
        if (!sl_link_has(l, i))
            continue;
        struct transfer *t = begin(s, n_to++, i, true);
        add_cut(t, &s->own, sizeof s->own, sizeof s->own, 1);
        add_cut(t, data, n, n, 1);
    }
    return move_all(s, s->transfers, n_to, false);
}

static int tcp_recv(struct sl_link *l, void *data, size_t max, size_t *n)
{
    struct tcp_link *s = (struct tcp_link *)l;
    struct transfer *t = begin(s, 0, 0, false);
    add_cut(t, &s->frames[0], sizeof s->frames[0], sizeof s->frames[0], 1);
    int rc = move_all(s, t, 1, true);
    if (rc == 0)
        rc = check_frame(s, 0, KIND_STEP, s->n_steps, 0);
    if (rc != 0)
        return rc;
    s->n_steps++;
    if (s->frames[0].n == 0 || s->frames[0].n > max)
        return sl_link_fail(l, "rank 0 sent a step of %llu bytes",
                            (unsigned long long)s->frames[0].n);
    *n = (size_t)s->frames[0].n;
    t = begin(s, 0, 0, false);
    add_cut(t, data, *n, *n, 1);
    return move_all(s, t, 1, false);
}

/* ---------------------------------------------------------------- gathers */

/* Of one rank's part among the columns of out; widths: what is known of all. */
static void add_part(const struct sl_link *l, struct transfer *t, const struct sl_link_gather *g,
                     const uint64_t widths[SL_MAX_RANKS], int rank)
{
    size_t before = 0, row = 0;
    for (int i = 0; i < l->cfg.n_ranks; i++) {
        before += i < rank ? (size_t)widths[i] : 0;
        row += (size_t)widths[i];
    }
    add_cut(t, (uint8_t *)g->out + before, (size_t)widths[rank], row, (size_t)g->n);
}

static int check_widths(struct tcp_link *s, const struct sl_link_gather *g,
                        const uint64_t widths[SL_MAX_RANKS], int from)
{
    uint64_t row = 0;
    for (int i = 0; i < s->link.cfg.n_ranks; i++) {
        if (widths[i] > s->link.cfg.room_bytes)
            return sl_link_fail(&s->link, "rank %d says that rows have %llu bytes", from,
                                (unsigned long long)widths[i]);
        row += widths[i];
    }
    return g->row_bytes == 0 || row == g->row_bytes
               ? 0
               : sl_link_fail(&s->link, "rows of all ranks have %llu bytes in place of %zu",
                              (unsigned long long)row, g->row_bytes);
}

static void send_own(struct tcp_link *s, struct transfer *t, const struct sl_link_gather *g)
{
    add_cut(t, &s->own, sizeof s->own, sizeof s->own, 1);
    add_cut(t, g->part, g->part_bytes, g->part_bytes, (size_t)g->n);
}

/* Rank 0: what the others send first, which says how wide their parts are. With one other rank it
 * sends its own part meanwhile. */
static int gather_frames(struct tcp_link *s, const struct sl_link_gather *g,
                         uint64_t widths[SL_MAX_RANKS], bool sends)
{
    const int n_ranks = s->link.cfg.n_ranks;
    int rc = 0, n = 0;
    for (int i = 1; i < n_ranks; i++)
        if (sl_link_has(&s->link, i))
            add_cut(begin(s, n++, i, false), &s->frames[i], sizeof s->frames[i],
                    sizeof s->frames[i], 1);
    if (sends)
        send_own(s, begin(s, n++, 1, true), g);
    rc = move_all(s, s->transfers, n, false);
    for (int i = 1; i < n_ranks && rc == 0; i++) {
        if (!sl_link_has(&s->link, i))
            continue;
        rc = check_frame(s, i, KIND_PART, s->n_gathers, (uint64_t)g->n);
        widths[i] = s->frames[i].row_bytes[i];
    }
    return rc == 0 ? check_widths(s, g, widths, 1) : rc;
}

static int gather_as_first(struct tcp_link *s, const struct sl_link_gather *g,
                           uint64_t widths[SL_MAX_RANKS])
{
    const struct sl_link *l = &s->link;
    const int n_ranks = l->cfg.n_ranks;
    const bool answers = !g->first_only || g->also > 0, pair = n_ranks == 2;
    int n = 0, rc = gather_frames(s, g, widths, answers && pair && sl_link_has(l, 1));
    for (int i = 1; i < n_ranks && rc == 0; i++)
        if (sl_link_has(l, i))
            add_part(l, begin(s, n++, i, false), g, widths, i);
    rc = rc == 0 ? move_all(s, s->transfers, n, false) : rc;
    if (rc != 0 || pair || !answers)
        return rc;
    memcpy(s->own.row_bytes, widths, sizeof s->own.row_bytes);
    n = 0;
    for (int i = 1; i < n_ranks; i++) {
        if (!sl_link_wants(g, i) || !sl_link_has(l, i))
            continue;
        struct transfer *t = begin(s, n++, i, true);
        send_own(s, t, g);
        for (int j = 1; j < n_ranks; j++)
            if (j != i)
                add_part(l, t, g, widths, j);
    }
    return move_all(s, s->transfers, n, false);
}

static int gather_as_other(struct tcp_link *s, const struct sl_link_gather *g,
                           uint64_t widths[SL_MAX_RANKS])
{
    const struct sl_link *l = &s->link;
    const bool waits = sl_link_wants(g, l->cfg.rank);
    send_own(s, begin(s, 0, 0, true), g);
    if (waits)
        add_cut(begin(s, 1, 0, false), &s->frames[0], sizeof s->frames[0], sizeof s->frames[0], 1);
    int rc = move_all(s, s->transfers, 1 + waits, false);
    if (rc != 0 || !waits)
        return rc;
    rc = check_frame(s, 0, KIND_WHOLE, s->n_gathers, (uint64_t)g->n);
    for (int i = 0; i < l->cfg.n_ranks; i++)
        if (i != l->cfg.rank)
            widths[i] = s->frames[0].row_bytes[i];
    if (rc == 0)
        rc = check_widths(s, g, widths, 0);
    if (rc != 0)
        return rc;
    struct transfer *t = begin(s, 0, 0, false);
    for (int i = 0; i < l->cfg.n_ranks; i++)
        if (i != l->cfg.rank)
            add_part(l, t, g, widths, i);
    return move_all(s, t, 1, false);
}

static int tcp_all_gather(struct sl_link *l, const struct sl_link_gather *g,
                          struct sl_link_part parts[SL_MAX_RANKS])
{
    struct tcp_link *s = (struct tcp_link *)l;
    const int rank = l->cfg.rank;
    uint64_t widths[SL_MAX_RANKS] = {0};
    widths[rank] = g->part_bytes;
    s->own = (struct frame){.magic = MAGIC,
                            .kind = rank == 0 ? KIND_WHOLE : KIND_PART,
                            .seq = s->n_gathers,
                            .n = (uint64_t)g->n};
    s->own.row_bytes[rank] = g->part_bytes;
    int rc = rank == 0 ? gather_as_first(s, g, widths) : gather_as_other(s, g, widths);
    s->n_gathers++;
    for (int i = 0; i < l->cfg.n_ranks; i++)
        parts[i] = (struct sl_link_part){.bytes = (size_t)widths[i]};
    parts[rank].rows = g->part;
    return rc;
}

static void tcp_close(struct sl_link *l)
{
    struct tcp_link *s = (struct tcp_link *)l;
    for (int i = 0; i < l->cfg.n_ranks; i++)
        if (s->fds[i] >= 0)
            sl_sys->close(s->fds[i]);
    sl_free(s);
}

int sl_link_tcp_open(const struct sl_link_config *cfg, const int *fds, struct sl_link **out,
                     struct sl_error *err)
{
    static const struct sl_link_vt vt = {
        .send = tcp_send, .recv = tcp_recv, .all_gather = tcp_all_gather, .close = tcp_close};
    struct tcp_link *s = sl_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a link");
    sl_link_init(&s->link, cfg, &vt);
    for (int i = 0; i < SL_MAX_RANKS; i++)
        s->fds[i] = -1;
    if (cfg->rank > 0)
        s->fds[0] = fds[0];
    for (int i = 1; i < cfg->n_ranks && cfg->rank == 0; i++)
        s->fds[i] = sl_link_has(&s->link, i) ? fds[i - 1] : -1;
    *out = &s->link;
    return 0;
}
