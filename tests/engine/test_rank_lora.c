/* SPDX-License-Identifier: MIT
 * Adapters as messages between ranks: what a rank has of them in the end is what rank 0 packed for
 * it, and no change of the bytes makes a rank write or believe what is not its own.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/rank_lora.h"
#include "synth/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_RANKS = 4, N_SLOTS = 2, MAX_RANK = 9, MAX_MESSAGE = 3000, N_CHANGES = 4000 };

static char folder[] = "/tmp/sl_test_rank_lora_XXXXXX";

struct setting {
    struct sl_ckpt *ckpt;
    struct sl_model *models[N_RANKS];
    struct sl_lora *lora;
};

static void open_setting(struct setting *s, int32_t rank)
{
    struct sl_error err = {0};
    char path[128], adapter[128];
    struct sl_synth how = {.name = "llama", .dtype = SL_DTYPE_BF16, .seed = 3};
    const struct sl_lora_options opt = {.max_rank = MAX_RANK};
    struct sl_synth_lora spec = {
        .rank = rank, .alpha = 16, .size = 0.5, .dtype = SL_DTYPE_F32, .seed = 9};
    snprintf(path, sizeof path, "%s/model", folder);
    snprintf(adapter, sizeof adapter, "%s/adapter", folder);
    if (sl_synth_shape(how.name, "tiny", &how.hp, &err) != 0)
        fail_msg("%s", err.msg);
    how.hp.n_heads = 8;
    how.hp.n_kv_heads = 4;
    if (sl_synth_write(&how, path, &err) != 0 || sl_ckpt_open(path, &s->ckpt, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < N_RANKS; i++)
        if (sl_model_open(s->ckpt, &s->models[i], &err) != 0 ||
            sl_model_set_rank(s->models[i], i, N_RANKS, &err) != 0)
            fail_msg("%s", err.msg);
    if (sl_synth_lora_write(s->models[0], &spec, adapter, &err) != 0 ||
        sl_lora_open(s->models[0], adapter, &opt, &s->lora, &err) != 0)
        fail_msg("%s", err.msg);
}

static void close_setting(struct setting *s)
{
    sl_lora_close(s->lora);
    for (int i = 0; i < N_RANKS; i++)
        sl_model_close(s->models[i]);
    sl_ckpt_close(s->ckpt);
}

/* All messages of an adapter, to all ranks; each receives all. Returns how many there were. */
static int send_all(const struct sl_lora *lora, int32_t slot, struct sl_rank_lora *to)
{
    struct sl_error err = {0};
    static uint8_t data[MAX_MESSAGE];
    int n_messages = 0;
    for (int32_t i = 1; i < N_RANKS; i++) {
        const struct sl_lora_weights *w = sl_lora_of_rank(&lora->w, i);
        size_t at = 0, n = sl_rank_lora_begin(w, i, slot, data);
        for (;; n_messages++) {
            assert_true(n <= sizeof data);
            for (int32_t k = 1; k < N_RANKS; k++)
                if (sl_rank_lora_get(&to[k], data, n, &err) != 0)
                    fail_msg("%s", err.msg);
            assert_int_equal(to[i].weights[slot] != NULL, at == w->n_bytes);
            if (at == w->n_bytes)
                break;
            n = sl_rank_lora_piece(w, i, slot, sizeof data, &at, data);
        }
    }
    return n_messages;
}

static void must_be(const struct sl_lora_weights *have, const struct sl_lora_weights *want)
{
    assert_int_equal(have->n_bytes, want->n_bytes);
    assert_int_equal(have->max_rank, want->max_rank);
    assert_int_equal(have->dtype, want->dtype);
    assert_memory_equal(have->block, want->block, want->n_bytes);
    for (int32_t i = 0; i < want->n_mats; i++) {
        const struct sl_lora_mat *a = &have->mats[i], *b = &want->mats[i];
        assert_int_equal(a->rank, b->rank);
        assert_memory_equal(&a->scale, &b->scale, sizeof a->scale);
        if (b->rank == 0)
            continue;
        assert_true((const uint8_t *)a->a - (const uint8_t *)have->block ==
                    (const uint8_t *)b->a - (const uint8_t *)want->block);
        assert_true((const uint8_t *)a->b - (const uint8_t *)have->block ==
                    (const uint8_t *)b->b - (const uint8_t *)want->block);
    }
}

static void test_messages(void **state)
{
    (void)state;
    struct setting s;
    struct sl_error err = {0};
    struct sl_rank_lora to[N_RANKS] = {{.model = NULL}};
    open_setting(&s, MAX_RANK);
    for (int i = 1; i < N_RANKS; i++)
        assert_int_equal(sl_rank_lora_init(&to[i], s.models[i], i, N_SLOTS, MAX_RANK, &err), 0);
    assert_true(send_all(s.lora, 1, to) > 2 * N_RANKS); /* it is cut */
    assert_true(send_all(s.lora, 1, to) > 2 * N_RANKS); /* over the old one */
    for (int i = 1; i < N_RANKS; i++) {
        must_be(to[i].weights[1], sl_lora_of_rank(&s.lora->w, i));
        assert_null(to[i].weights[0]);
        sl_rank_lora_clear(&to[i]);
        assert_null(to[i].weights[1]);
    }
    /* ranks have different rows of B, and all of them together */
    assert_memory_not_equal(s.lora->w.block, s.lora->others[0].block, s.lora->w.n_bytes);
    for (int i = 1; i < N_RANKS; i++)
        sl_rank_lora_deinit(&to[i]);
    close_setting(&s);
}

/* What is accepted leaves a slot empty or with matrices within its room. */
static void must_be_safe(const struct sl_rank_lora *l)
{
    for (int32_t i = 0; i < l->n_slots; i++) {
        const struct sl_lora_weights *w = l->weights[i];
        if (w == NULL)
            continue;
        assert_true(w->n_bytes <= l->room && w->max_rank <= MAX_RANK && w->max_rank >= 0);
        for (int32_t k = 0; k < w->n_mats; k++)
            assert_true(w->mats[k].rank >= 0 && w->mats[k].rank <= w->max_rank);
    }
}

static void test_changed(void **state)
{
    (void)state;
    struct setting s;
    struct sl_error err = {0};
    struct sl_rank_lora to;
    struct sl_rng rng = {.seed = 4};
    static uint8_t data[MAX_MESSAGE];
    int n_refused = 0;
    open_setting(&s, 5);
    assert_int_equal(sl_rank_lora_init(&to, s.models[1], 1, N_SLOTS, MAX_RANK, &err), 0);
    for (int i = 0; i < N_CHANGES; i++) {
        static const int32_t odd[] = {-1, 0, 1, 2, INT32_MAX, INT32_MIN, MAX_RANK, MAX_RANK + 1};
        size_t at = 0;
        for (size_t n = sl_rank_lora_begin(&s.lora->others[0], 1, 0, data);;) {
            const size_t word = (size_t)sl_rng_below(&rng, SL_MIN(n, (size_t)40) / 4) * 4;
            if (sl_rng_below(&rng, 3) == 0)
                memcpy(data + word, &odd[sl_rng_below(&rng, SL_COUNT(odd))], 4);
            const size_t less = sl_rng_below(&rng, 8) == 0 ? 1 + (size_t)sl_rng_below(&rng, n) : 0;
            if (sl_rank_lora_get(&to, data, n - less, &err) != 0) {
                n_refused++;
                assert_non_null(strstr(err.msg, "rank 0 sent an adapter whose "));
            }
            must_be_safe(&to);
            if (at == s.lora->others[0].n_bytes || sl_rng_below(&rng, 8) == 0)
                break;
            n = sl_rank_lora_piece(&s.lora->others[0], 1, 0, sizeof data, &at, data);
        }
    }
    printf("%d messages refused\n", n_refused);
    assert_true(n_refused > N_CHANGES / 2);
    sl_rank_lora_deinit(&to);
    close_setting(&s);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages),
                                       cmocka_unit_test(test_changed)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
