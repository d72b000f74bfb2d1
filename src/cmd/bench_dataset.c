/* SPDX-License-Identifier: MIT */
#include "cmd/bench_dataset.h"

#include "base/check.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_WORDS    512 /* of the traces' hash ids */
#define MAX_FILE_BYTES (1u << 30)
#define MAX_ITEMS      (1u << 22)

static const char *const all_words[SL_BENCH_MAX_WORDS] = {
    "the",   "of",   "and",  "to",   "in",    "that",  "was",   "his",   "he",   "it",   "with",
    "is",    "for",  "as",   "had",  "you",   "not",   "be",    "her",   "on",   "at",   "by",
    "which", "have", "or",   "from", "this",  "him",   "but",   "all",   "she",  "they", "were",
    "my",    "are",  "me",   "one",  "their", "so",    "an",    "said",  "them", "we",   "who",
    "would", "been", "will", "no",   "when",  "there", "if",    "more",  "out",  "up",   "into",
    "do",    "any",  "your", "what", "has",   "man",   "could", "other", "than",
};

void sl_bench_dataset_reset_words(struct sl_bench_dataset *d)
{
    memcpy(d->words, all_words, sizeof all_words);
    d->n_words = SL_COUNT(all_words);
    d->overhead = 0;
}

void sl_bench_all_words(struct sl_buf *b)
{
    for (size_t i = 0; i < SL_COUNT(all_words); i++)
        sl_buf_printf(b, "%s%s", i > 0 ? " " : "", all_words[i]);
}

/* n more words, or ids, behind what the prompt at `from` has. */
static void put_more(const struct sl_bench_dataset *d, struct sl_rng *rng, size_t n, size_t from,
                     struct sl_buf *b)
{
    for (size_t i = 0; i < n; i++) {
        const bool first = b->n_bytes == from;
        if (!first)
            sl_buf_putc(b, d->ids != NULL ? ',' : ' ');
        if (d->ids != NULL)
            sl_buf_printf(b, "%d", d->ids[sl_rng_below(rng, (uint32_t)d->n_ids)]);
        else
            sl_buf_puts(b, first ? SL_BENCH_FIRST_WORD
                                 : d->words[sl_rng_below(rng, (uint32_t)d->n_words)]);
    }
}

void sl_bench_words(const struct sl_bench_dataset *d, struct sl_rng *rng, size_t n,
                    struct sl_buf *b)
{
    put_more(d, rng, n, b->n_bytes, b);
}

/* Words, ids and commas need no escaping. */
void sl_bench_dataset_prompt(const struct sl_bench_dataset *d, size_t i, struct sl_buf *b)
{
    const struct sl_bench_item *item = &d->items[i % d->n_items];
    if (item->prompt != NULL) {
        sl_buf_json_string(b, item->prompt, item->n_prompt);
        return;
    }
    sl_buf_putc(b, d->ids != NULL ? '[' : '"');
    const size_t from = b->n_bytes;
    size_t left = (size_t)SL_MAX(item->input_len - d->overhead, 1);
    for (size_t k = 0; k < item->n_blocks && left > 0; k++) {
        struct sl_rng rng = {.seed = d->seed ^ sl_mix64(item->blocks[k] + 1)};
        size_t n = SL_MIN(left, BLOCK_WORDS);
        put_more(d, &rng, n, from, b);
        left -= n;
    }
    struct sl_rng rng = {.seed = d->seed * 1000003u + i};
    put_more(d, &rng, left, from, b);
    sl_buf_putc(b, d->ids != NULL ? ']' : '"');
}

/* ---- files */

static int add_item(struct sl_bench_dataset *d, size_t *cap, const struct sl_bench_item *item,
                    struct sl_error *err)
{
    if (d->n_items == *cap) {
        size_t grown_cap = *cap != 0 ? *cap * 2 : 256;
        struct sl_bench_item *grown =
            grown_cap <= MAX_ITEMS ? sl_realloc(d->items, grown_cap * sizeof *grown) : NULL;
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "--dataset: too many entries");
        d->items = grown;
        *cap = grown_cap;
    }
    d->items[d->n_items++] = *item;
    return 0;
}

static int32_t clamp_len(int64_t x, int32_t max)
{
    int64_t bound = max > 0 ? max : INT32_MAX;
    return (int32_t)(x < 1 ? 1 : x > bound ? bound : x);
}

/* TIMESTAMP,ContextTokens,GeneratedTokens */
static bool read_csv_line(const char *s, size_t n, const struct sl_bench_lengths *lengths,
                          struct sl_bench_item *item)
{
    const char *a = memchr(s, ',', n);
    const char *b = a != NULL ? memchr(a + 1, ',', n - (size_t)(a + 1 - s)) : NULL;
    uint64_t in, out;
    if (b == NULL || !sl_parse_u64(a + 1, (size_t)(b - a - 1), &in) ||
        !sl_parse_u64(b + 1, n - (size_t)(b + 1 - s), &out) || in > INT32_MAX || out > INT32_MAX)
        return false;
    item->input_len = clamp_len((int64_t)in, lengths->max_input_len);
    item->output_len = clamp_len((int64_t)out, 0);
    return true;
}

static int read_blocks(const json_t *ids, struct sl_bench_item *item, struct sl_error *err)
{
    size_t n = json_array_size(ids);
    if (n == 0)
        return 0;
    item->blocks = sl_calloc(n, sizeof *item->blocks);
    if (item->blocks == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a trace");
    for (size_t i = 0; i < n; i++)
        item->blocks[i] = (uint64_t)json_integer_value(json_array_get(ids, i));
    item->n_blocks = n;
    return 0;
}

static int32_t find_kind(struct sl_bench_dataset *d, const char *name)
{
    int32_t i = 0;
    if (name == NULL)
        return -1;
    while (i < d->n_kinds && strncmp(d->kinds[i], name, sizeof d->kinds[i] - 1) != 0)
        i++;
    if (i == d->n_kinds && d->n_kinds < SL_BENCH_MAX_KINDS)
        snprintf(d->kinds[d->n_kinds++], sizeof d->kinds[i], "%.*s", (int)sizeof d->kinds[i] - 1,
                 name);
    return SL_MIN(i, SL_BENCH_MAX_KINDS - 1);
}

static int read_json_line(struct sl_bench_dataset *d, const char *s, size_t n,
                          const struct sl_bench_lengths *lengths, struct sl_bench_item *item,
                          struct sl_error *err)
{
    json_t *root = json_loadb(s, n, 0, NULL);
    int rc = 0;
    const json_t *length = json_object_get(root, "input_length");
    const json_t *prompt = json_object_get(root, "prompt");
    if (prompt == NULL)
        prompt = json_array_get(json_object_get(root, "turns"), 0);
    item->kind = find_kind(d, json_string_value(json_object_get(root, "category")));
    if (json_is_integer(length)) {
        item->input_len = clamp_len(json_integer_value(length), lengths->max_input_len);
        item->output_len = clamp_len(json_integer_value(json_object_get(root, "output_length")), 0);
        rc = read_blocks(json_object_get(root, "hash_ids"), item, err);
    } else if (json_is_string(prompt)) {
        item->n_prompt = json_string_length(prompt);
        item->prompt = sl_strndup(json_string_value(prompt), item->n_prompt);
        item->output_len = lengths->output_len;
        if (item->prompt == NULL)
            rc = sl_fail(err, SL_ENOMEM, "out of memory for a prompt");
    } else {
        rc = sl_fail(err, SL_EFORMAT, "neither input_length, prompt nor turns");
    }
    json_decref(root);
    return rc;
}

static int bench_dataset_read_lines(struct sl_bench_dataset *d, const char *path, const char *text,
                                    size_t n, const struct sl_bench_lengths *lengths,
                                    struct sl_error *err)
{
    size_t cap = 0, line_no = 0;
    bool csv = sl_ends_with(path, ".csv");
    for (const char *at = text, *end = text + n; at < end;) {
        const char *lf = memchr(at, '\n', (size_t)(end - at));
        const char *stop = lf != NULL ? lf : end;
        size_t len = (size_t)(stop - at);
        struct sl_bench_item item = {.kind = -1};
        len -= len > 0 && at[len - 1] == '\r';
        line_no++;
        bool skip = len == 0 || (csv && line_no == 1); /* the head of the table */
        int rc = 0;
        if (!skip && csv && !read_csv_line(at, len, lengths, &item))
            rc = sl_fail(err, SL_EFORMAT, "not time,input,output");
        else if (!skip && !csv)
            rc = read_json_line(d, at, len, lengths, &item, err);
        if (rc != 0)
            return sl_error_prefix(err, rc, "%s: line %zu", path, line_no);
        if (!skip && add_item(d, &cap, &item, err) != 0) {
            sl_free(item.prompt);
            sl_free(item.blocks);
            return err->code;
        }
        at = stop + 1;
    }
    return d->n_items > 0 ? 0 : sl_fail(err, SL_EFORMAT, "%s: no requests in it", path);
}

/* ---- synthetic */

static int32_t vary(struct sl_rng *rng, int32_t length, float range)
{
    double u = 2 * sl_rng_unit(sl_rng_next(rng)) - 1;
    return clamp_len((int64_t)((double)length * (1 + (double)range * u) + 0.5), 0);
}

static int make_items(struct sl_bench_dataset *d, size_t n, const struct sl_bench_lengths *lengths,
                      struct sl_error *err)
{
    struct sl_rng rng = {.seed = d->seed};
    d->items = sl_calloc(n, sizeof *d->items);
    if (d->items == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %zu requests", n);
    d->n_items = n;
    for (size_t i = 0; i < n; i++) {
        d->items[i].kind = -1;
        d->items[i].input_len = vary(&rng, lengths->input_len, lengths->range);
        d->items[i].output_len = vary(&rng, lengths->output_len, lengths->range);
    }
    return 0;
}

int sl_bench_dataset_open(struct sl_bench_dataset *d, const char *path, size_t n,
                          const struct sl_bench_lengths *lengths, uint64_t seed,
                          struct sl_error *err)
{
    char *text = NULL;
    size_t n_text = 0;
    *d = (struct sl_bench_dataset){.seed = seed};
    sl_bench_dataset_reset_words(d);
    if (path == NULL)
        return make_items(d, n, lengths, err);
    int rc = sl_read_file(path, MAX_FILE_BYTES, &text, &n_text, err);
    if (rc == 0)
        rc = bench_dataset_read_lines(d, path, text, n_text, lengths, err);
    sl_free(text);
    return rc;
}

void sl_bench_dataset_close(struct sl_bench_dataset *d)
{
    for (size_t i = 0; i < d->n_items; i++) {
        sl_free(d->items[i].prompt);
        sl_free(d->items[i].blocks);
    }
    sl_free(d->items);
    sl_free(d->ids);
    *d = (struct sl_bench_dataset){0};
}
