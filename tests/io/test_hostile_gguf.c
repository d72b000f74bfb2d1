/* SPDX-License-Identifier: MIT
 * Hostile GGUF models beyond the container, which test_gguf.c covers: a whole small model with one
 * thing wrong in its hyper-parameters, tensors, vocabulary, template or set of files. Each case
 * states the code that it must give and what the message must name; changes that leave the model
 * valid must open and run.
 */
#include "hostile_gguf.h"

#include "base/limits.h"

#include <math.h>
#include <sys/stat.h>

#define MAX UINT64_MAX

/* ---------------------------------------------------------------- numbers */

/* An integer key: values in [min, max] that differ from the right one clash with something. */
struct int_key {
    const char *key;
    uint64_t right, min, max;
    const char *clash;
    int clash_code;
    bool any; /* every value in range is fine */
};

static const struct int_key int_keys[] = {
    {"llama.embedding_length", HIDDEN, 1, SL_MAX_HIDDEN, "token_embd.weight", SL_EFORMAT, false},
    {"llama.feed_forward_length", 48, 1, 4ull * SL_MAX_HIDDEN, "ffn_", SL_EFORMAT, false},
    {"llama.block_count", 1, 1, SL_MAX_LAYERS, "blk.1.", SL_EFORMAT, false},
    {"llama.attention.head_count", 2, 1, SL_MAX_HEADS, "attn_", SL_EFORMAT, false},
    {"llama.attention.head_count_kv", 1, 1, SL_MAX_HEADS, "", SL_EFORMAT, false},
    {"llama.attention.key_length", 8, 2, SL_MAX_HEAD_DIM, "", SL_EFORMAT, false},
    {"llama.attention.value_length", 8, 1, SL_MAX_HEAD_DIM, "value_length", SL_EUNSUPPORTED, false},
    {"llama.rope.dimension_count", 8, 2, SL_MAX_HEAD_DIM, "dimension_count", SL_EUNSUPPORTED,
     false},
    {"llama.context_length", 64, 1, SL_MAX_CONTEXT, "", 0, true},
    {"llama.attention.sliding_window", 64, 1, SL_MAX_CONTEXT, "", 0, true},
};

static void every_count_with_every_border(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(int_keys); i++) {
        const struct int_key *k = &int_keys[i];
        const uint64_t values[] = {
            0,           1,          k->right,   k->max,         k->max + 1,
            0x7FFFFFFF,  0x80000000, 0x80000001, 0xFFFFFFFF,     0x100000000,
            0x100000001, 1ull << 62, INT64_MAX,  1ull << 63,     (1ull << 63) + 1,
            MAX,         MAX - 1,    k->min - 1, k->right << 32, (1ull << 32) + k->right,
        };
        for (size_t v = 0; v < SL_COUNT(values); v++) {
            char label[120];
            uint64_t x = values[v];
            bool good = x == k->right || (k->any && x >= k->min && x <= k->max);
            bool inside = x >= k->min && x <= k->max;
            snprintf(label, sizeof label, "u64 %" PRIu64, x);
            if (k->any && inside && x < 4) /* a context too short for the two tokens */
                continue;
            int code = good ? 0 : inside ? k->clash_code : SL_EFORMAT;
            if (strcmp(k->key, "llama.attention.key_length") == 0 && inside && x % 2 == 0 && !good)
                code = SL_EUNSUPPORTED; /* an even one meets value_length first */
            expect_kv(NULL, k->key, value_bits(SL_GGUF_U64, x, 8), code,
                      good     ? ""
                      : inside ? k->clash
                               : k->key,
                      label);
        }
        expect_kv(NULL, k->key, value_bits(SL_GGUF_I64, (uint64_t)INT64_MIN, 8), SL_EFORMAT, k->key,
                  "i64 min");
        expect_kv(NULL, k->key, value_bits(SL_GGUF_I8, 0xFF, 1), SL_EFORMAT, k->key, "i8 -1");
        expect_kv(NULL, k->key, value_bits(SL_GGUF_I16, 0x8000, 2), SL_EFORMAT, k->key,
                  "i16 -32768");
    }
}

struct float_key {
    const char *key, *scaling;
    double min, max;
};

static const struct float_key float_keys[] = {
    {"llama.attention.layer_norm_rms_epsilon", NULL, 1e-20, 1},
    {"llama.rope.freq_base", NULL, 2, 1e15},
    {"llama.rope.scale_linear", NULL, 1, 1e6},
    {"llama.rope.scaling.factor", "linear", 1, 1e6},
    {"llama.rope.scaling.factor", "yarn", 1, 1e6},
    {"llama.rope.scaling.yarn_beta_fast", "yarn", 1e-3, 1e6},
    {"llama.rope.scaling.yarn_beta_slow", "yarn", 1e-3, 1e6},
    {"llama.rope.scaling.yarn_attn_factor", "yarn", 1e-3, 1e3},
    {"llama.rope.scaling.attn_factor", "yarn", 1e-3, 1e3},
};

static void every_factor_with_every_border(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(float_keys); i++) {
        const struct float_key *k = &float_keys[i];
        const double values[] = {
            0,      -1,     NAN,    INFINITY,   -INFINITY,  1e308,   -1e308,
            5e-324, k->min, k->max, k->min / 2, k->max * 2, -k->max, nextafter(k->max, INFINITY)};
        for (size_t v = 0; v < SL_COUNT(values); v++) {
            char label[160];
            uint64_t bits;
            double x = values[v];
            bool good = x >= k->min && x <= k->max;
            struct edit e = {.key = k->key};
            memcpy(&bits, &x, 8);
            e.value = value_bits(SL_GGUF_F64, bits, 8);
            if (k->scaling != NULL) {
                e.key2 = "llama.rope.scaling.type";
                e.value2 = value_str(k->scaling);
            }
            snprintf(label, sizeof label, "%s = %g", k->key, x);
            expect_edit(&e, good ? 0 : SL_EFORMAT, k->key, label);
        }
    }
}

/* ---------------------------------------------------------------- types */

#define T(type) (1u << SL_GGUF_##type)
#define T_INT   (T(U8) | T(I8) | T(U16) | T(I16) | T(U32) | T(I32) | T(U64) | T(I64))
#define T_REAL  (T(F32) | T(F64))

struct typed_key {
    const char *key, *kind;
    int right;
    unsigned allowed;
};

static const struct typed_key typed_keys[] = {
    {"general.architecture", NULL, 0, 0}, /* a string, but of another value: never right here */
    {"general.alignment", NULL, 32, T(U32)},
    {"llama.embedding_length", NULL, HIDDEN, T_INT},
    {"llama.feed_forward_length", NULL, 48, T_INT},
    {"llama.block_count", NULL, 1, T_INT},
    {"llama.attention.head_count", NULL, 2, T_INT},
    {"llama.attention.head_count_kv", NULL, 1, T_INT},
    {"llama.attention.key_length", NULL, 8, T_INT},
    {"llama.attention.value_length", NULL, 8, T_INT},
    {"llama.rope.dimension_count", NULL, 8, T_INT},
    {"llama.context_length", NULL, 64, T_INT},
    {"llama.attention.sliding_window", NULL, 64, T_INT},
    {"llama.expert_count", NULL, 0, T_INT},
    {"llama.attention.layer_norm_rms_epsilon", NULL, 1, T_REAL},
    {"llama.rope.freq_base", NULL, 100, T_REAL},
    {"llama.rope.scale_linear", NULL, 2, T_REAL},
    {"llama.rope.scaling.type", NULL, 0, 0},
    {"tokenizer.ggml.model", NULL, 0, 0},
    {"tokenizer.ggml.pre", NULL, 0, 0},
    {"tokenizer.ggml.bos_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.eos_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.unknown_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.seperator_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.padding_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.cls_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.mask_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.eot_token_id", NULL, 1, T_INT},
    {"tokenizer.ggml.add_bos_token", NULL, 1, T(BOOL)},
    {"tokenizer.ggml.add_eos_token", NULL, 1, T(BOOL)},
    {"tokenizer.ggml.add_space_prefix", NULL, 1, T(BOOL)},
    {"tokenizer.ggml.remove_extra_whitespaces", NULL, 1, T(BOOL)},
    {"split.count", NULL, 1, T_INT},
    {"tokenizer.chat_template", NULL, 0, T(STRING)},
};

/* Every key as every type: the right ones open, the others are an error that names the key. */
static void every_key_of_every_type(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(typed_keys); i++) {
        const struct typed_key *k = &typed_keys[i];
        for (int type = 0; type <= SL_GGUF_F64; type++) {
            char label[40];
            bool good = (k->allowed & 1u << type) != 0;
            bool named_only = k->allowed == 0 && type == SL_GGUF_STRING;
            snprintf(label, sizeof label, "as type %d", type);
            expect_kv(k->kind, k->key, value_any((enum sl_gguf_type)type, k->right, 1),
                      good         ? 0
                      : named_only ? SL_EUNSUPPORTED
                                   : SL_EFORMAT,
                      strcmp(k->key, "tokenizer.chat_template") == 0 ? "chat" : k->key, label);
        }
    }
}

/* Every array as an array of every other type, and of every wrong length. */
static void every_array_of_every_type(void **state)
{
    (void)state;
    static const struct {
        const char *key, *kind;
        enum sl_gguf_type right;
    } arrays[] = {
        {"tokenizer.ggml.tokens", "gpt2", SL_GGUF_STRING},
        {"tokenizer.ggml.merges", "gpt2", SL_GGUF_STRING},
        {"tokenizer.ggml.token_type", "gpt2", SL_GGUF_I32},
        {"tokenizer.ggml.token_type", "llama", SL_GGUF_I32},
        {"tokenizer.ggml.scores", "llama", SL_GGUF_F32},
        {"tokenizer.ggml.scores", "t5", SL_GGUF_F32},
        {"tokenizer.ggml.precompiled_charsmap", "t5", SL_GGUF_U8},
    };
    static const size_t lengths[] = {0, 1, VOCAB - 1, VOCAB, VOCAB + 1, 255, 65536};
    for (size_t i = 0; i < SL_COUNT(arrays); i++) {
        char label[60];
        for (int type = 0; type <= SL_GGUF_F64; type++) {
            bool same = type == (int)arrays[i].right;
            if (same || type == SL_GGUF_ARRAY)
                continue;
            snprintf(label, sizeof label, "array of type %d", type);
            expect_kv(arrays[i].kind, arrays[i].key, value_elems((enum sl_gguf_type)type, VOCAB),
                      SL_EFORMAT, arrays[i].key, label);
            snprintf(label, sizeof label, "scalar of type %d", type);
            expect_kv(arrays[i].kind, arrays[i].key, value_any((enum sl_gguf_type)type, 1, 1),
                      SL_EFORMAT, arrays[i].key, label);
        }
        if (i < 2 || arrays[i].right == SL_GGUF_U8)
            continue; /* their length is not tied to another's */
        for (size_t n = 0; n < SL_COUNT(lengths); n++) {
            snprintf(label, sizeof label, "%zu elements", lengths[n]);
            expect_kv(arrays[i].kind, arrays[i].key, value_elems(arrays[i].right, lengths[n]),
                      lengths[n] == VOCAB ? 0 : SL_EFORMAT, arrays[i].key, label);
        }
    }
}

/* ---------------------------------------------------------------- tensors */

static void every_tensor_changed(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(tensors); i++) {
        const struct tensor *t = &tensors[i];
        bool vec = t->n_dims == 1, head = strcmp(t->name, "output.weight") == 0;
        char name[80];
        snprintf(name, sizeof name, "%s", t->name);
        const struct {
            const char *label;
            struct tensor as;
            int code;
            const char *named;
        } cases[] = {
            {"one column more", {NULL, t->n_dims, {t->ne[0] + 1, t->ne[1]}, 0}, SL_EFORMAT, name},
            {"one dimension more",
             {NULL, t->n_dims + 1, {t->ne[0], t->n_dims > 1 ? t->ne[1] : 1, 1}, 0},
             SL_EFORMAT,
             name},
            {"one dimension less", {NULL, 1, {vec ? 1 : t->ne[0] * t->ne[1]}, 0}, SL_EFORMAT, name},
            {"no dimension", {NULL, 0, {0}, 0}, SL_EFORMAT, name},
            {"five dimensions", {NULL, 5, {t->ne[0], 1, 1, 1}, 0}, SL_EFORMAT, name},
            {"dimension 0",
             {NULL, t->n_dims, {t->ne[0] * (t->n_dims > 1), 0}, 0},
             SL_EFORMAT,
             name},
            {"2^31 columns", {NULL, t->n_dims, {1ull << 31, t->ne[1]}, 0}, SL_EFORMAT, name},
            {"2^63 columns", {NULL, t->n_dims, {1ull << 63, t->ne[1]}, 0}, SL_EFORMAT, name},
            {"product 2^64", {NULL, 2, {1ull << 32, 1ull << 32}, 0}, SL_EFORMAT, name},
            {"type of later", {NULL, t->n_dims, {t->ne[0], t->ne[1]}, 99}, SL_EUNSUPPORTED, name},
            {"float64", {NULL, t->n_dims, {t->ne[0], t->ne[1]}, 28}, SL_EUNSUPPORTED, name},
            {"int32", {NULL, t->n_dims, {t->ne[0], t->ne[1]}, 26}, SL_EUNSUPPORTED, name},
            {"half a block", {NULL, t->n_dims, {t->ne[0], t->ne[1]}, 8}, SL_EFORMAT, name},
            {"float16", {NULL, t->n_dims, {t->ne[0], t->ne[1]}, 1}, 0, ""},
            {"bfloat16", {NULL, t->n_dims, {t->ne[0], t->ne[1]}, 30}, 0, ""},
            {"renamed", {"blk.9.other", t->n_dims, {t->ne[0], t->ne[1]}, 0}, SL_EFORMAT, name},
            {"name of another",
             {i == 0 ? tensors[1].name : tensors[0].name, t->n_dims, {t->ne[0], t->ne[1]}, 0},
             SL_EFORMAT,
             "appears twice"},
        };
        for (size_t k = 0; k < SL_COUNT(cases); k++) {
            struct edit e = {.tensor = t->name, .as = &cases[k].as};
            char label[160];
            int code = cases[k].code;
            if (head && strcmp(cases[k].label, "renamed") == 0)
                code = 0; /* then the embedding serves */
            snprintf(label, sizeof label, "%s: %s", t->name, cases[k].label);
            expect_edit(&e, code, cases[k].named, label);
        }
        struct edit gone = {.tensor = t->name};
        expect_edit(&gone, head ? 0 : SL_EFORMAT, name, "left out");
    }
}

/* The file of the whole model, cut at every byte: an error that names the file, whatever is cut. */
static void cut_at_every_byte(void **state)
{
    (void)state;
    struct edit e = {0};
    struct craft c;
    char path[512];
    int n_before = n_cases;
    craft_model(&c, &e);
    snprintf(path, sizeof path, "%s", folder_path(&dir, "cut.gguf"));
    size_t data_at = c.b.n_bytes;
    while (data_at > 0 && c.b.data[data_at - 1] == 0)
        data_at--;
    for (size_t n = 0; n < c.b.n_bytes; n += n < data_at + 40 ? 1 : 61) {
        char label[40];
        snprintf(label, sizeof label, "cut to %zu bytes", n);
        write_new(path, c.b.data, n);
        expect_path(path, SL_EFORMAT, "cut.gguf", label);
    }
    print_message("cut at %d places\n", n_cases - n_before);
    craft_deinit(&c);
}

/* ---------------------------------------------------------------- vocabulary */

#define K "tokenizer.ggml."

struct strings_case {
    const char *kind, *key, *label;
    const char *list[10];
    int n, code;
    const char *named;
};

static const struct strings_case strings_cases[] = {
    {"gpt2", K "merges", "no list at all", {0}, 0, 0, ""},
    {"gpt2", K "merges", "names no token", {"a x"}, 1, SL_EFORMAT, "merge 0|\"x\""},
    {"gpt2", K "merges", "left names no token", {"a b", "x a"}, 2, SL_EFORMAT, "merge 1|\"x\""},
    {"gpt2", K "merges", "result is no token", {"b c"}, 1, SL_EFORMAT, "merge 0"},
    {"gpt2", K "merges", "no space", {"ab"}, 1, SL_EFORMAT, "merges[0]"},
    {"gpt2", K "merges", "empty", {"a b", ""}, 2, SL_EFORMAT, "merges[1]"},
    {"gpt2", K "merges", "a space alone", {" "}, 1, SL_EFORMAT, "merges[0]"},
    {"gpt2", K "merges", "no right half", {"a "}, 1, SL_EFORMAT, "merge 0"},
    {"gpt2", K "merges", "no left half", {" a"}, 1, SL_EFORMAT, "merges[0]"},
    {"gpt2", K "merges", "three parts", {"a b c"}, 1, SL_EFORMAT, "merge 0"},
    {"gpt2", K "merges", "twice the same", {"a b", "a b"}, 2, 0, ""},
    {"gpt2", K "merges", "backwards", {"ab c", "a b"}, 2, 0, ""},
    {"gpt2", K "merges", "a tab", {"a\tb"}, 1, SL_EFORMAT, "merges[0]"},
    {"gpt2", K "tokens", "a hole", {"<s>", "</s>", "a", "b", "c", "ab", "abc", ""}, 8, 0, ""},
    {"gpt2",
     K "tokens",
     "twice the same",
     {"<s>", "</s>", "a", "b", "c", "ab", "abc", "a"},
     8,
     0,
     ""},
    {"gpt2",
     K "tokens",
     "a merge's part missing",
     {"<s>", "</s>", "a", "x", "c", "ab", "abc", "y"},
     8,
     SL_EFORMAT,
     "merge 0|\"b\""},
    {"gpt2", K "tokens", "none", {0}, 0, SL_EFORMAT, "scores|vocabulary 0"},
    {"gpt2",
     K "tokens",
     "fewer than rows",
     {"<s>", "</s>", "a", "b", "c", "ab", "abc"},
     7,
     SL_EFORMAT,
     "scores|vocabulary 7"},
    {"gpt2",
     K "tokens",
     "more than rows",
     {"<s>", "</s>", "a", "b", "c", "ab", "abc", "d", "e"},
     9,
     SL_EFORMAT,
     "scores|vocabulary 9"},
    {"llama",
     K "tokens",
     "<0x-1> is no byte",
     {"<s>", "</s>", "<0x-1>", "<0x1>", "<0xGG>", "<0x41>", "a", "b"},
     8,
     0,
     ""},
    {"llama", K "tokens", "all alike", {"a", "a", "a", "a", "a", "a", "a", "a"}, 8, 0, ""},
    {"llama", K "tokens", "all empty", {"", "", "", "", "", "", "", ""}, 8, 0, ""},
    {"t5", K "tokens", "all alike", {"a", "a", "a", "a", "a", "a", "a", "a"}, 8, 0, ""},
    {"t5", K "tokens", "all empty", {"", "", "", "", "", "", "", ""}, 8, 0, ""},
    {"bert", K "tokens", "all alike", {"a", "a", "a", "a", "a", "a", "a", "a"}, 8, 0, ""},
    {"bert", K "tokens", "all empty", {"", "", "", "", "", "", "", ""}, 8, 0, ""},
};

static void vocabularies(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(strings_cases); i++) {
        const struct strings_case *s = &strings_cases[i];
        expect_kv(s->kind, s->key, value_strings(s->list, (size_t)s->n), s->code, s->named,
                  s->label);
    }
    for (int missing = 0; missing < 4; missing++) {
        static const struct {
            const char *key, *kind;
            int code;
        } keys[] = {{K "model", "gpt2", SL_EFORMAT},
                    {K "tokens", "gpt2", SL_EFORMAT},
                    {K "scores", "llama", SL_EFORMAT},
                    {K "scores", "t5", SL_EFORMAT}};
        expect_kv(keys[missing].kind, keys[missing].key, (struct sl_buf){0}, keys[missing].code,
                  keys[missing].key, "left out");
    }
    static const char *const spare[] = {K "pre",
                                        K "token_type",
                                        K "merges",
                                        K "bos_token_id",
                                        K "eos_token_id",
                                        K "add_bos_token",
                                        K "scores",
                                        "tokenizer.chat_template",
                                        "general.alignment",
                                        "llama.rope.freq_base",
                                        "llama.attention.key_length"};
    for (size_t i = 0; i < SL_COUNT(spare); i++)
        expect_kv("gpt2", spare[i], (struct sl_buf){0}, 0, "", "left out");
    char *big = sl_malloc(SL_MAX_TOKEN_BYTES + 1);
    memset(big, 'x', SL_MAX_TOKEN_BYTES + 1);
    for (size_t extra = 0; extra < 2; extra++) { /* one token at and over the limit of a token */
        struct sl_buf b = value_strings(tokens, VOCAB - 1);
        uint64_t n = VOCAB;
        memcpy(b.data + 8, &n, 8);
        put_text(&b, big, SL_MAX_TOKEN_BYTES + extra);
        expect_kv("gpt2", K "tokens", b, extra ? SL_EFORMAT : 0, K "tokens: entry 7",
                  "a token of 64 KB");
    }
    sl_free(big);
}

static void ids_and_scores(void **state)
{
    (void)state;
    static const char *const ids[] = {"bos_token_id",       "eos_token_id",     "unknown_token_id",
                                      "seperator_token_id", "padding_token_id", "cls_token_id",
                                      "mask_token_id",      "eot_token_id"};
    static const struct {
        enum sl_gguf_type type;
        uint64_t bits;
        bool good;
    } values[] = {
        {SL_GGUF_U32, 0, true},           {SL_GGUF_U32, VOCAB - 1, true},
        {SL_GGUF_U32, VOCAB, false},      {SL_GGUF_U32, 0x7FFFFFFF, false},
        {SL_GGUF_U32, 0x80000000, false}, {SL_GGUF_U32, 0xFFFFFFFF, false},
        {SL_GGUF_I32, 0xFFFFFFFF, true}, /* -1 says that there is none */
        {SL_GGUF_I32, 0xFFFFFFFE, false}, {SL_GGUF_I32, 0x80000000, false},
        {SL_GGUF_U64, 1ull << 32, false}, {SL_GGUF_U64, 1ull << 63, false},
        {SL_GGUF_U64, MAX, false},        {SL_GGUF_I64, 1ull << 63, false},
    };
    for (size_t i = 0; i < SL_COUNT(ids); i++) {
        char key[80];
        snprintf(key, sizeof key, K "%s", ids[i]);
        for (size_t v = 0; v < SL_COUNT(values); v++)
            expect_kv(NULL, key,
                      value_bits(values[v].type, values[v].bits, type_width[values[v].type]),
                      values[v].good ? 0 : SL_EFORMAT, ids[i], "border");
    }
    static const float scores[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    for (size_t i = 0; i < SL_COUNT(scores); i++) {
        for (int kind = 0; kind < 2; kind++) {
            float list[VOCAB] = {0};
            list[i] = scores[i];
            char named[60];
            snprintf(named, sizeof named, K "scores[%zu]", i);
            expect_kv(kind ? "t5" : "llama", K "scores", value_array(SL_GGUF_F32, list, VOCAB, 4),
                      SL_EFORMAT, named, "not a number");
        }
    }
    static const int32_t types[] = {0, 7, -1, INT32_MAX, INT32_MIN, 2, 4, 5, 6};
    static const char *const kinds[] = {"gpt2", "llama", "t5", "bert"};
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        for (size_t k = 0; k < SL_COUNT(kinds); k++) {
            int32_t list[VOCAB];
            for (int j = 0; j < VOCAB; j++)
                list[j] = types[i];
            bool no_parts = types[i] == 6 && k == 0; /* bytes are no pieces that merges name */
            expect_kv(kinds[k], K "token_type", value_array(SL_GGUF_I32, list, VOCAB, 4),
                      no_parts ? SL_EFORMAT : 0, "merge 0", "all of one type");
        }
    }
}

static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        size_t n;
        int code;
        const char *named;
    } cases[] = {
        {"general.architecture", "llama\0", 6, SL_EUNSUPPORTED, "general.architecture"},
        {"general.architecture", "llama\0x", 7, SL_EUNSUPPORTED, "general.architecture"},
        {"general.architecture", "", 0, SL_EUNSUPPORTED, "general.architecture"},
        {"general.architecture", "Llama", 5, SL_EUNSUPPORTED, "\"Llama\""},
        {"general.architecture", "llama ", 6, SL_EUNSUPPORTED, "\"llama \""},
        {"general.architecture", "../llama", 8, SL_EUNSUPPORTED, "general.architecture"},
        {K "model", "gpt2\0", 5, SL_EFORMAT, K "model"},
        {K "model", "gpt2\0x", 6, SL_EFORMAT, K "model"},
        {K "model", "", 0, SL_EUNSUPPORTED, K "model"},
        {K "model", "GPT2", 4, SL_EUNSUPPORTED, "\"GPT2\""},
        {K "model", "none", 4, SL_EUNSUPPORTED, "\"none\""},
        {K "pre", "gpt-2\0x", 7, SL_EFORMAT, K "pre"},
        {K "pre", "", 0, SL_EUNSUPPORTED, K "pre"},
        {K "pre", "gpt-2 olmo", 10, SL_EUNSUPPORTED, K "pre"},
        {K "pre", " gpt-2", 6, SL_EUNSUPPORTED, K "pre"},
        {K "pre", "GPT-2", 5, SL_EUNSUPPORTED, K "pre"},
        {"llama.rope.scaling.type", "", 0, SL_EUNSUPPORTED, "rope.scaling.type"},
        {"llama.rope.scaling.type", "linear\0", 7, SL_EUNSUPPORTED, "rope.scaling.type"},
        {"llama.rope.scaling.type", "llama3", 6, SL_EUNSUPPORTED, "llama3"},
        {"llama.rope.scaling.type", "none", 4, 0, ""},
        {"llama.rope.scaling.type", "linear", 6, 0, ""},
        {"llama.rope.scaling.type", "yarn", 4, 0, ""},
        {"tokenizer.chat_template", "", 0, 0, ""},
        {"tokenizer.chat_template", "{{", 2, SL_EINVAL, "chat template"},
        {"tokenizer.chat_template", "{% if %}", 8, SL_EINVAL, "chat template"},
        {"tokenizer.chat_template", "{% endfor %}", 12, SL_EINVAL, "chat template"},
        {"tokenizer.chat_template", "{{ 1 | nosuch }}", 16, SL_EINVAL, "nosuch"},
        {"tokenizer.chat_template", "{% include 'x' %}", 17, SL_EINVAL, "include"},
        {"tokenizer.chat_template", "a\0b", 3, 0, ""},
        {"tokenizer.chat_template", "\xFF\xFE", 2, SL_EFORMAT, "chat template"},
        {"general.name", "\xFF\0\x1B[2J", 6, 0, ""}, /* nothing reads it */
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        expect_kv(NULL, cases[i].key, value_bytes(cases[i].value, cases[i].n), cases[i].code,
                  cases[i].named, cases[i].value);
    struct sl_buf big = {0};
    for (unsigned i = 0; i <= SL_MAX_TEMPLATE; i++)
        sl_buf_putc(&big, 'x');
    expect_kv(NULL, "tokenizer.chat_template", value_bytes(big.data, SL_MAX_TEMPLATE), 0, "",
              "at the limit");
    expect_kv(NULL, "tokenizer.chat_template", value_bytes(big.data, SL_MAX_TEMPLATE + 1),
              SL_ELIMIT, "chat template", "over the limit");
    sl_buf_deinit(&big);
    static const uint32_t maps[][4] = {
        {0}, {4, 0}, {MAX & 0xFFFFFFFF, 1}, {8, 1, 2}, {12, 0, 0}, {1, 2, 3, 4},
    };
    for (size_t i = 0; i < SL_COUNT(maps); i++) {
        for (size_t n = 1; n <= 16; n += 3) { /* four bytes of size, then a trie of that size */
            bool good = n >= 4 && maps[i][0] >= 4 && maps[i][0] % 4 == 0 && maps[i][0] <= n - 4;
            expect_kv("t5", K "precompiled_charsmap", value_array(SL_GGUF_U8, maps[i], n, 1),
                      good ? 0 : SL_EFORMAT, "charsmap", "short or odd");
        }
    }
    expect_kv("t5", K "precompiled_charsmap", value_array(SL_GGUF_U8, "", 0, 1), 0, "", "empty");
}

/* One token after a prompt of one, forced by its bias; or a refusal that names the prompt. */
static void say_token(const char *path, int32_t prompt, int32_t id, bool good)
{
    struct sl_engine_config cfg = tiny_config(path);
    struct sl_logit_bias bias = {id, 100};
    struct sl_request_desc d = {.prompt = &prompt, .n_prompt = 1};
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    struct sl_request *req = NULL;
    struct sl_chunk chunk;
    int32_t said = -1;
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.ignore_eos = true;
    d.sampling.max_tokens = 1;
    d.sampling.logit_bias = &bias;
    d.sampling.n_logit_bias = 1;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    int rc = sl_request_submit(eng, &d, &req, &err);
    if ((rc == 0) != good || (!good && strstr(err.msg, "prompt") == NULL))
        fail_msg("prompt %d, bias of %d: code %d, %s", prompt, id, rc, err.msg);
    while (rc == 0 && !sl_request_done(req)) {
        sl_request_wait(req, -1);
        while (sl_request_read(req, &chunk))
            said = chunk.n_tokens > 0 ? chunk.tokens[0].id : said;
    }
    if (good)
        assert_int_equal(said, id);
    sl_request_release(req);
    sl_engine_destroy(eng);
    n_cases++;
}

/* A vocabulary smaller or larger than the rows of the embedding: ids without a row are refused,
 * ids without a token have no text. */
static void vocabulary_of_another_size(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {2, 3, VOCAB - 1, VOCAB, VOCAB + 1, 300, 70000};
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        struct edit e = {.key = K "tokens", .bare = true};
        char path[512], text[24], label[40];
        uint64_t n = sizes[i];
        put_type(&e.value, SL_GGUF_ARRAY);
        put_type(&e.value, SL_GGUF_STRING);
        sl_buf_put(&e.value, &n, 8);
        for (uint64_t t = 0; t < n; t++) {
            snprintf(text, sizeof text, "t%d", (int)t);
            put_text(&e.value, text, strlen(text));
        }
        snprintf(label, sizeof label, "%u tokens", sizes[i]);
        snprintf(path, sizeof path, "%s", folder_path(&dir, "case.gguf"));
        struct craft c;
        craft_model(&c, &e);
        write_new(path, c.b.data, c.b.n_bytes);
        craft_deinit(&c);
        sl_buf_deinit(&e.value);
        two_tokens(path, label);
        for (int32_t id = 0; id < VOCAB; id++) /* every row can be said */
            say_token(path, 0, id, true);
        say_token(path, VOCAB - 1, 0, true);
        say_token(path, VOCAB, 0, false);
        say_token(path, (int32_t)sizes[i] + VOCAB, 0, false);
        say_token(path, -1, 0, false);
        say_token(path, INT32_MAX, 0, false);
    }
}

/* ---------------------------------------------------------------- sets of files */

static void set_file(const char *name, const char *list, const char *key, struct sl_buf value)
{
    static const char *const keys[] = {"split.no", "split.count", "split.tensors.count"};
    unsigned no = 0, count = 3;
    struct craft c = {0};
    const char *at = strstr(name, "-0000");
    if (at != NULL && at[5] >= '1')
        no = (unsigned)(at[5] - '1');
    uint64_t n_tensors = list[0] != '\0', n_kv = 0;
    craft_head(&c, 3, n_tensors, 0);
    for (int i = 0; i < 3; i++) {
        struct sl_buf b = i == 0   ? value_bits(SL_GGUF_U16, no, 2)
                          : i == 1 ? value_bits(SL_GGUF_U16, count, 2)
                                   : value_bits(SL_GGUF_I32, 2, 4);
        const struct sl_buf *put = key != NULL && strcmp(key, keys[i]) == 0 ? &value : &b;
        if (put->n_bytes > 0) {
            craft_str(&c, keys[i]);
            sl_buf_put(&c.b, put->data, put->n_bytes);
            n_kv++;
        }
        sl_buf_deinit(&b);
    }
    memcpy(c.b.data + c.fields[2].at, &n_kv, 8);
    if (n_tensors)
        craft_tensor(&c, list, 1, (uint64_t[]){2}, 0, 0);
    craft_data(&c, 32, 8);
    write_new(folder_path(&dir, name), c.b.data, c.b.n_bytes);
    craft_deinit(&c);
    sl_buf_deinit(&value);
}

static void whole_set(void)
{
    folder_clear(&dir);
    set_file("m-00001-of-00003.gguf", "", NULL, (struct sl_buf){0});
    set_file("m-00002-of-00003.gguf", "a", NULL, (struct sl_buf){0});
    set_file("m-00003-of-00003.gguf", "b", NULL, (struct sl_buf){0});
}

/* Opens only the files: there is no model in them. */
static void expect_set(const char *name, int code, const char *named, const char *label)
{
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    char path[512];
    snprintf(path, sizeof path, "%s", folder_path(&dir, name));
    fault_arm(-1, 0);
    int rc = sl_ckpt_open(path, &c, &err);
    sl_ckpt_close(c);
    n_cases++;
    n_opened += rc == 0;
    assert_true(fault_clean());
    sl_sys = &sl_sys_real;
    if (rc != code || (rc != 0 && strstr(err.msg, named) == NULL))
        fail_msg("set, %s: code %d (%s), expected %d naming %s", label, rc, err.msg, code, named);
}

static void sets_of_files(void **state)
{
    (void)state;
    static const struct {
        const char *file, *key, *label;
        enum sl_gguf_type type; /* ARRAY: the key is left out */
        uint64_t bits;
        int code;
    } keys[] = {
        {"1", "split.no", "string", SL_GGUF_STRING, 0, SL_EFORMAT},
        {"1", "split.no", "left out", SL_GGUF_ARRAY, 0, SL_EFORMAT},
        {"1", "split.no", "float", SL_GGUF_F32, 0, SL_EFORMAT},
        {"1", "split.no", "-1", SL_GGUF_I32, 0xFFFFFFFF, SL_EFORMAT},
        {"1", "split.no", "2^32", SL_GGUF_U64, 1ull << 32, SL_EINVAL},
        {"1", "split.no", "as u64", SL_GGUF_U64, 0, 0},
        {"1", "split.no", "as u8", SL_GGUF_U8, 0, 0},
        {"1", "split.count", "string", SL_GGUF_STRING, 0, SL_EFORMAT},
        {"1", "split.count", "bool", SL_GGUF_BOOL, 1, SL_EFORMAT},
        {"1", "split.count", "-3", SL_GGUF_I16, 0xFFFD, SL_EFORMAT},
        {"1", "split.count", "2", SL_GGUF_U16, 2, SL_EFORMAT},
        {"1", "split.count", "4", SL_GGUF_U16, 4, SL_EFORMAT},
        {"1", "split.count", "1024", SL_GGUF_U16, 1024, SL_EFORMAT},
        {"1", "split.count", "1025", SL_GGUF_U16, 1025, SL_ELIMIT},
        {"1", "split.count", "2^32 + 3", SL_GGUF_U64, (1ull << 32) + 3, SL_ELIMIT},
        {"1", "split.count", "2^64 - 1", SL_GGUF_U64, MAX, SL_ELIMIT},
        {"1", "split.tensors.count", "left out", SL_GGUF_ARRAY, 0, SL_EFORMAT},
        {"1", "split.tensors.count", "0", SL_GGUF_I32, 0, SL_EFORMAT},
        {"1", "split.tensors.count", "1", SL_GGUF_I32, 1, SL_EFORMAT},
        {"1", "split.tensors.count", "3", SL_GGUF_I32, 3, SL_EFORMAT},
        {"1", "split.tensors.count", "2^64 - 1", SL_GGUF_U64, MAX, SL_EFORMAT},
        {"1", "split.tensors.count", "string", SL_GGUF_STRING, 0, SL_EFORMAT},
        {"2", "split.no", "0", SL_GGUF_U16, 0, SL_EFORMAT},
        {"2", "split.no", "2", SL_GGUF_U16, 2, SL_EFORMAT},
        {"2", "split.no", "2^32 + 1", SL_GGUF_U64, (1ull << 32) + 1, SL_EFORMAT},
        {"2", "split.no", "left out", SL_GGUF_ARRAY, 0, SL_EFORMAT},
        {"2", "split.count", "left out", SL_GGUF_ARRAY, 0, SL_EFORMAT},
        {"2", "split.count", "4", SL_GGUF_U16, 4, SL_EFORMAT},
        {"3", "split.count", "0", SL_GGUF_U16, 0, SL_EFORMAT},
        {"3", "split.no", "string", SL_GGUF_STRING, 0, SL_EFORMAT},
        {"3", "split.tensors.count", "of a part is not read", SL_GGUF_I32, 9, 0},
    };
    for (size_t i = 0; i < SL_COUNT(keys); i++) {
        char name[40];
        struct sl_buf b = {0};
        if (keys[i].type == SL_GGUF_STRING)
            b = value_str("0");
        else if (keys[i].type != SL_GGUF_ARRAY)
            b = value_bits(keys[i].type, keys[i].bits, type_width[keys[i].type]);
        snprintf(name, sizeof name, "m-0000%s-of-00003.gguf", keys[i].file);
        whole_set();
        set_file(name,
                 keys[i].file[0] == '1'   ? ""
                 : keys[i].file[0] == '2' ? "a"
                                          : "b",
                 keys[i].key, b);
        expect_set("m-00001-of-00003.gguf", keys[i].code, keys[i].key, keys[i].label);
    }
}

static void rename_in_set(const char *from, const char *to)
{
    char a[512];
    snprintf(a, sizeof a, "%s", folder_path(&dir, from));
    assert_int_equal(rename(a, folder_path(&dir, to)), 0);
}

static void names_of_files(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *open;
        int code;
        const char *named;
    } cases[] = {
        {NULL, NULL, "m-00001-of-00003.gguf", 0, ""},
        {"m-00001-of-00003.gguf", "x", "m-00001-of-00003.gguf", SL_ENOTFOUND, "m-00001-of-00003"},
        {"m-00002-of-00003.gguf", "x", "m-00001-of-00003.gguf", SL_ENOTFOUND, "file 2 of 3"},
        {"m-00003-of-00003.gguf", "x", "m-00001-of-00003.gguf", SL_ENOTFOUND, "file 3 of 3"},
        {"m-00003-of-00003.gguf", "M-00003-of-00003.gguf", "m-00001-of-00003.gguf", SL_ENOTFOUND,
         "m-00003-of-00003.gguf: file 3 of 3"},
        {"m-00003-of-00003.gguf", "m-00003-of-00003.GGUF", "m-00001-of-00003.gguf", SL_ENOTFOUND,
         "file 3 of 3"},
        {"m-00003-of-00003.gguf", "m-3-of-3.gguf", "m-00001-of-00003.gguf", SL_ENOTFOUND,
         "file 3 of 3"},
        {"m-00001-of-00003.gguf", "m.gguf", "m.gguf", SL_EFORMAT, "-00001-of-00003.gguf"},
        {"m-00001-of-00003.gguf", "m-1-of-3.gguf", "m-1-of-3.gguf", SL_EFORMAT, "-00001-of-00003"},
        {"m-00001-of-00003.gguf", "m-00001-of-00002.gguf", "m-00001-of-00002.gguf", SL_EFORMAT,
         "split.count = 3"},
        {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00002-of-00003.gguf", SL_EFORMAT,
         "-00001-of-00003"},
        {"m-00001-of-00003.gguf", "m-000001-of-00003.gguf", "m-000001-of-00003.gguf", SL_EFORMAT,
         "-00001-of-00003"},
        {"m-00001-of-00003.gguf", "m-0000x-of-00003.gguf", "m-0000x-of-00003.gguf", SL_EFORMAT,
         "-00001-of-00003"},
        {"m-00001-of-00003.gguf", "m-+0001-of-00003.gguf", "m-+0001-of-00003.gguf", SL_EFORMAT,
         "-00001-of-00003"},
        {"m-00001-of-00003.gguf", "-00001-of-00003.gguf", "-00001-of-00003.gguf", SL_ENOTFOUND,
         "file 2 of 3"},
        {"m-00002-of-00003.gguf", "m-00003-of-00003.gguf", "m-00001-of-00003.gguf", SL_ENOTFOUND,
         "file 2 of 3"},
        {"m-00003-of-00003.gguf", "m-00002-of-00003.gguf", "m-00001-of-00003.gguf", SL_EFORMAT,
         "m-00002-of-00003.gguf: split.no = 2"},
        {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf", "m-00003-of-00003.gguf", SL_EFORMAT,
         "-00001-of-00003"},
        {NULL, NULL, "m-00002-of-00003.gguf", SL_EINVAL, "open the first file"},
        {NULL, NULL, "m-00003-of-00003.gguf", SL_EINVAL, "open the first file"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        whole_set();
        if (cases[i].from != NULL)
            rename_in_set(cases[i].from, cases[i].to);
        expect_set(cases[i].open, cases[i].code, cases[i].named, cases[i].open);
    }
    static const struct {
        const char *bytes;
        size_t n;
        int code;
        const char *named;
    } second[] = {
        {"", 0, SL_EFORMAT, "m-00002-of-00003.gguf"},
        {"GGUF\0\0\0\3", 8, SL_EUNSUPPORTED, "big-endian"},
        {"PK\3\4", 4, SL_EFORMAT, "m-00002-of-00003.gguf"},
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, SL_EFORMAT, "split.no"},
    };
    for (size_t i = 0; i < SL_COUNT(second); i++) {
        whole_set();
        write_new(folder_path(&dir, "m-00002-of-00003.gguf"), second[i].bytes, second[i].n);
        expect_set("m-00001-of-00003.gguf", second[i].code, second[i].named, "second file");
    }
    whole_set();
    char third[512];
    snprintf(third, sizeof third, "%s", folder_path(&dir, "m-00003-of-00003.gguf"));
    assert_true(unlink(third) == 0 && mkdir(third, 0755) == 0);
    expect_set("m-00001-of-00003.gguf", SL_EIO, "m-00003-of-00003.gguf", "a folder");
    assert_true(rmdir(third) == 0 && symlink("m-00003-of-00003.gguf", third) == 0);
    expect_set("m-00001-of-00003.gguf", SL_EIO, "m-00003-of-00003.gguf", "a link to itself");
    assert_true(unlink(third) == 0 && mkfifo(third, 0644) == 0);
    expect_set("m-00001-of-00003.gguf", SL_EIO, "m-00003-of-00003.gguf", "a pipe");
    folder_clear(&dir);
}

/* ---------------------------------------------------------------- other containers */

static void other_files(void **state)
{
    (void)state;
    struct edit e = {0};
    struct craft c;
    static const struct {
        const char *label, *front;
        size_t n;
        int code;
        const char *named;
    } fronts[] = {
        {"zip before", "PK\3\4", 4, SL_EFORMAT, "not a GGUF"},
        {"gzip before", "\x1F\x8B\x08\0", 4, SL_EFORMAT, "not a GGUF"},
        {"ELF before",
         "\x7F"
         "ELF",
         4, SL_EFORMAT, "not a GGUF"},
        {"JSON before", "{}  ", 4, SL_EFORMAT, "not a GGUF"},
        {"byte order mark before", "\xEF\xBB\xBF", 3, SL_EFORMAT, "not a GGUF"},
        {"a line before", "\n", 1, SL_EFORMAT, "not a GGUF"},
        {"a NUL before", "\0", 1, SL_EFORMAT, "not a GGUF"},
        {"safetensors length before", "\x10\0\0\0\0\0\0\0", 8, SL_EFORMAT, "not a GGUF"},
        {"nothing before", "", 0, 0, ""},
    };
    craft_model(&c, &e);
    for (size_t i = 0; i < SL_COUNT(fronts); i++) {
        struct sl_buf b = {0};
        sl_buf_put(&b, fronts[i].front, fronts[i].n);
        sl_buf_put(&b, c.b.data, c.b.n_bytes);
        const char *path = folder_path(&dir, "other.gguf");
        write_new(path, b.data, b.n_bytes);
        expect_path(path, fronts[i].code, fronts[i].named, fronts[i].label);
        sl_buf_deinit(&b);
    }
    /* what follows the last tensor is nobody's: an archive there changes nothing */
    struct sl_buf b = {0};
    sl_buf_put(&b, c.b.data, c.b.n_bytes);
    sl_buf_put(&b, "PK\5\6 and so on", 14);
    const char *path = folder_path(&dir, "other.gguf");
    write_new(path, b.data, b.n_bytes);
    expect_path(path, 0, "", "zip behind");
    sl_buf_deinit(&b);
    /* all of the header's words turned round, as a big-endian machine writes them */
    for (size_t w = 4; w < 24; w += w == 4 ? 4 : 8) {
        size_t width = w == 4 ? 4 : 8;
        for (size_t i = 0; i < width / 2; i++) {
            char t = c.b.data[w + i];
            c.b.data[w + i] = c.b.data[w + width - 1 - i];
            c.b.data[w + width - 1 - i] = t;
        }
    }
    write_new(path, c.b.data, c.b.n_bytes);
    expect_path(path, SL_EUNSUPPORTED, "big-endian", "big-endian");
    craft_deinit(&c);
}

static void enough_cases(void **state)
{
    (void)state;
    print_message("%d cases, %d of them valid\n", n_cases, n_opened);
    assert_true(n_cases >= 400);
    assert_true(n_opened >= 100);
}

static int make_dir(void **state)
{
    (void)state;
    sl_log_set_level(SL_LOG_ERROR);
    return folder_make(&dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    folder_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_count_with_every_border),
        cmocka_unit_test(every_factor_with_every_border),
        cmocka_unit_test(every_key_of_every_type),
        cmocka_unit_test(every_array_of_every_type),
        cmocka_unit_test(every_tensor_changed),
        cmocka_unit_test(cut_at_every_byte),
        cmocka_unit_test(vocabularies),
        cmocka_unit_test(ids_and_scores),
        cmocka_unit_test(texts),
        cmocka_unit_test(vocabulary_of_another_size),
        cmocka_unit_test(sets_of_files),
        cmocka_unit_test(names_of_files),
        cmocka_unit_test(other_files),
        cmocka_unit_test(enough_cases),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
