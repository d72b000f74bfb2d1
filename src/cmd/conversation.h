/* SPDX-License-Identifier: MIT
 * conversation.h - the messages of a chat on the terminal, as the template and the files of /save
 * and /load want them: the body of a request to /v1/chat/completions.
 */
#ifndef SL_CMD_CONVERSATION_H
#define SL_CMD_CONVERSATION_H

#include "base/buf.h"
#include "base/err.h"

struct sl_chat_turn {
    const char *role; /* "system", "user" or "assistant" */
    char *text;       /* NUL-terminated */
    size_t n;
};

struct sl_conversation { /* zero-initialise */
    struct sl_chat_turn *turns;
    size_t n, cap;
};

void sl_conversation_deinit(struct sl_conversation *c);
SL_MUST_CHECK int sl_conversation_add(struct sl_conversation *c, const char *role, const char *text,
                                      size_t n, struct sl_error *err);
void sl_conversation_cut(struct sl_conversation *c, size_t n); /* only the first n stay */
/* The system message, which is the first; NULL: there is none. */
const char *sl_conversation_system(const struct sl_conversation *c);
/* text "": takes it away. */
SL_MUST_CHECK int sl_conversation_set_system(struct sl_conversation *c, const char *text,
                                             struct sl_error *err);
/* All but the system message goes. */
void sl_conversation_clear(struct sl_conversation *c);
/* Appends the JSON array. */
void sl_conversation_json(const struct sl_conversation *c, struct sl_buf *out);
SL_MUST_CHECK int sl_conversation_save(const struct sl_conversation *c, const char *model,
                                       const char *path, struct sl_error *err);
/* From an object with `messages`, or an array of them, with texts as contents. On failure c stays
 * as it was. */
SL_MUST_CHECK int sl_conversation_load(struct sl_conversation *c, const char *path,
                                       struct sl_error *err);

#endif
