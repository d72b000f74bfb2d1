/* SPDX-License-Identifier: MIT
 * Reads a family's table of hyper-parameters from config.json or GGUF metadata. Every value is
 * checked against its row's type and range before anything is computed from it; the refusal names
 * the key as the file spells it.
 */
#include "base/check.h"
#include "base/str.h"
#include "io/json.h"
#include "models/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct source {
    const json_t *config; /* Hugging Face, or NULL */
    const struct sl_gguf *gguf;
    const char *arch; /* prefix of the GGUF keys */
    const struct sl_model_name *name;
};

static const char *json_kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

/* One step of a path: the member of an object, or of a list the one that a digit says. */
static int hparams_member(const json_t *from, const char *path, size_t n_before, const char *key,
                          size_t n, const json_t **out, struct sl_error *err)
{
    const bool index = n == 1 && *key >= '0' && *key <= '9';
    *out = NULL;
    if (index ? !json_is_array(from) : !json_is_object(from))
        return sl_fail(err, SL_EFORMAT, "config.json: %.*s must be %s, not %s", (int)n_before, path,
                       index ? "a list" : "an object", json_kind(from));
    if (!index)
        *out = json_object_getn(from, key, n);
    else if ((*out = json_array_get(from, (size_t)(*key - '0'))) == NULL)
        return sl_fail(err, SL_EFORMAT, "config.json: %.*s has %zu entries, must have at least %d",
                       (int)n_before, path, json_array_size(from), *key - '0' + 1);
    return 0;
}

int sl_config_get(const json_t *config, const char *path, const json_t **out, struct sl_error *err)
{
    const char *at = path;
    bool more = true;
    int rc = 0;
    while (more && config != NULL && !json_is_null(config) && rc == 0) {
        const size_t n = strcspn(at, ".");
        rc = hparams_member(config, path, at > path ? (size_t)(at - path) - 1 : 0, at, n, &config,
                            err);
        more = at[n] == '.';
        at += n + more;
    }
    *out = rc == 0 && !more ? config : NULL;
    return rc;
}

struct spelling { /* of one row in this container, for messages */
    char text[128];
    const char *gguf_key; /* inside text */
    const json_t *value;  /* config.json: NULL when absent or null */
    bool named;           /* config.json: there, be it null */
};

static int hparams_spell(const struct source *src, const struct sl_hparam_desc *row,
                         struct spelling *sp, struct sl_error *err)
{
    sp->value = NULL;
    sp->gguf_key = NULL;
    sp->named = false;
    if (src->gguf != NULL) {
        const bool bare = row->gguf[0] == '.';
        snprintf(sp->text, sizeof sp->text, "GGUF: %s%s%s", bare ? "" : src->arch, bare ? "" : ".",
                 row->gguf + bare);
        sp->gguf_key = sp->text + strlen("GGUF: ");
        return 0;
    }
    const char *key = row->hf[0];
    for (size_t i = 0; i < SL_COUNT(row->hf) && row->hf[i] != NULL && sp->value == NULL; i++) {
        const json_t *v;
        if (sl_config_get(src->config, row->hf[i], &v, err) != 0)
            return err->code;
        sp->named = sp->named || v != NULL;
        if (v != NULL && !json_is_null(v)) {
            sp->value = v;
            key = row->hf[i];
        }
    }
    snprintf(sp->text, sizeof sp->text, "config.json: %s", key);
    return 0;
}

static int wrong_type(const struct spelling *sp, const char *want, struct sl_error *err)
{
    return sl_fail(err, SL_EFORMAT, "%s must be %s, not %s", sp->text, want, json_kind(sp->value));
}

static bool hparams_is_word(const json_t *v, const char *word)
{
    const char *s = json_string_value(v);
    return s != NULL && strcmp(s, word) == 0;
}

/* A list of one number for each layer becomes that number. */
static int same_number(const struct sl_hparams *hp, struct spelling *sp, struct sl_error *err)
{
    if (!json_is_array(sp->value))
        return 0;
    const json_t *first = json_array_get(sp->value, 0);
    if (json_array_size(sp->value) < (size_t)hp->n_layers)
        return sl_fail(err, SL_EFORMAT, "%s has %zu entries, num_hidden_layers is %d", sp->text,
                       json_array_size(sp->value), hp->n_layers);
    for (int32_t i = 1; i < hp->n_layers; i++)
        if (!json_equal(json_array_get(sp->value, (size_t)i), first))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "%s differs between layers 0 and %d: not supported", sp->text, i);
    sp->value = first;
    return 0;
}

/* 1 = *out filled, 0 = absent */
static int get_number(const struct source *src, const struct sl_hparam_desc *row,
                      const struct spelling *sp, double *out, struct sl_error *err)
{
    bool integer = row->type != SL_HP_FLOAT;
    if (src->gguf != NULL) {
        int64_t i = 0;
        int rc = integer ? sl_gguf_i64(src->gguf, sp->gguf_key, &i, err)
                         : sl_gguf_f64(src->gguf, sp->gguf_key, out, err);
        if (rc == 1 && integer)
            *out = (double)i;
        return rc;
    }
    if (sp->value == NULL || (integer && hparams_is_word(sp->value, "auto"))) /* made of others */
        return 0;
    /* as transformers 5 writes what JSON has no number for; before, it wrote the word alone */
    if (!integer && hparams_is_word(json_object_get(sp->value, "__float__"), "Infinity")) {
        *out = SL_JSON_INFINITY;
        return 1;
    }
    const char *text = row->spelled ? json_string_value(sp->value) : NULL;
    if (!integer && text != NULL && sl_parse_double(text, strlen(text), out))
        return 1;
    if (row->type == SL_HP_COUNT && !json_is_integer(sp->value)) {
        *out = json_is_string(sp->value) ? (double)json_string_length(sp->value)
                                         : (double)json_array_size(sp->value);
        return json_is_string(sp->value) || json_is_array(sp->value)
                   ? 1
                   : wrong_type(sp, "an integer or a list", err);
    }
    if (integer ? !json_is_integer(sp->value) : !json_is_number(sp->value))
        return wrong_type(sp, integer ? "an integer" : "a number", err);
    *out = json_number_value(sp->value);
    return 1;
}

static int hparams_read_number(const struct source *src, const struct sl_hparam_desc *row,
                               const struct spelling *sp, struct sl_hparams *hp,
                               struct sl_error *err)
{
    const bool none =
        src->name->window_absent && row->offset == offsetof(struct sl_hparams, window);
    bool hf_def = src->config != NULL && !sp->named && row->hf_def != 0 && !none;
    double x = hf_def ? row->hf_def : row->def;
    int rc = get_number(src, row, sp, &x, err);
    if (rc < 0)
        return rc;
    if (rc == 0 && row->required && !hf_def)
        return sl_fail(err, SL_EFORMAT, "%s is missing", sp->text);
    if (rc == 1 && !(x >= row->min && x <= row->max)) {
        if (row->min == row->max)
            return sl_fail(err, SL_EUNSUPPORTED, "%s is %.15g: not supported, must be %.15g",
                           sp->text, x, row->min);
        return sl_fail(err, SL_EFORMAT, "%s is %.15g, must be %.15g to %.15g", sp->text, x,
                       row->min, row->max);
    }
    uint8_t *at = (uint8_t *)hp + row->offset;
    if (row->type == SL_HP_FLOAT)
        *(double *)(void *)at = x;
    else
        *(int32_t *)(void *)at =
            (int32_t)x * (src->config != NULL && row->times > 0 ? row->times : 1);
    return 0;
}

static int read_flag(const struct source *src, const struct sl_hparam_desc *row,
                     const struct spelling *sp, struct sl_hparams *hp, struct sl_error *err)
{
    bool on = row->def != 0;
    if (sp->gguf_key != NULL) {
        int rc = sl_gguf_bool(src->gguf, sp->gguf_key, &on, err);
        if (rc < 0)
            return rc;
    } else if (row->type == SL_HP_SWITCH && json_is_integer(sp->value)) {
        on = json_integer_value(sp->value) != 0;
    } else if (sp->value != NULL) {
        if (!json_is_boolean(sp->value))
            return wrong_type(sp, "true or false", err);
        on = json_is_true(sp->value);
    }
    if (row->type == SL_HP_ONLY && on != (row->def != 0))
        return sl_fail(err, SL_EUNSUPPORTED, "%s is %s: not supported, must be %s", sp->text,
                       on ? "true" : "false", on ? "false" : "true");
    if (row->type == SL_HP_ONLY)
        return 0;
    if (row->type == SL_HP_BOOL || row->type == SL_HP_SWITCH)
        *(bool *)((uint8_t *)hp + row->offset) = on;
    else if (on == (row->type == SL_HP_HAS))
        hp->has |= row->has;
    return 0;
}

static int read_choice(const struct sl_hparam_desc *row, const struct spelling *sp,
                       struct sl_error *err)
{
    if (sp->value == NULL || (row->or_true && json_is_true(sp->value)))
        return 0;
    if (!json_is_string(sp->value))
        return wrong_type(sp, "a string", err);
    if (strcmp(json_string_value(sp->value), row->value) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "%s \"%.40s\" is not supported (supported: %s)",
                       sp->text, json_string_value(sp->value), row->value);
    return 0;
}

static int read_either(const struct sl_hparam_desc *row, const struct spelling *sp,
                       struct sl_hparams *hp, struct sl_error *err)
{
    bool *at = (bool *)((uint8_t *)hp + row->offset);
    *at = row->def != 0;
    if (sp->value == NULL)
        return 0;
    if (!json_is_string(sp->value))
        return wrong_type(sp, "a string", err);
    const char *s = json_string_value(sp->value);
    *at = strcmp(s, row->words[1]) == 0;
    if (!*at && strcmp(s, row->words[0]) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "%s \"%.40s\" is not supported (supported: %s, %s)",
                       sp->text, s, row->words[0], row->words[1]);
    return 0;
}

/* Names of transformers; the first of each is the one that is written. */
static const struct {
    const char *name;
    enum sl_act act;
} acts[] = {
    {"silu", SL_ACT_SILU},          {"swish", SL_ACT_SILU},
    {"gelu", SL_ACT_GELU_ERF},      {"gelu_pytorch_tanh", SL_ACT_GELU_TANH},
    {"gelu_new", SL_ACT_GELU_TANH}, {"gelu_fast", SL_ACT_GELU_TANH},
    {"relu", SL_ACT_RELU},          {"relu2", SL_ACT_RELU2},
    {"tanh", SL_ACT_TANH},
};

const char *sl_act_hf_name(enum sl_act act)
{
    for (size_t i = 0; i < SL_COUNT(acts); i++)
        if (acts[i].act == act)
            return acts[i].name;
    return NULL;
}

static int read_act(const struct source *src, const struct sl_hparam_desc *row,
                    const struct spelling *sp, struct sl_hparams *hp, struct sl_error *err)
{
    enum sl_act *at = (enum sl_act *)(void *)((uint8_t *)hp + row->offset);
    const char *word = NULL;
    size_t n = 0;
    *at = (enum sl_act)row->def;
    if (sp->gguf_key != NULL && sl_gguf_str(src->gguf, sp->gguf_key, &word, &n, err) < 0)
        return err->code;
    if (sp->value != NULL && !json_is_string(sp->value))
        return wrong_type(sp, "a string", err);
    if (sp->value != NULL) {
        word = json_string_value(sp->value);
        n = strlen(word);
    }
    if (word == NULL)
        return 0;
    for (size_t i = 0; i < SL_COUNT(acts); i++) {
        if (strlen(acts[i].name) == n && memcmp(word, acts[i].name, n) == 0) {
            *at = acts[i].act;
            return 0;
        }
    }
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%s \"%.*s\" is not supported (supported: silu, gelu, gelu_pytorch_tanh, relu, "
                   "relu2, tanh)",
                   sp->text, (int)SL_MIN(n, 40), word);
}

/* The last of every `period` layers is not windowed. */
static int set_period(const struct spelling *sp, int64_t period, const struct sl_hparams *hp,
                      uint8_t *types, struct sl_error *err)
{
    if (period < 1 || period > SL_MAX_LAYERS)
        return sl_fail(err, SL_EFORMAT, "%s is %lld, must be 1 to %d", sp->text, (long long)period,
                       SL_MAX_LAYERS);
    for (int32_t i = 0; i < hp->n_layers; i++)
        types[i] = (i + 1) % period != 0 ? SL_LAYER_ON : SL_LAYER_OFF;
    return 0;
}

/* A letter for each layer, over and over: L, local, or G, global. */
static int set_letters(const struct spelling *sp, const char *s, const struct sl_hparams *hp,
                       uint8_t *types, struct sl_error *err)
{
    const size_t n = strlen(s);
    if (n == 0 || strspn(s, "LG") != n)
        return sl_fail(err, SL_EFORMAT, "%s \"%.40s\" must be letters L and G", sp->text, s);
    for (int32_t i = 0; i < hp->n_layers; i++)
        types[i] = s[(size_t)i % n] == 'L' ? SL_LAYER_ON : SL_LAYER_OFF;
    return 0;
}

/* A list with an entry for each layer may have some for those that predict further tokens. */
static bool is_for_layers(const json_t *list, const struct sl_hparams *hp)
{
    const size_t n = json_array_size(list), n_layers = (size_t)hp->n_layers;
    return n == n_layers || n == n_layers + (size_t)hp->n_nextn;
}

/* An array of a GGUF with one element per layer: 1 it is there, 0 it is not. */
static int layer_array(const struct source *src, const struct spelling *sp, enum sl_gguf_type type,
                       int32_t n_layers, struct sl_gguf_array *out, struct sl_error *err)
{
    int rc = sl_gguf_array(src->gguf, sp->gguf_key, type, out, err);
    if (rc == 1 && out->n != (uint64_t)n_layers)
        return sl_fail(err, SL_EFORMAT, "%s has %llu entries, block_count is %d", sp->text,
                       (unsigned long long)out->n, n_layers);
    return rc;
}

static int gguf_layer_types(const struct source *src, const struct spelling *sp,
                            const struct sl_hparams *hp, uint8_t *types, struct sl_error *err)
{
    enum sl_gguf_type type;
    struct sl_gguf_array a;
    int64_t period;
    if (sl_gguf_type_of(src->gguf, sp->gguf_key, &type) == 0)
        return 0;
    if (type != SL_GGUF_ARRAY) {
        int rc = sl_gguf_i64(src->gguf, sp->gguf_key, &period, err);
        return rc < 0 ? rc : set_period(sp, period, hp, types, err);
    }
    /* some converters write 0 and 1 */
    struct sl_error not_integers = {0};
    const bool bools = sl_gguf_array(src->gguf, sp->gguf_key, SL_GGUF_ARRAY, &a, &not_integers) < 0;
    int rc = layer_array(src, sp, bools ? SL_GGUF_BOOL : SL_GGUF_ARRAY, hp->n_layers, &a, err);
    if (rc < 0)
        return rc;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        int64_t on = bools ? a.data[i] : 0;
        if (!bools && !sl_gguf_array_i64(&a, (uint64_t)i, &on))
            return sl_fail(err, SL_EFORMAT, "%s of layer %d is too large", sp->text, i);
        types[i] = on != 0 ? SL_LAYER_ON : SL_LAYER_OFF;
    }
    return 0;
}

/* What transformers calls the kinds of layers of hybrids since version 5. */
static const char *todays_word(const char *s)
{
    return strcmp(s, "mamba") == 0       ? "linear_attention"
           : strcmp(s, "attention") == 0 ? "full_attention"
                                         : s;
}

static bool is_layer_word(const struct sl_hparam_desc *row, const char *s, bool on)
{
    const char *word = sl_layer_word(row, on);
    return strcmp(s, word) == 0 || strcmp(todays_word(s), word) == 0;
}

static int read_layer_types(const struct source *src, const struct sl_hparam_desc *row,
                            const struct spelling *sp, struct sl_hparams *hp, struct sl_error *err)
{
    uint8_t *types = (uint8_t *)hp + row->offset;
    if (src->gguf != NULL)
        return gguf_layer_types(src, sp, hp, types, err);
    if (sp->value == NULL)
        return 0;
    if (json_is_integer(sp->value))
        return set_period(sp, json_integer_value(sp->value), hp, types, err);
    if (json_is_string(sp->value))
        return set_letters(sp, json_string_value(sp->value), hp, types, err);
    if (!json_is_array(sp->value))
        return wrong_type(sp, "a list of strings", err);
    const size_t n = json_array_size(sp->value);
    if (row->repeats ? n == 0 : !is_for_layers(sp->value, hp))
        return sl_fail(err, SL_EFORMAT, "%s has %zu entries, num_hidden_layers is %d", sp->text, n,
                       hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const char *s = json_string_value(json_array_get(sp->value, (size_t)i % n));
        if (s == NULL)
            return sl_fail(err, SL_EFORMAT, "%s[%d] must be a string", sp->text, i);
        if (is_layer_word(row, s, false))
            types[i] = SL_LAYER_OFF;
        else if (is_layer_word(row, s, true))
            types[i] = SL_LAYER_ON;
        else
            return sl_fail(err, SL_EUNSUPPORTED, "%s[%d] \"%.40s\" is not supported", sp->text, i,
                           s);
    }
    return 0;
}

/* The kind that a layer's word or letter says; -1: none. */
static int hparams_kind_of(const struct sl_hparam_desc *row, const json_t *list, int32_t layer)
{
    if (json_is_string(list)) {
        const char *at = strchr(row->letters, json_string_value(list)[layer]);
        return at != NULL ? (int)(at - row->letters) : -1;
    }
    const char *s = json_string_value(json_array_get(list, (size_t)layer));
    for (int i = 0; s != NULL && i < (int)SL_COUNT(row->words); i++)
        if (row->words[i] != NULL && strcmp(todays_word(s), row->words[i]) == 0)
            return i;
    return -1;
}

static int read_layer_kinds(const struct sl_hparam_desc *row, const struct spelling *sp,
                            struct sl_hparams *hp, struct sl_error *err)
{
    uint8_t *kinds = (uint8_t *)hp + row->offset;
    const bool letters = row->letters != NULL && json_is_string(sp->value);
    if (sp->value == NULL)
        return row->required ? sl_fail(err, SL_EFORMAT, "%s is missing", sp->text) : 0;
    if (!letters && !json_is_array(sp->value))
        return wrong_type(sp, "a list of strings, or a string", err);
    const size_t n = letters ? json_string_length(sp->value) : json_array_size(sp->value);
    if (n != (size_t)hp->n_layers)
        return sl_fail(err, SL_EFORMAT, "%s has %zu entries, there are %d layers", sp->text, n,
                       hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const int kind = hparams_kind_of(row, sp->value, i);
        if (kind < 0)
            return sl_fail(err, SL_EUNSUPPORTED, "%s: what it says of layer %d is not supported",
                           sp->text, i);
        kinds[i] = (uint8_t)kind;
    }
    return 0;
}

/* Lists may be longer than the model. */
static int read_layer_flags(const struct sl_hparam_desc *row, const struct spelling *sp,
                            struct sl_hparams *hp, struct sl_error *err)
{
    uint8_t *flags = (uint8_t *)hp + row->offset;
    if (sp->value == NULL)
        return 0;
    if (!json_is_array(sp->value))
        return wrong_type(sp, "a list of 0 and 1", err);
    if (json_array_size(sp->value) == 0) /* Llama 4: as if there were none */
        return 0;
    if (json_array_size(sp->value) < (size_t)hp->n_layers)
        return sl_fail(err, SL_EFORMAT, "%s has %zu entries, num_hidden_layers is %d", sp->text,
                       json_array_size(sp->value), hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const json_t *v = json_array_get(sp->value, (size_t)i);
        bool on = json_is_true(v) || (json_is_integer(v) && json_integer_value(v) == 1);
        bool off = json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0);
        if (!on && !off)
            return sl_fail(err, SL_EFORMAT, "%s[%d] must be 0 or 1", sp->text, i);
        flags[i] = on ? SL_LAYER_ON : SL_LAYER_OFF;
    }
    return 0;
}

static int set_layer_int(const struct sl_hparam_desc *row, const struct spelling *sp, int32_t layer,
                         int64_t x, int32_t *ints, struct sl_error *err)
{
    if (!((double)x >= row->min && (double)x <= row->max))
        return sl_fail(err, SL_EFORMAT, "%s of layer %d is %lld, must be %.15g to %.15g", sp->text,
                       layer, (long long)x, row->min, row->max);
    ints[layer] = (int32_t)x;
    return 0;
}

static int gguf_layer_ints(const struct source *src, const struct sl_hparam_desc *row,
                           const struct spelling *sp, int32_t n_layers, int32_t *ints,
                           struct sl_error *err)
{
    struct sl_gguf_array a;
    enum sl_gguf_type type;
    int64_t x = 0;
    int rc = sl_gguf_type_of(src->gguf, sp->gguf_key, &type);
    if (rc == 0)
        return row->required ? sl_fail(err, SL_EFORMAT, "%s is missing", sp->text) : 0;
    const bool list = type == SL_GGUF_ARRAY;
    rc = list ? layer_array(src, sp, SL_GGUF_ARRAY, n_layers, &a, err)
              : sl_gguf_i64(src->gguf, sp->gguf_key, &x, err);
    for (int32_t i = 0; i < n_layers && rc >= 0; i++) {
        if (list && !sl_gguf_array_i64(&a, (uint64_t)i, &x))
            return sl_fail(err, SL_EFORMAT, "%s of layer %d is too large", sp->text, i);
        rc = set_layer_int(row, sp, i, x, ints, err);
    }
    return rc < 0 ? rc : 0;
}

/* {"5": {"head_dim": 512}}: of some layers, what row->value names; of one kind of layers, by its
 * name, is not read. */
static int object_layer_ints(const struct sl_hparam_desc *row, const struct spelling *sp,
                             int32_t n_layers, int32_t *ints, struct sl_error *err)
{
    for (int32_t i = 0; i < n_layers; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        const json_t *v = json_object_get(json_object_get(sp->value, key), row->value);
        if (v == NULL || json_is_null(v))
            continue;
        if (!json_is_integer(v))
            return sl_fail(err, SL_EFORMAT, "%s[\"%d\"].%s must be an integer", sp->text, i,
                           row->value);
        int rc = set_layer_int(row, sp, i, json_integer_value(v), ints, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_layer_ints(const struct source *src, const struct sl_hparam_desc *row,
                           const struct spelling *sp, struct sl_hparams *hp, struct sl_error *err)
{
    int32_t *ints = (int32_t *)(void *)((uint8_t *)hp + row->offset);
    if (src->gguf != NULL)
        return gguf_layer_ints(src, row, sp, hp->n_layers, ints, err);
    const bool list = json_is_array(sp->value), said = sp->value != NULL || row->hf_def != 0;
    if (!said)
        return row->required ? sl_fail(err, SL_EFORMAT, "%s is missing", sp->text) : 0;
    if (row->value != NULL)
        return json_is_object(sp->value) ? object_layer_ints(row, sp, hp->n_layers, ints, err)
                                         : wrong_type(sp, "an object", err);
    const size_t n_listed = json_array_size(sp->value), n = (size_t)hp->n_layers;
    if (list && (row->longer ? n_listed < n : n_listed != n))
        return sl_fail(err, SL_EFORMAT, "%s has %zu entries, num_hidden_layers is %d", sp->text,
                       n_listed, hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const json_t *v = list ? json_array_get(sp->value, (size_t)i) : sp->value;
        if (v != NULL && !json_is_integer(v))
            return wrong_type(sp, "an integer or a list of integers", err);
        const int64_t x = v != NULL ? json_integer_value(v) : (int64_t)row->hf_def;
        int rc = set_layer_int(row, sp, i, x, ints, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int set_layer_float(const struct sl_hparam_desc *row, const struct spelling *sp,
                           int32_t layer, double x, double *floats, struct sl_error *err)
{
    if (!(x >= row->min && x <= row->max))
        return sl_fail(err, SL_EFORMAT, "%s of layer %d is %g, must be %g to %g", sp->text, layer,
                       x, row->min, row->max);
    floats[layer] = x;
    return 0;
}

static int read_layer_floats(const struct source *src, const struct sl_hparam_desc *row,
                             const struct spelling *sp, struct sl_hparams *hp, struct sl_error *err)
{
    double *floats = (double *)(void *)((uint8_t *)hp + row->offset);
    struct sl_gguf_array a = {.n = 0};
    enum sl_gguf_type type;
    double all = 0; /* a GGUF's one number */
    int rc = 0;
    const bool known = src->gguf != NULL && sl_gguf_type_of(src->gguf, sp->gguf_key, &type) != 0;
    const bool one = known && type != SL_GGUF_ARRAY;
    if (src->gguf != NULL && row->required && !known)
        return sl_fail(err, SL_EFORMAT, "%s is missing", sp->text);
    if (one)
        rc = sl_gguf_f64(src->gguf, sp->gguf_key, &all, err);
    else if (known)
        rc = layer_array(src, sp, SL_GGUF_F32, hp->n_layers, &a, err);
    const bool list = json_is_array(sp->value);
    if (sp->value != NULL && !list && !json_is_number(sp->value))
        return wrong_type(sp, "a number or a list of numbers", err);
    if (list && !is_for_layers(sp->value, hp))
        return sl_fail(err, SL_EFORMAT, "%s has %zu entries, num_hidden_layers is %d", sp->text,
                       json_array_size(sp->value), hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers && rc >= 0; i++) {
        const json_t *v = list ? json_array_get(sp->value, (size_t)i) : sp->value;
        const bool said = v != NULL && !json_is_null(v);
        double x = said ? json_number_value(v) : row->def;
        float f;
        if (said && !json_is_number(v))
            return sl_fail(err, SL_EFORMAT, "%s[%d] must be a number", sp->text, i);
        if (a.n > 0) {
            memcpy(&f, a.data + (size_t)i * sizeof f, sizeof f);
            x = (double)f;
        }
        x = one ? all : x;
        if (a.n > 0 || one || src->gguf == NULL)
            rc = set_layer_float(row, sp, i, x, floats, err);
    }
    return SL_MIN(rc, 0);
}

/* layer < 0: it was none. */
static int mark_layer(const struct sl_hparam_desc *row, const struct spelling *sp, size_t i,
                      int64_t layer, struct sl_hparams *hp, struct sl_error *err)
{
    uint8_t *marks = (uint8_t *)hp + row->offset;
    layer -= row->from_one;
    if (layer < 0 || layer >= hp->n_layers + hp->n_nextn)
        return sl_fail(err, SL_EFORMAT, "%s[%zu] must be a layer, %d to %d", sp->text, i,
                       row->from_one, hp->n_layers - 1 + row->from_one);
    if (layer < hp->n_layers)
        marks[layer] = row->def != 0 ? (uint8_t)row->def : 1;
    return 0;
}

static int read_layers(const struct sl_hparam_desc *row, const struct spelling *sp,
                       struct sl_hparams *hp, struct sl_error *err)
{
    const char *s = json_string_value(sp->value);
    int rc = 0;
    if (sp->value == NULL)
        return 0;
    if (s == NULL && !json_is_array(sp->value))
        return wrong_type(sp, "a list of layers", err);
    if (row->def != 0)
        memset((uint8_t *)hp + row->offset, SL_LAYER_OFF, (size_t)hp->n_layers);
    for (size_t i = 0; i < json_array_size(sp->value) && rc == 0; i++) {
        const json_t *v = json_array_get(sp->value, i);
        rc = mark_layer(row, sp, i, json_is_integer(v) ? json_integer_value(v) : -1, hp, err);
    }
    for (size_t i = 0; s != NULL && *s != '\0' && rc == 0; i++) { /* "3,4,5" */
        const size_t n = strcspn(s, ",");
        int64_t layer;
        rc = mark_layer(row, sp, i, sl_parse_i64(s, n, &layer) ? layer : -1, hp, err);
        s += s[n] == ',' ? n + 1 : n;
    }
    return rc;
}

static int read_layer_thetas(const struct sl_hparam_desc *row, const struct spelling *sp,
                             struct sl_hparams *hp, struct sl_error *err)
{
    uint8_t *rotated = (uint8_t *)hp + row->offset;
    if (sp->value == NULL)
        return 0;
    if (!json_is_array(sp->value))
        return wrong_type(sp, "a list of numbers", err);
    if (json_array_size(sp->value) != (size_t)hp->n_layers)
        return sl_fail(err, SL_EFORMAT, "%s has %zu entries, num_hidden_layers is %d", sp->text,
                       json_array_size(sp->value), hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const json_t *v = json_array_get(sp->value, (size_t)i);
        const double x = json_number_value(v);
        if (!json_is_number(v) || !(x == 0 || (x >= row->min && x <= row->max)))
            return sl_fail(err, SL_EFORMAT, "%s[%d] must be 0 or a number, %.15g to %.15g",
                           sp->text, i, row->min, row->max);
        if (x != 0 && hp->layer_theta != 0 && x != hp->layer_theta)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "%s[%d] is %.15g where a layer before it has %.15g: several thetas are "
                           "not supported",
                           sp->text, i, x, hp->layer_theta);
        rotated[i] = x != 0 ? SL_LAYER_ON : SL_LAYER_OFF;
        hp->layer_theta = x != 0 ? x : hp->layer_theta;
    }
    return 0;
}

static int read_labels(const struct sl_hparam_desc *row, const struct spelling *sp,
                       struct sl_hparams *hp, struct sl_error *err)
{
    int32_t *at = (int32_t *)(void *)((uint8_t *)hp + row->offset);
    *at = (int32_t)row->def;
    if (sp->value == NULL)
        return 0;
    if (!json_is_object(sp->value))
        return wrong_type(sp, "an object", err);
    size_t n = json_object_size(sp->value);
    if (n < 1 || n > SL_MAX_LABELS)
        return sl_fail(err, SL_EFORMAT, "%s has %zu labels, must be 1 to %d", sp->text, n,
                       SL_MAX_LABELS);
    *at = (int32_t)n;
    return 0;
}

static int hparams_read_row(const struct source *src, const struct sl_hparam_desc *row,
                            struct sl_hparams *hp, struct sl_error *err)
{
    struct spelling sp = {.value = NULL};
    if (src->gguf != NULL ? row->gguf == NULL : row->hf[0] == NULL) {
        if (row->type == SL_HP_INT || row->type == SL_HP_COUNT ||
            row->type == SL_HP_SAME) /* unless tensors say it (counts_of_gguf) */
            *(int32_t *)(void *)((uint8_t *)hp + row->offset) = (int32_t)row->def;
        if (row->type == SL_HP_FLOAT)
            *(double *)(void *)((uint8_t *)hp + row->offset) = row->def;
        return row->type == SL_HP_ACT ? read_act(src, row, &sp, hp, err) : 0;
    }
    if (hparams_spell(src, row, &sp, err) != 0)
        return err->code;
    switch (row->type) {
    case SL_HP_SAME:
        if (same_number(hp, &sp, err) != 0)
            return err->code;
        return hparams_read_number(src, row, &sp, hp, err);
    case SL_HP_INT:
    case SL_HP_COUNT:
    case SL_HP_FLOAT:
        return hparams_read_number(src, row, &sp, hp, err);
    case SL_HP_BOOL:
    case SL_HP_SWITCH:
    case SL_HP_ONLY:
    case SL_HP_HAS:
    case SL_HP_HAS_NOT:
        return read_flag(src, row, &sp, hp, err);
    case SL_HP_CHOICE:
        return read_choice(row, &sp, err);
    case SL_HP_EITHER:
        return read_either(row, &sp, hp, err);
    case SL_HP_ACT:
        return read_act(src, row, &sp, hp, err);
    case SL_HP_LABELS:
        return read_labels(row, &sp, hp, err);
    case SL_HP_LAYER_TYPES:
        return read_layer_types(src, row, &sp, hp, err);
    case SL_HP_LAYER_INTS:
        return read_layer_ints(src, row, &sp, hp, err);
    case SL_HP_LAYER_FLOATS:
        return read_layer_floats(src, row, &sp, hp, err);
    case SL_HP_LAYER_KINDS:
        return src->gguf != NULL ? 0 : read_layer_kinds(row, &sp, hp, err);
    case SL_HP_LAYER_FLAGS:
        return read_layer_flags(row, &sp, hp, err);
    case SL_HP_LAYERS:
        return read_layers(row, &sp, hp, err);
    case SL_HP_LAYER_THETAS:
        return read_layer_thetas(row, &sp, hp, err);
    }
    return 0;
}

/* Where a GGUF's tensor says how many there are of something. */
static int32_t *counted_by(struct sl_hparams *hp, enum sl_slot slot, int32_t *max)
{
    *max = slot == SL_SLOT_EMBED || slot == SL_SLOT_LAYER_EMBED ? SL_MAX_VOCAB
           : slot == SL_SLOT_LAUREL_LEFT                        ? SL_MAX_HIDDEN
                                                                : SL_MAX_LABELS;
    return slot == SL_SLOT_EMBED         ? &hp->n_vocab
           : slot == SL_SLOT_LAYER_EMBED ? &hp->n_layer_vocab
           : slot == SL_SLOT_LAUREL_LEFT ? &hp->laurel_rank
           : slot == SL_SLOT_TYPES       ? &hp->n_types
           : slot == SL_SLOT_CLASSIFIER  ? &hp->n_labels
                                         : NULL;
}

/* A GGUF's vocabulary is as wide as its embedding, and so are others. */
static int counts_of_gguf(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc,
                          struct sl_hparams *hp, struct sl_error *err)
{
    for (int32_t i = 0; i < desc->n_weights; i++) {
        const struct sl_weight_desc *w = &desc->weights[i];
        int32_t max, *count = counted_by(hp, w->slot, &max);
        if (count == NULL || w->gguf == NULL || (w->when & ~hp->has) != 0)
            continue;
        char first[SL_MAX_TENSOR_NAME];
        sl_bind_name(w->gguf, 0, 0, first); /* of a layer's: the first one's */
        const struct sl_ckpt_tensor *t = sl_ckpt_find(ckpt, first);
        if (t == NULL)
            return 0; /* bind.c says what is missing and why */
        if (t->dims[0] < 1 || t->dims[0] > max)
            return sl_fail(err, SL_ELIMIT, "tensor \"%s\" has %lld rows, must be 1 to %d", first,
                           (long long)t->dims[0], max);
        *count = (int32_t)t->dims[0];
    }
    return 0;
}

int sl_hparams_check(const struct sl_hparams *hp, struct sl_error *err)
{
    const char *heads = hp->from_gguf ? "GGUF: attention.head_count" : "num_attention_heads";
    const char *kv = hp->from_gguf ? "attention.head_count_kv" : "num_key_value_heads";
    const char *hd = hp->from_gguf ? "GGUF: attention.key_length" : "head_dim";

    if (hp->n_heads == 0) /* no layer has attention */
        return 0;
    if (hp->n_heads % hp->n_kv_heads != 0)
        return sl_fail(err, SL_EFORMAT, "%s (%d) is not a multiple of %s (%d)", heads, hp->n_heads,
                       kv, hp->n_kv_heads);
    if (hp->head_dim < 2 || hp->head_dim > SL_MAX_HEAD_DIM || hp->head_dim % 2 != 0)
        return sl_fail(err, SL_EFORMAT, "%s is %d, must be even and 2 to %d", hd, hp->head_dim,
                       SL_MAX_HEAD_DIM);
    if (hp->v_dim != 0 && hp->v_dim != hp->head_dim)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "GGUF: attention.value_length (%d) that differs from attention.key_length "
                       "(%d) is not supported",
                       hp->v_dim, hp->head_dim);
    return 0;
}

/* The width of LFM2's MLP, which its config says in the terms of the first Llama; that of LFM2-MoE
 * does not. */
static int fit_intermediate(const struct sl_model_name *name, struct sl_hparams *hp,
                            struct sl_error *err)
{
    const double scale = hp->intermediate_scale;
    if (!hp->fit_intermediate || (name->has & SL_HAS_EXPERTS) != 0)
        return 0;
    int64_t n = 2 * (int64_t)hp->intermediate / 3;
    if (scale != 0) {
        const int64_t step = SL_MAX(hp->intermediate_step, 1);
        n = (int64_t)(scale * (double)n);
        n = SL_CEIL_DIV(n, step) * step;
    }
    if (n < 1 || n > 4 * SL_MAX_HIDDEN)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: block_auto_adjust_ff_dim makes an intermediate_size of %lld, "
                       "must be 1 to %d",
                       (long long)n, 4 * SL_MAX_HIDDEN);
    hp->intermediate = (int32_t)n;
    return 0;
}

/* Heads of latent attention as they would be. GGUF files say what is kept of a token as one key
 * head, those of before 2025-04 the heads themselves. */
static int derive_latent(struct sl_hparams *hp, struct sl_error *err)
{
    if (hp->from_gguf) {
        hp->nope_dim = (hp->mla_dim != 0 ? hp->mla_dim : hp->head_dim) - hp->rope_dims;
        hp->value_dim = hp->value_dim != 0 ? hp->value_dim : hp->v_dim;
    }
    hp->head_dim = hp->nope_dim + hp->rope_dims;
    hp->v_dim = 0;
    hp->n_kv_heads = 1;
    if (hp->nope_dim < 1 || hp->rope_dims < 0 || hp->rope_dims % 2 != 0 || hp->value_dim < 1 ||
        hp->kv_rank + hp->rope_dims > SL_MAX_HEAD_DIM)
        return sl_fail(err, SL_EFORMAT,
                       "latent attention with heads of %d + %d dimensions, values of %d and a rank "
                       "of %d (dimensions at least 1, rotated ones even, rank and these at most "
                       "%d together)",
                       hp->nope_dim, hp->rope_dims, hp->value_dim, hp->kv_rank, SL_MAX_HEAD_DIM);
    return 0;
}

static int hparams_derive(const struct sl_model_name *name, struct sl_hparams *hp,
                          struct sl_error *err)
{
    if (hp->kv_rank > 0 && derive_latent(hp, err) != 0)
        return err->code;
    if (hp->n_heads == 0)
        hp->n_heads = hp->layer_heads[0];
    for (int32_t i = 0; i < hp->n_layers && hp->n_kv_heads == 0; i++)
        hp->n_kv_heads = hp->layer_kv_heads[i]; /* the first layer's that has attention */
    if (hp->n_kv_heads == 0)
        hp->n_kv_heads = hp->n_heads;
    if (hp->intermediate == 0)
        hp->intermediate = hp->layer_intermediate[0];
    if (hp->intermediate == 0) /* all layers have experts */
        hp->intermediate = hp->expert_intermediate;
    int rc = fit_intermediate(name, hp, err);
    if (rc != 0)
        return rc;
    if (hp->layer_width > 0)
        hp->has |= SL_HAS_LAYER_INPUTS;
    if ((hp->has & SL_HAS_CLASSIFIER) != 0 || name->no_head)
        hp->has &= ~(unsigned)SL_HAS_HEAD; /* in its place */
    if (hp->head_dim == 0 && name->head_dim != 0 && !hp->from_gguf)
        hp->head_dim = name->head_dim;
    if (hp->head_dim == 0 && hp->n_heads > 0) {
        if (hp->hidden % hp->n_heads != 0)
            return sl_fail(
                err, SL_EFORMAT,
                "%s (%d) is not a multiple of %s (%d) and no head dimension is given",
                hp->from_gguf ? "GGUF: embedding_length" : "config.json: hidden_size", hp->hidden,
                hp->from_gguf ? "attention.head_count" : "num_attention_heads", hp->n_heads);
        hp->head_dim = hp->hidden / hp->n_heads;
    }
    return sl_hparams_check(hp, err);
}

/* Of a larger model either config may say that the head is tied, and their defaults differ: what
 * counts is whether the file has one. */
static void head_of_file(const struct sl_ckpt *ckpt, struct sl_hparams *hp)
{
    static const char *const names[] = {"lm_head.weight", "language_model.lm_head.weight"};
    hp->has &= ~(unsigned)SL_HAS_HEAD;
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (sl_ckpt_find(ckpt, names[i]) != NULL || sl_ckpt_unsupported(ckpt, names[i]) != NULL)
            hp->has |= SL_HAS_HEAD;
}

int sl_hparams_read(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc,
                    const struct sl_model_name *name, struct sl_hparams *hp, struct sl_error *err)
{
    struct source src = {
        .config = sl_ckpt_config(ckpt), .arch = name->gguf_architecture, .name = name};
    int rc = 0;

    memset(hp, 0, sizeof *hp);
    hp->has = name->has;
    hp->from_gguf = sl_ckpt_kind(ckpt) == SL_CKPT_GGUF;
    if (hp->from_gguf)
        src.gguf = sl_ckpt_gguf(ckpt);
    else
        rc = sl_quant_read_config(ckpt, hp, err);
    if (!hp->from_gguf && name->hf_config != NULL) {
        src.config = json_object_get(src.config, name->hf_config);
        if (!json_is_object(src.config))
            return sl_fail(err, SL_EFORMAT, "config.json: %s must be an object", name->hf_config);
    }
    for (int32_t i = 0; i < desc->n_hparams && rc == 0; i++)
        rc = hparams_read_row(&src, &desc->hparams[i], hp, err);
    if (rc == 0 && hp->from_gguf && hp->n_nextn >= hp->n_layers)
        return sl_fail(err, SL_EFORMAT,
                       "GGUF: %s.block_count is %d, of which nextn_predict_layers %d", src.arch,
                       hp->n_layers, hp->n_nextn);
    if (rc == 0 && !hp->from_gguf && name->hf_config != NULL)
        head_of_file(ckpt, hp);
    if (rc == 0 && !hp->from_gguf)
        hp->has |= sl_bind_hf_has(ckpt, desc, name->hf_shown, hp->n_layers);
    if (rc == 0 && hp->from_gguf) {
        hp->n_layers -= hp->n_nextn;
        hp->has |= name->gguf_has | sl_bind_gguf_has(ckpt, desc, hp->n_layers, hp->layer_has);
        rc = counts_of_gguf(ckpt, desc, hp, err);
    }
    if (rc == 0)
        rc = hparams_derive(name, hp, err);
    for (int32_t i = 0; i < desc->n_ropes && rc == 0; i++) {
        struct sl_rope_desc rope = desc->ropes[i];
        if (name->rope_theta != 0 && !hp->from_gguf)
            rope.theta = name->rope_theta;
        rc = hp->from_gguf ? sl_rope_read_gguf(src.gguf, src.arch, &rope, hp, &hp->ropes[i], err)
                           : sl_rope_read_hf(src.config, &rope, hp, &hp->ropes[i], err);
    }
    return rc;
}
