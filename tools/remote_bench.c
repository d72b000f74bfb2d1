/* SPDX-License-Identifier: MIT
 * remote_bench - GB/s of pages to and from a remote tier (src/tier/remote.h) over 1, 2, 4 and 8
 * connections, with digests, beside a plain copy over as many loopback connections.
 *
 * usage: remote_bench URL [KB of a page [MB in all [rounds]]]     (default: 1024, 256, 5)
 *
 * The best of the rounds is printed, which take turns. Its keys have a root of their own, and are
 * removed at the end.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "tier/remote.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_CONNS = 8 };
enum what { PUT, GET, PLAIN, N_WHAT };

struct bench {
    struct sl_store_config cfg;
    const struct sl_remote_kind *kind;
    struct sl_slab_kind pages;
    int32_t n_pages;
    uint8_t *memory; /* [n_pages] */
    void *conns[MOST_CONNS];
    int plain[MOST_CONNS][2];
};

struct worker {
    struct bench *b;
    pthread_t thread, sender;
    enum what what;
    int i, n; /* of so many */
};

static void die(const char *what, const struct sl_error *err)
{
    fprintf(stderr, "remote_bench: %s: %s\n", what, err->msg);
    exit(1);
}

static uint64_t deadline(void)
{
    return sl_now_ns() + 60000000000u;
}

static void transfer(struct bench *b, enum what what, void *conn, int32_t first, int32_t n)
{
    struct sl_remote_page pages[SL_REMOTE_BATCH];
    struct sl_error err;
    const size_t bytes = b->pages.page_bytes;
    for (int32_t i = 0; i < n; i++) {
        pages[i] = (struct sl_remote_page){.key = {{(uint64_t)(first + i), 1}, 0},
                                           .bytes = b->memory + (size_t)(first + i) * bytes,
                                           .n_bytes = bytes};
        if (what == PUT)
            sl_remote_put_head(pages[i].head, &b->pages, &pages[i].key.name, pages[i].bytes);
    }
    int rc = what == PUT ? b->kind->put(conn, pages, n, deadline(), &err)
                         : b->kind->get(conn, pages, n, deadline(), &err);
    if (rc != 0)
        die("transfer", &err);
    for (int32_t i = 0; i < n; i++) {
        if (pages[i].result != SL_REMOTE_DONE ||
            !sl_remote_head_right(pages[i].head, &b->pages, &pages[i].key.name, pages[i].bytes)) {
            fprintf(stderr, "remote_bench: a page is not what it was\n");
            exit(1);
        }
    }
}

/* The share of a worker, in bytes of memory. */
static uint8_t *share(const struct worker *w, int32_t *first, int32_t *n)
{
    *first = (int32_t)((int64_t)w->b->n_pages * w->i / w->n);
    *n = (int32_t)((int64_t)w->b->n_pages * (w->i + 1) / w->n) - *first;
    return w->b->memory + (size_t)*first * w->b->pages.page_bytes;
}

static void *send_plain(void *arg)
{
    const struct worker *w = arg;
    int32_t first, n;
    const uint8_t *at = share(w, &first, &n);
    for (size_t left = (size_t)n * w->b->pages.page_bytes; left > 0;) {
        const ssize_t k = send(w->b->plain[w->i][0], at, SL_MIN(left, 1u << 20), 0);
        SL_ASSERT(k > 0);
        left -= (size_t)k;
        at += k;
    }
    return NULL;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    int32_t first, n;
    uint8_t *at = share(w, &first, &n);
    if (w->what != PLAIN) {
        for (int32_t i = 0; i < n; i += SL_REMOTE_BATCH)
            transfer(w->b, w->what, w->b->conns[w->i], first + i, SL_MIN(n - i, SL_REMOTE_BATCH));
        return NULL;
    }
    for (size_t left = (size_t)n * w->b->pages.page_bytes; left > 0;) {
        const ssize_t k = recv(w->b->plain[w->i][1], at, left, 0);
        SL_ASSERT(k > 0);
        left -= (size_t)k;
        at += k;
    }
    return NULL;
}

static double run(struct bench *b, enum what what, int n_conns)
{
    struct worker workers[MOST_CONNS];
    struct sl_error err;
    const uint64_t begin = sl_now_ns();
    for (int i = 0; i < n_conns; i++) {
        struct worker *w = &workers[i];
        *w = (struct worker){.b = b, .what = what, .i = i, .n = n_conns};
        if (sl_thread_create(&w->thread, work, w, "bench", &err) != 0 ||
            (what == PLAIN && sl_thread_create(&w->sender, send_plain, w, "send", &err) != 0))
            die("thread", &err);
    }
    for (int i = 0; i < n_conns; i++) {
        pthread_join(workers[i].thread, NULL);
        if (what == PLAIN)
            pthread_join(workers[i].sender, NULL);
    }
    return (double)b->n_pages * (double)b->pages.page_bytes / (double)(sl_now_ns() - begin);
}

static void connect_plain(int fds[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, n) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&a, &n) != 0 ||
        connect(fds[0], (struct sockaddr *)&a, n) != 0)
        abort();
    fds[1] = accept(listener, NULL, NULL);
    close(listener);
}

static void open_all(struct bench *b)
{
    struct sl_error err;
    for (int i = 0; i < MOST_CONNS; i++) {
        if (b->kind->create(&b->cfg, &b->conns[i], &err) != 0 ||
            b->kind->open(b->conns[i], deadline(), &err) != 0)
            die("connect", &err);
        connect_plain(b->plain[i]);
    }
}

static void close_all(struct bench *b)
{
    struct sl_error err;
    for (int32_t i = 0; i < b->n_pages; i++) {
        const struct sl_store_key key = {{(uint64_t)i, 1}, 0};
        if (b->kind->forget(b->conns[0], &key, deadline(), &err) != 0)
            die("forget", &err);
    }
    for (int i = 0; i < MOST_CONNS; i++) {
        b->kind->destroy(b->conns[i]);
        close(b->plain[i][0]);
        close(b->plain[i][1]);
    }
}

static uint64_t number(int argc, char **argv, int i, uint64_t otherwise)
{
    uint64_t n = otherwise;
    if (argc > i && (!sl_parse_u64(argv[i], strlen(argv[i]), &n) || n == 0 || n > 1u << 20)) {
        fprintf(stderr, "usage: remote_bench URL [KB of a page [MB in all [rounds]]]\n");
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    const uint64_t kb = number(argc, argv, 2, 1024), mb = number(argc, argv, 3, 256);
    const int rounds = (int)number(argc, argv, 4, 5);
    struct sl_error err;
    struct bench b = {.cfg = {.root = {0x62656E6368, 1}, .n_groups = 1, .remote_ttl_s = 600}};
    b.cfg.page_bytes[0] = (size_t)kb << 10;
    b.n_pages = (int32_t)SL_MAX((mb << 10) / kb, 1u);
    b.pages = (struct sl_slab_kind){b.cfg.root, kb << 10, 0, 1};
    b.cfg.remote_url = argc > 1 ? argv[1] : "";
    if (sl_remote_find(b.cfg.remote_url, &b.kind, &err) != 0)
        die("URL", &err);
    b.memory = sl_aligned_alloc((size_t)b.n_pages * b.pages.page_bytes);
    if (b.memory == NULL)
        return 1;
    for (size_t i = 0; i < (size_t)b.n_pages * b.pages.page_bytes; i++)
        b.memory[i] = (uint8_t)(i * 7 + i / 4096);
    open_all(&b);
    printf("%d pages of %llu KB, best of %d rounds, GB/s\n%12s %10s %10s %10s\n", b.n_pages,
           (unsigned long long)kb, rounds, "connections", "put", "get", "plain copy");
    for (int n = 1; n <= MOST_CONNS; n *= 2) {
        double best[N_WHAT] = {0};
        for (int i = 0; i < rounds; i++)
            for (int what = PUT; what < N_WHAT; what++)
                best[what] = SL_MAX(best[what], run(&b, (enum what)what, n));
        printf("%12d %10.2f %10.2f %10.2f\n", n, best[PUT], best[GET], best[PLAIN]);
    }
    close_all(&b);
    sl_aligned_free(b.memory, (size_t)b.n_pages * b.pages.page_bytes);
    return 0;
}
