/* SPDX-License-Identifier: MIT
 * anthropic_in.h - bodies of Anthropic's /v1/messages in the shape of chat completions: content
 * blocks, system, tools, tool_choice, thinking, output_config. Fields that are plain values keep
 * their names and are read by the one table of server/api/params.h.
 */
#ifndef SL_SERVER_ANTHROPIC_IN_H
#define SL_SERVER_ANTHROPIC_IN_H

#include "server/http/json_in.h"

/* Changes the tree. A refusal names the field as the client knows it. */
SL_MUST_CHECK int sl_anthropic_to_chat(json_t *root, struct sl_refusal *r);

#endif
