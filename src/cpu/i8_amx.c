/* SPDX-License-Identifier: MIT
 * i8_amx.c - whole-number products on AMX tiles; few tokens stay with the vector instructions,
 * which give the same bits.
 */
#include "cpu/tile_amx.h"

#include "cpu/i8_amx_tmpl.c"

static void dot(const struct sl_weight *w, int64_t p, int n_panels, int64_t g,
                const struct sl_i8_x *x, int64_t ld_x, int n_tok, float *acc, bool first,
                struct sl_i8_scratch *s)
{
    if (n_tok >= FEW) {
        i8_dot_tiles(w, p, n_panels, g, x, ld_x, n_tok, acc, first, s);
        return;
    }
    struct sl_i8_kernels vnni = {0};
    sl_i8_kernels_avx512vnni(&vnni);
    vnni.dot(w, p, n_panels, g, x, ld_x, n_tok, acc, first, s);
}

void sl_i8_kernels_amx(struct sl_i8_kernels *k)
{
    k->name = "i8-amx";
    k->dot = dot;
}
