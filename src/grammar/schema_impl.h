/* SPDX-License-Identifier: MIT
 * schema_impl.h - what the files of the schema loader share.
 */
#ifndef SL_GRAMMAR_SCHEMA_IMPL_H
#define SL_GRAMMAR_SCHEMA_IMPL_H

#include "grammar/schema.h"

struct sl_place { /* a subschema that has been met */
    json_t *json;
    const char *base; /* URI that its references are relative to, without fragment */
    uint32_t node;    /* SL_NODE_NONE: known, not used yet */
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
    uint32_t *queue; /* places whose nodes are to be filled */
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
bool sl_decimal_of(const json_t *number, struct sl_decimal *d);
enum sl_bound { SL_AT_LEAST, SL_ABOVE, SL_AT_MOST, SL_BELOW };
sl_rx_id sl_number_bound(struct sl_rx *rx, const struct sl_decimal *d, enum sl_bound how);
sl_rx_id sl_number_equal(struct sl_rx *rx, const struct sl_decimal *d);
sl_rx_id sl_number_multiple(struct sl_rx *rx, const struct sl_decimal *d); /* NONE: not supported */
/* *out: the inside of strings of that format. 0, SL_EUNSUPPORTED, or 1: not a known name. */
int sl_schema_format(struct sl_rx *rx, const char *name, sl_rx_id *out);
/* The text of a scalar value. */
sl_rx_id sl_schema_value(struct sl_schema *s, json_t *value);

/* schema_scalar.c: node->scalar of all nodes; SL_ELIMIT when applicators form a loop. */
SL_MUST_CHECK int sl_schema_scalars(struct sl_loader *l);

#endif
