/* SPDX-License-Identifier: MIT
 * batch_pool.h - works on the lines of batches: so many requests at a time, over HTTP. Batches take
 * turns line by line, so that a short one does not wait for a long one.
 *
 * A pool and its jobs belong to the thread of its event base.
 */
#ifndef SL_SERVER_BATCH_POOL_H
#define SL_SERVER_BATCH_POOL_H

#include "server/http/http_client.h"
#include "server/jobs/batch_file.h"

#define SL_MAX_BATCH_JOBS 64

struct sl_batch_job { /* zero-initialise; the owner's, from add to its end or to remove */
    struct sl_batch_file *file;
    const char *api_key; /* of its requests; NULL: none */
    void *user;
    int64_t n_prompt, n_output; /* tokens */
    int rc;                     /* != 0: the replies cannot be kept, and err says why */
    struct sl_error err;
    size_t next, n_open; /* inside: the first line that was not looked at; requests under way */
};

struct sl_batch_pool_events {
    /* Is there room for a reply of about n_bytes? Else it sets rc. NULL: there is. */
    void (*coming)(void *arg, struct sl_batch_job *job, size_t n_bytes);
    void (*answered)(void *arg, struct sl_batch_job *job); /* one line more, or rc */
    void (*ended)(void *arg, struct sl_batch_job *job);    /* all lines, or rc: it is out */
};

struct sl_batch_pool;

/* url is borrowed. Neither event comes from inside add. */
SL_MUST_CHECK int sl_batch_pool_create(struct event_base *base, const struct sl_http_url *url,
                                       size_t n_slots, const struct sl_batch_pool_events *events,
                                       void *arg, struct sl_batch_pool **out, struct sl_error *err);
void sl_batch_pool_destroy(struct sl_batch_pool *p); /* what is under way is given up */
/* Jobs that have ended already are told so as well. At most SL_MAX_BATCH_JOBS. */
void sl_batch_pool_add(struct sl_batch_pool *p, struct sl_batch_job *job);
/* Gives up what is under way for the job: those lines stay without an answer. */
void sl_batch_pool_remove(struct sl_batch_pool *p, struct sl_batch_job *job);
size_t sl_batch_pool_n(const struct sl_batch_pool *p); /* jobs */

#endif
