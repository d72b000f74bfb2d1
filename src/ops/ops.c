/* SPDX-License-Identifier: MIT */
#include "ops/ops.h"

const char *sl_op_name(enum sl_op op)
{
    static const char *const names[] = {
#define SL_OP(name) #name,
#include "ops/ops.def"
#undef SL_OP
    };
    return (unsigned)op < SL_OP_COUNT ? names[op] : "unknown";
}
