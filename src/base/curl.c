/* SPDX-License-Identifier: MIT */
#include "base/curl.h"

#include "base/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

static struct sl_curl calls;
static bool loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What a library does not know it leaves alone, and a redirect would lead out of TLS. */
static bool takes_protocols(void)
{
    CURL *easy = calls.easy_init();
    const bool yes = easy != NULL &&
                     calls.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "https") == CURLE_OK &&
                     calls.easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, "https") == CURLE_OK;
    if (easy != NULL)
        calls.easy_cleanup(easy);
    return yes;
}

static int load_locked(struct sl_error *err)
{
    /* Debian's other flavours have the same interface; which TLS is behind it does not matter. */
    static const char *const libraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    static const struct {
        const char *name;
        size_t offset;
    } symbols[] = {
#define SL_X(name) {"curl_" #name, offsetof(struct sl_curl, name)},
        SL_CURL_CALLS(SL_X)
#undef SL_X
    };
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < SL_COUNT(libraries); i++)
        library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "libcurl.so.4 is not here (Debian: apt-get install libcurl4 "
                       "ca-certificates); downloads, traces and buckets need it, nothing else");
    for (size_t i = 0; i < SL_COUNT(symbols); i++) {
        void *p = dlsym(library, symbols[i].name);
        if (p == NULL)
            return sl_fail(err, SL_EUNSUPPORTED, "libcurl is too old: it has no %s",
                           symbols[i].name);
        memcpy((char *)&calls + symbols[i].offset, &p, sizeof p);
    }
    if (calls.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return sl_fail(err, SL_EUNSUPPORTED, "libcurl cannot start");
    if (!takes_protocols())
        return sl_fail(
            err, SL_EUNSUPPORTED,
            "libcurl is too old: it cannot be told which protocols to follow (7.85 can)");
    loaded = true;
    return 0;
}

int sl_curl_load(const struct sl_curl **out, struct sl_error *err)
{
    pthread_mutex_lock(&lock);
    int rc = loaded ? 0 : load_locked(err);
    pthread_mutex_unlock(&lock);
    *out = &calls;
    return rc;
}
