/* SPDX-License-Identifier: MIT */
#define KERNELS sl_code_kernels_c
#define NAME    "c"
#include "tier/coding_tmpl.c"
