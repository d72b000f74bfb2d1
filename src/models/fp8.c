/* SPDX-License-Identifier: MIT
 * FP8 checkpoints as Hugging Face folders publish them: which kinds config.json may name, and the
 * tensor of scales that belongs to each matrix of E4M3.
 *
 * All kinds come down to one: "X.weight" in F8_E4M3, beside it "X.weight_scale_inv" or
 * "X.weight_scale" with one value for the matrix, one for a row, or one for a block; a weight is
 * code times scale ("inv" too). What a checkpoint leaves unquantised says so by its tensor's
 * format, so lists of such modules are not read. Activations are FP8 too where the checkpoint says
 * that it was made for that and the backend has such products. Their scales are made from the
 * activations, by groups of 128 columns, which is finer than what any kind asks for: scales of the
 * checkpoint (input_scale, activation_scale) are not used, nor those for the KV cache (k_scale,
 * v_scale).
 */
#include "base/check.h"
#include "base/str.h"
#include "io/json.h"
#include "models/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SCALE_MIN                                                                   \
    0x1p-100 /* so that no product of a code and a scale leaves the range of floats \
              */
#define SCALE_MAX 0x1p100

/* ---------------------------------------------------------------- config.json */

static int bad_config(const char *what, const json_t *value, const char *wanted,
                      struct sl_error *err)
{
    const char *s = json_string_value(value);
    return sl_fail(err, SL_EUNSUPPORTED,
                   "config.json: quantization_config: %s %s%.40s%s is not supported "
                   "(supported: %s)",
                   what, s ? "\"" : "", s ? s : "(none)", s ? "\"" : "", wanted);
}

/* A pair of positive integers: rows and columns of a block of scales. */
static int read_block(const json_t *v, const char *key, struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *r = json_array_get(v, 0), *c = json_array_get(v, 1);
    if (!json_is_array(v) || json_array_size(v) != 2 || !json_is_integer(r) ||
        !json_is_integer(c) || json_integer_value(r) < 1 || json_integer_value(c) < 1 ||
        json_integer_value(r) > INT32_MAX || json_integer_value(c) > INT32_MAX)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: quantization_config.%s must be a list of two positive "
                       "integers",
                       key);
    if (json_integer_value(c) % SL_SCALE_COLS != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: quantization_config.%s: blocks %lld columns wide are not "
                       "supported (multiples of %d are)",
                       key, (long long)json_integer_value(c), SL_SCALE_COLS);
    hp->scale_rows = (int32_t)json_integer_value(r);
    hp->scale_cols = (int32_t)json_integer_value(c);
    return 0;
}

static bool is_one_of(const json_t *v, const char *const *names, size_t n)
{
    const char *s = json_string_value(v);
    for (size_t i = 0; s != NULL && i < n; i++)
        if (strcmp(s, names[i]) == 0)
            return true;
    return false;
}

static int read_fp8(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *fmt = json_object_get(q, "fmt"), *block = json_object_get(q, "weight_block_size");
    static const char *const schemes[] = {"dynamic", "static"};
    const json_t *scheme = json_object_get(q, "activation_scheme");
    if (fmt != NULL && !json_is_null(fmt) &&
        (!json_is_string(fmt) || strcmp(json_string_value(fmt), "e4m3") != 0))
        return bad_config("fmt", fmt, "e4m3", err);
    if (scheme != NULL && !json_is_null(scheme) && !is_one_of(scheme, schemes, SL_COUNT(schemes)))
        return bad_config("activation_scheme", scheme, "dynamic, static", err);
    hp->fp8_activations = !json_is_null(scheme); /* no word means dynamic, as to its makers */
    if (block == NULL || json_is_null(block))
        return 0;
    return read_block(block, "weight_block_size", hp, err);
}

/* Activations of FP8, by whatever scales. */
static bool has_fp8_input(const json_t *group)
{
    const json_t *a = json_object_get(group, "input_activations");
    const char *type = json_string_value(json_object_get(a, "type"));
    return type != NULL && strcmp(type, "float") == 0 &&
           json_integer_value(json_object_get(a, "num_bits")) == 8;
}

/* Groups of layers, each with a kind of its own; blocks must be alike in all. */
static int read_group(const json_t *group, struct sl_hparams *hp, bool *has_block,
                      struct sl_error *err)
{
    static const char *const strategies[] = {"tensor", "channel", "block"};
    const json_t *w = json_object_get(group, "weights"), *strategy = json_object_get(w, "strategy");
    const json_t *type = json_object_get(w, "type"), *bits = json_object_get(w, "num_bits");
    const int32_t rows = hp->scale_rows, cols = hp->scale_cols;
    if (!json_is_string(type) || strcmp(json_string_value(type), "float") != 0)
        return bad_config("weights of type", type, "float", err);
    if (!json_is_integer(bits) || json_integer_value(bits) != 8)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: quantization_config: weights with num_bits other than 8 are "
                       "not supported");
    if (!is_one_of(strategy, strategies, SL_COUNT(strategies)))
        return bad_config("strategy", strategy, "tensor, channel, block", err);
    if (strcmp(json_string_value(strategy), "block") != 0)
        return 0;
    int rc = read_block(json_object_get(w, "block_structure"), "block_structure", hp, err);
    if (rc == 0 && *has_block && (hp->scale_rows != rows || hp->scale_cols != cols))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: quantization_config: groups with different block_structure "
                       "are not supported");
    *has_block = true;
    return rc;
}

static int read_compressed_tensors(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    static const char *const formats[] = {"float-quantized", "naive-quantized"};
    const json_t *format = json_object_get(q, "format");
    json_t *groups = json_object_get(q, "config_groups"), *group;
    const char *name;
    bool has_block = false;
    int rc = 0;
    if (!is_one_of(format, formats, SL_COUNT(formats)))
        return bad_config("format", format, "float-quantized", err);
    if (groups != NULL && !json_is_object(groups))
        return sl_fail(err, SL_EFORMAT,
                       "config.json: quantization_config.config_groups must be an object");
    hp->fp8_activations = json_object_size(groups) > 0;
    json_object_foreach(groups, name, group)
    {
        hp->fp8_activations = hp->fp8_activations && has_fp8_input(group);
        if (rc == 0)
            rc = read_group(group, hp, &has_block, err);
    }
    return rc;
}

static int check_algo(const char *file, const json_t *q, struct sl_error *err)
{
    const char *algo = json_string_value(json_object_get(q, "quant_algo"));
    if (algo != NULL && strcmp(algo, "FP8") == 0)
        return 0;
    return sl_fail(err, SL_EUNSUPPORTED, "%s: quant_algo %s%.40s%s is not supported (FP8 is)", file,
                   algo ? "\"" : "", algo ? algo : "(none)", algo ? "\"" : "");
}

/* ModelOpt's own file, where config.json says nothing. */
static int read_modelopt_file(const struct sl_ckpt *ckpt, struct sl_hparams *hp,
                              struct sl_error *err)
{
    static const char file[] = "hf_quant_config.json";
    const char *data;
    json_t *root = NULL;
    size_t n;
    int rc = sl_ckpt_file(ckpt, file, &data, &n, err);
    if (rc != 1)
        return rc;
    rc = sl_json_object(data, n, SL_JSON_MAX_CONFIG, file, &root, err);
    if (rc == 0)
        rc = check_algo(file, json_object_get(root, "quantization"), err);
    hp->fp8_activations = rc == 0;
    json_decref(root);
    return rc;
}

int sl_fp8_read_config(const struct sl_ckpt *ckpt, struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *q = json_object_get(sl_ckpt_config(ckpt), "quantization_config");
    hp->scale_rows = hp->scale_cols = SL_SCALE_COLS;
    if (q == NULL || json_is_null(q))
        return read_modelopt_file(ckpt, hp, err);
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (method != NULL && strcmp(method, "fp8") == 0)
        return read_fp8(q, hp, err);
    if (method != NULL && strcmp(method, "compressed-tensors") == 0)
        return read_compressed_tensors(q, hp, err);
    hp->fp8_activations = true;
    if (method != NULL && strcmp(method, "fbgemm_fp8") == 0)
        return 0;
    if (method != NULL && strcmp(method, "modelopt") == 0)
        return check_algo("config.json: quantization_config", q, err);
    return sl_fail(err, SL_EUNSUPPORTED,
                   "config.json: quantization_config with quant_method \"%.40s\" is not supported "
                   "(supported: FP8 by fp8, fbgemm_fp8, compressed-tensors, modelopt); use a GGUF "
                   "or unquantised safetensors",
                   method ? method : "(none)");
}

/* ---------------------------------------------------------------- tensors */

/* The tensor of that name beside t: 1, 0 = none, or a format that cannot be read. */
static int find_beside(const struct sl_model *m, const struct sl_ckpt_tensor *t, const char *suffix,
                       const struct sl_ckpt_tensor **out, struct sl_error *err)
{
    char name[SL_MAX_TENSOR_NAME + 16];
    snprintf(name, sizeof name, "%s%s", t->name, suffix);
    const char *format = sl_ckpt_unsupported(m->ckpt, name);
    if (format != NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s, a format that is not supported",
                       name, format);
    *out = sl_ckpt_find(m->ckpt, name);
    return *out != NULL;
}

static int64_t count(const struct sl_ckpt_tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; /* unused ones are 1 */
}

/* The blocks that the shape of the scales means. */
static int read_shape(const struct sl_model *m, const struct sl_ckpt_tensor *w,
                      const struct sl_ckpt_tensor *s, struct sl_param *p, struct sl_error *err)
{
    const int64_t n_rows = w->dims[0], n_cols = w->dims[1];
    const int64_t block_rows = SL_CEIL_DIV(n_rows, (int64_t)m->hp.scale_rows);
    const int64_t block_cols = SL_CEIL_DIV(n_cols, (int64_t)m->hp.scale_cols);
    p->scale_rows = (int32_t)n_rows;
    p->scale_cols = (int32_t)n_cols;
    if (count(s) == 1 && s->n_dims <= 2)
        return 0;
    p->scale_rows = 1;
    if (s->n_dims <= 2 && s->dims[0] == n_rows && s->dims[1] == 1)
        return 0;
    p->scale_rows = m->hp.scale_rows;
    p->scale_cols = m->hp.scale_cols;
    if (s->n_dims == 2 && s->dims[0] == block_rows && s->dims[1] == block_cols)
        return 0;
    char have[96];
    sl_bind_shape(s->n_dims, s->dims, have, sizeof have);
    return sl_fail(err, SL_EFORMAT,
                   "tensor \"%s\" has shape [%s], expected [1], [%lld], [%lld, 1] or [%lld, %lld] "
                   "(blocks of %d x %d)",
                   s->name, have, (long long)n_rows, (long long)n_rows, (long long)block_rows,
                   (long long)block_cols, m->hp.scale_rows, m->hp.scale_cols);
}

int sl_fp8_bind(const struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    const struct sl_ckpt_tensor *w = p->src, *inv = NULL, *plain = NULL;
    if (p->desc->cols == SL_DIM_NONE || w->dtype != SL_DTYPE_FP8_E4M3)
        return 0;
    int rc = find_beside(m, w, "_scale_inv", &inv, err);
    if (rc >= 0)
        rc = find_beside(m, w, "_scale", &plain, err);
    if (rc < 0)
        return rc;
    if (inv == NULL && plain == NULL)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" is %s without scales: neither \"%s_scale_inv\" nor "
                       "\"%s_scale\" is there",
                       w->name, sl_dtype_info(w->dtype)->name, w->name, w->name);
    if (inv != NULL && plain != NULL)
        return sl_fail(err, SL_EFORMAT, "tensor \"%s\" has two tensors of scales: \"%s\", \"%s\"",
                       w->name, inv->name, plain->name);
    p->scale = inv != NULL ? inv : plain;
    if (p->scale->dtype != SL_DTYPE_F32 && p->scale->dtype != SL_DTYPE_F16 &&
        p->scale->dtype != SL_DTYPE_BF16)
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s; scales must be f32, f16 or bf16",
                       p->scale->name, sl_dtype_info(p->scale->dtype)->name);
    return read_shape(m, w, p->scale, p, err);
}

enum sl_weight_use sl_fp8_use(const struct sl_model *m, enum sl_dtype dtype)
{
    const bool fp8 = dtype == SL_DTYPE_FP8_E4M3 && m->hp.fp8_activations;
    return fp8 ? SL_USE_LINEAR_FP8 : SL_USE_LINEAR;
}

bool sl_fp8_is_extra(const char *name)
{
    static const char *const suffixes[] = {".input_scale", ".activation_scale", ".k_scale",
                                           ".v_scale", ".q_scale"};
    for (size_t i = 0; i < SL_COUNT(suffixes); i++)
        if (sl_ends_with(name, suffixes[i]))
            return true;
    return false;
}

uint64_t sl_fp8_scale_bytes(const struct sl_param *p)
{
    return p->scale != NULL ? (uint64_t)count(p->scale) * sizeof(float) : 0;
}

int sl_fp8_load(struct sl_param *p, struct sl_error *err)
{
    const struct sl_ckpt_tensor *s = p->scale;
    if (s == NULL)
        return 0;
    const size_t n_bytes = (size_t)sl_fp8_scale_bytes(p);
    p->scale_values = sl_aligned_alloc(n_bytes);
    if (p->scale_values == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", s->name);
    sl_dtype_info(s->dtype)->to_f32(s->data, p->scale_values, count(s));
    for (int64_t i = 0; i < count(s); i++) {
        const double v = (double)p->scale_values[i];
        if (!(v >= SCALE_MIN && v <= SCALE_MAX))
            return sl_fail(err, SL_EFORMAT, "tensor \"%s\": value %lld is %g, must be %g to %g",
                           s->name, (long long)i, v, SCALE_MIN, SCALE_MAX);
    }
    return 0;
}

void sl_fp8_unload(struct sl_param *p)
{
    if (p->scale_values != NULL)
        sl_aligned_free(p->scale_values, (size_t)sl_fp8_scale_bytes(p));
    p->scale_values = NULL;
}
