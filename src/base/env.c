/* SPDX-License-Identifier: MIT */
#include "base/env.h"

#include <stdlib.h>

void sl_env_offer(const char *name, const char *value)
{
    (void)setenv(name, value, 0); /* out of memory: the library has its own way */
}
