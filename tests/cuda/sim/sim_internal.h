/* SPDX-License-Identifier: MIT
 * sim_internal.h - shared by the simulator's own files, which are built without sanitizers so that
 * they may look at poisoned memory; they check what they read for the kernels by hand.
 */
#ifndef SL_SIM_INTERNAL_H
#define SL_SIM_INTERNAL_H

#include "sim.h"
#include "sim_ptx.h"
#include "sim_tensor.h"

#include <string>
#include <vector>

/* Of the sanitizer's runtime, null when the program is linked without it. */
extern "C" {
void __attribute__((weak)) __asan_poison_memory_region(const volatile void *p, size_t n);
void __attribute__((weak)) __asan_unpoison_memory_region(const volatile void *p, size_t n);
void *__attribute__((weak)) __asan_region_is_poisoned(void *p, size_t n);
void __attribute__((weak))
__sanitizer_start_switch_fiber(void **fake_save, const void *bottom, size_t size);
void __attribute__((weak))
__sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
void __attribute__((weak)) __sanitizer_set_death_callback(void (*fn)());
void __attribute__((weak)) __sanitizer_print_stack_trace();
}

/* Ends the process: what is wrong, in which kernel, block and thread. */
[[noreturn]] void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string sim_where(); /* the running kernel, block and thread, or "" */
std::string sim_symbol(const void *pc);

#define SIM_DEVICES_MAX 8

uint64_t sim_rand();
static inline bool sim_chance(unsigned one_in)
{
    return sim_rand() % one_in == 0;
}

static inline void sim_poison(const void *p, size_t n)
{
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(p, n);
}
static inline void sim_unpoison(const void *p, size_t n)
{
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(p, n);
}
static inline bool sim_poisoned(const void *p, size_t n)
{
    return __asan_region_is_poisoned && __asan_region_is_poisoned(const_cast<void *>(p), n);
}

/* Memory that kernels may use: device allocations and pinned host memory. */
bool sim_is_mapped(const void *p, size_t n);
void sim_open_memory(); /* the device runs: its memory is there */
void sim_close_memory();
int sim_hide_memory(); /* while the host runs in between; gives what to show it with */
void sim_show_memory(int hidden);
void sim_reach(int device);
bool sim_add_peer(int device, int peer); /* false: it had access */
bool sim_device_alloc(void **p, size_t n, int device, const void *by);
bool sim_device_free(void *p);
bool sim_host_alloc(void **p, size_t n, const void *by);
bool sim_host_free(void *p);
bool sim_host_pin(void *p, size_t n, const void *by); /* memory that is the caller's */
bool sim_host_unpin(void *p);
bool sim_is_arena(const void *p);
bool sim_is_pinned(const void *p, size_t n);
size_t sim_device_total(); /* of each device */
size_t sim_device_used(int device);
void sim_free_all();

void sim_enter(); /* first use: reads the environment */
extern struct sl_sim_counts sim_count;
extern bool sim_check_leaks;

struct sim_kernel {
    const void *fn;
    dim3 grid, block;
    size_t smem;
    bool pdl; /* may start before the one ahead has ended */
    int device;
    uint32_t cluster; /* blocks along x that run at once and see each other's shared memory */
    std::function<void()> call;
};

struct sim_grid; /* a kernel under way */
sim_grid *sim_grid_start(const sim_kernel &k);
void sim_grid_run_ahead(sim_grid *g); /* some blocks, up to their sl_grid_wait */
/* Goes on with the rest, and frees g at the end of it. False: it is not there yet, and threads look
 * again and again for what others have to do. most: blocks under way at once, then. */
bool sim_grid_go_on(sim_grid *g, size_t most);
void sim_grid_drop(sim_grid *g); /* never runs it: the device broke */

/* Fibers. */
struct sim_fiber {
    void *sp;
    char *stack; /* null: the host's own stack */
    size_t stack_size;
    void *fake; /* ASan's */
};
#define SIM_STACK_SIZE (256u << 10)
void sim_fiber_host(sim_fiber *f);
void sim_fiber_make(sim_fiber *f, void (*entry)());
void sim_fiber_free(sim_fiber *f); /* another may have its stack */
void sim_fiber_switch(sim_fiber *from, sim_fiber *to, bool from_ends);
void sim_fiber_entered(); /* first thing on a new stack */

/* Threads of the running block. */
enum sim_state {
    SIM_READY,
    SIM_AT_COLLECTIVE,
    SIM_AT_BARRIER,
    SIM_AT_MBAR,
    SIM_AT_CLUSTER,
    SIM_AT_GRID_WAIT,
    SIM_ENDED,
};
struct sim_copy { /* cp.async */
    char *dst;
    const char *src; /* null: zeros */
    size_t n;
    uint32_t group;
    sl_sim_at at;
};
struct sim_store { /* cp.async.bulk.tensor to the matrix, not yet done */
    CUtensorMap map;
    const char *src;
    int32_t col, row;
    uint32_t group;
    sl_sim_at at;
};
struct sim_thread {
    sim_fiber fiber;
    uint3 tid;
    uint16_t warp, lane;
    uint32_t index;
    sim_state state;
    sl_sim_at at;     /* where it waits */
    uint32_t wait_on; /* mask, barrier id or parity */
    int kind;         /* of collective */
    const void *wait_bar;
    bool grid_waited;
    uint32_t met;   /* what the cluster's n_met was when it arrived */
    uint32_t group; /* the cp.async group being filled */
    std::vector<sim_copy> copies;
    uint32_t store_group; /* likewise of stores */
    std::vector<sim_store> stores;
};
struct sim_slot { /* a collective being gathered */
    uint32_t mask, arrived;
    sl_sim_kind kind;
    sl_sim_at at;
    sl_sim_part *part[32];
};
#define SIM_SLOTS 16
struct sim_warp {
    uint32_t ready;
    uint32_t ended;
    int n_slots;
    sim_slot slots[SIM_SLOTS];
};
struct sim_barrier {
    int expected, arrived;
    sl_sim_at at;
    uint64_t here[16]; /* threads, by index */
};
struct sim_mbar {
    uint64_t *addr;
    uint32_t count, pending;
    int64_t tx;
    uint32_t phase;
    sl_sim_at at;
    std::vector<uint32_t> arrived, ended; /* clocks of sim_race.cc: this phase's and the last's */
};
struct sim_bulk { /* cp.async.bulk under way */
    char *dst;
    const char *src;
    uint32_t n;
    uint64_t *bar;
    sl_sim_at at;
    uint32_t issuer, issued; /* thread (or SIM_ELSEWHERE), and its clock then */
    CUtensorMap map;         /* src is NULL: a box of it from (row, col) on */
    int32_t col, row;
};
#define SIM_ELSEWHERE UINT32_MAX /* in another block of the cluster */
enum sim_order { SIM_ORDER_RANDOM, SIM_ORDER_LOW, SIM_ORDER_HIGH, SIM_ORDER_STARVE };
#define SIM_CLUSTER_MAX 8
struct sim_block;
struct sim_cluster {
    sim_block *blocks[SIM_CLUSTER_MAX];
    uint32_t n, n_ended;
    uint32_t ended; /* a bit for each block */
    int n_arrived;  /* threads, at the barrier of all */
    uint32_t n_met; /* times that all have */
};
struct sim_block {
    sim_grid *grid;
    sim_cluster *cluster;
    uint32_t cluster_rank;
    int n_cluster_waiting;
    uint3 idx;
    int n_threads, n_warps, n_ended;
    int n_grid_waiting;
    sim_order order;
    int starved;
    uint32_t ready_warps;
    sim_thread *threads; /* SIM_MAX_THREADS */
    sim_warp warps[32];
    sim_barrier bars[16];
    std::vector<sim_mbar> mbars;
    std::vector<sim_bulk> bulks;
    struct sim_race *race;
    char *smem; /* 1024-aligned, red zones on both sides */
};
#define SIM_MAX_THREADS 1024
#define SIM_SMEM_MAX    (227u << 10)

extern sim_thread *sim_now;      /* the running thread, null on the host */
extern sim_block *sim_now_block; /* its block */
bool sim_runs_device();          /* on the calling thread of the host, not beside it */

void sim_wait(sim_state state); /* gives up the processor until somebody makes it ready */
void sim_make_ready(sim_block *b, sim_thread *t);
/* sim_race.cc: what orders accesses of shared memory. They do nothing in a program that was not
 * compiled for it. */
extern bool sim_race_on;
void sim_race_begin(sim_block *b, size_t smem);
void sim_race_join(sim_block *b, const uint64_t members[16]);
void sim_race_arrive(sim_mbar *m);
void sim_race_phase(sim_mbar *m);
void sim_race_waited(sim_mbar *m);
uint32_t sim_race_now();
void sim_race_landed(sim_block *b, sim_mbar *m, uint32_t t, uint32_t issued);
void sim_race_access(uint32_t me, const void *p, size_t n, bool write, const void *pc);
void sim_race_copy(const void *p, size_t n, const void *pc); /* by this thread, in bulk */
void sim_race_fence();

void sim_bulk_land(sim_block *b, size_t i);
const char *sim_kind_name(int kind);
uint32_t sim_smem_offset(const void *p);
void sim_check_shared(const void *p, size_t n, size_t align, const char *what, sl_sim_at at);
const char *sim_short_file(const char *file);

#endif
