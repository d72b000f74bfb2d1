/* SPDX-License-Identifier: MIT
 * What a model refuses and how it says so: every hyper-parameter missing, of the wrong type, too
 * small and too large, in config.json and in GGUF metadata; tensors missing, misshapen or in a
 * format their place cannot take; memory running out at every allocation.
 */
#include "base/json_load.h"
#include "io/gguf_write.h"
#include "io/safetensors_write.h"
#include "models/config_edits.h"
#include "models/internal.h"
#include "models/mamba_edits.h"
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

/* The object that a key with dots is in; *key becomes its name there. */
static json_t *holder_of(json_t *config, const char **key)
{
    for (const char *dot; (dot = strchr(*key, '.')) != NULL; *key = dot + 1) {
        json_t *o = json_object_getn(config, *key, (size_t)(dot - *key));
        if (!json_is_object(o))
            break;
        config = o;
    }
    return config;
}

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
    const char *key = e->key;
    json_t *holder = holder_of(config, &key);
    if (e->value == NULL) {
        json_object_del(holder, key);
    } else {
        json_t *v = json_loads(e->value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        json_object_set_new(holder, key, v);
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

/* What Cohere's config.json leaves out or says to be null, as transformers 5.23 has it: Command R
 * turns with theta 500000; layers of Cohere 2 whose window is null are not rotated. */
static void test_cohere_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *name, *key, *value;
        double theta;
        int32_t rope;
    } cases[] = {{"cohere", "rope_parameters", NULL, 500000, 0},
                 {"cohere", "rope_parameters", "{\"rope_theta\": 10000}", 10000, 0},
                 {"cohere2", "rope_parameters", NULL, 10000, 0},
                 {"cohere2", "sliding_window", "null", 10000, -1}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_synth s;
        struct sl_ckpt *c = NULL;
        struct sl_model *m = NULL;
        struct sl_error err = {0};
        make_folder(cases[i].name, OUT "/cohere_defaults", &s);
        set_key(OUT "/cohere_defaults", cases[i].key, cases[i].value);
        if (sl_ckpt_open(OUT "/cohere_defaults", &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
            fail_msg("%s", err.msg);
        assert_true(m->hp.ropes[0].theta == cases[i].theta);
        assert_int_equal(m->layers[0].rope, cases[i].rope);
        assert_true(cases[i].rope == 0 || m->layers[0].window == 0);
        sl_model_close(m);
        sl_ckpt_close(c);
    }
}

/* What Python writes as Infinity, in a list and in a string, which stays as it is. */
static void test_infinity(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double most; /* 0: refused */
    } cases[] = {
        {"[0.0, Infinity]", (double)INFINITY},
        {"[0.5, 2e3]", 2000},
        {"[0.0, {\"__float__\": \"Infinity\"}]", (double)INFINITY},
        {"[-Infinity, Infinity]", 0},
        {"[Infinity, Infinity]", 0},
        {"[0.0, Infinit]", 0},
        {"[0.0, InfinityInfinity]", 0},
        {"[0.0, 0.5Infinity]", 0},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_synth s;
        struct sl_ckpt *c = NULL;
        struct sl_model *m = NULL;
        struct sl_error err = {0};
        char *text, edited[2048];
        size_t n;
        make_folder("mamba2", OUT "/infinity", &s);
        if (sl_read_file(OUT "/infinity/config.json", 1 << 20, &text, &n, &err) != 0)
            fail_msg("%s", err.msg);
        n = (size_t)snprintf(edited, sizeof edited,
                             "{\"time_step_limit\": %s, \"note\": \"\\\"Infinity\\\"\",%s",
                             cases[i].text, text + 1);
        sl_free(text);
        assert_true(n < sizeof edited);
        if (sl_write_file(OUT "/infinity/config.json", edited, n, &err) != 0)
            fail_msg("%s", err.msg);
        int rc = sl_ckpt_open(OUT "/infinity", &c, &err);
        if (rc == 0) {
            assert_string_equal(json_string_value(json_object_get(sl_ckpt_config(c), "note")),
                                "\"Infinity\"");
            rc = sl_model_open(c, &m, &err);
        }
        if (rc == 0)
            assert_true((double)m->layers[0].state.dt_max == cases[i].most);
        assert_int_equal(rc == 0, cases[i].most > 0);
        sl_model_close(m);
        sl_ckpt_close(c);
    }
}

static void test_more_config_json(void **state)
{
    (void)state;
    struct sl_synth s;
    make_folder("gemma", OUT "/edit_gemma1", &s);
    for (size_t i = 0; i < SL_COUNT(gemma1_edits); i++)
        apply(OUT "/edit_gemma1", &gemma1_edits[i]);
    make_folder("gemma3n", OUT "/edit_gemma3n", &s);
    for (size_t i = 0; i < SL_COUNT(gemma3n_edits); i++)
        apply(OUT "/edit_gemma3n", &gemma3n_edits[i]);
    make_folder("gpt_neox", OUT "/edit_gpt_neox", &s);
    set_key(OUT "/edit_gpt_neox", "partial_rotary_factor", NULL);
    set_key(OUT "/edit_gpt_neox", "rope_parameters", NULL);
    for (size_t i = 0; i < SL_COUNT(gpt_neox_edits); i++)
        apply(OUT "/edit_gpt_neox", &gpt_neox_edits[i]);
    make_folder("falcon", OUT "/edit_falcon", &s);
    for (size_t i = 0; i < SL_COUNT(falcon_edits); i++)
        apply(OUT "/edit_falcon", &falcon_edits[i]);
    make_folder("eurobert", OUT "/edit_eurobert", &s);
    for (size_t i = 0; i < SL_COUNT(eurobert_edits); i++)
        apply(OUT "/edit_eurobert", &eurobert_edits[i]);
    for (size_t i = 0; i < SL_COUNT(mamba_edits); i++) {
        make_folder(mamba_edits[i].family, OUT "/edit_mamba", &s);
        apply(OUT "/edit_mamba", &mamba_edits[i].edit);
    }
}

/* Edits of a family's config.json. */
static const struct {
    const char *family;
    const struct edit *edits;
    size_t n;
} edited[] = {
#define EDITED(family, edits)          \
    {                                  \
        family, edits, SL_COUNT(edits) \
    }
    EDITED("llama", hf_edits),
    EDITED("mistral", mistral_edits),
    EDITED("qwen3", qwen_edits),
    EDITED("smollm3", smollm3_edits),
    EDITED("glm4", glm4_edits),
    EDITED("phi3", phi3_edits),
    EDITED("gpt-oss", gpt_oss_edits),
    EDITED("exaone4", exaone4_edits),
    EDITED("ernie4_5", ernie_edits),
    EDITED("apertus", apertus_edits),
    EDITED("arcee", arcee_edits),
    EDITED("seed_oss", seed_oss_edits),
    EDITED("gemma3", gemma3_edits),
    EDITED("gemma2", gemma2_edits),
    EDITED("granite", granite_edits),
    EDITED("gemma4", gemma4_edits),
    EDITED("starcoder2", starcoder2_edits),
    EDITED("cohere", cohere_edits),
    EDITED("cohere2", cohere2_edits),
    EDITED("phi", phi_edits),
    EDITED("stablelm", stablelm_edits),
    EDITED("nemotron", nemotron_edits),
    EDITED("lfm2", lfm2_edits),
    EDITED("lfm2moe", lfm2moe_edits),
    EDITED("lfm3", lfm3_edits),
    EDITED("qwen35", qwen35_edits),
    EDITED("qwen35moe", qwen35moe_edits),
    EDITED("olmo_hybrid", olmo_hybrid_edits),
    EDITED("jet_nemotron", jet_nemotron_edits),
    EDITED("recurrent_gemma", recurrent_gemma_edits),
    EDITED("rwkv7", rwkv7_edits),
    EDITED("zamba2", zamba2_edits),
    EDITED("deepseek_v2", deepseek_v2_edits),
    EDITED("bailing_hybrid", bailing_hybrid_edits),
    EDITED("laguna", laguna_edits),
    EDITED("youtu", youtu_edits),
    EDITED("axk1", axk1_edits),
    EDITED("axk2", axk2_edits),
    EDITED("longcat_flash", longcat_flash_edits),
    EDITED("hy_v4", hy_v4_edits),
    EDITED("glm5_next-text", glm5_next_edits),
    EDITED("solar_open", solar_open_edits),
    EDITED("kimi_linear", kimi_linear_edits),
    EDITED("glm_moe_dsa", glm_moe_dsa_edits),
    EDITED("minimax_m3-text", minimax_m3_edits),
    EDITED("deepseek_v4", deepseek_v4_edits),
    EDITED("bert-classifier", bert_edits),
    EDITED("nomic-bert", nomic_edits),
    EDITED("modernbert", modernbert_edits),
    EDITED("roberta-classifier", roberta_edits),
#undef EDITED
};

static void test_config_json(void **state)
{
    (void)state;
    struct sl_synth s;
    for (size_t f = 0; f < SL_COUNT(edited); f++) {
        char path[96];
        snprintf(path, sizeof path, OUT "/edit_%s", edited[f].family);
        make_folder(edited[f].family, path, &s);
        for (size_t i = 0; i < edited[f].n; i++)
            apply(path, &edited[f].edits[i]);
    }
    for (size_t i = 0; i < SL_COUNT(expert_edits); i++) {
        make_folder(expert_edits[i].family, OUT "/edit_moe", &s);
        apply(OUT "/edit_moe", &expert_edits[i].edit);
    }
    make_folder("gemma3-text", OUT "/edit_gemma3_text", &s);
    accepted(OUT "/edit_gemma3_text", "a model in a larger one");
    apply(OUT "/edit_gemma3_text", &(struct edit){"text_config", NULL, SL_EFORMAT,
                                                  "config.json: text_config must be an object"});
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
    {"general.architecture", STR, 0, "rwkv6", SL_EUNSUPPORTED,
     "general.architecture \"rwkv6\" is not supported (supported: llama, mistral3, qwen2, qwen3, "},
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
            rc = sl_model_kv_layout(m, NULL, "f16", SL_DTYPE_BF16, 16, &cfg.kv, &err);
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

/* Layers of other formats than the rest: the first and last ones, those of a list, and errors. */
static void test_skipped_layers(void **state)
{
    static const struct {
        const char *dtype, *list;
        int rc, n;
        const char *says;
    } cases[] = {{"turboquant_4bit_nc", NULL, 0, 2, NULL},
                 {"turboquant_k8v4", "none", 0, 0, NULL},
                 {"turboquant_4bit_nc", "1", 0, 3, NULL},
                 {"turboquant_4bit_nc", "0", 0, 2, NULL},
                 {"turboquant_3bit_nc", NULL, 0, 2, NULL},
                 {"int4_per_token_head", "none", 0, 0, NULL},
                 {"nvfp4", "1", 0, 3, NULL},
                 {"fp8", NULL, 0, 0, NULL},
                 {"fp8", "2,0", 0, 2, NULL},
                 {"fp8", "sliding_window", 0, 5, NULL},
                 {"fp8", "9999", SL_EINVAL, 0, "\"9999\" is no layer"},
                 {"fp8", "1,,2", SL_EINVAL, 0, "\"\" is no layer"},
                 {"fp8", "1,-2", SL_EINVAL, 0, "\"-2\" is no layer"},
                 {"fp8", "99999999999999999999999", SL_EINVAL, 0, "is no layer"}};
    struct sl_kv_layout l;
    struct sl_error err = {0};
    struct rig g;
    (void)state;
    rig_open(&g, "tests/golden/models/gemma3_bf16", &(struct rig_options){0});
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const int rc = sl_model_kv_layout_but(g.model, NULL, cases[i].dtype, cases[i].list,
                                              SL_DTYPE_BF16, 16, &l, &err);
        if (rc != cases[i].rc || (rc == 0 && l.n_exempt != cases[i].n))
            fail_msg("%s of \"%s\": %d, %d layers", cases[i].dtype, cases[i].list, rc, l.n_exempt);
        if (rc != 0) {
            assert_non_null(strstr(err.msg, "kv-cache-dtype-skip-layers"));
            assert_non_null(strstr(err.msg, cases[i].says));
            continue;
        }
        size_t n_bytes[SL_MAX_KV_GROUPS] = {0}; /* places are of their layers' formats */
        uint8_t *pools[SL_MAX_KV_GROUPS] = {NULL};
        assert_int_equal(l.n_groups, 2);
        for (int32_t k = 0; k < sl_model_facts(g.model)->n_layers; k++) {
            const struct sl_kv_view v = sl_kv_view(&l, pools, k);
            assert_int_equal(v.dtype, l.exempt[k] ? SL_DTYPE_BF16 : l.dtype);
            assert_int_equal(v.k_offset, n_bytes[v.group]);
            n_bytes[v.group] += l.places[k].n_bytes;
        }
        for (int32_t k = 0; k < l.n_groups; k++)
            assert_int_equal(n_bytes[k], l.groups[k].page_bytes);
    }
    char list[SL_MAX_KV_SKIP + 2];
    memset(list, '1', sizeof list);
    list[sizeof list - 1] = '\0';
    assert_int_equal(
        sl_model_kv_layout_but(g.model, NULL, "fp8", list, SL_DTYPE_BF16, 16, &l, &err), SL_ELIMIT);
    rig_close(&g);
    rig_open(&g, "tests/golden/models/deepseek_v3", &(struct rig_options){0});
    assert_int_equal(
        sl_model_kv_layout(g.model, NULL, "turboquant_k8v4", SL_DTYPE_BF16, 16, &l, &err),
        SL_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "turboquant_k8v4: there are no such pages of latent"));
    rig_close(&g);
}

static void test_run_limits(void **state)
{
    (void)state;
    struct rig g;
    struct sl_error err = {0};
    struct sl_kv_layout l;
    struct sl_run *r = NULL;
    rig_open(&g, "tests/golden/models/llama2", &(struct rig_options){0});
    assert_int_equal(sl_model_kv_layout(g.model, NULL, "q4_0", SL_DTYPE_BF16, 16, &l, &err),
                     SL_EINVAL);
    assert_non_null(strstr(err.msg, "kv-cache-dtype \"q4_0\""));
    assert_int_equal(sl_model_kv_layout(g.model, NULL, "auto", SL_DTYPE_F16, 16, &l, &err), 0);
    assert_int_equal(l.dtype, SL_DTYPE_F16);
    assert_int_equal(sl_model_kv_layout(g.model, NULL, "f32", SL_DTYPE_F16, 16, &l, &err), 0);
    assert_int_equal(l.dtype, SL_DTYPE_F32);
    assert_int_equal(g.be->vt->kv_dtype, SL_DTYPE_BF16);
    assert_int_equal(sl_model_kv_layout(g.model, NULL, "f16", SL_DTYPE_BF16, 0, &l, &err),
                     SL_EINVAL);
    assert_non_null(strstr(err.msg, "block-size is 0"));
    assert_int_equal(
        sl_model_kv_layout(g.model, NULL, "f16", SL_DTYPE_BF16, SL_MAX_PAGE_TOKENS + 16, &l, &err),
        SL_EINVAL);
    assert_int_equal(sl_model_kv_layout(g.model, NULL, "f16", SL_DTYPE_BF16, 24, &l, &err),
                     SL_EINVAL);
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

/* Parameters of an activation: tensors of a folder, lists in a GGUF. */
static void test_xielu(void **state)
{
    (void)state;
    struct sl_synth s;
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_backend *be = NULL;
    make_folder("apertus", OUT "/xielu", &s);
    s.format = SL_CKPT_GGUF;
    s.hp.xielu[2][1] = 1e5;
    assert_int_equal(sl_synth_write(&s, OUT "/xielu.gguf", &err), 0);
    refused(OUT "/xielu.gguf", SL_EFORMAT,
            "GGUF: xielu.beta of layer 1 is 100000, must be -10000 to 10000", "xielu.beta");
    s.format = SL_CKPT_HF;
    s.hp.xielu[2][1] = (double)INFINITY;
    assert_int_equal(sl_synth_write(&s, OUT "/xielu", &err), 0);
    assert_int_equal(sl_cpu_create(&(struct sl_cpu_config){.n_threads = 1}, &be, &err), 0);
    if (sl_ckpt_open(OUT "/xielu", &c, &err) != 0 || sl_model_open(c, &m, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_model_load(m, be, NULL, NULL, &err), SL_EFORMAT);
    assert_non_null(strstr(err.msg, "layer 1: xIELU's alpha_p, alpha_n, beta and eps must be"));
    sl_model_close(m);
    sl_ckpt_close(c);
    be->vt->destroy(be);
}

/* Where a backend has not a model's activation in its products, gate and up of a shared expert have
 * room before it, too: all experts of this model are narrower. */
static void test_room_of_shared_experts(void **state)
{
    (void)state;
    struct rig g;
    rig_open(&g, "tests/golden/models/qwen2_moe_all", &(struct rig_options){0});
    struct sl_run_config cfg = {.max_tokens = 64, .max_logits = 1, .kv = g.kv, .kv_pool = {g.pool}};
    struct sl_backend_vt vt = *g.be->vt;
    struct sl_backend apart = {&vt};
    vt.gated_acts = 0;
    const uint64_t shared = (uint64_t)g.model->layers[0].shared_intermediate;
    assert_true(shared > 0);
    assert_int_equal(sl_run_bytes(g.model, &apart, &cfg) - sl_run_bytes(g.model, g.be, &cfg),
                     (uint64_t)cfg.max_tokens * 2 * shared * sizeof(float));
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_json),
        cmocka_unit_test(test_more_config_json),
        cmocka_unit_test(test_infinity),
        cmocka_unit_test(test_end_ids),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_gguf_metadata),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_rank_without_classifier),
        cmocka_unit_test(test_score_of_tokens_the_model_lacks),
        cmocka_unit_test(test_rope_freqs),
        cmocka_unit_test(test_nextn),
        cmocka_unit_test(test_partial_default),
        cmocka_unit_test(test_xielu),
        cmocka_unit_test(test_cohere_defaults),
        cmocka_unit_test(test_longrope_by_context),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_weight_memory),
        cmocka_unit_test(test_skipped_layers),
        cmocka_unit_test(test_run_limits),
        cmocka_unit_test(test_room_of_shared_experts),
    };
    return cmocka_run_group_tests_name("configs", tests, setup_group, NULL);
}
