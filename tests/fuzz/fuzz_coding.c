/* SPDX-License-Identifier: MIT
 * Coded pages as a stranger may leave them: the decoder stays inside of the input and of the page,
 * and all instruction sets give the same answer. The input taken as a page is coded and comes back.
 */
#include "fuzz.h"
#include "tier/coding.h"

#include <stdlib.h>
#include <string.h>

#define MOST 4096

static uint8_t scratch[MOST + SL_CODE_LANES];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    SL_ASSERT(sl_code_scratch_bytes(MOST) <= sizeof scratch);
    return 0;
}

/* The page is as large as its head says, or nearly: other sizes are refused at once. */
static void decode(const uint8_t *data, size_t size, size_t n)
{
    static const struct sl_code_kernels *const all[] = {&sl_code_kernels_c, &sl_code_kernels_avx2,
                                                        &sl_code_kernels_avx512};
    uint8_t *pages[3] = {NULL}; /* of their own, so that a byte too far is seen */
    bool good[3] = {false};
    for (size_t i = 0; i < 3; i++) {
        pages[i] = calloc(n, 1);
        SL_ASSERT(pages[i] != NULL);
        if (!sl_code_runs(all[i]))
            continue;
        sl_code_use(all[i]);
        good[i] = sl_decode_page(data, size, pages[i], n, scratch);
        SL_ASSERT(good[i] == good[0] && (!good[0] || memcmp(pages[i], pages[0], n) == 0));
    }
    sl_code_use(NULL);
    for (size_t i = 0; i < 3; i++)
        free(pages[i]);
}

static void code(const uint8_t *data, size_t size)
{
    static uint8_t coded[2 * MOST], page[MOST];
    const size_t n = sl_code_page(data, size, coded, sizeof coded, scratch);
    SL_ASSERT(n > 0);
    SL_ASSERT(sl_decode_page(coded, n, page, size, scratch));
    SL_ASSERT(memcmp(page, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_code_head head = {0};
    if (size >= sizeof head)
        memcpy(&head, data, sizeof head);
    if (head.n_bytes > 0 && head.n_bytes <= MOST)
        decode(data, size, (size_t)head.n_bytes);
    if (size >= 4 && size <= MOST)
        code(data, size);
    return 0;
}
