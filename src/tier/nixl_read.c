/* SPDX-License-Identifier: MIT
 * Reads of pages from other servers' agents, and what is known of those.
 *
 * The way of a read: free, in the queue, posted (the library has it), over. One that is given up
 * before it is over stays posted. One that ended by an error is not believed to be over until its
 * connection is gone: then what is kept goes back to the store.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/nixl_impl.h"
#include "tier/peer_wire.h"

#include <string.h>

#define MS      UINT64_C(1000000)
#define REST_NS (30000 * MS) /* of an agent whose reads failed */

/* ---- reads, under the lock */

static void recycle(struct sl_nixl *n, struct sl_nixl_read *r)
{
    SL_ASSERT(r->remote != NULL && r->remote->n_reads > 0 && r->req == NULL);
    r->remote->n_reads--;
    *r = (struct sl_nixl_read){.next = n->free};
    n->free = r;
}

static void blame(struct sl_nixl_remote *remote)
{
    remote->fails = true;
    remote->rest_until_ns = sl_now_ns() + REST_NS;
}

/* ---- the agent's thread */

/* The place of a read that was given up is the store's again. */
static void give_back(struct sl_nixl *n, struct sl_nixl_read *r)
{
    SL_ASSERT(r->given_up);
    sl_store_cancel(n->cfg.store, r->place);
    pthread_mutex_lock(&n->lock);
    n->stats.n_kept--;
    recycle(n, r);
    pthread_mutex_unlock(&n->lock);
}

/* The library, or the queue, has it no longer. */
static void settle(struct sl_nixl *n, struct sl_nixl_read *r, bool good)
{
    pthread_mutex_lock(&n->lock);
    const bool given_up = r->given_up;
    SL_ASSERT(r->state == SL_NIXL_PENDING && r->req == NULL);
    r->state = good ? SL_NIXL_DONE : SL_NIXL_FAILED;
    n->stats.n_reads += good && !given_up;
    n->stats.n_bytes += good && !given_up ? r->n_bytes : 0;
    n->stats.n_failed += !good && !r->late;
    if (good)
        r->remote->heard_ns = sl_now_ns();
    else
        blame(r->remote);
    if (given_up && !good) {
        r->next = n->kept;
        n->kept = r;
    }
    if (!given_up)
        sl_peer_ring(r->bell);
    pthread_mutex_unlock(&n->lock);
    if (given_up && good)
        give_back(n, r);
}

/* Its metadata: a connection begins. Two agents of one name would be taken for one. */
static bool meet(struct sl_nixl *n, struct sl_nixl_remote *remote)
{
    char *name = NULL;
    if (remote->name != NULL)
        return true;
    int rc = n->lib->load_remote_md(n->agent, remote->metadata, remote->n_metadata, &name);
    bool good = rc == SL_NIXL_OK && name != NULL && strcmp(name, n->name) != 0;
    pthread_mutex_lock(&n->lock);
    for (int i = 0; good && i < SL_MAX_NIXL_REMOTES; i++)
        good = n->remotes[i] == NULL || n->remotes[i]->name == NULL ||
               strcmp(n->remotes[i]->name, name) != 0;
    pthread_mutex_unlock(&n->lock);
    if (good)
        remote->name = name;
    else
        n->lib->release(name);
    return good;
}

static bool post_one(struct sl_nixl *n, struct sl_nixl_read *r)
{
    const struct sl_nixl_lib *lib = n->lib;
    sl_nixl_obj to = NULL, from = NULL;
    SL_ASSERT(r->req == NULL && r->place >= n->memory &&
              r->place + r->n_bytes <= n->memory + n->n_memory);
    if (!meet(n, r->remote))
        return false;
    int rc = lib->create_xfer_dlist(SL_NIXL_DRAM, &to);
    if (rc == SL_NIXL_OK)
        rc = lib->create_xfer_dlist(SL_NIXL_DRAM, &from);
    if (rc == SL_NIXL_OK)
        rc = lib->xfer_dlist_add_desc(to, (uintptr_t)r->place, r->n_bytes, 0);
    if (rc == SL_NIXL_OK)
        rc = lib->xfer_dlist_add_desc(from, (uintptr_t)r->addr, r->n_bytes, 0);
    if (rc == SL_NIXL_OK) /* not so if it is no memory that the other one has registered */
        rc = lib->create_xfer_req(n->agent, SL_NIXL_READ, to, from, r->remote->name, &r->req,
                                  n->args);
    if (to != NULL)
        (void)lib->destroy_xfer_dlist(to);
    if (from != NULL)
        (void)lib->destroy_xfer_dlist(from);
    if (rc != SL_NIXL_OK)
        r->req = NULL;
    return rc == SL_NIXL_OK && lib->post_xfer_req(n->agent, r->req, NULL) >= 0;
}

static void free_req(struct sl_nixl *n, struct sl_nixl_read *r)
{
    if (r->req == NULL)
        return;
    (void)n->lib->release_xfer_req(n->agent, r->req);
    (void)n->lib->destroy_xfer_req(r->req);
    r->req = NULL;
}

void sl_nixl_post(struct sl_nixl *n, struct sl_nixl_read *queue)
{
    while (queue != NULL) {
        struct sl_nixl_read *r = queue;
        queue = r->next;
        pthread_mutex_lock(&n->lock);
        const bool given_up = r->given_up, rests = r->remote->fails;
        pthread_mutex_unlock(&n->lock);
        if (given_up) { /* the library has not seen it */
            give_back(n, r);
            continue;
        }
        if (!rests && post_one(n, r)) {
            r->next = n->posted;
            n->posted = r;
            r->remote->n_posted++;
            continue;
        }
        free_req(n, r);
        settle(n, r, false);
    }
}

void sl_nixl_progress(struct sl_nixl *n)
{
    for (struct sl_nixl_read **at = &n->posted; *at != NULL;) {
        struct sl_nixl_read *r = *at;
        SL_ASSERT(r->req != NULL && r->remote->n_posted > 0);
        const int rc = n->lib->get_xfer_status(n->agent, r->req);
        if (rc == SL_NIXL_UNDER_WAY) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->remote->n_posted--;
        free_req(n, r);
        settle(n, r, rc == SL_NIXL_OK);
    }
}

/* The connection is gone: nothing is written any more into the places of its reads. */
static void disconnect(struct sl_nixl *n, struct sl_nixl_remote *remote)
{
    struct sl_nixl_read *over = NULL;
    SL_ASSERT(remote->n_posted == 0);
    if (remote->name != NULL) {
        (void)n->lib->invalidate_remote_md(n->agent, remote->name);
        n->lib->release(remote->name);
        remote->name = NULL;
    }
    pthread_mutex_lock(&n->lock);
    for (struct sl_nixl_read **at = &n->kept; *at != NULL;) {
        struct sl_nixl_read *r = *at;
        if (r->remote != remote) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->next = over;
        over = r;
    }
    pthread_mutex_unlock(&n->lock);
    while (over != NULL) {
        struct sl_nixl_read *r = over;
        over = r->next;
        give_back(n, r);
    }
}

static void free_remote(struct sl_nixl_remote *remote)
{
    SL_ASSERT(remote->n_users == 0 && remote->n_reads == 0 && remote->name == NULL);
    sl_free(remote->metadata);
    sl_free(remote);
}

/* True: it waits for reads to end. */
static bool tend_one(struct sl_nixl *n, int i)
{
    struct sl_nixl_remote *remote = n->remotes[i]; /* none but this thread removes one */
    pthread_mutex_lock(&n->lock);
    const bool ends = remote->fails || remote->drop;
    pthread_mutex_unlock(&n->lock);
    if (!ends)
        return false;
    if (remote->n_posted > 0)
        return true;
    disconnect(n, remote);
    pthread_mutex_lock(&n->lock);
    /* Some that failed may not be given up yet: until then it is no use to connect anew. */
    const bool idle = remote->n_reads == 0, gone = idle && remote->drop && remote->n_users == 0;
    remote->fails &= !idle;
    if (gone)
        n->remotes[i] = NULL;
    pthread_mutex_unlock(&n->lock);
    if (gone)
        free_remote(remote);
    return !idle;
}

bool sl_nixl_tend(struct sl_nixl *n)
{
    bool waits = false;
    for (int i = 0; i < SL_MAX_NIXL_REMOTES; i++) {
        pthread_mutex_lock(&n->lock);
        const bool there = n->remotes[i] != NULL;
        pthread_mutex_unlock(&n->lock);
        waits |= there && tend_one(n, i);
    }
    return waits;
}

void sl_nixl_drop_all(struct sl_nixl *n)
{
    struct sl_nixl_read *r;
    pthread_mutex_lock(&n->lock);
    struct sl_nixl_read *queue = n->queue;
    n->queue = n->last = NULL;
    pthread_mutex_unlock(&n->lock);
    while ((r = queue) != NULL) {
        queue = r->next;
        give_back(n, r);
    }
    while ((r = n->posted) != NULL) {
        n->posted = r->next;
        r->req = NULL; /* gone with the agent */
        give_back(n, r);
    }
    while ((r = n->kept) != NULL) {
        n->kept = r->next;
        give_back(n, r);
    }
    for (int i = 0; i < SL_MAX_NIXL_REMOTES; i++) {
        if (n->remotes[i] == NULL)
            continue;
        n->lib->release(n->remotes[i]->name);
        n->remotes[i]->name = NULL; /* the connection went with the agent */
        free_remote(n->remotes[i]);
        n->remotes[i] = NULL;
    }
    SL_ASSERT(n->stats.n_kept == 0);
}

/* ---- other agents */

/* Under the lock: a free place of the table, or -1; then who was not met for longest goes. */
static int find_place(struct sl_nixl *n)
{
    int oldest = -1;
    for (int i = 0; i < SL_MAX_NIXL_REMOTES; i++) {
        const struct sl_nixl_remote *r = n->remotes[i];
        if (r == NULL)
            return i;
        if (r->n_users == 0 && (oldest < 0 || r->met_ns < n->remotes[oldest]->met_ns))
            oldest = i;
    }
    if (oldest >= 0) {
        n->remotes[oldest]->drop = true;
        pthread_cond_signal(&n->more);
    }
    return -1;
}

static struct sl_nixl_remote *make_remote(const void *metadata, size_t n_bytes,
                                          const struct sl_hash128 *digest)
{
    struct sl_nixl_remote *r = sl_calloc(1, sizeof *r);
    uint8_t *copy = sl_malloc(n_bytes);
    SL_ASSERT(n_bytes > 0 && n_bytes <= SL_MAX_NIXL_METADATA);
    if (r == NULL || copy == NULL) {
        sl_free(r);
        sl_free(copy);
        return NULL;
    }
    memcpy(copy, metadata, n_bytes);
    *r = (struct sl_nixl_remote){.digest = *digest, .metadata = copy, .n_metadata = n_bytes};
    return r;
}

struct sl_nixl_remote *sl_nixl_meet(struct sl_nixl *n, const void *metadata, size_t n_bytes)
{
    struct sl_nixl_remote *r = NULL;
    if (!atomic_load(&n->ready) || n_bytes == 0 || n_bytes > SL_MAX_NIXL_METADATA)
        return NULL;
    const struct sl_hash128 digest = sl_hash128(metadata, n_bytes, 0);
    pthread_mutex_lock(&n->lock);
    for (int i = 0; r == NULL && i < SL_MAX_NIXL_REMOTES; i++)
        if (n->remotes[i] != NULL && memcmp(&n->remotes[i]->digest, &digest, sizeof digest) == 0)
            r = n->remotes[i];
    if (r == NULL) {
        const int at = find_place(n);
        if (at >= 0)
            r = n->remotes[at] = make_remote(metadata, n_bytes, &digest);
    }
    if (r != NULL && r->drop) /* it goes */
        r = NULL;
    if (r != NULL) {
        r->n_users++;
        r->met_ns = sl_now_ns();
    }
    pthread_mutex_unlock(&n->lock);
    return r;
}

void sl_nixl_part(struct sl_nixl *n, struct sl_nixl_remote *r)
{
    pthread_mutex_lock(&n->lock);
    SL_ASSERT(r->n_users > 0);
    r->n_users--;
    pthread_mutex_unlock(&n->lock);
}

bool sl_nixl_usable(struct sl_nixl *n, const struct sl_nixl_remote *r)
{
    pthread_mutex_lock(&n->lock);
    const bool yes = !r->fails && sl_now_ns() >= r->rest_until_ns;
    pthread_mutex_unlock(&n->lock);
    return yes;
}

/* ---- those who want pages */

struct sl_nixl_read *sl_nixl_begin(struct sl_nixl *n, struct sl_nixl_remote *r, uint64_t addr,
                                   uint8_t *place, size_t n_bytes, int bell)
{
    SL_ASSERT(n_bytes > 0 && place >= n->memory && place + n_bytes <= n->memory + n->n_memory);
    pthread_mutex_lock(&n->lock);
    struct sl_nixl_read *read = r->fails || n->closing ? NULL : n->free;
    if (read != NULL) {
        n->free = read->next;
        *read = (struct sl_nixl_read){.remote = r,
                                      .addr = addr,
                                      .begun_ns = sl_now_ns(),
                                      .place = place,
                                      .n_bytes = n_bytes,
                                      .bell = bell,
                                      .state = SL_NIXL_PENDING};
        r->n_reads++;
        if (n->queue != NULL)
            n->last->next = read;
        else
            n->queue = read;
        n->last = read;
        pthread_cond_signal(&n->more);
    }
    pthread_mutex_unlock(&n->lock);
    return read;
}

enum sl_nixl_state sl_nixl_look(struct sl_nixl *n, struct sl_nixl_read *read, uint64_t now)
{
    pthread_mutex_lock(&n->lock);
    enum sl_nixl_state state = read->state;
    SL_ASSERT(read->remote != NULL && !read->given_up);
    const uint64_t heard = SL_MAX(read->begun_ns, read->remote->heard_ns);
    if (state == SL_NIXL_PENDING &&
        (now > read->begun_ns + SL_NIXL_READ_MS * MS || now > heard + SL_NIXL_SILENT_MS * MS)) {
        n->stats.n_late += !read->late;
        read->late = true;
        blame(read->remote);
        state = SL_NIXL_FAILED;
    }
    pthread_mutex_unlock(&n->lock);
    return state;
}

void sl_nixl_end(struct sl_nixl *n, struct sl_nixl_read *read)
{
    pthread_mutex_lock(&n->lock);
    SL_ASSERT(read->state == SL_NIXL_DONE && !read->given_up);
    recycle(n, read);
    pthread_mutex_unlock(&n->lock);
}

void sl_nixl_give_up(struct sl_nixl *n, struct sl_nixl_read *read)
{
    sl_store_disown(n->cfg.store, read->place);
    pthread_mutex_lock(&n->lock);
    SL_ASSERT(!read->given_up && read->remote != NULL);
    uint8_t *place = read->place;
    const bool done = read->state == SL_NIXL_DONE;
    if (done) {
        recycle(n, read);
    } else {
        read->given_up = true;
        n->stats.n_kept++;
        if (read->state == SL_NIXL_FAILED) {
            read->next = n->kept;
            n->kept = read;
        }
        pthread_cond_signal(&n->more);
    }
    pthread_mutex_unlock(&n->lock);
    if (done)
        sl_store_cancel(n->cfg.store, place);
}
