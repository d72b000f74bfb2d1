/* SPDX-License-Identifier: MIT
 * Where a model computes, and what for: the backend and the task that a configuration asks for.
 */
#include "base/check.h"
#include "base/env.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "engine/load/load.h"
#include "engine/load/load_text.h"
#include "engine/load/shared.h"
#include "engine/ranks.h"

#include <stdio.h>
#include <string.h>

uint64_t sl_load_weights_memory(const struct sl_engine_config *cfg)
{
    const uint64_t given = cfg->weights_memory_bytes, ram = sl_ram_bytes();
    SL_ASSERT(cfg->offload_folder != NULL);
    return given != 0 ? given : ram / 2;
}

static int all_threads(const struct sl_engine_config *cfg)
{
    return cfg->n_threads != 0 ? cfg->n_threads : SL_MIN(sl_cpu_count(), SL_MAX_THREADS);
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
    if (cfg->data_parallel_size > 1)
        cpu.n_threads = SL_MAX(all_threads(cfg) / cfg->data_parallel_size, 1);
    if (cfg->offload_folder != NULL) {
        cpu.offload_folder = cfg->offload_folder;
        cpu.weights_memory_bytes = sl_load_weights_memory(cfg) / (uint64_t)SL_MAX(f->n_ranks, 1);
    }
    if (f->n_ranks > 1 && cfg->nnodes <= 1) { /* each has its share of the threads */
        const int n_threads = cpu.n_threads != 0 ? cpu.n_threads : all_threads(cfg);
        cpu.n_threads = SL_MAX(n_threads / f->n_ranks, 1);
        cpu.rank = f->rank;
        cpu.n_ranks = f->n_ranks;
    }
    if (cfg->shared != NULL)
        rc = sl_shared_threads(cfg->shared, &cpu, &cpu.threads, err);
    SL_ASSERT(rc != 0 || (cpu.threads != NULL) == (cfg->shared != NULL));
    return rc != 0 ? rc : sl_cpu_create(&cpu, out, err);
}

/* "cuda:N", or "cuda:N,N,.." with a GPU for each rank. */
static int read_gpus(const char *device, int gpus[SL_MAX_RANKS], int *n, struct sl_error *err)
{
    const char *at = device + strlen("cuda");
    bool good = *at == ':';
    SL_ASSERT(strlen(device) > strlen("cuda"));
    *n = 0;
    while (good && *at != '\0') {
        const size_t len = strcspn(++at, ",");
        uint64_t number = 0;
        good = *n < SL_MAX_RANKS && sl_parse_u64(at, len, &number) && number < 1024;
        if (good)
            gpus[(*n)++] = (int)number;
        at += len;
    }
    if (!good)
        return sl_fail(err, SL_EINVAL,
                       "device: '%.40s' is not one of: auto, cpu, cuda, cuda:N, cuda:N,N,... (at "
                       "most %d)",
                       device, SL_MAX_RANKS);
    for (int i = 0; i < *n; i++)
        for (int k = 0; k < i; k++)
            if (gpus[i] == gpus[k])
                return sl_fail(err, SL_EINVAL, "device: '%.40s' has GPU %d twice", device, gpus[i]);
    return 0;
}

/* Which of them: in the order of replicas, of each in that of stages, of each in that of ranks. */
static int32_t gpu_of(const struct sl_model_facts *f, const struct sl_engine_config *cfg)
{
    return cfg->data_parallel_rank * sl_model_n_parts(f) + f->stage * f->n_ranks + f->rank;
}

static const char *parts_flag(const struct sl_model_facts *f)
{
    return f->n_stages > 1 && f->n_ranks > 1 ? "pipeline_parallel_size by tensor_parallel_size"
           : f->n_stages > 1                 ? "pipeline_parallel_size"
                                             : "tensor_parallel_size";
}

/* Of which there are so many. */
static const char *part_name(const struct sl_model_facts *f)
{
    return f->n_ranks > 1 || f->n_stages == 1 ? "rank" : "stage";
}

/* The GPU of a rank, or of a stage. */
static int pick_gpu(const char *device, const struct sl_model_facts *f,
                    const struct sl_engine_config *cfg, int *out, struct sl_error *err)
{
    const int n_replicas = SL_MAX(cfg->data_parallel_size, 1);
    const int n_parts = sl_model_n_parts(f) * n_replicas, gpu = gpu_of(f, cfg);
    int gpus[SL_MAX_RANKS], n = 0;
    SL_ASSERT(strncmp(device, "cuda", 4) == 0 && gpu < n_parts);
    if (strcmp(device, "cuda") != 0) {
        int rc = read_gpus(device, gpus, &n, err);
        if (rc == 0 && n != n_parts && n_replicas > 1)
            rc = sl_fail(err, SL_EINVAL,
                         "device: '%.40s' has %d GPUs for a data_parallel_size of %d: each replica "
                         "has %d",
                         device, n, n_replicas, n_parts / n_replicas);
        if (rc == 0 && n != n_parts)
            rc = sl_fail(err, SL_EINVAL,
                         "device: '%.40s' has %d GPUs for a %s of %d: each %s has one", device, n,
                         parts_flag(f), n_parts, part_name(f));
        *out = rc == 0 ? gpus[gpu] : -1;
        return rc;
    }
    *out = sl_cuda_find_nth(gpu);
    if (*out >= 0 || n_parts == 1) {
        *out = SL_MAX(*out, 0); /* without one, create says why */
        return 0;
    }
    while (n < gpu && sl_cuda_find_nth(n) >= 0)
        n++;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%s: %d %ss want a GPU each, and there %s %d that this build has kernels for; "
                   "ranks on the CPU (device cpu) are threads or processes",
                   sl_model_n_parts(f) == 1 ? "data_parallel_size" : parts_flag(f), n_parts,
                   sl_model_n_parts(f) == 1 ? "replica" : part_name(f), n == 1 ? "is" : "are", n);
}

static int load_cuda(const char *device, const struct sl_model_facts *f,
                     const struct sl_engine_config *cfg, struct sl_backend **out,
                     struct sl_error *err)
{
    const bool act_fp8 = cfg->activation_dtype != NULL && strcmp(cfg->activation_dtype, "fp8") == 0;
    struct sl_cuda_config cuda = {.act_bf16 = !act_fp8};
    if (cfg->nnodes > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "nnodes: ranks and stages that are processes compute on CPUs (device cpu); "
                       "several GPUs "
                       "of one machine are ranks of one process (tensor_parallel_size alone)");
    int rc = pick_gpu(device, f, cfg, &cuda.device, err);
    return rc != 0 ? rc : sl_cuda_create(&cuda, out, err);
}

/* What a configuration's device is, where it says auto. */
static const char *device_of(const struct sl_engine_config *cfg)
{
    const bool only_cpu =
        (cfg->cpu_isa != NULL || cfg->exact_weights) && cfg->cpu_offload_experts == NULL;
    if (cfg->device != NULL && strcmp(cfg->device, "auto") != 0)
        return cfg->device;
    /* what only the CPU has asks for the CPU */
    return !only_cpu && sl_cuda_find() >= 0 ? "cuda" : "cpu";
}

int sl_load_rank_memory(const struct sl_model_facts *f, int32_t rank,
                        const struct sl_engine_config *cfg, struct sl_device_memory *out,
                        struct sl_error *err)
{
    struct sl_model_facts own = *f;
    struct sl_backend *be = NULL;
    SL_ASSERT(rank > 0 && rank < sl_model_n_parts(f)); /* rank 0's is open */
    own.rank = sl_model_rank_of(rank, f->n_ranks);
    own.stage = sl_model_stage_of(rank, f->n_ranks, f->n_stages);
    int rc = load_cuda(device_of(cfg), &own, cfg, &be, err);
    if (rc != 0)
        return rc;
    rc = be->vt->device->memory(be, out, err);
    be->vt->destroy(be);
    return rc;
}

/* Kernels are loaded when a device is opened: one that is loaded at its first launch may have the
 * driver wait for a device whose kernel waits for that of the rank that is not launched yet. */
static void load_kernels_early(const struct sl_model_facts *f)
{
    if (f->n_ranks > 1)
        sl_env_offer("CUDA_MODULE_LOADING", "EAGER");
}

int sl_load_backend(const struct sl_model *model, const struct sl_engine_config *cfg,
                    struct sl_backend **out, struct sl_error *err)
{
    const struct sl_model_facts *f = sl_model_facts(model);
    const char *act = cfg->activation_dtype != NULL ? cfg->activation_dtype : "auto";
    load_kernels_early(f);
    const char *device = device_of(cfg);
    if (strcmp(act, "fp8") != 0 && strcmp(act, "auto") != 0 && strcmp(act, "bf16") != 0)
        return sl_fail(err, SL_EINVAL, "activation-dtype: '%.20s' is not one of: auto, bf16, fp8",
                       act);
    if (strcmp(device, "cpu") == 0)
        return sl_load_cpu(f, cfg, out, err);
    if (strncmp(device, "cuda", 4) == 0)
        return load_cuda(device, f, cfg, out, err);
    return sl_fail(err, SL_EUNSUPPORTED,
                   "device: '%.20s' is not one of: auto, cpu, cuda, cuda:N, cuda:N,N,...", device);
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
