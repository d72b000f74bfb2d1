/* SPDX-License-Identifier: MIT
 * load.c - sl_engine_create: opens checkpoint, tokenizer, template and model, lays out memory by
 * the plan, loads the weights and starts the engine core on the result.
 */
#include "engine/load/load.h"
#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "engine/adapters.h"
#include "engine/device_runner.h"
#include "engine/engine.h"
#include "engine/host_runner.h"
#include "engine/load/load_text.h"
#include "engine/load/offload.h"
#include "engine/load/shared.h"
#include "engine/ranks.h"
#include "ops/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_ITL_MS 50

/* Everything an engine stands on, torn down in reverse order. */
struct loaded {
    struct loaded *self; /* the engine's: what is loaded anew begins as a copy of it */
    struct sl_ckpt *ckpt;
    struct sl_tokenizer *tokenizer;
    struct sl_template *template;
    struct sl_backend *backend;
    struct sl_backend *host; /* of experts beside a device, or NULL */
    struct sl_model *model;
    struct sl_memory_plan plan;
    uint8_t *kv_pool[SL_MAX_KV_GROUPS];
    struct sl_share *share; /* of the memory of pages; NULL: they are its own */
    uint64_t taken_bytes;   /* told to those that share the machine's memory */
    struct sl_run *run;
    struct sl_ranks *ranks; /* the others, where the model is divided; the above are rank 0's */
    struct sl_device_runner *device_runner; /* NULL: the backend computes in the call, */
    struct sl_host_runner *host_runner;     /* and this is the runner */
    struct sl_null_runner null_runner;      /* in place of all of that */
    struct sl_adapters *adapters;           /* the engine's, or NULL */
    struct sl_skip_counts *skip_counts;     /* [2], the backend's; NULL: nobody asked for them */
    char *path;
    struct sl_engine_config cfg; /* to load again with; its strings are ours */
};

/* Of the pages of a group, of one rank. */
static uint64_t group_bytes(const struct loaded *l, int32_t g)
{
    return sl_memory_plan_group_bytes(&l->plan, g) / (uint64_t)l->plan.n_ranks;
}

/* What a model needs to run: pages and activations, and with weights those and the device. */
static void unload(struct loaded *l, bool weights)
{
    SL_ASSERT(l->device_runner == NULL || l->host_runner == NULL);
    SL_ASSERT(l->backend != NULL || l->run == NULL);
    sl_device_runner_destroy(l->device_runner);
    l->device_runner = NULL;
    sl_host_runner_destroy(l->host_runner);
    l->host_runner = NULL;
    sl_ranks_stop(l->ranks);
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

/* The strings of a configuration that loading reads. */
static const char **config_string(struct sl_engine_config *cfg, size_t i)
{
    const char **all[] = {&cfg->device,
                          &cfg->cpu_offload_experts,
                          &cfg->kv_cache_dtype,
                          &cfg->cpu_isa,
                          &cfg->numa,
                          &cfg->runner,
                          &cfg->convert,
                          &cfg->classifier_from_token,
                          &cfg->activation_dtype,
                          &cfg->speculative_config};
    return i < SL_COUNT(all) ? all[i] : NULL;
}

static void loaded_destroy(void *user)
{
    struct loaded *l = user;
    unload(l, true);
    for (size_t i = 0; config_string(&l->cfg, i) != NULL; i++)
        sl_free((void *)(uintptr_t)*config_string(&l->cfg, i));
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

static int load_text_parts(struct loaded *l, const struct sl_engine_config *cfg,
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

int sl_load_cpu(const struct sl_model_facts *f, const struct sl_engine_config *cfg,
                struct sl_backend **out, struct sl_error *err)
{
    enum sl_cpu_isa isa;
    if (cfg->n_threads < 0 || cfg->n_threads > SL_MAX_THREADS)
        return sl_fail(err, SL_EINVAL, "threads: %d is not between 1 and %d", cfg->n_threads,
                       SL_MAX_THREADS);
    bool numa = cfg->numa == NULL || strcmp(cfg->numa, "auto") == 0;
    if (!numa && strcmp(cfg->numa, "off") != 0)
        return sl_fail(err, SL_EINVAL, "numa: '%.20s' is not one of: auto, off", cfg->numa);
    int rc = sl_cpu_isa_parse(cfg->cpu_isa != NULL ? cfg->cpu_isa : "auto", &isa, err);
    if (rc != 0)
        return rc;
    struct sl_cpu_config cpu = {
        .n_threads = cfg->n_threads, .isa = isa, .exact = cfg->exact_weights, .numa = numa};
    if (f->n_ranks > 1) { /* each has its share of the threads */
        const int n_threads =
            cfg->n_threads != 0 ? cfg->n_threads : SL_MIN(sl_cpu_count(), SL_MAX_THREADS);
        cpu.n_threads = SL_MAX(n_threads / f->n_ranks, 1);
        cpu.rank = f->rank;
        cpu.n_ranks = f->n_ranks;
    }
    if (cfg->shared != NULL)
        rc = sl_shared_threads(cfg->shared, &cpu, &cpu.threads, err);
    SL_ASSERT(rc != 0 || (cpu.threads != NULL) == (cfg->shared != NULL));
    return rc != 0 ? rc : sl_cpu_create(&cpu, out, err);
}

/* "cuda" or "cuda:N" */
static int load_cuda(const char *device, bool act_bf16, struct sl_backend **out,
                     struct sl_error *err)
{
    struct sl_cuda_config cuda = {.device = sl_cuda_find(), .act_bf16 = act_bf16};
    uint64_t n = 0;
    SL_ASSERT(strncmp(device, "cuda", 4) == 0);
    const char *number = device + strlen("cuda");
    if (*number == ':' && sl_parse_u64(number + 1, strlen(number + 1), &n) && n < 1024)
        cuda.device = (int)n;
    else if (*number != '\0')
        return sl_fail(err, SL_EINVAL, "device: '%.20s' is not one of: auto, cpu, cuda, cuda:N",
                       device);
    else
        cuda.device = SL_MAX(cuda.device, 0); /* without one, create says why */
    return sl_cuda_create(&cuda, out, err);
}

int sl_load_backend(const struct sl_model *model, const struct sl_engine_config *cfg,
                    struct sl_backend **out, struct sl_error *err)
{
    const char *device = cfg->device != NULL ? cfg->device : "auto";
    const char *act = cfg->activation_dtype != NULL ? cfg->activation_dtype : "auto";
    const bool act_fp8 = strcmp(act, "fp8") == 0;
    const struct sl_model_facts *f = sl_model_facts(model);
    bool only_cpu =
        (cfg->cpu_isa != NULL || cfg->exact_weights) && cfg->cpu_offload_experts == NULL;
    if (strcmp(device, "auto") == 0) /* what only the CPU has asks for the CPU */
        device = !only_cpu && sl_cuda_find() >= 0 ? "cuda" : "cpu";
    if (!act_fp8 && strcmp(act, "auto") != 0 && strcmp(act, "bf16") != 0)
        return sl_fail(err, SL_EINVAL, "activation-dtype: '%.20s' is not one of: auto, bf16, fp8",
                       act);
    if (strcmp(device, "cpu") == 0)
        return sl_load_cpu(f, cfg, out, err);
    if (strncmp(device, "cuda", 4) == 0 && f->n_ranks > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: several GPUs are not supported yet; on the CPU "
                       "(device cpu) ranks are");
    if (strncmp(device, "cuda", 4) == 0)
        return load_cuda(device, !act_fp8, out, err);
    return sl_fail(err, SL_EUNSUPPORTED, "device: '%.20s' is not one of: auto, cpu, cuda, cuda:N",
                   device);
}

/* Two tokens whose logits make a score: the user's, or config.json's as vLLM has them. */
static int yes_no_names(const struct sl_ckpt *ckpt, const struct sl_engine_config *cfg, char *out,
                        size_t n_out, struct sl_error *err)
{
    const json_t *list = json_object_get(sl_ckpt_config(ckpt), "classifier_from_token");
    const char *no = json_string_value(json_array_get(list, 0));
    const char *yes = json_string_value(json_array_get(list, 1));
    int n = 0;
    out[0] = '\0';
    if (cfg->classifier_from_token != NULL)
        n = snprintf(out, n_out, "%s", cfg->classifier_from_token);
    else if (list != NULL && !json_is_null(list) &&
             (no == NULL || yes == NULL || json_array_size(list) != 2))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: classifier_from_token is not a list of two strings");
    else if (no != NULL)
        n = snprintf(out, n_out, "%s,%s", no, yes);
    if (n < 0 || (size_t)n >= n_out)
        return sl_fail(err, SL_EINVAL, "classifier_from_token is longer than %zu bytes", n_out);
    return 0;
}

int sl_load_task(struct sl_model *model, const struct sl_ckpt *ckpt,
                 const struct sl_engine_config *cfg, struct sl_error *err)
{
    char names[128];
    int32_t ids[2];
    struct sl_tokenizer *tok = NULL;
    int rc = yes_no_names(ckpt, cfg, names, sizeof names, err);
    if (rc != 0)
        return rc;
    if (names[0] == '\0') {
        rc = sl_model_set_task(model, cfg->runner, cfg->convert, NULL, err);
        return rc != 0 ? rc : sl_ranks_divide(model, cfg, err);
    }
    rc = sl_load_tokenizer(ckpt, &tok, err);
    if (rc != 0)
        return rc;
    rc = sl_load_two_tokens(tok, names, ids, err);
    sl_tokenizer_destroy(tok);
    if (rc == 0)
        rc = sl_model_set_task(model, cfg->runner, cfg->convert, ids, err);
    return rc != 0 ? rc : sl_ranks_divide(model, cfg, err);
}

/* Refused before loading: what no kernel of the device can do. */
static int check_device(const struct loaded *l, struct sl_error *err)
{
    const struct sl_device_vt *dev = l->backend->vt->device;
    struct sl_heads kinds[SL_MAX_HEAD_KINDS];
    const int32_t n = sl_model_heads(l->model, kinds, SL_MAX_HEAD_KINDS);
    if (dev == NULL)
        return 0;
    if (n > SL_MAX_HEAD_KINDS)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "layers with %d different numbers or sizes of heads: a device runs at most "
                       "%d",
                       n, SL_MAX_HEAD_KINDS);
    for (int32_t i = 0; i < n; i++) {
        const struct sl_heads *h = &kinds[i];
        char values[48] = "";
        if (h->v_dim != h->head_dim)
            snprintf(values, sizeof values, " (values of %d)", h->v_dim);
        if (!dev->supports(l->backend, h, l->plan.kv.dtype))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "attention with %d heads of %d dimensions%s, %d key heads and pages of "
                           "%s has no kernel on this device: choose device cpu",
                           h->n_heads, h->head_dim, values, h->n_kv_heads,
                           sl_dtype_info(l->plan.kv.dtype)->name);
    }
    return 0;
}

/* Tells the engines that share with this one what it takes; its pages have a floor among theirs. */
static int join(struct loaded *l, struct sl_shared *shared, struct sl_error *err)
{
    const struct sl_memory_plan *p = &l->plan;
    if (l->share == NULL) {
        int rc = sl_share_open(&shared->budget, p->own_bytes, p->kv.groups[0].page_bytes,
                               p->n_floor_pages, &l->share, err);
        if (rc != 0)
            return rc;
    }
    SL_ASSERT(l->share != NULL && l->taken_bytes == 0);
    l->taken_bytes = p->on_device ? p->host_packed_bytes + p->host_room_bytes
                                  : p->packed_bytes + p->activation_bytes;
    sl_shared_add_taken(shared, l->taken_bytes);
    return 0;
}

static void discard_page(void *user, int32_t page)
{
    struct loaded *l = user;
    size_t n_bytes = l->plan.kv.groups[0].page_bytes;
    if (l->kv_pool[0] != NULL && !l->plan.on_device)
        sl_memory_drop(l->kv_pool[0] + (size_t)page * n_bytes, n_bytes);
}

static int load_model(struct loaded *l, const struct sl_engine_config *cfg, struct sl_error *err)
{
    int rc = sl_model_open(l->ckpt, &l->model, err);
    if (rc == 0)
        rc = sl_load_task(l->model, l->ckpt, cfg, err);
    if (rc == 0)
        rc = sl_load_backend(l->model, cfg, &l->backend, err);
    if (rc == 0)
        rc = sl_offload_plan(l->model, l->backend, cfg, &l->host, &l->plan, err);
    if (rc == 0)
        rc = check_device(l, err);
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
    if (sl_model_facts(l->model)->n_ranks > 1)
        return sl_ranks_load(l->ckpt, cfg, l->model, l->backend, &l->ranks, err);
    return sl_model_load(l->model, l->backend, cfg->progress, cfg->progress_arg, err);
}

static int run_step(void *ctx, const struct sl_batch *batch, const float **logits,
                    struct sl_error *err)
{
    (void)err; /* a CPU does not fail */
    *logits = sl_run_enqueue(ctx, batch);
    return 0;
}

/* Beside other engines: steps on the CPU take turns. */
static int run_step_in_turn(void *ctx, const struct sl_batch *batch, const float **logits,
                            struct sl_error *err)
{
    struct loaded *l = ctx;
    struct sl_shared *shared = l->cfg.shared;
    sl_turn_take(&shared->steps);
    int rc = run_step(l->run, batch, logits, err);
    atomic_fetch_add_explicit(&shared->n_steps, 1, memory_order_relaxed);
    sl_turn_pass(&shared->steps);
    return rc;
}

static uint64_t progress_in_turn(const void *ctx)
{
    const struct loaded *l = ctx;
    return sl_run_progress(l->run) +
           atomic_load_explicit(&l->cfg.shared->n_steps, memory_order_relaxed);
}

static void items_in_turn(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx),
                          void *arg, uint32_t n_items)
{
    const struct loaded *l = ctx;
    sl_run_items(l->run, fn, arg, n_items);
}

static uint64_t run_progress(const void *ctx)
{
    return sl_run_progress(ctx);
}

static void run_items(void *ctx, void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                      uint32_t n_items)
{
    sl_run_items(ctx, fn, arg, n_items);
}

/* A model on the CPU as its runner sees it. */
static int load_host_runner(struct loaded *l, struct sl_error *err)
{
    const struct sl_model_facts *f = sl_model_facts(l->model);
    SL_ASSERT(l->run != NULL && l->host_runner == NULL && !l->plan.on_device);
    struct sl_host_model m = {.ctx = l->run,
                              .n_vocab = f->n_vocab,
                              .n_pooled = f->task != SL_TASK_GENERATE ? f->n_out : 0,
                              .per_token = f->task == SL_TASK_TOKEN_EMBED,
                              .whole = f->whole,
                              .forward = run_step,
                              .run_items = run_items,
                              .n_threads = l->backend->vt->n_threads(l->backend),
                              .progress = run_progress};
    if (l->cfg.shared != NULL) {
        m.ctx = l->self;
        m.forward = run_step_in_turn;
        m.run_items = items_in_turn;
        m.progress = progress_in_turn;
    }
    if (l->ranks != NULL)
        sl_ranks_use(l->ranks, &m);
    return sl_host_runner_create(&m, sl_memory_plan_max_logits(&l->plan), &l->host_runner, err);
}

/* The device's own end of loading, and the runner that enqueues. */
static int load_device_runner(struct loaded *l, struct sl_error *err)
{
    const struct sl_device_vt *dev = l->backend->vt->device;
    struct sl_device_runner_config cfg;
    SL_ASSERT(l->run != NULL && l->device_runner == NULL && l->plan.on_device);
    int rc = dev->load_end(l->backend, err);
    if (rc != 0)
        return rc;
    sl_memory_plan_runner(&l->plan, &cfg);
    return sl_device_runner_create(l->model, l->backend, l->run, &cfg, &l->device_runner, err);
}

static int load_run(struct loaded *l, struct sl_error *err)
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
    if (l->cfg.skip_softmax_counts) {
        l->skip_counts = l->backend->vt->alloc(l->backend, 2 * sizeof *l->skip_counts);
        if (l->skip_counts == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for the counts of skip-softmax");
        run.skip_counts = l->skip_counts;
    }
    int rc = sl_run_create(l->model, &run, &l->run, err);
    if (rc == 0 && l->ranks != NULL)
        rc = sl_ranks_start(l->ranks, &run, &l->plan, l->run, err);
    if (rc != 0)
        return rc;
    return l->backend->vt->device != NULL ? load_device_runner(l, err) : load_host_runner(l, err);
}

/* ---------------------------------------------------------------- sampling defaults of the model
 */

static int default_number(const json_t *gen, const char *key, double min, double max, float *out,
                          struct sl_error *err)
{
    const json_t *v = json_object_get(gen, key);
    if (v == NULL || json_is_null(v))
        return 0;
    double x = json_number_value(v);
    if (!json_is_number(v) || x < min || x > max)
        return sl_fail(err, SL_EFORMAT, "generation_config.json: %s is not a number from %g to %g",
                       key, min, max);
    *out = (float)x;
    return 0;
}

/* As vLLM: what the model's makers recommend, unless a request says otherwise. */
static int sampling_defaults(const struct sl_ckpt *ckpt, struct sl_sampling *s,
                             struct sl_error *err)
{
    const json_t *gen = sl_ckpt_generation_config(ckpt);
    float top_k = 0;
    sl_sampling_default(s);
    if (gen == NULL)
        return 0;
    int rc = default_number(gen, "temperature", 0, 100, &s->temperature, err);
    if (rc == 0)
        rc = default_number(gen, "top_p", 0, 1, &s->top_p, err);
    if (rc == 0)
        rc = default_number(gen, "min_p", 0, 1, &s->min_p, err);
    if (rc == 0)
        rc = default_number(gen, "repetition_penalty", 0.01, 100, &s->repetition_penalty, err);
    if (rc == 0)
        rc = default_number(gen, "top_k", -1, SL_MAX_VOCAB, &top_k, err);
    s->top_k = (int32_t)top_k;
    if (s->top_p == 0.0f)
        s->top_p = 1.0f; /* some files write 0 for "off" */
    return rc;
}

/* ---------------------------------------------------------------- the engine */

static void fill_info(const struct loaded *l, struct sl_model_info *info)
{
    const struct sl_model_facts *f = sl_model_facts(l->model);
    const struct sl_memory_plan *p = &l->plan;
    const bool pools = f->task != SL_TASK_GENERATE;
    *info = (struct sl_model_info){
        .architecture = f->family,
        .task = f->task,
        .n_pooled = pools ? f->n_out : 0,
        .normalized = f->normalize,
        .scores_pairs = f->pairs,
        .pooling = f->task == SL_TASK_TOKEN_EMBED ? "all"
                   : pools                        ? sl_pool_name(f->pool)
                                                  : NULL,
        .model_path = l->path,
        .n_params = f->n_params,
        .weight_bytes = f->weight_bytes,
        .kv_cache_bytes = p->kv_bytes,
        .kv_bytes_per_token = sl_kv_block_bytes(&p->kv) / (uint64_t)p->block_size,
        .n_layers = f->n_layers,
        .hidden = f->hidden,
        .n_vocab = f->n_vocab,
        .max_model_len = p->max_model_len,
        .block_size = p->block_size,
        .n_pages = p->n_pages,
        .n_kv_groups = p->kv.n_groups,
        .max_num_seqs = p->max_num_seqs,
        .num_speculative_tokens = p->speculative.num_speculative_tokens,
        .max_num_batched_tokens = p->max_num_batched_tokens,
        .n_threads = l->backend->vt->n_threads(l->backend) * f->n_ranks,
        .weight_dtype = f->weight_dtype,
        .kv_dtype = sl_dtype_info(p->kv.dtype)->name,
        .isa = l->backend->vt->isa(l->backend),
    };
    for (int32_t g = 0; g < p->kv.n_groups; g++)
        info->kv_groups[g] = (struct sl_kv_group_info){.window = p->kv.groups[g].window,
                                                       .n_layers = p->kv.groups[g].n_layers,
                                                       .n_pages = p->group_pages[g],
                                                       .page_bytes = p->kv.groups[g].page_bytes};
    const struct sl_device_vt *dev = l->backend->vt->device;
    struct sl_device_memory mem;
    struct sl_error ignored; /* a figure to show: without it serving goes on */
    if (dev != NULL && dev->memory(l->backend, &mem, &ignored) == 0) {
        info->device_total_bytes = mem.total_bytes;
        info->device_used_bytes = mem.own_bytes;
    }
    info->n_expert_layers = p->n_expert_layers;
    info->n_cpu_expert_layers = p->n_host_layers;
    info->cpu_expert_bytes = p->host_packed_bytes + p->host_mapped_bytes + p->host_room_bytes;
    if (l->host != NULL)
        info->n_threads = l->host->vt->n_threads(l->host);
}

/* The front end alone: tokens come from a counter, pages are counted but hold nothing. */
static void fill_null_info(const struct loaded *l, const struct sl_engine_config *cfg,
                           struct sl_model_info *info)
{
    int32_t seqs = cfg->max_num_seqs != 0 ? cfg->max_num_seqs : 256;
    int32_t context = cfg->max_model_len != 0 ? cfg->max_model_len : 8192;
    int32_t block = cfg->block_size != 0 ? cfg->block_size : 16;
    int32_t budget = cfg->max_num_batched_tokens != 0 ? cfg->max_num_batched_tokens : 65536;
    *info = (struct sl_model_info){
        .architecture = "null",
        .model_path = l->path,
        .n_vocab = sl_tokenizer_n_vocab(l->tokenizer),
        .max_model_len = context,
        .block_size = block,
        .n_pages = (int32_t)SL_MIN((int64_t)seqs * SL_CEIL_DIV(context, block), 1 << 20),
        .max_num_seqs = seqs,
        .max_num_batched_tokens = budget,
        .n_threads = 0,
        .weight_dtype = "none",
        .kv_dtype = "none",
        .isa = "none",
    };
}

/* What names of cached blocks begin with: which model it is, and how its pages are laid out. Two
 * sets of weights with one path and one shape have the same. */
static struct sl_hash128 kv_root(const struct loaded *l)
{
    const struct sl_model_facts *f = sl_model_facts(l->model);
    const struct sl_kv_layout *kv = &l->plan.kv;
    char text[512];
    int n = snprintf(text, sizeof text, "%s %s %s %llu %llu %d %d %d %s %d %llu", l->path,
                     f->family, f->weight_dtype, (unsigned long long)f->n_params,
                     (unsigned long long)f->weight_bytes, f->n_layers, f->hidden, f->n_vocab,
                     sl_dtype_info(kv->dtype)->name, kv->block_size,
                     (unsigned long long)sl_kv_block_bytes(kv));
    size_t n_text = SL_MIN((size_t)SL_MAX(n, 0), sizeof text - 1);
    return sl_hash128(text, n_text, sl_hash64(l->path, strlen(l->path), 0));
}

/* Adapters of the model; the engine closes them. */
static int open_adapters(const struct loaded *l, struct sl_adapters **out, struct sl_error *err)
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

static void make_runner(const struct loaded *l, struct sl_runner *r)
{
    SL_ASSERT((l->device_runner != NULL) != (l->host_runner != NULL));
    if (l->device_runner != NULL)
        sl_device_runner_use(l->device_runner, r);
    else
        sl_host_runner_use(l->host_runner, r);
}

/* ---------------------------------------------------------------- asleep and awake again */

/* What loading again goes by: as given, but for sizes that were chosen, which stay. */
static int keep_config(struct loaded *l, const struct sl_engine_config *cfg, struct sl_error *err)
{
    const struct sl_memory_plan *p = &l->plan;
    struct sl_engine_config own = *cfg;
    bool good = true;
    for (size_t i = 0; config_string(&own, i) != NULL; i++) {
        const char **s = config_string(&own, i);
        *s = *s != NULL ? sl_strdup(*s) : NULL;
        good &=
            (*s != NULL) == (*config_string((struct sl_engine_config *)(uintptr_t)cfg, i) != NULL);
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

static int park(void *user, int level, struct sl_error *err)
{
    struct loaded *l = user;
    SL_ASSERT(level >= 1 && (l->model != NULL || l->run == NULL));
    bool weights = level >= 2 || l->device_runner != NULL;
    (void)err;
    if (weights)
        sl_adapters_use(l->adapters, NULL);
    unload(l, weights);
    return 0;
}

static bool same_groups(const struct sl_kv_layout *a, const struct sl_kv_layout *b)
{
    bool same = a->n_groups == b->n_groups && a->block_size == b->block_size;
    for (int32_t g = 0; g < a->n_groups && same; g++)
        same = a->groups[g].window == b->groups[g].window &&
               a->groups[g].page_bytes == b->groups[g].page_bytes;
    return same;
}

/* The engine's tables were made for the first model's sizes. */
static int check_same_shape(const struct loaded *a, const struct sl_model_facts *fa,
                            const struct loaded *b, struct sl_error *err)
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
static int load_again(struct loaded *next, const struct loaded *l, const char *path,
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
        rc = load_model(next, &l->cfg, err);
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
static int unpark(void *user, const char *path, struct sl_runner *runner, struct sl_error *err)
{
    struct loaded *l = user, next = *l;
    bool weights = l->model == NULL;
    SL_ASSERT(l->run == NULL && l->device_runner == NULL && l->host_runner == NULL);
    int rc = weights ? load_again(&next, l, path, err) : 0;
    if (rc == 0)
        rc = load_run(&next, err);
    if (rc != 0) {
        unload(&next, weights);
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
    l->ranks = next.ranks;
    l->device_runner = next.device_runner;
    l->host_runner = next.host_runner;
    l->skip_counts = next.skip_counts;
    sl_adapters_use(l->adapters, l->model);
    make_runner(l, runner);
    return 0;
}

static int load_everything(struct loaded *l, const struct sl_engine_config *cfg,
                           struct sl_engine_parts *parts, struct sl_error *err)
{
    int rc = sl_ckpt_open(cfg->model, &l->ckpt, err);
    if (rc == 0)
        rc = load_text_parts(l, cfg, err);
    if (rc == 0)
        rc = sampling_defaults(l->ckpt, &parts->sampling, err);
    if (rc != 0)
        return rc;
    l->path = sl_strdup(sl_ckpt_path(l->ckpt));
    if (l->path == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a path");
    parts->tokenizer = l->tokenizer;
    parts->no_prefix_caching = cfg->no_prefix_caching;
    parts->no_jump_forward = cfg->no_jump_forward;
    parts->kv_events = cfg->kv_events;
    parts->max_queued = cfg->max_queued;
    parts->priority_max_wait_ms = cfg->priority_max_wait_ms;
    parts->watchdog_s = cfg->watchdog_s;
    parts->max_itl_ms = cfg->max_itl_ms == 0 ? DEFAULT_ITL_MS : SL_MAX(cfg->max_itl_ms, 0);
    if (cfg->null_model) {
        fill_null_info(l, cfg, &parts->info);
        sl_null_runner_init(&l->null_runner, parts->info.n_vocab, &parts->runner);
        return 0;
    }
    const float skip = cfg->skip_softmax_threshold_scale_factor;
    if (!(skip >= 0.0f && skip <= 1e9f))
        return sl_fail(err, SL_EINVAL,
                       "skip_softmax_threshold_scale_factor: %g is not between 0 and 1e9",
                       (double)skip);
    l->cfg.shared = cfg->shared;
    l->cfg.skip_softmax_threshold_scale_factor = skip;
    l->cfg.skip_softmax_counts = cfg->skip_softmax_counts;
    rc = load_model(l, cfg, err);
    if (rc == 0)
        rc = load_run(l, err);
    if (rc == 0)
        rc = keep_config(l, cfg, err);
    if (rc != 0)
        return rc;
    const struct sl_model_facts *f = sl_model_facts(l->model);
    fill_info(l, &parts->info);
    parts->eos_ids = f->eos;
    parts->n_eos_ids = f->n_eos;
    make_runner(l, &parts->runner);
    parts->speculative = l->plan.speculative;
    parts->share = sl_memory_plan_shares(&l->plan) ? l->share : NULL;
    parts->kv_root = kv_root(l);
    parts->discard = discard_page;
    parts->park = park;
    parts->unpark = unpark;
    rc = open_adapters(l, &parts->adapters, err);
    l->adapters = parts->adapters;
    return rc;
}

int sl_engine_create(const struct sl_engine_config *cfg, struct sl_engine **out,
                     struct sl_error *err)
{
    struct sl_engine_parts parts = {0};
    *out = NULL;
    struct loaded *l = sl_calloc(1, sizeof *l);
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
    const struct loaded *l = sl_engine_user(eng);
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
    const struct loaded *l = sl_engine_user(eng);
    return l != NULL && l->template != NULL;
}

const char *sl_engine_chat_template(const struct sl_engine *eng, size_t *n)
{
    const struct loaded *l = sl_engine_user(eng);
    *n = 0;
    return sl_engine_has_chat_template(eng) ? sl_template_source(l->template, n) : NULL;
}

int sl_engine_render_chat(const struct sl_engine *eng, const char *context_json, size_t n_context,
                          char **out, size_t *n_out, struct sl_error *err)
{
    const struct loaded *l = sl_engine_user(eng);
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
