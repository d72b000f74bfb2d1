/* SPDX-License-Identifier: MIT
 * eplb.h - keeps the load of ranks even that have experts each: counts which experts rows go to,
 * decides from time to time where experts should be (models/eplb.h), loads what that takes beside
 * the steps, and switches a layer between two steps.
 *
 * All ranks route all rows, so all count the same and decide the same. With ranks in processes each
 * has one of these; they only tell each other, in a gather of one number before a step, how many
 * layers they have ready, and then all switch at the same step.
 *
 * Threads: the engine's (of a rank in a process: the one that serves steps) calls all of this. A
 * thread of its own decides and loads; it has one layer's experts in memory beside those in use.
 */
#ifndef SL_ENGINE_EPLB_H
#define SL_ENGINE_EPLB_H

#include "models/model.h"
#include "sluice.h"

struct sl_eplb_config {    /* as vLLM's --eplb-config */
    int32_t window_size;   /* steps that loads are counted over, */
    int32_t step_interval; /* at the end of so many */
    int32_t num_redundant_experts;
    bool log_balancedness;
};

/* on false: there is no balancing. The error names what of the configuration cannot be. */
SL_MUST_CHECK int sl_eplb_config_read(const struct sl_engine_config *cfg, bool *on,
                                      struct sl_eplb_config *out, struct sl_error *err);

struct sl_eplb;

struct sl_eplb_parts { /* of the model, that are here */
    int n;
    struct sl_model *models[SL_MAX_RANKS];
    struct sl_run *runs[SL_MAX_RANKS];
    bool apart; /* the other ranks are elsewhere: they are met in a gather */
};

/* beside: a CPU backend like the model's, with a thread of its own; it outlives this. */
SL_MUST_CHECK int sl_eplb_create(const struct sl_eplb_config *cfg,
                                 const struct sl_eplb_parts *parts, struct sl_backend *beside,
                                 struct sl_eplb **out, struct sl_error *err);
void sl_eplb_destroy(struct sl_eplb *e); /* before its runs and models; NULL is fine */
/* Before every step of the model, on all ranks; allocates nothing. With parts apart the link is
 * there. */
void sl_eplb_step(struct sl_eplb *e);
/* Between steps. */
void sl_eplb_stats(const struct sl_eplb *e, struct sl_eplb_stats *out);
/* Any thread: grows while experts are loaded. */
uint64_t sl_eplb_progress(const struct sl_eplb *e);

/* Where parts are apart: rank 0 says where experts are before the first step of a meeting, and
 * which ranks it does without, a bit each, and all start counting anew. Bytes of that message, */
size_t sl_eplb_message_bytes(const struct sl_model *m);
/* which rank 0 writes, */
size_t sl_eplb_put(struct sl_eplb *e, uint32_t absent, uint8_t *out);
/* and another one reads, with those that its meeting is without: it returns when its experts are
 * there. SL_EFORMAT: no rank 0 says that. */
SL_MUST_CHECK int sl_eplb_get(struct sl_eplb *e, const uint8_t *data, size_t n, uint32_t absent,
                              struct sl_error *err);

#endif
