/* SPDX-License-Identifier: MIT */
#include "kv/feed.h"

#include "base/check.h"
#include "base/sys.h"
#include "kv/pool.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

int sl_feed_create(int32_t n_pages, int32_t block_size, struct sl_kv_feed **out,
                   struct sl_error *err)
{
    SL_ASSERT(n_pages > 0 && block_size > 0 && block_size <= SL_MAX_BLOCK_SIZE);
    struct sl_kv_feed *f = sl_calloc(1, sizeof *f);
    *out = f;
    if (f == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for KV events");
    pthread_mutex_init(&f->lock, NULL);
    f->n_pages = n_pages;
    f->block_size = block_size;
    f->head = f->tail = f->unreported = SL_NO_PAGE;
    f->change = 1;
    f->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    f->pages = sl_calloc((size_t)n_pages, sizeof *f->pages);
    f->tokens = sl_calloc((size_t)n_pages, (size_t)block_size * sizeof *f->tokens);
    f->salts = sl_calloc((size_t)n_pages, sizeof *f->salts);
    f->removed = sl_calloc((size_t)n_pages, sizeof *f->removed);
    int rc = 0;
    if (f->event_fd < 0)
        rc = sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    else if (f->pages == NULL || f->tokens == NULL || f->salts == NULL || f->removed == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for KV events of %d pages", n_pages);
    if (rc != 0) {
        sl_feed_destroy(f);
        *out = NULL;
    }
    return rc;
}

void sl_feed_destroy(struct sl_kv_feed *f)
{
    if (f == NULL)
        return;
    if (f->event_fd >= 0)
        sl_sys->close(f->event_fd);
    pthread_mutex_destroy(&f->lock);
    sl_free(f->removed);
    sl_free(f->salts);
    sl_free(f->tokens);
    sl_free(f->pages);
    sl_free(f);
}

/* What readers know a page by. Signed 64-bit integers are all that some of them take. */
static uint64_t feed_name(const struct sl_hash128 *name)
{
    uint64_t low = name->lo & INT64_MAX;
    return low != 0 ? low : 1;
}

static struct sl_feed_page *page_of(struct sl_kv_feed *f, int32_t page)
{
    SL_ASSERT(page >= 0 && page < f->n_pages);
    return &f->pages[page];
}

/* ---- the engine's side */

/* Of a prompt's first page: may others find it, and with which adapter and salt? */
static bool describe(struct sl_kv_feed *f, int32_t page, const struct sl_kv_ns *ns)
{
    struct sl_feed_page *p = page_of(f, page);
    float factor;
    SL_ASSERT(ns->n_bytes >= SL_KV_NS_TENANT + SL_KV_NS_ADAPTER || ns->is_private);
    if (ns->is_private)
        return false;
    memcpy(&p->adapter, ns->bytes + SL_KV_NS_TENANT, sizeof p->adapter);
    memcpy(&factor, ns->bytes + SL_KV_NS_TENANT + sizeof p->adapter, sizeof factor);
    p->n_salt = (uint8_t)(ns->n_bytes - SL_KV_NS_TENANT - SL_KV_NS_ADAPTER);
    SL_ASSERT(p->n_salt <= SL_MAX_CACHE_SALT);
    memcpy(f->salts[page], ns->bytes + SL_KV_NS_TENANT + SL_KV_NS_ADAPTER, p->n_salt);
    return p->adapter == 0 || (factor >= 1 && factor <= 1);
}

void sl_feed_stored(struct sl_kv_feed *f, int32_t page, const struct sl_kv_node *node,
                    const struct sl_kv_ns *ns, const int32_t *tokens)
{
    struct sl_feed_page *p = page_of(f, page);
    SL_ASSERT(!p->in);
    pthread_mutex_lock(&f->lock);
    p->parent = node->parent;
    p->parent_name = p->n_salt = 0;
    bool known = true;
    if (node->parent == SL_NO_PAGE) {
        known = describe(f, page, ns);
    } else {
        const struct sl_feed_page *parent = page_of(f, node->parent);
        known = parent->in;
        p->parent_name = parent->name;
        p->adapter = parent->adapter;
        p->n_salt = parent->n_salt;
        memcpy(f->salts[page], f->salts[node->parent], p->n_salt);
    }
    if (known) {
        p->name = feed_name(&node->name);
        p->reported = 0;
        p->in = true;
        p->prev = f->tail;
        p->next = SL_NO_PAGE;
        memcpy(f->tokens + (size_t)page * (size_t)f->block_size, tokens,
               (size_t)f->block_size * sizeof *tokens);
        *(f->tail != SL_NO_PAGE ? &f->pages[f->tail].next : &f->head) = page;
        f->tail = page;
        if (f->unreported == SL_NO_PAGE)
            f->unreported = page;
        f->n_in++;
    }
    pthread_mutex_unlock(&f->lock);
}

/* With the lock. */
static void feed_take_out(struct sl_kv_feed *f, int32_t page)
{
    struct sl_feed_page *p = page_of(f, page);
    if (!p->in)
        return;
    if (p->reported == f->change) { /* at most once for each time it was reported */
        SL_ASSERT(f->n_removed < f->n_pages);
        f->removed[(f->first_removed + f->n_removed++) % f->n_pages] = p->name;
    }
    if (f->unreported == page)
        f->unreported = p->next;
    *(p->prev != SL_NO_PAGE ? &f->pages[p->prev].next : &f->head) = p->next;
    *(p->next != SL_NO_PAGE ? &f->pages[p->next].prev : &f->tail) = p->prev;
    p->in = false;
    f->n_in--;
}

void sl_feed_removed(struct sl_kv_feed *f, int32_t page)
{
    pthread_mutex_lock(&f->lock);
    feed_take_out(f, page);
    pthread_mutex_unlock(&f->lock);
}

void sl_feed_lost(struct sl_kv_feed *f, int32_t page)
{
    pthread_mutex_lock(&f->lock);
    int32_t next = f->pages[page].in ? f->pages[page].next : SL_NO_PAGE;
    feed_take_out(f, page);
    while (next != SL_NO_PAGE) { /* children come after their parents */
        int32_t at = next, parent = f->pages[at].parent;
        next = f->pages[at].next;
        if (parent != SL_NO_PAGE && !f->pages[parent].in)
            feed_take_out(f, at);
    }
    pthread_mutex_unlock(&f->lock);
}

void sl_feed_cleared(struct sl_kv_feed *f)
{
    pthread_mutex_lock(&f->lock);
    for (int32_t i = f->head; i != SL_NO_PAGE; i = f->pages[i].next)
        f->pages[i].in = false;
    f->head = f->tail = f->unreported = SL_NO_PAGE;
    f->n_in = f->n_removed = 0;
    f->cleared = true;
    pthread_mutex_unlock(&f->lock);
}

/* With the lock. */
static void signal_reader(struct sl_kv_feed *f)
{
    if (!f->signalled && (f->cleared || f->n_removed > 0 || f->unreported != SL_NO_PAGE)) {
        uint64_t one = 1;
        f->signalled = sl_sys->write(f->event_fd, &one, sizeof one) == (ssize_t)sizeof one;
    }
}

void sl_feed_signal(struct sl_kv_feed *f)
{
    pthread_mutex_lock(&f->lock);
    signal_reader(f);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the reader's */

static void feed_put_stored(struct sl_kv_feed *f, struct sl_feed_event *e, int32_t *tokens)
{
    int32_t page = f->unreported;
    struct sl_feed_page *p = page_of(f, page);
    SL_ASSERT(p->in && p->reported != f->change);
    *e = (struct sl_feed_event){.kind = SL_KV_STORED,
                                .name = p->name,
                                .parent_name = p->parent_name,
                                .adapter = p->adapter,
                                .n_salt = p->n_salt};
    memcpy(e->salt, f->salts[page], p->n_salt);
    memcpy(tokens, f->tokens + (size_t)page * (size_t)f->block_size,
           (size_t)f->block_size * sizeof *tokens);
    p->reported = f->change;
    f->unreported = p->next;
}

int32_t sl_feed_read(struct sl_kv_feed *f, struct sl_feed_event *out, int32_t *tokens, int32_t max)
{
    int32_t n = 0;
    SL_ASSERT(max > 0);
    pthread_mutex_lock(&f->lock);
    if (f->cleared)
        out[n++] = (struct sl_feed_event){.kind = SL_KV_CLEARED};
    f->cleared = false;
    for (; f->n_removed > 0 && n < max; f->n_removed--) {
        out[n++] =
            (struct sl_feed_event){.kind = SL_KV_REMOVED, .name = f->removed[f->first_removed]};
        f->first_removed = (f->first_removed + 1) % f->n_pages;
    }
    for (; f->n_removed == 0 && f->unreported != SL_NO_PAGE && n < max; n++)
        feed_put_stored(f, &out[n], tokens + (size_t)n * (size_t)f->block_size);
    if (n == 0 && f->signalled) {
        uint64_t count;
        ssize_t got = sl_sys->read(f->event_fd, &count, sizeof count);
        (void)got; /* it was written, so it can be read */
        f->signalled = false;
    }
    pthread_mutex_unlock(&f->lock);
    return n;
}

void sl_feed_again(struct sl_kv_feed *f)
{
    pthread_mutex_lock(&f->lock);
    f->change++;
    f->cleared = true;
    f->n_removed = 0;
    f->unreported = f->head;
    signal_reader(f); /* an idle engine has no turn that would */
    pthread_mutex_unlock(&f->lock);
}
