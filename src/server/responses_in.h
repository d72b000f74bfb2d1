/* SPDX-License-Identifier: MIT
 * responses_in.h - bodies of OpenAI's /v1/responses in the shape of chat completions: input items,
 * instructions, tools, tool_choice, text, reasoning, include.
 */
#ifndef SL_SERVER_RESPONSES_IN_H
#define SL_SERVER_RESPONSES_IN_H

#include "server/json_in.h"

/* Changes the tree: "input" is an array of messages afterwards, without the instructions. A refusal
 * names the field as the client knows it. */
SL_MUST_CHECK int sl_responses_to_chat(json_t *root, struct sl_refusal *r);
/* What stands in front of the input: the instructions, and the messages of earlier turns. */
SL_MUST_CHECK int sl_responses_prepend(json_t *root, json_t *earlier, struct sl_refusal *r);

#endif
