/* SPDX-License-Identifier: MIT
 * Reads what sentence-transformers writes beside a model. Modules run in their order: the
 * transformer, a pooling, perhaps matrices, perhaps a normalisation; a model with others is refused
 * by their name, as its vectors would be wrong without them. PyLate writes the transformer and a
 * matrix without a pooling between them: such a model gives a vector for each token, of length 1
 * (ColBERT).
 */
#include "models/pooling.h"

#include "base/check.h"
#include "base/json_load.h"

#include <stdio.h>
#include <string.h>

#define MAX_CONFIG  (1u << 20) /* bytes of such a file */
#define MAX_MODULES 16

const char *sl_pool_name(enum sl_pool_kind kind)
{
    static const char *const names[] = {[SL_POOL_MEAN] = "mean",
                                        [SL_POOL_CLS] = "cls",
                                        [SL_POOL_LAST] = "last",
                                        [SL_POOL_MAX] = "max"};
    _Static_assert(SL_COUNT(names) == SL_POOL_COUNT, "a name for each kind");
    SL_ASSERT((unsigned)kind < SL_COUNT(names));
    return names[kind];
}

const char *sl_task_name(enum sl_model_task task)
{
    static const char *const names[] = {[SL_TASK_GENERATE] = "generate",
                                        [SL_TASK_EMBED] = "embed",
                                        [SL_TASK_SCORE] = "score",
                                        [SL_TASK_TOKEN_EMBED] = "token_embed"};
    SL_ASSERT((unsigned)task < SL_COUNT(names));
    return names[task];
}

/* 1: *out is the file's JSON, the caller's; 0: there is no such file. */
static int load_json(const struct sl_ckpt *ckpt, const char *name, json_t **out,
                     struct sl_error *err)
{
    const char *text;
    size_t n;
    json_error_t why;
    int rc = sl_ckpt_file(ckpt, name, &text, &n, err);
    if (rc != 1)
        return rc;
    if (n > MAX_CONFIG)
        return sl_fail(err, SL_ELIMIT, "%s has %zu bytes, more than %u", name, n, MAX_CONFIG);
    *out = sl_json_load(text, n, JSON_REJECT_DUPLICATES, &why);
    if (*out == NULL && sl_json_no_memory(&why))
        return sl_fail(err, SL_ENOMEM, "out of memory reading %s", name);
    if (*out == NULL)
        return sl_fail(err, SL_EFORMAT, "%s: line %d: %s", name, why.line, why.text);
    SL_ASSERT(json_is_object(*out) || json_is_array(*out));
    return 1;
}

static int pool_of_name(const char *file, const char *name, enum sl_pool_kind *out,
                        struct sl_error *err)
{
    static const struct {
        const char *name;
        enum sl_pool_kind kind;
    } kinds[] = {{"mean", SL_POOL_MEAN},      {"mean_tokens", SL_POOL_MEAN},
                 {"cls", SL_POOL_CLS},        {"cls_token", SL_POOL_CLS},
                 {"lasttoken", SL_POOL_LAST}, {"last_token", SL_POOL_LAST},
                 {"max", SL_POOL_MAX},        {"max_tokens", SL_POOL_MAX}};
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            *out = kinds[i].kind;
            return 0;
        }
    }
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%s: pooling mode \"%.40s\" is not supported (supported: mean, cls, lasttoken, "
                   "max)",
                   file, name);
}

/* The mode is a flag for each that there is, or since version 5 a name. */
static int pooling_config(const json_t *config, const char *file, int32_t hidden,
                          struct sl_pooling *out, struct sl_error *err)
{
    static const char flag[] = "pooling_mode_";
    const json_t *dim = json_object_get(config, "word_embedding_dimension");
    const json_t *mode = json_object_get(config, "pooling_mode"), *v;
    const char *key, *name = NULL;
    if (!json_is_object(config))
        return sl_fail(err, SL_EFORMAT, "%s is not an object", file);
    if (dim != NULL && json_integer_value(dim) != hidden)
        return sl_fail(err, SL_EFORMAT, "%s: word_embedding_dimension is not the model's %d", file,
                       hidden);
    if (json_is_string(mode))
        return pool_of_name(file, json_string_value(mode), &out->kind, err);
    json_object_foreach((json_t *)(uintptr_t)config, key, v)
    {
        SL_DCHECK(key != NULL && v != NULL);
        if (strncmp(key, flag, sizeof flag - 1) != 0 || !json_is_true(v))
            continue;
        if (name != NULL)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "%s: %.40s together with another mode is not supported", file, key);
        name = key + sizeof flag - 1;
    }
    if (name == NULL)
        return sl_fail(err, SL_EFORMAT, "%s names no pooling mode", file);
    return pool_of_name(file, name, &out->kind, err);
}

/* What is behind the last dot of a class's name. */
static const char *last_part(const char *type)
{
    const char *dot = strrchr(type, '.');
    SL_ASSERT(dot == NULL || dot >= type);
    return dot != NULL ? dot + 1 : type;
}

/* A size of a Dense module: a number from 1 to SL_MAX_HIDDEN. */
static int dense_size(const json_t *config, const char *key, const char *file, int32_t *out,
                      struct sl_error *err)
{
    const json_t *v = json_object_get(config, key);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > SL_MAX_HIDDEN)
        return sl_fail(err, SL_EFORMAT, "%s: %s must be a number from 1 to %d", file, key,
                       SL_MAX_HIDDEN);
    *out = (int32_t)json_integer_value(v);
    return 0;
}

/* "torch.nn.modules.activation.Tanh", which is also what a module without one has. */
static int dense_act(const json_t *config, const char *file, struct sl_dense *out,
                     struct sl_error *err)
{
    static const struct {
        const char *name;
        enum sl_act act;
    } acts[] = {{"Tanh", SL_ACT_TANH},
                {"GELU", SL_ACT_GELU_ERF},
                {"ReLU", SL_ACT_RELU},
                {"SiLU", SL_ACT_SILU}};
    const char *type = json_string_value(json_object_get(config, "activation_function"));
    const char *name = last_part(type != NULL ? type : "Tanh");
    out->activates = strcmp(name, "Identity") != 0;
    for (size_t i = 0; i < SL_COUNT(acts) && out->activates; i++) {
        if (strcmp(acts[i].name, name) == 0) {
            out->act = acts[i].act;
            return 0;
        }
    }
    return !out->activates ? 0
                           : sl_fail(err, SL_EUNSUPPORTED,
                                     "%s: activation_function \"%.60s\" is not supported "
                                     "(supported: Identity, Tanh, GELU, ReLU, SiLU)",
                                     file, name);
}

static int dense_config(const json_t *config, const char *file, const char *folder,
                        struct sl_pooling *out, struct sl_error *err)
{
    struct sl_dense *d = &out->dense[out->n_dense];
    if (out->n_dense == SL_MAX_DENSE)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "modules.json: more than %d Dense modules are not "
                       "supported",
                       SL_MAX_DENSE);
    if (!json_is_object(config))
        return sl_fail(err, SL_EFORMAT, "%s is not an object", file);
    if (json_is_true(json_object_get(config, "use_residual")))
        return sl_fail(err, SL_EUNSUPPORTED, "%s: use_residual true is not supported", file);
    *d = (struct sl_dense){.bias = !json_is_false(json_object_get(config, "bias"))};
    if (strlen(folder) >= sizeof d->folder)
        return sl_fail(err, SL_ELIMIT, "modules.json: the path \"%.80s\" is too long", folder);
    memcpy(d->folder, folder, strlen(folder) + 1);
    int rc = dense_size(config, "in_features", file, &d->n_in, err);
    if (rc == 0)
        rc = dense_size(config, "out_features", file, &d->n_out, err);
    if (rc == 0)
        rc = dense_act(config, file, d, err);
    out->n_dense += rc == 0;
    return rc;
}

/* A Pooling, or where dense a Dense: by the config.json in its folder. */
static int pooling_read_module(const struct sl_ckpt *ckpt, const json_t *module, bool dense,
                               int32_t hidden, struct sl_pooling *out, struct sl_error *err)
{
    const char *path = json_string_value(json_object_get(module, "path"));
    char file[300];
    json_t *config = NULL;
    SL_ASSERT(hidden > 0);
    path = path != NULL ? path : "";
    int k = snprintf(file, sizeof file, "%.255s/config.json", path);
    SL_ASSERT(k > 0 && (size_t)k < sizeof file);
    int rc = load_json(ckpt, file, &config, err);
    if (rc == 0)
        return sl_fail(err, SL_EFORMAT, "%s is missing, modules.json names it", file);
    if (rc == 1)
        rc = dense ? dense_config(config, file, path, out, err)
                   : pooling_config(config, file, hidden, out, err);
    json_decref(config);
    return rc;
}

/* "sentence_transformers.models.Pooling" */
static const char *pooling_kind_of(const json_t *module)
{
    const char *type = json_string_value(json_object_get(module, "type"));
    return last_part(type != NULL ? type : "");
}

static int read_modules(const struct sl_ckpt *ckpt, const json_t *modules, int32_t hidden,
                        struct sl_pooling *out, struct sl_error *err)
{
    size_t n = json_array_size(modules);
    bool pooled = false;
    int rc = 0;
    if (!json_is_array(modules) || n == 0 || n > MAX_MODULES)
        return sl_fail(err, SL_EFORMAT, "modules.json is not a list of 1 to %d modules",
                       MAX_MODULES);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const json_t *module = json_array_get(modules, i);
        const char *kind = pooling_kind_of(module);
        SL_ASSERT(kind != NULL);
        if (strcmp(kind, "Transformer") == 0 && i == 0)
            continue;
        if (strcmp(kind, "Pooling") == 0 && !pooled && out->n_dense == 0) {
            rc = pooling_read_module(ckpt, module, false, hidden, out, err);
            pooled = true;
        } else if (strcmp(kind, "Dense") == 0 && !out->normalize) {
            rc = pooling_read_module(ckpt, module, true, hidden, out, err);
        } else if (strcmp(kind, "Normalize") == 0 && (pooled || out->n_dense > 0)) {
            out->normalize = true;
        } else {
            rc = sl_fail(err, SL_EUNSUPPORTED,
                         "modules.json: module %zu, \"%.60s\", is not supported", i, kind);
        }
    }
    if (rc == 0 && !pooled && out->n_dense == 0)
        rc = sl_fail(err, SL_EUNSUPPORTED, "modules.json names no pooling");
    if (!pooled)
        out->per_token = out->normalize = true;
    SL_ASSERT(rc != 0 || (unsigned)out->kind < SL_POOL_COUNT);
    return rc;
}

static int read_max_input(const struct sl_ckpt *ckpt, struct sl_pooling *out, struct sl_error *err)
{
    static const char name[] = "sentence_bert_config.json";
    json_t *config = NULL;
    int rc = load_json(ckpt, name, &config, err);
    if (rc != 1)
        return rc;
    const json_t *v = json_object_get(config, "max_seq_length");
    rc = 0;
    if (json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) <= SL_MAX_CONTEXT)
        out->max_input = (int32_t)json_integer_value(v);
    else if (v != NULL && !json_is_null(v))
        rc = sl_fail(err, SL_EFORMAT, "%s: max_seq_length is not a length from 1 to %d", name,
                     SL_MAX_CONTEXT);
    json_decref(config);
    SL_ASSERT(out->max_input >= 0 && out->max_input <= SL_MAX_CONTEXT);
    return rc;
}

/* pooling_type of llama.cpp: 0 none, 1 mean, 2 cls, 3 last, 4 rank. */
static int read_gguf(const struct sl_gguf *g, const char *arch, struct sl_pooling *out, bool *found,
                     struct sl_error *err)
{
    static const enum sl_pool_kind kinds[] = {SL_POOL_MEAN, SL_POOL_MEAN, SL_POOL_CLS,
                                              SL_POOL_LAST};
    char key[96];
    int64_t type = 0;
    SL_ASSERT(arch != NULL);
    snprintf(key, sizeof key, "%s.pooling_type", arch);
    int rc = sl_gguf_i64(g, key, &type, err);
    if (rc != 1 || type == 0)
        return rc < 0 ? rc : 0;
    out->rank = type == 4;
    if (out->rank) /* says nothing of vectors */
        return 0;
    if (type < 0 || type >= (int64_t)SL_COUNT(kinds))
        return sl_fail(err, SL_EUNSUPPORTED, "GGUF: %s %lld is not supported", key,
                       (long long)type);
    out->kind = kinds[type];
    out->normalize = true; /* llama.cpp's way: there is no key for it */
    *found = true;
    return 0;
}

int sl_pooling_read(const struct sl_ckpt *ckpt, const char *gguf_arch, int32_t hidden,
                    struct sl_pooling *out, bool *found, struct sl_error *err)
{
    json_t *modules = NULL;
    *out = (struct sl_pooling){.task = SL_TASK_EMBED};
    *found = false;
    if (sl_ckpt_kind(ckpt) == SL_CKPT_GGUF)
        return read_gguf(sl_ckpt_gguf(ckpt), gguf_arch, out, found, err);
    int rc = load_json(ckpt, "modules.json", &modules, err);
    if (rc != 1)
        return rc;
    *found = true;
    rc = read_modules(ckpt, modules, hidden, out, err);
    json_decref(modules);
    SL_ASSERT(rc <= 0);
    return rc != 0 ? rc : read_max_input(ckpt, out, err);
}

/* "torch.nn.modules.linear.Identity" */
static int act_of_name(const char *name, enum sl_score_act *out, struct sl_error *err)
{
    const char *dot = strrchr(name, '.'), *s = dot != NULL ? dot + 1 : name;
    SL_ASSERT(s >= name);
    if (strcmp(s, "Identity") == 0)
        *out = SL_SCORE_IDENTITY;
    else if (strcmp(s, "Sigmoid") == 0)
        *out = SL_SCORE_SIGMOID;
    else
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: an activation of scores \"%.60s\" is not supported "
                       "(supported: Identity, Sigmoid)",
                       name);
    return 0;
}

int sl_pooling_read_act(const struct sl_ckpt *ckpt, int32_t n_labels, enum sl_score_act *out,
                        struct sl_error *err)
{
    const json_t *config = sl_ckpt_config(ckpt);
    const json_t *own = json_object_get(config, "sentence_transformers"), *v;
    *out = n_labels == 1 ? SL_SCORE_SIGMOID : SL_SCORE_SOFTMAX;
    if (config == NULL)
        return 0;
    SL_ASSERT(n_labels > 0);
    v = json_object_get(own, "activation_fn");
    if (v == NULL)
        v = json_object_get(config, "sbert_ce_default_activation_function");
    return json_is_string(v) ? act_of_name(json_string_value(v), out, err) : 0;
}
