/* SPDX-License-Identifier: MIT
 * auto.h - the automaton of a compiled grammar: made as it is walked, every state one number.
 *
 * A state is a set of threads. A thread is a stack and what is being read (a lexeme: a derivative
 * of a regular expression, a property name, or nothing). The stack is a list of frames that share
 * tails: a place in a rule to come back to, a JSON object or array with what has been seen in it.
 * JSON is deterministic and has one thread; a context-free grammar may have several.
 *
 * How a JSON value is constrained is a goal: an expression of and/or over schema nodes that the
 * value must satisfy, and the list of nodes whose truth the parent wants to know. A goal on an
 * object makes a plan: which nodes have a say in it (its locals), which names they know. While the
 * object is read, a frame counts what was seen and which locals have failed; the goal of each
 * member follows from the expression with what failed struck out, so that no value is begun that
 * could not end well.
 *
 * All parts are interned as vectors of numbers in one table. One lock per automaton (its owner's).
 */
#ifndef SL_GRAMMAR_AUTO_H
#define SL_GRAMMAR_AUTO_H

#include "grammar/schema.h"

enum sl_vec_kind {
    SL_VEC_NONE,
    SL_VEC_AND, /* expressions */
    SL_VEC_OR,
    SL_VEC_GOAL,   /* requirement, then nodes whose truth is wanted */
    SL_VEC_ROOT,   /* frames; the bottom of the stack */
    SL_VEC_RETURN, /* parent, position */
    SL_VEC_VALUE,  /* parent, goal: a JSON value on its own */
    SL_VEC_OBJECT,
    SL_VEC_ARRAY,
    SL_VEC_ITEM,         /* parent, text: a scalar that is being read, where its value is kept */
    SL_VEC_TUPLE,        /* lexemes: the requirement, then the wanted nodes' languages */
    SL_VEC_KEY,          /* a property name half read */
    SL_VEC_TEXT,         /* parent, byte: what was read, where it matters */
    SL_VEC_DATUM,        /* a scalar value, without its spelling: number of bytes, bytes */
    SL_VEC_ARRAY_DATUM,  /* number of items, items */
    SL_VEC_OBJECT_DATUM, /* number of members, name and value of each, sorted by name */
    SL_VEC_KEPT,         /* members so far of a value that is kept: previous, name, datum, number */
    SL_VEC_SEEN,         /* data, sorted: items of an array whose items differ */
    SL_VEC_STATE,        /* threads: stack and lexeme of each */
};

struct sl_vec {
    uint32_t kind, n;
    void *aux; /* made on demand: struct sl_goal, struct sl_frame_aux, struct sl_state_aux */
    uint32_t v[];
};

/* Fields of the vectors of objects and arrays; words follow. */
enum {
    FR_PARENT,
    FR_REF, /* goal, or position of a RETURN */
    FR_PHASE,
    FR_CLASS, /* of the member being read */
    FR_COUNT, /* members that are complete, up to what matters */
    FR_FAILED_LO,
    FR_FAILED_HI,
    FR_DEPTH,
    FR_KEPT,  /* members so far, where the value matters; 0: it does not */
    FR_AVOID, /* data that the value may not be and that have those members; 0: none */
    FR_WORDS,
};

enum sl_phase { PH_OPEN, PH_KEY, PH_COLON, PH_VALUE, PH_NEXT, PH_CLOSE };

/* What is being read, in the top two bits of a thread's second number. */
#define SL_LEX_TAG   0xC0000000u
#define SL_LEX_NONE  0x00000000u /* between lexemes; low bits: what whitespace may follow */
#define SL_LEX_RX    0x40000000u
#define SL_LEX_TUPLE 0x80000000u
#define SL_LEX_KEY   0xC0000000u
#define SL_LEX_ID    0x3FFFFFFFu

struct sl_thread {
    uint32_t stack, lex;
};

struct sl_plan;
struct scalar_case;

struct sl_goal {
    uint32_t id, req, n_roots;
    const uint32_t *roots;
    bool pure;        /* every wanted node is required: an accepted value satisfies all */
    uint8_t sat;      /* 0 unknown, 1 being found out, 2 yes, 3 no */
    uint8_t compound; /* arrays and objects that may satisfy it; while unknown, by types alone */
    sl_rx_id scalar;
    uint32_t lex; /* where a scalar begins */
    struct sl_plan *object, *array;
    /* of items that must differ: scalars that can be told apart, SL_RX_ALL: not known; at least so
     * many values of them, UINT32_MAX: not known */
    sl_rx_id distinct;
    uint32_t n_values, n_scalars;
    struct scalar_case *cases; /* made on demand: scalars that the roots say the same of */
    uint32_t n_cases;          /* 0: too many */
};

struct sl_name {            /* a property name that some local knows */
    const char *raw, *text; /* UTF-8; as between the quotes */
    uint32_t n_raw, n;
    uint64_t patterns; /* of the plan that it matches */
};

struct sl_plan_pattern {
    uint32_t local, node; /* node SL_NODE_NONE: propertyNames, which must match */
    sl_rx_id rx;
};

struct sl_plan {
    struct sl_goal *goal;
    bool object, simple; /* simple: all locals must hold, whatever else happens */
    bool exclusive;      /* something may have to be false: not, if */
    bool static_keys;    /* which names are allowed does not depend on what was seen */
    bool track_keys;     /* other names must not come twice, as they are counted */
    bool settled;        /* neither a number of members nor one of the others asks for more */
    uint32_t n_locals, locals[64];
    /* Of exclusive plans of objects: locals that may have to be false, and names that one of these
     * has a say on, or that some local asks for. */
    uint64_t tests;
    uint32_t *matters;
    uint32_t cap; /* where counting stops to matter */
    /* objects */
    struct sl_name *names;
    uint32_t n_names, *props; /* [n_names][n_locals] node, SL_NODE_NONE: not a property */
    /* of a local, places in names: of what it requires, then of each dependency and what that one
     * requires */
    uint32_t **asked;
    struct sl_plan_pattern *patterns;
    uint32_t n_patterns;
    struct sl_goal **name_goals; /* of simple plans */
    uint32_t *name_allowed;      /* of static_keys */
    uint64_t *free_sigs;         /* classes of other names: the patterns they match */
    uint32_t n_free, cap_free;
    sl_rx_id free_lang; /* of simple plans */
    bool free_known;
    /* where a local's words are in a frame, UINT32_MAX: none. Objects: pending names of
     * unevaluatedProperties; arrays: pending items, then the count of contains, then the items that
     * contains has matched */
    uint32_t *word_of, n_words;
    bool indexed;       /* arrays: which items contains matched is known, of up to MAX_INDEXED */
    bool unique;        /* items differ: the set of those that were read is in */
    uint32_t seen_word; /* this word */
    uint32_t min_items; /* the largest of the locals */
};

struct sl_pos { /* a place in a rule of a context-free grammar */
    enum sl_pos_op { POS_END, POS_TERM, POS_CALL, POS_JSON, POS_SPLIT, POS_GUARD } op;
    /* TERM: expression; CALL: position; JSON: goal; SPLIT: first of kids; GUARD: an expression that
     * the text from here to the next GUARD matches too, across the borders of TERMs. Whatever
     * begins a text of it is a text of it. There is no JSON under it. SL_RX_NONE: the end of it. */
    uint32_t a;
    uint32_t next; /* SPLIT: number of kids */
};

#define SL_AUTO_MAX_DEPTH 128

/* Caches. What is known of a frame changes once: when its plan's name_allowed is made. */
#define SL_TRUTH_MEMO  2048
#define SL_MEMBER_MEMO 256
struct sl_truth_memo {
    const struct sl_vec *frame;
    const uint32_t *names;
    uint32_t node;
    bool end;
    uint8_t truth;
};
struct sl_member_memo {
    const struct sl_vec *frame;
    const uint32_t *names;
    struct sl_goal *goal;
};

struct sl_auto_limits {
    size_t max_bytes;
    uint32_t max_depth, max_threads, max_states;
};

struct sl_auto {
    struct sl_rx rx;
    struct sl_schema schema;
    struct sl_arena arena;
    struct sl_auto_limits limits;
    struct sl_vec **vecs;
    uint32_t n_vecs, cap_vecs;
    struct sl_intern index; /* of vecs */
    struct sl_pos *pos;
    uint32_t n_pos, cap_pos, *splits, n_splits, cap_splits;
    uint32_t start; /* the first state */
    sl_rx_id space; /* between any two tokens of JSON; SL_RX_NONE: by place (auto_space.c) */
    sl_rx_id lines[SL_AUTO_MAX_DEPTH + 1]; /* by depth, made when asked for */
    sl_rx_id free_of[32]; /* by types: the text without constraints that stands for free_from */
    sl_rx_id free_from[32];
    uint64_t *memo; /* state and byte to state, a cache */
    uint32_t *memo_to;
    uint32_t n_entered; /* closure steps of the current byte */
    uint64_t n_truths;  /* asked of nodes, for the time limit */
    uint64_t n_cut;     /* truths that were not found out, as schemas are nested too deeply */
    struct sl_truth_memo truths[SL_TRUTH_MEMO];
    struct sl_member_memo members[SL_MEMBER_MEMO];
    uint32_t sat_depth; /* goals that sl_goal_sat is in the middle of */
    struct {
        sl_rx_id id;
        bool yes;
    } wide[1024];  /* languages that sl_rx_is_wide looked at */
    bool too_many; /* the plan that is being made goes beyond a limit */
    bool unsure;   /* the step depends on a text that a blurred state does not know */
    bool sat_cut;  /* it stopped before some: they were taken for possible */
    const char *failed;
    int fail_code;
};

SL_MUST_CHECK int sl_auto_init(struct sl_auto *a, const struct sl_rx_limits *rx_limits,
                               const struct sl_auto_limits *limits,
                               const struct sl_json_style *style, struct sl_error *err);
void sl_auto_deinit(struct sl_auto *a);
SL_MUST_CHECK int sl_auto_check(const struct sl_auto *a, struct sl_error *err);
/* Starts at a JSON value of that schema node, or at a position. */
SL_MUST_CHECK int sl_auto_start_json(struct sl_auto *a, uint32_t node, struct sl_error *err);
SL_MUST_CHECK int sl_auto_start_pos(struct sl_auto *a, uint32_t pos, struct sl_error *err);
uint32_t sl_auto_add_pos(struct sl_auto *a, struct sl_pos pos);
uint32_t sl_auto_json_goal(struct sl_auto *a, uint32_t node); /* for POS_JSON */

/* What follows a blurred state depends on the text that it stands for. */
#define SL_STATE_UNSURE 1u
/* The state with texts that only uniqueItems looks at left out, for walks over many tokens. */
uint32_t sl_auto_blur(struct sl_auto *a, uint32_t state);
/* What the text that a state is reading may become and must then be told apart from: the rest of
 * each earlier value, sorted. */
struct sl_rivals {
    struct sl_rx_str *v;
    uint32_t n, cap;
    uint32_t other; /* the state as it is for all other texts, 0: there is no such state */
};
void sl_auto_rivals(struct sl_auto *a, uint32_t state, struct sl_rivals *out);
/* May the text with those bytes behind it be, or begin, one of them? */
bool sl_rivals_have(const struct sl_rivals *r, const uint8_t *s, size_t n);
/* Is that an item that is only sure to be allowed as long as its language is wide? */
bool sl_auto_is_wide(const struct sl_auto *a, uint32_t state);
/* Has the language more texts than an array may have items that differ? No if that takes long. */
bool sl_rx_is_wide(struct sl_auto *a, sl_rx_id id);

/* The state after byte; 0: the byte is not allowed (or a limit was hit: sl_auto_check). */
uint32_t sl_auto_step(struct sl_auto *a, uint32_t state, uint8_t byte);
bool sl_auto_accepts(struct sl_auto *a, uint32_t state);
/* The language when the state is one thread inside one regular expression, SL_RX_NONE otherwise. */
sl_rx_id sl_auto_lexeme(const struct sl_auto *a, uint32_t state);

#endif
