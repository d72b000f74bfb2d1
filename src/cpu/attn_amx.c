/* SPDX-License-Identifier: MIT
 * attn_amx.c - the BF16 route of attention on AMX tiles.
 */
#include "cpu/tile_amx.h"

#include "cpu/attn_amx_tmpl.c"

void sl_attn_kernels_amx(struct sl_attn_kernels *k)
{
    fill_attn_tiles(k); /* rounding to BF16 stays as it is */
}
