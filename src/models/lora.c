/* SPDX-License-Identifier: MIT
 * Binds an adapter's tensors to the matrices of a model and packs them: A as it is, B in panels of
 * rows. Tensors keep their format; where an adapter mixes several, all become float32.
 */
#include "models/lora.h"

#include "base/check.h"
#include "io/peft.h"
#include "models/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ALIGN = 64 };

/* The matrices of a layer, in the order of mats; what shares an input stands together. */
static const enum sl_slot slots[SL_LORA_LAYER_MATS] = {
    [SL_LORA_Q] = SL_SLOT_Q,       [SL_LORA_K] = SL_SLOT_K,       [SL_LORA_V] = SL_SLOT_V,
    [SL_LORA_O] = SL_SLOT_O,       [SL_LORA_GATE] = SL_SLOT_GATE, [SL_LORA_UP] = SL_SLOT_UP,
    [SL_LORA_DOWN] = SL_SLOT_DOWN,
};

struct pair {                   /* of tensors of a matrix, while loading */
    struct sl_peft_tensor a, b; /* name NULL: not there */
};

int32_t sl_model_n_lora_mats(const struct sl_model *m)
{
    return m->hp.n_layers * SL_LORA_LAYER_MATS;
}

static const struct sl_param *param_of(const struct sl_model *m, int32_t idx)
{
    return sl_param(m, idx / SL_LORA_LAYER_MATS, slots[idx % SL_LORA_LAYER_MATS]);
}

void sl_model_lora_shape(const struct sl_model *m, int32_t idx, int64_t *n_rows, int64_t *n_cols)
{
    *n_rows = param_of(m, idx)->n_rows;
    *n_cols = param_of(m, idx)->n_cols;
}

static void module_name(const struct sl_model *m, int32_t idx, bool fused, char *out)
{
    const struct sl_weight_desc *w = param_of(m, idx)->desc;
    const char *pattern = w != NULL ? sl_bind_pattern(w, false, fused) : NULL;
    out[0] = '\0';
    if (pattern == NULL)
        return;
    char renamed[SL_MAX_TENSOR_NAME];
    sl_bind_name(sl_bind_layers(m->hf_layers, pattern, renamed), idx / SL_LORA_LAYER_MATS, 0, out);
    size_t n = strlen(out), n_end = strlen(".weight");
    SL_ASSERT(n > n_end);
    out[n - n_end] = '\0';
}

static int64_t module_rows(const struct sl_model *m, const struct sl_param *p, bool fused)
{
    return fused ? sl_bind_fused_row(&m->hp, p->layer, p->desc, SL_MAX_FUSED) : p->n_rows;
}

bool sl_model_lora_module(const struct sl_model *m, int32_t idx, char *out, int64_t *n_rows)
{
    const struct sl_param *p = param_of(m, idx);
    const bool fused = p->desc != NULL && p->desc->hf == NULL;
    module_name(m, idx, fused, out);
    if (out[0] == '\0' || (fused && p->desc->part > 0))
        return false;
    *n_rows = module_rows(m, p, fused);
    return true;
}

/* ------------------------------------------------------------------ binding */

/* Is that the module of the matrix? Adapters of a model without its head leave out the leading
 * "model.". */
static bool is_module(const struct sl_model *m, int32_t idx, bool fused, const char *module,
                      size_t n)
{
    char name[SL_MAX_TENSOR_NAME];
    module_name(m, idx, fused, name);
    const char *shorter = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    return n > 0 && ((strlen(name) == n && memcmp(name, module, n) == 0) ||
                     (strlen(shorter) == n && memcmp(shorter, module, n) == 0));
}

/* The layer that a module's name counts, or one that there is not. */
static int32_t layer_of(const struct sl_model *m, const char *module, size_t n)
{
    int32_t layer = 0;
    size_t at = 0;
    while (at < n && (module[at] < '0' || module[at] > '9'))
        at++;
    for (; at < n && module[at] >= '0' && module[at] <= '9' && layer < m->hp.n_layers; at++)
        layer = 10 * layer + (module[at] - '0');
    return layer;
}

/* Of a fused module all parts have the same A, and each some rows of B. */
static int bind_matrix(const struct sl_model *m, const struct sl_peft_tensor *t, int32_t idx,
                       bool fused, struct pair *pairs, struct sl_error *err)
{
    const struct sl_param *p = param_of(m, idx);
    const int64_t n_rows = module_rows(m, p, fused), n_cols = p->n_cols;
    struct sl_peft_tensor *to = t->is_b ? &pairs[idx].b : &pairs[idx].a;
    if (to->name != NULL)
        return sl_fail(err, SL_EFORMAT, "tensors \"%.90s\" and \"%.90s\" are the same matrix",
                       to->name, t->name);
    if (t->dims[!t->is_b] != (t->is_b ? n_rows : n_cols))
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%.120s\" has shape [%lld, %lld], the model's matrix is [%lld, "
                       "%lld]",
                       t->name, (long long)t->dims[0], (long long)t->dims[1], (long long)n_rows,
                       (long long)n_cols);
    if (p->n_turns > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%.120s\": adapters of a matrix whose parts take turns by heads "
                       "are not supported",
                       t->name);
    *to = *t;
    if (!t->is_b || !fused)
        return 0;
    const size_t row_bytes = t->n_bytes / (size_t)n_rows;
    to->data += (size_t)sl_bind_fused_row(&m->hp, p->layer, p->desc, p->desc->part) * row_bytes;
    to->dims[0] = p->n_rows;
    to->n_bytes = (size_t)p->n_rows * row_bytes;
    return 0;
}

static int bind_tensor(const struct sl_model *m, const struct sl_peft_tensor *t, struct pair *pairs,
                       struct sl_error *err)
{
    const int32_t layer = layer_of(m, t->module, t->n_module);
    int32_t n_found = 0;
    for (int32_t i = 0; i < SL_LORA_LAYER_MATS && layer < m->hp.n_layers; i++) {
        const int32_t idx = layer * SL_LORA_LAYER_MATS + i;
        for (int fused = 0; fused < 2; fused++) {
            if (!is_module(m, idx, fused != 0, t->module, t->n_module))
                continue;
            int rc = bind_matrix(m, t, idx, fused != 0, pairs, err);
            if (rc != 0)
                return rc;
            n_found++;
        }
    }
    if (n_found > 0)
        return 0;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "tensor \"%.120s\": the model has no linear layer \"%.*s\" that an adapter may "
                   "change",
                   t->name, (int)SL_MIN(t->n_module, (size_t)80), t->module);
}

/* Both of a pair or none; one rank. */
static int check_pair(const struct pair *p, int32_t max_rank, struct sl_error *err)
{
    const struct sl_peft_tensor *one = p->a.name != NULL ? &p->a : &p->b;
    if (p->a.name == NULL || p->b.name == NULL)
        return sl_fail(err, SL_EFORMAT, "tensor \"%.120s\" has no lora_%c beside it", one->name,
                       p->a.name != NULL ? 'B' : 'A');
    if (p->a.dims[0] != p->b.dims[1])
        return sl_fail(err, SL_EFORMAT, "tensor \"%.120s\" has rank %lld, its lora_B %lld",
                       p->a.name, (long long)p->a.dims[0], (long long)p->b.dims[1]);
    if (p->a.dims[0] > max_rank)
        return sl_fail(err, SL_ELIMIT,
                       "tensor \"%.120s\" has rank %lld, more than max-lora-rank %d", p->a.name,
                       (long long)p->a.dims[0], max_rank);
    return 0;
}

static int lora_bind(const struct sl_model *m, const struct sl_peft *peft, int32_t max_rank,
                     struct pair *pairs, struct sl_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < sl_peft_n_tensors(peft) && rc == 0; i++) {
        struct sl_peft_tensor t;
        rc = sl_peft_tensor_at(peft, i, &t, err);
        if (rc == 0)
            rc = bind_tensor(m, &t, pairs, err);
    }
    for (int32_t i = 0; i < sl_model_n_lora_mats(m) && rc == 0; i++)
        if (pairs[i].a.name != NULL || pairs[i].b.name != NULL)
            rc = check_pair(&pairs[i], max_rank, err);
    return rc;
}

/* ------------------------------------------------------------------ packing */

static enum sl_dtype common_dtype(const struct pair *pairs, int32_t n)
{
    enum sl_dtype dtype = SL_DTYPE_COUNT;
    for (int32_t i = 0; i < n; i++) {
        const struct sl_peft_tensor *both[2] = {&pairs[i].a, &pairs[i].b};
        for (int k = 0; k < 2 && both[k]->name != NULL; k++) {
            if (dtype != SL_DTYPE_COUNT && dtype != both[k]->dtype)
                return SL_DTYPE_F32;
            dtype = both[k]->dtype;
        }
    }
    return dtype;
}

static size_t a_bytes(int64_t rank, int64_t n_cols, size_t elem)
{
    return (size_t)SL_ROUND_UP((uint64_t)rank * (uint64_t)n_cols * elem, ALIGN);
}

static size_t b_bytes(int64_t rank, int64_t n_rows, size_t elem)
{
    const uint64_t rows = SL_ROUND_UP((uint64_t)n_rows, SL_LORA_PANEL);
    return (size_t)SL_ROUND_UP(rows * (uint64_t)rank * elem, ALIGN);
}

static struct sl_rows rows_of(const struct sl_model *m, int32_t idx, int32_t model_rank)
{
    const struct sl_param *p = param_of(m, idx);
    return p->desc != NULL ? sl_rank_param_rows(m, p, model_rank) : (struct sl_rows){0, p->n_rows};
}

void sl_lora_place(const struct sl_model *m, int32_t model_rank, struct sl_lora_mat *mats,
                   uint8_t *block, struct sl_lora_weights *w)
{
    const size_t elem = sl_dtype_info(w->dtype)->block_bytes;
    SL_ASSERT(w->n_mats == sl_model_n_lora_mats(m) && model_rank < m->n_ranks);
    w->mats = mats;
    w->block = block;
    w->n_bytes = 0;
    w->max_rank = 0;
    for (int32_t i = 0; i < w->n_mats; i++) {
        struct sl_lora_mat *mat = &mats[i];
        if (mat->rank == 0)
            continue;
        const size_t a = a_bytes(mat->rank, param_of(m, i)->n_cols, elem);
        mat->a = block != NULL ? block + w->n_bytes : NULL;
        mat->b = block != NULL ? block + w->n_bytes + a : NULL;
        w->n_bytes += a + b_bytes(mat->rank, rows_of(m, i, model_rank).n, elem);
        w->max_rank = SL_MAX(w->max_rank, mat->rank);
    }
}

/* A row of a tensor in the adapter's format, and whether all its numbers are finite. */
static bool lora_read_row(const struct sl_peft_tensor *t, int64_t row, enum sl_dtype dtype,
                          float *room, uint8_t *out)
{
    const struct sl_dtype_info *from = sl_dtype_info(t->dtype), *to = sl_dtype_info(dtype);
    const uint8_t *src = t->data + (size_t)(row * t->dims[1]) * from->block_bytes;
    bool finite = true;
    from->to_f32(src, room, t->dims[1]);
    for (int64_t i = 0; i < t->dims[1]; i++)
        finite = finite && isfinite(room[i]);
    if (t->dtype == dtype)
        memcpy(out, src, (size_t)t->dims[1] * from->block_bytes);
    else
        to->from_f32(room, out, t->dims[1]);
    return finite;
}

static int not_finite(const struct sl_peft_tensor *t, int64_t row, struct sl_error *err)
{
    return sl_fail(err, SL_EFORMAT, "tensor \"%.120s\": row %lld holds NaN or infinity", t->name,
                   (long long)row);
}

/* Of B the rows that are the rank's. room: a row as floats, then a row of B in the adapter's
 * format. */
static int pack_pair(const struct pair *p, enum sl_dtype dtype, struct sl_rows rows, float *room,
                     uint8_t *a, uint8_t *b, struct sl_error *err)
{
    const size_t elem = sl_dtype_info(dtype)->block_bytes;
    const size_t rank = (size_t)p->a.dims[0], row_bytes = (size_t)p->a.dims[1] * elem;
    uint8_t *row = (uint8_t *)(room + p->a.dims[1] + SL_MAX_LORA_RANK);
    SL_ASSERT(rows.first >= 0 && rows.first + rows.n <= p->b.dims[0]);
    for (int64_t j = 0; j < p->a.dims[0]; j++)
        if (!lora_read_row(&p->a, j, dtype, room, a + (size_t)j * row_bytes))
            return not_finite(&p->a, j, err);
    for (int64_t i = 0; i < rows.n; i++) {
        if (!lora_read_row(&p->b, rows.first + i, dtype, room, row))
            return not_finite(&p->b, rows.first + i, err);
        uint8_t *panel = b + (size_t)(i / SL_LORA_PANEL) * rank * SL_LORA_PANEL * elem;
        for (size_t j = 0; j < rank; j++)
            memcpy(panel + (j * SL_LORA_PANEL + (size_t)(i % SL_LORA_PANEL)) * elem, row + j * elem,
                   elem);
    }
    return 0;
}

uint64_t sl_model_lora_bytes(const struct sl_model *m, int32_t rank, enum sl_dtype dtype)
{
    const size_t elem = sl_dtype_info(dtype)->block_bytes;
    uint64_t n_bytes = 0;
    for (int32_t i = 0; i < sl_model_n_lora_mats(m); i++) {
        int64_t n_rows = 0;
        for (int32_t k = 0; k < m->n_ranks; k++)
            n_rows = SL_MAX(n_rows, rows_of(m, i, k).n);
        n_bytes += a_bytes(rank, param_of(m, i)->n_cols, elem) + b_bytes(rank, n_rows, elem);
    }
    return n_bytes;
}

static int64_t lora_widest(const struct pair *pairs, int32_t n)
{
    int64_t most = 0;
    for (int32_t i = 0; i < n; i++)
        most = pairs[i].a.name != NULL ? SL_MAX(most, pairs[i].a.dims[1]) : most;
    return most;
}

/* The weights of a rank of the model: w has their format. */
static int lora_pack_rank(struct sl_lora *l, const struct sl_model *m, int32_t model_rank,
                          const struct sl_peft *peft, const struct pair *pairs, float *room,
                          struct sl_lora_weights *w, struct sl_error *err)
{
    struct sl_lora_mat *mats = l->mats + (size_t)model_rank * (size_t)w->n_mats;
    int rc = 0;
    for (int32_t i = 0; i < w->n_mats; i++)
        mats[i].rank = pairs[i].a.name != NULL ? (int32_t)pairs[i].a.dims[0] : 0;
    sl_lora_place(m, model_rank, mats, NULL, w);
    l->blocks[model_rank] = sl_aligned_alloc(w->n_bytes);
    if (l->blocks[model_rank] == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for an adapter of %zu bytes", w->n_bytes);
    sl_lora_place(m, model_rank, mats, l->blocks[model_rank], w);
    for (int32_t i = 0; i < w->n_mats && rc == 0; i++) {
        const struct pair *p = &pairs[i];
        if (p->a.name == NULL)
            continue;
        uint8_t *a = l->blocks[model_rank] + ((const uint8_t *)mats[i].a - l->blocks[model_rank]);
        uint8_t *b = a + ((const uint8_t *)mats[i].b - (const uint8_t *)mats[i].a);
        rc = sl_peft_scale(peft, p->a.module, p->a.n_module, p->a.dims[0], &mats[i].scale, err);
        if (rc == 0)
            rc = pack_pair(p, w->dtype, rows_of(m, i, model_rank), room, a, b, err);
    }
    return rc;
}

static int lora_pack(struct sl_lora *l, const struct sl_model *m, const struct sl_peft *peft,
                     const struct pair *pairs, bool bf16, struct sl_error *err)
{
    const int32_t n = l->w.n_mats;
    l->w.dtype = bf16 ? SL_DTYPE_BF16 : common_dtype(pairs, n);
    SL_ASSERT(l->w.dtype != SL_DTYPE_COUNT && l->n_ranks <= SL_MAX_RANKS);
    float *room =
        sl_calloc((size_t)lora_widest(pairs, n) + 2 * (size_t)SL_MAX_LORA_RANK, sizeof *room);
    int rc = room != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for an adapter");
    for (int32_t i = 1; i < l->n_ranks; i++)
        l->others[i - 1] = l->w;
    for (int32_t i = 0; i < l->n_ranks && rc == 0; i++)
        rc = lora_pack_rank(l, m, i, peft, pairs, room, i == 0 ? &l->w : &l->others[i - 1], err);
    l->w.others = l->n_ranks > 1 ? l->others : NULL;
    sl_free(room);
    return rc;
}

int sl_lora_open(const struct sl_model *m, const char *dir, const struct sl_lora_options *opt,
                 struct sl_lora **out, struct sl_error *err)
{
    struct sl_peft *peft = NULL;
    const int32_t n = sl_model_n_lora_mats(m);
    struct sl_lora *l = sl_calloc(1, sizeof *l);
    struct pair *pairs = sl_calloc((size_t)n, sizeof *pairs);
    int rc = 0;
    *out = NULL;
    if (l != NULL)
        l->mats = sl_calloc((size_t)n * (size_t)m->n_ranks, sizeof *l->mats);
    if (l == NULL || pairs == NULL || l->mats == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for an adapter");
    if (rc == 0 && sl_layers_max(&m->hp, m->layers, SL_DIM_O_GROUPS) > 0)
        rc = sl_fail(err, SL_EUNSUPPORTED, "adapters of %s are not supported yet", m->name->id);
    if (rc == 0)
        rc = sl_peft_open(dir, &peft, err);
    if (rc == 0)
        rc = lora_bind(m, peft, opt->max_rank, pairs, err);
    if (rc == 0) {
        l->w.n_mats = n;
        l->n_ranks = m->n_ranks;
        l->digest = sl_peft_digest(peft);
        rc = lora_pack(l, m, peft, pairs, opt->bf16, err);
    }
    sl_peft_close(peft);
    sl_free(pairs);
    if (rc != 0) {
        sl_lora_close(l);
        return sl_error_prefix(err, rc, "adapter %.100s", dir);
    }
    *out = l;
    return 0;
}

void sl_lora_close(struct sl_lora *l)
{
    if (l == NULL)
        return;
    for (int32_t i = 0; i < l->n_ranks; i++)
        if (l->blocks[i] != NULL)
            sl_aligned_free(l->blocks[i], sl_lora_of_rank(&l->w, i)->n_bytes);
    sl_free(l->mats);
    sl_free(l);
}
