/* SPDX-License-Identifier: MIT
 *
 * The header is a JSON object of one fixed form, so it is read by a small recursive-descent parser
 * for that form alone, in one pass and without a document tree: 100,000 tensors take milliseconds,
 * and nothing can nest. Ranges are compared after sorting them, since headers list tensors in any
 * order.
 */
#include "io/safetensors.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "io/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAME_FMT      "%.100s"
#define MEMORY_FACTOR 16u
#define MEMORY_BASE   (64u << 10)

struct st_pair {
    const char *key, *value;
};

struct sl_st {
    struct sl_arena arena;
    const char *what;
    struct sl_st_tensor *tensors; /* heap: grows while parsing */
    size_t n_tensors, cap_tensors;
    struct sl_names names;
    struct st_pair *metadata; /* heap: grows while parsing */
    size_t n_metadata, cap_metadata;
    struct sl_names keys;
};

struct st_span {
    const char *s;
    size_t n;
};

struct parser {
    const char *s;
    size_t n, pos;
    uint64_t data_bytes; /* size of the section after the header */
    bool seen_metadata;
    struct sl_st *st;
    struct sl_error *err;
};

/* Element sizes of the format's types in bits; names not listed are of a later version. */
static const struct {
    const char *name;
    uint32_t bits;
} st_types[] = {
    {"F32", 32},        {"F16", 16},        {"BF16", 16}, {"F64", 64},    {"I8", 8},
    {"U8", 8},          {"I16", 16},        {"U16", 16},  {"I32", 32},    {"U32", 32},
    {"I64", 64},        {"U64", 64},        {"BOOL", 8},  {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8},     {"F8_E4M3FNUZ", 8}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6},
    {"F8_E5M2FNUZ", 8}, {"F6_E3M2", 6},
};

static int safetensors_no_memory(const struct parser *p)
{
    return sl_fail(p->err, SL_ENOMEM, "%s: out of memory for the header", p->st->what);
}

static int bad_syntax(const struct parser *p, const char *want)
{
    SL_ASSERT(p->pos <= p->n);
    return sl_fail(p->err, SL_EFORMAT, "%s: header byte %zu: expected %s", p->st->what, p->pos,
                   want);
}

static void safetensors_skip_space(struct parser *p)
{
    SL_DCHECK(p->pos <= p->n);
    while (p->pos < p->n && (p->s[p->pos] == ' ' || p->s[p->pos] == '\n' || p->s[p->pos] == '\t' ||
                             p->s[p->pos] == '\r'))
        p->pos++;
}

/* Skips space, then consumes c if it is next. */
static bool safetensors_accept(struct parser *p, char c)
{
    safetensors_skip_space(p);
    if (p->pos >= p->n || p->s[p->pos] != c)
        return false;
    p->pos++;
    return true;
}

/* One \escape at s[*pos] into out (at most 4 bytes); returns its length, 0 when malformed. */
static size_t safetensors_unescape(const char *s, size_t n, size_t *pos, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    SL_ASSERT(*pos < n && s[*pos] == '\\');
    SL_DCHECK(sizeof from == sizeof to);
    if (n - *pos < 2) /* unreachable: true, a string ends behind the escape */
        return 0;
    char c = s[*pos + 1];
    const char *simple = c != '\0' ? strchr(from, c) : NULL;
    if (simple != NULL) {
        *pos += 2;
        *out = to[simple - from];
        return 1;
    }
    uint64_t unit, low;
    if (c != 'u' || n - *pos < 6 || !sl_parse_hex_u64(s + *pos + 2, 4, &unit))
        return 0;
    *pos += 6;
    if (unit >= 0xD800 && unit < 0xDC00) { /* the first half of a pair */
        if (n - *pos < 6 || s[*pos] != '\\' || s[*pos + 1] != 'u' ||
            !sl_parse_hex_u64(s + *pos + 2, 4, &low) || low < 0xDC00 || low > 0xDFFF)
            return 0;
        *pos += 6;
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    SL_ASSERT(unit <= 0x10FFFF);
    return sl_utf8_encode((uint32_t)unit, out);
}

/* A string with escapes, decoded into the arena. It never grows: \uXXXX gives at most 3 bytes. */
static int decode_string(struct parser *p, size_t start, size_t end, struct st_span *out)
{
    SL_ASSERT(start <= end && end < p->n);
    char *text = sl_arena_alloc(&p->st->arena, end - start + 4);
    size_t n = 0, pos = start;
    if (text == NULL)
        return safetensors_no_memory(p);
    while (pos < end) {
        if (p->s[pos] != '\\') {
            text[n++] = p->s[pos++];
            continue;
        }
        size_t len = safetensors_unescape(p->s, end, &pos, text + n);
        if (len == 0) {
            p->pos = pos;
            return bad_syntax(p, "a valid escape");
        }
        n += len;
        SL_ASSERT(n <= pos - start); /* it has not grown */
    }
    SL_ASSERT(pos == end);
    *out = (struct st_span){text, n};
    return 0;
}

/* Borrowed from the header when there is no escape in it. */
static int safetensors_read_string(struct parser *p, struct st_span *out)
{
    if (!safetensors_accept(p, '"'))
        return bad_syntax(p, "a string");
    size_t start = p->pos;
    bool escaped = false;
    for (; p->pos < p->n && p->s[p->pos] != '"'; p->pos++) {
        if ((unsigned char)p->s[p->pos] < 0x20)
            return bad_syntax(p, "no control character in a string");
        if (p->s[p->pos] == '\\') {
            escaped = true;
            p->pos++;
        }
    }
    if (p->pos >= p->n) {
        p->pos = p->n;
        return bad_syntax(p, "the end of a string");
    }
    size_t end = p->pos++;
    SL_ASSERT(end >= start && end < p->n);
    if (escaped)
        return decode_string(p, start, end, out);
    *out = (struct st_span){p->s + start, end - start};
    return 0;
}

static int safetensors_read_number(struct parser *p, uint64_t *out)
{
    safetensors_skip_space(p);
    size_t start = p->pos;
    while (p->pos < p->n && p->s[p->pos] >= '0' && p->s[p->pos] <= '9')
        p->pos++;
    size_t n = p->pos - start;
    SL_ASSERT(p->pos <= p->n && start <= p->pos);
    if (!sl_parse_u64(p->s + start, n, out) || (n > 1 && p->s[start] == '0')) {
        p->pos = start;
        return bad_syntax(p, "a non-negative 64-bit integer");
    }
    return 0;
}

static bool span_is(struct st_span a, const char *text)
{
    return a.n == strlen(text) && memcmp(a.s, text, a.n) == 0;
}

/* [a, b, ...] into out; *n of them. */
static int safetensors_read_numbers(struct parser *p, uint64_t *out, int max, int *n,
                                    const char *field, const char *tensor)
{
    *n = 0;
    SL_ASSERT(max > 0 && max <= SL_ST_MAX_DIMS);
    if (!safetensors_accept(p, '['))
        return bad_syntax(p, "'['");
    if (safetensors_accept(p, ']'))
        return 0;
    do {
        if (*n == max)
            return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT ": %s has more than %d items",
                           p->st->what, tensor, field, max);
        int rc = safetensors_read_number(p, &out[(*n)++]);
        if (rc != 0)
            return rc;
    } while (safetensors_accept(p, ','));
    SL_ASSERT(*n > 0 && *n <= max);
    return safetensors_accept(p, ']') ? 0 : bad_syntax(p, "',' or ']'");
}

static int read_dtype(struct parser *p, struct sl_st_tensor *t, uint32_t *bits)
{
    SL_ASSERT(t->dtype == NULL && t->name != NULL);
    struct st_span name;
    int rc = safetensors_read_string(p, &name);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < SL_COUNT(st_types); i++) {
        if (span_is(name, st_types[i].name)) {
            t->dtype = st_types[i].name;
            *bits = st_types[i].bits;
            return 0;
        }
    }
    *bits = 0;
    if (!sl_names_valid(name.s, name.n) || name.n > 32)
        return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT ": malformed dtype", p->st->what,
                       t->name);
    t->dtype = sl_arena_strndup(&p->st->arena, name.s, name.n);
    return t->dtype != NULL ? 0 : safetensors_no_memory(p);
}

static int check_size(const struct parser *p, const struct sl_st_tensor *t, uint32_t bits)
{
    uint64_t n = 1;
    SL_ASSERT(t->n_dims >= 0 && t->n_dims <= SL_ST_MAX_DIMS);
    SL_ASSERT(t->dtype != NULL && t->n_bytes <= p->data_bytes);
    for (int i = 0; i < t->n_dims; i++) {
        if (!sl_mul_u64(n, (uint64_t)t->dims[i], &n) || n > INT64_MAX)
            return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT ": shape overflows",
                           p->st->what, t->name);
    }
    if (bits == 0)
        return 0;
    if (!sl_mul_u64(n, bits, &n) || n % 8 != 0)
        return sl_fail(p->err, SL_EFORMAT,
                       "%s: tensor " NAME_FMT ": shape is not a whole number of bytes of %s",
                       p->st->what, t->name, t->dtype);
    if (n / 8 != t->n_bytes)
        return sl_fail(p->err, SL_EFORMAT,
                       "%s: tensor " NAME_FMT ": shape and dtype need %" PRIu64
                       " bytes, data_offsets span %" PRIu64,
                       p->st->what, t->name, n / 8, t->n_bytes);
    return 0;
}

enum { FIELD_DTYPE = 1, FIELD_SHAPE = 2, FIELD_OFFSETS = 4, FIELD_ALL = 7 };

static int read_field(struct parser *p, struct sl_st_tensor *t, uint32_t *bits, unsigned *seen)
{
    SL_ASSERT((*seen & ~(unsigned)FIELD_ALL) == 0);
    struct st_span key;
    uint64_t numbers[SL_ST_MAX_DIMS];
    int n, rc = safetensors_read_string(p, &key);
    if (rc != 0)
        return rc;
    unsigned field = span_is(key, "dtype")          ? FIELD_DTYPE
                     : span_is(key, "shape")        ? FIELD_SHAPE
                     : span_is(key, "data_offsets") ? FIELD_OFFSETS
                                                    : 0;
    if (field == 0 || (*seen & field) != 0)
        return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT ": field %.*s %s", p->st->what,
                       t->name, (int)SL_MIN(key.n, 40u), key.s,
                       field == 0 ? "is not known" : "appears twice");
    *seen |= field;
    if (!safetensors_accept(p, ':'))
        return bad_syntax(p, "':'");
    if (field == FIELD_DTYPE)
        return read_dtype(p, t, bits);
    if (field == FIELD_SHAPE) {
        rc = safetensors_read_numbers(p, numbers, SL_ST_MAX_DIMS, &t->n_dims, "shape", t->name);
        for (int i = 0; rc == 0 && i < t->n_dims; i++) {
            if (numbers[i] > INT64_MAX)
                return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT ": shape overflows",
                               p->st->what, t->name);
            t->dims[i] = (int64_t)numbers[i];
        }
        return rc;
    }
    rc = safetensors_read_numbers(p, numbers, 2, &n, "data_offsets", t->name);
    if (rc != 0)
        return rc;
    if (n != 2 || numbers[0] > numbers[1] || numbers[1] > p->data_bytes)
        return sl_fail(p->err, SL_EFORMAT,
                       "%s: tensor " NAME_FMT ": data_offsets are not a range inside the file",
                       p->st->what, t->name);
    t->offset = numbers[0];
    t->n_bytes = numbers[1] - numbers[0];
    SL_ASSERT(t->offset + t->n_bytes <= p->data_bytes);
    return 0;
}

/* Makes room for one more entry of a growing table. */
static void *grown(void *table, size_t n, size_t *cap, size_t size)
{
    SL_ASSERT(n <= *cap);
    if (n < *cap)
        return table;
    size_t want = SL_MAX(*cap * 2, 16u);
    SL_ASSERT(want <= 2u * SL_MAX_TENSORS);
    void *p = sl_realloc(table, want * size); /* bounded: want is at most twice a limit */
    if (p != NULL)
        *cap = want;
    return p;
}

static int safetensors_read_tensor(struct parser *p, struct st_span name)
{
    struct sl_st *st = p->st;
    if (name.n > SL_MAX_TENSOR_NAME)
        return sl_fail(p->err, SL_ELIMIT, "%s: name of tensor %zu has %zu bytes, the limit is %d",
                       st->what, st->n_tensors, name.n, SL_MAX_TENSOR_NAME);
    if (!sl_names_valid(name.s, name.n))
        return sl_fail(p->err, SL_EFORMAT, "%s: name of tensor %zu is empty or not printable",
                       st->what, st->n_tensors);
    if (st->n_tensors >= SL_MAX_TENSORS)
        return sl_fail(p->err, SL_ELIMIT, "%s: more than %d tensors", st->what, SL_MAX_TENSORS);
    void *table = grown(st->tensors, st->n_tensors, &st->cap_tensors, sizeof *st->tensors);
    if (table == NULL)
        return safetensors_no_memory(p);
    st->tensors = table;
    SL_ASSERT(st->n_tensors < st->cap_tensors);
    struct sl_st_tensor *t = &st->tensors[st->n_tensors];
    *t = (struct sl_st_tensor){.name = sl_arena_strndup(&st->arena, name.s, name.n)};
    if (t->name == NULL)
        return safetensors_no_memory(p);
    uint32_t bits = 0;
    unsigned seen = 0;
    if (!safetensors_accept(p, '{'))
        return bad_syntax(p, "'{'");
    do {
        int rc = read_field(p, t, &bits, &seen);
        if (rc != 0)
            return rc;
    } while (safetensors_accept(p, ','));
    if (!safetensors_accept(p, '}'))
        return bad_syntax(p, "',' or '}'");
    if (seen != FIELD_ALL)
        return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT ": field %s is missing", st->what,
                       t->name,
                       (seen & FIELD_DTYPE) == 0   ? "dtype"
                       : (seen & FIELD_SHAPE) == 0 ? "shape"
                                                   : "data_offsets");
    st->n_tensors++;
    return check_size(p, t, bits);
}

static int read_pair(struct parser *p)
{
    struct sl_st *st = p->st;
    struct st_span key, value;
    int rc = safetensors_read_string(p, &key);
    if (rc == 0 && !safetensors_accept(p, ':'))
        rc = bad_syntax(p, "':'");
    if (rc == 0)
        rc = safetensors_read_string(p, &value);
    if (rc != 0)
        return rc;
    if (memchr(key.s, '\0', key.n) != NULL || memchr(value.s, '\0', value.n) != NULL)
        return sl_fail(p->err, SL_EFORMAT, "%s: NUL character in __metadata__", st->what);
    if (st->n_metadata >= SL_MAX_GGUF_KV)
        return sl_fail(p->err, SL_ELIMIT, "%s: more than %d entries in __metadata__", st->what,
                       SL_MAX_GGUF_KV);
    void *table = grown(st->metadata, st->n_metadata, &st->cap_metadata, sizeof *st->metadata);
    if (table == NULL)
        return safetensors_no_memory(p);
    st->metadata = table;
    SL_ASSERT(st->n_metadata < st->cap_metadata);
    struct st_pair *pair = &st->metadata[st->n_metadata];
    pair->key = sl_arena_strndup(&st->arena, key.s, key.n);
    pair->value = sl_arena_strndup(&st->arena, value.s, value.n);
    if (pair->key == NULL || pair->value == NULL)
        return safetensors_no_memory(p);
    st->n_metadata++;
    return 0;
}

static int read_metadata(struct parser *p)
{
    if (p->seen_metadata)
        return sl_fail(p->err, SL_EFORMAT, "%s: __metadata__ appears twice", p->st->what);
    p->seen_metadata = true;
    safetensors_skip_space(p);
    if (p->n - p->pos >= 4 && memcmp(p->s + p->pos, "null", 4) == 0) { /* some writers' "none" */
        p->pos += 4;
        return 0;
    }
    if (!safetensors_accept(p, '{'))
        return bad_syntax(p, "'{' or null");
    if (safetensors_accept(p, '}'))
        return 0;
    do {
        int rc = read_pair(p);
        if (rc != 0)
            return rc;
    } while (safetensors_accept(p, ','));
    return safetensors_accept(p, '}') ? 0 : bad_syntax(p, "',' or '}'");
}

static int read_header(struct parser *p)
{
    struct sl_error *err = p->err;
    if (p->n == 0 || p->s[0] != '{')
        return sl_fail(err, SL_EFORMAT, "%s: the header does not start with '{'", p->st->what);
    for (size_t i = 0; i < p->n;) {
        size_t len = (unsigned char)p->s[i] < 0x80 ? 1 : sl_utf8_valid_len(p->s + i, p->n - i);
        if (len == 0)
            return sl_fail(err, SL_EFORMAT, "%s: header byte %zu: invalid UTF-8", p->st->what, i);
        i += len;
        SL_DCHECK(i <= p->n);
    }
    p->pos = 1;
    if (!safetensors_accept(p, '}')) {
        do {
            struct st_span name;
            int rc = safetensors_read_string(p, &name);
            if (rc == 0 && !safetensors_accept(p, ':'))
                rc = bad_syntax(p, "':'");
            if (rc == 0)
                rc = span_is(name, "__metadata__") ? read_metadata(p)
                                                   : safetensors_read_tensor(p, name);
            if (rc != 0)
                return rc;
        } while (safetensors_accept(p, ','));
        if (!safetensors_accept(p, '}'))
            return bad_syntax(p, "',' or '}'");
    }
    safetensors_skip_space(p);
    SL_ASSERT(p->pos <= p->n);
    return p->pos == p->n ? 0 : bad_syntax(p, "nothing after the object");
}

static int index_names(struct parser *p)
{
    struct sl_st *st = p->st;
    SL_ASSERT(st->n_tensors <= SL_MAX_TENSORS && st->n_metadata <= SL_MAX_GGUF_KV);
    if (!sl_names_init(&st->names, &st->arena, st->n_tensors) ||
        !sl_names_init(&st->keys, &st->arena, st->n_metadata))
        return safetensors_no_memory(p);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const char *name = st->tensors[i].name;
        if (!sl_names_add(&st->names, name, strlen(name), (uint32_t)i))
            return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT " appears twice", st->what,
                           name);
    }
    for (size_t i = 0; i < st->n_metadata; i++) {
        const char *key = st->metadata[i].key;
        if (!sl_names_add(&st->keys, key, strlen(key), (uint32_t)i))
            return sl_fail(p->err, SL_EFORMAT, "%s: __metadata__ key " NAME_FMT " appears twice",
                           st->what, key);
    }
    return 0;
}

static int by_range(const void *pa, const void *pb)
{
    const struct sl_st_tensor *a = *(const struct sl_st_tensor *const *)pa;
    const struct sl_st_tensor *b = *(const struct sl_st_tensor *const *)pb;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->n_bytes != b->n_bytes ? (a->n_bytes < b->n_bytes ? -1 : 1) : 0;
}

/* Ranges must tile the data section; then offsets are made relative to the file. */
static int check_ranges(struct parser *p, uint64_t data_start)
{
    struct sl_st *st = p->st;
    struct sl_st_tensor **sorted = sl_arena_array(&st->arena, st->n_tensors, sizeof *sorted);
    if (sorted == NULL)
        return safetensors_no_memory(p);
    for (size_t i = 0; i < st->n_tensors; i++)
        sorted[i] = &st->tensors[i];
    qsort(sorted, st->n_tensors, sizeof *sorted, by_range);
    uint64_t end = 0;
    for (size_t i = 0; i < st->n_tensors; i++) {
        struct sl_st_tensor *t = sorted[i];
        if (t->offset != end)
            return sl_fail(p->err, SL_EFORMAT, "%s: tensor " NAME_FMT ": data %s", st->what,
                           t->name,
                           t->offset < end ? "overlap with another tensor" : "follow a gap");
        end += t->n_bytes; /* at most data_bytes, checked when the tensor was read */
        SL_ASSERT(end <= p->data_bytes);
        t->offset += data_start;
    }
    if (end != p->data_bytes)
        return sl_fail(p->err, SL_EFORMAT,
                       "%s: tensors take %" PRIu64 " bytes, the file has %" PRIu64, st->what, end,
                       p->data_bytes);
    return 0;
}

static int safetensors_parse(struct sl_st *st, const uint8_t *data, size_t n_bytes,
                             struct sl_error *err)
{
    uint64_t n_header;
    if (n_bytes < sizeof n_header)
        return sl_fail(err, SL_EFORMAT, "%s: too short for a safetensors file", st->what);
    memcpy(&n_header, data, sizeof n_header);
    uint64_t left = n_bytes - sizeof n_header;
    if (n_header > SL_MAX_ST_HEADER)
        return sl_fail(err, SL_ELIMIT, "%s: header of %" PRIu64 " bytes, the limit is %u", st->what,
                       n_header, SL_MAX_ST_HEADER);
    if (n_header > left)
        return sl_fail(err, SL_EFORMAT, "%s: header of %" PRIu64 " bytes, the file has %" PRIu64,
                       st->what, n_header, left);
    st->arena.max_bytes = (size_t)n_header * MEMORY_FACTOR + MEMORY_BASE;
    struct parser p = {
        .s = (const char *)data + sizeof n_header,
        .n = (size_t)n_header,
        .data_bytes = left - n_header,
        .st = st,
        .err = err,
    };
    SL_ASSERT(sizeof n_header + p.n + p.data_bytes == n_bytes);
    int rc = read_header(&p);
    SL_ASSERT(p.pos <= p.n);
    if (rc == 0)
        rc = index_names(&p);
    return rc == 0 ? check_ranges(&p, sizeof n_header + n_header) : rc;
}

int sl_st_open(const uint8_t *data, size_t n_bytes, const char *what, struct sl_st **out,
               struct sl_error *err)
{
    what = sl_names_path_tail(what);
    struct sl_st *st = sl_calloc(1, sizeof *st);
    if (st == NULL)
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", what);
    st->what = sl_arena_strndup(&st->arena, what, strlen(what));
    int rc = st->what != NULL ? safetensors_parse(st, data, n_bytes, err)
                              : sl_fail(err, SL_ENOMEM, "%s: out of memory", what);
    if (rc != 0) {
        sl_st_close(st);
        return sl_names_scrub(err, rc);
    }
    *out = st;
    return 0;
}

void sl_st_close(struct sl_st *st)
{
    if (st == NULL)
        return;
    sl_arena_deinit(&st->arena);
    sl_free(st->tensors);
    sl_free(st->metadata);
    sl_free(st);
}

size_t sl_st_n_tensors(const struct sl_st *st)
{
    return st->n_tensors;
}

const struct sl_st_tensor *sl_st_tensor_at(const struct sl_st *st, size_t idx)
{
    SL_ASSERT(idx < st->n_tensors);
    return &st->tensors[idx];
}

const struct sl_st_tensor *sl_st_find(const struct sl_st *st, const char *name)
{
    int64_t idx = sl_names_find(&st->names, name, strlen(name));
    SL_ASSERT(idx < (int64_t)st->n_tensors);
    return idx >= 0 ? &st->tensors[idx] : NULL;
}

const char *sl_st_metadata(const struct sl_st *st, const char *key)
{
    int64_t idx = sl_names_find(&st->keys, key, strlen(key));
    SL_ASSERT(idx < (int64_t)st->n_metadata);
    return idx >= 0 ? st->metadata[idx].value : NULL;
}
