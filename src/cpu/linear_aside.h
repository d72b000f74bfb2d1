/* SPDX-License-Identifier: MIT
 * linear_aside.h - work that a kernel of tile products does in between: the tiles leave the vector
 * units idle, and one stream of instructions keeps both busy.
 */
#ifndef SL_CPU_LINEAR_ASIDE_H
#define SL_CPU_LINEAR_ASIDE_H

#include "base/check.h"

struct sl_aside {
    void (*run)(struct sl_aside *a, int n); /* the next n rows */
    int n;                                  /* rows that are left, of those this call is to do */
    int each;                               /* at a time */
};

/* n_blocks: how often the kernel will call sl_aside_step. NULL: nothing to do aside. */
static inline void sl_aside_begin(struct sl_aside *a, int64_t n_blocks)
{
    if (a != NULL)
        a->each = (int)SL_CEIL_DIV(a->n, n_blocks);
}

static inline void sl_aside_step(struct sl_aside *a)
{
    if (a == NULL || a->n == 0)
        return;
    const int n = SL_MIN(a->n, a->each);
    a->n -= n;
    a->run(a, n);
}

#endif
