/* SPDX-License-Identifier: MIT
 * A random EAGLE-3 drafter of a model: to measure what drafts cost where no trained one is at hand.
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

#define N_TAPS 3

struct matrix {
    const char *name;
    int64_t n_rows, n_cols; /* n_cols 0: a norm */
};

enum { N_MATRICES = 13 };

static void list(const struct sl_hparams *hp, int32_t n_vocab, struct matrix out[N_MATRICES])
{
    const int64_t h = hp->hidden, i = hp->intermediate;
    const int64_t q = (int64_t)hp->n_heads * hp->head_dim,
                  k = (int64_t)hp->n_kv_heads * hp->head_dim;
    const struct matrix all[N_MATRICES] = {
        {"fc.weight", h, N_TAPS * h},
        {"lm_head.weight", n_vocab, h},
        {"midlayer.hidden_norm.weight", h, 0},
        {"midlayer.input_layernorm.weight", h, 0},
        {"midlayer.mlp.down_proj.weight", h, i},
        {"midlayer.mlp.gate_proj.weight", i, h},
        {"midlayer.mlp.up_proj.weight", i, h},
        {"midlayer.post_attention_layernorm.weight", h, 0},
        {"midlayer.self_attn.k_proj.weight", k, 2 * h},
        {"midlayer.self_attn.o_proj.weight", h, q},
        {"midlayer.self_attn.q_proj.weight", q, 2 * h},
        {"midlayer.self_attn.v_proj.weight", k, 2 * h},
        {"norm.weight", h, 0},
    };
    memcpy(out, all, sizeof all);
}

static int write_norm(const struct sl_synth_eagle3 *spec, struct sl_st_writer *w, int64_t n,
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
static int write_ids(const struct sl_synth_eagle3 *spec, int32_t n_vocab, struct sl_st_writer *w,
                     struct sl_error *err)
{
    const int64_t step = n_vocab / spec->n_vocab;
    int rc = 0;
    for (int64_t i = 0; i < spec->n_vocab && rc == 0; i++)
        rc = sl_st_writer_write_tensor_data(w, &(int64_t){i * (step - 1)}, sizeof(int64_t), err);
    return rc;
}

static int write_config(const struct sl_hparams *hp, const struct sl_synth_eagle3 *spec,
                        const char *path, struct sl_error *err)
{
    struct sl_buf b = {0};
    sl_buf_printf(&b,
                  "{\n  \"architectures\": [\"LlamaForCausalLMEagle3\"],\n"
                  "  \"model_type\": \"llama\",\n  \"num_hidden_layers\": 1,\n"
                  "  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
                  "  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n"
                  "  \"head_dim\": %d,\n  \"vocab_size\": %d,\n  \"draft_vocab_size\": %d,\n"
                  "  \"max_position_embeddings\": %d,\n  \"hidden_act\": \"silu\",\n"
                  "  \"tie_word_embeddings\": false,\n  \"rms_norm_eps\": 1e-05,\n"
                  "  \"rope_theta\": 500000.0,\n"
                  "  \"eagle_aux_hidden_state_layer_ids\": [%d, %d, %d]\n}\n",
                  hp->hidden, hp->intermediate, hp->n_heads, hp->n_kv_heads, hp->head_dim,
                  hp->n_vocab, spec->n_vocab, hp->context, SL_MIN(2, hp->n_layers),
                  hp->n_layers / 2, SL_MAX(hp->n_layers - 3, 0));
    int rc = sl_buf_ok(&b) ? sl_write_file(path, b.data, b.n_bytes, err)
                           : sl_fail(err, SL_ENOMEM, "out of memory for a configuration");
    sl_buf_deinit(&b);
    return rc;
}

static int write_tensors(const struct sl_hparams *hp, const struct sl_synth_eagle3 *spec,
                         struct sl_st_writer *w, struct sl_error *err)
{
    struct matrix all[N_MATRICES];
    list(hp, spec->n_vocab, all);
    for (int i = 0; i < N_MATRICES; i++)
        sl_st_writer_add_tensor(w, all[i].name, spec->dtype, all[i].n_cols > 0 ? 2 : 1,
                                (int64_t[]){all[i].n_rows, all[i].n_cols});
    sl_st_writer_add_raw(w, "d2t", "I64", sizeof(int64_t), 1, (int64_t[]){spec->n_vocab});
    int rc = sl_st_writer_begin_data(w, err);
    for (int i = 0; i < N_MATRICES && rc == 0; i++) {
        const struct matrix *m = &all[i];
        const uint64_t key = sl_hash64(m->name, strlen(m->name), spec->seed);
        rc = m->n_cols == 0 ? write_norm(spec, w, m->n_rows, err)
                            : sl_synth_write_even(w, spec->dtype, key, 1 / sqrtf((float)m->n_cols),
                                                  m->n_rows, m->n_cols, err);
    }
    return rc == 0 ? write_ids(spec, hp->n_vocab, w, err) : rc;
}

int sl_synth_eagle3_write(const struct sl_model *m, const struct sl_synth_eagle3 *spec,
                          const char *path, struct sl_error *err)
{
    char file[4096];
    struct sl_st_writer *w;
    if (spec->n_vocab < 1 || spec->n_vocab > m->hp.n_vocab || m->hp.intermediate < 1)
        return sl_fail(err, SL_EINVAL, "a drafter of this model has 1 to %d tokens", m->hp.n_vocab);
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
