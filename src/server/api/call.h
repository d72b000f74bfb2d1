/* SPDX-License-Identifier: MIT
 * call.h - a generation on behalf of one HTTP request: one engine request per prompt, n choices
 * each, from submission to the last byte of the reply.
 *
 * Owned by its connection's thread. The connection destroys it when the client goes away, which
 * cancels the engine requests at once; otherwise it ends itself after the last terminal event. How
 * replies look is the business of the protocol behind struct sl_call_api.
 */
#ifndef SL_SERVER_CALL_H
#define SL_SERVER_CALL_H

#include "server/api/params.h"
#include "server/conn.h"

struct sl_call;

struct sl_choice { /* one sequence of one prompt */
    int32_t idx;   /* as in the reply */
    bool began;    /* streaming: the first event is out */
    bool shown;    /* whole replies: it is in the reply */
    bool open;     /* streaming: the last event lacks its end */
    enum sl_finish finish;
    int32_t stop_token_id;
    size_t n_output;                 /* tokens so far */
    double sum_logprob;              /* of them, where they have one */
    struct sl_buf held, held_tokens; /* streams with an interval: text, struct sl_token */
    struct sl_answer *answer;        /* conversations: its parser; NULL: text is content as it is */
    size_t n_chars;                  /* characters of the tokens so far, for text_offset */
    struct sl_buf text;              /* whole replies only; streams send it at once */
    struct sl_buf stop_str;
    struct sl_buf token_ids; /* comma-separated */
    /* logprobs, comma-separated JSON; conversations use `tokens` alone for whole objects */
    struct sl_buf tokens, values, tops, offsets;
};

struct sl_prompt { /* one prompt and its engine request */
    struct sl_call *call;
    struct sl_request *req;
    int32_t idx;
    int32_t second_from; /* of struct sl_request_desc */
    bool done;           /* all its sequences have ended; req lives on for its prompt's logprobs */
    int32_t *ids;        /* kept for echo and return_token_ids, else NULL */
    size_t n_ids;
    char *text; /* kept for echo and return_prompt_text, else NULL */
    size_t n_text;
    char *final; /* echo of a conversation: its last message, if it is of the assistant */
    size_t n_final;
    struct sl_usage usage;
};

struct sl_part;

/* A protocol's side of a call: how its replies look. */
struct sl_call_api {
    bool pooling; /* values of prompts; of what follows put_whole alone is used */
    const char *id_prefix;
    bool own_ids; /* the client's names for requests do not become part of ids */
    bool ndjson;  /* streams are lines of JSON, not events: nothing is sent while they are silent */
    /* A choice is new: makes what it needs, or NULL. */
    int (*begin)(struct sl_call *call, struct sl_choice *choice, const struct sl_params *p,
                 struct sl_error *err);
    void (*begun)(struct sl_call *call);   /* it runs, and has its extra; NULL: nothing to do */
    void (*destroy)(struct sl_call *call); /* frees extra */
    /* Streams: appends events for news of a choice; what ends the stream; or breaks it off. */
    void (*put_events)(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                       struct sl_choice *choice, const struct sl_chunk *chunk);
    void (*end_stream)(struct sl_buf *b, struct sl_call *call);
    void (*fail_stream)(struct sl_buf *b, struct sl_call *call, const struct sl_refusal *r);
    void (*ping)(struct sl_buf *b); /* on a silent stream that has begun; NULL: a comment */
    /* News of the parts of an answer, within sl_answer_push; begin and end may be NULL. */
    void (*part_begin)(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                       const struct sl_part *part);
    void (*part_grows)(struct sl_call *call, struct sl_part *part); /* of whole replies too */
    void (*part_text)(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                      const struct sl_part *part, const char *text, size_t n);
    void (*part_end)(struct sl_buf *b, struct sl_call *call, struct sl_choice *choice,
                     const struct sl_part *part);
    /* Whole replies: keeps what the reply will need; and the reply. */
    void (*collect)(struct sl_call *call, struct sl_prompt *prompt, struct sl_choice *choice,
                    const struct sl_chunk *chunk);
    void (*put_whole)(struct sl_buf *b, struct sl_call *call);
    void (*put_event_head)(struct sl_call *call); /* fills call->event_head of a stream; or NULL */
    /* For openai_out.c alone. */
    const char *object, *event_object;
    void (*put_choice)(struct sl_buf *b, struct sl_call *call, struct sl_prompt *prompt,
                       struct sl_choice *choice);
    void (*put_tail)(struct sl_buf *b, struct sl_call *call); /* members after usage, or NULL */
};

struct sl_call_asked { /* of what was asked for, what its trace tells */
    float temperature, top_p, frequency_penalty, presence_penalty;
    int32_t top_k;
    bool has_seed;
    uint64_t seed;
};

struct sl_call {
    struct sl_conn *conn;
    struct sl_call *prev, *next; /* of the loop, under its calls_lock */
    const struct sl_call_api *api;
    const struct sl_served *served;
    const char *model;          /* as served */
    struct sl_adapter *adapter; /* that model names; a reference */
    char id[160];
    int64_t created_s;
    struct sl_buf event_head; /* what every event of this stream begins with */
    struct sl_prompt *prompts;
    struct sl_choice *choices; /* [n_prompts * n] */
    int32_t n_prompts, n, n_done;
    int32_t n_best; /* choices of a prompt that are shown, 0: all n */
    int32_t stream_interval;
    int32_t key;                 /* index of the API key it came with */
    struct sl_key_rule *entered; /* counted among its key's; NULL: not */
    struct sl_pool_params pool;
    int32_t n_logprobs; /* top entries asked for */
    int32_t max_tokens; /* asked for, <= 0: none */
    int failed;         /* enum sl_code: what broke it off, 0: nothing */
    struct sl_call_asked asked;
    size_t n_kept; /* bytes of the request and the reply that stay here until its end */
    bool stream, include_usage, continuous_usage, want_logprobs, tokens_as_ids, return_token_ids;
    bool echo, drop_output, throttled, return_prompt_text;
    bool answers_transfer; /* the reply says where the prompt's pages are: kv_transfer.h */
    bool timings, timings_per_token; /* in the last event, in each */
    void *extra;                     /* the protocol's, or NULL */
    const atomic_bool *cancelled;    /* set by other threads, which wake this one; or NULL */
};

/* Takes over adapter, ids (heap) per prompt in prompts[].ids, and text if set. Submits all prompts
 * or none. On success the connection has a call, which has extra; on failure nothing is left but
 * extra, and *r says why. */
SL_MUST_CHECK int sl_call_start(struct sl_conn *c, const struct sl_call_api *api,
                                const struct sl_params *p, const struct sl_served *served,
                                const char *model, struct sl_adapter *adapter,
                                struct sl_prompt *prompts, int32_t n_prompts, void *extra,
                                struct sl_refusal *r);
void sl_call_destroy(struct sl_call *call); /* cancels what runs */
void sl_call_abort(struct sl_call *call);   /* cancels; the terminal events end the reply */
void sl_call_look(struct sl_call *call);    /* was it cancelled from outside? */
void sl_call_news(struct sl_prompt *prompt);
void sl_call_resume(struct sl_call *call); /* the client has read: go on if throttled */
void sl_call_ping(struct sl_call *call);
/* Bytes that wait here for the end of the reply. */
static inline size_t sl_call_held(const struct sl_call *call)
{
    return call->n_kept;
}

/* Shared by the APIs. */
void sl_call_usage(const struct sl_call *call, struct sl_usage *out);     /* of all prompts */
void sl_call_put_ids(struct sl_buf *b, const int32_t *ids, size_t n_ids); /* [1,2] */
void sl_call_free_prompts(struct sl_prompt *prompts, int32_t n);

#endif
