/* SPDX-License-Identifier: MIT
 * Matrix products: the operations, and which kernel runs.
 */
#include "cuda/linear.h"

#define TILE64_CELLS 225280 /* row blocks x tokens: 110 tiles of 128 x 256 */

/* A layout streams up to 64 tokens; above, small tiles until large ones fill the multiprocessors.
 */
#define ROUTES(id, name)                                                                    \
    {SL_CUDA_##id, 8, 0, sl_lin_stream1_##name, "mma-stream8-" #name},                      \
        {SL_CUDA_##id, 16, 0, sl_lin_stream2_##name, "mma-stream16-" #name},                \
        {SL_CUDA_##id, 32, 0, sl_lin_stream4_##name, "mma-stream32-" #name},                \
        {SL_CUDA_##id, 64, 0, sl_lin_stream8_##name, "mma-stream64-" #name},                \
        {SL_CUDA_##id, INT32_MAX, TILE64_CELLS, sl_lin_tile64_##name, "mma-tile64-" #name}, \
    {                                                                                       \
        SL_CUDA_##id, INT32_MAX, 0, sl_lin_tile256_##name, "mma-tile256-" #name             \
    }

static const struct sl_lin_route routes[] = {
    ROUTES(BF16, bf16), ROUTES(Q8_0, q8_0), ROUTES(Q4_0, q4_0),
    ROUTES(Q4_K, q4_k), ROUTES(Q5_K, q5_k), ROUTES(Q6_K, q6_k),
};

static const struct sl_lin_route mixed_route = {SL_CUDA_LAYOUTS, 64, 0, sl_lin_stream8_mixed,
                                                "mma-stream64-mixed"};

const struct sl_lin_route *sl_cuda_linear_routes(size_t *n)
{
    *n = SL_COUNT(routes);
    return routes;
}

const struct sl_lin_route *sl_cuda_linear_route(int32_t layout, int64_t n_tokens, int64_t n_blocks)
{
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        const struct sl_lin_route *r = &routes[i];
        if (r->layout == layout && n_tokens <= r->max_tokens &&
            (r->max_cells == 0 || n_tokens * n_blocks <= r->max_cells))
            return r;
    }
    return NULL;
}

/* What `sluice inspect` shows: the kernels by the number of tokens, with the weight's layout. */
const char *sl_cuda_weight_route(struct sl_backend *be, const struct sl_weight *w)
{
    (void)be;
    static const char *const names[SL_CUDA_LAYOUTS] = {
        "rows",
        "mma-stream/tile-bf16",
        "mma-stream/tile-q8_0",
        "mma-stream/tile-q4_0",
        "mma-stream/tile-q4_k",
        "mma-stream/tile-q5_k",
        "mma-stream/tile-q6_k",
    };
    SL_ASSERT(w->layout >= 0 && w->layout < SL_CUDA_LAYOUTS);
    return names[w->layout];
}

typedef sl_op_linear_multi::sl_linear_part linear_part;

static struct sl_lin_part make_part(const struct sl_weight *w, const float *bias, float *out,
                                    int64_t ld_out, int32_t first)
{
    SL_ASSERT(w->layout != SL_CUDA_ROWS);
    struct sl_lin_part p = {};
    p.w = (const uint8_t *)w->data;
    p.bias = bias;
    p.out = out;
    p.ld_out = ld_out;
    p.n_rows = (int32_t)w->n_rows;
    p.n_blocks = (int32_t)SL_CEIL_DIV(w->n_rows, SL_CUDA_ROW_BLOCK);
    p.first = first;
    p.layout = w->layout;
    return p;
}

static struct sl_lin make(const void *x, int64_t ld_x, int32_t n, const struct sl_weight *w)
{
    struct sl_lin l = {};
    int32_t unit_k = sl_cuda_layout_info(w->layout)->unit_k;
    l.x = (const __nv_bfloat16 *)x;
    l.ld_x = ld_x;
    l.n = n;
    l.k = (int32_t)w->n_cols;
    l.n_k64 = (int32_t)(SL_CEIL_DIV(w->n_cols, (int64_t)unit_k) * (unit_k / 64));
    l.vec_x = (uintptr_t)x % 16 == 0 && ld_x % 8 == 0;
    return l;
}

static void add_part(struct sl_lin *l, const linear_part *a)
{
    const struct sl_lin_part *before = &l->part[l->n_parts - 1];
    int32_t first = l->n_parts == 0 ? 0 : before->first + before->n_blocks;
    SL_ASSERT(a->w->n_cols == l->k);
    l->part[l->n_parts++] = make_part(a->w, a->bias, a->out, a->ld_out, first);
}

void sl_cuda_linear_run(struct sl_cuda *cu, const struct sl_lin *l, const struct sl_lin_route *r)
{
    if (l->n <= 0)
        return;
    int64_t n_blocks = 0;
    for (int32_t i = 0; i < l->n_parts; i++)
        n_blocks += l->part[i].n_blocks;
    if (r == NULL)
        r = sl_cuda_linear_route(l->part[0].layout, l->n, n_blocks);
    SL_ASSERT(r != NULL && l->n <= r->max_tokens);
    r->run(cu, l);
}

struct sl_lin sl_cuda_linear_args(const struct sl_op_linear *a)
{
    struct sl_lin l = make(a->x, a->ld_x, a->n, a->w);
    linear_part p = {a->w, a->bias, a->out, a->ld_out};
    add_part(&l, &p);
    return l;
}

extern "C" void sl_cuda_linear(struct sl_backend *be, const struct sl_op_linear *a)
{
    struct sl_lin l = sl_cuda_linear_args(a);
    sl_cuda_linear_run(sl_cuda(be), &l, NULL);
}

/* One launch for the parts of a layout. */
extern "C" void sl_cuda_linear_multi(struct sl_backend *be, const struct sl_op_linear_multi *a)
{
    SL_ASSERT(a->n_parts <= SL_MAX_LINEAR_PARTS);
    bool done[SL_MAX_LINEAR_PARTS] = {};
    for (int32_t i = 0; i < a->n_parts; i++) {
        if (done[i])
            continue;
        struct sl_lin l = make(a->x, a->ld_x, a->n, a->part[i].w);
        for (int32_t j = i; j < a->n_parts; j++) {
            if (a->part[j].w->layout != a->part[i].w->layout)
                continue;
            add_part(&l, &a->part[j]);
            done[j] = true;
        }
        sl_cuda_linear_run(sl_cuda(be), &l, NULL);
    }
}

/* Different layouts: 64 tokens a launch. */
static void run_mixed(struct sl_cuda *cu, struct sl_lin *l)
{
    int32_t n = l->n;
    for (int32_t t = 0; t < n; t += mixed_route.max_tokens) {
        l->n = SL_MIN(mixed_route.max_tokens, n - t);
        mixed_route.run(cu, l);
        l->x += l->n * l->ld_x;
        l->gated_out += (int64_t)l->n * l->part[0].n_rows;
    }
}

extern "C" void sl_cuda_linear_gated_act(struct sl_backend *be,
                                         const struct sl_op_linear_gated_act *a)
{
    SL_ASSERT(a->gate->n_rows == a->up->n_rows && a->gate->n_cols == a->up->n_cols);
    struct sl_lin l = make(a->x, a->ld_x, a->n, a->gate);
    linear_part gate = {a->gate, NULL, NULL, 0}, up = {a->up, NULL, NULL, 0};
    add_part(&l, &gate);
    add_part(&l, &up);
    l.gated = true;
    l.act = a->act;
    l.gated_out = (__nv_bfloat16 *)a->out;
    if (a->gate->layout == a->up->layout)
        sl_cuda_linear_run(sl_cuda(be), &l, NULL);
    else
        run_mixed(sl_cuda(be), &l);
}
