/* SPDX-License-Identifier: MIT
 * ebnf_common.c - the terminals of Lark's module "common", which grammars import by name.
 *
 * Each pattern is the language that Lark's lexer reads by that name: where the original has a lazy
 * loop up to a closing mark, the pattern says that the mark is not inside.
 */
#include "base/check.h"
#include "grammar/ebnf_impl.h"

#include <string.h>

#define INT     "[0-9]+"
#define SIGN    "[+-]?"
#define DECIMAL "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)"
#define EXP     "[eE]" SIGN INT
#define FLOAT   "(?:" INT EXP "|" DECIMAL "(?:" EXP ")?)"
#define NUMBER  "(?:" FLOAT "|" INT ")"

static const struct {
    const char *name, *pattern;
} terminals[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", INT},
    {"SIGNED_INT", SIGN INT},
    {"DECIMAL", DECIMAL},
    {"FLOAT", FLOAT},
    {"SIGNED_FLOAT", SIGN FLOAT},
    {"NUMBER", NUMBER},
    {"SIGNED_NUMBER", SIGN NUMBER},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\n]|\\\\[^\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z_0-9]*"},
    {"WS_INLINE", "[ \t]+"},
    {"WS", "[ \t\f\r\n]+"},
    {"CR", "\r"},
    {"LF", "\n"},
    {"NEWLINE", "(?:\r?\n)+"},
    {"SH_COMMENT", "#[^\n]*"},
    {"CPP_COMMENT", "//[^\n]*"},
    {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\n]*"},
};

const char *sl_ebnf_common(const char *name, size_t n)
{
    for (size_t i = 0; i < SL_COUNT(terminals); i++)
        if (strlen(terminals[i].name) == n && memcmp(terminals[i].name, name, n) == 0)
            return terminals[i].pattern;
    return NULL;
}
