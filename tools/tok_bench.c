/* SPDX-License-Identifier: MIT
 * tok_bench.c - load time and encode speed of a vocabulary on a text, on one thread.
 *
 * usage: tok_bench VOCABULARY TEXT [repeats]; the peer figure is tests/text/tok_oracle.py --bench
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct sl_error err = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_map text = {0};
    struct sl_ids ids = {0};
    uint64_t repeats = 5, best = UINT64_MAX;
    if (argc < 3 || (argc > 3 && !sl_parse_u64(argv[3], strlen(argv[3]), &repeats))) {
        fprintf(stderr, "usage: tok_bench VOCABULARY TEXT [repeats]\n");
        return 2;
    }
    uint64_t t0 = sl_now_ns();
    int rc = sl_tokenizer_open(argv[1], &t, &err);
    uint64_t load_ns = sl_now_ns() - t0;
    if (rc == 0)
        rc = sl_map_open(&text, argv[2], &err);
    for (uint64_t i = 0; i < repeats && rc == 0; i++) {
        ids.n = 0;
        t0 = sl_now_ns();
        rc = sl_tokenizer_encode_into(t, (const char *)text.data, text.n_bytes, 0, &ids, &err);
        best = SL_MIN(best, sl_now_ns() - t0);
    }
    if (rc != 0)
        fprintf(stderr, "tok_bench: %s\n", err.msg);
    else
        printf("sluice: %zu bytes, %zu tokens, %.2f MB/s on one thread; loads in %.1f ms\n",
               text.n_bytes, ids.n, (double)text.n_bytes * 1e3 / (double)best,
               (double)load_ns / 1e6);
    sl_free(ids.data);
    sl_map_close(&text);
    sl_tokenizer_destroy(t);
    return rc != 0;
}
