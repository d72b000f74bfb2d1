/* SPDX-License-Identifier: MIT
 * step_passes.h - of test_backend.cc: the steps that follow a step of a model that drafts.
 */
#ifndef SL_TESTS_CUDA_STEP_PASSES_H
#define SL_TESTS_CUDA_STEP_PASSES_H

/* A step of a model that drafts on the host: it has the first group's pages and no parameters. */
static void draft_on_host(struct world *h, const struct sl_batch *b, uint32_t variant)
{
    static struct param none[MAX_SEQS];
    struct sl_step st = {};
    st.batch = *b;
    st.params = none;
    st.variant = variant;
    run_on_host(h, &st);
}

/* A pass: the step, and n_again more of one token of each sequence. Compares all ids. */
static bool pass_both(struct model *m, struct world *h, struct work *w, int32_t n_again)
{
    struct sl_backend *be = &m->cu->base;
    struct sl_error err = {};
    struct sl_batch b = w->step.batch;
    const int32_t n = b.n_logits;
    uint64_t ticket = 0;
    const int32_t *ids = NULL;
    static struct sl_span spans[MAX_SEQS];
    static int32_t tokens[MAX_SEQS], positions[MAX_SEQS], rows[MAX_SEQS];
    w->step.params = w->step.params_pad = NULL;
    w->step.drafts = true;
    w->step.want_results = false;
    w->step.n_again = n_again;
    if (be->vt->device->step(be, &w->step, forward, m, &ticket, &err) != 0 ||
        be->vt->device->wait(be, ticket, &ids, NULL, &err) != 0)
        return false;
    for (int32_t k = 0; k <= n_again; k++) {
        draft_on_host(h, &b, w->step.variant);
        if (memcmp(ids + k * n, h->ids, static_cast<size_t>(n) * sizeof *ids) != 0)
            return false;
        for (int32_t i = 0; i < n; i++) {
            const struct sl_span s = b.spans[i];
            tokens[i] = -1 - i;
            positions[i] = k == 0 ? w->positions[w->rows[i]] + 1 : s.pos + 1;
            rows[i] = i;
            spans[i] = {i, 1, positions[i], s.table_idx, 0};
        }
        b.n_tokens = b.n_spans = b.n_logits = n;
        b.tokens = tokens, b.positions = positions, b.spans = spans, b.logit_rows = rows;
    }
    return true;
}

/* n sequences with `width` tokens each, of which the row in the middle is wanted, as where what
 * follows was added to make them even. */
static void pass_work(struct work *w, int32_t n, int32_t width, int32_t pos)
{
    work_init(w);
    for (int32_t i = 0; i < n; i++) {
        const int32_t page = i;
        int32_t tokens[4];
        for (int32_t t = 0; t < width; t++)
            tokens[t] = 100 + 10 * i + t + pos;
        add_span(w, width, pos, &page, tokens, true);
        w->rows[i] -= (width - 1) / 2;
    }
}

/* Steps that follow a step of a model that drafts: the ids of all are the host's, for every number
 * of sequences and every length of the pass; from the second pass on nothing is launched by hand,
 * nothing is waited for or allocated in between. */
static void test_passes(void)
{
    struct sl_backend *be = create(1);
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_step_limits lim = limits();
    struct sl_error err = {};
    struct model m;
    static struct work w;
    static struct world h;
    int32_t tokens[40];
    lim.max_width = 4;
    lim.max_again = 5;
    lim.n_kinds = 2;
    lim.heads[1] = lim.heads[0];
    lim.heads[0] = {8, 8, 64, 64, 0, 0}; /* the model's: no step here has them */
    lim.draft_kind = 1;
    memset(&h, 0, sizeof h);
    CHECK(be->vt->device->steps_init(be, &lim, &err) == 0);
    model_init(&m, be);
    for (int32_t round = 0; round < 3; round++) {
        const struct sl_cuda_counts before = cu->counts;
        for (int32_t n = 1; n <= 5; n++)
            for (int32_t width = 1; width <= 4; width += 3) {
                pass_work(&w, n, width, round);
                CHECK(pass_both(&m, &h, &w, (n + round) % 6));
            }
        CHECK(round == 0 || cu->counts.eager - before.eager <= (round == 1 ? 2u : 0u));
        CHECK(cu->counts.late_waits == 0 && cu->counts.record_failures == 0);
        CHECK(cu->counts.device_allocs == before.device_allocs);
        CHECK(cu->counts.syncs == before.syncs);
    }
    /* Spans of different lengths, the last without a row: sequence 2 gets none. */
    for (int32_t i = 0; i < 40; i++)
        tokens[i] = i * 7 % 500;
    const int32_t a = 2, b = 4, c = 6;
    work_init(&w);
    add_span(&w, 5, 0, &a, tokens, true);
    add_span(&w, 2, 3, &b, tokens, true);
    add_span(&w, 7, 0, &c, tokens, false);
    CHECK(pass_both(&m, &h, &w, 4));
    work_init(&w);
    add_span(&w, 1, 7, &c, tokens, true);
    CHECK(pass_both(&m, &h, &w, 0));
    struct sl_device_times t;
    be->vt->device->times(be, &t);
    CHECK(t.n_again > 0 && t.again_ms >= 0);
    model_deinit(&m);
    be->vt->destroy(be);
}

#endif
