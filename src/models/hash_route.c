/* SPDX-License-Identifier: MIT
 * Layers whose experts are chosen by tokens, not by scores: a table in the checkpoint has those of
 * each token (DeepSeek V4, layers in front). What they weigh comes of the router's scores as
 * elsewhere. The table is read and checked here, as no other tensor holds whole numbers that
 * kernels take for indexes.
 */
#include "base/check.h"
#include "models/internal.h"

#include <stdio.h>
#include <string.h>

static const struct sl_ckpt_tensor *hash_find(const struct sl_model *m, int32_t layer,
                                              char name[SL_MAX_TENSOR_NAME])
{
    static const char *const patterns[] = {"model." SL_HASH_TENSOR, SL_HASH_TENSOR};
    const struct sl_ckpt_tensor *t = NULL;
    for (size_t i = 0; i < SL_COUNT(patterns) && t == NULL; i++) {
        sl_bind_name(patterns[i], layer, 0, name);
        t = sl_ckpt_find_raw(m->ckpt, name, "I64");
        if (t == NULL)
            t = sl_ckpt_find_raw(m->ckpt, name, "I32");
    }
    return t;
}

int sl_hashed_bind(struct sl_model *m, struct sl_error *err)
{
    const int64_t n_vocab = m->hp.n_vocab;
    for (int32_t l = 0; l < m->hp.n_layers; l++) {
        char name[SL_MAX_TENSOR_NAME];
        if (!m->layers[l].hashed)
            continue;
        if (m->hashed == NULL)
            m->hashed = sl_calloc((size_t)m->hp.n_layers, sizeof *m->hashed);
        if (m->hashed == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for tables of experts");
        const struct sl_ckpt_tensor *t = hash_find(m, l, name);
        const int64_t top = m->layers[l].top_experts;
        if (t == NULL || t->n_dims != 2 || t->dims[0] != n_vocab || t->dims[1] != top)
            return sl_fail(err, SL_EFORMAT,
                           "tensor \"%s\" must be I64 or I32 of shape [%lld, %lld]", name,
                           (long long)n_vocab, (long long)top);
        m->hashed[l].src = t;
    }
    return 0;
}

bool sl_hashed_is_tensor(const struct sl_model *m, const char *name)
{
    for (int32_t l = 0; m->hashed != NULL && l < m->hp.n_layers; l++)
        if (m->hashed[l].src != NULL && strcmp(m->hashed[l].src->name, name) == 0)
            return true;
    return false;
}

static size_t hash_bytes(const struct sl_ckpt_tensor *t)
{
    return (size_t)(t->dims[0] * t->dims[1]) * sizeof(int32_t);
}

uint64_t sl_hashed_bytes(const struct sl_model *m)
{
    uint64_t n = 0;
    for (int32_t l = 0; m->hashed != NULL && l < m->hp.n_layers; l++)
        n += m->hashed[l].src != NULL ? hash_bytes(m->hashed[l].src) : 0;
    return n;
}

static int64_t hash_value(const struct sl_ckpt_tensor *t, int64_t i)
{
    const bool wide = t->n_bytes == (uint64_t)(t->dims[0] * t->dims[1]) * sizeof(int64_t);
    int64_t x = 0;
    int32_t y;
    if (wide) {
        memcpy(&x, t->data + (size_t)i * sizeof x, sizeof x);
        return x;
    }
    memcpy(&y, t->data + (size_t)i * sizeof y, sizeof y);
    return y;
}

/* of: room for as many as the table has. */
static int hash_read(const struct sl_ckpt_tensor *t, int32_t n_experts, int32_t *of,
                     struct sl_error *err)
{
    const int64_t top = t->dims[1];
    for (int64_t i = 0; i < t->dims[0] * top; i++) {
        const int64_t x = hash_value(t, i);
        if (x < 0 || x >= n_experts)
            return sl_fail(err, SL_EFORMAT, "tensor \"%s\": token %lld has expert %lld of %d",
                           t->name, (long long)(i / top), (long long)x, n_experts);
        of[i] = (int32_t)x;
        for (int64_t k = i / top * top; k < i; k++)
            if (of[k] == of[i])
                return sl_fail(err, SL_EFORMAT, "tensor \"%s\": token %lld has expert %lld twice",
                               t->name, (long long)(i / top), (long long)x);
    }
    return 0;
}

static int hash_load(struct sl_model *m, int32_t layer, struct sl_error *err)
{
    struct sl_hashed *h = &m->hashed[layer];
    const size_t n_bytes = hash_bytes(h->src);
    int32_t *table = sl_malloc(n_bytes);
    if (table == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", h->src->name);
    int rc = hash_read(h->src, m->layers[layer].n_experts, table, err);
    if (rc == 0) {
        h->of_token = m->be->vt->alloc(m->be, n_bytes);
        h->n_bytes = n_bytes;
        if (h->of_token != NULL)
            m->be->vt->upload(m->be, h->of_token, table, n_bytes);
        else
            rc = sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"%s\"", h->src->name);
    }
    sl_free(table);
    return rc;
}

int sl_hashed_load(struct sl_model *m, struct sl_error *err)
{
    int rc = 0;
    for (int32_t l = 0; m->hashed != NULL && l < m->hp.n_layers && rc == 0; l++)
        if (m->hashed[l].src != NULL)
            rc = hash_load(m, l, err);
    return rc;
}

void sl_hashed_unload(struct sl_model *m)
{
    for (int32_t l = 0; m->hashed != NULL && l < m->hp.n_layers; l++) {
        if (m->hashed[l].of_token != NULL)
            m->be->vt->free(m->be, m->hashed[l].of_token, m->hashed[l].n_bytes);
        m->hashed[l].of_token = NULL;
    }
}
