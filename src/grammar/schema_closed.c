/* SPDX-License-Identifier: MIT
 * schema_closed.c - objects without additionalProperties have no other names than the schema says.
 *
 * The specification lets such objects have any other property. Asked for one, a model invents
 * names, so grammars for generation close them: a schema that describes a value, has properties or
 * patternProperties and neither additionalProperties nor unevaluatedProperties is read as if it
 * had `unevaluatedProperties: false`. What allOf, anyOf, oneOf, if, dependentSchemas and $ref say
 * of the same value belongs to it. Conditions (not, if, contains) stay as they are, so that
 * whatever is allowed then is allowed by the specification, too. Names that are only required are
 * known names, of any value.
 */
#include "base/check.h"
#include "base/sys.h"
#include "grammar/schema_impl.h"

#include <string.h>

enum { MAX_PARTS = 1024 };

static bool among(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

enum sl_role sl_schema_role(enum sl_role role, bool passes, const char *key)
{
    SL_ASSERT(role < SL_ROLES);
    static const char *const tests[] = {"not", "if", "contains", "propertyNames"};
    /* oneOf: closed schemas may cannot be combined where the open ones do not */
    static const char *const parts[] = {"then", "else", "oneOf", "dependencies",
                                        "dependentSchemas"};
    static const char *const passed[] = {"$ref", "$dynamicRef", "allOf", "anyOf"};
    if (role == SL_ROLE_TEST || among(key, tests, SL_COUNT(tests)))
        return SL_ROLE_TEST;
    if (among(key, passed, SL_COUNT(passed)))
        return passes ? role : SL_ROLE_PART;
    return among(key, parts, SL_COUNT(parts)) ? SL_ROLE_PART : SL_ROLE_VALUE;
}

bool sl_schema_passes(const json_t *json, int draft)
{
    static const char *const others[] = {"properties",
                                         "patternProperties",
                                         "additionalProperties",
                                         "unevaluatedProperties",
                                         "required",
                                         "dependencies",
                                         "dependentRequired",
                                         "oneOf",
                                         "dependentSchemas",
                                         "if",
                                         "minProperties"};
    static const char *const one[] = {"$ref", "$dynamicRef", "anyOf", "allOf"};
    size_t n = 0;
    if (draft <= 7 && json_object_get(json, "$ref") != NULL)
        return true; /* all else is ignored */
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (json_object_get(json, others[i]) != NULL)
            return false;
    for (size_t i = 0; i < SL_COUNT(one); i++)
        n += json_object_get(json, one[i]) != NULL;
    return n == 1 && json_array_size(json_object_get(json, "allOf")) <= 1;
}

struct parts { /* schemas of the same value */
    struct sl_loader *l;
    uint32_t n, v[MAX_PARTS];
    bool full;
};

static void schema_closed_add(struct parts *p, uint32_t node)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->v[i] == node)
            return;
    if (node <= SL_NODE_FALSE)
        return;
    p->full |= p->n == MAX_PARTS;
    if (!p->full)
        p->v[p->n++] = node;
}

static void add_list(struct parts *p, const struct sl_nodes *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        schema_closed_add(p, list->v[i]);
}

static void schema_closed_gather(struct parts *p, uint32_t node)
{
    SL_ASSERT(node > SL_NODE_FALSE && node < p->l->s->n_nodes);
    p->n = 0;
    p->full = false;
    schema_closed_add(p, node);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct sl_schema_node *n = &p->l->s->nodes[p->v[i]];
        add_list(p, &n->all_of);
        add_list(p, &n->any_of);
        add_list(p, &n->one_of);
        schema_closed_add(p, n->if_node);
        schema_closed_add(p, n->then_node);
        schema_closed_add(p, n->else_node);
        for (uint32_t k = 0; k < n->n_deps; k++)
            schema_closed_add(p, n->deps[k].node);
    }
}

static bool is_known(const struct parts *p, const struct sl_property *name)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const struct sl_schema_node *n = &p->l->s->nodes[p->v[i]];
        if (!sl_rx_spend(p->l->s->rx, n->n_properties / 256))
            return true; /* sl_schema_close tells of it */
        for (uint32_t k = 0; k < n->n_properties; k++)
            if (n->properties[k].n == name->n &&
                memcmp(n->properties[k].name, name->name, name->n) == 0)
                return true;
    }
    return false;
}

/* Those of the names that no schema has become properties of the first, of any value. */
static int know(struct parts *p, const struct sl_property *names, uint32_t n_names)
{
    struct sl_schema_node *top = &p->l->s->nodes[p->v[0]];
    struct sl_property *more = NULL;
    for (uint32_t i = 0; i < n_names; i++) {
        if (is_known(p, &names[i]))
            continue;
        if (more == NULL) { /* room for all that are left */
            size_t cap = (size_t)top->n_properties + n_names - i;
            more = sl_arena_array(&p->l->s->arena, cap, sizeof *more);
            if (more == NULL)
                return sl_fail(p->l->err, p->l->s->arena.no_memory ? SL_ENOMEM : SL_ELIMIT,
                               "schema: too large");
            if (top->n_properties > 0)
                memcpy(more, top->properties, top->n_properties * sizeof *more);
            top->properties = more;
        }
        SL_ASSERT(top->properties == more);
        more[top->n_properties++] = (struct sl_property){names[i].name, names[i].n, SL_NODE_TRUE};
    }
    return 0;
}

/* Names that must be there, of all parts. */
static int know_required(struct parts *p)
{
    int rc = 0;
    for (uint32_t i = 0; i < p->n && rc == 0; i++) {
        struct sl_schema_node n = p->l->s->nodes[p->v[i]];
        rc = know(p, n.required, n.n_required);
        for (uint32_t k = 0; k < n.n_deps && rc == 0; k++)
            rc = know(p, n.deps[k].required, n.deps[k].n_required);
    }
    return rc;
}

static int close_node(struct parts *p, uint32_t node)
{
    const struct sl_schema *s = p->l->s;
    struct sl_schema_node *top = &s->nodes[node];
    uint32_t n_says = 0, n_names = 0, n_patterns = 0, min = 0;
    schema_closed_gather(p, node);
    SL_ASSERT(p->n > 0 && p->v[0] == node);
    for (uint32_t i = 0; i < p->n; i++)
        n_says += s->nodes[p->v[i]].says_names;
    if (n_says == 0 || p->full || !sl_rx_spend(s->rx, p->n))
        return 0;
    int rc = know_required(p);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct sl_schema_node *n = &s->nodes[p->v[i]];
        n_names += n->n_properties;
        n_patterns += n->n_patterns;
        min = SL_MAX(min, n->min_props);
    }
    if (rc != 0 || (n_patterns == 0 && min > n_names))
        return rc; /* a map, with some names that are known */
    if (n_says == 1 && top->says_names)
        top->additional = SL_NODE_FALSE;
    else
        top->uneval_props = SL_NODE_FALSE;
    return 0;
}

int sl_schema_close(struct sl_loader *l)
{
    struct parts *p = sl_malloc(sizeof *p);
    int rc = p == NULL ? sl_fail(l->err, SL_ENOMEM, "schema: out of memory") : 0;
    if (p != NULL)
        p->l = l;
    for (uint32_t i = SL_NODE_FALSE + 1; i < l->s->n_nodes && rc == 0; i++) {
        struct sl_schema_node *n = &l->s->nodes[i];
        if (n->closes && n->additional == SL_NODE_NONE && n->uneval_props == SL_NODE_NONE)
            rc = close_node(p, i);
        l->s->nodes[i].closes = false; /* a later schema of the same table begins anew */
    }
    sl_free(p);
    return rc == 0 ? sl_rx_check(l->s->rx, l->err) : rc;
}
