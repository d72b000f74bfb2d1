/* SPDX-License-Identifier: MIT */
#include "engine/constrain.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/sys.h"
#include "engine/core.h"
#include "engine/stats.h"

#include <string.h>

struct sl_constraint {
    atomic_int refs; /* the cache's included */
    struct sl_constraints *store;
    struct sl_grammar *grammar;
    enum sl_grammar_kind kind;
    struct sl_json_style style; /* owns its pattern */
    char *text;
    size_t n_text;
    uint64_t hash;
    /* the store's lock */
    size_t n_bytes;                      /* when it was looked at last */
    struct sl_constraint *newer, *older; /* in the cache, by last use */
    bool cached;
};

struct sl_constraints {
    atomic_int refs;                /* the engine's, and one for each constraint */
    const struct sl_tokenizer *tok; /* until closed */
    int32_t n_logits;
    int32_t *eos_ids;
    int32_t n_eos_ids;
    pthread_mutex_t vocab_lock; /* while the vocabulary is made */
    struct sl_vocab *vocab;     /* set once, then constant */
    uint32_t *ends;             /* [vocab->n_words] */
    atomic_int n_matchers;
    pthread_mutex_t lock; /* all that follows */
    bool closed;
    struct sl_constraint *newest, *oldest;
    int32_t n;
    uint64_t n_hits, n_misses, n_failed;
    struct sl_hist compile_s;
};

/* ------------------------------------------------------------------ lifetimes */

int sl_constraints_create(const struct sl_tokenizer *tok, int32_t n_logits, const int32_t *eos_ids,
                          int32_t n_eos_ids, struct sl_constraints **out, struct sl_error *err)
{
    SL_ASSERT(tok != NULL && n_logits > 0 && n_eos_ids >= 0);
    struct sl_constraints *s = sl_calloc(1, sizeof *s);
    int32_t *ids = sl_calloc((size_t)n_eos_ids + 2, sizeof *ids);
    if (s == NULL || ids == NULL) {
        sl_free(s);
        sl_free(ids);
        return sl_fail(err, SL_ENOMEM, "out of memory for constraints");
    }
    if (n_eos_ids > 0)
        memcpy(ids, eos_ids, (size_t)n_eos_ids * sizeof *ids);
    atomic_init(&s->refs, 1);
    s->tok = tok;
    s->n_logits = n_logits;
    s->eos_ids = ids;
    s->n_eos_ids = n_eos_ids;
    pthread_mutex_init(&s->vocab_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return 0;
}

static void unref_store(struct sl_constraints *s)
{
    int before = atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel);
    SL_ASSERT(before > 0);
    if (before > 1)
        return;
    SL_ASSERT(s->closed && s->n == 0 && s->newest == NULL && s->oldest == NULL);
    SL_ASSERT(atomic_load(&s->n_matchers) == 0);
    sl_vocab_destroy(s->vocab);
    sl_free(s->ends);
    sl_free(s->eos_ids);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->vocab_lock);
    sl_free(s);
}

struct sl_constraint *sl_constraint_ref(struct sl_constraint *c)
{
    int before = atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    SL_ASSERT(before > 0); /* who asks has one, or the lock of the cache that has */
    return c;
}

void sl_constraint_release(struct sl_constraint *c)
{
    if (c == NULL)
        return;
    int before = atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel);
    SL_ASSERT(before > 0);
    if (before > 1)
        return;
    SL_ASSERT(!c->cached && c->newer == NULL && c->older == NULL);
    struct sl_constraints *s = c->store;
    sl_grammar_destroy(c->grammar);
    sl_free((char *)c->style.whitespace);
    sl_free(c->text);
    sl_free(c);
    unref_store(s);
}

/* ------------------------------------------------------------------ the cache, under its lock */

static void constraint_take_out(struct sl_constraints *s, struct sl_constraint *c)
{
    SL_ASSERT(c->cached && s->n > 0);
    SL_ASSERT(c->newer != NULL ? c->newer->older == c : s->newest == c);
    SL_ASSERT(c->older != NULL ? c->older->newer == c : s->oldest == c);
    if (c->newer != NULL)
        c->newer->older = c->older;
    else
        s->newest = c->older;
    if (c->older != NULL)
        c->older->newer = c->newer;
    else
        s->oldest = c->newer;
    c->newer = c->older = NULL;
    c->cached = false;
    s->n--;
}

static void put_in(struct sl_constraints *s, struct sl_constraint *c)
{
    SL_ASSERT(!c->cached && c->store == s);
    c->newer = NULL;
    c->older = s->newest;
    if (s->newest != NULL)
        s->newest->newer = c;
    else
        s->oldest = c;
    s->newest = c;
    c->cached = true;
    s->n++;
}

static size_t count_bytes(struct sl_constraints *s)
{
    size_t total = 0;
    for (struct sl_constraint *c = s->newest; c != NULL; c = c->older) {
        size_t n;
        if (sl_grammar_bytes(c->grammar, &n))
            c->n_bytes = n + 2 * c->n_text; /* the grammar has a copy of its text */
        total += c->n_bytes;
    }
    return total;
}

/* What is beyond the bounds, oldest first, linked by `older`: to be released without the lock. The
 * newest always stays. Grammars grow while they are used, so all are looked at. */
static struct sl_constraint *constraint_evict(struct sl_constraints *s)
{
    struct sl_constraint *out = NULL;
    size_t total = count_bytes(s);
    while (s->n > 1 && (s->n > SL_MAX_GRAMMARS || total > SL_MAX_GRAMMAR_CACHE)) {
        struct sl_constraint *c = s->oldest;
        SL_ASSERT(total >= c->n_bytes);
        total -= c->n_bytes;
        constraint_take_out(s, c);
        c->older = out;
        out = c;
    }
    return out;
}

static void release_list(struct sl_constraint *c)
{
    while (c != NULL) {
        struct sl_constraint *next = c->older;
        c->older = NULL;
        sl_constraint_release(c);
        c = next;
    }
}

static uint64_t hash_of(const struct sl_constraint_desc *d)
{
    const struct sl_json_style *s = &d->style;
    uint64_t seed = (uint64_t)d->kind * 8 + s->additional_properties * 4u + s->whole_floats * 2u;
    if (s->whitespace != NULL)
        seed = sl_hash64(s->whitespace, strlen(s->whitespace), seed + 1);
    return sl_hash64(d->text, d->n_text, seed);
}

static bool same_style(const struct sl_json_style *a, const struct sl_json_style *b)
{
    const char *x = a->whitespace, *y = b->whitespace;
    return a->additional_properties == b->additional_properties &&
           a->whole_floats == b->whole_floats &&
           (x == NULL || y == NULL ? x == y : strcmp(x, y) == 0);
}

/* With a reference for the caller; it is the newest now. */
static struct sl_constraint *constraint_look_up(struct sl_constraints *s,
                                                const struct sl_constraint_desc *d, uint64_t hash)
{
    for (struct sl_constraint *c = s->newest; c != NULL; c = c->older) {
        if (c->hash != hash || c->kind != d->kind || !same_style(&c->style, &d->style) ||
            c->n_text != d->n_text || memcmp(c->text, d->text, d->n_text) != 0)
            continue;
        constraint_take_out(s, c);
        put_in(s, c);
        return sl_constraint_ref(c);
    }
    return NULL;
}

static struct sl_constraint_desc normal(const struct sl_constraint_desc *d)
{
    struct sl_constraint_desc n = *d;
    if (d->kind == SL_GRAMMAR_JSON_OBJECT || d->text == NULL)
        n.n_text = 0;
    if (n.n_text == 0)
        n.text = "";
    return n;
}

struct sl_constraint *sl_constraint_find(struct sl_engine *eng,
                                         const struct sl_constraint_desc *desc)
{
    struct sl_constraints *s = eng->constraints;
    if (s == NULL || desc->n_text > SL_MAX_GRAMMAR_TEXT)
        return NULL;
    struct sl_constraint_desc d = normal(desc);
    uint64_t hash = hash_of(&d);
    pthread_mutex_lock(&s->lock);
    struct sl_constraint *c = constraint_look_up(s, &d, hash);
    s->n_hits += c != NULL;
    pthread_mutex_unlock(&s->lock);
    return c;
}

/* ------------------------------------------------------------------ compiling */

static int make_vocab(struct sl_constraints *s, struct sl_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&s->vocab_lock);
    if (s->vocab == NULL) {
        struct sl_vocab *v = NULL;
        rc = s->n_eos_ids > 0 ? sl_vocab_with_ends(s->tok, (uint32_t)s->n_logits, s->eos_ids,
                                                   (uint32_t)s->n_eos_ids, &v, err)
                              : sl_vocab_from_tokenizer(s->tok, (uint32_t)s->n_logits, &v, err);
        uint32_t *ends = rc == 0 ? sl_calloc(v->n_words, sizeof *ends) : NULL;
        for (uint32_t i = 0; ends != NULL && i < v->n_ends; i++)
            ends[(uint32_t)v->ends[i] / 32] |= 1u << (v->ends[i] & 31);
        if (rc == 0 && ends == NULL) {
            sl_vocab_destroy(v);
            rc = sl_fail(err, SL_ENOMEM, "out of memory for a vocabulary");
        }
        if (rc == 0) {
            s->ends = ends;
            s->vocab = v;
        }
    }
    SL_ASSERT((rc == 0) == (s->vocab != NULL) && (s->vocab == NULL) == (s->ends == NULL));
    pthread_mutex_unlock(&s->vocab_lock);
    return rc;
}

static int constraint_compile(struct sl_constraints *s, const struct sl_constraint_desc *d,
                              uint64_t hash, struct sl_constraint **out, struct sl_error *err)
{
    SL_ASSERT(d->text != NULL && d->n_text <= SL_MAX_GRAMMAR_TEXT);
    struct sl_constraint *c = sl_calloc(1, sizeof *c);
    char *text = sl_malloc(d->n_text + 1);
    struct sl_grammar_spec spec = {
        .kind = d->kind, .text = d->text, .n = d->n_text, .style = d->style};
    char *space = d->style.whitespace != NULL ? sl_strdup(d->style.whitespace) : NULL;
    bool no_room = c == NULL || text == NULL || (space == NULL && d->style.whitespace != NULL);
    int rc = no_room ? sl_fail(err, SL_ENOMEM, "out of memory for a grammar") : make_vocab(s, err);
    if (rc == 0)
        rc = sl_grammar_compile(&spec, s->vocab, &c->grammar, err);
    if (rc != 0) {
        sl_free(space);
        sl_free(text);
        sl_free(c);
        return rc;
    }
    memcpy(text, d->text, d->n_text);
    text[d->n_text] = '\0';
    atomic_init(&c->refs, 1); /* the caller's */
    atomic_fetch_add(&s->refs, 1);
    c->store = s;
    c->kind = d->kind;
    c->style = d->style;
    c->style.whitespace = space;
    c->text = text;
    c->n_text = d->n_text;
    c->hash = hash;
    *out = c;
    return 0;
}

/* Two threads may have compiled the same: the cache keeps the first. */
static struct sl_constraint *constraint_keep(struct sl_constraints *s,
                                             const struct sl_constraint_desc *d,
                                             struct sl_constraint *c, double seconds)
{
    struct sl_constraint *gone = NULL, *there;
    pthread_mutex_lock(&s->lock);
    sl_hist_add(&s->compile_s, SL_BOUNDS_GRAMMAR, seconds);
    there = constraint_look_up(s, d, c->hash);
    SL_ASSERT(there != c && !c->cached);
    if (there == NULL && !s->closed) {
        put_in(s, sl_constraint_ref(c));
        gone = constraint_evict(s);
    }
    pthread_mutex_unlock(&s->lock);
    release_list(gone);
    if (there == NULL)
        return c;
    sl_constraint_release(c);
    return there;
}

int sl_constraint_open(struct sl_engine *eng, const struct sl_constraint_desc *desc,
                       struct sl_constraint **out, struct sl_error *err)
{
    struct sl_constraints *s = eng->constraints;
    if (s == NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "structured output: this model has no tokenizer or gives no logits");
    if (desc->n_text > SL_MAX_GRAMMAR_TEXT)
        return sl_fail(err, SL_ELIMIT, "a grammar may have %u bytes, not %zu", SL_MAX_GRAMMAR_TEXT,
                       desc->n_text);
    struct sl_constraint_desc d = normal(desc);
    uint64_t hash = hash_of(&d);
    pthread_mutex_lock(&s->lock);
    struct sl_constraint *c = constraint_look_up(s, &d, hash);
    s->n_hits += c != NULL;
    s->n_misses += c == NULL;
    pthread_mutex_unlock(&s->lock);
    if (c == NULL) {
        uint64_t t0 = sl_now_ns();
        int rc = constraint_compile(s, &d, hash, &c, err);
        if (rc != 0) {
            pthread_mutex_lock(&s->lock);
            s->n_failed++;
            pthread_mutex_unlock(&s->lock);
            return rc;
        }
        c = constraint_keep(s, &d, c, sl_seconds(t0, sl_now_ns()));
    }
    SL_ASSERT(c->grammar != NULL && c->kind == d.kind && c->n_text == d.n_text);
    *out = c;
    return 0;
}

void sl_constraints_close(struct sl_constraints *s)
{
    if (s == NULL)
        return;
    struct sl_constraint *gone = NULL;
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    while (s->oldest != NULL) {
        struct sl_constraint *c = s->oldest;
        constraint_take_out(s, c);
        c->older = gone;
        gone = c;
    }
    SL_ASSERT(s->n == 0);
    pthread_mutex_unlock(&s->lock);
    release_list(gone);
    unref_store(s);
}

/* ------------------------------------------------------------------ for the engine */

void sl_constraints_stats(struct sl_constraints *s, struct sl_stats *out)
{
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(s->n >= 0 && s->n <= SL_MAX_GRAMMARS);
    out->grammar_hits = s->n_hits;
    out->grammar_misses = s->n_misses;
    out->grammar_failed = s->n_failed;
    out->grammar_bytes = count_bytes(s);
    out->n_grammars = s->n;
    out->grammar_compile_s = s->compile_s;
    pthread_mutex_unlock(&s->lock);
    out->n_matchers = atomic_load(&s->n_matchers);
}

struct sl_grammar *sl_constraint_grammar(const struct sl_constraint *c)
{
    return c->grammar;
}

const struct sl_vocab *sl_constraint_vocab(const struct sl_constraint *c)
{
    return c->store->vocab;
}

const uint32_t *sl_constraint_ends(const struct sl_constraint *c)
{
    SL_DCHECK(c->store->ends != NULL); /* made before the first was compiled */
    return c->store->ends;
}

int sl_constraint_match(struct sl_constraint *c, uint32_t max_tokens, struct sl_matcher **out,
                        struct sl_error *err)
{
    int rc = sl_matcher_create(c->grammar, max_tokens, out, err);
    if (rc == 0)
        atomic_fetch_add(&c->store->n_matchers, 1);
    return rc;
}

void sl_constraint_unmatch(struct sl_constraint *c, struct sl_matcher *m)
{
    if (m == NULL)
        return;
    sl_matcher_destroy(m);
    int before = atomic_fetch_sub(&c->store->n_matchers, 1);
    SL_ASSERT(before > 0);
}
