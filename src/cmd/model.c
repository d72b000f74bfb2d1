/* SPDX-License-Identifier: MIT */
#include "cmd/model.h"

#include "base/check.h"
#include "base/sys.h"

#include <stdio.h>
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
    m->path = m->found;
    return rc;
}

void sl_cli_model_deinit(struct sl_cli_model *m)
{
    sl_free(m->found);
    m->found = NULL;
    m->path = NULL;
}
