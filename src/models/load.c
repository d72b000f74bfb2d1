/* SPDX-License-Identifier: MIT
 * Loading: every bound tensor becomes what the kernels read. Matrices go through the backend, which
 * chooses a route and repacks or borrows the mapping; norms, biases and the rotation table become
 * float32. The embedding is looked up by rows and stays as it is; where it also serves as the head,
 * the head is a second weight made from the same bytes. What was repacked is not needed any more,
 * so its pages of the file leave memory while the next tensor is read.
 *
 * GGUF converters of the llama family reorder the rows of q and k inside each head, so that pairs
 * rotated together lie side by side. The rows are put back here: the dot product q . k then adds in
 * the same order whatever file the weights came from, and the bits agree. Rows are whole in every
 * block format, so this moves bytes and never requantises. Matrices of four-bit codes in several
 * tensors are made blocks here too (int4.c).
 *
 * A rank of several loads its rows of every tensor that is divided (ranks.c).
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>
#include <string.h>

int64_t sl_interleaved_row(int64_t row, int32_t head_dim)
{
    int64_t head = row / head_dim, d = row % head_dim, half = head_dim / 2;
    return head * head_dim + 2 * (d % half) + d / half;
}

static bool rows_reordered(const struct sl_model *m, const struct sl_weight_desc *w)
{
    return m->desc->gguf_interleaved && m->hp.from_gguf && (w->flags & SL_W_ROPE_ROWS) != 0;
}

static enum sl_weight_use use_of(const struct sl_model *m, const struct sl_param *p)
{
    if (sl_slot_is_rows(p->desc->slot))
        return SL_USE_ROWS;
    if (p->desc->slot == SL_SLOT_MLA_V_UP ||
        p->desc->slot == SL_SLOT_O_DOWN) /* products of heads take floats alone */
        return SL_USE_LINEAR;
    return sl_fp8_use(m, p->src->dtype);
}

/* t: rows of a tensor, the first of which is row first_row of the matrix in the file, which has
 * of_rows of ours. */
static int create_weight(struct sl_model *m, struct sl_param *p, enum sl_weight_use use,
                         const struct sl_ckpt_tensor *t, const uint8_t *data, int64_t first_row,
                         int64_t of_rows, struct sl_error *err)
{
    const struct sl_scales scales = {p->scale_values, p->scale_rows, p->scale_cols,
                                     (int32_t)first_row};
    struct sl_backend *be = sl_param_be(m, p);
    int rc = be->vt->weight_create(be, use, t->dtype, t->dims[0], t->dims[1], data, &scales,
                                   &p->mat, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "tensor \"%s\"", t->name);
    SL_ASSERT(of_rows >= 0 && of_rows <= INT32_MAX);
    p->mat.of_rows = (int32_t)of_rows;
    p->loaded = true;
    return 0;
}

/* Row of the file that holds a row of ours. */
static int64_t load_file_row(const struct sl_param *p, int64_t row)
{
    return sl_interleaved_row(row, p->layer->head_dim);
}

static int load_matrix(struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    const struct sl_rows rows = sl_param_rows(m, p);
    const struct sl_ckpt_tensor t = sl_rank_part(p->src, rows);
    const uint8_t *data = t.data;
    if (rows_reordered(m, p->desc)) {
        size_t row_bytes = (size_t)(t.n_bytes / (uint64_t)t.dims[0]);
        p->copy = sl_aligned_alloc((size_t)t.n_bytes);
        if (p->copy == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", t.name);
        p->own_bytes = (size_t)t.n_bytes;
        for (int64_t r = 0; r < rows.n; r++)
            memcpy(p->copy + (size_t)r * row_bytes,
                   p->src->data + (size_t)load_file_row(p, rows.first + r) * row_bytes, row_bytes);
        data = p->copy;
    }
    const bool made = p->int4 != NULL || sl_apart(p) || sl_turned(p);
    int rc = 0;
    if (p->int4 != NULL)
        rc = sl_int4_load(m, p, rows, err);
    else if (sl_apart(p))
        rc = sl_apart_load(m, p, rows, err);
    if (rc == 0)
        rc = sl_fp8_load(&m->hp, p, err);
    if (rc == 0 && sl_turned(p))
        rc = sl_turned_load(p, err);
    if (made)
        data = p->copy;
    if (rc == 0) /* scales of what was apart are in its order */
        rc = create_weight(m, p, use_of(m, p), &t, data,
                           rows.first + (sl_apart(p) ? 0 : p->file_first), p->n_rows, err);
    if (rc != 0)
        return rc;
    if (p->mat.owned)
        sl_fp8_unload(p);
    if (!made && (p->copy != NULL || p->mat.owned))
        sl_ckpt_drop(m->ckpt, &t);
    if (p->mat.owned && p->copy != NULL) { /* repacked: the backend has its own copy now */
        sl_aligned_free(p->copy, p->own_bytes);
        p->copy = NULL;
    }
    return 0;
}

static int load_matrix_of(struct sl_model *m, struct sl_param *p, struct sl_error *err)
{
    const int rc = load_matrix(m, p, err);
    return rc == 0 ? sl_columns_load(m, p, err) : rc;
}

/* The matrix of the logits in the file. */
static const struct sl_ckpt_tensor *load_head_of(const struct sl_model *m)
{
    return sl_param(m, 0, (m->hp.has & SL_HAS_HEAD) != 0 ? SL_SLOT_HEAD : SL_SLOT_EMBED)->src;
}

/* Only a model that generates needs all logits. */
static bool is_wanted(const struct sl_model *m, const struct sl_param *p, int32_t stage)
{
    return p->src != NULL && (m->facts.task == SL_TASK_GENERATE || p->desc->slot != SL_SLOT_HEAD) &&
           sl_stage_has(m, p, stage);
}

static bool ties_head(const struct sl_model *m, int32_t stage)
{
    return m->facts.task == SL_TASK_GENERATE && (m->hp.has & SL_HAS_HEAD) == 0 &&
           stage == m->n_stages - 1;
}

/* A classifier of two rows of the head. */
static int load_yes_no(struct sl_model *m, struct sl_error *err)
{
    struct sl_param *p = sl_param(m, 0, SL_SLOT_CLASSIFIER);
    const struct sl_ckpt_tensor *t = load_head_of(m);
    if (!m->yes_no)
        return 0;
    const size_t row_bytes = (size_t)(t->n_bytes / (uint64_t)t->dims[0]);
    if (t->dtype == SL_DTYPE_FP8_E4M3 || t->data == NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%s\" is %s: cannot make a classifier of its rows", t->name,
                       sl_dtype_info(t->dtype)->name);
    p->own_bytes = 2 * row_bytes;
    p->copy = sl_aligned_alloc(p->own_bytes);
    if (p->copy == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", t->name);
    for (int i = 0; i < 2; i++) {
        SL_ASSERT(m->yes_no_ids[i] >= 0 && m->yes_no_ids[i] < t->dims[0]);
        memcpy(p->copy + (size_t)i * row_bytes, t->data + (size_t)m->yes_no_ids[i] * row_bytes,
               row_bytes);
    }
    int rc = m->be->vt->weight_create(m->be, SL_USE_LINEAR, t->dtype, 2, t->dims[1], p->copy, NULL,
                                      &p->mat, err);
    p->loaded = rc == 0;
    return rc;
}

static int load_tied_head(struct sl_model *m, struct sl_error *err)
{
    if (!ties_head(m, m->stage))
        return 0;
    const struct sl_rows rows = sl_rank_rows(m, SL_SHARD_ROWS, m->hp.n_vocab, m->rank);
    const struct sl_ckpt_tensor t = sl_rank_part(sl_param(m, 0, SL_SLOT_EMBED)->src, rows);
    return create_weight(m, sl_param(m, 0, SL_SLOT_HEAD), SL_USE_LINEAR, &t, t.data, 0,
                         m->hp.n_vocab, err);
}

/* Copies a host vector to backend memory. */
static int load_place(struct sl_backend *be, const float *host, size_t n_bytes, float **out,
                      struct sl_error *err)
{
    *out = be->vt->alloc(be, n_bytes);
    if (*out == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory: %zu bytes for a vector of weights", n_bytes);
    be->vt->upload(be, *out, host, n_bytes);
    return 0;
}

/* A convolution's channels of x, b and c, whose inputs are multiplied. */
static void scale_channels(const struct sl_layer_desc *l, int64_t n, int64_t n_taps, float *w)
{
    const struct sl_state_desc *s = &l->state;
    const int64_t rows = (int64_t)s->n_heads * s->v_dim, keys = (int64_t)s->n_groups * s->k_dim;
    for (int64_t i = 0; i < n && s->in_scale[0] != 0; i++) {
        const int64_t channel = i / n_taps;
        w[i] *= s->in_scale[channel < rows ? 0 : channel < rows + keys ? 1 : 2];
    }
}

/* The vector as float32, its rows in our order; sl_free it. NULL: out of memory. */
static float *read_vector(const struct sl_model *m, const struct sl_param *p)
{
    const struct sl_ckpt_tensor *t = p->src;
    size_t n = (size_t)(t->dims[0] * t->dims[1]);
    float *file = sl_malloc(2 * n * sizeof *file), *ours = file == NULL ? NULL : file + n;
    if (file == NULL)
        return NULL;
    if (sl_apart(p))
        for (size_t i = 0; i < n; i++)
            file[i] = sl_apart_value(&m->hp, p, (int64_t)i);
    else
        sl_dtype_info(t->dtype)->to_f32(t->data, file, (int64_t)n);
    for (size_t i = 0; i < n && !m->hp.from_gguf && (p->desc->flags & SL_W_PLUS_ONE) != 0; i++)
        file[i] += 1;
    for (size_t i = 0; i < n && !m->hp.from_gguf && (p->desc->flags & SL_W_MINUS_EXP) != 0; i++)
        file[i] = -expf(file[i]);
    for (size_t i = 0; i < n && (p->desc->flags & SL_W_LRU_RATE) != 0; i++)
        file[i] = file[i] > 30 ? -8 * file[i] : (float)(-8 * log1p(exp((double)file[i])));
    for (size_t i = 0; i < n && (p->desc->flags & SL_W_OVER_WIDTH) != 0; i++)
        file[i] /= (float)m->hp.hidden;
    for (size_t i = 0; i < n && (p->desc->flags & SL_W_OVER_ROOT) != 0; i++)
        file[i] /= sqrtf((float)m->hp.hidden);
    for (size_t i = 0; i < n && (p->desc->flags & SL_W_TO_WIDTH) != 0; i++)
        file[i] *= sqrtf((float)m->hp.hidden / (float)n);
    if (p->desc->slot == SL_SLOT_CONV)
        scale_channels(p->layer, (int64_t)(t->dims[0] * t->dims[1]), p->n_cols, file);
    if (!rows_reordered(m, p->desc))
        return file;
    for (size_t r = 0; r < n; r++)
        ours[r] = file[load_file_row(p, (int64_t)r)];
    memcpy(file, ours, n * sizeof *file);
    return file;
}

/* A vector, or all of a stack one behind the other, or the pieces of one, in one piece of memory.
 */
static int load_vectors(struct sl_model *m, struct sl_param *p, int32_t n, struct sl_error *err)
{
    const bool joined = sl_weight_n_pieces(p->desc) > 0;
    const int64_t row = p->n_cols; /* 1, of a vector */
    int64_t n_rows = 0;            /* of all */
    for (int32_t i = 0; i < n; i++)
        n_rows += sl_param_rows(m, &p[i]).n;
    p->own_bytes = (size_t)(n_rows * row) * sizeof(float);
    float *all = sl_malloc(p->own_bytes);
    bool read = all != NULL;
    for (int64_t i = 0, at = 0; i < n && read; i++) {
        const struct sl_rows rows = sl_param_rows(m, &p[i]);
        const int64_t column = joined ? n_rows : rows.n;
        float *v = read_vector(m, &p[i]);
        read = v != NULL;
        for (int64_t r = 0; read && r < rows.n; r++)
            for (int64_t c = 0; c < row; c++) /* column by column */
                all[at + c * column + r] = v[(rows.first + r) * row + c];
        at += joined ? rows.n : rows.n * row;
        sl_free(v);
    }
    p->first_value = read ? all[0] : 0;
    int rc = read ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
    if (rc == 0)
        rc = load_place(sl_param_be(m, p), all, p->own_bytes, &p->vec, err);
    sl_free(all);
    if (rc != 0)
        return sl_error_prefix(err, rc, "tensor \"%s\"", p->src->name);
    p->loaded = true;
    return 0;
}

/* Divisors of the frequencies of the scaled table, where a GGUF holds them; *out NULL: there are
 * none. */
static int read_divisors(const struct sl_model *m, float **out, struct sl_error *err)
{
    const struct sl_param *p = sl_param(m, 0, SL_SLOT_ROPE_FREQS);
    *out = NULL;
    if (p->src == NULL)
        return 0;
    *out = read_vector(m, p);
    if (*out == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading the rotation table");
    for (int64_t i = 0; i < p->src->dims[0]; i++)
        if (!((*out)[i] > 0) || !isfinite((*out)[i]))
            return sl_fail(err, SL_EFORMAT, "tensor \"%s\": value %lld is not a positive number",
                           p->src->name, (long long)i);
    return 0;
}

/* A list of LongRoPE's factors, where a GGUF holds it. */
static int read_factors(const struct sl_model *m, enum sl_slot slot, float *out,
                        struct sl_error *err)
{
    const struct sl_param *p = sl_param(m, 0, slot);
    if (p->src == NULL)
        return 0;
    SL_ASSERT(p->src->dims[0] <= SL_MAX_ROPE_FACTORS); /* gguf_long checks it */
    sl_dtype_info(p->src->dtype)->to_f32(p->src->data, out, p->src->dims[0]);
    for (int64_t i = 0; i < p->src->dims[0]; i++)
        if (!((double)out[i] >= SL_ROPE_FACTOR_MIN && (double)out[i] <= SL_ROPE_FACTOR_MAX))
            return sl_fail(err, SL_EFORMAT, "tensor \"%s\": value %lld is %g, must be %g to %g",
                           p->src->name, (long long)i, (double)out[i], SL_ROPE_FACTOR_MIN,
                           SL_ROPE_FACTOR_MAX);
    return 0;
}

static size_t ropes_bytes(const struct sl_model *m)
{
    size_t n = 0;
    for (int32_t i = 0; i < m->desc->n_ropes; i++)
        n += (size_t)sl_rope_dims(&m->hp, m->layers, i) / 2;
    return n * sizeof(float);
}

static int load_ropes(struct sl_model *m, struct sl_error *err)
{
    float freqs[SL_MAX_ROPES * SL_MAX_HEAD_DIM / 2], *divisors;
    int32_t n = 0;
    if (m->desc->n_ropes == 0)
        return 0;
    int rc = read_factors(m, SL_SLOT_ROPE_SHORT, m->hp.ropes[0].short_factors, err);
    if (rc == 0)
        rc = read_factors(m, SL_SLOT_ROPE_LONG, m->hp.ropes[0].long_factors, err);
    if (rc != 0)
        return rc;
    rc = read_divisors(m, &divisors, err);
    for (int32_t i = 0; i < m->desc->n_ropes && rc == 0; i++) {
        struct sl_rope *rope = &m->ropes[i];
        *rope = (struct sl_rope){.n_dims = sl_rope_dims(&m->hp, m->layers, i),
                                 .pairing = m->desc->ropes[i].pairing};
        sl_rope_freqs(&m->hp.ropes[i], rope->n_dims, m->desc->ropes[i].scaled ? divisors : NULL,
                      freqs + n, &rope->attn_factor);
        n += rope->n_dims / 2;
    }
    if (rc == 0)
        rc = load_place(m->be, freqs, ropes_bytes(m), &m->inv_freq, err);
    for (int32_t i = 0, at = 0; i < m->desc->n_ropes && rc == 0; i++) {
        m->ropes[i].inv_freq = m->inv_freq + at;
        at += m->ropes[i].n_dims / 2;
    }
    sl_free(divisors);
    return rc;
}

/* The root of the width, as transformers rounds it: to the format of the embedding, if that is one
 * of floats. */
static float embed_scale(const struct sl_model *m, enum sl_slot slot, int32_t width)
{
    const struct sl_ckpt_tensor *t = sl_param(m, 0, slot)->src;
    float scale = (float)sqrt((double)width);
    uint8_t rounded[4];
    if ((m->hp.has & SL_HAS_ROOT_EMBED) != 0 && slot == SL_SLOT_EMBED)
        return scale; /* and those whose configs ask for it do not round */
    if (m->target != NULL && slot == SL_SLOT_EMBED && (m->desc->mtp != NULL || m->hp.draft.borrows))
        return m->target->embed_scale;
    if (!m->desc->scaled_embedding || t == NULL)
        return m->hp.embed_scale != 0 ? (float)m->hp.embed_scale : 1;
    const struct sl_dtype_info *info =
        sl_dtype_info(m->desc->scaled_as_bf16 ? SL_DTYPE_BF16 : t->dtype);
    if (info->block_elems == 1) {
        info->from_f32(&scale, rounded, 1);
        info->to_f32(rounded, &scale, 1);
    }
    return scale;
}

static float logit_scale(const struct sl_hparams *hp)
{
    double scale = hp->logit_scale != 0 ? hp->logit_scale : 1;
    return (float)(hp->logit_divisor != 0 ? scale / hp->logit_divisor : scale);
}

/* Of a tensor on one rank. */
static void add_memory(const struct sl_model *m, struct sl_backend *be, const struct sl_param *p,
                       int32_t rank, uint64_t *allocated, uint64_t *mapped)
{
    if (!sl_rank_has(m, p, rank))
        return;
    const struct sl_ckpt_tensor t = sl_rank_part(p->src, sl_rank_param_rows(m, p, rank));
    if (sl_weight_is_values(p->desc)) {
        *allocated += (uint64_t)(t.dims[0] * t.dims[1]) * sizeof(float);
        return;
    }
    uint64_t packed = be->vt->weight_bytes(be, use_of(m, p), t.dtype, t.dims[0], t.dims[1]);
    if (packed == 0 &&
        (rows_reordered(m, p->desc) || p->int4 != NULL || sl_apart(p) || sl_turned(p)))
        packed = t.n_bytes;
    *allocated += packed + sl_columns_bytes(m, be, p);
    if (packed == 0 && (rank == 0 || p->desc->shard != SL_SHARD_NONE)) /* else it is the same */
        *mapped += t.n_bytes;
    if (packed == 0 && !sl_turned(p))
        *allocated += sl_fp8_scale_bytes(p);
}

void sl_model_stage_memory(const struct sl_model *m, int32_t stage, struct sl_backend *be,
                           uint64_t *allocated, uint64_t *mapped)
{
    const struct sl_ckpt_tensor *t = sl_param(m, 0, SL_SLOT_EMBED)->src;
    uint64_t most = 0;
    *allocated = *mapped = 0;
    for (int32_t rank = 0; rank < m->n_ranks; rank++) {
        uint64_t own = 0;
        for (size_t i = 0; i < m->n_params; i++)
            if (is_wanted(m, &m->params[i], stage) && sl_param_backend(m, be, &m->params[i]) == be)
                add_memory(m, be, &m->params[i], rank, &own, mapped);
        const struct sl_rows rows = sl_rank_rows(m, SL_SHARD_ROWS, m->hp.n_vocab, rank);
        if (ties_head(m, stage))
            own += be->vt->weight_bytes(be, SL_USE_LINEAR, t->dtype, rows.n, t->dims[1]);
        *allocated += own;
        most = SL_MAX(most, own);
    }
    if (sl_sums_experts(m)) /* ranks may have an expert more than others */
        *allocated = (most + sl_places_spare_bytes(m, be)) * (uint64_t)m->n_ranks;
    *allocated += sl_draft_head_bytes(m, be) + sl_hashed_bytes(m) + sl_clusters_bytes(m);
}

void sl_model_weight_memory(const struct sl_model *m, struct sl_backend *be, uint64_t *allocated,
                            uint64_t *mapped)
{
    sl_model_stage_memory(m, m->stage, be, allocated, mapped);
}

void sl_model_host_memory(const struct sl_model *m, uint64_t *allocated, uint64_t *mapped)
{
    *allocated = *mapped = 0;
    for (size_t i = 0; i < m->n_params && m->host != NULL; i++)
        if (is_wanted(m, &m->params[i], m->stage) &&
            sl_param_backend(m, NULL, &m->params[i]) == m->host)
            add_memory(m, m->host, &m->params[i], 0, allocated, mapped);
}

/* A factor of the residual stream that would end the model. */
static int check_scales(const struct sl_model *m, struct sl_error *err)
{
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_param *p = sl_param(m, i, SL_SLOT_LAYER_SCALE);
        if (p->loaded && (p->first_value == 0 || !isfinite(p->first_value)))
            return sl_fail(err, SL_EFORMAT, "tensor \"%s\" is %g, must be finite and not 0",
                           p->src->name, (double)p->first_value);
    }
    return 0;
}

/* A parameter of xIELU as the file has it: a tensor, or a layer's value of a list. */
static double xielu_value(const struct sl_model *m, int32_t layer, enum sl_slot slot)
{
    const struct sl_param *p = sl_param(m, layer, slot);
    return p->loaded ? (double)p->first_value : m->hp.xielu[slot - SL_SLOT_XIELU_ALPHA_P][layer];
}

static double load_softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* The activation's parameters; alphas are trained as what the softplus makes positive. */
static int set_xielu(struct sl_model *m, struct sl_error *err)
{
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        struct sl_layer_desc *l = &m->layers[i];
        if (l->act != SL_ACT_XIELU)
            continue;
        const double beta = xielu_value(m, i, SL_SLOT_XIELU_BETA);
        l->xielu = (struct sl_xielu){
            .alpha_p = (float)load_softplus(xielu_value(m, i, SL_SLOT_XIELU_ALPHA_P)),
            .alpha_n = (float)(beta + load_softplus(xielu_value(m, i, SL_SLOT_XIELU_ALPHA_N))),
            .beta = (float)beta,
            .eps = (float)xielu_value(m, i, SL_SLOT_XIELU_EPS)};
        if (!isfinite(l->xielu.alpha_p + l->xielu.alpha_n + l->xielu.beta + l->xielu.eps))
            return sl_fail(err, SL_EFORMAT,
                           "layer %d: xIELU's alpha_p, alpha_n, beta and eps must be finite", i);
    }
    return 0;
}

/* Experts have no other way than one operation. */
static int check_experts(const struct sl_model *m, const struct sl_backend *be,
                         struct sl_error *err)
{
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if (m->layers[i].index.top_k > 0 && be->vt->sparse_attention == NULL)
            return sl_fail(
                err, SL_EUNSUPPORTED,
                "sparse attention by an index (DSA) has no kernel on this device: choose "
                "device cpu");
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if (m->layers[i].mixer == SL_MIX_ROWS && be->vt->compressed_attention == NULL)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "attention to rows made of several tokens has no kernel on this device: "
                           "choose device cpu");
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if (be->vt->device != NULL && m->layers[i].mixer == SL_MIX_MLA &&
            m->layers[i].rows.ratio > 0)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "an index whose keys are made of several tokens has no kernel on this "
                           "device: choose device cpu");
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if (be->vt->device != NULL && m->layers[i].index.n_heads > 0 &&
            (m->layers[i].index.dim > SL_DEVICE_INDEX_DIM || m->layers[i].index.dim < 8 ||
             m->layers[i].index.dim % 4 != 0 || m->layers[i].index.n_heads > SL_DEVICE_INDEX_HEADS))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "an index of %d queries of %d values has no kernel on this device (up "
                           "to %d, of up to %d, a multiple of 4): choose device cpu",
                           m->layers[i].index.n_heads, m->layers[i].index.dim,
                           SL_DEVICE_INDEX_HEADS, SL_DEVICE_INDEX_DIM);
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if (be->vt->device != NULL && m->layers[i].mixer == SL_MIX_MLA &&
            (m->layers[i].has & SL_HAS_SINKS) != 0)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "sinks of latent attention have no kernel on this device: choose "
                           "device cpu");
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if (m->layers[i].late_experts && be->vt->pass_experts == NULL)
            return sl_fail(
                err, SL_EUNSUPPORTED,
                "experts that are added behind the next layer, or give back what they read "
                "(LongCat-Flash), have no kernel on this device: choose device cpu");
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if (m->layers[i].ffn == SL_FFN_EXPERTS && !m->layers[i].plain_experts &&
            ((sl_experts_on_host(m, i) ? m->host : be)->vt->gated_acts >>
                 sl_expert_act(&m->layers[i]) &
             1) == 0)
            return sl_fail(
                err, SL_EUNSUPPORTED,
                "config.json: hidden_act \"%s\" of experts has no kernel on this device: "
                "choose device cpu",
                sl_act_hf_name(m->layers[i].act));
    return 0;
}

static const enum sl_slot of_expert[] = {SL_SLOT_EXPERTS_GATE, SL_SLOT_EXPERTS_UP,
                                         SL_SLOT_EXPERTS_DOWN};

/* Nothing of an expert that is elsewhere is read in a step, so its parameters may change beside
 * one. The model as it is seen here has another backend alone. */
int sl_load_expert(struct sl_model *m, struct sl_backend *be, int32_t layer, int32_t expert,
                   struct sl_error *err)
{
    struct sl_model beside = *m;
    int rc = 0;
    SL_ASSERT(m->be != NULL && m->places != NULL && expert < m->layers[layer].n_experts);
    beside.be = be;
    for (size_t i = 0; i < SL_COUNT(of_expert) && rc == 0; i++) {
        struct sl_param *p = &sl_param(m, layer, of_expert[i])[expert];
        if (p->src != NULL)
            rc = load_matrix(&beside, p, err);
    }
    if (rc != 0)
        sl_unload_expert(m, layer, expert);
    return rc;
}

uint64_t sl_load_expert_bytes(const struct sl_model *m, struct sl_backend *be, int32_t layer,
                              int32_t expert)
{
    uint64_t allocated = 0, mapped = 0;
    for (size_t i = 0; i < SL_COUNT(of_expert); i++) {
        const struct sl_param *p = &sl_param(m, layer, of_expert[i])[expert];
        for (int32_t rank = 0; rank < m->n_ranks && p->src != NULL; rank++)
            if (sl_rank_has(m, p, rank)) { /* as large on any */
                add_memory(m, be, p, rank, &allocated, &mapped);
                break;
            }
    }
    return allocated;
}

/* Tells a device what comes. */
static void announce(const struct sl_model *m, struct sl_backend *be)
{
    uint64_t allocated, mapped;
    if (be->vt->device == NULL)
        return;
    sl_model_weight_memory(m, be, &allocated, &mapped);
    be->vt->device->load_begin(be, allocated / (uint64_t)m->n_ranks);
}

int sl_model_load(struct sl_model *m, struct sl_backend *be, sl_progress_fn progress,
                  void *progress_arg, struct sl_error *err)
{
    uint64_t done = 0;
    int rc = check_experts(m, be, err);
    if (rc == 0 && m->hp.layer_width > 0 && be->vt->layer_inputs == NULL)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "embeddings for each layer have no kernel on this device: choose device cpu");
    if (rc == 0 && m->hp.n_hyper > 0 && be->vt->hyper_read == NULL)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "hyper-connections have no kernel on this device: choose device cpu");
    if (rc == 0 && m->hp.n_hyper > 0 && sl_is_draft(m) && be->vt->device != NULL)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "modules of hyper-connections that predict further tokens are not built for "
                     "this device: choose device cpu");
    if (rc == 0 && m->hp.n_hyper > 0 && m->facts.whole)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "a model of hyper-connections cannot be pooled by the mean");
    if (rc == 0 && m->hp.n_streams > 0 && be->vt->mix_streams == NULL)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "several residual streams (AltUp) have no kernel on this device: choose "
                     "device cpu");
    if (rc == 0 && m->hp.n_streams > 0 && m->facts.whole)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "a model of several residual streams (AltUp) cannot be pooled by the mean");
    if (rc == 0 && m->facts.task == SL_TASK_TOKEN_EMBED && be->vt->device != NULL)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "a vector for each token (token_embed) is not built for this device: choose "
                     "device cpu");

    SL_ASSERT(m->be == NULL);
    if (rc == 0 && m->places != NULL && be->vt->placed_bytes == NULL)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "enable_eplb: experts have fixed places on this device: choose device cpu");
    if (rc != 0)
        return rc;
    m->be = be;
    announce(m, be);
    for (size_t i = 0; i < m->n_params && rc == 0; i++) {
        struct sl_param *p = &m->params[i];
        if (!is_wanted(m, p, m->stage))
            continue;
        if (progress != NULL)
            progress(progress_arg, "loading weights", done, m->facts.weight_bytes);
        if (!sl_rank_has(m, p, m->rank))
            rc = 0;
        else if (!sl_weight_is_values(p->desc))
            rc = load_matrix_of(m, p, err);
        else if (p->stack_idx == 0)
            rc = load_vectors(m, p, sl_params_n(m, p->desc, (int32_t)(p->layer - m->layers)), err);
        done += p->src->n_bytes + sl_fp8_scale_bytes_of_file(p);
    }
    if (rc == 0)
        rc = load_tied_head(m, err);
    if (rc == 0)
        rc = load_yes_no(m, err);
    if (rc == 0)
        rc = load_ropes(m, err);
    if (rc == 0)
        rc = check_scales(m, err);
    if (rc == 0)
        rc = set_xielu(m, err);
    if (rc == 0)
        rc = sl_draft_share(m, err);
    m->embed_scale = embed_scale(m, SL_SLOT_EMBED, m->hp.hidden);
    m->layer_embed_scale = embed_scale(m, SL_SLOT_LAYER_EMBED, m->hp.layer_width);
    m->logit_scale = logit_scale(&m->hp);
    if (rc == 0)
        rc = sl_experts_create(m, err);
    if (rc == 0)
        rc = sl_mla_create(m, err);
    if (rc == 0)
        rc = sl_hashed_load(m, err);
    if (rc == 0)
        rc = sl_clusters_load(m, err);
    if (rc != 0) {
        sl_model_unload(m);
        return rc;
    }
    if (progress != NULL)
        progress(progress_arg, "loading weights", done, m->facts.weight_bytes);
    return 0;
}

static void unload_param(struct sl_model *m, struct sl_param *p)
{
    if (p->loaded && p->vec == NULL)
        sl_param_be(m, p)->vt->weight_destroy(sl_param_be(m, p), &p->mat);
    if (p->vec != NULL)
        sl_param_be(m, p)->vt->free(sl_param_be(m, p), p->vec, p->own_bytes);
    if (p->copy != NULL)
        sl_aligned_free(p->copy, p->own_bytes);
    sl_fp8_unload(p);
    p->vec = NULL;
    p->copy = NULL;
    p->loaded = false;
}

void sl_unload_expert(struct sl_model *m, int32_t layer, int32_t expert)
{
    for (size_t i = 0; i < SL_COUNT(of_expert); i++) {
        struct sl_param *p = &sl_param(m, layer, of_expert[i])[expert];
        if (p->src != NULL)
            unload_param(m, p);
    }
}

void sl_model_unload(struct sl_model *m)
{
    if (m->be == NULL)
        return;
    sl_experts_destroy(m);
    sl_mla_destroy(m);
    sl_hashed_unload(m);
    sl_clusters_unload(m);
    sl_draft_unshare(m);
    sl_columns_unload(m);
    for (size_t i = 0; i < m->n_params; i++)
        unload_param(m, &m->params[i]);
    if (m->inv_freq != NULL)
        m->be->vt->free(m->be, m->inv_freq, ropes_bytes(m));
    m->inv_freq = NULL;
    m->be = NULL;
}
