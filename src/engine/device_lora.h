/* SPDX-License-Identifier: MIT
 * device_lora.h - room for adapters in the memory of a device: slots of one size, and a table of
 * where the matrices of each lie. Whose adapter is in which slot is the device runner's to know,
 * and the same on all ranks of a model; each rank has the weights that are its own.
 *
 * Engine thread only, but for init and deinit. Nothing is allocated after init.
 */
#ifndef SL_ENGINE_DEVICE_LORA_H
#define SL_ENGINE_DEVICE_LORA_H

#include "base/err.h"
#include "ops/device.h"
#include "ops/lora.h"

struct sl_device_lora {
    struct sl_backend *be;
    int32_t n_slots, n_mats;
    uint64_t slot_bytes;
    uint8_t *mem;              /* device: [n_slots] pieces of slot_bytes */
    struct sl_lora_mat *table; /* device: [n_slots, n_mats] */
    struct sl_lora_mat *in;    /* host: [n_mats] */
};

/* Bytes of device memory. */
uint64_t sl_device_lora_bytes(int32_t n_slots, int32_t n_mats, uint64_t slot_bytes);
/* l is zeroed; deinit also after an error. */
SL_MUST_CHECK int sl_device_lora_init(struct sl_device_lora *l, struct sl_backend *be,
                                      int32_t n_slots, int32_t n_mats, uint64_t slot_bytes,
                                      struct sl_error *err);
void sl_device_lora_deinit(struct sl_device_lora *l);
/* Copies weights to a slot, behind the steps that were enqueued with what it had. */
void sl_device_lora_put(struct sl_device_lora *l, const struct sl_lora_weights *w, int32_t slot);

#endif
