/* SPDX-License-Identifier: MIT
 * prompt.h - from request fields to token ids: messages to a rendered prompt, text to ids.
 *
 * This runs on the HTTP thread. Everything here works on its arguments alone, so that it can move
 * to other threads when prompts get long enough to matter.
 */
#ifndef SL_SERVER_PROMPT_H
#define SL_SERVER_PROMPT_H

#include "server/api/call.h"

/* Checks `messages` and brings each into the form templates expect: content a string (text parts
 * joined by line ends), arguments of tool calls an object unless this template wants text, what was
 * thought under both names. Changes the tree. */
SL_MUST_CHECK int sl_messages_normalise(json_t *messages, bool arguments_as_text,
                                        struct sl_refusal *r);
/* The prompt of p->messages, which it normalises. *text is heap memory. */
SL_MUST_CHECK int sl_prompt_render(const struct sl_engine *eng, const struct sl_params *p,
                                   char **text, size_t *n_text, struct sl_refusal *r);
/* Keeps p->truncate_prompt_tokens tokens of an end, as the parameters say. */
void sl_prompt_truncate(const struct sl_engine *eng, const struct sl_params *p,
                        struct sl_prompt *prompt);
/* Fills prompt->ids. */
SL_MUST_CHECK int sl_prompt_encode(const struct sl_engine *eng, const char *text, size_t n_text,
                                   bool add_special, struct sl_prompt *prompt,
                                   struct sl_refusal *r);

#endif
