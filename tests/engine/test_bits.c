/* SPDX-License-Identifier: MIT
 * The promise "same bits always" on the bundled model: tokens and log probabilities of a set of
 * prompts, each run alone, are compared bit for bit with what the same prompts give in mixed
 * batches, for several prefill chunk sizes, page sizes, thread counts and ranks, with the prefix
 * cache hit and missed, on every instruction set, and after preemption. Each case first proves that
 * it exercised what it claims to. The same for random models with recurrent layers, which begin at
 * states that the cache kept, and for one with latent attention; and for the bundled model where
 * rows attend to some of the pages (sparse_topk_pages), and with pages of codes.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "sluice.h"
#include "synth/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_PROMPTS 24 /* the kernels are slow under a sanitizer, the paths are the same */
#else
#define N_PROMPTS 50
#endif
/* Of groups that differ from the first in their pages alone. */
#define FEW_PROMPTS 24
#define MAX_PROMPT  160
#define N_OUT       16
#define N_TOP       3

struct prompt {
    int32_t ids[MAX_PROMPT];
    int32_t n;
};

struct outcome { /* what must not change by a bit */
    int32_t n_tokens;
    int32_t ids[N_OUT];
    float logprobs[N_OUT];
    int32_t ranks[N_OUT];
    struct sl_top_logprob tops[N_OUT][N_TOP];
    float prompt_logprobs[MAX_PROMPT]; /* of every fifth request */
};

static const char *model; /* NULL: the bundled one */
static int32_t top_pages; /* that rows attend to; 0: all */
static const char *pages; /* format of KV pages, NULL: auto */
static int n_prompts = N_PROMPTS;
static struct prompt prompts[N_PROMPTS];
static struct outcome alone[N_PROMPTS];

/* Lengths from 1 token to several pages, exact multiples of a page included; groups share prefixes.
 */
static void make_prompts(int32_t n_vocab)
{
    struct sl_rng rng = {.seed = 2026};
    for (int i = 0; i < n_prompts; i++) {
        struct prompt *p = &prompts[i];
        static const int32_t fixed[] = {1, 2, 15, 16, 17, 32, 64, 65, 128, MAX_PROMPT};
        p->n = i < (int)SL_COUNT(fixed) ? fixed[i] : 1 + (int32_t)sl_rng_below(&rng, MAX_PROMPT);
        int32_t shared = i % 3 == 0 ? SL_MIN(p->n, 48) : 0;
        for (int32_t k = 0; k < p->n; k++)
            p->ids[k] = k < shared ? (k * 37 + 11) % n_vocab
                                   : (int32_t)sl_rng_below(&rng, (uint64_t)n_vocab);
    }
}

static struct sl_request *submit(struct sl_engine *eng, int i)
{
    struct sl_error err;
    struct sl_request *req = NULL;
    struct sl_request_desc desc = {.prompt = prompts[i].ids, .n_prompt = prompts[i].n};
    struct sl_sampling *s = &desc.sampling;
    sl_sampling_default(s);
    s->max_tokens = N_OUT;
    s->ignore_eos = true;
    s->logprobs = N_TOP;
    s->prompt_logprobs = i % 5 == 4 ? 0 : -1;
    s->temperature = i % 2 == 0 ? 0.0f : 0.9f;
    s->top_p = i % 4 == 1 ? 0.8f : 1.0f;
    s->top_k = i % 4 == 3 ? 40 : 0;
    s->repetition_penalty = i % 7 == 3 ? 1.2f : 1.0f;
    s->has_seed = true;
    s->seed = (uint64_t)i * 7919;
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("prompt %d: %s", i, err.msg);
    return req;
}

static void collect(struct sl_request *req, int i, struct outcome *out)
{
    struct sl_chunk chunk;
    memset(out, 0, sizeof *out);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1) {
            assert_int_not_equal(chunk.finish, SL_FINISH_ERROR);
            for (size_t k = 0; k < chunk.n_tokens; k++, out->n_tokens++) {
                const struct sl_token *t = &chunk.tokens[k];
                assert_true(out->n_tokens < N_OUT);
                out->ids[out->n_tokens] = t->id;
                out->logprobs[out->n_tokens] = t->logprob;
                out->ranks[out->n_tokens] = t->rank;
                assert_int_equal(t->n_top, N_TOP);
                memcpy(out->tops[out->n_tokens], t->top, sizeof out->tops[0]);
            }
        }
    }
    assert_int_equal(out->n_tokens, N_OUT);
    const struct sl_token *pl = sl_request_prompt_logprobs(req);
    assert_int_equal(pl != NULL, i % 5 == 4);
    for (int32_t k = 1; pl != NULL && k < prompts[i].n; k++)
        out->prompt_logprobs[k] = pl[k].logprob;
}

static struct sl_engine *start(struct sl_engine_config cfg)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    cfg.model = model;
    cfg.sparse_topk_pages = top_pages;
    cfg.kv_cache_dtype = pages;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    return eng;
}

/* Runs each `step`-th prompt, all at once, on an engine of this configuration, `rounds` times over,
 * and compares. */
static struct sl_stats compare_some(struct sl_engine_config cfg, int step, int rounds,
                                    const char *what)
{
    static struct sl_request *reqs[N_PROMPTS];
    static struct outcome got;
    struct sl_engine *eng = start(cfg);
    struct sl_stats stats;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n_prompts; i += step)
            reqs[i] = submit(eng, i);
        for (int i = 0; i < n_prompts; i += step) {
            collect(reqs[i], i, &got);
            if (memcmp(&got, &alone[i], sizeof got) != 0)
                fail_msg("%s: prompt %d (%d tokens), round %d: bits differ", what, i, prompts[i].n,
                         round);
            sl_request_release(reqs[i]);
        }
    }
    sl_engine_stats(eng, &stats);
    assert_int_equal(stats.step_mallocs, 0);
    assert_true(top_pages > 0 ? stats.top_pages_read < stats.top_pages_dense
                              : stats.top_pages_dense == 0);
    assert_int_equal(stats.n_pages_free + stats.n_pages_cached, stats.n_pages);
    sl_engine_destroy(eng);
    return stats;
}

static struct sl_stats run_and_compare(struct sl_engine_config cfg, int rounds, const char *what)
{
    return compare_some(cfg, 1, rounds, what);
}

static void run_each_alone(const char *isa)
{
    struct sl_engine *eng = start((struct sl_engine_config){.cpu_isa = isa,
                                                            .max_num_seqs = 1,
                                                            .max_num_batched_tokens = 512,
                                                            .no_prefix_caching = true,
                                                            .n_threads = 2});
    make_prompts(sl_engine_info(eng)->n_vocab);
    for (int i = 0; i < n_prompts; i++) {
        struct sl_request *req = submit(eng, i);
        collect(req, i, &alone[i]);
        sl_request_release(req);
    }
    sl_engine_destroy(eng);
}

static int setup(void **state)
{
    (void)state;
    run_each_alone("auto");
    return 0;
}

static void mixed_batches(void **state)
{
    (void)state;
    static const int32_t seqs[] = {2, 3, 8, 17, 64};
    for (size_t i = 0; i < SL_COUNT(seqs); i++) {
        char what[32];
        snprintf(what, sizeof what, "batches of up to %d", seqs[i]);
        run_and_compare((struct sl_engine_config){.max_num_seqs = seqs[i]}, 1, what);
    }
}

static void chunk_sizes(void **state)
{
    (void)state;
    static const struct {
        int32_t chunk, seqs;
    } cases[] = {{1, 1}, {7, 1}, {7, 5}, {64, 1}, {64, 32}, {512, 1}, {512, 64}};
    for (size_t i = 0; i<SL_COUNT(cases); i += top_pages> 0 ? 3 : 1) {
        char what[48];
        snprintf(what, sizeof what, "chunks of %d, %d sequences", cases[i].chunk, cases[i].seqs);
        run_and_compare((struct sl_engine_config){.max_num_batched_tokens = cases[i].chunk,
                                                  .max_num_seqs = cases[i].seqs,
                                                  .no_prefix_caching = i % 2 == 0},
                        1, what);
    }
}

static void prefix_cache_hit_and_miss(void **state)
{
    (void)state;
    struct sl_stats miss = run_and_compare(
        (struct sl_engine_config){.max_num_seqs = 8, .no_prefix_caching = true}, 2, "cache off");
    assert_int_equal(miss.prompt_tokens_cached, 0);
    struct sl_stats hit =
        run_and_compare((struct sl_engine_config){.max_num_seqs = 8}, 3, "cache on");
    assert_true(hit.prompt_tokens_cached > (uint64_t)(20 * n_prompts));
}

static void page_sizes(void **state)
{
    (void)state;
    static const int32_t blocks[] = {32, 48, 64, 256};
    for (size_t i = 0; i < SL_COUNT(blocks); i++) {
        char what[32];
        snprintf(what, sizeof what, "pages of %d", blocks[i]);
        run_and_compare((struct sl_engine_config){.block_size = blocks[i], .max_num_seqs = 16}, 2,
                        what);
    }
}

static void preemption(void **state)
{
    (void)state;
    /* Pages for some of the longest sequences while sixteen want to run, or twelve: each must have
     * a state. */
    struct sl_engine *probe = start((struct sl_engine_config){0});
    uint64_t per_token = sl_engine_info(probe)->kv_bytes_per_token;
    sl_engine_destroy(probe);
    /* fewer texts come to need pages that others have only where there are fewer of these */
    const uint64_t halves = n_prompts > FEW_PROMPTS ? 4 : 3;
    struct sl_stats s = run_and_compare(
        (struct sl_engine_config){.max_num_seqs = model == NULL ? 16 : 12,
                                  .block_size = 16,
                                  .max_model_len = MAX_PROMPT + N_OUT,
                                  .kv_cache_bytes = per_token * halves * (MAX_PROMPT + N_OUT) / 2},
        2, "preemption");
    assert_true(s.preemptions > 0);
}

/* Most are wrong here, which is what could leave a trace. */
static void drafts(void **state)
{
    (void)state;
    static const char config[] = "{\"method\":\"ngram\",\"num_speculative_tokens\":6,"
                                 "\"prompt_lookup_max\":3,\"prompt_lookup_min\":1}";
    for (int i = 0; i < 3; i++) {
        struct sl_engine_config cfg = {.speculative_config = config,
                                       .max_itl_ms = i < 2 ? -1 : 0, /* -1: whatever steps take */
                                       .max_num_seqs = i == 0 ? 1 : 16,
                                       .max_num_batched_tokens = i == 1 ? 20 : 512,
                                       .kv_cache_bytes = i == 1 ? 1 << 22 : 0};
        struct sl_stats s = run_and_compare(cfg, 2, "drafts");
        /* A random model repeats nothing: test_windows has right drafts of those. */
        assert_true(i == 2 ||
                    (s.n_draft_tokens > (uint64_t)(4 * n_prompts) &&
                     (model != NULL || s.n_accepted_tokens > (uint64_t)(4 * n_prompts / 5))));
    }
}

static void thread_counts(void **state)
{
    (void)state;
    static const int32_t threads[] = {1, 2, 3, 7};
    for (size_t i = 0; i < SL_COUNT(threads); i++) {
        char what[32];
        snprintf(what, sizeof what, "%d threads", threads[i]);
        run_and_compare((struct sl_engine_config){.n_threads = threads[i], .max_num_seqs = 12}, 1,
                        what);
    }
}

static void ranks(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 4; n *= 2) {
        char what[32];
        snprintf(what, sizeof what, "%d ranks", n);
        run_and_compare((struct sl_engine_config){.device = "cpu",
                                                  .tensor_parallel_size = n,
                                                  .n_threads = n == 2 ? 4 : 1,
                                                  .max_num_seqs = 12},
                        2, what);
    }
}

static void stages(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 4; n++) {
        char what[32];
        snprintf(what, sizeof what, "%d stages", n);
        run_and_compare(
            (struct sl_engine_config){
                .device = "cpu", .pipeline_parallel_size = n, .n_threads = n, .max_num_seqs = 12},
            2, what);
    }
    run_and_compare((struct sl_engine_config){.device = "cpu",
                                              .pipeline_parallel_size = 2,
                                              .tensor_parallel_size = 2,
                                              .n_threads = 2,
                                              .max_num_seqs = 12},
                    2, "2 stages of 2 ranks");
}

static void instruction_sets(void **state)
{
    (void)state;
    /* Instructions for BF16 round in their own way; plain C is slow, so that it comes as one of a
     * group and has each third prompt, among which are all kinds of requests. */
    static const struct {
        const char *name;
        bool own_bits;
        int step;
    } isas[] = {{"avx2", true, 1},         {"c", false, 3},          {"avx512", false, 1},
                {"avx512-vnni", false, 1}, {"avx512-bf16", true, 1}, {"amx", true, 1}};
    struct sl_error err;
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        struct sl_engine_config cfg = {
            .model = model, .cpu_isa = isas[i].name, .kv_cache_dtype = pages, .max_num_seqs = 16};
        struct sl_engine *eng = NULL;
        if (sl_engine_create(&cfg, &eng, &err) != 0) {
            printf("skip: %s: %s\n", isas[i].name, err.msg);
            continue;
        }
        sl_engine_destroy(eng);
        if (isas[i].own_bits)
            run_each_alone(isas[i].name);
        compare_some(cfg, isas[i].step, 1, isas[i].name);
    }
}

enum { N_SIBLINGS = 4, N_GROUPS = 6 };

struct siblings {
    int32_t ids[N_GROUPS][N_SIBLINGS][N_OUT];
    float logprobs[N_GROUPS][N_SIBLINGS][N_OUT];
};

/* Four sequences from each of some prompts, which begin at the state of their last whole page. */
static void run_siblings(struct sl_engine_config cfg, struct siblings *out)
{
    static struct sl_request *reqs[N_GROUPS];
    struct sl_engine *eng = start(cfg);
    struct sl_error err;
    struct sl_chunk chunk;
    for (int i = 0; i < N_GROUPS; i++) {
        struct sl_request_desc desc = {.prompt = prompts[i].ids, .n_prompt = prompts[i].n};
        sl_sampling_default(&desc.sampling);
        desc.sampling.n = N_SIBLINGS;
        desc.sampling.max_tokens = N_OUT;
        desc.sampling.ignore_eos = desc.sampling.has_seed = true;
        desc.sampling.logprobs = 0;
        if (sl_request_submit(eng, &desc, &reqs[i], &err) != 0)
            fail_msg("prompt %d: %s", i, err.msg);
    }
    for (int i = 0; i < N_GROUPS; i++) {
        int32_t n[N_SIBLINGS] = {0};
        while (!sl_request_done(reqs[i])) {
            sl_request_wait(reqs[i], 1000);
            while (sl_request_read(reqs[i], &chunk) == 1)
                for (size_t k = 0; k < chunk.n_tokens; k++, n[chunk.seq_idx]++) {
                    out->ids[i][chunk.seq_idx][n[chunk.seq_idx]] = chunk.tokens[k].id;
                    out->logprobs[i][chunk.seq_idx][n[chunk.seq_idx]] = chunk.tokens[k].logprob;
                }
        }
        for (int k = 0; k < N_SIBLINGS; k++)
            assert_int_equal(n[k], N_OUT);
        sl_request_release(reqs[i]);
    }
    sl_engine_destroy(eng);
}

static void siblings(void **state)
{
    static struct siblings want, got;
    (void)state;
    run_siblings((struct sl_engine_config){.max_num_seqs = 1, .no_prefix_caching = true}, &want);
    assert_memory_not_equal(want.ids[0][0], want.ids[0][1], sizeof want.ids[0][0]);
    for (int32_t seqs = 3; seqs <= 32; seqs += 29) {
        run_siblings((struct sl_engine_config){.max_num_seqs = seqs}, &got);
        assert_memory_equal(&got, &want, sizeof want);
    }
}

/* A random model of that family is what start() starts. */
static void make_model(const char *family)
{
    static char path[64];
    struct sl_error err = {0};
    struct sl_synth s = {
        .name = family, .dtype = SL_DTYPE_BF16, .seed = 3, .byte_vocab = true, .eos = SL_SYNTH_EOS};
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    snprintf(path, sizeof path, "build/testdata/bits_%s", family);
    if (sl_synth_shape(family, "tiny", &s.hp, &err) != 0 || sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s", err.msg);
    model = path;
}

static int setup_delta(void **state)
{
    make_model("qwen35moe");
    return setup(state);
}

static int setup_conv(void **state) /* with windows as well */
{
    make_model("lfm3");
    return setup(state);
}

static int setup_latent(void **state)
{
    make_model("deepseek_v3");
    return setup(state);
}

static int setup_index(void **state) /* prompts are longer than what a row sees */
{
    make_model("glm_moe_dsa");
    return setup(state);
}

static int setup_blocks(void **state) /* likewise */
{
    make_model("minimax_m3");
    return setup(state);
}

static int setup_top_pages(void **state) /* the longest sequences have eleven */
{
    static struct outcome dense[N_PROMPTS];
    int n_same = 0;
    model = NULL;
    memcpy(dense, alone, sizeof dense);
    top_pages = 8;
    setup(state);
    for (int i = 0; i < n_prompts; i++) {
        const bool same = memcmp(&dense[i], &alone[i], sizeof dense[i]) == 0;
        assert_true(same || prompts[i].n + N_OUT > top_pages * 16);
        n_same += same;
    }
    assert_true(n_same < n_prompts);
    return 0;
}

/* Before anything is loaded, with the reason. */
static void pages_are_refused(void **state)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    struct sl_engine_config cfg = {.sparse_topk_pages = 7};
    (void)state;
    assert_int_equal(sl_engine_create(&cfg, &eng, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "sparse_topk_pages: 7 is not between 8 and"));
    cfg.sparse_topk_pages = 8;
    cfg.skip_softmax_threshold_scale_factor = 1;
    assert_int_equal(sl_engine_create(&cfg, &eng, &err), SL_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "sparse_topk_pages: skip-softmax"));
    make_model("deepseek_v3");
    cfg = (struct sl_engine_config){.model = model, .sparse_topk_pages = 8};
    assert_int_equal(sl_engine_create(&cfg, &eng, &err), SL_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "latent attention"));
    model = NULL;
}

static int end_top_pages(void **state)
{
    (void)state;
    top_pages = 0;
    return 0;
}

static const char *coded; /* pages of the next group */

static int setup_coded(void **state)
{
    model = NULL;
    pages = coded;
    return setup(state);
}

static int teardown_coded(void **state)
{
    (void)state;
    pages = NULL;
    return 0;
}

/* With an argument: the random models alone. */
int main(int argc, char **argv)
{
    const struct CMUnitTest recurrent[] = {
        cmocka_unit_test(chunk_sizes),
        cmocka_unit_test(preemption),
        cmocka_unit_test(prefix_cache_hit_and_miss),
        cmocka_unit_test(page_sizes),
        cmocka_unit_test(thread_counts),
        cmocka_unit_test(instruction_sets),
        cmocka_unit_test(siblings),
        cmocka_unit_test(drafts),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_batches),
        cmocka_unit_test(chunk_sizes),
        cmocka_unit_test(preemption),
        cmocka_unit_test(prefix_cache_hit_and_miss),
        cmocka_unit_test(page_sizes),
        cmocka_unit_test(thread_counts),
        cmocka_unit_test(instruction_sets),
        cmocka_unit_test(drafts),
        cmocka_unit_test(ranks),
        cmocka_unit_test(stages),
    };
    const struct CMUnitTest chosen[] = {
        cmocka_unit_test(chunk_sizes),
        cmocka_unit_test(preemption),
        cmocka_unit_test(prefix_cache_hit_and_miss),
        cmocka_unit_test(drafts),
        cmocka_unit_test(ranks),
        cmocka_unit_test(pages_are_refused),
    };
    const struct CMUnitTest of_codes[] = {
        cmocka_unit_test(chunk_sizes),
        cmocka_unit_test(preemption),
        cmocka_unit_test(prefix_cache_hit_and_miss),
        cmocka_unit_test(ranks),
        cmocka_unit_test(stages),
    };
    const struct CMUnitTest of_other_codes[] = {
        cmocka_unit_test(preemption),
        cmocka_unit_test(prefix_cache_hit_and_miss),
    };
    static const char *const others[] = {"turboquant_3bit_nc", "int4_per_token_head", "nvfp4"};
    (void)argv;
    int n_failed = argc > 1 ? 0 : cmocka_run_group_tests_name("bundled", tests, setup, NULL);
    n_prompts = FEW_PROMPTS;
    if (argc <= 1)
        n_failed += cmocka_run_group_tests_name("pages", chosen, setup_top_pages, end_top_pages);
    coded = "turboquant_4bit_nc";
    if (argc <= 1)
        n_failed += cmocka_run_group_tests_name(coded, of_codes, setup_coded, teardown_coded);
    for (size_t i = 0; argc <= 1 && i < SL_COUNT(others); i++) {
        coded = others[i];
        n_failed += cmocka_run_group_tests_name(coded, of_other_codes, setup_coded, teardown_coded);
    }
    n_prompts = N_PROMPTS;
    n_failed += cmocka_run_group_tests_name("delta rule", recurrent, setup_delta, NULL);
    n_failed += cmocka_run_group_tests_name("latent attention", recurrent, setup_latent, NULL);
    n_failed += cmocka_run_group_tests_name("sparse attention", recurrent, setup_index, NULL);
    n_failed +=
        cmocka_run_group_tests_name("sparse attention of blocks", recurrent, setup_blocks, NULL);
    return n_failed + cmocka_run_group_tests_name("convolutions", recurrent, setup_conv, NULL);
}
