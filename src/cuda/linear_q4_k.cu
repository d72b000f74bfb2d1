/* SPDX-License-Identifier: MIT */
#include "cuda/linear_inst.cuh"

SL_LIN_KERNELS(q4_k)
