/* SPDX-License-Identifier: MIT
 * chat.c - `sluice chat`: a conversation on the terminal. The whole history goes through the
 * template each turn; the prefix cache makes that cheap. Ctrl-C stops an answer, at the prompt it
 * leaves.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/common.h"
#include "cmd/constraint.h"
#include "cmd/lora.h"
#include "cmd/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct chat_options {
    const char *system;
    struct sl_cli_constraint constraint;
    struct sl_cli_lora lora;
};

static const struct sl_flag chat_flags[] = {
    {SL_FLAG_STR, 0, "system", NULL, offsetof(struct chat_options, system), 0, 0, "TEXT",
     "system message at the start of the conversation"},
};

struct chat {
    struct sl_engine *eng;
    struct sl_sampling sampling;
    struct sl_cli_how how; /* every answer is made */
    const char *system;
    struct sl_buf messages; /* JSON objects, comma separated */
    struct sl_buf line;
    char pending[4096]; /* bytes read but not yet used */
    size_t pending_start, pending_end;
    bool tty;
};

enum line_result { LINE_OK, LINE_EOF, LINE_INTERRUPTED, LINE_FAILED };

/* The terminal's own line editing is all there is: the line arrives whole. */
static enum line_result read_line(struct chat *c, struct sl_error *err)
{
    sl_buf_clear(&c->line);
    if (c->tty)
        fputs("\n> ", stderr);
    for (;;) {
        while (c->pending_start < c->pending_end) {
            char ch = c->pending[c->pending_start++];
            if (ch == '\n') {
                if (c->line.n_bytes > 0 && c->line.data[c->line.n_bytes - 1] == '\r')
                    c->line.data[--c->line.n_bytes] = '\0'; /* a line from a CRLF file */
                return LINE_OK;
            }
            sl_buf_putc(&c->line, ch);
            if (!sl_buf_ok(&c->line)) {
                (void)sl_fail(err, SL_ETOOBIG, "standard input: a line of more than %zu bytes",
                              c->line.n_bytes);
                return LINE_FAILED;
            }
        }
        ssize_t n = sl_sys->read(STDIN_FILENO, c->pending, sizeof c->pending);
        if (n < 0 && errno == EINTR && sl_cli_interrupted())
            return LINE_INTERRUPTED;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            (void)sl_fail(err, SL_EIO, "standard input: %s", strerror(errno));
            return LINE_FAILED;
        }
        if (n == 0)
            return c->line.n_bytes > 0 ? LINE_OK : LINE_EOF;
        c->pending_start = 0;
        c->pending_end = (size_t)n;
    }
}

static void forget(struct chat *c)
{
    sl_buf_clear(&c->messages);
    if (c->system != NULL)
        sl_cli_message(&c->messages, "system", c->system, strlen(c->system));
}

static void add_message(struct chat *c, const char *role, const char *text, size_t n)
{
    if (c->messages.n_bytes > 0)
        sl_buf_puts(&c->messages, ", ");
    sl_cli_message(&c->messages, role, text, n);
}

static int answer(struct chat *c, struct sl_error *err)
{
    struct sl_buf json = {0};
    struct sl_cli_result r = {0};
    char *prompt = NULL;
    size_t n_prompt;
    size_t before = c->messages.n_bytes;
    add_message(c, "user", c->line.data, c->line.n_bytes);
    sl_buf_puts(&json, "{\"add_generation_prompt\": true, \"messages\": [");
    sl_buf_put(&json, c->messages.data, c->messages.n_bytes);
    sl_buf_puts(&json, "]}");
    int rc = sl_buf_ok(&json) && sl_buf_ok(&c->messages)
                 ? sl_engine_render_chat(c->eng, json.data, json.n_bytes, &prompt, &n_prompt, err)
                 : sl_fail(err, SL_ENOMEM, "out of memory for the conversation");
    if (rc == 0)
        rc = sl_cli_generate(c->eng, prompt, n_prompt, SL_ENCODE_PARSE_SPECIAL, &c->how, true, &r,
                             err);
    if (rc == 0) {
        add_message(c, "assistant", r.text.data != NULL ? r.text.data : "", r.text.n_bytes);
        fputs("\n", stdout);
        fflush(stdout);
        if (r.finish == SL_FINISH_ABORT)
            fputs("[stopped]\n", stderr);
    } else {
        c->messages.n_bytes = before; /* the turn did not happen */
    }
    sl_buf_deinit(&r.text);
    sl_buf_deinit(&json);
    sl_free(prompt);
    return rc;
}

/* Returns true when the line was a command of the chat itself. */
static bool handle_command(struct chat *c, bool *leave)
{
    const char *line = c->line.data != NULL ? c->line.data : "";
    if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0) {
        *leave = true;
        return true;
    }
    if (strcmp(line, "/clear") == 0) {
        forget(c);
        fputs("[conversation cleared]\n", stderr);
        return true;
    }
    if (line[0] == '/' && line[1] != '\0') {
        fputs("/clear forgets the conversation, /exit leaves, Ctrl-C stops an answer\n", stderr);
        return true;
    }
    return line[0] == '\0';
}

static int converse(struct chat *c, struct sl_error *err)
{
    bool leave = false;
    while (!leave) {
        sl_cli_uninterrupt();
        enum line_result got = read_line(c, err);
        if (got == LINE_FAILED)
            return err->code;
        if (got != LINE_OK)
            break;
        if (handle_command(c, &leave))
            continue;
        int rc = answer(c, err);
        if (rc == SL_EINVAL || rc == SL_ELIMIT) {
            sl_command_complain(&sl_cmd_chat, err); /* this turn only: e.g. context full */
            rc = 0;
        }
        if (rc != 0)
            return rc;
    }
    if (c->tty)
        fputs("\n", stderr);
    return 0;
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
    struct chat c = {
        .system = opt.system, .line = {.max_bytes = SL_MAX_TEXT}, .tty = isatty(STDIN_FILENO) == 1};
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    cfg.model = model.path;
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
    if (rc == 0) {
        sl_engine_sampling_default(c.eng, &c.sampling);
        sl_flags_overlay(&groups[2], &c.sampling);
        c.sampling.has_seed = sl_flags_given(&groups[2], "seed");
        if (c.tty)
            fprintf(stderr, "%s, %s. /clear forgets, /exit leaves, Ctrl-C stops an answer.\n",
                    sl_engine_info(c.eng)->architecture, sl_engine_info(c.eng)->model_path);
        sl_cli_catch_interrupt();
        forget(&c);
        rc = converse(&c, &err);
    }
    sl_buf_deinit(&c.messages);
    sl_buf_deinit(&c.line);
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
    .details = "Inside: /clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an "
               "answer.\n",
    .run = chat_main,
};
