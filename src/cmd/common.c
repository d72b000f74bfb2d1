/* SPDX-License-Identifier: MIT */
#include "cmd/common.h"

#include "base/sys.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PROGRESS_STEP_NS 100000000u

struct progress {
    uint64_t start_ns, last_ns;
    bool tty, shown;
};

/* A bar on a terminal; in a log file one line every ten steps would only be noise, so nothing. */
static void show_progress(void *arg, const char *what, uint64_t done, uint64_t total)
{
    struct progress *p = arg;
    uint64_t now = sl_now_ns();
    bool finished = done == total;
    if (!p->tty || (!finished && now - p->last_ns < PROGRESS_STEP_NS) || (finished && !p->shown))
        return;
    p->last_ns = now;
    p->shown = true;
    fprintf(stderr, "\r%s %3.0f%% of %.1f MB, %.1f s", what,
            total > 0 ? 100.0 * (double)done / (double)total : 100.0, (double)total / 1e6,
            (double)(now - p->start_ns) / 1e9);
    if (finished)
        fputs("\r\x1b[K", stderr);
}

int sl_cli_open_engine(struct sl_engine_config *cfg, struct sl_engine **out, struct sl_error *err)
{
    struct progress p = {.start_ns = sl_now_ns(), .tty = isatty(STDERR_FILENO) == 1};
    p.last_ns = p.start_ns;
    cfg->progress = show_progress;
    cfg->progress_arg = &p;
    int rc = sl_engine_create(cfg, out, err);
    cfg->progress = NULL;
    cfg->progress_arg = NULL;
    return rc;
}

static atomic_bool interrupted;
static int wake_fd = -1;

/* The second one, while nobody has looked at the first (stdout may be a pipe that nobody reads),
 * ends the process as if it were not caught. */
static void common_on_interrupt(int sig)
{
    sl_cli_wake();
    if (atomic_exchange(&interrupted, true)) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
}

void sl_cli_catch_interrupt(void)
{
    struct sigaction sa = {.sa_handler =
                               common_on_interrupt}; /* no SA_RESTART: a blocked read must return */
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigaction(SIGINT, &sa, NULL);
}

void sl_cli_wake(void)
{
    const uint64_t one = 1;
    int saved = errno;
    (void)!sl_sys->write(wake_fd, &one, sizeof one);
    errno = saved;
}

bool sl_cli_wait(int fd)
{
    struct pollfd both[2] = {{.fd = fd, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    uint64_t count;
    while (!sl_cli_interrupted() && poll(both, 2, -1) < 0)
        continue;
    if (sl_sys->read(wake_fd, &count, sizeof count) > 0)
        return false;
    return !sl_cli_interrupted();
}

bool sl_cli_interrupted(void)
{
    return atomic_load(&interrupted);
}

void sl_cli_uninterrupt(void)
{
    atomic_store(&interrupted, false);
}

struct output {
    struct sl_cli_result *result;
    bool echo;
    struct sl_error error; /* of writing */
};

static int on_text(void *arg, const char *text, size_t n)
{
    struct output *out = arg;
    sl_buf_put(&out->result->text, text, n);
    if (out->echo && n > 0 && sl_write_all(STDOUT_FILENO, text, n, &out->error) != 0)
        return 1;
    return sl_cli_interrupted();
}

int sl_cli_generate(struct sl_engine *eng, const char *prompt, size_t n_prompt, unsigned flags,
                    const struct sl_cli_how *how, bool echo, struct sl_cli_result *out,
                    struct sl_error *err)
{
    struct output to = {.result = out, .echo = echo};
    struct sl_generate_desc desc = {.prompt = prompt,
                                    .n_prompt = n_prompt,
                                    .encode_flags = flags,
                                    .sampling = how->sampling,
                                    .constraint = how->constraint,
                                    .adapter = how->adapter,
                                    .adapter_scale = how->adapter_scale,
                                    .on_text = on_text,
                                    .arg = &to};
    *out = (struct sl_cli_result){.finish = SL_RUNNING};
    int rc = sl_generate(eng, &desc, &out->finish, &out->usage, err);
    if (rc == 0 && to.error.code != 0) {
        *err = to.error;
        rc = to.error.code;
    }
    if (rc == 0 && !sl_buf_ok(&out->text))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for the generated text");
    return rc;
}

void sl_cli_message(struct sl_buf *b, const char *role, const char *content, size_t n_content)
{
    sl_buf_puts(b, "{\"role\": ");
    sl_buf_json_string(b, role, strlen(role));
    sl_buf_puts(b, ", \"content\": ");
    sl_buf_json_string(b, content, n_content);
    sl_buf_putc(b, '}');
}

const char *sl_cli_finish_name(enum sl_finish f)
{
    switch (f) {
    case SL_RUNNING:
        return "running";
    case SL_FINISH_STOP:
        return "stop";
    case SL_FINISH_LENGTH:
        return "length";
    case SL_FINISH_ABORT:
        return "abort";
    case SL_FINISH_ERROR:
        return "error";
    case SL_FINISH_CACHE:
        return "cache_threshold";
    case SL_N_FINISHES:
        break;
    }
    return "unknown";
}
