/* SPDX-License-Identifier: MIT */
#include "engine/watchdog.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#define DEFAULT_TIMEOUT_S 120
#define LOOKS             16 /* in a timeout */
#define MAX_PERIOD_NS     1000000000u
#define MIN_PERIOD_NS     5000000u
#define MAX_SHOWN         32 /* sequences of a kind in the log */
#define LOCK_TRIES        100

void sl_watchdog_init(struct sl_watchdog *dog, int32_t timeout_s)
{
    memset(dog, 0, sizeof *dog);
    dog->wake_fd = -1;
    if (timeout_s < 0)
        return;
    uint64_t s = (uint64_t)(timeout_s > 0 ? timeout_s : DEFAULT_TIMEOUT_S);
    dog->timeout_ns = s * 1000000000u;
    dog->period_ns = SL_MAX(SL_MIN(dog->timeout_ns / LOOKS, MAX_PERIOD_NS), MIN_PERIOD_NS);
    SL_ASSERT(dog->period_ns < dog->timeout_ns);
}

/* ------------------------------------------------------------------ looking */

static uint64_t moves(struct sl_engine *eng)
{
    uint64_t n = atomic_load(&eng->n_moves);
    pthread_mutex_lock(&eng->runner_lock);
    if (eng->runner.progress != NULL)
        n += eng->runner.progress(eng->runner.ctx);
    pthread_mutex_unlock(&eng->runner_lock);
    return n;
}

static void fire(struct sl_engine *eng)
{
    struct sl_watchdog *dog = &eng->watchdog;
    atomic_fetch_add(&dog->n_fired, 1);
    atomic_store(&dog->red, true);
    sl_log(SL_LOG_ERROR,
           "watchdog: nothing has moved for %.1f s and %d requests are open: not healthy, new "
           "requests are refused",
           (double)dog->still_ns * 1e-9, atomic_load(&eng->n_open));
    sl_watchdog_dump(eng);
}

void sl_watchdog_poll(struct sl_engine *eng)
{
    struct sl_watchdog *dog = &eng->watchdog;
    uint64_t now = sl_now_ns(), n = moves(eng);
    uint64_t passed = dog->last_ns != 0 && now > dog->last_ns ? now - dog->last_ns : 0;
    bool open = atomic_load(&eng->n_open) > 0;
    SL_ASSERT(dog->timeout_ns > 0);
    dog->last_ns = now;
    if (!open || n != dog->seen_moves) {
        dog->seen_moves = n;
        dog->still_ns = 0;
        if (atomic_exchange(&dog->red, false))
            sl_log(SL_LOG_WARN, "watchdog: %s: healthy again",
                   open ? "something moves" : "no request is open any more");
        return;
    }
    dog->still_ns += SL_MIN(passed, 2 * dog->period_ns);
    if (dog->still_ns >= dog->timeout_ns && !atomic_load(&dog->red))
        fire(eng);
}

static void *watchdog_watch(void *arg)
{
    struct sl_engine *eng = arg;
    struct sl_watchdog *dog = &eng->watchdog;
    struct pollfd p = {.fd = dog->wake_fd, .events = POLLIN};
    SL_ASSERT(dog->wake_fd >= 0 && dog->period_ns >= MIN_PERIOD_NS); /* else it would spin */
    while (!atomic_load(&dog->stopping)) {
        int n = poll(&p, 1, (int)(dog->period_ns / 1000000u));
        (void)n; /* interrupted or timed out: the look says the same */
        sl_watchdog_poll(eng);
    }
    return NULL;
}

int sl_watchdog_start(struct sl_engine *eng, struct sl_error *err)
{
    struct sl_watchdog *dog = &eng->watchdog;
    if (dog->timeout_ns == 0)
        return 0;
    SL_ASSERT(!dog->started && dog->wake_fd < 0);
    dog->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (dog->wake_fd < 0)
        return sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    int rc = sl_thread_create(&dog->thread, watchdog_watch, eng, "sl-watchdog", err);
    dog->started = rc == 0;
    if (rc != 0)
        sl_watchdog_stop(eng);
    return rc;
}

void sl_watchdog_stop(struct sl_engine *eng)
{
    struct sl_watchdog *dog = &eng->watchdog;
    atomic_store(&dog->stopping, true);
    SL_ASSERT(!dog->started || dog->wake_fd >= 0);
    if (dog->started) {
        uint64_t one = 1;
        ssize_t n = sl_sys->write(dog->wake_fd, &one, sizeof one);
        (void)n; /* at worst it looks once more */
        pthread_join(dog->thread, NULL);
    }
    if (dog->wake_fd >= 0)
        sl_sys->close(dog->wake_fd);
    dog->wake_fd = -1;
    dog->started = false;
}

/* ------------------------------------------------------------------ the dump */

static void dump_seq(const struct sl_sched *s, const struct sl_seq *seq)
{
    char why[160] = "in the step that was planned last";
    const char *what = seq->state == SL_SEQ_RUNNING ? "running" : "waiting";
    if (seq->state == SL_SEQ_WAITING)
        sl_sched_why(s, seq, why, sizeof why);
    else if (sl_seq_held(seq))
        snprintf(why, sizeof why, "held until its last token is known");
    else if (seq->n_step == 0)
        snprintf(why, sizeof why, "to be planned");
    sl_log(
        SL_LOG_ERROR,
        "watchdog: %s %llu.%d: priority %d, %d + %d tokens of at most %d, %d computed, %d in the "
        "step, %d pending, %d pages (%d in the tree), %d times preempted: %s",
        what, (unsigned long long)seq->arrival, seq->idx, seq->priority, seq->n_prompt, seq->n_out,
        seq->n_prompt + seq->max_out, seq->n_computed, seq->n_step, seq->n_pending, seq->blocks.n,
        seq->n_published, seq->n_preempted, why);
}

static void dump_sequences(const struct sl_sched *s)
{
    int32_t n = 0;
    for (; n < SL_MIN(s->n_running, MAX_SHOWN); n++)
        dump_seq(s, s->running[n]);
    if (n < s->n_running)
        sl_log(SL_LOG_ERROR, "watchdog: and %d more running", s->n_running - n);
    n = 0;
    for (const struct sl_seq *seq = sl_wait_best(&s->wait); seq != NULL && n < MAX_SHOWN; n++) {
        dump_seq(s, seq);
        seq = sl_wait_next(seq);
    }
    if (n < s->wait.n)
        sl_log(SL_LOG_ERROR, "watchdog: and %d more waiting", s->wait.n - n);
}

static void dump_flights(const struct sl_engine *eng)
{
    for (int32_t i = 0; i < eng->n_flights; i++) {
        const struct sl_flight *f = &eng->flights[(eng->first_flight + i) % eng->max_flights];
        int32_t n_gone = 0;
        for (int32_t j = 0; j < f->n_seqs; j++)
            n_gone += f->seqs[j].rs == NULL;
        sl_log(SL_LOG_ERROR,
               "watchdog: step in flight %d of %d: %d sequences (%d of them ended), %d tokens, %d "
               "rows of logits",
               i + 1, eng->n_flights, f->n_seqs, n_gone, f->batch.n_tokens, f->batch.n_logits);
    }
}

bool sl_engine_lock_turn(struct sl_engine *eng)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (pthread_mutex_trylock(&eng->turn_lock) == 0)
            return true;
        (void)poll(NULL, 0, 1);
    }
    return false;
}

void sl_watchdog_dump(struct sl_engine *eng)
{
    static const char *const phases[] = {
        [SL_PHASE_ASLEEP] = "asleep or between two turns",
        [SL_PHASE_TURN] = "in its own code",
        [SL_PHASE_RUNNER] = "in a step of the runner",
    };
    const struct sl_sched *s = &eng->sched;
    const struct sl_kv *kv = &eng->kv;
    sl_log(SL_LOG_ERROR,
           "watchdog: %d requests open, %d of them never scheduled, %d not even taken; %llu steps "
           "landed; the engine thread is %s",
           atomic_load(&eng->n_open), atomic_load(&eng->n_queued), sl_inbox_count(&eng->inbox),
           (unsigned long long)atomic_load(&eng->n_moves), phases[atomic_load(&eng->phase)]);
    if (!sl_engine_lock_turn(eng)) { /* only what is atomic can be read */
        sl_log(SL_LOG_ERROR, "watchdog: its turn does not end, so its state cannot be read");
        return;
    }
    sl_log(
        SL_LOG_ERROR,
        "watchdog: pages: %d = %d free + %d cached + %d owned; %d of %d seats taken, %d waiting; "
        "last plan: %d sequences, %d of %d tokens",
        kv->nodes.n_ids, kv->nodes.n_free, sl_kv_n_cached(kv),
        kv->nodes.n_ids - kv->nodes.n_free - sl_kv_n_cached(kv), s->n_running, s->cfg.max_seqs,
        s->wait.n, s->n_plan, s->n_plan_tokens, s->cfg.max_tokens);
    dump_flights(eng);
    dump_sequences(s);
    pthread_mutex_unlock(&eng->turn_lock);
}
