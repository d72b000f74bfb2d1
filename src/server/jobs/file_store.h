/* SPDX-License-Identifier: MIT
 * file_store.h - the files of clients (/v1/files), in a folder: DIR/files/ID with the content and
 * DIR/files/ID.json with what is known of it. The second appears last and goes first: content
 * without it is left over from a run that was killed, and is removed when the store opens.
 *
 * Ids are the store's own, and the only names that become paths. An owner is who a file belongs to,
 * "" where there are no keys; the others do not see it. One process per folder. Any thread; a lock.
 */
#ifndef SL_SERVER_FILE_STORE_H
#define SL_SERVER_FILE_STORE_H

#include "base/buf.h"
#include "server/http/http_parse.h"
#include "server/http/json_in.h"

#define SL_FILE_OWNER_HEX 32
#define SL_FILE_ID_BYTES  (5 + 32) /* "file-" and hex digits */
#define SL_MAX_STORE_PATH 4096

struct sl_file_store;

SL_MUST_CHECK int sl_file_store_open(const char *dir, uint64_t max_bytes,
                                     struct sl_file_store **out, struct sl_error *err);
void sl_file_store_close(struct sl_file_store *s);
const char *sl_file_store_dir(const struct sl_file_store *s);
/* An owner's name, from its key; key NULL: "". */
void sl_file_store_owner(const char *key, char out[SL_FILE_OWNER_HEX + 1]);
/* prefix and 32 random hex digits */
SL_MUST_CHECK int sl_file_store_make_id(const char *prefix, char *out, size_t n_out,
                                        struct sl_error *err);

/* A new file; its description is appended to out. */
SL_MUST_CHECK int sl_file_store_add(struct sl_file_store *s, const char *owner, const char *name,
                                    const char *purpose, struct sl_str data, struct sl_buf *out,
                                    struct sl_refusal *r);
/* One whose content lies at sl_file_store_path(id) already; if the store has it, nothing is done.
 */
SL_MUST_CHECK int sl_file_store_adopt(struct sl_file_store *s, const char *owner, const char *id,
                                      const char *name, const char *purpose, struct sl_error *err);
/* false: there is no such file of this owner. */
bool sl_file_store_get(struct sl_file_store *s, const char *owner, struct sl_str id,
                       struct sl_buf *out);
SL_MUST_CHECK int sl_file_store_delete(struct sl_file_store *s, const char *owner, struct sl_str id,
                                       struct sl_refusal *r);

struct sl_file_query {
    struct sl_str after, purpose; /* n 0: any */
    int64_t limit;
    bool ascending;
};
/* {"object":"list",...}; SL_EINVAL: `after` is no file of this owner. */
SL_MUST_CHECK int sl_file_store_list(struct sl_file_store *s, const char *owner,
                                     const struct sl_file_query *q, struct sl_buf *out,
                                     struct sl_refusal *r);
/* Opens the content for reading. */
SL_MUST_CHECK int sl_file_store_read(struct sl_file_store *s, const char *owner, struct sl_str id,
                                     int *fd, uint64_t *n_bytes, struct sl_refusal *r);
/* While it is held a file cannot be deleted, and has places kept for the two that a batch makes of
 * it. purpose: what it must have been given for. again: as before the store was opened, so that no
 * place is asked for. */
SL_MUST_CHECK int sl_file_store_hold(struct sl_file_store *s, const char *owner, const char *id,
                                     const char *purpose, bool again, struct sl_refusal *r);
void sl_file_store_let_go(struct sl_file_store *s, const char *id);

void sl_file_store_path(const struct sl_file_store *s, const char *id, char out[SL_MAX_STORE_PATH]);
/* Bytes beside the files that count towards the store's limit, or no more. False: there is no room,
 * and they are not counted. */
bool sl_file_store_charge(struct sl_file_store *s, int64_t n_bytes);

#endif
