/* SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "io/peft.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "io/files.h"
#include "io/json.h"

#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#define CONFIG       "adapter_config.json"
#define WEIGHTS      "adapter_model.safetensors"
#define MAX_PATTERNS 1024
#define MAX_PATTERN  512   /* bytes */
#define MAX_STEPS    20000 /* of one comparison with a pattern */
#define MAX_ALPHA    1e6

struct sl_peft {
    struct sl_files *files;
    struct sl_st *st;
    const uint8_t *data; /* of the weights' file */
    json_t *config;
    int64_t r;
    double alpha;
    bool rslora;
    uint64_t digest;
};

/* ------------------------------------------------------------------ configuration */

/* Settings that say something about training, or about where the adapter came from, or that the
 * tensors say as well. */
static const char *const harmless[] = {
    "alpha_pattern",       "auto_mapping",      "base_model_name_or_path",
    "ensure_weight_tying", "eva_config",        "exclude_modules",
    "inference_mode",      "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config",      "lora_alpha",
    "lora_dropout",        "megatron_core",     "peft_type",
    "peft_version",        "qalora_group_size", "r",
    "rank_pattern",        "revision",          "runtime_config",
    "target_modules",      "task_type",         "use_rslora",
};

/* And those that change what is computed. */
static const struct {
    const char *name, *what;
} refused[] = {
    {"use_dora", "DoRA"},
    {"modules_to_save", "modules beside the adapter"},
    {"lora_bias", "a bias of B"},
    {"fan_in_fan_out", "transposed weights"},
    {"layer_replication", "repeated layers"},
    {"trainable_token_indices", "trained tokens"},
    {"target_parameters", "adapters of parameters"},
    {"alora_invocation_tokens", "adapters that begin at a token"},
    {"arrow_config", "routing between adapters"},
    {"use_qalora", "QA-LoRA"},
    {"use_bdlora", "block-diagonal adapters"},
    {"megatron_config", "Megatron layers"},
    {"corda_config", "CorDA"},
    {"lora_ga_config", "LoRA-GA"},
    {"kasa_config", "KaSA"},
    {"monteclora_config", "MonteCLoRA"},
    {"velora_config", "VeLoRA"},
};

static bool is_off(const json_t *v)
{
    return v == NULL || json_is_null(v) || json_is_false(v) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static int check_refused(const json_t *config, struct sl_error *err)
{
    SL_ASSERT(json_is_object(config));
    for (size_t i = 0; i < SL_COUNT(refused); i++)
        if (!is_off(json_object_get(config, refused[i].name)))
            return sl_fail(err, SL_EUNSUPPORTED, CONFIG ": %s (%s) is not supported",
                           refused[i].name, refused[i].what);
    const json_t *bias = json_object_get(config, "bias");
    if (!is_off(bias) && (!json_is_string(bias) || strcmp(json_string_value(bias), "none") != 0))
        return sl_fail(err, SL_EUNSUPPORTED,
                       CONFIG ": bias must be \"none\": trained biases are "
                              "not supported");
    /* These change the base's weights when PEFT makes or loads the adapter. */
    static const char *const plain[] = {"gaussian", "eva", "orthogonal"};
    const json_t *init = json_object_get(config, "init_lora_weights");
    bool known = !json_is_string(init);
    for (size_t i = 0; i < SL_COUNT(plain) && !known; i++)
        known = strcmp(json_string_value(init), plain[i]) == 0;
    if (!known)
        return sl_fail(err, SL_EUNSUPPORTED,
                       CONFIG ": init_lora_weights \"%.40s\" is not supported: it changes the "
                              "base model's weights (PEFT can convert such an adapter)",
                       json_string_value(init));
    return 0;
}

static void report_unknown(json_t *config, const char *dir)
{
    const char *key;
    json_t *v;
    SL_ASSERT(dir != NULL);
    json_object_foreach(config, key, v)
    {
        bool known = is_off(v) || strcmp(key, "bias") == 0;
        for (size_t i = 0; i < SL_COUNT(harmless) && !known; i++)
            known = strcmp(key, harmless[i]) == 0;
        if (!known)
            sl_log(SL_LOG_WARN, "%s/" CONFIG ": \"%.60s\" is not known and has no effect", dir,
                   key);
    }
}

static int read_rank(const json_t *v, const char *what, int64_t *out, struct sl_error *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 1 ||
        json_integer_value(v) > SL_MAX_LORA_RANK)
        return sl_fail(err, SL_EFORMAT, CONFIG ": %.80s must be a whole number from 1 to %d", what,
                       SL_MAX_LORA_RANK);
    *out = json_integer_value(v);
    SL_ASSERT(*out >= 1);
    return 0;
}

static int read_alpha(const json_t *v, const char *what, double *out, struct sl_error *err)
{
    const double x = json_number_value(v);
    if (!json_is_number(v) || !(fabs(x) <= MAX_ALPHA))
        return sl_fail(err, SL_EFORMAT, CONFIG ": %.80s must be a number of at most %g", what,
                       MAX_ALPHA);
    *out = x;
    SL_ASSERT(isfinite(*out));
    return 0;
}

static int check_patterns(const json_t *config, const char *name, struct sl_error *err)
{
    json_t *patterns = json_object_get(config, name), *v;
    const char *key;
    int64_t rank;
    double alpha;
    int rc = 0;
    if (patterns == NULL || json_is_null(patterns))
        return 0;
    if (!json_is_object(patterns) || json_object_size(patterns) > MAX_PATTERNS)
        return sl_fail(err, SL_EFORMAT, CONFIG ": %s must be an object of at most %d patterns",
                       name, MAX_PATTERNS);
    SL_ASSERT(name[0] == 'r' || name[0] == 'a');
    json_object_foreach(patterns, key, v)
    {
        char what[96];
        snprintf(what, sizeof what, "%s[\"%.60s\"]", name, key);
        if (strlen(key) > MAX_PATTERN)
            return sl_fail(err, SL_ELIMIT, CONFIG ": %s is longer than %d bytes", what,
                           MAX_PATTERN);
        rc = name[0] == 'r' ? read_rank(v, what, &rank, err) : read_alpha(v, what, &alpha, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_config(struct sl_peft *p, const char *dir, struct sl_error *err)
{
    const json_t *type = json_object_get(p->config, "peft_type");
    const json_t *alpha = json_object_get(p->config, "lora_alpha");
    const json_t *rslora = json_object_get(p->config, "use_rslora");
    if (!json_is_string(type))
        return sl_fail(err, SL_EFORMAT, CONFIG ": peft_type is missing");
    if (strcmp(json_string_value(type), "LORA") != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       CONFIG ": peft_type \"%.40s\" is not supported, only "
                              "LORA is",
                       json_string_value(type));
    if (rslora != NULL && !json_is_boolean(rslora) && !json_is_null(rslora))
        return sl_fail(err, SL_EFORMAT, CONFIG ": use_rslora must be true or false");
    p->rslora = json_is_true(rslora);
    p->alpha = 8; /* as PEFT */
    int rc = check_refused(p->config, err);
    if (rc == 0)
        rc = read_rank(json_object_get(p->config, "r"), "r", &p->r, err);
    if (rc == 0 && alpha != NULL && !json_is_null(alpha))
        rc = read_alpha(alpha, "lora_alpha", &p->alpha, err);
    if (rc == 0)
        rc = check_patterns(p->config, "rank_pattern", err);
    if (rc == 0)
        rc = check_patterns(p->config, "alpha_pattern", err);
    if (rc == 0)
        report_unknown(p->config, dir);
    return rc;
}

/* ------------------------------------------------------------------ files */

static int peft_get(struct sl_peft *p, const char *name, const uint8_t **data, size_t *n,
                    struct sl_error *err)
{
    int rc = sl_files_get(p->files, name, data, n, err);
    if (rc < 0)
        return rc;
    SL_ASSERT(rc == 0 || *data != NULL);
    return rc == 1 ? 0
                   : sl_fail(err, SL_ENOTFOUND, "no %s there%s", name,
                             strcmp(name, WEIGHTS) == 0 ? " (adapter_model.bin is not read)" : "");
}

static int peft_open_files(struct sl_peft *p, const char *dir, struct sl_error *err)
{
    const uint8_t *config;
    size_t n_config, n_data;
    int rc = sl_files_open(dir, &p->files, err);
    if (rc == 0)
        rc = peft_get(p, CONFIG, &config, &n_config, err);
    if (rc == 0)
        rc = sl_json_object((const char *)config, n_config, SL_JSON_MAX_CONFIG, CONFIG, &p->config,
                            err);
    if (rc == 0)
        rc = read_config(p, dir, err);
    if (rc == 0)
        rc = peft_get(p, WEIGHTS, &p->data, &n_data, err);
    if (rc == 0)
        rc = sl_st_open(p->data, n_data, WEIGHTS, &p->st, err);
    if (rc != 0)
        return rc;
    if (sl_st_n_tensors(p->st) == 0)
        return sl_fail(err, SL_EFORMAT, WEIGHTS " holds no tensors");
    p->digest = sl_hash64(p->data, n_data, sl_hash64(config, n_config, 0));
    return 0;
}

int sl_peft_open(const char *dir, struct sl_peft **out, struct sl_error *err)
{
    struct sl_peft *p = sl_calloc(1, sizeof *p);
    SL_ASSERT(dir != NULL);
    *out = NULL;
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory opening an adapter");
    int rc = peft_open_files(p, dir, err);
    if (rc != 0) {
        sl_peft_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void sl_peft_close(struct sl_peft *p)
{
    if (p == NULL)
        return;
    if (p->st != NULL)
        sl_st_close(p->st);
    json_decref(p->config);
    if (p->files != NULL)
        sl_files_close(p->files);
    sl_free(p);
}

uint64_t sl_peft_digest(const struct sl_peft *p)
{
    return p->digest;
}

/* ------------------------------------------------------------------ tensors */

size_t sl_peft_n_tensors(const struct sl_peft *p)
{
    return sl_st_n_tensors(p->st);
}

static bool dtype_of(const char *name, enum sl_dtype *out)
{
    static const enum sl_dtype all[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        if (strcmp(sl_dtype_info(all[i])->st_name, name) == 0) {
            *out = all[i];
            return true;
        }
    }
    return false;
}

int sl_peft_tensor_at(const struct sl_peft *p, size_t idx, struct sl_peft_tensor *out,
                      struct sl_error *err)
{
    static const char prefix[] = "base_model.model.";
    SL_ASSERT(idx < sl_st_n_tensors(p->st));
    const struct sl_st_tensor *t = sl_st_tensor_at(p->st, idx);
    const char *module = sl_starts_with(t->name, prefix) ? t->name + strlen(prefix) : t->name;
    *out = (struct sl_peft_tensor){.name = t->name, .module = module};
    out->is_b = sl_ends_with(module, ".lora_B.weight"); /* what the prefix left: dots may be its */
    if (!out->is_b && !sl_ends_with(module, ".lora_A.weight"))
        return sl_fail(err, SL_EUNSUPPORTED,
                       WEIGHTS ": tensor \"%.120s\" is neither lora_A nor lora_B of a linear layer",
                       t->name);
    const size_t n_end = strlen(".lora_A.weight"), n = strlen(module);
    SL_ASSERT(n >= n_end);
    out->n_module = n - n_end;
    if (!dtype_of(t->dtype, &out->dtype))
        return sl_fail(err, SL_EUNSUPPORTED,
                       WEIGHTS ": tensor \"%.120s\" is %.20s, must be F32, F16 or BF16", t->name,
                       t->dtype);
    const int64_t rank = t->n_dims == 2 ? t->dims[out->is_b] : 0;
    if (rank < 1 || rank > SL_MAX_LORA_RANK || t->dims[!out->is_b] < 1)
        return sl_fail(err, SL_EFORMAT,
                       WEIGHTS ": tensor \"%.120s\" must be a matrix of rank 1 to %d", t->name,
                       SL_MAX_LORA_RANK);
    out->dims[0] = t->dims[0];
    out->dims[1] = t->dims[1];
    out->data = p->data + t->offset;
    out->n_bytes = (size_t)t->n_bytes;
    SL_ASSERT(t->n_bytes ==
              (uint64_t)t->dims[0] * (uint64_t)t->dims[1] * sl_dtype_info(out->dtype)->block_bytes);
    return 0;
}

/* ------------------------------------------------------------------ patterns */

/* As re.match(r"(.*\.)?(KEY)$", module). 1, 0, or an error. */
static int matches(const char *key, const char *module, size_t n_module, struct sl_error *err)
{
    char text[MAX_PATTERN + 16];
    int code, rc;
    PCRE2_SIZE at;
    SL_ASSERT(strlen(key) <= MAX_PATTERN);
    int n = snprintf(text, sizeof text, "(.*\\.)?(%s)$", key);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)n, PCRE2_ANCHORED, &code, &at, NULL);
    if (re == NULL)
        return sl_fail(err, SL_EFORMAT, CONFIG ": \"%.80s\" is not a regular expression", key);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (data == NULL || context == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a pattern");
    } else {
        pcre2_set_match_limit(context, MAX_STEPS);
        code = pcre2_match(re, (PCRE2_SPTR)module, n_module, 0, 0, data, context);
        rc = code >= 0                     ? 1
             : code == PCRE2_ERROR_NOMATCH ? 0
                                           : sl_fail(err, SL_ELIMIT,
                                                     CONFIG ": \"%.80s\" takes too long to "
                                                            "compare",
                                                     key);
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    return rc;
}

/* The value of the first pattern that fits; NULL: none. */
static int find_pattern(const struct sl_peft *p, const char *name, const char *module,
                        size_t n_module, const json_t **out, struct sl_error *err)
{
    json_t *patterns = json_object_get(p->config, name), *v;
    const char *key;
    *out = NULL;
    SL_ASSERT(n_module > 0);
    json_object_foreach(patterns, key, v)
    {
        int rc = matches(key, module, n_module, err);
        if (rc < 0)
            return rc;
        if (rc == 1) {
            *out = v;
            return 0;
        }
    }
    return 0;
}

int sl_peft_scale(const struct sl_peft *p, const char *module, size_t n_module, int64_t rank,
                  float *out, struct sl_error *err)
{
    const json_t *r = NULL, *alpha = NULL;
    SL_ASSERT(rank >= 1 && rank <= SL_MAX_LORA_RANK);
    int rc = find_pattern(p, "rank_pattern", module, n_module, &r, err);
    if (rc == 0)
        rc = find_pattern(p, "alpha_pattern", module, n_module, &alpha, err);
    if (rc != 0)
        return rc;
    const int64_t want = r != NULL ? json_integer_value(r) : p->r;
    if (rank != want)
        return sl_fail(err, SL_EFORMAT, WEIGHTS ": \"%.*s\" has rank %lld, " CONFIG " says %lld",
                       (int)SL_MIN(n_module, (size_t)100), module, (long long)rank,
                       (long long)want);
    const double a = alpha != NULL ? json_number_value(alpha) : p->alpha;
    *out = (float)(a / (p->rslora ? sqrt((double)rank) : (double)rank));
    SL_ASSERT(isfinite(*out));
    return 0;
}
