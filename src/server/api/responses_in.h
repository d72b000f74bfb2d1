/* SPDX-License-Identifier: MIT
 * responses_in.h - bodies of OpenAI's /v1/responses in the shape of chat completions: input items,
 * instructions, tools, tool_choice, text, reasoning, include.
 */
#ifndef SL_SERVER_RESPONSES_IN_H
#define SL_SERVER_RESPONSES_IN_H

#include "server/api/responses_tools.h"

struct sl_responses_in {
    struct sl_tool_map tools;
    bool compact;      /* the answer is to be a summary of the conversation */
    char skipped[128]; /* types of items that say nothing to the model, with commas */
};

/* Changes the tree: "input" is an array of messages afterwards, without the instructions. A refusal
 * names the field as the client knows it. */
SL_MUST_CHECK int sl_responses_to_chat(json_t *root, struct sl_responses_in *in,
                                       struct sl_refusal *r);
/* What stands in front of the input: the instructions, and the messages of earlier turns. */
SL_MUST_CHECK int sl_responses_prepend(json_t *root, json_t *earlier, struct sl_refusal *r);
/* Behind it: what asks the model for a summary. */
SL_MUST_CHECK int sl_responses_ask_summary(json_t *root, struct sl_refusal *r);
/* A summary as the encrypted_content of an item, which is handed back as it is. */
void sl_put_summary(struct sl_buf *b, const char *text, size_t n);

#endif
