/* SPDX-License-Identifier: MIT
 * help.h - one command's flags as text for people, and in the forms that `sluice man` and `sluice
 * completion` put together: `sluice COMMAND --help=man|bash|zsh|fish`. All from the same rows.
 */
#ifndef SL_CMD_HELP_H
#define SL_CMD_HELP_H

#include "cmd/flags.h"

/* form: what came after "--help=": "all" for every flag, or one of the above; NULL (plain --help):
 * a text that fits a screen. Writes to stdout. */
SL_MUST_CHECK int sl_help_print(const char *form, const struct sl_command *cmd,
                                const struct sl_flag_group *groups, int n_groups,
                                struct sl_error *err);
/* Text as troff shows it literally. */
void sl_help_put_troff(const char *text);

#endif
