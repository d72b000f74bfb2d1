/* SPDX-License-Identifier: MIT
 * json_load.h - the one way to parse JSON text with the library.
 *
 * The library takes some of its own allocation failures for bad syntax, and others for a shorter
 * string, which would change a prompt without a word. Here its memory comes from base/sys.h, and a
 * parse during which some was refused is a failure that says so.
 */
#ifndef SL_BASE_JSON_LOAD_H
#define SL_BASE_JSON_LOAD_H

#include <jansson.h>
#include <stdbool.h>

/* As json_loadb. NULL: *why says what is wrong, or sl_json_no_memory(why). */
json_t *sl_json_load(const char *text, size_t n, size_t flags, json_error_t *why);
/* Likewise, and an integer that 64 bits do not hold is the real number next to it, where the
 * library refuses the whole text. Other integers stay exact. */
json_t *sl_json_load_wide(const char *text, size_t n, size_t flags, json_error_t *why);
/* A span of text that is an integer of JSON beyond 64 bits, from *at on, outside of strings; false:
 * there is none. *at is behind it then. */
bool sl_json_next_wide(const char *text, size_t n, size_t *at, size_t *begin);
bool sl_json_no_memory(const json_error_t *why);
/* Frees what json_dumps gave: its memory, too, is not the heap's own. */
void sl_json_free_text(char *text);

#endif
