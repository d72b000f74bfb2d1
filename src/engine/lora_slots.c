/* SPDX-License-Identifier: MIT */
#include "engine/lora_slots.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

int sl_lora_slots_init(struct sl_lora_slots *s, int32_t n, struct sl_error *err)
{
    SL_ASSERT(n >= 0);
    *s = (struct sl_lora_slots){.n = n};
    s->slots = sl_calloc((size_t)n + 1, sizeof *s->slots);
    return s->slots != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for %d adapters", n);
}

void sl_lora_slots_deinit(struct sl_lora_slots *s)
{
    sl_free(s->slots);
    *s = (struct sl_lora_slots){.n = 0};
}

void sl_lora_slots_clear(struct sl_lora_slots *s)
{
    if (s->n > 0)
        memset(s->slots, 0, (size_t)s->n * sizeof *s->slots);
}

void sl_lora_slots_step(struct sl_lora_slots *s, const struct sl_lora_rows *rows)
{
    SL_ASSERT(s->n > 0 && rows->n_segs >= 0);
    s->n_steps++;
    for (int32_t i = 0; i < rows->n_segs; i++)
        for (int32_t k = 0; k < s->n; k++)
            if (s->slots[k].id == rows->weights[rows->segs[i].adapter]->id)
                s->slots[k].last_step = s->n_steps;
}

int32_t sl_lora_slots_of(struct sl_lora_slots *s, const struct sl_lora_weights *w, bool *fresh)
{
    int32_t oldest = 0;
    SL_ASSERT(s->n > 0 && w->id != 0);
    *fresh = false;
    for (int32_t i = 0; i < s->n; i++) {
        struct sl_lora_slot *slot = &s->slots[i];
        if (slot->id == w->id) {
            SL_ASSERT(slot->last_step == s->n_steps);
            return i;
        }
        if (slot->last_step < s->slots[oldest].last_step)
            oldest = i;
    }
    SL_ASSERT(s->slots[oldest].last_step < s->n_steps); /* a step has n adapters at most */
    s->slots[oldest] = (struct sl_lora_slot){w->id, s->n_steps};
    *fresh = true;
    return oldest;
}
