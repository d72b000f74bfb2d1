/* SPDX-License-Identifier: MIT
 * adapters.h - the adapters of an engine by name: which are known, which have their weights in
 * memory, who uses them.
 *
 * Any thread; files are read outside the lock. At most max_resident adapters keep their weights in
 * memory; beyond that those go that nobody uses, least recently used first, and are read again when
 * they are asked for. The weights of an adapter never change: another content has another id. An
 * adapter lives as long as it is listed or a request has it, and the store as long as its engine or
 * any adapter.
 */
#ifndef SL_ENGINE_ADAPTERS_H
#define SL_ENGINE_ADAPTERS_H

#include "models/lora.h"

#define SL_MAX_ADAPTER_NAME 256 /* bytes */

struct sl_adapters;

struct sl_adapters_config {
    const struct sl_model *model; /* until sl_adapters_close or sl_adapters_use */
    int32_t max_rank;             /* of any adapter */
    int32_t max_active;           /* different ones in one step */
    int32_t max_resident;         /* in memory, >= max_active */
    bool bf16;                    /* weights are for a device */
};

SL_MUST_CHECK int sl_adapters_create(const struct sl_adapters_config *cfg, struct sl_adapters **out,
                                     struct sl_error *err);
/* The engine lets go: nothing can be loaded any more. NULL is fine. */
void sl_adapters_close(struct sl_adapters *s);
/* The same model with its weights loaded again, or NULL while it has none: until the next call
 * adapters cannot be read from their files then (SL_EASLEEP). Waits for a thread that reads one.
 * s may be NULL. */
void sl_adapters_use(struct sl_adapters *s, const struct sl_model *model);
const struct sl_adapters_config *sl_adapters_config(const struct sl_adapters *s);
void sl_adapters_stats(struct sl_adapters *s, struct sl_stats *out);

/* One more user. */
struct sl_adapter *sl_adapter_ref(struct sl_adapter *a);
/* The name of the adapter with this id, if it may be asked for under it. */
bool sl_adapters_name(struct sl_adapters *s, uint64_t id, char name[SL_MAX_ADAPTER_NAME + 1]);
/* While somebody uses it. */
const struct sl_lora_weights *sl_adapter_weights(const struct sl_adapter *a);

#endif
