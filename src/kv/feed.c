/* SPDX-License-Identifier: MIT */
#include "kv/feed.h"

#include "base/check.h"
#include "base/sys.h"
#include "kv/pool.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

int sl_feed_create(int32_t n_nodes, int32_t n_groups, int32_t block_size, struct sl_kv_feed **out,
                   struct sl_error *err)
{
    SL_ASSERT(n_nodes > 0 && block_size > 0 && block_size <= SL_MAX_PAGE_TOKENS);
    SL_ASSERT(n_groups > 0 && n_groups <= SL_MAX_KV_GROUPS);
    struct sl_kv_feed *f = sl_calloc(1, sizeof *f);
    *out = f;
    if (f == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for KV events");
    pthread_mutex_init(&f->lock, NULL);
    f->n_nodes = n_nodes;
    f->n_groups = n_groups;
    f->block_size = block_size;
    f->head = f->tail = f->unreported = f->first_late = SL_NO_NODE;
    f->change = 1;
    f->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    f->nodes = sl_calloc((size_t)n_nodes, sizeof *f->nodes);
    f->tokens = sl_calloc((size_t)n_nodes, (size_t)block_size * sizeof *f->tokens);
    f->salts = sl_calloc((size_t)n_nodes, sizeof *f->salts);
    f->removed = sl_calloc((size_t)n_nodes * (size_t)n_groups, sizeof *f->removed);
    int rc = 0;
    if (f->event_fd < 0)
        rc = sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    else if (f->nodes == NULL || f->tokens == NULL || f->salts == NULL || f->removed == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for KV events of %d blocks", n_nodes);
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
    sl_free(f->nodes);
    sl_free(f);
}

uint64_t sl_feed_name(const struct sl_hash128 *name)
{
    uint64_t low = name->lo & INT64_MAX;
    return low != 0 ? low : 1;
}

static struct sl_feed_node *feed_node(struct sl_kv_feed *f, int32_t node)
{
    SL_ASSERT(node >= 0 && node < f->n_nodes);
    return &f->nodes[node];
}

static unsigned feed_told(const struct sl_kv_feed *f, const struct sl_feed_node *n)
{
    return n->change == f->change ? n->told : 0;
}

/* Bits of groups with a page to report. */
static unsigned feed_news(const struct sl_kv_feed *f, const struct sl_feed_node *n)
{
    return n->in ? n->has & ~feed_told(f, n) : 0;
}

/* ---- the engine's side */

/* Of a prompt's first node: may others find it, and with which adapter and salt? */
static bool describe(struct sl_kv_feed *f, int32_t node, const struct sl_kv_ns *ns)
{
    struct sl_feed_node *p = feed_node(f, node);
    float factor;
    SL_ASSERT(ns->n_bytes >= SL_KV_NS_TENANT + SL_KV_NS_ADAPTER || ns->is_private);
    if (ns->is_private)
        return false;
    memcpy(&p->adapter, ns->bytes + SL_KV_NS_TENANT, sizeof p->adapter);
    memcpy(&factor, ns->bytes + SL_KV_NS_TENANT + sizeof p->adapter, sizeof factor);
    p->n_salt = (uint8_t)(ns->n_bytes - SL_KV_NS_TENANT - SL_KV_NS_ADAPTER);
    SL_ASSERT(p->n_salt <= SL_MAX_CACHE_SALT);
    memcpy(f->salts[node], ns->bytes + SL_KV_NS_TENANT + SL_KV_NS_ADAPTER, p->n_salt);
    return p->adapter == 0 || (factor >= 1 && factor <= 1);
}

/* With the lock: a node that others may find. */
static void feed_put_in(struct sl_kv_feed *f, int32_t node, const struct sl_kv_node *n,
                        const int32_t *tokens, unsigned has)
{
    struct sl_feed_node *p = feed_node(f, node);
    p->name = sl_feed_name(&n->name);
    p->has = (uint8_t)has;
    p->told = 0;
    p->in = true;
    p->prev = f->tail;
    p->next = SL_NO_NODE;
    memcpy(f->tokens + (size_t)node * (size_t)f->block_size, tokens,
           (size_t)f->block_size * sizeof *tokens);
    *(f->tail != SL_NO_NODE ? &f->nodes[f->tail].next : &f->head) = node;
    f->tail = node;
    if (f->unreported == SL_NO_NODE)
        f->unreported = node;
    f->n_in++;
}

void sl_feed_stored(struct sl_kv_feed *f, int32_t node, const struct sl_kv_node *n,
                    const struct sl_kv_ns *ns, const int32_t *tokens, unsigned has)
{
    struct sl_feed_node *p = feed_node(f, node);
    SL_ASSERT(!p->in && has >> f->n_groups == 0);
    pthread_mutex_lock(&f->lock);
    p->parent = n->parent;
    p->parent_name = p->n_salt = 0;
    bool known = true;
    if (n->parent == SL_NO_NODE) {
        known = describe(f, node, ns);
    } else {
        const struct sl_feed_node *parent = feed_node(f, n->parent);
        known = parent->in;
        p->parent_name = parent->name;
        p->adapter = parent->adapter;
        p->n_salt = parent->n_salt;
        memcpy(f->salts[node], f->salts[n->parent], p->n_salt);
    }
    if (known)
        feed_put_in(f, node, n, tokens, has);
    pthread_mutex_unlock(&f->lock);
}

/* With the lock: pages of these groups are gone. */
static void feed_remove(struct sl_kv_feed *f, int32_t node, unsigned groups)
{
    struct sl_feed_node *p = feed_node(f, node);
    const int64_t room = (int64_t)f->n_nodes * f->n_groups;
    const unsigned told = feed_told(f, p);
    for (int32_t g = 0; g < f->n_groups; g++) {
        if ((told & groups & 1u << g) == 0)
            continue;
        SL_ASSERT(f->n_removed < room); /* once for each time that it was reported */
        f->removed[(f->first_removed + f->n_removed++) % room] =
            (struct sl_feed_removed){p->name, g};
    }
    p->told = (uint8_t)(told & ~groups);
    p->change = f->change;
    p->has = (uint8_t)(p->has & ~groups);
}

void sl_feed_page(struct sl_kv_feed *f, int32_t node, int32_t group, bool has)
{
    struct sl_feed_node *p = feed_node(f, node);
    const unsigned bit = 1u << group;
    SL_ASSERT(group >= 0 && group < f->n_groups);
    if (!p->in) /* this thread alone changes it */
        return;
    pthread_mutex_lock(&f->lock);
    if (!has) {
        feed_remove(f, node, bit);
    } else {
        p->has = (uint8_t)(p->has | bit);
        if (!p->late) { /* if the reader did not pass it, nothing is left to report there */
            p->late = true;
            p->next_late = SL_NO_NODE;
            *(f->first_late != SL_NO_NODE ? &f->nodes[f->last_late].next_late : &f->first_late) =
                node;
            f->last_late = node;
        }
    }
    pthread_mutex_unlock(&f->lock);
}

/* With the lock. */
static void feed_take_out(struct sl_kv_feed *f, int32_t node)
{
    struct sl_feed_node *p = feed_node(f, node);
    if (!p->in)
        return;
    feed_remove(f, node, UINT8_MAX);
    if (f->unreported == node)
        f->unreported = p->next;
    *(p->prev != SL_NO_NODE ? &f->nodes[p->prev].next : &f->head) = p->next;
    *(p->next != SL_NO_NODE ? &f->nodes[p->next].prev : &f->tail) = p->prev;
    p->in = false;
    f->n_in--;
}

void sl_feed_removed(struct sl_kv_feed *f, int32_t node)
{
    pthread_mutex_lock(&f->lock);
    feed_take_out(f, node);
    pthread_mutex_unlock(&f->lock);
}

void sl_feed_lost(struct sl_kv_feed *f, int32_t node)
{
    pthread_mutex_lock(&f->lock);
    int32_t next = f->nodes[node].in ? f->nodes[node].next : SL_NO_NODE;
    feed_take_out(f, node);
    while (next != SL_NO_NODE) { /* children come after their parents */
        int32_t at = next, parent = f->nodes[at].parent;
        next = f->nodes[at].next;
        if (parent != SL_NO_NODE && !f->nodes[parent].in)
            feed_take_out(f, at);
    }
    pthread_mutex_unlock(&f->lock);
}

void sl_feed_cleared(struct sl_kv_feed *f)
{
    pthread_mutex_lock(&f->lock);
    for (int32_t i = f->head; i != SL_NO_NODE; i = f->nodes[i].next)
        f->nodes[i].in = false;
    f->head = f->tail = f->unreported = SL_NO_NODE;
    f->n_in = 0;
    f->n_removed = 0;
    f->cleared = true;
    pthread_mutex_unlock(&f->lock);
}

/* With the lock. */
static void signal_reader(struct sl_kv_feed *f, bool some)
{
    uint64_t one = 1;
    if (!f->signalled && some)
        f->signalled = sl_sys->write(f->event_fd, &one, sizeof one) == (ssize_t)sizeof one;
}

static bool feed_has_news(const struct sl_kv_feed *f)
{
    return f->cleared || f->n_removed > 0 || f->unreported != SL_NO_NODE ||
           f->first_late != SL_NO_NODE;
}

void sl_feed_wake(struct sl_kv_feed *f)
{
    pthread_mutex_lock(&f->lock);
    signal_reader(f, true);
    pthread_mutex_unlock(&f->lock);
}

void sl_feed_signal(struct sl_kv_feed *f)
{
    pthread_mutex_lock(&f->lock);
    signal_reader(f, feed_has_news(f));
    pthread_mutex_unlock(&f->lock);
}

/* ---- the reader's */

/* The first page of a node that is to be reported. */
static void feed_put_stored(struct sl_kv_feed *f, int32_t node, struct sl_feed_event *e,
                            int32_t *tokens)
{
    struct sl_feed_node *p = feed_node(f, node);
    const unsigned news = feed_news(f, p);
    int32_t group = 0;
    while ((news >> group & 1) == 0)
        group++;
    SL_ASSERT(group < f->n_groups);
    *e = (struct sl_feed_event){.kind = SL_KV_STORED,
                                .name = p->name,
                                .parent_name = p->parent_name,
                                .adapter = p->adapter,
                                .group = group,
                                .n_salt = p->n_salt};
    memcpy(e->salt, f->salts[node], p->n_salt);
    memcpy(tokens, f->tokens + (size_t)node * (size_t)f->block_size,
           (size_t)f->block_size * sizeof *tokens);
    p->told = (uint8_t)(feed_told(f, p) | 1u << group);
    p->change = f->change;
}

/* The node to report next, SL_NO_NODE: there is none. */
static int32_t feed_next(struct sl_kv_feed *f)
{
    while (f->unreported != SL_NO_NODE && feed_news(f, &f->nodes[f->unreported]) == 0)
        f->unreported = f->nodes[f->unreported].next;
    if (f->unreported != SL_NO_NODE)
        return f->unreported;
    while (f->first_late != SL_NO_NODE && feed_news(f, &f->nodes[f->first_late]) == 0) {
        f->nodes[f->first_late].late = false;
        f->first_late = f->nodes[f->first_late].next_late;
    }
    return f->first_late;
}

int32_t sl_feed_read(struct sl_kv_feed *f, struct sl_feed_event *out, int32_t *tokens, int32_t max)
{
    int32_t n = 0, node;
    SL_ASSERT(max > 0);
    pthread_mutex_lock(&f->lock);
    if (f->cleared)
        out[n++] = (struct sl_feed_event){.kind = SL_KV_CLEARED};
    f->cleared = false;
    for (; f->n_removed > 0 && n < max; f->n_removed--) {
        const struct sl_feed_removed *r = &f->removed[f->first_removed];
        out[n++] =
            (struct sl_feed_event){.kind = SL_KV_REMOVED, .name = r->name, .group = r->group};
        f->first_removed = (f->first_removed + 1) % ((int64_t)f->n_nodes * f->n_groups);
    }
    for (; f->n_removed == 0 && n < max && (node = feed_next(f)) != SL_NO_NODE; n++)
        feed_put_stored(f, node, &out[n], tokens + (size_t)n * (size_t)f->block_size);
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
    signal_reader(f, true); /* an idle engine has no turn that would */
    pthread_mutex_unlock(&f->lock);
}
