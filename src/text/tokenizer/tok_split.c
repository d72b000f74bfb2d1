/* SPDX-License-Identifier: MIT
 * tok_split.c - hand-written matchers for the pre-tokenizer patterns of the large model families.
 *
 * Each gives the splits of a backtracking matcher on its pattern, worked out once by hand instead
 * of per character: where the pattern says "greedy, then give back until the rest fits", the code
 * remembers the last place that would fit. An invalid byte counts as a symbol of its own.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/tokenizer/tok.h"

#include <string.h>

enum {
    C_L = 1,      /* \p{L} */
    C_N = 2,      /* \p{N} */
    C_S = 4,      /* \s */
    C_NL = 8,     /* \r \n */
    C_UP = 16,    /* Lu Lt Lm Lo M */
    C_LOW = 32,   /* Ll Lm Lo M */
    C_APOS = 64,  /* ' */
    C_SLASH = 128 /* / */
};

#define P_CONTRACTIONS  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define P_UP            "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define P_LOW           "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define P_LEAD          "[^\\r\\n\\p{L}\\p{N}]?"
#define P_SPACES        "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define P_CASES(suffix) P_LEAD P_UP "*" P_LOW "+" suffix "|" P_LEAD P_UP "+" P_LOW "*" suffix "|"
/* The same contractions as some files spell them, without an inline flag. */
#define P_SPELLED "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

static const struct {
    enum tok_fast kind;
    const char *pattern;
} known[] = {
    {TOK_FAST_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    /* the gaps of the pattern without its last branch are what that branch would match */
    {TOK_FAST_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"},
    {TOK_FAST_GPT2_TAIL, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|"
                         "\\s+(?!\\S)|\\s"},
    {TOK_FAST_GPT2,
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {TOK_FAST_LLAMA3,
     P_CONTRACTIONS "|" P_LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" P_SPACES},
    {TOK_FAST_CL100K, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?"
                      "[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"},
    {TOK_FAST_QWEN2,
     P_CONTRACTIONS "|" P_LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" P_SPACES},
    {TOK_FAST_O200K,
     P_CASES(P_CONTRACTIONS "?") "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" P_SPACES},
    {TOK_FAST_TEKKEN, P_CASES("") "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" P_SPACES},
};

enum tok_fast tok_fast_kind(const char *pattern, size_t n)
{
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        if (strlen(known[i].pattern) == n && memcmp(known[i].pattern, pattern, n) == 0)
            return known[i].kind;
    }
    return TOK_FAST_NONE;
}

/* ---------------------------------------------------------------- character classes */

#define LETTER_UP  (C_L | C_UP)
#define LETTER_LOW (C_L | C_LOW)

static const uint8_t class_of_cat[30] = {
    [CAT_LU] = C_L | C_UP,
    [CAT_LL] = C_L | C_LOW,
    [CAT_LT] = C_L | C_UP,
    [CAT_LM] = C_L | C_UP | C_LOW,
    [CAT_LO] = C_L | C_UP | C_LOW,
    [CAT_MN] = C_UP | C_LOW,
    [CAT_MC] = C_UP | C_LOW,
    [CAT_ME] = C_UP | C_LOW,
    [CAT_ND] = C_N,
    [CAT_NL] = C_N,
    [CAT_NO] = C_N,
};

static const uint8_t class_of_ascii[128] = {
    ['\t'] = C_S,        ['\n'] = C_S | C_NL, ['\v'] = C_S,       ['\f'] = C_S,
    ['\r'] = C_S | C_NL, [' '] = C_S,         ['\''] = C_APOS,    ['/'] = C_SLASH,
    ['0'] = C_N,         ['1'] = C_N,         ['2'] = C_N,        ['3'] = C_N,
    ['4'] = C_N,         ['5'] = C_N,         ['6'] = C_N,        ['7'] = C_N,
    ['8'] = C_N,         ['9'] = C_N,         ['A'] = LETTER_UP,  ['B'] = LETTER_UP,
    ['C'] = LETTER_UP,   ['D'] = LETTER_UP,   ['E'] = LETTER_UP,  ['F'] = LETTER_UP,
    ['G'] = LETTER_UP,   ['H'] = LETTER_UP,   ['I'] = LETTER_UP,  ['J'] = LETTER_UP,
    ['K'] = LETTER_UP,   ['L'] = LETTER_UP,   ['M'] = LETTER_UP,  ['N'] = LETTER_UP,
    ['O'] = LETTER_UP,   ['P'] = LETTER_UP,   ['Q'] = LETTER_UP,  ['R'] = LETTER_UP,
    ['S'] = LETTER_UP,   ['T'] = LETTER_UP,   ['U'] = LETTER_UP,  ['V'] = LETTER_UP,
    ['W'] = LETTER_UP,   ['X'] = LETTER_UP,   ['Y'] = LETTER_UP,  ['Z'] = LETTER_UP,
    ['a'] = LETTER_LOW,  ['b'] = LETTER_LOW,  ['c'] = LETTER_LOW, ['d'] = LETTER_LOW,
    ['e'] = LETTER_LOW,  ['f'] = LETTER_LOW,  ['g'] = LETTER_LOW, ['h'] = LETTER_LOW,
    ['i'] = LETTER_LOW,  ['j'] = LETTER_LOW,  ['k'] = LETTER_LOW, ['l'] = LETTER_LOW,
    ['m'] = LETTER_LOW,  ['n'] = LETTER_LOW,  ['o'] = LETTER_LOW, ['p'] = LETTER_LOW,
    ['q'] = LETTER_LOW,  ['r'] = LETTER_LOW,  ['s'] = LETTER_LOW, ['t'] = LETTER_LOW,
    ['u'] = LETTER_LOW,  ['v'] = LETTER_LOW,  ['w'] = LETTER_LOW, ['x'] = LETTER_LOW,
    ['y'] = LETTER_LOW,  ['z'] = LETTER_LOW,
};

/* Class of the character at pos < n; *end is where the next one begins. */
static inline unsigned class_at(const char *s, size_t n, size_t pos, size_t *end)
{
    uint8_t b = (uint8_t)s[pos];
    uint32_t cp;
    if (b < 0x80) {
        *end = pos + 1;
        return class_of_ascii[b];
    }
    *end = pos + tok_char(s + pos, n - pos, &cp);
    unsigned prop = tok_uni_prop(cp);
    return (prop & UNI_SPACE ? C_S : 0u) | class_of_cat[prop & UNI_CAT];
}

/* End of the run of characters of the classes `want` from pos on. */
static inline size_t tok_split_run_of(const char *s, size_t n, size_t pos, unsigned want)
{
    size_t end;
    while (pos < n && (class_at(s, n, pos, &end) & want))
        pos = end;
    return pos;
}

static inline size_t run_without(const char *s, size_t n, size_t pos, unsigned avoid)
{
    size_t end;
    while (pos < n && !(class_at(s, n, pos, &end) & avoid))
        pos = end;
    return pos;
}

/* ---------------------------------------------------------------- pattern parts */

/* Length of a contraction at pos, which holds an apostrophe; 0 if none. With fold, case does not
 * matter, and by the rules of Unicode U+017F is an s. */
static size_t contraction(const char *s, size_t n, size_t pos, bool fold)
{
    size_t left = n - pos;
    if (left < 2)
        return 0;
    uint8_t a = (uint8_t)s[pos + 1], b = left > 2 ? (uint8_t)s[pos + 2] : 0;
    if (fold) {
        if (a == 0xC5 && b == 0xBF)
            return 3;
        if (a >= 'A' && a <= 'Z')
            a |= 32;
        if (b >= 'A' && b <= 'Z')
            b |= 32;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return 0;
}

/* White space at pos by \s*[\r\n]+|\s+(?!\S)|\s+ ; newlines: that first branch exists; tail: a run
 * that ends the text is one piece whatever it holds. */
static size_t spaces(const char *s, size_t n, size_t pos, bool newlines, bool tail)
{
    size_t p = pos, last = pos, after_newline = 0, end;
    while (p < n) {
        unsigned c = class_at(s, n, p, &end);
        if (!(c & C_S))
            break;
        last = p;
        p = end;
        if (c & C_NL)
            after_newline = p;
    }
    if (p == n && tail)
        return p;
    if (newlines && after_newline > 0)
        return after_newline;
    if (p == n || last == pos)
        return p;
    return last; /* the last space goes with the word after it */
}

static size_t next_gpt2(const char *s, size_t n, size_t pos, bool tail)
{
    size_t p = pos, end;
    unsigned c = class_at(s, n, p, &end);
    if (c & C_APOS) {
        size_t k = contraction(s, n, p, false);
        if (k > 0)
            return p + k;
    }
    if (s[p] == ' ' && p + 1 < n) {
        unsigned d = class_at(s, n, p + 1, &end);
        if (!(d & C_S)) {
            c = d;
            p++;
        }
    }
    if (c & C_L)
        return tok_split_run_of(s, n, end, C_L);
    if (c & C_N)
        return tok_split_run_of(s, n, end, C_N);
    if (!(c & C_S))
        return run_without(s, n, end, C_S | C_L | C_N);
    return spaces(s, n, pos, false, tail);
}

/* ` ?[^\s\p{L}\p{N}]+` and the trailing characters `more`; pos if it does not match. */
static size_t symbols(const char *s, size_t n, size_t pos, unsigned more)
{
    size_t p = pos + (s[pos] == ' ');
    size_t end = run_without(s, n, p, C_S | C_L | C_N);
    return end == p ? pos : tok_split_run_of(s, n, end, more);
}

static size_t tok_split_digits(const char *s, size_t n, size_t pos, int max)
{
    size_t end = pos;
    for (int i = 0; i < max && pos < n && (class_at(s, n, pos, &end) & C_N); i++)
        pos = end;
    return pos;
}

static size_t next_llama3(const char *s, size_t n, size_t pos, int max_digits, bool tail)
{
    size_t end, end2;
    unsigned c = class_at(s, n, pos, &end);
    if (c & C_L)
        return tok_split_run_of(s, n, end, C_L);
    if (c & C_APOS) {
        size_t k = contraction(s, n, pos, true);
        if (k > 0)
            return pos + k;
    }
    if (c & C_N)
        return tok_split_digits(s, n, pos, max_digits);
    if (!(c & C_NL) && end < n && (class_at(s, n, end, &end2) & C_L))
        return tok_split_run_of(s, n, end2, C_L);
    size_t sym = symbols(s, n, pos, C_NL);
    return sym > pos ? sym : spaces(s, n, pos, true, tail);
}

/* UP*LOW+ from p: end of the match, or p if none. *stop is where UP* ended. */
static size_t up_then_low(const char *s, size_t n, size_t p, size_t *stop)
{
    size_t q = p, fits = p, end;
    bool any = false;
    unsigned c = 0;
    while (q < n && ((c = class_at(s, n, q, &end)) & C_UP)) {
        if (c & C_LOW) {
            fits = end; /* giving back to here, this character alone is the LOW+ */
            any = true;
        }
        q = end;
    }
    *stop = q;
    if (q < n && (c & C_LOW))
        return tok_split_run_of(s, n, q, C_LOW);
    return any ? fits : p;
}

static size_t next_o200k(const char *s, size_t n, size_t pos, int max_digits, bool contractions)
{
    size_t end, stop = pos, stop2, match = pos;
    unsigned c = class_at(s, n, pos, &end);
    bool lead = !(c & (C_L | C_N | C_NL));
    size_t word = lead ? end : pos;
    if (word < n)
        match = up_then_low(s, n, word, &stop);
    if ((word >= n || match == word) && lead)
        match = c & C_UP ? up_then_low(s, n, pos, &stop2) : pos;
    else if (match == word)
        match = pos;
    if (match == pos) { /* UP+LOW*: LOW does not follow, or the first branch had matched */
        if (word < n && stop > word)
            match = stop;
        else if (c & C_UP)
            match = tok_split_run_of(s, n, pos, C_UP);
    }
    if (match > pos) {
        if (contractions && match < n && s[match] == '\'')
            match += contraction(s, n, match, true);
        return match;
    }
    if (c & C_N)
        return tok_split_digits(s, n, pos, max_digits);
    size_t sym = symbols(s, n, pos, C_NL | C_SLASH);
    return sym > pos ? sym : spaces(s, n, pos, true, false);
}

size_t tok_fast_next(enum tok_fast kind, const char *s, size_t n, size_t pos)
{
    switch (kind) {
    case TOK_FAST_GPT2:
        return next_gpt2(s, n, pos, false);
    case TOK_FAST_GPT2_TAIL:
        return next_gpt2(s, n, pos, true);
    case TOK_FAST_LLAMA3:
        return next_llama3(s, n, pos, 3, false);
    case TOK_FAST_CL100K:
        return next_llama3(s, n, pos, 3, true);
    case TOK_FAST_QWEN2:
        return next_llama3(s, n, pos, 1, false);
    case TOK_FAST_O200K:
        return next_o200k(s, n, pos, 3, true);
    case TOK_FAST_TEKKEN:
        return next_o200k(s, n, pos, 1, false);
    case TOK_FAST_NONE:
        break;
    }
    return n;
}
