/* SPDX-License-Identifier: MIT
 * str.h - strict numbers, UTF-8 and name matching. Nothing here is lenient: a number is the whole
 * string, without spaces or a sign it does not allow.
 */
#ifndef SL_BASE_STR_H
#define SL_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool sl_parse_u64(const char *s, size_t n, uint64_t *out);  /* decimal digits only */
bool sl_parse_i64(const char *s, size_t n, int64_t *out);   /* optional leading '-' */
bool sl_parse_double(const char *s, size_t n, double *out); /* JSON number grammar; finite */
/* "8k" = 8192? No: as in vLLM k/m/g are 1000s and K/M/G are 1024s; "25.6k" = 25600. */
bool sl_parse_human_u64(const char *s, size_t n, uint64_t *out);
bool sl_parse_hex_u64(const char *s, size_t n, uint64_t *out); /* 1..16 hex digits, no prefix */

/* Length 1..4 of the valid UTF-8 character at s (no overlongs, no surrogates, <= U+10FFFF), 0 if
 * none. */
size_t sl_utf8_valid_len(const char *s, size_t n);
/* Decodes it; returns the length, or 0 and *cp untouched when invalid. */
size_t sl_utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Encodes cp into out[4]; returns the length, 0 for surrogates and beyond U+10FFFF. */
size_t sl_utf8_encode(uint32_t cp, char out[4]);
/* Bytes at the end of s that begin a character which more bytes could complete (0..3). */
size_t sl_utf8_incomplete_tail(const char *s, size_t n);

/* Length of the printable character at s, no C0 or C1 control, 0 if there is none. n > 0. */
size_t sl_printable_len(const char *s, size_t n);
/* Replaces what a terminal should not get by '?': text for people may quote a file or a peer. */
void sl_scrub(char *s, size_t n);

/* The candidate nearest to name by edit distance, NULL if none is near enough to be a typo. */
const char *sl_nearest(const char *name, const char *const *candidates, size_t n);

bool sl_starts_with(const char *s, const char *prefix);
bool sl_ends_with(const char *s, const char *suffix);

#endif
