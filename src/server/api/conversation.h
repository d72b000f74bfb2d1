/* SPDX-License-Identifier: MIT
 * conversation.h - what every protocol of conversations does between the body of a request and its
 * prompt: read the fields, find the formats of the answer, compile what it must be, render the
 * messages and encode them.
 */
#ifndef SL_SERVER_CONVERSATION_H
#define SL_SERVER_CONVERSATION_H

#include "server/api/task.h"

/* Brings what a protocol has in a shape of its own (messages, tools, ...) into the shape of chat
 * completions in t->root, and refuses what that cannot hold. */
typedef int (*sl_to_chat_fn)(struct sl_task *t);

/* The prepare of a task, whose body may have been parsed: fills params, model and the one prompt,
 * or rc. to_chat may be NULL. */
void sl_conversation_prepare(struct sl_task *t, enum sl_endpoint endpoint, sl_to_chat_fn to_chat);

#endif
