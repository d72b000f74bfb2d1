/* SPDX-License-Identifier: MIT */
#define KERNELS sl_row_kernels_c
#include "engine/sample_rows_tmpl.c"

const struct sl_row_kernels *sl_row_kernels(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? &sl_row_kernels_avx2 : &sl_row_kernels_c;
}
