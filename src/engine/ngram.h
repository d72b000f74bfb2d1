/* SPDX-License-Identifier: MIT
 * ngram.h - prompt lookup: what followed the last tokens of a text where they stood before.
 *
 * Of the places where the last prompt_lookup_min tokens, or more, stood before, the one is taken
 * where most of them did, up to prompt_lookup_max; of several the last. Pure functions; a search
 * reads the text once, and keeps nothing between two.
 */
#ifndef SL_ENGINE_NGRAM_H
#define SL_ENGINE_NGRAM_H

#include "engine/speculative.h"

#include <stdint.h>

/* Up to n tokens that may follow the text a[n_a] b[n_b], into out. Returns how many. */
int32_t sl_ngram_find(const struct sl_speculative *how, const int32_t *a, int32_t n_a,
                      const int32_t *b, int32_t n_b, int32_t n, int32_t *out);

#endif
