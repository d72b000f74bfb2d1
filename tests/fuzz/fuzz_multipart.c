/* SPDX-License-Identifier: MIT
 * A form: the first line is its Content-Type, the rest its body. Parts lie in the body, one behind
 * the other, and have no boundary inside; what was read, written anew in the plainest way, reads
 * the same; and a body that was taken is refused when its end is cut off.
 */
#include "fuzz.h"
#include "server/http/multipart.h"

#include <string.h>

struct parts {
    struct sl_form_part items[SL_MAX_FORM_PARTS];
    int n, rc; /* rc 0: taken */
};

static void read_form(struct parts *out, struct sl_str type, struct sl_str body)
{
    static struct sl_multipart m;
    struct sl_refusal r = {0};
    char boundary[SL_MAX_BOUNDARY + 1];
    const char *at = body.p;
    out->n = 0;
    out->rc = sl_multipart_boundary(&type, boundary, &r);
    if (out->rc == 0)
        out->rc = sl_multipart_begin(&m, boundary, body, &r);
    while (out->rc == 0) {
        SL_ASSERT(out->n <= SL_MAX_FORM_PARTS);
        struct sl_form_part extra, *p = out->n < SL_MAX_FORM_PARTS ? &out->items[out->n] : &extra;
        int rc = sl_multipart_next(&m, p, &r);
        if (rc != 1) {
            out->rc = rc;
            break;
        }
        SL_ASSERT(p != &extra && p->data.p >= at && p->data.p + p->data.n <= body.p + body.n);
        SL_ASSERT(memmem(p->data.p, p->data.n, m.mark, m.n_mark) == NULL);
        SL_ASSERT(strlen(p->name) < sizeof p->name && strlen(p->filename) < sizeof p->filename);
        at = p->data.p + p->data.n;
        out->n++;
    }
    SL_ASSERT(out->rc == 0 || (out->rc < 0 && r.err.code == out->rc && r.err.msg[0] != '\0'));
}

static void put_quoted(struct sl_buf *b, const char *name, const char *value)
{
    sl_buf_puts(b, name);
    sl_buf_puts(b, "=\"");
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\')
            sl_buf_putc(b, '\\');
        sl_buf_putc(b, *value);
    }
    sl_buf_putc(b, '"');
}

/* A name that has a line end, or %22 as it is, cannot be written. */
static bool is_writable(const char *name)
{
    return strpbrk(name, "\r\n") == NULL && strstr(name, "%22") == NULL && strlen(name) < 120;
}

static bool write_form(struct sl_buf *b, const struct parts *parts)
{
    static const char mark[] = "--0123456789-a-boundary-of-the-test";
    for (int i = 0; i < parts->n; i++) {
        const struct sl_form_part *p = &parts->items[i];
        if (!is_writable(p->name) || !is_writable(p->filename) ||
            memmem(p->data.p, p->data.n, mark, sizeof mark - 1) != NULL)
            return false;
        sl_buf_puts(b, mark);
        sl_buf_puts(b, "\r\nContent-Disposition: form-data; ");
        put_quoted(b, "name", p->name);
        if (p->filename[0] != '\0') {
            sl_buf_puts(b, "; ");
            put_quoted(b, "filename", p->filename);
        }
        sl_buf_puts(b, "\r\n\r\n");
        sl_buf_put(b, p->data.p, p->data.n);
        sl_buf_puts(b, "\r\n");
    }
    sl_buf_puts(b, mark);
    sl_buf_puts(b, "--");
    return sl_buf_ok(b);
}

static void compare(const struct parts *a, const struct parts *b)
{
    SL_ASSERT(b->rc == 0 && a->n == b->n);
    for (int i = 0; i < a->n; i++) {
        const struct sl_form_part *x = &a->items[i], *y = &b->items[i];
        SL_ASSERT(strcmp(x->name, y->name) == 0 && strcmp(x->filename, y->filename) == 0);
        SL_ASSERT(x->data.n == y->data.n && memcmp(x->data.p, y->data.p, x->data.n) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char type_again[] =
        "multipart/form-data; boundary=0123456789-a-boundary-of-the-test";
    static struct parts first, again;
    struct sl_buf b = {0};
    const uint8_t *lf = memchr(data, '\n', size);
    size_t n_type = lf != NULL ? (size_t)(lf - data) : size;
    struct sl_str type = {(const char *)data, n_type};
    struct sl_str body = {(const char *)data + n_type + (lf != NULL), size - n_type - (lf != NULL)};
    read_form(&first, type, body);
    if (first.rc != 0)
        return 0;
    if (write_form(&b, &first)) {
        read_form(&again, (struct sl_str){type_again, sizeof type_again - 1},
                  (struct sl_str){b.data, b.n_bytes});
        compare(&first, &again);
    }
    sl_buf_deinit(&b);
    bool line_end = body.n > 2 && memcmp(body.p + body.n - 2, "\r\n", 2) == 0;
    read_form(&again, type, (struct sl_str){body.p, body.n - 1 - (line_end ? 2 : 0)});
    SL_ASSERT(again.rc < 0);
    return 0;
}
