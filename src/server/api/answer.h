/* SPDX-License-Identifier: MIT
 * answer.h - the answer of one choice of a conversation as a row of parts: reasoning, text and
 * calls, in the order in which the model wrote them. Every protocol writes its reply from these.
 *
 * Belongs to its call and the call's thread. Cutting the text into other pieces changes nothing but
 * where the news of a part are cut.
 */
#ifndef SL_SERVER_ANSWER_H
#define SL_SERVER_ANSWER_H

#include "server/api/call.h"

enum sl_part_kind { SL_PART_REASONING, SL_PART_TEXT, SL_PART_CALL };

struct sl_part {
    enum sl_part_kind kind;
    int32_t idx;            /* among the parts */
    int32_t call_idx;       /* of calls: among the calls */
    bool ended, whole;      /* whole: a call's arguments are a JSON object */
    bool free_form;         /* a call of a tool that takes text */
    bool last;              /* it ended with the answer */
    struct sl_buf id, name; /* of calls */
    struct sl_buf text;     /* of calls: the arguments; empty unless the answer is kept */
    struct sl_buf extra;    /* what the protocol keeps beside it */
};

struct sl_answer;

/* keep: the parts' text stays. Else only the last part is there, for its name, unless a tool takes
 * text. */
SL_MUST_CHECK int sl_answer_create(struct sl_call *call, struct sl_choice *choice,
                                   const struct sl_params *p, bool keep, struct sl_answer **out,
                                   struct sl_error *err);
void sl_answer_destroy(struct sl_answer *a);
/* The next text. b: the API's part functions append to it; NULL: the parts are only gathered. After
 * a failure of memory b, or what sl_answer_ok tells, is failed. */
void sl_answer_push(struct sl_answer *a, struct sl_buf *b, const struct sl_chunk *chunk);
bool sl_answer_ok(const struct sl_answer *a);
/* A part of text is open, or what is held back may begin one. */
bool sl_answer_in_text(const struct sl_answer *a);
/* A hash of the name of the first tool that it calls, 0: it calls none. NULL: 0. */
uint64_t sl_answer_tool(const struct sl_answer *a);
bool sl_answer_has_calls(const struct sl_answer *a); /* NULL: no */
/* Tokens of reasoning so far, its markers included; -1: its format has none. NULL: -1. */
int64_t sl_answer_n_thought(const struct sl_answer *a);
size_t sl_answer_bytes(const struct sl_answer *a); /* kept; NULL: 0 */
/* The kept parts. */
int32_t sl_answer_n_parts(const struct sl_answer *a);
const struct sl_part *sl_answer_part(const struct sl_answer *a, int32_t i);

#endif
