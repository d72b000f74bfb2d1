/* SPDX-License-Identifier: MIT
 * constrain.h - compiled constraints of a model: one vocabulary tree, made when the first is
 * compiled, and a cache of grammars by kind and text, least recently used first out.
 *
 * Any thread. Compiling happens outside the lock, on the thread that asks. The store lives as long
 * as its engine or any constraint: requests may be released after the engine.
 */
#ifndef SL_ENGINE_CONSTRAIN_H
#define SL_ENGINE_CONSTRAIN_H

#include "grammar/grammar.h"

struct sl_constraints;

SL_MUST_CHECK int sl_constraints_create(const struct sl_tokenizer *tok, int32_t n_logits,
                                        const int32_t *eos_ids, int32_t n_eos_ids,
                                        struct sl_constraints **out, struct sl_error *err);
/* The engine lets go: the cache is emptied, nothing can be opened any more. */
void sl_constraints_close(struct sl_constraints *s);
void sl_constraints_stats(struct sl_constraints *s, struct sl_stats *out);

struct sl_constraint *sl_constraint_ref(struct sl_constraint *c);
struct sl_grammar *sl_constraint_grammar(const struct sl_constraint *c);
const struct sl_vocab *sl_constraint_vocab(const struct sl_constraint *c);
/* The tokens that end a text, as a mask. */
const uint32_t *sl_constraint_ends(const struct sl_constraint *c);
/* Matchers are counted, so that a leak shows. */
SL_MUST_CHECK int sl_constraint_match(struct sl_constraint *c, uint32_t max_tokens,
                                      struct sl_matcher **out, struct sl_error *err);
void sl_constraint_unmatch(struct sl_constraint *c, struct sl_matcher *m);

#endif
