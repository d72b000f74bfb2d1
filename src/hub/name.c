/* SPDX-License-Identifier: MIT */
#include "hub/name.h"

#include "base/err.h"
#include "base/str.h"
#include "io/names.h"

#include <string.h>

#define MAX_PART 96 /* bytes of an organisation's or repository's name, as the hub has it */

static bool name_is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Length of a name at s that ends at one of the given characters or at the end of the text, 0 if
 * it is none. "--" separates parts in the cache's folder names, so no name has it. */
static size_t part_len(const char *s, const char *ends)
{
    size_t n = strcspn(s, ends);
    SL_DCHECK(n <= strlen(s));
    if (n == 0 || n > MAX_PART || !name_is_word(s[0]) || s[n - 1] == '.' || s[n - 1] == '-')
        return 0;
    for (size_t i = 0; i < n; i++) {
        bool punctuation = s[i] == '-' || s[i] == '.';
        if (!name_is_word(s[i]) && !punctuation && s[i] != '_')
            return 0;
        if (punctuation && s[i] == s[i - 1])
            return 0;
    }
    return n;
}

static bool parse_quant(const char *s, struct sl_hub_name *out)
{
    size_t n = strlen(s);
    if (n == 0 || n >= sizeof out->quant)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!name_is_word(s[i]) && s[i] != '_' && s[i] != '-' && s[i] != '.')
            return false;
    }
    memcpy(out->quant, s, n + 1);
    return true;
}

bool sl_hub_name_parse(const char *text, struct sl_hub_name *out)
{
    *out = (struct sl_hub_name){0};
    size_t n_org = part_len(text, "/");
    if (n_org == 0 || text[n_org] != '/')
        return false;
    size_t n_repo = part_len(text + n_org + 1, "/:");
    if (n_repo == 0)
        return false;
    size_t n = n_org + 1 + n_repo;
    SL_ASSERT(n < sizeof out->repo && n <= strlen(text));
    memcpy(out->repo, text, n);
    const char *rest = text + n;
    if (*rest == ':')
        return parse_quant(rest + 1, out);
    if (*rest == '\0')
        return true;
    size_t n_file = strlen(++rest);
    if (n_file >= sizeof out->file || !sl_hub_path_safe(rest, n_file) ||
        !sl_ends_with(rest, ".gguf"))
        return false;
    memcpy(out->file, rest, n_file + 1);
    SL_ASSERT(out->quant[0] == '\0'); /* a file or a quantisation, never both */
    return true;
}

bool sl_hub_path_safe(const char *path, size_t n)
{
    for (size_t at = 0; at <= n;) {
        const char *slash = memchr(path + at, '/', n - at);
        size_t end = slash != NULL ? (size_t)(slash - path) : n;
        SL_DCHECK(at <= end && end <= n);
        if (!sl_names_plain_file(path + at, end - at))
            return false;
        at = end + 1;
    }
    return true;
}

bool sl_hub_revision_safe(const char *revision)
{
    size_t n = strlen(revision);
    return n <= 200 && revision[0] != '-' && sl_hub_path_safe(revision, n);
}

bool sl_hub_is_hex(const char *s, size_t n_digits)
{
    SL_ASSERT(n_digits == 40 || n_digits == 64); /* a commit or git object; a SHA-256 */
    for (size_t i = 0; i < n_digits; i++) {
        if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'f'))
            return false;
    }
    return s[n_digits] == '\0';
}

void sl_hub_escape(struct sl_buf *b, const char *text, bool keep_slash)
{
    for (const char *p = text; *p != '\0'; p++) {
        bool plain = name_is_word(*p) || *p == '-' || *p == '_' || *p == '.' || *p == '~';
        if (plain || (keep_slash && *p == '/'))
            sl_buf_putc(b, *p);
        else
            sl_buf_printf(b, "%%%02X", (unsigned)(unsigned char)*p);
    }
}
