/* SPDX-License-Identifier: MIT */
#include "server/replicas.h"

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/served.h"

#include <stdatomic.h>
#include <string.h>

/* A text is known by the hash of each of its beginnings, a piece longer every time. */
#define PIECE     256
#define MAX_PIECE 512        /* pieces that are looked at */
#define N_SLOTS   (1u << 16) /* beginnings that are remembered; a later one may take the place */
#define RANK_MASK ((uint64_t)SL_MAX_REPLICAS - 1)

struct sl_replicas {
    struct sl_served *models;
    int32_t n;
    atomic_uint turn;                /* where the search for the least loaded one begins */
    _Atomic uint64_t slots[N_SLOTS]; /* by hash: the hash, its lowest bits replaced by the rank */
};

_Static_assert((SL_MAX_REPLICAS & (SL_MAX_REPLICAS - 1)) == 0, "a rank is some bits");

int32_t sl_replicas_rank(const struct sl_str *header)
{
    uint64_t rank = 0;
    if (header == NULL)
        return SL_RANK_ANY;
    return sl_parse_u64(header->p, header->n, &rank) && rank < SL_MAX_REPLICAS ? (int32_t)rank
                                                                               : SL_RANK_WRONG;
}

struct sl_replicas *sl_replicas_create(struct sl_served *models, int32_t n)
{
    struct sl_replicas *r = sl_calloc(1, sizeof *r);
    SL_ASSERT(n >= 1 && n <= SL_MAX_REPLICAS);
    if (r != NULL) {
        r->models = models;
        r->n = n;
    }
    return r;
}

void sl_replicas_destroy(struct sl_replicas *r)
{
    sl_free(r);
}

/* ---- what a request begins with */

struct beginnings {
    uint64_t hash[MAX_PIECE]; /* of the first piece, the first two, ... */
    int n;
    char piece[PIECE];
    size_t n_bytes; /* of the piece that is being filled */
};

static void put_bytes(struct beginnings *b, const char *p, size_t n)
{
    while (n > 0 && b->n < MAX_PIECE) {
        const size_t part = SL_MIN(n, PIECE - b->n_bytes);
        memcpy(b->piece + b->n_bytes, p, part);
        b->n_bytes += part, p += part, n -= part;
        if (b->n_bytes < PIECE)
            continue;
        b->hash[b->n] = sl_hash64(b->piece, PIECE, b->n > 0 ? b->hash[b->n - 1] : 0);
        b->n++;
        b->n_bytes = 0;
    }
}

/* All texts and numbers below v, in their order. The parser bounds how deep they lie. */
static void put_value(struct beginnings *b, const json_t *v)
{
    const char *key;
    const json_t *item;
    size_t i;
    if (json_is_string(v)) {
        put_bytes(b, json_string_value(v), json_string_length(v) + 1);
    } else if (json_is_integer(v)) {
        const json_int_t x = json_integer_value(v);
        put_bytes(b, (const char *)&x, sizeof x);
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, item) put_value(b, item);
    } else if (json_is_object(v)) {
        json_object_foreach((json_t *)(uintptr_t)v, key, item) put_value(b, item);
    }
}

static void put_request(struct beginnings *b, const json_t *body)
{
    static const char *const names[] = {"system", "instructions", "prompt", "messages", "input"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        put_value(b, json_object_get(body, names[i]));
}

static _Atomic uint64_t *slot(struct sl_replicas *r, uint64_t hash)
{
    return &r->slots[(hash >> 32) % N_SLOTS];
}

/* The rank that was sent half of it or more, or SL_RANK_ANY. */
static int32_t known_rank(struct sl_replicas *r, const struct beginnings *b)
{
    for (int i = b->n; i > 0 && 2 * i >= b->n; i--) {
        const uint64_t x = atomic_load_explicit(slot(r, b->hash[i - 1]), memory_order_relaxed);
        if (((x ^ b->hash[i - 1]) & ~RANK_MASK) == 0 && (int32_t)(x & RANK_MASK) < r->n)
            return (int32_t)(x & RANK_MASK);
    }
    return SL_RANK_ANY;
}

static void remember(struct sl_replicas *r, const struct beginnings *b, int32_t rank)
{
    for (int i = 0; i < b->n; i++)
        atomic_store_explicit(slot(r, b->hash[i]), (b->hash[i] & ~RANK_MASK) | (uint64_t)rank,
                              memory_order_relaxed);
}

/* ---- the choice */

static int32_t load_of(const struct sl_replicas *r, int32_t rank)
{
    const struct sl_engine *eng = r->models[rank].eng;
    return sl_engine_health(eng, NULL) == 0 ? sl_engine_n_open(eng) : INT32_MAX;
}

static int32_t least_loaded(struct sl_replicas *r)
{
    const int32_t first = (int32_t)(atomic_fetch_add(&r->turn, 1) % (unsigned)r->n);
    int32_t best = first, least = load_of(r, first);
    for (int32_t i = 1; i < r->n; i++) {
        const int32_t rank = (first + i) % r->n, load = load_of(r, rank);
        if (load < least) {
            best = rank;
            least = load;
        }
    }
    return best;
}

int sl_replicas_pick(struct sl_replicas *r, const json_t *body, int32_t rank,
                     struct sl_served **out, struct sl_refusal *refusal)
{
    struct beginnings b;
    if (rank == SL_RANK_WRONG || rank >= r->n)
        return sl_refuse(refusal, SL_EINVAL, SL_RANK_HEADER,
                         "the header " SL_RANK_HEADER " must be a number from 0 to %d", r->n - 1);
    b.n = 0, b.n_bytes = 0;
    put_request(&b, body);
    if (rank == SL_RANK_ANY) {
        const int32_t known = known_rank(r, &b), least = least_loaded(r);
        const int32_t low = load_of(r, least);
        const int32_t most = low < INT32_MAX / 2 ? low + 4 + low / 4 : low;
        rank = known >= 0 && load_of(r, known) <= most ? known : least;
    }
    remember(r, &b, rank);
    *out = &r->models[rank];
    return 0;
}
