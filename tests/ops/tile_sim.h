/* SPDX-License-Identifier: MIT
 * tile_sim.h - the tile instructions of cpu/tile_amx.h in plain C, with the checks the processor
 * makes: a shape that would fault there fails here.
 */
#ifndef TESTS_OPS_TILE_SIM_H
#define TESTS_OPS_TILE_SIM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

_Static_assert(sizeof(struct tile_config) == 64, "as LDTILECFG reads it");

struct sim_tile {
    int rows, row_bytes;
    uint8_t b[16][64];
};

static struct {
    struct sim_tile tile[8];
    bool configured;
    long n_dots;       /* products since the last reset, so that a test can see that tiles ran */
    const char *fault; /* the first thing a processor would have refused */
} sim;

static void sim_check(bool good, const char *what)
{
    if (!good && sim.fault == NULL)
        sim.fault = what;
}

static inline void tile_configure(const struct tile_config *c)
{
    sim_check(c->palette == 1 && c->start_row == 0, "palette");
    memset(sim.tile, 0, sizeof sim.tile);
    for (int t = 0; t < 16; t++) {
        bool used = c->rows[t] != 0;
        sim_check(c->rows[t] <= 16 && c->row_bytes[t] <= 64 && (t < 8 || !used), "size of a tile");
        sim_check(used == (c->row_bytes[t] != 0), "half a size");
        if (t < 8) {
            sim.tile[t].rows = c->rows[t];
            sim.tile[t].row_bytes = c->row_bytes[t];
        }
    }
    for (int i = 0; i < 14; i++)
        sim_check(c->reserved[i] == 0, "reserved bytes");
    sim.configured = true;
}

static inline void tile_release(void)
{
    memset(sim.tile, 0, sizeof sim.tile);
    sim.configured = false;
}

static inline void tile_fence(void)
{
}

static inline void tile_zero(int t)
{
    sim_check(sim.configured && sim.tile[t].rows > 0, "zero of an unused tile");
    memset(sim.tile[t].b, 0, sizeof sim.tile[t].b);
}

static inline void tile_load(int t, const void *p, long row_bytes)
{
    struct sim_tile *a = &sim.tile[t];
    sim_check(sim.configured && a->rows > 0, "load of an unused tile");
    memset(a->b, 0, sizeof a->b);
    for (int r = 0; r < a->rows; r++)
        memcpy(a->b[r], (const uint8_t *)p + r * row_bytes, (size_t)a->row_bytes);
}

static inline void tile_store(int t, void *p, long row_bytes)
{
    const struct sim_tile *a = &sim.tile[t];
    sim_check(sim.configured && a->rows > 0, "store of an unused tile");
    for (int r = 0; r < a->rows; r++)
        memcpy((uint8_t *)p + r * row_bytes, a->b[r], (size_t)a->row_bytes);
}

static void sim_check_dot(int c, int a, int b)
{
    const struct sim_tile *tc = &sim.tile[c], *ta = &sim.tile[a], *tb = &sim.tile[b];
    sim_check(sim.configured, "product before configuration");
    sim_check(c != a && c != b && a != b, "product of a tile with itself");
    sim_check(tc->rows > 0 && ta->rows > 0 && tb->rows > 0, "product of an unused tile");
    sim_check(tc->rows == ta->rows, "rows of c and a");
    sim_check(tc->row_bytes == tb->row_bytes, "columns of c and b");
    sim_check(ta->row_bytes == 4 * tb->rows, "columns of a and rows of b");
    sim.n_dots++;
}

static void sim_dot_bytes(int c, int a, int b, bool b_signed)
{
    sim_check_dot(c, a, b);
    struct sim_tile *tc = &sim.tile[c];
    const struct sim_tile *ta = &sim.tile[a], *tb = &sim.tile[b];
    for (int m = 0; m < tc->rows; m++)
        for (int n = 0; n < tc->row_bytes / 4; n++) {
            uint32_t sum; /* wraps as the processor's does */
            memcpy(&sum, tc->b[m] + 4 * n, 4);
            for (int k = 0; k < tb->rows; k++)
                for (int j = 0; j < 4; j++) {
                    uint8_t y = tb->b[k][4 * n + j];
                    int w = b_signed ? (int8_t)y : y;
                    sum += (uint32_t)((int8_t)ta->b[m][4 * k + j] * w);
                }
            memcpy(tc->b[m] + 4 * n, &sum, 4);
        }
}

static inline void tile_dot_s8_u8(int c, int a, int b)
{
    sim_dot_bytes(c, a, b, false);
}

static inline void tile_dot_s8_s8(int c, int a, int b)
{
    sim_dot_bytes(c, a, b, true);
}

static float sim_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static float sim_bf16(const uint8_t *p)
{
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, 4);
    return sim_flush(x);
}

/* As Intel's manual has it: over the pairs of one instruction, a chain of fused multiply-adds for
 * the even and one for the odd columns, each from zero; their sum is added to c. Operands and
 * results below the normal range are zero, rounding is to nearest even. */
static inline void tile_dot_bf16(int c, int a, int b)
{
    sim_check_dot(c, a, b);
    struct sim_tile *tc = &sim.tile[c];
    const struct sim_tile *ta = &sim.tile[a], *tb = &sim.tile[b];
    for (int m = 0; m < tc->rows; m++)
        for (int n = 0; n < tc->row_bytes / 4; n++) {
            float part[2] = {0, 0}, sum;
            for (int k = 0; k < tb->rows; k++)
                for (int j = 0; j < 2; j++)
                    part[j] = sim_flush(fmaf(sim_bf16(ta->b[m] + 4 * k + 2 * j),
                                             sim_bf16(tb->b[k] + 4 * n + 2 * j), part[j]));
            memcpy(&sum, tc->b[m] + 4 * n, 4);
            sum = sim_flush(sim_flush(sum) + sim_flush(part[0] + part[1]));
            memcpy(tc->b[m] + 4 * n, &sum, 4);
        }
}

#endif
