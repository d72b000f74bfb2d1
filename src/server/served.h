/* SPDX-License-Identifier: MIT
 * served.h - the models of a server: each an engine with its names, sampling defaults and answer
 * formats, and which of them a request means.
 *
 * Made when the server starts, constant while it serves; any thread. The engines are borrowed.
 */
#ifndef SL_SERVER_SERVED_H
#define SL_SERVER_SERVED_H

#include "server/formats.h"
#include "server/http/json_in.h"
#include "server/server.h"

struct sl_server;
struct sl_kv_publisher;

struct sl_served {
    struct sl_engine *eng;
    const char *name;         /* the first one, which is shown */
    const char *const *names; /* [n_names] what `model` may say besides; may be none */
    int32_t n_names;
    char *path;                  /* of the model, absolute; NULL: bundled */
    char own[256];               /* the name where none was given: that of the folder or file */
    const char *label;           /* its name in figures: of a replica NAME@RANK */
    char replica[280];           /* that, or nothing */
    struct sl_sampling defaults; /* the model's sampling values */
    struct sl_formats formats;   /* how its answers are read */
    struct sl_kv_publisher *kv_publisher; /* NULL: none */
};

SL_MUST_CHECK int sl_served_init(struct sl_served *m, const struct sl_server_config *cfg,
                                 struct sl_engine *eng, const char *const *names, int32_t n_names,
                                 struct sl_error *err);
void sl_served_deinit(struct sl_served *m);

int32_t sl_served_n_names(const struct sl_served *m); /* at least 1 */
const char *sl_served_name_at(const struct sl_served *m, int32_t i);
/* Is it one of the model's names? Then *name is that name, the model's. Besides the names that are
 * shown, a model answers to the last one or two parts of its path and of a name ("Qwen3-0.6B" and
 * "Qwen/Qwen3-0.6B"), with and without .gguf, and to the path it was given as. */
bool sl_served_has_name(const struct sl_served *m, const char *given, const char **name);
bool sl_served_shows(const struct sl_served *m, const char *given); /* one of the names shown */
/* The model a name stands for: a name that is shown, one of an adapter, or one that only one model
 * answers to; of replicas the first one, or that of a label. NULL: none. */
struct sl_served *sl_served_find(const struct sl_server *s, const char *given);
/* How many of the server's models have names of their own: of replicas the first. */
int32_t sl_served_n_named(const struct sl_server *s);
/* No model takes a request now. */
bool sl_served_all_full(const struct sl_server *s);
/* The model that root's member of this name names. Where there is one model (of replicas the first)
 * it is that one,
 * whatever the member says, which is looked at later; else it has to be there. */
SL_MUST_CHECK int sl_served_pick(const struct sl_server *s, const json_t *root, const char *member,
                                 struct sl_served **out, struct sl_refusal *r);
/* For a model's own names: SL_ENOTFOUND, it may be an adapter's. */
SL_MUST_CHECK int sl_served_check(const struct sl_server *s, const struct sl_served *m,
                                  const char *given, const char **name, struct sl_refusal *r);
/* SL_ENOTFOUND, with the names of what is served. */
int sl_served_missing(const struct sl_server *s, const char *member, const char *given, size_t n,
                      struct sl_refusal *r);
/* The model's path, if it was not named otherwise: `root` in lists of models. */
void sl_served_use_path(struct sl_served *m);

#endif
