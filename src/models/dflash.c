/* SPDX-License-Identifier: MIT
 * DFlash: a drafter of a few layers as Qwen 3's that makes a block of drafts in one step. Keys and
 * values of the text are made of hidden rows of the model it drafts for; the block is the last
 * token and masks, which see the text and one another (draft_run.c).
 *
 * Two formats: z-lab's, with its keys in dflash_config or at the top, numbers the target's layers
 * by the layer that a row leaves; speculators' by the layer that it enters. Windowed layers of the
 * first are causal unless is_causal says otherwise; full layers are not. Every row counts its
 * window from its own position, as vLLM and z-lab's code have it.
 */
#include "base/check.h"
#include "models/internal.h"
#include "models/tables.h"

#include <string.h>

static const struct sl_model_name names[] = {
    {.id = "dflash",
     .hf_architecture = "DFlashDraftModel",
     .hf_model_type = "qwen3",
     .has = SL_HAS_QK_NORM,
     .head_dim = 128},
    {.id = "dflash-speculators",
     .hf_architecture = "DFlashSpeculator",
     .hf_model_type = "dflash",
     .hf_config = "transformer_layer_config",
     .has = SL_HAS_QK_NORM,
     .head_dim = 128},
    {.id = "dspark-speculators",
     .hf_architecture = "DSparkSpeculator",
     .hf_model_type = "dspark",
     .hf_config = "transformer_layer_config",
     .has = SL_HAS_QK_NORM,
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    {.hf = {"attention_bias"}, .type = SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {.hf = {"sliding_window"}, .type = SL_HP_INT, SL_HP_AT(window), .min = 0,
     .max = SL_MAX_CONTEXT},
    {.hf = {"layer_types"}, .type = SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .flags = SL_W_OF_TARGET},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .rows = SL_DIM_DRAFT_V, .cols = SL_DIM_H,
     .flags = SL_W_OF_TARGET},
    {.slot = SL_SLOT_TAPS_IN, .hf = "model.fc.weight", .rows = SL_DIM_H, .cols = SL_DIM_TAPS_H},
    {.slot = SL_SLOT_DRAFT_HIDDEN_NORM, .hf = "model.hidden_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_CHAIN_PREV, .hf = "markov_head.markov_w1.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_CHAIN},
    {.slot = SL_SLOT_CHAIN_NEXT, .hf = "markov_head.markov_w2.weight", .rows = SL_DIM_DRAFT_V,
     .cols = SL_DIM_CHAIN},
    {.slot = SL_SLOT_CHAIN_MIX, .hf = "markov_head.gate_proj.weight", .rows = SL_DIM_CHAIN_MIX,
     .cols = SL_DIM_CHAIN_IN},
    {.slot = SL_SLOT_CHAIN_MIX_BIAS, .hf = "markov_head.gate_proj.bias", .rows = SL_DIM_CHAIN_MIX},
    {.slot = SL_SLOT_CHAIN_MIX, .hf = "markov_head.joint_proj.weight", .rows = SL_DIM_CHAIN_MIX,
     .cols = SL_DIM_CHAIN_IN},
    {.slot = SL_SLOT_CHAIN_MIX_BIAS, .hf = "markov_head.joint_proj.bias",
     .rows = SL_DIM_CHAIN_MIX},
    {.slot = SL_SLOT_CHAIN_ODDS, .hf = "confidence_head.proj.weight", .rows = SL_DIM_ONE,
     .cols = SL_DIM_CHAIN_ODDS},
    {.slot = SL_SLOT_CHAIN_ODDS_BIAS, .hf = "confidence_head.proj.bias", .rows = SL_DIM_ONE},
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static int dflash_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const bool windowed = hp->layer_types[i] == SL_LAYER_ON;
        if (windowed && hp->window == 0)
            return sl_fail(err, SL_EFORMAT,
                           "config.json: layer_types[%d] is sliding_attention, but sliding_window "
                           "is not set",
                           i);
        layers[i].window = windowed ? hp->window : 0;
        layers[i].whole = !hp->draft.causal && (hp->draft.both_ways || !windowed);
    }
    return 0;
}

const struct sl_model_desc sl_model_dflash = {
    .id = "dflash",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = dflash_plan,
};

const struct sl_model_name *sl_dflash_name(const struct sl_ckpt *ckpt)
{
    const json_t *config = sl_ckpt_config(ckpt);
    const char *kind = json_string_value(json_object_get(config, "speculators_model_type"));
    const char *arch =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    if (kind != NULL)
        return strcmp(kind, "dflash") == 0 ? &names[1] : NULL;
    return arch != NULL && strcmp(arch, names[0].hf_architecture) == 0 ? &names[0] : NULL;
}

const struct sl_model_name *sl_dspark_name(const struct sl_ckpt *ckpt)
{
    const char *kind =
        json_string_value(json_object_get(sl_ckpt_config(ckpt), "speculators_model_type"));
    return kind != NULL && strcmp(kind, "dspark") == 0 ? &names[2] : NULL;
}

/* Which rows of the target it reads, by the layer they enter. A file numbers layers so, or (behind
 * 1) by the layer they leave. */
static int dflash_read_taps(const json_t *config, const char *key, int32_t behind, int32_t n_layers,
                            struct sl_draft_hparams *d, struct sl_error *err)
{
    const json_t *ids = sl_draft_said(config, key);
    const size_t n = json_array_size(ids);
    if (!json_is_array(ids) || n < 1 || n > SL_MAX_TAPS)
        return sl_fail(err, SL_EFORMAT, "config.json: %s must be a list of 1 to %d layers", key,
                       SL_MAX_TAPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(ids, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) + behind > n_layers)
            return sl_fail(err, SL_EFORMAT,
                           "config.json: %s[%zu] must be a layer of the model, 0 to %d", key, i,
                           n_layers - behind);
        d->taps[i] = (int32_t)json_integer_value(v) + behind;
    }
    d->n_taps = (int32_t)n;
    return 0;
}

static int dflash_read_number(const json_t *config, const char *key, double *out,
                              struct sl_error *err)
{
    const json_t *v = sl_draft_said(config, key);
    const double x = json_number_value(v);
    if (v != NULL && (!json_is_number(v) || !(x >= 1e-6 && x <= 1e6)))
        return sl_fail(err, SL_EFORMAT, "config.json: %s must be a number from 1e-6 to 1e6", key);
    if (v != NULL)
        *out = x;
    return 0;
}

/* Which rows see one another, where that is not by the kind of layer. */
static int read_mask(const json_t *config, bool speculators, struct sl_hparams *hp,
                     struct sl_error *err)
{
    const char *const keys[] = {"is_causal", "causal"}; /* the first one that is given counts */
    struct sl_draft_hparams *d = &hp->draft;
    bool windowed = false;
    int rc = 0;
    if (speculators)
        return sl_draft_read_bool(config, "sliding_window_non_causal", &d->both_ways, err);
    for (size_t i = 0; i < SL_COUNT(keys) && rc == 0 && !d->causal && !d->both_ways; i++) {
        if (sl_draft_said(config, keys[i]) == NULL)
            continue;
        rc = sl_draft_read_bool(config, keys[i], &d->causal, err);
        d->both_ways = !d->causal;
    }
    if (rc == 0)
        rc = sl_draft_read_int(config, "swa_window_size", SL_MAX_CONTEXT, &hp->window, err);
    if (rc == 0)
        rc = sl_draft_read_bool(config, "use_swa", &windowed, err);
    for (int32_t i = 0; windowed && i < hp->n_layers; i++)
        windowed = hp->layer_types[i] != SL_LAYER_ON;
    if (!windowed || rc != 0)
        return rc;
    if (json_object_get(config, "layer_types") == NULL) /* as vLLM: then not by the kind of layer */
        d->both_ways = !d->causal;
    for (int32_t i = 0; i < hp->n_layers; i++)
        hp->layer_types[i] = SL_LAYER_ON;
    return 0;
}

static int dflash_read_block(const json_t *config, const struct sl_hparams *hp,
                             struct sl_draft_hparams *d, struct sl_error *err)
{
    const json_t *mask = sl_draft_said(config, "mask_token_id");
    if (!json_is_integer(mask) || json_integer_value(mask) < 0 ||
        json_integer_value(mask) >= hp->n_vocab)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: mask_token_id must be a token of the model, 0 to %d",
                       hp->n_vocab - 1);
    d->mask_token = (int32_t)json_integer_value(mask);
    int rc = sl_draft_read_int(config, "block_size", SL_MAX_CONTEXT, &d->block, err);
    if (rc == 0)
        rc = sl_draft_read_bool(config, "sample_from_anchor", &d->from_anchor, err);
    if (rc == 0 && d->block < (d->from_anchor ? 1 : 2))
        rc =
            sl_fail(err, SL_EFORMAT, "config.json: block_size must be %d or more: the last token%s",
                    d->from_anchor ? 1 : 2, d->from_anchor ? "" : " and a mask");
    return rc;
}

static bool has_tensor(const struct sl_ckpt *ckpt, const char *name)
{
    return sl_ckpt_find(ckpt, name) != NULL || sl_ckpt_unsupported(ckpt, name) != NULL;
}

/* DSpark's heads, by speculators' keys and their defaults. A tensor that a key promises must be
 * there: it is looked for here, as rows of the table that are not there are left out. */
static int read_heads(const struct sl_ckpt *ckpt, struct sl_draft_hparams *d, struct sl_error *err)
{
    static const struct {
        const char *name, *tensor;
        enum sl_chain chain;
    } kinds[] = {{"vanilla", "markov_head.markov_w1.weight", SL_CHAIN_VANILLA},
                 {"gated", "markov_head.gate_proj.weight", SL_CHAIN_GATED},
                 {"rnn", "markov_head.joint_proj.weight", SL_CHAIN_RNN}};
    const json_t *config = sl_ckpt_config(ckpt), *rank = sl_draft_said(config, "markov_rank"),
                 *type = sl_draft_said(config, "markov_head_type");
    const char *name = type != NULL ? json_string_value(type) : "vanilla";
    size_t i = 0;
    if (rank != NULL && (!json_is_integer(rank) || json_integer_value(rank) < 1 ||
                         json_integer_value(rank) > SL_MAX_HIDDEN))
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: markov_rank must be 1 to %d",
                       SL_MAX_HIDDEN);
    d->chain_rank = rank != NULL ? (int32_t)json_integer_value(rank) : 256;
    while (i < SL_COUNT(kinds) && (name == NULL || strcmp(kinds[i].name, name) != 0))
        i++;
    if (i == SL_COUNT(kinds))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: markov_head_type must be \"vanilla\", \"gated\" or \"rnn\"");
    d->chain = kinds[i].chain;
    d->odds = d->odds_prev = true;
    int rc = sl_draft_read_bool(config, "enable_confidence_head", &d->odds, err);
    if (rc == 0)
        rc = sl_draft_read_bool(config, "confidence_head_with_markov", &d->odds_prev, err);
    if (rc == 0 && d->chain == SL_CHAIN_RNN && !d->from_anchor)
        rc = sl_fail(
            err, SL_EUNSUPPORTED,
            "config.json: markov_head_type \"rnn\" works with sample_from_anchor true only");
    if (rc == 0 && (!has_tensor(ckpt, kinds[i].tensor) || !has_tensor(ckpt, kinds[0].tensor) ||
                    !has_tensor(ckpt, "markov_head.markov_w2.weight") ||
                    (d->odds && !has_tensor(ckpt, "confidence_head.proj.weight"))))
        rc = sl_fail(err, SL_EFORMAT,
                     "a tensor of DSpark's heads is missing: markov_head.markov_w1.weight, "
                     "markov_head.markov_w2.weight, %s%s",
                     kinds[i].tensor, d->odds ? " or confidence_head.proj.weight" : "");
    return rc;
}

int sl_dflash_read(const struct sl_ckpt *ckpt, const struct sl_hparams *target,
                   struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *config = sl_ckpt_config(ckpt);
    const bool speculators = json_object_get(config, "speculators_model_type") != NULL;
    struct sl_draft_hparams *d = &hp->draft;
    d->target_hidden = hp->hidden;
    d->n_vocab = hp->n_vocab;
    d->context = true;
    d->block = speculators ? 8 : 16; /* where it is not given, theirs */
    d->from_anchor = sl_dspark_name(ckpt) != NULL;
    int rc = sl_draft_read_int(config, "draft_vocab_size", SL_MAX_VOCAB, &d->n_vocab, err);
    if (rc == 0)
        rc = sl_draft_read_int(config, "target_hidden_size", SL_MAX_HIDDEN, &d->target_hidden, err);
    if (rc == 0)
        rc = sl_draft_check_target(hp, target, err);
    if (rc == 0)
        rc = dflash_read_block(config, hp, d, err);
    if (rc == 0)
        rc = dflash_read_taps(config,
                              speculators ? "aux_hidden_state_layer_ids" : "target_layer_ids",
                              speculators ? 0 : 1, target->n_layers, d, err);
    if (rc == 0)
        rc = read_mask(config, speculators, hp, err);
    if (rc == 0)
        rc = dflash_read_number(config, "input_embedding_scale", &hp->embed_scale, err);
    if (rc == 0)
        rc = dflash_read_number(config, "output_multiplier", &hp->logit_scale, err);
    if (rc == 0)
        rc = dflash_read_number(config, "final_logit_softcapping", &hp->logit_softcap, err);
    if (rc == 0 && sl_dspark_name(ckpt) != NULL)
        rc = read_heads(ckpt, d, err);
    return rc;
}
