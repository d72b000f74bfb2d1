/* SPDX-License-Identifier: MIT
 * Adapters that are wrong in one way each: refused, with a message that names what is wrong.
 */
#include "base/check.h"
#include "base/sys.h"
#include "io/safetensors_write.h"
#include "models/lora.h"
#include "synth/synth.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define Q_A "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
#define Q_B "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"

enum { H = 64, Q = 128, MAX_RANK = 32 };

static char folder[] = "/tmp/sl_test_hostile_lora_XXXXXX";
static struct sl_ckpt *ckpt;
static struct sl_model *model;

static void write_file(const char *name, const void *data, size_t n)
{
    struct sl_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (sl_write_file(path, data, n, &err) != 0)
        fail_msg("%s", err.msg);
}

struct tensor {
    const char *name;
    enum sl_dtype dtype;
    int32_t n_dims;
    int64_t dims[3];
};

static const struct tensor pair[2] = {{Q_A, SL_DTYPE_F32, 2, {2, H}},
                                      {Q_B, SL_DTYPE_F32, 2, {Q, 2}}};

/* All numbers are `value`. */
static void write_weights(const struct tensor *t, size_t n, float value)
{
    struct sl_error err = {0};
    struct sl_st_writer *w;
    char path[128];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    for (size_t i = 0; i < n; i++)
        sl_st_writer_add_tensor(w, t[i].name, t[i].dtype, t[i].n_dims, t[i].dims);
    assert_int_equal(sl_st_writer_begin_data(w, &err), 0);
    for (size_t i = 0; i < n; i++) {
        size_t n_values = 1;
        for (int32_t k = 0; k < t[i].n_dims; k++)
            n_values *= (size_t)t[i].dims[k];
        const struct sl_dtype_info *info = sl_dtype_info(t[i].dtype);
        float *values = sl_calloc(n_values + 1, sizeof *values);
        uint8_t *data = sl_calloc(n_values + 1, info->block_bytes);
        for (size_t k = 0; k < n_values; k++)
            values[k] = value;
        info->from_f32(values, data, (int64_t)n_values);
        assert_int_equal(
            sl_st_writer_write_tensor_data(w, data, n_values * info->block_bytes, &err), 0);
        sl_free(data);
        sl_free(values);
    }
    assert_int_equal(sl_st_writer_finish(w, &err), 0);
}

static void write_config(const char *text)
{
    write_file("adapter_config.json", text, strlen(text));
}

#define SOUND "\"peft_type\": \"LORA\", \"r\": 2"

static void expect(int code, const char *word)
{
    struct sl_error err = {0};
    struct sl_lora *l;
    const struct sl_lora_options opt = {.max_rank = MAX_RANK};
    int rc = sl_lora_open(model, folder, &opt, &l, &err);
    if (rc != code || (rc != 0 && strstr(err.msg, word) == NULL))
        fail_msg("code %d, \"%s\"; expected %d and \"%s\"", rc, err.msg, code, word);
    assert_true(rc == 0 || strstr(err.msg, folder) != NULL);
    sl_lora_close(l);
}

static void configs(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *word;
    } cases[] = {
        {"{" SOUND "}", 0, ""},
        {"{" SOUND ", \"lora_alpha\": 0.5, \"use_rslora\": true, \"new_field\": 3}", 0, ""},
        {"{" SOUND ", \"bias\": null, \"modules_to_save\": [], \"use_dora\": false}", 0, ""},
        {"", SL_EFORMAT, "adapter_config.json"},
        {"[]", SL_EFORMAT, "adapter_config.json"},
        {"{" SOUND, SL_EFORMAT, "adapter_config.json"},
        {"{" SOUND ", \"r\": 2}", SL_EFORMAT, "adapter_config.json"},
        {"{\"r\": 2}", SL_EFORMAT, "peft_type"},
        {"{\"peft_type\": \"LOHA\", \"r\": 2}", SL_EUNSUPPORTED, "LOHA"},
        {"{\"peft_type\": \"LORA\"}", SL_EFORMAT, "r must be"},
        {"{\"peft_type\": \"LORA\", \"r\": 0}", SL_EFORMAT, "r must be"},
        {"{\"peft_type\": \"LORA\", \"r\": 257}", SL_EFORMAT, "r must be"},
        {"{\"peft_type\": \"LORA\", \"r\": 2.0}", SL_EFORMAT, "r must be"},
        {"{\"peft_type\": \"LORA\", \"r\": 99999999999999999999}", SL_EFORMAT, "config"},
        {"{\"peft_type\": \"LORA\", \"r\": 3}", SL_EFORMAT, "rank 2"},
        {"{" SOUND ", \"lora_alpha\": \"8\"}", SL_EFORMAT, "lora_alpha"},
        {"{" SOUND ", \"lora_alpha\": 1e300}", SL_EFORMAT, "lora_alpha"},
        {"{" SOUND ", \"lora_alpha\": NaN}", SL_EFORMAT, "config"},
        {"{" SOUND ", \"use_rslora\": 1}", SL_EFORMAT, "use_rslora"},
        {"{" SOUND ", \"use_dora\": true}", SL_EUNSUPPORTED, "DoRA"},
        {"{" SOUND ", \"bias\": \"lora_only\"}", SL_EUNSUPPORTED, "bias"},
        {"{" SOUND ", \"lora_bias\": true}", SL_EUNSUPPORTED, "lora_bias"},
        {"{" SOUND ", \"modules_to_save\": [\"lm_head\"]}", SL_EUNSUPPORTED, "modules_to_save"},
        {"{" SOUND ", \"fan_in_fan_out\": true}", SL_EUNSUPPORTED, "fan_in_fan_out"},
        {"{" SOUND ", \"init_lora_weights\": \"pissa_niter_4\"}", SL_EUNSUPPORTED, "pissa_niter_4"},
        {"{" SOUND ", \"layer_replication\": [[0, 4]]}", SL_EUNSUPPORTED, "layer_replication"},
        {"{" SOUND ", \"alora_invocation_tokens\": [1]}", SL_EUNSUPPORTED, "alora"},
        {"{" SOUND ", \"rank_pattern\": []}", SL_EFORMAT, "rank_pattern"},
        {"{" SOUND ", \"rank_pattern\": {\"q_proj\": 4}}", SL_EFORMAT, "rank 2"},
        {"{" SOUND ", \"rank_pattern\": {\"q_proj\": 0}}", SL_EFORMAT, "q_proj"},
        {"{" SOUND ", \"rank_pattern\": {\"q_proj\": \"4\"}}", SL_EFORMAT, "q_proj"},
        {"{" SOUND ", \"alpha_pattern\": {\"q_proj\": null}}", SL_EFORMAT, "q_proj"},
        {"{" SOUND ", \"alpha_pattern\": {\"(\": 4}}", SL_EFORMAT, "regular expression"},
        {"{" SOUND ", \"alpha_pattern\": {\"([a-z]|[^X])*([a-z]|[^X])*[XY]\": 4}}", SL_ELIMIT,
         "too long"},
    };
    (void)state;
    write_weights(pair, 2, 0.1f);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        write_config(cases[i].text);
        expect(cases[i].code, cases[i].word);
    }
    char long_pattern[800], text[900];
    memset(long_pattern, 'x', sizeof long_pattern);
    snprintf(text, sizeof text, "{" SOUND ", \"rank_pattern\": {\"%.700s\": 4}}", long_pattern);
    write_config(text);
    expect(SL_ELIMIT, "512 bytes");
}

static void tensors(void **state)
{
    static const struct {
        struct tensor t[3];
        int code;
        const char *word;
    } cases[] = {
        {{{Q_A, SL_DTYPE_F32, 2, {2, H}}}, SL_EFORMAT, "no lora_B"},
        {{{Q_B, SL_DTYPE_F32, 2, {Q, 2}}}, SL_EFORMAT, "no lora_A"},
        {{{Q_A, SL_DTYPE_F32, 2, {2, H + 1}}, pair[1]}, SL_EFORMAT, "shape [2, 65]"},
        {{pair[0], {Q_B, SL_DTYPE_F32, 2, {Q - 1, 2}}}, SL_EFORMAT, "shape [127, 2]"},
        {{pair[0], {Q_B, SL_DTYPE_F32, 2, {Q, 3}}}, SL_EFORMAT, "rank 2, its lora_B 3"},
        {{{Q_A, SL_DTYPE_F32, 2, {40, H}}, {Q_B, SL_DTYPE_F32, 2, {Q, 40}}}, SL_ELIMIT, "rank 40"},
        {{{Q_A, SL_DTYPE_F32, 2, {300, H}}, pair[1]}, SL_EFORMAT, "rank 1 to 256"},
        {{{Q_A, SL_DTYPE_F32, 2, {0, H}}, {Q_B, SL_DTYPE_F32, 2, {Q, 0}}}, SL_EFORMAT, "rank 1"},
        {{{Q_A, SL_DTYPE_F32, 1, {2 * H}}, pair[1]}, SL_EFORMAT, "must be a matrix"},
        {{{Q_A, SL_DTYPE_F32, 3, {2, H, 1}}, pair[1]}, SL_EFORMAT, "must be a matrix"},
        {{{Q_A, SL_DTYPE_FP8_E4M3, 2, {2, H}}, pair[1]}, SL_EUNSUPPORTED, "F8_E4M3"},
        {{pair[0], pair[1], {"lm_head.lora_A.weight", SL_DTYPE_F32, 2, {2, H}}},
         SL_EUNSUPPORTED,
         "lm_head"},
        {{pair[0], pair[1], {"model.embed_tokens.lora_embedding_A", SL_DTYPE_F32, 2, {2, H}}},
         SL_EUNSUPPORTED,
         "lora_embedding_A"},
        {{pair[0], pair[1], {"x.q_proj.lora_magnitude_vector", SL_DTYPE_F32, 1, {Q}}},
         SL_EUNSUPPORTED,
         "lora_magnitude_vector"},
        {{pair[0],
          pair[1],
          {"model.layers.99999999999.self_attn.q_proj.lora_A.weight", SL_DTYPE_F32, 2, {2, H}}},
         SL_EUNSUPPORTED,
         "99999999999"},
        {{pair[0],
          pair[1],
          {"model.layers.00.self_attn.k_proj.lora_A.weight", SL_DTYPE_F32, 2, {2, H}}},
         SL_EUNSUPPORTED,
         "layers.00"},
        {{pair[0], pair[1], {"layers.0.self_attn.q_proj.lora_A.weight", SL_DTYPE_F32, 2, {2, H}}},
         SL_EFORMAT,
         "the same matrix"},
        {{{".lora_A.weight", SL_DTYPE_F32, 2, {2, H}}}, SL_EUNSUPPORTED, "no linear layer"},
        {{{"base_model.model.lora_A.weight", SL_DTYPE_F32, 2, {2, H}}},
         SL_EUNSUPPORTED,
         "neither lora_A nor lora_B"},
    };
    (void)state;
    write_config("{" SOUND "}");
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        size_t n = 0;
        while (n < 3 && cases[i].t[n].name != NULL)
            n++;
        write_weights(cases[i].t, n, 0.1f);
        expect(cases[i].code, cases[i].word);
    }
    write_weights(pair, 2, (float)NAN);
    expect(SL_EFORMAT, "NaN or infinity");
    write_weights(pair, 2, -(float)INFINITY);
    expect(SL_EFORMAT, "NaN or infinity");
    write_weights(pair, 0, 0);
    expect(SL_EFORMAT, "no tensors");
    write_weights(pair, 2, 0.1f);
    expect(0, "");
}

/* Every shorter file is refused, and so is one with more behind the end. */
static void truncated(void **state)
{
    struct sl_error err = {0};
    char path[128], *data;
    size_t n;
    (void)state;
    write_config("{" SOUND "}");
    write_weights(pair, 2, 0.1f);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    assert_int_equal(sl_read_file(path, 1 << 20, &data, &n, &err), 0);
    for (size_t k = 0; k < n; k += k < 400 ? 1 : 37) {
        write_file("adapter_model.safetensors", data, k);
        expect(SL_EFORMAT, "adapter_model.safetensors");
    }
    write_file("adapter_model.safetensors", data, n + 1); /* the NUL that sl_read_file adds */
    expect(SL_EFORMAT, "adapter_model.safetensors");
    sl_free(data);
    assert_int_equal(remove(path), 0);
    expect(SL_ENOTFOUND, "adapter_model.safetensors");
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    assert_int_equal(remove(path), 0);
    expect(SL_ENOTFOUND, "adapter_config.json");
}

static int setup(void **state)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = "qwen3", .dtype = SL_DTYPE_BF16, .byte_vocab = true};
    char path[128];
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/model", folder);
    if (sl_synth_shape(s.name, "tiny", &s.hp, &err) != 0 || s.hp.hidden != H)
        return -1;
    s.hp.n_heads = Q / s.hp.head_dim;
    return sl_synth_write(&s, path, &err) != 0 || sl_ckpt_open(path, &ckpt, &err) != 0 ||
           sl_model_open(ckpt, &model, &err) != 0;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    sl_model_close(model);
    sl_ckpt_close(ckpt);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(tensors),
        cmocka_unit_test(truncated),
    };
    return cmocka_run_group_tests_name("hostile adapters", tests, setup, teardown);
}
