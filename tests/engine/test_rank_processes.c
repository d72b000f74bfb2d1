/* SPDX-License-Identifier: MIT
 * Ranks as real processes: an engine here, and this program started again for each other rank.
 *
 * Their bits are those of one rank, for every way of keeping weights and over both transports. Then
 * processes are killed and stopped under load: every request ends with one event and soon, the
 * engine says that a rank is lost, and answers with the same bits once it is started again. What
 * else connects to the port is refused
 * with a message, and changes nothing.
 */
#include "engine/rank_processes.h"

#include <arpa/inet.h>

#define N_KILLS       10 /* over each transport */
#define N_STAGE_KILLS 4

/* ---------------------------------------------------------------- bits */

static const struct variant variants[] = {
    {.name = "llama", .dtype = SL_DTYPE_BF16},
    {.name = "llama", .dtype = SL_DTYPE_Q8_0},
    {.name = "llama", .dtype = SL_DTYPE_Q4_K},
    {.name = "llama", .dtype = SL_DTYPE_FP8_E4M3, .scales = SL_SYNTH_BLOCK},
    {.name = "llama", .dtype = SL_DTYPE_INT4_G128, .int4 = SL_INT4_GPTQ_V1},
    {.name = "gemma3", .dtype = SL_DTYPE_BF16}, /* windows: two groups of pages */
    {.name = "qwen3moe", .dtype = SL_DTYPE_Q8_0},
    {.name = "qwen2moe", .dtype = SL_DTYPE_BF16}, /* a shared expert */
};

static void test_bits(void **state)
{
    (void)state;
    for (size_t v = 0; v < SL_COUNT(variants); v++) {
        struct outcome want;
        const char *model = write_model(&variants[v]);
        one_rank(model, &want);
        bits_of(model, 2, ROWS, "auto", &want);
        bits_of(model, 2, ROWS, "tcp", &want);
        if (v == 0 || v + 1 == SL_COUNT(variants)) {
            bits_of(model, 4, ROWS, "auto", &want);
            bits_of(model, 4, ROWS, "tcp", &want);
        }
        if (strstr(variants[v].name, "moe") != NULL) {
            bits_of(model, 2, EXPERTS, "tcp", &want);
            bits_of(model, 4, EXPERTS, "auto", &want);
            bits_of(model, 4, EXPERTS, "tcp", &want);
        }
    }
}

/* Prompts that are longer than one rank's stretch of positions. A process that divides other
 * things is refused. */
static void test_positions(void **state)
{
    static const struct variant some[] = {{.name = "llama", .dtype = SL_DTYPE_BF16},
                                          {.name = "gemma3", .dtype = SL_DTYPE_BF16},
                                          {.name = "deepseek_v2", .dtype = SL_DTYPE_BF16}};
    (void)state;
    longer = true;
    for (size_t v = 0; v < SL_COUNT(some); v++) {
        struct outcome want;
        const char *model = write_model(&some[v]);
        one_rank(model, &want);
        bits_of(model, 2, POSITIONS, "auto", &want);
        bits_of(model, 2, POSITIONS, "tcp", &want);
        if (v == 0) {
            bits_of(model, 4, POSITIONS, "auto", &want);
            bits_of(model, 4, POSITIONS, "tcp", &want);
        }
    }
    longer = false;
    const char *model = write_model(&some[0]);
    struct follower f = {.model = model, .port = free_port(), .parts = POSITIONS};
    const pid_t pid = follow(&f);
    struct sl_engine *eng = start_with(model, 2, POSITIONS, f.port, "auto", LONG_S);
    must_say(&(struct follower){.model = model, .port = f.port}, "tokens, positions by rank (");
    sl_engine_destroy(eng);
    assert_int_equal(end_of(pid), 0);
}

/* ---------------------------------------------------------------- places of experts */

/* The same bits until experts have been placed so many times more. */
static void run_placings(struct sl_engine *eng, uint64_t n, const struct outcome *want)
{
    struct outcome got;
    struct sl_stats st;
    sl_engine_stats(eng, &st);
    const uint64_t until = st.eplb.placings + n;
    for (int i = 0; st.eplb.placings < until; i++) {
        assert_true(i < 200);
        run_all(eng, &got);
        must_equal(&got, want, "with experts that move");
        sl_engine_stats(eng, &st);
    }
    assert_true(st.eplb.loaded > 0 && st.step_mallocs == 0);
}

/* Experts move at the same step in all processes; who was lost finds them where they are by then,
 * and goes on moving them. */
static void test_placed(void **state)
{
    static const struct variant skewed = {.name = "gpt-oss", .dtype = SL_DTYPE_BF16, .skew = 5};
    static const char *const transports[] = {"auto", "tcp"};
    const char *model = write_model(&skewed);
    struct outcome want;
    (void)state;
    one_rank(model, &want);
    for (int t = 0; t < 2; t++) {
        const int n = t == 0 ? 2 : 4, port = free_port();
        struct follower f[4] = {{.model = NULL}};
        pid_t pids[4];
        for (int i = 1; i < n; i++) {
            f[i] = (struct follower){.model = model,
                                     .port = port,
                                     .nodes = digits[n],
                                     .rank = digits[i],
                                     .parts = PLACED};
            pids[i] = follow(&f[i]);
        }
        struct sl_engine *eng = start_with(model, n, PLACED, port, transports[t], LONG_S);
        run_placings(eng, 2, &want);
        for (int i = 0; i < 2; i++) {
            kill(pids[n - 1], SIGKILL);
            (void)end_of(pids[n - 1]);
            assert_true(becomes(eng, SL_ERANK, 10));
            pids[n - 1] = follow(&f[n - 1]);
            assert_true(becomes(eng, 0, 20));
            run_placings(eng, 2, &want);
        }
        sl_engine_destroy(eng);
        for (int i = 1; i < n; i++)
            assert_int_equal(end_of(pids[i]), 0);
    }
}

/* ---------------------------------------------------------------- adapters */

enum { N_ADAPTERS = 3 }; /* more than have slots; prompt i has adapter i */

static const char *adapter_path(int i)
{
    static char path[64];
    snprintf(path, sizeof path, OUT "/processes_adapter_%d", i);
    return path;
}

static void write_adapters(const char *path)
{
    static const enum sl_dtype dtypes[N_ADAPTERS] = {SL_DTYPE_BF16, SL_DTYPE_F32, SL_DTYPE_F16};
    struct sl_ckpt *ckpt;
    struct sl_model *m;
    struct sl_error err = {0};
    if (sl_ckpt_open(path, &ckpt, &err) != 0 || sl_model_open(ckpt, &m, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < N_ADAPTERS; i++) {
        struct sl_synth_lora spec = {.rank = 3 + 6 * i,
                                     .alpha = 16,
                                     .size = 0.5,
                                     .dtype = dtypes[i],
                                     .targets = i == 1 ? "o_proj,up_proj,k_proj" : NULL,
                                     .seed = (uint64_t)i};
        if (sl_synth_lora_write(m, &spec, adapter_path(i), &err) != 0)
            fail_msg("%s", err.msg);
    }
    sl_model_close(m);
    sl_ckpt_close(ckpt);
}

static void run_adapted(struct sl_engine *eng, bool together, struct outcome *out)
{
    struct sl_request *reqs[N_PROMPTS];
    struct sl_error err;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < N_PROMPTS; i++) {
        char name[8];
        struct sl_adapter *a = NULL;
        snprintf(name, sizeof name, "a%d", i);
        if (sl_adapter_load(eng, name, adapter_path(i), false, &err) != 0 ||
            sl_adapter_open(eng, name, true, &a, &err) != 0)
            fail_msg("%s", err.msg);
        reqs[i] = submit_as(eng, i, N_OUT, a);
        sl_adapter_release(a);
        if (!together)
            collect(reqs[i], i, out);
    }
    for (int i = 0; i < N_PROMPTS; i++) {
        char name[8];
        if (together)
            collect(reqs[i], i, out);
        snprintf(name, sizeof name, "a%d", i);
        assert_int_equal(sl_adapter_unload(eng, name, &err), 0);
    }
}

static void adapted_bits_of(struct sl_engine_config cfg, int n, const char *transport,
                            const struct outcome *want)
{
    struct outcome got;
    struct follower f[4] = {{.model = NULL}};
    pid_t pids[4];
    cfg.master_port = free_port();
    cfg.nnodes = cfg.tensor_parallel_size = n;
    cfg.rank_transport = transport;
    for (int i = 1; i < n; i++) {
        f[i] = (struct follower){
            .model = cfg.model, .port = cfg.master_port, .nodes = digits[n], .rank = digits[i]};
        pids[i] = follow(&f[i]);
    }
    struct sl_engine *eng = start_as(cfg);
    for (int i = 0; i < 2; i++) { /* the second time under other ids */
        run_adapted(eng, true, &got);
        must_equal(&got, want, "with adapters");
    }
    kill(pids[1], SIGKILL); /* who comes back has no adapter */
    (void)end_of(pids[1]);
    assert_true(becomes(eng, SL_ERANK, 10));
    pids[1] = follow(&f[1]);
    assert_true(becomes(eng, 0, 20));
    run_adapted(eng, false, &got);
    must_equal(&got, want, "with adapters, behind a loss");
    sl_engine_destroy(eng);
    for (int i = 1; i < n; i++)
        assert_int_equal(end_of(pids[i]), 0);
}

static void test_adapters(void **state)
{
    (void)state;
    struct outcome want, plain;
    struct sl_engine_config cfg = {.model = write_model(&variants[0]),
                                   .device = "cpu",
                                   .enable_lora = true,
                                   .max_loras = 2,
                                   .max_cpu_loras = 8,
                                   .rank_timeout_s = LONG_S,
                                   .rank_start_s = 60,
                                   .max_num_batched_tokens = 48,
                                   .max_num_seqs = 8,
                                   .max_model_len = 512,
                                   .n_threads = 1};
    write_adapters(cfg.model);
    struct sl_engine *eng = start_as(cfg);
    run_adapted(eng, false, &want);
    run_all(eng, &plain);
    for (int i = 0; i < N_PROMPTS; i++) /* they say something */
        assert_memory_not_equal(want.logprobs[i], plain.logprobs[i], sizeof want.logprobs[i]);
    sl_engine_destroy(eng);
    adapted_bits_of(cfg, 2, "auto", &want);
    adapted_bits_of(cfg, 4, "tcp", &want);
}

/* ---------------------------------------------------------------- drafts */

/* A module drafts on rank 0, of hidden rows that all ranks keep. */
static void test_drafts(void **state)
{
    (void)state;
    static const struct variant mimo = {.name = "mimo", .dtype = SL_DTYPE_BF16, .mtp = true};
    struct outcome want, got;
    struct sl_stats stats;
    struct sl_engine_config cfg = {.model = write_model(&mimo),
                                   .device = "cpu",
                                   .rank_timeout_s = LONG_S,
                                   .rank_start_s = 60,
                                   .max_num_batched_tokens = 48,
                                   .max_num_seqs = 8,
                                   .max_model_len = 512,
                                   .max_itl_ms = -1,
                                   .n_threads = 1};
    one_rank(cfg.model, &want);
    cfg.speculative_config = "{\"method\":\"mtp\",\"num_speculative_tokens\":3}";
    cfg.nnodes = cfg.tensor_parallel_size = 2;
    cfg.master_port = free_port();
    struct follower f = {.model = cfg.model, .port = cfg.master_port};
    const pid_t pid = follow(&f);
    struct sl_engine *eng = start_as(cfg);
    for (int i = 0; i < 2; i++) {
        run_all(eng, &got);
        must_equal(&got, &want, "with drafts");
    }
    sl_engine_stats(eng, &stats);
    assert_true(stats.n_draft_tokens > 10);
    assert_int_equal(stats.step_mallocs, 0);
    sl_engine_destroy(eng);
    assert_int_equal(end_of(pid), 0);
}

/* ---------------------------------------------------------------- what differs */

/* Ranks divide experts in the same way, or do not meet. */
static void test_experts_differ(void **state)
{
    (void)state;
    const char *model = write_model(&variants[6]);
    struct follower f = {.model = model, .port = free_port(), .parts = EXPERTS};
    const pid_t pid = follow(&f);
    struct sl_engine *eng = start_with(model, 2, EXPERTS, f.port, "auto", LONG_S);
    must_say(&(struct follower){.model = model, .port = f.port}, "tokens, experts by rank (");
    sl_engine_destroy(eng);
    assert_int_equal(end_of(pid), 0);
}

/* ---------------------------------------------------------------- losses */

/* n times, process `rank` of n_nodes; after_us: at most. */
static void kills(const char *model, int n_nodes, enum parts parts, const char *transport, int n,
                  const struct outcome *want, struct sl_rng *rng)
{
    struct outcome got;
    struct follower f[4] = {{.model = NULL}};
    pid_t pids[4];
    const int port = free_port();
    for (int i = 1; i < n_nodes; i++) {
        f[i] = (struct follower){.model = model,
                                 .port = port,
                                 .nodes = digits[n_nodes],
                                 .rank = digits[i],
                                 .parts = parts};
        pids[i] = follow(&f[i]);
    }
    struct sl_engine *eng = start_with(model, n_nodes, parts, port, transport, LONG_S);
    int n_failed = 0;
    for (int k = 0; k < n; k++) {
        const int i = 1 + k % (n_nodes - 1);
        n_failed += strike(eng, pids[i], SIGKILL, (int)sl_rng_below(rng, 60000), 5);
        assert_int_equal(end_of(pids[i]), 128 + SIGKILL);
        pids[i] = follow(&f[i]);
        assert_true(becomes(eng, 0, 20));
        run_all(eng, &got);
        must_equal(&got, want, "after a kill");
    }
    printf("%d processes, %s: %d of %d requests met a kill\n", n_nodes, transport, n_failed,
           n * N_LOADED);
    assert_true(n_failed >= n); /* most came in time */
    struct sl_stats s;
    sl_engine_stats(eng, &s);
    assert_int_equal(s.step_mallocs, 0);
    assert_int_equal(s.invariant_violations, 0);
    sl_engine_destroy(eng);
    for (int i = 1; i < n_nodes; i++)
        assert_int_equal(end_of(pids[i]), 0);
}

static void test_kills(void **state)
{
    (void)state;
    struct outcome want;
    struct sl_rng rng = {.seed = 28};
    const char *model = write_model(&variants[0]);
    one_rank(model, &want);
    kills(model, 2, ROWS, "auto", N_KILLS, &want, &rng);
    kills(model, 2, ROWS, "tcp", N_KILLS, &want, &rng);
}

/* ---------------------------------------------------------------- stages */

static const struct variant staged[] = {
    {.name = "llama", .dtype = SL_DTYPE_BF16, .n_layers = 5},
    {.name = "gemma3", .dtype = SL_DTYPE_BF16, .n_layers = 6}, /* a stage without full layers */
    {.name = "qwen3moe", .dtype = SL_DTYPE_Q8_0, .n_layers = 4},
    {.name = "lfm2", .dtype = SL_DTYPE_BF16}, /* states, which ranks cannot divide */
};

static void test_stages(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 29};
    for (size_t v = 0; v < SL_COUNT(staged); v++) {
        struct outcome want;
        const char *model = write_model(&staged[v]);
        one_rank(model, &want);
        bits_of(model, 2, LAYERS, v % 2 == 0 ? "auto" : "tcp", &want);
        bits_of(model, v < 2 ? 4 : 3, LAYERS, v % 2 == 0 ? "tcp" : "auto", &want);
        if (v > 0)
            continue;
        kills(model, 3, LAYERS, "auto", N_STAGE_KILLS, &want, &rng);
        kills(model, 3, LAYERS, "tcp", N_STAGE_KILLS, &want, &rng);
    }
}

/* ---------------------------------------------------------------- tiers */

enum { N_TEXTS = 4 };

struct answer { /* to a text of which the pool has room for one */
    int32_t ids[N_OUT], n_cached;
    float logprobs[N_OUT];
};

static void ask(struct sl_engine *eng, int text, struct answer *out)
{
    int32_t ids[130], n = 0;
    struct sl_error err;
    struct sl_chunk chunk;
    struct sl_usage u;
    struct sl_request *req = NULL;
    struct sl_request_desc desc = {.prompt = ids, .n_prompt = SL_COUNT(ids)};
    for (int32_t k = 0; k < desc.n_prompt; k++)
        ids[k] = (k * (text + 5) + 7 * text) % 250;
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = N_OUT;
    desc.sampling.ignore_eos = true;
    desc.sampling.logprobs = 0;
    desc.sampling.temperature = 0;
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("%s", err.msg);
    memset(out, 0, sizeof *out);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1)
            for (size_t k = 0; k < chunk.n_tokens; k++, n++) {
                assert_true(n < N_OUT);
                out->ids[n] = chunk.tokens[k].id;
                out->logprobs[n] = chunk.tokens[k].logprob;
            }
    }
    assert_int_equal(n, N_OUT);
    sl_request_usage(req, &u);
    out->n_cached = u.n_cached;
    sl_request_release(req);
}

/* Each text, as in want unless NULL. Returns how many tokens came from a cache. */
static int32_t ask_all(struct sl_engine *eng, const struct answer *want, struct answer *out)
{
    int32_t n_cached = 0;
    for (int i = 0; i < N_TEXTS; i++) {
        ask(eng, i, &out[i]);
        n_cached += out[i].n_cached;
        if (want != NULL) {
            assert_memory_equal(out[i].ids, want[i].ids, sizeof out[i].ids);
            assert_memory_equal(out[i].logprobs, want[i].logprobs, sizeof out[i].logprobs);
        }
    }
    return n_cached;
}

/* Pages of all processes go to host memory of rank 0 and come back, also to one that was killed,
 * whose own were lost: none of what it has then is ever stored. scarce: the pool holds two texts
 * and host memory one, so that some pages are not there when the pool is cleared. */
static void tiers_of(struct sl_engine_config cfg, int n, enum parts parts, bool scarce,
                     const char *transport, const struct answer *want)
{
    const int32_t enough = scarce ? 0 : N_TEXTS * 96;
    uint64_t n_stored;
    struct sl_stats s;
    struct answer got[N_TEXTS];
    struct follower f[4] = {{.model = NULL}};
    pid_t pids[4];
    cfg.tensor_parallel_size = parts == LAYERS ? 1 : n;
    cfg.pipeline_parallel_size = parts == LAYERS ? n : 1;
    cfg.nnodes = n;
    cfg.master_port = free_port();
    cfg.rank_transport = transport;
    cfg.kv_offloading_size = scarce ? (float)cfg.kv_cache_bytes / 2 / (1u << 30) : 0.03f;
    for (int i = 1; i < n; i++) {
        f[i] = (struct follower){.model = cfg.model,
                                 .port = cfg.master_port,
                                 .nodes = digits[n],
                                 .rank = digits[i],
                                 .parts = parts};
        pids[i] = follow(&f[i]);
    }
    struct sl_engine *eng = start_as(cfg);
    (void)ask_all(eng, want, got);
    assert_true(ask_all(eng, want, got) >= enough);
    for (int k = 0; k < 2; k++) { /* with a pool that is full of pages of the one that dies */
        kill(pids[n - 1], SIGKILL);
        (void)end_of(pids[n - 1]);
        assert_true(becomes(eng, SL_ERANK, 10));
        pids[n - 1] = follow(&f[n - 1]);
        assert_true(becomes(eng, 0, 20));
        sl_engine_stats(eng, &s);
        n_stored = s.kv_tiers[SL_KV_TIER_HOST].stored;
        assert_int_equal(outlive(submit(eng, 0, 1)), 0); /* less than a page: the pool is cleared */
        sl_engine_stats(eng, &s);
        assert_int_equal(s.kv_tiers[SL_KV_TIER_HOST].stored, n_stored);
        assert_true(ask_all(eng, want, got) >= enough);
    }
    sl_engine_stats(eng, &s);
    assert_int_equal(s.step_mallocs, 0);
    assert_int_equal(s.invariant_violations, 0);
    sl_engine_destroy(eng);
    for (int i = 1; i < n; i++)
        assert_int_equal(end_of(pids[i]), 0);
}

static void test_tiers(void **state)
{
    (void)state;
    struct answer want[N_TEXTS];
    struct sl_engine_config cfg = {.model = write_model(&staged[1]),
                                   .device = "cpu",
                                   .rank_timeout_s = LONG_S,
                                   .rank_start_s = 60,
                                   .max_num_batched_tokens = 64,
                                   .max_num_seqs = 2,
                                   .max_model_len = 160,
                                   .n_threads = 1};
    struct sl_engine *eng = start_as(cfg);
    const uint64_t per_token = sl_engine_info(eng)->kv_bytes_per_token;
    (void)ask_all(eng, NULL, want);
    sl_engine_destroy(eng);
    cfg.kv_cache_bytes = per_token * 200;
    tiers_of(cfg, 2, ROWS, false, "auto", want);
    tiers_of(cfg, 2, ROWS, false, "tcp", want);
    tiers_of(cfg, 3, LAYERS, false, "auto", want);
    tiers_of(cfg, 3, LAYERS, false, "tcp", want);
    cfg.model = write_model(&staged[0]);
    cfg.kv_cache_bytes = 0;
    eng = start_as(cfg);
    cfg.kv_cache_bytes = sl_engine_info(eng)->kv_bytes_per_token * 320;
    (void)ask_all(eng, NULL, want);
    sl_engine_destroy(eng);
    tiers_of(cfg, 2, ROWS, true, "auto", want);
}

/* Drafts of texts are rows as others are. What stands behind those of recurrent layers is not sent.
 */
static void test_stages_draft(void **state)
{
    (void)state;
    struct outcome want, got;
    struct sl_stats stats;
    struct sl_error err = {0};
    struct sl_engine *eng;
    struct sl_engine_config cfg = config_of(2, LAYERS);
    cfg.model = write_model(&staged[0]);
    cfg.rank_timeout_s = LONG_S;
    cfg.max_num_batched_tokens = 48;
    cfg.max_num_seqs = 8;
    cfg.max_model_len = 512;
    cfg.max_itl_ms = -1;
    cfg.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":4,"
                             "\"prompt_lookup_max\":2,\"prompt_lookup_min\":1}";
    one_rank(cfg.model, &want);
    cfg.master_port = free_port();
    struct follower f = {.model = cfg.model, .port = cfg.master_port, .parts = LAYERS};
    const pid_t pid = follow(&f);
    eng = start_as(cfg);
    run_all(eng, &got);
    must_equal(&got, &want, "stages with drafts");
    sl_engine_stats(eng, &stats);
    assert_true(stats.n_draft_tokens > 0);
    assert_int_equal(stats.step_mallocs, 0);
    sl_engine_destroy(eng);
    assert_int_equal(end_of(pid), 0);
    cfg.model = write_model(&staged[3]);
    assert_int_equal(sl_engine_create(&cfg, &eng, &err), SL_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "states behind drafts"));
}

/* A stage of other layers, or ranks in place of stages, do not meet. */
static void test_stages_differ(void **state)
{
    (void)state;
    const char *model = write_model(&staged[0]);
    struct follower f = {.model = model, .port = free_port(), .parts = LAYERS};
    const pid_t pid = follow(&f);
    struct sl_engine *eng = start_with(model, 2, LAYERS, f.port, "auto", LONG_S);
    must_say(&(struct follower){.model = model, .port = f.port}, ", stages of 3,2 (");
    sl_engine_destroy(eng);
    assert_int_equal(end_of(pid), 0);
}

/* A stopped process keeps its connections and its memory. When it goes on it must not write into
 * what the others share by then. */
static void test_stopped(void **state)
{
    (void)state;
    struct outcome want, got;
    const char *model = write_model(&variants[0]);
    one_rank(model, &want);
    for (int tcp = 0; tcp <= 1; tcp++) {
        struct follower f = {.model = model, .port = free_port()}, g = f;
        const pid_t old = follow(&f);
        struct sl_engine *eng = start(model, 2, f.port, tcp ? "tcp" : "auto", SHORT_S);
        assert_true(strike(eng, old, SIGSTOP, 20000, 5) > 0);
        const pid_t next = follow(&g);
        assert_true(becomes(eng, 0, 20));
        kill(old, SIGCONT); /* it finds that its place is taken, and keeps asking */
        for (int i = 0; i < 3; i++) {
            run_all(eng, &got);
            must_equal(&got, &want, "beside one that was stopped");
        }
        kill(next, SIGKILL); /* then it is let in */
        assert_true(becomes(eng, SL_ERANK, 5));
        assert_true(becomes(eng, 0, 20));
        run_all(eng, &got);
        must_equal(&got, &want, "with one that was stopped");
        sl_engine_destroy(eng);
        assert_int_equal(end_of(next), 128 + SIGKILL);
        assert_int_equal(end_of(old), 0);
    }
}

/* A rank whose process lives and speaks, but does not compute, over either transport. */
static void test_stuck(void **state)
{
    (void)state;
    struct outcome want, got;
    const char *model = write_model(&variants[0]);
    one_rank(model, &want);
    for (int tcp = 0; tcp <= 1; tcp++) {
        struct sl_error err;
        struct follower f = {.model = model, .port = free_port(), .stuck = true};
        pid_t pid = follow(&f);
        struct sl_engine *eng = start(model, 2, f.port, tcp ? "tcp" : "auto", SHORT_S);
        struct sl_request *req = submit(eng, 2, 20);
        const uint64_t t0 = sl_now_ns();
        assert_true(outlive(req));
        assert_true(sl_now_ns() - t0 < 5 * SECOND);
        assert_int_equal(sl_engine_health(eng, &err), SL_ERANK);
        assert_non_null(strstr(err.msg, "rank 1 makes no progress"));
        kill(pid, SIGKILL);
        assert_int_equal(end_of(pid), 128 + SIGKILL);
        f.stuck = false;
        pid = follow(&f);
        assert_true(becomes(eng, 0, 20));
        run_all(eng, &got);
        must_equal(&got, &want, "after one that was stuck");
        sl_engine_destroy(eng);
        assert_int_equal(end_of(pid), 0);
    }
}

/* ---------------------------------------------------------------- strangers */

static int dial(int port)
{
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* What the port says to these bytes, and that it closes the connection within 5 s. */
static void tell(int port, const void *data, size_t n, const char *want)
{
    char text[1024] = "";
    const int fd = dial(port);
    size_t at = 0;
    ssize_t got = 1;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (n > 0)
        assert_int_equal(write(fd, data, n), (ssize_t)n);
    while (got > 0 && at < sizeof text - 1) {
        assert_int_equal(poll(&p, 1, 5000), 1);
        got = read(fd, text + at, sizeof text - 1 - at);
        at += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    bool found = want == NULL;
    for (size_t i = 0; !found && i + strlen(want) <= at; i++)
        found = memcmp(text + i, want, strlen(want)) == 0;
    if (!found)
        fail_msg("the port does not say \"%s\"", want);
}

static void test_strangers(void **state)
{
    (void)state;
    struct outcome want, got;
    uint8_t junk[3000];
    struct sl_rng rng = {.seed = 7};
    char other[160];
    int slow[40];
    snprintf(other, sizeof other, "%s", write_model(&variants[1]));
    const char *model = write_model(&variants[0]);
    one_rank(model, &want);
    struct follower f = {.model = model, .port = free_port()};
    const pid_t pid = follow(&f);
    struct sl_engine *eng = start(model, 2, f.port, "auto", LONG_S);
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (uint8_t)sl_rng_below(&rng, 256);
    tell(f.port, junk, 16, "not of a rank of sluice");
    tell(f.port, "GET / HTTP/1.1\r\n\r\n", 16, "not of a rank of sluice");
    const uint32_t newer[4] = {0x534c524b, 99, 1, 8}, large[4] = {0x534c524b, 2, 1, 1u << 30},
                   early[4] = {0x534c524b, 2, 9, 0};
    tell(f.port, newer, sizeof newer, "speaks version 99 of the protocol of ranks, this one 2");
    tell(f.port, large, sizeof large, "a note of kind 1 has 1073741824 bytes");
    tell(f.port, early, sizeof early, "it sent a note of kind 9 first");
    tell(f.port, large, 7, "did not say who it is within 3 s");
    for (size_t i = 0; i < SL_COUNT(slow); i++) /* more than there is room for */
        slow[i] = dial(f.port);

    must_say(&(struct follower){.model = other, .port = f.port, .rank = "1"},
             "model: rank 0 has llama bf16");
    must_say(&(struct follower){.model = model, .port = f.port, .nodes = "4", .rank = "3"},
             "nnodes: rank 0 has 2, rank 3 has 4");
    must_say(&(struct follower){.model = model, .port = f.port, .isa = "c"},
             "instruction set (--cpu-isa): rank 0 has ");
    FILE *file = fopen("build/testdata/rank_secret", "w");
    fputs("what nobody else here knows\n", file);
    fclose(file);
    must_say(
        &(struct follower){.model = model, .port = f.port, .secret = "build/testdata/rank_secret"},
        "does not have the secret of this rank");
    assert_int_equal(sl_engine_health(eng, NULL), 0);
    run_all(eng, &got);
    must_equal(&got, &want, "beside strangers");
    for (size_t i = 0; i < SL_COUNT(slow); i++)
        close(slow[i]);
    sl_engine_destroy(eng);
    assert_int_equal(end_of(pid), 0);
}

static void refuse(struct sl_engine_config cfg, const char *want)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    cfg.device = "cpu";
    if (sl_engine_create(&cfg, &eng, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
}

static void test_refused(void **state)
{
    (void)state;
    struct sl_error err = {0};
    refuse((struct sl_engine_config){.nnodes = 2}, "each process is one rank");
    refuse((struct sl_engine_config){.nnodes = 2, .tensor_parallel_size = 4}, "must be equal");
    refuse((struct sl_engine_config){.nnodes = 2, .tensor_parallel_size = 2, .node_rank = 2},
           "node_rank");
    refuse((struct sl_engine_config){.nnodes = 2, .pipeline_parallel_size = 4}, "must be equal");
    refuse((struct sl_engine_config){.nnodes = 2,
                                     .pipeline_parallel_size = 2,
                                     .tensor_parallel_size = 2},
           "cannot be divided among ranks");
    refuse((struct sl_engine_config){.node_rank = 1}, "node_rank");
    refuse((struct sl_engine_config){.nnodes = 2,
                                     .tensor_parallel_size = 2,
                                     .rank_transport = "pigeon"},
           "rank_transport: 'pigeon' is not one of: auto, tcp");
    refuse(
        (struct sl_engine_config){.nnodes = 2, .tensor_parallel_size = 2, .master_addr = "0.0.0.0"},
        "0.0.0.0 is not a loopback address: that needs a secret");
    refuse(
        (struct sl_engine_config){
            .nnodes = 2, .tensor_parallel_size = 2, .master_port = free_port(), .rank_start_s = 1},
        "waiting for all ranks: not all have come yet");
    const struct sl_engine_config first = {.nnodes = 2, .tensor_parallel_size = 2};
    assert_int_equal(sl_rank_follow(&first, &err), SL_EINVAL);
    const struct sl_engine_config lonely = {.nnodes = 2,
                                            .tensor_parallel_size = 2,
                                            .node_rank = 1,
                                            .device = "cpu",
                                            .master_port = free_port(),
                                            .rank_start_s = 1};
    assert_int_equal(sl_rank_follow(&lonely, &err), SL_ERANK);
    assert_non_null(strstr(err.msg, "Connection refused"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),           cmocka_unit_test(test_kills),
        cmocka_unit_test(test_stopped),        cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_strangers),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_experts_differ), cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_drafts),         cmocka_unit_test(test_stages),
        cmocka_unit_test(test_stages_differ),  cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_stages_draft),   cmocka_unit_test(test_placed),
        cmocka_unit_test(test_positions),
    };
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    if (argc == 9 && (strcmp(argv[1], "follow") == 0 || strcmp(argv[1], "stuck") == 0))
        return follower_main(argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
