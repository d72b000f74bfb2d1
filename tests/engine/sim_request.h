/* SPDX-License-Identifier: MIT
 * sim_request.h - a client of the HTTP server and the bytes it sends: completions of the oracle's
 * requests, whole and as streams, probes, and requests that are wrong in every way.
 */
#ifndef SL_TESTS_SIM_REQUEST_H
#define SL_TESTS_SIM_REQUEST_H

#include "engine/sim_clients.h"
#include "engine/sim_kernel.h"

#define MAX_REQS   3
#define SEND_CAP   (1 << 17)
#define REPLY_CAP  (1 << 20)
#define SLOW_BYTES 64 /* who reads less per turn may be cut off for it */

enum h_kind {
    H_WHOLE,
    H_STREAM,
    H_HEALTH,
    H_MODELS,
    H_METRICS,
    H_BAD_JSON,
    H_BAD_FIELD,
    H_NO_PATH,
    H_BAD_METHOD,
    H_TOO_BIG,
    H_NO_KEY,
    H_BAD_HTTP,
    H_KINDS
};

enum h_quit { QUIT_NEVER, QUIT_SENDING, QUIT_WAITING, QUIT_READING };
enum h_manner { MANNER_CLOSE, MANNER_RESET, MANNER_SILENT, MANNER_HALF };

struct hreq {
    enum h_kind kind;
    int32_t end; /* of its bytes in send */
    int32_t key;
    struct oracle o;
};

struct hclient {
    bool used, golden, cut_excused;
    bool saw_jump; /* time jumped while it was connected: timers struck all at once */
    int fd;
    struct hreq reqs[MAX_REQS];
    int32_t n_reqs, n_replied;
    bool pipelined;
    char *send; /* [SEND_CAP] */
    int32_t n_send, sent, piece, send_every, read_max, read_every;
    enum h_quit quit;
    enum h_manner manner;
    int32_t quit_after; /* bytes sent, bytes read or turns waited */
    bool gone;          /* it quit: does nothing more */
    char *reply;        /* [REPLY_CAP] */
    int32_t n_reply, n_read, n_waited;
    uint64_t t_first_ns, t_last_ns; /* when it connected, and had its last reply */
    uint64_t n_faults_before;
};

/* ------------------------------------------------------------------ requests as bytes */

static void put(struct hclient *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct hclient *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(c->send + c->n_send, (size_t)(SEND_CAP - c->n_send), fmt, ap);
    va_end(ap);
    if (n < 0 || n >= SEND_CAP - c->n_send)
        violation(sim, "the simulator's request is too long");
    c->n_send += n;
}

static void put_ids(char *b, size_t cap, const char *name, const int32_t *ids, int32_t n)
{
    size_t at = strlen(b);
    at += (size_t)snprintf(b + at, cap - at, "\"%s\":[", name);
    for (int32_t i = 0; i < n; i++)
        at += (size_t)snprintf(b + at, cap - at, "%s%d", i > 0 ? "," : "", ids[i]);
    snprintf(b + at, cap - at, "],");
}

#define ADD(...) snprintf(b + strlen(b), cap - strlen(b), __VA_ARGS__)

/* pad: spaces, which make a body one of those that are prepared by a thread of their own. */
static void body_of(const struct oracle *o, bool stream, int32_t pad, char *b, size_t cap)
{
    const struct sl_sampling *p = &o->desc.sampling;
    ADD("{%*s", pad, "");
    put_ids(b, cap, "prompt", o->prompt, o->desc.n_prompt);
    put_ids(b, cap, "stop_token_ids", p->stop_token_ids, p->n_stop_token_ids);
    ADD("\"max_tokens\":%d,\"min_tokens\":%d,\"n\":%d,\"seed\":%llu,\"temperature\":%g,"
        "\"top_p\":%g,\"top_k\":%d,\"ignore_eos\":%s,\"stream\":%s,\"return_token_ids\":true,"
        "\"priority\":%d",
        p->max_tokens, p->min_tokens, p->n, (unsigned long long)p->seed, (double)p->temperature,
        (double)p->top_p, p->top_k, p->ignore_eos ? "true" : "false", stream ? "true" : "false",
        o->desc.priority);
    if (sl_sampling_has_penalty(p))
        ADD(",\"repetition_penalty\":%g,\"presence_penalty\":%g,\"frequency_penalty\":%g",
            (double)p->repetition_penalty, (double)p->presence_penalty,
            (double)p->frequency_penalty);
    if (o->constrained)
        ADD(",\"guided_regex\":\"%s\"", o->forcing ? SIM_FORCING : SIM_FREE);
    if (p->n_logit_bias > 0)
        ADD(",\"logit_bias\":{\"%d\":%g}", p->logit_bias[0].id, (double)p->logit_bias[0].bias);
    if (o->salt > 0)
        ADD(",\"cache_salt\":\"%s\"", o->desc.cache_salt);
    if (p->logprobs >= 0)
        ADD(",\"logprobs\":%d", p->logprobs);
    for (int32_t i = 0; i < p->n_stop; i++)
        ADD("%s\"%s\"", i == 0 ? ",\"stop\":[" : ",", o->stops[i]);
    ADD(p->n_stop > 0 ? "]}" : "}");
}

#undef ADD

/* Some bodies come in chunks of any size, some announce themselves. */
static void put_post(struct hclient *c, struct sl_rng *r, const struct hreq *q, const char *path,
                     const char *body)
{
    int32_t n = (int32_t)strlen(body), at = 0;
    put(c, "POST %s HTTP/1.1\r\nHost: sim\r\nContent-Type: application/json\r\n", path);
    if (q->key >= 0)
        put(c, "Authorization: Bearer key%d\r\n", q->key);
    if (chance(r, 10))
        put(c, "Expect: 100-continue\r\n");
    if (chance(r, 70)) {
        put(c, "Content-Length: %d\r\n\r\n%s", n, body);
        return;
    }
    put(c, "Transfer-Encoding: chunked\r\n\r\n");
    while (at < n) {
        int32_t most = chance(r, 50) ? 20 : 4000, part = between(r, 1, SL_MIN(n - at, most));
        put(c, "%x\r\n%.*s\r\n", (unsigned)part, part, body + at);
        at += part;
    }
    put(c, "0\r\n\r\n");
}

static void put_request(struct world *w, struct hclient *c, struct sl_rng *r, struct hreq *q)
{
    static const char *const paths[] = {[H_HEALTH] = "/health",
                                        [H_MODELS] = "/v1/models",
                                        [H_METRICS] = "/metrics",
                                        [H_NO_PATH] = "/v1/engines"};
    static char body[SEND_CAP / 2];
    q->key = w->cfg.n_keys > 0 ? below(r, w->cfg.n_keys) : -1;
    body[0] = '\0';
    switch (q->kind) {
    case H_WHOLE:
    case H_STREAM:
        oracle_make(w, r, &q->o, true);
        body_of(&q->o, q->kind == H_STREAM, chance(r, 10) ? between(r, 30000, 36000) : 0, body,
                sizeof body);
        put_post(c, r, q, "/v1/completions", body);
        break;
    case H_BAD_JSON:
        put_post(c, r, q, "/v1/completions", "{\"prompt\":[1,2,}");
        break;
    case H_BAD_FIELD:
        put_post(c, r, q, "/v1/completions", "{\"prompt\":[1,2],\"temperature\":-1}");
        break;
    case H_TOO_BIG:
        put(c,
            "POST /v1/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: 99999999\r\n%s%d\r\n"
            "\r\n{",
            "Authorization: Bearer key", SL_MAX(q->key, 0));
        break;
    case H_NO_KEY:
        q->key = -1;
        put_post(c, r, q, "/v1/completions", "{\"prompt\":[1,2]}");
        break;
    case H_BAD_METHOD:
        put(c, "GET /v1/completions HTTP/1.1\r\nHost: sim\r\nAuthorization: Bearer key%d\r\n\r\n",
            SL_MAX(q->key, 0));
        break;
    case H_BAD_HTTP:
        put(c, "GET /health HTTP/1.1\r\nHost: sim\r\nContent-Length: -1\r\n\r\n");
        break;
    default:
        put(c, "GET %s HTTP/1.1\r\nHost: sim\r\nAuthorization: Bearer key%d\r\n\r\n",
            paths[q->kind], SL_MAX(q->key, 0));
    }
    q->end = c->n_send;
}

#endif
