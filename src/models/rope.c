/* SPDX-License-Identifier: MIT
 * Rotary embedding: its parameters in both spellings and the table of frequencies.
 *
 * The table is computed as transformers does it: float32 steps in the same order, powers rounded
 * once from double. One case departs: a llama3-scaled frequency is the plain one divided by a
 * float32 divisor, because that divisor is what a GGUF carries (rope_freqs.weight); so a folder and
 * a GGUF of one model rotate by the same bits. The difference to transformers is one rounding.
 *
 * Sources: transformers modeling_rope_utils, YaRN (Peng et al. 2023), the GGUF key list.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TWO_PI 6.283185307179586
#define STILL  1e30f /* divisor of pairs that do not turn, in GGUF files */

const struct sl_rope_desc sl_rope_one[1] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 10000, .scaled = true},
};

const struct sl_rope_desc sl_rope_gemma4[2] = {
    {.kind = "full_attention",
     .hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 1000000,
     .scaled = true},
    {.kind = "sliding_attention",
     .hf_theta = "rope_local_base_freq",
     .gguf_theta = "rope.freq_base_swa",
     .theta = 10000},
};

/* ---------------------------------------------------------------- config.json */

struct dict { /* rope_parameters or rope_scaling */
    const json_t *obj;
    const char *name;
};

/* Reads a number if it is there; *out keeps its default otherwise. */
static int dict_number(const struct dict *d, const char *key, bool required, double min, double max,
                       double *out, struct sl_error *err)
{
    const json_t *v = json_object_get(d->obj, key);
    if (v == NULL || json_is_null(v)) {
        if (required)
            return sl_fail(err, SL_EFORMAT, "config.json: %s.%s is missing", d->name, key);
        return 0;
    }
    if (!json_is_number(v))
        return sl_fail(err, SL_EFORMAT, "config.json: %s.%s must be a number", d->name, key);
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return sl_fail(err, SL_EFORMAT, "config.json: %s.%s is %.15g, must be %.15g to %.15g",
                       d->name, key, x, min, max);
    *out = x;
    return 0;
}

static int top_number(const json_t *config, const char *key, double min, double max, double *out,
                      struct sl_error *err)
{
    const json_t *v;
    if (sl_config_get(config, key, &v, err) != 0)
        return err->code;
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_number(v))
        return sl_fail(err, SL_EFORMAT, "config.json: %s must be a number", key);
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return sl_fail(err, SL_EFORMAT, "config.json: %s is %.15g, must be %.15g to %.15g", key, x,
                       min, max);
    *out = x;
    return 0;
}

/* As top_number; a list has a number for each layer, of which those of the table's kind count. */
static int kind_number(const json_t *config, const char *key, const struct sl_rope_desc *desc,
                       const struct sl_hparams *hp, double min, double max, double *out,
                       struct sl_error *err)
{
    const json_t *list;
    if (sl_config_get(config, key, &list, err) != 0)
        return err->code;
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || desc->kind == NULL)
        return top_number(config, key, min, max, out, err);
    if (n != (size_t)hp->n_layers && n != (size_t)(hp->n_layers + hp->n_nextn))
        return sl_fail(err, SL_EFORMAT, "config.json: %s has %zu entries, num_hidden_layers is %d",
                       key, n, hp->n_layers);
    const bool windowed = strcmp(desc->kind, "sliding_attention") == 0;
    double x = 0;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (windowed != (hp->layer_types[i] == SL_LAYER_ON))
            continue;
        if (!json_is_number(v) || !(json_number_value(v) >= min && json_number_value(v) <= max))
            return sl_fail(err, SL_EFORMAT, "config.json: %s[%d] must be a number, %.15g to %.15g",
                           key, i, min, max);
        if (x != 0 && json_number_value(v) != x)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "config.json: %s[%d] is %.15g where another layer of %s has %.15g", key,
                           i, json_number_value(v), desc->kind, x);
        x = json_number_value(v);
    }
    *out = x != 0 ? x : *out;
    return 0;
}

static int scaling_of(const char *what, const char *s, size_t n, enum sl_rope_scaling *out,
                      struct sl_error *err)
{
    static const struct {
        const char *name;
        enum sl_rope_scaling scaling;
    } known[] = {
        {"default", SL_ROPE_PLAIN}, {"none", SL_ROPE_PLAIN},
        {"linear", SL_ROPE_LINEAR}, {"llama3", SL_ROPE_LLAMA3},
        {"yarn", SL_ROPE_YARN},     {"longrope", SL_ROPE_LONG},
        {"su", SL_ROPE_LONG},       {"proportional", SL_ROPE_PROPORTIONAL},
        {"dynamic", SL_ROPE_PLAIN}, /* that is what it is up to the
                                                                   model's context */
    };
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        if (strlen(known[i].name) == n && memcmp(known[i].name, s, n) == 0) {
            *out = known[i].scaling;
            return 0;
        }
    }
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%s \"%.*s\" is not supported (supported: default, linear, llama3, yarn, "
                   "longrope, proportional, dynamic)",
                   what, (int)SL_MIN(n, 40), s);
}

/* A list of LongRoPE: a number for each frequency. */
static int dict_factors(const struct dict *d, const char *key, int32_t n, float *out,
                        struct sl_error *err)
{
    const json_t *list = json_object_get(d->obj, key);
    if (list == NULL || json_is_null(list))
        return sl_fail(err, SL_EFORMAT, "config.json: %s.%s is missing", d->name, key);
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return sl_fail(err, SL_EFORMAT, "config.json: %s.%s must be a list of %d numbers", d->name,
                       key, n);
    for (int32_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        const double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= SL_ROPE_FACTOR_MIN && x <= SL_ROPE_FACTOR_MAX))
            return sl_fail(err, SL_EFORMAT, "config.json: %s.%s[%d] must be a number, %g to %g",
                           d->name, key, i, SL_ROPE_FACTOR_MIN, SL_ROPE_FACTOR_MAX);
        out[i] = (float)x;
    }
    return 0;
}

/* How much LongRoPE sharpens the softmax, where no file says it. */
static double long_attention_factor(double factor, double original)
{
    return factor <= 1 || original <= 1 ? 1 : sqrt(1 + log(factor) / log(original));
}

static int check_long(const struct sl_hparams *hp, const struct sl_rope_params *p,
                      struct sl_error *err)
{
    const int32_t n = (p->n_dims != 0 ? p->n_dims : hp->head_dim) / 2;
    if (n <= SL_MAX_ROPE_FACTORS)
        return 0;
    return sl_fail(err, SL_ELIMIT, "longrope with %d frequencies, at most %d are supported", n,
                   SL_MAX_ROPE_FACTORS);
}

static int read_long(const json_t *config, const struct dict *d, const struct sl_hparams *hp,
                     struct sl_rope_params *p, struct sl_error *err)
{
    const int32_t n = (p->n_dims != 0 ? p->n_dims : hp->head_dim) / 2;
    double factor = 0;
    int rc = check_long(hp, p, err);
    p->original_context = hp->context;
    if (rc != 0 ||
        (rc = dict_number(d, "original_max_position_embeddings", false, 1, SL_MAX_CONTEXT,
                          &p->original_context, err)) ||
        (rc = top_number(config, "original_max_position_embeddings", 1, SL_MAX_CONTEXT,
                         &p->original_context, err)) ||
        (rc = dict_number(d, "factor", false, 1e-3, 1e6, &factor, err)) ||
        (rc = dict_number(d, "attention_factor", false, 1e-3, 1e3, &p->attention_factor, err)) ||
        (rc = dict_number(d, "short_mscale", false, 1e-3, 1e3, &p->short_mscale, err)) ||
        (rc = dict_number(d, "long_mscale", false, 1e-3, 1e3, &p->long_mscale, err)) ||
        (rc = dict_factors(d, "short_factor", n, p->short_factors, err)) ||
        (rc = dict_factors(d, "long_factor", n, p->long_factors, err)))
        return rc;
    if (factor == 0)
        factor = hp->context / p->original_context;
    if (p->attention_factor == 0)
        p->attention_factor = long_attention_factor(factor, p->original_context);
    return 0;
}

static int read_scaling(const json_t *config, const struct dict *d, double context,
                        struct sl_rope_params *p, struct sl_error *err)
{
    int rc;
    if (p->scaling == SL_ROPE_PLAIN)
        return 0;
    p->factor = 1;
    if ((rc = dict_number(d, "factor", p->scaling != SL_ROPE_PROPORTIONAL, 1, 1e6, &p->factor,
                          err)) != 0)
        return rc;
    if (p->scaling == SL_ROPE_LINEAR || p->scaling == SL_ROPE_PROPORTIONAL)
        return 0;
    p->original_context = context;
    if ((rc = dict_number(d, "original_max_position_embeddings", false, 1, SL_MAX_CONTEXT,
                          &p->original_context, err)) != 0 ||
        (rc = top_number(config, "original_max_position_embeddings", 1, SL_MAX_CONTEXT,
                         &p->original_context, err)) != 0)
        return rc;
    if (p->scaling == SL_ROPE_LLAMA3) {
        if ((rc = dict_number(d, "low_freq_factor", true, 1e-3, 1e6, &p->low_freq_factor, err)) ||
            (rc = dict_number(d, "high_freq_factor", true, 1e-3, 1e6, &p->high_freq_factor, err)))
            return rc;
        if (p->high_freq_factor < p->low_freq_factor) /* equal ones, as Llama 4 has, are a step */
            return sl_fail(err, SL_EFORMAT,
                           "config.json: %s.high_freq_factor (%g) must not be below "
                           "low_freq_factor (%g)",
                           d->name, p->high_freq_factor, p->low_freq_factor);
        return 0;
    }
    p->beta_fast = 32;
    p->beta_slow = 1;
    p->truncate = true;
    const json_t *truncate = json_object_get(d->obj, "truncate");
    if (truncate != NULL && !json_is_null(truncate)) {
        if (!json_is_boolean(truncate))
            return sl_fail(err, SL_EFORMAT, "config.json: %s.truncate must be true or false",
                           d->name);
        p->truncate = json_is_true(truncate);
    }
    if ((rc = dict_number(d, "beta_fast", false, 1e-3, 1e6, &p->beta_fast, err)) ||
        (rc = dict_number(d, "beta_slow", false, 1e-3, 1e6, &p->beta_slow, err)) ||
        (rc = dict_number(d, "attention_factor", false, 1e-3, 1e3, &p->attention_factor, err)) ||
        (rc = dict_number(d, "mscale", false, 0, 1e3, &p->mscale, err)))
        return rc;
    return dict_number(d, "mscale_all_dim", false, 0, 1e3, &p->mscale_all_dim, err);
}

/* Where the parameters of a table stand: transformers 5 writes rope_parameters, with one object for
 * each kind of layer where a model has several; earlier versions rope_scaling beside rope_theta. */
static int find_dict(const json_t *config, const struct sl_rope_desc *desc, struct dict *d,
                     struct sl_error *err)
{
    *d = (struct dict){json_object_get(config, "rope_scaling"), "rope_scaling"};
    if (d->obj == NULL || json_is_null(d->obj))
        *d = (struct dict){json_object_get(config, "rope_parameters"), "rope_parameters"};
    if (d->obj != NULL && !json_is_null(d->obj) && !json_is_object(d->obj))
        return sl_fail(err, SL_EFORMAT, "config.json: %s must be an object", d->name);
    bool by_kind = json_is_object(json_object_get(d->obj, "full_attention")) ||
                   json_is_object(json_object_get(d->obj, "sliding_attention")) ||
                   (desc->kind != NULL && json_is_object(json_object_get(d->obj, desc->kind)));
    if (by_kind && desc->kind == NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: %s per layer type is not supported by this family", d->name);
    if (by_kind) {
        d->obj = json_object_get(d->obj, desc->kind);
        if (d->obj != NULL && !json_is_null(d->obj) && !json_is_object(d->obj))
            return sl_fail(err, SL_EFORMAT, "config.json: %s.%s must be an object", d->name,
                           desc->kind);
        d->name = desc->kind;
    } else if (!desc->scaled) {
        d->obj = NULL;
    }
    return 0;
}

/* Which dimensions of a head are rotated: as many as files count (hp->rope_dims), or that share. */
static int read_dims(const struct sl_rope_desc *desc, const struct sl_hparams *hp, double partial,
                     struct sl_rope_params *p, struct sl_error *err)
{
    const int32_t n = hp->rope_dims != 0 ? hp->rope_dims : (int32_t)(hp->head_dim * partial);
    if (n == hp->head_dim)
        return 0;
    if (desc->partial == 0 && hp->rope_dims == 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: partial_rotary_factor %g is not supported by this family",
                       partial);
    if (desc->partial == 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "%s (%d) that differs from %s (%d) is not supported by this family",
                       hp->from_gguf ? "GGUF: rope.dimension_count" : "config.json: rotary_dim", n,
                       hp->from_gguf ? "attention.key_length" : "head_dim", hp->head_dim);
    if (n < 2 || n > hp->head_dim || n % 2 != 0)
        return sl_fail(err, SL_EFORMAT,
                       "%d dimensions of a head of %d are rotated, must be even and 2 to %d", n,
                       hp->head_dim, hp->head_dim);
    p->n_dims = n;
    return 0;
}

/* What some families have: Hunyuan a fixed change of theta, which it calls dynamic; Ministral 3 the
 * temperature of queries. */
static int read_more(const struct dict *d, const json_t *type, const struct sl_hparams *hp,
                     struct sl_rope_params *p, struct sl_error *err)
{
    const double n = p->n_dims != 0 ? p->n_dims : hp->head_dim;
    double alpha = 0;
    int rc = dict_number(d, "alpha", false, 0, 1e6, &alpha, err);
    if (rc == 0)
        rc = dict_number(d, "llama_4_scaling_beta", false, 0, 10, &p->q_beta, err);
    if (rc == 0 && p->q_beta != 0)
        rc = dict_number(d, "original_max_position_embeddings", true, 1, SL_MAX_CONTEXT,
                         &p->original_context, err);
    if (rc == 0 && alpha > 0 && n > 2 && json_is_string(type) &&
        strcmp(json_string_value(type), "dynamic") == 0)
        p->theta = (double)(float)(p->theta * pow(alpha, n / (n - 2))); /* as a GGUF holds it */
    return rc;
}

int sl_rope_read_hf(const json_t *config, const struct sl_rope_desc *desc,
                    const struct sl_hparams *hp, struct sl_rope_params *p, struct sl_error *err)
{
    struct dict d;
    double partial = desc->partial != 0 ? desc->partial : 1;
    int rc = find_dict(config, desc, &d, err);
    p->theta = desc->theta;
    if (rc == 0 && desc->hf_absent != NULL && (d.obj == NULL || json_is_null(d.obj))) {
        *p = *desc->hf_absent;
        return 0;
    }
    if (rc != 0 || (rc = kind_number(config, desc->hf_theta, desc, hp, 2, 1e15, &p->theta, err)) ||
        (rc = dict_number(&d, "rope_theta", false, 2, 1e15, &p->theta, err)) ||
        (rc = top_number(config, "partial_rotary_factor", 0, 1, &partial, err)) ||
        (desc->hf_partial != NULL &&
         (rc = kind_number(config, desc->hf_partial, desc, hp, 0, 1, &partial, err))) ||
        (rc = dict_number(&d, "partial_rotary_factor", false, 0, 1, &partial, err)))
        return rc;
    if (hp->layer_theta != 0)
        p->theta = hp->layer_theta;
    const char *key = json_object_get(d.obj, "rope_type") ? "rope_type" : "type";
    const json_t *type = json_object_get(d.obj, key);
    if (type != NULL && !json_is_null(type)) {
        char what[64];
        snprintf(what, sizeof what, "config.json: %s.%s", d.name, key);
        if (!json_is_string(type))
            return sl_fail(err, SL_EFORMAT, "%s must be a string", what);
        rc = scaling_of(what, json_string_value(type), json_string_length(type), &p->scaling, err);
        if (rc != 0)
            return rc;
    }
    if ((rc = read_more(&d, type, hp, p, err)) != 0)
        return rc;
    if (p->scaling == SL_ROPE_YARN && json_object_get(d.obj, "long_factor") != NULL)
        p->scaling = SL_ROPE_LONG; /* as the first Phi-3 files call it */
    p->turning = partial;
    if (p->scaling != SL_ROPE_PROPORTIONAL && (rc = read_dims(desc, hp, partial, p, err)) != 0)
        return rc;
    rc = p->scaling == SL_ROPE_LONG ? read_long(config, &d, hp, p, err)
                                    : read_scaling(config, &d, hp->context, p, err);
    if (desc->plain_factor && p->scaling == SL_ROPE_YARN && p->attention_factor == 0)
        p->attention_factor = 1;
    return rc;
}

/* ---------------------------------------------------------------- GGUF */

static int gguf_number(const struct sl_gguf *g, const char *arch, const char *suffix, double min,
                       double max, double *out, struct sl_error *err)
{
    char key[128];
    double x;
    snprintf(key, sizeof key, "%s.%s", arch, suffix);
    int rc = sl_gguf_f64(g, key, &x, err);
    if (rc <= 0)
        return rc;
    if (!(x >= min && x <= max))
        return sl_fail(err, SL_EFORMAT, "GGUF: %s is %.15g, must be %.15g to %.15g", key, x, min,
                       max);
    *out = x;
    return 0;
}

/* Integer metadata (a context length) where the getters for floats would refuse the type. */
static int gguf_integer(const struct sl_gguf *g, const char *arch, const char *suffix, int64_t max,
                        double *out, struct sl_error *err)
{
    char key[128];
    int64_t i;
    snprintf(key, sizeof key, "%s.%s", arch, suffix);
    int rc = sl_gguf_i64(g, key, &i, err);
    if (rc <= 0)
        return rc;
    if (i < 1 || i > max)
        return sl_fail(err, SL_EFORMAT, "GGUF: %s is %lld, must be 1 to %lld", key, (long long)i,
                       (long long)max);
    *out = (double)i;
    return 0;
}

/* g of the YaRN paper: how much longer contexts sharpen the softmax. */
static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The factors are tensors, which are read when the model is loaded. */
static int gguf_long(const struct sl_gguf *g, const char *arch, const struct sl_hparams *hp,
                     struct sl_rope_params *p, struct sl_error *err)
{
    if ((hp->has & SL_HAS_ROPE_FACTORS) == 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "GGUF: %s.rope.scaling.type \"longrope\" without rope_factors_short.weight "
                       "and rope_factors_long.weight, or of a family that does not have them",
                       arch);
    int rc = check_long(hp, p, err);
    p->scaling = SL_ROPE_LONG;
    p->original_context = hp->context;
    if (rc != 0 || (rc = gguf_integer(g, arch, "rope.scaling.original_context_length",
                                      SL_MAX_CONTEXT, &p->original_context, err)))
        return rc;
    p->attention_factor =
        long_attention_factor(hp->context / p->original_context, p->original_context);
    return gguf_number(g, arch, "rope.scaling.attn_factor", 1e-3, 1e3, &p->attention_factor, err);
}

int sl_rope_read_gguf(const struct sl_gguf *g, const char *arch, const struct sl_rope_desc *desc,
                      const struct sl_hparams *hp, struct sl_rope_params *p, struct sl_error *err)
{
    char key[128];
    const char *s;
    size_t n;
    double attn = 0;
    int rc;

    p->theta = desc->theta;
    p->factor = 1;
    rc = gguf_number(g, arch, desc->gguf_theta, 2, 1e15, &p->theta, err);
    if (rc == 0)
        rc = read_dims(desc, hp, desc->gguf_partial != 0 ? desc->gguf_partial : 1, p, err);
    if (rc != 0 || !desc->scaled)
        return rc;
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    if ((rc = sl_gguf_str(g, key, &s, &n, err)) < 0)
        return rc;
    if (rc == 1) {
        char what[140];
        snprintf(what, sizeof what, "GGUF: %s", key);
        if ((rc = scaling_of(what, s, n, &p->scaling, err)) != 0)
            return rc;
    }
    if (p->scaling == SL_ROPE_LONG || (hp->has & SL_HAS_ROPE_FACTORS) != 0)
        return gguf_long(g, arch, hp, p, err);
    if (p->scaling == SL_ROPE_LLAMA3 || p->scaling == SL_ROPE_PROPORTIONAL)
        return sl_fail(err, SL_EUNSUPPORTED, /* converters write rope_freqs.weight instead */
                       "GGUF: %s \"%.*s\" is not supported", key, (int)n, s);
    if (p->scaling == SL_ROPE_PLAIN) { /* files of 2023 have only this */
        rc = gguf_number(g, arch, "rope.scale_linear", 1, 1e6, &p->factor, err);
        p->scaling = p->factor != 1 ? SL_ROPE_LINEAR : SL_ROPE_PLAIN;
        return rc;
    }
    if ((rc = gguf_number(g, arch, "rope.scaling.factor", 1, 1e6, &p->factor, err)) != 0)
        return rc;
    if (p->scaling == SL_ROPE_LINEAR)
        return 0;
    p->original_context = hp->context;
    p->beta_fast = 32;
    p->beta_slow = 1;
    p->truncate = !desc->unrounded;
    if ((rc = gguf_integer(g, arch, "rope.scaling.original_context_length", SL_MAX_CONTEXT,
                           &p->original_context, err)) ||
        (rc = gguf_number(g, arch, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &p->beta_fast, err)) ||
        (rc = gguf_number(g, arch, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &p->beta_slow, err)) ||
        (rc = gguf_number(g, arch, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, &attn, err)) ||
        (rc = gguf_number(g, arch, "rope.scaling.attn_factor", 1e-3, 1e3, &attn, err)) ||
        (rc = gguf_number(g, arch, "rope.scaling.yarn_log_multiplier", 0, 1e3, &p->mscale, err)) ||
        (rc = gguf_number(g, arch, "attention.temperature_scale", 0, 10, &p->q_beta, err)))
        return rc;
    p->mscale *= desc->tenth_multiplier ? 10 : 1;
    p->mscale_all_dim = p->mscale; /* a GGUF has one for both */
    if (attn != 0) /* here it multiplies the default, in config.json it replaces it */
        p->attention_factor = attn * yarn_mscale(p->factor, 1);
    return 0;
}

/* ---------------------------------------------------------------- tables */

void sl_model_set_context(struct sl_model *m, int32_t context)
{
    SL_ASSERT(m->be == NULL);
    m->facts.served = context;
    for (int32_t i = 0; i < m->desc->n_ropes; i++)
        m->hp.ropes[i].use_long = context > m->hp.ropes[i].original_context;
}

/* theta^(2i/d) in float32 */
static float pos_freq(const struct sl_rope_params *p, int32_t i, int32_t n_dims)
{
    float exponent = (float)(2 * i) / (float)n_dims;
    return (float)pow(p->theta, (double)exponent);
}

static int32_t turning_pairs(const struct sl_rope_params *p, int32_t n_dims)
{
    return (int32_t)(p->turning * n_dims / 2);
}

void sl_rope_divisors(const struct sl_rope_params *p, int32_t n_dims, float *divisors)
{
    for (int32_t i = 0; i < n_dims / 2 && p->scaling == SL_ROPE_PROPORTIONAL; i++)
        divisors[i] = i < turning_pairs(p, n_dims) ? (float)p->factor : STILL;
    if (p->scaling == SL_ROPE_PROPORTIONAL)
        return;
    float low_wavelen = (float)(p->original_context / p->low_freq_factor);
    float high_wavelen = (float)(p->original_context / p->high_freq_factor);
    for (int32_t i = 0; i < n_dims / 2; i++) {
        float wavelen = (float)TWO_PI / (1.0f / pos_freq(p, i, n_dims));
        double smooth = (p->original_context / (double)wavelen - p->low_freq_factor) /
                        (p->high_freq_factor - p->low_freq_factor);
        if (wavelen < high_wavelen)
            divisors[i] = 1;
        else if (wavelen > low_wavelen)
            divisors[i] = (float)p->factor;
        else
            divisors[i] = (float)(1 / ((1 - smooth) / p->factor + smooth));
    }
}

/* The dimension whose frequency turns `rotations` times within the original context. */
static double yarn_dim(const struct sl_rope_params *p, double rotations, int32_t n_dims)
{
    return n_dims * log(p->original_context / (rotations * TWO_PI)) / (2 * log(p->theta));
}

static void yarn_freqs(const struct sl_rope_params *p, int32_t n_dims, float *inv_freq,
                       float *attn_factor)
{
    double low = yarn_dim(p, p->beta_fast, n_dims);
    double high = yarn_dim(p, p->beta_slow, n_dims);
    if (p->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = SL_MAX(low, 0);
    high = SL_MIN(high, (double)(n_dims - 1));
    if (low == high)
        high += 0.001; /* a ramp of no width would divide by zero */
    for (int32_t i = 0; i < n_dims / 2; i++) {
        float ramp = (float)i - (float)low;
        ramp /= (float)(high - low);
        ramp = SL_MIN(SL_MAX(ramp, 0.0f), 1.0f);
        float freq = pos_freq(p, i, n_dims), keep = 1.0f - ramp;
        float extrapolated = 1.0f / freq, interpolated = 1.0f / ((float)p->factor * freq);
        inv_freq[i] = interpolated * (1.0f - keep) + extrapolated * keep;
    }
    if (p->attention_factor != 0)
        *attn_factor = (float)p->attention_factor;
    else if (p->mscale != 0 && p->mscale_all_dim != 0)
        *attn_factor =
            (float)(yarn_mscale(p->factor, p->mscale) / yarn_mscale(p->factor, p->mscale_all_dim));
    else
        *attn_factor = (float)yarn_mscale(p->factor, 1);
}

void sl_rope_freqs(const struct sl_rope_params *p, int32_t n_dims, const float *divisors,
                   float *inv_freq, float *attn_factor)
{
    int32_t n = n_dims / 2;
    *attn_factor = 1;
    for (int32_t i = 0; i < n; i++)
        inv_freq[i] = 1.0f / pos_freq(p, i, n_dims);
    switch (p->scaling) {
    case SL_ROPE_PLAIN:
        break;
    case SL_ROPE_LINEAR:
        for (int32_t i = 0; i < n; i++)
            inv_freq[i] /= (float)p->factor;
        break;
    case SL_ROPE_LLAMA3: {
        float own[SL_MAX_HEAD_DIM / 2];
        sl_rope_divisors(p, n_dims, own);
        for (int32_t i = 0; i < n; i++)
            inv_freq[i] /= own[i];
        break;
    }
    case SL_ROPE_YARN:
        yarn_freqs(p, n_dims, inv_freq, attn_factor);
        break;
    case SL_ROPE_LONG:
        for (int32_t i = 0; i < n; i++)
            inv_freq[i] = 1.0f / ((p->use_long ? p->long_factors : p->short_factors)[i] *
                                  pos_freq(p, i, n_dims));
        *attn_factor = (float)(p->use_long && p->long_mscale != 0     ? p->long_mscale
                               : !p->use_long && p->short_mscale != 0 ? p->short_mscale
                                                                      : p->attention_factor);
        break;
    case SL_ROPE_PROPORTIONAL:
        for (int32_t i = 0; i < n; i++)
            inv_freq[i] = i < turning_pairs(p, n_dims) ? inv_freq[i] / (float)p->factor : 0;
        break;
    }
    for (int32_t i = 0; i < n && divisors != NULL; i++)
        inv_freq[i] = divisors[i] < STILL ? inv_freq[i] / divisors[i] : 0;
}
