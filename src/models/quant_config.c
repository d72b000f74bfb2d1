/* SPDX-License-Identifier: MIT
 * What config.json says of quantised weights: which kinds of checkpoints there are and what of them
 * is read. All FP8 comes down to E4M3 with scales (fp8.c; MXFP8 to BF16, apart.c), all four-bit
 * whole numbers to groups with a scale and a zero point (int4.c), MXFP4 to its blocks (apart.c).
 * What a checkpoint leaves unquantised says so by its tensors, so lists of such modules are not
 * read.
 */
#include "base/check.h"
#include "io/json.h"
#include "models/internal.h"

#include <stdio.h>
#include <string.h>

static int bad_config(const char *what, const json_t *value, const char *wanted,
                      struct sl_error *err)
{
    const char *s = json_string_value(value);
    return sl_fail(err, SL_EUNSUPPORTED,
                   "config.json: quantization_config: %s %s%.40s%s is not supported "
                   "(supported: %s)",
                   what, s ? "\"" : "", s ? s : "(none)", s ? "\"" : "", wanted);
}

static bool quant_config_is_one_of(const json_t *v, const char *const *names, size_t n)
{
    const char *s = json_string_value(v);
    for (size_t i = 0; s != NULL && i < n; i++)
        if (strcmp(s, names[i]) == 0)
            return true;
    return false;
}

/* ---------------------------------------------------------------- FP8 */

/* A pair of positive integers: rows and columns of a block of scales. */
static int quant_config_read_block(const json_t *v, const char *key, struct sl_hparams *hp,
                                   struct sl_error *err)
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

static int read_fp8(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *fmt = json_object_get(q, "fmt"), *block = json_object_get(q, "weight_block_size");
    static const char *const schemes[] = {"dynamic", "static"};
    const json_t *scheme = json_object_get(q, "activation_scheme");
    if (fmt != NULL && !json_is_null(fmt) &&
        (!json_is_string(fmt) || strcmp(json_string_value(fmt), "e4m3") != 0))
        return bad_config("fmt", fmt, "e4m3", err);
    if (scheme != NULL && !json_is_null(scheme) &&
        !quant_config_is_one_of(scheme, schemes, SL_COUNT(schemes)))
        return bad_config("activation_scheme", scheme, "dynamic, static", err);
    hp->fp8_activations = !json_is_null(scheme); /* no word means dynamic, as to its makers */
    if (block == NULL || json_is_null(block))
        return 0;
    return quant_config_read_block(block, "weight_block_size", hp, err);
}

/* Scales of a row or a token are all there is, and activations are always quantised. */
static int read_fbgemm(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    (void)q, (void)err;
    hp->fp8_activations = true;
    return 0;
}

/* Blocks of 32 with a scale each: nothing is left to say, but that they are. */
static int read_mxfp8(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *fmt = json_object_get(q, "fmt"), *block = json_object_get(q, "weight_block_size");
    const json_t *rows = json_array_get(block, 0), *cols = json_array_get(block, 1);
    (void)hp;
    if (fmt != NULL && !json_is_null(fmt) &&
        (!json_is_string(fmt) || strcmp(json_string_value(fmt), "e4m3") != 0))
        return bad_config("fmt", fmt, "e4m3", err);
    if (block != NULL && !json_is_null(block) &&
        !(json_array_size(block) == 2 && json_is_integer(rows) && json_integer_value(rows) == 1 &&
          json_is_integer(cols) && json_integer_value(cols) == 32))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: quantization_config.weight_block_size of mxfp8 must be [1, "
                       "32]");
    return 0;
}

static int read_mxfp4(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    (void)q, (void)hp, (void)err;
    return 0;
}

/* Activations of FP8, by whatever scales. */
static bool has_fp8_input(const json_t *group)
{
    const json_t *a = json_object_get(group, "input_activations");
    const char *type = json_string_value(json_object_get(a, "type"));
    return type != NULL && strcmp(type, "float") == 0 &&
           json_integer_value(json_object_get(a, "num_bits")) == 8;
}

/* ---------------------------------------------------------------- whole numbers */

static int check_bits(const json_t *q, const char *key, struct sl_error *err)
{
    const json_t *bits = json_object_get(q, key);
    char have[24] = "(none)";
    if (json_is_integer(bits) && json_integer_value(bits) == 4)
        return 0;
    if (json_is_integer(bits))
        snprintf(have, sizeof have, "%lld", (long long)json_integer_value(bits));
    return sl_fail(err, SL_EUNSUPPORTED,
                   "config.json: quantization_config: weights with %s %s are not supported (4 is)",
                   key, have);
}

/* -1: a whole row. */
static int read_group_size(const json_t *q, const char *key, struct sl_hparams *hp,
                           struct sl_error *err)
{
    const json_t *v = json_object_get(q, key);
    const long long n = json_is_integer(v) ? (long long)json_integer_value(v) : 0;
    if (n != -1 && (n < 1 || n > SL_MAX_HIDDEN * 4))
        return sl_fail(err, SL_EFORMAT,
                       "config.json: quantization_config.%s must be a positive integer or -1", key);
    if (n > 0 && n % 32 != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: quantization_config.%s: groups of %lld are not supported "
                       "(multiples of 32 are)",
                       key, n);
    hp->int4_group = (int32_t)n;
    return 0;
}

/* Which of two spellings is there. */
static const char *quant_config_spelling(const json_t *q, const char *a, const char *b)
{
    return json_object_get(q, a) == NULL && json_object_get(q, b) != NULL ? b : a;
}

static int read_gptq(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    static const char *const v1[] = {"gptq"}, *const v2[] = {"gptq_v2"};
    const json_t *format =
        json_object_get(q, quant_config_spelling(q, "checkpoint_format", "format"));
    const bool none = format == NULL || json_is_null(format);
    if (!none && !quant_config_is_one_of(format, v1, 1) && !quant_config_is_one_of(format, v2, 1))
        return bad_config("checkpoint_format", format, "gptq, gptq_v2", err);
    hp->int4 = quant_config_is_one_of(format, v2, 1) ? SL_INT4_GPTQ_V2 : SL_INT4_GPTQ_V1;
    int rc = check_bits(q, "bits", err);
    return rc != 0 ? rc : read_group_size(q, "group_size", hp, err);
}

static int read_awq(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    static const char *const versions[] = {"gemm", "GEMM"};
    const json_t *version = json_object_get(q, "version"), *zero = json_object_get(q, "zero_point");
    if (version != NULL && !json_is_null(version) &&
        !quant_config_is_one_of(version, versions, SL_COUNT(versions)))
        return bad_config("version", version, "gemm", err);
    if (json_is_false(zero))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: quantization_config: awq without zero_point is not supported");
    hp->int4 = SL_INT4_AWQ_GEMM;
    int rc = check_bits(q, quant_config_spelling(q, "bits", "w_bit"), err);
    return rc != 0 ? rc
                   : read_group_size(q, quant_config_spelling(q, "group_size", "q_group_size"), hp,
                                     err);
}

/* ---------------------------------------------------------------- compressed-tensors, modelopt */

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
    if (!quant_config_is_one_of(strategy, strategies, SL_COUNT(strategies)))
        return bad_config("strategy", strategy, "tensor, channel, block", err);
    if (strcmp(json_string_value(strategy), "block") != 0)
        return 0;
    int rc =
        quant_config_read_block(json_object_get(w, "block_structure"), "block_structure", hp, err);
    if (rc == 0 && *has_block && (hp->scale_rows != rows || hp->scale_cols != cols))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: quantization_config: groups with different block_structure "
                       "are not supported");
    *has_block = true;
    return rc;
}

/* Of four-bit whole numbers, all alike; hp->int4_group stays 0 where there is no group. */
static int read_packed_group(const json_t *group, struct sl_hparams *hp, bool *seen,
                             struct sl_error *err)
{
    static const char *const strategies[] = {"group", "channel"};
    const json_t *w = json_object_get(group, "weights"), *strategy = json_object_get(w, "strategy");
    const json_t *type = json_object_get(w, "type");
    const int32_t before = hp->int4_group;
    int rc = 0;
    if (!json_is_string(type) || strcmp(json_string_value(type), "int") != 0)
        return bad_config("weights of type", type, "int", err);
    if (!quant_config_is_one_of(strategy, strategies, SL_COUNT(strategies)))
        return bad_config("strategy", strategy, "group, channel", err);
    rc = check_bits(w, "num_bits", err);
    hp->int4_group = -1;
    if (rc == 0 && strcmp(json_string_value(strategy), "group") == 0)
        rc = read_group_size(w, "group_size", hp, err);
    if (rc == 0 && *seen && hp->int4_group != before)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "config.json: quantization_config: groups with different group_size are not "
                     "supported");
    *seen = true;
    return rc;
}

static int read_compressed_tensors(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    static const char *const formats[] = {"float-quantized", "naive-quantized"};
    static const char *const packed[] = {"pack-quantized"};
    const json_t *format = json_object_get(q, "format");
    json_t *groups = json_object_get(q, "config_groups"), *group;
    const char *name;
    bool seen = false;
    int rc = 0;
    const bool int4 = quant_config_is_one_of(format, packed, SL_COUNT(packed));
    if (!int4 && !quant_config_is_one_of(format, formats, SL_COUNT(formats)))
        return bad_config("format", format, "float-quantized, pack-quantized", err);
    if (int4)
        hp->int4 = SL_INT4_PACKED;
    if (groups != NULL && !json_is_object(groups))
        return sl_fail(err, SL_EFORMAT,
                       "config.json: quantization_config.config_groups must be an object");
    hp->fp8_activations = !int4 && json_object_size(groups) > 0;
    json_object_foreach(groups, name, group)
    {
        hp->fp8_activations = hp->fp8_activations && has_fp8_input(group);
        if (rc == 0)
            rc = (int4 ? read_packed_group : read_group)(group, hp, &seen, err);
    }
    if (rc == 0 && int4 && !seen)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: quantization_config.config_groups is missing or empty");
    return rc;
}

static int check_algo(const char *file, const json_t *q, struct sl_error *err)
{
    static const char *const algos[] = {"FP8", "MXFP8"};
    const char *algo = json_string_value(json_object_get(q, "quant_algo"));
    if (quant_config_is_one_of(json_object_get(q, "quant_algo"), algos, SL_COUNT(algos)))
        return 0;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%s: quant_algo %s%.40s%s is not supported (FP8 and MXFP8 are)", file,
                   algo ? "\"" : "", algo ? algo : "(none)", algo ? "\"" : "");
}

static int read_modelopt(const json_t *q, struct sl_hparams *hp, struct sl_error *err)
{
    hp->fp8_activations = true;
    return check_algo("config.json: quantization_config", q, err);
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

/* ---------------------------------------------------------------- all */

int sl_quant_read_config(const struct sl_ckpt *ckpt, struct sl_hparams *hp, struct sl_error *err)
{
    static const struct {
        const char *method;
        int (*read)(const json_t *q, struct sl_hparams *hp, struct sl_error *err);
    } methods[] = {
        {"fp8", read_fp8},
        {"fbgemm_fp8", read_fbgemm},
        {"compressed-tensors", read_compressed_tensors},
        {"modelopt", read_modelopt},
        {"gptq", read_gptq},
        {"awq", read_awq},
        {"mxfp4", read_mxfp4},
        {"mxfp8", read_mxfp8},
    };
    const json_t *q = json_object_get(sl_ckpt_config(ckpt), "quantization_config");
    hp->scale_rows = hp->scale_cols = SL_SCALE_COLS;
    if (q == NULL || json_is_null(q))
        return read_modelopt_file(ckpt, hp, err);
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    for (size_t i = 0; method != NULL && i < SL_COUNT(methods); i++)
        if (strcmp(method, methods[i].method) == 0)
            return methods[i].read(q, hp, err);
    return sl_fail(
        err, SL_EUNSUPPORTED,
        "config.json: quantization_config with quant_method \"%.40s\" is not supported "
        "(supported: FP8 by fp8, mxfp8, fbgemm_fp8, compressed-tensors, modelopt; four bits by "
        "gptq, awq, compressed-tensors, mxfp4); use a GGUF or unquantised safetensors",
        method ? method : "(none)");
}
