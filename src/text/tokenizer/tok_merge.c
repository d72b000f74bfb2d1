/* SPDX-License-Identifier: MIT
 * tok_merge.c - merging a long word in time linear in its length.
 *
 * Pairs of neighbours are kept in one list per rank. A merge makes pairs of higher rank (a token is
 * made before it is used), so the lists are emptied from the lowest rank up, each in text order.
 * Pairs that break this (a vocabulary may be anything) wait in a small binary heap, so the order is
 * always exactly (rank, position), as a priority queue over all pairs would give. A heap for all of
 * them costs a factor of log n and, worse, jumps through memory: a run of 16 MB of one letter took
 * three times as long per byte as one of 1 KB; with lists the passes run through memory in order.
 * A symbol is 24 bytes, which decides the time of runs that do not fit the caches.
 */
#include "base/check.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <stdlib.h>
#include <string.h>

struct node { /* node i begins at symbol i of the word */
    int32_t id;
    uint32_t span; /* symbols it covers; 0 = swallowed by one before it */
    uint32_t rank; /* of the pair with the next node, TOK_HOLE = none */
    int32_t prev;
    int32_t up, down; /* neighbours in the list of its rank; up IN_HEAP = in no list */
};

#define IN_HEAP (-2)

struct late { /* a pair that came up at or below the rank now being merged */
    uint32_t rank;
    int32_t pos;
};

struct tok_bucketq {
    int32_t *head, *tail; /* per rank, valid where the bit is set */
    uint64_t *bits;
    bool *unsorted;
    size_t n_ranks;
    struct node *v;
    struct late *heap;
    int32_t *order;
    size_t cap_v, n_heap, cap_heap, cap_order;
};

void tok_bucketq_destroy(struct tok_bucketq *q)
{
    if (q == NULL)
        return;
    sl_free(q->head);
    sl_free(q->tail);
    sl_free(q->bits);
    sl_free(q->unsorted);
    sl_free(q->v);
    sl_free(q->heap);
    sl_free(q->order);
    sl_free(q);
}

static struct tok_bucketq *bucketq_create(size_t n_ranks)
{
    struct tok_bucketq *q = sl_calloc(1, sizeof(*q));
    if (q == NULL)
        return NULL;
    q->n_ranks = n_ranks;
    q->head = sl_malloc(n_ranks * sizeof(*q->head));
    q->tail = sl_malloc(n_ranks * sizeof(*q->tail));
    q->unsorted = sl_malloc(n_ranks * sizeof(*q->unsorted));
    q->bits = sl_calloc(n_ranks / 64 + 1, sizeof(*q->bits));
    if (q->head != NULL && q->tail != NULL && q->unsorted != NULL && q->bits != NULL)
        return q;
    tok_bucketq_destroy(q);
    return NULL;
}

/* ---------------------------------------------------------------- lists */

static void bucket_add(struct tok_bucketq *q, int32_t i)
{
    uint32_t r = q->v[i].rank;
    q->v[i].down = -1;
    if (!(q->bits[r / 64] >> (r & 63) & 1)) {
        q->bits[r / 64] |= 1ull << (r & 63);
        q->head[r] = i;
        q->unsorted[r] = false;
        q->v[i].up = -1;
    } else {
        int32_t t = q->tail[r];
        q->v[t].down = i;
        q->v[i].up = t;
        q->unsorted[r] |= i < t;
    }
    q->tail[r] = i;
}

static void bucket_remove(struct tok_bucketq *q, int32_t i)
{
    struct node *v = q->v;
    uint32_t r = v[i].rank;
    if (v[i].up >= 0)
        v[v[i].up].down = v[i].down;
    else
        q->head[r] = v[i].down;
    if (v[i].down >= 0)
        v[v[i].down].up = v[i].up;
    else
        q->tail[r] = v[i].up;
    if (q->head[r] < 0)
        q->bits[r / 64] &= ~(1ull << (r & 63));
}

static int by_position(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Puts the list of rank r in text order. */
static bool bucket_sort(struct tok_bucketq *q, uint32_t r)
{
    size_t n = 0;
    for (int32_t i = q->head[r]; i >= 0; i = q->v[i].down) {
        if (n == q->cap_order) {
            size_t cap = SL_MAX(q->cap_order * 2, (size_t)256);
            int32_t *grown = sl_realloc(q->order, cap * sizeof(*grown));
            if (grown == NULL)
                return false;
            q->order = grown;
            q->cap_order = cap;
        }
        q->order[n++] = i;
    }
    qsort(q->order, n, sizeof(*q->order), by_position);
    for (size_t k = 0; k < n; k++) {
        q->v[q->order[k]].up = k > 0 ? q->order[k - 1] : -1;
        q->v[q->order[k]].down = k + 1 < n ? q->order[k + 1] : -1;
    }
    q->head[r] = q->order[0];
    q->tail[r] = q->order[n - 1];
    q->unsorted[r] = false;
    return true;
}

/* ---------------------------------------------------------------- the heap of late pairs */

static bool late_before(const struct late *a, const struct late *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static bool late_push(struct tok_bucketq *q, uint32_t rank, int32_t pos)
{
    if (q->n_heap == q->cap_heap) {
        size_t cap = SL_MAX(q->cap_heap * 2, (size_t)64);
        struct late *grown = sl_realloc(q->heap, cap * sizeof(*grown));
        if (grown == NULL)
            return false;
        q->heap = grown;
        q->cap_heap = cap;
    }
    size_t i = q->n_heap++;
    struct late x = {rank, pos};
    for (; i > 0 && late_before(&x, &q->heap[(i - 1) / 2]); i = (i - 1) / 2)
        q->heap[i] = q->heap[(i - 1) / 2];
    q->heap[i] = x;
    return true;
}

static struct late late_pop(struct tok_bucketq *q)
{
    struct late top = q->heap[0], x = q->heap[--q->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= q->n_heap)
            break;
        if (c + 1 < q->n_heap && late_before(&q->heap[c + 1], &q->heap[c]))
            c++;
        if (!late_before(&q->heap[c], &x))
            break;
        q->heap[i] = q->heap[c];
        i = c;
    }
    if (q->n_heap > 0)
        q->heap[i] = x;
    return top;
}

/* ---------------------------------------------------------------- merging */

/* The text of nodes i and the one after it. */
static const char *pair_text(const struct tok_word *w, const struct node *v, int32_t i, size_t *n)
{
    size_t last = (size_t)i + v[i].span;
    last += v[last].span - 1;
    if (w->y == NULL) {
        *n = last + 1 - (size_t)i;
        return w->s + i;
    }
    *n = (size_t)w->y[last].off + w->y[last].len - w->y[i].off;
    return w->s + w->y[i].off;
}

static int32_t pair_entry(const struct tok_word *w, const struct node *v, int32_t i)
{
    size_t n;
    const char *s = pair_text(w, v, i, &n);
    int32_t id = n > w->b->max_len ? -1 : tok_map_get(w->map, w->tab, s, n);
    return id >= 0 && (w->t->attr[id] & TOK_IN_MODEL) ? id : -1;
}

static uint32_t tok_merge_rank_of(const struct tok_word *w, const struct node *v, int32_t i)
{
    size_t next = (size_t)i + v[i].span;
    if (next >= w->n)
        return TOK_HOLE;
    if (w->b->by_concat) {
        int32_t id = pair_entry(w, v, i);
        return id < 0 ? TOK_HOLE : w->b->rank != NULL ? w->b->rank[id] : (uint32_t)id;
    }
    if (v[i].id < 0 || v[next].id < 0)
        return TOK_HOLE;
    const struct tok_pair *p = tok_bpe_find_pair(w->b, (uint32_t)v[i].id, (uint32_t)v[next].id);
    return p != NULL ? p->rank : TOK_HOLE;
}

/* What the merge of node i with the next one makes. */
static int32_t made_by(const struct tok_word *w, const struct node *v, int32_t i)
{
    if (!w->b->by_concat)
        return (int32_t)w->b->id_of_rank[v[i].rank];
    return w->b->rank == NULL ? (int32_t)v[i].rank : pair_entry(w, v, i);
}

/* Rates the pair that begins at i again and queues it; now = the rank being merged. */
static bool requeue(const struct tok_word *w, struct tok_bucketq *q, int32_t i, uint32_t now)
{
    struct node *x = &q->v[i];
    if (x->rank != TOK_HOLE && x->up != IN_HEAP)
        bucket_remove(q, i);
    x->rank = tok_merge_rank_of(w, q->v, i);
    if (x->rank == TOK_HOLE)
        return true;
    if (x->rank > now) {
        bucket_add(q, i);
        return true;
    }
    x->up = IN_HEAP;
    return late_push(q, x->rank, i);
}

static bool merge_at(const struct tok_word *w, struct tok_bucketq *q, int32_t i, uint32_t now)
{
    struct node *v = q->v;
    int32_t j = i + (int32_t)v[i].span;
    v[i].id = made_by(w, v, i);
    v[i].span += v[j].span;
    size_t next = (size_t)i + v[i].span;
    if (next < w->n)
        v[next].prev = i;
    if (v[j].rank != TOK_HOLE && v[j].up != IN_HEAP)
        bucket_remove(q, j);
    v[j].rank = TOK_HOLE;
    v[j].span = 0;
    return requeue(w, q, i, now) && (v[i].prev < 0 || requeue(w, q, v[i].prev, now));
}

/* Merges everything of rank r, in text order, with what turns up before it. */
static bool merge_rank(const struct tok_word *w, struct tok_bucketq *q, uint32_t r)
{
    if (q->unsorted[r] && !bucket_sort(q, r))
        return false;
    for (;;) {
        bool listed = q->bits[r / 64] >> (r & 63) & 1;
        if (!listed && q->n_heap == 0)
            return true;
        struct late x = {r, listed ? q->head[r] : INT32_MAX};
        if (listed && (q->n_heap == 0 || late_before(&x, &q->heap[0]))) {
            bucket_remove(q, x.pos);
            q->v[x.pos].up = IN_HEAP;
        } else {
            x = late_pop(q);
            /* An entry of the heap is stale when its pair has changed since. */
            const struct node *y = &q->v[x.pos];
            if (y->span == 0 || y->up != IN_HEAP || y->rank != x.rank)
                continue;
        }
        if (!merge_at(w, q, x.pos, r))
            return false;
    }
}

static bool start(const struct tok_word *w, struct tok_bucketq *q)
{
    if (w->n > q->cap_v) {
        size_t bytes;
        sl_free(q->v); /* nothing in it is needed any more */
        q->v = NULL;
        q->cap_v = 0;
        if (w->n > INT32_MAX || !sl_mul_size(w->n, sizeof(*q->v), &bytes) ||
            (q->v = sl_malloc(bytes)) == NULL)
            return false;
        q->cap_v = w->n;
    }
    q->n_heap = 0;
    for (size_t i = 0; i < w->n; i++) {
        int32_t id = w->y != NULL ? w->y[i].id : w->b->byte_id[(uint8_t)w->s[i]];
        q->v[i] = (struct node){id, 1, TOK_HOLE, (int32_t)i - 1, -1, -1};
        if (i == 0)
            continue;
        q->v[i - 1].rank = tok_merge_rank_of(w, q->v, (int32_t)i - 1);
        if (q->v[i - 1].rank != TOK_HOLE)
            bucket_add(q, (int32_t)i - 1);
    }
    return true;
}

int tok_merge_long(struct tok_enc *e, struct tok_word *w, size_t *n_left)
{
    size_t n_ranks = w->b->n_ranks, k = 0;
    if (e->queue == NULL && (e->queue = bucketq_create(n_ranks)) == NULL)
        return sl_fail(e->err, SL_ENOMEM, "merge queue of %zu ranks", n_ranks);
    struct tok_bucketq *q = e->queue;
    bool ok = start(w, q);
    for (size_t b = 0; ok && b <= n_ranks / 64; b++) {
        while (ok && q->bits[b] != 0)
            ok = merge_rank(w, q, (uint32_t)(b * 64) + (uint32_t)__builtin_ctzll(q->bits[b]));
    }
    if (!ok)
        return sl_fail(e->err, SL_ENOMEM, "word of %zu symbols", w->n);
    int rc = 0;
    for (size_t i = 0, next; i < w->n && rc == 0; i = next, k++) {
        next = i + q->v[i].span;
        if (w->y == NULL) {
            rc = tok_push(e, q->v[i].id);
        } else { /* k <= i: nothing unread is overwritten */
            uint32_t off = w->y[i].off, end = w->y[next - 1].off + w->y[next - 1].len;
            w->y[k] = (struct tok_sym){.id = q->v[i].id, .off = off, .len = end - off};
        }
    }
    *n_left = k;
    return rc;
}
