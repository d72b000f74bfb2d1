/* SPDX-License-Identifier: MIT
 * sim_warp.cc - warp collectives: lanes gather until all of the mask are there, then the last one
 * computes for all. mma multiplies exactly and adds in ascending k, one rounding an addition.
 */
#include "sim_float.h"
#include "sim_internal.h"

const char *sim_kind_name(int kind)
{
    static const char *const names[SL_SIM_KINDS] = {"__syncwarp",           "__shfl_sync",
                                                    "__shfl_up_sync",       "__shfl_down_sync",
                                                    "__shfl_xor_sync",      "__ballot_sync",
                                                    "__any_sync",           "__all_sync",
                                                    "__match_any_sync",     "__reduce_add_sync",
                                                    "__reduce_min_sync",    "__reduce_max_sync",
                                                    "__reduce_add_sync",    "__reduce_min_sync",
                                                    "__reduce_max_sync",    "__reduce_and_sync",
                                                    "__reduce_or_sync",     "__reduce_xor_sync",
                                                    "sl_ldmatrix_x1",       "sl_ldmatrix_x2",
                                                    "sl_ldmatrix_x4",       "sl_ldmatrix_x1_trans",
                                                    "sl_ldmatrix_x2_trans", "sl_ldmatrix_x4_trans",
                                                    "sl_mma_bf16",          "sl_mma_f16"};
    return names[kind];
}

static void shuffle(sim_slot *s)
{
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (!(s->mask >> lane & 1))
            continue;
        sl_sim_part *p = s->part[lane];
        uint32_t w = p->width;
        if (w == 0 || w > 32 || (w & (w - 1)))
            sim_fail("shuffle of width %u", w);
        uint32_t base = lane & ~(w - 1), at = lane & (w - 1), from;
        switch (s->kind) {
        case SL_SIM_SHFL_IDX:
            from = base + (p->lane_arg & (w - 1));
            break;
        case SL_SIM_SHFL_UP:
            from = at >= p->lane_arg ? lane - p->lane_arg : lane;
            break;
        case SL_SIM_SHFL_DOWN:
            from = at + p->lane_arg < w ? lane + p->lane_arg : lane;
            break;
        default: /* a lane of a later segment is out of reach, one of an earlier is not */
            from = lane ^ p->lane_arg;
            if (from >= base + w)
                from = lane;
            break;
        }
        if (from > 31 || !(s->mask >> from & 1))
            sim_fail("%s at %s:%d: lane %u reads lane %u, which mask %#x leaves out",
                     sim_kind_name(s->kind), sim_short_file(s->at.file), s->at.line, lane, from,
                     s->mask);
        p->result = s->part[from]->value;
    }
}

static uint64_t fold(sl_sim_kind kind, uint64_t all, uint64_t v)
{
    uint32_t a = static_cast<uint32_t>(all), b = static_cast<uint32_t>(v);
    int32_t sa = static_cast<int32_t>(a), sb = static_cast<int32_t>(b);
    switch (kind) {
    case SL_SIM_ADD_S32:
    case SL_SIM_ADD_U32:
        return a + b;
    case SL_SIM_MIN_S32:
        return sa < sb ? a : b;
    case SL_SIM_MAX_S32:
        return sa > sb ? a : b;
    case SL_SIM_MIN_U32:
        return a < b ? a : b;
    case SL_SIM_MAX_U32:
        return a > b ? a : b;
    case SL_SIM_AND_U32:
    case SL_SIM_ALL:
        return a & b;
    case SL_SIM_XOR_U32:
        return a ^ b;
    default: /* or, any */
        return a | b;
    }
}

static void vote(sim_slot *s)
{
    uint64_t all = 0;
    bool first = true;
    for (int lane = 0; lane < 32; lane++) {
        if (!(s->mask >> lane & 1))
            continue;
        uint64_t v = s->part[lane]->value;
        if (s->kind == SL_SIM_BALLOT)
            all |= v << lane;
        else
            all = first ? v : fold(s->kind, all, v);
        first = false;
    }
    for (int lane = 0; lane < 32; lane++)
        if (s->mask >> lane & 1)
            s->part[lane]->result = all;
}

static void match_any(sim_slot *s)
{
    for (int lane = 0; lane < 32; lane++) {
        if (!(s->mask >> lane & 1))
            continue;
        uint64_t same = 0;
        for (int other = 0; other < 32; other++)
            if ((s->mask >> other & 1) && s->part[other]->value == s->part[lane]->value)
                same |= 1ull << other;
        s->part[lane]->result = same;
    }
}

static void ldmatrix(sim_slot *s, int n, bool trans)
{
    uint16_t m[4][8][8];
    for (int row = 0; row < 8 * n; row++) {
        const void *p = s->part[row]->row;
        sim_check_shared(p, 16, 16, sim_kind_name(s->kind), s->at);
        if (sim_poisoned(p, 16))
            sim_fail("%s at %s:%d: lane %d's row at shared + %u is being copied and not waited for",
                     sim_kind_name(s->kind), sim_short_file(s->at.file), s->at.line, row,
                     sim_smem_offset(p));
        sim_race_access(static_cast<uint32_t>(sim_now->warp * 32 + row), p, 16, false,
                        s->part[row]->pc);
        memcpy(m[row / 8][row % 8], p, 16);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < n; i++) {
            int r = lane / 4, c = lane % 4 * 2;
            uint32_t lo = trans ? m[i][c][r] : m[i][r][c];
            uint32_t hi = trans ? m[i][c + 1][r] : m[i][r][c + 1];
            s->part[lane]->regs[i] = lo | hi << 16;
        }
}

/* The two operands of a register. */
static void unpack(bool bf16, uint32_t v, float *lo, float *hi)
{
    uint16_t l = static_cast<uint16_t>(v), h = static_cast<uint16_t>(v >> 16);
    *lo = bf16 ? sl_sim_bf16_to_float(l) : sl_sim_half_to_float(l);
    *hi = bf16 ? sl_sim_bf16_to_float(h) : sl_sim_half_to_float(h);
}

/* A row of sums; compilers make one or two vector instructions of an operation. */
typedef float sim_row __attribute__((vector_size(32)));

__attribute__((target_clones("avx2", "default"))) void sim_multiply(const float (*a)[16],
                                                                    const sim_row *b, sim_row *c)
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            c[i] += a[i][k] * b[k];
}

static void mma(sim_slot *s)
{
    float a[16][16];
    sim_row b[16], c[16];
    bool bf16 = s->kind == SL_SIM_MMA_BF16;
    for (int lane = 0; lane < 32; lane++) {
        const sl_sim_part *p = s->part[lane];
        int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            float *at = &a[g + i % 2 * 8][t + i / 2 * 8];
            unpack(bf16, p->a[i], &at[0], &at[1]);
        }
        for (int i = 0; i < 2; i++) {
            float lo, hi;
            unpack(bf16, p->b[i], &lo, &hi);
            b[t + i * 8][g] = lo;
            b[t + i * 8 + 1][g] = hi;
        }
        for (int i = 0; i < 4; i++)
            c[g + i / 2 * 8][t + i % 2] = p->c[i];
    }
    sim_multiply(a, b, c);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            s->part[lane]->c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

static void compute(sim_slot *s)
{
    switch (s->kind) {
    case SL_SIM_SYNCWARP: {
        uint64_t members[16] = {};
        members[sim_now->warp / 2] = static_cast<uint64_t>(s->mask) << (sim_now->warp % 2 * 32);
        sim_race_join(sim_now_block, members);
        break;
    }
    case SL_SIM_SHFL_IDX:
    case SL_SIM_SHFL_UP:
    case SL_SIM_SHFL_DOWN:
    case SL_SIM_SHFL_XOR:
        shuffle(s);
        break;
    case SL_SIM_MATCH_ANY:
        match_any(s);
        break;
    case SL_SIM_LDMATRIX_X1:
    case SL_SIM_LDMATRIX_X1_TRANS:
        ldmatrix(s, 1, s->kind == SL_SIM_LDMATRIX_X1_TRANS);
        break;
    case SL_SIM_LDMATRIX_X2:
    case SL_SIM_LDMATRIX_X2_TRANS:
        ldmatrix(s, 2, s->kind == SL_SIM_LDMATRIX_X2_TRANS);
        break;
    case SL_SIM_LDMATRIX_X4:
    case SL_SIM_LDMATRIX_X4_TRANS:
        ldmatrix(s, 4, s->kind == SL_SIM_LDMATRIX_X4_TRANS);
        break;
    case SL_SIM_MMA_BF16:
    case SL_SIM_MMA_F16:
        mma(s);
        break;
    default:
        vote(s);
        break;
    }
}

/* The collective that the running lane joins; begins one when it is the first. */
static sim_slot *find_slot(sim_warp *w, sl_sim_kind kind, uint32_t mask, sl_sim_at at)
{
    for (int i = 0; i < w->n_slots; i++) {
        sim_slot *s = &w->slots[i];
        /* Another mask is another collective, also when they overlap: lanes may still be on their
         * way through the smaller one. If they never come, that is a deadlock. */
        if (s->mask != mask)
            continue;
        if (s->kind != kind || s->at.line != at.line ||
            (s->at.file != at.file && strcmp(s->at.file, at.file) != 0))
            sim_fail("%s with mask %#x at %s:%d, but lanes %#x of its warp wait in %s with mask "
                     "%#x at %s:%d",
                     sim_kind_name(kind), mask, sim_short_file(at.file), at.line, s->arrived,
                     sim_kind_name(s->kind), s->mask, sim_short_file(s->at.file), s->at.line);
        return s;
    }
    if (w->n_slots == SIM_SLOTS)
        sim_fail("more than %d collectives at once in a warp", SIM_SLOTS);
    sim_slot *s = &w->slots[w->n_slots++];
    s->mask = mask;
    s->arrived = 0;
    s->kind = kind;
    s->at = at;
    return s;
}

void sl_sim_collective(sl_sim_kind kind, uint32_t mask, sl_sim_part *part, sl_sim_at at)
{
    sim_block *b = sim_now_block;
    sim_thread *me = sim_now;
    sim_warp *w = &b->warps[me->warp];
    if (!(mask >> me->lane & 1))
        sim_fail("%s at %s:%d: the mask %#x leaves out lane %d, which calls it",
                 sim_kind_name(kind), sim_short_file(at.file), at.line, mask, me->lane);
    if (mask & w->ended)
        sim_fail("%s at %s:%d: lanes %#x of mask %#x have ended", sim_kind_name(kind),
                 sim_short_file(at.file), at.line, mask & w->ended, mask);
    sim_slot *s = find_slot(w, kind, mask, at);
    s->part[me->lane] = part;
    s->arrived |= 1u << me->lane;
    if (s->arrived != mask) {
        me->at = at;
        me->wait_on = mask;
        me->kind = kind;
        sim_wait(SIM_AT_COLLECTIVE);
        return;
    }
    compute(s);
    *s = w->slots[--w->n_slots];
    uint32_t others = mask & ~(1u << me->lane);
    w->ready |= others;
    for (; others; others &= others - 1)
        b->threads[me->warp * 32 + __builtin_ctz(others)].state = SIM_READY;
    /* Who goes on first is open: not always the last to arrive. */
    if (sim_chance(4))
        sl_sim_preempt();
}
