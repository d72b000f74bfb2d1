/* SPDX-License-Identifier: MIT
 * How the memory plan divides a budget between groups of layers, on a model with five windowed
 * layers to a full one and a context of 32k, on models with recurrent layers, and beside a model
 * that drafts.
 */
#include "base/check.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "engine/load/memory_plan.h"
#include "kv/group.h"
#include "synth/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CONTEXT = 32768, LAYERS = 6, WINDOW = 1024, BLOCK = 16 };

static char dir[256], path[300];
static struct sl_ckpt *ckpt;
static struct sl_model *model;
static struct sl_backend *be;

static int setup(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_synth s = {.name = "qwen2", .dtype = SL_DTYPE_F32, .format = SL_CKPT_HF, .seed = 1};
    struct sl_cpu_config cpu = {.n_threads = 1};
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/sluice-test-XXXXXX", base != NULL ? base : P_tmpdir);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m", dir);
    if (sl_synth_shape(s.name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.n_layers = LAYERS;
    s.hp.context = CONTEXT;
    s.hp.window = WINDOW;
    s.hp.use_window = true;
    s.hp.max_window_layers = 1;
    if (sl_synth_write(&s, path, &err) != 0 || sl_ckpt_open(path, &ckpt, &err) != 0 ||
        sl_model_open(ckpt, &model, &err) != 0 || sl_cpu_create(&cpu, &be, &err) != 0)
        fail_msg("%s", err.msg);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[400];
    be->vt->destroy(be);
    sl_model_close(model);
    sl_ckpt_close(ckpt);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static struct sl_memory_plan plan(struct sl_engine_config cfg)
{
    struct sl_memory_plan p;
    struct sl_error err;
    cfg.max_num_batched_tokens = 512;
    cfg.block_size = BLOCK;
    if (sl_memory_plan_make(model, NULL, be, &cfg, &p, &err) != 0)
        fail_msg("%s", err.msg);
    return p;
}

static void windowed_layers_do_not_hold_the_context(void **state)
{
    (void)state;
    const struct sl_memory_plan p = plan((struct sl_engine_config){.max_num_seqs = 4});
    const uint64_t layer = p.kv.groups[0].page_bytes;
    assert_int_equal(p.kv.n_groups, 2);
    assert_int_equal(p.kv.groups[0].n_layers, 1);
    assert_int_equal(p.kv.groups[1].n_layers, LAYERS - 1);
    assert_int_equal(p.kv.groups[1].window, WINDOW);
    assert_int_equal(p.kv.groups[1].page_bytes, (LAYERS - 1) * layer);
    assert_int_equal(p.max_model_len, CONTEXT);
    assert_int_equal(p.n_pages, 4 * CONTEXT / BLOCK);
    assert_int_equal(p.group_pages[0], p.n_pages);
    /* What four sequences see, two steps, one block of eight. */
    assert_int_equal(p.group_pages[1], 4 * (WINDOW / BLOCK + 2) + 2 * 512 / BLOCK + p.n_pages / 8);
    const uint64_t before = (uint64_t)p.n_pages * LAYERS * layer;
    assert_true(3 * p.kv_bytes < before);
    printf("32k tokens, 4 sequences: %.1f MB of pages, %.1f MB without windows\n",
           (double)p.kv_bytes / 1e6, (double)before / 1e6);
}

/* Every budget is used up to less than a block, and no group has more pages than blocks. */
static void a_budget_is_divided(void **state)
{
    (void)state;
    const struct sl_memory_plan all = plan((struct sl_engine_config){.max_num_seqs = 4});
    const uint64_t block = sl_kv_block_bytes(&all.kv);
    int32_t before = 0;
    for (uint64_t n_bytes = block; n_bytes < 2 * all.kv_bytes; n_bytes += n_bytes / 3) {
        const struct sl_memory_plan p =
            plan((struct sl_engine_config){.max_num_seqs = 4, .kv_cache_bytes = n_bytes});
        assert_true(p.kv_bytes <= n_bytes && p.kv_bytes + block > n_bytes);
        assert_true(p.n_pages >= before && p.group_pages[1] <= p.n_pages);
        struct sl_kv_group_config c = {
            .kind = SL_GROUP_WINDOW, .window = WINDOW, .n_pages = p.group_pages[1]};
        assert_true(c.n_pages >= sl_group_least(&c, p.n_pages, BLOCK));
        assert_int_equal(p.max_model_len, SL_MIN(CONTEXT, p.n_pages * BLOCK));
        /* Loading again with what a plan took gives as many blocks. */
        const struct sl_memory_plan again =
            plan((struct sl_engine_config){.max_num_seqs = 4,
                                           .max_model_len = p.max_model_len,
                                           .kv_cache_bytes = sl_memory_plan_pool_bytes(&p)});
        assert_int_equal(again.n_pages, p.n_pages);
        before = p.n_pages;
    }
    assert_true(before > all.n_pages);
}

/* ---- recurrent layers */

static int plan_of(const char *name, const struct sl_engine_config *cfg, struct sl_memory_plan *p,
                   struct sl_error *err)
{
    struct sl_ckpt *c;
    struct sl_model *m = NULL;
    int rc = sl_ckpt_open(name, &c, err);
    assert_int_equal(rc, 0);
    rc = sl_model_open(c, &m, err);
    assert_int_equal(rc, 0);
    rc = sl_memory_plan_make(m, NULL, be, cfg, p, err);
    sl_model_close(m);
    sl_ckpt_close(c);
    return rc;
}

static struct sl_memory_plan state_plan(const char *name, struct sl_engine_config cfg)
{
    struct sl_memory_plan p;
    struct sl_error err;
    if (plan_of(name, &cfg, &p, &err) != 0)
        fail_msg("%s", err.msg);
    return p;
}

static void refused(const char *name, struct sl_engine_config cfg, const char *why)
{
    struct sl_memory_plan p;
    struct sl_error err;
    assert_int_not_equal(plan_of(name, &cfg, &p, &err), 0);
    if (strstr(err.msg, why) == NULL)
        fail_msg("'%s' lacks '%s'", err.msg, why);
}

#define HYBRID "tests/golden/models/granitemoehybrid"
#define MAMBA  "tests/golden/models/mamba2"

static void sequences_have_two_slots_each(void **state)
{
    (void)state;
    struct sl_memory_plan p = state_plan(HYBRID, (struct sl_engine_config){.max_num_seqs = 4});
    const uint64_t slot = p.kv.groups[1].page_bytes, block = p.kv.groups[0].page_bytes;
    assert_true(p.kv.groups[1].state && !p.seqs_lowered);
    assert_int_equal(p.group_pages[1], 4 * 2 + (uint64_t)p.n_pages * block / 4 / slot);
    p = state_plan(HYBRID, (struct sl_engine_config){.max_state_slots = 7});
    assert_int_equal(p.group_pages[1], 7);
    assert_int_equal(p.max_num_seqs, 3);
    assert_true(p.seqs_lowered);
    /* Two for each of them in half of a small pool; a sequence of 32 tokens needs two blocks. */
    p = state_plan(HYBRID, (struct sl_engine_config){.kv_cache_bytes = 20 * slot});
    assert_int_equal(p.max_num_seqs, 5);
    assert_true(p.seqs_lowered && p.n_pages >= 10 && p.group_pages[1] >= 10);
    assert_true(sl_memory_plan_pool_bytes(&p) <= 20 * slot);
    const struct sl_memory_plan again = state_plan(
        HYBRID, (struct sl_engine_config){.kv_cache_bytes = sl_memory_plan_pool_bytes(&p),
                                          .max_num_seqs = p.max_num_seqs,
                                          .max_model_len = p.max_model_len});
    assert_int_equal(again.n_pages, p.n_pages);
    assert_int_equal(again.group_pages[1], p.group_pages[1]);
    refused(HYBRID, (struct sl_engine_config){.max_num_seqs = 4, .max_state_slots = 7},
            "raise max_state_slots");
    refused(HYBRID, (struct sl_engine_config){.max_num_seqs = 11, .kv_cache_bytes = 20 * slot},
            "raise kv_cache_memory_bytes");
    refused(HYBRID, (struct sl_engine_config){.kv_cache_bytes = slot}, "needs 2");
}

#define DRAFTS "{\"method\": \"ngram\", \"num_speculative_tokens\": 4}"

/* Slots for the states behind drafts: an eighth of the pool, at least those of one sequence, at
 * most those of all; never more than half of the pool. */
static void drafts_have_slots_of_their_own(void **state)
{
    (void)state;
    struct sl_engine_config cfg = {.max_num_seqs = 3};
    const struct sl_memory_plan plain = state_plan(HYBRID, cfg);
    const uint64_t slot = plain.kv.groups[1].page_bytes;
    assert_int_equal(plain.n_draft_states, 0);
    cfg.speculative_config = DRAFTS;
    struct sl_memory_plan p = state_plan(HYBRID, cfg);
    assert_int_equal(p.n_draft_states, 3 * 4);
    assert_int_equal(sl_memory_plan_draft_pages(&p, 1), 3 * 4);
    assert_int_equal(sl_memory_plan_draft_pages(&p, 0), 0);
    assert_int_equal(p.n_pages, plain.n_pages);
    assert_int_equal(p.group_pages[1], plain.group_pages[1]);
    assert_int_equal(p.kv_bytes, plain.kv_bytes + 12 * slot);
    static const struct {
        int32_t n_slots, n_drafts;
    } pools[] = {{6, 3}, {20, 4}, {64, 8}, {500, 12}};
    for (size_t i = 0; i < SL_COUNT(pools); i++) {
        for (int k = 0; k < 2; k++) {
            const char *name = k == 0 ? HYBRID : MAMBA;
            const uint64_t bytes = state_plan(name, (struct sl_engine_config){.max_num_seqs = 1})
                                       .kv.groups[1 - k]
                                       .page_bytes;
            cfg.max_num_seqs = i == 0 ? 1 : 3;
            cfg.kv_cache_bytes = (uint64_t)pools[i].n_slots * bytes;
            p = state_plan(name, cfg);
            assert_int_equal(p.n_draft_states, pools[i].n_drafts);
            assert_true(sl_memory_plan_pool_bytes(&p) <= cfg.kv_cache_bytes);
            assert_true(p.group_pages[1 - k] >= 2 * cfg.max_num_seqs || i == 0);
        }
    }
    cfg.max_num_seqs = 1;
    cfg.kv_cache_bytes = slot;
    refused(HYBRID, cfg, "speculative-config: the recurrent state behind a draft takes");
}

/* All is state: slots take the pool, blocks are nodes that hold nothing. */
static void a_model_may_be_all_state(void **state)
{
    (void)state;
    struct sl_memory_plan p = state_plan(MAMBA, (struct sl_engine_config){.max_num_seqs = 4});
    assert_int_equal(p.kv.n_groups, 1);
    assert_int_equal(p.group_pages[0], 4 * 8);
    assert_true(p.n_pages >= p.max_model_len / BLOCK && !p.context_lowered);
    const uint64_t slot = p.kv.groups[0].page_bytes;
    p = state_plan(MAMBA, (struct sl_engine_config){.kv_cache_bytes = 100 * slot});
    assert_int_equal(p.group_pages[0], 100);
    assert_int_equal(p.max_num_seqs, 50);
    assert_int_equal(p.kv_bytes, 100 * slot);
    p = state_plan(MAMBA, (struct sl_engine_config){.max_model_len = 64, .max_num_seqs = 3});
    assert_int_equal(p.n_pages, 3 * 64 / BLOCK);
    assert_int_equal(p.group_pages[0], 3 * 64 / BLOCK);
}

/* Of a budget that several models share, states are a model's own, as many as go with its part. */
static void states_are_not_shared(void **state)
{
    (void)state;
    struct sl_shared *shared;
    struct sl_error err;
    const uint64_t total = 4 << 20;
    assert_int_equal(sl_shared_create(total, 2, &shared, &err), 0);
    struct sl_engine_config cfg = {.shared = shared,
                                   .max_num_seqs = 4,
                                   .speculative_config = "{\"method\": \"ngram\", "
                                                         "\"num_speculative_tokens\": 2}"};
    struct sl_memory_plan p = state_plan(HYBRID, cfg);
    assert_int_equal(p.own_bytes, sl_memory_plan_group_bytes(&p, 1));
    assert_true(p.group_pages[1] >= 8 && p.own_bytes < total / 2);
    assert_true(p.own_bytes + (uint64_t)p.n_floor_pages * p.kv.groups[0].page_bytes <= total / 2);
    assert_true(p.n_draft_states > 0);
    p = state_plan(MAMBA, cfg);
    assert_int_equal(p.own_bytes, p.kv_bytes);
    assert_int_equal(p.n_floor_pages, 0);
    assert_true(p.group_pages[0] >= 8 && p.kv_bytes <= total / 2);
    sl_shared_destroy(shared);
}

/* ---- a model that drafts */

static struct sl_memory_plan draft_plan(struct sl_engine_config cfg, const char *json)
{
    struct sl_memory_plan p;
    struct sl_error err;
    cfg.max_num_batched_tokens = 512;
    cfg.block_size = BLOCK;
    cfg.speculative_config = json;
    if (sl_memory_plan_make(model, model, be, &cfg, &p, &err) != 0)
        fail_msg("%s", err.msg);
    return p;
}

/* Every block of the full group has a page of the drafter too, which holds all of its layers. What
 * a pass writes behind a sequence's blocks has pages that are not of the budget. */
static void a_drafter_has_pages_beside(void **state)
{
    (void)state;
    static const char json[] = "{\"method\":\"draft_model\",\"model\":\"itself\","
                               "\"num_speculative_tokens\":20}";
    const struct sl_memory_plan alone = plan((struct sl_engine_config){.max_num_seqs = 4});
    const struct sl_memory_plan all =
        draft_plan((struct sl_engine_config){.max_num_seqs = 4}, json);
    const uint64_t page = sl_kv_block_bytes(&alone.kv);
    const uint64_t spare = (1 + 4 * 2) * page; /* of padding, and two of each sequence */
    assert_int_equal(all.draft_kv.n_groups, 1);
    assert_int_equal(all.draft_kv.groups[0].n_layers, LAYERS);
    assert_int_equal(all.draft_kv.groups[0].page_bytes, page);
    assert_int_equal(sl_memory_plan_page_bytes(&all, 0), page + all.kv.groups[0].page_bytes);
    assert_int_equal(sl_memory_plan_page_bytes(&all, 1), all.kv.groups[1].page_bytes);
    assert_int_equal(all.n_pages, alone.n_pages);
    assert_int_equal(sl_memory_plan_draft_bytes(&all), (uint64_t)all.n_pages * page + spare);
    assert_int_equal(all.kv_bytes, alone.kv_bytes + sl_memory_plan_draft_bytes(&all));
    assert_int_equal(all.packed_bytes + all.mapped_bytes,
                     2 * (alone.packed_bytes + alone.mapped_bytes));
    assert_true(all.activation_bytes > alone.activation_bytes + all.draft_activation_bytes / 2);
    for (uint64_t n_bytes = 4 * page; n_bytes < 2 * all.kv_bytes; n_bytes += n_bytes / 2) {
        const struct sl_memory_plan p = draft_plan(
            (struct sl_engine_config){.max_num_seqs = 4, .kv_cache_bytes = n_bytes}, json);
        assert_true(p.kv_bytes - spare <= n_bytes && p.kv_bytes - spare + 2 * page > n_bytes);
        assert_int_equal(sl_memory_plan_pool_bytes(&p), p.kv_bytes - spare);
    }
    /* n-grams need none of that. */
    const struct sl_memory_plan ngrams =
        draft_plan((struct sl_engine_config){.max_num_seqs = 4},
                   "{\"method\":\"ngram\",\"num_speculative_tokens\":20}");
    assert_int_equal(ngrams.kv_bytes, alone.kv_bytes);
    assert_int_equal(sl_memory_plan_draft_bytes(&ngrams), 0);
}

/* Layers of several windows in one group: no two places overlap. */
static void places_of_groups_merge(void **state)
{
    (void)state;
    struct sl_kv_layout l = {.block_size = BLOCK, .dtype = SL_DTYPE_F32};
    struct sl_error err;
    static const int32_t windows[] = {0, 64, 32, 64, 0, 32};
    bool used[1 << 16] = {false};
    const uint32_t n = (uint32_t)sl_kv_tile_bytes(SL_DTYPE_F32, 8) * (BLOCK / SL_KV_TILE);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < (int32_t)SL_COUNT(windows); i++)
            if ((windows[i] == 0) == (pass == 0))
                assert_int_equal(sl_kv_layout_add(&l, i, windows[i], 1, 8, 8, &err), 0);
    assert_int_equal(l.n_groups, 3);
    assert_int_equal(sl_kv_layout_merge(&l, &err), 0);
    assert_int_equal(l.n_groups, 1);
    assert_int_equal(l.groups[0].n_layers, SL_COUNT(windows));
    assert_int_equal(l.groups[0].page_bytes, 2 * n * SL_COUNT(windows));
    for (size_t i = 0; i < SL_COUNT(windows); i++)
        for (int v = 0; v < 2; v++) {
            const uint32_t at = v == 0 ? l.places[i].k_offset : l.places[i].v_offset;
            assert_int_equal(l.places[i].group, 0);
            assert_true(at % n == 0 && at + n <= l.groups[0].page_bytes && !used[at / n]);
            used[at / n] = true;
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drafter_has_pages_beside),
        cmocka_unit_test(places_of_groups_merge),
        cmocka_unit_test(windowed_layers_do_not_hold_the_context),
        cmocka_unit_test(a_budget_is_divided),
        cmocka_unit_test(sequences_have_two_slots_each),
        cmocka_unit_test(drafts_have_slots_of_their_own),
        cmocka_unit_test(a_model_may_be_all_state),
        cmocka_unit_test(states_are_not_shared),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
