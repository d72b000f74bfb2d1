/* SPDX-License-Identifier: MIT
 * cset.c - character sets as ranges, and as byte languages.
 */
#include "grammar/cset.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/vocab.h"
#include "text/tokenizer/tok.h"

#include <string.h>

enum { MAX_CP = 0x10FFFF };

void sl_cset_deinit(struct sl_cset *s)
{
    sl_free(s->r);
    memset(s, 0, sizeof *s);
}

void sl_cset_add(struct sl_cset *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->cap) {
        uint32_t cap = s->cap == 0 ? 8 : s->cap * 2;
        void *p = sl_realloc(s->r, cap * sizeof s->r[0]);
        if (p == NULL) {
            s->failed = true;
            return;
        }
        s->r = p;
        s->cap = cap;
    }
    s->r[s->n][0] = lo;
    s->r[s->n++][1] = hi;
}

static void sort_ranges(uint32_t (*v)[2], uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            uint32_t lo = v[i][0], hi = v[i][1], j = i;
            for (; j >= gap && v[j - gap][0] > lo; j -= gap) {
                v[j][0] = v[j - gap][0];
                v[j][1] = v[j - gap][1];
            }
            v[j][0] = lo;
            v[j][1] = hi;
        }
}

void sl_cset_done(struct sl_cset *s)
{
    uint32_t n = 0;
    sort_ranges(s->r, s->n);
    for (uint32_t i = 0; i < s->n; i++) {
        if (n > 0 && s->r[i][0] <= s->r[n - 1][1] + 1) {
            s->r[n - 1][1] = SL_MAX(s->r[n - 1][1], s->r[i][1]);
            continue;
        }
        s->r[n][0] = s->r[i][0];
        s->r[n++][1] = s->r[i][1];
    }
    s->n = n;
}

void sl_cset_negate(struct sl_cset *s)
{
    struct sl_cset out = {0};
    uint32_t next = 0;
    sl_cset_done(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->r[i][0] > next)
            sl_cset_add(&out, next, s->r[i][0] - 1);
        next = s->r[i][1] + 1;
    }
    if (next <= MAX_CP)
        sl_cset_add(&out, next, MAX_CP);
    out.failed = out.failed || s->failed;
    sl_cset_deinit(s);
    *s = out;
}

void sl_cset_add_all(struct sl_cset *s, const struct sl_cset *from, bool negated)
{
    struct sl_cset copy = {0};
    for (uint32_t i = 0; i < from->n; i++)
        sl_cset_add(&copy, from->r[i][0], from->r[i][1]);
    if (negated)
        sl_cset_negate(&copy);
    for (uint32_t i = 0; i < copy.n; i++)
        sl_cset_add(s, copy.r[i][0], copy.r[i][1]);
    s->failed = s->failed || copy.failed || from->failed;
    sl_cset_deinit(&copy);
}

void sl_cset_add_class(struct sl_cset *s, char name)
{
    static const uint32_t digit[][2] = {{'0', '9'}};
    static const uint32_t word[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const uint32_t space[][2] = {
        {9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    static const uint32_t line_end[][2] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    struct sl_cset one = {0};
    char lower = name == '.' ? '.' : (char)(name | 0x20);
    const uint32_t(*v)[2] = lower == 'd' ? digit : lower == 'w' ? word : space;
    size_t n = lower == 'd' ? SL_COUNT(digit) : lower == 'w' ? SL_COUNT(word) : SL_COUNT(space);
    if (lower == '.') {
        v = line_end;
        n = SL_COUNT(line_end);
    }
    for (size_t i = 0; i < n; i++)
        sl_cset_add(&one, v[i][0], v[i][1]);
    sl_cset_add_all(s, &one, name == '.' || (name >= 'A' && name <= 'Z'));
    s->failed = s->failed || one.failed;
    sl_cset_deinit(&one);
}

/* General categories by name, as masks over enum tok_cat. */
struct category {
    const char *name, *long_name;
    uint32_t mask;
};
#define C(cat) (1u << (cat))
#define LC     (C(CAT_LU) | C(CAT_LL) | C(CAT_LT))
#define ALL_L  (LC | C(CAT_LM) | C(CAT_LO))
#define ALL_M  (C(CAT_MN) | C(CAT_MC) | C(CAT_ME))
#define ALL_N  (C(CAT_ND) | C(CAT_NL) | C(CAT_NO))
#define ALL_P  (C(CAT_PC) | C(CAT_PD) | C(CAT_PS) | C(CAT_PE) | C(CAT_PI) | C(CAT_PF) | C(CAT_PO))
#define ALL_S  (C(CAT_SM) | C(CAT_SC) | C(CAT_SK) | C(CAT_SO))
#define ALL_Z  (C(CAT_ZS) | C(CAT_ZL) | C(CAT_ZP))
#define ALL_C  (C(CAT_CC) | C(CAT_CF) | C(CAT_CS) | C(CAT_CO) | C(CAT_CN))

static const struct category categories[] = {
    {"L", "Letter", ALL_L},
    {"LC", "Cased_Letter", LC},
    {"Lu", "Uppercase_Letter", C(CAT_LU)},
    {"Ll", "Lowercase_Letter", C(CAT_LL)},
    {"Lt", "Titlecase_Letter", C(CAT_LT)},
    {"Lm", "Modifier_Letter", C(CAT_LM)},
    {"Lo", "Other_Letter", C(CAT_LO)},
    {"M", "Mark", ALL_M},
    {"Mn", "Nonspacing_Mark", C(CAT_MN)},
    {"Mc", "Spacing_Mark", C(CAT_MC)},
    {"Me", "Enclosing_Mark", C(CAT_ME)},
    {"N", "Number", ALL_N},
    {"Nd", "digit", C(CAT_ND)},
    {"Nd", "Decimal_Number", C(CAT_ND)},
    {"Nl", "Letter_Number", C(CAT_NL)},
    {"No", "Other_Number", C(CAT_NO)},
    {"P", "Punctuation", ALL_P},
    {"Pc", "Connector_Punctuation", C(CAT_PC)},
    {"Pd", "Dash_Punctuation", C(CAT_PD)},
    {"Ps", "Open_Punctuation", C(CAT_PS)},
    {"Pe", "Close_Punctuation", C(CAT_PE)},
    {"Pi", "Initial_Punctuation", C(CAT_PI)},
    {"Pf", "Final_Punctuation", C(CAT_PF)},
    {"Po", "Other_Punctuation", C(CAT_PO)},
    {"S", "Symbol", ALL_S},
    {"Sm", "Math_Symbol", C(CAT_SM)},
    {"Sc", "Currency_Symbol", C(CAT_SC)},
    {"Sk", "Modifier_Symbol", C(CAT_SK)},
    {"So", "Other_Symbol", C(CAT_SO)},
    {"Z", "Separator", ALL_Z},
    {"Zs", "Space_Separator", C(CAT_ZS)},
    {"Zl", "Line_Separator", C(CAT_ZL)},
    {"Zp", "Paragraph_Separator", C(CAT_ZP)},
    {"C", "Other", ALL_C},
    {"Cc", "Control", C(CAT_CC)},
    {"Cf", "Format", C(CAT_CF)},
    {"Co", "Private_Use", C(CAT_CO)},
    {"Cn", "Unassigned", C(CAT_CN)},
};

static bool cset_same(const char *name, size_t n, const char *s)
{
    return strlen(s) == n && memcmp(name, s, n) == 0;
}

bool sl_cset_add_property(struct sl_cset *s, const char *name, size_t n, bool negated)
{
    struct sl_cset one = {0};
    uint32_t mask = 0;
    static const char *const prefixes[] = {"gc=", "General_Category="};
    for (size_t i = 0; i < SL_COUNT(prefixes); i++)
        if (n > strlen(prefixes[i]) && memcmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            name += strlen(prefixes[i]);
            n -= strlen(prefixes[i]);
        }
    if (cset_same(name, n, "Any"))
        sl_cset_add(&one, 0, MAX_CP);
    if (cset_same(name, n, "ASCII"))
        sl_cset_add(&one, 0, 0x7F);
    for (size_t i = 0; i < SL_COUNT(categories); i++)
        if (cset_same(name, n, categories[i].name) || cset_same(name, n, categories[i].long_name))
            mask = categories[i].mask;
    if (mask == 0 && one.n == 0)
        return false;
    for (uint32_t cp = 0, from = 0; mask != 0 && cp <= MAX_CP + 1; cp++) {
        bool in = cp <= MAX_CP && (mask >> (tok_uni_prop(cp) & UNI_CAT) & 1) != 0;
        if (!in && cp > from)
            sl_cset_add(&one, from, cp - 1);
        if (!in)
            from = cp + 1;
    }
    sl_cset_add_all(s, &one, negated);
    s->failed = s->failed || one.failed;
    sl_cset_deinit(&one);
    return true;
}

void sl_cset_fold_ascii(struct sl_cset *s)
{
    for (uint32_t i = 0, n = s->n; i < n; i++)
        for (uint32_t c = 'A'; c <= 'Z'; c++) {
            if (c >= s->r[i][0] && c <= s->r[i][1])
                sl_cset_add(s, c | 0x20, c | 0x20);
            if ((c | 0x20) >= s->r[i][0] && (c | 0x20) <= s->r[i][1])
                sl_cset_add(s, c, c);
        }
    sl_cset_done(s);
}

/* The characters whose last n bytes' payload is lo..hi; lead: the fixed bits of the first of them.
 */
static sl_rx_id utf8_tail(struct sl_rx *rx, uint32_t lo, uint32_t hi, int n, uint32_t lead)
{
    uint32_t shift = 6u * (uint32_t)(n - 1), mask = (1u << shift) - 1;
    sl_rx_id out = SL_RX_NONE;
    if (n == 1)
        return sl_rx_range(rx, lead | lo, lead | hi);
    while (lo <= hi) { /* pieces that share a first byte, or whose later bytes are free */
        uint32_t end = lo >> shift == hi >> shift || ((lo & mask) == 0 && (hi & mask) == mask) ? hi
                       : (lo & mask) != 0 ? lo | mask
                                          : (hi & ~mask) - 1;
        sl_rx_id first = sl_rx_range(rx, lead | lo >> shift, lead | end >> shift);
        sl_rx_id rest = utf8_tail(rx, lo & mask, end & mask, n - 1, 0x80);
        out = sl_rx_or2(rx, out, sl_rx_cat(rx, first, rest));
        lo = end + 1;
    }
    return out;
}

static sl_rx_id utf8_range(struct sl_rx *rx, uint32_t lo, uint32_t hi)
{
    static const struct {
        uint32_t lo, hi, lead;
    } part[] = {{0, 0x7F, 0},
                {0x80, 0x7FF, 0xC0},
                {0x800, 0xD7FF, 0xE0},
                {0xE000, 0xFFFF, 0xE0},
                {0x10000, MAX_CP, 0xF0}};
    static const int n_bytes[] = {1, 2, 3, 3, 4};
    sl_rx_id out = SL_RX_NONE;
    for (size_t i = 0; i < SL_COUNT(part); i++) {
        uint32_t a = SL_MAX(lo, part[i].lo), b = SL_MIN(hi, part[i].hi);
        if (a <= b)
            out = sl_rx_or2(rx, out, utf8_tail(rx, a, b, n_bytes[i], part[i].lead));
    }
    return out;
}

/* How one of the characters that JSON does not let stand for itself is written. */
static sl_rx_id cset_escaped(struct sl_rx *rx, uint32_t c, enum sl_spelling spelling)
{
    static const char shorts[][2] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                     {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
    sl_rx_id out = SL_RX_NONE;
    for (size_t i = 0; i < SL_COUNT(shorts); i++)
        if ((uint32_t)shorts[i][0] == c)
            out = sl_rx_lit(rx, (char[]){'\\', shorts[i][1]}, 2);
    if (c >= 0x20 || (spelling == SL_SPELL_KEY && out != SL_RX_NONE))
        return out;
    char hex[] = "\\u00", low = "0123456789abcdef"[c & 15];
    struct sl_rx_bytes last = {0};
    sl_rx_bytes_add(&last, (uint8_t)low, (uint8_t)low);
    if (low >= 'a' && spelling != SL_SPELL_KEY)
        sl_rx_bytes_add(&last, (uint8_t)low & 0xDFu, (uint8_t)low & 0xDFu);
    sl_rx_id id =
        sl_rx_cat(rx, sl_rx_range(rx, '0' + (c >> 4), '0' + (c >> 4)), sl_rx_set(rx, &last));
    return sl_rx_or2(rx, out, sl_rx_cat(rx, sl_rx_lit(rx, hex, 4), id));
}

static sl_rx_id one_range(struct sl_rx *rx, uint32_t lo, uint32_t hi, enum sl_spelling spelling)
{
    sl_rx_id out = SL_RX_NONE;
    if (spelling == SL_SPELL_UTF8)
        return utf8_range(rx, lo, hi);
    static const uint32_t raw[][2] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, MAX_CP}};
    for (size_t i = 0; i < SL_COUNT(raw); i++) {
        uint32_t a = SL_MAX(lo, raw[i][0]), b = SL_MIN(hi, raw[i][1]);
        if (a <= b)
            out = sl_rx_or2(rx, out, utf8_range(rx, a, b));
    }
    for (uint32_t c = 0; c <= '\\'; c++)
        if (c >= lo && c <= hi && (c < 0x20 || c == '"' || c == '\\'))
            out = sl_rx_or2(rx, out, cset_escaped(rx, c, spelling));
    return out;
}

/* How many of the characters of the set are in lo..hi? */
static uint32_t count_in(const struct sl_cset *s, uint32_t lo, uint32_t hi)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t a = SL_MAX(lo, s->r[i][0]), b = SL_MIN(hi, s->r[i][1]);
        n += a <= b ? b - a + 1 : 0;
    }
    return n;
}

/* Has the set all plain characters beyond ASCII, or none? Surrogates are none. */
static bool is_uniform(const struct sl_cset *s)
{
    uint32_t has = 0, all = 0;
    for (size_t i = 0; i < SL_PLAIN_RANGES; i++) {
        const uint32_t lo = SL_MAX(sl_plain_ranges[i][0], 0x80u), hi = sl_plain_ranges[i][1];
        has += count_in(s, lo, hi);
        all += hi >= lo ? hi - lo + 1 : 0;
    }
    has -= count_in(s, 0xD800, 0xDFFF);
    SL_ASSERT(has <= all);
    return has == 0 || has == all - 0x800;
}

sl_rx_id sl_cset_rx(struct sl_rx *rx, struct sl_cset *s, enum sl_spelling spelling)
{
    sl_rx_id out = SL_RX_NONE;
    sl_cset_done(s);
    for (uint32_t i = 0; i < s->n; i++)
        out = sl_rx_or2(rx, out, one_range(rx, s->r[i][0], s->r[i][1], spelling));
    if (out > SL_RX_EPS && is_uniform(s))
        rx->nodes[out].uniform = true;
    if (out > SL_RX_EPS && spelling != SL_SPELL_UTF8)
        sl_rx_is_char(rx, out);
    return out;
}

sl_rx_id sl_cset_any(struct sl_rx *rx, enum sl_spelling spelling)
{
    sl_rx_id out = one_range(rx, 0, MAX_CP, spelling);
    if (out <= SL_RX_EPS) /* a limit was hit */
        return out;
    rx->nodes[out].uniform = true;
    if (spelling != SL_SPELL_UTF8)
        sl_rx_is_char(rx, out);
    if (spelling == SL_SPELL_JSON) {
        rx->any_chars = sl_rx_rep(rx, out, 0, SL_RX_INF);
        rx->any_text = sl_rx_cat(rx, rx->any_chars, sl_rx_range(rx, '"', '"'));
    }
    return out;
}

sl_rx_id sl_cset_text(struct sl_rx *rx, const char *text, size_t n, enum sl_spelling spelling)
{
    sl_rx_id id = SL_RX_EPS;
    if (spelling == SL_SPELL_UTF8)
        return sl_rx_lit(rx, text, n);
    for (size_t i = n; i-- > 0;) {
        uint8_t c = (uint8_t)text[i];
        bool raw = c >= 0x20 && c != '"' && c != '\\';
        id = sl_rx_cat(rx, raw ? sl_rx_range(rx, c, c) : cset_escaped(rx, c, spelling), id);
    }
    return id;
}
