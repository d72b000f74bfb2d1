/* SPDX-License-Identifier: MIT */
#include "base/meet.h"

#include "base/err.h"
#include "base/sys.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Time stamp ticks: 150 to 300 microseconds, as for the threads of a pool (cpu/pool.c). */
#define SPIN_TICKS 600000u

void sl_meet_init(struct sl_meet *m, int n)
{
    SL_ASSERT(n >= 1);
    *m = (struct sl_meet){.spin_ticks = n <= sl_cpu_count() ? SPIN_TICKS : 0};
    atomic_init(&m->n, (uint32_t)n);
}

static bool spin(const struct sl_meet *m, uint32_t round)
{
    const uint64_t start = __builtin_ia32_rdtsc();
    while (m->spin_ticks != 0 && __builtin_ia32_rdtsc() - start < m->spin_ticks) {
        if (atomic_load_explicit(&m->round, memory_order_acquire) != round)
            return true;
        __builtin_ia32_pause();
    }
    return false;
}

/* Sleepers are counted before the round is read again, and looked for after it was changed, both
 * sequentially consistent: a sleeper sees the new round, or is seen. */
void sl_meet_wait(struct sl_meet *m)
{
    const uint32_t round = atomic_load(&m->round);
    if (atomic_fetch_add(&m->n_here, 1) + 1 == atomic_load(&m->n)) {
        atomic_store(&m->n_here, 0); /* nobody of the next round is here before the round changes */
        atomic_store(&m->round, round + 1);
        if (atomic_load(&m->n_sleeping) != 0)
            syscall(SYS_futex, &m->round, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        return;
    }
    if (spin(m, round))
        return;
    atomic_fetch_add(&m->n_sleeping, 1);
    while (atomic_load(&m->round) == round)
        syscall(SYS_futex, &m->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    atomic_fetch_sub(&m->n_sleeping, 1);
}
