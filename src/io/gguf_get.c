/* SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "io/gguf_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY_FMT "%.100s"

const char *sl_gguf_type_name(enum sl_gguf_type type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    /* unreachable: others are refused when the file is read */
    return (unsigned)type < SL_COUNT(names) ? names[type] : "?";
}

static const struct sl_gguf_kv *gguf_get_find(const struct sl_gguf *g, const char *key)
{
    int64_t idx = sl_names_find(&g->keys, key, strlen(key));
    SL_ASSERT(idx < (int64_t)g->n_kv);
    return idx >= 0 ? &g->kv[idx] : NULL;
}

static int gguf_get_wrong_type(const struct sl_gguf *g, const struct sl_gguf_kv *kv,
                               const char *want, struct sl_error *err)
{
    bool array = kv->type == SL_GGUF_ARRAY;
    return sl_fail(err, SL_EFORMAT, "%s: key " KEY_FMT " has type %s%s, not %s", g->what, kv->key,
                   array ? "array of " : "", sl_gguf_type_name(array ? kv->elem_type : kv->type),
                   want);
}

/* An integer of any type as sign and magnitude, so that u64 and i64 both fit. */
static bool load_int(enum sl_gguf_type type, const uint8_t *p, bool *negative, uint64_t *value)
{
    uint64_t raw = 0;
    int64_t v;
    SL_ASSERT(sl_gguf_impl_size(type) <= sizeof raw);
    memcpy(&raw, p, (size_t)sl_gguf_impl_size(type)); /* little endian, as the host */
    switch (type) {
    case SL_GGUF_U8:
    case SL_GGUF_U16:
    case SL_GGUF_U32:
    case SL_GGUF_U64:
        *negative = false;
        *value = raw;
        return true;
    case SL_GGUF_I8:
        v = (int8_t)raw;
        break;
    case SL_GGUF_I16:
        v = (int16_t)raw;
        break;
    case SL_GGUF_I32:
        v = (int32_t)raw;
        break;
    case SL_GGUF_I64:
        v = (int64_t)raw;
        break;
    default:
        return false;
    }
    *negative = v < 0;
    *value = (uint64_t)v;
    return true;
}

int sl_gguf_u64(const struct sl_gguf *g, const char *key, uint64_t *out, struct sl_error *err)
{
    const struct sl_gguf_kv *kv = gguf_get_find(g, key);
    bool negative;
    uint64_t v;
    if (kv == NULL)
        return 0;
    if (!load_int(kv->type, kv->value, &negative, &v))
        return gguf_get_wrong_type(g, kv, "an integer", err);
    SL_ASSERT(kv->n_bytes == sl_gguf_impl_size(kv->type)); /* load_int reads as many */
    if (negative)
        return sl_fail(err, SL_EFORMAT, "%s: key " KEY_FMT " = %" PRId64 " is negative", g->what,
                       key, (int64_t)v);
    *out = v;
    return 1;
}

int sl_gguf_i64(const struct sl_gguf *g, const char *key, int64_t *out, struct sl_error *err)
{
    const struct sl_gguf_kv *kv = gguf_get_find(g, key);
    bool negative;
    uint64_t v;
    if (kv == NULL)
        return 0;
    if (!load_int(kv->type, kv->value, &negative, &v))
        return gguf_get_wrong_type(g, kv, "an integer", err);
    if (!negative && v > INT64_MAX)
        return sl_fail(err, SL_EFORMAT, "%s: key " KEY_FMT " = %" PRIu64 " is too large", g->what,
                       key, v);
    *out = (int64_t)v;
    SL_ASSERT(negative == (*out < 0));
    return 1;
}

int sl_gguf_f64(const struct sl_gguf *g, const char *key, double *out, struct sl_error *err)
{
    const struct sl_gguf_kv *kv = gguf_get_find(g, key);
    if (kv == NULL)
        return 0;
    if (kv->type == SL_GGUF_F32) {
        float f;
        SL_ASSERT(kv->n_bytes == sizeof f);
        memcpy(&f, kv->value, sizeof f);
        *out = (double)f;
        return 1;
    }
    if (kv->type != SL_GGUF_F64)
        return gguf_get_wrong_type(g, kv, "f32 or f64", err);
    SL_ASSERT(kv->n_bytes == sizeof *out);
    memcpy(out, kv->value, sizeof *out);
    return 1;
}

int sl_gguf_bool(const struct sl_gguf *g, const char *key, bool *out, struct sl_error *err)
{
    const struct sl_gguf_kv *kv = gguf_get_find(g, key);
    if (kv == NULL)
        return 0;
    if (kv->type != SL_GGUF_BOOL)
        return gguf_get_wrong_type(g, kv, "bool", err);
    SL_ASSERT(kv->n_bytes == 1 && kv->value[0] <= 1); /* others were refused when it was read */
    *out = kv->value[0] != 0;
    return 1;
}

int sl_gguf_str(const struct sl_gguf *g, const char *key, const char **s, size_t *n,
                struct sl_error *err)
{
    const struct sl_gguf_kv *kv = gguf_get_find(g, key);
    if (kv == NULL)
        return 0;
    if (kv->type != SL_GGUF_STRING)
        return gguf_get_wrong_type(g, kv, "string", err);
    SL_ASSERT(kv->n == kv->n_bytes);
    *s = (const char *)kv->value;
    *n = (size_t)kv->n;
    return 1;
}

int sl_gguf_type_of(const struct sl_gguf *g, const char *key, enum sl_gguf_type *type)
{
    const struct sl_gguf_kv *kv = gguf_get_find(g, key);
    if (kv == NULL)
        return 0;
    *type = kv->type;
    return 1;
}

static bool is_integer(enum sl_gguf_type type)
{
    bool negative;
    uint64_t v;
    static const uint8_t zeros[8];
    return load_int(type, zeros, &negative, &v);
}

int sl_gguf_array(const struct sl_gguf *g, const char *key, enum sl_gguf_type want,
                  struct sl_gguf_array *out, struct sl_error *err)
{
    const struct sl_gguf_kv *kv = gguf_get_find(g, key);
    if (kv == NULL)
        return 0;
    if (kv->type != SL_GGUF_ARRAY)
        return gguf_get_wrong_type(g, kv, "an array", err);
    if (want == SL_GGUF_ARRAY ? !is_integer(kv->elem_type) : kv->elem_type != want) {
        char name[32] = "an array of integers";
        if (want != SL_GGUF_ARRAY)
            snprintf(name, sizeof name, "array of %s", sl_gguf_type_name(want));
        return gguf_get_wrong_type(g, kv, name, err);
    }
    SL_ASSERT(kv->elem_type <= SL_GGUF_F64 && kv->elem_type != SL_GGUF_ARRAY);
    *out = (struct sl_gguf_array){kv->elem_type, kv->n, kv->value, kv->n_bytes};
    return 1;
}

bool sl_gguf_array_i64(const struct sl_gguf_array *a, uint64_t idx, int64_t *out)
{
    bool negative;
    uint64_t v, size = sl_gguf_impl_size(a->type);
    SL_ASSERT(size == 0 || a->n_bytes == a->n * size);
    if (idx >= a->n || size == 0 || !load_int(a->type, a->data + idx * size, &negative, &v))
        return false;
    if (!negative && v > INT64_MAX)
        return false;
    *out = (int64_t)v;
    return true;
}

bool sl_gguf_array_next_str(const struct sl_gguf_array *a, uint64_t *pos, const char **s, size_t *n)
{
    uint64_t len;
    if (a->type != SL_GGUF_STRING || !sl_range_ok(*pos, sizeof len, a->n_bytes))
        return false;
    memcpy(&len, a->data + *pos, sizeof len);
    uint64_t at = *pos + sizeof len;
    if (!sl_range_ok(at, len, a->n_bytes)) /* unreachable: true, seen when the file was read */
        return false;
    *s = (const char *)a->data + at;
    *n = (size_t)len;
    *pos = at + len;
    SL_ASSERT(*pos <= a->n_bytes);
    return true;
}

size_t sl_gguf_n_kv(const struct sl_gguf *g)
{
    return g->n_kv;
}

const char *sl_gguf_key_at(const struct sl_gguf *g, size_t idx, enum sl_gguf_type *type)
{
    SL_ASSERT(idx < g->n_kv);
    if (type != NULL)
        *type = g->kv[idx].type;
    return g->kv[idx].key;
}
