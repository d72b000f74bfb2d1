/* SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/store_impl.h"

#define PIECE      (UINT64_C(64) << 20)  /* bytes that become ready at a time */
#define READY      (UINT64_C(512) << 20) /* bytes kept ready ahead of use */
#define TOUCH_STEP 4096
#define TELL_BYTES (UINT64_C(8) << 30) /* the log says how far it is */

/* Only the store's, as no page lies there yet. */
static int make_ready(struct sl_store *s, int32_t chunk, int32_t n, struct sl_error *err)
{
    uint8_t *p = s->host.arena + (size_t)chunk * s->host.chunk_bytes;
    const size_t n_bytes = (size_t)n * s->host.chunk_bytes;
    SL_ASSERT(n > 0 && (size_t)(p - s->host.arena) + n_bytes <= s->host.n_arena);
    for (size_t i = 0; i < n_bytes; i += TOUCH_STEP)
        ((volatile uint8_t *)p)[i] = 0;
    int rc = s->touch.pins ? s->cfg.pin(s->cfg.device, p, n_bytes, err) : 0;
    s->touch.n_pinned += s->touch.pins && rc == 0;
    return rc;
}

/* Pinned memory is all made ready at once, as that holds up a device; other memory ahead of its
 * use, so that what is never used costs nothing. */
static bool is_enough(const struct sl_store *s)
{
    const struct sl_slots *l = &s->host.slots;
    return !s->touch.pins && (uint64_t)l->n_ownerless * s->host.chunk_bytes >= READY;
}

static void tell(const struct sl_store *s, int32_t before)
{
    const uint64_t was = (uint64_t)before * s->host.chunk_bytes;
    const uint64_t now = (uint64_t)s->host.slots.n_there * s->host.chunk_bytes;
    if (s->touch.pins &&
        (was / TELL_BYTES != now / TELL_BYTES || s->host.slots.n_there == s->host.slots.n_chunks))
        sl_log(SL_LOG_INFO, "%.1f of %.1f GB of host memory for KV pages are pinned",
               (double)now / 1e9,
               (double)s->host.slots.n_chunks * (double)s->host.chunk_bytes / 1e9);
}

static void *touch_main(void *arg)
{
    struct sl_store *s = arg;
    struct sl_slots *l = &s->host.slots;
    struct sl_error err;
    pthread_mutex_lock(&s->lock);
    while (!s->touch.closing && l->n_there < l->n_chunks) {
        if (is_enough(s)) {
            pthread_cond_wait(&s->touch.more, &s->lock);
            continue;
        }
        const int32_t at = l->n_there, n = SL_MIN(s->touch.piece, l->n_chunks - at);
        pthread_mutex_unlock(&s->lock);
        int rc = make_ready(s, at, n, &err);
        pthread_mutex_lock(&s->lock);
        if (rc != 0) {
            sl_log(SL_LOG_WARN, "%.1f GB of host memory for KV pages are not used: %s",
                   (double)(l->n_chunks - at) * (double)s->host.chunk_bytes / 1e9, err.msg);
            break;
        }
        sl_slots_admit(l, n);
        tell(s, at);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int sl_store_touch_start(struct sl_store *s, struct sl_error *err)
{
    struct sl_slots *l = &s->host.slots;
    struct sl_error why;
    SL_ASSERT(s->host.chunk_bytes > 0 && l->n_there == l->n_chunks && !s->touch.started);
    int32_t n = (int32_t)SL_MIN(PIECE / s->host.chunk_bytes, (uint64_t)l->n_chunks);
    n = SL_MIN(SL_MAX(n, l->n_groups + 1), l->n_chunks);
    s->touch.piece = n;
    s->touch.pins = s->cfg.pin != NULL;
    pthread_cond_init(&s->touch.more, NULL);
    s->touch.started = true;
    if (make_ready(s, 0, n, &why) != 0) {
        s->touch.pins = false;
        sl_log(SL_LOG_WARN, "KV pages are copied through memory of the driver: %s", why.msg);
    }
    if (n == l->n_chunks)
        return 0;
    sl_slots_withhold(l, n);
    int rc = sl_thread_create(&s->touch.thread, touch_main, s, "kv-touch", err);
    if (rc != 0)
        s->touch.piece = 0; /* there is no thread */
    return rc;
}

void sl_store_touch_stop(struct sl_store *s)
{
    if (!s->touch.started)
        return;
    const bool thread = s->touch.piece > 0 && s->touch.piece < s->host.slots.n_chunks;
    pthread_mutex_lock(&s->lock);
    s->touch.closing = true;
    pthread_cond_signal(&s->touch.more);
    pthread_mutex_unlock(&s->lock);
    if (thread)
        pthread_join(s->touch.thread, NULL);
    pthread_cond_destroy(&s->touch.more);
    s->touch.started = false;
}

void sl_store_unpin(struct sl_store *s)
{
    for (int32_t i = 0; i < s->touch.n_pinned; i++)
        s->cfg.unpin(s->cfg.device,
                     s->host.arena + (size_t)i * (size_t)s->touch.piece * s->host.chunk_bytes);
    s->touch.n_pinned = 0;
}

void sl_store_touch_more(struct sl_store *s)
{
    if (s->host.slots.n_there < s->host.slots.n_chunks && !is_enough(s))
        pthread_cond_signal(&s->touch.more);
}
