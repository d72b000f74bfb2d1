/* SPDX-License-Identifier: MIT
 * The page pool against a count of owners per page and a stack: who gets which page, and that
 * free + owned pages are the total after every operation.
 */
#include "fuzz.h"
#include "kv/pool.h"

#define MAX_PAGES 32

struct model {
    int32_t refs[MAX_PAGES]; /* -1: free */
    int32_t stack[MAX_PAGES], n_free;
};

static void check(const struct sl_pool *p, const struct model *m)
{
    int32_t n_free = 0, n_owned = 0, n_loose = 0;
    for (int32_t i = 0; i < p->n_pages; i++) {
        SL_ASSERT((p->is_free[i] != 0) == (m->refs[i] < 0));
        SL_ASSERT(p->refs[i] == SL_MAX(m->refs[i], 0));
        n_free += p->is_free[i] != 0;
        n_owned += p->refs[i] > 0;
        n_loose += p->refs[i] == 0 && !p->is_free[i];
    }
    SL_ASSERT(n_free == p->n_free && n_free == m->n_free);
    SL_ASSERT(n_free + n_owned + n_loose == p->n_pages);
}

static void operate(struct sl_pool *p, struct model *m, struct sl_input *in)
{
    int32_t op = sl_input_below(in, 4), page;
    if (op == 0) {
        int32_t want = m->n_free > 0 ? m->stack[--m->n_free] : SL_NO_PAGE;
        SL_ASSERT(sl_pool_acquire(p) == want);
        if (want != SL_NO_PAGE)
            m->refs[want] = 1;
        return;
    }
    page = sl_input_below(in, p->n_pages);
    if (m->refs[page] < 0)
        return;
    if (op == 1) {
        sl_pool_ref(p, page);
        m->refs[page]++;
    } else if (op == 2 && m->refs[page] > 0) {
        SL_ASSERT(sl_pool_unref(p, page) == --m->refs[page]);
    } else if (op == 3 && m->refs[page] == 0) {
        sl_pool_release(p, page);
        m->refs[page] = -1;
        m->stack[m->n_free++] = page;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_input in = {data, data + size};
    struct sl_pool p;
    struct model m = {.n_free = 0};
    int32_t n_pages = 1 + sl_input_below(&in, MAX_PAGES);
    SL_ASSERT(sl_pool_init(&p, n_pages, NULL) == 0);
    for (int32_t i = n_pages; i-- > 0;) {
        m.stack[m.n_free++] = i;
        m.refs[i] = -1;
    }
    for (check(&p, &m); !sl_input_empty(&in); check(&p, &m))
        operate(&p, &m, &in);
    sl_pool_deinit(&p);
    return 0;
}
