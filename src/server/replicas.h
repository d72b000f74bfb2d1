/* SPDX-License-Identifier: MIT
 * replicas.h - which of several engines of one model answers a request (--data-parallel-size).
 *
 * The one that a header names (`X-data-parallel-rank`, as in vLLM); else the one that was sent most
 * of what the request begins with, if that is half of it and this engine has not much
 * more to do than others; else the one with the fewest requests. The bits of an answer do not
 * depend on it.
 */
#ifndef SL_SERVER_REPLICAS_H
#define SL_SERVER_REPLICAS_H

#include "server/http/http_parse.h"
#include "server/http/json_in.h"

struct sl_replicas;
struct sl_served;

#define SL_RANK_HEADER "x-data-parallel-rank"
enum { SL_RANK_ANY = -1, SL_RANK_WRONG = -2 }; /* no header, or one that is no number */

/* The header's value, or NULL where there is none. */
int32_t sl_replicas_rank(const struct sl_str *header);

/* models: [n] borrowed. NULL: no memory. */
struct sl_replicas *sl_replicas_create(struct sl_served *models, int32_t n);
void sl_replicas_destroy(struct sl_replicas *r);

/* Any thread. body: the request, NULL for none; rank: of the header. SL_EINVAL: there is no such
 * rank. */
SL_MUST_CHECK int sl_replicas_pick(struct sl_replicas *r, const json_t *body, int32_t rank,
                                   struct sl_served **out, struct sl_refusal *refusal);

#endif
