/* SPDX-License-Identifier: MIT
 * schema_ref.c - where a $ref leads: base URIs, $id, anchors, JSON pointers.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/schema_impl.h"

#include <string.h>

enum { MAX_DEPTH = 200, MAX_URI = 2048, MAX_PATH = 2000 };

/* Only messages show it: what is too long to read stands for all that lies in it. */
const char *sl_schema_path(struct sl_loader *l, const char *path, const char *key)
{
    struct sl_buf b = {0};
    if (strlen(path) + strlen(key) > MAX_PATH)
        return path;
    sl_buf_printf(&b, "%s/", path);
    for (; *key != 0; key++)
        sl_buf_puts(&b, *key == '~' ? "~0" : *key == '/' ? "~1" : (char[]){*key, 0});
    char *out = sl_buf_ok(&b) ? sl_arena_strndup(&l->s->arena, b.data, b.n_bytes) : NULL;
    sl_buf_deinit(&b);
    return out != NULL ? out : path;
}

static bool more(struct sl_loader *l, void **data, uint32_t n, uint32_t *cap, size_t size)
{
    SL_ASSERT(n <= *cap);
    if (n < *cap)
        return true;
    uint32_t new_cap = *cap == 0 ? 64 : *cap * 2;
    void *p = new_cap > 4 * SL_SCHEMA_MAX_NODES ? NULL : sl_realloc(*data, new_cap * size);
    if (p == NULL)
        return false;
    *data = p;
    *cap = new_cap;
    (void)l;
    return true;
}

static uint32_t table_at(const struct sl_loader *l, const json_t *json)
{
    SL_ASSERT(l->n_places < l->cap_table); /* a free place ends every search */
    uint64_t h = sl_mix64((uint64_t)(uintptr_t)json);
    uint32_t at;
    while ((at = l->place_table[h & (l->cap_table - 1)]) != 0 && l->places[at - 1].json != json)
        h++;
    return (uint32_t)(h & (l->cap_table - 1));
}

struct sl_place *sl_schema_place(struct sl_loader *l, json_t *json, const char *base,
                                 const char *path, int draft)
{
    SL_ASSERT(draft == 4 || draft == 7 || draft == 2020); /* what keywords name */
    if (l->n_places * 2 >= l->cap_table) {
        uint32_t cap = l->cap_table == 0 ? 256 : l->cap_table * 2;
        uint32_t *t = sl_calloc(cap, sizeof *t);
        if (t == NULL)
            goto no_memory;
        sl_free(l->place_table);
        l->place_table = t;
        l->cap_table = cap;
        for (uint32_t i = 0; i < l->n_places; i++)
            t[table_at(l, l->places[i].json)] = i + 1;
    }
    uint32_t at = table_at(l, json);
    if (l->place_table[at] != 0)
        return &l->places[l->place_table[at] - 1];
    if (!more(l, (void **)&l->places, l->n_places, &l->cap_places, sizeof l->places[0]))
        goto no_memory;
    SL_ASSERT(l->n_places < l->cap_places);
    l->places[l->n_places] = (struct sl_place){json, base, {SL_NODE_NONE}, path, draft};
    l->place_table[at] = ++l->n_places;
    return &l->places[l->n_places - 1];
no_memory:
    if (l->cap_places > 2 * SL_SCHEMA_MAX_NODES)
        (void)sl_fail(l->err, SL_ELIMIT, "schema: too many subschemas");
    else
        (void)sl_fail(l->err, SL_ENOMEM, "schema: out of memory");
    return NULL;
}

static const char *copy(struct sl_loader *l, const char *s, size_t n)
{
    const char *p = sl_arena_strndup(&l->s->arena, s, n);
    l->no_room |= p == NULL;
    return p != NULL ? p : "";
}

/* A URI that was not kept would be taken for another one. */
static int check_room(const struct sl_loader *l, int rc)
{
    bool no_memory = l->s->arena.no_memory;
    if (rc != 0 || !l->no_room)
        return rc;
    return sl_fail(l->err, no_memory ? SL_ENOMEM : SL_ELIMIT, "schema: %s",
                   no_memory ? "out of memory" : "too large");
}

/* Takes "a/../" and "./" out of a path in place. */
static void remove_dots(char *path)
{
    char *out = path;
    const char *in = path;
    while (*in != 0) {
        if (strncmp(in, "/../", 4) == 0 || strcmp(in, "/..") == 0) {
            in += in[3] == 0 ? 3 : 3;
            while (out > path && *--out != '/')
                ;
        } else if (strncmp(in, "/./", 3) == 0) {
            in += 2;
        } else {
            *out++ = *in++;
        }
    }
    SL_ASSERT(out >= path && out <= in);
    *out = 0;
}

/* RFC 3986 section 5.2, as far as schemas use it; the fragment is left out. */
static const char *schema_ref_resolve(struct sl_loader *l, const char *base, const char *ref)
{
    char buf[MAX_URI];
    size_t n = strcspn(ref, "#"), scheme = strcspn(ref, ":/?#");
    const char *colon = strchr(base, ':'), *path = base;
    if (n == 0)
        return base;
    if (ref[scheme] == ':' || n >= MAX_URI / 2 || strlen(base) >= MAX_URI / 2)
        return copy(l, ref, n);
    if (colon != NULL && colon[1] == '/' && colon[2] == '/') {
        path = strchr(colon + 3, '/');
        path = path != NULL ? path : base + strlen(base);
    }
    const char *dir = ref[0] == '/' ? path : strrchr(path, '/');
    dir = dir == NULL ? path : ref[0] == '/' ? dir : dir + 1;
    size_t k = (size_t)(dir - base), from = (size_t)(path - base);
    SL_ASSERT(from <= k && k + 1 + n < sizeof buf);
    memcpy(buf, base, k);
    if (k == from && k > 0 && ref[0] != '/')
        buf[k++] = '/';
    memcpy(buf + k, ref, n);
    buf[k + n] = 0;
    remove_dots(buf + SL_MIN(from, k));
    return copy(l, buf, strlen(buf));
}

static int add_anchor(struct sl_loader *l, const char *base, const char *name, json_t *json,
                      bool dynamic)
{
    char buf[MAX_URI];
    size_t n = strlen(base), k = strlen(name);
    if (n + k + 2 > sizeof buf)
        return sl_fail(l->err, SL_ELIMIT, "schema: a URI of more than %d bytes", MAX_URI);
    memcpy(buf, base, n);
    if (k > 0) {
        buf[n++] = '#';
        memcpy(buf + n, name, k);
    }
    if (!more(l, (void **)&l->anchors, l->n_anchors, &l->cap_anchors, sizeof l->anchors[0]))
        return sl_fail(l->err, SL_ENOMEM, "schema: out of memory");
    SL_ASSERT(l->n_anchors < l->cap_anchors && n + k <= sizeof buf);
    l->anchors[l->n_anchors++] = (struct sl_anchor){copy(l, buf, n + k), json, dynamic};
    return 0;
}

static int schema_ref_scan(struct sl_loader *l, json_t *json, const char *base, const char *path,
                           int draft);

static int scan_kids(struct sl_loader *l, json_t *kids, const char *base, const char *path,
                     int draft)
{
    const char *key;
    json_t *v;
    size_t i;
    int rc = 0;
    if (json_is_object(kids))
        json_object_foreach(kids, key, v) if (rc == 0) rc =
            schema_ref_scan(l, v, base, sl_schema_path(l, path, key), draft);
    if (json_is_array(kids))
        json_array_foreach(kids, i, v)
        {
            char n[24];
            snprintf(n, sizeof n, "%zu", i);
            if (rc == 0)
                rc = schema_ref_scan(l, v, base, sl_schema_path(l, path, n), draft);
        }
    return rc;
}

int sl_schema_draft(const json_t *json, int draft)
{
    const char *uri = json_string_value(json_object_get(json, "$schema"));
    if (uri == NULL || strstr(uri, "json-schema.org") == NULL)
        return draft;
    return strstr(uri, "draft-04") != NULL ? 4 : strstr(uri, "draft-0") != NULL ? 7 : 2020;
}

static const char *id_of(const json_t *json, int draft)
{
    return json_string_value(json_object_get(json, draft == 4 ? "id" : "$id"));
}

static int scan_ids(struct sl_loader *l, json_t *json, const char **base, int draft)
{
    static const char *const names[] = {"$anchor", "$dynamicAnchor"};
    const char *id = id_of(json, draft);
    bool hidden = draft <= 7 && json_object_get(json, "$ref") != NULL;
    int rc = 0;
    if (id != NULL && !hidden) {
        const char *hash = strchr(id, '#');
        *base = schema_ref_resolve(l, *base, id);
        if (hash != id)
            rc = add_anchor(l, *base, "", json, false);
        if (hash != NULL && hash[1] != 0 && rc == 0)
            rc = add_anchor(l, *base, hash + 1, json, false);
    }
    for (size_t i = 0; i < SL_COUNT(names) && rc == 0 && draft >= 2020; i++) {
        const char *name = json_string_value(json_object_get(json, names[i]));
        if (name != NULL)
            rc = add_anchor(l, *base, name, json, i == 1);
    }
    return rc;
}

static int schema_ref_scan(struct sl_loader *l, json_t *json, const char *base, const char *path,
                           int draft)
{
    static const char *const maps[] = {"properties",  "patternProperties", "$defs",
                                       "definitions", "dependencies",      "dependentSchemas"};
    static const char *const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems"};
    static const char *const singles[] = {"not",
                                          "if",
                                          "then",
                                          "else",
                                          "contains",
                                          "additionalProperties",
                                          "additionalItems",
                                          "propertyNames",
                                          "unevaluatedProperties",
                                          "unevaluatedItems",
                                          "contentSchema"};
    if (!json_is_object(json))
        return 0;
    SL_ASSERT(l->depth >= 0 && l->depth <= MAX_DEPTH);
    if (++l->depth > MAX_DEPTH)
        return sl_fail(l->err, SL_ELIMIT, "schema: nested more than %d deep", MAX_DEPTH);
    draft = sl_schema_draft(json, draft);
    int rc = scan_ids(l, json, &base, draft);
    if (rc == 0 && sl_schema_place(l, json, base, path, draft) == NULL)
        rc = l->err->code;
    for (size_t i = 0; i < SL_COUNT(maps) + SL_COUNT(lists) + SL_COUNT(singles) + 1 && rc == 0;
         i++) {
        size_t k = i - SL_COUNT(maps);
        bool one = k >= SL_COUNT(lists) && i >= SL_COUNT(maps);
        const char *key = i < SL_COUNT(maps)                        ? maps[i]
                          : !one                                    ? lists[k]
                          : k - SL_COUNT(lists) < SL_COUNT(singles) ? singles[k - SL_COUNT(lists)]
                                                                    : "items";
        json_t *v = json_object_get(json, key);
        if (v == NULL)
            continue;
        const char *at = sl_schema_path(l, path, key);
        rc = one && !json_is_array(v) ? schema_ref_scan(l, v, base, at, draft)
                                      : scan_kids(l, v, base, at, draft);
    }
    SL_ASSERT(l->depth > 0);
    l->depth--;
    return rc;
}

int sl_schema_scan(struct sl_loader *l, json_t *doc, const char *base)
{
    SL_ASSERT(l->depth == 0);
    int rc = add_anchor(l, base, "", doc, false);
    if (rc == 0)
        rc = schema_ref_scan(l, doc, base, "", l->options->draft7 ? 7 : 2020);
    return check_room(l, rc);
}

static int schema_ref_hex(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* The next reference token of a pointer in a fragment: %XX and ~0 ~1 undone. */
static size_t token(const char **p, char *out, size_t cap)
{
    size_t n = 0;
    SL_ASSERT(**p == '/' && cap > 0);
    const char *s = *p + 1;
    for (; *s != 0 && *s != '/'; s++) {
        char c = *s;
        if (c == '%' && schema_ref_hex(s[1]) >= 0 && schema_ref_hex(s[2]) >= 0) {
            c = (char)(schema_ref_hex(s[1]) << 4 | schema_ref_hex(s[2]));
            s += 2;
        }
        if (c == '~' && (s[1] == '0' || s[1] == '1'))
            c = *++s == '0' ? '~' : '/';
        if (n + 1 < cap)
            out[n++] = c;
    }
    SL_ASSERT(n < cap);
    out[n] = 0;
    *p = s;
    return n;
}

static json_t *schema_ref_walk(struct sl_loader *l, json_t *json, const char *p, const char **base,
                               const char **path, int draft)
{
    char name[MAX_URI];
    while (json != NULL && *p == '/') {
        size_t n = token(&p, name, sizeof name);
        uint64_t i;
        if (json_is_array(json))
            json = sl_parse_u64(name, n, &i) ? json_array_get(json, i) : NULL;
        else
            json = json_object_getn(json, name, n);
        *path = sl_schema_path(l, *path, name);
        const char *id = id_of(json, draft);
        if (id != NULL && !(draft <= 7 && json_object_get(json, "$ref") != NULL) && *p == '/')
            *base = schema_ref_resolve(l, *base, id);
    }
    return *p == 0 ? json : NULL;
}

int sl_schema_find(struct sl_loader *l, const struct sl_place *from, const char *ref, json_t **out,
                   const char **path)
{
    const char *uri = schema_ref_resolve(l, from->base, ref), *hash = strchr(ref, '#');
    const char *fragment = hash != NULL ? hash + 1 : "";
    bool pointer = *fragment == 0 || *fragment == '/';
    int draft = from->draft;
    size_t n = strlen(uri);
    *out = NULL;
    if (!sl_rx_spend(l->s->rx, l->n_anchors / 16))
        return sl_rx_check(l->s->rx, l->err);
    for (uint32_t i = 0; i < l->n_anchors && *out == NULL; i++) {
        const char *u = l->anchors[i].uri;
        if (strncmp(u, uri, n) != 0)
            continue;
        if (pointer ? u[n] != 0 && strcmp(u + n, "#") != 0
                    : u[n] != '#' || strcmp(u + n + 1, fragment) != 0)
            continue;
        const char *base = uri;
        *path = *uri == 0 || pointer ? "" : ref;
        *out = pointer ? schema_ref_walk(l, l->anchors[i].json, fragment, &base, path, draft)
                       : l->anchors[i].json;
        if (*out != NULL && sl_schema_place(l, *out, base, *path, draft) == NULL)
            return l->err->code;
    }
    if (*out == NULL)
        return sl_fail(l->err, SL_EINVAL, "schema: %s/$ref: \"%.120s\" leads nowhere", from->path,
                       ref);
    SL_ASSERT(*path != NULL);
    return check_room(l, 0);
}
