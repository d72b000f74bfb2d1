/* SPDX-License-Identifier: MIT
 * Recurrences for AVX-512 F, BW, VL, DQ.
 */
#include "base/check.h"
#include "base/limits.h"
#include "cpu/recurrent.h"
#include "cpu/vec_avx512.h"

#include <math.h>
#include <string.h>

#define REC_V 4
#include "cpu/recurrent_tmpl.c"

void sl_rec_kernels_avx512(struct sl_rec_kernels *k)
{
    fill_recurrent(k);
}
