/* SPDX-License-Identifier: MIT
 * Operations that wait for the one after them.
 */
#include "cuda/gemm/fuse.h"

#define ADD_TOKENS 64 /* of products that add to the residual stream */

/* Enqueues what waits. */
static void fuse_settle(struct sl_cuda *cu)
{
    struct sl_cuda_fuse *f = cu->fuse;
    cu->settle = NULL;
    if (f->has_gated && f->has_lin) {
        sl_cuda_linear_pair(cu, &f->gated, &f->lin);
        f->unwritten = f->gated.gated_out;
    } else if (f->has_gated)
        sl_cuda_linear_run(cu, &f->gated, NULL);
    else if (f->has_lin)
        sl_cuda_linear_run(cu, &f->lin, f->route);
    if (f->has_meet)
        sl_cuda_meet_run(cu, &f->meet);
    if (f->has_norm)
        sl_cuda_norm_run(cu, &f->norm);
    f->has_gated = f->has_lin = f->has_norm = f->has_meet = false;
}

static void settle_any(struct sl_cuda *cu)
{
    if (cu->settle != NULL)
        fuse_settle(cu);
}

/* With FP8 activations, of more tokens than the kernels for few have. */
static bool wide(const struct sl_lin *l)
{
    return l->part[0].layout == SL_CUDA_W8A8 && l->n > 64;
}

void sl_cuda_fuse_written(struct sl_cuda *cu, const void *gated_out)
{
    settle_any(cu);
    if (cu->fuse != NULL && cu->fuse->unwritten == gated_out)
        cu->fuse->unwritten = NULL;
}

bool sl_cuda_fuse_gated(struct sl_cuda *cu, const struct sl_lin *l)
{
    struct sl_cuda_fuse *f = cu->fuse;
    if (f == NULL)
        return false;
    sl_cuda_fuse_written(cu, l->gated_out);
    if (!wide(l) || !sl_cuda_linear_pair_pays(cu, l))
        return false;
    f->has_gated = true;
    f->gated = *l;
    cu->settle = fuse_settle;
    return true;
}

/* The gated product that waits makes l's input. */
static bool makes_input(const struct sl_cuda_fuse *f, const struct sl_lin *l)
{
    const struct sl_lin *a = &f->gated;
    return f->has_gated && !f->has_lin && wide(l) && a->n == l->n && a->gated_out == l->x &&
           a->part[0].n_rows == l->k && l->ld_x == l->k;
}

bool sl_cuda_fuse_linear(struct sl_cuda *cu, const struct sl_lin *l)
{
    struct sl_cuda_fuse *f = cu->fuse;
    if (f == NULL || l->n < 1)
        return false;
    const struct sl_lin_route *r = sl_cuda_linear_route_of(cu, l);
    const bool behind = makes_input(f, l);
    if (!behind && (l->n > ADD_TOKENS || !sl_cuda_linear_adds(r)))
        return false;
    if (!behind)
        settle_any(cu);
    f->has_lin = true;
    f->lin = *l;
    f->route = r;
    cu->settle = fuse_settle;
    return true;
}

struct sl_cuda_sum sl_cuda_fuse_add(struct sl_cuda *cu, const struct sl_op_add_rmsnorm *a,
                                    bool may_leave)
{
    struct sl_cuda_fuse *f = cu->fuse;
    if (f == NULL || !f->has_lin || f->has_meet || f->lin.n > ADD_TOKENS)
        return {};
    struct sl_lin_part *p = &f->lin.part[0];
    if (p->out != a->y || p->ld_out != a->h || p->n_rows != a->h || f->lin.n != a->n)
        return {};
    struct sl_cuda_sum sum = {true, {}, p->bias};
    p->out = a->x;
    f->lin.add = true;
    f->lin.left = may_leave && (uintptr_t)p->bias % 16 == 0 ? &sum.left : NULL;
    fuse_settle(cu);
    return sum;
}

bool sl_cuda_fuse_meet(struct sl_cuda *cu, const struct sl_cuda_meet *m)
{
    struct sl_cuda_fuse *f = cu->fuse;
    const void *part = m->reduces ? m->reduce.part : m->gather.part;
    if (f == NULL || !sl_cuda_meet_small(cu, m))
        return false;
    if (!f->has_lin || f->has_gated || f->has_meet || f->lin.part[0].out != part)
        settle_any(cu);
    f->has_meet = true;
    f->meet = *m;
    cu->settle = fuse_settle;
    return true;
}

bool sl_cuda_fuse_meet_norm(struct sl_cuda *cu, const struct sl_cuda_norm *a)
{
    struct sl_cuda_fuse *f = cu->fuse;
    if (f == NULL || !f->has_meet || !sl_cuda_meet_norms(&f->meet, a))
        return false;
    struct sl_lin_left left = {};
    const float *bias = f->has_lin ? f->lin.part[0].bias : NULL;
    cu->settle = NULL;
    if (f->has_lin) {
        f->lin.left = !f->meet.reduces && (uintptr_t)bias % 16 == 0 ? &left : NULL;
        sl_cuda_linear_run(cu, &f->lin, f->route);
    }
    f->has_lin = f->has_meet = false;
    sl_cuda_meet_norm(cu, &f->meet, &left, bias, a);
    return true;
}

bool sl_cuda_fuse_norm(struct sl_cuda *cu, const struct sl_cuda_norm *a)
{
    struct sl_cuda_fuse *f = cu->fuse;
    uintptr_t all = (uintptr_t)a->x | (uintptr_t)a->w | (uintptr_t)a->out | (uintptr_t)a->y;
    if (f == NULL || a->n < 1 || a->h > SL_LIN_NORM_COLS || a->h % 8 != 0 || all % 16 != 0)
        return false;
    settle_any(cu);
    f->has_norm = true;
    f->norm = *a;
    cu->settle = fuse_settle;
    return true;
}

void sl_cuda_fuse_take(struct sl_cuda *cu, struct sl_lin *l)
{
    struct sl_cuda_fuse *f = cu->fuse;
    SL_ASSERT(f == NULL || f->unwritten == NULL || f->unwritten != l->x);
    if (f == NULL || !f->has_norm || f->norm.out != l->x || f->norm.h != l->ld_x ||
        f->norm.h != l->k || f->norm.n != l->n)
        return;
    f->has_norm = false;
    cu->settle = NULL;
    l->norm = {f->norm.x, f->norm.w, f->norm.out, f->norm.eps};
    l->norm_y = f->norm.y;
}
