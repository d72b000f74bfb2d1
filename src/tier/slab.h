/* SPDX-License-Identifier: MIT
 * slab.h - the layout of a file of pages: what the store may believe of it.
 *
 *   0                  head, 64 bytes: magic, version, group, root, sizes, number of the file,
 * check 64                 an entry of 64 bytes for each slot: name, digest, last use, check; zero
 * = none a multiple of 4096 the pages, each at a multiple of 4096
 *
 * Numbers are little-endian. A head is believed if it is, byte for byte, what this store would
 * write for one of its groups. An entry is believed if its check, which depends on its place,
 * holds, and its bytes are fewer than the page's if they are coded; that makes a page known, not
 * right: its digest is over root, group, name and bytes, and is compared whenever a page is read. A
 * page is written before its entry, so an entry that was written whole speaks of bytes that were.
 * Nothing depends on the order in which a disk gets them, or on syncing.
 *
 * Any thread.
 */
#ifndef SL_TIER_SLAB_H
#define SL_TIER_SLAB_H

#include "base/err.h"
#include "base/hash.h"

#define SL_SLAB_VERSION 1
#define SL_SLAB_ENTRY   64   /* bytes of an entry, and of the head */
#define SL_SLAB_ALIGN   4096 /* of pages */
/* An entry that counts more uses is taken for the oldest one, so that counting on has no end. */
#define SL_SLAB_USES ((uint64_t)1 << 62)

/* All files of a group. */
struct sl_slab_kind {
    struct sl_hash128 root;
    uint64_t page_bytes;
    int32_t group, n_slots;
};

struct sl_slab_entry {
    struct sl_hash128 name, digest; /* digest: of the page, whether it is coded or not */
    uint64_t used;
    uint64_t n_coded; /* bytes that are there, coded (coding.h); 0: the page as it is */
};

enum sl_slab_state { SL_SLAB_NONE, SL_SLAB_GOOD, SL_SLAB_BAD };

/* From 0 to the first page. */
uint64_t sl_slab_head_bytes(int32_t n_slots);
uint64_t sl_slab_stride(uint64_t page_bytes);
uint64_t sl_slab_page_at(const struct sl_slab_kind *kind, int32_t slot);

void sl_slab_put_head(uint8_t out[SL_SLAB_ENTRY], const struct sl_slab_kind *kind, int32_t number);
/* Which of the kinds this is the head of, -1: none of them. */
int32_t sl_slab_kind_of(const uint8_t in[SL_SLAB_ENTRY], const struct sl_slab_kind *kinds,
                        int32_t n_kinds, int32_t number);
void sl_slab_put_entry(uint8_t out[SL_SLAB_ENTRY], const struct sl_slab_kind *kind, int32_t number,
                       int32_t slot, const struct sl_slab_entry *e);
enum sl_slab_state sl_slab_get_entry(const uint8_t in[SL_SLAB_ENTRY],
                                     const struct sl_slab_kind *kind, int32_t number, int32_t slot,
                                     struct sl_slab_entry *e);
struct sl_hash128 sl_slab_digest(const struct sl_slab_kind *kind, const struct sl_hash128 *name,
                                 const void *page);

#endif
