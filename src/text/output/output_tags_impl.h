/* SPDX-License-Identifier: MIT
 * output_tags_impl.h - shared by output_tags.c and output_tags_args.c: making nodes of a structural
 * tag. A node that could not be made is NULL and remembered as no_memory, so that building needs no
 * check per line; everything takes NULL.
 */
#ifndef SL_TEXT_OUTPUT_TAGS_IMPL_H
#define SL_TEXT_OUTPUT_TAGS_IMPL_H

#include "text/output/output.h"
#include "text/output/output_tags.h"

#define OUT_WS "[ \\t\\r\\n]{0,4}" /* a model that knows no end would go on with it */

struct out_tags {
    const struct sl_output_calls *c;
    const struct out_tools *t;
    struct sl_error *err;
    int rc;
    bool no_memory;
    /* of the tool that is being written */
    const json_t *schema;  /* NULL: any object */
    const json_t *grammar; /* of the text that is its one argument; NULL: none */
    char label[160];       /* where it is in the request */
};

json_t *out_node(struct out_tags *m, const char *type);
void out_set(struct out_tags *m, json_t *node, const char *key, json_t *value);
json_t *out_list(struct out_tags *m, const char *type); /* sequence, or */
void out_add(struct out_tags *m, json_t *list, json_t *node);
void out_put(struct out_tags *m, json_t *list, const char *s); /* this text; NULL: nothing */
void out_space(struct out_tags *m, json_t *list);              /* some white space, or none */
json_t *out_text_node(struct out_tags *m, const char *s);
json_t *out_regex(struct out_tags *m, const char *pattern);
json_t *out_wrap(struct out_tags *m, const char *type, json_t *content);

/* output_tags_args.c: the arguments of the tool in m->schema. */
json_t *out_tags_json(struct out_tags *m);             /* a JSON object */
void out_tags_params(struct out_tags *m, json_t *seq); /* OUT_PARAMS */
void out_tags_values(struct out_tags *m, json_t *seq); /* OUT_PYTHON, OUT_QUOTED, to the end */

#endif
