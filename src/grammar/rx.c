/* SPDX-License-Identifier: MIT
 * rx.c - construction of expressions in normal form.
 */
#include "grammar/rx.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"
#include "grammar/rx_impl.h"

#include <string.h>

enum { MANY_RESTS = 1000 }; /* a divisor whose remainders are not searched for 0 */
enum { MAX_HEAD = 2000 };   /* recursion of one derivative; a pattern nests far less */

sl_rx_id sl_rx_fail(struct sl_rx *rx, int code, const char *what)
{
    SL_ASSERT(code < 0);
    if (rx->failed == NULL) {
        rx->failed = what;
        rx->fail_code = code;
    }
    return SL_RX_NONE;
}

sl_rx_id sl_rx_no_room(struct sl_rx *rx, bool no_memory)
{
    return no_memory ? sl_rx_fail(rx, SL_ENOMEM, "out of memory")
                     : sl_rx_fail(rx, SL_ELIMIT, "the automaton needs more memory than its limit");
}

int sl_rx_check(const struct sl_rx *rx, struct sl_error *err)
{
    if (rx->failed == NULL)
        return 0;
    return sl_fail(err, rx->fail_code, "grammar: %s", rx->failed);
}

/* Room for one more element of an array that doubles. */
static bool rx_grow(struct sl_rx *rx, void **data, uint32_t n, uint32_t more, uint32_t *cap,
                    size_t size)
{
    SL_ASSERT(n <= *cap && n + more >= n);
    if (n + more <= *cap)
        return true;
    uint32_t new_cap = SL_MAX(*cap * 2, n + more);
    bool fits = (size_t)new_cap * size <= rx->limits.max_bytes;
    void *p = fits ? sl_realloc(*data, (size_t)new_cap * size) : NULL;
    if (p == NULL) {
        sl_rx_no_room(rx, fits);
        return false;
    }
    *data = p;
    *cap = new_cap;
    return true;
}

static uint64_t node_hash(const struct sl_rx *rx, const struct sl_rx_node *n)
{
    SL_ASSERT((n->op != RX_ALT && n->op != RX_AND) || n->a + n->b <= rx->n_kids);
    uint64_t h = sl_mix64(((uint64_t)n->op << 56) ^ ((uint64_t)(uint32_t)n->lo << 20) ^
                          (uint32_t)n->hi * 0x9E3779B97F4A7C15u);
    if (n->op == RX_ALT || n->op == RX_AND)
        return sl_hash64(&rx->kids[n->a], n->b * sizeof rx->kids[0], h);
    return sl_mix64(h ^ ((uint64_t)n->a << 32 | n->b));
}

static bool node_equal(const struct sl_rx *rx, const struct sl_rx_node *x,
                       const struct sl_rx_node *y)
{
    if (x->op != y->op || x->lo != y->lo || x->hi != y->hi || x->b != y->b)
        return false;
    if (x->op == RX_ALT || x->op == RX_AND)
        return memcmp(&rx->kids[x->a], &rx->kids[y->a], x->b * sizeof rx->kids[0]) == 0;
    return x->a == y->a;
}

/* SL_RX_CHARS, SL_RX_TEXT or 0, by what it is made of. */
static uint8_t rx_texts_of(const struct sl_rx *rx, const struct sl_rx_node *n)
{
    const uint64_t *w = n->op == RX_SET ? rx->sets[n->a].w : NULL;
    uint8_t all = SL_RX_CHARS | SL_RX_TEXT, any = 0;
    SL_ASSERT((n->op != RX_CAT && n->op != RX_REP) || n->a < rx->n_nodes);
    switch ((enum sl_rx_op)n->op) {
    case RX_EPS:
        return SL_RX_CHARS;
    case RX_SET:
        if ((w[0] << 32 | w[1] >> 63 | w[2] | w[3]) != 0) /* a control character, or not ASCII */
            return 0;
        if ((w[0] >> '"' & 1) == 0 && (w[1] >> ('\\' - 64) & 1) == 0)
            return SL_RX_CHARS;
        return w[0] == 1ull << '"' && w[1] == 0 ? SL_RX_TEXT : 0;
    case RX_CAT:
        return rx->nodes[n->a].texts == SL_RX_CHARS ? rx->nodes[n->b].texts : 0;
    case RX_REP:
        return rx->nodes[n->a].texts & SL_RX_CHARS;
    case RX_ALT:
    case RX_AND:
        for (uint32_t i = n->a; i < n->a + n->b; i++) {
            all &= rx->nodes[rx->kids[i]].texts;
            any |= rx->nodes[rx->kids[i]].texts;
        }
        return n->op == RX_ALT ? all : any == (SL_RX_CHARS | SL_RX_TEXT) ? SL_RX_TEXT : any;
    case RX_NONE:
    case RX_NOT:
    case RX_LIST:
    case RX_MOD:
        return 0;
    }
    return 0;
}

static bool is_finite(const struct sl_rx *rx, const struct sl_rx_node *n)
{
    bool any = false, all = true;
    SL_ASSERT((n->op != RX_ALT && n->op != RX_AND) || n->a + n->b <= rx->n_kids);
    switch ((enum sl_rx_op)n->op) {
    case RX_NONE:
    case RX_EPS:
    case RX_SET:
    case RX_LIST:
        return true;
    case RX_CAT:
        return rx->nodes[n->a].finite && rx->nodes[n->b].finite;
    case RX_REP:
        return rx->nodes[n->a].finite && n->hi != SL_RX_INF;
    case RX_ALT:
    case RX_AND:
        for (uint32_t i = n->a; i < n->a + n->b; i++) {
            any = any || rx->nodes[rx->kids[i]].finite;
            all = all && rx->nodes[rx->kids[i]].finite;
        }
        return n->op == RX_ALT ? all : any;
    case RX_NOT:
    case RX_MOD:
        return false;
    }
    return false;
}

/* How many characters its strings have at least, as rx_texts_of sees characters. Where parts meet,
 * they must meet between two characters, which what is not sure to be whole ones need not do. */
static void find_least(const struct sl_rx *rx, struct sl_rx_node *n)
{
    const struct sl_rx_node *a = &rx->nodes[n->op == RX_CAT || n->op == RX_REP ? n->a : 0];
    uint64_t least = 0;
    if (n->texts == 0)
        return;
    switch ((enum sl_rx_op)n->op) {
    case RX_EPS:
    case RX_SET: /* the closing quote is none */
        least = n->op == RX_SET && n->texts == SL_RX_CHARS;
        n->exact = true;
        break;
    case RX_CAT:
        least = (uint64_t)a->least + rx->nodes[n->b].least;
        n->exact = a->exact && rx->nodes[n->b].exact;
        break;
    case RX_REP:
        least = (uint64_t)a->least * (uint32_t)n->lo;
        n->exact = a->exact || n->lo == 0;
        break;
    case RX_ALT:
    case RX_AND:
        for (uint32_t i = n->a; i < n->a + n->b; i++) {
            const struct sl_rx_node *kid = &rx->nodes[rx->kids[i]];
            bool better = n->op == RX_ALT ? kid->least < least : kid->least > least;
            if (i == n->a || better)
                n->exact = false;
            least = i == n->a || better ? kid->least : least;
            n->exact = n->op == RX_ALT && (n->exact || (kid->exact && kid->least == least));
        }
        break;
    case RX_NONE:
    case RX_NOT:
    case RX_LIST:
    case RX_MOD:
        break;
    }
    n->least = (uint32_t)SL_MIN(least, UINT32_MAX);
    n->exact = n->exact && least < UINT32_MAX;
}

void sl_rx_is_char(struct sl_rx *rx, sl_rx_id id)
{
    SL_ASSERT(id > SL_RX_EPS && id < rx->n_nodes);
    rx->nodes[id].texts = SL_RX_CHARS;
    rx->nodes[id].least = 1;
    rx->nodes[id].exact = true;
}

/* The node, found or added; its kids (of ALT, AND) lie at the end of rx->kids. */
static sl_rx_id rx_intern(struct sl_rx *rx, struct sl_rx_node n)
{
    bool list = n.op == RX_ALT || n.op == RX_AND;
    if (rx->failed != NULL)
        return SL_RX_NONE;
    SL_ASSERT(!list || (n.a + n.b == rx->n_kids && n.b > 1));
    /* What a node is made of is there before it, so no expression contains itself. */
    SL_ASSERT(n.op != RX_CAT || (n.a < rx->n_nodes && n.b < rx->n_nodes));
    SL_ASSERT((n.op != RX_NOT && n.op != RX_REP) || n.a < rx->n_nodes);
    struct sl_intern_at at = sl_intern_find(node_hash(rx, &n));
    for (uint32_t id; (id = sl_intern_next(&rx->index, &at)) != 0;)
        if (node_equal(rx, &rx->nodes[id - 1], &n)) {
            rx->n_kids -= list ? n.b : 0;
            return id - 1;
        }
    if (n.head > MAX_HEAD)
        return sl_rx_fail(rx, SL_ELIMIT, "the expression is nested too deeply");
    if (rx->n_nodes >= rx->limits.max_nodes)
        return sl_rx_fail(rx, SL_ELIMIT, "the automaton needs more states than its limit");
    if (!rx_grow(rx, (void **)&rx->nodes, rx->n_nodes, 1, &rx->cap_nodes, sizeof n))
        return SL_RX_NONE;
    if (!sl_intern_room(&rx->index))
        return sl_rx_no_room(rx, true);
    SL_ASSERT(rx->n_nodes < rx->cap_nodes);
    n.texts = rx_texts_of(rx, &n);
    n.finite = is_finite(rx, &n);
    find_least(rx, &n);
    rx->nodes[rx->n_nodes] = n;
    sl_intern_add(&rx->index, &at, rx->n_nodes + 1);
    return rx->n_nodes++;
}

int sl_rx_init(struct sl_rx *rx, const struct sl_rx_limits *limits, struct sl_error *err)
{
    memset(rx, 0, sizeof *rx);
    rx->limits = *limits;
    rx->arena.max_bytes = limits->max_bytes;
    rx->derived = sl_calloc(SL_RX_DERIVED, sizeof rx->derived[0]);
    if (rx->derived == NULL)
        sl_rx_fail(rx, SL_ENOMEM, "out of memory");
    rx_intern(rx, (struct sl_rx_node){.op = RX_NONE, .head = 1});
    rx_intern(rx, (struct sl_rx_node){.op = RX_EPS, .nullable = true, .head = 1});
    rx_intern(rx, (struct sl_rx_node){.op = RX_NOT, .a = SL_RX_NONE, .nullable = true, .head = 1});
    int rc = sl_rx_check(rx, err);
    SL_ASSERT(rc != 0 || rx->n_nodes == SL_RX_ALL + 1);
    if (rc != 0)
        sl_rx_deinit(rx);
    return rc;
}

void sl_rx_deinit(struct sl_rx *rx)
{
    sl_free(rx->nodes);
    sl_free(rx->kids);
    sl_free(rx->sets);
    sl_free(rx->lists);
    sl_free(rx->with_row);
    sl_intern_deinit(&rx->index);
    sl_free(rx->derived);
    sl_free(rx->search);
    sl_arena_deinit(&rx->arena);
    memset(rx, 0, sizeof *rx);
}

sl_rx_id sl_rx_set(struct sl_rx *rx, const struct sl_rx_bytes *set)
{
    if ((set->w[0] | set->w[1] | set->w[2] | set->w[3]) == 0)
        return SL_RX_NONE;
    uint32_t i = 0;
    while (i < rx->n_sets && memcmp(&rx->sets[i], set, sizeof *set) != 0)
        i++;
    if (i == rx->n_sets) {
        if (!rx_grow(rx, (void **)&rx->sets, i, 1, &rx->cap_sets, sizeof *set))
            return SL_RX_NONE;
        rx->sets[rx->n_sets++] = *set;
    }
    SL_ASSERT(i < rx->n_sets);
    return rx_intern(rx, (struct sl_rx_node){.op = RX_SET, .a = i, .head = 1});
}

sl_rx_id sl_rx_range(struct sl_rx *rx, unsigned lo, unsigned hi)
{
    SL_ASSERT(lo <= hi && hi <= 255);
    struct sl_rx_bytes set = {0};
    sl_rx_bytes_add(&set, lo, hi);
    return sl_rx_set(rx, &set);
}

sl_rx_id sl_rx_lit(struct sl_rx *rx, const char *s, size_t n)
{
    sl_rx_id id = SL_RX_EPS;
    for (size_t i = n; i-- > 0;)
        id = sl_rx_cat(rx, sl_rx_range(rx, (uint8_t)s[i], (uint8_t)s[i]), id);
    return id;
}

sl_rx_id sl_rx_cat(struct sl_rx *rx, sl_rx_id a, sl_rx_id b)
{
    if (a == SL_RX_NONE || b == SL_RX_NONE)
        return SL_RX_NONE;
    if (a == SL_RX_EPS || b == SL_RX_EPS)
        return a == SL_RX_EPS ? b : a;
    if (a == SL_RX_ALL && b == SL_RX_ALL)
        return a;
    const struct sl_rx_node *x = &rx->nodes[a], *y = &rx->nodes[b];
    uint32_t head = x->head + 1;
    return rx_intern(rx, (struct sl_rx_node){.op = RX_CAT,
                                             .a = a,
                                             .b = b,
                                             .nullable = x->nullable && y->nullable,
                                             .boolean = SL_MAX(x->boolean, y->boolean),
                                             .head = x->nullable ? SL_MAX(head, y->head) : head});
}

/* Appends the operands of id, which may itself be a list of the same kind, to rx->kids. */
static bool push_kids(struct sl_rx *rx, unsigned op, sl_rx_id id)
{
    SL_ASSERT(id < rx->n_nodes);
    struct sl_rx_node n = rx->nodes[id];
    bool flat = n.op == op;
    uint32_t count = flat ? n.b : 1;
    if (!rx_grow(rx, (void **)&rx->kids, rx->n_kids, count, &rx->cap_kids, sizeof rx->kids[0]))
        return false;
    if (flat)
        memmove(&rx->kids[rx->n_kids], &rx->kids[n.a], count * sizeof rx->kids[0]);
    else
        rx->kids[rx->n_kids] = id;
    rx->n_kids += count;
    SL_ASSERT(rx->n_kids <= rx->cap_kids);
    return true;
}

static void sort_ids(uint32_t *v, uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            uint32_t x = v[i], j = i;
            for (; j >= gap && v[j - gap] > x; j -= gap)
                v[j] = v[j - gap];
            v[j] = x;
        }
}

/* Byte sets among the operands become one. Interning pushes nothing, sets have no operands. */
static bool merge_sets(struct sl_rx *rx, unsigned op, uint32_t from)
{
    struct sl_rx_bytes all = {0};
    uint32_t n_sets = 0, n = from;
    for (uint32_t i = from; i < rx->n_kids; i++) {
        const struct sl_rx_node *k = &rx->nodes[rx->kids[i]];
        if (k->op != RX_SET) {
            rx->kids[n++] = rx->kids[i];
            continue;
        }
        for (int w = 0; w < 4; w++)
            all.w[w] = n_sets == 0    ? rx->sets[k->a].w[w]
                       : op == RX_ALT ? all.w[w] | rx->sets[k->a].w[w]
                                      : all.w[w] & rx->sets[k->a].w[w];
        n_sets++;
    }
    SL_ASSERT(n + n_sets == rx->n_kids);
    rx->n_kids = n;
    if (n_sets > 0)
        rx->kids[rx->n_kids++] = sl_rx_set(rx, &all);
    return rx->failed == NULL;
}

static bool has_id(const uint32_t *v, uint32_t n, uint32_t id)
{
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (v[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && v[lo] == id;
}

/* SL_RX_TEXT, SL_RX_CHARS: it has all strings of that kind; 0: perhaps not. */
static uint8_t all_texts(const struct sl_rx *rx, sl_rx_id id)
{
    return id == SL_RX_NONE      ? 0
           : id == rx->any_text  ? SL_RX_TEXT
           : id == rx->any_chars ? SL_RX_CHARS
                                 : 0;
}

/* Has another operand than v[i] only strings of that kind? */
static bool another_has(const struct sl_rx *rx, const uint32_t *v, uint32_t n, uint32_t i,
                        uint8_t texts)
{
    bool found = false;
    SL_ASSERT(i < n && texts <= SL_RX_TEXT);
    for (uint32_t j = 0; j < n && texts != 0 && !found; j++)
        found = j != i && rx->nodes[v[j]].texts == texts;
    return found;
}

/* Does an intersection leave nothing of JSON's strings, as one operand has none of them? */
static bool no_texts_left(const struct sl_rx *rx, const uint32_t *v, uint32_t n)
{
    bool none = false;
    for (uint32_t i = 0; i < n && !none; i++) {
        const struct sl_rx_node *x = &rx->nodes[v[i]];
        none = x->op == RX_NOT && another_has(rx, v, n, i, all_texts(rx, x->a));
    }
    return none;
}

/* Leaves out what another operand makes superfluous: x & (x | y) is x, and so is x | (x & y). A
 * state of "any string, or one that matches" does not follow the match then. Returns how many are
 * left. What is dropped has an operand that stays: it is of the other kind, so it is not dropped.
 */
static uint32_t absorb(const struct sl_rx *rx, unsigned op, uint32_t *v, uint32_t n)
{
    const unsigned other = op == RX_ALT ? RX_AND : RX_ALT;
    uint32_t k = 0;
    SL_ASSERT(op == RX_ALT || op == RX_AND);
    uint8_t all = 0; /* of an alternation: what one operand has all of, the others need not have */
    for (uint32_t i = 0; op == RX_ALT && i < n; i++)
        all |= all_texts(rx, v[i]);
    for (uint32_t i = 0; i < n; i++) {
        const struct sl_rx_node *x = &rx->nodes[v[i]];
        bool drop = (x->texts & all) != 0 && all_texts(rx, v[i]) == 0;
        for (uint32_t j = 0; x->op == other && j < x->b && !drop; j++) {
            const uint32_t id = rx->kids[x->a + j];
            drop = has_id(v, k, id) || has_id(v + i + 1, n - i - 1, id);
        }
        if (!drop)
            v[k++] = v[i];
    }
    for (uint32_t i = 0; op == RX_AND && i < k; i++)
        if (another_has(rx, v, k, i, all_texts(rx, v[i]))) {
            memmove(v + i, v + i + 1, (k - i - 1) * sizeof v[0]);
            return k - 1;
        }
    return k;
}

/* Alternation or intersection of ids: flat, sorted, without units, duplicates and what absorbs. */
static sl_rx_id rx_list_of(struct sl_rx *rx, unsigned op, const sl_rx_id *ids, size_t n_ids)
{
    sl_rx_id unit = op == RX_ALT ? SL_RX_NONE : SL_RX_ALL;
    sl_rx_id zero = op == RX_ALT ? SL_RX_ALL : SL_RX_NONE;
    uint32_t from = rx->n_kids;
    bool any_null = false, all_null = true;
    uint8_t boolean = op == RX_AND;
    if (rx->failed != NULL)
        return SL_RX_NONE;
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] != unit && !push_kids(rx, op, ids[i]))
            return SL_RX_NONE;
    if (!merge_sets(rx, op, from))
        return SL_RX_NONE;
    uint32_t *v = &rx->kids[from], n = rx->n_kids - from, k = 0, head = 0;
    sort_ids(v, n);
    for (uint32_t i = 0; i < n; i++) {
        if (v[i] == zero || (op == RX_AND && v[i] == SL_RX_NONE)) {
            rx->n_kids = from;
            return zero;
        }
        if (v[i] == unit || (k > 0 && v[k - 1] == v[i]))
            continue;
        v[k++] = v[i];
    }
    if (op == RX_AND && no_texts_left(rx, v, k)) {
        rx->n_kids = from;
        return SL_RX_NONE;
    }
    k = absorb(rx, op, v, k);
    for (uint32_t i = 0; i < k; i++) {
        const struct sl_rx_node *x = &rx->nodes[v[i]];
        any_null = any_null || x->nullable;
        all_null = all_null && x->nullable;
        boolean = SL_MAX(boolean, x->boolean);
        head = SL_MAX(head, x->head + 1);
    }
    SL_ASSERT(k < 2 || v[0] < v[1]); /* sorted, each once: equal lists are equal nodes */
    rx->n_kids = from + k;
    if (k <= 1) {
        rx->n_kids = from;
        return k == 1 ? v[0] : unit;
    }
    /* Every string of an intersection with the empty string is empty. */
    if (op == RX_AND && v[0] == SL_RX_EPS) {
        rx->n_kids = from;
        return all_null ? SL_RX_EPS : SL_RX_NONE;
    }
    return rx_intern(rx, (struct sl_rx_node){.op = (uint8_t)op,
                                             .a = from,
                                             .b = k,
                                             .nullable = op == RX_ALT ? any_null : all_null,
                                             .boolean = boolean,
                                             .head = head});
}

sl_rx_id sl_rx_alt(struct sl_rx *rx, const sl_rx_id *ids, size_t n)
{
    return rx_list_of(rx, RX_ALT, ids, n);
}

sl_rx_id sl_rx_and(struct sl_rx *rx, const sl_rx_id *ids, size_t n)
{
    return rx_list_of(rx, RX_AND, ids, n);
}

sl_rx_id sl_rx_or2(struct sl_rx *rx, sl_rx_id a, sl_rx_id b)
{
    if (a == b || b == SL_RX_NONE)
        return a;
    return a == SL_RX_NONE ? b : rx_list_of(rx, RX_ALT, (sl_rx_id[]){a, b}, 2);
}

sl_rx_id sl_rx_and2(struct sl_rx *rx, sl_rx_id a, sl_rx_id b)
{
    return a == b ? a : rx_list_of(rx, RX_AND, (sl_rx_id[]){a, b}, 2);
}

sl_rx_id sl_rx_not(struct sl_rx *rx, sl_rx_id a)
{
    const struct sl_rx_node *x = &rx->nodes[a];
    if (x->op == RX_NOT)
        return x->a;
    return rx_intern(rx, (struct sl_rx_node){.op = RX_NOT,
                                             .a = a,
                                             .nullable = !x->nullable,
                                             .boolean = SL_MAX(x->boolean, 1),
                                             .head = x->head + 1});
}

sl_rx_id sl_rx_rep(struct sl_rx *rx, sl_rx_id a, int32_t lo, int32_t hi)
{
    const struct sl_rx_node *x = &rx->nodes[a];
    SL_ASSERT(lo >= 0 && (hi == SL_RX_INF || hi >= lo));
    if (hi == 0 || a == SL_RX_EPS)
        return SL_RX_EPS;
    if (a == SL_RX_NONE)
        return lo == 0 && rx->failed == NULL ? SL_RX_EPS : SL_RX_NONE;
    if (x->nullable)
        lo = 0; /* empty rounds fill up any lower bound */
    if (lo == 1 && hi == 1)
        return a;
    if (a == SL_RX_ALL || (x->op == RX_REP && x->lo == 0 && x->hi == SL_RX_INF))
        return a;
    return rx_intern(rx, (struct sl_rx_node){.op = RX_REP,
                                             .a = a,
                                             .lo = lo,
                                             .hi = hi,
                                             .nullable = lo == 0,
                                             .boolean = x->boolean,
                                             .head = x->head + 1});
}

sl_rx_id sl_rx_opt(struct sl_rx *rx, sl_rx_id a)
{
    return sl_rx_or2(rx, a, SL_RX_EPS);
}

/* Strings that agree on their first `at` bytes, from the last byte to the first of each branch. */
static sl_rx_id strings_at(struct sl_rx *rx, const struct sl_rx_str *list, size_t n, size_t at,
                           int depth)
{
    sl_rx_id alts[257];
    size_t n_alts = 0, i = 0, from = at;
    SL_ASSERT(n > 0 && at <= list[0].n);
    if (depth > MAX_HEAD)
        return sl_rx_fail(rx, SL_ELIMIT, "values nest too deeply in one another");
    if (n == 1)
        return sl_rx_lit(rx, list[0].s + at, list[0].n - at);
    while (at < list[0].n && at < list[n - 1].n && list[0].s[at] == list[n - 1].s[at])
        at++; /* shared by all: sorted, so the ends tell */
    if (list[0].n == at) {
        alts[n_alts++] = SL_RX_EPS;
        i = 1;
    }
    while (i < n) {
        SL_ASSERT(list[i].n > at && n_alts < SL_COUNT(alts));
        size_t j = i + 1;
        while (j < n && list[j].s[at] == list[i].s[at])
            j++;
        sl_rx_id rest = strings_at(rx, list + i, j - i, at + 1, depth + 1);
        uint8_t byte = (uint8_t)list[i].s[at];
        alts[n_alts++] = sl_rx_cat(rx, sl_rx_range(rx, byte, byte), rest);
        i = j;
    }
    sl_rx_id id = sl_rx_alt(rx, alts, n_alts);
    return sl_rx_cat(rx, sl_rx_lit(rx, list[0].s + from, at - from), id);
}

sl_rx_id sl_rx_strings(struct sl_rx *rx, const struct sl_rx_str *list, size_t n)
{
    return n == 0 ? SL_RX_NONE : strings_at(rx, list, n, 0, 0);
}

sl_rx_id sl_rx_behind_any(struct sl_rx *rx, sl_rx_id c, sl_rx_id id)
{
    struct sl_rx_node x = rx->nodes[id], rep = x.op == RX_CAT ? rx->nodes[x.a] : x;
    if (rep.op != RX_REP || rep.lo == rep.hi ||
        sl_rx_alive(rx, sl_rx_and2(rx, rep.a, sl_rx_not(rx, c))))
        return id;
    sl_rx_id rest = x.op == RX_CAT ? x.b : SL_RX_EPS;
    SL_ASSERT(rep.lo >= 0 && (rep.hi == SL_RX_INF || rep.lo < rep.hi));
    return rep.lo == 0 ? sl_rx_behind_any(rx, c, rest)
                       : sl_rx_cat(rx, sl_rx_rep(rx, rep.a, rep.lo, rep.lo), rest);
}

sl_rx_id sl_rx_list_at(struct sl_rx *rx, uint32_t list, uint32_t lo, uint32_t hi, uint32_t depth)
{
    SL_ASSERT(list < rx->n_lists && lo <= hi && hi <= INT32_MAX);
    const struct sl_rx_str *first = &rx->lists[list].v[lo];
    if (lo == hi && first->n == depth)
        return SL_RX_EPS;
    return rx_intern(rx, (struct sl_rx_node){.op = RX_LIST,
                                             .a = list,
                                             .b = depth,
                                             .lo = (int32_t)lo,
                                             .hi = (int32_t)hi,
                                             .nullable = first->n == depth,
                                             .head = 1});
}

sl_rx_id sl_rx_list(struct sl_rx *rx, const struct sl_rx_str *list, size_t n)
{
    SL_ASSERT(n <= INT32_MAX);
    if (n == 0)
        return SL_RX_NONE;
    if (!rx_grow(rx, (void **)&rx->lists, rx->n_lists, 1, &rx->cap_lists, sizeof rx->lists[0]))
        return SL_RX_NONE;
    rx->lists[rx->n_lists].v = list;
    return sl_rx_list_at(rx, rx->n_lists++, 0, (uint32_t)n - 1, 0);
}

sl_rx_id sl_rx_multiple_of(struct sl_rx *rx, uint32_t k, uint32_t rest, int scale, int phase)
{
    SL_ASSERT(k > 0 && rest < k && scale >= 0 && (phase == 0 || phase == 1));
    uint64_t r = rest;
    for (int i = 0; i < scale; i++)
        r = r * 10 % k;
    return rx_intern(rx, (struct sl_rx_node){.op = RX_MOD,
                                             .a = k,
                                             .b = rest,
                                             .lo = scale,
                                             .hi = phase,
                                             .boolean = k > MANY_RESTS ? 2 : 0,
                                             .nullable = r == 0,
                                             .head = 1});
}

sl_rx_id sl_rx_multiple(struct sl_rx *rx, uint32_t k, int scale)
{
    return sl_rx_multiple_of(rx, k, 0, scale, 0);
}
