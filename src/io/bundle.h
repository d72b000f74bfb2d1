/* SPDX-License-Identifier: MIT
 * bundle.h - the files of the bundled model, carried in the binary by tools/embed.
 */
#ifndef SL_IO_BUNDLE_H
#define SL_IO_BUNDLE_H

#include <stddef.h>
#include <stdint.h>

struct sl_bundle_file {
    const char *name;
    const uint8_t *data; /* 64-byte aligned */
    uint64_t n_bytes;
};

extern const struct sl_bundle_file sl_bundle_table[]; /* ended by a row of zeros */

#endif
