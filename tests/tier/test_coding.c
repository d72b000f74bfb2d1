/* SPDX-License-Identifier: MIT
 * Tests of the coding of pages: exact bytes back from every kind of page, with every instruction
 * set; sizes near the entropy; and coded bytes that are damaged, cut or strange.
 */
#include "tier/coding.h"
#include "tier_rig.h"

#include <math.h>

#define MAX_PAGE (1u << 16)
#define N_KINDS  9

static uint8_t page[MAX_PAGE], coded[2 * MAX_PAGE], back[MAX_PAGE + 64], scratch[MAX_PAGE + 64];

static const struct sl_code_kernels *const all_kernels[] = {
    &sl_code_kernels_c, &sl_code_kernels_avx2, &sl_code_kernels_avx512};

/* About normal. */
static float draw(struct sl_rng *rng)
{
    double x = 0;
    for (int i = 0; i < 12; i++)
        x += (double)sl_rng_below(rng, 1u << 20) / (1u << 20);
    return (float)(x - 6);
}

static void fill(uint8_t *p, size_t n, int kind, struct sl_rng *rng)
{
    for (size_t i = 0; i < n; i++) {
        const float x = draw(rng);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        switch (kind) {
        case 0: /* BF16 */
            p[i] = (uint8_t)(bits >> 16 >> 8 * (i % 2));
            break;
        case 1: /* F32 */
            if (i % 4 == 0 && i + 4 <= n)
                memcpy(p + i, &bits, 4);
            else if (n - i / 4 * 4 < 4)
                p[i] = 9;
            break;
        case 2: /* noise */
            p[i] = (uint8_t)sl_rng_below(rng, 256);
            break;
        case 3:
            p[i] = 0x41;
            break;
        case 4: /* rare */
            p[i] = sl_rng_below(rng, 5000) == 0 ? 7 : 0;
            break;
        case 5: /* a geometric share */
            for (p[i] = 0; p[i] < 255 && sl_rng_below(rng, 3) != 0;)
                p[i]++;
            break;
        case 6:
            p[i] = (uint8_t)i;
            break;
        case 7: /* special values of BF16: zeros, infinities, NaN */
            p[i] = (uint8_t[]){
                0, 0x80, 0x80, 0x7f, 0x80, 0xff, 0xc1, 0x7f}[(i % 2) + 2 * sl_rng_below(rng, 4)];
            break;
        default:
            p[i] = (uint8_t)(sl_rng_below(rng, 2) * 255);
        }
    }
}

/* The words of a BF16 page lose their sign with the mantissa: the two bytes of a word are drawn
 * from one number. */
static void pair_words(uint8_t *p, size_t n, struct sl_rng *rng)
{
    for (size_t i = 0; i + 2 <= n; i += 2) {
        const float x = draw(rng);
        memcpy(p + i, (const uint8_t *)&x + 2, 2);
    }
}

static void round_trip(size_t n, size_t n_coded)
{
    for (size_t k = 0; k < SL_COUNT(all_kernels); k++) {
        if (!sl_code_runs(all_kernels[k]))
            continue;
        sl_code_use(all_kernels[k]);
        memset(back, 0xA5, sizeof back);
        assert_true(sl_decode_page(coded, n_coded, back, n, scratch));
        assert_memory_equal(back, page, n);
        for (size_t i = n; i < n + 64; i++)
            assert_int_equal(back[i], 0xA5);
    }
    sl_code_use(NULL);
}

static void every_page_comes_back(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 3};
    static const size_t sizes[] = {5,    31,   32,   33,    63,    64,    65,      127,
                                   1000, 4095, 4096, 10001, 20480, 65535, MAX_PAGE};
    size_t n_fit = 0;
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (size_t i = 0; i < SL_COUNT(sizes); i++) {
            const size_t n = sizes[i];
            fill(page, n, kind, &rng);
            if (kind == 0)
                pair_words(page, n, &rng);
            const size_t n_coded = sl_code_page(page, n, coded, sizeof coded, scratch);
            assert_true(n_coded > 0 && n_coded <= n + 64);
            round_trip(n, n_coded);
            /* There is room for exactly that, and not for a byte less. */
            memset(coded, 0x5A, sizeof coded);
            assert_int_equal(sl_code_page(page, n, coded, n_coded - 1, scratch), 0);
            assert_int_equal(coded[n_coded - 1], 0x5A);
            const size_t again = sl_code_page(page, n, coded, n_coded, scratch);
            n_fit += again == n_coded;
            if (again > 0)
                round_trip(n, again);
        }
    }
    assert_int_equal(n_fit, N_KINDS * SL_COUNT(sizes));
}

/* Coded by any kernel, the bytes are the same. */
static void kernels_agree(void **state)
{
    (void)state;
    static uint8_t first[2 * MAX_PAGE];
    struct sl_rng rng = {.seed = 8};
    for (int kind = 0; kind < N_KINDS; kind++) {
        size_t n_first = 0;
        fill(page, MAX_PAGE, kind, &rng);
        for (size_t k = 0; k < SL_COUNT(all_kernels); k++) {
            if (!sl_code_runs(all_kernels[k]))
                continue;
            sl_code_use(all_kernels[k]);
            const size_t n = sl_code_page(page, MAX_PAGE, coded, sizeof coded, scratch);
            if (n_first == 0) {
                n_first = n;
                memcpy(first, coded, n);
            }
            assert_int_equal(n, n_first);
            assert_memory_equal(coded, first, n);
        }
    }
    sl_code_use(NULL);
}

/* The entropy of the bytes at every second place, of words that are turned by one bit. */
static double entropy_of(size_t n, size_t place)
{
    uint32_t counts[256] = {0};
    double bits = 0;
    for (size_t i = 0; i + 2 <= n; i += 2) {
        const unsigned x = page[i] | (unsigned)page[i + 1] << 8;
        counts[(x << 1 | x >> 15) >> 8 * place & 255]++;
    }
    for (int b = 0; b < 256; b++)
        if (counts[b] > 0)
            bits -= counts[b] * log2((double)counts[b] / (double)(n / 2));
    return bits / 8;
}

static void sizes_are_near_the_entropy(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 5};
    pair_words(page, MAX_PAGE, &rng);
    const size_t n = sl_code_page(page, MAX_PAGE, coded, sizeof coded, scratch);
    const double least = entropy_of(MAX_PAGE, 1) + MAX_PAGE / 2;
    assert_true((double)n > entropy_of(MAX_PAGE, 0) + entropy_of(MAX_PAGE, 1));
    assert_true((double)n < 1.005 * least + 400);
    assert_true(MAX_PAGE / (double)n > 1.35);
}

/* Whatever is damaged: an answer, inside of the page. With a strict end most of it is noticed. */
static void damage_is_survived(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 6};
    size_t n_noticed = 0, n_tried = 0;
    for (int kind = 0; kind < 6; kind++) {
        const size_t n = 3000;
        fill(page, n, kind, &rng);
        const size_t n_coded = sl_code_page(page, n, coded, sizeof coded, scratch);
        for (size_t k = 0; k < SL_COUNT(all_kernels); k++) {
            if (!sl_code_runs(all_kernels[k]))
                continue;
            sl_code_use(all_kernels[k]);
            for (size_t cut = 0; cut < n_coded; cut++) {
                uint8_t *some = malloc(cut + 1); /* so that a sanitizer sees the end */
                assert_non_null(some);
                memcpy(some, coded, cut);
                assert_false(sl_decode_page(some, cut, back, n, scratch));
                free(some);
            }
            for (size_t i = 0; i < n_coded; i++, n_tried++) {
                const uint8_t was = coded[i];
                coded[i] ^= (uint8_t)(1 + sl_rng_below(&rng, 255));
                n_noticed +=
                    !sl_decode_page(coded, n_coded, back, n, scratch) || memcmp(back, page, n) != 0;
                coded[i] = was;
            }
            assert_false(sl_decode_page(coded, n_coded, back, n - 1, scratch));
            assert_false(sl_decode_page(coded, n_coded + 1, back, n, scratch));
        }
    }
    sl_code_use(NULL);
    assert_int_equal(n_noticed, n_tried); /* no two codes of one page differ in one byte */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_page_comes_back),
        cmocka_unit_test(kernels_agree),
        cmocka_unit_test(sizes_are_near_the_entropy),
        cmocka_unit_test(damage_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
