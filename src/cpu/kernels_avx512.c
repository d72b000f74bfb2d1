/* SPDX-License-Identifier: MIT
 * The kernels for AVX-512 F, BW, VL, DQ.
 */
#include "base/check.h"
#include "cpu/kernels.h"
#include "cpu/vec_avx512.h"

#include <math.h>
#include <string.h>

#define ISA_NAME "avx512"
#include "cpu/kernels_tmpl.c"

#include "cpu/formats_tmpl.c"

#include "cpu/lora_tmpl.c"

#include "cpu/page_scores_tmpl.c"

void sl_cpu_kernels_avx512(struct sl_cpu_kernels *k)
{
    fill_kernels(k);
    fill_formats(k);
    fill_lora(k);
    fill_page_scores(k);
}
