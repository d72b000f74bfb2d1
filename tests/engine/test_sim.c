/* SPDX-License-Identifier: MIT
 * A deterministic simulator: the real scheduler, caches, admission, sampler and delivery, and the
 * real HTTP server with its event library, on one thread, under a virtual clock, on a virtual
 * network and a device that computes nothing. Faults come from a plan drawn from the seed.
 *
 *   sim_world.h    what the parts share       sim_kernel.h    memory, clocks, sockets
 *   sim_plan.h     configuration and plan     sim_threads.h   threads as fibers
 *   sim_device.h   the device                 sim_clients.h   clients in the process
 *   sim_oracle.h   what must come out         sim_http.h      clients of the server
 *   sim_minimise.h a smaller plan             sim_request.h, sim_reply.h   their bytes
 *   sim_ranks.h    a device of several ranks  sim_store.h     pages outside the pool
 *
 * A world turns: acts of the plan happen, the engine takes a turn if its thread would be awake,
 * clients send, read and vanish. In worlds with a server it turns whenever the event library waits,
 * so the server's code runs between two turns, in any order the kernel may choose. After every turn
 * of the engine sl_engine_check walks everything.
 *
 * When the plan is through, nothing fails any more and everybody does his part: then everything
 * must finish, a last request must be answered, and nothing may be left.
 *
 *   test_sim --seeds N [--first S]    runs seeds S .. S + N - 1 (default: 200 from 1)
 *   test_sim --seed S [--keep 1,2]    runs one and prints what happens; --keep: only these acts
 *   test_sim --minimise S             prints the smallest part of the plan that still fails
 */
#include "base/str.h"
#include "engine/sim_drafter.h"
#include "engine/sim_http.h"
#include "engine/sim_minimise.h"
#include "engine/sim_plan.h"
#include "engine/sim_ranks.h"
#include "engine/sim_threads.h"

/* ------------------------------------------------------------------ turns */

/* To a watchdog of a few seconds an engine without a processor, under a clock that jumps, is one
 * that hangs: each jump counts as looks at which nothing moved. */
static bool looks_hung(const struct world *w)
{
    return w->cfg.watchdog_s > 0 && w->cfg.watchdog_s < 20 && has_act(w, ACT_ENGINE_SLOW) &&
           has_act(w, ACT_CLOCK_JUMPS);
}

static void check_health(struct world *w)
{
    bool healthy = sl_engine_healthy(w->eng);
    if (!healthy && !w->dead && !has_act(w, ACT_HANG) && !looks_hung(w))
        violation(w, "I7: the engine is not healthy, though nothing happened to it");
    if (healthy && w->dead && atomic_load(&w->eng->failed))
        violation(w, "a dead device is healthy");
}

/* The engine thread sleeps until its last turn left work or somebody rang. */
static bool engine_awake(const struct world *w)
{
    return w->engine_more || vfd_of(w->eng->inbox.event_fd)->count > 0;
}

/* A lease is over when its time has come; without an end only while a request waits for it. */
static void check_leases(struct world *w, uint64_t began_ns)
{
    const struct sl_kv_leases *l = &w->eng->kv.leases;
    for (int32_t i = 0; i < SL_MAX_KV_LEASES && l->n > 0; i++) {
        if (l->list[i].leaf == SL_NO_NODE)
            continue;
        if (l->list[i].end_ns <= began_ns)
            violation(w, "I15: lease %d outlived its time", i);
        if (l->list[i].end_ns == UINT64_MAX && w->eng->live == NULL)
            violation(w, "I15: lease %d has no end and nobody waits for it", i);
    }
}

static void engine_turn(struct world *w)
{
    struct sl_error err;
    /* A turn that only lands a step makes none. */
    bool work = w->eng->n_flights == 0 &&
                (!sl_sched_idle(&w->eng->sched) || sl_inbox_count(&w->eng->inbox) > 0);
    uint64_t before = w->n_steps;
    const uint64_t began_ns = virtual_ns;
    w->n_turns_engine++;
    w->own = false;
    w->engine_more = sl_engine_step(w->eng);
    w->own = true;
    check_leases(w, began_ns);
    const bool waits = !sl_sched_idle(&w->eng->sched) || w->eng->masker.n_open > 0;
    if (work && w->n_steps == before && waits && !w->eng->starved &&
        !sl_tiers_busy(&w->eng->tiers) && !ranks.waits)
        violation(w, "I7: work is waiting, but no step was made");
    if (sl_engine_check(w->eng, &err) != 0)
        violation(w, "%s", err.msg);
    if (!engine_awake(w) && w->eng->inbox.cancelled != NULL)
        violation(w, "I7: the engine sleeps and somebody's cancellation lies in its inbox");
    if (!w->engine_more && atomic_load(&w->eng->n_open) > sl_inbox_count(&w->eng->inbox))
        violation(w, "I7: the engine sleeps and %d requests are open", w->eng->n_open);
    check_clients(w);
}

static void do_act(struct world *w, const struct act *a)
{
    struct sl_rng r = {.seed = a->seed};
    if (a->kind > ACT_CANCEL)
        say("turn %llu: %s\n", (unsigned long long)w->turn, act_names[a->kind]);
    switch (a->kind) {
    case ACT_REQUEST:
        act_request(w, a->seed);
        break;
    case ACT_HTTP:
        act_http(w, a->seed, false);
        break;
    case ACT_CANCEL:
        act_cancel(w, a->seed);
        break;
    case ACT_STEP_FAILS:
    case ACT_STEP_NOMEM:
        w->fail_steps += between(&r, 1, chance(&r, 20) ? 4 : 1);
        w->fail_code = a->kind == ACT_STEP_FAILS ? SL_EINTERNAL : SL_ENOMEM;
        break;
    case ACT_DEVICE_DIES:
        w->dead = true;
        break;
    case ACT_HANG:
        w->hang_s = between(&r, 1, 600);
        w->hang_moves = chance(&r, 50);
        break;
    case ACT_ALLOC_FAILS:
        w->alloc_skip = below(&r, chance(&r, 50) ? 6 : 40);
        w->alloc_fail = chance(&r, 70) ? 1 : between(&r, 2, 20);
        break;
    case ACT_NO_FDS:
        w->no_fds_until = w->turn + (uint64_t)between(&r, 1, 300);
        if (chance(&r, 60)) /* both run out together */
            w->no_fds_allocs = between(&r, 1, 6);
        w->max_fds = below(&r, 10);
        break;
    case ACT_CLOCK_JUMPS:
        virtual_ns += (uint64_t)between(&r, 1, chance(&r, 50) ? 1000 : 7200000) * 1000000u;
        break;
    case ACT_WALL_JUMPS:
        wall_offset_ns = (int64_t)between(&r, -7200, 7200) * 1000000000;
        break;
    case ACT_ENGINE_SLOW:
        w->engine_slow_until = w->turn + (uint64_t)between(&r, 1, 100);
        break;
    case ACT_SERVER_STOPS:
        w->n_stops++;
        w->stop_sent = true;
        if (w->serving)
            vfd_of(w->server.stop_fd)->count++;
        break;
    default:
        break;
    }
}

static void do_acts(struct world *w)
{
    while (w->n_done < w->n_acts && (uint64_t)w->acts[w->n_done].at <= w->turn) {
        const struct act *a = &w->acts[w->n_done++];
        if (!a->dropped)
            do_act(w, a);
    }
    if (w->n_done < w->n_acts || w->calm)
        return;
    say("turn %llu: calm\n", (unsigned long long)w->turn);
    w->calm = true;
    w->calm_turn = w->turn;
    w->alloc_fail = w->no_fds_allocs = w->fail_steps = w->hang_s = 0;
    fake_faults.hang = false;
}

/* Alone, one after the other, with every prompt computed token by token, it would take this; and
 * clients take their time. */
static uint64_t patience(const struct world *w)
{
    return 4u * MAX_LEN * (uint64_t)(w->n_seqs_accepted + MAX_HTTP * MAX_REQS * MAX_SIM_N) + 20000;
}

enum { NOISE_ENGINE = 50, NOISE_AHEAD, NOISE_FORGET };

static void world_turn(struct world *w)
{
    uint64_t begin = virtual_ns;
    w->turn++;
    w->n_draws = 0;
    virtual_ns += TURN_NS;
    do_acts(w);
    fake_tick();
    bool late = (w->turn < w->engine_slow_until && !w->calm) ||
                now_and_then(w, NOISE_ENGINE, w->cfg.engine_late_pct);
    if (engine_awake(w) && !late)
        engine_turn(w);
    if (atomic_load(&w->eng->n_open) > 0)
        w->busy_turn = w->turn;
    if (virtual_ns - begin > 10 * STEP_NS)
        time_jumped(w);
    if (fibers.now == NULL && w->turn % 2 == 0)
        resume_fibers(w, false);
    for (int32_t i = 0; w->cfg.http && i < MAX_HTTP; i++)
        if (w->https[i].used)
            client_turn(w, &w->https[i]);
    read_clients(w);
    if (w->eng->watchdog.timeout_ns != 0)
        sl_watchdog_poll(w->eng);
    check_health(w);
    if (w->cfg.tiers && now_and_then(w, NOISE_FORGET, 2)) /* what was cached is to be had again */
        sl_kv_clear(&w->eng->kv);
    if (w->calm && w->turn > w->calm_turn + patience(w))
        violation(w, "I7: %d clients and %d connections do not come to an end", n_clients(w),
                  n_https(w));
}

static bool engine_over(const struct world *w)
{
    return w->calm && n_clients(w) == 0 && !engine_awake(w);
}

static bool world_over(const struct world *w)
{
    return engine_over(w) && n_https(w) == 0;
}

/* Nobody has anything to do before time has passed. */
static bool is_quiet(const struct world *w)
{
    if (!w->calm || n_clients(w) > 0 || engine_awake(w))
        return false;
    for (int32_t i = 0; i < MAX_HTTP; i++) {
        const struct hclient *c = &w->https[i];
        const struct vfd *v = c->used ? vfd_of(c->fd) : NULL;
        if (v == NULL || (c->gone && !v->was_closed))
            continue;
        int32_t upto = c->pipelined ? c->n_send : c->reqs[SL_MIN(c->n_replied, c->n_reqs - 1)].end;
        if (v->n_out > 0 || v->out_end || v->was_closed || v->reset ||
            (!v->in_end && c->sent < upto) || c->n_replied == c->n_reqs)
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------ the server */

/* What the event library calls when it has nothing to do. */
int epoll_wait(int efd, struct epoll_event *events, int max, int timeout)
{
    struct world *w = sim;
    if (!kern.on)
        return (int)syscall(SYS_epoll_wait, efd, events, max, timeout);
    uint64_t end = timeout < 0 ? UINT64_MAX : virtual_ns + (uint64_t)timeout * 1000000u;
    int n = 0;
    if (fibers.now != NULL)
        return fiber_epoll_wait(efd, events, max, timeout == 0 ? 0 : end);
    w->own = true;
    if (timeout != 0 && noise(w, NOISE_AHEAD, 10) < 7)
        world_turn(w);
    while (n == 0) {
        n = collect(efd, events, max);
        if (n > 0 || timeout == 0 || virtual_ns >= end)
            break;
        if (is_quiet(w)) /* whatever a fiber may still have to do */
            resume_fibers(w, true);
        if (any_fiber_ready() || collect(efd, events, max) > 0) {
            world_turn(w);
            continue;
        }
        uint64_t deadline = first_deadline(end);
        if (world_over(w) && !w->golden_sent && !w->stop_sent) {
            w->golden_sent = true;
            act_http(w, w->seed_no, true);
        } else if (world_over(w) && w->serving && w->n_stops == 0) {
            w->n_stops++;
            w->stop_sent = true;
            vfd_of(w->server.stop_fd)->count++;
        } else if (is_quiet(w) && deadline == UINT64_MAX && !w->stop_sent) {
            violation(w, "I7: the server sleeps for ever and %d connections are open", n_https(w));
        } else if (is_quiet(w) && deadline != UINT64_MAX) {
            virtual_ns = SL_MAX(virtual_ns, deadline);
        } else {
            world_turn(w);
        }
    }
    w->own = false;
    return n;
}

static void serve(struct world *w)
{
    static const char *const keys[] = {"key0", "key1"};
    const struct config *g = &w->cfg;
    struct sl_error err;
    sl_server_config_default(&w->server);
    w->server.host = NULL;
    w->server.uds = "/nonexistent/sim.sock";
    w->server.handle_signals = false;
    w->server.stop_fd = eventfd(0, 0);
    w->server.max_connections = g->max_conns;
    w->server.n_http_threads = g->n_threads;
    w->server.header_timeout_ms = g->header_ms;
    w->server.body_timeout_ms = g->body_ms;
    w->server.idle_timeout_ms = g->idle_ms;
    w->server.write_timeout_ms = g->write_ms;
    w->server.request_timeout_ms = g->request_ms;
    w->server.sse_ping_ms = g->ping_ms;
    w->server.shutdown_timeout_ms = g->shutdown_ms;
    w->server.max_body_bytes = g->max_body;
    w->server.max_held_bytes = g->max_held;
    w->server.api_keys = keys;
    w->server.n_api_keys = g->n_keys;
    w->server.priority_scheduling = true;
    w->serving = true;
    w->own = false;
    int rc = sl_server_run(&w->server, w->eng, &err);
    w->own = true;
    w->serving = false;
    if (rc != 0 && rc != SL_ETIMEOUT && !w->no_thread)
        violation(w, "the server ends with: %s", err.msg);
    if (rc == SL_ETIMEOUT && w->n_stops < 2 && !has_act(w, ACT_SERVER_STOPS))
        violation(w, "the last drain had to abort something");
    vk_close(w->server.stop_fd);
}

/* ------------------------------------------------------------------ one seed */

static void open_store(struct world *w, bool state, int32_t window, int32_t n_pages)
{
    size_t n_slots = (size_t)n_pages * (size_t)w->cfg.block_size;
    struct store *st = &w->stores[w->n_stores++];
    *st = (struct store){.state = state,
                         .window = window,
                         .n_pages = n_pages,
                         .token = calloc(n_slots, sizeof *st->token),
                         .pos = calloc(n_slots, sizeof *st->pos),
                         .space = calloc((size_t)n_pages, sizeof *st->space),
                         .hash = calloc((size_t)n_pages, sizeof *st->hash)};
    if (st->token == NULL || st->pos == NULL || st->space == NULL || st->hash == NULL)
        violation(w, "no memory");
}

/* Of a store's pages, those for states behind drafts. */
static int32_t n_draft_pages(const struct world *w, int32_t g)
{
    return w->stores[g].state ? w->cfg.state_drafts : 0;
}

static void open_stores(struct world *w, struct sl_model_info *info)
{
    w->n_stores = 0;
    if (!w->cfg.no_full)
        open_store(w, false, 0, w->cfg.n_pages);
    if (w->cfg.window > 0)
        open_store(w, false, w->cfg.window, w->cfg.window_pages);
    if (w->cfg.state_pages > 0)
        open_store(w, true, 0, w->cfg.state_pages + w->cfg.state_drafts);
    info->n_kv_groups = w->n_stores;
    for (int32_t g = 0; g < w->n_stores; g++)
        info->kv_groups[g] =
            (struct sl_kv_group_info){.state = w->stores[g].state,
                                      .window = w->stores[g].window,
                                      .n_pages = w->stores[g].n_pages - n_draft_pages(w, g),
                                      .n_draft_pages = n_draft_pages(w, g)};
}

static void start_world(struct world *w)
{
    static const int32_t eos[] = {EOS_ID};
    const struct config *c = &w->cfg;
    struct sl_rng r = {.seed = ~w->seed_no};
    struct sl_error err;
    w->rows = calloc((size_t)(c->max_seqs + c->extra_rows), (size_t)c->n_vocab * sizeof *w->rows);
    w->states = calloc((size_t)c->max_tokens, sizeof *w->states);
    w->step = calloc((size_t)c->max_tokens, sizeof *w->step);
    w->n_begun = calloc((size_t)c->state_pages + (size_t)c->state_drafts + 1, sizeof *w->n_begun);
    for (int32_t b = 0; b < N_BASES; b++)
        for (int32_t i = 0; i < MAX_LEN; i++)
            w->bases[b][i] = below(&r, c->n_vocab);
    memcpy(w->bases[1], w->bases[0], 40 * sizeof(int32_t)); /* a common beginning */
    w->hash_key = sl_rng_next(&r);
    struct sl_engine_parts parts = {
        .tokenizer = w->tok,
        .eos_ids = eos,
        .n_eos_ids = 1,
        .info = {.model_path = "sim",
                 .kv_dtype = "none",
                 .n_vocab = c->n_vocab,
                 .max_model_len = c->max_len,
                 .block_size = c->block_size,
                 .n_pages = c->n_pages,
                 .max_num_seqs = c->max_seqs,
                 .max_num_batched_tokens = c->max_tokens},
        .max_queued = c->max_queued,
        .max_itl_ms = c->priced ? 100 : 0,
        .priority_max_wait_ms = c->max_wait_ms,
        .watchdog_s = c->watchdog_s,
        .speculative = {.method = c->draft_rows     ? SL_DRAFT_EAGLE3
                                  : c->draft_model  ? SL_DRAFT_MODEL
                                  : c->n_drafts > 0 ? SL_DRAFT_NGRAM
                                                    : SL_DRAFT_NONE,
                        .num_speculative_tokens = c->n_drafts,
                        .prompt_lookup_min = 1,
                        .prompt_lookup_max = 1},
        .no_prefix_caching = !c->caching,
        .kv_retention = c->retain_pct / 100.0,
        .no_thread = true,
        .seed = sl_rng_next(&r) | 1,
    };
    open_stores(w, &parts.info);
    struct sl_host_model m = {.ctx = w, .n_vocab = c->n_vocab};
    const bool has_ranks = ranks_start(w, &m);
    if (c->draft_model)
        drafter_open(w, &m);
    const int32_t n_rows = c->max_seqs + c->extra_rows;
    int rc = 0;
    if (!c->late || c->draft_model) {
        rc = sl_host_runner_create(&m, n_rows, &w->host, &err);
        if (rc == 0)
            sl_host_runner_use(w->host, &parts.runner);
    }
    if (c->late && rc == 0) {
        const struct sl_runner host = parts.runner;
        late_init(&w->late, &m, c->max_tokens, n_rows, &parts.runner);
        late_groups(&w->late, c->n_groups, &parts.runner);
        if (c->draft_model)
            late_drafts(&w->late, &host, &parts.runner);
    }
    parts.runner.progress = device_progress;
    store_start(w, &parts);
    sl_sampling_default(&parts.sampling);
    if (rc != 0 || !has_ranks || w->rows == NULL || w->states == NULL || w->n_begun == NULL ||
        w->step == NULL || sl_sampler_init(&w->sampler, c->n_vocab, &err) != 0 ||
        sl_engine_start(&parts, &w->eng, &err) != 0)
        violation(w, "the engine does not start");
    if (c->n_drafts > 0 && !c->draft_model)
        w->eng->drafting = &sim_mode;
    w->eng->masker.simulate = make_masks;
    w->eng->masker.simulate_ctx = w;
}

static void check_drained(struct world *w)
{
    struct sl_stats s;
    sl_engine_stats(w->eng, &s);
    uint64_t n_finished = 0;
    for (int i = 0; i < SL_N_FINISHES; i++)
        n_finished += s.finished[i];
    if (n_finished != w->eng->n_seqs_taken || n_finished < (uint64_t)w->n_seqs_accepted)
        violation(w, "I3: %llu sequences accepted, %llu ended",
                  (unsigned long long)w->eng->n_seqs_taken, (unsigned long long)n_finished);
    if (s.n_running != 0 || s.n_waiting != 0 || atomic_load(&w->eng->n_queued) != 0 ||
        atomic_load(&w->eng->n_open) != 0)
        violation(w, "I2: drained, but %d run, %d wait, %d are queued, %d open", s.n_running,
                  s.n_waiting, w->eng->n_queued, w->eng->n_open);
    if (s.n_pages_free + s.n_pages_cached != w->cfg.n_pages)
        violation(w, "I2: drained, but %d free and %d cached pages of %d", s.n_pages_free,
                  s.n_pages_cached, w->cfg.n_pages);
    for (int32_t g = 0; g < w->n_stores; g++)
        if (s.kv_groups[g].n_free + s.kv_groups[g].n_cached + n_draft_pages(w, g) !=
            w->stores[g].n_pages)
            violation(w, "I2: drained, but %d free and %d cached pages of %d in group %d",
                      s.kv_groups[g].n_free, s.kv_groups[g].n_cached, w->stores[g].n_pages, g);
    if (!w->cfg.caching && s.n_pages_cached != 0)
        violation(w, "I2: pages stay cached without prefix caching");
    if (s.step_mallocs != 0 || s.invariant_violations != 0)
        violation(w, "the engine called the heap %llu times, repaired itself %llu times",
                  (unsigned long long)s.step_mallocs, (unsigned long long)s.invariant_violations);
    for (int i = 1; i < SL_FINISH_CACHE; i++)
        if (s.finished[i] < w->n_ended[i])
            violation(w, "statistics lost an end");
    total.steps += w->n_steps;
    total.preemptions += s.preemptions;
    total.lease_falls += w->eng->kv.leases.n_fell;
    total.lease_ends += w->eng->kv.leases.n_ended;
    for (int32_t g = 0; g < w->n_stores; g++)
        *(w->stores[g].state ? &total.state_evictions : &total.window_evictions) +=
            s.kv_groups[g].n_evicted;
    total.stalls += s.watchdog_stalls;
    total.late_masks += s.grammar_late;
    total.drafted += s.n_draft_tokens;
    total.accepted += s.n_accepted_tokens;
    if (w->cfg.state_pages > 0)
        total.state_drafted += s.n_draft_tokens, total.state_accepted += s.n_accepted_tokens;
    total.forced += s.grammar_forced;
}

static void stop_world(struct world *w)
{
    sl_engine_destroy(w->eng);
    total.overlaps += w->late.n_overlaps;
    total.deep += w->late.n_deep;
    total.fed_ahead += w->late.n_passes > 0 ? w->late.n_overlaps : 0;
    total.halves += w->late.n_halves;
    if (w->cfg.late)
        late_deinit(&w->late);
    sl_host_runner_destroy(w->host);
    sl_sampler_deinit(&w->sampler);
    if (w->blocks != 0)
        violation(w, "%lld blocks of heap are left", (long long)w->blocks);
    if (n_fibers() != 0)
        violation(w, "%d threads are left", n_fibers());
    int n = kernel_stop();
    if (n != 0)
        violation(w, "%d descriptors are left", n);
    ranks_stop();
    free(w->rows);
    free(w->states);
    free(w->n_begun);
    free(w->step);
    free((void *)w->draft_rows_of);
    total.fed += (uint64_t)w->fed[0];
    free(w->drafter.pos);
    free(w->drafter.token);
    for (int32_t g = 0; g < w->n_stores; g++) {
        free(w->stores[g].hash);
        free(w->stores[g].space);
        free(w->stores[g].pos);
        free(w->stores[g].token);
    }
}

static void draw_world(struct world *w, uint64_t seed, struct sl_tokenizer *tok,
                       struct hclient *https)
{
    memset(w, 0, sizeof *w);
    w->seed_no = seed;
    w->tok = tok;
    w->https = https;
    w->own = true;
    for (int32_t i = 0; i < MAX_HTTP; i++)
        https[i].used = false;
    draw_plan(w);
}

static void run_world(struct world *w)
{
    virtual_ns = 1000000000;
    wall_offset_ns = 0;
    sim = w;
    kernel_start();
    start_world(w);
    if (w->cfg.http)
        serve(w);
    while (!engine_over(w)) {
        world_turn(w);
    }
    while (w->cfg.http && n_https(w) > 0) /* who learns only now that the server is gone */
        world_turn(w);
    check_drained(w);
    stop_world(w);
    sim = NULL;
}

/* An assertion of the code under test failed: say which seed it was. */
static void on_abort(int sig)
{
    (void)sig;
    if (sim != NULL)
        violation(sim, "assertion failed, see above");
    _exit(1);
}

static bool number_arg(const char *s, uint64_t *out)
{
    return s != NULL && sl_parse_u64(s, strlen(s), out);
}

static void say_totals(uint64_t first, uint64_t n_seeds)
{
    say("%llu pages of windows and %llu states evicted alone; "
        "%llu steps, %llu tokens, %llu preemptions, %llu prompt tokens from the cache, %llu steps "
        "planned ahead, %llu of them behind those of other groups, %llu failed, %llu standstills "
        "found; tokens of %llu chosen in a "
        "second part, %llu masks late, %llu tokens forced, %llu of %llu drafted ones accepted, "
        "%llu of %llu with recurrent layers; %llu steps of models that draft, beside which %llu "
        "steps were planned ahead; %llu pages loaded; %llu leases fell and %llu came to their end; "
        "%llu ranks let in\n"
        "%llu http requests: %llu answered by the oracle's tokens, %llu refused, %llu cut off; "
        "%llu "
        "allocations failed\n",
        (unsigned long long)total.window_evictions, (unsigned long long)total.state_evictions,
        (unsigned long long)total.steps, (unsigned long long)total.tokens,
        (unsigned long long)total.preemptions, (unsigned long long)total.hits,
        (unsigned long long)total.overlaps, (unsigned long long)total.deep,
        (unsigned long long)total.step_faults, (unsigned long long)total.stalls,
        (unsigned long long)total.halves, (unsigned long long)total.late_masks,
        (unsigned long long)total.forced, (unsigned long long)total.accepted,
        (unsigned long long)total.drafted, (unsigned long long)total.state_accepted,
        (unsigned long long)total.state_drafted, (unsigned long long)total.fed,
        (unsigned long long)total.fed_ahead, (unsigned long long)total.loaded,
        (unsigned long long)total.lease_falls, (unsigned long long)total.lease_ends,
        (unsigned long long)total.let_in, (unsigned long long)total.http,
        (unsigned long long)total.http_ok, (unsigned long long)total.http_refused,
        (unsigned long long)total.http_cut, (unsigned long long)total.alloc_faults);
    printf("sim: %llu seeds from %llu on, 0 violations\n", (unsigned long long)n_seeds,
           (unsigned long long)first);
}

struct options {
    uint64_t n_seeds, first, minimise;
    const char *keep;
    bool totals;
};

static bool read_options(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        bool ok = false;
        if (strcmp(name, "--seeds") == 0)
            ok = number_arg(value, &o->n_seeds);
        else if (strcmp(name, "--first") == 0)
            ok = number_arg(value, &o->first);
        else if (strcmp(name, "--seed") == 0)
            ok = number_arg(value, &o->first), o->n_seeds = 1, trace = true;
        else if (strcmp(name, "--minimise") == 0)
            ok = number_arg(value, &o->minimise);
        else if (strcmp(name, "--keep") == 0)
            ok = (o->keep = value) != NULL;
        else if (strcmp(name, "--totals") == 0)
            ok = o->totals = true, i--;
        if (!ok)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {.n_seeds = 200, .first = 1};
    struct sl_tokenizer *tok;
    struct sl_error err;
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: test_sim [--seeds N] [--first S] [--totals] | --seed S [--keep "
                        "1,2,...] | --minimise S\n");
        return 2;
    }
    signal(SIGABRT, on_abort);
    if (!ranks_install())
        return 1;
    kernel_install();
    fibers_install();
    struct world *w = calloc(1, sizeof *w);
    struct hclient *https = calloc(MAX_HTTP, sizeof *https);
    if (w == NULL || https == NULL ||
        sl_tokenizer_from_json(sim_json, sizeof sim_json - 1, NULL, 0, &tok, &err) != 0)
        return 1;
    for (int i = 0; i < MAX_HTTP; i++)
        https[i].reply = malloc(REPLY_CAP), https[i].send = malloc(SEND_CAP);
    int rc = 0;
    if (o.minimise > 0) {
        draw_world(w, o.minimise, tok, https);
        rc = minimise(w, run_world);
    }
    for (uint64_t s = o.first; o.minimise == 0 && s < o.first + o.n_seeds; s++) {
        draw_world(w, s, tok, https);
        if (!keep_acts(w, o.keep))
            return 2;
        if (trace)
            print_plan(w);
        run_world(w);
    }
    trace |= o.totals;
    if (o.minimise == 0)
        say_totals(o.first, o.n_seeds);
    for (int i = 0; i < MAX_HTTP; i++)
        free(https[i].reply), free(https[i].send);
    for (int i = 0; i < N_FDS; i++) {
        free(kern.fds[i].in);
        free(kern.fds[i].out);
    }
    fibers_remove();
    sl_tokenizer_destroy(tok);
    free(https);
    free(w);
    sl_sys = &sl_sys_real;
    return rc;
}
