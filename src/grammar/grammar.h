/* SPDX-License-Identifier: MIT
 * grammar.h - structured output: what a text must be, compiled, and which tokens may come next.
 *
 * A grammar is compiled off the engine thread and shared by requests; it is immutable but for the
 * caches of its automaton, which one lock guards. A matcher is one sequence's place in it: accept
 * tokens, roll back, ask for the mask or for the bytes that are forced. Calls on matchers of one
 * grammar may come from any thread, calls on one matcher from one thread at a time.
 *
 * Bounds: compile and every call have limits of time (derivatives), states and memory; going beyond
 * is SL_ELIMIT with what ran out, for the requests of that grammar only.
 */
#ifndef SL_GRAMMAR_GRAMMAR_H
#define SL_GRAMMAR_GRAMMAR_H

#include "base/err.h"
#include "grammar/vocab.h"
#include "sluice.h"

struct sl_grammar_remote {
    const char *uri, *text;
    size_t n;
};

struct sl_grammar_spec {
    enum sl_grammar_kind kind;
    const char *text;
    size_t n;
    struct sl_json_style style;
    bool draft7;         /* of schemas that do not say $schema */
    bool ignore_formats; /* format is an annotation */
    const struct sl_grammar_remote *remotes;
    size_t n_remotes;
};

struct sl_grammar;
struct sl_matcher;

/* vocab is borrowed and outlives the grammar. */
SL_MUST_CHECK int sl_grammar_compile(const struct sl_grammar_spec *spec,
                                     const struct sl_vocab *vocab, struct sl_grammar **out,
                                     struct sl_error *err);
void sl_grammar_destroy(struct sl_grammar *g); /* after its matchers */

/* max_tokens: how many the sequence may have. */
SL_MUST_CHECK int sl_matcher_create(struct sl_grammar *g, uint32_t max_tokens,
                                    struct sl_matcher **out, struct sl_error *err);
void sl_matcher_destroy(struct sl_matcher *m);
/* *allowed: false, and nothing changed, if the token may not come. An ending token may come where
 * the text is complete; after it nothing may. */
SL_MUST_CHECK int sl_matcher_accept(struct sl_matcher *m, int32_t token, bool *allowed,
                                    struct sl_error *err);
void sl_matcher_rollback(struct sl_matcher *m, uint32_t n_tokens);
/* Sets all n_words words of the mask. */
SL_MUST_CHECK int sl_matcher_mask(struct sl_matcher *m, uint32_t *mask, struct sl_error *err);
/* The bytes that must come next, at most cap; 0 when there is a choice. */
SL_MUST_CHECK int sl_matcher_forced(struct sl_matcher *m, char *out, size_t cap, size_t *n,
                                    struct sl_error *err);
/* Of text, n bytes that may come next: the first place from which some token of the vocabulary
 * would reach beyond its end, with bytes that may follow it. n: none does. */
SL_MUST_CHECK int sl_matcher_overlap(struct sl_matcher *m, const char *text, size_t n, size_t *at,
                                     struct sl_error *err);
/* Is the text complete (it may still be possible to go on)? */
bool sl_matcher_complete(struct sl_matcher *m);
bool sl_matcher_ended(const struct sl_matcher *m);        /* an ending token was accepted */
uint32_t sl_matcher_n_tokens(const struct sl_matcher *m); /* accepted, and not rolled back */
/* Memory of its automaton and masks, roughly. Does not wait: false while the grammar is busy. */
bool sl_grammar_bytes(struct sl_grammar *g, size_t *n_bytes);
/* Whole texts, for tests and tools: from the start, without tokens. */
SL_MUST_CHECK int sl_grammar_matches(struct sl_grammar *g, const char *text, size_t n,
                                     bool *matches, size_t *n_read, struct sl_error *err);

#endif
