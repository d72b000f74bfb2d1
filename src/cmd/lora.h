/* SPDX-License-Identifier: MIT
 * lora.h - adapters from the command line: --lora of run, chat and bench, --lora-modules of bench
 * and serve.
 */
#ifndef SL_CMD_LORA_H
#define SL_CMD_LORA_H

#include "cmd/flags.h"
#include "sluice.h"

struct sl_cli_base { /* a model that adapters belong to */
    struct sl_engine *eng;
    const char *const *names; /* of the model; without any its path is its name */
    int32_t n_names;
};

struct sl_cli_lora {
    const char *path, *scaled; /* one adapter for all requests */
};

extern const struct sl_flag sl_flags_lora[]; /* base: struct sl_cli_lora */
extern const int sl_n_flags_lora;

/* Before the engine is opened: adapters are needed, of any rank unless cfg says. */
void sl_cli_lora_enable(const struct sl_cli_lora *l, struct sl_engine_config *cfg);
/* Loads it. *out NULL: none was given. */
SL_MUST_CHECK int sl_cli_lora_open(const struct sl_cli_lora *l, struct sl_engine *eng,
                                   struct sl_adapter **out, float *scale, struct sl_error *err);

/* Before a model is loaded: can --lora-modules be read, and are the folders there? */
SL_MUST_CHECK int sl_cli_lora_modules_check(const struct sl_flag_list *modules,
                                            struct sl_error *err);
/* Loads --lora-modules: "name=path", or an object with name, path and, where there are several
 * models, base_model_name; each under its name, which goes to names[i] (sl_free it) and must be no
 * model's. */
SL_MUST_CHECK int sl_cli_lora_modules(const struct sl_flag_list *modules,
                                      const struct sl_cli_base *bases, int n_bases,
                                      char *names[SL_FLAG_LIST_MAX], struct sl_error *err);

#endif
