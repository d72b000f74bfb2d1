/* SPDX-License-Identifier: MIT
 * memory_plan.h - what serving a model will take, decided before a weight is loaded: context,
 * pages, step sizes, bytes. sl_engine_create acts on it, `sluice inspect` prints it.
 */
#ifndef SL_ENGINE_MEMORY_PLAN_H
#define SL_ENGINE_MEMORY_PLAN_H

#include "engine/device_runner.h"
#include "engine/load/stage_plan.h"
#include "engine/speculative.h"
#include "models/model.h"

struct sl_memory_plan {
    int32_t max_model_len, block_size, max_num_seqs, max_num_batched_tokens, max_queued;
    int32_t n_pages;                       /* blocks of tokens */
    int32_t group_pages[SL_MAX_KV_GROUPS]; /* of each group of layers, at most one for a block */
    bool context_lowered;    /* the model could do more tokens than this machine's memory */
    int32_t max_state_slots; /* pages of recurrent state; 0: as many as go with the blocks */
    int32_t n_draft_states;  /* such pages besides, for the states behind drafts */
    bool seqs_lowered;       /* max_num_seqs, to what there are such pages for */
    uint64_t one_context;    /* blocks of the longest sequence that the model could do */
    struct sl_kv_layout kv;
    uint64_t packed_bytes; /* of weights, repacked or converted in memory of our own */
    uint64_t stored_bytes; /* of weights, repacked too, in a file of the offload folder */
    uint64_t mapped_bytes; /* of weights, read in place from the file */
    uint64_t kv_bytes, activation_bytes;
    uint64_t runner_bytes; /* on a device: a step's arrays, attention's and the sampler's room */
    uint64_t tier_bytes;   /* of host memory, for copies of pages */
    uint64_t corpus_bytes; /* of past outputs, for drafts of method suffix; in host memory */
    uint64_t ram_bytes;    /* there is, or may be used of a device */
    uint64_t shared_bytes; /* of pages, with other engines; 0: the pages are this one's */
    uint64_t own_bytes;    /* of pages, where there are other engines, that never are others' */
    int32_t n_floor_pages; /* kept for this one where they are shared, besides */
    bool on_device;
    /* Of experts that stay in host memory beside a device: */
    int32_t n_expert_layers, n_host_layers;
    uint64_t host_packed_bytes, host_mapped_bytes; /* as of weights above */
    uint64_t host_room_bytes;                      /* rows on the way, and what experts work in */
    uint64_t host_ram_bytes;                       /* of the machine */
    struct sl_speculative speculative;
    /* Of a model that drafts, in the numbers above too: its pages, of which every block of the
     * first group has one, and spare ones (engine/draft.h); n_groups is 0 without one. */
    struct sl_kv_layout draft_kv;
    uint64_t draft_packed_bytes, draft_mapped_bytes, draft_activation_bytes;
    int32_t n_ranks;  /* that have an equal part each of all bytes above */
    int32_t kv_ranks; /* of them so many divide positions; 1: none do */
    int32_t n_stages; /* likewise, with parts of their own, of which each rank has its share */
    struct sl_stage_plan stages[SL_MAX_STAGES];
    int32_t max_loras, max_lora_rank, max_cpu_loras; /* 0: no adapters */
};

/* Fails with the numbers when what the flags ask for cannot work. draft: the model that drafts, or
 * NULL. */
SL_MUST_CHECK int sl_memory_plan_make(const struct sl_model *model, const struct sl_model *draft,
                                      struct sl_backend *be, const struct sl_engine_config *cfg,
                                      struct sl_memory_plan *out, struct sl_error *err);

/* The steps of the plan, for a runner on a device. */
void sl_memory_plan_runner(const struct sl_memory_plan *plan, struct sl_device_runner_config *out);
/* And those of a model that drafts; NULL: none does. */
void sl_memory_plan_runner_draft(const struct sl_memory_plan *plan, const struct sl_model *draft,
                                 struct sl_device_runner_config *out);

/* Pages of a group for the states behind drafts, besides its group_pages. */
int32_t sl_memory_plan_draft_pages(const struct sl_memory_plan *plan, int32_t group);
/* Bytes of the pages of a group, with those for drafts and the one that a device has for padding.
 */
uint64_t sl_memory_plan_group_bytes(const struct sl_memory_plan *plan, int32_t group);
/* The same of a part of the model, as sl_model_part numbers them. */
uint64_t sl_memory_plan_part_bytes(const struct sl_memory_plan *plan, int32_t part, int32_t group);
size_t sl_memory_plan_part_page(const struct sl_memory_plan *plan, int32_t part, int32_t group);
/* Tokens of a block of a model that drafts in such, else 0; what its steps are at most. */
int32_t sl_memory_plan_draft_block(const struct sl_memory_plan *plan, const struct sl_model *draft);
void sl_memory_plan_draft_run(const struct sl_memory_plan *plan, const struct sl_model *draft,
                              struct sl_run_config *out);
/* Of the pages of a model that drafts. */
uint64_t sl_memory_plan_draft_bytes(const struct sl_memory_plan *plan);
/* Bytes of a page of a group, of both models. */
uint64_t sl_memory_plan_page_bytes(const struct sl_memory_plan *plan, int32_t group);
uint64_t sl_memory_plan_pool_bytes(const struct sl_memory_plan *plan); /* of all, without those */
/* Are there pages of layers without a window, whose memory several engines can share? */
bool sl_memory_plan_shares(const struct sl_memory_plan *plan);

/* Rows of logits of one step: every sequence's, and some for drafts and prompt logprobs. */
int32_t sl_memory_plan_max_logits(const struct sl_memory_plan *plan);

#endif
