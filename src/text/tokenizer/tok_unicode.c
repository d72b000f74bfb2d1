/* SPDX-License-Identifier: MIT
 * tok_unicode.c - character properties, normal-form pieces, graphemes, the byte-level alphabet.
 *
 * Tables come from tools/gen_unicode.py, which says what is of which Unicode version. Hangul
 * syllables compose by arithmetic (The Unicode Standard, section 3.12).
 */
#include "base/check.h"
#include "base/str.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#include "text/tokenizer/tok_unicode_tables.inc"

enum { HANGUL_S = 0xAC00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11A7 };
enum { N_HANGUL_L = 19, N_HANGUL_V = 21, N_HANGUL_T = 28, N_HANGUL_S = 11172 };

unsigned tok_uni_prop(uint32_t cp)
{
    if (cp > 0x10FFFF)
        return CAT_CN;
    size_t block = uni_prop_index[cp >> UNI_PROP_SHIFT];
    return uni_prop_data[block << UNI_PROP_SHIFT | (cp & ((1u << UNI_PROP_SHIFT) - 1))];
}

uint32_t tok_uni_stand_in(uint32_t cp)
{
    size_t lo = 0, hi = SL_COUNT(uni_newer) / 3;
    if (cp < uni_newer[0] || cp > 0x10FFFF)
        return cp;
    while (lo < hi) { /* the first range that does not end before cp */
        size_t mid = (lo + hi) / 2;
        if (uni_newer[3 * mid + 1] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < SL_COUNT(uni_newer) / 3 && uni_newer[3 * lo] <= cp)
        return uni_newer[3 * lo + 2];
    if ((tok_uni_prop(cp) & UNI_CAT) == CAT_CN) /* a newer PCRE2 may know it */
        return cp < 0x10000 ? 0xFDD0 : 0x1FFFE;
    return cp;
}

unsigned tok_uni_ccc(uint32_t cp)
{
    if (cp > 0x10FFFF)
        return 0;
    size_t block = uni_ccc_index[cp >> UNI_CCC_SHIFT];
    return uni_ccc_data[block << UNI_CCC_SHIFT | (cp & ((1u << UNI_CCC_SHIFT) - 1))];
}

unsigned tok_uni_decompose(uint32_t cp, bool compat, uint32_t out[TOK_DECOMP_MAX])
{
    out[0] = cp;
    if (cp >= HANGUL_S && cp < HANGUL_S + N_HANGUL_S) {
        uint32_t i = cp - HANGUL_S;
        out[0] = HANGUL_L + i / (N_HANGUL_V * N_HANGUL_T);
        out[1] = HANGUL_V + i % (N_HANGUL_V * N_HANGUL_T) / N_HANGUL_T;
        out[2] = HANGUL_T + i % N_HANGUL_T;
        return i % N_HANGUL_T != 0 ? 3 : 2;
    }
    if (cp < 0xA0 || cp > 0x10FFFF)
        return 1;
    size_t block = uni_decomp_index[cp >> UNI_DECOMP_SHIFT];
    size_t at = uni_decomp_data[block << UNI_DECOMP_SHIFT | (cp & ((1u << UNI_DECOMP_SHIFT) - 1))];
    if (at == 0)
        return 1;
    unsigned n_canon = uni_decomp_pool[at] & 255u, n_compat = uni_decomp_pool[at] >> 8;
    const uint16_t *p = &uni_decomp_pool[at + 1];
    unsigned n = n_canon, k = 0;
    if (compat && n_compat > 0) {
        p += n_canon;
        n = n_compat;
    }
    for (unsigned i = 0; i < n && k < TOK_DECOMP_MAX; k++) {
        out[k] = p[i++];
        if ((out[k] & 0xFC00) == 0xD800)
            out[k] = 0x10000 + ((out[k] & 0x3FFu) << 10) + (p[i++] & 0x3FFu);
    }
    return n == 0 ? 1 : k;
}

uint32_t tok_uni_compose(uint32_t a, uint32_t b)
{
    if (a >= HANGUL_L && a < HANGUL_L + N_HANGUL_L && b >= HANGUL_V && b < HANGUL_V + N_HANGUL_V)
        return HANGUL_S + ((a - HANGUL_L) * N_HANGUL_V + (b - HANGUL_V)) * N_HANGUL_T;
    if (a >= HANGUL_S && a < HANGUL_S + N_HANGUL_S && (a - HANGUL_S) % N_HANGUL_T == 0 &&
        b > HANGUL_T && b < HANGUL_T + N_HANGUL_T)
        return a + (b - HANGUL_T);
    size_t lo = 0, hi = SL_COUNT(uni_comp_result);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const uint32_t *p = &uni_comp_pair[2 * mid];
        if (p[0] == a && p[1] == b)
            return uni_comp_result[mid];
        if (p[0] < a || (p[0] == a && p[1] < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

unsigned tok_uni_lower(uint32_t cp, uint32_t out[2])
{
    out[0] = cp;
    if (cp < 0x80) {
        if (cp >= 'A' && cp <= 'Z')
            out[0] = cp + 32;
        return 1;
    }
    if (cp == 0x130) { /* the one unconditional mapping to two characters */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    size_t lo = 0, hi = SL_COUNT(uni_lower_from);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (uni_lower_from[mid] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < SL_COUNT(uni_lower_from) && uni_lower_from[lo] == cp)
        out[0] = uni_lower_to[lo];
    return 1;
}

size_t tok_char(const char *s, size_t n, uint32_t *cp)
{
    size_t len = sl_utf8_decode(s, n, cp);
    if (len != 0)
        return len;
    *cp = 0xFFFD;
    return 1;
}

static int hangul_kind(uint32_t cp) /* 1 L, 2 V, 3 T, 4 LV, 5 LVT */
{
    if ((cp >= 0x1100 && cp <= 0x115F) || (cp >= 0xA960 && cp <= 0xA97C))
        return 1;
    if ((cp >= 0x1160 && cp <= 0x11A7) || (cp >= 0xD7B0 && cp <= 0xD7C6))
        return 2;
    if ((cp >= 0x11A8 && cp <= 0x11FF) || (cp >= 0xD7CB && cp <= 0xD7FB))
        return 3;
    if (cp >= HANGUL_S && cp < HANGUL_S + N_HANGUL_S)
        return (cp - HANGUL_S) % N_HANGUL_T == 0 ? 4 : 5;
    return 0;
}

/* Is there no boundary between a and b? Emoji sequences and flags are longer than the six bytes
 * below which the one caller looks at clusters, so they need no rule. */
static bool grapheme_joins(uint32_t a, uint32_t b)
{
    if (a == '\r')
        return b == '\n';
    unsigned pa = tok_uni_prop(a), pb = tok_uni_prop(b);
    unsigned ca = pa & UNI_CAT, cb = pb & UNI_CAT;
    bool ctl_a = (ca == CAT_CC || ca == CAT_ZL || ca == CAT_ZP || ca == CAT_CF || ca == CAT_CS) &&
                 !(pa & (UNI_EXTEND | UNI_PREPEND));
    bool ctl_b = (cb == CAT_CC || cb == CAT_ZL || cb == CAT_ZP || cb == CAT_CF || cb == CAT_CS) &&
                 !(pb & (UNI_EXTEND | UNI_PREPEND));
    if (ctl_a || ctl_b)
        return false;
    if ((pb & UNI_EXTEND) || (pa & UNI_PREPEND))
        return true;
    int ka = hangul_kind(a), kb = hangul_kind(b);
    if (ka == 1)
        return kb == 1 || kb == 2 || kb == 4 || kb == 5;
    if (ka == 4 || ka == 2)
        return kb == 2 || kb == 3;
    return (ka == 5 || ka == 3) && kb == 3;
}

size_t tok_grapheme_len(const char *s, size_t n)
{
    uint32_t cp, next;
    size_t len = tok_char(s, n, &cp);
    while (len < n) {
        size_t k = tok_char(s + len, n - len, &next);
        if (!grapheme_joins(cp, next))
            break;
        cp = next;
        len += k;
    }
    return len;
}

size_t tok_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t v;
        while (n - i >= 8) {
            memcpy(&v, s + i, 8);
            if (v & 0x8080808080808080u)
                break;
            i += 8;
        }
        if (i == n)
            break;
        size_t len = sl_utf8_valid_len(s + i, n - i);
        if (len == 0)
            break;
        i += len;
    }
    return i;
}

void tok_sanitize(struct sl_buf *out, const char *s, size_t n)
{
    while (n > 0) {
        size_t good = tok_valid_prefix(s, n);
        sl_buf_put(out, s, good);
        s += good;
        n -= good;
        if (n == 0)
            return;
        /* The longest beginning of a character, or else one byte, is one replacement. */
        size_t bad = 1;
        for (size_t k = 2; k <= 3 && k <= n; k++) {
            if (sl_utf8_incomplete_tail(s, k) == k)
                bad = k;
        }
        sl_buf_put(out, "\xEF\xBF\xBD", 3);
        s += bad;
        n -= bad;
    }
}

void tok_put_cp(struct sl_buf *out, uint32_t cp)
{
    char utf8[4];
    sl_buf_put(out, utf8, sl_utf8_encode(cp, utf8));
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100.. in order
 */
uint32_t tok_cp_of_byte(uint8_t b)
{
    if ((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD))
        return b;
    if (b <= 0x20)
        return 0x100u + b;
    if (b <= 0xA0)
        return 0x121u + (b - 0x7Fu);
    return 0x143;
}

int tok_byte_of_cp(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xFF && cp != 0xAD))
        return (int)cp;
    if (cp >= 0x100 && cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp >= 0x121 && cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}
