/* SPDX-License-Identifier: MIT
 * output.h - the inside of output_parse.h: the rows of the tables, the parser, its states.
 *
 * A state is a function that takes one byte. The byte is already the last one of p->hold, which
 * keeps everything that is not reported yet. A state commits the hold (those bytes are structure of
 * a call that was reported) or fails, which gives it back as text.
 */
#ifndef SL_TEXT_OUTPUT_H
#define SL_TEXT_OUTPUT_H

#include "base/buf.h"
#include "text/output/output_parse.h"

#include <stdint.h>

enum {
    OUT_FIELD = 256,    /* bytes of a name, an id, a key */
    OUT_SPACE = 256,    /* bytes of white space that a marker takes with it */
    OUT_HOLD = 1 << 16, /* bytes that are neither text nor a call yet */
    OUT_RESCAN = 4096,  /* of a failed call, looked at again for markers */
    OUT_DEPTH = 256,    /* nesting of arguments */
    OUT_PAIRS = 4,
    OUT_DROPS = 3,
    OUT_LITERALS = 16,
};

/* ---------------------------------------------------------------- tables */

enum out_body {                /* what a call looks like behind its marker */
                OUT_JSON_CALL, /* {"name": ..., "arguments": {...}} */
                OUT_JSON_ARGS, /* a name, then {...} */
                OUT_PARAMS,    /* a name, then marked keys and values */
                OUT_PYTHON,    /* name(key=value, ...) */
                OUT_QUOTED,    /* name{key:value, ...}, strings between two markers */
                OUT_HARMONY,   /* channels */
};

enum {                        /* flags of a tool format */
       OUT_LIST = 1,          /* calls may stand in [ , ] */
       OUT_OR_JSON = 2,       /* a call that begins with { or [ is OUT_JSON_CALL */
       OUT_NAME_IS_KEY = 4,   /* {"name": {arguments}} */
       OUT_NAME_IN_ID = 8,    /* functions.NAME:INDEX is the id */
       OUT_NAME_TO_TAG = 16,  /* the name ends where the next marker begins */
       OUT_TRIM_NEWLINE = 32, /* one newline at either end of a value belongs to its markers */
       OUT_TRIM_SPACE = 64,   /* all white space at either end of a value does */
       OUT_SHORT_ID = 128,    /* ids are nine letters and digits: the template insists */
};

struct out_pair {
    const char *open, *close; /* open "": at the start of the content; close NULL: none */
};

/* A section is pair.open, calls, pair.close. A call is call_open, [id, id_end,] name, name_end,
 * body, call_close; what is NULL is not there. White space may stand between any two. */
struct out_tools {
    const char *names; /* the first one is the format's, the others are aliases */
    enum out_body body;
    unsigned flags;
    char sep; /* besides white space, between calls that are not in a list */
    struct out_pair pairs[OUT_PAIRS];
    const char *call_open, *call_close;
    const char *id_end;    /* the id stands before the name */
    const char *id_open;   /* the id stands behind the name, before name_end */
    const char *name_end;  /* NULL for OUT_JSON_CALL */
    const char *name_more; /* attributes of no interest follow name_end, up to this */
    const char *quote;     /* OUT_QUOTED: both ends of a string */
    /* OUT_JSON_CALL, what the model writes: keys of id, name and arguments; NULL: none, name,
     * arguments. All that are known are read. */
    const char *id_key, *name_key, *args_key;
    struct { /* OUT_PARAMS: key_open KEY key_end [TYPE type_end] [open] VALUE close */
        const char *key_open, *key_end, *type_end, *open, *close;
    } param;
};

enum {                      /* flags of a reasoning format */
       OUT_INSIDE = 1,      /* an answer starts inside the block unless the prompt says otherwise */
       OUT_ANYWHERE = 2,    /* a block may open in the middle of content */
       OUT_CALL_ENDS = 4,   /* a call's marker ends the block */
       OUT_CHANNELS = 8,    /* OUT_HARMONY */
       OUT_AS_CONTENT = 16, /* the block and its markers stay in the content */
};

struct out_reasoning {
    const char *names;
    unsigned flags;
    const char *open, *close;
    const char *drop[OUT_DROPS]; /* markers around the answer, taken out of the content */
};

const struct out_tools *out_find_tools(const char *name);
const struct out_reasoning *out_find_reasoning(const char *name);

/* ---------------------------------------------------------------- JSON */

/* Checks one JSON value byte by byte. */
struct out_json {
    uint64_t stack[OUT_DEPTH / 64]; /* a bit per level: 1 is an object */
    uint16_t depth;
    uint8_t state, n;
    bool is_key;
    const char *word;
};
void out_json_begin(struct out_json *j);
int out_json_step(struct out_json *j, char c);   /* 0: go on, 1: c ends the value, -1: not JSON */
bool out_json_is_whole(const char *s, size_t n); /* s is a JSON value, white space around it */

/* ---------------------------------------------------------------- the parser */

struct sl_output;
typedef void (*out_state)(struct sl_output *p, char c);

enum out_literal_kind { OUT_THINK_OPEN, OUT_THINK_CLOSE, OUT_DROP, OUT_CALL, OUT_MESSAGE };

struct out_literal { /* what text is searched for */
    const char *text;
    size_t n;
    enum out_literal_kind kind;
    int pair;
};

struct sl_output {
    const struct out_tools *tools;         /* NULL: none */
    const struct out_reasoning *reasoning; /* NULL: none */
    struct sl_output_options opt;
    struct out_literal lits[OUT_LITERALS];
    int n_lits;
    bool has_bare;

    out_state state;
    struct sl_buf hold, replay, out;
    size_t replay_at;
    enum sl_output_kind out_kind; /* of the bytes in out */
    bool no_memory, finishing;

    /* text */
    bool thinking;     /* inside of a reasoning block */
    bool fresh;        /* no text since the start, a block or a call */
    bool unopened;     /* a block that stays content: its marker stands in the prompt */
    bool after_marker; /* white space here belongs to a marker */
    bool closed;       /* the block was ended from outside: its closing marker may follow */

    /* the section and the call in it */
    const struct out_pair *pair;
    size_t n_mark; /* of hold: what is certainly text if this fails */
    int n_calls, n_section, n_messages;
    bool in_list, list_done, comma;
    bool begun, sent_id, whole; /* whole: the arguments are, their call may go on */
    const char *want[2];        /* literals expected next, and how far they agree */
    size_t want_at;
    out_state then[2];
    const char *ends[2]; /* of the field being read */
    out_state field_then[2];
    char field[OUT_FIELD + 64], name[OUT_FIELD + 1], id[OUT_FIELD + 1];
    size_t n_field, n_name, n_id;
    const json_t *schema; /* of the tool, or NULL */
    struct out_json json;

    struct { /* output_json.c */
        int key;
        bool has_args;
        size_t args_from, args_to; /* of hold, if they came before the name */
    } call;
    struct { /* output_params.c */
        unsigned types;
        int mode;
        bool any, lead;
        char key[OUT_FIELD];
        size_t n_key;
        struct sl_buf text;
    } param;
    struct { /* output_values.c */
        uint8_t stack[OUT_DEPTH];
        uint16_t depth;
        int state;
        char quote;
        bool is_key, first;
        unsigned code, n_digits, n_left;
        char word[64];
        size_t n_word, at;
    } val;
};

static inline bool out_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* output_parse.c */
void out_emit(struct sl_output *p, enum sl_output_kind kind, const char *s, size_t n);
void out_text_out(struct sl_output *p, const char *s, size_t n); /* as reasoning or content */
void out_args(struct sl_output *p, const char *s);
void out_args_byte(struct sl_output *p, char c); /* of a JSON string: escaped */
void out_commit(struct sl_output *p);            /* the hold is structure of a reported call */
void out_fail(struct sl_output *p);              /* the hold is text */
bool out_begin(struct sl_output *p);             /* BEGIN of p->name; false: failed */
void out_end(struct sl_output *p, bool whole);
void out_hold_shift(struct sl_output *p, size_t n); /* forgets the first n bytes */

/* output_text.c: reasoning and content */
void out_text(struct sl_output *p, char c);
void out_text_flush(struct sl_output *p);

/* output_calls.c: sections, names, ids; what is before and behind a body */
void out_section_begin(struct sl_output *p, const struct out_pair *pair);
void out_section(struct sl_output *p, char c);
void out_after_call(struct sl_output *p);
void out_body_done(struct sl_output *p); /* the arguments are whole: END, then call_close */
void out_expect(struct sl_output *p, const char *a, out_state then_a, const char *b,
                out_state then_b);
void out_read(struct sl_output *p, const char *a, out_state then_a, const char *b,
              out_state then_b);
void out_take_field(struct sl_output *p); /* cuts white space off both ends */
void out_json_args(struct sl_output *p, char c);
bool out_unfinished_marker(const struct sl_output *p);

enum { /* types that a schema allows */
       T_STRING = 1,
       T_INTEGER = 2,
       T_NUMBER = 4,
       T_BOOLEAN = 8,
       T_NULL = 16,
       T_ARRAY = 32,
       T_OBJECT = 64,
       T_ANY = 126
};
const json_t *out_resolve(const json_t *root, const json_t *schema);
unsigned out_types_of(const json_t *root, const json_t *schema, int depth); /* 0: any */

/* one file per body */
void out_json_call(struct sl_output *p, char c); /* output_json.c */
void out_params_begin(struct sl_output *p);      /* output_params.c */
void out_params_finish(struct sl_output *p);
void out_values_begin(struct sl_output *p);  /* output_values.c */
void out_harmony_begin(struct sl_output *p); /* output_harmony.c */
void out_harmony_mark(struct sl_output *p, const struct out_literal *mark);

#endif
