/* SPDX-License-Identifier: MIT
 * peer_bench.c - how fast the pages of a prompt go from one server to another (src/tier/serve.c,
 * peer.c) over TCP, and by NIXL if its library is here, beside the same bytes over plain sockets,
 * in turns. Both ends run in this process.
 *
 * usage: peer_bench [KB of a page] [MB in all] [rounds]
 *
 * A plain copy sends from one area of memory and reads into another, with as many connections, and
 * a thread for each end of one. The service copies from one store into another, with digests.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "tier/peer.h"
#include "tier/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BLOCK     16
#define MAX_CONNS SL_MAX_PEER_THREADS
#define CALL      (1u << 20) /* bytes of one send or receive of a plain copy */
#define TAIL      (sizeof(struct sl_hash128) + BLOCK * sizeof(int32_t))

struct timing {
    uint64_t at, cpu;
};

static uint64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct timing start(void)
{
    return (struct timing){sl_now_ns(), cpu_ns()};
}

static double report(const char *what, const struct timing *t, uint64_t n_bytes)
{
    double s = (double)(sl_now_ns() - t->at) / 1e9, cpu = (double)(cpu_ns() - t->cpu) / 1e9;
    printf("  %-34s %7.2f GB/s %8.1f ms   %5.2f s of processor time a GB\n", what,
           (double)n_bytes / 1e9 / s, s * 1e3, cpu / ((double)n_bytes / 1e9));
    return s;
}

static void die(const char *what)
{
    fprintf(stderr, "peer_bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- plain sockets */

struct end {
    int fd;
    uint8_t *p;
    uint64_t n;
};

static void *send_all(void *arg)
{
    struct end *e = arg;
    for (uint64_t at = 0; at < e->n;) {
        ssize_t n = send(e->fd, e->p + at, SL_MIN(e->n - at, CALL), MSG_NOSIGNAL);
        if (n <= 0)
            die("send");
        at += (uint64_t)n;
    }
    return NULL;
}

static void *recv_all(void *arg)
{
    struct end *e = arg;
    for (uint64_t at = 0; at < e->n;) {
        ssize_t n = recv(e->fd, e->p + at, SL_MIN(e->n - at, CALL), 0);
        if (n <= 0)
            die("recv");
        at += (uint64_t)n;
    }
    return NULL;
}

static void connect_pair(int listen_fd, int port, int fds[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fds[0], (struct sockaddr *)&a, sizeof a) != 0)
        die("connect");
    fds[1] = accept(listen_fd, NULL, NULL);
    if (fds[1] < 0)
        die("accept");
    sl_peer_tune(fds[0]);
    sl_peer_tune(fds[1]);
}

static double plain(uint8_t *from, uint8_t *to, uint64_t n_bytes, int n_conns)
{
    struct sl_error err;
    struct end ends[2 * MAX_CONNS];
    pthread_t threads[2 * MAX_CONNS];
    int port = 0, listen_fd;
    char what[40];
    if (sl_peer_listen("127.0.0.1", &port, &listen_fd, &err) != 0)
        die(err.msg);
    (void)fcntl(listen_fd, F_SETFL, 0);
    const uint64_t part = n_bytes / (uint64_t)n_conns;
    struct timing t = start();
    for (int i = 0; i < n_conns; i++) {
        int fds[2];
        connect_pair(listen_fd, port, fds);
        ends[2 * i] = (struct end){fds[1], from + (uint64_t)i * part, part};
        ends[2 * i + 1] = (struct end){fds[0], to + (uint64_t)i * part, part};
        if (pthread_create(&threads[2 * i], NULL, send_all, &ends[2 * i]) != 0 ||
            pthread_create(&threads[2 * i + 1], NULL, recv_all, &ends[2 * i + 1]) != 0)
            die("pthread_create");
    }
    for (int i = 0; i < 2 * n_conns; i++) {
        pthread_join(threads[i], NULL);
        close(ends[i].fd);
    }
    close(listen_fd);
    snprintf(what, sizeof what, "plain sockets, %d connection%s", n_conns, n_conns > 1 ? "s" : "");
    return report(what, &t, part * (uint64_t)n_conns);
}

/* ---- the service */

struct bench {
    struct sl_page_layout layout;
    struct sl_store *from, *to;
    struct sl_serve *serve;
    struct sl_peer *peer;
    struct sl_nixl *nixl[2]; /* of each side; NULL: TCP only */
    int32_t n_blocks;
    struct sl_hash128 *names;
    int32_t *tokens;
};

static void put_tail(uint8_t *tail, const struct sl_hash128 *before, const int32_t *tokens,
                     int32_t block_size)
{
    memcpy(tail, before, sizeof *before);
    memcpy(tail + sizeof *before, tokens, (size_t)block_size * sizeof *tokens);
}

static struct sl_store *open_store(const struct bench *b)
{
    struct sl_error err;
    struct sl_store *s;
    const size_t page = b->layout.page_bytes[0] + TAIL;
    struct sl_store_config cfg = {.root = b->layout.root,
                                  .n_groups = 1,
                                  .page_bytes = {page},
                                  .host_bytes =
                                      2 * (uint64_t)(b->n_blocks + 64) * SL_ROUND_UP(page, 4096)};
    if (sl_store_open(&cfg, &s, &err) != 0)
        die(err.msg);
    struct sl_store_stats st;
    do { /* memory is made ready by a thread */
        usleep(1000);
        sl_store_stats(s, SL_TIER_HOST, &st);
    } while (st.ready_bytes < SL_MIN(st.capacity_bytes, UINT64_C(448) << 20));
    return s;
}

static void fill(struct bench *b)
{
    for (int32_t i = 0; i < b->n_blocks; i++) {
        b->names[i] = (struct sl_hash128){sl_mix64((uint64_t)i), 1};
        const struct sl_store_key key = {b->names[i], 0};
        uint8_t *page = sl_store_reserve(b->from, &key);
        while (page == NULL) { /* memory is not ready yet */
            usleep(1000);
            page = sl_store_reserve(b->from, &key);
        }
        for (size_t at = 0; at + 8 <= b->layout.page_bytes[0]; at += 8) {
            uint64_t x = sl_rng_at((uint64_t)i, at);
            memcpy(page + at, &x, 8);
        }
        sl_store_commit(b->from, page);
    }
}

/* An agent for each side, if the library is here. */
static void open_nixl(struct bench *b)
{
    struct sl_error err;
    size_t n;
    for (int i = 0; i < 2; i++) {
        const struct sl_nixl_config cfg = {.store = i == 0 ? b->from : b->to, .backend = "UCX"};
        if (sl_nixl_open(&cfg, &b->nixl[i], &err) != 0) {
            printf("without NIXL: %s\n", err.msg);
            return;
        }
    }
    const uint64_t end = sl_now_ns() + UINT64_C(20000000000);
    for (int i = 0; i < 2; i++)
        while (sl_nixl_metadata(b->nixl[i], &n) == NULL && sl_now_ns() < end)
            usleep(1000);
}

/* The service and who asks it; pages go by NIXL if both have it. */
static void open_way(struct bench *b, bool nixl)
{
    struct sl_error err;
    struct sl_serve_config serve = {.store = b->from,
                                    .nixl = nixl ? b->nixl[0] : NULL,
                                    .layout = b->layout,
                                    .host = "127.0.0.1",
                                    .host_bytes = UINT64_MAX / 4,
                                    .lease_ms = 60000};
    struct sl_peer_config peer = {.store = b->to,
                                  .nixl = nixl ? b->nixl[1] : NULL,
                                  .layout = b->layout,
                                  .put_tail = put_tail};
    if (sl_netlist_read(NULL, "peers", &serve.peers, &err) != 0 ||
        sl_netlist_read(NULL, "peers", &peer.peers, &err) != 0 ||
        sl_serve_open(&serve, &b->serve, &err) != 0 || sl_peer_open(&peer, &b->peer, &err) != 0)
        die(err.msg);
}

static void close_way(struct bench *b)
{
    sl_serve_close(b->serve);
    sl_peer_close(b->peer);
}

static double hand_over(struct bench *b, uint64_t round, const char *what)
{
    const struct sl_lease_id id = {.lo = round, .hi = 9};
    struct sl_hash128 *names = malloc((size_t)b->n_blocks * sizeof *names);
    for (int32_t i = 0; i < b->n_blocks; i++) /* names that the store does not have yet */
        names[i] = (struct sl_hash128){sl_mix64((uint64_t)i), 2 + round};
    struct sl_lease *l = sl_serve_lease(b->serve, &id, b->n_blocks, b->names, b->tokens);
    sl_lease_over(l, 0, false);
    usleep(20000);
    struct sl_peer_want want = {.host = "127.0.0.1",
                                .port = sl_serve_port(b->serve),
                                .id = id,
                                .n_blocks = b->n_blocks,
                                .names = names,
                                .tokens = b->tokens,
                                .wait_ms = 60000};
    struct timing t = start();
    struct sl_peer_job *j = sl_peer_begin(b->peer, &want);
    while (!sl_peer_over(j))
        usleep(50);
    double s = report(what, &t, (uint64_t)b->n_blocks * (uint64_t)b->layout.page_bytes[0]);
    struct sl_store_key last = {names[b->n_blocks - 1], 0};
    if (!sl_store_has(b->to, &last))
        printf("  NOT ALL OF IT CAME\n");
    sl_peer_unref(j);
    sl_lease_unref(l);
    free(names);
    return s;
}

static void take_best(double *best, double s)
{
    *best = SL_MIN(*best, s);
}

static double hand_over_by_nixl(struct bench *b, uint64_t round)
{
    struct sl_nixl_stats before, after;
    open_way(b, true);
    sl_nixl_stats(b->nixl[1], &before);
    double s = hand_over(b, round, "hand-over, NIXL");
    sl_nixl_stats(b->nixl[1], &after);
    if (after.n_reads - before.n_reads != (uint64_t)b->n_blocks)
        printf("  only %llu of %d pages by NIXL, %llu failed, %llu late\n",
               (unsigned long long)(after.n_reads - before.n_reads), (int)b->n_blocks,
               (unsigned long long)after.n_failed, (unsigned long long)after.n_late);
    close_way(b);
    return s;
}

int main(int argc, char **argv)
{
    uint64_t kb = 2048, mb = 512, rounds = 3;
    if ((argc > 1 && !sl_parse_u64(argv[1], strlen(argv[1]), &kb)) ||
        (argc > 2 && !sl_parse_u64(argv[2], strlen(argv[2]), &mb)) ||
        (argc > 3 && !sl_parse_u64(argv[3], strlen(argv[3]), &rounds)) || kb == 0 || mb == 0) {
        fprintf(stderr, "usage: peer_bench [KB of a page] [MB in all] [rounds]\n");
        return 2;
    }
    struct bench b = {.layout = {.root = {1, 2}, .block_size = BLOCK, .n_groups = 1}};
    b.layout.page_bytes[0] = (size_t)kb << 10;
    b.n_blocks = (int32_t)SL_MAX((mb << 10) / kb, 1);
    b.names = calloc((size_t)b.n_blocks, sizeof *b.names);
    b.tokens = calloc((size_t)b.n_blocks * BLOCK, sizeof *b.tokens);
    b.from = open_store(&b);
    b.to = open_store(&b);
    fill(&b);
    open_nixl(&b);
    const uint64_t n_bytes = (uint64_t)b.n_blocks * (kb << 10);
    uint8_t *from = malloc(n_bytes), *to = malloc(n_bytes);
    if (from == NULL || to == NULL)
        die("malloc");
    memset(from, 1, n_bytes);
    memset(to, 2, n_bytes);
    const int n_conns = SL_MIN(SL_MAX(sl_cpu_count() / 2, 1), MAX_CONNS);
    double best_plain = 1e9, best = 1e9, best_nixl = 1e9;
    printf("%d pages of %llu KB, %d processors\n", (int)b.n_blocks, (unsigned long long)kb,
           sl_cpu_count());
    for (uint64_t i = 0; i < rounds; i++) {
        for (int n = 1; n <= n_conns; n += SL_MAX(n_conns - 1, 1))
            take_best(&best_plain, plain(from, to, n_bytes, n));
        open_way(&b, false);
        take_best(&best, hand_over(&b, 2 * i, "hand-over, TCP"));
        close_way(&b);
        if (b.nixl[1] != NULL)
            take_best(&best_nixl, hand_over_by_nixl(&b, 2 * i + 1));
    }
    printf("best: hand-over %.1f ms, plain sockets %.1f ms: %.2f times\n", best * 1e3,
           best_plain * 1e3, best / best_plain);
    if (b.nixl[1] != NULL)
        printf("by NIXL %.1f ms: %.2f times\n", best_nixl * 1e3, best_nixl / best);
    for (int i = 0; i < 2; i++)
        if (!sl_nixl_close(b.nixl[i]))
            printf("NIXL did not end\n");
    sl_store_close(b.from);
    sl_store_close(b.to);
    free(from);
    free(to);
    free(b.names);
    free(b.tokens);
    return 0;
}
