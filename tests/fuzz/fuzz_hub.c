/* SPDX-License-Identifier: MIT
 * What the hub may answer: a name of a model, its list of files, its index of shards and header
 * lines, with NUL between them. Whatever is wanted is in the list and stays inside the folder, as a
 * slow look at its path says; what header lines give can be a file's name.
 */
#include "fuzz.h"
#include "hub/fetch.h"
#include "hub/files.h"

#include <stdlib.h>
#include <string.h>

/* Walks the path as a file system would: never above where it began, never from the root. */
static bool stays_inside(const char *path)
{
    int depth = 0;
    if (path[0] == '/' || path[0] == '\0')
        return false;
    for (const char *p = path; *p != '\0'; p += strspn(p, "/")) {
        size_t n = strcspn(p, "/");
        depth += n == 2 && memcmp(p, "..", 2) == 0 ? -1 : !(n == 1 && *p == '.');
        if (depth < 0)
            return false;
        p += n;
    }
    return depth > 0;
}

/* The next piece as a string of its own, so that a byte too far is seen. */
static char *piece(const uint8_t **at, const uint8_t *end, size_t *n)
{
    const uint8_t *nul = *at < end ? memchr(*at, '\0', (size_t)(end - *at)) : NULL;
    const uint8_t *stop = nul != NULL ? nul : end;
    *n = (size_t)(stop - *at);
    char *s = malloc(*n + 1);
    SL_ASSERT(s != NULL);
    memcpy(s, *at, *n);
    s[*n] = '\0';
    *at = nul != NULL ? nul + 1 : end;
    return s;
}

static void check_pick(struct sl_hub_files *f, const struct sl_hub_name *name, bool text_only,
                       const char *index, size_t n_index)
{
    struct sl_hub_pick pick = {.text_only = text_only};
    struct sl_error err = {0};
    int rc = sl_hub_files_pick(f, name, &pick, &err);
    if (rc == 0 && pick.needs_index) {
        pick.index = index;
        pick.n_index = n_index;
        rc = sl_hub_files_pick(f, name, &pick, &err);
        SL_ASSERT(!pick.needs_index);
    }
    SL_ASSERT((rc < 0) == (err.msg[0] != '\0'));
    size_t n_wanted = 0;
    for (size_t i = 0; i < f->n; i++) {
        SL_ASSERT(stays_inside(f->items[i].path));
        n_wanted += f->items[i].wanted;
    }
    SL_ASSERT(rc != 0 || n_wanted > 0);
    if (rc == 0 && pick.main != NULL)
        SL_ASSERT(sl_hub_files_find(f, pick.main) != NULL);
}

static void check_headers(const char *text, size_t n)
{
    struct sl_fetch_headers h = {0};
    for (size_t at = 0; at < n;) {
        const char *line_end = memchr(text + at, '\n', n - at);
        size_t n_line = (line_end != NULL ? (size_t)(line_end - text) + 1 : n) - at;
        sl_fetch_header_line(&h, text + at, n_line);
        at += n_line;
    }
    const char *const ids[] = {h.etag, h.linked_etag};
    for (size_t i = 0; i < SL_COUNT(ids); i++)
        SL_ASSERT(ids[i][0] == '\0' || (stays_inside(ids[i]) && strchr(ids[i], '/') == NULL));
    for (const char *p = h.error_message; *p != '\0'; p++)
        SL_ASSERT(*p >= 0x20 && *p < 0x7F);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = data + size;
    size_t n_name, n_list, n_index, n_headers;
    char *text = piece(&data, end, &n_name), *list = piece(&data, end, &n_list);
    char *index = piece(&data, end, &n_index), *headers = piece(&data, end, &n_headers);
    struct sl_hub_files f = {0};
    struct sl_hub_name name;
    struct sl_error err = {0};
    bool is_name = sl_hub_name_parse(text, &name);
    if (is_name) {
        SL_ASSERT(stays_inside(name.repo) && strlen(name.repo) <= n_name);
        SL_ASSERT(name.file[0] == '\0' || stays_inside(name.file));
    }
    if (sl_hub_revision_safe(text))
        SL_ASSERT(stays_inside(text));
    int rc = sl_hub_files_parse(&f, list, n_list, &err);
    SL_ASSERT((rc < 0) == (err.msg[0] != '\0'));
    if (rc == 0 && is_name) {
        check_pick(&f, &name, false, index, n_index);
        check_pick(&f, &name, true, index, n_index);
    }
    check_headers(headers, n_headers);
    sl_hub_files_deinit(&f);
    free(text);
    free(list);
    free(index);
    free(headers);
    return 0;
}
