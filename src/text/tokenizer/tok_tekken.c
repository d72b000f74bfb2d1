/* SPDX-License-Identifier: MIT
 * tok_tekken.c - tekken.json: Mistral's byte-level vocabularies in their own format.
 *
 * config names the pattern and the sizes; vocab lists ranks with their bytes, of which a vocabulary
 * takes as many as its size says. Special tokens come first: the id of a rank is the rank behind
 * them. Files up to v7 leave the special tokens out; then they are Mistral's first twenty.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tok_json.h"

#include <stdio.h>
#include <string.h>

static const char *const first_specials[] = {"<unk>",
                                             "<s>",
                                             "</s>",
                                             "[INST]",
                                             "[/INST]",
                                             "[AVAILABLE_TOOLS]",
                                             "[/AVAILABLE_TOOLS]",
                                             "[TOOL_RESULTS]",
                                             "[/TOOL_RESULTS]",
                                             "[TOOL_CALLS]",
                                             "[IMG]",
                                             "<pad>",
                                             "[IMG_BREAK]",
                                             "[IMG_END]",
                                             "[PREFIX]",
                                             "[MIDDLE]",
                                             "[SUFFIX]",
                                             "[SYSTEM_PROMPT]",
                                             "[/SYSTEM_PROMPT]",
                                             "[TOOL_CONTENT]"};

static int tok_tekken_size_of(const json_t *config, const char *key, uint32_t *out,
                              struct sl_error *err)
{
    const json_t *v = json_object_get(config, key);
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n > SL_MAX_VOCAB)
        return sl_fail(err, SL_EFORMAT, "tekken.json: config.%s is not a number from 0 to %d", key,
                       SL_MAX_VOCAB);
    *out = (uint32_t)n;
    return 0;
}

static int add_rank(struct sl_tokenizer *t, const json_t *o, size_t i, uint32_t n_special,
                    uint32_t n_inner, struct sl_buf *bytes, struct sl_error *err)
{
    const json_t *rank = json_object_get(o, "rank"), *b64 = json_object_get(o, "token_bytes");
    size_t n = json_string_length(b64), n_bytes;
    if (!json_is_integer(rank) || !json_is_string(b64))
        return sl_fail(err, SL_EFORMAT, "tekken.json: vocab[%zu] has no rank or no token_bytes", i);
    json_int_t r = json_integer_value(rank);
    if (r < 0)
        return sl_fail(err, SL_EFORMAT, "tekken.json: vocab[%zu] has rank %lld", i, (long long)r);
    if (r >= (json_int_t)n_inner)
        return 0; /* of a larger vocabulary that this one was cut from */
    sl_buf_clear(bytes);
    if (!sl_buf_reserve(bytes, n + 1))
        return sl_fail(err, SL_ENOMEM, "tekken.json: vocab[%zu]", i);
    char *out = bytes->data;
    if (!tok_base64(json_string_value(b64), n, out, &n_bytes))
        return sl_fail(err, SL_EFORMAT, "tekken.json: vocab[%zu]: malformed base64", i);
    return tok_vocab_add(t, (uint64_t)r + n_special, out, n_bytes, TOK_IN_MODEL, false, err);
}

static int add_ranks(struct sl_tokenizer *t, const json_t *vocab, uint32_t n_special,
                     uint32_t n_inner, struct sl_error *err)
{
    struct sl_buf bytes = {0};
    int rc = 0;
    if (!json_is_array(vocab))
        return sl_fail(err, SL_EFORMAT, "tekken.json: vocab is not an array");
    for (size_t i = 0; i < json_array_size(vocab) && rc == 0; i++)
        rc = add_rank(t, json_array_get(vocab, i), i, n_special, n_inner, &bytes, err);
    sl_buf_deinit(&bytes);
    for (uint32_t i = 0; i < n_inner && rc == 0; i++) {
        if (n_special + i >= t->pieces.n || t->pieces.at[n_special + i].len == TOK_HOLE)
            rc = sl_fail(err, SL_EFORMAT, "tekken.json: no entry has rank %u of %u", i, n_inner);
    }
    return rc;
}

static int tok_tekken_add_special(struct sl_tokenizer *t, uint64_t id, const char *s, size_t n,
                                  struct sl_error *err)
{
    int rc = tok_vocab_add(t, id, s, n, SL_TOKEN_SPECIAL, false, err);
    struct tok_added_flags a = {.id = (int32_t)id, .special = true};
    return rc != 0 ? sl_error_prefix(err, rc, "tekken.json: special token")
                   : tok_added_add(t, &a, err);
}

static int add_specials(struct sl_tokenizer *t, const json_t *list, uint32_t n_special,
                        struct sl_error *err)
{
    int rc = 0;
    if (list != NULL && !json_is_null(list) && !json_is_array(list))
        return sl_fail(err, SL_EFORMAT, "tekken.json: special_tokens is not an array");
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        const json_t *o = json_array_get(list, i), *s = json_object_get(o, "token_str");
        json_int_t id = json_integer_value(json_object_get(o, "rank"));
        if (!json_is_integer(json_object_get(o, "rank")) || !json_is_string(s) || id < 0 ||
            id >= (json_int_t)n_special)
            return sl_fail(err, SL_EFORMAT,
                           "tekken.json: special_tokens[%zu] has no token_str or no rank below %u",
                           i, n_special);
        rc = tok_tekken_add_special(t, (uint64_t)id, json_string_value(s), json_string_length(s),
                                    err);
    }
    for (size_t i = 0;
         !json_is_array(list) && i < SL_MIN(SL_COUNT(first_specials), n_special) && rc == 0; i++)
        rc = tok_tekken_add_special(t, i, first_specials[i], strlen(first_specials[i]), err);
    for (uint32_t i = 0; i < n_special && rc == 0; i++) {
        char name[32];
        if (t->pieces.at[i].len != TOK_HOLE)
            continue;
        int n = snprintf(name, sizeof(name), "<SPECIAL_%u>", i);
        rc = tok_tekken_add_special(t, i, name, (size_t)n, err);
    }
    return rc;
}

static int tok_tekken_build(struct sl_tokenizer *t, const json_t *root, struct sl_error *err)
{
    const json_t *config = json_object_get(root, "config");
    const json_t *pattern = json_object_get(config, "pattern");
    uint32_t n_all = 0, n_special = 0;
    int rc = tok_tekken_size_of(config, "default_vocab_size", &n_all, err);
    if (rc == 0)
        rc = tok_tekken_size_of(config, "default_num_special_tokens", &n_special, err);
    if (rc == 0 && n_special >= n_all)
        rc = sl_fail(err, SL_EFORMAT, "tekken.json: %u special tokens in a vocabulary of %u",
                     n_special, n_all);
    if (rc == 0 && !json_is_string(pattern))
        rc = sl_fail(err, SL_EFORMAT, "tekken.json: config.pattern is missing");
    if (rc == 0)
        rc = tok_strtab_reserve(&t->pieces, n_all, err);
    if (rc == 0)
        rc = add_ranks(t, json_object_get(root, "vocab"), n_special, n_all - n_special, err);
    if (rc == 0)
        rc = add_specials(t, json_object_get(root, "special_tokens"), n_special, err);
    if (rc != 0)
        return rc;
    t->model = MODEL_BPE;
    t->bytes = t->raw_pieces = true;
    t->bpe.bytes = t->bpe.by_concat = t->bpe.whole_first = true;
    t->bos = sl_tokenizer_find(t, "<s>", 3);
    t->eos = sl_tokenizer_find(t, "</s>", 4);
    rc = tok_set_affixes(t, &t->bos, t->bos >= 0, NULL, 0, err);
    if (rc == 0)
        rc = tok_add_split(t, json_string_value(pattern), json_string_length(pattern),
                           SPLIT_ISOLATED, false, err);
    return rc == 0 ? tok_finish(t, err) : rc;
}

int tok_tekken_load(struct sl_tokenizer *t, const char *json, size_t n, struct sl_error *err)
{
    json_t *root = NULL;
    int rc = tok_json_load("tekken.json", json, n, &root, err);
    if (rc != 0)
        return rc;
    rc = tok_tekken_build(t, root, err);
    json_decref(root);
    return rc;
}
