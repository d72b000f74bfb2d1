/* SPDX-License-Identifier: MIT */
#include "server/page/process.h"

#include "base/sys.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t count_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint64_t n = 0;
    if (dir == NULL)
        return 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n > 3 ? n - 3 : 0; /* ".", ".." and the directory itself */
}

static void read_memory(struct sl_process *out)
{
    char *text = NULL;
    size_t n_text = 0;
    struct sl_error ignored;
    if (sl_read_file("/proc/self/statm", 4096, &text, &n_text, &ignored) != 0)
        return;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages[2] = {0, 0};
    const char *at = text;
    for (int i = 0; i < 2; i++) { /* size, resident */
        while (*at >= '0' && *at <= '9')
            pages[i] = pages[i] * 10 + (uint64_t)(*at++ - '0');
        at += *at == ' ';
    }
    sl_free(text);
    out->virtual_bytes = pages[0] * page;
    out->resident_bytes = pages[1] * page;
}

void sl_process_read(struct sl_process *out)
{
    struct rusage usage;
    struct rlimit limit;
    *out = (struct sl_process){.n_fds = count_open_fds()};
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        out->cpu_s = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                     (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        out->max_fds = limit.rlim_cur;
    read_memory(out);
}
