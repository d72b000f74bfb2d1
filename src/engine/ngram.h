/* SPDX-License-Identifier: MIT
 * ngram.h - prompt lookup: what followed the last tokens of a text where they stood before.
 *
 * Of the places where the last prompt_lookup_min tokens, or more, stood before, the one is taken
 * where most of them did, up to prompt_lookup_max; of several the last. Pure functions; a search
 * reads the text once, and keeps nothing between two.
 */
#ifndef SL_ENGINE_NGRAM_H
#define SL_ENGINE_NGRAM_H

#include "base/err.h"

#include <stdint.h>

/* vLLM's --speculative-config with the method ngram. */
struct sl_speculative {
    int32_t num_speculative_tokens; /* 0: nothing is drafted */
    int32_t prompt_lookup_min, prompt_lookup_max;
};

/* Reads the JSON object; messages name the field. */
SL_MUST_CHECK int sl_speculative_parse(const char *json, struct sl_speculative *out,
                                       struct sl_error *err);

/* Up to n tokens that may follow the text a[n_a] b[n_b], into out. Returns how many. */
int32_t sl_ngram_find(const struct sl_speculative *how, const int32_t *a, int32_t n_a,
                      const int32_t *b, int32_t n_b, int32_t n, int32_t *out);

#endif
