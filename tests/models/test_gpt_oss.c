/* SPDX-License-Identifier: MIT
 * gpt-oss beside its goldens: MXFP4 of a folder has the bits of MXFP4 of a GGUF, what is wrong with
 * the experts' tensors is refused, and every mechanism of the family changes the logits of the
 * golden that is there to show it.
 */
#include "models/ckpt_edit.h"

#define OUT   "build/testdata/test_gpt_oss"
#define MXFP4 "tests/golden/models/gpt_oss_mxfp4"
#define BF16  "tests/golden/models/gpt_oss"

static int setup_group(void **state)
{
    (void)state;
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    return 0;
}

enum { N = 56 };

static float *logits_of(const char *path, const struct rig_options *o, size_t *n)
{
    struct rig g;
    int32_t tokens[N], pages[8];
    rig_open(&g, path, o);
    for (int32_t i = 0; i < N; i++)
        tokens[i] = (i * 37 + 5) % 96;
    rig_pages(pages, 8, 0, true);
    *n = (size_t)N * (size_t)g.n_vocab;
    float *logits = sl_calloc(*n, sizeof *logits);
    assert_non_null(logits);
    struct seq s = {tokens, N, pages, logits};
    rig_run(&g, &s, N);
    rig_close(&g);
    return logits;
}

/* vllm#44893, transformers#40197: parts of gate and up taken for one another, biases lost. */
static void test_mxfp4_of_both_containers(void **state)
{
    static const char *const isas[] = {"c", "avx2", "avx512", "avx512-vnni"};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        size_t n;
        const struct rig_options o = {.isa = isas[i], .kv_dtype = "bf16"};
        if (!rig_has_isa(isas[i]))
            continue;
        float *folder = logits_of(MXFP4, &o, &n);
        float *gguf = logits_of("tests/golden/gguf/gpt_oss_mxfp4.gguf", &o, &n);
        if (memcmp(folder, gguf, n * sizeof *gguf) != 0)
            fail_msg("%s: NMSE of a GGUF to its folder %g", isas[i], rig_nmse(gguf, folder, n));
        sl_free(folder);
        sl_free(gguf);
    }
}

/* ---------------------------------------------------------------- what is refused */

#define EXPERTS "model.layers.1.mlp.experts."

static const struct {
    const char *from;
    struct edit e;
    int code;
    const char *want;
} rows[] = {
    {MXFP4, NONE(EXPERTS "gate_up_proj_scales"), SL_EFORMAT,
     "gate_up_proj_scales\" is missing|gate_up_proj_blocks\" needs it"},
    {MXFP4, NONE(EXPERTS "gate_up_proj_blocks"), SL_EFORMAT,
     "experts.0.gate_proj.weight\" is missing, and so is|experts.gate_up_proj\""},
    {MXFP4, PUT(EXPERTS "down_proj_scales", F32, 3, 1, -1, 3, 64, 1), SL_EFORMAT,
     "down_proj_scales\" is missing"},
    {MXFP4,
     {.name = EXPERTS "down_proj_scales", .what = BYTES, .word = 0x7878ff78, .at = 12},
     SL_EFORMAT,
     "down_proj_scales\": a scale is 255, which is not a number"},
    {MXFP4,
     {.name = EXPERTS "down_proj_scales", .what = BYTES, .word = 0x7878fe00, .at = 12},
     0,
     NULL},
    {BF16, NONE(EXPERTS "down_proj"), SL_EFORMAT, "and so is|experts.down_proj\""},
    {BF16, PUT(EXPERTS "down_proj", BF16, 3, 1, -1, 5, 32, 24), SL_EFORMAT,
     "down_proj\" has shape [5, 32, 24], expected [5, 24, 32]"},
    {BF16, PUT(EXPERTS "gate_up_proj", BF16, 3, 1, -1, 5, 48, 32), SL_EFORMAT,
     "gate_up_proj\" has shape [5, 48, 32], expected [5, 32, 48]"},
    {BF16, PUT(EXPERTS "gate_up_proj", FP8_E4M3, 3, 1, -1, 5, 32, 48), SL_EUNSUPPORTED,
     "gate_up_proj\" is fp8_e4m3; a fused tensor of this model must be"},
    {BF16, PUT(EXPERTS "gate_up_proj_bias", BF16, 2, 1, -1, 5, 24), SL_EFORMAT,
     "gate_up_proj_bias\" has shape [5, 24], expected [5, 48]"},
    {BF16, NONE("model.layers.0.self_attn.sinks"), SL_EFORMAT, "self_attn.sinks\" is missing"},
    {BF16, PUT("model.layers.0.self_attn.sinks", BF16, 1, 1, -1, 5), SL_EFORMAT,
     "sinks\" has shape [5], expected [6]"},
    {BF16, NONE("model.layers.0.mlp.router.bias"), SL_EFORMAT, "mlp.router.bias\" is missing"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        rewrite(rows[i].from, OUT "/edited", &rows[i].e);
        expect(OUT "/edited", rows[i].code, rows[i].want, rows[i].e.name);
    }
}

/* ---------------------------------------------------------------- what must count */

/* A golden proves nothing of what may be left out. vllm#52156, #28561: sinks dropped. */
static void test_everything_counts(void **state)
{
    static const struct {
        const char *key, *value;
    } keys[] = {{"swiglu_limit", "1e6"},
                {"swiglu_alpha", "1"},
                {"sliding_window", "64"},
                {"layer_types", "[\"full_attention\", \"sliding_attention\"]"},
                {"num_experts_per_tok", "2"},
                {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 8, \"beta_fast\": 4, "
                                 "\"original_max_position_embeddings\": 32}"}};
    static const struct edit edits[] = {
        PUT("model.layers.0.self_attn.sinks", BF16, 1, -100, -1, 6),
        PUT("model.layers.1.self_attn.sinks", BF16, 1, -100, -1, 6),
        PUT("model.layers.0.mlp.router.bias", BF16, 1, 0, -1, 5),
        PUT(EXPERTS "gate_up_proj_bias", BF16, 2, 0, -1, 5, 48),
        PUT(EXPERTS "down_proj_bias", BF16, 2, 0, -1, 5, 32),
    };
    const struct rig_options o = {.kv_dtype = "f32", .exact = true};
    size_t n;
    (void)state;
    float *want = logits_of(BF16, &o, &n);
    for (size_t i = 0; i < SL_COUNT(keys) + SL_COUNT(edits); i++) {
        const bool key = i < SL_COUNT(keys);
        const struct edit none = {.name = ""}, *e = key ? &none : &edits[i - SL_COUNT(keys)];
        rewrite(BF16, OUT "/edited", e);
        if (key)
            set_key(OUT "/edited", keys[i].key, keys[i].value);
        float *have = logits_of(OUT "/edited", &o, &n);
        const double nmse = rig_nmse(have, want, n);
        if (!(nmse > 1e-5))
            fail_msg("%s: NMSE %g without it", key ? keys[i].key : e->name, nmse);
        sl_free(have);
    }
    sl_free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mxfp4_of_both_containers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_everything_counts),
    };
    return cmocka_run_group_tests_name("gpt_oss", tests, setup_group, NULL);
}
