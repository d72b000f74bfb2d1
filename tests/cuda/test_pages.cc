/* SPDX-License-Identifier: MIT
 * KV pages outside the device, mostly of the simulated one, through the public API: what a request
 * gets must not change by a bit when its prefix was evicted from a small pool and comes back from
 * host memory, or from a folder after a restart, whatever of it was lost or changed there.
 *
 * The simulator's streams run when something waits for them, and otherwise a random part of them:
 * a copy that is not ordered behind the step that fills its page, or before the one that reads it,
 * gives other bits here.
 */
#include <cuda_runtime.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include "base/check.h"
#include "base/sys.h"
#include "sluice.h"

#include <cmocka.h>
}

enum { N_PROMPTS = 7, N_OUT = 4, BLOCK = 16, CONTEXT = 128, N_BLOCKS = 12, N_STATES = 6 };

/* Layers that see everything, windows, states beside attention and alone; on a device more. */
static const char *const models[] = {"qwen3",        "gemma2", "qwen3_5",
                                     "mamba2",
#ifndef SL_CUDA_SIM
                                     "gemma3",       "lfm2",   "bamba",
                                     "gpt_oss_mxfp4"
#endif
};

static void must(int rc, const struct sl_error *err, const char *what)
{
    if (rc != 0)
        fail_msg("%s: %s", what, err->msg);
}

/* ------------------------------------------------------------------ models and folders */

static void write_file(const std::string &path, const void *data, size_t n)
{
    FILE *f = fopen(path.c_str(), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The goldens do without a tokenizer, which the engine wants. */
static std::string model_path(const char *name)
{
    static const char tokenizer[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[]}";
    const std::string from = std::string("tests/golden/models/") + name;
    const std::string to = std::string("build/testdata/models/cuda_pages_") + name;
    for (const char *folder : {"build", "build/testdata", "build/testdata/models", to.c_str()})
        mkdir(folder, 0777);
    for (const char *file : {"/config.json", "/model.safetensors"}) {
        struct sl_error err = {};
        char *data = nullptr;
        size_t n = 0;
        must(sl_read_file((from + file).c_str(), 1 << 24, &data, &n, &err), &err, name);
        write_file(to + file, data, n);
        sl_free(data);
    }
    write_file(to + "/tokenizer.json", tokenizer, sizeof tokenizer - 1);
    return to;
}

static std::vector<std::string> files_of(const std::string &folder)
{
    std::vector<std::string> out;
    DIR *dir = opendir(folder.c_str());
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != nullptr;)
        if (e->d_name[0] != '.')
            out.push_back(folder + "/" + e->d_name);
    closedir(dir);
    std::sort(out.begin(), out.end());
    return out;
}

static std::string new_folder(void)
{
    char name[] = "/tmp/sluice_pages_XXXXXX";
    assert_non_null(mkdtemp(name));
    return name;
}

static void remove_folder(const std::string &folder)
{
    for (const std::string &f : files_of(folder))
        unlink(f.c_str());
    assert_int_equal(rmdir(folder.c_str()), 0);
}

/* ------------------------------------------------------------------ runs */

struct outcome {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    int32_t n_cached = 0;

    bool operator==(const outcome &o) const
    {
        return ids == o.ids && logprobs.size() == o.logprobs.size() &&
               memcmp(logprobs.data(), o.logprobs.data(), logprobs.size() * sizeof(float)) == 0;
    }
};

/* Some share a beginning, one ends a block, some go on where another one ends. */
static std::vector<int32_t> prompt_of(int i)
{
    static const int lengths[N_PROMPTS] = {40, 75, 91, 80, 57, 100, 33};
    std::vector<int32_t> ids;
    for (int k = 0; k < lengths[i]; k++) {
        const int of = k < 35 && i % 2 == 0 ? 0 : i % 3 == 2 && k < lengths[i - 1] ? i - 1 : i;
        ids.push_back((of * 101 + k * k * 7 + k * 3 + 5) % 91);
    }
    return ids;
}

static struct sl_request *submit(struct sl_engine *eng, int i)
{
    struct sl_error err = {};
    struct sl_request *req = nullptr;
    struct sl_request_desc d = {};
    const std::vector<int32_t> prompt = prompt_of(i);
    d.prompt = prompt.data();
    d.n_prompt = static_cast<int32_t>(prompt.size());
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = N_OUT;
    d.sampling.ignore_eos = true;
    d.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    d.sampling.has_seed = true;
    d.sampling.seed = static_cast<uint64_t>(i) * 7919;
    d.sampling.logprobs = 0;
    must(sl_request_submit(eng, &d, &req, &err), &err, "submit");
    return req;
}

static outcome collect(struct sl_request *req)
{
    outcome o;
    struct sl_chunk c;
    struct sl_usage u;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &c) == 1) {
            if (c.finish == SL_FINISH_ERROR)
                fail_msg("%s", sl_request_error(req)->msg);
            for (size_t k = 0; k < c.n_tokens; k++) {
                o.ids.push_back(c.tokens[k].id);
                o.logprobs.push_back(c.tokens[k].logprob);
            }
        }
    }
    sl_request_usage(req, &u);
    o.n_cached = u.n_cached;
    assert_int_equal(o.ids.size(), N_OUT);
    sl_request_release(req);
    return o;
}

static struct sl_engine *open_engine(const std::string &path, const struct sl_engine_config &cfg)
{
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    must(sl_engine_create(&cfg, &eng, &err), &err, path.c_str());
    return eng;
}

static struct sl_engine_config config_of(const std::string &path)
{
    struct sl_engine_config cfg = {};
    cfg.model = path.c_str();
    cfg.device = "cuda:0";
    cfg.n_threads = 1;
    cfg.max_num_seqs = 3;
    cfg.block_size = BLOCK;
    cfg.max_model_len = CONTEXT;
    cfg.max_num_batched_tokens = 64;
    cfg.kv_cache_bytes = 4u << 20;
    return cfg;
}

/* A pool that has room for a quarter of all prompts, and host memory for everything. */
static struct sl_engine_config small_pool(const std::string &path)
{
    struct sl_engine_config cfg = config_of(path);
    struct sl_engine *eng = open_engine(path, cfg);
    const struct sl_model_info *info = sl_engine_info(eng);
    cfg.kv_cache_bytes = 0;
    for (int32_t g = 0; g < info->n_kv_groups; g++) {
        const struct sl_kv_group_info *group = &info->kv_groups[g];
        cfg.kv_cache_bytes += group->page_bytes * (group->state ? N_STATES : N_BLOCKS);
        cfg.max_state_slots = group->state ? N_STATES : cfg.max_state_slots;
    }
    sl_engine_destroy(eng);
    cfg.kv_offloading_size = 0.0625f;
    return cfg;
}

static void close_engine(struct sl_engine *eng, struct sl_stats *s)
{
    sl_engine_stats(eng, s);
    assert_int_equal(s->step_mallocs, 0);
    assert_int_equal(s->invariant_violations, 0);
    sl_engine_destroy(eng);
}

static std::vector<outcome> computed(const std::string &path)
{
    struct sl_engine_config cfg = config_of(path);
    std::vector<outcome> out;
    struct sl_stats s;
    cfg.no_prefix_caching = true;
    struct sl_engine *eng = open_engine(path, cfg);
    for (int i = 0; i < N_PROMPTS; i++)
        out.push_back(collect(submit(eng, i)));
    close_engine(eng, &s);
    return out;
}

/* One after another or all at once. */
static void expect(struct sl_engine *eng, const std::vector<outcome> &want, bool together,
                   const std::string &what)
{
    std::vector<struct sl_request *> reqs;
    for (int i = 0; together && i < N_PROMPTS; i++)
        reqs.push_back(submit(eng, i));
    for (int i = 0; i < N_PROMPTS; i++) {
        const outcome o = collect(together ? reqs[static_cast<size_t>(i)] : submit(eng, i));
        if (!(o == want[static_cast<size_t>(i)]))
            fail_msg("%s, prompt %d (%d tokens cached): not the bits that are computed",
                     what.c_str(), i, o.n_cached);
    }
}

static void seed(uint64_t n)
{
#ifdef SL_CUDA_SIM
    sl_sim_seed(n);
#else
    (void)n;
#endif
}

/* ------------------------------------------------------------------ tests */

static void prefixes_come_back_from_host_memory(void **)
{
    for (const char *name : models) {
        const std::string path = model_path(name);
        const std::vector<outcome> want = computed(path);
        struct sl_engine_config cfg = small_pool(path);
        for (int round = 0; round < (name == models[0] ? 3 : 1); round++) {
            struct sl_stats s;
            seed(100 + static_cast<uint64_t>(round));
            cfg.kv_offloading_size = round == 1 ? 0.2f : 0.0625f; /* several pieces are pinned */
            struct sl_engine *eng = open_engine(path, cfg);
            expect(eng, want, true, std::string(name) + ", all at once");
            expect(eng, want, false, std::string(name) + ", one after another");
            expect(eng, want, true, std::string(name) + ", once more");
            close_engine(eng, &s);
            printf("%-8s %d blocks: %llu of %llu tokens came from host memory, %llu pages stored\n",
                   name, s.n_pages, static_cast<unsigned long long>(s.tier_hits),
                   static_cast<unsigned long long>(s.tier_queries),
                   static_cast<unsigned long long>(s.kv_tiers[0].stored));
            assert_true(s.tier_hits > 64 && s.kv_tiers[0].stored > 5);
        }
    }
}

static void and_from_a_folder_after_a_restart(void **)
{
    for (const char *name : {"qwen3", "qwen3_5"}) {
        const std::string path = model_path(name), dir = new_folder();
        const std::vector<outcome> want = computed(path);
        struct sl_engine_config cfg = small_pool(path);
        struct sl_stats s;
        cfg.kv_cache_dir = dir.c_str();
        cfg.kv_cache_disk_size = 0.1f;
        struct sl_engine *eng = open_engine(path, cfg);
        expect(eng, want, true, std::string(name) + ", before");
        close_engine(eng, &s);
        eng = open_engine(path, cfg);
        expect(eng, want, false, std::string(name) + ", after a restart");
        close_engine(eng, &s);
        assert_true(s.kv_tiers[1].hits > 10 && s.tier_hits > 64);
        const uint64_t all = s.kv_tiers[1].hits;

        /* bytes of pages change: those are computed, the others found */
        for (const std::string &f : files_of(dir)) {
            struct sl_error err = {};
            char *data = nullptr;
            size_t n = 0;
            if (f.find(".slab") == std::string::npos)
                continue;
            must(sl_read_file(f.c_str(), 1 << 28, &data, &n, &err), &err, "slab");
            for (size_t at = n / 2; at < n; at += 9000)
                data[at] ^= 1;
            write_file(f, data, n);
            sl_free(data);
        }
        eng = open_engine(path, cfg);
        expect(eng, want, false, std::string(name) + ", changed");
        close_engine(eng, &s);
        printf("%-8s %llu pages found, of a changed folder %llu, %llu corrupt\n", name,
               static_cast<unsigned long long>(all),
               static_cast<unsigned long long>(s.kv_tiers[1].hits),
               static_cast<unsigned long long>(s.kv_tiers[1].corrupt));
        assert_true(s.kv_tiers[1].corrupt > 0 && s.kv_tiers[1].hits < all);

        /* the CPU has other bits, and pages of its own */
        cfg.device = "cpu";
        eng = open_engine(path, cfg);
        (void)collect(submit(eng, 1));
        close_engine(eng, &s);
        assert_int_equal(s.kv_tiers[1].hits, 0);
        remove_folder(dir);
    }
}

/* It is forgotten what was on the device, and found again from the store. */
static void pages_outlive_sleep(void **)
{
    const std::string path = model_path("qwen3");
    const std::vector<outcome> want = computed(path);
    struct sl_engine_config cfg = small_pool(path);
    struct sl_error err = {};
    struct sl_stats s;
    struct sl_engine *eng = open_engine(path, cfg);
    expect(eng, want, true, "before sleep");
    must(sl_engine_sleep(eng, 1, false, -1, &err), &err, "sleep");
    must(sl_engine_wake(eng, &err), &err, "wake");
    expect(eng, want, false, "after sleep");
    must(sl_engine_sleep(eng, 2, false, -1, &err), &err, "sleep");
    close_engine(eng, &s);
    assert_true(s.tier_hits > 64);
}

/* Requests that end while their pages are on the way. */
static void a_load_can_be_cancelled(void **)
{
    for (const char *name : {"qwen3", "qwen3_5"}) {
        const std::string path = model_path(name);
        const std::vector<outcome> want = computed(path);
        struct sl_engine_config cfg = small_pool(path);
        struct sl_stats s;
        struct sl_engine *eng = open_engine(path, cfg);
        expect(eng, want, true, "before");
        for (int round = 0; round < 12; round++) {
            struct sl_request *reqs[N_PROMPTS];
            for (int i = 0; i < N_PROMPTS; i++)
                reqs[i] = submit(eng, i);
            usleep(static_cast<useconds_t>(round * 700));
            for (int i = 0; i < N_PROMPTS; i += 2)
                sl_request_cancel(reqs[i]);
            for (int i = 0; i < N_PROMPTS; i++) {
                if (i % 2 == 0)
                    sl_request_release(reqs[i]);
                else if (!(collect(reqs[i]) == want[static_cast<size_t>(i)]))
                    fail_msg("%s: other bits beside requests that were cancelled", name);
            }
        }
        close_engine(eng, &s);
    }
}

#ifdef SL_CUDA_SIM
/* Host memory that cannot be pinned is used nevertheless; what cannot be pinned later is not. */
static void memory_may_not_be_pinned(void **)
{
    const std::string path = model_path("qwen3");
    const std::vector<outcome> want = computed(path);
    struct sl_engine_config cfg = small_pool(path);
    for (int nth = 1; nth <= 2; nth++) {
        struct sl_stats s;
        cfg.kv_offloading_size = 0.2f;
        sl_sim_fail_pin(nth);
        struct sl_engine *eng = open_engine(path, cfg);
        expect(eng, want, true, "not pinned");
        expect(eng, want, false, "not pinned, again");
        close_engine(eng, &s);
        assert_true(s.tier_hits > 64);
        sl_sim_fail_pin(0);
    }
}

/* Requests fail with an error of the device, whatever is on its way, and nothing is left. */
static void the_device_breaks(void **)
{
    const std::string path = model_path("qwen3");
    struct sl_engine_config cfg = small_pool(path);
    for (int nth = 40; nth < 2000; nth += 371) {
        struct sl_request *reqs[N_PROMPTS];
        int n_failed = 0;
        struct sl_engine *eng = open_engine(path, cfg);
        sl_sim_break_at(nth);
        for (int i = 0; i < N_PROMPTS; i++)
            reqs[i] = submit(eng, i);
        for (int i = 0; i < N_PROMPTS; i++) {
            struct sl_chunk c;
            while (!sl_request_done(reqs[i])) {
                sl_request_wait(reqs[i], 1000);
                while (sl_request_read(reqs[i], &c) == 1)
                    n_failed += c.finish == SL_FINISH_ERROR;
            }
            sl_request_release(reqs[i]);
        }
        printf("broken at kernel %d: %d of %d requests failed\n", nth, n_failed, N_PROMPTS);
        sl_engine_destroy(eng);
        sl_sim_repair();
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_come_back_from_host_memory),
        cmocka_unit_test(and_from_a_folder_after_a_restart),
        cmocka_unit_test(pages_outlive_sleep),
        cmocka_unit_test(a_load_can_be_cancelled),
#ifdef SL_CUDA_SIM
        cmocka_unit_test(memory_may_not_be_pinned),
        cmocka_unit_test(the_device_breaks),
#endif
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
