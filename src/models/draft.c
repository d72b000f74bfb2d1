/* SPDX-License-Identifier: MIT
 * Opening a drafter that reads hidden rows of the model it drafts for. It is a model like any
 * other, with a table of weights made for it: the rows of a family's layers, and those of the
 * drafter's input and end. Steps: draft_run.c.
 *
 * A module of MTP is the layer that a family's plan() would give behind the last one. Embedding and
 * head are the target's: checkpoints that hold them once more hold copies.
 */
#include "base/check.h"
#include "models/internal.h"

#include <string.h>

/* ---------------------------------------------------------------- tables */

/* The family's rows that the drafter has; of a module of MTP those of layers. */
static bool draft_takes(const struct sl_model *m, const struct sl_model_desc *family,
                        const struct sl_weight_desc *w)
{
    const bool clusters = m->hp.n_clusters > 0;
    if (family->mtp != NULL)
        return w->slot < SL_SLOT_FIRST_GLOBAL;
    return !sl_eagle3_lacks(m->ckpt, w) &&
           w->slot != (clusters ? SL_SLOT_HEAD : SL_SLOT_CLUSTER_ROWS);
}

static int make_desc(struct sl_model *m, const struct sl_model_desc *family, struct sl_error *err)
{
    const struct sl_draft_desc *mtp = family->mtp;
    const int32_t n_most = family->n_weights + (mtp != NULL ? mtp->n_weights : 0);
    int32_t n = 0;
    m->own_desc = sl_calloc(1, sizeof *m->own_desc);
    m->own_weights = sl_calloc((size_t)n_most, sizeof *m->own_weights);
    if (m->own_desc == NULL || m->own_weights == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory opening a drafter");
    for (int32_t i = 0; i < family->n_weights; i++)
        if (draft_takes(m, family, &family->weights[i]))
            m->own_weights[n++] = family->weights[i];
    for (int32_t i = 0; mtp != NULL && i < mtp->n_weights; i++)
        m->own_weights[n++] = mtp->weights[i];
    *m->own_desc = *family;
    m->own_desc->weights = m->own_weights;
    m->own_desc->n_weights = n;
    m->desc = m->own_desc;
    return 0;
}

/* ---------------------------------------------------------------- MTP */

/* The name of the product that joins embedding and hidden row, in the target's files. */
static bool has_module(const struct sl_model *target)
{
    const struct sl_draft_desc *mtp = target->desc->mtp;
    char name[SL_MAX_TENSOR_NAME];
    for (int32_t i = 0; mtp != NULL && i < mtp->n_weights; i++) {
        const char *pattern = sl_bind_pattern(&mtp->weights[i], target->hp.from_gguf, false);
        if (mtp->weights[i].slot != SL_SLOT_DRAFT_JOIN || pattern == NULL)
            continue;
        sl_bind_name(pattern,
                     mtp->hf_layers == NULL || target->hp.from_gguf ? target->hp.n_layers : 0, 0,
                     name);
        return sl_ckpt_find(target->ckpt, name) != NULL ||
               sl_ckpt_unsupported(target->ckpt, name) != NULL;
    }
    return false;
}

bool sl_model_has_mtp(const struct sl_model *m)
{
    return m->facts.task == SL_TASK_GENERATE && has_module(m);
}

/* The layer behind the last one, as the family plans it. */
static int plan_module(struct sl_model *m, const struct sl_model *target, struct sl_error *err)
{
    const struct sl_draft_desc *mtp = target->desc->mtp;
    const int32_t n = target->hp.n_layers;
    struct sl_hparams *hp = sl_malloc(sizeof *hp);
    struct sl_layer_desc *layers = sl_calloc((size_t)n + 1, sizeof *layers);
    int rc = 0;
    if (hp == NULL || layers == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory opening a drafter");
    else if (n >= SL_MAX_LAYERS)
        rc = sl_fail(err, SL_ELIMIT, "a model of %d layers has no room for one more", n);
    if (rc == 0) {
        *hp = target->hp;
        hp->n_layers = n + 1;
        hp->attn_layers[n] = (uint8_t)mtp->attends;
        hp->layer_types[n] = (uint8_t)mtp->windowed;
        hp->mlp_types[n] = (uint8_t)mtp->experts;
        hp->index_layers[n] = SL_LAYER_ON; /* there is none before it whose choice it could take */
        hp->rows_kinds[n] = SL_ROWS_NONE;  /* a window alone */
        if (hp->from_gguf)
            hp->has |= sl_bind_gguf_has(m->ckpt, target->desc, n + 1, hp->layer_has);
        rc = sl_plan(target->desc, target->name, hp, layers, err);
    }
    if (rc == 0) {
        m->hp = *hp;
        m->hp.n_layers = 1;
        m->layers[0] = layers[n];
        m->layers[0].kv_source = 0;
        if (layers[n].shares_kv || !sl_has_attention(&layers[n]) || sl_has_state(&layers[n]))
            rc = sl_fail(err, SL_EUNSUPPORTED,
                         "the MTP module of this %s is no layer with attention of its own",
                         target->name->id);
    }
    sl_free(layers);
    sl_free(hp);
    return rc;
}

static int open_mtp(struct sl_model *m, const struct sl_model *target, struct sl_error *err)
{
    const struct sl_draft_desc *mtp = target->desc->mtp;
    if (mtp == NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "modules of %s that predict further tokens are not supported",
                       target->name->id);
    if (!has_module(target))
        return sl_fail(err, SL_EUNSUPPORTED, "%s has no module that predicts further tokens (mtp)",
                       sl_ckpt_path(target->ckpt));
    m->name = target->name;
    const int32_t wide = SL_MAX(target->hp.n_hyper, 1); /* streams that it reads */
    int rc = plan_module(m, target, err);
    if (rc == 0)
        rc = make_desc(m, target->desc, err);
    m->hp.draft = (struct sl_draft_hparams){.n_taps = 1,
                                            .taps = {wide > 1 ? SL_TAP_STREAMS : SL_TAP_NORMED},
                                            .target_hidden = wide * target->hp.hidden,
                                            .n_vocab = target->hp.n_vocab,
                                            .hidden_first = mtp->hidden_first,
                                            .normed_output = true};
    m->hp.has |= SL_HAS_HEAD; /* the target's, which may be its embedding */
    m->hp.n_nextn = 0;
    m->hf_layers = m->hp.from_gguf ? NULL : mtp->hf_layers;
    m->first_layer = m->hf_layers == NULL ? target->hp.n_layers : 0;
    return rc;
}

/* ---------------------------------------------------------------- EAGLE-3, DFlash, Gemma 4 */

/* The drafters that have checkpoints of their own. */
static const struct kind {
    const char *method, *title, *how; /* how they are known */
    const struct sl_model_desc *desc;
    const struct sl_model_name *(*name)(const struct sl_ckpt *ckpt);
    int (*read)(const struct sl_ckpt *ckpt, const struct sl_hparams *target, struct sl_hparams *hp,
                struct sl_error *err);
    const char *layers;     /* what "model.layers.*." is called; NULL: that */
    const char *own_layers; /* or this, in files that have own_tensor */
    const char *own_tensor;
} kinds[] = {
    {"eagle3", "EAGLE-3", "LlamaForCausalLMEagle3, or speculators_model_type eagle3 or peagle",
     &sl_model_eagle3, sl_eagle3_name, sl_eagle3_read, "layers.*.", "midlayer.",
     "midlayer.hidden_norm.weight"},
    {"dflash", "DFlash", "DFlashDraftModel, or speculators_model_type dflash", &sl_model_dflash,
     sl_dflash_name, sl_dflash_read, "layers.*.", NULL, NULL},
    {"dspark", "DSpark", "DSparkSpeculator, or speculators_model_type dspark", &sl_model_dflash,
     sl_dspark_name, sl_dflash_read, "layers.*.", NULL, NULL},
    {"gemma4_mtp", "assistant of Gemma 4", "Gemma4AssistantForCausalLM", &sl_model_gemma4_assistant,
     sl_assistant_name, sl_assistant_read, NULL, NULL, NULL},
};

const char *sl_ckpt_draft_method(const struct sl_ckpt *ckpt)
{
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        if (kinds[i].name(ckpt) != NULL)
            return kinds[i].method;
    return NULL;
}

static int open_apart(struct sl_model *m, const struct sl_model *target, const struct kind *k,
                      struct sl_error *err)
{
    m->name = k->name(m->ckpt);
    if (m->name == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "%s is no %s drafter (config.json: architectures %s)",
                       sl_ckpt_path(m->ckpt), k->title, k->how);
    int rc = sl_hparams_read(m->ckpt, k->desc, m->name, &m->hp, err);
    if (rc == 0)
        rc = k->read(m->ckpt, &target->hp, &m->hp, err);
    if (rc == 0)
        rc = make_desc(m, k->desc, err);
    if (rc == 0)
        rc = sl_eagle3_read_ids(m->ckpt, &m->hp, &m->draft_ids, err);
    if (rc != 0)
        return rc;
    m->hf_layers = k->own_tensor != NULL && sl_ckpt_find(m->ckpt, k->own_tensor) != NULL
                       ? k->own_layers
                       : k->layers;
    m->hp.has |= SL_HAS_HEAD;
    sl_free(m->layers);
    m->layers = sl_calloc((size_t)m->hp.n_layers, sizeof *m->layers);
    if (m->layers == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory opening a drafter");
    rc = sl_plan(m->desc, m->name, &m->hp, m->layers, err);
    return rc == 0 && m->hp.draft.borrows ? sl_assistant_borrow(m, err) : rc;
}

/* ---------------------------------------------------------------- both */

static void draft_fill_facts(struct sl_model *m)
{
    const struct sl_hparams *hp = &m->hp;
    m->facts = m->target->facts;
    m->facts.rank = 0; /* whole, whether the target is divided or not */
    m->facts.n_ranks = m->facts.kv_ranks = 1;
    m->facts.n_layers = hp->n_layers;
    m->facts.hidden = hp->hidden;
    m->facts.draft_hidden = hp->draft.block > 0                    ? 0
                            : hp->draft.borrows || hp->n_hyper > 0 ? hp->draft.target_hidden
                                                                   : hp->hidden;
    m->facts.draft_borrows = hp->draft.borrows;
    m->facts.draft_block = hp->draft.block;
    m->facts.draft_mask = hp->draft.mask_token;
    m->facts.draft_from_anchor = hp->draft.from_anchor;
    m->facts.draft_apart = hp->draft.context;
    m->facts.draft_chain = hp->draft.chain != SL_CHAIN_NONE;
    m->facts.draft_odds = hp->draft.odds;
    m->facts.n_heads = hp->n_heads;
    m->facts.n_kv_heads = hp->n_kv_heads;
    m->facts.head_dim = hp->head_dim;
    m->facts.intermediate = hp->intermediate;
    m->facts.n_out = m->facts.n_row = hp->draft.n_vocab;
    m->facts.draft_width = hp->draft.n_taps * hp->draft.target_hidden;
    m->facts.n_params = m->facts.weight_bytes = 0;
}

int sl_model_open_draft(const struct sl_ckpt *ckpt, const struct sl_model *target,
                        const char *method, struct sl_model **out, struct sl_error *err)
{
    const bool mtp = strcmp(method, "mtp") == 0;
    const struct kind *kind = kinds;
    struct sl_model *m;
    int rc;
    *out = NULL;
    while (!mtp && strcmp(method, kind->method) != 0)
        kind++;
    SL_ASSERT(kind < kinds + SL_COUNT(kinds) && (!mtp || ckpt == target->ckpt));
    if (target->n_ranks > 1 && !mtp && kind->desc == &sl_model_gemma4_assistant)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: method %s reads keys of the model, which ranks have a "
                       "part of each (tensor_parallel_size): choose ngram, suffix or draft_model",
                       method);
    if (target->n_stages > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: method %s needs rows of layers that other stages have "
                       "(pipeline_parallel_size): choose ngram, suffix or draft_model",
                       method);
    m = sl_calloc(1, sizeof *m);
    if (m == NULL || (m->layers = sl_calloc(1, sizeof *m->layers)) == NULL) {
        sl_free(m);
        return sl_fail(err, SL_ENOMEM, "out of memory opening a drafter");
    }
    m->ckpt = ckpt;
    m->target = target;
    m->n_ranks = m->row_ranks = m->kv_ranks = m->n_stages = 1;
    rc = mtp ? open_mtp(m, target, err) : open_apart(m, target, kind, err);
    m->hp.context = target->hp.context;
    m->cuts[1] = m->hp.n_layers;
    if (rc == 0)
        rc = sl_params_create(m, err);
    if (rc == 0)
        rc = sl_bind_tensors(m, err);
    if (rc != 0) {
        sl_model_close(m);
        return sl_error_prefix(err, rc, "speculative-config: method %s", method);
    }
    draft_fill_facts(m);
    sl_model_count_params(m);
    sl_model_set_context(m, target->facts.served);
    *out = m;
    return 0;
}

/* Rank 0 has some rows of the matrix of the logits; the embedding is whole everywhere. */
int sl_model_draft_divided(struct sl_model *m, struct sl_error *err)
{
    struct sl_param *p = sl_is_draft(m) ? sl_param(m, 0, SL_SLOT_HEAD) : NULL;
    SL_ASSERT(m->be == NULL);
    if (p == NULL || p->shared == NULL || m->target->row_ranks == 1 || sl_draft_head_copies(m))
        return 0;
    const struct sl_param own = *p;
    const struct sl_param *from =
        p->shared->src != NULL ? p->shared : sl_param(m->target, 0, SL_SLOT_EMBED);
    SL_ASSERT(from->src != NULL && !from->loaded && p->src == NULL);
    if (from->int4 != NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: a drafter that shares a matrix of logits in 4 bits "
                       "(\"%s\") does not run beside ranks (tensor_parallel_size)",
                       from->src->name);
    *p = *from; /* where it lies in the file, and how */
    p->desc = own.desc;
    p->layer = own.layer;
    p->shared = own.shared;
    return 0;
}

void sl_draft_close(struct sl_model *m)
{
    sl_free(m->own_desc);
    sl_free(m->own_weights);
    sl_free(m->draft_ids);
    m->own_desc = NULL;
    m->own_weights = NULL;
    m->draft_ids = NULL;
}

int sl_draft_share(struct sl_model *m, struct sl_error *err)
{
    if (m->target != NULL && m->target->be != m->be)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "a drafter shares weights of a model that is loaded before it on the same "
                       "device");
    const int rc = sl_draft_head_load(m, err);
    for (size_t i = 0; i < m->n_params && rc == 0; i++) {
        struct sl_param *p = &m->params[i];
        if (p->shared == NULL || p->loaded)
            continue;
        SL_ASSERT(p->shared->loaded);
        p->mat = p->shared->mat;
        p->vec = p->shared->vec;
    }
    return rc;
}

void sl_draft_unshare(struct sl_model *m)
{
    for (size_t i = 0; i < m->n_params; i++) {
        struct sl_param *p = &m->params[i];
        if (p->shared == NULL || p->loaded)
            continue;
        p->mat = (struct sl_weight){0};
        p->vec = NULL;
    }
}

int32_t sl_model_draft_taps(const struct sl_model *draft, int32_t taps[SL_MAX_TAPS])
{
    memcpy(taps, draft->hp.draft.taps, sizeof draft->hp.draft.taps);
    return draft->hp.draft.n_taps;
}

int32_t sl_model_draft_token(const struct sl_model *draft, int32_t idx)
{
    SL_ASSERT(idx >= 0 && idx < draft->facts.n_row);
    return draft->draft_ids != NULL ? draft->draft_ids[idx] : idx;
}
