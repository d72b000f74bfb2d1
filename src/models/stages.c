/* SPDX-License-Identifier: MIT
 * Pipeline parallelism: a model divided among stages by layers. A stage has some layers that follow
 * one another, the first also the embedding, the last also the final norm and the head. What goes
 * from one to the next is the residual stream, in the format that it has, so that every value has
 * the bits that it has where one device computes all layers. What the layers need of the whole
 * model besides (rotations, norms of their own input) each stage has itself.
 */
#include "base/check.h"
#include "models/internal.h"

static bool is_of_ends(enum sl_slot slot)
{
    return slot == SL_SLOT_HEAD || slot == SL_SLOT_HEAD_BIAS || slot == SL_SLOT_FINAL_NORM ||
           slot == SL_SLOT_FINAL_NORM_BIAS;
}

static bool is_of_begin(enum sl_slot slot)
{
    return slot == SL_SLOT_EMBED || slot == SL_SLOT_EMBED_NORM || slot == SL_SLOT_EMBED_NORM_BIAS ||
           slot == SL_SLOT_POSITIONS || slot == SL_SLOT_TYPES;
}

bool sl_stage_has(const struct sl_model *m, const struct sl_param *p, int32_t stage)
{
    const enum sl_slot slot = p->desc->slot;
    SL_ASSERT(stage >= 0 && stage < m->n_stages);
    if (slot >= SL_SLOT_FIRST_GLOBAL)
        return is_of_begin(slot) ? stage == 0 : is_of_ends(slot) ? stage == m->n_stages - 1 : true;
    const int32_t layer = (int32_t)(p->layer - m->layers);
    return layer >= m->cuts[stage] && layer < m->cuts[stage + 1];
}

/* ---------------------------------------------------------------- where it is cut */

/* The head's bytes count so much less: a layer does more than read its weights, and of prompts few
 * rows have logits. With prompts of 128 tokens and as many more, the head of an 8B model takes 0.6
 * of a layer, and has the bytes of 2.4. */
#define HEAD_SHARE 3

/* What a step does of a layer, or behind the last one: of the head, by the bytes that it reads. */
static uint64_t read_bytes(const struct sl_model *m, int32_t layer)
{
    const struct sl_ckpt_tensor *head =
        sl_param(m, 0, (m->hp.has & SL_HAS_HEAD) != 0 ? SL_SLOT_HEAD : SL_SLOT_EMBED)->src;
    uint64_t n = 0;
    if (layer == m->hp.n_layers)
        return head != NULL ? head->n_bytes / HEAD_SHARE : 0;
    for (size_t i = 0; i < m->n_params; i++) {
        const struct sl_param *p = &m->params[i];
        if (p->src != NULL && p->desc->slot < SL_SLOT_FIRST_GLOBAL && p->layer == &m->layers[layer])
            n += p->src->n_bytes;
    }
    return n;
}

/* Cuts so that no stage but the last reads more than `most`, each as many layers as that lets it
 * have and the stages behind it leave. Returns what the last one reads. */
static uint64_t cut_at(struct sl_model *m, const uint64_t *bytes, uint64_t most)
{
    int32_t layer = 0;
    uint64_t n = 0;
    for (int32_t s = 0; s < m->n_stages; s++) {
        const int32_t behind = m->n_stages - 1 - s;
        m->cuts[s] = layer;
        n = 0;
        while (layer < m->hp.n_layers - behind &&
               (behind == 0 || layer == m->cuts[s] || n + bytes[layer] <= most))
            n += bytes[layer++];
    }
    m->cuts[m->n_stages] = m->hp.n_layers;
    return n + bytes[m->hp.n_layers];
}

/* The stage that reads most reads as little as can be: a step takes as long as it. */
static void cut_by_bytes(struct sl_model *m)
{
    uint64_t bytes[SL_MAX_LAYERS + 1], lo = 0, hi = 0;
    for (int32_t l = 0; l <= m->hp.n_layers; l++) {
        bytes[l] = read_bytes(m, l);
        hi += bytes[l];
    }
    while (lo < hi) {
        const uint64_t mid = lo + (hi - lo) / 2;
        if (cut_at(m, bytes, mid) <= mid)
            hi = mid;
        else
            lo = mid + 1;
    }
    (void)cut_at(m, bytes, hi);
}

static int cut_as_told(struct sl_model *m, const int32_t *layers, struct sl_error *err)
{
    int64_t n = 0;
    for (int32_t s = 0; s < m->n_stages; s++) {
        if (layers[s] < 1)
            return sl_fail(err, SL_EINVAL, "pipeline_parallel_layers: stage %d has %d layers", s,
                           layers[s]);
        n += layers[s];
        m->cuts[s + 1] = (int32_t)SL_MIN(n, INT32_MAX);
    }
    if (n == m->hp.n_layers)
        return 0;
    return sl_fail(err, SL_EINVAL,
                   "pipeline_parallel_layers: they are %lld together, the model has %d",
                   (long long)n, m->hp.n_layers);
}

/* ---------------------------------------------------------------- what cannot be divided */

/* Of a layer that begins a stage, what it needs of one before. */
static int check_layer(const struct sl_model *m, int32_t layer, int32_t first, struct sl_error *err)
{
    const struct sl_layer_desc *l = &m->layers[layer];
    if (l->kv_source < first)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "pipeline_parallel_size: layer %d reads the keys of layer %d, which is of "
                       "another stage (--pipeline-parallel-layers)",
                       layer, l->kv_source);
    if (l->tied_to < first)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "pipeline_parallel_size: layer %d has the weights of layer %d, which is of "
                       "another stage (--pipeline-parallel-layers)",
                       layer, l->tied_to);
    if (layer == first && first > 0 && l->index.top_k > 0 && l->index.n_heads == 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "pipeline_parallel_size: layer %d attends to what layer %d has chosen, "
                       "which is of another stage (--pipeline-parallel-layers)",
                       layer, layer - 1);
    if (layer == first && first > 0 && m->layers[layer - 1].late_experts)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "pipeline_parallel_size: layer %d adds what the experts of layer %d give, "
                       "which is of another stage (--pipeline-parallel-layers)",
                       layer, layer - 1);
    return 0;
}

static int check_model(const struct sl_model *m, struct sl_error *err)
{
    const char *what = NULL;
    if (m->facts.task != SL_TASK_GENERATE)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "pipeline_parallel_size: models of embeddings and scores cannot be divided "
                       "among stages yet");
    if (m->hp.n_streams > 0 || m->hp.n_hyper > 0)
        what = "several residual streams";
    if ((m->hp.has & SL_HAS_LAYER_INPUTS) != 0)
        what = "embeddings for each layer";
    if (m->hp.n_shared_blocks > 0)
        what = "blocks that layers share";
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        if (m->layers[i].mixer == SL_MIX_WKV)
            what = "values that all layers mix with those of the first";
        if (m->layers[i].norms == SL_NORM_SUM)
            what = "a residual stream that is normed";
    }
    return what == NULL ? 0
                        : sl_fail(err, SL_EUNSUPPORTED,
                                  "pipeline_parallel_size: %s has %s, which stages do not hand "
                                  "over yet",
                                  m->name->id, what);
}

int sl_model_set_stage(struct sl_model *m, int32_t stage, int32_t n_stages, const int32_t *layers,
                       struct sl_error *err)
{
    SL_ASSERT(m->be == NULL && stage >= 0 && stage < n_stages && n_stages <= SL_MAX_STAGES);
    if (n_stages == 1)
        return 0;
    if (n_stages > m->hp.n_layers)
        return sl_fail(err, SL_EINVAL, "pipeline_parallel_size: %d stages for %d layers", n_stages,
                       m->hp.n_layers);
    int rc = check_model(m, err);
    if (rc != 0)
        return rc;
    m->stage = m->facts.stage = stage;
    m->n_stages = m->facts.n_stages = n_stages;
    m->cuts[0] = 0;
    if (layers != NULL)
        rc = cut_as_told(m, layers, err);
    else
        cut_by_bytes(m);
    for (int32_t s = 0; s < n_stages && rc == 0; s++)
        for (int32_t l = m->cuts[s]; l < m->cuts[s + 1] && rc == 0; l++)
            rc = check_layer(m, l, m->cuts[s], err);
    return rc;
}

void sl_model_stage_layers(const struct sl_model *m, int32_t stage, int32_t *first, int32_t *end)
{
    SL_ASSERT(stage >= 0 && stage < m->n_stages);
    *first = m->cuts[stage];
    *end = m->cuts[stage + 1];
}
