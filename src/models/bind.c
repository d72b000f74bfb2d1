/* SPDX-License-Identifier: MIT
 * Binds a family's table of weights to the tensors of a checkpoint: every tensor the model needs is
 * there, has exactly the shape its symbols give, and a format the place can take. Nothing is read
 * from the tensors' data here.
 */
#include "base/check.h"
#include "base/log.h"
#include "models/internal.h"

#include <stdio.h>
#include <string.h>

void sl_bind_name(const char *pattern, int32_t layer, int32_t mat, char *out)
{
    size_t n = 0;
    int32_t word = -1; /* of a list in braces; -1: outside of one */
    for (const char *at = pattern; n < SL_MAX_TENSOR_NAME - 1 && *at != '\0'; at++) {
        if (*at == '*' || *at == '#')
            n += (size_t)snprintf(out + n, SL_MAX_TENSOR_NAME - n, "%d", *at == '*' ? layer : mat);
        else if (*at == '%' || *at == '@')
            n += (size_t)snprintf(out + n, SL_MAX_TENSOR_NAME - n, "%d",
                                  *at == '%' ? layer / 2 : layer % 2);
        else if (*at == '{' || *at == '}')
            word = *at == '{' ? 0 : -1;
        else if (word >= 0 && *at == ',')
            word++;
        else if (word < 0 || word == mat)
            out[n++] = *at;
    }
    out[SL_MIN(n, (size_t)SL_MAX_TENSOR_NAME - 1)] = '\0';
}

int64_t sl_bind_fused_row(const struct sl_hparams *hp, const struct sl_layer_desc *l,
                          const struct sl_weight_desc *w, int32_t part)
{
    int64_t n = 0;
    for (int32_t i = 0; i < part && i < SL_MAX_FUSED && w->fused[i] != SL_DIM_NONE; i++)
        n += sl_layer_dim(hp, l, w->fused[i]);
    return n;
}

size_t sl_bind_optional_prefix(const char *name)
{
    static const char *const prefixes[] = {"model.", "bert.", "roberta.", "nomic_bert.", "gte."};
    for (size_t i = 0; i < SL_COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return strlen(prefixes[i]);
    return 0;
}

#define INNER "language_model."

static void wrap_name(enum sl_wrap wrap, char *name)
{
    const size_t n = strlen(INNER), outer = strlen("model.");
    size_t at = 0;
    if (wrap == SL_WRAP_INSIDE && strncmp(name, "model.", outer) == 0)
        at = outer;
    else if (wrap != SL_WRAP_BEFORE)
        return;
    if (strlen(name) + n >= SL_MAX_TENSOR_NAME)
        return;
    memmove(name + at + n, name + at, strlen(name + at) + 1);
    memcpy(name + at, INNER, n);
}

static enum sl_wrap wrap_of(const struct sl_model *m)
{
    for (int wrap = SL_WRAP_BEFORE; m->name->hf_config != NULL && wrap <= SL_WRAP_INSIDE; wrap++) {
        char name[SL_MAX_TENSOR_NAME] = "model.norm.weight";
        wrap_name((enum sl_wrap)wrap, name);
        if (sl_ckpt_find(m->ckpt, name) != NULL)
            return (enum sl_wrap)wrap;
    }
    return SL_WRAP_NONE;
}

const char *sl_bind_layers(const char *hf_layers, const char *pattern, char out[SL_MAX_TENSOR_NAME])
{
    static const char layers[] = "model.layers.*.";
    if (hf_layers == NULL || strncmp(pattern, layers, strlen(layers)) != 0)
        return pattern;
    snprintf(out, SL_MAX_TENSOR_NAME, "%s%s", hf_layers, pattern + strlen(layers));
    return out;
}

/* name is set to the full spelling, or to the short one when the file uses that. */
static const struct sl_ckpt_tensor *bind_find(const struct sl_model *m, const char *pattern,
                                              int32_t layer, int32_t mat, char *name)
{
    const struct sl_ckpt *c = m->ckpt;
    char renamed[SL_MAX_TENSOR_NAME];
    sl_bind_name(sl_bind_layers(m->hf_layers, pattern, renamed), m->first_layer + layer, mat, name);
    wrap_name(m->wrap, name);
    const struct sl_ckpt_tensor *t = sl_ckpt_find(c, name);
    size_t n = sl_bind_optional_prefix(name);
    if (t != NULL || n == 0 || sl_ckpt_unsupported(c, name) != NULL)
        return t;
    if (sl_ckpt_find(c, name + n) != NULL || sl_ckpt_unsupported(c, name + n) != NULL) {
        memmove(name, name + n, strlen(name + n) + 1);
        t = sl_ckpt_find(c, name);
    }
    return t;
}

static bool bind_shows(const struct sl_ckpt *ckpt, const struct sl_weight_desc *w, bool gguf,
                       int32_t layer)
{
    for (int fused = 0; fused < 2; fused++) {
        const char *pattern = sl_bind_pattern(w, gguf, fused != 0);
        char name[SL_MAX_TENSOR_NAME];
        if (pattern == NULL)
            continue;
        sl_bind_name(pattern, layer, 0, name);
        const char *spellings[] = {name, name + (gguf ? 0 : sl_bind_optional_prefix(name))};
        for (int i = 0; i < 2; i++)
            if (sl_ckpt_find(ckpt, spellings[i]) != NULL ||
                sl_ckpt_unsupported(ckpt, spellings[i]) != NULL)
                return true;
    }
    return false;
}

/* A layer in front may have no experts, and so not what those behind it have. */
unsigned sl_bind_gguf_has(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc,
                          int32_t n_layers, uint32_t *layers)
{
    unsigned has = 0;
    for (int32_t i = 0; i < desc->n_weights; i++) {
        const struct sl_weight_desc *w = &desc->weights[i];
        if (w->when == 0)
            continue;
        if (w->slot >= SL_SLOT_FIRST_GLOBAL && bind_shows(ckpt, w, true, 0))
            has |= w->when;
        for (int32_t l = 0; l < n_layers && w->slot < SL_SLOT_FIRST_GLOBAL; l++)
            if (bind_shows(ckpt, w, true, l))
                layers[l] |= w->when;
    }
    for (int32_t l = 0; l < n_layers; l++)
        has |= layers[l];
    return has;
}

unsigned sl_bind_hf_has(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc,
                        unsigned shown, int32_t n_layers)
{
    unsigned has = 0;
    for (int32_t i = 0; i < desc->n_weights; i++)
        for (int32_t l = 0; l < n_layers && (desc->weights[i].when & shown) != 0; l++)
            if (bind_shows(ckpt, &desc->weights[i], false, l))
                has |= desc->weights[i].when & shown;
    return has;
}

void sl_bind_shape(int32_t n_dims, const int64_t *dims, char *out, size_t n_out)
{
    size_t n = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < n_dims && n < n_out; i++) {
        int k = snprintf(out + n, n_out - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
        n += k > 0 ? (size_t)k : 0;
    }
}

static int bind_check_shape(const struct sl_param *p, const struct sl_ckpt_tensor *t,
                            struct sl_error *err)
{
    const int64_t want[2] = {p->n_rows, p->n_cols};
    int32_t n_want = p->desc->cols == SL_DIM_NONE ? 1 : 2;
    bool ok = t->n_dims == n_want && t->dims[0] == want[0];
    if (ok && n_want == 2)
        ok = t->dims[1] == want[1];
    if (ok)
        return 0;
    char have_s[96], want_s[64];
    sl_bind_shape(t->n_dims, t->dims, have_s, sizeof have_s);
    sl_bind_shape(n_want, want, want_s, sizeof want_s);
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" has shape [%s], expected [%s]", t->name, have_s,
                   want_s);
}

static int check_format(const struct sl_param *p, const struct sl_ckpt_tensor *t,
                        struct sl_error *err)
{
    const struct sl_weight_desc *w = p->desc;
    const struct sl_dtype_info *info = sl_dtype_info(t->dtype);
    if (sl_weight_is_values(w)) {
        if (info->block_elems != 1 || t->dtype == SL_DTYPE_FP8_E4M3)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "tensor \"%s\" is %s; norms and biases must be f32, f16 or bf16",
                           t->name, info->name);
        return 0;
    }
    if (t->dtype == SL_DTYPE_FP8_E4M3 && sl_slot_is_rows(w->slot))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor \"%s\" is %s; an embedding of this format is not supported", t->name,
                       info->name);
    const bool turned = p->fused && (w->flags & SL_W_TRANSPOSED) != 0 && p->mx_codes == NULL;
    if (turned && (info->block_elems != 1 || t->dtype == SL_DTYPE_FP8_E4M3))
        return sl_fail(
            err, SL_EUNSUPPORTED,
            "tensor \"%s\" is %s; a fused tensor of this model must be f32, f16, bf16 or "
            "MXFP4 in two tensors",
            t->name, info->name);
    if (t->dims[1] % info->block_elems != 0)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" is %s with rows of %lld values, not a multiple of %u",
                       t->name, info->name, (long long)t->dims[1], info->block_elems);
    return 0;
}

/* own, fused: what it might be called; "" where there is no such name */
static int bind_missing(const struct sl_model *m, const struct sl_weight_desc *w, const char *own,
                        const char *fused, struct sl_error *err)
{
    const bool as_fused = own[0] == '\0' || sl_ckpt_unsupported(m->ckpt, fused) != NULL;
    const char *name = as_fused ? fused : own;
    const char *format = sl_ckpt_unsupported(m->ckpt, name);
    if (format != NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s, a format that is not supported",
                       name, format);
    if (w->slot == SL_SLOT_HEAD)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" is missing, and config.json does not set "
                       "tie_word_embeddings",
                       name);
    if (own[0] != '\0' && fused[0] != '\0')
        return sl_fail(err, SL_EFORMAT, "tensor \"%s\" is missing, and so is \"%s\"", own, fused);
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" is missing", name);
}

/* PyTorch's convolutions of single channels have a dimension of 1 in the middle. */
static const struct sl_ckpt_tensor *without_middle(struct sl_param *p,
                                                   const struct sl_ckpt_tensor *t)
{
    const int32_t first = t->n_dims == 4 && t->dims[0] == 1 ? 1 : 0; /* and one more in front */
    if ((p->desc->flags & SL_W_VALUES) == 0 || t->n_dims != 3 + first || t->dims[first + 1] != 1)
        return t;
    p->slice = *t;
    p->slice.n_dims = 2;
    p->slice.dims[0] = t->dims[first];
    p->slice.dims[1] = t->dims[first + 2];
    p->slice.dims[2] = p->slice.dims[3] = 1;
    return &p->slice;
}

static int64_t n_values(const struct sl_ckpt_tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; /* unused ones are 1 */
}

/* A matrix of one row is a vector in some files, and SL_W_FLAT vectors are a matrix in some; a
 * vector of one value may have no dimension. */
static const struct sl_ckpt_tensor *as_wanted(struct sl_param *p, const struct sl_ckpt_tensor *t)
{
    const bool vector = p->desc->cols == SL_DIM_NONE;
    const bool flat = vector && (p->desc->flags & SL_W_FLAT) != 0;
    const bool scalar = vector && t->n_dims == 0 && p->n_rows == 1;
    if (vector ? !scalar && (!flat || t->n_dims < 2 || n_values(t) != p->n_rows)
               : t->n_dims != 1 || p->n_rows != 1)
        return t;
    p->slice = *t;
    p->slice.n_dims = vector ? 1 : 2;
    p->slice.dims[0] = vector ? p->n_rows : 1;
    p->slice.dims[1] = vector ? 1 : t->dims[0];
    p->slice.dims[2] = p->slice.dims[3] = 1;
    return &p->slice;
}

/* p becomes t, which is as its place wants it. */
static int bind_take(const struct sl_model *m, struct sl_param *p, const struct sl_ckpt_tensor *t,
                     struct sl_error *err)
{
    t = as_wanted(p, t);
    int rc = bind_check_shape(p, t, err);
    if (rc == 0)
        rc = check_format(p, t, err);
    if (rc != 0)
        return rc;
    p->src = t;
    return sl_fp8_bind(m, p, err);
}

/* Matrix i of t, which holds several: a stack of n, or of 1, each of p->file_rows rows of which
 * ours are some. */
static int take_slice(const struct sl_model *m, struct sl_param *p, int32_t i, int32_t n,
                      const struct sl_ckpt_tensor *t, struct sl_error *err)
{
    const uint64_t row_bytes = t->n_bytes / (uint64_t)(n * p->file_rows);
    if (sl_turned(p))
        return sl_turned_bind(m, p, t, err);
    p->slice = *t; /* rows are whole blocks, as take checks */
    p->slice.n_dims = p->desc->cols == SL_DIM_NONE ? 1 : 2;
    p->slice.dims[0] = p->n_rows;
    p->slice.dims[1] = p->n_cols;
    p->slice.dims[2] = 1;
    p->slice.n_bytes = (uint64_t)p->n_rows * row_bytes;
    p->slice.data = t->data + (size_t)(i * p->file_rows) * (size_t)row_bytes;
    if (!sl_apart(p)) /* else apart.c finds the rows */
        p->slice.data += (size_t)p->file_first * (size_t)row_bytes;
    return bind_take(m, p, &p->slice, err);
}

static int check_slices(const struct sl_param *p, int32_t n, const struct sl_ckpt_tensor *t,
                        bool stacked, struct sl_error *err)
{
    const bool turned = p->fused && (p->desc->flags & SL_W_TRANSPOSED) != 0;
    const int64_t n_cols = sl_turned(p) ? p->n_rows : p->n_cols;
    const int64_t dims[] = {n, turned ? n_cols : p->file_rows, turned ? p->file_rows : n_cols},
                  *want = stacked ? dims : dims + 1;
    const int32_t n_want = (p->desc->cols == SL_DIM_NONE ? 1 : 2) + (stacked ? 1 : 0);
    char have_s[96], want_s[96];
    if (t->n_dims == n_want && memcmp(t->dims, want, (size_t)n_want * sizeof(int64_t)) == 0)
        return 0;
    if (n_want == 1 && (p->desc->flags & SL_W_FLAT) != 0 && n_values(t) == want[0])
        return 0;
    if (stacked && n_want == 3 && t->n_dims == 2 && t->dims[0] == dims[0] * dims[1] &&
        t->dims[1] == dims[2])
        return 0; /* matrices one below the other, as DBRX has them */
    sl_bind_shape(t->n_dims, t->dims, have_s, sizeof have_s);
    sl_bind_shape(n_want, want, want_s, sizeof want_s);
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" has shape [%s], expected [%s]", t->name, have_s,
                   want_s);
}

/* Rounds in which the parts of a fused tensor take turns. */
static int32_t n_turns(const struct sl_model *m, const struct sl_param *p)
{
    const struct sl_weight_desc *w = p->desc;
    if ((w->flags & SL_W_TURNS) != 0) /* row by row */
        return (int32_t)p->n_rows;
    if (w->turns == SL_DIM_NONE || (m->hp.from_gguf && (w->flags & SL_W_FOLDER_TURNS) != 0))
        return 1;
    return (int32_t)sl_layer_dim(&m->hp, p->layer, w->turns);
}

/* Each part has as many rows in every round. */
static int check_turns(const struct sl_model *m, const struct sl_param *p, const char *pattern,
                       struct sl_error *err)
{
    const struct sl_weight_desc *w = p->desc;
    for (int32_t i = 0; p->n_turns > 1 && i < SL_MAX_FUSED && w->fused[i] != SL_DIM_NONE; i++) {
        const int64_t n_rows = sl_layer_dim(&m->hp, p->layer, w->fused[i]);
        if (n_rows % p->n_turns != 0)
            return sl_fail(err, SL_EFORMAT,
                           "tensor \"%s\": part %d has %lld rows, which is not a multiple of the "
                           "%d rounds in which parts take turns",
                           pattern, i, (long long)n_rows, p->n_turns);
    }
    return 0;
}

/* The tensor of matrix i of a slot, its own or a fused one. 0: p is bound to it, or to several (of
 * four-bit numbers); 1: it is not there, and name is how it would be called. */
static int bind_form(struct sl_model *m, struct sl_param *p, int32_t layer, int32_t i, bool fused,
                     char *name, struct sl_error *err)
{
    const struct sl_weight_desc *w = p->desc;
    const char *pattern = sl_bind_pattern(w, m->hp.from_gguf, fused);
    const bool stacked = pattern != NULL && w->mats != SL_DIM_NONE && strchr(pattern, '#') == NULL;
    const int32_t n = stacked ? sl_params_n(m, w, layer) : 1;
    if (pattern == NULL)
        return 1;
    const int32_t part = w->part + (sl_weight_n_pieces(w) > 0 ? i : 0);
    p->fused = fused;
    p->file_first = fused ? sl_bind_fused_row(&m->hp, p->layer, w, part) : 0;
    p->file_rows = fused ? sl_bind_fused_row(&m->hp, p->layer, w, SL_MAX_FUSED) : p->n_rows;
    p->n_turns = (int16_t)(fused ? n_turns(m, p) : 1);
    int rc = check_turns(m, p, pattern, err);
    if (rc != 0)
        return rc;
    const bool of_use = (w->flags & SL_W_OF_USE) != 0;
    const struct sl_ckpt_tensor *t =
        bind_find(m, pattern, of_use ? p->layer->tied_to : layer, of_use ? p->layer->use : i, name);
    if (t == NULL) {
        rc = (w->flags & SL_W_TRANSPOSED) != 0 ? 0 : sl_int4_bind(m, name, p, err);
        if (rc == 0 && !fused && pattern[0] != '\0' && w->cols != SL_DIM_NONE)
            rc = sl_mxfp4_bind_alone(m, name, p, err);
        if (rc == 0 && fused && stacked)
            rc = sl_mxfp4_bind(m, name, n, p, err);
        return rc < 0 ? rc : rc == 0;
    }
    t = without_middle(p, t);
    if (sl_weight_n_pieces(w) > 0 && sl_weight_is_values(w) && !fused) {
        /* transformers 5 saves the convolutions of q, k and v in three equal pieces, whatever their
         * widths are; only all rows together count (check_pieces) */
        const int64_t all = sl_layer_dim(&m->hp, p->layer, w->rows);
        const int64_t has = (w->flags & SL_W_FLAT) != 0 ? n_values(t) : t->dims[0];
        p->n_rows = p->file_rows = SL_MAX(SL_MIN(has, all), 1);
    }
    if (!stacked && !fused)
        return bind_take(m, p, t, err);
    rc = check_slices(p, n, t, stacked, err);
    const bool below = t->n_dims == 2 && w->cols != SL_DIM_NONE;
    if (rc == 0 && fused && stacked && !sl_apart(p) && (below || sl_turned(p))) {
        /* parts of a stack whose matrices lie one below the other */
        p->file_first += i * p->file_rows;
        p->file_rows *= n;
        return take_slice(m, p, 0, 1, t, err);
    }
    return rc != 0 ? rc : take_slice(m, p, stacked ? i : 0, n, t, err);
}

/* p: the first of n. */
static int check_pieces(const struct sl_model *m, const struct sl_param *p, int32_t n,
                        struct sl_error *err)
{
    const int64_t want = sl_layer_dim(&m->hp, p->layer, p->desc->rows);
    int64_t have = 0;
    for (int32_t i = 0; i < n; i++)
        have += p[i].n_rows;
    if (have == want)
        return 0;
    return sl_fail(err, SL_EFORMAT,
                   "tensor \"%s\" and the %d that belong to it have %lld rows together, expected "
                   "%lld",
                   p->src->name, n - 1, (long long)have, (long long)want);
}

static bool is_of_target(const struct sl_model *m, const struct sl_weight_desc *w)
{
    const char *pattern = sl_bind_pattern(w, m->hp.from_gguf, false);
    char name[SL_MAX_TENSOR_NAME];
    return pattern == NULL || (bind_find(m, pattern, 0, 0, name) == NULL &&
                               sl_ckpt_unsupported(m->ckpt, name) == NULL);
}

static int bind_shared(struct sl_model *m, const struct sl_weight_desc *w, struct sl_error *err)
{
    const struct sl_param *own = sl_param(m->target, 0, w->slot);
    struct sl_param *p = sl_param(m, 0, w->slot);
    const int64_t n_rows = sl_layer_dim(&m->hp, &m->layers[0], w->rows),
                  n_cols = sl_layer_dim(&m->hp, &m->layers[0], w->cols);
    /* a tied head is made when the target is loaded */
    const struct sl_param *shape = own->src != NULL ? own : sl_param(m->target, 0, SL_SLOT_EMBED);
    if (shape->n_rows != n_rows || shape->n_cols != n_cols)
        return sl_fail(
            err, SL_EFORMAT,
            "the drafter has no tensor of its own in place of \"%s\" of the model, which "
            "is [%lld, %lld], not [%lld, %lld]",
            shape->src->name, (long long)shape->n_rows, (long long)shape->n_cols, (long long)n_rows,
            (long long)n_cols);
    p->desc = w;
    p->layer = &m->layers[0];
    p->n_rows = n_rows;
    p->n_cols = n_cols;
    p->shared = own;
    return 0;
}

static int bind_one(struct sl_model *m, const struct sl_weight_desc *w, int32_t layer,
                    struct sl_error *err)
{
    char own[SL_MAX_TENSOR_NAME] = "", fused[SL_MAX_TENSOR_NAME] = "";
    unsigned has = w->slot >= SL_SLOT_FIRST_GLOBAL ? m->hp.has : m->layers[layer].has;
    if ((w->flags & SL_W_OF_TARGET) != 0 && is_of_target(m, w))
        return bind_shared(m, w, err);
    if ((w->when & ~has) != 0 || (sl_bind_pattern(w, m->hp.from_gguf, false) == NULL &&
                                  sl_bind_pattern(w, m->hp.from_gguf, true) == NULL))
        return 0;
    if (sl_weight_is_absent(&m->hp, &m->layers[layer], w))
        return 0;
    if (w->slot < SL_SLOT_FIRST_GLOBAL && sl_param_is_tied(m, w, layer))
        return 0;
    struct sl_param *p = sl_param(m, layer, w->slot);
    const int32_t n = sl_params_n(m, w, layer), n_pieces = sl_weight_n_pieces(w);
    for (int32_t i = 0, rc; i < n; i++, p++) {
        p->desc = w;
        p->layer = &m->layers[layer];
        p->stack_idx = (int16_t)i;
        p->n_rows = sl_layer_dim(&m->hp, p->layer, n_pieces > 0 ? w->pieces[i] : w->rows);
        p->n_cols = sl_layer_dim(&m->hp, p->layer, w->cols);
        rc = bind_form(m, p, layer, i, false, own, err);
        if (rc == 1)
            rc = bind_form(m, p, layer, i, true, fused, err);
        if (rc == 1)
            rc = bind_missing(m, w, own, fused, err);
        if (rc != 0)
            return rc;
    }
    return n_pieces > 0 ? check_pieces(m, p - n, n, err) : 0;
}

/* Tensors of the file that a slot of a layer has. One that holds several matrices is counted for
 * the first. */
static size_t n_tensors_of(const struct sl_model *m, const struct sl_weight_desc *w, int32_t layer)
{
    const struct sl_param *p = sl_param(m, layer, w->slot);
    const struct sl_ckpt_tensor *last = NULL;
    size_t n = 0;
    if (p->desc != w || (w->slot < SL_SLOT_FIRST_GLOBAL && sl_param_is_tied(m, w, layer)))
        return 0;
    for (int32_t i = 0; i < sl_params_n(m, w, layer); i++, p++) {
        const bool again = last != NULL && p->src != NULL && p->src->name == last->name;
        if (p->int4 != NULL)
            n += sl_int4_n_tensors(p);
        else if (p->mx_codes != NULL && p->src->dtype == SL_DTYPE_BF16) /* MXFP8 */
            n += 2;
        else if (p->mx_codes != NULL)
            n += p->mx_alone || (i == 0 && p->file_first == 0) ? 2 : 0;
        else if (p->src != NULL && p->file_first == 0 && !again)
            n += p->scale != NULL ? 2 : 1;
        last = p->src;
    }
    return n;
}

/* What a model of whole texts was trained with beside what it is used for. */
static bool is_encoder_extra(const struct sl_model *m, const char *name)
{
    const char *s = name + sl_bind_optional_prefix(name);
    return m->desc->encoder &&
           (strcmp(s, "embeddings.position_ids") == 0 || strncmp(s, "cls.", 4) == 0 ||
            strncmp(s, "lm_head.", 8) == 0 ||
            ((m->hp.has & SL_HAS_CLASSIFIER) == 0 && strncmp(s, "pooler.", 7) == 0));
}

/* Of a larger model: what reads images and sounds. */
static bool is_other_part(const struct sl_model *m, const char *name)
{
    static const char *const parts[] = {
        "vision_tower.", "vision_model.",   "multi_modal_projector.",
        "audio_tower.",  "embed_vision.",   "embed_audio.",
        "visual.",       "audio_encoder.",  "speech_embeddings.",
        "mm_projector.", "patch_merge_mlp."};
    const char *s = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    const bool larger = m->name->hf_config != NULL || m->name->other_parts;
    for (size_t i = 0; i < SL_COUNT(parts) && larger; i++)
        if (strncmp(s, parts[i], strlen(parts[i])) == 0)
            return true;
    return false;
}

/* Checkpoints may hold keys and values of layers that read another's, and other tensors of layers
 * without a use for them. */
static size_t n_of_shared(const struct sl_model *m)
{
    size_t n = 0;
    for (int32_t i = 0; i < m->desc->n_weights; i++) {
        const struct sl_weight_desc *w = &m->desc->weights[i];
        const char *pattern = sl_bind_pattern(w, m->hp.from_gguf, false);
        for (int32_t l = 0; l < m->hp.n_layers && pattern != NULL; l++) {
            char name[SL_MAX_TENSOR_NAME];
            const bool unused =
                (w->when & (SL_HAS_K | SL_HAS_V) & ~m->layers[l].has) != 0 ||
                (w->slot < SL_SLOT_FIRST_GLOBAL && sl_weight_is_absent(&m->hp, &m->layers[l], w));
            if (unused && bind_find(m, pattern, l, 0, name) != NULL)
                n++;
        }
    }
    return n;
}

/* Maps of tokens, which are read apart, and what a drafter was trained with. */
static bool is_draft_extra(const struct sl_model *m, const char *name)
{
    return m->target != NULL && (strcmp(name, "d2t") == 0 || strcmp(name, "t2d") == 0 ||
                                 strncmp(name, "verifier_", 9) == 0);
}

/* Of a layer behind the last one. */
static bool is_behind(const struct sl_model *m, const char *name)
{
    const char *at = strncmp(name, "blk.", 4) == 0 ? name + 4 : strstr(name, "layers.");
    const char *s = name + sl_bind_optional_prefix(name);
    if (strncmp(s, "mtp.", 4) == 0 || strncmp(s, "mtp_layers.", 11) == 0)
        return true; /* as Qwen calls them and MiMo, whose configs may not count them */
    if (m->hp.n_nextn == 0 || at == NULL)
        return false;
    at += *at == 'l' ? strlen("layers.") : 0;
    int32_t layer = 0;
    for (; *at >= '0' && *at <= '9' && layer <= SL_MAX_LAYERS; at++)
        layer = 10 * layer + (*at - '0');
    return layer >= m->hp.n_layers;
}

/* Tensors nothing reads are no error (old checkpoints carry rotary tables), but say so: a tensor
 * with a meaning this family does not know would change the model. */
static void report_unused(const struct sl_model *m, size_t n_bound)
{
    size_t n = sl_ckpt_n_tensors(m->ckpt), n_known = n_of_shared(m);
    for (size_t i = 0; i < n; i++) {
        const char *name = sl_ckpt_tensor_at(m->ckpt, i)->name;
        if (strstr(name, "rotary_emb.inv_freq") != NULL || sl_fp8_is_extra(name) ||
            is_encoder_extra(m, name) || is_other_part(m, name) || is_behind(m, name) ||
            sl_dense_is_tensor(m, name) || sl_hashed_is_tensor(m, name) ||
            is_draft_extra(m, name) || sl_clusters_is_tensor(m, name) ||
            ((m->hp.has & SL_HAS_HEAD) == 0 && strcmp(name, "lm_head.weight") == 0))
            n_known++;
    }
    if (n > n_bound + n_known)
        sl_log(SL_LOG_WARN, "%s: %zu of %zu tensors are not used by the %s architecture",
               sl_ckpt_path(m->ckpt), n - n_bound - n_known, n, m->name->id);
}

int sl_bind_tensors(struct sl_model *m, struct sl_error *err)
{
    m->wrap = wrap_of(m);
    size_t n_bound = 0;
    for (int32_t i = 0; i < m->desc->n_weights; i++) {
        const struct sl_weight_desc *w = &m->desc->weights[i];
        int32_t n = w->slot >= SL_SLOT_FIRST_GLOBAL ? 1 : m->hp.n_layers;
        for (int32_t l = 0; l < n; l++) {
            int rc = bind_one(m, w, l, err);
            if (rc != 0)
                return rc;
            n_bound += n_tensors_of(m, w, l);
        }
    }
    if (m->target == NULL || m->target->ckpt != m->ckpt) /* else most of it is the target's */
        report_unused(m, n_bound);
    return 0;
}
