/* SPDX-License-Identifier: MIT
 *
 * One pass over the header with a cursor that cannot pass the end of the range. A count is believed
 * only when the bytes that it promises could be there; tables are allocated after that check.
 */
#include "io/gguf.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "io/gguf_impl.h"
#include "io/gguf_types.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ALIGNMENT 32u
#define MAX_KEY_BYTES     65535u           /* as the specification says */
#define MIN_KV_BYTES      (8u + 1 + 4 + 1) /* length, one byte of key, type, smallest value */
#define MIN_TENSOR_BYTES  (8u + 1 + 4 + 8 + 4 + 8)
/* Tables are at most 10 times their bytes in the file (a key of one byte with a u8). */
#define MEMORY_FACTOR 16u
#define MEMORY_BASE   (64u << 10)

#define NAME_FMT "%.100s" /* names are bounded in messages: the reason must not be cut off */

struct cursor {
    const uint8_t *data;
    uint64_t n, pos;
};

static bool gguf_take(struct cursor *c, void *out, size_t n)
{
    SL_ASSERT(c->pos <= c->n);
    if (n > c->n - c->pos)
        return false;
    memcpy(out, c->data + c->pos, n);
    c->pos += n;
    return true;
}

static int ends_early(const struct sl_gguf *g, const char *where, struct sl_error *err)
{
    return sl_fail(err, SL_EFORMAT, "%s: file ends inside " NAME_FMT, g->what, where);
}

static int gguf_no_memory(const struct sl_gguf *g, struct sl_error *err)
{
    return sl_fail(err, SL_ENOMEM, "%s: out of memory for the GGUF header", g->what);
}

uint64_t sl_gguf_impl_size(enum sl_gguf_type type)
{
    static const uint8_t sizes[] = {
        [SL_GGUF_U8] = 1,    [SL_GGUF_I8] = 1,  [SL_GGUF_U16] = 2, [SL_GGUF_I16] = 2,
        [SL_GGUF_U32] = 4,   [SL_GGUF_I32] = 4, [SL_GGUF_F32] = 4, [SL_GGUF_BOOL] = 1,
        [SL_GGUF_U64] = 8,   [SL_GGUF_I64] = 8, [SL_GGUF_F64] = 8, [SL_GGUF_STRING] = 0,
        [SL_GGUF_ARRAY] = 0,
    };
    SL_ASSERT((unsigned)type < SL_COUNT(sizes)); /* every reader refuses others */
    return sizes[type];
}

/* A u64 length and that many bytes, printable and unique enough to be a name: copied with a NUL. */
static int gguf_read_name(struct sl_gguf *g, struct cursor *c, const char *kind, size_t idx,
                          uint64_t max_bytes, const char **out, struct sl_error *err)
{
    uint64_t n;
    if (!gguf_take(c, &n, sizeof n) || n > c->n - c->pos)
        return sl_fail(err, SL_EFORMAT, "%s: file ends inside the name of %s %zu", g->what, kind,
                       idx);
    const char *s = (const char *)c->data + c->pos;
    if (n > max_bytes)
        return sl_fail(err, SL_ELIMIT,
                       "%s: name of %s %zu has %" PRIu64 " bytes, the limit is %" PRIu64, g->what,
                       kind, idx, n, max_bytes);
    if (!sl_names_valid(s, (size_t)n))
        return sl_fail(err, SL_EFORMAT, "%s: name of %s %zu is empty or not printable UTF-8",
                       g->what, kind, idx);
    c->pos += n;
    SL_ASSERT(n > 0 && c->pos <= c->n);
    *out = sl_arena_strndup(&g->arena, s, (size_t)n);
    SL_DCHECK(*out == NULL || strlen(*out) == n); /* no NUL inside, so a C string will do */
    return *out != NULL ? 0 : gguf_no_memory(g, err);
}

static int check_bools(const struct sl_gguf *g, const struct sl_gguf_kv *kv, struct sl_error *err)
{
    SL_ASSERT(kv->value + kv->n_bytes <= g->data + g->n_bytes);
    for (uint64_t i = 0; i < kv->n_bytes; i++) {
        if (kv->value[i] > 1)
            return sl_fail(err, SL_EFORMAT, "%s: key " NAME_FMT ": a bool has the value %d",
                           g->what, kv->key, kv->value[i]);
    }
    return 0;
}

static int gguf_read_string(const struct sl_gguf *g, struct cursor *c, const char *key, uint64_t *n,
                            struct sl_error *err)
{
    if (!gguf_take(c, n, sizeof *n) || *n > c->n - c->pos)
        return ends_early(g, key, err);
    if (*n > SL_MAX_GGUF_STRING)
        return sl_fail(err, SL_ELIMIT,
                       "%s: key " NAME_FMT ": string of %" PRIu64 " bytes, the limit is %u",
                       g->what, key, *n, SL_MAX_GGUF_STRING);
    c->pos += *n;
    SL_ASSERT(c->pos <= c->n);
    return 0;
}

static int read_array(const struct sl_gguf *g, struct cursor *c, struct sl_gguf_kv *kv,
                      struct sl_error *err)
{
    SL_ASSERT(kv->type == SL_GGUF_ARRAY && kv->value == NULL);
    uint32_t type;
    if (!gguf_take(c, &type, sizeof type) || !gguf_take(c, &kv->n, sizeof kv->n))
        return ends_early(g, kv->key, err);
    if (type > SL_GGUF_F64)
        return sl_fail(err, SL_EFORMAT, "%s: key " NAME_FMT ": unknown element type %u", g->what,
                       kv->key, type);
    if (type == SL_GGUF_ARRAY)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: key " NAME_FMT ": array of arrays", g->what,
                       kv->key);
    kv->elem_type = (enum sl_gguf_type)type;
    uint64_t size = sl_gguf_impl_size(kv->elem_type), left = c->n - c->pos;
    if (kv->n > left / (size != 0 ? size : sizeof(uint64_t)))
        return ends_early(g, kv->key, err);
    if (kv->n > SL_MAX_GGUF_ARRAY)
        return sl_fail(err, SL_ELIMIT,
                       "%s: key " NAME_FMT ": array of %" PRIu64 " elements, the limit is %u",
                       g->what, kv->key, kv->n, SL_MAX_GGUF_ARRAY);
    kv->value = c->data + c->pos;
    if (size != 0) {
        c->pos += kv->n * size; /* no overflow: n <= left / size */
    } else {
        for (uint64_t i = 0; i < kv->n; i++) {
            uint64_t n;
            int rc = gguf_read_string(g, c, kv->key, &n, err);
            if (rc != 0)
                return rc;
        }
    }
    kv->n_bytes = (uint64_t)(c->data + c->pos - kv->value);
    SL_ASSERT(size == 0 || kv->n_bytes == kv->n * size);
    SL_ASSERT(c->pos <= c->n);
    return kv->elem_type == SL_GGUF_BOOL ? check_bools(g, kv, err) : 0;
}

static int read_value(const struct sl_gguf *g, struct cursor *c, struct sl_gguf_kv *kv,
                      struct sl_error *err)
{
    uint32_t type;
    if (!gguf_take(c, &type, sizeof type))
        return ends_early(g, kv->key, err);
    if (type > SL_GGUF_F64)
        return sl_fail(err, SL_EFORMAT, "%s: key " NAME_FMT ": unknown type %u", g->what, kv->key,
                       type);
    kv->type = (enum sl_gguf_type)type;
    if (kv->type == SL_GGUF_ARRAY)
        return read_array(g, c, kv, err);
    if (kv->type == SL_GGUF_STRING) {
        int rc = gguf_read_string(g, c, kv->key, &kv->n, err);
        kv->n_bytes = kv->n;
        kv->value = c->data + c->pos - (rc == 0 ? kv->n : 0);
        SL_ASSERT(rc != 0 || kv->value + kv->n_bytes == c->data + c->pos);
        return rc;
    }
    kv->n_bytes = sl_gguf_impl_size(kv->type);
    SL_ASSERT(kv->n_bytes != 0); /* those without a size of their own went other ways */
    if (kv->n_bytes > c->n - c->pos)
        return ends_early(g, kv->key, err);
    kv->value = c->data + c->pos;
    c->pos += kv->n_bytes;
    return kv->type == SL_GGUF_BOOL ? check_bools(g, kv, err) : 0;
}

static int read_kvs(struct sl_gguf *g, struct cursor *c, uint64_t n_kv, struct sl_error *err)
{
    SL_ASSERT(g->kv == NULL && g->n_kv == 0);
    if (n_kv > (c->n - c->pos) / MIN_KV_BYTES)
        return sl_fail(err, SL_EFORMAT, "%s: too short for its %" PRIu64 " metadata keys", g->what,
                       n_kv);
    if (n_kv > SL_MAX_GGUF_KV)
        return sl_fail(err, SL_ELIMIT, "%s: %" PRIu64 " metadata keys, the limit is %d", g->what,
                       n_kv, SL_MAX_GGUF_KV);
    g->kv = sl_arena_array(&g->arena, (size_t)n_kv, sizeof *g->kv);
    if (g->kv == NULL || !sl_names_init(&g->keys, &g->arena, (size_t)n_kv))
        return gguf_no_memory(g, err);
    for (size_t i = 0; i < n_kv; i++) {
        struct sl_gguf_kv *kv = &g->kv[i];
        int rc = gguf_read_name(g, c, "key", i, MAX_KEY_BYTES, &kv->key, err);
        if (rc == 0 && !sl_names_add(&g->keys, kv->key, strlen(kv->key), (uint32_t)i))
            rc = sl_fail(err, SL_EFORMAT, "%s: key " NAME_FMT " appears twice", g->what, kv->key);
        if (rc == 0)
            rc = read_value(g, c, kv, err);
        if (rc != 0)
            return rc;
        SL_ASSERT(g->n_kv == i && kv->value >= g->data);
        g->n_kv++;
    }
    return 0;
}

static int gguf_read_shape(const struct sl_gguf *g, struct cursor *c, struct sl_gguf_tensor *t,
                           uint64_t *n_elems, struct sl_error *err)
{
    uint32_t n_dims;
    if (!gguf_take(c, &n_dims, sizeof n_dims))
        return ends_early(g, t->name, err);
    if (n_dims < 1 || n_dims > SL_MAX_DIMS)
        return sl_fail(err, SL_EFORMAT,
                       "%s: tensor " NAME_FMT " has %u dimensions, 1 to %d are possible", g->what,
                       t->name, n_dims, SL_MAX_DIMS);
    t->n_dims = (int32_t)n_dims;
    *n_elems = 1;
    SL_ASSERT(n_dims <= SL_COUNT(t->ne));
    for (uint32_t i = 0; i < 4; i++)
        t->ne[i] = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        if (!gguf_take(c, &t->ne[i], sizeof t->ne[i]))
            return ends_early(g, t->name, err);
        if (t->ne[i] == 0 || !sl_mul_u64(*n_elems, t->ne[i], n_elems) || *n_elems > INT64_MAX)
            return sl_fail(err, SL_EFORMAT,
                           "%s: tensor " NAME_FMT ": dimension %u = %" PRIu64 " is out of range",
                           g->what, t->name, i, t->ne[i]);
    }
    return 0;
}

static int gguf_read_tensor(struct sl_gguf *g, struct cursor *c, size_t idx, struct sl_error *err)
{
    SL_ASSERT(idx == g->n_tensors && g->tensors[idx].name == NULL);
    struct sl_gguf_tensor *t = &g->tensors[idx];
    uint64_t n_elems = 1;
    int rc = gguf_read_name(g, c, "tensor", idx, SL_MAX_TENSOR_NAME, &t->name, err);
    if (rc == 0)
        rc = gguf_read_shape(g, c, t, &n_elems, err);
    if (rc != 0)
        return rc;
    if (!gguf_take(c, &t->gguf_type, sizeof t->gguf_type) ||
        !gguf_take(c, &t->offset, sizeof t->offset))
        return ends_early(g, t->name, err);
    const struct sl_gguf_type_info *info = sl_gguf_type_info(t->gguf_type);
    if (info == NULL)
        return 0;
    if (t->ne[0] % info->block_elems != 0)
        return sl_fail(err, SL_EFORMAT,
                       "%s: tensor " NAME_FMT ": rows of %" PRIu64 " are not whole blocks of %s",
                       g->what, t->name, t->ne[0], info->name);
    SL_ASSERT(n_elems % info->block_elems == 0); /* as its rows are whole blocks */
    if (!sl_mul_u64(n_elems / info->block_elems, info->block_bytes, &t->n_bytes))
        return sl_fail(err, SL_EFORMAT, "%s: tensor " NAME_FMT ": size overflows", g->what,
                       t->name);
    return 0;
}

static int read_tensors(struct sl_gguf *g, struct cursor *c, uint64_t n, struct sl_error *err)
{
    struct sl_names names;
    SL_ASSERT(n <= SL_MAX_TENSORS && g->tensors == NULL);
    if (n > (c->n - c->pos) / MIN_TENSOR_BYTES)
        return sl_fail(err, SL_EFORMAT, "%s: too short for its %" PRIu64 " tensors", g->what, n);
    g->tensors = sl_arena_array(&g->arena, (size_t)n, sizeof *g->tensors);
    if (g->tensors == NULL || !sl_names_init(&names, &g->arena, (size_t)n))
        return gguf_no_memory(g, err);
    for (size_t i = 0; i < n; i++) {
        int rc = gguf_read_tensor(g, c, i, err);
        if (rc != 0)
            return rc;
        const char *name = g->tensors[i].name;
        if (!sl_names_add(&names, name, strlen(name), (uint32_t)i))
            return sl_fail(err, SL_EFORMAT, "%s: tensor " NAME_FMT " appears twice", g->what, name);
        g->n_tensors++;
    }
    return 0;
}

static int read_alignment(const struct sl_gguf *g, uint64_t *alignment, struct sl_error *err)
{
    enum sl_gguf_type type;
    *alignment = DEFAULT_ALIGNMENT;
    if (!sl_gguf_type_of(g, "general.alignment", &type))
        return 0;
    if (type != SL_GGUF_U32)
        return sl_fail(err, SL_EFORMAT, "%s: key general.alignment has type %s, not u32", g->what,
                       sl_gguf_type_name(type));
    int rc = sl_gguf_u64(g, "general.alignment", alignment, err);
    if (rc < 0) /* unreachable: true, a u32 is a u64 */
        return rc;
    SL_ASSERT(rc == 1 && *alignment <= UINT32_MAX);
    if (!sl_is_pow2(*alignment))
        return sl_fail(err, SL_EFORMAT,
                       "%s: key general.alignment = %" PRIu64 " is not a power of two", g->what,
                       *alignment);
    return 0;
}

/* Bytes a tensor claims: at least one, so that a tensor of unknown size cannot lie in another. */
static uint64_t claimed(const struct sl_gguf_tensor *t)
{
    return t->n_bytes != 0 ? t->n_bytes : 1;
}

static int by_offset(const void *pa, const void *pb)
{
    const struct sl_gguf_tensor *a = *(const struct sl_gguf_tensor *const *)pa;
    const struct sl_gguf_tensor *b = *(const struct sl_gguf_tensor *const *)pb;
    return a->offset != b->offset ? (a->offset < b->offset ? -1 : 1) : 0;
}

static int check_overlap(struct sl_gguf *g, struct sl_error *err)
{
    const struct sl_gguf_tensor **sorted = sl_arena_array(&g->arena, g->n_tensors, sizeof *sorted);
    if (sorted == NULL)
        return gguf_no_memory(g, err);
    for (size_t i = 0; i < g->n_tensors; i++)
        sorted[i] = &g->tensors[i];
    qsort(sorted, g->n_tensors, sizeof *sorted, by_offset);
    for (size_t i = 1; i < g->n_tensors; i++) {
        SL_ASSERT(sorted[i - 1]->offset <= sorted[i]->offset); /* or the difference wraps */
        if (sorted[i]->offset - sorted[i - 1]->offset < claimed(sorted[i - 1]))
            return sl_fail(err, SL_EFORMAT, "%s: tensors %.60s and %.60s overlap", g->what,
                           sorted[i - 1]->name, sorted[i]->name);
    }
    return 0;
}

/* Turns offsets into the data section into offsets into the file, checked. */
static int place_tensors(struct sl_gguf *g, uint64_t header_end, struct sl_error *err)
{
    uint64_t alignment, start;
    SL_ASSERT(header_end <= g->n_bytes);
    int rc = read_alignment(g, &alignment, err);
    if (rc != 0)
        return rc;
    if (g->n_tensors == 0) /* a vocabulary; such files may end before the data section */
        return 0;
    /* unreachable: a sum that wraps, the alignment has 32 bits */
    if (!sl_align_u64(header_end, alignment, &start) || start > g->n_bytes)
        return sl_fail(err, SL_EFORMAT, "%s: file ends before the tensor data", g->what);
    SL_ASSERT(start >= header_end && start % alignment == 0);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct sl_gguf_tensor *t = &g->tensors[i];
        if (t->offset % alignment != 0)
            return sl_fail(err, SL_EFORMAT,
                           "%s: tensor " NAME_FMT ": offset %" PRIu64
                           " is not a multiple of the alignment %" PRIu64,
                           g->what, t->name, t->offset, alignment);
        if (!sl_add_u64(start, t->offset, &t->offset) ||
            !sl_range_ok(t->offset, claimed(t), g->n_bytes))
            return sl_fail(err, SL_EFORMAT, "%s: tensor " NAME_FMT " lies outside the file",
                           g->what, t->name);
    }
    return check_overlap(g, err);
}

static int check_version(const struct sl_gguf *g, uint32_t version, struct sl_error *err)
{
    if (version == 2 || version == 3)
        return 0;
    if (version == 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "%s: GGUF version 1 is not supported; convert the file to version 3",
                       g->what);
    if (version != 0 && (version & 0xFFFF) == 0)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: big-endian GGUF files are not supported",
                       g->what);
    return sl_fail(err, SL_EUNSUPPORTED, "%s: GGUF version %u is not supported", g->what, version);
}

static int gguf_parse(struct sl_gguf *g, struct sl_error *err)
{
    struct cursor c = {g->data, g->n_bytes, 0};
    uint8_t magic[4];
    uint32_t version;
    uint64_t n_tensors, n_kv;
    if (!gguf_take(&c, magic, sizeof magic) || memcmp(magic, "GGUF", sizeof magic) != 0)
        return sl_fail(err, SL_EFORMAT, "%s: not a GGUF file", g->what);
    if (!gguf_take(&c, &version, sizeof version))
        return ends_early(g, "the header", err);
    int rc = check_version(g, version, err);
    if (rc != 0)
        return rc;
    if (!gguf_take(&c, &n_tensors, sizeof n_tensors) || !gguf_take(&c, &n_kv, sizeof n_kv))
        return ends_early(g, "the header", err);
    SL_ASSERT(c.pos == sizeof magic + sizeof version + sizeof n_tensors + sizeof n_kv);
    if (n_tensors > SL_MAX_TENSORS)
        return sl_fail(err, SL_ELIMIT, "%s: %" PRIu64 " tensors, the limit is %d", g->what,
                       n_tensors, SL_MAX_TENSORS);
    rc = read_kvs(g, &c, n_kv, err);
    if (rc == 0)
        rc = read_tensors(g, &c, n_tensors, err);
    SL_ASSERT(rc != 0 || (g->n_kv == n_kv && g->n_tensors == n_tensors && c.pos <= g->n_bytes));
    return rc == 0 ? place_tensors(g, c.pos, err) : rc;
}

int sl_gguf_open(const uint8_t *data, size_t n_bytes, const char *what, struct sl_gguf **out,
                 struct sl_error *err)
{
    SL_ASSERT(data != NULL || n_bytes == 0);
    what = sl_names_path_tail(what);
    struct sl_gguf *g = sl_calloc(1, sizeof *g);
    if (g == NULL)
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", what);
    g->data = data;
    g->n_bytes = n_bytes;
    if (!sl_mul_size(n_bytes, MEMORY_FACTOR, &g->arena.max_bytes) || /* unreachable: such a file */
        !sl_add_size(g->arena.max_bytes, MEMORY_BASE, &g->arena.max_bytes)) /* unreachable: too */
        g->arena.max_bytes = SIZE_MAX;
    g->what = sl_arena_strndup(&g->arena, what, strlen(what));
    int rc =
        g->what != NULL ? gguf_parse(g, err) : sl_fail(err, SL_ENOMEM, "%s: out of memory", what);
    if (rc != 0) {
        sl_gguf_close(g);
        return sl_names_scrub(err, rc);
    }
    *out = g;
    return 0;
}

void sl_gguf_close(struct sl_gguf *g)
{
    if (g == NULL)
        return;
    sl_arena_deinit(&g->arena);
    sl_free(g);
}

size_t sl_gguf_n_tensors(const struct sl_gguf *g)
{
    return g->n_tensors;
}

const struct sl_gguf_tensor *sl_gguf_tensor_at(const struct sl_gguf *g, size_t idx)
{
    SL_ASSERT(idx < g->n_tensors);
    return &g->tensors[idx];
}
