/* SPDX-License-Identifier: MIT
 * bench_dataset.h - what the load generator asks: synthetic words, prompt files, request traces.
 *
 * Deterministic in the seed. Synthetic text is plain words. Those that are one token each of the
 * server's are known once it was asked (bench_ask.h); until then a word counts as a token.
 */
#ifndef SL_CMD_BENCH_DATASET_H
#define SL_CMD_BENCH_DATASET_H

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct sl_rng;

#define SL_BENCH_FIRST_WORD "the" /* of every synthetic text */
#define SL_BENCH_MAX_WORDS  64
#define SL_BENCH_MAX_KINDS  64 /* categories of a file; of more the last ones are one */

struct sl_bench_item {
    char *prompt; /* given text, or NULL: words are made from the lengths */
    size_t n_prompt;
    int32_t input_len, output_len;
    int32_t kind;     /* category of Spec-Bench; -1: none */
    uint64_t *blocks; /* trace: the text of 512 words each is a function of these */
    size_t n_blocks;
};

struct sl_bench_dataset {
    struct sl_bench_item *items;
    size_t n_items;
    uint64_t seed;
    const char *words[SL_BENCH_MAX_WORDS]; /* what texts are made of */
    size_t n_words;
    int32_t *ids; /* in place of words: prompts are lists of these; or NULL */
    size_t n_ids;
    int32_t overhead;                   /* tokens of a prompt besides its words */
    char kinds[SL_BENCH_MAX_KINDS][40]; /* names of the categories */
    int32_t n_kinds;
};

struct sl_bench_lengths {
    int32_t input_len, output_len; /* for items that do not say */
    int32_t max_input_len;         /* in tokens; cuts traces; 0 = none */
    float range;                   /* lengths vary by this share around the value */
};

/* path NULL: n synthetic items. Known files: .csv with ContextTokens and GeneratedTokens, .jsonl
 * with input_length/output_length/hash_ids, .jsonl with turns or prompt, as Spec-Bench's
 * question.jsonl, whose first turns are asked. */
SL_MUST_CHECK int sl_bench_dataset_open(struct sl_bench_dataset *d, const char *path, size_t n,
                                        const struct sl_bench_lengths *lengths, uint64_t seed,
                                        struct sl_error *err);
void sl_bench_dataset_close(struct sl_bench_dataset *d);
/* Appends the prompt of item i (modulo the size) to b as JSON: a string, or a list of ids. */
void sl_bench_dataset_prompt(const struct sl_bench_dataset *d, size_t i, struct sl_buf *b);
/* Appends a text of n words to b, the first one SL_BENCH_FIRST_WORD; all words there are. */
void sl_bench_words(const struct sl_bench_dataset *d, struct sl_rng *rng, size_t n,
                    struct sl_buf *b);
void sl_bench_all_words(struct sl_buf *b);
/* Back to all words and no overhead. */
void sl_bench_dataset_reset_words(struct sl_bench_dataset *d);

#endif
