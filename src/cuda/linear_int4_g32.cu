/* SPDX-License-Identifier: MIT */
#include "cuda/linear_inst.cuh"

SL_LIN_CODED(int4_g32)
