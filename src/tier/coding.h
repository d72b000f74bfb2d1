/* SPDX-License-Identifier: MIT
 * coding.h - lossless coding of the bytes of a page, on their way to a disk.
 *
 * Numbers of a model have few exponents: of BF16 keys and values the exponent has about 3 bits of
 * entropy, sign and mantissa have all of theirs. So a page is taken for words of 1, 2 or 4 bytes,
 * whichever codes best; each word is turned left by one bit, so that the exponent of BF16 and F32
 * is its highest byte; and the bytes of one place make a plane. A plane is coded by itself with a
 * table of its own, or stays as it is.
 *
 * A coded plane is static rANS of order 0 (Duda, arXiv 1311.2540): 12 bits of probability, states
 * of 32 bits that are filled up with words of 16 bits, and 32 of them in turn for the bytes of a
 * plane, so that vectors of 8 or 16 states are decoded at a time.
 *
 *   header   struct sl_code_head
 *   planes   for each: uint32_t kind << 30 | bytes that follow
 *            0 as it is; 1 one byte, of which all are; 2 rANS: a bit for each byte value that
 *            occurs (32 bytes), its share of 4,096 as uint16_t in order, the 32 states, words
 *   rest     what is behind the last whole word
 *
 * Numbers are little-endian. Coded bytes are not trusted: the decoder stays inside of them and of
 * the page whatever they say. Whether the page is right its digest says.
 *
 * Any thread. Nothing is allocated.
 */
#ifndef SL_TIER_CODING_H
#define SL_TIER_CODING_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define SL_CODE_LANES 32
#define SL_CODE_BITS  12 /* of a probability */
#define SL_CODE_MAGIC 0x3143564Bu

struct sl_code_head {
    uint32_t magic, word; /* word: bytes, 1, 2 or 4 */
    uint64_t n_bytes;     /* of the page */
};

/* Room for planes that both directions need beside the page. */
size_t sl_code_scratch_bytes(size_t n_bytes);

/* Bytes written to out; 0: it would be more than `room`. */
size_t sl_code_page(const uint8_t *page, size_t n_bytes, uint8_t *out, size_t room,
                    uint8_t *scratch);
/* False: these are not the coded bytes of a page of n_bytes. */
bool sl_decode_page(const uint8_t *in, size_t n_in, uint8_t *page, size_t n_bytes,
                    uint8_t *scratch);

/* ---- parts, for tests and tools ---- */

/* A round takes one byte of each lane. The decoder ends before a round whose words might not be
 * there any more. */
struct sl_code_stream {
    const uint8_t *at, *end;   /* words */
    uint32_t x[SL_CODE_LANES]; /* states */
    const uint32_t *table;     /* [4096] byte << 24 | share << 12 | place in the share */
};

struct sl_code_kernels {
    const char *name;
    size_t (*rounds)(struct sl_code_stream *s, uint8_t *out, size_t n); /* how many of n it did */
    /* Words to planes, which lie n_words apart, and back. */
    void (*split)(const uint8_t *page, size_t n_words, int word, uint8_t *planes);
    void (*merge)(uint8_t *page, size_t n_words, int word, const uint8_t *const planes[4]);
};

extern const struct sl_code_kernels sl_code_kernels_c, sl_code_kernels_avx2, sl_code_kernels_avx512;
/* Those of this machine; `use` NULL: the best ones, as at the start. For tests. */
const struct sl_code_kernels *sl_code_kernels(void);
void sl_code_use(const struct sl_code_kernels *use);
bool sl_code_runs(const struct sl_code_kernels *k); /* on this machine */

#endif
