/* SPDX-License-Identifier: MIT
 * schema_impl.h - what the files of the schema loader share.
 */
#ifndef SL_GRAMMAR_SCHEMA_IMPL_H
#define SL_GRAMMAR_SCHEMA_IMPL_H

#include "grammar/schema.h"

/* What a subschema stands for, which decides whether it closes objects (schema_closed.c). */
enum sl_role {
    SL_ROLE_VALUE, /* all that is said of a value: it may */
    SL_ROLE_PART,  /* of what a schema says of the same value: that one may */
    SL_ROLE_TEST,  /* of a condition (not, if, contains) or of a name: nothing in it does */
    SL_ROLES,
};

struct sl_place { /* a subschema that has been met */
    json_t *json;
    const char *base;         /* URI that its references are relative to, without fragment */
    uint32_t nodes[SL_ROLES]; /* SL_NODE_NONE: not used in that role yet */
    const char *path;
    int draft; /* 4, 7 or 2020 */
};

struct sl_anchor {
    const char *uri; /* "base" or "base#name" */
    json_t *json;
    bool dynamic;
};

struct sl_loader {
    struct sl_schema *s;
    const struct sl_schema_options *options;
    struct sl_error *err;
    struct sl_place *places;
    uint32_t *place_table; /* hash by json pointer, index + 1 */
    uint32_t n_places, cap_places, cap_table;
    struct sl_anchor *anchors;
    uint32_t n_anchors, cap_anchors;
    uint32_t *queue; /* places whose nodes are to be filled, times SL_ROLES, and the role */
    uint32_t n_queue, cap_queue, next;
    int depth;
    bool no_room; /* a URI could not be kept */
};

/* schema_ref.c: URIs, $id, anchors. */
SL_MUST_CHECK int sl_schema_scan(struct sl_loader *l, json_t *doc, const char *base);
SL_MUST_CHECK int sl_schema_find(struct sl_loader *l, const struct sl_place *from, const char *ref,
                                 json_t **out, const char **path);
/* What $schema says: 4, 7 (6 as well) or 2020; draft if it says nothing. */
int sl_schema_draft(const json_t *json, int draft);
/* The place of json, made with what `from` has if it is new. NULL: out of memory (error raised). */
struct sl_place *sl_schema_place(struct sl_loader *l, json_t *json, const char *base,
                                 const char *path, int draft);
const char *sl_schema_path(struct sl_loader *l, const char *path, const char *key);

/* schema_scalar.c: languages of numbers and strings. */
SL_MUST_CHECK int sl_schema_bases(struct sl_schema *s, struct sl_error *err);
struct sl_decimal {
    bool negative;
    char digits[400]; /* whole part, then fraction; no leading zeros, no trailing ones */
    int n_whole, n_fraction;
};
const char *sl_big_integer(const json_t *v); /* its digits; NULL: it is none */
bool sl_decimal_of(const json_t *number, struct sl_decimal *d);
enum sl_bound { SL_AT_LEAST, SL_ABOVE, SL_AT_MOST, SL_BELOW };
sl_rx_id sl_number_bound(struct sl_rx *rx, const struct sl_decimal *d, enum sl_bound how);
/* any_zeros: with any number of zeros behind it, and 0 with a minus; else its shortest text. */
sl_rx_id sl_number_equal(struct sl_rx *rx, const struct sl_decimal *d, bool any_zeros);
sl_rx_id sl_number_multiple(struct sl_rx *rx, const struct sl_decimal *d); /* NONE: not supported */
/* *out: the inside of strings of that format. 0, SL_EUNSUPPORTED, or 1: not a known name. */
int sl_schema_format(struct sl_rx *rx, const char *name, sl_rx_id *out);
/* The text of a scalar value. */
sl_rx_id sl_schema_value(struct sl_schema *s, json_t *value);

/* schema_closed.c: the role of what `key` of a schema in that role says; passes: of that schema.
 */
enum sl_role sl_schema_role(enum sl_role role, bool passes, const char *key);
/* Does it say nothing of objects but by one other schema, or by any of several? */
bool sl_schema_passes(const json_t *json, int draft);
/* Closes the objects of nodes that `closes` marks, once all nodes are filled. */
SL_MUST_CHECK int sl_schema_close(struct sl_loader *l);

/* schema_scalar.c: node->scalar of all nodes; SL_ELIMIT when applicators form a loop. */
SL_MUST_CHECK int sl_schema_scalars(struct sl_loader *l);

#endif
