/* SPDX-License-Identifier: MIT */
#include "cmd/model.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"
#include "hub/hub.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define STEP_NS 200000000u /* between drawings of the bar */
#define BAR     24

#define HUB(field) offsetof(struct sl_hub_config, field)

const struct sl_flag sl_flags_hub[] = {
    {SL_FLAG_HEADING, 0, NULL, NULL, 0, 0, 0, NULL, "Models by name (org/name[:QUANT])"},
    {SL_FLAG_STR, 0, "revision", NULL, HUB(revision), 0, 0, "REV",
     "branch, tag or commit (default: main)"},
    {SL_FLAG_STR, 0, "download-dir", NULL, HUB(download_dir), 0, 0, "DIR",
     "cache of models (default: Hugging Face's, HF_HOME)"},
    {SL_FLAG_SWITCH, 0, "offline", NULL, HUB(offline), 0, 0, NULL,
     "never download, as HF_HUB_OFFLINE=1"},
};
const int sl_n_flags_hub = (int)SL_COUNT(sl_flags_hub);

struct bar {
    uint64_t start_ns, last_ns, start_bytes;
    bool tty, begun, drawn;
};

static void wipe(struct bar *b)
{
    if (b->drawn)
        fputs("\r\x1b[K", stderr);
    b->drawn = false;
}

static void draw(struct bar *b, const struct sl_hub_progress *p, uint64_t now)
{
    double share = p->total_bytes > 0 ? (double)p->done_bytes / (double)p->total_bytes : 1;
    double seconds = (double)(now - b->start_ns) / 1e9;
    double speed = seconds > 0 ? (double)(p->done_bytes - b->start_bytes) / seconds : 0;
    int filled = (int)(share * BAR);
    fprintf(stderr, "\r[");
    for (int i = 0; i < BAR; i++)
        fputc(i < filled ? '=' : i == filled ? '>' : ' ', stderr);
    fprintf(stderr, "] %3.0f%% of %.1f MB, %d of %d files, %.1f MB/s", 100 * share,
            (double)p->total_bytes / 1e6, p->n_done, p->n_files, speed / 1e6);
    if (speed > 0 && seconds > 2)
        fprintf(stderr, ", %.0f s left", (double)(p->total_bytes - p->done_bytes) / speed);
    fputs("\x1b[K", stderr);
    b->drawn = true;
}

/* A bar on a terminal; elsewhere a line when it begins and one per file. */
static void show(void *arg, const struct sl_hub_progress *p)
{
    struct bar *b = arg;
    uint64_t now = sl_now_ns();
    if (p->note != NULL) {
        wipe(b);
        fprintf(stderr, "%s\n", p->note);
        return;
    }
    if (!b->begun) {
        b->begun = true;
        b->start_ns = now;
        b->start_bytes = p->done_bytes;
        fprintf(stderr, "downloading %s: %d files, %.1f MB\n", p->repo, p->n_files - p->n_done,
                (double)(p->total_bytes - p->done_bytes) / 1e6);
    }
    if (p->file != NULL) {
        wipe(b);
        fprintf(stderr, "  %s (%.1f MB)\n", p->file, (double)p->file_bytes / 1e6);
    }
    if (b->tty && now - b->last_ns >= STEP_NS) {
        b->last_ns = now;
        draw(b, p, now);
    }
}

/* ---- did you mean */

#define MAX_NEAR 256

struct near { /* what a wrong name may have been meant to be */
    char shown[MAX_NEAR][160];
    const char *keys[MAX_NEAR]; /* the part of shown that is compared */
    size_t n;
    const char *folder; /* as it was typed, with its slash; "" */
    int n_folder;
    bool short_names; /* of the hub: compare what comes after org/ */
};

static int add_file(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct near *c = arg;
    (void)n_bytes;
    (void)err;
    if (c->n == MAX_NEAR || name[0] == '.')
        return 0;
    snprintf(c->shown[c->n], sizeof c->shown[0], "%.*s%.100s", SL_MIN(c->n_folder, 50), c->folder,
             name);
    c->keys[c->n] = c->shown[c->n] + SL_MIN(c->n_folder, 50);
    c->n++;
    return 0;
}

static void model_add_cached(void *arg, const struct sl_hub_entry *e)
{
    struct near *c = arg;
    if (c->n == MAX_NEAR)
        return;
    snprintf(c->shown[c->n], sizeof c->shown[0], "%.150s", e->repo);
    const char *slash = strchr(c->shown[c->n], '/');
    c->keys[c->n] = c->short_names && slash != NULL ? slash + 1 : c->shown[c->n];
    c->n++;
}

/* The likeliest one, or one that the typed name begins; NULL: none. */
static const char *pick_near(const struct near *c, const char *key)
{
    const char *best = sl_nearest(key, c->keys, c->n);
    size_t n = strlen(key);
    for (size_t i = 0; i < c->n; i++) {
        bool begins = n >= 3 && strncasecmp(c->keys[i], key, n) == 0;
        if (c->keys[i] == best || (best == NULL && begins))
            return c->shown[i];
    }
    return NULL;
}

/* Puts "; did you mean ...?" behind the message, if there is a model of a similar name in the
 * folder or in the cache. */
static void suggest(const char *name, const struct sl_hub_config *hub, struct sl_error *err)
{
    struct near *c = sl_calloc(1, sizeof *c);
    struct sl_error ignored;
    char repo[200], folder[256];
    const char *slash = strrchr(name, '/'), *key = slash != NULL ? slash + 1 : name;
    bool of_hub = sl_hub_is_name(name, repo);
    if (c == NULL)
        return;
    c->folder = name;
    c->n_folder = (int)(key - name);
    snprintf(folder, sizeof folder, "%.*s", SL_MIN(SL_MAX(c->n_folder, 1), 255),
             slash != NULL ? name : ".");
    (void)!sl_list_folder(folder, add_file, c, &ignored);
    const char *near = pick_near(c, key);
    if (near == NULL && (of_hub || slash == NULL)) {
        c->n = 0;
        c->short_names = !of_hub;
        (void)!sl_hub_list(hub, model_add_cached, c, &ignored);
        near = pick_near(c, of_hub ? repo : key);
    }
    size_t n = strlen(err->msg);
    if (near != NULL && strcmp(near, name) != 0)
        snprintf(err->msg + n, sizeof err->msg - n, "; did you mean %s?", near);
    sl_free(c);
}

static int no_such_model(const char *name, struct sl_error *err)
{
    return sl_fail(err, SL_ENOTFOUND, "%.120s: no such file or folder%s", name,
                   strchr(name, '/') == NULL ? ", and a name of the hub is org/name" : "");
}

int sl_cli_find_model(struct sl_cli_model *m, const char *name, struct sl_error *err)
{
    struct bar b = {.tty = isatty(STDERR_FILENO) == 1};
    SL_ASSERT(m->found == NULL);
    if (name != NULL && name[0] == '\0')
        return sl_fail(err, SL_EINVAL, "MODEL is empty");
    m->hub.progress = show;
    m->hub.progress_arg = &b;
    int rc = sl_model_find(name, &m->hub, &m->found, err);
    wipe(&b);
    m->hub.progress = NULL;
    m->hub.progress_arg = NULL;
    if (rc == 0 && m->found != NULL && access(m->found, F_OK) != 0 &&
        (errno == ENOENT || errno == ENOTDIR))
        rc = no_such_model(m->found, err);
    if ((rc == SL_ENOTFOUND || rc == SL_EIO) && name != NULL) /* EIO: the hub cannot be reached */
        suggest(name, &m->hub, err);
    m->path = m->found;
    return rc;
}

int sl_cli_find_draft(struct sl_cli_model *m, struct sl_engine_config *cfg, struct sl_error *err)
{
    struct sl_cli_model d = {.hub = m->hub};
    json_t *o = cfg->speculative_config != NULL ? json_loads(cfg->speculative_config, 0, NULL)
                                                : NULL; /* the engine says what is wrong with it */
    const char *name = cfg->speculative_model != NULL
                           ? cfg->speculative_model
                           : json_string_value(json_object_get(o, "model"));
    int rc = 0;
    SL_ASSERT(m->draft == NULL);
    d.hub.revision = json_string_value(json_object_get(o, "revision")); /* not the model's */
    if (name != NULL && strcmp(name, "(bundled)") != 0) {
        rc = sl_cli_find_model(&d, name, err);
        m->draft = d.found;
        if (rc == 0)
            cfg->speculative_model = m->draft;
    }
    json_decref(o);
    return rc;
}

void sl_cli_model_deinit(struct sl_cli_model *m)
{
    sl_free(m->draft);
    m->draft = NULL;
    sl_free(m->found);
    m->found = NULL;
    m->path = NULL;
}
