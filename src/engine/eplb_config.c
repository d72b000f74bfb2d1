/* SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/limits.h"
#include "engine/eplb.h"

#include <jansson.h>
#include <string.h>

#define MAX_STEPS 1000000000 /* of a window, between two placings */

static int read_int(const json_t *o, const char *key, int32_t min, int32_t max, int32_t *out,
                    struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    const json_int_t n = json_integer_value(v);
    SL_ASSERT(*out >= min && *out <= max); /* the default */
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || n < min || n > max)
        return sl_fail(err, SL_EINVAL, "eplb_config: %s must be an integer from %d to %d", key, min,
                       max);
    *out = (int32_t)n;
    return 0;
}

/* A key that has one value here, if it is given. */
static int read_only(const json_t *o, const char *key, const json_t *want, const char *text,
                     struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    return v == NULL || json_is_null(v) || json_equal(v, want)
               ? 0
               : sl_fail(err, SL_EUNSUPPORTED, "eplb_config: %s is always %s", key, text);
}

static int read_object(json_t *o, struct sl_eplb_config *out, struct sl_error *err)
{
    static const char *const keys[] = {"window_size",      "step_interval", "num_redundant_experts",
                                       "log_balancedness", "use_async",     "policy"};
    const char *key;
    json_t *v;
    SL_ASSERT(json_is_object(o));
    json_object_foreach(o, key, v)
    {
        bool known = false;
        for (size_t i = 0; i < SL_COUNT(keys); i++)
            known = known || strcmp(key, keys[i]) == 0;
        if (!known)
            return sl_fail(err, SL_EINVAL, "eplb_config: there is no \"%.60s\"", key);
    }
    json_t *yes = json_true(), *policy = json_string("default");
    const json_t *log = json_object_get(o, "log_balancedness");
    int rc = policy == NULL ? sl_fail(err, SL_ENOMEM, "out of memory") : 0;
    if (rc == 0)
        rc = read_int(o, "window_size", 1, MAX_STEPS, &out->window_size, err);
    if (rc == 0)
        rc = read_int(o, "step_interval", 1, MAX_STEPS, &out->step_interval, err);
    if (rc == 0)
        rc = read_int(o, "num_redundant_experts", 0, SL_MAX_REDUNDANT, &out->num_redundant_experts,
                      err);
    if (rc == 0 && log != NULL && !json_is_null(log) && !json_is_boolean(log))
        rc = sl_fail(err, SL_EINVAL, "eplb_config: log_balancedness must be true or false");
    if (rc == 0)
        rc = read_only(o, "use_async", yes, "true", err);
    if (rc == 0)
        rc = read_only(o, "policy", policy, "\"default\"", err);
    out->log_balancedness = json_is_true(log);
    json_decref(policy);
    return rc;
}

static int check_config(const struct sl_engine_config *cfg, const struct sl_eplb_config *e,
                        struct sl_error *err)
{
    if (!cfg->enable_eplb)
        return e->num_redundant_experts == 0
                   ? 0
                   : sl_fail(err, SL_EINVAL,
                             "eplb_config: num_redundant_experts needs enable_eplb");
    if (!cfg->enable_expert_parallel || cfg->tensor_parallel_size < 2)
        return sl_fail(err, SL_EINVAL,
                       "enable_eplb: it needs ranks with experts of their own: "
                       "enable_expert_parallel and a tensor_parallel_size of 2, 4 or 8");
    if (cfg->offload_folder != NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "enable_eplb: weights in a file (offload_folder) stay where they are");
    return 0;
}

int sl_eplb_config_read(const struct sl_engine_config *cfg, bool *on, struct sl_eplb_config *out,
                        struct sl_error *err)
{
    json_error_t where;
    int rc = 0;
    *on = false;
    *out = (struct sl_eplb_config){.window_size = 1000, .step_interval = 3000}; /* vLLM's */
    if (cfg->eplb_config != NULL) {
        json_t *o = json_loads(cfg->eplb_config, JSON_REJECT_DUPLICATES, &where);
        rc = json_is_object(o) ? read_object(o, out, err)
                               : sl_fail(err, SL_EINVAL, "eplb_config: not a JSON object%s%.80s",
                                         o == NULL ? ": " : "", o == NULL ? where.text : "");
        json_decref(o);
    }
    if (rc == 0)
        rc = check_config(cfg, out, err);
    SL_ASSERT(rc != 0 || (out->window_size > 0 && out->step_interval > 0));
    *on = rc == 0 && cfg->enable_eplb;
    return rc;
}
