/* SPDX-License-Identifier: MIT
 *
 * sl_model_find: the cache first; then the hub's list of files, what the model needs of them, and
 * their transfer. The reference is written last, so that a download that broke off leaves an older
 * snapshot in use.
 */
#include "hub/hub.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"
#include "hub/fetch.h"
#include "hub/files.h"
#include "io/json.h"

#include <string.h>
#include <strings.h>

#define DEFAULT_ENDPOINT "https://huggingface.co"
#define N_PARALLEL       4
#define SILENCE_S        30
#define MAX_SILENCE_S    3600
#define SPARE_BYTES      (64u << 20) /* what a full file system should keep */

struct find {
    const struct sl_hub_config *cfg;
    struct sl_hub_name name;
    const char *revision;
    struct sl_buf root, repo; /* folders */
    struct sl_buf endpoint;
    char *token;
    struct sl_hub_files files;
    char *index;
    size_t n_index;
    struct sl_hub_pick pick;
    struct sl_fetch_options fetch;
    struct sl_fetch_job *jobs; /* of files under way */
    size_t n_jobs;
    uint64_t done_bytes, total_bytes; /* without the jobs; with them */
    int n_done, n_files;
};

/* Paths and addresses that live as long as the list of files. */
static const char *hub_keep(struct find *f, struct sl_buf *b, struct sl_error *err)
{
    char *s = sl_buf_ok(b) && b->data != NULL
                  ? sl_arena_strndup(&f->files.arena, b->data, b->n_bytes)
                  : NULL;
    if (s == NULL)
        sl_fail(err, SL_ENOMEM, "out of memory");
    sl_buf_deinit(b);
    return s;
}

static const char *repo_path(struct find *f, const char *a, const char *b, const char *c,
                             struct sl_error *err)
{
    struct sl_buf p = {0};
    sl_buf_printf(&p, "%s/%s/%s%s%s", f->repo.data, a, b, c[0] != '\0' ? "/" : "", c);
    return hub_keep(f, &p, err);
}

static const char *lock_path(struct find *f, const char *id, struct sl_error *err)
{
    struct sl_buf p = {0};
    sl_buf_printf(&p, "%s/.locks%s/%s.lock", f->root.data, f->repo.data + f->root.n_bytes, id);
    return hub_keep(f, &p, err);
}

static const char *file_url(struct find *f, const char *path, struct sl_error *err)
{
    struct sl_buf p = {0};
    sl_buf_printf(&p, "%s/%s/resolve/%s/", f->endpoint.data, f->name.repo, f->files.commit);
    sl_hub_escape(&p, path, true);
    return hub_keep(f, &p, err);
}

/* ---- the cache */

static int hub_add_cached(void *arg, const char *path, uint64_t n_bytes, struct sl_error *err)
{
    struct find *f = arg;
    struct sl_hub_file *file;
    size_t n = strlen(path);
    if (!sl_hub_path_safe(path, n))
        return 0;
    int rc = sl_hub_files_add(&f->files, path, n, &file, err);
    if (rc == 0) {
        file->n_bytes = n_bytes;
        file->sized = true;
    }
    return rc;
}

/* The commit that the revision stands for here, if any. */
static int read_commit(struct find *f, struct sl_error *err)
{
    char *text = NULL;
    size_t n = 0;
    const char *commit = f->revision;
    if (strlen(commit) != 40 || !sl_hub_is_hex(commit, 40)) {
        const char *ref = repo_path(f, "refs", f->revision, "", err);
        int rc = ref != NULL ? sl_read_file(ref, 64, &text, &n, err) : SL_ENOMEM;
        if (rc != 0)
            return rc;
        while (n > 0 && strchr(" \n\r", text[n - 1]) != NULL)
            text[--n] = '\0';
        commit = text;
    }
    int rc = strlen(commit) == 40 && sl_hub_is_hex(commit, 40)
                 ? 0
                 : sl_fail(err, SL_EFORMAT, "refs/%.60s of the cache is not a commit", f->revision);
    if (rc == 0)
        memcpy(f->files.commit, commit, 41);
    sl_free(text);
    return rc;
}

static int read_index(struct find *f, struct sl_error *err)
{
    const char *path = repo_path(f, "snapshots", f->files.commit, SL_HUB_INDEX, err);
    if (path == NULL)
        return SL_ENOMEM;
    int rc = sl_read_file(path, SL_JSON_MAX_INDEX, &f->index, &f->n_index, err);
    f->pick.index = f->index;
    f->pick.n_index = f->n_index;
    return rc;
}

static int pick(struct find *f, struct sl_error *err)
{
    f->pick.text_only = f->cfg->text_only;
    return sl_hub_files_pick(&f->files, &f->name, &f->pick, err);
}

static void hub_forget(struct find *f)
{
    sl_hub_files_deinit(&f->files);
    sl_free(f->index);
    f->index = NULL;
    f->pick = (struct sl_hub_pick){0};
}

static int hub_result(struct find *f, char **path, struct sl_error *err)
{
    const char *found =
        repo_path(f, "snapshots", f->files.commit, f->pick.main != NULL ? f->pick.main : "", err);
    *path = found != NULL ? sl_strdup(found) : NULL;
    return *path != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

/* A model that is complete in the cache. */
static int find_cached(struct find *f, char **path, struct sl_error *err)
{
    int rc = read_commit(f, err);
    if (rc != 0)
        return rc;
    const char *snapshot = repo_path(f, "snapshots", f->files.commit, "", err);
    rc = snapshot != NULL ? sl_walk(snapshot, hub_add_cached, f, err) : SL_ENOMEM;
    f->pick.only_cached = true;
    if (rc == 0)
        rc = pick(f, err);
    if (rc == 0 && f->pick.needs_index) {
        rc = read_index(f, err);
        if (rc == 0)
            rc = pick(f, err);
    }
    return rc == 0 ? hub_result(f, path, err) : rc;
}

/* ---- transfers */

static void hub_tell(struct find *f, const struct sl_fetch_job *finished, const char *note)
{
    struct sl_hub_progress p = {.repo = f->name.repo,
                                .note = note,
                                .done_bytes = f->done_bytes,
                                .total_bytes = f->total_bytes,
                                .n_done = f->n_done,
                                .n_files = f->n_files};
    if (f->cfg->progress == NULL)
        return;
    for (size_t i = 0; i < f->n_jobs; i++) {
        p.done_bytes += f->jobs[i].at;
        p.n_done += f->jobs[i].state == SL_FETCH_DONE;
    }
    if (finished != NULL) {
        p.file = finished->label;
        p.file_bytes = finished->at;
    }
    p.total_bytes = SL_MAX(p.total_bytes, p.done_bytes);
    f->cfg->progress(f->cfg->progress_arg, &p);
}

static void on_progress(void *arg, const struct sl_fetch_job *finished, const char *note)
{
    struct find *f = arg;
    if (f->n_jobs > 0 || note != NULL) /* questions to the hub's API are no progress */
        hub_tell(f, finished, note);
}

/* The name says no quantisation and the cache has one, not the default: that one is used. */
static void tell_quant(struct find *f)
{
    struct sl_buf note = {0};
    if (!f->pick.other_quant)
        return;
    const char *slash = strrchr(f->pick.main, '/');
    sl_buf_printf(&note, "%s: using %s, the only GGUF file in the cache; %s:QUANT names another",
                  f->name.repo, slash != NULL ? slash + 1 : f->pick.main, f->name.repo);
    if (sl_buf_ok(&note))
        hub_tell(f, NULL, note.data);
    sl_buf_deinit(&note);
}

static int ask_hub(struct find *f, struct sl_error *err)
{
    struct sl_buf url = {0};
    struct sl_fetch_job job = {.label = f->name.repo, .id = ""};
    sl_buf_printf(&url, "%s/api/models/%s/revision/", f->endpoint.data, f->name.repo);
    sl_hub_escape(&url, f->revision, false);
    sl_buf_puts(&url, "?blobs=true");
    job.url = hub_keep(f, &url, err);
    if (job.url == NULL)
        return SL_ENOMEM;
    int rc = sl_fetch_run(&f->fetch, &job, 1, err);
    if (rc == SL_ENOTFOUND)
        rc = sl_fail(err, rc, "the hub (%.80s) has no such model, or no revision '%.60s' of it",
                     f->endpoint.data, f->revision);
    if (rc == 0) {
        struct sl_hub_files listed = {0};
        rc = sl_hub_files_parse(&listed, job.body.data != NULL ? job.body.data : "",
                                job.body.n_bytes, err);
        hub_forget(f);
        f->files = listed;
    }
    sl_fetch_deinit_jobs(&job, 1);
    return rc;
}

/* Entity tags of wanted files that the list has no digest of: a mirror may leave them out. */
static int ask_ids(struct find *f, struct sl_error *err)
{
    size_t n = 0;
    struct sl_fetch_job *jobs = sl_calloc(f->files.n + 1, sizeof *jobs);
    if (jobs == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f->files.n; i++) {
        const struct sl_hub_file *file = &f->files.items[i];
        if (!file->wanted || file->id[0] != '\0')
            continue;
        jobs[n] = (struct sl_fetch_job){.label = file->path, .id = "", .head = true};
        jobs[n].url = file_url(f, file->path, err);
        rc = jobs[n++].url != NULL ? 0 : SL_ENOMEM;
    }
    if (rc == 0 && n > 0)
        rc = sl_fetch_run(&f->fetch, jobs, n, err);
    for (size_t i = 0, k = 0; rc == 0 && i < f->files.n; i++) {
        struct sl_hub_file *file = &f->files.items[i];
        if (!file->wanted || file->id[0] != '\0')
            continue;
        const struct sl_fetch_headers *h = &jobs[k++].headers;
        const char *id = h->linked_etag[0] != '\0' ? h->linked_etag : h->etag;
        if (id[0] == '\0')
            rc = sl_fail(err, SL_EFORMAT, "%.100s: the hub sends no ETag", file->path);
        memcpy(file->id, id, strlen(id) + 1);
        if (h->has_linked_size) {
            file->n_bytes = h->linked_size;
            file->sized = true;
        }
    }
    sl_fetch_deinit_jobs(jobs, n);
    sl_free(jobs);
    return rc;
}

/* Fills jobs with what no blob holds yet, each blob once. */
static int plan_jobs(struct find *f, struct sl_error *err)
{
    f->n_done = f->n_files = 0;
    f->done_bytes = f->total_bytes = 0;
    for (size_t i = 0; i < f->files.n; i++) {
        struct sl_hub_file *file = &f->files.items[i];
        if (!file->wanted)
            continue;
        const char *blob = repo_path(f, "blobs", file->id, "", err);
        if (blob == NULL)
            return SL_ENOMEM;
        bool seen = false;
        for (size_t k = 0; k < f->n_jobs && !seen; k++)
            seen = strcmp(f->jobs[k].id, file->id) == 0;
        f->n_files++;
        f->total_bytes += file->n_bytes;
        if (seen || sl_fetch_has(blob, file->sized, file->n_bytes)) {
            f->n_done++;
            f->done_bytes += file->n_bytes;
            continue;
        }
        struct sl_fetch_job *job = &f->jobs[f->n_jobs++];
        *job = (struct sl_fetch_job){.label = file->path,
                                     .path = blob,
                                     .id = file->id,
                                     .sized = file->sized,
                                     .n_bytes = file->n_bytes};
        job->lock_path = lock_path(f, file->id, err);
        job->url = file_url(f, file->path, err);
        if (job->url == NULL || job->lock_path == NULL)
            return SL_ENOMEM;
    }
    return 0;
}

static int check_space(struct find *f, struct sl_error *err)
{
    uint64_t need = 0, n_free = sl_free_bytes(f->repo.data);
    for (size_t i = 0; i < f->n_jobs; i++) {
        struct sl_buf partial = {0};
        uint64_t have = 0;
        sl_buf_printf(&partial, "%s.incomplete", f->jobs[i].path);
        if (!sl_buf_ok(&partial) || !sl_file_bytes(partial.data, &have))
            have = 0;
        if (!sl_add_u64(need, f->jobs[i].n_bytes - SL_MIN(have, f->jobs[i].n_bytes), &need))
            need = UINT64_MAX; /* sizes are what the hub says */
        sl_buf_deinit(&partial);
    }
    if (need == 0 || n_free == UINT64_MAX || (need <= n_free && n_free - need >= SPARE_BYTES))
        return 0;
    return sl_fail(err, SL_EIO, "%.1f MB are to be downloaded and %.1f MB are free in %.100s",
                   (double)need / 1e6, (double)n_free / 1e6, f->root.data);
}

static int link_files(struct find *f, struct sl_error *err)
{
    for (size_t i = 0; i < f->files.n; i++) {
        const struct sl_hub_file *file = &f->files.items[i];
        struct sl_buf target = {0};
        if (!file->wanted)
            continue;
        const char *path = repo_path(f, "snapshots", f->files.commit, file->path, err);
        if (path == NULL)
            return SL_ENOMEM;
        sl_buf_puts(&target, "../../");
        for (const char *s = file->path; (s = strchr(s, '/')) != NULL; s++)
            sl_buf_puts(&target, "../");
        sl_buf_printf(&target, "blobs/%s", file->id);
        const char *to = hub_keep(f, &target, err);
        int rc = to != NULL ? sl_make_parent(path, err) : SL_ENOMEM;
        if (rc == 0)
            rc = sl_make_link(to, path, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int fetch_wanted(struct find *f, struct sl_error *err)
{
    int rc = ask_ids(f, err);
    if (rc != 0)
        return rc;
    f->jobs = sl_calloc(f->files.n + 1, sizeof *f->jobs);
    rc = f->jobs != NULL ? plan_jobs(f, err) : sl_fail(err, SL_ENOMEM, "out of memory");
    /* Folders first: how much room there is can be asked of one that exists. */
    for (size_t i = 0; rc == 0 && i < SL_MIN(f->n_jobs, 1); i++) {
        rc = sl_make_parent(f->jobs[i].path, err);
        if (rc == 0)
            rc = sl_make_parent(f->jobs[i].lock_path, err);
    }
    if (rc == 0)
        rc = check_space(f, err);
    if (rc == 0 && f->n_jobs > 0) {
        hub_tell(f, NULL, NULL);
        rc = sl_fetch_run(&f->fetch, f->jobs, f->n_jobs, err);
    }
    if (f->jobs != NULL)
        sl_fetch_deinit_jobs(f->jobs, f->n_jobs);
    sl_free(f->jobs);
    f->jobs = NULL;
    f->n_jobs = 0;
    return rc == 0 ? link_files(f, err) : rc;
}

static int write_ref(struct find *f, struct sl_error *err)
{
    if (strcmp(f->revision, f->files.commit) == 0)
        return 0;
    const char *ref = repo_path(f, "refs", f->revision, "", err);
    int rc = ref != NULL ? sl_make_parent(ref, err) : SL_ENOMEM;
    return rc == 0 ? sl_replace_file(ref, f->files.commit, 40, err) : rc;
}

static int hub_download(struct find *f, char **path, struct sl_error *err)
{
    int rc = ask_hub(f, err);
    if (rc == 0)
        rc = pick(f, err);
    if (rc == 0)
        rc = fetch_wanted(f, err);
    if (rc == 0 && f->pick.needs_index) {
        rc = read_index(f, err);
        if (rc == 0)
            rc = pick(f, err);
        if (rc == 0)
            rc = fetch_wanted(f, err);
    }
    if (rc == 0)
        rc = write_ref(f, err);
    return rc == 0 ? hub_result(f, path, err) : rc;
}

/* ---- settings */

static int read_environment(struct find *f, struct sl_error *err)
{
    const char *endpoint = sl_environment("HF_ENDPOINT");
    const char *silence = sl_environment("HF_HUB_DOWNLOAD_TIMEOUT");
    uint64_t seconds;
    if (endpoint == NULL)
        endpoint = DEFAULT_ENDPOINT;
    if (strncasecmp(endpoint, "https://", 8) != 0 && strncasecmp(endpoint, "http://", 7) != 0)
        return sl_fail(err, SL_EINVAL, "HF_ENDPOINT: '%.100s' is not an http(s) address", endpoint);
    sl_buf_puts(&f->endpoint, endpoint);
    while (f->endpoint.n_bytes > 0 && f->endpoint.data[f->endpoint.n_bytes - 1] == '/')
        f->endpoint.data[--f->endpoint.n_bytes] = '\0';
    if (!sl_buf_ok(&f->endpoint))
        return sl_fail(err, SL_ENOMEM, "out of memory");
    f->fetch = (struct sl_fetch_options){.ca_file = sl_environment("SSL_CERT_FILE"),
                                         .n_parallel = N_PARALLEL,
                                         .silence_s = SILENCE_S,
                                         .progress = on_progress,
                                         .progress_arg = f,
                                         .cancelled = f->cfg->cancelled,
                                         .cancelled_arg = f->cfg->cancelled_arg};
    if (silence != NULL) {
        if (!sl_parse_u64(silence, strlen(silence), &seconds) || seconds < 1 ||
            seconds > MAX_SILENCE_S)
            return sl_fail(err, SL_EINVAL,
                           "HF_HUB_DOWNLOAD_TIMEOUT: '%.20s' is not 1 to %d seconds", silence,
                           MAX_SILENCE_S);
        f->fetch.silence_s = (int)seconds;
    }
    int rc = sl_hub_token(&f->token, err);
    f->fetch.token = f->token;
    return rc;
}

static int find_model(struct find *f, char **path, struct sl_error *err)
{
    bool offline =
        f->cfg->offline || sl_hub_is_set("HF_HUB_OFFLINE") || sl_hub_is_set("TRANSFORMERS_OFFLINE");
    if (!sl_hub_revision_safe(f->revision))
        return sl_fail(err, SL_EINVAL, "--revision: '%.100s' is not a branch, tag or commit",
                       f->revision);
    int rc = sl_hub_root(f->cfg, &f->root, err);
    if (rc != 0)
        return rc;
    sl_buf_printf(&f->repo, "%s/", f->root.data);
    sl_hub_repo_folder(&f->repo, f->name.repo);
    if (!sl_buf_ok(&f->repo))
        return sl_fail(err, SL_ENOMEM, "out of memory");
    if (offline || !f->cfg->refresh) {
        struct sl_error why = {0};
        rc = find_cached(f, path, &why);
        if (rc == 0)
            tell_quant(f);
        if (rc == 0 || rc == SL_ENOMEM)
            return rc == 0 ? 0 : sl_fail(err, rc, "%s", why.msg);
        bool begun = f->files.commit[0] != '\0';
        if (offline)
            return sl_fail(err, SL_ENOTFOUND, "%s %.80s%s%.60s, and downloads are off (offline)",
                           begun ? "incomplete in the cache" : "not in the cache", f->root.data,
                           begun ? ": " : "", begun ? why.msg : "");
        hub_forget(f);
    }
    rc = read_environment(f, err);
    return rc == 0 ? hub_download(f, path, err) : rc;
}

int sl_model_find(const char *name, const struct sl_hub_config *cfg, char **path,
                  struct sl_error *err)
{
    static const struct sl_hub_config defaults;
    struct find f = {.cfg = cfg != NULL ? cfg : &defaults};
    struct sl_error own = {0};
    *path = NULL;
    if (err == NULL) /* below, one error becomes a part of another */
        err = &own;
    if (name == NULL)
        return 0;
    if (sl_exists(name) || !sl_hub_name_parse(name, &f.name)) {
        *path = sl_strdup(name);
        return *path != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
    }
    f.revision = f.cfg->revision != NULL ? f.cfg->revision : SL_HUB_DEFAULT_REVISION;
    int rc = find_model(&f, path, err);
    if (rc != 0)
        sl_error_prefix(err, rc, "%.100s", name);
    hub_forget(&f);
    sl_buf_deinit(&f.root);
    sl_buf_deinit(&f.repo);
    sl_buf_deinit(&f.endpoint);
    sl_free(f.token);
    return rc;
}
