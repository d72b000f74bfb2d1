/* SPDX-License-Identifier: MIT
 * Mixtures of experts among ranks whose experts are placed by their load (struct sl_expert_places).
 *
 * Where a rank has a range of experts it adds up what its own give, and ranks exchange one sum of a
 * row each. Here the experts of a range may lie anywhere, and a sum has one order (SL_EXPERT_LEAF):
 * so ranks exchange what each pair of a row and an expert gives, and every rank adds all of them up
 * in that order. Of top_k experts that is top_k rows where sums are as many as there are ranks.
 *
 * All ranks route all rows, so each knows without a word how many pairs the others have and in
 * which order they come: rank by rank, of a rank by expert, of an expert by row.
 */
#include "cpu/experts.h"

#include "base/check.h"
#include "cpu/gather.h"

#include <string.h>

#define ALIGN      64
#define SUM_VALUES 512 /* of a row that a thread adds up at a time */

struct exchange {   /* struct sl_op_experts.exchange, in its parts */
    uint8_t *ranks; /* [T * top_k] who has a pair's expert */
    int32_t *at;    /* [C * top_k] of C rows: where in the order of all pairs one is */
    int32_t *first; /* [n_ranks * E + 1] where the pairs of a rank's expert begin */
    uint8_t *adds;  /* [C * top_k] how a pair is added */
    float *rows;    /* [C * top_k, H] what comes over a connection */
};

static size_t cut(uint8_t *base, size_t *at, size_t n_bytes, uint8_t **out)
{
    *out = base == NULL ? NULL : base + *at;
    *at += SL_ROUND_UP(n_bytes, (size_t)ALIGN);
    return *at;
}

/* base NULL: only the size counts. */
static size_t placed_cut(uint8_t *base, int32_t n, int32_t n_experts, int32_t top_k, int64_t h,
                         int32_t n_ranks, struct exchange *out)
{
    const size_t all = (size_t)n * (size_t)top_k;
    const size_t some = (size_t)SL_MIN(n, SL_PLACED_ROWS) * (size_t)top_k;
    uint8_t *at, *first, *rows;
    size_t n_bytes = 0;
    cut(base, &n_bytes, all, &out->ranks);
    cut(base, &n_bytes, some * sizeof *out->at, &at);
    cut(base, &n_bytes, ((size_t)n_ranks * (size_t)n_experts + 1) * sizeof *out->first, &first);
    cut(base, &n_bytes, some, &out->adds);
    cut(base, &n_bytes, some * (size_t)h * sizeof *out->rows, &rows);
    out->at = (int32_t *)(void *)at;
    out->first = (int32_t *)(void *)first;
    out->rows = (float *)(void *)rows;
    return n_bytes;
}

size_t sl_cpu_placed_bytes(int32_t n, int32_t n_experts, int32_t top_k, int64_t hidden,
                           int32_t n_ranks)
{
    struct exchange x;
    return placed_cut(NULL, n, n_experts, top_k, hidden, n_ranks, &x);
}

/* Who computes each pair; and what the call adds to the counts. */
static void choose_ranks(const struct sl_op_experts *a, int32_t n_ranks, uint8_t *ranks)
{
    uint64_t n_of[SL_MAX_RANKS] = {0}, most = 0;
    for (int32_t t = 0; t < a->n; t++) {
        const int32_t position = a->positions[a->rows != NULL ? a->rows[t] : t];
        for (int32_t p = t * a->top_k; p < (t + 1) * a->top_k; p++) {
            SL_ASSERT(a->experts[p] >= 0 && a->experts[p] < a->gate->n);
            ranks[p] = (uint8_t)sl_expert_rank(a->places, a->experts[p], position);
            SL_ASSERT(ranks[p] < n_ranks);
            n_of[ranks[p]]++;
            if (a->counts != NULL)
                a->counts->tokens[a->experts[p]]++;
        }
    }
    for (int32_t i = 0; i < n_ranks; i++)
        most = SL_MAX(most, n_of[i]);
    if (a->counts != NULL) {
        a->counts->n_pairs += (uint64_t)a->n * (uint64_t)a->top_k;
        a->counts->n_most += most;
    }
}

/* Where each of a chunk's pairs comes in the order of all. */
static void find_order(const struct sl_op_experts *a, const uint8_t *ranks, int32_t n_ranks,
                       const struct exchange *x)
{
    const int32_t n_pairs = a->n * a->top_k, n_experts = a->gate->n;
    memset(x->first, 0, ((size_t)n_ranks * (size_t)n_experts + 1) * sizeof *x->first);
    for (int32_t p = 0; p < n_pairs; p++)
        x->first[ranks[p] * n_experts + a->experts[p] + 1]++;
    for (int32_t i = 0; i < n_ranks * n_experts; i++)
        x->first[i + 1] += x->first[i];
    for (int32_t p = 0; p < n_pairs; p++)
        x->at[p] = x->first[ranks[p] * n_experts + a->experts[p]]++;
}

struct sum_job {
    struct sl_cpu *cpu;
    const struct sl_op_experts *a;
    const struct exchange *x;
    const uint8_t *ranks;
    const float *rows[SL_MAX_RANKS]; /* of each rank's pairs, */
    int32_t before[SL_MAX_RANKS];    /* which follow so many of ranks before it */
    int64_t h;
    int32_t n_items; /* of a row */
};

/* Some values of a row: its experts in ascending order, from wherever they lie. */
static void sum_values(void *arg, uint32_t item, int thread_idx)
{
    const struct sum_job *j = arg;
    const struct sl_op_experts *a = j->a;
    const int32_t t = (int32_t)item / j->n_items;
    const int64_t from = (int64_t)((int32_t)item % j->n_items) * SUM_VALUES;
    const int n = (int)SL_MIN(j->h - from, SUM_VALUES);
    const int32_t *experts = a->experts + (int64_t)t * a->top_k;
    float *room = j->cpu->scratch[thread_idx].packed[0];
    float *sums[] = {room, room + SUM_VALUES, room + 2 * SUM_VALUES, a->out + t * j->h + from};
    float *y = room + 3 * SUM_VALUES;
    _Static_assert(SL_COUNT(j->cpu->scratch->packed[0]) >= 4 * SUM_VALUES, "room of a thread");
    for (int32_t s = sl_cpu_next_expert(a, experts, -1); s >= 0;
         s = sl_cpu_next_expert(a, experts, experts[s])) {
        const int32_t p = t * a->top_k + s, rank = j->ranks[p];
        const int64_t row = j->x->at[p] - j->before[rank];
        memcpy(y, j->rows[rank] + row * j->h + from, (size_t)n * sizeof *y);
        sl_cpu_expert_add(&j->cpu->k, j->x->adds[p], y, sums, n);
    }
}

/* The pairs of all ranks, to out. false: a rank is lost. */
static bool exchange_pairs(struct sl_backend *be, const struct sl_op_experts *a,
                           struct sl_rank *rank, const float *own, struct sum_job *j,
                           const int32_t n_of[SL_MAX_RANKS], int32_t n_ranks)
{
    struct sl_link_part parts[SL_MAX_RANKS];
    const size_t row_bytes = (size_t)j->h * sizeof(float);
    const struct sl_op_all_gather g = {.rank = rank,
                                       .part = own,
                                       .part_bytes = (size_t)n_of[rank->idx] * row_bytes,
                                       .n = 1,
                                       .out = j->x->rows};
    if (!sl_cpu_gather_parts(&g, (size_t)(a->n * a->top_k) * row_bytes, parts))
        return false;
    for (int32_t i = 0, before = 0; i < n_ranks; i++) {
        if (parts[i].bytes != (size_t)n_of[i] * row_bytes) { /* it has other places */
            rank->lost = true;
            return false;
        }
        j->before[i] = before;
        j->rows[i] = parts[i].rows != NULL ? (const float *)(const void *)parts[i].rows
                                           : j->x->rows + before * j->h;
        before += n_of[i];
    }
    j->n_items = (int32_t)SL_CEIL_DIV(j->h, SUM_VALUES);
    sl_cpu_run(sl_cpu(be), sum_values, j, (int64_t)a->n * j->n_items,
               (int64_t)a->n * a->top_k * j->h);
    return true;
}

/* a: so many rows as are exchanged at once. */
static bool run_chunk(struct sl_backend *be, const struct sl_op_experts *a, struct sl_rank *rank,
                      const uint8_t *ranks, const struct exchange *x, int32_t n_ranks)
{
    struct sum_job j = {
        .cpu = sl_cpu(be), .a = a, .x = x, .ranks = ranks, .h = a->down->mats[0].n_rows};
    int32_t n_of[SL_MAX_RANKS];
    float *own = sl_rank_room(rank);
    for (int32_t t = 0; t < a->n; t++)
        (void)sl_cpu_expert_adds(a, t, x->adds + t * a->top_k);
    find_order(a, ranks, n_ranks, x);
    for (int32_t i = 0, before = 0; i < n_ranks; i++) { /* first has moved on by one expert */
        const int32_t end = x->first[(i + 1) * a->gate->n - 1];
        n_of[i] = end - before;
        before = end;
    }
    sl_cpu_expert_products(be, a, ranks, rank->idx, own);
    return exchange_pairs(be, a, rank, own, &j, n_of, n_ranks);
}

void sl_cpu_experts_placed(struct sl_backend *be, const struct sl_op_experts *a)
{
    const int64_t h = a->down->mats[0].n_rows;
    const int32_t n_ranks = sl_cpu_comm_n_ranks(a->rank->comm);
    struct exchange x;
    SL_ASSERT(a->from == 0 && a->until == 0 && a->positions != NULL && a->exchange != NULL);
    placed_cut(a->exchange, a->n, a->gate->n, a->top_k, h, n_ranks, &x);
    choose_ranks(a, n_ranks, x.ranks);
    for (int32_t t = 0; t < a->n && !a->rank->lost; t += SL_PLACED_ROWS) {
        struct sl_op_experts part = *a;
        const int64_t pair = (int64_t)t * a->top_k;
        part.n = SL_MIN(a->n - t, SL_PLACED_ROWS);
        part.x = (const float *)a->x + t * h;
        part.experts += pair;
        part.weights += pair;
        part.out += t * h;
        part.rank = NULL;
        part.places = NULL;
        if (!run_chunk(be, &part, a->rank, x.ranks + pair, &x, n_ranks))
            return;
    }
}
