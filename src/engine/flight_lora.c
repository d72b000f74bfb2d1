/* SPDX-License-Identifier: MIT */
#include "engine/flight_lora.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/adapters.h"
#include "engine/request.h"

#include <string.h>

static int init_list(struct sl_lora_list *l, int32_t n_rows, struct sl_error *err)
{
    l->adapter = sl_calloc((size_t)n_rows, sizeof *l->adapter);
    l->scale = sl_calloc((size_t)n_rows, sizeof *l->scale);
    l->segs = sl_calloc((size_t)n_rows, sizeof *l->segs);
    return l->adapter != NULL && l->scale != NULL && l->segs != NULL
               ? 0
               : sl_fail(err, SL_ENOMEM, "out of memory for the adapters of %d rows", n_rows);
}

static void deinit_list(struct sl_lora_list *l)
{
    sl_free(l->segs);
    sl_free(l->scale);
    sl_free(l->adapter);
}

int sl_flight_lora_init(struct sl_flight_lora *l, int32_t max_adapters, int32_t max_tokens,
                        int32_t max_logits, int32_t max_seqs, struct sl_error *err)
{
    SL_ASSERT(max_adapters >= 1 && max_tokens >= max_seqs && max_logits >= max_seqs);
    int rc = init_list(&l->tokens, max_tokens, err);
    if (rc == 0)
        rc = init_list(&l->logits, max_logits, err);
    l->max_adapters = max_adapters;
    l->weights = sl_calloc((size_t)max_adapters, sizeof(struct sl_lora_weights *));
    l->order = sl_calloc((size_t)max_seqs, sizeof(struct sl_seq *));
    l->index = sl_calloc((size_t)max_seqs, sizeof *l->index);
    l->next = sl_calloc((size_t)max_adapters + 2, sizeof *l->next);
    if (rc == 0 && (l->weights == NULL || l->order == NULL || l->index == NULL || l->next == NULL))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for %d adapters in a step", max_adapters);
    return rc;
}

void sl_flight_lora_deinit(struct sl_flight_lora *l)
{
    sl_free(l->next);
    sl_free(l->index);
    sl_free(l->order);
    sl_free(l->weights);
    deinit_list(&l->logits);
    deinit_list(&l->tokens);
    *l = (struct sl_flight_lora){0};
}

static const struct sl_lora_weights *weights_of(const struct sl_seq *seq)
{
    SL_ASSERT(((const struct sl_rseq *)seq)->req->adapter != NULL);
    return sl_adapter_weights(((const struct sl_rseq *)seq)->req->adapter);
}

/* Its number in the step, -1: none. */
static int32_t index_of(struct sl_flight_lora *l, const struct sl_seq *seq)
{
    if (seq->adapter == 0)
        return -1;
    for (int32_t i = l->n_weights - 1; i >= 0; i--)
        if (l->weights[i]->id == seq->adapter)
            return i;
    SL_ASSERT(l->n_weights < l->max_adapters); /* the scheduler sees to it */
    l->weights[l->n_weights] = weights_of(seq);
    return l->n_weights++;
}

void sl_flight_lora_order(struct sl_flight_lora *l, struct sl_sched *sched)
{
    const int32_t n = sched->n_plan;
    l->any = false;
    l->n_weights = 0;
    for (int32_t i = 0; i < n && !l->any; i++)
        l->any = sched->plan[i]->adapter != 0;
    if (!l->any)
        return;
    l->tokens.rows = l->logits.rows = (struct sl_lora_rows){0};
    memset(l->next, 0, ((size_t)l->max_adapters + 2) * sizeof *l->next);
    for (int32_t i = 0; i < n; i++) { /* next[a + 2]: how many have adapter a */
        l->order[i] = sched->plan[i];
        l->index[i] = index_of(l, sched->plan[i]);
        l->next[l->index[i] + 2]++;
    }
    for (int32_t a = 1; a <= l->n_weights; a++) /* next[a + 1]: where they begin */
        l->next[a] += l->next[a - 1];
    for (int32_t i = 0; i < n; i++)
        sched->plan[l->next[l->index[i] + 1]++] = l->order[i];
    SL_ASSERT(l->next[l->n_weights] == n); /* each has its place */
    for (int32_t a = -1, i = 0; a < l->n_weights; a++)
        for (; i < l->next[a + 1]; i++)
            l->index[i] = a;
}

void sl_flight_lora_put(struct sl_flight_lora *l, struct sl_lora_list *list, int32_t first,
                        int32_t n, const struct sl_sched *sched, int32_t plan_idx)
{
    if (!l->any)
        return;
    const int32_t adapter = l->index[plan_idx];
    SL_ASSERT(first >= 0 && n >= 0 && adapter >= -1 && adapter < l->n_weights);
    const float scale = ((const struct sl_rseq *)sched->plan[plan_idx])->req->adapter_scale;
    for (int32_t i = first; i < first + n; i++) {
        list->adapter[i] = adapter;
        list->scale[i] = scale;
    }
    if (adapter < 0)
        return;
    struct sl_lora_rows *rows = &list->rows;
    rows->max_rank = SL_MAX(rows->max_rank, l->weights[adapter]->max_rank);
    while (n > 0) {
        struct sl_lora_seg *seg = rows->n_segs > 0 ? &list->segs[rows->n_segs - 1] : NULL;
        if (seg == NULL || seg->adapter != adapter || seg->n == SL_LORA_SEG) {
            seg = &list->segs[rows->n_segs++];
            *seg = (struct sl_lora_seg){.first = first, .adapter = adapter};
        }
        const int32_t more = SL_MIN(n, SL_LORA_SEG - seg->n);
        SL_ASSERT(seg->first + seg->n == first);
        seg->n += more;
        first += more;
        n -= more;
    }
}

const struct sl_lora_rows *sl_flight_lora_rows(struct sl_flight_lora *l,
                                               const struct sl_lora_list *list)
{
    struct sl_lora_rows *rows = list == &l->tokens ? &l->tokens.rows : &l->logits.rows;
    SL_ASSERT(list == &l->tokens || list == &l->logits);
    if (!l->any)
        return NULL;
    rows->segs = list->segs;
    rows->adapter = list->adapter;
    rows->scale = list->scale;
    rows->weights = l->weights;
    return rows;
}
