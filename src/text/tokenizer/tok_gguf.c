/* SPDX-License-Identifier: MIT
 * tok_gguf.c - vocabularies of GGUF files.
 *
 * "gpt2" is byte-level BPE with merges, and `pre` names the patterns that split the text: each
 * pattern in turn splits what the ones before left, matches and gaps alike. "llama" is
 * SentencePiece BPE by scores, "t5" Unigram, "bert" WordPiece whose word-initial pieces begin with
 * a metaspace instead of the others with "##". The names and patterns are those that files in
 * circulation rely on.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <stdlib.h>
#include <string.h>

#define META "\xE2\x96\x81" /* U+2581 */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

#define WORDS     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
#define GPT2      WORDS "| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define HEAD      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TAIL      "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3    HEAD "\\p{N}{1,3}" TAIL
#define QWEN2     HEAD "\\p{N}" TAIL
#define UP        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOW       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD      "[^\\r\\n\\p{L}\\p{N}]?"
#define CASES(s)  LEAD UP "*" LOW "+" s "|" LEAD UP "+" LOW "*" s "|"
#define O200K_END "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K     CASES("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "\\p{N}{1,3}" O200K_END
#define TEKKEN    CASES("") "\\p{N}" O200K_END
#define QWEN35                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?" \
    "[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CJK_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK3                                                                        \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?" \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Letters with case, as the first DeepSeek models list them; ranges of U+00B5 to U+1E943. */
#define DEEPSEEK_WORDS                                                                      \
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"     \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"  \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"           \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"          \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"          \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}" \
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"  \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"          \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"           \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"            \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}" \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"  \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"           \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"          \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"        \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"  \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]+"
#define DEEPSEEK_PUNCT \
    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define BLOOM        " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

static const struct pre {
    const char *names; /* separated by spaces */
    const char *patterns[6];
    bool whole_first, add_bos;
} pres[] = {
    {" default ",
     {"[\\p{P}\\$\\+<=>\\^\\~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"},
     false,
     false},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {LLAMA3},
     true,
     true},
    {" dbrx smaug-bpe chatglm-bpe glm4 ", {LLAMA3}, false, false},
    {" minicpm5 ", {LLAMA3}, true, false},
    {" deepseek-llm ",
     {"[\\r\\n]", DEEPSEEK_WORDS, DEEPSEEK_PUNCT, "\\s+$", DEEPSEEK_CJK, "\\p{N}+"},
     false,
     false},
    {" deepseek-coder ",
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"},
     false,
     false},
    {" deepseek-v3 deepseek-r1-qwen-v3 hunyuan-dense joyai-llm ",
     {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3},
     false,
     false},
    {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ",
     {"\\p{N}", GPT2},
     false,
     false},
    {" gpt-2 phi-2 mpt olmo jais trillion jina-es jina-de jina-v1-en jina-v2-es jina-v2-de "
     "jina-v2-code roberta-bpe granite-docling gigachat modern-bert exaone4 a.x-4.0 mellum ",
     {GPT2},
     false,
     false},
    {" qwen2 stablelm2 deepseek-r1-qwen megrez hunyuan kormo solar-open grok-2 ",
     {QWEN2},
     false,
     false},
    {" qwen35 ", {QWEN35}, false, false},
    {" gpt-4o llama4 minimax-m2 kanana2 ", {O200K}, false, false},
    {" tekken ", {TEKKEN}, true, true},
    {" poro-chat bloom gpt3-finnish ", {BLOOM}, false, false},
    {" viking ", {BLOOM, "\\p{N}"}, false, false},
};

static const struct pre *find_pre(const char *name)
{
    char key[80];
    size_t n = strlen(name);
    if (n + 3 > sizeof(key) || strchr(name, ' ') != NULL)
        return NULL;
    key[0] = ' ';
    memcpy(key + 1, name, n);
    memcpy(key + 1 + n, " ", 2);
    SL_ASSERT(strlen(key) == n + 2 && strlen(key) < sizeof key);
    for (size_t i = 0; i < SL_COUNT(pres); i++) {
        if (strstr(pres[i].names, key) != NULL)
            return &pres[i];
    }
    return NULL;
}

/* ---------------------------------------------------------------- vocabulary */

static int tok_gguf_type_of(const struct sl_vocab_gguf *v, uint32_t id)
{
    SL_ASSERT(id < v->n_tokens);
    return v->types != NULL ? v->types[id] : TYPE_NORMAL;
}

static unsigned attr_of(int type, bool spm)
{
    switch (type) {
    case TYPE_UNKNOWN:
        return SL_TOKEN_UNKNOWN | SL_TOKEN_SPECIAL | (spm ? 0 : TOK_IN_MODEL);
    case TYPE_CONTROL:
        return SL_TOKEN_SPECIAL | (spm ? 0 : TOK_IN_MODEL);
    case TYPE_BYTE:
        return SL_TOKEN_BYTE;
    default:
        return TOK_IN_MODEL;
    }
}

/* Two entries of one spelling occur (padding): the first keeps the name. */
static int tok_gguf_add_tokens(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, bool spm,
                               struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(t->pieces.n == 0); /* so that an entry's place in the file is its id */
    if (v->n_tokens > SL_MAX_VOCAB)
        return sl_fail(err, SL_ELIMIT, "tokenizer.ggml.tokens: %u entries", v->n_tokens);
    rc = tok_strtab_reserve(&t->pieces, v->n_tokens, err);
    if (rc == 0)
        rc = tok_map_reserve(&t->by_piece, v->n_tokens, err);
    for (uint32_t i = 0; i < v->n_tokens && rc == 0; i++)
        rc = tok_vocab_add(t, i, v->tokens[i], v->token_bytes[i],
                           attr_of(tok_gguf_type_of(v, i), spm), true, err);
    SL_ASSERT(rc != 0 || t->pieces.n == v->n_tokens);
    for (uint32_t i = 0; i < v->n_tokens && rc == 0; i++) {
        int type = tok_gguf_type_of(v, i);
        struct tok_added_flags a = {.id = (int32_t)i, .special = type != TYPE_USER};
        if ((type == TYPE_CONTROL || type == TYPE_USER || type == TYPE_UNKNOWN) &&
            v->token_bytes[i] > 0)
            rc = tok_added_add(t, &a, err);
    }
    return rc;
}

static int check_id(const char *key, int64_t id, uint32_t n, struct sl_error *err)
{
    return id < -1 || id >= (int64_t)n
               ? sl_fail(err, SL_EFORMAT, "tokenizer.ggml.%s: %lld of %u tokens", key,
                         (long long)id, n)
               : 0;
}

static int check_ids(const struct sl_vocab_gguf *v, struct sl_error *err)
{
    const struct {
        const char *key;
        int64_t id;
    } ids[] = {{"bos_token_id", v->bos},     {"eos_token_id", v->eos},
               {"unknown_token_id", v->unk}, {"seperator_token_id", v->sep},
               {"padding_token_id", v->pad}, {"cls_token_id", v->cls},
               {"mask_token_id", v->mask},   {"eot_token_id", v->eot}};
    int rc = 0;
    for (size_t i = 0; i < SL_COUNT(ids) && rc == 0; i++)
        rc = check_id(ids[i].key, ids[i].id, v->n_tokens, err);
    return rc;
}

/* What surrounds a text: add_bos and add_eos of the file, else the kind's habit. */
static int affixes(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, bool bos, bool eos,
                   int64_t first, int64_t last, struct sl_error *err)
{
    if (v->add_bos >= 0)
        bos = v->add_bos != 0;
    if (v->add_eos >= 0)
        eos = v->add_eos != 0;
    SL_ASSERT(first < (int64_t)t->pieces.n && last < (int64_t)t->pieces.n);
    int32_t a = (int32_t)first, b = (int32_t)last;
    return tok_set_affixes(t, &a, bos && first >= 0 ? 1 : 0, &b, eos && last >= 0 ? 1 : 0, err);
}

static int add_replace(struct sl_tokenizer *t, const char *a, const char *b, struct sl_error *err)
{
    struct tok_dec_op *op = tok_add_dec(t, DEC_REPLACE, err);
    if (op == NULL)
        return SL_ELIMIT;
    SL_ASSERT(op->kind == DEC_REPLACE && op->a == NULL && op->b == NULL);
    int rc = tok_dup(&op->a, &op->n_a, a, strlen(a), err);
    return rc != 0 ? rc : tok_dup(&op->b, &op->n_b, b, strlen(b), err);
}

/* Metaspace to space, byte tokens to bytes, and one leading space off. */
static int spm_decoder(struct sl_tokenizer *t, bool strip, struct sl_error *err)
{
    SL_ASSERT(t->n_dec_ops == 0);
    int rc = add_replace(t, META, " ", err);
    if (rc != 0)
        return rc;
    if (tok_add_dec(t, DEC_BYTE_FALLBACK, err) == NULL || tok_add_dec(t, DEC_FUSE, err) == NULL)
        return SL_ELIMIT;
    if (!strip)
        return 0;
    struct tok_dec_op *op = tok_add_dec(t, DEC_STRIP, err);
    if (op == NULL)
        return SL_ELIMIT;
    SL_ASSERT(op == &t->dec_ops[t->n_dec_ops - 1] && op->a == NULL);
    op->start = 1;
    return tok_dup(&op->a, &op->n_a, " ", 1, err);
}

/* ---------------------------------------------------------------- kinds */

static int load_bpe(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, struct sl_error *err)
{
    SL_ASSERT(t->n_pre == 0 && t->n_dec_ops == 0);
    const struct pre *pre = find_pre(v->pre != NULL ? v->pre : "default");
    int rc = 0;
    if (pre == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.ggml.pre: unknown \"%.60s\"", v->pre);
    t->model = MODEL_BPE;
    t->bytes = t->bpe.bytes = true;
    t->bpe.whole_first = pre->whole_first;
    for (size_t i = 0; i < SL_COUNT(pre->patterns) && pre->patterns[i] != NULL && rc == 0; i++)
        rc = tok_add_split(t, pre->patterns[i], strlen(pre->patterns[i]), SPLIT_ISOLATED, false,
                           err);
    if (rc == 0)
        rc = tok_gguf_add_tokens(t, v, false, err);
    if (rc == 0)
        rc = tok_bpe_reserve(&t->bpe, v->n_merges, err);
    for (uint32_t i = 0; i < v->n_merges && rc == 0; i++) {
        const char *s = v->merges[i];
        /* The space of the pair is not the first character: a piece may begin with one. */
        const char *space =
            v->merge_bytes[i] > 1 ? memchr(s + 1, ' ', v->merge_bytes[i] - 1) : NULL;
        if (space == NULL)
            return sl_fail(err, SL_EFORMAT, "tokenizer.ggml.merges[%u] is not a pair", i);
        size_t n = (size_t)(space - s);
        SL_ASSERT(n > 0 && n < v->merge_bytes[i]);
        rc = tok_bpe_add_merge(t, s, n, space + 1, v->merge_bytes[i] - n - 1, i, err);
    }
    if (rc == 0 && tok_add_dec(t, DEC_BYTE_LEVEL, err) == NULL)
        rc = SL_ELIMIT;
    return rc != 0 ? rc : affixes(t, v, pre->add_bos, false, v->bos, v->eos, err);
}

struct scored {
    float score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return (x < y) - (x > y);
}

int tok_rank_by_score(struct sl_tokenizer *t, const float *scores, struct sl_error *err)
{
    uint32_t n = t->pieces.n, rank = 0;
    SL_ASSERT(t->bpe.rank == NULL);
    struct scored *v = sl_malloc(n * sizeof(*v));
    t->bpe.rank = sl_malloc(n * sizeof(*t->bpe.rank));
    if (v == NULL || t->bpe.rank == NULL) {
        sl_free(v);
        return sl_fail(err, SL_ENOMEM, "scores of %u tokens", n);
    }
    for (uint32_t i = 0; i < n; i++)
        v[i] = (struct scored){scores[i], i};
    qsort(v, n, sizeof(*v), by_score);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && v[i].score < v[i - 1].score)
            rank++; /* equal scores are one rank: then the leftmost pair goes first */
        t->bpe.rank[v[i].id] = rank;
    }
    SL_ASSERT(rank < SL_MAX(n, 1u));
    t->bpe.n_ranks = rank + 1;
    sl_free(v);
    return 0;
}

static int check_scores(const struct sl_vocab_gguf *v, struct sl_error *err)
{
    if (v->scores == NULL)
        return sl_fail(err, SL_EFORMAT, "tokenizer.ggml.scores is missing");
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        if (!(v->scores[i] >= -1e30f && v->scores[i] <= 1e30f))
            return sl_fail(err, SL_EFORMAT, "tokenizer.ggml.scores[%u] is not a number", i);
    }
    return 0;
}

static int load_spm(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, struct sl_error *err)
{
    bool prefix = v->add_space_prefix != 0;
    int rc = check_scores(v, err);
    if (rc == 0)
        rc = tok_gguf_add_tokens(t, v, true, err);
    if (rc != 0)
        return rc;
    t->model = MODEL_BPE;
    t->bpe.by_concat = t->bpe.byte_fallback = true;
    t->bpe.fuse_unk = true;
    t->bpe.unk = v->unk >= 0 ? (int32_t)v->unk : -1;
    SL_ASSERT(t->bpe.unk < (int32_t)t->pieces.n && t->n_norm == 0);
    struct tok_norm *norm = tok_add_norm(t, NORM_SPM, err);
    if (norm == NULL)
        return SL_ELIMIT;
    norm->dummy_prefix = prefix;
    norm->escape = true;
    norm->remove_extra = v->remove_extra_whitespaces > 0;
    if ((rc = tok_rank_by_score(t, v->scores, err)) != 0 || (rc = spm_decoder(t, prefix, err)) != 0)
        return rc;
    return affixes(t, v, true, false, v->bos, v->eos, err);
}

static int load_unigram(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, struct sl_error *err)
{
    bool prefix = v->add_space_prefix != 0;
    struct tok_unigram *u = &t->uni;
    int rc = check_scores(v, err);
    if (rc == 0)
        rc = tok_gguf_add_tokens(t, v, true, err);
    if (rc != 0)
        return rc;
    t->model = MODEL_UNIGRAM;
    u->unk = v->unk >= 0 ? (int32_t)v->unk : -1;
    u->fuse_unk = u->byte_fallback = true;
    SL_ASSERT(u->unk < (int32_t)t->pieces.n && u->score_f == NULL);
    u->score_f = sl_malloc(v->n_tokens * sizeof(*u->score_f));
    if (u->score_f == NULL)
        return sl_fail(err, SL_ENOMEM, "scores of %u tokens", v->n_tokens);
    memcpy(u->score_f, v->scores, v->n_tokens * sizeof(*u->score_f));
    tok_unigram_floor(t);
    struct tok_norm *norm = tok_add_norm(t, NORM_SPM, err);
    if (norm == NULL)
        return SL_ELIMIT;
    norm->dummy_prefix = prefix;
    norm->escape = true;
    norm->remove_extra = v->remove_extra_whitespaces != 0;
    if (v->charsmap != NULL && v->n_charsmap > 0 &&
        (rc = tok_charsmap_parse(&norm->map, v->charsmap, v->n_charsmap, err)) != 0)
        return rc;
    if ((rc = spm_decoder(t, prefix, err)) != 0)
        return rc;
    t->suffix_twice = true; /* XLM-RoBERTa */
    return affixes(t, v, false, true, v->bos, v->eos, err);
}

static int load_bert(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, struct sl_error *err)
{
    int rc = tok_gguf_add_tokens(t, v, false, err);
    if (rc != 0)
        return rc;
    t->model = MODEL_WORDPIECE;
    t->wp.max_chars = 100;
    t->wp.unk = v->unk >= 0 ? (int32_t)v->unk : sl_tokenizer_find(t, "[UNK]", 5);
    SL_ASSERT(t->wp.unk < (int32_t)t->pieces.n);
    if ((rc = tok_dup(&t->wp.initial, &t->wp.n_initial, META, 3, err)) != 0 ||
        (rc = tok_dup(&t->wp.prefix, &t->wp.n_prefix, "", 0, err)) != 0)
        return rc;
    struct tok_norm *norm = tok_add_norm(t, NORM_BERT, err);
    if (norm == NULL)
        return SL_ELIMIT;
    norm->clean_text = norm->chinese = norm->strip_accents = norm->lowercase = true;
    if ((rc = tok_add_bert_split(t, err)) != 0 || (rc = spm_decoder(t, true, err)) != 0)
        return rc;
    return affixes(t, v, true, true, v->cls >= 0 ? v->cls : v->bos, v->sep >= 0 ? v->sep : v->eos,
                   err);
}

/* RWKV's: literals of bytes, and tokens that fill up the vocabulary. */
static int load_world(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, struct sl_error *err)
{
    int rc = 0;
    tok_world_begin(t);
    if (v->n_tokens > SL_MAX_VOCAB)
        return sl_fail(err, SL_ELIMIT, "tokenizer.ggml.tokens: %u entries", v->n_tokens);
    for (uint32_t i = 0; i < v->n_tokens && rc == 0; i++) {
        const int type = tok_gguf_type_of(v, i);
        const struct tok_added_flags a = {.id = (int32_t)i, .special = true};
        if (type == TYPE_NORMAL) {
            rc = tok_world_add_gguf(t, i, v->tokens[i], v->token_bytes[i], err);
            continue;
        }
        rc = tok_vocab_add(t, i, v->tokens[i], v->token_bytes[i], SL_TOKEN_SPECIAL, true, err);
        if (rc == 0 && type == TYPE_CONTROL && v->token_bytes[i] > 0)
            rc = tok_added_add(t, &a, err);
    }
    return rc != 0 ? rc : affixes(t, v, false, false, v->bos, v->eos, err);
}

int sl_tokenizer_from_gguf(const struct sl_vocab_gguf *v, struct sl_tokenizer **out,
                           struct sl_error *err)
{
    static const struct {
        const char *model;
        int (*load)(struct sl_tokenizer *t, const struct sl_vocab_gguf *v, struct sl_error *err);
    } kinds[] = {{"gpt2", load_bpe},
                 {"llama", load_spm},
                 {"t5", load_unigram},
                 {"bert", load_bert},
                 {"rwkv", load_world}};
    struct sl_tokenizer *t;
    int rc = check_ids(v, err);
    size_t kind = 0;
    if (rc != 0)
        return rc;
    while (kind < SL_COUNT(kinds) && strcmp(kinds[kind].model, v->model) != 0)
        kind++;
    if (kind == SL_COUNT(kinds))
        return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.ggml.model: unknown \"%.60s\"", v->model);
    if ((t = tok_create(err)) == NULL)
        return SL_ENOMEM;
    t->bos = (int32_t)v->bos;
    t->eos = (int32_t)v->eos;
    t->eot = (int32_t)v->eot;
    if ((rc = kinds[kind].load(t, v, err)) != 0 || (rc = tok_finish(t, err)) != 0) {
        sl_tokenizer_destroy(t);
        return rc;
    }
    SL_ASSERT(t->pieces.n >= v->n_tokens);
    *out = t;
    return 0;
}
