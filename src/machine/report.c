/* SPDX-License-Identifier: MIT
 * report.c - the facts about a machine as text and as JSON.
 */
#include "machine/machine.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

#define GB 1e9

/* "measured of expected", what there is of it. */
static void rate_text(const struct sl_machine_rate *r, const char *what, struct sl_buf *b)
{
    if (r->measured > 0 && r->expected > 0)
        sl_buf_printf(b, "; %s %.1f of %.1f GB/s", what, r->measured / GB, r->expected / GB);
    else if (r->measured > 0)
        sl_buf_printf(b, "; %s %.1f GB/s", what, r->measured / GB);
    else if (r->expected > 0)
        sl_buf_printf(b, "; %s up to %.1f GB/s", what, r->expected / GB);
}

static void host_text(const struct sl_machine *m, struct sl_buf *b)
{
    sl_buf_printf(b, "%-10s %s: %d processors for this process, kernels for %s\n", "processor",
                  m->cpu[0] != '\0' ? m->cpu : "unknown", m->n_cpus, m->isa);
    sl_buf_printf(b, "%-10s %.1f GB for this process, %.1f GB in all", "memory",
                  (double)m->ram_bytes / GB, (double)m->total_bytes / GB);
    rate_text(&m->ram, "reads", b);
    sl_buf_putc(b, '\n');
    for (int32_t i = 0; i < m->n_nodes && m->n_nodes > 1; i++)
        sl_buf_printf(b, "%-10s %.1f GB, processors %s\n", i == 0 ? "nodes" : "",
                      (double)m->nodes[i].n_bytes / GB, m->nodes[i].cpus);
    for (int32_t i = 0; i < m->n_nics; i++) {
        const struct sl_machine_nic *nic = &m->nics[i];
        sl_buf_printf(b, "%-10s %s: %s, %s", i == 0 ? "network" : "", nic->name, nic->kind,
                      nic->up ? "up" : "down");
        if (nic->gbit_s > 0)
            sl_buf_printf(b, ", %g Gbit/s", nic->gbit_s);
        if (nic->node >= 0)
            sl_buf_printf(b, ", node %d", nic->node);
        sl_buf_putc(b, '\n');
    }
}

static void gpu_text(const struct sl_machine *m, int32_t i, struct sl_buf *b)
{
    const struct sl_machine_gpu *g = &m->gpus[i];
    sl_buf_printf(b, "GPU %-6d %s at %s: %.1f of %.1f GB free", i, g->name, g->pci,
                  (double)g->free_bytes / GB, (double)g->n_bytes / GB);
    rate_text(&g->memory, "copies", b);
    sl_buf_printf(b, "\n%-10s PCIe %d x%d", "", g->pcie_gen, g->pcie_width);
    if (g->node >= 0)
        sl_buf_printf(b, ", node %d", g->node);
    rate_text(&g->from_host, "from the host", b);
    rate_text(&g->to_host, "to it", b);
    sl_buf_printf(b, "\n%-10s %d NVLinks", "", g->n_nvlinks);
    if (g->nvlink_bytes_s > 0)
        sl_buf_printf(b, " of %.1f GB/s each way", g->nvlink_bytes_s / GB);
    sl_buf_printf(b, "; ECC %s", !g->ecc_known ? "unknown" : g->ecc_on ? "on" : "off");
    sl_buf_printf(b, ", %llu uncorrected errors\n", (unsigned long long)g->n_uncorrected);
}

static void link_text(const struct sl_machine *m, int32_t i, int32_t k, struct sl_buf *b)
{
    const struct sl_machine_link *l = &m->links[i][k];
    sl_buf_printf(b, "%-10s GPU %d to GPU %d: %s, %s", "", i, k,
                  l->kind[0] == '\0' ? "unknown" : l->kind, l->peers ? "peers" : "no peers");
    rate_text(&l->rate, "copies", b);
    sl_buf_putc(b, '\n');
}

/* What commands do without --device. */
static void choice_text(const struct sl_machine *m, struct sl_buf *b)
{
    int32_t first = 0;
    while (first < m->n_gpus && !m->gpus[first].served)
        first++;
    if (first < m->n_gpus)
        sl_buf_printf(b, "%-10s the GPU %d; --device cpu: %d threads, %s\n", "default", first,
                      m->n_cpus, m->isa);
    else
        sl_buf_printf(b, "%-10s the CPU: %d threads, %s\n", "default", m->n_cpus, m->isa);
}

void sl_machine_text(const struct sl_machine *m, struct sl_buf *b)
{
    SL_ASSERT(m->n_gpus <= SL_MAX_GPUS && m->n_findings <= SL_MAX_FINDINGS);
    host_text(m, b);
    if (m->driver[0] != '\0')
        sl_buf_printf(b, "%-10s NVIDIA %s, for CUDA up to %s\n", "driver", m->driver, m->cuda);
    else
        sl_buf_printf(b, "%-10s no NVIDIA driver\n", "driver");
    for (int32_t i = 0; i < m->n_gpus; i++)
        gpu_text(m, i, b);
    for (int32_t i = 0; i < m->n_gpus; i++)
        for (int32_t k = 0; k < m->n_gpus; k++)
            if (i != k)
                link_text(m, i, k, b);
    choice_text(m, b);
    for (int32_t i = 0; i < m->n_findings; i++)
        sl_buf_printf(b, "%-10s %s\n", m->findings[i].bad ? "PROBLEM" : "note",
                      m->findings[i].text);
    if (m->n_findings == 0)
        sl_buf_puts(b, "no problems found\n");
}

/* ---------------------------------------------------------------- JSON */

static void key(struct sl_buf *b, bool *first, const char *name)
{
    sl_buf_printf(b, "%s\"%s\": ", *first ? "" : ", ", name);
    *first = false;
}

static void put_text(struct sl_buf *b, bool *first, const char *name, const char *value)
{
    key(b, first, name);
    sl_buf_json_string(b, value, strlen(value));
}

static void put_number(struct sl_buf *b, bool *first, const char *name, double value)
{
    key(b, first, name);
    sl_buf_json_double(b, value);
}

static void put_bool(struct sl_buf *b, bool *first, const char *name, bool value)
{
    key(b, first, name);
    sl_buf_puts(b, value ? "true" : "false");
}

/* null: not measured, not known. */
static void put_rate(struct sl_buf *b, bool *first, const char *name,
                     const struct sl_machine_rate *r)
{
    const double values[2] = {r->measured, r->expected};
    const char *const what[2] = {"measured", "expected"};
    for (int i = 0; i < 2; i++) {
        char full[64];
        snprintf(full, sizeof full, "%s_%s_bytes_per_s", name, what[i]);
        key(b, first, full);
        if (values[i] > 0)
            sl_buf_json_double(b, values[i]);
        else
            sl_buf_puts(b, "null");
    }
}

static void nodes_json(const struct sl_machine *m, struct sl_buf *b)
{
    for (int32_t i = 0; i < m->n_nodes; i++) {
        bool first = true;
        sl_buf_puts(b, i > 0 ? ", {" : "{");
        put_number(b, &first, "id", m->nodes[i].id);
        put_number(b, &first, "bytes", (double)m->nodes[i].n_bytes);
        put_text(b, &first, "processors", m->nodes[i].cpus);
        sl_buf_putc(b, '}');
    }
}

static void nics_json(const struct sl_machine *m, struct sl_buf *b)
{
    for (int32_t i = 0; i < m->n_nics; i++) {
        const struct sl_machine_nic *nic = &m->nics[i];
        bool first = true;
        sl_buf_puts(b, i > 0 ? ", {" : "{");
        put_text(b, &first, "name", nic->name);
        put_text(b, &first, "kind", nic->kind);
        put_bool(b, &first, "up", nic->up);
        put_number(b, &first, "gbit_per_s", nic->gbit_s);
        put_number(b, &first, "node", nic->node);
        sl_buf_putc(b, '}');
    }
}

static void links_json(const struct sl_machine *m, int32_t i, struct sl_buf *b)
{
    const char *comma = "";
    for (int32_t k = 0; k < m->n_gpus; k++) {
        const struct sl_machine_link *l = &m->links[i][k];
        bool first = true;
        if (k == i)
            continue;
        sl_buf_printf(b, "%s{", comma);
        comma = ", ";
        put_number(b, &first, "to", k);
        put_text(b, &first, "kind", l->kind);
        put_bool(b, &first, "peers", l->peers);
        put_rate(b, &first, "copies", &l->rate);
        sl_buf_putc(b, '}');
    }
}

static void gpu_json(const struct sl_machine *m, int32_t i, struct sl_buf *b)
{
    const struct sl_machine_gpu *g = &m->gpus[i];
    bool first = true;
    sl_buf_puts(b, i > 0 ? ", {" : "{");
    put_text(b, &first, "name", g->name);
    put_text(b, &first, "pci", g->pci);
    put_number(b, &first, "node", g->node);
    put_bool(b, &first, "served", g->served);
    put_number(b, &first, "bytes", (double)g->n_bytes);
    put_number(b, &first, "free_bytes", (double)g->free_bytes);
    put_rate(b, &first, "copies", &g->memory);
    put_number(b, &first, "pcie_generation", g->pcie_gen);
    put_number(b, &first, "pcie_lanes", g->pcie_width);
    put_number(b, &first, "pcie_lanes_of", g->pcie_max_width);
    put_rate(b, &first, "from_host", &g->from_host);
    put_rate(b, &first, "to_host", &g->to_host);
    put_number(b, &first, "nvlinks", g->n_nvlinks);
    put_number(b, &first, "nvlink_bytes_per_s", g->nvlink_bytes_s);
    put_bool(b, &first, "ecc", g->ecc_on);
    put_number(b, &first, "uncorrected_errors", (double)g->n_uncorrected);
    put_bool(b, &first, "row_remap_pending", g->remap_pending);
    put_bool(b, &first, "row_remap_failed", g->remap_failed);
    put_bool(b, &first, "mig", g->mig_on);
    put_bool(b, &first, "slowed", g->slowed);
    key(b, &first, "links");
    sl_buf_putc(b, '[');
    links_json(m, i, b);
    sl_buf_puts(b, "]}");
}

void sl_machine_json(const struct sl_machine *m, struct sl_buf *b)
{
    bool first = true;
    sl_buf_putc(b, '{');
    put_text(b, &first, "processor", m->cpu);
    put_text(b, &first, "isa", m->isa);
    put_number(b, &first, "threads", m->n_cpus);
    put_number(b, &first, "ram_bytes", (double)m->ram_bytes);
    put_number(b, &first, "ram_bytes_of", (double)m->total_bytes);
    put_rate(b, &first, "reads", &m->ram);
    key(b, &first, "nodes");
    sl_buf_putc(b, '[');
    nodes_json(m, b);
    sl_buf_puts(b, "], \"network\": [");
    nics_json(m, b);
    sl_buf_putc(b, ']');
    put_text(b, &first, "driver", m->driver);
    put_text(b, &first, "cuda", m->cuda);
    sl_buf_puts(b, ", \"gpus\": [");
    for (int32_t i = 0; i < m->n_gpus; i++)
        gpu_json(m, i, b);
    sl_buf_puts(b, "], \"findings\": [");
    for (int32_t i = 0; i < m->n_findings; i++) {
        bool first_key = true;
        sl_buf_puts(b, i > 0 ? ", {" : "{");
        put_bool(b, &first_key, "problem", m->findings[i].bad);
        put_text(b, &first_key, "text", m->findings[i].text);
        sl_buf_putc(b, '}');
    }
    sl_buf_puts(b, "]}\n");
}
