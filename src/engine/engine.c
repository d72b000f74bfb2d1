/* SPDX-License-Identifier: MIT
 * Starts and stops the engine, and answers what any thread may ask about it.
 */
#include "engine/engine.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"

#include <poll.h>
#include <string.h>

#define DEFAULT_MAX_QUEUED 4096
#define DEFAULT_RAISE_MS   30000
#define STUCK_GRACE_MS     500 /* for an engine thread that may hang to end after all */
#define ITL_SHARE          0.8 /* of max_itl_ms is a step planned for: prices are not exact */
#define TIER_LOOK_MS       100 /* between looks whether pages were waited for too long */
#define MOVES_LOOK_MS      1   /* between looks whether copies of pages have ended */
#define RAISED_SHARE       8   /* one of so many seats is for those who waited too long */

static struct sl_kv_group_config engine_group(const struct sl_kv_group_info *g)
{
    if (g->state)
        return (struct sl_kv_group_config){.kind = SL_GROUP_STATE,
                                           .window = SL_STATE_WINDOW,
                                           .n_pages = g->n_pages,
                                           .n_drafts = g->n_draft_pages};
    return (struct sl_kv_group_config){.kind = g->window > 0 ? SL_GROUP_WINDOW : SL_GROUP_FULL,
                                       .window = g->window,
                                       .n_pages = g->n_pages};
}

static int engine_check_parts(const struct sl_engine_parts *p, struct sl_error *err)
{
    const struct sl_model_info *i = &p->info;
    SL_ASSERT(p->runner.submit != NULL && p->runner.collect != NULL);
    SL_ASSERT(p->runner.blind ? p->runner.max_flights == 1 : p->runner.choose != NULL);
    SL_ASSERT(p->runner.n_pooled == 0 || p->runner.blind);
    SL_ASSERT(p->runner.max_flights >= 1 && p->runner.max_flights <= SL_MAX_FLIGHTS);
    SL_ASSERT(p->runner.n_groups <= 1 || (p->runner.max_flights == p->runner.n_groups + 1 &&
                                          p->speculative.num_speculative_tokens == 0));
    if (i->n_vocab < 1 || i->n_vocab > SL_MAX_VOCAB || p->runner.n_vocab < 1 ||
        p->runner.n_vocab > SL_MAX_VOCAB)
        return sl_fail(err, SL_EINVAL, "vocabulary of %d tokens and %d logits", i->n_vocab,
                       p->runner.n_vocab);
    if (i->max_model_len < 2 || i->max_model_len > SL_MAX_CONTEXT)
        return sl_fail(err, SL_EINVAL, "max_model_len must be in [2, %d], not %d", SL_MAX_CONTEXT,
                       i->max_model_len);
    if (i->n_kv_ranks < 0 || i->n_kv_ranks > SL_MAX_RANKS)
        return sl_fail(err, SL_EINVAL, "n_kv_ranks must be in [0, %d], not %d", SL_MAX_RANKS,
                       i->n_kv_ranks);
    const int32_t most = SL_MAX_BLOCK_SIZE * SL_MAX(i->n_kv_ranks, 1);
    if (i->block_size < 1 || i->block_size > most)
        return sl_fail(err, SL_EINVAL, "block_size must be in [1, %d], not %d", most,
                       i->block_size);
    if (i->max_num_seqs < 1 || i->max_num_seqs > SL_MAX_SEQS)
        return sl_fail(err, SL_EINVAL, "max_num_seqs must be in [1, %d], not %d", SL_MAX_SEQS,
                       i->max_num_seqs);
    if (i->max_num_batched_tokens < i->max_num_seqs ||
        i->max_num_batched_tokens > SL_MAX_STEP_TOKENS)
        return sl_fail(err, SL_EINVAL, "max_num_batched_tokens must be in [%d, %d], not %d",
                       i->max_num_seqs, SL_MAX_STEP_TOKENS, i->max_num_batched_tokens);
    if (p->runner.whole && i->max_model_len > i->max_num_batched_tokens)
        return sl_fail(err, SL_EINVAL,
                       "max_num_batched_tokens: %d is less than the %d tokens of the longest text, "
                       "which must go into one step",
                       i->max_num_batched_tokens, i->max_model_len);
    if (i->n_pages < 1 || (int64_t)i->n_pages * i->block_size < 2 || i->n_pages > INT32_MAX / 4)
        return sl_fail(err, SL_EINVAL, "KV cache of %d pages of %d tokens", i->n_pages,
                       i->block_size);
    for (int32_t g = 0; g < i->n_kv_groups; g++) {
        struct sl_kv_group_config c = engine_group(&i->kv_groups[g]);
        if (c.kind == SL_GROUP_STATE && c.n_pages < sl_group_least(&c, i->n_pages, i->block_size))
            return sl_fail(err, SL_EINVAL,
                           "max_state_slots: %d is less than the %d of one sequence", c.n_pages,
                           sl_group_least(&c, i->n_pages, i->block_size));
        if (c.n_pages < sl_group_least(&c, i->n_pages, i->block_size))
            return sl_fail(err, SL_EINVAL,
                           "%d pages of %d tokens for layers with a window of %d: one sequence "
                           "needs %d",
                           c.n_pages, i->block_size, c.window,
                           sl_group_least(&c, i->n_pages, i->block_size));
    }
    if (sl_speculative_loads(&p->speculative) && p->runner.draft == NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: what computes this model has no model that drafts");
    if (p->tiers.store.host_bytes > 0 && (p->runner.page_out == NULL || p->no_prefix_caching))
        return sl_fail(err, SL_EUNSUPPORTED, "kv_host_bytes: %s",
                       p->no_prefix_caching ? "without prefix caching no page is found again"
                                            : "pages of this device are not copied yet");
    if (p->share != NULL &&
        (p->share->floor - p->share->own) / p->share->page_bytes * (uint64_t)i->block_size <
            (uint64_t)i->max_model_len)
        return sl_fail(err, SL_EINVAL,
                       "max_model_len: %d tokens are more than the floor of %llu bytes",
                       i->max_model_len, (unsigned long long)p->share->floor);
    if (p->runner.max_logits != 0 && p->runner.max_logits < i->max_num_seqs)
        return sl_fail(err, SL_EINVAL, "a step gives %d rows of logits for max_num_seqs = %d",
                       p->runner.max_logits, i->max_num_seqs);
    return 0;
}

static void take_parts(struct sl_engine *eng, const struct sl_engine_parts *p)
{
    eng->runner = p->runner;
    if (eng->runner.max_logits == 0)
        eng->runner.max_logits = p->info.max_num_seqs;
    eng->tokenizer = p->tokenizer;
    eng->adapters = p->adapters;
    eng->info = p->info;
    int64_t pool_tokens = (int64_t)p->info.n_pages * p->info.block_size;
    eng->info.max_model_len = (int32_t)SL_MIN(pool_tokens, p->info.max_model_len);
    eng->sampling = p->sampling;
    eng->speculative = p->speculative;
    eng->drafting = sl_mode_of(p->speculative.method);
    if (p->speculative.synthetic)
        sl_log(SL_LOG_WARN, "speculative-config: drafts are accepted at the rates given, whatever "
                            "the model says: for measurements only, all text is worthless");
    if (p->info.n_kv_groups == 0)
        eng->info.kv_groups[eng->info.n_kv_groups++].n_pages = p->info.n_pages;
    eng->max_queued = p->max_queued > 0 ? p->max_queued : DEFAULT_MAX_QUEUED;
    eng->prefix_caching = !p->no_prefix_caching && !p->runner.whole;
    eng->jump_forward = !p->no_jump_forward;
    eng->threaded = !p->no_thread;
    sl_watchdog_init(&eng->watchdog, p->watchdog_s);
    eng->raise_ns =
        (uint64_t)(p->priority_max_wait_ms > 0 ? p->priority_max_wait_ms : DEFAULT_RAISE_MS) *
        1000000u;
    eng->max_raised = SL_MAX(p->info.max_num_seqs / RAISED_SHARE, 1);
    eng->user = p->user;
    eng->park = p->park;
    eng->unpark = p->unpark;
    eng->limits = (struct sl_request_limits){.n_vocab = p->info.n_vocab,
                                             .n_logits = p->runner.n_vocab,
                                             .max_model_len = eng->info.max_model_len,
                                             .has_tokenizer = p->tokenizer != NULL,
                                             .has_top_ids = p->runner.top_ids,
                                             .has_logits = !p->runner.blind,
                                             .n_pooled = p->runner.n_pooled,
                                             .per_token = p->runner.per_token,
                                             .pairs = p->info.scores_pairs,
                                             .has_adapters = p->adapters != NULL};
    eng->max_flights = p->runner.max_flights;
    SL_ASSERT(eng->info.max_model_len >= 2 && eng->runner.max_logits >= eng->info.max_num_seqs);
}

static void free_arrays(struct sl_engine *eng)
{
    SL_ASSERT(eng->n_flights == 0); /* the runner may write to the arrays of one */
    for (int32_t i = 0; i < eng->max_flights; i++)
        sl_flight_deinit(&eng->flights[i]);
    sl_drafter_deinit(eng);
    sl_free(eng->text);
    sl_free(eng->eos_ids);
}

static int make_arrays(struct sl_engine *eng, const struct sl_engine_parts *p, struct sl_error *err)
{
    eng->eos_ids = sl_calloc((size_t)SL_MAX(p->n_eos_ids, 1), sizeof *eng->eos_ids);
    eng->text = sl_malloc(p->tokenizer != NULL ? sl_detok_max_bytes(p->tokenizer) : 1);
    if (eng->eos_ids == NULL || eng->text == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the engine");
    SL_ASSERT(eng->n_eos_ids == 0 && (p->n_eos_ids == 0 || p->eos_ids != NULL));
    for (int32_t j = 0; j < p->n_eos_ids;
         j++) /* an id that cannot be sampled cannot end anything */
        if (p->eos_ids[j] >= 0 && p->eos_ids[j] < eng->runner.n_vocab)
            eng->eos_ids[eng->n_eos_ids++] = p->eos_ids[j];
    int rc = 0;
    for (int32_t i = 0; i < eng->max_flights && rc == 0; i++)
        rc = sl_flight_init(&eng->flights[i], eng, err);
    return rc;
}

static void *engine_main(void *arg)
{
    struct sl_engine *eng = arg;
    sl_alloc_guard_arm(true);
    eng->n_mallocs_before = sl_alloc_guard_count();
    while (!atomic_load(&eng->stopping)) {
        /* The turn takes the wake-up with the inbox: a stop that came just before it must be seen
         * here, one that comes from now on makes the wait return. */
        bool work = sl_engine_turn(eng);
        if ((!work || eng->starved) && !atomic_load(&eng->stopping))
            sl_inbox_wait(&eng->inbox, sl_moves_n(&eng->tiers.moves) > 0 ? MOVES_LOOK_MS
                                       : eng->tiers.n_waiting > 0        ? TIER_LOOK_MS
                                                                         : -1);
    }
    sl_alloc_guard_arm(false);
    SL_ASSERT(atomic_load(&eng->phase) == SL_PHASE_ASLEEP && eng->n_flights < eng->max_flights);
    atomic_store(&eng->ended, true);
    return NULL;
}

static void wake_engine(void *arg)
{
    struct sl_engine *eng = arg;
    sl_inbox_wake(&eng->inbox);
}

static int start_core(struct sl_engine *eng, const struct sl_engine_parts *p, struct sl_error *err)
{
    const struct sl_model_info *i = &eng->info;
    struct sl_sched_config cfg = {.max_seqs = i->max_num_seqs,
                                  .max_tokens = i->max_num_batched_tokens,
                                  .n_groups = eng->runner.n_groups,
                                  .whole_prompts = eng->runner.whole,
                                  .max_step_s = ITL_SHARE * p->max_itl_ms / 1e3,
                                  .max_logits = eng->runner.max_logits};
    if (eng->adapters != NULL)
        cfg.max_adapters = sl_adapters_config(eng->adapters)->max_active;
    struct sl_kv_config kv = {.n_nodes = i->n_pages,
                              .block_size = i->block_size,
                              .keep = eng->prefix_caching,
                              .seed = eng->seed,
                              .root = p->kv_root,
                              .n_groups = i->n_kv_groups};
    for (int32_t g = 0; g < i->n_kv_groups; g++)
        kv.groups[g] = engine_group(&i->kv_groups[g]);
    int rc = sl_kv_init(&eng->kv, &kv, err);
    if (rc != 0)
        return rc;
    if (p->share != NULL)
        sl_kv_share(&eng->kv, p->share, p->discard, p->user);
    rc = sl_sched_init(&eng->sched, &cfg, &eng->kv, err);
    if (rc != 0)
        goto fail_kv;
    if (sl_speculative_loads(&eng->speculative))
        rc = sl_drafter_init(eng, err);
    if (rc != 0)
        goto fail_sched;
    if (p->kv_events)
        rc = sl_engine_feed_init(eng, err);
    if (rc != 0)
        goto fail_sched;
    rc = sl_inbox_init(&eng->inbox, err);
    if (rc != 0)
        goto fail_sched;
    if (sl_suffix_corpus_bytes(&eng->speculative) > 0)
        rc = sl_suffix_corpus_create(&eng->speculative, eng->seed, &eng->corpus, err);
    if (rc != 0)
        goto fail_inbox;
    rc = sl_retain_init(eng, p->kv_retention, err);
    if (rc == 0)
        rc = sl_tiers_init(eng, &p->tiers, err);
    if (rc != 0)
        goto fail_inbox;
    if (p->share != NULL)
        sl_share_set_wake(p->share, wake_engine, eng);
    rc = sl_masker_start(eng, err);
    if (rc != 0)
        goto fail_inbox;
    if (eng->threaded)
        rc = sl_watchdog_start(eng, err);
    if (rc != 0)
        goto fail_masker;
    if (eng->threaded)
        rc = sl_thread_create(&eng->thread, engine_main, eng, "sl-engine", err);
    if (rc == 0)
        return 0;
    sl_watchdog_stop(eng);
fail_masker:
    sl_masker_stop(eng);
    sl_masker_deinit(eng);
fail_inbox:
    sl_tiers_deinit(eng);
    sl_suffix_corpus_destroy(eng->corpus);
    if (p->share != NULL)
        sl_share_set_wake(p->share, NULL, NULL);
    sl_inbox_deinit(&eng->inbox);
fail_sched:
    sl_retain_deinit(eng);
    sl_engine_feed_deinit(eng);
    sl_sched_deinit(&eng->sched);
fail_kv:
    sl_kv_deinit(&eng->kv);
    return rc;
}

int sl_engine_start(const struct sl_engine_parts *parts, struct sl_engine **out,
                    struct sl_error *err)
{
    int rc = engine_check_parts(parts, err);
    if (rc != 0)
        return rc;
    struct sl_engine *eng = sl_calloc(1, sizeof *eng);
    if (eng == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the engine");
    take_parts(eng, parts);
    pthread_mutex_init(&eng->turn_lock, NULL);
    pthread_mutex_init(&eng->sleep_lock, NULL);
    pthread_mutex_init(&eng->runner_lock, NULL);
    pthread_mutex_init(&eng->stats_lock, NULL);
    eng->stats_public.n_pages = eng->stats_public.n_pages_free = eng->info.n_pages;
    eng->stats_public.n_kv_groups = eng->info.n_kv_groups;
    for (int32_t g = 0; g < eng->info.n_kv_groups; g++)
        eng->stats_public.kv_groups[g].n_free = eng->info.kv_groups[g].n_pages;
    eng->seed = parts->seed;
    if (eng->seed == 0)
        rc = sl_random(&eng->seed, sizeof eng->seed, err);
    if (rc == 0)
        rc = make_arrays(eng, parts, err);
    if (rc == 0 && eng->limits.has_logits && parts->tokenizer != NULL)
        rc = sl_constraints_create(parts->tokenizer, eng->runner.n_vocab, eng->eos_ids,
                                   eng->n_eos_ids, &eng->constraints, err);
    if (rc == 0)
        rc = start_core(eng, parts, err);
    if (rc != 0) {
        sl_constraints_close(eng->constraints);
        free_arrays(eng);
        pthread_mutex_destroy(&eng->stats_lock);
        pthread_mutex_destroy(&eng->turn_lock);
        pthread_mutex_destroy(&eng->sleep_lock);
        pthread_mutex_destroy(&eng->runner_lock);
        sl_free(eng);
        return rc;
    }
    eng->destroy = parts->destroy;
    *out = eng;
    return 0;
}

/* False: the watchdog found that the engine thread hangs. What a thread uses cannot be freed. */
static bool join_thread(struct sl_engine *eng)
{
    int n_red = 0;
    SL_ASSERT(atomic_load(&eng->stopping));
    while (eng->watchdog.timeout_ns != 0 && !atomic_load(&eng->ended)) {
        n_red += atomic_load(&eng->watchdog.red); /* a thread that is only stuck ends at once */
        if (n_red > STUCK_GRACE_MS)
            return false;
        (void)poll(NULL, 0, 1);
    }
    pthread_join(eng->thread, NULL);
    return true;
}

void sl_engine_destroy(struct sl_engine *eng)
{
    if (eng == NULL)
        return;
    sl_inbox_close(&eng->inbox);
    atomic_store(&eng->stopping, true);
    sl_inbox_wake(&eng->inbox);
    if (eng->threaded && !join_thread(eng)) {
        sl_log(SL_LOG_ERROR,
               "the engine thread hangs: stopping without it, its memory is not freed");
        return;
    }
    sl_watchdog_stop(eng);
    sl_masker_stop(eng);
    sl_engine_cancel_all(eng);
    SL_ASSERT(eng->live == NULL && eng->live_oldest == NULL && eng->news == NULL);
    SL_ASSERT(eng->n_flights == 0 && eng->n_raised == 0);
    SL_ASSERT(atomic_load(&eng->n_open) == 0 && atomic_load(&eng->n_queued) == 0);
    SL_ASSERT(eng->sched.n_running == 0 && eng->sched.wait.n == 0);
    sl_masker_deinit(eng);
    sl_tiers_drain(eng);
    sl_tiers_deinit(eng);
    if (eng->kv.share != NULL)
        sl_share_set_wake(eng->kv.share, NULL, NULL);
    sl_suffix_corpus_destroy(eng->corpus);
    sl_inbox_deinit(&eng->inbox);
    sl_constraints_close(eng->constraints);
    sl_adapters_close(eng->adapters);
    sl_engine_feed_deinit(eng);
    sl_retain_deinit(eng);
    sl_sched_deinit(&eng->sched);
    sl_kv_deinit(&eng->kv);
    free_arrays(eng);
    pthread_mutex_destroy(&eng->stats_lock);
    pthread_mutex_destroy(&eng->turn_lock);
    pthread_mutex_destroy(&eng->sleep_lock);
    pthread_mutex_destroy(&eng->runner_lock);
    if (eng->destroy != NULL)
        eng->destroy(eng->user);
    sl_free(eng);
}

bool sl_engine_step(struct sl_engine *eng)
{
    SL_ASSERT(!eng->threaded);
    sl_alloc_guard_arm(true);
    bool work = sl_engine_turn(eng);
    sl_alloc_guard_arm(false);
    return work;
}

const struct sl_model_info *sl_engine_info(const struct sl_engine *eng)
{
    return &eng->info;
}

const struct sl_tokenizer *sl_engine_tokenizer(const struct sl_engine *eng)
{
    return eng->tokenizer;
}

void *sl_engine_user(const struct sl_engine *eng)
{
    return eng->user;
}

void sl_engine_sampling_default(const struct sl_engine *eng, struct sl_sampling *s)
{
    *s = eng->sampling;
}

int sl_engine_health(const struct sl_engine *eng, struct sl_error *err)
{
    bool failed = atomic_load(&eng->failed); /* stored after the error */
    SL_ASSERT(!failed || eng->error.code != SL_OK);
    if (failed)
        return eng->error.code == SL_EDEVICE
                   ? sl_fail(err, SL_EDEVICE, "the device failed, restart the server")
                   : sl_fail(err, SL_EINTERNAL, "the engine failed, restart the server");
    if (atomic_load(&eng->watchdog.red))
        return sl_fail(err, SL_ESTALLED, "the engine makes no progress, %d requests are open",
                       atomic_load(&eng->n_open));
    struct sl_engine *e = (struct sl_engine *)(uintptr_t)eng; /* only its lock changes */
    int rc = 0;
    pthread_mutex_lock(&e->runner_lock);
    if (err != NULL)
        *err = (struct sl_error){.code = SL_OK};
    if (eng->runner.health != NULL)
        rc = eng->runner.health(eng->runner.ctx, err);
    pthread_mutex_unlock(&e->runner_lock);
    return rc;
}

bool sl_engine_healthy(const struct sl_engine *eng)
{
    return sl_engine_health(eng, NULL) == 0;
}

void sl_engine_stats(const struct sl_engine *eng, struct sl_stats *out)
{
    struct sl_engine *e = (struct sl_engine *)(uintptr_t)eng; /* only its locks change */
    pthread_mutex_lock(&e->stats_lock);
    *out = e->stats_public;
    pthread_mutex_unlock(&e->stats_lock);
    SL_ASSERT(out->n_pages_free >= 0 && out->n_pages_free <= out->n_pages);
    out->n_waiting += sl_inbox_count(&e->inbox);
    sl_masker_stats(e, out);
    if (e->constraints != NULL)
        sl_constraints_stats(e->constraints, out);
    if (e->adapters != NULL)
        sl_adapters_stats(e->adapters, out);
    sl_tiers_stats(e, out);
    pthread_mutex_lock(&e->runner_lock);
    if (e->runner.ranks != NULL)
        e->runner.ranks(e->runner.ctx, &out->ranks);
    pthread_mutex_unlock(&e->runner_lock);
    out->watchdog_stalls = atomic_load(&e->watchdog.n_fired);
    if (e->kv.share != NULL) {
        struct sl_share_view v;
        sl_share_look(e->kv.share, &v);
        out->kv_shared_bytes = v.total;
        out->kv_floor_bytes = v.floor;
        out->kv_held_bytes = v.held;
        out->kv_left_bytes = v.left;
        out->kv_given_pages = v.n_given;
    }
}
