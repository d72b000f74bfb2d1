/* SPDX-License-Identifier: MIT
 * ahead.h - whether a step stays in flight while the next is planned, and what it costs if not.
 *
 * A runner with two flights computes one step while the next is planned. Drafts stand in the way of
 * that: where the text goes on after a step with drafts is not known before it has landed, and a
 * model that drafts takes its turn between two steps. So a step stays in flight only if nobody
 * waits for it. The time that is lost else is part of what drafts cost: it is measured, and paid by
 * those that drafted lately (fund.h). Engine thread only.
 */
#ifndef SL_ENGINE_AHEAD_H
#define SL_ENGINE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

struct sl_engine;
struct sl_flight;

struct sl_ahead {     /* zero-initialise */
    uint64_t free_ns; /* since when work waits and nothing is in flight; 0: it is not so */
    bool awaited;     /* a draft is why */
    double pass_s;    /* of which passes of a model that drafts took so long */
    double paid_s;    /* what drafts of the planned step have paid */
    double late_s;    /* how long nothing was in flight before such a step, lately */
};

/* The plan is launched as f. */
void sl_ahead_launched(struct sl_engine *eng, struct sl_flight *f);
/* f has landed, and nothing was learnt from it yet: who drafted lately pays for what it took longer
 * than a step without drafts behind another one. */
void sl_ahead_landed(struct sl_engine *eng, const struct sl_flight *f);
/* f is over. */
void sl_ahead_over(struct sl_engine *eng, const struct sl_flight *f);
/* Is it better that n sequences, which would else miss a step, keep the next one waiting? */
bool sl_ahead_awaits(const struct sl_engine *eng, int32_t n);
/* May f, which alone is in flight, stay there while the next step is planned? */
bool sl_ahead_stays(struct sl_engine *eng, const struct sl_flight *f);

#endif
