/* SPDX-License-Identifier: MIT
 * lora_slots.h - which adapter lies in which of a bounded number of slots elsewhere: in a device's
 * memory, or in that of ranks in other processes. The one that was not used for longest gives way.
 *
 * Engine thread only, but for init and deinit. Nothing is allocated after init.
 */
#ifndef SL_ENGINE_LORA_SLOTS_H
#define SL_ENGINE_LORA_SLOTS_H

#include "base/err.h"
#include "ops/lora.h"

#include <stdbool.h>

struct sl_lora_slot {
    uint64_t id; /* of struct sl_lora_weights, 0: free */
    uint64_t last_step;
};

struct sl_lora_slots {
    int32_t n;
    struct sl_lora_slot *slots; /* [n] */
    uint64_t n_steps;
};

SL_MUST_CHECK int sl_lora_slots_init(struct sl_lora_slots *s, int32_t n, struct sl_error *err);
void sl_lora_slots_deinit(struct sl_lora_slots *s);
/* What lies there is lost. */
void sl_lora_slots_clear(struct sl_lora_slots *s);
/* A step begins, of rows of at most n adapters: those that are there are kept for it. */
void sl_lora_slots_step(struct sl_lora_slots *s, const struct sl_lora_rows *rows);
/* The slot of an adapter of this step. *fresh: it is not there yet, the caller puts it there. */
int32_t sl_lora_slots_of(struct sl_lora_slots *s, const struct sl_lora_weights *w, bool *fresh);

#endif
