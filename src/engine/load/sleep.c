/* SPDX-License-Identifier: MIT
 * sleep.c - gives up memory while nobody asks, and takes it again, with other weights if told so.
 *
 * Requests are refused before anything else happens; when none is open and no step is in flight,
 * the engine thread has nothing to do and the turn lock keeps it from looking. Then the pages are
 * forgotten and the runner is exchanged.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"

#include <poll.h>

#define LOOK_MS 5 /* between looks whether what is in flight has ended */

int sl_engine_is_asleep(struct sl_error *err)
{
    return sl_fail(err, SL_EASLEEP, "the model is asleep: wake it with POST /wake_up");
}

int sl_engine_sleep_level(const struct sl_engine *eng)
{
    return atomic_load(&eng->sleep_level);
}

/* Waits until nothing is in flight; then holds the turn lock. */
static int sleep_settle(struct sl_engine *eng, int timeout_ms, struct sl_error *err)
{
    uint64_t end_ns = sl_now_ns() + (uint64_t)SL_MAX(timeout_ms, 0) * 1000000u;
    SL_ASSERT(atomic_load(&eng->sleep_wanted)); /* else more may come */
    for (;;) {
        bool locked = sl_engine_lock_turn(eng);
        if (locked && eng->live == NULL && eng->n_flights == 0 && eng->masker.n_open == 0 &&
            sl_sched_idle(&eng->sched) && atomic_load(&eng->n_open) == 0)
            return 0;
        if (locked)
            pthread_mutex_unlock(&eng->turn_lock);
        if (timeout_ms >= 0 && sl_now_ns() >= end_ns)
            return sl_fail(err, SL_ETIMEOUT, "%d requests are still in flight",
                           atomic_load(&eng->n_open));
        sl_inbox_wake(&eng->inbox);
        (void)poll(NULL, 0, LOOK_MS);
    }
}

/* With the turn lock: nothing of a runner that is gone is asked for any more. */
static void disarm(struct sl_engine *eng)
{
    SL_ASSERT(eng->n_flights == 0 && eng->live == NULL);
    pthread_mutex_lock(&eng->runner_lock);
    eng->runner.ctx = NULL;
    eng->runner.progress = NULL;
    eng->runner.times = NULL;
    eng->runner.top_pages = NULL;
    eng->runner.eplb = NULL;
    pthread_mutex_unlock(&eng->runner_lock);
}

static int fall_asleep(struct sl_engine *eng, int level, bool abort, int timeout_ms,
                       struct sl_error *err)
{
    SL_ASSERT(level >= 1 && level <= 2);
    if (atomic_load(&eng->sleep_level) >= level)
        return 0;
    atomic_store(&eng->sleep_wanted, true);
    atomic_store(&eng->abort_all, abort);
    int rc = sleep_settle(eng, timeout_ms, err);
    atomic_store(&eng->abort_all, false);
    if (rc == 0) {
        struct sl_runner runner = eng->runner;
        sl_tiers_drain(eng);
        if (eng->park != NULL) { /* else there is no other runner to come */
            disarm(eng);
            sl_moves_restart(&eng->tiers.moves);
            rc = eng->park(eng->user, level, err);
        }
        if (rc != 0) { /* nothing was given up */
            pthread_mutex_lock(&eng->runner_lock);
            eng->runner = runner;
            pthread_mutex_unlock(&eng->runner_lock);
        } else {
            SL_ASSERT(eng->sched.n_running == 0 && eng->sched.wait.n == 0);
            sl_kv_reset(&eng->kv);
            atomic_store(&eng->sleep_level, level);
        }
        if (eng->feed != NULL)
            sl_feed_signal(eng->feed);
        pthread_mutex_unlock(&eng->turn_lock);
        sl_inbox_wake(&eng->inbox); /* a turn brings the statistics up to date */
    }
    if (atomic_load(&eng->sleep_level) == 0)
        atomic_store(&eng->sleep_wanted, false);
    return rc;
}

static int sleep_end(struct sl_engine *eng, const char *path, struct sl_error *err)
{
    if (atomic_load(&eng->sleep_level) == 0)
        return 0;
    struct sl_runner runner = eng->runner;
    int rc = eng->unpark != NULL ? eng->unpark(eng->user, path, &runner, err) : 0;
    if (rc != 0)
        return rc;
    /* The tables of steps were made for these. */
    SL_ASSERT(runner.n_vocab == eng->runner.n_vocab && runner.blind == eng->runner.blind);
    SL_ASSERT(runner.max_flights == eng->max_flights && runner.n_pooled == eng->runner.n_pooled);
    pthread_mutex_lock(&eng->turn_lock);
    SL_ASSERT(eng->n_flights == 0 && eng->live == NULL);
    pthread_mutex_lock(&eng->runner_lock);
    eng->runner = runner;
    pthread_mutex_unlock(&eng->runner_lock);
    pthread_mutex_unlock(&eng->turn_lock);
    atomic_store(&eng->sleep_level, 0);
    atomic_store(&eng->sleep_wanted, false);
    return 0;
}

int sl_engine_sleep(struct sl_engine *eng, int level, bool abort, int timeout_ms,
                    struct sl_error *err)
{
    if (level < 1 || level > 2)
        return sl_fail(err, SL_EINVAL, "level must be 1 or 2, not %d", level);
    pthread_mutex_lock(&eng->sleep_lock);
    int rc = fall_asleep(eng, level, abort, timeout_ms, err);
    pthread_mutex_unlock(&eng->sleep_lock);
    return rc;
}

int sl_engine_wake(struct sl_engine *eng, struct sl_error *err)
{
    pthread_mutex_lock(&eng->sleep_lock);
    int rc = sleep_end(eng, NULL, err);
    pthread_mutex_unlock(&eng->sleep_lock);
    return rc;
}

int sl_engine_reload(struct sl_engine *eng, const char *path, bool abort, int timeout_ms,
                     struct sl_error *err)
{
    struct sl_error again;
    if (eng->unpark == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "this engine has no weights");
    if (eng->tiers.store != NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "reload: pages outside the pool belong to the weights that are loaded");
    const char *from = path != NULL ? path : eng->info.model_path;
    if (from[0] == '(') /* the bundled model has no path */
        from = "";
    pthread_mutex_lock(&eng->sleep_lock);
    bool was_awake = atomic_load(&eng->sleep_level) == 0;
    int rc = fall_asleep(eng, 2, abort, timeout_ms, err);
    if (rc == 0)
        rc = sleep_end(eng, from, err);
    if (rc != 0 && was_awake && sleep_end(eng, NULL, &again) != 0)
        sl_log(SL_LOG_ERROR, "the old weights cannot be loaded either: %s", again.msg);
    pthread_mutex_unlock(&eng->sleep_lock);
    return rc;
}
