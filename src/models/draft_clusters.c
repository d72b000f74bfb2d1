/* SPDX-License-Identifier: MIT
 * A drafter that looks for a token in a few sets of tokens alone: a small product says which are
 * the likeliest, and logits are made of those sets' tokens (struct sl_op_cluster_logits). Of
 * 262,144 tokens in 2,048 sets, of which 32 are looked at, that reads a 64th of the matrix.
 *
 * A file has all tokens, those of a set side by side: [V] whole numbers, each token once.
 */
#include "base/check.h"
#include "base/sys.h"
#include "models/internal.h"
#include "quant/dtype.h"

#include <string.h>

#define ORDER "masked_embedding.token_ordering"

bool sl_clusters_is_tensor(const struct sl_model *m, const char *name)
{
    return m->hp.n_clusters > 0 && strcmp(name, ORDER) == 0;
}

uint64_t sl_clusters_bytes(const struct sl_model *m)
{
    return m->hp.n_clusters > 0 ? (uint64_t)m->hp.n_vocab * sizeof(int32_t) : 0;
}

/* seen: [n] zeros; out: [n] */
static int clusters_read(const struct sl_ckpt_tensor *t, int32_t n, uint8_t *seen, int32_t *out,
                         struct sl_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        int64_t token;
        memcpy(&token, t->data + (size_t)i * sizeof token, sizeof token);
        if (token < 0 || token >= n || seen[token] != 0)
            return sl_fail(err, SL_EFORMAT,
                           "tensor \"" ORDER "\": value %d is %lld, must be one of %d tokens and "
                           "there only once",
                           i, (long long)token, n);
        seen[token] = 1;
        out[i] = (int32_t)token;
    }
    return 0;
}

int sl_clusters_load(struct sl_model *m, struct sl_error *err)
{
    const int32_t n = m->hp.n_vocab;
    const size_t n_bytes = (size_t)sl_clusters_bytes(m);
    const struct sl_ckpt_tensor *t = sl_ckpt_find_raw(m->ckpt, ORDER, "I64");
    if (n_bytes == 0)
        return 0;
    if (m->be->vt->cluster_logits == NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "logits of sets of tokens have no kernel on this device: choose device cpu");
    const enum sl_dtype rows = sl_param(m, 0, SL_SLOT_CLUSTER_ROWS)->mat.dtype;
    if (m->be->vt->device != NULL && rows != SL_DTYPE_BF16 && rows != SL_DTYPE_F16 &&
        rows != SL_DTYPE_F32)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "logits of sets of tokens have no kernel for %s on this device: choose "
                       "device cpu",
                       sl_dtype_info(rows)->name);
    if (t == NULL || t->n_dims != 1 || t->dims[0] != n)
        return sl_fail(err, SL_EFORMAT, "tensor \"" ORDER "\" must be I64 with %d values", n);
    int32_t *order = sl_malloc(n_bytes);
    uint8_t *seen = sl_calloc((size_t)n, 1);
    int rc = order != NULL && seen != NULL
                 ? clusters_read(t, n, seen, order, err)
                 : sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"" ORDER "\"");
    if (rc == 0) {
        SL_ASSERT(m->cluster_order == NULL);
        m->cluster_order = m->be->vt->alloc(m->be, n_bytes);
        if (m->cluster_order != NULL)
            m->be->vt->upload(m->be, m->cluster_order, order, n_bytes);
        else
            rc = sl_fail(err, SL_ENOMEM, "out of memory loading tensor \"" ORDER "\"");
    }
    sl_free(seen);
    sl_free(order);
    return rc;
}

void sl_clusters_unload(struct sl_model *m)
{
    if (m->cluster_order != NULL)
        m->be->vt->free(m->be, m->cluster_order, (size_t)sl_clusters_bytes(m));
    m->cluster_order = NULL;
}

void sl_clusters_head(struct sl_run *r, const void *x, int32_t n)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *sets = sl_run_mat(r, 0, SL_SLOT_CLUSTERS);
    m->be->vt->linear(m->be, &(struct sl_op_linear){.x = x,
                                                    .ld_x = sets->n_cols,
                                                    .w = sets,
                                                    .n = n,
                                                    .out = r->cluster_scores,
                                                    .ld_out = sets->n_rows});
    m->be->vt->cluster_logits(
        m->be, &(struct sl_op_cluster_logits){.x = x,
                                              .scores = r->cluster_scores,
                                              .n = n,
                                              .n_clusters = m->hp.n_clusters,
                                              .top_k = m->hp.top_clusters,
                                              .order = m->cluster_order,
                                              .w = sl_run_mat(r, 0, SL_SLOT_CLUSTER_ROWS),
                                              .top = r->cluster_top,
                                              .out = r->logits});
}
