/* SPDX-License-Identifier: MIT
 * batch_file.h - the files of a batch: requests in, a line each (OpenAI's batch format), and
 * replies out in the same order.
 *
 * Replies are appended to a part as they come, each with one write, so that a run that was killed
 * has lost none that it had; the next run reads them there and goes on with the others. A line's id
 * says which request it answers and a hash of that request's text, so that the part of another
 * input is found out. What is wanted of the replies is then written in the order of the requests.
 *
 * One thread, but for the files' other readers: two runs on one part exclude each other by a lock.
 */
#ifndef SL_SERVER_BATCH_FILE_H
#define SL_SERVER_BATCH_FILE_H

#include "base/buf.h"
#include "base/sys.h"

#include <jansson.h>

struct sl_batch_line {
    size_t at, n;      /* in the input */
    uint64_t reply_at; /* in the part */
    uint32_t n_reply;  /* bytes with the line's end; 0: not answered */
    bool good;         /* with status 200 */
};

struct sl_batch_file {
    struct sl_map in;
    struct sl_batch_line *lines;
    size_t n_lines, cap_lines, n_done, n_good;
    char *part; /* its path */
    int fd;     /* of the part, locked; -1 */
    uint64_t part_bytes;
};

struct sl_batch_request {
    json_t *root;            /* of the line; NULL: it is no JSON */
    const json_t *custom_id; /* a string, or NULL */
    const char *url;
    json_t *body;
};

enum sl_batch_which { SL_BATCH_ALL, SL_BATCH_GOOD, SL_BATCH_BAD };

/* SL_ELIMIT: in has more lines than max_lines. */
SL_MUST_CHECK int sl_batch_open(const char *in, const char *part, size_t max_lines,
                                struct sl_batch_file *f, struct sl_error *err);
void sl_batch_close(struct sl_batch_file *f); /* keeps the part */
/* What line i asks for; on failure err says why the line is refused, and r may have a custom_id. */
SL_MUST_CHECK int sl_batch_read(const struct sl_batch_file *f, size_t i, struct sl_batch_request *r,
                                struct sl_error *err);
void sl_batch_request_deinit(struct sl_batch_request *r);
/* May url be what a line asks? */
bool sl_batch_is_endpoint(const char *url);
/* status 0: no reply, err says why. body: JSON. */
SL_MUST_CHECK int sl_batch_put(struct sl_batch_file *f, size_t i, const json_t *custom_id,
                               int status, const char *body, size_t n_body,
                               const struct sl_error *why, struct sl_error *err);
/* The replies that there are, of that kind, in the order of their requests: a file that appears
 * whole. */
SL_MUST_CHECK int sl_batch_write(const struct sl_batch_file *f, enum sl_batch_which which,
                                 const char *path, struct sl_error *err);

#endif
