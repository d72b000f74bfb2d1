/* SPDX-License-Identifier: MIT
 * to_chat.h - pieces that protocols share when they bring their bodies into the shape of chat
 * completions. Each refuses with the name of the place it was given.
 */
#ifndef SL_SERVER_TO_CHAT_H
#define SL_SERVER_TO_CHAT_H

#include "server/http/json_in.h"

#define SL_PLACE_BYTES 96 /* of the name of a place, as "messages[3].content[0]" */

int sl_chat_no_memory(struct sl_refusal *r, const char *field);
/* A member that has to be a string; borrowed. */
SL_MUST_CHECK int sl_chat_text(const json_t *v, const char *at, const char *name,
                               const json_t **out, struct sl_refusal *r);
SL_MUST_CHECK int sl_chat_append_part(json_t *parts, const json_t *text, const char *at,
                                      struct sl_refusal *r);
/* Appends a message whose content is one of these: text (a string) or parts. */
SL_MUST_CHECK int sl_chat_append_message(json_t *messages, const char *role, const json_t *content,
                                         const char *at, struct sl_refusal *r);
/* The result of a tool: content is taken over. */
SL_MUST_CHECK int sl_chat_append_result(json_t *messages, const json_t *id, json_t *content,
                                        const char *at, struct sl_refusal *r);
/* Appends a call to *calls, which is made when it is NULL; arguments are taken over. */
SL_MUST_CHECK int sl_chat_append_call(json_t **calls, const json_t *id, const json_t *name,
                                      json_t *arguments, const char *at, struct sl_refusal *r);
/* A tool of the members that are there: names[i][0] of tool becomes names[i][1]. */
SL_MUST_CHECK int sl_chat_append_tool(json_t *tools, const json_t *tool,
                                      const char *const names[][2], size_t n_names, const char *at,
                                      struct sl_refusal *r);
/* Tells the template to think or not to, unless the request says so itself. */
SL_MUST_CHECK int sl_chat_set_thinking(json_t *root, bool think, struct sl_refusal *r);

#endif
