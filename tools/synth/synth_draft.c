/* SPDX-License-Identifier: MIT
 * A random drafter of a model, EAGLE-3 or DFlash: to measure what drafts cost where no trained one
 * is at hand.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"
#include "synth/synth_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define N_TAPS 3 /* of EAGLE-3 */

struct matrix {
    char name[64];
    int64_t n_rows, n_cols; /* n_cols 0: a norm */
};

enum { EACH = 11, N_MATRICES = EACH * SL_SYNTH_DRAFT_LAYERS + 5 };

struct matrices {
    struct matrix at[N_MATRICES];
    int32_t n;
};

static void add(struct matrices *m, const char *layer, const char *name, int64_t n_rows,
                int64_t n_cols)
{
    SL_ASSERT(m->n < N_MATRICES);
    struct matrix *out = &m->at[m->n++];
    snprintf(out->name, sizeof out->name, "%s%s", layer, name);
    out->n_rows = n_rows;
    out->n_cols = n_cols;
}

/* width: of what q, k and v are made of. */
static void add_layer(struct matrices *m, const struct sl_hparams *hp, const char *layer,
                      int64_t width)
{
    const int64_t h = hp->hidden, i = hp->intermediate;
    const int64_t q = (int64_t)hp->n_heads * hp->head_dim,
                  k = (int64_t)hp->n_kv_heads * hp->head_dim;
    add(m, layer, "input_layernorm.weight", h, 0);
    add(m, layer, "mlp.down_proj.weight", h, i);
    add(m, layer, "mlp.gate_proj.weight", i, h);
    add(m, layer, "mlp.up_proj.weight", i, h);
    add(m, layer, "post_attention_layernorm.weight", h, 0);
    add(m, layer, "self_attn.k_proj.weight", k, width);
    add(m, layer, "self_attn.o_proj.weight", h, q);
    add(m, layer, "self_attn.q_proj.weight", q, width);
    add(m, layer, "self_attn.v_proj.weight", k, width);
}

static void list_eagle3(const struct sl_hparams *hp, int32_t n_vocab, struct matrices *m)
{
    const int64_t h = hp->hidden;
    add(m, "", "fc.weight", h, N_TAPS * h);
    add(m, "", "lm_head.weight", n_vocab, h);
    add(m, "", "midlayer.hidden_norm.weight", h, 0);
    add_layer(m, hp, "midlayer.", 2 * h);
    add(m, "", "norm.weight", h, 0);
}

/* Embedding and head are the model's. */
static void list_dflash(const struct sl_hparams *hp, int32_t n_layers, struct matrices *m)
{
    const int64_t h = hp->hidden;
    add(m, "", "fc.weight", h, n_layers * h);
    add(m, "", "hidden_norm.weight", h, 0);
    for (int32_t i = 0; i < n_layers; i++) {
        char layer[32];
        snprintf(layer, sizeof layer, "layers.%d.", i);
        add_layer(m, hp, layer, h);
        add(m, layer, "self_attn.k_norm.weight", hp->head_dim, 0);
        add(m, layer, "self_attn.q_norm.weight", hp->head_dim, 0);
    }
    add(m, "", "norm.weight", h, 0);
}

static int write_norm(const struct sl_synth_draft *spec, struct sl_st_writer *w, int64_t n,
                      struct sl_error *err)
{
    const struct sl_dtype_info *info = sl_dtype_info(spec->dtype);
    uint8_t one[4];
    int rc = 0;
    info->from_f32(&(float){1.0f}, one, 1);
    for (int64_t i = 0; i < n && rc == 0; i++)
        rc = sl_st_writer_write_tensor_data(w, one, info->block_bytes, err);
    return rc;
}

/* Draft i is token i * step: d2t has the difference. */
static int write_ids(const struct sl_synth_draft *spec, int32_t n_vocab, struct sl_st_writer *w,
                     struct sl_error *err)
{
    const int64_t step = n_vocab / spec->n_vocab;
    int rc = 0;
    for (int64_t i = 0; i < spec->n_vocab && rc == 0; i++)
        rc = sl_st_writer_write_tensor_data(w, &(int64_t){i * (step - 1)}, sizeof(int64_t), err);
    return rc;
}

/* Keys of both kinds that say the model's shape. */
static void put_shape(struct sl_buf *b, const struct sl_hparams *hp, int32_t n_layers)
{
    sl_buf_printf(b,
                  "  \"num_hidden_layers\": %d,\n  \"hidden_size\": %d,\n"
                  "  \"intermediate_size\": %d,\n  \"num_attention_heads\": %d,\n"
                  "  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n"
                  "  \"vocab_size\": %d,\n  \"max_position_embeddings\": %d,\n"
                  "  \"hidden_act\": \"silu\",\n  \"tie_word_embeddings\": false,\n"
                  "  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 500000.0,\n",
                  n_layers, hp->hidden, hp->intermediate, hp->n_heads, hp->n_kv_heads, hp->head_dim,
                  hp->n_vocab, hp->context);
}

static void put_eagle3(struct sl_buf *b, const struct sl_hparams *hp,
                       const struct sl_synth_draft *spec)
{
    sl_buf_printf(b, "{\n  \"architectures\": [\"LlamaForCausalLMEagle3\"],\n"
                     "  \"model_type\": \"llama\",\n");
    put_shape(b, hp, 1);
    sl_buf_printf(b,
                  "  \"draft_vocab_size\": %d,\n"
                  "  \"eagle_aux_hidden_state_layer_ids\": [%d, %d, %d]\n}\n",
                  spec->n_vocab, SL_MIN(2, hp->n_layers), hp->n_layers / 2,
                  SL_MAX(hp->n_layers - 3, 0));
}

/* Rows of as many layers as it has itself, evenly spread. */
static void put_dflash(struct sl_buf *b, const struct sl_hparams *hp,
                       const struct sl_synth_draft *spec)
{
    sl_buf_printf(b, "{\n  \"architectures\": [\"DFlashDraftModel\"],\n"
                     "  \"model_type\": \"qwen3\",\n");
    put_shape(b, hp, spec->n_layers);
    sl_buf_printf(b, "  \"block_size\": %d,\n  \"mask_token_id\": %d,\n  \"target_layer_ids\": [",
                  spec->block, hp->n_vocab - 1);
    for (int32_t i = 0; i < spec->n_layers; i++)
        sl_buf_printf(b, "%s%d", i > 0 ? ", " : "", (hp->n_layers - 1) * i / spec->n_layers);
    sl_buf_printf(b, "]\n}\n");
}

static int write_config(const struct sl_hparams *hp, const struct sl_synth_draft *spec,
                        const char *path, struct sl_error *err)
{
    struct sl_buf b = {0};
    if (spec->block > 0)
        put_dflash(&b, hp, spec);
    else
        put_eagle3(&b, hp, spec);
    int rc = sl_buf_ok(&b) ? sl_write_file(path, b.data, b.n_bytes, err)
                           : sl_fail(err, SL_ENOMEM, "out of memory for a configuration");
    sl_buf_deinit(&b);
    return rc;
}

static int write_tensors(const struct sl_hparams *hp, const struct sl_synth_draft *spec,
                         struct sl_st_writer *w, struct sl_error *err)
{
    struct matrices all = {0};
    const bool eagle3 = spec->block == 0;
    if (eagle3)
        list_eagle3(hp, spec->n_vocab, &all);
    else
        list_dflash(hp, spec->n_layers, &all);
    for (int i = 0; i < all.n; i++)
        sl_st_writer_add_tensor(w, all.at[i].name, spec->dtype, all.at[i].n_cols > 0 ? 2 : 1,
                                (int64_t[]){all.at[i].n_rows, all.at[i].n_cols});
    if (eagle3)
        sl_st_writer_add_raw(w, "d2t", "I64", sizeof(int64_t), 1, (int64_t[]){spec->n_vocab});
    int rc = sl_st_writer_begin_data(w, err);
    for (int i = 0; i < all.n && rc == 0; i++) {
        const struct matrix *m = &all.at[i];
        const uint64_t key = sl_hash64(m->name, strlen(m->name), spec->seed);
        rc = m->n_cols == 0 ? write_norm(spec, w, m->n_rows, err)
                            : sl_synth_write_even(w, spec->dtype, key, 1 / sqrtf((float)m->n_cols),
                                                  m->n_rows, m->n_cols, err);
    }
    return rc == 0 && eagle3 ? write_ids(spec, hp->n_vocab, w, err) : rc;
}

int sl_synth_draft_write(const struct sl_model *m, const struct sl_synth_draft *spec,
                         const char *path, struct sl_error *err)
{
    char file[4096];
    struct sl_st_writer *w;
    if (m->hp.intermediate < 1 ||
        (spec->block == 0 && (spec->n_vocab < 1 || spec->n_vocab > m->hp.n_vocab)))
        return sl_fail(err, SL_EINVAL, "a drafter of this model has 1 to %d tokens", m->hp.n_vocab);
    SL_ASSERT(spec->block == 0 || (spec->n_layers >= 1 && spec->n_layers <= SL_SYNTH_DRAFT_LAYERS));
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return sl_fail(err, SL_EIO, "%.150s: cannot make the folder: %s", path, strerror(errno));
    if (snprintf(file, sizeof file, "%s/config.json", path) >= (int)sizeof file - 16)
        return sl_fail(err, SL_EINVAL, "%.100s...: path is too long", path);
    int rc = write_config(&m->hp, spec, file, err);
    if (rc != 0)
        return rc;
    snprintf(file, sizeof file, "%.4000s/model.safetensors", path);
    rc = sl_st_writer_create(file, &w, err);
    if (rc != 0)
        return rc;
    sl_st_writer_add_metadata(w, "format", "pt");
    rc = write_tensors(&m->hp, spec, w, err);
    if (rc != 0) {
        sl_st_writer_destroy(w);
        return rc;
    }
    return sl_st_writer_finish(w, err);
}
