/* SPDX-License-Identifier: MIT
 * peer_wire.h - what two servers say to one another about the pages of a prompt, and the sockets
 * they use. Structures are sent as they lie in memory: who has another order of bytes has another
 * root, too.
 *
 *   who wants pages                       who has them
 *   HELLO root, which lease, tokens  ->
 *                                    <-   WELCOME how many of its blocks are the same, and what is
 *                                         needed to read its memory by NIXL, if both have that
 *   ASK block, group, carrier        ->   (up to SL_MAX_PEER_WINDOW that are not answered or read)
 *                                    <-   PAGE and its bytes, or where they lie, in the order of
 * the asks; or that it will not come; BEAT while it is waited for ASK block -2 ->   the first page
 * that was told where it lies was read, or (carrier 0) will not be ASK block -1 ->   has all it
 * wants
 *
 * Names of blocks are not sent: they are hashed with a secret of each server (store.h). A page is
 * asked for by its place in the prompt of a lease, and who asks shows the tokens of that prompt.
 */
#ifndef SL_TIER_PEER_WIRE_H
#define SL_TIER_PEER_WIRE_H

#include "base/err.h"
#include "base/hash.h"
#include "base/limits.h"

#include <sys/types.h>

#define SL_PEER_MAGIC 0x3230564B434C5300u /* changes with every change of what follows */

/* What brings the bytes of a page: this connection, or NIXL (nixl.h). */
enum sl_peer_carrier { SL_CARRIER_STREAM, SL_CARRIER_NIXL };

enum { SL_PEER_SILENT_MS = 5000, SL_PEER_BEAT_MS = 1000 };

/* Of a lease: a random number, or a room that both were told of. */
struct sl_lease_id {
    uint64_t lo, hi;
    uint32_t is_room; /* lo is its number */
    uint32_t unused;
};

struct sl_peer_hello { /* n_blocks blocks of tokens follow */
    uint64_t magic;
    struct sl_hash128 root;
    struct sl_lease_id id;
    int32_t block_size, n_blocks;
    uint32_t wait_ms; /* that the lease may take to appear */
    uint32_t carrier; /* enum sl_peer_carrier that it would like */
};

enum sl_peer_status {
    SL_PEER_OK,
    SL_PEER_BEAT,  /* no answer yet */
    SL_PEER_GONE,  /* no such lease, or not any more; of a page: it will not come */
    SL_PEER_ROOT,  /* another model, version, instruction set or length */
    SL_PEER_OTHER, /* of other tokens */
    SL_PEER_FAILED /* the request that was to compute the pages did not begin */
};

struct sl_peer_welcome { /* n_metadata bytes follow: of the agent that has the pages */
    uint32_t status;     /* enum sl_peer_status */
    int32_t n_blocks;
    uint32_t n_metadata; /* 0: there is none, pages come by the stream */
    uint32_t unused;
};

enum { SL_PEER_ASK_END = -1, SL_PEER_ASK_READ = -2 };

struct sl_peer_ask {
    int32_t block, group; /* a block below 0: one of the above */
    uint32_t carrier;
};

struct sl_peer_page { /* of the stream: n_bytes follow */
    uint32_t status;
    int32_t block, group;
    uint32_t carrier;
    uint64_t n_bytes;
    uint64_t addr; /* of NIXL: where they lie, until they were read */
    struct sl_hash128 digest;
};

/* Of a page's bytes, and of what they are. */
struct sl_hash128 sl_peer_digest(const struct sl_hash128 *root, const struct sl_lease_id *id,
                                 int32_t block, int32_t group, const void *bytes, size_t n);

/* Sockets that do not block. */
SL_MUST_CHECK int sl_peer_listen(const char *addr, int *port, int *fd, struct sl_error *err);
void sl_peer_tune(int fd);
/* Bytes moved, 0: it would block, -1: the connection is over. */
ssize_t sl_peer_send(int fd, const void *head, size_t n_head, const void *body, size_t n_body);
ssize_t sl_peer_recv(int fd, void *to, size_t n);

int sl_peer_n_threads(int wanted); /* 0: as many as the machine is for */

/* Something to poll that another thread can make ready. */
SL_MUST_CHECK int sl_peer_bell(int *fd, struct sl_error *err);
void sl_peer_ring(int fd);
void sl_peer_hush(int fd);

#endif
