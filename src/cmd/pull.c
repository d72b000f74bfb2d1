/* SPDX-License-Identifier: MIT
 * pull.c - `sluice pull`, `list` and `rm`: the cache of models.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/sys.h"
#include "cmd/model.h"
#include "hub/hub.h"

#include <stdio.h>
#include <string.h>

/* ---- pull */

static int pull_main(int argc, char **argv)
{
    struct sl_cli_model model = {.hub = {.refresh = true}};
    struct sl_error err = {0};
    const char *name = NULL;
    char repo[200];
    int n_positional;
    struct sl_flag_group groups[] = {{sl_flags_hub, sl_n_flags_hub, &model.hub, 0}};
    int rc = sl_flags_parse(&sl_cmd_pull, groups, 1, argc, argv, &name, 1, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && !sl_hub_is_name(name, repo))
        rc = sl_fail(&err, SL_EINVAL,
                     "%.100s is not the name of a model: org/name, org/name:QUANT "
                     "or org/name/FILE.gguf",
                     name != NULL ? name : "(nothing)");
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    if (rc == 0)
        puts(model.path);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_pull, &err);
}

const struct sl_command sl_cmd_pull = {
    .name = "pull",
    .usage = "NAME [FLAGS]",
    .summary = "download a model into the cache, or update it",
    .examples =
        "  sluice pull Qwen/Qwen3-0.6B                   safetensors, tokenizer, configuration\n"
        "  sluice pull unsloth/Qwen3-0.6B-GGUF:Q4_K_M    one quantisation of a GGUF repository\n"
        "  sluice pull unsloth/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf\n",
    .details =
        "Other commands download what is missing by themselves, and use what the cache has\n"
        "without asking; pull asks the hub whether there is something newer. Prints the path.\n"
        "The cache is the one of Hugging Face's tools: HF_HUB_CACHE, HF_HOME/hub or\n"
        "~/.cache/huggingface/hub. HF_TOKEN (or the token file), HF_ENDPOINT, HF_HUB_OFFLINE,\n"
        "HF_HUB_DOWNLOAD_TIMEOUT, SSL_CERT_FILE and https_proxy mean what they mean there.\n",
    .run = pull_main,
};

/* ---- list */

struct list_options {
    struct sl_hub_config hub;
    bool json;
};

static const struct sl_flag list_flags[] = {
    {SL_FLAG_STR, 0, "download-dir", NULL, offsetof(struct list_options, hub.download_dir), 0, 0,
     "DIR", "cache of models (default: Hugging Face's, HF_HOME)"},
    {SL_FLAG_SWITCH, 0, "json", NULL, offsetof(struct list_options, json), 0, 0, NULL,
     "print one JSON object per model"},
};

static void print_entry(void *arg, const struct sl_hub_entry *e)
{
    const struct list_options *opt = arg;
    struct sl_buf b = {0};
    if (!opt->json) {
        printf("%-52s %10.1f MB  %s%s\n", e->repo, (double)e->n_bytes / 1e6, e->revisions,
               e->n_partial_bytes > 0 ? " (unfinished)" : "");
        return;
    }
    sl_buf_puts(&b, "{\"model\": ");
    sl_buf_json_string(&b, e->repo, strlen(e->repo));
    sl_buf_puts(&b, ", \"revisions\": ");
    sl_buf_json_string(&b, e->revisions, strlen(e->revisions));
    sl_buf_printf(&b, ", \"bytes\": %llu, \"unfinished_bytes\": %llu, \"files\": %d}",
                  (unsigned long long)e->n_bytes, (unsigned long long)e->n_partial_bytes,
                  e->n_files);
    puts(b.data != NULL ? b.data : "");
    sl_buf_deinit(&b);
}

static int list_main(int argc, char **argv)
{
    struct list_options opt = {0};
    struct sl_error err = {0};
    int n_positional;
    struct sl_flag_group groups[] = {{list_flags, SL_COUNT(list_flags), &opt, 0}};
    int rc = sl_flags_parse(&sl_cmd_list, groups, 1, argc, argv, NULL, 0, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0)
        rc = sl_hub_list(&opt.hub, print_entry, &opt, &err);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_list, &err);
}

const struct sl_command sl_cmd_list = {
    .name = "list",
    .usage = "[FLAGS]",
    .summary = "show the models of the cache with their sizes",
    .examples = "  sluice list\n",
    .run = list_main,
};

/* ---- rm */

static int rm_main(int argc, char **argv)
{
    struct list_options opt = {0};
    struct sl_error err = {0};
    const char *name = NULL;
    uint64_t n_bytes = 0;
    int n_positional;
    struct sl_flag_group groups[] = {{list_flags, 1, &opt, 0}};
    int rc = sl_flags_parse(&sl_cmd_rm, groups, 1, argc, argv, &name, 1, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && name == NULL)
        rc = sl_fail(&err, SL_EINVAL, "which model? `sluice list` shows them");
    if (rc == 0)
        rc = sl_hub_remove(&opt.hub, name, &n_bytes, &err);
    if (rc == 0)
        printf("removed %s, %.1f MB\n", name, (double)n_bytes / 1e6);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_rm, &err);
}

const struct sl_command sl_cmd_rm = {
    .name = "rm",
    .usage = "NAME [FLAGS]",
    .summary = "remove a model, with all its revisions, from the cache",
    .examples = "  sluice rm Qwen/Qwen3-0.6B\n",
    .details =
        "A server that uses the model continues. Its disk space is freed when the server ends.\n",
    .run = rm_main,
};
