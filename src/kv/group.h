/* SPDX-License-Identifier: MIT
 * group.h - the pages of those layers of a model that need the same positions: one pool of pages,
 * and for each node of the prefix tree (a block of tokens) the page of this group that it has.
 *
 *   FULL    a row sees every position before it: a node has a page from when it is taken until it
 *           is free
 *   WINDOW  a row at position p sees positions above p - window only: a node gets its page when its
 *           tokens are about to be computed; once no later row of any sequence sees the block, the
 *           page stays cached for prompts that match, and may be evicted while the node stays
 *   STATE   of recurrent layers: a page holds the state behind the last token computed in its
 *           block. A row needs the state before it, so this is a window of 2 positions, but sparse:
 *           only the last block of a step gets a page, and those where a checkpoint is wanted
 *
 * A state cannot be rolled back, so a step leaves the state behind each drafted token in a page of
 * its own. A STATE group has some pages for this that no node has (n_drafts). Once it is known
 * which drafts were right, the pages of the right ones change places with those of their blocks.
 *
 * Which state is evicted goes by what it saves, the blocks between it and the checkpoint before it,
 * and by when it was used: each gets the value of what was evicted last, and what it saves on top.
 * So one that saves twice as much stays twice as long without use (GreedyDual; pages are of one
 * size). Only the n_looked_at oldest are compared. Pages of nodes that a lease holds (lease.h), of
 * WINDOW groups too, go after all others of these.
 *
 * A page is in one of three states:
 *   free    in no node
 *   cached  in a node of the tree, without an owner: WINDOW and STATE pages stand in the group's
 *           list and are evicted alone, FULL pages go with their node
 *   owned   by the sequences whose rows to come read or write it
 * free + cached + owned + n_drafts = all pages of the group, always. Engine thread only; nothing is
 * allocated after init.
 */
#ifndef SL_KV_GROUP_H
#define SL_KV_GROUP_H

#include "base/limits.h"
#include "kv/lru.h"
#include "kv/pool.h"

enum sl_kv_group_kind { SL_GROUP_FULL, SL_GROUP_WINDOW, SL_GROUP_STATE };
enum sl_kv_where { SL_KV_NOWHERE, SL_KV_DEVICE }; /* the bytes of a node's page */

#define SL_STATE_WINDOW 2 /* the state before a row is the one behind the row before */

struct sl_kv_group_config {
    enum sl_kv_group_kind kind;
    int32_t window; /* WINDOW: positions a row sees, its own included; STATE: SL_STATE_WINDOW */
    int32_t n_pages;
    int32_t n_drafts; /* STATE: pages besides, for the states behind drafts */
};

struct sl_kv_slot { /* a node's page */
    int32_t page;   /* SL_NO_PAGE iff where is SL_KV_NOWHERE */
    enum sl_kv_where where;
    bool wanted;     /* STATE: a checkpoint for others, kept when its sequence is further on */
    int32_t n_saved; /* STATE: blocks between it and the checkpoint before it, when cached first */
    uint64_t value;  /* STATE, cached: the lowest goes first */
};

struct sl_kv_feed;

/* Who keeps pages outside of the pool as well. */
struct sl_kv_watch {
    void *arg;
    /* The page of a node of the tree is complete: it stays as it is until it leaves. Of states only
     * those that others may want; of namespaces only those that last (sl_kv_node). */
    void (*complete)(void *arg, int32_t node, int32_t group);
    /* It is evicted when the call returns; of any namespace. */
    void (*leaves)(void *arg, int32_t node, int32_t group);
};

struct sl_kv_group {
    struct sl_kv_group_config cfg;
    int32_t block_size;
    struct sl_id_pool pool;   /* of pages */
    struct sl_kv_slot *slots; /* [n_nodes] */
    uint32_t *n_taken;  /* [n_pages + n_drafts] how often each was: what was written before the last
                           time is not  of the tokens that it holds now */
    struct sl_lru lru;  /* not FULL: nodes whose page is cached */
    uint64_t n_evicted; /* pages that left their node to it */
    int32_t n_looked_at;             /* so many of the oldest are compared to evict one */
    uint64_t floor;                  /* STATE: the value of the one evicted last */
    const int32_t *n_leases;         /* [n_nodes] of lease.h: those without go first */
    struct sl_kv_feed *feed;         /* is told which nodes have a page; NULL: nobody is */
    const struct sl_kv_watch *watch; /* NULL: nobody */
    int32_t idx;                     /* this group's number for both */
    int32_t *drafts;                 /* STATE: a stack of pages for drafts that no step has, */
    int32_t n_drafts;                /* so many */
};

SL_MUST_CHECK int sl_group_init(struct sl_kv_group *g, const struct sl_kv_group_config *cfg,
                                int32_t n_nodes, int32_t block_size, struct sl_error *err);
void sl_group_deinit(struct sl_kv_group *g);
void sl_group_reset(struct sl_kv_group *g); /* every page free */

static inline int32_t sl_group_page(const struct sl_kv_group *g, int32_t node)
{
    return g->slots[node].page;
}

/* The first block that a row at pos, or any later one, sees. */
static inline int32_t sl_group_first_seen(const struct sl_kv_group *g, int32_t pos)
{
    if (g->cfg.kind == SL_GROUP_FULL || pos < g->cfg.window)
        return 0;
    return (pos - g->cfg.window + 1) / g->block_size;
}

/* Pages that could be taken without evicting a node: free and there, or cached alone. */
static inline int32_t sl_group_n_room(const struct sl_kv_group *g)
{
    return sl_id_pool_n_there(&g->pool) + g->lru.n;
}

/* The fewest pages with which one sequence alone always gets on. WINDOW: if a step that has not
 * landed took no more than one: that block, what its first row sees before it, and the block after
 * it. STATE: the state that a step begins at and the one it ends with; what needs a third waits for
 * the step to land. */
int32_t sl_group_least(const struct sl_kv_group_config *cfg, int32_t n_nodes, int32_t block_size);

/* Gives a node without a page one, with one owner; evicts the oldest page that is cached alone if
 * none is free. There is room. */
void sl_group_take(struct sl_kv_group *g, int32_t node);
void sl_group_own(struct sl_kv_group *g, int32_t node); /* one owner more */
/* One owner less. keep: a page, not a FULL one, that lost the last one stays cached; else it is
 * free. */
void sl_group_disown(struct sl_kv_group *g, int32_t node, bool keep);
void sl_group_drop(struct sl_kv_group *g, int32_t node); /* frees the node's page, if it has one */
/* The page of from, with its owners, becomes that of to, which has none. */
void sl_group_move(struct sl_kv_group *g, int32_t from, int32_t to);
void sl_group_clear(struct sl_kv_group *g); /* frees every page that is cached alone */

/* A page for the state behind a draft. There is one. */
int32_t sl_group_take_draft(struct sl_kv_group *g);
void sl_group_give_draft(struct sl_kv_group *g, int32_t page);
/* The node, which has one owner and is not found by anybody else, has this draft's page from now
 * on. Returns the page that it had, which is a draft's now. */
int32_t sl_group_swap_draft(struct sl_kv_group *g, int32_t node, int32_t page);

#endif
