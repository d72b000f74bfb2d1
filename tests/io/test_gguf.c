/* SPDX-License-Identifier: MIT
 * Malformed GGUF files: every count and size field with every border value, every truncation, every
 * type confusion, and a list of single faults. Each case states the code it must give and what the
 * message must name.
 */
#include "craft.h"
#include "fault.h"

#include "base/limits.h"
#include "io/gguf_types.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

#define MAX UINT64_MAX

static int n_cases;

/* Opens a copy of exactly n bytes; checks the outcome and that memory stays in proportion. */
static void expect(const void *data, size_t n, int code, const char *named, const char *label)
{
    struct sl_error err = {0};
    struct sl_gguf *g = NULL;
    uint8_t *copy = craft_exact(data, n);
    fault_arm(-1, 0);
    int rc = sl_gguf_open(copy, n, "case.gguf", &g, &err);
    n_cases++;
    if (rc != code)
        fail_msg("%s: code %d (%s), expected %d", label, rc, err.msg, code);
    if (fault.bytes > 16 * (uint64_t)n + (128 << 10))
        fail_msg("%s: %" PRIu64 " bytes allocated for a file of %zu", label, fault.bytes, n);
    if (rc != 0) {
        if (strncmp(err.msg, "case.gguf: ", 11) != 0 || strstr(err.msg, named) == NULL)
            fail_msg("%s: message \"%s\" does not name \"%s\"", label, err.msg, named);
        assert_int_equal(err.code, rc);
    } else {
        sl_gguf_close(g);
    }
    assert_true(fault_clean());
    sl_sys = &sl_sys_real;
    sl_free(copy);
}

static void expect_craft(struct craft *c, int code, const char *named, const char *label)
{
    assert_true(sl_buf_ok(&c->b));
    expect(c->b.data, c->b.n_bytes, code, named, label);
    craft_deinit(c);
}

/* The valid file that cases start from: one value of each kind and three tensors. */
static void craft_valid(struct craft *c)
{
    *c = (struct craft){0};
    craft_head(c, 3, 3, 6);
    craft_note(c, "key:length", 8);
    craft_str(c, "a.str");
    craft_note(c, "key:type", 4);
    craft_uint(c, SL_GGUF_STRING, 4);
    craft_note(c, "str:length", 8);
    craft_str(c, "hello");
    craft_key(c, "a.arr", SL_GGUF_ARRAY);
    craft_note(c, "arr:type", 4);
    craft_uint(c, SL_GGUF_I32, 4);
    craft_note(c, "arr:n", 8);
    craft_uint(c, 3, 8);
    for (uint64_t i = 0; i < 3; i++)
        craft_uint(c, i, 4);
    craft_key(c, "a.strs", SL_GGUF_ARRAY);
    craft_uint(c, SL_GGUF_STRING, 4);
    craft_note(c, "strs:n", 8);
    craft_uint(c, 2, 8);
    craft_str(c, "one");
    craft_note(c, "strs:length", 8);
    craft_str(c, "two");
    craft_kv(c, "a.f", SL_GGUF_F32, 0x3F800000, 4);
    craft_key(c, "a.bool", SL_GGUF_BOOL);
    craft_note(c, "bool", 1);
    craft_uint(c, 1, 1);
    craft_key(c, "general.alignment", SL_GGUF_U32);
    craft_note(c, "alignment", 4);
    craft_uint(c, 32, 4);
    craft_tensor(c, "t.f32", 2, (uint64_t[]){4, 2}, 0, 0);
    craft_note(c, "name:length", 8);
    craft_str(c, "t.q8");
    craft_note(c, "n_dims", 4);
    craft_uint(c, 2, 4);
    craft_note(c, "ne0", 8);
    craft_uint(c, 32, 8);
    craft_note(c, "ne1", 8);
    craft_uint(c, 2, 8);
    craft_note(c, "ggml_type", 4);
    craft_uint(c, 8, 4);
    craft_note(c, "offset", 8);
    craft_uint(c, 32, 8);
    craft_tensor(c, "t.f16", 1, (uint64_t[]){3}, 1, 128);
    craft_data(c, 32, 128 + 6);
}

/* What a field of the valid file set to v must lead to. named "": any message will do, because
 * the field only moves where the next one is read. */
struct verdict {
    int code;
    const char *named;
};

static const struct verdict accepted = {0, ""}, malformed = {SL_EFORMAT, ""};

static struct verdict names_it(const char *what)
{
    return (struct verdict){SL_EFORMAT, what};
}

static struct verdict judge_header(const char *f, uint64_t v)
{
    if (strcmp(f, "version") == 0) {
        if (v == 2 || v == 3)
            return accepted;
        bool big_endian = v != 0 && (v & 0xFFFF) == 0;
        return (struct verdict){SL_EUNSUPPORTED, big_endian ? "big-endian" : "version"};
    }
    if (strcmp(f, "n_tensors") == 0) {
        if (v > SL_MAX_TENSORS)
            return (struct verdict){SL_ELIMIT, "tensors"};
        /* fewer tensors: the rest of the table becomes data, which is allowed to have gaps */
        return v <= 3 ? accepted : malformed;
    }
    return v == 6 ? accepted : malformed; /* n_kv; with less the next key is read as a tensor */
}

static struct verdict judge_value(const char *f, uint64_t v)
{
    static const struct {
        const char *field;
        uint64_t good;
        const char *named; /* when the value reaches past the end of the file */
    } lengths[] = {
        {"key:length", 5, "key 0"},   {"str:length", 5, "a.str"}, {"arr:n", 3, "a.arr"},
        {"strs:length", 3, "a.strs"}, {"strs:n", 2, "a.strs"},
    };
    for (size_t i = 0; i < SL_COUNT(lengths); i++) {
        if (strcmp(f, lengths[i].field) == 0)
            return v == lengths[i].good ? accepted
                   : v > 2000           ? names_it(lengths[i].named)
                                        : malformed;
    }
    if (strcmp(f, "key:type") == 0)
        return v == SL_GGUF_STRING ? accepted : v > SL_GGUF_F64 ? names_it("a.str") : malformed;
    if (strcmp(f, "bool") == 0)
        return v <= 1 ? accepted : names_it("a.bool");
    if (strcmp(f, "alignment") == 0) {
        if (!sl_is_pow2(v))
            return names_it("general.alignment");
        return v <= 32 ? accepted : v > 2048 ? names_it("tensor data") : malformed;
    }
    if (v == SL_GGUF_ARRAY) /* arr:type */
        return (struct verdict){SL_EUNSUPPORTED, "array of arrays"};
    if (v == SL_GGUF_U32 || v == SL_GGUF_I32 || v == SL_GGUF_F32)
        return accepted;
    return v > SL_GGUF_F64 ? names_it("a.arr") : malformed;
}

static struct verdict judge_tensor(const char *f, uint64_t v)
{
    if (strcmp(f, "name:length") == 0)
        return v == 4 ? accepted : v == 0 || v > 2000 ? names_it("tensor 1") : malformed;
    if (strcmp(f, "n_dims") == 0)
        return v == 2 ? accepted : v == 0 || v > 4 ? names_it("t.q8") : malformed;
    if (strcmp(f, "ne0") == 0 || strcmp(f, "offset") == 0)
        return v == 32 ? accepted : names_it("t.q8");
    if (strcmp(f, "ne1") == 0)
        return v == 1 || v == 2 ? accepted : names_it("t.q8");
    /* ggml_type: [2, 32] elements have 96 bytes of room; unknown types have no size */
    const struct sl_gguf_type_info *info = sl_gguf_type_info((uint32_t)v);
    bool fits = info == NULL ||
                (32 % info->block_elems == 0 && 64 / info->block_elems * info->block_bytes <= 96);
    return fits ? accepted : names_it("t.q8");
}

static struct verdict judge(const char *f, uint64_t v)
{
    static const char *const header[] = {"version", "n_tensors", "n_kv"};
    static const char *const tensor[] = {"name:length", "n_dims", "ne0",
                                         "ne1",         "offset", "ggml_type"};
    for (size_t i = 0; i < SL_COUNT(header); i++) {
        if (strcmp(f, header[i]) == 0)
            return judge_header(f, v);
    }
    for (size_t i = 0; i < SL_COUNT(tensor); i++) {
        if (strcmp(f, tensor[i]) == 0)
            return judge_tensor(f, v);
    }
    return judge_value(f, v);
}

static void every_field_with_every_border(void **state)
{
    (void)state;
    static const uint64_t values[] = {
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        9,
        12,
        13,
        31,
        33,
        64,
        255,
        256,
        257,
        SL_MAX_TENSORS,
        SL_MAX_TENSORS + 1,
        65535,
        65537,
        SL_MAX_GGUF_STRING,
        SL_MAX_GGUF_STRING + 1,
        (UINT64_C(1) << 31) - 1,
        UINT64_C(1) << 31,
        (UINT64_C(1) << 31) + 1,
        (UINT64_C(1) << 32) - 1,
        UINT64_C(1) << 32,
        (UINT64_C(1) << 32) + 1,
        (UINT64_C(1) << 59), /* times 32 it wraps to 0 */
        (UINT64_C(1) << 63) - 1,
        UINT64_C(1) << 63,
        (UINT64_C(1) << 63) + 1,
        MAX - 7,
        MAX,
    };
    struct craft c;
    craft_valid(&c);
    expect(c.b.data, c.b.n_bytes, 0, "", "the valid file");
    for (size_t f = 0; f < c.n_fields; f++) {
        for (size_t i = 0; i < SL_COUNT(values); i++) {
            const struct craft_field *field = &c.fields[f];
            uint64_t mask = field->width < 8 ? (UINT64_C(1) << 8 * field->width) - 1 : MAX;
            uint64_t v = values[i] & mask;
            uint8_t saved[8];
            char label[96];
            snprintf(label, sizeof label, "%s = %" PRIu64, field->name, v);
            memcpy(saved, c.b.data + field->at, field->width);
            memcpy(c.b.data + field->at, &v, field->width);
            struct verdict want = judge(field->name, v);
            expect(c.b.data, c.b.n_bytes, want.code, want.named, label);
            memcpy(c.b.data + field->at, saved, field->width);
        }
    }
    craft_deinit(&c);
}

static void truncated_at_every_byte(void **state)
{
    (void)state;
    struct craft c;
    craft_valid(&c);
    for (size_t n = 0; n < c.b.n_bytes; n++) {
        char label[40];
        snprintf(label, sizeof label, "truncated to %zu bytes", n);
        expect(c.b.data, n, SL_EFORMAT, "", label);
    }
    craft_deinit(&c);
}

static void put_value(struct craft *c, enum sl_gguf_type type)
{
    static const uint8_t width[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == SL_GGUF_STRING)
        craft_str(c, "1");
    else
        craft_uint(c,
                   type == SL_GGUF_F32   ? 0x3F800000u
                   : type == SL_GGUF_F64 ? 0x3FF0u << 4
                                         : 1,
                   width[type]);
}

/* An array of one type asked for as another: an error that names the key, never bytes. */
static void array_type_confusion(void **state)
{
    (void)state;
    for (int have = 0; have <= SL_GGUF_F64; have++) {
        if (have == SL_GGUF_ARRAY)
            continue;
        struct craft c = {0};
        craft_head(&c, 3, 0, 1);
        craft_array(&c, "the.key", (enum sl_gguf_type)have, 2);
        put_value(&c, (enum sl_gguf_type)have);
        put_value(&c, (enum sl_gguf_type)have);
        uint8_t *copy = craft_exact(c.b.data, c.b.n_bytes);
        struct sl_gguf *g;
        assert_int_equal(sl_gguf_open(copy, c.b.n_bytes, "x", &g, NULL), 0);
        for (int want = 0; want <= SL_GGUF_F64; want++) {
            struct sl_error err = {0};
            struct sl_gguf_array a;
            int rc = sl_gguf_array(g, "the.key", (enum sl_gguf_type)want, &a, &err);
            bool integer = have <= SL_GGUF_I32 || have == SL_GGUF_U64 || have == SL_GGUF_I64;
            bool fits = want == have || (want == SL_GGUF_ARRAY && integer);
            assert_int_equal(rc, fits ? 1 : SL_EFORMAT);
            if (!fits)
                assert_non_null(strstr(err.msg, "the.key"));
            n_cases++;
            if (fits) {
                int64_t v = 0;
                const char *s;
                size_t n_str;
                uint64_t pos = 0;
                assert_int_equal(a.n, 2);
                assert_int_equal(sl_gguf_array_i64(&a, 1, &v), integer);
                assert_true(!integer || v == 1);
                assert_false(sl_gguf_array_i64(&a, 2, &v));
                assert_false(sl_gguf_array_i64(&a, MAX, &v));
                int n_strings = 0;
                while (sl_gguf_array_next_str(&a, &pos, &s, &n_str)) {
                    assert_true(n_str == 1 && s[0] == '1');
                    n_strings++;
                }
                assert_int_equal(n_strings, have == SL_GGUF_STRING ? 2 : 0);
            }
        }
        sl_gguf_close(g);
        sl_free(copy);
        craft_deinit(&c);
    }
}

static void absent_and_not_an_array(const struct sl_gguf *g, bool array)
{
    struct sl_error err = {0};
    uint64_t u;
    int64_t i;
    double d;
    bool b;
    const char *s;
    size_t n;
    struct sl_gguf_array a;
    assert_int_equal(sl_gguf_u64(g, "no.key", &u, &err), 0);
    assert_int_equal(sl_gguf_i64(g, "no.key", &i, &err), 0);
    assert_int_equal(sl_gguf_f64(g, "no.key", &d, &err), 0);
    assert_int_equal(sl_gguf_bool(g, "no.key", &b, &err), 0);
    assert_int_equal(sl_gguf_str(g, "no.key", &s, &n, &err), 0);
    assert_int_equal(sl_gguf_array(g, "no.key", SL_GGUF_U32, &a, &err), 0);
    assert_int_equal(err.code, 0); /* absence is no error */
    assert_int_equal(sl_gguf_array(g, "the.key", SL_GGUF_U32, &a, &err), array ? 1 : SL_EFORMAT);
    if (array) {
        assert_int_equal(sl_gguf_str(g, "the.key", &s, &n, &err), SL_EFORMAT);
        assert_non_null(strstr(err.msg, "has type array of u32, not string"));
    } else {
        assert_non_null(strstr(err.msg, ", not an array"));
        assert_null(strstr(err.msg, "array of"));
    }
    n_cases++;
}

static void scalar_type_confusion(void **state)
{
    (void)state;
    for (int have = 0; have <= SL_GGUF_F64; have++) {
        struct craft c = {0};
        craft_head(&c, 2, 0, 1);
        if (have == SL_GGUF_ARRAY) {
            craft_array(&c, "the.key", SL_GGUF_U32, 1);
            put_value(&c, SL_GGUF_U32);
        } else {
            craft_key(&c, "the.key", (enum sl_gguf_type)have);
            put_value(&c, (enum sl_gguf_type)have);
        }
        uint8_t *copy = craft_exact(c.b.data, c.b.n_bytes);
        struct sl_gguf *g;
        assert_int_equal(sl_gguf_open(copy, c.b.n_bytes, "x", &g, NULL), 0);
        bool integer = have <= SL_GGUF_I32 || have == SL_GGUF_U64 || have == SL_GGUF_I64;
        bool real = have == SL_GGUF_F32 || have == SL_GGUF_F64;
        const bool fits[] = {integer, integer, real, have == SL_GGUF_BOOL, have == SL_GGUF_STRING};
        for (int getter = 0; getter < 5; getter++) {
            struct sl_error err = {0};
            uint64_t u;
            int64_t i;
            double d;
            bool b;
            const char *s;
            size_t n;
            int rc = getter == 0   ? sl_gguf_u64(g, "the.key", &u, &err)
                     : getter == 1 ? sl_gguf_i64(g, "the.key", &i, &err)
                     : getter == 2 ? sl_gguf_f64(g, "the.key", &d, &err)
                     : getter == 3 ? sl_gguf_bool(g, "the.key", &b, &err)
                                   : sl_gguf_str(g, "the.key", &s, &n, &err);
            assert_int_equal(rc, fits[getter] ? 1 : SL_EFORMAT);
            if (!fits[getter])
                assert_non_null(strstr(err.msg, "the.key"));
            n_cases++;
        }
        enum sl_gguf_type type;
        assert_int_equal(sl_gguf_type_of(g, "the.key", &type), 1);
        assert_int_equal(type, have);
        assert_int_equal(sl_gguf_type_of(g, "the.ke", &type), 0);
        assert_string_equal(sl_gguf_key_at(g, 0, &type), "the.key");
        absent_and_not_an_array(g, have == SL_GGUF_ARRAY);
        sl_gguf_close(g);
        sl_free(copy);
        craft_deinit(&c);
    }
}

static void integers_keep_their_range(void **state)
{
    (void)state;
    static const struct {
        enum sl_gguf_type type;
        size_t width;
        uint64_t bits;
        int64_t i64;
        uint64_t u64;
        int i64_rc, u64_rc;
    } rows[] = {
        {SL_GGUF_U8, 1, 255, 255, 255, 1, 1},
        {SL_GGUF_I8, 1, 255, -1, 0, 1, SL_EFORMAT},
        {SL_GGUF_I8, 1, 127, 127, 127, 1, 1},
        {SL_GGUF_U16, 2, 65535, 65535, 65535, 1, 1},
        {SL_GGUF_I16, 2, 32768, -32768, 0, 1, SL_EFORMAT},
        {SL_GGUF_U32, 4, UINT32_MAX, UINT32_MAX, UINT32_MAX, 1, 1},
        {SL_GGUF_I32, 4, 0x80000000u, INT32_MIN, 0, 1, SL_EFORMAT},
        {SL_GGUF_I64, 8, MAX, -1, 0, 1, SL_EFORMAT},
        {SL_GGUF_I64, 8, UINT64_C(1) << 63, INT64_MIN, 0, 1, SL_EFORMAT},
        {SL_GGUF_U64, 8, MAX, 0, MAX, SL_EFORMAT, 1},
        {SL_GGUF_U64, 8, UINT64_C(1) << 63, 0, UINT64_C(1) << 63, SL_EFORMAT, 1},
        {SL_GGUF_U64, 8, INT64_MAX, INT64_MAX, INT64_MAX, 1, 1},
    };
    for (size_t r = 0; r < SL_COUNT(rows); r++) {
        struct craft c = {0};
        craft_head(&c, 3, 0, 2);
        craft_kv(&c, "k", rows[r].type, rows[r].bits, rows[r].width);
        craft_array(&c, "a", rows[r].type, 1);
        craft_uint(&c, rows[r].bits, rows[r].width);
        struct sl_gguf *g;
        struct sl_error err;
        int64_t i = 0, e = 0;
        uint64_t u = 0;
        struct sl_gguf_array a;
        assert_int_equal(sl_gguf_open((uint8_t *)c.b.data, c.b.n_bytes, "x", &g, NULL), 0);
        assert_int_equal(sl_gguf_i64(g, "k", &i, &err), rows[r].i64_rc);
        assert_int_equal(sl_gguf_u64(g, "k", &u, &err), rows[r].u64_rc);
        assert_true(i == rows[r].i64 && u == rows[r].u64);
        assert_int_equal(sl_gguf_array(g, "a", rows[r].type, &a, &err), 1);
        assert_int_equal(sl_gguf_array_i64(&a, 0, &e), rows[r].i64_rc == 1);
        assert_true(e == rows[r].i64);
        assert_int_equal(sl_gguf_i64(g, "absent", &i, &err), 0);
        n_cases++;
        sl_gguf_close(g);
        craft_deinit(&c);
    }
}

static void bad_keys_and_values(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } names[] = {
        {"", 0},
        {"a\0b", 3},
        {"\0", 1},
        {"tab\there", 8},
        {"line\n", 5},
        {"\x7F", 1},
        {"\xFF", 1},
        {"\xC0\x80", 2},
        {"\xED\xA0\x80", 3},
        {"\xF4\x90\x80\x80", 4},
        {"ab\xE2\x82", 4},
        {"\x1B[2J", 4},
        {"a\xC2\x9B", 3},
    };
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct craft c = {0};
        craft_head(&c, 3, 0, 1);
        craft_bytes(&c, names[i].bytes, names[i].n);
        craft_uint(&c, SL_GGUF_U32, 4);
        craft_uint(&c, 0, 8); /* long enough for the shortest possible pair */
        expect_craft(&c, SL_EFORMAT, "key 0", "bad key");
        craft_head(&c, 3, 1, 0);
        craft_bytes(&c, names[i].bytes, names[i].n);
        craft_uint(&c, 1, 4);
        craft_uint(&c, 1, 8);
        craft_uint(&c, 0, 4);
        craft_uint(&c, 0, 8);
        craft_data(&c, 32, 64);
        expect_craft(&c, SL_EFORMAT, "tensor 0", "bad tensor name");
    }
    for (int v = 2; v < 256; v += 11) {
        struct craft c = {0};
        craft_head(&c, 3, 0, 1);
        craft_array(&c, "flags", SL_GGUF_BOOL, 3);
        craft_uint(&c, 1, 1);
        craft_uint(&c, 0, 1);
        craft_uint(&c, (uint64_t)v, 1);
        expect_craft(&c, SL_EFORMAT, "flags", "bool array");
    }
    struct craft c = {0};
    craft_head(&c, 3, 0, 2);
    craft_kv(&c, "same", SL_GGUF_U8, 1, 1);
    craft_kv(&c, "same", SL_GGUF_U16, 1, 2);
    expect_craft(&c, SL_EFORMAT, "same appears twice", "duplicate key");
    c = (struct craft){0};
    craft_head(&c, 3, 0, 1); /* vocabularies hold every byte: strings may, names may not */
    craft_array(&c, "tokens", SL_GGUF_STRING, 2);
    craft_bytes(&c, "\0\xFF", 2);
    craft_bytes(&c, "", 0);
    expect_craft(&c, 0, "", "NUL and invalid UTF-8 in string values");
    c = (struct craft){0};
    craft_head(&c, 3, 0, 1);
    craft_array(&c, "nested", SL_GGUF_ARRAY, 1);
    craft_uint(&c, SL_GGUF_U8, 4);
    craft_uint(&c, 0, 8);
    expect_craft(&c, SL_EUNSUPPORTED, "nested", "array of arrays");
}

static void lengths_at_their_limits(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        int code;
    } names[] = {{SL_MAX_TENSOR_NAME - 1, 0},
                 {SL_MAX_TENSOR_NAME, 0},
                 {SL_MAX_TENSOR_NAME + 1, SL_ELIMIT},
                 {65535, SL_ELIMIT}};
    char *text = sl_malloc(SL_MAX_GGUF_ARRAY + 1);
    memset(text, 'x', SL_MAX_GGUF_ARRAY + 1);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct craft c = {0};
        craft_head(&c, 3, 1, 0);
        craft_bytes(&c, text, names[i].n);
        craft_uint(&c, 1, 4);
        craft_uint(&c, 1, 8);
        craft_uint(&c, 0, 4);
        craft_uint(&c, 0, 8);
        craft_data(&c, 32, 4);
        expect_craft(&c, names[i].code, "tensor 0", "tensor name length");
    }
    for (size_t extra = 0; extra < 2; extra++) {
        struct craft c = {0};
        craft_head(&c, 3, 0, 1);
        craft_bytes(&c, text, 65535 + extra);
        craft_uint(&c, SL_GGUF_U8, 4);
        craft_uint(&c, 1, 1);
        expect_craft(&c, extra ? SL_ELIMIT : 0, "key 0", "key length");
        c = (struct craft){0};
        craft_head(&c, 3, 0, 1);
        craft_key(&c, "long", SL_GGUF_STRING);
        craft_bytes(&c, text, SL_MAX_GGUF_STRING + extra);
        expect_craft(&c, extra ? SL_ELIMIT : 0, "long", "string length");
        c = (struct craft){0};
        craft_head(&c, 3, 0, 1);
        craft_array(&c, "wide", SL_GGUF_U8, SL_MAX_GGUF_ARRAY + extra);
        sl_buf_put(&c.b, text, SL_MAX_GGUF_ARRAY + extra);
        expect_craft(&c, extra ? SL_ELIMIT : 0, "wide", "array length");
    }
    for (uint64_t extra = 0; extra < 2; extra++) {
        uint64_t n = SL_MAX_GGUF_KV + extra;
        struct craft c = {0};
        craft_head(&c, 3, 0, n);
        for (uint64_t i = 0; i < n; i++) {
            char key[16];
            snprintf(key, sizeof key, "%x", (unsigned)i);
            craft_kv(&c, key, SL_GGUF_U8, 0, 1);
        }
        expect_craft(&c, extra ? SL_ELIMIT : 0, "metadata keys", "number of keys");
        n = SL_MAX_TENSORS + extra;
        c = (struct craft){0};
        craft_head(&c, 3, n, 0);
        for (uint64_t i = 0; i < n; i++) {
            char name[16];
            snprintf(name, sizeof name, "%x", (unsigned)i);
            craft_tensor(&c, name, 1, (uint64_t[]){1}, 0, i * 32);
        }
        craft_data(&c, 32, (size_t)n * 32);
        expect_craft(&c, extra ? SL_ELIMIT : 0, "tensors", "number of tensors");
    }
    sl_free(text);
}

struct tensor_case {
    const char *label;
    uint32_t n_dims;
    uint64_t ne[5];
    uint32_t type;
    uint64_t offset;
    int code;
};

static void bad_tensors(void **state)
{
    (void)state;
    /* the second of two tensors; the first takes bytes 0..31, the data section has 256 */
    static const struct tensor_case cases[] = {
        {"good", 1, {8}, 0, 32, 0},
        {"up to the end", 1, {56}, 0, 32, 0},
        {"one element too many", 1, {57}, 0, 32, SL_EFORMAT},
        {"same place", 1, {8}, 0, 0, SL_EFORMAT},
        {"gap before", 1, {8}, 0, 64, 0},
        {"starts at the end", 1, {1}, 0, 256, SL_EFORMAT},
        {"starts past the end", 1, {1}, 0, 512, SL_EFORMAT},
        {"misaligned by one", 1, {1}, 0, 33, SL_EFORMAT},
        {"misaligned by half", 1, {1}, 0, 48, SL_EFORMAT},
        {"offset wraps", 1, {1}, 0, MAX - 31, SL_EFORMAT},
        {"offset 2^63", 1, {1}, 0, UINT64_C(1) << 63, SL_EFORMAT},
        {"no dimension", 0, {0}, 0, 32, SL_EFORMAT},
        {"five dimensions", 5, {1, 1, 1, 1, 1}, 0, 32, SL_EFORMAT},
        {"four dimensions", 4, {2, 2, 1, 1}, 0, 32, 0},
        {"zero first", 2, {0, 4}, 0, 32, SL_EFORMAT},
        {"zero last", 2, {4, 0}, 0, 32, SL_EFORMAT},
        {"product 2^64", 2, {UINT64_C(1) << 32, UINT64_C(1) << 32}, 0, 32, SL_EFORMAT},
        {"product 2^64 + 4 in three", 3, {UINT64_C(1) << 62, 2, 2}, 0, 32, SL_EFORMAT},
        {"product 2^63", 2, {UINT64_C(1) << 32, UINT64_C(1) << 31}, 24, 32, SL_EFORMAT},
        {"bytes wrap to 0", 1, {UINT64_C(1) << 62}, 0, 32, SL_EFORMAT},
        {"bytes wrap to 4", 1, {(UINT64_C(1) << 62) + 1}, 0, 32, SL_EFORMAT},
        {"an exabyte", 2, {UINT64_C(1) << 30, UINT64_C(1) << 30}, 0, 32, SL_EFORMAT},
        {"two bytes an element near 2^63", 1, {INT64_MAX}, 1, 32, SL_EFORMAT},
        {"I8 of 2^63 - 64", 1, {UINT64_C(0x7FFFFFFFFFFFFFC0)}, 24, 32, SL_EFORMAT},
        {"one block of q8_0", 1, {32}, 8, 32, 0},
        {"half a block of q8_0", 1, {16}, 8, 32, SL_EFORMAT},
        {"rows of half a block", 2, {16, 2}, 8, 32, SL_EFORMAT},
        {"one block of q6_k", 1, {256}, 14, 32, 0},
        {"rows of 1 of q6_k", 2, {1, 256}, 14, 32, SL_EFORMAT},
        {"two blocks of q6_k", 1, {512}, 14, 32, SL_EFORMAT},
        {"iq2_xxs, known size", 1, {256}, 16, 32, 0},
        {"iq2_xxs too large", 1, {1024}, 16, 32, SL_EFORMAT},
        {"withdrawn type 4", 1, {32}, 4, 32, 0},
        {"unknown type, huge shape", 1, {INT64_MAX}, 77, 32, 0},
        {"unknown type inside another", 1, {1}, 77, 0, SL_EFORMAT},
        {"unknown type past the end", 1, {1}, 77, 256, SL_EFORMAT},
        {"unknown type 2^32 - 1", 1, {1}, UINT32_MAX, 32, 0},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const struct tensor_case *t = &cases[i];
        struct craft c = {0};
        craft_head(&c, 3, 2, 0);
        craft_tensor(&c, "first", 1, (uint64_t[]){8}, 0, 0);
        craft_tensor(&c, "second", t->n_dims, t->ne, t->type, t->offset);
        craft_data(&c, 32, 256);
        expect_craft(&c, t->code, "second", t->label);
    }
    struct craft c = {0};
    craft_head(&c, 3, 2, 0);
    craft_tensor(&c, "twin", 1, (uint64_t[]){8}, 0, 0);
    craft_tensor(&c, "twin", 1, (uint64_t[]){8}, 0, 32);
    craft_data(&c, 32, 64);
    expect_craft(&c, SL_EFORMAT, "twin appears twice", "duplicate tensor");
    c = (struct craft){0};
    craft_head(&c, 3, 3, 0); /* the middle one of three in file order reaches into the last */
    craft_tensor(&c, "c", 1, (uint64_t[]){8}, 0, 64);
    craft_tensor(&c, "b", 1, (uint64_t[]){9}, 0, 32);
    craft_tensor(&c, "a", 1, (uint64_t[]){8}, 0, 0);
    craft_data(&c, 32, 96);
    expect_craft(&c, SL_EFORMAT, "overlap", "overlap by one element, unsorted");
}

static void alignments(void **state)
{
    (void)state;
    static const struct {
        enum sl_gguf_type type;
        uint64_t v;
        int code;
    } cases[] = {
        {SL_GGUF_U32, 1, 0},           {SL_GGUF_U32, 8, 0},
        {SL_GGUF_U32, 64, 0},          {SL_GGUF_U32, 4096, 0},
        {SL_GGUF_U32, 0, SL_EFORMAT},  {SL_GGUF_U32, 3, SL_EFORMAT},
        {SL_GGUF_U32, 33, SL_EFORMAT}, {SL_GGUF_U32, UINT32_MAX, SL_EFORMAT},
        {SL_GGUF_U64, 32, SL_EFORMAT}, {SL_GGUF_I32, 32, SL_EFORMAT},
        {SL_GGUF_U8, 32, SL_EFORMAT},  {SL_GGUF_F32, 0x42000000, SL_EFORMAT},
    };
    static const size_t width[] = {[SL_GGUF_U8] = 1,
                                   [SL_GGUF_U32] = 4,
                                   [SL_GGUF_I32] = 4,
                                   [SL_GGUF_F32] = 4,
                                   [SL_GGUF_U64] = 8};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct craft c = {0};
        craft_head(&c, 3, 1, 1);
        craft_kv(&c, "general.alignment", cases[i].type, cases[i].v, width[cases[i].type]);
        craft_tensor(&c, "t", 1, (uint64_t[]){1}, 0, 0);
        craft_data(&c, cases[i].code == 0 ? (size_t)cases[i].v : 32, 4);
        expect_craft(&c, cases[i].code, "general.alignment", "alignment");
    }
    for (int with_tensor = 0; with_tensor < 2; with_tensor++) {
        struct craft c = {0};
        craft_head(&c, 3, (uint64_t)with_tensor, 1);
        craft_kv(&c, "general.alignment", SL_GGUF_U32, UINT64_C(1) << 31, 4);
        if (with_tensor)
            craft_tensor(&c, "t", 1, (uint64_t[]){1}, 0, 0);
        craft_data(&c, 32, 64);
        expect_craft(&c, with_tensor ? SL_EFORMAT : 0, "tensor data", "alignment 2^31");
    }
}

static void headers(void **state)
{
    (void)state;
    static const struct {
        const char *label, *bytes;
        size_t n;
        int code;
        const char *named;
    } cases[] = {
        {"empty", "", 0, SL_EFORMAT, "not a GGUF"},
        {"three bytes", "GGU", 3, SL_EFORMAT, "not a GGUF"},
        {"magic only", "GGUF", 4, SL_EFORMAT, "header"},
        {"older container", "ggjt\3\0\0\0", 8, SL_EFORMAT, "not a GGUF"},
        {"reversed magic", "FUGG\3\0\0\0", 8, SL_EFORMAT, "not a GGUF"},
        {"lower case", "gguf\3\0\0\0", 8, SL_EFORMAT, "not a GGUF"},
        {"zip", "PK\3\4\0\0\0\0", 8, SL_EFORMAT, "not a GGUF"},
        {"version 1", "GGUF\1\0\0\0\0\0\0\0\0\0\0\0", 16, SL_EUNSUPPORTED,
         "version 1 is not supported; convert"},
        {"version 4", "GGUF\4\0\0\0", 8, SL_EUNSUPPORTED, "version 4"},
        {"version 0", "GGUF\0\0\0\0", 8, SL_EUNSUPPORTED, "version 0"},
        {"big-endian 3", "GGUF\0\0\0\3", 8, SL_EUNSUPPORTED, "big-endian"},
        {"big-endian 2", "GGUF\0\0\0\2", 8, SL_EUNSUPPORTED, "big-endian"},
        {"no counts", "GGUF\3\0\0\0", 8, SL_EFORMAT, "header"},
        {"nothing in it", "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, 0, ""},
        {"version 2, nothing", "GGUF\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, 0, ""},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        expect(cases[i].bytes, cases[i].n, cases[i].code, cases[i].named, cases[i].label);
}

/* Every single byte of the valid file with some other value: whatever comes, no crash, and what is
 * accepted stays inside the file. */
static void every_byte_flipped(void **state)
{
    (void)state;
    struct craft c;
    craft_valid(&c);
    for (size_t at = 0; at < c.b.n_bytes; at++) {
        for (unsigned flip = 1; flip < 256; flip = flip * 2 + (flip == 64)) {
            uint8_t *copy = craft_exact(c.b.data, c.b.n_bytes);
            struct sl_gguf *g = NULL;
            copy[at] ^= (uint8_t)flip;
            if (sl_gguf_open(copy, c.b.n_bytes, "x", &g, NULL) == 0) {
                for (size_t i = 0; i < sl_gguf_n_tensors(g); i++) {
                    const struct sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
                    assert_true(sl_range_ok(t->offset, t->n_bytes, c.b.n_bytes));
                }
                sl_gguf_close(g);
            }
            sl_free(copy);
        }
    }
    craft_deinit(&c);
}

static void enough_cases(void **state)
{
    (void)state;
    print_message("%d cases\n", n_cases);
    assert_true(n_cases >= 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers),
        cmocka_unit_test(every_field_with_every_border),
        cmocka_unit_test(truncated_at_every_byte),
        cmocka_unit_test(array_type_confusion),
        cmocka_unit_test(scalar_type_confusion),
        cmocka_unit_test(integers_keep_their_range),
        cmocka_unit_test(bad_keys_and_values),
        cmocka_unit_test(lengths_at_their_limits),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(alignments),
        cmocka_unit_test(every_byte_flipped),
        cmocka_unit_test(enough_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
