/* SPDX-License-Identifier: MIT */
#include "engine/adapters.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"

#include <string.h>

struct sl_adapter {
    struct sl_adapters *store;
    struct sl_adapter *prev, *next; /* of the store: listed, or in use */
    char *name, *path;
    uint64_t id, digest;
    int64_t t_loaded_s;
    struct sl_lora *lora; /* NULL: only on disk */
    bool listed;          /* may be asked for by name */
    bool loading;         /* some thread reads it */
    int32_t n_users;
    uint64_t last_use;
};

struct sl_adapters {
    struct sl_adapters_config cfg;
    pthread_rwlock_t model_lock; /* cfg.model stays while files are read for it */
    pthread_mutex_t lock;
    pthread_cond_t loaded;         /* an adapter is not loading any more */
    struct sl_adapter *all, *last; /* in the order they came */
    int32_t n_all, n_listed, n_resident;
    uint64_t next_id, clock, n_loads, n_evictions;
    bool closed;
};

int sl_adapters_create(const struct sl_adapters_config *cfg, struct sl_adapters **out,
                       struct sl_error *err)
{
    SL_ASSERT(cfg->max_rank >= 1 && cfg->max_active >= 1 && cfg->max_resident >= cfg->max_active);
    struct sl_adapters *s = sl_calloc(1, sizeof *s);
    *out = s;
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for adapters");
    s->cfg = *cfg;
    pthread_rwlock_init(&s->model_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->loaded, NULL);
    return 0;
}

const struct sl_adapters_config *sl_adapters_config(const struct sl_adapters *s)
{
    return &s->cfg;
}

static void free_store(struct sl_adapters *s)
{
    SL_ASSERT(s->closed && s->all == NULL && s->last == NULL && s->n_resident == 0);
    pthread_cond_destroy(&s->loaded);
    pthread_mutex_destroy(&s->lock);
    pthread_rwlock_destroy(&s->model_lock);
    sl_free(s);
}

static void drop_weights(struct sl_adapters *s, struct sl_adapter *a)
{
    SL_ASSERT(a->n_users == 0 && s->n_resident >= (a->lora != NULL));
    s->n_resident -= a->lora != NULL;
    sl_lora_close(a->lora);
    a->lora = NULL;
}

static void free_adapter(struct sl_adapter *a)
{
    SL_ASSERT(!a->listed && !a->loading && a->n_users == 0);
    sl_lora_close(a->lora);
    sl_free(a->name);
    sl_free(a->path);
    sl_free(a);
}

/* With the lock: an adapter that nobody knows and nobody uses goes. */
static void drop_unused(struct sl_adapters *s, struct sl_adapter *a)
{
    if (a->listed || a->n_users > 0)
        return;
    SL_ASSERT(a->store == s && s->n_all > 0);
    SL_ASSERT(a->prev != NULL ? a->prev->next == a : s->all == a);
    SL_ASSERT(a->next != NULL ? a->next->prev == a : s->last == a);
    drop_weights(s, a);
    *(a->prev != NULL ? &a->prev->next : &s->all) = a->next;
    *(a->next != NULL ? &a->next->prev : &s->last) = a->prev;
    s->n_all--;
    free_adapter(a);
}

static void unlist(struct sl_adapters *s, struct sl_adapter *a)
{
    SL_ASSERT(a->listed && s->n_listed > 0 && s->n_listed <= s->n_all);
    a->listed = false;
    s->n_listed--;
    drop_unused(s, a);
}

void sl_adapters_close(struct sl_adapters *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(!s->closed);
    s->closed = true;
    for (struct sl_adapter *a = s->all, *next; a != NULL; a = next) {
        next = a->next;
        if (a->listed)
            unlist(s, a);
    }
    SL_ASSERT(s->n_listed == 0);
    bool over = s->n_all == 0;
    pthread_mutex_unlock(&s->lock);
    if (over)
        free_store(s);
}

struct sl_adapter *sl_adapter_ref(struct sl_adapter *a)
{
    pthread_mutex_lock(&a->store->lock);
    SL_ASSERT(a->n_users > 0);
    a->n_users++;
    pthread_mutex_unlock(&a->store->lock);
    return a;
}

void sl_adapter_release(struct sl_adapter *a)
{
    if (a == NULL)
        return;
    struct sl_adapters *s = a->store;
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(a->n_users > 0);
    a->n_users--;
    drop_unused(s, a);
    bool over = s->closed && s->n_all == 0;
    pthread_mutex_unlock(&s->lock);
    if (over)
        free_store(s);
}

const struct sl_lora_weights *sl_adapter_weights(const struct sl_adapter *a)
{
    SL_DCHECK(a->lora != NULL); /* a user's, without the lock that n_users needs */
    return &a->lora->w;
}

static struct sl_adapter *adapter_find(const struct sl_adapters *s, const char *name)
{
    struct sl_adapter *a = s->all;
    while (a != NULL && (!a->listed || strcmp(a->name, name) != 0))
        a = a->next;
    return a;
}

/* ------------------------------------------------------------------ weights in memory */

/* With the lock: room for one more; false if everything in memory is in use. */
static bool adapters_make_room(struct sl_adapters *s)
{
    while (s->n_resident >= s->cfg.max_resident) {
        struct sl_adapter *oldest = NULL;
        for (struct sl_adapter *a = s->all; a != NULL; a = a->next)
            if (a->lora != NULL && a->n_users == 0 &&
                (oldest == NULL || a->last_use < oldest->last_use))
                oldest = a;
        if (oldest == NULL)
            return false;
        drop_weights(s, oldest);
        s->n_evictions++;
    }
    return true;
}

static void put_weights(struct sl_adapters *s, struct sl_adapter *a, struct sl_lora *lora)
{
    SL_ASSERT(a->lora == NULL && a->id != 0 && s->n_resident < s->cfg.max_resident);
    lora->w.id = a->id;
    a->lora = lora;
    s->n_resident++;
}

static int adapter_open_files(struct sl_adapters *s, const char *path, struct sl_lora **out,
                              struct sl_error *err)
{
    const struct sl_lora_options opt = {.max_rank = s->cfg.max_rank, .bf16 = s->cfg.bf16};
    int rc;
    *out = NULL;
    pthread_rwlock_rdlock(&s->model_lock);
    if (s->closed)
        rc = sl_fail(err, SL_ESHUTDOWN, "the engine is shutting down");
    else if (s->cfg.model == NULL)
        rc = sl_engine_is_asleep(err);
    else
        rc = sl_lora_open(s->cfg.model, path, &opt, out, err);
    pthread_rwlock_unlock(&s->model_lock);
    SL_ASSERT(rc != 0 || *out != NULL);
    return rc;
}

void sl_adapters_use(struct sl_adapters *s, const struct sl_model *model)
{
    if (s == NULL)
        return;
    pthread_rwlock_wrlock(&s->model_lock);
    s->cfg.model = model;
    pthread_rwlock_unlock(&s->model_lock);
}

static int all_in_use(const struct sl_adapters *s, struct sl_error *err)
{
    return sl_fail(err, SL_EBUSY,
                   "all %d adapters that max-cpu-loras keeps in memory are in use by requests",
                   s->cfg.max_resident);
}

/* With the lock, which is given up while the files are read; a has a user. */
static int read_again(struct sl_adapters *s, struct sl_adapter *a, struct sl_error *err)
{
    struct sl_lora *lora;
    SL_ASSERT(a->n_users > 0); /* so that it stays while the lock is free */
    while (a->loading)
        pthread_cond_wait(&s->loaded, &s->lock);
    if (a->lora != NULL)
        return 0;
    if (!adapters_make_room(s)) /* before reading: it may take long */
        return all_in_use(s, err);
    a->loading = true;
    pthread_mutex_unlock(&s->lock);
    int rc = adapter_open_files(s, a->path, &lora, err);
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(a->loading && a->lora == NULL);
    a->loading = false;
    pthread_cond_broadcast(&s->loaded);
    if (rc == 0 && lora->digest != a->digest)
        rc = sl_fail(err, SL_EFORMAT,
                     "the files of adapter \"%.80s\" have changed since it was loaded: load it "
                     "again",
                     a->name);
    if (rc == 0 && !adapters_make_room(s))
        rc = all_in_use(s, err);
    if (rc != 0) {
        sl_lora_close(lora);
        return rc;
    }
    s->n_loads++;
    put_weights(s, a, lora);
    return 0;
}

static struct sl_adapters *store_of(struct sl_engine *eng)
{
    return eng->adapters;
}

int sl_adapter_open(struct sl_engine *eng, const char *name, bool may_wait, struct sl_adapter **out,
                    struct sl_error *err)
{
    struct sl_adapters *s = store_of(eng);
    int rc = 0;
    *out = NULL;
    if (s == NULL)
        return sl_fail(err, SL_ENOTFOUND, "adapter \"%.100s\": adapters are not enabled", name);
    pthread_mutex_lock(&s->lock);
    struct sl_adapter *a = adapter_find(s, name);
    if (a == NULL) {
        rc = sl_fail(err, SL_ENOTFOUND, "there is no adapter \"%.100s\"", name);
    } else if (a->lora != NULL || may_wait) {
        a->n_users++;
        rc = a->lora != NULL ? 0 : read_again(s, a, err);
        a->last_use = ++s->clock;
        SL_ASSERT(rc != 0 || (a->lora != NULL && a->n_users > 0));
        if (rc == 0)
            *out = a;
        else {
            a->n_users--;
            drop_unused(s, a);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ------------------------------------------------------------------ by name */

static struct sl_adapter *adapter_make(struct sl_adapters *s, const char *name, const char *path)
{
    struct sl_adapter *a = sl_calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->store = s;
    a->name = sl_strdup(name);
    a->path = sl_strdup(path);
    a->t_loaded_s = sl_wall_ns() / 1000000000;
    if (a->name != NULL && a->path != NULL)
        return a;
    free_adapter(a);
    return NULL;
}

/* With the lock: a comes to the list with its weights, if they have room. */
static int enlist(struct sl_adapters *s, struct sl_adapter *a, struct sl_lora *lora, bool replace,
                  struct sl_error *err)
{
    struct sl_adapter *same = adapter_find(s, a->name);
    if (same != NULL && !replace)
        return sl_fail(err, SL_EINVAL,
                       "The lora adapter '%.100s' has already been loaded. If you want to load the "
                       "adapter in place, set 'load_inplace' to True.",
                       a->name);
    if (same != NULL)
        unlist(s, same);
    if (s->n_listed == SL_MAX_ADAPTERS)
        return sl_fail(err, SL_ELIMIT, "more than %d adapters", SL_MAX_ADAPTERS);
    SL_ASSERT(lora != NULL && a->store == s && !a->listed);
    a->id = ++s->next_id;
    a->digest = lora->digest;
    a->listed = true;
    a->last_use = ++s->clock;
    a->prev = s->last;
    *(s->last != NULL ? &s->last->next : &s->all) = a;
    s->last = a;
    s->n_all++;
    s->n_listed++;
    s->n_loads++;
    if (adapters_make_room(s))
        put_weights(s, a, lora);
    else
        sl_lora_close(lora);
    return 0;
}

int sl_adapter_load(struct sl_engine *eng, const char *name, const char *path, bool replace,
                    struct sl_error *err)
{
    struct sl_adapters *s = store_of(eng);
    struct sl_lora *lora = NULL;
    if (s == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "adapters are not enabled (--enable-lora)");
    if (name[0] == '\0' || strlen(name) > SL_MAX_ADAPTER_NAME)
        return sl_fail(err, SL_EINVAL, "an adapter's name must have 1 to %d bytes",
                       SL_MAX_ADAPTER_NAME);
    pthread_mutex_lock(&s->lock);
    bool known = adapter_find(s, name) != NULL;
    pthread_mutex_unlock(&s->lock);
    int rc = 0;
    if (!known || replace) /* else enlist says so, without reading files */
        rc = adapter_open_files(s, path, &lora, err);
    struct sl_adapter *a = rc == 0 ? adapter_make(s, name, path) : NULL;
    if (rc == 0 && a == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for an adapter");
    if (rc != 0) {
        sl_lora_close(lora);
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    if (s->closed)
        rc = sl_fail(err, SL_ESHUTDOWN, "the engine is shutting down");
    else if (lora == NULL && adapter_find(s, name) == NULL)
        rc = sl_fail(err, SL_EBUSY, "adapter \"%.100s\" was just unloaded: try again", name);
    else
        rc = enlist(s, a, lora, replace, err);
    pthread_mutex_unlock(&s->lock);
    if (rc != 0) {
        sl_lora_close(lora);
        free_adapter(a);
    }
    return rc;
}

int sl_adapter_unload(struct sl_engine *eng, const char *name, struct sl_error *err)
{
    struct sl_adapters *s = store_of(eng);
    if (s == NULL)
        return sl_fail(err, SL_EUNSUPPORTED, "adapters are not enabled (--enable-lora)");
    pthread_mutex_lock(&s->lock);
    struct sl_adapter *a = adapter_find(s, name);
    if (a != NULL)
        unlist(s, a);
    pthread_mutex_unlock(&s->lock);
    return a != NULL
               ? 0
               : sl_fail(err, SL_ENOTFOUND, "The lora adapter '%.100s' cannot be found.", name);
}

const char *sl_adapter_name(const struct sl_adapter *a)
{
    return a->name;
}

bool sl_adapter_known(struct sl_engine *eng, const char *name)
{
    struct sl_adapters *s = store_of(eng);
    if (s == NULL)
        return false;
    pthread_mutex_lock(&s->lock);
    bool known = adapter_find(s, name) != NULL;
    pthread_mutex_unlock(&s->lock);
    return known;
}

void sl_adapter_each(struct sl_engine *eng,
                     void (*fn)(void *arg, const struct sl_adapter_info *info), void *arg)
{
    struct sl_adapters *s = store_of(eng);
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    for (const struct sl_adapter *a = s->all; a != NULL; a = a->next) {
        const struct sl_adapter_info info = {a->name, a->path, a->t_loaded_s, a->n_users};
        if (a->listed)
            fn(arg, &info);
    }
    pthread_mutex_unlock(&s->lock);
}

void sl_adapters_stats(struct sl_adapters *s, struct sl_stats *out)
{
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(s->n_resident <= s->cfg.max_resident && s->n_resident <= s->n_all);
    out->n_adapters = s->n_listed;
    out->n_adapters_resident = s->n_resident;
    out->max_adapters_active = s->cfg.max_active;
    out->adapter_loads = s->n_loads;
    out->adapter_evictions = s->n_evictions;
    pthread_mutex_unlock(&s->lock);
}

bool sl_adapters_name(struct sl_adapters *s, uint64_t id, char name[SL_MAX_ADAPTER_NAME + 1])
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (const struct sl_adapter *a = s->all; a != NULL && !found; a = a->next) {
        found = a->id == id && a->listed && strlen(a->name) <= SL_MAX_ADAPTER_NAME;
        if (found)
            memcpy(name, a->name, strlen(a->name) + 1);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}
