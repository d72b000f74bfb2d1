/* SPDX-License-Identifier: MIT */
#include "server/jobs/response_store.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "base/sys.h"
#include "server/loop.h"

#include <pthread.h>
#include <string.h>

#define N_BUCKETS   4096
#define ENTRY_BYTES 256 /* what an entry takes besides its texts, about */

struct sl_response_turn {
    struct sl_response_turn *parent; /* a reference */
    int refs;                        /* lock */
    size_t n;
    char *text;
};

struct sl_stored {
    struct sl_stored *chain;       /* of its bucket */
    struct sl_stored *prev, *next; /* by use, the latest first; those that have ended alone */
    char id[64];
    int tenant;
    bool listed;  /* in the table */
    bool running; /* a call has it */
    atomic_bool cancelled;
    struct sl_loop *loop;
    struct sl_buf body;
    struct sl_response_turn *turn;
};

struct sl_response_store {
    pthread_mutex_t lock;
    uint64_t max_bytes, n_bytes;
    struct sl_stored *buckets[N_BUCKETS];
    struct sl_stored *first, *last;
};

int sl_responses_create(uint64_t max_bytes, struct sl_response_store **out, struct sl_error *err)
{
    struct sl_response_store *s = sl_calloc(1, sizeof *s);
    *out = s;
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    pthread_mutex_init(&s->lock, NULL);
    s->max_bytes = max_bytes;
    return 0;
}

bool sl_responses_keeps(const struct sl_response_store *s)
{
    return s->max_bytes > 0;
}

/* ---- with the lock */

static struct sl_stored **response_store_bucket_of(struct sl_response_store *s, const char *id)
{
    return &s->buckets[sl_hash64(id, strlen(id), 0) % N_BUCKETS];
}

static struct sl_stored *response_store_find(struct sl_response_store *s, const char *id,
                                             int tenant)
{
    struct sl_stored *e = *response_store_bucket_of(s, id);
    while (e != NULL && strcmp(e->id, id) != 0)
        e = e->chain;
    return e != NULL && e->tenant == tenant ? e : NULL;
}

/* Turns that nothing refers to any more, from t up. A loop: conversations may be long. */
static void unref_turn(struct sl_response_store *s, struct sl_response_turn *t)
{
    while (t != NULL && --t->refs == 0) {
        struct sl_response_turn *parent = t->parent;
        s->n_bytes -= t->n;
        sl_free(t->text);
        sl_free(t);
        t = parent;
    }
}

static void unlink_used(struct sl_response_store *s, struct sl_stored *e)
{
    if (e->prev == NULL && s->first != e)
        return; /* it is not in the list */
    *(e->prev != NULL ? &e->prev->next : &s->first) = e->next;
    *(e->next != NULL ? &e->next->prev : &s->last) = e->prev;
    e->prev = e->next = NULL;
}

static void link_used(struct sl_response_store *s, struct sl_stored *e)
{
    e->prev = NULL;
    e->next = s->first;
    *(s->first != NULL ? &s->first->prev : &s->last) = e;
    s->first = e;
}

static void response_store_take_out(struct sl_response_store *s, struct sl_stored *e)
{
    struct sl_stored **at = response_store_bucket_of(s, e->id);
    if (!e->listed)
        return;
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    e->listed = false;
    unlink_used(s, e);
    s->n_bytes -= ENTRY_BYTES + e->body.n_bytes;
}

static void free_entry(struct sl_response_store *s, struct sl_stored *e)
{
    SL_ASSERT(!e->listed);
    unref_turn(s, e->turn);
    sl_buf_deinit(&e->body);
    sl_free(e);
}

static void response_store_make_room(struct sl_response_store *s)
{
    while (s->n_bytes > s->max_bytes && s->last != NULL) {
        struct sl_stored *e = s->last;
        response_store_take_out(s, e);
        free_entry(s, e);
    }
}

/* ---- life of a response */

struct sl_stored *sl_responses_begin(struct sl_response_store *s, const char *id, int tenant,
                                     struct sl_loop *loop, struct sl_buf *body)
{
    struct sl_stored *e = sl_calloc(1, sizeof *e);
    if (e == NULL || !sl_buf_ok(body) || strlen(id) >= sizeof e->id) {
        sl_free(e);
        sl_buf_deinit(body);
        return NULL;
    }
    memcpy(e->id, id, strlen(id) + 1);
    e->tenant = tenant;
    e->loop = loop;
    e->running = e->listed = true;
    e->body = *body;
    *body = (struct sl_buf){0};
    pthread_mutex_lock(&s->lock);
    struct sl_stored **bucket = response_store_bucket_of(s, id);
    e->chain = *bucket;
    *bucket = e;
    s->n_bytes += ENTRY_BYTES + e->body.n_bytes;
    response_store_make_room(s);
    pthread_mutex_unlock(&s->lock);
    return e;
}

const atomic_bool *sl_stored_cancelled(const struct sl_stored *e)
{
    return &e->cancelled;
}

static struct sl_response_turn *make_turn(struct sl_buf *messages, struct sl_response_turn *parent)
{
    struct sl_response_turn *t = sl_buf_ok(messages) ? sl_calloc(1, sizeof *t) : NULL;
    if (t == NULL)
        return NULL;
    t->refs = 1;
    t->parent = parent;
    t->text = sl_buf_steal(messages, &t->n);
    if (t->text == NULL) {
        sl_free(t);
        return NULL;
    }
    return t;
}

void sl_responses_finish(struct sl_response_store *s, struct sl_stored *e, struct sl_buf *body,
                         struct sl_buf *messages, struct sl_response_turn *parent)
{
    struct sl_response_turn *t = make_turn(messages, parent);
    bool good = t != NULL && sl_buf_ok(body);
    pthread_mutex_lock(&s->lock);
    SL_ASSERT(e->running);
    e->running = false;
    if (t != NULL)
        s->n_bytes += t->n;
    if (e->listed && good) {
        s->n_bytes += body->n_bytes;
        s->n_bytes -= e->body.n_bytes;
        sl_buf_deinit(&e->body);
        e->body = *body;
        *body = (struct sl_buf){0};
        e->turn = t;
        link_used(s, e);
        response_store_make_room(s);
    } else { /* deleted meanwhile, or there was no memory for it */
        if (t != NULL)
            unref_turn(s, t);
        else
            unref_turn(s, parent);
        response_store_take_out(s, e);
        free_entry(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    sl_buf_deinit(body);
    sl_buf_deinit(messages);
}

void sl_responses_drop(struct sl_response_store *s, struct sl_stored *e)
{
    pthread_mutex_lock(&s->lock);
    response_store_take_out(s, e);
    free_entry(s, e);
    pthread_mutex_unlock(&s->lock);
}

/* ---- what clients ask */

bool sl_responses_get(struct sl_response_store *s, const char *id, int tenant, struct sl_buf *out)
{
    pthread_mutex_lock(&s->lock);
    struct sl_stored *e = response_store_find(s, id, tenant);
    if (e != NULL) {
        sl_buf_put(out, e->body.data, e->body.n_bytes);
        if (!e->running) {
            unlink_used(s, e);
            link_used(s, e);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

bool sl_responses_delete(struct sl_response_store *s, const char *id, int tenant)
{
    pthread_mutex_lock(&s->lock);
    struct sl_stored *e = response_store_find(s, id, tenant);
    if (e != NULL) {
        response_store_take_out(s, e);
        if (!e->running) /* else its call frees it */
            free_entry(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

bool sl_responses_cancel(struct sl_response_store *s, const char *id, int tenant, bool *running)
{
    pthread_mutex_lock(&s->lock);
    struct sl_stored *e = response_store_find(s, id, tenant);
    *running = e != NULL && e->running;
    if (*running) {
        atomic_store(&e->cancelled, true);
        sl_loop_wake(e->loop); /* with the lock: its call cannot end meanwhile */
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

/* ---- turns */

struct sl_response_turn *sl_responses_turn(struct sl_response_store *s, const char *id, int tenant)
{
    struct sl_response_turn *t = NULL;
    pthread_mutex_lock(&s->lock);
    struct sl_stored *e = response_store_find(s, id, tenant);
    if (e != NULL && !e->running) {
        t = e->turn;
        t->refs++;
        unlink_used(s, e);
        link_used(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return t;
}

void sl_response_turn_unref(struct sl_response_store *s, struct sl_response_turn *t)
{
    if (t == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    unref_turn(s, t);
    pthread_mutex_unlock(&s->lock);
}

/* Parents of a referenced turn stay. */
size_t sl_response_turn_bytes(const struct sl_response_turn *t)
{
    size_t n_bytes = 0;
    for (; t != NULL; t = t->parent)
        n_bytes += t->n;
    return n_bytes;
}

static int append_messages(const struct sl_response_turn *t, json_t *out)
{
    json_error_t error;
    json_t *messages = sl_json_load(t->text, t->n, JSON_ALLOW_NUL, &error);
    bool ok = messages != NULL && json_array_extend(out, messages) == 0;
    json_decref(messages);
    return ok ? 0 : SL_ENOMEM;
}

int sl_response_turn_messages(const struct sl_response_turn *last, json_t *out)
{
    const struct sl_response_turn *t;
    size_t n = 0;
    int rc = 0;
    for (t = last; t != NULL; t = t->parent)
        n++;
    const struct sl_response_turn **turns =
        sl_calloc(n + 1, sizeof(const struct sl_response_turn *));
    if (turns == NULL)
        return SL_ENOMEM;
    for (t = last, n = 0; t != NULL; t = t->parent)
        turns[n++] = t;
    while (n > 0 && rc == 0)
        rc = append_messages(turns[--n], out);
    sl_free(turns);
    return rc;
}

void sl_responses_destroy(struct sl_response_store *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < N_BUCKETS; i++) {
        while (s->buckets[i] != NULL) {
            struct sl_stored *e = s->buckets[i];
            SL_ASSERT(!e->running); /* the calls have ended */
            response_store_take_out(s, e);
            free_entry(s, e);
        }
    }
    SL_ASSERT(s->n_bytes == 0);
    pthread_mutex_destroy(&s->lock);
    sl_free(s);
}
