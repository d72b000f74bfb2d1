/* SPDX-License-Identifier: MIT
 * suffix.h - SuffixDecoding (arXiv 2411.04975): drafts from what followed the last tokens of a text
 * where they stood before, in the text itself and in past outputs, by how often it did.
 *
 * The method is defined on a suffix tree whose nodes count how often their path occurs: for each
 * match of the last m tokens, the walk that takes the most frequent child, while the probability of
 * the path (its count over that of the match) is at least min_token_prob, at most m * spec_factor
 * tokens; of all matches the draft whose probabilities have the greatest sum, of equal ones the
 * longer match. The end of the text counts as one occurrence more, so that what was seen once has
 * probability 1/2.
 *
 * Only the counts matter, and they are those of a set of places: a walk down the tree takes the
 * places out of the set that go on differently. So there is no tree here. Each position is linked
 * to the one before with the same last 1, 2, 4 and 8 tokens, as in an LZ77 compressor: a token
 * costs four links, whatever came before it, and the oldest output is forgotten by moving a limit.
 * The price is that of an m-gram only the last SL_SUFFIX_SEEN places are counted that have the same
 * last 2^floor(log2 m) tokens (at most 8).
 */
#ifndef SL_ENGINE_SUFFIX_H
#define SL_ENGINE_SUFFIX_H

#include "base/err.h"
#include "engine/speculative.h"
#include "kv/radix.h"
#include "sluice.h"

#include <pthread.h>

#define SL_SUFFIX_LEVELS 4
#define SL_SUFFIX_SEEN   64

struct sl_suffix_text { /* a[n_a] b[n - n_a] */
    const int32_t *a, *b;
    int32_t n_a, n;
};

struct sl_suffix_drafts {
    int32_t n, match; /* match: of so many last tokens */
    double score;     /* the sum of the drafts' probabilities */
    int32_t ids[SL_MAX_DRAFTED];
    float share[SL_MAX_DRAFTED]; /* of the places that went on like the drafts before, how many went
                                    on with this one */
};

/* Links of positions. A position is a number modulo 2^32, its place in prev modulo slots. */
struct sl_suffix_links {
    uint32_t *heads; /* [LEVELS, n_buckets] the last position of each hash */
    uint32_t *prev;  /* [slots, LEVELS] the one before with the same hash */
    uint32_t n_buckets, slots, oldest, next;
};

/* The links of one text, which only grows, of at most max_n tokens. room: so many words, which need
 * not be zero. No thread of its own: whoever owns the text. */
int64_t sl_suffix_words(int32_t max_n);
void sl_suffix_init(struct sl_suffix_links *l, int32_t max_n, uint32_t *room);
/* Links the tokens of the text that are not yet. */
void sl_suffix_extend(struct sl_suffix_links *l, const struct sl_suffix_text *t);
/* Drafts behind the text t, at most n, from the text `in`, which may be t itself; l was extended to
 * all of it. */
void sl_suffix_find(const struct sl_suffix_links *l, const struct sl_suffix_text *in,
                    const struct sl_suffix_text *t, const struct sl_speculative *how, int32_t n,
                    struct sl_suffix_drafts *out);

/* Past outputs of all requests: of suffix_decoding_max_cached_requests, and
 * suffix_decoding_corpus_tokens; the oldest go first. One of another namespace (tenant, adapter,
 * cache salt) is never seen. All its memory is taken at the start. Any thread: it has a lock, which
 * is held for some microseconds. */
struct sl_suffix_corpus;
uint64_t sl_suffix_corpus_bytes(const struct sl_speculative *how); /* 0: nothing is kept */
SL_MUST_CHECK int sl_suffix_corpus_create(const struct sl_speculative *how, uint64_t seed,
                                          struct sl_suffix_corpus **out, struct sl_error *err);
void sl_suffix_corpus_destroy(struct sl_suffix_corpus *c);
/* Of a longer output than half of the corpus, its end. Private namespaces keep nothing. */
void sl_suffix_corpus_add(struct sl_suffix_corpus *c, const struct sl_kv_ns *ns, const int32_t *ids,
                          int32_t n);
void sl_suffix_corpus_find(struct sl_suffix_corpus *c, const struct sl_kv_ns *ns,
                           const struct sl_suffix_text *t, const struct sl_speculative *how,
                           int32_t n, struct sl_suffix_drafts *out);

#endif
