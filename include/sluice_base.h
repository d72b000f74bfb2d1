/* SPDX-License-Identifier: MIT
 *
 * sluice_base.h - what all parts of the public API use: errors, memory, the ways in which a
 * sequence ends. Programs include sluice.h.
 */
#ifndef SLUICE_BASE_H
#define SLUICE_BASE_H

#ifdef __cplusplus
extern "C" {
#endif

#define SL_MUST_CHECK __attribute__((warn_unused_result))

/* X(name, value, HTTP status, what a user reads). Request errors are 4xx, resource errors 429/503.
 */
#define SL_ERR_MAP(X)                         \
    X(EINVAL, -1, 400, "invalid argument")    \
    X(EFORMAT, -2, 400, "malformed data")     \
    X(ELIMIT, -3, 400, "limit exceeded")      \
    X(ENOTFOUND, -4, 404, "not found")        \
    X(EUNSUPPORTED, -5, 400, "not supported") \
    X(EAUTH, -6, 401, "not authorised")       \
    X(EMETHOD, -7, 405, "method not allowed") \
    X(ETOOBIG, -8, 413, "too large")          \
    X(EBUSY, -9, 429, "too many requests")    \
    X(ESHUTDOWN, -10, 503, "shutting down")   \
    X(ENOMEM, -11, 503, "out of memory")      \
    X(EIO, -12, 500, "input/output error")    \
    X(ECANCELED, -13, 499, "cancelled")       \
    X(ETIMEOUT, -14, 408, "timed out")        \
    X(EDEVICE, -15, 500, "device failed")     \
    X(EINTERNAL, -16, 500, "internal error")  \
    X(ESTALLED, -17, 503, "no progress")      \
    X(EASLEEP, -18, 503, "asleep")            \
    X(ERANK, -19, 503, "rank lost")

enum sl_code {
    SL_OK = 0,
#define SL_X(name, value, http, text) SL_##name = (value),
    SL_ERR_MAP(SL_X)
#undef SL_X
};

struct sl_error {
    int code;         /* enum sl_code */
    char msg[240];    /* one line, names the field, tensor or file at fault */
    const char *file; /* origin in the source, for logs; borrowed, static */
    int line;
};

const char *sl_code_name(int code); /* "EINVAL" */
int sl_code_http(int code);         /* 400 */
const char *sl_code_text(int code);

void sl_free(void *p); /* frees what this API malloc'ed */

/* How a sequence ends. */
enum sl_finish {
    SL_RUNNING,
    SL_FINISH_STOP,
    SL_FINISH_LENGTH,
    SL_FINISH_ABORT,
    SL_FINISH_ERROR,
    SL_FINISH_CACHE, /* too little of the prompt was cached: cache_hit_threshold */
    SL_N_FINISHES
};

/* Tokens drafted at once for one sequence, at most. */
#define SL_MAX_DRAFTED 32
/* Groups of layers that have a pool of KV pages each, at most. */
#define SL_KV_GROUPS 4

#ifdef __cplusplus
}
#endif

#endif
