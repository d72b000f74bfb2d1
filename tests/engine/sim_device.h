/* SPDX-License-Identifier: MIT
 * sim_device.h - a device that computes nothing.
 *
 * It stores each token with its position in the page and slot that the block table of each group
 * names. For a row of logits it hashes everything it reads back through the tables, from position
 * 0 on, or what a window lets the row see, and makes the logits from the hashes. A page that is
 * wrong, stale, freed too early, shared by mistake or only half computed therefore changes the
 * answer. A page of recurrent layers holds a chain of hashes of all tokens up to one, which a span
 * begins at and leaves behind, behind each draft as well, as struct sl_state_view says. The oracle
 * makes the same logits from the request's own tokens and knows nothing of pages.
 */
#ifndef SL_TESTS_SIM_DEVICE_H
#define SL_TESTS_SIM_DEVICE_H

#include "engine/sim_world.h"

#include <math.h>

/* Tenant and salt of a request, found by its seed, which no two have; 0: its client is gone. */
static int32_t space_of(const struct world *w, const struct sl_rseq *rs);

static uint64_t hash_token(uint64_t h, int32_t token, int32_t pos)
{
    h ^= (uint64_t)(uint32_t)token << 32 | (uint32_t)pos;
    h *= 0x9FB21C651E98DF25u;
    return h ^ h >> 29;
}

static void make_row(const struct world *w, uint64_t hash, float *row)
{
    for (int32_t i = 0; i < w->cfg.n_vocab; i++)
        row[i] = (float)(sl_mix64(hash + (uint64_t)i * 0x9E3779B97F4A7C15u) >> 44) * 0x1p-17f;
    if (w->cfg.nan_every > 0 && sl_mix64(hash ^ 77) % (uint64_t)w->cfg.nan_every == 0)
        row[hash % (uint64_t)w->cfg.n_vocab] = NAN;
}

/* The first position that a row at pos sees. */
static int32_t seen_from(int32_t window, int32_t pos)
{
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

static void write_token(struct world *w, const struct sl_batch *b, const struct sl_span *s,
                        int32_t j, int32_t space)
{
    int32_t bs = w->cfg.block_size, pos = s->pos + j;
    for (int32_t g = 0; g < w->n_stores; g++) {
        struct store *st = &w->stores[g];
        if (st->state)
            continue;
        int32_t page = sl_batch_tables(b, g)[s->table_idx + pos / bs];
        if (page < 0 || page >= st->n_pages)
            violation(w, "block table %d names page %d", g, page);
        st->token[page * bs + pos % bs] = b->tokens[s->first + j];
        st->pos[page * bs + pos % bs] = pos;
        st->space[page] = space;
    }
}

static void write_span(struct world *w, const struct sl_batch *b, const struct sl_span *s)
{
    int32_t bs = w->cfg.block_size;
    const struct sl_seq *seq = w->eng->sched.plan[s - b->spans];
    int32_t space = space_of(w, sl_rseq_of(w->eng->sched.plan[s - b->spans]));
    if (s->pos + s->n >= seq->n_prompt + seq->max_out)
        violation(w, "the last token is computed, though nothing follows it");
    for (int32_t j = 0; j < s->n; j++) {
        int32_t pos = s->pos + j, node = seq->blocks.nodes[pos / bs];
        if (b->positions[s->first + j] != pos)
            violation(w, "token %d of a span has position %d, not %d", j,
                      b->positions[s->first + j], pos);
        if (w->eng->kv.tree.nodes[node].in_tree)
            violation(w, "I8: node %d of the prefix tree is written", node);
        write_token(w, b, s, j, space);
    }
}

static uint64_t read_back(const struct world *w, const struct sl_batch *b, const struct sl_span *s,
                          int32_t g, int32_t pos)
{
    int32_t bs = w->cfg.block_size;
    const struct store *st = &w->stores[g];
    const int32_t *table = sl_batch_tables(b, g) + s->table_idx;
    int32_t space = space_of(w, sl_rseq_of(w->eng->sched.plan[s - b->spans]));
    uint64_t h = w->hash_key;
    for (int32_t p = seen_from(st->window, pos); p <= pos; p++) {
        int32_t page = table[p / bs], at = page * bs + p % bs;
        if (page < 0 || page >= st->n_pages)
            violation(w, "page %d of group %d is read at position %d of %d", page, g, p, pos);
        if (st->space[page] != space && st->space[page] != 0 && space != 0)
            violation(w, "a page of tenant and salt %d is read by %d", st->space[page], space);
        h = hash_token(h, st->token[at], st->pos[at]);
    }
    return h;
}

/* What a row's logits are made from: what each group lets it see. */
static uint64_t join_hash(uint64_t all, uint64_t windowed)
{
    return sl_mix64(all + 0x9E3779B97F4A7C15u) ^ windowed;
}

/* The state before the first token. */
static uint64_t no_state(const struct world *w)
{
    return sl_mix64(w->hash_key);
}

/* The state that a span begins at. */
static uint64_t begin_state(struct world *w, const struct sl_batch *b, const struct sl_span *s,
                            int32_t g)
{
    const struct store *st = &w->stores[g];
    if (s->pos == 0)
        return no_state(w);
    int32_t page = sl_batch_tables(b, g)[s->table_idx + (s->pos - 1) / w->cfg.block_size];
    int32_t space = space_of(w, sl_rseq_of(w->eng->sched.plan[s - b->spans]));
    if (page < 0 || page >= st->n_pages)
        violation(w, "a span at %d begins at page %d of %d of states", s->pos, page, st->n_pages);
    if (st->space[page] != space && st->space[page] != 0 && space != 0)
        violation(w, "a state of tenant and salt %d is read by %d", st->space[page], space);
    w->n_begun[page]++;
    return st->hash[page];
}

/* The spans of a step begin together, so none may change what another begins at. */
static void store_state(struct world *w, const struct sl_batch *b, const struct sl_span *s,
                        int32_t g, int32_t pos, uint64_t h)
{
    int32_t bs = w->cfg.block_size;
    struct store *st = &w->stores[g];
    const int32_t *table = sl_batch_tables(b, g) + s->table_idx;
    const int32_t draft = pos - (s->pos + s->n - s->n_drafts);
    int32_t page = table[draft < 0 ? pos / bs : SL_CEIL_DIV(s->pos + s->n, bs) + draft];
    bool last = draft >= -1; /* or a draft, behind each of which it is left */
    if (page >= st->n_pages || (last && page < 0))
        violation(w, "a span's state is left in page %d of %d", page, st->n_pages);
    if (page < 0 || (!last && (pos + 1) % bs != 0))
        return;
    const bool mine = draft < 0 && s->pos > 0 && table[(s->pos - 1) / bs] == page;
    if (w->n_begun[page] > mine)
        violation(w, "page %d of states is written while another span begins at it", page);
    st->hash[page] = h;
    st->space[page] = space_of(w, sl_rseq_of(w->eng->sched.plan[s - b->spans]));
}

static void run_states(struct world *w, const struct sl_batch *b, int32_t g)
{
    memset(w->n_begun, 0, (size_t)w->stores[g].n_pages * sizeof *w->n_begun);
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        uint64_t h = begin_state(w, b, s, g);
        for (int32_t j = 0; j < s->n; j++)
            w->states[s->first + j] = h = hash_token(h, b->tokens[s->first + j], s->pos + j);
    }
    for (int32_t i = 0; i < b->n_spans; i++)
        for (int32_t j = 0; j < b->spans[i].n; j++)
            store_state(w, b, &b->spans[i], g, b->spans[i].pos + j,
                        w->states[b->spans[i].first + j]);
}

static uint64_t row_hash(const struct world *w, const struct sl_batch *b, const struct sl_span *s,
                         int32_t pos)
{
    uint64_t h = 0;
    for (int32_t g = 0; g < w->n_stores; g++) {
        uint64_t mine =
            w->stores[g].state ? w->states[s->first + pos - s->pos] : read_back(w, b, s, g, pos);
        h = g == 0 ? mine : join_hash(h, mine);
    }
    return h;
}

/* May the step of the planned group have tokens of seq? */
static bool has_turn(const struct sl_sched *s, const struct sl_seq *seq)
{
    return seq->group == s->group && !sl_seq_held(seq) &&
           (seq->n_pending == 0 || seq->pending_slot == s->group);
}

/* What the plan must be like, seen from the device. */
static void check_plan(struct world *w, const struct sl_batch *b)
{
    const struct sl_sched *s = &w->eng->sched;
    if (b->n_tokens > w->cfg.max_tokens || b->n_spans > w->cfg.max_seqs ||
        b->n_logits > w->cfg.max_seqs + w->cfg.extra_rows || b->n_tokens < 1)
        violation(w, "batch of %d tokens, %d sequences, %d rows is over budget or empty",
                  b->n_tokens, b->n_spans, b->n_logits);
    int32_t next = 0;
    for (int32_t i = 0; i < b->n_spans; i++) {
        if (b->spans[i].first != next || b->spans[i].n < 1)
            violation(w, "the spans do not cover the batch");
        next += b->spans[i].n;
        say("%s%d+%d", i == 0 ? "  step: " : " ", b->spans[i].pos, b->spans[i].n);
    }
    say("\n");
    if (next != b->n_tokens)
        violation(w, "the spans do not cover the batch");
    /* One that measures what generates has no chunk. */
    const bool measures = s->limit_s > 0 && s->n_chunks == 0;
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->n_step < 1 && has_turn(s, s->running[i]) &&
            !(measures && !sl_seq_decodes(s->running[i])))
            violation(w, "I7: a running sequence is left out of the step");
    struct sl_error err;
    if (sl_sched_check(&w->eng->sched, &err) != 0)
        violation(w, "in the plan: %s", err.msg);
    const struct sl_seq *best = sl_wait_best(&s->wait);
    const int32_t share =
        SL_CEIL_DIV(SL_MIN(w->cfg.max_seqs, s->n_running + s->wait.n), w->cfg.n_groups);
    /* A step whose time is limited may have none left, or measure its decodes. */
    const bool no_time = s->limit_s > 0 && (s->n_chunks == 0 || sl_sched_is_long(s));
    /* Leases end for those that were admitted, after who waits was asked. */
    const bool freed = w->cfg.retain_pct > 0 && best != NULL && best->blocked_at != 0 &&
                       best->blocked_at != sl_sched_room(s);
    if (best != NULL && !sl_seq_held(best) && s->n_preemptions == w->n_preemptions && !no_time &&
        s->n_running < w->cfg.max_seqs && s->n_plan_tokens < w->cfg.max_tokens &&
        s->n_members[s->group] < share &&
        (best->n_pending == 0 || best->pending_slot == s->group) &&
        sl_kv_n_available(s->kv) >=
            SL_CEIL_DIV(sl_seq_n_tokens(best), w->cfg.block_size) + s->n_running &&
        sl_sched_pages_fit(s, best) && !freed)
        violation(w, "I6: a sequence waits although seats, tokens and %d pages are free",
                  sl_kv_n_available(s->kv));
    w->n_preemptions = s->n_preemptions;
}

/* A step that takes minutes. The watchdog's thread looks meanwhile, as it may: the engine gave up
 * its lock for the runner. */
static void hang(struct world *w)
{
    const struct sl_watchdog *dog = &w->eng->watchdog;
    bool was_red = atomic_load(&dog->red);
    uint64_t look_ns = dog->timeout_ns != 0 ? dog->period_ns : 1000000000u;
    for (uint64_t ns = 0; ns < (uint64_t)w->hang_s * 1000000000u; ns += look_ns) {
        virtual_ns += look_ns;
        w->n_progress += w->hang_moves;
        if (dog->timeout_ns != 0)
            sl_watchdog_poll(w->eng);
        if (w->hang_moves && !was_red && atomic_load(&dog->red))
            violation(w, "I7: the watchdog fires in a long step that moves");
    }
    bool must = dog->timeout_ns != 0 && !w->hang_moves &&
                (uint64_t)w->hang_s * 1000000000u > dog->timeout_ns + 3 * dog->period_ns;
    if (must && sl_engine_healthy(w->eng))
        violation(w, "I7: nothing moved for %d s and the watchdog is silent", w->hang_s);
    say("  the step took %d s, healthy: %d\n", w->hang_s, sl_engine_healthy(w->eng));
    w->hang_s = 0;
}

static void spoil(struct world *w, const struct sl_batch *b, const struct sl_span *s, int32_t g)
{
    int32_t bs = w->cfg.block_size;
    for (int32_t p = 0; p < SL_CEIL_DIV(s->pos + s->n, bs) + s->n_drafts; p++) {
        int32_t page = sl_batch_tables(b, g)[s->table_idx + p];
        if (page < 0 || w->eng->kv.groups[g].pool.refs[page] != 1)
            continue;
        if (w->stores[g].state)
            w->stores[g].hash[page] ^= 7;
        for (int32_t j = 0; j < bs && !w->stores[g].state; j++)
            w->stores[g].token[page * bs + j] = -7;
    }
}

/* The step fails half way: pages that only its sequences hold are garbage now, those found in the
 * cache included, and nobody may read them again. */
static int fail_the_step(struct world *w, const struct sl_batch *b, struct sl_error *err)
{
    w->fail_steps -= w->fail_steps > 0;
    w->failed_turn = w->n_turns_engine;
    total.step_faults++;
    for (int32_t i = 0; i < b->n_spans; i++)
        for (int32_t g = 0; g < w->n_stores; g++)
            spoil(w, b, &b->spans[i], g);
    say("  the step fails with %d\n", w->dead ? SL_EDEVICE : w->fail_code);
    return sl_fail(err, w->dead ? SL_EDEVICE : w->fail_code, "simulated fault");
}

enum { NOISE_STEP = 40, NOISE_MASK, NOISE_DRAFT };

static void act_cancel(struct world *w, uint64_t seed);

static int device_step(void *ctx, const struct sl_batch *b, const float **logits,
                       struct sl_error *err)
{
    struct world *w = ctx;
    w->n_steps++;
    virtual_ns += STEP_NS;
    check_plan(w, b);
    if (has_act(w, ACT_CANCEL) && now_and_then(w, NOISE_STEP, 3)) { /* clients do not wait for it */
        w->own = true;
        act_cancel(w, sl_mix64(w->seed_no + w->turn));
        w->own = false;
    }
    if (w->hang_s > 0)
        hang(w);
    for (int32_t i = 0; i < b->n_spans; i++)
        write_span(w, b, &b->spans[i]);
    for (int32_t i = 0; i < b->n_spans; i++)
        for (int32_t k = b->spans[i].first; k < b->spans[i].first + b->spans[i].n; k++) {
            w->step[k].rs = sl_rseq_of(w->eng->sched.plan[i]);
            w->step[k].token = b->tokens[k];
            w->step[k].pos = b->positions[k];
        }
    for (int32_t g = 0; g < w->n_stores; g++)
        if (w->stores[g].state)
            run_states(w, b, g);
    for (int32_t r = 0, i = 0; r < b->n_logits; r++) {
        int32_t at = b->logit_rows[r];
        while (at >= b->spans[i].first + b->spans[i].n)
            i++;
        const struct sl_span *s = &b->spans[i];
        make_row(w, row_hash(w, b, s, s->pos + at - s->first), w->rows + r * w->cfg.n_vocab);
    }
    *logits = w->rows;
    return w->fail_steps > 0 || w->dead ? fail_the_step(w, b, err) : 0;
}

/* Masks beside the engine: all that are to be made, some, or none in time. */
static void make_masks(void *ctx, struct sl_engine *eng)
{
    struct world *w = ctx;
    while (!now_and_then(w, NOISE_MASK, w->cfg.mask_late_pct) && sl_masker_work(eng)) {
    }
}

static uint64_t device_progress(const void *ctx)
{
    (void)ctx;
    return sim->n_progress;
}

#endif
