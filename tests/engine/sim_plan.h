/* SPDX-License-Identifier: MIT
 * sim_plan.h - draws the configuration and the plan of a world from its seed, and prints it.
 */
#ifndef SL_TESTS_SIM_PLAN_H
#define SL_TESTS_SIM_PLAN_H

#include "engine/sim_store.h"
#include "engine/sim_world.h"

static void draw_engine(struct config *c, struct sl_rng *r)
{
    static const int32_t blocks[] = {1, 2, 3, 4, 5, 8, 16, 32};
    c->n_vocab = between(r, 4, MAX_VOCAB);
    c->block_size = blocks[below(r, SL_COUNT(blocks))];
    c->max_len = between(r, 8, MAX_LEN);
    int32_t one = SL_CEIL_DIV(c->max_len, c->block_size); /* pages of the longest sequence */
    int32_t want = chance(r, 50) ? one + below(r, one + 1) : one * between(r, 1, 5);
    c->n_pages = SL_MIN(SL_MAX(want, 2), MAX_PAGES);
    c->max_len = SL_MIN(c->max_len, c->n_pages * c->block_size);
    c->max_seqs = between(r, 1, 10);
    c->max_tokens = c->max_seqs + (chance(r, 50) ? below(r, 8) : below(r, 200));
    c->extra_rows = chance(r, 50) ? 0 : below(r, 40);
    c->max_queued = chance(r, 20) ? between(r, 1, 4) : 100;
    c->n_priorities = chance(r, 40) ? 3 : 1;
    c->max_n = MAX_SIM_N;
    c->nan_every = chance(r, 15) ? 300 : 0;
    c->caching = chance(r, 80);
    c->salts = chance(r, 20);
    c->sampling = chance(r, 40);
    c->late = chance(r, 50);
    c->penalties = chance(r, 30);
    c->stops = chance(r, 30);
    c->engine_late_pct = chance(r, 50) ? 0 : below(r, 60);
    c->max_wait_ms = chance(r, 50) ? 0 : between(r, 20, 3000);
    c->watchdog_s = chance(r, 80) ? between(r, 20, 200) : -1;
    if (chance(r, 30)) /* shorter than the world takes: landing steps keep it quiet, or nothing */
        c->watchdog_s = between(r, 2, 4);
}

static void draw_server(struct config *c, struct sl_rng *r)
{
    c->max_conns = chance(r, 20) ? between(r, 1, 4) : 100;
    c->header_ms = between(r, 200, 15000);
    c->body_ms = between(r, 200, 15000);
    c->idle_ms = between(r, 200, 75000);
    c->write_ms = between(r, 200, 60000);
    c->request_ms = chance(r, 20) ? between(r, 100, 3000) : 0;
    c->ping_ms = chance(r, 50) ? between(r, 30, 5000) : 0;
    c->shutdown_ms = between(r, 100, 30000);
    c->io_noise_pct = chance(r, 50) ? 0 : below(r, 60);
    c->sock_cap = chance(r, 50) ? 1 << 16 : between(r, 1, 2000);
    c->write_ms =
        SL_MAX(c->write_ms, 16384 / c->sock_cap); /* a reply of 4 KB fits through in time */
    c->n_keys = chance(r, 20) ? 2 : 0;
    c->n_threads = chance(r, 50) ? 1 : between(r, 2, 3);
    c->max_held = chance(r, 10) ? 1 : 1u << 30;
    c->max_body = chance(r, 20) ? 600 : 1u << 20;
}

/* How often each kind happens in worlds where it may. */
static void draw_kinds(const struct config *c, struct sl_rng *r, int32_t *weights)
{
    bool only_direct = !c->http, faults = chance(r, 45);
    memset(weights, 0, ACT_KINDS * sizeof *weights);
    weights[ACT_REQUEST] = only_direct ? 100 : chance(r, 50) ? between(r, 1, 60) : 0;
    weights[ACT_HTTP] = c->http ? 100 : 0;
    weights[ACT_CANCEL] = chance(r, 50) ? between(r, 2, 40) : 0;
    weights[ACT_CLOCK_JUMPS] = chance(r, 20) ? between(r, 1, 10) : 0;
    weights[ACT_WALL_JUMPS] = chance(r, 20) ? between(r, 1, 10) : 0;
    weights[ACT_ENGINE_SLOW] = chance(r, 20) ? between(r, 1, 10) : 0;
    weights[ACT_HANG] = chance(r, 10) ? between(r, 1, 10) : 0;
    if (c->http)
        weights[ACT_SERVER_STOPS] = chance(r, 20) ? between(r, 1, 5) : 0;
    if (!faults)
        return;
    weights[ACT_STEP_FAILS] = chance(r, 25) ? between(r, 1, 20) : 0;
    weights[ACT_STEP_NOMEM] = chance(r, 25) ? between(r, 1, 20) : 0;
    if (c->late) /* two steps are under way: more can go wrong */
        weights[ACT_STEP_FAILS] *= 4, weights[ACT_STEP_NOMEM] *= 4;
    weights[ACT_DEVICE_DIES] = chance(r, 6) ? 2 : 0;
    weights[ACT_ALLOC_FAILS] = chance(r, 50) ? between(r, 1, 40) : 0;
    weights[ACT_NO_FDS] = c->http && chance(r, 30) ? between(r, 1, 10) : 0;
}

/* From numbers of their own, so that the rest of a seed's world is what it was without them. */
static void draw_masks(struct config *c, uint64_t seed)
{
    struct sl_rng r = {.seed = seed ^ 0x6d61736b73u};
    c->mask_late_pct = chance(&r, 50) ? 0 : below(&r, 80);
    c->constrain_every = chance(&r, 60) ? 6 : between(&r, 1, 3);
    c->token_rules = seed % 7 == 2 || seed % 7 == 5;
}

/* Likewise. Drafts need rows and tokens that the decodes leave. */
static void draw_drafts(struct config *c, uint64_t seed)
{
    struct sl_rng r = {.seed = seed ^ 0x647261667473u};
    if (!chance(&r, 35))
        return;
    c->n_drafts = between(&r, 1, MAX_SIM_DRAFT);
    c->draft_wrong_pct = chance(&r, 30) ? 0 : below(&r, 60);
    c->extra_rows = SL_MAX(c->extra_rows, between(&r, 1, 24));
    c->max_tokens += between(&r, 1, 24);
}

/* Layers with a window, in some worlds: likewise from numbers of their own. */
static void draw_window(struct config *c, uint64_t seed)
{
    struct sl_rng r = {.seed = seed ^ 0x77696e646f77u};
    if (!chance(&r, 40))
        return;
    c->window = between(&r, 1, chance(&r, 70) ? 3 * c->block_size + 2 : c->max_len);
    c->no_full = chance(&r, 30);
    const struct sl_kv_group_config g = {.kind = SL_GROUP_WINDOW, .window = c->window};
    const int32_t least = sl_group_least(&g, c->n_pages, c->block_size);
    int32_t more = least < c->n_pages ? below(&r, SL_MIN(c->n_pages, 4 * least) - least + 1) : 0;
    c->window_pages = chance(&r, 15) ? c->n_pages : SL_MIN(least + more, c->n_pages);
}

/* Recurrent layers, alone or beside the others: likewise. Of drafts most, some or few have a page.
 */
static void draw_states(struct config *c, uint64_t seed)
{
    struct sl_rng r = {.seed = seed ^ 0x7374617465u};
    if (!chance(&r, 50))
        return;
    const struct sl_kv_group_config g = {.kind = SL_GROUP_STATE, .window = SL_STATE_WINDOW};
    const int32_t least = sl_group_least(&g, c->n_pages, c->block_size);
    const int32_t want = chance(&r, 50) ? least + 3 : 3 * c->max_seqs;
    const int32_t most = SL_MIN(c->n_pages, want);
    c->no_full |= c->window == 0 && chance(&r, 30);
    c->state_pages = between(&r, least, SL_MAX(least, most));
    if (c->n_drafts > 0)
        c->state_drafts = below(&r, chance(&r, 50) ? c->n_drafts + 2 : 24);
}

/* A model that drafts has pages beside those of layers that see everything. Where drafts are priced
 * and do not pay, steps are ahead. */
static void draw_drafter(struct config *c, uint64_t seed)
{
    c->draft_model = c->n_drafts > 0 && !c->no_full && seed % 3 != 0;
    c->draft_rows = c->draft_model && seed % 3 == 1;
    c->priced = c->draft_model && seed % 4 % (c->late ? 2 : 4) == 1;
}

/* A pipeline of stages: drafts, and copies of pages, do not go with it. */
static void draw_groups(struct config *c, uint64_t seed)
{
    const bool can = c->late && c->n_drafts == 0 && !c->tiers;
    c->n_groups = can ? 1 + (int32_t)(sl_mix64(seed ^ 0x737461676573u) % 4) : 1;
}

/* Programs that call tools: likewise. */
static void draw_programs(struct config *c, uint64_t seed)
{
    struct sl_rng r = {.seed = seed ^ 0x746f6f6c73u};
    if (!chance(&r, 50))
        return;
    c->retain_pct = chance(&r, 30) ? 99 : between(&r, 10, 90);
    c->n_sessions = chance(&r, 50) ? 0 : between(&r, 1, 6);
}

/* Many clients connect, and descriptors and, most times, memory run out: more often than the kinds
 * above have it, in some worlds, from numbers of their own. */
static void draw_no_fds(struct world *w)
{
    struct sl_rng r = {.seed = w->seed_no ^ 0x6e6f666473u};
    if (!w->cfg.http || !chance(&r, 30))
        return;
    for (int32_t n = between(&r, 1, 4); n > 0; n--) {
        const int32_t at = w->acts[below(&r, w->n_acts)].at;
        for (int32_t k = below(&r, 12); k >= 0 && w->n_acts < MAX_ACTS; k--) {
            int32_t i = w->n_acts++;
            for (; i > 0 && w->acts[i - 1].at >= at; i--)
                w->acts[i] = w->acts[i - 1];
            w->acts[i] = (struct act){
                .kind = k == 0 ? ACT_NO_FDS : ACT_HTTP, .at = at, .seed = sl_rng_next(&r)};
        }
    }
}

static void draw_plan(struct world *w)
{
    struct sl_rng r = {.seed = w->seed_no};
    struct config *c = &w->cfg;
    int32_t weights[ACT_KINDS], sum = 0, at = 1;
    draw_masks(c, w->seed_no);
    draw_engine(c, &r);
    draw_drafts(c, w->seed_no);
    draw_window(c, w->seed_no);
    draw_states(c, w->seed_no);
    draw_drafter(c, w->seed_no);
    draw_tiers(c, w->seed_no);
    draw_groups(c, w->seed_no);
    draw_programs(c, w->seed_no);
    draw_server(c, &r);
    c->http = chance(&r, 40);
    draw_kinds(c, &r, weights);
    for (int k = 0; k < ACT_KINDS; k++)
        sum += weights[k];
    w->n_acts = between(&r, 4, c->http ? 50 : 130);
    int32_t pace = between(&r, 1, chance(&r, 30) ? 60 : 8);
    for (int32_t i = 0; i < w->n_acts; i++) {
        int32_t pick = below(&r, sum), kind = 0;
        while (pick >= weights[kind])
            pick -= weights[kind++];
        at += chance(&r, 20) ? 0 : below(&r, 2 * pace);
        w->acts[i] = (struct act){.kind = (enum act_kind)kind, .at = at, .seed = sl_rng_next(&r)};
    }
    draw_no_fds(w);
}

static void print_plan(const struct world *w)
{
    const struct config *c = &w->cfg;
    printf("vocabulary %d, %d pages of %d, context %d, %d seats, %d tokens a step, +%d rows, queue "
           "%d, %d priorities (overdue after %d ms)\n",
           c->n_vocab, c->n_pages, c->block_size, c->max_len, c->max_seqs, c->max_tokens,
           c->extra_rows, c->max_queued, c->n_priorities, c->max_wait_ms);
    printf("caching %d, salts %d, a step ahead %d, sampling %d, penalties %d, stop strings %d, NaN "
           "one in %d, engine late %d %%, watchdog %d s, one request of %d constrained, masks late "
           "%d %%, rules of tokens %d, up to %d drafts of which %d %% are wrong\n",
           c->caching, c->salts, c->late, c->sampling, c->penalties, c->stops, c->nan_every,
           c->engine_late_pct, c->watchdog_s, c->constrain_every, c->mask_late_pct, c->token_rules,
           c->n_drafts, c->draft_wrong_pct);
    if (c->n_groups > 1)
        printf("steps of %d groups are under way\n", c->n_groups);
    if (c->draft_model)
        printf("a model drafts%s%s\n", c->draft_rows ? " from hidden rows" : "",
               c->priced ? ", at a price" : "");
    if (c->window > 0)
        printf("a window of %d: %d pages%s\n", c->window, c->window_pages,
               c->no_full ? ", of all layers" : "");
    if (c->state_pages > 0)
        printf("recurrent layers: %d pages, %d for drafts%s\n", c->state_pages, c->state_drafts,
               c->no_full && c->window == 0 ? ", and no others" : "");
    if (c->tiers)
        printf("copies of pages: of 1,000 %d are lost, %d refused, %d corrupt; %d turns late%s\n",
               c->faults.lose, c->faults.refuse, c->faults.corrupt, c->faults.delay,
               c->faults.hang ? ", or never" : "");
    if (c->retain_pct > 0)
        printf("programs call tools: %d %% of the pages are for them, %d sessions\n", c->retain_pct,
               c->n_sessions);
    if (c->http)
        printf("http: %d connections, ms: header %d body %d idle %d write %d request %d ping %d "
               "shutdown %d; io noise %d %%, socket %d bytes, %d keys, held %llu, body %llu, %d "
               "threads\n",
               c->max_conns, c->header_ms, c->body_ms, c->idle_ms, c->write_ms, c->request_ms,
               c->ping_ms, c->shutdown_ms, c->io_noise_pct, c->sock_cap, c->n_keys,
               (unsigned long long)c->max_held, (unsigned long long)c->max_body, c->n_threads);
    for (int32_t i = 0; i < w->n_acts; i++)
        if (!w->acts[i].dropped)
            printf("  act %3d at turn %4d: %s\n", i, w->acts[i].at, act_names[w->acts[i].kind]);
}

#endif
