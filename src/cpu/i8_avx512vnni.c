/* SPDX-License-Identifier: MIT
 * Whole-number products for AVX-512 with VNNI.
 */
#include "base/check.h"
#include "cpu/i8.h"
#include "quant/float.h"

#define I8_VNNI 1
#include "cpu/vec_i8_avx512.h"

#include <math.h>
#include <string.h>

#include "cpu/i8_tmpl.c"

/* On one core of a Zen 4, Q4_0 reads at 91 to 96 % of the read rate without and 101 % with it;
 * Q4_K, Q5_K and Q6_K about 100 % either way. From 3072 on it costs. tile_bench ahead measures it.
 */
#define AHEAD_BYTES 1024

void sl_i8_kernels_avx512vnni(struct sl_i8_kernels *k)
{
    *k = (struct sl_i8_kernels){.name = "i8-vnni",
                                .ahead = AHEAD_BYTES,
                                .quantize = i8_quantize,
                                .place = i8_place,
                                .dot = i8_dot};
}
