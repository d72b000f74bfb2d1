/* SPDX-License-Identifier: MIT
 * http_model.h - the HTTP/1.1 requests in a run of bytes, read the slow way: the whole text at
 * once, line by line. For comparison with server/http/http_parse.h, which sees the bytes as they
 * come.
 */
#ifndef SL_FUZZ_HTTP_MODEL_H
#define SL_FUZZ_HTTP_MODEL_H

#include "fuzz.h"
#include "server/http/http_parse.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MODEL_MAX_BODY 48

enum model_end { MODEL_MORE, MODEL_GOOD, MODEL_BAD };

struct model_request {
    struct sl_str method, target, names[SL_HTTP_MAX_HEADERS], values[SL_HTTP_MAX_HEADERS];
    size_t n_headers, n_body;
    char body[MODEL_MAX_BODY];
    bool http_1_0, close, keep, expect, chunked;
};

static inline bool model_only(struct sl_str s, const char *set)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '\0' || strchr(set, s.p[i]) == NULL)
            return false;
    return true;
}

#define MODEL_ALPHA "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define MODEL_TOKEN MODEL_ALPHA "0123456789!#$%&'*+-.^_`|~"

static inline bool model_text(struct sl_str s) /* of a header's value */
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] == 0x7F || ((unsigned char)s.p[i] < ' ' && s.p[i] != '\t'))
            return false;
    return true;
}

static inline struct sl_str model_trim(struct sl_str s)
{
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    for (; s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t'); s.n--)
        s.p++;
    return s;
}

/* The next line, which must end with CR LF and have no other CR, LF, and no NUL. */
static inline enum model_end model_line(struct sl_str *rest, struct sl_str *line)
{
    for (size_t i = 0; i < rest->n; i++) {
        if (rest->p[i] == '\0' || rest->p[i] == '\n')
            return MODEL_BAD;
        if (rest->p[i] != '\r')
            continue;
        if (i + 1 == rest->n)
            return MODEL_MORE;
        *line = (struct sl_str){rest->p, i};
        bool good = rest->p[i + 1] == '\n';
        rest->p += i + 2;
        rest->n -= i + 2;
        return good ? MODEL_GOOD : MODEL_BAD;
    }
    return MODEL_MORE;
}

/* Cuts s before the first c; false: there is none. */
static inline bool model_cut(struct sl_str *s, char c, struct sl_str *before)
{
    const char *at = s->n > 0 ? memchr(s->p, c, s->n) : NULL;
    if (at == NULL)
        return false;
    *before = (struct sl_str){s->p, (size_t)(at - s->p)};
    s->n -= before->n + 1;
    s->p = at + 1;
    return true;
}

static inline bool model_first_line(struct model_request *r, struct sl_str line)
{
    if (!model_cut(&line, ' ', &r->method) || !model_cut(&line, ' ', &r->target) ||
        r->method.n == 0 || !model_only(r->method, MODEL_TOKEN))
        return false;
    r->http_1_0 = sl_str_equals(line, "HTTP/1.0");
    if (!r->http_1_0 && !sl_str_equals(line, "HTTP/1.1"))
        return false;
    bool star = sl_str_equals(r->method, "OPTIONS") && sl_str_equals(r->target, "*");
    if (r->target.n == 0 || r->target.n > SL_HTTP_MAX_TARGET || (r->target.p[0] != '/' && !star))
        return false;
    for (size_t i = 0; i < r->target.n; i++)
        if (r->target.p[i] <= ' ' || r->target.p[i] == '#' || r->target.p[i] == 0x7F)
            return false; /* above 0x7F chars are negative */
    return true;
}

static inline bool model_has_word(struct sl_str list, const char *word)
{
    struct sl_str item;
    while (model_cut(&list, ',', &item))
        if (sl_str_equals_nocase(model_trim(item), word))
            return true;
    return sl_str_equals_nocase(model_trim(list), word);
}

static inline size_t model_values(const struct model_request *r, const char *name,
                                  struct sl_str *value)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_headers; i++) {
        if (r->names[i].n == strlen(name) && strncasecmp(r->names[i].p, name, r->names[i].n) == 0) {
            *value = r->values[i];
            n++;
        }
    }
    return n;
}

/* What the headers say about the body; its length, if not chunked, in *length. */
static inline bool model_framing(struct model_request *r, unsigned __int128 *length)
{
    struct sl_str v = {"", 0};
    size_t n_host = model_values(r, "host", &v);
    if (n_host > 1 || (n_host == 0 && !r->http_1_0) ||
        !model_only(v, MODEL_ALPHA "0123456789.-_:[]%~"))
        return false;
    for (size_t i = 0; i < r->n_headers; i++) {
        if (sl_str_equals_nocase(r->names[i], "expect")) {
            if (!sl_str_equals_nocase(r->values[i], "100-continue"))
                return false;
            r->expect = !r->http_1_0;
        }
        if (sl_str_equals_nocase(r->names[i], "connection")) {
            bool close = model_has_word(r->values[i], "close");
            r->close = r->close || close;
            r->keep = (r->keep && !close) || (!close && model_has_word(r->values[i], "keep-alive"));
        }
    }
    size_t n_length = model_values(r, "content-length", &v);
    struct sl_str digits = v;
    size_t n_coding = model_values(r, "transfer-encoding", &v);
    if (n_length + n_coding > 1)
        return false;
    r->chunked = n_coding == 1;
    *length = 0;
    if (n_coding == 1)
        return !r->http_1_0 && sl_str_equals_nocase(v, "chunked");
    if (n_length == 0)
        return true;
    if (digits.n == 0 || digits.n > 19 || !model_only(digits, "0123456789"))
        return false;
    for (size_t i = 0; i < digits.n; i++)
        *length = *length * 10 + (unsigned)(digits.p[i] - '0');
    return true;
}

static inline enum model_end model_head(struct sl_str *rest, struct model_request *r)
{
    struct sl_str text = *rest, line;
    enum model_end end;
    size_t n_lines = 0;
    do { /* is the head complete? Only then is anything else looked at. */
        end = model_line(&text, &line);
        if (end != MODEL_GOOD)
            return end;
        n_lines++;
    } while (line.n > 0);
    end = model_line(rest, &line);
    if (n_lines < 2 || !model_first_line(r, line))
        return MODEL_BAD;
    while (n_lines-- > 2) {
        struct sl_str name;
        end = model_line(rest, &line);
        if (end != MODEL_GOOD || !model_cut(&line, ':', &name) || name.n == 0 ||
            !model_only(name, MODEL_TOKEN) || !model_text(model_trim(line)) ||
            r->n_headers == SL_HTTP_MAX_HEADERS)
            return MODEL_BAD;
        r->names[r->n_headers] = name;
        r->values[r->n_headers++] = model_trim(line);
    }
    return model_line(rest, &line);
}

static inline bool model_take(struct model_request *r, const char *data, size_t n)
{
    memcpy(r->body + r->n_body, data, n);
    r->n_body += n;
    return true;
}

/* One chunk's first line: size, extensions. As its end decides, an unfinished one that is good so
 * far needs more; the parser says sooner what is bad, so only the good and the whole are compared.
 */
static inline enum model_end model_chunk_size(struct sl_str *rest, unsigned __int128 *size)
{
    struct sl_str line, text = *rest;
    size_t n = 0;
    while (n < text.n && text.p[n] != '\r' && text.p[n] != ';')
        n++;
    if (!model_only((struct sl_str){text.p, n}, "0123456789abcdefABCDEF") || n > 16)
        return MODEL_BAD;
    if (n == text.n)
        return MODEL_MORE;
    if (n == 0)
        return MODEL_BAD;
    *size = 0;
    for (size_t i = 0; i < n; i++) {
        const char *hex = "0123456789abcdef0123456789ABCDEF";
        *size = *size * 16 + (unsigned)((strchr(hex, text.p[i]) - hex) % 16);
    }
    if (text.p[n] == ';') {
        size_t i = n + 1;
        while (i < text.n && (text.p[i] == ' ' || text.p[i] == '\t'))
            i++;
        if (i < text.n && !model_only((struct sl_str){text.p + i, 1}, MODEL_TOKEN))
            return MODEL_BAD;
        size_t from = i;
        while (i < text.n && text.p[i] != '\r')
            i++;
        size_t n_line = i - 1 - (i > from); /* neither the ';' nor the first letter counts */
        if (!model_text((struct sl_str){text.p + from, i - from}) || n_line > 256)
            return MODEL_BAD;
        if (i == text.n)
            return MODEL_MORE;
    }
    return model_line(rest, &line);
}

static inline enum model_end model_trailers(struct sl_str *rest)
{
    for (;;) {
        struct sl_str text = *rest, line, name;
        size_t n = 0;
        while (n < text.n && text.p[n] != '\r')
            n++;
        line = (struct sl_str){text.p, n};
        if (n > 0) { /* as far as it has come */
            bool named = model_cut(&line, ':', &name);
            if (!named)
                name = line;
            if ((named && name.n == 0) || !model_only(name, MODEL_TOKEN) ||
                (named && !model_text(line)) || (!named && n < text.n))
                return MODEL_BAD;
        }
        enum model_end end = model_line(rest, &line);
        if (end != MODEL_GOOD || line.n == 0)
            return end;
    }
}

static inline enum model_end model_chunks(struct sl_str *rest, struct model_request *r)
{
    for (;;) {
        unsigned __int128 size;
        enum model_end end = model_chunk_size(rest, &size);
        if (end != MODEL_GOOD)
            return end;
        if (size == 0)
            return model_trailers(rest);
        if (size + r->n_body > MODEL_MAX_BODY)
            return MODEL_BAD;
        size_t n = (size_t)size;
        if (rest->n < n)
            return MODEL_MORE;
        model_take(r, rest->p, n);
        if ((rest->n > n && rest->p[n] != '\r') || (rest->n > n + 1 && rest->p[n + 1] != '\n'))
            return MODEL_BAD;
        if (rest->n < n + 2)
            return MODEL_MORE;
        rest->p += n + 2;
        rest->n -= n + 2;
    }
}

/* The request at the beginning of *rest, which moves behind it. */
static inline enum model_end model_request(struct sl_str *rest, struct model_request *r)
{
    unsigned __int128 length;
    memset(r, 0, sizeof *r);
    enum model_end end = model_head(rest, r);
    if (end != MODEL_GOOD)
        return end;
    if (!model_framing(r, &length) || length > MODEL_MAX_BODY)
        return MODEL_BAD;
    if (r->chunked)
        return model_chunks(rest, r);
    if (rest->n < length)
        return MODEL_MORE;
    model_take(r, rest->p, (size_t)length);
    rest->p += (size_t)length;
    rest->n -= (size_t)length;
    return MODEL_GOOD;
}

#endif
