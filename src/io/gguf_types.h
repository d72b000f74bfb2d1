/* SPDX-License-Identifier: MIT
 * gguf_types.h - names and block sizes of every tensor type that occurs in GGUF files, also of
 * those this build cannot compute with: their data must lie inside the file all the same.
 */
#ifndef SL_IO_GGUF_TYPES_H
#define SL_IO_GGUF_TYPES_H

#include <stdint.h>

struct sl_gguf_type_info {
    const char *name;
    uint32_t block_elems, block_bytes;
};

const struct sl_gguf_type_info *sl_gguf_type_info(uint32_t gguf_type); /* NULL: unknown */

#endif
