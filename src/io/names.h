/* SPDX-License-Identifier: MIT
 * names.h - a fixed-size hash table from names to indexes, and the rules for names in model files.
 *
 * The table lies in an arena and borrows the names. Its hash is seeded per table, so that a file
 * cannot be built to make lookups slow. Filled by one thread, then read by any.
 */
#ifndef SL_IO_NAMES_H
#define SL_IO_NAMES_H

#include "base/arena.h"
#include "base/err.h"

#include <stdbool.h>

struct sl_names_slot;

struct sl_names { /* zero-initialise */
    struct sl_names_slot *slots;
    uint32_t mask;
    uint64_t seed;
};

/* Room for n names, n <= 2^30; false when out of memory. */
bool sl_names_init(struct sl_names *t, struct sl_arena *arena, size_t n);
/* False, and nothing added, when the name is there already. At most n names. */
bool sl_names_add(struct sl_names *t, const char *name, size_t n_bytes, uint32_t idx);
int64_t sl_names_find(const struct sl_names *t, const char *name, size_t n_bytes); /* -1: none */

/* A key or tensor name: not empty, valid UTF-8, no C0 or C1 control characters (so no NUL), hence
 * safe to print and to use as a C string. */
bool sl_names_valid(const char *name, size_t n_bytes);
/* A file name without any path: not empty, at most 255 bytes, no '/' and '\', not "." or "..". */
bool sl_names_plain_file(const char *name, size_t n_bytes);
/* Such a name, or two of them with a '/' between: a file in a folder of the model's. */
bool sl_names_inner_file(const char *name, size_t n_bytes);
/* The end of a path, short enough to leave room for the message: a pointer into it. */
const char *sl_names_path_tail(const char *path);
/* Replaces what a terminal should not get in err's message by '?': it may quote a file's bytes or
 * have been cut inside a character. Returns rc; nothing to do for rc 0 or err NULL. */
int sl_names_scrub(struct sl_error *err, int rc);

#endif
