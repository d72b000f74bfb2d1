/* SPDX-License-Identifier: MIT
 * batch_record.h - what is known of one batch, as clients see it and as it lies on disk.
 */
#ifndef SL_SERVER_BATCH_RECORD_H
#define SL_SERVER_BATCH_RECORD_H

#include "server/jobs/batches.h"

#define SL_MAX_BATCH_ERRORS 20 /* that are told of a file that is refused */

/* Its order is that of a life; ends come last. */
enum sl_batch_status {
    SL_BATCH_VALIDATING,
    SL_BATCH_IN_PROGRESS,
    SL_BATCH_FINALIZING,
    SL_BATCH_CANCELLING,
    SL_BATCH_COMPLETED,
    SL_BATCH_FAILED,
    SL_BATCH_EXPIRED,
    SL_BATCH_CANCELLED,
    SL_BATCH_N_STATUS
};

struct sl_batch_work; /* batches.c */

struct sl_batch_record {
    char id[SL_BATCH_ID_BYTES + 1];
    char owner[SL_FILE_OWNER_HEX + 1];
    char endpoint[32], window[16];
    char input_id[SL_FILE_ID_BYTES + 1];
    char output_id[SL_FILE_ID_BYTES + 1], error_id[SL_FILE_ID_BYTES + 1]; /* "": none */
    enum sl_batch_status status;
    int64_t created_ns, expires_s;
    int64_t at_s[SL_BATCH_N_STATUS]; /* since 1970: when it came to a status; 0: never */
    uint64_t n_total, n_good, n_bad;
    json_t *metadata, *errors;  /* an object; an array; or NULL */
    struct sl_batch_work *work; /* of the batches' thread */
};

static inline bool sl_batch_has_ended(const struct sl_batch_record *r)
{
    return r->status >= SL_BATCH_COMPLETED;
}

void sl_batch_record_free(struct sl_batch_record *r);
void sl_batch_record_move(struct sl_batch_record *r, enum sl_batch_status status);
/* One thing that is wrong with line (from 1; 0: with none), if there is room for it. */
void sl_batch_record_blame(struct sl_batch_record *r, size_t line, const char *code,
                           const char *param, const char *message);
/* As clients see it; or as it lies on disk. */
void sl_batch_record_put(struct sl_buf *b, const struct sl_batch_record *r, bool on_disk);
/* Reads what the latter wrote; NULL: it is nothing of the kind. */
struct sl_batch_record *sl_batch_record_read(const char *text, size_t n);
/* "24h": seconds, minutes, hours or days, 1 s to 30 d. False: something else. */
bool sl_batch_window(const char *text, int64_t *seconds);

#endif
