/* SPDX-License-Identifier: MIT */
#include "server/api/kv_transfer.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/api/call.h"
#include "server/http/sse.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define VERSION     1  /* of what is under "sluice" */
#define OFFER_CHARS 32 /* of an offer's number in hexadecimal digits */

/* ---- who asks */

/* A peer over a UNIX socket was let in by the socket's permissions. */
static bool caller_may(const struct sl_conn *c, const struct sl_engine *eng)
{
    struct sockaddr_storage from = {0};
    socklen_t n = sizeof from;
    char text[INET6_ADDRSTRLEN] = "";
    if (c->background || getpeername(c->fd, (struct sockaddr *)&from, &n) != 0)
        return false;
    if (from.ss_family == AF_UNIX)
        return true;
    const void *addr = from.ss_family == AF_INET6
                           ? (const void *)&((struct sockaddr_in6 *)(void *)&from)->sin6_addr
                           : (const void *)&((struct sockaddr_in *)(void *)&from)->sin_addr;
    return inet_ntop(from.ss_family, addr, text, sizeof text) != NULL &&
           sl_engine_knows_peer(eng, text);
}

static int check_caller(const struct sl_conn *c, const struct sl_engine *eng, const char *field,
                        struct sl_refusal *r)
{
    return caller_may(c, eng)
               ? 0
               : sl_refuse(r, SL_EINVAL, field,
                           "%s: this server takes it from the addresses of --kv-transfer-peers",
                           field);
}

/* Names are looked up, and checked, where they are asked. */
static int check_host(const struct sl_engine *eng, const char *host, const char *field,
                      struct sl_refusal *r)
{
    struct in6_addr six;
    struct in_addr four;
    const bool numeric =
        inet_pton(AF_INET, host, &four) == 1 || inet_pton(AF_INET6, host, &six) == 1;
    if (host[0] == '\0')
        return sl_refuse(r, SL_EINVAL, field, "%s is empty", field);
    return !numeric || sl_engine_knows_peer(eng, host)
               ? 0
               : sl_refuse(r, SL_EINVAL, field, "%s: %.60s is not one of --kv-transfer-peers",
                           field, host);
}

static int make(struct sl_transfers *out, int32_t n, struct sl_refusal *r)
{
    SL_ASSERT(n >= 1 && out->prompts == NULL);
    out->prompts = sl_calloc((size_t)n, sizeof *out->prompts);
    out->n = n;
    return out->prompts != NULL ? 0 : sl_refuse(r, SL_ENOMEM, NULL, "out of memory");
}

/* A member; null where there is none. */
static const json_t *member(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return v != NULL ? v : json_null();
}

/* ---- vLLM's */

static int read_flag(const json_t *o, const char *name, bool *out, struct sl_refusal *r)
{
    const json_t *v = member(o, name);
    *out = false;
    return json_is_null(v) ? 0 : sl_json_bool(v, "kv_transfer_params", out, r);
}

static bool parse_offer(const json_t *v, uint64_t id[2])
{
    const char *s = json_string_value(v);
    return s != NULL && json_string_length(v) == OFFER_CHARS && sl_parse_hex_u64(s, 16, &id[0]) &&
           sl_parse_hex_u64(s + 16, 16, &id[1]);
}

/* null: there was nothing to offer, a prompt of less than a block. */
static int read_offers(const json_t *sluice, struct sl_transfers *out, const char *host, int port,
                       struct sl_refusal *r)
{
    const json_t *offers = json_object_get(sluice, "offers");
    if (json_integer_value(json_object_get(sluice, "v")) != VERSION || !json_is_array(offers) ||
        json_array_size(offers) != (size_t)out->n)
        return sl_refuse(r, SL_EINVAL, "kv_transfer_params",
                         "kv_transfer_params.sluice: not what a sluice server of this version "
                         "answers to this prompt: pages come from such servers only");
    for (int32_t i = 0; i < out->n; i++) {
        const json_t *v = json_array_get(offers, (size_t)i);
        struct sl_kv_transfer *t = &out->prompts[i];
        if (json_is_null(v))
            continue;
        if (!parse_offer(v, t->id))
            return sl_refuse(r, SL_EINVAL, "kv_transfer_params",
                             "kv_transfer_params.sluice.offers must be hexadecimal numbers");
        t->host = host;
        t->port = port;
    }
    return 0;
}

static int read_prefilled(const json_t *o, const struct sl_engine *eng, struct sl_transfers *out,
                          struct sl_refusal *r)
{
    const char *host = NULL;
    int64_t port = 0;
    const json_t *sluice = member(o, "sluice");
    int rc =
        sl_json_cstr(member(o, "remote_host"), "kv_transfer_params", SL_MAX_PEER_HOST, &host, r);
    if (rc == 0)
        rc = sl_json_int(member(o, "remote_port"), "kv_transfer_params", 1, 65535, &port, r);
    if (rc == 0)
        rc = check_host(eng, host, "kv_transfer_params", r);
    return rc != 0 ? rc : read_offers(sluice, out, host, (int)port, r);
}

static int read_params(const json_t *o, const struct sl_conn *c, const struct sl_engine *eng,
                       int32_t n_prompts, struct sl_transfers *out, struct sl_refusal *r)
{
    const struct sl_kv_transfer_info *info = sl_engine_transfer(eng);
    bool decode, prefill;
    if (!json_is_object(o))
        return sl_refuse(r, SL_EINVAL, "kv_transfer_params",
                         "kv_transfer_params must be an object, not %s", sl_json_type_name(o));
    int rc = read_flag(o, "do_remote_decode", &decode, r);
    if (rc == 0)
        rc = read_flag(o, "do_remote_prefill", &prefill, r);
    if (rc != 0 || (!decode && !prefill))
        return rc;
    if (decode && prefill)
        return sl_refuse(r, SL_EINVAL, "kv_transfer_params",
                         "kv_transfer_params: do_remote_decode and do_remote_prefill exclude each "
                         "other");
    if (decode ? !info->serves : !info->asks)
        return sl_refuse(r, SL_EUNSUPPORTED, "kv_transfer_params",
                         "kv_transfer_params.%s: this server has no --disaggregation-mode %s",
                         decode ? "do_remote_decode" : "do_remote_prefill",
                         decode ? "prefill" : "decode");
    rc = check_caller(c, eng, "kv_transfer_params", r);
    if (rc == 0)
        rc = make(out, n_prompts, r);
    out->offers = out->answers = decode;
    return rc != 0 || decode ? rc : read_prefilled(o, eng, out, r);
}

/* ---- SGLang's */

/* The value of prompt i: of an array its own, else everybody's. */
static const json_t *of_prompt(const json_t *v, int32_t i)
{
    const json_t *own = json_is_array(v) ? json_array_get(v, (size_t)i) : v;
    return own != NULL ? own : json_null();
}

static int read_room(const struct sl_params *p, const struct sl_engine *eng, int32_t i,
                     struct sl_transfers *out, struct sl_refusal *r)
{
    struct sl_kv_transfer *t = &out->prompts[i];
    const json_t *host = of_prompt(p->bootstrap_host, i);
    const json_t *port = of_prompt(p->bootstrap_port, i);
    int64_t room, n_port = sl_engine_transfer(eng)->bootstrap_port;
    int rc = sl_json_int(of_prompt(p->bootstrap_room, i), "bootstrap_room", 0, INT64_MAX, &room, r);
    if (rc != 0)
        return rc;
    t->is_room = true;
    t->id[0] = (uint64_t)room;
    if (out->offers)
        return 0;
    if (json_is_null(host))
        return sl_refuse(r, SL_EINVAL, "bootstrap_host", "bootstrap_host is missing");
    rc = sl_json_cstr(host, "bootstrap_host", SL_MAX_PEER_HOST, &t->host, r);
    if (rc == 0)
        rc = check_host(eng, t->host, "bootstrap_host", r);
    if (rc == 0 && !json_is_null(port))
        rc = sl_json_int(port, "bootstrap_port", 1, 65535, &n_port, r);
    t->port = (int32_t)n_port;
    return rc;
}

static int read_rooms(const struct sl_params *p, const struct sl_conn *c,
                      const struct sl_engine *eng, int32_t n_prompts, struct sl_transfers *out,
                      struct sl_refusal *r)
{
    const struct sl_kv_transfer_info *info = sl_engine_transfer(eng);
    const json_t *rooms = p->bootstrap_room;
    int rc = check_caller(c, eng, "bootstrap_room", r);
    if (rc != 0)
        return rc;
    if (json_is_array(rooms) ? json_array_size(rooms) != (size_t)n_prompts : n_prompts > 1)
        return sl_refuse(r, SL_EINVAL, "bootstrap_room",
                         "bootstrap_room must have a room for each of %d prompts", (int)n_prompts);
    if (info->serves && info->asks)
        return sl_refuse(r, SL_EUNSUPPORTED, "bootstrap_room",
                         "bootstrap_room: this server may be either side; it needs "
                         "--disaggregation-mode prefill or decode");
    rc = make(out, n_prompts, r);
    out->offers = info->serves;
    for (int32_t i = 0; rc == 0 && i < n_prompts; i++)
        rc = read_room(p, eng, i, out, r);
    return rc;
}

int sl_transfers_read(const struct sl_params *p, const struct sl_conn *c,
                      const struct sl_engine *eng, int32_t n_prompts, struct sl_transfers *out,
                      struct sl_refusal *r)
{
    const struct sl_kv_transfer_info *info = sl_engine_transfer(eng);
    const json_t *params = p->kv_transfer_params;
    *out = (struct sl_transfers){.prompts = NULL};
    SL_ASSERT(params == NULL || info->serves || info->asks);
    int rc = params != NULL ? read_params(params, c, eng, n_prompts, out, r) : 0;
    if (rc == 0 && out->prompts == NULL && p->bootstrap_room != NULL &&
        (info->serves || info->asks))
        rc = read_rooms(p, c, eng, n_prompts, out, r);
    return rc;
}

void sl_transfers_refused(struct sl_engine *eng, const json_t *root)
{
    const json_t *rooms = root != NULL ? json_object_get(root, "bootstrap_room") : NULL;
    const size_t n = json_is_array(rooms) ? SL_MIN(json_array_size(rooms), SL_MAX_PROMPTS) : 1;
    if (rooms == NULL || !sl_engine_transfer(eng)->serves)
        return;
    for (size_t i = 0; i < n; i++) {
        const json_t *room = of_prompt(rooms, (int32_t)i);
        if (json_is_integer(room) && json_integer_value(room) >= 0)
            sl_engine_refuse_room(eng, (uint64_t)json_integer_value(room));
    }
}

/* ---- the answer */

static void put_offers(struct sl_buf *b, const struct sl_call *call, int64_t *n_tokens)
{
    uint64_t id[2];
    *n_tokens = 0;
    SL_PUT(b, "\"offers\":[");
    for (int32_t i = 0; i < call->n_prompts; i++) {
        int32_t n = sl_request_offer(call->prompts[i].req, id);
        sl_buf_puts(b, i > 0 ? "," : "");
        if (n > 0)
            sl_buf_printf(b, "\"%016llx%016llx\"", (unsigned long long)id[0],
                          (unsigned long long)id[1]);
        else
            SL_PUT(b, "null");
        *n_tokens += n;
    }
    sl_buf_putc(b, ']');
}

void sl_transfers_put(struct sl_buf *b, const struct sl_call *call)
{
    const struct sl_engine *eng = call->served->eng;
    const struct sl_kv_transfer_info *info = sl_engine_transfer(eng);
    const int32_t block_size = sl_engine_info(eng)->block_size;
    int64_t n_tokens;
    if (!call->answers_transfer)
        return;
    SL_PUT(b, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
              "\"remote_engine_id\":");
    sl_buf_json_string(b, info->engine_id, strlen(info->engine_id));
    SL_PUT(b, ",\"remote_request_id\":");
    sl_buf_json_string(b, call->id, strlen(call->id));
    SL_PUT(b, ",\"remote_host\":");
    sl_buf_json_string(b, info->host, strlen(info->host));
    sl_buf_printf(b,
                  ",\"remote_port\":%d,\"tp_size\":1,\"dcp_size\":1,\"pp_size\":1,"
                  "\"transfer_mode\":\"pull\",\"sluice\":{\"v\":%d,\"root\":\"%s\",",
                  info->port, VERSION, info->root);
    put_offers(b, call, &n_tokens);
    SL_PUT(b, "},\"remote_num_tokens\":");
    sl_put_i64(b, n_tokens);
    SL_PUT(b, ",\"remote_block_ids\":[[");
    for (int64_t i = 0; i < n_tokens / block_size; i++) {
        sl_buf_puts(b, i > 0 ? "," : "");
        sl_put_i64(b, i);
    }
    SL_PUT(b, "]]}");
}
