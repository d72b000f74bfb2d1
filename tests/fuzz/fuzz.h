/* SPDX-License-Identifier: MIT
 * fuzz.h - what the fuzz targets share: the entry points, and small choices read from the input.
 */
#ifndef SL_FUZZ_FUZZ_H
#define SL_FUZZ_FUZZ_H

#include "base/check.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input as a sequence of choices. At its end every choice is 0. */
struct sl_input {
    const uint8_t *at, *end;
};

static inline bool sl_input_empty(const struct sl_input *in)
{
    return in->at == in->end;
}

static inline uint8_t sl_input_byte(struct sl_input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

/* 0 .. n - 1, n up to 256 */
static inline int32_t sl_input_below(struct sl_input *in, int32_t n)
{
    return sl_input_byte(in) % n;
}

static inline bool sl_input_flag(struct sl_input *in)
{
    return (sl_input_byte(in) & 1) != 0;
}

#endif
