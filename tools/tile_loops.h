/* SPDX-License-Identifier: MIT
 * tile_loops.h - loops that show what a processor's matrix and dot instructions give at best, for
 * tile_bench.c: from registers only, with operands from the L1 or the L2 cache, with sums that
 * leave the tiles. A step is 16 products, a block of the kernels. All on random data: a multiplier
 * that is fed zeros needs less power and clocks higher.
 */
#ifndef TOOLS_TILE_LOOPS_H
#define TOOLS_TILE_LOOPS_H

#include "base/check.h"
#include "base/rng.h"
#include "quant/float.h"

#include <immintrin.h>

#define LOOP_X     0           /* in a thread's room: 256 KiB of tokens, */
#define LOOP_W     (256 << 10) /* as much of weights, */
#define LOOP_SUMS  (512 << 10) /* 64 KiB of sums */
#define LOOP_BYTES (576 << 10)
#define LOOP_MASK  ((256 << 10) - 1)
#define STEP_DOTS  16

typedef void (*loop_fn)(int n_steps, uint8_t *room);

#define AVX512 __attribute__((target("avx512f")))

/* ---------------------------------------------------------------- vectors */

#define CHAIN12(op)                                                      \
    op " %%zmm30, %%zmm31, %%zmm0\n" op " %%zmm30, %%zmm31, %%zmm1\n" op \
       " %%zmm30, %%zmm31, %%zmm2\n" op " %%zmm30, %%zmm31, %%zmm3\n" op \
       " %%zmm30, %%zmm31, %%zmm4\n" op " %%zmm30, %%zmm31, %%zmm5\n" op \
       " %%zmm30, %%zmm31, %%zmm6\n" op " %%zmm30, %%zmm31, %%zmm7\n" op \
       " %%zmm30, %%zmm31, %%zmm8\n" op " %%zmm30, %%zmm31, %%zmm9\n" op \
       " %%zmm30, %%zmm31, %%zmm10\n" op " %%zmm30, %%zmm31, %%zmm11\n"

#define CLOBBERS                                                                             \
    "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", \
        "zmm11", "zmm30", "zmm31"

#define VECTOR_LOOP(name, op)                                                               \
    AVX512 static void name(int n_steps, uint8_t *room)                                     \
    {                                                                                       \
        for (int i = 0; i < n_steps; i++)                                                   \
            __asm__ volatile("vmovdqu64 (%0), %%zmm30\n vmovdqu64 (%1), %%zmm31\n" CHAIN12( \
                                 op)::"r"(room + LOOP_X),                                   \
                             "r"(room + LOOP_W)                                             \
                             : CLOBBERS);                                                   \
    }
VECTOR_LOOP(vpdpbusd_loop, "vpdpbusd")
VECTOR_LOOP(vdpbf16ps_loop, "vdpbf16ps")

/* ---------------------------------------------------------------- tiles */

static void full_tiles(void)
{
    struct {
        uint8_t palette, rest[15];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

#define RELEASE()  __asm__ volatile("tilerelease" ::: "memory")
#define ZERO(t)    __asm__ volatile("tilezero %%tmm" #t ::)
#define LOAD(t, p) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(64L) : "memory")
#define STORE(t, p) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(64L) : "memory")
#define DOT(op, c, a, b) __asm__ volatile(op " %%tmm" #b ", %%tmm" #a ", %%tmm" #c::)

/* Sixteen lines, to the L1 cache. */
static inline void ask(const uint8_t *p)
{
    for (int i = 0; i < 1024; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* Two tiles of tokens times two of weights. */
#define STRIP_2X2(op, x0, x1, w0, w1) \
    do {                              \
        LOAD(6, w0);                  \
        LOAD(4, x0);                  \
        DOT(op, 0, 4, 6);             \
        LOAD(7, w1);                  \
        DOT(op, 1, 4, 7);             \
        LOAD(5, x1);                  \
        DOT(op, 2, 5, 6);             \
        DOT(op, 3, 5, 7);             \
    } while (0)

/* One tile of tokens times four of weights, w_bytes apart. */
#define STRIP_1X4(op, x, w, w_bytes)  \
    do {                              \
        LOAD(4, x);                   \
        LOAD(6, w);                   \
        DOT(op, 0, 4, 6);             \
        LOAD(7, (w) + (w_bytes));     \
        DOT(op, 1, 4, 7);             \
        LOAD(6, (w) + 2 * (w_bytes)); \
        DOT(op, 2, 4, 6);             \
        LOAD(7, (w) + 3 * (w_bytes)); \
        DOT(op, 3, 4, 7);             \
    } while (0)

#define LOAD_4(x, w)         \
    do {                     \
        LOAD(4, x);          \
        LOAD(5, (x) + 1024); \
        LOAD(6, w);          \
        LOAD(7, (w) + 1024); \
    } while (0)

#define DOT_4(op)         \
    do {                  \
        DOT(op, 0, 4, 6); \
        DOT(op, 1, 4, 7); \
        DOT(op, 2, 5, 6); \
        DOT(op, 3, 5, 7); \
    } while (0)

#define ALL_SUMS(what)        \
    do {                      \
        what(0, sums);        \
        what(1, sums + 1024); \
        what(2, sums + 2048); \
        what(3, sums + 3072); \
    } while (0)

#define NO_SUMS() \
    do {          \
        ZERO(0);  \
        ZERO(1);  \
        ZERO(2);  \
        ZERO(3);  \
    } while (0)

/* Each step: 4 strips of a 2 x 2 or 1 x 4 block.
 *   _regs          no loads
 *   _turns         no loads, operands of four registers as in 2 x 2
 *   _loads         16 loads from L1 and no product
 *   _half          _l1 with loads of weights alone
 *   _l1            8 KiB of tokens and 8 KiB of weights, again and again
 *   _l2, _l2_ask   both from 256 KiB; asked for two strips ahead
 *   _w1, _w1_ask   1 x 4: weights from 32 KiB, tokens from 256 KiB; asked for two strips ahead
 *   _store         as _l1, sums to one of two places in L1 after each step
 *   _sums          as _w1_ask, sums in and out of 64 KiB after each two steps */
#define TILE_LOOPS(name, op)                                                                 \
    static void name##_regs(int n_steps, uint8_t *room)                                      \
    {                                                                                        \
        full_tiles();                                                                        \
        LOAD(6, room + LOOP_X);                                                              \
        LOAD(7, room + LOOP_W);                                                              \
        for (int i = 0; i < n_steps; i++) {                                                  \
            for (int j = 0; j < 4; j++) {                                                    \
                DOT(op, 0, 6, 7);                                                            \
                DOT(op, 1, 6, 7);                                                            \
                DOT(op, 2, 6, 7);                                                            \
                DOT(op, 3, 6, 7);                                                            \
            }                                                                                \
        }                                                                                    \
        RELEASE();                                                                           \
    }                                                                                        \
    static void name##_turns(int n_steps, uint8_t *room)                                     \
    {                                                                                        \
        full_tiles();                                                                        \
        LOAD_4(room + LOOP_X, room + LOOP_W);                                                \
        for (int i = 0; i < 4 * n_steps; i++)                                                \
            DOT_4(op);                                                                       \
        RELEASE();                                                                           \
    }                                                                                        \
    static void name##_loads(int n_steps, uint8_t *room)                                     \
    {                                                                                        \
        full_tiles();                                                                        \
        for (int i = 0; i < 4 * n_steps; i++)                                                \
            LOAD_4(room + LOOP_X + i % 4 * 2048, room + LOOP_W + i % 4 * 2048);              \
        RELEASE();                                                                           \
    }                                                                                        \
    static void name##_half(int n_steps, uint8_t *room)                                      \
    {                                                                                        \
        full_tiles();                                                                        \
        LOAD_4(room + LOOP_X, room + LOOP_W);                                                \
        for (int i = 0; i < 4 * n_steps; i++) {                                              \
            LOAD(6, room + LOOP_W + i % 4 * 2048);                                           \
            LOAD(7, room + LOOP_W + i % 4 * 2048 + 1024);                                    \
            DOT_4(op);                                                                       \
        }                                                                                    \
        RELEASE();                                                                           \
    }                                                                                        \
    static inline __attribute__((always_inline)) void name##_2x2(                            \
        int n_steps, uint8_t *room, size_t mask, bool asked, bool store)                     \
    {                                                                                        \
        const uint8_t *x = room + LOOP_X, *w = room + LOOP_W;                                \
        size_t at = 0;                                                                       \
        full_tiles();                                                                        \
        for (int i = 0; i < n_steps; i++) {                                                  \
            uint8_t *sums = room + LOOP_SUMS + i % 2 * 4096;                                 \
            if (store)                                                                       \
                NO_SUMS();                                                                   \
            for (int j = 0; j < 4; j++, at = (at + 2048) & mask) {                           \
                const size_t next = (at + 4096) & mask;                                      \
                if (asked) {                                                                 \
                    ask(x + next);                                                           \
                    ask(x + next + 1024);                                                    \
                    ask(w + next);                                                           \
                    ask(w + next + 1024);                                                    \
                }                                                                            \
                STRIP_2X2(op, x + at, x + at + 1024, w + at, w + at + 1024);                 \
            }                                                                                \
            if (store)                                                                       \
                ALL_SUMS(STORE);                                                             \
        }                                                                                    \
        RELEASE();                                                                           \
    }                                                                                        \
    static inline __attribute__((always_inline)) void name##_1x4(int n_steps, uint8_t *room, \
                                                                 bool asked, bool sums_move) \
    {                                                                                        \
        const uint8_t *x = room + LOOP_X, *w = room + LOOP_W;                                \
        size_t at = 0;                                                                       \
        full_tiles();                                                                        \
        for (int i = 0; i < n_steps; i++) {                                                  \
            uint8_t *sums = room + LOOP_SUMS + i / 2 % 16 * 4096;                            \
            if (sums_move && i % 2 == 0)                                                     \
                ALL_SUMS(LOAD);                                                              \
            for (int j = 0; j < 4; j++, at = (at + 1024) & LOOP_MASK) {                      \
                const uint8_t *wj = w + (i % 2 * 4 + j) * 1024;                              \
                if (asked)                                                                   \
                    ask(x + ((at + 2048) & LOOP_MASK));                                      \
                STRIP_1X4(op, x + at, wj, 8192);                                             \
            }                                                                                \
            if (sums_move && i % 2 == 1)                                                     \
                ALL_SUMS(STORE);                                                             \
        }                                                                                    \
        RELEASE();                                                                           \
    }                                                                                        \
    static void name##_l1(int n_steps, uint8_t *room)                                        \
    {                                                                                        \
        name##_2x2(n_steps, room, 8191, false, false);                                       \
    }                                                                                        \
    static void name##_l2(int n_steps, uint8_t *room)                                        \
    {                                                                                        \
        name##_2x2(n_steps, room, LOOP_MASK, false, false);                                  \
    }                                                                                        \
    static void name##_l2_ask(int n_steps, uint8_t *room)                                    \
    {                                                                                        \
        name##_2x2(n_steps, room, LOOP_MASK, true, false);                                   \
    }                                                                                        \
    static void name##_store(int n_steps, uint8_t *room)                                     \
    {                                                                                        \
        name##_2x2(n_steps, room, 8191, false, true);                                        \
    }                                                                                        \
    static void name##_w1(int n_steps, uint8_t *room)                                        \
    {                                                                                        \
        name##_1x4(n_steps, room, false, false);                                             \
    }                                                                                        \
    static void name##_w1_ask(int n_steps, uint8_t *room)                                    \
    {                                                                                        \
        name##_1x4(n_steps, room, true, false);                                              \
    }                                                                                        \
    static void name##_sums(int n_steps, uint8_t *room)                                      \
    {                                                                                        \
        name##_1x4(n_steps, room, true, true);                                               \
    }

TILE_LOOPS(int8, "tdpbsud")
TILE_LOOPS(bf16, "tdpbf16ps")

/* What a call that configures the tiles and releases them pays for it. */
static void configure_loop(int n_steps, uint8_t *room)
{
    (void)room;
    for (int i = 0; i < n_steps; i++) {
        full_tiles();
        ZERO(0);
        RELEASE();
    }
}

/* Bytes, or BF16 numbers of magnitude about one; sums start at zero. */
static void loop_fill(uint8_t *room, bool bf16)
{
    struct sl_rng rng = {3, bf16};
    for (size_t i = 0; i < LOOP_SUMS; i += 2) {
        uint64_t r = sl_rng_next(&rng);
        sl_store_u16(room + i, bf16 ? (uint16_t)(0x3F00 + (r & 0x80FF)) : (uint16_t)r);
    }
    for (size_t i = LOOP_SUMS; i < LOOP_BYTES; i++)
        room[i] = 0;
}

#endif
