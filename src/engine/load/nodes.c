/* SPDX-License-Identifier: MIT */
#include "engine/load/nodes.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/eplb.h"
#include "engine/rank_lora.h"
#include "engine/rank_stage.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_ADDR    "127.0.0.1"
#define DEFAULT_PORT    29501 /* vLLM's */
#define DEFAULT_START_S 600

const char *sl_nodes_addr(const struct sl_engine_config *cfg)
{
    return cfg->master_addr != NULL ? cfg->master_addr : DEFAULT_ADDR;
}

int sl_nodes_port(const struct sl_engine_config *cfg)
{
    return cfg->master_port != 0 ? cfg->master_port : DEFAULT_PORT;
}

int32_t sl_nodes_start_ms(const struct sl_engine_config *cfg)
{
    return (cfg->rank_start_s != 0 ? cfg->rank_start_s : DEFAULT_START_S) * 1000;
}

int sl_nodes_check(const struct sl_engine_config *cfg, struct sl_error *err)
{
    const char *transport = cfg->rank_transport;
    if (!sl_nodes_several(cfg))
        return cfg->node_rank == 0 && cfg->nnodes >= 0
                   ? 0
                   : sl_fail(err, SL_EINVAL, "node_rank: %d of %d nodes", cfg->node_rank,
                             SL_MAX(cfg->nnodes, 1));
    if (cfg->pipeline_parallel_size > 1 && cfg->tensor_parallel_size > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "nnodes: stages (pipeline_parallel_size) that are processes cannot be "
                       "divided among ranks (tensor_parallel_size) yet");
    if (cfg->nnodes != SL_MAX(cfg->tensor_parallel_size, cfg->pipeline_parallel_size))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "nnodes: %d processes for a tensor_parallel_size of %d and a "
                       "pipeline_parallel_size of %d: each process is one rank or one stage, so "
                       "their numbers must be equal",
                       cfg->nnodes, SL_MAX(cfg->tensor_parallel_size, 1),
                       SL_MAX(cfg->pipeline_parallel_size, 1));
    if (cfg->node_rank < 0 || cfg->node_rank >= cfg->nnodes)
        return sl_fail(err, SL_EINVAL, "node_rank: %d is not between 0 and %d", cfg->node_rank,
                       cfg->nnodes - 1);
    if (cfg->master_port < 0 || cfg->master_port > 65535)
        return sl_fail(err, SL_EINVAL, "master_port: %d is not between 1 and 65535",
                       cfg->master_port);
    if (transport != NULL && strcmp(transport, "auto") != 0 && strcmp(transport, "tcp") != 0)
        return sl_fail(err, SL_EINVAL, "rank_transport: '%.20s' is not one of: auto, tcp",
                       transport);
    if (cfg->rank_timeout_s < 0 || cfg->rank_timeout_s > 3600)
        return sl_fail(err, SL_EINVAL, "rank_timeout_s: %d is not between 1 and 3600",
                       cfg->rank_timeout_s);
    if (cfg->rank_start_s < 0 || cfg->rank_start_s > 86400)
        return sl_fail(err, SL_EINVAL, "rank_start_s: %d is not between 1 and 86400",
                       cfg->rank_start_s);
    return 0;
}

int sl_nodes_secret(const struct sl_engine_config *cfg, struct sl_nodes_secret *out,
                    struct sl_error *err)
{
    SL_ASSERT(sl_nodes_several(cfg));
    *out = (struct sl_nodes_secret){.n = 0};
    if (cfg->rank_secret_file == NULL)
        return 0;
    int rc = sl_read_file(cfg->rank_secret_file, SL_MAX_RANK_SECRET, &out->data, &out->n, err);
    while (rc == 0 && out->n > 0 &&
           (out->data[out->n - 1] == '\n' || out->data[out->n - 1] == '\r'))
        out->n--; /* an editor's */
    if (rc == 0 && out->n < 16) {
        sl_free(out->data);
        *out = (struct sl_nodes_secret){.n = 0};
        rc = sl_fail(err, SL_EINVAL, "rank_secret_file: %.120s has less than 16 bytes",
                     cfg->rank_secret_file);
    }
    return rc;
}

static struct sl_hash128 add(struct sl_hash128 h, const void *data, size_t n)
{
    const struct sl_hash128 more = sl_hash128(data, n, h.lo);
    return (struct sl_hash128){more.lo, sl_mix64(h.hi) ^ more.hi};
}

/* Which layers are whose, for people and for the digest. */
static void put_stages(const struct sl_model *model, char *out, size_t n_out)
{
    const int32_t n_stages = sl_model_facts(model)->n_stages;
    int at = snprintf(out, n_out, "%s", n_stages > 1 ? ", stages of " : "");
    for (int32_t s = 0; s < n_stages && n_stages > 1; s++) {
        int32_t first, end;
        sl_model_stage_layers(model, s, &first, &end);
        SL_ASSERT(at > 0 && (size_t)at < n_out);
        at += snprintf(out + at, n_out - (size_t)at, "%s%d", s > 0 ? "," : "", end - first);
    }
}

void sl_nodes_identity(const struct sl_model *model, const struct sl_ckpt *ckpt,
                       struct sl_backend *be, const struct sl_engine_config *cfg,
                       struct sl_rank_identity *out)
{
    const struct sl_model_facts *f = sl_model_facts(model);
    char stages[80];
    put_stages(model, stages, sizeof stages);
    memset(out, 0, sizeof *out); /* all of it is compared, and proven */
    snprintf(out->version, sizeof out->version, "%s", SLUICE_VERSION);
    snprintf(out->isa, sizeof out->isa, "%s", be->vt->isa(be));
    const int n =
        snprintf(out->model, sizeof out->model, "%.20s %.12s, %d layers of %d, %d tokens%s%s%s",
                 f->family, f->weight_dtype, f->n_layers, f->hidden, f->n_vocab,
                 cfg->divide_only_experts      ? ", only experts by rank"
                 : cfg->enable_expert_parallel ? ", experts by rank"
                                               : "",
                 f->kv_ranks > 1 ? ", positions by rank" : "", stages);
    SL_ASSERT(n > 0);
    out->digest = sl_ckpt_digest(ckpt);
    if (cfg->enable_expert_parallel) /* then ranks meet as often as others do, elsewhere */
        out->digest = add(out->digest, "experts", sizeof "experts");
    if (cfg->divide_only_experts)
        out->digest = add(out->digest, "only", sizeof "only");
    if (cfg->enable_eplb) { /* ranks decide alike, by the same counts */
        struct sl_eplb_config eplb;
        bool on;
        struct sl_error err;
        const int rc = sl_eplb_config_read(cfg, &on, &eplb, &err);
        SL_ASSERT(rc == 0 && on); /* sl_ranks_divide has read it */
        const int32_t all[] = {eplb.window_size, eplb.step_interval, eplb.num_redundant_experts};
        out->digest = add(out->digest, all, sizeof all);
    }
    if (f->kv_ranks > 1)
        out->digest = add(out->digest, &f->kv_ranks, sizeof f->kv_ranks);
    if (f->n_stages > 1)
        out->digest = add(out->digest, stages, strlen(stages));
    out->n_ranks = sl_model_n_parts(f);
    out->exact = cfg->exact_weights;
}

struct sl_hash128 sl_nodes_layout(const struct sl_kv_layout *kv)
{
    SL_ASSERT(kv->n_groups >= 1 && kv->n_groups <= SL_MAX_KV_GROUPS);
    const int64_t head[] = {kv->block_size, kv->dtype, kv->n_groups};
    struct sl_hash128 h = sl_hash128(head, sizeof head, 0);
    for (int32_t g = 0; g < kv->n_groups; g++) {
        const int64_t group[] = {kv->groups[g].window, kv->groups[g].state,
                                 (int64_t)kv->groups[g].page_bytes};
        h = add(h, group, sizeof group);
    }
    h = add(h, kv->exempt, sizeof kv->exempt);
    return h;
}

size_t sl_nodes_room_bytes(const struct sl_model *model, struct sl_backend *be,
                           const struct sl_run_config *run, const struct sl_rank_pages *pages)
{
    const size_t of_steps = sl_model_facts(model)->n_stages > 1
                                ? sl_rank_stage_room(model, run->max_tokens)
                                : sl_run_room_bytes(model, be, run);
    return pages != NULL ? SL_MAX(of_steps, sl_rank_pages_most(pages)) : of_steps;
}

/* A step, places of experts, what begins an adapter, whose weights come in as many messages as they
 * need, or a page.
 */
size_t sl_nodes_message_bytes(const struct sl_model *model, const struct sl_rank_bounds *b,
                              const struct sl_rank_pages *pages)
{
    const size_t of_lora = b->max_loras > 0 ? sl_rank_lora_bytes(sl_model_n_lora_mats(model)) : 0;
    const size_t of_page = pages != NULL ? sl_rank_pages_message(pages) : 0;
    return SL_MAX(SL_MAX(sl_rank_step_bytes(b), sl_eplb_message_bytes(model)),
                  SL_MAX(of_lora, of_page));
}

void sl_nodes_plan(const struct sl_model *model, const struct sl_model *draft,
                   const struct sl_memory_plan *p, const struct sl_engine_config *cfg,
                   struct sl_rank_plan *out)
{
    SL_ASSERT((p->n_ranks > 1) != (p->n_stages > 1) && !p->on_device);
    memset(out, 0, sizeof *out); /* padding too: plans are compared */
    out->bounds = (struct sl_rank_bounds){.max_tokens = p->max_num_batched_tokens,
                                          .max_seqs = p->max_num_seqs,
                                          .max_logits = sl_memory_plan_max_logits(p),
                                          .max_model_len = p->max_model_len,
                                          .block_size = p->block_size,
                                          .n_vocab = sl_model_facts(model)->n_vocab,
                                          .max_loras = p->max_loras,
                                          .max_lora_rank = p->max_lora_rank,
                                          .n_groups = p->kv.n_groups};
    for (int32_t g = 0; g < p->kv.n_groups; g++) {
        out->bounds.n_pages[g] =
            (int32_t)(sl_memory_plan_group_bytes(p, g) / p->kv.groups[g].page_bytes);
        out->bounds.window[g] = p->kv.groups[g].window;
        out->bounds.chunks[g] = p->kv.groups[g].chunks;
        out->bounds.states[g] = p->kv.groups[g].state;
    }
    if (draft != NULL) /* all ranks keep them, or they would not meet as often */
        out->n_taps = sl_model_draft_taps(draft, out->taps);
    out->served = p->max_model_len;
    out->skip_softmax = cfg->skip_softmax_threshold_scale_factor;
    out->top_pages = cfg->sparse_topk_pages;
    out->moves_pages = p->tier_bytes > 0;
    snprintf(out->kv_dtype, sizeof out->kv_dtype, "%s", sl_dtype_info(p->kv.dtype)->name);
    out->kv_skips = cfg->kv_cache_dtype_skip_layers != NULL;
    SL_ASSERT(!out->kv_skips || strlen(cfg->kv_cache_dtype_skip_layers) <= SL_MAX_KV_SKIP);
    if (out->kv_skips)
        snprintf(out->kv_skip, sizeof out->kv_skip, "%s", cfg->kv_cache_dtype_skip_layers);
    out->layout = sl_nodes_layout(&p->kv);
}
