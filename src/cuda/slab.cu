/* SPDX-License-Identifier: MIT
 * Device memory of matrices (slab.h). A matrix goes to the first slab that has room behind its last
 * one; a slab goes back to the driver with the last of its matrices.
 */
#include "cuda/slab.h"

#include <stdint.h>

#define SLAB_BYTES (256ull << 20)
#define PIECE      (2ull << 20)   /* of the driver */
#define SMALL      (512ull << 10) /* the driver puts several such into one piece */
#define SLAB_ALIGN ((size_t)256)

struct sl_cuda_slab {
    struct sl_cuda_slab *next;
    uint8_t *base;
    size_t n_bytes, used;
    uint32_t n_live; /* matrices in it */
};

void sl_cuda_weights_to_come(struct sl_backend *be, uint64_t n_bytes)
{
    sl_cuda(be)->weights_to_come = n_bytes;
}

/* Bytes of a slab whose first matrix has n: a whole number of such, as experts have one shape.
 * Where nothing more is known to come, it is the matrix' own. */
static size_t slab_bytes(const struct sl_cuda *cu, size_t n)
{
    const uint64_t whole = SL_MAX(SLAB_BYTES / n, (uint64_t)1) * n;
    if (cu->weights_to_come < n)
        return n;
    return (size_t)SL_ROUND_UP(SL_MIN(whole, cu->weights_to_come), PIECE);
}

static struct sl_cuda_slab *new_slab(struct sl_cuda *cu, size_t n)
{
    struct sl_cuda_slab *s = (struct sl_cuda_slab *)sl_calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->n_bytes = slab_bytes(cu, n);
    s->base = (uint8_t *)sl_cuda_alloc(cu, s->n_bytes);
    if (s->base == NULL && cu->error == cudaSuccess) { /* the last one that fits may be alone */
        s->n_bytes = n;
        s->base = (uint8_t *)sl_cuda_alloc(cu, n);
    }
    if (s->base == NULL) {
        sl_free(s);
        return NULL;
    }
    s->next = cu->slabs;
    cu->slabs = s;
    return s;
}

void *sl_cuda_weight_alloc(struct sl_cuda *cu, size_t n_bytes)
{
    const size_t n = SL_ROUND_UP(n_bytes, SLAB_ALIGN);
    void *p = NULL;
    if (n_bytes < SMALL) {
        p = sl_cuda_alloc(cu, n_bytes);
    } else {
        struct sl_cuda_slab *s = cu->slabs;
        while (s != NULL && s->n_bytes - s->used < n)
            s = s->next;
        if (s == NULL)
            s = new_slab(cu, n);
        if (s != NULL) {
            p = s->base + s->used;
            s->used += n;
            s->n_live++;
        }
    }
    if (p != NULL)
        cu->weights_to_come -= SL_MIN(cu->weights_to_come, (uint64_t)n);
    return p;
}

void sl_cuda_weight_free(struct sl_cuda *cu, void *p, size_t n_bytes)
{
    const size_t n = SL_ROUND_UP(n_bytes, SLAB_ALIGN);
    struct sl_cuda_slab **at = &cu->slabs, *s;
    if (p == NULL || n_bytes < SMALL) {
        sl_cuda_free(cu, p, n_bytes);
        return;
    }
    while (*at != NULL && (uintptr_t)p - (uintptr_t)(*at)->base >= (*at)->n_bytes)
        at = &(*at)->next;
    s = *at;
    SL_ASSERT(s != NULL && s->n_live > 0);
    if ((uint8_t *)p + n == s->base + s->used)
        s->used -= n;
    if (--s->n_live > 0)
        return;
    *at = s->next;
    sl_cuda_free(cu, s->base, s->n_bytes);
    sl_free(s);
}
