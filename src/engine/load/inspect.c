/* SPDX-License-Identifier: MIT
 * inspect.c - what a model is and what serving it will take, before a weight is loaded.
 */
#include "engine/load/load.h"
#include "engine/load/load_draft.h"
#include "engine/load/load_text.h"
#include "engine/load/offload.h"

#include "base/sys.h"

/* A group of layers that need the same positions. */
static void group_text(const struct sl_memory_plan *p, int32_t group, struct sl_buf *b)
{
    SL_ASSERT(group >= 0 && group < p->kv.n_groups && p->group_pages[group] > 0);
    const struct sl_kv_layer_group *g = &p->kv.groups[group];
    if (p->kv.n_groups == 1 && sl_kv_layers_full(g))
        return;
    if (g->state) {
        sl_buf_printf(b, "  %-24s %10.1f MB: %d slots of %.1f KB, state of %d recurrent layer%s",
                      "", (double)sl_memory_plan_group_bytes(p, group) / 1e6,
                      p->group_pages[group] + p->n_draft_states, (double)g->page_bytes / 1e3,
                      g->n_layers, g->n_layers > 1 ? "s" : "");
        if (p->n_draft_states > 0)
            sl_buf_printf(b, "; %d of them behind drafts", p->n_draft_states);
        sl_buf_puts(b, "\n");
        return;
    }
    sl_buf_printf(b, "  %-24s %10.1f MB: %d pages of %.1f KB, %d layer%s ", "",
                  (double)sl_memory_plan_group_bytes(p, group) / 1e6, p->group_pages[group],
                  (double)g->page_bytes / 1e3, g->n_layers,
                  g->n_layers > 1 ? "s that see" : " that sees");
    if (g->window > 0)
        sl_buf_printf(b, g->chunks ? "chunks of %d tokens\n" : "%d tokens\n", g->window);
    else
        sl_buf_puts(b, "everything\n");
}

static void groups_json(const struct sl_memory_plan *p, struct sl_buf *b)
{
    sl_buf_puts(b, ", \"kv_groups\": [");
    for (int32_t g = 0; g < p->kv.n_groups; g++)
        sl_buf_printf(
            b,
            "%s{\"state\": %s, \"window\": %d, \"chunks\": %s, \"n_layers\": %d, \"n_pages\": %d, "
            "\"n_draft_pages\": %d, \"page_bytes\": %llu, \"bytes\": %llu}",
            g > 0 ? ", " : "", p->kv.groups[g].state ? "true" : "false", p->kv.groups[g].window,
            p->kv.groups[g].chunks ? "true" : "false", p->kv.groups[g].n_layers, p->group_pages[g],
            sl_memory_plan_draft_pages(p, g), (unsigned long long)p->kv.groups[g].page_bytes,
            (unsigned long long)sl_memory_plan_group_bytes(p, g));
    sl_buf_puts(b, "]");
}

/* Experts in host memory. */
static void host_text(const struct sl_memory_plan *p, struct sl_buf *b)
{
    sl_buf_printf(b, "  %-24s %10.1f MB repacked, %.1f MB mapped: of %d of %d layers\n",
                  "experts on the CPU", (double)p->host_packed_bytes / 1e6,
                  (double)p->host_mapped_bytes / 1e6, p->n_host_layers, p->n_expert_layers);
    sl_buf_printf(b, "  %-24s %10.1f MB of the machine's %.1f MB\n", "their steps",
                  (double)p->host_room_bytes / 1e6, (double)p->host_ram_bytes / 1e6);
}

/* A model that drafts; all of it is in the other numbers too. */
static void draft_text(const struct sl_memory_plan *p, struct sl_buf *b)
{
    SL_ASSERT(p->draft_kv.n_groups == 1 && p->draft_packed_bytes <= p->packed_bytes);
    sl_buf_printf(b, "  %-24s %10.1f MB repacked, %.1f MB mapped: up to %d tokens\n",
                  "of these, to draft", (double)p->draft_packed_bytes / 1e6,
                  (double)p->draft_mapped_bytes / 1e6, p->speculative.num_speculative_tokens);
    sl_buf_printf(b, "  %-24s %10.1f MB of pages of %.1f KB, %.1f MB of activations\n", "",
                  (double)sl_memory_plan_draft_bytes(p) / 1e6,
                  (double)p->draft_kv.groups[0].page_bytes / 1e3,
                  (double)p->draft_activation_bytes / 1e6);
}

static void stages_text(const struct sl_memory_plan *p, struct sl_buf *b)
{
    for (int32_t s = 0; s < p->n_stages && p->n_stages > 1; s++) {
        const struct sl_stage_plan *stage = &p->stages[s];
        SL_ASSERT(stage->end > stage->first && p->n_stages <= SL_MAX_STAGES);
        uint64_t n_bytes = stage->packed_bytes + stage->mapped_bytes + stage->step_bytes;
        for (int32_t g = 0; g < p->kv.n_groups; g++)
            n_bytes += sl_stage_plan_group_bytes(p, s, g);
        sl_buf_printf(b, "  stage %-18d %10.1f MB: layers %d to %d", s, (double)n_bytes / 1e6,
                      stage->first, stage->end - 1);
        if (p->n_ranks > 1)
            sl_buf_printf(b, ", of %d ranks", p->n_ranks);
        sl_buf_puts(b, "\n");
    }
}

static void plan_text(const struct sl_memory_plan *p, struct sl_buf *b)
{
    SL_ASSERT(p->n_pages > 0 && p->block_size > 0 && p->max_num_seqs > 0);
    sl_buf_puts(b, "memory plan\n");
    sl_buf_printf(b, "  %-24s %10.1f MB\n", "weights, repacked", (double)p->packed_bytes / 1e6);
    if (p->stored_bytes > 0)
        sl_buf_printf(b, "  %-24s %10.1f MB, read in every step\n", "weights, on disk",
                      (double)p->stored_bytes / 1e6);
    sl_buf_printf(b, "  %-24s %10.1f MB, mapped from the file\n", "weights, as they are",
                  (double)p->mapped_bytes / 1e6);
    sl_buf_printf(b, "  %-24s %10.1f MB: %d blocks of %d tokens, %s", "KV pages",
                  (double)p->kv_bytes / 1e6, p->n_pages, p->block_size,
                  sl_dtype_info(p->kv.dtype)->name);
    if (p->kv.n_exempt > 0)
        sl_buf_printf(b, ", %s in %d layers", sl_dtype_info(p->kv.exempt_dtype)->name,
                      p->kv.n_exempt);
    sl_buf_puts(b, "\n");
    if (p->kv_ranks > 1)
        sl_buf_printf(b, "  %-24s %10.1f MB: positions are divided among %d ranks\n",
                      "KV pages, a rank", (double)p->kv_bytes / p->n_ranks / 1e6, p->kv_ranks);
    for (int32_t g = 0; g < p->kv.n_groups; g++)
        group_text(p, g, b);
    sl_buf_printf(b, "  %-24s %10.1f MB: %d tokens a step, %d sequences%s\n", "activations",
                  (double)p->activation_bytes / 1e6, p->max_num_batched_tokens, p->max_num_seqs,
                  p->seqs_lowered ? " (lowered to the slots for state)" : "");
    if (p->draft_kv.n_groups > 0)
        draft_text(p, b);
    if (p->n_ranks > 1 && p->n_stages == 1) /* about: the embedding, norms and routers are on all */
        sl_buf_printf(b, "  %-24s %10.1f MB: weights, pages and activations on each of %d%s\n",
                      "a rank",
                      (double)(p->packed_bytes + p->mapped_bytes + p->kv_bytes +
                               p->activation_bytes + p->runner_bytes) /
                          p->n_ranks / 1e6,
                      p->n_ranks, p->on_device ? " GPUs" : "");
    stages_text(p, b);
    if (p->corpus_bytes > 0)
        sl_buf_printf(b, "  %-24s %10.1f MB: %d tokens of past outputs%s\n", "suffix decoding",
                      (double)p->corpus_bytes / 1e6, p->speculative.suffix_corpus_tokens,
                      p->on_device ? ", in host memory" : "");
    if (p->tier_bytes > 0)
        sl_buf_printf(b, "  %-24s %10.1f MB\n", "copies of KV pages", (double)p->tier_bytes / 1e6);
    if (p->on_device)
        sl_buf_printf(b, "  %-24s %10.1f MB\n", "steps and sampling",
                      (double)p->runner_bytes / 1e6);
    if (p->n_host_layers > 0)
        host_text(p, b);
    sl_buf_printf(b, "  %-24s %10.1f MB\n",
                  !p->on_device                  ? "this machine"
                  : p->n_ranks * p->n_stages > 1 ? "usable on the GPUs"
                                                 : "usable on the GPU",
                  (double)p->ram_bytes / 1e6);
    sl_buf_printf(b, "  %-24s %10d tokens%s\n", "context", p->max_model_len,
                  p->context_lowered ? " (lowered to the KV pool)" : "");
}

static void plan_json(const struct sl_memory_plan *p, uint64_t weight_bytes, struct sl_buf *b)
{
    sl_buf_printf(b, "{\"weight_bytes\": %llu", (unsigned long long)weight_bytes);
    sl_buf_printf(b,
                  ", \"weights_repacked_bytes\": %llu, \"weights_stored_bytes\": %llu, "
                  "\"weights_mapped_bytes\": %llu",
                  (unsigned long long)p->packed_bytes, (unsigned long long)p->stored_bytes,
                  (unsigned long long)p->mapped_bytes);
    sl_buf_printf(b, ", \"kv_bytes\": %llu, \"activation_bytes\": %llu",
                  (unsigned long long)p->kv_bytes, (unsigned long long)p->activation_bytes);
    sl_buf_printf(b, ", \"runner_bytes\": %llu, \"n_ranks\": %d, \"kv_ranks\": %d",
                  (unsigned long long)p->runner_bytes, p->n_ranks, p->kv_ranks);
    sl_buf_printf(b, ", \"n_stages\": %d", p->n_stages);
    sl_buf_printf(b, ", \"ram_bytes\": %llu, \"n_pages\": %d, \"block_size\": %d",
                  (unsigned long long)p->ram_bytes, p->n_pages, p->block_size);
    if (p->n_host_layers > 0)
        sl_buf_printf(b,
                      ", \"cpu_expert_layers\": %d, \"cpu_experts_repacked_bytes\": %llu, "
                      "\"cpu_experts_mapped_bytes\": %llu, \"cpu_experts_step_bytes\": %llu",
                      p->n_host_layers, (unsigned long long)p->host_packed_bytes,
                      (unsigned long long)p->host_mapped_bytes,
                      (unsigned long long)p->host_room_bytes);
    if (p->tier_bytes > 0)
        sl_buf_printf(b, ", \"kv_host_tier_bytes\": %llu", (unsigned long long)p->tier_bytes);
    if (p->draft_kv.n_groups > 0)
        sl_buf_printf(b,
                      ", \"draft_repacked_bytes\": %llu, \"draft_mapped_bytes\": %llu, "
                      "\"draft_kv_bytes\": %llu, \"draft_activation_bytes\": %llu",
                      (unsigned long long)p->draft_packed_bytes,
                      (unsigned long long)p->draft_mapped_bytes,
                      (unsigned long long)sl_memory_plan_draft_bytes(p),
                      (unsigned long long)p->draft_activation_bytes);
    groups_json(p, b);
    sl_buf_printf(b,
                  ", \"max_model_len\": %d, \"max_num_seqs\": %d, \"max_num_batched_tokens\": %d}",
                  p->max_model_len, p->max_num_seqs, p->max_num_batched_tokens);
}

int sl_inspect(const struct sl_engine_config *cfg, bool as_json, bool with_tensors, char **out,
               size_t *n_out, struct sl_error *err)
{
    struct sl_ckpt *ckpt;
    struct sl_model *model = NULL;
    struct sl_backend *be = NULL, *host = NULL;
    struct sl_memory_plan plan;
    struct sl_load_draft draft = {0};
    struct sl_tokenizer *tok = NULL;
    struct sl_buf b = {0};
    *out = NULL;
    int rc = sl_ckpt_open(cfg->model, &ckpt, err);
    if (rc != 0)
        return rc;
    rc = sl_model_open(ckpt, &model, err);
    if (rc == 0)
        rc = sl_load_task(model, ckpt, cfg, err);
    if (rc == 0)
        rc = sl_model_set_top_pages(model, cfg->sparse_topk_pages, err);
    if (rc == 0)
        rc = sl_load_backend(model, cfg, &be, err);
    if (rc == 0 && (cfg->speculative_config != NULL || cfg->speculative_model != NULL))
        rc = sl_load_tokenizer(ckpt, &tok, err);
    if (rc == 0 && tok != NULL)
        rc = sl_load_draft_open(cfg, model, ckpt, tok, &draft, err);
    if (rc == 0 && draft.model != NULL)
        rc = sl_model_draft_divided(draft.model, err);
    if (rc == 0)
        rc = sl_offload_plan(model, draft.model, be, cfg, &host, &plan, err);
    if (rc == 0) {
        SL_ASSERT((int64_t)plan.n_pages * plan.block_size >= plan.max_model_len);
        sl_model_set_context(model, plan.max_model_len);
        if (as_json)
            sl_buf_puts(&b, "{\"model\": ");
        sl_model_describe(model, be, as_json, with_tensors, &b);
        if (as_json) {
            sl_buf_puts(&b, ", \"memory\": ");
            plan_json(&plan, sl_model_facts(model)->weight_bytes, &b);
            sl_buf_puts(&b, "}\n");
        } else {
            plan_text(&plan, &b);
        }
        if ((*out = sl_buf_steal(&b, n_out)) == NULL)
            rc = sl_fail(err, SL_ENOMEM, "out of memory for the description");
    }
    sl_buf_deinit(&b);
    if (tok != NULL)
        sl_tokenizer_destroy(tok);
    sl_load_draft_close(&draft);
    if (be != NULL)
        be->vt->destroy(be);
    if (host != NULL)
        host->vt->destroy(host);
    if (model != NULL)
        sl_model_close(model);
    sl_ckpt_close(ckpt);
    return rc;
}
