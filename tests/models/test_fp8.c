/* SPDX-License-Identifier: MIT
 * FP8 checkpoints as Hugging Face folders: what they compute against the same weights as floats,
 * the kinds of quantization_config, and every malformed tensor of scales.
 */
#include "models/ckpt_edit.h"
#include "quant/float.h"
#include "synth/synth.h"

#include <math.h>

#define OUT "build/testdata/fp8"

enum { N_TOKENS = 70 };

static const char *const scale_names[] = {"block", "channel", "tensor"};

static int setup_group(void **state)
{
    (void)state;
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    return 0;
}

static void write_fp8(enum sl_synth_scales scales, const char *path)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = "qwen3",
                         .dtype = SL_DTYPE_FP8_E4M3,
                         .scales = scales,
                         .format = SL_CKPT_HF,
                         .seed = 9};
    if (sl_synth_shape("qwen3", "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.hidden = 160; /* blocks that end early, and several of them */
    s.hp.intermediate = 416;
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

/* Matrices of many chunks, which several threads make: the file that one thread wrote. */
static void test_threads_write_the_same(void **state)
{
    (void)state;
    struct sl_error err = {0};
    struct sl_synth s = {
        .name = "qwen3", .dtype = SL_DTYPE_FP8_E4M3, .format = SL_CKPT_HF, .seed = 9};
    if (sl_synth_shape("qwen3", "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.hidden = 320;
    s.hp.intermediate = 9000;
    s.hp.n_vocab = 5000;
    char *data;
    size_t n;
    for (int i = 0; i < 3; i++) {
        if (sl_synth_write(&s, OUT "/large", &err) != 0 ||
            sl_read_file(OUT "/large/model.safetensors", 1 << 30, &data, &n, &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(sl_hash64(data, n, 0), 0x2767657b077ed8fdu);
        sl_free(data);
    }
}

/* ---------------------------------------------------------------- what it computes */

/* The weight as the format's definition has it: code times the scale of its block, found by the
 * shape of the scales alone. */
static float *dequantised(const struct sl_ckpt *c, const struct sl_ckpt_tensor *t, size_t *n_used)
{
    char name[300];
    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    const struct sl_ckpt_tensor *s = sl_ckpt_find(c, name);
    if (s == NULL) {
        snprintf(name, sizeof name, "%s_scale", t->name);
        s = sl_ckpt_find(c, name);
    }
    assert_non_null(s);
    const int64_t n = t->dims[0] * t->dims[1], n_scales = elements(s->dims, s->n_dims);
    float *x = sl_malloc((size_t)n * sizeof *x), *v = sl_malloc((size_t)n_scales * sizeof *v);
    assert_true(x != NULL && v != NULL);
    sl_dtype_info(t->dtype)->to_f32(t->data, x, n);
    sl_dtype_info(s->dtype)->to_f32(s->data, v, n_scales);
    bool blocks = n_scales > 1 && n_scales != t->dims[0];
    int64_t rows = n_scales == 1 ? t->dims[0] : blocks ? 128 : 1;
    int64_t cols = blocks ? 128 : t->dims[1];
    for (int64_t i = 0; i < n; i++)
        x[i] *= v[i / t->dims[1] / rows * SL_CEIL_DIV(t->dims[1], cols) + i % t->dims[1] / cols];
    sl_free(v);
    (*n_used)++;
    return x;
}

/* The same model with every tensor in f32 and no scales. */
static void write_twin(const char *from, const char *to, size_t *n_fp8)
{
    struct sl_error err = {0};
    struct sl_ckpt *c;
    struct sl_st_writer *w;
    char path[300];
    mkdir(to, 0777);
    copy_file(from, to, "config.json");
    set_key(to, "quantization_config", NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    if (sl_ckpt_open(from, &c, &err) != 0 || sl_st_writer_create(path, &w, &err) != 0)
        fail_msg("%s", err.msg);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sl_ckpt_n_tensors(c); i++) {
            const struct sl_ckpt_tensor *t = sl_ckpt_tensor_at(c, i);
            if (strstr(t->name, "_scale") != NULL)
                continue;
            if (pass == 0) {
                sl_st_writer_add_tensor(w, t->name, SL_DTYPE_F32, t->n_dims, t->dims);
                continue;
            }
            const int64_t n = elements(t->dims, t->n_dims);
            float *x = NULL;
            if (t->dtype == SL_DTYPE_FP8_E4M3) {
                x = dequantised(c, t, n_fp8);
            } else {
                x = sl_malloc((size_t)n * sizeof *x);
                assert_non_null(x);
                sl_dtype_info(t->dtype)->to_f32(t->data, x, n);
            }
            put_floats(w, SL_DTYPE_F32, x, n);
            sl_free(x);
        }
        if (pass == 0 && sl_st_writer_begin_data(w, &err) != 0)
            fail_msg("%s", err.msg);
    }
    if (sl_st_writer_finish(w, &err) != 0)
        fail_msg("%s", err.msg);
    sl_ckpt_close(c);
}

static float *logits_of(const char *path, const char *isa, bool exact, size_t *n)
{
    struct rig g;
    int32_t tokens[N_TOKENS], pages[8];
    rig_open(&g, path, &(struct rig_options){.isa = isa, .kv_dtype = "f32", .exact = exact});
    rig_tokens(tokens, N_TOKENS, g.n_vocab, 3);
    rig_pages(pages, 8, 0, true);
    *n = (size_t)N_TOKENS * (size_t)g.n_vocab;
    float *out = sl_malloc(*n * sizeof *out);
    struct seq s = {tokens, N_TOKENS, pages, out};
    rig_run(&g, &s, N_TOKENS);
    rig_close(&g);
    return out;
}

/* As floats the two models are the same model, to the bit. Where BF16 is multiplied activations are
 * rounded, as they are for BF16 weights. */
static void test_twin(void **state)
{
    static const char *const isas[] = {"c", "avx2", "avx512", "avx512-vnni", "avx512-bf16", "amx"};
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        char path[200], twin[200];
        size_t n, n_twin, n_fp8 = 0;
        snprintf(path, sizeof path, OUT "/%s", scale_names[kind]);
        snprintf(twin, sizeof twin, OUT "/%s_f32", scale_names[kind]);
        write_fp8((enum sl_synth_scales)kind, path);
        write_twin(path, twin, &n_fp8);
        assert_int_equal(n_fp8, 2 * 7); /* every projection of two layers */
        float *want = logits_of(twin, "c", false, &n_twin);
        for (size_t i = 0; i < SL_COUNT(isas); i++) {
            if (!rig_has_isa(isas[i])) {
                printf("skip: %s: not on this processor\n", isas[i]);
                continue;
            }
            bool floats = strcmp(isas[i], "avx512-bf16") != 0 && strcmp(isas[i], "amx") != 0;
            for (int exact = 0; exact < 2; exact++) {
                float *have = logits_of(path, isas[i], exact != 0, &n);
                assert_int_equal(n, n_twin);
                double e = rig_nmse(have, want, n);
                bool same = memcmp(have, want, n * sizeof *have) == 0;
                if (floats || exact ? !same : !(e > 0 && e < 1e-4))
                    fail_msg("%s, %s: NMSE %.3g", path, isas[i], e);
                if (exact == 0)
                    printf("%-8s %-12s NMSE %.2e\n", scale_names[kind], isas[i], e);
                sl_free(have);
            }
        }
        sl_free(want);
    }
}

/* ---------------------------------------------------------------- what is refused */

#define UP "model.layers.1.mlp.up_proj.weight" /* [416, 160] */

static const struct row {
    const char *from; /* kind of scales */
    struct edit e;
    int code;
    const char *want;
} rows[] = {
    /* blocks: [4, 2] */
    {"block", NONE(UP "_scale_inv"), SL_EFORMAT,
     "tensor \"" UP "\" is fp8_e4m3 without scales|" UP "_scale_inv|" UP "_scale\""},
    {"block", AGAIN(UP "_scale_inv", UP "_scale"), SL_EFORMAT, UP "\" has two tensors of scales"},
    {"block", PUT(UP "_scale_inv", BF16, 2, 0.001f, -1, 4, 2), 0, NULL},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 4, 2), 0, NULL},
    {"block", PUT(UP "_scale_inv", F16, 2, 0.001f, -1, 4, 2), 0, NULL},
    {"block", PUT(UP "_scale_inv", F32, 0, 0.001f, -1, 0), 0, NULL},
    {"block", PUT(UP "_scale_inv", F32, 1, 0.001f, -1, 1), 0, NULL},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 1, 1), 0, NULL},
    {"block", PUT(UP "_scale_inv", F32, 1, 0.001f, -1, 416), 0, NULL},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 416, 1), 0, NULL},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 2, 4), SL_EFORMAT,
     UP "_scale_inv\" has shape [2, 4]|[416]|[416, 1]|[4, 2]|128 x 128"},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 4, 3), SL_EFORMAT, "has shape [4, 3]"},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 3, 2), SL_EFORMAT, "has shape [3, 2]"},
    {"block", PUT(UP "_scale_inv", F32, 1, 0.001f, -1, 8), SL_EFORMAT, "has shape [8]"},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 1, 416), SL_EFORMAT, "has shape [1, 416]"},
    {"block", PUT(UP "_scale_inv", F32, 1, 0.001f, -1, 160), SL_EFORMAT, "has shape [160]"},
    {"block", PUT(UP "_scale_inv", F32, 3, 0.001f, -1, 4, 1, 2), SL_EFORMAT, "has shape [4, 1, 2]"},
    {"block", PUT(UP "_scale_inv", F32, 3, 0.001f, -1, 1, 1, 1), SL_EFORMAT, "has shape [1, 1, 1]"},
    {"block", PUT(UP "_scale_inv", F32, 2, 0.001f, -1, 0, 2), SL_EUNSUPPORTED,
     UP "_scale_inv\" is F32 without elements"},
    {"block", PUT(UP "_scale_inv", FP8_E4M3, 2, 1, -1, 4, 2), SL_EUNSUPPORTED,
     UP "_scale_inv\" is fp8_e4m3; scales must be"},
    {"block", PUT(UP "_scale_inv", F32, 2, NAN, 5, 4, 2), SL_EFORMAT,
     UP "_scale_inv\": value 5 is|nan"},
    {"block", PUT(UP "_scale_inv", F32, 2, INFINITY, 7, 4, 2), SL_EFORMAT,
     UP "_scale_inv\": value 7 is inf"},
    {"block", PUT(UP "_scale_inv", F32, 2, 0, 0, 4, 2), SL_EFORMAT,
     UP "_scale_inv\": value 0 is 0, must be"},
    {"block", PUT(UP "_scale_inv", F32, 2, -0.5f, 1, 4, 2), SL_EFORMAT, "value 1 is -0.5"},
    {"block", PUT(UP "_scale_inv", F32, 2, 1e-40f, 2, 4, 2), SL_EFORMAT, "value 2 is 9.99995e-41"},
    {"block", PUT(UP "_scale_inv", BF16, 2, 1e38f, 3, 4, 2), SL_EFORMAT, "value 3 is"},
    {"channel", NONE(UP "_scale"), SL_EFORMAT, UP "\" is fp8_e4m3 without scales"},
    {"channel", PUT(UP "_scale", F32, 2, NAN, 415, 416, 1), SL_EFORMAT,
     UP "_scale\": value 415 is"},
    {"channel", PUT(UP "_scale", F32, 2, 1, -1, 415, 1), SL_EFORMAT, "has shape [415, 1]"},
    {"tensor", NONE(UP "_scale"), SL_EFORMAT, UP "\" is fp8_e4m3 without scales"},
    {"tensor", PUT(UP "_scale", F32, 0, 0, -1, 0), SL_EFORMAT, UP "_scale\": value 0 is 0"},
    /* activations' scales may be anything, or missing */
    {"tensor", NONE("model.layers.1.mlp.up_proj.input_scale"), 0, NULL},
    {"tensor", PUT("model.layers.1.mlp.up_proj.input_scale", F32, 1, NAN, -1, 3), 0, NULL},
    /* what must not be FP8, what may be something else */
    {"block", PUT("model.norm.weight", FP8_E4M3, 1, 1, -1, 160), SL_EUNSUPPORTED,
     "\"model.norm.weight\" is fp8_e4m3; norms and biases must be"},
    {"block", PUT("model.embed_tokens.weight", FP8_E4M3, 2, 1, -1, 320, 160), SL_EUNSUPPORTED,
     "\"model.embed_tokens.weight\" is fp8_e4m3; an embedding"},
    {"block", PUT(UP, BF16, 2, 0.01f, -1, 416, 160), 0, NULL},
    {"block", PUT(UP, FP8_E4M3, 2, 1, -1, 160, 416), SL_EFORMAT, UP "\" has shape [160, 416]"},
};

static void test_hostile_scales(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char from[200], label[120];
        snprintf(from, sizeof from, OUT "/%s", rows[i].from);
        snprintf(label, sizeof label, "row %zu, %s of %s", i, rows[i].e.name, rows[i].from);
        rewrite(from, OUT "/edited", &rows[i].e);
        expect(OUT "/edited", rows[i].code, rows[i].want, label);
    }
}

#define MX      "tests/golden/models/minimax_m3_mxfp8"
#define MX_DOWN "language_model.model.layers.0.mlp.down_proj.weight"

/* What it is worth, the golden compares with numpy's reading; here what is wrong. */
static void test_mxfp8(void **state)
{
    static const struct {
        struct edit e;
        const char *config; /* quantization_config; NULL: as it is */
        int code;
        const char *want;
    } cases[] = {
        {{.name = ""}, NULL, 0, NULL},
        {{.name = ""}, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\"}", 0, NULL},
        {{.name = ""}, "{\"quant_method\": \"mxfp8\"}", 0, NULL},
        {{.name = ""},
         "{\"quant_method\": \"mxfp8\", \"weight_block_size\": [1, 64]}",
         SL_EUNSUPPORTED,
         "weight_block_size of mxfp8 must be [1, 32]"},
        {{.name = ""},
         "{\"quant_method\": \"mxfp8\", \"fmt\": \"e5m2\"}",
         SL_EUNSUPPORTED,
         "fmt \"e5m2\" is not supported"},
        {NONE(MX_DOWN "_scale_inv"), NULL, SL_EFORMAT, MX_DOWN "\" is fp8_e4m3 without scales"},
        {{.name = MX_DOWN "_scale_inv", .what = BYTES, .word = 0xFFFFFFFF, .at = 8},
         NULL,
         SL_EFORMAT,
         MX_DOWN "_scale_inv\": a scale is more than 2^100, or not a number"},
        {{.name = MX_DOWN "_scale_inv", .what = BYTES, .word = 0xE4E4E4E4, .at = 0},
         NULL,
         SL_EFORMAT,
         MX_DOWN "_scale_inv\": a scale is more than 2^100"},
        {{.name = MX_DOWN "_scale_inv", .what = BYTES, .word = 0xE3E3E3E3, .at = 0}, NULL, 0, NULL},
        {{.name = MX_DOWN "_scale_inv", .what = BYTES, .word = 0, .at = 0}, NULL, 0, NULL},
        {PUT(MX_DOWN "_scale_inv", F32, 2, 1, -1, 32, 2), NULL, SL_EFORMAT,
         "_scale_inv\" has shape [32, 2], expected [1], [32], [32, 1] or [1, 1]"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char label[120];
        snprintf(label, sizeof label, "case %zu", i);
        rewrite(MX, OUT "/mxfp8", &cases[i].e);
        if (cases[i].config != NULL)
            set_key(OUT "/mxfp8", "quantization_config", cases[i].config);
        expect(OUT "/mxfp8", cases[i].code, cases[i].want, label);
    }
}

/* Formats that our writer does not know: the name in the header is as long as E4M3's. */
static void test_other_fp8(void **state)
{
    (void)state;
    static const char *const names[] = {"F8_E5M2", "F8_E8M0"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct sl_error err = {0};
        char *data;
        size_t n;
        const struct edit e = PUT(UP "_scale_inv", FP8_E4M3, 2, 1, -1, 4, 2);
        rewrite(OUT "/block", OUT "/edited", &e);
        if (sl_read_file(OUT "/edited/model.safetensors", 1 << 26, &data, &n, &err) != 0)
            fail_msg("%s", err.msg);
        uint64_t n_header;
        memcpy(&n_header, data, sizeof n_header);
        char *header = sl_malloc((size_t)n_header + 1);
        assert_non_null(header);
        memcpy(header, data + 8, (size_t)n_header);
        header[n_header] = '\0';
        for (int scale = 0; scale < 2; scale++) {
            char key[120];
            snprintf(key, sizeof key, "\"" UP "%s\"", scale ? "_scale_inv" : "");
            char *at = strstr(header, key);
            assert_non_null(at);
            char *dtype = data + 8 + (strstr(at, "F8_E4M3") - header);
            memcpy(dtype, names[i], strlen(names[i]));
            if (sl_write_file(OUT "/edited/model.safetensors", data, n, &err) != 0)
                fail_msg("%s", err.msg);
            char want[200];
            snprintf(want, sizeof want, UP "%s\" is %s, a format that is not supported",
                     scale ? "_scale_inv" : "", names[i]);
            expect(OUT "/edited", SL_EUNSUPPORTED, want, names[i]);
            memcpy(dtype, "F8_E4M3", 7);
        }
        sl_free(header);
        sl_free(data);
    }
}

#define CT(weights)                                                                \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", " \
    "\"config_groups\": {\"group_0\": {\"weights\": " weights "}}}"

static const struct {
    const char *from, *value; /* of quantization_config */
    int code;
    const char *want;
} configs[] = {
    {"block", NULL, 0, NULL}, /* the tensors speak for themselves */
    {"block", "{\"quant_method\": \"fp8\"}", 0, NULL},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": null, \"fmt\": null}", 0, NULL},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", 0, NULL},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [104, 128]}", SL_EFORMAT,
     "q_proj.weight_scale_inv\" has shape [1, 2]|[2, 2] (blocks of 104 x 128)"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 256]}", SL_EFORMAT,
     "_scale_inv\" has shape|blocks of 128 x 256"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}", SL_EFORMAT,
     "blocks of 64 x 128"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 64]}", SL_EUNSUPPORTED,
     "weight_block_size: blocks 64 columns wide are not supported"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", SL_EFORMAT,
     "weight_block_size must be a list of two positive integers"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}", SL_EFORMAT,
     "weight_block_size must be a list"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, -128]}", SL_EFORMAT,
     "weight_block_size must be a list"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 1099511627776]}",
     SL_EFORMAT, "weight_block_size must be a list"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": \"128\"}", SL_EFORMAT,
     "weight_block_size must be a list"},
    {"block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [\"128\", 128]}", SL_EFORMAT,
     "weight_block_size must be a list"},
    {"block", "{\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}", SL_EUNSUPPORTED,
     "fmt \"e5m2\" is not supported (supported: e4m3)"},
    {"block", "{\"quant_method\": \"fp8\", \"fmt\": 3}", SL_EUNSUPPORTED, "fmt (none)"},
    {"block", "{\"quant_method\": \"fp8\", \"activation_scheme\": \"sometimes\"}", SL_EUNSUPPORTED,
     "activation_scheme \"sometimes\" is not supported (supported: dynamic"},
    {"channel", "{\"quant_method\": \"fbgemm_fp8\", \"activation_scale_ub\": 1200.0}", 0, NULL},
    {"tensor", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"}", 0, NULL},
    {"tensor", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}", SL_EUNSUPPORTED,
     "quantization_config: quant_algo \"NVFP4\" is not supported (FP8 and MXFP8 are)"},
    {"tensor", "{\"quant_method\": \"modelopt\"}", SL_EUNSUPPORTED, "quant_algo (none)"},
    {"channel", CT("{\"type\": \"float\", \"num_bits\": 8, \"strategy\": \"channel\"}"), 0, NULL},
    {"tensor", CT("{\"type\": \"float\", \"num_bits\": 8, \"strategy\": \"tensor\"}"), 0, NULL},
    {"block",
     CT("{\"type\": \"float\", \"num_bits\": 8, \"strategy\": \"block\", \"block_structure\": "
        "[128, 128]}"),
     0, NULL},
    {"block", CT("{\"type\": \"float\", \"num_bits\": 8, \"strategy\": \"block\"}"), SL_EFORMAT,
     "block_structure must be a list"},
    {"block", CT("{\"type\": \"int\", \"num_bits\": 8, \"strategy\": \"channel\"}"),
     SL_EUNSUPPORTED, "weights of type \"int\" is not supported"},
    {"block", CT("{\"type\": \"float\", \"num_bits\": 4, \"strategy\": \"channel\"}"),
     SL_EUNSUPPORTED, "num_bits other than 8"},
    {"block", CT("{\"type\": \"float\", \"num_bits\": 8, \"strategy\": \"group\"}"),
     SL_EUNSUPPORTED, "strategy \"group\" is not supported (supported: tensor, channel, block)"},
    {"block", CT("[]"), SL_EUNSUPPORTED, "weights of type (none)"},
    {"block", "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}",
     SL_EFORMAT, "config_groups is missing or empty"},
    {"block", "{\"quant_method\": \"compressed-tensors\"}", SL_EUNSUPPORTED, "format (none)"},
    {"block",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", "
     "\"config_groups\": []}",
     SL_EFORMAT, "config_groups must be an object"},
    {"block", "{\"quant_method\": \"hqq\"}", SL_EUNSUPPORTED,
     "quant_method \"hqq\" is not supported|compressed-tensors"},
    {"block", "{\"quant_method\": 8}", SL_EUNSUPPORTED, "quant_method \"(none)\""},
};

static void test_configs(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(configs); i++) {
        char from[200];
        snprintf(from, sizeof from, OUT "/%s", configs[i].from);
        rewrite(from, OUT "/edited", &(struct edit){.name = ""});
        set_key(OUT "/edited", "quantization_config", configs[i].value);
        expect(OUT "/edited", configs[i].code, configs[i].want,
               configs[i].value ? configs[i].value : "(removed)");
    }
}

#define CHANNEL "{\"type\": \"float\", \"num_bits\": 8, \"strategy\": \"channel\"}"

/* Whether activations may be FP8, too: where a checkpoint was made for it. */
static void test_activations(void **state)
{
    static const struct {
        const char *from, *value; /* of quantization_config */
        bool want;
    } cases[] = {
        {"block", NULL, false},
        {"block", "{\"quant_method\": \"fp8\"}", true},
        {"block", "{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\"}", true},
        {"block", "{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\"}", true},
        {"block", "{\"quant_method\": \"fp8\", \"activation_scheme\": null}", false},
        {"channel", "{\"quant_method\": \"fbgemm_fp8\"}", true},
        {"tensor", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"}", true},
        {"channel", CT(CHANNEL), false},
        {"channel", CT(CHANNEL ", \"input_activations\": null"), false},
        {"channel", CT(CHANNEL ", \"input_activations\": " CHANNEL), true},
        {"channel", CT(CHANNEL ", \"input_activations\": {\"type\": \"int\", \"num_bits\": 8}"),
         false},
        {"channel",
         CT(CHANNEL ", \"input_activations\": " CHANNEL "}, \"group_1\": {\"weights\": " CHANNEL),
         false},
        {"channel", "{\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\"}",
         false},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_error err = {0};
        struct sl_ckpt *ckpt;
        struct sl_model *m = NULL;
        char from[200];
        snprintf(from, sizeof from, OUT "/%s", cases[i].from);
        rewrite(from, OUT "/edited", &(struct edit){.name = ""});
        set_key(OUT "/edited", "quantization_config", cases[i].value);
        if (sl_ckpt_open(OUT "/edited", &ckpt, &err) != 0 || sl_model_open(ckpt, &m, &err) != 0)
            fail_msg("%s: %s", cases[i].value, err.msg);
        if ((sl_fp8_use(m, SL_DTYPE_FP8_E4M3) == SL_USE_LINEAR_FP8) != cases[i].want)
            fail_msg("%s: not %d", cases[i].value, cases[i].want);
        assert_int_equal(sl_fp8_use(m, SL_DTYPE_BF16), SL_USE_LINEAR);
        sl_model_close(m);
        sl_ckpt_close(ckpt);
    }
}

/* ModelOpt's file counts where config.json says nothing. */
static void test_modelopt_file(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *want;
    } files[] = {
        {"{\"quantization\": {\"quant_algo\": \"FP8\", \"exclude_modules\": [\"lm_head\"]}}", 0,
         NULL},
        {"{\"quantization\": {\"quant_algo\": \"NVFP4\"}}", SL_EUNSUPPORTED,
         "hf_quant_config.json: quant_algo \"NVFP4\" is not supported"},
        {"{\"quantization\": 7}", SL_EUNSUPPORTED, "hf_quant_config.json: quant_algo (none)"},
        {"{}", SL_EUNSUPPORTED, "hf_quant_config.json"},
        {"[]", SL_EFORMAT, "hf_quant_config.json"},
        {"{\"quantization\": ", SL_EFORMAT, "hf_quant_config.json"},
    };
    (void)state;
    mkdir(OUT "/modelopt", 0777);
    rewrite(OUT "/tensor", OUT "/modelopt", &(struct edit){.name = ""});
    set_key(OUT "/modelopt", "quantization_config", NULL);
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        struct sl_error err = {0};
        if (sl_write_file(OUT "/modelopt/hf_quant_config.json", files[i].text,
                          strlen(files[i].text), &err) != 0)
            fail_msg("%s", err.msg);
        expect(OUT "/modelopt", files[i].code, files[i].want, files[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_write_the_same),
        cmocka_unit_test(test_twin),
        cmocka_unit_test(test_hostile_scales),
        cmocka_unit_test(test_mxfp8),
        cmocka_unit_test(test_other_fp8),
        cmocka_unit_test(test_configs),
        cmocka_unit_test(test_modelopt_file),
        cmocka_unit_test(test_activations),
    };
    return cmocka_run_group_tests(tests, setup_group, NULL);
}
