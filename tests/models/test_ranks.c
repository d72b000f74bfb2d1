/* SPDX-License-Identifier: MIT
 * Tensor and expert parallelism: a model divided among ranks gives the bits of the model on one,
 * for every way of keeping weights, in chunks, decoding and mixed batches. What cannot be divided
 * is refused by name.
 */
#include "models/internal.h"
#include "models/model_rig.h"
#include "synth/synth.h"

#include <sys/stat.h>

#define OUT "build/testdata/models"

enum { N = 150 }; /* tokens */

struct variant {
    const char *name; /* of the family's member */
    enum sl_dtype dtype;
    enum sl_synth_scales scales; /* of FP8 */
    enum sl_int4_kind int4;
    bool wide;         /* rows of 256, for formats of larger blocks */
    bool tied;         /* the embedding is the head too */
    int32_t n_experts; /* then experts are divided, too, among up to 8 ranks; 0: no */
};

/* The tiny shape has 160 columns in the middle of its MLP: four ranks have 32 or 48 of them. */
static const struct variant variants[] = {
    {.name = "llama", .dtype = SL_DTYPE_BF16},
    {.name = "llama", .dtype = SL_DTYPE_BF16, .tied = true},
    {.name = "llama", .dtype = SL_DTYPE_Q8_0},
    {.name = "llama", .dtype = SL_DTYPE_Q4_K, .wide = true},
    {.name = "llama", .dtype = SL_DTYPE_FP8_E4M3, .wide = true, .scales = SL_SYNTH_BLOCK},
    {.name = "llama", .dtype = SL_DTYPE_FP8_E4M3, .wide = true, .scales = SL_SYNTH_CHANNEL},
    {.name = "llama", .dtype = SL_DTYPE_INT4_G128, .wide = true, .int4 = SL_INT4_AWQ_GEMM},
    {.name = "llama", .dtype = SL_DTYPE_INT4_G128, .wide = true, .int4 = SL_INT4_PACKED},
    {.name = "qwen2", .dtype = SL_DTYPE_F32},   /* biases of q, k and v */
    {.name = "qwen3", .dtype = SL_DTYPE_F16},   /* norms of heads */
    {.name = "gemma3", .dtype = SL_DTYPE_BF16}, /* windows: two groups of pages */
    {.name = "qwen3moe", .dtype = SL_DTYPE_BF16},
    {.name = "qwen3moe", .dtype = SL_DTYPE_Q8_0},
    {.name = "gpt-oss", .dtype = SL_DTYPE_MXFP4},             /* sinks, biases of experts */
    {.name = "phi3", .dtype = SL_DTYPE_Q8_0},                 /* fused tensors */
    {.name = "glm4", .dtype = SL_DTYPE_BF16},                 /* with biases of q, k and v */
    {.name = "qwen2moe", .dtype = SL_DTYPE_BF16},             /* a shared expert */
    {.name = "glm4moe", .dtype = SL_DTYPE_F16},               /* groups, a dense layer */
    {.name = "falcon", .dtype = SL_DTYPE_BF16, .wide = true}, /* q, k and v by heads */
    {.name = "cohere2", .dtype = SL_DTYPE_F32},        /* attention and MLP read the same norm */
    {.name = "phi", .dtype = SL_DTYPE_BF16},           /* biases of the logits */
    {.name = "afmoe", .dtype = SL_DTYPE_BF16},         /* a gate of what attention gives */
    {.name = "llama4-text", .dtype = SL_DTYPE_BF16},   /* weighed input, chunks */
    {.name = "mimo_v2_flash", .dtype = SL_DTYPE_BF16}, /* narrower values, sinks of some layers */
    {.name = "step3p5", .dtype = SL_DTYPE_BF16},       /* a gate by head, heads by layer, limits */
    {.name = "dbrx", .dtype = SL_DTYPE_F16, .wide = true}, /* limits of q, k and v */
    {.name = "apertus", .dtype = SL_DTYPE_F32},            /* parameters of the activation */
    {.name = "qwen3moe", .dtype = SL_DTYPE_BF16, .n_experts = 19},
    {.name = "qwen3moe", .dtype = SL_DTYPE_Q4_K, .wide = true, .n_experts = 16},
    {.name = "qwen3moe", .dtype = SL_DTYPE_BF16, .n_experts = 5}, /* fewer than leaves */
    {.name = "gpt-oss", .dtype = SL_DTYPE_MXFP4, .n_experts = 8}, /* biases of experts */
    {.name = "qwen2moe", .dtype = SL_DTYPE_Q8_0, .n_experts = 9}, /* a shared expert with a gate */
    {.name = "glm4moe", .dtype = SL_DTYPE_BF16, .n_experts = 16}, /* without one; groups */
    {.name = "llama4-text", .dtype = SL_DTYPE_BF16, .n_experts = 8},
    {.name = "dbrx", .dtype = SL_DTYPE_F16, .wide = true, .n_experts = 12}, /* all in one tensor */
    {.name = "deepseek_v2", .dtype = SL_DTYPE_Q8_0},                        /* latent attention */
    {.name = "deepseek_v3", .dtype = SL_DTYPE_BF16, .n_experts = 16},
    {.name = "glm4_moe_lite", .dtype = SL_DTYPE_F16, .n_experts = 8},
    {.name = "axk1", .dtype = SL_DTYPE_BF16, .n_experts = 8}, /* a norm behind the experts */
};

static void write_variant(const struct variant *v, char *path, size_t n_path)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = v->name, .dtype = v->dtype, .scales = v->scales, .seed = 5};
    const struct sl_model_desc *desc;
    const bool gguf = sl_dtype_info(v->dtype)->gguf_id >= 0 &&
                      sl_registry_find(v->name, &desc)->gguf_architecture != NULL;
    if (sl_synth_shape(v->name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.format = gguf ? SL_CKPT_GGUF : SL_CKPT_HF;
    s.hp.n_heads = 8; /* heads and key heads for four ranks */
    if (strcmp(v->name, "mimo_v2_flash") == 0)
        for (int32_t l = 0; l < s.hp.n_layers; l++)
            s.hp.layer_kv_heads[l] *= 4 / s.hp.n_kv_heads;
    s.hp.n_kv_heads = 4;
    for (int32_t l = 0; l < s.hp.n_layers && s.hp.layer_heads[l] != 0; l++) {
        s.hp.layer_heads[l] *= 2;
        s.hp.layer_kv_heads[l] = s.hp.n_kv_heads;
    }
    if (v->wide) {
        s.hp.hidden = 256;
        s.hp.intermediate = 512;
        s.hp.head_dim = 32;
    }
    if (v->n_experts > 0) {
        s.hp.n_heads = s.hp.n_kv_heads = 8;
        s.hp.n_experts = v->n_experts;
        s.hp.hidden = SL_MAX(s.hp.hidden, 256); /* rows for eight ranks, as the others */
        if (s.hp.expert_intermediate != 0)
            s.hp.expert_intermediate = v->wide ? 256 : 128;
        s.hp.intermediate = SL_MAX(s.hp.intermediate, 512);
    }
    if (v->tied)
        s.hp.has &= ~(unsigned)SL_HAS_HEAD;
    if (v->int4 != SL_INT4_NONE) {
        s.int4 = v->int4;
        s.int4_group = 128;
    }
    snprintf(path, n_path, OUT "/ranks_%s_%s_%d%d%d_%d%s", v->name, sl_dtype_info(v->dtype)->name,
             (int)v->scales, (int)v->int4, v->tied, (int)v->n_experts, gguf ? ".gguf" : "");
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

/* Experts change their places, on all ranks: a layer's go where chance has them, and every one is
 * somewhere. */
static void move_experts(struct rig *g, struct sl_rng *rng)
{
    struct sl_backend *be = NULL;
    struct sl_error err = {0};
    int32_t list[64], n_experts, n_loaded;
    assert_int_equal(sl_cpu_create(&(struct sl_cpu_config){.n_threads = 1}, &be, &err), 0);
    for (int32_t l = 0; l < sl_model_facts(g->model)->n_layers; l++) {
        const int32_t n = sl_model_places(g->model, l, &n_experts);
        assert_true(n <= (int32_t)SL_COUNT(list));
        for (int32_t i = 0; i < n; i++)
            list[i] = i < n_experts ? i : (int32_t)sl_rng_below(rng, (uint64_t)n_experts);
        for (int32_t i = n - 1; i > 0; i--) {
            const int32_t j = (int32_t)sl_rng_below(rng, (uint64_t)i + 1), e = list[i];
            list[i] = list[j];
            list[j] = e;
        }
        for (int rank = 0; rank < g->n_ranks && n > 0; rank++) {
            struct sl_model *m = rank == 0 ? g->model : g->others[rank - 1].model;
            if (sl_model_places_load(m, be, l, list, &n_loaded, &err) != 0)
                fail_msg("%s", err.msg);
            sl_model_places_switch(m, l, list);
            sl_model_places_drop(m, l);
        }
    }
    be->vt->destroy(be);
}

/* A sequence in a chunk, single tokens and chunks again, then a batch of it and a shorter one. */
static void run_all(struct rig *g, float *logits, bool moves)
{
    struct sl_rng rng = {5, 0};
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
        if (moves)
            move_experts(g, &rng);
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
    run_all(&g, logits, o->balanced);
    rig_close(&g);
    return logits;
}

static void same_bits(const char *path, const struct rig_options *o, const float *want)
{
    size_t n_bytes;
    float *have = logits_of(path, o, &n_bytes);
    for (size_t i = 0; i < n_bytes / sizeof *have; i++)
        if (memcmp(&have[i], &want[i], sizeof *have) != 0)
            fail_msg("%s, %d ranks%s: logit %zu is %.9g instead of %.9g", path, o->n_ranks,
                     o->balanced ? ", placed" : "", i, (double)have[i], (double)want[i]);
    sl_free(have);
}

static void test_bits(void **state)
{
    (void)state;
    for (size_t v = 0; v < SL_COUNT(variants); v++) {
        char path[200];
        size_t n_bytes;
        write_variant(&variants[v], path, sizeof path);
        const int32_t n_experts = variants[v].n_experts;
        const int most = n_experts == 0 ? 4 : SL_MIN(n_experts, 8);
        float *want = logits_of(path, &(struct rig_options){.n_ranks = 1}, &n_bytes);
        for (int n_ranks = 2; n_ranks <= most; n_ranks *= 2) {
            struct rig_options o = {.n_ranks = n_ranks,
                                    .own_experts = n_experts > 0,
                                    .n_threads = n_ranks == 2 ? 2 : 1};
            same_bits(path, &o, want);
            o.balanced = n_experts > 0;
            o.n_redundant = n_ranks - n_experts % n_ranks;
            if (o.balanced)
                same_bits(path, &o, want);
        }
        sl_free(want);
    }
}

/* ---------------------------------------------------------------- refused */

static struct sl_model *open_changed(const char *name, void (*change)(struct sl_hparams *hp),
                                     struct sl_ckpt **ckpt)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = name, .dtype = SL_DTYPE_F32, .format = SL_CKPT_HF, .seed = 5};
    struct sl_model *m = NULL;
    const char *path = OUT "/ranks_refused";
    assert_int_equal(sl_synth_shape(name, "tiny", &s.hp, &err), 0);
    if (change != NULL)
        change(&s.hp);
    if (sl_synth_write(&s, path, &err) != 0 || sl_ckpt_open(path, ckpt, &err) != 0 ||
        sl_model_open(*ckpt, &m, &err) != 0)
        fail_msg("%s: %s", name, err.msg);
    return m;
}

static void refuse_experts(const char *name, void (*change)(struct sl_hparams *hp), bool own,
                           int32_t n_ranks, const char *want)
{
    struct sl_error err = {0};
    struct sl_ckpt *ckpt = NULL;
    struct sl_model *m = open_changed(name, change, &ckpt);
    if (own)
        sl_model_divide_experts(m);
    if (sl_model_set_rank(m, 0, n_ranks, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("%s among %d: \"%s\" does not say \"%s\"", name, n_ranks, err.msg, want);
    sl_model_close(m);
    sl_ckpt_close(ckpt);
}

static void refuse(const char *name, void (*change)(struct sl_hparams *hp), int32_t n_ranks,
                   const char *want)
{
    refuse_experts(name, change, false, n_ranks, want);
}

static void few_experts(struct sl_hparams *hp)
{
    hp->n_heads = hp->n_kv_heads = 24;
    hp->n_experts = 3;
    hp->top_experts = 2;
}

/* Ranks that have whole experts need no more rows than one. */
static void narrow_experts(struct sl_hparams *hp)
{
    hp->n_heads = hp->n_kv_heads = 8;
    hp->n_experts = 8;
    hp->expert_intermediate = 32;
}

static void narrow(struct sl_hparams *hp)
{
    hp->n_heads = hp->n_kv_heads = 8;
    hp->intermediate = 32;
}

static void test_refused(void **state)
{
    (void)state;
    refuse("llama", NULL, 4, "4 does not divide the 4 heads and 2 key heads of layer 0");
    refuse("llama", NULL, 3, "3 does not divide");
    refuse("llama", narrow, 4, "the 32 rows of tensor \"model.layers.0.mlp.gate_proj.weight\"");
    refuse("olmo2", NULL, 2, "normed over all heads");
    refuse("bert", NULL, 2, "embeddings and scores");
    refuse("qwen3moe", narrow_experts, 4, "the 32 rows of tensor");
    refuse_experts("qwen3moe", few_experts, true, 4, "layer 0 has 3 experts for 4 ranks");
    refuse_experts("qwen3moe", few_experts, true, 3, "among 2, 4 or 8 ranks, not 3");
    refuse_experts("llama", NULL, true, 2, "models of llama have no experts");
    refuse("deepseek_v3", NULL, 3, "3 does not divide the 4 heads of layer 0");
    refuse("glm_moe_dsa", NULL, 2, "sparse attention of glm_moe_dsa cannot be divided");
    refuse("minimax_m3", NULL, 2, "sparse attention of minimax_m3 cannot be divided");
    refuse("deepseek_v4", NULL, 2, "sparse attention of deepseek_v4 cannot be divided");
    refuse("axk2", NULL, 2, "sparse attention of axk2 cannot be divided");
    refuse("hy_v4", NULL, 2, "sparse attention of hy_v4 cannot be divided");
    refuse("glm5_next", NULL, 2, "does not divide the 4 heads and 1 key heads of layer 0");
    refuse("longcat_flash", NULL, 2, "experts of longcat_flash are added behind the next layer");
    refuse("mamba2", NULL, 2, "the recurrent state of mamba2 cannot be divided among ranks");
    refuse("qwen35", NULL, 2, "the recurrent state of qwen35 cannot be divided among ranks");
    refuse("falcon_h1", NULL, 2, "the recurrent state of falcon_h1 cannot be divided");
}

/* Bytes that a loaded rank has allocated for weights. */
static uint64_t allocated_bytes(const struct sl_model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n_params; i++) {
        const struct sl_param *p = &m->params[i];
        n += p->vec != NULL ? p->own_bytes : p->loaded && p->mat.owned ? p->mat.n_bytes : 0;
    }
    return n;
}

static void uneven_experts(struct sl_hparams *hp)
{
    hp->n_heads = hp->n_kv_heads = 8;
    hp->n_experts = 5;
    hp->expert_intermediate = 64;
}

/* The plan has as much for each rank as the one with the most experts takes. */
static void test_plan(void **state)
{
    (void)state;
    struct sl_error err = {0};
    struct sl_backend *be = NULL;
    const struct sl_cpu_config cpu = {.n_threads = 1};
    struct sl_synth s = {
        .name = "qwen3moe", .dtype = SL_DTYPE_Q8_0, .format = SL_CKPT_GGUF, .seed = 5};
    const char *path = OUT "/ranks_plan.gguf";
    uint64_t planned = 0, mapped = 0, most = 0, least = UINT64_MAX;
    assert_int_equal(sl_synth_shape(s.name, "tiny", &s.hp, &err), 0);
    uneven_experts(&s.hp);
    assert_int_equal(sl_synth_write(&s, path, &err), 0);
    for (int32_t rank = 0; rank < 4; rank++) {
        struct sl_ckpt *ckpt = NULL;
        struct sl_model *m = NULL;
        if (sl_ckpt_open(path, &ckpt, &err) != 0 || sl_model_open(ckpt, &m, &err) != 0)
            fail_msg("%s", err.msg);
        sl_model_divide_experts(m);
        if (sl_model_set_rank(m, rank, 4, &err) != 0 || sl_cpu_create(&cpu, &be, &err) != 0)
            fail_msg("%s", err.msg);
        sl_model_weight_memory(m, be, &planned, &mapped);
        if (sl_model_load(m, be, NULL, NULL, &err) != 0)
            fail_msg("%s", err.msg);
        most = SL_MAX(most, allocated_bytes(m));
        least = SL_MIN(least, allocated_bytes(m));
        sl_model_close(m);
        be->vt->destroy(be);
        sl_ckpt_close(ckpt);
    }
    assert_true(least < most); /* one rank has two experts */
    assert_int_equal(planned, 4 * most);
}

/* Replicas are planned, and the experts of a layer that come while others are in use. */
static void test_plan_of_places(void **state)
{
    (void)state;
    static const int32_t fresh[] = {6, 7, 0, 4, 5, 1, 2, 3, 6, 0, 1, 7}; /* [12] */
    struct sl_error err = {0};
    struct sl_ckpt *ckpt = NULL;
    struct sl_backend *be = NULL;
    const struct sl_cpu_config cpu = {.n_threads = 1};
    struct sl_synth s = {
        .name = "qwen3moe", .dtype = SL_DTYPE_Q8_0, .format = SL_CKPT_GGUF, .seed = 5};
    const char *path = OUT "/ranks_places.gguf";
    uint64_t planned = 0, mapped = 0, layer = 0;
    struct sl_model *m = NULL;
    int32_t n_experts, n_loaded;
    assert_int_equal(sl_synth_shape(s.name, "tiny", &s.hp, &err), 0);
    narrow_experts(&s.hp);
    if (sl_synth_write(&s, path, &err) != 0 || sl_ckpt_open(path, &ckpt, &err) != 0 ||
        sl_model_open(ckpt, &m, &err) != 0)
        fail_msg("%s", err.msg);
    sl_model_balance_experts(m, 4);
    if (sl_model_set_rank(m, 1, 4, &err) != 0 || sl_cpu_create(&cpu, &be, &err) != 0)
        fail_msg("%s", err.msg);
    sl_model_weight_memory(m, be, &planned, &mapped);
    if (sl_model_load(m, be, NULL, NULL, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_model_places(m, 0, &n_experts), SL_COUNT(fresh));
    assert_int_equal(n_experts, 8);
    const uint64_t before = allocated_bytes(m);
    if (sl_model_places_load(m, be, 0, fresh, &n_loaded, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(n_loaded, 1); /* it had 3, 4 and 5 */
    layer = (allocated_bytes(m) - before) * 3;
    assert_true(layer > 0);
    assert_int_equal(planned, 4 * (before + layer));
    sl_model_places_switch(m, 0, fresh);
    sl_model_places_drop(m, 0);
    assert_int_equal(allocated_bytes(m), before);
    for (int32_t e = 0; e < 8; e++)
        assert_int_equal(m->experts[0].down.mats[e].data != NULL, e == 4 || e == 5 || e == 1);
    sl_model_close(m);
    be->vt->destroy(be);
    sl_ckpt_close(ckpt);
}

/* Each rank has its share of the experts in memory, and no other. */
static void test_memory(void **state)
{
    (void)state;
    struct sl_error err = {0};
    struct sl_ckpt *ckpt = NULL;
    struct sl_backend *be = NULL;
    const struct sl_cpu_config cpu = {.n_threads = 1};
    for (int32_t rank = 0; rank < 4; rank++) {
        struct sl_model *m = open_changed("qwen3moe", narrow_experts, &ckpt);
        sl_model_divide_experts(m);
        if (sl_model_set_rank(m, rank, 4, &err) != 0 || sl_cpu_create(&cpu, &be, &err) != 0 ||
            sl_model_load(m, be, NULL, NULL, &err) != 0)
            fail_msg("%s", err.msg);
        for (int32_t e = 0; e < 8; e++) {
            const struct sl_param *p = &sl_param(m, 0, SL_SLOT_EXPERTS_DOWN)[e];
            assert_int_equal(p->loaded, e / 2 == rank);
            assert_int_equal(m->experts[0].down.mats[e].data != NULL, e / 2 == rank);
            assert_int_equal(m->experts[0].down.mats[e].n_rows, p->n_rows);
        }
        sl_model_close(m);
        be->vt->destroy(be);
        sl_ckpt_close(ckpt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_plan),    cmocka_unit_test(test_plan_of_places),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
