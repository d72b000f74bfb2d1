/* SPDX-License-Identifier: MIT
 * batches.h - the batches of clients (/v1/batches): what they are to do, how far they are, and the
 * thread that does it, asking the server it runs in (batch_pool.h).
 *
 * DIR/batches/ID.json holds what is known of a batch and is replaced at each change of its status;
 * DIR/batches/ID.part the replies so far. A server that starts reads both and goes on: what has a
 * reply is not asked again. Any thread but for start, join and the thread's own; a lock.
 */
#ifndef SL_SERVER_BATCHES_H
#define SL_SERVER_BATCHES_H

#include "server/jobs/file_store.h"
#include "server/loop.h"

#define SL_BATCH_ID_BYTES (6 + 32) /* "batch_" and hex digits */

struct sl_batches;

/* Reads what there is. The thread begins with sl_batches_run. files is borrowed, as is server. */
SL_MUST_CHECK int sl_batches_open(struct sl_server *server, struct sl_file_store *files,
                                  struct sl_batches **out, struct sl_error *err);
SL_MUST_CHECK int sl_batches_run(struct sl_batches *b, struct sl_error *err);
/* The thread is to give up what is under way and end; may be called by a signal's handler's thread
 * any number of times. */
void sl_batches_stop(struct sl_batches *b);
void sl_batches_close(struct sl_batches *b); /* stops, joins, frees */

struct sl_file_store *sl_batches_files(const struct sl_batches *b);
/* Descriptors that its connections may take: both ends of them are here. */
uint64_t sl_batches_n_fds(const struct sl_batches *b);
/* Of the API key with that index (sl_route_key). */
const char *sl_batches_owner(const struct sl_batches *b, int key);

struct sl_batch_desc {
    const char *input_file_id, *endpoint, *window;
    json_t *metadata; /* an object, or NULL; referenced */
};

/* A description is appended to out. */
SL_MUST_CHECK int sl_batches_create(struct sl_batches *b, const char *owner,
                                    const struct sl_batch_desc *desc, struct sl_buf *out,
                                    struct sl_refusal *r);
SL_MUST_CHECK int sl_batches_get(struct sl_batches *b, const char *owner, struct sl_str id,
                                 struct sl_buf *out, struct sl_refusal *r);
SL_MUST_CHECK int sl_batches_cancel(struct sl_batches *b, const char *owner, struct sl_str id,
                                    struct sl_buf *out, struct sl_refusal *r);
/* Newest first, behind `after` (n 0: from the first on). */
SL_MUST_CHECK int sl_batches_list(struct sl_batches *b, const char *owner, struct sl_str after,
                                  int64_t limit, struct sl_buf *out, struct sl_refusal *r);

#endif
