/* SPDX-License-Identifier: MIT
 * Who may do what: every route with every method and every way to write, forget or forge a key,
 * and paths that mean a protected route without spelling it. The outcome follows from the table
 * below, which must list the same routes as the server's own.
 */
#include "server/hostile.h"

#include "server/http/route.h"

#define MAX_MODEL_LEN 128 /* the prompt of a compaction has 82 tokens */
#define KEY_1         "right-key-1"
#define KEY_2         "k"
#define MODEL_PATH    "/v1/models/storyteller"
#define NO_RESPONSE   "/v1/responses/resp_0"
#define NO_FILE       "/v1/files/file-0/content"
#define NO_BATCH      "/v1/batches/batch_0"
#define TEXT(s)       s, sizeof(s) - 1
#define BODY                                                                            \
    "{\"prompt\":[5],\"tokens\":[5],\"max_tokens\":1,\"messages\":[{\"role\":\"user\"," \
    "\"content\":\"a\"}]}"
#define RESPONSES_BODY "{\"input\":\"a\",\"max_output_tokens\":1}"
#define RIGHT          "Authorization: Bearer " KEY_1 "\r\n"

enum { GET = 1, POST = 2, DELETE = 4 };

static const struct expected {
    const char *path;
    bool prefix, open;
    int methods;
} routes[] = {
    {"/v1/chat/completions", false, false, POST},
    {"/v1/completions", false, false, POST},
    {"/v1/chat/completions/render", false, false, POST},
    {"/v1/completions/render", false, false, POST},
    {"/apply-template", false, false, POST},
    {"/v1/messages", false, false, POST},
    {"/v1/messages/count_tokens", false, false, POST},
    {"/v1/responses", false, false, POST},
    {"/v1/responses/compact", false, false, POST},
    {"/v1/responses/input_tokens", false, false, POST},
    {"/v1/responses/", true, false, GET | POST | DELETE},
    {"/v1/files", false, false, GET | POST},
    {"/v1/files/", true, false, GET | DELETE},
    {"/v1/batches", false, false, GET | POST},
    {"/v1/batches/", true, false, GET | POST},
    {"/v1/embeddings", false, false, POST},
    {"/pooling", false, false, POST},
    {"/rerank", false, false, POST},
    {"/v1/rerank", false, false, POST},
    {"/v2/rerank", false, false, POST},
    {"/score", false, false, POST},
    {"/v1/score", false, false, POST},
    {"/v1/models", false, false, GET},
    {"/v1/models/", true, false, GET},
    {"/v1/load_lora_adapter", false, false, POST},
    {"/v1/unload_lora_adapter", false, false, POST},
    {"/tokenize", false, false, POST},
    {"/detokenize", false, false, POST},
    {"/health", false, true, GET},
    {"/health/ready", false, true, GET},
    {"/livez", false, true, GET},
    {"/readyz", false, true, GET},
    {"/api/chat", false, false, POST},
    {"/api/generate", false, false, POST},
    {"/api/embed", false, false, POST},
    {"/api/embeddings", false, false, POST},
    {"/api/tags", false, false, GET},
    {"/api/ps", false, false, GET},
    {"/api/show", false, false, POST},
    {"/api/pull", false, false, POST},
    {"/api/version", false, true, GET},
    {"/props", false, false, GET},
    {"/slots", false, false, GET},
    {"/tokenizer_info", false, false, GET},
    {"/server_info", false, false, GET},
    {"/get_server_info", false, false, GET},
    {"/model_info", false, false, GET},
    {"/get_model_info", false, false, GET},
    {"/ping", false, true, GET | POST},
    {"/version", false, true, GET},
    {"/load", false, true, GET},
    {"/metrics", false, true, GET},
    {"/", false, true, GET},
    {"/page.css", false, true, GET},
    {"/page.js", false, true, GET},
    {"/api/state", false, false, GET},
    {"/api/cancel", false, false, POST},
};

static const struct method {
    const char *name;
    int is; /* 0: no route has it */
} methods[] = {{"GET", GET},       {"HEAD", GET}, {"POST", POST}, {"PUT", 0},
               {"DELETE", DELETE}, {"PATCH", 0},  {"OPTIONS", 0}, {"TRACE", 0},
               {"get", 0},         {"Post", 0},   {"GETPOST", 0}};

static const struct credential {
    const char *header;
    bool right;
} credentials[] = {
    {"", false},
    {RIGHT, true},
    {"Authorization: Bearer " KEY_2 "\r\n", true},
    {"authorization: bearer " KEY_1 "\r\n", true},
    {"AUTHORIZATION: BEARER " KEY_1 "\r\n", true},
    {"Authorization: \t Bearer " KEY_1 " \t\r\n", true}, /* blanks around a value are not of it */
    {"Authorization: Bearer wrong-key-1\r\n", false},
    {"Authorization: Bearer right-key-\r\n", false},
    {"Authorization: Bearer right-key-11\r\n", false},
    {"Authorization: Bearer " KEY_1 KEY_1 "\r\n", false},
    {"Authorization: Bearer kk\r\n", false},
    {"Authorization: Bearer RIGHT-KEY-1\r\n", false},
    {"Authorization: Bearer  " KEY_1 "\r\n", false},
    {"Authorization: Bearer\t" KEY_1 "\r\n", false},
    {"Authorization: Bearer" KEY_1 "\r\n", false},
    {"Authorization: Bearer: " KEY_1 "\r\n", false},
    {"Authorization: Bearer \"" KEY_1 "\"\r\n", false},
    {"Authorization: Bearer " KEY_1 ";\r\n", false},
    {"Authorization: Bearer " KEY_1 ", Bearer " KEY_1 "\r\n", false},
    {"Authorization: Bearer " KEY_1 " " KEY_1 "\r\n", false},
    {"Authorization: Bearer \xc2\xa0" KEY_1 "\r\n", false},
    {"Authorization: Bearer\r\n", false},
    {"Authorization: Bearer \r\n", false},
    {"Authorization:\r\n", false},
    {"Authorization: " KEY_1 "\r\n", false},
    {"Authorization: Token " KEY_1 "\r\n", false},
    {"Authorization: Digest " KEY_1 "\r\n", false},
    {"Authorization: Basic cmlnaHQta2V5LTE6\r\n", false},
    {"Authorization: Basic Bearer " KEY_1 "\r\n", false},
    {"Authorization: Bearer null\r\n", false},
    {"Authorization: Bearer undefined\r\n", false},
    {"Authorization: Bearer EMPTY\r\n", false},
    {"Authorization: Bearer %72ight-key-1\r\n", false},
    {"Authorization: Bearer " KEY_1 "%00\r\n", false},
    {"Authorisation: Bearer " KEY_1 "\r\n", false},
    {"X-Authorization: Bearer " KEY_1 "\r\n", false},
    {"Proxy-Authorization: Bearer " KEY_1 "\r\n", false},
    {"X-Api-Key: " KEY_1 "\r\n", true}, /* as clients of Anthropic's API have it */
    {"Api-Key: " KEY_1 "\r\n", false},
    {"Cookie: Authorization=Bearer " KEY_1 "; api_key=" KEY_1 "\r\n", false},
    {"Authorization: Bearer wrong\r\n" RIGHT, false}, /* which of the two did a proxy check? */
    {RIGHT "Authorization: Bearer wrong\r\n", false},
    {RIGHT RIGHT, false},
    {RIGHT "authorization:\r\n", false},
    {"X-Original-URL: /health\r\nX-Rewrite-URL: /health\r\n", false},
    {"X-HTTP-Method-Override: GET\r\nX-Method-Override: GET\r\n", false},
    {"X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n", false},
    {"Origin: http://localhost\r\nReferer: http://localhost/\r\n", false},
    {"X-Forwarded-User: admin\r\nRemote-User: admin\r\n", false},
    {"X-Api-Key: wrong-key-1\r\n", false},
    {"X-Api-Key: Bearer " KEY_1 "\r\n", false},
    {"X-Api-Key:\r\n", false},
    {"X-Api-Key: " KEY_1 "\r\nX-Api-Key: " KEY_1 "\r\n", false},
    {"x-api-key: " KEY_1 "\r\n" RIGHT, true},
    {"X-Api-Key: " KEY_2 "\r\n" RIGHT, false}, /* two keys, and both are good */
    {"X-Api-Key: wrong\r\n" RIGHT, false},
    {"X-Api-Key:\r\n" RIGHT, false},
    {"Connection: Authorization\r\n" RIGHT, true}, /* a word in Connection takes nothing away */
};

static const char *const keys[] = {KEY_1, KEY_2};
static int start(void **state)
{
    static const char *const origins[] = {"http://page.example"};
    static const struct host_options options = {.max_model_len = MAX_MODEL_LEN,
                                                .keys = keys,
                                                .n_keys = 2,
                                                .origins = origins,
                                                .n_origins = 1,
                                                .files = true};
    (void)state;
    host_start(&host, &options);
    return 0;
}

/* A path of the route; nothing lies behind the second. */
static const char *target_of(const struct expected *r)
{
    static const char *const paths[] = {MODEL_PATH, NO_RESPONSE, NO_FILE, NO_BATCH};
    for (size_t i = 0; r->prefix && i < SL_COUNT(paths); i++)
        if (strncmp(paths[i], r->path, strlen(r->path)) == 0)
            return paths[i];
    return r->path;
}

/* ---- the rule */

static const struct expected *route_of(const char *target)
{
    size_t n = strcspn(target, "?");
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        size_t n_path = strlen(routes[i].path);
        if (strncmp(target, routes[i].path, n_path) == 0 &&
            (routes[i].prefix ? n > n_path : n == n_path))
            return &routes[i];
    }
    return NULL;
}

/* What a model that generates refuses. */
static bool is_pooling(const char *path)
{
    return strstr(path, "rerank") != NULL || strstr(path, "score") != NULL ||
           strcmp(path, "/v1/embeddings") == 0 || strcmp(path, "/pooling") == 0 ||
           strncmp(path, "/api/embed", 10) == 0;
}

/* What BODY is no request for: the prompt is no text, or it names no model. */
static bool is_ollama_of_text(const char *path)
{
    return strcmp(path, "/api/generate") == 0 || strcmp(path, "/api/show") == 0 ||
           strcmp(path, "/api/pull") == 0;
}

static int status_of(const char *target, const struct method *m, bool key_ok)
{
    const struct expected *r = route_of(target);
    if (r == NULL)
        return 404;
    if (!r->open && !key_ok)
        return 401;
    if (!(r->methods & m->is))
        return 405;
    if (strstr(r->path, "lora_adapter") != NULL || /* this server loads none for its clients */
        is_pooling(r->path) || is_ollama_of_text(r->path))
        return 400;
    size_t n = strcspn(target, "?");
    bool known = n == strlen(MODEL_PATH) && strncmp(target, MODEL_PATH, n) == 0;
    if (strcmp(r->path, "/api/cancel") == 0)
        return 400; /* BODY names no request */
    if (m->is == POST && (strcmp(r->path, "/v1/files") == 0 || strcmp(r->path, "/v1/batches") == 0))
        return 400; /* it is no form, and names no file */
    return r->prefix && !known ? 404 : 200;
}

static void check_refusal(const struct answer *a, const char *target, bool is_head)
{
    struct sl_buf value = {0};
    const struct expected *r = route_of(target);
    assert_int_equal(answer_header(a, "WWW-Authenticate", &value), a->status == 401);
    if (a->status == 401)
        assert_string_equal(value.data, "Bearer");
    static const char *const allow[] = {[GET] = "GET, HEAD",
                                        [POST] = "POST",
                                        [GET | POST] = "GET, HEAD, POST",
                                        [GET | DELETE] = "GET, HEAD, DELETE",
                                        [GET | POST | DELETE] = "GET, HEAD, POST, DELETE"};
    assert_int_equal(answer_header(a, "Allow", &value), a->status == 405);
    if (a->status == 405)
        assert_string_equal(value.data, allow[r->methods]);
    if (a->status >= 400 && !is_head && strstr(target, KEY_1) == NULL) /* repeats no key */
        assert_null(strstr(a->body.data, KEY_1));
    sl_buf_deinit(&value);
}

/* One request on an open connection, which must stay usable. */
static void check(struct client *c, const struct method *m, const char *target, const char *header,
                  bool key_ok, const char *host_line)
{
    struct sl_buf b = {0};
    struct answer a;
    bool is_head = strcmp(m->name, "HEAD") == 0;
    const char *body = strstr(target, "/v1/responses") != NULL ? RESPONSES_BODY : BODY;
    bool has_body = m->is == POST || strcmp(m->name, "PUT") == 0 || strcmp(m->name, "PATCH") == 0;
    sl_buf_printf(&b, "%s %s HTTP/1.1\r\n%s%s", m->name, target, host_line, header);
    if (has_body)
        sl_buf_printf(&b, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    else
        sl_buf_puts(&b, "\r\n");
    assert_true(sl_buf_ok(&b));
    (void)client_send(c, b.data, b.n_bytes);
    int want = status_of(target, m, key_ok);
    if (!client_answer(c, is_head, &a) || a.status != want || a.says_close)
        fail_msg("%s\n  gives %d %s, not %d", host_show(b.data, b.n_bytes), a.status,
                 a.body.data != NULL ? a.body.data : "", want);
    check_refusal(&a, target, is_head);
    answer_free(&a);
    sl_buf_deinit(&b);
    host.n_cases++;
}

static void test_table_is_the_servers(void **state)
{
    (void)state;
    const struct sl_route *r = sl_routes;
    for (size_t i = 0; i < SL_COUNT(routes); i++, r++) {
        while (sl_sleep_hides(&host.cfg, r)) /* no path of this server: test_sleep.py */
            assert_int_equal(r++->auth, SL_AUTH_KEY);
        assert_true(r < sl_routes + sl_n_routes);
        unsigned want = (routes[i].methods & GET ? 1u << SL_HTTP_GET | 1u << SL_HTTP_HEAD : 0) |
                        (routes[i].methods & POST ? 1u << SL_HTTP_POST : 0) |
                        (routes[i].methods & DELETE ? 1u << SL_HTTP_DELETE : 0);
        assert_string_equal(r->path, routes[i].path);
        assert_int_equal(r->prefix, routes[i].prefix);
        assert_int_equal(r->auth == SL_AUTH_OPEN, routes[i].open);
        assert_int_equal(r->methods, want);
        if (routes[i].methods & POST) /* nothing that works for a user is open */
            assert_true(!routes[i].open || strcmp(r->path, "/ping") == 0);
    }
    assert_ptr_equal(r, sl_routes + sl_n_routes);
    assert_int_equal(SL_AUTH_KEY, 0); /* a row that says nothing is closed */
}

/* Tokens the engine has seen, once it is idle. */
static uint64_t work_done(void)
{
    struct sl_stats st;
    for (int ms = 0; ms < HOST_WAIT_MS; ms++) {
        sl_engine_stats(host.eng, &st);
        if (st.n_running + st.n_waiting == 0)
            break;
        poll(NULL, 0, 1);
    }
    assert_int_equal(st.n_running + st.n_waiting, 0);
    return st.prompt_tokens + st.generation_tokens;
}

static void test_every_credential(void **state)
{
    (void)state;
    static const char *const targets[] = {"/v1/chat/completions",
                                          "/v1/completions",
                                          "/v1/messages",
                                          "/v1/messages/count_tokens",
                                          "/v1/responses",
                                          "/v1/responses/compact",
                                          "/v1/responses/input_tokens",
                                          NO_RESPONSE,
                                          "/v1/files",
                                          NO_FILE,
                                          "/v1/batches",
                                          NO_BATCH,
                                          "/v1/chat/completions/render",
                                          "/v1/completions/render",
                                          "/apply-template",
                                          "/api/chat",
                                          "/api/generate",
                                          "/api/tags",
                                          "/api/show",
                                          "/api/version",
                                          "/server_info",
                                          "/v1/models",
                                          MODEL_PATH,
                                          "/v1/models/none",
                                          "/tokenize",
                                          "/detokenize",
                                          "/health",
                                          "/ping",
                                          "/version",
                                          "/load",
                                          "/metrics",
                                          "/nothing",
                                          "/"};
    struct client c;
    client_open(&c, &host);
    for (size_t k = 0; k < SL_COUNT(credentials); k++) {
        uint64_t before = work_done();
        for (size_t t = 0; t < SL_COUNT(targets); t++)
            for (size_t m = 0; m < SL_COUNT(methods); m++)
                check(&c, &methods[m], targets[t], credentials[k].header, credentials[k].right,
                      HOST_LINE);
        assert_true((work_done() != before) == credentials[k].right);
        host_good(&host);
    }
    client_close(&c);
}

/* ---- paths and hosts that try to be another */

static void test_targets(void **state)
{
    (void)state;
    /* %s is a protected path, %.0s leaves it out */
    static const char *const tricks[] = {"/%s",
                                         "//%s",
                                         "/.%s",
                                         "/./%s",
                                         "/x/..%s",
                                         "/health/..%s",
                                         "/health%s",
                                         "/health/%s",
                                         "/health;%s",
                                         "/health?%s",
                                         "/ping?/..%s",
                                         "%s?",
                                         "%s?key=" KEY_1,
                                         "%s?api_key=" KEY_1,
                                         "%s?access_token=" KEY_1,
                                         "%s/",
                                         "%s//",
                                         "%s/.",
                                         "%s/../health",
                                         "%s/..;/health",
                                         "%s%%00",
                                         "%s%%20",
                                         "%s%%2f",
                                         "%s%%0d%%0aAuthorization:%%20Bearer%%20" KEY_1,
                                         "%s;a=b",
                                         "%s.json",
                                         "%s~",
                                         "%s\\",
                                         "/%%2f%s",
                                         "/%%2e%s",
                                         "/%%2e%%2e%s",
                                         "/metrics/..%%2f..%s",
                                         "%s%%",
                                         "%s&",
                                         "%s'",
                                         "/v1%s",
                                         "/v2%s",
                                         "/api%s",
                                         "/admin%s",
                                         "%s:POST",
                                         "/*%s",
                                         "%s?%%s%%n"};
    static const int used[] = {0, 1, 2, 6, 22, 40, 43}; /* credentials */
    struct client c;
    client_open(&c, &host);
    for (size_t r = 0; r < SL_COUNT(routes); r++) {
        for (size_t t = 0; t < SL_COUNT(tricks); t++) {
            char target[300];
            const char *path = target_of(&routes[r]);
            snprintf(target, sizeof target, tricks[t], path);
            for (size_t k = 0; k < SL_COUNT(used); k++) {
                const struct credential *cred = &credentials[used[k]];
                check(&c, &methods[0], target, cred->header, cred->right, HOST_LINE);
                check(&c, &methods[2], target, cred->header, cred->right, HOST_LINE);
            }
        }
        host_good(&host);
    }
    for (size_t r = 0; r < SL_COUNT(routes); r++) { /* one letter in capitals, or escaped */
        const char *path = target_of(&routes[r]);
        for (size_t i = 1; path[i] != '\0'; i++) {
            char target[300];
            snprintf(target, sizeof target, "%.*s%%%02x%s", (int)i, path,
                     (unsigned)(unsigned char)path[i], path + i + 1);
            check(&c, &methods[routes[r].methods == POST ? 2 : 0], target, "", false, HOST_LINE);
            snprintf(target, sizeof target, "%s", path);
            if (target[i] >= 'a' && target[i] <= 'z')
                target[i] = (char)(target[i] - 32);
            check(&c, &methods[routes[r].methods == POST ? 2 : 0], target, "", false, HOST_LINE);
        }
    }
    client_close(&c);
}

static void test_hosts(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "Host: localhost\r\n",    "Host: 127.0.0.1\r\n",
        "Host: evil.example\r\n", "Host:\r\n",
        "Host: a:99999999\r\n",   "Host: [::1]\r\n",
        "Host: localhost.\r\n",   "Host: 0\r\n",
        "Host: a%00\r\n",         "Host: admin.internal\r\nX-Forwarded-Host: localhost\r\n"};
    struct client c;
    client_open(&c, &host);
    for (size_t i = 0; i < SL_COUNT(lines); i++)
        for (size_t r = 0; r < SL_COUNT(routes); r++)
            for (size_t k = 0; k < 7; k++)
                check(&c, &methods[routes[r].methods == POST ? 2 : 0], target_of(&routes[r]),
                      credentials[k].header, credentials[k].right, lines[i]);
    client_close(&c);
}

/* ---- requests that are no well-formed ones */

#define POSTED "POST /v1/completions HTTP/1.1\r\n" HOST_LINE
#define L      "Content-Length: 29\r\n"
#define GOOD   "{\"prompt\":[5],\"max_tokens\":1}"

static void test_raw(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        const char *want;
    } rows[] = {
        {TEXT(POSTED RIGHT L "\r\n" GOOD), "200 open"},
        {TEXT(POSTED L "\r\n" GOOD), "401 open"},
        {TEXT(POSTED L "\r\n" GOOD POSTED RIGHT L "\r\n" GOOD), "401 200 open"},
        {TEXT(POSTED RIGHT L "\r\n" GOOD POSTED L "\r\n" GOOD), "200 401 open"}, /* not kept */
        {TEXT(POSTED "Authorization : Bearer " KEY_1 "\r\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED " Authorization: Bearer " KEY_1 "\r\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED "Authorization: Bearer\r\n " KEY_1 "\r\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED "Authorization: Bearer " KEY_1 "\x01\r\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED "Authorization: Bearer " KEY_1 "\x00\r\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED "Authorization: Bearer " KEY_1 "\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED "X: a\rAuthorization: Bearer " KEY_1 "\r\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED "X: a\nAuthorization: Bearer " KEY_1 "\r\n" L "\r\n" GOOD), "400 close"},
        {TEXT(POSTED "Transfer-Encoding: chunked\r\n\r\n1d\r\n" GOOD "\r\n0\r\n" RIGHT "\r\n"),
         "401 close"},
        {TEXT(POSTED "Expect: 100-continue\r\n" L "\r\n"), "401 close"},
        {TEXT(POSTED "Content-Length: 30000000\r\n\r\n"), "401 close"}, /* its body is not read */
        {TEXT(POSTED "Content-Length: 8589934592\r\n\r\n"), "401 close"},
        {TEXT(POSTED "Content-Encoding: gzip\r\n" L "\r\n" GOOD), "401 open"},
        {TEXT("POST /v1/completions HTTP/1.0\r\n" L "\r\n" GOOD), "401 close"},
        {TEXT("POST /v1/completions HTTP/1.0\r\n" RIGHT L "\r\n" GOOD), "200 close"},
        {TEXT(POSTED L "\r\n" RIGHT), "401 wait"}, /* a key inside the body is no header */
        {TEXT("POST http://a/v1/completions HTTP/1.1\r\n" HOST_LINE L "\r\n" GOOD), "400 close"},
        {TEXT("GET http://u:" KEY_1 "@a/v1/models HTTP/1.1\r\n" HOST_LINE "\r\n"), "400 close"},
        {TEXT("GET /v1/models HTTP/1.1\r\nHost: u:" KEY_1 "@a\r\n\r\n"), "400 close"},
        {TEXT("GET /health HTTP/1.1\r\n" HOST_LINE "Content-Length: 36\r\n\r\n"
              "GET /v1/models HTTP/1.1\r\n" HOST_LINE "\r\n"),
         "200 open"}, /* a request inside another's body */
        {TEXT("CONNECT /v1/models HTTP/1.1\r\n" HOST_LINE "\r\n"), "401 open"},
        {TEXT("OPTIONS * HTTP/1.1\r\n" HOST_LINE "\r\n"), "404 open"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        uint64_t before = work_done();
        struct client c;
        struct sl_buf got = {0};
        client_open(&c, &host);
        (void)client_send(&c, rows[i].text, rows[i].n);
        host_outcome(&c, false, rows[i].want, &got);
        client_close(&c);
        if (strcmp(got.data, rows[i].want) != 0)
            fail_msg("%s\n  gives %s, not %s", host_show(rows[i].text, rows[i].n), got.data,
                     rows[i].want);
        if (strstr(rows[i].want, "200") == NULL)
            assert_int_equal(work_done(), before);
        sl_buf_deinit(&got);
        host_good(&host);
        host.n_cases++;
    }
}

/* ---- pages of other origins */

static bool for_own_page(const char *path)
{
    return strcmp(path, "/") == 0 || strncmp(path, "/page.", 6) == 0 ||
           strcmp(path, "/api/state") == 0 || strcmp(path, "/api/cancel") == 0;
}

static void test_origins(void **state)
{
    (void)state;
    static const char allowed[] = "http://page.example";
    static const struct {
        const char *origin;
        bool ok;
    } rows[] = {{allowed, true},
                {"http://evil.example", false},
                {"http://page.example.evil.example", false},
                {"http://page.exampl", false},
                {"https://page.example", false},
                {"HTTP://PAGE.EXAMPLE", false},
                {"http://page.example:80", false},
                {"http://page.example/", false},
                {"null", false},
                {"*", false},
                {"", false}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        for (size_t r = 0; r < SL_COUNT(routes); r++) {
            for (int preflight = 0; preflight < 2; preflight++) {
                char text[600];
                struct client c;
                struct answer a;
                struct sl_buf value = {0};
                const char *path = target_of(&routes[r]);
                int n = snprintf(text, sizeof text,
                                 "OPTIONS %s HTTP/1.1\r\n" HOST_LINE "Origin: %s\r\n%s\r\n", path,
                                 rows[i].origin,
                                 preflight ? "Access-Control-Request-Method: POST\r\n" : "");
                bool ok = rows[i].ok && !for_own_page(path);
                int want = preflight && ok ? 204 : routes[r].open ? 405 : 401;
                client_open(&c, &host);
                (void)client_send(&c, text, (size_t)n);
                assert_true(client_answer(&c, false, &a));
                if (a.status != want)
                    fail_msg("%s gives %d, not %d", text, a.status, want);
                bool allows = answer_header(&a, "Access-Control-Allow-Origin", &value);
                assert_int_equal(allows, ok);
                if (allows)
                    assert_string_equal(value.data, allowed);
                assert_false(answer_header(&a, "Access-Control-Allow-Credentials", NULL));
                sl_buf_deinit(&value);
                answer_free(&a);
                client_close(&c);
                host.n_cases++;
            }
        }
    }
    host_good(&host);
}

static void test_without_keys(void **state)
{
    (void)state;
    static const struct host_options options = {.max_model_len = MAX_MODEL_LEN, .files = true};
    struct host open;
    struct client c;
    host_start(&open, &options);
    client_open(&c, &open);
    for (size_t k = 0; k < SL_COUNT(credentials); k++)
        for (size_t r = 0; r < SL_COUNT(routes); r++)
            check(&c, &methods[routes[r].methods == POST ? 2 : 0], target_of(&routes[r]),
                  credentials[k].header, true, HOST_LINE);
    client_close(&c);
    host_stop(&open);
}

static void test_enough_cases(void **state)
{
    (void)state;
    print_message("hostile keys and paths: %ld cases\n", host.n_cases);
    assert_true(host.n_cases >= 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_the_servers),
        cmocka_unit_test(test_every_credential),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_without_keys),
        cmocka_unit_test(test_enough_cases),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
