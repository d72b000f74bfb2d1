/* SPDX-License-Identifier: MIT
 * Gemma 4's assistant: a drafter of a few layers as Gemma 4's, none of which has keys and values of
 * its own. A layer attends to those that the model it drafts for keeps of its text, in the last
 * layer of the same kind that has some, so that there is nothing to be computed of a prompt.
 *
 * A draft is made of the embedding that the model has of the last token and of the model's row
 * behind the final norm of the token before that: a product of both side by side is the input of
 * the layers, and a product of what leaves the final norm stands for the model's row of the next
 * draft. All drafts of a pass are made at the position of the text's last token, whose own key is
 * not there yet. Smaller ones do not look for a draft in the whole vocabulary (draft_clusters.c).
 *
 * Source: transformers, modeling_gemma4_assistant and SinglePositionMultiTokenCandidateGenerator.
 */
#include "base/check.h"
#include "models/internal.h"
#include "models/tables.h"

#include <string.h>

static const struct sl_model_name names[] = {
    {.id = "gemma4-assistant",
     .hf_architecture = "Gemma4AssistantForCausalLM",
     .hf_model_type = "gemma4_assistant",
     .has = SL_HAS_QK_NORM | SL_HAS_LAYER_SCALE | SL_HAS_DENSE,
     .head_dim = 256,
     .hf_config = "text_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_GEMMA_BY_LAYER(2304, 30, 9216),
    SL_HPARAMS_GEMMA4_HEADS,
    SL_HPARAMS_GEMMA_WINDOWS(131072, 262144),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"enable_moe_block"}, SL_HP_HAS, .has = SL_HAS_EXPERTS},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .rows = SL_DIM_V, .cols = SL_DIM_TARGET_H, .flags = SL_W_OF_TARGET},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .rows = SL_DIM_H},
    /* an embedding by its name: nothing is looked up in it but sets of tokens */
    {.slot = SL_SLOT_HEAD, .hf = "model.embed_tokens.weight", .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_CLUSTER_ROWS, .hf = "model.embed_tokens.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H},
    {.slot = SL_SLOT_CLUSTERS, .hf = "masked_embedding.centroids.weight", .rows = SL_DIM_CLUSTERS,
     .cols = SL_DIM_H},
    {.slot = SL_SLOT_DRAFT_JOIN, .hf = "pre_projection.weight", .rows = SL_DIM_H,
     .cols = SL_DIM_TARGET_2H},
    {.slot = SL_SLOT_DRAFT_OUT, .hf = "post_projection.weight", .rows = SL_DIM_TARGET_H,
     .cols = SL_DIM_H},
    SL_WEIGHTS_SANDWICH,
    SL_W_LAYER(Q, "self_attn.q_proj.weight", "attn_q.weight", Q, H, HEADS)},
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)},
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE)},
    SL_WEIGHTS_FFN_DENSE,
    SL_W_LAYER(LAYER_SCALE, "layer_scalar", "layer_output_scale.weight", NONE, NONE, NONE),
     .when = SL_HAS_LAYER_SCALE},
};
/* clang-format on */

/* Layers as they would be beside others; whose keys they read: sl_assistant_borrow. */
static int assistant_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                          struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if ((hp->has & (SL_HAS_QKV_BIAS | SL_HAS_EXPERTS)) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: %s true of a drafter is not supported",
                       (hp->has & SL_HAS_EXPERTS) != 0 ? "enable_moe_block" : "attention_bias");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        const bool windowed = sl_gemma4_windowed(hp, i);
        l->norms = SL_NORM_IN | SL_NORM_OUT;
        l->attn_scale = 1;
        l->rope = windowed ? 1 : 0; /* of sl_rope_gemma4 */
        l->window = windowed ? hp->window : 0;
        l->intermediate = hp->layer_intermediate[i];
        if (!windowed && hp->full_head_dim != 0)
            l->head_dim = hp->full_head_dim;
        if (hp->layer_head_dims[i] != 0)
            l->head_dim = hp->layer_head_dims[i];
        l->v_dim = l->head_dim;
        l->n_kv_heads = 1;
    }
    return 0;
}

const struct sl_model_desc sl_model_gemma4_assistant = {
    .id = "gemma4-assistant",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_gemma4),
    .plan = assistant_plan,
};

const struct sl_model_name *sl_assistant_name(const struct sl_ckpt *ckpt)
{
    const json_t *config = sl_ckpt_config(ckpt);
    const char *arch =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const bool is = (arch != NULL && strcmp(arch, names[0].hf_architecture) == 0) ||
                    (type != NULL && strcmp(type, names[0].hf_model_type) == 0);
    return is ? &names[0] : NULL;
}

int sl_assistant_read(const struct sl_ckpt *ckpt, const struct sl_hparams *target,
                      struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *config = sl_ckpt_config(ckpt);
    struct sl_draft_hparams *d = &hp->draft;
    bool ordered = false;
    int32_t n = 2048, top = 32; /* transformers' defaults */
    d->n_taps = 1;
    d->taps[0] = SL_TAP_NORMED;
    d->target_hidden = 1536;
    d->n_vocab = hp->n_vocab;
    d->borrows = true;
    int rc =
        sl_draft_read_int(config, "backbone_hidden_size", SL_MAX_HIDDEN, &d->target_hidden, err);
    if (rc == 0)
        rc = sl_draft_read_bool(config, "use_ordered_embeddings", &ordered, err);
    if (rc == 0)
        rc = sl_draft_read_int(config, "num_centroids", SL_MAX_VOCAB, &n, err);
    if (rc == 0)
        rc = sl_draft_read_int(config, "centroid_intermediate_top_k", SL_MAX_VOCAB, &top, err);
    if (rc != 0)
        return rc;
    if (d->target_hidden != target->hidden)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: backbone_hidden_size is %d, but the model's rows have %d "
                       "values: the drafter is of another model",
                       d->target_hidden, target->hidden);
    if (ordered && (n > SL_MAX_CLUSTERS || hp->n_vocab % n != 0))
        return sl_fail(err, SL_EFORMAT,
                       "config.json: num_centroids is %d, must be at most %d and divide "
                       "vocab_size, %d",
                       n, SL_MAX_CLUSTERS, hp->n_vocab);
    if (ordered && top > SL_MIN(n, SL_MAX_TOP_CLUSTERS))
        return sl_fail(err, SL_EFORMAT,
                       "config.json: centroid_intermediate_top_k is %d, must be at most %d", top,
                       SL_MIN(n, SL_MAX_TOP_CLUSTERS));
    hp->n_clusters = ordered ? n : 0;
    hp->top_clusters = ordered ? top : 0;
    return sl_draft_check_target(hp, target, err);
}

/* Of windowed layers transformers' mask lets one key more be seen than the model itself sees, and
 * it begins at the last one that is there, the position before the draft's own. */
static int assistant_borrow_layer(const struct sl_model *m, int32_t idx, struct sl_error *err)
{
    struct sl_layer_desc *l = &m->layers[idx];
    int32_t from = m->target->hp.n_layers - 1;
    const struct sl_layer_desc *of = m->target->layers;
    while (from >= 0 && (of[from].shares_kv || of[from].mixer != SL_MIX_GQA ||
                         (of[from].window > 0) != (l->window > 0)))
        from--;
    if (from < 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "the model has no %s layer whose keys layer %d of the drafter could read",
                       l->window > 0 ? "windowed" : "full", idx);
    of += from;
    if (of->head_dim != l->head_dim || of->v_dim != l->v_dim || l->n_heads % of->n_kv_heads != 0 ||
        of->window != l->window || of->chunks || of->whole)
        return sl_fail(err, SL_EFORMAT,
                       "layer %d of the drafter has %d heads of %d and a window of %d, which do "
                       "not go with the %d key heads of %d and the window of %d of the model's "
                       "layer %d",
                       idx, l->n_heads, l->head_dim, l->window, of->n_kv_heads, of->head_dim,
                       of->window, from);
    l->n_kv_heads = of->n_kv_heads;
    l->shares_kv = true;
    l->kv_source = from;
    l->window += l->window > 0 ? 1 : 0;
    return 0;
}

int sl_assistant_borrow(const struct sl_model *m, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(m->target != NULL && m->hp.draft.borrows);
    for (int32_t i = 0; i < m->hp.n_layers && rc == 0; i++)
        rc = assistant_borrow_layer(m, i, err);
    return rc;
}
