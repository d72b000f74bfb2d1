/* SPDX-License-Identifier: MIT
 * models.h - the models of `sluice serve`: one, or several that share memory, each under a name.
 *
 *   serve MODEL FLAGS                       one model
 *   serve MODEL NAME=MODEL ... FLAGS        several; FLAGS are for all of them
 *   ... --for NAME FLAGS --for NAME FLAGS   what differs for one of them
 */
#ifndef SL_CMD_MODELS_H
#define SL_CMD_MODELS_H

#include "cmd/lora.h"
#include "cmd/model.h"

#define SL_CLI_MAX_MODELS 16

struct sl_cli_served {
    struct sl_cli_model found;
    char *own_name;       /* the heap's; NULL: shown by another one */
    const char *names[1]; /* of `model`, where it has a name but its path */
    struct sl_engine_config cfg;
    struct sl_engine *eng;
};

struct sl_cli_served_models {
    struct sl_cli_served all[SL_CLI_MAX_MODELS];
    int n;                    /* at least 1 */
    bool replicas;            /* of one model */
    struct sl_shared *shared; /* NULL: there is one model */
    struct sl_cli_base bases[SL_CLI_MAX_MODELS];
};

/* Where the flags of single models begin in argv; argc without any. */
int sl_cli_models_split(int argc, char **argv);
/* Are the flags of single models well formed? SL_FLAGS_HELP: --help was among them. Needs no model,
 * so that it can be asked before anything else happens. */
SL_MUST_CHECK int sl_cli_models_check(int argc, char **argv, int first_for, struct sl_error *err);
/* given: [n_given] MODEL or NAME=MODEL. base: the flags for all; argv from first_for on says what
 * differs. Finds the models and makes their configurations. */
SL_MUST_CHECK int sl_cli_models_read(struct sl_cli_served_models *m, const char *const *given,
                                     int n_given, const struct sl_engine_config *base,
                                     const struct sl_hub_config *hub, int argc, char **argv,
                                     int first_for, struct sl_error *err);
/* n engines of the one model, instead of one; 0 or 1: as it is. */
SL_MUST_CHECK int sl_cli_models_replicate(struct sl_cli_served_models *m, int32_t n,
                                          struct sl_error *err);
/* Starts the engines. An error names the model. */
SL_MUST_CHECK int sl_cli_models_open(struct sl_cli_served_models *m, struct sl_error *err);
void sl_cli_models_close(struct sl_cli_served_models *m);

#endif
