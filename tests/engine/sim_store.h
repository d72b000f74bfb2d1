/* SPDX-License-Identifier: MIT
 * sim_store.h - pages outside the pool of a world: the store of fake_store.h, which loses pages,
 * has them late or never, has no room, and has those of other tokens; and copies of the device's
 * pages, which end in the call or, of a device that works behind its host, any time later.
 */
#ifndef SL_TESTS_SIM_STORE_H
#define SL_TESTS_SIM_STORE_H

#include "engine/fake_store.h"
#include "engine/late_pages.h"
#include "engine/sim_world.h"

/* From numbers of their own, so that the rest of a seed's world is what it was without them. */
static void draw_tiers(struct config *c, uint64_t seed)
{
    struct sl_rng r = {.seed = seed ^ 0x7469657273u};
    const bool ranks = seed % 8 == 3 || seed % 8 == 6; /* whose pages are several */
    c->tiers = c->caching && !c->draft_model && !ranks && chance(&r, 60);
    if (!c->tiers)
        return;
    c->faults = (struct fake_faults){.lose = chance(&r, 40) ? between(&r, 1, 300) : 0,
                                     .refuse = chance(&r, 40) ? between(&r, 1, 300) : 0,
                                     .delay = chance(&r, 60) ? between(&r, 1, 40) : 0,
                                     .corrupt = chance(&r, 30) ? between(&r, 1, 300) : 0,
                                     .hang = chance(&r, 8),
                                     .far = chance(&r, 50) ? between(&r, 1, 1000) : 0,
                                     .silent = chance(&r, 30) ? between(&r, 1, 500) : 0};
}

static size_t sim_page_bytes(const struct world *w)
{
    return (size_t)w->cfg.block_size * 2 * sizeof(int32_t) + sizeof(uint64_t) + sizeof(int32_t);
}

static int sim_page_out(void *ctx, int32_t group, int32_t page, uint8_t *dst, struct sl_error *err)
{
    const struct store *st = &sim->stores[group];
    const size_t n = (size_t)sim->cfg.block_size, at = (size_t)page * n;
    (void)ctx;
    (void)err;
    SL_ASSERT(page >= 0 && page < st->n_pages);
    memcpy(dst, &st->token[at], n * sizeof(int32_t));
    memcpy(dst + n * sizeof(int32_t), &st->pos[at], n * sizeof(int32_t));
    memcpy(dst + 2 * n * sizeof(int32_t), &st->hash[page], sizeof(uint64_t));
    memcpy(dst + 2 * n * sizeof(int32_t) + sizeof(uint64_t), &st->space[page], sizeof(int32_t));
    return 0;
}

static int sim_page_in(void *ctx, int32_t group, int32_t page, const uint8_t *src,
                       struct sl_error *err)
{
    struct store *st = &sim->stores[group];
    const size_t n = (size_t)sim->cfg.block_size, at = (size_t)page * n;
    (void)ctx;
    SL_ASSERT(page >= 0 && page < st->n_pages);
    if (!sim->cfg.late && sim->eng->kv.groups[group].pool.is_free[page])
        violation(sim, "page %d of group %d is loaded, which is free", page, group);
    if (!sim->cfg.late && now_and_then(sim, 45, 2) && steps_may_fail(sim)) {
        st->token[at] = -9;
        st->hash[page] ^= 9;
        return sl_fail(err, SL_EINTERNAL, "a copy fails half way");
    }
    memcpy(&st->token[at], src, n * sizeof(int32_t));
    memcpy(&st->pos[at], src + n * sizeof(int32_t), n * sizeof(int32_t));
    memcpy(&st->hash[page], src + 2 * n * sizeof(int32_t), sizeof(uint64_t));
    memcpy(&st->space[page], src + 2 * n * sizeof(int32_t) + sizeof(uint64_t), sizeof(int32_t));
    total.loaded++;
    return 0;
}

/* Right before the engine starts. */
static void store_start(struct world *w, struct sl_engine_parts *parts)
{
    fake_clear();
    fake_faults = w->cfg.faults;
    fake_rng = (struct sl_rng){w->seed_no, 0};
    if (!w->cfg.tiers)
        return;
    parts->tiers.store.host_bytes = 16 << 20;
    if (w->cfg.faults.far > 0)
        parts->tiers.store.remote_url = "redis://there";
    for (int32_t g = 0; g < w->n_stores; g++)
        parts->tiers.page_bytes[g] = sim_page_bytes(w);
    parts->runner.page_out = sim_page_out;
    parts->runner.page_in = sim_page_in;
    if (w->cfg.late)
        late_pages_use(&parts->runner, w->seed_no, &w->dead);
}

#endif
