/* SPDX-License-Identifier: MIT
 * peer.h - pages of a prompt from another server, which prefilled it (serve.h), into the store of
 * this one.
 *
 * A job asks one peer for the pages of one prompt and puts what comes into the store, under this
 * server's own names. It is over when it has all it can get, when the peer is lost or at its
 * deadline; the store then has what has come, and the rest is a miss, so the engine computes it. A
 * page is believed if root, place and tokens are right and its digest is that of its bytes.
 *
 * With NIXL on both sides it reads the page itself, and a page that it cannot read so, or not in
 * time, is asked for once more over TCP.
 *
 * Layers see everything: pages in the order of blocks, while the peer computes them. Recurrent
 * layers: the deepest state that there is. Windows: what a row behind that sees.
 *
 * Any thread may begin a job; begin allocates. Over, cancel and unref do neither wait nor allocate.
 */
#ifndef SL_TIER_PEER_H
#define SL_TIER_PEER_H

#include "base/netlist.h"
#include "tier/serve.h"

struct sl_peer;
struct sl_peer_job;

struct sl_peer_config {
    struct sl_store *store;
    struct sl_nixl *nixl; /* NULL: pages come over TCP only */
    struct sl_page_layout layout;
    struct sl_netlist peers; /* that may be asked */
    /* What the store has behind a page: the name of the block before it (of the first one its own),
     * tokens. */
    void (*put_tail)(uint8_t *tail, const struct sl_hash128 *before, const int32_t *tokens,
                     int32_t block_size);
    void (*wake)(void *arg); /* a job is over */
    void *wake_arg;
    int n_threads;       /* as in serve.h */
    uint64_t conn_bytes; /* of a job that are worth a connection; 0: 32 MB */
};

struct sl_peer_want {
    const char *host;
    int port;
    struct sl_lease_id id;
    int32_t n_blocks;
    const struct sl_hash128 *names; /* [n_blocks] of this server; copied */
    const int32_t *tokens;          /* [n_blocks, block_size] copied */
    uint32_t wait_ms;
};

struct sl_peer_stats {
    uint64_t n_jobs, n_whole; /* begun; that got all they wanted */
    uint64_t n_pages, n_bytes;
    uint64_t job_ns;                               /* from the beginning of jobs to their end */
    uint64_t n_corrupt, n_lost, n_late, n_refused; /* pages; connections; jobs; jobs */
};

SL_MUST_CHECK int sl_peer_open(const struct sl_peer_config *cfg, struct sl_peer **out,
                               struct sl_error *err);
void sl_peer_close(struct sl_peer *p); /* before the store; NULL is fine */
void sl_peer_stats(struct sl_peer *p, struct sl_peer_stats *out);

/* NULL: there are too many, or no memory: everything is computed here. */
struct sl_peer_job *sl_peer_begin(struct sl_peer *p, const struct sl_peer_want *want);
bool sl_peer_over(const struct sl_peer_job *j);
void sl_peer_cancel(struct sl_peer_job *j); /* nobody wants it any more; before sl_peer_close */
void sl_peer_unref(struct sl_peer_job *j);  /* also after the peer is gone */

#endif
