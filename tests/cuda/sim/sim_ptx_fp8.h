/* SPDX-License-Identifier: MIT
 * sim_ptx_fp8.h - the simulator's versions of the functions of src/cuda/ptx_fp8.cuh.
 *
 * Sums are made of exact products in double, 32 columns a time, and rounded to float: another
 * arithmetic than a chip's, which keeps about 14 bits, but one order for all widths, as there.
 */
#ifndef SL_SIM_PTX_FP8_H
#define SL_SIM_PTX_FP8_H

void sl_sim_cp_async4(void *dst, const void *src, sl_sim_at at);
void sl_sim_cp_arrive(uint64_t *bar, sl_sim_at at);

static inline void sl_cp_async4(void *smem, const void *gmem, SL_SIM_AT)
{
    sl_sim_cp_async4(smem, gmem, SL_SIM_HERE);
}
static inline void sl_cp_async_arrive(uint64_t *bar, SL_SIM_AT)
{
    sl_sim_cp_arrive(bar, SL_SIM_HERE);
}

/* Turns order nothing but time. */
static inline void sl_turn_wait(int, int)
{
}
static inline void sl_turn_pass(int, int)
{
}

static inline float sl_sim_e4m3(uint32_t code)
{
    uint32_t mag = code & 0x7Fu, bits = (mag << 20) + (120u << 23);
    float v = static_cast<float>(mag) * 0x1p-9f;
    if (mag >= 8)
        memcpy(&v, &bits, 4);
    if (mag == 0x7Fu)
        v = NAN;
    return code & 0x80u ? -v : v;
}

/* By search: the codes of positive numbers ascend with them. */
static inline uint32_t sl_sim_e4m3_code(float x)
{
    float a = fabsf(x);
    uint32_t sign = __builtin_signbit(x) ? 0x80u : 0u, below = 0;
    if (x != x)
        return 0x7Fu;
    if (a >= 448.0f)
        return sign | 0x7Eu;
    while (sl_sim_e4m3(below + 1) <= a)
        below++;
    float down = a - sl_sim_e4m3(below), up = sl_sim_e4m3(below + 1) - a;
    bool stay = down < up || (down == up && below % 2 == 0);
    return sign | (stay ? below : below + 1);
}
static inline uint32_t sl_max_u16x2(uint32_t a, uint32_t b)
{
    uint32_t lo = (a & 0xFFFFu) > (b & 0xFFFFu) ? a : b, hi = a >> 16 > b >> 16 ? a : b;
    return (hi & 0xFFFF0000u) | (lo & 0xFFFFu);
}
static inline uint32_t sl_e4m3x2(float a, float b)
{
    return sl_sim_e4m3_code(a) | sl_sim_e4m3_code(b) << 8;
}

/* Words of b: of rows of 128 bytes, and of up to eight rows without gaps. */
static inline uint32_t sl_sim_b_word(const uint8_t *b, uint32_t row, uint32_t byte)
{
    return sl_sim_swizzled(b, row, byte);
}
struct sl_sim_dense {
    const uint8_t *p;
    uint32_t rows;
};
static inline sl_sim_dense sl_wgmma_dense(const void *smem, int rows)
{
    return {static_cast<const uint8_t *>(smem), static_cast<uint32_t>(rows)};
}
static inline uint32_t sl_sim_b_word(const sl_sim_dense &b, uint32_t row, uint32_t byte)
{
    uint32_t v;
    sl_sim_by_wgmma(true);
    memcpy(&v, b.p + byte / 16 * 16 * b.rows + 16 * row + byte % 16, 4);
    sl_sim_by_wgmma(false);
    return v;
}

/* Each thread makes its own sums: rows and tokens lie in shared memory. */
template <int T, class B>
static inline void sl_wgmma_e4m3(float (&d)[T][4], const uint8_t *a, const B &b, int add, SL_SIM_AT)
{
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, t = lane % 4;
    (void)sl_file, (void)sl_line;
    sl_sim_preempt();
    float w[2][32];
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t k = 0; k < 32; k++)
            w[r][k] = sl_sim_e4m3(sl_sim_swizzled(a, row + 8 * r, k & ~3u) >> 8 * (k % 4) & 255);
    for (uint32_t i = 0; i < 2 * T; i++) {
        double sum[2] = {0.0, 0.0};
        uint32_t words[8];
        for (uint32_t k = 0; k < 8; k++)
            words[k] = sl_sim_b_word(b, 8 * (i / 2) + 2 * t + i % 2, 4 * k);
        for (uint32_t k = 0; k < 32; k++) {
            float x = sl_sim_e4m3(words[k / 4] >> 8 * (k % 4) & 255);
            for (uint32_t r = 0; r < 2; r++)
                sum[r] += static_cast<double>(w[r][k]) * static_cast<double>(x);
        }
        for (uint32_t r = 0; r < 2; r++) {
            float &to = d[i / 2][2 * r + i % 2];
            to = static_cast<float>((add ? static_cast<double>(to) : 0.0) + sum[r]);
        }
    }
}
template <int T> static inline void sl_wgmma_done(float (&)[T][4])
{
}

#endif
