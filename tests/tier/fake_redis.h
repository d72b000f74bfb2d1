/* SPDX-License-Identifier: MIT
 * fake_redis.h - a peer that speaks RESP2 as Redis does, on a port of its own of this machine, and
 * does wrong what a test says: it hangs, closes, sends slowly, lies.
 */
#ifndef SL_TESTS_FAKE_REDIS_H
#define SL_TESTS_FAKE_REDIS_H

#include "base/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PEER_VALUES = 512, PEER_CONNS = 900, PEER_ARGS = 8, PEER_ARG = 1 << 17 };

enum peer_fault {
    PEER_WELL,
    PEER_HANGS,      /* no answer */
    PEER_CLOSES,     /* instead of an answer */
    PEER_CLOSES_MID, /* in the middle of an answer */
    PEER_DRIPS,      /* a byte in 20 ms */
    PEER_FLOODS,     /* bytes without an end of line, and without an end */
    PEER_SPEAKS,     /* HTTP */
    PEER_ERRS,       /* -LOADING */
    PEER_IS_FULL,    /* -OOM */
    PEER_HUGE,       /* a string of 2^60 bytes */
    PEER_BIG,        /* a string longer than any page */
    PEER_NEGATIVE,   /* of -7 */
    PEER_NO_END,     /* a string without CR LF behind it */
    PEER_NO_NUMBER,
    PEER_WRONG_TYPE, /* -WRONGTYPE */
    PEER_ARRAY,      /* an array of 2^31 answers */
    PEER_LOSES,      /* nil, or 0 */
    PEER_N_FAULTS
};

struct peer_value {
    char key[128];
    uint8_t *bytes;
    size_t n;
};

struct peer {
    int fd, port;
    pthread_t thread;
    pthread_mutex_t lock;
    struct peer_value values[PEER_VALUES];
    int conns[PEER_CONNS];
    pthread_t threads[PEER_CONNS];
    atomic_int n_conns, n_commands;
    char password[64];
    _Atomic int fault;
    char fault_of[16]; /* the command that it befalls; "": all */
    atomic_bool ends;
};

struct peer_conn {
    struct peer *p;
    int fd;
    size_t at, n;
    char room[4096];
    char args[PEER_ARGS][PEER_ARG];
    size_t sizes[PEER_ARGS];
    int n_args;
};

static inline bool peer_take(struct peer_conn *c, void *dst, size_t n)
{
    for (char *to = dst; n > 0;) {
        if (c->at == c->n) {
            ssize_t got = recv(c->fd, c->room, sizeof c->room, 0);
            if (got <= 0)
                return false;
            c->at = 0;
            c->n = (size_t)got;
        }
        const size_t k = SL_MIN(n, c->n - c->at);
        memcpy(to, c->room + c->at, k);
        c->at += k;
        to += k;
        n -= k;
    }
    return true;
}

static inline long peer_number(struct peer_conn *c, char type)
{
    char line[32];
    size_t n = 0;
    do {
        if (n == sizeof line - 1 || !peer_take(c, line + n, 1))
            return -1;
    } while (line[n++] != '\n');
    line[n] = '\0';
    return line[0] == type ? strtol(line + 1, NULL, 10) : -1;
}

static inline bool peer_command(struct peer_conn *c)
{
    char end[2];
    c->n_args = (int)peer_number(c, '*');
    if (c->n_args < 1 || c->n_args > PEER_ARGS)
        return false;
    for (int i = 0; i < c->n_args; i++) {
        const long n = peer_number(c, '$');
        if (n < 0 || n >= PEER_ARG || !peer_take(c, c->args[i], (size_t)n) ||
            !peer_take(c, end, sizeof end))
            return false;
        c->sizes[i] = (size_t)n;
        c->args[i][n] = '\0';
    }
    return true;
}

static inline bool peer_say(struct peer_conn *c, const void *bytes, size_t n)
{
    for (const char *at = bytes; n > 0;) {
        ssize_t k = send(c->fd, at, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

static inline bool peer_text(struct peer_conn *c, const char *text)
{
    return peer_say(c, text, strlen(text));
}

static inline struct peer_value *peer_find(struct peer *p, const char *key, bool make)
{
    struct peer_value *none = NULL;
    for (int i = 0; i < PEER_VALUES; i++) {
        if (strcmp(p->values[i].key, key) == 0)
            return &p->values[i];
        if (none == NULL && p->values[i].key[0] == '\0')
            none = &p->values[i];
    }
    if (!make || none == NULL)
        return NULL;
    snprintf(none->key, sizeof none->key, "%.127s", key);
    return none;
}

static inline void peer_forget(struct peer_value *v)
{
    free(v->bytes);
    *v = (struct peer_value){0};
}

/* Under the lock of the peer. */
static inline bool peer_answer(struct peer_conn *c)
{
    struct peer *p = c->p;
    const char *name = c->args[0];
    char text[64];
    if (strcmp(name, "AUTH") == 0)
        return peer_text(c, strcmp(c->args[c->n_args - 1], p->password) == 0
                                ? "+OK\r\n"
                                : "-ERR wrong password, nobody is to quote it\r\n");
    if (strcmp(name, "SELECT") == 0)
        return peer_text(c, "+OK\r\n");
    const bool set = strcmp(name, "SET") == 0;
    struct peer_value *v = peer_find(p, c->args[1], set);
    if (set) {
        if (v == NULL)
            return peer_text(c, "-OOM no room\r\n");
        if (v->bytes != NULL && c->n_args > 3 && strcmp(c->args[3], "NX") == 0)
            return peer_text(c, "$-1\r\n");
        free(v->bytes);
        v->n = c->sizes[2];
        v->bytes = malloc(v->n + 1);
        memcpy(v->bytes, c->args[2], v->n);
        return peer_text(c, "+OK\r\n");
    }
    if (strcmp(name, "GET") == 0) {
        if (v == NULL)
            return peer_text(c, "$-1\r\n");
        snprintf(text, sizeof text, "$%zu\r\n", v->n);
        return peer_text(c, text) && peer_say(c, v->bytes, v->n) && peer_text(c, "\r\n");
    }
    if (strcmp(name, "DEL") == 0 && v != NULL)
        peer_forget(v);
    return peer_text(c, v != NULL ? ":1\r\n" : ":0\r\n");
}

/* False: the connection ends. */
static inline bool peer_misbehave(struct peer_conn *c, enum peer_fault fault)
{
    static const char *const says[PEER_N_FAULTS] = {
        [PEER_SPEAKS] = "HTTP/1.1 400 Bad Request\r\n",
        [PEER_ERRS] = "-LOADING the data set\r\n",
        [PEER_IS_FULL] = "-OOM command not allowed\r\n",
        [PEER_HUGE] = "$1152921504606846976\r\nabc",
        [PEER_BIG] = "$2000000000\r\nabc",
        [PEER_NEGATIVE] = "$-7\r\n",
        [PEER_NO_END] = "$3\r\nabcdef",
        [PEER_NO_NUMBER] = ":many\r\n",
        [PEER_WRONG_TYPE] = "-WRONGTYPE it is a list\r\n",
        [PEER_ARRAY] = "*2147483647\r\n",
    };
    char some[64];
    memset(some, 'x', sizeof some);
    if (says[fault] != NULL)
        return peer_text(c, says[fault]);
    switch (fault) {
    case PEER_CLOSES:
        return false;
    case PEER_CLOSES_MID:
        (void)peer_text(c, strcmp(c->args[0], "GET") == 0 ? "$300\r\nabcdefgh" : "+O");
        return false;
    case PEER_DRIPS:
        for (int i = 0; i < 1000 && !atomic_load(&c->p->ends); i++) {
            if (!peer_say(c, "+", 1))
                return false;
            usleep(20000);
        }
        return true;
    case PEER_FLOODS:
        while (!atomic_load(&c->p->ends))
            if (!peer_say(c, some, sizeof some))
                return false;
        return false;
    case PEER_LOSES:
        return peer_text(c, strcmp(c->args[0], "EXISTS") == 0 ? ":0\r\n" : "$-1\r\n");
    default:
        return true; /* it hangs */
    }
}

static inline void *peer_conn_main(void *arg)
{
    struct peer_conn *c = arg;
    struct peer *p = c->p;
    for (bool going = true; going && peer_command(c);) {
        atomic_fetch_add(&p->n_commands, 1);
        const int fault = atomic_load(&p->fault);
        pthread_mutex_lock(&p->lock);
        const bool struck =
            fault != PEER_WELL && (p->fault_of[0] == '\0' || strcmp(p->fault_of, c->args[0]) == 0);
        going = struck || peer_answer(c);
        pthread_mutex_unlock(&p->lock);
        if (struck)
            going = peer_misbehave(c, (enum peer_fault)fault);
    }
    (void)shutdown(c->fd, SHUT_RDWR);
    free(c);
    return NULL;
}

static inline void *peer_main(void *arg)
{
    struct peer *p = arg;
    const int one = 1;
    for (int fd; (fd = accept(p->fd, NULL, NULL)) >= 0;) {
        const int i = atomic_load(&p->n_conns);
        struct peer_conn *c = i < PEER_CONNS ? calloc(1, sizeof *c) : NULL;
        if (c == NULL || atomic_load(&p->ends)) {
            free(c);
            (void)close(fd);
            continue;
        }
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->p = p;
        c->fd = p->conns[i] = fd;
        (void)pthread_create(&p->threads[i], NULL, peer_conn_main, c);
        atomic_fetch_add(&p->n_conns, 1);
    }
    return NULL;
}

/* On a port of its own, or on the one given. */
static inline void peer_start(struct peer *p, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t n = sizeof a;
    const int one = 1;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(p->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(p->fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(p->fd, 64) != 0 ||
        getsockname(p->fd, (struct sockaddr *)&a, &n) != 0)
        abort();
    p->port = ntohs(a.sin_port);
    atomic_store(&p->ends, false);
    atomic_store(&p->n_conns, 0);
    pthread_mutex_init(&p->lock, NULL);
    (void)pthread_create(&p->thread, NULL, peer_main, p);
}

/* It is killed: what it had stays for the next start. */
static inline void peer_stop(struct peer *p)
{
    atomic_store(&p->ends, true);
    (void)shutdown(p->fd, SHUT_RDWR);
    pthread_join(p->thread, NULL);
    (void)close(p->fd);
    for (int i = 0; i < atomic_load(&p->n_conns); i++)
        (void)shutdown(p->conns[i], SHUT_RDWR);
    for (int i = 0; i < atomic_load(&p->n_conns); i++) {
        pthread_join(p->threads[i], NULL);
        (void)close(p->conns[i]);
    }
    pthread_mutex_destroy(&p->lock);
}

static inline void peer_clear(struct peer *p)
{
    for (int i = 0; i < PEER_VALUES; i++)
        peer_forget(&p->values[i]);
}

static inline void peer_fails(struct peer *p, enum peer_fault fault, const char *command)
{
    pthread_mutex_lock(&p->lock);
    snprintf(p->fault_of, sizeof p->fault_of, "%s", command);
    atomic_store(&p->fault, fault);
    pthread_mutex_unlock(&p->lock);
}

/* The pages among its values. */
static inline int peer_pages(struct peer *p, struct peer_value **first)
{
    int n = 0;
    pthread_mutex_lock(&p->lock);
    for (int i = PEER_VALUES - 1; i >= 0; i--)
        if (p->values[i].key[0] != '\0' && strstr(p->values[i].key, "secret") == NULL) {
            *first = &p->values[i];
            n++;
        }
    pthread_mutex_unlock(&p->lock);
    return n;
}

#endif
