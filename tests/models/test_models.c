/* SPDX-License-Identifier: MIT
 * Every family's tiny model on random weights: the bits of a token's logits do not depend on how
 * its sequence was cut into steps, where its pages lie, how large they are, what ran beside it, how
 * many threads computed it, or which container the weights came from.
 *
 * With the name of a family as its argument the test runs that one's steps and containers alone.
 */
#include "models/internal.h"
#include "models/model_rig.h"
#include "synth/synth.h"

#include <math.h>
#include <sys/stat.h>

#define OUT "build/testdata/models"

enum { N_LONG = 300 }; /* tokens; crosses a border of attention splits */

static const char *only; /* of the variants */
static const char *const isas[] = {"c", "avx2", "avx512", "avx512-vnni", "avx512-bf16", "amx"};
enum { FIRST_OWN_BITS = 4 };

struct variant {
    const char *name; /* of the family's member */
    enum sl_dtype dtype;
    const char *kv;
    bool wide; /* rows of 256, for the K formats */
};

/* clang-format off */
static const struct variant variants[] = {
    {"llama", SL_DTYPE_F32, "f32", false},      {"llama", SL_DTYPE_Q8_0, "f16", false},
    {"llama", SL_DTYPE_Q4_K, "f16", true},      {"mistral", SL_DTYPE_BF16, "bf16", false},
    {"mistral", SL_DTYPE_Q5_K, "f32", true},    {"qwen2", SL_DTYPE_F16, "f16", false},
    {"qwen2", SL_DTYPE_Q4_0, "f16", false},     {"qwen3", SL_DTYPE_BF16, "f16", false},
    {"qwen3", SL_DTYPE_Q6_K, "bf16", true},     {"qwen3", SL_DTYPE_FP8_E4M3, "fp8", true},
    {"llama", SL_DTYPE_INT4_G128, "f16", true}, {"qwen2", SL_DTYPE_Q5_0, "f16", false},
    {"llama", SL_DTYPE_Q2_K, "f32", true},      {"olmo2", SL_DTYPE_BF16, "bf16", false},
    {"smollm3", SL_DTYPE_F16, "f16", false},    {"qwen3moe", SL_DTYPE_BF16, "bf16", false},
    {"qwen3moe", SL_DTYPE_Q8_0, "q8_0", false}, {"gemma3", SL_DTYPE_BF16, "bf16", false},
    {"gemma4", SL_DTYPE_BF16, "bf16", false},   {"gemma4", SL_DTYPE_Q8_0, "q8_0", false},
    {"gpt-oss", SL_DTYPE_BF16, "bf16", false},  {"gpt-oss", SL_DTYPE_MXFP4, "q8_0", false},
    {"glm4", SL_DTYPE_BF16, "bf16", false},     {"phi3", SL_DTYPE_Q8_0, "f16", false},
    {"gemma2", SL_DTYPE_BF16, "bf16", false},   {"granite", SL_DTYPE_Q8_0, "f16", false},
    {"qwen2moe", SL_DTYPE_F16, "f16", false},   {"glm4moe", SL_DTYPE_Q8_0, "f16", false},
    {"exaone4", SL_DTYPE_BF16, "bf16", false},  {"arcee", SL_DTYPE_Q8_0, "f16", false},
    {"apertus", SL_DTYPE_BF16, "bf16", false},
    {"starcoder2", SL_DTYPE_F16, "f16", false}, {"cohere2", SL_DTYPE_BF16, "bf16", false},
    {"phi", SL_DTYPE_Q8_0, "f32", false},       {"gemma4-text", SL_DTYPE_BF16, "f16", false},
    {"gemma3n", SL_DTYPE_BF16, "bf16", false}, {"cohere2_moe", SL_DTYPE_BF16, "bf16", false},
    {"gpt_neox", SL_DTYPE_BF16, "bf16", false}, {"falcon", SL_DTYPE_F16, "f16", false},
    {"gemma", SL_DTYPE_BF16, "bf16", false},
    {"phimoe", SL_DTYPE_Q8_0, "f16", false},
    {"dbrx", SL_DTYPE_BF16, "bf16", false},     {"afmoe", SL_DTYPE_F16, "f16", false},
    {"llama4-text", SL_DTYPE_BF16, "bf16", false},
    {"mimo_v2_flash", SL_DTYPE_BF16, "f16", false},
    {"step3p5", SL_DTYPE_BF16, "f16", false},   {"step3p7", SL_DTYPE_F16, "bf16", false},
    {"granitemoe_swa", SL_DTYPE_F16, "f32", false},
    {"lfm2", SL_DTYPE_BF16, "bf16", false},     {"lfm2moe", SL_DTYPE_Q8_0, "f16", false},
    {"mamba2", SL_DTYPE_BF16, "f32", false},    {"mamba2", SL_DTYPE_Q8_0, "f16", false},
    {"granitemoehybrid", SL_DTYPE_BF16, "bf16", false},
    {"bamba", SL_DTYPE_F16, "f16", false},
    {"lfm3", SL_DTYPE_BF16, "bf16", false},
    {"qwen35", SL_DTYPE_Q8_0, "bf16", false},   {"qwen35-text", SL_DTYPE_BF16, "f16", false},
    {"qwen35moe", SL_DTYPE_BF16, "f32", false}, {"qwen3next", SL_DTYPE_F16, "f16", false},
    {"nemotron_h", SL_DTYPE_BF16, "bf16", false},
    {"nemotron_h_moe", SL_DTYPE_Q8_0, "f16", false},
    {"falcon_h1", SL_DTYPE_BF16, "bf16", false},
    {"falcon_mamba", SL_DTYPE_BF16, "f32", false},
    {"jamba", SL_DTYPE_F16, "f16", false},
    {"olmo_hybrid", SL_DTYPE_BF16, "f16", false},
    {"jet_nemotron", SL_DTYPE_BF16, "bf16", false},
    {"recurrent_gemma", SL_DTYPE_BF16, "bf16", false},
    {"rwkv7", SL_DTYPE_BF16, "bf16", false},
    {"zamba2", SL_DTYPE_BF16, "f32", false},
    {"kimi_linear", SL_DTYPE_BF16, "bf16", false},
    {"bailing_hybrid", SL_DTYPE_BF16, "bf16", false},
    {"deepseek_v2", SL_DTYPE_BF16, "bf16", false},
    {"deepseek_v3", SL_DTYPE_F16, "q8_0", false},
    {"mistral4", SL_DTYPE_BF16, "fp8", false},
    {"youtu", SL_DTYPE_BF16, "bf16", false},    {"axk1", SL_DTYPE_F16, "f16", false},
    {"solar_open", SL_DTYPE_BF16, "f16", false}, {"laguna", SL_DTYPE_BF16, "f16", false},
    {"deepseek_v32", SL_DTYPE_BF16, "f32", false},
    {"deepseek_v32", SL_DTYPE_F16, "fp8", false},
    {"glm_moe_dsa", SL_DTYPE_BF16, "bf16", false},
    {"glm_moe_dsa", SL_DTYPE_F16, "q8_0", false},
    {"minimax_m3", SL_DTYPE_BF16, "bf16", false},
    {"minimax_m3-text", SL_DTYPE_F16, "q8_0", false},
    {"deepseek_v4", SL_DTYPE_BF16, "f32", false},
    {"deepseek_v4", SL_DTYPE_F16, "bf16", false},
    {"longcat_flash", SL_DTYPE_BF16, "bf16", false},
    {"longcat_flash", SL_DTYPE_F16, "fp8", false},
    {"axk2", SL_DTYPE_BF16, "bf16", false},
    {"axk2", SL_DTYPE_F16, "q8_0", false},
    {"hy_v4", SL_DTYPE_BF16, "f32", false},
    {"hy_v4", SL_DTYPE_F16, "bf16", false},
    {"glm5_next-text", SL_DTYPE_BF16, "f32", false},
    {"glm5_next", SL_DTYPE_F16, "q8_0", false},
};
/* clang-format on */

static void describe_model(const struct variant *v, enum sl_ckpt_kind format, struct sl_synth *s)
{
    struct sl_error err = {0};
    *s = (struct sl_synth){.name = v->name, .dtype = v->dtype, .format = format, .seed = 5};
    if (sl_synth_shape(v->name, "tiny", &s->hp, &err) != 0)
        fail_msg("%s", err.msg);
    if (v->wide) {
        s->hp.hidden = 256;
        s->hp.intermediate = 512;
        s->hp.n_heads = 8;
        s->hp.n_kv_heads = 2;
        s->hp.head_dim = 32;
    }
    if (v->dtype == SL_DTYPE_INT4_G128) {
        s->int4 = SL_INT4_AWQ_GEMM;
        s->int4_group = 128;
    }
}

static void write_model(const struct sl_synth *s, const char *path)
{
    struct sl_error err = {0};
    if (sl_synth_write(s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
}

static int setup_group(void **state)
{
    (void)state;
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    return 0;
}

/* ---------------------------------------------------------------- steps */

struct want {
    int32_t tokens[N_LONG], pages[N_LONG];
    float *logits; /* one step, pages in order */
    size_t n_bytes;
};

static void same_bits(const float *have, const struct want *w, int32_t n_vocab, const char *what)
{
    if (memcmp(have, w->logits, w->n_bytes) == 0)
        return;
    for (size_t i = 0; i < w->n_bytes / sizeof *have; i++) {
        if (memcmp(&have[i], &w->logits[i], sizeof *have) != 0)
            fail_msg("%s: token %zu, logit %zu: %.9g instead of %.9g", what, i / (size_t)n_vocab,
                     i % (size_t)n_vocab, (double)have[i], (double)w->logits[i]);
    }
}

static void baseline(const char *path, const struct rig_options *o, struct want *w)
{
    struct rig g;
    rig_open(&g, path, o);
    rig_tokens(w->tokens, N_LONG, g.n_vocab, 11);
    rig_pages(w->pages, N_LONG, 0, false);
    w->n_bytes = (size_t)N_LONG * (size_t)g.n_vocab * sizeof(float);
    w->logits = sl_malloc(w->n_bytes);
    struct seq s = {w->tokens, N_LONG, w->pages, w->logits};
    rig_run(&g, &s, N_LONG);
    for (size_t i = 0; i < w->n_bytes / sizeof(float); i++)
        assert_true(isfinite(w->logits[i]));
    rig_close(&g);
}

/* One way of running the same tokens: chunk size, block size, threads. */
static void check_way(const char *path, const struct rig_options *base, const struct want *w,
                      int32_t chunk, int block, int threads)
{
    struct rig g;
    struct rig_options o = *base;
    int32_t pages[N_LONG];
    char what[300];
    o.block_size = block;
    o.n_threads = threads;
    rig_open(&g, path, &o);
    rig_pages(pages, SL_CEIL_DIV(N_LONG, block), 5, true);
    float *logits = sl_malloc(w->n_bytes);
    struct seq s = {w->tokens, N_LONG, pages, logits};
    rig_run(&g, &s, chunk);
    snprintf(what, sizeof what, "%s, %s: chunks of %d, blocks of %d, %d threads", path, o.isa,
             chunk, block, threads);
    same_bits(logits, w, g.n_vocab, what);
    sl_free(logits);
    rig_close(&g);
}

/* Sequences of different lengths that begin at different steps and advance by different chunks;
 * only some rows ask for logits. */
static void check_batch(const char *path, const struct rig_options *base, const struct want *w)
{
    enum { N_SEQS = 3 };
    static const int32_t chunks[N_SEQS] = {1, 23, 64}, starts[N_SEQS] = {0, 2, 1};
    struct rig g;
    int32_t other[N_LONG], pages[N_SEQS][N_LONG], at[N_SEQS] = {0}, n_left = N_SEQS;
    struct seq seqs[N_SEQS];
    char what[300];
    rig_open(&g, path, base);
    rig_tokens(other, N_LONG, g.n_vocab, 99);
    int32_t n_pages = SL_CEIL_DIV(N_LONG, g.kv.block_size);
    for (int32_t i = 0; i < N_SEQS; i++) {
        rig_pages(pages[i], n_pages, i * n_pages, true);
        seqs[i] = (struct seq){i == 1 ? w->tokens : other, i == 0 ? 40 : N_LONG, pages[i],
                               sl_malloc(w->n_bytes)};
    }
    for (int32_t step = 0; n_left > 0; step++) {
        struct piece pieces[N_SEQS];
        int32_t n = 0;
        for (int32_t i = 0; i < N_SEQS; i++) {
            int32_t len = SL_MIN(chunks[i], seqs[i].n - at[i]);
            if (step < starts[i] || len == 0)
                continue;
            pieces[n++] = (struct piece){&seqs[i], at[i], len, i == 1 || step % 2 == 0};
            at[i] += len;
            n_left -= at[i] == seqs[i].n;
        }
        if (n > 0)
            rig_step(&g, pieces, n);
    }
    snprintf(what, sizeof what, "%s, %s: in a mixed batch", path, base->isa);
    same_bits(seqs[1].logits, w, g.n_vocab, what);
    for (int32_t i = 0; i < N_SEQS; i++)
        sl_free(seqs[i].logits);
    rig_close(&g);
}

/* The yardstick is plain C in one step with pages in order; the other instruction sets, chunks,
 * layouts and threads must hit its bits. Instructions for BF16 round in their own way, so those
 * sets are their own yardstick. */
static void test_steps(void **state)
{
    (void)state;
    for (size_t v = 0; v < SL_COUNT(variants); v++) {
        struct sl_synth s;
        struct want w;
        char path[200];
        const struct sl_model_desc *desc;
        if (only != NULL && strcmp(only, variants[v].name) != 0)
            continue;
        bool gguf = sl_dtype_info(variants[v].dtype)->gguf_id >= 0 &&
                    sl_registry_find(variants[v].name, &desc)->gguf_architecture != NULL;
        describe_model(&variants[v], gguf ? SL_CKPT_GGUF : SL_CKPT_HF, &s);
        snprintf(path, sizeof path, OUT "/steps_%s_%s%s", s.name, sl_dtype_info(s.dtype)->name,
                 gguf ? ".gguf" : "");
        write_model(&s, path);
        baseline(path, &(struct rig_options){.isa = "c", .kv_dtype = variants[v].kv}, &w);
        for (size_t i = 0; i < SL_COUNT(isas); i++) {
            struct rig_options o = {.isa = isas[i], .kv_dtype = variants[v].kv};
            if (!rig_has_isa(isas[i])) {
                printf("skip: %s: not on this processor\n", isas[i]);
                continue;
            }
            if (i >= FIRST_OWN_BITS) {
                sl_free(w.logits);
                baseline(path, &o, &w);
            }
            check_way(path, &o, &w, 7, 32, 2);
            if (i == 0 && variants[v].wide)
                continue; /* plain C is slow and the way does not depend on the format */
            check_way(path, &o, &w, 64, 48, 2);
            if (i == 0)
                continue; /* the others have its bits, in these ways and more */
            check_way(path, &o, &w, 1, 16, 1);
            check_batch(path, &o, &w);
            check_way(path, &o, &w, N_LONG, 256, 2);
        }
        sl_free(w.logits);
    }
}

/* ---------------------------------------------------------------- containers */

static float *logits_of(const char *path, int32_t n, size_t *n_bytes)
{
    struct rig g;
    int32_t tokens[64], pages[8];
    rig_open(&g, path, &(struct rig_options){.kv_dtype = "f32"});
    rig_tokens(tokens, n, g.n_vocab, 3);
    rig_pages(pages, 8, 0, false);
    *n_bytes = (size_t)n * (size_t)g.n_vocab * sizeof(float);
    float *out = sl_malloc(*n_bytes);
    struct seq s = {tokens, n, pages, out};
    rig_run(&g, &s, n);
    rig_close(&g);
    return out;
}

static void compare_containers(const struct sl_synth *base, const char *label)
{
    struct sl_synth s = *base;
    char hf[200], gguf[200];
    size_t n_hf, n_gguf;
    snprintf(hf, sizeof hf, OUT "/both_%s", label);
    snprintf(gguf, sizeof gguf, OUT "/both_%s.gguf", label);
    s.format = SL_CKPT_HF;
    write_model(&s, hf);
    s.format = SL_CKPT_GGUF;
    write_model(&s, gguf);
    float *a = logits_of(hf, 50, &n_hf), *b = logits_of(gguf, 50, &n_gguf);
    assert_int_equal(n_hf, n_gguf);
    if (memcmp(a, b, n_hf) != 0)
        fail_msg("%s: the folder and the GGUF of one model differ, NMSE %.3g", label,
                 rig_nmse(b, a, n_hf / sizeof *a));
    sl_free(a);
    sl_free(b);
}

/* Every member in the float formats, and every RoPE scaling: a folder and a GGUF (with the rows of
 * q and k reordered in the llama family) give the same bits. */
static void test_containers(void **state)
{
    (void)state;
    static const char *const names[] = {"llama",
                                        "mistral",
                                        "qwen2",
                                        "qwen3",
                                        "olmo2",
                                        "smollm3",
                                        "qwen3moe",
                                        "gemma3",
                                        "glm4",
                                        "glm",
                                        "phi3",
                                        "qwen2moe",
                                        "mixtral",
                                        "glm4moe",
                                        "minimax_m2",
                                        "olmoe",
                                        "ernie4_5",
                                        "seed_oss",
                                        "exaone4",
                                        "olmo3",
                                        "arcee",
                                        "apertus",
                                        "ministral",
                                        "gemma4",
                                        "gemma2",
                                        "granite",
                                        "starcoder2",
                                        "cohere2",
                                        "phi",
                                        "ministral3",
                                        "hunyuan_v1_dense",
                                        "gpt-oss",
                                        "gemma4-text",
                                        "exaone_moe",
                                        "hunyuan_v1_moe",
                                        "gemma",
                                        "phimoe",
                                        "dbrx",
                                        "afmoe",
                                        "lfm2",
                                        "lfm2moe",
                                        "mamba2",
                                        "granitemoehybrid",
                                        "bamba",
                                        "qwen35",
                                        "qwen35-text",
                                        "qwen35moe",
                                        "qwen3next",
                                        "nemotron_h",
                                        "nemotron_h_moe",
                                        "falcon_h1",
                                        "mamba",
                                        "jamba",
                                        "mimo_v2_flash",
                                        "step3p5",
                                        "deepseek_v2",
                                        "youtu",
                                        "glm_moe_dsa",
                                        "kimi_linear",
                                        "rwkv7"};
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    char label[64];
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        for (size_t d = 0; d < SL_COUNT(dtypes); d++) {
            struct sl_synth s;
            if (only != NULL && strcmp(only, names[i]) != 0)
                continue;
            describe_model(&(struct variant){names[i], dtypes[d], "f32", false}, SL_CKPT_HF, &s);
            s.old_rope = d == 0;
            if (strncmp(names[i], "qwen35", 6) == 0) /* else heads are in another order there */
                s.hp.state_groups = s.hp.state_heads;
            if (d == 1)
                s.hp.has ^= SL_HAS_HEAD; /* tied where the tiny model is not, and the reverse */
            snprintf(label, sizeof label, "%s_%s", names[i], sl_dtype_info(dtypes[d])->name);
            compare_containers(&s, label);
        }
    }
    for (int scaling = SL_ROPE_LINEAR; scaling <= SL_ROPE_LONG && only == NULL; scaling++) {
        struct sl_synth s;
        const bool lists = scaling == SL_ROPE_LONG; /* of factors */
        describe_model(&(struct variant){lists ? "phi3" : "llama", SL_DTYPE_BF16, "f32", false},
                       SL_CKPT_HF, &s);
        if (!lists)
            s.hp.has |= SL_HAS_QKV_BIAS | SL_HAS_O_BIAS; /* biases of q and k are reordered too */
        for (int i = 0; i < 8 && lists; i++) {
            s.hp.ropes[0].short_factors[i] = 1;
            s.hp.ropes[0].long_factors[i] = 1 + 0.5f * (float)(i * i);
        }
        s.hp.ropes[0].scaling = (enum sl_rope_scaling)scaling;
        s.hp.ropes[0].theta = 500;
        s.hp.ropes[0].factor = 8;
        s.hp.ropes[0].low_freq_factor = 1;
        s.hp.ropes[0].high_freq_factor = 4;
        s.hp.ropes[0].original_context = 32;
        s.old_rope = scaling == SL_ROPE_YARN;
        snprintf(label, sizeof label, "llama_rope%d", scaling);
        compare_containers(&s, label);
    }
}

/* Block formats exist only in GGUF: the rows of q and k must come back in the model's order whole,
 * whatever a row holds. A qwen2 file has them in that order; the same values there are the
 * yardstick. */
static void test_reordered_blocks(void **state)
{
    (void)state;
    static const enum sl_dtype dtypes[] = {SL_DTYPE_Q8_0,  SL_DTYPE_Q4_0, SL_DTYPE_Q4_K,
                                           SL_DTYPE_Q5_K,  SL_DTYPE_Q6_K, SL_DTYPE_Q4_1,
                                           SL_DTYPE_IQ4_XS};
    static const enum sl_slot slots[] = {SL_SLOT_Q, SL_SLOT_K, SL_SLOT_V};
    struct sl_error err = {0};
    for (size_t d = 0; d < SL_COUNT(dtypes); d++) {
        struct rig g;
        struct sl_ckpt *plain = NULL;
        struct sl_synth s;
        describe_model(&(struct variant){"llama", dtypes[d], "f32", true}, SL_CKPT_GGUF, &s);
        write_model(&s, OUT "/reordered.gguf");
        s.name = "qwen2";
        write_model(&s, OUT "/plain.gguf");
        rig_open(&g, OUT "/reordered.gguf", &(struct rig_options){.isa = "c", .exact = true});
        if (sl_ckpt_open(OUT "/plain.gguf", &plain, &err) != 0)
            fail_msg("%s", err.msg);
        for (size_t i = 0; i < SL_COUNT(slots); i++) {
            const struct sl_param *p = sl_param(g.model, 1, slots[i]);
            const struct sl_ckpt_tensor *want = sl_ckpt_find(plain, p->src->name);
            assert_non_null(want);
            assert_int_equal(want->n_bytes, p->src->n_bytes);
            bool moved = memcmp(p->src->data, want->data, want->n_bytes) != 0;
            assert_int_equal(moved, slots[i] != SL_SLOT_V);
            assert_int_equal(p->mat.layout, 0); /* exact: the rows themselves */
            assert_memory_equal(p->mat.data, want->data, want->n_bytes);
        }
        sl_ckpt_close(plain);
        rig_close(&g);
    }
}

/* A window must be there and end where it says: the token just outside changes nothing, the one
 * just inside does. */
static void test_window_edge(void **state)
{
    (void)state;
    struct sl_synth s;
    struct rig g;
    int32_t tokens[32], pages[4];
    describe_model(&(struct variant){"mistral", SL_DTYPE_F32, "f32", false}, SL_CKPT_HF, &s);
    s.hp.window = 8;
    s.hp.n_layers = 1; /* a second layer would see beyond through the first */
    write_model(&s, OUT "/window");
    rig_open(&g, OUT "/window", &(struct rig_options){0});
    rig_tokens(tokens, 32, g.n_vocab, 8);
    rig_pages(pages, 4, 0, false);
    size_t v = (size_t)g.n_vocab;
    float *a = sl_malloc(32 * v * sizeof *a), *b = sl_malloc(32 * v * sizeof *b);
    struct seq sa = {tokens, 32, pages, a}, sb = {tokens, 32, pages, b};
    rig_run(&g, &sa, 32);
    tokens[20] = (tokens[20] + 1) % g.n_vocab;
    rig_run(&g, &sb, 32);
    assert_memory_equal(a, b, 20 * v * sizeof *a);
    assert_memory_not_equal(a + 27 * v, b + 27 * v, v * sizeof *a); /* 27 sees 20..27 */
    assert_memory_equal(a + 28 * v, b + 28 * v, 4 * v * sizeof *a); /* 28 sees 21..28 */
    sl_free(a);
    sl_free(b);
    rig_close(&g);
}

/* A chunk begins where it says: its first token sees itself alone, its last one all of it, and the
 * next chunk none of it (transformers#37351: chunks that were windows). */
static void test_chunk_edge(void **state)
{
    (void)state;
    enum { CHUNK = 8 };
    struct sl_synth s;
    struct rig g;
    int32_t tokens[32], pages[4];
    describe_model(&(struct variant){"llama4-text", SL_DTYPE_F32, "f32", false}, SL_CKPT_HF, &s);
    s.hp.chunk = CHUNK;
    s.hp.n_layers = 1; /* a second layer would see beyond through the first */
    write_model(&s, OUT "/chunk");
    rig_open(&g, OUT "/chunk", &(struct rig_options){0});
    rig_tokens(tokens, 32, g.n_vocab, 8);
    rig_pages(pages, 4, 0, false);
    size_t v = (size_t)g.n_vocab;
    float *a = sl_malloc(32 * v * sizeof *a), *b = sl_malloc(32 * v * sizeof *b);
    struct seq sa = {tokens, 32, pages, a}, sb = {tokens, 32, pages, b};
    rig_run(&g, &sa, 32);
    tokens[17] = (tokens[17] + 1) % g.n_vocab;
    rig_run(&g, &sb, 5); /* steps that end within a chunk */
    assert_memory_equal(a, b, 17 * v * sizeof *a);
    for (int t = 17; t < 3 * CHUNK; t++)
        assert_memory_not_equal(a + (size_t)t * v, b + (size_t)t * v, v * sizeof *a);
    assert_memory_equal(a + 3 * CHUNK * v, b + 3 * CHUNK * v, (32 - 3 * CHUNK) * v * sizeof *a);
    sl_free(a);
    sl_free(b);
    rig_close(&g);
}

/* A layer that reads another's keys has no part of a page, and heads of two sizes lie in pages as
 * wide as they are (vllm#40388, vllm#40391). */
static void test_pages_of_two_heads(void **state)
{
    (void)state;
    struct sl_synth s;
    struct rig g;
    struct sl_kv_layout kv;
    struct sl_error err = {0};
    describe_model(&(struct variant){"gemma4", SL_DTYPE_BF16, "f32", false}, SL_CKPT_HF, &s);
    write_model(&s, OUT "/two_heads");
    rig_open(&g, OUT "/two_heads", &(struct rig_options){0});
    assert_int_equal(sl_model_kv_layout(g.model, g.be, "bf16", SL_DTYPE_BF16, 16, &kv, &err), 0);
    assert_int_equal(kv.n_groups, 2);
    for (int i = 0; i < 2; i++) {
        const int n_layers = 2; /* of three, of which the last reads the second's */
        const int row =
            i == 0 ? s.hp.full_kv_heads * s.hp.full_head_dim : s.hp.n_kv_heads * s.hp.head_dim;
        assert_int_equal(kv.groups[i].window, i == 0 ? 0 : s.hp.window);
        assert_int_equal(kv.groups[i].n_layers, n_layers);
        assert_int_equal(kv.groups[i].page_bytes, n_layers * 2 * 16 * row * 2);
    }
    for (int l = 0; l < 6; l++)
        assert_int_equal(g.model->layers[l].kv_source, l < 4 ? l : l - 2);
    rig_close(&g);
}

/* Names without the leading "model.", as base-model checkpoints have them. */
static void test_short_names(void **state)
{
    (void)state;
    struct sl_synth s;
    char *data;
    size_t n, n_a, n_b;
    struct sl_error err = {0};
    describe_model(&(struct variant){"qwen3", SL_DTYPE_BF16, "f32", false}, SL_CKPT_HF, &s);
    write_model(&s, OUT "/short");
    float *a = logits_of(OUT "/short", 20, &n_a);
    if (sl_read_file(OUT "/short/model.safetensors", 1 << 26, &data, &n, &err) != 0)
        fail_msg("%s", err.msg);
    uint64_t header;
    memcpy(&header, data, sizeof header);
    for (size_t i = 8; i + 7 < 8 + header; i++) {
        if (memcmp(data + i, "\"model.", 7) == 0) { /* blanks keep the length of the header */
            size_t end = i + 7;
            while (data[end] != '"')
                end++;
            memmove(data + i + 1, data + i + 7, end - i - 6);
            memset(data + end - 5, ' ', 6);
        }
    }
    if (sl_write_file(OUT "/short/model.safetensors", data, n, &err) != 0)
        fail_msg("%s", err.msg);
    sl_free(data);
    float *b = logits_of(OUT "/short", 20, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(a, b, n_a);
    sl_free(a);
    sl_free(b);
}

/* ---------------------------------------------------------------- description */

static void test_describe(void **state)
{
    (void)state;
    struct rig g;
    struct sl_buf text = {0}, js = {0};
    rig_open(&g, "tests/golden/models/mistral", &(struct rig_options){.isa = "c"});
    sl_model_describe(g.model, g.be, false, true, &text);
    assert_true(sl_buf_ok(&text));
    assert_non_null(strstr(text.data, "architecture  mistral\n"));
    assert_non_null(strstr(text.data, "window 13"));
    assert_non_null(strstr(text.data, "model.layers.1.self_attn.q_proj.weight"));
    sl_model_describe(g.model, g.be, true, true, &js);
    json_t *v = json_loadb(js.data, js.n_bytes, 0, NULL);
    assert_non_null(v);
    assert_int_equal(json_array_size(json_object_get(v, "layers")), 2);
    assert_int_equal(json_array_size(json_object_get(v, "tensors")), 3 + 2 * 9);
    const json_t *first = json_array_get(json_object_get(v, "tensors"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "name")),
                        "model.embed_tokens.weight");
    assert_true(json_is_string(json_object_get(first, "route")));
    json_decref(v);
    sl_buf_deinit(&text);
    sl_buf_deinit(&js);
    rig_close(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest one[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_containers),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_containers),
        cmocka_unit_test(test_reordered_blocks),
        cmocka_unit_test(test_window_edge),
        cmocka_unit_test(test_chunk_edge),
        cmocka_unit_test(test_pages_of_two_heads),
        cmocka_unit_test(test_short_names),
        cmocka_unit_test(test_describe),
    };
    only = argc > 1 ? argv[1] : NULL;
    if (only != NULL)
        return cmocka_run_group_tests_name("models", one, setup_group, NULL);
    return cmocka_run_group_tests_name("models", tests, setup_group, NULL);
}
