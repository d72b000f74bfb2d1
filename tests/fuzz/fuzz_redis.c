/* SPDX-License-Identifier: MIT
 * What a peer answers to the remote tier's commands. The input is the operation, the page sizes and
 * then the answers, as they come over a connection that the peer closes behind them.
 *
 * Whatever they are: a page that is said to be here has the very bytes that the peer sent, as a
 * string of the right length; a page that is said to exist had an answer that says so; the secret
 * is one that the peer sent. Everything ends, in time, and no byte is written outside of a page.
 */
#include "base/sys.h"
#include "fuzz.h"
#include "tier/redis.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define N_PAGES 4
#define MOST    300 /* bytes of a page */
#define GUARD   64

static int listener;
static char url[64];
static uint8_t room[N_PAGES][MOST + GUARD];

static struct sl_store_config config(void)
{
    return (struct sl_store_config){
        .root = {3, 4}, .n_groups = 2, .remote_url = url, .remote_ttl_s = 7};
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    (void)argc;
    (void)argv;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) != 0 ||
        listen(listener, 8) != 0 || getsockname(listener, (struct sockaddr *)&a, &n) != 0)
        abort();
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", ntohs(a.sin_port));
    return 0;
}

/* Is "$N", the head and the page, and CR LF among what the peer sent? */
static bool was_sent(const uint8_t *text, size_t n_text, const struct sl_remote_page *p)
{
    uint8_t all[MOST + 128];
    int n = snprintf((char *)all, 32, "%zu\r\n", p->n_bytes + SL_REMOTE_HEAD);
    memcpy(all + n, p->head, SL_REMOTE_HEAD);
    memcpy(all + n + SL_REMOTE_HEAD, p->bytes, p->n_bytes);
    memcpy(all + n + SL_REMOTE_HEAD + p->n_bytes, "\r\n", 2);
    return memmem(text, n_text, all, (size_t)n + SL_REMOTE_HEAD + p->n_bytes + 2) != NULL;
}

static void make_pages(struct sl_remote_page pages[N_PAGES], struct sl_input *in)
{
    memset(room, 0xA5, sizeof room);
    for (int i = 0; i < N_PAGES; i++)
        pages[i] = (struct sl_remote_page){.key = {{(uint64_t)i, 5}, i % 2},
                                           .bytes = room[i],
                                           .n_bytes = 1u + (size_t)sl_input_byte(in)};
}

static void check_pages(const struct sl_remote_page pages[N_PAGES], const struct sl_input *in,
                        int rc)
{
    for (int i = 0; i < N_PAGES; i++) {
        for (size_t k = pages[i].n_bytes; k < MOST + GUARD; k++)
            SL_ASSERT(room[i][k] == 0xA5);
        if (rc == 0 && pages[i].result == SL_REMOTE_DONE)
            SL_ASSERT(was_sent(in->at, (size_t)(in->end - in->at), &pages[i]));
    }
}

static size_t count(const struct sl_input *in, const char *what)
{
    size_t n = 0;
    for (const uint8_t *at = in->at; at < in->end; at++, n++) {
        at = memmem(at, (size_t)(in->end - at), what, strlen(what));
        if (at == NULL)
            break;
    }
    return n;
}

static void probe(void *conn, const struct sl_input *in, uint64_t deadline)
{
    struct sl_store_key keys[6];
    bool found[6] = {false, true, false, false, false, false};
    struct sl_error err;
    size_t n_found = 0;
    for (int i = 0; i < 6; i++)
        keys[i] = (struct sl_store_key){{(uint64_t)i, 6}, i % 2};
    int rc = sl_remote_redis.probe(conn, keys, 6, 0, found, deadline, &err);
    for (int i = 0; i < 6; i++)
        n_found += i != 1 && found[i];
    SL_ASSERT(found[1] && (rc != 0 || n_found <= count(in, "1\r\n")));
}

static void agree(void *conn, const struct sl_input *in, uint64_t deadline)
{
    uint64_t seed = 77;
    struct sl_error err;
    char text[32];
    if (sl_remote_redis.agree(conn, &seed, deadline, &err) != 0 || in->at == in->end)
        return;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)seed);
    char sent[1024] = "";
    for (size_t i = 0; i < (size_t)(in->end - in->at) && i < sizeof sent - 1; i++)
        sent[i] = (char)(in->at[i] >= 'A' && in->at[i] <= 'F' ? in->at[i] + 32 : in->at[i]);
    SL_ASSERT(memmem(sent, sizeof sent, text, 16) != NULL);
}

static void run(void *conn, struct sl_input *in, int what, struct sl_remote_page pages[N_PAGES])
{
    const uint64_t deadline = sl_now_ns() + 20000000000u;
    struct sl_error err;
    int rc = 0;
    switch (what) {
    case 0:
        rc = sl_remote_redis.get(conn, pages, N_PAGES, deadline, &err);
        check_pages(pages, in, rc);
        break;
    case 1:
        probe(conn, in, deadline);
        break;
    case 2:
        rc = sl_remote_redis.put(conn, pages, N_PAGES, deadline, &err);
        break;
    case 3:
        agree(conn, in, deadline);
        break;
    default:
        rc = sl_remote_redis.forget(conn, &pages[0].key, deadline, &err);
    }
    SL_ASSERT(rc <= 0 && rc != SL_ETIMEOUT); /* the peer closes, so nobody waits so long */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void *conn;
    struct sl_input in = {data, data + size};
    struct sl_remote_page pages[N_PAGES];
    struct sl_error err;
    const struct sl_store_config cfg = config();
    const struct linger at_once = {.l_onoff = 1}; /* no port stays in use */
    if (conn == NULL && sl_remote_redis.create(&cfg, &conn, &err) != 0)
        abort();
    const int what = sl_input_below(&in, 5);
    make_pages(pages, &in);
    if (sl_remote_redis.open(conn, sl_now_ns() + 20000000000u, &err) != 0)
        abort();
    const int fd = accept(listener, NULL, NULL);
    size_t n = (size_t)(in.end - in.at);
    if (fd < 0 || send(fd, in.at, n, MSG_NOSIGNAL) != (ssize_t)n || shutdown(fd, SHUT_WR) != 0)
        abort();
    run(conn, &in, what, pages);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)close(fd);
    sl_remote_redis.shut(conn);
    return 0;
}
