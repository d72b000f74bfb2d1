/* SPDX-License-Identifier: MIT
 * process.h - what the kernel says about this process. Any thread.
 */
#ifndef SL_SERVER_PROCESS_H
#define SL_SERVER_PROCESS_H

#include <stdint.h>

struct sl_process {
    double cpu_s;
    uint64_t virtual_bytes, resident_bytes; /* 0: not known */
    uint64_t n_fds, max_fds;
};

void sl_process_read(struct sl_process *out);

#endif
