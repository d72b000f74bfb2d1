/* SPDX-License-Identifier: MIT
 * The metadata of a random checkpoint: the family's table of hyper-parameters written back in both
 * spellings, RoPE, and a vocabulary of single bytes with a plain chat template.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/str.h"
#include "synth/synth_impl.h"

#include <stdio.h>
#include <string.h>

static const char *const scaling_names[] = {
    [SL_ROPE_PLAIN] = "default", [SL_ROPE_LINEAR] = "linear",
    [SL_ROPE_LLAMA3] = "llama3", [SL_ROPE_YARN] = "yarn",
    [SL_ROPE_LONG] = "longrope", [SL_ROPE_PROPORTIONAL] = "proportional",
};

static const char chat_template[] =
    "{%- for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ 'assistant:' }}{%- endif %}";

/* A list with an entry for each layer; without one, an index decides. */
static bool is_listed(const struct sl_hparam_desc *row, const uint8_t *list,
                      const struct sl_hparams *hp)
{
    for (int32_t i = 0; i < hp->n_layers && row->type == SL_HP_LAYER_INTS; i++)
        if (((const int32_t *)(const void *)list)[i] != 0)
            return true;
    if (row->type == SL_HP_LAYER_INTS)
        return false;
    if (row->type != SL_HP_LAYER_TYPES && row->type != SL_HP_LAYER_FLAGS &&
        row->type != SL_HP_LAYERS && row->type != SL_HP_LAYER_THETAS)
        return true;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        if (list[i] != SL_LAYER_BY_INDEX)
            return true;
    }
    return false;
}

/* ---------------------------------------------------------------- config.json */

/* key: the row's, or its end within an object. */
static void config_row(const struct sl_hparam_desc *row, const char *key,
                       const struct sl_hparams *hp, struct sl_buf *b)
{
    const uint8_t *at = (const uint8_t *)hp + row->offset;
    const bool integer = row->type == SL_HP_INT || row->type == SL_HP_SAME;
    int32_t i = integer ? *(const int32_t *)(const void *)at : 0;
    if (row->type == SL_HP_FLOAT && *(const double *)(const void *)at == 0)
        return;
    if (key == NULL || strchr(key, '.') != NULL || row->type == SL_HP_COUNT ||
        (integer && i == 0 && !row->required) ||
        (row->type == SL_HP_LABELS && *(const int32_t *)(const void *)at == 0) ||
        (row->type == SL_HP_LAYER_INTS && row->value != NULL) || !is_listed(row, at, hp))
        return; /* left out: the default, or another row, holds */
    sl_buf_printf(b, " \"%s\": ", key);
    switch (row->type) {
    case SL_HP_INT:
    case SL_HP_SAME:
    case SL_HP_COUNT: /* as long as the list of kinds is */
        sl_buf_printf(b, "%d", i / SL_MAX(row->times, 1));
        break;
    case SL_HP_FLOAT:
        sl_buf_json_double(b, *(const double *)(const void *)at);
        break;
    case SL_HP_ONLY:
        sl_buf_puts(b, row->def != 0 ? "true" : "false");
        break;
    case SL_HP_BOOL:
    case SL_HP_SWITCH:
        sl_buf_puts(b, *(const bool *)(const void *)at ? "true" : "false");
        break;
    case SL_HP_HAS:
    case SL_HP_HAS_NOT: {
        bool all = (hp->has & row->has) == row->has;
        sl_buf_puts(b, all == (row->type == SL_HP_HAS) ? "true" : "false");
        break;
    }
    case SL_HP_ACT: {
        const char *name = sl_act_hf_name(*(const enum sl_act *)(const void *)at);
        sl_buf_json_string(b, name, strlen(name));
        break;
    }
    case SL_HP_CHOICE:
        sl_buf_json_string(b, row->value, strlen(row->value));
        break;
    case SL_HP_EITHER: {
        const char *word = row->words[*(const bool *)(const void *)at];
        sl_buf_json_string(b, word, strlen(word));
        break;
    }
    case SL_HP_LABELS:
        for (int32_t l = 0; l < *(const int32_t *)(const void *)at; l++)
            sl_buf_printf(b, "%s\"%d\": \"LABEL_%d\"", l ? ", " : "{", l, l);
        sl_buf_putc(b, '}');
        break;
    case SL_HP_LAYER_TYPES:
        for (int32_t l = 0; l < hp->n_layers; l++)
            sl_buf_printf(b, "%s\"%s\"", l ? ", " : "[", sl_layer_word(row, at[l] == SL_LAYER_ON));
        sl_buf_putc(b, ']');
        break;
    case SL_HP_LAYER_KINDS:
        for (int32_t l = 0; l < hp->n_layers; l++)
            sl_buf_printf(b, "%s\"%s\"", l ? ", " : "[", row->words[at[l]]);
        sl_buf_putc(b, ']');
        break;
    case SL_HP_LAYER_FLAGS:
        for (int32_t l = 0; l < hp->n_layers; l++)
            sl_buf_printf(b, "%s%d", l ? ", " : "[", at[l] == SL_LAYER_ON);
        sl_buf_putc(b, ']');
        break;
    case SL_HP_LAYER_INTS:
        for (int32_t l = 0; l < hp->n_layers; l++)
            sl_buf_printf(b, "%s%d", l ? ", " : "[", ((const int32_t *)(const void *)at)[l]);
        sl_buf_putc(b, ']');
        break;
    case SL_HP_LAYER_FLOATS:
        for (int32_t l = 0; l < hp->n_layers; l++)
            sl_buf_printf(b, "%s%.17g", l ? ", " : "[", ((const double *)(const void *)at)[l]);
        sl_buf_putc(b, ']');
        break;
    case SL_HP_LAYERS:
        for (int32_t l = 0, n = 0; l < hp->n_layers; l++)
            if (at[l] == (row->def != 0 ? (uint8_t)row->def : 1))
                sl_buf_printf(b, "%s%d", n++ > 0 ? ", " : "[", l + row->from_one);
        sl_buf_putc(b, ']');
        break;
    case SL_HP_LAYER_THETAS:
        for (int32_t l = 0; l < hp->n_layers; l++) {
            sl_buf_puts(b, l ? ", " : "[");
            sl_buf_json_double(b, at[l] == SL_LAYER_ON ? hp->layer_theta : 0);
        }
        sl_buf_putc(b, ']');
        break;
    }
    sl_buf_puts(b, ",\n");
}

/* Length of the first name of a key that has more; 0: it has none, or is of a list, which is left
 * out. */
static size_t object_of(const char *key)
{
    const char *dot = key != NULL ? strchr(key, '.') : NULL;
    return dot != NULL && !(dot[1] >= '0' && dot[1] <= '9') ? (size_t)(dot - key) : 0;
}

/* What the row's key is behind the first n bytes of `of`'s; NULL: it begins in another way. */
static const char *key_behind(const struct sl_hparam_desc *row, const struct sl_hparam_desc *of,
                              size_t n)
{
    const char *key = row->hf[0];
    return key != NULL && (n == 0 || strncmp(key, of->hf[0], n) == 0) ? key + n : NULL;
}

/* The rows from `from` on whose keys begin with the first n bytes of that one's; those of an object
 * where the first of them stands. */
static void config_rows(const struct sl_model_desc *desc, const struct sl_hparams *hp, int32_t from,
                        size_t n, struct sl_buf *b)
{
    const struct sl_hparam_desc *rows = desc->hparams;
    for (int32_t i = from; i < desc->n_hparams; i++) {
        const char *key = key_behind(&rows[i], &rows[from], n);
        const size_t n_name = object_of(key);
        bool first = n_name > 0;
        if (key != NULL && n_name == 0)
            config_row(&rows[i], key, hp, b);
        for (int32_t k = from; k < i && first; k++)
            first = key_behind(&rows[k], &rows[i], n + n_name + 1) == NULL;
        if (!first)
            continue;
        sl_buf_printf(b, " \"%.*s\": {\n", (int)n_name, key);
        config_rows(desc, hp, i, n + n_name + 1, b);
        sl_buf_puts(b, "  \"\": null},\n");
    }
}

/* Of a family that may rotate a part of a head: how much of it. */
static void config_partial(const struct sl_rope_desc *desc, const struct sl_hparams *hp,
                           const struct sl_rope_params *p, struct sl_buf *b)
{
    const int32_t n_dims = p->n_dims != 0 ? p->n_dims : hp->head_dim;
    if (desc->partial == 0)
        return;
    sl_buf_puts(b, ", \"partial_rotary_factor\": ");
    sl_buf_json_double(b, (double)n_dims / hp->head_dim);
}

/* The members of a table's object after its type. */
static void config_rope_members(const struct sl_rope_params *p, const struct sl_hparams *hp,
                                struct sl_buf *b)
{
    const int32_t n = (p->n_dims != 0 ? p->n_dims : hp->head_dim) / 2;
    for (int k = 0; k < 2 && p->scaling == SL_ROPE_LONG; k++) {
        sl_buf_printf(b, ", \"%s_factor\": [", k == 0 ? "short" : "long");
        for (int32_t i = 0; i < n; i++) {
            sl_buf_puts(b, i > 0 ? ", " : "");
            sl_buf_json_double(b, (double)(k == 0 ? p->short_factors : p->long_factors)[i]);
        }
        sl_buf_putc(b, ']');
    }
    if (p->scaling != SL_ROPE_PLAIN && p->scaling != SL_ROPE_LONG)
        sl_buf_printf(b, ", \"factor\": %.17g", p->factor);
    if (p->scaling == SL_ROPE_PROPORTIONAL)
        sl_buf_printf(b, ", \"partial_rotary_factor\": %.17g", p->turning);
    if (p->scaling == SL_ROPE_LLAMA3)
        sl_buf_printf(b, ", \"low_freq_factor\": %.17g, \"high_freq_factor\": %.17g",
                      p->low_freq_factor, p->high_freq_factor);
    if (p->scaling >= SL_ROPE_LLAMA3)
        sl_buf_printf(b, ", \"original_max_position_embeddings\": %.0f", p->original_context);
    sl_buf_putc(b, '}');
}

static void config_old_rope(const struct sl_rope_desc *desc, const struct sl_hparams *hp,
                            const struct sl_rope_params *p, struct sl_buf *b)
{
    sl_buf_printf(b, " \"%s\": ", desc->hf_theta);
    sl_buf_json_double(b, p->theta);
    if (p == &hp->ropes[0]) /* one key for all tables */
        config_partial(desc, hp, p, b);
    if (p->scaling == SL_ROPE_PLAIN)
        return;
    sl_buf_printf(b, ",\n \"rope_scaling\": {\"type\": \"%s\"", scaling_names[p->scaling]);
    config_rope_members(p, hp, b);
}

/* Tables of one spelling whose values differ: lists with an entry for each layer. */
static void config_rope_lists(const struct sl_model_desc *desc, const struct sl_hparams *hp,
                              struct sl_buf *b)
{
    for (int what = 0; what < 2; what++) {
        sl_buf_printf(b, what == 0 ? " \"%s\": " : ",\n \"%s\": ",
                      what == 0 ? desc->ropes[0].hf_theta : desc->ropes[0].hf_partial);
        for (int32_t l = 0; l < hp->n_layers; l++) {
            const struct sl_rope_params *p = &hp->ropes[hp->layer_types[l] == SL_LAYER_ON];
            const int32_t n_dims = p->n_dims != 0 ? p->n_dims : hp->head_dim;
            sl_buf_puts(b, l > 0 ? ", " : "[");
            sl_buf_json_double(b, what == 0 ? p->theta : (double)n_dims / hp->head_dim);
        }
        sl_buf_putc(b, ']');
    }
}

static void config_ropes(const struct sl_synth *s, const struct sl_model_desc *desc,
                         struct sl_buf *b)
{
    for (int32_t i = 0; i < desc->n_ropes; i++) {
        const struct sl_rope_params *p = &s->hp.ropes[i];
        if (s->old_rope && strchr(desc->ropes[i].hf_theta, '.') == NULL) {
            if (i > 0 && strcmp(desc->ropes[i].hf_theta, desc->ropes[0].hf_theta) == 0)
                continue;
            sl_buf_puts(b, ",\n");
            if (desc->ropes[i].kind != NULL && desc->ropes[i].hf_partial != NULL) {
                config_rope_lists(desc, &s->hp, b);
                continue;
            }
            config_old_rope(&desc->ropes[i], &s->hp, p, b);
            continue;
        }
        sl_buf_puts(b, i == 0 ? ",\n \"rope_parameters\": " : ", ");
        if (desc->ropes[i].kind != NULL)
            sl_buf_printf(b, "%s\"%s\": ", i == 0 ? "{" : "", desc->ropes[i].kind);
        sl_buf_printf(b, "{\"rope_type\": \"%s\", \"rope_theta\": ", scaling_names[p->scaling]);
        sl_buf_json_double(b, p->theta);
        config_partial(&desc->ropes[i], &s->hp, p, b);
        config_rope_members(p, &s->hp, b);
    }
    if (!s->old_rope && desc->n_ropes > 0 && desc->ropes[0].kind != NULL)
        sl_buf_putc(b, '}');
}

static void config_fp8(enum sl_synth_scales scales, struct sl_buf *b)
{
    sl_buf_puts(b, " \"quantization_config\": ");
    switch (scales) {
    case SL_SYNTH_BLOCK:
        sl_buf_puts(b, "{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": "
                       "\"dynamic\",\n  \"weight_block_size\": [128, 128], "
                       "\"modules_to_not_convert\": [\"lm_head\"]},\n");
        break;
    case SL_SYNTH_CHANNEL:
        sl_buf_puts(b, "{\"quant_method\": \"compressed-tensors\", \"format\": "
                       "\"float-quantized\", \"ignore\": [\"lm_head\"],\n"
                       "  \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], "
                       "\"weights\": {\"type\": \"float\", \"num_bits\": 8, \"strategy\": "
                       "\"channel\", \"symmetric\": true}}}},\n");
        break;
    case SL_SYNTH_TENSOR:
        sl_buf_puts(b, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"ignore\": "
                       "[\"lm_head\"]},\n");
        break;
    }
}

static const char *torch_name(enum sl_dtype d)
{
    return d == SL_DTYPE_F32 ? "float32" : d == SL_DTYPE_F16 ? "float16" : "bfloat16";
}

static int write_text(struct sl_buf *b, const char *dir, const char *file, struct sl_error *err)
{
    char path[4096];
    int rc;
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof path)
        rc = sl_fail(err, SL_EINVAL, "%.100s...: path is too long", dir);
    else if (!sl_buf_ok(b))
        rc = sl_fail(err, SL_ENOMEM, "out of memory writing %s", file);
    else
        rc = sl_write_file(path, b->data, b->n_bytes, err);
    sl_buf_deinit(b);
    return rc;
}

/* The printable character that stands for a byte in byte-level vocabularies: itself if it is a
 * visible Latin-1 character, else the next free one from U+0100 on. */
static uint32_t byte_char(int byte)
{
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) {
        bool visible = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        if (b == byte)
            return visible ? (uint32_t)b : next;
        next += !visible;
    }
    return 0;
}

/* out holds 32 bytes */
static void token_text(int32_t id, char *out)
{
    if (id < 256)
        out[sl_utf8_encode(byte_char(id), out)] = '\0';
    else if (id == SL_SYNTH_BOS || id == SL_SYNTH_EOS)
        snprintf(out, 32, "%s", id == SL_SYNTH_BOS ? "<|bos|>" : "<|eos|>");
    else
        snprintf(out, 32, "<|unused%d|>", id - SL_SYNTH_MIN_VOCAB);
}

static int write_tokenizer(const struct sl_synth *s, const char *dir, struct sl_error *err)
{
    struct sl_buf b = {0};
    char text[32];
    sl_buf_puts(&b, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                    " \"added_tokens\": [");
    for (int32_t id = SL_SYNTH_BOS; id <= SL_SYNTH_EOS; id++) {
        token_text(id, text);
        sl_buf_printf(&b,
                      "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": "
                      "false, \"rstrip\": false, \"normalized\": false, \"special\": true}",
                      id > SL_SYNTH_BOS ? ",\n  " : "\n  ", id, text);
    }
    sl_buf_puts(&b, "],\n \"normalizer\": null,\n"
                    " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                    "\"trim_offsets\": true, \"use_regex\": false},\n"
                    " \"post_processor\": null,\n"
                    " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                    "\"trim_offsets\": true, \"use_regex\": true},\n"
                    " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                    "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
                    "\"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [],\n"
                    "  \"vocab\": {");
    for (int32_t id = 0; id < s->hp.n_vocab; id++) {
        token_text(id, text);
        sl_buf_puts(&b, id ? ", " : "");
        sl_buf_json_string(&b, text, strlen(text));
        sl_buf_printf(&b, ": %d", id);
    }
    sl_buf_puts(&b, "}}}\n");
    int rc = write_text(&b, dir, "tokenizer.json", err);
    if (rc != 0)
        return rc;
    sl_buf_puts(&b, "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"bos_token\": "
                    "\"<|bos|>\", \"eos_token\": \"<|eos|>\", \"add_bos_token\": false,\n "
                    "\"chat_template\": ");
    sl_buf_json_string(&b, chat_template, strlen(chat_template));
    sl_buf_puts(&b, "}\n");
    return write_text(&b, dir, "tokenizer_config.json", err);
}

int sl_synth_write_configs(const struct sl_synth *s, const struct sl_model_desc *desc,
                           const struct sl_model_name *name, const char *dir, struct sl_error *err)
{
    struct sl_buf b = {0};
    int rc;
    sl_buf_printf(&b, "{\n \"architectures\": [\"%s\"],\n \"model_type\": \"%s\",\n",
                  name->hf_architecture, name->hf_model_type);
    if (s->dtype == SL_DTYPE_FP8_E4M3)
        config_fp8(s->scales, &b);
    if (s->int4 != SL_INT4_NONE)
        sl_synth_int4_config(s, &b);
    if (s->bos > 0)
        sl_buf_printf(&b, " \"bos_token_id\": %d,\n", s->bos);
    if (s->eos > 0)
        sl_buf_printf(&b, " \"eos_token_id\": %d,\n", s->eos);
    if (name->hf_config != NULL)
        sl_buf_printf(&b, " \"%s\": {\n", name->hf_config);
    config_rows(desc, &s->hp, 0, 0, &b);
    sl_buf_printf(&b, " \"torch_dtype\": \"%s\"", torch_name(s->dtype));
    config_ropes(s, desc, &b);
    sl_buf_puts(&b, name->hf_config != NULL ? "}\n}\n" : "\n}\n");
    if ((rc = write_text(&b, dir, "config.json", err)) != 0)
        return rc;
    sl_buf_puts(&b, "{");
    if (s->eos > 0)
        sl_buf_printf(&b, "\"eos_token_id\": [%d]", s->eos);
    sl_buf_puts(&b, "}\n");
    if ((rc = write_text(&b, dir, "generation_config.json", err)) != 0)
        return rc;
    return s->byte_vocab ? write_tokenizer(s, dir, err) : 0;
}

/* ---------------------------------------------------------------- GGUF */

/* Key heads of each layer, of a model with recurrent ones, which have none; one number where the
 * file says by an interval which those are. */
static void metadata_kv_heads(const char *key, const struct sl_hparams *hp,
                              struct sl_gguf_writer *w)
{
    int32_t n[SL_MAX_LAYERS];
    if (hp->attn_interval != 0) {
        sl_gguf_writer_add_u32(w, key, (uint32_t)hp->n_kv_heads);
        return;
    }
    for (int32_t l = 0; l < hp->n_layers; l++)
        n[l] = hp->attn_layers[l] == SL_LAYER_OFF ? 0 : hp->n_kv_heads;
    sl_gguf_writer_add_arr_i32(w, key, n, (size_t)hp->n_layers);
}

static void metadata_row(const struct sl_hparam_desc *row, const struct sl_hparams *hp,
                         const char *arch, struct sl_gguf_writer *w)
{
    const uint8_t *at = (const uint8_t *)hp + row->offset;
    char key[128];
    if (row->gguf == NULL)
        return;
    const bool bare = row->gguf[0] == '.';
    snprintf(key, sizeof key, "%s%s%s", bare ? "" : arch, bare ? "" : ".", row->gguf + bare);
    if (row->type == SL_HP_FLOAT) {
        double x = *(const double *)(const void *)at;
        if (x != 0)
            sl_gguf_writer_add_f32(w, key, (float)x);
    } else if (row->type == SL_HP_INT || row->type == SL_HP_SAME || row->type == SL_HP_COUNT) {
        int32_t i = *(const int32_t *)(const void *)at;
        if (row->offset == offsetof(struct sl_hparams, v_dim))
            i = hp->head_dim;
        if (row->offset == offsetof(struct sl_hparams, state_inner) && hp->state_heads > 0)
            i = hp->state_heads * hp->state_v_dim;
        if (row->offset == offsetof(struct sl_hparams, rope_dims))
            i = hp->ropes[0].n_dims != 0 ? hp->ropes[0].n_dims
                : hp->rope_dims != 0     ? hp->rope_dims
                                         : hp->head_dim;
        if (i != 0)
            sl_gguf_writer_add_u32(w, key, (uint32_t)i);
    } else if (row->type == SL_HP_BOOL) {
        sl_gguf_writer_add_bool(w, key, *(const bool *)(const void *)at);
    } else if (row->offset == offsetof(struct sl_hparams, layer_kv_heads) &&
               hp->attn_layers[0] != SL_LAYER_BY_INDEX) {
        metadata_kv_heads(key, hp, w);
    } else if (row->type == SL_HP_LAYER_INTS && is_listed(row, at, hp)) {
        sl_gguf_writer_add_arr_i32(w, key, (const int32_t *)(const void *)at, (size_t)hp->n_layers);
    } else if (row->type == SL_HP_LAYER_FLOATS) {
        float x[SL_MAX_LAYERS];
        for (int32_t l = 0; l < hp->n_layers; l++)
            x[l] = (float)((const double *)(const void *)at)[l];
        sl_gguf_writer_add_arr_f32(w, key, x, (size_t)hp->n_layers);
    } else if (row->type == SL_HP_LAYER_TYPES && is_listed(row, at, hp)) {
        bool on[SL_MAX_LAYERS];
        for (int32_t l = 0; l < hp->n_layers; l++)
            on[l] = at[l] == SL_LAYER_ON;
        sl_gguf_writer_add_arr_bool(w, key, on, (size_t)hp->n_layers);
    }
}

static void metadata_rope(const struct sl_rope_desc *desc, const struct sl_rope_params *p,
                          const char *arch, struct sl_gguf_writer *w)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", arch, desc->gguf_theta);
    sl_gguf_writer_add_f32(w, key, (float)p->theta);
    if (p->scaling == SL_ROPE_LONG) { /* as converters do: the tensors say it */
        snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
        sl_gguf_writer_add_u32(w, key, (uint32_t)p->original_context);
    }
    if (p->scaling != SL_ROPE_LINEAR && p->scaling != SL_ROPE_YARN)
        return; /* llama3 is the tensor rope_freqs.weight */
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    sl_gguf_writer_add_str(w, key, scaling_names[p->scaling]);
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    sl_gguf_writer_add_f32(w, key, (float)p->factor);
    if (p->scaling == SL_ROPE_YARN) {
        snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
        sl_gguf_writer_add_u32(w, key, (uint32_t)p->original_context);
    }
}

/* llama.cpp wants to know how Qwen3.5 divides the rotated pairs among the positions of pictures;
 * those of text are all the same. */
static void metadata_sections(const struct sl_hparams *hp, const char *arch,
                              struct sl_gguf_writer *w)
{
    const int32_t n = (hp->ropes[0].n_dims != 0 ? hp->ropes[0].n_dims : hp->head_dim) / 2;
    const int32_t sections[4] = {(n + 2) / 3, (n + 1) / 3, n / 3, 0};
    char key[128];
    if (strncmp(arch, "qwen35", 6) != 0)
        return;
    snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
    sl_gguf_writer_add_arr_i32(w, key, sections, SL_COUNT(sections));
}

static int metadata_vocab(const struct sl_synth *s, struct sl_gguf_writer *w, struct sl_error *err)
{
    enum { NORMAL = 1, CONTROL = 3, UNUSED = 5, TEXT_BYTES = 32 };
    size_t n = (size_t)s->hp.n_vocab;
    char *text = sl_calloc(n, TEXT_BYTES);
    const char **tokens = sl_calloc(n, sizeof *tokens);
    int32_t *types = sl_calloc(n, sizeof *types);
    int rc = 0;
    if (text == NULL || tokens == NULL || types == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory writing the vocabulary");
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        token_text((int32_t)i, text + i * TEXT_BYTES);
        tokens[i] = text + i * TEXT_BYTES;
        types[i] = i < 256 ? NORMAL : i < SL_SYNTH_MIN_VOCAB ? CONTROL : UNUSED;
    }
    sl_gguf_writer_add_str(w, "tokenizer.ggml.model", "gpt2");
    sl_gguf_writer_add_str(w, "tokenizer.ggml.pre", "gpt-2");
    sl_gguf_writer_add_arr_str(w, "tokenizer.ggml.tokens", tokens, NULL, n);
    sl_gguf_writer_add_arr_i32(w, "tokenizer.ggml.token_type", types, n);
    sl_gguf_writer_add_arr_str(w, "tokenizer.ggml.merges", NULL, NULL, 0);
    sl_gguf_writer_add_bool(w, "tokenizer.ggml.add_bos_token", false);
    sl_gguf_writer_add_str(w, "tokenizer.chat_template", chat_template);
out:
    sl_free(types);
    sl_free(tokens);
    sl_free(text);
    return rc;
}

int sl_synth_add_metadata(const struct sl_synth *s, const struct sl_model_desc *desc,
                          const struct sl_model_name *name, struct sl_gguf_writer *w,
                          struct sl_error *err)
{
    const char *arch = name->gguf_architecture;
    sl_gguf_writer_add_str(w, "general.architecture", arch);
    sl_gguf_writer_add_str(w, "general.name", "random");
    for (int32_t i = 0; i < desc->n_hparams; i++)
        metadata_row(&desc->hparams[i], &s->hp, arch, w);
    for (int32_t i = 0; i < desc->n_ropes; i++)
        if (i == 0 || strcmp(desc->ropes[i].gguf_theta, desc->ropes[0].gguf_theta) != 0)
            metadata_rope(&desc->ropes[i], &s->hp.ropes[i], arch, w);
    metadata_sections(&s->hp, arch, w);
    if (s->bos > 0)
        sl_gguf_writer_add_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)s->bos);
    if (s->eos > 0)
        sl_gguf_writer_add_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)s->eos);
    return s->byte_vocab ? metadata_vocab(s, w, err) : 0;
}
