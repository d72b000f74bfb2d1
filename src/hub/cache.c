/* SPDX-License-Identifier: MIT
 *
 * Where the cache lies, what is in it, and what of it goes.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"
#include "hub/hub.h"
#include "hub/name.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_TOKEN 4096u
#define PREFIX    "models--"

/* Python's tools expand a leading "~/" themselves, so values of the environment may have it. */
static void put_path(struct sl_buf *out, const char *path)
{
    const char *home = sl_environment("HOME");
    if (path[0] == '~' && (path[1] == '/' || path[1] == '\0') && home != NULL) {
        sl_buf_puts(out, home);
        path++;
    }
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    sl_buf_put(out, path, n);
}

/* HF_HOME, or what it is when it is not set. */
static int put_home(struct sl_buf *out, struct sl_error *err)
{
    const char *home = sl_environment("HF_HOME"), *cache = sl_environment("XDG_CACHE_HOME");
    if (home != NULL) {
        put_path(out, home);
        return 0;
    }
    if (cache == NULL && sl_environment("HOME") == NULL)
        return sl_fail(err, SL_EINVAL, "no cache for models: set HF_HOME, or give --download-dir");
    put_path(out, cache != NULL ? cache : "~/.cache");
    sl_buf_puts(out, "/huggingface");
    return 0;
}

int sl_hub_root(const struct sl_hub_config *cfg, struct sl_buf *out, struct sl_error *err)
{
    const char *dir = cfg != NULL ? cfg->download_dir : NULL;
    if (dir == NULL)
        dir = sl_environment("HF_HUB_CACHE");
    if (dir == NULL)
        dir = sl_environment("HUGGINGFACE_HUB_CACHE");
    if (dir != NULL) {
        put_path(out, dir);
    } else {
        int rc = put_home(out, err);
        if (rc != 0)
            return rc;
        sl_buf_puts(out, "/hub");
    }
    return sl_buf_ok(out) ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

void sl_hub_repo_folder(struct sl_buf *out, const char *repo)
{
    const char *slash = strchr(repo, '/');
    SL_ASSERT(slash != NULL);
    sl_buf_puts(out, PREFIX);
    sl_buf_put(out, repo, (size_t)(slash - repo));
    sl_buf_puts(out, "--");
    sl_buf_puts(out, slash + 1);
}

bool sl_hub_is_set(const char *variable)
{
    const char *v = sl_environment(variable);
    return v != NULL && (strcmp(v, "1") == 0 || strcasecmp(v, "true") == 0 ||
                         strcasecmp(v, "yes") == 0 || strcasecmp(v, "on") == 0);
}

/* ---- the token */

static int clean_token(const char *text, size_t n, const char *where, char **out,
                       struct sl_error *err)
{
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
        n--;
    while (n > 0 && strchr(" \t\r\n", text[0]) != NULL) {
        text++;
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] <= 0x20 || text[i] >= 0x7F)
            return sl_fail(err, SL_EINVAL, "%.100s: byte %zu of the token is none", where, i);
    }
    if (n == 0)
        return 0;
    *out = sl_strndup(text, n);
    return *out != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

int sl_hub_token(char **out, struct sl_error *err)
{
    const char *token = sl_environment("HF_TOKEN"), *path = sl_environment("HF_TOKEN_PATH");
    struct sl_buf file = {0};
    char *text = NULL;
    size_t n;
    *out = NULL;
    if (token == NULL)
        token = sl_environment("HUGGING_FACE_HUB_TOKEN");
    if (token != NULL)
        return clean_token(token, strlen(token), "HF_TOKEN", out, err);
    int rc = 0;
    if (path != NULL)
        put_path(&file, path);
    else if ((rc = put_home(&file, NULL)) == 0)
        sl_buf_puts(&file, "/token");
    if (rc != 0) /* no home, so no token */
        return 0;
    if (!sl_buf_ok(&file))
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    else if (sl_exists(file.data))
        rc = sl_read_file(file.data, MAX_TOKEN, &text, &n, err);
    if (rc == 0 && text != NULL)
        rc = clean_token(text, n, file.data, out, err);
    sl_free(text);
    sl_buf_deinit(&file);
    return rc;
}

/* ---- what there is */

struct names {
    char **items;
    size_t n;
};

static int cache_add_name(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct names *all = arg;
    (void)n_bytes;
    char **grown = sl_realloc(all->items, (all->n + 1) * sizeof *grown);
    if (grown == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    all->items = grown;
    grown[all->n] = sl_strdup(name);
    return grown[all->n] != NULL ? (all->n++, 0) : sl_fail(err, SL_ENOMEM, "out of memory");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_deinit(struct names *all)
{
    for (size_t i = 0; i < all->n; i++)
        sl_free(all->items[i]);
    sl_free(all->items);
}

static int count_blob(void *arg, const char *path, uint64_t n_bytes, struct sl_error *err)
{
    struct sl_hub_entry *e = arg;
    (void)err;
    e->n_bytes += n_bytes;
    if (sl_ends_with(path, ".incomplete"))
        e->n_partial_bytes += n_bytes;
    return 0;
}

static int count_file(void *arg, const char *path, uint64_t n_bytes, struct sl_error *err)
{
    struct sl_hub_entry *e = arg;
    (void)path;
    (void)n_bytes;
    (void)err;
    e->n_files++;
    return 0;
}

static int add_revision(void *arg, const char *path, uint64_t n_bytes, struct sl_error *err)
{
    struct sl_buf *b = arg;
    (void)n_bytes;
    (void)err;
    sl_buf_printf(b, "%s%s", b->n_bytes > 0 ? "," : "", path);
    return 0;
}

/* folder: one of the repository's, with its path behind the n_repo bytes of path. */
static int walk_part(struct sl_buf *path, const char *folder, sl_walk_fn fn, void *arg,
                     struct sl_error *err)
{
    size_t n = path->n_bytes;
    sl_buf_puts(path, folder);
    int rc = sl_buf_ok(path) ? sl_walk(path->data, fn, arg, err)
                             : sl_fail(err, SL_ENOMEM, "out of memory");
    path->n_bytes = n;
    path->data[n] = '\0';
    return rc;
}

/* models--ORG--NAME as ORG/NAME; false: some other folder. */
static bool repo_of(const char *folder, char repo[200])
{
    struct sl_hub_name name;
    const char *org = folder + strlen(PREFIX), *dashes;
    if (!sl_starts_with(folder, PREFIX) || (dashes = strstr(org, "--")) == NULL)
        return false;
    size_t n_org = (size_t)(dashes - org), n_rest = strlen(dashes + 2);
    if (n_org + 1 + n_rest >= 200)
        return false;
    memcpy(repo, org, n_org);
    repo[n_org] = '/';
    memcpy(repo + n_org + 1, dashes + 2, n_rest + 1);
    return sl_hub_name_parse(repo, &name) && strcmp(name.repo, repo) == 0;
}

static int cache_measure(struct sl_buf *path, const char *repo, struct sl_buf *revisions,
                         struct sl_hub_entry *e, struct sl_error *err)
{
    *e = (struct sl_hub_entry){.repo = repo};
    sl_buf_clear(revisions);
    int rc = walk_part(path, "/blobs", count_blob, e, err);
    if (rc == 0)
        rc = walk_part(path, "/snapshots", count_file, e, err);
    if (rc == 0)
        rc = walk_part(path, "/refs", add_revision, revisions, err);
    if (rc == 0 && !sl_buf_ok(revisions))
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    e->revisions = revisions->n_bytes > 0 ? revisions->data : "";
    return rc;
}

int sl_hub_list(const struct sl_hub_config *cfg, void (*fn)(void *, const struct sl_hub_entry *),
                void *arg, struct sl_error *err)
{
    struct sl_buf path = {0}, revisions = {0};
    struct names all = {0};
    struct sl_hub_entry e;
    char repo[200];
    int rc = sl_hub_root(cfg, &path, err);
    if (rc == 0)
        rc = sl_list_folder(path.data, cache_add_name, &all, err);
    if (all.n > 1)
        qsort(all.items, all.n, sizeof *all.items, by_name);
    size_t n_root = path.n_bytes;
    for (size_t i = 0; rc == 0 && i < all.n; i++) {
        if (!repo_of(all.items[i], repo))
            continue;
        sl_buf_printf(&path, "/%s", all.items[i]);
        rc = cache_measure(&path, repo, &revisions, &e, err);
        path.n_bytes = n_root;
        if (rc == 0)
            fn(arg, &e);
    }
    names_deinit(&all);
    sl_buf_deinit(&revisions);
    sl_buf_deinit(&path);
    return rc;
}

bool sl_hub_is_name(const char *text, char repo[200])
{
    struct sl_hub_name name;
    if (text == NULL || sl_exists(text) || !sl_hub_name_parse(text, &name))
        return false;
    memcpy(repo, name.repo, sizeof name.repo);
    return true;
}

int sl_hub_remove(const struct sl_hub_config *cfg, const char *text, uint64_t *n_bytes,
                  struct sl_error *err)
{
    struct sl_buf path = {0}, revisions = {0};
    struct sl_hub_name name;
    struct sl_hub_entry e;
    if (!sl_hub_name_parse(text, &name) || strcmp(name.repo, text) != 0)
        return sl_fail(err, SL_EINVAL, "'%.120s' is not a repository of the cache: org/name", text);
    int rc = sl_hub_root(cfg, &path, err);
    if (rc == 0) {
        sl_buf_putc(&path, '/');
        sl_hub_repo_folder(&path, name.repo);
        if (!sl_buf_ok(&path))
            rc = sl_fail(err, SL_ENOMEM, "out of memory");
        else if (!sl_is_folder(path.data))
            rc = sl_fail(err, SL_ENOTFOUND, "%s is not in the cache", name.repo);
    }
    if (rc == 0)
        rc = cache_measure(&path, name.repo, &revisions, &e, err);
    if (rc == 0) {
        *n_bytes = e.n_bytes;
        rc = sl_remove_tree(path.data, err);
    }
    sl_buf_deinit(&revisions);
    sl_buf_deinit(&path);
    return rc;
}
