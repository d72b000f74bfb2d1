/* SPDX-License-Identifier: MIT
 * A drafter without a matrix of logits of its own reads its target's, once for each draft: of MTP
 * at the shape of Llama 3.1 8B, with 128,256 tokens, two thirds of what a draft reads. Which token
 * is the most likely one need not be exact there, as no output depends on it: where the matrix is
 * large, the drafter has a copy of it in 8 bits.
 */
#include "base/check.h"
#include "base/sys.h"
#include "models/internal.h"
#include "quant/dtype.h"
#include "quant/q8_0.h"

#include <pthread.h>

#define LEAST_BYTES (16u << 20) /* less is read in a few microseconds */
#define MAX_THREADS 16          /* that make the copy: one takes some seconds */

struct head_part { /* rows that a thread copies */
    const struct sl_ckpt_tensor *t;
    int64_t from, to;
    float *row; /* room for one */
    uint8_t *out;
    pthread_t thread;
    bool started;
};

/* The matrix in the file, as its rows are read one after the other; NULL: none is copied. */
static const struct sl_ckpt_tensor *head_of_target(const struct sl_model *m)
{
    const struct sl_param *p = sl_param(m, 0, SL_SLOT_HEAD);
    if (!sl_is_draft(m) || p->desc == NULL || p->shared == NULL)
        return NULL;
    if (p->shared->src == NULL) /* tied */
        p = sl_param(m->target, 0, SL_SLOT_EMBED);
    else
        p = p->shared;
    const struct sl_ckpt_tensor *t = p->src;
    if (t->data == NULL || p->int4 != NULL || sl_apart(p) || sl_turned(p) ||
        t->dims[1] % SL_Q8_0_ELEMS != 0 || t->n_bytes < LEAST_BYTES)
        return NULL;
    const bool wide =
        t->dtype == SL_DTYPE_BF16 || t->dtype == SL_DTYPE_F16 || t->dtype == SL_DTYPE_F32;
    return wide ? t : NULL;
}

static uint64_t copy_bytes(const struct sl_ckpt_tensor *t)
{
    return (uint64_t)(t->dims[0] * t->dims[1] / SL_Q8_0_ELEMS) * sizeof(struct sl_q8_0_block);
}

bool sl_draft_head_copies(const struct sl_model *m)
{
    return head_of_target(m) != NULL;
}

uint64_t sl_draft_head_bytes(const struct sl_model *m, struct sl_backend *be)
{
    const struct sl_ckpt_tensor *t = head_of_target(m);
    if (t == NULL)
        return 0;
    const uint64_t packed =
        be->vt->weight_bytes(be, SL_USE_LINEAR, SL_DTYPE_Q8_0, t->dims[0], t->dims[1]);
    return packed > 0 ? packed : copy_bytes(t);
}

static void *copy_part(void *arg)
{
    const struct head_part *p = arg;
    const struct sl_ckpt_tensor *t = p->t;
    const struct sl_dtype_info *from = sl_dtype_info(t->dtype);
    const size_t row_bytes = (size_t)(t->n_bytes / (uint64_t)t->dims[0]);
    const size_t out_bytes = (size_t)(copy_bytes(t) / (uint64_t)t->dims[0]);
    SL_ASSERT(from->to_f32 != NULL && row_bytes > 0 && p->to <= t->dims[0]);
    for (int64_t i = p->from; i < p->to; i++) {
        from->to_f32(t->data + (size_t)i * row_bytes, p->row, t->dims[1]);
        sl_q8_0_from_f32(p->row, p->out + (size_t)i * out_bytes, t->dims[1]);
    }
    return NULL;
}

/* rows: room for one of each thread. What no thread is found for is copied here. */
static void copy_rows(const struct sl_ckpt_tensor *t, int n_threads, float *rows, uint8_t *out)
{
    struct head_part parts[MAX_THREADS];
    struct sl_error err;
    SL_ASSERT(n_threads >= 1 && n_threads <= MAX_THREADS);
    for (int i = 0; i < n_threads; i++) {
        struct head_part *p = &parts[i];
        *p = (struct head_part){.t = t,
                                .from = t->dims[0] * i / n_threads,
                                .to = t->dims[0] * (i + 1) / n_threads,
                                .row = rows + (size_t)i * (size_t)t->dims[1],
                                .out = out};
        p->started =
            i + 1 < n_threads && sl_thread_create(&p->thread, copy_part, p, "sl-head", &err) == 0;
        if (!p->started)
            copy_part(p);
    }
    for (int i = 0; i < n_threads; i++)
        if (parts[i].started)
            pthread_join(parts[i].thread, NULL);
}

int sl_draft_head_load(struct sl_model *m, struct sl_error *err)
{
    const struct sl_ckpt_tensor *t = head_of_target(m);
    if (t == NULL)
        return 0;
    struct sl_param *p = sl_param(m, 0, SL_SLOT_HEAD);
    const int n_threads = SL_MAX(SL_MIN(sl_cpu_count(), MAX_THREADS), 1);
    float *rows = sl_calloc((size_t)n_threads * (size_t)t->dims[1], sizeof *rows);
    SL_ASSERT(!p->loaded && p->copy == NULL);
    p->own_bytes = (size_t)copy_bytes(t);
    p->copy = sl_aligned_alloc(p->own_bytes);
    int rc = 0;
    if (rows == NULL || p->copy == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a drafter's copy of \"%s\"", t->name);
    else
        copy_rows(t, n_threads, rows, p->copy);
    sl_free(rows);
    if (rc == 0)
        rc = m->be->vt->weight_create(m->be, SL_USE_LINEAR, SL_DTYPE_Q8_0, t->dims[0], t->dims[1],
                                      p->copy, NULL, &p->mat, err);
    p->loaded = rc == 0;
    if (p->copy != NULL && (rc != 0 || p->mat.owned)) {
        sl_aligned_free(p->copy, p->own_bytes);
        p->copy = NULL;
    }
    return rc;
}
