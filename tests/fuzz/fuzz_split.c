/* SPDX-License-Identifier: MIT
 * The hand-written matchers of the large families' pre-tokenizer patterns against the regular
 * expressions they stand for: the same pieces of every text. The first byte chooses the pattern.
 */
#include "base/buf.h"
#include "base/str.h"
#include "fuzz.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UP           "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOW          "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD         "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SYMBOLS      " ?[^\\s\\p{L}\\p{N}]+"

static const char *const patterns[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|\\s+(?!\\S)|\\s+",
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s",
    CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" SPACES,
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?"
    "[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
    CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}|" SYMBOLS "[\\r\\n]*|" SPACES,
    LEAD UP "*" LOW "+" CONTRACTIONS "?|" LEAD UP "+" LOW "*" CONTRACTIONS "?|\\p{N}{1,3}|" SYMBOLS
            "[\\r\\n/]*|" SPACES,
    LEAD UP "*" LOW "+|" LEAD UP "+" LOW "*|\\p{N}|" SYMBOLS "[\\r\\n/]*|" SPACES,
};

#define N_PATTERNS SL_COUNT(patterns)
#define MAX_CP     0x3400

static const char *const class_names[] = {"\\p{L}",  "\\p{N}",  "\\s",     "\\p{M}",
                                          "\\p{Lu}", "\\p{Ll}", "\\p{Lt}", "\\p{Lm}"};
#define N_CLASSES SL_COUNT(class_names)

static struct tok_regex *regexes[N_PATTERNS], *class_regexes[N_CLASSES];
static enum tok_fast kinds[N_PATTERNS];
static struct tok_search *search;
static uint16_t usable[MAX_CP]; /* characters on whose class both tables of Unicode agree */
static size_t n_usable;

/* Bit c of[cp_at[i]]: byte i lies in class c of the regular expressions. */
struct classes {
    uint16_t *of;
    const uint16_t *cp_at; /* NULL: of[i] */
    uint16_t bit;
};

static int mark(void *arg, size_t start, size_t end)
{
    struct classes *c = arg;
    for (size_t i = start; i < end; i++)
        c->of[c->cp_at != NULL ? c->cp_at[i] : i] |= c->bit;
    return 0;
}

static void find_classes(const char *s, size_t n, const uint16_t *cp_at, uint16_t *of)
{
    for (size_t i = 0; i < N_CLASSES; i++) {
        struct classes c = {of, cp_at, (uint16_t)(1u << i)};
        SL_ASSERT(tok_regex_each(class_regexes[i], search, s, n, mark, &c, NULL) == 0);
    }
}

static uint16_t own_classes(uint32_t cp)
{
    unsigned prop = tok_uni_prop(cp), cat = prop & UNI_CAT;
    const bool in[] = {cat >= CAT_LU && cat <= CAT_LO,
                       cat >= CAT_ND && cat <= CAT_NO,
                       (prop & UNI_SPACE) != 0,
                       cat >= CAT_MN && cat <= CAT_ME,
                       cat == CAT_LU,
                       cat == CAT_LL,
                       cat == CAT_LT,
                       cat == CAT_LM};
    unsigned bits = 0;
    for (size_t i = 0; i < SL_COUNT(in); i++)
        bits |= in[i] ? 1u << i : 0;
    return (uint16_t)bits;
}

static void find_usable(void)
{
    static uint16_t of[MAX_CP], cp_at[3 * MAX_CP];
    struct sl_buf all = {0};
    for (uint32_t cp = 0; cp < MAX_CP; cp++) {
        size_t from = all.n_bytes;
        tok_put_cp(&all, cp);
        for (size_t i = from; i < all.n_bytes; i++)
            cp_at[i] = (uint16_t)cp;
    }
    find_classes(all.data, all.n_bytes, cp_at, of);
    for (uint32_t cp = 0; cp < MAX_CP; cp++)
        if (own_classes(cp) == of[cp])
            usable[n_usable++] = (uint16_t)cp;
    SL_ASSERT(n_usable > MAX_CP - 600); /* else the tables differ by more than some years */
    sl_buf_deinit(&all);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    search = tok_search_create((size_t)1 << 48, NULL); /* time enough for every input */
    SL_ASSERT(search != NULL);
    for (size_t i = 0; i < N_PATTERNS; i++) {
        size_t n = strlen(patterns[i]);
        kinds[i] = tok_fast_kind(patterns[i], n);
        SL_ASSERT(kinds[i] != TOK_FAST_NONE);
        SL_ASSERT(tok_regex_create(patterns[i], n, &regexes[i], NULL) == 0);
    }
    for (size_t i = 0; i < N_CLASSES; i++)
        SL_ASSERT(
            tok_regex_create(class_names[i], strlen(class_names[i]), &class_regexes[i], NULL) == 0);
    find_usable();
    return 0;
}

/* ASCII as it is; characters of each class; any usable one; bytes that are no UTF-8. */
static void make_text(struct sl_input *in, struct sl_buf *b)
{
    static const uint16_t picks[] = {0x17F,  0x212A, 0x1C5,  0x2B0,  0x5D0,  0x301,
                                     0xE9,   0xC9,   0x4E0,  0xBD,   0x664,  0x2167,
                                     0x85,   0xA0,   0x180E, 0x2003, 0x2028, 0x200B,
                                     0x3000, 0x93E,  0x20DD, 0x2019, 0xAA,   0x1D2C};
    while (!sl_input_empty(in)) {
        uint8_t c = sl_input_byte(in);
        if (c < 0x80)
            sl_buf_putc(b, (char)c);
        else if (c < 0xC0)
            tok_put_cp(b, picks[c % SL_COUNT(picks)]);
        else if (c < 0xE0)
            tok_put_cp(b, usable[(c * 256u + sl_input_byte(in)) * 7 % n_usable]);
        else
            sl_buf_putc(b, (char)(c < 0xF0 ? sl_input_byte(in) : c));
    }
}

/* Raw bytes can spell characters above MAX_CP, of which one table may be years ahead of the other.
 */
static bool tables_agree(const char *s, size_t n)
{
    static struct sl_buf marks;
    bool above = false;
    uint32_t cp;
    for (size_t i = 0, len; i < n; i += SL_MAX(len, (size_t)1))
        above |= (len = sl_utf8_decode(s + i, n - i, &cp)) > 0 && cp >= MAX_CP;
    if (!above)
        return true;
    SL_ASSERT(sl_buf_reserve(&marks, n * sizeof(uint16_t)));
    uint16_t *of = (uint16_t *)(void *)marks.data;
    memset(of, 0, n * sizeof(uint16_t));
    find_classes(s, n, NULL, of);
    for (size_t i = 0, len; i < n; i += SL_MAX(len, (size_t)1)) {
        len = sl_utf8_decode(s + i, n - i, &cp);
        if (len > 0 && cp >= MAX_CP && own_classes(cp) != of[i])
            return false;
    }
    return true;
}

struct compare {
    enum tok_fast kind;
    const char *s;
    size_t n, at;
};

static int same_piece(void *arg, size_t start, size_t end)
{
    struct compare *c = arg;
    SL_ASSERT(start == c->at && end > start);
    SL_ASSERT(tok_fast_next(c->kind, c->s, c->n, start) == end);
    c->at = end;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sl_buf text;
    struct sl_input in = {data, data + size};
    size_t which = (size_t)sl_input_below(&in, N_PATTERNS);
    sl_buf_clear(&text);
    make_text(&in, &text);
    if (text.n_bytes > 0 && !tables_agree(text.data, text.n_bytes))
        return 0;
    struct compare c = {kinds[which], text.data != NULL ? text.data : "", text.n_bytes, 0};
    SL_ASSERT(tok_regex_each(regexes[which], search, c.s, c.n, same_piece, &c, NULL) == 0);
    SL_ASSERT(c.at == c.n);
    return 0;
}
