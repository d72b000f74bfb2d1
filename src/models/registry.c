/* SPDX-License-Identifier: MIT
 * The list of families and how a checkpoint names one: `architectures` and `model_type` in
 * config.json, general.architecture in a GGUF.
 */
#include "base/buf.h"
#include "base/check.h"
#include "models/desc.h"

#include <stdio.h>
#include <string.h>

static const struct sl_model_desc *const families[] = {
#define SL_FAMILY(name) &sl_model_##name,
#include "models/registry.def"
#undef SL_FAMILY
};

const struct sl_model_desc *sl_registry_at(size_t idx)
{
    return idx < SL_COUNT(families) ? families[idx] : NULL;
}

enum name_field { BY_ID, BY_HF_ARCHITECTURE, BY_HF_MODEL_TYPE, BY_GGUF };

static const char *field_of(const struct sl_model_name *n, enum name_field field)
{
    switch (field) {
    case BY_HF_ARCHITECTURE:
        return n->hf_architecture;
    case BY_HF_MODEL_TYPE:
        return n->hf_model_type;
    case BY_GGUF:
        return n->gguf_architecture;
    case BY_ID:
        break;
    }
    return n->id;
}

/* text_type: of the model of text in a larger one, or NULL. */
static const struct sl_model_name *registry_find(enum name_field field, const char *value,
                                                 size_t n_value, bool experts,
                                                 const char *text_type,
                                                 const struct sl_model_desc **desc)
{
    const struct sl_model_name *found = NULL;
    for (size_t f = 0; f < SL_COUNT(families); f++) {
        for (int32_t i = 0; i < families[f]->n_names; i++) {
            const struct sl_model_name *name = &families[f]->names[i];
            const char *s = field_of(name, field);
            if (field == BY_GGUF && name->gguf_experts && !experts)
                continue;
            if (s == NULL || strlen(s) != n_value || memcmp(s, value, n_value) != 0)
                continue;
            const char *own = field == BY_ID ? NULL : name->hf_text_type;
            const bool says = own != NULL && text_type != NULL && strcmp(own, text_type) == 0;
            if (found != NULL && !says)
                continue;
            if (own != NULL && !says)
                continue;
            *desc = families[f];
            found = name;
        }
    }
    return found;
}

const struct sl_model_name *sl_registry_find(const char *id, const struct sl_model_desc **desc)
{
    return registry_find(BY_ID, id, strlen(id), false, NULL, desc);
}

/* In a list with ", " between the names. */
static bool is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *s = list; (s = strstr(s, name)) != NULL; s += n)
        if ((s == list || s[-1] == ' ') && (s[n] == ',' || s[n] == '\0'))
            return true;
    return false;
}

static int registry_refuse(const char *where, const char *value, size_t n_value,
                           enum name_field field, struct sl_error *err)
{
    char known[128];
    size_t n = 0;
    bool more = false; /* than there is room for */
    known[0] = '\0';
    for (size_t f = 0; f < SL_COUNT(families); f++) {
        for (int32_t i = 0; i < families[f]->n_names; i++) {
            const char *s = field_of(&families[f]->names[i], field);
            if (s == NULL || (field == BY_GGUF && families[f]->names[i].gguf_experts))
                continue; /* a later family says it */
            if (is_listed(known, s))
                continue;
            more = more || n + strlen(s) + 3 > sizeof known;
            if (more)
                continue;
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", s);
        }
    }
    return sl_fail(err, SL_EUNSUPPORTED, "%s \"%.*s\" is not supported (supported: %s%s)", where,
                   (int)SL_MIN(n_value, 60), value, known, more ? ", ..." : "");
}

static int match_hf(const json_t *config, const struct sl_model_desc **desc,
                    const struct sl_model_name **name, struct sl_error *err)
{
    const json_t *list = json_object_get(config, "architectures");
    const json_t *type = json_object_get(config, "model_type");
    enum name_field field = BY_HF_MODEL_TYPE;
    const char *where = "config.json: model_type";
    const json_t *value = type;

    if (list != NULL && !json_is_null(list)) {
        value = json_array_get(list, 0);
        if (!json_is_string(value))
            return sl_fail(err, SL_EFORMAT,
                           "config.json: architectures must be a list of strings, not empty");
        field = BY_HF_ARCHITECTURE;
        where = "config.json: architectures";
    } else if (!json_is_string(type)) {
        return sl_fail(err, SL_EFORMAT, "config.json: architectures and model_type are missing");
    }
    const char *text_type =
        json_string_value(json_object_get(json_object_get(config, "text_config"), "model_type"));
    *name = registry_find(field, json_string_value(value), json_string_length(value), false,
                          text_type, desc);
    if (*name == NULL)
        return registry_refuse(where, json_string_value(value), json_string_length(value), field,
                               err);
    return 0;
}

static bool registry_has_experts(const struct sl_gguf *g, const char *arch, size_t n_arch)
{
    char key[128];
    int64_t n = 0;
    struct sl_error err;
    snprintf(key, sizeof key, "%.*s.expert_count", (int)SL_MIN(n_arch, 64), arch);
    return sl_gguf_i64(g, key, &n, &err) == 1 && n > 0;
}

int sl_registry_match(const struct sl_ckpt *ckpt, const struct sl_model_desc **desc,
                      const struct sl_model_name **name, struct sl_error *err)
{
    const char *s;
    size_t n;
    int rc;

    if (sl_ckpt_kind(ckpt) == SL_CKPT_HF) {
        const json_t *config = sl_ckpt_config(ckpt);
        if (!json_is_object(config))
            return sl_fail(err, SL_EFORMAT, "config.json is missing or not an object");
        return match_hf(config, desc, name, err);
    }
    rc = sl_gguf_str(sl_ckpt_gguf(ckpt), "general.architecture", &s, &n, err);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return sl_fail(err, SL_EFORMAT, "GGUF: general.architecture is missing");
    *name =
        registry_find(BY_GGUF, s, n, registry_has_experts(sl_ckpt_gguf(ckpt), s, n), NULL, desc);
    if (*name == NULL)
        return registry_refuse("GGUF: general.architecture", s, n, BY_GGUF, err);
    return 0;
}
