/* SPDX-License-Identifier: MIT
 * bf16_amx.c - BF16 products on AMX tiles.
 */
#include "cpu/tile_amx.h"

#include "cpu/bf16_amx_tmpl.c"

void sl_bf16_kernels_amx(struct sl_bf16_kernels *k)
{
    k->name = "bf16-amx"; /* rounding stays as it is */
    k->dot = bf16_dot;
}
