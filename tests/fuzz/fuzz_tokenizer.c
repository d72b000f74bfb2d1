/* SPDX-License-Identifier: MIT
 * fuzz_tokenizer.c - a hostile vocabulary file and a text for it. The first byte chooses the kind
 * of file, then come two bytes of length, the file, and the text. With kind 4 a built-in byte-level
 * vocabulary reads the text and must give back its bytes.
 */
#include "base/sys.h"
#include "fuzz.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"

#include <stdint.h>
#include <string.h>

static void use(const struct sl_tokenizer *t, const char *text, size_t n)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        struct sl_ids ids = {0};
        char *whole = NULL, *piece = sl_malloc(sl_detok_max_bytes(t));
        size_t n_whole = 0, at = 0;
        struct sl_detok d;
        int rc = sl_tokenizer_encode_into(t, text, n, flags, &ids, NULL);
        if (rc == 0 && piece != NULL &&
            sl_tokenizer_decode(t, ids.data, ids.n, flags & 1, &whole, &n_whole, NULL) == 0) {
            sl_detok_init(&d, t, flags & 1);
            for (size_t i = 0; i <= ids.n; i++) {
                size_t k =
                    i < ids.n ? sl_detok_push(&d, ids.data[i], piece) : sl_detok_finish(&d, piece);
                SL_ASSERT(k <= sl_detok_max_bytes(t));
                SL_ASSERT(at + k <= n_whole && (k == 0 || memcmp(whole + at, piece, k) == 0));
                at += k;
            }
            SL_ASSERT(at == n_whole);
        }
        sl_free(whole);
        sl_free(piece);
        sl_free(ids.data);
    }
}

#define N_BUILT_IN 3

/* 256 bytes and a few merges; the pattern is one of those with a hand-written matcher. */
static struct sl_tokenizer *built_in(unsigned which)
{
    static struct sl_tokenizer *made[N_BUILT_IN];
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char *const patterns[N_BUILT_IN] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]"
        "+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "\\p{L}+|\\s"};
    char file[256 * 10 + 64];
    size_t k = 0;
    if (made[which] != NULL)
        return made[which];
    for (unsigned b = 0; b < 256; b++) {
        file[k++] = digits[b >> 2];
        file[k++] = digits[(b & 3) << 4];
        file[k++] = '=';
        file[k++] = '=';
        file[k++] = ' ';
        file[k++] = (char)('0' + b / 100);
        file[k++] = (char)('0' + b / 10 % 10);
        file[k++] = (char)('0' + b % 10);
        file[k++] = '\n';
    }
    memcpy(file + k, "YWE= 256\nYWFh 257\nYWI= 258\nICA= 259\n", 36);
    SL_ASSERT(sl_tokenizer_from_tiktoken(file, k + 36, patterns[which], &made[which], NULL) == 0);
    return made[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_tokenizer *t = NULL;
    int rc = -1;
    if (size < 3)
        return 0;
    size_t n = SL_MIN((size_t)(data[1] | data[2] << 8), size - 3);
    const char *file = (const char *)data + 3, *text = file + n;
    size_t n_text = size - 3 - n;
    switch (data[0] % 5) {
    case 0:
        rc = sl_tokenizer_from_json(file, n, NULL, 0, &t, NULL);
        break;
    case 1:
        rc = sl_tokenizer_from_tiktoken(file, n, "\\p{L}+|\\s+", &t, NULL);
        break;
    case 2:
        rc = sl_tokenizer_from_spm(file, n, &t, NULL);
        break;
    case 3:
        rc = sl_tokenizer_from_json(
            "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}", 53, file, n, &t,
            NULL);
        break;
    default:
        use(built_in(data[0] / 5 % N_BUILT_IN), text, n_text);
        return 0;
    }
    if (rc == 0)
        use(t, text, n_text);
    sl_tokenizer_destroy(t);
    return 0;
}
