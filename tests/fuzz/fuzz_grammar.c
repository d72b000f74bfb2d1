/* SPDX-License-Identifier: MIT
 * Grammars of every notation, and a text for each: compile, walk, and at every byte compare the
 * mask with what the matcher accepts. Input: a byte for the kind, the grammar, a 0, the text.
 */
#include "base/sys.h"
#include "fuzz.h"
#include "grammar/grammar.h"

#include <string.h>

enum { N_TOKENS = 258, END = 257 };

static struct sl_vocab *vocab;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static char bytes[256];
    struct sl_vocab_token t[N_TOKENS] = {{0}};
    const int32_t ends[] = {END};
    struct sl_error err;
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct sl_vocab_token){&bytes[i], 1, false};
    }
    t[256] = (struct sl_vocab_token){"\":", 2, false};
    t[END] = (struct sl_vocab_token){"</s>", 4, true};
    SL_ASSERT(sl_vocab_create(t, N_TOKENS, ends, 1, &vocab, &err) == 0);
    return 0;
}

/* The mask at the matcher's place allows exactly the tokens that it accepts. */
static bool compare(struct sl_matcher *m)
{
    uint32_t mask[(N_TOKENS + 31) / 32];
    struct sl_error err;
    if (sl_matcher_mask(m, mask, &err) != 0)
        return false;
    for (int32_t id = 0; id < N_TOKENS; id++) {
        bool ok;
        if (sl_matcher_accept(m, id, &ok, &err) != 0)
            return false;
        SL_ASSERT(ok == ((mask[id / 32] >> (id & 31) & 1) != 0));
        if (ok)
            sl_matcher_rollback(m, 1);
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_input in = {data, data + size};
    struct sl_grammar_spec spec = {.kind = (enum sl_grammar_kind)sl_input_below(&in, 6)};
    const uint8_t *zero = memchr(in.at, 0, (size_t)(in.end - in.at));
    const uint8_t *end = zero != NULL ? zero : in.end;
    struct sl_grammar *g;
    struct sl_matcher *m;
    struct sl_error err;
    spec.text = (const char *)in.at;
    spec.n = (size_t)(end - in.at);
    if (size > 4096 || sl_grammar_compile(&spec, vocab, &g, &err) != 0)
        return 0;
    if (sl_matcher_create(g, 300, &m, &err) == 0) {
        bool ok = compare(m);
        for (const uint8_t *p = end + 1; ok && p < in.end && p - end < 200; p++)
            ok = sl_matcher_accept(m, *p, &ok, &err) == 0 && ok && compare(m);
        sl_matcher_destroy(m);
    }
    sl_grammar_destroy(g);
    return 0;
}
