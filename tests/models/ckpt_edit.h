/* SPDX-License-Identifier: MIT
 * ckpt_edit.h - for tests of checkpoints: a folder written again with one tensor or one key of
 * config.json changed, the same folder as floats, and what loading says of it.
 */
#ifndef SL_TESTS_CKPT_EDIT_H
#define SL_TESTS_CKPT_EDIT_H

#include "base/json_load.h"
#include "io/safetensors_write.h"
#include "models/internal.h"
#include "models/model_rig.h"

#include <sys/stat.h>

/* ---------------------------------------------------------------- another file of the same */

/* What becomes of one tensor when a folder is written again. */
struct edit {
    const char *name;
    /* TWICE: a second one under the name in `as`; BYTES: `word` at byte `at` */
    enum { KEEP, DROP, TWICE, BYTES, SET } what;
    uint32_t word;
    const char *as;
    enum sl_dtype dtype; /* SET, from here on */
    int32_t n_dims;
    int64_t dims[3];
    float value; /* of every element */
    int64_t at;  /* of one element only; -1: of all; BYTES: which */
};

static inline void put_floats(struct sl_st_writer *w, enum sl_dtype dtype, const float *x,
                              int64_t n)
{
    struct sl_error err = {0};
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    uint8_t *bytes = sl_malloc((size_t)n * info->block_bytes + 1);
    assert_non_null(bytes);
    info->from_f32(x, bytes, n);
    if (sl_st_writer_write_tensor_data(w, bytes, (size_t)n * info->block_bytes, &err) != 0)
        fail_msg("%s", err.msg);
    sl_free(bytes);
}

static inline int64_t elements(const int64_t *dims, int32_t n)
{
    int64_t all = 1;
    for (int32_t i = 0; i < n; i++)
        all *= dims[i];
    return all;
}

/* Of a format that is no row of dtypes.def too: what checkpoints pack codes in. */
static inline void declare_like(struct sl_st_writer *w, const struct sl_ckpt *c,
                                const struct sl_ckpt_tensor *t, const char *name)
{
    if (t->dtype != SL_DTYPE_COUNT)
        sl_st_writer_add_tensor(w, name, t->dtype, t->n_dims, t->dims);
    else
        sl_st_writer_add_raw(w, name, sl_ckpt_unsupported(c, t->name),
                             (size_t)t->n_bytes / (size_t)elements(t->dims, t->n_dims), t->n_dims,
                             t->dims);
}

static inline void declare(struct sl_st_writer *w, const struct sl_ckpt *c,
                           const struct sl_ckpt_tensor *t, const struct edit *e)
{
    if (e == NULL || e->what == KEEP || e->what == TWICE || e->what == BYTES)
        declare_like(w, c, t, t->name);
    if (e != NULL && e->what == TWICE)
        declare_like(w, c, t, e->as);
    if (e != NULL && e->what == SET)
        sl_st_writer_add_tensor(w, t->name, e->dtype, e->n_dims, e->dims);
}

static inline void put_tensor(struct sl_st_writer *w, const struct sl_ckpt_tensor *t,
                              const struct edit *e)
{
    struct sl_error err = {0};
    if (e != NULL && e->what == BYTES) {
        uint8_t *bytes = sl_malloc((size_t)t->n_bytes);
        assert_non_null(bytes);
        memcpy(bytes, t->data, (size_t)t->n_bytes);
        memcpy(bytes + e->at, &e->word, sizeof e->word);
        if (sl_st_writer_write_tensor_data(w, bytes, t->n_bytes, &err) != 0)
            fail_msg("%s", err.msg);
        sl_free(bytes);
    }
    for (int i = 0; i < (e == NULL || e->what == KEEP ? 1 : e->what == TWICE ? 2 : 0); i++)
        if (sl_st_writer_write_tensor_data(w, t->data, t->n_bytes, &err) != 0)
            fail_msg("%s", err.msg);
    if (e == NULL || e->what != SET)
        return;
    int64_t n = elements(e->dims, e->n_dims), had = elements(t->dims, t->n_dims);
    float *x = sl_calloc((size_t)SL_MAX(n, had), sizeof *x);
    assert_non_null(x);
    if (t->dtype != SL_DTYPE_COUNT)
        sl_dtype_info(t->dtype)->to_f32(t->data, x, had);
    for (int64_t i = 0; i < n; i++)
        if (e->at < 0 || i == e->at)
            x[i] = e->value;
    put_floats(w, e->dtype, x, n);
    sl_free(x);
}

static inline void copy_file(const char *from, const char *to, const char *name)
{
    struct sl_error err = {0};
    char path[300], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", from, name);
    if (sl_read_file(path, 1 << 20, &text, &n, &err) != 0)
        fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/%s", to, name);
    if (sl_write_file(path, text, n, &err) != 0)
        fail_msg("%s", err.msg);
    sl_free(text);
}

static inline void rewrite(const char *from, const char *to, const struct edit *e)
{
    struct sl_error err = {0};
    struct sl_ckpt *c;
    struct sl_st_writer *w;
    char path[300];
    mkdir(to, 0777);
    copy_file(from, to, "config.json");
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    if (sl_ckpt_open(from, &c, &err) != 0 || sl_st_writer_create(path, &w, &err) != 0)
        fail_msg("%s", err.msg);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sl_ckpt_n_tensors(c); i++) {
            const struct sl_ckpt_tensor *t = sl_ckpt_tensor_at(c, i);
            const struct edit *mine = strcmp(t->name, e->name) == 0 ? e : NULL;
            if (pass == 0)
                declare(w, c, t, mine);
            else
                put_tensor(w, t, mine);
        }
        if (pass == 0 && sl_st_writer_begin_data(w, &err) != 0)
            fail_msg("%s", err.msg);
    }
    if (sl_st_writer_finish(w, &err) != 0)
        fail_msg("%s", err.msg);
    sl_ckpt_close(c);
}

static inline void set_key(const char *folder, const char *key, const char *value)
{
    struct sl_error err = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    if (value == NULL)
        json_object_del(config, key);
    else
        json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(config, 0);
    if (sl_write_file(path, text, strlen(text), &err) != 0)
        fail_msg("%s", err.msg);
    sl_json_free_text(text);
    json_decref(config);
}

#define NONE(tensor)                 \
    {                                \
        .name = tensor, .what = DROP \
    }
#define AGAIN(tensor, other)                       \
    {                                              \
        .name = tensor, .what = TWICE, .as = other \
    }
/* value at one place, -1: everywhere; the dimensions come last */
#define PUT(tensor, format, n, x, place, ...)                                             \
    {                                                                                     \
        .name = tensor, .what = SET, .dtype = SL_DTYPE_##format, .n_dims = n, .value = x, \
        .at = place, .dims = {                                                            \
            __VA_ARGS__                                                                   \
        }                                                                                 \
    }

/* ---------------------------------------------------------------- what is refused */

static inline int open_and_load(const char *path, struct sl_error *err)
{
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_backend *be = NULL;
    struct sl_cpu_config cpu = {.n_threads = 1};
    int rc = sl_ckpt_open(path, &c, err);
    if (rc == 0)
        rc = sl_model_open(c, &m, err);
    if (rc == 0)
        rc = sl_cpu_create(&cpu, &be, err);
    if (rc == 0)
        rc = sl_model_load(m, be, NULL, NULL, err);
    sl_model_close(m);
    if (be != NULL)
        be->vt->destroy(be);
    sl_ckpt_close(c);
    return rc;
}

/* want: parts of the message, with | between. */
static inline void expect(const char *path, int code, const char *want, const char *label)
{
    struct sl_error err = {0};
    int rc = open_and_load(path, &err);
    if (rc != code)
        fail_msg("%s: code %s instead of %s: %s", label, sl_code_name(rc), sl_code_name(code),
                 err.msg);
    for (const char *part = want; part != NULL && code != 0;) {
        const char *bar = strchr(part, '|');
        char word[200];
        snprintf(word, sizeof word, "%.*s", bar ? (int)(bar - part) : (int)strlen(part), part);
        if (strstr(err.msg, word) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", label, err.msg, word);
        part = bar ? bar + 1 : NULL;
    }
}

#endif
