/* SPDX-License-Identifier: MIT
 * findings.c - what is wrong with a machine, or would surprise who serves on it.
 */
#include "machine/machine.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define ENOUGH      0.8  /* of what a link or memory should reach */
#define ENOUGH_PCIE 0.7  /* whose expected rate has no room for packet heads */
#define MIN_FILES   4096 /* connections, each with a descriptor */

static void find(struct sl_machine *m, bool bad, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void find(struct sl_machine *m, bool bad, const char *fmt, ...)
{
    va_list ap;
    if (m->n_findings == SL_MAX_FINDINGS)
        return;
    struct sl_machine_finding *f = &m->findings[m->n_findings++];
    f->bad = bad;
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
}

static void judge_errors(struct sl_machine *m, int32_t i)
{
    const struct sl_machine_gpu *g = &m->gpus[i];
    if (g->ecc_known && !g->ecc_on)
        find(m, true, "GPU %d: ECC is off: a flipped bit of memory would change answers unseen", i);
    if (g->n_uncorrected > 0)
        find(m, true,
             "GPU %d: %llu memory errors that ECC could not correct since the driver was "
             "loaded",
             i, (unsigned long long)g->n_uncorrected);
    if (g->remap_failed)
        find(m, true, "GPU %d: a faulty row of memory could not be replaced: replace the card", i);
    else if (g->remap_pending)
        find(m, true, "GPU %d: a faulty row of memory is replaced at the next reset of the card",
             i);
    if (g->slowed)
        find(m, true, "GPU %d: heat or power lowers its clocks now", i);
}

static void judge_gpu(struct sl_machine *m, int32_t i)
{
    const struct sl_machine_gpu *g = &m->gpus[i];
    judge_errors(m, i);
    if (g->mig_on)
        find(m, false, "GPU %d: it is divided (MIG): sluice uses the first part it sees", i);
    if (!g->served)
        find(m, false,
             "GPU %d (%s): sluice has no kernels for it, which need compute capability "
             "9.0 (Hopper)",
             i, g->name);
    if (g->pcie_width > 0 && g->pcie_width < g->pcie_max_width)
        find(m, true, "GPU %d: PCIe has %d of %d lanes", i, g->pcie_width, g->pcie_max_width);
    if (g->n_bytes > 0 && g->free_bytes < g->n_bytes / 10 * 9)
        find(m, false, "GPU %d: %.1f of %.1f GB are free: other programs use it", i,
             (double)g->free_bytes / 1e9, (double)g->n_bytes / 1e9);
}

static void judge_rate(struct sl_machine *m, const struct sl_machine_rate *r, double enough,
                       const char *what)
{
    if (r->measured > 0 && r->expected > 0 && r->measured < enough * r->expected)
        find(m, true, "%s: %.1f GB/s measured, %.1f expected", what, r->measured / 1e9,
             r->expected / 1e9);
}

static void judge_rates(struct sl_machine *m)
{
    char what[64];
    for (int32_t i = 0; i < m->n_gpus; i++) {
        const struct sl_machine_gpu *g = &m->gpus[i];
        snprintf(what, sizeof what, "GPU %d: copies in its memory", i);
        judge_rate(m, &g->memory, ENOUGH, what);
        snprintf(what, sizeof what, "GPU %d: copies from pinned memory of the host", i);
        judge_rate(m, &g->from_host, ENOUGH_PCIE, what);
        snprintf(what, sizeof what, "GPU %d: copies to pinned memory of the host", i);
        judge_rate(m, &g->to_host, ENOUGH_PCIE, what);
        for (int32_t k = 0; k < m->n_gpus; k++) {
            const struct sl_machine_link *l = &m->links[i][k];
            snprintf(what, sizeof what, "GPU %d to GPU %d", i, k);
            judge_rate(m, &l->rate, strcmp(l->kind, "nvlink") == 0 ? ENOUGH : ENOUGH_PCIE, what);
        }
    }
}

static void judge_links(struct sl_machine *m)
{
    for (int32_t i = 0; i < m->n_gpus; i++)
        for (int32_t k = i + 1; k < m->n_gpus; k++)
            if (!m->links[i][k].peers || !m->links[k][i].peers)
                find(m, false,
                     "GPU %d and GPU %d cannot reach each other's memory: they cannot be "
                     "ranks of one model",
                     i, k);
}

struct gpu_search {
    const char *root;
    int n;
};

/* Devices of NVIDIA's that draw or compute. */
static int take_gpu(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct gpu_search *s = arg;
    char path[256], vendor[16], class_[16];
    (void)n_bytes;
    (void)err;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.64s/vendor", name);
    sl_machine_line(s->root, path, vendor, sizeof vendor);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.64s/class", name);
    sl_machine_line(s->root, path, class_, sizeof class_);
    s->n += strcmp(vendor, "0x10de") == 0 && sl_starts_with(class_, "0x03");
    return 0;
}

static void judge_driver(struct sl_machine *m, const char *root)
{
    struct gpu_search s = {.root = root};
    struct sl_error err;
    char path[256];
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root);
    if (m->driver[0] != '\0' || sl_list_folder(path, take_gpu, &s, &err) != 0 || s.n == 0)
        return;
    find(m, true,
         "%d NVIDIA GPU%s without a driver that answers: load the driver, or start the "
         "container with its GPUs",
         s.n, s.n > 1 ? "s" : "");
}

static void judge_host(struct sl_machine *m)
{
    struct rlimit files;
    if (strcmp(m->isa, "c") == 0)
        find(m, true,
             "the processor has no AVX2: the CPU backend computes in plain C, very slowly");
    if (m->total_bytes > 0 && m->ram_bytes > 0 && m->ram_bytes < m->total_bytes / 10 * 9)
        find(m, false, "this process may use %.1f of the machine's %.1f GB (cgroup)",
             (double)m->ram_bytes / 1e9, (double)m->total_bytes / 1e9);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max != RLIM_INFINITY &&
        files.rlim_max < MIN_FILES)
        find(m, false,
             "at most %llu files may be open: that bounds the connections of a server "
             "(ulimit -n)",
             (unsigned long long)files.rlim_max);
}

void sl_machine_judge(struct sl_machine *m, const char *root)
{
    SL_ASSERT(m->n_gpus >= 0 && m->n_gpus <= SL_MAX_GPUS && m->n_findings == 0);
    judge_host(m);
    judge_driver(m, root);
    for (int32_t i = 0; i < m->n_gpus; i++)
        judge_gpu(m, i);
    judge_links(m);
    judge_rates(m);
}
