/* SPDX-License-Identifier: MIT */
#define KERNELS sl_code_kernels_avx2
#define NAME    "avx2"
#include "tier/coding_tmpl.c"
