/* SPDX-License-Identifier: MIT
 * cuda_runtime.h - the simulator's stand-in for the CUDA header of this name: the part of CUDA C++
 * and of its runtime that src/cuda uses, for g++ and clang++ on the CPU.
 *
 * A kernel is an ordinary function that every simulated thread calls on its own stack; see sim.h.
 */
#ifndef SL_SIM_CUDA_RUNTIME_H
#define SL_SIM_CUDA_RUNTIME_H

#define SL_CUDA_SIM 1

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory> /* before __noinline__, which it spells as an attribute */
#include <stddef.h>
#include <stdint.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__   SL_SIM_use_SL_SMEM_instead_of_static_shared_memory
#define __constant__ SL_SIM_no_constant_memory
#define __managed__  SL_SIM_no_managed_memory

#include "sim_types.h"

#include "sim_host.h"

#include "sim_device.h"

#endif
