/* SPDX-License-Identifier: MIT
 * tags.c - structural tags to positions of the automaton.
 */
#include "grammar/tags.h"

#include "base/sys.h"
#include "grammar/cset.h"
#include "grammar/tags_impl.h"

#include <string.h>

enum { MAX_TAGS = 1000 };

static bool starts_with(const json_t *text, const json_t *prefix)
{
    size_t n = json_string_length(prefix);
    return json_is_string(text) && json_is_string(prefix) && n > 0 &&
           json_string_length(text) >= n &&
           memcmp(json_string_value(text), json_string_value(prefix), n) == 0;
}

static uint32_t text_pos(struct sl_auto *a, const json_t *s, uint32_t next)
{
    SL_ASSERT(json_is_string(s));
    sl_rx_id id = sl_rx_lit(&a->rx, json_string_value(s), json_string_length(s));
    return sl_auto_add_pos(a, (struct sl_pos){POS_TERM, id, next});
}

/* begin, the value, end; then back to the text. */
static int add_tag(struct sl_auto *a, const json_t *tag, const json_t *triggers, size_t i,
                   uint32_t text, uint32_t *out, struct sl_error *err)
{
    const json_t *begin = json_object_get(tag, "begin"), *end = json_object_get(tag, "end"), *t;
    json_t *schema = json_object_get(tag, "schema");
    struct sl_schema_options options = {0};
    uint32_t node;
    size_t k;
    bool found = false;
    if (!json_is_string(begin) || !json_is_string(end) || schema == NULL)
        return sl_fail(err, SL_EINVAL, "grammar: structures[%zu] needs begin, schema and end", i);
    json_array_foreach(triggers, k, t) found = found || starts_with(begin, t);
    if (!found)
        return sl_fail(err, SL_EINVAL, "grammar: structures[%zu]: no trigger starts its begin", i);
    int rc = sl_schema_add(&a->schema, schema, &options, &node, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "structures[%zu]", i);
    SL_ASSERT(text < a->n_pos && a->pos[text].op == POS_TERM);
    uint32_t pos = text_pos(a, end, text);
    pos = sl_auto_add_pos(a, (struct sl_pos){POS_JSON, sl_auto_json_goal(a, node), pos});
    *out = text_pos(a, begin, pos);
    return sl_auto_check(a, err);
}

int sl_tags_compile(struct sl_auto *a, json_t *doc, uint32_t *start, struct sl_error *err)
{
    const json_t *tags = json_object_get(doc, "structures"), *t;
    const json_t *triggers = json_object_get(doc, "triggers");
    struct sl_rx *rx = &a->rx;
    size_t n = json_array_size(tags), i;
    if (json_object_get(doc, "format") != NULL)
        return sl_tags_format(a, doc, start, err);
    if (n == 0 || json_array_size(triggers) == 0)
        return sl_fail(err, SL_EINVAL,
                       "grammar: structural tag: structures or triggers are missing");
    if (n > MAX_TAGS)
        return sl_fail(err, SL_ELIMIT, "grammar: more than %d structures", MAX_TAGS);
    sl_rx_id any = sl_rx_rep(rx, sl_cset_any(rx, SL_SPELL_UTF8), 0, SL_RX_INF), text = any;
    json_array_foreach(triggers, i, t)
    {
        if (!json_is_string(t) || json_string_length(t) == 0)
            return sl_fail(err, SL_EINVAL, "grammar: triggers[%zu] is not a string with text", i);
        sl_rx_id has = sl_rx_lit(rx, json_string_value(t), json_string_length(t));
        has = sl_rx_cat(rx, any, sl_rx_cat(rx, has, any));
        text = sl_rx_and2(rx, text, sl_rx_not(rx, has));
    }
    if (a->splits != NULL)
        return sl_fail(err, SL_EINTERNAL, "grammar: structural tags in a grammar of rules");
    a->splits = sl_malloc((n + 1) * sizeof a->splits[0]);
    if (a->splits == NULL)
        return sl_fail(err, SL_ENOMEM, "grammar: out of memory");
    a->cap_splits = a->n_splits = (uint32_t)n + 1;
    a->splits[n] = sl_auto_add_pos(a, (struct sl_pos){POS_END, 0, 0});
    uint32_t next = sl_auto_add_pos(a, (struct sl_pos){POS_SPLIT, 0, (uint32_t)n + 1});
    *start = sl_auto_add_pos(a, (struct sl_pos){POS_TERM, text, next});
    int rc = sl_auto_check(a, err);
    SL_ASSERT(rc != 0 || (a->n_splits == n + 1 && a->pos[next].a + n < a->n_splits));
    for (i = 0; i < n && rc == 0; i++)
        rc = add_tag(a, json_array_get(tags, i), triggers, i, *start, &a->splits[i], err);
    return rc;
}
