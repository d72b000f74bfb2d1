/* SPDX-License-Identifier: MIT
 * constraint.h - what an output must be, from the command line: run, chat and bench share the rows.
 */
#ifndef SL_CMD_CONSTRAINT_H
#define SL_CMD_CONSTRAINT_H

#include "cmd/flags.h"
#include "sluice.h"

struct sl_cli_json_style {
    const char *whitespace;
    bool compact, additional_properties;
};

struct sl_cli_constraint {
    const char *json_schema, *regex, *grammar, *grammar_file;
    struct sl_flag_list choice;
    struct sl_cli_json_style style;
};

extern const struct sl_flag sl_flags_json_style[]; /* base: struct sl_cli_json_style */
extern const int sl_n_flags_json_style;
/* Over what *out says already; its pattern is borrowed. */
SL_MUST_CHECK int sl_cli_json_style(const struct sl_cli_json_style *given,
                                    struct sl_json_style *out, struct sl_error *err);

extern const struct sl_flag sl_flags_constraint[]; /* base: struct sl_cli_constraint */
extern const int sl_n_flags_constraint;

/* At most one of them may be given. *out: NULL if none is; errors name the flag. */
SL_MUST_CHECK int sl_cli_constraint_open(const struct sl_cli_constraint *c, struct sl_engine *eng,
                                         struct sl_constraint **out, struct sl_error *err);
/* Takes "regex: " and the like from the beginning of a message where the flag or the command says
 * it already. */
void sl_cli_drop_kind(struct sl_error *err);

#endif
