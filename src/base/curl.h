/* SPDX-License-Identifier: MIT
 * curl.h - libcurl, loaded when something is to be downloaded or traces are to be sent.
 *
 * It is not linked: with TLS it is larger than all of sluice's own host code, Debian has no static
 * form of all that it needs, and a server that reads a local model shall not depend on it. Security
 * updates of TLS reach it without a new build of sluice.
 */
#ifndef SL_BASE_CURL_H
#define SL_BASE_CURL_H

#include "base/err.h"

#include <curl/curl.h>

#define SL_CURL_CALLS(X)   \
    X(global_init)         \
    X(easy_init)           \
    X(easy_setopt)         \
    X(easy_getinfo)        \
    X(easy_reset)          \
    X(easy_cleanup)        \
    X(easy_strerror)       \
    X(multi_init)          \
    X(multi_add_handle)    \
    X(multi_remove_handle) \
    X(multi_perform)       \
    X(multi_poll)          \
    X(multi_info_read)     \
    X(multi_cleanup)       \
    X(multi_strerror)      \
    X(slist_append)        \
    X(slist_free_all)

struct sl_curl {
#define SL_X(name) __typeof__(&curl_##name) name;
    SL_CURL_CALLS(SL_X)
#undef SL_X
};

/* Loaded once and kept; any thread. SL_EUNSUPPORTED says what to install. */
SL_MUST_CHECK int sl_curl_load(const struct sl_curl **out, struct sl_error *err);

#endif
