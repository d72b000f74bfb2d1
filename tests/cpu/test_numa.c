/* SPDX-License-Identifier: MIT
 * Tests of placing threads on the processors of several memory nodes, on invented machines.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cpu/numa.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define OUT "build/testdata/numa"

/* The processors this process may use: an invented machine must be built of these. */
static int own[SL_MAX_THREADS], n_own;

static void put(const char *path, const char *text)
{
    struct sl_error err;
    if (sl_write_file(path, text, strlen(text), &err) != 0)
        fail_msg("%s", err.msg);
}

static void folder(const char *path)
{
    assert_true(mkdir(path, 0777) == 0 || sl_is_folder(path));
}

static void siblings(int cpu, const char *list)
{
    char path[200];
    snprintf(path, sizeof path, OUT "/cpu/cpu%d", cpu);
    folder(path);
    snprintf(path, sizeof path, OUT "/cpu/cpu%d/topology", cpu);
    folder(path);
    snprintf(path, sizeof path, OUT "/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(path, list);
}

static int setup(void **state)
{
    static const char *const folders[] = {"build",           "build/testdata",  OUT,
                                          OUT "/node",       OUT "/node/node0", OUT "/node/node1",
                                          OUT "/node/node3", OUT "/cpu"};
    cpu_set_t set;
    (void)state;
    for (size_t i = 0; i < SL_COUNT(folders); i++)
        folder(folders[i]);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int c = 0; c < CPU_SETSIZE && n_own < SL_MAX_THREADS; c++) {
        if (CPU_ISSET((size_t)c, &set))
            own[n_own++] = c;
    }
    return 0;
}

static void test_real_machine(void **state)
{
    (void)state;
    int cpus[SL_MAX_THREADS];
    int n = sl_numa_place("/sys/devices/system", n_own, cpus);
    assert_in_range(n, 0, 64);
    for (int t = 0; n > 1 && t < n_own; t++) {
        int found = 0;
        for (int i = 0; i < n_own; i++)
            found += own[i] == cpus[t];
        assert_int_equal(found, 1);
    }
    assert_int_equal(sl_numa_place(OUT "/nothing", 1, cpus), 0);
}

/* Nodes of one processor each; a third node has memory only, a fourth one processors of others. */
static void test_two_nodes(void **state)
{
    (void)state;
    int cpus[SL_MAX_THREADS] = {-1, -1, -1};
    char text[64];
    if (n_own < 2) {
        printf("skip: this process may use one processor only\n");
        return;
    }
    snprintf(text, sizeof text, "%d\n", own[1]);
    put(OUT "/node/node0/cpulist", text);
    snprintf(text, sizeof text, "%d,1020-1023\n", own[0]);
    put(OUT "/node/node1/cpulist", text);
    put(OUT "/node/node3/cpulist", "\n");
    assert_int_equal(sl_numa_place(OUT, 2, cpus), 2);
    assert_int_equal(cpus[0], own[1]);
    assert_int_equal(cpus[1], own[0]);
    /* One thread: on the last node by the proportion; more threads than processors: nowhere. */
    assert_int_equal(sl_numa_place(OUT, 1, cpus), 2);
    assert_int_equal(cpus[0], own[0]);
    cpus[0] = -1;
    assert_int_equal(sl_numa_place(OUT, 3, cpus), 1);
    assert_int_equal(cpus[0], -1);
}

static void test_one_node_and_nonsense(void **state)
{
    (void)state;
    int cpus[SL_MAX_THREADS] = {-1};
    put(OUT "/node/node3/cpulist", "\n");
    put(OUT "/node/node1/cpulist", "\n");
    put(OUT "/node/node0/cpulist", "0-1023\n");
    assert_int_equal(sl_numa_place(OUT, 1, cpus), 1);
    static const char *const bad[] = {
        "3-1\n", "0-1024\n", "x\n", "-\n", "1,,2\n", "1-2-3\n", "99999999999999999999\n"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        put(OUT "/node/node0/cpulist", bad[i]);
        assert_int_equal(sl_numa_place(OUT, 1, cpus), 0);
    }
    assert_int_equal(cpus[0], -1);
}

/* Two nodes of two cores with two hardware threads each: whole cores come first. */
static void test_cores_before_siblings(void **state)
{
    (void)state;
    int cpus[SL_MAX_THREADS];
    char text[64];
    if (n_own < 4) {
        printf("skip: needs four processors\n");
        return;
    }
    put(OUT "/node/node3/cpulist", "\n");
    snprintf(text, sizeof text, "%d,%d\n", own[0], own[1]);
    put(OUT "/node/node0/cpulist", text);
    siblings(own[0], text);
    siblings(own[1], text);
    snprintf(text, sizeof text, "%d,%d\n", own[2], own[3]);
    put(OUT "/node/node1/cpulist", text);
    siblings(own[2], text);
    siblings(own[3], text);
    assert_int_equal(sl_numa_place(OUT, 2, cpus), 2);
    assert_int_equal(cpus[0], own[0]);
    assert_int_equal(cpus[1], own[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_machine),
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_one_node_and_nonsense),
        cmocka_unit_test(test_cores_before_siblings),
    };
    return cmocka_run_group_tests_name("numa", tests, setup, NULL);
}
