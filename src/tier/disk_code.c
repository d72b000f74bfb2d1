/* SPDX-License-Identifier: MIT */
#include "tier/disk_code.h"

#include "base/check.h"
#include "base/sys.h"
#include "tier/coding.h"
#include "tier/slab.h"

#include <string.h>

#define TRIALS      4            /* pages until it is known what coding brings */
#define TRIAL_EVERY 256          /* pages, afterwards */
#define KEEP        0.98         /* of what was measured, at each page */
#define MIN_ROOM    (256u << 10) /* from here on memory begins at a page of the system */

/* Pages from here on are not coded: room for them would be that of all others. */
#define MOST_CODED ((size_t)16 << 20)

int sl_disk_code_open(struct sl_disk_code *c, enum sl_coding coding, size_t most,
                      struct sl_error *err)
{
    *c = (struct sl_disk_code){.coding = coding, .most = SL_MIN(most, MOST_CODED)};
    pthread_mutex_init(&c->lock, NULL);
    c->first_free = coding != SL_CODING_NONE ? 0 : -1;
    for (int32_t i = 0; i < SL_DISK_ROOMS && coding != SL_CODING_NONE; i++) {
        struct sl_disk_room *r = &c->rooms[i];
        r->coded = sl_aligned_alloc(SL_MAX(c->most, MIN_ROOM));
        r->scratch = sl_malloc(sl_code_scratch_bytes(c->most));
        r->next = i + 1 < SL_DISK_ROOMS ? i + 1 : -1;
        if (r->coded == NULL || r->scratch == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory to code KV pages of %zu bytes", c->most);
    }
    return 0;
}

void sl_disk_code_close(struct sl_disk_code *c)
{
    for (int32_t i = 0; i < SL_DISK_ROOMS; i++) {
        sl_free(c->rooms[i].scratch);
        sl_aligned_free(c->rooms[i].coded, SL_MAX(c->most, MIN_ROOM));
    }
    pthread_mutex_destroy(&c->lock);
    *c = (struct sl_disk_code){0};
}

struct sl_disk_room *sl_disk_room_take(struct sl_disk_code *c)
{
    pthread_mutex_lock(&c->lock);
    SL_ASSERT(c->first_free >= 0); /* one for each thread */
    struct sl_disk_room *r = &c->rooms[c->first_free];
    c->first_free = r->next;
    pthread_mutex_unlock(&c->lock);
    return r;
}

void sl_disk_room_give(struct sl_disk_code *c, struct sl_disk_room *room)
{
    pthread_mutex_lock(&c->lock);
    room->next = c->first_free;
    c->first_free = (int32_t)(room - c->rooms);
    pthread_mutex_unlock(&c->lock);
}

/* ---- what it brings ---- */

static void measure(struct sl_code_rate *r, size_t n_bytes, uint64_t ns)
{
    r->bytes = KEEP * r->bytes + (double)n_bytes;
    r->s = KEEP * r->s + (double)ns * 1e-9;
}

/* Seconds a byte; 0: not known. */
static double time_of(const struct sl_code_rate *r)
{
    return r->bytes > 0 ? r->s / r->bytes : 0;
}

void sl_disk_code_took(struct sl_disk_code *c, bool reading, size_t n_bytes, uint64_t ns)
{
    pthread_mutex_lock(&c->lock);
    measure(reading ? &c->read : &c->write, n_bytes, ns);
    pthread_mutex_unlock(&c->lock);
}

/* Under the lock: is a page that is coded read faster? */
static bool pays(const struct sl_disk_code *c)
{
    const double disk = time_of(c->read.bytes > 0 ? &c->read : &c->write);
    SL_ASSERT(c->n_plain > 0);
    return time_of(&c->decode) < (1 - c->n_coded / c->n_plain) * disk;
}

static bool is_wanted(struct sl_disk_code *c, bool hurry)
{
    pthread_mutex_lock(&c->lock);
    const uint64_t n = c->n_pages++;
    const bool trial = n < TRIALS || n % TRIAL_EVERY == 0;
    const bool wanted =
        c->coding == SL_CODING_ALWAYS || (!hurry && (trial || c->n_plain <= 0 || pays(c)));
    pthread_mutex_unlock(&c->lock);
    return wanted;
}

size_t sl_disk_code_page(struct sl_disk_code *c, struct sl_disk_room *room, const uint8_t *page,
                         size_t n_bytes, bool hurry)
{
    const size_t stride = sl_slab_stride(n_bytes);
    if (stride > c->most || stride <= SL_SLAB_ALIGN || !is_wanted(c, hurry))
        return 0;
    const size_t n =
        sl_code_page(page, n_bytes, room->coded, stride - SL_SLAB_ALIGN, room->scratch);
    const size_t n_whole = SL_ROUND_UP(n, SL_SLAB_ALIGN);
    SL_ASSERT(n_whole < stride);
    memset(room->coded + n, 0, n_whole - n);
    pthread_mutex_lock(&c->lock);
    c->n_plain = KEEP * c->n_plain + (double)stride;
    c->n_coded = KEEP * c->n_coded + (double)(n > 0 ? n_whole : stride);
    pthread_mutex_unlock(&c->lock);
    return n;
}

bool sl_disk_decode_page(struct sl_disk_code *c, struct sl_disk_room *room, size_t n_coded,
                         uint8_t *page, size_t n_bytes)
{
    const uint64_t start = sl_now_ns();
    SL_ASSERT(sl_slab_stride(n_bytes) <= c->most && n_coded < n_bytes);
    const bool good = sl_decode_page(room->coded, n_coded, page, n_bytes, room->scratch);
    const uint64_t ns = sl_now_ns() - start;
    pthread_mutex_lock(&c->lock);
    measure(&c->decode, n_bytes, ns);
    pthread_mutex_unlock(&c->lock);
    return good;
}
