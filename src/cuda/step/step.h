/* SPDX-License-Identifier: MIT
 * step.h - the parts of the backend that backend.cu puts together: loading, steps, recordings.
 */
#ifndef SL_CUDA_STEP_H
#define SL_CUDA_STEP_H

#include "cuda/gemm/fuse.h"
#include "ops/device.h"

#define SL_CUDA_GRAPHS  256 /* recordings kept: the ladder of a model is at most 65 long */
#define SL_CUDA_ALIGN   256 /* of the parts of a step's block */
#define SL_CUDA_PAD_MIN 8   /* from here the ladder goes in steps of 8, from 256 in steps of 32 */

/* A recorded step: what forward enqueued for steps of this key. */
struct sl_cuda_graph {
    const void *arg;
    sl_forward_fn forward;
    int32_t n_spans, width; /* padded; tokens of each */
    int32_t n_logits;       /* all rows are wanted, or one of each */
    uint32_t variant;
    enum sl_step_part part;
    int32_t n_host_calls; /* in it */
    cudaGraphExec_t exec; /* NULL: recording failed, such steps stay eager */
};

/* Where the parts of a step lie in its block, in pinned memory as on the device. Page ids are last
 * because only their number differs between steps of the same counts: so a recorded step finds
 * everything where it was. */
struct sl_cuda_block_layout {
    size_t n_pad; /* rows of padding, for those who want to know */
    size_t tokens, positions, spans, second_from, logit_rows, params, adapters, scales, tables;
    size_t n_bytes;
};

struct sl_cuda_slot { /* pinned memory of one step */
    uint8_t *in;
    uint8_t *out; /* ids, then results from result_offset */
    uint8_t *extra, *again;
    cudaEvent_t done;
    uint64_t ticket; /* 0: never used */
    bool waited;     /* the event was seen */
    bool alone;      /* nothing was enqueued before it that is waited for first */
    bool passes;     /* it is not: nobody wants its rows now, or they are drafts */
    int32_t kind;    /* of took_ns */
    uint64_t sent_ns;
};

#define SL_CUDA_SIZES 18                   /* kinds of steps by their tokens, */
#define SL_CUDA_WAITS (SL_CUDA_SIZES + 32) /* and of passes by the steps behind the first */

#define SL_CUDA_CLOCKS (SL_DEVICE_DEPTH + 2) /* a step's events outlive the next depth steps */

struct sl_cuda_clock { /* of one step */
    cudaEvent_t begun, done;
    cudaEvent_t paused, resumed; /* of a step in two parts: between them */
    cudaEvent_t held, freed;     /* of a stage: it waits in between */
    int32_t n_again;             /* steps between paused and done */
    bool drafts;                 /* of a model that drafts, and wants ids */
    bool follows;                /* enqueued before the step ahead of it was waited for */
    bool in_parts;
};

struct sl_cuda_host;  /* host.cu */
struct sl_cuda_pages; /* pages.cu */

struct sl_cuda_later { /* a step that is to be recorded; forward NULL: none */
    struct sl_step dev;
    sl_forward_fn forward;
    void *arg;
};

struct sl_cuda_steps {
    struct sl_step_limits lim;
    int32_t max_width; /* tokens of a span of a decode step; 0: nothing is padded or recorded */
    uint8_t *in;       /* device: the running step's block */
    size_t in_bytes;
    uint8_t *out; /* device: ids [max_logits], then results */
    size_t result_offset, out_bytes;
    uint8_t *extra;           /* device */
    struct sl_lora_rows lora; /* of the running step, with pointers of the device */
    uint8_t *products;        /* device: SL_LIN_BYTES (linear.h) */
    uint8_t *mixed;           /* device: lim.adapter_bytes */
    uint8_t *by_row;          /* device: rows' adapters (lora.h) */
    uint8_t *again;           /* device: the block of the steps behind a step */
    uint8_t *kept;            /* device: [1 + max_again, n] ids of a step and those */
    size_t extra_bytes, again_bytes, kept_bytes;
    int32_t depth;
    struct sl_cuda_slot slot[SL_DEVICE_DEPTH]; /* depth of them are used */
    uint64_t took_ns[SL_CUDA_WAITS];           /* what steps of a kind take, alone; 0: not known */
    uint64_t n_steps;                          /* also the last ticket */
    bool half;                                 /* the last one still lacks its choice */
    struct sl_cuda_graph graph[SL_CUDA_GRAPHS];
    int32_t n_graphs;
    struct sl_cuda_clock clock[SL_CUDA_CLOCKS]; /* by ticket */
    struct sl_device_times times;
    uint64_t n_idle; /* passes of a model that drafts before which nothing ran, so long in all */
    double idle_ms;
    struct sl_cuda_fuse fuse;
    struct sl_cuda_host *host;   /* NULL: no row ever goes there */
    const int32_t *n_pad;        /* device: rows of padding of the running step */
    struct sl_cuda_pages *pages; /* NULL: no page is ever copied */
    struct sl_cuda_later later;
    bool recording;       /* what is enqueued is recorded, not run, */
    int32_t n_host_calls; /* and so many calls of the host so far */
};

/* The smallest padded size for n spans, at most max_rung. */
int32_t sl_cuda_rung(int32_t n, int32_t max_rung);

/* step.cu */
extern "C" {
uint64_t sl_cuda_steps_bytes(struct sl_backend *be, const struct sl_step_limits *lim);
int sl_cuda_steps_init(struct sl_backend *be, const struct sl_step_limits *lim,
                       struct sl_error *err);
void *sl_cuda_extra(struct sl_backend *be);
void *sl_cuda_extra_host(struct sl_backend *be);
int sl_cuda_step(struct sl_backend *be, const struct sl_step *step, sl_forward_fn forward,
                 void *arg, uint64_t *ticket, struct sl_error *err);
int sl_cuda_choose(struct sl_backend *be, const struct sl_step *step, sl_forward_fn forward,
                   void *arg, struct sl_error *err);
int sl_cuda_wait(struct sl_backend *be, uint64_t ticket, const int32_t **ids, const void **results,
                 struct sl_error *err);
void sl_cuda_times(struct sl_backend *be, struct sl_device_times *out);
}
void sl_cuda_steps_deinit(struct sl_cuda *cu);

/* wait.cu: a step's kind; waits for the step of a slot. */
int32_t sl_cuda_wait_kind(const struct sl_step *step);
void sl_cuda_await(struct sl_cuda *cu, struct sl_cuda_steps *s, struct sl_cuda_slot *slot);

/* Enqueues the step's preparation and its operations. */
void sl_cuda_forward(struct sl_cuda *cu, const struct sl_step *dev, sl_forward_fn forward,
                     void *arg);

/* graph.cu */
struct sl_cuda_graph *sl_cuda_graph_find(struct sl_cuda_steps *s, const struct sl_step *dev,
                                         sl_forward_fn forward, const void *arg);
/* Records what forward enqueues for steps like dev, without running it. A failure is logged and
 * such steps stay eager. */
void sl_cuda_graph_record(struct sl_cuda *cu, const struct sl_step *dev, sl_forward_fn forward,
                          void *arg);
extern "C" void sl_cuda_forget(struct sl_backend *be, const void *arg);
extern "C" bool sl_cuda_to_record(struct sl_backend *be);
extern "C" void sl_cuda_record(struct sl_backend *be);
void sl_cuda_graphs_deinit(struct sl_cuda_steps *s);

/* drafts.cu. Bytes of the block of steps behind a step, and of the ids that are kept of all. */
size_t sl_cuda_again_bytes(const struct sl_step_limits *lim);
size_t sl_cuda_kept_bytes(const struct sl_step_limits *lim);
/* Writes the block for the steps behind the step `first` to pinned memory and sends it; dev becomes
 * the step that all of them are. */
void sl_cuda_again_send(struct sl_cuda *cu, const struct sl_step *first, uint8_t *in,
                        struct sl_step *dev);
/* Behind the first step and each of those: keeps its ids. */
void sl_cuda_again_keep(struct sl_cuda *cu, const struct sl_step *dev);
/* Behind the last one: puts those of all where the next step finds them. */
void sl_cuda_again_leave(struct sl_cuda *cu, const struct sl_step *first);

/* host.cu. Calls of the host in the middle of a step. create: *out is to be destroyed even if it
 * fails. */
int sl_cuda_host_create(struct sl_cuda *cu, const struct sl_step_limits *lim,
                        struct sl_cuda_host **out, struct sl_error *err);
void sl_cuda_host_destroy(struct sl_cuda *cu, struct sl_cuda_host *h); /* NULL is fine */
/* So many calls are about to be enqueued: its thread wakes. */
void sl_cuda_host_expect(struct sl_cuda_host *h, int32_t n_calls);
void sl_cuda_host_times(const struct sl_cuda_host *h, struct sl_device_times *out); /* NULL: 0 */
extern "C" {
void sl_cuda_host_begin(struct sl_backend *be, const struct sl_host_experts *args);
void sl_cuda_host_end(struct sl_backend *be, const struct sl_host_experts *args);
}

/* pages.cu. Copies of pages between the device and the host. */
extern "C" {
int sl_cuda_pin(int device, void *p, size_t n_bytes, struct sl_error *err);
void sl_cuda_unpin(int device, void *p);
int sl_cuda_number(struct sl_backend *be);
int sl_cuda_pages_init(struct sl_backend *be, struct sl_error *err);
int sl_cuda_page_copy(struct sl_backend *be, enum sl_page_way way, void *dst, const void *src,
                      size_t n_bytes, struct sl_error *err);
int sl_cuda_pages_follow(struct sl_backend *be, enum sl_page_way way, struct sl_error *err);
int sl_cuda_pages_send(struct sl_backend *be, struct sl_error *err);
int sl_cuda_pages_over(struct sl_backend *be, bool wait, struct sl_page_counts *over,
                       struct sl_error *err);
int sl_cuda_pages_await(struct sl_backend *be, const struct sl_page_counts *n,
                        struct sl_error *err);
}
void sl_cuda_pages_deinit(struct sl_cuda *cu, struct sl_cuda_steps *s);
/* Between pinned and device memory, as cudaMemcpyAsync on the stream of steps, but not behind
 * copies of pages. what: for an error. */
void sl_cuda_small_copy(struct sl_cuda *cu, enum sl_page_way way, void *dst, const void *src,
                        size_t n_bytes, const char *what);

/* load.cu */
extern "C" int sl_cuda_load_end(struct sl_backend *be, struct sl_error *err);
/* Makes what an upload needs, so that later ones do not allocate. False: the error is recorded. */
bool sl_cuda_stager_ready(struct sl_cuda *cu);
void sl_cuda_stager_destroy(struct sl_cuda *cu);

#endif
