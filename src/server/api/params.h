/* SPDX-License-Identifier: MIT
 * params.h - the fields of requests that generate, of every protocol: one table of names, types and
 * ranges, read into one struct. What a protocol has in a shape of its own (messages, tools) is in
 * that of chat completions by then: server/api/anthropic_in.h, server/api/responses_in.h.
 *
 * Pure: needs no engine, so that tests and the fuzzer can call it. Pointers in struct sl_params
 * point into the JSON tree or into its arena; keep the tree until the request was submitted. null
 * counts as absent. A field the server does not know is ignored, named and counted, as clients send
 * many; or refused, if the server was told to.
 */
#ifndef SL_SERVER_PARAMS_H
#define SL_SERVER_PARAMS_H

#include "base/arena.h"
#include "base/buf.h"
#include "server/formats.h"
#include "server/http/json_in.h"

enum sl_endpoint { /* a bit each */
                   SL_ENDPOINT_CHAT = 1,
                   SL_ENDPOINT_COMPLETIONS = 2,
                   SL_ENDPOINT_MESSAGES = 4, /* Anthropic's */
                   SL_ENDPOINT_RESPONSES = 8,
};

enum sl_tool_mode {
    SL_TOOLS_NONE, /* no tools, or tool_choice none */
    SL_TOOLS_AUTO,
    SL_TOOLS_REQUIRED,
    SL_TOOLS_NAMED, /* tool_name has to be called */
};

struct sl_pool_params { /* of embeddings and scores */
    int32_t dimensions; /* 0: all */
    int32_t n_first;    /* prompts of first texts, where two vectors are compared; 0: none */
    int32_t top_n;      /* 0: all */
    bool base64, documents;
};

struct sl_params {
    struct sl_pool_params pool;
    enum sl_endpoint endpoint;
    struct sl_sampling sampling; /* complete after sl_params_parse */
    bool stream, include_usage, continuous_usage;
    bool echo, drop_output; /* drop_output: max_tokens 0, one token is made and thrown away */
    bool add_special_tokens, add_generation_prompt, continue_final_message;
    bool skip_special_tokens, return_token_ids, tokens_as_ids, return_prompt_text;
    bool timings_per_token; /* llama.cpp's: how fast, in each event of a stream */
    bool keep_first;        /* truncation: of the end, not the beginning */
    int32_t n_best;         /* choices to show of the sampling.n that are made; 0: all */
    int32_t stream_interval;
    bool want_logprobs;
    enum sl_tool_mode tool_mode;
    const char *tool_name; /* of SL_TOOLS_NAMED */
    bool any_strict;       /* a tool says strict, or has a grammar */
    json_t *free_form;     /* {name: {syntax, definition}} of tools that take text; NULL: none */
    bool parallel_tool_calls, include_reasoning;
    int32_t thinking_token_budget;    /* -1: none */
    bool store;                       /* of a response; true unless the request says no */
    bool budget_is_wish;              /* ignored where the model gives no way to keep to it */
    const struct sl_formats *formats; /* how the answer is read; NULL: as it is */
    const char *tools_format;         /* of them, or what a constraint makes of it */
    enum sl_output_start start;
    struct sl_thinking thinking;              /* close NULL: the answer begins at once */
    int32_t thinking_ids[16];                 /* what ends it by force */
    float cache_hit_threshold;                /* of struct sl_request_desc */
    float lora_scale;                         /* of the adapter that model names */
    int32_t priority, truncate_prompt_tokens; /* truncate: 0 = off, -1 = to the context */
    const json_t *session_id, *nvext;         /* read by session.c */
    const char *model, *cache_salt, *request_id, *chat_template, *reasoning_effort, *instructions,
        *previous_response_id, *guided_whitespace;
    const json_t *messages, *prompt, *tools, *documents, *chat_template_kwargs;
    /* read by kv_transfer.c */
    bool transfers; /* as in the limits */
    const json_t *kv_transfer_params, *bootstrap_host, *bootstrap_port, *bootstrap_room;
    int n_unknown;     /* fields that were ignored */
    char unknown[200]; /* their names, those that are plain, with commas */
    /* what the output must be: one field of several */
    bool constrained;
    struct sl_json_style json_style; /* how JSON is written; its pattern is borrowed */
    char constraint_field[64];       /* that asks for it */
    struct sl_constraint_desc constraint_desc;
    struct sl_constraint *constraint; /* once compiled; a reference */
    struct sl_buf constraint_text;    /* what desc points to, unless it is in the tree */
    const char *body; /* that root was read from, for exact integers beyond 64 bits */
    size_t n_body;
    /* raw values, used while parsing */
    int32_t max_completion_tokens, top_logprobs, best_of;
    const json_t *logprobs, *logit_bias, *stop, *stop_token_ids, *allowed_token_ids, *bad_words,
        *logprob_token_ids, *repetition_detection, *truncation_side, *stream_options,
        *response_format, *tool_choice, *modalities, *structured_outputs, *guided_json,
        *guided_regex, *guided_choice, *guided_grammar, *grammar, *json_schema, *regex, *ebnf,
        *structural_tag, *prediction;
    int32_t *predicted; /* tokens of prediction; freed by deinit */
    size_t n_predicted;
    bool guided_json_object;
    struct sl_arena arena;
};

struct sl_param_limits {
    int32_t n_vocab;                  /* width of the logits: ids must be below */
    bool trust_request_chat_template; /* accept chat_template */
    const char *body; /* that root was read from, for exact integers beyond 64 bits */
    size_t n_body;
    bool transfers;                  /* kv_transfer_params may say something */
    bool refuse_unknown;             /* a field that the endpoint does not have is an error */
    struct sl_json_style json_style; /* unless the request says otherwise */
};

/* defaults: the model's sampling values. On refusal the arena is still to be freed by deinit. */
SL_MUST_CHECK int sl_params_parse(struct sl_params *p, enum sl_endpoint endpoint,
                                  const json_t *root, const struct sl_sampling *defaults,
                                  const struct sl_param_limits *limits, struct sl_refusal *r);
void sl_params_deinit(struct sl_params *p);

/* params_lists.c: stop strings, lists of ids, biases, words. */
SL_MUST_CHECK int sl_params_lists(struct sl_params *p, const struct sl_param_limits *limits,
                                  struct sl_refusal *r);
/* bad_words as tokens of the model. */
SL_MUST_CHECK int sl_params_words(struct sl_params *p, const struct sl_tokenizer *tok,
                                  const struct sl_param_limits *limits, struct sl_refusal *r);
/* prediction as tokens of the model. */
SL_MUST_CHECK int sl_params_prediction(struct sl_params *p, const struct sl_tokenizer *tok,
                                       struct sl_refusal *r);
/* constraint.c: reads what --structured-outputs-config says; frees *whitespace. */
SL_MUST_CHECK int sl_json_style_read(const char *text, struct sl_json_style *style,
                                     char **whitespace, struct sl_error *err);
/* constraint.c: reads the fields that say what the output must be. */
SL_MUST_CHECK int sl_params_constraint(struct sl_params *p, struct sl_refusal *r);
/* tools.c: reads tools and tool_choice. */
SL_MUST_CHECK int sl_params_tools(struct sl_params *p, struct sl_refusal *r);
/* What formats and tools say about the output, besides and together with sl_params_constraint. */
SL_MUST_CHECK int sl_params_formats(struct sl_params *p, const struct sl_formats *formats,
                                    const struct sl_engine *eng, struct sl_refusal *r);
/* Once the prompt is known: does the answer begin in reasoning, and how long may that be? */
SL_MUST_CHECK int sl_params_thinking(struct sl_params *p, const struct sl_engine *eng,
                                     const char *prompt, size_t n, struct sl_refusal *r);
/* Finds or compiles it. *later: it must be compiled, and this thread may not wait for that. */
SL_MUST_CHECK int sl_params_compile(struct sl_params *p, struct sl_engine *eng, bool may_wait,
                                    bool *later, struct sl_refusal *r);

/* Does a message of the engine begin with a field's name? Then that field is at fault. */
void sl_params_blame(struct sl_refusal *r);

/* Something of the request that has no effect: it is named in the reply's headers and counted. */
void sl_params_note(struct sl_params *p, const char *key);

/* The table, for tests and documentation: name of row i and whether the endpoint has it. */
int sl_params_n_fields(void);
const char *sl_params_field(int i, unsigned *endpoints);

#endif
