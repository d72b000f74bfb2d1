/* SPDX-License-Identifier: MIT
 * flags.h - command lines from tables: each flag is a row that says where its value goes, what it
 * may be and what it means. Parsing, range checks, `--help` and typo hints all read the same rows.
 *
 * Accepted spellings: --name value, --name=value, -x value, `_` for `-`, --no-name for a switch.
 */
#ifndef SL_CMD_FLAGS_H
#define SL_CMD_FLAGS_H

#include "base/err.h"

enum sl_flag_kind {
    SL_FLAG_SWITCH,     /* bool: --name sets it, --no-name clears it */
    SL_FLAG_SWITCH_OFF, /* bool: --no-name sets it (field says "no ..."), --name clears it */
    SL_FLAG_STR,        /* const char *, borrowed from argv */
    SL_FLAG_STR_LIST,   /* struct sl_flag_list: may be repeated */
    SL_FLAG_PAIR_LIST,  /* likewise, and words behind the value that hold a '=' belong to it */
    SL_FLAG_INT,        /* int32_t; 8k, 25.6k, 1M accepted */
    SL_FLAG_U64,        /* uint64_t, likewise */
    SL_FLAG_FLOAT,      /* float */
    SL_FLAG_HEADING,    /* a title line in --help */
};

#define SL_FLAG_LIST_MAX 64

struct sl_flag_list {
    const char *items[SL_FLAG_LIST_MAX];
    int n;
};

struct sl_flag {
    enum sl_flag_kind kind;
    char short_name;   /* 0 = none */
    const char *name;  /* vLLM's where one exists */
    const char *alias; /* another engine's spelling, not shown in --help; NULL = none */
    size_t offset;     /* of the field in the group's struct */
    double min, max;   /* numbers: inclusive range */
    const char *arg;   /* what --help calls the value */
    const char *help;  /* one line, with the default */
};

struct sl_flag_group {
    const struct sl_flag *flags;
    int n_flags;
    void *base;     /* the struct that the offsets refer to */
    uint64_t given; /* out: bit i = flag i was on the command line; so at most 64 flags */
};

struct sl_command {
    const char *name;
    const char *usage;    /* after "sluice NAME" */
    const char *summary;  /* one line for the list of commands */
    const char *examples; /* command lines, the first thing --help shows; NULL = none */
    const char *brief;    /* names of the flags of --help, spaces between them, in the
                             order of use; NULL: all. --help=all shows all of them */
    const char *details;  /* text at the end of --help; NULL = none */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
};

enum { SL_EXIT_OK = 0, SL_EXIT_FAILED = 1, SL_EXIT_USAGE = 2 };

#define SL_FLAGS_HELP 1 /* --help was asked for and printed */

/* Fills the groups' structs and positional[0..max). Returns 0, SL_FLAGS_HELP, or an error that
 * names the flag (and, for an unknown one, the nearest). Words after "--" are positional. */
SL_MUST_CHECK int sl_flags_parse(const struct sl_command *cmd, struct sl_flag_group *groups,
                                 int n_groups, int argc, char **argv, const char **positional,
                                 int max_positional, int *n_positional, struct sl_error *err);

/* Was the flag on the command line? */
bool sl_flags_given(const struct sl_flag_group *group, const char *name);
/* Copies the fields of the given flags from the group's struct to another of its kind: the command
 * line over defaults that became known later. */
void sl_flags_overlay(const struct sl_flag_group *group, void *onto);

/* Prints "sluice NAME: message" to stderr, without what a terminal would obey: messages quote files
 * of strangers. */
void sl_command_complain(const struct sl_command *cmd, const struct sl_error *err);
/* The same, and returns the exit status: 2 for what the user gave, else 1. */
int sl_command_fail(const struct sl_command *cmd, const struct sl_error *err);

/* Rows shared by several commands. */
extern const struct sl_flag sl_flags_engine[]; /* base: struct sl_engine_config */
extern const int sl_n_flags_engine;
extern const struct sl_flag sl_flags_adapters[]; /* likewise */
extern const int sl_n_flags_adapters;
extern const struct sl_flag sl_flags_sampling[]; /* base: struct sl_sampling */
extern const int sl_n_flags_sampling;

/* The commands, one file each. */
extern const struct sl_command sl_cmd_run, sl_cmd_chat, sl_cmd_serve, sl_cmd_bench, sl_cmd_inspect,
    sl_cmd_embed, sl_cmd_tokenize, sl_cmd_template, sl_cmd_grammar, sl_cmd_pull, sl_cmd_list,
    sl_cmd_rm, sl_cmd_batch, sl_cmd_calibrate, sl_cmd_ps, sl_cmd_top, sl_cmd_stop, sl_cmd_doctor;

#endif
