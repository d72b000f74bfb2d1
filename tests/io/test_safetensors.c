/* SPDX-License-Identifier: MIT
 * Malformed safetensors files. Each case states the code it must give and what the message must
 * name. Folders and their index are in test_checkpoint.c.
 */
#include "craft.h"
#include "fault.h"

#include "base/limits.h"
#include "io/safetensors.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

static int n_cases;

/* Opens a copy of exactly n bytes; checks the outcome and that memory stays in proportion. */
static void expect(const void *data, size_t n, int code, const char *named, const char *label)
{
    struct sl_error err = {0};
    struct sl_st *st = NULL;
    uint8_t *copy = craft_exact(data, n);
    fault_arm(-1, 0);
    int rc = sl_st_open(copy, n, "case.st", &st, &err);
    n_cases++;
    if (rc != code)
        fail_msg("%s: code %d (%s), expected %d", label, rc, err.msg, code);
    if (fault.bytes > 24 * (uint64_t)n + (128 << 10))
        fail_msg("%s: %" PRIu64 " bytes allocated for a file of %zu", label, fault.bytes, n);
    if (rc != 0) {
        if (strncmp(err.msg, "case.st: ", 9) != 0 || strstr(err.msg, named) == NULL)
            fail_msg("%s: message \"%s\" does not name \"%s\"", label, err.msg, named);
    } else {
        for (size_t i = 0; i < sl_st_n_tensors(st); i++) {
            const struct sl_st_tensor *t = sl_st_tensor_at(st, i);
            assert_true(sl_range_ok(t->offset, t->n_bytes, n));
            assert_ptr_equal(sl_st_find(st, t->name), t);
        }
        sl_st_close(st);
    }
    assert_true(fault_clean());
    sl_sys = &sl_sys_real;
    sl_free(copy);
}

static void file_of(struct sl_buf *b, const void *header, size_t n_header, size_t n_data)
{
    uint64_t n = n_header;
    *b = (struct sl_buf){0};
    sl_buf_put(b, &n, sizeof n);
    sl_buf_put(b, header, n_header);
    for (size_t i = 0; i < n_data; i++)
        sl_buf_putc(b, (char)i);
    assert_true(sl_buf_ok(b));
}

static void expect_header_n(const void *header, size_t n_header, size_t n_data, int code,
                            const char *named)
{
    struct sl_buf b;
    file_of(&b, header, n_header, n_data);
    expect(b.data, b.n_bytes, code, named, header);
    sl_buf_deinit(&b);
}

static void expect_header(const char *header, size_t n_data, int code, const char *named)
{
    expect_header_n(header, strlen(header), n_data, code, named);
}

#define T(name, dtype, shape, begin, end)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end \
    "]}"

struct header_case {
    const char *header;
    size_t n_data;
    int code;
    const char *named;
};

static void run(const struct header_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect_header(cases[i].header, cases[i].n_data, cases[i].code, cases[i].named);
}

static void well_formed(void **state)
{
    (void)state;
    static const struct header_case cases[] = {
        {"{}", 0, 0, ""},
        {"{}      ", 0, 0, ""},
        {"{ \n\t\r}", 0, 0, ""},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 8, 0, ""},
        {"{" T("a", "F32", "[]", "0", "4") "}", 4, 0, ""},
        {"{" T("a", "F32", "[0]", "0", "0") "}", 0, 0, ""},
        {"{" T("a", "F32", "[0, 4]", "0", "0") "," T("b", "U8", "[3]", "0", "3") "}", 3, 0, ""},
        {"{" T("b", "U8", "[3]", "0", "3") "," T("a", "F32", "[7,0]", "3", "3") "}", 3, 0, ""},
        {"{" T("b", "U8", "[3]", "3", "6") "," T("a", "U8", "[3]", "0", "3") "}", 6, 0, ""},
        {"{\"__metadata__\":{}}", 0, 0, ""},
        {"{\"__metadata__\": null }", 0, 0, ""},
        {"{\"__metadata__\":{\"format\":\"pt\"}," T("a", "U8", "[1]", "0", "1") "}", 1, 0, ""},
        {"{" T("a", "U8", "[1]", "0", "1") ",\"__metadata__\":{\"\":\"\"}}", 1, 0, ""},
        {"{ \"a\" : { \"shape\" : [ 1 , 1 ] , \"data_offsets\" : [ 0 , 2 ] , \"dtype\" : \"F16\" "
         "} }",
         2, 0, ""},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1]", "0", "1") "}", 1, 0, ""},
        {"{" T("\xC3\xA4.w", "U8", "[1]", "0", "1") "}", 1, 0, ""},
        {"{" T("\xC2\xB5.w", "U8", "[1]", "0", "1") "}", 1, 0, ""},
        {"{" T("\\u00e4\\ud83d\\ude00\\/\\\\\\\"", "U8", "[1]", "0", "1") "}", 1, 0, ""},
        {"{\"__metadata__\":{\"a\":\"\\n\\t\\b\\f\\r\"}}", 0, 0, ""},
        {"{" T("a", "X99", "[5]", "0", "3") "}", 3, 0, ""}, /* of a later version: any size */
    };
    run(cases, SL_COUNT(cases));
}

static void bad_syntax(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "",
        " {}",
        "[]",
        "null",
        "\"a\"",
        "1",
        "{",
        "}",
        "{]",
        "{,}",
        "{}}",
        "{}{}",
        "{} x",
        "{}\v",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1}",
        "{\"a\":null}",
        "{\"a\":[]}",
        "{\"a\":\"b\"}",
        "{\"a\":{}",
        "{a:{}}",
        "{'a':{}}",
        "{\"a\" {}}",
        "{\"a\":{},}",
        "{/**/}",
        "{\"a",
        "{\"a\\",
        "{\"a\\\"",
        "{\"__metadata__\"}",
        "{\"__metadata__\":nul}",
        "{\"__metadata__\":nullx}",
        "{\"__metadata__\":NULL}",
        "{\"__metadata__\":null,\"__metadata__\":null}",
        "{\"__metadata__\":[]}",
        "{\"__metadata__\":\"x\"}",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":{\"a\":null}}",
        "{\"__metadata__\":{\"a\":{}}}",
        "{\"__metadata__\":{\"a\":[\"x\"]}}",
        "{\"__metadata__\":{\"a\"}}",
        "{\"__metadata__\":{\"a\":\"b\",}}",
        "{\"__metadata__\":{\"a\":\"b\"}",
        "{\"__metadata__\":{1:\"b\"}}",
        "{\"__metadata__\":{\"a\":\"\\u0000\"}}",
        "{\"__metadata__\":{\"\\u0000\":\"a\"}}",
        "{\"__metadata__\":{\"a\":\"tab\there\"}}",
        "{\"__metadata__\":{\"a\":\"\\x\"}}",
        "{\"__metadata__\":{\"a\":\"\\u12\"}}",
        "{\"__metadata__\":{\"a\":\"\\u12G4\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800\"}}",
        "{\"__metadata__\":{\"a\":\"\\udc00\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800\\ud800\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800x\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800\\n\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800/udc00\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800\\xdc00\"}}",
        "{\"__metadata__\":{\"a\":\"\\ud800\\ue000\"}}",
        "{\"__metadata__\":{\"a\":\"x\",\"a\":\"x\"}}",
        "{\"__metadata__\":{},\"__metadata__\":{}}",
    };
    for (size_t i = 0; i < SL_COUNT(headers); i++) {
        bool surrogate = strstr(headers[i], "\\ud") != NULL;
        expect_header(headers[i], 0, SL_EFORMAT, surrogate ? "valid escape" : "");
    }
}

static void bad_tensors(void **state)
{
    (void)state;
    static const struct header_case cases[] = {
        {"{\"a.w\":{}}", 0, SL_EFORMAT, "string"},
        {"{\"a.w\":{\"dtype\":\"U8\"}}", 0, SL_EFORMAT, "shape is missing"},
        {"{\"a.w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, SL_EFORMAT, "dtype is missing"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, SL_EFORMAT, "data_offsets is missing"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         SL_EFORMAT, "dtype appears twice"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         SL_EFORMAT, "shape appears twice"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":1}}", 1,
         SL_EFORMAT, "extra is not known"},
        {"{\"a.w\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, SL_EFORMAT, "string"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, SL_EFORMAT, "'['"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":1}}", 1, SL_EFORMAT, "'['"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", 1, SL_EFORMAT,
         "integer"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", 1, SL_EFORMAT,
         "integer"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1 1],\"data_offsets\":[0,1]}}", 1, SL_EFORMAT,
         "']'"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[]}}", 1, SL_EFORMAT, "a.w"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, SL_EFORMAT, "a.w"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, SL_EFORMAT,
         "a.w"},
        {"{" T("a.w", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "", "[1]", "0", "1") "}", 1, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "U8\\u0000", "[1]", "0", "1") "}", 1, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "F32F32F32F32F32F32F32F32F32F32F32", "[1]", "0", "4") "}", 4, SL_EFORMAT,
         "a.w"},
        {"{" T("", "U8", "[1]", "0", "1") "}", 1, SL_EFORMAT, "tensor 0"},
        {"{" T("a\\u0000b", "U8", "[1]", "0", "1") "}", 1, SL_EFORMAT, "tensor 0"},
        {"{" T("a\\n", "U8", "[1]", "0", "1") "}", 1, SL_EFORMAT, "tensor 0"},
        {"{" T("a", "U8", "[1]", "0", "1") "," T("a", "U8", "[1]", "1", "2") "}", 2, SL_EFORMAT,
         "a appears twice"},
        {"{" T("a", "U8", "[1]", "0", "1") "," T("\\u0061", "U8", "[1]", "1", "2") "}", 2,
         SL_EFORMAT, "a appears twice"},
        /* ranges */
        {"{" T("a.w", "U8", "[1]", "1", "0") "}", 1, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "U8", "[2]", "0", "2") "}", 1, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "U8", "[1]", "0", "1") "}", 2, SL_EFORMAT, "tensors take 1"},
        {"{" T("a.w", "U8", "[1]", "1", "2") "}", 2, SL_EFORMAT, "a.w: data follow a gap"},
        {"{}", 1, SL_EFORMAT, "tensors take 0"},
        {"{" T("a.w", "U8", "[2]", "0", "2") "," T("b.w", "U8", "[2]", "1", "3") "}", 3, SL_EFORMAT,
         "b.w: data overlap"},
        {"{" T("a.w", "U8", "[2]", "0", "2") "," T("b.w", "U8", "[2]", "0", "2") "}", 2, SL_EFORMAT,
         "overlap"},
        {"{" T("a.w", "U8", "[2]", "0", "2") "," T("b.w", "U8", "[2]", "3", "5") "}", 5, SL_EFORMAT,
         "b.w: data follow a gap"},
        {"{" T("a.w", "U8", "[4]", "0", "4") "," T("b.w", "U8", "[0]", "2", "2") "}", 4, SL_EFORMAT,
         "overlap"},
        {"{" T("a.w", "U8", "[1]", "18446744073709551615", "0") "}", 1, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "U8", "[1]", "0", "18446744073709551615") "}", 1, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "U8", "[1]", "9223372036854775808", "9223372036854775809") "}", 1, SL_EFORMAT,
         "a.w"},
        /* sizes */
        {"{" T("a.w", "F32", "[2]", "0", "4") "}", 4, SL_EFORMAT, "a.w: shape and dtype need 8"},
        {"{" T("a.w", "F32", "[0]", "0", "4") "}", 4, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "F32", "[]", "0", "8") "}", 8, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "U8", "[4294967296,4294967296]", "0", "0") "}", 0, SL_EFORMAT, "overflows"},
        {"{" T("a.w", "U8", "[4294967296,4294967296,0]", "0", "0") "}", 0, SL_EFORMAT, "overflows"},
        {"{" T("a.w", "F32", "[4611686018427387904]", "0", "0") "}", 0, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "F32", "[4611686018427387905]", "0", "4") "}", 4, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "F64", "[2305843009213693953]", "0", "8") "}", 8, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "U8", "[9223372036854775808]", "0", "0") "}", 0, SL_EFORMAT, "overflows"},
        {"{" T("a.w", "U8", "[9223372036854775807]", "0", "0") "}", 0, SL_EFORMAT, "a.w"},
        {"{" T("a.w", "X99", "[9223372036854775807,3]", "0", "0") "}", 0, SL_EFORMAT, "overflows"},
        {"{" T("a.w", "F4", "[3]", "0", "2") "}", 2, SL_EFORMAT, "whole number of bytes"},
        {"{" T("a.w", "F6_E2M3", "[2]", "0", "2") "}", 2, SL_EFORMAT, "whole number of bytes"},
    };
    run(cases, SL_COUNT(cases));
}

/* Each way to write a number that is not a plain non-negative integer, in each place. */
static void bad_numbers(void **state)
{
    (void)state;
    static const char *const numbers[] = {
        "-1",
        "-0",
        "+1",
        "01",
        "00",
        "1.0",
        "1e0",
        "1E0",
        "0x1",
        "1_0",
        "\"1\"",
        "true",
        "null",
        "",
        "1.",
        "18446744073709551616",
        "99999999999999999999999999",
        "NaN",
        "Infinity",
        "{}",
        "1a",
    };
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        for (int place = 0; place < 3; place++) {
            char h[200];
            snprintf(h, sizeof h,
                     "{\"a\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[%s,%s]}}",
                     place == 0 ? numbers[i] : "1", place == 1 ? numbers[i] : "0",
                     place == 2 ? numbers[i] : "1");
            /* an empty shape is a scalar: one byte, valid */
            bool scalar = place == 0 && numbers[i][0] == '\0';
            expect_header(h, 1, scalar ? 0 : SL_EFORMAT, "header byte");
        }
    }
}

static void every_dtype_with_right_and_wrong_size(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bits;
    } types[] = {
        {"BOOL", 8},        {"U8", 8},          {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
        {"F8_E8M0", 8},     {"I16", 16},        {"U16", 16}, {"F16", 16},    {"BF16", 16},
        {"I32", 32},        {"U32", 32},        {"F32", 32}, {"F64", 64},    {"I64", 64},
        {"U64", 64},        {"C64", 64},        {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
        {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    };
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        for (int off = -1; off <= 1; off++) {
            char h[200];
            int n = 24 * types[i].bits / 8 + off;
            snprintf(h, sizeof h,
                     "{\"the.w\":{\"dtype\":\"%s\",\"shape\":[2,12],\"data_offsets\":[0,%d]}}",
                     types[i].name, n);
            expect_header(h, (size_t)n, off == 0 ? 0 : SL_EFORMAT, "the.w");
        }
    }
}

static void header_lengths(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        int code;
    } cases[] = {
        {0, SL_EFORMAT},
        {1, SL_EFORMAT},
        {7, SL_EFORMAT},
        {8, 0}, /* the true one */
        {9, SL_EFORMAT},
        {SL_MAX_ST_HEADER - 1, SL_EFORMAT},
        {SL_MAX_ST_HEADER, SL_EFORMAT},
        {(uint64_t)SL_MAX_ST_HEADER + 1, SL_ELIMIT},
        {(UINT64_C(1) << 31) - 1, SL_ELIMIT},
        {UINT64_C(1) << 31, SL_ELIMIT},
        {UINT64_C(1) << 32, SL_ELIMIT},
        {(UINT64_C(1) << 32) + 8, SL_ELIMIT}, /* 8 when cut to 32 bits */
        {UINT64_C(1) << 63, SL_ELIMIT},
        {UINT64_MAX - 7, SL_ELIMIT},
        {UINT64_MAX, SL_ELIMIT},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_buf b;
        file_of(&b, "{}      ", 8, 0);
        memcpy(b.data, &cases[i].n, 8);
        expect(b.data, b.n_bytes, cases[i].code, "", "header length");
        sl_buf_deinit(&b);
    }
    static const char zip[] = "PK\3\4\24\0\0\0\0\0!\0data that is a zip archive";
    for (size_t n = 0; n < sizeof zip; n++)
        expect(zip, n, n < 8 ? SL_EFORMAT : SL_ELIMIT, "", "zip");
    /* An archive behind the tensors: the file must end where the last tensor does. */
    struct sl_buf b;
    static const char one[] = "{" T("a", "U8", "[2]", "0", "2") "}";
    file_of(&b, one, sizeof one - 1, 2);
    sl_buf_put(&b, zip, sizeof zip);
    expect(b.data, b.n_bytes, SL_EFORMAT, "tensors take 2", "zip at the end");
    sl_buf_deinit(&b);
}

static void truncated_at_every_byte(void **state)
{
    (void)state;
    static const char h[] = "{\"__metadata__\":{\"format\":\"pt\"}," T(
        "a", "F32", "[2,2]", "0", "16") "," T("b", "BF16", "[3]", "16", "22") "}   ";
    struct sl_buf b;
    file_of(&b, h, sizeof h - 1, 22);
    expect(b.data, b.n_bytes, 0, "", "the valid file");
    for (size_t n = 0; n < b.n_bytes; n++)
        expect(b.data, n, SL_EFORMAT, "", "truncated");
    sl_buf_deinit(&b);
    /* and the header itself cut, with its length field set right */
    for (size_t n = 0; n + 4 < sizeof h; n++)
        expect_header_n(h, n, 22, SL_EFORMAT, "");
}

static void invalid_utf8_anywhere(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x80",
        "\xBF",
        "\xC0\x80",
        "\xC1\xBF",
        "\xC3",
        "\xE0\x80\x80",
        "\xE2\x82",
        "\xED\xA0\x80",
        "\xED\xBF\xBF",
        "\xF0\x80\x80\x80",
        "\xF0\x9F\x98",
        "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80",
        "\xFE",
        "\xFF",
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        char h[200];
        snprintf(h, sizeof h, "{\"__metadata__\":{\"a\":\"%s\"}}", bad[i]);
        expect_header(h, 0, SL_EFORMAT, "UTF-8");
        snprintf(h, sizeof h, "{" T("x%sy", "U8", "[1]", "0", "1") "}", bad[i]);
        expect_header(h, 1, SL_EFORMAT, "UTF-8");
        snprintf(h, sizeof h, "{}%s", bad[i]);
        expect_header(h, 0, SL_EFORMAT, "UTF-8");
    }
}

static void many_tensors(struct sl_buf *b, size_t n)
{
    struct sl_buf h = {0};
    sl_buf_putc(&h, '{');
    for (size_t i = 0; i < n; i++)
        sl_buf_printf(&h,
                      "%s\"model.layers.%zu.experts.down_proj.weight\":{\"dtype\":\"BF16\","
                      "\"shape\":[1,1],\"data_offsets\":[%zu,%zu]}",
                      i > 0 ? "," : "", i, 2 * i, 2 * i + 2);
    sl_buf_putc(&h, '}');
    file_of(b, h.data, h.n_bytes, 2 * n);
    sl_buf_deinit(&h);
}

static void many_tensors_are_quick(void **state)
{
    (void)state;
    struct sl_buf b;
    many_tensors(&b, SL_MAX_TENSORS);
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < 3; round++) {
        struct sl_st *st;
        uint64_t start = sl_now_ns();
        assert_int_equal(sl_st_open((uint8_t *)b.data, b.n_bytes, "x", &st, NULL), 0);
        best = SL_MIN(best, sl_now_ns() - start);
        assert_int_equal(sl_st_n_tensors(st), SL_MAX_TENSORS);
        sl_st_close(st);
    }
    print_message("%d tensors in %.1f ms\n", SL_MAX_TENSORS, (double)best / 1e6);
    /* 15 us each: generous, for sanitizers and shared machines */
    assert_true(best < UINT64_C(15000) * SL_MAX_TENSORS);
    expect(b.data, b.n_bytes, 0, "", "as many tensors as the limit");
    sl_buf_deinit(&b);
    many_tensors(&b, SL_MAX_TENSORS + 1);
    expect(b.data, b.n_bytes, SL_ELIMIT, "more than", "one tensor too many");
    sl_buf_deinit(&b);
}

static void name_lengths(void **state)
{
    (void)state;
    for (int extra = -1; extra <= 1; extra++) {
        char name[SL_MAX_TENSOR_NAME + 2], h[SL_MAX_TENSOR_NAME + 100];
        memset(name, 'n', sizeof name);
        name[SL_MAX_TENSOR_NAME + extra] = '\0';
        snprintf(h, sizeof h, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                 name);
        expect_header(h, 1, extra > 0 ? SL_ELIMIT : 0, "tensor 0");
    }
}

static void contents_are_read(void **state)
{
    (void)state;
    static const char h[] = "{\"__metadata__\":{\"format\":\"pt\",\"k\\u00e9y\":\"a\\nb\"}," T(
        "second", "BF16", "[2,3]", "8", "20") "," T("first\\u0021", "F32", "[2]", "0", "8") "}";
    struct sl_buf b;
    struct sl_st *st;
    file_of(&b, h, sizeof h - 1, 20);
    assert_int_equal(sl_st_open((uint8_t *)b.data, b.n_bytes, "x", &st, NULL), 0);
    assert_int_equal(sl_st_n_tensors(st), 2);
    const struct sl_st_tensor *t = sl_st_tensor_at(st, 0);
    assert_string_equal(t->name, "second");
    assert_string_equal(t->dtype, "BF16");
    assert_true(t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 3);
    assert_true(t->offset == 8 + sizeof h - 1 + 8 && t->n_bytes == 12);
    t = sl_st_find(st, "first!");
    assert_true(t != NULL && t->offset == 8 + sizeof h - 1 && t->n_bytes == 8);
    assert_null(sl_st_find(st, "first"));
    assert_null(sl_st_find(st, ""));
    assert_string_equal(sl_st_metadata(st, "format"), "pt");
    assert_string_equal(sl_st_metadata(st, "k\xC3\xA9y"), "a\nb");
    assert_null(sl_st_metadata(st, "absent"));
    sl_st_close(st);
    sl_buf_deinit(&b);
}

static void enough_cases(void **state)
{
    (void)state;
    print_message("%d cases\n", n_cases);
    assert_true(n_cases >= 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(well_formed),
        cmocka_unit_test(bad_syntax),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(bad_numbers),
        cmocka_unit_test(every_dtype_with_right_and_wrong_size),
        cmocka_unit_test(header_lengths),
        cmocka_unit_test(truncated_at_every_byte),
        cmocka_unit_test(invalid_utf8_anywhere),
        cmocka_unit_test(many_tensors_are_quick),
        cmocka_unit_test(name_lengths),
        cmocka_unit_test(contents_are_read),
        cmocka_unit_test(enough_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
