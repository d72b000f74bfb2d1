/* SPDX-License-Identifier: MIT
 * A thread of its own reads ahead and drops: both may wait for the disk. It follows the product
 * that runs: what is in memory is that product's weights and those that come next, up to
 * SL_WEIGHT_STREAM_AHEAD bytes, and nothing else.
 */
#include "cpu/weight_stream.h"

#include "base/check.h"
#include "base/paged.h"
#include "base/sys.h"

#include <string.h>

#define MAX_USED 8 /* weights of one product */

struct piece {
    struct sl_paged_piece memory; /* data NULL: given back */
    int32_t next;                 /* the piece used after it the last time, or -1 */
    uint32_t wanted;              /* by which look of the thread */
    bool asked;                   /* the thread has brought it, or is about to */
    bool used; /* a product has read it since it was dropped, so that it may be there */
};

struct sl_weight_stream {
    struct sl_paged_file *file;
    uint64_t memory_bytes, taken_bytes; /* of weights that stay in memory */
    struct piece *pieces;               /* [max] */
    int32_t *order;                     /* [max] pieces by address */
    int32_t n, max;
    int32_t last; /* of the product before, or -1; the caller's */

    pthread_mutex_t lock; /* of all that follows, and of next in pieces */
    pthread_cond_t moved;
    int32_t used[MAX_USED], n_used; /* pieces of the product that runs */
    uint64_t n_uses;
    bool stopping;
    pthread_t thread;
};

/* The place in order of the first piece that begins behind p. */
static int32_t place_behind(const struct sl_weight_stream *s, const void *p)
{
    int32_t lo = 0, hi = s->n;
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)s->pieces[s->order[mid]].memory.data <= (uintptr_t)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The piece that begins at p; -1: it is memory like any other. */
static int32_t piece_at(const struct sl_weight_stream *s, const void *p)
{
    const int32_t i = place_behind(s, p) - 1;
    return i >= 0 && s->pieces[s->order[i]].memory.data == p ? s->order[i] : -1;
}

/* Marks what should be in memory, the product's weights first, and returns the first of it that is
 * not; -1: all is. */
static int32_t look_ahead(struct sl_weight_stream *s, uint32_t look)
{
    int32_t missing = -1;
    uint64_t n_bytes = 0;
    for (int i = 0; i < s->n_used; i++) {
        s->pieces[s->used[i]].wanted = look;
        if (missing < 0 && !s->pieces[s->used[i]].asked)
            missing = s->used[i];
    }
    int32_t at = s->n_used > 0 ? s->pieces[s->used[s->n_used - 1]].next : -1;
    for (; at >= 0 && n_bytes < SL_WEIGHT_STREAM_AHEAD; at = s->pieces[at].next) {
        struct piece *p = &s->pieces[at];
        if (p->wanted == look) /* the order has come round */
            break;
        p->wanted = look;
        n_bytes += p->memory.n_bytes;
        if (missing < 0 && !p->asked)
            missing = at;
    }
    return missing;
}

/* A piece that may be in memory and is not wanted, or -1. All are looked at: there are a few
 * thousand, and a look goes with a product's millions of bytes. */
static int32_t find_unwanted(const struct sl_weight_stream *s, uint32_t look)
{
    for (int32_t i = 0; i < s->n; i++)
        if ((s->pieces[i].asked || s->pieces[i].used) && s->pieces[i].wanted != look)
            return i;
    return -1;
}

/* Drops a piece or loads one, without the lock; false: all is as it should be. */
static bool move_piece(struct sl_weight_stream *s, uint32_t look)
{
    const int32_t missing = look_ahead(s, look), gone = find_unwanted(s, look);
    const int32_t i = gone >= 0 ? gone : missing;
    if (i < 0)
        return false;
    s->pieces[i].asked = gone < 0;
    s->pieces[i].used = s->pieces[i].used && gone < 0;
    const struct sl_paged_piece memory = s->pieces[i].memory;
    pthread_mutex_unlock(&s->lock);
    if (gone >= 0)
        sl_paged_drop(s->file, &memory);
    else
        sl_paged_load(&memory);
    pthread_mutex_lock(&s->lock);
    return true;
}

static void *stream_thread(void *arg)
{
    struct sl_weight_stream *s = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t look = 1; !s->stopping; look++) {
        if (move_piece(s, look))
            continue;
        while (s->n_uses == seen && !s->stopping)
            pthread_cond_wait(&s->moved, &s->lock);
        seen = s->n_uses;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int sl_weight_stream_create(const char *folder, uint64_t memory_bytes,
                            struct sl_weight_stream **out, struct sl_error *err)
{
    *out = NULL;
    struct sl_weight_stream *s = sl_calloc(1, sizeof *s);
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "weights in a file: out of memory");
    s->memory_bytes = memory_bytes;
    s->last = -1;
    int rc = sl_paged_create(folder, &s->file, err);
    if (rc != 0) {
        sl_free(s);
        return rc;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    rc = sl_thread_create(&s->thread, stream_thread, s, "sl-weights", err);
    if (rc == 0) {
        *out = s;
        return 0;
    }
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    sl_paged_destroy(s->file);
    sl_free(s);
    return rc;
}

void sl_weight_stream_destroy(struct sl_weight_stream *s)
{
    if (s == NULL)
        return;
    SL_ASSERT(s->n == 0 && s->taken_bytes == 0);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->moved);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    sl_paged_destroy(s->file);
    sl_free(s->pieces);
    sl_free(s->order);
    sl_free(s);
}

static bool make_room(struct sl_weight_stream *s)
{
    if (s->n < s->max)
        return true;
    const int32_t max = SL_MAX(2 * s->max, 256);
    struct piece *pieces = sl_realloc(s->pieces, (size_t)max * sizeof *pieces);
    if (pieces != NULL)
        s->pieces = pieces;
    int32_t *order = sl_realloc(s->order, (size_t)max * sizeof *order);
    if (order != NULL)
        s->order = order;
    if (pieces == NULL || order == NULL)
        return false;
    s->max = max;
    return true;
}

static int take_piece(struct sl_weight_stream *s, size_t n_bytes, void **out, struct sl_error *err)
{
    struct sl_paged_piece memory;
    if (!make_room(s))
        return sl_fail(err, SL_ENOMEM, "weights in a file: out of memory");
    int rc = sl_paged_take(s->file, n_bytes, &memory, err);
    if (rc != 0)
        return rc;
    const int32_t at = place_behind(s, memory.data);
    memmove(s->order + at + 1, s->order + at, (size_t)(s->n - at) * sizeof *s->order);
    s->order[at] = s->n;
    s->pieces[s->n++] = (struct piece){.memory = memory, .next = -1};
    *out = memory.data;
    return 0;
}

int sl_weight_stream_take(struct sl_weight_stream *s, size_t n_bytes, void **out,
                          struct sl_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (n_bytes > s->memory_bytes - s->taken_bytes) {
        rc = take_piece(s, n_bytes, out, err);
    } else {
        *out = sl_aligned_alloc(n_bytes);
        s->taken_bytes += *out != NULL ? n_bytes : 0;
        if (*out == NULL)
            rc = sl_fail(err, SL_ENOMEM, "out of memory repacking %zu bytes of weights", n_bytes);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int sl_weight_stream_store(struct sl_weight_stream *s, const void *weight, struct sl_error *err)
{
    const int32_t i = piece_at(s, weight);
    return i < 0 ? 0 : sl_paged_store(s->file, &s->pieces[i].memory, err);
}

/* The last piece takes the number of the one that goes, so that there is no hole. */
static void give_piece(struct sl_weight_stream *s, int32_t gone)
{
    const int32_t at = place_behind(s, s->pieces[gone].memory.data) - 1, moved = s->n - 1;
    memmove(s->order + at, s->order + at + 1, (size_t)(s->n - at - 1) * sizeof *s->order);
    sl_paged_give(s->file, &s->pieces[gone].memory);
    s->n--;
    for (int32_t i = 0; i < s->n && moved != gone; i++)
        s->order[i] = s->order[i] == moved ? gone : s->order[i];
    s->pieces[gone] = s->pieces[moved];
    for (int32_t i = 0; i < s->n; i++) /* what came after what is learnt again */
        s->pieces[i].next = -1;
    s->last = -1;
    s->n_used = 0;
}

void sl_weight_stream_give(struct sl_weight_stream *s, void *weight, size_t n_bytes)
{
    pthread_mutex_lock(&s->lock);
    const int32_t i = piece_at(s, weight);
    if (i >= 0) {
        give_piece(s, i);
    } else {
        SL_ASSERT(s->taken_bytes >= n_bytes);
        s->taken_bytes -= n_bytes;
        sl_aligned_free(weight, n_bytes);
    }
    pthread_mutex_unlock(&s->lock);
}

void sl_weight_stream_use(struct sl_weight_stream *s, const void *const *weights, int n)
{
    int32_t used[MAX_USED];
    int n_used = 0;
    SL_ASSERT(n >= 1 && n <= MAX_USED);
    for (int i = 0; i < n; i++) {
        const int32_t at = piece_at(s, weights[i]);
        if (at >= 0)
            used[n_used++] = at;
    }
    if (n_used == 0)
        return;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n_used; i++) {
        if (s->last >= 0)
            s->pieces[s->last].next = used[i];
        s->last = s->used[i] = used[i];
        s->pieces[used[i]].used = true;
    }
    s->n_used = n_used;
    s->n_uses++;
    pthread_cond_signal(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

void sl_weight_stream_ask(const struct sl_weight_stream *s, const void *weight)
{
    const int32_t i = piece_at(s, weight);
    if (i >= 0)
        sl_paged_ask(&s->pieces[i].memory);
}
