/* SPDX-License-Identifier: MIT
 * Adapters: logits against transformers with peft (tools/gen_golden_lora.py), and the same bits
 * whatever stands beside a row, and among how many ranks.
 */
#include "models/model_rig.h"
#include "synth/synth.h"

#include <stdlib.h>

static const struct {
    const char *adapter, *model;
} goldens[] = {
    {"llama3_all", "llama3"},      {"qwen3_rslora", "qwen3"},
    {"llama2_patterns", "llama2"}, {"llama_bias_layers", "llama_bias_linear"},
    {"phi3_fused", "phi3"}, /* qkv_proj and gate_up_proj */
};
static const char *const isas[] = {"c", "avx2", "avx512"};

static struct sl_lora *open_lora(const struct rig *g, const char *path)
{
    struct sl_error err = {0};
    struct sl_lora *l;
    if (sl_lora_open(g->model, path, &(struct sl_lora_options){.max_rank = 256}, &l, &err) != 0)
        fail_msg("%s", err.msg);
    return l;
}

static size_t argmax(const float *row, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = row[i] > row[best] ? i : best;
    return best;
}

static void check_golden(const char *name, const char *model, const char *isa, double *worst)
{
    struct rig g;
    struct sl_error err = {0};
    char path[256], *data;
    size_t n;
    int32_t pages[8], n_tokens;
    snprintf(path, sizeof path, "tests/golden/lora/%s/golden.bin", name);
    if (sl_read_file(path, 1 << 20, &data, &n, &err) != 0)
        fail_msg("%s", err.msg);
    const int32_t *head = (const int32_t *)(const void *)data;
    n_tokens = head[0];
    const float *want = (const float *)(const void *)(data + 8 + 4 * n_tokens);
    snprintf(path, sizeof path, "tests/golden/models/%s", model);
    rig_open(&g, path, &(struct rig_options){.isa = isa, .kv_dtype = "f32", .max_lora_rank = 32});
    assert_int_equal(g.n_vocab, head[1]);
    snprintf(path, sizeof path, "tests/golden/lora/%s", name);
    struct sl_lora *lora = open_lora(&g, path);
    g.lora[0] = lora;
    g.lora_scale[0] = 1;
    rig_pages(pages, 8, 3, true);
    size_t v = (size_t)g.n_vocab;
    float *logits = sl_calloc((size_t)n_tokens * v, sizeof *logits);
    struct seq s = {head + 2, n_tokens, pages, logits};
    rig_run(&g, &s, 7);
    for (int32_t t = 0; t < n_tokens; t++) {
        const float *have = logits + (size_t)t * v, *row = want + (size_t)t * v;
        double e = rig_nmse(have, row, v);
        *worst = SL_MAX(*worst, e);
        if (!(e < 1e-10) || argmax(have, v) != argmax(row, v))
            fail_msg("%s, %s: position %d differs from peft, NMSE %.3g", name, isa, t, e);
    }
    sl_free(logits);
    sl_lora_close(lora);
    rig_close(&g);
    sl_free(data);
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        if (!rig_has_isa(isas[i])) {
            printf("skip: %s: not on this processor\n", isas[i]);
            continue;
        }
        for (size_t m = 0; m < SL_COUNT(goldens); m++) {
            double worst = 0;
            check_golden(goldens[m].adapter, goldens[m].model, isas[i], &worst);
            printf("%-18s %-7s worst NMSE %.2e\n", goldens[m].adapter, isas[i], worst);
        }
    }
}

/* ------------------------------------------------------------------ bits */

enum { N_SEQS = 6, N_TOKENS = 40 };

static char folder[] = "/tmp/sl_test_lora_XXXXXX";

static void make_model(const char *name, enum sl_dtype dtype, enum sl_ckpt_kind format, char *path,
                       size_t n_path)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = "qwen3", .dtype = dtype, .format = format, .seed = 5};
    snprintf(path, n_path, "%s/%s", folder, name);
    if (sl_synth_shape(s.name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    /* wide enough for blocks of 256, and rows that are not whole panels */
    s.hp.hidden = 256;
    s.hp.intermediate = 512 + 256;
    s.hp.head_dim = 64;
    s.hp.n_heads = 8; /* for four ranks */
    s.hp.n_kv_heads = 4;
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s", err.msg);
}

static const struct spec {
    int32_t rank;
    enum sl_dtype dtype;
    const char *targets;
} specs[] = {
    {8, SL_DTYPE_BF16, NULL},
    {1, SL_DTYPE_F32, NULL},
    {33, SL_DTYPE_F16, "q_proj,v_proj"},
    {16, SL_DTYPE_BF16, "gate_proj,down_proj"},
    {100, SL_DTYPE_BF16, "o_proj,up_proj,k_proj"},
};

static void open_adapters(const struct rig *g, struct sl_lora **out)
{
    struct sl_error err = {0};
    for (size_t i = 0; i < SL_COUNT(specs); i++) {
        struct sl_synth_lora spec = {.rank = specs[i].rank,
                                     .alpha = 2.0 * specs[i].rank,
                                     .size = 0.4,
                                     .dtype = specs[i].dtype,
                                     .targets = specs[i].targets,
                                     .seed = i};
        char path[256];
        snprintf(path, sizeof path, "%s/a%zu", folder, i);
        if (sl_synth_lora_write(g->model, &spec, path, &err) != 0)
            fail_msg("%s", err.msg);
        out[i] = open_lora(g, path);
    }
}

struct sequences {
    int32_t tokens[N_SEQS][N_TOKENS], pages[N_SEQS][4];
    float *logits[2][N_SEQS]; /* alone, together */
};

/* Sequence i has adapter i, the last one none; each alone in chunks of 9. */
static void run_alone(struct rig *g, struct sl_lora *const *loras, struct sequences *q)
{
    for (int32_t i = 0; i < N_SEQS; i++) {
        rig_tokens(q->tokens[i], N_TOKENS, g->n_vocab, (uint64_t)i);
        rig_pages(q->pages[i], 4, 4 * i, true);
        for (int k = 0; k < 2; k++)
            q->logits[k][i] = sl_calloc(N_TOKENS * (size_t)g->n_vocab, sizeof(float));
        struct seq s = {q->tokens[i], N_TOKENS, q->pages[i], q->logits[0][i]};
        g->lora[0] = i < (int32_t)SL_COUNT(specs) ? loras[i] : NULL;
        g->lora_scale[0] = i == 3 ? 0.5f : 1.0f;
        rig_run(g, &s, 9);
    }
}

/* All in every step: first chunks of odd sizes, then a token each, in another order. */
static void run_together(struct rig *g, struct sl_lora *const *loras, struct sequences *q)
{
    struct seq s[N_SEQS];
    struct piece p[N_SEQS];
    int32_t at[N_SEQS] = {0};
    for (int32_t i = 0; i < N_SEQS; i++)
        s[i] = (struct seq){q->tokens[i], N_TOKENS, q->pages[i], q->logits[1][i]};
    for (int32_t step = 0; at[0] < N_TOKENS; step++) {
        for (int32_t k = 0; k < N_SEQS; k++) {
            int32_t i = (k + step) % N_SEQS;
            int32_t n = step == 0 ? 11 + i : step == 1 ? 25 - i : 1;
            p[k] = (struct piece){&s[i], at[i], n, true};
            at[i] += n;
            g->lora[k] = i < (int32_t)SL_COUNT(specs) ? loras[i] : NULL;
            g->lora_scale[k] = i == 3 ? 0.5f : 1.0f;
        }
        rig_step(g, p, N_SEQS);
    }
}

static void check_bits(const char *path, const char *isa, bool exact)
{
    static const struct {
        int threads, ranks;
    } ways[] = {{1, 1}, {3, 1}, {1, 2}, {1, 4}};
    struct sequences q;
    struct sl_lora *loras[SL_COUNT(specs)];
    for (size_t k = 0; k < SL_COUNT(ways); k++) {
        struct rig g;
        rig_open(&g, path,
                 &(struct rig_options){.isa = isa,
                                       .exact = exact,
                                       .n_threads = ways[k].threads,
                                       .n_ranks = ways[k].ranks,
                                       .max_lora_rank = 100});
        open_adapters(&g, loras);
        if (k == 0)
            run_alone(&g, loras, &q);
        run_together(&g, loras, &q);
        for (int32_t i = 0; i < N_SEQS; i++) {
            size_t n = N_TOKENS * (size_t)g.n_vocab;
            if (memcmp(q.logits[0][i], q.logits[1][i], n * sizeof(float)) != 0)
                fail_msg("%s, %s, %d threads, %d ranks: sequence %d has other bits in a batch",
                         path, isa, ways[k].threads, ways[k].ranks, i);
            /* and adapters say something */
            for (int32_t j = 0; j < i; j++)
                assert_true(rig_nmse(q.logits[0][i], q.logits[0][j], n) > 1e-3);
        }
        for (size_t i = 0; i < SL_COUNT(specs); i++)
            sl_lora_close(loras[i]);
        rig_close(&g);
    }
    for (int32_t i = 0; i < N_SEQS; i++)
        for (int k = 0; k < 2; k++)
            sl_free(q.logits[k][i]);
}

static void test_bits(void **state)
{
    static const struct {
        const char *name;
        enum sl_dtype dtype;
        enum sl_ckpt_kind format;
    } models[] = {{"bf16", SL_DTYPE_BF16, SL_CKPT_HF},
                  {"q4_k.gguf", SL_DTYPE_Q4_K, SL_CKPT_GGUF},
                  {"fp8", SL_DTYPE_FP8_E4M3, SL_CKPT_HF}};
    (void)state;
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        char path[256];
        make_model(models[m].name, models[m].dtype, models[m].format, path, sizeof path);
        check_bits(path, "auto", false);
        if (m == 0)
            check_bits(path, "avx2", true);
    }
}

/* A factor of zero, and an adapter of zeros, change nothing but may run the same way. */
static void test_scale(void **state)
{
    char path[256];
    struct rig g;
    struct sl_lora *loras[SL_COUNT(specs)];
    int32_t tokens[8], pages[1] = {0};
    float *logits[3];
    (void)state;
    make_model("scale", SL_DTYPE_BF16, SL_CKPT_HF, path, sizeof path);
    rig_open(&g, path, &(struct rig_options){.max_lora_rank = 100});
    open_adapters(&g, loras);
    rig_tokens(tokens, 8, g.n_vocab, 1);
    size_t n = 8 * (size_t)g.n_vocab;
    for (int k = 0; k < 3; k++) {
        logits[k] = sl_calloc(n, sizeof(float));
        struct seq s = {tokens, 8, pages, logits[k]};
        g.lora[0] = k == 0 ? NULL : loras[0];
        g.lora_scale[0] = k == 1 ? 0.0f : -2.0f;
        rig_run(&g, &s, 8);
    }
    assert_true(rig_nmse(logits[1], logits[0], n) < 1e-12);
    assert_true(rig_nmse(logits[2], logits[0], n) > 1e-3);
    for (int k = 0; k < 3; k++)
        sl_free(logits[k]);
    for (size_t i = 0; i < SL_COUNT(specs); i++)
        sl_lora_close(loras[i]);
    rig_close(&g);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_scale),
    };
    return cmocka_run_group_tests_name("lora", tests, setup, teardown);
}
