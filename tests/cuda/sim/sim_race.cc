/* SPDX-License-Identifier: MIT
 * sim_race.cc - finds accesses of shared memory that no barrier orders, in whatever order the
 * threads happened to run.
 *
 * Kernels are compiled with -fsanitize=thread but linked without its runtime: this file has the
 * functions that the compiler calls for every access. Each thread has a vector clock; barriers,
 * __syncwarp and mbarriers join clocks; each byte of shared memory remembers who wrote it last and
 * two who read it. Shuffles, votes and mma order no memory, as CUDA says. Atomics are left out, and
 * so is global memory. Bulk copies count as writes of the thread that issues them, when it issues
 * them, but of another proxy, wgmma's reads too: what threads read or stored there by themselves
 * before is ordered only if each of them called sl_fence_proxy_async since, which the second half
 * of a clock remembers.
 */
#include "sim_internal.h"

#include <cstdio>
#include <dlfcn.h>

struct byte_state {
    uint16_t writer, reader[2];
    bool copied, multiplied[2]; /* the writer is a bulk copy, the reader wgmma */
    uint32_t wrote, read[2];    /* their clocks; 0: nobody */
    const void *write_pc, *read_pc[2];
};
struct sim_race {
    uint32_t n, width; /* threads; 2 n */
    uint32_t *clock;   /* [n][2][n]: what is known of each thread, and when it last had a fence */
    byte_state *bytes; /* of shared memory */
};

bool sim_race_on; /* something was compiled for it */
static bool in_atomic, in_wgmma;

/* A second write by the same line is no fault when it stores what is there already: seen once the
 * store has happened, at the next access of anybody. */
struct same_write {
    const char *byte;
    char was;
    size_t off;
    uint32_t me, other;
    const void *pc;
};
static std::vector<same_write> same_writes;

static uint32_t *clock_of(sim_block *b, uint32_t t)
{
    return b->race->clock + static_cast<size_t>(t) * b->race->width;
}

void sim_race_begin(sim_block *b, size_t smem)
{
    if (!sim_race_on)
        return;
    same_writes.clear();
    if (!b->race) {
        b->race = new sim_race();
        b->race->clock = new uint32_t[2 * SIM_MAX_THREADS * SIM_MAX_THREADS];
        b->race->bytes = new byte_state[SIM_SMEM_MAX];
    }
    sim_race *r = b->race;
    r->n = static_cast<uint32_t>(b->n_threads);
    r->width = 2 * r->n;
    memset(r->clock, 0, sizeof(uint32_t) * r->n * r->width);
    memset(static_cast<void *>(r->bytes), 0, sizeof(byte_state) * smem);
    for (uint32_t t = 0; t < r->n; t++)
        clock_of(b, t)[t] = 1;
}

/* --- what orders accesses --- */

static void join(uint32_t *into, const uint32_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        into[i] = into[i] > from[i] ? into[i] : from[i];
}

void sim_race_join(sim_block *b, const uint64_t members[16])
{
    if (!sim_race_on)
        return;
    sim_race *r = b->race;
    std::vector<uint32_t> all(r->width);
    for (uint32_t t = 0; t < r->n; t++)
        if (members[t / 64] >> (t % 64) & 1)
            join(all.data(), clock_of(b, t), r->width);
    for (uint32_t t = 0; t < r->n; t++)
        if (members[t / 64] >> (t % 64) & 1) {
            memcpy(clock_of(b, t), all.data(), sizeof(uint32_t) * r->width);
            clock_of(b, t)[t]++;
        }
}

void sim_race_arrive(sim_mbar *m)
{
    if (!sim_race_on)
        return;
    sim_race *r = sim_now_block->race;
    uint32_t *mine = clock_of(sim_now_block, sim_now->index);
    m->arrived.resize(r->width);
    join(m->arrived.data(), mine, r->width);
    mine[sim_now->index]++;
}

void sim_race_phase(sim_mbar *m)
{
    if (!sim_race_on)
        return;
    m->arrived.resize(sim_now_block->race->width);
    m->ended = m->arrived;
    std::fill(m->arrived.begin(), m->arrived.end(), 0u);
}

void sim_race_waited(sim_mbar *m)
{
    if (sim_race_on && !m->ended.empty())
        join(clock_of(sim_now_block, sim_now->index), m->ended.data(), m->ended.size());
}

void sim_race_fence()
{
    if (!sim_race_on)
        return;
    uint32_t *mine = clock_of(sim_now_block, sim_now->index), me = sim_now->index;
    mine[sim_now_block->race->n + me] = mine[me];
    mine[me]++;
}

uint32_t sim_race_now()
{
    return sim_race_on ? clock_of(sim_now_block, sim_now->index)[sim_now->index] : 0;
}

/* A bulk copy that thread t issued at its time `issued` has landed. */
void sim_race_landed(sim_block *b, sim_mbar *m, uint32_t t, uint32_t issued)
{
    if (!sim_race_on)
        return;
    m->arrived.resize(b->race->width);
    m->arrived[t] = m->arrived[t] > issued ? m->arrived[t] : issued;
}

/* --- accesses --- */

static std::string place(const void *pc)
{
    Dl_info info;
    char cmd[512], line[512] = "";
    if (!pc || !dladdr(pc, &info))
        return "a copy";
    size_t off = static_cast<size_t>(static_cast<const char *>(pc) -
                                     static_cast<const char *>(info.dli_fbase)) -
                 1;
    snprintf(cmd, sizeof cmd, "addr2line -Cspe %s %#zx 2>/dev/null", info.dli_fname, off);
    FILE *f = popen(cmd, "r");
    if (f && fgets(line, sizeof line, f))
        line[strcspn(line, "\n")] = 0;
    if (f)
        pclose(f);
    return line[0] ? line : sim_symbol(pc);
}

[[noreturn]] static void found(size_t off, uint32_t me, const char *mine, const void *my_pc,
                               uint32_t other, const char *others, const void *other_pc)
{
    sim_fail("race on shared + %zu: thread %u %s it at %s, thread %u %s it at %s, and nothing "
             "orders the two",
             off, other, others, place(other_pc).c_str(), me, mine, place(my_pc).c_str());
}

/* A copy or wgmma accesses what thread `other` has accessed itself at its time `when`: was there a
 * fence? */
static void check_proxy(size_t off, uint32_t me, const char *mine, const void *my_pc,
                        uint32_t other, uint32_t when, const char *others, const void *other_pc)
{
    const uint32_t *fences = clock_of(sim_now_block, me) + sim_now_block->race->n;
    if (when > fences[other])
        sim_fail("race on shared + %zu: thread %u %s it at %s, thread %u %s it at %s, and the "
                 "former had no sl_fence_proxy_async in between",
                 off, other, others, place(other_pc).c_str(), me, mine, place(my_pc).c_str());
}

static void check_write(byte_state *s, size_t off, uint32_t me, const uint32_t *clock, bool copied,
                        const void *pc)
{
    for (int i = 0; i < 2; i++) {
        if (s->reader[i] != me && s->read[i] > clock[s->reader[i]])
            found(off, me, "writes", pc, s->reader[i], "read", s->read_pc[i]);
        if (copied && !s->multiplied[i])
            check_proxy(off, me, "copies to", pc, s->reader[i], s->read[i], "read", s->read_pc[i]);
    }
    if (copied && !s->copied)
        check_proxy(off, me, "copies to", pc, s->writer, s->wrote, "wrote", s->write_pc);
    s->writer = static_cast<uint16_t>(me);
    s->copied = copied;
    s->wrote = clock[me];
    s->write_pc = pc;
    s->read[0] = s->read[1] = 0;
}

static void note_read(byte_state *s, uint32_t me, const uint32_t *clock, const void *pc)
{
    int i = s->reader[0] == me || s->read[0] <= clock[s->reader[0]]   ? 0
            : s->reader[1] == me || s->read[1] <= clock[s->reader[1]] ? 1
                                                                      : sim_rand() & 1;
    if (in_wgmma && !s->copied)
        check_proxy(static_cast<size_t>(s - sim_now_block->race->bytes), me, "multiplies", pc,
                    s->writer, s->wrote, "wrote", s->write_pc);
    s->reader[i] = static_cast<uint16_t>(me);
    s->multiplied[i] = in_wgmma;
    s->read[i] = clock[me];
    s->read_pc[i] = pc;
}

static void check_same_writes()
{
    for (const same_write &w : same_writes)
        if (*w.byte != w.was)
            found(w.off, w.me, "writes", w.pc, w.other, "wrote", w.pc);
    same_writes.clear();
}

static void accessed(uint32_t me, const void *p, size_t n, bool write, bool copied, const void *pc)
{
    if (!sim_race_on || !sim_now || in_atomic)
        return;
    sim_block *b = sim_now_block;
    size_t off = static_cast<size_t>(static_cast<const char *>(p) - b->smem);
    if (off >= SIM_SMEM_MAX)
        return;
    check_same_writes();
    const uint32_t *clock = clock_of(b, me);
    for (size_t i = off; i < off + n && i < SIM_SMEM_MAX; i++) {
        byte_state *s = &b->race->bytes[i];
        bool unordered = s->writer != me && s->wrote > clock[s->writer];
        if (unordered && write && pc == s->write_pc)
            same_writes.push_back({b->smem + i, b->smem[i], i, me, s->writer, pc});
        else if (unordered)
            found(i, me, write ? "writes" : "reads", pc, s->writer, "wrote", s->write_pc);
        if (write)
            check_write(s, i, me, clock, copied, pc);
        else
            note_read(s, me, clock, pc);
    }
}

void sim_race_access(uint32_t me, const void *p, size_t n, bool write, const void *pc)
{
    accessed(me, p, n, write, false, pc);
}

void sim_race_copy(const void *p, size_t n, const void *pc)
{
    if (sim_now)
        accessed(sim_now->index, p, n, true, true, pc);
}

void sl_sim_by_wgmma(bool begin)
{
    in_wgmma = begin;
}

void sl_sim_atomic(bool begin)
{
    in_atomic = begin;
}

/* --- what the compiler calls --- */

#define ACCESS(p, n, write)                                                            \
    do {                                                                               \
        if (sim_now && sim_runs_device())                                              \
            sim_race_access(sim_now->index, p, n, write, __builtin_return_address(0)); \
    } while (0)
#define HOOKS(n)                            \
    void __tsan_read##n(void *p)            \
    {                                       \
        ACCESS(p, n, false);                \
    }                                       \
    void __tsan_write##n(void *p)           \
    {                                       \
        ACCESS(p, n, true);                 \
    }                                       \
    void __tsan_unaligned_read##n(void *p)  \
    {                                       \
        ACCESS(p, n, false);                \
    }                                       \
    void __tsan_unaligned_write##n(void *p) \
    {                                       \
        ACCESS(p, n, true);                 \
    }                                       \
    void __tsan_volatile_read##n(void *p)   \
    {                                       \
        ACCESS(p, n, false);                \
    }                                       \
    void __tsan_volatile_write##n(void *p)  \
    {                                       \
        ACCESS(p, n, true);                 \
    }

#define ATOMICS(bits, T)                                                                           \
    T __tsan_atomic##bits##_load(const T *p, int)                                                  \
    {                                                                                              \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    void __tsan_atomic##bits##_store(T *p, T v, int)                                               \
    {                                                                                              \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    T __tsan_atomic##bits##_exchange(T *p, T v, int)                                               \
    {                                                                                              \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    T __tsan_atomic##bits##_fetch_add(T *p, T v, int)                                              \
    {                                                                                              \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                         \
    }                                                                                              \
    T __tsan_atomic##bits##_fetch_sub(T *p, T v, int)                                              \
    {                                                                                              \
        return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                         \
    }                                                                                              \
    bool __tsan_atomic##bits##_compare_exchange_strong(T *p, T *want, T v, int, int)               \
    {                                                                                              \
        return __atomic_compare_exchange_n(p, want, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }                                                                                              \
    bool __tsan_atomic##bits##_compare_exchange_weak(T *p, T *want, T v, int, int)                 \
    {                                                                                              \
        return __atomic_compare_exchange_n(p, want, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }

#pragma GCC diagnostic ignored "-Wmissing-declarations"
extern "C" {
void __tsan_init()
{
    sim_race_on = true;
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit()
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
void __tsan_read_range(void *p, unsigned long n)
{
    ACCESS(p, n, false);
}
void __tsan_write_range(void *p, unsigned long n)
{
    ACCESS(p, n, true);
}
void *__tsan_memcpy(void *d, const void *s, size_t n)
{
    ACCESS(s, n, false);
    ACCESS(d, n, true);
    return memcpy(d, s, n);
}
void *__tsan_memmove(void *d, const void *s, size_t n)
{
    ACCESS(s, n, false);
    ACCESS(d, n, true);
    return memmove(d, s, n);
}
void *__tsan_memset(void *d, int v, size_t n)
{
    ACCESS(d, n, true);
    return memset(d, v, n);
}
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
ATOMICS(8, uint8_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
}
