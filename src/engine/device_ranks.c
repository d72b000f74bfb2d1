/* SPDX-License-Identifier: MIT
 * A rank's launches must not wait for another one's: kernels wait on the devices for what other
 * ranks send, and a queue of launches that is full would stop the thread that had yet to enqueue
 * what they wait for. So a team of threads enqueues the steps of all ranks at once (engine/team.h).
 * Recording a step may wait for the device, and is done when every rank has enqueued it.
 */
#include "engine/device_ranks.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/runner.h"
#include "engine/team.h"
#include "models/model.h"

struct follower { /* [0] is rank 0: only backend and device are there */
    struct sl_backend *be;
    const struct sl_device_vt *dev;
    struct sl_run *run;
    uint64_t ticket[SL_MAX_FLIGHTS]; /* of its steps, by rank 0's tickets */
};

struct sl_device_ranks {
    struct sl_ranks *ranks;
    int n;
    struct follower of[SL_MAX_RANKS];
    uint64_t ticket; /* rank 0's, of the step before */
    /* what the team is at */
    struct sl_step step, follow; /* as rank 0 has it, and the others */
    sl_forward_fn forward;
    void *arg;
    uint64_t now;        /* rank 0's */
    struct sl_error why; /* code 0: no rank has failed; else the others wait for it, or did */
};

static uint64_t *ticket_of(struct follower *f, uint64_t ticket)
{
    return &f->ticket[ticket % SL_MAX_FLIGHTS];
}

/* A follower's part of a step: no tokens are chosen there, but those that were arrive. */
static void follow(void *arg, const struct sl_step *step)
{
    const struct follower *f = arg;
    if (step->part != SL_STEP_CHOICE)
        (void)sl_run_enqueue(f->run, &step->batch);
    if (step->part != SL_STEP_FORWARD && step->batch.n_logits > 0)
        f->dev->share_ids(f->be, sl_run_rank(f->run), step->batch.n_logits);
}

void sl_device_ranks_share(struct sl_device_ranks *d, int32_t n)
{
    SL_ASSERT(n > 0);
    d->of[0].dev->share_ids(d->of[0].be, sl_run_rank(d->of[0].run), n);
}

static int step_rank(void *arg, int rank, struct sl_error *err)
{
    struct sl_device_ranks *d = arg;
    struct follower *f = &d->of[rank];
    if (rank == 0)
        return f->dev->step(f->be, &d->step, d->forward, d->arg, &d->now, err);
    return f->dev->step(f->be, &d->follow, follow, f, ticket_of(f, d->ticket + 1), err);
}

static int record_rank(void *arg, int rank, struct sl_error *err)
{
    struct sl_device_ranks *d = arg;
    (void)err; /* such steps are enqueued one by one then */
    d->of[rank].dev->record(d->of[rank].be);
    return 0;
}

/* On all ranks. What failed on one is the end, whatever it was: others have begun with the step. */
static int run_all(struct sl_device_ranks *d, sl_team_fn fn, struct sl_error *err)
{
    struct sl_error why = {0};
    if (d->why.code == 0 && sl_team_run(sl_ranks_team(d->ranks), fn, d, &why) != 0) {
        d->why = why;
        d->why.code = SL_EDEVICE;
    }
    if (d->why.code != 0 && err != NULL)
        *err = d->why;
    return d->why.code;
}

int sl_device_ranks_step(struct sl_device_ranks *d, const struct sl_step *step,
                         sl_forward_fn forward, void *arg, uint64_t *ticket, struct sl_error *err)
{
    SL_ASSERT(!step->drafts && step->n_again == 0 && step->batch.lora == NULL);
    d->step = *step;
    d->step.record_later = true;
    d->follow = (struct sl_step){
        .batch = step->batch, .part = step->part, .variant = step->variant, .record_later = true};
    d->forward = forward;
    d->arg = arg;
    int rc = run_all(d, step_rank, err);
    bool records = false;
    for (int i = 0; i < d->n && rc == 0; i++)
        records = records || d->of[i].dev->to_record(d->of[i].be);
    if (rc == 0 && records)
        rc = run_all(d, record_rank, err);
    if (rc != 0)
        return rc;
    SL_ASSERT(d->now == d->ticket + 1); /* rank 0 enqueues nothing else */
    *ticket = d->ticket = d->now;
    return 0;
}

static int choose_rank(void *arg, int rank, struct sl_error *err)
{
    struct sl_device_ranks *d = arg;
    struct follower *f = &d->of[rank];
    return rank == 0 ? f->dev->choose(f->be, &d->step, d->forward, d->arg, err)
                     : f->dev->choose(f->be, &d->follow, follow, f, err);
}

int sl_device_ranks_choose(struct sl_device_ranks *d, const struct sl_step *step,
                           sl_forward_fn forward, void *arg, struct sl_error *err)
{
    SL_ASSERT(step->part == SL_STEP_CHOICE);
    d->step = *step;
    d->follow = (struct sl_step){.batch = step->batch, .part = SL_STEP_CHOICE};
    d->forward = forward;
    d->arg = arg;
    return run_all(d, choose_rank, err);
}

int sl_device_ranks_wait(struct sl_device_ranks *d, uint64_t ticket, struct sl_error *err)
{
    int rc = 0;
    for (int i = 1; i < d->n && rc == 0; i++) {
        struct follower *f = &d->of[i];
        rc = f->dev->wait(f->be, *ticket_of(f, ticket), NULL, NULL, err);
    }
    return rc;
}

/* ---------------------------------------------------------------- start and end */

/* Its steps bring nothing for a sampler, and leave nothing. */
static int begin_follower(struct follower *f, const struct sl_step_limits *limits,
                          struct sl_error *err)
{
    struct sl_step_limits lim = *limits;
    SL_ASSERT(lim.adapter_bytes == 0 && lim.host_hidden == 0 && lim.max_again == 0);
    lim.param_bytes = lim.result_bytes = 0;
    lim.extra_bytes = 0;
    return f->dev->steps_init(f->be, &lim, err);
}

int sl_device_ranks_create(struct sl_ranks *ranks, const struct sl_step_limits *limits,
                           struct sl_device_ranks **out, struct sl_error *err)
{
    int rc = 0;
    *out = NULL;
    struct sl_device_ranks *d = sl_calloc(1, sizeof *d);
    if (d == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the steps of ranks");
    d->ranks = ranks;
    d->n = sl_ranks_count(ranks);
    SL_ASSERT(d->n > 1 && d->n <= SL_MAX_RANKS);
    for (int i = 0; i < d->n && rc == 0; i++) {
        struct follower *f = &d->of[i];
        f->run = sl_ranks_run(ranks, i, &f->be);
        f->dev = f->be->vt->device;
        SL_ASSERT(f->run != NULL && f->dev != NULL);
        if (i > 0)
            rc = begin_follower(f, limits, err);
    }
    if (rc != 0) {
        sl_device_ranks_destroy(d);
        return rc;
    }
    *out = d;
    return 0;
}

void sl_device_ranks_destroy(struct sl_device_ranks *d)
{
    if (d == NULL)
        return;
    for (int i = 1; i < d->n; i++)
        if (d->of[i].dev != NULL)
            d->of[i].dev->forget(d->of[i].be, &d->of[i]);
    sl_free(d);
}
