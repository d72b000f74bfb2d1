/* SPDX-License-Identifier: MIT
 * agent_bench.c - programs that call tools, on the real engine, scheduler and prefix cache, with
 * and without what is kept for them (engine/retain.h).
 *
 *   agent_bench FILE [--programs N] [--seats N] [--most N] [--retention S] [--tool-scale S]
 *
 * FILE is a CSV of requests of a coding assistant, as Azure published one in 2023: a line with
 * time, tokens of the prompt and tokens of the answer. A program is a row of 8 to 24 lines: its
 * first prompt and all its answers have the lengths of those lines, and a tool's result is an
 * eighth of its line's prompt. Each turn calls one of three tools, whose times are drawn around
 * 0.3, 2 and 10 s (a factor of 2 is one deviation), times --tool-scale. --programs are open at any
 * time: when one ends the next begins, --most (64) in all.
 *
 * The model is null: a step takes what a model of 8 billion parameters takes on a GPU in round
 * numbers, 6 ms, 50 us for each prompt token, 0.1 ms for each sequence that generates and 1.3 ns
 * for each pair of a token and a position before it. The clock is virtual and text is drawn from a
 * seed, so results are exact and repeatable. The room is first what the programs that are open have
 * at most together and a quarter more, then without that, then half of it; for each the policies
 * run in turns.
 * Throughput is turns in the time until all programs have ended.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/core.h"
#include "engine/host_runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 16,
    VOCAB = 512,
    MAX_TRACE = 1 << 14,
    MAX_OPEN = 256,
    LEAST_TURNS = 8,
    TOOLS = 3,
    RESULT_PART = 8,
    MAX_TEXT = 1 << 17
};

struct line {
    int32_t n_in, n_out;
};

struct open {                 /* a program under way */
    int32_t line, end, first; /* of the trace: the next turn, behind the last one, the first one */
    int32_t n_text, n_before; /* tokens so far, those of earlier turns */
    int32_t text[MAX_TEXT];
    uint64_t due_ns, began_ns;
    struct sl_request *req;
};

struct result {
    double seconds, latency_s, computed;
    int32_t n_turns, n_later, n_again; /* again: less than half of what was there was found */
    uint64_t n_ended, n_fell;
};

static struct line trace[MAX_TRACE];
static int32_t n_trace, n_programs = 32, n_seats = 32, n_most = 64, n_begun;
static double tool_scale = 1, retention = 0.75;
static float row[MAX_OPEN * VOCAB];
static struct sl_sys clock_sys;
static uint64_t clock_ns;

static uint64_t virtual_now(void)
{
    return clock_ns;
}

/* ---- the trace */

static bool read_trace(const char *path)
{
    char text[256];
    FILE *f = fopen(path, "r");
    while (f != NULL && n_trace < MAX_TRACE && fgets(text, sizeof text, f) != NULL) {
        char *in = strchr(text, ','), *out = in != NULL ? strchr(in + 1, ',') : NULL;
        struct line l = {0};
        if (out != NULL)
            l = (struct line){(int32_t)strtol(in + 1, NULL, 10),
                              (int32_t)strtol(out + 1, NULL, 10)};
        if (l.n_in > 0 && l.n_out > 0)
            trace[n_trace++] = l;
    }
    if (f != NULL)
        fclose(f);
    return n_trace >= 2 * LEAST_TURNS;
}

static double unit(uint64_t a, uint64_t b)
{
    return sl_rng_unit(sl_rng_at(a, b));
}

/* Lines of the program that begins at this one. */
static int32_t n_turns_of(int32_t first)
{
    return LEAST_TURNS + (int32_t)(unit(7, (uint64_t)first) * (2 * LEAST_TURNS + 1));
}

static int32_t tool_of(int32_t line)
{
    return (int32_t)(unit(8, (uint64_t)line) * TOOLS);
}

static uint64_t tool_ns(int32_t line)
{
    static const double usual_s[TOOLS] = {0.3, 2, 10};
    double x = -6; /* of many, a normal deviate */
    for (uint64_t i = 0; i < 12; i++)
        x += unit(9 + i, (uint64_t)line);
    return (uint64_t)(usual_s[tool_of(line)] * exp2(x) * tool_scale * 1e9);
}

/* ---- the device */

static int forward(void *ctx, const struct sl_batch *b, const float **rows, struct sl_error *err)
{
    double ns = 6e6;
    (void)ctx;
    (void)err;
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        ns += s->n == 1 ? 1e5 : 5e4 * s->n;
        ns += 1.3 * s->n * ((double)b->positions[s->first] + 0.5 * s->n);
    }
    clock_ns += (uint64_t)ns;
    *rows = row;
    return 0;
}

/* ---- programs */

/* Text is told apart by program and position. */
static void grow(struct open *p, int32_t n)
{
    for (n += p->n_text; p->n_text < n; p->n_text++)
        p->text[p->n_text] =
            (int32_t)(sl_mix64((uint64_t)p->first << 32 | (uint64_t)p->n_text) % VOCAB);
}

static void begin_turn(struct open *p, struct sl_engine *eng)
{
    const struct line *l = &trace[p->line];
    struct sl_request_desc d = {.prompt = p->text};
    struct sl_error err;
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.max_tokens = l->n_out;
    grow(p, p->n_before == 0 ? l->n_in : SL_CEIL_DIV(l->n_in, RESULT_PART));
    d.n_prompt = p->n_text;
    p->began_ns = clock_ns;
    if (sl_request_submit(eng, &d, &p->req, &err) != 0) {
        fprintf(stderr, "agent_bench: %s\n", err.msg);
        exit(1);
    }
}

static void end_turn(struct open *p, struct result *r)
{
    struct sl_usage u;
    sl_request_usage(p->req, &u);
    r->n_turns++;
    r->latency_s += (double)(clock_ns - p->began_ns) / 1e9;
    r->computed += u.n_prompt - u.n_cached;
    r->n_later += p->n_before > 0;
    r->n_again += u.n_cached < p->n_before / 2;
    p->n_before = p->n_text;
    p->due_ns = clock_ns + tool_ns(p->line);
    if (p->line + 1 < p->end)
        sl_request_calls(p->req, 0, 1 + (uint64_t)tool_of(p->line));
    sl_request_release(p->req);
    p->req = NULL;
    p->line++;
}

static void read_turn(struct open *p, struct result *r)
{
    struct sl_chunk c;
    while (sl_request_read(p->req, &c) == 1)
        for (size_t i = 0; i < c.n_tokens; i++)
            p->text[p->n_text++] = c.tokens[i].id;
    if (sl_request_done(p->req))
        end_turn(p, r);
}

/* The place gets the next program of the trace, from *at on; false: there is none. */
static bool begin_program(struct open *p, int32_t *at)
{
    const int32_t n = n_turns_of(*at);
    p->n_text = p->n_before = p->line = p->end = 0;
    if (n_begun == n_most || *at + n > n_trace)
        return false;
    p->first = p->line = *at;
    p->end = *at += n;
    p->due_ns = clock_ns;
    n_begun++;
    return true;
}

static bool act(struct open *p, struct sl_engine *eng, int32_t *at, struct result *r)
{
    if (p->req != NULL)
        read_turn(p, r);
    if (p->req == NULL && p->line == p->end && !begin_program(p, at))
        return false;
    if (p->req == NULL && p->due_ns <= clock_ns)
        begin_turn(p, eng);
    return true;
}

/* Until all programs have ended. Returns the most tokens that those which were open had. */
static int64_t replay(struct sl_engine *eng, struct result *r)
{
    static struct open open[MAX_OPEN];
    int32_t at = 0, n_open = 1;
    int64_t most = 0;
    n_begun = 0;
    for (int32_t i = 0; i < n_programs; i++)
        open[i].line = open[i].end = 0;
    while (n_open > 0) {
        uint64_t next_ns = UINT64_MAX;
        int64_t n = 0;
        n_open = 0;
        for (int32_t i = 0; i < n_programs; i++) {
            struct open *p = &open[i];
            n_open += act(p, eng, &at, r);
            n += SL_ROUND_UP(p->n_text + 1, BLOCK);
            if (p->line < p->end && p->req == NULL)
                next_ns = SL_MIN(next_ns, p->due_ns);
        }
        most = SL_MAX(most, n);
        if (!sl_engine_step(eng) && next_ns != UINT64_MAX && eng->live == NULL)
            clock_ns = SL_MAX(clock_ns, next_ns);
    }
    return most;
}

static int64_t run(int64_t n_tokens, double share, struct result *r)
{
    struct sl_host_model m = {.n_vocab = VOCAB, .forward = forward};
    struct sl_host_runner *host = NULL;
    struct sl_engine *eng = NULL;
    struct sl_error err;
    struct sl_engine_parts parts = {.info = {.model_path = "null",
                                             .kv_dtype = "none",
                                             .n_vocab = VOCAB,
                                             .max_model_len = MAX_TEXT,
                                             .block_size = BLOCK,
                                             .n_pages = (int32_t)(n_tokens / BLOCK),
                                             .max_num_seqs = n_seats,
                                             .max_num_batched_tokens = 4096},
                                    .max_itl_ms = 300,
                                    .watchdog_s = -1,
                                    .no_thread = true,
                                    .seed = 1,
                                    .kv_retention = share};
    *r = (struct result){0};
    clock_ns = 1000000000;
    sl_sampling_default(&parts.sampling);
    int rc = sl_host_runner_create(&m, n_seats, &host, &err);
    if (rc == 0) {
        sl_host_runner_use(host, &parts.runner);
        rc = sl_engine_start(&parts, &eng, &err);
    }
    if (rc != 0) {
        fprintf(stderr, "agent_bench: %s\n", err.msg);
        exit(1);
    }
    const int64_t most = replay(eng, r);
    r->seconds = (double)(clock_ns - 1000000000) / 1e9;
    r->n_ended = eng->kv.leases.n_ended;
    r->n_fell = eng->kv.leases.n_fell;
    sl_engine_destroy(eng);
    sl_host_runner_destroy(host);
    return most;
}

static void show(const char *room, const char *policy, const struct result *r)
{
    printf("%-6s %-10s %8.1f %8.3f %9.2f %8d %8d %12.0f %7llu %7llu\n", room, policy, r->seconds,
           r->n_turns / r->seconds, r->latency_s / r->n_turns, r->n_later, r->n_again, r->computed,
           (unsigned long long)r->n_ended, (unsigned long long)r->n_fell);
    fflush(stdout);
}

static void compare(const char *room, int64_t n_tokens)
{
    struct result kept, lru;
    for (int round = 0; round < 2; round++) { /* the clock is virtual: the second is the same */
        (void)run(n_tokens, 0, &lru);
        show(room, "lru", &lru);
        (void)run(n_tokens, retention, &kept);
        show(room, "retention", &kept);
    }
    printf("%s room: retention has %.2f times the throughput, %.2f times the latency\n", room,
           lru.seconds / kept.seconds * kept.n_turns / lru.n_turns,
           kept.latency_s / kept.n_turns / (lru.latency_s / lru.n_turns));
}

static bool read_args(int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (strcmp(argv[i], "--programs") == 0)
            n_programs = atoi(v);
        else if (strcmp(argv[i], "--seats") == 0)
            n_seats = atoi(v);
        else if (strcmp(argv[i], "--most") == 0)
            n_most = atoi(v);
        else if (strcmp(argv[i], "--retention") == 0)
            retention = atof(v);
        else if (strcmp(argv[i], "--tool-scale") == 0)
            tool_scale = atof(v);
        else
            return false;
    }
    return argc >= 2 && argc % 2 == 0 && n_programs > 0 && n_programs <= MAX_OPEN && n_seats > 0 &&
           n_seats <= MAX_OPEN && retention > 0 && retention < 1 && tool_scale > 0;
}

int main(int argc, char **argv)
{
    struct result r;
    if (!read_args(argc, argv) || !read_trace(argv[1])) {
        fprintf(stderr, "agent_bench FILE [--programs N] [--seats N] [--most N] [--retention S] "
                        " [--tool-scale S]\n");
        return 2;
    }
    clock_sys = sl_sys_real;
    clock_sys.now_ns = virtual_now;
    sl_sys = &clock_sys;
    const int64_t most = run((int64_t)n_programs * MAX_TEXT / 4, retention, &r);
    printf("%d programs of %d turns, %d open at a time, which have up to %lld tokens together; "
           "%d seats\n",
           n_begun, r.n_turns, n_programs, (long long)most, n_seats);
    printf("room   policy      seconds  turns/s latency s  later of  again     computed  ended    "
           "fell\n");
    compare("5/4", most * 5 / 4);
    compare("full", most);
    compare("half", most / 2);
    return 0;
}
