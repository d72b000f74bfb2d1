/* SPDX-License-Identifier: MIT
 * ranks.h - a model that several parts of it compute: ranks of tensor parallelism, stages of
 * pipeline parallelism, which have some of its layers each, or the ranks of each stage. All are
 * called ranks here; rank 0 is the first of the last stage (sl_model_part). Each has its own
 * backend, weights and part of every page; stages on CPUs compute one after the other on the same
 * backends. Ranks are threads of this process, or each is
 * a process (nnodes): then the others run sl_rank_follow, and only rank 0 is here. Backends are
 * CPUs, or a GPU each: then what runs them all is engine/device_ranks.h.
 *
 * Rank 0 is the loader's: its model, backend and run are as those of a model that is alone, and it
 * gives the logits. Here are the other ranks, what all share, and the step of all. There is one
 * scheduler: pages have the same ids on all ranks, and all get the same batch.
 */
#ifndef SL_ENGINE_RANKS_H
#define SL_ENGINE_RANKS_H

#include "dist/leader.h"
#include "engine/host_runner.h"
#include "models/model.h"

struct sl_memory_plan;
struct sl_ranks;
struct sl_team;

/* Before a backend is chosen: the model becomes rank 0 of cfg->tensor_parallel_size, of
 * cfg->pipeline_parallel_size, or of both, or the error says why not. */
SL_MUST_CHECK int sl_ranks_divide(struct sl_model *model, const struct sl_engine_config *cfg,
                                  struct sl_error *err);
/* Opens the other ranks as rank 0 was opened, and loads the weights of all at once, each on its own
 * threads; processes are listened for from here on. draft: reads hidden rows of the model, or NULL.
 * The checkpoint outlives them. */
SL_MUST_CHECK int sl_ranks_load(const struct sl_ckpt *ckpt, const struct sl_engine_config *cfg,
                                const struct sl_memory_plan *plan, struct sl_model *model,
                                const struct sl_model *draft, struct sl_backend *backend,
                                struct sl_ranks **out, struct sl_error *err);
/* Where a rank loads experts beside its steps, by what cfg says of it; *out NULL: it never does. */
struct sl_eplb_config;
SL_MUST_CHECK int sl_ranks_beside(const struct sl_model *model, const struct sl_engine_config *cfg,
                                  struct sl_eplb_config *eplb, struct sl_backend **out,
                                  struct sl_error *err);
void sl_ranks_destroy(struct sl_ranks *r); /* before rank 0's model; NULL is fine */
/* What ranks meet in, for the configuration of rank 0's run. */
struct sl_comm *sl_ranks_comm(const struct sl_ranks *r);
/* Where rank 0 computes its parts; NULL: anywhere. */
void sl_ranks_rooms(const struct sl_ranks *r, void *rooms[2]);
int sl_ranks_stages(const struct sl_ranks *r);         /* 1: ranks are not of stages */
bool sl_ranks_are_processes(const struct sl_ranks *r); /* NULL: no */
/* Pages and a run for each other rank, like rank 0's; processes are waited for. */
SL_MUST_CHECK int sl_ranks_start(struct sl_ranks *r, const struct sl_run_config *cfg,
                                 const struct sl_memory_plan *plan, struct sl_run *run,
                                 struct sl_error *err);
void sl_ranks_stop(struct sl_ranks *r); /* gives up pages and runs; NULL is fine */
/* Of devices: how many there are, the threads on which those of a stage are called (NULL: it has
 * one), and each one's backend and run, rank 0's among them. */
int sl_ranks_count(const struct sl_ranks *r);
struct sl_team *sl_ranks_team(const struct sl_ranks *r);
struct sl_run *sl_ranks_run(const struct sl_ranks *r, int rank, struct sl_backend **backend);
/* Of CPUs: the model of a host runner: m is as for rank 0 alone, and becomes that of all ranks. */
void sl_ranks_use(struct sl_ranks *r, struct sl_host_model *m);

#endif
