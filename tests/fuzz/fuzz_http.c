/* SPDX-License-Identifier: MIT
 * The bytes of a connection: heads, bodies, chunks, one request after the other. Fed whole, at two
 * places the input chooses, and byte by byte they mean the same requests and the same end, and what
 * http_model.h reads in them. Routes, keys and origins of each request go through a slow look-up.
 */
#include "http_model.h"
#include "server/http/route.h"

#define MAX_REQUESTS 8

static const char *const keys[] = {"k", "key-2", ""};
static const char *const origins[] = {"http://a", "b"};
static const struct sl_server_config config = {.api_keys = keys,
                                               .n_api_keys = SL_COUNT(keys),
                                               .allowed_origins = origins,
                                               .n_allowed_origins = SL_COUNT(origins)};

struct meaning {
    uint64_t digest;
    int status; /* 0: not bad */
    size_t n_requests;
    bool started;
};

static void add(uint64_t *digest, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        *digest = (*digest ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001B3);
    *digest = *digest * 31 + n;
}

static void add_str(uint64_t *digest, struct sl_str s)
{
    add(digest, s.p, s.n);
}

/* What handlers may look at. */
static void add_request(uint64_t *digest, const struct sl_http_parser *p)
{
    const bool flags[] = {p->http_1_0, p->keep_alive, p->expect_continue, p->chunked};
    add(digest, flags, sizeof flags);
    add(digest, &p->method, sizeof p->method);
    add_str(digest, p->path);
    add_str(digest, p->query);
    for (size_t i = 0; i < p->n_headers; i++) {
        add_str(digest, p->headers[i].name);
        add_str(digest, p->headers[i].value);
    }
    add(digest, p->body.data, p->body.n_bytes);
}

static void compare(const struct sl_http_parser *p, const struct model_request *r)
{
    struct sl_str query = {"", 0}, path = r->target;
    SL_ASSERT(p->method == SL_HTTP_OTHER ||
              sl_str_equals(r->method, sl_http_method_names[p->method]));
    for (int m = SL_HTTP_GET; m < SL_HTTP_N_METHODS; m++)
        SL_ASSERT(((int)p->method == m) == sl_str_equals(r->method, sl_http_method_names[m]));
    struct sl_str after = r->target;
    if (model_cut(&after, '?', &path))
        query = after;
    SL_ASSERT(p->path.n == path.n && memcmp(p->path.p, path.p, path.n) == 0);
    SL_ASSERT(p->query.n == query.n && (query.n == 0 || memcmp(p->query.p, query.p, query.n) == 0));
    SL_ASSERT(p->http_1_0 == r->http_1_0 && p->chunked == r->chunked);
    SL_ASSERT(p->expect_continue == r->expect);
    SL_ASSERT(p->keep_alive == (r->http_1_0 ? r->keep : !r->close));
    SL_ASSERT(p->n_headers == r->n_headers && p->body.n_bytes == r->n_body);
    for (size_t i = 0; i < r->n_headers; i++) {
        struct sl_str name = p->headers[i].name, value = p->headers[i].value;
        SL_ASSERT(name.n == r->names[i].n && memcmp(name.p, r->names[i].p, name.n) == 0);
        SL_ASSERT(value.n == r->values[i].n && memcmp(value.p, r->values[i].p, value.n) == 0);
    }
    SL_ASSERT(r->n_body == 0 || memcmp(p->body.data, r->body, r->n_body) == 0);
}

static void look_up(const struct sl_http_parser *p)
{
    const struct sl_route *want = NULL, *got = sl_route_find(p->path);
    char path[64] = "";
    if (p->path.n < sizeof path)
        memcpy(path, p->path.p, p->path.n);
    for (int i = 0; i < sl_n_routes; i++)
        if (sl_routes[i].prefix
                ? p->path.n > strlen(sl_routes[i].path) &&
                      strncmp(path, sl_routes[i].path, strlen(sl_routes[i].path)) == 0
                : strcmp(path, sl_routes[i].path) == 0)
            want = &sl_routes[i];
    SL_ASSERT(got == want || (want == NULL && got != NULL && got->prefix));
    const struct sl_str *origin = sl_http_header(p, "origin");
    bool listed =
        origin != NULL && (sl_str_equals(*origin, "http://a") || sl_str_equals(*origin, "b"));
    SL_ASSERT((sl_route_cors_origin(&config, p) != NULL) == listed);
    int n[2] = {0, 0}, key[2] = {-1, -1}; /* of Authorization, of X-Api-Key */
    for (size_t i = 0; i < p->n_headers; i++) {
        struct sl_str value = p->headers[i].value, scheme;
        bool plain = sl_str_equals_nocase(p->headers[i].name, "x-api-key");
        if (!plain && !sl_str_equals_nocase(p->headers[i].name, "authorization"))
            continue;
        n[plain]++;
        if (plain || (model_cut(&value, ' ', &scheme) && sl_str_equals_nocase(scheme, "bearer")))
            key[plain] = sl_str_equals(value, keys[0]) ? 0 : sl_str_equals(value, keys[1]) ? 1 : -1;
    }
    int known = n[0] > 1 || n[1] > 1 || n[0] + n[1] == 0 ? -1
                : n[0] == 0                              ? key[1]
                : n[1] == 0 || key[0] == key[1]          ? key[0]
                                                         : -1;
    SL_ASSERT(sl_route_key(&config, p) == known);
}

/* Feeds everything up to `end`, with a model at most as many requests as it holds. model: what the
 * bytes should mean, or NULL. */
static size_t feed(struct sl_http_parser *p, const char *data, size_t at, size_t end,
                   struct meaning *m, const struct model_request *model)
{
    while (at < end && p->state != SL_HTTP_BAD && (model == NULL || m->n_requests < MAX_REQUESTS)) {
        size_t took = sl_http_parser_feed(p, data + at, end - at);
        SL_ASSERT(took > 0 && took <= end - at);
        at += took;
        if (p->state == SL_HTTP_HEAD_DONE)
            sl_http_parser_body(p, false);
        if (p->state != SL_HTTP_COMPLETE)
            continue;
        add_request(&m->digest, p);
        if (model != NULL) {
            compare(p, &model[m->n_requests]);
            look_up(p);
        }
        m->n_requests++;
        sl_http_parser_reset(p);
    }
    return at;
}

static struct meaning read_all(const char *data, size_t n, size_t cut1, size_t cut2, bool single,
                               const struct model_request *model)
{
    static struct sl_http_parser p;
    struct meaning m = {.digest = 1};
    size_t cuts[] = {SL_MIN(cut1, n), SL_MIN(SL_MAX(cut1, cut2), n), n}, at = 0;
    sl_http_parser_init(&p, MODEL_MAX_BODY);
    for (size_t i = 0; single && i < n; i++)
        at = feed(&p, data, at, i + 1, &m, model);
    for (size_t i = 0; i < SL_COUNT(cuts); i++)
        at = feed(&p, data, at, cuts[i], &m, model);
    m.status = p.state == SL_HTTP_BAD ? p.status : 0;
    m.started = sl_http_parser_started(&p);
    SL_ASSERT(p.state != SL_HTTP_BAD || (p.status >= 400 && p.reason != NULL && !p.keep_alive));
    sl_http_parser_deinit(&p);
    return m;
}

static void expect_same(struct meaning a, struct meaning b)
{
    SL_ASSERT(a.digest == b.digest && a.status == b.status && a.n_requests == b.n_requests &&
              a.started == b.started);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct model_request model[MAX_REQUESTS];
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    size_t n = size - 2, n_model = 0;
    struct sl_str rest = {text, n};
    enum model_end end = MODEL_MORE;
    while (n_model < MAX_REQUESTS && rest.n > 0 &&
           (end = model_request(&rest, &model[n_model])) == MODEL_GOOD)
        n_model++;
    struct meaning whole = read_all(text, n, n, n, false, model);
    SL_ASSERT(whole.n_requests == n_model);
    if (n_model < MAX_REQUESTS && rest.n > 0)
        SL_ASSERT((whole.status != 0) == (end == MODEL_BAD));
    whole = read_all(text, n, n, n, false, NULL);
    expect_same(read_all(text, n, data[0], data[1], false, NULL), whole);
    expect_same(read_all(text, n, n, n, true, NULL), whole);
    return 0;
}
