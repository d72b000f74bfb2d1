/* SPDX-License-Identifier: MIT */
#include "engine/ranks.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "engine/eplb.h"
#include "engine/load/load.h"
#include "engine/load/memory_plan.h"
#include "engine/load/nodes.h"
#include "engine/lora_slots.h"
#include "engine/rank_lora.h"
#include "engine/rank_stage.h"
#include "engine/team.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_TIMEOUT_S 3

struct rank {
    struct sl_backend *backend;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *kv_pool[SL_MAX_KV_GROUPS];
    uint64_t kv_bytes[SL_MAX_KV_GROUPS]; /* of its pages */
    /* of the step: the adapters' weights for this rank, [max_loras], NULL: there are no adapters;
     * and the rows that have them */
    const struct sl_lora_weights **lora;
    struct sl_lora_rows lora_rows[2];
};

struct sl_ranks {
    int n;                 /* parts of the model in this process, */
    int n_ranks, n_stages; /* namely so many ranks of each of so many stages */
    bool on_device;
    const struct sl_model *draft; /* that rank 0 runs alone, or NULL */
    struct sl_host_model first;   /* rank 0 as if it were alone, for what it computes alone */
    struct sl_comm *comm[SL_MAX_STAGES]; /* of a stage's ranks; NULL: it has one */
    struct sl_pipe *pipe[SL_MAX_RANKS];  /* of the stages on devices, of one rank of each */
    struct sl_team *team;                /* of a stage's ranks; NULL: there is one */
    struct sl_rank_pages pages;
    struct sl_eplb_config eplb_cfg;
    struct sl_backend
        *beside;          /* where experts are loaded meanwhile; NULL: they have fixed places */
    struct sl_eplb *eplb; /* from start to stop */
    struct rank ranks[SL_MAX_RANKS]; /* the parts (sl_model_part); [0] is the loader's */
    /* what the team is at */
    const struct sl_engine_config *cfg;
    const struct sl_batch *batch;
    const float *rows;
    /* of processes */
    struct sl_leader *leader; /* NULL: they are threads */
    struct sl_rank_bounds bounds;
    uint8_t *message; /* [max_message] a step, part of an adapter, or a page */
    size_t max_message;
    struct sl_lora_slots adapters; /* what the others have */
    int32_t *adapter_slots;        /* [max_loras] of the step's adapters */
    bool tells_places;             /* of experts, before the next step */
    int32_t start_ms;
};

/* What neither ranks nor stages can do; flag: which of them is asked for. */
static int check_parts(const struct sl_engine_config *cfg, const char *flag, int32_t n,
                       int32_t most, struct sl_error *err)
{
    const char *what = NULL;
    if (n < 0 || n > most)
        return sl_fail(err, SL_EINVAL, "%s: %d is not between 1 and %d", flag, n, most);
    if (cfg->shared != NULL)
        what = "several models in one process";
    if (cfg->enable_lora && strcmp(flag, "tensor_parallel_size") != 0)
        what = "adapters (enable_lora)";
    if (cfg->cpu_offload_experts != NULL)
        what = "experts that stay on the CPU (cpu_offload_experts)";
    if (cfg->skip_softmax_counts)
        what = "counts of skip-softmax (skip_softmax_counts)";
    return what == NULL ? 0
                        : sl_fail(err, SL_EUNSUPPORTED, "%s: %s cannot be divided yet", flag, what);
}

/* "a,b,...", as many as there are stages. */
static int read_layers(const char *text, int32_t n_stages, int32_t layers[SL_MAX_STAGES],
                       struct sl_error *err)
{
    int32_t n = 0;
    bool good = true;
    for (const char *at = text; good; at++) {
        const size_t len = strcspn(at, ",");
        uint64_t number = 0;
        good = n < n_stages && sl_parse_u64(at, len, &number) && number <= SL_MAX_LAYERS;
        if (good)
            layers[n++] = (int32_t)number;
        at += len;
        if (*at == '\0')
            break;
    }
    return good && n == n_stages
               ? 0
               : sl_fail(err, SL_EINVAL,
                         "pipeline_parallel_layers: '%.60s' is not the layers of each of %d stages",
                         text, n_stages);
}

/* The model becomes a part of what the configuration asks for. */
static int set_part(struct sl_model *model, const struct sl_engine_config *cfg, int32_t part,
                    struct sl_error *err)
{
    const int32_t n_ranks = SL_MAX(cfg->tensor_parallel_size, 1);
    const int32_t n_stages = SL_MAX(cfg->pipeline_parallel_size, 1);
    const bool told = cfg->pipeline_parallel_layers != NULL;
    int32_t layers[SL_MAX_STAGES];
    struct sl_eplb_config eplb;
    bool balanced;
    int rc = sl_eplb_config_read(cfg, &balanced, &eplb, err);
    if (rc != 0)
        return rc;
    if (balanced)
        sl_model_balance_experts(model, eplb.num_redundant_experts);
    else if (n_ranks > 1 && cfg->enable_expert_parallel)
        sl_model_divide_experts(model);
    if (cfg->divide_only_experts)
        sl_model_divide_only_experts(model);
    sl_model_divide_positions(model, SL_MAX(cfg->decode_context_parallel_size, 1));
    rc = sl_model_set_rank(model, sl_model_rank_of(part, n_ranks), n_ranks, err);
    if (rc == 0 && told)
        rc = read_layers(cfg->pipeline_parallel_layers, n_stages, layers, err);
    return rc != 0 ? rc
                   : sl_model_set_stage(model, sl_model_stage_of(part, n_ranks, n_stages), n_stages,
                                        told ? layers : NULL, err);
}

/* Parts in all. */
static int check_number(int32_t n_ranks, int32_t n_stages, struct sl_error *err)
{
    return n_ranks * n_stages <= SL_MAX_RANKS
               ? 0
               : sl_fail(err, SL_EINVAL,
                         "pipeline_parallel_size: %d stages of %d ranks (tensor_parallel_size) are "
                         "%d parts, at most %d are possible",
                         n_stages, n_ranks, n_ranks * n_stages, SL_MAX_RANKS);
}

/* What ranks that divide positions cannot do. */
static int check_positions(const struct sl_engine_config *cfg, struct sl_error *err)
{
    const int32_t n = cfg->decode_context_parallel_size;
    if (n < 0 || n > SL_MAX_RANKS)
        return sl_fail(err, SL_EINVAL, "decode_context_parallel_size: %d is not between 1 and %d",
                       n, SL_MAX_RANKS);
    if (n <= 1)
        return 0;
    if (cfg->tensor_parallel_size <= 1)
        return sl_fail(err, SL_EINVAL,
                       "decode_context_parallel_size: there is one rank (tensor_parallel_size), "
                       "which has all positions");
    if (cfg->block_size != 0 && cfg->block_size != SL_KV_STRETCH)
        return sl_fail(err, SL_EINVAL,
                       "decode_context_parallel_size: a rank has %d tokens of a block, not %d "
                       "(block_size)",
                       SL_KV_STRETCH, cfg->block_size);
    return cfg->skip_softmax_threshold_scale_factor == 0
               ? 0
               : sl_fail(err, SL_EUNSUPPORTED,
                         "decode_context_parallel_size: ranks that divide positions cannot skip "
                         "tiles (skip_softmax_threshold_scale_factor) yet");
}

/* What ranks that divide experts alone cannot do. */
static int check_only_experts(const struct sl_engine_config *cfg, struct sl_error *err)
{
    const char *what = NULL;
    if (!cfg->divide_only_experts)
        return 0;
    if (!cfg->enable_expert_parallel || cfg->tensor_parallel_size < 2)
        return sl_fail(err, SL_EINVAL,
                       "divide_only_experts: it needs ranks with experts of their own: "
                       "enable_expert_parallel and a tensor_parallel_size of 2, 4 or 8");
    if (cfg->decode_context_parallel_size > 1)
        what = "divided positions (decode_context_parallel_size)";
    if (cfg->pipeline_parallel_size > 1)
        what = "stages (pipeline_parallel_size)";
    if (cfg->enable_lora)
        what = "adapters (enable_lora)";
    if (cfg->kv_offloading_size > 0)
        what = "copies of pages in host memory (kv_offloading_size)";
    if (cfg->sparse_topk_pages > 0)
        what = "chosen pages (sparse_topk_pages)";
    return what == NULL ? 0
                        : sl_fail(err, SL_EUNSUPPORTED,
                                  "divide_only_experts: %s do not go with it yet", what);
}

int sl_ranks_divide(struct sl_model *model, const struct sl_engine_config *cfg,
                    struct sl_error *err)
{
    const int32_t n = cfg->tensor_parallel_size, n_stages = cfg->pipeline_parallel_size;
    struct sl_eplb_config eplb;
    bool balanced;
    int rc = sl_nodes_check(cfg, err);
    if (rc == 0)
        rc = sl_eplb_config_read(cfg, &balanced, &eplb, err);
    if (rc == 0)
        rc = check_positions(cfg, err);
    if (rc == 0)
        rc = check_only_experts(cfg, err);
    if (rc == 0 && (n_stages < 0 || n_stages > 1))
        rc = check_parts(cfg, "pipeline_parallel_size", n_stages, SL_MAX_STAGES, err);
    else if (rc == 0 && cfg->pipeline_parallel_layers != NULL)
        rc = sl_fail(err, SL_EINVAL,
                     "pipeline_parallel_layers: there is one stage (pipeline_parallel_size)");
    if (rc == 0 && (n < 0 || n > 1))
        rc = check_parts(cfg, "tensor_parallel_size", n, SL_MAX_RANKS, err);
    if (rc != 0 || (n <= 1 && n_stages <= 1))
        return rc;
    rc = check_number(SL_MAX(n, 1), SL_MAX(n_stages, 1), err);
    return rc != 0 ? rc : set_part(model, cfg, cfg->node_rank, err);
}

/* ---------------------------------------------------------------- weights */

/* Stages on CPUs compute one after the other, each on the threads of the same ranks. */
static int open_rank(struct sl_ranks *r, int rank, const struct sl_ckpt *ckpt,
                     const struct sl_engine_config *cfg, struct sl_error *err)
{
    struct rank *k = &r->ranks[rank];
    int rc = sl_model_open(ckpt, &k->model, err);
    if (rc == 0)
        rc = sl_load_task(k->model, ckpt, cfg, err);
    if (rc == 0)
        rc = set_part(k->model, cfg, rank, err);
    if (rc == 0)
        rc = sl_model_set_top_pages(k->model, cfg->sparse_topk_pages, err);
    if (rc != 0)
        return rc;
    sl_model_set_context(k->model, sl_model_facts(r->ranks[0].model)->served);
    if (!r->on_device && rank >= r->n_ranks) {
        k->backend = r->ranks[sl_model_rank_of(rank, r->n_ranks)].backend;
        return 0;
    }
    return sl_load_backend(k->model, cfg, &k->backend, err);
}

static int load_rank(void *arg, int rank, struct sl_error *err)
{
    const struct sl_ranks *r = arg;
    const struct rank *k = &r->ranks[rank];
    const bool tells = rank == 0; /* one of them shows how far it is */
    return sl_model_load(k->model, k->backend, tells ? r->cfg->progress : NULL,
                         r->cfg->progress_arg, err);
}

/* Of processes: whether the experts of these ranks are on others, too. Between steps. */
static bool covers(const void *arg, uint32_t absent)
{
    const struct sl_ranks *r = arg;
    const struct sl_model *m = r->ranks[0].model;
    int32_t n_experts;
    bool all = true;
    SL_ASSERT(absent != 0 && (absent & 1) == 0 && sl_model_facts(m)->only_experts);
    for (int32_t l = 0; l < sl_model_facts(m)->n_layers; l++)
        if (sl_model_places(m, l, &n_experts) > 0)
            all = all && sl_model_places_cover(m, l, sl_model_place_list(m, l), absent);
    return all;
}

/* Rank 0 listens for the others, which load meanwhile. */
static int load_leader(struct sl_ranks *r, const struct sl_ckpt *ckpt,
                       const struct sl_engine_config *cfg, const struct sl_memory_plan *p,
                       struct sl_error *err)
{
    const struct rank *k = &r->ranks[0];
    struct sl_nodes_secret secret;
    struct sl_rank_plan plan;
    SL_ASSERT(r->leader == NULL && cfg->node_rank == 0);
    sl_nodes_plan(k->model, r->draft, p, cfg, &plan);
    const struct sl_run_config run = {.max_tokens = plan.bounds.max_tokens,
                                      .max_logits = plan.bounds.max_logits,
                                      .max_lora_rank = plan.bounds.max_lora_rank};
    const struct sl_rank_pages *moves = plan.moves_pages ? &r->pages : NULL;
    struct sl_leader_config lead = {
        .addr = sl_nodes_addr(cfg),
        .port = sl_nodes_port(cfg),
        .plan = &plan,
        .n_plan = sizeof plan,
        .max_message = sl_nodes_message_bytes(k->model, &plan.bounds, moves),
        .room_bytes = sl_nodes_room_bytes(k->model, k->backend, &run, moves),
        .only_tcp = cfg->rank_transport != NULL && strcmp(cfg->rank_transport, "tcp") == 0};
    if (sl_model_facts(k->model)->only_experts && r->beside != NULL) {
        lead.covers = covers;
        lead.covers_arg = r;
    }
    lead.timeout_ms = (cfg->rank_timeout_s != 0 ? cfg->rank_timeout_s : DEFAULT_TIMEOUT_S) * 1000;
    r->bounds = plan.bounds;
    r->start_ms = sl_nodes_start_ms(cfg);
    r->max_message = lead.max_message;
    r->message = sl_malloc(lead.max_message);
    r->adapter_slots = sl_calloc((size_t)plan.bounds.max_loras + 1, sizeof *r->adapter_slots);
    if (r->message == NULL || r->adapter_slots == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for steps");
    int rc = sl_lora_slots_init(&r->adapters, plan.bounds.max_loras, err);
    if (rc == 0)
        rc = sl_nodes_secret(cfg, &secret, err);
    if (rc != 0)
        return rc;
    lead.secret = secret.data;
    lead.n_secret = secret.n;
    sl_nodes_identity(k->model, ckpt, k->backend, cfg, &lead.id);
    rc = sl_leader_open(&lead, &r->leader, err);
    sl_free(secret.data);
    return rc != 0 ? rc
                   : sl_model_load(k->model, k->backend, cfg->progress, cfg->progress_arg, err);
}

static int part_of(const struct sl_ranks *r, int stage, int rank)
{
    return sl_model_part(stage, rank, r->n_ranks, r->n_stages);
}

/* Devices reach each other's memory, in which there is room for what the ranks of a stage gather,
 * and for what each hands over to the same rank of the next stage. */
static int join_devices(struct sl_ranks *r, const struct sl_memory_plan *p, struct sl_error *err)
{
    struct sl_backend *backends[SL_MAX_RANKS];
    const struct sl_run_config run = {.max_tokens = p->max_num_batched_tokens,
                                      .max_logits = sl_memory_plan_max_logits(p)};
    const size_t row_bytes = (size_t)sl_model_facts(r->ranks[0].model)->hidden * sizeof(float);
    int rc = 0;
    for (int s = 0; s < r->n_stages && r->n_ranks > 1 && rc == 0; s++) {
        for (int i = 0; i < r->n_ranks; i++)
            backends[i] = r->ranks[part_of(r, s, i)].backend;
        const struct sl_model *first = r->ranks[part_of(r, s, 0)].model;
        rc = sl_cuda_comm_create(backends, r->n_ranks, sl_run_room_bytes(first, backends[0], &run),
                                 &r->comm[s], err);
    }
    for (int i = 0; i < r->n_ranks && r->n_stages > 1 && rc == 0; i++) {
        for (int s = 0; s < r->n_stages; s++)
            backends[s] = r->ranks[part_of(r, s, i)].backend;
        rc = sl_cuda_pipe_create(backends, r->n_stages, row_bytes, run.max_tokens, run.max_logits,
                                 &r->pipe[i], err);
    }
    return rc;
}

/* Stages on CPUs meet in the same: their steps follow one another. */
static int join_threads(struct sl_ranks *r, struct sl_error *err)
{
    int rc = r->n_ranks > 1 ? sl_cpu_comm_create(r->n_ranks, &r->comm[0], err) : 0;
    for (int s = 1; s < r->n_stages; s++)
        r->comm[s] = r->comm[0];
    return rc;
}

/* A rank of each stage. */
static int load_stages(void *arg, int rank, struct sl_error *err)
{
    struct sl_ranks *r = arg;
    int rc = 0;
    for (int i = rank; i < r->n && rc == 0; i += r->n_ranks)
        rc = load_rank(r, i, err);
    return rc;
}

/* Devices load all at once; on CPUs stages that share threads do so one after the other. */
static int load_all(struct sl_ranks *r, struct sl_error *err)
{
    struct sl_team *all = NULL;
    int rc = r->n_ranks > 1 ? sl_team_create(r->n_ranks, &r->team, err) : 0;
    if (rc == 0 && r->on_device && r->n_stages > 1) {
        rc = sl_team_create(r->n, &all, err);
        rc = rc != 0 ? rc : sl_team_run(all, load_rank, r, err);
        sl_team_destroy(all);
        return rc;
    }
    if (rc != 0)
        return rc;
    return r->team != NULL ? sl_team_run(r->team, load_stages, r, err) : load_stages(r, 0, err);
}

static int load_threads(struct sl_ranks *r, const struct sl_ckpt *ckpt,
                        const struct sl_engine_config *cfg, const struct sl_memory_plan *plan,
                        struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(r->n > 1 && r->team == NULL);
    for (int i = 1; i < r->n && rc == 0; i++)
        rc = open_rank(r, i, ckpt, cfg, err);
    if (rc == 0)
        rc = r->on_device ? join_devices(r, plan, err) : join_threads(r, err);
    r->cfg = cfg;
    if (rc == 0)
        rc = load_all(r, err);
    r->cfg = NULL;
    return rc;
}

int sl_ranks_beside(const struct sl_model *model, const struct sl_engine_config *cfg,
                    struct sl_eplb_config *eplb, struct sl_backend **out, struct sl_error *err)
{
    struct sl_engine_config one = *cfg;
    bool balanced;
    *out = NULL;
    one.n_threads = 1;
    one.numa = "off";
    int rc = sl_eplb_config_read(cfg, &balanced, eplb, err);
    return rc == 0 && balanced ? sl_load_cpu(sl_model_facts(model), &one, out, err) : rc;
}

int sl_ranks_load(const struct sl_ckpt *ckpt, const struct sl_engine_config *cfg,
                  const struct sl_memory_plan *plan, struct sl_model *model,
                  const struct sl_model *draft, struct sl_backend *backend, struct sl_ranks **out,
                  struct sl_error *err)
{
    const struct sl_model_facts *f = sl_model_facts(model);
    const int n_parts = sl_model_n_parts(f);
    *out = NULL;
    struct sl_ranks *r = sl_calloc(1, sizeof *r);
    if (r == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for ranks");
    SL_ASSERT(n_parts > 1 && n_parts <= SL_MAX_RANKS); /* sl_ranks_divide says so */
    r->n = sl_nodes_several(cfg) ? 1 : n_parts;
    r->n_ranks = r->n == 1 ? 1 : f->n_ranks;
    r->n_stages = r->n == 1 ? 1 : f->n_stages;
    r->ranks[0] = (struct rank){.backend = backend, .model = model};
    r->draft = draft;
    r->on_device = backend->vt->device != NULL;
    SL_ASSERT(!r->on_device || r->n > 1); /* sl_load_backend says so */
    sl_rank_pages_init(&r->pages, model, &plan->kv);
    int rc = r->n == 1 ? sl_cpu_comm_create_linked(f->n_ranks, &r->comm[0], err) : 0;
    if (rc == 0)
        rc = sl_ranks_beside(model, cfg, &r->eplb_cfg, &r->beside, err);
    if (rc == 0)
        rc = r->n == 1 ? load_leader(r, ckpt, cfg, plan, err)
                       : load_threads(r, ckpt, cfg, plan, err);
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
    sl_leader_close(r->leader);
    sl_lora_slots_deinit(&r->adapters);
    sl_free(r->adapter_slots);
    sl_free(r->message);
    sl_team_destroy(r->team);
    for (int s = 0; s < r->n_stages && r->on_device; s++)
        sl_cuda_comm_destroy(r->comm[s]);
    for (int i = 0; i < r->n_ranks; i++)
        sl_cuda_pipe_destroy(r->pipe[i]);
    for (int i = r->n - 1; i > 0; i--) { /* on CPUs the first n_ranks have the backends */
        sl_model_close(r->ranks[i].model);
        if (r->ranks[i].backend != NULL && (r->on_device || i < r->n_ranks))
            r->ranks[i].backend->vt->destroy(r->ranks[i].backend);
    }
    if (!r->on_device)
        sl_cpu_comm_destroy(r->comm[0]);
    if (r->beside != NULL)
        r->beside->vt->destroy(r->beside);
    sl_free(r);
}

static struct sl_comm *comm_of(const struct sl_ranks *r, int part)
{
    return r->comm[sl_model_stage_of(part, r->n_ranks, r->n_stages)];
}

struct sl_comm *sl_ranks_comm(const struct sl_ranks *r)
{
    return comm_of(r, 0);
}

void sl_ranks_rooms(const struct sl_ranks *r, void *rooms[2])
{
    for (int i = 0; i < 2; i++)
        rooms[i] = r->leader != NULL ? sl_leader_room(r->leader, i) : NULL;
    if (r->on_device && r->n_ranks > 1)
        sl_cuda_comm_rooms(comm_of(r, 0), 0, rooms);
}

int sl_ranks_count(const struct sl_ranks *r)
{
    return r->n;
}

struct sl_team *sl_ranks_team(const struct sl_ranks *r)
{
    return r->team;
}

struct sl_run *sl_ranks_run(const struct sl_ranks *r, int rank, struct sl_backend **backend)
{
    SL_ASSERT(rank >= 0 && rank < r->n);
    *backend = r->ranks[rank].backend;
    return r->ranks[rank].run;
}

int sl_ranks_stages(const struct sl_ranks *r)
{
    return r->n_stages;
}

bool sl_ranks_are_processes(const struct sl_ranks *r)
{
    return r != NULL && r->leader != NULL;
}

/* ---------------------------------------------------------------- steps */

static int start_rank(struct sl_ranks *r, int rank, const struct sl_run_config *cfg,
                      struct sl_error *err)
{
    struct rank *k = &r->ranks[rank];
    struct sl_run_config own = *cfg;
    own.comm = comm_of(r, rank);
    if (r->on_device && r->n_ranks > 1)
        sl_cuda_comm_rooms(own.comm, sl_model_rank_of(rank, r->n_ranks), own.rank_room);
    for (int32_t g = 0; g < cfg->kv.n_groups; g++) {
        k->kv_pool[g] = own.kv_pool[g] = k->backend->vt->alloc(k->backend, k->kv_bytes[g]);
        if (k->kv_pool[g] == NULL)
            return sl_fail(err, SL_ENOMEM, "no memory for %.2f GB of KV pages of a %s",
                           (double)k->kv_bytes[g] / 1e9, r->n_ranks > 1 ? "rank" : "stage");
    }
    int rc = sl_run_create(k->model, &own, &k->run, err);
    return rc == 0 && r->on_device ? k->backend->vt->device->load_end(k->backend, err) : rc;
}

static int take_lora(struct rank *k, int32_t max_loras, struct sl_error *err)
{
    SL_ASSERT(k->lora == NULL && max_loras > 0);
    k->lora = sl_calloc((size_t)max_loras, sizeof *k->lora);
    return k->lora != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for adapters of a rank");
}

static uint64_t leader_progress(const void *arg)
{
    const struct sl_ranks *r = arg;
    SL_ASSERT(r->ranks[0].run != NULL); /* it is asked from start to stop */
    return sl_run_progress(r->ranks[0].run);
}

/* The ranks of a stage reach each other's buffers, and a stage's rows the next one. */
static void meet(struct sl_ranks *r)
{
    struct sl_run *runs[SL_MAX_RANKS];
    SL_ASSERT(r->on_device && r->n > 1);
    for (int s = 0; s < r->n_stages && r->n_ranks > 1; s++) {
        for (int i = 0; i < r->n_ranks; i++)
            runs[i] = r->ranks[part_of(r, s, i)].run;
        sl_run_meet(runs, r->n_ranks);
    }
    for (int i = 0; i < r->n && r->n_stages > 1; i++)
        sl_cuda_pipe_stream(r->pipe[sl_model_rank_of(i, r->n_ranks)],
                            sl_model_stage_of(i, r->n_ranks, r->n_stages),
                            sl_run_stream(r->ranks[i].run));
}

static int start_eplb(struct sl_ranks *r, struct sl_error *err)
{
    struct sl_eplb_parts parts = {.n = r->n, .apart = r->leader != NULL};
    if (r->beside == NULL)
        return 0;
    for (int i = 0; i < r->n; i++) {
        parts.models[i] = r->ranks[i].model;
        parts.runs[i] = r->ranks[i].run;
    }
    r->tells_places = parts.apart;
    return sl_eplb_create(&r->eplb_cfg, &parts, r->beside, &r->eplb, err);
}

int sl_ranks_start(struct sl_ranks *r, const struct sl_run_config *cfg,
                   const struct sl_memory_plan *plan, struct sl_run *run, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(run != NULL && r->ranks[0].run == NULL && cfg->comm == comm_of(r, 0));
    r->ranks[0].run = run;
    for (int i = 1; i < r->n; i++)
        for (int32_t g = 0; g < cfg->kv.n_groups; g++)
            r->ranks[i].kv_bytes[g] = sl_memory_plan_part_bytes(plan, i, g);
    for (int i = 1; i < r->n && rc == 0; i++) {
        if (plan->max_loras > 0 && !r->on_device)
            rc = take_lora(&r->ranks[i], plan->max_loras, err);
        if (rc == 0)
            rc = start_rank(r, i, cfg, err);
    }
    if (rc == 0 && r->on_device)
        meet(r);
    if (rc == 0)
        rc = start_eplb(r, err);
    if (rc != 0 || r->leader == NULL)
        return rc;
    sl_leader_watch(r->leader, leader_progress, r);
    return sl_leader_wait(r->leader, r->start_ms, err);
}

void sl_ranks_stop(struct sl_ranks *r)
{
    if (r == NULL)
        return;
    if (r->leader != NULL)
        sl_leader_watch(r->leader, NULL, NULL);
    sl_eplb_destroy(r->eplb);
    r->eplb = NULL;
    r->ranks[0].run = NULL;
    for (int i = 1; i < r->n; i++) {
        struct rank *k = &r->ranks[i];
        sl_run_destroy(k->run);
        k->run = NULL;
        sl_free(k->lora);
        k->lora = NULL;
        for (int32_t g = 0; g < SL_MAX_KV_GROUPS; g++) {
            if (k->kv_pool[g] != NULL)
                k->backend->vt->free(k->backend, k->kv_pool[g], k->kv_bytes[g]);
            k->kv_pool[g] = NULL;
        }
    }
}

/* The adapters of those rows as the rank has them. */
static const struct sl_lora_rows *lora_of(struct rank *k, int rank, const struct sl_lora_rows *rows,
                                          struct sl_lora_rows *own)
{
    if (rows == NULL)
        return NULL;
    SL_ASSERT(rank > 0 && k->lora != NULL);
    for (int32_t i = 0; i < rows->n_segs; i++) {
        const int32_t adapter = rows->segs[i].adapter;
        k->lora[adapter] = sl_lora_of_rank(rows->weights[adapter], rank);
    }
    *own = *rows;
    own->weights = k->lora;
    return own;
}

/* Stages follow one another, each with what the one before it has left: all ranks have all of it.
 */
static int step_rank(void *arg, int rank, struct sl_error *err)
{
    struct sl_ranks *r = arg;
    const size_t row_bytes = (size_t)sl_model_facts(r->ranks[0].model)->hidden * sizeof(float);
    struct rank *k = &r->ranks[rank];
    struct sl_batch own = *r->batch;
    if (rank > 0) {
        own.lora = lora_of(k, rank, own.lora, &k->lora_rows[0]);
        own.logit_lora = lora_of(k, rank, own.logit_lora, &k->lora_rows[1]);
    }
    for (int s = 0; s + 1 < r->n_stages; s++) {
        struct sl_run *run = r->ranks[part_of(r, s, rank)].run;
        (void)sl_run_enqueue(run, &own);
        memcpy(sl_run_stream(r->ranks[part_of(r, s + 1, rank)].run), sl_run_stream(run),
               (size_t)own.n_tokens * row_bytes);
    }
    const float *rows = sl_run_enqueue(k->run, &own);
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
    if (r->eplb != NULL)
        sl_eplb_step(r->eplb);
    int rc = r->team != NULL ? sl_team_run(r->team, step_rank, r, err) : step_rank(r, 0, err);
    *rows = r->rows;
    return rc;
}

/* To each other rank what it has of an adapter. */
static int send_adapter(struct sl_ranks *r, struct sl_link *link, const struct sl_lora_weights *w,
                        int32_t slot)
{
    int rc = 0;
    SL_ASSERT(w->others != NULL && slot < r->adapters.n);
    for (int32_t i = 1; i < link->cfg.n_ranks && rc == 0; i++) {
        const struct sl_lora_weights *own = sl_lora_of_rank(w, i);
        rc = sl_link_send(link, r->message, sl_rank_lora_begin(own, i, slot, r->message));
        for (size_t at = 0; at < own->n_bytes && rc == 0;) {
            const size_t n = sl_rank_lora_piece(own, i, slot, r->max_message, &at, r->message);
            rc = sl_link_send(link, r->message, n);
        }
    }
    return rc;
}

/* Those of the step that the others do not have. */
static int send_adapters(struct sl_ranks *r, struct sl_link *link, const struct sl_lora_rows *rows)
{
    int rc = 0;
    if (rows == NULL)
        return 0;
    sl_lora_slots_step(&r->adapters, rows);
    for (int32_t i = 0; i < rows->n_segs && rc == 0; i++) {
        const int32_t adapter = rows->segs[i].adapter;
        bool fresh;
        SL_ASSERT(adapter >= 0 && adapter < r->adapters.n);
        r->adapter_slots[adapter] = sl_lora_slots_of(&r->adapters, rows->weights[adapter], &fresh);
        if (fresh)
            rc = send_adapter(r, link, rows->weights[adapter], r->adapter_slots[adapter]);
    }
    return rc;
}

/* What goes before a step to the others of its meeting. */
static int send_before(struct sl_ranks *r, struct sl_link *link, const struct sl_batch *batch)
{
    int rc = 0;
    if (r->eplb != NULL && r->tells_places)
        rc = sl_link_send(link, r->message, sl_eplb_put(r->eplb, link->cfg.absent, r->message));
    r->tells_places = r->tells_places && rc != 0;
    return rc == 0 ? send_adapters(r, link, batch->lora) : rc;
}

/* The same with processes: the batch goes to them, and they are met in its gathers, or when a stage
 * hands over. What fails the end of the step says. */
static int leader_step(void *ctx, const struct sl_batch *batch, const float **rows,
                       struct sl_error *err)
{
    struct sl_ranks *r = ctx;
    struct sl_link *link = NULL;
    SL_ASSERT(r->ranks[0].run != NULL && r->message != NULL);
    int rc = sl_leader_begin(r->leader, &link, err);
    if (rc != 0)
        return rc;
    sl_cpu_comm_link(r->comm[0], link);
    rc = send_before(r, link, batch);
    if (rc == 0)
        rc = sl_link_send(link, r->message,
                          sl_rank_step_put(&r->bounds, batch, r->adapter_slots, r->message));
    if (rc == 0 && r->eplb != NULL)
        sl_eplb_step(r->eplb);
    if (rc == 0 && sl_model_facts(r->ranks[0].model)->n_stages > 1)
        rc = sl_rank_stage_step(link, r->ranks[0].model, r->ranks[0].run, batch, rows);
    else if (rc == 0)
        *rows = sl_run_enqueue(r->ranks[0].run, batch);
    sl_cpu_comm_link(r->comm[0], NULL);
    return sl_leader_end(r->leader, err);
}

/* Pages of processes. What the others have of one means nothing after a loss: then nothing begins
 * before the prefix cache is empty (leader_renew). */
static int leader_move(struct sl_ranks *r, int32_t group, int32_t page, uint8_t *dst,
                       const uint8_t *src, struct sl_error *err)
{
    struct sl_link *link = NULL;
    size_t n_bytes;
    uint8_t *pool = r->first.page(r->first.ctx, group, 0, 0, &n_bytes);
    SL_ASSERT(n_bytes == r->pages.bytes[0][group] && (dst == NULL) != (src == NULL));
    int rc = sl_leader_begin(r->leader, &link, err);
    if (rc != 0)
        return rc;
    rc = dst != NULL ? sl_rank_pages_out(&r->pages, link, pool, group, page, dst, r->message)
                     : sl_rank_pages_in(&r->pages, link, pool, group, page, src, r->message);
    const int lost = sl_leader_end(r->leader, err);
    SL_ASSERT(rc == 0 || lost != 0);
    return lost;
}

static int leader_page_out(void *ctx, int32_t group, int32_t page, uint8_t *dst,
                           struct sl_error *err)
{
    return leader_move(ctx, group, page, dst, NULL, err);
}

static int leader_page_in(void *ctx, int32_t group, int32_t page, const uint8_t *src,
                          struct sl_error *err)
{
    return leader_move(ctx, group, page, NULL, src, err);
}

static int leader_health(void *ctx, struct sl_error *err)
{
    const struct sl_ranks *r = ctx;
    struct sl_error why = {.code = SL_OK};
    uint32_t absent;
    int rc = sl_leader_health(r->leader, &absent, &why);
    SL_ASSERT(rc == 0 || (rc == SL_ERANK && absent == 0));
    if (rc != 0)
        return sl_fail(err, rc, "%s", why.msg);
    if (absent != 0 && err != NULL)
        snprintf(err->msg, sizeof err->msg, "steps do without %d of %d ranks: %.200s",
                 __builtin_popcount(absent), sl_model_facts(r->ranks[0].model)->n_ranks, why.msg);
    return 0;
}

static void leader_ranks(const void *ctx, struct sl_rank_stats *out)
{
    const struct sl_ranks *r = ctx;
    struct sl_error why;
    uint32_t absent;
    const bool works = sl_leader_health(r->leader, &absent, &why) == 0;
    SL_ASSERT(r->leader != NULL && r->n == 1);
    *out = (struct sl_rank_stats){.n = sl_model_n_parts(sl_model_facts(r->ranks[0].model)),
                                  .n_there = sl_leader_n_there(r->leader),
                                  .n_absent = works ? __builtin_popcount(absent) : 0};
}

static enum sl_renewal leader_renew(void *ctx)
{
    static const enum sl_renewal of[] = {[SL_LEADER_NOTHING] = SL_RENEW_NOTHING,
                                         [SL_LEADER_LOST] = SL_RENEW_LOST,
                                         [SL_LEADER_JOINED] = SL_RENEW_JOINED};
    struct sl_ranks *r = ctx;
    SL_ASSERT(r->ranks[0].run != NULL); /* which reads what is given up then */
    const enum sl_renewal anew = of[sl_leader_renew(r->leader)];
    if (anew !=
        SL_RENEW_NOTHING) /* who comes back has none, and experts where it began with them */
        sl_lora_slots_clear(&r->adapters);
    r->tells_places = r->tells_places || anew != SL_RENEW_NOTHING;
    return anew;
}

static void ranks_run_items(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx),
                            void *arg, uint32_t n_items)
{
    const struct sl_ranks *r = ctx;
    sl_run_items(r->ranks[0].run, fn, arg, n_items);
}

/* Moves as long as any rank does, or the drafter of rank 0. */
static uint64_t ranks_progress(const void *ctx)
{
    const struct sl_ranks *r = ctx;
    uint64_t n = r->first.progress(r->first.ctx);
    for (int i = 1; i < r->n; i++)
        n += sl_run_progress(r->ranks[i].run);
    return n;
}

/* What each rank's heads, or each stage's layers, have of a page. */
static uint8_t *ranks_page(void *ctx, int32_t group, int32_t page, int32_t part, size_t *n_bytes)
{
    const struct sl_ranks *r = ctx;
    SL_ASSERT(part >= 0 && part < r->n && r->leader == NULL);
    if (part == 0)
        return r->first.page(r->first.ctx, group, page, 0, n_bytes);
    *n_bytes = r->pages.bytes[part][group];
    return r->ranks[part].kv_pool[group] + (size_t)page * *n_bytes;
}

/* A drafter is small, and whole on rank 0. */
static int ranks_draft(void *ctx, const struct sl_batch *batch, const int32_t *sources, bool own,
                       const float **rows, struct sl_error *err)
{
    const struct sl_ranks *r = ctx;
    return r->first.draft(r->first.ctx, batch, sources, own, rows, err);
}

static void ranks_draft_chain(void *ctx, const struct sl_draft_chain *c, const float **rows)
{
    const struct sl_ranks *r = ctx;
    r->first.draft_chain(r->first.ctx, c, rows);
}

static int32_t ranks_draft_token(const void *ctx, int32_t idx)
{
    const struct sl_ranks *r = ctx;
    return r->first.draft_token(r->first.ctx, idx);
}

/* Of the ranks of this process: each has some of the key heads, or of the layers. */
static void ranks_top_pages(const void *ctx, struct sl_top_page_counts *out)
{
    const struct sl_ranks *r = ctx;
    SL_ASSERT(r->n > 0 && r->ranks[0].run != NULL);
    *out = (struct sl_top_page_counts){0};
    for (int i = 0; i < r->n; i++) {
        struct sl_top_page_counts one;
        sl_run_top_pages(r->ranks[i].run, &one);
        out->read += one.read;
        out->dense += one.dense;
    }
}

static void ranks_eplb(const void *ctx, struct sl_eplb_stats *out)
{
    const struct sl_ranks *r = ctx;
    sl_eplb_stats(r->eplb, out);
}

void sl_ranks_use(struct sl_ranks *r, struct sl_host_model *m)
{
    r->first = *m;
    m->ctx = r;
    m->page = r->leader == NULL ? ranks_page : NULL;
    m->page_out = r->leader != NULL ? leader_page_out : NULL;
    m->page_in = r->leader != NULL ? leader_page_in : NULL;
    m->n_page_parts = r->n;
    m->draft = m->draft != NULL ? ranks_draft : NULL;
    m->draft_chain = m->draft_chain != NULL ? ranks_draft_chain : NULL;
    m->draft_token = m->draft_token != NULL ? ranks_draft_token : NULL;
    m->forward = r->leader != NULL ? leader_step : ranks_step;
    m->health = r->leader != NULL ? leader_health : NULL;
    m->renew = r->leader != NULL ? leader_renew : NULL;
    m->ranks = r->leader != NULL ? leader_ranks : NULL;
    m->run_items = ranks_run_items;
    m->progress = ranks_progress;
    m->top_pages = ranks_top_pages;
    m->eplb = r->eplb != NULL ? ranks_eplb : NULL;
}
