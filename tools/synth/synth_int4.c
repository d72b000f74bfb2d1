/* SPDX-License-Identifier: MIT
 * Matrices of random four-bit codes in the layouts of their checkpoints. Codes, zero points and
 * scales depend on the key, the row and the columns only, and scales have eight bits, which both
 * f16 and bf16 hold: so all kinds of checkpoint hold the same weights.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "quant/float.h"
#include "quant/int4_repack.h"
#include "synth/synth_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define UNIFORM_SD 4.61f /* of a code */

static uint32_t codes_at(const struct sl_synth_int4 *m, int64_t row, int64_t k8)
{
    return (uint32_t)sl_mix64(m->key + ((uint64_t)row << 24 | (uint64_t)k8) * 0x9E3779B97F4A7C15u);
}

static uint32_t zero_at(const struct sl_synth_int4 *m, int64_t row, int64_t g)
{
    const uint64_t r = sl_rng_at(m->key + 1, (uint64_t)row << 24 | (uint64_t)g);
    return m->symmetric ? 8 : 6 + (uint32_t)(r % 5);
}

static float scale_at(const struct sl_synth_int4 *m, int64_t row, int64_t g)
{
    const uint64_t r = sl_rng_at(m->key + 2, (uint64_t)row << 24 | (uint64_t)g);
    const float x = (1.0f + (float)(r % 64) / 128) / UNIFORM_SD / sqrtf((float)m->n_cols);
    return sl_bf16_to_f32(sl_f32_to_bf16(x));
}

/* Eight rows of a word, the first in the lowest bits or as AWQ has them. */
static uint32_t zeros_word(const struct sl_synth_int4 *m, int64_t row, int64_t g)
{
    static const int awq[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t w = 0;
    for (int i = 0; i < 8; i++) {
        const int64_t r = row + (m->kind == SL_INT4_AWQ_GEMM ? awq[i] : i);
        if (r < m->n_rows)
            w |= zero_at(m, r, g) << 4 * i;
    }
    return m->kind == SL_INT4_GPTQ_V1 ? w - 0x11111111u : w;
}

static uint32_t awq_word(const struct sl_synth_int4 *m, int64_t k, int64_t row)
{
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t w = 0;
    for (int i = 0; i < 8; i++)
        w |= (codes_at(m, row + order[i], k / 8) >> 4 * (k % 8) & 15u) << 4 * i;
    return w;
}

/* ---------------------------------------------------------------- tensors */

enum { CODES, SCALES, ZEROS, ORDER, SHAPE, N_PARTS };

struct part {
    const char *suffix, *st_name;
    size_t elem_bytes;
    int32_t n_dims;
    int64_t dims[2];
};

static bool part_of(const struct sl_synth_int4 *m, int i, struct part *p)
{
    const bool packed = m->kind == SL_INT4_PACKED, awq = m->kind == SL_INT4_AWQ_GEMM;
    const int64_t n = m->n_rows, k = m->n_cols, g = k / m->group;
    const char *scale_name = m->scale_dtype == SL_DTYPE_F16 ? "F16" : "BF16";
    const struct part parts[2][N_PARTS] = {
        {{"qweight", "I32", 4, 2, {awq ? k : k / 8, awq ? n / 8 : n}},
         {"scales", scale_name, 2, 2, {g, n}},
         {"qzeros", "I32", 4, 2, {g, n / 8}},
         {"g_idx", "I32", 4, 1, {k, 1}},
         {NULL, NULL, 0, 0, {0}}},
        {{"weight_packed", "I32", 4, 2, {n, k / 8}},
         {"weight_scale", scale_name, 2, 2, {n, g}},
         {"weight_zero_point", "I32", 4, 2, {SL_CEIL_DIV(n, (int64_t)8), g}},
         {NULL, NULL, 0, 0, {0}},
         {"weight_shape", "I64", 8, 1, {2, 1}}},
    };
    *p = parts[packed][i];
    return p->suffix != NULL && !(i == ORDER && awq) && !(i == ZEROS && packed && m->symmetric);
}

int sl_synth_int4_declare(const struct sl_synth_int4 *m, struct sl_st_writer *w,
                          struct sl_error *err)
{
    char name[SL_MAX_TENSOR_NAME + 24];
    struct part p;
    if (m->n_cols % m->group != 0 || m->n_rows % 8 != 0 || m->n_cols % 8 != 0)
        return sl_fail(err, SL_EINVAL, "\"%s\" [%lld, %lld] is not whole groups of %lld", m->name,
                       (long long)m->n_rows, (long long)m->n_cols, (long long)m->group);
    const int n_module = (int)(strlen(m->name) - strlen("weight"));
    for (int i = 0; i < N_PARTS; i++) {
        if (!part_of(m, i, &p))
            continue;
        snprintf(name, sizeof name, "%.*s%s", n_module, m->name, p.suffix);
        sl_st_writer_add_raw(w, name, p.st_name, p.elem_bytes, p.n_dims, p.dims);
    }
    return 0;
}

/* Row r of a part to out. */
static void fill(const struct sl_synth_int4 *m, int part, const struct part *p, int64_t r,
                 uint8_t *out)
{
    const int64_t n = p->n_dims == 2 ? p->dims[1] : 1;
    const bool packed = m->kind == SL_INT4_PACKED, awq = m->kind == SL_INT4_AWQ_GEMM;
    for (int64_t c = 0; c < n; c++) {
        uint32_t w = 0;
        if (part == CODES)
            w = packed ? codes_at(m, r, c) : awq ? awq_word(m, r, 8 * c) : codes_at(m, c, r);
        else if (part == ZEROS)
            w = packed ? zeros_word(m, 8 * r, c) : zeros_word(m, 8 * c, r);
        else if (part == ORDER)
            w = (uint32_t)(r / m->group);
        if (part == SCALES) {
            const float x = packed ? scale_at(m, r, c) : scale_at(m, c, r);
            sl_store_u16(out + 2 * c,
                         m->scale_dtype == SL_DTYPE_F16 ? sl_f32_to_f16(x) : sl_f32_to_bf16(x));
        } else if (part == SHAPE) {
            memcpy(out, r == 0 ? &m->n_rows : &m->n_cols, 8);
        } else {
            memcpy(out + 4 * c, &w, sizeof w);
        }
    }
}

int sl_synth_int4_write(const struct sl_synth_int4 *m, struct sl_st_writer *w, struct sl_error *err)
{
    struct part p;
    int rc = 0;
    for (int i = 0; i < N_PARTS && rc == 0; i++) {
        if (!part_of(m, i, &p))
            continue;
        const size_t row_bytes = (size_t)(p.n_dims == 2 ? p.dims[1] : 1) * p.elem_bytes;
        uint8_t *row = sl_malloc(row_bytes);
        if (row == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory writing tensor \"%s\"", m->name);
        for (int64_t r = 0; r < p.dims[0] && rc == 0; r++) {
            fill(m, i, &p, r, row);
            rc = sl_st_writer_write_tensor_data(w, row, row_bytes, err);
        }
        sl_free(row);
    }
    return rc;
}

static const char *const kind_names[] = {[SL_INT4_GPTQ_V1] = "gptq",
                                         [SL_INT4_GPTQ_V2] = "gptq_v2",
                                         [SL_INT4_AWQ_GEMM] = "awq",
                                         [SL_INT4_PACKED] = "compressed-tensors"};

enum sl_int4_kind sl_synth_int4_kind(const char *name)
{
    for (size_t i = 1; i < SL_COUNT(kind_names); i++)
        if (strcmp(name, kind_names[i]) == 0)
            return (enum sl_int4_kind)i;
    return SL_INT4_NONE;
}

void sl_synth_int4_config(const struct sl_synth *s, struct sl_buf *b)
{
    const char *symmetric = s->int4_symmetric ? "true" : "false";
    sl_buf_puts(b, " \"quantization_config\": ");
    switch (s->int4) {
    case SL_INT4_AWQ_GEMM:
        sl_buf_printf(
            b,
            "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": %d, \"zero_point\": "
            "true, \"version\": \"gemm\", \"modules_to_not_convert\": null},\n",
            s->int4_group);
        break;
    case SL_INT4_PACKED:
        sl_buf_printf(b,
                      "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
                      "\"ignore\": [\"lm_head\"],\n  \"config_groups\": {\"group_0\": "
                      "{\"targets\": [\"Linear\"], \"weights\": {\"type\": \"int\", \"num_bits\": "
                      "4, \"strategy\": \"%s\", \"group_size\": %d, \"symmetric\": %s}}}},\n",
                      s->int4_group > 0 ? "group" : "channel", s->int4_group, symmetric);
        break;
    default:
        sl_buf_printf(b,
                      "{\"quant_method\": \"gptq\", \"checkpoint_format\": \"%s\", \"bits\": 4, "
                      "\"group_size\": %d, \"desc_act\": false, \"sym\": %s},\n",
                      kind_names[s->int4], s->int4_group, symmetric);
    }
}
