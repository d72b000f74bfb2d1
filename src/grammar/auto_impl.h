/* SPDX-License-Identifier: MIT
 * auto_impl.h - what the files of the automaton share.
 */
#ifndef SL_GRAMMAR_AUTO_IMPL_H
#define SL_GRAMMAR_AUTO_IMPL_H

#include "grammar/auto.h"

#define EXPR_FALSE  0u
#define EXPR_TRUE   2u
#define EXPR_OF(id) ((id) << 1)
#define LEAF(node)  ((node) << 1 | 1u)

enum truth { IS_FALSE, IS_OPEN, IS_TRUE };

struct sl_frame_aux {  /* of an object before a name: what may come */
    uint32_t *allowed; /* names */
    sl_rx_id free;
    bool any; /* some name may come */
};

/* auto.c */
uint32_t sl_auto_fail(struct sl_auto *a, int code, const char *what);
/* More schemas meet in one value than there is room for. Before the start that refuses the grammar;
 * later it makes the value impossible, and what leads to it is not allowed. */
uint32_t sl_auto_too_many(struct sl_auto *a, const char *what);
uint32_t sl_auto_no_room(struct sl_auto *a); /* its arena gave nothing */
/* Asking n nodes for their truth takes time; false: there is no more. */
bool sl_auto_spend(struct sl_auto *a, uint32_t n);
uint32_t sl_vec_of(struct sl_auto *a, enum sl_vec_kind kind, const uint32_t *v, uint32_t n);
static inline struct sl_vec *sl_vec_at(const struct sl_auto *a, uint32_t id)
{
    SL_DCHECK(id < a->n_vecs);
    return a->vecs[id];
}

/* auto_space.c */
SL_MUST_CHECK int sl_space_init(struct sl_auto *a, const char *pattern, struct sl_error *err);
/* What may stand before the next token of an object or array. */
sl_rx_id sl_space_at(struct sl_auto *a, const struct sl_vec *frame);

/* auto_goal.c */
uint32_t sl_expr_list(struct sl_auto *a, enum sl_vec_kind kind, uint32_t *v, uint32_t n);
struct sl_goal *sl_goal_of(struct sl_auto *a, uint32_t req, uint32_t *roots, uint32_t n_roots);
bool sl_goal_sat(struct sl_auto *a, struct sl_goal *g);
bool sl_expr_true(const struct sl_auto *a, uint32_t expr, const struct sl_goal *g, uint64_t truths);

/* auto_plan.c */
/* Places in the plan's names of a local's dependency: its own, then those that it requires. */
static inline const uint32_t *sl_plan_dep(const struct sl_plan *p, const struct sl_schema_node *n,
                                          uint32_t local, uint32_t dep)
{
    const uint32_t *at = p->asked[local] + n->n_required;
    for (uint32_t i = 0; i < dep; i++)
        at += 1 + n->deps[i].n_required;
    return at;
}
static inline bool sl_frame_seen(const struct sl_vec *f, uint32_t name)
{
    SL_DCHECK(FR_WORDS + name / 32 < f->n);
    return (f->v[FR_WORDS + name / 32] >> (name & 31) & 1) != 0;
}
/* Where the goal of an item must differ from those before it: the frame's set of them. */
static inline uint32_t sl_frame_seen_items(const struct sl_plan *p, const struct sl_vec *f)
{
    return p->unique ? f->v[FR_WORDS + p->seen_word] : 0;
}

/* Has the node keywords of its own for objects, or for arrays? */
bool sl_node_has_say(const struct sl_schema_node *n, bool object);
struct sl_plan *sl_plan_of(struct sl_auto *a, struct sl_goal *g, bool object);
/* Nodes that local asks of a member of that class, at most max. */
uint32_t sl_plan_wanted(struct sl_auto *a, const struct sl_plan *p, uint32_t local, uint32_t class,
                        uint32_t *out);
uint32_t sl_plan_free_class(struct sl_auto *a, struct sl_plan *p, uint64_t sig);
enum truth sl_plan_covers(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                          uint32_t node, uint32_t class, int depth);

/* auto_frame.c: an object or array that is being read */
enum truth sl_frame_truth(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                          uint32_t node, bool end, int depth);
struct sl_goal *sl_frame_member(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f);
struct sl_frame_aux *sl_frame_names(struct sl_auto *a, struct sl_plan *p, uint32_t frame);
bool sl_frame_may_end(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                      uint64_t *truths);
bool sl_frame_may_grow(struct sl_auto *a, struct sl_plan *p, uint32_t frame);
uint32_t sl_frame_open(struct sl_auto *a, struct sl_goal *g, bool object, uint32_t parent,
                       uint32_t depth);
/* kept: the value is to be known, and to differ from the data of a set. */
uint32_t sl_frame_open_kept(struct sl_auto *a, struct sl_goal *g, bool object, uint32_t parent,
                            uint32_t depth, uint32_t kept, uint32_t avoid);
uint32_t sl_frame_named(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                        uint32_t class, uint32_t text);
uint32_t sl_frame_phase(struct sl_auto *a, const struct sl_vec *f, enum sl_phase phase);
/* The same two moves without looking ahead: 0 only if the requirement is false by then. */
uint32_t sl_frame_with_name(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                            uint32_t class, uint32_t text);
uint32_t sl_frame_after(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                        const struct sl_goal *g, uint64_t truths, uint32_t datum);
/* After a member whose wanted nodes have these truths; 0: the frame cannot end well. */
uint32_t sl_frame_member_done(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                              uint64_t truths, uint32_t datum);
/* The lexeme of a member that is a scalar, of a frame that waits for its value; 0: there is none.
 */
uint32_t sl_frame_scalars(struct sl_auto *a, struct sl_plan *p, uint32_t frame, struct sl_goal *g);
struct sl_plan *sl_frame_plan(struct sl_auto *a, const struct sl_vec *f);

#define MAX_CASES 16
struct scalar_case { /* scalars that the wanted nodes say the same of */
    sl_rx_id rx;
    uint64_t truths;
};
/* Parts the goal's scalars by the wanted nodes; 0: these are too many parts. */
uint32_t sl_scalar_cases(struct sl_auto *a, struct sl_goal *g, const struct scalar_case **out);

/* auto_ahead.c: objects whose plan is exclusive */
void sl_plan_mark_tests(struct sl_auto *a, struct sl_plan *p);
bool sl_frame_has_way(struct sl_auto *a, struct sl_plan *p, uint32_t frame);
/* Can the object still end behind a value of these truths? `before`: the object without its name,
 * or, if that is known to have a way, with it. */
bool sl_frame_leads_on(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *before,
                       const struct sl_vec *named, struct sl_goal *g, uint64_t truths);
/* The goal of a member that is an object or array, of those behind which the object can end. */
struct sl_goal *sl_frame_compound(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *before,
                                  const struct sl_vec *named, struct sl_goal *g);
/* Is there a value for the name that was added to `before`, behind which the object can end? */
bool sl_frame_value_leads_on(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *before,
                             uint32_t named, struct sl_goal *g);

/* auto_unique.c: items that differ. seen: a SL_VEC_SEEN, 0: none yet. */
#define TEXT_BLURRED  1u /* in place of a text */
#define TEXT_WIDE     2u /* nor is the text before it known: wide as long as it goes on */
#define TEXT_OTHER    3u /* blurred, but none of those that matter to its frame begins like it */
#define DATUM_UNKNOWN 1u /* the value of such a text */
#define DATUM_OTHER   2u /* the value of TEXT_OTHER */
uint32_t sl_datum_of(struct sl_auto *a, uint32_t text);
/* Of a property's name: of what was read, or of the bytes between its quotes. */
uint32_t sl_datum_of_name(struct sl_auto *a, uint32_t text);
uint32_t sl_datum_of_bytes(struct sl_auto *a, const char *s, size_t n);
const char *sl_datum_bytes(const struct sl_auto *a, uint32_t datum, size_t *n);
/* Does a datum begin with the text, or may it? from: bytes of the datum that are left out. */
bool sl_text_begins(struct sl_auto *a, uint32_t text, uint32_t datum, size_t from);
uint32_t sl_text_of_bytes(struct sl_auto *a, const char *s, size_t n);
bool sl_seen_has(const struct sl_auto *a, uint32_t seen, uint32_t datum);
uint32_t sl_seen_with(struct sl_auto *a, uint32_t seen, uint32_t datum);
/* How many values the goal has at least, up to SL_MAX_UNIQUE_ITEMS + 1. */
uint32_t sl_goal_n_values(struct sl_auto *a, struct sl_goal *g);
/* Of scalars of that language only, which is part of the goal's. */
uint32_t sl_goal_n_scalars(struct sl_auto *a, struct sl_goal *g, sl_rx_id id);
bool sl_goal_sat_without(struct sl_auto *a, struct sl_goal *g, uint32_t seen);
/* What is left of lex, the goal's lexeme or a part of it. */
uint32_t sl_goal_lex_without(struct sl_auto *a, struct sl_goal *g, sl_rx_id id, uint32_t seen);
/* The stack of an item of which byte was read, which led to lex; 0: that cannot be told. */
uint32_t sl_item_begin(struct sl_auto *a, uint32_t array, uint32_t seen, uint8_t byte,
                       uint32_t lex);

/* auto_kept.c: arrays and objects among items that differ */
#define KEPT_EMPTY 1u /* no members yet */
#define KEPT_LOST  2u /* behind a blurred name; a blurred value is DATUM_UNKNOWN in the chain */
/* The frame without what is kept of it, for what its value does not matter to. */
uint32_t sl_frame_stripped(struct sl_auto *a, uint32_t frame);
/* FR_KEPT and FR_AVOID behind a name, and behind its value or an item. */
uint32_t sl_kept_named(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                       uint32_t class, uint32_t text, uint32_t *avoid);
uint32_t sl_kept_member(struct sl_auto *a, const struct sl_vec *f, uint32_t datum, uint32_t *avoid);
uint32_t sl_kept_datum(struct sl_auto *a, const struct sl_vec *f); /* of a frame that closes */
/* Those of a set that have that member; datum 0: whatever its value is. */
uint32_t sl_avoid_with(struct sl_auto *a, uint32_t avoid, enum sl_vec_kind kind, uint32_t name,
                       uint32_t datum);
uint32_t sl_avoid_of_kind(struct sl_auto *a, uint32_t avoid, enum sl_vec_kind kind);
bool sl_kept_is_avoided(struct sl_auto *a, const struct sl_vec *f); /* if it closed now */
bool sl_kept_has_way(struct sl_auto *a, struct sl_plan *p, uint32_t frame);
/* What the value that f waits for may not be: a set. g: its goal. */
uint32_t sl_frame_avoid(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                        struct sl_goal *g);
/* An array or object begins that must differ from data of which one is not known. 0: whether it may
 * cannot be told. Its value must be told by exact states. */
uint32_t sl_kept_open_unknown(struct sl_auto *a, struct sl_goal *g, bool object, uint32_t parent,
                              uint32_t depth);
uint32_t sl_goal_n_compound(struct sl_auto *a, struct sl_goal *g, bool object);
/* Names of the chain and of the set, closing quote included. */
sl_rx_id sl_names_of(struct sl_auto *a, const struct sl_vec *set, uint32_t kept);
/* Those of other names that the frame may still get. */
sl_rx_id sl_kept_names(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                       sl_rx_id names);
/* One after another the data that the value, or the name, which f waits for must be told apart
 * from; 0: there are no more. at: {0} at first. */
struct sl_kept_at {
    uint32_t item, member;
};
uint32_t sl_kept_next(struct sl_auto *a, const struct sl_vec *f, bool name, struct sl_kept_at *at);
/* Can the text that is being read, of a value or of a name, become one of the data to avoid? */
bool sl_kept_may_equal(struct sl_auto *a, const struct sl_vec *f, uint32_t text, bool name);
/* Is what is read by the frame, or by the value that it waits for, kept? */
static inline bool sl_frame_keeps(const struct sl_plan *p, const struct sl_vec *f)
{
    return p->unique || f->v[FR_KEPT] != 0;
}

/* Fields of SL_VEC_KEY: known names between lo and hi, what was read of them; other names. */
enum { KEY_LO, KEY_HI, KEY_DEPTH, KEY_FREE, KEY_TEXT, KEY_PATTERNS };

#define MAX_WANTED 64
/* Items of an array, where it matters which of them contains matched. */
#define MAX_INDEXED 32

#endif
