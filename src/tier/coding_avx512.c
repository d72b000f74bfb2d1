/* SPDX-License-Identifier: MIT */
#define KERNELS sl_code_kernels_avx512
#define NAME    "avx512"
#include "tier/coding_tmpl.c"
