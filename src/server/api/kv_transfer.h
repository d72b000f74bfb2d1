/* SPDX-License-Identifier: MIT
 * kv_transfer.h - the fields by which a router has one server compute a prompt and another go on:
 * vLLM's kv_transfer_params, and SGLang's bootstrap_host, bootstrap_port and bootstrap_room.
 *
 * vLLM's: the first server answers with an object that the router hands to the second. SGLang's:
 * both get the request at once, with the number of a room by which they find one another. Either
 * way the first makes one token, and the second gives the answer (docs/API.md).
 */
#ifndef SL_SERVER_KV_TRANSFER_H
#define SL_SERVER_KV_TRANSFER_H

#include "server/api/params.h"
#include "server/conn.h"

struct sl_call;

struct sl_transfers {
    struct sl_kv_transfer *prompts; /* [n] one for each; NULL: no pages are transferred */
    int32_t n;
    bool offers;  /* this server is the first of the two: it makes one token */
    bool answers; /* and its answer says where the pages are */
};

/* host of items points into the tree of the request. The caller frees prompts. */
SL_MUST_CHECK int sl_transfers_read(const struct sl_params *p, const struct sl_conn *c,
                                    const struct sl_engine *eng, int32_t n_prompts,
                                    struct sl_transfers *out, struct sl_refusal *r);
/* The request was refused: who waits in its rooms is told. root may be NULL. */
void sl_transfers_refused(struct sl_engine *eng, const json_t *root);
/* ,"kv_transfer_params":{...} of a call that has ended, where its answer says so. */
void sl_transfers_put(struct sl_buf *b, const struct sl_call *call);

#endif
