/* SPDX-License-Identifier: MIT
 * The pool of numbers against a count of owners per number and a stack: who gets which, and that
 * free + owned ones are the total after every operation.
 */
#include "fuzz.h"
#include "kv/pool.h"

#define MAX_IDS 32

struct model {
    int32_t refs[MAX_IDS]; /* -1: free */
    int32_t stack[MAX_IDS], n_free;
};

static void check(const struct sl_id_pool *p, const struct model *m)
{
    int32_t n_free = 0, n_owned = 0, n_loose = 0;
    for (int32_t i = 0; i < p->n_ids; i++) {
        SL_ASSERT((p->is_free[i] != 0) == (m->refs[i] < 0));
        SL_ASSERT(p->refs[i] == SL_MAX(m->refs[i], 0));
        n_free += p->is_free[i] != 0;
        n_owned += p->refs[i] > 0;
        n_loose += p->refs[i] == 0 && !p->is_free[i];
    }
    SL_ASSERT(n_free == p->n_free && n_free == m->n_free);
    SL_ASSERT(n_free + n_owned + n_loose == p->n_ids);
}

static void operate(struct sl_id_pool *p, struct model *m, struct sl_input *in)
{
    int32_t op = sl_input_below(in, 4), id;
    if (op == 0) {
        int32_t want = m->n_free > 0 ? m->stack[--m->n_free] : SL_NO_PAGE;
        SL_ASSERT(sl_id_pool_acquire(p) == want);
        if (want != SL_NO_PAGE)
            m->refs[want] = 1;
        return;
    }
    id = sl_input_below(in, p->n_ids);
    if (m->refs[id] < 0)
        return;
    if (op == 1) {
        sl_id_pool_ref(p, id);
        m->refs[id]++;
    } else if (op == 2 && m->refs[id] > 0) {
        SL_ASSERT(sl_id_pool_unref(p, id) == --m->refs[id]);
    } else if (op == 3 && m->refs[id] == 0) {
        sl_id_pool_release(p, id);
        m->refs[id] = -1;
        m->stack[m->n_free++] = id;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_input in = {data, data + size};
    struct sl_id_pool p;
    struct model m = {.n_free = 0};
    int32_t n_ids = 1 + sl_input_below(&in, MAX_IDS);
    const bool down = sl_input_below(&in, 2) != 0;
    SL_ASSERT(sl_id_pool_init(&p, n_ids, down, NULL) == 0);
    for (int32_t i = 0; i < n_ids; i++) {
        m.stack[m.n_free++] = down ? i : n_ids - 1 - i;
        m.refs[i] = -1;
    }
    for (check(&p, &m); !sl_input_empty(&in); check(&p, &m))
        operate(&p, &m, &in);
    sl_id_pool_deinit(&p);
    return 0;
}
