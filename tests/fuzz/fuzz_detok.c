/* SPDX-License-Identifier: MIT
 * Sound vocabularies (the bundled one, byte-level ranks, SentencePiece with byte fallback): a text
 * encoded and decoded is that text, with U+FFFD for what is no UTF-8; any ids decoded one at a time
 * give whole characters only and together what decoding at once gives. The first byte chooses.
 */
#include "engine/load/load_text.h"
#include "utf8_model.h"

#include "base/sys.h"
#include "sluice.h"

#include <stdio.h>

enum { BUNDLED, RANKS, PIECES, N_KINDS };

static struct sl_tokenizer *toks[N_KINDS];
static char *piece_buf;

static void put_base64(struct sl_buf *b, const unsigned char *s, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned x =
            s[i] * 65536u + (i + 1 < n ? s[i + 1] * 256u : 0) + (i + 2 < n ? s[i + 2] : 0u);
        for (size_t k = 0; k < 4; k++)
            sl_buf_putc(b, i + k > n ? '=' : digits[x >> (18 - 6 * k) & 63]);
    }
}

static const char *const merged[] = {"aa",       "ab",   " a",       "  ",          "\xC3\xA9",
                                     "\xE4\xB8", "aaaa", "\xF0\x9F", "\xE2\x96",    "12",
                                     "\n\n",     "'s",   "\xBD",     "\x98\x80\xF0"};

static void make_ranks(void)
{
    struct sl_buf b = {0};
    for (unsigned i = 0; i < 256; i++) {
        unsigned char c = (unsigned char)i;
        put_base64(&b, &c, 1);
        sl_buf_printf(&b, " %u\n", i);
    }
    for (unsigned i = 0, id = 256; i < SL_COUNT(merged); i++) {
        if (strlen(merged[i]) < 2)
            continue;
        put_base64(&b, (const unsigned char *)merged[i], strlen(merged[i]));
        sl_buf_printf(&b, " %u\n", id++);
    }
    int rc = sl_tokenizer_from_tiktoken(b.data, b.n_bytes,
                                        "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| "
                                        "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                                        &toks[RANKS], NULL);
    SL_ASSERT(rc == 0);
    sl_buf_deinit(&b);
}

#define META      "\xE2\x96\x81"
#define META_A    "\xE2\x96\x81\x61"
#define META_META "\xE2\x96\x81\xE2\x96\x81"

static void make_pieces(void)
{
    static const char *const words[] = {META,       META_A,         "a",       "b", "ab", "aa",
                                        "\xC3\xA9", "\xE4\xB8\x96", META_META, "."};
    enum { N = 3 + 256 + SL_COUNT(words) };
    static char bytes[256][8];
    static const char *tokens[N];
    static uint32_t sizes[N];
    static float scores[N];
    static int32_t types[N];
    for (uint32_t i = 0; i < N; i++) {
        if (i >= 3 && i < 259)
            snprintf(bytes[i - 3], sizeof bytes[0], "<0x%02X>", i - 3);
        tokens[i] = i == 0    ? "<unk>"
                    : i == 1  ? "<s>"
                    : i == 2  ? "</s>"
                    : i < 259 ? bytes[i - 3]
                              : words[i - 259];
        sizes[i] = (uint32_t)strlen(tokens[i]);
        scores[i] = i < 259 ? 0 : -(float)i;
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
    }
    struct sl_vocab_gguf v = {.model = "llama",
                              .n_tokens = N,
                              .tokens = tokens,
                              .token_bytes = sizes,
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
                              .add_bos = -1,
                              .add_eos = -1,
                              .add_space_prefix = -1,
                              .remove_extra_whitespaces = -1};
    SL_ASSERT(sl_tokenizer_from_gguf(&v, &toks[PIECES], NULL) == 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct sl_ckpt *ckpt;
    size_t room = 0;
    (void)argc;
    (void)argv;
    SL_ASSERT(sl_ckpt_open(NULL, &ckpt, NULL) == 0);
    SL_ASSERT(sl_load_tokenizer(ckpt, &toks[BUNDLED], NULL) == 0);
    sl_ckpt_close(ckpt);
    make_ranks();
    make_pieces();
    for (int i = 0; i < N_KINDS; i++)
        room = SL_MAX(room, sl_detok_max_bytes(toks[i]));
    piece_buf = sl_malloc(room);
    return piece_buf != NULL ? 0 : 1;
}

static bool is_valid(const char *s, size_t n)
{
    uint32_t cp;
    for (size_t i = 0, len; i < n; i += len)
        if ((len = model_utf8((const unsigned char *)s + i, n - i, &cp)) == 0)
            return false;
    return true;
}

/* All at once and one by one; the text goes to *out. */
static void decode(const struct sl_tokenizer *t, const int32_t *ids, size_t n, bool skip,
                   struct sl_buf *out)
{
    char *whole;
    size_t n_whole;
    struct sl_detok d, other;
    SL_ASSERT(sl_tokenizer_decode(t, ids, n, skip, &whole, &n_whole, NULL) == 0);
    sl_detok_init(&d, t, skip);
    sl_detok_init(&other, t, skip); /* another stream on the same vocabulary */
    sl_buf_clear(out);
    for (size_t i = 0; i <= n; i++) {
        size_t k = i < n ? sl_detok_push(&d, ids[i], piece_buf) : sl_detok_finish(&d, piece_buf);
        SL_ASSERT(k <= sl_detok_max_bytes(t) && is_valid(piece_buf, k));
        sl_buf_put(out, piece_buf, k);
        if (i < n && i % 3 == 0)
            (void)sl_detok_push(&other, ids[n - 1 - i], piece_buf);
    }
    SL_ASSERT(out->n_bytes == n_whole && (n_whole == 0 || memcmp(whole, out->data, n_whole) == 0));
    sl_free(whole);
}

static void text_survives(int kind, const char *s, size_t n)
{
    static struct sl_ids ids;
    static struct sl_buf got, want, again;
    ids.n = 0;
    SL_ASSERT(sl_tokenizer_encode_into(toks[kind], s, n, 0, &ids, NULL) == 0);
    decode(toks[kind], ids.data, ids.n, false, &got);
    sl_buf_clear(&want);
    model_sanitize(&want, s, n);
    if (kind == PIECES) { /* the metaspace is how it spells a space */
        sl_buf_clear(&again);
        for (size_t i = 0; i < want.n_bytes;) {
            bool meta = want.n_bytes - i >= 3 && memcmp(want.data + i, META, 3) == 0;
            sl_buf_putc(&again, meta ? ' ' : want.data[i]);
            i += meta ? 3 : 1;
        }
        SL_ASSERT(got.n_bytes == again.n_bytes &&
                  (got.n_bytes == 0 || memcmp(got.data, again.data, got.n_bytes) == 0));
    } else {
        SL_ASSERT(got.n_bytes == want.n_bytes &&
                  (got.n_bytes == 0 || memcmp(got.data, want.data, got.n_bytes) == 0));
    }
}

/* Any ids; of byte-level ranks the bytes are known. */
static void ids_decode(int kind, const uint8_t *data, size_t n)
{
    static struct sl_buf got, bytes, want;
    int32_t ids[256], n_vocab = sl_tokenizer_n_vocab(toks[kind]);
    sl_buf_clear(&bytes);
    sl_buf_clear(&want);
    n = SL_MIN(n, SL_COUNT(ids));
    for (size_t i = 0; i < n; i++) {
        size_t n_piece;
        ids[i] = (data[i] * (i % 2 == 0 ? 1 : 37)) % n_vocab;
        const char *piece = sl_tokenizer_piece(toks[kind], ids[i], &n_piece);
        SL_ASSERT(piece != NULL);
        sl_buf_put(&bytes, piece, n_piece);
    }
    decode(toks[kind], ids, n, n % 2 == 0, &got);
    if (kind != RANKS)
        return;
    model_sanitize(&want, bytes.n_bytes > 0 ? bytes.data : "", bytes.n_bytes);
    SL_ASSERT(got.n_bytes == want.n_bytes &&
              (got.n_bytes == 0 || memcmp(got.data, want.data, got.n_bytes) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    int kind = data[0] % N_KINDS;
    if (data[0] / N_KINDS % 2 == 0)
        text_survives(kind, (const char *)data + 1, size - 1);
    else
        ids_decode(kind, data + 1, size - 1);
    return 0;
}
