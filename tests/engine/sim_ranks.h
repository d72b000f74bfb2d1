/* SPDX-License-Identifier: MIT
 * sim_ranks.h - in some worlds the device is several ranks, on the threads of a team as those of a
 * model (engine/team.h). Rank 0 is the device of sim_device.h.
 *
 * Each rank has a copy of all pages of the first group, writes the step's tokens there and hashes
 * what each row of logits reads. Where a hash is not that of all others, the logits are wrong. A
 * rank may come late, and may be the one that fails a step which the others have done: its copy
 * then lacks what the others have, and nobody may go on from there. Or one that was done without is
 * let in, between two steps or where one would begin: its copy has nothing, and nothing may fail.
 */
#ifndef SL_TESTS_SIM_RANKS_H
#define SL_TESTS_SIM_RANKS_H

#include "engine/sim_device.h"
#include "engine/team.h"

#include <sys/syscall.h>
#include <time.h>

#define MAX_SIM_RANKS 3
#define RANK_LATE_NS  200000 /* of real time: the threads are real */

struct rank_copy {
    int32_t *token, *pos; /* [n_pages, block_size] */
    uint64_t *hashes;     /* [rows of logits] of the last step */
    int32_t n_pages;
};

static struct {
    struct sl_team *teams[MAX_SIM_RANKS + 1]; /* by how many; of all worlds */
    struct rank_copy copies[MAX_SIM_RANKS];
    int n; /* of this world */
    /* the step */
    struct world *w;
    const struct sl_batch *b;
    const float **logits;
    int bad, late; /* -1: none */
    int code;      /* of the bad one */
    bool lets_in;  /* such a world */
    bool waits;    /* no step begins before the engine has asked */
} ranks;

enum { NOISE_RANK = 90, NOISE_BAD_RANK, NOISE_LET_IN };

/* Before the simulator takes the place of the system's threads. */
static bool ranks_install(void)
{
    struct sl_error err;
    for (int n = 2; n <= MAX_SIM_RANKS; n++)
        if (sl_team_create(n, &ranks.teams[n], &err) != 0)
            return false;
    return true;
}

static int32_t *slot_of(const struct rank_copy *c, int32_t *of, const struct world *w,
                        const struct sl_span *s, int32_t pos)
{
    int32_t page = sl_batch_tables(ranks.b, 0)[s->table_idx + pos / w->cfg.block_size];
    bool there = page >= 0 && page < c->n_pages; /* else the device says what is wrong */
    return there ? &of[page * w->cfg.block_size + pos % w->cfg.block_size] : NULL;
}

static void rank_write(struct rank_copy *c, const struct sl_span *s, bool fails)
{
    for (int32_t pos = s->pos; pos < s->pos + s->n; pos++) {
        int32_t *token = slot_of(c, c->token, ranks.w, s, pos);
        if (token == NULL)
            continue;
        *token = fails ? -7 : ranks.b->tokens[s->first + pos - s->pos];
        *slot_of(c, c->pos, ranks.w, s, pos) = pos;
    }
}

static uint64_t rank_read(struct rank_copy *c, const struct sl_span *s, int32_t pos)
{
    uint64_t h = ranks.w->hash_key;
    for (int32_t p = seen_from(ranks.w->stores[0].window, pos); p <= pos; p++)
        if (slot_of(c, c->token, ranks.w, s, p) != NULL)
            h = hash_token(h, *slot_of(c, c->token, ranks.w, s, p),
                           *slot_of(c, c->pos, ranks.w, s, p));
    return h;
}

/* Uses nothing that the simulator replaces. */
static void rank_compute(struct rank_copy *c, bool fails)
{
    const struct sl_batch *b = ranks.b;
    for (int32_t i = 0; i < b->n_spans; i++)
        rank_write(c, &b->spans[i], fails);
    for (int32_t r = 0, i = 0; r < b->n_logits; r++) {
        while (b->logit_rows[r] >= b->spans[i].first + b->spans[i].n)
            i++;
        const struct sl_span *s = &b->spans[i];
        c->hashes[r] = rank_read(c, s, s->pos + b->logit_rows[r] - s->first);
    }
}

static int rank_step(void *arg, int rank, struct sl_error *err)
{
    (void)arg;
    if (rank == ranks.late)
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = RANK_LATE_NS}, NULL);
    rank_compute(&ranks.copies[rank], rank == ranks.bad);
    if (rank == 0)
        return device_step(ranks.w, ranks.b, ranks.logits, err);
    return rank == ranks.bad ? sl_fail(err, ranks.code, "simulated fault") : 0;
}

/* Rows of which the ranks have different opinions. */
static void rank_rows(struct world *w, int32_t n)
{
    for (int32_t r = 0; r < n; r++)
        for (int k = 1; k < ranks.n; k++)
            if (ranks.copies[k].hashes[r] != ranks.copies[0].hashes[r])
                make_row(w, ranks.copies[k].hashes[r], w->rows + r * w->cfg.n_vocab);
}

static enum sl_renewal ranks_renew(void *ctx)
{
    struct world *w = ctx;
    if (!ranks.waits && !now_and_then(w, NOISE_LET_IN, 1))
        return SL_RENEW_NOTHING;
    const struct rank_copy *c = &ranks.copies[1 + noise(w, NOISE_LET_IN, ranks.n - 1)];
    for (int32_t i = 0; i < c->n_pages * w->cfg.block_size; i++)
        c->token[i] = -7;
    say("  a rank is let in\n");
    ranks.waits = false;
    w->failed_turn = w->n_turns_engine; /* all that ran is done again */
    total.let_in++;
    return SL_RENEW_JOINED;
}

static int ranks_step(void *ctx, const struct sl_batch *b, const float **logits,
                      struct sl_error *err)
{
    struct world *w = ctx;
    if (ranks.lets_in && now_and_then(w, NOISE_LET_IN, 1)) {
        ranks.waits = true;
        w->failed_turn = w->n_turns_engine;
        return sl_fail(err, SL_EBUSY, "a rank is let in");
    }
    const int32_t n_fails = w->fail_steps;
    const bool dead = w->dead;
    ranks.w = w;
    ranks.b = b;
    ranks.logits = logits;
    ranks.late = now_and_then(w, NOISE_RANK, 5) ? noise(w, NOISE_RANK, ranks.n) : -1;
    ranks.bad = n_fails > 0 || dead ? noise(w, NOISE_BAD_RANK, ranks.n) : -1;
    ranks.code = dead ? SL_EDEVICE : w->fail_code;
    if (ranks.bad > 0) { /* the device itself does the step */
        say("  rank %d fails\n", ranks.bad);
        w->fail_steps = 0;
        w->dead = false;
        w->failed_turn = w->n_turns_engine;
        total.step_faults++;
    }
    int rc = sl_team_run(ranks.teams[ranks.n], rank_step, NULL, err);
    w->dead = dead;
    if (ranks.bad > 0)
        w->fail_steps = SL_MAX(n_fails - 1, 0);
    rank_rows(w, b->n_logits);
    return rc;
}

/* The step of a world's device. false: out of memory. */
static bool ranks_start(const struct world *w, struct sl_host_model *m)
{
    const int32_t n_pages = w->stores[0].n_pages;
    const size_t n_slots = (size_t)n_pages * (size_t)w->cfg.block_size;
    const size_t n_rows = (size_t)(w->cfg.max_seqs + w->cfg.extra_rows);
    bool good = true;
    ranks.n = w->stores[0].state    ? 1
              : w->seed_no % 8 == 3 ? 2
              : w->seed_no % 8 == 6 ? MAX_SIM_RANKS
                                    : 1;
    m->forward = ranks.n > 1 ? ranks_step : device_step;
    ranks.lets_in = ranks.n > 1 && !w->cfg.late; /* in the call, as those in processes */
    ranks.waits = false;
    m->renew = ranks.lets_in ? ranks_renew : NULL;
    for (int k = 0; k < ranks.n && ranks.n > 1; k++) {
        ranks.copies[k] = (struct rank_copy){.token = calloc(n_slots, sizeof(int32_t)),
                                             .pos = calloc(n_slots, sizeof(int32_t)),
                                             .hashes = calloc(n_rows, sizeof(uint64_t)),
                                             .n_pages = n_pages};
        good &= ranks.copies[k].token != NULL && ranks.copies[k].pos != NULL &&
                ranks.copies[k].hashes != NULL;
    }
    return good;
}

static void ranks_stop(void)
{
    for (int k = 0; k < MAX_SIM_RANKS; k++) {
        free(ranks.copies[k].token);
        free(ranks.copies[k].pos);
        free(ranks.copies[k].hashes);
        ranks.copies[k] = (struct rank_copy){0};
    }
}

#endif
