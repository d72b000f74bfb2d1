/* SPDX-License-Identifier: MIT
 * Matrices of four-bit codes: what they are made of (int4_repack.c) against the weights that
 * AutoAWQ, GPTQModel and compressed-tensors make of the same tensors (make_int4_golden.py), and
 * scales that are no numbers.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "io/safetensors.h"
#include "quant/float.h"
#include "quant/int4.h"
#include "quant/int4_repack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char *file;
static struct sl_st *st;

static int open_file(void **state)
{
    struct sl_error err = {0};
    size_t n;
    (void)state;
    if (sl_read_file("tests/golden/int4/int4.safetensors", 1 << 20, &file, &n, &err) != 0 ||
        sl_st_open((const uint8_t *)file, n, "int4.safetensors", &st, &err) != 0) {
        printf("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int close_file(void **state)
{
    (void)state;
    sl_st_close(st);
    sl_free(file);
    return 0;
}

static const struct sl_st_tensor *tensor(const char *name, const char *part)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return sl_st_find(st, full);
}

static const uint8_t *data_of(const char *name, const char *part)
{
    const struct sl_st_tensor *t = tensor(name, part);
    return t != NULL ? (const uint8_t *)file + t->offset : NULL;
}

struct golden {
    const char *name;
    enum sl_int4_order order;
    bool less_one;
    int64_t group;
};

static const struct golden goldens[] = {
    {"gptq_128", SL_INT4_GPTQ, true, 128},        {"gptq_32", SL_INT4_GPTQ, true, 32},
    {"gptq_v2_64", SL_INT4_GPTQ, false, 64},      {"gptq_v2_256", SL_INT4_GPTQ, false, 256},
    {"awq_128", SL_INT4_AWQ, false, 128},         {"awq_32", SL_INT4_AWQ, false, 32},
    {"packed_128", SL_INT4_ROWS, false, 128},     {"packed_32", SL_INT4_ROWS, false, 32},
    {"packed_sym_128", SL_INT4_ROWS, false, 128}, {"packed_sym_256", SL_INT4_ROWS, false, 256},
};

static struct sl_int4_src source_of(const struct golden *g)
{
    const bool rows = g->order == SL_INT4_ROWS;
    const struct sl_st_tensor *w = tensor(g->name, "weight");
    assert_non_null(w);
    return (struct sl_int4_src){
        .order = g->order,
        .n_rows = w->dims[0],
        .n_cols = w->dims[1],
        .group = g->group,
        .codes = data_of(g->name, rows ? "weight_packed" : "qweight"),
        .zeros = data_of(g->name, rows ? "weight_zero_point" : "qzeros"),
        .less_one = g->less_one,
        .scales = data_of(g->name, rows ? "weight_scale" : "scales"),
        .scale_dtype = strcmp(w->dtype, "F16") == 0 ? SL_DTYPE_F16 : SL_DTYPE_BF16,
    };
}

/* Rows in two pieces, so that each begins somewhere; *bad as sl_int4_repack says. */
static float *floats_of(const struct sl_int4_src *s, enum sl_dtype dtype, int64_t *bad)
{
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    const size_t row_bytes = (size_t)s->n_cols / info->block_elems * info->block_bytes;
    uint8_t *blocks = sl_malloc((size_t)s->n_rows * row_bytes);
    float *x = sl_calloc((size_t)(s->n_rows * s->n_cols), sizeof *x);
    assert_true(blocks != NULL && x != NULL);
    *bad = sl_int4_repack(s, dtype, 0, SL_INT4_WORD, blocks);
    if (*bad < 0)
        *bad = sl_int4_repack(s, dtype, SL_INT4_WORD, s->n_rows - SL_INT4_WORD,
                              blocks + SL_INT4_WORD * row_bytes);
    if (*bad < 0)
        info->to_f32(blocks, x, s->n_rows * s->n_cols);
    sl_free(blocks);
    return x;
}

/* The libraries round to the scales' format what is exact here. */
static void weights_equal_the_libraries(void **state)
{
    (void)state;
    for (size_t c = 0; c < SL_COUNT(goldens); c++) {
        const struct sl_int4_src s = source_of(&goldens[c]);
        const uint8_t *want = data_of(goldens[c].name, "weight");
        for (int small = goldens[c].group % 128 != 0; small < 2; small++) {
            int64_t bad;
            float *x = floats_of(&s, small ? SL_DTYPE_INT4_G32 : SL_DTYPE_INT4_G128, &bad);
            assert_int_equal(bad, -1);
            for (int64_t i = 0; i < s.n_rows * s.n_cols; i++) {
                const uint16_t have =
                    s.scale_dtype == SL_DTYPE_F16 ? sl_f32_to_f16(x[i]) : sl_f32_to_bf16(x[i]);
                const uint16_t bits = sl_load_u16(want + 2 * i);
                /* a zero may have the other sign */
                if (have != bits && ((have | bits) & 0x7FFF) != 0)
                    fail_msg("%s: row %d, column %d: %04x, expected %04x", goldens[c].name,
                             (int)(i / s.n_cols), (int)(i % s.n_cols), have, bits);
            }
            sl_free(x);
        }
    }
}

/* Every pair of a code and a zero point with every scale of f16 that is a number: the float is the
 * exact product. */
static void products_are_exact(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits += 7) {
        const float scale = sl_f16_to_f32((uint16_t)bits);
        if (!isfinite(scale))
            continue;
        for (uint32_t zero = 0; zero < 16; zero += 5) {
            uint8_t block[20] = {0};
            float x[32];
            sl_int4_store_head(block, sl_int4_head(scale, zero));
            for (int j = 0; j < 16; j++)
                block[4 + j] = (uint8_t)(j | (15 - j) << 4);
            sl_int4_g32_to_f32(block, x, 32);
            for (int j = 0; j < 32; j++) {
                const int code = j < 16 ? j : 31 - j;
                assert_true((double)x[j] == (double)scale * (code - (int)zero));
            }
        }
    }
}

/* A scale that is no number is found wherever it is, and its row is told. */
static void bad_scales_are_found(void **state)
{
    static const uint16_t bad_f16[] = {0x7C00, 0xFC00, 0x7E00, 0xFE01};
    static const uint16_t bad_bf16[] = {0x7F80, 0xFF80, 0x7FC0, 0x7180 /* 2^100 */};
    struct sl_rng rng = {.seed = 3};
    (void)state;
    for (size_t c = 0; c < SL_COUNT(goldens); c++) {
        struct sl_int4_src s = source_of(&goldens[c]);
        const int64_t n_groups = s.n_cols / s.group;
        uint8_t scales[2 * 16 * 8];
        for (int round = 0; round < 20; round++) {
            const int64_t row = (int64_t)sl_rng_below(&rng, (uint64_t)s.n_rows);
            const int64_t g = (int64_t)sl_rng_below(&rng, (uint64_t)n_groups);
            const int64_t at = s.order == SL_INT4_ROWS ? row * n_groups + g : g * s.n_rows + row;
            int64_t bad;
            memcpy(scales, source_of(&goldens[c]).scales, (size_t)(2 * s.n_rows * n_groups));
            sl_store_u16(scales + 2 * at,
                         (s.scale_dtype == SL_DTYPE_F16 ? bad_f16 : bad_bf16)[round % 4]);
            s.scales = scales;
            sl_free(floats_of(&s, SL_DTYPE_INT4_G32, &bad));
            assert_int_equal(bad, row);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_equal_the_libraries),
        cmocka_unit_test(products_are_exact),
        cmocka_unit_test(bad_scales_are_found),
    };
    return cmocka_run_group_tests(tests, open_file, close_file);
}
