/* SPDX-License-Identifier: MIT
 * host.c - processors, memory and network interfaces, from /sys and /proc.
 */
#include "machine/machine.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"
#include "cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#define MAX_PATH 512
#define MAX_FILE (4u << 20)

/* The line of a file that begins with a word, behind its colon; "" if there is none. */
static void value_of(const char *root, const char *path, const char *word, char *out, size_t n_out)
{
    char full[MAX_PATH], *text;
    size_t n;
    struct sl_error err;
    out[0] = '\0';
    snprintf(full, sizeof full, "%s%s", root, path);
    if (sl_read_file(full, MAX_FILE, &text, &n, &err) != 0)
        return;
    const char *at = word[0] != '\0' ? strstr(text, word) : text;
    if (at != NULL && word[0] != '\0')
        at = strchr(at, ':');
    if (at != NULL) {
        at += strspn(at, ": \t");
        snprintf(out, n_out, "%.*s", (int)strcspn(at, "\n"), at);
    }
    sl_scrub(out, strlen(out));
    sl_free(text);
}

void sl_machine_line(const char *root, const char *path, char *out, size_t n_out)
{
    value_of(root, path, "", out, n_out);
}

/* "MemTotal:       131072 kB" */
static uint64_t kilobytes(const char *text)
{
    uint64_t n = 0;
    const size_t n_digits = strspn(text, "0123456789");
    return sl_parse_u64(text, n_digits, &n) && n < UINT64_MAX / 1024 ? n * 1024 : 0;
}

static const char *isa_name(void)
{
    static const char *const names[] = {"amx", "avx512-bf16", "avx512-vnni", "avx512", "avx2"};
    enum sl_cpu_isa isa;
    struct sl_error err;
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (sl_cpu_isa_parse(names[i], &isa, &err) == 0)
            return names[i];
    return "c";
}

/* Names of a folder that are a word and a number. */
struct numbered {
    const char *word;
    int32_t ids[SL_MAX_NODES];
    int32_t n;
};

static int take_numbered(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    struct numbered *l = arg;
    const size_t n_word = strlen(l->word);
    uint64_t id;
    (void)n_bytes;
    (void)err;
    if (l->n < SL_MAX_NODES && strncmp(name, l->word, n_word) == 0 &&
        sl_parse_u64(name + n_word, strlen(name + n_word), &id) && id < INT32_MAX) {
        int32_t at = l->n++;
        for (; at > 0 && l->ids[at - 1] > (int32_t)id; at--)
            l->ids[at] = l->ids[at - 1];
        l->ids[at] = (int32_t)id;
    }
    return 0;
}

static void find_nodes(struct sl_machine *m, const char *root)
{
    char path[MAX_PATH], text[SL_MACHINE_NAME];
    struct numbered l = {.word = "node"};
    struct sl_error err;
    snprintf(path, sizeof path, "%s/sys/devices/system/node", root);
    if (sl_list_folder(path, take_numbered, &l, &err) != 0)
        return;
    for (int32_t i = 0; i < l.n; i++) {
        struct sl_machine_node *node = &m->nodes[m->n_nodes];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", l.ids[i]);
        sl_machine_line(root, path, node->cpus, sizeof node->cpus);
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", l.ids[i]);
        value_of(root, path, "MemTotal", text, sizeof text);
        node->id = l.ids[i];
        node->n_bytes = kilobytes(text);
        m->n_nodes += node->n_bytes > 0 || node->cpus[0] != '\0';
    }
}

static int32_t node_of(const char *root, const char *device)
{
    char path[MAX_PATH], text[32];
    uint64_t id;
    snprintf(path, sizeof path, "%s/numa_node", device);
    sl_machine_line(root, path, text, sizeof text);
    return sl_parse_u64(text, strlen(text), &id) && id < SL_MAX_NODES * 16 ? (int32_t)id : -1;
}

struct nic_list {
    struct sl_machine *m;
    const char *root;
};

static struct sl_machine_nic *next_nic(struct sl_machine *m, const char *name, const char *kind)
{
    struct sl_machine_nic *nic = &m->nics[m->n_nics];
    if (m->n_nics == SL_MAX_NICS)
        return NULL;
    m->n_nics++;
    snprintf(nic->name, sizeof nic->name, "%.31s", name);
    snprintf(nic->kind, sizeof nic->kind, "%s", kind);
    return nic;
}

/* Interfaces behind which there is a device: neither loopback nor bridges. */
static int take_ethernet(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    const struct nic_list *l = arg;
    char device[MAX_PATH], path[MAX_PATH + 32], text[32];
    uint64_t mbit;
    (void)n_bytes;
    (void)err;
    snprintf(device, sizeof device, "/sys/class/net/%.64s/device", name);
    snprintf(path, sizeof path, "%s%s", l->root, device);
    if (!sl_exists(path))
        return 0;
    struct sl_machine_nic *nic = next_nic(l->m, name, "ethernet");
    if (nic == NULL)
        return 0;
    nic->node = node_of(l->root, device);
    snprintf(path, sizeof path, "/sys/class/net/%.64s/operstate", name);
    sl_machine_line(l->root, path, text, sizeof text);
    nic->up = strcmp(text, "up") == 0;
    snprintf(path, sizeof path, "/sys/class/net/%.64s/speed", name);
    sl_machine_line(l->root, path, text, sizeof text);
    if (sl_parse_u64(text, strlen(text), &mbit) && mbit < 100000000)
        nic->gbit_s = (double)mbit / 1000;
    return 0;
}

/* "400 Gb/sec (4X NDR)", "4: ACTIVE", "Ethernet" */
static int take_rdma(void *arg, const char *name, uint64_t n_bytes, struct sl_error *err)
{
    const struct nic_list *l = arg;
    char device[MAX_PATH], path[MAX_PATH + 32], text[64];
    double rate;
    (void)n_bytes;
    (void)err;
    snprintf(device, sizeof device, "/sys/class/infiniband/%.64s", name);
    snprintf(path, sizeof path, "%s/ports/1/link_layer", device);
    sl_machine_line(l->root, path, text, sizeof text);
    struct sl_machine_nic *nic =
        next_nic(l->m, name, strcmp(text, "Ethernet") == 0 ? "roce" : "infiniband");
    if (nic == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/ports/1/state", device);
    sl_machine_line(l->root, path, text, sizeof text);
    nic->up = strstr(text, "ACTIVE") != NULL;
    snprintf(path, sizeof path, "%s/ports/1/rate", device);
    sl_machine_line(l->root, path, text, sizeof text);
    if (sl_parse_double(text, strcspn(text, " "), &rate) && rate > 0)
        nic->gbit_s = rate;
    snprintf(path, sizeof path, "%s/device", device);
    nic->node = node_of(l->root, path);
    return 0;
}

void sl_machine_host(struct sl_machine *m, const char *root)
{
    char text[SL_MACHINE_NAME], path[MAX_PATH];
    struct nic_list nics = {m, root};
    struct sl_error err;
    value_of(root, "/proc/cpuinfo", "model name", m->cpu, sizeof m->cpu);
    snprintf(m->isa, sizeof m->isa, "%s", isa_name());
    m->n_cpus = sl_cpu_count();
    m->ram_bytes = sl_ram_bytes();
    value_of(root, "/proc/meminfo", "MemTotal", text, sizeof text);
    m->total_bytes = kilobytes(text);
    find_nodes(m, root);
    snprintf(path, sizeof path, "%s/sys/class/net", root);
    (void)!sl_list_folder(path, take_ethernet, &nics, &err); /* without it there are none */
    snprintf(path, sizeof path, "%s/sys/class/infiniband", root);
    (void)!sl_list_folder(path, take_rdma, &nics, &err);
}
