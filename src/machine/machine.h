/* SPDX-License-Identifier: MIT
 * machine.h - what a machine has, as far as serving cares: processors, memory nodes, GPUs, their
 * links, network interfaces; what is wrong with it; and what its memory and links reach.
 *
 * Facts come from the kernel's files under /sys and /proc and from NVIDIA's management library,
 * which is looked for at run time and only read. Whatever cannot be found out is left out: no
 * function here fails for it.
 */
#ifndef SL_MACHINE_MACHINE_H
#define SL_MACHINE_MACHINE_H

#include "base/buf.h"
#include "base/err.h"

#define SL_MACHINE_NAME 96
#define SL_MAX_GPUS     16
#define SL_MAX_NODES    64
#define SL_MAX_NICS     64
#define SL_MAX_FINDINGS 64

struct sl_machine_node { /* of memory */
    int32_t id;
    uint64_t n_bytes;
    char cpus[SL_MACHINE_NAME]; /* as the kernel writes lists: "0-15,32-47" */
};

struct sl_machine_nic {
    char name[32];
    char kind[16]; /* "ethernet", "infiniband", "roce" */
    double gbit_s; /* 0: not said */
    int32_t node;  /* -1: not said */
    bool up;
};

/* What copies reach, in bytes per second; 0: not measured, or not known. */
struct sl_machine_rate {
    double measured, expected;
};

struct sl_machine_gpu {
    char name[SL_MACHINE_NAME];
    char pci[32]; /* 0000:1b:00.0 */
    int32_t node; /* -1: not said */
    uint64_t n_bytes, free_bytes;
    int32_t pcie_gen, pcie_width, pcie_max_width; /* 0: not said */
    int32_t n_nvlinks;                            /* that are up */
    double nvlink_bytes_s;                        /* of one, in one direction */
    bool ecc_known, ecc_on, mig_on;
    uint64_t n_uncorrected; /* memory errors since the driver was loaded */
    bool remap_pending, remap_failed;
    bool slowed; /* by heat or power, now */
    bool served; /* sluice has kernels for it */
    struct sl_machine_rate memory, from_host, to_host;
};

/* From GPU i to GPU k. */
struct sl_machine_link {
    char kind[16]; /* "nvlink", "pcie", "nodes": through the processors' link; "" if not said */
    bool peers;    /* one can read and write the other's memory */
    struct sl_machine_rate rate;
};

struct sl_machine_finding {
    bool bad; /* else it is worth knowing */
    char text[240];
};

struct sl_machine {
    char cpu[SL_MACHINE_NAME], isa[24];
    int32_t n_cpus;                  /* that this process may use */
    uint64_t ram_bytes, total_bytes; /* for this process, and the machine's */
    struct sl_machine_rate ram;
    int32_t n_nodes, n_nics, n_gpus, n_findings;
    struct sl_machine_node nodes[SL_MAX_NODES];
    struct sl_machine_nic nics[SL_MAX_NICS];
    char driver[32], cuda[16]; /* of NVIDIA, and the newest CUDA that it runs; "": no driver */
    struct sl_machine_gpu gpus[SL_MAX_GPUS];
    struct sl_machine_link links[SL_MAX_GPUS][SL_MAX_GPUS];
    struct sl_machine_finding findings[SL_MAX_FINDINGS];
};

/* host.c. root: "" for this machine; tests have a folder with sys and proc in it. */
void sl_machine_host(struct sl_machine *m, const char *root);
/* nvml.c. GPUs, in the order of their PCI addresses. */
struct sl_nvml;
void sl_machine_gpus(struct sl_machine *m, const struct sl_nvml *nvml, const char *root);
/* measure.c. Which GPUs have kernels here; then copies of some gigabytes: a second or two for each
 * GPU. */
void sl_machine_served(struct sl_machine *m);
void sl_machine_measure(struct sl_machine *m);
/* findings.c. What is wrong, or would surprise. */
void sl_machine_judge(struct sl_machine *m, const char *root);
/* report.c. */
void sl_machine_text(const struct sl_machine *m, struct sl_buf *b);
void sl_machine_json(const struct sl_machine *m, struct sl_buf *b);

/* A line of a file of the kernel, without what follows it; "" if there is none. */
void sl_machine_line(const char *root, const char *path, char *out, size_t n_out);

#endif
