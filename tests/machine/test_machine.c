/* SPDX-License-Identifier: MIT
 * The machine's facts from files of a kernel that never was and from a management library that says
 * what a test tells it to; what is found wrong; and the report, read again by a JSON parser.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/sys.h"
#include "machine/machine.h"
#include "machine/nvml.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];
    struct sl_error err;
    snprintf(full, sizeof full, "%s%s", root, path);
    assert_int_equal(sl_make_parent(full, &err), 0);
    assert_int_equal(sl_write_file(full, text, strlen(text), &err), 0);
}

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/sluice-machine-XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    struct sl_error err;
    (void)state;
    return sl_remove_tree(root, &err);
}

static void put_host(void)
{
    put("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: X\nmodel name\t: Big \x1b[31mIron 9000\n");
    put("/proc/meminfo", "MemTotal:       268435456 kB\nMemFree: 1 kB\n");
    put("/sys/devices/system/node/possible", "0-1\n");
    put("/sys/devices/system/node/node10/cpulist", "64-127\n");
    put("/sys/devices/system/node/node10/meminfo", "Node 10 MemTotal:       134217728 kB\n");
    put("/sys/devices/system/node/node2/cpulist", "0-63\n");
    put("/sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:       134217728 kB\n");
    put("/sys/class/net/lo/operstate", "unknown\n"); /* has no device */
    put("/sys/class/net/ens5/operstate", "up\n");
    put("/sys/class/net/ens5/speed", "100000\n");
    put("/sys/class/net/ens5/device/numa_node", "2\n");
    put("/sys/class/net/ens6/operstate", "down\n");
    put("/sys/class/net/ens6/speed", "-1\n");
    put("/sys/class/net/ens6/device/numa_node", "-1\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    put("/sys/class/infiniband/mlx5_0/device/numa_node", "10\n");
}

static const struct sl_machine_nic *nic_of(const struct sl_machine *m, const char *name)
{
    for (int32_t i = 0; i < m->n_nics; i++)
        if (strcmp(m->nics[i].name, name) == 0)
            return &m->nics[i];
    return NULL;
}

static void the_host_is_read_from_the_kernels_files(void **state)
{
    static struct sl_machine m;
    (void)state;
    memset(&m, 0, sizeof m);
    put_host();
    sl_machine_host(&m, root);
    assert_non_null(strstr(m.cpu, "Iron 9000"));
    assert_null(strchr(m.cpu, '\x1b')); /* a terminal gets it */
    assert_true(m.total_bytes == 268435456ull * 1024);
    assert_int_equal(m.n_nodes, 2);
    assert_int_equal(m.nodes[0].id, 2); /* by number, whatever the folder's order */
    assert_string_equal(m.nodes[0].cpus, "0-63");
    assert_int_equal(m.nodes[1].id, 10);
    assert_true(m.nodes[1].n_bytes == 134217728ull * 1024);
    assert_int_equal(m.n_nics, 3);
    const struct sl_machine_nic *a = nic_of(&m, "ens5"), *b = nic_of(&m, "ens6"),
                                *c = nic_of(&m, "mlx5_0");
    assert_true(a != NULL && b != NULL && c != NULL && nic_of(&m, "lo") == NULL);
    assert_true(a->up && a->gbit_s == 100 && a->node == 2 && strcmp(a->kind, "ethernet") == 0);
    assert_true(!b->up && b->gbit_s == 0 && b->node == -1);
    assert_true(c->up && c->gbit_s == 400 && c->node == 10 && strcmp(c->kind, "infiniband") == 0);
}

static void a_root_without_files_is_no_error(void **state)
{
    static struct sl_machine m;
    (void)state;
    memset(&m, 0, sizeof m);
    sl_machine_host(&m, "/nowhere");
    sl_machine_judge(&m, "/nowhere");
    assert_string_equal(m.cpu, "");
    assert_true(m.n_nodes == 0 && m.n_nics == 0 && m.n_gpus == 0 && m.n_cpus >= 1);
    for (int32_t i = 0; i < m.n_findings; i++)
        assert_null(strstr(m.findings[i].text, "GPU"));
}

/* ---------------------------------------------------------------- a library */

static struct fake_gpu {
    unsigned width, max_width, ecc, pending, failed, mig, links;
    unsigned long long errors, reasons, free_mb;
} fakes[2];
static unsigned no_peers; /* pairs are no peers */

static struct fake_gpu *fake(sl_nvml_device d)
{
    return (struct fake_gpu *)(void *)d;
}

static int fake_driver(char *out, unsigned n)
{
    snprintf(out, n, "580.1");
    return 0;
}

static int fake_cuda(int *out)
{
    *out = 13010;
    return 0;
}

static int fake_count(unsigned *out)
{
    *out = 3; /* the third cannot be opened */
    return 0;
}

static int fake_by_index(unsigned i, sl_nvml_device *out)
{
    if (i >= SL_COUNT(fakes))
        return 15; /* lost */
    *out = (sl_nvml_device)(void *)&fakes[i];
    return 0;
}

static int fake_name(sl_nvml_device d, char *out, unsigned n)
{
    (void)d;
    snprintf(out, n, "Imagined H100");
    return 0;
}

static int fake_memory(sl_nvml_device d, struct sl_nvml_memory *out)
{
    out->total = 80000000000ull;
    out->free = fake(d)->free_mb * 1000000;
    return 0;
}

static int fake_pci(sl_nvml_device d, struct sl_nvml_pci *out)
{
    out->domain = 0;
    out->bus = d == (sl_nvml_device)(void *)&fakes[0] ? 0x1b : 0xc3;
    return 0;
}

static int fake_gen(sl_nvml_device d, unsigned *out)
{
    (void)d;
    *out = 5;
    return 0;
}

static int fake_width(sl_nvml_device d, unsigned *out)
{
    *out = fake(d)->width;
    return 0;
}

static int fake_max_width(sl_nvml_device d, unsigned *out)
{
    *out = fake(d)->max_width;
    return 0;
}

static int fake_clock(sl_nvml_device d, unsigned type, unsigned *out)
{
    (void)d;
    *out = type == SL_NVML_CLOCK_MEM ? 2619 : 0;
    return 0;
}

static int fake_bus(sl_nvml_device d, unsigned *out)
{
    (void)d;
    *out = 5120;
    return 0;
}

static int fake_ecc(sl_nvml_device d, unsigned *now, unsigned *pending)
{
    *now = *pending = fake(d)->ecc;
    return 0;
}

static int fake_errors(sl_nvml_device d, unsigned type, unsigned counter, unsigned long long *out)
{
    *out = type == SL_NVML_UNCORRECTED && counter == SL_NVML_VOLATILE ? fake(d)->errors : 0;
    return 0;
}

static int fake_remapped(sl_nvml_device d, unsigned *corrected, unsigned *uncorrected,
                         unsigned *pending, unsigned *failed)
{
    *corrected = *uncorrected = 0;
    *pending = fake(d)->pending;
    *failed = fake(d)->failed;
    return 0;
}

static int fake_mig(sl_nvml_device d, unsigned *now, unsigned *pending)
{
    *now = *pending = fake(d)->mig;
    return 0;
}

static int fake_slowed(sl_nvml_device d, unsigned long long *out)
{
    *out = fake(d)->reasons;
    return 0;
}

static int fake_link_up(sl_nvml_device d, unsigned link, unsigned *out)
{
    *out = link < fake(d)->links;
    return link < 18 ? 0 : 2;
}

static int fake_fields(sl_nvml_device d, int n, struct sl_nvml_field *f)
{
    (void)d;
    for (int i = 0; i < n; i++) {
        f[i].status = f[i].id == SL_NVML_FIELD_LINK_MB_S ? 0 : 3;
        f[i].value.ui = 26562;
    }
    return 0;
}

static int fake_common(sl_nvml_device a, sl_nvml_device b, unsigned *out)
{
    (void)a;
    (void)b;
    *out = 50;
    return 0;
}

static int fake_p2p(sl_nvml_device a, sl_nvml_device b, unsigned cap, unsigned *out)
{
    (void)a;
    (void)cap;
    *out = no_peers || fake(b)->links == 0 ? 3 : 0;
    return 0;
}

static const struct sl_nvml library = {
    .driver = fake_driver,
    .cuda = fake_cuda,
    .count = fake_count,
    .by_index = fake_by_index,
    .name = fake_name,
    .memory = fake_memory,
    .pci = fake_pci,
    .pcie_gen = fake_gen,
    .pcie_width = fake_width,
    .pcie_max_width = fake_max_width,
    .max_clock = fake_clock,
    .bus_width = fake_bus,
    .ecc = fake_ecc,
    .ecc_errors = fake_errors,
    .remapped = fake_remapped,
    .mig = fake_mig,
    .slowed = fake_slowed,
    .link_up = fake_link_up,
    .fields = fake_fields,
    .common = fake_common,
    .p2p = fake_p2p,
};

static struct sl_machine *two_gpus(void)
{
    static struct sl_machine m;
    memset(&m, 0, sizeof m);
    for (size_t i = 0; i < SL_COUNT(fakes); i++)
        fakes[i] = (struct fake_gpu){
            .width = 16, .max_width = 16, .ecc = 1, .links = 18, .free_mb = 79000};
    no_peers = 0;
    return &m;
}

static void look(struct sl_machine *m)
{
    sl_machine_gpus(m, &library, root);
    for (int32_t i = 0; i < m->n_gpus; i++)
        m->gpus[i].served = true;
}

/* The findings with this text; `bad` must be what is said of them. */
static int count(const struct sl_machine *m, const char *text, bool bad)
{
    int n = 0;
    for (int32_t i = 0; i < m->n_findings; i++)
        if (strstr(m->findings[i].text, text) != NULL) {
            assert_int_equal(m->findings[i].bad, bad);
            n++;
        }
    return n;
}

static void gpus_and_links_are_read_from_the_library(void **state)
{
    struct sl_machine *m = two_gpus();
    (void)state;
    put("/sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n");
    look(m);
    assert_int_equal(m->n_gpus, 2);
    assert_string_equal(m->cuda, "13.1");
    const struct sl_machine_gpu *g = &m->gpus[0];
    assert_string_equal(g->pci, "0000:1b:00.0");
    assert_int_equal(g->node, 1);
    assert_int_equal(m->gpus[1].node, -1);
    assert_true(g->memory.expected > 3.35e12 && g->memory.expected < 3.36e12);
    assert_true(g->to_host.expected > 63e9 && g->to_host.expected < 63.1e9);
    assert_int_equal(g->n_nvlinks, 18);
    const struct sl_machine_link *l = &m->links[0][1];
    assert_true(l->peers && strcmp(l->kind, "nvlink") == 0);
    assert_true(l->rate.expected > 478e9 && l->rate.expected < 479e9);
    sl_machine_judge(m, root);
    assert_int_equal(count(m, "GPU", false), 0);
}

static void what_is_wrong_is_found(void **state)
{
    static const struct {
        struct fake_gpu second;
        const char *text;
        bool bad;
    } cases[] = {
        {{.width = 8, .max_width = 16, .ecc = 1, .links = 18, .free_mb = 79000},
         "8 of 16 lanes",
         true},
        {{.width = 16, .max_width = 16, .ecc = 0, .links = 18, .free_mb = 79000},
         "ECC is off",
         true},
        {{.width = 16, .max_width = 16, .ecc = 1, .links = 18, .errors = 7, .free_mb = 79000},
         "7 memory errors",
         true},
        {{.width = 16, .max_width = 16, .ecc = 1, .links = 18, .pending = 1, .free_mb = 79000},
         "at the next reset",
         true},
        {{.width = 16, .max_width = 16, .ecc = 1, .links = 18, .failed = 1, .free_mb = 79000},
         "replace the card",
         true},
        {{.width = 16, .max_width = 16, .ecc = 1, .links = 18, .reasons = 0x40, .free_mb = 79000},
         "heat or power",
         true},
        {{.width = 16, .max_width = 16, .ecc = 1, .links = 18, .mig = 1, .free_mb = 79000},
         "MIG",
         false},
        {{.width = 16, .max_width = 16, .ecc = 1, .links = 18, .free_mb = 40000},
         "40.0 of 80.0 GB are free",
         false},
        {{.width = 16, .max_width = 16, .ecc = 1, .links = 0, .free_mb = 79000},
         "cannot be ranks",
         false},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_machine *m = two_gpus();
        fakes[1] = cases[i].second;
        look(m);
        sl_machine_judge(m, root);
        assert_int_equal(count(m, cases[i].text, cases[i].bad), 1);
        assert_int_equal(count(m, "GPU 1", cases[i].bad), 1); /* and nothing else of it */
    }
}

static void what_is_slower_than_it_should_be_is_found(void **state)
{
    struct sl_machine *m = two_gpus();
    (void)state;
    look(m);
    m->gpus[0].memory.measured = 0.79 * m->gpus[0].memory.expected;
    m->gpus[1].memory.measured = 0.81 * m->gpus[1].memory.expected;
    m->gpus[1].to_host.measured = 0.69 * m->gpus[1].to_host.expected;
    m->links[1][0].rate.measured = 0.5 * m->links[1][0].rate.expected;
    sl_machine_judge(m, root);
    assert_int_equal(count(m, "GPU 0: copies in its memory", true), 1);
    assert_int_equal(count(m, "GPU 1: copies in its memory", true), 0);
    assert_int_equal(count(m, "GPU 1: copies to pinned", true), 1);
    assert_int_equal(count(m, "GPU 1 to GPU 0", true), 1);
}

static void a_gpu_without_a_driver_is_found(void **state)
{
    static struct sl_machine m;
    (void)state;
    memset(&m, 0, sizeof m);
    put("/sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:1b:00.0/class", "0x030200\n");
    put("/sys/bus/pci/devices/0000:1c:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:1c:00.0/class", "0x068000\n"); /* a switch of links */
    sl_machine_judge(&m, root);
    assert_int_equal(count(&m, "1 NVIDIA GPU without a driver", true), 1);
}

/* ---------------------------------------------------------------- the report */

static void the_report_says_what_was_found(void **state)
{
    struct sl_machine *m = two_gpus();
    struct sl_buf b = {0};
    (void)state;
    put_host();
    sl_machine_host(m, root);
    fakes[1].ecc = 0;
    look(m);
    m->links[0][1].rate.measured = 400e9;
    sl_machine_judge(m, root);
    sl_machine_text(m, &b);
    assert_true(sl_buf_ok(&b));
    assert_non_null(strstr(b.data, "GPU 0 to GPU 1: nvlink, peers; copies 400.0 of 478.1 GB/s"));
    assert_non_null(strstr(b.data, "PROBLEM    GPU 1: ECC is off"));
    sl_buf_clear(&b);
    sl_machine_json(m, &b);
    json_t *o = json_loads(b.data, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    const json_t *gpu = json_array_get(json_object_get(o, "gpus"), 0);
    const json_t *link = json_array_get(json_object_get(gpu, "links"), 0);
    assert_int_equal(json_array_size(json_object_get(o, "gpus")), 2);
    assert_int_equal(json_array_size(json_object_get(o, "nodes")), 2);
    assert_int_equal(json_integer_value(json_object_get(link, "to")), 1);
    assert_true(json_number_value(json_object_get(link, "copies_measured_bytes_per_s")) == 400e9);
    assert_true(json_is_null(json_object_get(gpu, "to_host_measured_bytes_per_s")));
    assert_true(json_array_size(json_object_get(o, "findings")) >= 1);
    json_decref(o);
    sl_buf_deinit(&b);
}

static void memory_is_measured(void **state)
{
    static struct sl_machine m;
    (void)state;
    memset(&m, 0, sizeof m);
    m.n_cpus = 1;
    sl_machine_measure(&m);
    assert_true(m.ram.measured > 1e8 && m.ram.measured < 1e13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_host_is_read_from_the_kernels_files, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_root_without_files_is_no_error, make_root, remove_root),
        cmocka_unit_test_setup_teardown(gpus_and_links_are_read_from_the_library, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_found, make_root, remove_root),
        cmocka_unit_test_setup_teardown(what_is_slower_than_it_should_be_is_found, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_gpu_without_a_driver_is_found, make_root, remove_root),
        cmocka_unit_test_setup_teardown(the_report_says_what_was_found, make_root, remove_root),
        cmocka_unit_test(memory_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
