/* SPDX-License-Identifier: MIT */
#include "tier/nixl.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/nixl_impl.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MS       UINT64_C(1000000)
#define POLL_NS  UINT64_C(20000) /* between looks at what is under way: nobody tells of it */
#define SERVE_NS MS              /* while somebody may begin to read */
#define TEND_NS  (10 * MS)       /* while a connection waits for its reads to end */
#define AFTER_NS (60000 * MS)    /* others' late reads are still helped, now and then */
#define LAST_MS  500             /* at the end, for reads under way */
#define CLOSE_MS 5000            /* for the library to come back */

/* ---- signals */

enum { N_SIGNALS = 32 };

static void *code_of(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

static void note_signals(struct sigaction *all)
{
    for (int i = 1; i < N_SIGNALS; i++)
        (void)sigaction(i, NULL, &all[i]);
}

/* UCX takes SIGHUP, and with some settings the signals of crashes. They are the program's: what
 * code of another file has taken meanwhile is given back. */
static void restore_signals(const struct sigaction *all)
{
    static const char here;
    for (int i = 1; i < N_SIGNALS; i++) {
        struct sigaction now;
        void *handler;
        if (sigaction(i, NULL, &now) != 0 || now.sa_handler == all[i].sa_handler ||
            now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)
            continue;
        SL_ASSERT(sizeof handler == sizeof now.sa_handler);
        memcpy(&handler, &now.sa_handler, sizeof handler);
        if (code_of(handler) != code_of(&here))
            (void)sigaction(i, &all[i], NULL);
    }
}

/* ---- the agent */

static int open_backend(struct sl_nixl *n)
{
    const struct sl_nixl_lib *lib = n->lib;
    const struct sl_nixl_agent_config cfg = {.n_workers = 1};
    sl_nixl_obj mems = NULL, params = NULL;
    SL_ASSERT(n->agent == NULL && n->backend == NULL);
    int rc = lib->create_configured_agent(n->name, &cfg, &n->agent);
    if (rc == SL_NIXL_OK)
        rc = lib->get_plugin_params(n->agent, n->cfg.backend, &mems, &params);
    if (rc == SL_NIXL_OK)
        rc = lib->create_backend(n->agent, n->cfg.backend, params, &n->backend);
    if (mems != NULL)
        (void)lib->destroy_mem_list(mems);
    if (params != NULL)
        (void)lib->destroy_params(params);
    return rc;
}

static int register_memory(struct sl_nixl *n)
{
    const struct sl_nixl_lib *lib = n->lib;
    sl_nixl_obj list = NULL;
    int rc = lib->create_opt_args(&n->args);
    SL_ASSERT(n->memory != NULL && n->registered == NULL);
    if (rc == SL_NIXL_OK)
        rc = lib->opt_args_add_backend(n->args, n->backend);
    if (rc == SL_NIXL_OK)
        rc = lib->create_reg_dlist(SL_NIXL_DRAM, &list);
    if (rc == SL_NIXL_OK)
        rc = lib->reg_dlist_add_desc(list, (uintptr_t)n->memory, n->n_memory, 0, "", 0);
    if (rc == SL_NIXL_OK)
        rc = lib->register_mem(n->agent, list, n->args);
    if (rc == SL_NIXL_OK)
        n->registered = list;
    else if (list != NULL)
        (void)lib->destroy_reg_dlist(list);
    return rc;
}

static void start(struct sl_nixl *n)
{
    struct sigaction signals[N_SIGNALS];
    const uint64_t at = sl_now_ns();
    note_signals(signals);
    int rc = open_backend(n);
    restore_signals(signals);
    const bool backend = rc == SL_NIXL_OK;
    if (rc == SL_NIXL_OK)
        rc = register_memory(n);
    if (rc == SL_NIXL_OK)
        rc = n->lib->create_notif_map(&n->notifs);
    if (rc == SL_NIXL_OK)
        rc = n->lib->get_local_md(n->agent, &n->metadata, &n->n_metadata);
    if (rc == SL_NIXL_OK && (n->n_metadata == 0 || n->n_metadata > SL_MAX_NIXL_METADATA))
        rc = -1;
    if (rc != SL_NIXL_OK) {
        sl_log(SL_LOG_WARN, "KV pages go over TCP: NIXL's %s %s (%d)", n->cfg.backend,
               backend ? "cannot register their memory" : "cannot start", rc);
        return;
    }
    SL_ASSERT(n->metadata != NULL);
    pthread_mutex_lock(&n->lock);
    n->stats.registered_bytes = n->n_memory;
    pthread_mutex_unlock(&n->lock);
    atomic_store(&n->ready, true);
    sl_log(SL_LOG_INFO, "KV pages are carried by NIXL (%s): %.1f GB registered, %.0f ms",
           n->cfg.backend, (double)n->n_memory / 1e9, (double)(sl_now_ns() - at) / 1e6);
}

/* What is under way is given a moment to end; the library's end ends the rest. */
static void stop(struct sl_nixl *n)
{
    const struct sl_nixl_lib *lib = n->lib;
    const uint64_t end = sl_now_ns() + LAST_MS * MS;
    atomic_store(&n->ready, false);
    while (n->posted != NULL && sl_now_ns() < end) {
        const struct timespec rest = {0, (long)MS};
        sl_nixl_progress(n);
        (void)nanosleep(&rest, NULL);
    }
    if (n->registered != NULL) {
        (void)lib->deregister_mem(n->agent, n->registered, n->args);
        (void)lib->destroy_reg_dlist(n->registered);
    }
    if (n->notifs != NULL)
        (void)lib->destroy_notif_map(n->notifs);
    if (n->args != NULL)
        (void)lib->destroy_opt_args(n->args);
    if (n->backend != NULL)
        (void)lib->destroy_backend(n->backend);
    if (n->agent != NULL)
        (void)lib->destroy_agent(n->agent);
    sl_nixl_drop_all(n);
    SL_ASSERT(n->posted == NULL);
}

/* Under the lock: until there is something to do. */
static void rest(struct sl_nixl *n, bool tends)
{
    struct timespec t;
    const bool after = sl_now_ns() < n->serve_until_ns;
    uint64_t ns = n->posted != NULL || n->n_offered > 0 ? POLL_NS
                  : n->n_conns > 0                      ? SERVE_NS
                  : tends || after                      ? TEND_NS
                                                        : 0;
    SL_ASSERT(n->n_conns >= 0 && n->n_offered >= 0);
    if (n->queue != NULL || n->closing)
        return;
    if (ns == 0) {
        pthread_cond_wait(&n->more, &n->lock);
        return;
    }
    ns += sl_now_ns();
    t = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    (void)pthread_cond_timedwait(&n->more, &n->lock, &t);
}

static void *nixl_main(void *arg)
{
    struct sl_nixl *n = arg;
    start(n);
    pthread_mutex_lock(&n->lock);
    while (!n->closing) {
        struct sl_nixl_read *queue = n->queue;
        const bool serves =
            atomic_load(&n->ready) && (n->n_conns > 0 || sl_now_ns() < n->serve_until_ns);
        n->queue = n->last = NULL;
        pthread_mutex_unlock(&n->lock);
        sl_nixl_post(n, queue);
        sl_nixl_progress(n);
        if (serves) /* there are no messages: it moves what others read */
            (void)n->lib->get_notifs(n->agent, n->notifs, NULL);
        const bool tends = sl_nixl_tend(n);
        pthread_mutex_lock(&n->lock);
        rest(n, tends);
    }
    pthread_mutex_unlock(&n->lock);
    stop(n);
    pthread_mutex_lock(&n->lock);
    n->ended = true;
    pthread_cond_signal(&n->gone);
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

/* ---- start and end */

static void init_cond(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

static void free_all(struct sl_nixl *n)
{
    for (int i = 0; i < SL_MAX_NIXL_REMOTES; i++)
        SL_ASSERT(n->remotes[i] == NULL);
    pthread_cond_destroy(&n->gone);
    pthread_cond_destroy(&n->more);
    pthread_mutex_destroy(&n->lock);
    n->lib->release(n->metadata);
    sl_free(n->pool);
    sl_free(n);
}

int sl_nixl_open(const struct sl_nixl_config *cfg, struct sl_nixl **out, struct sl_error *err)
{
    const struct sl_nixl_lib *lib;
    uint64_t id[2];
    SL_ASSERT(cfg->store != NULL && cfg->backend != NULL);
    *out = NULL;
    int rc = sl_nixl_load(&lib, err);
    if (rc == 0)
        rc = sl_random(id, sizeof id, err);
    if (rc != 0)
        return rc;
    struct sl_nixl *n = sl_calloc(1, sizeof *n);
    if (n == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for an agent of NIXL");
    n->cfg = *cfg;
    n->lib = lib;
    n->memory = sl_store_memory(cfg->store, &n->n_memory);
    snprintf(n->name, sizeof n->name, "sluice-%016llx%016llx", (unsigned long long)id[0],
             (unsigned long long)id[1]);
    pthread_mutex_init(&n->lock, NULL);
    init_cond(&n->more);
    init_cond(&n->gone);
    n->pool = sl_calloc(SL_MAX_NIXL_READS, sizeof *n->pool);
    if (n->pool == NULL) {
        free_all(n);
        return sl_fail(err, SL_ENOMEM, "out of memory for reads by NIXL");
    }
    for (int i = 0; i < SL_MAX_NIXL_READS; i++) {
        n->pool[i].next = n->free;
        n->free = &n->pool[i];
    }
    rc = sl_thread_create(&n->thread, nixl_main, n, "kv-nixl", err);
    if (rc != 0) {
        free_all(n);
        return rc;
    }
    *out = n;
    return 0;
}

bool sl_nixl_close(struct sl_nixl *n)
{
    if (n == NULL)
        return true;
    const uint64_t end = sl_now_ns() + CLOSE_MS * MS;
    const struct timespec t = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&n->lock);
    SL_ASSERT(n->n_conns == 0 && n->n_offered == 0);
    n->closing = true;
    pthread_cond_signal(&n->more);
    while (!n->ended && rc == 0)
        rc = pthread_cond_timedwait(&n->gone, &n->lock, &t);
    const bool ended = n->ended;
    pthread_mutex_unlock(&n->lock);
    if (!ended) {
        sl_log(SL_LOG_ERROR, "NIXL does not come back: memory of KV pages is not freed");
        (void)pthread_detach(n->thread); /* with all that it may still use */
        return false;
    }
    pthread_join(n->thread, NULL);
    free_all(n);
    return true;
}

void sl_nixl_stats(struct sl_nixl *n, struct sl_nixl_stats *out)
{
    pthread_mutex_lock(&n->lock);
    *out = n->stats;
    pthread_mutex_unlock(&n->lock);
}

const void *sl_nixl_metadata(struct sl_nixl *n, size_t *n_bytes)
{
    if (!atomic_load(&n->ready))
        return NULL;
    SL_ASSERT(n->n_metadata > 0);
    *n_bytes = n->n_metadata;
    return n->metadata;
}

void sl_nixl_serve(struct sl_nixl *n, int conns, int pages)
{
    pthread_mutex_lock(&n->lock);
    n->n_conns += conns;
    n->n_offered += pages;
    SL_ASSERT(n->n_conns >= 0 && n->n_offered >= 0);
    n->serve_until_ns = sl_now_ns() + AFTER_NS;
    if (conns > 0 || pages > 0)
        pthread_cond_signal(&n->more);
    pthread_mutex_unlock(&n->lock);
}
