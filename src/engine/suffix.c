/* SPDX-License-Identifier: MIT */
#include "engine/suffix.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/sys.h"

#include <string.h>

#define LEVELS           SL_SUFFIX_LEVELS
#define SEEN             SL_SUFFIX_SEEN
#define LAST             (1 << (LEVELS - 1)) /* tokens of the last level */
#define WALK             (4 * SEEN) /* links followed: other tokens may have the same hash */
#define MAX_TEXT_BUCKETS 8192       /* of one text */

struct place { /* where the last tokens of a text stood before */
    struct sl_suffix_text t;
    int32_t at, match; /* the token after them; how many of them */
};

struct record { /* one past output */
    struct sl_kv_ns ns;
    uint32_t start;
    int32_t n;
};

struct sl_suffix_corpus {
    pthread_mutex_t lock;
    struct sl_suffix_links links;
    uint64_t seed;
    int32_t *tokens;        /* [slots]; an output is never cut in two by the end */
    int32_t *owners;        /* [slots] index of the record */
    struct record *records; /* [max_records], a ring */
    int32_t max_records, first, n_records;
    size_t n_bytes;
};

static int32_t text_token(const struct sl_suffix_text *t, int32_t i)
{
    SL_DCHECK(i >= 0 && i < t->n);
    return i < t->n_a ? t->a[i] : t->b[i - t->n_a];
}

/* ------------------------------------------------------------------ links */

/* Hashes of the last 1, 2, 4, 8 tokens up to the one at i. Returns how many of them there are. */
static int32_t suffix_hashes(const struct sl_suffix_text *t, int32_t i, uint64_t seed,
                             uint32_t out[LEVELS])
{
    int32_t n = 0;
    for (int32_t k = 0; k < LAST && k <= i; k++) {
        seed = sl_mix64((seed << 1) + (uint32_t)text_token(t, i - k) + 1);
        if (k + 1 == 1 << n)
            out[n++] = (uint32_t)(seed >> 32);
    }
    return n;
}

static uint32_t *links_head(const struct sl_suffix_links *l, int32_t level, uint32_t hash)
{
    return &l->heads[(size_t)level * l->n_buckets + (hash & (l->n_buckets - 1))];
}

static uint32_t *links_prev(const struct sl_suffix_links *l, uint32_t pos)
{
    return &l->prev[(size_t)(pos & (l->slots - 1)) * LEVELS];
}

/* The token at i of t stands at the next position. */
static void links_add(struct sl_suffix_links *l, const struct sl_suffix_text *t, int32_t i,
                      uint64_t seed)
{
    uint32_t hash[LEVELS];
    const int32_t n = suffix_hashes(t, i, seed, hash);
    uint32_t *prev = links_prev(l, l->next);
    SL_DCHECK(l->next - l->oldest < l->slots);
    for (int32_t k = 0; k < LEVELS; k++)
        prev[k] = l->oldest - 1; /* none */
    for (int32_t k = 0; k < n; k++) {
        uint32_t *head = links_head(l, k, hash[k]);
        prev[k] = *head;
        *head = l->next;
    }
    l->next++;
}

/* Up to WALK positions with that hash, the last one first. What is older than the oldest position
 * is none: numbers behind it are taken modulo 2^32. */
static int32_t links_walk(const struct sl_suffix_links *l, int32_t level, uint32_t hash,
                          uint32_t out[WALK])
{
    uint32_t pos = *links_head(l, level, hash), age = l->next - l->oldest;
    int32_t n = 0;
    while (n < WALK && pos - l->oldest < age) {
        age = pos - l->oldest; /* links only go back */
        out[n++] = pos;
        pos = links_prev(l, pos)[level];
    }
    return n;
}

/* ------------------------------------------------------------------ one draft */

/* How many tokens before `at` are the last ones of t; at most max. */
static int32_t place_match(const struct sl_suffix_text *p, int32_t at,
                           const struct sl_suffix_text *t, int32_t max)
{
    int32_t n = 0;
    while (n < max && n < at && text_token(p, at - 1 - n) == text_token(t, t->n - 1 - n))
        n++;
    return n;
}

/* The most frequent next token of the places, of several the one of the latest place; the places
 * that go on otherwise are dropped. Returns how many are left. */
static int32_t places_step(struct place *const *all, int32_t n_all, int32_t ahead,
                           struct place **left, int32_t *token)
{
    int32_t ids[SEEN], count[SEEN], n_ids = 0, best = -1, n = 0;
    for (int32_t i = 0; i < n_all; i++) {
        if (all[i]->at + ahead >= all[i]->t.n)
            continue;
        const int32_t id = text_token(&all[i]->t, all[i]->at + ahead);
        int32_t k = 0;
        while (k < n_ids && ids[k] != id)
            k++;
        if (k == n_ids) {
            ids[n_ids] = id;
            count[n_ids++] = 0;
        }
        count[k]++;
    }
    for (int32_t k = 0; k < n_ids; k++)
        if (best < 0 || count[k] > count[best])
            best = k;
    if (best < 0)
        return 0;
    *token = ids[best];
    for (int32_t i = 0; i < n_all; i++)
        if (all[i]->at + ahead < all[i]->t.n &&
            text_token(&all[i]->t, all[i]->at + ahead) == *token)
            left[n++] = all[i];
    SL_DCHECK(n == count[best]);
    return n;
}

/* The walk from all places that match at least m tokens; sums[i]: of the probabilities up to i. */
static void places_path(struct place *places, int32_t n, int32_t m,
                        const struct sl_speculative *how, int32_t n_most,
                        struct sl_suffix_drafts *out, double *sums)
{
    struct place *left[SEEN];
    int32_t n_left = 0, token = 0;
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        if (places[i].match >= m)
            left[n_left++] = &places[i];
    const int32_t n_all = n_left + 1; /* with the end of the text */
    for (out->n = 0; out->n < n_most; out->n++) {
        const int32_t before = n_left;
        n_left = places_step(left, n_left, out->n, left, &token);
        if (n_left == 0 || (float)n_left / (float)n_all < how->suffix_min_token_prob)
            break;
        sum += n_left;
        out->ids[out->n] = token;
        out->share[out->n] = (float)n_left / (float)before;
        sums[out->n] = (double)sum / n_all;
    }
}

/* A match of m tokens may have so many drafts. */
static int32_t suffix_most(const struct sl_speculative *how, int32_t m, int32_t n)
{
    const double most = (double)m * (double)how->suffix_max_spec_factor + 1e-6;
    n = most < (double)n ? (int32_t)most : n;
    return SL_MAX(SL_MIN(n, how->suffix_max_tree_depth - m), 0);
}

/* Of matches of `from` to `to` tokens, if one is better than the best of longer ones. */
static void places_best(struct place *places, int32_t n_places, int32_t from, int32_t to,
                        const struct sl_speculative *how, int32_t n, struct sl_suffix_drafts *best)
{
    struct sl_suffix_drafts d = {0}, own = {0};
    double sums[SL_MAX_DRAFTED];
    int32_t n_before = -1;
    for (int32_t m = from; m <= to; m++) {
        int32_t n_match = 0, n_most = suffix_most(how, m, n);
        for (int32_t i = 0; i < n_places; i++)
            n_match += places[i].match >= m;
        if (n_match == 0)
            break;
        if (n_match != n_before) /* else the walk is the same */
            places_path(places, n_places, m, how, SL_MIN(n, how->suffix_max_tree_depth - m), &d,
                        sums);
        n_before = n_match;
        n_most = SL_MIN(n_most, d.n);
        if (n_most <= 0 || sums[n_most - 1] < own.score)
            continue;
        const int32_t n_all = d.n;
        d.n = n_most;
        d.match = m;
        d.score = sums[n_most - 1];
        own = d;
        d.n = n_all;
    }
    if (own.score > best->score)
        *best = own;
}

/* The longest match that is looked for. */
static int32_t suffix_longest(const struct sl_suffix_text *t, const struct sl_speculative *how)
{
    return SL_MIN(t->n, how->suffix_max_tree_depth) - 1;
}

static int32_t level_end(int32_t level, int32_t longest)
{
    return level == LEVELS - 1 ? longest : SL_MIN((2 << level) - 1, longest);
}

/* Can a match of that level be better than the best of longer ones? A draft's probability is below
 * 1. */
static bool level_may(const struct sl_speculative *how, int32_t level, int32_t longest, int32_t n,
                      const struct sl_suffix_drafts *best)
{
    int32_t most = 0;
    for (int32_t m = 1 << level; m <= level_end(level, longest); m++)
        most = SL_MAX(most, suffix_most(how, m, n));
    return best->score < most;
}

/* ------------------------------------------------------------------ in the text itself */

static int32_t text_buckets(int32_t max_n)
{
    int32_t n = 16;
    while (n < max_n / 2 && n < MAX_TEXT_BUCKETS)
        n *= 2;
    return n;
}

static uint32_t slots_for(uint32_t n)
{
    uint32_t slots = 1;
    while (slots < n)
        slots *= 2;
    return slots;
}

int64_t sl_suffix_words(int32_t max_n)
{
    SL_ASSERT(max_n >= 1);
    return LEVELS * ((int64_t)max_n + text_buckets(max_n));
}

void sl_suffix_init(struct sl_suffix_links *l, int32_t max_n, uint32_t *room)
{
    const size_t n_heads = (size_t)LEVELS * (size_t)text_buckets(max_n);
    *l = (struct sl_suffix_links){.heads = room,
                                  .prev = room + n_heads,
                                  .n_buckets = (uint32_t)text_buckets(max_n),
                                  .slots = slots_for((uint32_t)max_n + 1)};
    memset(l->heads, 0xFF, n_heads * sizeof *l->heads); /* none, as long as a text */
}

void sl_suffix_extend(struct sl_suffix_links *l, const struct sl_suffix_text *t)
{
    while (l->next < (uint32_t)t->n)
        links_add(l, t, (int32_t)l->next, 0);
}

void sl_suffix_find(const struct sl_suffix_links *l, const struct sl_suffix_text *in,
                    const struct sl_suffix_text *t, const struct sl_speculative *how, int32_t n,
                    struct sl_suffix_drafts *out)
{
    struct place places[SEEN];
    uint32_t hash[LEVELS], pos[WALK];
    const int32_t longest = suffix_longest(t, how);
    SL_ASSERT(n <= SL_MAX_DRAFTED && l->next == (uint32_t)in->n);
    *out = (struct sl_suffix_drafts){0};
    if (n < 1 || longest < 1)
        return;
    const int32_t n_levels = suffix_hashes(t, t->n - 1, 0, hash);
    for (int32_t k = n_levels - 1; k >= 0; k--) {
        if (!level_may(how, k, longest, n, out))
            continue;
        const int32_t n_pos = links_walk(l, k, hash[k], pos);
        int32_t n_places = 0;
        for (int32_t i = 0; i < n_pos && n_places < SEEN; i++) {
            const int32_t at = (int32_t)pos[i] + 1;
            if (at == in->n)
                continue; /* the end of the text: nothing follows */
            const int32_t match = place_match(in, at, t, longest);
            if (match >= 1 << k)
                places[n_places++] = (struct place){*in, at, match};
        }
        places_best(places, n_places, 1 << k, level_end(k, longest), how, n, out);
    }
}

/* ------------------------------------------------------------------ in past outputs */

struct corpus_sizes {
    uint32_t slots, n_buckets;
    int32_t max_records;
    uint64_t heads, prev, tokens, owners, records; /* bytes */
};

static struct corpus_sizes corpus_sizes_of(const struct sl_speculative *how)
{
    struct corpus_sizes s = {.max_records = how->suffix_max_cached_requests};
    SL_ASSERT(how->suffix_corpus_tokens <= SL_MAX_SUFFIX_CORPUS);
    s.slots = slots_for((uint32_t)SL_MAX(how->suffix_corpus_tokens, 16));
    s.n_buckets = s.slots / 2;
    s.heads = (uint64_t)LEVELS * s.n_buckets * sizeof(uint32_t);
    s.prev = (uint64_t)LEVELS * s.slots * sizeof(uint32_t);
    s.tokens = s.owners = (uint64_t)s.slots * sizeof(int32_t);
    s.records = SL_ROUND_UP((uint64_t)s.max_records * sizeof(struct record), 64);
    return s;
}

uint64_t sl_suffix_corpus_bytes(const struct sl_speculative *how)
{
    if (how->method != SL_DRAFT_SUFFIX || how->suffix_max_cached_requests == 0)
        return 0;
    const struct corpus_sizes s = corpus_sizes_of(how);
    return s.heads + s.prev + s.tokens + s.owners + s.records;
}

int sl_suffix_corpus_create(const struct sl_speculative *how, uint64_t seed,
                            struct sl_suffix_corpus **out, struct sl_error *err)
{
    const struct corpus_sizes s = corpus_sizes_of(how);
    struct sl_suffix_corpus *c = sl_calloc(1, sizeof *c);
    SL_ASSERT(sl_suffix_corpus_bytes(how) > 0);
    const size_t n_bytes = (size_t)sl_suffix_corpus_bytes(how);
    uint8_t *at = c != NULL ? sl_aligned_alloc(n_bytes) : NULL; /* zeros */
    if (at == NULL) {
        sl_free(c);
        return sl_fail(err, SL_ENOMEM,
                       "out of memory for %u past tokens (suffix_decoding_corpus_tokens)", s.slots);
    }
    c->n_bytes = n_bytes;
    c->seed = seed;
    c->max_records = s.max_records;
    c->links = (struct sl_suffix_links){.n_buckets = s.n_buckets, .slots = s.slots};
    c->links.heads = (uint32_t *)(void *)at;
    c->links.prev = (uint32_t *)(void *)(at + s.heads);
    c->tokens = (int32_t *)(void *)(at + s.heads + s.prev);
    c->owners = (int32_t *)(void *)(at + s.heads + s.prev + s.tokens);
    c->records = (struct record *)(void *)(at + s.heads + s.prev + s.tokens + s.owners);
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return 0;
}

void sl_suffix_corpus_destroy(struct sl_suffix_corpus *c)
{
    if (c == NULL)
        return;
    pthread_mutex_destroy(&c->lock);
    sl_aligned_free(c->links.heads, c->n_bytes);
    sl_free(c);
}

static bool same_space(const struct sl_kv_ns *a, const struct sl_kv_ns *b)
{
    return a->is_private == b->is_private && a->n_bytes == b->n_bytes &&
           memcmp(a->bytes, b->bytes, a->n_bytes) == 0;
}

static uint64_t space_seed(const struct sl_suffix_corpus *c, const struct sl_kv_ns *ns)
{
    return sl_hash64(ns->bytes, ns->n_bytes, c->seed);
}

/* The oldest output is forgotten. */
static void corpus_evict(struct sl_suffix_corpus *c)
{
    SL_ASSERT(c->n_records > 0);
    c->first = (c->first + 1) % c->max_records;
    c->n_records--;
    c->links.oldest = c->n_records > 0 ? c->records[c->first].start : c->links.next;
}

void sl_suffix_corpus_add(struct sl_suffix_corpus *c, const struct sl_kv_ns *ns, const int32_t *ids,
                          int32_t n)
{
    struct sl_suffix_links *l = &c->links;
    const int32_t n_most = (int32_t)(l->slots / 2);
    if (ns->is_private || n < 2)
        return;
    ids += n > n_most ? n - n_most : 0;
    n = SL_MIN(n, n_most);
    pthread_mutex_lock(&c->lock);
    const uint32_t slot = l->next & (l->slots - 1);
    const uint32_t gap = slot + (uint32_t)n > l->slots ? l->slots - slot : 0;
    while (c->n_records > 0 &&
           (c->n_records == c->max_records || l->next + gap + (uint32_t)n - l->oldest >= l->slots))
        corpus_evict(c);
    l->next += gap;
    if (c->n_records == 0)
        l->oldest = l->next;
    const int32_t r = (c->first + c->n_records++) % c->max_records;
    c->records[r] = (struct record){*ns, l->next, n};
    int32_t *tokens = c->tokens + (l->next & (l->slots - 1));
    int32_t *owners = c->owners + (l->next & (l->slots - 1));
    const struct sl_suffix_text t = {tokens, NULL, n, n};
    const uint64_t seed = space_seed(c, ns);
    memcpy(tokens, ids, (size_t)n * sizeof *tokens);
    for (int32_t i = 0; i < n; i++) {
        owners[i] = r;
        links_add(l, &t, i, seed);
    }
    pthread_mutex_unlock(&c->lock);
}

/* The lock is held. What stands at a position, if it is of this namespace. */
static bool corpus_place(const struct sl_suffix_corpus *c, const struct sl_kv_ns *ns, uint32_t pos,
                         struct place *out)
{
    const uint32_t slots = c->links.slots;
    const struct record *r = &c->records[c->owners[pos & (slots - 1)]];
    if (pos - r->start >= (uint32_t)r->n || !same_space(&r->ns, ns))
        return false;
    *out = (struct place){
        {c->tokens + (r->start & (slots - 1)), NULL, r->n, r->n}, (int32_t)(pos - r->start) + 1, 0};
    return true;
}

void sl_suffix_corpus_find(struct sl_suffix_corpus *c, const struct sl_kv_ns *ns,
                           const struct sl_suffix_text *t, const struct sl_speculative *how,
                           int32_t n, struct sl_suffix_drafts *out)
{
    struct place places[SEEN];
    uint32_t hash[LEVELS], pos[WALK];
    const int32_t longest = suffix_longest(t, how);
    SL_ASSERT(n <= SL_MAX_DRAFTED);
    *out = (struct sl_suffix_drafts){0};
    if (n < 1 || longest < 1 || ns->is_private)
        return;
    pthread_mutex_lock(&c->lock);
    const int32_t n_levels = suffix_hashes(t, t->n - 1, space_seed(c, ns), hash);
    for (int32_t k = n_levels - 1; k >= 0; k--) {
        if (!level_may(how, k, longest, n, out))
            continue;
        const int32_t n_pos = links_walk(&c->links, k, hash[k], pos);
        int32_t n_places = 0;
        for (int32_t i = 0; i < n_pos && n_places < SEEN; i++) {
            struct place *p = &places[n_places];
            if (!corpus_place(c, ns, pos[i], p))
                continue;
            p->match = place_match(&p->t, p->at, t, longest);
            n_places += p->match >= 1 << k;
        }
        places_best(places, n_places, 1 << k, level_end(k, longest), how, n, out);
    }
    pthread_mutex_unlock(&c->lock);
}
