/* SPDX-License-Identifier: MIT
 * note.h - what ranks say to one another beside steps: who they are, what they are to do, and that
 * they live. Notes are small and go over a TCP connection of their own.
 *
 * What arrives may be anything: a note has a known kind, a size that fits it, and the same version
 * of this protocol, or it is an error.
 *
 *   rank k                                rank 0
 *   HELLO identity, nonce         ->
 *                                 <-      CHALLENGE nonce, proof that it knows the secret
 *   PROOF                         ->
 *                                 <-      WELCOME what a rank needs to load, or REFUSE why not
 *   LOADED                        ->      once its weights are in memory
 *                                 <-      LINK once all are, or all that there will be: where they
 *                                         meet, and without whom
 *   DATA token                    ->      over TCP: on another connection, the link's own
 *   READY                         ->      steps may come
 *   BEAT                          <->     all the time from WELCOME on
 *                                 <-      END
 */
#ifndef SL_DIST_NOTE_H
#define SL_DIST_NOTE_H

#include "base/err.h"
#include "base/hash.h"
#include "base/limits.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SL_RANK_PROTOCOL 2 /* any change of a note or a frame has another number */

enum sl_note_kind {
    SL_NOTE_HELLO = 1,
    SL_NOTE_CHALLENGE,
    SL_NOTE_PROOF,
    SL_NOTE_WELCOME,
    SL_NOTE_REFUSE,
    SL_NOTE_LOADED,
    SL_NOTE_LINK,
    SL_NOTE_DATA,
    SL_NOTE_READY,
    SL_NOTE_BEAT,
    SL_NOTE_END,
    SL_NOTE_KINDS
};

/* What must be the same on all ranks, for their bits to be those of one. */
struct sl_rank_identity {
    char version[32];         /* of sluice */
    char isa[24];             /* instruction set, which decides bits */
    char model[96];           /* family and shape, for people */
    struct sl_hash128 digest; /* of the model's content */
    int32_t n_ranks, exact;
};

enum { SL_RANK_NONCE = 16, SL_RANK_PROOF = 32, SL_RANK_PLAN = 1024 };

struct sl_note_hello {
    struct sl_rank_identity id;
    int32_t rank;
    uint8_t nonce[SL_RANK_NONCE];
};

struct sl_note_challenge {
    uint8_t nonce[SL_RANK_NONCE], proof[SL_RANK_PROOF];
};

struct sl_note_proof {
    uint8_t proof[SL_RANK_PROOF];
};

struct sl_note_welcome {
    /* Memory of rank 0, of one page that begins with probe: who can open it is on the same host. */
    int64_t pid;
    int32_t probe_fd, timeout_ms;
    uint8_t probe[SL_RANK_NONCE];
    uint8_t plan[SL_RANK_PLAN]; /* the engine's */
};

struct sl_note_refusal {
    int32_t again; /* it may be another way in a moment */
    char why[236];
};

struct sl_note_loaded {
    int32_t shares; /* it could open the memory */
    int32_t unused;
    uint64_t room_bytes, max_message; /* as it has them */
};

struct sl_note_link {
    int64_t pid;       /* with shared memory: */
    int32_t memory_fd; /* below 0: over TCP, */
    uint32_t absent;   /* ranks that are not in it, a bit each */
    uint64_t n_bytes;
    uint8_t token[SL_RANK_NONCE]; /* to be said on the link's connection */
};

struct sl_note_beat {
    uint64_t progress;
};

struct sl_note {
    enum sl_note_kind kind;
    size_t n;
    _Alignas(16) uint8_t body[SL_MAX_RANK_NOTE];
};

struct sl_note_conn { /* that notes are read from as they come */
    int fd;
    size_t n; /* bytes in buf */
    uint8_t buf[SL_MAX_RANK_NOTE];
};

/* Does not wait: a peer that does not read its notes is given up. */
SL_MUST_CHECK int sl_note_send(int fd, enum sl_note_kind kind, const void *body, size_t n,
                               struct sl_error *err);
/* Takes what has arrived. 1: *note is one; 0: there is none yet. Nothing behind the note is read.
 */
SL_MUST_CHECK int sl_note_read(struct sl_note_conn *c, struct sl_note *note, struct sl_error *err);
/* The same, waiting at most ms. */
SL_MUST_CHECK int sl_note_await(struct sl_note_conn *c, int ms, struct sl_note *note,
                                struct sl_error *err);

/* HMAC-SHA256 of who proves it, both nonces and the hello. */
void sl_note_prove(const void *secret, size_t n_secret, const char *who,
                   const struct sl_note_hello *hello, const uint8_t nonce[SL_RANK_NONCE],
                   uint8_t proof[SL_RANK_PROOF]);
bool sl_note_proves(const uint8_t a[SL_RANK_PROOF], const uint8_t b[SL_RANK_PROOF]);

/* An error that names both sides' values where they differ; theirs has been received. */
SL_MUST_CHECK int sl_rank_identity_check(const struct sl_rank_identity *own,
                                         const struct sl_rank_identity *theirs, int rank,
                                         struct sl_error *err);

/* Sockets, not blocking. addr is an address or a name; beyond loopback it is only listened on where
 * that is asked for. *port 0: any free one, which it becomes. */
SL_MUST_CHECK int sl_rank_listen(const char *addr, bool anywhere, int *port, int *fd,
                                 struct sl_error *err);
SL_MUST_CHECK int sl_rank_dial(const char *addr, int port, int ms, int *fd, struct sl_error *err);
/* Why a call of a socket that returned n, 0 or below, says that the other end is gone: the same
 * words for a process that ended, whatever it left unread. */
const char *sl_rank_lost_text(ssize_t n);
void sl_rank_no_delay(int fd);                /* small messages go at once */
void sl_rank_peer_name(int fd, char out[64]); /* address and port of the other end */

#endif
