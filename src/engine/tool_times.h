/* SPDX-License-Identifier: MIT
 * tool_times.h - how long tools take: from the end of an answer that calls one to the request that
 * brings its result. Per name of a tool, and of all together for names that are new.
 *
 * Times lie in bins, two for each doubling. Every time that is added makes the older ones of its
 * name count less, so that some thirty count. Names are hashes; the table has a fixed size, and a
 * name that was not used for long gives its place to a new one. Engine thread only; no memory of
 * its own, no errors.
 */
#ifndef SL_ENGINE_TOOL_TIMES_H
#define SL_ENGINE_TOOL_TIMES_H

#include <stdint.h>

#define SL_TOOL_BINS  32 /* of 10 ms to 10 minutes */
#define SL_TOOL_NAMES 256

struct sl_tool_hist {
    uint64_t name, used;        /* used 0: the place is free */
    float weight[SL_TOOL_BINS]; /* of times in each bin */
    float never;                /* of conversations that did not go on */
    float sum;                  /* of all of these */
};

struct sl_tool_times { /* zero-initialise */
    struct sl_tool_hist all, list[SL_TOOL_NAMES];
    uint64_t n_uses;
};

struct sl_tool_wait {
    double seconds; /* how long it pays to keep what the conversation goes on from; 0: not at all */
    double returns; /* the probability that it goes on within that time */
};

/* A tool took so many seconds; below 0: the conversation was not heard of any more. */
void sl_tool_times_add(struct sl_tool_times *t, uint64_t name, double seconds);
/* The time up to most_s with the greatest gain: the probability that the conversation goes on by
 * then, less price for each second that is waited for it. price: the share of what is kept that a
 * second costs, since others go without the room. Of a tool that nothing is known of, most_s or a
 * few seconds, whichever is less. */
struct sl_tool_wait sl_tool_times_wait(const struct sl_tool_times *t, uint64_t name, double price,
                                       double most_s);

#endif
