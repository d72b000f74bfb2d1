/* SPDX-License-Identifier: MIT
 * manual.h - the manual page and shell completions of all commands, on stdout. Exit statuses.
 */
#ifndef SL_CMD_MANUAL_H
#define SL_CMD_MANUAL_H

#include "cmd/flags.h"

int sl_manual(const struct sl_command *const *commands, size_t n);
int sl_completion(const struct sl_command *const *commands, size_t n, const char *shell);

#endif
