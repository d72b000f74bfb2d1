/* SPDX-License-Identifier: MIT
 * The scheduler driven as the engine drives it (steps in flight, landings that fail, rows that are
 * taken back, tokens that no step chose, cancellation, raised priorities) against sched_model.h:
 * the same plan, pages, states and preemptions after every operation; at the end everything
 * finishes within a bounded number of steps.
 */
#include "sched_model.h"

#define MAX_PROMPT 24
#define MAX_OUT    12

_Static_assert(MAX_PROMPT + MAX_OUT <= MODEL_TOKENS, "texts of the model");

struct item {
    struct sl_seq seq;
    int32_t prompt[MAX_PROMPT], out[MAX_OUT];
    struct real_blocks blocks;
    bool masked; /* what its next token is chosen by may come late */
};

struct flight_seq {
    int32_t item, pos, n, epoch; /* item -1: it has ended since */
    bool samples;
};

struct flight {
    struct flight_seq seqs[MODEL_SEQS];
    int32_t n;
};

struct rig {
    struct sl_kv kv;
    struct sl_sched s;
    struct model_sched m;
    struct item items[MODEL_SEQS];
    struct flight flights[2]; /* oldest first */
    int32_t n_flights, max_flights;
    uint64_t arrivals;
    bool fail_next, draining;
    struct sl_input in;
    uint32_t n_checks;
};

static const struct sl_kv_ns spaces[2] = {{0, 0, ""}, {0, 1, "t"}};

static void add(struct rig *g, int32_t i)
{
    struct item *it = &g->items[i];
    int32_t how = sl_input_byte(&g->in), size = sl_input_byte(&g->in);
    int32_t most = SL_MIN(g->kv.nodes.n_ids * g->kv.block_size, MAX_PROMPT + MAX_OUT);
    int32_t n_prompt = 1 + size % SL_MIN(MAX_PROMPT, most);
    int32_t max_out = 1 + size / 8 % MAX_OUT;
    if (n_prompt + max_out > most)
        n_prompt = SL_MAX(most - max_out, 1);
    max_out = SL_MIN(max_out, most - n_prompt);
    if (max_out == 0)
        return;
    int32_t bits = sl_input_byte(&g->in) * 257;
    for (int32_t k = 0; k < n_prompt; k++)
        it->prompt[k] = bits >> k % 16 & 1;
    g->arrivals += how % 4 != 0;
    it->seq = (struct sl_seq){.idx = i,
                              .priority = how / 4 % 4 - 1,
                              .arrival = g->arrivals,
                              .prompt = it->prompt,
                              .n_prompt = n_prompt,
                              .out = it->out,
                              .blocks = *real_begin(&it->blocks),
                              .max_out = max_out,
                              .ns = &spaces[how / 16 % 2],
                              .publish = how / 64 % 4 != 0,
                              .all_logits = how / 128 % 2 != 0 && how / 4 % 4 == 3};
    it->masked = how / 32 % 2 != 0;
    g->m.seqs[i] = (struct model_seq){.owner = &it->seq,
                                      .ns = how / 16 % 2,
                                      .priority = it->seq.priority,
                                      .state = SL_SEQ_WAITING,
                                      .n_cached = -1};
    sl_sched_add(&g->s, &it->seq);
}

static void finish(struct rig *g, int32_t i, bool forget)
{
    sl_sched_finish(&g->s, &g->items[i].seq, forget);
    model_finish(&g->m, &g->m.seqs[i], forget);
    for (int32_t f = 0; f < g->n_flights; f++)
        for (int32_t k = 0; k < g->flights[f].n; k++)
            if (g->flights[f].seqs[k].item == i)
                g->flights[f].seqs[k].item = -1;
}

static void compare_plan(const struct rig *g)
{
    SL_ASSERT(g->s.n_plan == g->m.n_plan && g->s.n_plan_tokens == g->m.n_tokens);
    SL_ASSERT(g->s.n_plan_tokens <= g->m.cfg.max_tokens);
    for (int32_t i = 0; i < g->m.n_plan; i++) {
        const struct sl_seq *q = g->s.plan[i];
        SL_ASSERT(q == g->m.seqs[g->m.plan[i]].owner && q->n_step == g->m.n_step[g->m.plan[i]]);
    }
}

static void launch(struct rig *g)
{
    struct flight *f = &g->flights[g->n_flights++];
    f->n = g->s.n_plan;
    for (int32_t k = 0; k < f->n; k++) {
        struct sl_seq *q = g->s.plan[k];
        struct model_seq *mq = &g->m.seqs[g->m.plan[k]];
        f->seqs[k] = (struct flight_seq){g->m.plan[k], q->n_computed, q->n_step, q->n_preempted,
                                         q->n_computed + q->n_step == sl_seq_n_tokens(q)};
        mq->n_computed += q->n_step;
        sl_sched_advance(&g->s, q);
        if (f->seqs[k].samples) {
            q->n_pending++;
            q->pending_row = k;
        }
    }
}

static void consume(struct rig *g, const struct flight_seq *fs)
{
    struct item *it = &g->items[fs->item];
    struct sl_seq *q = &it->seq;
    if (q->state == SL_SEQ_RUNNING && q->n_preempted == fs->epoch) {
        sl_sched_publish(&g->s, q, fs->pos + fs->n);
        model_sched_publish(&g->m, &g->m.seqs[fs->item], fs->pos + fs->n);
    }
    if (!fs->samples)
        return;
    int32_t token = g->draining ? 1 : sl_input_byte(&g->in);
    q->all_logits = false;
    q->n_pending--;
    it->out[q->n_out++] = token & 1;
    if (q->n_out == q->max_out || token % 16 == 15)
        finish(g, fs->item, false);
}

/* As engine/turn.c: what ran in a failed step ends, what was launched behind it is done again. */
static void land_failed(struct rig *g, const struct flight *f, bool first)
{
    for (int32_t k = 0; k < f->n; k++) {
        int32_t i = f->seqs[k].item;
        if (i < 0)
            continue;
        if (first) {
            finish(g, i, true);
            continue;
        }
        g->items[i].seq.n_pending -= f->seqs[k].samples;
        if (g->m.seqs[i].state == SL_SEQ_RUNNING)
            model_preempt(&g->m, &g->m.seqs[i], true);
        sl_sched_requeue(&g->s, &g->items[i].seq, true);
    }
}

static void land(struct rig *g)
{
    struct flight *f = &g->flights[0];
    bool failed = g->fail_next;
    g->fail_next = false;
    for (int32_t k = 0; k < f->n && !failed; k++)
        if (f->seqs[k].item >= 0)
            consume(g, &f->seqs[k]);
    for (bool first = true; failed && g->n_flights > 0; first = false) {
        land_failed(g, &g->flights[0], first);
        g->flights[0] = g->flights[1];
        g->n_flights--;
    }
    if (failed) {
        sl_kv_clear(&g->kv);
        model_clear(&g->m.kv);
        return;
    }
    g->flights[0] = g->flights[1];
    g->n_flights--;
}

/* What it waited for is there, and tokens may come with it that no step chose. */
static void force_some(struct rig *g, int32_t i)
{
    struct item *it = &g->items[i];
    int32_t n = g->draining ? 0 : sl_input_byte(&g->in) % 16 - 8;
    for (; n > 0 && it->seq.n_out < it->seq.max_out; n--)
        it->out[it->seq.n_out++] = n & 1;
    if (it->seq.n_out == it->seq.max_out && it->seq.state != SL_SEQ_FINISHED)
        finish(g, i, false);
}

/* Of the step launched last, while those before it have landed. Nothing is taken back from a state.
 */
static void rollback_some(struct rig *g)
{
    struct flight *f = &g->flights[g->n_flights - 1];
    for (int32_t k = 0; k < f->n && !g->draining && model_states(&g->m.kv) < 0; k++) {
        struct flight_seq *fs = &f->seqs[k];
        if (fs->item < 0 || !fs->samples || !g->items[fs->item].masked ||
            sl_input_byte(&g->in) % 4 != 0)
            continue;
        struct sl_seq *q = &g->items[fs->item].seq;
        sl_sched_rollback(&g->s, q, 1);
        g->m.seqs[fs->item].n_computed--;
        q->n_pending--;
        q->waits = true;
        fs->n--;
        fs->samples = false;
        if (sl_input_byte(&g->in) % 2 == 0)
            continue;
        q->waits = false; /* it was there in time */
        force_some(g, fs->item);
    }
}

static void turn(struct rig *g)
{
    int32_t ahead = 0;
    for (int32_t i = 0; i < MODEL_SEQS; i++) {
        if (!g->items[i].seq.waits)
            continue;
        g->items[i].seq.waits = !g->draining && sl_input_byte(&g->in) % 2 != 0;
        if (!g->items[i].seq.waits && g->m.seqs[i].state != SL_SEQ_FINISHED)
            force_some(g, i);
    }
    if (!sl_sched_idle(&g->s)) {
        sl_sched_plan(&g->s);
        model_plan(&g->m);
        compare_plan(g);
        if (g->s.n_plan > 0) {
            launch(g);
            ahead = g->max_flights - 1;
        }
    }
    while (g->n_flights > ahead)
        land(g);
    if (g->n_flights > 0)
        rollback_some(g);
}

static void check(struct rig *g)
{
    struct model_seq *r[MODEL_SEQS];
    int32_t n = model_sorted(&g->m, SL_SEQ_RUNNING, r);
    SL_ASSERT(g->s.n_running == n && g->s.n_preemptions == g->m.n_preemptions);
    for (int32_t i = 0; i < n; i++)
        SL_ASSERT(g->s.running[i] == r[i]->owner);
    SL_ASSERT(g->s.wait.n == model_sorted(&g->m, SL_SEQ_WAITING, r));
    SL_ASSERT(sl_wait_best(&g->s.wait) == (g->s.wait.n > 0 ? r[0]->owner : NULL));
    for (int32_t i = 0; i < MODEL_SEQS; i++) {
        const struct sl_seq *q = &g->items[i].seq;
        const struct model_seq *mq = &g->m.seqs[i];
        if (mq->state == SL_SEQ_NEW)
            continue;
        SL_ASSERT(q->state == mq->state && q->n_published == mq->n_published);
        SL_ASSERT(q->n_computed == mq->n_computed);
        SL_ASSERT(q->n_cached == mq->n_cached && q->n_preempted == mq->n_preempted);
        SL_ASSERT(q->stalled == mq->stalled);
        model_compare_blocks(&g->m.kv, &mq->b, &q->blocks);
    }
    model_compare(&g->m.kv, &g->kv);
    if (g->n_checks++ % 4 == 0) /* walks through everything */
        SL_ASSERT(sl_sched_check(&g->s, NULL) == 0);
}

static void operate(struct rig *g)
{
    int32_t op = sl_input_byte(&g->in), i = op / 8 % MODEL_SEQS;
    enum sl_seq_state state = g->m.seqs[i].state;
    char why[128];
    switch (op % 8) {
    case 0:
    case 1:
        if (state == SL_SEQ_NEW || state == SL_SEQ_FINISHED)
            add(g, i);
        break;
    case 5:
        if (state == SL_SEQ_WAITING || state == SL_SEQ_RUNNING)
            finish(g, i, false);
        break;
    case 6:
        g->fail_next = i == 0;
        break;
    case 7:
        if (state != SL_SEQ_WAITING)
            break;
        sl_sched_why(&g->s, &g->items[i].seq, why, sizeof why);
        SL_ASSERT(why[0] != '\0');
        sl_sched_raise(&g->s, &g->items[i].seq);
        g->m.seqs[i].priority = INT32_MIN;
        break;
    default:
        turn(g);
    }
}

static void rig_init(struct rig *g)
{
    struct sl_kv_config kv;
    model_init(&g->m.kv, &g->in, &kv);
    int32_t how = sl_input_byte(&g->in);
    struct sl_sched_config cfg = {.max_seqs = 1 + how % 4};
    cfg.max_tokens = cfg.max_seqs + how / 4 % 8;
    cfg.max_logits = cfg.max_seqs + how / 32 % 4;
    g->max_flights = 1 + how / 128;
    SL_ASSERT(sl_kv_init(&g->kv, &kv, NULL) == 0);
    SL_ASSERT(sl_sched_init(&g->s, &cfg, &g->kv, NULL) == 0);
    g->m.cfg = cfg;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct rig g;
    memset(&g, 0, sizeof g);
    g.in = (struct sl_input){data, data + size};
    rig_init(&g);
    while (!sl_input_empty(&g.in)) {
        operate(&g);
        check(&g);
    }
    g.draining = true; /* no new requests, no failures: all that is there must end */
    g.fail_next = false;
    for (int32_t n = 0; !sl_sched_idle(&g.s) || g.n_flights > 0; n++) {
        SL_ASSERT(n < 2000);
        turn(&g);
    }
    g.n_checks = 0;
    check(&g);
    SL_ASSERT(sl_kv_n_available(&g.kv) == g.kv.nodes.n_ids);
    sl_sched_deinit(&g.s);
    sl_kv_deinit(&g.kv);
    return 0;
}
