/* SPDX-License-Identifier: MIT
 * bench_layers.h - products of many tokens: every matrix of four models, BF16, against cuBLASLt at
 * the same shape in the same run. What decides is the geometric mean of the ratios from 256 tokens
 * on, and the worst of them.
 */
#ifndef SL_TESTS_CUDA_BENCH_LAYERS_H
#define SL_TESTS_CUDA_BENCH_LAYERS_H

#include "bench_linear.h"

struct layers_model {
    const char *name;
    struct lin_shape shape[5];
};

/* Llama 3.2 1B, Llama 3.1 8B, Qwen 3 32B, and one of eight parts of Llama 3.1 70B; and matrices as
 * libraries are compared by, which are no model's and measured only when they are asked for. */
#define LAYERS_SQUARE "square"
static const struct layers_model layers_models[] = {
    {"1b",
     {{"q, k, v", LIN_MULTI, 3, {2048, 512, 512}, 2048},
      {"o", LIN_ONE, 1, {2048, 0, 0}, 2048},
      {"gate, up", LIN_GATED, 2, {8192, 8192, 0}, 2048},
      {"down", LIN_ONE, 1, {2048, 0, 0}, 8192},
      {"head", LIN_ONE, 1, {128256, 0, 0}, 2048}}},
    {"8b",
     {{"q, k, v", LIN_MULTI, 3, {4096, 1024, 1024}, 4096},
      {"o", LIN_ONE, 1, {4096, 0, 0}, 4096},
      {"gate, up", LIN_GATED, 2, {14336, 14336, 0}, 4096},
      {"down", LIN_ONE, 1, {4096, 0, 0}, 14336},
      {"head", LIN_ONE, 1, {128256, 0, 0}, 4096}}},
    {"32b",
     {{"q, k, v", LIN_MULTI, 3, {8192, 1024, 1024}, 5120},
      {"o", LIN_ONE, 1, {5120, 0, 0}, 8192},
      {"gate, up", LIN_GATED, 2, {25600, 25600, 0}, 5120},
      {"down", LIN_ONE, 1, {5120, 0, 0}, 25600},
      {"head", LIN_ONE, 1, {151936, 0, 0}, 5120}}},
    {"70b/8",
     {{"q, k, v", LIN_MULTI, 3, {1024, 128, 128}, 8192},
      {"o", LIN_ONE, 1, {8192, 0, 0}, 1024},
      {"gate, up", LIN_GATED, 2, {3584, 3584, 0}, 8192},
      {"down", LIN_ONE, 1, {8192, 0, 0}, 3584},
      {"head", LIN_ONE, 1, {16032, 0, 0}, 8192}}},
    {LAYERS_SQUARE,
     {{"4096", LIN_ONE, 1, {4096, 0, 0}, 4096}, {"8192", LIN_ONE, 1, {8192, 0, 0}, 8192}}},
};

#define LAYERS_SIZES 8    /* 64, 128 ... */
#define LAYERS_FROM  256  /* tokens: what counts */
#define LAYERS_MS    12.0 /* of replays */

/* From here on the chip's power is the limit: a product shows its speed only when it has run for
 * some 50 ms, whatever ran before (128256 x 2048, 512 tokens: 493 us in turns of 1.5 ms with
 * cuBLASLt's 430, 445 and 459 each alone for 250 ms). */
#define LAYERS_HOT    1024 /* tokens */
#define LAYERS_HOT_MS 80.0

static int layers_tokens(int i)
{
    return b.tiny ? 70 + i : 64 << i;
}

static double layers_ms(int m)
{
    return m >= LAYERS_HOT ? LAYERS_HOT_MS : LAYERS_MS;
}

/* What counts, of all or of a number of tokens. */
struct layers_sum {
    double logs, worst;
    int n, n_below; /* 95 % */
};

static void layers_add(struct layers_sum *s, double ratio)
{
    s->logs += log(ratio);
    s->worst = s->n == 0 ? ratio : std::min(s->worst, ratio);
    s->n++;
    s->n_below += ratio < 0.95;
}

static void layers_print(const char *what, const struct layers_sum *s)
{
    if (s->n > 0)
        printf("%-14s geometric mean %6.1f %% of cuBLASLt, worst %5.1f %%, below 95 %%: %d of %d\n",
               what, 100.0 * exp(s->logs / s->n), 100.0 * s->worst, s->n_below, s->n);
}

/* us, and the share of cuBLASLt, for all numbers of tokens. */
static void layers_row(struct lin_bench *l, const char *model, const struct lin_shape *s,
                       struct layers_sum *sums)
{
    struct lin_weights w = lin_create(l, s, SL_DTYPE_BF16);
    std::vector<void *> plain = lin_plain(s);
    printf("%-5s %-8s %6d x %-5d", model, s->name, lin_rows(s), s->k);
    for (int i = 0; i < (b.tiny ? 2 : LAYERS_SIZES); i++) {
        const int m = layers_tokens(i);
        double us = time_us(w.n_copies, layers_ms(m), [&](int c) {
            lin_call(l, s, &w.w[static_cast<size_t>(c) * MAX_PARTS], m);
        });
        lin_check(l, s, SL_DTYPE_BF16, m);
        double other =
            lt_time(m, lin_rows(s), s->k, LT_BF16, s->kind == LIN_GATED ? LT_BF16 : LT_F32, plain,
                    l->x->p, l->out->p, layers_ms(m));
        printf(" %8.1f %5s", us, share(other, us));
        fflush(stdout);
        if (other > 0.0)
            layers_add(&sums[i], other / us);
    }
    printf("\n");
    wait_all();
    for (void *p : plain)
        MUST(cudaFree(p));
    lin_destroy(&w);
}

static bool layers_wanted(const char *name, const char *model)
{
    return model != nullptr ? strcmp(model, name) == 0 : strcmp(name, LAYERS_SQUARE) != 0;
}

/* model: of one alone, or null. */
static void run_layers(const char *model)
{
    struct lin_bench l = {};
    size_t most_x = 0, most_out = 0, most_file = 0;
    const auto top = static_cast<size_t>(layers_tokens(LAYERS_SIZES - 1));
    std::vector<struct lin_shape> shapes[SL_COUNT(layers_models)];
    for (size_t i = 0; i < SL_COUNT(layers_models); i++)
        for (struct lin_shape s : layers_models[i].shape) {
            if (s.n_parts == 0 || !layers_wanted(layers_models[i].name, model))
                continue;
            for (int &n : s.n)
                n = b.tiny ? n / 128 : n;
            s.k = b.tiny ? 256 : s.k;
            most_x = std::max(most_x, top * static_cast<size_t>(s.k));
            most_out = std::max(most_out, top * static_cast<size_t>(lin_rows(&s)));
            most_file = std::max(most_file, file_bytes(SL_DTYPE_BF16, &s));
            shapes[i].push_back(s);
        }
    CHECK(most_x > 0, "--model: no model \"%s\"", model);
    dev<uint16_t> x(most_x);
    dev<float> out(most_out);
    fill(x.p, most_x, FILL_BF16, LIN_X_SEED);
    l.x = &x;
    l.out = &out;
    random_file(l.file, SL_DTYPE_BF16, most_file);
    wait_all();
    printf("\n== layers, bf16: us, and the share of cuBLASLt (outputs as in \"products\")\n%28s",
           "");
    for (int i = 0; i < LAYERS_SIZES; i++)
        printf(" %14d", layers_tokens(i));
    printf("\n");
    struct layers_sum sums[LAYERS_SIZES] = {}, all = {};
    for (size_t i = 0; i < SL_COUNT(layers_models); i++)
        for (const struct lin_shape &s : shapes[i])
            layers_row(&l, layers_models[i].name, &s, sums);
    for (int i = 0; i < LAYERS_SIZES; i++) {
        char what[32];
        snprintf(what, sizeof what, "%d tokens", layers_tokens(i));
        layers_print(what, &sums[i]);
        if (layers_tokens(i) < LAYERS_FROM || sums[i].n == 0)
            continue;
        all.worst = all.n == 0 ? sums[i].worst : std::min(all.worst, sums[i].worst);
        all.logs += sums[i].logs;
        all.n += sums[i].n;
        all.n_below += sums[i].n_below;
    }
    layers_print("256 to 8192", &all);
    struct sl_error err = {};
    CHECK(b.be->vt->device->load_end(b.be, &err) == 0, "load_end");
}

#endif
