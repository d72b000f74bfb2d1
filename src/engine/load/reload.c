/* SPDX-License-Identifier: MIT
 * Asleep and awake again: what is given up, and what is loaded anew for an engine that stays.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "engine/adapters.h"
#include "engine/load/load.h"
#include "engine/load/loaded.h"

#include <string.h>

/* What loading again goes by: as given, but for sizes that were chosen, which stay. */
int sl_loaded_keep_config(struct sl_loaded *l, const struct sl_engine_config *cfg,
                          struct sl_error *err)
{
    const struct sl_memory_plan *p = &l->plan;
    struct sl_engine_config own = *cfg;
    bool good = true;
    for (size_t i = 0; sl_loaded_config_string(&own, i) != NULL; i++) {
        const char **s = sl_loaded_config_string(&own, i);
        *s = *s != NULL ? sl_strdup(*s) : NULL;
        good &= (*s != NULL) ==
                (*sl_loaded_config_string((struct sl_engine_config *)(uintptr_t)cfg, i) != NULL);
    }
    own.model = own.chat_template = NULL;
    own.progress = NULL;
    own.kv_cache_bytes = sl_memory_plan_pool_bytes(p); /* padding's comes on top */
    own.max_model_len = p->max_model_len;
    own.max_num_seqs = p->max_num_seqs;
    own.max_num_batched_tokens = p->max_num_batched_tokens;
    own.block_size = p->block_size;
    l->cfg = own;
    return good ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for the configuration");
}

int sl_loaded_park(void *user, int level, struct sl_error *err)
{
    struct sl_loaded *l = user;
    SL_ASSERT(level >= 1 && (l->model != NULL || l->run == NULL));
    bool weights = level >= 2 || l->device_runner != NULL;
    if (sl_ranks_are_processes(l->ranks))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "a model whose ranks are processes (nnodes) cannot sleep, or change its "
                       "weights");
    if (weights)
        sl_adapters_use(l->adapters, NULL);
    sl_loaded_unload(l, weights);
    return 0;
}

static bool same_groups(const struct sl_kv_layout *a, const struct sl_kv_layout *b)
{
    bool same = a->n_groups == b->n_groups && a->block_size == b->block_size &&
                a->dtype == b->dtype && memcmp(a->exempt, b->exempt, sizeof a->exempt) == 0;
    for (int32_t g = 0; g < a->n_groups && same; g++)
        same = a->groups[g].window == b->groups[g].window &&
               a->groups[g].state == b->groups[g].state &&
               a->groups[g].page_bytes == b->groups[g].page_bytes;
    return same;
}

/* The engine's tables were made for the first model's sizes. */
static int check_same_shape(const struct sl_loaded *a, const struct sl_model_facts *fa,
                            const struct sl_loaded *b, struct sl_error *err)
{
    const struct sl_model_facts *fb = sl_model_facts(b->model);
    if (strcmp(fa->family, fb->family) == 0 && fa->n_layers == fb->n_layers &&
        fa->hidden == fb->hidden && fa->n_heads == fb->n_heads &&
        fa->n_kv_heads == fb->n_kv_heads && fa->head_dim == fb->head_dim &&
        fa->n_vocab == fb->n_vocab && fa->task == fb->task && fa->n_out == fb->n_out &&
        strcmp(fa->weight_dtype, fb->weight_dtype) == 0 && same_groups(&a->plan.kv, &b->plan.kv) &&
        a->plan.n_pages <= b->plan.n_pages && a->plan.max_model_len == b->plan.max_model_len)
        return 0;
    return sl_fail(err, SL_EINVAL,
                   "the new weights do not have the shape and format of the old ones");
}

/* Weights for an engine that has given its own up. */
static int load_again(struct sl_loaded *next, const struct sl_loaded *l, const char *path,
                      struct sl_error *err)
{
    struct sl_model *shape = NULL;
    int rc = 0;
    SL_ASSERT(next->model == NULL && next->backend == NULL && next->taken_bytes == 0);
    if (path != NULL)
        rc = sl_ckpt_open(path[0] != '\0' ? path : NULL, &next->ckpt, err);
    if (rc == 0)
        rc = sl_model_open(l->ckpt, &shape, err); /* of the first one, to compare with */
    if (rc == 0)
        rc = sl_load_task(shape, l->ckpt, &l->cfg, err);
    if (rc == 0)
        rc = sl_loaded_model(next, &l->cfg, err);
    if (rc == 0)
        rc = check_same_shape(l, sl_model_facts(shape), next, err);
    if (rc == 0)
        next->plan = l->plan;
    if (shape != NULL)
        sl_model_close(shape);
    return rc;
}

/* All that is loaded is the engine's once nothing can fail any more: until then it is asleep as
 * before, with the checkpoint it had. */
int sl_loaded_unpark(void *user, const char *path, struct sl_runner *runner, struct sl_error *err)
{
    struct sl_loaded *l = user, next = *l;
    bool weights = l->model == NULL;
    SL_ASSERT(l->run == NULL && l->device_runner == NULL && l->host_runner == NULL);
    int rc = weights ? load_again(&next, l, path, err) : 0;
    if (rc == 0)
        rc = sl_loaded_run(&next, err);
    if (rc != 0) {
        sl_loaded_unload(&next, weights);
        if (next.ckpt != l->ckpt && next.ckpt != NULL)
            sl_ckpt_close(next.ckpt);
        return rc;
    }
    if (next.ckpt != l->ckpt)
        sl_ckpt_close(l->ckpt);
    l->ckpt = next.ckpt; /* one by one: what stays is read by other threads meanwhile */
    l->backend = next.backend;
    l->host = next.host;
    l->model = next.model;
    l->plan = next.plan;
    memcpy(l->kv_pool, next.kv_pool, sizeof l->kv_pool);
    l->taken_bytes = next.taken_bytes;
    l->run = next.run;
    l->draft = next.draft;
    l->ranks = next.ranks;
    l->device_runner = next.device_runner;
    l->host_runner = next.host_runner;
    l->skip_counts = next.skip_counts;
    sl_adapters_use(l->adapters, l->model);
    sl_loaded_runner(l, runner);
    return 0;
}
