/* SPDX-License-Identifier: MIT
 * rank_lora.h - adapters for ranks in processes of their own: rank 0 sends each of them the weights
 * that are its own (struct sl_lora_weights.others) before the first step that needs them, in
 * messages of the link that carries steps. All ranks receive all messages; a rank keeps its own.
 *
 * What is received was sent by another process: sizes follow from this rank's own model, and every
 * number is checked against them.
 */
#ifndef SL_ENGINE_RANK_LORA_H
#define SL_ENGINE_RANK_LORA_H

#include "models/lora.h"

/* What every message of the link begins with, an int32_t. */
enum sl_rank_message {
    SL_RANK_STEP,
    SL_RANK_LORA_BEGIN,
    SL_RANK_LORA_PIECE,
    SL_RANK_PAGE_OUT,
    SL_RANK_PAGE_IN,
    SL_RANK_PLACES /* of experts, engine/eplb.h */
};

/* Of the longest message at least. */
size_t sl_rank_lora_bytes(int32_t n_mats);
/* The first message of an adapter for a rank's slot; returns its bytes. */
size_t sl_rank_lora_begin(const struct sl_lora_weights *w, int32_t rank, int32_t slot,
                          uint8_t *out);
/* The one behind it, of the weights from *at on, which it moves on; out has max bytes. */
size_t sl_rank_lora_piece(const struct sl_lora_weights *w, int32_t rank, int32_t slot, size_t max,
                          size_t *at, uint8_t *out);

struct sl_rank_lora_slot;

struct sl_rank_lora { /* what a rank has of the adapters */
    const struct sl_model *model;
    int32_t rank, n_slots, max_rank;
    size_t room; /* bytes of a slot */
    struct sl_rank_lora_slot *slots;
    const struct sl_lora_weights **weights; /* [n_slots] NULL: not, or not all of it, there yet */
};

/* n_slots 0: there are no adapters. Room for a slot is taken here, and has no memory until it is
 * written to. */
SL_MUST_CHECK int sl_rank_lora_init(struct sl_rank_lora *l, const struct sl_model *m, int32_t rank,
                                    int32_t n_slots, int32_t max_rank, struct sl_error *err);
void sl_rank_lora_deinit(struct sl_rank_lora *l);
/* Rank 0 is another one by now, or has forgotten what it sent. */
void sl_rank_lora_clear(struct sl_rank_lora *l);
/* A message of this kind. */
SL_MUST_CHECK int sl_rank_lora_get(struct sl_rank_lora *l, const uint8_t *data, size_t n,
                                   struct sl_error *err);

#endif
