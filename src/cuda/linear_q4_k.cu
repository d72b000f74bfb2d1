/* SPDX-License-Identifier: MIT */
#include "cuda/linear_inst.cuh"

SL_LIN_CODED(q4_k)
