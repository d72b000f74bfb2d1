/* SPDX-License-Identifier: MIT
 * vocab.h - a vocabulary as trees of bytes, made once per tokenizer, for masks.
 *
 * Special tokens are not in the trees as text: whatever text may come, they may not, unless a
 * grammar names them (sl_vocab_special_text). Immutable after creation; any number of threads may
 * use one.
 */
#ifndef SL_GRAMMAR_VOCAB_H
#define SL_GRAMMAR_VOCAB_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_tokenizer;

#define SL_VOCAB_MAX_TOKEN 255 /* bytes; longer tokens are never allowed by a mask */
#define SL_VOCAB_SHAPES    2
#define SL_VOCAB_MAX_RUN   64 /* characters of a plain token; longer ones are in the rest */

struct sl_vocab_node { /* depth first: a node's descendants follow it */
    uint32_t skip;     /* how many they are, and itself */
    uint32_t first;    /* its own tokens and theirs: ids[first] up to ids[node[skip].first] */
    uint8_t byte, depth;
    uint8_t longest; /* characters of the longest plain token here or below, from the root */
    uint8_t below;   /* likewise from here; 0 inside a character */
};

/* A set of plain characters: a bit for each of ASCII, and one for all the others. */
struct sl_plain_set {
    uint64_t w[2];
};
#define SL_PLAIN_OTHERS 127u /* no plain character is DEL */

struct sl_vocab_tree {
    struct sl_vocab_node *nodes; /* [n + 1] */
    struct sl_plain_set *sets;   /* of each node: the characters below it; NULL in the rest */
    int32_t *ids;
    struct sl_plain_set all; /* the whole tree's */
    uint32_t n, n_ids;
};

struct sl_vocab {
    uint32_t n_tokens, n_words; /* words of a mask: bit id % 32 of word id / 32 */
    /* Plain tokens are made of whole plain characters. */
    struct sl_vocab_tree plain, rest;
    struct sl_vocab_tree shapes[SL_VOCAB_SHAPES]; /* of the plain tokens: shape.h */
    uint32_t *up_to; /* [n + 1] masks of the plain tokens with at most n characters */
    uint32_t *start;
    char *bytes; /* of token i: bytes + start[i] up to start[i + 1] */
    int32_t *ends;
    uint32_t n_ends;
};

/* Plain characters need no escape in JSON, end no line and, beyond ASCII, are no space: what a
 * pattern lets pass or stops with all its kind, unless it names it. */
#define SL_PLAIN_RANGES 12
extern const uint32_t sl_plain_ranges[SL_PLAIN_RANGES][2];

struct sl_vocab_token {
    const char *bytes;
    size_t n; /* 0: never allowed */
    bool special;
};

/* ends: tokens that end the text (EOS, end of turn). */
SL_MUST_CHECK int sl_vocab_create(const struct sl_vocab_token *tokens, uint32_t n_tokens,
                                  const int32_t *ends, uint32_t n_ends, struct sl_vocab **out,
                                  struct sl_error *err);
/* n_tokens: width of the logits; ids beyond the tokenizer's are never allowed. */
SL_MUST_CHECK int sl_vocab_from_tokenizer(const struct sl_tokenizer *tok, uint32_t n_tokens,
                                          struct sl_vocab **out, struct sl_error *err);
/* Likewise, but the model's configuration says which tokens end a text. */
SL_MUST_CHECK int sl_vocab_with_ends(const struct sl_tokenizer *tok, uint32_t n_tokens,
                                     const int32_t *ends, uint32_t n_ends, struct sl_vocab **out,
                                     struct sl_error *err);
void sl_vocab_destroy(struct sl_vocab *v);

/* How a grammar spells a special token: five bytes that no text has. */
#define SL_VOCAB_SPECIAL_BYTES 5
void sl_vocab_special_text(int32_t id, char out[SL_VOCAB_SPECIAL_BYTES]);

#endif
