/* SPDX-License-Identifier: MIT
 * Tests of slots: the order of eviction against a list kept here, groups that share the room, and
 * what has to hold after every call.
 */
#include "tier/slots.h"
#include "tier_rig.h"

#define N_NAMES 64

/* What a tier of one group of `room` pages must do: names by their last use. */
struct model {
    int32_t n, room;
    struct {
        uint64_t id;
        int32_t n_holds;
        bool ready;
    } pages[N_NAMES]; /* least recently used first */
};

static int32_t model_find(const struct model *m, uint64_t id)
{
    for (int32_t i = 0; i < m->n; i++)
        if (m->pages[i].id == id)
            return i;
    return -1;
}

static void model_remove(struct model *m, int32_t i)
{
    memmove(&m->pages[i], &m->pages[i + 1], (size_t)(--m->n - i) * sizeof m->pages[0]);
}

static void model_use(struct model *m, int32_t i)
{
    struct model old = *m;
    model_remove(m, i);
    m->pages[m->n++] = old.pages[i];
}

/* Is there room for another page? Forgets the oldest that nobody holds, if it must. */
static bool model_take(struct model *m, uint64_t id)
{
    int32_t victim = -1;
    for (int32_t i = m->n - 1; i >= 0; i--)
        if (m->pages[i].n_holds == 0)
            victim = i;
    if (m->n == m->room && victim < 0)
        return false;
    if (m->n == m->room)
        model_remove(m, victim);
    m->pages[m->n].id = id;
    m->pages[m->n].ready = false;
    m->pages[m->n++].n_holds = 1;
    return true;
}

static void check(const struct sl_slots *s)
{
    struct sl_error err = {0};
    if (sl_slots_check(s, &err) != 0)
        fail_msg("%s", err.msg);
}

static void one_call(struct sl_slots *s, struct model *m, struct sl_rng *rng)
{
    uint64_t id = sl_rng_below(rng, N_NAMES);
    struct sl_store_key key = rig_key(id, 0);
    int32_t at = model_find(m, id), slot = sl_slots_find(s, &key);
    assert_int_equal(at >= 0, slot != SL_NO_SLOT);
    if (at < 0) {
        assert_int_equal(model_take(m, id), sl_slots_take(s, &key) != SL_NO_SLOT);
        return;
    }
    switch (sl_rng_below(rng, 5)) {
    case 0:
        if (m->pages[at].ready || m->pages[at].n_holds > 0) {
            sl_slots_hold(s, slot);
            m->pages[at].n_holds++;
        }
        break;
    case 1:
        sl_slots_touch(s, slot);
        model_use(m, at);
        break;
    case 2:
        if (m->pages[at].n_holds == 1) {
            sl_slots_drop(s, slot);
            model_remove(m, at);
        }
        break;
    default:
        if (m->pages[at].n_holds == 0)
            break;
        if (!m->pages[at].ready)
            sl_slots_ready(s, slot);
        m->pages[at].ready = true;
        sl_slots_release(s, slot);
        m->pages[at].n_holds--;
        model_use(m, at);
    }
}

/* The least recently used page goes, and what is held never does. */
static void evicts_as_a_list_does(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct sl_slots s;
        struct sl_error err = {0};
        struct sl_rng rng = {.seed = seed};
        int32_t n_per_chunk = 1 + (int32_t)sl_rng_below(&rng, 7);
        int32_t n_chunks = 2 + (int32_t)sl_rng_below(&rng, 4);
        struct model m = {.room = n_per_chunk * n_chunks};
        assert_int_equal(sl_slots_init(&s, 1, &n_per_chunk, (uint64_t)n_chunks, &err), 0);
        for (int i = 0; i < 4000; i++) {
            one_call(&s, &m, &rng);
            check(&s);
        }
        assert_true(s.n_evicted > 0);
        sl_slots_deinit(&s);
    }
}

/* Random calls on groups of different sizes, with either policy: everything that must hold does,
 * and no held page goes. */
static void groups_keep_their_promises(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct sl_slots s;
        struct sl_error err = {0};
        struct sl_rng rng = {.seed = 1000 + seed};
        int32_t n_per_chunk[3] = {8, 3, 1}, n_groups = 1 + (int32_t)sl_rng_below(&rng, 3);
        int32_t holds[3][N_NAMES] = {{0}};
        assert_int_equal(sl_slots_init(&s, n_groups, n_per_chunk, 5, &err), 0);
        if (seed % 2 == 1)
            assert_int_equal(sl_slots_use_arc(&s, &err), 0);
        for (int i = 0; i < 4000; i++) {
            struct sl_store_key key = rig_key(sl_rng_below(&rng, N_NAMES),
                                              (int32_t)sl_rng_below(&rng, (uint64_t)n_groups));
            int32_t *n = &holds[key.group][key.name.hi], slot = sl_slots_find(&s, &key);
            assert_true(*n == 0 || slot != SL_NO_SLOT);
            if (slot == SL_NO_SLOT) {
                slot = sl_slots_take(&s, &key);
                if (slot != SL_NO_SLOT)
                    sl_slots_ready(&s, slot);
                *n += slot != SL_NO_SLOT;
            } else if (sl_rng_below(&rng, 4) == 0) {
                (sl_rng_below(&rng, 2) == 0 ? sl_slots_again : sl_slots_touch)(&s, slot);
            } else if (*n == 1 && sl_rng_below(&rng, 16) == 0) {
                sl_slots_drop(&s, slot);
                *n = 0;
            } else if (*n > 0 && sl_rng_below(&rng, 8) != 0) {
                sl_slots_release(&s, slot);
                --*n;
            } else {
                sl_slots_hold(&s, slot);
                ++*n;
            }
            check(&s);
        }
        sl_slots_deinit(&s);
    }
}

/* ARC: what was used again stays while twice the room passes by once, and then gives way to what
 * comes back. */
static void arc_keeps_what_is_used_again(void **state)
{
    (void)state;
    struct sl_slots s;
    struct sl_error err = {0};
    int32_t n_per_chunk = 4;
    assert_int_equal(sl_slots_init(&s, 1, &n_per_chunk, 4, &err), 0);
    assert_int_equal(sl_slots_use_arc(&s, &err), 0);
    for (uint64_t id = 0; id < 40; id++) {
        struct sl_store_key key = rig_key(id, 0);
        int32_t slot = sl_slots_take(&s, &key);
        assert_true(slot != SL_NO_SLOT);
        sl_slots_ready(&s, slot);
        if (id < 8)
            sl_slots_again(&s, slot); /* while it is held */
        sl_slots_release(&s, slot);
        check(&s);
    }
    for (uint64_t id = 0; id < 8; id++) {
        struct sl_store_key key = rig_key(id, 0);
        assert_true(sl_slots_find(&s, &key) != SL_NO_SLOT);
    }
    assert_int_equal(s.groups[0].n_pages[1], 8);
    assert_int_equal(s.gone.lists[0].n, 8);
    for (uint64_t id = 24; id < 32; id++) { /* names that it remembers */
        struct sl_store_key key = rig_key(id, 0);
        assert_int_equal(sl_slots_find(&s, &key), SL_NO_SLOT);
        int32_t slot = sl_slots_take(&s, &key);
        sl_slots_ready(&s, slot);
        sl_slots_release(&s, slot);
        check(&s);
    }
    assert_true(s.groups[0].target > 0 && s.groups[0].n_pages[1] > 8);
    sl_slots_deinit(&s);
}

static int32_t take_ready(struct sl_slots *s, uint64_t id, int32_t group)
{
    struct sl_store_key key = rig_key(id, group);
    int32_t slot = sl_slots_take(s, &key);
    if (slot != SL_NO_SLOT) {
        sl_slots_ready(s, slot);
        sl_slots_release(s, slot);
    }
    return slot;
}

/* A group that comes late gets room from the one that had it all, and the room goes back. */
static void room_follows_use(void **state)
{
    (void)state;
    struct sl_slots s;
    struct sl_error err = {0};
    int32_t n_per_chunk[2] = {16, 4};
    assert_int_equal(sl_slots_init(&s, 2, n_per_chunk, 8, &err), 0);
    for (uint64_t id = 0; id < 1000; id++)
        assert_true(take_ready(&s, id, 0) != SL_NO_SLOT);
    assert_int_equal(sl_slots_n_used(&s, 0), 8 * 16);
    for (uint64_t id = 0; id < 1000; id++) { /* one page each, in turns */
        assert_true(take_ready(&s, 5000 + id, 0) != SL_NO_SLOT);
        assert_true(take_ready(&s, id, 1) != SL_NO_SLOT);
        check(&s);
    }
    /* Both keep about the same number of pages: 20 of them take 2 chunks... */
    assert_in_range(sl_slots_n_used(&s, 0), 16, 48);
    assert_in_range(sl_slots_n_used(&s, 1), 20, 28);
    for (uint64_t id = 0; id < 1000; id++)
        assert_true(take_ready(&s, 9000 + id, 0) != SL_NO_SLOT);
    assert_int_equal(sl_slots_n_used(&s, 0), 8 * 16);
    assert_int_equal(sl_slots_n_used(&s, 1), 0);
    sl_slots_deinit(&s);
}

/* A chunk is cut so that no group wastes much of it, and a tier has several. */
static void chunks_fit_their_pages(void **state)
{
    (void)state;
    const uint64_t mb = 1u << 20, one[] = {3 * mb}, two[] = {5 * mb, 3 * mb}, big[] = {100 * mb};
    assert_int_equal(sl_chunk_bytes(1, one, 1000 * mb, 16 * mb), 15 * mb);
    assert_int_equal(sl_chunk_bytes(1, one, 60 * mb, 16 * mb), 3 * mb);
    assert_int_equal(sl_chunk_bytes(2, two, 1000 * mb, 16 * mb), 15 * mb);
    assert_int_equal(sl_chunk_bytes(1, big, 1000 * mb, 16 * mb), 100 * mb);
}

static void sizes_are_refused(void **state)
{
    (void)state;
    struct sl_slots s;
    struct sl_error err = {0};
    int32_t n_per_chunk[2] = {1, 1 << 20};
    assert_int_equal(sl_slots_init(&s, 2, n_per_chunk, 2, &err), SL_EINVAL);
    assert_int_equal(sl_slots_init(&s, 2, n_per_chunk, 17, &err), SL_EINVAL);
    assert_int_equal(sl_slots_init(&s, 1, n_per_chunk, UINT64_MAX, &err), SL_EINVAL);
    assert_int_equal(sl_slots_init(&s, 2, n_per_chunk, 3, &err), 0);
    sl_slots_deinit(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicts_as_a_list_does), cmocka_unit_test(groups_keep_their_promises),
        cmocka_unit_test(room_follows_use),      cmocka_unit_test(chunks_fit_their_pages),
        cmocka_unit_test(sizes_are_refused),     cmocka_unit_test(arc_keeps_what_is_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
