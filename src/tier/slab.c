/* SPDX-License-Identifier: MIT */
#include "tier/slab.h"

#include "base/check.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are written as memory is");

static const char magic[8] = "SLUICEKV";

struct head {
    char magic[8];
    uint32_t version;
    int32_t group;
    struct sl_hash128 root;
    uint64_t page_bytes;
    int32_t n_slots, number;
    uint64_t zero, check;
};
_Static_assert(sizeof(struct head) == SL_SLAB_ENTRY, "no padding");

struct entry {
    struct sl_hash128 name, digest;
    uint64_t used, n_coded, zero, check;
};
_Static_assert(sizeof(struct entry) == SL_SLAB_ENTRY, "no padding");

uint64_t sl_slab_head_bytes(int32_t n_slots)
{
    SL_ASSERT(n_slots > 0);
    return SL_ROUND_UP(((uint64_t)n_slots + 1) * SL_SLAB_ENTRY, SL_SLAB_ALIGN);
}

uint64_t sl_slab_stride(uint64_t page_bytes)
{
    return SL_ROUND_UP(page_bytes, SL_SLAB_ALIGN);
}

uint64_t sl_slab_page_at(const struct sl_slab_kind *kind, int32_t slot)
{
    SL_ASSERT(slot >= 0 && slot < kind->n_slots);
    return sl_slab_head_bytes(kind->n_slots) + (uint64_t)slot * sl_slab_stride(kind->page_bytes);
}

static uint64_t check_of(const void *data, const struct sl_slab_kind *kind, int32_t number,
                         int32_t slot)
{
    uint64_t place = sl_mix64((uint64_t)(uint32_t)number << 32 | (uint32_t)slot);
    return sl_hash64(data, SL_SLAB_ENTRY - sizeof(uint64_t),
                     place ^ kind->root.lo ^ (uint64_t)(uint32_t)kind->group);
}

void sl_slab_put_head(uint8_t out[SL_SLAB_ENTRY], const struct sl_slab_kind *kind, int32_t number)
{
    struct head h = {.version = SL_SLAB_VERSION,
                     .group = kind->group,
                     .root = kind->root,
                     .page_bytes = kind->page_bytes,
                     .n_slots = kind->n_slots,
                     .number = number};
    memcpy(h.magic, magic, sizeof h.magic);
    h.check = check_of(&h, kind, number, -1);
    memcpy(out, &h, sizeof h);
}

int32_t sl_slab_kind_of(const uint8_t in[SL_SLAB_ENTRY], const struct sl_slab_kind *kinds,
                        int32_t n_kinds, int32_t number)
{
    uint8_t right[SL_SLAB_ENTRY];
    for (int32_t i = 0; i < n_kinds; i++) {
        sl_slab_put_head(right, &kinds[i], number);
        if (memcmp(in, right, sizeof right) == 0)
            return i;
    }
    return -1;
}

void sl_slab_put_entry(uint8_t out[SL_SLAB_ENTRY], const struct sl_slab_kind *kind, int32_t number,
                       int32_t slot, const struct sl_slab_entry *e)
{
    struct entry x = {.name = e->name, .digest = e->digest, .used = e->used, .n_coded = e->n_coded};
    SL_ASSERT(slot >= 0 && slot < kind->n_slots);
    x.check = check_of(&x, kind, number, slot);
    memcpy(out, &x, sizeof x);
}

enum sl_slab_state sl_slab_get_entry(const uint8_t in[SL_SLAB_ENTRY],
                                     const struct sl_slab_kind *kind, int32_t number, int32_t slot,
                                     struct sl_slab_entry *e)
{
    static const uint8_t none[SL_SLAB_ENTRY];
    struct entry x;
    SL_ASSERT(slot >= 0 && slot < kind->n_slots);
    if (memcmp(in, none, sizeof none) == 0)
        return SL_SLAB_NONE;
    memcpy(&x, in, sizeof x);
    if (x.check != check_of(&x, kind, number, slot) || x.zero != 0 || x.n_coded >= kind->page_bytes)
        return SL_SLAB_BAD;
    *e = (struct sl_slab_entry){x.name, x.digest, x.used < SL_SLAB_USES ? x.used : 0, x.n_coded};
    return SL_SLAB_GOOD;
}

struct sl_hash128 sl_slab_digest(const struct sl_slab_kind *kind, const struct sl_hash128 *name,
                                 const void *page)
{
    struct {
        struct sl_hash128 root, name, bytes;
        uint64_t page_bytes, group;
    } all = {kind->root, *name, sl_hash128(page, kind->page_bytes, 0), kind->page_bytes,
             (uint64_t)(uint32_t)kind->group};
    return sl_hash128(&all, sizeof all, 0);
}
