/* SPDX-License-Identifier: MIT
 * test_faults.c - fault injection on the real flow: for every k, the k-th allocation, open, read,
 * write, mapping, accept, thread start and so on fails while a model is loaded, a request runs, one
 * is cancelled, the engine or the server stops, a server starts and answers. Each run must end with
 * a right answer, a clean error or a refusal; leave no memory, mapping, descriptor or thread behind
 * (fault_sys.h counts them); and the next request, without a fault, must be answered right.
 *
 * --stride n tries every n-th k only, the default is every k; --only name runs one scenario.
 */
#include "engine/fault_flows.h"

#include "base/log.h"

#include <signal.h>

struct flow {
    const char *name;
    enum outcome (*run)(const void *arg);
    const void *arg;
    enum outcome (*next)(const void *arg); /* afterwards, without a fault */
    unsigned kinds;                        /* bits of enum fs_kind that it makes use of */
};

#define BIT(kind) (1u << (kind))

enum {
    ENGINE_KINDS = 1u << FS_ALLOC | 1u << FS_OPEN | 1u << FS_SIZE | 1u << FS_MAP | 1u << FS_READ |
                   1u << FS_RANDOM | 1u << FS_THREAD | 1u << FS_EVENTFD,
    REQUEST_KINDS = 1u << FS_ALLOC | 1u << FS_READ | 1u << FS_WRITE,
    SERVER_KINDS = (1u << FS_KINDS) - 1,
    HTTP_KINDS = 1u << FS_ALLOC | 1u << FS_EVENT | 1u << FS_READ | 1u << FS_WRITE |
                 1u << FS_ACCEPT | 1u << FS_EPOLL,
};

static const char *now_flow = "", *now_kind = "";
static uint64_t now_k, stride = 1;
static uint64_t n_faults, n_outcomes[OUTCOMES];

/* Ways to fail that mean something for a kind. */
static unsigned manners_of(int kind)
{
    switch (kind) {
    case FS_ALLOC:
    case FS_EVENT:
        return BIT(FS_ONCE) | BIT(FS_ALL);
    case FS_READ:
    case FS_WRITE:
        return BIT(FS_ONCE) | BIT(FS_INTR) | BIT(FS_AGAIN) | BIT(FS_SHORT);
    case FS_ACCEPT:
        return BIT(FS_ONCE) | BIT(FS_INTR) | BIT(FS_AGAIN) | BIT(FS_FULL);
    default:
        return BIT(FS_ONCE);
    }
}

static void on_alarm(int sig)
{
    char text[160];
    int n = snprintf(text, sizeof text, "hang: %s, %s %llu\n", now_flow, now_kind,
                     (unsigned long long)now_k);
    ssize_t put = write(STDERR_FILENO, text, (size_t)n);
    (void)put;
    signal(sig, SIG_DFL);
    abort();
}

/* A connection is closed, a thread gone, only some time after the client saw the end. */
static bool settles_at(const struct fs_held *base, struct fs_held *is)
{
    for (int i = 0; i < 4000; i++) {
        *is = fs_held();
        if (fs_same(base, is))
            return true;
        usleep(i < 200 ? 50 : 1000);
    }
    return false;
}

struct tally {
    uint64_t n_runs, n_faults, n[OUTCOMES];
};

/* One run with call k failing. False: there is no call k. */
static bool run_one(const struct flow *f, int kind, int manner, uint64_t k,
                    const struct fs_held *base, struct tally *t)
{
    struct fs_held is;
    now_k = k;
    alarm(60);
    fs_arm((enum fs_kind)kind, (enum fs_manner)manner, k);
    enum outcome o = f->run(f->arg);
    fs_disarm();
    uint64_t n_struck = atomic_load(&fs.n_struck);
    if (n_struck == 0 && o != ANSWERED)
        fail_msg("%s, %s: no fault, yet it ends as %d", f->name, fs_names[kind], (int)o);
    enum outcome next = f->next(f->arg);
    if (next != ANSWERED)
        fail_msg("%s, %s %llu: the next request is not answered", f->name, fs_names[kind],
                 (unsigned long long)k);
    if (!settles_at(base, &is))
        fail_msg("%s, %s %llu, manner %d, outcome %d: %+lld blocks, %+lld mappings, %+d "
                 "descriptors, %+d threads left",
                 f->name, fs_names[kind], (unsigned long long)k, manner, (int)o,
                 (long long)(is.blocks - base->blocks), (long long)(is.maps - base->maps),
                 is.n_fds - base->n_fds, is.n_threads - base->n_threads);
    alarm(0);
    t->n_runs++;
    t->n_faults += n_struck;
    t->n[o] += n_struck > 0;
    return n_struck > 0;
}

/* Threads make the number of calls vary a little: a sweep ends after six k without one. */
static void sweep(const struct flow *f, int kind, const struct fs_held *base)
{
    struct tally t = {0};
    uint64_t most = 0;
    now_flow = f->name;
    now_kind = fs_names[kind];
    for (int manner = 0; manner < FS_MANNERS; manner++) {
        int n_missed = 0;
        if (!(manners_of(kind) & BIT(manner)))
            continue;
        for (uint64_t k = 0; n_missed<3; k += n_missed> 0 ? 1 : stride) {
            bool struck = run_one(f, kind, manner, k, base, &t);
            n_missed = struck ? 0 : n_missed + 1;
            most = struck ? SL_MAX(most, k + 1) : most;
        }
    }
    if (t.n_faults > 0)
        print_message("%-14s %-13s %6llu %7llu %8llu %8llu %8llu %8llu\n", f->name, fs_names[kind],
                      (unsigned long long)most, (unsigned long long)t.n_faults,
                      (unsigned long long)t.n[ANSWERED], (unsigned long long)t.n[FAILED],
                      (unsigned long long)t.n[REFUSED], (unsigned long long)t.n[CLOSED]);
    n_faults += t.n_faults;
    for (int o = 0; o < OUTCOMES; o++)
        n_outcomes[o] += t.n[o];
}

static void sweep_all(const struct flow *f)
{
    struct fs_held base, is;
    uint64_t start = sl_now_ns();
    uint64_t before = n_faults;
    for (int i = 0; i < 3; i++) { /* what is kept for reuse is there from now on */
        assert_int_equal(f->run(f->arg), ANSWERED);
        assert_int_equal(f->next(f->arg), ANSWERED);
        usleep(20000);
    }
    base = fs_held();
    assert_true(settles_at(&base, &is));
    for (int kind = 0; kind < FS_KINDS; kind++) {
        if (f->kinds & BIT(kind))
            sweep(f, kind, &base);
    }
    assert_true(n_faults > before);
    print_message("%-14s %.1f s\n", f->name, (double)(sl_now_ns() - start) / 1e9);
}

/* ---------------------------------------------------------------- the six scenarios */

static void start_and_load(void **state)
{
    (void)state;
    const struct flow flows[] = {
        {"load folder", flow_load, world.hf, flow_request, ENGINE_KINDS},
        {"load GGUF", flow_load, world.gguf, flow_request, ENGINE_KINDS},
        {"tools", flow_tools, world.hf, flow_request, ENGINE_KINDS},
    };
    for (size_t i = 0; i < SL_COUNT(flows); i++)
        sweep_all(&flows[i]);
}

static void one_request(void **state)
{
    (void)state;
    sweep_all(&(struct flow){"request", flow_request, NULL, flow_request, REQUEST_KINDS});
}

static void cancel(void **state)
{
    (void)state;
    sweep_all(&(struct flow){"cancel", flow_cancel, NULL, flow_request, REQUEST_KINDS});
}

static void sleep_and_wake(void **state)
{
    (void)state;
    static const int one = 1, two = 2;
    const struct flow flows[] = {
        {"wake pages", flow_wake, &one, flow_request, ENGINE_KINDS},
        {"wake weights", flow_wake, &two, flow_request, ENGINE_KINDS},
        {"other weights", flow_weights, NULL, flow_request, ENGINE_KINDS},
    };
    for (size_t i = 0; i < SL_COUNT(flows); i++)
        sweep_all(&flows[i]);
}

static void stop_and_drain(void **state)
{
    (void)state;
    sweep_all(&(struct flow){"stop", flow_stop, NULL, flow_request, REQUEST_KINDS});
    sweep_all(&(struct flow){"drain", flow_drain, NULL, flow_request, HTTP_KINDS});
}

static void serve(void **state)
{
    (void)state;
    static const char *const names[] = {"HTTP chat",  "HTTP stream",   "HTTP tools",
                                        "HTTP texts", "HTTP tokenize", "HTTP metrics"};
    struct served s;
    sweep_all(&(struct flow){"server start", flow_serve, NULL, flow_request, SERVER_KINDS});
    served_start(&s, 1);
    assert_true(served_ready(&s));
    serve_at_once(&calls[4]);
    for (size_t i = 0; i < SL_COUNT(calls); i++)
        sweep_all(&(struct flow){names[i], flow_http, &calls[i], flow_http, HTTP_KINDS});
    assert_int_equal(served_stop(&s), 0);
}

/* ---------------------------------------------------------------- the world */

static int make_world(void **state)
{
    (void)state;
    struct sl_error err = {0};
    struct sl_synth s = {.name = "llama",
                         .dtype = SL_DTYPE_BF16,
                         .format = SL_CKPT_HF,
                         .seed = 7,
                         .byte_vocab = true};
    const char *base = getenv("TMPDIR");
    fs_install();
    signal(SIGALRM, on_alarm);
    sl_log_set_level(SL_LOG_ERROR);
    snprintf(world.dir, sizeof world.dir, "%.100s/sluice-faults-XXXXXX",
             base != NULL ? base : P_tmpdir);
    if (mkdtemp(world.dir) == NULL)
        return -1;
    snprintf(world.hf, sizeof world.hf, "%s/hf", world.dir);
    snprintf(world.other, sizeof world.other, "%s/other", world.dir);
    snprintf(world.gguf, sizeof world.gguf, "%s/m.gguf", world.dir);
    snprintf(world.uds, sizeof world.uds, "%.100s/s", world.dir);
    snprintf(world.port_file, sizeof world.port_file, "%s/port", world.dir);
    if (sl_synth_shape("llama", "tiny", &s.hp, &err) != 0 ||
        sl_synth_write(&s, world.hf, &err) != 0)
        fail_msg("%s", err.msg);
    s.seed = 8;
    if (sl_synth_write(&s, world.other, &err) != 0)
        fail_msg("%s", err.msg);
    s.seed = 7;
    s.format = SL_CKPT_GGUF;
    if (sl_synth_write(&s, world.gguf, &err) != 0)
        fail_msg("%s", err.msg);
    struct sl_engine_config cfg = flow_config(world.other, 1);
    if (sl_engine_create(&cfg, &world.eng, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(flow_generate(world.eng, world.other_tokens), ANSWERED);
    sl_engine_destroy(world.eng);
    cfg.model = world.hf;
    if (sl_engine_create(&cfg, &world.eng, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(flow_generate(world.eng, world.tokens), ANSWERED);
    print_message("%-14s %-13s %6s %7s %8s %8s %8s %8s\n", "flow", "what fails", "calls", "faults",
                  "answered", "error", "refused", "closed");
    return 0;
}

static int end_world(void **state)
{
    (void)state;
    static const char *const files[] = {"hf/config.json",
                                        "hf/generation_config.json",
                                        "hf/tokenizer.json",
                                        "hf/tokenizer_config.json",
                                        "hf/model.safetensors",
                                        "other/config.json",
                                        "other/generation_config.json",
                                        "other/tokenizer.json",
                                        "other/tokenizer_config.json",
                                        "other/model.safetensors",
                                        "m.gguf",
                                        "port",
                                        "s"};
    sl_engine_destroy(world.eng);
    free(world.rendered);
    free(world.inspected);
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", world.dir, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(world.hf);
    (void)rmdir(world.other);
    (void)rmdir(world.dir);
    print_message("%llu faults: %llu runs answered, %llu ended in an error, %llu were refused, "
                  "%llu connections closed early\n",
                  (unsigned long long)n_faults, (unsigned long long)n_outcomes[ANSWERED],
                  (unsigned long long)n_outcomes[FAILED], (unsigned long long)n_outcomes[REFUSED],
                  (unsigned long long)n_outcomes[CLOSED]);
    return atomic_load(&fs.blocks) == 0 && atomic_load(&fs.maps) == 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_and_load), cmocka_unit_test(one_request),
        cmocka_unit_test(cancel),         cmocka_unit_test(sleep_and_wake),
        cmocka_unit_test(stop_and_drain), cmocka_unit_test(serve),
    };
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--stride") == 0)
            stride = SL_MAX((uint64_t)atoi(argv[i + 1]), 1u);
        else
            cmocka_set_test_filter(argv[i + 1]); /* --only name */
    }
    return cmocka_run_group_tests(tests, make_world, end_world);
}
