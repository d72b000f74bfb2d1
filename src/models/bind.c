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
    for (const char *at = pattern; n < SL_MAX_TENSOR_NAME - 1 && *at != '\0'; at++) {
        if (*at == '*' || *at == '#')
            n += (size_t)snprintf(out + n, SL_MAX_TENSOR_NAME - n, "%d", *at == '*' ? layer : mat);
        else
            out[n++] = *at;
    }
    out[SL_MIN(n, (size_t)SL_MAX_TENSOR_NAME - 1)] = '\0';
}

static const char *pattern_of(const struct sl_weight_desc *w, enum sl_ckpt_kind kind)
{
    return kind == SL_CKPT_GGUF ? w->gguf : w->hf;
}

size_t sl_bind_optional_prefix(const char *name)
{
    static const char *const prefixes[] = {"model.", "bert.", "roberta."};
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

/* name is set to the full spelling, or to the short one when the file uses that. */
static const struct sl_ckpt_tensor *find(const struct sl_model *m, const char *pattern,
                                         int32_t layer, int32_t mat, char *name)
{
    const struct sl_ckpt *c = m->ckpt;
    sl_bind_name(pattern, layer, mat, name);
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

unsigned sl_bind_gguf_has(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc)
{
    unsigned has = 0;
    char name[SL_MAX_TENSOR_NAME];
    for (int32_t i = 0; i < desc->n_weights; i++) {
        const struct sl_weight_desc *w = &desc->weights[i];
        if (w->when == 0 || w->gguf == NULL)
            continue;
        sl_bind_name(w->gguf, 0, 0, name);
        if (sl_ckpt_find(ckpt, name) != NULL || sl_ckpt_unsupported(ckpt, name) != NULL)
            has |= w->when;
    }
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

static int check_shape(const struct sl_param *p, const struct sl_ckpt_tensor *t,
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

static int check_format(const struct sl_weight_desc *w, const struct sl_ckpt_tensor *t,
                        struct sl_error *err)
{
    const struct sl_dtype_info *info = sl_dtype_info(t->dtype);
    if (w->cols == SL_DIM_NONE) {
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
    if (t->dims[1] % info->block_elems != 0)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" is %s with rows of %lld values, not a multiple of %u",
                       t->name, info->name, (long long)t->dims[1], info->block_elems);
    return 0;
}

static int missing(const struct sl_model *m, const struct sl_weight_desc *w, const char *name,
                   struct sl_error *err)
{
    const char *format = sl_ckpt_unsupported(m->ckpt, name);
    if (format != NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "tensor \"%s\" is %s, a format that is not supported",
                       name, format);
    if (w->slot == SL_SLOT_HEAD)
        return sl_fail(err, SL_EFORMAT,
                       "tensor \"%s\" is missing, and config.json does not set "
                       "tie_word_embeddings",
                       name);
    return sl_fail(err, SL_EFORMAT, "tensor \"%s\" is missing", name);
}

/* p becomes t, which is as its place wants it. */
static int take(const struct sl_model *m, struct sl_param *p, const struct sl_ckpt_tensor *t,
                struct sl_error *err)
{
    int rc = check_shape(p, t, err);
    if (rc == 0)
        rc = check_format(p->desc, t, err);
    if (rc != 0)
        return rc;
    p->src = t;
    return sl_fp8_bind(m, p, err);
}

/* t holds a whole stack: each matrix is a slice of it. */
static int take_slices(const struct sl_model *m, struct sl_param *p, int32_t n,
                       const struct sl_ckpt_tensor *t, struct sl_error *err)
{
    const int64_t want[] = {n, p->n_rows, p->n_cols};
    char have_s[96], want_s[96];
    if (t->n_dims != 3 || memcmp(t->dims, want, sizeof want) != 0) {
        sl_bind_shape(t->n_dims, t->dims, have_s, sizeof have_s);
        sl_bind_shape(3, want, want_s, sizeof want_s);
        return sl_fail(err, SL_EFORMAT, "tensor \"%s\" has shape [%s], expected [%s]", t->name,
                       have_s, want_s);
    }
    int rc = 0;
    for (int32_t i = 0; i < n && rc == 0; i++) {
        p[i].slice = *t;
        p[i].slice.n_dims = 2;
        p[i].slice.dims[0] = p->n_rows;
        p[i].slice.dims[1] = p->n_cols;
        p[i].slice.dims[2] = 1;
        p[i].slice.n_bytes = t->n_bytes / (uint64_t)n; /* rows are whole blocks, as take checks */
        p[i].slice.data = t->data + (size_t)i * (size_t)p[i].slice.n_bytes;
        rc = take(m, &p[i], &p[i].slice, err);
    }
    return rc;
}

static int bind_one(struct sl_model *m, const struct sl_weight_desc *w, int32_t layer,
                    struct sl_error *err)
{
    char name[SL_MAX_TENSOR_NAME];
    const char *pattern = pattern_of(w, sl_ckpt_kind(m->ckpt));
    unsigned has = w->slot >= SL_SLOT_FIRST_GLOBAL ? m->hp.has : m->layers[layer].has;
    if (pattern == NULL || (w->when & ~has) != 0)
        return 0;
    struct sl_param *p = sl_param(m, layer, w->slot);
    const int32_t n = sl_params_n(m, w, layer);
    const bool whole = w->mats != SL_DIM_NONE && strchr(pattern, '#') == NULL;
    for (int32_t i = 0; i < n; i++) {
        p[i].desc = w;
        p[i].layer = &m->layers[layer];
        p[i].n_rows = sl_layer_dim(&m->hp, p->layer, w->rows);
        p[i].n_cols = sl_layer_dim(&m->hp, p->layer, w->cols);
    }
    for (int32_t i = 0, rc; i < n; i++) {
        const struct sl_ckpt_tensor *t = find(m, pattern, layer, i, name);
        if (t != NULL && whole)
            return take_slices(m, p, n, t, err);
        if (t != NULL)
            rc = take(m, &p[i], t, err);
        else if ((rc = sl_int4_bind(m, name, &p[i], err)) == 0)
            rc = missing(m, w, name, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Tensors of the file that a slot of a layer has. */
static size_t n_tensors_of(const struct sl_model *m, const struct sl_weight_desc *w, int32_t layer)
{
    const struct sl_param *p = sl_param(m, layer, w->slot);
    size_t n = 0;
    if (p->src == &p->slice)
        return 1;
    for (int32_t i = 0; i < sl_params_n(m, w, layer); i++) {
        n += p[i].int4 != NULL ? sl_int4_n_tensors(&p[i]) : p[i].src != NULL;
        n += p[i].scale != NULL;
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

/* Of a larger model: what reads images. */
static bool is_other_part(const struct sl_model *m, const char *name)
{
    const char *s = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    return m->name->hf_config != NULL &&
           (strncmp(s, "vision_tower.", 13) == 0 || strncmp(s, "multi_modal_projector.", 22) == 0);
}

/* Tensors nothing reads are no error (old checkpoints carry rotary tables), but say so: a tensor
 * with a meaning this family does not know would change the model. */
static void report_unused(const struct sl_model *m, size_t n_bound)
{
    size_t n = sl_ckpt_n_tensors(m->ckpt), n_known = 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = sl_ckpt_tensor_at(m->ckpt, i)->name;
        if (strstr(name, "rotary_emb.inv_freq") != NULL || sl_fp8_is_extra(name) ||
            is_encoder_extra(m, name) || is_other_part(m, name) ||
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
    report_unused(m, n_bound);
    return 0;
}
