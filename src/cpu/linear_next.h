/* SPDX-License-Identifier: MIT
 * linear_next.h - the weights that the next product will stream, asked for by threads that have
 * nothing to do.
 *
 * A step of decoding is a hundred and more products in a fixed order, each a stream through its
 * weights. Between two of them threads wait for the last one and for what is done by one thread
 * (norms, activations to bytes), and memory idles. But every step runs the same products in the
 * same order: which one came after which is remembered, and a waiting thread asks for the beginning
 * of its own piece of the next. That is a guess about time alone; a wrong one costs a few lines.
 */
#ifndef SL_CPU_LINEAR_NEXT_H
#define SL_CPU_LINEAR_NEXT_H

#include "ops/ops.h"

#include <stdatomic.h>

/* How the items of a product are cut from its matrices. What waiting threads read is never changed
 * once it is made, as they read it whenever they like. */
struct sl_stream {
    struct sl_stream_part {
        const uint8_t *panels;
        size_t panel_bytes;
        int64_t n_panels, n_items;
        int32_t panels_per_item;
    } part[SL_MAX_LINEAR_PARTS];
    int n_parts;
    const uint8_t *up; /* of a gated activation, cut like part 0; or NULL */
    int32_t after;     /* the caller's own: number of the stream that came after it, -1: none yet */
};

#define SL_STREAMS 2048 /* those beyond are not remembered: 500 layers */

struct sl_streams {
    struct sl_stream *stream; /* [SL_STREAMS] */
    int32_t *slot;            /* [2 * SL_STREAMS] numbers by address, -1: empty */
    int32_t n, last;          /* last: the one that ran, or -1 */
    _Alignas(64) _Atomic(const struct sl_stream *) next; /* NULL: nothing to ask for */
    struct sl_stream_at {
        _Alignas(64) const struct sl_stream *stream; /* what the thread asks for */
        size_t done;
    } * at; /* [n_threads] */
};

/* false: out of memory. */
bool sl_streams_create(struct sl_streams *s, int n_threads);
void sl_streams_destroy(struct sl_streams *s, int n_threads);

/* A product with few tokens is about to run (or one that is no stream, s NULL): what came after it
 * the last time is what waiting threads ask for. */
void sl_streams_run(struct sl_streams *all, const struct sl_stream *s);

/* Where a thread begins in a stream: a run of bytes, or one of the gate and one of the up. */
struct sl_runs {
    const uint8_t *at[2];
    size_t n_bytes; /* of each */
    int n;          /* 0: the thread has no piece */
};
struct sl_runs sl_stream_first(const struct sl_stream *s, int n_threads, int thread_idx);

/* A thread waits: it asks for some lines. false: it has asked for all. */
bool sl_streams_ask(void *cpu, int thread_idx);

#endif
