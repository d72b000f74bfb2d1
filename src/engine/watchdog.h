/* SPDX-License-Identifier: MIT
 * watchdog.h - notices that requests are open and there is no progress.
 *
 * Progress is a step that landed, or the runner's report that it is further in the current one
 * (sl_runner.progress), so a step may take as long as it needs. Requests that arrive or are
 * cancelled are no progress. When there was none for the timeout, the state is written to the log
 * once, the engine says that it is not healthy and refuses new requests with SL_ESTALLED; what is
 * in flight stays. When there is progress again, or no request is open any more, it is healthy
 * again.
 *
 * A thread of its own looks every period; a clock that jumps between two looks (a process that was
 * stopped) counts as two periods. It takes the engine's turn lock to read the state. Nothing here
 * ends the process: its supervisor sees /health. sl_engine_destroy leaves a hanging thread behind.
 */
#ifndef SL_ENGINE_WATCHDOG_H
#define SL_ENGINE_WATCHDOG_H

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>

struct sl_engine;

enum sl_phase { SL_PHASE_ASLEEP, SL_PHASE_TURN, SL_PHASE_RUNNER }; /* of the engine thread */

struct sl_watchdog {
    uint64_t timeout_ns, period_ns; /* timeout 0: off */
    atomic_bool red;
    _Atomic uint64_t n_fired;
    atomic_bool stopping;
    /* of the thread that polls */
    uint64_t seen_moves, last_ns, still_ns;
    pthread_t thread;
    int wake_fd;
    bool started;
};

/* timeout_s: as in struct sl_engine_parts. */
void sl_watchdog_init(struct sl_watchdog *dog, int32_t timeout_s);
SL_MUST_CHECK int sl_watchdog_start(struct sl_engine *eng, struct sl_error *err);
void sl_watchdog_stop(struct sl_engine *eng); /* also when it was not started */
/* One look. Its thread calls it; a test with a clock of its own may, if no thread was started. */
void sl_watchdog_poll(struct sl_engine *eng);
/* The state of the engine to the log, as far as it can be read. */
void sl_watchdog_dump(struct sl_engine *eng);

#endif
