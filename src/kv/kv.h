/* SPDX-License-Identifier: MIT
 * kv.h - the pages of sequences: a pool (pool.h) and a prefix tree (radix.h) kept in step.
 *
 * A page is in exactly one of three states:
 *   free    no owner, not in the tree
 *   cached  no owner, in the tree: reusable by a prompt that matches, evicted when pages run out
 *   owned   held by one or more sequences, in the tree or not
 * free + cached + owned = total, always; free + cached pages can all be handed out at once.
 *

 * Pools of several engines may share memory (budget.h). A page then has memory or is absent, which
 * only a free page can be; one that is asked for takes memory from what all share before it evicts
 * a cached one.
 *
 * Only full pages enter the tree, and a page in the tree is never written again. Engine thread
 * only; nothing is allocated after init.
 */
#ifndef SL_KV_KV_H
#define SL_KV_KV_H

#include "kv/budget.h"
#include "kv/pool.h"
#include "kv/radix.h"
#include "sluice.h"

struct sl_kv {
    struct sl_pool pool;
    struct sl_radix tree;
    bool keep;           /* prefix caching: pages stay in the tree after their last owner */
    int32_t block_size;  /* tokens of a page */
    uint64_t n_releases; /* how often a page lost its last owner */
    uint64_t n_evicted[SL_N_EVICT_CAUSES];
    int32_t *scratch;                         /* [max(n_pages, block_size)] */
    struct sl_share *share;                   /* NULL: all pages have memory at all times */
    void (*discard)(void *arg, int32_t page); /* its memory may go; NULL: there is none to give */
    void *discard_arg;
    uint64_t n_returns; /* of the budget, when it was asked last */
    uint64_t n_pressed; /* cached pages evicted for the engine's own needs, when it told last */
};

/* A sequence's tokens lie in two pieces: the prompt, shared by the sequences of a request, and what
 * was generated. */
struct sl_kv_text {
    const int32_t *a;
    int32_t n_a;
    const int32_t *b;
    int32_t n_b;
};

SL_MUST_CHECK int sl_kv_init(struct sl_kv *kv, int32_t n_pages, int32_t block_size, bool keep,
                             uint64_t seed, struct sl_error *err);
void sl_kv_deinit(struct sl_kv *kv);

int32_t sl_kv_n_cached(const struct sl_kv *kv);
int32_t sl_kv_n_available(const struct sl_kv *kv); /* free and there, + cached */
/* Can n pages be taken now? Where memory is shared, takes what is missing if that makes it so. */
bool sl_kv_ensure(struct sl_kv *kv, int32_t n);

/* A page with one owner; evicts the least recently used cached page if none is free, which counts
 * under why. SL_NO_PAGE: every page is owned. */
int32_t sl_kv_take(struct sl_kv *kv, enum sl_evict_cause why);
/* Takes the pages of the longest cached prefix of text, at most max_pages; returns how many. */
int32_t sl_kv_match(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max_pages, int32_t *pages);
/* How many of the first max_pages pages of text could be matched now; takes none. */
int32_t sl_kv_count(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                    int32_t max_pages);
/* Page pages[idx] is complete: makes it findable. If the tree holds an equal page already (two
 * requests computed the same prefix at the same time), pages[idx] is replaced by that one and given
 * back, so that whoever holds a page of the tree holds all its ancestors. */
void sl_kv_publish(struct sl_kv *kv, const struct sl_kv_ns *ns, const struct sl_kv_text *text,
                   int32_t *pages, int32_t idx);
/* Gives back pages[0..n), deepest first. forget: what nobody else holds leaves the tree as well,
 * for pages whose contents are in doubt. */
void sl_kv_give(struct sl_kv *kv, const int32_t *pages, int32_t n, bool forget);

/* Right after init: memory of pages is shared, and none has any yet. */
void sl_kv_share(struct sl_kv *kv, struct sl_share *share, void (*discard)(void *arg, int32_t page),
                 void *arg);
/* At the beginning of a turn: gives back what others ask for and nobody here uses, and looks
 * whether there is more to be had than when it was refused. */
void sl_kv_share_turn(struct sl_kv *kv);
/* At the end of a turn: so many pages more are wanted than are available; idle: nothing runs or
 * waits. */
void sl_kv_share_tell(struct sl_kv *kv, int32_t n_wanted, bool idle);

/* Forgets every cached page that nobody holds. */
void sl_kv_clear(struct sl_kv *kv);

/* Every page free, whatever was recorded of it. Only while no sequence holds any: the way back from
 * bookkeeping that was found broken. */
void sl_kv_reset(struct sl_kv *kv);

/* Walks everything, kv_check.c. SL_EINTERNAL with a message that names the invariant (I1: every
 * page in one state, counted right; I8: what the tree offers is complete) and the numbers.
 * expected_refs: [n_pages] owners counted from the block tables, or NULL. */
SL_MUST_CHECK int sl_kv_check(struct sl_kv *kv, const int32_t *expected_refs, struct sl_error *err);
/* What a walk would show at a time when nobody holds pages, from the counters and from n_pages
 * pages at *cursor, which moves on: a bounded part of the work at each call. */
SL_MUST_CHECK int sl_kv_check_idle(const struct sl_kv *kv, int32_t n_pages, int32_t *cursor,
                                   struct sl_error *err);

#endif
