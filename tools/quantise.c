/* SPDX-License-Identifier: MIT
 * quantise - floats to blocks of a tensor format by its reference conversion, from standard input
 * to standard output. bench/quality.py makes files of formats that the gguf package only reads.
 */
#include "base/check.h"
#include "base/sys.h"
#include "quant/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: quantise FORMAT < FLOATS > BLOCKS\n"
                           "\n"
                           "Floats in the machine's order, a multiple of the format's block "
                           "(mxfp4: 32, iq4_xs: 256).\n";

enum { BLOCKS = 1024 }; /* that are converted together */

static int quantise_all(const struct sl_dtype_info *d)
{
    const size_t n_floats = (size_t)BLOCKS * d->block_elems;
    float *x = sl_malloc(n_floats * sizeof *x);
    uint8_t *out = sl_malloc((size_t)BLOCKS * d->block_bytes);
    size_t n;
    int rc = 0;
    SL_ASSERT(x != NULL && out != NULL);
    while (rc == 0 && (n = fread(x, sizeof *x, n_floats, stdin)) > 0) {
        if (n % d->block_elems != 0) {
            fprintf(stderr, "quantise: %zu floats at the end, not a multiple of %u\n", n,
                    d->block_elems);
            rc = 1;
            break;
        }
        d->from_f32(x, out, (int64_t)n);
        rc = fwrite(out, d->block_bytes, n / d->block_elems, stdout) != n / d->block_elems;
    }
    sl_free(out);
    sl_free(x);
    return rc != 0 || ferror(stdin) || fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    if (argc != 2 || strcmp(argv[1], "--help") == 0) {
        fputs(help, argc == 2 ? stdout : stderr);
        return argc == 2 ? 0 : 2;
    }
    const int dtype = sl_dtype_from_name(argv[1]);
    if (dtype < 0 || sl_dtype_info((enum sl_dtype)dtype)->from_f32 == NULL) {
        fprintf(stderr, "quantise: '%s' is not a tensor format\n", argv[1]);
        return 2;
    }
    return quantise_all(sl_dtype_info((enum sl_dtype)dtype));
}
