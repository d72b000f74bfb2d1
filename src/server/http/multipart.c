/* SPDX-License-Identifier: MIT */
#include "server/http/multipart.h"

#include "base/check.h"

#include <string.h>
#include <strings.h>

#define MAX_PART_HEADERS 16
#define MAX_HEADER_BYTES 4096 /* of one line */

static bool multipart_is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static struct sl_str skip_blanks(struct sl_str s)
{
    while (s.n > 0 && multipart_is_blank(*s.p)) {
        s.p++;
        s.n--;
    }
    return s;
}

/* Is s at a word, in any case, that is not the beginning of a longer one? */
static bool at_word(struct sl_str s, const char *word)
{
    size_t n = strlen(word);
    return s.n >= n && strncasecmp(s.p, word, n) == 0 &&
           (s.n == n || multipart_is_blank(s.p[n]) || s.p[n] == ';' || s.p[n] == '=' ||
            s.p[n] == ':');
}

/* ---- parameters: ; name=value or ; name="value" */

struct param {
    struct sl_str name, value; /* value as sent, without quotes */
    bool quoted;
};

/* 1: one more; 0: the end; -1: malformed. */
static int multipart_next_param(struct sl_str *s, struct param *p)
{
    *s = skip_blanks(*s);
    if (s->n == 0)
        return 0;
    if (*s->p != ';')
        return -1;
    *s = skip_blanks((struct sl_str){s->p + 1, s->n - 1});
    if (s->n == 0)
        return 0; /* a semicolon at the end */
    const char *eq = memchr(s->p, '=', s->n);
    if (eq == NULL || eq == s->p)
        return -1;
    p->name = (struct sl_str){s->p, (size_t)(eq - s->p)};
    struct sl_str v = {eq + 1, s->n - p->name.n - 1};
    SL_ASSERT(v.n < s->n);
    p->quoted = v.n > 0 && *v.p == '"';
    size_t n = 0;
    if (p->quoted) {
        v = (struct sl_str){v.p + 1, v.n - 1};
        while (n < v.n && v.p[n] != '"')
            n += v.p[n] == '\\' && n + 1 < v.n ? 2 : 1;
        if (n >= v.n)
            return -1;
    } else {
        while (n < v.n && v.p[n] != ';' && !multipart_is_blank(v.p[n]))
            n++;
    }
    p->value = (struct sl_str){v.p, n};
    n += p->quoted;
    SL_ASSERT(n <= v.n);
    *s = (struct sl_str){v.p + n, v.n - n};
    return 1;
}

/* A name as it was meant: browsers write %22 for a quote, others a backslash before it. */
static bool multipart_unescape(const struct param *p, char out[SL_MAX_FORM_NAME])
{
    size_t n = 0;
    for (size_t i = 0; i < p->value.n; i++) {
        char c = p->value.p[i];
        if (p->quoted && c == '\\' && i + 1 < p->value.n &&
            (p->value.p[i + 1] == '"' || p->value.p[i + 1] == '\\'))
            c = p->value.p[++i];
        else if (p->value.n - i >= 3 && memcmp(p->value.p + i, "%22", 3) == 0) {
            c = '"';
            i += 2;
        }
        if (c == '\0' || n + 1 >= SL_MAX_FORM_NAME)
            return false;
        out[n++] = c;
    }
    SL_ASSERT(n < SL_MAX_FORM_NAME);
    out[n] = '\0';
    return true;
}

/* ---- the type */

/* The characters of RFC 2046, and not a blank at the end. */
static bool is_boundary(struct sl_str s)
{
    static const char others[] = "'()+_,-./:=? ";
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alnum && (c == '\0' || strchr(others, c) == NULL))
            return false;
    }
    return s.n > 0 && s.n <= SL_MAX_BOUNDARY && s.p[s.n - 1] != ' ';
}

int sl_multipart_boundary(const struct sl_str *content_type, char out[SL_MAX_BOUNDARY + 1],
                          struct sl_refusal *r)
{
    static const char type[] = "multipart/form-data";
    struct param p;
    int found = 0, rc;
    if (content_type == NULL || !at_word(*content_type, type))
        return sl_refuse(r, SL_EUNSUPPORTED, NULL, "Content-Type must be multipart/form-data");
    struct sl_str rest = {content_type->p + sizeof type - 1, content_type->n - (sizeof type - 1)};
    while ((rc = multipart_next_param(&rest, &p)) == 1) {
        if (p.name.n != 8 || strncasecmp(p.name.p, "boundary", 8) != 0)
            continue;
        if (found++ > 0 || !is_boundary(p.value))
            rc = -1;
        if (rc < 0)
            break;
        SL_ASSERT(p.value.n <= SL_MAX_BOUNDARY);
        memcpy(out, p.value.p, p.value.n);
        out[p.value.n] = '\0';
    }
    return rc == 0 && found == 1
               ? 0
               : sl_refuse(r, SL_EFORMAT, NULL, "Content-Type: no boundary, or a malformed one");
}

/* ---- the body */

static int refuse_form(struct sl_refusal *r, const char *what)
{
    return sl_refuse(r, SL_EFORMAT, NULL, "multipart body: %s", what);
}

int sl_multipart_begin(struct sl_multipart *m, const char *boundary, struct sl_str body,
                       struct sl_refusal *r)
{
    size_t n = strlen(boundary);
    SL_ASSERT(n > 0 && n <= SL_MAX_BOUNDARY);
    *m = (struct sl_multipart){.body = body, .n_mark = 4 + n};
    memcpy(m->mark, "\r\n--", 4);
    memcpy(m->mark + 4, boundary, n);
    m->at = m->n_mark - 2;
    if (body.n < m->at || memcmp(body.p, m->mark + 2, m->at) != 0)
        return refuse_form(r, "it does not begin with the boundary of the Content-Type");
    return 0;
}

/* What follows a boundary: CR LF and a part, or the end. */
static int after_boundary(struct sl_multipart *m, struct sl_refusal *r)
{
    SL_ASSERT(m->at <= m->body.n);
    struct sl_str rest = {m->body.p + m->at, m->body.n - m->at};
    if (rest.n >= 2 && memcmp(rest.p, "--", 2) == 0) {
        bool whole = rest.n == 2 || (rest.n == 4 && memcmp(rest.p + 2, "\r\n", 2) == 0);
        return whole ? 0 : refuse_form(r, "it goes on behind its end");
    }
    struct sl_str line = skip_blanks(rest);
    if (line.n < 2 || memcmp(line.p, "\r\n", 2) != 0)
        return refuse_form(r, "it ends within, or a boundary is not a line");
    m->at += rest.n - line.n + 2;
    return 1;
}

static int read_disposition(struct sl_str s, struct sl_form_part *part, struct sl_refusal *r)
{
    struct param p;
    int rc;
    bool named = false;
    if (!at_word(s, "form-data"))
        return refuse_form(r, "Content-Disposition must be form-data");
    s = (struct sl_str){s.p + 9, s.n - 9};
    while ((rc = multipart_next_param(&s, &p)) == 1) {
        bool is_name = p.name.n == 4 && strncasecmp(p.name.p, "name", 4) == 0;
        bool is_file = p.name.n == 8 && strncasecmp(p.name.p, "filename", 8) == 0;
        if ((is_name && named) || (is_file && part->filename[0] != '\0'))
            return refuse_form(r, "a part has two names");
        if ((is_name || is_file) && !multipart_unescape(&p, is_name ? part->name : part->filename))
            return refuse_form(r, "a name is too long, or has a NUL");
        named |= is_name;
    }
    return rc == 0 && named ? 0 : refuse_form(r, "a part has no name, or a malformed one");
}

static int multipart_read_headers(struct sl_multipart *m, struct sl_form_part *part,
                                  struct sl_refusal *r)
{
    bool disposed = false;
    for (int i = 0; i <= MAX_PART_HEADERS; i++) {
        SL_ASSERT(m->at <= m->body.n);
        const char *s = m->body.p + m->at;
        size_t left = m->body.n - m->at;
        const char *lf = memchr(s, '\n', SL_MIN(left, MAX_HEADER_BYTES));
        if (lf == NULL || lf == s || lf[-1] != '\r')
            return refuse_form(r, "a part's header is too long, or does not end in CR LF");
        struct sl_str line = {s, (size_t)(lf - s) - 1};
        m->at += line.n + 2;
        if (line.n == 0)
            return disposed ? 0 : refuse_form(r, "a part has no Content-Disposition");
        if (!at_word(line, "content-disposition"))
            continue;
        struct sl_str value = {s + 19, line.n - 19};
        if (disposed || value.n == 0 || *value.p != ':')
            return refuse_form(r, "Content-Disposition comes twice, or is malformed");
        disposed = true;
        int rc = read_disposition(skip_blanks((struct sl_str){value.p + 1, value.n - 1}), part, r);
        if (rc != 0)
            return rc;
    }
    return refuse_form(r, "a part has too many headers");
}

int sl_multipart_next(struct sl_multipart *m, struct sl_form_part *part, struct sl_refusal *r)
{
    int rc = after_boundary(m, r);
    if (rc != 1)
        return rc;
    if (m->n_parts++ == SL_MAX_FORM_PARTS)
        return refuse_form(r, "it has too many parts");
    part->name[0] = part->filename[0] = '\0';
    rc = multipart_read_headers(m, part, r);
    if (rc != 0)
        return rc;
    /* An empty part's boundary may use the line end of its headers. */
    size_t from = m->at - 2;
    const char *end = memmem(m->body.p + from, m->body.n - from, m->mark, m->n_mark);
    if (end == NULL)
        return refuse_form(r, "a part has no end");
    size_t n = (size_t)(end - m->body.p);
    part->data = (struct sl_str){m->body.p + m->at, n > m->at ? n - m->at : 0};
    m->at = n + m->n_mark;
    SL_ASSERT(m->at <= m->body.n);
    return 1;
}
