/* SPDX-License-Identifier: MIT
 * Experts in host memory: the first layers' experts are another backend's, which loads them as it
 * wants them and computes them, while the rest of the model is on a device (ops/device.h,
 * struct sl_host_experts).
 *
 * Which layers these are is fixed before loading. A layer's experts are then computed in one
 * arithmetic, whatever was chosen before and whatever else is in memory: a token's bits do not
 * depend on what a cache of experts would hold.
 */
#include "base/check.h"
#include "models/internal.h"

struct sl_host_layer {
    struct sl_run *run;
    int32_t idx;
};

int sl_model_set_host(struct sl_model *m, struct sl_backend *host, int32_t n_layers,
                      struct sl_error *err)
{
    SL_ASSERT(m->be == NULL && n_layers >= 0 && n_layers <= m->hp.n_layers);
    SL_ASSERT(host == NULL || host->vt->device == NULL);
    m->host = n_layers > 0 ? host : NULL;
    m->n_host_layers = host != NULL ? n_layers : 0;
    int32_t width, top_k;
    sl_model_host_rows(m, &width, &top_k);
    if (width % 4 != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "cpu_offload_experts: experts of rows of %d values, which is no multiple of "
                       "4, are not supported",
                       width);
    return 0;
}

int32_t sl_model_n_expert_layers(const struct sl_model *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        n += m->layers[i].ffn == SL_FFN_EXPERTS;
    return n;
}

int32_t sl_model_n_host_layers(const struct sl_model *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        n += sl_experts_on_host(m, i);
    return n;
}

struct sl_backend *sl_param_backend(const struct sl_model *m, struct sl_backend *be,
                                    const struct sl_param *p)
{
    switch (p->desc != NULL ? p->desc->slot : SL_SLOT_FIRST_GLOBAL) {
    case SL_SLOT_EXPERTS_GATE:
    case SL_SLOT_EXPERTS_UP:
    case SL_SLOT_EXPERTS_DOWN:
    case SL_SLOT_EXPERTS_GATE_BIAS:
    case SL_SLOT_EXPERTS_UP_BIAS:
    case SL_SLOT_EXPERTS_DOWN_BIAS:
        return sl_experts_on_host(m, (int32_t)(p->layer - m->layers)) ? m->host : be;
    default:
        return be;
    }
}

/* Values of a row that a layer's experts read: the hidden size, or the latent. */
static int32_t expert_width(const struct sl_model *m, int32_t layer)
{
    return (int32_t)sl_layer_dim(&m->hp, &m->layers[layer], SL_DIM_EXPERT_H);
}

void sl_model_host_rows(const struct sl_model *m, int32_t *width, int32_t *top_k)
{
    *width = *top_k = 0;
    for (int32_t i = 0; i < m->n_host_layers; i++)
        if (sl_experts_on_host(m, i)) {
            *width = SL_MAX(*width, expert_width(m, i));
            *top_k = SL_MAX(*top_k, m->layers[i].top_experts);
        }
}

uint64_t sl_model_host_room(const struct sl_model *m, int32_t max_tokens)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < m->n_host_layers; i++) {
        const struct sl_layer_desc *l = &m->layers[i];
        uint64_t room =
            !sl_experts_on_host(m, i)
                ? 0
                : m->host->vt->experts_bytes(m->host, max_tokens, l->n_experts, l->top_experts,
                                             expert_width(m, i), l->intermediate);
        most = SL_MAX(most, room);
    }
    return most;
}

int sl_host_create(struct sl_run *r, struct sl_error *err)
{
    const struct sl_model *m = r->m;
    r->host_room_bytes = (size_t)sl_model_host_room(m, r->cfg.max_tokens);
    if (r->host_room_bytes == 0)
        return 0;
    r->host_layers = sl_calloc((size_t)m->n_host_layers, sizeof *r->host_layers);
    r->host_room = m->host->vt->alloc(m->host, r->host_room_bytes);
    if (r->host_layers == NULL || r->host_room == NULL)
        return sl_fail(err, SL_ENOMEM,
                       "out of memory for experts on the host: %zu bytes for steps of %d tokens",
                       r->host_room_bytes, r->cfg.max_tokens);
    for (int32_t i = 0; i < m->n_host_layers; i++)
        r->host_layers[i] = (struct sl_host_layer){r, i};
    return 0;
}

void sl_host_destroy(struct sl_run *r)
{
    if (r->host_room != NULL)
        r->m->host->vt->free(r->m->host, r->host_room, r->host_room_bytes);
    sl_free(r->host_layers);
}

/* On a thread of the device's backend. */
static void host_compute(void *arg, const struct sl_host_rows *rows)
{
    const struct sl_host_layer *h = arg;
    const struct sl_run *r = h->run;
    const struct sl_layer_desc *l = &r->m->layers[h->idx];
    const struct sl_expert_stacks *s = &r->m->experts[h->idx];
    struct sl_backend *host = r->m->host;
    host->vt->experts(host, &(struct sl_op_experts){
                                .x = rows->x,
                                .n = rows->n,
                                .top_k = l->top_experts,
                                .experts = rows->experts,
                                .weights = rows->weights,
                                .weigh_input = l->weigh_input,
                                .gate = l->plain_experts ? &s->up : &s->gate,
                                .up = &s->up,
                                .down = &s->down,
                                .gate_bias = sl_run_vec(r, h->idx, SL_SLOT_EXPERTS_GATE_BIAS),
                                .up_bias = sl_run_vec(r, h->idx, SL_SLOT_EXPERTS_UP_BIAS),
                                .down_bias = sl_run_vec(r, h->idx, SL_SLOT_EXPERTS_DOWN_BIAS),
                                .act = sl_expert_act(l),
                                .swiglu = l->swiglu,
                                .scratch = r->host_room,
                                .out = rows->out,
                            });
    sl_run_next_part(h->run);
}

struct sl_host_experts sl_host_experts_of(struct sl_run *r, int32_t layer, const void *x, int32_t n,
                                          const float *shared, float *sum)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const bool gated = (l->has & SL_HAS_SHARED_GATE) != 0;
    return (struct sl_host_experts){
        .x = x,
        .n = n,
        .h = expert_width(r->m, layer),
        .top_k = l->top_experts,
        .experts = r->top,
        .weights = r->top_weight,
        .fn = host_compute,
        .arg = &r->host_layers[layer],
        .shared = shared,
        .shared_logit = gated ? r->shared_logit : NULL,
        .out = sum,
    };
}
