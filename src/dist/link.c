/* SPDX-License-Identifier: MIT */
#include "dist/link.h"

#include "base/check.h"
#include "base/sys.h"

#include <stdarg.h>
#include <stdio.h>

#define SPIN_TICKS 600000u /* 150 to 300 microseconds, as in base/meet.c */

void sl_link_init(struct sl_link *l, const struct sl_link_config *cfg, const struct sl_link_vt *vt)
{
    SL_ASSERT(cfg->n_ranks >= 2 && cfg->n_ranks <= SL_MAX_RANKS);
    SL_ASSERT(cfg->rank >= 0 && cfg->rank < cfg->n_ranks);
    SL_ASSERT((cfg->absent & 1) == 0 && (cfg->absent >> cfg->rank & 1) == 0);
    l->vt = vt;
    l->cfg = *cfg;
    l->spin_ticks = cfg->n_ranks <= sl_cpu_count() ? SPIN_TICKS : 0;
    atomic_init(&l->lost, false);
    l->error = (struct sl_error){.code = SL_OK};
}

void sl_link_close(struct sl_link *l)
{
    if (l != NULL)
        l->vt->close(l);
}

void sl_link_lose(struct sl_link *l)
{
    atomic_store(&l->lost, true);
}

int sl_link_fail(struct sl_link *l, const char *fmt, ...)
{
    char msg[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(msg, sizeof msg, fmt, args);
    va_end(args);
    sl_link_lose(l);
    return sl_fail(&l->error, SL_ERANK, "%s", msg);
}

int sl_link_patience(struct sl_link *l, int rank, uint64_t start_ns)
{
    if (atomic_load(&l->lost))
        return SL_ERANK;
    if (l->cfg.patience == NULL || l->cfg.patience(l->cfg.arg, rank, sl_now_ns() - start_ns))
        return 0;
    l->culprit = SL_MAX(rank, 0);
    return sl_link_fail(l, "rank %d makes no progress", rank);
}

int sl_link_send(struct sl_link *l, const void *data, size_t n)
{
    SL_ASSERT(l->cfg.rank == 0 && n > 0 && n <= l->cfg.max_message);
    return atomic_load(&l->lost) ? SL_ERANK : l->vt->send(l, data, n);
}

int sl_link_recv(struct sl_link *l, void *data, size_t max, size_t *n)
{
    SL_ASSERT(l->cfg.rank > 0);
    *n = 0;
    return atomic_load(&l->lost) ? SL_ERANK : l->vt->recv(l, data, max, n);
}

int sl_link_all_gather(struct sl_link *l, const struct sl_link_gather *g,
                       struct sl_link_part parts[SL_MAX_RANKS])
{
    SL_ASSERT(g->n >= 0 && (g->out == NULL) == !sl_link_wants(g, l->cfg.rank));
    return atomic_load(&l->lost) ? SL_ERANK : l->vt->all_gather(l, g, parts);
}
