/* SPDX-License-Identifier: MIT */
#include "engine/ranks.h"

#include "base/check.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "engine/load/load.h"
#include "engine/load/memory_plan.h"
#include "engine/team.h"

struct rank {
    struct sl_backend *backend;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *kv_pool[SL_MAX_KV_GROUPS];
};

struct sl_ranks {
    int n;
    struct sl_comm *comm;
    struct sl_team *team;
    uint64_t kv_bytes[SL_MAX_KV_GROUPS]; /* of a rank's pages */
    struct rank ranks[SL_MAX_RANKS];     /* [0] is the loader's */
    /* what the team is at */
    const struct sl_engine_config *cfg;
    const struct sl_batch *batch;
    const float *rows;
};

int sl_ranks_divide(struct sl_model *model, const struct sl_engine_config *cfg,
                    struct sl_error *err)
{
    const int32_t n = cfg->tensor_parallel_size;
    if (n == 0 || n == 1)
        return 0;
    if (n < 0 || n > SL_MAX_RANKS)
        return sl_fail(err, SL_EINVAL, "tensor_parallel_size: %d is not between 1 and %d", n,
                       SL_MAX_RANKS);
    if (cfg->shared != NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: several models in one process cannot be divided "
                       "among ranks yet");
    if (cfg->enable_lora)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: adapters (enable_lora) cannot be divided among ranks "
                       "yet");
    if (cfg->skip_softmax_counts)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: skip_softmax_counts is for one rank");
    return sl_model_set_rank(model, 0, n, err);
}

/* ---------------------------------------------------------------- weights */

static int open_rank(struct sl_ranks *r, int rank, const struct sl_ckpt *ckpt,
                     const struct sl_engine_config *cfg, struct sl_error *err)
{
    struct rank *k = &r->ranks[rank];
    int rc = sl_model_open(ckpt, &k->model, err);
    if (rc == 0)
        rc = sl_load_task(k->model, ckpt, cfg, err);
    if (rc == 0)
        rc = sl_model_set_rank(k->model, rank, r->n, err);
    if (rc == 0)
        sl_model_set_context(k->model, sl_model_facts(r->ranks[0].model)->served);
    return rc != 0 ? rc : sl_load_backend(k->model, cfg, &k->backend, err);
}

static int load_rank(void *arg, int rank, struct sl_error *err)
{
    const struct sl_ranks *r = arg;
    const struct rank *k = &r->ranks[rank];
    const bool tells = rank == 0; /* one of them shows how far it is */
    return sl_model_load(k->model, k->backend, tells ? r->cfg->progress : NULL,
                         r->cfg->progress_arg, err);
}

int sl_ranks_load(const struct sl_ckpt *ckpt, const struct sl_engine_config *cfg,
                  struct sl_model *model, struct sl_backend *backend, struct sl_ranks **out,
                  struct sl_error *err)
{
    *out = NULL;
    struct sl_ranks *r = sl_calloc(1, sizeof *r);
    if (r == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for ranks");
    r->n = sl_model_facts(model)->n_ranks;
    SL_ASSERT(r->n > 1 && r->n <= SL_MAX_RANKS); /* sl_ranks_divide says so */
    r->ranks[0] = (struct rank){.backend = backend, .model = model};
    int rc = sl_cpu_comm_create(r->n, &r->comm, err);
    for (int i = 1; i < r->n && rc == 0; i++)
        rc = open_rank(r, i, ckpt, cfg, err);
    if (rc == 0)
        rc = sl_team_create(r->n, &r->team, err);
    r->cfg = cfg;
    if (rc == 0)
        rc = sl_team_run(r->team, load_rank, r, err);
    r->cfg = NULL;
    if (rc != 0)
        sl_ranks_destroy(r);
    else
        *out = r;
    return rc;
}

void sl_ranks_destroy(struct sl_ranks *r)
{
    if (r == NULL)
        return;
    sl_ranks_stop(r);
    sl_team_destroy(r->team);
    for (int i = 1; i < r->n; i++) {
        sl_model_close(r->ranks[i].model);
        if (r->ranks[i].backend != NULL)
            r->ranks[i].backend->vt->destroy(r->ranks[i].backend);
    }
    sl_cpu_comm_destroy(r->comm);
    sl_free(r);
}

struct sl_comm *sl_ranks_comm(const struct sl_ranks *r)
{
    return r->comm;
}

/* ---------------------------------------------------------------- steps */

static int start_rank(struct sl_ranks *r, struct rank *k, const struct sl_run_config *cfg,
                      struct sl_error *err)
{
    struct sl_run_config own = *cfg;
    for (int32_t g = 0; g < cfg->kv.n_groups; g++) {
        k->kv_pool[g] = own.kv_pool[g] = k->backend->vt->alloc(k->backend, r->kv_bytes[g]);
        if (k->kv_pool[g] == NULL)
            return sl_fail(err, SL_ENOMEM, "no memory for %.2f GB of KV pages of a rank",
                           (double)r->kv_bytes[g] / 1e9);
    }
    return sl_run_create(k->model, &own, &k->run, err);
}

int sl_ranks_start(struct sl_ranks *r, const struct sl_run_config *cfg,
                   const struct sl_memory_plan *plan, struct sl_run *run, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(run != NULL && r->ranks[0].run == NULL && cfg->comm == r->comm);
    r->ranks[0].run = run;
    for (int32_t g = 0; g < cfg->kv.n_groups; g++)
        r->kv_bytes[g] = sl_memory_plan_group_bytes(plan, g) / (uint64_t)r->n;
    for (int i = 1; i < r->n && rc == 0; i++)
        rc = start_rank(r, &r->ranks[i], cfg, err);
    return rc;
}

void sl_ranks_stop(struct sl_ranks *r)
{
    if (r == NULL)
        return;
    r->ranks[0].run = NULL;
    for (int i = 1; i < r->n; i++) {
        struct rank *k = &r->ranks[i];
        sl_run_destroy(k->run);
        k->run = NULL;
        for (int32_t g = 0; g < SL_MAX_KV_GROUPS; g++) {
            if (k->kv_pool[g] != NULL)
                k->backend->vt->free(k->backend, k->kv_pool[g], r->kv_bytes[g]);
            k->kv_pool[g] = NULL;
        }
    }
}

static int step_rank(void *arg, int rank, struct sl_error *err)
{
    struct sl_ranks *r = arg;
    const float *rows = sl_run_enqueue(r->ranks[rank].run, r->batch);
    (void)err; /* a CPU does not fail; one that did would leave the others waiting in a gather */
    if (rank == 0)
        r->rows = rows;
    return 0;
}

static int ranks_step(void *ctx, const struct sl_batch *batch, const float **rows,
                      struct sl_error *err)
{
    struct sl_ranks *r = ctx;
    SL_ASSERT(r->ranks[0].run != NULL && r->ranks[r->n - 1].run != NULL);
    r->batch = batch;
    int rc = sl_team_run(r->team, step_rank, r, err);
    *rows = r->rows;
    return rc;
}

static void ranks_run_items(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx),
                            void *arg, uint32_t n_items)
{
    const struct sl_ranks *r = ctx;
    sl_run_items(r->ranks[0].run, fn, arg, n_items);
}

/* Moves as long as any rank does. */
static uint64_t ranks_progress(const void *ctx)
{
    const struct sl_ranks *r = ctx;
    uint64_t n = 0;
    for (int i = 0; i < r->n; i++)
        n += sl_run_progress(r->ranks[i].run);
    return n;
}

void sl_ranks_use(struct sl_ranks *r, struct sl_host_model *m)
{
    m->ctx = r;
    m->forward = ranks_step;
    m->run_items = ranks_run_items;
    m->progress = ranks_progress;
}
