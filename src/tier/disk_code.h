/* SPDX-License-Identifier: MIT
 * disk_code.h - which pages are coded (coding.h) on their way to a disk, and room for that.
 *
 * A coded page lies at the beginning of its slot, so that fewer bytes are written and read; the
 * slot is no smaller. `auto` codes a page if reading it back is expected to be faster so: what the
 * disk gives a thread, what decoding takes and what pages shrink to are measured all the time, and
 * each 256th page is coded in any case, so that a change is noticed. Nothing is coded while pages
 * wait to be written, as coding is slower than most disks.
 *
 * Threads of the store; a mutex of its own.
 */
#ifndef SL_TIER_DISK_CODE_H
#define SL_TIER_DISK_CODE_H

#include "tier/store.h"

#include <pthread.h>

#define SL_DISK_ROOMS (1 + SL_TIER_READERS) /* a thread uses one at a time */

/* Bytes a second, of the last ones. */
struct sl_code_rate {
    double bytes, s;
};

struct sl_disk_room {
    uint8_t *coded;   /* [stride] begins where files may be read to without the system's cache */
    uint8_t *scratch; /* of coding.h */
    int32_t next;     /* free ones */
};

struct sl_disk_code {
    enum sl_coding coding;
    size_t most; /* bytes of a page that is coded, with whole multiples of SL_SLAB_ALIGN */
    pthread_mutex_t lock;
    struct sl_disk_room rooms[SL_DISK_ROOMS];
    int32_t first_free; /* -1: all are in use */
    uint64_t n_pages;   /* that were to be written */
    struct sl_code_rate read, write, decode;
    double n_plain, n_coded; /* bytes of pages that were tried, and what they came to */
};

/* SL_ENOMEM: to be closed all the same. most: bytes of the largest page, in whole multiples of
 * SL_SLAB_ALIGN. */
SL_MUST_CHECK int sl_disk_code_open(struct sl_disk_code *c, enum sl_coding coding, size_t most,
                                    struct sl_error *err);
void sl_disk_code_close(struct sl_disk_code *c);

struct sl_disk_room *sl_disk_room_take(struct sl_disk_code *c);
void sl_disk_room_give(struct sl_disk_code *c, struct sl_disk_room *room);

/* Codes a page into the room, if it is worth it: bytes, at most n_bytes - SL_SLAB_ALIGN in whole
 * blocks with zeros behind; 0: it is to be written as it is. */
size_t sl_disk_code_page(struct sl_disk_code *c, struct sl_disk_room *room, const uint8_t *page,
                         size_t n_bytes, bool hurry);
/* From the room. False: it is not the page that it should be. */
bool sl_disk_decode_page(struct sl_disk_code *c, struct sl_disk_room *room, size_t n_coded,
                         uint8_t *page, size_t n_bytes);

/* The disk took so long for so many bytes. */
void sl_disk_code_took(struct sl_disk_code *c, bool reading, size_t n_bytes, uint64_t ns);

#endif
