/* SPDX-License-Identifier: MIT */
#include "server/served.h"

#include "base/buf.h"
#include "base/log.h"
#include "server/loop.h"

#include <string.h>

#define MAX_NAME 4096

int sl_served_init(struct sl_served *m, const struct sl_server_config *cfg, struct sl_engine *eng,
                   const char *const *names, int32_t n_names, struct sl_error *err)
{
    const char *path = sl_engine_info(eng)->model_path;
    *m = (struct sl_served){.eng = eng, .names = names, .n_names = n_names};
    m->name = n_names > 0 ? names[0] : path[0] == '(' ? "storyteller" /* bundled: no path */ : path;
    if (cfg->neutral_sampling)
        sl_sampling_default(&m->defaults);
    else
        sl_engine_sampling_default(eng, &m->defaults);
    int rc =
        sl_formats_init(&m->formats, eng, cfg->tool_call_parser, cfg->reasoning_parser, NULL, err);
    if (rc == 0 && sl_engine_has_chat_template(eng))
        sl_log(SL_LOG_INFO, "tool call parser: %s, reasoning parser: %s",
               m->formats.tools != NULL ? m->formats.tools : "none",
               m->formats.reasoning != NULL ? m->formats.reasoning : "none");
    return rc;
}

void sl_served_deinit(struct sl_served *m)
{
    sl_formats_deinit(&m->formats);
}

int32_t sl_served_n_names(const struct sl_served *m)
{
    return m->n_names > 0 ? m->n_names : 1;
}

const char *sl_served_name_at(const struct sl_served *m, int32_t i)
{
    SL_ASSERT(i >= 0 && i < sl_served_n_names(m));
    return m->n_names > 0 ? m->names[i] : m->name;
}

bool sl_served_has_name(const struct sl_served *m, const char *given, const char **name)
{
    for (int32_t i = 0; i < sl_served_n_names(m); i++) {
        *name = sl_served_name_at(m, i);
        if (strcmp(given, *name) == 0)
            return true;
    }
    *name = m->name;
    return false;
}

struct sl_served *sl_served_find(const struct sl_server *s, const char *given)
{
    const char *name;
    for (int32_t i = 0; i < s->n_models; i++) {
        if (sl_served_has_name(&s->models[i], given, &name))
            return &s->models[i];
    }
    for (int32_t i = 0; i < s->n_models; i++) {
        if (sl_adapter_known(s->models[i].eng, given))
            return &s->models[i];
    }
    return NULL;
}

bool sl_served_all_full(const struct sl_server *s)
{
    for (int32_t i = 0; i < s->n_models; i++) {
        if (!sl_engine_is_full(s->models[i].eng))
            return false;
    }
    return true;
}

static int refuse_missing(const struct sl_server *s, const char *member, struct sl_refusal *r)
{
    struct sl_buf names = {0};
    for (int32_t i = 0; i < s->n_models; i++)
        sl_buf_printf(&names, "%s`%s`", i > 0 ? ", " : "", s->models[i].name);
    int rc = sl_refuse(r, SL_EINVAL, member,
                       "%s is missing: this server has several models, name one of %.150s", member,
                       sl_buf_ok(&names) ? names.data : "them");
    sl_buf_deinit(&names);
    return rc;
}

int sl_served_pick(const struct sl_server *s, const json_t *root, const char *member,
                   struct sl_served **out, struct sl_refusal *r)
{
    const json_t *v = json_object_get(root, member);
    const char *given = NULL;
    *out = &s->models[0];
    if (s->n_models == 1)
        return 0;
    if (v == NULL || json_is_null(v))
        return refuse_missing(s, member, r);
    int rc = sl_json_cstr(v, member, MAX_NAME, &given, r);
    if (rc != 0)
        return rc;
    struct sl_served *m = sl_served_find(s, given);
    if (m != NULL) {
        *out = m;
        return 0;
    }
    r->code = "model_not_found";
    return sl_refuse(r, SL_ENOTFOUND, member, "the model `%s` does not exist", given);
}

int sl_served_check(const struct sl_served *m, const char *given, const char **name,
                    struct sl_refusal *r)
{
    *name = m->name;
    if (given == NULL || sl_served_has_name(m, given, name))
        return 0;
    r->code = "model_not_found";
    return sl_refuse(r, SL_ENOTFOUND, "model", "the model `%s` does not exist", given);
}
