/* SPDX-License-Identifier: MIT
 * tok_any.c - which format a vocabulary file has. Names do not say: Llama's tokenizer.model is
 * SentencePiece up to version 2 and tiktoken's from 3 on, Mistral's are tokenizer.model.v3 and
 * tekken.json.
 */
#include "base/check.h"
#include "base/str.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#define MAX_LINE 4096 /* bytes of a .tiktoken file's first line */

/* "base64 rank" */
static bool is_tiktoken(const char *s, size_t n)
{
    const char *nl = memchr(s, '\n', SL_MIN(n, (size_t)MAX_LINE));
    size_t len = nl != NULL ? (size_t)(nl - s) : n, n_out;
    char out[MAX_LINE];
    uint64_t rank;
    if (len > 0 && s[len - 1] == '\r')
        len--;
    const char *space = len < MAX_LINE ? memchr(s, ' ', len) : NULL;
    return space != NULL && sl_parse_u64(space + 1, len - (size_t)(space - s) - 1, &rank) &&
           tok_base64(s, (size_t)(space - s), out, &n_out);
}

/* A message begins with the key of a field of bytes: the pieces, or a specification. */
static bool is_protobuf(const char *s, size_t n)
{
    return n > 1 && (s[0] == 0x0A || s[0] == 0x12 || s[0] == 0x1A);
}

int sl_tokenizer_from_bytes(const char *data, size_t n, const char *config, size_t n_config,
                            struct sl_tokenizer **out, struct sl_error *err)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", data[i]) != NULL && data[i] != '\0')
        i++;
    if (i < n && data[i] == '{')
        return sl_tokenizer_from_json(data, n, config, n_config, out, err);
    if (is_tiktoken(data, n))
        return sl_tokenizer_from_tiktoken(data, n, NULL, out, err);
    if (tok_is_world(data, n))
        return sl_tokenizer_from_world(data, n, out, err);
    if (is_protobuf(data, n))
        return sl_tokenizer_from_spm(data, n, out, err);
    return sl_fail(err, SL_EUNSUPPORTED,
                   "not a tokenizer: expected a model folder, tokenizer.json, tekken.json, GGUF, "
                   ".tiktoken, rwkv_vocab*.txt or SentencePiece");
}
