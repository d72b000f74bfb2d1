/* SPDX-License-Identifier: MIT
 * template.c - `sluice template`: a conversation on stdin (JSON) to the prompt text on stdout.
 */
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/model.h"

#include <unistd.h>

static int template_main(int argc, char **argv)
{
    struct sl_error err = {0};
    struct sl_cli_model model = {.hub = {.text_only = true}};
    const char *name = NULL;
    int n_positional;
    char *in = NULL, *out = NULL;
    size_t n_in, n_out;
    struct sl_flag_group groups[] = {{sl_flags_hub, sl_n_flags_hub, &model.hub, 0}};
    int rc = sl_flags_parse(&sl_cmd_template, groups, 1, argc, argv, &name, 1, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    if (rc == 0)
        rc = sl_read_file("-", SL_MAX_JSON_FILE, &in, &n_in, &err);
    if (rc == 0)
        rc = sl_template_render_file(model.path, in, n_in, &out, &n_out, &err);
    if (rc == 0)
        rc = sl_write_all(STDOUT_FILENO, out, n_out, &err);
    sl_free(out);
    sl_free(in);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_template, &err);
}

const struct sl_command sl_cmd_template = {
    .name = "template",
    .usage = "[FILE_OR_MODEL] < conversation.json",
    .summary = "render a chat template to the text the model sees",
    .details = "The conversation is a JSON object: messages, tools, add_generation_prompt, now (an "
               "ISO time\n"
               "for strftime_now) and any further variable of the template.\n",
    .examples = "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
                "\"add_generation_prompt\": "
                "true}' \\\n    | sluice template ./Qwen3-0.6B\n",
    .run = template_main,
};
