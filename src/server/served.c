/* SPDX-License-Identifier: MIT */
#include "server/served.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "server/loop.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 4096

/* ---- names from paths */

static size_t without_end(const char *s, size_t n, const char *end)
{
    size_t n_end = strlen(end);
    return n > n_end && memcmp(s + n - n_end, end, n_end) == 0 ? n - n_end : n;
}

/* A hub's snapshot is named by its repository: .../models--ORG--NAME/snapshots/COMMIT. */
static bool snapshot_name(const char *path, char *out, size_t n_out)
{
    static const char mark[] = "/models--", end[] = "/snapshots/";
    const char *at = strstr(path, mark), *stop = at != NULL ? strstr(at, end) : NULL;
    size_t n = 0;
    if (stop == NULL)
        return false;
    for (const char *s = at + sizeof mark - 1; s < stop && n + 1 < n_out; s++) {
        bool slash = s[0] == '-' && s[1] == '-';
        out[n++] = slash ? '/' : s[0];
        s += slash;
    }
    out[n] = '\0';
    return n > 0;
}

/* The folder's or file's name as it was given, which may be a link, unless that says nothing. */
static void name_by_path(struct sl_served *m, const char *given)
{
    const char *path = given;
    size_t n = strlen(given);
    while (n > 1 && given[n - 1] == '/')
        n--;
    size_t at = n;
    while (at > 0 && given[at - 1] != '/')
        at--;
    bool dots = strspn(given + at, ".") == n - at;
    if (dots && m->path != NULL) {
        path = m->path;
        n = strlen(path);
        const char *slash = strrchr(path, '/');
        at = slash != NULL ? (size_t)(slash + 1 - path) : 0;
    }
    if (!snapshot_name(path, m->own, sizeof m->own))
        snprintf(m->own, sizeof m->own, "%.*s", (int)without_end(path + at, n - at, ".gguf"),
                 path + at);
    if (m->own[0] != '\0')
        m->name = m->own;
}

/* Is it the last or the last two parts of a path? */
static bool is_tail(const char *path, const char *given)
{
    size_t n_path = strlen(path), n_parts = 1, n = without_end(given, strlen(given), ".gguf");
    while (n_path > 1 && path[n_path - 1] == '/')
        n_path--;
    n_path = without_end(path, n_path, ".gguf");
    for (size_t i = 0; i < n; i++)
        n_parts += given[i] == '/';
    if (n == 0 || n > n_path || n_parts > 2 || given[0] == '/' || given[0] == '.')
        return false;
    return memcmp(path + n_path - n, given, n) == 0 && (n == n_path || path[n_path - n - 1] == '/');
}

void sl_served_use_path(struct sl_served *m)
{
    m->name = sl_engine_info(m->eng)->model_path;
}

int sl_served_init(struct sl_served *m, const struct sl_server_config *cfg, struct sl_engine *eng,
                   const char *const *names, int32_t n_names, struct sl_error *err)
{
    const char *path = sl_engine_info(eng)->model_path;
    *m = (struct sl_served){.eng = eng, .names = names, .n_names = n_names};
    m->name = n_names > 0 ? names[0] : path[0] == '(' ? "storyteller" /* bundled: no path */ : path;
    if (n_names == 0 && path[0] != '(') {
        char real[PATH_MAX];
        if (realpath(path, real) != NULL)
            m->path = sl_strndup(real, strlen(real));
        name_by_path(m, path);
    }
    if (cfg->neutral_sampling)
        sl_sampling_default(&m->defaults);
    else
        sl_engine_sampling_default(eng, &m->defaults);
    int rc =
        sl_formats_init(&m->formats, eng, cfg->tool_call_parser, cfg->reasoning_parser, NULL, err);
    if (rc == 0 && sl_engine_has_chat_template(eng))
        sl_log(SL_LOG_INFO, "tool call parser: %s, reasoning parser: %s",
               m->formats.tools != NULL ? m->formats.tools : "none",
               m->formats.reasoning != NULL ? m->formats.reasoning : "none");
    if (rc != 0)
        sl_served_deinit(m);
    return rc;
}

void sl_served_deinit(struct sl_served *m)
{
    sl_formats_deinit(&m->formats);
    sl_free(m->path);
    m->path = NULL;
}

int32_t sl_served_n_names(const struct sl_served *m)
{
    return m->n_names > 0 ? m->n_names : 1;
}

const char *sl_served_name_at(const struct sl_served *m, int32_t i)
{
    SL_ASSERT(i >= 0 && i < sl_served_n_names(m));
    return m->n_names > 0 ? m->names[i] : m->name;
}

static bool served_is_shown(const struct sl_served *m, const char *given, const char **name)
{
    for (int32_t i = 0; i < sl_served_n_names(m); i++) {
        *name = sl_served_name_at(m, i);
        if (strcmp(given, *name) == 0)
            return true;
    }
    *name = m->name;
    return false;
}

bool sl_served_has_name(const struct sl_served *m, const char *given, const char **name)
{
    if (served_is_shown(m, given, name))
        return true;
    for (int32_t i = 0; i < sl_served_n_names(m); i++) {
        *name = sl_served_name_at(m, i);
        if (is_tail(*name, given))
            return true;
    }
    *name = m->name;
    const char *path = sl_engine_info(m->eng)->model_path;
    if (m->n_names > 0 || path[0] == '(')
        return false;
    return strcmp(path, given) == 0 || is_tail(path, given) ||
           (m->path != NULL && (strcmp(m->path, given) == 0 || is_tail(m->path, given)));
}

bool sl_served_shows(const struct sl_served *m, const char *given)
{
    const char *name;
    return served_is_shown(m, given, &name);
}

int32_t sl_served_n_named(const struct sl_server *s)
{
    return s->replicas != NULL ? 1 : s->n_models;
}

struct sl_served *sl_served_find(const struct sl_server *s, const char *given)
{
    const int32_t n = sl_served_n_named(s);
    struct sl_served *found = NULL;
    const char *name;
    for (int32_t i = 0; i < s->n_models && s->replicas != NULL; i++) {
        if (strcmp(s->models[i].label, given) == 0)
            return &s->models[i];
    }
    for (int32_t i = 0; i < n; i++) {
        if (served_is_shown(&s->models[i], given, &name))
            return &s->models[i];
    }
    for (int32_t i = 0; i < n; i++) {
        if (sl_adapter_known(s->models[i].eng, given))
            return &s->models[i];
    }
    for (int32_t i = 0; i < n; i++) {
        if (!sl_served_has_name(&s->models[i], given, &name))
            continue;
        if (found != NULL) /* two answer to it: neither is meant */
            return NULL;
        found = &s->models[i];
    }
    return found;
}

bool sl_served_all_full(const struct sl_server *s)
{
    for (int32_t i = 0; i < s->n_models; i++) {
        /* A room is in the body: who waits in it is to hear of the refusal. */
        if (!sl_engine_is_full(s->models[i].eng) || sl_engine_transfer(s->models[i].eng)->serves)
            return false;
    }
    return true;
}

/* ---- what there is, for whoever asked for something else */

struct name_list {
    struct sl_buf b;
    bool more; /* than fit into an error message */
};

static void served_put_name(struct name_list *l, const char *name)
{
    if (l->b.n_bytes + strlen(name) > 250 && l->b.n_bytes > 0)
        l->more = true;
    else
        sl_buf_printf(&l->b, "%s`%.250s`", l->b.n_bytes > 0 ? ", " : "", name);
}

static void put_adapter_name(void *arg, const struct sl_adapter_info *info)
{
    served_put_name(arg, info->name);
}

static void put_names(struct name_list *l, const struct sl_server *s)
{
    const int32_t n = sl_served_n_named(s);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < sl_served_n_names(&s->models[i]); k++)
            served_put_name(l, sl_served_name_at(&s->models[i], k));
    }
    for (int32_t i = 0; i < n; i++)
        sl_adapter_each(s->models[i].eng, put_adapter_name, l);
    sl_buf_puts(&l->b, l->more ? ", ..." : "");
    sl_buf_putc(&l->b, '\0');
}

static int refuse_missing(const struct sl_server *s, const char *member, struct sl_refusal *r)
{
    struct name_list l = {.more = false};
    put_names(&l, s);
    int rc = sl_refuse(r, SL_EINVAL, member,
                       "%s is missing: this server has several models, name one of %s", member,
                       sl_buf_ok(&l.b) ? l.b.data : "them");
    sl_buf_deinit(&l.b);
    return rc;
}

int sl_served_missing(const struct sl_server *s, const char *member, const char *given, size_t n,
                      struct sl_refusal *r)
{
    struct name_list l = {.more = false};
    put_names(&l, s);
    r->code = "model_not_found";
    int rc =
        sl_refuse(r, SL_ENOTFOUND, member, "the model `%.*s` does not exist; this server has %s",
                  (int)SL_MIN(n, (size_t)120), given, sl_buf_ok(&l.b) ? l.b.data : "others");
    sl_buf_deinit(&l.b);
    return rc;
}

int sl_served_pick(const struct sl_server *s, const json_t *root, const char *member,
                   struct sl_served **out, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, member);
    const char *given = NULL;
    *out = &s->models[0];
    if (sl_served_n_named(s) == 1)
        return 0;
    if (v == NULL || json_is_null(v))
        return refuse_missing(s, member, r);
    int rc = sl_json_cstr(v, member, MAX_NAME, &given, r);
    if (rc != 0)
        return rc;
    struct sl_served *m = sl_served_find(s, given);
    if (m == NULL)
        return sl_served_missing(s, member, given, strlen(given), r);
    *out = m;
    return 0;
}

int sl_served_check(const struct sl_server *s, const struct sl_served *m, const char *given,
                    const char **name, struct sl_refusal *r)
{
    *name = m->name;
    if (given == NULL || sl_served_has_name(m, given, name))
        return 0;
    return sl_served_missing(s, "model", given, strlen(given), r);
}
