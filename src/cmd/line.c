/* SPDX-License-Identifier: MIT
 *
 * libedit is loaded, not linked (compare base/curl.h): its static form would bring ncurses and
 * libbsd into a server's binary, and a chat without it still works.
 */
#include "cmd/line.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "cmd/common.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HISTORY_ENTRIES   1000
#define HISTORY_MAX_ENTRY (16u << 10) /* longer ones are not kept */
#define PASTE_ON          "\x1b[?2004h"
#define PASTE_OFF         "\x1b[?2004l"
#define PASTE_END         L"\x1b[201~"
#define QUOTES            "\"\"\""

#define EDIT_CALLS(X) \
    X(el_init)        \
    X(el_end)         \
    X(el_gets)        \
    X(el_set)         \
    X(el_get)         \
    X(el_resize)      \
    X(el_source)      \
    X(el_wgetc)       \
    X(el_winsertstr)  \
    X(el_line)        \
    X(el_insertstr)   \
    X(history_init)   \
    X(history_end)    \
    X(history)

struct calls {
#define SL_X(name) __typeof__(&name) name;
    EDIT_CALLS(SL_X)
#undef SL_X
};

struct sl_line {
    struct sl_line_config cfg;
    struct calls lib;
    EditLine *el; /* NULL: plain reading */
    History *hist;
    locale_t utf8;
    char *history_path; /* NULL: none is kept */
    const char *prompt;
    char pending[4096]; /* plain reading: bytes read but not yet used */
    size_t pending_start, pending_end;
    bool terminal, begun; /* begun: the terminal is set up for this line */
};

static struct sl_line *self(EditLine *el);
static const struct calls *loaded;    /* for self(), which libedit calls with its handle only */
static volatile sig_atomic_t resumed; /* after Ctrl-Z, or the window has another size */

static void on_resume(int sig)
{
    (void)sig;
    resumed = 1;
    sl_cli_wake();
}

/* ---- libedit */

static bool load_library(struct calls *calls)
{
    static const struct {
        const char *name;
        size_t offset;
    } symbols[] = {
#define SL_X(name) {#name, offsetof(struct calls, name)},
        EDIT_CALLS(SL_X)
#undef SL_X
    };
    void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        library = dlopen("libedit.so.0", RTLD_NOW | RTLD_LOCAL); /* the name outside of Debian */
    for (size_t i = 0; library != NULL && i < SL_COUNT(symbols); i++) {
        void *p = dlsym(library, symbols[i].name);
        if (p == NULL)
            return false;
        memcpy((char *)calls + symbols[i].offset, &p, sizeof p);
    }
    return library != NULL;
}

static struct sl_line *self(EditLine *el)
{
    void *l = NULL;
    (void)loaded->el_get(el, EL_CLIENTDATA, &l);
    return l;
}

static char *show_prompt(EditLine *el)
{
    return (char *)(uintptr_t)self(el)->prompt;
}

/* libedit's way to one character. Bytes that are no UTF-8 become U+FFFD. */
static int get_character(EditLine *el, wchar_t *out)
{
    struct sl_line *l = self(el);
    char bytes[4];
    size_t n = 0, n_used = 0;
    uint32_t c = 0xFFFD;
    if (!l->begun) /* not before: libedit has left the line discipline only now */
        fputs(PASTE_ON, stderr);
    l->begun = true;
    do {
        while (!sl_cli_wait(STDIN_FILENO)) {
            if (sl_cli_interrupted()) {
                errno = EINTR;
                return -1;
            }
            if (!resumed)
                continue;
            resumed = 0;
            l->lib.el_resize(el);
            (void)l->lib.el_set(el, EL_PREP_TERM, 0);
            (void)l->lib.el_set(el, EL_PREP_TERM, 1);
            fputs("\r\x1b[K", stderr); /* where libedit begins to draw */
            (void)l->lib.el_set(el, EL_REFRESH);
        }
        ssize_t got = sl_sys->read(STDIN_FILENO, bytes + n, 1);
        if (got <= 0)
            return (int)got;
        n_used = sl_utf8_decode(bytes, ++n, &c);
    } while (n_used == 0 && n < sizeof bytes && sl_utf8_incomplete_tail(bytes, n) == n);
    *out = (wchar_t)c;
    return 1;
}

/* What a terminal pastes comes between two marks: it is put into the line as it is, so that an end
 * of line in it does not send the line. */
static unsigned char on_paste(EditLine *el, int key)
{
    const struct calls *lib = &self(el)->lib;
    static const wchar_t end[] = PASTE_END;
    wchar_t text[256], c;
    size_t n = 0, matched = 0;
    (void)key;
    while (end[matched] != L'\0' && lib->el_wgetc(el, &c) == 1) {
        if (c == end[matched]) {
            matched++;
            continue;
        }
        matched = c == end[0];
        if (c == L'\r')
            c = L'\n';
        if (c >= L' ' || c == L'\n' || c == L'\t')
            text[n++] = c;
        if (n == SL_COUNT(text) - 1) {
            text[n] = L'\0';
            (void)lib->el_winsertstr(el, text);
            n = 0;
        }
    }
    text[n] = L'\0';
    if (n > 0)
        (void)lib->el_winsertstr(el, text);
    return CC_REFRESH;
}

/* The only word that begins as the line does. */
static unsigned char on_tab(EditLine *el, int key)
{
    struct sl_line *l = self(el);
    const LineInfo *line = l->lib.el_line(el);
    size_t n = (size_t)(line->cursor - line->buffer);
    const char *found = NULL;
    (void)key;
    for (size_t i = 0; n > 0 && line->cursor == line->lastchar && i < l->cfg.n_words; i++) {
        if (strncmp(l->cfg.words[i], line->buffer, n) != 0)
            continue;
        if (found != NULL)
            return CC_REFRESH_BEEP;
        found = l->cfg.words[i];
    }
    if (found == NULL || l->lib.el_insertstr(el, found + n) != 0)
        return CC_REFRESH_BEEP;
    return CC_REFRESH;
}

/* Its bytes are UTF-8, whatever the environment says. Only this thread's locale changes. */
static bool use_utf8(struct sl_line *l)
{
    static const char *const names[] = {"C.UTF-8", "C.utf8", "en_US.UTF-8"};
    for (size_t i = 0; l->utf8 == (locale_t)0 && i < SL_COUNT(names); i++)
        l->utf8 = newlocale(LC_CTYPE_MASK, names[i], (locale_t)0);
    return l->utf8 != (locale_t)0 && uselocale(l->utf8) != (locale_t)0;
}

static bool open_editor(struct sl_line *l)
{
    struct calls *lib = &l->lib;
    if (!load_library(lib) || !use_utf8(l))
        return false;
    loaded = lib;
    l->el = lib->el_init("sluice", stdin, stderr, stderr);
    if (l->el == NULL)
        return false;
    HistEvent ev;
    l->hist = lib->history_init();
    if (l->hist != NULL) {
        (void)lib->history(l->hist, &ev, H_SETSIZE, HISTORY_ENTRIES);
        (void)lib->history(l->hist, &ev, H_SETUNIQUE, 1);
        if (l->history_path != NULL)
            (void)lib->history(l->hist, &ev, H_LOAD, l->history_path);
        (void)lib->el_set(l->el, EL_HIST, lib->history, l->hist);
    }
    (void)lib->el_set(l->el, EL_CLIENTDATA, l);
    (void)lib->el_set(l->el, EL_PROMPT, show_prompt);
    (void)lib->el_set(l->el, EL_GETCFN, get_character);
    struct sigaction sa = {.sa_handler = on_resume};
    sigaction(SIGCONT, &sa, NULL);
    sigaction(SIGWINCH, &sa, NULL);
    (void)lib->el_set(l->el, EL_EDITOR, "emacs");
    (void)lib->el_set(l->el, EL_ADDFN, "sl-paste", "insert pasted text", on_paste);
    (void)lib->el_set(l->el, EL_ADDFN, "sl-tab", "complete a command", on_tab);
    (void)lib->el_source(l->el, NULL); /* ~/.editrc: for those who want vi's keys */
    (void)lib->el_set(l->el, EL_BIND, "\x1b[200~", "sl-paste", NULL);
    (void)lib->el_set(l->el, EL_BIND, "\t", "sl-tab", NULL);
    (void)lib->el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return true;
}

/* ---- history */

static void find_history(struct sl_line *l)
{
    const char *state = sl_environment("XDG_STATE_HOME"), *home = sl_environment("HOME");
    struct sl_buf path = {0};
    struct sl_error ignored;
    if (state == NULL && home == NULL)
        return;
    sl_buf_printf(&path, "%s%s/sluice/chat_history", state != NULL ? state : home,
                  state != NULL ? "" : "/.local/state");
    l->history_path = sl_buf_steal(&path, NULL);
    if (l->history_path != NULL && sl_make_parent(l->history_path, &ignored) != 0) {
        sl_free(l->history_path); /* a home that cannot be written: no history */
        l->history_path = NULL;
    }
}

/* In one step, and never readable by others. */
static void save_history(struct sl_line *l)
{
    struct sl_buf tmp = {0};
    struct sl_error ignored;
    HistEvent ev;
    if (l->history_path == NULL)
        return;
    sl_buf_printf(&tmp, "%s.%ld", l->history_path, (long)getpid());
    int fd = sl_buf_ok(&tmp) ? sl_sys->open(tmp.data, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd >= 0) {
        sl_sys->close(fd);
        if (l->lib.history(l->hist, &ev, H_SAVE, tmp.data) < 0 ||
            sl_rename(tmp.data, l->history_path, &ignored) != 0)
            sl_remove_file(tmp.data);
    }
    sl_buf_deinit(&tmp);
}

static void remember(struct sl_line *l, const struct sl_buf *text)
{
    HistEvent ev;
    if (l->hist == NULL || text->n_bytes == 0 || text->n_bytes > HISTORY_MAX_ENTRY)
        return;
    (void)l->lib.history(l->hist, &ev, H_ENTER, text->data);
    save_history(l);
}

/* ---- one line */

static enum sl_line_result read_edited(struct sl_line *l, struct sl_buf *out, struct sl_error *err)
{
    int n = 0;
    l->begun = false;
    resumed = 0;
    errno = 0;
    const char *line = l->lib.el_gets(l->el, &n);
    int error = errno;
    fputs(PASTE_OFF, stderr);
    if (sl_cli_interrupted()) {
        fputs("\n", stderr);
        return SL_LINE_INTERRUPTED;
    }
    if (n < 0 && error != 0 && error != EIO) { /* EIO: the terminal is gone, which ends it */
        (void)sl_fail(err, SL_EIO, "standard input: %s", strerror(error));
        return SL_LINE_FAILED;
    }
    if (line == NULL || n <= 0)
        return SL_LINE_EOF;
    sl_buf_put(out, line, (size_t)n - (line[n - 1] == '\n'));
    return SL_LINE_OK;
}

static enum sl_line_result read_plain(struct sl_line *l, struct sl_buf *out, struct sl_error *err)
{
    size_t start = out->n_bytes;
    if (l->terminal)
        fputs(l->prompt, stderr);
    for (;;) {
        while (l->pending_start < l->pending_end) {
            char ch = l->pending[l->pending_start++];
            if (ch == '\n') {
                if (out->n_bytes > start && out->data[out->n_bytes - 1] == '\r')
                    out->data[--out->n_bytes] = '\0'; /* a line from a CRLF file */
                return SL_LINE_OK;
            }
            sl_buf_putc(out, ch);
        }
        while (!sl_cli_wait(STDIN_FILENO)) {
            if (!sl_cli_interrupted())
                continue;
            if (l->terminal)
                fputs("\n", stderr);
            return SL_LINE_INTERRUPTED;
        }
        ssize_t n = sl_sys->read(STDIN_FILENO, l->pending, sizeof l->pending);
        if (n < 0) {
            (void)sl_fail(err, SL_EIO, "standard input: %s", strerror(errno));
            return SL_LINE_FAILED;
        }
        if (n == 0)
            return out->n_bytes > start ? SL_LINE_OK : SL_LINE_EOF;
        l->pending_start = 0;
        l->pending_end = (size_t)n;
    }
}

static enum sl_line_result line_read_one(struct sl_line *l, const char *prompt, struct sl_buf *out,
                                         struct sl_error *err)
{
    l->prompt = prompt;
    enum sl_line_result got = l->el != NULL ? read_edited(l, out, err) : read_plain(l, out, err);
    if (got != SL_LINE_OK || sl_buf_ok(out))
        return got;
    (void)sl_fail(err, SL_ETOOBIG, "standard input: an input of more than %zu bytes", out->n_bytes);
    return SL_LINE_FAILED;
}

/* ---- one input of several lines */

static bool line_ends_with(const struct sl_buf *b, size_t from, const char *end)
{
    size_t n = strlen(end);
    return b->n_bytes - from >= n && memcmp(b->data + b->n_bytes - n, end, n) == 0;
}

static enum sl_line_result read_quoted(struct sl_line *l, struct sl_buf *out, struct sl_error *err)
{
    size_t n = strlen(QUOTES);
    memmove(out->data, out->data + n, out->n_bytes - n + 1);
    out->n_bytes -= n;
    while (!line_ends_with(out, 0, QUOTES)) {
        sl_buf_putc(out, '\n');
        enum sl_line_result got = line_read_one(l, "... ", out, err);
        if (got == SL_LINE_EOF)
            return SL_LINE_OK; /* an end of the file closes the quotes too */
        if (got != SL_LINE_OK)
            return got;
    }
    out->n_bytes -= n;
    out->data[out->n_bytes] = '\0';
    return SL_LINE_OK;
}

enum sl_line_result sl_line_read(struct sl_line *l, struct sl_buf *out, struct sl_error *err)
{
    sl_buf_clear(out);
    enum sl_line_result got = line_read_one(l, ">>> ", out, err);
    if (got == SL_LINE_OK && out->data != NULL && sl_starts_with(out->data, QUOTES)) {
        got = read_quoted(l, out, err);
    } else {
        while (got == SL_LINE_OK && line_ends_with(out, 0, "\\")) {
            out->data[out->n_bytes - 1] = '\n';
            got = line_read_one(l, "... ", out, err);
            if (got == SL_LINE_EOF)
                return SL_LINE_OK;
        }
    }
    if (got == SL_LINE_OK)
        remember(l, out);
    return got;
}

/* ---- opening */

int sl_line_open(const struct sl_line_config *cfg, struct sl_line **out, struct sl_error *err)
{
    struct sl_line *l = sl_calloc(1, sizeof *l);
    const char *term = sl_environment("TERM");
    if (l == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    l->cfg = *cfg;
    l->prompt = "";
    l->terminal = isatty(STDIN_FILENO) == 1;
    if (l->terminal && isatty(STDERR_FILENO) == 1 && term != NULL && strcmp(term, "dumb") != 0) {
        if (cfg->history)
            find_history(l);
        (void)open_editor(l);
    }
    *out = l;
    return 0;
}

void sl_line_close(struct sl_line *l)
{
    if (l == NULL)
        return;
    if (l->el != NULL)
        l->lib.el_end(l->el);
    if (l->hist != NULL)
        l->lib.history_end(l->hist);
    if (l->utf8 != (locale_t)0) {
        uselocale(LC_GLOBAL_LOCALE);
        freelocale(l->utf8);
    }
    sl_free(l->history_path);
    sl_free(l);
}

bool sl_line_is_terminal(const struct sl_line *l)
{
    return l->terminal;
}
