/* SPDX-License-Identifier: MIT
 * moves.h - copies of pages between the pool and the store (tier/store.h) that are under way.
 *
 * Of a model on the CPU a copy is over when the runner's call returns. A device copies beside its
 * steps, so what a copy concerns stays as it is until its end is known:
 *   - room in the store is committed, and a page of the store released, not before;
 *   - the page of the pool may be given away meanwhile, or found by a sequence: then the next step
 *     waits on the device, behind that copy. Mostly none does, so that steps run beside copies.
 *
 * Called by the engine thread, or with the turn lock while that has nothing to do. Nothing
 * allocates after init.
 */
#ifndef SL_ENGINE_MOVES_H
#define SL_ENGINE_MOVES_H

#include "ops/device.h"

struct sl_engine;

struct sl_move {
    int32_t group, page;
    uint32_t n_taken;    /* of the page (kv/group.h) when it began */
    uint8_t *room;       /* out: of the store, reserved */
    const uint8_t *from; /* in: of the store, kept */
    size_t n_bytes;
};

struct sl_moves_way {
    struct sl_move *ring; /* [SL_MAX_TIER_MOVES] */
    int32_t first, n;
    uint64_t n_bytes;                   /* under way */
    uint16_t *counts[SL_MAX_KV_GROUPS]; /* [pages of the group] copies under way of each page */
};

struct sl_moves {
    struct sl_moves_way ways[SL_N_PAGE_WAYS];
    struct sl_page_counts begun, over;
    struct sl_page_counts awaited; /* steps run behind so many */
    uint64_t n_seen;               /* copies out that were over at the last look */
    uint64_t n_doubted;            /* the first so many copies out are not to be believed */
    bool unsent;                   /* some began since the runner was told to send */
    bool broken;                   /* the device is: nothing is copied any more */
    uint64_t n_stalls;             /* steps that had to wait */
};

SL_MUST_CHECK int sl_moves_init(struct sl_engine *eng, struct sl_error *err);
void sl_moves_deinit(struct sl_engine *eng); /* waits for what is under way */

/* May n more begin? */
bool sl_moves_room(const struct sl_moves *m, enum sl_page_way way, int32_t n);
/* The page goes to room of the store, which is committed when it is there. On an error the room is
 * still the caller's. */
SL_MUST_CHECK int sl_moves_out(struct sl_engine *eng, int32_t group, int32_t page, uint8_t *room,
                               size_t n_bytes, struct sl_error *err);
/* A page comes from the store; if this succeeds, `from` is released when it is there. */
SL_MUST_CHECK int sl_moves_in(struct sl_engine *eng, int32_t group, int32_t page,
                              const uint8_t *from, size_t n_bytes, struct sl_error *err);
/* Ends what is over. wait: all is. */
void sl_moves_end(struct sl_engine *eng, bool wait);
/* The plan is made: what its step reads or writes is there. */
void sl_moves_before_step(struct sl_engine *eng);
/* Nothing is under way, and another runner takes over, which counts from the beginning. */
void sl_moves_restart(struct sl_moves *m);
/* What steps computed is in doubt: nothing that left so far is to be found. */
void sl_moves_doubt(struct sl_moves *m);

static inline int32_t sl_moves_n(const struct sl_moves *m)
{
    return m->ways[SL_PAGES_OUT].n + m->ways[SL_PAGES_IN].n;
}

#endif
