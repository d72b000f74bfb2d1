/* SPDX-License-Identifier: MIT
 * test_tokenizer_load.h - opens a vocabulary file of any kind by its name, for tests and tools of
 * the tokenizer that must not depend on the engine. Its GGUF reader knows metadata only and trusts
 * lengths no further than the file's end.
 */
#ifndef TEST_TOKENIZER_LOAD_H
#define TEST_TOKENIZER_LOAD_H

#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

struct load_gguf {
    const char *p, *end;
    bool bad;
};

static inline uint64_t load_int(struct load_gguf *g, size_t n)
{
    uint64_t v = 0;
    if ((size_t)(g->end - g->p) < n) {
        g->bad = true;
        return 0;
    }
    memcpy(&v, g->p, n);
    g->p += n;
    return v;
}

static inline const char *load_str(struct load_gguf *g, uint32_t *n)
{
    uint64_t len = load_int(g, 8);
    const char *s = g->p;
    if (len > (uint64_t)(g->end - g->p)) {
        g->bad = true;
        len = 0;
    }
    g->p += len;
    *n = (uint32_t)len;
    return s;
}

static inline size_t load_size(uint32_t type)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof(sizes) / sizeof(sizes[0]) ? sizes[type] : 0;
}

/* An array of strings as pointers and lengths. */
static inline void load_strs(struct load_gguf *g, uint32_t n, const char *const **v,
                             const uint32_t **len)
{
    const char **s = sl_calloc(n + 1u, sizeof(*s));
    uint32_t *l = sl_calloc(n + 1u, sizeof(*l));
    for (uint32_t i = 0; s != NULL && l != NULL && i < n && !g->bad; i++)
        s[i] = load_str(g, &l[i]);
    *v = s;
    *len = l;
}

static inline void load_array(struct load_gguf *g, const char *key, struct sl_vocab_gguf *v)
{
    uint32_t type = (uint32_t)load_int(g, 4);
    uint64_t n = load_int(g, 8);
    if (n > SL_MAX_GGUF_ARRAY) {
        g->bad = true;
        return;
    }
    if (type == 8 && strcmp(key, "tokens") == 0) {
        v->n_tokens = (uint32_t)n;
        load_strs(g, (uint32_t)n, &v->tokens, &v->token_bytes);
    } else if (type == 8 && strcmp(key, "merges") == 0) {
        v->n_merges = (uint32_t)n;
        load_strs(g, (uint32_t)n, &v->merges, &v->merge_bytes);
    } else if (type == 8) {
        uint32_t len;
        for (uint64_t i = 0; i < n && !g->bad; i++)
            (void)load_str(g, &len);
    } else {
        const char *at = g->p;
        size_t bytes = load_size(type) * n;
        if (bytes == 0 || bytes > (size_t)(g->end - g->p)) {
            g->bad |= n != 0;
            return;
        }
        g->p += bytes;
        void *copy = sl_malloc(bytes);
        if (copy == NULL)
            return;
        memcpy(copy, at, bytes);
        if (strcmp(key, "scores") == 0)
            v->scores = copy;
        else if (strcmp(key, "token_type") == 0)
            v->types = copy;
        else
            sl_free(copy);
    }
}

static inline void load_key(struct load_gguf *g, const char *key, uint32_t type,
                            struct sl_vocab_gguf *v, char *model, char *pre)
{
    if (type == 9) {
        load_array(g, key, v);
        return;
    }
    if (type == 8) {
        uint32_t n;
        const char *s = load_str(g, &n);
        char *to = strcmp(key, "model") == 0 ? model : strcmp(key, "pre") == 0 ? pre : NULL;
        if (to != NULL && n < 64)
            memcpy(to, s, n);
        return;
    }
    const struct {
        const char *key;
        int64_t *id;
    } ids[] = {{"bos_token_id", &v->bos},     {"eos_token_id", &v->eos},
               {"unknown_token_id", &v->unk}, {"seperator_token_id", &v->sep},
               {"padding_token_id", &v->pad}, {"cls_token_id", &v->cls},
               {"mask_token_id", &v->mask},   {"eot_token_id", &v->eot}};
    uint64_t x = load_int(g, load_size(type));
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        if (strcmp(key, ids[i].key) == 0)
            *ids[i].id = (int64_t)x;
    }
    if (strcmp(key, "add_bos_token") == 0)
        v->add_bos = (int)x;
    if (strcmp(key, "add_eos_token") == 0)
        v->add_eos = (int)x;
    if (strcmp(key, "add_space_prefix") == 0)
        v->add_space_prefix = (int)x;
}

static inline int load_from_gguf(const char *data, size_t n, struct sl_tokenizer **out,
                                 struct sl_error *err)
{
    struct load_gguf g = {data, data + n, false};
    struct sl_vocab_gguf v = {.bos = -1,
                              .eos = -1,
                              .unk = -1,
                              .sep = -1,
                              .pad = -1,
                              .cls = -1,
                              .mask = -1,
                              .eot = -1,
                              .add_bos = -1,
                              .add_eos = -1,
                              .add_space_prefix = -1,
                              .remove_extra_whitespaces = -1};
    char model[64] = "", pre[64] = "";
    static const char head[] = "tokenizer.ggml.";
    (void)load_int(&g, 8); /* magic, version */
    (void)load_int(&g, 8); /* tensors */
    uint64_t n_kv = load_int(&g, 8);
    for (uint64_t i = 0; i < n_kv && !g.bad; i++) {
        uint32_t n_key;
        char key[128] = "";
        const char *s = load_str(&g, &n_key);
        bool ours = n_key > strlen(head) && n_key < sizeof(key) + strlen(head) &&
                    memcmp(s, head, strlen(head)) == 0;
        if (ours)
            memcpy(key, s + strlen(head), n_key - strlen(head));
        load_key(&g, key, (uint32_t)load_int(&g, 4), &v, model, pre);
    }
    v.model = model;
    v.pre = pre[0] != '\0' ? pre : NULL;
    int rc =
        g.bad ? sl_fail(err, SL_EFORMAT, "GGUF metadata") : sl_tokenizer_from_gguf(&v, out, err);
    sl_free((void *)v.tokens);
    sl_free((void *)v.token_bytes);
    sl_free((void *)v.merges);
    sl_free((void *)v.merge_bytes);
    sl_free((void *)v.scores);
    sl_free((void *)v.types);
    return rc;
}

/* By the end of the name: .gguf, .tiktoken, .model, else tokenizer.json. */
static inline int load_tokenizer(const char *path, struct sl_tokenizer **out, struct sl_error *err)
{
    struct sl_map map;
    int rc = sl_map_open(&map, path, err);
    if (rc != 0)
        return rc;
    const char *data = (const char *)map.data;
    if (sl_ends_with(path, ".gguf"))
        rc = load_from_gguf(data, map.n_bytes, out, err);
    else if (sl_ends_with(path, ".tiktoken"))
        rc = sl_tokenizer_from_tiktoken(data, map.n_bytes, NULL, out, err);
    else if (sl_ends_with(path, ".model"))
        rc = sl_tokenizer_from_spm(data, map.n_bytes, out, err);
    else
        rc = sl_tokenizer_from_json(data, map.n_bytes, NULL, 0, out, err);
    sl_map_close(&map);
    return rc;
}

#endif
