/* SPDX-License-Identifier: MIT */
#include "cmd/models.h"

#include "base/check.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "hub/hub.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_for(const char *arg)
{
    return strcmp(arg, "--for") == 0 || strncmp(arg, "--for=", 6) == 0;
}

int sl_cli_models_split(int argc, char **argv)
{
    int i = 1;
    while (i < argc && !is_for(argv[i]))
        i++;
    return i;
}

/* NAME=MODEL, unless that is itself what a model is called. */
static int models_read_one(struct sl_cli_served *one, const char *given,
                           const struct sl_hub_config *hub, struct sl_error *err)
{
    char repo[200];
    const char *equals = given != NULL ? strchr(given, '=') : NULL, *model = given;
    if (equals != NULL && access(given, F_OK) == 0) /* it is in the name of a file */
        equals = NULL;
    if (equals != NULL && (equals == given || equals[1] == '\0'))
        return sl_fail(err, SL_EINVAL, "'%.100s' is not NAME=MODEL", given);
    if (equals != NULL) {
        model = equals + 1;
        one->own_name = sl_strndup(given, (size_t)(equals - given));
        if (one->own_name == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for a name");
    }
    one->names[0] = one->own_name != NULL         ? one->own_name
                    : sl_hub_is_name(model, repo) ? model /* not the snapshot's path */
                                                  : NULL;
    one->found.hub = *hub;
    int rc = sl_cli_find_model(&one->found, model, err);
    one->cfg.model = one->found.path;
    return rc;
}

static const char *shown_name(const struct sl_cli_served *one)
{
    return one->names[0] != NULL    ? one->names[0]
           : one->cfg.model != NULL ? one->cfg.model
                                    : "storyteller";
}

static struct sl_cli_served *models_find(struct sl_cli_served_models *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(shown_name(&m->all[i]), name) == 0)
            return &m->all[i];
    return NULL;
}

/* Also by the last part of its name alone, as requests may name it. */
static struct sl_cli_served *find_called(struct sl_cli_served_models *m, const char *name)
{
    struct sl_cli_served *one = models_find(m, name);
    for (int i = 0; i < m->n && one == NULL; i++) {
        const char *slash = strrchr(shown_name(&m->all[i]), '/');
        if (slash != NULL && strcmp(slash + 1, name) == 0)
            one = &m->all[i];
    }
    return one;
}

/* One stretch of argv, which begins with --for: the flags of one model, into cfg. *name is whose
 * they are, *end where the stretch ends. */
static int models_parse_for(struct sl_engine_config *cfg, int argc, char **argv, int at,
                            const char **name, int *end, struct sl_error *err)
{
    static const struct sl_command nobody = {.name = "serve", .usage = "", .summary = ""};
    int n_positional = 0, n = 1;
    *name = argv[at][5] == '=' ? argv[at] + 6 : at + 1 < argc ? argv[++at] : "";
    while (at + n < argc && !is_for(argv[at + n]))
        n++;
    struct sl_flag_group groups[] = {
        {sl_flags_engine, sl_n_flags_engine, cfg, 0},
        {sl_flags_adapters, sl_n_flags_adapters, cfg, 0},
    };
    *end = at + n;
    int rc = sl_flags_parse(&nobody, groups, (int)SL_COUNT(groups), n, argv + at, NULL, 0,
                            &n_positional, err);
    if (rc == SL_FLAGS_HELP)
        return rc;
    if (rc != 0)
        return sl_error_prefix(err, rc, "--for %.60s", *name);
    if (sl_flags_given(&groups[0], "kv-cache-memory-bytes"))
        return sl_fail(err, SL_EINVAL,
                       "--for %.60s: --kv-cache-memory-bytes is for all models together", *name);
    return 0;
}

int sl_cli_models_check(int argc, char **argv, int first_for, struct sl_error *err)
{
    const char *name;
    int rc = 0;
    for (int at = first_for; at < argc && rc == 0;) {
        struct sl_engine_config unused = {0};
        rc = models_parse_for(&unused, argc, argv, at, &name, &at, err);
    }
    return rc;
}

static int read_for(struct sl_cli_served_models *m, int argc, char **argv, int at, int *end,
                    struct sl_error *err)
{
    const char *name = argv[at][5] == '=' ? argv[at] + 6 : at + 1 < argc ? argv[at + 1] : "";
    struct sl_cli_served *one = find_called(m, name);
    if (one == NULL)
        return sl_fail(err, SL_EINVAL, "--for: no model is called '%.100s'", name);
    return models_parse_for(&one->cfg, argc, argv, at, &name, end, err);
}

int sl_cli_models_read(struct sl_cli_served_models *m, const char *const *given, int n_given,
                       const struct sl_engine_config *base, const struct sl_hub_config *hub,
                       int argc, char **argv, int first_for, struct sl_error *err)
{
    int rc = 0;
    for (; m->n < SL_MAX(n_given, 1) && rc == 0; m->n++) {
        struct sl_cli_served *one = &m->all[m->n];
        one->cfg = *base;
        rc = models_read_one(one, n_given > 0 ? given[m->n] : NULL, hub, err);
        if (rc == 0 && models_find(m, shown_name(one)) != NULL) /* among those before it */
            rc = sl_fail(err, SL_EINVAL, "two models have the name '%.150s': write NAME=MODEL",
                         shown_name(one));
    }
    if (rc == 0 && first_for < argc && m->n == 1)
        return sl_fail(err, SL_EINVAL, "--for: needs several models");
    for (int at = first_for; at < argc && rc == 0;)
        rc = read_for(m, argc, argv, at, &at, err);
    for (int i = 0; i < m->n && rc == 0; i++)
        rc = sl_cli_find_draft(&m->all[i].found, &m->all[i].cfg, err);
    return rc;
}

int sl_cli_models_replicate(struct sl_cli_served_models *m, int32_t n, struct sl_error *err)
{
    if (n <= 1)
        return 0;
    struct sl_engine_config *cfg = &m->all[0].cfg;
    SL_ASSERT(n <= SL_CLI_MAX_MODELS && m->n > 0);
    if (m->n > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "--data-parallel-size: replicas are of one model, not of several");
    if (cfg->nnodes > 1)
        return sl_fail(
            err, SL_EUNSUPPORTED,
            "--data-parallel-size: replicas whose ranks are processes (--nnodes) are not "
            "there yet");
    if (cfg->disaggregation_mode != NULL)
        return sl_fail(
            err, SL_EUNSUPPORTED,
            "--data-parallel-size: --disaggregation-mode is for a server with one engine");
    cfg->data_parallel_size = n;
    for (m->replicas = true; m->n < n; m->n++) {
        struct sl_cli_served *one = &m->all[m->n];
        one->cfg = *cfg;
        one->cfg.data_parallel_rank = m->n;
        one->names[0] = m->all[0].names[0]; /* all else stays the first one's */
    }
    return 0;
}

/* As vLLM and SGLang print it: benchmark scripts look for these words. */
static void log_kv_tokens(const struct sl_model_info *info)
{
    char plain[24], grouped[32];
    int64_t n_tokens = (int64_t)info->n_pages * info->block_size;
    int n = snprintf(plain, sizeof plain, "%lld", (long long)n_tokens), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            grouped[at++] = ',';
        grouped[at++] = plain[i];
    }
    grouped[at] = '\0';
    sl_log(SL_LOG_INFO, "GPU KV cache size: %s tokens, max_total_num_tokens=%s", grouped, plain);
}

/* Of a model with recurrent layers. */
static void log_states(const struct sl_model_info *info)
{
    const struct sl_kv_group_info *g = info->kv_groups;
    while (g < info->kv_groups + info->n_kv_groups && !g->state)
        g++;
    if (g == info->kv_groups + info->n_kv_groups)
        return;
    sl_log(SL_LOG_INFO,
           "recurrent state: %d slots of %.1f MiB (--max-state-slots) for up to %d sequences "
           "(--max-num-seqs), 2 each while they run, and cached prefixes",
           g->n_pages, (double)g->page_bytes / (1 << 20), info->max_num_seqs);
    if (g->n_draft_pages > 0)
        sl_log(SL_LOG_INFO,
               "recurrent state behind drafts: %d more slots, which all sequences share; without "
               "one a draft is not made",
               g->n_draft_pages);
}

/* All that a report of a problem should have: version, model, where it runs, memory. */
static void log_start(const struct sl_model_info *info, double seconds)
{
    const double mib = 1.0 / (1 << 20);
    sl_log(SL_LOG_INFO, "sluice %s: %s %s, %d layers, context %d, %s weights", SLUICE_VERSION,
           info->architecture, info->model_path, info->n_layers, info->max_model_len,
           info->weight_dtype);
    sl_log(SL_LOG_INFO,
           "on %s with %d threads: weights %.1f MiB, KV cache %.1f MiB (%s) for %lld tokens, "
           "ready in %.2f s",
           info->isa, info->n_threads, (double)info->weight_bytes * mib,
           (double)info->kv_cache_bytes * mib, info->kv_dtype != NULL ? info->kv_dtype : "none",
           (long long)info->n_pages * info->block_size, seconds);
}

static int open_one(struct sl_cli_served_models *m, int i, struct sl_error *err)
{
    struct sl_cli_served *one = &m->all[i];
    uint64_t t0 = sl_now_ns();
    one->cfg.shared = m->shared;
    int rc = sl_engine_create(&one->cfg, &one->eng, err);
    if (rc != 0)
        return m->n > 1 && !m->replicas ? sl_error_prefix(err, rc, "%.80s", shown_name(one)) : rc;
    const struct sl_model_info *info = sl_engine_info(one->eng);
    log_start(info, (double)(sl_now_ns() - t0) * 1e-9);
    log_kv_tokens(info);
    log_states(info);
    m->bases[i] = (struct sl_cli_base){
        .eng = one->eng, .names = one->names, .n_names = one->names[0] != NULL};
    return 0;
}

int sl_cli_models_open(struct sl_cli_served_models *m, struct sl_error *err)
{
    int rc = 0;
    if (m->n > 1 && !m->replicas)
        rc = sl_shared_create(m->all[0].cfg.kv_cache_bytes, m->n, &m->shared, err);
    for (int i = 0; i < m->n && rc == 0; i++)
        rc = open_one(m, i, err);
    return rc;
}

void sl_cli_models_close(struct sl_cli_served_models *m)
{
    for (int i = m->n; i-- > 0;)
        sl_engine_destroy(m->all[i].eng);
    sl_shared_destroy(m->shared);
    for (int i = 0; i < m->n; i++) {
        sl_cli_model_deinit(&m->all[i].found);
        sl_free(m->all[i].own_name);
    }
}
