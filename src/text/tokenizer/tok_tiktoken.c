/* SPDX-License-Identifier: MIT
 * tok_tiktoken.c - .tiktoken files: a line per token, base64 of its bytes, a space, its rank.
 *
 * Such a file names neither the pattern nor the special tokens, so both are chosen by the number of
 * ranks, which differs between the known vocabularies.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <stdio.h>
#include <string.h>

#define P_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define P_CL100K                                                            \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?" \
    "[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define P_LLAMA_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define P_LLAMA_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define P_O200K                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}"      \
    "\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}"     \
    "\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}" \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct special {
    int32_t id;
    const char *name;
};

static const struct special special_gpt2[] = {{50256, "<|endoftext|>"}};
static const struct special special_cl100k[] = {{100257, "<|endoftext|>"},
                                                {100258, "<|fim_prefix|>"},
                                                {100259, "<|fim_middle|>"},
                                                {100260, "<|fim_suffix|>"},
                                                {100276, "<|endofprompt|>"}};
static const struct special special_o200k[] = {{199999, "<|endoftext|>"},
                                               {200018, "<|endofprompt|>"}};
static const struct special special_llama3[] = {{128000, "<|begin_of_text|>"},
                                                {128001, "<|end_of_text|>"},
                                                {128004, "<|finetune_right_pad_id|>"},
                                                {128006, "<|start_header_id|>"},
                                                {128007, "<|end_header_id|>"},
                                                {128008, "<|eom_id|>"},
                                                {128009, "<|eot_id|>"},
                                                {128010, "<|python_tag|>"}};
/* 200007 and 200008 end a message and a turn. */
static const struct special special_llama4[] = {{200000, "<|begin_of_text|>"},
                                                {200001, "<|end_of_text|>"},
                                                {200002, "<|fim_prefix|>"},
                                                {200003, "<|fim_middle|>"},
                                                {200004, "<|fim_suffix|>"},
                                                {200005, "<|header_start|>"},
                                                {200006, "<|header_end|>"},
                                                {200007, "<|eom|>"},
                                                {200008, "<|eot|>"},
                                                {200009, "<|step|>"},
                                                {200016, "<|python_start|>"},
                                                {200017, "<|python_end|>"},
                                                {200018, "<|finetune_right_pad|>"},
                                                {200080, "<|image_start|>"},
                                                {200081, "<|image_end|>"},
                                                {200084, "<|tile_x_separator|>"},
                                                {200085, "<|tile_y_separator|>"},
                                                {200090, "<|image|>"},
                                                {200092, "<|patch|>"},
                                                {201142, "<|reasoning_thinking_start|>"},
                                                {201143, "<|reasoning_thinking_end|>"}};
static const struct special special_qwen[] = {
    {151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}};

/* Llama fills what is left of its blocks with reserved tokens, numbered from `number`. */
static const struct reserved {
    int32_t first, end;
    const char *name;
    int number;
} reserved_llama3[] = {{128002, 128256, "", 0}},
  reserved_llama4[] = {
      {200010, 200016, "text_post_train_", 0}, {200019, 200080, "text_post_train_", 8},
      {200082, 200092, "vision_", 0},          {200093, 201134, "vision_", 7},
      {201134, 201142, "reasoning_", 0},       {201144, 202048, "", 0}};

static const struct family {
    uint32_t n_ranks;
    const char *pattern;
    const struct special *special;
    size_t n_special;
    int32_t bos, eos;
    bool nfc; /* the text is normalised first, as Qwen does */
    const struct reserved *reserved;
    size_t n_reserved;
} families[] = {
    {50256, P_GPT2, special_gpt2, SL_COUNT(special_gpt2), -1, 50256, false, NULL, 0},
    {100256, P_CL100K, special_cl100k, SL_COUNT(special_cl100k), -1, 100257, false, NULL, 0},
    {128000, P_LLAMA_HEAD "\\p{N}{1,3}" P_LLAMA_TAIL, special_llama3, SL_COUNT(special_llama3),
     128000, 128001, false, reserved_llama3, SL_COUNT(reserved_llama3)},
    {151643, P_LLAMA_HEAD "\\p{N}" P_LLAMA_TAIL, special_qwen, SL_COUNT(special_qwen), -1, 151643,
     true, NULL, 0},
    {199998, P_O200K, special_o200k, SL_COUNT(special_o200k), -1, 199999, false, NULL, 0},
    {200000, P_O200K, special_llama4, SL_COUNT(special_llama4), 200000, 200001, false,
     reserved_llama4, SL_COUNT(reserved_llama4)},
};

static int tok_tiktoken_base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool tok_base64(const char *s, size_t n, char *out, size_t *n_out)
{
    size_t k = 0;
    if (n == 0 || n % 4 != 0)
        return false;
    size_t pad = s[n - 1] != '=' ? 0 : s[n - 2] != '=' ? 1 : 2;
    SL_ASSERT(pad <= 2);
    for (size_t i = 0; i < n; i += 4) {
        uint32_t v = 0;
        for (size_t j = 0; j < 4; j++) {
            bool is_pad = i + j >= n - pad;
            int d = is_pad ? 0 : tok_tiktoken_base64_value(s[i + j]);
            if (d < 0)
                return false;
            v = v << 6 | (uint32_t)d;
        }
        size_t bytes = i + 4 == n ? 3 - pad : 3;
        for (size_t j = 0; j < bytes; j++)
            out[k++] = (char)(v >> (16 - 8 * j));
    }
    SL_ASSERT(k + pad == n / 4 * 3); /* it fits where the text would */
    *n_out = k;
    return true;
}

static int add_line(struct sl_tokenizer *t, const char *s, size_t n, size_t line, char **buf,
                    size_t *cap, struct sl_error *err)
{
    const char *space = memchr(s, ' ', n);
    size_t n_b64 = space != NULL ? (size_t)(space - s) : 0, n_bytes;
    uint64_t rank;
    if (space == NULL || !sl_parse_u64(space + 1, n - n_b64 - 1, &rank))
        return sl_fail(err, SL_EFORMAT, "tiktoken line %zu: not \"base64 rank\"", line);
    if (n_b64 > *cap) {
        char *grown = sl_realloc(*buf, n_b64);
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "tiktoken line %zu", line);
        *buf = grown;
        *cap = n_b64;
    }
    if (!tok_base64(s, n_b64, *buf, &n_bytes))
        return sl_fail(err, SL_EFORMAT, "tiktoken line %zu: malformed base64", line);
    SL_ASSERT(n_b64 < n && n_bytes < n_b64 && n_b64 <= *cap);
    int rc = tok_vocab_add(t, rank, *buf, n_bytes, TOK_IN_MODEL, false, err);
    return rc == 0 ? 0 : sl_error_prefix(err, rc, "tiktoken line %zu", line);
}

static int tok_tiktoken_add_special(struct sl_tokenizer *t, int32_t id, const char *name,
                                    struct sl_error *err)
{
    SL_ASSERT(id >= 0 && id < SL_MAX_VOCAB);
    struct tok_added_flags a = {.id = id, .special = true};
    int rc = tok_vocab_add(t, (uint64_t)id, name, strlen(name), SL_TOKEN_SPECIAL, false, err);
    return rc != 0 ? rc : tok_added_add(t, &a, err);
}

static int add_reserved(struct sl_tokenizer *t, const struct reserved *r, struct sl_error *err)
{
    int rc = 0, number = r->number;
    for (int32_t id = r->first; id < r->end && rc == 0; id++) {
        char name[64];
        if ((uint32_t)id < t->pieces.n && t->pieces.at[id].len != TOK_HOLE)
            continue;
        (void)snprintf(name, sizeof(name), "<|%sreserved_special_token_%d|>", r->name, number++);
        rc = tok_tiktoken_add_special(t, id, name, err);
    }
    return rc;
}

static int add_family(struct sl_tokenizer *t, const struct family *f, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(t->pieces.n == f->n_ranks);
    for (size_t i = 0; i < f->n_special && rc == 0; i++)
        rc = tok_tiktoken_add_special(t, f->special[i].id, f->special[i].name, err);
    for (size_t i = 0; i < f->n_reserved && rc == 0; i++)
        rc = add_reserved(t, &f->reserved[i], err);
    if (rc == 0 && f->nfc && tok_add_norm(t, NORM_NFC, err) == NULL)
        rc = SL_ELIMIT;
    SL_ASSERT(rc != 0 || ((uint32_t)f->eos < t->pieces.n && f->bos < (int32_t)t->pieces.n));
    t->bos = f->bos;
    t->eos = f->eos;
    if (rc == 0 && f->bos >= 0)
        rc = tok_set_affixes(t, &f->bos, 1, NULL, 0, err);
    return rc;
}

static int tok_tiktoken_parse(struct sl_tokenizer *t, const char *data, size_t n,
                              struct sl_error *err)
{
    char *buf = NULL;
    size_t cap = 0, line = 1;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; line++) {
        const char *nl = memchr(data + i, '\n', n - i);
        size_t end = nl != NULL ? (size_t)(nl - data) : n;
        size_t len = end - i;
        SL_ASSERT(end >= i && end <= n);
        if (len > 0 && data[i + len - 1] == '\r')
            len--;
        if (len > 0)
            rc = add_line(t, data + i, len, line, &buf, &cap, err);
        i = end + 1;
    }
    sl_free(buf);
    return rc;
}

int sl_tokenizer_from_tiktoken(const char *data, size_t n, const char *pattern,
                               struct sl_tokenizer **out, struct sl_error *err)
{
    const struct family *family = NULL;
    struct sl_tokenizer *t = tok_create(err);
    int rc;
    if (t == NULL)
        return SL_ENOMEM;
    if ((rc = tok_strtab_reserve(&t->pieces, (uint32_t)SL_MIN(n / 8, 1u << 18), err)) != 0 ||
        (rc = tok_tiktoken_parse(t, data, n, err)) != 0)
        goto fail;
    for (size_t i = 0; i < SL_COUNT(families); i++) {
        if (families[i].n_ranks == t->pieces.n)
            family = &families[i];
    }
    if (family == NULL && pattern == NULL) {
        rc = sl_fail(err, SL_EUNSUPPORTED, "tiktoken file with %u ranks: unknown pattern",
                     t->pieces.n);
        goto fail;
    }
    if (pattern == NULL)
        pattern = family->pattern;
    SL_ASSERT(pattern != NULL && t->n_pre == 0);
    t->model = MODEL_BPE;
    t->bytes = t->raw_pieces = true;
    t->bpe.bytes = t->bpe.by_concat = t->bpe.whole_first = true;
    if ((rc = tok_add_split(t, pattern, strlen(pattern), SPLIT_ISOLATED, false, err)) != 0 ||
        (family != NULL && (rc = add_family(t, family, err)) != 0) ||
        (rc = tok_finish(t, err)) != 0)
        goto fail;
    *out = t;
    return 0;
fail:
    sl_tokenizer_destroy(t);
    return rc;
}
