/* SPDX-License-Identifier: MIT
 * gather.h - what ranks on CPUs gather, for operations that read it where it lies.
 */
#ifndef SL_CPU_GATHER_H
#define SL_CPU_GATHER_H

#include "dist/link.h"
#include "ops/ops.h"

int32_t sl_cpu_comm_n_ranks(const struct sl_comm *c);
/* The rows of all ranks where they lie, until this rank gathers again; rows NULL: they are in
 * a->out, a row's part behind that of the rank before. row_bytes: what the parts of a row must add
 * up to, 0: whatever they do. false: a rank is lost. */
bool sl_cpu_gather_parts(const struct sl_op_all_gather *a, size_t row_bytes,
                         struct sl_link_part parts[SL_MAX_RANKS]);

#endif
