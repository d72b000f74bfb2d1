/* SPDX-License-Identifier: MIT
 * Opening a model: recognise the family, read its hyper-parameters, bind its tensors, plan its
 * layers, and gather the facts the layers above ask for.
 */
#include "base/check.h"
#include "models/internal.h"
#include "models/kv_places.h"

#include <stdio.h>
#include <string.h>

static int add_eos(struct sl_model_facts *f, const char *what, int64_t id, struct sl_error *err)
{
    if (id < 0 || id >= f->n_vocab)
        return 0; /* a token that cannot be sampled ends nothing */
    for (int32_t i = 0; i < f->n_eos; i++) {
        if (f->eos[i] == id)
            return 0;
    }
    if (f->n_eos == (int32_t)SL_COUNT(f->eos))
        return sl_fail(err, SL_ELIMIT, "%s: more than %zu ids that end a sequence", what,
                       SL_COUNT(f->eos));
    f->eos[f->n_eos++] = (int32_t)id;
    return 0;
}

static int eos_of_json(struct sl_model_facts *f, const char *file, const json_t *obj,
                       struct sl_error *err)
{
    const json_t *v = json_object_get(obj, "eos_token_id");
    char what[64];
    snprintf(what, sizeof what, "%s: eos_token_id", file);
    if (v == NULL || json_is_null(v))
        return 0;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id))
            return sl_fail(err, SL_EFORMAT, "%s must be an integer or a list of integers", what);
        int rc = add_eos(f, what, json_integer_value(id), err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int ids_of_gguf(struct sl_model_facts *f, const struct sl_gguf *g, struct sl_error *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id;
    int rc;
    for (size_t i = 0; i < SL_COUNT(keys); i++) {
        if ((rc = sl_gguf_i64(g, keys[i], &id, err)) < 0)
            return rc;
        if (rc == 1 && (rc = add_eos(f, keys[i], id, err)) != 0)
            return rc;
    }
    if ((rc = sl_gguf_i64(g, "tokenizer.ggml.bos_token_id", &id, err)) < 0)
        return rc;
    if (rc == 1 && id >= 0 && id < f->n_vocab)
        f->bos = (int32_t)id;
    return 0;
}

static int read_ids(struct sl_model *m, struct sl_error *err)
{
    struct sl_model_facts *f = &m->facts;
    int rc;
    if (sl_ckpt_kind(m->ckpt) == SL_CKPT_GGUF)
        return ids_of_gguf(f, sl_ckpt_gguf(m->ckpt), err);
    const json_t *config = sl_ckpt_config(m->ckpt);
    const json_t *bos = json_object_get(config, "bos_token_id");
    if (json_is_integer(bos) && json_integer_value(bos) >= 0 &&
        json_integer_value(bos) < f->n_vocab)
        f->bos = (int32_t)json_integer_value(bos);
    /* generation_config.json first: where both speak, it is the list that is kept up to date */
    rc = eos_of_json(f, "generation_config.json", sl_ckpt_generation_config(m->ckpt), err);
    if (rc == 0)
        rc = eos_of_json(f, "config.json", config, err);
    if (rc != 0 || m->name->hf_config == NULL)
        return rc;
    return eos_of_json(f, "config.json", json_object_get(config, m->name->hf_config), err);
}

void sl_model_count_params(struct sl_model *m)
{
    uint64_t per_dtype[SL_DTYPE_COUNT] = {0};
    int best = 0;
    for (size_t i = 0; i < m->n_params; i++) {
        const struct sl_ckpt_tensor *t = m->params[i].src;
        if (t == NULL)
            continue;
        uint64_t elems = 1;
        for (int32_t d = 0; d < t->n_dims; d++)
            elems *= (uint64_t)t->dims[d];
        per_dtype[t->dtype] += elems;
        m->facts.n_params += elems;
        m->facts.weight_bytes += t->n_bytes;
        m->facts.weight_bytes += sl_fp8_scale_bytes_of_file(&m->params[i]);
    }
    for (int d = 1; d < SL_DTYPE_COUNT; d++) {
        if (per_dtype[d] > per_dtype[best])
            best = d;
    }
    m->facts.weight_dtype = sl_dtype_info((enum sl_dtype)best)->name;
}

static int model_fill_facts(struct sl_model *m, struct sl_error *err)
{
    const struct sl_hparams *hp = &m->hp;
    m->facts = (struct sl_model_facts){
        .family = m->name->id,
        .n_layers = hp->n_layers,
        .hidden = hp->hidden,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .intermediate = hp->intermediate,
        .n_vocab = hp->n_vocab,
        .context = hp->context - sl_first_place(m->desc, hp),
        .n_ranks = 1,
        .kv_ranks = 1,
        .n_stages = 1,
        .n_out = hp->n_vocab,
        .n_row = hp->n_vocab,
        .both_ways = m->layers[0].whole,
        .bos = -1,
    };
    sl_model_count_params(m);
    return read_ids(m, err);
}

/* ---------------------------------------------------------------- what it does */

static bool model_generates(const struct sl_model *m)
{
    return !m->desc->encoder && !m->name->no_head && (m->hp.has & SL_HAS_CLASSIFIER) == 0;
}

static int choice_of(const char *flag, const char *value, const char *const *names, int n, int *out,
                     struct sl_error *err)
{
    char all[64] = "";
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < n; i++) {
        if (value == NULL || strcmp(value, names[i]) == 0) {
            *out = i;
            return 0;
        }
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", i > 0 ? ", " : "", names[i]);
        SL_ASSERT(at < sizeof all);
    }
    return sl_fail(err, SL_EINVAL, "%s: '%.20s' is not one of: %s", flag, value, all);
}

/* The task of a model that its files leave open, or that the user asks for. */
static int choose_task(const struct sl_model *m, const char *runner, const char *convert,
                       bool has_pooling, const int32_t *yes_no, enum sl_model_task *out,
                       struct sl_error *err)
{
    static const char *const runners[] = {"auto", "generate", "pooling"};
    static const char *const converts[] = {"auto", "none", "embed", "classify"};
    int r, c;
    bool classifier = (m->hp.has & SL_HAS_CLASSIFIER) != 0;
    int rc = choice_of("runner", runner, runners, SL_COUNT(runners), &r, err);
    if (rc == 0)
        rc = choice_of("convert", convert, converts, SL_COUNT(converts), &c, err);
    if (rc != 0)
        return rc;
    if (r == 1 && !model_generates(m))
        return sl_fail(err, SL_EINVAL, "runner: %s is not a generative model", m->name->id);
    if (r == 1 && c >= 2)
        return sl_fail(err, SL_EINVAL, "convert: %s needs runner pooling", converts[c]);
    if (c == 3 && !classifier && yes_no == NULL)
        return sl_fail(err, SL_EINVAL,
                       "convert: this model has no classifier; classify needs two tokens whose "
                       "logits make a score (--classifier-from-token no,yes)");
    if (m->pool.rank && !classifier && yes_no == NULL && c != 2) /* its vectors mean nothing */
        return sl_fail(err, SL_EUNSUPPORTED,
                       "GGUF: %s.pooling_type 4 (rank) without a classifier that this architecture "
                       "knows: name two tokens whose logits make a score (--classifier-from-token "
                       "no,yes), or --runner generate",
                       m->name->gguf_architecture);
    if (classifier || (yes_no != NULL && r != 1))
        *out = c == 2 ? SL_TASK_EMBED : SL_TASK_SCORE;
    else if (c == 2 || r == 2 || !model_generates(m))
        *out = SL_TASK_EMBED;
    else
        *out = has_pooling && r == 0 && c == 0 ? SL_TASK_EMBED : SL_TASK_GENERATE;
    return 0;
}

/* Of a model that gives vectors, what they are of and what is behind the pooling. */
static int choose_vectors(struct sl_model *m, bool found, struct sl_error *err)
{
    struct sl_pooling *p = &m->pool;
    if (!found) {
        p->kind = m->facts.both_ways ? SL_POOL_MEAN : SL_POOL_LAST;
        p->normalize = true;
        p->per_token = m->name->per_token;
    }
    p->task = p->per_token ? SL_TASK_TOKEN_EMBED : SL_TASK_EMBED;
    return sl_dense_bind(m, err);
}

int sl_model_set_task(struct sl_model *m, const char *runner, const char *convert,
                      const int32_t *yes_no, struct sl_error *err)
{
    struct sl_model_facts *f = &m->facts;
    bool found = false, encoder = m->desc->encoder;
    int rc = 0;
    SL_ASSERT(m->be == NULL);
    m->pool = (struct sl_pooling){.task = SL_TASK_GENERATE};
    if (runner == NULL || strcmp(runner, "generate") != 0)
        rc = sl_pooling_read(m->ckpt, m->name->gguf_architecture, m->hp.hidden, &m->pool, &found,
                             err);
    if (rc == 0)
        rc = choose_task(m, runner, convert, found, yes_no, &m->pool.task, err);
    sl_dense_unbind(m);
    if (rc == 0 && m->pool.task == SL_TASK_EMBED)
        rc = choose_vectors(m, found, err);
    if (rc != 0)
        return rc;
    if (m->pool.task == SL_TASK_SCORE) {
        m->pool.kind = encoder ? SL_POOL_CLS : SL_POOL_LAST;
        m->pool.normalize = false;
        m->yes_no = (m->hp.has & SL_HAS_CLASSIFIER) == 0;
        for (int i = 0; m->yes_no && i < 2; i++)
            if (yes_no[i] < 0 || yes_no[i] >= m->hp.n_vocab)
                return sl_fail(err, SL_EINVAL,
                               "classifier_from_token: token %d of the tokenizer is none of the "
                               "model's %d",
                               yes_no[i], m->hp.n_vocab);
        if (m->yes_no)
            memcpy(m->yes_no_ids, yes_no, sizeof m->yes_no_ids);
        rc = sl_pooling_read_act(m->ckpt, m->yes_no ? 1 : m->hp.n_labels, &m->pool.act, err);
    }
    f->task = m->pool.task;
    f->pool = m->pool.kind;
    f->normalize = m->pool.normalize;
    f->max_input = m->pool.max_input;
    f->whole = f->both_ways || f->task == SL_TASK_TOKEN_EMBED ||
               (f->task != SL_TASK_GENERATE && f->pool != SL_POOL_LAST);
    f->pairs = encoder && f->task == SL_TASK_SCORE;
    f->n_out = f->task == SL_TASK_GENERATE ? m->hp.n_vocab
               : f->task != SL_TASK_SCORE  ? sl_dense_width(m)
               : m->yes_no                 ? 1
                                           : m->hp.n_labels;
    f->n_row = f->task == SL_TASK_SCORE && m->yes_no ? 2 : f->n_out;
    return rc;
}

int sl_model_open(const struct sl_ckpt *ckpt, struct sl_model **out, struct sl_error *err)
{
    struct sl_model *m = sl_calloc(1, sizeof *m);
    int rc;
    *out = NULL;
    if (m == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory opening a model");
    m->ckpt = ckpt;
    m->n_ranks = m->row_ranks = m->kv_ranks = m->n_stages = 1;
    if ((rc = sl_registry_match(ckpt, &m->desc, &m->name, err)) != 0 ||
        (rc = sl_hparams_read(ckpt, m->desc, m->name, &m->hp, err)) != 0)
        goto fail;
    m->hf_layers = m->hp.from_gguf ? NULL : m->desc->hf_layers;
    m->cuts[1] = m->hp.n_layers;
    m->layers = sl_calloc((size_t)m->hp.n_layers, sizeof *m->layers);
    if (m->layers == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory opening a model of %d layers", m->hp.n_layers);
        goto fail;
    }
    if ((rc = sl_plan(m->desc, m->name, &m->hp, m->layers, err)) != 0 ||
        (rc = sl_params_create(m, err)) != 0 || (rc = sl_hashed_bind(m, err)) != 0 ||
        (rc = sl_bind_tensors(m, err)) != 0 || (rc = model_fill_facts(m, err)) != 0)
        goto fail;
    sl_model_set_context(m, m->facts.context);
    if (!model_generates(m) && (rc = sl_model_set_task(m, NULL, NULL, NULL, err)) != 0)
        goto fail; /* it has one from the start, what may be asked of it is another thing */
    *out = m;
    return 0;
fail:
    sl_model_close(m);
    return rc;
}

void sl_model_close(struct sl_model *m)
{
    if (m == NULL)
        return;
    sl_model_unload(m);
    sl_dense_unbind(m);
    sl_params_destroy(m);
    sl_places_destroy(m);
    sl_draft_close(m);
    sl_free(m->layers);
    sl_free(m->hashed);
    sl_free(m);
}

const struct sl_model_facts *sl_model_facts(const struct sl_model *m)
{
    return &m->facts;
}

int32_t sl_model_heads(const struct sl_model *m, struct sl_heads *kinds, int32_t n_max)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_layer_desc *l = &m->layers[i];
        if (!sl_has_attention(l))
            continue;
        const bool latent = l->mixer == SL_MIX_MLA || l->mixer == SL_MIX_ROWS;
        const struct sl_heads h = {l->n_heads / m->row_ranks,
                                   sl_rank_kv_heads(m, l),
                                   l->head_dim,
                                   l->v_dim,
                                   l->mixer == SL_MIX_ROWS ? SL_HEADS_ROWS : latent,
                                   sl_top_pages_layer(m, i) ? m->hp.context
                                                            : l->index.block * l->index.top_k};
        int32_t k = 0;
        while (k < SL_MIN(n, n_max) && memcmp(&kinds[k], &h, sizeof h) != 0)
            k++;
        if (k < SL_MIN(n, n_max))
            continue;
        if (n < n_max)
            kinds[n] = h;
        n++;
    }
    return n;
}

/* How many positions keep their pages, 0: all. A window as long as the context is none; nor is it
 * one where a text is done in one step. */
static int32_t window_of(const struct sl_model *m, int32_t layer)
{
    const struct sl_layer_desc *l = &m->layers[layer];
    return l->window < m->hp.context && !l->whole ? l->window : 0;
}

/* Layers that see everything first: theirs is the first group. States last. */
static int place_layers(const struct sl_model *m, const struct sl_backend *be,
                        struct sl_kv_layout *l, struct sl_error *err)
{
    int rc = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < m->hp.n_layers && rc == 0; i++) {
            const struct sl_layer_desc *d = &m->layers[i];
            const bool has_keys = sl_has_attention(d) && d->kv_source == i;
            const bool rows = d->mixer == SL_MIX_ROWS;
            const int32_t row_dim = rows ? d->head_dim : 0; /* else only an index has rows */
            /* A layout is of all ranks: each, or each group of those that divide positions, keeps
             * all of a token's row, and where experts alone are divided all key heads. */
            const bool latent = d->mixer == SL_MIX_MLA || rows;
            const int32_t n_times = m->row_ranks == 1 ? m->n_ranks : latent ? sl_rank_groups(m) : 1;
            if (pass == 0 && d->rows.ratio > 0)
                rc = sl_kv_layout_add_rows(l, i, d->rows.ratio, row_dim, d->index.dim, err);
            if (rc == 0 && has_keys && (window_of(m, i) > 0) == (pass > 0))
                rc = sl_kv_layout_add(l, i, window_of(m, i), d->n_kv_heads * n_times, d->head_dim,
                                      latent ? 0 : d->v_dim, err);
            if (has_keys && (window_of(m, i) > 0) == (pass > 0) && rc == 0 &&
                d->index.n_heads > 0 && d->rows.ratio == 0)
                rc = sl_kv_layout_add_index(l, i, d->index.dim, err);
            if (has_keys && (window_of(m, i) > 0) == (pass > 0) && rc == 0)
                rc = sl_top_pages_place(m, l, i, err);
            if (has_keys && rc == 0 && d->chunks && window_of(m, i) > 0)
                l->groups[l->places[i].group].chunks = true;
        }
    for (int32_t i = 0; i < m->hp.n_layers && rc == 0; i++)
        if (sl_has_state(&m->layers[i]))
            rc = sl_kv_layout_add_state(l, i, sl_mixer_state_bytes(m, be, &m->layers[i]), err);
    return rc;
}

int sl_model_kv_layout(const struct sl_model *m, const struct sl_backend *be, const char *kv_dtype,
                       enum sl_dtype auto_dtype, int block_size, struct sl_kv_layout *out,
                       struct sl_error *err)
{
    return sl_model_kv_layout_but(m, be, kv_dtype, NULL, auto_dtype, block_size, out, err);
}

int sl_model_kv_layout_but(const struct sl_model *m, const struct sl_backend *be,
                           const char *kv_dtype, const char *skip_layers, enum sl_dtype auto_dtype,
                           int block_size, struct sl_kv_layout *out, struct sl_error *err)
{
    enum sl_dtype dtype;
    int rc = sl_kv_format_of(kv_dtype, auto_dtype, &dtype, err);
    if (rc != 0)
        return rc;
    const int32_t unit = m->kv_ranks > 1 ? SL_KV_STRETCH * m->kv_ranks : SL_KV_TILE;
    if (block_size < 1 || block_size > SL_MAX_PAGE_TOKENS || block_size % unit != 0)
        return sl_fail(err, SL_EINVAL, "block-size is %d, must be a multiple of %d up to %d",
                       block_size, unit, SL_MAX_PAGE_TOKENS);
    if ((dtype == SL_DTYPE_Q8_0 || dtype == SL_DTYPE_FP8_E4M3) &&
        sl_layers_max(&m->hp, m->layers, SL_DIM_O_GROUPS) > 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "kv-cache-dtype: rows of %s are kept as f32, f16 or bf16, not yet as %s",
                       m->name->id, sl_dtype_info(dtype)->name);
    *out =
        (struct sl_kv_layout){.block_size = block_size, .dtype = dtype, .exempt_dtype = auto_dtype};
    rc = sl_kv_exempt_layers(m, skip_layers, out, err);
    if (rc == 0)
        rc = place_layers(m, be, out, err);
    if (out->n_groups == 1 && out->groups[0].state)
        out->dtype = SL_DTYPE_F32; /* states are, and there are no keys */
    return rc;
}
