/* SPDX-License-Identifier: MIT
 * Decode context parallelism in an engine: answers of ranks that divide the positions of a sequence
 * are, bit for bit, those of one rank: in chunks of all sizes, with prefixes from the cache, after
 * preemption, with drafts and with pages that come back from host memory. The plan counts for each
 * rank its part of the pages. What does not go together is refused by name.
 */
#include "base/check.h"
#include "base/sys.h"
#include "sluice.h"
#include "synth/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define OUT "build/testdata/models"

enum { N_PROMPTS = 4, N_OUT = 10, LONG_OUT = 600, MAX_PROMPT = 1030, MAX_LEN = 2048 };

/* Around a stretch of a rank and the blocks of two ranks; some begin alike. */
static const int32_t lengths[N_PROMPTS] = {3, 505, 600, MAX_PROMPT};

struct outcome {
    int32_t ids[N_PROMPTS][LONG_OUT];
    float logprobs[N_PROMPTS][LONG_OUT];
};

static const struct family {
    const char *name;
    int32_t n_heads, n_kv_heads;
} families[] = {
    {"llama", 8, 2},       /* fewer key heads than four ranks */
    {"gemma3", 4, 1},      /* windows: two groups of pages */
    {"deepseek_v2", 8, 8}, /* latent attention */
};

static const char *write_model(const struct family *f)
{
    static char path[160];
    struct sl_error err = {0};
    struct sl_synth s = {.name = f->name,
                         .dtype = SL_DTYPE_BF16,
                         .format = SL_CKPT_HF,
                         .byte_vocab = true,
                         .seed = 9};
    if (sl_synth_shape(f->name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.n_heads = f->n_heads;
    s.hp.n_kv_heads = f->n_kv_heads;
    s.hp.context = SL_MAX(s.hp.context, 2 * MAX_LEN);
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    snprintf(path, sizeof path, OUT "/positions_engine_%s", f->name);
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    return path;
}

static struct sl_request *submit(struct sl_engine *eng, int i, int32_t n_out)
{
    static int32_t ids[MAX_PROMPT];
    struct sl_error err = {0};
    struct sl_request *req = NULL;
    struct sl_request_desc desc = {.prompt = ids, .n_prompt = lengths[i]};
    for (int32_t k = 0; k < lengths[i]; k++)
        ids[k] = (k < 560 && i > 1 ? k * 31 + 7 : k * 37 + i * 11 + k / 90) % 250;
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = n_out;
    desc.sampling.ignore_eos = desc.sampling.has_seed = true;
    desc.sampling.logprobs = 0;
    desc.sampling.temperature = i % 2 == 0 ? 0 : 0.8f;
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("prompt %d: %s", i, err.msg);
    return req;
}

static void collect(struct sl_request *req, int i, int32_t n_out, struct outcome *out)
{
    struct sl_chunk chunk;
    int n = 0;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1) {
            assert_int_not_equal(chunk.finish, SL_FINISH_ERROR);
            for (size_t k = 0; k < chunk.n_tokens; k++, n++) {
                assert_true(n < n_out);
                out->ids[i][n] = chunk.tokens[k].id;
                out->logprobs[i][n] = chunk.tokens[k].logprob;
            }
        }
    }
    assert_int_equal(n, n_out);
    sl_request_release(req);
}

/* So often all prompts, at once or one after the other, n_out tokens of each. want NULL: nothing is
 * compared. */
static struct sl_stats run_so(struct sl_engine_config cfg, int n_times, bool at_once, int32_t n_out,
                              const struct outcome *want, struct outcome *got, const char *what)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    struct sl_stats stats;
    struct sl_request *reqs[N_PROMPTS];
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s: %s", what, err.msg);
    for (int t = 0; t < n_times; t++) {
        memset(got, 0, sizeof *got);
        for (int i = 0; i < N_PROMPTS; i++)
            reqs[i] = at_once ? submit(eng, i, n_out) : NULL;
        for (int i = 0; i < N_PROMPTS; i++)
            collect(at_once ? reqs[i] : submit(eng, i, n_out), i, n_out, got);
        for (int i = 0; i < N_PROMPTS && want != NULL; i++)
            if (memcmp(got->ids[i], want->ids[i], sizeof got->ids[i]) != 0 ||
                memcmp(got->logprobs[i], want->logprobs[i], sizeof got->logprobs[i]) != 0)
                fail_msg("%s: prompt %d of %d tokens, time %d: bits differ", what, i, lengths[i],
                         t);
    }
    sl_engine_stats(eng, &stats);
    assert_int_equal(stats.step_mallocs, 0);
    assert_int_equal(stats.invariant_violations, 0);
    assert_int_equal(stats.n_pages_free + stats.n_pages_cached, stats.n_pages);
    sl_engine_destroy(eng);
    return stats;
}

static struct sl_stats run(struct sl_engine_config cfg, int n_times, const struct outcome *want,
                           struct outcome *got, const char *what)
{
    return run_so(cfg, n_times, true, N_OUT, want, got, what);
}

static struct sl_engine_config config_of(const char *model, int32_t n_ranks, int32_t kv_ranks)
{
    return (struct sl_engine_config){.model = model,
                                     .device = "cpu",
                                     .tensor_parallel_size = n_ranks,
                                     .decode_context_parallel_size = kv_ranks,
                                     .n_threads = n_ranks,
                                     .max_num_seqs = 4,
                                     .max_model_len = MAX_LEN};
}

static void test_bits(void **state)
{
    static const struct {
        int32_t n_ranks, kv_ranks, chunk, families; /* the first so many */
    } cases[] = {{2, 2, 512, 3}, {2, 2, 7, 1}, {4, 4, 64, 2}};
    (void)state;
    for (size_t f = 0; f < SL_COUNT(families); f++) {
        static struct outcome want, got;
        const char *model = write_model(&families[f]);
        struct sl_engine_config cfg = config_of(model, 1, 1);
        cfg.no_prefix_caching = true;
        (void)run(cfg, 1, NULL, &want, "one rank");
        for (size_t i = 0; i < SL_COUNT(cases); i++) {
            char what[120];
            if ((int32_t)f >= cases[i].families)
                continue;
            snprintf(what, sizeof what, "%s, %d ranks by %d, chunks of %d", families[f].name,
                     cases[i].n_ranks, cases[i].kv_ranks, cases[i].chunk);
            cfg = config_of(model, cases[i].n_ranks, cases[i].kv_ranks);
            cfg.max_num_batched_tokens = cases[i].chunk;
            cfg.max_num_seqs = SL_MIN(cases[i].chunk, 4);
            const struct sl_stats s = run(cfg, 2, &want, &got, what);
            assert_true(s.prompt_tokens_cached >= 1024); /* of the longest prompt */
        }
    }
}

/* Four blocks: an answer that goes on into a third one has to wait for the other's two. */
static void test_preemption(void **state)
{
    (void)state;
    static struct outcome want, got;
    struct sl_error err = {0};
    struct sl_engine *probe = NULL;
    const char *model = write_model(&families[0]);
    struct sl_engine_config cfg = config_of(model, 1, 1);
    (void)run_so(cfg, 1, true, LONG_OUT, NULL, &want, "one rank");
    cfg = config_of(model, 2, 2);
    if (sl_engine_create(&cfg, &probe, &err) != 0)
        fail_msg("%s", err.msg);
    cfg.kv_cache_bytes = sl_engine_info(probe)->kv_bytes_per_token * 512 * 4;
    sl_engine_destroy(probe);
    const struct sl_stats s = run_so(cfg, 1, true, LONG_OUT, &want, &got, "preemption");
    assert_true(s.preemptions > 0);
    cfg.kv_cache_bytes = 0;
    (void)run(config_of(model, 1, 1), 1, NULL, &want, "one rank");
    cfg.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":4,"
                             "\"prompt_lookup_max\":3,\"prompt_lookup_min\":1}";
    cfg.max_itl_ms = -1;
    const struct sl_stats d = run(cfg, 2, &want, &got, "drafts");
    assert_true(d.n_draft_tokens > 0);
    char drafter[300]; /* itself, whole on rank 0 */
    snprintf(drafter, sizeof drafter,
             "{\"method\":\"draft_model\",\"num_speculative_tokens\":3,\"model\":\"%s\"}", model);
    cfg.speculative_config = drafter;
    const struct sl_stats m = run(cfg, 1, &want, &got, "a model that drafts");
    assert_true(m.n_accepted_tokens > 0);
}

/* Pages go to host memory and come back, as parts of all ranks. */
static void test_tiers(void **state)
{
    (void)state;
    static struct outcome want, got;
    struct sl_error err = {0};
    struct sl_engine *probe = NULL;
    const char *model = write_model(&families[0]);
    struct sl_engine_config cfg = config_of(model, 1, 1);
    (void)run(cfg, 1, NULL, &want, "one rank");
    cfg = config_of(model, 4, 2);
    cfg.max_num_seqs = 1;
    cfg.max_model_len = 3 * 512;
    if (sl_engine_create(&cfg, &probe, &err) != 0)
        fail_msg("%s", err.msg);
    cfg.kv_cache_bytes = sl_engine_info(probe)->kv_bytes_per_token * 512 * 3;
    sl_engine_destroy(probe);
    const struct sl_stats before = run_so(cfg, 3, false, N_OUT, &want, &got, "no tier");
    cfg.kv_offloading_size = 0.1f;
    const struct sl_stats s = run_so(cfg, 3, false, N_OUT, &want, &got, "tier");
    assert_true(s.prompt_tokens_cached > before.prompt_tokens_cached);
}

/* All ranks together have as many bytes of a token as one rank alone. Of latent attention each has
 * all of them, unless they divide positions. */
static void test_memory(void **state)
{
    static const int32_t parts[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 4}, {4, 2}};
    uint64_t bytes[SL_COUNT(parts)];
    (void)state;
    for (size_t f = 0; f < SL_COUNT(families); f += 2) {
        const char *model = write_model(&families[f]);
        const bool latent = f == 2;
        for (size_t i = 0; i < SL_COUNT(parts); i++) {
            struct sl_engine_config cfg = config_of(model, parts[i][0], parts[i][1]);
            struct sl_error err = {0};
            struct sl_engine *eng = NULL;
            if (sl_engine_create(&cfg, &eng, &err) != 0)
                fail_msg("%s", err.msg);
            const struct sl_model_info *info = sl_engine_info(eng);
            assert_int_equal(info->n_kv_ranks, parts[i][1]);
            assert_int_equal(info->block_size, parts[i][1] > 1 ? 256 * parts[i][1] : 16);
            bytes[i] = info->kv_bytes_per_token;
            sl_engine_destroy(eng);
            assert_int_equal(bytes[i],
                             bytes[0] * (uint64_t)(latent ? parts[i][0] / parts[i][1] : 1));
        }
    }
}

static void refuse(struct sl_engine_config cfg, const char *want)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    cfg.device = cfg.device != NULL ? cfg.device : "cpu";
    if (sl_engine_create(&cfg, &eng, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
}

static void test_refused(void **state)
{
    (void)state;
    refuse((struct sl_engine_config){.decode_context_parallel_size = 2}, "there is one rank");
    refuse((struct sl_engine_config){.decode_context_parallel_size = 9, .tensor_parallel_size = 2},
           "9 is not between 1 and 8");
    refuse((struct sl_engine_config){.decode_context_parallel_size = -1, .tensor_parallel_size = 2},
           "-1 is not between 1 and 8");
    refuse((struct sl_engine_config){.decode_context_parallel_size = 3, .tensor_parallel_size = 2},
           "3 does not divide the 2 ranks");
    refuse((struct sl_engine_config){.decode_context_parallel_size = 2,
                                     .tensor_parallel_size = 2,
                                     .block_size = 64},
           "a rank has 256 tokens of a block, not 64");
    refuse((struct sl_engine_config){.decode_context_parallel_size = 2,
                                     .tensor_parallel_size = 2,
                                     .skip_softmax_threshold_scale_factor = 100},
           "cannot skip tiles");
    refuse((struct sl_engine_config){.decode_context_parallel_size = 2,
                                     .tensor_parallel_size = 2,
                                     .sparse_topk_pages = 16},
           "cannot choose pages");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_bits),    cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
