/* SPDX-License-Identifier: MIT */
#include "engine/load/load_text.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/json_load.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"

#include <string.h>
#include <time.h>

/* ---------------------------------------------------------------- vocabulary of a GGUF file */

static int gguf_strings(const struct sl_gguf *g, const char *key, struct sl_arena *arena,
                        const char *const **items, const uint32_t **bytes, uint32_t *n,
                        struct sl_error *err)
{
    struct sl_gguf_array a;
    int rc = sl_gguf_array(g, key, SL_GGUF_STRING, &a, err);
    if (rc <= 0)
        return rc;
    if (a.n > SL_MAX_GGUF_ARRAY)
        return sl_fail(err, SL_ELIMIT, "%s has %llu entries", key, (unsigned long long)a.n);
    const char **s = sl_arena_array(arena, a.n, sizeof *s);
    uint32_t *len = sl_arena_array(arena, a.n, sizeof *len);
    if (s == NULL || len == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %s", key);
    uint64_t pos = 0;
    for (uint64_t i = 0; i < a.n; i++) {
        size_t n_bytes;
        if (!sl_gguf_array_next_str(&a, &pos, &s[i], &n_bytes) || n_bytes > SL_MAX_TOKEN_BYTES)
            return sl_fail(err, SL_EFORMAT, "%s: entry %llu is too long or cut off", key,
                           (unsigned long long)i);
        len[i] = (uint32_t)n_bytes;
    }
    SL_ASSERT(a.n <= UINT32_MAX); /* SL_MAX_GGUF_ARRAY */
    *items = s;
    *bytes = len;
    *n = (uint32_t)a.n;
    return 1;
}

static int gguf_floats(const struct sl_gguf *g, const char *key, struct sl_arena *arena,
                       uint32_t want, const float **out, struct sl_error *err)
{
    struct sl_gguf_array a;
    int rc = sl_gguf_array(g, key, SL_GGUF_F32, &a, err);
    if (rc <= 0)
        return rc;
    if (a.n != want)
        return sl_fail(err, SL_EFORMAT, "%s has %llu entries, the vocabulary %u", key,
                       (unsigned long long)a.n, want);
    float *x = sl_arena_array(arena, want, sizeof *x);
    if (x == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %s", key);
    memcpy(x, a.data, want * sizeof *x); /* the file's array need not be aligned */
    *out = x;
    return 0;
}

static int gguf_types(const struct sl_gguf *g, const char *key, struct sl_arena *arena,
                      uint32_t want, const int32_t **out, struct sl_error *err)
{
    struct sl_gguf_array a;
    int rc = sl_gguf_array(g, key, SL_GGUF_I32, &a, err);
    if (rc <= 0)
        return rc;
    int32_t *x = sl_arena_array(arena, want, sizeof *x);
    if (x == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %s", key);
    for (uint32_t i = 0; i < want; i++) {
        int64_t v;
        if (a.n != want || !sl_gguf_array_i64(&a, i, &v) || v < INT32_MIN || v > INT32_MAX)
            return sl_fail(err, SL_EFORMAT, "%s does not fit the vocabulary of %u", key, want);
        x[i] = (int32_t)v;
    }
    *out = x;
    return 0;
}

static int gguf_id(const struct sl_gguf *g, const char *key, int64_t *out, struct sl_error *err)
{
    *out = -1;
    int rc = sl_gguf_i64(g, key, out, err);
    return rc < 0 ? rc : 0;
}

static int gguf_tristate(const struct sl_gguf *g, const char *key, int *out, struct sl_error *err)
{
    bool b;
    int rc = sl_gguf_bool(g, key, &b, err);
    *out = rc == 1 ? b : -1;
    return rc < 0 ? rc : 0;
}

static int gguf_name(const struct sl_gguf *g, const char *key, struct sl_arena *arena,
                     const char **out, struct sl_error *err)
{
    const char *s;
    size_t n;
    *out = NULL;
    int rc = sl_gguf_str(g, key, &s, &n, err);
    if (rc <= 0)
        return rc;
    if (memchr(s, '\0', n) != NULL) /* what follows it would go unseen */
        return sl_fail(err, SL_EFORMAT, "%s has a NUL byte in it", key);
    *out = sl_arena_strndup(arena, s, n);
    SL_ASSERT(*out == NULL || strlen(*out) == n);
    return *out != NULL ? 1 : sl_fail(err, SL_ENOMEM, "out of memory for %s", key);
}

#define KEY(name) "tokenizer.ggml." name

static int gguf_vocab_scalars(const struct sl_gguf *g, struct sl_vocab_gguf *v,
                              struct sl_error *err)
{
    const struct {
        const char *key;
        int64_t *out;
    } ids[] = {
        {KEY("bos_token_id"), &v->bos},     {KEY("eos_token_id"), &v->eos},
        {KEY("unknown_token_id"), &v->unk}, {KEY("seperator_token_id"), &v->sep}, /* sic, ggml */
        {KEY("padding_token_id"), &v->pad}, {KEY("cls_token_id"), &v->cls},
        {KEY("mask_token_id"), &v->mask},   {KEY("eot_token_id"), &v->eot},
    };
    const struct {
        const char *key;
        int *out;
    } switches[] = {
        {KEY("add_bos_token"), &v->add_bos},
        {KEY("add_eos_token"), &v->add_eos},
        {KEY("add_space_prefix"), &v->add_space_prefix},
        {KEY("remove_extra_whitespaces"), &v->remove_extra_whitespaces},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < SL_COUNT(ids); i++)
        rc = gguf_id(g, ids[i].key, ids[i].out, err);
    for (size_t i = 0; rc == 0 && i < SL_COUNT(switches); i++)
        rc = gguf_tristate(g, switches[i].key, switches[i].out, err);
    return rc;
}

static int gguf_vocab(const struct sl_gguf *g, struct sl_arena *arena, struct sl_vocab_gguf *v,
                      struct sl_error *err)
{
    struct sl_gguf_array a;
    int rc = gguf_name(g, KEY("model"), arena, &v->model, err);
    if (rc == 0)
        return sl_fail(err, SL_EFORMAT, "this GGUF file has no tokenizer (" KEY("model") ")");
    if (rc < 0)
        return rc;
    rc = gguf_strings(g, KEY("tokens"), arena, &v->tokens, &v->token_bytes, &v->n_tokens, err);
    if (rc == 0)
        return sl_fail(err, SL_EFORMAT, "this GGUF file has no " KEY("tokens"));
    if (rc < 0 || (rc = gguf_name(g, KEY("pre"), arena, &v->pre, err)) < 0 ||
        (rc = gguf_floats(g, KEY("scores"), arena, v->n_tokens, &v->scores, err)) < 0 ||
        (rc = gguf_types(g, KEY("token_type"), arena, v->n_tokens, &v->types, err)) < 0 ||
        (rc = gguf_strings(g, KEY("merges"), arena, &v->merges, &v->merge_bytes, &v->n_merges,
                           err)) < 0 ||
        (rc = gguf_vocab_scalars(g, v, err)) < 0)
        return rc;
    SL_ASSERT(v->model != NULL && v->tokens != NULL && v->token_bytes != NULL);
    SL_ASSERT(v->n_merges == 0 || (v->merges != NULL && v->merge_bytes != NULL));
    rc = sl_gguf_array(g, KEY("precompiled_charsmap"), SL_GGUF_U8, &a, err);
    if (rc == 1) {
        v->charsmap = a.data;
        v->n_charsmap = (size_t)a.n;
    }
    return rc < 0 ? rc : 0;
}

static int tokenizer_of_gguf(const struct sl_gguf *g, struct sl_tokenizer **out,
                             struct sl_error *err)
{
    struct sl_arena arena = {0};
    struct sl_vocab_gguf v = {0};
    int rc = gguf_vocab(g, &arena, &v, err);
    if (rc == 0)
        rc = sl_tokenizer_from_gguf(&v, out, err);
    SL_ASSERT(rc != 0 || *out != NULL);
    sl_arena_deinit(&arena);
    return rc;
}

/* ---------------------------------------------------------------- tokenizer of a model or a file
 */

/* Where a folder has its vocabulary, the best first: what a file is called does not say its format.
 */
static const char *const vocab_names[] = {
    "tokenizer.json",       "tekken.json",        "tokenizer.model",    "tokenizer.model.v7m1",
    "tokenizer.model.v7",   "tokenizer.model.v3", "tokenizer.model.v2", "tokenizer.model.v1",
    "tokenizer.model.v3m1", "qwen.tiktoken",      "spiece.model",       "rwkv_vocab_v20230424.txt",
};

int sl_load_tokenizer(const struct sl_ckpt *ckpt, struct sl_tokenizer **out, struct sl_error *err)
{
    const char *data = NULL, *config = NULL;
    size_t n = 0, n_config = 0;
    int rc = 0;
    if (sl_ckpt_gguf(ckpt) != NULL)
        return tokenizer_of_gguf(sl_ckpt_gguf(ckpt), out, err);
    for (size_t i = 0; i < SL_COUNT(vocab_names) && rc == 0; i++)
        rc = sl_ckpt_file(ckpt, vocab_names[i], &data, &n, err);
    if (rc == 0)
        rc = sl_fail(err, SL_ENOTFOUND, "%s: no tokenizer.json, tekken.json or tokenizer.model",
                     sl_ckpt_path(ckpt));
    if (rc > 0) /* without the configuration the ids would be others */
        rc = sl_ckpt_file(ckpt, "tokenizer_config.json", &config, &n_config, err);
    return rc < 0 ? rc : sl_tokenizer_from_bytes(data, n, config, n_config, out, err);
}

static int tokenizer_of_bytes(const char *path, const char *data, size_t n,
                              struct sl_tokenizer **out, struct sl_error *err)
{
    if (n >= 4 && memcmp(data, "GGUF", 4) == 0) {
        struct sl_gguf *g;
        int rc = sl_gguf_open((const uint8_t *)data, n, path, &g, err);
        if (rc == 0) {
            rc = tokenizer_of_gguf(g, out, err);
            sl_gguf_close(g);
        }
        return rc;
    }
    return sl_tokenizer_from_bytes(data, n, NULL, 0, out, err);
}

/* A file of a folder: 1 = mapped, 0 = absent. */
static int map_in_folder(const char *folder, const char *name, struct sl_map *map,
                         struct sl_error *err)
{
    struct sl_buf path = {0};
    struct sl_error why = {0};
    SL_ASSERT(name[0] != '\0' && strchr(name, '/') == NULL); /* inside the folder */
    sl_buf_printf(&path, "%s/%s", folder, name);
    int rc = sl_buf_ok(&path) ? sl_map_open(map, path.data, &why)
                              : sl_fail(&why, SL_ENOMEM, "out of memory for a path");
    sl_buf_deinit(&path);
    if (rc == 0 || rc == SL_ENOTFOUND)
        return rc == 0;
    if (err != NULL)
        *err = why;
    return rc;
}

/* A folder may hold a tokenizer and no model: its files are looked for by name. */
static int tokenizer_of_folder(const char *path, struct sl_tokenizer **out, struct sl_error *err)
{
    struct sl_map vocab = {0}, config = {0};
    int rc = 0;
    for (size_t i = 0; i < SL_COUNT(vocab_names) && rc == 0; i++)
        rc = map_in_folder(path, vocab_names[i], &vocab, err);
    if (rc == 0)
        rc = sl_fail(err, SL_ENOTFOUND, "%s: no tokenizer.json, tekken.json or tokenizer.model",
                     path);
    if (rc > 0)
        rc = map_in_folder(path, "tokenizer_config.json", &config, err);
    if (rc >= 0)
        rc = sl_tokenizer_from_bytes((const char *)vocab.data, vocab.n_bytes,
                                     rc == 1 ? (const char *)config.data : NULL, config.n_bytes,
                                     out, err);
    SL_ASSERT(rc != 0 || *out != NULL);
    sl_map_close(&config);
    sl_map_close(&vocab);
    return rc;
}

int sl_tokenizer_open(const char *path, struct sl_tokenizer **out, struct sl_error *err)
{
    struct sl_map map;
    int rc;
    *out = NULL;
    if (path == NULL) {
        struct sl_ckpt *bundled;
        rc = sl_ckpt_open(NULL, &bundled, err);
        if (rc == 0) {
            rc = sl_load_tokenizer(bundled, out, err);
            sl_ckpt_close(bundled);
        }
        return rc;
    }
    if (sl_is_folder(path)) {
        rc = tokenizer_of_folder(path, out, err);
    } else {
        rc = sl_map_open(&map, path, err);
        if (rc != 0)
            return rc; /* names the path already */
        rc = tokenizer_of_bytes(path, (const char *)map.data, map.n_bytes, out, err);
        sl_map_close(&map);
    }
    return rc == 0 || rc == SL_ENOTFOUND ? rc : sl_error_prefix(err, rc, "%s", path);
}

void sl_tokenizer_close(struct sl_tokenizer *tok)
{
    sl_tokenizer_destroy(tok);
}

/* ---------------------------------------------------------------- chat template */

/* tokenizer_config.json: "chat_template" is the text, or a list of {name, template} with a
 * "default". */
static int template_of_config(const char *config, size_t n_config, struct sl_template **out,
                              struct sl_error *err)
{
    json_error_t je;
    json_t *root = sl_json_load(config, n_config, JSON_REJECT_DUPLICATES, &je);
    if (root == NULL && sl_json_no_memory(&je))
        return sl_fail(err, SL_ENOMEM, "tokenizer_config.json: out of memory");
    if (root == NULL)
        return sl_fail(err, SL_EFORMAT, "tokenizer_config.json: line %d: %s", je.line, je.text);
    const json_t *t = json_object_get(root, "chat_template");
    int rc = 0;
    if (json_is_array(t)) {
        const json_t *list = t, *entry;
        size_t i;
        t = NULL;
        json_array_foreach((json_t *)(uintptr_t)list, i, entry)
        {
            const char *name = json_string_value(json_object_get(entry, "name"));
            if (name != NULL && (t == NULL || strcmp(name, "default") == 0))
                t = json_object_get(entry, "template");
        }
    }
    if (t != NULL && !json_is_null(t)) {
        if (json_is_string(t))
            rc = sl_template_compile(json_string_value(t), json_string_length(t), out, err);
        else
            rc = sl_fail(err, SL_EFORMAT, "tokenizer_config.json: chat_template is not a string");
    }
    SL_ASSERT(rc != 0 || t == NULL || json_is_null(t) || *out != NULL);
    json_decref(root);
    return rc;
}

int sl_load_template(const struct sl_ckpt *ckpt, struct sl_template **out, struct sl_error *err)
{
    const char *text;
    size_t n;
    int rc = 0;
    *out = NULL;
    if (sl_ckpt_gguf(ckpt) != NULL) {
        rc = sl_gguf_str(sl_ckpt_gguf(ckpt), "tokenizer.chat_template", &text, &n, err);
        if (rc == 1)
            rc = sl_template_compile(text, n, out, err);
    } else if ((rc = sl_ckpt_file(ckpt, "chat_template.jinja", &text, &n, err)) != 0) {
        rc = rc == 1 ? sl_template_compile(text, n, out, err) : rc;
    } else if ((rc = sl_ckpt_file(ckpt, "tokenizer_config.json", &text, &n, err)) != 0) {
        rc = rc == 1 ? template_of_config(text, n, out, err) : rc;
    }
    SL_ASSERT(rc <= 0); /* 1, a file was found, is no result */
    return rc >= 0 ? rc : sl_error_prefix(err, rc, "chat template of %s", sl_ckpt_path(ckpt));
}

int sl_load_template_override(const char *override, struct sl_template **out, struct sl_error *err)
{
    if (strstr(override, "{{") != NULL || strstr(override, "{%") != NULL)
        return sl_template_compile(override, strlen(override), out, err);
    char *text;
    size_t n;
    int rc = sl_read_file(override, SL_MAX_TEMPLATE, &text, &n, err);
    if (rc != 0)
        return rc;
    rc = sl_template_compile(text, n, out, err);
    sl_free(text);
    return rc == 0 ? 0 : sl_error_prefix(err, rc, "%s", override);
}

/* "2024-07-26", "2024-07-26T12:00:00" with an optional fraction and "Z": UTC. */
static bool parse_iso_time(const char *s, size_t n, int64_t *out)
{
    static const struct {
        uint8_t at, len;
    } fields[] = {{0, 4}, {5, 2}, {8, 2}, {11, 2}, {14, 2}, {17, 2}};
    uint64_t v[6] = {0};
    if (n < 10 || s[4] != '-' || s[7] != '-')
        return false;
    size_t n_fields = n >= 19 ? 6 : 3;
    for (size_t i = 0; i < n_fields; i++) {
        SL_ASSERT((size_t)fields[i].at + fields[i].len <= n);
        if (!sl_parse_u64(s + fields[i].at, fields[i].len, &v[i]))
            return false;
    }
    if (n_fields == 6 && ((s[10] != 'T' && s[10] != ' ') || s[13] != ':' || s[16] != ':'))
        return false;
    struct tm tm = {.tm_year = (int)v[0] - 1900,
                    .tm_mon = (int)v[1] - 1,
                    .tm_mday = (int)v[2],
                    .tm_hour = (int)v[3],
                    .tm_min = (int)v[4],
                    .tm_sec = (int)v[5]};
    if (v[1] < 1 || v[1] > 12 || v[2] < 1 || v[2] > 31 || v[3] > 23 || v[4] > 59 || v[5] > 60)
        return false;
    *out = timegm(&tm);
    return true;
}

static int add_token_variable(json_t *vars, const char *name, const struct sl_tokenizer *tok,
                              int32_t id, struct sl_error *err)
{
    size_t n;
    const char *piece = id >= 0 ? sl_tokenizer_piece(tok, id, &n) : NULL;
    if (piece == NULL || json_object_get(vars, name) != NULL)
        return 0;
    if (json_object_set_new(vars, name, json_stringn(piece, n)) != 0)
        return sl_fail(err, SL_ENOMEM, "out of memory for %s", name);
    return 0;
}

static int render_vars(const struct sl_template *tpl, const struct sl_tokenizer *tok, json_t *vars,
                       struct sl_buf *out, struct sl_error *err)
{
    int64_t now = sl_wall_ns() / 1000000000;
    const json_t *given = json_object_get(vars, "now");
    int rc = 0;
    if (!json_is_object(vars))
        return sl_fail(err, SL_EINVAL, "the conversation is not a JSON object");
    if (given != NULL &&
        (!json_is_string(given) ||
         !parse_iso_time(json_string_value(given), json_string_length(given), &now)))
        return sl_fail(err, SL_EINVAL, "now: expected a time such as 2026-01-31T12:00:00");
    if (tok != NULL) {
        rc = add_token_variable(vars, "bos_token", tok, sl_tokenizer_bos(tok), err);
        if (rc == 0)
            rc = add_token_variable(vars, "eos_token", tok, sl_tokenizer_eos(tok), err);
    }
    return rc == 0 ? sl_template_render(tpl, vars, now, NULL, out, err) : rc;
}

int sl_render_context(const struct sl_template *tpl, const struct sl_tokenizer *tok,
                      const char *context, size_t n_context, struct sl_buf *out,
                      struct sl_error *err)
{
    json_error_t je;
    json_t *vars = sl_json_load(context, n_context, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    if (vars == NULL && sl_json_no_memory(&je))
        return sl_fail(err, SL_ENOMEM, "out of memory for the conversation");
    if (vars == NULL)
        return sl_fail(err, SL_EFORMAT, "conversation: line %d, column %d: %s", je.line, je.column,
                       je.text);
    int rc = render_vars(tpl, tok, vars, out, err);
    json_decref(vars);
    return rc;
}

static int render_model(const char *path, const char *context, size_t n_context, struct sl_buf *out,
                        struct sl_error *err)
{
    struct sl_ckpt *ckpt;
    struct sl_template *tpl = NULL;
    struct sl_tokenizer *tok = NULL;
    int rc = sl_ckpt_open(path, &ckpt, err);
    if (rc != 0)
        return rc;
    rc = sl_load_template(ckpt, &tpl, err);
    if (rc == 0 && tpl == NULL)
        rc = sl_fail(err, SL_ENOTFOUND, "%s has no chat template", sl_ckpt_path(ckpt));
    if (rc == 0)
        rc = sl_load_tokenizer(ckpt, &tok, err);
    if (rc == 0)
        rc = sl_render_context(tpl, tok, context, n_context, out, err);
    if (tok != NULL)
        sl_tokenizer_destroy(tok);
    if (tpl != NULL)
        sl_template_destroy(tpl);
    sl_ckpt_close(ckpt);
    return rc;
}

int sl_template_render_file(const char *path, const char *context_json, size_t n_context,
                            char **out, size_t *n_out, struct sl_error *err)
{
    struct sl_buf text = {0};
    int rc;
    if (path == NULL || sl_is_folder(path) || sl_ends_with(path, ".gguf")) {
        rc = render_model(path, context_json, n_context, &text, err);
    } else {
        struct sl_template *tpl;
        rc = sl_load_template_override(path, &tpl, err);
        if (rc == 0) {
            rc = sl_render_context(tpl, NULL, context_json, n_context, &text, err);
            sl_template_destroy(tpl);
        }
    }
    if (rc == 0 && (*out = sl_buf_steal(&text, n_out)) == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for the rendered text");
    sl_buf_deinit(&text);
    return rc;
}

/* A word of the vocabulary that encodes to one token. */
static int load_one_token(const struct sl_tokenizer *tok, const char *name, size_t n, int32_t *out,
                          struct sl_error *err)
{
    struct sl_ids ids = {0};
    int rc = sl_tokenizer_encode_into(tok, name, n, SL_ENCODE_PARSE_SPECIAL, &ids, err);
    if (rc == 0 && ids.n != 1)
        rc = sl_fail(err, SL_EINVAL,
                     "classifier_from_token: '%.*s' is %zu tokens of this model, must be one",
                     (int)SL_MIN(n, 40), name, ids.n);
    if (rc == 0)
        *out = ids.data[0];
    sl_free(ids.data);
    return rc;
}

int sl_load_two_tokens(const struct sl_tokenizer *tok, const char *names, int32_t out[2],
                       struct sl_error *err)
{
    const char *comma = strchr(names, ',');
    if (comma == NULL)
        return sl_fail(err, SL_EINVAL,
                       "classifier_from_token: '%.40s' is not two tokens with a comma between",
                       names);
    int rc = load_one_token(tok, names, (size_t)(comma - names), &out[0], err);
    return rc != 0 ? rc : load_one_token(tok, comma + 1, strlen(comma + 1), &out[1], err);
}
