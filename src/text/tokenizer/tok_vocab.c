/* SPDX-License-Identifier: MIT
 * tok_vocab.c - vocabulary storage: strings by id, ids by string, byte tries.
 *
 * One blob of bytes per table and 32-bit offsets: a vocabulary of 256k entries is three
 * allocations, and looking a word up touches one slot and one string.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#define MAX_BLOB (1u << 30) /* bytes of all entries of one vocabulary */

int tok_strtab_reserve(struct tok_strtab *t, uint32_t n, struct sl_error *err)
{
    if (n <= t->cap)
        return 0;
    struct tok_at *grown = sl_realloc(t->at, (size_t)n * sizeof(*grown));
    if (grown == NULL)
        return sl_fail(err, SL_ENOMEM, "vocabulary of %u entries", n);
    for (uint32_t i = t->cap; i < n; i++)
        grown[i] = (struct tok_at){0, TOK_HOLE};
    SL_ASSERT(t->n <= t->cap && t->cap < n);
    t->at = grown;
    t->cap = n;
    return 0;
}

int tok_strtab_put(struct tok_strtab *t, uint32_t id, const char *s, size_t n, struct sl_error *err)
{
    SL_ASSERT(id < SL_MAX_VOCAB); /* so that no doubling wraps */
    if (id >= t->cap) {
        int rc = tok_strtab_reserve(t, SL_MAX(id + 1, SL_MAX(t->cap * 2, 256u)), err);
        if (rc != 0)
            return rc;
    }
    t->data.max_bytes = MAX_BLOB;
    t->at[id].off = (uint32_t)t->data.n_bytes;
    sl_buf_put(&t->data, s, n);
    if (!sl_buf_ok(&t->data)) {
        t->at[id].len = TOK_HOLE;
        return sl_fail(err, SL_ENOMEM, "vocabulary strings beyond %zu bytes", t->data.n_bytes);
    }
    t->at[id].len = (uint32_t)n;
    SL_ASSERT(id < t->cap && t->at[id].off + n == t->data.n_bytes);
    t->n = SL_MAX(t->n, id + 1);
    return 0;
}

void tok_strtab_deinit(struct tok_strtab *t)
{
    sl_buf_deinit(&t->data);
    sl_free(t->at);
    *t = (struct tok_strtab){0};
}

/* Words are a few bytes long, so the hash is two multiplications for up to eight of them. */
uint32_t tok_hash(uint64_t seed, const char *s, size_t n)
{
    const uint64_t k = 0x9E3779B97F4A7C15u;
    uint64_t h = seed ^ (n * k), v;
    while (n > 8) {
        memcpy(&v, s, 8);
        h = (h ^ v) * k;
        h ^= h >> 32;
        s += 8;
        n -= 8;
    }
    v = 0;
    if (n == 8) {
        memcpy(&v, s, 8);
    } else if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        v = lo | (uint64_t)hi << 32;
    } else if (n > 0) {
        v = (uint8_t)s[0] | (uint64_t)(uint8_t)s[n / 2] << 8 | (uint64_t)(uint8_t)s[n - 1] << 16;
    }
    h = (h ^ v) * k;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return (uint32_t)(h >> 32);
}

int tok_map_reserve(struct tok_map *m, uint32_t n, struct sl_error *err)
{
    uint64_t cap = 16;
    while (cap < (uint64_t)n * 2)
        cap *= 2;
    if (m->slots != NULL && cap <= (uint64_t)m->mask + 1)
        return 0;
    SL_ASSERT(sl_is_pow2(cap) && cap > m->n && cap <= (uint64_t)1 << 32);
    struct tok_slot *old = m->slots;
    uint32_t n_old = old != NULL ? m->mask + 1 : 0;
    m->slots = sl_calloc(cap, sizeof(*m->slots));
    if (m->slots == NULL) {
        m->slots = old;
        return sl_fail(err, SL_ENOMEM, "vocabulary index of %llu slots", (unsigned long long)cap);
    }
    m->mask = (uint32_t)(cap - 1);
    for (uint32_t i = 0; i < n_old; i++) {
        uint32_t j = old[i].hash & m->mask;
        if (old[i].id1 == 0)
            continue;
        while (m->slots[j].id1 != 0)
            j = (j + 1) & m->mask;
        m->slots[j] = old[i];
    }
    sl_free(old);
    return 0;
}

int tok_map_put(struct tok_map *m, const struct tok_strtab *t, uint32_t id)
{
    if (m->slots == NULL || m->n >= m->mask / 2) {
        if (tok_map_reserve(m, m->n * 2 + 16, NULL) != 0)
            return -1;
    }
    size_t n;
    const char *s = tok_str(t, id, &n);
    uint32_t hash = tok_hash(m->seed, s, n);
    if (tok_map_get_hashed(m, t, s, n, hash) >= 0)
        return 0;
    SL_ASSERT(m->n < m->mask); /* a free slot ends every search */
    uint32_t j = hash & m->mask;
    while (m->slots[j].id1 != 0)
        j = (j + 1) & m->mask;
    m->slots[j] = (struct tok_slot){hash, id + 1};
    m->n++;
    return 1;
}

int32_t tok_map_get_hashed(const struct tok_map *m, const struct tok_strtab *t, const char *s,
                           size_t n, uint32_t hash)
{
    if (m->slots == NULL)
        return -1;
    for (uint32_t j = hash & m->mask; m->slots[j].id1 != 0; j = (j + 1) & m->mask) {
        uint32_t id = m->slots[j].id1 - 1;
        SL_DCHECK(id < t->n);
        struct tok_at at;
        if (m->slots[j].hash == hash && (at = t->at[id]).len == n &&
            (n == 0 || memcmp(t->data.data + at.off, s, n) == 0))
            return (int32_t)id;
    }
    return -1;
}

/* ---------------------------------------------------------------- tries */

static struct tok_edge *edge_slot(struct tok_edge *edges, uint32_t mask, uint64_t key1)
{
    SL_DCHECK(key1 != 0 && sl_is_pow2((uint64_t)mask + 1));
    uint32_t j = (uint32_t)((key1 * 0x9E3779B97F4A7C15u) >> 32) & mask;
    while (edges[j].key1 != 0 && edges[j].key1 != key1)
        j = (j + 1) & mask;
    return &edges[j];
}

static int grow_edges(struct tok_trie *t, struct sl_error *err)
{
    uint32_t cap = t->edges == NULL ? 64 : (t->mask + 1) * 2;
    SL_ASSERT(sl_is_pow2(cap) && t->n_edges < cap);
    struct tok_edge *edges = sl_calloc(cap, sizeof(*edges));
    if (edges == NULL)
        return sl_fail(err, SL_ENOMEM, "trie of %u edges", cap);
    for (uint32_t i = 0; t->edges != NULL && i <= t->mask; i++) {
        if (t->edges[i].key1 != 0)
            *edge_slot(edges, cap - 1, t->edges[i].key1) = t->edges[i];
    }
    sl_free(t->edges);
    t->edges = edges;
    t->mask = cap - 1;
    return 0;
}

static int tok_vocab_new_node(struct tok_trie *t, uint32_t *node, struct sl_error *err)
{
    if (t->n_nodes == t->cap_nodes) {
        uint32_t cap = SL_MAX(t->cap_nodes * 2, 64u);
        int32_t *grown = sl_realloc(t->value, cap * sizeof(*grown));
        if (grown == NULL || cap > (1u << 30))
            return sl_fail(err, SL_ENOMEM, "trie of %u nodes", cap);
        t->value = grown;
        t->cap_nodes = cap;
    }
    SL_ASSERT(t->n_nodes < t->cap_nodes);
    t->value[t->n_nodes] = -1;
    *node = t->n_nodes++;
    return 0;
}

uint32_t tok_trie_step(const struct tok_trie *t, uint32_t node, uint8_t byte)
{
    SL_DCHECK(node < t->n_nodes && t->edges != NULL);
    uint64_t key1 = ((uint64_t)node << 8 | byte) + 1;
    uint32_t j = (uint32_t)((key1 * 0x9E3779B97F4A7C15u) >> 32) & t->mask;
    while (t->edges[j].key1 != 0) {
        if (t->edges[j].key1 == key1)
            return t->edges[j].to;
        j = (j + 1) & t->mask;
    }
    return 0;
}

int tok_trie_add(struct tok_trie *t, const char *s, size_t n, int32_t value, struct sl_error *err)
{
    uint32_t node = 0;
    int rc = 0;
    if (n == 0)
        return 0;
    if (t->n_nodes == 0 && (rc = tok_vocab_new_node(t, &node, err)) != 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        if (t->edges == NULL || t->n_edges >= t->mask / 2) {
            if ((rc = grow_edges(t, err)) != 0)
                return rc;
        }
        uint64_t key1 = ((uint64_t)node << 8 | (uint8_t)s[i]) + 1;
        struct tok_edge *e = edge_slot(t->edges, t->mask, key1);
        if (e->key1 == 0) {
            uint32_t to = 0;
            if ((rc = tok_vocab_new_node(t, &to, err)) != 0)
                return rc;
            *e = (struct tok_edge){key1, to};
            t->n_edges++;
        }
        node = e->to;
    }
    t->first[(uint8_t)s[0]] = true;
    SL_ASSERT(node > 0 && node < t->n_nodes);
    t->value[node] = value;
    return 0;
}

int32_t tok_trie_longest(const struct tok_trie *t, const char *s, size_t n, size_t *len)
{
    int32_t best = -1;
    uint32_t node = 0;
    if (n == 0 || !t->first[(uint8_t)s[0]])
        return -1;
    for (size_t i = 0; i < n; i++) {
        node = tok_trie_step(t, node, (uint8_t)s[i]);
        if (node == 0)
            break;
        if (t->value[node] >= 0) {
            best = t->value[node];
            *len = i + 1;
        }
    }
    SL_DCHECK(best < 0 || (*len > 0 && *len <= n));
    return best;
}

void tok_trie_deinit(struct tok_trie *t)
{
    sl_free(t->edges);
    sl_free(t->value);
    *t = (struct tok_trie){0};
}
