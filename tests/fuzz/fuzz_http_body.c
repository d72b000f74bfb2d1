/* SPDX-License-Identifier: MIT
 * fuzz_http_body.c - bytes of a connection: the HTTP parser, fed whole and in pieces, must agree
 * with itself; bodies go on to the JSON reader and both field tables.
 */
#include "base/check.h"
#include "base/sys.h"
#include "server/params.h"
#include "server/prompt.h"

#include <stdint.h>
#include <string.h>

#define MAX_BODY 4096

static void read_body(const char *text, size_t n)
{
    static const enum sl_endpoint endpoints[] = {SL_ENDPOINT_CHAT, SL_ENDPOINT_COMPLETIONS};
    const struct sl_sampling defaults = {
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n = 1};
    for (size_t i = 0; i < SL_COUNT(endpoints); i++) {
        const struct sl_param_limits limits = {1000, i == 0};
        struct sl_refusal r = {0};
        struct sl_params p = {0};
        json_t *root;
        if (sl_json_parse_object(text, n, &root, &r) != 0)
            return;
        int rc = sl_params_parse(&p, endpoints[i], root, &defaults, &limits, &r);
        SL_ASSERT(rc <= 0 && (rc == 0 || r.err.msg[0] != '\0'));
        if (rc == 0) {
            const struct sl_sampling *s = &p.sampling;
            SL_ASSERT(s->temperature >= 0 && s->temperature <= 100 && s->top_p > 0);
            SL_ASSERT(s->n >= 1 && s->n_stop >= 0 && s->n_logit_bias >= 0);
            for (int32_t k = 0; k < s->n_stop_token_ids; k++)
                SL_ASSERT(s->stop_token_ids[k] >= 0 && s->stop_token_ids[k] < limits.n_vocab);
            rc = sl_messages_normalise(json_object_get(root, "messages"), &r);
            SL_ASSERT(rc <= 0);
        }
        sl_params_deinit(&p);
        json_decref(root);
    }
}

/* A digest of what the bytes mean, with the input cut every `step` bytes. */
static uint64_t meaning(const char *data, size_t n, size_t step, bool use_bodies)
{
    struct sl_http_parser p;
    uint64_t digest = 1;
    size_t at = 0, end = 0;
    sl_http_parser_init(&p, MAX_BODY);
    while (end < n && p.state != SL_HTTP_BAD) {
        end = SL_MIN(n, end + step);
        while (at < end && p.state != SL_HTTP_BAD) {
            size_t took = sl_http_parser_feed(&p, data + at, end - at);
            SL_ASSERT(took > 0 && took <= end - at);
            at += took;
            if (p.state == SL_HTTP_HEAD_DONE)
                sl_http_parser_body(&p, false);
            if (p.state != SL_HTTP_COMPLETE)
                continue;
            SL_ASSERT(p.body.n_bytes <= MAX_BODY);
            digest = digest * 31 + (uint64_t)p.method * 7 + p.path.n + p.n_headers;
            for (size_t i = 0; i < p.body.n_bytes; i++)
                digest = digest * 31 + (unsigned char)p.body.data[i];
            if (use_bodies)
                read_body(p.body.data, p.body.n_bytes);
            sl_http_parser_reset(&p);
        }
    }
    digest = digest * 31 + (uint64_t)(p.state == SL_HTTP_BAD ? p.status : 0);
    sl_http_parser_deinit(&p);
    return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    if (size > 1 && data[0] == '{') { /* a body by itself: saves the fuzzer the head */
        read_body(text, size);
        return 0;
    }
    uint64_t whole = meaning(text, size, SL_MAX(size, 1), true);
    SL_ASSERT(meaning(text, size, 1, false) == whole);
    SL_ASSERT(meaning(text, size, 7, false) == whole);
    return 0;
}
