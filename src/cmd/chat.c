/* SPDX-License-Identifier: MIT
 * chat.c - `sluice chat`: a conversation on the terminal. The whole history goes through the
 * template each turn; the prefix cache makes that cheap.
 */
#include "cmd/chat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/constraint.h"
#include "cmd/line.h"
#include "cmd/lora.h"
#include "cmd/model.h"

#include <stdio.h>
#include <string.h>

struct chat_options {
    const char *model, *system;
    bool no_history;
    struct sl_cli_constraint constraint;
    struct sl_cli_lora lora;
};

static const struct sl_flag chat_flags[] = {
    {SL_FLAG_STR, 'm', "model", NULL, offsetof(struct chat_options, model), 0, 0, "MODEL",
     "the model, instead of the first argument"},
    {SL_FLAG_STR, 0, "system", NULL, offsetof(struct chat_options, system), 0, 0, "TEXT",
     "system message at the start of the conversation"},
    {SL_FLAG_SWITCH_OFF, 0, "history", NULL, offsetof(struct chat_options, no_history), 0, 0, NULL,
     "do not save the history of input lines"},
};

/* Generates the answer to the conversation as it is and adds it; on failure nothing is added. */
static int answer(struct sl_chat *c, struct sl_error *err)
{
    struct sl_buf json = {0};
    struct sl_cli_result r = {0};
    char *prompt = NULL;
    size_t n_prompt;
    sl_buf_puts(&json, "{\"add_generation_prompt\": true, \"messages\": ");
    sl_conversation_json(&c->talk, &json);
    sl_buf_putc(&json, '}');
    int rc = sl_buf_ok(&json)
                 ? sl_engine_render_chat(c->eng, json.data, json.n_bytes, &prompt, &n_prompt, err)
                 : sl_fail(err, SL_ENOMEM, "out of memory for the conversation");
    if (rc == 0)
        rc = sl_cli_generate(c->eng, prompt, n_prompt, SL_ENCODE_PARSE_SPECIAL, &c->how, true, &r,
                             err);
    if (rc == 0)
        rc = sl_conversation_add(&c->talk, "assistant", r.text.data, r.text.n_bytes, err);
    if (rc == 0) {
        fputs("\n", stdout);
        fflush(stdout);
        if (r.finish == SL_FINISH_ABORT)
            fputs("[stopped]\n", stderr);
    }
    sl_buf_deinit(&r.text);
    sl_buf_deinit(&json);
    sl_free(prompt);
    return rc;
}

/* One turn. A turn that a request error ends did not happen: the chat goes on without it. */
static int chat_turn(struct sl_chat *c, enum sl_chat_next next, const struct sl_buf *input,
                     struct sl_error *err)
{
    size_t before = c->talk.n;
    int rc = next == SL_CHAT_ASK
                 ? sl_conversation_add(&c->talk, "user", input->data, input->n_bytes, err)
                 : 0;
    if (rc == 0)
        rc = answer(c, err);
    if (rc != SL_EINVAL && rc != SL_ELIMIT)
        return rc;
    sl_command_complain(&sl_cmd_chat, err);
    sl_conversation_cut(&c->talk, before);
    return 0;
}

static int converse(struct sl_chat *c, struct sl_line *lines, struct sl_error *err)
{
    struct sl_buf input = {.max_bytes = SL_MAX_TEXT};
    bool terminal = sl_line_is_terminal(lines);
    int rc = 0;
    for (enum sl_chat_next next = SL_CHAT_READ; rc == 0 && next != SL_CHAT_LEAVE;) {
        sl_cli_uninterrupt();
        enum sl_line_result got = sl_line_read(lines, &input, err);
        if (got == SL_LINE_INTERRUPTED && terminal) {
            fputs("[Ctrl-D or /bye leaves]\n", stderr);
            continue;
        }
        if (got != SL_LINE_OK) {
            rc = got == SL_LINE_FAILED ? err->code : 0;
            if (terminal)
                fputs("\n", stderr);
            break;
        }
        sl_cli_uninterrupt();
        next = sl_chat_command(c, input.data != NULL ? input.data : "");
        if (next != SL_CHAT_ASK && next != SL_CHAT_AGAIN)
            continue;
        rc = chat_turn(c, next, &input, err);
        if (terminal)
            fputs("\n", stderr);
    }
    sl_buf_deinit(&input);
    return rc;
}

static int open_lines(const struct chat_options *opt, struct sl_line **out, struct sl_error *err)
{
    const struct sl_line_config cfg = {
        .words = sl_chat_words, .n_words = sl_chat_n_words, .history = !opt->no_history};
    return sl_line_open(&cfg, out, err);
}

static int chat_main(int argc, char **argv)
{
    struct chat_options opt = {0};
    struct sl_engine_config cfg = {.max_num_seqs = 1};
    struct sl_sampling given;
    struct sl_error err = {0};
    struct sl_cli_model model = {0};
    const char *name = NULL;
    int n_positional;
    sl_sampling_default(&given);
    struct sl_flag_group groups[] = {
        {chat_flags, SL_COUNT(chat_flags), &opt, 0},
        {sl_flags_lora, sl_n_flags_lora, &opt.lora, 0},
        {sl_flags_sampling, sl_n_flags_sampling, &given, 0},
        {sl_flags_constraint, sl_n_flags_constraint, &opt.constraint, 0},
        {sl_flags_engine, sl_n_flags_engine, &cfg, 0},
        {sl_flags_hub, sl_n_flags_hub, &model.hub, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_chat, groups, SL_COUNT(groups), argc, argv, &name, 1,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    struct sl_chat c = {.model = "storyteller"};
    struct sl_line *lines = NULL;
    if (rc == 0 && opt.model != NULL && name != NULL)
        rc = sl_fail(&err, SL_EINVAL, "--model and the argument '%.60s' cannot be combined", name);
    if (opt.model != NULL)
        name = opt.model;
    if (name != NULL)
        c.model = name;
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    cfg.model = model.path;
    if (rc == 0)
        rc = sl_cli_find_draft(&model, &cfg, &err);
    c.how.sampling = &c.sampling;
    sl_cli_lora_enable(&opt.lora, &cfg);
    if (rc == 0)
        rc = sl_cli_open_engine(&cfg, &c.eng, &err);
    if (rc == 0 && !sl_engine_has_chat_template(c.eng))
        rc = sl_fail(&err, SL_EUNSUPPORTED,
                     "this model has no chat template: give one with --chat-template, or use "
                     "`sluice run --raw`");
    if (rc == 0)
        rc = sl_cli_constraint_open(&opt.constraint, c.eng, &c.how.constraint, &err);
    if (rc == 0)
        rc = sl_cli_lora_open(&opt.lora, c.eng, &c.how.adapter, &c.how.adapter_scale, &err);
    if (rc == 0 && opt.system != NULL)
        rc = sl_conversation_set_system(&c.talk, opt.system, &err);
    if (rc == 0)
        rc = open_lines(&opt, &lines, &err);
    if (rc == 0) {
        sl_engine_sampling_default(c.eng, &c.sampling);
        sl_flags_overlay(&groups[2], &c.sampling);
        c.sampling.has_seed = sl_flags_given(&groups[2], "seed");
        if (sl_line_is_terminal(lines))
            fprintf(stderr, "%s (%s). /help lists the commands, Ctrl-D leaves.\n", c.model,
                    sl_engine_info(c.eng)->architecture);
        sl_cli_catch_interrupt();
        rc = converse(&c, lines, &err);
    }
    sl_line_close(lines);
    sl_conversation_deinit(&c.talk);
    sl_constraint_release(c.how.constraint);
    sl_adapter_release(c.how.adapter);
    if (c.eng != NULL)
        sl_engine_destroy(c.eng);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_chat, &err);
}

const struct sl_command sl_cmd_chat = {
    .name = "chat",
    .usage = "[MODEL] [FLAGS]",
    .summary = "talk to a model on the terminal",
    .examples =
        "  sluice chat Qwen/Qwen3-0.6B\n"
        "  sluice chat ./Qwen3-0.6B --system \"Answer in one sentence.\" --temperature 0.6\n",
    .brief = "model system max-tokens temperature top-k top-p seed history json-schema lora "
             "threads max-model-len kv-cache-dtype device chat-template revision offline",
    .details = "Inside: /help lists the commands (/set /system /regen /clear /save /load /bye), "
               "\"\"\" begins a\nmessage of several lines, Ctrl-C stops an answer, Ctrl-D leaves. "
               "Line editing and the history\nneed libedit (Debian: libedit2).\n",
    .run = chat_main,
};
