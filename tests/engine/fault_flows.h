/* SPDX-License-Identifier: MIT
 * fault_flows.h - the flows that test_faults.c breaks: loading, a request, a cancel, a stop, and a
 * server with clients. Each flow runs once with whatever faults are armed, checks that what it was
 * told is true, and says how it ended.
 */
#ifndef SL_TESTS_FAULT_FLOWS_H
#define SL_TESTS_FAULT_FLOWS_H

#include "engine/fault_sys.h"
#include "server/server.h"
#include "synth/synth.h"
#include "text/tokenizer/tokenizer.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/un.h>

#include <cmocka.h>

enum outcome {
    ANSWERED, /* right in spite of the fault */
    FAILED,   /* an error code and a message */
    REFUSED,  /* an HTTP error reply, or an error event in a stream */
    CLOSED,   /* the connection ended before the reply did */
    OUTCOMES
};

enum { N_GEN = 6, PROMPT_MAX = 256 };

static struct {
    char dir[160], hf[200], other[200], gguf[200], uds[200], port_file[200];
    struct sl_engine *eng;       /* lives through all flows on an engine */
    int32_t tokens[N_GEN];       /* what the model says */
    int32_t other_tokens[N_GEN]; /* with the weights of `other` */
    char *rendered, *inspected;  /* what the tools say */
    size_t n_ids;
} world;

static const char chat_context[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Say \\u00e9\"}],"
    "\"add_generation_prompt\":true}";

/* ---------------------------------------------------------------- engine */

static inline struct sl_engine_config flow_config(const char *path, int n_threads)
{
    return (struct sl_engine_config){.model = path,
                                     .n_threads = n_threads,
                                     .max_model_len = 256,
                                     .max_num_seqs = 4,
                                     .max_num_batched_tokens = 64,
                                     .block_size = 16,
                                     .kv_cache_bytes = 1u << 20};
}

static inline struct sl_request_desc flow_desc(const int32_t *ids, size_t n, int32_t max_tokens)
{
    struct sl_request_desc d = {.prompt = ids, .n_prompt = (int32_t)n};
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.ignore_eos = true;
    d.sampling.max_tokens = max_tokens;
    return d;
}

static inline int flow_prompt(const struct sl_engine *eng, int32_t **ids, size_t *n,
                              struct sl_error *err)
{
    char *text = NULL;
    size_t n_text = 0;
    int rc = sl_engine_render_chat(eng, chat_context, sizeof chat_context - 1, &text, &n_text, err);
    if (rc == 0)
        rc = sl_tokenizer_encode(sl_engine_tokenizer(eng), text, n_text, SL_ENCODE_PARSE_SPECIAL,
                                 ids, n, err);
    sl_free(text);
    return rc;
}

/* A code without a message, or a message without a code, is not an error but a shrug. */
static inline enum outcome flow_failed(int rc, const struct sl_error *err)
{
    if (rc >= 0 || err->msg[0] == '\0' || err->code != rc)
        fail_msg("an error without a word: %d, err.code %d, \"%s\"", rc, err->code, err->msg);
    if (atomic_load(&fs.kind) == FS_ALLOC && rc != SL_ENOMEM)
        fail_msg("memory ran out, but the error is %s: %s", sl_code_name(rc), err->msg);
    return FAILED;
}

/* Chat template, tokenizer, request and its tokens; tokens[N_GEN]. */
static inline enum outcome flow_generate(struct sl_engine *eng, int32_t *tokens)
{
    struct sl_error err = {0};
    struct sl_request *req = NULL;
    struct sl_chunk chunk;
    int32_t *ids = NULL;
    size_t n = 0;
    int n_got = 0;
    enum sl_finish finish = SL_RUNNING;
    int rc = flow_prompt(eng, &ids, &n, &err);
    if (rc != 0)
        return flow_failed(rc, &err);
    struct sl_request_desc d = flow_desc(ids, n, N_GEN);
    rc = sl_request_submit(eng, &d, &req, &err);
    sl_free(ids);
    if (rc != 0)
        return flow_failed(rc, &err);
    while (!sl_request_done(req)) {
        while (sl_request_read(req, &chunk)) {
            for (size_t i = 0; i < chunk.n_tokens && n_got < N_GEN; i++)
                tokens[n_got++] = chunk.tokens[i].id;
            finish = chunk.finish != SL_RUNNING ? chunk.finish : finish;
        }
        if (!sl_request_done(req))
            sl_request_wait(req, -1);
    }
    sl_request_release(req);
    assert_int_equal(finish, SL_FINISH_LENGTH);
    assert_int_equal(n_got, N_GEN);
    return ANSWERED;
}

static inline enum outcome flow_answer(struct sl_engine *eng)
{
    int32_t tokens[N_GEN];
    enum outcome o = flow_generate(eng, tokens);
    if (o == ANSWERED && memcmp(tokens, world.tokens, sizeof tokens) != 0)
        fail_msg("the engine answers, but not what it answered before");
    return o;
}

/* What only tokenizer_config.json says. */
static inline void check_special(const struct sl_tokenizer *tok)
{
    const struct sl_tokenizer *right = sl_engine_tokenizer(world.eng);
    if (sl_tokenizer_bos(tok) != sl_tokenizer_bos(right) ||
        sl_tokenizer_eos(tok) != sl_tokenizer_eos(right))
        fail_msg("the tokenizer came up without its special tokens");
}

/* An engine that comes up in spite of a fault must be the engine that was asked for. */
static enum outcome flow_load(const void *arg)
{
    const char *path = arg;
    struct sl_engine_config cfg = flow_config(path, 2);
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    int rc = sl_engine_create(&cfg, &eng, &err);
    if (rc != 0)
        return flow_failed(rc, &err);
    fs_disarm();
    if (!sl_engine_has_chat_template(eng))
        fail_msg("the engine came up without its chat template");
    check_special(sl_engine_tokenizer(eng));
    enum outcome o = flow_answer(eng);
    assert_int_equal(o, ANSWERED);
    sl_engine_destroy(eng);
    return ANSWERED;
}

static enum outcome flow_request(const void *arg)
{
    (void)arg;
    return flow_answer(world.eng);
}

/* Who cannot wake is asleep as before: nothing is held that was not, and another try wakes. */
static enum outcome flow_wake(const void *arg)
{
    const int level = *(const int *)arg;
    struct sl_error err = {0};
    assert_int_equal(sl_engine_sleep(world.eng, level, false, -1, &err), 0);
    struct fs_held base = fs_held();
    int rc = sl_engine_wake(world.eng, &err);
    if (rc == 0)
        return flow_answer(world.eng);
    enum outcome o = flow_failed(rc, &err);
    struct fs_held is = fs_held();
    if (sl_engine_sleep_level(world.eng) != level || is.blocks != base.blocks ||
        is.maps != base.maps)
        fail_msg("asleep at level %d, but %+lld blocks and %+lld mappings",
                 sl_engine_sleep_level(world.eng), (long long)(is.blocks - base.blocks),
                 (long long)(is.maps - base.maps));
    fs_disarm();
    assert_int_equal(sl_engine_wake(world.eng, &err), 0);
    return o;
}

/* Weights that cannot be loaded leave the old ones, if only these can be loaded again. */
static enum outcome flow_weights(const void *arg)
{
    (void)arg;
    struct sl_error err = {0};
    int32_t tokens[N_GEN];
    int rc = sl_engine_reload(world.eng, world.other, false, -1, &err);
    enum outcome o = rc == 0 ? ANSWERED : flow_failed(rc, &err);
    fs_disarm();
    if (rc != 0 && sl_engine_sleep_level(world.eng) != 0 && fs.manner != FS_ALL)
        fail_msg("one fault, and the engine sleeps");
    assert_int_equal(sl_engine_wake(world.eng, &err), 0);
    assert_int_equal(flow_generate(world.eng, tokens), ANSWERED);
    if (memcmp(tokens, rc == 0 ? world.other_tokens : world.tokens, sizeof tokens) != 0)
        fail_msg("reload says %d, the answer is that of the %s weights", rc,
                 rc == 0 ? "old" : "new");
    if (rc == 0)
        assert_int_equal(sl_engine_reload(world.eng, NULL, false, -1, &err), 0);
    return o;
}

static inline void read_to_end(struct sl_request *req)
{
    struct sl_chunk chunk;
    enum sl_finish finish = SL_RUNNING;
    while (!sl_request_done(req)) {
        while (sl_request_read(req, &chunk))
            finish = chunk.finish != SL_RUNNING ? chunk.finish : finish;
        if (!sl_request_done(req))
            sl_request_wait(req, -1);
    }
    assert_true(finish == SL_FINISH_ABORT || finish == SL_FINISH_LENGTH);
}

static enum outcome flow_cancel(const void *arg)
{
    (void)arg;
    static const int32_t ids[] = {1, 2, 3};
    struct sl_error err = {0};
    struct sl_request *req = NULL;
    struct sl_chunk chunk;
    struct sl_request_desc d = flow_desc(ids, 3, 100);
    int rc = sl_request_submit(world.eng, &d, &req, &err);
    if (rc != 0)
        return flow_failed(rc, &err);
    while (!sl_request_read(req, &chunk))
        sl_request_wait(req, -1);
    sl_request_cancel(req);
    read_to_end(req);
    sl_request_release(req);
    return ANSWERED;
}

/* The engine stops with requests in every state: running, waiting, cancelled. */
static enum outcome flow_stop(const void *arg)
{
    (void)arg;
    enum { N = 6 };
    static const int32_t ids[] = {5, 6, 7};
    struct sl_engine_config cfg = flow_config(world.gguf, 2);
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    struct sl_request *reqs[N] = {0};
    struct sl_request_desc d = flow_desc(ids, 3, 100);
    enum outcome o = ANSWERED;
    int armed = atomic_exchange(&fs.kind, -1); /* faults are for what follows the load */
    int rc = sl_engine_create(&cfg, &eng, &err);
    if (rc != 0)
        fail_msg("%s", err.msg);
    atomic_store(&fs.kind, armed);
    for (int i = 0; i < N; i++) {
        rc = sl_request_submit(eng, &d, &reqs[i], &err);
        if (rc != 0)
            o = flow_failed(rc, &err);
    }
    if (reqs[1] != NULL)
        sl_request_cancel(reqs[1]);
    sl_engine_destroy(eng);
    for (int i = 0; i < N; i++) {
        sl_request_release(reqs[i]); /* the one thing that may still be done with it */
    }
    return o;
}

/* The commands that need no engine: a template is rendered, a tokenizer opened, a model shown. */
static enum outcome flow_tools(const void *arg)
{
    const char *path = arg;
    struct sl_engine_config cfg = flow_config(path, 1);
    struct sl_error err = {0};
    struct sl_tokenizer *tok = NULL;
    char *rendered = NULL, *inspected = NULL;
    int32_t *ids = NULL;
    size_t n_rendered, n_ids = 0, n_inspected;
    int rc = sl_template_render_file(path, chat_context, sizeof chat_context - 1, &rendered,
                                     &n_rendered, &err);
    if (rc == 0)
        rc = sl_tokenizer_open(path, &tok, &err);
    if (rc == 0)
        rc = sl_tokenizer_encode(tok, rendered, n_rendered,
                                 SL_ENCODE_ADD_SPECIAL | SL_ENCODE_PARSE_SPECIAL, &ids, &n_ids,
                                 &err);
    if (rc == 0)
        rc = sl_inspect(&cfg, true, true, &inspected, &n_inspected, &err);
    if (rc == 0)
        check_special(tok);
    sl_tokenizer_close(tok);
    enum outcome o = rc == 0 ? ANSWERED : flow_failed(rc, &err);
    if (o == ANSWERED && world.rendered == NULL) {
        world.rendered = strdup(rendered);
        world.inspected = strdup(inspected);
        world.n_ids = n_ids;
    }
    if (o == ANSWERED && (strcmp(world.rendered, rendered) != 0 || world.n_ids != n_ids))
        fail_msg("%s: \"%s\", %zu ids; before: \"%s\", %zu ids", path, rendered, n_ids,
                 world.rendered, world.n_ids);
    /* Without memory to ask a kernel for its name, a description shows none: that is no harm. */
    if (o == ANSWERED && atomic_load(&fs.kind) != FS_ALLOC &&
        strcmp(world.inspected, inspected) != 0)
        fail_msg("%s is shown as %s, before it was shown as %s", path, inspected, world.inspected);
    sl_free(ids);
    sl_free(rendered);
    sl_free(inspected);
    return o;
}

/* ---------------------------------------------------------------- client, outside of the faults */

struct client {
    int fd; /* -1: not connected */
    size_t n;
    char text[1 << 17];
};

/* Far from the numbers that the server gets for its descriptors: see serve_at_once. */
static inline int client_socket(void)
{
    int low = (int)syscall(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = low >= 0 ? fcntl(low, F_DUPFD_CLOEXEC, 512) : -1;
    if (low >= 0)
        close(low);
    return fd;
}

static inline bool client_connect(struct client *c)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path, world.uds, strlen(world.uds) + 1);
    *c = (struct client){.fd = client_socket()};
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&addr, sizeof addr) == 0)
        return c->fd >= 0;
    close(c->fd);
    c->fd = -1;
    return false;
}

static inline void client_send(const struct client *c, const char *method, const char *path,
                               const char *body)
{
    char text[2048];
    int n = snprintf(text, sizeof text,
                     "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     method, path, strlen(body), body);
    assert_true(n > 0 && (size_t)n < sizeof text);
    ssize_t put = send(c->fd, text, (size_t)n, MSG_NOSIGNAL);
    (void)put; /* a server that closed already shows when reading */
}

/* Reads until the text holds `mark`, or to the end when it is NULL. */
static inline bool client_read(struct client *c, const char *mark)
{
    while (mark == NULL || strstr(c->text, mark) == NULL) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        if (poll(&p, 1, 10000) != 1)
            fail_msg("a client waits for 10 s and gets nothing; so far: %.200s", c->text);
        ssize_t n = read(c->fd, c->text + c->n, sizeof c->text - 1 - c->n);
        if (n <= 0)
            return false;
        c->n += (size_t)n;
        c->text[c->n] = '\0';
    }
    return true;
}

/* Copies the text, without what differs from one reply to the next: names and times of replies, and
 * what came from the cache. */
static inline void client_strip(const char *text, char *out, size_t cap)
{
    static const char *const keys[] = {"\"id\":\"", "\"created\":", "\"cached_tokens\":"};
    size_t n = 0;
    while (*text != '\0' && n + 1 < cap) {
        size_t skip = 0;
        for (size_t i = 0; i < SL_COUNT(keys) && skip == 0; i++) {
            if (strncmp(text, keys[i], strlen(keys[i])) == 0)
                skip = strlen(keys[i]) + strcspn(text + strlen(keys[i]), ",\"}");
        }
        if (skip == 0)
            out[n++] = *text;
        text += SL_MAX(skip, 1u);
    }
    out[n] = '\0';
}

/* All that a stream says: its events may be cut elsewhere every time. */
static inline void client_said(const char *at, char *said, size_t cap)
{
    size_t n = 0;
    while ((at = strstr(at, "\"content\":\"")) != NULL) {
        at += strlen("\"content\":\"");
        while (*at != '\0' && *at != '"' && n + 2 < cap) {
            if (*at == '\\' && at[1] != '\0')
                said[n++] = *at++;
            said[n++] = *at++;
        }
    }
    said[n] = '\0';
}

struct call {
    const char *method, *path, *body;
    bool stream, varies; /* varies: the reply is another every time */
    char *want;          /* [CALL_BYTES] what a reply is compared with: the first one */
};

enum { CALL_BYTES = 16384 };

/* How the reply that was read to its end is to be taken. */
static inline enum outcome client_outcome(const struct client *c, const struct call *call)
{
    static char said[CALL_BYTES];
    const char *body = strstr(c->text, "\r\n\r\n");
    if (strncmp(c->text, "HTTP/1.1 ", 9) != 0 || body == NULL)
        return CLOSED;
    body += 4;
    if (strncmp(c->text + 9, "200", 3) != 0) {
        if (c->text[9] != '5')
            fail_msg("a good request is the client's fault: %s", c->text);
        return REFUSED;
    }
    if (strstr(body, "\"error\":{") != NULL)
        return REFUSED;
    bool whole;
    if (call->stream) {
        client_said(body, said, sizeof said);
        whole = strstr(body, "data: [DONE]\n\n\r\n0\r\n\r\n") != NULL;
    } else {
        const char *length = strstr(c->text, "Content-Length: ");
        client_strip(body, said, sizeof said);
        whole = length != NULL && strlen(body) == (size_t)atoi(length + strlen("Content-Length: "));
    }
    if (whole && call->want[0] == '\0')
        memcpy(call->want, said, sizeof said);
    if (call->varies || (whole ? strcmp(call->want, said) == 0 : true))
        return whole ? ANSWERED : CLOSED;
    fail_msg("%s says \"%s\", before it said \"%s\"", call->path, said, call->want);
    return CLOSED;
}

static enum outcome flow_http(const void *arg)
{
    const struct call *call = arg;
    static struct client c;
    if (!client_connect(&c))
        return CLOSED;
    client_send(&c, call->method, call->path, call->body);
    (void)client_read(&c, NULL);
    close(c.fd);
    return client_outcome(&c, call);
}

/* The event library makes an entry for each descriptor number that it ever watched, and keeps it.
 * Which numbers connections get varies: once a second the server reads files of /proc, which take
 * the lowest number for a moment, and it may accept a connection before it closed the one before.
 * Several connections at a time make the entries for all numbers that can come up, so that none is
 * made during a sweep and looks like a leak. */
static inline void serve_at_once(const struct call *call)
{
    enum { N = 8 };
    static struct client c[N];
    for (int i = 0; i < N; i++)
        assert_true(client_connect(&c[i]));
    for (int i = 0; i < N; i++)
        client_send(&c[i], call->method, call->path, call->body);
    for (int i = 0; i < N; i++)
        (void)client_read(&c[i], NULL);
    for (int i = 0; i < N; i++) {
        close(c[i].fd); /* until now the server waited for the end of each */
        assert_int_equal(client_outcome(&c[i], call), ANSWERED);
    }
}

#define CHAT_BODY(stream)                                                                \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Say \\u00e9\"}],\"temperature\":0," \
    "\"max_tokens\":6,\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":2,"         \
    "\"stop\":[\"nothing like it\"],\"stream\":" stream "}"

/* The template shows all that is taken apart and put together again on the way to it. */
#define TOOLS_BODY                                                                             \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"       \
    "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null,"           \
    "\"tool_calls\":[{\"id\":\"x\",\"type\":\"function\",\"function\":{\"name\":\"f\","        \
    "\"arguments\":\"{\\\"k\\\":[1,\\\"long enough to need room of its own\\\"]}\"}}]},"       \
    "{\"role\":\"user\",\"content\":\"c\"}],"                                                  \
    "\"chat_template\":\"{{ bos_token }}{% for m in messages %}{{ m.content }}"                \
    "{% for t in m.tool_calls %}{{ t.function.arguments.k | tojson }}{% endfor %}{% endfor %}" \
    "{{ extra }}{{ eos_token }}\",\"chat_template_kwargs\":{\"extra\":\"more\"},"              \
    "\"temperature\":0,\"max_tokens\":4,\"ignore_eos\":true,\"return_token_ids\":true}"

static char call_want[6][CALL_BYTES];
static const struct call calls[] = {
    {"POST", "/v1/chat/completions", CHAT_BODY("false"), false, false, call_want[0]},
    {"POST", "/v1/chat/completions", CHAT_BODY("true"), true, false, call_want[1]},
    {"POST", "/v1/chat/completions", TOOLS_BODY, false, false, call_want[2]},
    {"POST", "/v1/completions",
     "{\"prompt\":[\"One\",\"Two\"],\"n\":2,\"seed\":1,\"max_tokens\":3,\"ignore_eos\":true,"
     "\"echo\":true,\"logprobs\":1}",
     false, false, call_want[3]},
    {"POST", "/tokenize", "{\"prompt\":\"Say \\u00e9 <|eos|>\"}", false, false, call_want[4]},
    {"GET", "/metrics", "", false, true, call_want[5]},
};

/* ---------------------------------------------------------------- server */

struct served {
    pthread_t thread;
    struct sl_server_config cfg;
    struct sl_error err;
    int stop_fd, rc;
    atomic_bool over;
};

static void *served_main(void *arg)
{
    struct served *s = arg;
    s->rc = sl_server_run(&s->cfg, world.eng, &s->err);
    atomic_store(&s->over, true);
    return NULL;
}

static inline void served_start(struct served *s, int n_threads)
{
    *s = (struct served){.stop_fd = (int)syscall(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC)};
    sl_server_config_default(&s->cfg);
    s->cfg.port = 0;
    s->cfg.uds = world.uds;
    s->cfg.port_file = world.port_file;
    s->cfg.n_http_threads = n_threads;
    s->cfg.stop_fd = s->stop_fd;
    s->cfg.trust_request_chat_template = true;
    s->cfg.shutdown_timeout_ms = 5000;
    if (pthread_create(&s->thread, NULL, served_main, s) != 0)
        fail_msg("no thread for the server");
}

/* Its sockets answer; false: it gave up instead. */
static inline bool served_ready(struct served *s)
{
    static struct client c;
    while (!atomic_load(&s->over)) {
        if (access(world.port_file, R_OK) == 0 && client_connect(&c)) {
            close(c.fd);
            return true;
        }
        usleep(500);
    }
    return false;
}

static inline int served_stop(struct served *s)
{
    uint64_t one = 1;
    if (write(s->stop_fd, &one, sizeof one) != (ssize_t)sizeof one)
        fail_msg("cannot ask the server to stop");
    pthread_join(s->thread, NULL);
    close(s->stop_fd);
    (void)unlink(world.port_file);
    return s->rc;
}

/* The server starts; if it does, one request must be answered. */
static enum outcome flow_serve(const void *arg)
{
    (void)arg;
    struct served s;
    served_start(&s, 2);
    bool ready = served_ready(&s);
    fs_disarm();
    /* It may give up after its sockets were there: then nobody answers, and the error says why. */
    enum outcome o = ready ? flow_http(&calls[0]) : CLOSED;
    int rc = served_stop(&s);
    if (rc == 0) {
        assert_int_equal(o, ANSWERED);
        return ANSWERED;
    }
    return flow_failed(rc, &s.err);
}

/* The server is told to stop while a stream runs: the stream ends as it should or is cut off. */
static enum outcome flow_drain(const void *arg)
{
    (void)arg;
    /* Long enough not to be over when the server is told. */
    static const char body[] = "{\"prompt\":\"Once\",\"n\":2,\"max_tokens\":150,"
                               "\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";
    struct served s;
    static struct client c;
    int armed = atomic_exchange(&fs.kind, -1);
    served_start(&s, 2);
    if (!served_ready(&s) || !client_connect(&c))
        fail_msg("the server does not start: %s", s.err.msg);
    client_send(&c, "POST", "/v1/completions", body);
    if (!client_read(&c, "data: {"))
        fail_msg("the stream does not start: %s", c.text);
    atomic_store(&fs.kind, armed);
    int rc = served_stop(&s);
    fs_disarm();
    (void)client_read(&c, NULL);
    close(c.fd);
    bool whole = strstr(c.text, "data: [DONE]\n\n\r\n0\r\n\r\n") != NULL;
    if (rc != 0 && rc != SL_ETIMEOUT)
        fail_msg("the drain ended with %s: %s", sl_code_name(rc), s.err.msg);
    return whole ? ANSWERED : CLOSED;
}

#endif
