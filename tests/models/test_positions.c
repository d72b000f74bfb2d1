/* SPDX-License-Identifier: MIT
 * Decode context parallelism: ranks that have the same key heads and divide the positions give the
 * bits of one rank, for heads of all kinds and formats of pages, whatever the steps and wherever a
 * sequence goes on from pages of another. A rank has 1 / N of what the pages hold.
 */
#include "models/internal.h"
#include "models/model_rig.h"
#include "synth/synth.h"

#include <sys/stat.h>

#define OUT "build/testdata/models"

enum { N = 1180, N_OTHER = 300, N_SHARED = 1024 };

struct variant {
    const char *name; /* of the family's member */
    int32_t n_kv_heads;
    const char *kv_dtype;
    struct {
        int n_ranks, kv_ranks;
    } cases[3];
};

static const struct variant variants[] = {
    {"llama", 4, "auto", {{2, 2}, {4, 2}, {4, 4}}},
    {"llama", 1, "f32", {{2, 2}, {4, 4}}}, /* fewer key heads than ranks */
    {"qwen2", 2, "f16", {{4, 2}, {8, 4}}}, /* biases of keys */
    {"llama", 2, "q8_0", {{4, 2}}},
    {"llama", 2, "fp8", {{4, 2}}},
    {"llama", 2, "turboquant_4bit_nc", {{4, 2}}},
    {"gemma3", 1, "auto", {{2, 2}, {4, 4}}},      /* windows: two groups of pages */
    {"gemma2", 2, "auto", {{4, 2}}},              /* and scores that are capped */
    {"gpt-oss", 2, "auto", {{4, 2}}},             /* sinks */
    {"llama4-text", 2, "auto", {{4, 2}}},         /* chunks */
    {"mimo_v2_flash", 4, "auto", {{4, 2}}},       /* narrower values */
    {"phi3", 2, "auto", {{4, 2}}},                /* fused tensors */
    {"afmoe", 2, "auto", {{4, 2}}},               /* a gate of what attention gives */
    {"deepseek_v2", 8, "auto", {{2, 2}, {8, 4}}}, /* latent attention */
    {"deepseek_v3", 8, "q8_0", {{4, 4}}},
};

static void write_variant(const struct variant *v, char *path, size_t n_path)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = v->name, .dtype = SL_DTYPE_BF16, .format = SL_CKPT_HF, .seed = 5};
    if (sl_synth_shape(v->name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    const bool gguf = strcmp(v->name, "gpt-oss") == 0;
    if (gguf) {
        s.dtype = SL_DTYPE_MXFP4;
        s.format = SL_CKPT_GGUF;
    }
    if (strcmp(v->name, "mimo_v2_flash") == 0)
        for (int32_t l = 0; l < s.hp.n_layers; l++)
            s.hp.layer_kv_heads[l] *= v->n_kv_heads / s.hp.n_kv_heads;
    s.hp.n_heads = 8;
    s.hp.n_kv_heads = v->n_kv_heads;
    s.hp.context = SL_MAX(s.hp.context, 2048);
    s.hp.intermediate = SL_MAX(s.hp.intermediate, 256); /* rows for eight ranks */
    if (s.hp.expert_intermediate != 0)
        s.hp.expert_intermediate = SL_MAX(s.hp.expert_intermediate, 128);
    s.hp.hidden = SL_MAX(s.hp.hidden, 128);
    snprintf(path, n_path, OUT "/positions_%s_%d%s", v->name, v->n_kv_heads, gguf ? ".gguf" : "");
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

/* A sequence in long chunks, one that is cut where ranks change, short ones and single tokens; then
 * a second one that goes on behind the pages of its first N_SHARED tokens, beside a third from the
 * beginning. steps: in how small ones. */
static void run_all(struct rig *g, bool small, float *logits)
{
    int32_t tokens[N], other[N_OTHER], pages[3][N / 16 + 1];
    const int32_t bs = g->kv.block_size, n_pages = SL_CEIL_DIV(N, bs);
    const size_t v = (size_t)g->n_vocab;
    rig_tokens(tokens, N, g->n_vocab, 11);
    rig_tokens(other, N_OTHER, g->n_vocab, 12);
    rig_pages(pages[0], n_pages, 0, true);
    rig_pages(pages[1], n_pages, n_pages, true);
    rig_pages(pages[2], SL_CEIL_DIV(N_OTHER, bs), 2 * n_pages, true);
    memcpy(pages[1], pages[0], (size_t)(N_SHARED / bs) * sizeof pages[0][0]);
    const struct seq a = {tokens, N, pages[0], logits}, b = {tokens, N, pages[1], logits + N * v},
                     c = {other, N_OTHER, pages[2], logits + 2 * N * v};
    static const int32_t large[] = {512, 1024, 1025, N},
                         ends[] = {250, 257,  258,  300,  511,  512,  513, 577,
                                   769, 1020, 1023, 1024, 1027, 1091, N};
    const int32_t *to = small ? ends : large;
    const size_t n_steps = small ? SL_COUNT(ends) : SL_COUNT(large);
    int32_t from = 0;
    for (size_t i = 0; i < n_steps; from = to[i++]) {
        const struct piece p = {&a, from, to[i] - from, true};
        rig_step(g, &p, 1);
    }
    const struct piece both[] = {{&b, N_SHARED, 100, true}, {&c, 0, N_OTHER - 1, true}};
    rig_step(g, both, 2);
    const struct piece last[] = {{&b, N_SHARED + 100, 1, true}, {&c, N_OTHER - 1, 1, true}};
    rig_step(g, last, 2);
}

/* Logits of the three; sl_free them. rank_bytes: of a page that one rank has, per token. */
static float *logits_of(const char *path, const struct rig_options *o, bool small, size_t *n_floats,
                        size_t *rank_bytes)
{
    struct rig g;
    rig_open(&g, path, o);
    *n_floats = (size_t)(2 * N + N_OTHER) * (size_t)g.n_vocab;
    *rank_bytes = sl_kv_block_bytes(&g.run->cfg.kv) / (size_t)g.kv.block_size;
    float *logits = sl_calloc(*n_floats, sizeof *logits);
    assert_non_null(logits);
    run_all(&g, small, logits);
    rig_close(&g);
    return logits;
}

static void must_equal(const float *have, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&have[i], &want[i], sizeof *have) != 0)
            fail_msg("%s: logit %zu is %.9g instead of %.9g", what, i, (double)have[i],
                     (double)want[i]);
}

static void test_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(variants); i++) {
        const struct variant *v = &variants[i];
        struct rig_options o = {.kv_dtype = v->kv_dtype, .n_pages = 3 * (N / 16 + 1), .n_ranks = 1};
        char path[200], what[260];
        size_t n, all_bytes, rank_bytes;
        write_variant(v, path, sizeof path);
        o.n_threads = 2;
        float *want = logits_of(path, &o, false, &n, &all_bytes);
        for (size_t k = 0; k < SL_COUNT(v->cases) && v->cases[k].n_ranks > 0; k++) {
            o.n_ranks = v->cases[k].n_ranks;
            o.kv_ranks = v->cases[k].kv_ranks;
            o.n_threads = o.n_ranks == 2 ? 2 : 1;
            o.n_pages = 16;
            float *have = logits_of(path, &o, true, &n, &rank_bytes);
            snprintf(what, sizeof what, "%s, pages of %s, %d ranks by %d", path, v->kv_dtype,
                     o.n_ranks, o.kv_ranks);
            must_equal(have, want, n, what);
            const bool latent = strncmp(v->name, "deepseek", 8) == 0;
            assert_int_equal(rank_bytes, all_bytes / (size_t)(latent ? o.kv_ranks : o.n_ranks));
            sl_free(have);
        }
        sl_free(want);
    }
}

/* ---------------------------------------------------------------- refused */

static void refuse(const char *name, int32_t n_kv_heads, int32_t n_ranks, int32_t kv_ranks,
                   const char *want)
{
    struct sl_error err = {0};
    struct sl_ckpt *ckpt = NULL;
    struct sl_model *m = NULL;
    char path[200];
    const struct variant v = {.name = name, .n_kv_heads = n_kv_heads};
    write_variant(&v, path, sizeof path);
    if (sl_ckpt_open(path, &ckpt, &err) != 0 || sl_model_open(ckpt, &m, &err) != 0)
        fail_msg("%s", err.msg);
    sl_model_divide_positions(m, kv_ranks);
    if (sl_model_set_rank(m, 0, n_ranks, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
    sl_model_close(m);
    sl_ckpt_close(ckpt);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("llama", 2, 4, 3, "3 does not divide the 4 ranks");
    refuse("llama", 2, 1, 2, "2 does not divide the 1 ranks");
    refuse("llama", 1, 8, 4, "the 1 key heads of layer 0 cannot be divided among 2 groups of 4");
    refuse("llama", 2, 6, 2, "6 does not divide the 8 heads of layer 0");
    refuse("glm_moe_dsa", 8, 2, 2, "sparse attention of glm_moe_dsa cannot be divided");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
