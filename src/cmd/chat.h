/* SPDX-License-Identifier: MIT
 * chat.h - what `sluice chat` and its own commands (/help, /set, ...) share.
 */
#ifndef SL_CMD_CHAT_H
#define SL_CMD_CHAT_H

#include "cmd/common.h"
#include "cmd/conversation.h"

struct sl_chat {
    struct sl_engine *eng;
    struct sl_sampling sampling;
    struct sl_cli_how how; /* every answer is made */
    struct sl_conversation talk;
    const char *model; /* as the user called it */
};

enum sl_chat_next { SL_CHAT_ASK, SL_CHAT_AGAIN, SL_CHAT_READ, SL_CHAT_LEAVE };

/* For completion: "/help", "/set", ... */
extern const char *const sl_chat_words[];
extern const size_t sl_chat_n_words;

/* What follows from an input: it is a message to answer, the last message is to be answered again
 * (/regen, which has taken the old answer away), the next line is to be read, or the chat ends. */
enum sl_chat_next sl_chat_command(struct sl_chat *c, const char *line);

#endif
