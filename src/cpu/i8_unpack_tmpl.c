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

/* scale, bias: of each 16 columns. */
INLINE void put_strip(const uint8_t *p, const int more, const v16i scale[4], const v16i bias[4],
                      uint8_t *hi, uint8_t *lo)
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const struct quads c = load_quads(p, more, i);
        for (int h = 0; h < 2; h++) {
            const int f = i / 4 + 2 * h, q = i + 8 * h;
            put_quad(c.even[h], c.odd[h], scale[f], bias[f], hi + 64 * q, lo + 64 * q);
        }
    }
}

/* scale: two sub-blocks of 32 columns, the words of a row's dword. */
static inline void strip_4bit(const uint8_t *p, v16i scale, int zero, uint8_t *hi, uint8_t *lo)
{
    const v16i a = twice_low(scale), b = twice_high(scale);
    const v16i z = _mm512_set1_epi16((int16_t)zero);
    const v16i bias_a = _mm512_mullo_epi16(a, z), bias_b = _mm512_mullo_epi16(b, z);
    put_strip(p, 0, (const v16i[4]){a, a, b, b}, (const v16i[4]){bias_a, bias_a, bias_b, bias_b},
              hi, lo);
}

static inline void strip_5bit(const uint8_t *p, v16i scale, uint8_t *hi, uint8_t *lo)
{
    const v16i a = twice_low(scale), b = twice_high(scale), none = _mm512_setzero_si512();
    put_strip(p, 1, (const v16i[4]){a, a, b, b}, (const v16i[4]){none, none, none, none}, hi, lo);
}

/* scale: s8 of four sub-blocks of 16 columns in the order 0, 2, 1, 3. */
static inline void strip_6bit(const uint8_t *p, v16i scale, uint8_t *hi, uint8_t *lo)
{
    const v16i first = _mm512_srai_epi16(_mm512_slli_epi16(scale, 8), 8); /* words 0, 1 */
    const v16i second = _mm512_srai_epi16(scale, 8);                      /* words 2, 3 */
    const v16i s[4] = {twice_low(first), twice_high(first), twice_low(second), twice_high(second)};
    const v16i bias[4] = {words_sll(s[0], 5), words_sll(s[1], 5), words_sll(s[2], 5),
                          words_sll(s[3], 5)};
    put_strip(p, 2, s, bias, hi, lo);
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
