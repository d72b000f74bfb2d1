/* SPDX-License-Identifier: MIT
 * `auto` looks for the fewest layers of experts on the CPU with which the rest fits on the device
 * beside the pages of one sequence of full length. Every layer less on the device makes room there,
 * so that half of the layers are left out with each look.
 */
#include "engine/load/offload.h"

#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/load/load.h"

#include <string.h>

enum { AUTO = -1 };

/* *out: a number of layers, or AUTO. */
static int parse_layers(const struct sl_engine_config *cfg, int32_t n_layers, int32_t *out,
                        struct sl_error *err)
{
    const char *s = cfg->cpu_offload_experts;
    uint64_t n = 0;
    if (strcmp(s, "auto") == 0) {
        *out = AUTO;
        return 0;
    }
    if (strcmp(s, "all") == 0)
        n = (uint64_t)n_layers;
    else if (!sl_parse_u64(s, strlen(s), &n))
        return sl_fail(err, SL_EINVAL,
                       "cpu_offload_experts: '%.20s' is not one of: all, auto, a number of layers",
                       s);
    *out = (int32_t)SL_MIN(n, (uint64_t)n_layers);
    return 0;
}

static int check_offload(const struct sl_model *model, const struct sl_backend *be,
                         struct sl_error *err)
{
    if (be->vt->device == NULL)
        return sl_fail(err, SL_EINVAL,
                       "cpu_offload_experts: the whole model runs on the CPU already (device cpu)");
    if (sl_model_n_expert_layers(model) == 0)
        return sl_fail(err, SL_EINVAL, "cpu_offload_experts: this model has no experts");
    return 0;
}

static int try_layers(struct sl_model *model, const struct sl_model *draft, struct sl_backend *be,
                      const struct sl_engine_config *cfg, struct sl_backend *host, int32_t n,
                      struct sl_memory_plan *plan, struct sl_error *err)
{
    SL_ASSERT(n >= 0 && (n == 0 || host != NULL));
    int rc = sl_model_set_host(model, host, n, err);
    return rc != 0 ? rc : sl_memory_plan_make(model, draft, be, cfg, plan, err);
}

static int find_layers(struct sl_model *model, const struct sl_model *draft, struct sl_backend *be,
                       const struct sl_engine_config *cfg, struct sl_backend *host,
                       struct sl_memory_plan *plan, struct sl_error *err)
{
    int32_t lo = 0, hi = sl_model_facts(model)->n_layers;
    SL_ASSERT(host != NULL && be->vt->device != NULL);
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        const int rc = try_layers(model, draft, be, cfg, host, mid, plan, err);
        if (rc != 0 && rc != SL_ENOMEM)
            return rc;
        if (rc == 0 && (!plan->context_lowered || cfg->kv_cache_bytes != 0))
            hi = mid;
        else
            lo = mid + 1;
    }
    return try_layers(model, draft, be, cfg, host, lo, plan, err);
}

int sl_offload_plan(struct sl_model *model, const struct sl_model *draft, struct sl_backend *be,
                    const struct sl_engine_config *cfg, struct sl_backend **host,
                    struct sl_memory_plan *plan, struct sl_error *err)
{
    const struct sl_model_facts *f = sl_model_facts(model);
    int32_t n = 0;
    *host = NULL;
    if (cfg->cpu_offload_experts == NULL)
        return sl_memory_plan_make(model, draft, be, cfg, plan, err);
    int rc = parse_layers(cfg, f->n_layers, &n, err);
    if (rc == 0)
        rc = check_offload(model, be, err);
    if (rc == 0 && n != 0)
        rc = sl_load_cpu(f, cfg, host, err);
    if (rc != 0)
        return rc;
    rc = n == AUTO ? find_layers(model, draft, be, cfg, *host, plan, err)
                   : try_layers(model, draft, be, cfg, *host, n, plan, err);
    if (rc == 0 && n == AUTO)
        sl_log(SL_LOG_INFO, "cpu_offload_experts: the experts of %d of %d layers stay on the CPU",
               plan->n_host_layers, plan->n_expert_layers);
    return rc;
}
