/* SPDX-License-Identifier: MIT
 * feed.h - the contents of the prefix tree for a reader outside: pages stored, pages removed.
 *
 * Not a log. The feed keeps the pages that can be found now, in the order they were stored, and how
 * far its reader has got; and the names of removed pages that the reader still knows. So its size
 * is fixed, and a slow reader costs the engine nothing and loses nothing: pages that came and went
 * meanwhile are left out. A page comes after its parent in that order, so parents are reported
 * first. Removals are reported before anything stored later.
 *
 * Pages of private namespaces and of adapters with a factor of their own are left out: no other
 * request, or none that can be described, finds them.
 *
 * The engine thread calls the functions that change it; one thread at a time reads. The lock is
 * held for a page's tokens, or for the batch that a reader copies.
 */
#ifndef SL_KV_FEED_H
#define SL_KV_FEED_H

#include "kv/radix.h"
#include "sluice.h"

#include <pthread.h>

struct sl_feed_page {
    uint64_t name, parent_name; /* parent_name 0: it begins a prompt */
    uint64_t adapter;           /* id, 0: none */
    uint64_t reported;          /* the value of change when it was reported, 0: never */
    int32_t parent, prev, next;
    uint8_t n_salt;
    bool in;
};

struct sl_kv_feed {
    pthread_mutex_t lock;
    int event_fd; /* readable while something is unreported */
    bool signalled;
    bool cleared;    /* to be reported first: what was reported before is void */
    uint64_t change; /* counts up when everything is to be reported again */
    int32_t n_pages, block_size, n_in;
    struct sl_feed_page *pages;       /* [n_pages] */
    int32_t *tokens;                  /* [n_pages, block_size] */
    char (*salts)[SL_MAX_CACHE_SALT]; /* [n_pages] */
    int32_t head, tail;               /* pages that can be found, in the order they were stored */
    int32_t unreported;               /* the first of those not reported yet; SL_NO_PAGE: all are */
    uint64_t *removed;                /* [n_pages] names, a ring */
    int32_t first_removed, n_removed;
};

SL_MUST_CHECK int sl_feed_create(int32_t n_pages, int32_t block_size, struct sl_kv_feed **out,
                                 struct sl_error *err);
void sl_feed_destroy(struct sl_kv_feed *f); /* NULL is fine */

/* Engine thread. */
void sl_feed_stored(struct sl_kv_feed *f, int32_t page, const struct sl_kv_node *node,
                    const struct sl_kv_ns *ns, const int32_t *tokens);
void sl_feed_removed(struct sl_kv_feed *f, int32_t page);
/* The page cannot be found any more, though it stays in the tree; nor can what hangs below it. */
void sl_feed_lost(struct sl_kv_feed *f, int32_t page);
void sl_feed_cleared(struct sl_kv_feed *f);
void sl_feed_signal(struct sl_kv_feed *f); /* wakes the reader if something is unreported */

/* The reader. One event each; tokens and salt are copied to room for max of them. Returns how many;
 * 0: nothing is left, and event_fd is quiet. */
struct sl_feed_event {
    enum sl_kv_event_kind kind;
    uint64_t name, parent_name, adapter;
    int32_t n_salt;
    char salt[SL_MAX_CACHE_SALT];
};
int32_t sl_feed_read(struct sl_kv_feed *f, struct sl_feed_event *out, int32_t *tokens, int32_t max);
void sl_feed_again(struct sl_kv_feed *f); /* everything from the beginning: cleared, then all */

#endif
