/* SPDX-License-Identifier: MIT
 * DeepSeek V2 and V3 (R1, V3.1), Kimi K2, GLM-4.7-Flash and Mistral Small 4: latent attention,
 * dense layers in front, experts with a shared one. GGUF files of the first four call themselves
 * "deepseek2", and say by expert_gating_func and a bias what their router is.
 *
 * V2 chooses by softmax, in groups that are as good as their best expert; Mistral by softmax, the
 * others by sigmoid and a bias, in groups that are as good as their two best. Layers behind the
 * last (num_nextn_predict_layers) predict further tokens: the first one is a drafter (draft.c).
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <string.h>

static const struct sl_model_name names[] = {
    {.id = "deepseek_v2",
     .hf_architecture = "DeepseekV2ForCausalLM",
     .hf_model_type = "deepseek_v2",
     .gguf_architecture = "deepseek2",
     .gguf_experts = true},
    {.id = "deepseek_v3", /* Kimi K2 calls itself so too */
     .hf_architecture = "DeepseekV3ForCausalLM",
     .hf_model_type = "deepseek_v3",
     .has = SL_HAS_CHOICE_BIAS},
    {.id = "glm4_moe_lite",
     .hf_architecture = "Glm4MoeLiteForCausalLM",
     .hf_model_type = "glm4_moe_lite",
     .has = SL_HAS_CHOICE_BIAS},
    {.id = "kimi_k25", /* K2.5 and K2.6, which also read images */
     .hf_architecture = "KimiK25ForConditionalGeneration",
     .hf_model_type = "kimi_k25",
     .has = SL_HAS_CHOICE_BIAS,
     .hf_config = "text_config"},
    {.id = "mistral4",
     .hf_architecture = "Mistral4ForCausalLM",
     .hf_model_type = "mistral4",
     .gguf_architecture = "mistral4"},
    {.id = "mistral4-text", /* as the hub has it: of a model that also reads images */
     .hf_architecture = "Mistral3ForConditionalGeneration",
     .hf_model_type = "mistral3",
     .hf_text_type = "mistral4",
     .hf_config = "text_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_DEEPSEEK,
    SL_HPARAM_NORM_TOP_EXPERTS(false),
    SL_HPARAMS_DEEPSEEK_EXPERTS(0),
    SL_HPARAM_MLP_TYPES,
    {.hf = {"topk_method"}, .type = SL_HP_EITHER, SL_HP_AT(limits_groups),
     .words = {"greedy", "group_limited_greedy"}},
    {NULL, {"moe_layer_freq"}, SL_HP_INT, SL_HP_AT(expert_step), .min = 1, .max = 1},
    SL_HPARAM_NEXTN,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("rope_interleave", true),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_DEEPSEEK,
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

static int deepseek_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                         struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool sigmoid = (hp->has & SL_HAS_CHOICE_BIAS) != 0;
    const bool v2 = strcmp(name->id, "deepseek_v2") == 0;
    int rc =
        sl_plan_experts(hp, sigmoid ? SL_ROUTE_SIGMOID : SL_ROUTE_SOFTMAX, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        sl_plan_mla(hp, l);
        l->temperature.beta = (float)hp->ropes[0].q_beta;
        l->temperature.span = (float)hp->ropes[0].original_context;
        if (!v2 || l->n_experts == 0 || l->route.score != SL_ROUTE_SOFTMAX)
            continue;
        l->route.group_top = 1;
        if (!hp->limits_groups && !hp->from_gguf)
            l->route.n_groups = l->route.top_groups = 1;
    }
    return rc;
}

static void deepseek_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    const bool v2 = strcmp(name->id, "deepseek_v2") == 0;
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .q_rank = v2 ? 0 : 96,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 16}},
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .expert_gating = (name->has & SL_HAS_CHOICE_BIAS) != 0 ? SL_GGUF_SIGMOID : 0,
        .norm_top_experts = !v2,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_expert_groups = 4,
        .top_expert_groups = 2,
        .limits_groups = true,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_deepseek = {
    .id = "deepseek",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .mtp = &mtp,
    .plan = deepseek_plan,
    .tiny = deepseek_tiny,
};
