/* SPDX-License-Identifier: MIT
 * disk_load.h - what a folder has when it is opened. Files that this store cannot have written are
 * forgotten, those beyond its size removed; files of other names are left alone.
 */
#ifndef SL_TIER_DISK_LOAD_H
#define SL_TIER_DISK_LOAD_H

#include "tier/disk.h"

#define SL_DISK_NAME "kv-%06d.slab" /* of a file, by its number */

/* SL_ENOMEM, SL_EIO: the folder cannot be read. */
SL_MUST_CHECK int sl_disk_load(struct sl_disk *d, struct sl_error *err);
/* The number in a file's name, -1: not such a name. */
int32_t sl_disk_number(const char *name);

#endif
