/* SPDX-License-Identifier: MIT
 * main.c - picks the sub-command. Results go to stdout, everything else to stderr; exit status 2
 * means the command line or the input was at fault, 1 that the work failed.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "cmd/manual.h"
#include "sluice.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In the order of use. */
static const struct sl_command *const commands[] = {
    &sl_cmd_run,     &sl_cmd_chat,      &sl_cmd_serve,   &sl_cmd_ps,       &sl_cmd_top,
    &sl_cmd_stop,    &sl_cmd_pull,      &sl_cmd_list,    &sl_cmd_rm,       &sl_cmd_batch,
    &sl_cmd_embed,   &sl_cmd_bench,     &sl_cmd_inspect, &sl_cmd_tokenize, &sl_cmd_template,
    &sl_cmd_grammar, &sl_cmd_calibrate, &sl_cmd_doctor,
};

static void print_help(FILE *to)
{
    fputs("sluice " SLUICE_VERSION ": run, chat with and serve open-weight language models\n\n"
          "Examples:\n"
          "  sluice run -p \"Once upon a time\" -n 100         the bundled model, a story-teller\n"
          "  sluice chat Qwen/Qwen3-0.6B                      a conversation\n"
          "  sluice serve Qwen/Qwen3-0.6B --port 8000         an OpenAI-compatible server\n\n"
          "Usage: sluice COMMAND [MODEL] [FLAGS]\n\n",
          to);
    for (size_t i = 0; i < SL_COUNT(commands); i++)
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("  completion bash, zsh or fish: prints completions for that shell\n"
          "  man        prints the manual page, with all commands and flags\n\n"
          "MODEL is a Hugging Face folder, a GGUF file or a name of the hub (org/name, "
          "org/name:QUANT).\n`sluice COMMAND --help` shows a command's examples and flags.\n",
          to);
}

static int unknown_command(const char *name)
{
    const char *names[SL_COUNT(commands)];
    for (size_t i = 0; i < SL_COUNT(commands); i++)
        names[i] = commands[i]->name;
    const char *near = sl_nearest(name, names, SL_COUNT(commands));
    fprintf(stderr, "sluice: unknown command '%s'", name);
    if (near != NULL)
        fprintf(stderr, "; did you mean '%s'?", near);
    fputs("\n", stderr);
    return SL_EXIT_USAGE;
}

/* A descriptor 0, 1 or 2 that is closed would become a model file or the engine's eventfd, and text
 * would be written into it. Whatever is opened here fails to read or write, as a closed one does.
 */
static void occupy_standard_fds(void)
{
    for (int fd; (fd = sl_sys->open("/dev/null", O_PATH, 0)) >= 0;) {
        if (fd > STDERR_FILENO) {
            sl_sys->close(fd);
            return;
        }
    }
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return SL_EXIT_USAGE;
    }
    char help[] = "--help";
    char *ask_help[] = {argv[0], argc > 2 ? argv[2] : NULL, help, NULL};
    if (strcmp(argv[1], "help") == 0 && argc > 2) { /* `sluice help run` */
        argv = ask_help;
        argc = 3;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return SL_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        puts("sluice " SLUICE_VERSION);
        return SL_EXIT_OK;
    }
    if (strcmp(argv[1], "man") == 0)
        return sl_manual(commands, SL_COUNT(commands));
    if (strcmp(argv[1], "completion") == 0)
        return sl_completion(commands, SL_COUNT(commands), argc > 2 ? argv[2] : NULL);
    for (size_t i = 0; i < SL_COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i]->name) == 0)
            return commands[i]->run(argc - 1, argv + 1);
    }
    return unknown_command(argv[1]);
}

/* When the reader of stdout is gone (`sluice ... | head`), end as cat does: by the signal, without
 * a message. Any other broken pipe or socket is a failed write, reported where it happens.
 */
static void on_broken_pipe(int sig)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    int saved = errno;
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    errno = saved;
}

int main(int argc, char **argv)
{
    occupy_standard_fds();
    signal(SIGPIPE, on_broken_pipe); /* a server ignores it: sl_server_run */
    signal(SIGXFSZ, SIG_IGN);        /* a limit on the size of files is a failed write too */
    int status = run_command(argc, argv);
    /* What printf kept back may fail only now, on a full disk for example. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == SL_EXIT_OK) {
        fputs("sluice: write to standard output failed\n", stderr);
        status = SL_EXIT_FAILED;
    }
    return status;
}
