/* SPDX-License-Identifier: MIT
 * tok_input.c - what a model of whole texts reads: one text or two, with the special tokens around,
 * cut to what it takes.
 *
 * Two texts are those of BERT, begin a end, b end, or of RoBERTa, begin a end, end b end, with what
 * stands around a single text in the model's own template. Which of two is cut is the rule of the
 * tokenizers library (longest first).
 */
#include "base/check.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tok.h"

#include <string.h>

/* Tokens that stay of two texts which may have `room` together. */
static void tok_input_share(size_t room, size_t *n_a, size_t *n_b)
{
    size_t *less = *n_a > *n_b ? n_b : n_a, *more = *n_a > *n_b ? n_a : n_b;
    if (*n_a + *n_b <= room)
        return;
    *more = *less > room ? *less : SL_MAX(*less, room - *less);
    if (*less + *more > room) {
        *less = room / 2;
        *more = *less + room % 2;
    }
    SL_ASSERT(*less + *more <= room);
}

static void tok_input_put(int32_t *ids, size_t *at, const int32_t *from, size_t n)
{
    if (n > 0)
        memcpy(ids + *at, from, n * sizeof *ids);
    *at += n;
}

int sl_tokenizer_encode_input(const struct sl_tokenizer *tok, const char *a, size_t n_a,
                              const char *b, size_t n_b, int32_t max_ids, int32_t **ids,
                              size_t *n_ids, int32_t *second_from, struct sl_error *err)
{
    struct sl_ids one = {0}, two = {0};
    const size_t n_around =
        tok->n_prefix_ids + tok->n_suffix_ids * (b != NULL ? 2 + tok->suffix_twice : 1);
    *ids = NULL;
    *n_ids = 0;
    *second_from = 0;
    int rc = sl_tokenizer_encode_into(tok, a, n_a, SL_ENCODE_PARSE_SPECIAL, &one, err);
    if (rc == 0 && b != NULL)
        rc = sl_tokenizer_encode_into(tok, b, n_b, SL_ENCODE_PARSE_SPECIAL, &two, err);
    if (rc == 0 && max_ids > 0 && (size_t)max_ids <= n_around)
        rc = sl_fail(err, SL_ELIMIT, "%d tokens have no room for text beside %zu special ones",
                     max_ids, n_around);
    if (rc == 0 && max_ids > 0 && b != NULL)
        tok_input_share((size_t)max_ids - n_around, &one.n, &two.n);
    else if (rc == 0 && max_ids > 0)
        one.n = SL_MIN(one.n, (size_t)max_ids - n_around);
    if (rc == 0 && one.n + two.n + n_around > INT32_MAX)
        rc = sl_fail(err, SL_ELIMIT, "a text of %zu tokens", one.n + two.n);
    if (rc == 0) {
        *ids = sl_malloc((one.n + two.n + n_around + 1) * sizeof **ids);
        if (*ids == NULL)
            rc = sl_fail(err, SL_ENOMEM, "out of memory for %zu tokens", one.n + two.n);
    }
    if (rc == 0) {
        tok_input_put(*ids, n_ids, tok->prefix_ids, tok->n_prefix_ids);
        tok_input_put(*ids, n_ids, one.data, one.n);
        tok_input_put(*ids, n_ids, tok->suffix_ids, tok->n_suffix_ids);
        if (b != NULL) {
            if (tok->suffix_twice)
                tok_input_put(*ids, n_ids, tok->suffix_ids, tok->n_suffix_ids);
            *second_from = (int32_t)*n_ids;
            tok_input_put(*ids, n_ids, two.data, two.n);
            tok_input_put(*ids, n_ids, tok->suffix_ids, tok->n_suffix_ids);
        }
    }
    sl_free(one.data);
    sl_free(two.data);
    return rc;
}
