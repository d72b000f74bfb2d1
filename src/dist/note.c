/* SPDX-License-Identifier: MIT */
#include "dist/note.h"

#include "base/check.h"
#include "base/sys.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define MAGIC 0x534c524bu /* "SLRK" */

struct head {
    uint32_t magic, protocol, kind, n;
};

static const uint32_t sizes[SL_NOTE_KINDS] = {
    [SL_NOTE_HELLO] = sizeof(struct sl_note_hello),
    [SL_NOTE_CHALLENGE] = sizeof(struct sl_note_challenge),
    [SL_NOTE_PROOF] = sizeof(struct sl_note_proof),
    [SL_NOTE_WELCOME] = sizeof(struct sl_note_welcome),
    [SL_NOTE_REFUSE] = sizeof(struct sl_note_refusal),
    [SL_NOTE_LOADED] = sizeof(struct sl_note_loaded),
    [SL_NOTE_LINK] = sizeof(struct sl_note_link),
    [SL_NOTE_DATA] = SL_RANK_NONCE,
    [SL_NOTE_READY] = 0,
    [SL_NOTE_BEAT] = sizeof(struct sl_note_beat),
    [SL_NOTE_END] = 0,
};
_Static_assert(sizeof(struct sl_note_welcome) + sizeof(struct head) <= SL_MAX_RANK_NOTE, "fits");

int sl_note_send(int fd, enum sl_note_kind kind, const void *body, size_t n, struct sl_error *err)
{
    uint8_t out[SL_MAX_RANK_NOTE];
    const struct head h = {MAGIC, SL_RANK_PROTOCOL, kind, (uint32_t)n};
    SL_ASSERT(kind < SL_NOTE_KINDS && n == sizes[kind]);
    memcpy(out, &h, sizeof h);
    if (n > 0)
        memcpy(out + sizeof h, body, n);
    const ssize_t sent = send(fd, out, sizeof h + n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == (ssize_t)(sizeof h + n))
        return 0;
    return sl_fail(err, SL_ERANK, "a note could not be sent: %s",
                   sent < 0 ? strerror(errno) : "the other side does not read");
}

static int check_head(const struct head *h, struct sl_error *err)
{
    if (h->magic != MAGIC)
        return sl_fail(err, SL_EFORMAT, "what arrived is not of a rank of sluice");
    if (h->protocol != SL_RANK_PROTOCOL)
        return sl_fail(err, SL_EFORMAT,
                       "the other side speaks version %u of the protocol of ranks, this one %d",
                       h->protocol, SL_RANK_PROTOCOL);
    if (h->kind == 0 || h->kind >= SL_NOTE_KINDS || h->n != sizes[h->kind])
        return sl_fail(err, SL_EFORMAT, "a note of kind %u has %u bytes", h->kind, h->n);
    return 0;
}

/* Until there are n bytes. 1: there are; 0: not yet. */
static int fill(struct sl_note_conn *c, size_t n, struct sl_error *err)
{
    SL_ASSERT(n <= sizeof c->buf);
    while (c->n < n) {
        const ssize_t got = recv(c->fd, c->buf + c->n, n - c->n, MSG_DONTWAIT);
        if (got > 0)
            c->n += (size_t)got;
        else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        else if (got == 0 || errno != EINTR)
            return sl_fail(err, SL_ERANK, "%s", sl_rank_lost_text(got));
    }
    return 1;
}

int sl_note_read(struct sl_note_conn *c, struct sl_note *note, struct sl_error *err)
{
    struct head h;
    int rc = fill(c, sizeof h, err);
    if (rc != 1)
        return rc;
    memcpy(&h, c->buf, sizeof h);
    rc = check_head(&h, err);
    if (rc != 0)
        return rc;
    rc = fill(c, sizeof h + h.n, err);
    if (rc != 1)
        return rc;
    note->kind = (enum sl_note_kind)h.kind;
    note->n = h.n;
    memcpy(note->body, c->buf + sizeof h, h.n);
    c->n = 0;
    return 1;
}

int sl_note_await(struct sl_note_conn *c, int ms, struct sl_note *note, struct sl_error *err)
{
    const uint64_t end_ns = sl_now_ns() + (uint64_t)ms * 1000000u;
    for (;;) {
        int rc = sl_note_read(c, note, err);
        const uint64_t now = sl_now_ns();
        if (rc != 0)
            return rc;
        if (now >= end_ns)
            return 0;
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        (void)poll(&p, 1, (int)((end_ns - now) / 1000000u) + 1);
    }
}

void sl_note_prove(const void *secret, size_t n_secret, const char *who,
                   const struct sl_note_hello *hello, const uint8_t nonce[SL_RANK_NONCE],
                   uint8_t proof[SL_RANK_PROOF])
{
    uint8_t text[16 + SL_RANK_NONCE + sizeof *hello] = {0};
    unsigned n = 0;
    SL_ASSERT(strlen(who) < 16 && n_secret <= SL_MAX_RANK_SECRET);
    memcpy(text, who, strlen(who));
    memcpy(text + 16, nonce, SL_RANK_NONCE);
    memcpy(text + 16 + SL_RANK_NONCE, hello, sizeof *hello);
    HMAC(EVP_sha256(), n_secret > 0 ? secret : "", (int)n_secret, text, sizeof text, proof, &n);
    SL_ASSERT(n == SL_RANK_PROOF);
}

bool sl_note_proves(const uint8_t a[SL_RANK_PROOF], const uint8_t b[SL_RANK_PROOF])
{
    return CRYPTO_memcmp(a, b, SL_RANK_PROOF) == 0;
}

/* ---------------------------------------------------------------- identities */

/* Printable, whatever it was; in place, of a text that ends. */
static const char *shown(char *s, size_t n)
{
    s[n - 1] = '\0';
    for (char *c = s; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return s;
}

static int differ(const char *what, const char *own, const char *theirs, int rank,
                  struct sl_error *err)
{
    return sl_fail(err, SL_EINVAL, "%s: rank 0 has %s, rank %d has %s", what, own, rank, theirs);
}

int sl_rank_identity_check(const struct sl_rank_identity *own,
                           const struct sl_rank_identity *theirs, int rank, struct sl_error *err)
{
    struct sl_rank_identity t = *theirs;
    char a[160], b[160];
    (void)shown(t.version, sizeof t.version);
    (void)shown(t.isa, sizeof t.isa);
    (void)shown(t.model, sizeof t.model);
    if (strcmp(own->version, t.version) != 0)
        return differ("version of sluice", own->version, t.version, rank, err);
    if (own->n_ranks != t.n_ranks)
        return sl_fail(err, SL_EINVAL, "nnodes: rank 0 has %d, rank %d has %d", own->n_ranks, rank,
                       t.n_ranks);
    if (rank < 1 || rank >= own->n_ranks)
        return sl_fail(err, SL_EINVAL, "node-rank: %d is not between 1 and %d", rank,
                       own->n_ranks - 1);
    if (own->digest.lo != t.digest.lo || own->digest.hi != t.digest.hi) {
        snprintf(a, sizeof a, "%s (%016llx)", own->model, (unsigned long long)own->digest.hi);
        snprintf(b, sizeof b, "%s (%016llx)", t.model, (unsigned long long)t.digest.hi);
        return differ("model", a, b, rank, err);
    }
    if (strcmp(own->isa, t.isa) != 0)
        return differ("instruction set (--cpu-isa)", own->isa, t.isa, rank, err);
    if (own->exact != t.exact)
        return sl_fail(err, SL_EINVAL, "exact-weights: rank 0 has %d, rank %d has %d", own->exact,
                       rank, t.exact);
    return 0;
}
