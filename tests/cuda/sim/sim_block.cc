/* SPDX-License-Identifier: MIT
 * sim_block.cc - runs the threads of a block and the blocks of a grid in an order drawn from the
 * seed, and says who waits for what when nobody can go on.
 */
#include "sim_internal.h"

#include <algorithm>

#include <sys/mman.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
sim_thread *sim_now;
sim_block *sim_now_block;

static thread_local sim_fiber host_fiber; /* of whichever thread runs the device */
static sim_grid *now_grid;

#define RED_ZONE       4096u
#define MAX_RESIDENT   3 /* blocks under way at once */
#define STAY_IN_WARP   16
#define YIELD_TO_BLOCK 32
#define POLL_TURNS     8 /* of blocks, before other streams have theirs */

struct sim_grid {
    sim_kernel k;
    std::vector<uint32_t> todo; /* clusters not begun, shuffled; taken from the back */
    std::vector<sim_block *> active;
    bool released;   /* the kernels before it have ended */
    bool waited;     /* a thread, in sl_grid_wait */
    bool polls;      /* threads look for what others have to do */
    size_t resident; /* blocks that may be under way, once released */
    size_t n_blocks;
};

/* Kept for the next block; never destroyed, so that its contents stay reachable at the end. */
static std::vector<sim_block *> &spare_blocks = *new std::vector<sim_block *>();

/* --- the threads of a block --- */

static thread_local bool runs_device; /* a thread of the device, on this thread of the host */

bool sim_runs_device()
{
    return runs_device;
}

static void set_current(sim_thread *t)
{
    sim_now = t;
    runs_device = t != nullptr;
    if (t)
        threadIdx = t->tid;
}

void sim_make_ready(sim_block *b, sim_thread *t)
{
    t->state = SIM_READY;
    b->warps[t->warp].ready |= 1u << t->lane;
    b->ready_warps |= 1u << t->warp;
}

static void make_unready(sim_block *b, sim_thread *t, sim_state state)
{
    sim_warp *w = &b->warps[t->warp];
    t->state = state;
    w->ready &= ~(1u << t->lane);
    if (!w->ready)
        b->ready_warps &= ~(1u << t->warp);
}

/* A set bit of m, which is not 0, by the block's policy. */
static int choose_bit(sim_block *b, uint32_t m)
{
    switch (b->order) {
    case SIM_ORDER_LOW:
        return __builtin_ctz(m);
    case SIM_ORDER_HIGH:
        return 31 - __builtin_clz(m);
    default:
        break;
    }
    int r = static_cast<int>(sim_rand() & 31);
    uint32_t rotated = m >> r | m << ((32 - r) & 31);
    return (__builtin_ctz(rotated) + r) & 31;
}

static const char *waits_for(const sim_thread *t, char *out, size_t n)
{
    switch (t->state) {
    case SIM_AT_COLLECTIVE:
        snprintf(out, n, "wait in %s with mask %#x at %s:%d", sim_kind_name(t->kind), t->wait_on,
                 sim_short_file(t->at.file), t->at.line);
        break;
    case SIM_AT_BARRIER:
        snprintf(out, n, "wait at barrier %u at %s:%d", t->wait_on, sim_short_file(t->at.file),
                 t->at.line);
        break;
    case SIM_AT_MBAR:
        snprintf(out, n, "wait for parity %u of the mbarrier at shared + %u at %s:%d", t->wait_on,
                 sim_smem_offset(t->wait_bar), sim_short_file(t->at.file), t->at.line);
        break;
    case SIM_AT_GRID_WAIT:
        snprintf(out, n, "wait in sl_grid_wait");
        break;
    case SIM_AT_CLUSTER:
        snprintf(out, n, "wait in sl_cluster_sync at %s:%d", sim_short_file(t->at.file),
                 t->at.line);
        break;
    case SIM_ENDED:
        snprintf(out, n, "have ended");
        break;
    case SIM_READY:
        snprintf(out, n, "could run");
        break;
    }
    return out;
}

/* Threads in index order, those with the same reason in one line. */
static std::string who_waits(sim_block *b)
{
    std::string all;
    char reason[256], last[256] = "";
    int from = 0;
    for (int i = 0; i <= b->n_threads; i++) {
        reason[0] = 0;
        if (i < b->n_threads)
            waits_for(&b->threads[i], reason, sizeof reason);
        if (i > 0 && strcmp(reason, last) != 0) {
            char line[320];
            snprintf(line, sizeof line, "\n  threads %d..%d %s", from, i - 1, last);
            all += line;
            from = i;
        }
        memcpy(last, reason, sizeof last);
    }
    for (const sim_mbar &m : b->mbars) {
        char line[320];
        snprintf(line, sizeof line,
                 "\n  mbarrier at shared + %u: phase %u, %u of %u arrivals missing, %lld bytes "
                 "outstanding",
                 sim_smem_offset(m.addr), m.phase, m.pending, m.count,
                 static_cast<long long>(m.tx));
        all += line;
    }
    return all;
}

static bool others_can_run(const sim_cluster *c, const sim_block *b)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->blocks[i] != b && !(c->ended >> i & 1) &&
            (c->blocks[i]->ready_warps || !c->blocks[i]->bulks.empty()))
            return true;
    return false;
}

/* The thread to run next, or null: the block has ended or waits for others. */
static sim_thread *choose(sim_block *b, int warp)
{
    if (b->n_ended == b->n_threads)
        return nullptr;
    while (!b->ready_warps && !b->bulks.empty())
        sim_bulk_land(b, sim_rand() % b->bulks.size());
    if (!b->bulks.empty() && sim_chance(16))
        sim_bulk_land(b, sim_rand() % b->bulks.size());
    if (!b->ready_warps) {
        if (b->n_grid_waiting && !b->grid->released)
            return nullptr;
        if (b->n_cluster_waiting && b->n_cluster_waiting + b->n_ended == b->n_threads)
            return nullptr;
        if (others_can_run(b->cluster, b)) /* and arrive at barriers here */
            return nullptr;
        sim_now = nullptr;
        sim_fail("deadlock%s", who_waits(b).c_str());
    }
    if (warp < 0 || !b->warps[warp].ready || sim_chance(STAY_IN_WARP)) {
        uint32_t m = b->ready_warps;
        if (b->order == SIM_ORDER_STARVE && (m & ~(1u << b->starved)))
            m &= ~(1u << b->starved);
        warp = choose_bit(b, m);
    }
    return &b->threads[warp * 32 + choose_bit(b, b->warps[warp].ready)];
}

static void switch_to(sim_thread *to, bool from_ends)
{
    sim_thread *from = sim_now;
    if (from == to)
        return;
    set_current(to);
    sim_fiber_switch(from ? &from->fiber : &host_fiber, to ? &to->fiber : &host_fiber, from_ends);
    set_current(from);
}

void sim_wait(sim_state state)
{
    sim_block *b = sim_now_block;
    make_unready(b, sim_now, state);
    switch_to(choose(b, sim_now->warp), false);
}

void sl_sim_preempt()
{
    if (!sim_now || !sim_chance(8))
        return;
    sim_block *b = sim_now_block;
    if (sim_chance(YIELD_TO_BLOCK) && b->grid->active.size() > 1)
        switch_to(nullptr, false); /* stays ready */
    else
        switch_to(choose(b, -1), false);
}

/* Some thread that can run, whatever the block's policy. */
static void switch_to_any(sim_block *b)
{
    if (!b->bulks.empty() && sim_chance(4))
        sim_bulk_land(b, sim_rand() % b->bulks.size());
    int warp = static_cast<int>(sim_rand() % static_cast<unsigned>(b->n_warps));
    while (!(b->ready_warps & 1u << warp))
        warp = (warp + 1) % b->n_warps;
    int lane = static_cast<int>(sim_rand() % 32);
    while (!(b->warps[warp].ready & 1u << lane))
        lane = (lane + 1) % 32;
    switch_to(&b->threads[warp * 32 + lane], false);
}

/* Or another block: a thread that asks again and again for what others have to do must not keep
 * them from it. */
void sl_sim_let_others()
{
    sim_block *b = sim_now_block;
    if (sim_chance(2) && b->grid->active.size() > 1)
        switch_to(nullptr, false);
    else
        switch_to_any(b);
}

/* Of a thread that looks for what another device will have written: others go on, those of other
 * devices too. */
void sl_sim_poll()
{
    sim_block *b = sim_now_block;
    b->grid->polls = true;
    if (sim_chance(YIELD_TO_BLOCK))
        switch_to(nullptr, false);
    else
        switch_to_any(b);
}

uint32_t sl_sim_active_mask()
{
    sim_block *b = sim_now_block;
    return b->warps[sim_now->warp].ready;
}

static void thread_main()
{
    sim_fiber_entered();
    sim_thread *t = sim_now;
    sim_block *b = sim_now_block;
    b->grid->k.call();
    if (!t->copies.empty())
        sim_fail("ended with asynchronous copies it did not wait for, the first from %s:%d",
                 sim_short_file(t->copies[0].at.file), t->copies[0].at.line);
    if (!t->stores.empty())
        sim_fail("ended with stores of boxes it did not wait for, the first from %s:%d",
                 sim_short_file(t->stores[0].at.file), t->stores[0].at.line);
    if (b->grid->k.pdl && !t->grid_waited)
        sim_fail("ended without sl_grid_wait, but the kernel may start before the one ahead of it "
                 "has ended");
    make_unready(b, t, SIM_ENDED);
    b->warps[t->warp].ended |= 1u << t->lane;
    b->n_ended++;
    sim_thread *next = choose(b, t->warp);
    switch_to(next, true);
    __builtin_unreachable();
}

/* --- barriers of the block --- */

static bool same_place(sl_sim_at a, sl_sim_at b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

static void check_barrier(sim_block *b, sim_barrier *bar, int id, int expected, sl_sim_at at)
{
    if (bar->expected != expected)
        sim_fail("barrier %d with %d threads at %s:%d, but others wait at it with %d at %s:%d", id,
                 expected, sim_short_file(at.file), at.line, bar->expected,
                 sim_short_file(bar->at.file), bar->at.line);
    /* __syncthreads is one place for all; a named barrier only for the lanes of a warp. */
    for (int i = 0; i < 32; i++) {
        const sim_thread *t = &b->threads[sim_now->warp * 32 + i];
        bool here = bar->here[t->index / 64] >> (t->index % 64) & 1;
        if (here && !same_place(t->at, at))
            sim_fail("lanes of a warp at different barriers: %s:%d and %s:%d",
                     sim_short_file(at.file), at.line, sim_short_file(t->at.file), t->at.line);
    }
    if (id == 0 && !same_place(bar->at, at))
        sim_fail("__syncthreads at %s:%d, but other threads wait in the one at %s:%d",
                 sim_short_file(at.file), at.line, sim_short_file(bar->at.file), bar->at.line);
}

void sl_sim_barrier(int id, int n_threads, sl_sim_at at)
{
    sim_block *b = sim_now_block;
    if (id < 0 || id > 15)
        sim_fail("barrier %d: there are 0..15", id);
    int expected = n_threads < 0 ? b->n_threads : n_threads;
    if (expected <= 0 || expected % 32 || expected > b->n_threads)
        sim_fail("barrier %d of %d threads in a block of %d", id, expected, b->n_threads);
    sim_barrier *bar = &b->bars[id];
    if (bar->arrived == 0) {
        bar->expected = expected;
        bar->at = at;
    }
    check_barrier(b, bar, id, expected, at);
    sim_thread *me = sim_now;
    me->at = at;
    me->wait_on = static_cast<uint32_t>(id);
    bar->here[me->index / 64] |= 1ull << (me->index % 64);
    if (++bar->arrived < expected) {
        sim_wait(SIM_AT_BARRIER);
        return;
    }
    for (int i = 0; i < b->n_threads; i++)
        if (i != static_cast<int>(me->index) && (bar->here[i / 64] >> (i % 64) & 1))
            sim_make_ready(b, &b->threads[i]);
    sim_race_join(b, bar->here);
    memset(bar->here, 0, sizeof bar->here);
    bar->arrived = 0;
    if (b->grid->active.size() > 1 && sim_chance(4))
        switch_to(nullptr, false);
    else
        switch_to(choose(b, -1), false);
}

/* All threads of all blocks of the cluster. */
void sl_sim_cluster_arrive(sl_sim_at at)
{
    sim_block *b = sim_now_block;
    sim_cluster *c = b->cluster;
    int n_threads = 0;
    if (c->n_ended > 0 || b->n_ended > 0)
        sim_fail("sl_cluster_sync at %s:%d, but other threads of the cluster have ended",
                 sim_short_file(at.file), at.line);
    for (uint32_t i = 0; i < c->n; i++)
        n_threads += c->blocks[i]->n_threads;
    sim_now->met = c->n_met;
    if (++c->n_arrived < n_threads)
        return;
    c->n_arrived = 0;
    c->n_met++;
    for (uint32_t i = 0; i < c->n; i++) {
        sim_block *other = c->blocks[i];
        uint64_t all[16];
        memset(all, 0xff, sizeof all);
        sim_race_join(other, all);
        other->n_cluster_waiting = 0;
        for (int k = 0; k < other->n_threads; k++)
            if (other->threads[k].state == SIM_AT_CLUSTER)
                sim_make_ready(other, &other->threads[k]);
    }
    if (b->grid->active.size() > 1 && sim_chance(2))
        switch_to(nullptr, false);
    else
        sl_sim_preempt();
}

void sl_sim_cluster_wait(sl_sim_at at)
{
    sim_block *b = sim_now_block;
    sl_sim_preempt();
    if (b->cluster->n_met != sim_now->met)
        return;
    sim_now->at = at;
    b->n_cluster_waiting++;
    sim_wait(SIM_AT_CLUSTER);
}

uint32_t sl_sim_cluster_rank()
{
    return sim_now_block->cluster_rank;
}

void *sl_sim_cluster_map(const void *p, uint32_t rank)
{
    sim_block *b = sim_now_block;
    if (rank >= b->cluster->n)
        sim_fail("block %u of a cluster of %u", rank, b->cluster->n);
    size_t at = static_cast<size_t>(static_cast<const char *>(p) - b->smem);
    if (at >= b->grid->k.smem)
        sim_fail("sl_cluster_map of %p, which is not shared memory", p);
    if (b->cluster->ended >> rank & 1)
        sim_fail("shared memory of block %u of a cluster, which has ended", rank);
    return b->cluster->blocks[rank]->smem + at;
}

void sl_sim_grid_wait()
{
    sim_thread *t = sim_now;
    t->grid_waited = true;
    sim_now_block->grid->waited = true;
    if (sim_now_block->grid->released)
        return;
    sim_now_block->n_grid_waiting++;
    sim_wait(SIM_AT_GRID_WAIT);
}

void sl_sim_grid_leave()
{
    sim_now->grid_waited = true;
}

void sl_sim_launch_dependents()
{
}

/* --- shared memory --- */

void *sl_sim_smem()
{
    return sim_now_block->smem;
}

uint32_t sim_smem_offset(const void *p)
{
    return static_cast<uint32_t>(static_cast<const char *>(p) - sim_now_block->smem);
}

uint32_t sl_sim_smem_addr(const void *p)
{
    size_t at = static_cast<size_t>(static_cast<const char *>(p) - sim_now_block->smem);
    if (at > sim_now_block->grid->k.smem)
        sim_fail("sl_smem_addr of %p, which is not shared memory", p);
    return static_cast<uint32_t>(at);
}

void sim_check_shared(const void *p, size_t n, size_t align, const char *what, sl_sim_at at)
{
    size_t off = static_cast<size_t>(static_cast<const char *>(p) - sim_now_block->smem);
    size_t size = sim_now_block->grid->k.smem;
    if (off > size || n > size - off)
        sim_fail("%s at %s:%d: %zu bytes at shared %+lld of %zu bytes of shared memory", what,
                 sim_short_file(at.file), at.line, n, static_cast<long long>(off), size);
    if (off % align)
        sim_fail("%s at %s:%d: shared + %zu is not aligned to %zu bytes", what,
                 sim_short_file(at.file), at.line, off, align);
}

static sim_block *make_block()
{
    sim_block *b = new sim_block();
    b->threads = new sim_thread[SIM_MAX_THREADS]();
    size_t size = RED_ZONE + SIM_SMEM_MAX + RED_ZONE;
    void *m = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        sim_fail("no memory for shared memory");
    b->smem = static_cast<char *>(m) + RED_ZONE;
    sim_poison(m, size);
    return b;
}

static sim_block *begin_block(sim_grid *g, uint32_t id)
{
    sim_block *b;
    if (spare_blocks.empty()) {
        b = make_block();
    } else {
        b = spare_blocks.back();
        spare_blocks.pop_back();
    }
    b->grid = g;
    b->idx = {id % g->k.grid.x, id / g->k.grid.x % g->k.grid.y, id / g->k.grid.x / g->k.grid.y};
    dim3 bd = g->k.block;
    b->n_threads = static_cast<int>(bd.x * bd.y * bd.z);
    b->n_warps = b->n_threads / 32;
    b->n_ended = b->n_grid_waiting = b->n_cluster_waiting = 0;
    static const sim_order orders[] = {SIM_ORDER_RANDOM, SIM_ORDER_RANDOM, SIM_ORDER_LOW,
                                       SIM_ORDER_HIGH, SIM_ORDER_STARVE};
    b->order = orders[sim_rand() % 5];
    b->starved = static_cast<int>(sim_rand() % static_cast<unsigned>(b->n_warps));
    b->ready_warps = 0;
    for (sim_barrier &bar : b->bars)
        bar = sim_barrier();
    b->mbars.clear();
    b->bulks.clear();
    for (int i = 0; i < b->n_threads; i++) {
        sim_thread *t = &b->threads[i];
        unsigned u = static_cast<unsigned>(i);
        if (i % 32 == 0) {
            b->warps[i / 32].ready = b->warps[i / 32].ended = 0;
            b->warps[i / 32].n_slots = 0;
        }
        t->tid = {u % bd.x, u / bd.x % bd.y, u / bd.x / bd.y};
        t->warp = static_cast<uint16_t>(i / 32);
        t->lane = static_cast<uint16_t>(i % 32);
        t->index = u;
        t->grid_waited = false;
        t->group = 0;
        t->copies.clear();
        t->store_group = 0;
        t->stores.clear();
        sim_fiber_make(&t->fiber, thread_main);
        sim_make_ready(b, t);
    }
    sim_unpoison(b->smem, g->k.smem);
    memset(b->smem, 0xff, g->k.smem);
    sim_race_begin(b, g->k.smem);
    g->active.push_back(b);
    return b;
}

/* The blocks of the next cluster, one when the kernel has none. */
static void begin_cluster(sim_grid *g)
{
    sim_cluster *c = new sim_cluster();
    uint32_t first = g->todo.back() * g->k.cluster;
    g->todo.pop_back();
    c->n = g->k.cluster;
    for (uint32_t i = 0; i < c->n; i++) {
        sim_block *b = begin_block(g, first + i);
        b->cluster = c;
        b->cluster_rank = i;
        c->blocks[i] = b;
    }
}

static void leave_cluster(sim_block *b)
{
    b->cluster->ended |= 1u << b->cluster_rank;
    if (++b->cluster->n_ended == b->cluster->n)
        delete b->cluster;
    b->cluster = nullptr;
}

/* Has what b was made with used again. */
static void give_back(sim_block *b)
{
    for (int i = 0; i < b->n_threads; i++)
        sim_fiber_free(&b->threads[i].fiber);
    sim_poison(b->smem, b->grid->k.smem);
    leave_cluster(b);
    spare_blocks.push_back(b);
}

/* Runs b until it ends, waits for others, or lets another block on. True: it ended. */
static bool run_block(sim_block *b)
{
    sim_now_block = b;
    blockIdx = b->idx;
    sim_thread *t = choose(b, -1);
    if (t)
        switch_to(t, false);
    sim_now_block = nullptr;
    if (b->n_ended < b->n_threads)
        return false;
    if (!b->bulks.empty()) {
        sim_now_block = b;
        sim_fail("the block ended with bulk copies under way, one from %s:%d",
                 sim_short_file(b->bulks[0].at.file), b->bulks[0].at.line);
    }
    give_back(b);
    return true;
}

/* --- grids --- */

sim_grid *sim_grid_start(const sim_kernel &k)
{
    sim_grid *g = new sim_grid();
    g->k = k;
    g->n_blocks = static_cast<size_t>(k.grid.x) * k.grid.y * k.grid.z;
    size_t n_clusters = g->n_blocks / k.cluster;
    g->todo.resize(n_clusters);
    for (size_t i = 0; i < n_clusters; i++)
        g->todo[i] = static_cast<uint32_t>(i);
    for (size_t i = n_clusters - 1; i > 0; i--)
        std::swap(g->todo[i], g->todo[sim_rand() % (i + 1)]);
    return g;
}

static void set_grid(sim_grid *g)
{
    if (!host_fiber.stack)
        sim_fiber_host(&host_fiber);
    now_grid = g;
    sim_reach(g ? g->k.device : -1);
    if (g) {
        gridDim = g->k.grid;
        blockDim = g->k.block;
    }
}

void sim_grid_run_ahead(sim_grid *g)
{
    set_grid(g);
    size_t n = sim_rand() % (MAX_RESIDENT + 1);
    for (size_t i = 0; i < n && !g->todo.empty(); i++) {
        size_t from = g->active.size();
        begin_cluster(g);
        for (size_t at = g->active.size(); at-- > from;)
            if (run_block(g->active[at]))
                g->active.erase(g->active.begin() + static_cast<long>(at));
    }
    set_grid(nullptr);
}

static void release(sim_grid *g)
{
    g->released = true;
    g->resident = 1 + sim_rand() % MAX_RESIDENT;
    for (sim_block *b : g->active)
        for (int i = 0; i < b->n_threads; i++)
            if (b->threads[i].state == SIM_AT_GRID_WAIT)
                sim_make_ready(b, &b->threads[i]);
}

bool sim_grid_go_on(sim_grid *g, size_t most)
{
    set_grid(g);
    if (!g->released)
        release(g);
    g->polls = false;
    for (int turns = 0; !g->active.empty() || !g->todo.empty();) {
        while (g->active.size() < g->resident && !g->todo.empty())
            begin_cluster(g);
        size_t i = sim_rand() % g->active.size();
        if (run_block(g->active[i])) {
            g->active[i] = g->active.back();
            g->active.pop_back();
        } else if (g->polls && ++turns == POLL_TURNS) {
            g->resident = std::max(g->resident, std::min(g->active.size() + 1, most));
            set_grid(nullptr);
            return false;
        }
    }
    if (g->k.pdl && !g->waited)
        sim_fail("all blocks have left: the kernel may end before the one ahead of it");
    set_grid(nullptr);
    delete g;
    return true;
}

void sim_grid_drop(sim_grid *g)
{
    /* Its blocks' stacks are cut off where they stand; nothing on them owns memory. */
    for (sim_block *b : g->active) {
        for (int i = 0; i < b->n_threads; i++)
            sim_unpoison(b->threads[i].fiber.stack, b->threads[i].fiber.stack_size);
        give_back(b);
    }
    delete g;
}

std::string sim_where()
{
    if (!now_grid)
        return "";
    char text[512];
    std::string name = sim_symbol(now_grid->k.fn);
    int n = snprintf(text, sizeof text, "kernel %s", name.c_str());
    if (sim_now_block)
        n += snprintf(text + n, sizeof text - static_cast<size_t>(n), ", block (%u, %u, %u)",
                      sim_now_block->idx.x, sim_now_block->idx.y, sim_now_block->idx.z);
    if (sim_now)
        snprintf(text + n, sizeof text - static_cast<size_t>(n), ", thread (%u, %u, %u)",
                 sim_now->tid.x, sim_now->tid.y, sim_now->tid.z);
    return text;
}
