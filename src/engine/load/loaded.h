/* SPDX-License-Identifier: MIT
 * loaded.h - what an engine stands on, shared by the files that load it (load.c), tell of it
 * (load_info.c), and give it up and load it again (reload.c). It lives as long as the engine.
 * Loading and ending are the creating thread's; asleep or waking, one thread at a time changes it,
 * while no step runs. Functions that return an int return the first error of what they open or
 * allocate.
 */
#ifndef SL_ENGINE_LOADED_H
#define SL_ENGINE_LOADED_H

#include "base/hash.h"
#include "engine/device_runner.h"
#include "engine/engine.h"
#include "engine/host_runner.h"
#include "engine/load/load_draft.h"
#include "engine/load/load_text.h"
#include "engine/load/memory_plan.h"
#include "engine/load/shared.h"
#include "engine/ranks.h"

/* Everything an engine stands on, torn down in reverse order. */
struct sl_loaded {
    struct sl_loaded *self; /* the engine's: what is loaded anew begins as a copy of it */
    struct sl_ckpt *ckpt;
    struct sl_tokenizer *tokenizer;
    struct sl_template *template;
    struct sl_backend *backend;
    struct sl_backend *host; /* of experts beside a device, or NULL */
    struct sl_model *model;
    struct sl_memory_plan plan;
    uint8_t *kv_pool[SL_MAX_KV_GROUPS];
    struct sl_share *share; /* of the memory of pages; NULL: they are its own */
    uint64_t taken_bytes;   /* told to those that share the machine's memory */
    struct sl_run *run;
    struct sl_load_draft draft; /* a model that drafts, or nothing */
    struct sl_ranks *ranks;     /* the others, where the model is divided; the above are rank 0's */
    struct sl_device_runner *device_runner; /* NULL: the backend computes in the call, */
    struct sl_host_runner *host_runner;     /* and this is the runner */
    struct sl_null_runner null_runner;      /* in place of all of that */
    struct sl_adapters *adapters;           /* the engine's, or NULL */
    struct sl_skip_counts *skip_counts;     /* [2], the backend's; NULL: nobody asked for them */
    char *path;
    struct sl_engine_config cfg; /* to load again with; its strings are ours */
};

/* load.c. Gives up what a model needs to run: pages and activations, and with weights those and the
 * device. */
void sl_loaded_unload(struct sl_loaded *l, bool weights);
/* The i-th of the strings of a configuration that loading reads; NULL behind the last one. */
const char **sl_loaded_config_string(struct sl_engine_config *cfg, size_t i);
/* Task, device, plan and weights of l->ckpt. */
SL_MUST_CHECK int sl_loaded_model(struct sl_loaded *l, const struct sl_engine_config *cfg,
                                  struct sl_error *err);
/* Pages, activations and the runner. */
SL_MUST_CHECK int sl_loaded_run(struct sl_loaded *l, struct sl_error *err);
void sl_loaded_runner(const struct sl_loaded *l, struct sl_runner *r);

/* load_info.c */
SL_MUST_CHECK int sl_load_sampling(const struct sl_ckpt *ckpt, struct sl_sampling *s,
                                   struct sl_error *err);
void sl_loaded_info(const struct sl_loaded *l, struct sl_model_info *info);
void sl_loaded_null_info(const struct sl_loaded *l, const struct sl_engine_config *cfg,
                         struct sl_model_info *info);
/* Names the model by its content, and the layout of its pages. */
struct sl_hash128 sl_loaded_kv_root(const struct sl_loaded *l);
/* And all else that the bytes of a page depend on. */
struct sl_hash128 sl_loaded_page_root(const struct sl_loaded *l,
                                      const struct sl_engine_config *cfg);

/* reload.c. Keeps the configuration to load again with; park and unpark are the engine's
 * (engine.h). */
SL_MUST_CHECK int sl_loaded_keep_config(struct sl_loaded *l, const struct sl_engine_config *cfg,
                                        struct sl_error *err);
int sl_loaded_park(void *user, int level, struct sl_error *err);
int sl_loaded_unpark(void *user, const char *path, struct sl_runner *runner, struct sl_error *err);

#endif
