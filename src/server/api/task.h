/* SPDX-License-Identifier: MIT
 * task.h - what lies between a request's body and its answer: parsing, the chat template, the
 * tokenizer. For usual bodies that takes microseconds and happens at once; a large body goes to a
 * thread of its own, so that a prompt of megabytes does not hold up the streams of everybody else.
 *
 * prepare works on the task alone and may run on any thread. finish runs on the connection's
 * thread, and not at all if the client left meanwhile. Tasks that wait hold no more than their
 * bodies, which count among the server's held bytes.
 */
#ifndef SL_SERVER_TASK_H
#define SL_SERVER_TASK_H

#include "server/api/call.h"

#define SL_LARGE_BODY (32u << 10) /* bytes that take a millisecond or two */

struct sl_task;

struct sl_task_kind {
    void (*prepare)(struct sl_task *t);
    void (*finish)(struct sl_conn *c, struct sl_task *t); /* ends in a reply or a call */
};

struct sl_task {
    const struct sl_task_kind *kind;
    struct sl_server *server;
    struct sl_served *served; /* the model that answers; the first one until sl_task_parse */
    struct sl_str body;
    int key;           /* of the API keys; see sl_route_key */
    int32_t rank;      /* of the replicas, as the header has it (replicas.h) */
    bool at_once;      /* on the connection's thread: nothing may take long */
    bool other_fields; /* the body has fields besides those of sl_task_params */
    bool later;        /* prepare asks for a worker after all */
    /* what prepare leaves; freed by task.c but for what finish took */
    int rc; /* != 0: refused */
    struct sl_refusal refusal;
    json_t *root;
    struct sl_params params;
    struct sl_formats formats; /* of a template that the request brought */
    const char *model;
    struct sl_adapter *adapter; /* that model names; a reference */
    struct sl_prompt *prompts;
    int32_t n_prompts;
    struct sl_buf out;
    void *extra; /* what a protocol keeps besides; its own to free */
    void (*free_extra)(struct sl_task *t);
    /* of a task that waits */
    struct sl_conn *conn; /* NULL: the client left; its thread's */
    struct sl_loop *loop;
    struct sl_buf owned_body;
    atomic_bool abandoned;
    struct sl_task *next;
};

/* The handler of a route that prepares: c's request, now or by a worker. */
void sl_task_start(struct sl_conn *c, const struct sl_task_kind *kind);
/* Likewise for one model, or NULL for what concerns all of them. */
void sl_task_start_for(struct sl_conn *c, const struct sl_task_kind *kind,
                       struct sl_served *served);
/* Always by a worker, with what prepare needs besides the body: freed like all extra. */
void sl_task_start_later(struct sl_conn *c, const struct sl_task_kind *kind, void *extra,
                         void (*free_extra)(struct sl_task *t));
void sl_task_abandon(struct sl_task *t); /* its connection ends */
/* Finishes what the workers have prepared for this thread's connections. */
void sl_task_collect(struct sl_loop *loop);
/* Reads the body as an object, unless that is done, and which model it is for. */
SL_MUST_CHECK int sl_task_parse(struct sl_task *t);
/* Likewise, and (or only) its fields as parameters. */
SL_MUST_CHECK int sl_task_read(struct sl_task *t, enum sl_endpoint endpoint);
SL_MUST_CHECK int sl_task_generates(struct sl_task *t); /* else it says what the model gives */
SL_MUST_CHECK int sl_task_params(struct sl_task *t, enum sl_endpoint endpoint);
/* The model or adapter that answers. After it prepare may have to return at once: `later`. */
SL_MUST_CHECK int sl_task_model(struct sl_task *t);
/* How a conversation's answer is read, and what its tools say about it. */
SL_MUST_CHECK int sl_task_formats(struct sl_task *t);
/* What the output must be, compiled. After it prepare may have to return at once: `later`. */
SL_MUST_CHECK int sl_task_compile(struct sl_task *t);
/* api_completions.c: all of its prepare. */
void sl_completions_prepare(struct sl_task *t);
/* The end of a task that generates: starts the call, or says why not. */
void sl_task_call(struct sl_conn *c, struct sl_task *t, const struct sl_call_api *api);

struct sl_workers;

SL_MUST_CHECK int sl_workers_start(struct sl_workers **out, int n_threads, struct sl_error *err);
/* Joins the threads and frees what is left. After the loops have ended. */
void sl_workers_stop(struct sl_workers *w);

#endif
