/* SPDX-License-Identifier: MIT */
#include "tier/nixl_lib.h"

#include "base/check.h"
#include "base/fs.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME "libnixl_capi.so"
#define MAX_PATH  4096

static struct sl_nixl_lib calls;
static bool loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Packages of Python, whose libraries lie in a folder that begins with a dot, and NIXL's own
 * prefix. The first one is behind the folder of a virtual environment. */
static const char *const places[] = {
    "/lib/python3*/site-packages/.nixl_cu*.mesonpy.libs/" FILE_NAME,
    "/usr/local/lib/python3*/dist-packages/.nixl_cu*.mesonpy.libs/" FILE_NAME,
    "/usr/local/lib/python3*/site-packages/.nixl_cu*.mesonpy.libs/" FILE_NAME,
    "/usr/lib/python3*/site-packages/.nixl_cu*.mesonpy.libs/" FILE_NAME,
    "/opt/nvidia/nvda_nixl/lib*/" FILE_NAME,
    "/opt/nvidia/nvda_nixl/lib/*/" FILE_NAME,
};

static void *open_path(const char *dir, const char *name)
{
    char path[MAX_PATH];
    int n = snprintf(path, sizeof path, "%s%s", dir, name);
    SL_ASSERT(n >= 0);
    return (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_match(const char *dir, const char *pattern)
{
    char path[MAX_PATH];
    glob_t found = {0};
    void *library = NULL;
    int n = snprintf(path, sizeof path, "%s%s", dir, pattern);
    SL_ASSERT(n >= 0);
    if ((size_t)n < sizeof path && glob(path, 0, NULL, &found) == 0)
        for (size_t i = 0; library == NULL && i < found.gl_pathc; i++)
            library = open_path(found.gl_pathv[i], "");
    globfree(&found);
    return library;
}

static void *find(struct sl_error *err)
{
    const char *own = sl_environment("SLUICE_NIXL"), *plugins = sl_environment("NIXL_PLUGIN_DIR");
    const char *venv = sl_environment("VIRTUAL_ENV");
    void *library = NULL;
    if (own != NULL) {
        library = open_path(own, strstr(own, ".so") != NULL ? "" : "/" FILE_NAME);
        if (library == NULL) {
            const char *why = dlerror();
            (void)sl_fail(err, SL_EUNSUPPORTED, "NIXL cannot be loaded from SLUICE_NIXL: %.300s",
                          why != NULL ? why : "no such file");
        }
        return library;
    }
    if (plugins != NULL)
        library = open_path(plugins, "/../" FILE_NAME);
    if (library == NULL)
        library = open_path("", FILE_NAME);
    if (library == NULL && venv != NULL)
        library = open_match(venv, places[0]);
    for (size_t i = 1; library == NULL && i < SL_COUNT(places); i++)
        library = open_match("", places[i]);
    if (library == NULL)
        (void)sl_fail(err, SL_EUNSUPPORTED,
                      "NIXL is not here: there is no " FILE_NAME " (pip install --no-deps "
                      "nixl-cu12; the variable SLUICE_NIXL says where it is)");
    return library;
}

static int load_locked(struct sl_error *err)
{
    static const struct {
        const char *name;
        size_t offset;
    } symbols[] = {
#define SL_X(name, ...) {"nixl_capi_" #name, offsetof(struct sl_nixl_lib, name)},
        SL_NIXL_CALLS(SL_X)
#undef SL_X
    };
    bool (*is_stub)(void) = NULL;
    void *library = find(err);
    if (library == NULL)
        return SL_EUNSUPPORTED;
    for (size_t i = 0; i < SL_COUNT(symbols); i++) {
        void *p = dlsym(library, symbols[i].name);
        if (p == NULL)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "NIXL is of another version than 1.5: " FILE_NAME " has no %s",
                           symbols[i].name);
        SL_ASSERT(symbols[i].offset + sizeof p <= sizeof calls);
        memcpy((char *)&calls + symbols[i].offset, &p, sizeof p);
    }
    void *p = dlsym(library, "nixl_capi_is_stub");
    memcpy(&is_stub, &p, sizeof p);
    if (is_stub == NULL || is_stub())
        return sl_fail(err, SL_EUNSUPPORTED, FILE_NAME " is an empty one, without NIXL behind it");
    calls.release = free;
    loaded = true;
    return 0;
}

int sl_nixl_load(const struct sl_nixl_lib **out, struct sl_error *err)
{
    pthread_mutex_lock(&lock);
    int rc = loaded ? 0 : load_locked(err);
    pthread_mutex_unlock(&lock);
    *out = &calls;
    return rc;
}
