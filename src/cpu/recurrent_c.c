/* SPDX-License-Identifier: MIT
 * Recurrences in plain C: what every other version must equal.
 */
#include "base/check.h"
#include "base/limits.h"
#include "cpu/recurrent.h"
#include "cpu/vec_c.h"

#include <math.h>
#include <string.h>

#define REC_V 1
#include "cpu/recurrent_tmpl.c"

void sl_rec_kernels_c(struct sl_rec_kernels *k)
{
    fill_recurrent(k);
}
