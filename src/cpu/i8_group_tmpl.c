/* SPDX-License-Identifier: MIT
 * A group of activations on its way to whole numbers: its outliers, and its scale without them
 * (i8.h). Included by i8_tmpl.c and i8_amx_tmpl.c.
 */

/* Bits of magnitudes compare as magnitudes do. */
#define BITS_OF_2 (1u << 23) /* taken off a normal number's bits they halve it */

struct group_x {
    const float *x; /* SL_I8_GROUP columns, an outlier as zero */
    float d, inv;   /* q = round(x * inv); inv 0: all q are zero, whatever x is */
    struct sl_i8_outliers outliers;
    _Alignas(64) float padded[SL_I8_GROUP], rest[SL_I8_GROUP];
};

/* The largest magnitude in each lane. */
static v16i largest_in_lanes(const float *x)
{
    const v16i magnitude = vi_set1(0x7FFFFFFF);
    v16i top = vi_set1(0);
    for (int i = 0; i < SL_I8_GROUP; i += 16)
        top = vi_max(top, vi_and(v_bits(v_load(x + i)), magnitude));
    return top;
}

/* A bit for each column above the bound; how many. */
static int columns_above(const float *x, uint32_t bound, uint16_t at[SL_I8_GROUP / 16])
{
    const v16i magnitude = vi_set1(0x7FFFFFFF), b = vi_set1((int32_t)bound);
    int n = 0;
    for (int i = 0; i < SL_I8_GROUP / 16; i++) {
        at[i] = vi_signs(vi_sub(b, vi_and(v_bits(v_load(x + 16 * i)), magnitude)));
        n += __builtin_popcount(at[i]);
    }
    return n;
}

/* amax: the largest magnitude. Lanes above a bound are as many columns at least, which is the end
 * of it for most groups. */
static int find_outliers(const float *x, v16i top, uint32_t amax, uint16_t at[SL_I8_GROUP / 16])
{
    if (__builtin_popcount(vi_signs(vi_sub(vi_set1((int32_t)(amax - BITS_OF_2)), top))) >
        SL_I8_OUTLIERS)
        return 0;
    for (int k = SL_I8_LEVELS; k > 0; k--) {
        const int n = columns_above(x, amax - (uint32_t)k * BITS_OF_2, at);
        if (n <= sl_i8_most[k - 1])
            return n;
    }
    return 0;
}

/* Takes them out of the group. */
static void part_outliers(struct group_x *g, const uint16_t at[SL_I8_GROUP / 16])
{
    struct sl_i8_outliers *o = &g->outliers;
    memcpy(g->rest, g->x, sizeof g->rest);
    for (int i = 0; i < SL_I8_GROUP / 16; i++)
        for (unsigned bits = at[i]; bits != 0; bits &= bits - 1) {
            const int c = 16 * i + __builtin_ctz(bits);
            o->col[o->n] = (uint8_t)c;
            o->x[o->n++] = g->x[c];
            g->rest[c] = 0;
        }
    g->x = g->rest;
}

/* Columns [0, n) of x; those behind are zero. */
static void group_begin(struct group_x *g, const float *x, int n)
{
    uint16_t at[SL_I8_GROUP / 16];
    g->x = x;
    g->d = g->inv = 0;
    g->outliers.n = 0;
    if (n < SL_I8_GROUP) {
        memcpy(g->padded, x, (size_t)n * sizeof *x);
        memset(g->padded + n, 0, (size_t)(SL_I8_GROUP - n) * sizeof *x);
        g->x = g->padded;
    }
    const v16i top = largest_in_lanes(g->x);
    uint32_t amax = (uint32_t)vi_hmax(top);
    if (amax >= 0x7F800000u)
        g->d = NAN;
    if (amax >= 0x7F800000u || sl_f32_of_bits(amax) < SL_I8_TINY)
        return;
    if (find_outliers(g->x, top, amax, at) > 0) {
        part_outliers(g, at);
        amax = (uint32_t)vi_hmax(largest_in_lanes(g->x));
    }
    if (sl_f32_of_bits(amax) < SL_I8_TINY)
        return;
    g->d = sl_f32_of_bits(amax) / 127.0f;
    g->inv = 127.0f / sl_f32_of_bits(amax);
}
