/* SPDX-License-Identifier: MIT
 * The table of formats: lookups, and sizes against 128-bit arithmetic.
 */
#include "quant/dtype.h"

#include "base/check.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void rows_and_lookups(void **state)
{
    (void)state;
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        const struct sl_dtype_info *info = sl_dtype_info((enum sl_dtype)t);
        assert_true(info->block_elems >= 1 && info->block_bytes >= 1);
        assert_non_null(info->to_f32);
        assert_non_null(info->from_f32);
        bool made = t == SL_DTYPE_INT4_G128 || t == SL_DTYPE_INT4_G32; /* while loading */
        assert_true((info->gguf_id >= 0 || info->st_name != NULL) != made);
        if (info->gguf_id >= 0)
            assert_int_equal(sl_dtype_from_gguf((uint32_t)info->gguf_id), t);
        assert_int_equal(sl_dtype_from_name(info->name), t);
        if (info->st_name != NULL) {
            size_t n = strlen(info->st_name);
            assert_int_equal(sl_dtype_from_st(info->st_name, n), t);
            assert_int_equal(sl_dtype_from_st(info->st_name, n - 1), -1);
        }
    }
    assert_int_equal(sl_dtype_from_gguf(40), -1);
    assert_int_equal(sl_dtype_from_gguf(UINT32_MAX), -1);
    assert_int_equal(sl_dtype_from_st("I64", 3), -1);
    assert_int_equal(sl_dtype_from_st("", 0), -1);
    assert_int_equal(sl_dtype_from_st("BF16x", 4), sl_dtype_from_name("bf16")); /* by length */
    assert_int_equal(sl_dtype_from_name("Q8_0"), -1);
    assert_int_equal(sl_dtype_from_name("unsupported"), -1);
    assert_string_equal(sl_dtype_info(SL_DTYPE_COUNT)->name, "unsupported");
}

/* A tensor that a 64-bit product would report as small must be refused, not believed. */
static void sizes_match_wide_arithmetic(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 4};
    int n_overflows = 0, n_partial = 0;
    for (int i = 0; i < 1000000; i++) {
        enum sl_dtype t = (enum sl_dtype)sl_rng_below(&rng, SL_DTYPE_COUNT);
        const struct sl_dtype_info *info = sl_dtype_info(t);
        /* Shapes of every magnitude, often whole blocks, often near a power of two. */
        uint64_t n = sl_rng_next(&rng) >> sl_rng_below(&rng, 64);
        if (sl_rng_below(&rng, 2) != 0)
            n -= n % info->block_elems;
        if (sl_rng_below(&rng, 4) == 0)
            n = (UINT64_C(1) << sl_rng_below(&rng, 64)) + sl_rng_below(&rng, 3) - 1;
        unsigned __int128 want = (unsigned __int128)(n / info->block_elems) * info->block_bytes;
        bool fits = n % info->block_elems == 0 && want <= UINT64_MAX;
        uint64_t got = 0;
        bool ok = sl_dtype_bytes(t, n, &got);
        if (ok != fits || (ok && got != (uint64_t)want))
            fail_msg("%s of %llu elements", info->name, (unsigned long long)n);
        n_overflows += want > UINT64_MAX;
        n_partial += n % info->block_elems != 0;
    }
    assert_true(n_overflows > 1000 && n_partial > 1000); /* the generator reaches the borders */
    uint64_t got;
    assert_false(sl_dtype_bytes(SL_DTYPE_COUNT, 1, &got));
    assert_true(sl_dtype_bytes(SL_DTYPE_Q6_K, 0, &got) && got == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_lookups),
        cmocka_unit_test(sizes_match_wide_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
