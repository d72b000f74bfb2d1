/* SPDX-License-Identifier: MIT
 * grammar_rig.h - a small vocabulary, and helpers to compile and to match.
 */
#ifndef SL_TESTS_GRAMMAR_RIG_H
#define SL_TESTS_GRAMMAR_RIG_H

#include "base/check.h"
#include "base/sys.h"
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Every byte, pieces as tokenizers have them, two equal tokens, one special, two ends. */
static const char *const rig_pieces[] = {
    "\"",   "{\"",  "\":",   "\": ", "\", \"", "\"}",     "}}",    "]",      "],",   "[{",
    "name", "na",   "me\":", "true", "false",  "null",    "12",    "345",    ".5",   "e1",
    "\n  ", "  ",   "foo",   "bar",  "foobar", "\\n",     "\\u00", "é",      "日本", "\xE6\x97",
    "a",    "ab",   "abc",   "b\"",  "x\", ",  "hello w", "\", ",  "\":{\"", "1,",   "-1",
    "aaaa", "\\\"", ": \"",  "<",    "<t",     "<tool>",  "</",    "tool>",  "some", " text",
};
enum { RIG_SPECIAL = 256 + (int)SL_COUNT(rig_pieces), RIG_TWIN, RIG_EOS, RIG_EOT, RIG_TOKENS };

static inline struct sl_vocab *rig_vocab(void)
{
    static char bytes[256];
    struct sl_vocab_token t[RIG_TOKENS + 1] = {{0}};
    struct sl_vocab *v;
    struct sl_error err;
    const int32_t ends[] = {RIG_EOS, RIG_EOT};
    for (size_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct sl_vocab_token){&bytes[i], 1, false};
    }
    for (size_t i = 0; i < SL_COUNT(rig_pieces); i++)
        t[256 + i] = (struct sl_vocab_token){rig_pieces[i], strlen(rig_pieces[i]), false};
    t[RIG_SPECIAL] = (struct sl_vocab_token){"<|special|>", 11, true};
    t[RIG_TWIN] = (struct sl_vocab_token){"foo", 3, false};
    t[RIG_EOS] = (struct sl_vocab_token){"</s>", 4, true};
    t[RIG_EOT] = (struct sl_vocab_token){"<|eot|>", 7, true};
    assert_int_equal(sl_vocab_create(t, RIG_TOKENS, ends, 2, &v, &err), 0);
    return v;
}

static inline bool rig_matches(struct sl_grammar *g, const char *text)
{
    bool yes;
    size_t at;
    struct sl_error err;
    if (sl_grammar_matches(g, text, strlen(text), &yes, &at, &err) != 0)
        fail_msg("'%s': %s", text, err.msg);
    return yes;
}

static inline struct sl_grammar *rig_compile(enum sl_grammar_kind kind, const char *text,
                                             const struct sl_vocab *v)
{
    struct sl_grammar *g;
    struct sl_error err;
    struct sl_grammar_spec spec = {.kind = kind, .text = text, .n = strlen(text)};
    if (sl_grammar_compile(&spec, v, &g, &err) != 0)
        fail_msg("%s: %s", text, err.msg);
    return g;
}

#endif
