/* SPDX-License-Identifier: MIT
 * mode.h - a way of getting from a prompt to a result: what a request does with the steps of the
 * model. Engine thread only.
 */
#ifndef SL_ENGINE_MODE_H
#define SL_ENGINE_MODE_H

struct sl_engine;
struct sl_flight;
struct sl_flight_seq;

struct sl_mode {
    /* A step with a sequence of this mode has landed; fs->rs is set. */
    void (*consume)(struct sl_engine *eng, const struct sl_flight *f,
                    const struct sl_flight_seq *fs);
};

extern const struct sl_mode sl_mode_generate; /* a token a step, from the row of the last one */
extern const struct sl_mode sl_mode_pool;     /* embeddings and scores: values of a whole prompt */

#endif
