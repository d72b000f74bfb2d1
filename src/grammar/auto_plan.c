/* SPDX-License-Identifier: MIT
 * auto_plan.c - what a goal means for objects and for arrays: which nodes have a say, which names
 * they know, what they ask of each member.
 */
#include "base/check.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"
#include "grammar/cset.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VISITED = 4096, MAX_DEPTH = 100, MAX_NAMES = 16384 };

struct visit { /* the nodes that apply to the same value */
    struct sl_auto *a;
    struct sl_plan *p;
    uint32_t *seen, n_seen;
    bool conditional;
};

bool sl_node_has_say(const struct sl_schema_node *n, bool object)
{
    if (object)
        return n->n_properties > 0 || n->n_required > 0 || n->n_patterns > 0 ||
               n->additional != SL_NODE_NONE || n->names != SL_NODE_NONE || n->n_deps > 0 ||
               n->min_props > 0 || n->max_props != UINT32_MAX || n->uneval_props != SL_NODE_NONE;
    return n->prefix.n > 0 || n->items != SL_NODE_NONE || n->contains != SL_NODE_NONE ||
           n->min_items > 0 || n->max_items != UINT32_MAX || n->unique ||
           n->uneval_items != SL_NODE_NONE;
}

static void visit(struct visit *v, uint32_t id, bool sure, int depth)
{
    SL_ASSERT(id != SL_NODE_NONE && id < v->a->schema.n_nodes);
    const struct sl_schema_node *n = &v->a->schema.nodes[id];
    v->conditional = v->conditional || !sure;
    for (uint32_t i = 0; i < v->n_seen; i++)
        if (v->seen[i] == id)
            return;
    if (v->n_seen == MAX_VISITED || depth > MAX_DEPTH) {
        sl_auto_too_many(v->a, "too many schemas apply to one value");
        return;
    }
    v->seen[v->n_seen++] = id;
    if ((n->types & (v->p->object ? SL_JSON_OBJECT : SL_JSON_ARRAY)) == 0)
        return;
    if (sl_node_has_say(n, v->p->object)) {
        if (v->p->n_locals == SL_COUNT(v->p->locals)) {
            sl_auto_too_many(v->a, "more than 64 schemas of objects apply to one value");
            return;
        }
        v->p->locals[v->p->n_locals++] = id;
    }
    v->p->exclusive = v->p->exclusive || n->not_node != SL_NODE_NONE || n->if_node != SL_NODE_NONE;
    for (uint32_t i = 0; i < n->all_of.n; i++)
        visit(v, n->all_of.v[i], sure, depth + 1);
    for (uint32_t i = 0; i < n->any_of.n; i++)
        visit(v, n->any_of.v[i], false, depth + 1);
    for (uint32_t i = 0; i < n->one_of.n; i++)
        visit(v, n->one_of.v[i], false, depth + 1);
    for (uint32_t i = 0; i < n->n_deps; i++)
        if (n->deps[i].node != SL_NODE_NONE)
            visit(v, n->deps[i].node, false, depth + 1);
    const uint32_t others[] = {n->not_node, n->if_node, n->then_node, n->else_node};
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (others[i] != SL_NODE_NONE)
            visit(v, others[i], false, depth + 1);
}

/* ---------------------------------------------------------------- names */

static void *auto_plan_array_of(struct sl_auto *a, size_t n, size_t size)
{
    void *p = sl_arena_array(&a->arena, n == 0 ? 1 : n, size);
    if (p == NULL)
        sl_auto_no_room(a);
    return p;
}

static int by_text(const void *x, const void *y)
{
    const struct sl_name *s = x, *t = y;
    int c = memcmp(s->text, t->text, SL_MIN(s->n, t->n));
    return c != 0 ? c : (s->n > t->n) - (s->n < t->n);
}

/* The one spelling of a property's name (SL_SPELL_KEY). */
static void auto_plan_spell(struct sl_auto *a, struct sl_name *name)
{
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char *out = auto_plan_array_of(a, (size_t)name->n_raw * 6 + 1, 1);
    uint32_t n = 0;
    for (uint32_t i = 0; i < name->n_raw && out != NULL; i++) {
        uint8_t c = (uint8_t)name->raw[i];
        const char *s = NULL;
        for (size_t k = 0; k < sizeof shorts - 1; k += 2)
            if ((uint8_t)shorts[k] == c)
                s = &shorts[k + 1];
        if (s != NULL || c < 0x20)
            out[n++] = '\\';
        if (s != NULL) {
            out[n++] = *s;
        } else if (c < 0x20) {
            memcpy(out + n, "u00", 3);
            out[n + 3] = "01"[c >> 4];
            out[n + 4] = "0123456789abcdef"[c & 15];
            n += 5;
        } else {
            out[n++] = (char)c;
        }
    }
    SL_ASSERT(n <= (size_t)name->n_raw * 6);
    name->text = out;
    name->n = n;
}

static void auto_plan_add_name(struct sl_auto *a, struct sl_plan *p, const char *raw, size_t n)
{
    SL_ASSERT(raw != NULL && n <= UINT32_MAX);
    struct sl_name *x = &p->names[p->n_names++];
    x->raw = raw;
    x->n_raw = (uint32_t)n;
    auto_plan_spell(a, x);
}

static void gather_names(struct sl_auto *a, struct sl_plan *p)
{
    size_t n = 0;
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *x = &a->schema.nodes[p->locals[l]];
        n += x->n_properties + x->n_required + x->n_deps;
        for (uint32_t i = 0; i < x->n_deps; i++)
            n += x->deps[i].n_required;
    }
    if (n > MAX_NAMES) {
        sl_auto_too_many(a, "an object with more than 16384 property names");
        return;
    }
    p->names = auto_plan_array_of(a, n, sizeof p->names[0]);
    for (uint32_t l = 0; l < p->n_locals && a->failed == NULL; l++) {
        const struct sl_schema_node *x = &a->schema.nodes[p->locals[l]];
        for (uint32_t i = 0; i < x->n_properties; i++)
            auto_plan_add_name(a, p, x->properties[i].name, x->properties[i].n);
        for (uint32_t i = 0; i < x->n_required; i++)
            auto_plan_add_name(a, p, x->required[i].name, x->required[i].n);
        for (uint32_t i = 0; i < x->n_deps; i++) {
            auto_plan_add_name(a, p, x->deps[i].name, x->deps[i].n);
            for (uint32_t k = 0; k < x->deps[i].n_required; k++)
                auto_plan_add_name(a, p, x->deps[i].required[k].name, x->deps[i].required[k].n);
        }
    }
    if (a->failed != NULL)
        return;
    SL_ASSERT(p->n_names <= n);
    if (p->n_names > 0)
        qsort(p->names, p->n_names, sizeof p->names[0], by_text);
    uint32_t k = 0;
    for (uint32_t i = 0; i < p->n_names; i++)
        if (k == 0 || by_text(&p->names[k - 1], &p->names[i]) != 0)
            p->names[k++] = p->names[i];
    p->n_names = k;
    SL_ASSERT(k == 0 || p->names[k - 1].text != NULL);
}

static bool pattern_matches(struct sl_auto *a, const struct sl_plan_pattern *x, sl_rx_id rx)
{
    return sl_rx_nullable(&a->rx, x->node == SL_NODE_NONE ? sl_rx_step(&a->rx, rx, '"') : rx);
}

static uint32_t auto_plan_place_of(struct sl_auto *a, const struct sl_plan *p, const char *raw,
                                   size_t n)
{
    struct sl_name want = {.raw = raw, .n_raw = (uint32_t)n};
    auto_plan_spell(a, &want);
    const struct sl_name *at =
        a->failed != NULL ? NULL : bsearch(&want, p->names, p->n_names, sizeof want, by_text);
    SL_ASSERT(at != NULL || a->failed != NULL); /* the plan knows every name of its locals */
    return at != NULL ? (uint32_t)(at - p->names) : 0;
}

static void know_asked(struct sl_auto *a, struct sl_plan *p, uint32_t l)
{
    const struct sl_schema_node *x = &a->schema.nodes[p->locals[l]];
    size_t n = x->n_required + x->n_deps;
    for (uint32_t i = 0; i < x->n_deps; i++)
        n += x->deps[i].n_required;
    uint32_t *at = p->asked[l] = auto_plan_array_of(a, n, sizeof *at);
    if (at == NULL)
        return;
    for (uint32_t i = 0; i < x->n_required; i++)
        *at++ = auto_plan_place_of(a, p, x->required[i].name, x->required[i].n);
    for (uint32_t i = 0; i < x->n_deps; i++) {
        const struct sl_dependency *d = &x->deps[i];
        *at++ = auto_plan_place_of(a, p, d->name, d->n);
        for (uint32_t k = 0; k < d->n_required; k++)
            *at++ = auto_plan_place_of(a, p, d->required[k].name, d->required[k].n);
    }
    SL_ASSERT(at == p->asked[l] + n);
}

static void know_names(struct sl_auto *a, struct sl_plan *p)
{
    SL_ASSERT(p->n_locals <= SL_COUNT(p->locals) && p->n_patterns <= 64);
    p->props =
        auto_plan_array_of(a, (size_t)p->n_names * SL_MAX(p->n_locals, 1), sizeof p->props[0]);
    p->asked = auto_plan_array_of(a, p->n_locals, sizeof p->asked[0]);
    for (uint32_t l = 0; l < p->n_locals && a->failed == NULL; l++) {
        const struct sl_schema_node *x = &a->schema.nodes[p->locals[l]];
        for (uint32_t i = 0; i < x->n_properties; i++) {
            size_t at = auto_plan_place_of(a, p, x->properties[i].name, x->properties[i].n);
            if (a->failed == NULL)
                p->props[at * p->n_locals + l] = x->properties[i].node;
        }
        know_asked(a, p, l);
    }
    for (uint32_t i = 0; i < p->n_names; i++)
        for (uint32_t k = 0; k < p->n_patterns; k++) {
            sl_rx_id rx = p->patterns[k].rx;
            for (uint32_t j = 0; j < p->names[i].n && rx != SL_RX_NONE; j++)
                rx = sl_rx_step(&a->rx, rx, (uint8_t)p->names[i].text[j]);
            if (pattern_matches(a, &p->patterns[k], rx))
                p->names[i].patterns |= 1ull << k;
        }
}

static void gather_patterns(struct sl_auto *a, struct sl_plan *p)
{
    p->patterns = auto_plan_array_of(a, 64, sizeof p->patterns[0]);
    for (uint32_t l = 0; l < p->n_locals && p->patterns != NULL; l++) {
        const struct sl_schema_node *x = &a->schema.nodes[p->locals[l]];
        SL_ASSERT(p->n_patterns <= 64);
        if (p->n_patterns + x->n_patterns + 1 > 64) {
            sl_auto_too_many(a, "more than 63 patternProperties apply to one object");
            return;
        }
        for (uint32_t i = 0; i < x->n_patterns; i++)
            p->patterns[p->n_patterns++] =
                (struct sl_plan_pattern){l, x->patterns[i].node, x->patterns[i].rx};
        if (x->names != SL_NODE_NONE)
            p->patterns[p->n_patterns++] = (struct sl_plan_pattern){
                l, SL_NODE_NONE, sl_rx_step(&a->rx, a->schema.nodes[x->names].scalar, '"')};
    }
}

static void plan_object(struct sl_auto *a, struct sl_plan *p)
{
    uint32_t words = 0;
    bool counts = false;
    gather_names(a, p);
    gather_patterns(a, p);
    p->word_of = auto_plan_array_of(a, p->n_locals, sizeof p->word_of[0]);
    if (a->failed != NULL || a->too_many)
        return;
    know_names(a, p);
    words = (p->n_names + 31) / 32;
    p->n_words = words;
    p->static_keys = p->simple;
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *x = &a->schema.nodes[p->locals[l]];
        uint32_t max = x->max_props == UINT32_MAX ? 0 : x->max_props + 1;
        p->cap = SL_MAX(p->cap, SL_MAX(max, x->min_props));
        p->static_keys = p->static_keys && max == 0 && x->n_deps == 0;
        counts = counts || x->min_props > 1;
        p->word_of[l] = UINT32_MAX;
        if (x->uneval_props != SL_NODE_NONE) {
            p->word_of[l] = p->n_words;
            p->n_words += words + 1;
            p->static_keys = false;
        }
    }
    SL_ASSERT(p->n_words >= words && p->n_locals <= SL_COUNT(p->locals));
    p->track_keys = counts;
    if (p->exclusive)
        sl_plan_mark_tests(a, p);
    p->name_goals = auto_plan_array_of(a, p->n_names, sizeof p->name_goals[0]);
}

static void plan_array(struct sl_auto *a, struct sl_plan *p)
{
    SL_ASSERT(!p->object && p->n_words == 0);
    bool contains = false, uneval = false;
    p->word_of = auto_plan_array_of(a, p->n_locals, sizeof p->word_of[0]);
    if (p->word_of == NULL)
        return;
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *x = &a->schema.nodes[p->locals[l]];
        uint32_t max = x->max_items == UINT32_MAX ? 0 : x->max_items + 1;
        p->cap = SL_MAX(SL_MAX(p->cap, x->prefix.n), SL_MAX(max, x->min_items));
        p->word_of[l] = UINT32_MAX;
        if (x->contains != SL_NODE_NONE || x->uneval_items != SL_NODE_NONE) {
            p->word_of[l] = p->n_words;
            p->n_words += 3;
        }
        contains = contains || x->contains != SL_NODE_NONE;
        uneval = uneval || x->uneval_items != SL_NODE_NONE;
        p->min_items = SL_MAX(p->min_items, x->min_items);
        p->unique = p->unique || x->unique;
    }
    p->indexed = contains && uneval;
    if (p->indexed) { /* of the last one the truth is not kept, so contains must hold before it */
        p->cap = SL_MAX(p->cap, MAX_INDEXED);
        p->exclusive = true;
    }
    /* Items differ wherever one of the schemas that may apply wants it, so that it always holds. */
    p->seen_word = p->unique ? p->n_words++ : 0;
}

struct sl_plan *sl_plan_of(struct sl_auto *a, struct sl_goal *g, bool object)
{
    struct sl_plan **at = object ? &g->object : &g->array;
    if (*at != NULL)
        return *at;
    struct sl_plan *p = sl_arena_alloc(&a->arena, sizeof *p);
    uint32_t *seen = sl_malloc(MAX_VISITED * sizeof *seen);
    if (p == NULL || seen == NULL) {
        if (p == NULL)
            sl_auto_no_room(a);
        else
            sl_auto_fail(a, SL_ENOMEM, "out of memory");
        sl_free(seen);
        return NULL;
    }
    a->too_many = false;
    p->goal = g;
    p->object = object;
    struct visit v = {.a = a, .p = p, .seen = seen};
    for (uint32_t i = 0; i < g->n_roots; i++)
        visit(&v, g->roots[i], g->pure, 0);
    sl_free(seen);
    p->simple = !v.conditional;
    if (object)
        plan_object(a, p);
    else
        plan_array(a, p);
    if (a->failed != NULL || a->too_many)
        return NULL;
    *at = p;
    return p;
}

uint32_t sl_plan_free_class(struct sl_auto *a, struct sl_plan *p, uint64_t sig)
{
    uint32_t i = 0;
    while (i < p->n_free && p->free_sigs[i] != sig)
        i++;
    if (i == p->n_free) {
        if (p->n_free == p->cap_free) {
            uint32_t cap = p->cap_free == 0 ? 4 : p->cap_free * 2;
            void *v = sl_realloc(p->free_sigs, cap * sizeof p->free_sigs[0]);
            if (v == NULL)
                return sl_auto_fail(a, SL_ENOMEM, "out of memory");
            p->free_sigs = v;
            p->cap_free = cap;
        }
        p->free_sigs[p->n_free++] = sig;
    }
    SL_ASSERT(i < p->n_free && p->free_sigs[i] == sig);
    return p->n_names + i;
}

/* ---------------------------------------------------------------- what is asked of members */

static uint64_t sig_of(const struct sl_plan *p, uint32_t class)
{
    SL_ASSERT(class < p->n_names + p->n_free);
    return class < p->n_names ? p->names[class].patterns : p->free_sigs[class - p->n_names];
}

static uint32_t local_of(const struct sl_plan *p, uint32_t node)
{
    uint32_t l = 0;
    while (l < p->n_locals && p->locals[l] != node)
        l++;
    SL_ASSERT(l <= p->n_locals);
    return l;
}

/* Do the node's own keywords (not unevaluated*) look at members of that class? */
static bool looks_at(const struct sl_plan *p, const struct sl_schema_node *n, uint32_t l,
                     uint32_t class)
{
    SL_ASSERT(l < p->n_locals);
    if (!p->object)
        return class < n->prefix.n || n->items != SL_NODE_NONE;
    if (class < p->n_names && p->props[(size_t) class * p->n_locals + l] != SL_NODE_NONE)
        return true;
    for (uint32_t i = 0; i < p->n_patterns; i++)
        if (p->patterns[i].local == l && p->patterns[i].node != SL_NODE_NONE &&
            (sig_of(p, class) >> i & 1) != 0)
            return true;
    return n->additional != SL_NODE_NONE;
}

static enum truth auto_plan_either(enum truth x, enum truth y)
{
    return x > y ? x : y;
}

/* A schema that applies only if it holds: what it looks at counts when its truth is known. */
static enum truth conditional(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                              uint32_t node, uint32_t class, int depth)
{
    if (node == SL_NODE_NONE)
        return IS_FALSE;
    SL_ASSERT(depth >= 0 && depth <= MAX_DEPTH);
    enum truth c = sl_plan_covers(a, p, f, node, class, depth + 1);
    if (c == IS_FALSE || f == NULL)
        return c == IS_FALSE ? c : IS_OPEN;
    return sl_frame_truth(a, p, f, node, true, 0) == IS_TRUE ? c : IS_FALSE;
}

enum truth sl_plan_covers(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                          uint32_t node, uint32_t class, int depth)
{
    SL_ASSERT(node != SL_NODE_NONE && node < a->schema.n_nodes);
    const struct sl_schema_node *n = &a->schema.nodes[node];
    uint32_t l = local_of(p, node);
    enum truth out = IS_FALSE;
    if (depth > MAX_DEPTH || !sl_auto_spend(a, 1))
        return IS_FALSE;
    if (l < p->n_locals && looks_at(p, n, l, class))
        return IS_TRUE;
    if (l < p->n_locals && !p->object && n->contains != SL_NODE_NONE) {
        SL_ASSERT(f == NULL || FR_WORDS + p->word_of[l] + 2 < f->n);
        bool matched = f != NULL && class < MAX_INDEXED &&
                       (f->v[FR_WORDS + p->word_of[l] + 2] >> class & 1) != 0;
        if (f == NULL || matched)
            out = f == NULL ? IS_OPEN : IS_TRUE;
    }
    if (depth > 0 && (p->object ? n->uneval_props : n->uneval_items) != SL_NODE_NONE)
        return IS_TRUE;
    for (uint32_t i = 0; i < n->all_of.n; i++)
        out = auto_plan_either(out, sl_plan_covers(a, p, f, n->all_of.v[i], class, depth + 1));
    for (uint32_t i = 0; i < n->any_of.n; i++)
        out = auto_plan_either(out, conditional(a, p, f, n->any_of.v[i], class, depth));
    for (uint32_t i = 0; i < n->one_of.n; i++)
        out = auto_plan_either(out, conditional(a, p, f, n->one_of.v[i], class, depth));
    for (uint32_t i = 0; i < n->n_deps && p->object && l < p->n_locals; i++)
        if (f == NULL || sl_frame_seen(f, sl_plan_dep(p, n, l, i)[0]))
            out = auto_plan_either(out, conditional(a, p, f, n->deps[i].node, class, depth));
    if (n->if_node != SL_NODE_NONE) {
        enum truth c = f == NULL ? IS_OPEN : sl_frame_truth(a, p, f, n->if_node, true, 0);
        out = auto_plan_either(out, conditional(a, p, f, n->if_node, class, depth));
        if (c != IS_FALSE)
            out = auto_plan_either(out, conditional(a, p, f, n->then_node, class, depth));
        if (c != IS_TRUE)
            out = auto_plan_either(out, conditional(a, p, f, n->else_node, class, depth));
    }
    return out;
}

uint32_t sl_plan_wanted(struct sl_auto *a, const struct sl_plan *p, uint32_t local, uint32_t class,
                        uint32_t *out)
{
    SL_ASSERT(local < p->n_locals);
    const struct sl_schema_node *n = &a->schema.nodes[p->locals[local]];
    uint32_t k = 0, uneval = p->object ? n->uneval_props : n->uneval_items;
    if (p->object) {
        uint32_t own = class < p->n_names ? p->props[(size_t) class * p->n_locals + local] : 0;
        if (own != SL_NODE_NONE)
            out[k++] = own;
        for (uint32_t i = 0; i < p->n_patterns; i++)
            if (p->patterns[i].local == local && p->patterns[i].node != SL_NODE_NONE &&
                (sig_of(p, class) >> i & 1) != 0)
                out[k++] = p->patterns[i].node;
        if (k == 0 && n->additional != SL_NODE_NONE)
            out[k++] = n->additional;
    } else if (class < n->prefix.n) {
        out[k++] = n->prefix.v[class];
    } else if (n->items != SL_NODE_NONE) {
        out[k++] = n->items;
    }
    if (k == 0 && uneval != SL_NODE_NONE &&
        sl_plan_covers(a, p, NULL, p->locals[local], class, 0) == IS_FALSE)
        out[k++] = uneval;
    SL_ASSERT(k <= MAX_WANTED);
    return k;
}
