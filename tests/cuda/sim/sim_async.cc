/* SPDX-License-Identifier: MIT
 * sim_async.cc - asynchronous copies and mbarriers. A copy poisons its target when it is issued and
 * reads its source when it lands: for cp.async mostly at the wait, for bulk copies at some random
 * time before the wait on their barrier can end.
 */
#include "sim_internal.h"
#include "sim_ptx_fp8.h"

#include "cuda/gemm/weight.h"

#define MBAR_MAGIC 0x534c4d4241523a29ull /* what memory holds where a barrier lives */

static void check_source(const void *src, size_t n, const char *what, sl_sim_at at)
{
    const size_t align = n < 16 ? n : 16;
    if (reinterpret_cast<uintptr_t>(src) % align)
        sim_fail("%s at %s:%d: source %p is not aligned to %zu bytes", what,
                 sim_short_file(at.file), at.line, src, align);
    if (!sim_is_mapped(src, n) || sim_poisoned(src, n))
        sim_fail("%s at %s:%d: %zu bytes at %p are not device memory", what,
                 sim_short_file(at.file), at.line, n, src);
}

static void hide(void *dst, size_t n)
{
    memset(dst, 0xff, n);
    if (n >= 16) /* less has neighbours in the same eight bytes */
        sim_poison(dst, n);
}

/* --- cp.async --- */

static void land(sim_copy *c)
{
    sim_unpoison(c->dst, c->n);
    if (!c->src) {
        memset(c->dst, 0, c->n);
        return;
    }
    check_source(c->src, c->n, "sl_cp_async", c->at);
    memcpy(c->dst, c->src, c->n);
}

/* src: nullptr for zeros. */
static void copy(void *dst, const void *src, size_t n, const void *pc, sl_sim_at at)
{
    sim_check_shared(dst, n, n, "sl_cp_async", at);
    if (src)
        check_source(src, n, "sl_cp_async", at);
    sim_copy c = {static_cast<char *>(dst), static_cast<const char *>(src), n, sim_now->group, at};
    sim_race_access(sim_now->index, dst, n, true, pc);
    hide(dst, n);
    if (sim_chance(8)) {
        land(&c);
        c.dst = nullptr; /* still to be waited for */
    }
    sim_now->copies.push_back(c);
}

void sl_sim_cp_async(void *dst, const void *src, bool pred, sl_sim_at at)
{
    copy(dst, pred ? src : nullptr, 16, __builtin_return_address(0), at);
}

void sl_sim_cp_async4(void *dst, const void *src, sl_sim_at at)
{
    copy(dst, src, 4, __builtin_return_address(0), at);
}

void sl_sim_cp_commit()
{
    sim_now->group++;
}

void sl_sim_cp_wait(int n)
{
    sim_thread *t = sim_now;
    size_t kept = 0;
    for (sim_copy &c : t->copies) {
        /* groups 0 .. group - 1 are committed; wait_group 0 does not cover what no commit ended */
        if (c.group + static_cast<uint32_t>(n) < t->group) {
            if (c.dst)
                land(&c);
        } else {
            t->copies[kept++] = c;
        }
    }
    t->copies.resize(kept);
}

/* --- mbarriers --- */

static sim_mbar *find_mbar(uint64_t *bar, const char *what, sl_sim_at at)
{
    sim_check_shared(bar, 8, 8, what, at);
    for (sim_mbar &m : sim_now_block->mbars)
        if (m.addr == bar) {
            if (*bar != MBAR_MAGIC)
                sim_fail("%s at %s:%d: the mbarrier at shared + %u was overwritten", what,
                         sim_short_file(at.file), at.line, sim_smem_offset(bar));
            return &m;
        }
    sim_fail("%s at %s:%d: no mbarrier was initialised at shared + %u", what,
             sim_short_file(at.file), at.line, sim_smem_offset(bar));
}

void sl_sim_mbar_init(uint64_t *bar, uint32_t count, sl_sim_at at)
{
    sim_check_shared(bar, 8, 8, "sl_mbar_init", at);
    if (count == 0 || count >= 1u << 20)
        sim_fail("sl_mbar_init at %s:%d: %u arrivals", sim_short_file(at.file), at.line, count);
    sim_mbar fresh = {bar, count, count, 0, 0, at, {}, {}};
    *bar = MBAR_MAGIC;
    for (sim_mbar &m : sim_now_block->mbars)
        if (m.addr == bar) {
            m = fresh;
            return;
        }
    sim_now_block->mbars.push_back(fresh);
}

void sl_sim_mbar_fence()
{
}

static void complete_phase(sim_mbar *m)
{
    if (m->pending || m->tx)
        return;
    sim_block *b = sim_now_block;
    sim_race_phase(m);
    m->phase++;
    m->pending = m->count;
    for (int i = 0; i < b->n_threads; i++) {
        sim_thread *t = &b->threads[i];
        if (t->state == SIM_AT_MBAR && t->wait_bar == m->addr && (m->phase & 1) != t->wait_on)
            sim_make_ready(b, t);
    }
}

/* In the block of m, which is sim_now_block. */
static void arrive(sim_mbar *m, uint32_t tx, const char *what, sl_sim_at at)
{
    m->tx += tx;
    if (m->pending == 0)
        sim_fail("%s at %s:%d: more than %u arrivals in phase %u of the mbarrier at shared + %u",
                 what, sim_short_file(at.file), at.line, m->count, m->phase,
                 sim_smem_offset(m->addr));
    m->pending--;
    sim_race_arrive(m);
    complete_phase(m);
}

void sl_sim_mbar_arrive(uint64_t *bar, uint32_t tx, sl_sim_at at)
{
    const char *what = tx ? "sl_mbar_expect_tx" : "sl_mbar_arrive";
    arrive(find_mbar(bar, what, at), tx, what, at);
    sl_sim_preempt();
}

/* What the thread has asked for lands now, as it may. */
void sl_sim_cp_arrive(uint64_t *bar, sl_sim_at at)
{
    for (sim_copy &c : sim_now->copies)
        if (c.dst)
            land(&c);
    sim_now->copies.clear();
    arrive(find_mbar(bar, "sl_cp_async_arrive", at), 0, "sl_cp_async_arrive", at);
    sl_sim_preempt();
}

void sl_sim_mbar_wait(uint64_t *bar, uint32_t parity, sl_sim_at at)
{
    if (parity > 1)
        sim_fail("sl_mbar_wait at %s:%d: parity %u", sim_short_file(at.file), at.line, parity);
    sl_sim_preempt();
    while ((find_mbar(bar, "sl_mbar_wait", at)->phase & 1) == parity) {
        sim_now->at = at;
        sim_now->wait_on = parity;
        sim_now->wait_bar = bar;
        sim_wait(SIM_AT_MBAR);
    }
    sim_race_waited(find_mbar(bar, "sl_mbar_wait", at));
}

bool sl_sim_mbar_ended(uint64_t *bar, uint32_t parity, sl_sim_at at)
{
    sl_sim_preempt();
    sim_mbar *m = find_mbar(bar, "sl_mbar_ended", at);
    if ((m->phase & 1) == parity)
        return false;
    sim_race_waited(m);
    return true;
}

void sl_sim_fence_proxy()
{
    sim_race_fence();
    sl_sim_preempt();
}

/* --- bulk copies --- */

/* A copy whose target is known is under way. */
static void start_bulk(const sim_bulk &c, const char *what, const void *pc)
{
    find_mbar(c.bar, what, c.at);
    sim_block *b = sim_now_block;
    for (const sim_bulk &other : b->bulks)
        if (c.dst < other.dst + other.n && other.dst < c.dst + c.n)
            sim_fail("%s at %s:%d: shared + %u is the target of another copy under way", what,
                     sim_short_file(c.at.file), c.at.line, sim_smem_offset(c.dst));
    if (c.issuer != SIM_ELSEWHERE)
        sim_race_copy(c.dst, c.n, pc);
    hide(c.dst, c.n);
    b->bulks.push_back(c);
}

void sl_sim_bulk_load(void *dst, const void *src, uint32_t n, uint64_t *bar, sl_sim_at at)
{
    if (n == 0 || n % 16)
        sim_fail("sl_bulk_load at %s:%d: %u bytes", sim_short_file(at.file), at.line, n);
    sim_check_shared(dst, n, 16, "sl_bulk_load", at);
    check_source(src, n, "sl_bulk_load", at);
    start_bulk({static_cast<char *>(dst),
                static_cast<const char *>(src),
                n,
                bar,
                at,
                sim_now->index,
                sim_race_now(),
                {},
                0,
                0},
               "sl_bulk_load", __builtin_return_address(0));
    sl_sim_preempt();
}

/* ------------------------------------------------------------------ boxes of a matrix */

#define BOX_COLS 64

cudaError_t sl_tensor_map(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                          int64_t ld, int32_t box_rows)
{
    if (reinterpret_cast<uintptr_t>(x) % 16 || ld % 8 || n_rows <= 0 || n_cols <= 0 ||
        box_rows < 1 || box_rows > 256)
        return cudaErrorInvalidValue;
    *map = {static_cast<const char *>(x), n_rows, n_cols, ld, box_rows, BOX_COLS, 2, true};
    return cudaSuccess;
}

cudaError_t sl_tensor_map_codes(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                                int64_t ld, int32_t box_rows)
{
    if (reinterpret_cast<uintptr_t>(x) % 16 || ld % 16 || n_rows <= 0 || n_cols <= 0 ||
        box_rows < 1 || box_rows > 256)
        return cudaErrorInvalidValue;
    *map = {static_cast<const char *>(x), n_rows, n_cols, ld, box_rows, 2 * BOX_COLS, 1, true};
    return cudaSuccess;
}

cudaError_t sl_tensor_map_float(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                                int64_t ld, int32_t box_rows)
{
    if (reinterpret_cast<uintptr_t>(x) % 16 || ld % 4 || n_rows <= 0 || n_cols <= 0 ||
        box_rows < 1 || box_rows > 256)
        return cudaErrorInvalidValue;
    *map = {static_cast<const char *>(x), n_rows, n_cols, ld, box_rows, BOX_COLS / 2, 4, true};
    return cudaSuccess;
}

static cudaError_t map_units(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                             int64_t ld_bytes, int32_t unit_bytes, int32_t box_blocks)
{
    if (ld_bytes % 16 || reinterpret_cast<uintptr_t>(w) % 16 || unit_bytes <= 0 ||
        unit_bytes % 32 || unit_bytes > 4096 || n_blocks <= 0 || n_units <= 0 || box_blocks < 1 ||
        box_blocks > 256)
        return cudaErrorInvalidValue;
    int32_t words = unit_bytes / 8;
    *map = {static_cast<const char *>(w),
            n_blocks,
            n_units * words,
            ld_bytes / 8,
            box_blocks,
            words,
            8,
            false};
    return cudaSuccess;
}

cudaError_t sl_tensor_map_units(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                int64_t ld_bytes, int32_t unit_bytes, int32_t box_blocks)
{
    return unit_bytes > 2048
               ? cudaErrorInvalidValue
               : map_units(map, w, n_blocks, n_units, ld_bytes, unit_bytes, box_blocks);
}

cudaError_t sl_tensor_map_blocks(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                 int32_t unit_bytes, int32_t box_blocks)
{
    return map_units(map, w, n_blocks, n_units, sl_cuda_row_units(n_units, unit_bytes) * unit_bytes,
                     unit_bytes, box_blocks);
}

static uint32_t box_bytes(const CUtensorMap *map)
{
    return static_cast<uint32_t>(map->box_rows * map->box_cols * map->value_bytes);
}

static void check_box(const void *dst, const CUtensorMap *map, const char *what, sl_sim_at at)
{
    sim_check_shared(dst, box_bytes(map), 128, what, at);
    if (map->swizzled && sim_smem_offset(dst) % 1024)
        sim_fail("%s at %s:%d: shared + %u is not a multiple of 1024", what,
                 sim_short_file(at.file), at.line, sim_smem_offset(dst));
}

void sl_sim_tensor_load(void *dst, const CUtensorMap *map, int col, int row, uint64_t *bar,
                        sl_sim_at at)
{
    check_box(dst, map, "sl_tensor_load", at);
    start_bulk({static_cast<char *>(dst), nullptr, box_bytes(map), bar, at, sim_now->index,
                sim_race_now(), *map, col, row},
               "sl_tensor_load", __builtin_return_address(0));
    sl_sim_preempt();
}

/* Into each block of the cluster as if a thread of its own had started it. The search for races
 * knows clocks of one block only: what comes from another one is not looked at. */
void sl_sim_tensor_load_all(void *dst, const CUtensorMap *map, int col, int row, uint64_t *bar,
                            uint32_t ranks, sl_sim_at at)
{
    static const char what[] = "sl_tensor_load_all";
    sim_block *me = sim_now_block;
    check_box(dst, map, what, at);
    uint32_t to = sim_smem_offset(dst), bar_at = sim_smem_offset(bar);
    if (ranks == 0 || ranks >> me->cluster->n)
        sim_fail("%s at %s:%d: blocks %#x of a cluster of %u", what, sim_short_file(at.file),
                 at.line, ranks, me->cluster->n);
    for (uint32_t r = 0; r < me->cluster->n; r++) {
        sim_block *b = me->cluster->blocks[r];
        if (!(ranks >> r & 1))
            continue;
        if (me->cluster->ended >> r & 1)
            sim_fail("%s at %s:%d: block %u has ended", what, sim_short_file(at.file), at.line, r);
        sim_now_block = b;
        start_bulk({b->smem + to, nullptr, box_bytes(map),
                    reinterpret_cast<uint64_t *>(b->smem + bar_at), at,
                    b == me ? sim_now->index : SIM_ELSEWHERE, sim_race_now(), *map, col, row},
                   what, __builtin_return_address(0));
        sim_now_block = me;
    }
    sl_sim_preempt();
}

/* --- boxes that go back --- */

static void land_store(const sim_store &c)
{
    const CUtensorMap *m = &c.map;
    const int64_t row_bytes = static_cast<int64_t>(m->box_cols) * m->value_bytes;
    for (int64_t r = 0; r < m->box_rows; r++)
        for (int64_t i = 0; i < row_bytes; i += m->value_bytes) {
            int64_t row = c.row + r, col = c.col + i / m->value_bytes;
            if (row < 0 || row >= m->n_rows || col < 0 || col >= m->n_cols)
                continue;
            char *to = const_cast<char *>(m->x) + (row * m->ld + col) * m->value_bytes;
            size_t n = static_cast<size_t>(m->value_bytes);
            if (!sim_is_mapped(to, n))
                sim_fail("sl_tensor_store at %s:%d: row %lld of the matrix is not device memory",
                         sim_short_file(c.at.file), c.at.line, static_cast<long long>(row));
            memcpy(to, c.src + r * row_bytes + (m->swizzled ? i ^ (r % 8 << 4) : i), n);
        }
}

/* Read at some time before the wait: at once, or as late as can be. */
void sl_sim_tensor_store(const CUtensorMap *map, int col, int row, const void *src, sl_sim_at at)
{
    check_box(src, map, "sl_tensor_store", at);
    sim_store c = {*map, static_cast<const char *>(src), col, row, sim_now->store_group, at};
    if (sim_chance(4)) {
        land_store(c);
        c.src = nullptr; /* still to be waited for */
    }
    sim_now->stores.push_back(c);
    sl_sim_preempt();
}

void sl_sim_tensor_store_commit()
{
    sim_now->store_group++;
}

void sl_sim_tensor_store_wait(int n)
{
    sim_thread *t = sim_now;
    size_t kept = 0;
    for (const sim_store &c : t->stores) {
        if (c.group + static_cast<uint32_t>(n) >= t->store_group)
            t->stores[kept++] = c;
        else if (c.src)
            land_store(c);
    }
    t->stores.resize(kept);
}

void sl_sim_mbar_arrive_at(uint64_t *bar, uint32_t rank, sl_sim_at at)
{
    sim_block *me = sim_now_block;
    uint64_t *there = static_cast<uint64_t *>(sl_sim_cluster_map(bar, rank));
    sim_now_block = me->cluster->blocks[rank];
    arrive(find_mbar(there, "sl_mbar_arrive_at", at), 0, "sl_mbar_arrive_at", at);
    sim_now_block = me;
    sl_sim_preempt();
}

/* At once, as it may; what comes from another block the search for races does not look at. */
void sl_sim_store_at(float4 *to, const float4 &v, uint64_t *bar, uint32_t rank, sl_sim_at at)
{
    sim_block *me = sim_now_block;
    sim_check_shared(to, 16, 16, "sl_store_at", at);
    void *there = sl_sim_cluster_map(to, rank);
    auto bar_there = static_cast<uint64_t *>(sl_sim_cluster_map(bar, rank));
    sim_now_block = me->cluster->blocks[rank];
    sim_mbar *m = find_mbar(bar_there, "sl_store_at", at);
    memcpy(there, &v, 16);
    m->tx -= 16;
    complete_phase(m);
    sim_now_block = me;
    sl_sim_preempt();
}

static void land_box(const sim_bulk &c)
{
    const CUtensorMap *m = &c.map;
    memset(c.dst, 0, c.n);
    int64_t cols = m->n_cols - c.col;
    cols = cols < 0 ? 0 : cols > m->box_cols ? m->box_cols : cols;
    const int64_t row_bytes = static_cast<int64_t>(m->box_cols) * m->value_bytes;
    for (int64_t r = 0; cols > 0 && r < m->box_rows && c.row + r < m->n_rows; r++) {
        const char *src = m->x + ((c.row + r) * m->ld + c.col) * m->value_bytes;
        const int64_t n = cols * m->value_bytes;
        if (!sim_is_mapped(src, static_cast<size_t>(n)))
            sim_fail("sl_tensor_load at %s:%d: row %lld of the matrix is not device memory",
                     sim_short_file(c.at.file), c.at.line, static_cast<long long>(c.row + r));
        for (int64_t i = 0; i < n; i++)
            c.dst[r * row_bytes + (m->swizzled ? i ^ (r % 8 << 4) : i)] = src[i];
    }
}

void sim_bulk_land(sim_block *b, size_t i)
{
    sim_bulk c = b->bulks[i];
    b->bulks[i] = b->bulks.back();
    b->bulks.pop_back();
    sim_unpoison(c.dst, c.n);
    if (c.src == nullptr) {
        land_box(c);
    } else {
        check_source(c.src, c.n, "sl_bulk_load", c.at);
        memcpy(c.dst, c.src, c.n);
    }
    sim_mbar *m = find_mbar(c.bar, "sl_bulk_load", c.at);
    if (c.issuer != SIM_ELSEWHERE)
        sim_race_landed(b, m, c.issuer, c.issued);
    m->tx -= c.n;
    complete_phase(m);
}

void sl_sim_check_stream16(const void *p, sl_sim_at at)
{
    check_source(p, 16, "sl_ldg_stream16", at);
}
