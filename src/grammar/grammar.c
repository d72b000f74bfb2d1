/* SPDX-License-Identifier: MIT
 * grammar.c - compiling a specification; matchers.
 *
 * The automaton of a grammar grows while it is walked. When it has become large, the next matcher
 * gets a fresh one, and the old one goes with its last matcher: a grammar in constant use stays
 * within its memory.
 */
#include "grammar/grammar.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/json_load.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/cset.h"
#include "grammar/ebnf.h"
#include "grammar/mask.h"
#include "grammar/regex.h"
#include "grammar/tags.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct sl_rx_limits rx_limits = {
    .max_nodes = 1500000, .max_rows = 50000, .max_bytes = 64u << 20};
static const struct sl_auto_limits auto_limits = {.max_bytes = 64u << 20,
                                                  .max_depth = SL_AUTO_MAX_DEPTH,
                                                  .max_threads = 1000,
                                                  .max_states = 1000000};
enum {
    COMPILE_DERIVATIVES = 2000000, /* about a second at worst */
    CALL_DERIVATIVES = 400000,
    RENEW_STATES = 300000, /* beyond, the next matcher gets a fresh automaton */
    KEPT_ROWS = 8000,      /* transitions that are kept from one call to the next */
};

struct instance {
    struct sl_auto a;
    struct sl_masks masks;
    bool has_masks;
    uint32_t n_users;
};

struct sl_grammar {
    struct sl_grammar_spec spec; /* owns its text and remotes */
    const struct sl_vocab *vocab;
    struct instance *now;
    pthread_mutex_t lock;
};

struct sl_matcher {
    struct sl_grammar *g;
    struct instance *in;
    uint32_t *states; /* [n + 1] before each token and now */
    uint32_t n, cap;
    bool ended;
};

/* ---------------------------------------------------------------- compiling */

/* Integers beyond 64 bits as strings that schema_number.c knows, so that no digit is lost. */
static void mark_integers(const char *s, size_t n, struct sl_buf *out)
{
    size_t at = 0, copied = 0, begin;
    while (sl_json_next_wide(s, n, &at, &begin)) {
        sl_buf_put(out, s + copied, begin - copied);
        sl_buf_puts(out, "\"" SL_BIG_INTEGER_JSON);
        sl_buf_put(out, s + begin, at - begin);
        sl_buf_putc(out, '"');
        copied = at;
    }
    SL_ASSERT(copied <= n);
    sl_buf_put(out, s + copied, n - copied);
}

static json_t *parse_json(const char *text, size_t n, const char *what, struct sl_error *err)
{
    json_error_t why;
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES;
    json_t *doc = sl_json_load(text, n, flags, &why);
    if (doc == NULL && json_error_code(&why) == json_error_numeric_overflow) {
        struct sl_buf b = {0};
        mark_integers(text, n, &b);
        if (sl_buf_ok(&b))
            doc = sl_json_load(b.data, b.n_bytes, flags, &why);
        sl_buf_deinit(&b);
    }
    if (doc == NULL)
        (void)sl_fail(err, sl_json_no_memory(&why) ? SL_ENOMEM : SL_EINVAL,
                      "grammar: %s is not JSON: %s", what, why.text);
    return doc;
}

static int compile_schema(struct sl_auto *a, const struct sl_grammar_spec *spec,
                          struct sl_error *err)
{
    static const char object[] = "{\"type\":\"object\"}";
    bool any = spec->kind == SL_GRAMMAR_JSON_OBJECT;
    struct sl_remote *remotes = sl_calloc(spec->n_remotes + 1, sizeof *remotes);
    struct sl_schema_options options = {
        .draft7 = spec->draft7, .ignore_formats = spec->ignore_formats, .remotes = remotes};
    uint32_t root;
    int rc = remotes == NULL ? sl_fail(err, SL_ENOMEM, "grammar: out of memory") : 0;
    for (size_t i = 0; i < spec->n_remotes && rc == 0; i++) {
        json_t *doc =
            parse_json(spec->remotes[i].text, spec->remotes[i].n, spec->remotes[i].uri, err);
        remotes[options.n_remotes++] = (struct sl_remote){spec->remotes[i].uri, doc};
        rc = doc == NULL ? err->code : 0;
    }
    json_t *doc = rc != 0 ? NULL
                          : parse_json(any ? object : spec->text, any ? sizeof object - 1 : spec->n,
                                       "the schema", err);
    if (rc == 0)
        rc = doc == NULL ? err->code : sl_schema_add(&a->schema, doc, &options, &root, err);
    if (rc == 0)
        rc = sl_auto_start_json(a, root, err);
    json_decref(doc);
    for (size_t i = 0; i < options.n_remotes; i++)
        json_decref(remotes[i].doc);
    sl_free(remotes);
    return rc;
}

static int start_rx(struct sl_auto *a, sl_rx_id id, struct sl_error *err)
{
    uint32_t end = sl_auto_add_pos(a, (struct sl_pos){POS_END, 0, 0});
    if (!sl_rx_alive(&a->rx, id))
        id = SL_RX_NONE;
    return sl_auto_start_pos(a, sl_auto_add_pos(a, (struct sl_pos){POS_TERM, id, end}), err);
}

static int grammar_by_bytes(const void *a, const void *b)
{
    const struct sl_rx_str *x = a, *y = b;
    int c = memcmp(x->s, y->s, SL_MIN(x->n, y->n));
    return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

static int compile_choice(struct sl_auto *a, const struct sl_grammar_spec *spec,
                          struct sl_error *err)
{
    size_t i, n = 0;
    json_t *v, *doc = parse_json(spec->text, spec->n, "the choice", err);
    int rc = doc == NULL ? err->code : 0;
    struct sl_rx_str *list = sl_calloc(json_array_size(doc) + 1, sizeof *list);
    if (rc == 0 && list == NULL)
        rc = sl_fail(err, SL_ENOMEM, "grammar: out of memory");
    if (rc == 0 && (!json_is_array(doc) || json_array_size(doc) == 0))
        rc = sl_fail(err, SL_EINVAL, "grammar: choice is not an array with at least one string");
    for (i = 0; rc == 0 && i < json_array_size(doc); i++) {
        v = json_array_get(doc, i);
        if (!json_is_string(v))
            rc = sl_fail(err, SL_EINVAL, "grammar: choice[%zu] is not a string", i);
        else
            list[i] = (struct sl_rx_str){json_string_value(v), json_string_length(v)};
    }
    if (rc == 0) {
        qsort(list, json_array_size(doc), sizeof *list, grammar_by_bytes);
        for (i = 0; i < json_array_size(doc); i++)
            if (n == 0 || grammar_by_bytes(&list[n - 1], &list[i]) != 0)
                list[n++] = list[i];
        rc = start_rx(a, sl_rx_strings(&a->rx, list, n), err);
    }
    sl_free(list);
    json_decref(doc);
    return rc;
}

static int grammar_compile(struct sl_auto *a, const struct sl_grammar_spec *spec,
                           struct sl_error *err)
{
    sl_rx_id id;
    uint32_t pos = 0;
    json_t *doc;
    int rc;
    switch (spec->kind) {
    case SL_GRAMMAR_JSON_OBJECT:
    case SL_GRAMMAR_JSON_SCHEMA:
        return compile_schema(a, spec, err);
    case SL_GRAMMAR_REGEX:
        rc = sl_regex_parse(&a->rx, spec->text, spec->n, 0, SL_SPELL_UTF8, &id, err);
        return rc != 0 ? rc : start_rx(a, id, err);
    case SL_GRAMMAR_CHOICE:
        return compile_choice(a, spec, err);
    case SL_GRAMMAR_EBNF:
        pos = sl_auto_add_pos(a, (struct sl_pos){POS_END, 0, 0});
        rc = sl_ebnf_compile(a, spec->text, spec->n, &(struct sl_ebnf_options){0}, pos, &pos, err);
        return rc != 0 ? rc : sl_auto_start_pos(a, pos, err);
    case SL_GRAMMAR_STRUCTURAL:
        doc = parse_json(spec->text, spec->n, "the structural tag", err);
        rc = doc == NULL ? err->code : sl_tags_compile(a, doc, &pos, err);
        json_decref(doc);
        return rc != 0 ? rc : sl_auto_start_pos(a, pos, err);
    }
    return sl_fail(err, SL_EINVAL, "grammar: unknown kind");
}

static void instance_destroy(struct instance *in)
{
    if (in->has_masks)
        sl_masks_deinit(&in->masks);
    sl_auto_deinit(&in->a);
    sl_free(in);
}

static int instance_create(const struct sl_grammar *g, struct instance **out, struct sl_error *err)
{
    struct instance *in = sl_calloc(1, sizeof *in);
    if (in == NULL)
        return sl_fail(err, SL_ENOMEM, "grammar: out of memory");
    int rc = sl_auto_init(&in->a, &rx_limits, &auto_limits, &g->spec.style, err);
    if (rc != 0) {
        sl_free(in);
        return rc;
    }
    in->a.rx.max_derived = COMPILE_DERIVATIVES;
    rc = grammar_compile(&in->a, &g->spec, err);
    if (rc == 0 && g->vocab != NULL) {
        rc = sl_masks_init(&in->masks, &in->a, g->vocab, err);
        in->has_masks = rc == 0;
    }
    if (rc != 0)
        instance_destroy(in);
    else
        *out = in;
    return rc;
}

static int copy_spec(struct sl_grammar *g, const struct sl_grammar_spec *spec)
{
    struct sl_grammar_remote *r = sl_calloc(spec->n_remotes + 1, sizeof *r);
    g->spec = *spec;
    g->spec.text = sl_strndup(spec->text != NULL ? spec->text : "", spec->n);
    g->spec.remotes = r;
    g->spec.n_remotes = 0;
    if (spec->style.whitespace != NULL)
        g->spec.style.whitespace = sl_strdup(spec->style.whitespace);
    if (g->spec.text == NULL || r == NULL ||
        (spec->style.whitespace != NULL && g->spec.style.whitespace == NULL))
        return SL_ENOMEM;
    for (size_t i = 0; i < spec->n_remotes; i++) {
        r[i].uri = sl_strdup(spec->remotes[i].uri);
        r[i].text = sl_strndup(spec->remotes[i].text, spec->remotes[i].n);
        r[i].n = spec->remotes[i].n;
        g->spec.n_remotes++;
        if (r[i].uri == NULL || r[i].text == NULL)
            return SL_ENOMEM;
    }
    return 0;
}

int sl_grammar_compile(const struct sl_grammar_spec *spec, const struct sl_vocab *vocab,
                       struct sl_grammar **out, struct sl_error *err)
{
    struct sl_grammar *g = sl_calloc(1, sizeof *g);
    if (g == NULL)
        return sl_fail(err, SL_ENOMEM, "grammar: out of memory");
    pthread_mutex_init(&g->lock, NULL);
    g->vocab = vocab;
    int rc = copy_spec(g, spec);
    if (rc != 0)
        rc = sl_fail(err, rc, "grammar: out of memory");
    else
        rc = instance_create(g, &g->now, err);
    if (rc != 0)
        sl_grammar_destroy(g);
    else
        *out = g;
    return rc;
}

void sl_grammar_destroy(struct sl_grammar *g)
{
    if (g == NULL)
        return;
    if (g->now != NULL)
        instance_destroy(g->now);
    for (size_t i = 0; i < g->spec.n_remotes; i++) {
        sl_free((char *)g->spec.remotes[i].uri);
        sl_free((char *)g->spec.remotes[i].text);
    }
    sl_free((struct sl_grammar_remote *)g->spec.remotes);
    sl_free((char *)g->spec.text);
    sl_free((char *)g->spec.style.whitespace);
    pthread_mutex_destroy(&g->lock);
    sl_free(g);
}

bool sl_grammar_bytes(struct sl_grammar *g, size_t *n_bytes)
{
    if (pthread_mutex_trylock(&g->lock) != 0)
        return false;
    const struct instance *in = g->now;
    const struct sl_rx *rx = &in->a.rx;
    size_t n = sizeof *in + rx->arena.used_bytes + in->a.arena.used_bytes;
    n += in->a.schema.arena.used_bytes + (size_t)rx->cap_nodes * sizeof *rx->nodes;
    n += (size_t)in->a.cap_vecs * sizeof *in->a.vecs;
    for (size_t i = 0; in->has_masks && i < SL_MASK_CACHE; i++)
        n += in->masks.at[i].mask != NULL ? g->vocab->n_words * sizeof(uint32_t) : 0;
    pthread_mutex_unlock(&g->lock);
    *n_bytes = n;
    return true;
}

/* ---------------------------------------------------------------- matchers */

int sl_matcher_create(struct sl_grammar *g, uint32_t max_tokens, struct sl_matcher **out,
                      struct sl_error *err)
{
    struct sl_matcher *m = sl_calloc(1, sizeof *m);
    uint32_t *states = sl_malloc(((size_t)max_tokens + 2) * sizeof *states);
    int rc = 0;
    if (m == NULL || states == NULL) {
        sl_free(m);
        sl_free(states);
        return sl_fail(err, SL_ENOMEM, "grammar: out of memory");
    }
    pthread_mutex_lock(&g->lock);
    struct instance *old = g->now;
    if (old->a.n_vecs > RENEW_STATES || old->a.rx.n_nodes > RENEW_STATES || old->a.failed != NULL ||
        old->a.rx.failed != NULL) {
        struct instance *fresh;
        rc = instance_create(g, &fresh, err);
        if (rc == 0) {
            g->now = fresh;
            if (old->n_users == 0)
                instance_destroy(old);
        }
    }
    if (rc == 0)
        g->now->n_users++;
    m->in = g->now;
    pthread_mutex_unlock(&g->lock);
    m->g = g;
    m->states = states;
    m->cap = max_tokens + 1;
    m->states[0] = m->in->a.start;
    if (rc != 0) {
        sl_free(states);
        sl_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void sl_matcher_destroy(struct sl_matcher *m)
{
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->g->lock);
    if (--m->in->n_users == 0 && m->in != m->g->now)
        instance_destroy(m->in);
    pthread_mutex_unlock(&m->g->lock);
    sl_free(m->states);
    sl_free(m);
}

static void begin_call(struct instance *in)
{
    sl_rx_trim(&in->a.rx, KEPT_ROWS);
    in->a.rx.max_derived = in->a.rx.n_derived + CALL_DERIVATIVES;
}

static bool grammar_is_end(const struct sl_vocab *v, int32_t token)
{
    for (uint32_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == token)
            return true;
    return false;
}

int sl_matcher_accept(struct sl_matcher *m, int32_t token, bool *allowed, struct sl_error *err)
{
    const struct sl_vocab *v = m->g->vocab;
    struct sl_auto *a = &m->in->a;
    uint32_t s = m->states[m->n];
    *allowed = false;
    if (v == NULL || token < 0 || (uint32_t)token >= v->n_tokens)
        return sl_fail(err, SL_EINVAL, "grammar: token %d is not in the vocabulary", token);
    if (m->n + 1 >= m->cap)
        return sl_fail(err, SL_ELIMIT, "grammar: more tokens than the matcher was made for");
    if (m->ended)
        return 0;
    pthread_mutex_lock(&m->g->lock);
    begin_call(m->in);
    bool end = grammar_is_end(v, token) && sl_auto_accepts(a, s);
    bool text = v->start[token] < v->start[token + 1];
    for (uint32_t i = v->start[token]; i < v->start[token + 1] && s != 0 && !end; i++)
        s = sl_auto_step(a, s, (uint8_t)v->bytes[i]);
    int rc = end ? 0 : sl_auto_check(a, err);
    pthread_mutex_unlock(&m->g->lock);
    *allowed = rc == 0 && (end || (text && s != 0));
    if (*allowed) {
        m->states[++m->n] = s;
        m->ended = end;
    }
    return rc;
}

void sl_matcher_rollback(struct sl_matcher *m, uint32_t n_tokens)
{
    SL_ASSERT(n_tokens <= m->n);
    m->n -= n_tokens;
    m->ended = m->ended && n_tokens == 0;
}

int sl_matcher_mask(struct sl_matcher *m, uint32_t *mask, struct sl_error *err)
{
    const struct sl_vocab *v = m->g->vocab;
    if (v == NULL)
        return sl_fail(err, SL_EINVAL, "grammar: compiled without a vocabulary");
    if (m->ended) {
        memset(mask, 0, v->n_words * sizeof mask[0]);
        for (uint32_t i = 0; i < v->n_ends; i++)
            mask[(uint32_t)v->ends[i] / 32] |= 1u << (v->ends[i] & 31);
        return 0;
    }
    pthread_mutex_lock(&m->g->lock);
    begin_call(m->in);
    int rc = sl_masks_fill(&m->in->masks, &m->in->a, m->states[m->n], mask, err);
    pthread_mutex_unlock(&m->g->lock);
    return rc;
}

int sl_matcher_forced(struct sl_matcher *m, char *out, size_t cap, size_t *n, struct sl_error *err)
{
    struct sl_auto *a = &m->in->a;
    uint32_t s = m->states[m->n];
    bool one = !m->ended;
    *n = 0;
    pthread_mutex_lock(&m->g->lock);
    begin_call(m->in);
    while (one && *n < cap && !sl_auto_accepts(a, s)) {
        uint32_t to = 0;
        unsigned byte = 0;
        for (unsigned b = 0; b < 256 && one; b++) {
            uint32_t next = sl_auto_step(a, s, (uint8_t)b);
            one = next == 0 || to == 0;
            to = next != 0 ? next : to;
            byte = next != 0 ? b : byte;
        }
        one = one && to != 0;
        if (one) {
            out[(*n)++] = (char)byte;
            s = to;
        }
    }
    int rc = sl_auto_check(a, err);
    pthread_mutex_unlock(&m->g->lock);
    /* Half a character is not text: it will be forced again with its rest. */
    *n -= sl_utf8_incomplete_tail(out, *n);
    return rc;
}

/* The node of a tree at the end of some bytes; t->n: there is none. */
static uint32_t find_node(const struct sl_vocab_tree *t, const char *s, size_t n)
{
    uint32_t i = 0, end = t->n, found = t->n;
    for (size_t k = 0; k < n; k++) {
        while (i < end && t->nodes[i].byte != (uint8_t)s[k])
            i += t->nodes[i].skip;
        if (i >= end)
            return t->n;
        found = i;
        end = i + t->nodes[i].skip;
        i++;
    }
    return found;
}

/* Has the node, where the automaton is in state s, a longer token below it that may come? */
static bool may_extend(struct sl_auto *a, const struct sl_vocab_tree *t, uint32_t node, uint32_t s)
{
    uint32_t states[SL_VOCAB_MAX_TOKEN + 1];
    uint32_t end = node + t->nodes[node].skip;
    states[t->nodes[node].depth] = s;
    for (uint32_t i = node + 1; i < end;) {
        const struct sl_vocab_node *x = &t->nodes[i];
        uint32_t to = sl_auto_step(a, states[x->depth - 1], x->byte);
        if (to != 0 && t->nodes[i + 1].first > x->first)
            return true;
        states[x->depth] = to;
        i += to == 0 ? x->skip : 1;
    }
    return false;
}

int sl_matcher_overlap(struct sl_matcher *m, const char *text, size_t n, size_t *at,
                       struct sl_error *err)
{
    const struct sl_vocab *v = m->g->vocab;
    const struct sl_vocab_tree *trees[] = {&v->plain, &v->rest};
    struct sl_auto *a = &m->in->a;
    bool found = false;
    pthread_mutex_lock(&m->g->lock);
    begin_call(m->in);
    uint32_t s = m->states[m->n];
    for (size_t i = 0; i < n && s != 0; i++)
        s = sl_auto_step(a, s, (uint8_t)text[i]);
    *at = n > SL_VOCAB_MAX_TOKEN ? n - SL_VOCAB_MAX_TOKEN : 0;
    for (; *at < n && s != 0 && !found; *at += !found)
        for (size_t k = 0; k < SL_COUNT(trees) && !found; k++) {
            uint32_t node = find_node(trees[k], text + *at, n - *at);
            found = node != trees[k]->n && may_extend(a, trees[k], node, s);
        }
    int rc = sl_auto_check(a, err);
    pthread_mutex_unlock(&m->g->lock);
    return rc;
}

bool sl_matcher_complete(struct sl_matcher *m)
{
    pthread_mutex_lock(&m->g->lock);
    bool yes = m->ended || sl_auto_accepts(&m->in->a, m->states[m->n]);
    pthread_mutex_unlock(&m->g->lock);
    return yes;
}

bool sl_matcher_ended(const struct sl_matcher *m)
{
    return m->ended;
}

uint32_t sl_matcher_n_tokens(const struct sl_matcher *m)
{
    return m->n;
}

int sl_grammar_matches(struct sl_grammar *g, const char *text, size_t n, bool *matches,
                       size_t *n_read, struct sl_error *err)
{
    pthread_mutex_lock(&g->lock);
    struct sl_auto *a = &g->now->a;
    uint32_t s = a->start, to = s;
    size_t i = 0;
    for (; i < n && to != 0; i += to != 0) {
        begin_call(g->now);
        to = sl_auto_step(a, s, (uint8_t)text[i]);
        s = to != 0 ? to : s;
    }
    *matches = to != 0 && sl_auto_accepts(a, s);
    *n_read = i;
    int rc = sl_auto_check(a, err);
    pthread_mutex_unlock(&g->lock);
    return rc;
}
