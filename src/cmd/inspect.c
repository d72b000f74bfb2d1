/* SPDX-License-Identifier: MIT
 * inspect.c - `sluice inspect`: what a model is and what serving it will take, before loading it.
 */
#include "base/check.h"
#include "base/sys.h"
#include "cmd/model.h"

#include <unistd.h>

struct inspect_options {
    bool json, tensors;
};

static const struct sl_flag inspect_flags[] = {
    {SL_FLAG_SWITCH, 0, "tensors", NULL, offsetof(struct inspect_options, tensors), 0, 0, NULL,
     "list every tensor with shape, format and kernel"},
    {SL_FLAG_SWITCH, 0, "json", NULL, offsetof(struct inspect_options, json), 0, 0, NULL,
     "print JSON"},
};

static int inspect_main(int argc, char **argv)
{
    struct inspect_options opt = {0};
    struct sl_engine_config cfg = {0};
    struct sl_error err = {0};
    struct sl_cli_model model = {0};
    const char *name = NULL;
    int n_positional;
    char *text = NULL;
    size_t n;
    struct sl_flag_group groups[] = {
        {inspect_flags, SL_COUNT(inspect_flags), &opt, 0},
        {sl_flags_engine, sl_n_flags_engine, &cfg, 0},
        {sl_flags_hub, sl_n_flags_hub, &model.hub, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_inspect, groups, SL_COUNT(groups), argc, argv, &name, 1,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    cfg.model = model.path;
    if (rc == 0)
        rc = sl_cli_find_draft(&model, &cfg, &err);
    if (rc == 0)
        rc = sl_inspect(&cfg, opt.json, opt.tensors, &text, &n, &err);
    if (rc == 0)
        rc = sl_write_all(STDOUT_FILENO, text, n, &err);
    sl_free(text);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_inspect, &err);
}

const struct sl_command sl_cmd_inspect = {
    .name = "inspect",
    .usage = "[MODEL] [FLAGS]",
    .summary = "show architecture, tensors, kernels and the memory plan",
    .examples =
        "  sluice inspect ./Qwen3-0.6B              what is in it, and the memory it takes\n"
        "  sluice inspect ./model.gguf --tensors    every tensor with its format\n",
    .brief = "tensors json threads max-model-len max-num-seqs max-num-batched-tokens "
             "kv-cache-memory-bytes kv-cache-dtype device revision download-dir offline",
    .run = inspect_main,
};
