/* SPDX-License-Identifier: MIT
 * route.h - the table of paths: which methods a path has and whether it needs a key. A path matches
 * byte for byte or not at all; what is not in the table does not exist.
 */
#ifndef SL_SERVER_ROUTE_H
#define SL_SERVER_ROUTE_H

#include "server/http/http_stats.h"
#include "server/server.h"

struct sl_conn;
struct sl_refusal;
struct sl_served;

enum sl_auth { SL_AUTH_KEY, SL_AUTH_OPEN }; /* zero is the strict one */

enum sl_protocol { SL_PROTOCOL_OPENAI, SL_PROTOCOL_ANTHROPIC, SL_PROTOCOL_OLLAMA }; /* of errors */

struct sl_route {
    const char *path;
    bool prefix;      /* the path goes on with one segment: "/v1/models/" + id */
    unsigned methods; /* 1u << enum sl_http_method; GET includes HEAD */
    enum sl_auth auth;
    bool starts_work; /* refused with 503 while draining */
    void (*handle)(struct sl_conn *c);
};

extern const struct sl_route sl_routes[];
extern const int sl_n_routes;

const struct sl_route *sl_route_find(struct sl_str path);         /* NULL: unknown */
enum sl_protocol sl_route_protocol(const struct sl_route *route); /* NULL: OpenAI's */
const char *sl_route_label(const struct sl_route *route);         /* of metrics */
int sl_route_idx(const struct sl_route *route); /* for counters; NULL = the last */
/* "GET, HEAD" */
void sl_route_allow(const struct sl_route *route, char *out, size_t n_out);
/* Which of the configured keys the request carries, as `Authorization: Bearer` or as `x-api-key`; 0
 * if none is configured, -1 if it carries none of them, or two that differ. Takes the same time
 * wherever a wrong key differs. */
int sl_route_key(const struct sl_server_config *cfg, const struct sl_http_parser *p);
/* Names of models hold slashes, which some clients send as %2F: they (and nothing else of a target)
 * are decoded. False: malformed, or longer than n_out. */
bool sl_route_decode(struct sl_str s, char *out, size_t n_out);
/* The model that ?model=NAME asks for; *out NULL: nothing was said. */
SL_MUST_CHECK int sl_query_model(struct sl_conn *c, struct sl_served **out, struct sl_refusal *r);
/* The value for Access-Control-Allow-Origin, NULL = no such header. */
const char *sl_route_cors_origin(const struct sl_server_config *cfg,
                                 const struct sl_http_parser *p);

/* Handlers, one file per API. Each ends in a reply or leaves c->call set. */
void sl_api_chat(struct sl_conn *c);
void sl_api_embeddings(struct sl_conn *c);
void sl_api_pooling(struct sl_conn *c);
void sl_api_rerank(struct sl_conn *c);
void sl_api_score(struct sl_conn *c);
void sl_api_completions(struct sl_conn *c);
void sl_api_render_chat(struct sl_conn *c);
void sl_api_render_completions(struct sl_conn *c);
void sl_api_apply_template(struct sl_conn *c);
void sl_api_responses(struct sl_conn *c);
void sl_api_responses_compact(struct sl_conn *c);
void sl_api_responses_count(struct sl_conn *c);
void sl_api_response(struct sl_conn *c);
void sl_api_files(struct sl_conn *c);
void sl_api_file(struct sl_conn *c);
void sl_api_batches(struct sl_conn *c);
void sl_api_batch(struct sl_conn *c);
void sl_api_messages(struct sl_conn *c);
void sl_api_count_tokens(struct sl_conn *c);
void sl_api_models(struct sl_conn *c);
void sl_api_model(struct sl_conn *c);
void sl_api_load_lora(struct sl_conn *c);
void sl_api_unload_lora(struct sl_conn *c);
void sl_api_tokenize(struct sl_conn *c);
void sl_api_detokenize(struct sl_conn *c);
void sl_api_health(struct sl_conn *c);
void sl_api_version(struct sl_conn *c);
void sl_api_load(struct sl_conn *c);
void sl_api_metrics(struct sl_conn *c);
void sl_api_root(struct sl_conn *c);
void sl_api_page(struct sl_conn *c);
void sl_api_state(struct sl_conn *c);
void sl_api_cancel(struct sl_conn *c);
void sl_api_ready(struct sl_conn *c);
void sl_api_sleep(struct sl_conn *c);
void sl_api_wake_up(struct sl_conn *c);
void sl_api_is_sleeping(struct sl_conn *c);
void sl_api_update_weights(struct sl_conn *c);
void sl_api_ollama_chat(struct sl_conn *c);
void sl_api_ollama_generate(struct sl_conn *c);
void sl_api_ollama_embed(struct sl_conn *c);
void sl_api_ollama_embeddings(struct sl_conn *c);
void sl_api_ollama_tags(struct sl_conn *c);
void sl_api_ollama_ps(struct sl_conn *c);
void sl_api_ollama_show(struct sl_conn *c);
void sl_api_ollama_version(struct sl_conn *c);
void sl_api_ollama_pull(struct sl_conn *c);
void sl_api_props(struct sl_conn *c);
void sl_api_slots(struct sl_conn *c);
void sl_api_tokenizer_info(struct sl_conn *c);
void sl_api_server_info(struct sl_conn *c);
void sl_api_model_info(struct sl_conn *c);
void sl_api_live(struct sl_conn *c);
/* May the key put models to sleep, and wake them? */
SL_MUST_CHECK int sl_sleep_scope(const struct sl_server_config *cfg, int key, struct sl_refusal *r);
/* A route of sleeping, or of other weights, that this server was not told to have. */
bool sl_sleep_hides(const struct sl_server_config *cfg, const struct sl_route *route);

#endif
