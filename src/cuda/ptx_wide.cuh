/* SPDX-License-Identifier: MIT
 * ptx_wide.cuh - wgmma of as many tokens as a tile of experts happens to have (experts_wide.cuh):
 * sl_wgmma_rs of ptx.cuh for further numbers, with inline PTX too.
 */
#ifndef SL_CUDA_PTX_WIDE_CUH
#define SL_CUDA_PTX_WIDE_CUH

#include "cuda/ptx_tile.cuh"

#ifndef SL_CUDA_SIM

#define SL_WG_SUM_80  SL_WG_D8(0), SL_WG_D2(8)
#define SL_WG_SUM_144 SL_WG_SUM_128, SL_WG_D2(16)
#define SL_WG_R40     SL_WG_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SL_WG_R68     SL_WG_R64 ", %64, %65, %66, %67"
#define SL_WG_R72     SL_WG_R68 ", %68, %69, %70, %71"
#define SL_WG_REG_48  "{" SL_WG_R24 "}, {%24, %25, %26, %27}, %28"
#define SL_WG_REG_80  "{" SL_WG_R40 "}, {%40, %41, %42, %43}, %44"
#define SL_WG_REG_96  "{" SL_WG_R48 "}, {%48, %49, %50, %51}, %52"
#define SL_WG_REG_144 "{" SL_WG_R72 "}, {%72, %73, %74, %75}, %76"
SL_WGMMA_RS(48)
SL_WGMMA_RS(80)
SL_WGMMA_RS(96)
SL_WGMMA_RS(144)

#endif

#endif
