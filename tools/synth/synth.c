/* SPDX-License-Identifier: MIT
 * Random weights at the scale of trained ones: a matrix has standard deviation 1 / sqrt(K), so that
 * activations keep their size from layer to layer, norms lie near 1, biases near 0. A value is the
 * sum of four 16-bit uniforms, close to normal and several times cheaper than Box-Muller, which
 * counts when an 8B model is written for a benchmark. For the same reason a large matrix in a block
 * format is put together from a pool of quantised blocks: quantising q4_k runs at 10 million
 * values/s, so that 8B would take a quarter of an hour.
 */
#include "synth/synth.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/sys.h"
#include "io/safetensors_write.h"
#include "quant/fp8_e4m3.h"
#include "synth/synth_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
    CHUNK_ELEMS = 1 << 18,
    POOL_FROM_ELEMS = 1 << 19, /* larger block-quantised matrices are made from a pool */
    POOL_BLOCKS = 1024,
    MAX_MAKERS = 16, /* threads */
};

static const struct shape {
    const char *name;
    int32_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, n_vocab, context;
    bool tied;
} shapes[] = {
    {"0.6b", 1024, 3072, 28, 16, 8, 128, 151936, 40960, true},
    {"1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072, true},
    {"4b", 2560, 9728, 36, 32, 8, 128, 151936, 40960, true},
    {"8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072, false},
};

int sl_synth_shape(const char *name, const char *shape, struct sl_hparams *hp, struct sl_error *err)
{
    const struct sl_model_desc *desc;
    const struct sl_model_name *n = sl_registry_find(name, &desc);
    if (n == NULL)
        return sl_fail(err, SL_EINVAL, "unknown model family \"%.40s\"", name);
    desc->tiny(n, hp);
    if (strcmp(shape, "tiny") == 0)
        return 0;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const struct shape *s = &shapes[i];
        if (strcmp(s->name, shape) != 0)
            continue;
        hp->hidden = s->hidden;
        hp->intermediate = s->intermediate;
        hp->n_layers = s->n_layers;
        hp->n_heads = s->n_heads;
        hp->n_kv_heads = s->n_kv_heads;
        for (int32_t r = 0; r < desc->n_ropes; r++) /* the same share of a head */
            hp->ropes[r].n_dims = hp->ropes[r].n_dims * s->head_dim / hp->head_dim;
        hp->head_dim = s->head_dim;
        hp->n_vocab = s->n_vocab;
        hp->context = s->context;
        hp->window = hp->window ? 4096 : 0;
        hp->has = (hp->has & ~(unsigned)SL_HAS_HEAD) | (s->tied ? 0u : (unsigned)SL_HAS_HEAD);
        return 0;
    }
    return sl_fail(err, SL_EINVAL, "unknown shape \"%.40s\" (choose tiny, 0.6b, 1b, 4b or 8b)",
                   shape);
}

/* ---------------------------------------------------------------- one tensor */

struct tensor {
    const struct sl_weight_desc *w;
    char name[SL_MAX_TENSOR_NAME]; /* in the container */
    uint64_t key;                  /* of its values: same in every container */
    enum sl_dtype dtype;
    int32_t n_dims;
    int64_t dims[2];
    int64_t file_rows; /* of the tensor: more than dims[0] if this is a part of a fused one */
    int32_t part;      /* of it; the first declares it, the others follow in the table */
    int32_t n_mats;    /* of the stack that it is one of */
    bool joined;       /* a fused one whose matrices lie one below the other */
    bool stacked;      /* a slice of one tensor [n_mats, rows, cols], */
    bool turned;       /* or [n_mats, cols, rows] */
    int32_t layer;
    int32_t reorder_hd; /* != 0: rows are written as GGUF converters reorder heads of that size */
};

/* Width of the distribution below, in standard deviations. */
#define DRAW_MAX 3.4641017f

struct sink {
    const struct sl_layer_desc *layers;
    struct sl_gguf_writer *gguf;
    struct sl_st_writer *st;
    uint64_t done, total;
};

/* The module of MTP is the layer behind the last one; folders may have other names for it. */
static bool of_module(const struct sl_synth *s, const struct sl_model_desc *desc, int32_t layer)
{
    return layer == s->hp.n_layers && desc->mtp != NULL;
}

static bool module_renamed(const struct sl_synth *s, const struct sl_model_desc *desc)
{
    return desc->mtp->hf_layers != NULL && s->format == SL_CKPT_HF;
}

static int32_t module_layer(const struct sl_synth *s, const struct sl_model_desc *desc)
{
    return module_renamed(s, desc) ? 0 : s->hp.n_layers;
}

static const char *module_name(const struct sl_synth *s, const struct sl_model_desc *desc,
                               const char *pattern, char out[SL_MAX_TENSOR_NAME])
{
    static const char layers[] = "model.layers.*.";
    if (!module_renamed(s, desc) || strncmp(pattern, layers, strlen(layers)) != 0)
        return pattern;
    snprintf(out, SL_MAX_TENSOR_NAME, "%s%s", desc->mtp->hf_layers, pattern + strlen(layers));
    return out;
}
enum { KEY_PARTS = 5 }; /* another number would change every random model */

static bool describe(const struct sl_synth *s, const struct sl_model_desc *desc,
                     const struct sl_layer_desc *layers, const struct sl_weight_desc *w,
                     int32_t layer, int32_t mat, struct tensor *t)
{
    bool gguf = s->format == SL_CKPT_GGUF;
    const bool fused = sl_bind_pattern(w, gguf, false) == NULL;
    const char *pattern = sl_bind_pattern(w, gguf, fused);
    const char *key = w->hf != NULL ? w->hf : w->hf_fused != NULL ? w->hf_fused : w->gguf;
    const bool in_layer = w->slot < SL_SLOT_FIRST_GLOBAL;
    const struct sl_layer_desc *shape = &layers[in_layer ? layer : 0];
    char canonical[SL_MAX_TENSOR_NAME];
    if (pattern == NULL || (w->when & ~(in_layer ? shape->has : s->hp.has)) != 0)
        return false;
    if (sl_weight_is_absent(&s->hp, shape, w))
        return false;
    if ((w->flags & SL_W_TIED) != 0 && shape->tied_to != layer)
        return false;
    const int32_t layer_id = (w->flags & SL_W_OF_USE) != 0 ? shape->tied_to
                             : of_module(s, desc, layer)   ? module_layer(s, desc)
                                                           : layer;
    const int32_t mat_id = (w->flags & SL_W_OF_USE) != 0 ? shape->use : mat;
    *t = (struct tensor){
        .w = w, .dtype = s->dtype, .n_dims = w->cols == SL_DIM_NONE ? 1 : 2, .layer = layer};
    char renamed[2][SL_MAX_TENSOR_NAME];
    if (!gguf) {
        pattern = sl_bind_layers(desc->hf_layers, pattern, renamed[0]);
        key = sl_bind_layers(desc->hf_layers, key, renamed[1]);
    }
    if (of_module(s, desc, layer)) {
        pattern = module_name(s, desc, pattern, renamed[0]);
        key = module_name(s, desc, key, renamed[1]);
    }
    sl_bind_name(pattern, layer_id, mat_id, t->name);
    sl_bind_name(key, layer_id, mat_id, canonical);
    const int32_t of_stack = w->mats != SL_DIM_NONE && strchr(key, '#') == NULL ? mat : 0;
    t->key = sl_rng_at(s->seed, sl_hash64(canonical, strlen(canonical),
                                          (uint64_t)(w->part + KEY_PARTS * of_stack)));
    const int32_t n_pieces = sl_weight_n_pieces(w);
    t->dims[0] = t->file_rows =
        sl_layer_dim(&s->hp, shape, n_pieces > 0 ? w->pieces[mat] : w->rows);
    if (fused) {
        t->file_rows = sl_bind_fused_row(&s->hp, shape, w, SL_MAX_FUSED);
        t->part = w->part + (n_pieces > 0 ? mat : 0);
        t->turned = (w->flags & (SL_W_TRANSPOSED | SL_W_PART_TRANSPOSED)) != 0;
        t->joined = w->mats == SL_DIM_HEADS;
    }
    t->dims[1] = sl_layer_dim(&s->hp, shape, w->cols);
    t->n_mats = n_pieces > 0             ? n_pieces
                : w->mats == SL_DIM_NONE ? 1
                                         : (int32_t)sl_layer_dim(&s->hp, shape, w->mats);
    t->stacked = w->mats != SL_DIM_NONE && strchr(pattern, '#') == NULL;
    if ((s->dtype == SL_DTYPE_FP8_E4M3 || s->int4 != SL_INT4_NONE) &&
        (sl_weight_is_values(w) || !(in_layer || (s->int4_head && w->slot == SL_SLOT_HEAD))))
        t->dtype = SL_DTYPE_BF16;
    if (s->experts_apart && t->stacked && t->n_dims == 2)
        t->dtype = s->experts_dtype;
    if (sl_weight_is_values(w) && sl_dtype_info(t->dtype)->block_elems != 1)
        t->dtype = SL_DTYPE_F32;
    if (sl_weight_is_values(w) && gguf)
        t->dtype = SL_DTYPE_F32;
    if (gguf && desc->gguf_interleaved && (w->flags & SL_W_ROPE_ROWS) != 0)
        t->reorder_hd = shape->head_dim;
    return true;
}

/* n values near the standard normal times scale, plus offset */
static void draw(uint64_t key, float scale, float offset, float *out, int64_t n)
{
    const float unit = scale / (65536.0f * 0.57735027f); /* sqrt(4/12) of a step of 2^-16 */
    for (int64_t i = 0; i < n; i++) {
        uint64_t b = sl_mix64(key + (uint64_t)i * 0x9E3779B97F4A7C15u);
        int32_t sum = (int32_t)(b & 0xFFFF) + (int32_t)(b >> 16 & 0xFFFF) +
                      (int32_t)(b >> 32 & 0xFFFF) + (int32_t)(b >> 48);
        out[i] = (float)(sum - 131070) * unit + offset;
    }
}

/* The model's row that lies at `row` of the file. */
static int64_t source_row(const struct tensor *t, int64_t row)
{
    if (t->reorder_hd == 0)
        return row;
    int64_t head = row / t->reorder_hd, d = row % t->reorder_hd;
    return head * t->reorder_hd + (d % 2) * (t->reorder_hd / 2) + d / 2;
}

/* A GGUF keeps norms and their like in f32: they hold the values the folder's format would, and
 * what converters make of them. */
static void as_container(const struct sl_synth *s, const struct tensor *t, float *x, int64_t n)
{
    const struct sl_dtype_info *info = sl_dtype_info(s->dtype);
    for (int64_t i = 0; i < n && info->block_elems == 1 && t->dtype != s->dtype; i++) {
        uint8_t tmp[4];
        info->from_f32(&x[i], tmp, 1);
        info->to_f32(tmp, &x[i], 1);
    }
    if (s->format != SL_CKPT_GGUF)
        return;
    for (int64_t i = 0; i < n && (t->w->flags & SL_W_PLUS_ONE) != 0; i++)
        x[i] += 1;
    for (int64_t i = 0; i < n && (t->w->flags & SL_W_MINUS_EXP) != 0; i++)
        x[i] = -expf(x[i]);
}

static void draw_row(const struct sl_synth *s, const struct tensor *t, int64_t row, float *out)
{
    if (t->turned) { /* a column of the matrix */
        for (int64_t i = 0; i < t->dims[0]; i++)
            draw(sl_rng_at(t->key, (uint64_t)i) + (uint64_t)row * 0x9E3779B97F4A7C15u,
                 1.0f / sqrtf((float)t->dims[1]), 0, out + i, 1);
        return;
    }
    if (t->n_dims == 2) {
        draw(sl_rng_at(t->key, (uint64_t)source_row(t, row)), 1.0f / sqrtf((float)t->dims[1]), 0,
             out, t->dims[1]);
        if (sl_weight_is_values(t->w))
            as_container(s, t, out, t->dims[1]);
        return;
    }
    if (t->w->slot >= SL_SLOT_XIELU_ALPHA_P && t->w->slot <= SL_SLOT_XIELU_EPS) {
        out[0] = (float)s->hp.xielu[t->w->slot - SL_SLOT_XIELU_ALPHA_P][t->layer];
        return;
    }
    if (t->w->slot == SL_SLOT_ROPE_FREQS) {
        sl_rope_divisors(&s->hp.ropes[0], (int32_t)(2 * t->dims[0]), out);
        return;
    }
    if (t->w->slot == SL_SLOT_ROPE_SHORT || t->w->slot == SL_SLOT_ROPE_LONG) {
        const struct sl_rope_params *p = &s->hp.ropes[0];
        memcpy(out, t->w->slot == SL_SLOT_ROPE_SHORT ? p->short_factors : p->long_factors,
               (size_t)t->dims[0] * sizeof *out);
        return;
    }
    const char *name = t->w->hf != NULL ? t->w->hf : t->name; /* the same values in a GGUF */
    bool bias = strstr(name, "bias") != NULL, plus_one = (t->w->flags & SL_W_PLUS_ONE) != 0;
    const bool decay = (t->w->flags & (SL_W_MINUS_EXP | SL_W_LRU_RATE)) != 0; /* by a tenth */
    draw(t->key, decay ? 1 : 0.1f, decay ? -2 : bias || plus_one ? 0 : 1, out, t->dims[0]);
    if (t->w->slot == SL_SLOT_ROUTER_BIAS || t->w->slot == SL_SLOT_CHOICE_BIAS)
        for (int64_t i = 0; i < t->dims[0]; i++)
            out[i] += s->skew / (float)(i + 1);
    as_container(s, t, out, t->dims[0]);
    if (t->reorder_hd != 0) {
        float head[SL_MAX_HEAD_DIM];
        for (int64_t h = 0; h < t->dims[0]; h += t->reorder_hd) {
            memcpy(head, out + h, (size_t)t->reorder_hd * sizeof *head);
            for (int32_t d = 0; d < t->reorder_hd; d++)
                out[h + d] = head[source_row(t, d)];
        }
    }
}

/* ---------------------------------------------------------------- scales of FP8 */

static void scale_block(const struct sl_synth *s, const struct tensor *t, int64_t block[2])
{
    block[0] = s->scales == SL_SYNTH_BLOCK ? SL_SCALE_COLS : 1;
    block[1] = s->scales == SL_SYNTH_BLOCK ? SL_SCALE_COLS : t->dims[1];
    if (s->scales == SL_SYNTH_TENSOR)
        block[0] = t->dims[0];
}

/* Of a block: large enough for every value, and no two alike. */
static float scale_at(const struct sl_synth *s, const struct tensor *t, int64_t row, int64_t col)
{
    int64_t block[2];
    scale_block(s, t, block);
    uint64_t key = (uint64_t)(row / block[0]) << 32 | (uint64_t)(col / block[1]);
    float u = (float)(sl_rng_at(t->key + 2, key) >> 40) * 0x1p-24f;
    float x = DRAW_MAX / SL_FP8_E4M3_MAX / sqrtf((float)t->dims[1]) * (1 + u / 4);
    return s->scales == SL_SYNTH_BLOCK ? sl_bf16_to_f32(sl_f32_to_bf16(x)) : x;
}

static enum sl_dtype scales_dtype(const struct sl_synth *s)
{
    return s->scales == SL_SYNTH_BLOCK ? SL_DTYPE_BF16 : SL_DTYPE_F32;
}

static int put(struct sink *k, const void *data, size_t n_bytes, struct sl_error *err)
{
    if (k->gguf != NULL)
        return sl_gguf_writer_write_tensor_data(k->gguf, data, n_bytes, err);
    return sl_st_writer_write_tensor_data(k->st, data, n_bytes, err);
}

/* What the rows of a tensor are made from. */
struct rows {
    const struct sl_dtype_info *info;
    int64_t n_cols;
    size_t row_bytes;
    uint8_t *pool; /* POOL_BLOCKS blocks or NULL */
};

static int rows_init(struct rows *m, const struct tensor *t, int64_t n_rows, struct sl_error *err)
{
    if (m->info->block_elems == 1 || n_rows * m->n_cols <= POOL_FROM_ELEMS)
        return 0;
    float *block = sl_malloc(m->info->block_elems * sizeof *block);
    m->pool = sl_malloc((size_t)POOL_BLOCKS * m->info->block_bytes);
    if (block == NULL || m->pool == NULL) {
        sl_free(block);
        return sl_fail(err, SL_ENOMEM, "out of memory writing tensor \"%s\"", t->name);
    }
    for (int64_t i = 0; i < POOL_BLOCKS; i++) {
        draw(sl_rng_at(t->key, (uint64_t)i), 1.0f / sqrtf((float)m->n_cols), 0, block,
             m->info->block_elems);
        m->info->from_f32(block, m->pool + (size_t)i * m->info->block_bytes, m->info->block_elems);
    }
    sl_free(block);
    return 0;
}

/* row: room for its values. */
static void make_row(const struct sl_synth *s, const struct tensor *t, const struct rows *m,
                     int64_t at, float *row, uint8_t *out)
{
    if (m->pool == NULL) {
        draw_row(s, t, at, row);
        for (int64_t i = 0; t->dtype == SL_DTYPE_FP8_E4M3 && i < m->n_cols; i += SL_SCALE_COLS) {
            const float scale = scale_at(s, t, at, i); /* no block is narrower */
            for (int64_t k = i; k < SL_MIN(i + SL_SCALE_COLS, m->n_cols); k++)
                row[k] /= scale;
        }
        m->info->from_f32(row, out, m->n_cols);
        return;
    }
    uint64_t key = sl_rng_at(t->key + 1, (uint64_t)source_row(t, at));
    int64_t n_blocks = m->n_cols / m->info->block_elems;
    for (int64_t b = 0; b < n_blocks; b++) {
        size_t pick = sl_mix64(key + (uint64_t)b) % POOL_BLOCKS;
        memcpy(out + (size_t)b * m->info->block_bytes, m->pool + pick * m->info->block_bytes,
               m->info->block_bytes);
    }
}

/* ---------------------------------------------------------------- several threads */

/* Rows are made by all processors, some CHUNK_ELEMS of them at a time, into a ring that is written
 * in order. */
struct makers {
    const struct sl_synth *s;
    const struct tensor *t;
    struct rows rows;
    int64_t n_rows, step, n_chunks;
    float *row;     /* of each thread */
    uint8_t *chunk; /* [n_slots] */
    int n_threads, n_slots;
    pthread_t threads[MAX_MAKERS];
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    int n_running;          /* threads that have begun, by which they know their row */
    int64_t taken, written; /* chunks */
    bool made[2 * MAX_MAKERS], stop;
};

static int64_t chunk_rows(const struct makers *m, int64_t chunk)
{
    return SL_MIN(m->step, m->n_rows - chunk * m->step);
}

static uint8_t *chunk_at(const struct makers *m, int64_t chunk)
{
    return m->chunk + (size_t)(chunk % m->n_slots) * (size_t)m->step * m->rows.row_bytes;
}

static void make_chunk(const struct makers *m, int64_t chunk, float *row)
{
    for (int64_t i = 0; i < chunk_rows(m, chunk); i++)
        make_row(m->s, m->t, &m->rows, chunk * m->step + i, row,
                 chunk_at(m, chunk) + (size_t)i * m->rows.row_bytes);
}

static void *maker_main(void *arg)
{
    struct makers *m = arg;
    pthread_mutex_lock(&m->mutex);
    float *row = m->row + m->n_running++ * m->rows.n_cols;
    while (!m->stop && m->taken < m->n_chunks) {
        if (m->taken >= m->written + m->n_slots) {
            pthread_cond_wait(&m->changed, &m->mutex);
            continue;
        }
        const int64_t chunk = m->taken++;
        pthread_mutex_unlock(&m->mutex);
        make_chunk(m, chunk, row);
        pthread_mutex_lock(&m->mutex);
        m->made[chunk % m->n_slots] = true;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

static void makers_stop(struct makers *m)
{
    pthread_mutex_lock(&m->mutex);
    m->stop = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    for (int i = 0; i < m->n_threads; i++)
        pthread_join(m->threads[i], NULL);
    pthread_mutex_destroy(&m->mutex);
    pthread_cond_destroy(&m->changed);
    sl_free(m->rows.pool);
    sl_free(m->row);
    sl_free(m->chunk);
}

/* Threads where there is more than one chunk; what could be set up is undone by makers_stop. */
static int makers_start(struct makers *m, struct sl_error *err)
{
    const int want = m->n_chunks > 1 ? SL_MIN(sl_cpu_count(), MAX_MAKERS) : 0;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->changed, NULL);
    int rc = rows_init(&m->rows, m->t, m->n_rows, err);
    if (rc != 0)
        return rc;
    m->n_slots = SL_MAX(2 * want, 1);
    m->row = sl_malloc((size_t)SL_MAX(want, 1) * (size_t)m->rows.n_cols * sizeof *m->row);
    m->chunk = sl_malloc((size_t)m->n_slots * (size_t)m->step * m->rows.row_bytes);
    if (m->row == NULL || m->chunk == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory writing tensor \"%s\"", m->t->name);
    for (; rc == 0 && m->n_threads < want; m->n_threads += rc == 0)
        rc = sl_thread_create(&m->threads[m->n_threads], maker_main, m, "sl-synth", err);
    return rc;
}

/* The next chunk, when it is made. */
static const uint8_t *makers_wait(struct makers *m, int64_t chunk)
{
    if (m->n_threads == 0) {
        make_chunk(m, chunk, m->row);
        return chunk_at(m, chunk);
    }
    pthread_mutex_lock(&m->mutex);
    while (!m->made[chunk % m->n_slots])
        pthread_cond_wait(&m->changed, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
    return chunk_at(m, chunk);
}

static void makers_give(struct makers *m, int64_t chunk)
{
    pthread_mutex_lock(&m->mutex);
    m->made[chunk % m->n_slots] = false;
    m->written = chunk + 1;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

/* ---------------------------------------------------------------- four bits */

static bool is_int4(const struct tensor *t)
{
    return t->dtype == SL_DTYPE_INT4_G128;
}

static struct sl_synth_int4 int4_of(const struct sl_synth *s, const struct tensor *t)
{
    return (struct sl_synth_int4){
        .kind = s->int4,
        .group = s->int4_group > 0 ? s->int4_group : t->dims[1],
        .symmetric = s->int4_symmetric,
        .name = t->name,
        .key = t->key,
        .n_rows = t->dims[0],
        .n_cols = t->dims[1],
        .scale_dtype = s->int4 == SL_INT4_PACKED ? SL_DTYPE_BF16 : SL_DTYPE_F16,
    };
}

static void report(const struct sl_synth *s, struct sink *k, uint64_t n_bytes)
{
    k->done += n_bytes;
    if (s->progress != NULL)
        s->progress(s->progress_arg, "writing", k->done, k->total);
}

static int write_int4(const struct sl_synth *s, const struct tensor *t, struct sink *k,
                      struct sl_error *err)
{
    const struct sl_synth_int4 m = int4_of(s, t);
    int rc = sl_synth_int4_write(&m, k->st, err);
    report(s, k, (uint64_t)(m.n_rows * m.n_cols / 2));
    return rc;
}

static int write_tensor(const struct sl_synth *s, const struct tensor *t, struct sink *k,
                        struct sl_error *err)
{
    struct makers m = {.s = s, .t = t, .rows.info = sl_dtype_info(t->dtype)};
    m.n_rows = t->n_dims == 2 ? t->dims[t->turned] : 1;
    m.rows.n_cols = t->n_dims == 2 ? t->dims[!t->turned] : t->dims[0];
    m.rows.row_bytes = (size_t)m.rows.n_cols / m.rows.info->block_elems * m.rows.info->block_bytes;
    m.step = SL_MAX(CHUNK_ELEMS / m.rows.n_cols, 1);
    m.n_chunks = SL_CEIL_DIV(m.n_rows, m.step);
    int rc = makers_start(&m, err);

    for (int64_t i = 0; i < m.n_chunks && rc == 0; i++) {
        const size_t n_bytes = (size_t)chunk_rows(&m, i) * m.rows.row_bytes;
        rc = put(k, makers_wait(&m, i), n_bytes, err);
        makers_give(&m, i);
        report(s, k, n_bytes);
    }
    makers_stop(&m);
    return rc;
}

static int write_scales(const struct sl_synth *s, const struct tensor *t, struct sink *k,
                        struct sl_error *err)
{
    int64_t block[2], n = 0;
    if (t->dtype != SL_DTYPE_FP8_E4M3)
        return 0;
    scale_block(s, t, block);
    const int64_t n_rows = SL_CEIL_DIV(t->dims[0], block[0]);
    const int64_t n_cols = SL_CEIL_DIV(t->dims[1], block[1]);
    const struct sl_dtype_info *info = sl_dtype_info(scales_dtype(s));
    float *x = sl_malloc((size_t)(n_rows * n_cols) * sizeof *x);
    if (x == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory writing the scales of \"%s\"", t->name);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t c = 0; c < n_cols; c++)
            x[n++] = scale_at(s, t, r * block[0], c * block[1]);
    for (int64_t i = 0; i < n; i++) /* in place: no format is larger than a float */
        info->from_f32(&x[i], (uint8_t *)x + i * info->block_bytes, 1);
    int rc = put(k, x, (size_t)n * info->block_bytes, err);
    if (rc == 0 && s->scales == SL_SYNTH_TENSOR) /* of activations; 1 */
        rc = put(k, &(float){1.0f}, sizeof(float), err);
    sl_free(x);
    return rc;
}

/* ---------------------------------------------------------------- the whole file */

static void declare_scales(const struct sl_synth *s, const struct tensor *t, struct sink *k)
{
    char name[SL_MAX_TENSOR_NAME + 16];
    int64_t block[2], dims[2];
    if (t->dtype != SL_DTYPE_FP8_E4M3)
        return;
    scale_block(s, t, block);
    for (int i = 0; i < 2; i++)
        dims[i] = SL_CEIL_DIV(t->dims[i], block[i]);
    snprintf(name, sizeof name, "%s%s", t->name,
             s->scales == SL_SYNTH_BLOCK ? "_scale_inv" : "_scale");
    sl_st_writer_add_tensor(k->st, name, scales_dtype(s), s->scales == SL_SYNTH_TENSOR ? 0 : 2,
                            dims);
    if (s->scales == SL_SYNTH_TENSOR) {
        snprintf(name, sizeof name, "%.*sinput_scale", (int)(strlen(t->name) - strlen("weight")),
                 t->name);
        sl_st_writer_add_tensor(k->st, name, SL_DTYPE_F32, 0, NULL);
    }
}

static int declare(const struct sl_synth *s, const struct tensor *t, struct sink *k,
                   struct sl_error *err)
{
    uint64_t bytes;
    int64_t n_cols = t->dims[t->n_dims - 1];
    if ((t->joined || t->file_rows != t->dims[0]) && (is_int4(t) || t->dtype == SL_DTYPE_FP8_E4M3))
        return sl_fail(err, SL_EINVAL, "\"%s\" is fused: %s is not written for such a tensor",
                       t->name, sl_dtype_info(t->dtype)->name);
    if (is_int4(t)) {
        const struct sl_synth_int4 m = int4_of(s, t);
        k->total += (uint64_t)(m.n_rows * m.n_cols / 2);
        return sl_synth_int4_declare(&m, k->st, err);
    }
    if (!sl_dtype_bytes(t->dtype, (uint64_t)n_cols, &bytes))
        return sl_fail(err, SL_EINVAL,
                       "%s needs rows of a multiple of %u values; \"%s\" has rows of %lld",
                       sl_dtype_info(t->dtype)->name, sl_dtype_info(t->dtype)->block_elems, t->name,
                       (long long)n_cols);
    const int64_t stack[] = {t->n_mats, t->turned ? t->dims[1] : t->file_rows,
                             t->turned ? t->file_rows : t->dims[1]};
    const int64_t dims[] = {t->joined ? t->n_mats * t->file_rows : t->file_rows,
                            t->dims[t->joined ? !t->turned : 1]};
    const bool in_stack = t->stacked && !t->joined;
    if (t->n_dims == 2)
        bytes *= (uint64_t)t->dims[0] * (uint64_t)(t->stacked ? t->n_mats : 1);
    k->total += bytes;
    if (t->part > 0)
        return 0;
    if (k->gguf != NULL && in_stack)
        sl_gguf_writer_add_tensor(k->gguf, t->name, t->dtype, t->n_dims + 1, stack);
    else if (k->gguf != NULL)
        sl_gguf_writer_add_tensor(k->gguf, t->name, t->dtype, t->n_dims, dims);
    else
        sl_st_writer_add_tensor(k->st, t->name, t->dtype, t->n_dims + in_stack,
                                in_stack ? stack : dims);
    declare_scales(s, t, k);
    return 0;
}

static int write_one(const struct sl_synth *s, const struct tensor *t, struct sink *k,
                     struct sl_error *err)
{
    int rc = is_int4(t) ? write_int4(s, t, k, err) : write_tensor(s, t, k, err);
    return rc != 0 ? rc : write_scales(s, t, k, err);
}

/* A stack whose matrices are fused: the first part writes all of them, matrix by matrix. */
static int write_fused_stack(const struct sl_synth *s, const struct sl_model_desc *desc,
                             const struct sl_weight_desc *w, int32_t layer, int32_t n_mats,
                             struct sink *k, struct sl_error *err)
{
    const struct sl_weight_desc *end = desc->weights + desc->n_weights;
    struct tensor t;
    int rc = 0;
    for (int32_t i = 0; i < n_mats && rc == 0 && w->part == 0; i++)
        for (const struct sl_weight_desc *part = w; part < end && rc == 0; part++) {
            if (part->hf_fused == NULL || strcmp(part->hf_fused, w->hf_fused) != 0 ||
                part->when != w->when || !describe(s, desc, k->layers, part, layer, i, &t))
                break;
            rc = write_one(s, &t, k, err);
        }
    return rc;
}

/* The matrices of one weight of a layer. A tensor that is a whole stack is declared once. */
static int each_mat(const struct sl_synth *s, const struct sl_model_desc *desc,
                    const struct sl_weight_desc *w, int32_t layer, bool writing, struct sink *k,
                    struct sl_error *err)
{
    struct tensor t;
    int rc = 0;
    for (int32_t i = 0, n = 1; i < n && rc == 0; i++) {
        if (!describe(s, desc, k->layers, w, layer, i, &t))
            return 0;
        if (writing && t.stacked && (t.joined || t.file_rows != t.dims[0]))
            return write_fused_stack(s, desc, w, layer, t.n_mats, k, err);
        n = writing || !t.stacked ? t.n_mats : 1;
        rc = writing ? write_one(s, &t, k, err) : declare(s, &t, k, err);
    }
    return rc;
}

/* Tables of layers whose tokens choose their experts: as many neighbours, from 5 t + layer down. */
static int each_table(const struct sl_synth *s, bool writing, struct sink *k, struct sl_error *err)
{
    int rc = 0;
    for (int32_t l = 0; l < s->hp.n_layers && rc == 0; l++) {
        const int64_t top = k->layers[l].top_experts, n = k->layers[l].n_experts;
        char name[SL_MAX_TENSOR_NAME];
        if (!k->layers[l].hashed)
            continue;
        sl_bind_name(SL_HASH_TENSOR, l, 0, name);
        if (!writing)
            sl_st_writer_add_raw(k->st, name, "I64", sizeof(int64_t), 2,
                                 (int64_t[]){s->hp.n_vocab, top});
        for (int64_t t = 0; writing && t < s->hp.n_vocab && rc == 0; t++)
            for (int64_t i = 0; i < top && rc == 0; i++) {
                const int64_t expert = (5 * t + l + i * (n - 1)) % n;
                rc = sl_st_writer_write_tensor_data(k->st, &expert, sizeof expert, err);
            }
    }
    return rc;
}

/* Visits the tensors in file order: the model's own, then layer by layer. */
static int each_tensor(const struct sl_synth *s, const struct sl_model_desc *desc, bool writing,
                       struct sink *k, struct sl_error *err)
{
    int rc = 0;
    for (int32_t l = -1; l < s->hp.n_layers; l++)
        for (int32_t i = 0; i < desc->n_weights && rc == 0; i++)
            if ((desc->weights[i].slot >= SL_SLOT_FIRST_GLOBAL) == (l < 0))
                rc = each_mat(s, desc, &desc->weights[i], l, writing, k, err);
    if (rc == 0)
        rc = each_table(s, writing, k, err);
    if (!s->mtp)
        return rc;
    for (int32_t i = 0; i < desc->n_weights && rc == 0; i++)
        if (desc->weights[i].slot < SL_SLOT_FIRST_GLOBAL)
            rc = each_mat(s, desc, &desc->weights[i], s->hp.n_layers, writing, k, err);
    for (int32_t i = 0; i < desc->mtp->n_weights && rc == 0; i++)
        if (desc->mtp->weights[i].hf != NULL)
            rc = each_mat(s, desc, &desc->mtp->weights[i], s->hp.n_layers, writing, k, err);
    return rc;
}

/* And of the module, as the family plans the layer behind the last one. */
static int plan_layers(const struct sl_synth *s, const struct sl_model_desc *desc,
                       const struct sl_model_name *name, struct sl_layer_desc *layers,
                       struct sl_error *err)
{
    const int32_t n = s->hp.n_layers;
    if (!s->mtp)
        return sl_plan(desc, name, &s->hp, layers, err);
    struct sl_hparams *hp = sl_malloc(sizeof *hp);
    if (hp == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %d layers", n);
    *hp = s->hp;
    hp->n_layers = n + 1;
    hp->attn_layers[n] = (uint8_t)desc->mtp->attends;
    hp->layer_types[n] = (uint8_t)desc->mtp->windowed;
    hp->mlp_types[n] = (uint8_t)desc->mtp->experts;
    int rc = sl_plan(desc, name, hp, layers, err);
    sl_free(hp);
    return rc;
}

static int write_gguf(const struct sl_synth *s, const struct sl_model_desc *desc,
                      const struct sl_model_name *name, const struct sl_layer_desc *layers,
                      const char *path, struct sl_error *err)
{
    struct sink k = {.layers = layers};
    int rc = sl_gguf_writer_create(path, &k.gguf, err);
    if (rc != 0)
        return rc;
    if ((rc = sl_synth_add_metadata(s, desc, name, k.gguf, err)) != 0 ||
        (rc = each_tensor(s, desc, false, &k, err)) != 0 ||
        (rc = sl_gguf_writer_begin_data(k.gguf, err)) != 0 ||
        (rc = each_tensor(s, desc, true, &k, err)) != 0) {
        sl_gguf_writer_destroy(k.gguf);
        return rc;
    }
    return sl_gguf_writer_finish(k.gguf, err);
}

static int write_folder(const struct sl_synth *s, const struct sl_model_desc *desc,
                        const struct sl_model_name *name, const struct sl_layer_desc *layers,
                        const char *path, struct sl_error *err)
{
    struct sink k = {.layers = layers};
    char file[4096];
    int rc;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return sl_fail(err, SL_EIO, "%.150s: cannot make the folder: %s", path, strerror(errno));
    if ((rc = sl_synth_write_configs(s, desc, name, path, err)) != 0)
        return rc;
    int n = snprintf(file, sizeof file, "%s/model.safetensors", path);
    if (n < 0 || (size_t)n >= sizeof file)
        return sl_fail(err, SL_EINVAL, "%.100s...: path is too long", path);
    if ((rc = sl_st_writer_create(file, &k.st, err)) != 0)
        return rc;
    sl_st_writer_add_metadata(k.st, "format", "pt");
    if ((rc = each_tensor(s, desc, false, &k, err)) != 0 ||
        (rc = sl_st_writer_begin_data(k.st, err)) != 0 ||
        (rc = each_tensor(s, desc, true, &k, err)) != 0) {
        sl_st_writer_destroy(k.st);
        return rc;
    }
    return sl_st_writer_finish(k.st, err);
}

int sl_synth_write(const struct sl_synth *s, const char *path, struct sl_error *err)
{
    const struct sl_model_desc *desc;
    const struct sl_model_name *name = sl_registry_find(s->name, &desc);
    struct sl_synth own = *s;
    int rc;
    if (name == NULL)
        return sl_fail(err, SL_EINVAL, "unknown model family \"%.40s\"", s->name);
    if ((rc = sl_hparams_check(&own.hp, err)) != 0)
        return rc;
    if (s->format == SL_CKPT_GGUF && name->gguf_architecture == NULL)
        return sl_fail(err, SL_EINVAL, "%s has no GGUF files", s->name);
    if ((s->dtype == SL_DTYPE_INT4_G128) != (s->int4 != SL_INT4_NONE))
        return sl_fail(err, SL_EINVAL, "four bits need the kind of a checkpoint");
    if (s->experts_apart && s->format != SL_CKPT_GGUF)
        return sl_fail(err, SL_EINVAL, "experts have a format of their own in a GGUF only");
    if ((s->dtype == SL_DTYPE_FP8_E4M3 || s->int4 != SL_INT4_NONE) && s->format != SL_CKPT_HF)
        return sl_fail(err, SL_EINVAL, "a GGUF cannot hold %s", sl_dtype_info(s->dtype)->name);
    if (s->format == SL_CKPT_GGUF && name->gguf_architecture == NULL)
        return sl_fail(err, SL_EINVAL, "%s has no GGUF files", name->id);
    if (own.byte_vocab && own.hp.n_vocab < SL_SYNTH_MIN_VOCAB)
        return sl_fail(err, SL_EINVAL, "a byte vocabulary needs at least %d tokens, not %d",
                       SL_SYNTH_MIN_VOCAB, own.hp.n_vocab);
    own.hp.has |= name->has;
    if (own.byte_vocab) {
        own.bos = SL_SYNTH_BOS;
        own.eos = SL_SYNTH_EOS;
    }
    if (s->format == SL_CKPT_GGUF && (own.hp.ropes[0].scaling == SL_ROPE_LLAMA3 ||
                                      own.hp.ropes[0].scaling == SL_ROPE_PROPORTIONAL))
        own.hp.has |= SL_HAS_ROPE_FREQS; /* GGUF carries this scaling as a table */
    if (s->format == SL_CKPT_GGUF && own.hp.ropes[0].scaling == SL_ROPE_LONG)
        own.hp.has |= SL_HAS_ROPE_FACTORS;
    if (s->mtp &&
        (desc->mtp == NULL || s->format != SL_CKPT_HF || own.hp.n_layers >= SL_MAX_LAYERS))
        return sl_fail(err, SL_EINVAL, "%s has no module that predicts further tokens in a folder",
                       s->name);
    own.hp.n_nextn = s->mtp ? 1 : own.hp.n_nextn;
    struct sl_layer_desc *layers = sl_calloc((size_t)own.hp.n_layers + 1, sizeof *layers);
    if (layers == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %d layers", own.hp.n_layers);
    rc = plan_layers(&own, desc, name, layers, err);
    if (rc == 0)
        rc = s->format == SL_CKPT_GGUF ? write_gguf(&own, desc, name, layers, path, err)
                                       : write_folder(&own, desc, name, layers, path, err);
    sl_free(layers);
    return rc;
}
