/* SPDX-License-Identifier: MIT
 * disk.h - pages in files of a folder, which belongs to one process at a time (a lock on a file in
 * it). Which page lies in which file and slot is known in memory, and read from the files' heads at
 * the start.
 *
 * Files are opened for each page that is read or written. That costs microseconds, needs no
 * descriptor per file, and shows at once when a folder is gone.
 *
 * slots and retry_at are guarded by the lock of the store; digest and n_coded of a slot belong to
 * who holds it.
 * sl_disk_read may run on several threads, sl_disk_write on one. No fault is an
 * error of the caller's: a page is lost, counted, and a line written to the log, one in ten seconds
 * at most.
 */
#ifndef SL_TIER_DISK_H
#define SL_TIER_DISK_H

#include "tier/disk_code.h"
#include "tier/slab.h"
#include "tier/slots.h"

#include <stdatomic.h>

struct sl_disk {
    char *dir;
    int lock_fd;   /* -1: none */
    uint64_t seed; /* of names, as long as the folder is there */
    bool direct;   /* pages bypass the system's cache */
    struct sl_slab_kind kinds[SL_MAX_KV_GROUPS];
    uint64_t slab_bytes; /* of a file, at most */
    struct sl_slots slots;
    struct sl_hash128 *digests; /* [slots] of what the file has there; zero: nothing yet */
    uint32_t *n_coded;          /* [slots] bytes that the file has there; 0: the page as it is */
    struct sl_disk_code code;
    _Atomic uint64_t n_coded_pages, n_coded_bytes; /* that were written */
    int32_t *made_for; /* [files] the group that it was made for; the writer's */
    uint64_t retry_at; /* nothing is written before: a write has failed */
    _Atomic uint64_t quiet_until;
    uint64_t n_forgotten, n_unreadable; /* files and entries, when it was opened */
};

enum sl_disk_result { SL_DISK_DONE, SL_DISK_CORRUPT, SL_DISK_FAILED };

/* SL_EINVAL, SL_ENOMEM, SL_EIO with the folder's name. */
SL_MUST_CHECK int sl_disk_open(struct sl_disk *d, const struct sl_store_config *cfg,
                               struct sl_error *err);
/* From now on names are hashed with this one, and the folder remembers it. No page is asked for
 * yet.
 */
void sl_disk_use_seed(struct sl_disk *d, uint64_t seed);
/* Writes when pages were used last, so that the order of eviction lasts. No thread of the
 * store runs. */
void sl_disk_save_uses(struct sl_disk *d);
void sl_disk_close(struct sl_disk *d);

/* The caller holds the slot. `page` has room for whole multiples of SL_SLAB_ALIGN bytes. */
enum sl_disk_result sl_disk_read(struct sl_disk *d, int32_t slot, const struct sl_store_key *key,
                                 uint8_t *page);
/* hurry: other pages wait to be written. */
enum sl_disk_result sl_disk_write(struct sl_disk *d, int32_t slot, const struct sl_store_key *key,
                                  uint64_t used, const uint8_t *page, bool hurry);

#endif
