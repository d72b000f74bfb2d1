/* SPDX-License-Identifier: MIT
 * A checkpoint's name by its content, wherever it lies.
 */
#include "base/check.h"
#include "base/json_load.h"
#include "io/checkpoint_impl.h"
#include "io/gguf_impl.h"

#include <string.h>

#define SAMPLE_BYTES 256
#define ALL_SAMPLES  8192 /* of all tensors, at least two of each: some 10 ms in the page cache */

static struct sl_hash128 tensor_digest(const struct sl_ckpt_tensor *t, uint64_t n_samples)
{
    const uint64_t n = t->data != NULL ? SL_MIN(t->n_bytes, SAMPLE_BYTES) : 0;
    const uint64_t room = t->n_bytes - n;
    struct sl_hash128 in[2] = {sl_hash128(t->name, strlen(t->name), t->n_bytes),
                               sl_hash128(t->dims, sizeof t->dims, (uint64_t)t->dtype)};
    struct sl_hash128 all = sl_hash128(in, sizeof in, 0);
    SL_ASSERT(n_samples >= 2 && room <= t->n_bytes);
    for (uint64_t i = 0; i < n_samples && n > 0; i++) {
        const uint64_t at = room / (n_samples - 1) * i;
        SL_ASSERT(at + n <= t->n_bytes);
        in[0] = all;
        in[1] = sl_hash128(t->data + at, n, at);
        all = sl_hash128(in, sizeof in, 0);
    }
    return all;
}

/* What a GGUF file says before its tensors' data. */
static struct sl_hash128 head_digest(const struct sl_gguf *g)
{
    uint64_t n_bytes = g->n_bytes;
    for (size_t i = 0; i < g->n_tensors; i++)
        n_bytes = SL_MIN(n_bytes, g->tensors[i].offset);
    return sl_hash128(g->data, n_bytes, 1);
}

struct sl_hash128 sl_ckpt_digest(const struct sl_ckpt *c)
{
    const uint64_t n_samples = SL_MAX(ALL_SAMPLES / SL_MAX(c->n_tensors, 1), 2);
    struct sl_hash128 in[2] = {{0}};
    const struct sl_gguf *g = sl_ckpt_gguf(c);
    char *config = c->config != NULL ? json_dumps(c->config, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    if (g != NULL)
        in[0] = head_digest(g);
    else if (config != NULL)
        in[0] = sl_hash128(config, strlen(config), 0);
    sl_json_free_text(config);
    for (size_t i = 0; i < c->n_tensors; i++) {
        in[1] = tensor_digest(&c->rows[i].tensor, n_samples);
        in[0] = sl_hash128(in, sizeof in, i);
    }
    return in[0];
}
