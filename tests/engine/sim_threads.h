/* SPDX-License-Identifier: MIT
 * sim_threads.h - the threads of the server as fibers: HTTP threads and those that prepare large
 * requests. A fiber runs until it waits, for the event library or on a condition, and goes on when
 * the world resumes it, in any order and also without a reason, as a condition may. Between two
 * waits nothing interleaves; that is what the thread sanitizer looks at, with real threads.
 */
#ifndef SL_TESTS_SIM_THREADS_H
#define SL_TESTS_SIM_THREADS_H

#include "engine/sim_kernel.h"

#include <ucontext.h>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#elif defined __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#define MAX_FIBERS  8
#define FIBER_STACK (256u << 10)

struct fiber {
    ucontext_t context;
    char *stack;
    void *(*fn)(void *arg);
    void *arg;
    bool live, ended;
    int efd; /* waits for these events, -1: does not */
    uint64_t end_ns;
    void *fake_stack, *tsan;
};

static struct {
    struct fiber list[MAX_FIBERS];
    struct fiber *now; /* NULL: the main thread */
    ucontext_t main;
    void *main_stack, *fake_stack, *tsan;
    size_t main_bytes;
} fibers;

enum { NOISE_RESUME = 70 };

/* ------------------------------------------------------------------ switching */

static void enter_fiber(struct fiber *f)
{
    fibers.now = f;
    sim->own = false;
#if defined __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&fibers.fake_stack, f->stack, FIBER_STACK);
#elif defined __SANITIZE_THREAD__
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    swapcontext(&fibers.main, &f->context);
#if defined __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fibers.fake_stack, NULL, NULL);
#endif
    sim->own = true;
    fibers.now = NULL;
}

static void leave_fiber(struct fiber *f)
{
#if defined __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(f->ended ? NULL : &f->fake_stack, fibers.main_stack,
                                   fibers.main_bytes);
#elif defined __SANITIZE_THREAD__
    __tsan_switch_to_fiber(fibers.tsan, 0);
#endif
    swapcontext(&f->context, &fibers.main);
#if defined __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(f->fake_stack, NULL, NULL);
#endif
}

static void fiber_main(void)
{
    struct fiber *f = fibers.now;
#if defined __SANITIZE_ADDRESS__
    const void *bottom;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &fibers.main_bytes);
    fibers.main_stack = (void *)(uintptr_t)bottom;
#endif
    f->fn(f->arg);
    f->ended = true;
    leave_fiber(f);
}

/* ------------------------------------------------------------------ what threads call */

static int vk_thread_create(pthread_t *t, void *(*fn)(void *arg), void *arg)
{
    if (now_and_then(sim, NOISE_RESUME, 1)) {
        sim->no_thread = true;
        return EAGAIN;
    }
    for (int i = 0; i < MAX_FIBERS; i++) {
        struct fiber *f = &fibers.list[i];
        if (f->live)
            continue;
        char *stack = f->stack;
        void *tsan = f->tsan;
        *f = (struct fiber){.stack = stack, .tsan = tsan, .fn = fn, .arg = arg, .efd = -1};
        f->live = true;
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = f->stack;
        f->context.uc_stack.ss_size = FIBER_STACK;
        makecontext(&f->context, fiber_main, 0);
        *t = (pthread_t)(i + 1);
        return 0;
    }
    violation(sim, "more threads than the simulator has");
}

int pthread_setname_np(pthread_t t, const char *name)
{
    (void)t;
    (void)name;
    return 0;
}

static void world_turn(struct world *w);

int pthread_join(pthread_t t, void **result)
{
    struct fiber *f = &fibers.list[(size_t)t - 1];
    (void)result;
    if ((size_t)t < 1 || (size_t)t > MAX_FIBERS || !f->live)
        violation(sim, "a thread is joined that does not run");
    sim->own = true;
    for (int i = 0; !f->ended; i++) {
        if (i > 1000000)
            violation(sim, "I7: a thread that is joined does not come to an end");
        enter_fiber(f);
        if (!f->ended)
            world_turn(sim);
    }
    sim->own = false;
    f->live = false;
    return 0;
}

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    (void)cond;
    if (fibers.now == NULL)
        violation(sim, "the first thread waits on a condition");
    pthread_mutex_unlock(lock);
    leave_fiber(fibers.now);
    return pthread_mutex_lock(lock);
}

/* ------------------------------------------------------------------ what the world does */

/* A fiber waits for events: until there are some, or the time has come. */
static int fiber_epoll_wait(int efd, struct epoll_event *events, int max, uint64_t end)
{
    struct fiber *f = fibers.now;
    int n;
    f->efd = efd;
    f->end_ns = end;
    while ((n = collect(efd, events, max)) == 0 && virtual_ns < end)
        leave_fiber(f);
    f->efd = -1;
    return n;
}

static bool fiber_ready(const struct fiber *f)
{
    struct epoll_event events[N_FDS];
    if (!f->live || f->ended || f->efd < 0)
        return false;
    return virtual_ns >= f->end_ns || collect(f->efd, events, N_FDS) > 0;
}

/* In any order; not everybody gets the processor every time. */
static void resume_fibers(struct world *w, bool all)
{
    int first = noise(w, NOISE_RESUME, MAX_FIBERS);
    for (int i = 0; i < MAX_FIBERS && w->serving; i++) {
        struct fiber *f = &fibers.list[(first + i) % MAX_FIBERS];
        if (f->live && !f->ended && (all || !now_and_then(w, NOISE_RESUME, 30)))
            enter_fiber(f);
    }
}

static bool any_fiber_ready(void)
{
    for (int i = 0; i < MAX_FIBERS; i++)
        if (fiber_ready(&fibers.list[i]))
            return true;
    return false;
}

static uint64_t first_deadline(uint64_t end)
{
    for (int i = 0; i < MAX_FIBERS; i++) {
        const struct fiber *f = &fibers.list[i];
        if (f->live && !f->ended && f->efd >= 0)
            end = SL_MIN(end, f->end_ns);
    }
    return end;
}

static int n_fibers(void)
{
    int n = 0;
    for (int i = 0; i < MAX_FIBERS; i++)
        n += fibers.list[i].live;
    return n;
}

static void fibers_install(void)
{
    for (int i = 0; i < MAX_FIBERS; i++) {
        fibers.list[i].stack = malloc(FIBER_STACK);
#if defined __SANITIZE_THREAD__
        fibers.list[i].tsan = __tsan_create_fiber(0);
#endif
    }
#if defined __SANITIZE_THREAD__
    fibers.tsan = __tsan_get_current_fiber();
#endif
    virtual_sys.thread_create = vk_thread_create;
}

static void fibers_remove(void)
{
    for (int i = 0; i < MAX_FIBERS; i++)
        free(fibers.list[i].stack);
}

#endif
