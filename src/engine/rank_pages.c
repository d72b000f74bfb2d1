/* SPDX-License-Identifier: MIT */
#include "engine/rank_pages.h"

#include "base/check.h"
#include "engine/rank_lora.h"

#include <string.h>

struct head { /* then the whole page, if it goes in */
    int32_t kind, group, page, unused;
};

void sl_rank_pages_init(struct sl_rank_pages *p, const struct sl_model *model,
                        const struct sl_kv_layout *kv)
{
    const struct sl_model_facts *f = sl_model_facts(model);
    *p = (struct sl_rank_pages){.n_parts = sl_model_n_parts(f), .n_groups = kv->n_groups};
    SL_ASSERT(p->n_parts > 1 && p->n_parts <= SL_MAX_RANKS);
    for (int32_t i = 0; i < p->n_parts; i++) {
        struct sl_kv_layout own = *kv;
        int32_t first, end;
        sl_kv_layout_part(&own, f->n_ranks);
        if (f->n_stages > 1) {
            sl_model_stage_layers(model, sl_model_stage_of(i, f->n_ranks, f->n_stages), &first,
                                  &end);
            sl_kv_layout_stage(&own, first, end);
        }
        for (int32_t g = 0; g < kv->n_groups; g++)
            p->bytes[i][g] = own.groups[g].page_bytes;
    }
}

static size_t whole(const struct sl_rank_pages *p, int32_t group)
{
    size_t n = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        n += p->bytes[i][group];
    return n;
}

size_t sl_rank_pages_most(const struct sl_rank_pages *p)
{
    size_t most = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        for (int32_t g = 0; g < p->n_groups; g++)
            most = SL_MAX(most, p->bytes[i][g]);
    return most;
}

size_t sl_rank_pages_message(const struct sl_rank_pages *p)
{
    size_t most = 0;
    for (int32_t g = 0; g < p->n_groups; g++)
        most = SL_MAX(most, whole(p, g));
    return sizeof(struct head) + most;
}

/* All ranks; out: of rank 0. */
static int gather(const struct sl_rank_pages *p, struct sl_link *link, const uint8_t *part,
                  int32_t group, uint8_t *out)
{
    struct sl_link_part parts[SL_MAX_RANKS];
    const struct sl_link_gather g = {.part = part,
                                     .part_bytes = p->bytes[link->cfg.rank][group],
                                     .n = 1,
                                     .out = out,
                                     .first_only = true};
    int rc = sl_link_all_gather(link, &g, parts);
    for (int32_t i = 0; i < p->n_parts && out != NULL && rc == 0; i++) {
        const size_t n = p->bytes[i][group];
        if (parts[i].bytes != n)
            return sl_link_fail(link, "rank %d has %zu bytes of a page instead of %zu", i,
                                parts[i].bytes, n);
        if (parts[i].rows != NULL) /* else it is there */
            memcpy(out, parts[i].rows, n);
        out += n;
    }
    return rc;
}

int sl_rank_pages_out(const struct sl_rank_pages *p, struct sl_link *link, const uint8_t *pool,
                      int32_t group, int32_t page, uint8_t *dst, uint8_t *message)
{
    const struct head h = {.kind = SL_RANK_PAGE_OUT, .group = group, .page = page};
    SL_ASSERT(link->cfg.rank == 0 && group >= 0 && group < p->n_groups && page >= 0);
    memcpy(message, &h, sizeof h);
    int rc = sl_link_send(link, message, sizeof h);
    return rc != 0 ? rc : gather(p, link, pool + (size_t)page * p->bytes[0][group], group, dst);
}

int sl_rank_pages_in(const struct sl_rank_pages *p, struct sl_link *link, uint8_t *pool,
                     int32_t group, int32_t page, const uint8_t *src, uint8_t *message)
{
    const struct head h = {.kind = SL_RANK_PAGE_IN, .group = group, .page = page};
    SL_ASSERT(link->cfg.rank == 0 && group >= 0 && group < p->n_groups && page >= 0);
    memcpy(message, &h, sizeof h);
    memcpy(message + sizeof h, src, whole(p, group));
    memcpy(pool + (size_t)page * p->bytes[0][group], src, p->bytes[0][group]);
    return sl_link_send(link, message, sizeof h + whole(p, group));
}

int sl_rank_pages_get(const struct sl_rank_pages *p, struct sl_link *link, uint8_t *const *pools,
                      const uint8_t *message, size_t n, struct sl_error *err)
{
    const int rank = link->cfg.rank;
    struct head h = {0};
    size_t before = sizeof h;
    SL_ASSERT(rank > 0 && rank < p->n_parts);
    memcpy(&h, message, SL_MIN(n, sizeof h));
    if (n < sizeof h || h.group < 0 || h.group >= p->n_groups || h.page < 0 ||
        h.page >= p->n_pages[h.group] ||
        n != sizeof h + (h.kind == SL_RANK_PAGE_IN ? whole(p, h.group) : 0))
        return sl_fail(err, SL_EFORMAT, "rank 0 sent %zu bytes of page %d of group %d", n, h.page,
                       h.group);
    const size_t n_bytes = p->bytes[rank][h.group];
    uint8_t *own = pools[h.group] + (size_t)h.page * n_bytes;
    if (h.kind == SL_RANK_PAGE_OUT)
        return gather(p, link, own, h.group, NULL);
    for (int i = 0; i < rank; i++)
        before += p->bytes[i][h.group];
    memcpy(own, message + before, n_bytes);
    return 0;
}
