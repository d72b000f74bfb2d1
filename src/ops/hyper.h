/* SPDX-License-Identifier: MIT
 * hyper.h - the operations of hyper-connections, which ops.h lists with the others.
 */
#ifndef SL_OPS_HYPER_H
#define SL_OPS_HYPER_H

#include <stdbool.h>
#include <stdint.h>

/* Hyper-connections: a row has several residual streams, of which a sublayer reads one mixture and
 * to which it writes in different shares, while they are mixed among themselves. All weights of
 * that come of the row: m = (W x) / rms(x), with x all its streams side by side. */
static inline int32_t sl_hyper_weights(int32_t n_streams)
{
    return (2 + n_streams) * n_streams;
}

/* pre_i = sigmoid(m_i scale_0 + base_i) + eps; out = sum of pre_i x_i. Then what hyper_write needs:
 * post_i = 2 sigmoid(m scale_1 + base); mix = softmax(m scale_2 + base) by rows + eps, whose
 * columns, and then n_iters - 1 times its rows and columns, are divided by their sum + eps
 * (Sinkhorn and Knopp).
 *
 * Without n_iters streams are not mixed: mix becomes 1, and post_i = post_scale sigmoid(m scale_1 +
 * base) + eps. */
struct sl_op_hyper_read {
    const float *x; /* [T, n_streams, h] */
    float *w;       /* [T, sl_hyper_weights] W x; becomes pre, post [n_streams] and mix [n_streams,
                       n_streams], of which W x may have none; last: [T, n_streams], pre */
    const float *base;   /* as a row of w */
    const float *scale;  /* [3]; last: [1]; NULL, and only last: out is the mean of the streams */
    bool last;           /* nothing is written any more */
    float norm_eps, eps; /* of rms; of the rest */
    int32_t n_iters;
    float post_scale; /* without these */
    int32_t n, n_streams, h;
    float *out; /* [T, h] */
};

struct sl_op_hyper_write { /* x_i = post_i y + sum over j of mix[j, i] x_j, all at once */
    float *x;              /* [T, n_streams, h] */
    const float *y;        /* [T, h] */
    const float *w;        /* as hyper_read leaves it */
    int32_t n, n_streams, h;
    void *act; /* [T, n_streams, h] x as activations, where those are no floats; or NULL */
};

#endif
