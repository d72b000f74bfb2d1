/* SPDX-License-Identifier: MIT
 * A rank's launches must not wait for another one's: kernels wait on the devices for what other
 * ranks send, and a queue of launches that is full would stop the thread that had yet to enqueue
 * what they wait for. So a team of threads enqueues the steps of all ranks at once (engine/team.h).
 * Recording a step may wait for the device, and is done when every rank has enqueued it.
 *
 * Of stages nobody waits for what is not enqueued yet: a stage's step waits for the one of the
 * stage before it, and for what was chosen from an earlier step. So a step is enqueued on one stage
 * after the other, and no kernel of one stage waits for another. A stage that is divided among
 * ranks has the team enqueue on all of them at once; each rank hands over to the same rank of the
 * next stage, as all of them have all of the rows, and of the ids once the last stage has shared
 * them.
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
    bool shares; /* it takes part in the choice: one of the ranks of the last stage */
    uint64_t ticket[SL_MAX_FLIGHTS]; /* of its steps, by rank 0's tickets */
    struct sl_device_lora lora;
};

struct sl_device_ranks {
    struct sl_ranks *ranks;
    int n, n_ranks, n_stages; /* parts: so many ranks of each of so many stages */
    struct follower of[SL_MAX_RANKS];
    uint64_t ticket; /* rank 0's, of the step before */
    /* what the team is at */
    int at;                      /* the first rank of a stage */
    struct sl_step step, follow; /* as rank 0 has it, and the others of the last stage */
    struct sl_step before;       /* and the stages before it */
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
    if ((step->variant & SL_STEP_BEST) != 0) {
        sl_device_ranks_best(f->be, f->run, &step->batch);
        return;
    }
    if (step->part != SL_STEP_CHOICE)
        (void)sl_run_enqueue(f->run, &step->batch);
    if (f->shares && step->part != SL_STEP_FORWARD && step->batch.n_logits > 0)
        f->dev->share_ids(f->be, sl_run_rank(f->run), step->batch.n_logits);
}

void sl_device_ranks_share(struct sl_device_ranks *d, int32_t n)
{
    SL_ASSERT(n > 0);
    if (d->n_ranks == 1) /* to another stage they go behind the step (cuda/comm/pipe.h) */
        return;
    d->of[0].dev->share_ids(d->of[0].be, sl_run_rank(d->of[0].run), n);
}

bool sl_device_ranks_may_best(const struct sl_device_ranks *d)
{
    return d->n_stages == 1 && d->of[0].dev->best_ids != NULL;
}

void sl_device_ranks_best(struct sl_backend *be, struct sl_run *run, const struct sl_batch *batch)
{
    struct sl_best_ids best;
    SL_ASSERT(batch->n_logits > 0);
    sl_run_keep_parts(run, true);
    (void)sl_run_enqueue(run, batch);
    sl_run_best(run, batch->n_logits, &best);
    sl_run_keep_parts(run, false);
    be->vt->device->best_ids(be, &best);
}

static int step_rank(void *arg, int rank, struct sl_error *err)
{
    struct sl_device_ranks *d = arg;
    struct follower *f = &d->of[d->at + rank];
    if (d->at + rank == 0)
        return f->dev->step(f->be, &d->step, d->forward, d->arg, &d->now, err);
    struct sl_step step = d->at == 0 ? d->follow : d->before;
    struct sl_lora_rows rows;
    if (step.batch.lora != NULL) { /* slots are the same, where their matrices lie is not */
        SL_ASSERT(f->lora.n_slots > 0);
        rows = *step.batch.lora;
        rows.table = f->lora.table;
        step.batch.lora = step.batch.logit_lora = &rows;
    }
    return f->dev->step(f->be, &step, follow, f, ticket_of(f, d->ticket + 1), err);
}

void sl_device_ranks_put_adapter(struct sl_device_ranks *d, const struct sl_lora_weights *w,
                                 int32_t slot)
{
    SL_ASSERT(d->n_stages == 1 && w->others != NULL);
    for (int i = 1; i < d->n; i++)
        sl_device_lora_put(&d->of[i].lora, sl_lora_of_rank(w, i), slot);
}

static int record_rank(void *arg, int rank, struct sl_error *err)
{
    struct sl_device_ranks *d = arg;
    (void)err; /* such steps are enqueued one by one then */
    d->of[d->at + rank].dev->record(d->of[d->at + rank].be);
    return 0;
}

/* The first rank of a stage. */
static int first_of(const struct sl_device_ranks *d, int stage)
{
    return sl_model_part(stage, 0, d->n_ranks, d->n_stages);
}

/* On all ranks of a stage. What failed on one is the end, whatever it was: others have begun with
 * the step, of this stage or of those before. */
static int run_all(struct sl_device_ranks *d, int stage, sl_team_fn fn, struct sl_error *err)
{
    struct sl_error why = {0};
    struct sl_team *team = sl_ranks_team(d->ranks);
    int rc = 0;
    d->at = first_of(d, stage);
    SL_ASSERT((team == NULL) == (d->n_ranks == 1));
    if (d->why.code == 0)
        rc = team != NULL ? sl_team_run(team, fn, d, &why) : fn(d, 0, &why);
    if (rc != 0) {
        d->why = why;
        d->why.code = SL_EDEVICE;
    }
    if (d->why.code != 0 && err != NULL)
        *err = d->why;
    return d->why.code;
}

static bool records(const struct sl_device_ranks *d, int stage)
{
    for (int i = first_of(d, stage), end = i + d->n_ranks; i < end; i++)
        if (d->of[i].dev->to_record(d->of[i].be))
            return true;
    return false;
}

/* A stage that is one rank's has recorded with the step. */
static int step_all(struct sl_device_ranks *d, struct sl_error *err)
{
    int rc = 0;
    for (int s = 0; s < d->n_stages && rc == 0; s++)
        rc = run_all(d, s, step_rank, err);
    for (int s = 0; s < d->n_stages && d->n_ranks > 1 && rc == 0; s++)
        if (records(d, s))
            rc = run_all(d, s, record_rank, err);
    return rc;
}

int sl_device_ranks_step(struct sl_device_ranks *d, const struct sl_step *step,
                         sl_forward_fn forward, void *arg, uint64_t *ticket, struct sl_error *err)
{
    SL_ASSERT(!step->drafts && step->n_again == 0);
    SL_ASSERT(step->batch.lora == NULL || d->n_stages == 1);
    d->step = *step;
    d->step.record_later = d->n_ranks > 1;
    /* a stage that chooses nothing has one kind of step */
    d->before = (struct sl_step){.batch = step->batch, .record_later = d->step.record_later};
    d->follow = d->before;
    d->follow.part = step->part;
    d->follow.variant = step->variant;
    d->forward = forward;
    d->arg = arg;
    int rc = step_all(d, err);
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
    return run_all(d, d->n_stages - 1, choose_rank, err);
}

static int wait_rank(struct sl_device_ranks *d, int rank, uint64_t ticket, const int32_t **ids,
                     const void **results, struct sl_error *err)
{
    struct follower *f = &d->of[rank];
    return rank == 0 ? f->dev->wait(f->be, ticket, ids, results, err)
                     : f->dev->wait(f->be, *ticket_of(f, ticket), NULL, NULL, err);
}

/* Stages in their order: a GPU that has failed would be waited for in vain by those behind it. */
int sl_device_ranks_wait(struct sl_device_ranks *d, uint64_t ticket, const int32_t **ids,
                         const void **results, struct sl_error *err)
{
    int rc = 0;
    for (int i = 0; i < d->n && rc == 0; i++)
        rc = wait_rank(d, (i + first_of(d, 0)) % d->n, ticket, ids, results, err);
    return rc;
}

void sl_device_ranks_times(const struct sl_device_ranks *d, int stage, struct sl_device_times *out)
{
    const struct follower *f = &d->of[first_of(d, stage)];
    SL_ASSERT(stage >= 0 && stage < d->n_stages);
    f->dev->times(f->be, out);
}

/* ---------------------------------------------------------------- start and end */

struct sl_step_limits sl_device_ranks_limits(const struct sl_step_limits *limits)
{
    struct sl_step_limits lim = *limits;
    SL_ASSERT(lim.host_hidden == 0 && lim.max_again == 0);
    lim.param_bytes = lim.result_bytes = 0;
    lim.extra_bytes = 0;
    return lim;
}

int sl_device_ranks_create(struct sl_ranks *ranks, const struct sl_step_limits *limits,
                           const struct sl_device_lora *lora, struct sl_device_ranks **out,
                           struct sl_error *err)
{
    int rc = 0;
    *out = NULL;
    struct sl_device_ranks *d = sl_calloc(1, sizeof *d);
    if (d == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the steps of ranks");
    d->ranks = ranks;
    d->n = sl_ranks_count(ranks);
    d->n_stages = sl_ranks_stages(ranks);
    d->n_ranks = d->n / d->n_stages;
    SL_ASSERT(d->n > 1 && d->n <= SL_MAX_RANKS);
    for (int i = 0; i < d->n && rc == 0; i++) {
        struct follower *f = &d->of[i];
        f->run = sl_ranks_run(ranks, i, &f->be);
        f->dev = f->be->vt->device;
        f->shares = i > 0 && i < d->n_ranks;
        SL_ASSERT(f->run != NULL && f->dev != NULL);
        const struct sl_step_limits lim = sl_device_ranks_limits(limits);
        if (i > 0)
            rc = f->dev->steps_init(f->be, &lim, err);
        if (rc == 0 && i > 0 && lora->n_slots > 0)
            rc = sl_device_lora_init(&f->lora, f->be, lora->n_slots, lora->n_mats, lora->slot_bytes,
                                     err);
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
    for (int i = 1; i < d->n; i++) {
        if (d->of[i].dev != NULL)
            d->of[i].dev->forget(d->of[i].be, &d->of[i]);
        sl_device_lora_deinit(&d->of[i].lora);
    }
    sl_free(d);
}
