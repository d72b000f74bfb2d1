/* SPDX-License-Identifier: MIT
 * Fused tensors: a Phi-3 folder made by joining the tensors of a Llama folder is the same model to
 * the bit, in every format of matrices. Malformed tensors are refused, and those that are pieces of
 * one weight.
 */
#include "models/ckpt_edit.h"
#include "synth/synth.h"

#include <math.h>

#define OUT "build/testdata/fused"

enum { N_TOKENS = 40 };

static int setup_group(void **state)
{
    (void)state;
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    return 0;
}

static const struct kind {
    const char *label;
    enum sl_dtype dtype;
    enum sl_synth_scales scales;
    enum sl_int4_kind int4;
} kinds[] = {
    {"bf16", SL_DTYPE_BF16, SL_SYNTH_BLOCK, SL_INT4_NONE},
    {"fp8_block", SL_DTYPE_FP8_E4M3, SL_SYNTH_BLOCK, SL_INT4_NONE},
    {"fp8_channel", SL_DTYPE_FP8_E4M3, SL_SYNTH_CHANNEL, SL_INT4_NONE},
    {"gptq", SL_DTYPE_INT4_G128, SL_SYNTH_BLOCK, SL_INT4_GPTQ_V1},
    {"awq", SL_DTYPE_INT4_G128, SL_SYNTH_BLOCK, SL_INT4_AWQ_GEMM},
    {"packed", SL_DTYPE_INT4_G128, SL_SYNTH_BLOCK, SL_INT4_PACKED},
};

static void write_apart(const struct kind *k, const char *path)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = "llama",
                         .dtype = k->dtype,
                         .scales = k->scales,
                         .int4 = k->int4,
                         .int4_group = 128,
                         .format = SL_CKPT_HF,
                         .seed = 9};
    if (sl_synth_shape("llama", "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.hidden = 256; /* parts end where blocks of scales do */
    s.hp.intermediate = 384;
    s.hp.n_heads = 8;
    s.hp.n_kv_heads = 4;
    s.hp.head_dim = 32;
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

/* ---------------------------------------------------------------- joining */

static const struct joint {
    const char *parts[3], *whole;
} joints[] = {
    {{"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."}, "self_attn.qkv_proj."},
    {{"mlp.gate_proj.", "mlp.up_proj.", NULL}, "mlp.gate_up_proj."},
};

/* name with what stands at `from` replaced. */
static void renamed(const char *name, const char *from, const char *to, char *out, size_t n_out)
{
    const char *at = strstr(name, from);
    assert_non_null(at);
    snprintf(out, n_out, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from));
}

/* The tensors that t is joined with, itself first. 0: it is written as it is; -1: it is none's
 * first. */
static int parts_of(const struct sl_ckpt *c, const struct sl_ckpt_tensor *t,
                    const struct sl_ckpt_tensor *parts[3], char *name, size_t n_name)
{
    for (size_t j = 0; j < SL_COUNT(joints); j++) {
        for (int i = 1; i < 3 && joints[j].parts[i] != NULL; i++)
            if (strstr(t->name, joints[j].parts[i]) != NULL)
                return -1;
        if (strstr(t->name, joints[j].parts[0]) == NULL)
            continue;
        int n = 0;
        for (; n < 3 && joints[j].parts[n] != NULL; n++) {
            renamed(t->name, joints[j].parts[0], joints[j].parts[n], name, n_name);
            for (size_t k = 0; k < sl_ckpt_n_tensors(c); k++)
                if (strcmp(sl_ckpt_tensor_at(c, k)->name, name) == 0)
                    parts[n] = sl_ckpt_tensor_at(c, k);
            assert_non_null(parts[n]);
        }
        renamed(t->name, joints[j].parts[0], joints[j].whole, name, n_name);
        return n;
    }
    return 0;
}

/* Outputs are columns in GPTQ's and AWQ's tensors, rows in all others. */
static int joined_dim(const char *name)
{
    return strstr(name, "qweight") != NULL || strstr(name, "qzeros") != NULL ||
           strstr(name, ".scales") != NULL;
}

static void write_joined(struct sl_st_writer *w, const struct sl_ckpt *c,
                         const struct sl_ckpt_tensor *parts[3], int n, const char *name,
                         bool writing)
{
    struct sl_error err = {0};
    const struct sl_ckpt_tensor *t = parts[0];
    const int by = joined_dim(name);
    struct sl_ckpt_tensor whole = *t;
    int64_t shape[2] = {0, 0}; /* what compressed-tensors says of a matrix */
    const bool is_shape = strstr(name, "weight_shape") != NULL;
    const bool is_order = strstr(name, "g_idx") != NULL;
    for (int i = 1; i < n && !is_shape && !is_order; i++) {
        whole.dims[by] += parts[i]->dims[by];
        whole.n_bytes += parts[i]->n_bytes;
    }
    if (!writing) {
        declare_like(w, c, &whole, name);
        return;
    }
    uint8_t *bytes = sl_malloc((size_t)whole.n_bytes), *at = bytes;
    assert_non_null(bytes);
    for (int64_t r = 0; r < (by == 1 ? t->dims[0] : 1); r++)
        for (int i = 0; i < (is_order || is_shape ? 1 : n); i++) {
            size_t row = (size_t)parts[i]->n_bytes / (by == 1 ? (size_t)t->dims[0] : 1);
            memcpy(at, parts[i]->data + (size_t)r * row, row);
            at += row;
        }
    for (int i = 0; i < n && is_shape; i++) {
        int64_t one[2];
        memcpy(one, parts[i]->data, sizeof one);
        shape[0] += one[0];
        shape[1] = one[1];
        memcpy(bytes, shape, sizeof shape);
    }
    if (sl_st_writer_write_tensor_data(w, bytes, (size_t)whole.n_bytes, &err) != 0)
        fail_msg("%s", err.msg);
    sl_free(bytes);
}

static void join(const char *from, const char *to)
{
    struct sl_error err = {0};
    struct sl_ckpt *c;
    struct sl_st_writer *w;
    char path[300], name[300];
    mkdir(to, 0777);
    copy_file(from, to, "config.json");
    set_key(to, "architectures", "[\"Phi3ForCausalLM\"]");
    set_key(to, "model_type", "\"phi3\"");
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    if (sl_ckpt_open(from, &c, &err) != 0 || sl_st_writer_create(path, &w, &err) != 0)
        fail_msg("%s", err.msg);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sl_ckpt_n_tensors(c); i++) {
            const struct sl_ckpt_tensor *t = sl_ckpt_tensor_at(c, i), *parts[3] = {t};
            int n = parts_of(c, t, parts, name, sizeof name);
            if (n > 0)
                write_joined(w, c, parts, n, name, pass == 1);
            else if (n == 0 && pass == 0)
                declare_like(w, c, t, t->name);
            else if (n == 0)
                put_tensor(w, t, NULL);
        }
        if (pass == 0 && sl_st_writer_begin_data(w, &err) != 0)
            fail_msg("%s", err.msg);
    }
    if (sl_st_writer_finish(w, &err) != 0)
        fail_msg("%s", err.msg);
    sl_ckpt_close(c);
}

/* ---------------------------------------------------------------- the same model */

static float *logits_of(const char *path, const char *isa, size_t *n, uint64_t *n_params)
{
    struct rig g;
    int32_t tokens[N_TOKENS], pages[4];
    rig_open(&g, path, &(struct rig_options){.isa = isa, .kv_dtype = "f32"});
    *n_params = sl_model_facts(g.model)->n_params;
    rig_tokens(tokens, N_TOKENS, g.n_vocab, 3);
    rig_pages(pages, 4, 0, true);
    *n = (size_t)N_TOKENS * (size_t)g.n_vocab;
    float *out = sl_malloc(*n * sizeof *out);
    struct seq s = {tokens, N_TOKENS, pages, out};
    rig_run(&g, &s, N_TOKENS);
    rig_close(&g);
    return out;
}

static void test_same_model(void **state)
{
    static const char *const isas[] = {"c", "avx512", "amx"};
    (void)state;
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        char apart[200], fused[200];
        snprintf(apart, sizeof apart, OUT "/%s_apart", kinds[k].label);
        snprintf(fused, sizeof fused, OUT "/%s", kinds[k].label);
        write_apart(&kinds[k], apart);
        join(apart, fused);
        for (size_t i = 0; i < SL_COUNT(isas); i++) {
            size_t n, n_fused;
            uint64_t params, params_fused;
            if (!rig_has_isa(isas[i])) {
                printf("skip: %s: not on this processor\n", isas[i]);
                continue;
            }
            float *want = logits_of(apart, isas[i], &n, &params);
            float *have = logits_of(fused, isas[i], &n_fused, &params_fused);
            assert_int_equal(n, n_fused);
            assert_int_equal(params, params_fused);
            if (memcmp(have, want, n * sizeof *have) != 0)
                fail_msg("%s, %s: the fused model differs, NMSE %.3g", kinds[k].label, isas[i],
                         rig_nmse(have, want, n));
            sl_free(want);
            sl_free(have);
        }
    }
}

/* ---------------------------------------------------------------- what is refused */

#define QKV     "model.layers.1.self_attn.qkv_proj." /* 256 + 128 + 128 rows of 256 */
#define GATE_UP "model.layers.0.mlp.gate_up_proj."   /* 384 twice, of 256 */
#define DELTA   "model.layers.1.linear_attn."

static const struct row {
    const char *from;
    struct edit e;
    int code;
    const char *want;
} rows[] = {
    {"bf16", NONE(QKV "weight"), SL_EFORMAT, "tensor \"" QKV "weight\" is missing"},
    {"bf16", PUT(QKV "weight", BF16, 2, 0, -1, 256, 256), SL_EFORMAT,
     "tensor \"" QKV "weight\" has shape [256, 256], expected [512, 256]"},
    {"bf16", PUT(QKV "weight", BF16, 2, 0, -1, 513, 256), SL_EFORMAT, "expected [512, 256]"},
    {"bf16", PUT(QKV "weight", BF16, 2, 0, -1, 512, 128), SL_EFORMAT, "expected [512, 256]"},
    {"bf16", PUT(GATE_UP "weight", BF16, 3, 0, -1, 2, 384, 256), SL_EFORMAT,
     "has shape [2, 384, 256], expected [768, 256]"},
    {"bf16", PUT(GATE_UP "weight", BF16, 1, 0, -1, 768), SL_EFORMAT, "expected [768, 256]"},
    {"fp8_block", NONE(QKV "weight_scale_inv"), SL_EFORMAT, "is fp8_e4m3 without scales"},
    {"fp8_block", PUT(QKV "weight_scale_inv", BF16, 2, 1, -1, 2, 2), SL_EFORMAT,
     "expected [1], [512], [512, 1] or [4, 2]"},
    {"fp8_channel", PUT(QKV "weight_scale", F32, 2, 1, -1, 256, 1), SL_EFORMAT, "[512, 1]"},
    {"gptq", PUT(QKV "scales", F16, 2, 1, -1, 2, 256), SL_EFORMAT, "expected [2, 512]"},
    {"packed", NONE(GATE_UP "weight_scale"), SL_EFORMAT, "\" is missing"},
    {"pieces", NONE(DELTA "k_proj.weight"), SL_EFORMAT, "\"" DELTA "k_proj.weight\" is missing"},
    {"pieces", PUT(DELTA "k_proj.weight", BF16, 2, 0, -1, 64, 64), SL_EFORMAT,
     "k_proj.weight\" has shape [64, 64], expected [48, 64]"},
    {"pieces", PUT(DELTA "k_proj.weight", F16, 2, 0, -1, 48, 64), 0, NULL}, /* one each */
    {"pieces", NONE(DELTA "v_conv1d.weight"), SL_EFORMAT,
     "\"" DELTA "v_conv1d.weight\" is missing, and so is \"" DELTA "conv1d.weight\""},
    {"pieces", PUT(DELTA "v_conv1d.weight", BF16, 2, 0, -1, 63, 4), SL_EFORMAT,
     "\"" DELTA "q_conv1d.weight\" and the 2 that belong to it have 159 rows together, expected "
     "160"},
    {"pieces", PUT(DELTA "v_conv1d.weight", BF16, 2, 0, -1, 161, 4), SL_EFORMAT, "expected [160"},
    {"pieces", PUT(DELTA "v_conv1d.weight", BF16, 1, 0, -1, 64), SL_EFORMAT, "expected [64, 4]"},
    {"pieces", PUT(DELTA "v_conv1d.weight", F32, 3, 0, -1, 64, 1, 4), 0, NULL},
};

/* OLMo Hybrid: q, k and v of 48, 48 and 64 rows. */
static void write_pieces(const char *path)
{
    struct sl_error err = {0};
    struct sl_synth s = {
        .name = "olmo_hybrid", .dtype = SL_DTYPE_BF16, .format = SL_CKPT_HF, .seed = 9};
    if (sl_synth_shape(s.name, "tiny", &s.hp, &err) != 0 || sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

static void test_refused(void **state)
{
    (void)state;
    write_pieces(OUT "/pieces");
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char from[200];
        snprintf(from, sizeof from, OUT "/%s", rows[i].from);
        rewrite(from, OUT "/edited", &rows[i].e);
        expect(OUT "/edited", rows[i].code, rows[i].want, rows[i].e.name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_model),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("fused", tests, setup_group, NULL);
}
