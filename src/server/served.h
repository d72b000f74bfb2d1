/* SPDX-License-Identifier: MIT
 * served.h - the models of a server: each an engine with its names, sampling defaults and answer
 * formats, and which of them a request means.
 *
 * Made when the server starts, constant while it serves; any thread. The engines are borrowed.
 */
#ifndef SL_SERVER_SERVED_H
#define SL_SERVER_SERVED_H

#include "server/formats.h"
#include "server/json_in.h"
#include "server/server.h"

struct sl_server;
struct sl_kv_publisher;

struct sl_served {
    struct sl_engine *eng;
    const char *name;         /* the first one, which is shown */
    const char *const *names; /* [n_names] what `model` may say besides; may be none */
    int32_t n_names;
    struct sl_sampling defaults;          /* the model's sampling values */
    struct sl_formats formats;            /* how its answers are read */
    struct sl_kv_publisher *kv_publisher; /* NULL: none */
};

SL_MUST_CHECK int sl_served_init(struct sl_served *m, const struct sl_server_config *cfg,
                                 struct sl_engine *eng, const char *const *names, int32_t n_names,
                                 struct sl_error *err);
void sl_served_deinit(struct sl_served *m);

int32_t sl_served_n_names(const struct sl_served *m); /* at least 1 */
const char *sl_served_name_at(const struct sl_served *m, int32_t i);
/* Is it one of the model's own names? Then *name is that name, the model's. */
bool sl_served_has_name(const struct sl_served *m, const char *given, const char **name);
/* The model a name stands for, by a name of its own or of one of its adapters; NULL: none. */
struct sl_served *sl_served_find(const struct sl_server *s, const char *given);
/* No model takes a request now. */
bool sl_served_all_full(const struct sl_server *s);
/* The model that root's member of this name names. Where there is one model it is that one,
 * whatever the member says, which is looked at later; else it has to be there. */
SL_MUST_CHECK int sl_served_pick(const struct sl_server *s, const json_t *root, const char *member,
                                 struct sl_served **out, struct sl_refusal *r);
/* For a model's own names: SL_ENOTFOUND, it may be an adapter's. */
SL_MUST_CHECK int sl_served_check(const struct sl_served *m, const char *given, const char **name,
                                  struct sl_refusal *r);

#endif
