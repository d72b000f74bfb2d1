/* SPDX-License-Identifier: MIT
 * Which pages of a prompt are asked for, and when a job is over. The store's lock is taken within
 * a job's.
 */
#include "base/check.h"
#include "base/sys.h"
#include "tier/peer_impl.h"

#include <string.h>

/* ---- life */

static void free_job(struct sl_peer_job *j)
{
    pthread_mutex_destroy(&j->lock);
    sl_free(j->names);
    sl_free(j->tokens);
    sl_free(j);
}

void sl_peer_unref(struct sl_peer_job *j)
{
    if (j != NULL && atomic_fetch_sub(&j->refs, 1) == 1)
        free_job(j);
}

static struct sl_peer_job *make(struct sl_peer *p, const struct sl_peer_want *w)
{
    const size_t block_bytes = (size_t)p->cfg.layout.block_size * sizeof *w->tokens;
    const size_t n_host = strlen(w->host);
    SL_ASSERT(w->n_blocks >= 1);
    struct sl_peer_job *j = n_host <= SL_MAX_PEER_HOST ? sl_calloc(1, sizeof *j) : NULL;
    if (j == NULL)
        return NULL;
    pthread_mutex_init(&j->lock, NULL);
    atomic_init(&j->refs, 2); /* whoever began it, and the list of those that are open */
    j->names = sl_calloc((size_t)w->n_blocks, sizeof *j->names);
    j->tokens = sl_calloc((size_t)w->n_blocks, block_bytes);
    if (j->names == NULL || j->tokens == NULL) {
        free_job(j);
        return NULL;
    }
    memcpy(j->host, w->host, n_host + 1);
    memcpy(j->names, w->names, (size_t)w->n_blocks * sizeof *j->names);
    memcpy(j->tokens, w->tokens, (size_t)w->n_blocks * block_bytes);
    j->peer = p;
    j->port = w->port;
    j->id = w->id;
    j->n = j->n_blocks = w->n_blocks;
    j->begun_ns = sl_now_ns();
    j->deadline_ns = j->begun_ns + (uint64_t)w->wait_ms * 1000000u;
    return j;
}

struct sl_peer_job *sl_peer_begin(struct sl_peer *p, const struct sl_peer_want *want)
{
    struct sl_peer_job *j = want->n_blocks <= SL_MAX_LEASE_BLOCKS ? make(p, want) : NULL;
    if (j == NULL)
        return NULL;
    pthread_mutex_lock(&p->lock);
    bool room = p->n_jobs < SL_MAX_PEER_JOBS && !atomic_load(&p->closing);
    if (room) {
        p->n_jobs++;
        p->stats.n_jobs++;
        if (p->dials != NULL)
            p->last_dial->next = j;
        else
            p->dials = j;
        p->last_dial = j;
        pthread_cond_signal(&p->to_dial);
    }
    pthread_mutex_unlock(&p->lock);
    if (room)
        return j;
    free_job(j);
    return NULL;
}

bool sl_peer_over(const struct sl_peer_job *j)
{
    return atomic_load(&((struct sl_peer_job *)(uintptr_t)j)->over);
}

void sl_peer_job_over(struct sl_peer_job *j)
{
    struct sl_peer *p = j->peer;
    if (atomic_exchange(&j->over, true))
        return;
    pthread_mutex_lock(&p->lock);
    SL_ASSERT(p->n_jobs > 0);
    p->n_jobs--;
    p->stats.job_ns += sl_now_ns() - j->begun_ns;
    p->stats.n_whole += j->phase == SL_PHASE_OVER && j->n == j->n_blocks;
    pthread_mutex_unlock(&p->lock);
    if (p->cfg.wake != NULL && !atomic_load(&j->cancelled))
        p->cfg.wake(p->cfg.wake_arg);
    sl_peer_unref(j);
}

void sl_peer_cancel(struct sl_peer_job *j)
{
    struct sl_peer *p = j->peer;
    SL_ASSERT(atomic_load(&j->refs) > 0);
    if (atomic_load(&j->over) || atomic_exchange(&j->cancelled, true))
        return;
    for (int i = 0; i < p->n_started; i++)
        sl_peer_ring(p->threads[i].bell);
}

void sl_peer_conn_gone(struct sl_peer_job *j)
{
    pthread_mutex_lock(&j->lock);
    SL_ASSERT(j->n_conns > 0);
    bool last = --j->n_conns == 0;
    pthread_mutex_unlock(&j->lock);
    if (last)
        sl_peer_job_over(j);
    sl_peer_unref(j);
}

/* ---- the plan, under the lock */

static bool is_full(const struct sl_page_layout *y, int32_t group)
{
    return !y->state[group] && y->window[group] == 0;
}

/* 1: there is room for the page, 0: it need not come, -1: there is no room. */
static int make_room(struct sl_peer_job *j, int32_t block, int32_t group, struct sl_peer_got *out)
{
    struct sl_store *store = j->peer->cfg.store;
    const struct sl_store_key key = {j->names[block], group};
    SL_ASSERT(block >= 0 && block < j->n_blocks);
    if (sl_store_has(store, &key))
        return 0;
    *out =
        (struct sl_peer_got){.block = block, .group = group, .room = sl_store_reserve(store, &key)};
    if (out->room == NULL)
        return sl_store_has(store, &key) ? 0 : -1;
    j->n_out++;
    return 1;
}

static int next_full(struct sl_peer_job *j, struct sl_peer_got *out)
{
    const struct sl_page_layout *y = &j->peer->cfg.layout;
    SL_ASSERT(j->phase == SL_PHASE_FULL && j->group < y->n_groups);
    while (j->block < j->n) {
        const int32_t block = j->block, group = j->group;
        if (++j->group == y->n_groups) {
            j->group = 0;
            j->block++;
        }
        int got = is_full(y, group) ? make_room(j, block, group, out) : 0;
        if (got > 0)
            return 1;
        if (got < 0)
            j->n = block;
    }
    if (j->n_out > 0)
        return 0;
    j->phase = SL_PHASE_STATE;
    j->block = j->n - 1;
    j->group = 0;
    return 2;
}

/* From the deepest block on, the first that has the states of all groups; one page at a time. */
static int next_state(struct sl_peer_job *j, struct sl_peer_got *out)
{
    const struct sl_page_layout *y = &j->peer->cfg.layout;
    SL_ASSERT(j->block < j->n);
    if (j->n_out > 0)
        return 0;
    if (j->missed) {
        j->missed = false;
        j->block--;
        j->group = 0;
    }
    while (j->block >= 0 && j->group < y->n_groups) {
        const int32_t group = j->group++;
        int got = y->state[group] ? make_room(j, j->block, group, out) : 0;
        if (got > 0)
            return 1;
        if (got < 0) {
            j->missed = true;
            return 2;
        }
    }
    j->n = j->block + 1;
    j->phase = SL_PHASE_WINDOW;
    j->block = j->n;
    for (int32_t g = 0; g < y->n_groups; g++)
        if (!y->state[g] && y->window[g] > 0)
            j->block = SL_MIN(j->block, sl_layout_first(y, g, j->n));
    j->group = 0;
    return 2;
}

static int next_window(struct sl_peer_job *j, struct sl_peer_got *out)
{
    const struct sl_page_layout *y = &j->peer->cfg.layout;
    SL_ASSERT(j->phase == SL_PHASE_WINDOW && j->n >= 0);
    while (j->block < j->n) {
        const int32_t block = j->block, group = j->group;
        if (++j->group == y->n_groups) {
            j->group = 0;
            j->block++;
        }
        if (y->state[group] || y->window[group] == 0 || block < sl_layout_first(y, group, j->n))
            continue;
        if (make_room(j, block, group, out) > 0)
            return 1;
    }
    if (j->n_out > 0)
        return 0;
    j->phase = SL_PHASE_OVER;
    return 2;
}

int sl_peer_next(struct sl_peer_job *j, struct sl_peer_got *out)
{
    int got = 2;
    pthread_mutex_lock(&j->lock);
    while (got == 2 && j->phase != SL_PHASE_OVER)
        got = j->phase == SL_PHASE_FULL    ? next_full(j, out)
              : j->phase == SL_PHASE_STATE ? next_state(j, out)
                                           : next_window(j, out);
    const bool over = j->phase == SL_PHASE_OVER;
    SL_ASSERT(j->n >= 0 && j->n <= j->n_blocks && (!over || j->n_out == 0));
    pthread_mutex_unlock(&j->lock);
    if (over)
        sl_peer_job_over(j);
    return over ? -1 : got;
}

uint8_t *sl_peer_another_room(struct sl_peer_job *j, const struct sl_peer_got *got)
{
    const struct sl_store_key key = {j->names[got->block], got->group};
    SL_ASSERT(got->block >= 0 && got->block < j->n_blocks);
    return sl_store_reserve(j->peer->cfg.store, &key);
}

void sl_peer_answered(struct sl_peer_job *j, const struct sl_peer_got *got, bool here)
{
    pthread_mutex_lock(&j->lock);
    SL_ASSERT(j->n_out > 0 && j->phase != SL_PHASE_OVER);
    j->n_out--;
    if (!here && j->phase == SL_PHASE_FULL)
        j->n = SL_MIN(j->n, got->block); /* what is behind it serves nobody */
    j->missed |= !here && j->phase == SL_PHASE_STATE;
    pthread_mutex_unlock(&j->lock);
}

void sl_peer_welcomed(struct sl_peer_job *j, int32_t n_blocks)
{
    pthread_mutex_lock(&j->lock);
    if (j->phase == SL_PHASE_FULL)
        j->n = SL_MIN(j->n, n_blocks);
    pthread_mutex_unlock(&j->lock);
}
