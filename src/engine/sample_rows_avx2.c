/* SPDX-License-Identifier: MIT */
#define KERNELS sl_row_kernels_avx2
#include "engine/sample_rows_tmpl.c"
