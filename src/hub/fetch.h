/* SPDX-License-Identifier: MIT
 * fetch.h - transfers: several at a time, resumed where they broke off, checked before they count.
 *
 * One thread. A transfer goes into memory (replies of the hub's API, headers only) or into a file:
 * bytes gather in PATH.incomplete, under a lock that other processes respect, and PATH appears when
 * length and digest are right. What broke off (the network, a busy server) is tried again; what a
 * server refuses is an error that says so. Nothing that arrived is thrown away unless its digest is
 * wrong.
 */
#ifndef SL_HUB_FETCH_H
#define SL_HUB_FETCH_H

#include "base/buf.h"
#include "base/curl.h"
#include "hub/digest.h"
#include "hub/name.h"

struct sl_fetch_headers { /* of a reply, or of the redirect in front of it */
    char etag[SL_HUB_ID_BYTES + 1];
    char linked_etag[SL_HUB_ID_BYTES + 1]; /* the large file's, where etag is of something else */
    char commit[41];
    char error_code[40];     /* the hub's word for what is wrong */
    char error_message[160]; /* its sentence */
    uint64_t linked_size, range_start;
    bool has_linked_size, has_range;
};

/* One header line, without a promise about what ends it. Foreign input. */
void sl_fetch_header_line(struct sl_fetch_headers *h, const char *line, size_t n);

enum sl_fetch_state { SL_FETCH_QUEUED, SL_FETCH_RUNNING, SL_FETCH_DONE };

struct sl_fetch_job {
    /* in */
    const char *label; /* what messages call it */
    const char *url;
    const char *path;      /* file to make; NULL: the reply goes to body */
    const char *lock_path; /* of path */
    const char *id;        /* digest of the content, "" or of another form: not checked */
    bool head;             /* headers only */
    bool sized;
    uint64_t n_bytes; /* of the content, if sized */
    /* out */
    struct sl_buf body;
    struct sl_fetch_headers headers;
    enum sl_fetch_state state;
    /* the transfer's own */
    struct sl_fetch *fetch;
    CURL *easy;
    struct curl_slist *send_headers;
    char *partial_path;
    int fd, lock_fd; /* -1: not open, not held */
    struct sl_digest digest;
    uint64_t at, best; /* bytes in the partial file; the most that any attempt reached */
    int n_failed;      /* attempts in a row that brought nothing */
    bool began;        /* this attempt's first byte came */
    bool waits;        /* for another process that has the lock */
    bool mismatched;   /* the digest was wrong once */
    uint64_t retry_ns;
    struct sl_error error; /* why a callback broke the transfer off */
};

struct sl_fetch_options {
    const char *token;   /* sent to the first host only; NULL: none */
    const char *ca_file; /* NULL: the library's */
    int n_parallel;
    int silence_s; /* after so long without a byte an attempt has failed */
    /* Called some times a second and at the end of each file. finished: its job, or NULL. */
    void (*progress)(void *arg, const struct sl_fetch_job *finished, const char *note);
    void *progress_arg;
    bool (*cancelled)(void *arg); /* asked as often; NULL: never */
    void *cancelled_arg;
};

struct sl_fetch {
    const struct sl_curl *curl;
    const struct sl_fetch_options *opt;
    CURLM *multi;
    struct sl_fetch_job *jobs;
    size_t n_jobs;
};

/* Runs all jobs to their end, or stops all at the first that cannot be done. The caller frees the
 * bodies with sl_fetch_deinit_jobs whatever comes back. */
SL_MUST_CHECK int sl_fetch_run(const struct sl_fetch_options *opt, struct sl_fetch_job *jobs,
                               size_t n_jobs, struct sl_error *err);
void sl_fetch_deinit_jobs(struct sl_fetch_job *jobs, size_t n_jobs);

/* Is the file at its place, with the length it should have? What a power cut left of one is not. */
bool sl_fetch_has(const char *path, bool sized, uint64_t n_bytes);

/* The callbacks of one transfer and what becomes of its end, in fetch_job.c. */
SL_MUST_CHECK int sl_fetch_job_start(struct sl_fetch_job *job, struct sl_error *err);
/* After the transfer: done, to be tried again (state queued), or an error. */
SL_MUST_CHECK int sl_fetch_job_end(struct sl_fetch_job *job, CURLcode code, struct sl_error *err);
void sl_fetch_job_close(struct sl_fetch_job *job); /* files, lock and handle */

#endif
