/* SPDX-License-Identifier: MIT
 * rank_processes.h - ranks as real processes: an engine here, and this program started again for
 * each other rank (follower_main). Models for them, requests whose bits are compared, and signals
 * under load.
 */
#ifndef SL_TESTS_RANK_PROCESSES_H
#define SL_TESTS_RANK_PROCESSES_H

#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "dist/member.h"
#include "engine/load/load.h"
#include "engine/load/nodes.h"
#include "sluice.h"
#include "synth/synth.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OUT      "build/testdata/models"
#define SECOND   1000000000ull
#define N_LOADED 5 /* requests at a time */

enum { N_OUT = 10, N_PROMPTS = 3, N_TOP = 3 };

struct outcome { /* what must not change by a bit */
    int32_t ids[N_PROMPTS][N_OUT];
    float logprobs[N_PROMPTS][N_OUT];
    struct sl_top_logprob tops[N_PROMPTS][N_OUT][N_TOP];
};

/* ---------------------------------------------------------------- another rank's process */

/* What is divided among the processes: rows of everything, experts and the rows of the rest, the
 * same with experts where their load says, layers, or rows and, of the KV cache, positions in place
 * of key heads. Or experts alone, each of which is on two ranks: they move, or stay; or on
 * one; or on all of four. */
enum parts { ROWS, EXPERTS, PLACED, LAYERS, POSITIONS, ONLY, ONLY_STILL, ONLY_ONCE, ONLY_ALL };

static const char *const placings[] = {
    [PLACED] = "{\"window_size\": 5, \"step_interval\": 7, \"num_redundant_experts\": 4}",
    [ONLY] = "{\"window_size\": 5, \"step_interval\": 7, \"num_redundant_experts\": 16}",
    [ONLY_STILL] = "{\"num_redundant_experts\": 16}",
    [ONLY_ONCE] = "{}",
    [ONLY_ALL] = "{\"window_size\": 5, \"step_interval\": 7, \"num_redundant_experts\": 48}",
};

struct follower {
    bool stuck; /* says that it is ready, and that it lives, and never computes */
    enum parts parts;
    const char *model, *isa, *secret, *nodes, *rank;
    int port;
    char errors[64]; /* file */
};

/* All of sl_rank_follow but the steps. */
static int be_stuck(const struct sl_engine_config *cfg, struct sl_error *err)
{
    struct sl_ckpt *ckpt;
    struct sl_model *model;
    struct sl_backend *be;
    struct sl_member *m;
    struct sl_link *link;
    struct sl_rank_plan plan;
    void *room[2];
    struct sl_member_config dial = {.addr = "127.0.0.1", .port = cfg->master_port, .rank = 1};
    if (sl_ckpt_open(cfg->model, &ckpt, err) != 0 || sl_model_open(ckpt, &model, err) != 0 ||
        sl_load_task(model, ckpt, cfg, err) != 0 || sl_load_backend(model, cfg, &be, err) != 0)
        return 1;
    sl_nodes_identity(model, ckpt, be, cfg, &dial.id);
    while (sl_member_connect(&dial, &m, err) != 0)
        usleep(50000);
    memcpy(&plan, sl_member_plan(m), sizeof plan);
    const struct sl_run_config run = {.max_tokens = plan.bounds.max_tokens,
                                      .max_logits = plan.bounds.max_logits};
    if (sl_member_await(m, sl_run_room_bytes(model, be, &run), sl_rank_step_bytes(&plan.bounds),
                        room, err) != 0 ||
        sl_member_ready(m, &link, err) != 0)
        return 1;
    sleep(60);
    return 1;
}

static struct sl_engine_config config_of(int n_nodes, enum parts parts)
{
    return (struct sl_engine_config){
        .device = "cpu",
        .tensor_parallel_size = parts == LAYERS ? 1 : n_nodes,
        .pipeline_parallel_size = parts == LAYERS ? n_nodes : 1,
        .enable_expert_parallel = parts == EXPERTS || parts == PLACED || parts >= ONLY,
        .enable_eplb = parts == PLACED || parts >= ONLY,
        .eplb_config = parts == PLACED || parts >= ONLY ? placings[parts] : NULL,
        .divide_only_experts = parts >= ONLY,
        .decode_context_parallel_size = parts == POSITIONS ? n_nodes : 1,
        .nnodes = n_nodes,
        .rank_start_s = 60,
        .n_threads = 1};
}

static int follower_main(char **argv)
{
    struct sl_engine_config cfg = config_of(atoi(argv[6]), (enum parts)atoi(argv[8]));
    cfg.model = argv[2][0] != '\0' ? argv[2] : NULL;
    cfg.cpu_isa = argv[3];
    cfg.rank_secret_file = argv[4][0] != '\0' ? argv[4] : NULL;
    cfg.master_port = atoi(argv[5]);
    cfg.node_rank = atoi(argv[7]);
    struct sl_error err = {0};
    int rc = argv[1][0] == 's' ? be_stuck(&cfg, &err) : sl_rank_follow(&cfg, &err);
    if (rc != 0)
        dprintf(3, "%s\n", err.msg);
    return rc != 0;
}

static pid_t follow(struct follower *f)
{
    char port[16], parts[4];
    static int n;
    if (f->errors[0] == '\0')
        snprintf(f->errors, sizeof f->errors, "build/testdata/rank_errors_%d", n++);
    snprintf(port, sizeof port, "%d", f->port);
    snprintf(parts, sizeof parts, "%d", f->parts);
    fflush(stdout);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    const int log = open("build/testdata/rank_log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    const int errors = open(f->errors, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(log, 1);
    dup2(log, 2);
    dup2(errors, 3);
    char *argv[] = {(char *)(uintptr_t) "follower",
                    (char *)(uintptr_t)(f->stuck ? "stuck" : "follow"),
                    (char *)(uintptr_t)(f->model != NULL ? f->model : ""),
                    (char *)(uintptr_t)(f->isa != NULL ? f->isa : "auto"),
                    (char *)(uintptr_t)(f->secret != NULL ? f->secret : ""),
                    port,
                    (char *)(uintptr_t)(f->nodes != NULL ? f->nodes : "2"),
                    (char *)(uintptr_t)(f->rank != NULL ? f->rank : "1"),
                    parts,
                    NULL};
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* Its exit status; it must not take longer than 10 s. */
static int end_of(pid_t pid)
{
    int status;
    for (int i = 0; i < 1000; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        usleep(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    fail_msg("a rank does not end");
    return -1;
}

static void must_say(struct follower *f, const char *want)
{
    char text[400] = "";
    assert_int_equal(end_of(follow(f)), 1);
    const int fd = open(f->errors, O_RDONLY);
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || strstr(text, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, want);
}

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* ---------------------------------------------------------------- requests */

/* Where only a silent rank is lost by time, it must not be one that a busy machine made wait. */
enum { LONG_S = 30, SHORT_S = 2 };

static struct sl_engine *start_as(struct sl_engine_config cfg)
{
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    return eng;
}

static struct sl_engine *start_with(const char *model, int n_nodes, enum parts parts, int port,
                                    const char *transport, int timeout_s)
{
    struct sl_engine_config cfg = config_of(n_nodes, parts);
    cfg.model = model;
    cfg.master_port = port;
    cfg.rank_transport = transport;
    cfg.rank_timeout_s = timeout_s;
    cfg.max_num_batched_tokens = 48;
    cfg.max_num_seqs = 8;
    cfg.max_model_len = 512;
    return start_as(cfg);
}

static struct sl_engine *start(const char *model, int n_nodes, int port, const char *transport,
                               int timeout_s)
{
    return start_with(model, n_nodes, ROWS, port, transport, timeout_s);
}

static bool longer; /* prompts, by three times */

static struct sl_request *submit_as(struct sl_engine *eng, int i, int n_out, struct sl_adapter *a)
{
    static const int lengths[N_PROMPTS] = {5, 40, 130};
    int32_t ids[3 * 130];
    struct sl_error err;
    struct sl_request *req = NULL;
    struct sl_request_desc desc = {
        .prompt = ids, .n_prompt = lengths[i % N_PROMPTS], .adapter = a, .adapter_scale = 1};
    desc.n_prompt *= longer ? 3 : 1;
    for (int k = 0; k < desc.n_prompt; k++)
        ids[k] = (k * 37 + i * 11 + 3) % 250;
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = n_out;
    desc.sampling.ignore_eos = desc.sampling.has_seed = true;
    desc.sampling.logprobs = N_TOP;
    desc.sampling.temperature = i == 1 ? 0.8f : 0;
    return sl_request_submit(eng, &desc, &req, &err) == 0 ? req : NULL;
}

static struct sl_request *submit(struct sl_engine *eng, int i, int n_out)
{
    return submit_as(eng, i, n_out, NULL);
}

static void collect(struct sl_request *req, int i, struct outcome *out)
{
    struct sl_chunk chunk;
    int n = 0;
    assert_non_null(req);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1) {
            assert_int_not_equal(chunk.finish, SL_FINISH_ERROR);
            for (size_t k = 0; k < chunk.n_tokens; k++, n++) {
                assert_true(n < N_OUT);
                out->ids[i][n] = chunk.tokens[k].id;
                out->logprobs[i][n] = chunk.tokens[k].logprob;
                memcpy(out->tops[i][n], chunk.tokens[k].top, sizeof out->tops[i][n]);
            }
        }
    }
    assert_int_equal(n, N_OUT);
    sl_request_release(req);
}

static void run_all(struct sl_engine *eng, struct outcome *out)
{
    struct sl_request *reqs[N_PROMPTS];
    memset(out, 0, sizeof *out);
    for (int i = 0; i < N_PROMPTS; i++)
        reqs[i] = submit(eng, i, N_OUT);
    for (int i = 0; i < N_PROMPTS; i++)
        collect(reqs[i], i, out);
}

static void one_rank(const char *model, struct outcome *out)
{
    struct sl_engine *eng = start(model, 1, 0, NULL, 0);
    run_all(eng, out);
    sl_engine_destroy(eng);
}

static void must_equal(const struct outcome *got, const struct outcome *want, const char *what)
{
    for (int i = 0; i < N_PROMPTS; i++)
        for (int k = 0; k < N_OUT; k++)
            if (got->ids[i][k] != want->ids[i][k] ||
                memcmp(&got->logprobs[i][k], &want->logprobs[i][k], sizeof(float)) != 0 ||
                memcmp(got->tops[i][k], want->tops[i][k], sizeof got->tops[i][k]) != 0)
                fail_msg("%s: token %d of prompt %d is %d (%.9g) instead of %d (%.9g)", what, k, i,
                         got->ids[i][k], (double)got->logprobs[i][k], want->ids[i][k],
                         (double)want->logprobs[i][k]);
}

/* ---------------------------------------------------------------- bits */

struct variant {
    const char *name;
    enum sl_dtype dtype;
    enum sl_synth_scales scales;
    enum sl_int4_kind int4;
    bool mtp;     /* with a module that predicts further tokens */
    float skew;   /* of routers, as tools/synth has it */
    int n_layers; /* 0: those of the tiny shape */
};

static const char *write_model(const struct variant *v)
{
    static char path[160];
    struct sl_error err = {0};
    struct sl_synth s = {.name = v->name,
                         .dtype = v->dtype,
                         .scales = v->scales,
                         .int4 = v->int4,
                         .int4_group = v->int4 != SL_INT4_NONE ? 128 : 0,
                         .byte_vocab = true,
                         .eos = SL_SYNTH_EOS,
                         .mtp = v->mtp,
                         .skew = v->skew,
                         .seed = 5};
    const bool gguf = v->dtype == SL_DTYPE_Q8_0 || v->dtype == SL_DTYPE_Q4_K;
    s.format = gguf ? SL_CKPT_GGUF : SL_CKPT_HF;
    if (sl_synth_shape(v->name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.n_layers = v->n_layers != 0 ? v->n_layers : s.hp.n_layers;
    if (v->skew > 0)
        s.hp.n_experts = 16; /* with four replicas evenly among ranks */
    s.hp.n_heads = 8;
    s.hp.n_kv_heads = 4;
    s.hp.hidden = 256;
    s.hp.intermediate = 512;
    s.hp.head_dim = 32;
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir(OUT, 0777);
    snprintf(path, sizeof path, OUT "/processes_%s_%s_%d%s", v->name, sl_dtype_info(v->dtype)->name,
             v->n_layers, gguf ? ".gguf" : "");
    if (sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    return path;
}

static const char *const digits[] = {"0", "1", "2", "3", "4"};

static void bits_of(const char *model, int n_nodes, enum parts parts, const char *transport,
                    const struct outcome *want)
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
    for (int i = 0; i < 2; i++) { /* then with prefixes in the cache */
        run_all(eng, &got);
        must_equal(&got, want, model);
    }
    assert_int_equal(sl_engine_health(eng, NULL), 0);
    sl_engine_destroy(eng);
    for (int i = 1; i < n_nodes; i++) /* they end with it */
        assert_int_equal(end_of(pids[i]), 0);
}

static bool becomes(struct sl_engine *eng, int want, double seconds)
{
    const uint64_t end = sl_now_ns() + (uint64_t)(seconds * (double)SECOND);
    while (sl_engine_health(eng, NULL) != want) {
        if (sl_now_ns() > end)
            return false;
        (void)poll(NULL, 0, 2);
    }
    return true;
}

/* ---------------------------------------------------------------- losses */

/* Reads until it is over. Returns whether it failed; there is one last event. */
static bool outlive(struct sl_request *req)
{
    struct sl_chunk chunk;
    int n_ends = 0;
    bool failed = false;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1) {
            n_ends += chunk.finish != SL_RUNNING;
            failed |= chunk.finish == SL_FINISH_ERROR;
        }
    }
    while (sl_request_read(req, &chunk) == 1)
        n_ends += chunk.finish != SL_RUNNING;
    assert_int_equal(n_ends, 1);
    sl_request_release(req);
    return failed;
}

/* Requests, and after a moment the signal. Returns how many of them failed. */
static int strike(struct sl_engine *eng, pid_t pid, int sig, int after_us, double within_s)
{
    struct sl_request *reqs[N_LOADED];
    int n_failed = 0;
    for (int i = 0; i < N_LOADED; i++)
        assert_non_null(reqs[i] = submit(eng, i, 300));
    usleep((useconds_t)after_us);
    kill(pid, sig);
    const uint64_t t0 = sl_now_ns();
    for (int i = 0; i < N_LOADED; i++)
        n_failed += outlive(reqs[i]);
    assert_true((double)(sl_now_ns() - t0) < within_s * (double)SECOND);
    assert_true(becomes(eng, SL_ERANK, within_s));
    assert_null(submit(eng, 0, 1)); /* refused, not queued */
    return n_failed;
}

#endif
