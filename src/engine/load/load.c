/* SPDX-License-Identifier: MIT
 * load.c - sl_engine_create: opens checkpoint, tokenizer, template and model, lays out memory by
 * the plan, loads the weights and starts the engine core on the result.
 */
#include "engine/load/load.h"

#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "engine/adapters.h"
#include "engine/load/loaded.h"
#include "engine/load/offload.h"
#include "engine/load/tier_plan.h"
#include "ops/device.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_RETENTION 0.75
#define DEFAULT_ITL_MS    50

/* Of the pages of a group, of the first part of the model. */
static uint64_t group_bytes(const struct sl_loaded *l, int32_t g)
{
    return sl_memory_plan_part_bytes(&l->plan, 0, g);
}

void sl_loaded_unload(struct sl_loaded *l, bool weights)
{
    SL_ASSERT(l->device_runner == NULL || l->host_runner == NULL);
    SL_ASSERT(l->backend != NULL || l->run == NULL);
    sl_device_runner_destroy(l->device_runner);
    l->device_runner = NULL;
    sl_host_runner_destroy(l->host_runner);
    l->host_runner = NULL;
    sl_ranks_stop(l->ranks);
    sl_load_draft_stop(&l->draft, l->backend);
    if (l->run != NULL)
        sl_run_destroy(l->run);
    l->run = NULL;
    for (int32_t g = 0; g < SL_MAX_KV_GROUPS; g++) {
        if (l->kv_pool[g] != NULL)
            l->backend->vt->free(l->backend, l->kv_pool[g], group_bytes(l, g));
        l->kv_pool[g] = NULL;
    }
    if (l->skip_counts != NULL)
        l->backend->vt->free(l->backend, l->skip_counts, 2 * sizeof *l->skip_counts);
    l->skip_counts = NULL;
    if (!weights)
        return;
    SL_ASSERT(l->taken_bytes == 0 || l->cfg.shared != NULL);
    if (l->taken_bytes > 0)
        sl_shared_sub_taken(l->cfg.shared, l->taken_bytes);
    l->taken_bytes = 0;
    sl_ranks_destroy(l->ranks);
    l->ranks = NULL;
    sl_load_draft_close(&l->draft);
    if (l->model != NULL)
        sl_model_close(l->model);
    l->model = NULL;
    if (l->backend != NULL)
        l->backend->vt->destroy(l->backend);
    l->backend = NULL;
    if (l->host != NULL)
        l->host->vt->destroy(l->host);
    l->host = NULL;
}

const char **sl_loaded_config_string(struct sl_engine_config *cfg, size_t i)
{
    const char **all[] = {&cfg->device,
                          &cfg->cpu_offload_experts,
                          &cfg->eplb_config,
                          &cfg->kv_cache_dtype,
                          &cfg->kv_cache_dtype_skip_layers,
                          &cfg->cpu_isa,
                          &cfg->numa,
                          &cfg->runner,
                          &cfg->convert,
                          &cfg->classifier_from_token,
                          &cfg->activation_dtype,
                          &cfg->pipeline_parallel_layers,
                          &cfg->master_addr,
                          &cfg->rank_secret_file,
                          &cfg->rank_transport,
                          &cfg->speculative_config,
                          &cfg->speculative_model,
                          &cfg->kv_cache_dir,
                          &cfg->kv_cache_coding,
                          &cfg->kv_offloading_backend,
                          &cfg->kv_remote_url,
                          &cfg->kv_remote_load,
                          &cfg->kv_transfer_config,
                          &cfg->disaggregation_mode,
                          &cfg->kv_transfer_host,
                          &cfg->kv_transfer_peers};
    return i < SL_COUNT(all) ? all[i] : NULL;
}

static void loaded_destroy(void *user)
{
    struct sl_loaded *l = user;
    sl_loaded_unload(l, true);
    for (size_t i = 0; sl_loaded_config_string(&l->cfg, i) != NULL; i++)
        sl_free((void *)(uintptr_t)*sl_loaded_config_string(&l->cfg, i));
    sl_share_close(l->share);
    if (l->template != NULL)
        sl_template_destroy(l->template);
    if (l->tokenizer != NULL)
        sl_tokenizer_destroy(l->tokenizer);
    if (l->ckpt != NULL)
        sl_ckpt_close(l->ckpt);
    sl_free(l->path);
    sl_free(l);
}

static int load_text_parts(struct sl_loaded *l, const struct sl_engine_config *cfg,
                           struct sl_error *err)
{
    int rc = sl_load_tokenizer(l->ckpt, &l->tokenizer, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "%s", sl_ckpt_path(l->ckpt));
    SL_ASSERT(l->tokenizer != NULL && l->template == NULL);
    if (cfg->chat_template != NULL)
        return sl_load_template_override(cfg->chat_template, &l->template, err);
    rc = sl_load_template(l->ckpt, &l->template, err);
    if (rc == SL_ENOMEM || rc == SL_EIO)
        return rc; /* says nothing about the template */
    if (rc != 0) {
        /* Completions work without it; a chat request then says that there is no template. */
        sl_log(SL_LOG_WARN, "%s", err != NULL ? err->msg : "chat template unusable");
        rc = 0;
    }
    return rc;
}

/* Refused before loading: what no kernel of the device can do, in layers of one of the models. */
static int check_heads(const struct sl_loaded *l, const struct sl_heads *h, enum sl_dtype pages,
                       struct sl_error *err)
{
    char values[48] = "";
    if (l->backend->vt->device->supports(l->backend, h, pages))
        return 0;
    if (h->v_dim != h->head_dim)
        snprintf(values, sizeof values, " (values of %d)", h->v_dim);
    return sl_fail(err, SL_EUNSUPPORTED,
                   "attention with %d heads of %d dimensions%s, %d key heads and pages of %s has "
                   "no kernel on this device: choose device cpu",
                   h->n_heads, h->head_dim, values, h->n_kv_heads, sl_dtype_info(pages)->name);
}

static int check_device(const struct sl_loaded *l, const struct sl_engine_config *cfg,
                        struct sl_error *err)
{
    struct sl_heads kinds[SL_MAX_HEAD_KINDS], more[SL_MAX_HEAD_KINDS];
    const bool drafts = l->draft.model != NULL && sl_speculative_loads(&l->plan.speculative);
    if (l->backend->vt->device == NULL)
        return 0;
    if (cfg->sparse_topk_pages > 0 &&
        SL_MAX(cfg->tensor_parallel_size, 1) * SL_MAX(cfg->pipeline_parallel_size, 1) > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "sparse_topk_pages: a model on several GPUs does not choose pages yet");
    if (cfg->sparse_topk_pages > 0) {
        int rc = sl_model_top_pages_device(l->model, err);
        if (rc != 0)
            return rc;
    }
    if (l->plan.kv.n_exempt > 0 && l->plan.kv.dtype < SL_DTYPE_COUNT)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "kv-cache-dtype-skip-layers: pages have one format on this device: choose "
                       "device cpu");
    const int32_t n = sl_model_heads(l->model, kinds, SL_MAX_HEAD_KINDS);
    const int32_t n_more = drafts ? sl_model_heads(l->draft.model, more, SL_MAX_HEAD_KINDS) : 0;
    if (n + n_more > SL_MAX_HEAD_KINDS)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "layers with %d different numbers or sizes of heads: a device runs at most "
                       "%d",
                       n + n_more, SL_MAX_HEAD_KINDS);
    int rc = 0;
    for (int32_t i = 0; i < n && rc == 0; i++)
        rc = check_heads(l, &kinds[i], l->plan.kv.dtype, err);
    for (int32_t i = 0; i < n_more && rc == 0; i++)
        rc = check_heads(l, &more[i], l->plan.draft_kv.dtype, err);
    return rc != 0 && n_more > 0 ? sl_error_prefix(err, rc, "speculative-config") : rc;
}

/* Tells the engines that share with this one what it takes; its pages have a floor among theirs. */
static int join(struct sl_loaded *l, struct sl_shared *shared, struct sl_error *err)
{
    const struct sl_memory_plan *p = &l->plan;
    if (l->share == NULL) {
        int rc = sl_share_open(&shared->budget, p->own_bytes, sl_memory_plan_page_bytes(p, 0),
                               p->n_floor_pages, &l->share, err);
        if (rc != 0)
            return rc;
    }
    SL_ASSERT(l->share != NULL && l->taken_bytes == 0);
    l->taken_bytes = p->on_device ? p->host_packed_bytes + p->host_room_bytes
                                  : p->packed_bytes + p->activation_bytes;
    l->taken_bytes += p->corpus_bytes;
    sl_shared_add_taken(shared, l->taken_bytes);
    return 0;
}

static void discard_page(void *user, int32_t page)
{
    struct sl_loaded *l = user;
    size_t n_bytes = l->plan.kv.groups[0].page_bytes;
    if (l->kv_pool[0] != NULL && !l->plan.on_device)
        sl_memory_drop(l->kv_pool[0] + (size_t)page * n_bytes, n_bytes);
    n_bytes = l->plan.draft_kv.groups[0].page_bytes;
    if (l->draft.pool != NULL && !l->plan.on_device)
        sl_memory_drop(l->draft.pool + (size_t)page * n_bytes, n_bytes);
}

int sl_loaded_model(struct sl_loaded *l, const struct sl_engine_config *cfg, struct sl_error *err)
{
    int rc = sl_model_open(l->ckpt, &l->model, err);
    if (rc == 0)
        rc = sl_load_task(l->model, l->ckpt, cfg, err);
    if (rc == 0)
        rc = sl_model_set_top_pages(l->model, cfg->sparse_topk_pages, err);
    if (rc == 0 && sl_model_facts(l->model)->task == SL_TASK_GENERATE)
        rc = sl_load_draft_open(cfg, l->model, l->ckpt, l->tokenizer, &l->draft, err);
    if (rc == 0)
        rc = sl_load_backend(l->model, cfg, &l->backend, err);
    if (rc == 0 && l->draft.model != NULL)
        rc = sl_model_draft_divided(l->draft.model, err);
    if (rc == 0)
        rc = sl_offload_plan(l->model, l->draft.model, l->backend, cfg, &l->host, &l->plan, err);
    if (rc == 0)
        rc = check_device(l, cfg, err);
    if (rc == 0 && cfg->shared != NULL)
        rc = join(l, cfg->shared, err);
    if (rc != 0)
        return rc;
    sl_model_set_context(l->model, l->plan.max_model_len);
    SL_ASSERT(l->plan.on_device == (l->backend->vt->device != NULL));
    if (l->plan.context_lowered && l->share != NULL)
        sl_log(SL_LOG_INFO,
               "context lowered from %d to %d tokens: those are kept for this model of the %.2f GB "
               "that all share (--max-model-len or --kv-cache-memory-bytes raises it)",
               sl_model_facts(l->model)->context, l->plan.max_model_len,
               (double)cfg->shared->budget.total / 1e9);
    else if (l->plan.context_lowered)
        sl_log(SL_LOG_INFO,
               "context lowered from %d to %d tokens: that is what the KV pool of %.2f GB holds "
               "(--kv-cache-memory-bytes raises it)",
               sl_model_facts(l->model)->context, l->plan.max_model_len,
               (double)l->plan.kv_bytes / 1e9);
    if (sl_model_n_parts(sl_model_facts(l->model)) > 1)
        rc = sl_ranks_load(l->ckpt, cfg, &l->plan, l->model,
                           sl_load_draft_reads_rows(&l->draft) ? l->draft.model : NULL, l->backend,
                           &l->ranks, err);
    else
        rc = sl_model_load(l->model, l->backend, cfg->progress, cfg->progress_arg, err);
    return rc != 0 ? rc : sl_load_draft_weights(&l->draft, cfg, &l->plan, l->backend, err);
}

/* One step on the CPU at a time: those of engines that share it take turns. A CPU does not fail. */
static const float *take_step(const struct sl_loaded *l, struct sl_run *run,
                              const struct sl_batch *batch, const float *hidden,
                              const int32_t *sources, bool own)
{
    struct sl_shared *shared = l->cfg.shared;
    if (shared != NULL)
        sl_turn_take(&shared->steps);
    const float *rows = hidden != NULL ? sl_run_enqueue_draft(run, batch, hidden, sources, own)
                                       : sl_run_enqueue(run, batch);
    if (shared == NULL)
        return rows;
    atomic_fetch_add_explicit(&shared->n_steps, 1, memory_order_relaxed);
    sl_turn_pass(&shared->steps);
    return rows;
}

static int run_step(void *ctx, const struct sl_batch *batch, const float **logits,
                    struct sl_error *err)
{
    const struct sl_loaded *l = ctx;
    (void)err;
    *logits = take_step(l, l->run, batch, NULL, NULL, false);
    return 0;
}

static int run_draft(void *ctx, const struct sl_batch *batch, const int32_t *sources, bool own,
                     const float **rows, struct sl_error *err)
{
    const struct sl_loaded *l = ctx;
    (void)err;
    const float *hidden = NULL;
    if (sl_load_draft_reads_rows(&l->draft) && sources != NULL)
        hidden = own ? sl_run_hidden(l->draft.run) : sl_run_taps(l->run);
    *rows = take_step(l, l->draft.run, batch, hidden, sources, own);
    return 0;
}

static void draft_chain(void *ctx, const struct sl_draft_chain *c, const float **rows)
{
    const struct sl_loaded *l = ctx;
    *rows = sl_run_draft_chain(l->draft.run, c);
}

static int32_t draft_token(const void *ctx, int32_t idx)
{
    const struct sl_loaded *l = ctx;
    return sl_model_draft_token(l->draft.model, idx);
}

static uint64_t run_progress(const void *ctx)
{
    const struct sl_loaded *l = ctx;
    uint64_t n = sl_run_progress(l->run);
    if (l->draft.run != NULL)
        n += sl_run_progress(l->draft.run);
    if (l->cfg.shared != NULL)
        n += atomic_load_explicit(&l->cfg.shared->n_steps, memory_order_relaxed);
    return n;
}

static void run_top_pages(const void *ctx, struct sl_top_page_counts *out)
{
    const struct sl_loaded *l = ctx;
    SL_ASSERT(l->run != NULL);
    sl_run_top_pages(l->run, out);
}

static void run_items(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                      uint32_t n_items)
{
    const struct sl_loaded *l = ctx;
    sl_run_items(l->run, fn, arg, n_items);
}

/* Of ranks, or stages: rank 0's part. */
static uint8_t *page_of(void *ctx, int32_t group, int32_t page, int32_t part, size_t *n_bytes)
{
    const struct sl_loaded *l = ctx;
    SL_ASSERT(part == 0);
    *n_bytes = sl_memory_plan_part_page(&l->plan, 0, group);
    return l->kv_pool[group] + (size_t)page * *n_bytes;
}

/* A model on the CPU as its runner sees it. */
static int load_host_runner(struct sl_loaded *l, struct sl_error *err)
{
    const struct sl_model_facts *f = sl_model_facts(l->model);
    SL_ASSERT(l->run != NULL && l->host_runner == NULL && !l->plan.on_device);
    struct sl_host_model m = {.ctx = l->self,
                              .n_vocab = f->n_vocab,
                              .n_pooled = f->task != SL_TASK_GENERATE ? f->n_out : 0,
                              .per_token = f->task == SL_TASK_TOKEN_EMBED,
                              .whole = f->whole,
                              .forward = run_step,
                              .run_items = run_items,
                              .n_threads = l->backend->vt->n_threads(l->backend),
                              .page = page_of,
                              .progress = run_progress,
                              .top_pages = run_top_pages};
    if (l->draft.run != NULL) {
        m.draft = run_draft;
        m.n_draft_vocab = sl_model_facts(l->draft.model)->n_vocab;
        m.draft_context = sl_model_facts(l->draft.model)->context;
        m.draft_rows = sl_load_draft_reads_rows(&l->draft);
        m.draft_token = m.draft_rows ? draft_token : NULL;
        m.n_draft_row = sl_model_facts(l->draft.model)->n_row;
        m.draft_block = sl_memory_plan_draft_block(&l->plan, l->draft.model);
        m.draft_mask = sl_model_facts(l->draft.model)->draft_mask;
        m.draft_apart = sl_model_facts(l->draft.model)->draft_apart;
        m.draft_chain = sl_model_facts(l->draft.model)->draft_chain ? draft_chain : NULL;
        m.draft_odds = sl_model_facts(l->draft.model)->draft_odds;
        m.draft_borrows = sl_model_facts(l->draft.model)->draft_borrows;
        struct sl_run_config draft;
        sl_memory_plan_draft_run(&l->plan, l->draft.model, &draft);
        m.draft_tokens = draft.max_tokens;
        m.draft_from_anchor = sl_model_facts(l->draft.model)->draft_from_anchor;
    }
    if (l->ranks != NULL)
        sl_ranks_use(l->ranks, &m);
    return sl_host_runner_create(&m, sl_memory_plan_max_logits(&l->plan), &l->host_runner, err);
}

/* The device's own end of loading, and the runner that enqueues. */
static int load_device_runner(struct sl_loaded *l, struct sl_error *err)
{
    const struct sl_device_vt *dev = l->backend->vt->device;
    struct sl_device_runner_config cfg;
    SL_ASSERT(l->run != NULL && l->device_runner == NULL && l->plan.on_device);
    int rc = dev->load_end(l->backend, err);
    if (rc != 0)
        return rc;
    sl_memory_plan_runner(&l->plan, &cfg);
    sl_memory_plan_runner_draft(&l->plan, l->draft.model, &cfg);
    cfg.draft_run = l->draft.run;
    if (l->plan.tier_bytes > 0)
        memcpy(cfg.pools, l->kv_pool, sizeof cfg.pools);
    cfg.ranks = l->ranks;
    return sl_device_runner_create(l->model, l->backend, l->run, &cfg, &l->device_runner, err);
}

int sl_loaded_run(struct sl_loaded *l, struct sl_error *err)
{
    for (int32_t g = 0; g < l->plan.kv.n_groups; g++) {
        l->kv_pool[g] = l->backend->vt->alloc(l->backend, group_bytes(l, g));
        if (l->kv_pool[g] == NULL)
            return sl_fail(err, SL_ENOMEM, "no memory for %.2f GB of KV pages",
                           (double)l->plan.kv_bytes / 1e9);
    }
    struct sl_run_config run = {.max_tokens = l->plan.max_num_batched_tokens,
                                .max_logits = sl_memory_plan_max_logits(&l->plan),
                                .kv = l->plan.kv,
                                .comm = l->ranks != NULL ? sl_ranks_comm(l->ranks) : NULL,
                                .max_lora_rank = l->plan.max_lora_rank,
                                .skip_softmax = l->cfg.skip_softmax_threshold_scale_factor};
    memcpy(run.kv_pool, l->kv_pool, sizeof run.kv_pool);
    if (l->ranks != NULL)
        sl_ranks_rooms(l->ranks, run.rank_room);
    if (l->draft.model != NULL)
        run.n_taps = sl_model_draft_taps(l->draft.model, run.taps);
    if (l->cfg.skip_softmax_counts) {
        l->skip_counts = l->backend->vt->alloc(l->backend, 2 * sizeof *l->skip_counts);
        if (l->skip_counts == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for the counts of skip-softmax");
        run.skip_counts = l->skip_counts;
    }
    int rc = sl_run_create(l->model, &run, &l->run, err);
    if (rc == 0 && l->ranks != NULL)
        rc = sl_ranks_start(l->ranks, &run, &l->plan, l->run, err);
    if (rc == 0)
        rc = sl_load_draft_start(&l->draft, &l->plan, l->kv_pool, l->backend, err);
    if (rc != 0)
        return rc;
    return l->backend->vt->device != NULL ? load_device_runner(l, err) : load_host_runner(l, err);
}

/* Adapters of the model; the engine closes them. */
static int open_adapters(const struct sl_loaded *l, struct sl_adapters **out, struct sl_error *err)
{
    if (l->plan.max_loras == 0)
        return 0;
    struct sl_adapters_config cfg = {.model = l->model,
                                     .max_rank = l->plan.max_lora_rank,
                                     .max_active = l->plan.max_loras,
                                     .max_resident = l->plan.max_cpu_loras,
                                     .bf16 = l->device_runner != NULL};
    return sl_adapters_create(&cfg, out, err);
}

void sl_loaded_runner(const struct sl_loaded *l, struct sl_runner *r)
{
    SL_ASSERT((l->device_runner != NULL) != (l->host_runner != NULL));
    if (l->device_runner != NULL)
        sl_device_runner_use(l->device_runner, r);
    else
        sl_host_runner_use(l->host_runner, r);
}

/* Copies of pages outside the pool, as the plan has found them possible. */
static int plan_tiers(const struct sl_loaded *l, const struct sl_engine_config *cfg,
                      struct sl_tiers_config *out, struct sl_error *err)
{
    struct sl_tier_plan tiers;
    int rc = sl_tier_plan_read(cfg, &tiers, err);
    if (rc != 0 || tiers.host_bytes == 0)
        return rc;
    out->store = (struct sl_store_config){.root = sl_loaded_page_root(l, cfg),
                                          .host_bytes = tiers.host_bytes,
                                          .policy = tiers.arc ? SL_POLICY_ARC : SL_POLICY_LRU,
                                          .dir = tiers.dir,
                                          .disk_bytes = tiers.disk_bytes,
                                          .coding = tiers.coding,
                                          .remote_url = tiers.remote_url,
                                          .remote_password = tiers.remote_password,
                                          .remote_timeout_ms = tiers.remote_timeout_ms,
                                          .remote_store_after = tiers.remote_store_after,
                                          .remote_ttl_s = tiers.remote_ttl_s};
    out->always_load = tiers.always_load;
    out->store_threshold = tiers.store_threshold;
    out->max_tracker_size = tiers.max_tracker_size;
    const int32_t port = cfg->disaggregation_bootstrap_port;
    out->transfer =
        (struct sl_transfer_config){.serves = tiers.serves,
                                    .asks = tiers.asks,
                                    .host = cfg->kv_transfer_host,
                                    .port = port < 0    ? 0
                                            : port == 0 ? SL_BOOTSTRAP_PORT
                                                        : port,
                                    .bootstrap_port = port > 0 ? port : SL_BOOTSTRAP_PORT,
                                    .peers = tiers.peers,
                                    .nixl = tiers.nixl};
    for (int32_t g = 0; g < l->plan.kv.n_groups; g++)
        out->page_bytes[g] = l->plan.kv.groups[g].page_bytes;
    return 0;
}

static int load_everything(struct sl_loaded *l, const struct sl_engine_config *cfg,
                           struct sl_engine_parts *parts, struct sl_error *err)
{
    int rc = 0;
    if (cfg->node_rank > 0)
        return sl_fail(err, SL_EINVAL, "node_rank: the engine is that of node 0 (sl_rank_follow)");
    rc = sl_ckpt_open(cfg->model, &l->ckpt, err);
    if (rc == 0)
        rc = load_text_parts(l, cfg, err);
    if (rc == 0)
        rc = sl_load_sampling(l->ckpt, &parts->sampling, err);
    if (rc != 0)
        return rc;
    l->path = sl_strdup(sl_ckpt_path(l->ckpt));
    if (l->path == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a path");
    parts->tokenizer = l->tokenizer;
    parts->no_prefix_caching = cfg->no_prefix_caching;
    parts->kv_retention = cfg->no_prefix_caching || cfg->kv_retention < 0 ? 0
                          : cfg->kv_retention > 0 ? (double)cfg->kv_retention
                                                  : DEFAULT_RETENTION;
    parts->no_jump_forward = cfg->no_jump_forward;
    parts->kv_events = cfg->kv_events;
    parts->max_queued = cfg->max_queued;
    parts->priority_max_wait_ms = cfg->priority_max_wait_ms;
    parts->watchdog_s = cfg->watchdog_s;
    parts->max_itl_ms = cfg->max_itl_ms == 0 ? DEFAULT_ITL_MS : SL_MAX(cfg->max_itl_ms, 0);
    if (cfg->null_model) {
        sl_loaded_null_info(l, cfg, &parts->info);
        parts->info.data_parallel_rank = cfg->data_parallel_rank;
        sl_null_runner_init(&l->null_runner, parts->info.n_vocab, &parts->runner);
        return 0;
    }
    const float skip = cfg->skip_softmax_threshold_scale_factor;
    if (!(skip >= 0.0f && skip <= 1e9f))
        return sl_fail(err, SL_EINVAL,
                       "skip_softmax_threshold_scale_factor: %g is not between 0 and 1e9",
                       (double)skip);
    if (skip > 0.0f && cfg->sparse_topk_pages > 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "sparse_topk_pages: skip-softmax "
                       "(skip_softmax_threshold_scale_factor) leaves out by another rule: choose "
                       "one of them");
    l->cfg.shared = cfg->shared;
    l->cfg.skip_softmax_threshold_scale_factor = skip;
    l->cfg.skip_softmax_counts = cfg->skip_softmax_counts;
    rc = sl_loaded_model(l, cfg, err);
    if (rc == 0)
        rc = sl_loaded_run(l, err);
    if (rc == 0)
        rc = sl_loaded_keep_config(l, cfg, err);
    if (rc != 0)
        return rc;
    const struct sl_model_facts *f = sl_model_facts(l->model);
    sl_loaded_info(l, &parts->info);
    parts->info.data_parallel_rank = cfg->data_parallel_rank;
    parts->eos_ids = f->eos;
    parts->n_eos_ids = f->n_eos;
    sl_loaded_runner(l, &parts->runner);
    parts->speculative = l->plan.speculative;
    parts->share = sl_memory_plan_shares(&l->plan) ? l->share : NULL;
    parts->kv_root = sl_loaded_kv_root(l);
    parts->discard = discard_page;
    parts->park = sl_loaded_park;
    parts->unpark = sl_loaded_unpark;
    rc = plan_tiers(l, cfg, &parts->tiers, err);
    if (rc == 0)
        rc = open_adapters(l, &parts->adapters, err);
    l->adapters = parts->adapters;
    return rc;
}

int sl_engine_create(const struct sl_engine_config *cfg, struct sl_engine **out,
                     struct sl_error *err)
{
    struct sl_engine_parts parts = {0};
    *out = NULL;
    struct sl_loaded *l = sl_calloc(1, sizeof *l);
    if (l == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    l->self = l;
    int rc = load_everything(l, cfg, &parts, err);
    parts.user = l;
    parts.destroy = loaded_destroy;
    if (rc == 0)
        rc = sl_engine_start(&parts, out, err);
    SL_ASSERT((rc == 0) == (*out != NULL));
    if (rc != 0) {
        sl_adapters_close(parts.adapters);
        loaded_destroy(l);
    }
    return rc;
}

int sl_engine_skipped(struct sl_engine *eng, struct sl_skipped *prefill, struct sl_skipped *decode,
                      struct sl_error *err)
{
    const struct sl_loaded *l = sl_engine_user(eng);
    struct sl_skip_counts n[2] = {{0}};
    int rc = 0;
    if (l == NULL || l->skip_counts == NULL)
        return sl_fail(err, SL_EINVAL, "skip_softmax_counts was not asked for");
    if (l->backend->vt->device != NULL)
        rc = l->backend->vt->device->download(l->backend, n, l->skip_counts, sizeof n, err);
    else
        memcpy(n, l->skip_counts, sizeof n);
    for (int i = 0; i < 2; i++)
        *(i == 0 ? prefill : decode) =
            (struct sl_skipped){n[i].tiles, n[i].skipped, n[i].units, n[i].units_skipped};
    return rc;
}

bool sl_engine_has_chat_template(const struct sl_engine *eng)
{
    const struct sl_loaded *l = sl_engine_user(eng);
    return l != NULL && l->template != NULL;
}

const char *sl_engine_chat_template(const struct sl_engine *eng, size_t *n)
{
    const struct sl_loaded *l = sl_engine_user(eng);
    *n = 0;
    return sl_engine_has_chat_template(eng) ? sl_template_source(l->template, n) : NULL;
}

int sl_engine_render_chat(const struct sl_engine *eng, const char *context_json, size_t n_context,
                          char **out, size_t *n_out, struct sl_error *err)
{
    const struct sl_loaded *l = sl_engine_user(eng);
    struct sl_buf text = {0};
    *out = NULL;
    if (!sl_engine_has_chat_template(eng))
        return sl_fail(err, SL_EINVAL, "messages: this model has no chat template");
    int rc = sl_render_context(l->template, l->tokenizer, context_json, n_context, &text, err);
    if (rc == 0 && (*out = sl_buf_steal(&text, n_out)) == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for the prompt");
    sl_buf_deinit(&text);
    return rc;
}
