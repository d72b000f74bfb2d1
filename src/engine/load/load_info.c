/* SPDX-License-Identifier: MIT
 * What is told of a loaded model: its sizes, its makers' sampling, the name of its cached blocks.
 */
#include "base/check.h"
#include "base/hash.h"
#include "engine/load/loaded.h"
#include "ops/device.h"

#include <stdio.h>
#include <string.h>

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
int sl_load_sampling(const struct sl_ckpt *ckpt, struct sl_sampling *s, struct sl_error *err)
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

void sl_loaded_info(const struct sl_loaded *l, struct sl_model_info *info)
{
    const struct sl_model_facts *f = sl_model_facts(l->model);
    const struct sl_memory_plan *p = &l->plan;
    SL_ASSERT(l->backend != NULL && p->kv.n_groups <= SL_MAX_KV_GROUPS);
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
        .kv_bytes_per_token = (sl_kv_block_bytes(&p->kv) + p->draft_kv.groups[0].page_bytes) /
                              (uint64_t)p->block_size,
        .n_layers = f->n_layers,
        .hidden = f->hidden,
        .n_vocab = f->n_vocab,
        .max_model_len = p->max_model_len,
        .block_size = p->block_size,
        .n_pages = p->n_pages,
        .n_kv_groups = p->kv.n_groups,
        .max_num_seqs = p->max_num_seqs,
        .num_speculative_tokens = p->speculative.num_speculative_tokens,
        .speculative_method = sl_speculative_name(&p->speculative),
        .speculative_model = p->speculative.model[0] != '\0' ? p->speculative.model : NULL,
        .max_num_batched_tokens = p->max_num_batched_tokens,
        .n_threads = l->backend->vt->n_threads(l->backend) * f->n_ranks,
        .n_ranks = SL_MAX(f->n_ranks, 1),
        .n_kv_ranks = SL_MAX(f->kv_ranks, 1),
        .n_stages = SL_MAX(f->n_stages, 1),
        .weight_dtype = f->weight_dtype,
        .kv_dtype = sl_dtype_info(p->kv.dtype)->name,
        .isa = l->backend->vt->isa(l->backend),
    };
    for (int32_t g = 0; g < p->kv.n_groups; g++)
        info->kv_groups[g] =
            (struct sl_kv_group_info){.state = p->kv.groups[g].state,
                                      .window = p->kv.groups[g].window,
                                      .n_layers = p->kv.groups[g].n_layers,
                                      .n_pages = p->group_pages[g],
                                      .n_draft_pages = sl_memory_plan_draft_pages(p, g),
                                      .page_bytes = sl_memory_plan_page_bytes(p, g),
                                      .chunks = p->kv.groups[g].chunks};
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
void sl_loaded_null_info(const struct sl_loaded *l, const struct sl_engine_config *cfg,
                         struct sl_model_info *info)
{
    SL_ASSERT(l->tokenizer != NULL && l->model == NULL);
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

/* What names of cached blocks begin with: which model it is, and how its pages are laid out. */
struct sl_hash128 sl_loaded_kv_root(const struct sl_loaded *l)
{
    const struct sl_model_facts *f = sl_model_facts(l->model);
    const struct sl_kv_layout *kv = &l->plan.kv;
    struct sl_hash128 in[3] = {sl_ckpt_digest(l->ckpt)};
    const size_t n_in = kv->n_exempt > 0 ? 3 : 2;
    SL_ASSERT(kv->n_groups > 0 && kv->n_exempt >= 0 && kv->n_exempt <= f->n_layers);
    char text[512];
    int n = snprintf(text, sizeof text, "%s %s %d %d %d %s %d %llu", f->family, f->weight_dtype,
                     f->n_layers, f->hidden, f->n_vocab, sl_dtype_info(kv->dtype)->name,
                     kv->block_size, (unsigned long long)sl_kv_block_bytes(kv));
    SL_ASSERT(n > 0 && (size_t)n < sizeof text);
    in[1] = sl_hash128(text, (size_t)n, 0);
    if (kv->n_exempt > 0)
        in[2] = sl_hash128(kv->exempt, sizeof kv->exempt, (uint64_t)kv->exempt_dtype);
    return sl_hash128(in, n_in * sizeof in[0], 0);
}

/* Another version, instruction set or flag may round differently, and some models' positions go by
 * the longest sequence that is served. */
struct sl_hash128 sl_loaded_page_root(const struct sl_loaded *l, const struct sl_engine_config *cfg)
{
    struct sl_hash128 in[2] = {sl_loaded_kv_root(l)};
    const struct sl_model_facts *f = sl_model_facts(l->model);
    char text[320], ranks[96] = "";
    int at = 0;
    if (l->plan.n_ranks > 1) /* a page is the ranks' parts of it, one after the other, */
        at = snprintf(ranks, sizeof ranks, " %d ranks", l->plan.n_ranks);
    if (f->kv_ranks > 1) /* of which some have other positions */
        at += snprintf(ranks + at, sizeof ranks - (size_t)at, "/%d", f->kv_ranks);
    for (int32_t s = 0; s < l->plan.n_stages && l->plan.n_stages > 1; s++) /* or the stages' */
        at += snprintf(ranks + at, sizeof ranks - (size_t)at, " -%d", l->plan.stages[s].end);
    SL_ASSERT((size_t)at < sizeof ranks);
    int n =
        snprintf(text, sizeof text, "pages 2 %s %s %d %d %s %a %d%s", SLUICE_VERSION,
                 l->backend->vt->isa(l->backend), l->plan.max_model_len, cfg->exact_weights,
                 cfg->activation_dtype != NULL ? cfg->activation_dtype : "auto",
                 (double)cfg->skip_softmax_threshold_scale_factor, cfg->sparse_topk_pages, ranks);
    SL_ASSERT(n > 0 && (size_t)n < sizeof text);
    in[1] = sl_hash128(text, (size_t)n, 0);
    return sl_hash128(in, sizeof in, 0);
}
