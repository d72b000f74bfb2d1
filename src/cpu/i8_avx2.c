/* SPDX-License-Identifier: MIT
 * Whole-number products for AVX2.
 */
#include "base/check.h"
#include "cpu/i8.h"
#include "quant/float.h"

#include "cpu/vec_i8_avx2.h"

#include <math.h>
#include <string.h>

#include "cpu/i8_tmpl.c"

void sl_i8_kernels_avx2(struct sl_i8_kernels *k)
{
    *k = (struct sl_i8_kernels){
        .name = "i8-avx2", .quantize = i8_quantize, .place = i8_place, .dot = i8_dot};
}
