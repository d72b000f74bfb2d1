/* SPDX-License-Identifier: MIT
 * name.h - names of models on the hub: org/name, org/name:quant, org/name/path/to/file.gguf.
 */
#ifndef SL_HUB_NAME_H
#define SL_HUB_NAME_H

#include "base/buf.h"

#define SL_HUB_ID_BYTES                                                      \
    128 /* of a blob's name: its entity tag, in practice 40 or 64 hex digits \
         */

struct sl_hub_name {
    char repo[200]; /* org/name */
    char file[256]; /* "" or a .gguf file, relative to the repository */
    char quant[64]; /* "" or what was behind the colon */
};

/* False: the text has none of the three forms (it is then a path, or a mistake). */
bool sl_hub_name_parse(const char *text, struct sl_hub_name *out);
/* A relative path whose parts are plain file names: it cannot leave the folder it is joined to. */
bool sl_hub_path_safe(const char *path, size_t n);
/* A branch, a tag or a commit as git allows them, short of what could leave a folder. */
bool sl_hub_revision_safe(const char *revision);
bool sl_hub_is_hex(const char *s, size_t n_digits); /* exactly so many lower-case digits */
/* Appends text with all but unreserved characters, and '/' if keep_slash, as %XX. */
void sl_hub_escape(struct sl_buf *b, const char *text, bool keep_slash);

#endif
