/* SPDX-License-Identifier: MIT
 * EAGLE-3: a drafter of one or more layers as Llama's (or Qwen3's), which reads hidden rows of
 * several layers of its target, and whose vocabulary is a part of the target's. Two formats:
 * SafeAILab's, which NVIDIA's and others follow, and that of speculators, whose config.json has the
 * layers' one inside.
 *
 * Files number the target's layers in two ways. The number of the layer that a row enters is
 * speculators', vLLM's and what holds where nothing is said; SafeAILab's format is also used with
 * the number of the layer that a row leaves. The second kind is known by its first number, 1, as
 * SGLang does: nobody trains with the row that enters layer 1.
 *
 * P-EAGLE is the same with a row, mask_hidden, and a token that stand for what is not known yet: so
 * all drafts come of one step, each from a mask behind the one before it.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "io/json.h"
#include "models/internal.h"
#include "models/tables.h"

#include <string.h>

static const struct sl_model_name names[] = {
    {.id = "eagle3", .hf_architecture = "LlamaForCausalLMEagle3", .hf_model_type = "llama"},
    {.id = "eagle3-speculators",
     .hf_architecture = "Eagle3Speculator",
     .hf_model_type = "eagle3",
     .hf_config = "transformer_layer_config"},
    {.id = "peagle-speculators",
     .hf_architecture = "PEagleSpeculator",
     .hf_model_type = "peagle",
     .hf_config = "transformer_layer_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    {.hf = {"attention_bias", "qkv_bias"}, .type = SL_HP_HAS,
     .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {.hf = {"mlp_bias"}, .type = SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
    {.hf = {"layer_types"}, .type = SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .flags = SL_W_OF_TARGET},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .rows = SL_DIM_DRAFT_V, .cols = SL_DIM_H,
     .flags = SL_W_OF_TARGET},
    {.slot = SL_SLOT_TAPS_NORM, .hf = "model.input_norm.weight", .rows = SL_DIM_TAPS_H},
    {.slot = SL_SLOT_TAP_NORMS, .hf = "model.fc_norm.#.weight", .rows = SL_DIM_TARGET_H,
     .mats = SL_DIM_TAP_COUNT},
    {.slot = SL_SLOT_TAPS_IN, .hf = "model.fc.weight", .rows = SL_DIM_H, .cols = SL_DIM_TAPS_H},
    {.slot = SL_SLOT_DRAFT_MASK_ROW, .hf = "model.mask_hidden", .rows = SL_DIM_TAPS_H,
     .flags = SL_W_FLAT},
    {.slot = SL_SLOT_DRAFT_HIDDEN_NORM, .hf = "model.layers.*.hidden_norm.weight",
     .rows = SL_DIM_H},
    SL_WEIGHTS_ATTN_NORM,
    SL_W_LAYER(Q, "self_attn.q_proj.weight", "attn_q.weight", Q, MIX_IN, HEADS)},
    SL_W_LAYER(K, "self_attn.k_proj.weight", "attn_k.weight", K, MIX_IN, KV_HEADS)},
    SL_W_LAYER(V, "self_attn.v_proj.weight", "attn_v.weight", VALUES, MIX_IN, KV_HEADS)},
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)},
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
    SL_WEIGHTS_MLP_BIAS,
};
/* clang-format on */

static int eagle3_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++)
        if (hp->layer_types[i] == SL_LAYER_ON)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "config.json: layer_types[%d] \"sliding_attention\" of a drafter is not "
                           "supported",
                           i);
    layers[0].joined = true;
    return 0;
}

const struct sl_model_desc sl_model_eagle3 = {
    .id = "eagle3",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = eagle3_plan,
};

const struct sl_model_name *sl_eagle3_name(const struct sl_ckpt *ckpt)
{
    const json_t *config = sl_ckpt_config(ckpt);
    const char *kind = json_string_value(json_object_get(config, "speculators_model_type"));
    const char *arch =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    if (kind != NULL)
        return strcmp(kind, "eagle3") == 0   ? &names[1]
               : strcmp(kind, "peagle") == 0 ? &names[2]
                                             : NULL;
    /* as vLLM calls it */
    if (arch != NULL && (strcmp(arch, names[0].hf_architecture) == 0 ||
                         strcmp(arch, "Eagle3LlamaForCausalLM") == 0 ||
                         strcmp(arch, "PeagleLlamaForCausalLM") == 0))
        return &names[0];
    return NULL;
}

bool sl_eagle3_lacks(const struct sl_ckpt *ckpt, const struct sl_weight_desc *w)
{
    if (w->slot != SL_SLOT_TAPS_NORM && w->slot != SL_SLOT_TAP_NORMS &&
        (w->slot < SL_SLOT_DRAFT_MASK_ROW || w->slot > SL_SLOT_CHAIN_ODDS_BIAS))
        return false;
    char name[SL_MAX_TENSOR_NAME];
    sl_bind_name(w->hf, 0, 0, name);
    return sl_ckpt_find(ckpt, name) == NULL &&
           sl_ckpt_find(ckpt, name + sl_bind_optional_prefix(name)) == NULL;
}

const json_t *sl_draft_said(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (v == NULL || json_is_null(v))
        v = json_object_get(json_object_get(config, "eagle_config"), key);
    if (v == NULL || json_is_null(v))
        v = json_object_get(json_object_get(config, "dflash_config"), key);
    return json_is_null(v) ? NULL : v;
}

int sl_draft_read_bool(const json_t *config, const char *key, bool *out, struct sl_error *err)
{
    const json_t *v = sl_draft_said(config, key);
    if (v != NULL && !json_is_boolean(v))
        return sl_fail(err, SL_EFORMAT, "config.json: %s must be true or false", key);
    if (v != NULL)
        *out = json_is_true(v);
    return 0;
}

int sl_draft_read_int(const json_t *config, const char *key, int32_t max, int32_t *out,
                      struct sl_error *err)
{
    const json_t *v = sl_draft_said(config, key);
    if (v == NULL)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
        return sl_fail(err, SL_EFORMAT, "config.json: %s must be 1 to %d", key, max);
    *out = (int32_t)json_integer_value(v);
    return 0;
}

#define IDS "eagle_aux_hidden_state_layer_ids"

/* Which rows of the target it reads: by the layer they enter. */
static int eagle3_read_taps(const json_t *config, bool leaves_too, int32_t n_layers,
                            struct sl_draft_hparams *d, struct sl_error *err)
{
    const json_t *ids = sl_draft_said(config, IDS);
    const size_t n = json_array_size(ids);
    if (ids == NULL) {
        if (n_layers < 4)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "config.json: " IDS " is missing, and a model of %d layers is too small "
                           "for those that are usual",
                           n_layers);
        d->n_taps = 3;
        d->taps[0] = 2;
        d->taps[1] = n_layers / 2;
        d->taps[2] = n_layers - 3;
        return 0;
    }
    if (!json_is_array(ids) || n < 1 || n > SL_MAX_TAPS)
        return sl_fail(err, SL_EFORMAT, "config.json: " IDS " must be a list of 1 to %d layers",
                       SL_MAX_TAPS);
    const json_t *first = json_array_get(ids, 0);
    const int32_t behind = leaves_too && json_is_integer(first) && json_integer_value(first) == 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(ids, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) + behind > n_layers)
            return sl_fail(err, SL_EFORMAT,
                           "config.json: " IDS "[%zu] must be a layer of the model, 0 to %d", i,
                           n_layers - behind);
        d->taps[i] = (int32_t)json_integer_value(v) + behind;
    }
    d->n_taps = (int32_t)n;
    if (behind != 0)
        sl_log(SL_LOG_INFO, "config.json: " IDS " begins with 1: layers are those that rows leave");
    return 0;
}

int sl_draft_check_target(const struct sl_hparams *hp, const struct sl_hparams *target,
                          struct sl_error *err)
{
    if (hp->n_vocab != target->n_vocab)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: vocab_size is %d, but the model has %d tokens: the drafter is "
                       "of another model",
                       hp->n_vocab, target->n_vocab);
    if (hp->draft.target_hidden != target->hidden)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: %s is %d, but the model's rows have %d values: the drafter is "
                       "of another model",
                       hp->draft.target_hidden == hp->hidden ? "hidden_size" : "target_hidden_size",
                       hp->draft.target_hidden, target->hidden);
    return 0;
}

/* A norm that the file has a tensor for, or config.json asks for: both or none. */
static int check_norm(const struct sl_ckpt *ckpt, enum sl_slot slot, const char *key,
                      struct sl_error *err)
{
    bool asked = false;
    int rc = sl_draft_read_bool(sl_ckpt_config(ckpt), key, &asked, err);
    for (size_t i = 0; i < SL_COUNT(weights) && rc == 0; i++)
        if (weights[i].slot == slot && asked && sl_eagle3_lacks(ckpt, &weights[i]))
            rc = sl_fail(err, SL_EFORMAT, "config.json: %s is true, but tensor \"%s\" is missing",
                         key, weights[i].hf + strlen("model."));
    return rc;
}

/* The token of masks, as speculators and vLLM call it: then all drafts are made in one step. */
static int read_masks(const struct sl_ckpt *ckpt, const struct sl_hparams *hp,
                      struct sl_draft_hparams *d, struct sl_error *err)
{
    static const char *const keys[] = {"mask_token_id", "ptd_token_id", "pard_token"};
    const json_t *config = sl_ckpt_config(ckpt), *id = NULL;
    size_t i = 0;
    if (sl_ckpt_find(ckpt, "mask_hidden") == NULL &&
        sl_ckpt_unsupported(ckpt, "mask_hidden") == NULL)
        return 0;
    while (i < SL_COUNT(keys) && (id = sl_draft_said(config, keys[i])) == NULL)
        i++;
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= hp->n_vocab)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: mask_token_id must be a token of the model, 0 to %d, as there "
                       "is a tensor \"mask_hidden\"",
                       hp->n_vocab - 1);
    d->mask_token = (int32_t)json_integer_value(id);
    d->block = SL_MAX_DRAFTED;
    d->from_anchor = true;
    return 0;
}

int sl_eagle3_read(const struct sl_ckpt *ckpt, const struct sl_hparams *target,
                   struct sl_hparams *hp, struct sl_error *err)
{
    const json_t *config = sl_ckpt_config(ckpt);
    const bool speculators = json_object_get(config, "speculators_model_type") != NULL;
    struct sl_draft_hparams *d = &hp->draft;
    bool taps = true;
    d->target_hidden = hp->hidden;
    d->n_vocab = hp->n_vocab;
    int rc = sl_draft_read_int(config, "draft_vocab_size", SL_MAX_VOCAB, &d->n_vocab, err);
    if (rc == 0)
        rc = sl_draft_read_int(config, "target_hidden_size", SL_MAX_HIDDEN, &d->target_hidden, err);
    if (rc == 0)
        rc = sl_draft_read_bool(config, "norm_before_residual", &d->normed_residual, err);
    if (rc == 0)
        rc = sl_draft_read_bool(config, "norm_output", &d->normed_output, err);
    if (rc == 0)
        rc = sl_draft_read_bool(config, "use_aux_hidden_state", &taps, err);
    if (rc == 0 && !taps)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "config.json: use_aux_hidden_state is false: such a drafter is not supported");
    if (rc == 0)
        rc = sl_draft_check_target(hp, target, err);
    if (rc == 0)
        rc = eagle3_read_taps(config, !speculators, target->n_layers, d, err);
    if (rc == 0)
        rc = check_norm(ckpt, SL_SLOT_TAPS_NORM, "norm_before_fc", err);
    if (rc == 0)
        rc = check_norm(ckpt, SL_SLOT_TAP_NORMS, "fc_norm", err);
    if (rc == 0)
        rc = read_masks(ckpt, hp, d, err);
    if (rc == 0 && json_object_get(config, "mask_token_id") != NULL && d->block == 0)
        rc =
            sl_fail(err, SL_EFORMAT,
                    "config.json: there is a mask_token_id, but tensor \"mask_hidden\" is missing");
    if (rc == 0 && sl_ckpt_find(ckpt, "layers.0.self_attn.q_norm.weight") != NULL)
        hp->has |= SL_HAS_QK_NORM;
    return rc;
}

int sl_eagle3_read_ids(const struct sl_ckpt *ckpt, const struct sl_hparams *hp, int32_t **out,
                       struct sl_error *err)
{
    const int32_t n = hp->draft.n_vocab;
    const struct sl_ckpt_tensor *t = sl_ckpt_find_raw(ckpt, "d2t", "I64");
    *out = NULL;
    if (t == NULL && n == hp->n_vocab && sl_ckpt_unsupported(ckpt, "d2t") == NULL)
        return 0;
    if (t == NULL || t->n_dims != 1 || t->dims[0] != n)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"d2t\" must be I64 with %d values, config.json's draft_vocab_size",
                       n);
    int32_t *ids = sl_malloc((size_t)n * sizeof *ids);
    if (ids == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the tokens of a drafter");
    for (int32_t i = 0; i < n; i++) {
        int64_t more;
        memcpy(&more, t->data + (size_t)i * sizeof more, sizeof more);
        if (more < -i || more >= hp->n_vocab - i) {
            sl_free(ids);
            return sl_fail(err, SL_EFORMAT,
                           "tensor \"d2t\": value %d says token %lld, which is none of the model's "
                           "%d",
                           i, (long long)(more < INT64_MAX - i ? more + i : more), hp->n_vocab);
        }
        ids[i] = (int32_t)(i + more);
    }
    *out = ids;
    return 0;
}
