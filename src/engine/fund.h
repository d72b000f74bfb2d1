/* SPDX-License-Identifier: MIT
 * fund.h - what drafts may cost beyond what they bring.
 *
 * A draft costs what it adds to the time of its step, and its part of the passes of a model that
 * drafts. One that comes out brings the time that a step without drafts takes for a token. Each
 * sequence has a credit: what its drafts have brought, at most CREDIT tokens' time. What it cannot
 * pay from that is paid by the fund, which gets a hundredth of the time of every step, and what
 * sequences bring beyond their credit. Without credit or fund there are no drafts.
 *
 * So, however rarely drafts come out, all of them together cost at most
 *     1 % of the time of all steps + what the fund begins with, START steps
 *     + what one step may overdraw: a sequence that has to be told to the drafter is lent that
 *     + what is drafted in the first pass, before a step was measured.
 * Times are those of the cost model (sched/cost.h), as measured; nothing is bounded where nothing
 * is measured (--max-itl 0), nor before two steps without drafts were. Engine thread only, no
 * memory of its own, no errors.
 */
#ifndef SL_ENGINE_FUND_H
#define SL_ENGINE_FUND_H

#include <stdbool.h>

struct sl_fund {    /* zero-initialise */
    double seconds; /* that drafts may still cost; below 0: overdrawn, or paid before step_s is
                       known */
    double step_s;  /* a step without drafts, as it is now; 0: not known yet */
    double token_s; /* the part of it for each token */
};

/* The next step without drafts takes so long, for so many tokens. */
void sl_fund_next(struct sl_fund *f, double step_s, double tokens);
/* A step took so long. */
void sl_fund_earn(struct sl_fund *f, double seconds);
/* What a sequence with such a credit can pay. */
double sl_fund_most(const struct sl_fund *f, double credit);
void sl_fund_pay(struct sl_fund *f, double *credit, double seconds);
/* What is more than `most` goes to the fund. */
void sl_fund_keep(struct sl_fund *f, double *credit, double most);
/* n drafts of it came out. */
void sl_fund_bring(struct sl_fund *f, double *credit, double n);
/* What a sequence needs before it can bring anything: lent if the fund has as much, or all that it
 * ever has. Whether its credit is enough now. */
bool sl_fund_lend(struct sl_fund *f, double *credit, double seconds);
/* Whether it would be. */
bool sl_fund_lends(const struct sl_fund *f, double credit, double seconds);
/* The sequence is over. */
void sl_fund_close(struct sl_fund *f, double *credit);

#endif
