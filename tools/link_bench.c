/* SPDX-License-Identifier: MIT
 * link_bench - what a gather between ranks in processes of their own takes, over TCP and in shared
 * memory, beside a copy of as many bytes; and what it takes to have the threads of ranks of one
 * process call a function, while they still look for it, and when they sleep.
 *
 * usage: link_bench [ranks [seconds]]   (default: 2 ranks, half a second each)
 *
 * Bytes are those of the whole, a row of each token, as a step has them: each rank has a part of
 * each row. Two of the ranks on two cores wait for each other in turns: the time is that of a whole
 * gather, the copy into place with it. Processor time is that of rank 0.
 */
#include "base/check.h"
#include "base/shm.h"
#include "base/str.h"
#include "base/sys.h"
#include "dist/link.h"
#include "dist/note.h"
#include "engine/team.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROW_BYTES 8192u /* of 4,096 values in BF16, or 2,048 floats */
#define MOST      (1u << 20)
#define ROUND     20 /* gathers whose mean is a time; the best one is printed */

static const size_t sizes[] = {8u << 10, 64u << 10, MOST};

struct bench {
    struct sl_link_config cfg;
    struct sl_link *link;
    void *memory; /* of shared memory, or NULL */
    uint8_t *own, *out;
};

static double cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int gather(struct bench *b, size_t n_bytes, int i)
{
    struct sl_link_part parts[SL_MAX_RANKS];
    const size_t part = ROW_BYTES / (size_t)b->cfg.n_ranks, row = part * (size_t)b->cfg.n_ranks;
    const struct sl_link_gather g = {
        .part = b->memory != NULL ? sl_link_shm_room(&b->cfg, b->memory, i % 2) : b->own,
        .part_bytes = part,
        .n = (int32_t)(n_bytes / ROW_BYTES),
        .out = b->out};
    int rc = sl_link_all_gather(b->link, &g, parts);
    for (int r = 0; r < b->cfg.n_ranks && rc == 0; r++)
        for (int32_t t = 0; t < g.n && parts[r].rows != NULL; t++)
            memcpy(b->out + (size_t)t * row + (size_t)r * part, parts[r].rows + (size_t)t * part,
                   part);
    return rc;
}

/* Rank 0 says with each step how many gathers follow; 0: no more. */
static int follow(struct bench *b)
{
    uint64_t what[2];
    size_t n;
    int rc = 0;
    while (rc == 0) {
        rc = sl_link_recv(b->link, what, sizeof what, &n);
        if (rc != 0 || what[0] == 0)
            return rc;
        for (uint64_t i = 0; i < what[0] && rc == 0; i++)
            rc = gather(b, (size_t)what[1], (int)i);
    }
    return rc;
}

static int measure(struct bench *b, const char *kind, double seconds)
{
    int rc = 0;
    for (size_t s = 0; s < SL_COUNT(sizes) && rc == 0; s++) {
        double best = 1e30, cpu = 1e30;
        const uint64_t end_ns = sl_now_ns() + (uint64_t)(seconds * 1e9);
        while (rc == 0 && sl_now_ns() < end_ns) {
            const uint64_t what[2] = {ROUND, sizes[s]};
            rc = sl_link_send(b->link, what, sizeof what);
            const double cpu0 = cpu_us();
            const uint64_t t0 = sl_now_ns();
            for (uint64_t i = 0; i < what[0] && rc == 0; i++)
                rc = gather(b, sizes[s], (int)i);
            best = SL_MIN(best, (double)(sl_now_ns() - t0) / (ROUND * 1e3));
            cpu = SL_MIN(cpu, (cpu_us() - cpu0) / ROUND);
        }
        printf("%-14s %7zu KB  %9.2f us  %9.2f us\n", kind, sizes[s] >> 10, best, cpu);
    }
    return rc;
}

static void measure_copy(struct bench *b, double seconds)
{
    for (size_t s = 0; s < SL_COUNT(sizes); s++) {
        double best = 1e30;
        const uint64_t end_ns = sl_now_ns() + (uint64_t)(seconds * 1e9);
        while (sl_now_ns() < end_ns) {
            const uint64_t t0 = sl_now_ns();
            for (int i = 0; i < ROUND; i++) {
                memcpy(b->out, b->own, sizes[s]);
                __asm__ volatile("" ::: "memory");
            }
            best = SL_MIN(best, (double)(sl_now_ns() - t0) / (ROUND * 1e3));
        }
        printf("%-14s %7zu KB  %9.2f us\n", "memcpy", sizes[s] >> 10, best);
    }
}

/* Real connections, as between hosts. */
static int connect_all(const struct bench *b, int first[SL_MAX_RANKS], int other[SL_MAX_RANKS],
                       struct sl_error *err)
{
    int port = 0, listener;
    int rc = sl_rank_listen("127.0.0.1", false, &port, &listener, err);
    for (int i = 1; i < b->cfg.n_ranks && rc == 0; i++) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        rc = sl_rank_dial("127.0.0.1", port, 1000, &other[i], err);
        if (rc == 0 && (poll(&p, 1, 1000) != 1 ||
                        (first[i - 1] = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0))
            rc = sl_fail(err, SL_EIO, "no connection came");
        if (rc == 0)
            sl_rank_no_delay(first[i - 1]);
    }
    return rc;
}

static int run(struct bench *b, bool shm, double seconds, struct sl_error *err)
{
    int first[SL_MAX_RANKS], other[SL_MAX_RANKS], fd, rc;
    const size_t n = sl_link_shm_bytes(&b->cfg);
    b->memory = NULL;
    if (shm) {
        rc = sl_shm_create(n, &fd, err);
        rc = rc == 0 ? sl_shm_map(fd, n, NULL, &b->memory, err) : rc;
    } else {
        rc = connect_all(b, first, other, err);
    }
    if (rc != 0)
        return rc;
    fflush(stdout);
    for (int i = 1; i < b->cfg.n_ranks; i++)
        if (fork() == 0) {
            b->cfg.rank = i;
            rc = shm ? sl_link_shm_open(&b->cfg, b->memory, &b->link, err)
                     : sl_link_tcp_open(&b->cfg, &other[i], &b->link, err);
            _exit(rc == 0 ? follow(b) != 0 : 2);
        }
    rc = shm ? sl_link_shm_open(&b->cfg, b->memory, &b->link, err)
             : sl_link_tcp_open(&b->cfg, first, &b->link, err);
    if (rc != 0)
        return rc;
    rc = measure(b, shm ? "shared memory" : "TCP, loopback", seconds);
    if (rc != 0)
        *err = b->link->error;
    const uint64_t over[2] = {0, 0};
    if (rc == 0)
        rc = sl_link_send(b->link, over, sizeof over);
    while (wait(NULL) > 0)
        ;
    sl_link_close(b->link);
    sl_shm_unmap(b->memory, n);
    return rc;
}

static int nothing(void *arg, int rank, struct sl_error *err)
{
    (void)arg, (void)rank, (void)err;
    return 0;
}

static int measure_team(int n_ranks, int pause_ms, double seconds, struct sl_error *err)
{
    struct sl_team *t = NULL;
    int rc = sl_team_create(n_ranks, &t, err);
    double sum = 0;
    uint64_t n = 0;
    const uint64_t end_ns = sl_now_ns() + (uint64_t)(seconds * 1e9);
    while (rc == 0 && sl_now_ns() < end_ns) {
        if (pause_ms > 0)
            (void)poll(NULL, 0, pause_ms);
        const uint64_t t0 = sl_now_ns();
        rc = sl_team_run(t, nothing, NULL, err);
        sum += (double)(sl_now_ns() - t0) / 1e3;
        n++;
    }
    if (rc == 0)
        printf("%-14s %7d ms  %9.2f us\n", "team, pause", pause_ms, sum / (double)n);
    sl_team_destroy(t);
    return rc;
}

int main(int argc, char **argv)
{
    struct sl_error err = {0};
    uint64_t n_ranks = 2, ms = 500;
    if (argc > 1 && (!sl_parse_u64(argv[1], strlen(argv[1]), &n_ranks) || n_ranks < 2 ||
                     n_ranks > SL_MAX_RANKS))
        return 2;
    if (argc > 2 &&
        (!sl_parse_u64(argv[2], strlen(argv[2]), &ms) || ms < 1 || (ms *= 1000) > 600000))
        return 2;
    struct bench b = {.cfg = {.n_ranks = (int)n_ranks, .max_message = 64, .room_bytes = MOST}};
    b.own = sl_aligned_alloc(MOST);
    b.out = sl_aligned_alloc(MOST);
    if (b.own == NULL || b.out == NULL)
        return 1;
    memset(b.own, 1, MOST); /* pages of their own, not the one of zeros */
    memset(b.out, 2, MOST);
    printf("%-14s %10s  %12s  %12s\n", "a gather", "bytes", "time", "rank 0's CPU");
    int rc = run(&b, true, (double)ms / 1e3, &err);
    if (rc == 0)
        rc = run(&b, false, (double)ms / 1e3, &err);
    measure_copy(&b, (double)ms / 1e3);
    for (int pause_ms = 0; pause_ms <= 4 && rc == 0; pause_ms += 4)
        rc = measure_team((int)n_ranks, pause_ms, (double)ms / 1e3, &err);
    if (rc != 0)
        fprintf(stderr, "link_bench: %s\n", err.msg);
    return rc != 0;
}
