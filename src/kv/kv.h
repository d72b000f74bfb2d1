/* SPDX-License-Identifier: MIT
 * kv.h - what sequences hold of the KV cache: nodes of a prefix tree (radix.h), and the pages that
 * these have in each group of layers (group.h), kept in step.
 *
 * A node is a block of tokens. It is in exactly one of three states:
 *   free    no owner, not in the tree
 *   cached  no owner, in the tree: reusable by a prompt that matches, evicted when nodes or FULL
 *           pages run out
 *   owned   held by one or more sequences, or by a lease (lease.h), in the tree or not
 * free + cached + owned = total, always. Of its pages:
 *   K1  a free node has none; one that is not free has a page in every FULL group, with as many
 *       owners as the node
 *   K2  a page of a WINDOW or STATE group has at most as many owners as its node. Without any it is
 *       cached: its node is in the tree and not in doubt, and the page stands in the group's list
 *   K3  a sequence owns the pages of all blocks that a row not landed yet, or to come, can see or
 *       write: first[g] .. end[g] of its blocks (struct sl_kv_blocks); of a STATE group those among
 *       them that have one: where a step began or ended, and checkpoints that a step writes
 *   K4  a match ends where every group still has what the next row sees: FULL every page, WINDOW
 *       those of the last positions, STATE the last block's
 *
 * Only complete blocks enter the tree, and their pages are never written again. Pages of the first
 * group may share memory with those of other engines (budget.h): such a page has memory or is
 * absent, which only a free page can be; one that is asked for takes memory from what all share
 * before it evicts a cached node. Engine thread only; nothing is allocated after init.
 */
#ifndef SL_KV_KV_H
#define SL_KV_KV_H

#include "kv/budget.h"
#include "kv/group.h"
#include "kv/lease.h"
#include "kv/radix.h"
#include "sluice.h"

struct sl_kv_config {
    int32_t n_nodes, block_size; /* tokens of a node */
    bool keep;                   /* prefix caching: nodes stay in the tree after their last owner */
    uint64_t seed;               /* secret: keys the table of nodes */
    struct sl_hash128 root;      /* names the model and the layout of its pages */
    int32_t n_groups;            /* FULL ones have n_nodes pages; only the first may be FULL */
    struct sl_kv_group_config groups[SL_MAX_KV_GROUPS];
};

struct sl_kv {
    struct sl_id_pool nodes;
    struct sl_radix tree;
    struct sl_kv_group groups[SL_MAX_KV_GROUPS];
    struct sl_kv_leases leases;
    int32_t n_groups, block_size;
    bool keep;
    uint64_t n_releases; /* how often a node lost its last owner */
    uint64_t n_evicted[SL_N_EVICT_CAUSES];
    int32_t *scratch;                         /* [max(n_nodes, n_pages, block_size)] */
    struct sl_share *share;                   /* NULL: all pages have memory at all times */
    void (*discard)(void *arg, int32_t page); /* its memory may go; NULL: there is none to give */
    void *discard_arg;
    const struct sl_kv_watch *watch; /* NULL: nobody */
    uint64_t n_returns;              /* of the budget, when it was asked last */
    uint64_t n_pressed; /* cached nodes evicted for the engine's own needs, when it told last */
};

#define SL_KV_CHECKPOINTS 3 /* that a prompt may want */

/* What a sequence holds: a node for each block of its tokens, deepest last, and in each group the
 * pages of blocks first .. end; of a STATE group of some of them. pages[g] is the sequence's block
 * table in group g. */
struct sl_kv_blocks {
    int32_t *nodes;                   /* room for every token the sequence may ever have */
    int32_t *pages[SL_MAX_KV_GROUPS]; /* likewise; SL_NO_PAGE: the sequence owns none there */
    int32_t n;
    int32_t first[SL_MAX_KV_GROUPS], end[SL_MAX_KV_GROUPS];
    int32_t n_owned[SL_MAX_KV_GROUPS]; /* pages */
    /* Checkpoints, by how many blocks lie before them, 0: none. wanted: where others may begin.
     * kept: the last one passed by, cached until a later one takes its place, wanted or not. base:
     * the deepest one that stays, of those passed by and the one it began at. */
    int32_t wanted[SL_KV_CHECKPOINTS], kept, base;
    /* Of a STATE group: pages for the states behind the drafts of a step that has not landed. */
    int32_t drafts[SL_MAX_DRAFTED], n_drafts;
};

/* A sequence's tokens lie in two pieces: the prompt, shared by the sequences of a request, and what
 * was generated. */
struct sl_kv_text {
    const int32_t *a;
    int32_t n_a;
    const int32_t *b;
    int32_t n_b;
};

/* A config with one FULL group and nothing else. */
static inline struct sl_kv_config sl_kv_full(int32_t n_pages, int32_t block_size, bool keep,
                                             uint64_t seed)
{
    return (struct sl_kv_config){.n_nodes = n_pages,
                                 .block_size = block_size,
                                 .keep = keep,
                                 .seed = seed,
                                 .n_groups = 1,
                                 .groups = {{.kind = SL_GROUP_FULL, .n_pages = n_pages}}};
}

SL_MUST_CHECK int sl_kv_init(struct sl_kv *kv, const struct sl_kv_config *cfg,
                             struct sl_error *err);
void sl_kv_deinit(struct sl_kv *kv);

int32_t sl_kv_n_cached(const struct sl_kv *kv);    /* nodes, those that leases alone own included */
int32_t sl_kv_n_available(const struct sl_kv *kv); /* free with memory, + cached without a lease */
int32_t sl_kv_n_cached_pages(const struct sl_kv *kv, int32_t group);
/* Can n nodes be taken now? Where memory is shared, takes what is missing if that makes it so. */
bool sl_kv_ensure(struct sl_kv *kv, int32_t n);

/* Adds a node with one owner to b; evicts the least recently used cached node if none is free,
 * which counts under why, and drops leases if there is none cached. False: every node is held by
 * sequences. */
SL_MUST_CHECK bool sl_kv_take(struct sl_kv *kv, struct sl_kv_blocks *b, enum sl_evict_cause why);
/* Blocks up to b's end-th of every group have their pages, of a STATE group the last one: they are
 * about to be written, from position n_done on. False, and nothing happened: some group has no
 * room. */
SL_MUST_CHECK bool sl_kv_cover(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_done,
                               int32_t end);
/* Checkpoints that are wanted, in blocks without a page, where a step of positions n_done ..
 * n_after passes by. */
int32_t sl_kv_n_wanted(const struct sl_kv *kv, const struct sl_kv_blocks *b, int32_t n_done,
                       int32_t n_after);
/* These get pages, at most n, the last one first. There is room. */
void sl_kv_checkpoint(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_done, int32_t n_after,
                      int32_t n);
/* Pages for the states behind drafts that are left. Without a STATE group drafts need none. */
int32_t sl_kv_n_draft_pages(const struct sl_kv *kv);
/* Drafts behind a row at position pos whose states have room: as many as pages are left, and at
 * most to the end of the second block that the step has a page in. */
int32_t sl_kv_max_drafts(const struct sl_kv *kv, int32_t pos);
/* b gets pages for the states behind n drafts. There are so many, and b covers the drafts. */
void sl_kv_draft(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n);
/* The step has landed: of b's drafts, the first at position pos, n_right were right. Their states
 * become those of the blocks that they complete, and the last one's that of its block. */
void sl_kv_settle(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t pos, int32_t n_right);
/* No row before position n_done is to be computed again: gives up what none to come sees. */
void sl_kv_pass(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_done);
/* Fills b, which is empty, with the longest cached prefix of text (K4), at most max blocks. Returns
 * how deep the tree knows the text: blocks beyond those of b lack a page that the next row sees. */
int32_t sl_kv_match(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max, struct sl_kv_blocks *b);
/* Where others may want to begin who share b's first blocks: behind the last complete block before
 * the text's last token (blocks `last`); as deep as the tree knows the text (`known`); and some way
 * before the end, for a text that others share but for its end. */
void sl_kv_want(const struct sl_kv *kv, struct sl_kv_blocks *b, int32_t last, int32_t known);
/* How many blocks that would be; takes none. */
int32_t sl_kv_count(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max);
/* Block idx is complete: makes it findable. If the tree holds an equal node already (two requests
 * computed the same prefix at the same time), that one takes its place, so that whoever holds a
 * node of the tree holds all its ancestors; a page that it lacks moves to it. */
void sl_kv_publish(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                   struct sl_kv_blocks *b, int32_t idx);
/* Gives back all blocks but the first n_keep, deepest first. forget: what nobody else holds leaves
 * the cache as well, for pages whose contents are in doubt. */
void sl_kv_give(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t n_keep, bool forget);

/* Whom the cache tells which pages can be found (feed.h), right after init; NULL: nobody. */
void sl_kv_set_feed(struct sl_kv *kv, struct sl_kv_feed *feed);

/* Whom the cache tells of pages that can be kept elsewhere, right after init; it outlives kv. */
void sl_kv_set_watch(struct sl_kv *kv, const struct sl_kv_watch *watch);
/* Right after init: what names of blocks are hashed with, a secret of those who share them. */
void sl_kv_seed_names(struct sl_kv *kv, uint64_t seed);

/* Pages that come from elsewhere. b, which is empty, holds the blocks of text that the tree knows,
 * at most max, whatever pages they have; names: [max] theirs. Of WINDOW and STATE groups it owns no
 * page. Given back with sl_kv_give in the same turn, so that nobody has fewer pages for it. */
void sl_kv_hold(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                const struct sl_hash128 *names, int32_t max, struct sl_kv_blocks *b);
/* A page of block idx of b for a WINDOW or STATE group; SL_NO_PAGE: it has one, or there is no
 * room. What it is to hold must be written before the block is published or given back. */
int32_t sl_kv_place(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t group, int32_t idx);
/* That could not be written: the page is free again. */
void sl_kv_displace(struct sl_kv *kv, struct sl_kv_blocks *b, int32_t group, int32_t idx);

/* Right after init: memory of the first group's pages, a FULL one's, is shared, and none has any
 * yet. */
void sl_kv_share(struct sl_kv *kv, struct sl_share *share, void (*discard)(void *arg, int32_t page),
                 void *arg);
/* At the beginning of a turn: gives back what others ask for and nobody here uses, and looks
 * whether there is more to be had than when it was refused. */
void sl_kv_share_turn(struct sl_kv *kv);
/* At the end of a turn: so many pages more are wanted than are available; idle: nothing runs or
 * waits. */
void sl_kv_share_tell(struct sl_kv *kv, int32_t n_wanted, bool idle);

/* Forgets everything cached that nobody holds. */
void sl_kv_clear(struct sl_kv *kv);

/* Every node and page free, whatever was recorded of it. Only while no sequence holds any: the way
 * back from bookkeeping that was found broken. */
void sl_kv_reset(struct sl_kv *kv);

/* Walks everything, kv_check.c. SL_EINTERNAL with a message that names the invariant (I1: every
 * node and page in one state, counted right; I8: what the tree offers is complete) and the numbers.
 * expected: owners counted from what sequences hold, [1 + n_groups, n_nodes]: of nodes, then of
 * their pages in each group; or NULL. */
SL_MUST_CHECK int sl_kv_check(struct sl_kv *kv, const int32_t *expected, struct sl_error *err);
/* What a walk would show at a time when nobody holds anything, from the counters and from n_nodes
 * nodes at *cursor, which moves on: a bounded part of the work at each call. */
SL_MUST_CHECK int sl_kv_check_idle(const struct sl_kv *kv, int32_t n_nodes, int32_t *cursor,
                                   struct sl_error *err);

#endif
