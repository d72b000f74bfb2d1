/* SPDX-License-Identifier: MIT
 * shape.c - trees of shapes, and which of them an expression allows.
 */
#include "grammar/shape.h"

#include "base/check.h"
#include "base/sys.h"
#include "grammar/rx_impl.h"

#include <string.h>

/* Kinds of more than one character of ASCII; every other character is a kind of its own. */
static const struct {
    const char *ranges; /* pairs of first and last */
} kinds[SL_VOCAB_SHAPES][6] = {
    {{"az"}, {"AZ"}, {"09"}},
    {{"af"}, {"gz"}, {"AF"}, {"GZ"}, {"09"}}, /* as hexadecimal digits need */
};

/* What stands for all plain characters beyond ASCII: U+00E9. */
static const uint8_t other[2] = {0xC3, 0xA9};

/* ---------------------------------------------------------------- trees */

struct builder {
    const struct sl_vocab_tree *from;
    struct sl_vocab_tree *to;
    uint8_t of[256]; /* the kind of a byte of ASCII; of the two bytes of other */
    uint32_t n_kinds;
    /* Of each shape, in the order in which they were met: the next ones by kind, 0: none; how many
     * tokens it has, and then where the next one is put; its last byte. */
    uint32_t *next, *tokens;
    uint8_t *byte;
    uint32_t n, cap;
    uint32_t *shape_of; /* of each token */
};

static void find_kinds(struct builder *b, uint32_t which)
{
    uint8_t first[256];
    for (unsigned c = 0; c < 256; c++)
        first[c] = (uint8_t)c;
    for (size_t i = 0; kinds[which][i].ranges != NULL; i++) {
        const char *r = kinds[which][i].ranges;
        for (unsigned c = (uint8_t)r[0]; c <= (uint8_t)r[1]; c++)
            first[c] = (uint8_t)r[0];
    }
    for (unsigned c = 0x20; c < 0x7F; c++)
        b->of[c] = first[c] == c ? (uint8_t)b->n_kinds++ : b->of[first[c]];
    b->of[other[0]] = (uint8_t)b->n_kinds++;
    b->of[other[1]] = (uint8_t)b->n_kinds++;
}

static bool shape_grow(void **data, size_t n, size_t size)
{
    void *p = sl_realloc(*data, n * size);
    *data = p != NULL ? p : *data;
    return p != NULL;
}

/* The shape with one more byte; 0: out of memory. */
static uint32_t shape_longer(struct builder *b, uint32_t shape, uint8_t byte)
{
    const size_t at = (size_t)shape * b->n_kinds + b->of[byte];
    if (b->n > 0 && b->next[at] != 0)
        return b->next[at];
    if (b->n == b->cap) {
        const uint32_t cap = b->cap == 0 ? 4096 : b->cap * 2;
        if (!shape_grow((void **)&b->next, (size_t)cap * b->n_kinds, sizeof b->next[0]) ||
            !shape_grow((void **)&b->tokens, cap, sizeof b->tokens[0]) ||
            !shape_grow((void **)&b->byte, cap, sizeof b->byte[0]))
            return 0;
        b->cap = cap;
    }
    if (b->n > 0)
        b->next[at] = b->n;
    memset(b->next + (size_t)b->n * b->n_kinds, 0, b->n_kinds * sizeof b->next[0]);
    b->tokens[b->n] = 0;
    b->byte[b->n] = byte;
    return b->n++;
}

/* Finds the shape of every token. A character beyond ASCII counts with its last byte. */
static bool find_shapes(struct builder *b)
{
    const struct sl_vocab_tree *t = b->from;
    uint32_t at[SL_VOCAB_MAX_TOKEN + 1] = {0};
    uint8_t left[SL_VOCAB_MAX_TOKEN + 1] = {0}; /* bytes of the character that are still to come */
    (void)shape_longer(b, 0, 0);                /* the root */
    for (uint32_t i = 0; i < t->n && b->n > 0; i++) {
        const struct sl_vocab_node *x = &t->nodes[i];
        const uint32_t d = x->depth;
        uint32_t s = at[d - 1];
        if (left[d - 1] == 0 && x->byte < 0x80) {
            left[d] = 0;
            s = shape_longer(b, s, x->byte);
        } else if (left[d - 1] == 0) {
            left[d] = x->byte >= 0xF0 ? 3 : x->byte >= 0xE0 ? 2 : 1;
            s = shape_longer(b, s, other[0]);
        } else {
            left[d] = (uint8_t)(left[d - 1] - 1);
            s = left[d] == 0 ? shape_longer(b, s, other[1]) : s;
        }
        if (s == 0)
            return false;
        at[d] = s;
        SL_ASSERT(left[d] == 0 || x->first == x[1].first); /* plain tokens have whole characters */
        b->tokens[s] += x[1].first - x->first;
        for (uint32_t k = x->first; k < x[1].first; k++)
            b->shape_of[k] = s;
    }
    return b->n > 0;
}

/* Writes the shapes down, depth first, and the tokens of each. */
static void order(struct builder *b)
{
    struct sl_vocab_tree *t = b->to;
    uint32_t shape[SL_VOCAB_MAX_TOKEN + 1] = {0}, kind[SL_VOCAB_MAX_TOKEN + 1] = {0};
    uint32_t node[SL_VOCAB_MAX_TOKEN + 1] = {0}, depth = 0, n_ids = 0;
    for (;;) {
        const uint32_t *next = b->next + (size_t)shape[depth] * b->n_kinds;
        while (kind[depth] < b->n_kinds && next[kind[depth]] == 0)
            kind[depth]++;
        if (kind[depth] == b->n_kinds && depth == 0)
            break;
        if (kind[depth] == b->n_kinds) {
            t->nodes[node[depth]].skip = t->n - node[depth];
            depth--;
            continue;
        }
        const uint32_t s = next[kind[depth]++];
        SL_ASSERT(depth < SL_VOCAB_MAX_TOKEN && t->n + 1 < b->n);
        depth++;
        shape[depth] = s;
        kind[depth] = 0;
        node[depth] = t->n;
        t->nodes[t->n++] = (struct sl_vocab_node){
            .first = n_ids, .byte = b->byte[s], .depth = (uint8_t)depth, .longest = UINT8_MAX};
        n_ids += b->tokens[s];
        b->tokens[s] = n_ids - b->tokens[s];
    }
    SL_ASSERT(t->n + 1 == b->n && n_ids == b->from->n_ids);
    t->nodes[t->n] = (struct sl_vocab_node){.first = n_ids};
    t->n_ids = n_ids;
    for (uint32_t k = 0; k < n_ids; k++)
        t->ids[b->tokens[b->shape_of[k]]++] = b->from->ids[k];
}

int sl_shapes_make(struct sl_vocab *v)
{
    int rc = 0;
    for (uint32_t i = 0; i < SL_VOCAB_SHAPES && rc == 0; i++) {
        struct builder b = {.from = &v->plain, .to = &v->shapes[i]};
        find_kinds(&b, i);
        b.shape_of = sl_malloc((b.from->n_ids + 1) * sizeof b.shape_of[0]);
        rc = b.shape_of != NULL && find_shapes(&b) ? 0 : SL_ENOMEM;
        if (rc == 0) {
            b.to->nodes = sl_malloc(((size_t)b.n + 1) * sizeof b.to->nodes[0]);
            b.to->ids = sl_malloc((b.from->n_ids + 1) * sizeof b.to->ids[0]);
            rc = b.to->nodes != NULL && b.to->ids != NULL ? 0 : SL_ENOMEM;
        }
        if (rc == 0)
            order(&b);
        sl_free(b.next);
        sl_free(b.tokens);
        sl_free(b.byte);
        sl_free(b.shape_of);
    }
    return rc;
}

/* ---------------------------------------------------------------- expressions */

enum {
    MAX_PARTS = 1000, /* of an expression that is looked at */
    SEEN = 4096,
    WHOLE = 1, /* beside a part's id: all its texts must be whole characters */
};
_Static_assert((int)SEEN > 2 * (int)MAX_PARTS, "a free place ends every search");

struct parts { /* of an expression, each once, or once as WHOLE and once not */
    const struct sl_rx *rx;
    uint32_t v[MAX_PARTS], seen[SEEN], n;
    uint32_t first; /* of the trees, that has not been ruled out */
    bool failed;
};

static void shape_add(struct parts *p, sl_rx_id id, uint32_t whole)
{
    const uint32_t key = id << 1 | whole;
    uint32_t h = key * 2654435761u >> 16;
    if (id <= SL_RX_EPS)
        return;
    while (p->seen[h % SEEN] != 0 && p->seen[h % SEEN] != key)
        h++;
    if (p->seen[h % SEEN] == key)
        return;
    p->failed = p->failed || p->n == MAX_PARTS;
    if (p->failed)
        return;
    p->seen[h % SEEN] = key;
    p->v[p->n++] = key;
}

/* A set of bytes: which trees have no kind of which it has a part? */
static void look_at_set(struct parts *p, const struct sl_rx_bytes *set)
{
    for (uint32_t k = p->first; k < SL_VOCAB_SHAPES; k++)
        for (size_t i = 0; kinds[k][i].ranges != NULL && p->first == k; i++) {
            const char *r = kinds[k][i].ranges;
            uint64_t all = ((2ull << (r[1] & 63)) - 1) & ~((1ull << (r[0] & 63)) - 1);
            uint64_t has = set->w[r[0] / 64] & all;
            p->first += has != 0 && has != all;
        }
}

/* A set of characters: its bytes of ASCII count, and what it has beyond is all or nothing. */
static void look_at_chars(struct parts *p, const struct sl_rx_node *n)
{
    const struct sl_rx *rx = p->rx;
    if (n->op == RX_SET)
        look_at_set(p, &rx->sets[n->a]);
    for (uint32_t i = n->a; n->op == RX_ALT && i < n->a + n->b; i++)
        if (rx->nodes[rx->kids[i]].op == RX_SET)
            look_at_set(p, &rx->sets[rx->nodes[rx->kids[i]].a]);
}

/* Is it a set without any byte of plain characters, as an escape begins with? */
static bool no_plain(const struct sl_rx *rx, sl_rx_id id)
{
    const struct sl_rx_node *n = &rx->nodes[id];
    if (n->op != RX_SET)
        return false;
    const uint64_t *w = rx->sets[n->a].w;
    const uint64_t low = ~0xFFFFFFFFull & ~(1ull << '"'),
                   high = ~(1ull << ('\\' - 64) | 1ull << 63);
    return ((w[0] & low) | (w[1] & high) | w[2] | w[3]) == 0;
}

/* What is WHOLE is made of whole characters. Then a text in a chain with something else behind it
 * is cut between characters, so it cannot matter which character of a kind is on either side. */
static void shape_look_at(struct parts *p, sl_rx_id id, uint32_t whole)
{
    const struct sl_rx_node *n = &p->rx->nodes[id];
    if (n->uniform) {
        look_at_chars(p, n);
        return;
    }
    switch ((enum sl_rx_op)n->op) {
    case RX_SET:
        p->failed = (p->rx->sets[n->a].w[2] | p->rx->sets[n->a].w[3]) != 0;
        look_at_set(p, &p->rx->sets[n->a]);
        return;
    case RX_CAT:
        if (no_plain(p->rx, n->a)) /* plain tokens do not get behind it */
            return;
        shape_add(p, n->a, WHOLE);
        shape_add(p, n->b, whole);
        return;
    case RX_REP:
        shape_add(p, n->a, WHOLE);
        return;
    case RX_NOT: /* as SL_RX_ALL is */
        p->failed = whole != 0;
        shape_add(p, n->a, 0);
        return;
    case RX_ALT:
    case RX_AND:
        for (uint32_t i = n->a; i < n->a + n->b; i++)
            shape_add(p, p->rx->kids[i], whole);
        return;
    case RX_NONE:
    case RX_EPS:
        return;
    case RX_LIST:
    case RX_MOD: /* they tell single characters apart */
        p->failed = true;
        return;
    }
}

uint32_t sl_shapes_for(const struct sl_rx *rx, sl_rx_id id)
{
    struct parts p = {.rx = rx};
    SL_ASSERT(id < rx->n_nodes && rx->n_nodes < UINT32_MAX / 2);
    shape_add(&p, id, 0);
    for (uint32_t i = 0; i < p.n && !p.failed && p.first < SL_VOCAB_SHAPES; i++)
        shape_look_at(&p, p.v[i] >> 1, p.v[i] & WHOLE);
    return p.failed ? SL_VOCAB_SHAPES : p.first;
}
