/* SPDX-License-Identifier: MIT */
#include "cuda/linear_inst.cuh"

SL_LIN_KERNELS(fp8)
