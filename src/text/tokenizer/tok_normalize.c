/* SPDX-License-Identifier: MIT
 * tok_normalize.c - normalizers: text to text before it is split.
 *
 * Normal forms work on stretches between characters before which nothing can compose or reorder
 * (UNI_SPLIT), so ASCII costs a copy and a stretch is a handful of code points. Invalid bytes,
 * which reach this only in byte-level tokenizers, pass through.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

void tok_norm_deinit(struct tok_norm *op)
{
    sl_free(op->a);
    sl_free(op->b);
    sl_free(op->map.units);
    sl_free(op->map.pool);
    tok_regex_destroy(op->re);
}

/* ---------------------------------------------------------------- normal forms */

struct stretch {
    uint64_t *cps; /* combining class << 32 | code point */
    size_t n, cap;
};

static bool stretch_put(struct stretch *st, uint32_t cp)
{
    if (st->n == st->cap) {
        size_t cap = SL_MAX(st->cap * 2, (size_t)64);
        uint64_t *grown = sl_realloc(st->cps, cap * sizeof(*grown));
        if (grown == NULL)
            return false;
        st->cps = grown;
        st->cap = cap;
    }
    st->cps[st->n++] = (uint64_t)tok_uni_ccc(cp) << 32 | cp;
    return true;
}

/* Stable merge sort by combining class of one run of marks; runs are short, but a hostile text may
 * make one as long as itself, so the sort must not be quadratic. */
static bool sort_marks(uint64_t *v, size_t n)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            uint64_t x = v[i];
            size_t j = i;
            for (; j > 0 && v[j - 1] >> 32 > x >> 32; j--)
                v[j] = v[j - 1];
            v[j] = x;
        }
        return true;
    }
    uint64_t *tmp = sl_malloc(n * sizeof(*tmp));
    if (tmp == NULL)
        return false;
    size_t count[257] = {0}; /* by counting: classes are bytes */
    for (size_t i = 0; i < n; i++)
        count[(v[i] >> 32) + 1]++;
    for (size_t c = 1; c < 257; c++)
        count[c] += count[c - 1];
    for (size_t i = 0; i < n; i++)
        tmp[count[v[i] >> 32]++] = v[i];
    memcpy(v, tmp, n * sizeof(*v));
    sl_free(tmp);
    return true;
}

static bool reorder(struct stretch *st)
{
    for (size_t i = 0; i < st->n;) {
        size_t j = i;
        while (j < st->n && st->cps[j] >> 32 != 0)
            j++;
        if (j > i + 1 && !sort_marks(&st->cps[i], j - i))
            return false;
        i = j + 1;
    }
    return true;
}

static void compose(struct stretch *st)
{
    size_t starter = SIZE_MAX, k = 0;
    uint64_t last_ccc = 0;
    for (size_t i = 0; i < st->n; i++) {
        uint32_t cp = (uint32_t)st->cps[i];
        uint64_t ccc = st->cps[i] >> 32;
        bool blocked = starter != SIZE_MAX && k > starter + 1 && last_ccc >= ccc;
        uint32_t joined =
            starter != SIZE_MAX && !blocked ? tok_uni_compose((uint32_t)st->cps[starter], cp) : 0;
        if (joined != 0) {
            st->cps[starter] = joined; /* ccc 0: every composite is a starter */
            continue;
        }
        if (ccc == 0)
            starter = k;
        last_ccc = ccc;
        st->cps[k++] = st->cps[i];
    }
    st->n = k;
}

static bool flush_stretch(struct stretch *st, bool composed, struct sl_buf *out)
{
    if (!reorder(st))
        return false;
    if (composed)
        compose(st);
    for (size_t i = 0; i < st->n; i++)
        tok_put_cp(out, (uint32_t)st->cps[i]);
    st->n = 0;
    return true;
}

static int normal_form(enum tok_norm_kind kind, const char *s, size_t n, struct sl_buf *out,
                       struct sl_error *err)
{
    bool composed = kind == NORM_NFC || kind == NORM_NFKC;
    bool compat = kind == NORM_NFKC || kind == NORM_NFKD;
    struct stretch st = {0};
    bool ok = true;
    for (size_t i = 0; i < n && ok;) {
        uint8_t b = (uint8_t)s[i];
        if (b < 0x80 && (i + 1 == n || (uint8_t)s[i + 1] < 0x80)) {
            size_t j = i + 1; /* the last of an ASCII run may compose with what follows */
            while (j < n && (uint8_t)s[j] < 0x80 && (j + 1 == n || (uint8_t)s[j + 1] < 0x80))
                j++;
            ok = flush_stretch(&st, composed, out);
            sl_buf_put(out, s + i, j - i);
            i = j;
            continue;
        }
        uint32_t cp, parts[TOK_DECOMP_MAX];
        size_t len = sl_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            ok = flush_stretch(&st, composed, out);
            sl_buf_put(out, s + i, 1);
            i++;
            continue;
        }
        if (tok_uni_prop(cp) & UNI_SPLIT)
            ok = flush_stretch(&st, composed, out);
        unsigned k = tok_uni_decompose(cp, compat, parts);
        for (unsigned j = 0; j < k && ok; j++)
            ok = stretch_put(&st, parts[j]);
        i += len;
    }
    ok = ok && flush_stretch(&st, composed, out);
    sl_free(st.cps);
    return ok ? 0 : sl_fail(err, SL_ENOMEM, "normalising %zu bytes", n);
}

/* ---------------------------------------------------------------- per-character normalizers */

static bool nmt_drops(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
           c == 0x9F;
}

static bool nmt_space(uint32_t c)
{
    return c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
}

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static void tok_normalize_put_lower(struct sl_buf *out, uint32_t cp)
{
    uint32_t low[2];
    unsigned k = tok_uni_lower(cp, low);
    for (unsigned i = 0; i < k; i++)
        tok_put_cp(out, low[i]);
}

static void bert_clean(const struct tok_norm *op, uint32_t cp, struct sl_buf *out)
{
    unsigned prop = tok_uni_prop(cp);
    if (op->clean_text) {
        bool blank = cp == '\t' || cp == '\n' || cp == '\r';
        if (cp == 0 || cp == 0xFFFD || (prop & UNI_OTHER))
            return;
        if (blank || (prop & UNI_SPACE))
            cp = ' ';
    }
    if (op->chinese && is_chinese(cp)) {
        sl_buf_putc(out, ' ');
        tok_put_cp(out, cp);
        sl_buf_putc(out, ' ');
    } else {
        tok_put_cp(out, cp);
    }
}

static int each_char(const struct tok_norm *op, const char *s, size_t n, struct sl_buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = sl_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            sl_buf_putc(out, s[i]);
            len = 1;
            continue;
        }
        switch (op->kind) {
        case NORM_LOWERCASE:
            tok_normalize_put_lower(out, cp);
            break;
        case NORM_STRIP_ACCENTS:
            if (!(tok_uni_prop(cp) & UNI_MARK))
                tok_put_cp(out, cp);
            break;
        case NORM_NMT:
            if (!nmt_drops(cp))
                tok_put_cp(out, nmt_space(cp) ? ' ' : cp);
            break;
        default:
            bert_clean(op, cp, out);
            break;
        }
    }
    return 0;
}

/* clean and spread Chinese characters, then accents away, then lower case */
static int bert(const struct tok_norm *op, const char *s, size_t n, struct sl_buf *out,
                struct sl_error *err)
{
    struct sl_buf a = {0}, b = {0};
    int rc;
    struct sl_buf *res = &a;
    each_char(op, s, n, &a);
    if (op->strip_accents) {
        rc = normal_form(NORM_NFD, a.data, a.n_bytes, &b, err);
        if (rc != 0)
            goto out;
        sl_buf_clear(&a);
        for (size_t i = 0, len; i < b.n_bytes; i += len) {
            uint32_t cp;
            len = tok_char(b.data + i, b.n_bytes - i, &cp);
            if (!(tok_uni_prop(cp) & UNI_ACCENT))
                sl_buf_put(&a, b.data + i, len);
        }
    }
    if (op->lowercase) {
        struct tok_norm lower = {.kind = NORM_LOWERCASE};
        sl_buf_clear(&b);
        each_char(&lower, a.data, a.n_bytes, &b);
        res = &b;
    }
    if (res->n_bytes > 0)
        sl_buf_put(out, res->data, res->n_bytes);
    rc = sl_buf_ok(&a) && sl_buf_ok(&b) ? 0 : sl_fail(err, SL_ENOMEM, "normalising %zu bytes", n);
out:
    sl_buf_deinit(&a);
    sl_buf_deinit(&b);
    return rc;
}

static void strip(const struct tok_norm *op, const char *s, size_t n, struct sl_buf *out)
{
    size_t from = 0, to = 0;
    bool seen = false;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = tok_char(s + i, n - i, &cp);
        if (tok_uni_prop(cp) & UNI_SPACE)
            continue;
        if (!seen)
            from = i;
        seen = true;
        to = i + len;
    }
    if (!seen) { /* nothing but white space */
        if (!op->left && !op->right)
            sl_buf_put(out, s, n);
        return;
    }
    if (!op->left)
        from = 0;
    if (!op->right)
        to = n;
    sl_buf_put(out, s + from, to - from);
}

struct replacing {
    const struct tok_norm *op;
    const char *s;
    size_t pos;
    struct sl_buf *out;
};

static int tok_normalize_replace_match(void *arg, size_t start, size_t end)
{
    struct replacing *r = arg;
    sl_buf_put(r->out, r->s + r->pos, start - r->pos);
    sl_buf_put(r->out, r->op->b, r->op->n_b);
    r->pos = end;
    return 0;
}

static int replace(const struct tok_norm *op, const char *s, size_t n, struct sl_buf *out,
                   struct sl_error *err)
{
    struct replacing r = {op, s, 0, out};
    int rc = 0;
    if (op->kind == NORM_REPLACE_RE) {
        rc = tok_regex_each(op->re, NULL, s, n, tok_normalize_replace_match, &r, err);
    } else if (op->n_a > 0) {
        while (n - r.pos >= op->n_a) {
            const char *hit = memmem(s + r.pos, n - r.pos, op->a, op->n_a);
            if (hit == NULL)
                break;
            tok_normalize_replace_match(&r, (size_t)(hit - s), (size_t)(hit - s) + op->n_a);
        }
    }
    sl_buf_put(out, s + r.pos, n - r.pos);
    return rc;
}

/* ---------------------------------------------------------------- SentencePiece */

int tok_charsmap_parse(struct tok_charsmap *m, const uint8_t *data, size_t n, struct sl_error *err)
{
    uint32_t size;
    if (n < 4)
        return sl_fail(err, SL_EFORMAT, "precompiled_charsmap: %zu bytes", n);
    size = data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
    if (size > n - 4 || size % 4 != 0 || size < 4)
        return sl_fail(err, SL_EFORMAT, "precompiled_charsmap: trie of %u bytes in %zu", size, n);
    m->n_units = size / 4;
    m->n_pool = n - 4 - size;
    m->units = sl_malloc(size);
    m->pool = sl_calloc(m->n_pool + 1, 1);
    if (m->units == NULL || m->pool == NULL)
        return sl_fail(err, SL_ENOMEM, "precompiled_charsmap");
    for (size_t i = 0; i < m->n_units; i++) {
        const uint8_t *p = data + 4 + 4 * i;
        m->units[i] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    if (m->n_pool > 0)
        memcpy(m->pool, data + 4 + size, m->n_pool);
    return 0;
}

/* Walks the double array along s; the value and length of the longest key, or of the shortest.
 * Units as in darts-clone: bits 0..7 and 31 label, 8 has-leaf, 9 shift of the offset by 8, the rest
 * the offset; a leaf has bit 31 set and a value below it. */
static bool charsmap_find(const struct tok_charsmap *m, const char *s, size_t n, bool longest,
                          uint32_t *value, size_t *len)
{
    bool found = false;
    uint64_t node = 0;
    if (m->n_units == 0)
        return false;
    uint32_t unit = m->units[0];
    node ^= (uint64_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)s[i];
        if (b == 0)
            break;
        node ^= b;
        if (node >= m->n_units)
            break;
        unit = m->units[node];
        if ((unit & (1u << 31 | 0xFF)) != b)
            break;
        node ^= (uint64_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
        if (node >= m->n_units)
            break;
        if (unit >> 8 & 1) {
            *value = m->units[node] & ~(1u << 31);
            *len = i + 1;
            found = true;
            if (!longest)
                break;
        }
    }
    return found && *value < m->n_pool;
}

static int tok_normalize_precompiled(const struct tok_norm *op, const char *s, size_t n,
                                     struct sl_buf *out)
{
    uint32_t value;
    size_t len;
    for (size_t i = 0; i < n;) {
        size_t g = tok_grapheme_len(s + i, n - i);
        if (g < 6 && charsmap_find(&op->map, s + i, g, false, &value, &len)) {
            sl_buf_puts(out, op->map.pool + value);
            i += g;
            continue;
        }
        for (size_t end = i + g, k; i < end; i += k) {
            uint32_t cp;
            k = tok_char(s + i, end - i, &cp);
            if (charsmap_find(&op->map, s + i, k, false, &value, &len))
                sl_buf_puts(out, op->map.pool + value);
            else
                sl_buf_put(out, s + i, k);
        }
    }
    return 0;
}

/* What the beginning of s becomes, and how much of s that is. */
static size_t spm_prefix(const struct sl_tokenizer *t, const struct tok_norm *op, const char *s,
                         size_t n, const char **res, size_t *n_res)
{
    uint32_t value, cp;
    size_t len;
    if (t->has_user && tok_trie_longest(&t->user, s, n, &len) >= 0) {
        *res = s;
        *n_res = len;
        return len;
    }
    if (charsmap_find(&op->map, s, n, true, &value, &len)) {
        *res = op->map.pool + value;
        *n_res = strlen(*res);
        return len;
    }
    *res = s;
    *n_res = tok_char(s, n, &cp);
    return *n_res;
}

static void spm_put(const struct tok_norm *op, struct sl_buf *out, const char *s, size_t n)
{
    if (!op->escape) {
        sl_buf_put(out, s, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ')
            sl_buf_put(out, "\xE2\x96\x81", 3);
        else
            sl_buf_putc(out, s[i]);
    }
}

static int spm(const struct sl_tokenizer *t, const struct tok_norm *op, const char *s, size_t n,
               struct sl_buf *out)
{
    const char *p;
    size_t n_p, start = out->n_bytes, used;
    bool prev_space = op->remove_extra;
    while (op->remove_extra && n > 0) {
        used = spm_prefix(t, op, s, n, &p, &n_p);
        if (n_p != 1 || p[0] != ' ')
            break;
        s += used;
        n -= used;
    }
    if (n == 0)
        return 0;
    if (op->dummy_prefix && !op->suffix_spaces)
        spm_put(op, out, " ", 1);
    while (n > 0) {
        used = spm_prefix(t, op, s, n, &p, &n_p);
        while (prev_space && n_p > 0 && p[0] == ' ') {
            p++;
            n_p--;
        }
        if (n_p > 0) {
            spm_put(op, out, p, n_p);
            prev_space = p[n_p - 1] == ' ';
        }
        if (!op->remove_extra)
            prev_space = false;
        s += used;
        n -= used;
    }
    const char *space = op->escape ? "\xE2\x96\x81" : " ";
    size_t w = strlen(space);
    while (op->remove_extra && out->n_bytes - start >= w &&
           memcmp(out->data + out->n_bytes - w, space, w) == 0)
        out->n_bytes -= w;
    if (op->dummy_prefix && op->suffix_spaces)
        spm_put(op, out, " ", 1);
    return 0;
}

/* ---------------------------------------------------------------- all of them */

int tok_norm_run(const struct sl_tokenizer *t, const struct tok_norm *op, const char *s, size_t n,
                 struct sl_buf *out, struct sl_error *err)
{
    int rc = 0;
    switch (op->kind) {
    case NORM_NFC:
    case NORM_NFD:
    case NORM_NFKC:
    case NORM_NFKD:
        rc = normal_form(op->kind, s, n, out, err);
        break;
    case NORM_LOWERCASE:
    case NORM_STRIP_ACCENTS:
    case NORM_NMT:
        rc = each_char(op, s, n, out);
        break;
    case NORM_BERT:
        rc = bert(op, s, n, out, err);
        break;
    case NORM_STRIP:
        strip(op, s, n, out);
        break;
    case NORM_PREPEND:
        if (n > 0)
            sl_buf_put(out, op->b, op->n_b);
        sl_buf_put(out, s, n);
        break;
    case NORM_REPLACE:
    case NORM_REPLACE_RE:
        rc = replace(op, s, n, out, err);
        break;
    case NORM_PRECOMPILED:
        rc = tok_normalize_precompiled(op, s, n, out);
        break;
    case NORM_SPM:
        rc = spm(t, op, s, n, out);
        break;
    case NORM_BYTE_LEVEL:
        for (size_t i = 0; i < n; i++)
            tok_put_cp(out, tok_cp_of_byte((uint8_t)s[i]));
        break;
    }
    if (rc == 0 && (!sl_buf_ok(out) || out->n_bytes > UINT32_MAX))
        rc = sl_fail(err, SL_ENOMEM, "normalising %zu bytes", n);
    return rc;
}

int tok_normalize(const struct sl_tokenizer *t, const char *s, size_t n, struct sl_buf bufs[2],
                  const char **res, size_t *n_res, struct sl_error *err)
{
    for (size_t i = 0; i < t->n_norm; i++) {
        struct sl_buf *out = &bufs[i & 1];
        sl_buf_clear(out);
        int rc = tok_norm_run(t, &t->norm[i], s, n, out, err);
        if (rc != 0)
            return rc;
        s = out->n_bytes > 0 ? out->data : "";
        n = out->n_bytes;
    }
    *res = s;
    *n_res = n;
    return 0;
}
