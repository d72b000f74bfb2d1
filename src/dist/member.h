/* SPDX-License-Identifier: MIT
 * member.h - a rank other than 0 in a process of its own: its connection with rank 0.
 *
 * connect, then load what the plan says, then for each meeting: await it, prepare for steps, say
 * ready, serve the link. A thread speaks and listens meanwhile; when rank 0 is gone, or silent for
 * longer than the timeout it gave, the link is lost and so is the connection: close, connect anew.
 */
#ifndef SL_DIST_MEMBER_H
#define SL_DIST_MEMBER_H

#include "dist/link.h"
#include "dist/note.h"

struct sl_member;

struct sl_member_config {
    const char *addr;
    int port, rank;
    struct sl_rank_identity id;
    const void *secret; /* [n_secret] */
    size_t n_secret;
};

/* One try. SL_ERANK: nobody is there, or not any more; SL_EBUSY: rank 0 has this rank already; any
 * other code: it refuses, or is not who it should be. */
SL_MUST_CHECK int sl_member_connect(const struct sl_member_config *cfg, struct sl_member **out,
                                    struct sl_error *err);
void sl_member_close(struct sl_member *m);             /* its link too; NULL is fine */
const void *sl_member_plan(const struct sl_member *m); /* [SL_RANK_PLAN] */
/* As in leader.h. */
void sl_member_watch(struct sl_member *m, uint64_t (*progress)(const void *arg), const void *arg);

/* Says that all is loaded, and waits until the others have. room: two places of room_bytes to
 * compute parts in, or NULL where a rank's own memory does. SL_ERANK: rank 0 is gone. */
SL_MUST_CHECK int sl_member_await(struct sl_member *m, size_t room_bytes, size_t max_message,
                                  void *room[2], struct sl_error *err);
SL_MUST_CHECK int sl_member_ready(struct sl_member *m, struct sl_link **link, struct sl_error *err);
bool sl_member_ended(const struct sl_member *m); /* rank 0 said that it is over */

#endif
