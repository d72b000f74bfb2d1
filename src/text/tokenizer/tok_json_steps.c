/* SPDX-License-Identifier: MIT
 * tok_json_steps.c - normalizer, pre_tokenizer, post_processor and decoder of tokenizer.json.
 *
 * Each is an object with a `type` or a Sequence of such objects (nesting is bounded by the depth of
 * the file). A type this does not know is refused by name: a pipeline with a step left out would
 * give ids that look right and are not.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tokenizer/tok_json.h"

#include <string.h>

#define GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

int tok_json_bool(const json_t *o, const char *key, bool fallback, bool *out, struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    *out = fallback;
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: %s is not true or false", key);
    *out = json_is_true(v);
    return 0;
}

int tok_json_string(const json_t *o, const char *key, const char *fallback, char **out,
                    size_t *n_out, struct sl_error *err)
{
    SL_ASSERT(*out == NULL); /* or what was there is lost */
    const json_t *v = json_object_get(o, key);
    if ((v == NULL || json_is_null(v)) && fallback != NULL)
        return tok_dup(out, n_out, fallback, strlen(fallback), err);
    if (!json_is_string(v))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: %s is not a string", key);
    return tok_dup(out, n_out, json_string_value(v), json_string_length(v), err);
}

static int json_u32(const json_t *o, const char *key, uint32_t *out, struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: %s is not a count", key);
    *out = (uint32_t)json_integer_value(v);
    return 0;
}

static const char *tok_json_steps_type_of(const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return type != NULL ? type : "";
}

static int tok_json_steps_unsupported(struct sl_error *err, const char *what, const json_t *o)
{
    return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.json: %s type \"%.60s\"", what,
                   tok_json_steps_type_of(o));
}

typedef int (*step_fn)(struct sl_tokenizer *t, const json_t *o, struct sl_error *err);

/* Calls fn for o, or for the members of the Sequence o. */
static int each_step(struct sl_tokenizer *t, const json_t *o, const char *what, const char *list,
                     step_fn fn, struct sl_error *err)
{
    if (o == NULL || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: %s is not an object", what);
    if (strcmp(tok_json_steps_type_of(o), "Sequence") != 0)
        return fn(t, o, err);
    const json_t *steps = json_object_get(o, list);
    if (!json_is_array(steps))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: %s.%s is not an array", what, list);
    int rc = 0;
    for (size_t i = 0; i < json_array_size(steps) && rc == 0; i++)
        rc = each_step(t, json_array_get(steps, i), what, list, fn, err);
    return rc;
}

/* {"String": s} or {"Regex": s}; a bare string is a string pattern. */
static int pattern_of(const json_t *o, const char **s, size_t *n, bool *regex, struct sl_error *err)
{
    const json_t *p = json_object_get(o, "pattern"), *v = p;
    *regex = false;
    if (json_is_object(p)) {
        v = json_object_get(p, "Regex");
        *regex = v != NULL;
        if (v == NULL)
            v = json_object_get(p, "String");
    }
    if (!json_is_string(v))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: pattern is not a string");
    *s = json_string_value(v);
    *n = json_string_length(v);
    SL_ASSERT(*s != NULL && (*s)[*n] == '\0');
    return 0;
}

/* ---------------------------------------------------------------- normalizers */

static int tok_json_steps_base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    _Static_assert(sizeof digits == 64 + 1, "a digit for each of six bits' values");
    const char *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

static int tok_json_steps_precompiled(struct tok_norm *op, const json_t *o, struct sl_error *err)
{
    const json_t *v = json_object_get(o, "precompiled_charsmap");
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), k = 0;
    uint32_t acc = 0;
    int bits = 0;
    if (v == NULL || json_is_null(v) || (s != NULL && n == 0))
        return 0; /* an empty map: every character stays */
    if (s == NULL)
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: precompiled_charsmap is not a string");
    uint8_t *bytes = sl_malloc(n);
    if (bytes == NULL)
        return sl_fail(err, SL_ENOMEM, "tokenizer.json: precompiled_charsmap");
    while (n > 0 && s[n - 1] == '=')
        n--;
    for (size_t i = 0; i < n; i++) {
        int d = tok_json_steps_base64_value(s[i]);
        if (d < 0) {
            sl_free(bytes);
            return sl_fail(err, SL_EFORMAT, "tokenizer.json: precompiled_charsmap is not base64");
        }
        acc = acc << 6 | (uint32_t)d;
        bits += 6;
        SL_ASSERT(bits >= 6 && bits < 14);
        if (bits >= 8) {
            bits -= 8;
            bytes[k++] = (uint8_t)(acc >> bits);
        }
    }
    SL_ASSERT(k <= n && bits < 8); /* never more bytes than digits */
    int rc = tok_charsmap_parse(&op->map, bytes, k, err);
    sl_free(bytes);
    return rc;
}

/* What to look for (a regex, or text in *a) and what to put there, of a Replace step. */
static int replace_of(const json_t *o, struct tok_regex **re, char **a, size_t *n_a, char **b,
                      size_t *n_b, struct sl_error *err)
{
    SL_ASSERT(*re == NULL && *a == NULL && *b == NULL);
    const char *s;
    size_t n;
    bool regex;
    int rc = pattern_of(o, &s, &n, &regex, err);
    if (rc == 0)
        rc = tok_json_string(o, "content", NULL, b, n_b, err);
    if (rc == 0)
        rc = regex ? tok_regex_create(s, n, re, err) : tok_dup(a, n_a, s, n, err);
    return rc;
}

static int norm_replace(struct tok_norm *op, const json_t *o, struct sl_error *err)
{
    int rc = replace_of(o, &op->re, &op->a, &op->n_a, &op->b, &op->n_b, err);
    SL_ASSERT(rc != 0 || (op->re != NULL) != (op->a != NULL));
    if (rc == 0 && op->re != NULL)
        op->kind = NORM_REPLACE_RE;
    return rc;
}

static int norm_bert(struct tok_norm *op, const json_t *o, struct sl_error *err)
{
    int rc = tok_json_bool(o, "clean_text", true, &op->clean_text, err);
    if (rc == 0)
        rc = tok_json_bool(o, "handle_chinese_chars", true, &op->chinese, err);
    if (rc == 0)
        rc = tok_json_bool(o, "lowercase", true, &op->lowercase, err);
    /* null follows lowercase, as in the original BERT */
    return rc != 0 ? rc : tok_json_bool(o, "strip_accents", op->lowercase, &op->strip_accents, err);
}

static int norm_step(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    static const struct {
        const char *type;
        enum tok_norm_kind kind;
    } kinds[] = {{"NFC", NORM_NFC},
                 {"NFD", NORM_NFD},
                 {"NFKC", NORM_NFKC},
                 {"NFKD", NORM_NFKD},
                 {"Lowercase", NORM_LOWERCASE},
                 {"StripAccents", NORM_STRIP_ACCENTS},
                 {"Nmt", NORM_NMT},
                 {"BertNormalizer", NORM_BERT},
                 {"Strip", NORM_STRIP},
                 {"Prepend", NORM_PREPEND},
                 {"Replace", NORM_REPLACE},
                 {"Precompiled", NORM_PRECOMPILED},
                 {"ByteLevel", NORM_BYTE_LEVEL}};
    size_t k = 0;
    while (k < SL_COUNT(kinds) && strcmp(kinds[k].type, tok_json_steps_type_of(o)) != 0)
        k++;
    if (k == SL_COUNT(kinds))
        return tok_json_steps_unsupported(err, "normalizer", o);
    struct tok_norm *op = tok_add_norm(t, kinds[k].kind, err);
    if (op == NULL)
        return SL_ELIMIT;
    SL_ASSERT(op == &t->norm[t->n_norm - 1] && t->n_norm <= TOK_MAX_STEPS);
    int rc = 0;
    switch (op->kind) {
    case NORM_BERT:
        return norm_bert(op, o, err);
    case NORM_STRIP:
        rc = tok_json_bool(o, "strip_left", true, &op->left, err);
        return rc != 0 ? rc : tok_json_bool(o, "strip_right", true, &op->right, err);
    case NORM_PREPEND:
        return tok_json_string(o, "prepend", NULL, &op->b, &op->n_b, err);
    case NORM_REPLACE:
        return norm_replace(op, o, err);
    case NORM_PRECOMPILED:
        return tok_json_steps_precompiled(op, o, err);
    case NORM_BYTE_LEVEL:
        t->bytes = true;
        return 0;
    default:
        return 0;
    }
}

/* ---------------------------------------------------------------- pre-tokenizers */

static int behavior_of(const json_t *o, enum tok_behavior fallback, enum tok_behavior *out,
                       struct sl_error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const json_t *v = json_object_get(o, "behavior");
    _Static_assert(SL_COUNT(names) == SPLIT_CONTIGUOUS + 1, "a name for each behaviour");
    *out = fallback;
    if (v == NULL)
        return 0;
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (json_is_string(v) && strcmp(json_string_value(v), names[i]) == 0) {
            *out = (enum tok_behavior)i;
            return 0;
        }
    }
    return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.json: behavior \"%.60s\"",
                   json_is_string(v) ? json_string_value(v) : "(not a string)");
}

static int scheme_of(const json_t *o, enum tok_scheme *out, struct sl_error *err)
{
    static const char *const names[] = {"always", "first", "never"};
    const json_t *v = json_object_get(o, "prepend_scheme");
    bool add;
    _Static_assert(SL_COUNT(names) == PREPEND_NEVER + 1, "a name for each scheme");
    int rc = tok_json_bool(o, "add_prefix_space", true, &add, err);
    *out = add ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (rc != 0 || v == NULL || json_is_null(v) || !add)
        return rc;
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (json_is_string(v) && strcmp(json_string_value(v), names[i]) == 0) {
            *out = (enum tok_scheme)i;
            return 0;
        }
    }
    return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.json: prepend_scheme \"%.60s\"",
                   json_is_string(v) ? json_string_value(v) : "(not a string)");
}

static int metaspace_char(const json_t *o, char **s, size_t *n, struct sl_error *err)
{
    uint32_t cp;
    int rc = tok_json_string(o, "replacement", "\xE2\x96\x81", s, n, err);
    if (rc == 0 && (*n == 0 || tok_char(*s, *n, &cp) != *n))
        rc = sl_fail(err, SL_EFORMAT, "tokenizer.json: replacement is not one character");
    SL_ASSERT(rc != 0 || (*n > 0 && *n <= 4));
    return rc;
}

static int pre_split(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    enum tok_behavior behavior;
    const char *s;
    size_t n;
    bool regex, invert;
    int rc = pattern_of(o, &s, &n, &regex, err);
    if (rc == 0)
        rc = behavior_of(o, SPLIT_ISOLATED, &behavior, err);
    if (rc == 0)
        rc = tok_json_bool(o, "invert", false, &invert, err);
    if (rc != 0)
        return rc;
    if (regex)
        return tok_add_split(t, s, n, behavior, invert, err);
    struct tok_pre *op = tok_add_pre(t, PRE_STRING, err);
    if (op == NULL)
        return SL_ELIMIT;
    SL_ASSERT(op->str == NULL && behavior <= SPLIT_CONTIGUOUS);
    op->behavior = behavior;
    op->invert = invert;
    return tok_dup(&op->str, &op->n_str, s, n, err);
}

static int pre_byte_level(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    bool prefix, regex;
    int rc = tok_json_bool(o, "add_prefix_space", true, &prefix, err);
    if (rc == 0)
        rc = tok_json_bool(o, "use_regex", true, &regex, err);
    if (rc == 0 && prefix && tok_add_pre(t, PRE_PREFIX_SPACE, err) == NULL)
        rc = SL_ELIMIT;
    if (rc == 0 && regex)
        rc = tok_add_split(t, GPT2_PATTERN, strlen(GPT2_PATTERN), SPLIT_ISOLATED, false, err);
    if (rc == 0 && tok_add_pre(t, PRE_BYTE_LEVEL, err) == NULL)
        rc = SL_ELIMIT;
    t->bytes = true;
    SL_ASSERT(rc != 0 || t->pre[t->n_pre - 1].kind == PRE_BYTE_LEVEL);
    return rc;
}

static int pre_metaspace(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    struct tok_pre *op = tok_add_pre(t, PRE_METASPACE, err);
    if (op == NULL)
        return SL_ELIMIT;
    SL_ASSERT(op->kind == PRE_METASPACE && op->str == NULL);
    int rc = metaspace_char(o, &op->str, &op->n_str, err);
    if (rc == 0)
        rc = scheme_of(o, &op->scheme, err);
    return rc != 0 ? rc : tok_json_bool(o, "split", true, &op->split, err);
}

static int pre_chars(struct sl_tokenizer *t, enum tok_pre_class cls, enum tok_behavior behavior,
                     struct sl_error *err)
{
    SL_ASSERT(cls <= CLASS_DELIMITER && behavior <= SPLIT_CONTIGUOUS);
    struct tok_pre *op = tok_add_pre(t, PRE_CHARS, err);
    if (op == NULL)
        return SL_ELIMIT;
    op->cls = cls;
    op->behavior = behavior;
    return 0;
}

static int pre_delimiter(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    const json_t *v = json_object_get(o, "delimiter");
    uint32_t cp;
    if (!json_is_string(v) || json_string_length(v) == 0 ||
        tok_char(json_string_value(v), json_string_length(v), &cp) != json_string_length(v))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: delimiter is not one character");
    int rc = pre_chars(t, CLASS_DELIMITER, SPLIT_REMOVED, err);
    SL_ASSERT(rc != 0 || t->pre[t->n_pre - 1].cls == CLASS_DELIMITER);
    if (rc == 0)
        t->pre[t->n_pre - 1].cp = cp;
    return rc;
}

static int pre_step(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    const char *type = tok_json_steps_type_of(o);
    enum tok_behavior behavior;
    bool each;
    int rc;
    if (strcmp(type, "Split") == 0)
        return pre_split(t, o, err);
    if (strcmp(type, "ByteLevel") == 0)
        return pre_byte_level(t, o, err);
    if (strcmp(type, "Metaspace") == 0)
        return pre_metaspace(t, o, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return pre_chars(t, CLASS_SPACE, SPLIT_REMOVED, err);
    if (strcmp(type, "BertPreTokenizer") == 0)
        return tok_add_bert_split(t, err);
    if (strcmp(type, "CharDelimiterSplit") == 0)
        return pre_delimiter(t, o, err);
    if (strcmp(type, "Punctuation") == 0) {
        rc = behavior_of(o, SPLIT_ISOLATED, &behavior, err);
        return rc != 0 ? rc : pre_chars(t, CLASS_PUNCT, behavior, err);
    }
    if (strcmp(type, "Digits") == 0) {
        rc = tok_json_bool(o, "individual_digits", false, &each, err);
        return rc != 0 ? rc
                       : pre_chars(t, CLASS_NUMERIC, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, err);
    }
    if (strcmp(type, "Whitespace") == 0) {
        struct tok_pre *op = tok_add_pre(t, PRE_WORDS, err);
        if (op == NULL)
            return SL_ELIMIT;
        op->behavior = SPLIT_REMOVED;
        op->invert = true;
        return 0;
    }
    return tok_json_steps_unsupported(err, "pre_tokenizer", o);
}

/* Where ByteLevel is the last step, BPE works on the bytes themselves instead of their alphabet. */
static void use_raw_bytes(struct sl_tokenizer *t)
{
    const struct tok_bpe *b = &t->bpe;
    bool last = t->n_pre > 0 && t->pre[t->n_pre - 1].kind == PRE_BYTE_LEVEL;
    for (size_t i = 0; i + 1 < t->n_pre; i++)
        last &= t->pre[i].kind != PRE_BYTE_LEVEL;
    for (size_t i = 0; i < t->n_norm; i++)
        last &= t->norm[i].kind != NORM_BYTE_LEVEL;
    if (!last || t->model != MODEL_BPE || b->n_prefix > 0 || b->n_suffix > 0 || b->byte_fallback ||
        b->unk >= 0)
        return;
    t->bpe.bytes = true;
    const struct tok_pre *gone = &t->pre[t->n_pre - 1];
    SL_ASSERT(gone->str == NULL && gone->re == NULL); /* nobody frees what it has */
    t->n_pre--;
}

/* ---------------------------------------------------------------- post-processor */

struct affix {
    int32_t pre[TOK_MAX_STEPS], post[TOK_MAX_STEPS];
    size_t n_pre, n_post;
};

static int put_id(struct sl_tokenizer *t, int32_t *ids, size_t *n, const json_t *v,
                  struct sl_error *err)
{
    SL_ASSERT(*n <= TOK_MAX_STEPS);
    if (!json_is_integer(v) || json_integer_value(v) < 0 ||
        json_integer_value(v) >= (json_int_t)t->pieces.n)
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: post_processor: id out of range");
    if (*n == TOK_MAX_STEPS)
        return sl_fail(err, SL_ELIMIT, "tokenizer.json: post_processor: too many tokens");
    ids[(*n)++] = (int32_t)json_integer_value(v);
    return 0;
}

/* Puts a's tokens outside those that are there. */
static int wrap(struct sl_tokenizer *t, struct affix *a, struct sl_error *err)
{
    if (a->n_pre + t->n_prefix_ids > TOK_MAX_STEPS || a->n_post + t->n_suffix_ids > TOK_MAX_STEPS)
        return sl_fail(err, SL_ELIMIT, "tokenizer.json: post_processor: too many tokens");
    int32_t post[TOK_MAX_STEPS];
    size_t n_post = t->n_suffix_ids;
    for (size_t i = 0; i < t->n_prefix_ids; i++)
        a->pre[a->n_pre++] = t->prefix_ids[i];
    if (n_post > 0)
        memcpy(post, t->suffix_ids, n_post * sizeof(*post));
    memcpy(post + n_post, a->post, a->n_post * sizeof(*post));
    SL_ASSERT(a->n_pre <= TOK_MAX_STEPS && n_post + a->n_post <= TOK_MAX_STEPS);
    return tok_set_affixes(t, a->pre, a->n_pre, post, n_post + a->n_post, err);
}

/* Special tokens between the two texts of a template. */
static size_t between_of(const json_t *pair)
{
    size_t n = 0, n_texts = 0;
    for (size_t i = 0; i < json_array_size(pair); i++) {
        const json_t *item = json_array_get(pair, i);
        SL_ASSERT(item != NULL);
        n_texts += json_object_get(item, "Sequence") != NULL;
        n += n_texts == 1 && json_object_get(item, "SpecialToken") != NULL;
    }
    return n_texts == 2 ? n : 0;
}

static int post_template(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    const json_t *single = json_object_get(o, "single");
    const json_t *special = json_object_get(o, "special_tokens");
    struct affix a = {.n_pre = 0};
    bool seen = false;
    int rc = 0;
    if (!json_is_array(single))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: post_processor.single is not an array");
    for (size_t i = 0; i < json_array_size(single) && rc == 0; i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *token = json_object_get(item, "SpecialToken");
        if (token == NULL) { /* the text itself is "A"; "B" would be a second one */
            const json_t *text = json_object_get(json_object_get(item, "Sequence"), "id");
            if (seen || !json_is_string(text) || strcmp(json_string_value(text), "A") != 0)
                return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.json: post_processor.single[%zu]",
                               i);
            seen = true;
            continue;
        }
        const char *name = json_string_value(json_object_get(token, "id"));
        const json_t *ids =
            name != NULL ? json_object_get(json_object_get(special, name), "ids") : NULL;
        if (!json_is_array(ids))
            return sl_fail(err, SL_EFORMAT, "tokenizer.json: post_processor: no ids for \"%.60s\"",
                           name != NULL ? name : "");
        for (size_t k = 0; k < json_array_size(ids) && rc == 0; k++)
            rc = put_id(t, seen ? a.post : a.pre, seen ? &a.n_post : &a.n_pre,
                        json_array_get(ids, k), err);
    }
    SL_ASSERT(seen || a.n_post == 0); /* what follows the text follows it */
    if (rc == 0 && !seen)
        return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.json: post_processor without the text");
    if (rc == 0)
        t->suffix_twice = a.n_post > 0 && between_of(json_object_get(o, "pair")) == 2 * a.n_post;
    return rc != 0 ? rc : wrap(t, &a, err);
}

static int post_step(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    const char *type = tok_json_steps_type_of(o);
    if (strcmp(type, "TemplateProcessing") == 0)
        return post_template(t, o, err);
    if (strcmp(type, "ByteLevel") == 0)
        return 0; /* offsets only */
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        struct affix a = {.n_pre = 0};
        int rc = put_id(t, a.pre, &a.n_pre, json_array_get(json_object_get(o, "cls"), 1), err);
        if (rc == 0)
            rc = put_id(t, a.post, &a.n_post, json_array_get(json_object_get(o, "sep"), 1), err);
        SL_ASSERT(rc != 0 || (a.n_pre == 1 && a.n_post == 1));
        t->suffix_twice = type[0] == 'R';
        return rc != 0 ? rc : wrap(t, &a, err);
    }
    return tok_json_steps_unsupported(err, "post_processor", o);
}

/* ---------------------------------------------------------------- decoders */

static int dec_replace(struct tok_dec_op *op, const json_t *o, struct sl_error *err)
{
    int rc = replace_of(o, &op->re, &op->a, &op->n_a, &op->b, &op->n_b, err);
    SL_ASSERT(rc != 0 || (op->re != NULL) != (op->a != NULL));
    if (rc == 0 && op->re != NULL)
        op->kind = DEC_REPLACE_RE;
    return rc;
}

static int dec_step(struct sl_tokenizer *t, const json_t *o, struct sl_error *err)
{
    static const struct {
        const char *type;
        enum tok_dec_kind kind;
    } kinds[] = {{"ByteLevel", DEC_BYTE_LEVEL},
                 {"Metaspace", DEC_METASPACE},
                 {"WordPiece", DEC_WORDPIECE},
                 {"BPEDecoder", DEC_BPE},
                 {"Fuse", DEC_FUSE},
                 {"ByteFallback", DEC_BYTE_FALLBACK},
                 {"Strip", DEC_STRIP},
                 {"Replace", DEC_REPLACE}};
    size_t k = 0;
    while (k < SL_COUNT(kinds) && strcmp(kinds[k].type, tok_json_steps_type_of(o)) != 0)
        k++;
    if (k == SL_COUNT(kinds))
        return tok_json_steps_unsupported(err, "decoder", o);
    struct tok_dec_op *op = tok_add_dec(t, kinds[k].kind, err);
    if (op == NULL)
        return SL_ELIMIT;
    SL_ASSERT(op == &t->dec_ops[t->n_dec_ops - 1] && op->a == NULL && op->b == NULL);
    int rc;
    switch (op->kind) {
    case DEC_METASPACE:
        rc = metaspace_char(o, &op->a, &op->n_a, err);
        return rc != 0 ? rc : scheme_of(o, &op->scheme, err);
    case DEC_WORDPIECE:
        rc = tok_json_string(o, "prefix", "##", &op->a, &op->n_a, err);
        return rc != 0 ? rc : tok_json_bool(o, "cleanup", true, &op->cleanup, err);
    case DEC_BPE:
        return tok_json_string(o, "suffix", "</w>", &op->a, &op->n_a, err);
    case DEC_STRIP:
        rc = tok_json_string(o, "content", NULL, &op->a, &op->n_a, err);
        if (rc == 0)
            rc = json_u32(o, "start", &op->start, err);
        return rc != 0 ? rc : json_u32(o, "stop", &op->stop, err);
    case DEC_REPLACE:
        return dec_replace(op, o, err);
    default:
        return 0;
    }
}

int tok_json_steps(struct sl_tokenizer *t, const json_t *root, struct sl_error *err)
{
    SL_ASSERT(t->n_norm == 0 && t->n_pre == 0 && t->n_dec_ops == 0);
    int rc = each_step(t, json_object_get(root, "normalizer"), "normalizer", "normalizers",
                       norm_step, err);
    if (rc == 0)
        rc = each_step(t, json_object_get(root, "pre_tokenizer"), "pre_tokenizer", "pretokenizers",
                       pre_step, err);
    if (rc == 0)
        rc = each_step(t, json_object_get(root, "post_processor"), "post_processor", "processors",
                       post_step, err);
    if (rc == 0)
        rc = each_step(t, json_object_get(root, "decoder"), "decoder", "decoders", dec_step, err);
    if (rc == 0)
        use_raw_bytes(t);
    SL_ASSERT(t->n_norm <= TOK_MAX_STEPS && t->n_pre <= TOK_MAX_STEPS);
    return rc;
}
