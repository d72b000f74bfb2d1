/* SPDX-License-Identifier: MIT
 * test_hostile_text.c - hostile texts through every kind of tokenizer at sizes up to 1 MB, with a
 * round trip that is spelled out here; every value of a tokenizer.json damaged in every way; and
 * conversations that are no conversations. Each case ends in a round trip or in an error that names
 * what is wrong. Vocabularies in GGUF files are in tests/io/test_hostile_gguf.c, hostile templates
 * in test_template_limits.c.
 */
#include "hostile_json.h"
#include "test_template_util.h"

#include "base/json_load.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 40
#else
#define SLOWER 1
#endif

enum { BYTES_GPT2, BYTES_CL100K, BYTES_JSON, SPM, BUNDLED, N_KINDS };

static struct sl_tokenizer *toks[N_KINDS];
static const char *const kind_names[N_KINDS] = {"gpt2 bytes", "cl100k bytes", "tokenizer.json",
                                                "SentencePiece", "bundled"};
static int n_cases;

/* ---------------------------------------------------------------- the tokenizers */

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
    "|\\s+(?!\\S)|\\s+";
static const char cl100k_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* 256 bytes and four merges. */
static struct sl_tokenizer *byte_ranks(const char *pattern)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct sl_buf b = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    for (unsigned i = 0; i < 256; i++)
        sl_buf_printf(&b, "%c%c== %u\n", digits[i >> 2], digits[(i & 3) << 4], i);
    sl_buf_puts(&b, "YWE= 256\nYWFh 257\nYWI= 258\nICA= 259\n");
    if (sl_tokenizer_from_tiktoken(b.data, b.n_bytes, pattern, &t, &err) != 0)
        fail_msg("%s", err.msg);
    sl_buf_deinit(&b);
    return t;
}

/* The printable character that stands for a byte in byte-level vocabularies. */
static uint32_t byte_char(int byte)
{
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) {
        bool visible = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        if (b == byte)
            return visible ? (uint32_t)b : next;
        next += !visible;
    }
    return 0;
}

enum { ID_BOS = 256, ID_TOOL = 257 };
#define BOS  "<|bos|>"
#define TOOL "<tool_call>"

/* Bytes as a tokenizer.json, with a control token and a visible one. */
static struct sl_tokenizer *byte_json(void)
{
    struct sl_buf b = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    sl_buf_puts(&b, "{\"added_tokens\":[{\"id\":256,\"content\":\"" BOS "\",\"special\":true},"
                    "{\"id\":257,\"content\":\"" TOOL "\",\"special\":false,\"normalized\":false}],"
                    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                    "\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
                    "\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        char text[8];
        size_t n = sl_utf8_encode(byte_char(i), text);
        sl_buf_puts(&b, i > 0 ? "," : "");
        sl_buf_json_string(&b, text, n);
        sl_buf_printf(&b, ":%d", i);
    }
    sl_buf_puts(&b, "}}}");
    if (sl_tokenizer_from_json(b.data, b.n_bytes, NULL, 0, &t, &err) != 0)
        fail_msg("%s", err.msg);
    sl_buf_deinit(&b);
    return t;
}

/* SentencePiece with a token for each byte: unk, bos, eos, 256 bytes, a few pieces. */
static struct sl_tokenizer *spm_bytes(void)
{
    enum { N = 3 + 256 + 5 };
    static char text[N][8];
    static const char *list[N];
    static uint32_t lens[N];
    static int32_t types[N];
    static float scores[N];
    static const char *const pieces[] = {"\xE2\x96\x81", "a", "b", "ab", "\xE2\x96\x81\x61"};
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    for (int i = 0; i < N; i++) {
        if (i < 3)
            snprintf(text[i], sizeof text[i], "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else if (i < 259)
            snprintf(text[i], sizeof text[i], "<0x%02X>", i - 3);
        else
            snprintf(text[i], sizeof text[i], "%s", pieces[i - 259]);
        list[i] = text[i];
        lens[i] = (uint32_t)strlen(text[i]);
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        scores[i] = (float)-i;
    }
    struct sl_vocab_gguf v = {.model = "llama",
                              .n_tokens = N,
                              .tokens = list,
                              .token_bytes = lens,
                              .scores = scores,
                              .types = types,
                              .bos = 1,
                              .eos = 2,
                              .unk = 0,
                              .sep = -1,
                              .pad = -1,
                              .cls = -1,
                              .mask = -1,
                              .eot = -1,
                              .add_bos = 0,
                              .add_eos = 0,
                              .add_space_prefix = 0,
                              .remove_extra_whitespaces = 0};
    if (sl_tokenizer_from_gguf(&v, &t, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

/* ---------------------------------------------------------------- the texts */

struct text {
    const char *label, *unit; /* repeated to the size asked for */
    size_t n;
};

#define TEXT(label, unit)             \
    {                                 \
        label, unit, sizeof(unit) - 1 \
    }

static const struct text texts[] = {
    TEXT("one letter", "a"),
    TEXT("spaces", " "),
    TEXT("newlines", "\n"),
    TEXT("tabs", "\t"),
    TEXT("carriage returns", "\r\n"),
    TEXT("space and newline", " \n"),
    TEXT("digits", "7"),
    TEXT("punctuation", "!?"),
    TEXT("letters and spaces", "a "),
    TEXT("merges that overlap", "aab"),
    TEXT("contractions", "'s't're"),
    TEXT("contractions in capitals", "'S'T'RE"),
    TEXT("quotes", "'"),
    TEXT("mixed case", "aB"),
    TEXT("camel case and digits", "aB1"),
    TEXT("NUL", "\0"),
    TEXT("NUL and letters", "a\0b"),
    TEXT("control characters", "\x01\x1B[2J\x7F"),
    TEXT("backslashes", "\\"),
    TEXT("JSON", "{\"a\":[1,null]}"),
    TEXT("template", "{{ x }}{% if %}"),
    TEXT("two-byte letters", "\xC3\xA9"),
    TEXT("Chinese", "\xE4\xB8\xAD"),
    TEXT("Hangul parts", "\xE1\x84\x80\xE1\x85\xA1"),
    TEXT("Arabic", "\xD8\xA7 "),
    TEXT("Devanagari", "\xE0\xA4\x95\xE0\xA5\x8D"),
    TEXT("emoji", "\xF0\x9F\x98\x80"),
    TEXT("emoji joined", "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7"),
    TEXT("accents that pile up", "\xCC\x81"),
    TEXT("a letter and accents", "e\xCC\x81\xCC\xA7"),
    TEXT("ideographic space", "\xE3\x80\x80"),
    TEXT("no-break space", "\xC2\xA0"),
    TEXT("line separator", "\xE2\x80\xA8"),
    TEXT("zero width", "\xE2\x80\x8B"),
    TEXT("right to left marks", "\xE2\x80\xAE"),
    TEXT("byte order mark", "\xEF\xBB\xBF"),
    TEXT("replacement character", "\xEF\xBF\xBD"),
    TEXT("no characters", "\xEF\xBF\xBF"),
    TEXT("the last code point", "\xF4\x8F\xBF\xBF"),
    TEXT("private use", "\xEE\x80\x80"),
    TEXT("the space of SentencePiece", "\xE2\x96\x81"),
    TEXT("the space of byte levels", "\xC4\xA0"),
    TEXT("byte tokens spelled out", "<0x41>"),
    TEXT("byte tokens misspelled", "<0x-1><0xGG>"),
    TEXT("control token spelled out", BOS),
    TEXT("control token cut off", "<|bos|"),
    TEXT("visible token spelled out", TOOL),
    TEXT("tokens inside each other", "<<|bos|><|bo<|bos|>s|>"),
    TEXT("unknown token spelled out", "<unk></s><s>"),
    TEXT("lone high surrogate", "\xED\xA0\x80"),
    TEXT("lone low surrogate", "\xED\xBF\xBF"),
    TEXT("surrogates as a pair", "\xED\xA0\xBD\xED\xB8\x80"),
    TEXT("overlong NUL", "\xC0\x80"),
    TEXT("overlong slash", "\xE0\x80\xAF"),
    TEXT("overlong four", "\xF0\x80\x80\xAF"),
    TEXT("beyond the last", "\xF4\x90\x80\x80"),
    TEXT("five bytes", "\xF8\x88\x80\x80\x80"),
    TEXT("bytes that never are", "\xFE\xFF"),
    TEXT("continuations", "\x80"),
    TEXT("cut after one", "\xC3"),
    TEXT("cut after two", "\xE2\x82"),
    TEXT("cut after three", "\xF0\x9F\x98"),
    TEXT("cut, then a letter", "\xF0\x9F\x98z"),
};

static char *fill(const struct text *t, size_t n)
{
    char *s = sl_malloc(n + 1);
    assert_non_null(s);
    for (size_t i = 0; i < n; i++)
        s[i] = t->unit[i % t->n];
    s[n] = '\0';
    return s;
}

/* What must come back: bytes that are no UTF-8 are U+FFFD, one for each longest piece that could
 * have begun a character; a SentencePiece vocabulary writes its own space and the real one alike.
 */
static void expected_text(const char *s, size_t n, bool spm, struct sl_buf *out)
{
    for (size_t i = 0; i < n;) {
        size_t len = (unsigned char)s[i] < 0x80 ? 1 : sl_utf8_valid_len(s + i, n - i);
        if (len == 3 && spm && memcmp(s + i, "\xE2\x96\x81", 3) == 0)
            sl_buf_putc(out, ' ');
        else if (len > 0)
            sl_buf_put(out, s + i, len);
        if (len > 0) {
            i += len;
            continue;
        }
        unsigned char c = (unsigned char)s[i];
        size_t want = c >= 0xC2 && c <= 0xDF   ? 2
                      : c >= 0xE0 && c <= 0xEF ? 3
                      : c >= 0xF0 && c <= 0xF4 ? 4
                                               : 1;
        size_t k = 1;
        while (k < want && i + k < n) {
            unsigned char d = (unsigned char)s[i + k];
            unsigned char low = k > 1 ? 0x80 : c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
            unsigned char high = k > 1 ? 0xBF : c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
            if (d < low || d > high)
                break;
            k++;
        }
        sl_buf_puts(out, "\xEF\xBF\xBD");
        i += k;
    }
}

/* Encodes, checks the ids, decodes, compares. Returns the time of encoding. */
static double round_trip(int kind, const struct text *t, const char *s, size_t n, unsigned flags)
{
    struct sl_tokenizer *tok = toks[kind];
    struct sl_ids ids = {0};
    struct sl_error err = {0};
    struct sl_buf want = {0};
    char *back = NULL;
    size_t n_back = 0;
    double start = cpu_ms();
    int rc = sl_tokenizer_encode_into(tok, s, n, flags, &ids, &err);
    double ms = cpu_ms() - start;
    n_cases++;
    if (rc != 0)
        fail_msg("%s, %s, %zu bytes: %s", kind_names[kind], t->label, n, err.msg);
    for (size_t i = 0; i < ids.n; i++) {
        if (ids.data[i] < 0 || ids.data[i] >= sl_tokenizer_n_vocab(tok))
            fail_msg("%s, %s: id %d", kind_names[kind], t->label, ids.data[i]);
        if (!(flags & SL_ENCODE_PARSE_SPECIAL) &&
            (sl_tokenizer_attr(tok, ids.data[i]) & SL_TOKEN_SPECIAL) != 0 && kind != SPM)
            fail_msg("%s, %s: plain text became the control token %d", kind_names[kind], t->label,
                     ids.data[i]);
    }
    if (sl_tokenizer_decode(tok, ids.data, ids.n, false, &back, &n_back, &err) != 0)
        fail_msg("%s, %s, %zu bytes: %s", kind_names[kind], t->label, n, err.msg);
    expected_text(s, n, kind == SPM, &want);
    if (n_back != want.n_bytes || (n_back > 0 && memcmp(back, want.data, n_back) != 0)) {
        size_t at = 0;
        while (at < n_back && at < want.n_bytes && back[at] == want.data[at])
            at++;
        fail_msg("%s, %s, %zu bytes: %zu bytes come back, not %zu; the first that differs is %zu",
                 kind_names[kind], t->label, n, n_back, want.n_bytes, at);
    }
    sl_buf_deinit(&want);
    sl_free(back);
    sl_free(ids.data);
    return ms;
}

static void texts_of_every_size(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, 4097};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        for (size_t k = 0; k < SL_COUNT(sizes); k++) {
            char *s = fill(&texts[i], sizes[k]);
            for (int kind = 0; kind < N_KINDS; kind++) {
                round_trip(kind, &texts[i], s, sizes[k], 0);
                round_trip(kind, &texts[i], s, sizes[k], SL_ENCODE_PARSE_SPECIAL);
            }
            sl_free(s);
        }
    }
}

/* Sixteen times the text may take sixteen times as long, not 256 times. */
static void long_texts_take_linear_time(void **state)
{
    (void)state;
    size_t n = SLOWER > 1 ? 1u << 17 : 1u << 20;
    double worst = 0, most = 0;
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        int kind = (int)(i % N_KINDS);
        char *s = fill(&texts[i], n);
        double small = round_trip(kind, &texts[i], s, n / 16, 0);
        double large = round_trip(kind, &texts[i], s, n, 0);
        if (large > 64 * small + 50 * SLOWER) /* once more: the machine may have been busy */
            large = SL_MIN(large, round_trip(kind, &texts[i], s, n, 0));
        if (large > 64 * small + 50 * SLOWER)
            fail_msg("%s, %s: %.1f ms for %zu bytes, %.1f ms for %zu", kind_names[kind],
                     texts[i].label, small, n / 16, large, n);
        worst = SL_MAX(worst, large / (small + 1));
        most = SL_MAX(most, large);
        sl_free(s);
    }
    print_message("%zu bytes: at most %.0f ms, %.0f times the time of a sixteenth\n", n, most,
                  worst);
}

/* ---------------------------------------------------------------- special tokens in user text */

static void special_tokens_in_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int n_bos, n_tool; /* with parsing; without, the control token stays text */
    } cases[] = {
        {BOS, 1, 0},
        {TOOL, 0, 1},
        {BOS BOS, 2, 0},
        {"a" BOS "b", 1, 0},
        {" " BOS " ", 1, 0},
        {"<" BOS ">", 1, 0},
        {"<|bos|" BOS, 1, 0},
        {"<|bo" BOS "s|>", 1, 0},
        {"<|BOS|>", 0, 0},
        {"<|bos |>", 0, 0},
        {"<|bos|", 0, 0},
        {"|bos|>", 0, 0},
        {"\xEF\xBC\x9C|bos|\xEF\xBC\x9E", 0, 0}, /* full-width signs look alike */
        {"<|b\xE2\x80\x8Bos|>", 0, 0},
        {"<|b\xCC\x81os|>", 0, 0},
        {BOS TOOL BOS, 2, 1},
        {TOOL BOS TOOL, 1, 2},
        {"\xFF" BOS "\xFF", 1, 0},
        {"\xC3" BOS, 1, 0},
        {BOS "\n" BOS "\r\n" TOOL, 2, 1},
    };
    const struct sl_tokenizer *t = toks[BYTES_JSON];
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        for (unsigned flags = 0; flags < 4; flags++) {
            struct sl_ids ids = {0};
            int n_bos = 0, n_tool = 0;
            bool parse = (flags & SL_ENCODE_PARSE_SPECIAL) != 0;
            assert_int_equal(sl_tokenizer_encode_into(t, cases[i].text, strlen(cases[i].text),
                                                      flags, &ids, NULL),
                             0);
            for (size_t k = 0; k < ids.n; k++) {
                n_bos += ids.data[k] == ID_BOS;
                n_tool += ids.data[k] == ID_TOOL;
            }
            n_cases++;
            if (n_bos != (parse ? cases[i].n_bos : 0) || (parse && n_tool != cases[i].n_tool))
                fail_msg("\"%s\", flags %u: %d and %d tokens", cases[i].text, flags, n_bos, n_tool);
            sl_free(ids.data);
        }
    }
}

/* Ids that no encoder gives: holes, out of range, bytes of characters in any order. */
static void hostile_ids(void **state)
{
    (void)state;
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, 1 << 22, 1 << 30};
    for (int kind = 0; kind < N_KINDS; kind++) {
        int32_t n = sl_tokenizer_n_vocab(toks[kind]);
        char *text = NULL;
        size_t n_text = 0;
        for (size_t i = 0; i <= SL_COUNT(wrong); i++) {
            int32_t ids[] = {0, i < SL_COUNT(wrong) ? wrong[i] : n, 0};
            struct sl_error err = {0};
            n_cases++;
            assert_int_equal(sl_tokenizer_decode(toks[kind], ids, 3, false, &text, &n_text, &err),
                             SL_EINVAL);
            char named[20];
            snprintf(named, sizeof named, "%d", ids[1]);
            if (strstr(err.msg, named) == NULL)
                fail_msg("%s: \"%s\" does not name %s", kind_names[kind], err.msg, named);
        }
        for (int32_t a = 0; a < n; a += SL_MAX(n / 97, 1)) { /* every pair of a sample */
            for (int32_t b = 0; b < n; b += SL_MAX(n / 61, 1)) {
                int32_t ids[] = {a, b, a, b};
                assert_int_equal(
                    sl_tokenizer_decode(toks[kind], ids, 4, false, &text, &n_text, NULL), 0);
                for (size_t i = 0; i < n_text;) { /* whole characters only */
                    size_t len =
                        (unsigned char)text[i] < 0x80 ? 1 : sl_utf8_valid_len(text + i, n_text - i);
                    assert_true(len > 0);
                    i += len;
                }
                sl_free(text);
            }
        }
        n_cases++;
    }
}

/* ---------------------------------------------------------------- tokenizer.json */

#define OK(damage) (1u << (damage))
#define OK_ALL     0xFFFu
#define OK_ABSENT  (OK(GONE) | OK(NIL))
#define OK_TEXT    (OK(EMPTY) | OK(WORD) | OK(LONG))

/* By the end of the path, the first that fits: which damages leave the file valid, and what the
 * error of the others names, one of the parts between '|'. */
static const struct rule {
    const char *path;
    unsigned ok;
    const char *named;
} rules[] = {
    {"version", OK_ALL, ""},
    {"truncation", OK_ALL, ""},
    {"padding", OK_ALL, ""},
    {"type_id", OK_ALL, ""},
    {"added_tokens", 0, "added_tokens|post_processor"}, /* whose token is gone */
    {"added_tokens[0]", 0, "added_tokens[0]|post_processor"},
    {"added_tokens[0].id", 0, "added_tokens[0]|added token"},
    {"added_tokens[0].content", OK(EMPTY) | OK(WORD), "added token"},
    {"single_word", OK_ABSENT | OK(YES), "single_word"},
    {"lstrip", OK_ABSENT | OK(YES), "lstrip"},
    {"rstrip", OK_ABSENT | OK(YES), "rstrip"},
    {"normalized", OK_ABSENT | OK(YES), "normalized"},
    {"special", OK_ABSENT | OK(YES), "special"},
    {"strip_left", OK_ABSENT | OK(YES), "strip_left"},
    {"strip_right", OK_ABSENT | OK(YES), "strip_right"},
    {"clean_text", OK_ABSENT | OK(YES), "clean_text"},
    {"handle_chinese_chars", OK_ABSENT | OK(YES), "handle_chinese_chars"},
    {"strip_accents", OK_ABSENT | OK(YES), "strip_accents"},
    {"lowercase", OK_ABSENT | OK(YES), "lowercase"},
    {"invert", OK_ABSENT | OK(YES), "invert"},
    {"individual_digits", OK_ABSENT | OK(YES), "individual_digits"},
    {"split", OK_ABSENT | OK(YES), "split"},
    {"fuse_unk", OK_ABSENT | OK(YES), "fuse_unk"},
    {"byte_fallback", OK_ABSENT | OK(YES), "byte_fallback"},
    {"ignore_merges", OK_ABSENT | OK(YES), "ignore_merges"},
    {"normalizer", OK_ABSENT, "normalizer"},
    {"pre_tokenizer", OK_ABSENT, "pre_tokenizer"},
    {"post_processor", OK_ABSENT, "post_processor"},
    {"decoder", OK_ABSENT, "decoder"},
    {"normalizers", OK(LIST), "normalizer.normalizers"},
    {"pretokenizers", OK(LIST), "pre_tokenizer.pretokenizers"},
    {"decoders", OK(LIST), "decoder.decoders"},
    {"normalizers[*]", OK_ABSENT, "normalizer"},
    {"pretokenizers[*]", OK_ABSENT, "pre_tokenizer"},
    {"decoders[*]", OK_ABSENT, "decoder"},
    {"model.type", OK_ABSENT, "model.type|model type"},
    {"type", 0, "type"},
    {"pattern", OK_TEXT, "pattern"}, /* a bare string is a pattern too */
    {"pattern.String", OK_TEXT, "pattern"},
    {"pattern.Regex", OK(EMPTY) | OK(WORD), "pattern"},
    {"decoders[3].content", OK(WORD), "content|Strip"},
    {"content", OK_TEXT, "content"},
    {"prepend", OK_TEXT, "prepend"},
    {"behavior", OK(GONE), "behavior"},
    {"delimiter", OK(WORD), "delimiter"},
    {"replacement", OK_ABSENT | OK(WORD), "replacement"},
    {"prepend_scheme", OK_ABSENT, "prepend_scheme"},
    {"start", OK(SEVEN), "start"},
    {"stop", OK(SEVEN), "stop"},
    {"post_processor.single", 0, "post_processor"},
    {"single[0]", OK(GONE), "post_processor.single[0]"},
    {"single[1]", 0, "post_processor"},
    {"SpecialToken", 0, "post_processor"},
    {"SpecialToken.id", 0, "post_processor: no ids for"},
    {"Sequence", 0, "post_processor.single[1]"},
    {"Sequence.id", 0, "post_processor.single[1]"},
    {"special_tokens", 0, "post_processor: no ids for \"<s>\""},
    {"special_tokens.<s>", 0, "post_processor: no ids for \"<s>\""},
    {"special_tokens.<s>.id", OK_ALL, ""},
    {"special_tokens.<s>.tokens", OK_ALL, ""},
    {"special_tokens.<s>.tokens[0]", OK_ALL, ""},
    {"special_tokens.<s>.ids", OK(LIST), "post_processor: no ids for \"<s>\""},
    {"special_tokens.<s>.ids[0]", OK(GONE) | OK(SEVEN), "post_processor: id out of range"},
    {"model", 0, "model|expected an object"},
    {"model.dropout", OK_ABSENT | OK(MINUS), "model.dropout"},
    {"model.unk_token", OK_ABSENT | OK_TEXT, "model.unk_token"},
    {"continuing_subword_prefix", OK_ABSENT | OK_TEXT, "continuing_subword_prefix"},
    {"end_of_word_suffix", OK_ABSENT | OK_TEXT, "end_of_word_suffix"},
    {"model.vocab", 0, "model.vocab|merge 0"},
    {"model.vocab.ab", OK(SEVEN), "\"ab\"|merge 0"}, /* 7 is its id */
    {"model.vocab.a", 0, "\"a\""},
    {"model.vocab.b", 0, "\"b\""},
    {"model.vocab.c", 0, "\"c\""},
    {"model.vocab.abc", 0, "\"abc\"|merge 1"},
    {"model.vocab.*", OK(GONE), "vocab"},
    {"model.merges", OK(LIST), "model.merges"},
    {"merges[0]", OK(GONE), "merge 0|expected a string"},
    {"merges[1]", OK(GONE), "merge 1|expected a string"},
    {"merges[1][*]", 0, "merge|expected a string"},
};

/* Does the path end in the pattern? '*' stands for anything up to its end. */
static bool fits(const char *path, const char *pattern)
{
    const char *star = strchr(pattern, '*');
    size_t n = star != NULL ? (size_t)(star - pattern) : strlen(pattern), n_path = strlen(path);
    if (star == NULL)
        return n_path >= n && strcmp(path + n_path - n, pattern) == 0 &&
               (n_path == n || path[n_path - n - 1] == '.');
    for (const char *at = path; (at = strstr(at, "")) != NULL && *at != '\0'; at++) {
        if (strncmp(at, pattern, n) == 0 && (at == path || at[-1] == '.') &&
            strchr(at + n, '.') == NULL)
            return true;
    }
    return false;
}

static bool names_one(const char *msg, const char *named)
{
    for (const char *s = named; *s != '\0'; s += strspn(s, "|")) {
        char part[80];
        size_t n = strcspn(s, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, s);
        if (strstr(msg, part) != NULL)
            return true;
        s += n;
    }
    return named[0] == '\0';
}

/* What was accepted must work: any text is encoded and any of its ids decoded, or refused. */
static void use(const struct sl_tokenizer *t, const char *path)
{
    static const char text[] = "abc 12 qzz|_x <s>A\xC3\xA9\xE4\xB8\xAD\0\xFF\xED\xA0\x80 aab";
    for (unsigned flags = 0; flags < 4; flags++) {
        struct sl_ids ids = {0};
        struct sl_error err = {0};
        char *back = NULL;
        size_t n = 0;
        if (sl_tokenizer_encode_into(t, text, sizeof text - 1, flags, &ids, &err) != 0)
            fail_msg("%s: accepted, but does not encode: %s", path, err.msg);
        for (size_t i = 0; i < ids.n; i++)
            assert_in_range(ids.data[i], 0, sl_tokenizer_n_vocab(t) - 1);
        if (sl_tokenizer_decode(t, ids.data, ids.n, (flags & 1) != 0, &back, &n, &err) != 0)
            fail_msg("%s: accepted, but does not decode: %s", path, err.msg);
        sl_free(back);
        sl_free(ids.data);
    }
}

static void judge_damage(json_t *root, const char *path, enum damage d, void *arg)
{
    const struct rule *rule = NULL;
    struct sl_error err = {0};
    struct sl_tokenizer *t = NULL;
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    (void)arg;
    for (size_t i = 0; i < SL_COUNT(rules) && rule == NULL; i++) {
        if (fits(path, rules[i].path))
            rule = &rules[i];
    }
    if (rule == NULL)
        fail_msg("no rule for %s", path);
    int rc = sl_tokenizer_from_json(text, strlen(text), NULL, 0, &t, &err);
    bool ok = (rule->ok & OK(d)) != 0;
    n_cases++;
    if (ok ? rc != 0 : rc != SL_EFORMAT && rc != SL_EUNSUPPORTED && rc != SL_ELIMIT)
        fail_msg("%s = %s: %s \"%s\", expected %s", path, damage_names[d], sl_code_name(rc),
                 err.msg, ok ? "no error" : "an error");
    if (rc != 0 && !names_one(err.msg, rule->named))
        fail_msg("%s = %s: \"%s\" does not name %s", path, damage_names[d], err.msg, rule->named);
    if (rc == 0)
        use(t, path);
    sl_tokenizer_destroy(t);
    sl_json_free_text(text);
}

static void every_value_damaged(void **state)
{
    (void)state;
    json_t *root = json_loads(whole_tokenizer, 0, NULL);
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    int before = n_cases;
    assert_non_null(root);
    if (sl_tokenizer_from_json(whole_tokenizer, sizeof whole_tokenizer - 1, NULL, 0, &t, &err) != 0)
        fail_msg("%s", err.msg);
    use(t, "unchanged");
    sl_tokenizer_destroy(t);
    damage_each(root, root, "", judge_damage, NULL);
    json_decref(root);
    print_message("tokenizer.json: %d damages\n", n_cases - before);
    assert_true(n_cases - before >= 300);
}

static void tokenizer_cut_at_every_byte(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof whole_tokenizer - 1; n++, n_cases++) {
        struct sl_error err = {0};
        struct sl_tokenizer *t = NULL;
        char *copy = sl_malloc(n); /* of exactly that size: a sanitizer sees a read behind it */
        memcpy(copy, whole_tokenizer, n);
        int rc = sl_tokenizer_from_json(copy, n, NULL, 0, &t, &err);
        if (rc != SL_EFORMAT || strstr(err.msg, "tokenizer.json") == NULL)
            fail_msg("cut to %zu bytes: %s \"%s\"", n, sl_code_name(rc), err.msg);
        sl_free(copy);
    }
}

/* tokenizer_config.json beside a good tokenizer.json. */
static void configs(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *named;
    } cases[] = {
        {"{}", 0, ""},
        {"", SL_EFORMAT, "tokenizer_config.json"},
        {"[]", SL_EFORMAT, "tokenizer_config.json"},
        {"null", SL_EFORMAT, "tokenizer_config.json"},
        {"3", SL_EFORMAT, "tokenizer_config.json"},
        {"{", SL_EFORMAT, "tokenizer_config.json"},
        {"{}}", SL_EFORMAT, "tokenizer_config.json"},
        {"{\"a\":1,\"a\":2}", SL_EFORMAT, "duplicate"},
        {"{\"a\":\"\\ud800\"}", SL_EFORMAT, "tokenizer_config.json"},
        {"{\"a\":\"\xFF\"}", SL_EFORMAT, "tokenizer_config.json"},
        {"{\"a\":NaN}", SL_EFORMAT, "tokenizer_config.json"},
        {"{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 0, ""},
        {"{\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":true}", 0, ""},
        {"{\"bos_token\":\"nowhere\",\"add_bos_token\":true}", 0, ""},
        {"{\"bos_token\":null}", 0, ""},
        {"{\"bos_token\":7,\"eos_token\":[],\"add_eos_token\":{}}", 0, ""},
        {"{\"bos_token\":\"\\u0000\"}", 0, ""},
        {"{\"added_tokens_decoder\":null}", 0, ""},
        {"{\"added_tokens_decoder\":[]}", 0, ""},
        {"{\"added_tokens_decoder\":{\"20\":{\"content\":\"<new>\",\"special\":true}}}", 0, ""},
        {"{\"added_tokens_decoder\":{\"20\":{}}}", SL_EFORMAT, "added token 20"},
        {"{\"added_tokens_decoder\":{\"20\":null}}", SL_EFORMAT, "added token 20"},
        {"{\"added_tokens_decoder\":{\"20\":\"<new>\"}}", SL_EFORMAT, "added token 20"},
        {"{\"added_tokens_decoder\":{\"20\":{\"content\":7}}}", SL_EFORMAT, "added token 20"},
        {"{\"added_tokens_decoder\":{\"20\":{\"content\":\"x\",\"special\":1}}}", SL_EFORMAT,
         "special"},
        {"{\"added_tokens_decoder\":{\"-1\":{\"content\":\"x\"}}}", 0, ""},
        {"{\"added_tokens_decoder\":{\"1e3\":{\"content\":\"x\"}}}", 0, ""},
        {"{\"added_tokens_decoder\":{\"18446744073709551616\":{\"content\":\"x\"}}}", 0, ""},
        {"{\"added_tokens_decoder\":{\"18446744073709551615\":{\"content\":\"x\"}}}", SL_ELIMIT,
         "\"x\""},
        {"{\"added_tokens_decoder\":{\"4294967296\":{\"content\":\"x\"}}}", SL_ELIMIT, "\"x\""},
        {"{\"added_tokens_decoder\":{\"4194304\":{\"content\":\"x\"}}}", SL_ELIMIT, "\"x\""},
        {"{\"added_tokens_decoder\":{\"0\":{\"content\":\"other\"}}}", 0, ""},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++, n_cases++) {
        struct sl_error err = {0};
        struct sl_tokenizer *t = NULL;
        int rc = sl_tokenizer_from_json(whole_tokenizer, sizeof whole_tokenizer - 1, cases[i].text,
                                        strlen(cases[i].text), &t, &err);
        if (rc != cases[i].code || (rc != 0 && strstr(err.msg, cases[i].named) == NULL))
            fail_msg("%s: %s \"%s\"", cases[i].text, sl_code_name(rc), err.msg);
        if (rc == 0)
            use(t, cases[i].text);
        sl_tokenizer_destroy(t);
    }
}

/* ---------------------------------------------------------------- conversations */

static void conversations(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int code;
        const char *named; /* a part of the error, or of the text */
    } cases[] = {
        {"", SL_EFORMAT, "conversation"},
        {"[", SL_EFORMAT, "conversation"},
        {"[]", SL_EINVAL, "object"},
        {"null", SL_EFORMAT, "conversation"},
        {"{\"messages\":[],\"messages\":[]}", SL_EFORMAT, "duplicate"},
        {"{\"a\":\"\\ud800\"}", SL_EFORMAT, "conversation"},
        {"{\"a\":\"\xED\xA0\x80\"}", SL_EFORMAT, "conversation"},
        {"{\"a\":\"\xC0\x80\"}", SL_EFORMAT, "conversation"},
        {"{\"now\":7}", SL_EINVAL, "now"},
        {"{\"now\":\"yesterday\"}", SL_EINVAL, "now"},
        {"{\"now\":\"2026-13-01\"}", SL_EINVAL, "now"},
        {"{\"now\":\"2026-01-31T25:00:00\"}", SL_EINVAL, "now"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"{{ 1 + 1 }}\"}]}", 0, "{{ 1 + 1 }}"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"{% for %}\"}]}", 0, "{% for %}"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"<|endoftext|>\"}]}", 0, "<|endoftext|>"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\u001b[2J\"}]}", 0, "\x1B[2J"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\u202e\"}]}", 0, "\xE2\x80\xAE"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++, n_cases++) {
        struct sl_error err = {0};
        char *out = NULL;
        size_t n = 0;
        int rc =
            sl_template_render_file(NULL, cases[i].json, strlen(cases[i].json), &out, &n, &err);
        if (rc != cases[i].code || strstr(rc != 0 ? err.msg : out, cases[i].named) == NULL)
            fail_msg("%s: %s \"%s\"", cases[i].json, sl_code_name(rc), rc != 0 ? err.msg : out);
        sl_free(out);
    }
    /* every damage of a message: an error with a line, or a text; never more */
    static const char *const values[] = {"null",     "true",       "7",          "1e308",
                                         "\"\"",     "[]",         "{}",         "[null]",
                                         "[[[[]]]]", "{\"a\":{}}", "\"\\u0000\""};
    static const char *const places[] = {"{\"messages\":%s}",
                                         "{\"messages\":[%s]}",
                                         "{\"messages\":[{\"role\":%s}]}",
                                         "{\"messages\":[{\"content\":%s}]}",
                                         "{\"messages\":[{\"role\":%s,\"content\":\"a\"}]}",
                                         "{\"messages\":[{\"role\":\"user\",\"content\":%s}]}",
                                         "{\"messages\":[],\"add_generation_prompt\":%s}",
                                         "{\"messages\":[],\"tools\":%s}",
                                         "{\"messages\":[],\"bos_token\":%s}",
                                         "{\"%s\":1}"};
    for (size_t p = 0; p < SL_COUNT(places); p++) {
        for (size_t v = 0; v < SL_COUNT(values); v++, n_cases++) {
            char json[200];
            struct sl_error err = {0};
            char *out = NULL;
            size_t n = 0;
            snprintf(json, sizeof json, places[p], values[v]);
            int rc = sl_template_render_file(NULL, json, strlen(json), &out, &n, &err);
            if (rc != 0 && err.msg[0] == '\0')
                fail_msg("%s: %s without a word", json, sl_code_name(rc));
            if (rc != 0 && rc != SL_EINVAL && rc != SL_EFORMAT)
                fail_msg("%s: %s \"%s\"", json, sl_code_name(rc), err.msg);
            sl_free(out);
        }
    }
}

/* A megabyte of anything as the content of a message comes out as it went in. */
static void long_conversations(void **state)
{
    (void)state;
    size_t n = SLOWER > 1 ? 1u << 16 : 1u << 20;
    for (size_t i = 0; i < SL_COUNT(texts); i++, n_cases++) {
        char *s = fill(&texts[i], n - n % texts[i].n);
        struct sl_buf json = {0}, want = {0};
        struct sl_error err = {0};
        char *out = NULL;
        size_t n_out = 0;
        sl_buf_puts(&json, "{\"messages\":[{\"role\":\"user\",\"content\":\"#begin#");
        size_t at = json.n_bytes;
        sl_buf_json_escape(&json, s, n - n % texts[i].n); /* invalid bytes become U+FFFD here */
        assert_true(at < json.n_bytes);
        sl_buf_puts(&json, "#end#\"}]}");
        int rc = sl_template_render_file(NULL, json.data, json.n_bytes, &out, &n_out, &err);
        if (rc != 0)
            fail_msg("%s: %s", texts[i].label, err.msg);
        const char *from = memmem(out, n_out, "#begin#", strlen("#begin#"));
        for (size_t k = 0; k < n - n % texts[i].n;) { /* what the JSON text says */
            size_t len = (unsigned char)s[k] < 0x80 ? 1 : sl_utf8_valid_len(s + k, n - k);
            if (len > 0)
                sl_buf_put(&want, s + k, len);
            k += SL_MAX(len, 1u);
        }
        bool valid = want.n_bytes == n - n % texts[i].n; /* else U+FFFD stands somewhere */
        sl_buf_puts(&want, "#end#");
        if (from == NULL)
            fail_msg("%s: the content is not there", texts[i].label);
        from += strlen("#begin#");
        if (valid && ((size_t)(out + n_out - from) < want.n_bytes ||
                      memcmp(from, want.data, want.n_bytes) != 0))
            fail_msg("%s: the content is not what it was", texts[i].label);
        sl_buf_deinit(&want);
        sl_buf_deinit(&json);
        sl_free(out);
        sl_free(s);
    }
}

static void enough_cases(void **state)
{
    (void)state;
    print_message("%d cases\n", n_cases);
    assert_true(n_cases >= 300);
}

static int make_tokenizers(void **state)
{
    struct sl_error err = {0};
    (void)state;
    sl_log_set_level(SL_LOG_ERROR);
    toks[BYTES_GPT2] = byte_ranks(gpt2_pattern);
    toks[BYTES_CL100K] = byte_ranks(cl100k_pattern);
    toks[BYTES_JSON] = byte_json();
    toks[SPM] = spm_bytes();
    if (sl_tokenizer_open(NULL, &toks[BUNDLED], &err) != 0)
        fail_msg("%s", err.msg);
    return 0;
}

static int free_tokenizers(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        sl_tokenizer_close(toks[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_every_size),
        cmocka_unit_test(long_texts_take_linear_time),
        cmocka_unit_test(special_tokens_in_text),
        cmocka_unit_test(hostile_ids),
        cmocka_unit_test(every_value_damaged),
        cmocka_unit_test(tokenizer_cut_at_every_byte),
        cmocka_unit_test(configs),
        cmocka_unit_test(conversations),
        cmocka_unit_test(long_conversations),
        cmocka_unit_test(enough_cases),
    };
    return cmocka_run_group_tests(tests, make_tokenizers, free_tokenizers);
}
