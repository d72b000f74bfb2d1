/* SPDX-License-Identifier: MIT
 * device.h - what a backend that runs behind its host offers besides the operations: the end of
 * loading, memory figures, and steps that are enqueued now and waited for later.
 *
 * A step computes logits and chooses tokens from them. What the choice needs may come later than
 * what the logits need: then the step is enqueued in two parts, the second while the first runs.
 *
 * Engine thread only. A step may be enqueued while the one before it runs, not more, unless limits
 * have a depth: step N's results are read before step N + depth is enqueued. Nothing here allocates
 * after steps_init, except the runtime's own memory for a recorded step, once per size. This header
 * compiles as C11 and C++17.
 */
#ifndef SL_OPS_DEVICE_H
#define SL_OPS_DEVICE_H

#include "base/limits.h"
#include "ops/ops.h"
#include "ops/sample.h"

struct sl_device_memory {
    uint64_t total_bytes, free_bytes; /* of the device, whoever uses it */
    uint64_t own_bytes;               /* taken through this backend now */
};

/* What events on the device say of steps that were enqueued while the one before ran. */
struct sl_device_times {
    uint64_t n_steps;
    double busy_ms, gap_ms; /* from a step's first copy to its last; from the last step's end on.
                               Between the parts of a step it waits, and a stage for the one before
                               it: that counts as gap */
    double draft_ms;        /* steps of a model that drafts that give ids, */
    uint64_t n_again;       /* steps that followed them (struct sl_step), and what they took */
    double again_ms;
    /* Of calls of the host in the middle of steps (struct sl_host_experts), all there were. */
    uint64_t n_host_calls, n_host_rows;
    double host_ms; /* that the host computed for them */
};

/* What attention of a layer has. Layers of one model may differ. */
struct sl_heads {
    int32_t n_heads, n_kv_heads, head_dim, v_dim;
    int32_t latent; /* 1: values are a part of keys (struct sl_op_attention.v_in_k); 0: not;
                       SL_HEADS_ROWS: of struct sl_op_compressed_attention */
    int32_t chosen; /* positions that a row sees at most, which each key head chooses for itself; 0:
                       it sees all */
};

#define SL_HEADS_ROWS 2

#define SL_DEVICE_DEPTH       (SL_MAX_STAGES + 1)
#define SL_MAX_HEAD_KINDS     8    /* kinds of layers by their heads, on a device */
#define SL_DEVICE_EXPERT_ROWS 4096 /* that experts of a device have at once */
#define SL_DEVICE_INDEX_HEADS 128  /* queries of an index on a device (sl_op_index_select), */
#define SL_DEVICE_INDEX_DIM   128  /* and their values */

struct sl_step_limits {
    int32_t max_tokens, max_spans, max_logits;
    int32_t depth;     /* steps enqueued and not read, 0: 2; at most SL_DEVICE_DEPTH */
    int32_t max_width; /* tokens of a span in a decode step, 0 = 1: what may be drafted, and one */
    int32_t max_table; /* page ids of all spans of a step, in one group of pages */
    int32_t n_groups;
    int32_t block_size;
    /* A page of each pool that no sequence ever has. Decode steps, in which each span has the same
     * few tokens and wants all rows, are padded to a ladder of sizes, and padding reads and writes
     * there. Below 0: the pool has none, as it is one of states; those of padding are stored
     * nowhere. 0 in the first: none, then no step is padded or recorded. */
    int32_t scratch_pages[SL_MAX_KV_GROUPS];
    int32_t max_context; /* positions of a sequence */
    int32_t n_kinds;     /* 0: no layer has attention */
    struct sl_heads heads[SL_MAX_HEAD_KINDS];
    int32_t draft_kind;     /* of the first layer of a model that drafts */
    int32_t max_again;      /* steps of its that follow a step; 0: there is none */
    int32_t max_block_rows; /* of its steps that want all rows (blocks); 0: there is none */
    bool whole;             /* rows see keys behind their own in every layer */
    uint32_t param_bytes;   /* of a wanted row, what the sampler is told; 0: nothing */
    uint32_t result_bytes;  /* of a wanted row, what it says besides the id; 0: nothing */
    uint64_t extra_bytes;   /* most of what else may travel with a step */
    int32_t adapter_mats;   /* matrices of an adapter */
    uint64_t adapter_bytes; /* room for gate and up beside adapters; 0: no row ever has one */
    /* Rows that go to the host in the middle of a step and come back have so many values, and so
     * many experts each. 0: none ever does. */
    int32_t host_hidden, host_top_k;
};

/* Pinned host memory that steps_init takes for such rows: as floats there and back, with the
 * experts and how much each counts. */
static inline uint64_t sl_host_room_bytes(const struct sl_step_limits *lim)
{
    return (uint64_t)lim->max_tokens *
           (2 * (uint64_t)lim->host_hidden * sizeof(float) +
            (uint64_t)lim->host_top_k * (sizeof(int32_t) + sizeof(float)));
}

enum sl_step_part {
    SL_STEP_WHOLE,
    SL_STEP_FORWARD, /* up to the logits: no params, nothing extra */
    SL_STEP_CHOICE,  /* the rest: of the batch n_logits counts, params lie where extra begins */
    SL_STEP_AGAIN,   /* forward only: one of those that follow a step (n_again) */
};

/* With host pointers what a step is to do; with device pointers what forward gets. */
struct sl_step {
    struct sl_batch batch;
    enum sl_step_part part;
    const void *params;     /* [n_logits, param_bytes]; padding rows are copies of params_pad */
    const void *params_pad; /* host only; [param_bytes] */
    /* Bytes that come to lie at vt->extra: masks, lists that params point into. Lost with the next
     * step that has any. */
    const void *extra;
    uint64_t extra_bytes;
    /* Steps of different variants may launch different operations; within a variant only the
     * numbers of tokens, spans and logits matter. */
    uint32_t variant;
    bool want_results; /* host only: somebody will read results */
    /* Host only, of a step that others compute too, who wait for one another on their devices: it
     * is not recorded before record is called, as recording may wait for the device. */
    bool record_later;
    /* Of a model that drafts: page ids are of the first group, and the i-th wanted row, if any, is
     * of the i-th span. */
    bool drafts;
    /* Of such a step, where drafts come in blocks: no row is wanted, or several of each span. */
    bool blocks;
    /* Of such a step: its pages are those of the model drafted for, so that it has all groups'
     * tables; steps that follow it are at its own positions. */
    bool borrows;
    /* Of such a step: so many steps follow it of one token of each span with a wanted row, at the
     * position behind that row: the token that the row, then that the step before chose. */
    int32_t n_again;
    int32_t *ids;  /* [n_logits] forward only: what was chosen. The next step's tokens[i] < 0 mean
                      ids[-1 - tokens[i]]; behind steps with n_again those of all, step by step. */
    void *results; /* [n_logits, result_bytes] forward only */
};

#define SL_BEST_ROOM 256 /* bytes for each row of a choice by ranks */

/* The best token of each row, of which every rank has some columns. */
struct sl_best_ids {
    struct sl_rank *rank;
    const float *logits; /* [n, n_cols], this rank's */
    int32_t n, n_cols;
    int32_t first; /* the token of column 0 */
    void *room;    /* n * SL_BEST_ROOM bytes, aligned to 8 */
};

/* Rows of a step in host memory, for as long as the call with them lasts. */
struct sl_host_rows {
    int32_t n;              /* without padding */
    const float *x;         /* [n, h] */
    const int32_t *experts; /* [n, top_k] */
    const float *weights;   /* [n, top_k] */
    float *out;             /* [n, h] to be filled */
};

/* Experts whose weights are the host's: rows of activations go there in the middle of a step, and
 * come back as sums. The device writes and reads the host's memory and waits for it, so that a
 * recorded step has them like any other operation. */
struct sl_host_experts {
    const void *x; /* [T, h] activations */
    int32_t n, h, top_k;
    const int32_t *experts; /* [T, top_k] */
    const float *weights;   /* [T, top_k] */
    /* Called with the rows by a thread of the backend, one call at a time. */
    void (*fn)(void *arg, const struct sl_host_rows *rows);
    void *arg;
    const float *shared;       /* [T, h] to which the host's sums are added, or NULL: 0; */
    const float *shared_logit; /* [T] times the sigmoid of this, or NULL */
    float *out;                /* [T, h] */
};

/* Copies of pages between the device and the host, beside the steps. Those of one way are over in
 * the order in which they were enqueued, and are counted in it, though they may run beside others.
 */
enum sl_page_way { SL_PAGES_OUT, SL_PAGES_IN, SL_N_PAGE_WAYS };

struct sl_page_counts {
    uint64_t n[SL_N_PAGE_WAYS];
};

/* Enqueues the operations of a step. May be called twice for one step: to run and to record. */
typedef void (*sl_forward_fn)(void *arg, const struct sl_step *step);

struct sl_device_vt {
    /* Can attention run with these heads, over pages of this format? */
    bool (*supports)(struct sl_backend *be, const struct sl_heads *heads, enum sl_dtype kv_dtype);
    /* Bytes of sl_op_sample.scratch for calls of up to max_n rows. */
    size_t (*sample_scratch)(struct sl_backend *be, int32_t max_n, int32_t n_vocab);
    /* Enqueues the choice of tokens; like an operation it neither waits nor fails. */
    void (*sample)(struct sl_backend *be, const struct sl_op_sample *args);
    /* Matrices of about n_bytes in all are made next: memory is taken for many at a time. */
    void (*load_begin)(struct sl_backend *be, uint64_t n_bytes);
    /* Everything uploaded and packed has arrived; frees what only loading needs. */
    int (*load_end)(struct sl_backend *be, struct sl_error *err);
    /* Copies device memory to the host when everything before is done. Not for the step loop. */
    int (*download)(struct sl_backend *be, void *dst, const void *src, size_t n_bytes,
                    struct sl_error *err);
    int (*memory)(struct sl_backend *be, struct sl_device_memory *out, struct sl_error *err);
    /* Bytes of device memory steps_init would take. */
    uint64_t (*steps_bytes)(struct sl_backend *be, const struct sl_step_limits *lim);
    /* Once, before the first step. */
    int (*steps_init)(struct sl_backend *be, const struct sl_step_limits *lim,
                      struct sl_error *err);
    /* Where a step's extra bytes lie on the device, always. NULL: the limits have none. */
    void *(*extra)(struct sl_backend *be);
    /* Host memory in which the extra of the next part may be put, so that it is not copied once
     * more. Waits if the step before the last one was not waited for. */
    void *(*extra_host)(struct sl_backend *be);
    /* Copies the step's arrays, which may be reused when it returns, and enqueues the step: by
     * forward, or by replaying what forward enqueued for an earlier step of this arg and size. */
    int (*step)(struct sl_backend *be, const struct sl_step *step, sl_forward_fn forward, void *arg,
                uint64_t *ticket, struct sl_error *err);
    /* The choice of a step enqueued as SL_STEP_FORWARD, before anything else of steps. */
    int (*choose)(struct sl_backend *be, const struct sl_step *step, sl_forward_fn forward,
                  void *arg, struct sl_error *err);
    /* Sleeps until that step is done; ids [1 + n_again, n_logits] and results [n_logits,
     * result_bytes] stay until depth steps more are enqueued. Either may be NULL; a step
     * without wanted rows need not be waited for. */
    int (*wait)(struct sl_backend *be, uint64_t ticket, const int32_t **ids, const void **results,
                struct sl_error *err);
    /* Sums since steps_init over the steps that were waited for. */
    void (*times)(struct sl_backend *be, struct sl_device_times *out);
    /* In a forward: the rows go to the host; out becomes what it made of them. What is enqueued
     * between the two runs beside the host. The next call begins after the last one's end. */
    void (*host_begin)(struct sl_backend *be, const struct sl_host_experts *args);
    void (*host_end)(struct sl_backend *be, const struct sl_host_experts *args);
    /* Drops what was recorded for arg, whose memory goes away. Waits for the device. */
    void (*forget)(struct sl_backend *be, const void *arg);
    /* In a forward, on every rank, as a gather: the ids [n] that rank 0's choice left (struct
     * sl_step.ids) arrive where the other ranks' steps find the ids of the step before. */
    void (*share_ids)(struct sl_backend *be, struct sl_rank *rank, int32_t n);
    /* In its place, where no rank has all columns of the logits and each row takes its best token
     * (-1: NaN or +infinity, or all are -infinity): every rank finds all ids. */
    void (*best_ids)(struct sl_backend *be, const struct sl_best_ids *a);
    /* Of the last step with record_later: is it to be recorded? Then record does that. To be called
     * when all that it waits for on the device is enqueued. */
    bool (*to_record)(struct sl_backend *be);
    void (*record)(struct sl_backend *be);

    /* ---- copies of pages */
    /* Host memory that copies of pages read and write while the host does something else. Any
     * thread, whatever becomes of the backend; device: its number. */
    int (*pin)(int device, void *p, size_t n_bytes, struct sl_error *err);
    void (*unpin)(int device, void *p);
    int (*number)(struct sl_backend *be);
    /* Once, behind steps_init. */
    int (*pages_init)(struct sl_backend *be, struct sl_error *err);
    /* Enqueues the copy of a page, behind all that was enqueued of steps. Of memory that is not
     * pinned the call waits for it. */
    int (*page_copy)(struct sl_backend *be, enum sl_page_way way, void *dst, const void *src,
                     size_t n_bytes, struct sl_error *err);
    /* Copies of this way run behind all those enqueued so far, of either. */
    int (*pages_follow)(struct sl_backend *be, enum sl_page_way way, struct sl_error *err);
    /* Once behind some copies, and before the next step: their end can be seen from now on. */
    int (*pages_send)(struct sl_backend *be, struct sl_error *err);
    /* How many are over; wait: sleeps until all are. */
    int (*pages_over)(struct sl_backend *be, bool wait, struct sl_page_counts *over,
                      struct sl_error *err);
    /* Steps that are enqueued from now on run behind the first n copies of each way. */
    int (*pages_await)(struct sl_backend *be, const struct sl_page_counts *n, struct sl_error *err);
};

#endif
