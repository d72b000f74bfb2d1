/* SPDX-License-Identifier: MIT */
#include "cpu/numa.h"

#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define MAX_NODES 64

/* A processor: which hardware thread of its core it is. */
struct place {
    int cpu, rank;
};

struct nodes {
    int n, n_cpus;
    int n_of[MAX_NODES];
    struct place at[CPU_SETSIZE]; /* node after node */
};

/* A list as the kernel writes it: "0-3,8,10-11". False: there is none, or it is something else. */
static bool read_list(const char *path, cpu_set_t *out)
{
    char *text;
    size_t n;
    struct sl_error err;
    CPU_ZERO(out);
    if (sl_read_file(path, 65536, &text, &n, &err) != 0)
        return false;
    bool ok = true;
    for (const char *s = text; ok && *s != '\0' && *s != '\n';) {
        size_t n_item = strcspn(s, ",\n"), n_first = SL_MIN(strcspn(s, "-"), n_item);
        uint64_t first = 0, last = 0;
        ok = sl_parse_u64(s, n_first, &first);
        last = first;
        if (ok && n_first < n_item)
            ok = sl_parse_u64(s + n_first + 1, n_item - n_first - 1, &last);
        ok = ok && first <= last && last < CPU_SETSIZE;
        for (uint64_t c = first; ok && c <= last; c++)
            CPU_SET((size_t)c, out);
        s += n_item + (s[n_item] == ',');
    }
    sl_free(text);
    return ok;
}

/* 0 for the first hardware thread of a core; also where the system does not say. */
static int numa_rank_of(const char *root, int cpu)
{
    char path[256];
    cpu_set_t siblings;
    int rank = 0;
    snprintf(path, sizeof path, "%s/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
    if (!read_list(path, &siblings))
        return 0;
    for (int c = 0; c < cpu; c++)
        rank += CPU_ISSET((size_t)c, &siblings) != 0;
    return rank;
}

/* First hardware threads of every core first. */
static void sort_places(struct place *p, int n)
{
    for (int i = 1; i < n; i++) {
        struct place x = p[i];
        int j = i;
        for (; j > 0 && p[j - 1].rank > x.rank; j--)
            p[j] = p[j - 1];
        p[j] = x;
    }
}

static void read_nodes(const char *root, const cpu_set_t *allowed, struct nodes *out)
{
    *out = (struct nodes){0};
    for (int node = 0; node < MAX_NODES; node++) {
        char path[256];
        cpu_set_t cpus;
        snprintf(path, sizeof path, "%s/node/node%d/cpulist", root, node);
        if (!read_list(path, &cpus))
            continue;
        struct place *first = out->at + out->n_cpus;
        int n = 0;
        for (int c = 0; c < CPU_SETSIZE && out->n_cpus + n < CPU_SETSIZE; c++) {
            if (CPU_ISSET((size_t)c, &cpus) && CPU_ISSET((size_t)c, allowed))
                first[n++] = (struct place){c, numa_rank_of(root, c)};
        }
        if (n == 0)
            continue;
        sort_places(first, n);
        out->n_of[out->n++] = n;
        out->n_cpus += n;
    }
}

int sl_numa_place(const char *root, int n_threads, int *cpus)
{
    cpu_set_t allowed;
    struct nodes nodes;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 0;
    read_nodes(root, &allowed, &nodes);
    if (nodes.n < 2 || n_threads > nodes.n_cpus)
        return SL_MIN(nodes.n, 1);
    int t = 0, before = 0;
    for (int i = 0; i < nodes.n; i++) {
        /* Thread t of all belongs where processor t * n_cpus / n_threads of all lies. */
        int end = (before + nodes.n_of[i]) * n_threads / nodes.n_cpus;
        for (int k = 0; t < end; k++)
            cpus[t++] = nodes.at[before + k].cpu;
        before += nodes.n_of[i];
    }
    return nodes.n;
}
