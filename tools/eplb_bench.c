/* SPDX-License-Identifier: MIT
 * eplb_bench.c - steps of CPU ranks that have experts each, with a router that prefers a few: where
 * experts have ranges of their numbers, and where they are placed by their load, before and behind
 * the first placing.
 *
 * usage: eplb_bench [ranks [skew [redundant [rows]]]]   (default: 2 ranks, skew 6, as many replicas
 *        more as there are ranks, 16 rows)
 *
 * A random model of gpt-oss' shape, made small, generates `rows` texts at once. Time is that of a
 * step in the best of several rounds. All say the same, or the program says so and fails.
 */
#include "base/check.h"
#include "base/sys.h"
#include "sluice.h"
#include "synth/synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_OUT = 24, N_PROMPT = 8, MOST_ROWS = 128, ROUNDS = 3 };

#define PATH "build/testdata/models/eplb_bench"

static void fail(const char *what)
{
    fprintf(stderr, "eplb_bench: %s\n", what);
    exit(1);
}

static void write_model(float skew)
{
    struct sl_synth s = {.name = "gpt-oss",
                         .dtype = SL_DTYPE_BF16,
                         .format = SL_CKPT_HF,
                         .byte_vocab = true,
                         .skew = skew,
                         .seed = 9};
    struct sl_error err = {0};
    if (sl_synth_shape(s.name, "tiny", &s.hp, &err) != 0)
        fail(err.msg);
    s.hp.n_heads = s.hp.n_kv_heads = 8;
    s.hp.hidden = 512;
    s.hp.n_experts = 32;
    s.hp.top_experts = 4;
    s.hp.intermediate = 1024;
    if (sl_synth_write(&s, PATH, &err) != 0)
        fail(err.msg);
}

/* Returns nanoseconds of a step. */
static double run_round(struct sl_engine *eng, int rows, int32_t *ids)
{
    struct sl_request *reqs[MOST_ROWS];
    struct sl_stats before, after;
    struct sl_error err;
    struct sl_chunk chunk;
    int32_t prompt[N_PROMPT];
    sl_engine_stats(eng, &before);
    const uint64_t start = sl_now_ns();
    for (int i = 0; i < rows; i++) {
        struct sl_request_desc desc = {.prompt = prompt, .n_prompt = N_PROMPT};
        for (int k = 0; k < N_PROMPT; k++)
            prompt[k] = (k * 7 + i * 13) % 250;
        sl_sampling_default(&desc.sampling);
        desc.sampling.max_tokens = N_OUT;
        desc.sampling.ignore_eos = true;
        desc.sampling.temperature = 0;
        if (sl_request_submit(eng, &desc, &reqs[i], &err) != 0)
            fail(err.msg);
    }
    for (int i = 0; i < rows; i++) {
        while (!sl_request_done(reqs[i])) {
            sl_request_wait(reqs[i], 1000);
            while (sl_request_read(reqs[i], &chunk) == 1)
                for (size_t k = 0; k < chunk.n_tokens; k++)
                    *ids++ = chunk.tokens[k].id;
        }
        sl_request_release(reqs[i]);
    }
    const double ns = (double)(sl_now_ns() - start);
    sl_engine_stats(eng, &after);
    return ns / (double)SL_MAX(after.steps - before.steps, 1);
}

static void measure(struct sl_engine *eng, const char *what, int rows, int32_t *want)
{
    static int32_t have[MOST_ROWS * N_OUT];
    const size_t n_bytes = (size_t)rows * N_OUT * sizeof *have;
    struct sl_stats st;
    double best = 1e300;
    for (int i = 0; i < ROUNDS; i++) {
        const double ns = run_round(eng, rows, have);
        best = SL_MIN(best, ns);
        if (want[0] < 0)
            memcpy(want, have, n_bytes);
        if (memcmp(have, want, n_bytes) != 0)
            fail("other tokens than before");
    }
    sl_engine_stats(eng, &st);
    printf("%-30s %8.3f ms a step", what, best * 1e-6);
    if (st.eplb.on)
        printf(", balancedness %.3f, %llu placings, %llu experts loaded", st.eplb.balancedness,
               (unsigned long long)st.eplb.placings, (unsigned long long)st.eplb.loaded);
    printf("\n");
    fflush(stdout);
}

static struct sl_engine *open_engine(const struct sl_engine_config *cfg)
{
    struct sl_engine *eng = NULL;
    struct sl_error err;
    if (sl_engine_create(cfg, &eng, &err) != 0)
        fail(err.msg);
    return eng;
}

int main(int argc, char **argv)
{
    static int32_t want[MOST_ROWS * N_OUT] = {-1};
    static int32_t ids[MOST_ROWS * N_OUT];
    const int ranks = argc > 1 ? atoi(argv[1]) : 2, rows = argc > 4 ? atoi(argv[4]) : 16;
    const int redundant = argc > 3 ? atoi(argv[3]) : ranks;
    char config[120];
    if (rows < 1 || rows > MOST_ROWS)
        fail("too many rows");
    write_model(argc > 2 ? (float)atof(argv[2]) : 6);
    struct sl_engine_config cfg = {.model = PATH,
                                   .device = "cpu",
                                   .n_threads = ranks,
                                   .tensor_parallel_size = ranks,
                                   .enable_expert_parallel = true,
                                   .max_num_seqs = MOST_ROWS,
                                   .max_model_len = 256,
                                   .no_prefix_caching = true};
    struct sl_engine *eng = open_engine(&cfg);
    measure(eng, "ranges", rows, want);
    sl_engine_destroy(eng);
    snprintf(config, sizeof config,
             "{\"window_size\": 30, \"step_interval\": 100, \"num_redundant_experts\": %d}",
             redundant);
    cfg.enable_eplb = true;
    cfg.eplb_config = config;
    eng = open_engine(&cfg);
    measure(eng, "places, before a placing", rows, want);
    for (struct sl_stats st = {0}; st.eplb.placings == 0; sl_engine_stats(eng, &st))
        (void)run_round(eng, rows, ids);
    measure(eng, "places, behind a placing", rows, want);
    sl_engine_destroy(eng);
    return 0;
}
