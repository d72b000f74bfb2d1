/* SPDX-License-Identifier: MIT
 * Forms against a table of bodies and what they mean: a part is written name=data, or
 * name(filename)=data, ";" between parts, "!" for a refusal. Every body is also cut at every
 * position: whatever is missing, it is refused.
 */
#include "base/check.h"
#include "server/http/multipart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TYPE    "multipart/form-data; boundary="
#define NAME(n) "Content-Disposition: form-data; name=" n "\r\n"

static void describe(struct sl_buf *out, const char *type, struct sl_str body)
{
    struct sl_refusal r = {0};
    struct sl_form_part part;
    struct sl_multipart m;
    char boundary[SL_MAX_BOUNDARY + 1];
    struct sl_str t = {type, type != NULL ? strlen(type) : 0};
    sl_buf_clear(out);
    sl_buf_puts(out, "");
    int rc = sl_multipart_boundary(type != NULL ? &t : NULL, boundary, &r);
    if (rc == 0)
        rc = sl_multipart_begin(&m, boundary, body, &r);
    while (rc == 0 && (rc = sl_multipart_next(&m, &part, &r)) == 1) {
        sl_buf_puts(out, out->n_bytes > 0 ? ";" : "");
        sl_buf_puts(out, part.name);
        if (part.filename[0] != '\0')
            sl_buf_printf(out, "(%s)", part.filename);
        sl_buf_putc(out, '=');
        sl_buf_put(out, part.data.p, part.data.n);
        rc = 0;
    }
    if (rc < 0) {
        assert_true(r.err.msg[0] != '\0' && sl_code_http(r.err.code) == 400);
        sl_buf_clear(out);
        sl_buf_puts(out, "!");
    }
    assert_true(sl_buf_ok(out));
}

static const struct {
    const char *type, *body, *means;
} forms[] = {
    {TYPE "b", "--b\r\n" NAME("a") "\r\n1\r\n--b--", "a=1"},
    {TYPE "b", "--b\r\n" NAME("a") "\r\n1\r\n--b--\r\n", "a=1"},
    {TYPE "\"b c\"", "--b c\r\n" NAME("a") "\r\n1\r\n--b c--\r\n", "a=1"},
    {"Multipart/Form-Data ;charset=x; BOUNDARY=b", "--b \t\r\n" NAME("a") "\r\n1\r\n--b--", "a=1"},
    {TYPE "b", "--b\r\n" NAME("\"a b\"") "\r\n1\r\n--b\r\n" NAME("c") "\r\n\r\n--b--", "a b=1;c="},
    {TYPE "b", "--b\r\n" NAME("a") "\r\n\r\n--b--", "a="},
    {TYPE "b", "--b\r\n" NAME("a") "\r\n--b--", "a="}, /* one line end for both */
    {TYPE "b", "--b\r\n" NAME("a") "\r\n\r\n\r\n--b--", "a=\r\n"},
    {TYPE "b", "--b\r\n" NAME("a") "\r\n--b--\r\n\r\n--b--", "!"}, /* the first is the end */
    {TYPE "b", "--b\r\n" NAME("a") "\r\n -b\r\n--\r\nb--\r\n--b--", "a= -b\r\n--\r\nb--"},
    {TYPE "b",
     "--b\r\n" NAME("a; filename=\"x y.jsonl\"") "Content-Type: text/plain\r\n\r\n1\r\n--b--",
     "a(x y.jsonl)=1"},
    {TYPE "b", "--b\r\n" NAME("a; filename=\"\\\"x\\\\y%22\"") "\r\n1\r\n--b--", "a(\"x\\y\")=1"},
    {TYPE "b", "--b\r\n" NAME("a; filename=\"C:\\dir\\f\"") "\r\n1\r\n--b--", "a(C:\\dir\\f)=1"},
    {TYPE "b", "--b\r\nX: y\r\ncontent-disposition:form-data;name=a;\r\n\r\n1\r\n--b--", "a=1"},
    {TYPE "b", "--b\r\n" NAME("a; filename*=UTF-8''x") "\r\n1\r\n--b--", "a=1"},
    {TYPE "b", "--b\r\n" NAME("\"\"") "\r\n1\r\n--b--", "=1"},
    {TYPE "b", "--b--", ""},
    {TYPE "b", "", "!"},
    {TYPE "b", "--b", "!"},
    {TYPE "b", "\r\n--b--", "!"},
    {TYPE "b", "x\r\n--b--", "!"}, /* a preamble */
    {TYPE "b", "--b--\r\nx", "!"}, /* an epilogue */
    {TYPE "b", "--b\n" NAME("a") "\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\nContent-Disposition: form-data; name=a\n\r\n1\r\n--b--", "!"},
    {TYPE "b", "--bx\r\n" NAME("a") "\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\n" NAME("a") "\r\n1\r\n--bx--", "!"},
    {TYPE "b", "--b\r\n" NAME("a") "\r\n1\n--b--", "!"},
    {TYPE "b", "--b\r\n\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\nContent-Disposition: form-data\r\n\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\nContent-Disposition: attachment; name=a\r\n\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\n" NAME("a; name=b") "\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\n" NAME("a") NAME("b") "\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\n" NAME("\"a") "\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\n" NAME("a b") "\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\n" NAME("a; filename") "\r\n1\r\n--b--", "!"},
    {TYPE "b", "--b\r\n" NAME("a; =x") "\r\n1\r\n--b--", "!"},
    {NULL, "--b--", "!"},
    {"", "--b--", "!"},
    {"application/json", "--b--", "!"},
    {"multipart/form-data", "--b--", "!"},
    {"multipart/form-databoundary=b", "--b--", "!"},
    {"multipart/mixed; boundary=b", "--b--", "!"},
    {TYPE "b; boundary=b", "--b--", "!"},
    {TYPE "", "----", "!"},
    {TYPE "\"\"", "----", "!"},
    {TYPE "\"b", "--b--", "!"},
    {TYPE "\"b \"", "--b --", "!"},
    {TYPE "b\x01", "--b\x01--", "!"},
    {TYPE "b*", "--b*--", "!"},
};

static void test_forms(void **state)
{
    (void)state;
    struct sl_buf got = {0};
    for (size_t i = 0; i < SL_COUNT(forms); i++) {
        struct sl_str body = {forms[i].body, strlen(forms[i].body)};
        describe(&got, forms[i].type, body);
        if (strcmp(got.data, forms[i].means) != 0)
            fail_msg("form %zu: %s, not %s", i, got.data, forms[i].means);
        bool has_end = strcmp(forms[i].means, "!") != 0;
        size_t n_whole =
            body.n - (body.n > 2 && memcmp(body.p + body.n - 2, "\r\n", 2) == 0 ? 2 : 0);
        for (size_t n = 0; has_end && n < n_whole; n++) {
            describe(&got, forms[i].type, (struct sl_str){forms[i].body, n});
            assert_string_equal(got.data, "!");
        }
    }
    sl_buf_deinit(&got);
}

static void put_part(struct sl_buf *b, const char *name, size_t n_name)
{
    sl_buf_puts(b, "--b\r\nContent-Disposition: form-data; name=\"");
    for (size_t i = 0; i < n_name; i++)
        sl_buf_puts(b, name);
    sl_buf_puts(b, "\"\r\n\r\n1\r\n");
}

static bool is_taken(struct sl_buf *body)
{
    struct sl_buf got = {0};
    sl_buf_puts(body, "--b--");
    describe(&got, TYPE "b", (struct sl_str){body->data, body->n_bytes});
    bool taken = got.data[0] != '!';
    sl_buf_deinit(&got);
    sl_buf_clear(body);
    return taken;
}

static void test_limits(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (int over = 0; over < 2; over++) {
        for (int i = 0; i < SL_MAX_FORM_PARTS + over; i++)
            put_part(&b, "a", 1);
        assert_int_equal(is_taken(&b), !over);
        put_part(&b, "a", (size_t)(SL_MAX_FORM_NAME - 1 + over));
        assert_int_equal(is_taken(&b), !over);
        sl_buf_puts(&b, "--b\r\n");
        for (int i = 0; i < 15 + over; i++)
            sl_buf_puts(&b, "X: y\r\n");
        sl_buf_puts(&b, NAME("a") "\r\n1\r\n");
        assert_int_equal(is_taken(&b), !over);
        sl_buf_puts(&b, "--b\r\n" NAME("a") "X:");
        for (int i = 0; i < 4092 + over; i++)
            sl_buf_putc(&b, 'y');
        sl_buf_puts(&b, "\r\n\r\n1\r\n");
        assert_int_equal(is_taken(&b), !over);
    }
    sl_buf_puts(&b, "--b\r\n" NAME("\"a"));
    b.data[b.n_bytes - 2] = '\0'; /* for the CR: a NUL in a name */
    sl_buf_puts(&b, "\"\r\n\r\n1\r\n");
    assert_false(is_taken(&b));
    sl_buf_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
