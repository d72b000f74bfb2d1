/* SPDX-License-Identifier: MIT
 * run.c - `sluice run`: one completion, streamed. Only the generated text goes to stdout.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/common.h"
#include "cmd/constraint.h"
#include "cmd/lora.h"
#include "cmd/model.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct run_options {
    const char *model, *prompt, *file, *system;
    const char *text; /* the prompt as an argument without a flag */
    struct sl_flag_list stop;
    struct sl_cli_constraint constraint;
    struct sl_cli_lora lora;
    bool raw, json;
};

#define OWN(field) offsetof(struct run_options, field)

static const struct sl_flag run_flags[] = {
    {SL_FLAG_STR, 'm', "model", NULL, OWN(model), 0, 0, "MODEL",
     "the model; then the first argument is the prompt"},
    {SL_FLAG_STR, 'p', "prompt", NULL, OWN(prompt), 0, 0, "TEXT",
     "the prompt; stdin is not read then"},
    {SL_FLAG_STR, 'f', "file", NULL, OWN(file), 0, 0, "FILE",
     "read the prompt from FILE (- = stdin)"},
    {SL_FLAG_SWITCH, 0, "raw", NULL, OWN(raw), 0, 0, NULL,
     "continue the text, without the chat template"},
    {SL_FLAG_STR, 0, "system", NULL, OWN(system), 0, 0, "TEXT", "system message before the prompt"},
    {SL_FLAG_STR_LIST, 0, "stop", NULL, OWN(stop), 0, 0, "TEXT",
     "stop before TEXT (may be repeated)"},
    {SL_FLAG_SWITCH, 0, "json", NULL, OWN(json), 0, 0, NULL,
     "print one JSON object at the end instead"},
};

/* The prompt as the model shall see it: as given, or put through the chat template. */
static int make_prompt(const struct sl_engine *eng, const struct run_options *opt, const char *text,
                       size_t n_text, char **out, size_t *n_out, struct sl_error *err)
{
    struct sl_buf json = {0};
    sl_buf_puts(&json, "{\"add_generation_prompt\": true, \"messages\": [");
    if (opt->system != NULL) {
        sl_cli_message(&json, "system", opt->system, strlen(opt->system));
        sl_buf_puts(&json, ", ");
    }
    sl_cli_message(&json, "user", text, n_text);
    sl_buf_puts(&json, "]}");
    int rc = sl_buf_ok(&json) ? sl_engine_render_chat(eng, json.data, json.n_bytes, out, n_out, err)
                              : sl_fail(err, SL_ENOMEM, "out of memory for the prompt");
    sl_buf_deinit(&json);
    return rc;
}

static void run_print_json(const struct sl_cli_result *r, uint64_t seed)
{
    struct sl_buf b = {0};
    const struct sl_usage *u = &r->usage;
    sl_buf_puts(&b, "{\"text\": ");
    sl_buf_json_string(&b, r->text.data != NULL ? r->text.data : "", r->text.n_bytes);
    sl_buf_printf(&b, ", \"finish_reason\": \"%s\", \"seed\": %llu", sl_cli_finish_name(r->finish),
                  (unsigned long long)seed);
    sl_buf_printf(&b, ", \"prompt_tokens\": %d, \"completion_tokens\": %d", u->n_prompt,
                  u->n_output);
    sl_buf_printf(&b, ", \"ttft_s\": %.6f, \"total_s\": %.6f}\n",
                  u->t_first_ns != 0 ? (double)(u->t_first_ns - u->t_submit_ns) / 1e9 : 0.0,
                  u->t_last_ns != 0 ? (double)(u->t_last_ns - u->t_submit_ns) / 1e9 : 0.0);
    fputs(b.data != NULL ? b.data : "", stdout);
    sl_buf_deinit(&b);
}

/* The seed only where there is one that chose: greedy text has none. */
static void print_speed(const struct sl_usage *u, const struct sl_sampling *sampling)
{
    if (u->t_first_ns == 0)
        return;
    double prefill = (double)(u->t_first_ns - u->t_submit_ns) / 1e9;
    double decode = (double)(u->t_last_ns - u->t_first_ns) / 1e9;
    fprintf(stderr, "\n[%d prompt tokens in %.0f ms, %d tokens", u->n_prompt, prefill * 1e3,
            u->n_output);
    if (u->n_output > 1 && decode > 0)
        fprintf(stderr, " at %.1f tokens/s", (double)(u->n_output - 1) / decode);
    if (sampling->has_seed)
        fprintf(stderr, ", seed %llu", (unsigned long long)sampling->seed);
    fputs("]\n", stderr);
}

/* Somebody has put a text there: a pipe, a file. Not a terminal, nor /dev/null. */
static bool stdin_is_piped(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 &&
           (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

/* The prompt of the command line, then what was piped in, a blank line between them. */
static int join_stdin(const char *given, char **text, size_t *n, struct sl_error *err)
{
    struct sl_buf b = {.max_bytes = SL_MAX_TEXT};
    char *piped = NULL;
    size_t n_piped = 0;
    int rc = stdin_is_piped() ? sl_read_file("-", SL_MAX_TEXT, &piped, &n_piped, err) : 0;
    if (rc != 0)
        return rc;
    while (n_piped > 0 && (piped[n_piped - 1] == '\n' || piped[n_piped - 1] == '\r'))
        n_piped--; /* `echo text |` means the text */
    if (given != NULL)
        sl_buf_puts(&b, given);
    if (given != NULL && n_piped > 0)
        sl_buf_puts(&b, "\n\n");
    if (n_piped > 0)
        sl_buf_put(&b, piped, n_piped);
    sl_free(piped);
    if (given == NULL && n_piped == 0)
        rc = sl_fail(err, SL_EINVAL,
                     "a prompt is needed: sluice run MODEL \"text\", -p TEXT, -f FILE, or text on "
                     "stdin");
    else if (!sl_buf_ok(&b))
        rc = sl_fail(err, SL_ETOOBIG, "the prompt has more than %zu bytes", (size_t)SL_MAX_TEXT);
    if (rc == 0) {
        *n = b.n_bytes;
        *text = sl_strndup(b.data != NULL ? b.data : "", b.n_bytes);
        if (*text == NULL)
            rc = sl_fail(err, SL_ENOMEM, "out of memory for the prompt");
    }
    sl_buf_deinit(&b);
    return rc;
}

static int read_prompt(const struct run_options *opt, char **text, size_t *n, struct sl_error *err)
{
    if ((opt->prompt != NULL) + (opt->file != NULL) + (opt->text != NULL) > 1)
        return sl_fail(err, SL_EINVAL,
                       "the prompt is given twice: --prompt, --file and the argument after MODEL "
                       "cannot be combined");
    if (opt->file != NULL)
        return sl_read_file(opt->file, SL_MAX_TEXT, text, n, err);
    if (opt->prompt == NULL)
        return join_stdin(opt->text, text, n, err);
    *n = strlen(opt->prompt);
    *text = sl_strndup(opt->prompt, *n);
    return *text != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for the prompt");
}

static int run_with_engine(struct sl_engine *eng, const struct run_options *opt,
                           struct sl_sampling *sampling, const char *text, size_t n_text,
                           struct sl_error *err)
{
    char *prompt = NULL;
    size_t n_prompt = 0;
    unsigned flags = SL_ENCODE_ADD_SPECIAL;
    bool chat = !opt->raw && sl_engine_has_chat_template(eng);
    int rc = 0;
    if (chat) {
        rc = make_prompt(eng, opt, text, n_text, &prompt, &n_prompt, err);
        flags = SL_ENCODE_PARSE_SPECIAL; /* the template writes the special tokens itself */
    } else if (opt->system != NULL) {
        rc = sl_fail(err, SL_EINVAL, "--system needs a chat template: %s",
                     opt->raw ? "drop --raw" : "this model has none");
    }
    if (rc != 0)
        return rc;
    if (!sampling->has_seed && sampling->temperature > 0) {
        rc = sl_random(&sampling->seed, sizeof sampling->seed, err);
        sampling->seed >>= 32; /* short enough to type again */
        sampling->has_seed = true;
    }
    sampling->stop = opt->stop.items;
    sampling->n_stop = opt->stop.n;
    struct sl_cli_result r = {0};
    struct sl_cli_how how = {.sampling = sampling};
    if (rc == 0)
        rc = sl_cli_constraint_open(&opt->constraint, eng, &how.constraint, err);
    if (rc == 0)
        rc = sl_cli_lora_open(&opt->lora, eng, &how.adapter, &how.adapter_scale, err);
    if (rc == 0)
        rc = sl_cli_generate(eng, chat ? prompt : text, chat ? n_prompt : n_text, flags, &how,
                             !opt->json, &r, err);
    if (rc == 0 && opt->json) {
        run_print_json(&r, sampling->seed);
    } else if (rc == 0) {
        if (isatty(STDOUT_FILENO) == 1)
            fputs("\n", stdout);
        if (isatty(STDERR_FILENO) == 1)
            print_speed(&r.usage, sampling);
    }
    sl_constraint_release(how.constraint);
    sl_adapter_release(how.adapter);
    sl_buf_deinit(&r.text);
    sl_free(prompt);
    return rc;
}

static int run_main(int argc, char **argv)
{
    struct run_options opt = {0};
    struct sl_engine_config cfg = {.max_num_seqs = 1};
    struct sl_sampling given, sampling;
    struct sl_error err = {0};
    struct sl_cli_model model = {0};
    const char *words[2] = {NULL, NULL};
    int n_positional;
    struct sl_engine *eng = NULL;
    char *text = NULL;
    size_t n_text = 0;
    sl_sampling_default(&given);
    struct sl_flag_group groups[] = {
        {run_flags, SL_COUNT(run_flags), &opt, 0},
        {sl_flags_lora, sl_n_flags_lora, &opt.lora, 0},
        {sl_flags_sampling, sl_n_flags_sampling, &given, 0},
        {sl_flags_constraint, sl_n_flags_constraint, &opt.constraint, 0},
        {sl_flags_engine, sl_n_flags_engine, &cfg, 0},
        {sl_flags_hub, sl_n_flags_hub, &model.hub, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_run, groups, SL_COUNT(groups), argc, argv, words, 2,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    opt.text = words[opt.model != NULL ? 0 : 1];
    if (rc == 0 && opt.model != NULL && n_positional > 1)
        rc = sl_fail(&err, SL_EINVAL,
                     "unexpected argument '%.60s': with --model there is one text, in quotes",
                     words[1]);
    if (rc == 0)
        rc = read_prompt(&opt, &text, &n_text, &err);
    if (rc == 0)
        rc = sl_cli_find_model(&model, opt.model != NULL ? opt.model : words[0], &err);
    cfg.model = model.path;
    if (rc == 0)
        rc = sl_cli_find_draft(&model, &cfg, &err);
    sl_cli_lora_enable(&opt.lora, &cfg);
    if (rc == 0)
        rc = sl_cli_open_engine(&cfg, &eng, &err);
    if (rc == 0) {
        sl_engine_sampling_default(eng, &sampling);
        sl_flags_overlay(&groups[2], &sampling);
        sampling.has_seed = sl_flags_given(&groups[2], "seed");
        sl_cli_catch_interrupt();
        rc = run_with_engine(eng, &opt, &sampling, text, n_text, &err);
        sl_engine_destroy(eng);
    }
    sl_free(text);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_run, &err);
}

const struct sl_command sl_cmd_run = {
    .name = "run",
    .usage = "[MODEL] [TEXT] [FLAGS] [< TEXT]",
    .summary = "answer one prompt, streamed to stdout",
    .examples = "  sluice run Qwen/Qwen3-0.6B \"Why is the sky blue?\"\n"
                "  cat report.txt | sluice run Qwen/Qwen3-0.6B \"Summarise this:\"\n"
                "  sluice run -p \"Once upon a time\" --raw -n 100        the bundled model\n"
                "  sluice run ./Qwen3-0.6B \"A person\" -j '{\"type\": \"object\", ...}'\n",
    .brief = "model prompt file raw system max-tokens temperature top-k top-p seed stop "
             "json-schema regex json lora threads max-model-len kv-cache-dtype device "
             "chat-template revision offline",
    .details = "MODEL is a folder, a GGUF file or a name of the hub (org/name[:QUANT]). A piped "
               "stdin is the\nprompt, or is appended to TEXT.\n",
    .run = run_main,
};
