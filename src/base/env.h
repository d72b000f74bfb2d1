/* SPDX-License-Identifier: MIT
 * env.h - what a library takes from the environment and from nowhere else. Nothing of ours is
 * decided by it.
 */
#ifndef SL_BASE_ENV_H
#define SL_BASE_ENV_H

/* Before the library's first call, and while no other thread reads the environment. What is set
 * there already stays. */
void sl_env_offer(const char *name, const char *value);

#endif
