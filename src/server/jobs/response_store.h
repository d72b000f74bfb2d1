/* SPDX-License-Identifier: MIT
 * response_store.h - responses that clients may ask for again, go on from, delete and cancel: in
 * memory, of a bounded size, the one not used for longest goes first. A key sees its own alone.
 *
 * A response has a turn: the messages that it added to its conversation. Turns are shared by all
 * that came after, so that a long conversation is held once. Any thread; one lock.
 */
#ifndef SL_SERVER_RESPONSE_STORE_H
#define SL_SERVER_RESPONSE_STORE_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdatomic.h>

struct sl_loop;
struct sl_response_store;
struct sl_stored;        /* of a response under way; its call's until finish or drop */
struct sl_response_turn; /* constant; counted */

/* max_bytes 0: nothing is kept. */
SL_MUST_CHECK int sl_responses_create(uint64_t max_bytes, struct sl_response_store **out,
                                      struct sl_error *err);
void sl_responses_destroy(struct sl_response_store *s);
bool sl_responses_keeps(const struct sl_response_store *s);

/* A response begins: body is what it looks like until it ends (taken over). The thread that runs it
 * is woken when somebody cancels. NULL: out of memory. */
struct sl_stored *sl_responses_begin(struct sl_response_store *s, const char *id, int tenant,
                                     struct sl_loop *loop, struct sl_buf *body);
const atomic_bool *sl_stored_cancelled(const struct sl_stored *e);
/* Its end: the body as it stays, and the messages it added (a JSON array), both taken over, after
 * those of parent, whose reference is taken too. What has no room is not kept. */
void sl_responses_finish(struct sl_response_store *s, struct sl_stored *e, struct sl_buf *body,
                         struct sl_buf *messages, struct sl_response_turn *parent);
void sl_responses_drop(struct sl_response_store *s, struct sl_stored *e); /* it had no end */

/* false: there is no such response of this key. */
bool sl_responses_get(struct sl_response_store *s, const char *id, int tenant, struct sl_buf *out);
bool sl_responses_delete(struct sl_response_store *s, const char *id, int tenant);
bool sl_responses_cancel(struct sl_response_store *s, const char *id, int tenant, bool *running);

/* A reference to the turn of a response that has ended; NULL: there is none. */
struct sl_response_turn *sl_responses_turn(struct sl_response_store *s, const char *id, int tenant);
/* t may be NULL. */
void sl_response_turn_unref(struct sl_response_store *s, struct sl_response_turn *t);
/* All messages up to and with t, in order, appended to the array; how much text they are. */
size_t sl_response_turn_bytes(const struct sl_response_turn *t);
SL_MUST_CHECK int sl_response_turn_messages(const struct sl_response_turn *t, json_t *out);

#endif
