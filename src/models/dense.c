/* SPDX-License-Identifier: MIT
 * Dense modules: matrices behind the pooling (EmbeddingGemma), or behind each row where nothing is
 * pooled (ColBERT). sentence-transformers keeps each in a folder of its own, a GGUF as dense_2 and
 * dense_3, the first ColBERT as "linear" among the encoder's tensors. They belong to what a model
 * is used for, not to its family, so that no family's table has them.
 */
#include "base/check.h"
#include "models/internal.h"

#include <stdio.h>
#include <string.h>

/* Their places among the model's parameters, as the loader reads them. */
static const struct sl_weight_desc dense_rows[SL_MAX_DENSE][2] = {
    {{.slot = SL_SLOT_DENSE_1, .gguf = "dense_2.weight", .rows = SL_DIM_ONE, .cols = SL_DIM_ONE},
     {.slot = SL_SLOT_DENSE_1_BIAS, .rows = SL_DIM_ONE}},
    {{.slot = SL_SLOT_DENSE_2, .gguf = "dense_3.weight", .rows = SL_DIM_ONE, .cols = SL_DIM_ONE},
     {.slot = SL_SLOT_DENSE_2_BIAS, .rows = SL_DIM_ONE}},
};

const struct sl_param *sl_dense_param(const struct sl_model *m, int32_t idx, bool bias)
{
    SL_ASSERT(idx >= 0 && idx < SL_MAX_DENSE);
    return sl_param(m, 0, dense_rows[idx][bias].slot);
}

int32_t sl_dense_width(const struct sl_model *m)
{
    const int32_t n = m->pool.n_dense;
    return n > 0 ? m->pool.dense[n - 1].n_out : m->hp.hidden;
}

bool sl_dense_is_tensor(const struct sl_model *m, const char *name)
{
    return m->hp.from_gguf
               ? strcmp(name, "dense_2.weight") == 0 || strcmp(name, "dense_3.weight") == 0
               : m->name->per_token && strcmp(name, "linear.weight") == 0;
}

void sl_dense_unbind(struct sl_model *m)
{
    for (int32_t i = 0; i < SL_MAX_DENSE && m->params != NULL; i++) {
        sl_st_close(m->dense_files[i]);
        m->dense_files[i] = NULL;
        for (int bias = 0; bias < 2; bias++)
            *sl_param(m, 0, dense_rows[i][bias].slot) = (struct sl_param){.desc = NULL};
    }
}

/* n_cols -1: a vector. n_rows -1: as many as the tensor has. */
static int dense_take(struct sl_model *m, int32_t idx, bool bias, const struct sl_ckpt_tensor *t,
                      int64_t n_rows, int64_t n_cols, struct sl_error *err)
{
    const struct sl_dtype_info *info = sl_dtype_info(t->dtype);
    struct sl_param *p = sl_param(m, 0, dense_rows[idx][bias].slot);
    if (t->n_dims != (n_cols < 0 ? 1 : 2) || t->dims[0] < 1 || t->dims[0] > SL_MAX_HIDDEN ||
        (n_rows >= 0 && t->dims[0] != n_rows) || (n_cols >= 0 && t->dims[1] != n_cols)) {
        char have[96];
        sl_bind_shape(t->n_dims, t->dims, have, sizeof have);
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" has shape [%s], which does not fit what is in front of it or "
                       "its config.json",
                       t->name, have);
    }
    if (t->dtype == SL_DTYPE_FP8_E4M3 || (bias && info->block_elems != 1) ||
        (n_cols >= 0 && n_cols % info->block_elems != 0))
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s: not supported there", t->name,
                       info->name);
    *p = (struct sl_param){.desc = &dense_rows[idx][bias],
                           .layer = m->layers,
                           .n_rows = t->dims[0],
                           .n_cols = SL_MAX(n_cols, 1),
                           .slice = *t,
                           .file_rows = t->dims[0]};
    p->src = &p->slice;
    return 0;
}

/* A tensor of a module's own file; *out's name lives as long as the file is open. */
static int dense_find(const struct sl_st *st, const uint8_t *data, const char *name,
                      const char *file, struct sl_ckpt_tensor *out, struct sl_error *err)
{
    const struct sl_st_tensor *t = sl_st_find(st, name);
    if (t == NULL)
        return sl_fail(err, SL_EFORMAT, "%s: tensor \"%s\" is missing", file, name);
    const int dtype = sl_dtype_from_st(t->dtype, strlen(t->dtype));
    if (dtype < 0 || t->n_dims > 2 || t->n_dims < 1)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: tensor \"%s\" is %s of %d dimensions", file, name,
                       t->dtype, t->n_dims);
    *out = (struct sl_ckpt_tensor){.name = t->name,
                                   .dtype = (enum sl_dtype)dtype,
                                   .n_dims = t->n_dims,
                                   .dims = {t->dims[0], t->n_dims == 2 ? t->dims[1] : 1, 1, 1},
                                   .data = data + t->offset,
                                   .n_bytes = t->n_bytes};
    return 0;
}

static int dense_of_folder(struct sl_model *m, int32_t idx, const struct sl_dense *d,
                           struct sl_error *err)
{
    char file[128];
    const char *data;
    size_t n;
    struct sl_ckpt_tensor t;
    const int k = snprintf(file, sizeof file, "%s/model.safetensors", d->folder);
    SL_ASSERT(k > 0 && (size_t)k < sizeof file);
    int rc = sl_ckpt_file(m->ckpt, file, &data, &n, err);
    if (rc == 0)
        return sl_fail(err, SL_EFORMAT, "%s is missing, modules.json names its module", file);
    if (rc == 1)
        rc = sl_st_open((const uint8_t *)data, n, file, &m->dense_files[idx], err);
    if (rc == 0)
        rc = dense_find(m->dense_files[idx], (const uint8_t *)data, "linear.weight", file, &t, err);
    if (rc == 0)
        rc = dense_take(m, idx, false, &t, d->n_out, d->n_in, err);
    if (rc == 0 && d->bias)
        rc = dense_find(m->dense_files[idx], (const uint8_t *)data, "linear.bias", file, &t, err);
    return rc == 0 && d->bias ? dense_take(m, idx, true, &t, d->n_out, -1, err) : rc;
}

/* Of the checkpoint itself, whose shape nothing else says. 1: there is one. */
static int dense_of_ckpt(struct sl_model *m, int32_t idx, const char *name, int32_t width,
                         struct sl_error *err)
{
    const struct sl_ckpt_tensor *t = sl_ckpt_find(m->ckpt, name);
    if (t == NULL)
        return 0;
    int rc = dense_take(m, idx, false, t, -1, width, err);
    if (rc != 0)
        return rc;
    m->pool.dense[m->pool.n_dense++] =
        (struct sl_dense){.n_in = width, .n_out = (int32_t)t->dims[0]};
    return 1;
}

int sl_dense_bind(struct sl_model *m, struct sl_error *err)
{
    struct sl_pooling *p = &m->pool;
    int32_t width = m->hp.hidden;
    int rc = 0;
    sl_dense_unbind(m);
    for (int32_t i = 0; i < p->n_dense && rc == 0; i++) {
        if (p->dense[i].n_in != width)
            return sl_fail(err, SL_EFORMAT,
                           "%s/config.json: in_features is %d, what is in front gives %d",
                           p->dense[i].folder, p->dense[i].n_in, width);
        rc = dense_of_folder(m, i, &p->dense[i], err);
        width = p->dense[i].n_out;
    }
    for (int32_t i = 0, more = 1; m->hp.from_gguf && i < SL_MAX_DENSE && more == 1; i++) {
        more = rc = dense_of_ckpt(m, i, dense_rows[i][0].gguf, width, err);
        width = more == 1 ? p->dense[i].n_out : width;
    }
    if (m->name->per_token && !m->hp.from_gguf && p->n_dense == 0) {
        rc = dense_of_ckpt(m, 0, "linear.weight", width, err);
        if (rc == 0)
            rc = sl_fail(err, SL_EFORMAT, "tensor \"linear.weight\" is missing");
    }
    return SL_MIN(rc, 0);
}
