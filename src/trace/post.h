/* SPDX-License-Identifier: MIT
 * post.h - one collector, reached over HTTP by libcurl on one kept connection. One thread.
 */
#ifndef SL_TRACE_POST_H
#define SL_TRACE_POST_H

#include "trace/settings.h"

enum sl_post_end {
    SL_POST_DONE,    /* the collector has them, or said what is wrong with some */
    SL_POST_RETRY,   /* later perhaps: not reached, no answer, 429, 502, 503 or 504 */
    SL_POST_REFUSED, /* never */
    SL_POST_LATE,    /* the deadline came first */
};

struct sl_post_reply {
    int64_t n_rejected;    /* spans, of what is done */
    int64_t retry_after_s; /* as the collector asks for, 0: it does not */
    char why[200];         /* of all but what is done, and of rejections */
};

struct sl_post;

/* settings are borrowed. SL_EUNSUPPORTED: there is no libcurl. */
SL_MUST_CHECK int sl_post_create(const struct sl_trace_settings *settings, struct sl_post **out,
                                 struct sl_error *err);
void sl_post_destroy(struct sl_post *p); /* NULL is fine */
/* One attempt. limit(arg) is asked now and then, and at once when wake_fd becomes readable: the
 * time (sl_now_ns) by which this has to return. */
enum sl_post_end sl_post_send(struct sl_post *p, const char *body, size_t n, int wake_fd,
                              uint64_t (*limit)(void *arg), void *arg, struct sl_post_reply *reply);
/* What a collector's reply to a request it took says. Of foreign bytes: anything may come. */
void sl_post_read_reply(const char *body, size_t n, struct sl_post_reply *reply);

#endif
