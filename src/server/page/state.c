/* SPDX-License-Identifier: MIT
 * state.c - GET /api/state: what the server does right now, as one JSON object for the page at "/",
 * with ?model=NAME of another model than the first, and the load of the last hour (history.h);
 * POST /api/cancel ends a request by its id. No prompt or answer is in it. Who has a key sees and
 * cancels the requests that came with that key; where there is one key or none, all of them.
 *
 * The state of pages is copied while the engine works and may sleep, so all of it is made by a
 * worker (task.h).
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/api/task.h"
#include "server/http/keys.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"
#include "server/page/history.h"
#include "server/page/process.h"
#include "server/page/tree_view.h"

#define MAX_CELLS    1024 /* of the page map */
#define MAX_REQUESTS 200  /* that are listed; the newest */

static void state_put_name(struct sl_buf *b, const char *name)
{
    sl_buf_putc(b, '"');
    sl_buf_puts(b, name); /* ours: nothing to escape */
    SL_PUT(b, "\":");
}

static void state_put_int(struct sl_buf *b, const char *name, int64_t x)
{
    state_put_name(b, name);
    sl_put_i64(b, x);
    sl_buf_putc(b, ',');
}

static void state_put_double(struct sl_buf *b, const char *name, double x)
{
    state_put_name(b, name);
    sl_buf_json_double(b, x);
    sl_buf_putc(b, ',');
}

static void state_put_text(struct sl_buf *b, const char *name, const char *text)
{
    state_put_name(b, name);
    if (text == NULL)
        text = "";
    sl_buf_json_string(b, text, strlen(text));
    sl_buf_putc(b, ',');
}

/* Instead of the comma behind the last member. */
static void close_with(struct sl_buf *b, char end)
{
    if (sl_buf_ok(b) && b->data[b->n_bytes - 1] == ',')
        b->data[b->n_bytes - 1] = end;
    else
        sl_buf_putc(b, end);
}

static void put_info(struct sl_buf *b, const struct sl_engine *eng)
{
    const struct sl_model_info *i = sl_engine_info(eng);
    SL_PUT(b, "\"info\":{");
    state_put_text(b, "architecture", i->architecture);
    state_put_text(b, "weight_dtype", i->weight_dtype);
    state_put_text(b, "kv_dtype", i->kv_dtype);
    state_put_text(b, "isa", i->isa);
    state_put_int(b, "n_params", (int64_t)i->n_params);
    state_put_int(b, "weight_bytes", (int64_t)i->weight_bytes);
    state_put_int(b, "kv_cache_bytes", (int64_t)i->kv_cache_bytes);
    state_put_int(b, "device_total_bytes", (int64_t)i->device_total_bytes);
    state_put_int(b, "device_used_bytes", (int64_t)i->device_used_bytes);
    state_put_int(b, "n_layers", i->n_layers);
    state_put_int(b, "max_model_len", i->max_model_len);
    state_put_int(b, "block_size", i->block_size);
    state_put_int(b, "max_num_seqs", i->max_num_seqs);
    state_put_int(b, "max_num_batched_tokens", i->max_num_batched_tokens);
    state_put_int(b, "n_threads", i->n_threads);
    state_put_int(b, "sleep_level", sl_engine_sleep_level(eng));
    state_put_int(b, "chat", sl_engine_has_chat_template(eng));
    close_with(b, '}');
    sl_buf_putc(b, ',');
}

static void put_counters(struct sl_buf *b, const struct sl_stats *st)
{
    static const char *const finish[] = {"running", "stop", "length", "abort", "error", "cache"};
    static const char *const parts[] = {"host", "device", "sample", "output", "masks"};
    static const char *const causes[] = {"prompt", "output", "reset", "shared"};
    _Static_assert(SL_COUNT(parts) == SL_N_PARTS && SL_COUNT(causes) == SL_N_EVICT_CAUSES,
                   "every part and cause has a name");
    state_put_int(b, "running", st->n_running);
    state_put_int(b, "waiting", st->n_waiting);
    state_put_int(b, "prompt_tokens", (int64_t)st->prompt_tokens);
    state_put_int(b, "generation_tokens", (int64_t)st->generation_tokens);
    state_put_int(b, "cached_tokens", (int64_t)st->prompt_tokens_cached);
    state_put_int(b, "preemptions", (int64_t)st->preemptions);
    state_put_int(b, "steps", (int64_t)st->steps);
    state_put_double(b, "device_busy_s", st->device_busy_s);
    state_put_double(b, "device_gap_s", st->device_gap_s);
    SL_PUT(b, "\"finished\":{");
    for (size_t i = 1; i < SL_COUNT(finish); i++)
        state_put_int(b, finish[i], (int64_t)st->finished[i]);
    close_with(b, '}');
    SL_PUT(b, ",\"evicted\":{");
    for (size_t i = 0; i < SL_COUNT(causes); i++)
        state_put_int(b, causes[i], (int64_t)st->evicted[i]);
    close_with(b, '}');
    SL_PUT(b, ",\"step_s\":{");
    for (size_t i = 0; i < SL_COUNT(parts); i++)
        state_put_double(b, parts[i], (double)st->part_ns[i] * 1e-9);
    close_with(b, '}');
    sl_buf_putc(b, ',');
}

static void state_put_tree(struct sl_buf *b, const struct sl_tree_view *v, bool has_states)
{
    SL_PUT(b, "\"tree\":{");
    state_put_int(b, "pages", v->n_pages);
    state_put_int(b, "roots", v->n_roots);
    state_put_int(b, "leaves", v->n_leaves);
    state_put_int(b, "depth", v->depth);
    if (has_states)
        state_put_int(b, "states", v->n_state);
    SL_PUT(b, "\"nodes\":["); /* [node above, pages in a row, pages with all behind, of them
                                  owned, of them with a recurrent state] */
    for (int32_t i = 0; i < v->n_nodes; i++) {
        const struct sl_tree_node *n = &v->nodes[i];
        const int32_t values[] = {n->parent, n->n_run, n->n_all, n->n_owned, n->n_state};
        sl_buf_putc(b, '[');
        for (size_t k = 0; k < SL_COUNT(values); k++) {
            sl_put_i64(b, values[k]);
            sl_buf_putc(b, ',');
        }
        close_with(b, ']');
        sl_buf_putc(b, ',');
    }
    close_with(b, ']');
    SL_PUT(b, "},");
}

static void put_map(struct sl_buf *b, const struct sl_page *pages, int32_t n_pages)
{
    static const char hex[] = "0123456789abcdef";
    uint8_t cells[2 * MAX_CELLS];
    int32_t n_cells = SL_MIN(n_pages, MAX_CELLS);
    sl_page_map(pages, n_pages, n_cells, cells);
    SL_PUT(b, "\"map\":\""); /* two digits a cell: sixteenths owned, cached */
    for (int32_t i = 0; i < 2 * n_cells; i++)
        sl_buf_putc(b, hex[cells[i] & 15]);
    SL_PUT(b, "\",");
}

/* Pages of groups of layers, where there is more than one. */
static void put_groups(struct sl_buf *b, const struct sl_model_info *info,
                       const struct sl_stats *st)
{
    if (st->n_kv_groups < 2)
        return;
    state_put_name(b, "groups");
    sl_buf_putc(b, '[');
    for (int32_t g = 0; g < st->n_kv_groups; g++) {
        sl_buf_putc(b, '{');
        state_put_int(b, "state", info->kv_groups[g].state);
        state_put_int(b, "window", info->kv_groups[g].window);
        state_put_int(b, "total", info->kv_groups[g].n_pages);
        state_put_int(b, "free", st->kv_groups[g].n_free);
        state_put_int(b, "cached", st->kv_groups[g].n_cached);
        close_with(b, '}');
        sl_buf_putc(b, ',');
    }
    close_with(b, ']');
    sl_buf_putc(b, ',');
}

static bool has_states(const struct sl_model_info *info)
{
    return info->n_kv_groups > 0 && info->kv_groups[info->n_kv_groups - 1].state;
}

static int put_pages(struct sl_buf *b, struct sl_engine *eng, const struct sl_stats *st,
                     struct sl_error *err)
{
    int32_t n_pages = sl_engine_info(eng)->n_pages;
    struct sl_page *pages = sl_calloc((size_t)n_pages, sizeof *pages);
    struct sl_tree_view *view = sl_malloc(sizeof *view);
    int rc = pages == NULL || view == NULL ? sl_fail(err, SL_ENOMEM, "out of memory") : 0;
    if (rc == 0)
        rc = sl_engine_pages(eng, pages, err);
    if (rc == 0)
        rc = sl_tree_view_make(view, pages, n_pages, err);
    state_put_name(b, "pages");
    sl_buf_putc(b, '{');
    state_put_int(b, "total", st->n_pages);
    state_put_int(b, "free", st->n_pages_free);
    state_put_int(b, "cached", st->n_pages_cached);
    put_groups(b, sl_engine_info(eng), st);
    if (rc == 0) {
        put_map(b, pages, n_pages);
        state_put_tree(b, view, has_states(sl_engine_info(eng)));
    }
    close_with(b, '}');
    sl_buf_putc(b, ',');
    sl_free(pages);
    sl_free(view);
    return rc == SL_ETIMEOUT ? 0 : rc; /* an engine that hangs is worth seeing all the same */
}

/* ---- requests */

/* With one key or none, and without scopes, everybody is the operator. */
static bool may_see(const struct sl_server *s, int key, const struct sl_call *call)
{
    if (call->key == key)
        return true;
    return s->cfg->key_rules != NULL ? s->cfg->key_rules[key].admin : s->cfg->n_api_keys <= 1;
}

static void state_put_request(struct sl_buf *b, const struct sl_call *call, uint64_t now)
{
    struct sl_usage all;
    sl_call_usage(call, &all);
    sl_buf_putc(b, '{');
    state_put_text(b, "id", call->id);
    state_put_text(b, "path", call->conn->route->path);
    state_put_text(b, "model", call->model);
    state_put_text(b, "state",
                   all.t_first_ns != 0       ? "decode"
                   : all.t_scheduled_ns != 0 ? "prefill"
                                             : "waiting");
    state_put_int(b, "stream", call->stream);
    state_put_int(b, "choices", (int64_t)call->n * call->n_prompts);
    state_put_int(b, "prompt_tokens", all.n_prompt);
    state_put_int(b, "cached_tokens", all.n_cached);
    state_put_int(b, "output_tokens", all.n_output);
    state_put_int(b, "preemptions", all.n_preemptions);
    state_put_double(b, "age_s", (double)(now - SL_MIN(all.t_submit_ns, now)) * 1e-9);
    if (all.t_first_ns != 0)
        state_put_double(b, "ttft_s",
                         (double)(all.t_first_ns - SL_MIN(all.t_submit_ns, all.t_first_ns)) * 1e-9);
    close_with(b, '}');
    sl_buf_putc(b, ',');
}

static void put_requests(struct sl_buf *b, const struct sl_task *t)
{
    const struct sl_server *s = t->server;
    uint64_t now = sl_now_ns();
    int n = 0;
    SL_PUT(b, "\"requests\":[");
    for (int i = 0; i < s->n_loops; i++) {
        struct sl_loop *loop = &s->loops[i];
        pthread_mutex_lock(&loop->calls_lock);
        for (const struct sl_call *call = loop->calls; call != NULL; call = call->next) {
            if (may_see(s, t->key, call) && n++ < MAX_REQUESTS)
                state_put_request(b, call, now);
        }
        pthread_mutex_unlock(&loop->calls_lock);
    }
    close_with(b, ']');
    sl_buf_putc(b, ',');
    state_put_int(b, "n_requests", n);
}

/* ---- the routes */

/* All of them, for whoever chooses one. */
static void put_models(struct sl_buf *b, const struct sl_server *s)
{
    struct sl_stats st;
    SL_PUT(b, "\"models\":[");
    for (int32_t i = 0; i < s->n_models; i++) {
        const struct sl_served *m = &s->models[i];
        sl_engine_stats(m->eng, &st);
        sl_buf_putc(b, '{');
        state_put_text(b, "id", m->label);
        state_put_int(b, "generates", sl_engine_info(m->eng)->n_pooled == 0);
        state_put_int(b, "chat", sl_engine_has_chat_template(m->eng));
        state_put_int(b, "running", st.n_running);
        state_put_int(b, "waiting", st.n_waiting);
        close_with(b, '}');
        sl_buf_putc(b, ',');
    }
    close_with(b, ']');
    sl_buf_putc(b, ',');
}

static void prepare_state(struct sl_task *t)
{
    const struct sl_server *s = t->server;
    struct sl_buf *b = &t->out;
    struct sl_stats st;
    struct sl_process p;
    struct sl_error err = {.code = SL_OK};
    if (t->at_once) {
        t->later = true;
        return;
    }
    struct sl_engine *eng = t->served->eng;
    sl_engine_stats(eng, &st);
    sl_process_read(&p);
    sl_buf_putc(b, '{');
    state_put_text(b, "version", SLUICE_VERSION);
    state_put_text(b, "model", t->served->name);
    put_models(b, s);
    state_put_double(b, "now_s", (double)sl_now_ns() * 1e-9); /* of a clock that never jumps */
    state_put_int(b, "started_s", s->t_created_s);
    state_put_int(b, "uptime_s", sl_wall_ns() / 1000000000 - s->t_created_s);
    state_put_text(b, "health", sl_engine_health(eng, &err) == 0 ? "" : err.msg);
    state_put_double(b, "cpu_s", p.cpu_s);
    state_put_int(b, "resident_bytes", (int64_t)p.resident_bytes);
    state_put_int(b, "connections", atomic_load(&s->n_conns));
    state_put_int(b, "held_bytes", (int64_t)atomic_load(&s->held_bytes));
    put_info(b, eng);
    put_counters(b, &st);
    t->rc = put_pages(b, eng, &st, &t->refusal.err);
    put_requests(b, t);
}

/* ?since=N: the page has the points of the history up to that number. */
static void finish_state(struct sl_conn *c, struct sl_task *t)
{
    const struct sl_server *s = c->loop->server;
    struct sl_str since = sl_query_value(c->parser->query, "since");
    uint64_t last = 0;
    if (!sl_parse_u64(since.p, since.n, &last))
        last = 0;
    sl_history_put(s->history, (int32_t)(t->served - s->models), last, &t->out);
    sl_buf_putc(&t->out, '}');
    sl_reply_json(c, 200, &t->out);
}

void sl_api_state(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_state, finish_state};
    struct sl_served *served;
    struct sl_refusal r = {0};
    if (sl_query_model(c, &served, &r) != 0)
        sl_reply_refusal(c, &r);
    else
        sl_task_start_for(c, &kind, served != NULL ? served : &c->loop->server->models[0]);
}

static int cancel_by_id(struct sl_server *s, int key, const char *id)
{
    int n = 0;
    for (int i = 0; i < s->n_loops; i++) {
        struct sl_loop *loop = &s->loops[i];
        pthread_mutex_lock(&loop->calls_lock);
        for (struct sl_call *call = loop->calls; call != NULL; call = call->next) {
            if (strcmp(call->id, id) != 0 || !may_see(s, key, call))
                continue;
            for (int32_t k = 0; k < call->n_prompts; k++)
                sl_request_cancel(call->prompts[k].req);
            n++;
        }
        pthread_mutex_unlock(&loop->calls_lock);
    }
    return n;
}

void sl_api_cancel(struct sl_conn *c)
{
    const struct sl_buf *body = &c->parser->body;
    struct sl_refusal r = {0};
    struct sl_buf b = {0};
    json_t *root = NULL;
    const char *id = NULL;
    int rc = sl_json_parse_object(body->data, body->n_bytes, &root, &r);
    const json_t *v = rc == 0 ? json_object_get(root, "id") : NULL;
    if (rc == 0 && v == NULL)
        rc = sl_refuse(&r, SL_EINVAL, "id", "id is missing");
    if (rc == 0)
        rc = sl_json_cstr(v, "id", 512, &id, &r);
    if (rc == 0 && cancel_by_id(c->loop->server, c->key, id) == 0) {
        r.code = "request_not_found";
        rc = sl_refuse(&r, SL_ENOTFOUND, "id", "no request with this id is running");
    }
    if (rc == 0) {
        SL_PUT(&b, "{\"cancelled\":");
        sl_buf_json_string(&b, id, strlen(id));
        sl_buf_putc(&b, '}');
        sl_reply_json(c, 200, &b);
    } else {
        sl_reply_refusal(c, &r);
    }
    json_decref(root);
}
