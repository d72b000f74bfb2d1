/* SPDX-License-Identifier: MIT
 * Recurrences for AVX2 with FMA.
 */
#include "base/check.h"
#include "base/limits.h"
#include "cpu/recurrent.h"
#include "cpu/vec_avx2.h"

#include <math.h>
#include <string.h>

#define REC_V 2 /* twelve of sixteen registers hold sums and what is added */
#include "cpu/recurrent_tmpl.c"

void sl_rec_kernels_avx2(struct sl_rec_kernels *k)
{
    fill_recurrent(k);
}
