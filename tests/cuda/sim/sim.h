/* SPDX-License-Identifier: MIT
 * sim.h - a CUDA device simulated on the CPU, for testing kernels where there is no GPU.
 *
 * Every CUDA thread of a block is a fiber; one runs at a time and it changes hands only inside
 * barriers, warp collectives, atomics and fences, in an order drawn from a seed. What a device
 * leaves undefined is made to show: memory starts as 0xff bytes between red zones, asynchronous
 * copies poison their target until they land, some blocks of a kernel run up to their sl_grid_wait
 * before the kernel ahead of it has run, and streams run nothing before something waits for them.
 * Kernels of several devices are in progress together once one of them looks for what another
 * writes (sl_peer_pause).
 * What cannot be legal ends the process with a message that starts with "simulator:".
 *
 * Environment: SL_SIM_SEED (default 1), SL_SIM_SMS (multiprocessors, default 6), SL_SIM_EAGER=1
 * (streams run at once), SL_SIM_LEAKS=0 (memory left at the end is no failure).
 */
#ifndef SL_SIM_H
#define SL_SIM_H

#include <stddef.h>
#include <stdint.h>

void sl_sim_seed(uint64_t seed);
uint64_t sl_sim_random(); /* from the seed; for tests that want to draw too */
void sl_sim_set_sms(int n);
void sl_sim_set_devices(int n);  /* at most 8 */
void sl_sim_set_peers(bool can); /* whether devices can reach each other's memory; default true */
/* How many nanoseconds of the devices' clock pass in one of the host's, default 1. */
void sl_sim_set_clock(uint64_t times);
void sl_sim_set_memory(size_t total); /* device memory, default 8 GiB */
void sl_sim_set_eager(bool eager);    /* streams run what they are given at once */

/* The nth of these calls from now fails (1: the next), once; 0: none. */
void sl_sim_fail_malloc(int nth);
void sl_sim_fail_malloc_host(int nth);
void sl_sim_fail_pin(int nth);
void sl_sim_fail_launch(int nth);
/* The device breaks while it runs the nth kernel from now: that one writes nothing, and every call
 * from then on fails with cudaErrorIllegalAddress, until sl_sim_repair. */
void sl_sim_break_at(int nth);
void sl_sim_repair();

struct sl_sim_counts {
    uint64_t kernels, blocks, copies, memsets, mallocs, host_mallocs, syncs, graph_launches;
    size_t bytes, host_bytes; /* allocated now */
};
struct sl_sim_counts sl_sim_get_counts();

/* Whether [p, p + n) lies in one allocation of device memory. */
bool sl_sim_is_device(const void *p, size_t n);
/* Reads device memory as it is now, without waiting for anything: for checks of tests. */
void sl_sim_peek(void *dst, const void *src, size_t n);

#endif
