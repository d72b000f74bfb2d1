/* SPDX-License-Identifier: MIT */
#include "engine/fund.h"

#include "base/check.h"
#include "base/err.h"

#define SHARE 0.01 /* of the time of steps */
#define START                                                                           \
    4 /* steps: what the fund begins with, and has at most without drafts that came out \
       */
#define MOST   32 /* steps: what it has at most */
#define CREDIT 8  /* tokens' time that a sequence may keep */

/* What is more than the fund may have is forgotten: drafts cost no more for it. */
static void fund_add(struct sl_fund *f, double seconds, double most)
{
    SL_ASSERT(seconds >= 0 && most >= 0);
    if (f->seconds < most)
        f->seconds = SL_MIN(f->seconds + seconds, most);
}

void sl_fund_next(struct sl_fund *f, double step_s, double tokens)
{
    SL_ASSERT(step_s >= 0 && tokens >= 0);
    if (step_s == 0 || tokens < 1)
        return;
    if (f->step_s == 0)
        f->seconds = START * step_s;
    f->step_s = step_s;
    f->token_s = step_s / tokens;
    f->seconds = SL_MIN(f->seconds, MOST * step_s);
}

void sl_fund_earn(struct sl_fund *f, double seconds)
{
    fund_add(f, SHARE * seconds, START * f->step_s);
}

double sl_fund_most(const struct sl_fund *f, double credit)
{
    SL_ASSERT(credit >= 0);
    return credit + SL_MAX(f->seconds, 0);
}

void sl_fund_pay(struct sl_fund *f, double *credit, double seconds)
{
    SL_ASSERT(seconds >= 0 && *credit >= 0);
    const double own = SL_MIN(seconds, *credit);
    *credit -= own;
    f->seconds -= seconds - own;
}

void sl_fund_keep(struct sl_fund *f, double *credit, double most)
{
    const double more = *credit - most;
    if (more <= 0)
        return;
    *credit = most;
    fund_add(f, more, MOST * f->step_s);
}

void sl_fund_bring(struct sl_fund *f, double *credit, double n)
{
    SL_ASSERT(n >= 0);
    const double most = SL_MAX(*credit, CREDIT * f->token_s); /* what was lent is kept */
    *credit += n * f->token_s;
    sl_fund_keep(f, credit, most);
}

bool sl_fund_lends(const struct sl_fund *f, double credit, double seconds)
{
    const double more = seconds - credit;
    return more <= 0 || f->seconds >= SL_MIN(more, START * f->step_s);
}

bool sl_fund_lend(struct sl_fund *f, double *credit, double seconds)
{
    if (!sl_fund_lends(f, *credit, seconds))
        return false;
    const double more = SL_MAX(seconds - *credit, 0);
    f->seconds -= more;
    *credit += more;
    return true;
}

void sl_fund_close(struct sl_fund *f, double *credit)
{
    sl_fund_keep(f, credit, 0);
}
