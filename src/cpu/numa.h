/* SPDX-License-Identifier: MIT
 * numa.h - which processor each thread should stay on, on a machine of several memory nodes.
 */
#ifndef SL_CPU_NUMA_H
#define SL_CPU_NUMA_H

/* Places n_threads threads on processors that this process may use: spread over the nodes in
 * proportion to their processors, in blocks (so neighbouring pieces of a job share a node), a whole
 * core each as long as there are any. Reads the system's description under root
 * ("/sys/devices/system"). Returns how many nodes have such processors; cpus[n_threads] is filled
 * only if there are several and no more threads than processors, else 0 or 1 comes back. */
int sl_numa_place(const char *root, int n_threads, int *cpus);

#endif
