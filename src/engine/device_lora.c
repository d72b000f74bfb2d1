/* SPDX-License-Identifier: MIT */
#include "engine/device_lora.h"

#include "base/check.h"
#include "base/sys.h"

static uint64_t table_bytes(int32_t n_slots, int32_t n_mats)
{
    return (uint64_t)n_slots * (uint64_t)n_mats * sizeof(struct sl_lora_mat);
}

uint64_t sl_device_lora_bytes(int32_t n_slots, int32_t n_mats, uint64_t slot_bytes)
{
    return (uint64_t)n_slots * slot_bytes + table_bytes(n_slots, n_mats);
}

int sl_device_lora_init(struct sl_device_lora *l, struct sl_backend *be, int32_t n_slots,
                        int32_t n_mats, uint64_t slot_bytes, struct sl_error *err)
{
    SL_ASSERT(l->mem == NULL && n_slots > 0 && n_mats > 0);
    *l = (struct sl_device_lora){
        .be = be, .n_slots = n_slots, .n_mats = n_mats, .slot_bytes = slot_bytes};
    l->in = sl_calloc((size_t)n_mats, sizeof *l->in);
    l->mem = be->vt->alloc(be, (size_t)n_slots * slot_bytes);
    l->table = be->vt->alloc(be, table_bytes(n_slots, n_mats));
    return l->in != NULL && l->mem != NULL && l->table != NULL
               ? 0
               : sl_fail(err, SL_ENOMEM, "out of device memory for %d adapters of %.2f MB", n_slots,
                         (double)slot_bytes / 1e6);
}

void sl_device_lora_deinit(struct sl_device_lora *l)
{
    if (l->table != NULL)
        l->be->vt->free(l->be, l->table, table_bytes(l->n_slots, l->n_mats));
    if (l->mem != NULL)
        l->be->vt->free(l->be, l->mem, (size_t)l->n_slots * l->slot_bytes);
    sl_free(l->in);
    *l = (struct sl_device_lora){.be = NULL};
}

static const void *moved(const struct sl_lora_weights *w, const void *p, uint8_t *to)
{
    return p == NULL ? NULL : to + ((const uint8_t *)p - (const uint8_t *)w->block);
}

void sl_device_lora_put(struct sl_device_lora *l, const struct sl_lora_weights *w, int32_t slot)
{
    uint8_t *to = l->mem + (size_t)slot * l->slot_bytes;
    SL_ASSERT(w->n_bytes <= l->slot_bytes && w->dtype == SL_DTYPE_BF16);
    SL_ASSERT(slot >= 0 && slot < l->n_slots && w->n_mats == l->n_mats);
    for (int32_t i = 0; i < w->n_mats; i++) {
        l->in[i] = w->mats[i];
        l->in[i].a = moved(w, w->mats[i].a, to);
        l->in[i].b = moved(w, w->mats[i].b, to);
    }
    l->be->vt->upload(l->be, to, w->block, w->n_bytes);
    l->be->vt->upload(l->be, l->table + (size_t)slot * (size_t)w->n_mats, l->in,
                      (size_t)w->n_mats * sizeof *l->in);
}
