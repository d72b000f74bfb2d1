/* SPDX-License-Identifier: MIT
 * Codes of block formats to tiles of bytes: a weight is v = scale * (code - zero), 15 bits with
 * sign, and v = 128 * hi + lo. Included by i8_amx_tmpl.c.
 */
/* Columns of a quad lie in the even and odd bytes; as words they are multiplied by the sub-block's
 * scale (a word twice in a row's dword). bias: scale * zero. */
static inline void put_quad(v16i even, v16i odd, v16i scale, v16i bias, uint8_t *hi, uint8_t *lo)
{
    const v16i low_bytes = _mm512_set1_epi16(0xFF), seven = _mm512_set1_epi8(0x7F);
    even = _mm512_sub_epi16(_mm512_mullo_epi16(even, scale), bias);
    odd = _mm512_sub_epi16(_mm512_mullo_epi16(odd, scale), bias);
    /* 0xCA: low_bytes ? second : third */
    v16i h = _mm512_ternarylogic_epi32(low_bytes, _mm512_srli_epi16(even, 7),
                                       _mm512_slli_epi16(odd, 1), 0xCA);
    v16i l = _mm512_ternarylogic_epi32(low_bytes, even, _mm512_slli_epi16(odd, 8), 0xCA);
    _mm512_store_si512(hi, h);
    _mm512_store_si512(lo, vi_and(l, seven));
}

static inline v16i twice_low(v16i words) /* the low word of each dword in both halves */
{
    return _mm512_or_si512(_mm512_and_si512(words, vi_set1(0xFFFF)), vi_sll(words, 16));
}

static inline v16i twice_high(v16i words)
{
    return _mm512_ternarylogic_epi32(vi_set1(0xFFFF), vi_srl(words, 16), words, 0xCA);
}

/* As vectors of the compiler's: the intrinsics want a literal even where loops are unrolled. */
typedef uint16_t i8_words __attribute__((vector_size(64)));

static inline v16i words_srl(v16i a, int n)
{
    return (v16i)((i8_words)a >> (uint16_t)n);
}

static inline v16i words_sll(v16i a, int n)
{
    return (v16i)((i8_words)a << (uint16_t)n);
}

/* Codes of quads i and i + 8 of a strip as words: of the even and of the odd columns. */
struct quads {
    v16i even[2], odd[2];
};

static inline v16i with_bits(v16i bits, int mask, v16i code)
{
    return _mm512_ternarylogic_epi32(bits, _mm512_set1_epi16((int16_t)mask), code, 0xEA);
}

/* more: bits beyond four; i8.h says where they are. */
INLINE struct quads load_quads(const uint8_t *strip, const int more, int i)
{
    const int per_plane = more == 0 ? 8 : 4 / more, ones = (1 << more) - 1;
    const uint8_t *plane = strip + 64 * (i / per_plane) * (per_plane + (more > 0));
    const v16i v = _mm512_loadu_si512(plane + 64 * (i % per_plane + (more > 0)));
    const v16i four = _mm512_set1_epi16(15), high = _mm512_set1_epi16((int16_t)(15 << more));
    struct quads c = {
        .even = {vi_and(v, four), vi_and(words_srl(v, 4 - more), high)},
        .odd = {vi_and(words_srl(v, 8), four), words_srl(v, 12 - more)},
    };
    if (more == 0)
        return c;
    const v16i bits = words_srl(_mm512_loadu_si512(plane), 2 * more * (i % per_plane));
    c.even[0] = with_bits(words_sll(bits, 4 - more), ones << 4, c.even[0]);
    c.even[1] = with_bits(bits, ones, c.even[1]);
    c.odd[0] = with_bits(words_srl(bits, 4 + more), ones << 4, c.odd[0]);
    c.odd[1] = with_bits(words_srl(bits, 8), ones, vi_and(c.odd[1], high));
    return c;
}

/* Codes to what a table has in their place; the upper byte of a word stays zero. */
static inline v16i looked_up(v16i table, v16i codes)
{
    return _mm512_maskz_shuffle_epi8(0x5555555555555555u, table, codes);
}

/* scale, bias: of each 16 columns; table: of the codes, or NULL. */
INLINE void put_strip(const uint8_t *p, const int more, const uint8_t *table, const v16i scale[4],
                      const v16i bias[4], uint8_t *hi, uint8_t *lo)
{
    const v16i t = table != NULL ? _mm512_loadu_si512(table) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        struct quads c = load_quads(p, more, i);
        for (int h = 0; table != NULL && h < 2; h++) {
            c.even[h] = looked_up(t, c.even[h]);
            c.odd[h] = looked_up(t, c.odd[h]);
        }
        for (int h = 0; h < 2; h++) {
            const int f = i / 4 + 2 * h, q = i + 8 * h;
            put_quad(c.even[h], c.odd[h], scale[f], bias[f], hi + 64 * q, lo + 64 * q);
        }
    }
}

/* Scales of each 16 columns of a strip, from those of two sub-blocks of 32, words of a dword. */
static inline void scales_of_32(v16i scale, v16i s[4])
{
    s[0] = s[1] = twice_low(scale);
    s[2] = s[3] = twice_high(scale);
}

/* From s8 of four sub-blocks of 16 columns, in the order 0, 2, 1, 3. */
static inline void scales_of_16(v16i scale, v16i s[4])
{
    const v16i first = _mm512_srai_epi16(_mm512_slli_epi16(scale, 8), 8); /* words 0, 1 */
    const v16i second = _mm512_srai_epi16(scale, 8);                      /* words 2, 3 */
    s[0] = twice_low(first);
    s[1] = twice_high(first);
    s[2] = twice_low(second);
    s[3] = twice_high(second);
}

/* Of strip i, from the shifts of its two sub-blocks of 32 columns. */
static inline void mxfp4_scales(const uint8_t *shifts, int i, v16i s[4])
{
    const v16i v = _mm512_loadu_si512(shifts), one = vi_set1(SL_I8_MXFP4_ONE);
    const v16i four = vi_set1(15);
    for (int k = 0; k < 2; k++) {
        const v16i shift = vi_and(_mm512_srlv_epi32(v, vi_set1(8 * i + 4 * k)), four);
        const v16i scale = _mm512_srlv_epi32(one, shift);
        s[2 * k] = s[2 * k + 1] = vi_or(scale, vi_sll(scale, 16));
    }
}

/* The code that stands for zero is 1 << zero; below 0: code 0. */
INLINE void strip_codes(const uint8_t *p, const int more, int zero, const v16i s[4], uint8_t *hi,
                        uint8_t *lo)
{
    v16i bias[4];
    for (int i = 0; i < 4; i++)
        bias[i] = zero < 0 ? _mm512_setzero_si512() : words_sll(s[i], zero);
    put_strip(p, more, NULL, s, bias, hi, lo);
}

static inline void strip_table(const uint8_t *p, const v16i s[4], const uint8_t *table, uint8_t *hi,
                               uint8_t *lo)
{
    v16i bias[4];
    for (int i = 0; i < 4; i++)
        bias[i] = words_sll(s[i], 7);
    put_strip(p, 0, table, s, bias, hi, lo);
}

/* Scales of strip i of a K format's head: words of two neighbouring sub-blocks. */
static inline v16i qk_scale(const uint8_t *packed, int i)
{
    v16i v = _mm512_loadu_si512(packed + 64 * (i / 2));
    return vi_and(i % 2 == 0 ? v : _mm512_srli_epi16(v, 6), _mm512_set1_epi16(63));
}

static inline void qk_mins(const uint8_t *packed, v16i min[STRIPS])
{
    const v16i a = _mm512_loadu_si512(packed), b = _mm512_loadu_si512(packed + 64);
    const v16i c = _mm512_loadu_si512(packed + 128), six = _mm512_set1_epi16(63);
    const v16i top = _mm512_set1_epi16(48);
    min[0] = vi_and(c, six);
    min[1] = vi_and(_mm512_srli_epi16(c, 6), six);
    min[2] = vi_or(_mm512_srli_epi16(a, 12), vi_and(_mm512_srli_epi16(c, 8), top));
    min[3] = vi_or(_mm512_srli_epi16(b, 12), vi_and(_mm512_srli_epi16(c, 10), top));
}

/* Upper halves of the bytes beside the scales: of sub-blocks of 16 columns. */
static inline void q2_k_mins(const uint8_t *packed, v16i min[2 * STRIPS])
{
    const v16i four = _mm512_set1_epi16(15);
    for (int s = 0; s < STRIPS; s++) {
        const v16i v = _mm512_loadu_si512(packed + 64 * s);
        min[2 * s] = vi_and(_mm512_srli_epi16(v, 4), four);
        min[2 * s + 1] = _mm512_srli_epi16(v, 12);
    }
}
