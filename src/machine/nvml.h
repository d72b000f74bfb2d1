/* SPDX-License-Identifier: MIT
 * nvml.h - the part of NVIDIA's management library that is read here, with our own names and
 * layouts (facts of NVML 12 and 13). The library comes with the driver.
 */
#ifndef SL_MACHINE_NVML_H
#define SL_MACHINE_NVML_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sl_nvml_device_of_driver *sl_nvml_device;

struct sl_nvml_memory {
    unsigned long long total, free, used;
};

struct sl_nvml_pci {
    char short_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

struct sl_nvml_field {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type; /* of the value; 1: unsigned int */
    int status;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
    } value;
};

enum {
    SL_NVML_CLOCK_MEM = 2,
    SL_NVML_UNCORRECTED = 1,
    SL_NVML_VOLATILE = 0, /* since the driver was loaded */
    SL_NVML_FIELD_LINK_MB_S = 90,
    SL_NVML_P2P_READ = 0,
    SL_NVML_P2P_NVLINK = 2,
    SL_NVML_COMMON_NODE = 40, /* a topology level: to here the way stays inside of one node */
    SL_NVML_MAX_LINKS = 36,
};

/* Reasons for lower clocks that are faults: power brake, thermal slowdown of hardware or software.
 */
#define SL_NVML_SLOWED (0x80ull | 0x40ull | 0x20ull | 0x08ull)

/* Result 0 is success everywhere. name, return type and arguments, as dlsym finds them. */
#define SL_NVML_CALLS(X)                                                                          \
    X(init, "nvmlInit_v2", (void))                                                                \
    X(shutdown, "nvmlShutdown", (void))                                                           \
    X(driver, "nvmlSystemGetDriverVersion", (char *out, unsigned n))                              \
    X(cuda, "nvmlSystemGetCudaDriverVersion_v2", (int *out))                                      \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *out))                                            \
    X(by_index, "nvmlDeviceGetHandleByIndex_v2", (unsigned idx, sl_nvml_device *out))             \
    X(name, "nvmlDeviceGetName", (sl_nvml_device d, char *out, unsigned n))                       \
    X(memory, "nvmlDeviceGetMemoryInfo", (sl_nvml_device d, struct sl_nvml_memory * out))         \
    X(pci, "nvmlDeviceGetPciInfo_v3", (sl_nvml_device d, struct sl_nvml_pci * out))               \
    X(pcie_gen, "nvmlDeviceGetMaxPcieLinkGeneration", (sl_nvml_device d, unsigned *out))          \
    X(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth", (sl_nvml_device d, unsigned *out))            \
    X(pcie_max_width, "nvmlDeviceGetMaxPcieLinkWidth", (sl_nvml_device d, unsigned *out))         \
    X(max_clock, "nvmlDeviceGetMaxClockInfo", (sl_nvml_device d, unsigned type, unsigned *out))   \
    X(bus_width, "nvmlDeviceGetMemoryBusWidth", (sl_nvml_device d, unsigned *out))                \
    X(ecc, "nvmlDeviceGetEccMode", (sl_nvml_device d, unsigned *now, unsigned *pending))          \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors",                                                  \
      (sl_nvml_device d, unsigned type, unsigned counter, unsigned long long *out))               \
    X(remapped, "nvmlDeviceGetRemappedRows",                                                      \
      (sl_nvml_device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,           \
       unsigned *failed))                                                                         \
    X(mig, "nvmlDeviceGetMigMode", (sl_nvml_device d, unsigned *now, unsigned *pending))          \
    X(slowed, "nvmlDeviceGetCurrentClocksEventReasons",                                           \
      (sl_nvml_device d, unsigned long long *out))                                                \
    X(link_up, "nvmlDeviceGetNvLinkState", (sl_nvml_device d, unsigned link, unsigned *out))      \
    X(fields, "nvmlDeviceGetFieldValues", (sl_nvml_device d, int n, struct sl_nvml_field *inout)) \
    X(common, "nvmlDeviceGetTopologyCommonAncestor",                                              \
      (sl_nvml_device a, sl_nvml_device b, unsigned *out))                                        \
    X(p2p, "nvmlDeviceGetP2PStatus",                                                              \
      (sl_nvml_device a, sl_nvml_device b, unsigned cap, unsigned *out))

/* A call that a driver does not have is NULL. */
struct sl_nvml {
#define X(field, symbol, args) int(*field) args;
    SL_NVML_CALLS(X)
#undef X
    void *library;
};

/* False: there is no such library, or it cannot start. */
bool sl_nvml_open(struct sl_nvml *n);
void sl_nvml_close(struct sl_nvml *n);

#endif
