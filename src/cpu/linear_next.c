/* SPDX-License-Identifier: MIT */
#include "cpu/linear_next.h"

#include "base/check.h"
#include "base/sys.h"
#include "cpu/linear.h"

#include <string.h>

#define ASKED (128u << 10) /* bytes of a thread: what memory sends it in the time of a wait */
#define EACH  1024u        /* at a time: a new job is not kept waiting for longer */

bool sl_streams_create(struct sl_streams *s, int n_threads)
{
    *s = (struct sl_streams){.last = -1};
    s->stream = sl_calloc(SL_STREAMS, sizeof *s->stream);
    s->slot = sl_malloc(2 * SL_STREAMS * sizeof *s->slot);
    s->at = sl_aligned_alloc((size_t)n_threads * sizeof *s->at);
    if (s->stream == NULL || s->slot == NULL || s->at == NULL)
        return false;
    memset(s->slot, 0xFF, 2 * SL_STREAMS * sizeof *s->slot);
    memset(s->at, 0, (size_t)n_threads * sizeof *s->at);
    return true;
}

void sl_streams_destroy(struct sl_streams *s, int n_threads)
{
    sl_free(s->stream);
    sl_free(s->slot);
    sl_aligned_free(s->at, (size_t)n_threads * sizeof *s->at);
}

static bool linear_next_same(const struct sl_stream *a, const struct sl_stream *b)
{
    bool yes = a->n_parts == b->n_parts && a->up == b->up;
    for (int i = 0; yes && i < a->n_parts; i++) {
        const struct sl_stream_part *p = &a->part[i], *q = &b->part[i];
        yes = p->panels == q->panels && p->panel_bytes == q->panel_bytes &&
              p->n_panels == q->n_panels && p->panels_per_item == q->panels_per_item;
    }
    return yes;
}

/* The stream's number, a new one if there is room; -1: it is not remembered. */
static int32_t number_of(struct sl_streams *all, const struct sl_stream *s)
{
    const uint64_t key = (uint64_t)(uintptr_t)s->part[0].panels * 0x9E3779B97F4A7C15u;
    uint32_t at = (uint32_t)(key >> 32) % (2 * SL_STREAMS);
    for (; all->slot[at] >= 0; at = (at + 1) % (2 * SL_STREAMS))
        if (linear_next_same(&all->stream[all->slot[at]], s))
            return all->slot[at];
    if (all->n == SL_STREAMS)
        return -1;
    all->stream[all->n] = *s;
    all->stream[all->n].after = -1;
    all->slot[at] = all->n;
    return all->n++;
}

void sl_streams_run(struct sl_streams *all, const struct sl_stream *s)
{
    const int32_t now = s != NULL ? number_of(all, s) : -1;
    if (all->last >= 0 && now >= 0)
        all->stream[all->last].after = now;
    all->last = now;
    const int32_t after = now >= 0 ? all->stream[now].after : -1;
    atomic_store_explicit(&all->next, after >= 0 ? &all->stream[after] : NULL,
                          memory_order_release);
}

struct sl_runs sl_stream_first(const struct sl_stream *s, int n_threads, int thread_idx)
{
    int64_t n_items[SL_MAX_LINEAR_PARTS], all = 0;
    for (int i = 0; i < s->n_parts; i++) {
        n_items[i] = s->part[i].n_items;
        all += n_items[i];
    }
    int64_t item = sl_thread_pool_first_item(all, n_threads, thread_idx);
    if (item >= all)
        return (struct sl_runs){.n = 0};
    const struct sl_stream_part *p = &s->part[sl_linear_part_at(n_items, s->n_parts, &item)];
    const int64_t from = item * p->panels_per_item;
    struct sl_runs r = {.n = s->up != NULL ? 2 : 1};
    const size_t offset = (size_t)from * p->panel_bytes;
    r.at[0] = p->panels + offset;
    r.at[1] = s->up != NULL ? s->up + offset : NULL;
    r.n_bytes = (size_t)(p->n_panels - from) * p->panel_bytes;
    r.n_bytes = SL_MIN(r.n_bytes, ASKED / (size_t)r.n);
    return r;
}

bool sl_streams_ask(void *arg, int thread_idx)
{
    struct sl_cpu *cpu = arg;
    struct sl_stream_at *at = &cpu->streams.at[thread_idx];
    const struct sl_stream *s = atomic_load_explicit(&cpu->streams.next, memory_order_acquire);
    if (s == NULL)
        return false;
    if (s != at->stream)
        *at = (struct sl_stream_at){.stream = s};
    if (at->done >= ASKED)
        return false;
    const struct sl_runs r = sl_stream_first(s, cpu->n_threads, thread_idx);
    for (int i = 0; i < r.n; i++)
        for (size_t b = 0; b < EACH && at->done + b < r.n_bytes; b += 64)
            __builtin_prefetch(r.at[i] + at->done + b, 0, 2);
    at->done = at->done + EACH < r.n_bytes ? at->done + EACH : ASKED;
    return true;
}
