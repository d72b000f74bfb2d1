/* SPDX-License-Identifier: MIT
 * schema_scalar.c - languages of scalar values: types, texts of constants, formats, and the whole
 * of a node with what it says by other nodes.
 */
#include "base/check.h"
#include "base/sys.h"
#include "grammar/cset.h"
#include "grammar/regex.h"
#include "grammar/schema_impl.h"

#include <math.h>
#include <string.h>

enum { MAX_NEST = 400 };

static sl_rx_id quoted(struct sl_rx *rx, sl_rx_id body)
{
    sl_rx_id q = sl_rx_range(rx, '"', '"');
    return sl_rx_cat(rx, q, sl_rx_cat(rx, body, q));
}

int sl_schema_bases(struct sl_schema *s, struct sl_error *err)
{
    struct sl_rx *rx = s->rx;
    struct sl_rx_bytes hex = {0}, shorts = {0};
    sl_rx_bytes_add(&hex, '0', '9');
    sl_rx_bytes_add(&hex, 'a', 'f');
    sl_rx_bytes_add(&hex, 'A', 'F');
    for (const char *c = "\"\\/bfnrt"; *c != 0; c++)
        sl_rx_bytes_add(&shorts, (uint8_t)*c, (uint8_t)*c);
    s->string_char = sl_cset_any(rx, SL_SPELL_JSON);
    s->string = quoted(rx, sl_rx_rep(rx, s->string_char, 0, SL_RX_INF));
    static const char integer[] = "-?(0|[1-9]\\d*)(\\.0+)?"; /* without its last seven: no ".0" */
    SL_ASSERT(strcmp(integer + sizeof integer - 8, "(\\.0+)?") == 0);
    static const char decimal[] = "-?(0|[1-9]\\d*)(\\.\\d+)?";
    if (sl_regex_parse(rx, integer, sizeof integer - 1, 0, SL_SPELL_UTF8, &s->integer, err) != 0 ||
        sl_regex_parse(rx, decimal, sizeof decimal - 1, 0, SL_SPELL_UTF8, &s->number, err) != 0)
        return err->code;
    static const char number[] = "-?(0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?";
    if (sl_regex_parse(rx, number, sizeof number - 1, 0, SL_SPELL_UTF8, &s->free_number, err) != 0)
        return err->code;
    if (sl_regex_parse(rx, integer, sizeof integer - 8, 0, SL_SPELL_UTF8, &s->digits_only, err) !=
        0)
        return err->code;
    if (!s->style.whole_floats) { /* one text for each, so no -0 */
        static const char plain[] = "0|-?[1-9]\\d*";
        if (sl_regex_parse(rx, plain, sizeof plain - 1, 0, SL_SPELL_UTF8, &s->integer, err) != 0)
            return err->code;
        s->digits_only = s->integer;
    }
    sl_rx_id escape = sl_rx_rep(rx, sl_rx_set(rx, &hex), 4, 4);
    escape = sl_rx_cat(rx, sl_rx_range(rx, 'u', 'u'), escape);
    escape = sl_rx_or2(rx, escape, sl_rx_set(rx, &shorts));
    escape = sl_rx_cat(rx, sl_rx_range(rx, '\\', '\\'), escape);
    s->free_char = sl_rx_or2(rx, s->string_char, escape);
    s->free_string = quoted(rx, sl_rx_rep(rx, s->free_char, 0, SL_RX_INF));
    s->key_char = sl_cset_any(rx, SL_SPELL_KEY);
    sl_rx_id all[] = {s->string, s->number, sl_rx_lit(rx, "null", 4), sl_rx_lit(rx, "true", 4),
                      sl_rx_lit(rx, "false", 5)};
    s->any_scalar = sl_rx_alt(rx, all, SL_COUNT(all));
    return sl_rx_check(rx, err);
}

sl_rx_id sl_schema_value(struct sl_schema *s, json_t *value)
{
    SL_ASSERT(!json_is_array(value) && !json_is_object(value));
    struct sl_decimal d;
    bool big = sl_big_integer(value) != NULL;
    if (json_is_string(value) && !big)
        return quoted(s->rx, sl_cset_text(s->rx, json_string_value(value),
                                          json_string_length(value), SL_SPELL_JSON));
    /* a whole number so large may have been spelled with digits that a double does not hold */
    if (json_is_real(value) && fabs(json_real_value(value)) >= 0x1p53)
        return SL_RX_NONE;
    if (json_is_number(value) || big)
        return sl_decimal_of(value, &d) ? sl_number_equal(s->rx, &d, s->style.whole_floats)
                                        : SL_RX_NONE;
    const char *name = json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false";
    return sl_rx_lit(s->rx, name, strlen(name));
}

#define D4   "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 D4 "\\." D4 "\\." D4 "\\." D4
#define H16  "[0-9a-fA-F]{1,4}"
#define LS32 "(" H16 ":" H16 "|" IPV4 ")"
#define MD                                                                                        \
    "((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[" \
    "0-8]))"
#define LEAP "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
/* RFC 3339 has a year 0; calendars, and the libraries that check dates, begin with 1. */
#define DATE  "(?!0000)(\\d{4}-" MD "|" LEAP ")"
#define HMS   "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?"
#define ZONE  "([zZ]|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define ATEXT "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define HEX2  "%[0-9a-fA-F]{2}"
#define UCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|" HEX2 ")"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@/-]|" HEX2 ")"
/* Letters beyond ASCII that RFC 5892 lets stand in a host's name, of those that need no context. */
#define ULETTER                                                                           \
    "\\u00DF-\\u00F6\\u00F8-\\u00FF\\u03B1-\\u03C9\\u0430-\\u044F\\u3041-\\u3096\\u4E00-" \
    "\\u9FA5\\uAC00-\\uD7A3"
#define BEYOND \
    "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF" /* ucschar of RFC 3987, the first plane */
#define UATEXT "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~" BEYOND "-]+"
#define ULABEL "(" LABEL "|[a-z0-9" ULETTER "]{1,15})"
/* RFC 6570 */
#define TLITERAL "([!#$&()*+,./0-9:;=?@A-Z\\[\\]_a-z~" BEYOND "-]|" HEX2 ")"
#define TNAME    "([a-zA-Z0-9_]|" HEX2 ")+"
#define TVAR     TNAME "(\\." TNAME ")*(:[1-9]\\d{0,3}|\\*)?"
/* Patterns that ECMA-262 has with and without its flag u, and other engines read alike: groups two
 * deep, ranges within letters and digits, counts in order. A subset, as the whole is no regular
 * language. */
#define RX_ESCAPE "\\\\[dDwWsSnrtfv^$\\\\.*+?()\\[\\]{}|/]"
#define RX_RANGE                                                                                   \
    "(a-[a-z]|b-[b-z]|c-[c-z]|d-[d-z]|e-[e-z]|f-[f-z]|g-[g-z]|h-[h-z]|i-[i-z]|j-[j-z]|k-[k-z]|l-[" \
    "l-z]|m-[m-z]|"                                                                                \
    "n-[n-z]|o-[o-z]|p-[p-z]|q-[q-z]|r-[r-z]|s-[s-z]|t-[t-z]|u-[u-z]|v-[v-z]|w-[w-z]|x-[x-z]|y-["  \
    "y-z]|z-[z-z]|"                                                                                \
    "A-[A-Z]|B-[B-Z]|C-[C-Z]|D-[D-Z]|E-[E-Z]|F-[F-Z]|G-[G-Z]|H-[H-Z]|I-[I-Z]|J-[J-Z]|K-[K-Z]|L-["  \
    "L-Z]|M-[M-Z]|"                                                                                \
    "N-[N-Z]|O-[O-Z]|P-[P-Z]|Q-[Q-Z]|R-[R-Z]|S-[S-Z]|T-[T-Z]|U-[U-Z]|V-[V-Z]|W-[W-Z]|X-[X-Z]|Y-["  \
    "Y-Z]|Z-[Z-Z]|"                                                                                \
    "0-[0-9]|1-[1-9]|2-[2-9]|3-[3-9]|4-[4-9]|5-[5-9]|6-[6-9]|7-[7-9]|8-[8-9]|9-[9-9])"
#define RX_MEMBER "([^\\\\\\[\\]^&~|-]|" RX_ESCAPE "|\\\\-|" RX_RANGE ")"
#define RX_CLASS  "\\[\\^?" RX_MEMBER "+\\]"
#define RX_COUNT                                                                                 \
    "([*+?]|\\{([1-9]\\d{0,2},?|0,\\d{1,3}|1,[1-9]\\d{0,2}|[2-9],[1-9]\\d{1,2}|2,[2-9]|3,[3-9]|" \
    "4,[4-9]|5,[5-9]|6,[6-9]|7,[7-9]|[89],9|8,8)\\})\\??"
#define RX_ATOM "([^^$\\\\.*+?()\\[\\]{}|]|\\.|" RX_ESCAPE "|" RX_CLASS ")(" RX_COUNT ")?"
#define RX_FLAT "(" RX_ATOM "|\\||\\^|\\$|\\\\[bB])*"
#define RX_GROUP(inner)                                                                        \
    "(" RX_ATOM "|\\||\\^|\\$|\\\\[bB]|\\((\\?:)?" inner "\\)(" RX_COUNT ")?|\\(\\?[=!]" inner \
    "\\))*"
#define QUERY "(\\?(" PCHAR "|\\?)*)?(#(" PCHAR "|\\?)*)?"
#define HOST                                                                 \
    "(\\[" IPV6 "\\]|\\[[vV][0-9a-fA-F]+\\.[a-zA-Z0-9._~!$&'()*+,;=:-]+\\]|" \
    "([a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*)"
#define AUTHORITY \
    "//(([a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?" HOST "(:\\d*)?(/" UCHAR "*)*"
#define IPV6                                                                                  \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16 \
    ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32   \
    "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16 \
    ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"

static const struct {
    const char *name, *pattern; /* NULL: known to the specification, not supported here */
} formats[] = {
    {"date", DATE},
    {"time", HMS ZONE},
    {"date-time", DATE "[tT]" HMS ZONE},
    {"duration", "P((\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M(\\d+S)?)?|"
                 "\\d+M(\\d+S)?|\\d+S))?|T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)|\\d+W)"},
    {"email", ATEXT "(\\." ATEXT ")*@" LABEL "(\\." LABEL ")*"},
    {"hostname", LABEL "(\\." LABEL ")*"},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"uri", "[a-zA-Z][a-zA-Z0-9+.-]*:(" AUTHORITY "|/?(" UCHAR "+(/" UCHAR "*)*)?)" QUERY},
    {"uri-reference", "([a-zA-Z][a-zA-Z0-9+.-]*:)?(" AUTHORITY "|/(" UCHAR "+(/" UCHAR
                      "*)*)?|)" QUERY "|([a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+(/" UCHAR
                      "*)*" QUERY "|[a-zA-Z][a-zA-Z0-9+.-]*:" UCHAR "+(/" UCHAR "*)*" QUERY},
    {"json-pointer", "(/([^~/]|~[01])*)*"},
    {"relative-json-pointer", "(0|[1-9]\\d*)(#|(/([^~/]|~[01])*)*)"},
    {"idn-email", UATEXT "(\\." UATEXT ")*@" ULABEL "(\\." ULABEL ")*"},
    {"uri-template", "(" TLITERAL "|\\{[+#./;?&]?" TVAR "(," TVAR ")*\\})*"},
    {"regex", RX_GROUP(RX_GROUP(RX_FLAT))},
    {"idn-hostname", NULL},
    {"iri", NULL},
    {"iri-reference", NULL},
};

int sl_schema_format(struct sl_rx *rx, const char *name, sl_rx_id *out)
{
    struct sl_error err;
    for (size_t i = 0; i < SL_COUNT(formats); i++) {
        if (strcmp(formats[i].name, name) != 0)
            continue;
        const char *p = formats[i].pattern;
        return p == NULL ? SL_EUNSUPPORTED
                         : sl_regex_parse(rx, p, strlen(p), 0, SL_SPELL_JSON, out, &err);
    }
    return 1;
}

static sl_rx_id schema_scalar_of(struct sl_loader *l, uint32_t id, int depth);

static sl_rx_id exactly_one(struct sl_loader *l, const struct sl_nodes *list, int depth)
{
    struct sl_rx *rx = l->s->rx;
    sl_rx_id one = SL_RX_NONE, some = SL_RX_NONE;
    for (uint32_t i = 0; i < list->n; i++) {
        sl_rx_id x = schema_scalar_of(l, list->v[i], depth);
        if (x == SL_RX_NONE)
            continue;
        if (some != SL_RX_NONE) {
            sl_rx_id both = sl_rx_and2(rx, some, x);
            if (sl_rx_alive(rx, both)) {
                one = sl_rx_and2(rx, one, sl_rx_not(rx, x));
                x = sl_rx_and2(rx, x, sl_rx_not(rx, some));
            }
        }
        one = sl_rx_or2(rx, one, x);
        some = sl_rx_or2(rx, some, x == SL_RX_NONE ? x : schema_scalar_of(l, list->v[i], depth));
        SL_ASSERT(some != SL_RX_NONE || rx->failed != NULL); /* x was not empty */
    }
    return one;
}

static sl_rx_id whole(struct sl_loader *l, uint32_t id, int depth)
{
    SL_ASSERT(depth > 0 && depth <= MAX_NEST + 1);
    struct sl_rx *rx = l->s->rx;
    struct sl_schema_node n = l->s->nodes[id];
    sl_rx_id out = n.local, alt;
    for (uint32_t i = 0; i < n.all_of.n; i++)
        out = sl_rx_and2(rx, out, schema_scalar_of(l, n.all_of.v[i], depth));
    if (n.any_of.n > 0) {
        alt = SL_RX_NONE;
        for (uint32_t i = 0; i < n.any_of.n; i++)
            alt = sl_rx_or2(rx, alt, schema_scalar_of(l, n.any_of.v[i], depth));
        out = sl_rx_and2(rx, out, alt);
    }
    if (n.one_of.n > 0)
        out = sl_rx_and2(rx, out, exactly_one(l, &n.one_of, depth));
    if (n.not_node != SL_NODE_NONE)
        out = sl_rx_and2(rx, out, sl_rx_not(rx, schema_scalar_of(l, n.not_node, depth)));
    if (n.if_node != SL_NODE_NONE) {
        sl_rx_id c = schema_scalar_of(l, n.if_node, depth);
        sl_rx_id yes =
            n.then_node != SL_NODE_NONE ? schema_scalar_of(l, n.then_node, depth) : SL_RX_ALL;
        sl_rx_id no =
            n.else_node != SL_NODE_NONE ? schema_scalar_of(l, n.else_node, depth) : SL_RX_ALL;
        yes = sl_rx_and2(rx, c, yes);
        no = sl_rx_and2(rx, sl_rx_not(rx, c), no);
        out = sl_rx_and2(rx, out, sl_rx_or2(rx, yes, no));
    }
    for (uint32_t i = 0; i < n.n_deps; i++) /* say nothing of scalars, but must not lead back */
        if (n.deps[i].node != SL_NODE_NONE)
            (void)schema_scalar_of(l, n.deps[i].node, depth);
    return out;
}

static sl_rx_id schema_scalar_of(struct sl_loader *l, uint32_t id, int depth)
{
    SL_ASSERT(id != SL_NODE_NONE && id < l->s->n_nodes);
    struct sl_schema_node *n = &l->s->nodes[id];
    if (n->scalar_state == 2)
        return n->scalar;
    if (n->scalar_state == 1 || depth > MAX_NEST) {
        if (l->depth == 0)
            l->depth =
                sl_fail(l->err, n->scalar_state == 1 ? SL_EINVAL : SL_ELIMIT,
                        n->scalar_state == 1
                            ? "schema: %s/$ref: leads back to itself without going into a value"
                            : "schema: %s: applicators are nested too deeply",
                        n->path);
        return SL_RX_NONE;
    }
    n->scalar_state = 1;
    sl_rx_id id2 = whole(l, id, depth + 1);
    n = &l->s->nodes[id];
    n->scalar = sl_rx_alive(l->s->rx, id2) ? id2 : SL_RX_NONE;
    SL_ASSERT(n->scalar_state == 1);
    n->scalar_state = 2;
    return n->scalar;
}

int sl_schema_scalars(struct sl_loader *l)
{
    l->depth = 0; /* now carries the first error */
    for (uint32_t i = 1; i < l->s->n_nodes && l->depth == 0; i++)
        schema_scalar_of(l, i, 0);
    SL_ASSERT(l->depth <= 0);
    return l->depth != 0 ? l->depth : sl_rx_check(l->s->rx, l->err);
}
