/* SPDX-License-Identifier: MIT */
#include "server/events/kv_batch.h"

#include "base/check.h"
#include "base/err.h"

#include <string.h>

enum { ARRAY = 0x90, MAP = 0x80, STRING = 0xA0, NIL = 0xC0, FLOAT64 = 0xCB, UINT64 = 0xCF };

/* ---- MessagePack */

static void put_be(struct sl_buf *b, uint8_t type, uint64_t x, int n_bytes)
{
    uint8_t out[9] = {type};
    for (int i = 0; i < n_bytes; i++)
        out[n_bytes - i] = (uint8_t)(x >> (8 * i));
    sl_buf_put(b, out, 1 + (size_t)n_bytes);
}

static void put_uint(struct sl_buf *b, uint64_t x)
{
    if (x < 128)
        sl_buf_putc(b, (char)x);
    else if (x < 256)
        put_be(b, 0xCC, x, 1);
    else if (x < 65536)
        put_be(b, 0xCD, x, 2);
    else
        put_be(b, 0xCE, x, 4);
    SL_DCHECK(x <= UINT32_MAX);
}

static void kv_batch_put_array(struct sl_buf *b, size_t n)
{
    if (n < 16)
        sl_buf_putc(b, (char)(ARRAY | n));
    else if (n < 65536)
        put_be(b, 0xDC, n, 2);
    else
        put_be(b, 0xDD, n, 4);
}

static void kv_batch_put_text(struct sl_buf *b, const char *s)
{
    size_t n = strlen(s);
    if (n < 32)
        sl_buf_putc(b, (char)(STRING | n));
    else if (n < 256)
        put_be(b, 0xD9, n, 1);
    else
        put_be(b, 0xDA, n, 2);
    SL_DCHECK(n < 65536);
    sl_buf_put(b, s, n);
}

static void put_nil(struct sl_buf *b)
{
    sl_buf_putc(b, (char)NIL);
}

/* Never shorter: some readers take the type of a hash for what it is. */
static void put_hash(struct sl_buf *b, uint64_t hash)
{
    SL_DCHECK(hash > 0 && hash <= INT64_MAX);
    put_be(b, UINT64, hash, 8);
}

/* ---- events */

struct writer {
    struct sl_buf *b;
    const struct sl_model_info *info;
    bool arrays;
};

static void kv_batch_begin(const struct writer *w, const char *type, size_t n_fields)
{
    SL_ASSERT(n_fields < 15);
    sl_buf_putc(w->b, (char)((w->arrays ? ARRAY : MAP) | (n_fields + 1)));
    if (!w->arrays)
        kv_batch_put_text(w->b, "type");
    kv_batch_put_text(w->b, type);
}

static struct sl_buf *kv_batch_field(const struct writer *w, const char *name)
{
    if (!w->arrays)
        kv_batch_put_text(w->b, name);
    return w->b;
}

static void put_or_nil(struct sl_buf *b, const char *s)
{
    if (s != NULL)
        kv_batch_put_text(b, s);
    else
        put_nil(b);
}

/* What a block's hash has in it besides tokens: an adapter's name, and at the beginning the salt.
 */
static void put_extra_keys(struct sl_buf *b, const struct sl_kv_event *e, int32_t n)
{
    kv_batch_put_array(b, (size_t)n);
    for (int32_t i = 0; i < n; i++) {
        bool has_salt = e[i].salt != NULL && e[i].parent == 0;
        size_t n_keys = (size_t)(e[i].adapter != NULL) + has_salt;
        if (n_keys == 0) {
            put_nil(b);
            continue;
        }
        kv_batch_put_array(b, n_keys);
        if (e[i].adapter != NULL)
            kv_batch_put_text(b, e[i].adapter);
        if (has_salt)
            kv_batch_put_text(b, e[i].salt);
    }
}

/* What kind of layers a group has, in vLLM's words. */
static void put_group_kind(const struct writer *w, int32_t group)
{
    const struct sl_kv_group_info *g = &w->info->kv_groups[group];
    SL_ASSERT(group >= 0 && (group == 0 || group < w->info->n_kv_groups));
    put_uint(kv_batch_field(w, "group_idx"), (uint32_t)group);
    kv_batch_put_text(kv_batch_field(w, "kv_cache_spec_kind"), g->state ? "mamba"
                                                               : g->chunks
                                                                   ? "chunked_local_attention"
                                                               : g->window > 0 ? "sliding_window"
                                                                               : "full_attention");
    struct sl_buf *b = kv_batch_field(w, "kv_cache_spec_sliding_window");
    if (g->window > 0 && !g->chunks)
        put_uint(b, (uint32_t)g->window);
    else
        put_nil(b);
}

/* vLLM's names; GPU is the tier that is computed from, whatever the device. Of a disk Dynamo's,
 * which refuses vLLM's STORAGE. */
static const char *medium_of(const struct sl_kv_event *e)
{
    static const char *const names[] = {"GPU", "CPU", "DISK"};
    SL_ASSERT((size_t)e->medium < SL_COUNT(names));
    return names[e->medium];
}

static void put_stored(const struct writer *w, const struct sl_kv_event *e, int32_t n)
{
    const int32_t block_size = w->info->block_size;
    /* Dynamo's, which tells prompts of different salts apart by it, block by block. */
    bool names_salt = !w->arrays && e->salt != NULL;
    kv_batch_begin(w, "BlockStored", 11 + (size_t)names_salt);
    struct sl_buf *b = kv_batch_field(w, "block_hashes");
    kv_batch_put_array(b, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        put_hash(b, e[i].hash);
    (void)kv_batch_field(w, "parent_block_hash");
    if (e->parent != 0)
        put_hash(b, e->parent);
    else
        put_nil(b);
    (void)kv_batch_field(w, "token_ids");
    const bool tokens = e->tokens != NULL; /* of a tier there are none, as in vLLM */
    kv_batch_put_array(b, tokens ? (size_t)n * (size_t)block_size : 0);
    for (int32_t i = 0; i < n && tokens; i++)
        for (int32_t k = 0; k < block_size; k++)
            put_uint(b, (uint32_t)e[i].tokens[k]);
    put_uint(kv_batch_field(w, "block_size"), (uint32_t)block_size);
    put_nil(kv_batch_field(w, "lora_id")); /* given up for lora_name */
    kv_batch_put_text(kv_batch_field(w, "medium"), medium_of(e));
    put_or_nil(kv_batch_field(w, "lora_name"), e->adapter);
    (void)kv_batch_field(w, "extra_keys");
    if (tokens)
        put_extra_keys(b, e, n);
    else
        put_nil(b);
    put_group_kind(w, e->group);
    if (names_salt)
        kv_batch_put_text(kv_batch_field(w, "cache_salt"), e->salt);
}

static void put_removed(const struct writer *w, const struct sl_kv_event *e, int32_t n)
{
    kv_batch_begin(w, "BlockRemoved", 3);
    struct sl_buf *b = kv_batch_field(w, "block_hashes");
    kv_batch_put_array(b, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        put_hash(b, e[i].hash);
    kv_batch_put_text(kv_batch_field(w, "medium"), medium_of(e));
    put_uint(kv_batch_field(w, "group_idx"), (uint32_t)e->group);
}

/* Of an adapter that has no name any more: its pages cannot be asked for. */
static bool is_nameless(const struct sl_kv_event *e)
{
    return e->kind == SL_KV_STORED && e->adapter != NULL && e->adapter[0] == '\0';
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* How many of the events make one: removals of a group in a row, or its pages of one prompt; in a
 * tier pages of a group in a row. */
static int32_t kv_batch_run_of(const struct sl_kv_event *e, int32_t n)
{
    int32_t i = 1;
    if (e->kind == SL_KV_CLEARED)
        return 1;
    while (i < n && e[i].kind == e->kind && e[i].group == e->group && e[i].medium == e->medium &&
           (e->kind == SL_KV_REMOVED || e->medium != SL_KV_ON_DEVICE ||
            (e[i].parent == e[i - 1].hash && same_text(e[i].adapter, e->adapter))))
        i++;
    return i;
}

int32_t sl_kv_batch_put(struct sl_buf *b, const struct sl_kv_event *events, int32_t n,
                        const struct sl_model_info *info, double wall_s, bool arrays)
{
    const struct writer w = {b, info, arrays};
    int32_t n_events = 0;
    uint64_t bits;
    SL_ASSERT(n > 0 && info->block_size > 0);
    for (int32_t i = 0; i < n; i += kv_batch_run_of(events + i, n - i))
        n_events += !is_nameless(&events[i]);
    if (n_events == 0)
        return 0;
    kv_batch_put_array(b, 3);
    memcpy(&bits, &wall_s, sizeof bits);
    put_be(b, FLOAT64, bits, 8);
    kv_batch_put_array(b, (size_t)n_events);
    for (int32_t i = 0, k; i < n; i += k) {
        const struct sl_kv_event *e = &events[i];
        k = kv_batch_run_of(e, n - i);
        if (is_nameless(e))
            continue;
        if (e->kind == SL_KV_STORED)
            put_stored(&w, e, k);
        else if (e->kind == SL_KV_REMOVED)
            put_removed(&w, e, k);
        else
            kv_batch_begin(&w, "AllBlocksCleared", 0);
    }
    put_uint(b, (uint64_t)info->data_parallel_rank);
    return n_events;
}
