/* SPDX-License-Identifier: MIT */
#include "engine/team.h"

#include "base/limits.h"
#include "base/meet.h"
#include "base/sys.h"

#include <pthread.h>
#include <stdio.h>

struct team_member {
    struct sl_team *team;
    pthread_t thread;
    int rank, rc;
    struct sl_error err;
};

struct sl_team {
    struct sl_meet begin, end;
    sl_team_fn fn; /* NULL: it is over */
    void *arg;
    int n, n_started;
    struct team_member members[SL_MAX_RANKS]; /* [0] is whoever calls */
};

static void team_work(struct team_member *m)
{
    m->rc = m->team->fn(m->team->arg, m->rank, &m->err);
}

static void *member_main(void *arg)
{
    struct team_member *m = arg;
    for (;;) {
        sl_meet_wait(&m->team->begin);
        if (m->team->fn == NULL)
            return NULL;
        team_work(m);
        sl_meet_wait(&m->team->end);
    }
}

int sl_team_run(struct sl_team *t, sl_team_fn fn, void *arg, struct sl_error *err)
{
    SL_ASSERT(fn != NULL && t->n_started == t->n);
    t->fn = fn;
    t->arg = arg;
    sl_meet_wait(&t->begin);
    team_work(&t->members[0]);
    sl_meet_wait(&t->end);
    for (int i = 0; i < t->n; i++)
        if (t->members[i].rc != 0) {
            if (err != NULL)
                *err = t->members[i].err;
            return t->members[i].rc;
        }
    return 0;
}

void sl_team_destroy(struct sl_team *t)
{
    if (t == NULL)
        return;
    t->fn = NULL;
    atomic_store(&t->begin.n, (uint32_t)t->n_started); /* the rest could not be started */
    sl_meet_wait(&t->begin);
    for (int i = 1; i < t->n_started; i++)
        pthread_join(t->members[i].thread, NULL);
    sl_aligned_free(t, sizeof *t);
}

int sl_team_create(int n, struct sl_team **out, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(n >= 1 && n <= SL_MAX_RANKS);
    *out = NULL;
    struct sl_team *t = sl_aligned_alloc(sizeof *t);
    if (t == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %d ranks", n);
    *t = (struct sl_team){.n = n, .n_started = 1};
    sl_meet_init(&t->begin, n);
    sl_meet_init(&t->end, n);
    for (int i = 0; i < n; i++)
        t->members[i] = (struct team_member){.team = t, .rank = i};
    while (rc == 0 && t->n_started < n) {
        struct team_member *m = &t->members[t->n_started];
        char name[16];
        snprintf(name, sizeof name, "sl-rank-%d", m->rank);
        rc = sl_thread_create(&m->thread, member_main, m, name, err);
        t->n_started += rc == 0;
    }
    if (rc != 0)
        sl_team_destroy(t);
    else
        *out = t;
    return rc;
}
