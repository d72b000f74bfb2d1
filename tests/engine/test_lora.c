/* SPDX-License-Identifier: MIT
 * Adapters in an engine: a request's bits do not depend on who else has which adapter, cached
 * prefixes belong to one adapter, and adapters come and go while requests run.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "models/model.h"
#include "synth/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ADAPTERS = 5, N_REQUESTS = 18, N_PROMPT = 48, N_OUT = 12 };

static char folder[] = "/tmp/sl_test_lora_XXXXXX";
static char model_path[128];

struct outcome {
    int32_t n;
    int32_t ids[N_OUT];
    float logprobs[N_OUT];
    int32_t n_cached;
};

static const char *path_of(int i, char *out, size_t n)
{
    snprintf(out, n, "%s/a%d", folder, i);
    return out;
}

static void write_adapter(int i, uint64_t seed, int32_t rank)
{
    struct sl_ckpt *ckpt;
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    char path[128];
    struct sl_synth_lora spec = {
        .rank = rank, .alpha = 16, .size = 0.5, .dtype = SL_DTYPE_BF16, .seed = seed};
    if (sl_ckpt_open(model_path, &ckpt, &err) != 0 || sl_model_open(ckpt, &m, &err) != 0 ||
        sl_synth_lora_write(m, &spec, path_of(i, path, sizeof path), &err) != 0)
        fail_msg("%s", err.msg);
    sl_model_close(m);
    sl_ckpt_close(ckpt);
}

static int setup(void **state)
{
    struct sl_error err = {0};
    struct sl_synth s = {.name = "llama", .dtype = SL_DTYPE_BF16, .seed = 3, .byte_vocab = true};
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(model_path, sizeof model_path, "%s/model", folder);
    if (sl_synth_shape(s.name, "tiny", &s.hp, &err) != 0)
        return -1;
    s.hp.n_vocab = 320;
    s.hp.n_heads = 8; /* heads and key heads for four ranks */
    s.hp.n_kv_heads = 4;
    if (sl_synth_write(&s, model_path, &err) != 0) {
        printf("%s\n", err.msg);
        return -1;
    }
    for (int i = 0; i < N_ADAPTERS; i++)
        write_adapter(i, (uint64_t)i, 1 + 5 * i);
    return 0;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static struct sl_engine *start(struct sl_engine_config cfg)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    cfg.model = model_path;
    cfg.device = "cpu";
    cfg.enable_lora = true;
    cfg.max_lora_rank = cfg.max_lora_rank != 0 ? cfg.max_lora_rank : 32;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    return eng;
}

static void load(struct sl_engine *eng, const char *name, int i, bool replace)
{
    struct sl_error err = {0};
    char path[128];
    if (sl_adapter_load(eng, name, path_of(i, path, sizeof path), replace, &err) != 0)
        fail_msg("%s", err.msg);
}

static void load_all(struct sl_engine *eng)
{
    for (int i = 0; i < N_ADAPTERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        load(eng, name, i, false);
    }
}

/* Request r has adapter r % (N_ADAPTERS + 1), the last of which is none. All begin alike. */
static struct sl_request *submit_as(struct sl_engine *eng, int r, const char *name, float scale)
{
    struct sl_error err = {0};
    struct sl_request *req = NULL;
    int32_t ids[N_PROMPT];
    struct sl_rng rng = {.seed = (uint64_t)r};
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = i < 34 ? i * 7 % 256 : (int32_t)sl_rng_below(&rng, 256);
    struct sl_request_desc desc = {
        .prompt = ids, .n_prompt = N_PROMPT - r % 3, .adapter_scale = scale};
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = N_OUT;
    desc.sampling.ignore_eos = true;
    desc.sampling.logprobs = 0;
    desc.sampling.temperature = r % 2 == 0 ? 0.0f : 0.8f;
    desc.sampling.has_seed = true;
    desc.sampling.seed = (uint64_t)r;
    if (name != NULL && sl_adapter_open(eng, name, true, &desc.adapter, &err) != 0)
        fail_msg("%s", err.msg);
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("%s", err.msg);
    sl_adapter_release(desc.adapter);
    return req;
}

static struct sl_request *submit(struct sl_engine *eng, int r)
{
    char name[8];
    int a = r % (N_ADAPTERS + 1);
    snprintf(name, sizeof name, "a%d", a);
    return submit_as(eng, r, a < N_ADAPTERS ? name : NULL, r % 4 == 1 ? 0.5f : 1.0f);
}

static void collect(struct sl_request *req, struct outcome *out)
{
    struct sl_chunk chunk;
    struct sl_usage u;
    memset(out, 0, sizeof *out);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1) {
            assert_int_not_equal(chunk.finish, SL_FINISH_ERROR);
            for (size_t k = 0; k < chunk.n_tokens; k++, out->n++) {
                out->ids[out->n] = chunk.tokens[k].id;
                out->logprobs[out->n] = chunk.tokens[k].logprob;
            }
        }
    }
    assert_int_equal(out->n, N_OUT);
    sl_request_usage(req, &u);
    out->n_cached = u.n_cached;
    sl_request_release(req);
}

static bool same(const struct outcome *a, const struct outcome *b)
{
    return memcmp(a->ids, b->ids, sizeof a->ids) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) == 0;
}

static struct outcome alone[N_REQUESTS];

static void run_alone(void)
{
    struct sl_engine *eng = start((struct sl_engine_config){
        .max_num_seqs = 1, .no_prefix_caching = true, .n_threads = 1, .max_cpu_loras = 8});
    load_all(eng);
    for (int r = 0; r < N_REQUESTS; r++)
        collect(submit(eng, r), &alone[r]);
    sl_engine_destroy(eng);
    for (int r = 1; r <= N_ADAPTERS; r++)
        assert_false(same(&alone[r], &alone[0]));
}

static void run_mixed(struct sl_engine_config cfg, const char *what)
{
    struct sl_request *reqs[N_REQUESTS];
    struct outcome got;
    struct sl_stats stats;
    struct sl_engine *eng = start(cfg);
    load_all(eng);
    for (int round = 0; round < 2; round++) {
        for (int r = 0; r < N_REQUESTS; r++)
            reqs[r] = submit(eng, r);
        for (int r = 0; r < N_REQUESTS; r++) {
            collect(reqs[r], &got);
            if (!same(&got, &alone[r]))
                fail_msg("%s: request %d, round %d: bits differ", what, r, round);
        }
    }
    sl_engine_stats(eng, &stats);
    assert_int_equal(stats.step_mallocs, 0);
    assert_int_equal(stats.invariant_violations, 0);
    sl_engine_destroy(eng);
}

static void mixed_batches(void **state)
{
    (void)state;
    run_alone();
    run_mixed((struct sl_engine_config){.max_num_seqs = 32, .max_cpu_loras = 8}, "all at once");
    run_mixed((struct sl_engine_config){.max_num_seqs = 7, .max_num_batched_tokens = 13}, "chunks");
    run_mixed((struct sl_engine_config){.max_loras = 1, .max_cpu_loras = 5}, "one at a time");
    run_mixed((struct sl_engine_config){.max_loras = 2, .max_cpu_loras = 5, .n_threads = 3},
              "two at a time");
    run_mixed(
        (struct sl_engine_config){
            .max_num_seqs = 16, .kv_cache_bytes = 1 << 20, .max_model_len = 64, .max_cpu_loras = 8},
        "few pages");
}

/* Ranks have the rows of B that are theirs. */
static void ranks(void **state)
{
    (void)state;
    run_mixed((struct sl_engine_config){.tensor_parallel_size = 2, .max_cpu_loras = 8}, "2 ranks");
    run_mixed((struct sl_engine_config){.tensor_parallel_size = 4,
                                        .max_loras = 2,
                                        .max_cpu_loras = 5,
                                        .max_num_batched_tokens = 13},
              "4 ranks, two at a time");
}

/* A prefix is found again by the same adapter with the same factor only. */
static void cache_is_keyed(void **state)
{
    struct sl_engine *eng = start((struct sl_engine_config){.max_cpu_loras = 8});
    struct outcome got;
    (void)state;
    load_all(eng);
    collect(submit_as(eng, 0, "a0", 1), &got);
    assert_int_equal(got.n_cached, 0);
    collect(submit_as(eng, 3, "a0", 1), &got);
    assert_int_equal(got.n_cached, 32);
    collect(submit_as(eng, 3, "a1", 1), &got);
    assert_int_equal(got.n_cached, 0);
    collect(submit_as(eng, 3, NULL, 1), &got);
    assert_int_equal(got.n_cached, 0);
    collect(submit_as(eng, 3, "a0", 0.5f), &got);
    assert_int_equal(got.n_cached, 0);
    collect(submit_as(eng, 3, "a1", 0), &got); /* as without */
    assert_int_equal(got.n_cached, 32);
    load(eng, "a0", 1, true); /* another content under the same name */
    collect(submit_as(eng, 3, "a0", 1), &got);
    assert_int_equal(got.n_cached, 0);
    collect(submit_as(eng, 6, "a0", 1), &got);
    assert_int_equal(got.n_cached, 32);
    sl_engine_destroy(eng);
}

/* Requests keep what they began with. */
static void unloaded_while_running(void **state)
{
    struct sl_engine *eng = start((struct sl_engine_config){.max_num_seqs = 1, .max_cpu_loras = 8});
    struct sl_request *reqs[3];
    struct outcome got;
    struct sl_error err;
    struct sl_adapter *a;
    (void)state;
    load_all(eng);
    for (int i = 0; i < 3; i++)
        reqs[i] = submit_as(eng, 0, "a0", 1); /* one runs, two wait */
    load(eng, "a0", 1, true);
    struct sl_request *late = submit_as(eng, 0, "a0", 1);
    assert_int_equal(sl_adapter_unload(eng, "a0", &err), 0);
    assert_int_equal(sl_adapter_unload(eng, "a0", &err), SL_ENOTFOUND);
    assert_int_equal(sl_adapter_open(eng, "a0", true, &a, &err), SL_ENOTFOUND);
    for (int i = 0; i < 3; i++) {
        collect(reqs[i], &got);
        assert_true(same(&got, &alone[0]));
    }
    collect(late, &got);
    assert_false(same(&got, &alone[0]));
    struct sl_request *open = submit_as(eng, 0, "a1", 1);
    sl_engine_destroy(eng); /* a request may outlive its engine, and so does its adapter */
    sl_request_release(open);
}

/* What gave way in memory is read again, unless the files are others by now. */
static void memory_is_bounded(void **state)
{
    struct sl_engine *eng =
        start((struct sl_engine_config){.max_loras = 2, .max_cpu_loras = 2, .max_num_seqs = 4});
    struct sl_error err = {0};
    struct sl_adapter *a[3];
    struct outcome got;
    struct sl_stats stats;
    (void)state;
    load_all(eng);
    sl_engine_stats(eng, &stats);
    assert_int_equal(stats.n_adapters, N_ADAPTERS);
    assert_int_equal(stats.n_adapters_resident, 2);
    assert_int_equal(stats.adapter_evictions, N_ADAPTERS - 2);
    assert_int_equal(sl_adapter_open(eng, "a0", false, &a[0], &err), 0);
    assert_null(a[0]); /* would have to be read */
    collect(submit_as(eng, 0, "a0", 1), &got);
    assert_true(same(&got, &alone[0]));
    assert_int_equal(sl_adapter_open(eng, "a0", false, &a[0], &err), 0);
    assert_non_null(a[0]);
    assert_int_equal(sl_adapter_open(eng, "a1", true, &a[1], &err), 0);
    assert_int_equal(sl_adapter_open(eng, "a2", true, &a[2], &err), SL_EBUSY);
    sl_adapter_release(a[1]);
    assert_int_equal(sl_adapter_open(eng, "a2", true, &a[2], &err), 0);
    sl_adapter_release(a[0]);
    sl_adapter_release(a[2]);
    write_adapter(3, 77, 16);
    assert_int_equal(sl_adapter_open(eng, "a3", true, &a[0], &err), SL_EFORMAT);
    assert_non_null(strstr(err.msg, "have changed"));
    assert_int_equal(sl_adapter_load(eng, "a3", "x", false, &err), SL_EINVAL);
    load(eng, "a3", 3, true);
    assert_int_equal(sl_adapter_open(eng, "a3", true, &a[0], &err), 0);
    sl_adapter_release(a[0]);
    sl_engine_destroy(eng);
    write_adapter(3, 3, 16);
}

/* The weights are given up and read again: adapters that were in memory, and those that have to be
 * read, go on with the bits they had. */
static void adapters_outlast_a_sleep(void **state)
{
    struct sl_engine *eng =
        start((struct sl_engine_config){.max_loras = 2, .max_cpu_loras = 2, .max_num_seqs = 4});
    struct sl_error err = {0};
    struct outcome got;
    char path[128];
    (void)state;
    load_all(eng);
    for (int level = 1; level <= 2; level++) {
        assert_int_equal(sl_engine_sleep(eng, level, false, 5000, &err), 0);
        const int rc = sl_adapter_load(eng, "late", path_of(0, path, sizeof path), true, &err);
        assert_int_equal(rc, level == 1 ? 0 : SL_EASLEEP);
        assert_int_equal(sl_engine_wake(eng, &err), 0);
        for (int i = 0; i < 3; i++) {
            collect(submit(eng, i), &got);
            assert_true(same(&got, &alone[i]));
        }
        load(eng, "late", 0, true);
        collect(submit_as(eng, 0, "late", 1), &got);
        assert_true(same(&got, &alone[0]));
    }
    sl_engine_destroy(eng);
}

static void refusals(void **state)
{
    struct sl_error err = {0};
    struct sl_engine *eng = start((struct sl_engine_config){.max_lora_rank = 8}), *plain = NULL;
    char path[128];
    struct sl_adapter *a;
    (void)state;
    assert_int_equal(sl_adapter_load(eng, "big", path_of(4, path, sizeof path), false, &err),
                     SL_ELIMIT);
    assert_non_null(strstr(err.msg, "max-lora-rank 8"));
    assert_int_equal(sl_adapter_load(eng, "", path, false, &err), SL_EINVAL);
    assert_int_equal(sl_adapter_load(eng, "none", "/nowhere", false, &err), SL_ENOTFOUND);
    sl_engine_destroy(eng);
    struct sl_engine_config cfg = {.model = model_path, .device = "cpu"};
    assert_int_equal(sl_engine_create(&cfg, &plain, &err), 0);
    assert_int_equal(sl_adapter_load(plain, "a", path, false, &err), SL_EUNSUPPORTED);
    assert_int_equal(sl_adapter_open(plain, "a", true, &a, &err), SL_ENOTFOUND);
    sl_engine_destroy(plain);
    cfg.enable_lora = true;
    cfg.max_loras = 4;
    cfg.max_cpu_loras = 3;
    assert_int_equal(sl_engine_create(&cfg, &plain, &err), SL_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_batches),     cmocka_unit_test(ranks),
        cmocka_unit_test(cache_is_keyed),    cmocka_unit_test(unloaded_while_running),
        cmocka_unit_test(memory_is_bounded), cmocka_unit_test(adapters_outlast_a_sleep),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("adapters", tests, setup, teardown);
}
