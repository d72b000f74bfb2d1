/* SPDX-License-Identifier: MIT
 * What families with experts have in common: which layers have them, and how they are chosen.
 */
#include "base/check.h"
#include "models/tables.h"

/* Of a layer with experts. */
static const unsigned bits =
    SL_HAS_EXPERTS | SL_HAS_CHOICE_BIAS | SL_HAS_SHARED | SL_HAS_SHARED_GATE;

static struct sl_route_rule rule_of(const struct sl_hparams *hp, enum sl_route_score score,
                                    float sum_min)
{
    const int32_t n_groups = SL_MAX(hp->n_expert_groups, 1);
    if (hp->expert_gating != 0)
        score = hp->expert_gating == SL_GGUF_SIGMOID ? SL_ROUTE_SIGMOID : SL_ROUTE_SOFTMAX;
    return (struct sl_route_rule){
        .score = score,
        .renormalize = hp->norm_top_experts,
        .sum_min = sum_min,
        .scale = hp->expert_scale != 0 ? (float)hp->expert_scale : 1,
        .n_groups = n_groups,
        .top_groups = n_groups > 1 ? hp->top_expert_groups : 1,
        .group_top = n_groups > 1 ? 2 : 1,
    };
}

static int moe_check(const struct sl_hparams *hp, const struct sl_route_rule *rule,
                     struct sl_error *err)
{
    const bool gguf = hp->from_gguf;
    if (hp->top_experts > hp->n_experts)
        return sl_fail(err, SL_EFORMAT, "%s (%d) is more than the %d experts",
                       gguf ? "GGUF: expert_used_count" : "config.json: num_experts_per_tok",
                       hp->top_experts, hp->n_experts);
    if (hp->n_experts + hp->n_pass_experts > SL_MAX_EXPERTS)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: %d experts and %d that give back what they read are more than "
                       "%d",
                       hp->n_experts, hp->n_pass_experts, SL_MAX_EXPERTS);
    if (!sl_route_fits(hp->n_experts + hp->n_pass_experts, hp->top_experts, rule))
        return sl_fail(err, SL_EFORMAT,
                       "%s: %d of %d experts cannot be chosen from %d of %d groups, whose two best "
                       "are counted",
                       gguf ? "GGUF: expert_group_count" : "config.json: n_group", hp->top_experts,
                       hp->n_experts, rule->top_groups, rule->n_groups);
    return 0;
}

static bool is_dense(const struct sl_hparams *hp, int32_t layer)
{
    const unsigned shown = hp->layer_has[layer] & (SL_HAS_DENSE | SL_HAS_EXPERTS);
    if (shown == SL_HAS_DENSE) /* a GGUF's tensors say it */
        return true;
    if (hp->mlp_types[layer] != SL_LAYER_BY_INDEX)
        return hp->mlp_types[layer] == SL_LAYER_OFF;
    return layer < hp->n_dense || hp->dense_layers[layer] != 0 ||
           (hp->expert_step > 1 && (layer + 1) % hp->expert_step != 0);
}

int sl_plan_experts(const struct sl_hparams *hp, enum sl_route_score score, float sum_min,
                    struct sl_layer_desc *layers, struct sl_error *err)
{
    const struct sl_route_rule rule = rule_of(hp, score, sum_min);
    const int32_t size = hp->expert_intermediate != 0 ? hp->expert_intermediate : hp->intermediate;
    const int32_t shared =
        hp->shared_intermediate != 0 ? hp->shared_intermediate : size * hp->n_shared_experts;
    int rc = moe_check(hp, &rule, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        if (is_dense(hp, i)) {
            l->has = (l->has & ~bits) | SL_HAS_DENSE;
            if (hp->dense_intermediate != 0)
                l->intermediate = hp->dense_intermediate;
            continue;
        }
        l->has = (l->has & ~(unsigned)SL_HAS_DENSE) | SL_HAS_EXPERTS;
        if (shared > 0)
            l->has |= SL_HAS_SHARED;
        else
            l->has &= ~(unsigned)(SL_HAS_SHARED | SL_HAS_SHARED_GATE);
        l->ffn = SL_FFN_EXPERTS;
        l->intermediate = size;
        l->n_experts = hp->n_experts;
        l->top_experts = hp->top_experts;
        l->n_pass = hp->n_pass_experts;
        l->route = rule;
        l->shared_intermediate = shared;
    }
    return rc;
}
