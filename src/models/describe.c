/* SPDX-License-Identifier: MIT
 * A model in words, for `sluice inspect`: what it is, how its layers are built, its tensors and,
 * once loaded, the kernel that runs each.
 */
#include "base/check.h"
#include "models/internal.h"

#include <stdio.h>
#include <string.h>

static const char *const score_names[] = {[SL_ROUTE_SOFTMAX] = "softmax",
                                          [SL_ROUTE_SIGMOID] = "sigmoid",
                                          [SL_ROUTE_MIXER] = "sparsemixer",
                                          [SL_ROUTE_ROOT_SOFTPLUS] = "sqrtsoftplus"};
static const char *const ffn_names[] = {[SL_FFN_GATED] = "gated",
                                        [SL_FFN_PLAIN] = "plain",
                                        [SL_FFN_EXPERTS] = "experts",
                                        [SL_FFN_NONE] = "none"};
static const char *const mixer_names[] = {
    [SL_MIX_GQA] = "gqa",
    [SL_MIX_NONE] = "none",
    [SL_MIX_CONV] = "short_conv",
    [SL_MIX_DELTA] = "gated_delta",
    [SL_MIX_SSM] = "state_space",
    [SL_MIX_BOTH] = "gqa_and_state_space",
    [SL_MIX_LRU] = "rg_lru",
    [SL_MIX_MLA] = "mla",
    [SL_MIX_BLOCK] = "shared_block_and_state_space",
    [SL_MIX_WKV] = "rwkv7",
    [SL_MIX_ROWS] = "window_and_rows",
};
static const char *const act_names[] = {
    [SL_ACT_SILU] = "silu",   [SL_ACT_GELU_TANH] = "gelu_tanh", [SL_ACT_GELU_ERF] = "gelu",
    [SL_ACT_TANH] = "tanh",   [SL_ACT_RELU] = "relu",           [SL_ACT_RELU2] = "relu2",
    [SL_ACT_XIELU] = "xielu", [SL_ACT_SIGMOID] = "sigmoid"};
static const char *const rope_names[] = {
    [SL_ROPE_PLAIN] = "plain", [SL_ROPE_LINEAR] = "linear", [SL_ROPE_LLAMA3] = "llama3",
    [SL_ROPE_YARN] = "yarn",   [SL_ROPE_LONG] = "longrope", [SL_ROPE_PROPORTIONAL] = "proportional",
};

static const char *rope_name(const struct sl_model *m, int32_t idx)
{
    return (m->hp.has & SL_HAS_ROPE_FREQS) != 0 ? "table" : rope_names[m->hp.ropes[idx].scaling];
}

static const char *mixer_name(const struct sl_layer_desc *l)
{
    return l->mixer == SL_MIX_GQA && l->whole ? "whole" : mixer_names[l->mixer];
}

/* What of a token's keys stays: of an encoder only while a layer is computed. */
static const char *kv_name(const struct sl_layer_desc *l)
{
    if (l->mixer == SL_MIX_ROWS)
        return l->rows.ratio > 0 ? "window, rows of several tokens and state" : "window";
    if (l->mixer == SL_MIX_BOTH || l->mixer == SL_MIX_BLOCK)
        return "full and state";
    if (l->mixer == SL_MIX_MLA)
        return l->rows.ratio > 0 ? "latent and state" : "latent";
    if (l->mixer != SL_MIX_GQA)
        return sl_has_state(l) ? "state" : "none";
    return l->whole ? "step" : "full";
}

static const char *norms_name(const struct sl_layer_desc *l)
{
    switch (l->norms) {
    case SL_NORM_IN:
        return "before";
    case SL_NORM_OUT:
        return "after";
    case SL_NORM_IN | SL_NORM_OUT:
        return "before and after";
    default:
        return "of the sum";
    }
}

static bool describe_alike(const struct sl_layer_desc *a, const struct sl_layer_desc *b)
{
    const bool same_state = a->state.n_heads == b->state.n_heads &&
                            a->state.n_groups == b->state.n_groups &&
                            a->state.k_dim == b->state.k_dim && a->state.v_dim == b->state.v_dim &&
                            a->state.n_taps == b->state.n_taps;
    return same_state && a->has == b->has && a->mixer == b->mixer && a->ffn == b->ffn &&
           a->act == b->act && a->norm == b->norm && a->norms == b->norms &&
           a->qk_norm == b->qk_norm && a->qk_norm_after == b->qk_norm_after &&
           a->temperature.beta == b->temperature.beta && a->n_heads == b->n_heads &&
           (a->mixer != SL_MIX_BLOCK || a->tied_to == b->tied_to) &&
           a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim && a->v_dim == b->v_dim &&
           a->intermediate == b->intermediate && a->n_experts == b->n_experts &&
           a->top_experts == b->top_experts && a->latent == b->latent &&
           a->shared_intermediate == b->shared_intermediate && a->swiglu.limit == b->swiglu.limit &&
           a->mlp_swiglu.limit == b->mlp_swiglu.limit && a->rope == b->rope &&
           a->whole == b->whole && a->window == b->window && a->chunks == b->chunks &&
           a->clip == b->clip && a->weigh_input == b->weigh_input && a->mlp_scale == b->mlp_scale &&
           a->value_scale == b->value_scale && a->shares_kv == b->shares_kv &&
           a->v_is_k == b->v_is_k && a->norm_v == b->norm_v && a->cuts_gate == b->cuts_gate &&
           a->gate_deviations == b->gate_deviations && a->attn_scale == b->attn_scale &&
           a->softcap == b->softcap && a->index.top_k == b->index.top_k &&
           a->index.block == b->index.block && a->index.n_heads == b->index.n_heads &&
           a->rows.ratio == b->rows.ratio && a->hashed == b->hashed && a->n_pass == b->n_pass &&
           a->late_experts == b->late_experts && a->attn_norm_rank == b->attn_norm_rank &&
           a->ffn_norm_rank == b->ffn_norm_rank;
}

static void count_formats(const struct sl_model *m, uint32_t n[SL_DTYPE_COUNT],
                          uint64_t bytes[SL_DTYPE_COUNT])
{
    for (size_t i = 0; i < m->n_params; i++) {
        const struct sl_ckpt_tensor *t = m->params[i].src;
        if (t != NULL) {
            n[t->dtype]++;
            bytes[t->dtype] += t->n_bytes;
        }
    }
}

/* The kernel of products with a format: asked of a matrix of one block, so that no tensor is
 * loaded. */
static const char *route_of(const struct sl_model *m, struct sl_backend *be, enum sl_dtype dtype)
{
    static const _Alignas(64) uint8_t block[1024];
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    struct sl_weight w;
    SL_ASSERT(info->block_bytes <= sizeof block);
    if (be->vt->weight_create(be, sl_fp8_use(m, dtype), dtype, 1, info->block_elems, block, NULL,
                              &w, NULL) != 0)
        return "none";
    const char *route = be->vt->weight_route(be, &w);
    be->vt->weight_destroy(be, &w);
    return route;
}

/* Calls fn for every tensor, those of the model first, then layer by layer. */
static void each_tensor(const struct sl_model *m, struct sl_backend *be, struct sl_buf *out,
                        void (*fn)(const struct sl_model *m, struct sl_backend *be,
                                   const struct sl_param *p, bool first, struct sl_buf *out))
{
    bool first = true;
    for (int32_t l = -1; l < m->hp.n_layers; l++) {
        for (int32_t i = 0; i < m->desc->n_weights; i++) {
            const struct sl_weight_desc *w = &m->desc->weights[i];
            const struct sl_param *p = sl_param(m, SL_MAX(l, 0), w->slot);
            if ((w->slot >= SL_SLOT_FIRST_GLOBAL) != (l < 0) || p->src == NULL || p->desc != w ||
                (l >= 0 && sl_param_is_tied(m, w, l)))
                continue;
            for (int32_t k = 0; k < sl_params_n(m, w, SL_MAX(l, 0)); k++, first = false)
                fn(m, be, p + k, first, out);
        }
    }
}

/* ---------------------------------------------------------------- text */

static void text_size(struct sl_buf *out, uint64_t bytes)
{
    if (bytes >= 1000000000)
        sl_buf_printf(out, "%.2f GB", (double)bytes / 1e9);
    else if (bytes >= 1000000)
        sl_buf_printf(out, "%.2f MB", (double)bytes / 1e6);
    else
        sl_buf_printf(out, "%.1f kB", (double)bytes / 1e3);
}

static void text_count(struct sl_buf *out, uint64_t n)
{
    if (n >= 1000000000)
        sl_buf_printf(out, "%.2f billion", (double)n / 1e9);
    else if (n >= 1000000)
        sl_buf_printf(out, "%.2f million", (double)n / 1e6);
    else
        sl_buf_printf(out, "%llu", (unsigned long long)n);
}

static void text_state(const struct sl_layer_desc *l, struct sl_buf *out)
{
    const struct sl_state_desc *s = &l->state;
    sl_buf_puts(out, mixer_names[sl_has_attention(l) ? SL_MIX_SSM : l->mixer]);
    if (s->dt_rank > 0)
        sl_buf_printf(out, ", %d channels with a state of %d, dt of rank %d%s", s->n_heads,
                      s->k_dim, s->dt_rank, s->norm_x ? ", normed" : "");
    else if (l->mixer == SL_MIX_LRU)
        sl_buf_printf(out, ", %d channels, gates of %d heads", s->n_heads * s->v_dim, s->n_heads);
    else if (s->n_heads > 0)
        sl_buf_printf(out, ", %d heads, %d groups, states of %d x %d", s->n_heads, s->n_groups,
                      s->k_dim, s->v_dim);
    if (l->mixer == SL_MIX_WKV)
        sl_buf_puts(out, ", token shift");
    else if (sl_has_state(l))
        sl_buf_printf(out, ", convolution of %d", s->n_taps);
}

static void text_attention(const struct sl_model *m, const struct sl_layer_desc *l,
                           struct sl_buf *out)
{
    if (l->mixer == SL_MIX_MLA)
        sl_buf_printf(out, "mla, %d heads of %d + %d, values of %d, latent rows of %d + %d",
                      l->n_heads, l->mla.nope_dim, l->mla.rope_dim, l->mla.v_dim, l->mla.rank,
                      l->mla.rope_dim);
    else
        sl_buf_printf(out, "%s, %d heads, %d KV heads of %d",
                      sl_has_state(l) && l->rows.ratio == 0 ? mixer_names[SL_MIX_GQA]
                                                            : mixer_name(l),
                      l->n_heads, l->n_kv_heads, l->head_dim);
    if (l->mla.q_rank > 0)
        sl_buf_printf(out, ", queries by %d", l->mla.q_rank);
    if (l->rows.ratio > 0 && l->mixer == SL_MIX_ROWS)
        sl_buf_printf(out, ", rows of %d tokens%s", l->rows.ratio,
                      l->rows.overlap ? " and those before" : "");
    if (l->rows.o_groups > 0)
        sl_buf_printf(out, ", output by %d groups of %d", l->rows.o_groups, l->rows.o_rank);
    if (l->index.block > 0)
        sl_buf_printf(out, ", top %d blocks of %d for each KV head by an index of %d",
                      l->index.top_k, l->index.block, l->index.dim);
    else if (l->index.n_heads > 0 && l->rows.ratio > 0 && l->mixer == SL_MIX_MLA)
        sl_buf_printf(out, ", top %d groups of %d tokens by an index of %d queries of %d",
                      l->index.top_k, l->rows.ratio, l->index.n_heads, l->index.dim);
    else if (l->index.n_heads > 0)
        sl_buf_printf(out, ", top %d by an index of %d queries of %d", l->index.top_k,
                      l->index.n_heads, l->index.dim);
    else if (l->index.top_k > 0)
        sl_buf_printf(out, ", top %d as chosen before", l->index.top_k);
    if (l->window > 0)
        sl_buf_printf(out, l->chunks ? ", chunks of %d" : ", window %d", l->window);
    if ((l->has & SL_HAS_SINKS) != 0)
        sl_buf_puts(out, ", sinks");
    if (l->clip > 0)
        sl_buf_printf(out, ", q k v within %g", (double)l->clip);
    if (l->value_scale != 1)
        sl_buf_printf(out, ", values times %g", (double)l->value_scale);
    if ((l->has & SL_HAS_OUT_GATE) != 0)
        sl_buf_puts(out, ", gated output");
    if (m->desc->n_ropes > 0 && l->rope < 0)
        sl_buf_puts(out, ", no positions");
    if (m->desc->n_ropes > 1 && l->rope >= 0)
        sl_buf_printf(out, ", theta %g", m->hp.ropes[l->rope].theta);
    if (l->v_dim != l->head_dim && l->mixer != SL_MIX_MLA)
        sl_buf_printf(out, ", values of %d", l->v_dim);
    if (l->v_is_k)
        sl_buf_puts(out, ", values of the same projection");
    if (l->shares_kv)
        sl_buf_printf(out, ", keys and values of layer %d", l->kv_source);
    if (l->qk_norm != SL_QK_NORM_NONE)
        sl_buf_puts(out, l->qk_norm == SL_QK_NORM_ROWS ? ", q/k norm of rows"
                         : l->qk_norm_after            ? ", q/k norm after rope"
                                                       : ", q/k norm");
    if (l->temperature.beta != 0)
        sl_buf_printf(out, ", temperature %g per %g positions", (double)l->temperature.beta,
                      (double)l->temperature.span);
    if ((l->has & SL_HAS_QKV_BIAS) != 0)
        sl_buf_puts(out, (l->has & SL_HAS_O_BIAS) != 0 ? ", bias q k v o" : ", bias q k v");
}

/* One line per run of layers that are built alike. */
static void text_experts(const struct sl_layer_desc *l, struct sl_buf *out)
{
    sl_buf_printf(out, "; %d of %d experts, %s %s of %d, %s router", l->top_experts, l->n_experts,
                  l->plain_experts ? "plain" : "gated", act_names[l->act], l->intermediate,
                  score_names[l->route.score]);
    if (l->n_pass > 0)
        sl_buf_printf(out, ", and %d that give back what they read", l->n_pass);
    if (l->late_experts)
        sl_buf_puts(out, ", added behind the next layer");
    if (l->latent > 0)
        sl_buf_printf(out, ", in a space of %d", l->latent);
    if (l->swiglu.limit > 0)
        sl_buf_printf(out, ", limit %g", (double)l->swiglu.limit);
    if (l->hashed)
        sl_buf_puts(out, ", chosen by tokens");
    if (l->weigh_input)
        sl_buf_puts(out, ", weighed input");
    if (l->route.n_groups > 1)
        sl_buf_printf(out, ", %d of %d groups", l->route.top_groups, l->route.n_groups);
    if (l->shared_intermediate > 0)
        sl_buf_printf(out, ", shared expert of %d", l->shared_intermediate);
    if (l->shared_intermediate > 0 && l->mlp_swiglu.limit > 0)
        sl_buf_printf(out, ", limit %g", (double)l->mlp_swiglu.limit);
}

static void text_layers(const struct sl_model *m, struct sl_buf *out)
{
    for (int32_t i = 0, j; i < m->hp.n_layers; i = j) {
        const struct sl_layer_desc *l = &m->layers[i];
        for (j = i + 1; j < m->hp.n_layers && describe_alike(l, &m->layers[j]);)
            j++;
        if (j == i + 1)
            sl_buf_printf(out, "layer         %d: ", i);
        else
            sl_buf_printf(out, "layers        %d-%d: ", i, j - 1);
        if (sl_has_attention(l))
            text_attention(m, l, out);
        if (l->mixer == SL_MIX_BOTH)
            sl_buf_puts(out, "; beside it ");
        if (l->mixer == SL_MIX_BLOCK)
            sl_buf_printf(out, " and gated %s of %d, a block of layer %d; behind it ",
                          act_names[l->act], l->intermediate, l->tied_to);
        if (sl_has_state(l) && l->rows.ratio == 0)
            text_state(l, out);
        if (l->mixer == SL_MIX_NONE)
            sl_buf_puts(out, "no mixer");
        if (l->ffn == SL_FFN_EXPERTS)
            text_experts(l, out);
        else if (l->ffn == SL_FFN_NONE)
            sl_buf_puts(out, "; no MLP");
        else
            sl_buf_printf(out, "; %s %s of %d", ffn_names[l->ffn], act_names[l->act],
                          l->intermediate);
        if (l->attn_norm_rank > 0 || l->ffn_norm_rank > 0)
            sl_buf_puts(out, l->ffn_norm_rank == 0    ? "; gated norm of attention"
                             : l->attn_norm_rank == 0 ? "; gated norm of the MLP"
                                                      : "; gated norms");
        if (l->norms != SL_NORM_IN)
            sl_buf_printf(out, "; norms %s", norms_name(l));
        if (sl_has_attention(l))
            sl_buf_printf(out, "; %s KV",
                          l->whole                                            ? "step"
                          : l->mixer == SL_MIX_MLA || l->mixer == SL_MIX_ROWS ? kv_name(l)
                                                                              : "full");
        sl_buf_putc(out, '\n');
    }
}

static void text_ropes(const struct sl_model *m, struct sl_buf *out)
{
    for (int32_t i = 0; i < m->desc->n_ropes; i++) {
        const struct sl_rope_params *p = &m->hp.ropes[i];
        if (!sl_rope_used(m, i))
            continue;
        sl_buf_printf(out, "rope          %s, theta %g", rope_name(m, i), p->theta);
        if (p->n_dims != 0)
            sl_buf_printf(out, ", %d dimensions of a head", p->n_dims);
        if (m->desc->ropes[i].pairing == SL_ROPE_INTERLEAVED)
            sl_buf_puts(out, ", interleaved");
        if (p->scaling == SL_ROPE_LONG)
            sl_buf_puts(out, p->use_long ? ", long factors" : ", short factors");
        else if (p->scaling != SL_ROPE_PLAIN)
            sl_buf_printf(out, ", factor %g", p->factor);
        if (p->scaling >= SL_ROPE_LLAMA3)
            sl_buf_printf(out, ", original context %g", p->original_context);
        sl_buf_putc(out, '\n');
    }
}

static void text_tensor(const struct sl_model *m, struct sl_backend *be, const struct sl_param *p,
                        bool first, struct sl_buf *out)
{
    const struct sl_ckpt_tensor *t = p->src;
    const char *route =
        !sl_weight_is_values(p->desc) ? route_of(m, sl_param_backend(m, be, p), t->dtype) : NULL;
    char shape[64];
    if (first)
        sl_buf_puts(out, "tensors\n");
    if (t->n_dims == 2)
        snprintf(shape, sizeof shape, "[%lld, %lld]", (long long)t->dims[0], (long long)t->dims[1]);
    else
        snprintf(shape, sizeof shape, "[%lld]", (long long)t->dims[0]);
    sl_buf_printf(out, "  %-48s %-18s %-5s %12llu%s%s", t->name, shape,
                  sl_dtype_info(t->dtype)->name, (unsigned long long)t->n_bytes, route ? "  " : "",
                  route ? route : "");
    if (p->file_rows != p->n_rows)
        sl_buf_printf(out, "  rows %lld to %lld of %lld", (long long)p->file_first,
                      (long long)(p->file_first + p->n_rows - 1), (long long)p->file_rows);
    if (p->scale != NULL)
        sl_buf_printf(out, "  a scale for %d x %d", p->scale_rows, p->scale_cols);
    sl_buf_putc(out, '\n');
}

static void describe_text(const struct sl_model *m, struct sl_backend *be, bool with_tensors,
                          struct sl_buf *out)
{
    const struct sl_model_facts *f = &m->facts;
    uint32_t n[SL_DTYPE_COUNT] = {0};
    uint64_t bytes[SL_DTYPE_COUNT] = {0};

    sl_buf_printf(out, "architecture  %s\nparameters    ", f->family);
    text_count(out, f->n_params);
    sl_buf_puts(out, ", ");
    text_size(out, f->weight_bytes);
    sl_buf_printf(out, "\nhidden        %d\nvocabulary    %d, %s head\ncontext       %d\n",
                  f->hidden, f->n_vocab, (m->hp.has & SL_HAS_HEAD) != 0 ? "own" : "tied",
                  f->context);
    text_layers(m, out);
    text_ropes(m, out);
    sl_buf_puts(out, "end ids      ");
    for (int32_t i = 0; i < f->n_eos; i++)
        sl_buf_printf(out, " %d", f->eos[i]);
    sl_buf_puts(out, f->n_eos > 0 ? "\nformats       " : " none\nformats       ");
    count_formats(m, n, bytes);
    for (int d = 0, k = 0; d < SL_DTYPE_COUNT; d++) {
        if (n[d] == 0)
            continue;
        sl_buf_printf(out, "%s%s: %u tensors, ", k++ > 0 ? "; " : "",
                      sl_dtype_info((enum sl_dtype)d)->name, n[d]);
        text_size(out, bytes[d]);
        sl_buf_printf(out, ", kernel %s", route_of(m, be, (enum sl_dtype)d));
    }
    sl_buf_putc(out, '\n');
    if (with_tensors)
        each_tensor(m, be, out, text_tensor);
}

/* ---------------------------------------------------------------- JSON */

static void json_key_string(struct sl_buf *out, const char *key, const char *s)
{
    sl_buf_printf(out, "\"%s\":", key);
    sl_buf_json_string(out, s, strlen(s));
}

static void json_layers(const struct sl_model *m, struct sl_buf *out)
{
    sl_buf_puts(out, ",\"layers\":[");
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_layer_desc *l = &m->layers[i];
        sl_buf_printf(out,
                      "%s{\"mixer\":\"%s\",\"ffn\":\"%s\",\"activation\":\"%s\",\"kv\":\"%s\","
                      "\"window\":%d,\"n_heads\":%d,\"n_kv_heads\":%d,\"head_dim\":%d,"
                      "\"v_dim\":%d,\"kv_source\":%d,\"intermediate\":%d,\"n_experts\":%d,\"n_"
                      "experts_used\":%d,\"shared_intermediate\":%d,\"norms\":\"%s\","
                      "\"rope\":%d}",
                      i ? "," : "", mixer_name(l), ffn_names[l->ffn], act_names[l->act], kv_name(l),
                      l->window, l->n_heads, l->n_kv_heads, l->head_dim, l->v_dim, l->kv_source,
                      l->intermediate, l->n_experts, l->top_experts, l->shared_intermediate,
                      norms_name(l), l->rope);
    }
    sl_buf_putc(out, ']');
}

static void json_rope(const struct sl_model *m, int32_t idx, struct sl_buf *out)
{
    const struct sl_rope_params *p = &m->hp.ropes[idx];
    sl_buf_printf(out, "{\"scaling\":\"%s\",\"theta\":", rope_name(m, idx));
    sl_buf_json_double(out, p->theta);
    sl_buf_puts(out, ",\"factor\":");
    sl_buf_json_double(out,
                       p->scaling == SL_ROPE_PLAIN || p->scaling == SL_ROPE_LONG ? 1 : p->factor);
    if (p->scaling == SL_ROPE_LONG)
        sl_buf_printf(out, ",\"long_factors\":%s", p->use_long ? "true" : "false");
    sl_buf_printf(out, ",\"dims\":%d,\"interleaved\":%s}", sl_rope_dims(&m->hp, m->layers, idx),
                  m->desc->ropes[idx].pairing == SL_ROPE_INTERLEAVED ? "true" : "false");
}

/* "rope" is the first table, null if there is none; "ropes" are all. */
static void json_ropes(const struct sl_model *m, struct sl_buf *out)
{
    sl_buf_puts(out, ",\"rope\":");
    if (m->desc->n_ropes > 0)
        json_rope(m, 0, out);
    else
        sl_buf_puts(out, "null");
    sl_buf_puts(out, ",\"ropes\":[");
    for (int32_t i = 0; i < m->desc->n_ropes; i++) {
        sl_buf_puts(out, i ? "," : "");
        json_rope(m, i, out);
    }
    sl_buf_putc(out, ']');
}

static void json_tensor(const struct sl_model *m, struct sl_backend *be, const struct sl_param *p,
                        bool first, struct sl_buf *out)
{
    const struct sl_ckpt_tensor *t = p->src;
    const char *route = t->n_dims == 2 ? route_of(m, be, t->dtype) : NULL;
    sl_buf_puts(out, first ? "{" : ",{");
    json_key_string(out, "name", t->name);
    sl_buf_puts(out, ",\"shape\":[");
    for (int32_t i = 0; i < t->n_dims; i++)
        sl_buf_printf(out, "%s%lld", i ? "," : "", (long long)t->dims[i]);
    sl_buf_printf(out,
                  "],\"dtype\":\"%s\",\"bytes\":%llu,\"route\":", sl_dtype_info(t->dtype)->name,
                  (unsigned long long)t->n_bytes);
    if (route != NULL)
        sl_buf_json_string(out, route, strlen(route));
    else
        sl_buf_puts(out, "null");
    if (p->file_rows != p->n_rows)
        sl_buf_printf(out, ",\"first_row\":%lld", (long long)p->file_first);
    if (p->scale != NULL)
        sl_buf_printf(out, ",\"scale_block\":[%d,%d]", p->scale_rows, p->scale_cols);
    sl_buf_putc(out, '}');
}

static void json_formats(const struct sl_model *m, struct sl_backend *be, struct sl_buf *out)
{
    uint32_t n[SL_DTYPE_COUNT] = {0};
    uint64_t bytes[SL_DTYPE_COUNT] = {0};
    bool first = true;
    count_formats(m, n, bytes);
    sl_buf_puts(out, ",\"formats\":{");
    for (int d = 0; d < SL_DTYPE_COUNT; d++) {
        if (n[d] == 0)
            continue;
        sl_buf_printf(out, "%s\"%s\":{\"tensors\":%u,\"bytes\":%llu,\"kernel\":\"%s\"}",
                      first ? "" : ",", sl_dtype_info((enum sl_dtype)d)->name, n[d],
                      (unsigned long long)bytes[d], route_of(m, be, (enum sl_dtype)d));
        first = false;
    }
    sl_buf_putc(out, '}');
}

static void describe_json(const struct sl_model *m, struct sl_backend *be, bool with_tensors,
                          struct sl_buf *out)
{
    const struct sl_model_facts *f = &m->facts;

    sl_buf_putc(out, '{');
    json_key_string(out, "architecture", f->family);
    sl_buf_printf(out,
                  ",\"n_params\":%llu,\"weight_bytes\":%llu,\"weight_dtype\":\"%s\","
                  "\"hidden\":%d,\"intermediate\":%d,\"n_layers\":%d,\"n_heads\":%d,"
                  "\"n_kv_heads\":%d,\"head_dim\":%d,\"n_vocab\":%d,\"context\":%d,"
                  "\"tied_head\":%s,\"qkv_bias\":%s,\"qk_norm\":%s",
                  (unsigned long long)f->n_params, (unsigned long long)f->weight_bytes,
                  f->weight_dtype, f->hidden, f->intermediate, f->n_layers, f->n_heads,
                  f->n_kv_heads, f->head_dim, f->n_vocab, f->context,
                  (m->hp.has & SL_HAS_HEAD) != 0 ? "false" : "true",
                  (m->hp.has & SL_HAS_QKV_BIAS) != 0 ? "true" : "false",
                  (m->hp.has & SL_HAS_QK_NORM) != 0 ? "true" : "false");
    json_ropes(m, out);
    sl_buf_puts(out, ",\"eos\":[");
    for (int32_t i = 0; i < f->n_eos; i++)
        sl_buf_printf(out, "%s%d", i ? "," : "", f->eos[i]);
    sl_buf_putc(out, ']');
    json_formats(m, be, out);
    json_layers(m, out);
    if (with_tensors) {
        sl_buf_puts(out, ",\"tensors\":[");
        each_tensor(m, be, out, json_tensor);
        sl_buf_putc(out, ']');
    }
    sl_buf_puts(out, "}\n");
}

void sl_model_describe(const struct sl_model *m, struct sl_backend *be, bool as_json,
                       bool with_tensors, struct sl_buf *out)
{
    if (as_json)
        describe_json(m, be, with_tensors, out);
    else
        describe_text(m, be, with_tensors, out);
}
