/* SPDX-License-Identifier: MIT
 * hostile_gguf.h - a complete model of 12 tensors and 8 tokens in a GGUF file, written byte by byte
 * with one thing changed.
 */
#ifndef SL_TESTS_HOSTILE_GGUF_H
#define SL_TESTS_HOSTILE_GGUF_H

#include "craft.h"
#include "hostile_model.h"

static const char *const tokens[VOCAB] = {"<s>", "</s>", "a", "b", "c", "ab", "abc", "\u0120"};

struct tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t ne[4]; /* innermost first */
    uint32_t type;
};

static const struct tensor tensors[] = {
    {"token_embd.weight", 2, {HIDDEN, VOCAB}, 0}, {"output_norm.weight", 1, {HIDDEN}, 0},
    {"output.weight", 2, {HIDDEN, VOCAB}, 0},     {"blk.0.attn_norm.weight", 1, {HIDDEN}, 0},
    {"blk.0.attn_q.weight", 2, {HIDDEN, 16}, 0},  {"blk.0.attn_k.weight", 2, {HIDDEN, 8}, 0},
    {"blk.0.attn_v.weight", 2, {HIDDEN, 8}, 0},   {"blk.0.attn_output.weight", 2, {16, HIDDEN}, 0},
    {"blk.0.ffn_norm.weight", 1, {HIDDEN}, 0},    {"blk.0.ffn_gate.weight", 2, {HIDDEN, 48}, 0},
    {"blk.0.ffn_up.weight", 2, {HIDDEN, 48}, 0},  {"blk.0.ffn_down.weight", 2, {48, HIDDEN}, 0},
};

/* One thing changed. A value is the type and the bytes behind a key, as they stand in the file. */
struct edit {
    const char *key;
    struct sl_buf value; /* empty: the key is left out */
    const char *key2;    /* a second one */
    struct sl_buf value2;
    const char *kind;   /* tokenizer.ggml.model; NULL: gpt2 */
    bool bare;          /* without scores, types and merges */
    const char *tensor; /* this one is written as `as`, or not at all */
    const struct tensor *as;
    size_t cut; /* bytes missing at the end */
};

static inline void put_type(struct sl_buf *b, uint32_t type)
{
    sl_buf_put(b, &type, 4);
}

static inline void put_text(struct sl_buf *b, const char *s, size_t n)
{
    uint64_t len = n;
    sl_buf_put(b, &len, 8);
    sl_buf_put(b, s, n);
}

static inline struct sl_buf value_bits(enum sl_gguf_type type, uint64_t bits, size_t width)
{
    struct sl_buf b = {0};
    put_type(&b, type);
    sl_buf_put(&b, &bits, width);
    return b;
}

static inline struct sl_buf value_u32(uint32_t x)
{
    return value_bits(SL_GGUF_U32, x, 4);
}

static inline struct sl_buf value_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return value_bits(SL_GGUF_F32, bits, 4);
}

static inline struct sl_buf value_bytes(const char *s, size_t n)
{
    struct sl_buf b = {0};
    put_type(&b, SL_GGUF_STRING);
    put_text(&b, s, n);
    return b;
}

static inline struct sl_buf value_str(const char *s)
{
    return value_bytes(s, strlen(s));
}

static inline struct sl_buf value_strings(const char *const *s, size_t n)
{
    struct sl_buf b = {0};
    uint64_t count = n;
    put_type(&b, SL_GGUF_ARRAY);
    put_type(&b, SL_GGUF_STRING);
    sl_buf_put(&b, &count, 8);
    for (size_t i = 0; i < n; i++)
        put_text(&b, s[i], strlen(s[i]));
    return b;
}

static inline struct sl_buf value_array(enum sl_gguf_type type, const void *data, size_t n,
                                        size_t width)
{
    struct sl_buf b = {0};
    uint64_t count = n;
    put_type(&b, SL_GGUF_ARRAY);
    put_type(&b, type);
    sl_buf_put(&b, &count, 8);
    sl_buf_put(&b, data, n * width);
    return b;
}

static const size_t type_width[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* A value of any of the 13 types that means about x: as an array it has n elements. */
static inline struct sl_buf value_any(enum sl_gguf_type type, int x, size_t n)
{
    float f = (float)x;
    double d = x;
    uint64_t bits = (uint64_t)(int64_t)x;
    struct sl_buf b = {0};
    if (type == SL_GGUF_F32)
        memcpy(&bits, &f, 4);
    if (type == SL_GGUF_F64)
        memcpy(&bits, &d, 8);
    if (type == SL_GGUF_BOOL)
        bits = 1;
    if (type == SL_GGUF_STRING)
        return value_str("16");
    if (type != SL_GGUF_ARRAY)
        return value_bits(type, bits, type_width[type]);
    uint64_t count = n;
    put_type(&b, SL_GGUF_ARRAY);
    put_type(&b, SL_GGUF_U32);
    sl_buf_put(&b, &count, 8);
    for (size_t i = 0; i < n; i++)
        sl_buf_put(&b, &bits, 4);
    return b;
}

/* An array of n elements of any type but ARRAY. */
static inline struct sl_buf value_elems(enum sl_gguf_type type, size_t n)
{
    struct sl_buf b = {0};
    uint64_t count = n, one = 1;
    put_type(&b, SL_GGUF_ARRAY);
    put_type(&b, type);
    sl_buf_put(&b, &count, 8);
    for (size_t i = 0; i < n; i++) {
        if (type == SL_GGUF_STRING)
            put_text(&b, tokens[i % VOCAB], strlen(tokens[i % VOCAB]));
        else
            sl_buf_put(&b, &one, type_width[type]);
    }
    return b;
}

/* ---------------------------------------------------------------- the file */

struct model_file {
    struct craft c;
    const struct edit *e;
    uint64_t n_kv, n_seen; /* n_seen: bits of e that a base key took */
};

static inline void put_kv(struct model_file *f, const char *key, struct sl_buf value)
{
    const struct sl_buf *b = &value;
    if (f->e->key != NULL && strcmp(key, f->e->key) == 0) {
        b = &f->e->value;
        f->n_seen |= 1;
    } else if (f->e->key2 != NULL && strcmp(key, f->e->key2) == 0) {
        b = &f->e->value2;
        f->n_seen |= 2;
    }
    if (b->n_bytes > 0) {
        craft_str(&f->c, key);
        sl_buf_put(&f->c.b, b->data, b->n_bytes);
        f->n_kv++;
    }
    sl_buf_deinit(&value);
}

static inline void put_metadata(struct model_file *f)
{
    static const char *const merges[] = {"a b", "ab c"};
    static const int32_t types[VOCAB] = {3, 3, 1, 1, 1, 1, 1, 1};
    static const float scores[VOCAB] = {0, 0, -1, -2, -3, -4, -5, -6};
    const char *kind = f->e->kind != NULL ? f->e->kind : "gpt2";
    put_kv(f, "general.architecture", value_str("llama"));
    put_kv(f, "general.alignment", value_u32(32));
    put_kv(f, "llama.embedding_length", value_u32(HIDDEN));
    put_kv(f, "llama.feed_forward_length", value_u32(48));
    put_kv(f, "llama.block_count", value_u32(1));
    put_kv(f, "llama.attention.head_count", value_u32(2));
    put_kv(f, "llama.attention.head_count_kv", value_u32(1));
    put_kv(f, "llama.attention.key_length", value_u32(8));
    put_kv(f, "llama.attention.value_length", value_u32(8));
    put_kv(f, "llama.rope.dimension_count", value_u32(8));
    put_kv(f, "llama.context_length", value_u32(64));
    put_kv(f, "llama.attention.layer_norm_rms_epsilon", value_f32(1e-5f));
    put_kv(f, "llama.rope.freq_base", value_f32(10000));
    put_kv(f, "tokenizer.ggml.model", value_str(kind));
    put_kv(f, "tokenizer.ggml.pre", value_str("gpt-2"));
    put_kv(f, "tokenizer.ggml.tokens", value_strings(tokens, VOCAB));
    if (!f->e->bare)
        put_kv(f, "tokenizer.ggml.token_type", value_array(SL_GGUF_I32, types, VOCAB, 4));
    if (!f->e->bare)
        put_kv(f, "tokenizer.ggml.scores", value_array(SL_GGUF_F32, scores, VOCAB, 4));
    if (!f->e->bare)
        put_kv(f, "tokenizer.ggml.merges", value_strings(merges, 2));
    put_kv(f, "tokenizer.ggml.bos_token_id", value_u32(0));
    put_kv(f, "tokenizer.ggml.eos_token_id", value_u32(1));
    put_kv(f, "tokenizer.ggml.add_bos_token", value_bits(SL_GGUF_BOOL, 0, 1));
    put_kv(f, "tokenizer.chat_template", value_str("{{ messages[0].content }}"));
    for (int i = 0; i < 2; i++) { /* keys that no base model has */
        const struct sl_buf *b = i == 0 ? &f->e->value : &f->e->value2;
        const char *key = i == 0 ? f->e->key : f->e->key2;
        if (key != NULL && !(f->n_seen & 1u << i) && b->n_bytes > 0) {
            craft_str(&f->c, key);
            sl_buf_put(&f->c.b, b->data, b->n_bytes);
            f->n_kv++;
        }
    }
}

static inline uint64_t tensor_bytes(const struct tensor *t)
{
    uint64_t n = t->type == 28 ? 8 : 4; /* f64 is the widest */
    for (uint32_t i = 0; i < t->n_dims && i < 4; i++)
        n *= t->ne[i];
    return n;
}

static inline void craft_model(struct craft *out, const struct edit *e)
{
    struct model_file f = {.e = e};
    uint64_t n_tensors = 0, offset = 0, start;
    craft_head(&f.c, 3, 0, 0);
    put_metadata(&f);
    for (size_t i = 0; i < SL_COUNT(tensors); i++) {
        const struct tensor *t = &tensors[i];
        bool changed = e->tensor != NULL && strcmp(e->tensor, t->name) == 0;
        if (changed && e->as == NULL)
            continue;
        const struct tensor *as = changed ? e->as : t;
        craft_str(&f.c, as->name != NULL ? as->name : t->name);
        craft_uint(&f.c, as->n_dims, 4);
        for (uint32_t d = 0; d < as->n_dims; d++)
            craft_uint(&f.c, d < 4 ? as->ne[d] : 1, 8);
        craft_uint(&f.c, as->type, 4);
        craft_uint(&f.c, offset, 8);
        uint64_t n = tensor_bytes(as);
        offset += (SL_MIN(n, 1u << 16) + 31) / 32 * 32;
        n_tensors++;
    }
    memcpy(f.c.b.data + f.c.fields[1].at, &n_tensors, 8);
    memcpy(f.c.b.data + f.c.fields[2].at, &f.n_kv, 8);
    start = (f.c.b.n_bytes + 31) / 32 * 32;
    while (sl_buf_ok(&f.c.b) && f.c.b.n_bytes < start + offset)
        sl_buf_putc(&f.c.b, 0);
    assert_true(sl_buf_ok(&f.c.b));
    f.c.b.n_bytes -= e->cut;
    *out = f.c;
}

static inline void expect_edit(struct edit *e, int code, const char *named, const char *label)
{
    struct craft c;
    char path[512];
    craft_model(&c, e);
    snprintf(path, sizeof path, "%s", folder_path(&dir, "case.gguf"));
    write_new(path, c.b.data, c.b.n_bytes);
    craft_deinit(&c);
    expect_path(path, code, named, label);
    sl_buf_deinit(&e->value);
    sl_buf_deinit(&e->value2);
}

static inline void expect_kv(const char *kind, const char *key, struct sl_buf value, int code,
                             const char *named, const char *label)
{
    char text[200];
    struct edit e = {.key = key, .value = value, .kind = kind};
    snprintf(text, sizeof text, "%s: %s", key, label);
    expect_edit(&e, code, named, text);
}

#endif
