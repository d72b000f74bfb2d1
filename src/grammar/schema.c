/* SPDX-License-Identifier: MIT
 * schema.c - the keywords of a schema, one node per subschema, breadth first and without recursion.
 */
#include "grammar/schema.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "grammar/cset.h"
#include "grammar/regex.h"
#include "grammar/schema_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct filling { /* a node while its keywords are read */
    struct sl_loader *l;
    struct sl_place place;
    enum sl_role role;
    bool passes; /* sl_schema_passes */
    struct sl_schema_node n;
    struct sl_nodes all; /* grows; becomes n.all_of */
    uint32_t cap_all;
    sl_rx_id number, string; /* languages of the inside; SL_RX_ALL: no constraint */
    uint64_t min_length, max_length;
    int rc;
};

static int bad(struct filling *f, int code, const char *key, const char *what)
{
    SL_ASSERT(code < 0);
    if (f->rc == 0)
        f->rc = sl_fail(f->l->err, code, "schema: %s/%s: %s", f->place.path, key, what);
    return f->rc;
}

static void no_room(struct filling *f)
{
    bool no_memory = f->l->s->arena.no_memory;
    bad(f, no_memory ? SL_ENOMEM : SL_ELIMIT, "", no_memory ? "out of memory" : "too large");
}

static void *schema_array_of(struct filling *f, size_t n, size_t size)
{
    SL_ASSERT(size > 0);
    void *p = sl_arena_array(&f->l->s->arena, n == 0 ? 1 : n, size);
    if (p == NULL)
        no_room(f);
    return p;
}

/* A copy that stays; NULL: no room, and said so. */
static const char *schema_text_of(struct filling *f, const char *s, size_t n)
{
    const char *copy = sl_arena_strndup(&f->l->s->arena, s, n);
    if (copy == NULL)
        no_room(f);
    return copy;
}

static uint32_t schema_new_node(struct sl_loader *l, const char *path)
{
    struct sl_schema *s = l->s;
    if (s->n_nodes == s->cap_nodes) {
        uint32_t cap = s->cap_nodes == 0 ? 64 : s->cap_nodes * 2;
        void *p = cap > SL_SCHEMA_MAX_NODES ? NULL : sl_realloc(s->nodes, cap * sizeof s->nodes[0]);
        if (p == NULL)
            return SL_NODE_NONE;
        s->nodes = p;
        s->cap_nodes = cap;
    }
    SL_ASSERT(s->n_nodes < s->cap_nodes);
    s->nodes[s->n_nodes] = (struct sl_schema_node){.path = path,
                                                   .types = SL_JSON_ALL,
                                                   .local = s->any_scalar,
                                                   .max_props = UINT32_MAX,
                                                   .max_items = UINT32_MAX,
                                                   .max_contains = UINT32_MAX};
    return s->n_nodes++;
}

/* The node of a subschema in a role; it is filled later. path: its place if it is new. */
static uint32_t node_of(struct filling *f, json_t *json, const char *path, enum sl_role role)
{
    SL_ASSERT(path != NULL);
    struct sl_loader *l = f->l;
    if (json_is_boolean(json))
        return json_is_true(json) ? SL_NODE_TRUE : SL_NODE_FALSE;
    if (!json_is_object(json)) {
        if (f->rc == 0)
            f->rc = sl_fail(l->err, SL_EINVAL, "schema: %s: not a schema", path);
        return SL_NODE_TRUE;
    }
    struct sl_place *p = sl_schema_place(l, json, f->place.base, path, f->place.draft);
    if (p == NULL || p->nodes[role] != SL_NODE_NONE) {
        f->rc = p == NULL ? l->err->code : f->rc;
        return p == NULL ? SL_NODE_TRUE : p->nodes[role];
    }
    if (l->n_queue == l->cap_queue) {
        uint32_t cap = l->cap_queue == 0 ? 64 : l->cap_queue * 2;
        void *q = sl_realloc(l->queue, cap * sizeof l->queue[0]);
        if (q == NULL) {
            bad(f, SL_ENOMEM, "", "out of memory");
            return SL_NODE_TRUE;
        }
        l->queue = q;
        l->cap_queue = cap;
    }
    p->nodes[role] = schema_new_node(l, p->path);
    if (p->nodes[role] == SL_NODE_NONE) {
        bad(f, SL_ELIMIT, "", "too many subschemas");
        return SL_NODE_TRUE;
    }
    SL_ASSERT(l->n_queue < l->cap_queue && p < l->places + l->n_places);
    l->queue[l->n_queue++] = (uint32_t)(p - l->places) * SL_ROLES + role;
    return p->nodes[role];
}

static uint32_t child(struct filling *f, json_t *json, const char *key, const char *under)
{
    const char *path = sl_schema_path(f->l, f->place.path, key);
    return node_of(f, json, under != NULL ? sl_schema_path(f->l, path, under) : path,
                   sl_schema_role(f->role, f->passes, key));
}

static void also(struct filling *f, uint32_t node)
{
    SL_ASSERT(node != SL_NODE_NONE && f->all.n <= f->cap_all);
    if (f->all.n == f->cap_all) {
        uint32_t cap = f->cap_all == 0 ? 8 : f->cap_all * 2;
        uint32_t *v = schema_array_of(f, cap, sizeof *v);
        if (v == NULL)
            return;
        if (f->all.n > 0)
            memcpy(v, f->all.v, f->all.n * sizeof *v);
        f->all.v = v;
        f->cap_all = cap;
    }
    SL_ASSERT(f->all.n < f->cap_all);
    f->all.v[f->all.n++] = node;
}

static void schema_list_of(struct filling *f, json_t *list, const char *key, struct sl_nodes *out)
{
    size_t i;
    json_t *v;
    if (!json_is_array(list)) {
        bad(f, SL_EINVAL, key, "not an array of schemas");
        return;
    }
    SL_ASSERT(out->v == NULL && out->n == 0); /* or the new list has the old one's length */
    out->v = schema_array_of(f, json_array_size(list), sizeof out->v[0]);
    json_array_foreach(list, i, v)
    {
        char n[24];
        snprintf(n, sizeof n, "%zu", i);
        if (f->rc == 0)
            out->v[out->n++] = child(f, v, key, n);
    }
}

static uint32_t schema_count_of(struct filling *f, const json_t *v, const char *key)
{
    double x = json_number_value(v);
    const char *big = sl_big_integer(v);
    if (big != NULL && big[0] != '-')
        return UINT32_MAX - 1;
    if (!json_is_number(v) || x < 0 || floor(x) < x) {
        bad(f, SL_EINVAL, key, "not a whole number");
        return 0;
    }
    SL_ASSERT(x >= 0);
    return x >= (double)(UINT32_MAX - 1) ? UINT32_MAX - 1 : (uint32_t)x;
}

/* ---------------------------------------------------------------- constants */

static uint32_t schema_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return SL_JSON_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SL_JSON_BOOL;
    case JSON_STRING:
        return sl_big_integer(v) != NULL ? SL_JSON_INT : SL_JSON_STRING;
    case JSON_ARRAY:
        return SL_JSON_ARRAY;
    case JSON_OBJECT:
        return SL_JSON_OBJECT;
    default:
        return json_is_integer(v) || floor(json_number_value(v)) >= json_number_value(v)
                   ? SL_JSON_INT
                   : SL_JSON_FRACTION;
    }
}

/* A node that only this value satisfies. */
static uint32_t schema_constant(struct filling *f, json_t *v, const char *key, int depth)
{
    SL_ASSERT(depth >= 0 && depth <= 65);
    uint32_t id = schema_new_node(f->l, f->place.path);
    const char *name;
    json_t *kid;
    size_t i, len;
    if (id == SL_NODE_NONE || depth > 64) {
        bad(f, SL_ELIMIT, key, "the value is too large or nested too deeply");
        return SL_NODE_FALSE;
    }
    struct sl_schema_node n = f->l->s->nodes[id];
    n.types = schema_type_of(v);
    n.local = SL_RX_NONE;
    if (json_is_array(v)) {
        n.min_items = n.max_items = (uint32_t)json_array_size(v);
        n.prefix.v = schema_array_of(f, n.max_items, sizeof n.prefix.v[0]);
        json_array_foreach(v, i, kid) if (f->rc == 0) n.prefix.v[n.prefix.n++] =
            schema_constant(f, kid, key, depth + 1);
    } else if (json_is_object(v)) {
        n.min_props = n.max_props = (uint32_t)json_object_size(v);
        n.properties = n.required = schema_array_of(f, n.max_props, sizeof n.properties[0]);
        n.additional = SL_NODE_FALSE;
        json_object_keylen_foreach(v, name, len, kid)
        {
            if (f->rc != 0)
                break;
            n.properties[n.n_properties++] = (struct sl_property){
                schema_text_of(f, name, len), len, schema_constant(f, kid, key, depth + 1)};
        }
        n.n_required = n.n_properties;
    } else {
        n.local = sl_schema_value(f->l->s, v);
        if (n.local == SL_RX_NONE)
            bad(f, SL_EUNSUPPORTED, key, "a number with too many digits");
    }
    SL_ASSERT(id < f->l->s->n_nodes);
    SL_ASSERT(f->rc != 0 || !json_is_array(v) || n.prefix.n == n.max_items);
    SL_ASSERT(f->rc != 0 || !json_is_object(v) || n.n_properties == n.max_props);
    f->l->s->nodes[id] = n;
    return id;
}

static int schema_by_bytes(const void *a, const void *b)
{
    const struct sl_rx_str *x = a, *y = b;
    int c = memcmp(x->s, y->s, SL_MIN(x->n, y->n));
    return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

/* Strings without escapes of a list of values, quoted, as one tree. */
static sl_rx_id plain_strings(struct filling *f, json_t *list)
{
    size_t i, n = 0, k = 0;
    json_t *v;
    struct sl_rx_str *all = schema_array_of(f, json_array_size(list), sizeof *all);
    if (all == NULL)
        return SL_RX_NONE;
    json_array_foreach(list, i, v)
    {
        size_t len = json_string_length(v);
        char *s = json_is_string(v) ? schema_array_of(f, len + 2, 1) : NULL;
        if (s == NULL)
            continue;
        s[0] = s[len + 1] = '"';
        memcpy(s + 1, json_string_value(v), len);
        bool escapes = false;
        for (size_t j = 1; j <= len; j++)
            escapes = escapes || (uint8_t)s[j] < 0x20 || s[j] == '"' || s[j] == '\\';
        if (!escapes)
            all[n++] = (struct sl_rx_str){s, len + 2};
    }
    if (n > 0)
        qsort(all, n, sizeof *all, schema_by_bytes);
    for (i = 0; i < n; i++)
        if (k == 0 || schema_by_bytes(&all[k - 1], &all[i]) != 0)
            all[k++] = all[i];
    SL_ASSERT(k <= n && n <= json_array_size(list));
    return sl_rx_strings(f->l->s->rx, all, k);
}

static bool needs_escape(const json_t *v)
{
    const char *s = json_string_value(v);
    for (size_t i = 0; s != NULL && i < json_string_length(v); i++)
        if ((uint8_t)s[i] < 0x20 || s[i] == '"' || s[i] == '\\')
            return true;
    return false;
}

static void enumerated(struct filling *f, json_t *list, const char *key)
{
    size_t i;
    json_t *v;
    uint32_t types = 0, n_any = 0;
    struct sl_rx *rx = f->l->s->rx;
    if (!json_is_array(list)) {
        bad(f, SL_EINVAL, key, "not an array");
        return;
    }
    sl_rx_id scalars = plain_strings(f, list);
    uint32_t *any = schema_array_of(f, json_array_size(list) + 1, sizeof *any);
    json_array_foreach(list, i, v)
    {
        types |= schema_type_of(v);
        if (f->rc != 0)
            return;
        if (json_is_array(v) || json_is_object(v))
            any[n_any++] = schema_constant(f, v, key, 0);
        else if (!json_is_string(v) || needs_escape(v)) {
            sl_rx_id one = sl_schema_value(f->l->s, v);
            if (one == SL_RX_NONE)
                bad(f, SL_EUNSUPPORTED, key, "a number with too many digits");
            scalars = sl_rx_or2(rx, scalars, one);
        }
    }
    uint32_t id = schema_new_node(f->l, f->place.path);
    if (id == SL_NODE_NONE) {
        bad(f, SL_ELIMIT, key, "too many values");
        return;
    }
    /* Of whole numbers 1.0 is one, so an enumerated 1 allows both kinds of text. */
    f->l->s->nodes[id].local = scalars;
    f->l->s->nodes[id].types = types & SL_JSON_SCALARS;
    if (n_any == 0) {
        also(f, id);
        return;
    }
    uint32_t both = schema_new_node(f->l, f->place.path);
    if (both == SL_NODE_NONE) {
        bad(f, SL_ELIMIT, key, "too many values");
        return;
    }
    SL_ASSERT(n_any <= json_array_size(list)); /* there is room for one more */
    any[n_any++] = id;
    f->l->s->nodes[both].any_of = (struct sl_nodes){any, n_any};
    also(f, both);
}

/* ---------------------------------------------------------------- scalars */

static void types(struct filling *f, json_t *v, const char *key)
{
    static const struct {
        const char *name;
        uint32_t types;
    } names[] = {{"null", SL_JSON_NULL},     {"boolean", SL_JSON_BOOL},
                 {"integer", SL_JSON_INT},   {"number", SL_JSON_INT | SL_JSON_FRACTION},
                 {"string", SL_JSON_STRING}, {"array", SL_JSON_ARRAY},
                 {"object", SL_JSON_OBJECT}};
    uint32_t all = 0;
    for (size_t i = 0; i < (json_is_array(v) ? json_array_size(v) : 1); i++) {
        const json_t *t = json_is_array(v) ? json_array_get(v, i) : v;
        uint32_t one = 0;
        for (size_t k = 0; k < SL_COUNT(names) && json_is_string(t); k++)
            if (strcmp(json_string_value(t), names[k].name) == 0)
                one = names[k].types;
        if (one == 0) {
            bad(f, SL_EINVAL, key, "not the name of a type");
            return;
        }
        all |= one;
    }
    SL_ASSERT((all & ~(uint32_t)SL_JSON_ALL) == 0);
    f->n.types &= all;
}

static void bound(struct filling *f, json_t *v, const char *key, enum sl_bound how)
{
    struct sl_decimal d;
    SL_ASSERT(how <= SL_BELOW);
    if (f->place.draft == 4 && how == SL_AT_LEAST &&
        json_is_true(json_object_get(f->place.json, "exclusiveMinimum")))
        how = SL_ABOVE;
    if (f->place.draft == 4 && how == SL_AT_MOST &&
        json_is_true(json_object_get(f->place.json, "exclusiveMaximum")))
        how = SL_BELOW;
    if (!json_is_number(v) && sl_big_integer(v) == NULL) {
        bad(f, SL_EINVAL, key, "not a number");
    } else if (!sl_decimal_of(v, &d)) {
        bad(f, SL_EUNSUPPORTED, key, "a number with too many digits");
    } else {
        sl_rx_id b = sl_number_bound(f->l->s->rx, &d, how);
        f->number = sl_rx_and2(f->l->s->rx, f->number, b);
    }
}

static void multiple_of(struct filling *f, json_t *v, const char *key)
{
    struct sl_decimal d;
    const char *big = sl_big_integer(v);
    if (big != NULL ? big[0] == '-' : !json_is_number(v) || json_number_value(v) <= 0) {
        bad(f, SL_EINVAL, key, "not a number above 0");
        return;
    }
    sl_rx_id m = sl_decimal_of(v, &d) ? sl_number_multiple(f->l->s->rx, &d) : SL_RX_NONE;
    if (m == SL_RX_NONE)
        bad(f, SL_EUNSUPPORTED, key, "supported up to 9 significant digits");
    f->number = sl_rx_and2(f->l->s->rx, f->number, m);
}

static int pattern_rx(struct filling *f, const char *p, size_t n, const char *key, sl_rx_id *out)
{
    int rc = sl_regex_parse(f->l->s->rx, p, n, SL_REGEX_SEARCH, SL_SPELL_JSON, out, f->l->err);
    if (rc != 0)
        rc = f->rc = sl_error_prefix(f->l->err, rc, "schema: %s/%s", f->place.path, key);
    return rc;
}

static void format(struct filling *f, json_t *v, const char *key)
{
    sl_rx_id id;
    if (!json_is_string(v) || f->l->options->ignore_formats)
        return;
    int rc = sl_schema_format(f->l->s->rx, json_string_value(v), &id);
    if (rc < 0)
        f->rc = sl_fail(f->l->err, rc, "schema: %s/%s: \"%s\" is not supported", f->place.path, key,
                        json_string_value(v));
    if (rc == 0)
        f->string = sl_rx_and2(f->l->s->rx, f->string, id);
}

/* What the keywords together say of scalars. */
static sl_rx_id local_scalars(struct filling *f)
{
    struct sl_schema *s = f->l->s;
    struct sl_rx *rx = s->rx;
    sl_rx_id parts[6] = {SL_RX_NONE}, q = sl_rx_range(rx, '"', '"');
    size_t n = 0;
    SL_ASSERT((f->n.types & SL_JSON_FRACTION) == 0 || (f->n.types & SL_JSON_INT) != 0);
    bool bounded = f->min_length > 0 || f->max_length != UINT64_MAX;
    if ((f->n.types & SL_JSON_NULL) != 0)
        parts[n++] = sl_rx_lit(rx, "null", 4);
    if ((f->n.types & SL_JSON_BOOL) != 0) {
        parts[n++] = sl_rx_lit(rx, "true", 4);
        parts[n++] = sl_rx_lit(rx, "false", 5);
    }
    if ((f->n.types & SL_JSON_INT) != 0)
        parts[n++] = sl_rx_and2(rx,
                                (f->n.types & SL_JSON_FRACTION) != 0 ? s->number
                                : f->place.draft == 4                ? s->digits_only
                                                                     : s->integer,
                                f->number);
    if ((f->n.types & SL_JSON_STRING) != 0) {
        sl_rx_id body = f->string;
        if (bounded || body == SL_RX_ALL) {
            int32_t lo = (int32_t)SL_MIN(f->min_length, INT32_MAX - 1);
            int32_t hi = f->max_length >= INT32_MAX ? SL_RX_INF : (int32_t)f->max_length;
            body = hi != SL_RX_INF && hi < lo
                       ? SL_RX_NONE
                       : sl_rx_and2(rx, body, sl_rx_rep(rx, s->string_char, lo, hi));
        }
        parts[n++] = sl_rx_cat(rx, q, sl_rx_cat(rx, body, q));
    }
    SL_ASSERT(n <= SL_COUNT(parts));
    return sl_rx_alt(rx, parts, n);
}

/* ---------------------------------------------------------------- objects and references */

static void properties(struct filling *f, json_t *v, const char *key)
{
    const char *name;
    json_t *kid;
    size_t len;
    SL_ASSERT(f->n.properties == NULL && f->n.n_properties == 0);
    f->n.says_names = true;
    f->n.properties = schema_array_of(f, json_object_size(v), sizeof f->n.properties[0]);
    json_object_keylen_foreach(v, name, len, kid)
    {
        if (f->rc != 0)
            return;
        f->n.properties[f->n.n_properties++] =
            (struct sl_property){schema_text_of(f, name, len), len, child(f, kid, key, name)};
    }
}

static void pattern_properties(struct filling *f, json_t *v, const char *key)
{
    const char *name;
    json_t *kid;
    size_t len;
    SL_ASSERT(f->n.patterns == NULL && f->n.n_patterns == 0);
    f->n.says_names = true;
    f->n.patterns = schema_array_of(f, json_object_size(v), sizeof f->n.patterns[0]);
    json_object_keylen_foreach(v, name, len, kid)
    {
        struct sl_pattern_property *p = &f->n.patterns[f->n.n_patterns];
        if (f->rc != 0 || pattern_rx(f, name, len, key, &p->rx) != 0)
            return;
        p->node = child(f, kid, key, name);
        f->n.n_patterns++;
    }
}

static struct sl_property *names_of(struct filling *f, json_t *v, const char *key, uint32_t *n)
{
    size_t i;
    json_t *name;
    *n = 0;
    struct sl_property *out = schema_array_of(f, json_array_size(v), sizeof *out);
    if (!json_is_array(v))
        bad(f, SL_EINVAL, key, "not an array of names");
    json_array_foreach(v, i, name)
    {
        if (!json_is_string(name))
            bad(f, SL_EINVAL, key, "not an array of names");
        if (f->rc != 0)
            break;
        out[(*n)++] = (struct sl_property){
            schema_text_of(f, json_string_value(name), json_string_length(name)),
            json_string_length(name), SL_NODE_NONE};
    }
    SL_ASSERT(*n <= json_array_size(v));
    return out;
}

/* dependencies, dependentRequired, dependentSchemas: of one name each, names or a schema. */
static void dependencies(struct filling *f, json_t *v, const char *key)
{
    const char *name;
    json_t *kid;
    size_t len, n = f->n.n_deps + json_object_size(v);
    struct sl_dependency *d = schema_array_of(f, n, sizeof *d);
    if (d == NULL)
        return;
    if (f->n.n_deps > 0)
        memcpy(d, f->n.deps, f->n.n_deps * sizeof *d);
    f->n.deps = d;
    json_object_keylen_foreach(v, name, len, kid)
    {
        if (f->rc != 0)
            return;
        SL_ASSERT(f->n.n_deps < n);
        d = &f->n.deps[f->n.n_deps++];
        d->name = schema_text_of(f, name, len);
        d->n = len;
        if (json_is_array(kid))
            d->required = names_of(f, kid, key, &d->n_required);
        else
            d->node = child(f, kid, key, name);
    }
}

static void reference(struct filling *f, json_t *v, const char *key)
{
    json_t *to = NULL;
    const char *path = "";
    struct sl_place from = f->place;
    if (!json_is_string(v)) {
        bad(f, SL_EINVAL, key, "not a string");
        return;
    }
    int rc = sl_schema_find(f->l, &from, json_string_value(v), &to, &path);
    if (rc != 0) {
        f->rc = rc;
        return;
    }
    SL_ASSERT(to != NULL && path != NULL);
    uint32_t dynamic = 0;
    const char *hash = strchr(json_string_value(v), '#');
    for (uint32_t i = 0; i < f->l->n_anchors && key[1] == 'd' && hash != NULL; i++) {
        const char *name = strchr(f->l->anchors[i].uri, '#');
        dynamic += f->l->anchors[i].dynamic && name != NULL && strcmp(name, hash) == 0;
    }
    /* Only a reference that first leads to a $dynamicAnchor looks further for others. */
    const char *own = json_string_value(json_object_get(to, "$dynamicAnchor"));
    if (dynamic > 1 && own != NULL && strcmp(own, hash + 1) == 0)
        bad(f, SL_EUNSUPPORTED, key, "more than one $dynamicAnchor could be meant");
    also(f, node_of(f, to, path, sl_schema_role(f->role, f->passes, key)));
}

static void item_list(struct filling *f, json_t *v, const char *key)
{
    if (!json_is_array(v))
        f->n.items = child(f, v, key, NULL);
    else if (f->n.prefix.v != NULL)
        bad(f, SL_EINVAL, key, "a list beside prefixItems");
    else
        schema_list_of(f, v, key, &f->n.prefix);
}

enum kind {
    K_REF,
    K_TYPE,
    K_ENUM,
    K_CONST,
    K_MIN,
    K_MAX,
    K_ABOVE,
    K_BELOW,
    K_MULTIPLE,
    K_MIN_LENGTH,
    K_MAX_LENGTH,
    K_PATTERN,
    K_FORMAT,
    K_ALL,
    K_ANY,
    K_ONE,
    K_NOT,
    K_IF,
    K_THEN,
    K_ELSE,
    K_PROPERTIES,
    K_PATTERNS,
    K_ADDITIONAL,
    K_REQUIRED,
    K_MIN_PROPS,
    K_MAX_PROPS,
    K_NAMES,
    K_DEPS,
    K_PREFIX,
    K_ITEMS,
    K_MORE_ITEMS,
    K_MIN_ITEMS,
    K_MAX_ITEMS,
    K_CONTAINS,
    K_MIN_CONTAINS,
    K_MAX_CONTAINS,
    K_UNIQUE,
    K_UNEVAL_PROPS,
    K_UNEVAL_ITEMS,
    K_REFUSED,
};

static const struct {
    const char *name;
    enum kind kind;
    int since; /* the first draft, of 4, 7 and 2020, that knows it */
} keywords[] = {
    {"$ref", K_REF, 4},
    {"$dynamicRef", K_REF, 2020},
    {"$recursiveRef", K_REFUSED, 2020},
    {"type", K_TYPE, 4},
    {"enum", K_ENUM, 4},
    {"const", K_CONST, 7},
    {"minimum", K_MIN, 4},
    {"maximum", K_MAX, 4},
    {"exclusiveMinimum", K_ABOVE, 4},
    {"exclusiveMaximum", K_BELOW, 4},
    {"multipleOf", K_MULTIPLE, 4},
    {"minLength", K_MIN_LENGTH, 4},
    {"maxLength", K_MAX_LENGTH, 4},
    {"pattern", K_PATTERN, 4},
    {"format", K_FORMAT, 4},
    {"allOf", K_ALL, 4},
    {"anyOf", K_ANY, 4},
    {"oneOf", K_ONE, 4},
    {"not", K_NOT, 4},
    {"if", K_IF, 7},
    {"then", K_THEN, 7},
    {"else", K_ELSE, 7},
    {"properties", K_PROPERTIES, 4},
    {"patternProperties", K_PATTERNS, 4},
    {"additionalProperties", K_ADDITIONAL, 4},
    {"required", K_REQUIRED, 4},
    {"minProperties", K_MIN_PROPS, 4},
    {"maxProperties", K_MAX_PROPS, 4},
    {"propertyNames", K_NAMES, 7},
    {"dependencies", K_DEPS, 4},
    {"dependentRequired", K_DEPS, 2020},
    {"dependentSchemas", K_DEPS, 2020},
    {"prefixItems", K_PREFIX, 2020},
    {"items", K_ITEMS, 4},
    {"additionalItems", K_MORE_ITEMS, 4},
    {"minItems", K_MIN_ITEMS, 4},
    {"maxItems", K_MAX_ITEMS, 4},
    {"contains", K_CONTAINS, 7},
    {"minContains", K_MIN_CONTAINS, 2020},
    {"maxContains", K_MAX_CONTAINS, 2020},
    {"uniqueItems", K_UNIQUE, 4},
    {"unevaluatedProperties", K_UNEVAL_PROPS, 2020},
    {"unevaluatedItems", K_UNEVAL_ITEMS, 2020},
};

static bool object_keyword(struct filling *f, enum kind kind, json_t *v, const char *key)
{
    bool want_object = kind == K_PROPERTIES || kind == K_PATTERNS || kind == K_DEPS;
    if (want_object && !json_is_object(v)) {
        bad(f, SL_EINVAL, key, "not an object");
        return true;
    }
    switch (kind) {
    case K_PROPERTIES:
        properties(f, v, key);
        return true;
    case K_PATTERNS:
        pattern_properties(f, v, key);
        return true;
    case K_ADDITIONAL:
        f->n.additional = child(f, v, key, NULL);
        return true;
    case K_REQUIRED:
        if (json_is_boolean(v)) /* of a property, as in draft 3: not a keyword since */
            return true;
        f->n.required = names_of(f, v, key, &f->n.n_required);
        return true;
    case K_MIN_PROPS:
        f->n.min_props = schema_count_of(f, v, key);
        return true;
    case K_MAX_PROPS:
        f->n.max_props = schema_count_of(f, v, key);
        return true;
    case K_NAMES:
        f->n.names = child(f, v, key, NULL);
        return true;
    case K_DEPS:
        dependencies(f, v, key);
        return true;
    case K_UNEVAL_PROPS:
        f->n.uneval_props = child(f, v, key, NULL);
        return true;
    default:
        return false;
    }
}

static bool array_keyword(struct filling *f, enum kind kind, json_t *v, const char *key)
{
    switch (kind) {
    case K_PREFIX:
        schema_list_of(f, v, key, &f->n.prefix);
        return true;
    case K_ITEMS:
        item_list(f, v, key);
        return true;
    case K_MORE_ITEMS:
        if (json_is_array(json_object_get(f->place.json, "items")))
            f->n.items = child(f, v, key, NULL);
        return true;
    case K_MIN_ITEMS:
        f->n.min_items = schema_count_of(f, v, key);
        return true;
    case K_MAX_ITEMS:
        f->n.max_items = schema_count_of(f, v, key);
        return true;
    case K_CONTAINS:
        f->n.contains = child(f, v, key, NULL);
        return true;
    case K_MIN_CONTAINS:
        f->n.min_contains = schema_count_of(f, v, key);
        return true;
    case K_MAX_CONTAINS:
        f->n.max_contains = schema_count_of(f, v, key);
        return true;
    case K_UNIQUE:
        f->n.unique = json_is_true(v);
        return true;
    case K_UNEVAL_ITEMS:
        f->n.uneval_items = child(f, v, key, NULL);
        return true;
    default:
        return false;
    }
}

static bool scalar_keyword(struct filling *f, enum kind kind, json_t *v, const char *key)
{
    sl_rx_id id;
    switch (kind) {
    case K_TYPE:
        types(f, v, key);
        return true;
    case K_ENUM:
        enumerated(f, v, key);
        return true;
    case K_CONST:
        also(f, schema_constant(f, v, key, 0));
        return true;
    case K_MIN:
    case K_MAX:
    case K_ABOVE:
    case K_BELOW:
        if (json_is_boolean(v) && f->place.draft == 4)
            return true; /* modifies minimum or maximum, which asks for it */
        bound(f, v, key,
              kind == K_MIN     ? SL_AT_LEAST
              : kind == K_MAX   ? SL_AT_MOST
              : kind == K_ABOVE ? SL_ABOVE
                                : SL_BELOW);
        return true;
    case K_MULTIPLE:
        multiple_of(f, v, key);
        return true;
    case K_MIN_LENGTH:
        f->min_length = schema_count_of(f, v, key);
        return true;
    case K_MAX_LENGTH:
        f->max_length = schema_count_of(f, v, key);
        return true;
    case K_PATTERN:
        if (!json_is_string(v))
            bad(f, SL_EINVAL, key, "not a string");
        else if (pattern_rx(f, json_string_value(v), json_string_length(v), key, &id) == 0)
            f->string = sl_rx_and2(f->l->s->rx, f->string, id);
        return true;
    case K_FORMAT:
        format(f, v, key);
        return true;
    default:
        return false;
    }
}

static void keyword(struct filling *f, enum kind kind, json_t *v, const char *key)
{
    size_t i;
    json_t *kid;
    if (scalar_keyword(f, kind, v, key) || object_keyword(f, kind, v, key) ||
        array_keyword(f, kind, v, key))
        return;
    switch (kind) {
    case K_REF:
        reference(f, v, key);
        break;
    case K_ALL:
        json_array_foreach(v, i, kid)
        {
            char n[24];
            snprintf(n, sizeof n, "%zu", i);
            also(f, child(f, kid, key, n));
        }
        break;
    case K_ANY:
        schema_list_of(f, v, key, &f->n.any_of);
        break;
    case K_ONE:
        schema_list_of(f, v, key, &f->n.one_of);
        break;
    case K_NOT:
        f->n.not_node = child(f, v, key, NULL);
        break;
    case K_IF:
        f->n.if_node = child(f, v, key, NULL);
        break;
    case K_THEN:
        f->n.then_node = child(f, v, key, NULL);
        break;
    case K_ELSE:
        f->n.else_node = child(f, v, key, NULL);
        break;
    default:
        bad(f, SL_EUNSUPPORTED, key, "this keyword is not supported");
    }
}

static int schema_fill(struct sl_loader *l, uint32_t place_and_role)
{
    struct filling f = {.l = l,
                        .place = l->places[place_and_role / SL_ROLES],
                        .role = (enum sl_role)(place_and_role % SL_ROLES),
                        .number = SL_RX_ALL,
                        .string = SL_RX_ALL,
                        .max_length = UINT64_MAX};
    json_t *json = f.place.json, *v;
    uint32_t node = f.place.nodes[f.role];
    f.n = l->s->nodes[node];
    f.n.min_contains = 1;
    f.place.draft = sl_schema_draft(json, f.place.draft);
    f.passes = sl_schema_passes(json, f.place.draft);
    f.n.closes = f.role == SL_ROLE_VALUE && !f.passes;
    SL_ASSERT(node > SL_NODE_FALSE && node < l->s->n_nodes);
    SL_ASSERT(f.place.draft == 4 || f.place.draft == 7 || f.place.draft == 2020);
    bool only_ref = f.place.draft <= 7 && json_object_get(json, "$ref") != NULL;
    for (size_t i = 0; i < SL_COUNT(keywords) && f.rc == 0; i++) {
        const char *key = keywords[i].name;
        bool ref = strcmp(key, "$ref") == 0;
        v = json_object_get(json, key);
        if (v == NULL || (only_ref && !ref))
            continue;
        if (keywords[i].since <= f.place.draft)
            keyword(&f, keywords[i].kind, v, key);
    }
    if (f.rc != 0)
        return f.rc;
    f.n.local = local_scalars(&f);
    f.n.all_of = f.all;
    if (f.n.contains == SL_NODE_NONE)
        f.n.min_contains = 0;
    if (f.n.if_node == SL_NODE_NONE)
        f.n.then_node = f.n.else_node = SL_NODE_NONE;
    l->s->nodes[node] = f.n;
    return sl_rx_check(l->s->rx, l->err);
}

static int check_unique(struct sl_loader *l)
{
    for (uint32_t i = 0; i < l->s->n_nodes; i++) {
        const struct sl_schema_node *n = &l->s->nodes[i];
        if (n->unique && (n->types & SL_JSON_ARRAY) != 0 && n->min_items > SL_MAX_UNIQUE_ITEMS)
            return sl_fail(l->err, SL_ELIMIT, "schema: %s/minItems: more than %d items that differ",
                           n->path, SL_MAX_UNIQUE_ITEMS);
    }
    return 0;
}

static int schema_load(struct sl_loader *l, json_t *doc, uint32_t *root)
{
    static const char no_uri[] = "";
    int rc = sl_schema_scan(l, doc, no_uri);
    for (size_t i = 0; i < l->options->n_remotes && rc == 0; i++)
        rc = sl_schema_scan(l, l->options->remotes[i].doc, l->options->remotes[i].uri);
    if (rc != 0)
        return rc;
    struct filling f = {
        .l = l, .place = {.base = no_uri, .path = "", .draft = l->options->draft7 ? 7 : 2020}};
    *root = node_of(&f, doc, "", l->s->style.additional_properties ? SL_ROLE_TEST : SL_ROLE_VALUE);
    rc = f.rc;
    SL_ASSERT(rc != 0 || (*root != SL_NODE_NONE && *root < l->s->n_nodes));
    while (rc == 0 && l->next < l->n_queue)
        rc = schema_fill(l, l->queue[l->next++]);
    if (rc == 0)
        rc = sl_schema_close(l);
    rc = rc == 0 ? sl_schema_scalars(l) : rc;
    return rc == 0 ? check_unique(l) : rc;
}

int sl_schema_init(struct sl_schema *s, struct sl_rx *rx, const struct sl_json_style *style,
                   struct sl_error *err)
{
    struct sl_loader l = {.s = s, .err = err};
    memset(s, 0, sizeof *s);
    s->rx = rx;
    s->style = *style;
    s->arena.max_bytes = 64u << 20;
    int rc = sl_schema_bases(s, err);
    for (int i = 0; i < 3 && rc == 0; i++) /* 0 is no node, 1 true, 2 false */
        if (schema_new_node(&l, "") == SL_NODE_NONE && i > 0)
            rc = sl_fail(err, SL_ENOMEM, "schema: out of memory");
    SL_ASSERT(rc != 0 || s->n_nodes == SL_NODE_FALSE + 1);
    if (rc == 0) {
        s->nodes[SL_NODE_FALSE].types = 0;
        s->nodes[SL_NODE_FALSE].local = SL_RX_NONE;
    } else {
        sl_schema_deinit(s);
    }
    return rc;
}

int sl_schema_add(struct sl_schema *s, json_t *doc, const struct sl_schema_options *options,
                  uint32_t *root, struct sl_error *err)
{
    struct sl_loader l = {.s = s, .options = options, .err = err};
    int rc = schema_load(&l, doc, root);
    SL_ASSERT(rc != 0 || (l.next == l.n_queue && l.depth == 0));
    sl_free(l.places);
    sl_free(l.place_table);
    sl_free(l.anchors);
    sl_free(l.queue);
    return rc;
}

void sl_schema_deinit(struct sl_schema *s)
{
    sl_free(s->nodes);
    sl_arena_deinit(&s->arena);
    memset(s, 0, sizeof *s);
}
