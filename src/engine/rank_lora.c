/* SPDX-License-Identifier: MIT */
#include "engine/rank_lora.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

struct begin { /* then struct mat for each matrix */
    int32_t kind, rank, slot, dtype, n_mats, unused;
};

struct mat {
    int32_t rank; /* 0: the adapter leaves it alone */
    float scale;
};

struct piece { /* then n bytes of the block */
    int32_t kind, rank, slot, unused;
    uint64_t at, n;
};

struct sl_rank_lora_slot {
    struct sl_lora_weights w;
    struct sl_lora_mat *mats; /* [n_mats] */
    uint8_t *block;           /* [room] */
    size_t n_got;
    bool begun;
};

size_t sl_rank_lora_bytes(int32_t n_mats)
{
    return sizeof(struct piece) + sizeof(struct begin) + (size_t)n_mats * sizeof(struct mat);
}

size_t sl_rank_lora_begin(const struct sl_lora_weights *w, int32_t rank, int32_t slot, uint8_t *out)
{
    const struct begin b = {.kind = SL_RANK_LORA_BEGIN,
                            .rank = rank,
                            .slot = slot,
                            .dtype = (int32_t)w->dtype,
                            .n_mats = w->n_mats};
    SL_ASSERT(rank > 0 && slot >= 0 && w->n_mats > 0);
    memcpy(out, &b, sizeof b);
    out += sizeof b;
    for (int32_t i = 0; i < w->n_mats; i++) {
        const struct mat m = {w->mats[i].rank, w->mats[i].scale};
        memcpy(out + (size_t)i * sizeof m, &m, sizeof m);
    }
    return sizeof b + (size_t)w->n_mats * sizeof(struct mat);
}

size_t sl_rank_lora_piece(const struct sl_lora_weights *w, int32_t rank, int32_t slot, size_t max,
                          size_t *at, uint8_t *out)
{
    struct piece p = {.kind = SL_RANK_LORA_PIECE, .rank = rank, .slot = slot, .at = *at};
    SL_ASSERT(max > sizeof p && *at < w->n_bytes);
    p.n = SL_MIN(w->n_bytes - *at, max - sizeof p);
    memcpy(out, &p, sizeof p);
    memcpy(out + sizeof p, (const uint8_t *)w->block + *at, p.n);
    *at += p.n;
    return sizeof p + p.n;
}

/* ---------------------------------------------------------------- receiving */

int sl_rank_lora_init(struct sl_rank_lora *l, const struct sl_model *m, int32_t rank,
                      int32_t n_slots, int32_t max_rank, struct sl_error *err)
{
    const size_t n_mats = (size_t)sl_model_n_lora_mats(m);
    *l = (struct sl_rank_lora){.model = m, .rank = rank, .n_slots = n_slots, .max_rank = max_rank};
    if (n_slots == 0)
        return 0;
    SL_ASSERT(n_slots > 0 && max_rank > 0 && rank > 0);
    l->room = (size_t)sl_model_lora_bytes(m, max_rank, SL_DTYPE_F32); /* in any format */
    l->slots = sl_calloc((size_t)n_slots, sizeof *l->slots);
    l->weights = sl_calloc((size_t)n_slots, sizeof *l->weights);
    bool good = l->slots != NULL && l->weights != NULL;
    for (int32_t i = 0; i < n_slots && good; i++) {
        l->slots[i].mats = sl_calloc(n_mats, sizeof *l->slots[i].mats);
        l->slots[i].block = sl_aligned_alloc(l->room);
        good = l->slots[i].mats != NULL && l->slots[i].block != NULL;
    }
    return good ? 0
                : sl_fail(err, SL_ENOMEM, "out of memory for %d adapters of rank %d", n_slots,
                          max_rank);
}

void sl_rank_lora_deinit(struct sl_rank_lora *l)
{
    for (int32_t i = 0; i < l->n_slots && l->slots != NULL; i++) {
        if (l->slots[i].block != NULL)
            sl_aligned_free(l->slots[i].block, l->room);
        sl_free(l->slots[i].mats);
    }
    sl_free(l->slots);
    sl_free(l->weights);
    *l = (struct sl_rank_lora){.model = NULL};
}

void sl_rank_lora_clear(struct sl_rank_lora *l)
{
    SL_ASSERT(l->n_slots == 0 || l->weights != NULL);
    for (int32_t i = 0; i < l->n_slots; i++) {
        l->slots[i].begun = false;
        l->weights[i] = NULL;
    }
}

static int wrong_lora(const char *what, int64_t value, struct sl_error *err)
{
    return sl_fail(err, SL_EFORMAT, "rank 0 sent an adapter whose %s is %lld", what,
                   (long long)value);
}

static int get_begin(struct sl_rank_lora *l, const uint8_t *data, size_t n, struct sl_error *err)
{
    struct begin b;
    if (n < sizeof b)
        return wrong_lora("message's size", (int64_t)n, err);
    memcpy(&b, data, sizeof b);
    if (b.n_mats != sl_model_n_lora_mats(l->model) ||
        n != sizeof b + (size_t)b.n_mats * sizeof(struct mat))
        return wrong_lora("number of matrices", b.n_mats, err);
    if (b.slot < 0 || b.slot >= l->n_slots)
        return wrong_lora("slot", b.slot, err);
    if (b.dtype != SL_DTYPE_F32 && b.dtype != SL_DTYPE_F16 && b.dtype != SL_DTYPE_BF16)
        return wrong_lora("format", b.dtype, err);
    if (b.rank != l->rank)
        return 0;
    struct sl_rank_lora_slot *s = &l->slots[b.slot];
    l->weights[b.slot] = NULL;
    s->begun = false;
    for (int32_t i = 0; i < b.n_mats; i++) {
        struct mat m;
        memcpy(&m, data + sizeof b + (size_t)i * sizeof m, sizeof m);
        if (m.rank < 0 || m.rank > l->max_rank)
            return wrong_lora("rank", m.rank, err);
        s->mats[i] = (struct sl_lora_mat){.rank = m.rank, .scale = m.scale};
    }
    s->w = (struct sl_lora_weights){.n_mats = b.n_mats, .dtype = (enum sl_dtype)b.dtype};
    sl_lora_place(l->model, l->rank, s->mats, s->block, &s->w);
    SL_ASSERT(s->w.n_bytes <= l->room); /* the room is for the highest rank in the widest format */
    s->n_got = 0;
    s->begun = true;
    if (s->w.n_bytes == 0)
        l->weights[b.slot] = &s->w;
    return 0;
}

static int get_piece(struct sl_rank_lora *l, const uint8_t *data, size_t n, struct sl_error *err)
{
    struct piece p;
    if (n < sizeof p)
        return wrong_lora("message's size", (int64_t)n, err);
    memcpy(&p, data, sizeof p);
    if (p.slot < 0 || p.slot >= l->n_slots)
        return wrong_lora("slot", p.slot, err);
    if (p.n != n - sizeof p)
        return wrong_lora("piece's size", (int64_t)p.n, err);
    if (p.rank != l->rank)
        return 0;
    struct sl_rank_lora_slot *s = &l->slots[p.slot];
    if (!s->begun || p.at != s->n_got || p.n > s->w.n_bytes - s->n_got)
        return wrong_lora("piece's place", (int64_t)p.at, err);
    memcpy(s->block + s->n_got, data + sizeof p, p.n);
    s->n_got += p.n;
    SL_ASSERT(s->n_got <= s->w.n_bytes && s->w.n_bytes <= l->room);
    if (s->n_got == s->w.n_bytes)
        l->weights[p.slot] = &s->w;
    return 0;
}

int sl_rank_lora_get(struct sl_rank_lora *l, const uint8_t *data, size_t n, struct sl_error *err)
{
    int32_t kind = -1;
    if (n >= sizeof kind)
        memcpy(&kind, data, sizeof kind);
    if (kind == SL_RANK_LORA_BEGIN)
        return get_begin(l, data, n, err);
    return kind == SL_RANK_LORA_PIECE ? get_piece(l, data, n, err)
                                      : wrong_lora("message", kind, err);
}
