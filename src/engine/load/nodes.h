/* SPDX-License-Identifier: MIT
 * nodes.h - ranks, or stages, in processes of their own: what a configuration says of them, who
 * they are, and what rank 0 tells the others about the engine's sizes.
 */
#ifndef SL_ENGINE_NODES_H
#define SL_ENGINE_NODES_H

#include "dist/note.h"
#include "engine/load/memory_plan.h"
#include "engine/rank_pages.h"
#include "engine/rank_step.h"

static inline bool sl_nodes_several(const struct sl_engine_config *cfg)
{
    return cfg->nnodes > 1;
}

struct sl_nodes_secret {
    char *data;
    size_t n;
};

struct sl_rank_plan { /* in a note: other processes have the same build */
    struct sl_rank_bounds bounds;
    int32_t served; /* sl_model_set_context */
    float skip_softmax;
    int32_t n_taps, taps[SL_MAX_TAPS]; /* hidden rows that a drafter of rank 0 reads */
    int32_t top_pages;
    bool moves_pages; /* to rank 0 and back, which has tiers */
    char kv_dtype[32], kv_skip[SL_MAX_KV_SKIP + 1];
    bool kv_skips; /* kv_skip is not NULL */
    struct sl_hash128 layout;
};

/* Of the link: the most that a rank has of what is gathered, or a stage hands over. pages: NULL:
 * none move. */
size_t sl_nodes_room_bytes(const struct sl_model *model, struct sl_backend *be,
                           const struct sl_run_config *run, const struct sl_rank_pages *pages);
/* Bytes of the longest message to another rank. */
size_t sl_nodes_message_bytes(const struct sl_model *model, const struct sl_rank_bounds *b,
                              const struct sl_rank_pages *pages);
/* Names the flag that cannot be. */
SL_MUST_CHECK int sl_nodes_check(const struct sl_engine_config *cfg, struct sl_error *err);
const char *sl_nodes_addr(const struct sl_engine_config *cfg);
int sl_nodes_port(const struct sl_engine_config *cfg);
int32_t sl_nodes_start_ms(const struct sl_engine_config *cfg); /* to wait for one another */
SL_MUST_CHECK int sl_nodes_secret(const struct sl_engine_config *cfg, struct sl_nodes_secret *out,
                                  struct sl_error *err);
void sl_nodes_identity(const struct sl_model *model, const struct sl_ckpt *ckpt,
                       struct sl_backend *be, const struct sl_engine_config *cfg,
                       struct sl_rank_identity *out);
/* Of pages, as a rank computes it from a plan's formats. */
struct sl_hash128 sl_nodes_layout(const struct sl_kv_layout *kv);
/* draft: of rank 0, or NULL. */
void sl_nodes_plan(const struct sl_model *model, const struct sl_model *draft,
                   const struct sl_memory_plan *p, const struct sl_engine_config *cfg,
                   struct sl_rank_plan *out);

#endif
