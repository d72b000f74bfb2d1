/* SPDX-License-Identifier: MIT
 * What a model refuses and how it says so: every hyper-parameter missing, of the wrong type, too
 * small and too large, in config.json and in GGUF metadata; tensors missing, misshapen or in a
 * format their place cannot take; memory running out at every allocation.
 */
#include "base/json_load.h"
#include "io/gguf_write.h"
#include "io/safetensors_write.h"
#include "models/internal.h"
#include "models/model_rig.h"
#include "synth/synth.h"

#include <sys/stat.h>

#define OUT "build/testdata/models"

static int setup_group(void **state)
{
    (void)state;
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    return 0;
}

/* Opens path and demands the refusal; message must contain every word of want, "|" between. */
static void refused(const char *path, int code, const char *want, const char *label)
{
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    int rc = sl_ckpt_open(path, &c, &err);
    if (rc == 0)
        rc = sl_model_open(c, &m, &err);
    if (rc == 0)
        fail_msg("%s: was accepted, expected \"%s\"", label, want);
    assert_null(m);
    assert_int_equal(err.code, rc);
    if (rc != code)
        fail_msg("%s: code %s instead of %s: %s", label, sl_code_name(rc), sl_code_name(code),
                 err.msg);
    for (const char *part = want; part != NULL;) {
        const char *bar = strchr(part, '|');
        char word[160];
        snprintf(word, sizeof word, "%.*s", bar ? (int)(bar - part) : (int)strlen(part), part);
        if (strstr(err.msg, word) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", label, err.msg, word);
        part = bar ? bar + 1 : NULL;
    }
    sl_ckpt_close(c);
}

static void accepted(const char *path, const char *label)
{
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    if (sl_ckpt_open(path, &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
        fail_msg("%s: refused: %s", label, err.msg);
    sl_model_close(m);
    sl_ckpt_close(c);
}

static void make_folder(const char *name, const char *path, struct sl_synth *s)
{
    struct sl_error err = {0};
    *s = (struct sl_synth){.name = name, .dtype = SL_DTYPE_BF16, .format = SL_CKPT_HF, .seed = 1};
    if (sl_synth_shape(name, "tiny", &s->hp, &err) != 0 || sl_synth_write(s, path, &err) != 0)
        fail_msg("%s", err.msg);
}

/* ---------------------------------------------------------------- config.json */

struct edit {
    const char *key, *value; /* JSON, or NULL: the key is removed */
    int code;                /* 0: accepted */
    const char *want;
};

static void apply(const char *folder, const struct edit *e)
{
    struct sl_error err = {0};
    char path[256], label[200], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(label, sizeof label, "%s: %s = %s", folder, e->key, e->value ? e->value : "(removed)");
    if (sl_read_file(path, 1 << 20, &text, &n, &err) != 0)
        fail_msg("%s", err.msg);
    json_t *config = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    assert_non_null(config);
    if (e->value == NULL) {
        json_object_del(config, e->key);
    } else {
        json_t *v = json_loads(e->value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        json_object_set_new(config, e->key, v);
    }
    char *edited = json_dumps(config, 0);
    assert_non_null(edited);
    if (sl_write_file(path, edited, strlen(edited), &err) != 0)
        fail_msg("%s", err.msg);
    if (e->code == 0)
        accepted(folder, label);
    else
        refused(folder, e->code, e->want, label);
    if (sl_write_file(path, text, n, &err) != 0)
        fail_msg("%s", err.msg);
    sl_json_free_text(edited);
    json_decref(config);
    sl_free(text);
}

#define INT_ROW(key)                                                                          \
    {key, NULL, SL_EFORMAT, "config.json: " key " is missing"},                               \
        {key, "null", SL_EFORMAT, "config.json: " key " is missing"},                         \
        {key, "0", SL_EFORMAT, "config.json: " key " is 0, must be 1 to"},                    \
        {key, "-64", SL_EFORMAT, "config.json: " key " is -64, must be 1 to"},                \
        {key, "1e300", SL_EFORMAT, "config.json: " key " must be an integer"},                \
        {key, "9223372036854775807", SL_EFORMAT, "config.json: " key " is|must be 1 to"},     \
        {key, "\"64\"", SL_EFORMAT, "config.json: " key " must be an integer, not a string"}, \
        {key, "true", SL_EFORMAT, "config.json: " key " must be an integer, not a boolean"},  \
        {key, "[64]", SL_EFORMAT, "config.json: " key " must be an integer, not a list"},     \
    {                                                                                         \
        key, "{}", SL_EFORMAT, "config.json: " key " must be an integer, not an object"       \
    }

static const struct edit hf_edits[] = {
    INT_ROW("hidden_size"),
    INT_ROW("intermediate_size"),
    INT_ROW("num_hidden_layers"),
    INT_ROW("num_attention_heads"),
    INT_ROW("max_position_embeddings"),
    INT_ROW("vocab_size"),
    {"num_key_value_heads", "0", SL_EFORMAT, "config.json: num_key_value_heads is 0"},
    {"num_key_value_heads", "3", SL_EFORMAT,
     "num_attention_heads (4) is not a multiple of num_key_value_heads (3)"},
    {"num_key_value_heads", "8", SL_EFORMAT, "num_key_value_heads (8)"},
    {"num_key_value_heads", NULL, SL_EFORMAT, "k_proj.weight\" has shape [32, 64]|[64, 64]"},
    {"head_dim", "15", SL_EFORMAT, "head_dim is 15, must be even"},
    {"head_dim", "0", SL_EFORMAT, "config.json: head_dim is 0, must be 2 to"},
    {"head_dim", "4096", SL_EFORMAT, "config.json: head_dim is 4096"},
    {"head_dim", "null", 0, NULL},
    {"head_dim", "32", SL_EFORMAT, "q_proj.weight\" has shape [64, 64], expected [128, 64]"},
    {"num_hidden_layers", "3", SL_EFORMAT,
     "tensor \"model.layers.2.input_layernorm.weight\" is missing"},
    {"num_hidden_layers", "1024", SL_EFORMAT, "is missing"},
    {"num_hidden_layers", "1025", SL_EFORMAT, "num_hidden_layers is 1025, must be 1 to 1024"},
    {"hidden_size", "128", SL_EFORMAT, "has shape [320, 64], expected [320, 128]"},
    {"hidden_size", "1048576", SL_EFORMAT, "expected [320, 1048576]"},
    {"intermediate_size", "161", SL_EFORMAT, "has shape [160, 64], expected [161, 64]"},
    {"vocab_size", "319", SL_EFORMAT, "embed_tokens.weight\" has shape [320, 64]"},
    {"rms_norm_eps", "0", SL_EFORMAT, "config.json: rms_norm_eps is 0"},
    {"rms_norm_eps", "-1e-5", SL_EFORMAT, "config.json: rms_norm_eps is -1e-05"},
    {"rms_norm_eps", "2", SL_EFORMAT, "config.json: rms_norm_eps is 2"},
    {"rms_norm_eps", "\"1e-5\"", SL_EFORMAT, "rms_norm_eps must be a number, not a string"},
    {"rms_norm_eps", NULL, 0, NULL},
    {"hidden_act", "\"mish\"", SL_EUNSUPPORTED,
     "config.json: hidden_act \"mish\" is not supported (supported: silu, gelu, "},
    {"hidden_act", "\"gelu_new\"", 0, NULL},
    {"hidden_act", "7", SL_EFORMAT, "hidden_act must be a string, not an integer"},
    {"tie_word_embeddings", "1", SL_EFORMAT, "tie_word_embeddings must be true or false"},
    {"tie_word_embeddings", "true", 0, NULL},
    {"attention_bias", "true", SL_EFORMAT,
     "tensor \"model.layers.0.self_attn.q_proj.bias\" is missing"},
    {"mlp_bias", "true", SL_EFORMAT, "tensor \"model.layers.0.mlp.gate_proj.bias\" is missing"},
    {"num_local_experts", "8", SL_EUNSUPPORTED, "num_local_experts is 8: not supported"},
    {"architectures", "[\"MambaForCausalLM\"]", SL_EUNSUPPORTED,
     "config.json: architectures \"MambaForCausalLM\" is not supported|LlamaForCausalLM|, ..."},
    {"architectures", "[]", SL_EFORMAT, "architectures must be a list of strings"},
    {"architectures", "[7]", SL_EFORMAT, "architectures must be a list of strings"},
    {"architectures", "\"LlamaForCausalLM\"", SL_EFORMAT, "architectures must be a list"},
    {"architectures", "[\"LlamaForCausalLM\\u0000x\"]", SL_EFORMAT, "config.json: line 1"},
    {"architectures", NULL, 0, NULL},
    {"quantization_config", "{\"quant_method\": \"hqq\", \"bits\": 4}", SL_EUNSUPPORTED,
     "quantization_config with quant_method \"hqq\""},
    {"quantization_config", "[]", SL_EUNSUPPORTED, "quantization_config"},
    {"quantization_config", "null", 0, NULL},
    {"eos_token_id", "\"2\"", SL_EFORMAT, "config.json: eos_token_id must be an integer"},
    {"eos_token_id", "[2, \"3\"]", SL_EFORMAT, "config.json: eos_token_id must be an integer"},
    {"eos_token_id", "[1,2,3,4,5,6,7,8,9]", SL_ELIMIT, "config.json: eos_token_id: more than 8"},
    {"eos_token_id", "[-1, 320, 99999999999]", 0, NULL},
    /* RoPE, as transformers 5 spells it */
    {"rope_parameters", "7", SL_EFORMAT, "config.json: rope_parameters must be an object"},
    {"rope_parameters", "{\"rope_type\": \"xdrope\", \"factor\": 2}", SL_EUNSUPPORTED,
     "config.json: rope_parameters.rope_type \"xdrope\" is not supported (supported: default"},
    {"rope_parameters", "{\"rope_type\": \"longrope\"}", SL_EFORMAT,
     "rope_parameters.short_factor is missing"},
    {"rope_parameters", "{\"rope_type\": 3}", SL_EFORMAT, "rope_type must be a string"},
    {"rope_parameters", "{\"rope_type\": \"yarn\"}", SL_EFORMAT,
     "config.json: rope_parameters.factor is missing"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 0}", SL_EFORMAT,
     "rope_parameters.factor is 0, must be 1 to"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 0}", SL_EFORMAT,
     "rope_parameters.beta_fast is 0"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": 1}", SL_EFORMAT,
     "rope_parameters.truncate must be true or false"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4}", 0, NULL},
    {"rope_parameters",
     "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 1}",
     SL_EFORMAT, "rope_parameters.high_freq_factor (1) must be above low_freq_factor (4)"},
    {"rope_parameters", "{\"rope_theta\": 1}", SL_EFORMAT, "rope_parameters.rope_theta is 1"},
    {"rope_parameters", "{\"rope_theta\": -5}", SL_EFORMAT, "rope_parameters.rope_theta is -5"},
    {"rope_parameters", "{\"rope_theta\": []}", SL_EFORMAT, "rope_theta must be a number"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.5}", SL_EUNSUPPORTED,
     "partial_rotary_factor 0.5 is not supported"},
    {"rope_parameters", "{\"full_attention\": {\"rope_theta\": 1e4}}", SL_EUNSUPPORTED,
     "rope_parameters per layer type"},
    {"rope_parameters", NULL, 0, NULL},
    /* and as earlier versions do */
    {"rope_scaling", "{\"type\": \"ntk\"}", SL_EUNSUPPORTED,
     "config.json: rope_scaling.type \"ntk\" is not supported"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": \"2\"}", SL_EFORMAT,
     "rope_scaling.factor must be a number"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", 0, NULL},
    {"rope_theta", "\"x\"", SL_EFORMAT, "config.json: rope_theta must be a number"},
};

static const struct edit mistral_edits[] = {
    {"sliding_window", "0", SL_EFORMAT, "config.json: sliding_window is 0, must be 1 to"},
    {"sliding_window", "-1", SL_EFORMAT, "config.json: sliding_window is -1"},
    {"sliding_window", "4.5", SL_EFORMAT, "sliding_window must be an integer"},
    {"sliding_window", "null", 0, NULL},
};

static const struct edit qwen_edits[] = {
    {"use_sliding_window", "\"no\"", SL_EFORMAT, "use_sliding_window must be true or false"},
    {"max_window_layers", "-1", SL_EFORMAT, "config.json: max_window_layers is -1"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT,
     "layer_types has 1 entries, num_hidden_layers is 2"},
    {"layer_types", "[\"full_attention\", 3]", SL_EFORMAT, "layer_types[1] must be a string"},
    {"layer_types", "[\"full_attention\", \"mamba\"]", SL_EUNSUPPORTED,
     "layer_types[1] \"mamba\" is not supported"},
    {"layer_types", "[\"sliding_attention\", \"full_attention\"]", SL_EFORMAT,
     "layer_types[0] is sliding_attention, but use_sliding_window"},
    {"layer_types", "[\"full_attention\", \"full_attention\"]", 0, NULL},
    {"num_experts", "128", SL_EUNSUPPORTED, "num_experts is 128: not supported"},
};

static const struct edit smollm3_edits[] = {
    {"no_rope_layer_interval", "0", SL_EFORMAT, "no_rope_layer_interval is 0, must be 1 to"},
    {"no_rope_layers", "[1, 1, 1]", SL_EFORMAT, "no_rope_layers has 3 entries"},
    {"no_rope_layers", "[1, 0, 2, 1]", SL_EFORMAT, "no_rope_layers[2] must be 0 or 1"},
    {"no_rope_layers", "\"1\"", SL_EFORMAT,
     "no_rope_layers must be a list of 0 and 1, not a string"},
    {"no_rope_layers", "[1, 0, true, 1, 1]", 0, NULL},
    {"mlp_bias", "true", SL_EFORMAT, "tensor \"model.layers.0.mlp.gate_proj.bias\" is missing"},
    {"tie_word_embeddings", NULL, 0, NULL},
    {"tie_word_embeddings", "false", SL_EFORMAT, "tensor \"lm_head.weight\" is missing"},
};

static const struct {
    const char *family;
    struct edit edit;
} expert_edits[] = {
    {"qwen3moe", {"num_experts", "0", SL_EFORMAT, "num_experts is 0, must be 1 to"}},
    {"qwen3moe",
     {"num_experts", "6", SL_EFORMAT, "mlp.gate.weight\" has shape [7, 64], expected [6, 64]"}},
    {"qwen3moe",
     {"num_experts_per_tok", "8", SL_EFORMAT,
      "num_experts_per_tok (8) is more than the 7 experts"}},
    {"qwen3moe", {"num_experts_per_tok", NULL, SL_EFORMAT, "num_experts_per_tok is missing"}},
    {"qwen3moe",
     {"moe_intermediate_size", "48", SL_EFORMAT,
      "experts.0.gate_proj.weight\" has shape [96, 64], expected [48, 64]"}},
    {"qwen3moe",
     {"mlp_only_layers", "[2]", SL_EFORMAT, "mlp_only_layers[0] must be a layer, 0 to 1"}},
    {"qwen3moe", {"mlp_only_layers", "1", SL_EFORMAT, "mlp_only_layers must be a list of layers"}},
    {"qwen3moe",
     {"mlp_only_layers", "[1]", SL_EFORMAT, "layers.1.mlp.gate_proj.weight\" is missing"}},
    {"qwen3moe",
     {"decoder_sparse_step", "2", SL_EFORMAT, "layers.0.mlp.gate_proj.weight\" is missing"}},
    {"qwen2moe",
     {"shared_expert_intermediate_size", NULL, SL_EFORMAT,
      "config.json: shared_expert_intermediate_size is missing"}},
    {"qwen2moe",
     {"shared_expert_intermediate_size", "64", SL_EFORMAT,
      "shared_expert.gate_proj.weight\" has shape [128, 64], expected [64, 64]"}},
    {"qwen2moe", {"norm_topk_prob", "1", SL_EFORMAT, "norm_topk_prob must be true or false"}},
    {"qwen2moe",
     {"mlp_only_layers", "[1]", SL_EFORMAT, "layers.1.mlp.gate_proj.weight\" is missing"}},
    {"mixtral",
     {"num_experts_per_tok", "6", SL_EFORMAT,
      "num_experts_per_tok (6) is more than the 5 experts"}},
    {"mixtral", {"num_experts_per_tok", NULL, SL_EFORMAT, "num_experts_per_tok is missing"}},
    {"mixtral",
     {"intermediate_size", "80", SL_EFORMAT,
      "experts.0.w1.weight\" has shape [96, 64], expected [80, 64]"}},
    {"olmoe", {"clip_qkv", "8.0", SL_EUNSUPPORTED, "clip_qkv is 8: not supported, must be 0"}},
    {"glm4moe",
     {"n_group", "3", SL_EFORMAT, "n_group: 3 of 8 experts cannot be chosen from 2 of 3"}},
    {"glm4moe", {"n_group", "8", SL_EFORMAT, "3 of 8 experts cannot be chosen from 2 of 8 groups"}},
    {"glm4moe", {"topk_group", "1", SL_EFORMAT, "3 of 8 experts cannot be chosen from 1 of 4"}},
    {"glm4moe", {"n_group", NULL, 0, NULL}},
    {"glm4moe",
     {"first_k_dense_replace", "4", SL_EFORMAT, "layers.1.mlp.gate_proj.weight\" is missing"}},
    {"glm4moe",
     {"first_k_dense_replace", "0", SL_EFORMAT, "layers.0.mlp.gate.weight\" is missing"}},
    {"glm4moe",
     {"n_shared_experts", "2", SL_EFORMAT,
      "shared_experts.gate_proj.weight\" has shape [96, 64], expected [192, 64]"}},
    {"glm4moe",
     {"routed_scaling_factor", "-1", SL_EFORMAT, "routed_scaling_factor is -1, must be 0 to"}},
    {"ernie4_5_moe", {"use_bias", "true", SL_EUNSUPPORTED, "use_bias true is not supported"}},
    {"ernie4_5_moe", {"moe_layer_end_index", "1", SL_EUNSUPPORTED, "moe_layer_end_index 1 is not"}},
    {"ernie4_5_moe", {"moe_layer_end_index", "2", 0, NULL}},
    {"hy_v3", {"mlp_bias", "true", SL_EUNSUPPORTED, "mlp_bias true is not supported"}},
    {"minimax_m2",
     {"scoring_func", "\"softmax\"", SL_EUNSUPPORTED, "scoring_func \"softmax\" is not supported"}},
    {"minimax_m2", {"rotary_dim", "34", SL_EFORMAT, "34 dimensions of a head of 32 are rotated"}},
    {"minimax_m2",
     {"shared_intermediate_size", "96", SL_EUNSUPPORTED,
      "shared_intermediate_size is 96: not supported"}},
};

#define FULL "{\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": "
static const struct edit gemma3_edits[] = {
    {"final_logit_softcapping", "30", SL_EUNSUPPORTED, "final_logit_softcapping is 30"},
    {"attn_logit_softcapping", "50", SL_EUNSUPPORTED, "attn_logit_softcapping is 50"},
    {"use_bidirectional_attention", "true", SL_EUNSUPPORTED, "use_bidirectional_attention true"},
    {"hidden_activation", "\"mish\"", SL_EUNSUPPORTED, "hidden_activation \"mish\" is not"},
    {"query_pre_attn_scalar", "0", SL_EFORMAT, "query_pre_attn_scalar is 0, must be 1 to"},
    {"sliding_window_pattern", "0", SL_EFORMAT, "sliding_window_pattern is 0, must be 1 to"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
    {"rope_parameters", FULL "\"yarn\"}}", SL_EFORMAT, "full_attention.factor is missing"},
    {"rope_parameters", FULL "7}}", SL_EFORMAT, "full_attention.rope_type must be a string"},
    {"rope_parameters", "{\"full_attention\": {}, \"sliding_attention\": 7}", SL_EFORMAT,
     "rope_parameters.sliding_attention must be an object"},
    {"rope_parameters", FULL "\"linear\", \"factor\": 8}}", 0, NULL},
    {"rope_local_base_freq", "1", SL_EFORMAT, "rope_local_base_freq is 1, must be 2 to"},
    {"tie_word_embeddings", NULL, 0, NULL},
    /* what is left out is transformers' default, which this model has not */
    {"num_attention_heads", NULL, SL_EFORMAT, "q_proj.weight\" has shape [64, 64], expected [128"},
    {"hidden_size", NULL, SL_EFORMAT, "expected [320, 2304]"},
};

/* Six layers, of which every second is full and the last two read keys of the two before. */
static const struct edit gemma4_edits[] = {
    {"use_bidirectional_attention", "\"all\"", SL_EUNSUPPORTED,
     "use_bidirectional_attention \"all\" is not supported"},
    {"use_bidirectional_attention", "\"vision\"", 0, NULL},
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias true is not supported"},
    {"enable_moe_block", "true", SL_EFORMAT,
     "num_experts, top_k_experts or moe_intermediate_size is"},
    {"num_kv_shared_layers", "6", SL_EFORMAT, "num_kv_shared_layers is 6, must be less than"},
    {"num_kv_shared_layers", "-1", SL_EFORMAT, "num_kv_shared_layers is -1, must be 0 to"},
    {"num_kv_shared_layers", "1", SL_EFORMAT, "layers.4.self_attn.k_proj.weight\" is missing"},
    {"layer_types",
     "[\"full_attention\", \"full_attention\", \"full_attention\", \"full_attention\", "
     "\"sliding_attention\", \"full_attention\"]",
     SL_EFORMAT, "layer 4 shares keys with a layer of its kind, but none of the first 4"},
    {"global_head_dim", "31", SL_EFORMAT, "layer 1 has heads of 31 dimensions, must be even"},
    {"global_head_dim", "64", SL_EFORMAT, "layers.1.self_attn.q_proj.weight\" has shape [128, 64]"},
    {"num_global_key_value_heads", "3", SL_EFORMAT,
     "4 heads of layer 1 are no multiple of its 3 key heads"},
    {"attention_k_eq_v", "false", SL_EFORMAT, "layers.1.self_attn.k_proj.weight\" has shape"},
    {"per_layer_config", "{\"1\": {\"head_dim\": 32}, \"3\": {\"head_dim\": 32}}", 0, NULL},
    {"per_layer_config", "{\"1\": {\"head_dim\": 16}}", SL_EFORMAT,
     "layer 3 has heads of 32 dimensions, must be even and as in other layers of its kind"},
    {"per_layer_config", "{\"1\": {\"head_dim\": true}}", SL_EFORMAT,
     "per_layer_config[\"1\"].head_dim must be an integer"},
    {"per_layer_config", "{\"1\": {\"num_key_value_heads\": 0}}", SL_EFORMAT,
     "per_layer_config of layer 1 is 0, must be 1 to"},
    {"per_layer_config", "[]", SL_EFORMAT, "per_layer_config must be an object, not a list"},
    {"intermediate_size", "[160, 160]", SL_EFORMAT, "intermediate_size has 2 entries"},
    {"intermediate_size", "[1, 2, 3, 4, 5, \"6\"]", SL_EFORMAT,
     "intermediate_size must be an integer or a list of integers"},
    {"intermediate_size", "0", SL_EFORMAT, "intermediate_size of layer 0 is 0, must be 1 to"},
    {"hidden_size_per_layer_input", "16", SL_EFORMAT, "has shape [320, 192], expected [320, 96]"},
    {"hidden_size_per_layer_input", "0", 0, NULL},
    {"vocab_size_per_layer_input", "319", SL_EFORMAT,
     "vocab_size_per_layer_input (319) is less than vocab_size (320)"},
    {"rope_parameters", FULL "\"proportional\", \"partial_rotary_factor\": 2}}", SL_EFORMAT,
     "full_attention.partial_rotary_factor is 2, must be 0 to 1"},
};

static const struct edit glm4_edits[] = {
    /* heads of 32 */
    {"rope_parameters", "{\"partial_rotary_factor\": 0.47}", SL_EFORMAT,
     "15 dimensions of a head of 32 are rotated, must be even and 2 to 32"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0}", SL_EFORMAT, "0 dimensions of a head"},
    {"rope_parameters", "{\"partial_rotary_factor\": 1.5}", SL_EFORMAT,
     "partial_rotary_factor is 1.5, must be 0 to 1"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.25}", 0, NULL},
    {"rope_parameters", NULL, 0, NULL}, /* a half */
    {"intermediate_size", "161", SL_EFORMAT,
     "gate_up_proj.weight\" has shape [320, 64], expected [322, 64]"},
};

#define LONG(more) "{\"rope_type\": \"longrope\", \"partial_rotary_factor\": 0.5, " more "}"
#define SHORTS     "\"short_factor\": [1, 1, 1, 1], "
static const struct edit phi3_edits[] = {
    {"rope_scaling", LONG(SHORTS "\"long_factor\": [1, 2, 3, 4]"), 0, NULL},
    {"rope_scaling", LONG("\"short_factor\": [1, 1]"), SL_EFORMAT,
     "rope_scaling.short_factor must be a list of 4 numbers"},
    {"rope_scaling", LONG("\"short_factor\": 1"), SL_EFORMAT, "short_factor must be a list of 4"},
    {"rope_scaling", LONG(SHORTS "\"factor\": 4"), SL_EFORMAT, "long_factor is missing"},
    {"rope_scaling", LONG(SHORTS "\"long_factor\": [1, 2, 0, 4]"), SL_EFORMAT,
     "rope_scaling.long_factor[2] must be a number, 0.001 to"},
    {"rope_scaling", LONG(SHORTS "\"long_factor\": [1, 2, \"3\", 4]"), SL_EFORMAT,
     "rope_scaling.long_factor[2] must be a number"},
    {"rope_scaling", LONG(SHORTS "\"original_max_position_embeddings\": 0"), SL_EFORMAT,
     "original_max_position_embeddings is 0, must be 1 to"},
    {"original_max_position_embeddings", "\"4k\"", 0, NULL}, /* nothing needs it */
    {"rope_parameters", "{\"partial_rotary_factor\": 0.5}", 0, NULL},
    {"sliding_window", "-1", SL_EFORMAT, "sliding_window is -1, must be 0 to"},
    {"sliding_window", "null", 0, NULL},
    {"num_key_value_heads", "4", SL_EFORMAT,
     "qkv_proj.weight\" has shape [128, 64], expected [192, 64]"},
};

static const struct edit gemma2_edits[] = {
    {"final_logit_softcapping", "0", SL_EFORMAT, "final_logit_softcapping is 0, must be 0.001 to"},
    {"attn_logit_softcapping", "-1", SL_EFORMAT, "attn_logit_softcapping is -1, must be 0.001 to"},
    {"attn_logit_softcapping", "null", 0, NULL},
    {"use_bidirectional_attention", "true", SL_EUNSUPPORTED, "use_bidirectional_attention true"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
    {"num_attention_heads", NULL, SL_EFORMAT, "q_proj.weight\" has shape [64, 64], expected [128"},
};

static const struct edit granite_edits[] = {
    {"embedding_multiplier", "0", SL_EFORMAT, "embedding_multiplier is 0, must be 1e-06 to"},
    {"residual_multiplier", "-1", SL_EFORMAT, "residual_multiplier is -1, must be 1e-06 to"},
    {"attention_multiplier", "\"1\"", SL_EFORMAT, "attention_multiplier must be a number"},
    {"logits_scaling", "0", SL_EFORMAT, "logits_scaling is 0, must be 1e-06 to"},
    {"mlp_bias", "true", SL_EFORMAT, "mlp.gate_proj.bias\" is missing"},
};

static const struct edit exaone4_edits[] = {
    /* four layers, three of them windowed */
    {"sliding_window_pattern", "\"LLLG\"", 0, NULL},
    {"sliding_window_pattern", "2", 0, NULL},
    {"sliding_window_pattern", "\"\"", SL_EFORMAT, "must be letters L and G"},
    {"sliding_window_pattern", "\"LXG\"", SL_EFORMAT, "\"LXG\" must be letters L and G"},
    {"sliding_window_pattern", "0", SL_EFORMAT, "sliding_window_pattern is 0, must be 1 to"},
    {"sliding_window_pattern", "1.5", SL_EFORMAT, "must be a list of strings"},
    {"layer_types", "[\"full_attention\", 3]", SL_EFORMAT, "layer_types has 2 entries"},
    {"sliding_window", "0", SL_EFORMAT, "sliding_window is 0, must be 1 to"},
    {"sliding_window", "null", 0, NULL},
};

static const struct edit ernie_edits[] = {
    {"use_bias", "true", SL_EUNSUPPORTED, "config.json: use_bias true is not supported"},
    {"rope_parameters", "{\"rope_type\": \"dynamic\", \"factor\": 6}", 0, NULL},
};

static const struct edit arcee_edits[] = {
    {"mlp_bias", "true", SL_EUNSUPPORTED, "config.json: mlp_bias true is not supported"},
    {"attention_bias", "true", SL_EFORMAT, "q_proj.bias\" is missing"},
};

static const struct edit seed_oss_edits[] = {
    {"mlp_bias", "true", SL_EUNSUPPORTED, "config.json: mlp_bias true is not supported"},
    {"attention_out_bias", "true", SL_EFORMAT, "o_proj.bias\" is missing"},
    {"attention_bias", "1", SL_EFORMAT, "attention_bias must be true or false, not an integer"},
};

static const struct edit starcoder2_edits[] = {
    {"layer_norm_eps", "0", SL_EFORMAT, "layer_norm_eps is 0, must be 1e-20 to 1"},
    {"use_bias", "1", SL_EFORMAT, "use_bias must be true or false"},
    {"use_bias", NULL, 0, NULL},
    {"sliding_window", "null", 0, NULL},
    {"tie_word_embeddings", "false", SL_EFORMAT, "tensor \"lm_head.weight\" is missing"},
};

static const struct edit cohere_edits[] = {
    {"use_qk_norm", "true", SL_EUNSUPPORTED, "use_qk_norm true: norms of q and k with a mean"},
    {"logit_scale", "0", SL_EFORMAT, "logit_scale is 0, must be 1e-06 to"},
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
};

static const struct edit cohere2_edits[] = {
    {"sliding_window_pattern", "0", SL_EFORMAT, "sliding_window_pattern is 0, must be 1 to"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
};

static const struct edit phi_edits[] = {
    {"qk_layernorm", "true", SL_EUNSUPPORTED, "qk_layernorm true is not supported"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.4}", 0, NULL},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.2}", SL_EFORMAT,
     "3 dimensions of a head of 16 are rotated"},
};

static const struct edit stablelm_edits[] = {
    {"qk_layernorm", "true", SL_EUNSUPPORTED, "qk_layernorm true: norms of q and k with a mean"},
    {"use_parallel_residual", "\"no\"", SL_EFORMAT, "use_parallel_residual must be true or false"},
    {"use_qkv_bias", "1", SL_EFORMAT, "use_qkv_bias must be true or false"},
};

static const struct edit nemotron_edits[] = {
    {"mlp_bias", "true", SL_EFORMAT, "mlp.up_proj.bias\" is missing"},
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
};

static const struct edit gpt_oss_edits[] = {
    {"swiglu_limit", "0", SL_EFORMAT, "swiglu_limit is 0, must be 0.001 to"},
    {"swiglu_alpha", "-1", SL_EFORMAT, "swiglu_alpha is -1, must be 0.001 to"},
    {"swiglu_limit", NULL, 0, NULL},
    {"hidden_act", "\"gelu\"", SL_EUNSUPPORTED, "hidden_act \"gelu\" is not supported"},
    {"num_experts_per_tok", "8", SL_EFORMAT, "num_experts_per_tok (8) is more than the 7 experts"},
    {"num_local_experts", "8", SL_EFORMAT,
     "mlp.router.weight\" has shape [7, 64], expected [8, 64]"},
    {"layer_types", "[\"full_attention\", \"chunked\"]", SL_EUNSUPPORTED, "layer_types"},
    {"attention_bias", "true", 0, NULL},
    {"attention_bias", NULL, 0, NULL},
    {"quantization_config", "{\"quant_method\": \"mxfp4\"}", 0, NULL},
    {"quantization_config", "{\"quant_method\": \"mxfp6\"}", SL_EUNSUPPORTED,
     "quant_method \"mxfp6\" is not supported|mxfp4"},
};

static const struct edit bert_edits[] = {
    INT_ROW("max_position_embeddings"),
    {"hidden_act", "\"gelu_python\"", SL_EUNSUPPORTED, "hidden_act \"gelu_python\" is not"},
    {"hidden_act", "\"relu\"", 0, NULL},
    {"position_embedding_type", "\"relative_key\"", SL_EUNSUPPORTED,
     "position_embedding_type \"relative_key\" is not supported"},
    {"is_decoder", "true", SL_EUNSUPPORTED, "is_decoder true is not supported"},
    {"type_vocab_size", "1", SL_EFORMAT, "type_vocab_size is 1, must be 2 to 16"},
    {"id2label", "[\"a\"]", SL_EFORMAT, "id2label must be an object, not a list"},
    {"id2label", "{}", SL_EFORMAT, "id2label has 0 labels"},
    {"id2label", "{\"0\": \"a\"}", SL_EFORMAT,
     "classifier.weight\" has shape [3, 48], expected [1, 48]"},
    {"sbert_ce_default_activation_function", "\"torch.nn.ReLU\"", SL_EUNSUPPORTED,
     "\"torch.nn.ReLU\" is not supported"},
    {"sbert_ce_default_activation_function", "\"torch.nn.modules.linear.Identity\"", 0, NULL},
};

static const struct edit nomic_edits[] = {
    {"prenorm", "true", SL_EUNSUPPORTED, "prenorm is true: not supported, must be false"},
    {"prenorm", "false", 0, NULL},
    {"prenorm", "0", SL_EFORMAT, "prenorm must be true or false"},
    {"rotary_emb_interleaved", "true", SL_EUNSUPPORTED, "must be false"},
    {"qkv_proj_bias", "true", SL_EUNSUPPORTED, "must be false"},
    {"mlp_fc1_bias", "true", SL_EUNSUPPORTED, "must be false"},
    {"mlp_fc2_bias", "true", SL_EUNSUPPORTED, "must be false"},
    {"use_rms_norm", "true", SL_EUNSUPPORTED, "must be false"},
    {"causal", "true", SL_EUNSUPPORTED, "must be false"},
    {"activation_function", "\"gelu\"", SL_EUNSUPPORTED, "supported: swiglu"},
    {"type_vocab_size", "17", SL_EFORMAT, "must be 0 to 16"},
};

static const struct edit modernbert_edits[] = {
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
    {"mlp_bias", "true", SL_EUNSUPPORTED, "mlp_bias is true: not supported"},
    {"norm_bias", "true", SL_EUNSUPPORTED, "norm_bias is true: not supported"},
    {"local_attention", "0", SL_EFORMAT, "local_attention is 0, must be 1 to"},
    {"local_attention", "128", 0, NULL},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
};

static const struct edit roberta_edits[] = {
    INT_ROW("max_position_embeddings"),
    {"max_position_embeddings", "2", SL_EFORMAT,
     "max_position_embeddings 2 leaves none behind pad_token_id 1"},
    {"pad_token_id", "81", SL_EFORMAT, "max_position_embeddings 82 leaves none behind"},
    {"pad_token_id", "-1", SL_EFORMAT, "pad_token_id is -1, must be 0 to"},
    {"type_vocab_size", "0", SL_EFORMAT, "type_vocab_size is 0, must be 1 to 16"},
    {"id2label", "{\"0\": \"a\"}", SL_EFORMAT,
     "classifier.out_proj.weight\" has shape [3, 48], expected [1, 48]"},
};

static void set_key(const char *folder, const char *key, const char *value)
{
    struct sl_error err = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    if (value == NULL)
        json_object_del(config, key);
    else
        json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(config, 0);
    if (sl_write_file(path, text, strlen(text), &err) != 0)
        fail_msg("%s", err.msg);
    sl_json_free_text(text);
    json_decref(config);
}

static float first_frequency(const char *path, int32_t context)
{
    struct rig g;
    rig_open(&g, path, &(struct rig_options){.context = context});
    const float f = g.model->ropes[0].inv_freq[1];
    rig_close(&g);
    return f;
}

/* LongRoPE takes its factors by the longest sequence that is served, not by each one's length; of
 * the first Phi-3 files, whose type is "yarn" or "su", too. */
static void test_longrope_by_context(void **state)
{
    (void)state;
    struct sl_synth s;
    static const char *const types[] = {"longrope", "su", "yarn"};
    make_folder("phi3", OUT "/longrope", &s);
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        char value[300];
        snprintf(value, sizeof value,
                 "{\"type\": \"%s\", \"short_factor\": [1, 2, 1, 1, 1, 1], \"long_factor\": [1, 8, "
                 "1, 1, 1, 1], \"original_max_position_embeddings\": 64}",
                 types[i]);
        set_key(OUT "/longrope", "rope_parameters", NULL);
        set_key(OUT "/longrope", "rope_scaling", value);
        set_key(OUT "/longrope", "partial_rotary_factor", "0.75");
        const float at_64 = first_frequency(OUT "/longrope", 64);
        const float at_65 = first_frequency(OUT "/longrope", 65);
        assert_true(at_64 == 4 * at_65);
        assert_true(first_frequency(OUT "/longrope", 0) == at_65); /* the model has 512 */
    }
}

/* A GLM-4 that does not say how much of a head is rotated rotates half of it. */
static void test_partial_default(void **state)
{
    (void)state;
    struct sl_synth s;
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    const char *config = "{\"architectures\": [\"Glm4ForCausalLM\"], \"hidden_size\": 64, "
                         "\"intermediate_size\": 160, \"num_hidden_layers\": 2, "
                         "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": "
                         "32, \"vocab_size\": 320, \"max_position_embeddings\": 512}";
    make_folder("glm4", OUT "/partial", &s);
    if (sl_write_file(OUT "/partial/config.json", config, strlen(config), &err) != 0 ||
        sl_ckpt_open(OUT "/partial", &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_rope_dims(&m->hp, m->layers, 0), 16);
    sl_model_close(m);
    sl_ckpt_close(c);
}

static void test_config_json(void **state)
{
    (void)state;
    struct sl_synth s;
    make_folder("llama", OUT "/edit_llama", &s);
    for (size_t i = 0; i < SL_COUNT(hf_edits); i++)
        apply(OUT "/edit_llama", &hf_edits[i]);
    make_folder("mistral", OUT "/edit_mistral", &s);
    for (size_t i = 0; i < SL_COUNT(mistral_edits); i++)
        apply(OUT "/edit_mistral", &mistral_edits[i]);
    make_folder("qwen3", OUT "/edit_qwen3", &s);
    for (size_t i = 0; i < SL_COUNT(qwen_edits); i++)
        apply(OUT "/edit_qwen3", &qwen_edits[i]);
    make_folder("smollm3", OUT "/edit_smollm3", &s);
    for (size_t i = 0; i < SL_COUNT(smollm3_edits); i++)
        apply(OUT "/edit_smollm3", &smollm3_edits[i]);
    make_folder("glm4", OUT "/edit_glm4", &s);
    for (size_t i = 0; i < SL_COUNT(glm4_edits); i++)
        apply(OUT "/edit_glm4", &glm4_edits[i]);
    make_folder("phi3", OUT "/edit_phi3", &s);
    for (size_t i = 0; i < SL_COUNT(phi3_edits); i++)
        apply(OUT "/edit_phi3", &phi3_edits[i]);
    for (size_t i = 0; i < SL_COUNT(expert_edits); i++) {
        make_folder(expert_edits[i].family, OUT "/edit_moe", &s);
        apply(OUT "/edit_moe", &expert_edits[i].edit);
    }
    make_folder("gpt-oss", OUT "/edit_gpt_oss", &s);
    for (size_t i = 0; i < SL_COUNT(gpt_oss_edits); i++)
        apply(OUT "/edit_gpt_oss", &gpt_oss_edits[i]);
    make_folder("exaone4", OUT "/edit_exaone4", &s);
    for (size_t i = 0; i < SL_COUNT(exaone4_edits); i++)
        apply(OUT "/edit_exaone4", &exaone4_edits[i]);
    make_folder("ernie4_5", OUT "/edit_ernie", &s);
    for (size_t i = 0; i < SL_COUNT(ernie_edits); i++)
        apply(OUT "/edit_ernie", &ernie_edits[i]);
    make_folder("arcee", OUT "/edit_arcee", &s);
    for (size_t i = 0; i < SL_COUNT(arcee_edits); i++)
        apply(OUT "/edit_arcee", &arcee_edits[i]);
    make_folder("seed_oss", OUT "/edit_seed_oss", &s);
    for (size_t i = 0; i < SL_COUNT(seed_oss_edits); i++)
        apply(OUT "/edit_seed_oss", &seed_oss_edits[i]);
    make_folder("gemma3-text", OUT "/edit_gemma3_text", &s);
    accepted(OUT "/edit_gemma3_text", "a model in a larger one");
    apply(OUT "/edit_gemma3_text", &(struct edit){"text_config", NULL, SL_EFORMAT,
                                                  "config.json: text_config must be an object"});
    make_folder("gemma3", OUT "/edit_gemma3", &s);
    for (size_t i = 0; i < SL_COUNT(gemma3_edits); i++)
        apply(OUT "/edit_gemma3", &gemma3_edits[i]);
    make_folder("gemma2", OUT "/edit_gemma2", &s);
    for (size_t i = 0; i < SL_COUNT(gemma2_edits); i++)
        apply(OUT "/edit_gemma2", &gemma2_edits[i]);
    make_folder("granite", OUT "/edit_granite", &s);
    for (size_t i = 0; i < SL_COUNT(granite_edits); i++)
        apply(OUT "/edit_granite", &granite_edits[i]);
    make_folder("gemma4", OUT "/edit_gemma4", &s);
    for (size_t i = 0; i < SL_COUNT(gemma4_edits); i++)
        apply(OUT "/edit_gemma4", &gemma4_edits[i]);
    make_folder("starcoder2", OUT "/edit_starcoder2", &s);
    for (size_t i = 0; i < SL_COUNT(starcoder2_edits); i++)
        apply(OUT "/edit_starcoder2", &starcoder2_edits[i]);
    make_folder("cohere", OUT "/edit_cohere", &s);
    for (size_t i = 0; i < SL_COUNT(cohere_edits); i++)
        apply(OUT "/edit_cohere", &cohere_edits[i]);
    make_folder("cohere2", OUT "/edit_cohere2", &s);
    for (size_t i = 0; i < SL_COUNT(cohere2_edits); i++)
        apply(OUT "/edit_cohere2", &cohere2_edits[i]);
    make_folder("phi", OUT "/edit_phi", &s);
    for (size_t i = 0; i < SL_COUNT(phi_edits); i++)
        apply(OUT "/edit_phi", &phi_edits[i]);
    make_folder("stablelm", OUT "/edit_stablelm", &s);
    for (size_t i = 0; i < SL_COUNT(stablelm_edits); i++)
        apply(OUT "/edit_stablelm", &stablelm_edits[i]);
    make_folder("nemotron", OUT "/edit_nemotron", &s);
    for (size_t i = 0; i < SL_COUNT(nemotron_edits); i++)
        apply(OUT "/edit_nemotron", &nemotron_edits[i]);
    make_folder("bert-classifier", OUT "/edit_bert", &s);
    for (size_t i = 0; i < SL_COUNT(bert_edits); i++)
        apply(OUT "/edit_bert", &bert_edits[i]);
    make_folder("nomic-bert", OUT "/edit_nomic", &s);
    for (size_t i = 0; i < SL_COUNT(nomic_edits); i++)
        apply(OUT "/edit_nomic", &nomic_edits[i]);
    make_folder("modernbert", OUT "/edit_modernbert", &s);
    for (size_t i = 0; i < SL_COUNT(modernbert_edits); i++)
        apply(OUT "/edit_modernbert", &modernbert_edits[i]);
    make_folder("roberta-classifier", OUT "/edit_roberta", &s);
    for (size_t i = 0; i < SL_COUNT(roberta_edits); i++)
        apply(OUT "/edit_roberta", &roberta_edits[i]);
}

/* Mistral's window: transformers reads a missing key as 4096, null as none; a Llama config's key
 * means nothing. A GGUF says "llama" for both and carries the key only where it counts. */
static int32_t window_of(const char *path)
{
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    if (sl_ckpt_open(path, &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    int32_t w = m->layers[0].window;
    for (int32_t i = 1; i < m->hp.n_layers; i++)
        assert_int_equal(m->layers[i].window, w);
    sl_model_close(m);
    sl_ckpt_close(c);
    return w;
}

static void test_windows(void **state)
{
    (void)state;
    struct sl_synth s;
    struct sl_error err = {0};
    make_folder("mistral", OUT "/window_keys", &s);
    assert_int_equal(window_of(OUT "/window_keys"), 24);
    set_key(OUT "/window_keys", "sliding_window", "null");
    assert_int_equal(window_of(OUT "/window_keys"), 0);
    set_key(OUT "/window_keys", "sliding_window", NULL);
    assert_int_equal(window_of(OUT "/window_keys"), 4096);
    s.format = SL_CKPT_GGUF;
    for (int32_t window = 0; window <= 24; window += 24) {
        s.hp.window = window;
        if (sl_synth_write(&s, OUT "/window_keys.gguf", &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(window_of(OUT "/window_keys.gguf"), window);
    }
    make_folder("llama", OUT "/window_keys", &s);
    set_key(OUT "/window_keys", "sliding_window", "16");
    assert_int_equal(window_of(OUT "/window_keys"), 0);
    /* Qwen asks for use_sliding_window as well */
    make_folder("qwen2", OUT "/window_keys", &s);
    set_key(OUT "/window_keys", "sliding_window", "16");
    assert_int_equal(window_of(OUT "/window_keys"), 0);
    set_key(OUT "/window_keys", "use_sliding_window", "true");
    set_key(OUT "/window_keys", "max_window_layers", "0");
    assert_int_equal(window_of(OUT "/window_keys"), 16);
}

/* eos ids: the union of both files, generation_config.json first, each once, none that the
 * vocabulary does not have. */
static void test_end_ids(void **state)
{
    (void)state;
    struct sl_synth s;
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    const char *gen = "{\"eos_token_id\": [7, 9, 5000]}";
    s.byte_vocab = false;
    make_folder("llama", OUT "/eos", &s);
    s.byte_vocab = true; /* config.json then names 257 */
    if (sl_synth_write(&s, OUT "/eos", &err) != 0 ||
        sl_write_file(OUT "/eos/generation_config.json", gen, strlen(gen), &err) != 0 ||
        sl_ckpt_open(OUT "/eos", &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
        fail_msg("%s", err.msg);
    const struct sl_model_facts *f = sl_model_facts(m);
    assert_int_equal(f->n_eos, 3);
    assert_int_equal(f->eos[0], 7);
    assert_int_equal(f->eos[1], 9);
    assert_int_equal(f->eos[2], SL_SYNTH_EOS);
    assert_int_equal(f->bos, SL_SYNTH_BOS);
    sl_model_close(m);
    sl_ckpt_close(c);
}

/* ---------------------------------------------------------------- GGUF metadata */

enum kind { U32, I32, F32, STR, BOOL, NONE };

struct pair {
    const char *key;
    enum kind kind;
    double number;
    const char *str;
    int code;
    const char *want;
};

static const struct pair gguf_base[] = {
    {"general.architecture", STR, 0, "llama", 0, NULL},
    {"llama.embedding_length", U32, 64, NULL, 0, NULL},
    {"llama.feed_forward_length", U32, 160, NULL, 0, NULL},
    {"llama.block_count", U32, 2, NULL, 0, NULL},
    {"llama.attention.head_count", U32, 4, NULL, 0, NULL},
    {"llama.attention.head_count_kv", U32, 2, NULL, 0, NULL},
    {"llama.context_length", U32, 512, NULL, 0, NULL},
    {"llama.attention.layer_norm_rms_epsilon", F32, 1e-5, NULL, 0, NULL},
};

#define GGUF_ROW(suffix)                                                                          \
    {"llama." suffix, NONE, 0, NULL, SL_EFORMAT, "GGUF: llama." suffix " is missing"},            \
        {"llama." suffix, U32, 0, NULL, SL_EFORMAT, "GGUF: llama." suffix " is 0, must be 1 to"}, \
        {"llama." suffix, I32, -5, NULL, SL_EFORMAT, "GGUF: llama." suffix " is -5"},             \
        {"llama." suffix, U32, 4294967295.0, NULL, SL_EFORMAT, "llama." suffix " is 4294967295"}, \
        {"llama." suffix, F32, 64, NULL, SL_EFORMAT, "llama." suffix},                            \
        {"llama." suffix, STR, 0, "64", SL_EFORMAT, "llama." suffix},                             \
    {                                                                                             \
        "llama." suffix, BOOL, 1, NULL, SL_EFORMAT, "llama." suffix                               \
    }

static const struct pair gguf_edits[] = {
    GGUF_ROW("embedding_length"),
    GGUF_ROW("feed_forward_length"),
    GGUF_ROW("block_count"),
    GGUF_ROW("attention.head_count"),
    GGUF_ROW("context_length"),
    {"general.architecture", NONE, 0, NULL, SL_EFORMAT, "general.architecture is missing"},
    {"general.architecture", STR, 0, "mamba", SL_EUNSUPPORTED,
     "general.architecture \"mamba\" is not supported (supported: llama, mistral3, qwen2, qwen3, "},
    {"general.architecture", U32, 3, NULL, SL_EFORMAT, "general.architecture"},
    {"llama.attention.head_count_kv", U32, 3, NULL, SL_EFORMAT, "(4)|attention.head_count_kv (3)"},
    {"llama.attention.key_length", U32, 17, NULL, SL_EFORMAT, "attention.key_length is 17"},
    {"llama.attention.value_length", U32, 32, NULL, SL_EUNSUPPORTED, "attention.value_length (32)"},
    {"llama.rope.dimension_count", U32, 8, NULL, SL_EUNSUPPORTED, "rope.dimension_count (8)"},
    {"llama.expert_count", U32, 8, NULL, SL_EFORMAT, "llama.expert_used_count is missing"},
    {"llama.attention.layer_norm_rms_epsilon", F32, 0, NULL, SL_EFORMAT, "epsilon is 0"},
    {"llama.attention.layer_norm_rms_epsilon", STR, 0, "x", SL_EFORMAT, "epsilon"},
    {"llama.rope.freq_base", F32, 0, NULL, SL_EFORMAT, "llama.rope.freq_base is 0"},
    {"llama.rope.scaling.type", STR, 0, "longrope", SL_EUNSUPPORTED,
     "llama.rope.scaling.type \"longrope\" without rope_factors_short.weight"},
    {"llama.rope.scaling.type", U32, 1, NULL, SL_EFORMAT, "llama.rope.scaling.type"},
    {"llama.attention.sliding_window", U32, 0, NULL, SL_EFORMAT, "sliding_window is 0"},
    {"llama.embedding_length", U32, 66, NULL, SL_EFORMAT, "(66) is not a multiple of"},
    {"none", NONE, 0, NULL, SL_EFORMAT, "tensor \"token_embd.weight\" is missing"},
};

static void add_pair(struct sl_gguf_writer *w, const struct pair *p)
{
    switch (p->kind) {
    case U32:
        sl_gguf_writer_add_u32(w, p->key, (uint32_t)p->number);
        break;
    case I32:
        sl_gguf_writer_add_i32(w, p->key, (int32_t)p->number);
        break;
    case F32:
        sl_gguf_writer_add_f32(w, p->key, (float)p->number);
        break;
    case STR:
        sl_gguf_writer_add_str(w, p->key, p->str);
        break;
    case BOOL:
        sl_gguf_writer_add_bool(w, p->key, p->number != 0);
        break;
    case NONE:
        break;
    }
}

static void test_gguf_metadata(void **state)
{
    (void)state;
    const char *path = OUT "/edit.gguf";
    for (size_t i = 0; i < SL_COUNT(gguf_edits); i++) {
        struct sl_gguf_writer *w = NULL;
        struct sl_error err = {0};
        int64_t dims[2] = {8, 8};
        uint8_t data[256] = {0};
        char label[128];
        if (sl_gguf_writer_create(path, &w, &err) != 0)
            fail_msg("%s", err.msg);
        for (size_t b = 0; b < SL_COUNT(gguf_base); b++) {
            if (strcmp(gguf_base[b].key, gguf_edits[i].key) != 0)
                add_pair(w, &gguf_base[b]);
        }
        add_pair(w, &gguf_edits[i]);
        sl_gguf_writer_add_tensor(w, "unrelated", SL_DTYPE_F32, 2, dims);
        if (sl_gguf_writer_begin_data(w, &err) != 0 ||
            sl_gguf_writer_write_tensor_data(w, data, sizeof data, &err) != 0 ||
            sl_gguf_writer_finish(w, &err) != 0)
            fail_msg("%s", err.msg);
        snprintf(label, sizeof label, "GGUF edit %zu: %s", i, gguf_edits[i].key);
        refused(path, gguf_edits[i].code, gguf_edits[i].want, label);
    }
}

/* ---------------------------------------------------------------- tensors */

enum change { DROP, RESHAPE, FLATTEN, TRANSPOSE, QUANTISE };

struct tensor_edit {
    const char *name; /* GGUF */
    enum change change;
    int code;
    const char *want;
};

static const struct tensor_edit tensor_edits[] = {
    {"token_embd.weight", DROP, SL_EFORMAT, "tensor \"token_embd.weight\" is missing"},
    {"token_embd.weight", FLATTEN, SL_EFORMAT, "\"token_embd.weight\" has shape [16384]"},
    {"output_norm.weight", DROP, SL_EFORMAT, "tensor \"output_norm.weight\" is missing"},
    {"output_norm.weight", RESHAPE, SL_EFORMAT, "has shape [96], expected [64]"},
    {"output_norm.weight", QUANTISE, SL_EUNSUPPORTED,
     "\"output_norm.weight\" is q8_0; norms and biases must be"},
    {"output.weight", RESHAPE, SL_EFORMAT, "\"output.weight\" has shape [288, 64], expected [256"},
    {"blk.1.attn_q.weight", DROP, SL_EFORMAT, "tensor \"blk.1.attn_q.weight\" is missing"},
    {"blk.1.attn_q.weight", TRANSPOSE, SL_EFORMAT, "has shape [64, 128], expected [128, 64]"},
    {"blk.1.attn_k.weight", RESHAPE, SL_EFORMAT, "has shape [96, 64], expected [64, 64]"},
    {"blk.1.attn_v.weight", DROP, SL_EFORMAT, "tensor \"blk.1.attn_v.weight\" is missing"},
    {"blk.0.attn_output.weight", TRANSPOSE, SL_EFORMAT, "[128, 64], expected [64, 128]"},
    {"blk.0.attn_q_norm.weight", DROP, SL_EFORMAT, "\"blk.0.attn_q_norm.weight\" is missing"},
    {"blk.1.attn_k_norm.weight", DROP, SL_EFORMAT, "\"blk.1.attn_k_norm.weight\" is missing"},
    {"blk.1.attn_norm.weight", DROP, SL_EFORMAT, "\"blk.1.attn_norm.weight\" is missing"},
    {"blk.0.ffn_norm.weight", RESHAPE, SL_EFORMAT, "has shape [96], expected [64]"},
    {"blk.0.ffn_gate.weight", TRANSPOSE, SL_EFORMAT, "[64, 160], expected [160, 64]"},
    {"blk.0.ffn_up.weight", DROP, SL_EFORMAT, "\"blk.0.ffn_up.weight\" is missing"},
    {"blk.0.ffn_down.weight", TRANSPOSE, SL_EFORMAT, "[160, 64], expected [64, 160]"},
};

/* pooling: its type, as llama.cpp counts them; 0: no key. */
static void write_qwen3(const char *path, const struct tensor_edit *e, uint32_t pooling)
{
    struct sl_synth s = {.name = "qwen3"};
    const struct sl_model_desc *desc;
    const struct sl_model_name *name = sl_registry_find("qwen3", &desc);
    struct sl_gguf_writer *w = NULL;
    struct sl_error err = {0};
    if (sl_synth_shape("qwen3", "tiny", &s.hp, &err) != 0 ||
        sl_gguf_writer_create(path, &w, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.n_vocab = 256;
    s.hp.has |= name->has | SL_HAS_HEAD;
    struct sl_layer_desc *layers = sl_calloc((size_t)s.hp.n_layers, sizeof *layers);
    assert_non_null(layers);
    if (sl_plan(desc, name, &s.hp, layers, &err) != 0)
        fail_msg("%s", err.msg);
    sl_gguf_writer_add_str(w, "general.architecture", "qwen3");
    sl_gguf_writer_add_u32(w, "qwen3.embedding_length", (uint32_t)s.hp.hidden);
    sl_gguf_writer_add_u32(w, "qwen3.feed_forward_length", (uint32_t)s.hp.intermediate);
    sl_gguf_writer_add_u32(w, "qwen3.block_count", (uint32_t)s.hp.n_layers);
    sl_gguf_writer_add_u32(w, "qwen3.attention.head_count", (uint32_t)s.hp.n_heads);
    sl_gguf_writer_add_u32(w, "qwen3.attention.head_count_kv", (uint32_t)s.hp.n_kv_heads);
    sl_gguf_writer_add_u32(w, "qwen3.attention.key_length", (uint32_t)s.hp.head_dim);
    sl_gguf_writer_add_u32(w, "qwen3.context_length", (uint32_t)s.hp.context);
    if (pooling > 0)
        sl_gguf_writer_add_u32(w, "qwen3.pooling_type", pooling);
    static uint8_t zeros[1 << 18];
    for (int writing = 0; writing < 2; writing++) {
        if (writing && sl_gguf_writer_begin_data(w, &err) != 0)
            fail_msg("%s", err.msg);
        for (int32_t l = -1; l < s.hp.n_layers; l++) {
            for (int32_t i = 0; i < desc->n_weights; i++) {
                const struct sl_weight_desc *d = &desc->weights[i];
                char tensor[SL_MAX_TENSOR_NAME];
                if ((d->slot >= SL_SLOT_FIRST_GLOBAL) != (l < 0) || d->gguf == NULL ||
                    (d->when & ~s.hp.has) != 0)
                    continue;
                sl_bind_name(d->gguf, l, 0, tensor);
                int64_t dims[2] = {sl_layer_dim(&s.hp, layers, d->rows),
                                   sl_layer_dim(&s.hp, layers, d->cols)};
                int32_t n_dims = d->cols == SL_DIM_NONE ? 1 : 2;
                enum sl_dtype dtype = SL_DTYPE_F32;
                if (e != NULL && strcmp(e->name, tensor) == 0) {
                    int64_t t = dims[0];
                    if (e->change == DROP)
                        continue;
                    dims[0] = e->change == RESHAPE     ? dims[0] + 32
                              : e->change == FLATTEN   ? dims[0] * dims[1]
                              : e->change == TRANSPOSE ? dims[1]
                                                       : dims[0];
                    dims[1] = e->change == TRANSPOSE ? t : dims[1];
                    n_dims = e->change == FLATTEN ? 1 : n_dims;
                    dtype = e->change == QUANTISE ? SL_DTYPE_Q8_0 : dtype;
                }
                uint64_t n_bytes = 0;
                assert_true(sl_dtype_bytes(
                    dtype, (uint64_t)(n_dims == 2 ? dims[0] * dims[1] : dims[0]), &n_bytes));
                assert_true(n_bytes <= sizeof zeros);
                if (!writing)
                    sl_gguf_writer_add_tensor(w, tensor, dtype, n_dims, dims);
                else if (sl_gguf_writer_write_tensor_data(w, zeros, (size_t)n_bytes, &err) != 0)
                    fail_msg("%s", err.msg);
            }
        }
    }
    if (sl_gguf_writer_finish(w, &err) != 0)
        fail_msg("%s", err.msg);
    sl_free(layers);
}

static void test_tensors(void **state)
{
    (void)state;
    const char *path = OUT "/tensors.gguf";
    write_qwen3(path, NULL, 0);
    accepted(path, "unchanged");
    /* without an output matrix the embedding serves */
    write_qwen3(path, &(struct tensor_edit){"output.weight", DROP, 0, NULL}, 0);
    accepted(path, "tied");
    for (size_t i = 0; i < SL_COUNT(tensor_edits); i++) {
        write_qwen3(path, &tensor_edits[i], 0);
        refused(path, tensor_edits[i].code, tensor_edits[i].want, tensor_edits[i].name);
    }
}

/* A ranker without its classifier: the first token's vector would be the same for every text. */
static void test_rank_without_classifier(void **state)
{
    (void)state;
    static const int32_t yes_no[2] = {1, 2};
    const char *path = OUT "/rank.gguf";
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    write_qwen3(path, NULL, 4);
    if (sl_ckpt_open(path, &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_model_set_task(m, NULL, NULL, NULL, &err), SL_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "qwen3.pooling_type 4 (rank) without a classifier"));
    assert_int_equal(sl_model_set_task(m, "pooling", "auto", NULL, &err), SL_EUNSUPPORTED);
    assert_int_equal(sl_model_set_task(m, NULL, NULL, yes_no, &err), 0);
    assert_int_equal(sl_model_facts(m)->task, SL_TASK_SCORE);
    assert_int_equal(sl_model_set_task(m, "generate", NULL, NULL, &err), 0);
    assert_int_equal(sl_model_set_task(m, NULL, "embed", NULL, &err), 0);
    assert_int_equal(sl_model_facts(m)->pool, SL_POOL_LAST);
    sl_model_close(m);
    sl_ckpt_close(c);
}

/* A tokenizer may know more tokens than the model has logits. */
static void test_score_of_tokens_the_model_lacks(void **state)
{
    (void)state;
    const char *path = OUT "/tokens.gguf";
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    write_qwen3(path, NULL, 0);
    if (sl_ckpt_open(path, &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
        fail_msg("%s", err.msg);
    const int32_t n = sl_model_facts(m)->n_vocab;
    const int32_t last[2] = {0, n - 1}, beyond[2] = {0, n}, first[2] = {n, 0};
    assert_int_equal(sl_model_set_task(m, NULL, NULL, last, &err), 0);
    assert_int_equal(sl_model_set_task(m, NULL, NULL, beyond, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "classifier_from_token: token 256"));
    assert_int_equal(sl_model_set_task(m, NULL, NULL, first, &err), SL_EINVAL);
    assert_int_equal(sl_model_set_task(m, "generate", NULL, beyond, &err), 0);
    sl_model_close(m);
    sl_ckpt_close(c);
}

static const struct sl_cpu_config plain = {.n_threads = 1, .isa = SL_ISA_C};

/* Divisors of the rotation frequencies must be positive numbers: all zeros are refused at load. */
/* A GGUF counts layers that predict further tokens as blocks; they are not loaded. */
static void test_nextn(void **state)
{
    struct sl_synth s = {.name = "glm4moe", .dtype = SL_DTYPE_F32, .format = SL_CKPT_GGUF};
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    (void)state;
    for (int32_t n = 1; n <= 3; n++) {
        assert_int_equal(sl_synth_shape(s.name, "tiny", &s.hp, &err), 0);
        s.hp.n_nextn = n;
        if (sl_synth_write(&s, OUT "/nextn.gguf", &err) != 0)
            fail_msg("%s", err.msg);
        if (n == 3) {
            refused(OUT "/nextn.gguf", SL_EFORMAT, "glm4moe.block_count is 3|layers 3", "nextn");
            continue;
        }
        if (sl_ckpt_open(OUT "/nextn.gguf", &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(sl_model_facts(m)->n_layers, 3 - n);
        sl_model_close(m);
        sl_ckpt_close(c);
    }
}

static void test_rope_freqs(void **state)
{
    (void)state;
    struct sl_synth s = {.name = "llama", .dtype = SL_DTYPE_F32, .format = SL_CKPT_GGUF};
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_backend *be = NULL;
    if (sl_synth_shape("llama", "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.ropes[0].scaling = SL_ROPE_LLAMA3;
    s.hp.ropes[0].factor = 1; /* every divisor is then 1, except that ... */
    s.hp.ropes[0].original_context =
        0; /* ... no context makes the ramp divide 0 by 0 or go below 0 */
    s.hp.ropes[0].low_freq_factor = 0;
    s.hp.ropes[0].high_freq_factor = 0;
    if (sl_synth_write(&s, OUT "/freqs.gguf", &err) != 0 ||
        sl_ckpt_open(OUT "/freqs.gguf", &c, &err) != 0 || sl_model_open(c, &m, &err) != 0 ||
        sl_cpu_create(&plain, &be, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_model_load(m, be, NULL, NULL, &err), SL_EFORMAT);
    assert_non_null(strstr(err.msg, "tensor \"rope_freqs.weight\": value 0 is not a positive"));
    sl_model_close(m);
    sl_ckpt_close(c);
    be->vt->destroy(be);
}

/* ---------------------------------------------------------------- memory */

static int n_left; /* allocations that still succeed */

static void *scarce_alloc(size_t n)
{
    return n_left-- > 0 ? sl_sys_real.alloc(n) : NULL;
}

static void *scarce_tensor(size_t n)
{
    return n_left-- > 0 ? sl_sys_real.alloc_tensor(n) : NULL;
}

/* Every allocation of opening, loading and creating a run fails once; each failure is reported and
 * leaves nothing behind (the leak checker watches). */
static void run_out_of_memory(enum sl_dtype dtype, bool tied)
{
    struct sl_synth s = {.name = "llama", .dtype = dtype, .format = SL_CKPT_GGUF};
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    struct sl_backend *be = NULL;
    struct sl_sys scarce = sl_sys_real;
    int n = 0, rc;
    scarce.alloc = scarce_alloc;
    scarce.alloc_tensor = scarce_tensor;
    if (sl_synth_shape("llama", "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.has |= SL_HAS_QKV_BIAS;
    s.hp.has = tied ? s.hp.has & ~(unsigned)SL_HAS_HEAD : s.hp.has | SL_HAS_HEAD;
    if (sl_synth_write(&s, OUT "/scarce.gguf", &err) != 0 ||
        sl_ckpt_open(OUT "/scarce.gguf", &c, &err) != 0 || sl_cpu_create(&plain, &be, &err) != 0)
        fail_msg("%s", err.msg);
    do {
        struct sl_model *m = NULL;
        struct sl_run *r = NULL;
        struct sl_run_config cfg = {.max_tokens = 4, .max_logits = 4};
        n_left = n++;
        sl_sys = &scarce;
        rc = sl_model_open(c, &m, &err);
        if (rc == 0)
            rc = sl_model_load(m, be, NULL, NULL, &err);
        if (rc == 0)
            rc = sl_model_kv_layout(m, "f16", SL_DTYPE_BF16, 16, &cfg.kv, &err);
        if (rc == 0)
            rc = sl_run_create(m, &cfg, &r, &err);
        sl_sys = &sl_sys_real;
        if (rc != 0) {
            assert_int_equal(rc, SL_ENOMEM);
            assert_int_equal(err.code, SL_ENOMEM);
        }
        sl_run_destroy(r);
        sl_model_close(m);
    } while (rc != 0 && n < 1000);
    assert_int_equal(rc, 0);
    assert_true(n > 10);
    be->vt->destroy(be);
    sl_ckpt_close(c);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    run_out_of_memory(SL_DTYPE_BF16, true); /* rows of the file, some put into order */
    run_out_of_memory(SL_DTYPE_Q8_0, true); /* repacked, the head from the embedding */
    run_out_of_memory(SL_DTYPE_Q4_0, false);
}

static size_t n_alive; /* bytes of tensor memory */

static void *counting_alloc(size_t n)
{
    n_alive += n;
    return sl_sys_real.alloc_tensor(n);
}

static void counting_free(void *p, size_t n)
{
    n_alive -= n;
    sl_sys_real.free_tensor(p, n);
}

static size_t n_dropped;

static void counting_drop(void *p, size_t n)
{
    n_dropped += n;
    sl_sys_real.drop(p, n);
}

/* What sl_model_weight_memory says is what loading takes; what was repacked leaves the mapping, and
 * the embedding of a tied head stays. */
static void test_weight_memory(void **state)
{
    static const struct {
        enum sl_dtype dtype;
        bool tied, exact;
    } cases[] = {{SL_DTYPE_Q8_0, true, false},     {SL_DTYPE_Q8_0, false, false},
                 {SL_DTYPE_Q4_0, true, false},     {SL_DTYPE_Q4_0, true, true},
                 {SL_DTYPE_F16, false, false},     {SL_DTYPE_F32, true, false},
                 {SL_DTYPE_FP8_E4M3, true, false}, {SL_DTYPE_FP8_E4M3, true, true}};
    struct sl_sys counting = sl_sys_real;
    (void)state;
    counting.alloc_tensor = counting_alloc;
    counting.free_tensor = counting_free;
    counting.drop = counting_drop;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const bool fp8 = cases[i].dtype == SL_DTYPE_FP8_E4M3;
        const char *path = fp8 ? OUT "/memory" : OUT "/memory.gguf";
        struct sl_synth s = {.name = "qwen2", .dtype = cases[i].dtype, .format = SL_CKPT_GGUF};
        struct sl_cpu_config cpu = {.n_threads = 2, .isa = SL_ISA_C, .exact = cases[i].exact};
        struct sl_error err = {0};
        struct sl_ckpt *c = NULL;
        struct sl_model *m = NULL;
        struct sl_backend *be = NULL;
        uint64_t allocated, mapped;
        if (sl_synth_shape("qwen2", "tiny", &s.hp, &err) != 0)
            fail_msg("%s", err.msg);
        s.hp.has = cases[i].tied ? s.hp.has & ~(unsigned)SL_HAS_HEAD : s.hp.has | SL_HAS_HEAD;
        s.hp.intermediate = 512; /* matrices of several pages */
        if (fp8) {
            s.format = SL_CKPT_HF;
            s.scales = SL_SYNTH_CHANNEL;
            cpu.isa = SL_ISA_AUTO;
        }
        if (sl_synth_write(&s, path, &err) != 0 || sl_ckpt_open(path, &c, &err) != 0 ||
            sl_model_open(c, &m, &err) != 0 || sl_cpu_create(&cpu, &be, &err) != 0)
            fail_msg("%s", err.msg);
        sl_model_weight_memory(m, be, &allocated, &mapped);
        uint64_t file = sl_model_facts(m)->weight_bytes;
        bool packs =
            cases[i].dtype != SL_DTYPE_F16 && cases[i].dtype != SL_DTYPE_F32 && !cases[i].exact;
        if (fp8) /* on processors that multiply BF16 */
            packs = packs && (strstr(be->vt->isa(be), "bf16") || strstr(be->vt->isa(be), "amx"));
        assert_true(packs ? mapped < file / 2 && allocated > file / 2 : allocated < mapped);
        n_alive = n_dropped = 0;
        sl_sys = &counting;
        assert_int_equal(sl_model_load(m, be, NULL, NULL, &err), 0);
        /* The rotation table, and a block of activations in the packed form, come on top. */
        size_t rope = (size_t)s.hp.head_dim / 2 * sizeof(float);
        size_t activations = n_alive - (size_t)allocated - rope;
        assert_true(packs ? activations > 0 && activations < 1 << 20 : activations == 0);
        assert_int_equal(n_dropped > 0, packs);
        assert_true(n_dropped <= file);
        sl_model_close(m);
        assert_int_equal(n_alive, activations); /* the backend's, until it goes */
        be->vt->destroy(be);
        sl_sys = &sl_sys_real;
        sl_ckpt_close(c);
    }
}

static void test_run_limits(void **state)
{
    (void)state;
    struct rig g;
    struct sl_error err = {0};
    struct sl_kv_layout l;
    struct sl_run *r = NULL;
    rig_open(&g, "tests/golden/models/llama2", &(struct rig_options){0});
    assert_int_equal(sl_model_kv_layout(g.model, "q4_0", SL_DTYPE_BF16, 16, &l, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "kv-cache-dtype \"q4_0\""));
    assert_int_equal(sl_model_kv_layout(g.model, "auto", SL_DTYPE_F16, 16, &l, &err), 0);
    assert_int_equal(l.dtype, SL_DTYPE_F16);
    assert_int_equal(sl_model_kv_layout(g.model, "f32", SL_DTYPE_F16, 16, &l, &err), 0);
    assert_int_equal(l.dtype, SL_DTYPE_F32);
    assert_int_equal(g.be->vt->kv_dtype, SL_DTYPE_BF16);
    assert_int_equal(sl_model_kv_layout(g.model, "f16", SL_DTYPE_BF16, 0, &l, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "block-size is 0"));
    assert_int_equal(sl_model_kv_layout(g.model, "f16", SL_DTYPE_BF16, 272, &l, &err), SL_EINVAL);
    assert_int_equal(sl_model_kv_layout(g.model, "f16", SL_DTYPE_BF16, 24, &l, &err), SL_EINVAL);
    struct sl_run_config cfg = {.max_logits = 1, .kv = g.kv, .kv_pool = {g.pool}};
    assert_int_equal(sl_run_create(g.model, &cfg, &r, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "max-num-batched-tokens is 0"));
    cfg.max_tokens = SL_MAX_STEP_TOKENS + 1;
    assert_int_equal(sl_run_create(g.model, &cfg, &r, &err), SL_EINVAL);
    cfg.max_tokens = 1;
    cfg.max_logits = 0;
    assert_int_equal(sl_run_create(g.model, &cfg, &r, &err), SL_EINVAL);
    assert_null(r);
    cfg.max_logits = 1;
    uint64_t one = sl_run_bytes(g.model, g.be, &cfg);
    cfg.max_tokens = 64;
    assert_true(sl_run_bytes(g.model, g.be, &cfg) > 8 * one);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_json),
        cmocka_unit_test(test_end_ids),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_gguf_metadata),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_rank_without_classifier),
        cmocka_unit_test(test_score_of_tokens_the_model_lacks),
        cmocka_unit_test(test_rope_freqs),
        cmocka_unit_test(test_nextn),
        cmocka_unit_test(test_partial_default),
        cmocka_unit_test(test_longrope_by_context),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_weight_memory),
        cmocka_unit_test(test_run_limits),
    };
    return cmocka_run_group_tests_name("configs", tests, setup_group, NULL);
}
