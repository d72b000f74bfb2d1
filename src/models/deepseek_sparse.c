/* SPDX-License-Identifier: MIT
 * DeepSeek V3.2 and GLM-5 (5.1, 5.2): DeepSeek V3 with an index in front of its latent attention,
 * which chooses the positions that a row sees (mixer_index.c). In GLM-5 layers may share a choice.
 *
 * Queries and keys of V3.2's index are rotated in halves, those of GLM-5's in neighbours, whereas
 * attention itself has neighbours in both. GGUF files of GLM-5 call themselves "glm-dsa"; there is
 * no name for V3.2's. Layers behind the last (num_nextn_predict_layers) predict further tokens: the
 * first one is a drafter (draft.c), with an index of its own.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <string.h>

static const struct sl_model_name names[] = {
    {.id = "deepseek_v32",
     .hf_architecture = "DeepseekV32ForCausalLM",
     .hf_model_type = "deepseek_v32",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_K},
    {.id = "glm_moe_dsa",
     .hf_architecture = "GlmMoeDsaForCausalLM",
     .hf_model_type = "glm_moe_dsa",
     .gguf_architecture = "glm-dsa",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_K},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_DEEPSEEK,
    SL_HPARAMS_INDEX,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    SL_HPARAMS_DEEPSEEK_EXPERTS(3),
    SL_HPARAM_MLP_TYPES,
    {.hf = {"scoring_func"}, .type = SL_HP_CHOICE, .value = "sigmoid"},
    {.hf = {"topk_method"}, .type = SL_HP_CHOICE, .value = "noaux_tc"},
    {NULL, {"moe_layer_freq"}, SL_HP_INT, SL_HP_AT(expert_step), .min = 1, .max = 1},
    SL_HPARAM_NEXTN,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("rope_interleave", true),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_DEEPSEEK,
    SL_WEIGHTS_INDEX,
};

static const struct sl_weight_desc mtp_weights[] = {
    SL_WEIGHTS_MTP_BEHIND,
};
/* clang-format on */

static const struct sl_draft_desc mtp = {
    .weights = mtp_weights, .n_weights = SL_COUNT(mtp_weights), .experts = SL_LAYER_ON};

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .tenth_multiplier = true,
     .partial = 1},
};

static bool is_glm(const struct sl_model_name *name)
{
    return strcmp(name->id, "glm_moe_dsa") == 0;
}

static int deepseek_sparse_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                                struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool neighbours = is_glm(name) || hp->index_neighbours;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        sl_plan_mla(hp, &layers[i]);
    if (rc == 0)
        rc = sl_plan_index(hp, neighbours ? SL_ROPE_INTERLEAVED : SL_ROPE_HALF, layers, err);
    return rc;
}

static void deepseek_sparse_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    const bool glm = is_glm(name);
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = glm ? 4 : 3,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .q_rank = 96,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 16}},
        .index_top = 24,
        .index_heads = 20,
        .index_dim = 40,
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .expert_gating = SL_GGUF_SIGMOID,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_expert_groups = 4,
        .top_expert_groups = 2,
        .n_shared_experts = 1,
    };
    for (int32_t i = 0; i < hp->n_layers; i++) /* of GLM-5.2's every other one */
        hp->index_layers[i] = glm && i % 2 != 0 ? SL_LAYER_OFF : SL_LAYER_ON;
}

const struct sl_model_desc sl_model_deepseek_sparse = {
    .id = "deepseek_sparse",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .mtp = &mtp,
    .plan = deepseek_sparse_plan,
    .tiny = deepseek_sparse_tiny,
};
