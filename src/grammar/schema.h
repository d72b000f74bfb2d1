/* SPDX-License-Identifier: MIT
 * schema.h - JSON Schema (draft 2020-12, 7 and what 4 has different) as a table of nodes,
 * references resolved.
 *
 * A node is one subschema. What it says of null, booleans, numbers and strings is a language of
 * JSON texts (local); what it says of arrays and objects stays in fields, for the matcher; what it
 * says by other schemas of the same value (allOf, $ref, anyOf, oneOf, not, if) are node numbers. A
 * keyword that is not supported is an error with its name and place, never ignored; what the
 * specification calls annotations, and names it does not know, constrain nothing.
 */
#ifndef SL_GRAMMAR_SCHEMA_H
#define SL_GRAMMAR_SCHEMA_H

#include "base/arena.h"
#include "grammar/rx.h"
#include "sluice.h"

#include <jansson.h>

enum sl_json_type {
    SL_JSON_NULL = 1,
    SL_JSON_BOOL = 2,
    SL_JSON_INT = 4,
    SL_JSON_FRACTION = 8, /* numbers that are no integers */
    SL_JSON_STRING = 16,
    SL_JSON_ARRAY = 32,
    SL_JSON_OBJECT = 64,
    SL_JSON_SCALARS = 31,
    SL_JSON_ALL = 127,
};

#define SL_NODE_NONE  0u
#define SL_NODE_TRUE  1u
#define SL_NODE_FALSE 2u

struct sl_nodes { /* numbers of nodes */
    uint32_t *v, n;
};

struct sl_property {
    const char *name; /* as the schema spells it, UTF-8 */
    size_t n;
    uint32_t node; /* SL_NODE_NONE: only its presence matters */
};

struct sl_pattern_property {
    sl_rx_id rx; /* of names as they are spelled inside the quotes */
    uint32_t node;
};

struct sl_dependency {
    const char *name;
    size_t n;
    uint32_t node;                /* dependentSchemas; SL_NODE_NONE: none */
    struct sl_property *required; /* dependentRequired */
    uint32_t n_required;
};

struct sl_schema_node {
    const char *path; /* JSON pointer, for messages */
    uint32_t types;   /* enum sl_json_type */
    sl_rx_id local;   /* texts of scalars that its own keywords allow */
    struct sl_nodes all_of, any_of, one_of;
    uint32_t not_node, if_node, then_node, else_node;
    /* objects */
    struct sl_property *properties, *required;
    uint32_t n_properties, n_required;
    struct sl_pattern_property *patterns;
    uint32_t n_patterns;
    uint32_t additional, names, uneval_props; /* nodes, SL_NODE_NONE: absent */
    bool says_names;                          /* has properties or patternProperties */
    bool closes; /* objects that it allows have no other names, unless it says so */
    struct sl_dependency *deps;
    uint32_t n_deps;
    uint32_t min_props, max_props; /* UINT32_MAX: none */
    /* arrays */
    struct sl_nodes prefix;
    uint32_t items, contains, uneval_items;
    uint32_t min_items, max_items, min_contains, max_contains;
    bool unique;
    /* filled by sl_schema_scalars */
    sl_rx_id scalar; /* texts of scalars that satisfy the whole node */
    uint8_t scalar_state;
};

struct sl_remote { /* a schema that $ref may name */
    const char *uri;
    json_t *doc;
};

struct sl_schema_options {
    bool draft7;         /* when $schema says nothing */
    bool ignore_formats; /* format is an annotation */
    const struct sl_remote *remotes;
    size_t n_remotes;
};

struct sl_schema {
    struct sl_rx *rx; /* borrowed */
    struct sl_json_style style;
    struct sl_arena arena;
    struct sl_schema_node *nodes;
    uint32_t n_nodes, cap_nodes;
    sl_rx_id string_char, string, integer, number, any_scalar; /* constrained spellings */
    sl_rx_id digits_only;                         /* integers as draft 4 has them: 1.0 is none */
    sl_rx_id key_char;                            /* of property names: one spelling each */
    sl_rx_id free_string, free_number, free_char; /* all that JSON allows */
};

/* An integer beyond 64 bits, which the JSON library does not have: a string with its digits behind
 * this. */
#define SL_BIG_INTEGER      "\0integer "
#define SL_BIG_INTEGER_JSON "\\u0000integer "

#define SL_SCHEMA_MAX_NODES (1u << 17)

SL_MUST_CHECK int sl_schema_init(struct sl_schema *s, struct sl_rx *rx,
                                 const struct sl_json_style *style, struct sl_error *err);
/* Adds doc to the table; *root is its node. doc and remotes are not needed afterwards. */
SL_MUST_CHECK int sl_schema_add(struct sl_schema *s, json_t *doc,
                                const struct sl_schema_options *options, uint32_t *root,
                                struct sl_error *err);
void sl_schema_deinit(struct sl_schema *s);

#endif
