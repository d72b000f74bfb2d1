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

/* The low bits of quads i and i + 8 of a strip. */
struct nibbles {
    v16i even[2], odd[2];
};

static inline struct nibbles load_nibbles(const uint8_t *p)
{
    const v16i v = _mm512_loadu_si512(p), four = _mm512_set1_epi16(15);
    return (struct nibbles){
        .even = {vi_and(v, four), vi_and(_mm512_srli_epi16(v, 4), four)},
        .odd = {vi_and(_mm512_srli_epi16(v, 8), four), _mm512_srli_epi16(v, 12)},
    };
}

/* scale: two sub-blocks of 32 columns, the words of a row's dword. */
static inline void strip_4bit(const uint8_t *p, v16i scale, int zero, uint8_t *hi, uint8_t *lo)
{
    const v16i s[2] = {twice_low(scale), twice_high(scale)};
    const v16i z = _mm512_set1_epi16((int16_t)zero);
    const v16i bias[2] = {_mm512_mullo_epi16(s[0], z), _mm512_mullo_epi16(s[1], z)};
    for (int i = 0; i < 8; i++) {
        struct nibbles n = load_nibbles(p + 64 * i);
        for (int h = 0; h < 2; h++)
            put_quad(n.even[h], n.odd[h], s[h], bias[h], hi + 64 * (8 * h + i),
                     lo + 64 * (8 * h + i));
    }
}

static inline void strip_5bit(const uint8_t *p, v16i scale, uint8_t *hi, uint8_t *lo)
{
    const v16i s[2] = {twice_low(scale), twice_high(scale)}, none = _mm512_setzero_si512();
    const v16i bit4 = _mm512_set1_epi16(16);
    v16i even[2], odd[2]; /* the fifth bit of quad i in place 4 of each word */
    for (int h = 0; h < 2; h++) {
        v16i fifth = _mm512_loadu_si512(p + 64 * h);
        even[h] = _mm512_slli_epi16(fifth, 4);
        odd[h] = _mm512_srli_epi16(fifth, 4);
    }
    for (int i = 0; i < 8; i++) {
        struct nibbles n = load_nibbles(p + 128 + 64 * i);
        for (int h = 0; h < 2; h++) {
            put_quad(vi_or(n.even[h], vi_and(even[h], bit4)), vi_or(n.odd[h], vi_and(odd[h], bit4)),
                     s[h], none, hi + 64 * (8 * h + i), lo + 64 * (8 * h + i));
            even[h] = _mm512_srli_epi16(even[h], 1);
            odd[h] = _mm512_srli_epi16(odd[h], 1);
        }
    }
}

/* scale: s8 of four sub-blocks of 16 columns in the order 0, 2, 1, 3. */
static inline void strip_6bit(const uint8_t *p, v16i scale, uint8_t *hi, uint8_t *lo)
{
    const v16i first = _mm512_srai_epi16(_mm512_slli_epi16(scale, 8), 8); /* words 0, 1 */
    const v16i second = _mm512_srai_epi16(scale, 8);                      /* words 2, 3 */
    const v16i s[4] = {twice_low(first), twice_high(first), twice_low(second), twice_high(second)};
    const v16i bits45 = _mm512_set1_epi16(48);
    for (int i = 0; i < 4; i++) {
        v16i high = _mm512_loadu_si512(p + 64 * i);
        v16i even = _mm512_slli_epi16(high, 4), odd = _mm512_srli_epi16(high, 4);
        for (int j = 0; j < 2; j++) { /* vector i + 4 j: sub-blocks j and j + 2 */
            struct nibbles n = load_nibbles(p + 256 + 64 * (i + 4 * j));
            for (int h = 0; h < 2; h++) {
                const v16i e = h == 0 ? even : _mm512_srli_epi16(even, 4);
                const v16i o = h == 0 ? odd : _mm512_srli_epi16(odd, 4);
                const int f = j + 2 * h, q = 4 * f + i;
                put_quad(vi_or(n.even[h], vi_and(e, bits45)), vi_or(n.odd[h], vi_and(o, bits45)),
                         s[f], _mm512_slli_epi16(s[f], 5), hi + 64 * q, lo + 64 * q);
            }
            even = _mm512_srli_epi16(even, 2);
            odd = _mm512_srli_epi16(odd, 2);
        }
    }
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
