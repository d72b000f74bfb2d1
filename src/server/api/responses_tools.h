/* SPDX-License-Identifier: MIT
 * responses_tools.h - tools of OpenAI's /v1/responses as functions, and calls of these functions as
 * the items that clients know.
 *
 * A model knows functions only. Free-form tools, shells, patches, searches for tools, and functions
 * in a namespace are shown to it as functions; struct sl_tool_map says what each of them was. What
 * only OpenAI runs is not shown, and is named.
 */
#ifndef SL_SERVER_RESPONSES_TOOLS_H
#define SL_SERVER_RESPONSES_TOOLS_H

#include "server/api/answer.h"
#include "server/http/json_in.h"

enum sl_tool_kind {
    SL_TOOL_FUNCTION,
    SL_TOOL_CUSTOM, /* its input is text */
    SL_TOOL_SEARCH, /* for more tools, by the client */
    SL_TOOL_LOCAL_SHELL,
    SL_TOOL_SHELL,
    SL_TOOL_PATCH,
    SL_N_TOOL_KINDS
};

struct sl_tool_map {
    json_t *tools;     /* what the function of a name is: {kind, name, namespace}; NULL: nothing */
    char ignored[128]; /* types of tools that are not shown, with commas */
};

void sl_tool_map_deinit(struct sl_tool_map *m);

/* Reads the tools of root, and those that items of its input bring, which is still as the client
 * sent it: root's tools are functions in the shape of chat completions afterwards. */
SL_MUST_CHECK int sl_responses_tools(json_t *root, struct sl_tool_map *m, struct sl_refusal *r);
/* tool_choice likewise; the tools are read. */
SL_MUST_CHECK int sl_responses_choice(json_t *root, const struct sl_tool_map *m,
                                      struct sl_refusal *r);
/* Is a tool of the client's run by OpenAI alone? */
bool sl_responses_is_hosted(const json_t *tool);

/* What the model knows a function as; NULL: no memory. */
json_t *sl_tool_shown_name(const char *space, const char *name);
/* The type of the item that stands for a call of this kind, and what ids of such items begin with.
 */
const char *sl_tool_item_type(enum sl_tool_kind kind);
const char *sl_tool_item_prefix(enum sl_tool_kind kind);
enum sl_tool_kind sl_tool_kind_of(const struct sl_tool_map *m, const struct sl_part *call);
/* The members of a call's item behind its status: call_id, name, arguments or what the type has. */
void sl_put_tool_call(struct sl_buf *b, const struct sl_tool_map *m, const struct sl_part *call);
/* Its name as the client gave it, as a string of JSON. */
void sl_put_tool_name(struct sl_buf *b, const struct sl_tool_map *m, const struct sl_part *call);

#endif
