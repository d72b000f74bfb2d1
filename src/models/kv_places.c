/* SPDX-License-Identifier: MIT
 * In which format layers keep their keys and values.
 */
#include "models/kv_places.h"

#include "base/check.h"

#include <string.h>

/* Layers at each end that keep the plain format, of a model that has eight times as many. */
#define MAX_EDGE 2

/* The formats of pages by the names of --kv-cache-dtype. */
static const struct {
    const char *name;
    enum sl_dtype dtype;
} formats[] = {{"f32", SL_DTYPE_F32},
               {"f16", SL_DTYPE_F16},
               {"bf16", SL_DTYPE_BF16},
               {"q8_0", SL_DTYPE_Q8_0},
               {"fp8", SL_DTYPE_FP8_E4M3},
               {"fp8_e4m3", SL_DTYPE_FP8_E4M3},
               {"nvfp4", SL_KV_NVFP4},
               {"int4_per_token_head", SL_KV_INT4_HEAD},
               {"turboquant_k8v4", SL_KV_K8V4},
               {"turboquant_4bit_nc", SL_KV_TURBO4},
               {"turboquant_3bit_nc", SL_KV_TURBO3}};

int sl_kv_format_of(const char *name, enum sl_dtype auto_dtype, enum sl_dtype *out,
                    struct sl_error *err)
{
    *out = auto_dtype;
    if (name == NULL || strcmp(name, "auto") == 0)
        return 0;
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (strcmp(formats[i].name, name) == 0) {
            *out = formats[i].dtype;
            return 0;
        }
    return sl_fail(err, SL_EINVAL,
                   "kv-cache-dtype \"%.20s\" is unknown (choose auto, f32, f16, bf16, q8_0, fp8, "
                   "nvfp4, int4_per_token_head, turboquant_k8v4, turboquant_4bit_nc or "
                   "turboquant_3bit_nc)",
                   name);
}

static bool has_keys(const struct sl_model *m, int32_t layer)
{
    const struct sl_layer_desc *d = &m->layers[layer];
    return sl_has_attention(d) && d->kv_source == layer;
}

/* ---------------------------------------------------------------- exempt layers */

/* Errors of a coarse format in the first layers go through all others, and those in the last ones
 * reach the output as they are. */
static void exempt_edges(const struct sl_model *m, struct sl_kv_layout *l)
{
    int32_t n = 0, seen = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        n += has_keys(m, i);
    const int32_t edge = SL_MIN(MAX_EDGE, SL_CEIL_DIV(n, 8));
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        if (!has_keys(m, i))
            continue;
        l->exempt[i] = n > 2 * edge && (seen < edge || seen >= n - edge);
        seen++;
    }
}

/* One word of the list: a layer's number, or a kind of layers. */
static int exempt_word(const struct sl_model *m, const char *word, size_t n, struct sl_kv_layout *l,
                       struct sl_error *err)
{
    static const char windows[] = "sliding_window";
    int32_t layer = 0;
    size_t i = 0;
    if (n == sizeof windows - 1 && memcmp(word, windows, n) == 0) {
        for (int32_t k = 0; k < m->hp.n_layers; k++)
            l->exempt[k] = l->exempt[k] || (has_keys(m, k) && m->layers[k].window > 0);
        return 0;
    }
    while (i < n && i < 5 && word[i] >= '0' && word[i] <= '9')
        layer = layer * 10 + (word[i++] - '0');
    if (n == 0 || i < n || layer >= m->hp.n_layers)
        return sl_fail(err, SL_EINVAL,
                       "kv-cache-dtype-skip-layers: \"%.*s\" is no layer of this model (0 to %d), "
                       "nor sliding_window or none",
                       (int)SL_MIN(n, 20), word, m->hp.n_layers - 1);
    l->exempt[layer] = has_keys(m, layer);
    return 0;
}

/* Rows of latent attention are read as keys and as values, and an index reads keys one by one. */
static int check_layers(const struct sl_model *m, const struct sl_kv_layout *l,
                        struct sl_error *err)
{
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_layer_desc *d = &m->layers[i];
        const bool heads =
            d->mixer == SL_MIX_GQA || d->mixer == SL_MIX_BOTH || d->mixer == SL_MIX_BLOCK;
        if (has_keys(m, i) && sl_kv_layer_dtype(l, i) > SL_DTYPE_COUNT &&
            (!heads || d->index.n_heads > 0))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "kv-cache-dtype %s: there are no such pages of latent or sparse "
                           "attention (choose fp8)",
                           sl_dtype_info(l->dtype)->name);
    }
    return 0;
}

/* A list is in addition to the edges; "none" leaves no layer out. */
int sl_kv_exempt_layers(const struct sl_model *m, const char *list, struct sl_kv_layout *l,
                        struct sl_error *err)
{
    int rc = 0;
    if (list != NULL && strlen(list) > SL_MAX_KV_SKIP)
        return sl_fail(err, SL_ELIMIT, "kv-cache-dtype-skip-layers has more than %d bytes",
                       SL_MAX_KV_SKIP);
    if (list != NULL && strcmp(list, "none") == 0)
        return check_layers(m, l, err);
    if (l->dtype > SL_DTYPE_COUNT)
        exempt_edges(m, l);
    for (const char *at = list; at != NULL && *at != '\0' && rc == 0;) {
        const size_t n = strcspn(at, ",");
        rc = exempt_word(m, at, n, l, err);
        at += n + (at[n] == ',');
    }
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        l->n_exempt += l->exempt[i];
    return rc == 0 ? check_layers(m, l, err) : rc;
}
