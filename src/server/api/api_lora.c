/* SPDX-License-Identifier: MIT
 * api_lora.c - POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's shapes; with
 * several models `base_model_name` says whose it is. Reading an
 * adapter's files takes long, so a worker does it.
 */
#include "base/check.h"
#include "base/sys.h"
#include "server/api/task.h"
#include "server/http/reply.h"
#include "server/http/route.h"

#include <string.h>

#define MAX_NAME 4096

static int lora_read_string(struct sl_task *t, const char *field, const char **out)
{
    const json_t *v = json_object_get(t->root, field);
    *out = "";
    return v == NULL || json_is_null(v) ? 0 : sl_json_cstr(v, field, MAX_NAME, out, &t->refusal);
}

/* The body, and the adapter's name in it; missing: what to say without one. */
static int lora_read_request(struct sl_task *t, const char *missing, const char **name)
{
    if (!t->server->cfg->lora_updates)
        return sl_refuse(&t->refusal, SL_EUNSUPPORTED, NULL,
                         "this server does not load or unload adapters for its clients "
                         "(--allow-runtime-lora-updating)");
    int rc = sl_json_parse_object(t->body.p, t->body.n, &t->root, &t->refusal);
    if (rc == 0)
        rc = lora_read_string(t, "lora_name", name);
    if (rc == 0 && (*name)[0] == '\0')
        rc = sl_refuse(&t->refusal, SL_EINVAL, "lora_name", "%s", missing);
    return rc;
}

static void put_success(struct sl_task *t, const char *name, const char *what)
{
    sl_buf_printf(&t->out, "Success: LoRA adapter '%s' %s successfully.", name, what);
}

static void lora_finish(struct sl_conn *c, struct sl_task *t)
{
    sl_reply(c, 200, "text/plain; charset=utf-8", NULL, t->out.data, t->out.n_bytes);
}

/* A name is one model's, or one adapter's of one model. */
static int check_free(struct sl_task *t, const char *name)
{
    const struct sl_served *taken = sl_served_find(t->server, name);
    const char *own;
    if (taken != NULL && sl_served_has_name(taken, name, &own))
        return sl_refuse(&t->refusal, SL_EINVAL, "lora_name",
                         "The lora adapter name '%.100s' conflicts with a served base model.",
                         name);
    if (taken != NULL && taken != t->served)
        return sl_refuse(&t->refusal, SL_EINVAL, "lora_name",
                         "The lora adapter '%.100s' is one of the model %.80s.", name, taken->name);
    return 0;
}

static int lora_load(struct sl_task *t)
{
    static const char missing[] = "Both 'lora_name' and 'lora_path' must be provided.";
    const char *name, *path;
    bool replace = false;
    int rc = lora_read_request(t, missing, &name);
    if (rc == 0)
        rc = lora_read_string(t, "lora_path", &path);
    if (rc == 0 && path[0] == '\0')
        return sl_refuse(&t->refusal, SL_EINVAL, "lora_path", "%s", missing);
    const json_t *v = json_object_get(t->root, "load_inplace");
    if (rc == 0 && v != NULL && !json_is_null(v))
        rc = sl_json_bool(v, "load_inplace", &replace, &t->refusal);
    if (rc == 0)
        rc = sl_served_pick(t->server, t->root, "base_model_name", &t->served, &t->refusal);
    if (rc == 0)
        rc = check_free(t, name);
    if (rc == 0 && t->at_once) {
        t->later = true;
        return 0;
    }
    if (rc == 0)
        rc = sl_adapter_load(t->served->eng, name, path, replace, &t->refusal.err);
    if (rc == 0)
        put_success(t, name, "added");
    return rc;
}

static void prepare_load(struct sl_task *t)
{
    t->rc = lora_load(t);
}

void sl_api_load_lora(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_load, lora_finish};
    sl_task_start(c, &kind);
}

static void prepare_unload(struct sl_task *t)
{
    const char *name;
    t->rc =
        lora_read_request(t, "'lora_name' needs to be provided to unload a LoRA adapter.", &name);
    struct sl_served *m = t->rc == 0 ? sl_served_find(t->server, name) : NULL;
    if (t->rc == 0)
        t->rc = sl_adapter_unload((m != NULL ? m : t->served)->eng, name, &t->refusal.err);
    if (t->rc == 0)
        put_success(t, name, "removed");
}

void sl_api_unload_lora(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {prepare_unload, lora_finish};
    sl_task_start(c, &kind);
}
