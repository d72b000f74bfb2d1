/* SPDX-License-Identifier: MIT */
#include "cmd/lora.h"

#include "base/check.h"
#include "base/json_load.h"
#include "base/str.h"
#include "base/sys.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define OWN(field) offsetof(struct sl_cli_lora, field)
#define ALL_RANKS  256

const struct sl_flag sl_flags_lora[] = {
    {SL_FLAG_STR, 0, "lora", NULL, OWN(path), 0, 0, "DIR", "LoRA adapter as PEFT writes it"},
    {SL_FLAG_STR, 0, "lora-scaled", NULL, OWN(scaled), 0, 0, "DIR:S", "likewise, scaled by S"},
};
const int sl_n_flags_lora = (int)SL_COUNT(sl_flags_lora);

void sl_cli_lora_enable(const struct sl_cli_lora *l, struct sl_engine_config *cfg)
{
    if (l->path == NULL && l->scaled == NULL)
        return;
    cfg->enable_lora = true;
    if (cfg->max_lora_rank == 0)
        cfg->max_lora_rank = ALL_RANKS;
    if (cfg->max_loras == 0)
        cfg->max_loras = 1;
}

int sl_cli_lora_open(const struct sl_cli_lora *l, struct sl_engine *eng, struct sl_adapter **out,
                     float *scale, struct sl_error *err)
{
    static const char name[] = "lora";
    double x = 1;
    *out = NULL;
    *scale = 1;
    if (l->path != NULL && l->scaled != NULL)
        return sl_fail(err, SL_EINVAL, "--lora and --lora-scaled cannot be combined");
    const char *given = l->path != NULL ? l->path : l->scaled;
    if (given == NULL)
        return 0;
    size_t n = strlen(given);
    if (l->scaled != NULL) {
        const char *colon = strrchr(given, ':');
        if (colon == NULL || !sl_parse_double(colon + 1, strlen(colon + 1), &x))
            return sl_fail(err, SL_EINVAL, "--lora-scaled: '%.80s' is not DIR:SCALE", given);
        n = (size_t)(colon - given);
    }
    char *path = sl_strndup(given, n);
    if (path == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a path");
    int rc = sl_adapter_load(eng, name, path, false, err);
    sl_free(path);
    if (rc == 0)
        rc = sl_adapter_open(eng, name, true, out, err);
    *scale = (float)x;
    return rc;
}

static int lora_member(const json_t *obj, const char *key, const char **out, struct sl_error *err)
{
    const json_t *v = json_object_get(obj, key);
    *out = json_string_value(v);
    return *out != NULL
               ? 0
               : sl_fail(err, SL_EINVAL, "--lora-modules: an object needs a string %s", key);
}

static bool lora_has_name(const struct sl_cli_base *m, const char *name)
{
    for (int32_t i = 0; i < m->n_names; i++)
        if (strcmp(m->names[i], name) == 0)
            return true;
    return m->n_names == 0 && strcmp(sl_engine_info(m->eng)->model_path, name) == 0;
}

static const struct sl_cli_base *find_base(const struct sl_cli_base *bases, int n_bases,
                                           const char *name)
{
    for (int i = 0; i < n_bases; i++)
        if (lora_has_name(&bases[i], name))
            return &bases[i];
    return NULL;
}

/* The model that an object's base_model_name says; of one model nothing need be said. */
static int read_base(const json_t *obj, const struct sl_cli_base *bases, int n_bases,
                     const struct sl_cli_base **out, struct sl_error *err)
{
    const char *name = json_string_value(json_object_get(obj, "base_model_name"));
    *out = name != NULL ? find_base(bases, n_bases, name) : bases;
    if (name == NULL && n_bases > 1)
        return sl_fail(err, SL_EINVAL,
                       "--lora-modules: of several models, write {\"name\":..., \"path\":..., "
                       "\"base_model_name\":...}");
    return *out != NULL || n_bases == 1
               ? 0
               : sl_fail(err, SL_EINVAL, "--lora-modules: no model is called '%.100s'", name);
}

struct module { /* one of --lora-modules */
    const char *path;
    char *name;  /* the heap's */
    json_t *obj; /* or NULL: NAME=DIR */
};

static int read_module(const char *given, struct module *out, struct sl_error *err)
{
    const char *equals = strchr(given, '='), *name = NULL;
    json_error_t why;
    *out = (struct module){.path = NULL};
    if (given[0] == '{') {
        out->obj = sl_json_load(given, strlen(given), JSON_REJECT_DUPLICATES, &why);
        if (out->obj == NULL)
            return sl_fail(err, SL_EINVAL, "--lora-modules: %.100s", why.text);
        int rc = lora_member(out->obj, "name", &name, err);
        if (rc == 0)
            rc = lora_member(out->obj, "path", &out->path, err);
        if (rc != 0)
            return rc;
        out->name = sl_strdup(name);
    } else if (equals == NULL || equals == given || equals[1] == '\0') {
        return sl_fail(err, SL_EINVAL, "--lora-modules: '%.80s' is not NAME=DIR", given);
    } else {
        out->path = equals + 1;
        out->name = sl_strndup(given, (size_t)(equals - given));
    }
    return out->name != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory for a name");
}

int sl_cli_lora_modules_check(const struct sl_flag_list *modules, struct sl_error *err)
{
    int rc = 0;
    for (int i = 0; i < modules->n && rc == 0; i++) {
        struct module m;
        rc = read_module(modules->items[i], &m, err);
        if (rc == 0 && access(m.path, R_OK | X_OK) != 0)
            rc = sl_fail(err, SL_EIO, "--lora-modules: %.200s: %s", m.path, strerror(errno));
        sl_free(m.name);
        json_decref(m.obj);
    }
    return rc;
}

/* *name is the heap's. */
static int load(const struct sl_cli_base *bases, int n_bases, const char *given, char **name,
                struct sl_error *err)
{
    const struct sl_cli_base *base = bases;
    struct module m;
    int rc = read_module(given, &m, err);
    *name = m.name;
    if (rc == 0)
        rc = read_base(m.obj, bases, n_bases, &base, err);
    if (rc == 0 && find_base(bases, n_bases, *name) != NULL)
        rc =
            sl_fail(err, SL_EINVAL, "--lora-modules: '%.80s' is a name of the model itself", *name);
    if (rc == 0)
        rc = sl_adapter_load((base != NULL ? base : bases)->eng, *name, m.path, false, err);
    json_decref(m.obj);
    return rc;
}

int sl_cli_lora_modules(const struct sl_flag_list *modules, const struct sl_cli_base *bases,
                        int n_bases, char *names[SL_FLAG_LIST_MAX], struct sl_error *err)
{
    int rc = 0;
    for (int i = 0; i < modules->n && rc == 0; i++)
        rc = load(bases, n_bases, modules->items[i], &names[i], err);
    return rc;
}
