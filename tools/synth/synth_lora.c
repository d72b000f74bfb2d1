/* SPDX-License-Identifier: MIT
 * Random adapters in PEFT's form. A has the scale PEFT begins with, B one at which what an adapter
 * adds is about `size` of what the matrix itself gives, so that it changes tokens and nothing
 * overflows. A value depends on the seed, the matrix and its place only.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"
#include "io/safetensors_write.h"
#include "models/internal.h"
#include "models/lora.h"
#include "synth/synth_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { ROWS = 64 }; /* written at once */

/* Evenly spread, with standard deviation scale. */
static void draw(uint64_t key, float scale, float *out, int64_t n)
{
    const float unit = scale * 1.7320508f * 0x1p-31f;
    for (int64_t i = 0; i < n; i++) {
        uint64_t b = sl_mix64(key + (uint64_t)i * 0x9E3779B97F4A7C15u);
        out[i] = unit * (float)(int32_t)(uint32_t)(b >> 32);
    }
}

/* Does a module that is one of spec's targets begin with the matrix at idx of mats? */
static bool is_target(const struct sl_model *m, const struct sl_synth_lora *spec, int32_t idx,
                      char *module, int64_t *n_rows)
{
    if (!sl_model_lora_module(m, idx, module, n_rows))
        return false;
    const char *last = strrchr(module, '.');
    const char *name = last != NULL ? last + 1 : module;
    if (spec->targets == NULL)
        return true;
    size_t n = strlen(name);
    for (const char *at = spec->targets; (at = strstr(at, name)) != NULL; at += n)
        if ((at == spec->targets || at[-1] == ',') && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

static void declare(const struct sl_synth_lora *spec, struct sl_st_writer *w, const char *module,
                    int64_t n_rows, int64_t n_cols)
{
    char name[SL_MAX_TENSOR_NAME + 64];
    const int64_t a[2] = {spec->rank, n_cols}, b[2] = {n_rows, spec->rank};
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    sl_st_writer_add_tensor(w, name, spec->dtype, 2, a);
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
    sl_st_writer_add_tensor(w, name, spec->dtype, 2, b);
}

int sl_synth_write_even(struct sl_st_writer *w, enum sl_dtype dtype, uint64_t key, float scale,
                        int64_t n_rows, int64_t n_cols, struct sl_error *err)
{
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    float *room = sl_calloc((size_t)n_cols * ROWS, 2 * sizeof *room);
    int rc = room != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for a matrix");
    for (int64_t r = 0; r < n_rows && rc == 0; r += ROWS) {
        const int64_t n = SL_MIN(n_rows - r, ROWS) * n_cols;
        draw(sl_mix64(key + (uint64_t)r), scale, room, n);
        info->from_f32(room, room + (size_t)n_cols * ROWS, n);
        rc = sl_st_writer_write_tensor_data(w, room + (size_t)n_cols * ROWS,
                                            (size_t)n * info->block_bytes, err);
    }
    sl_free(room);
    return rc;
}

static int each_matrix(const struct sl_model *m, const struct sl_synth_lora *spec,
                       struct sl_st_writer *w, bool writing, struct sl_error *err)
{
    char module[SL_MAX_TENSOR_NAME];
    int rc = 0;
    for (int32_t i = 0; i < sl_model_n_lora_mats(m) && rc == 0; i++) {
        int64_t n_rows, own_rows, n_cols;
        if (!is_target(m, spec, i, module, &n_rows))
            continue;
        sl_model_lora_shape(m, i, &own_rows, &n_cols);
        if (!writing) {
            declare(spec, w, module, n_rows, n_cols);
            continue;
        }
        /* x of size 1 gives A x of size 1; times B, rank of them, and the scale: `size` */
        const uint64_t key = sl_hash64(module, strlen(module), spec->seed);
        const float a = 1.0f / sqrtf((float)n_cols);
        const double scale =
            spec->rslora ? spec->alpha / sqrt(spec->rank) : spec->alpha / spec->rank;
        const float b = (float)(spec->size / (scale * sqrt(spec->rank)));
        rc = sl_synth_write_even(w, spec->dtype, key, a, spec->rank, n_cols, err);
        if (rc == 0)
            rc = sl_synth_write_even(w, spec->dtype, key + 1, b, n_rows, spec->rank, err);
    }
    return rc;
}

static int write_config(const struct sl_synth_lora *spec, const char *path, struct sl_error *err)
{
    struct sl_buf b = {0};
    sl_buf_printf(&b,
                  "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n"
                  "  \"r\": %d,\n  \"lora_alpha\": ",
                  spec->rank);
    sl_buf_json_double(&b, spec->alpha);
    sl_buf_printf(&b,
                  ",\n  \"use_rslora\": %s,\n  \"bias\": \"none\",\n  \"inference_mode\": true,\n"
                  "  \"target_modules\": ",
                  spec->rslora ? "true" : "false");
    sl_buf_puts(&b, spec->targets == NULL ? "\"all-linear\"" : "[\"");
    for (const char *at = spec->targets; at != NULL && *at != '\0'; at++) {
        if (*at == ',')
            sl_buf_puts(&b, "\", \"");
        else
            sl_buf_putc(&b, *at);
    }
    sl_buf_puts(&b, spec->targets == NULL ? "\n}\n" : "\"]\n}\n");
    int rc = sl_buf_ok(&b) ? sl_write_file(path, b.data, b.n_bytes, err)
                           : sl_fail(err, SL_ENOMEM, "out of memory for a configuration");
    sl_buf_deinit(&b);
    return rc;
}

int sl_synth_lora_write(const struct sl_model *m, const struct sl_synth_lora *spec,
                        const char *path, struct sl_error *err)
{
    char file[4096];
    struct sl_st_writer *w;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return sl_fail(err, SL_EIO, "%.150s: cannot make the folder: %s", path, strerror(errno));
    if (snprintf(file, sizeof file, "%s/adapter_config.json", path) >= (int)sizeof file)
        return sl_fail(err, SL_EINVAL, "%.100s...: path is too long", path);
    int rc = write_config(spec, file, err);
    if (rc != 0)
        return rc;
    snprintf(file, sizeof file, "%.4000s/adapter_model.safetensors", path);
    rc = sl_st_writer_create(file, &w, err);
    if (rc != 0)
        return rc;
    sl_st_writer_add_metadata(w, "format", "pt");
    rc = each_matrix(m, spec, w, false, err);
    if (rc == 0)
        rc = sl_st_writer_begin_data(w, err);
    if (rc == 0)
        rc = each_matrix(m, spec, w, true, err);
    if (rc != 0) {
        sl_st_writer_destroy(w);
        return rc;
    }
    return sl_st_writer_finish(w, err);
}
