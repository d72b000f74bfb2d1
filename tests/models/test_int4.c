/* SPDX-License-Identifier: MIT
 * Four-bit checkpoints (GPTQ, AWQ, compressed-tensors) as Hugging Face folders: what they compute
 * against the same weights as floats and against each other, the kinds of quantization_config, and
 * every malformed tensor. That weights are what the formats' own libraries make of them is
 * tests/quant/test_int4.
 */
#include "models/ckpt_edit.h"
#include "quant/float.h"
#include "synth/synth.h"

#define OUT "build/testdata/int4"

enum { N_TOKENS = 40 };

static int setup_group(void **state)
{
    (void)state;
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    return 0;
}

static const char *const kinds[] = {"gptq", "gptq_v2", "awq", "compressed-tensors"};

static void write_int4(const char *kind, int32_t group, bool symmetric, const char *path)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = "qwen2",
                         .dtype = SL_DTYPE_INT4_G128,
                         .int4 = sl_synth_int4_kind(kind),
                         .int4_group = group,
                         .int4_symmetric = symmetric,
                         .int4_head = symmetric,
                         .format = SL_CKPT_HF,
                         .seed = 9};
    if (sl_synth_shape("qwen2", "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.hidden = 128;
    s.hp.intermediate = 384;
    s.hp.n_heads = 8; /* of 16 */
    s.hp.n_kv_heads = 2;
    s.hp.head_dim = 16;
    s.hp.has |= SL_HAS_HEAD;
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

/* ---------------------------------------------------------------- what it computes */

static uint32_t nibble(const struct sl_ckpt_tensor *t, int64_t word, int64_t i)
{
    uint32_t w;
    memcpy(&w, t->data + 4 * word, sizeof w);
    return w >> 4 * i & 15;
}

static const struct sl_ckpt_tensor *beside(const struct sl_ckpt *c, const char *module,
                                           const char *suffix, const char *raw)
{
    char name[340];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    return raw != NULL ? sl_ckpt_find_raw(c, name, raw) : sl_ckpt_find(c, name);
}

/* A weight as the layouts define it, one at a time. */
static float *dequantised(const struct sl_ckpt *c, const char *module, bool v1, int64_t dims[2])
{
    static const int slot[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* of AWQ, by row */
    const struct sl_ckpt_tensor *rows = beside(c, module, "weight_packed", "I32");
    const struct sl_ckpt_tensor *cols = beside(c, module, "qweight", "I32");
    const struct sl_ckpt_tensor *s = beside(c, module, rows ? "weight_scale" : "scales", NULL);
    const struct sl_ckpt_tensor *z =
        beside(c, module, rows ? "weight_zero_point" : "qzeros", "I32");
    assert_true((rows != NULL) != (cols != NULL) && s != NULL);
    const int64_t n = rows ? s->dims[0] : s->dims[1], groups = rows ? s->dims[1] : s->dims[0];
    const bool awq = cols != NULL && cols->dims[1] < n;
    const int64_t k = rows ? rows->dims[1] * 8 : awq ? cols->dims[0] : cols->dims[0] * 8;
    float *x = sl_malloc((size_t)(n * k) * sizeof *x);
    float *scale = sl_malloc((size_t)(n * groups) * sizeof *scale);
    assert_true(x != NULL && scale != NULL);
    sl_dtype_info(s->dtype)->to_f32(s->data, scale, n * groups);
    for (int64_t i = 0; i < n * k; i++) {
        const int64_t r = i / k, col = i % k, g = col / (k / groups);
        uint32_t code, zero = 8;
        if (rows) {
            code = nibble(rows, r * (k / 8) + col / 8, col % 8);
            zero = z != NULL ? nibble(z, r / 8 * groups + g, r % 8) : 8;
        } else {
            code = awq ? nibble(cols, col * (n / 8) + r / 8, slot[r % 8])
                       : nibble(cols, col / 8 * n + r, col % 8);
            zero = nibble(z, g * (n / 8) + r / 8, awq ? slot[r % 8] : r % 8) + v1;
        }
        x[i] = ((float)code - (float)zero) * scale[rows ? r * groups + g : g * n + r];
    }
    sl_free(scale);
    dims[0] = n;
    dims[1] = k;
    return x;
}

/* The module a tensor of codes belongs to, "X."; false: it is none. */
static bool module_of(const char *name, char *module)
{
    static const char *const codes[] = {"qweight", "weight_packed"};
    for (size_t i = 0; i < 2; i++) {
        const char *at = strstr(name, codes[i]);
        if (at != NULL && strcmp(at, codes[i]) == 0) {
            memcpy(module, name, (size_t)(at - name));
            module[at - name] = '\0';
            return true;
        }
    }
    return false;
}

/* The same model with every tensor in f32. */
static void write_twin(const char *from, const char *to, bool v1, size_t *n_int4)
{
    struct sl_error err = {0};
    struct sl_ckpt *c;
    struct sl_st_writer *w;
    char path[300], module[300], name[320];
    mkdir(to, 0777);
    copy_file(from, to, "config.json");
    set_key(to, "quantization_config", NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    if (sl_ckpt_open(from, &c, &err) != 0 || sl_st_writer_create(path, &w, &err) != 0)
        fail_msg("%s", err.msg);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sl_ckpt_n_tensors(c); i++) {
            const struct sl_ckpt_tensor *t = sl_ckpt_tensor_at(c, i);
            int64_t dims[2];
            float *x = NULL;
            if (module_of(t->name, module)) {
                x = dequantised(c, module, v1, dims);
                snprintf(name, sizeof name, "%sweight", module);
                if (pass == 0)
                    sl_st_writer_add_tensor(w, name, SL_DTYPE_F32, 2, dims);
                else
                    put_floats(w, SL_DTYPE_F32, x, dims[0] * dims[1]);
                *n_int4 += (size_t)pass;
            } else if (t->dtype == SL_DTYPE_BF16 && strstr(t->name, "_scale") == NULL) {
                const int64_t n = elements(t->dims, t->n_dims);
                x = sl_malloc((size_t)n * sizeof *x);
                assert_non_null(x);
                sl_dtype_info(t->dtype)->to_f32(t->data, x, n);
                if (pass == 0)
                    sl_st_writer_add_tensor(w, t->name, SL_DTYPE_F32, t->n_dims, t->dims);
                else
                    put_floats(w, SL_DTYPE_F32, x, n);
            }
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
    rig_open(&g, path,
             &(struct rig_options){.isa = isa, .kv_dtype = "f32", .exact = exact, .n_threads = 2});
    rig_tokens(tokens, N_TOKENS, g.n_vocab, 3);
    rig_pages(pages, 8, 0, true);
    *n = (size_t)N_TOKENS * (size_t)g.n_vocab;
    float *out = sl_malloc(*n * sizeof *out);
    struct seq s = {tokens, N_TOKENS, pages, out};
    rig_run(&g, &s, N_TOKENS);
    rig_close(&g);
    return out;
}

/* As floats the checkpoint and its twin are the same model, to the bit, and all kinds of checkpoint
 * are. The embedding and the head are bf16, so processors that multiply it are asked for floats. */
static void test_twin(void **state)
{
    static const char *const isas[] = {"c", "avx2", "avx512", "avx512-bf16", "amx"};
    static const struct {
        int32_t group;
        bool symmetric;
    } cases[] = {{128, false}, {128, true}, {32, false}, {64, false}, {-1, false}};
    (void)state;
    for (size_t k = 0; k < SL_COUNT(cases); k++) {
        float *first = NULL;
        for (size_t kind = 0; kind < SL_COUNT(kinds); kind++) {
            char path[200];
            size_t n, n_twin, n_int4 = 0;
            snprintf(path, sizeof path, OUT "/%s_%d%s", kinds[kind], cases[k].group,
                     cases[k].symmetric ? "_sym" : "");
            write_int4(kinds[kind], cases[k].group, cases[k].symmetric, path);
            write_twin(path, OUT "/twin", kind == 0, &n_int4);
            /* every projection of two layers, and the head */
            assert_int_equal(n_int4, 2 * 7 + cases[k].symmetric);
            float *want = logits_of(OUT "/twin", "c", false, &n_twin);
            if (first != NULL)
                assert_memory_equal(first, want, n_twin * sizeof *want);
            for (size_t i = 0; i < SL_COUNT(isas); i++) {
                if (!rig_has_isa(isas[i]) || (i + kind) % 4 == k % 4) /* each in its turn */
                    continue;
                float *have = logits_of(path, isas[i], true, &n);
                assert_int_equal(n, n_twin);
                if (memcmp(have, want, n * sizeof *have) != 0)
                    fail_msg("%s, %s: NMSE %.3g", path, isas[i], rig_nmse(have, want, n));
                sl_free(have);
            }
            if (first == NULL)
                first = want;
            else
                sl_free(want);
        }
        sl_free(first);
    }
}

/* ---------------------------------------------------------------- what is refused */

#define M "model.layers.1.mlp.up_proj." /* [384, 128] */

#define WORD(tensor, place, bits)                                \
    {                                                            \
        .name = tensor, .what = BYTES, .at = place, .word = bits \
    }

static const struct row {
    const char *from;
    struct edit e;
    int code;
    const char *want;
} rows[] = {
    {"gptq_128", NONE(M "qweight"), SL_EFORMAT, "tensor \"" M "weight\" is missing"},
    {"gptq_128", NONE(M "scales"), SL_EFORMAT,
     "\"" M "scales\" is missing|\"" M "qweight\" needs it"},
    {"gptq_128", NONE(M "qzeros"), SL_EFORMAT, "\"" M "qzeros\" is missing"},
    {"gptq_128", NONE(M "g_idx"), 0, NULL},
    {"gptq_128", PUT(M "qweight", F32, 2, 1, -1, 16, 384), SL_EUNSUPPORTED,
     M "qweight\" is f32, expected I32"},
    {"gptq_128", PUT(M "scales", F32, 2, 1, -1, 1, 384), SL_EUNSUPPORTED,
     M "scales\" is f32; scales must be f16 or bf16"},
    {"gptq_128", PUT(M "scales", BF16, 2, 1, -1, 1, 384), 0, NULL},
    {"gptq_128", PUT(M "scales", F16, 2, 1, -1, 384, 1), SL_EFORMAT,
     M "scales\" has shape [384, 1], expected [1, 384]"},
    {"gptq_32", PUT(M "scales", F16, 2, 1, -1, 1, 384), SL_EFORMAT,
     M "scales\" has shape [1, 384], expected [4, 384]"},
    {"gptq_128", PUT(M "scales", F16, 2, NAN, 383, 1, 384), SL_EFORMAT,
     M "scales\": a scale of output 383 is not a finite number"},
    {"gptq_32", PUT(M "scales", F16, 2, INFINITY, 2 * 384 + 70, 4, 384), SL_EFORMAT,
     "a scale of output 70 is not"},
    {"gptq_32", PUT(M "scales", F16, 2, NAN, -1, 4, 384), SL_EFORMAT, "a scale of output 0 is not"},
    {"gptq_32", PUT(M "scales", F16, 2, 0, -1, 4, 384), 0, NULL},
    {"gptq_32", WORD(M "g_idx", 4 * 31, 1), SL_EUNSUPPORTED,
     M "g_idx\": column 31 is in group 1, expected 0|(desc_act, actorder)"},
    {"gptq_32", WORD(M "g_idx", 4 * 127, 0xFFFFFFFF), SL_EUNSUPPORTED, "is in group -1"},
    {"gptq_32", PUT(M "g_idx", F32, 1, 0, -1, 128), SL_EUNSUPPORTED, "is f32, expected I32"},
    {"awq_128", NONE(M "qzeros"), SL_EFORMAT, "\"" M "qzeros\" is missing"},
    {"awq_128", AGAIN(M "qweight", M "weight_packed"), 0, NULL},
    {"awq_128", PUT(M "scales", F16, 2, -INFINITY, 8, 1, 384), SL_EFORMAT, "of output 8 is not"},
    {"compressed-tensors_32", NONE(M "weight_packed"), SL_EFORMAT,
     "tensor \"" M "weight\" is missing"},
    {"compressed-tensors_32", NONE(M "weight_scale"), SL_EFORMAT, M "weight_scale\" is missing"},
    {"compressed-tensors_32", NONE(M "weight_zero_point"), 0, NULL},
    {"compressed-tensors_32", NONE(M "weight_shape"), 0, NULL},
    {"compressed-tensors_32", WORD(M "weight_shape", 0, 383), SL_EFORMAT,
     M "weight_shape\" says [383, 128], expected [384, 128]"},
    {"compressed-tensors_32", PUT(M "weight_scale", BF16, 2, 1, -1, 4, 384), SL_EFORMAT,
     "has shape [4, 384], expected [384, 4]"},
    {"compressed-tensors_32", PUT(M "weight_scale", BF16, 2, NAN, 4 * 100 + 3, 384, 4), SL_EFORMAT,
     M "weight_scale\": a scale of output 100 is not"},
    {"compressed-tensors_32", AGAIN(M "weight_zero_point", M "weight_g_idx"), SL_EFORMAT,
     M "weight_g_idx\" has shape [48, 4], expected [128]"},
    /* what is not quantised may stay so */
    {"awq_128", PUT("model.norm.weight", F32, 1, 1, -1, 128), 0, NULL},
};

static void test_hostile_tensors(void **state)
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

#define GPTQ(rest) "{\"quant_method\": \"gptq\", " rest "}"
#define AWQ(rest)  "{\"quant_method\": \"awq\", " rest "}"
#define CT(weights)                                                               \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", " \
    "\"config_groups\": {\"group_0\": {\"weights\": " weights "}}}"

static const struct {
    const char *from, *value; /* of quantization_config */
    int code;
    const char *want;
} configs[] = {
    {"gptq_128", NULL, SL_EFORMAT, "q_proj.weight\" is missing"},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 128"), 0, NULL},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 128, \"desc_act\": true"), 0, NULL},
    {"gptq_v2_128", GPTQ("\"bits\": 4, \"group_size\": 128, \"checkpoint_format\": \"gptq_v2\""), 0,
     NULL},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 128, \"checkpoint_format\": \"marlin\""),
     SL_EUNSUPPORTED, "checkpoint_format \"marlin\" is not supported (supported: gptq, gptq_v2)"},
    {"gptq_128", GPTQ("\"bits\": 8, \"group_size\": 128"), SL_EUNSUPPORTED,
     "weights with bits 8 are not supported (4 is)"},
    {"gptq_128", GPTQ("\"group_size\": 128"), SL_EUNSUPPORTED, "weights with bits (none)"},
    {"gptq_128", GPTQ("\"bits\": 4"), SL_EFORMAT, "group_size must be a positive integer or -1"},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 0"), SL_EFORMAT, "group_size must be"},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 1099511627776"), SL_EFORMAT,
     "group_size must be"},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 48"), SL_EUNSUPPORTED,
     "group_size: groups of 48 are not supported (multiples of 32 are)"},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 96"), SL_EUNSUPPORTED,
     "q_proj.qweight\": rows of 128 values in groups of 96 are not supported"},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 256"), SL_EUNSUPPORTED,
     "rows of 128 values in groups of 256"},
    {"gptq_128", GPTQ("\"bits\": 4, \"group_size\": 64"), SL_EFORMAT,
     "q_proj.scales\" has shape [1, 128], expected [2, 128]"},
    {"gptq_128", AWQ("\"bits\": 4, \"group_size\": 128"), SL_EFORMAT,
     "q_proj.qweight\" has shape [16, 128], expected [128, 16] (four bits)"},
    {"awq_128", GPTQ("\"bits\": 4, \"group_size\": 128"), SL_EFORMAT,
     "q_proj.qweight\" has shape [128, 16], expected [16, 128] (four bits)"},
    {"awq_128", AWQ("\"w_bit\": 4, \"q_group_size\": 128, \"version\": \"GEMM\""), 0, NULL},
    {"awq_128", AWQ("\"bits\": 4, \"group_size\": 128, \"version\": \"gemv\""), SL_EUNSUPPORTED,
     "version \"gemv\" is not supported (supported: gemm)"},
    {"awq_128", AWQ("\"bits\": 4, \"group_size\": 128, \"zero_point\": false"), SL_EUNSUPPORTED,
     "awq without zero_point"},
    {"awq_128", AWQ("\"bits\": 3, \"group_size\": 128"), SL_EUNSUPPORTED, "bits 3"},
    {"compressed-tensors_32",
     CT("{\"type\": \"int\", \"num_bits\": 4, \"strategy\": \"group\", \"group_size\": 32}"), 0,
     NULL},
    {"compressed-tensors_-1",
     CT("{\"type\": \"int\", \"num_bits\": 4, \"strategy\": \"channel\", \"group_size\": null}"), 0,
     NULL},
    {"compressed-tensors_32",
     CT("{\"type\": \"int\", \"num_bits\": 8, \"strategy\": \"group\", \"group_size\": 32}"),
     SL_EUNSUPPORTED, "weights with num_bits 8"},
    {"compressed-tensors_32",
     CT("{\"type\": \"float\", \"num_bits\": 4, \"strategy\": \"group\", \"group_size\": 32}"),
     SL_EUNSUPPORTED, "weights of type \"float\" is not supported (supported: int)"},
    {"compressed-tensors_32", CT("{\"type\": \"int\", \"num_bits\": 4, \"strategy\": \"tensor\"}"),
     SL_EUNSUPPORTED, "strategy \"tensor\" is not supported (supported: group, channel)"},
    {"compressed-tensors_32",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
     "\"config_groups\": {\"a\": {\"weights\": {\"type\": \"int\", \"num_bits\": 4, \"strategy\": "
     "\"group\", \"group_size\": 32}}, \"b\": {\"weights\": {\"type\": \"int\", \"num_bits\": 4, "
     "\"strategy\": \"channel\"}}}}",
     SL_EUNSUPPORTED, "groups with different group_size"},
    {"compressed-tensors_32",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}", SL_EFORMAT,
     "config_groups is missing or empty"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twin), /* writes what the others change */
        cmocka_unit_test(test_hostile_tensors),
        cmocka_unit_test(test_configs),
    };
    return cmocka_run_group_tests(tests, setup_group, NULL);
}
