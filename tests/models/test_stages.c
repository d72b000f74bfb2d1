/* SPDX-License-Identifier: MIT
 * Pipeline parallelism: a model divided among stages gives the bits of the model in one piece, for
 * every family that can be divided, in chunks, decoding and mixed batches, and so it is if each
 * stage is divided among ranks. Each has its layers' weights and pages, and no others. What cannot
 * be divided is refused by name.
 */
#include "models/internal.h"
#include "models/model_rig.h"
#include "models/tables.h"
#include "synth/synth.h"

#include <sys/stat.h>

#define OUT "build/testdata/models"

enum { N = 150 }; /* tokens */

struct variant {
    const char *name; /* of the family's member */
    enum sl_dtype dtype;
    int32_t n_layers; /* 0: those of the tiny shape */
    bool tied;        /* the embedding is the head too */
    int n_ranks;      /* most that it can be divided among; 0: none */
    bool own_experts; /* of which each has some, whole */
};

static const struct variant variants[] = {
    {.name = "llama", .dtype = SL_DTYPE_BF16, .n_layers = 5, .n_ranks = 2},
    {.name = "llama", .dtype = SL_DTYPE_BF16, .n_layers = 4, .tied = true, .n_ranks = 2},
    {.name = "llama", .dtype = SL_DTYPE_Q8_0, .n_layers = 4, .n_ranks = 2},
    {.name = "qwen3", .dtype = SL_DTYPE_F16, .n_layers = 3},
    {.name = "gemma2", .dtype = SL_DTYPE_BF16, .n_layers = 4}, /* norms of what is added */
    {.name = "gemma3", .dtype = SL_DTYPE_BF16, .n_ranks = 2},  /* windows: two groups of pages */
    {.name = "olmo2", .dtype = SL_DTYPE_BF16, .n_layers = 4},  /* no norm of a layer's input */
    {.name = "qwen3moe", .dtype = SL_DTYPE_BF16, .n_layers = 4, .n_ranks = 2},
    {.name = "qwen3moe", .dtype = SL_DTYPE_Q8_0, .n_layers = 4, .n_ranks = 2, .own_experts = true},
    {.name = "gpt-oss", .dtype = SL_DTYPE_MXFP4, .n_layers = 4},
    {.name = "deepseek_v3", .dtype = SL_DTYPE_BF16, .n_ranks = 4}, /* latent attention */
    {.name = "falcon", .dtype = SL_DTYPE_BF16, .n_layers = 4},     /* attention beside the MLP */
    {.name = "gpt_neox", .dtype = SL_DTYPE_F32, .n_layers = 4, .n_ranks = 2}, /* means in norms */
    {.name = "cohere2", .dtype = SL_DTYPE_F32},
    {.name = "phi", .dtype = SL_DTYPE_BF16, .n_layers = 4},
    {.name = "lfm2", .dtype = SL_DTYPE_BF16},                 /* convolutions: states */
    {.name = "mamba2", .dtype = SL_DTYPE_F32, .n_layers = 4}, /* states alone */
    {.name = "granitemoehybrid", .dtype = SL_DTYPE_F32},      /* states and keys */
    {.name = "qwen3next", .dtype = SL_DTYPE_BF16},            /* the delta rule */
};

static void write_variant(const struct variant *v, char *path, size_t n_path)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = v->name, .dtype = v->dtype, .seed = 5};
    const struct sl_model_desc *desc;
    const struct sl_model_name *name = sl_registry_find(v->name, &desc);
    if (name == NULL)
        fail_msg("%s", v->name);
    const bool gguf = sl_dtype_info(v->dtype)->gguf_id >= 0 && name->gguf_architecture != NULL;
    if (sl_synth_shape(v->name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s: %s", v->name, err.msg);
    s.format = gguf ? SL_CKPT_GGUF : SL_CKPT_HF;
    s.hp.n_layers = v->n_layers != 0 ? v->n_layers : s.hp.n_layers;
    if (v->tied)
        s.hp.has &= ~(unsigned)SL_HAS_HEAD;
    snprintf(path, n_path, OUT "/stages_%s_%s_%d%s", v->name, sl_dtype_info(v->dtype)->name,
             v->tied, gguf ? ".gguf" : "");
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

/* A sequence in a chunk, single tokens and chunks again, then a batch of it and a shorter one. */
static void run_all(struct rig *g, float *logits)
{
    int32_t tokens[N], pages[2][N];
    const size_t one = (size_t)N * (size_t)g->n_vocab;
    rig_tokens(tokens, N, g->n_vocab, 11);
    rig_pages(pages[0], N / 16 + 1, 0, true);
    rig_pages(pages[1], N / 16 + 1, N / 16 + 1, true);
    struct seq a = {tokens, N, pages[0], logits}, b = {tokens, 40, pages[1], logits + one};
    static const int32_t ends[] = {60, 61, 62, 63, 64, 110};
    for (size_t i = 0, from = 0; i < SL_COUNT(ends); from = (size_t)ends[i++]) {
        struct piece p = {&a, (int32_t)from, ends[i] - (int32_t)from, i != 2};
        rig_step(g, &p, 1);
    }
    struct piece both[] = {{&a, 110, N - 110, true}, {&b, 0, 40, true}};
    rig_step(g, both, 2);
}

/* floats, zero where nothing was asked for; sl_free it. */
static float *logits_of(const char *path, const struct rig_options *o, size_t *n_bytes)
{
    struct rig g;
    rig_open(&g, path, o);
    *n_bytes = (size_t)2 * N * (size_t)g.n_vocab * sizeof(float);
    float *logits = sl_calloc(1, *n_bytes);
    assert_non_null(logits);
    run_all(&g, logits);
    rig_close(&g);
    return logits;
}

static void compare(const char *path, const struct rig_options *o, const float *want)
{
    size_t n_bytes;
    float *have = logits_of(path, o, &n_bytes);
    for (size_t i = 0; i < n_bytes / sizeof *have; i++)
        if (memcmp(&have[i], &want[i], sizeof *have) != 0)
            fail_msg("%s, %d stages, %d ranks: logit %zu is %.9g instead of %.9g", path,
                     o->n_stages, o->n_ranks, i, (double)have[i], (double)want[i]);
    sl_free(have);
}

static int32_t n_layers_of(const char *path)
{
    struct sl_error err;
    struct sl_ckpt *ckpt;
    struct sl_model *m;
    assert_int_equal(sl_ckpt_open(path, &ckpt, &err), 0);
    assert_int_equal(sl_model_open(ckpt, &m, &err), 0);
    const int32_t n = sl_model_facts(m)->n_layers;
    sl_model_close(m);
    sl_ckpt_close(ckpt);
    return n;
}

static void test_bits(void **state)
{
    (void)state;
    for (size_t v = 0; v < SL_COUNT(variants); v++) {
        char path[200];
        size_t n_bytes;
        write_variant(&variants[v], path, sizeof path);
        const int32_t n_layers = n_layers_of(path);
        float *want = logits_of(path, &(struct rig_options){0}, &n_bytes);
        for (int32_t n = 2; n <= SL_MIN(n_layers, 3); n++)
            compare(path, &(struct rig_options){.n_stages = n}, want);
        const int32_t uneven[] = {n_layers - 1, 1};
        compare(path, &(struct rig_options){.n_stages = 2, .layers = uneven}, want);
        for (int n = 2; n <= variants[v].n_ranks; n *= 2)
            compare(path,
                    &(struct rig_options){
                        .n_stages = 2, .n_ranks = n, .own_experts = variants[v].own_experts},
                    want);
        sl_free(want);
    }
}

/* What a stage loads and keeps is its own: all of them together have what the model has. */
static void test_shares(void **state)
{
    (void)state;
    char path[200];
    struct rig whole, parts;
    write_variant(&variants[0], path, sizeof path);
    rig_open(&whole, path, &(struct rig_options){0});
    rig_open(&parts, path, &(struct rig_options){.n_stages = 3});
    size_t pages = parts.run->cfg.kv.groups[0].page_bytes;
    int32_t n_layers = 0;
    for (int32_t s = 0; s < 3; s++) {
        const struct sl_model *m = s == 2 ? parts.model : parts.others[s].model;
        int32_t first, end;
        sl_model_stage_layers(m, s, &first, &end);
        assert_int_equal(first, n_layers);
        n_layers = end;
        pages += s == 2 ? 0 : parts.others[s].run->cfg.kv.groups[0].page_bytes;
        assert_int_equal(sl_param(m, 0, SL_SLOT_EMBED)->loaded, s == 0);
        assert_int_equal(sl_param(m, 0, SL_SLOT_HEAD)->loaded, s == 2);
        for (int32_t l = 0; l < m->hp.n_layers; l++)
            assert_int_equal(sl_param(m, l, SL_SLOT_Q)->loaded, l >= first && l < end);
    }
    assert_int_equal(n_layers, sl_model_facts(whole.model)->n_layers);
    assert_int_equal(pages, whole.kv.groups[0].page_bytes);
    rig_close(&parts);
    rig_open(&parts, path, &(struct rig_options){.n_stages = 2, .n_ranks = 2});
    pages = 0;
    for (int i = 0; i < 4; i++) { /* ranks of a stage have its layers, and half of the rows */
        const struct rig *g = i == 0 ? &parts : &parts.others[i - 1];
        int32_t first, end;
        sl_model_stage_layers(g->model, g->model->stage, &first, &end);
        assert_int_equal(g->model->stage, i < 2 ? 1 : 0);
        assert_int_equal(g->model->rank, i % 2);
        assert_int_equal(2 * sl_param(g->model, first, SL_SLOT_Q)->mat.n_rows,
                         sl_param(whole.model, first, SL_SLOT_Q)->mat.n_rows);
        assert_false(sl_param(g->model, first > 0 ? 0 : end, SL_SLOT_Q)->loaded);
        pages += g->run->cfg.kv.groups[0].page_bytes;
    }
    assert_int_equal(pages, whole.kv.groups[0].page_bytes);
    rig_close(&parts);
    rig_close(&whole);
}

/* ---------------------------------------------------------------- refused */

static void refuse(const char *name, int32_t n_stages, const int32_t *layers, const char *want)
{
    char path[200];
    struct sl_error err = {0};
    struct sl_ckpt *ckpt;
    struct sl_model *m;
    write_variant(&(struct variant){.name = name, .dtype = SL_DTYPE_F32}, path, sizeof path);
    assert_int_equal(sl_ckpt_open(path, &ckpt, &err), 0);
    assert_int_equal(sl_model_open(ckpt, &m, &err), 0);
    if (sl_model_set_stage(m, 0, n_stages, layers, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\"", name, err.msg, want);
    sl_model_close(m);
    sl_ckpt_close(ckpt);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("llama", 8, NULL, "8 stages for 2 layers");
    refuse("llama", 2, (const int32_t[]){2, 0}, "stage 1 has 0 layers");
    refuse("llama", 2, (const int32_t[]){1, 2}, "they are 3 together, the model has 2");
    refuse("gemma3n", 2, NULL, "embeddings for each layer");
    refuse("deepseek_v4", 2, NULL, "several residual streams");
    refuse("rwkv7", 2, NULL, "mix with those of the first");
    refuse("bert", 2, NULL, "embeddings and scores");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
