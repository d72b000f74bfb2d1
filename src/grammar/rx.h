/* SPDX-License-Identifier: MIT
 * rx.h - regular languages over bytes: hash-consed expressions that are their own automaton.
 *
 * An expression's states are its derivatives (Brzozowski 1964; with intersection and complement as
 * in Owens, Reppy and Turon 2009). A state's id is an expression's id, so equal states are equal
 * numbers, rows of transitions are made when first asked for, and a count of 2^31 costs nothing
 * until it is walked. A transition that cannot reach an accepting state is SL_RX_NONE: intersection
 * and complement are searched for one, within a budget, beyond which a state counts as alive.
 *
 * Not thread-safe. Memory, nodes and rows are bounded; beyond the bound every call returns
 * SL_RX_NONE and sl_rx_check says why, so that building an expression needs no check per call.
 */
#ifndef SL_GRAMMAR_RX_H
#define SL_GRAMMAR_RX_H

#include "base/arena.h"
#include "base/err.h"
#include "grammar/intern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t sl_rx_id;

#define SL_RX_NONE ((sl_rx_id)0) /* the empty language */
#define SL_RX_EPS  ((sl_rx_id)1) /* the empty string */
#define SL_RX_ALL  ((sl_rx_id)2) /* every byte string */
#define SL_RX_INF  (-1)          /* no upper bound of a repetition */

struct sl_rx_bytes { /* a set of bytes */
    uint64_t w[4];
};

static inline void sl_rx_bytes_add(struct sl_rx_bytes *s, unsigned lo, unsigned hi)
{
    for (unsigned b = lo; b <= hi; b++)
        s->w[b >> 6] |= 1ull << (b & 63);
}

static inline bool sl_rx_bytes_has(const struct sl_rx_bytes *s, unsigned b)
{
    return (s->w[b >> 6] >> (b & 63) & 1) != 0;
}

struct sl_rx_node {
    uint8_t op;
    bool nullable;
    uint8_t boolean; /* 1: holds an intersection or complement, 2: and a search would be long */
    uint8_t alive;   /* of booleans: 0 unknown, 1 alive, 2 dead */
    uint8_t texts;   /* what is known of all strings in it: SL_RX_CHARS, SL_RX_TEXT, 0: nothing */
    bool finite;     /* sure to have finitely many strings */
    bool uniform;    /* a set of characters (cset.h), with all plain ones beyond ASCII or none */
    bool exact;      /* one of its strings has no more characters than `least` */
    uint32_t head;   /* depth a derivative recurses to */
    uint32_t least;  /* characters that each string has, where texts says what these are; else 0 */
    uint32_t a, b;
    int32_t lo, hi;
    uint32_t *row; /* [256] successors with the marks below; NULL: no row */
};

/* Strings that are characters of a JSON string, as it spells them; and with its closing quote. */
#define SL_RX_CHARS 1
#define SL_RX_TEXT  2

struct sl_rx_str {
    const char *s;
    size_t n;
};

struct sl_rx_limits {
    uint32_t max_nodes, max_rows;
    size_t max_bytes;
};

struct sl_rx_derived { /* a derivative that was made, and the bytes that have the same */
    sl_rx_id id, to;
    struct sl_rx_bytes same;
};

struct sl_rx {
    struct sl_rx_node *nodes;
    uint32_t n_nodes, cap_nodes;
    uint32_t *kids; /* operands of alternations and intersections */
    uint32_t n_kids, cap_kids;
    struct sl_rx_bytes *sets;
    uint32_t n_sets, cap_sets;
    struct {
        const struct sl_rx_str *v;
    } * lists;
    uint32_t n_lists, cap_lists;
    struct sl_intern index;        /* of nodes: id + 1 */
    uint32_t n_rows, *with_row;    /* with_row: the nodes that have one */
    struct sl_arena arena;         /* rows */
    struct sl_rx_derived *derived; /* of parts, a cache: states share most of theirs */
    sl_rx_id any_chars, any_text;  /* all strings of these kinds, SL_RX_NONE: not made yet */
    struct sl_rx_limits limits;
    struct sl_rx_search *search; /* room for searches for accepting states */
    uint64_t n_derived; /* derivatives made, and what else takes as long: the time limit's clock */
    uint64_t max_derived;
    const char *failed; /* what ran out, NULL: nothing */
    int fail_code;
};

/* Marks in rows: not made yet; made, but perhaps without a way to an accepting state. */
#define SL_RX_UNKNOWN    UINT32_MAX
#define SL_RX_UNVERIFIED 0x80000000u

SL_MUST_CHECK int sl_rx_init(struct sl_rx *rx, const struct sl_rx_limits *limits,
                             struct sl_error *err);
void sl_rx_deinit(struct sl_rx *rx);
SL_MUST_CHECK int sl_rx_check(const struct sl_rx *rx, struct sl_error *err);

sl_rx_id sl_rx_set(struct sl_rx *rx, const struct sl_rx_bytes *set);
sl_rx_id sl_rx_range(struct sl_rx *rx, unsigned lo, unsigned hi);
sl_rx_id sl_rx_lit(struct sl_rx *rx, const char *s, size_t n);
sl_rx_id sl_rx_cat(struct sl_rx *rx, sl_rx_id a, sl_rx_id b);
sl_rx_id sl_rx_alt(struct sl_rx *rx, const sl_rx_id *ids, size_t n);
sl_rx_id sl_rx_and(struct sl_rx *rx, const sl_rx_id *ids, size_t n);
sl_rx_id sl_rx_or2(struct sl_rx *rx, sl_rx_id a, sl_rx_id b);
sl_rx_id sl_rx_and2(struct sl_rx *rx, sl_rx_id a, sl_rx_id b);
sl_rx_id sl_rx_not(struct sl_rx *rx, sl_rx_id a);
sl_rx_id sl_rx_rep(struct sl_rx *rx, sl_rx_id a, int32_t lo, int32_t hi);
sl_rx_id sl_rx_opt(struct sl_rx *rx, sl_rx_id a);
/* For id behind any number of characters of the language c (one character each): a simpler language
 * that makes the same whole, as c{0,}[a-z]{3,63} is c{0,}[a-z]{3}. */
sl_rx_id sl_rx_behind_any(struct sl_rx *rx, sl_rx_id c, sl_rx_id id);
/* Any of n strings, sorted by bytes and without duplicates: a tree, so that 100,000 cost one walk.
 */
sl_rx_id sl_rx_strings(struct sl_rx *rx, const struct sl_rx_str *list, size_t n);
/* The same, read where it lies when it is walked, so that long strings cost nothing before: the
 * list and its strings stay as long as rx does. */
sl_rx_id sl_rx_list(struct sl_rx *rx, const struct sl_rx_str *list, size_t n);
/* Decimal digits, at most one '.', whose value is a multiple of k / 10^scale. 0 < k < 2^31. */
sl_rx_id sl_rx_multiple(struct sl_rx *rx, uint32_t k, int scale);

static inline bool sl_rx_nullable(const struct sl_rx *rx, sl_rx_id id)
{
    return rx->nodes[id].nullable;
}

/* A node that is one character of a JSON string, as it is spelled there. */
void sl_rx_is_char(struct sl_rx *rx, sl_rx_id id);

/* Is there any string in it? (Within the budget; true when unsure.) */
bool sl_rx_alive(struct sl_rx *rx, sl_rx_id id);
/* Time that others took, in derivatives; false: there is no more. */
bool sl_rx_spend(struct sl_rx *rx, uint64_t n);
sl_rx_id sl_rx_step_slow(struct sl_rx *rx, sl_rx_id id, uint8_t byte);

/* The language of what may follow byte. */
static inline sl_rx_id sl_rx_step(struct sl_rx *rx, sl_rx_id id, uint8_t byte)
{
    const uint32_t *row = rx->nodes[id].row;
    if (row != NULL && (row[byte] & SL_RX_UNVERIFIED) == 0)
        return row[byte];
    return sl_rx_step_slow(rx, id, byte);
}

/* Forgets transitions, which are found again, when there are more than max: between calls. */
void sl_rx_trim(struct sl_rx *rx, uint32_t max_rows);

/* Does the whole text belong to the language? */
bool sl_rx_matches(struct sl_rx *rx, sl_rx_id id, const char *text, size_t n);

/* How many characters of the language plain may follow: every string of up to the returned number
 * of them stays alive, and no longer one does, unless *longer: then some may. SL_RX_INF: any
 * number.
 */
#define SL_RX_RUN_UNKNOWN (-2)
int32_t sl_rx_run(struct sl_rx *rx, sl_rx_id id, sl_rx_id plain, bool *longer);

#endif
