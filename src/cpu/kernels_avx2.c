/* SPDX-License-Identifier: MIT
 * The kernels for AVX2, FMA and F16C.
 */
#include "base/check.h"
#include "cpu/kernels.h"
#include "cpu/vec_avx2.h"

#include <math.h>
#include <string.h>

#define ISA_NAME "avx2"
#include "cpu/kernels_tmpl.c"

#include "cpu/formats_tmpl.c"

#include "cpu/lora_tmpl.c"

#include "cpu/page_scores_tmpl.c"

void sl_cpu_kernels_avx2(struct sl_cpu_kernels *k)
{
    fill_kernels(k);
    fill_formats(k);
    fill_lora(k);
    fill_page_scores(k);
}
