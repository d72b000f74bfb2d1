/* SPDX-License-Identifier: MIT
 * bench_dataset.h - what the load generator asks: synthetic words, prompt files, request traces.
 *
 * Deterministic in the seed. Text is plain words, about one token each in the usual vocabularies;
 * the server's usage says what they came to.
 */
#ifndef SL_CMD_BENCH_DATASET_H
#define SL_CMD_BENCH_DATASET_H

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct sl_bench_item {
    char *prompt; /* given text, or NULL: words are made from the lengths */
    size_t n_prompt;
    int32_t input_len, output_len;
    uint64_t *blocks; /* trace: the text of 512 words each is a function of these */
    size_t n_blocks;
};

struct sl_bench_dataset {
    struct sl_bench_item *items;
    size_t n_items;
    uint64_t seed;
};

struct sl_bench_lengths {
    int32_t input_len, output_len; /* for items that do not say */
    int32_t max_input_len;         /* cuts traces; 0 = none */
    float range;                   /* lengths vary by this share around the value */
};

/* path NULL: n synthetic items. Known files: .csv with ContextTokens and GeneratedTokens, .jsonl
 * with input_length/output_length/hash_ids, .jsonl with turns or prompt. */
SL_MUST_CHECK int sl_bench_dataset_open(struct sl_bench_dataset *d, const char *path, size_t n,
                                        const struct sl_bench_lengths *lengths, uint64_t seed,
                                        struct sl_error *err);
void sl_bench_dataset_close(struct sl_bench_dataset *d);
/* Appends the prompt of item i (modulo the size) to b. */
void sl_bench_dataset_prompt(const struct sl_bench_dataset *d, size_t i, struct sl_buf *b);

#endif
