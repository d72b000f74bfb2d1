/* SPDX-License-Identifier: MIT
 * nvml.c - GPUs and the links between them, from NVIDIA's management library.
 */
#include "machine/nvml.h"

#include "base/check.h"
#include "base/str.h"
#include "machine/machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Bytes per second and lane of PCIe generations 1 to 6, after the line code. */
static const double lane_rates[] = {0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};

static void find_call(void *library, const char *symbol, void *to)
{
    void *found = dlsym(library, symbol);
    memcpy(to, &found, sizeof found); /* ISO C has no conversion from data to function pointers */
}

bool sl_nvml_open(struct sl_nvml *n)
{
    memset(n, 0, sizeof *n);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        return false;
#define X(field, symbol, args) find_call(n->library, symbol, &n->field);
    SL_NVML_CALLS(X)
#undef X
    if (n->init != NULL && n->count != NULL && n->by_index != NULL && n->init() == 0)
        return true;
    dlclose(n->library);
    n->library = NULL;
    return false;
}

void sl_nvml_close(struct sl_nvml *n)
{
    if (n->library == NULL)
        return;
    if (n->shutdown != NULL)
        n->shutdown();
    dlclose(n->library);
    n->library = NULL;
}

static uint32_t number(int (*call)(sl_nvml_device, unsigned *), sl_nvml_device d)
{
    unsigned out = 0;
    return call != NULL && call(d, &out) == 0 ? out : 0;
}

static void find_pci(const struct sl_nvml *n, sl_nvml_device d, const char *root,
                     struct sl_machine_gpu *g)
{
    struct sl_nvml_pci pci = {0};
    char path[128], text[32];
    uint64_t node;
    g->node = -1;
    if (n->pci != NULL && n->pci(d, &pci) == 0) { /* as the kernel names it, function 0 */
        snprintf(g->pci, sizeof g->pci, "%04x:%02x:%02x.0", pci.domain & 0xffff, pci.bus & 0xff,
                 pci.device & 0x1f);
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", g->pci);
        sl_machine_line(root, path, text, sizeof text);
        if (sl_parse_u64(text, strlen(text), &node) && node < SL_MAX_NODES * 16)
            g->node = (int32_t)node;
    }
    g->pcie_gen = (int32_t)number(n->pcie_gen, d);
    g->pcie_width = (int32_t)number(n->pcie_width, d);
    g->pcie_max_width = (int32_t)number(n->pcie_max_width, d);
    if (g->pcie_gen >= 1 && g->pcie_gen <= (int32_t)SL_COUNT(lane_rates))
        g->from_host.expected = g->to_host.expected =
            lane_rates[g->pcie_gen - 1] * (double)g->pcie_width;
}

static void find_memory(const struct sl_nvml *n, sl_nvml_device d, struct sl_machine_gpu *g)
{
    struct sl_nvml_memory mem = {0};
    unsigned mhz = 0, now = 0, pending = 0, corrected = 0, uncorrected = 0, failed = 0;
    unsigned long long errors = 0;
    if (n->memory != NULL && n->memory(d, &mem) == 0) {
        g->n_bytes = mem.total;
        g->free_bytes = mem.free;
    }
    if (n->max_clock != NULL && n->max_clock(d, SL_NVML_CLOCK_MEM, &mhz) == 0) /* both edges */
        g->memory.expected = 2e6 * (double)mhz * (double)number(n->bus_width, d) / 8;
    g->ecc_known = n->ecc != NULL && n->ecc(d, &now, &pending) == 0;
    g->ecc_on = g->ecc_known && now != 0;
    if (n->ecc_errors != NULL &&
        n->ecc_errors(d, SL_NVML_UNCORRECTED, SL_NVML_VOLATILE, &errors) == 0)
        g->n_uncorrected = errors;
    pending = 0;
    if (n->remapped != NULL && n->remapped(d, &corrected, &uncorrected, &pending, &failed) == 0) {
        g->remap_pending = pending != 0;
        g->remap_failed = failed != 0;
    }
}

static void find_nvlinks(const struct sl_nvml *n, sl_nvml_device d, struct sl_machine_gpu *g)
{
    struct sl_nvml_field f = {.id = SL_NVML_FIELD_LINK_MB_S};
    unsigned up;
    for (unsigned i = 0; n->link_up != NULL && i < SL_NVML_MAX_LINKS; i++)
        g->n_nvlinks += n->link_up(d, i, &up) == 0 && up != 0;
    if (n->fields != NULL && n->fields(d, 1, &f) == 0 && f.status == 0)
        g->nvlink_bytes_s = (double)f.value.ui * 1e6;
}

static void find_gpu(const struct sl_nvml *n, sl_nvml_device d, const char *root,
                     struct sl_machine_gpu *g)
{
    unsigned now = 0, pending = 0;
    unsigned long long reasons = 0;
    if (n->name == NULL || n->name(d, g->name, sizeof g->name) != 0)
        snprintf(g->name, sizeof g->name, "an NVIDIA GPU");
    sl_scrub(g->name, strlen(g->name));
    find_pci(n, d, root, g);
    find_memory(n, d, g);
    find_nvlinks(n, d, g);
    g->mig_on = n->mig != NULL && n->mig(d, &now, &pending) == 0 && now != 0;
    g->slowed = n->slowed != NULL && n->slowed(d, &reasons) == 0 && (reasons & SL_NVML_SLOWED) != 0;
}

static bool can(const struct sl_nvml *n, sl_nvml_device a, sl_nvml_device b, unsigned what)
{
    unsigned status = 1;
    return n->p2p != NULL && n->p2p(a, b, what, &status) == 0 && status == 0;
}

static void find_link(const struct sl_nvml *n, const struct sl_machine_gpu *g, sl_nvml_device a,
                      sl_nvml_device b, struct sl_machine_link *l)
{
    unsigned level = 0;
    l->peers = can(n, a, b, SL_NVML_P2P_READ);
    if (can(n, a, b, SL_NVML_P2P_NVLINK)) {
        snprintf(l->kind, sizeof l->kind, "nvlink");
        l->rate.expected = (double)g->n_nvlinks * g->nvlink_bytes_s;
    } else if (n->common != NULL && n->common(a, b, &level) == 0) {
        snprintf(l->kind, sizeof l->kind, level <= SL_NVML_COMMON_NODE ? "pcie" : "nodes");
        l->rate.expected = g->to_host.expected;
    }
}

void sl_machine_gpus(struct sl_machine *m, const struct sl_nvml *n, const char *root)
{
    sl_nvml_device devices[SL_MAX_GPUS];
    unsigned count = 0;
    int cuda = 0;
    if (n->driver == NULL || n->driver(m->driver, sizeof m->driver) != 0)
        snprintf(m->driver, sizeof m->driver, "unknown");
    sl_scrub(m->driver, strlen(m->driver));
    if (n->cuda != NULL && n->cuda(&cuda) == 0)
        snprintf(m->cuda, sizeof m->cuda, "%d.%d", cuda / 1000 % 1000, cuda % 1000 / 10);
    if (n->count(&count) != 0)
        return;
    for (unsigned i = 0; i < count && m->n_gpus < SL_MAX_GPUS; i++)
        if (n->by_index(i, &devices[m->n_gpus]) == 0) {
            find_gpu(n, devices[m->n_gpus], root, &m->gpus[m->n_gpus]);
            m->n_gpus++;
        }
    for (int32_t i = 0; i < m->n_gpus; i++)
        for (int32_t k = 0; k < m->n_gpus; k++)
            if (i != k)
                find_link(n, &m->gpus[i], devices[i], devices[k], &m->links[i][k]);
}
