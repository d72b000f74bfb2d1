/* SPDX-License-Identifier: MIT
 * model.h - the MODEL of a command line: a path, or a name of the hub that is looked up and, if
 * need be, downloaded with its progress on stderr. Every command that takes a MODEL goes through
 * here.
 */
#ifndef SL_CMD_MODEL_H
#define SL_CMD_MODEL_H

#include "cmd/flags.h"
#include "sluice.h"

struct sl_cli_model { /* zero-initialise */
    struct sl_hub_config hub;
    const char *path; /* for the engine; NULL = the bundled model */
    char *found;
    char *draft; /* the place of a model that drafts for it; NULL: none */
};

extern const struct sl_flag sl_flags_hub[]; /* base: struct sl_hub_config */
extern const int sl_n_flags_hub;

/* Sets m->path from what the user called the model; NULL stays NULL. */
SL_MUST_CHECK int sl_cli_find_model(struct sl_cli_model *m, const char *name, struct sl_error *err);
/* Finds the model that --speculative-model or --speculative-config names, if one does. */
SL_MUST_CHECK int sl_cli_find_draft(struct sl_cli_model *m, struct sl_engine_config *cfg,
                                    struct sl_error *err);
void sl_cli_model_deinit(struct sl_cli_model *m);

#endif
