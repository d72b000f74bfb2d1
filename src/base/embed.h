/* SPDX-License-Identifier: MIT
 * embed.h - files that the binary carries: tools/embed writes tables of them.
 */
#ifndef SL_BASE_EMBED_H
#define SL_BASE_EMBED_H

#include <stdint.h>

struct sl_embedded {
    const char *name;
    const uint8_t *data; /* 64-byte aligned */
    uint64_t n_bytes;
};

#endif
