/* SPDX-License-Identifier: MIT
 * Ranks: each reads the others' parts where they lie, if it can reach their memory. In processes of
 * their own they have a link (dist/link.h), which says where that is, or puts them in place itself.
 *
 * In one process a gather has one barrier: before it a rank says where its part is, behind it the
 * rank copies all parts. There is none behind the copy, since a rank leaves its part alone until
 * the next gather returns: by then all ranks came to that one, and so were done with this one. For
 * the same reason there are two sets of places to say it.
 */
#include "cpu/gather.h"

#include "base/check.h"
#include "base/meet.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "cpu/cpu.h"

#include <string.h>

struct sl_comm {
    struct sl_meet meet;
    int n_ranks;
    bool linked;          /* of a process each: */
    struct sl_link *link; /* NULL: there is none now */
    struct {
        _Alignas(64) struct sl_link_part part[2];
        uint32_t n_gathers;
    } ranks[SL_MAX_RANKS];
};

int sl_cpu_comm_create(int n_ranks, struct sl_comm **out, struct sl_error *err)
{
    SL_ASSERT(n_ranks >= 1 && n_ranks <= SL_MAX_RANKS);
    struct sl_comm *c = *out = sl_aligned_alloc(sizeof *c);
    if (c == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %d ranks", n_ranks);
    memset(c, 0, sizeof *c);
    c->n_ranks = n_ranks;
    sl_meet_init(&c->meet, n_ranks);
    return 0;
}

int sl_cpu_comm_create_linked(int n_ranks, struct sl_comm **out, struct sl_error *err)
{
    int rc = sl_cpu_comm_create(n_ranks, out, err);
    if (rc == 0)
        (*out)->linked = true;
    return rc;
}

void sl_cpu_comm_link(struct sl_comm *c, struct sl_link *link)
{
    SL_ASSERT(c->linked && (link == NULL || c->link == NULL));
    c->link = link;
}

void sl_cpu_comm_destroy(struct sl_comm *c)
{
    if (c != NULL)
        sl_aligned_free(c, sizeof *c);
}

int32_t sl_cpu_comm_n_ranks(const struct sl_comm *c)
{
    return c->n_ranks;
}

struct job {
    struct sl_link_part parts[SL_MAX_RANKS];
    int n_parts;
    uint8_t *out;
    size_t row_bytes;
};

static void copy_row(void *arg, uint32_t row, int thread_idx)
{
    const struct job *j = arg;
    uint8_t *at = j->out + row * j->row_bytes;
    (void)thread_idx;
    for (int i = 0; i < j->n_parts; i++) {
        const struct sl_link_part *p = &j->parts[i];
        if (p->rows != NULL) /* else it is there */
            memcpy(at, p->rows + row * p->bytes, p->bytes);
        at += p->bytes;
    }
}

static void meet(struct sl_comm *c, const struct sl_op_all_gather *a,
                 struct sl_link_part parts[SL_MAX_RANKS])
{
    const uint32_t set = c->ranks[a->rank->idx].n_gathers++ % 2;
    c->ranks[a->rank->idx].part[set] = (struct sl_link_part){a->part, a->part_bytes};
    sl_meet_wait(&c->meet);
    for (int i = 0; i < c->n_ranks; i++)
        parts[i] = c->ranks[i].part[set];
}

/* A step whose rank is lost goes on with what stands in its memory, until it is noticed there. */
static void link_all(const struct sl_comm *c, const struct sl_op_all_gather *a, size_t row_bytes,
                     struct sl_link_part parts[SL_MAX_RANKS])
{
    const struct sl_link_gather g = {.part = a->part,
                                     .part_bytes = a->part_bytes,
                                     .row_bytes = row_bytes,
                                     .n = a->n,
                                     .out = a->out,
                                     .first_only = a->first_only};
    if (a->rank->lost || c->link == NULL || sl_link_all_gather(c->link, &g, parts) != 0)
        a->rank->lost = true;
}

bool sl_cpu_gather_parts(const struct sl_op_all_gather *a, size_t row_bytes,
                         struct sl_link_part parts[SL_MAX_RANKS])
{
    struct sl_comm *c = a->rank->comm;
    SL_ASSERT(a->rank->idx >= 0 && a->rank->idx < c->n_ranks);
    if (c->linked)
        link_all(c, a, row_bytes, parts);
    else
        meet(c, a, parts);
    return !a->rank->lost;
}

void sl_cpu_gather_splits(struct sl_rank *rank, const void *part, size_t n_bytes, void *others,
                          const uint8_t *parts[SL_MAX_RANKS])
{
    struct sl_link_part found[SL_MAX_RANKS] = {{0}};
    const struct sl_comm *c = rank->comm;
    const struct sl_op_all_gather a = {
        .rank = rank, .part = part, .part_bytes = n_bytes, .n = 1, .out = others};
    (void)sl_cpu_gather_parts(&a, (size_t)c->n_ranks * n_bytes, found);
    for (int i = 0; i < c->n_ranks && !rank->lost; i++)
        if (found[i].bytes != n_bytes) { /* said by another process */
            SL_ASSERT(c->linked);
            rank->lost = sl_link_fail(c->link, "rank %d has %zu bytes of splits instead of %zu", i,
                                      found[i].bytes, n_bytes) != 0;
        }
    for (int i = 0; i < c->n_ranks; i++) /* once one is lost, something to read all the same */
        parts[i] = found[i].rows != NULL && !rank->lost ? found[i].rows
                                                        : (uint8_t *)others + (size_t)i * n_bytes;
}

void sl_cpu_all_gather(struct sl_backend *be, const struct sl_op_all_gather *a)
{
    struct job j = {.n_parts = a->rank->comm->n_ranks, .out = a->out};
    if (!sl_cpu_gather_parts(a, 0, j.parts) || a->out == NULL)
        return;
    for (int i = 0; i < j.n_parts; i++)
        j.row_bytes += j.parts[i].bytes;
    sl_cpu_run(sl_cpu(be), copy_row, &j, a->n, (int64_t)j.row_bytes * a->n / 4);
}
