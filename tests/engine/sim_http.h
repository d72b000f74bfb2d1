/* SPDX-License-Identifier: MIT
 * sim_http.h - clients of the HTTP server, at the other end of virtual sockets. They send their
 * bytes in pieces of any size, read slowly or not at all, and vanish in every state: without a
 * byte, inside a head or a body, while they wait, inside a reply; politely, with a reset, or in
 * silence.
 */
#ifndef SL_TESTS_SIM_HTTP_H
#define SL_TESTS_SIM_HTTP_H

#include "engine/sim_reply.h"

/* ------------------------------------------------------------------ a turn of a client */

static void client_free(struct hclient *c)
{
    c->used = false;
}

static void client_closes(struct hclient *c)
{
    struct vfd *v = vfd_of(c->fd);
    v->client_open = false;
    v->in_end = true;
    v->reset |= v->n_out > 0; /* as a kernel does when data was never read */
    if (!v->server_open && !v->queued)
        v->kind = FD_FREE;
}

static void quit(struct hclient *c)
{
    struct vfd *v = vfd_of(c->fd);
    say("  http %d quits, manner %d, after %d bytes sent and %d read\n", (int)(c - sim->https),
        (int)c->manner, c->sent, c->n_read);
    c->gone = true;
    c->cut_excused = true;
    if (c->manner == MANNER_HALF) {
        v->in_end = true;
        c->gone = false;
        c->quit = QUIT_READING; /* nothing more is sent */
        c->quit_after = INT32_MAX;
        return;
    }
    if (c->manner == MANNER_SILENT)
        return; /* until the server has had enough */
    v->reset |= c->manner == MANNER_RESET;
    client_closes(c);
    client_free(c);
}

static void client_sends(struct world *w, struct hclient *c)
{
    struct vfd *v = vfd_of(c->fd);
    int32_t upto = c->pipelined ? c->n_send : c->reqs[SL_MIN(c->n_replied, c->n_reqs - 1)].end;
    int32_t n = SL_MIN(SL_MIN(upto - c->sent, c->piece), IN_CAP - v->n_in);
    if (n <= 0 || v->in_end || (!w->calm && w->turn % (uint64_t)c->send_every != 0))
        return;
    if (w->calm)
        n = SL_MIN(SL_MIN(upto - c->sent, 4096), IN_CAP - v->n_in);
    if (c->quit == QUIT_SENDING && c->sent + n >= c->quit_after) {
        n = SL_MAX(c->quit_after - c->sent, 0);
        memcpy(v->in + v->n_in, c->send + c->sent, (size_t)n);
        v->n_in += n;
        c->sent += n;
        quit(c);
        return;
    }
    memcpy(v->in + v->n_in, c->send + c->sent, (size_t)n);
    v->n_in += n;
    c->sent += n;
}

/* The engine has nothing to do and has had nothing for longer than what it made takes to get here,
 * yet all that comes are signs of life: the end of the stream lies where nobody fetches it. */
static void check_pings(const struct world *w, const struct hclient *c)
{
    static const char ping[] = "\r\n: keep-alive\n\n\r\n";
    const int32_t n = (int32_t)sizeof ping - 1;
    const uint64_t way = 2000 + (1u << 16) / (uint64_t)w->cfg.sock_cap;
    if (w->calm && w->turn > SL_MAX(w->busy_turn, w->calm_turn) + way && c->n_reply >= n &&
        memcmp(c->reply + c->n_reply - n, ping, (size_t)n) == 0)
        violation(w, "I7: no request is open, and a stream goes on with pings");
}

static void client_reads(struct world *w, struct hclient *c)
{
    struct vfd *v = vfd_of(c->fd);
    if (!w->calm && w->turn % (uint64_t)c->read_every != 0)
        return;
    int32_t n = SL_MIN(v->n_out, w->calm ? 1 << 16 : c->read_max);
    if (n > REPLY_CAP - 1 - c->n_reply)
        violation(w, "a reply of more than %d bytes", c->n_reply);
    memcpy(c->reply + c->n_reply, v->out, (size_t)n);
    c->n_reply += n;
    c->n_read += n;
    v->n_out -= n;
    memmove(v->out, v->out + n, (size_t)v->n_out);
    while (c->n_reply > 0 && take_reply(w, c)) {
    }
    if (n > 0)
        check_pings(w, c);
}

/* The server closed its side and everything was read. */
static void at_end(struct world *w, struct hclient *c)
{
    bool sent_some = c->sent > (c->n_replied > 0 ? c->reqs[c->n_replied - 1].end : 0);
    bool cut = c->n_reply > 0 || (c->n_replied < c->n_reqs && sent_some && c->n_replied == 0);
    if (cut && !may_be_cut(w, c))
        violation(w, "I3: the connection ends, %d of %d replies came and %d bytes of the next",
                  c->n_replied, c->n_reqs, c->n_reply);
    total.http_cut += cut;
    client_closes(c);
    client_free(c);
}

static void client_turn(struct world *w, struct hclient *c)
{
    struct vfd *v = vfd_of(c->fd);
    bool ended = v->out_end || v->was_closed || v->reset;
    if (c->gone) { /* silent: the place is free when the server gave up */
        if (ended && v->was_closed) {
            client_closes(c);
            client_free(c);
        }
        return;
    }
    client_reads(w, c);
    if (ended && v->n_out == 0) {
        at_end(w, c);
        return;
    }
    bool waits = c->n_replied < c->n_reqs && c->sent >= c->reqs[c->n_replied].end;
    c->n_waited += waits;
    if ((c->quit == QUIT_WAITING && waits && c->n_waited > c->quit_after) ||
        (c->quit == QUIT_READING && c->n_read > c->quit_after)) {
        quit(c);
        return;
    }
    if (c->n_replied == c->n_reqs) {
        if (c->n_reply > 0)
            violation(w, "%d bytes follow the last reply", c->n_reply);
        client_closes(c);
        client_free(c);
        return;
    }
    client_sends(w, c);
}

/* ------------------------------------------------------------------ acts */

static enum h_kind draw_kind(struct sl_rng *r)
{
    return chance(r, 80) ? (chance(r, 50) ? H_WHOLE : H_STREAM) : (enum h_kind)below(r, H_KINDS);
}

static void act_http(struct world *w, uint64_t seed, bool golden)
{
    struct sl_rng r = {.seed = seed};
    struct hclient *c = NULL;
    for (int32_t i = 0; i < MAX_HTTP && c == NULL; i++)
        c = w->https[i].used ? NULL : &w->https[i];
    struct vfd *l = kern.listener >= 0 ? vfd_of(kern.listener) : NULL;
    if (c == NULL || l == NULL || l->n_backlog == MAX_HTTP)
        return;
    char *reply = c->reply, *send = c->send;
    memset(c, 0, sizeof *c);
    *c = (struct hclient){.used = true, .golden = golden, .reply = reply, .send = send};
    c->n_reqs = golden || chance(&r, 60) ? 1 : between(&r, 1, MAX_REQS);
    c->pipelined = chance(&r, 30);
    for (int32_t i = 0; i < c->n_reqs; i++) {
        c->reqs[i].kind = golden ? H_WHOLE : draw_kind(&r);
        put_request(w, c, &r, &c->reqs[i]);
        if (c->reqs[i].kind == H_TOO_BIG || c->reqs[i].kind == H_BAD_HTTP)
            c->n_reqs = i + 1; /* the server reads no further */
    }
    c->piece = chance(&r, 50) || golden ? SEND_CAP : between(&r, 1, 200);
    c->send_every = chance(&r, 70) || golden ? 1 : between(&r, 2, 20);
    c->read_max = chance(&r, 60) || golden ? 1 << 16 : between(&r, 1, 300);
    c->read_every = chance(&r, 70) || golden ? 1 : between(&r, 2, 30);
    c->quit = golden || chance(&r, 65) ? QUIT_NEVER : (enum h_quit)between(&r, 1, 3);
    c->manner = (enum h_manner)below(&r, 4);
    c->quit_after = c->quit == QUIT_SENDING   ? below(&r, c->n_send + 1)
                    : c->quit == QUIT_WAITING ? below(&r, 60)
                                              : below(&r, chance(&r, 50) ? 300 : 3000);
    c->t_first_ns = c->t_last_ns = virtual_ns;
    c->n_faults_before = w->n_alloc_faults;
    c->fd = vfd_new(FD_SOCKET);
    struct vfd *v = vfd_of(c->fd);
    v->client_open = v->queued = true;
    l->backlog[l->n_backlog++] = c->fd;
    total.http += (uint64_t)c->n_reqs;
    say("http %d: %d requests of %d bytes, pieces of %d every %d, reads %d every %d, quits %d "
        "(%d)\n",
        (int)(c - w->https), c->n_reqs, c->n_send, c->piece, c->send_every, c->read_max,
        c->read_every, (int)c->quit, c->quit_after);
}

/* Called when more time passed than a turn takes. */
static void time_jumped(struct world *w)
{
    for (int32_t i = 0; i < MAX_HTTP; i++)
        w->https[i].saw_jump = true;
}

static int32_t n_https(const struct world *w)
{
    int32_t n = 0;
    for (int32_t i = 0; w->https != NULL && i < MAX_HTTP; i++)
        n += w->https[i].used;
    return n;
}

/* What the sequence must give, found by its seed, which no two have; NULL: its client is gone. */
static const struct oracle *oracle_of(const struct world *w, const struct sl_rseq *rs, int32_t *key)
{
    int32_t idx = rs->seq.idx;
    *key = 0;
    for (int32_t i = 0; i < MAX_CLIENTS; i++)
        if (w->clients[i].req == rs->req)
            return &w->clients[i].o;
    for (int32_t i = 0; i < MAX_HTTP; i++)
        for (int32_t k = 0; w->https[i].used && k < w->https[i].n_reqs; k++) {
            const struct oracle *o = &w->https[i].reqs[k].o;
            *key = SL_MAX(w->https[i].reqs[k].key, 0);
            if (idx < MAX_SIM_N && o->seqs[idx].seed == rs->seed)
                return o;
        }
    return NULL;
}

static int32_t space_of(const struct world *w, const struct sl_rseq *rs)
{
    int32_t key;
    const struct oracle *o = oracle_of(w, rs, &key);
    return o != NULL ? 1 + o->salt + 4 * key : 0;
}

/* ------------------------------------------------------------------ drafts */

/* Up to n tokens behind the text of a sequence and n_ahead drafts of it. A drafter that is often
 * right: it asks the oracle, and slips now and then. */
static int32_t sim_guess(struct world *w, const struct sl_rseq *rs, const int32_t *ahead,
                         int32_t n_ahead, int32_t n, int32_t *out)
{
    static struct oracle_seq s;
    const struct sl_seq *seq = &rs->seq;
    int32_t key;
    float row[MAX_VOCAB];
    const struct oracle *o = oracle_of(w, rs, &key);
    if (o == NULL || now_and_then(w, NOISE_DRAFT, 20))
        return 0;
    s.n = seq->n_out + n_ahead;
    s.seed = rs->seed;
    s.hash = w->hash_key;
    memcpy(s.tokens, seq->out, (size_t)seq->n_out * sizeof *s.tokens);
    for (int32_t i = 0; i < n_ahead; i++)
        s.tokens[seq->n_out + i] = ahead[i];
    for (int32_t i = 0; i < seq->n_prompt + s.n; i++)
        s.hash =
            hash_token(s.hash, i < seq->n_prompt ? seq->prompt[i] : s.tokens[i - seq->n_prompt], i);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = oracle_token(w, o, &s, row);
        if (id < 0 || now_and_then(w, NOISE_DRAFT, w->cfg.draft_wrong_pct))
            id = noise(w, NOISE_DRAFT, w->cfg.n_vocab);
        out[i] = s.tokens[s.n] = id;
        s.hash = hash_token(s.hash, id, seq->n_prompt + s.n++);
    }
    return n;
}

static int32_t sim_propose(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const int32_t most = 1 + noise(sim, NOISE_DRAFT, MAX_SIM_DRAFT);
    (void)eng;
    return sim_guess(sim, rs, NULL, 0, SL_MIN(n, most), rs->drafts);
}

static const struct sl_mode sim_mode = {.propose = sim_propose, .consume = sl_generate_consume};

#endif
