/* SPDX-License-Identifier: MIT */
#include "cmd/running.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PROC     (64u << 20) /* bytes of a file of /proc: net/tcp has a line per connection */
#define MAX_SOCKETS  256         /* of a process that are looked at; listeners are opened first */
#define MAX_PICK     64
#define TCP_LISTENS  0x0A
#define UNIX_LISTENS 0x10000

struct process {
    struct sl_running *out;
    uint64_t sockets[MAX_SOCKETS]; /* inodes */
    size_t n_sockets;
    const char *dir; /* /proc/PID/fd */
};

static int read_proc(pid_t pid, const char *name, char **text, size_t *n)
{
    char path[64];
    struct sl_error ignored;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return sl_read_file(path, MAX_PROC, text, n, &ignored);
}

/* Is it `.../sluice serve ...`? The name of the file that runs, not what it was called by. */
static bool is_server(pid_t pid)
{
    char path[64], exe[512], *args = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t n_exe = readlink(path, exe, sizeof exe - 1);
    if (n_exe <= 0)
        return false;
    exe[n_exe] = '\0';
    const char *base = strrchr(exe, '/');
    base = base != NULL ? base + 1 : exe;
    if (strcmp(base, "sluice") != 0 && strcmp(base, "sluice (deleted)") != 0)
        return false;
    if (read_proc(pid, "cmdline", &args, &n) != 0)
        return false;
    size_t n_first = strnlen(args, n);
    bool yes = n_first + 1 < n && strcmp(args + n_first + 1, "serve") == 0;
    sl_free(args);
    return yes;
}

static int add_socket(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct process *p = arg;
    char path[300], target[64];
    (void)n_bytes;
    (void)err;
    snprintf(path, sizeof path, "%s/%.200s", p->dir, name);
    ssize_t n = readlink(path, target, sizeof target - 1);
    uint64_t inode;
    if (n > 9 && memcmp(target, "socket:[", 8) == 0 && p->n_sockets < MAX_SOCKETS &&
        sl_parse_u64(target + 8, (size_t)n - 9, &inode))
        p->sockets[p->n_sockets++] = inode;
    return 0;
}

static bool has_socket(const struct process *p, uint64_t inode)
{
    for (size_t i = 0; i < p->n_sockets; i++) {
        if (p->sockets[i] == inode)
            return true;
    }
    return false;
}

/* Field i of a line that blanks separate; n 0: there is none. */
static const char *field(const char *line, int i, size_t *n)
{
    line += strspn(line, " ");
    for (; i > 0; i--) {
        line += strcspn(line, " \n");
        line += strspn(line, " ");
    }
    *n = strcspn(line, " \n");
    return line;
}

/* "0100007F:1F90": words of the address as this machine stores them. */
static void set_tcp_url(struct sl_running *r, const char *text, size_t n, bool v6)
{
    uint32_t words[4] = {0};
    char name[INET6_ADDRSTRLEN] = "";
    size_t n_words = v6 ? 4 : 1;
    uint64_t x, port;
    if (n != 8 * n_words + 5 || !sl_parse_hex_u64(text + 8 * n_words + 1, 4, &port))
        return;
    for (size_t i = 0; i < n_words; i++) {
        if (!sl_parse_hex_u64(text + 8 * i, 8, &x))
            return;
        words[i] = (uint32_t)x;
    }
    bool any = (words[0] | words[1] | words[2] | words[3]) == 0;
    if (any) /* reached at this machine's own address */
        snprintf(name, sizeof name, "%s", v6 ? "::1" : "127.0.0.1");
    else if (inet_ntop(v6 ? AF_INET6 : AF_INET, words, name, sizeof name) == NULL)
        return;
    snprintf(r->url, sizeof r->url, "http://%s%s%s:%u", v6 ? "[" : "", name, v6 ? "]" : "",
             (unsigned)port);
}

static void find_tcp(struct process *p, const char *table, bool v6)
{
    char *text = NULL;
    size_t n_text = 0, n;
    uint64_t state, inode;
    if (p->out->url[0] != '\0' || read_proc(p->out->pid, table, &text, &n_text) != 0)
        return;
    for (const char *line = strchr(text, '\n'); line != NULL; line = strchr(line, '\n')) {
        const char *f = field(++line, 3, &n);
        if (!sl_parse_hex_u64(f, n, &state) || state != TCP_LISTENS)
            continue;
        f = field(line, 9, &n);
        if (!sl_parse_u64(f, n, &inode) || !has_socket(p, inode))
            continue;
        f = field(line, 1, &n);
        set_tcp_url(p->out, f, n, v6);
        break;
    }
    sl_free(text);
}

static void find_unix(struct process *p)
{
    char *text = NULL;
    size_t n_text = 0, n;
    uint64_t flags, inode;
    if (p->out->url[0] != '\0' || read_proc(p->out->pid, "net/unix", &text, &n_text) != 0)
        return;
    for (const char *line = strchr(text, '\n'); line != NULL; line = strchr(line, '\n')) {
        const char *f = field(++line, 3, &n);
        if (!sl_parse_hex_u64(f, n, &flags) || (flags & UNIX_LISTENS) == 0)
            continue;
        f = field(line, 6, &n);
        if (!sl_parse_u64(f, n, &inode) || !has_socket(p, inode))
            continue;
        f = field(line, 7, &n);
        snprintf(p->out->url, sizeof p->out->url, "unix:%.*s", (int)strcspn(f, "\n"), f);
        break;
    }
    sl_free(text);
}

/* Field i of /proc/PID/stat, counted as proc(5) does; what comes before the last ')' may hold
 * anything. */
static uint64_t stat_field(pid_t pid, int i)
{
    char *text = NULL;
    size_t n_text = 0, n;
    uint64_t x = 0;
    if (read_proc(pid, "stat", &text, &n_text) != 0)
        return 0;
    const char *end = strrchr(text, ')');
    const char *f = end != NULL ? field(end + 1, i - 3, &n) : NULL;
    if (f == NULL || !sl_parse_u64(f, n, &x))
        x = 0;
    sl_free(text);
    return x;
}

static double machine_up_s(void)
{
    char *text = NULL;
    size_t n_text = 0;
    double x = 0;
    struct sl_error ignored;
    if (sl_read_file("/proc/uptime", 256, &text, &n_text, &ignored) == 0 &&
        !sl_parse_double(text, strcspn(text, " "), &x))
        x = 0;
    sl_free(text);
    return x;
}

static void running_look_at(struct sl_running *r)
{
    char dir[64];
    struct process p = {.out = r, .dir = dir};
    struct sl_error ignored;
    snprintf(dir, sizeof dir, "/proc/%d/fd", (int)r->pid);
    if (sl_list_folder(dir, add_socket, &p, &ignored) == 0) {
        find_tcp(&p, "net/tcp", false);
        find_tcp(&p, "net/tcp6", true);
        find_unix(&p);
    }
    r->memory_bytes = stat_field(r->pid, 24) * (uint64_t)sysconf(_SC_PAGESIZE);
    r->up_s = machine_up_s() - (double)stat_field(r->pid, 22) / (double)sysconf(_SC_CLK_TCK);
}

struct found {
    struct sl_running *out;
    int max, n;
};

static int add_process(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct found *f = arg;
    uint64_t pid;
    (void)n_bytes;
    (void)err;
    if (!sl_parse_u64(name, strlen(name), &pid) || pid > INT32_MAX || f->n == f->max ||
        !is_server((pid_t)pid))
        return 0;
    f->out[f->n] = (struct sl_running){.pid = (pid_t)pid};
    running_look_at(&f->out[f->n++]);
    return 0;
}

static int by_start(const void *a, const void *b)
{
    double x = ((const struct sl_running *)a)->up_s, y = ((const struct sl_running *)b)->up_s;
    return (x < y) - (x > y);
}

int sl_running_find(struct sl_running *out, int max)
{
    struct found f = {.out = out, .max = max};
    struct sl_error ignored;
    (void)!sl_list_folder("/proc", add_process, &f, &ignored);
    qsort(out, (size_t)f.n, sizeof *out, by_start);
    return f.n;
}

static bool is_meant(const struct sl_running *r, const char *target)
{
    char pid[16];
    const char *port = strrchr(r->url, ':');
    snprintf(pid, sizeof pid, "%d", (int)r->pid);
    if (*target == ':')
        target++;
    return strcmp(target, pid) == 0 || strcmp(target, r->url) == 0 ||
           (port != NULL && strcmp(target, port + 1) == 0);
}

int sl_running_pick(const char *target, struct sl_running *out, struct sl_error *err)
{
    struct sl_running all[MAX_PICK];
    char list[160] = "";
    int n = sl_running_find(all, MAX_PICK), n_meant = 0;
    for (int i = 0; i < n; i++) {
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%d (%.60s)", i > 0 ? ", " : "", (int)all[i].pid,
                 all[i].url);
        if (target != NULL && !is_meant(&all[i], target))
            continue;
        *out = all[i];
        n_meant++;
    }
    if (n_meant == 1)
        return 0;
    if (n == 0)
        return sl_fail(err, SL_ENOTFOUND, "no server of yours runs on this machine");
    if (target == NULL)
        return sl_fail(err, SL_EINVAL, "which server? its process id or port: %s", list);
    return sl_fail(err, SL_ENOTFOUND,
                   "'%.40s' is not the process id, port or URL of a server; running: %s", target,
                   list);
}
