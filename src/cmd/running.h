/* SPDX-License-Identifier: MIT
 * running.h - the `sluice serve` processes of this machine and where they listen, from /proc: there
 * is no file that a killed server could leave behind. Those of other users are seen by root only.
 */
#ifndef SL_CMD_RUNNING_H
#define SL_CMD_RUNNING_H

#include "base/err.h"

#include <sys/types.h>

struct sl_running {
    pid_t pid;
    char url[160];         /* of its first listener, as a client writes it; "": it has none yet */
    uint64_t memory_bytes; /* resident */
    double up_s;
};

/* Fills out[0..max) in the order of their start, and returns how many there are. */
int sl_running_find(struct sl_running *out, int max);

/* The one that `target` means: a process id, a port, a URL, or NULL where there is only one. Errors
 * list what there is. */
SL_MUST_CHECK int sl_running_pick(const char *target, struct sl_running *out, struct sl_error *err);

#endif
